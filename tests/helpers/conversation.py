"""Requests of real runs, each at the node that gets it, to be asked again in another way."""

from __future__ import annotations

import copy
import functools
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zoo import LIKE_ANOTHER, WAYS, hospitals, new_folder

from fedkern_flwr.clients.table_client import RunFile
from fedkern_flwr.errors import FedKernError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.hybrid.messages import equations_sum
from fedkern_flwr.node.client import Client
from fedkern_flwr.node.state import KeptState, RunRecord, SessionState, load_state, store_state
from fedkern_flwr.secure_sum.membership import Cohort
from fedkern_flwr.strategies import SecureGram
from fedkern_flwr.wire import sums
from fedkern_flwr.wire.message import attach, detach
from fedkern_flwr.wire.sums import bind

#: Methods whose nodes learn from streams.
ONLINE = ("pof", "ofskl", "ofmkl", "vm-kofl", "em-kofl", "per-fed-avg", "local-only")
MESSAGES = {m.phase: m for m in (sums.Roster, sums.Order, sums.Unmask, sums.Delivery, sums.End)}


@dataclass
class Asked:
    """A request at a node that has not answered it yet."""

    client: Any
    request: Any
    sections: list[Any]
    state: Any
    reply: tuple[list[Any], Any] = ([], None)  # arrays and scalars that were answered last

    @classmethod
    def of(cls, client: Any, request: Any, sections: list[Any]) -> Asked:
        """Return a request that has come to a client."""
        return cls(copy.copy(client), request, sections, copy.deepcopy(client.context.state))

    def send(self, client: Any = None, request: Any = None, sections: Any = None) -> str:
        """Return what is said to a request, maybe another one; nothing if it is answered."""
        client, request = client or self.client, request or self.request
        folder = client.state_dir
        for file in folder.glob("*/partition-*") if folder else ():
            if file.suffix in (".context", ".last"):  # of later messages than this one
                file.unlink()
        arrays, scalars = attach(self.sections if sections is None else sections)
        try:
            out, _, told = client.fit(request.arrays() + arrays, request.scalars() | scalars)
        except FedKernError as error:
            return str(error).removeprefix("[fedkern] ")
        self.reply = out, told
        return ""

    def try_out(
        self, client: Any = None, request: Any = None, sections: Any = None
    ) -> tuple[str, bool]:
        """Return what is said to a request as if it were the first, and whether it is counted."""
        self.begin()
        before = self.refusals
        said = self.send(client, request, sections)
        return said, self.refusals > before

    def begin(self) -> None:
        """Have the node as it was when the request came."""
        self._forgive()
        self.client.context.state = copy.deepcopy(self.state)
        session = self.request.session
        self.client.ledger.keep_record(
            session, RunRecord.load(self.client.context, session).write()
        )

    def _forgive(self) -> None:
        """Have a node at which nothing has failed, and which has told no figures."""
        folder = self.client.state_dir
        if folder is not None and not self.client.simulated:
            with NodeLedger(folder, self.client.partition).file.writing() as db:
                db.execute("DELETE FROM facts WHERE name = 'failures'")
                db.execute("DELETE FROM evaluations")

    @property
    def orders(self) -> list[sums.Order]:
        """The sums that are ordered."""
        return [section for section in self.sections if isinstance(section, sums.Order)]

    def members(self, order: sums.Order) -> list[int]:
        """Return who is in a sum."""
        roster = next((s for s in self.sections if isinstance(s, sums.Roster)), None)
        if roster is not None:
            return list(json.loads(roster.cohorts)[order.cohort][2])
        self.begin()
        return self.members_now(order)

    def members_now(self, order: sums.Order) -> list[int]:
        """Return who is in a sum, of a node that knows."""
        state = load_state(self.client.context)
        assert state is not None
        return list(state.cohorts[order.cohort].members)

    def regroup(self, members: list[int]) -> int:
        """Have the node accept one more cohort, which a roster might have had."""
        state = load_state(self.client.context)
        assert state is not None
        cohort = Cohort(99, tuple(members), 2, state.digest)
        state.enter(cohort, {j: bytes(32) for j in members if j != self.client.partition})
        store_state(self.client.context, state)
        return 99

    @property
    def ends(self) -> bool:
        """Whether the secrets of the run's sums are erased with it."""
        return any(isinstance(section, sums.End) for section in self.sections)

    @property
    def record(self) -> RunRecord:
        """A copy of what the node remembers of the run for its own protection."""
        return RunRecord.load(self.client.context, self.request.session)

    @property
    def refusals(self) -> int:
        """How many the node has counted."""
        return self.record.refusals

    @property
    def session(self) -> SessionState:
        """What the node remembers of its session."""
        return SessionState.load(self.client.context)

    def change_kept(self, change: Callable[[KeptState], Any]) -> None:
        """Change what the client has kept of its run."""
        session, kept = self.session, self.kept
        change(kept)
        session.payload = kept.pack()
        session.store(self.client.context)

    @property
    def kept(self) -> KeptState:
        """What the client has kept of its run."""
        return KeptState.unpack(SessionState.load(self.client.context).payload)


@contextmanager
def watching(seen: Callable[[Any, Any, list[Any]], None]) -> Iterator[None]:
    """Have a function called with client, request and sections before a node answers."""
    fit = Client.fit

    def watched(client: Any, parameters: Any, config: Any) -> Any:
        arrays, scalars, sections = detach(parameters, config, party="server")
        kind = client.handlers().get(scalars.get("phase"))
        if kind is not None:
            request = kind[0].unpack(arrays, scalars, party="server")
            seen(client, request, [s.read(MESSAGES[s.phase], party="server") for s in sections])
        return fit(client, parameters, config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "fit", watched)
        yield


def asked_in(
    run: Callable[[int, Path], Any], folder: Path, only: Callable[[Any, Any], bool] | None = None
) -> dict[str, Asked]:
    """Return requests of a run: one for each kind of node, and of sums that come along.

    Maybe ``only`` those of which this holds: (client, request).
    """
    found = dict[str, Asked]()

    def seen(client: Any, request: Any, sections: list[Any]) -> None:
        stems = {re.split("[#/]", s.name)[0] for s in sections if isinstance(s, sums.Order)}
        stems |= {"delivered" for s in sections if isinstance(s, sums.Delivery)}
        key = f"{request.phase} at {client.role}: {', '.join(sorted(stems))}"
        if key not in found and (only is None or only(client, request)):
            found[key] = Asked.of(client, request, sections)

    with watching(seen), pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFile, "erase", lambda _: None)  # requests come again
        run(1, folder)
    return found


def ordered(one: Asked, request: Any) -> list[Any]:
    """Return the sections of a changed request; sums that are named after it, after this one."""
    out = []
    for section in one.sections:
        if isinstance(section, sums.Order) and "#" in section.name:
            stem = section.name.partition("#")[0]
            if request.phase.startswith("gram"):
                section = replace(section, name=bind(stem, request))
            elif request.phase.endswith("equations") and request.folds != one.request.folds:
                longer = section.length // one.request.folds * request.folds
                section = replace(section, name=equations_sum(request), length=longer)
            elif request.phase in ("svm-statistics", "svm-step"):
                one.begin()
                told = str(one.kept.settings.get("told", ""))
                section = replace(section, name=request.sum_name(told))
        out.append(section)
    return out


def alone() -> list[dict[str, Any]]:
    """Return a hospital with a dozen rows, and two centres."""
    tables = hospitals(count=1)
    for name in ("x", "y", "ids"):
        tables[0][name] = tables[0][name][:12]
    return tables


#: A hospital that has nobody to sum with.
ALONE = replace(
    WAYS["fed-cg"],
    tables=alone,
    options={"landmarks": 8, "sampling": "C", "allow_single": True},
    common={**WAYS["fed-cg"].common, "allow_single": True},
)


@functools.cache
def met(name: str, only: Callable[[Any, Any], bool] | None = None) -> dict[str, Asked]:
    """Return the requests of a way, at nodes that are none of a simulation; run once."""
    way, more = ALONE if name == "fed-cg, alone" else WAYS[name], dict[str, Any]()
    if way.method.startswith(ONLINE):  # what so few samples show is not the question here
        more = {"policy": NodePolicy(allow_small_sums=True, min_own_rows=0)}
    folder = new_folder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        fewer = {200: 2, 12: 2, 3: 1}.get(way.rounds or 0)  # the first of each kind is enough
        rounds = {"num_rounds": fewer} if fewer else {}
        sites = way.sites(folder, guarded=True, **more)

        def run(*_: Any) -> None:
            found = sites.fit(start=rounds)
            if name == "secure-gram":
                SecureGram().cross(sites.grid(), found.strategy.model())

        for table in sites.tables if name == "secure-gram" else ():
            table["x_new"] = table["x"][:, :2]
        return asked_in(run, folder, only)


#: What a stream's node has read is on its disk, and is not brought back for another try.
SECURE = [name for name, way in WAYS.items() if way.secure and name != "vm-kofl, streams"]
#: Of each method one request of each kind, which `make test` tries; of each way all of them.
ASKED = [
    *dict.fromkeys(WAYS[name].method for name in SECURE if name not in LIKE_ANOTHER),
    *(pytest.param(f"all of {name}", marks=pytest.mark.long) for name in SECURE),
]


def requests_of(which: str) -> Iterator[tuple[str, str, Asked]]:
    """Yield way, name and request, see ``ASKED``."""
    ways, of_a_way = [name for name in SECURE if WAYS[name].method == which], which[7:]
    seen = set[Any]()
    for way in [of_a_way] if of_a_way in WAYS else [n for n in ways if n not in LIKE_ANOTHER]:
        for name, one in met(way).items():
            sums_of = ((o.kind, o.self_masks, o.receiver < 0, o.noise > 0) for o in one.orders)
            if (kind := (name, *sums_of)) not in seen:
                yield way, name, one
            seen.add(kind)


def kept_state(context: Any) -> KeptState:
    """Return what a node keeps of its run."""
    return KeptState.unpack(SessionState.load(context).payload)


def kept_seed(context: Any) -> bytes:
    """Return the secret that a node has drawn for its run, nothing where it keeps none."""
    payload = SessionState.load(context).payload
    try:
        return KeptState.unpack(payload).seed if payload else b""
    except Exception:  # of a method that keeps something else
        return b""


def asked(name: str, begins: str, only: Callable[[Any, Any], bool] | None = None) -> Asked:
    """Return a request of a way whose name begins so, at a node that has not answered it."""
    found = met(name, only)
    one = next(one for key, one in found.items() if key.startswith(begins))
    one = replace(one, client=copy.copy(one.client))
    one.begin()
    return one


def forgetful(client: Any) -> Any:
    """Return a client that has no ledger: it remembers its runs in its context only."""
    other = copy.copy(client)
    other.ledger = NodeLedger(None, client.partition, client.ledger.rules)
    return other


# -- other tables


def corners(values: np.ndarray) -> np.ndarray:
    least, most = values.min(initial=0.0), values.max(initial=0.0)
    return np.where(values > np.median(values), most, least).astype(values.dtype)


#: Other values of a table, of the same shape.
TABLES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "its own": lambda values: values,
    "another order": lambda values: values[::-1].copy(),
    "one row and class": lambda values: np.repeat(values[:1], len(values), axis=0),
    "least and greatest": corners,
}


def with_table(client: Any, change: Callable[[Any], Any]) -> Any:
    """Return a client whose features and labels are others; its ids stay."""
    other = copy.copy(client)
    other.check_table = lambda *_: None  # the run began with another
    for holder, name in ((other, "table"), (other, "own")):
        if getattr(holder, name, None) is not None:
            setattr(holder, name, copy.copy(getattr(holder, name)))
    for one in (other, *(getattr(other, name, None) for name in ("table", "own"))):
        for name in ("x", "y", "x_test", "y_test", "x_new"):
            values = getattr(one, name, None)
            if isinstance(values, np.ndarray) and values.size:
                setattr(one, name, change(values))
    return other

"""Requests of real runs, each at the node that gets it, to be asked again in another way."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fedkern_flwr.clients.run_file import RunFile
from fedkern_flwr.errors import FedKernError
from fedkern_flwr.guard import RunRecord
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.wire import sums
from fedkern_flwr.wire.sections import attach, detach
from fedkern_flwr.wire.sums import bind

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
        self.client.context.state = copy.deepcopy(self.state)

    @property
    def ends(self) -> bool:
        """Whether the secrets of the run's sums are erased with it."""
        return any(isinstance(section, sums.End) for section in self.sections)

    @property
    def refusals(self) -> int:
        """How many the node has counted."""
        return RunRecord.load(self.client.context, self.request.session).refusals

    @property
    def kept(self) -> KeptState:
        """What the client has kept of its run."""
        return KeptState.unpack(SessionState.load(self.client.context).payload)


@contextmanager
def watching(seen: Callable[[Any, Any, list[Any]], None]) -> Iterator[None]:
    """Have a function called with client, request and sections before a node answers."""
    fit = PhaseClient.fit

    def watched(client: Any, parameters: Any, config: Any) -> Any:
        arrays, scalars, sections = detach(parameters, config, party="server")
        kind = client.handlers().get(scalars.get("phase"))
        if kind is not None:
            request = kind[0].unpack(arrays, scalars, party="server")
            seen(client, request, [s.read(MESSAGES[s.phase], party="server") for s in sections])
        return fit(client, parameters, config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PhaseClient, "fit", watched)
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


class Met(BaseException):  # an engine passes on what is no Exception
    """Ends a run at a request."""


def asked_first(run: Callable[[], Any], node: int, phase: str, order: str) -> Asked:
    """Run a method until a node gets an order of a phase, whose name begins so."""
    met = list[Asked]()

    def seen(client: Any, request: Any, sections: list[Any]) -> None:
        names = [s.name for s in sections if isinstance(s, sums.Order)]
        here = (client.partition, request.phase) == (node, phase)
        if here and any(name.startswith(order) for name in names):
            met.append(Asked.of(client, request, sections))
            raise Met

    with watching(seen), pytest.raises(Met):
        run()
    return met[0]


def ordered(one: Asked, request: Any) -> list[Any]:
    """Return the sections of a changed request; sums that are named after it, after this one."""
    out = []
    for section in one.sections:
        if isinstance(section, sums.Order) and "#" in section.name:
            stem = section.name.partition("#")[0]
            if request.phase.startswith("gram"):
                section = replace(section, name=bind(stem, request))
            elif request.phase in ("svm-statistics", "svm-step"):
                one.begin()
                told = str(one.kept.settings.get("told", ""))
                section = replace(section, name=request.sum_name(told))
        out.append(section)
    return out

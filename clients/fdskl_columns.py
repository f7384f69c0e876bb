"""What a party of FDSKL does with its columns: phases for their owners, in secure sums."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import StateError
from fedkern_flwr.guard import SumRule
from fedkern_flwr.kernels.frequencies import (
    SEED_BYTES,
    draw_directions,
    draw_offsets,
    public_frequency_seed,
)
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.vertical import messages as wire
from fedkern_flwr.vertical.parties import ACTIVE, PASSIVE, chunks, name_sum
from fedkern_flwr.wire import DescribeRequest

from .fdskl_store import PhaseStore
from .party_table import Floats
from .table_client import TableClient

_PINNED = ("kernel", "gamma", "phase_bits", "topology", "public_seed", "capacity")


class ColumnsClient(TableClient):
    """Base class of the parties of FDSKL.

    Attributes
    ----------
    frequency_seed : bytes or None
    frequencies, topology : str
        The only kind of runs in which this node takes part.
    """

    whole_cohorts: ClassVar[bool] = True
    without_key: ClassVar[str] = (
        "give all parties the same alignment_key, or pass no ids and the rows in the same order"
    )
    run_file: ClassVar[str] = "phases"
    frequency_seed: bytes | None
    frequencies: str
    topology: str

    def describe(self, request: DescribeRequest) -> wire.VerticalDescribeReply:
        """Tell who this is; see the message."""
        self.table.order_seed = request.order_seed
        named, others = self.table.identified, self.table.others
        return self.tell(request, wire.VerticalDescribeReply, others=others, named=named)

    def keep_order(self, ids: NDArray[np.uint64], order: NDArray[np.int32]) -> None:
        """Remember in which order the rows are announced, and the names by which sums call them."""
        self.kept.arrays |= {"order": order, "names": ids[:, 0].copy()}

    def answer(self, request: Any, method: Any) -> Any:
        """Take up the settings and what has come along before a handler is called."""
        if isinstance(request, wire.PhasesRequest):
            self._begin(request)
        elif "gamma" not in self.kept.settings:
            raise StateError(
                "it knows nothing of this run", remedy="it is told again", party=self.name
            )
        self._take_delivered(request)
        return method(request)

    # -- what the phases share

    def _begin(self, request: wire.PhasesRequest) -> None:
        """Take up the settings of a run, which stay as they are in the first request.

        Raises
        ------
        ProtocolError
            The run is not of the kind that this node takes part in, or has changed.
        """
        shared = request.public_seed >= 0
        for option, value, default in (
            ("frequencies", "shared" if shared else "private", "private"),
            ("topology", request.topology, "star"),
        ):
            if getattr(self, option) != value:
                raise self.other_run(option, value, safe=default)
        kept, settings = self.kept, self.kept.settings
        asked = {name: getattr(request, name) for name in _PINNED}
        if "gamma" not in settings:
            if request.model:
                self._remember(request, asked)
            else:
                kept.seed = self.frequency_seed or kept.seed or secrets.token_bytes(SEED_BYTES)
            settings |= asked
        if any(settings[name] != value for name, value in asked.items()):
            raise self.wrong(
                "the settings of the run have changed",
                remedy="resume it with the options and the number of rounds it began with",
            )
        if self.role == PASSIVE and self.partition in request.owners:
            raise self.wrong("phases are for parties with labels")
        settings["owners"] = sorted({*settings.get("owners", ()), *request.owners.tolist()})
        announced = self.table.announced_rows
        if len(request.rows) and not 0 <= request.rows.min() <= request.rows.max() < announced:
            raise self.wrong("rows are asked for that were not announced")

    def _remember(self, request: wire.PhasesRequest, asked: Mapping[str, Any]) -> None:
        """Take up what this party kept of the run that made a model."""
        path = self.state_path(request.model, f"-round-{request.model_round}.state")
        if path is None or not path.is_file():
            raise self.wrong(
                "what this party kept of the model is not here any more",
                remedy="give the client the state_dir that it had when the model was made",
            )
        old = KeptState.unpack(path.read_bytes())
        if any(old.settings.get(name) != value for name, value in asked.items()):
            raise self.wrong("the settings are not those of the run that made the model")
        self.kept.borrow(old.seed)
        if self.role == ACTIVE and "alpha" in old.arrays:
            self.kept.arrays["alpha"] = old.arrays["alpha"]
            self.kept.settings["multiple"] = old.settings.get("multiple", 1)

    @property
    def _delivered(self) -> Mapping[str, NDArray[Any]]:
        """Totals of sums that belong to this party, of the message at hand."""
        return {} if self.sums is None else self.sums.delivered

    # -- phases of this party's columns

    def directions(self, owner: int, first: int, upto: int) -> tuple[Floats, Floats]:
        """Return the components of an owner's directions, and this party's part of their offsets.

        Returns
        -------
        (ndarray, ndarray), shapes (upto - first, d) and (upto - first,)
        """
        settings, seed = self.kept.settings, self.kept.seed
        law = settings["kernel"], settings["gamma"]
        offsets = draw_offsets(seed, owner, upto, *law)[first:]
        if settings["public_seed"] >= 0:
            seed = public_frequency_seed(int(settings["public_seed"]), self.partition)
        omega = draw_directions(seed, owner, upto, self.table.features, *law)
        return omega[first:], offsets

    def store(self) -> PhaseStore:
        """Return the file of phases that this party has received."""
        rows, settings = self.table.announced_rows, self.kept.settings
        capacity, bits = int(settings["capacity"]), int(settings["phase_bits"])
        return PhaseStore(self.state_dir, self.session, self.partition, rows, capacity, bits)

    def note_pending(self, request: wire.PhasesRequest) -> None:
        """Remember, at an owner, which phases have been asked for."""
        if self.partition not in request.owners:
            return
        place, kept = request.owners.tolist().index(self.partition), self.kept
        kept.arrays |= {
            "pending rows": request.rows,
            "pending cuts": request.cuts,
            "pending known": request.known[place],
        }
        kept.settings |= {
            "pending upto": int(request.upto[place]),
            "collection": request.collection,
        }

    def note_taken(self) -> None:
        """Note that the pending phases have arrived."""
        settings = self.kept.settings
        settings |= {"taken": settings["collection"], "upto": settings["pending upto"]}
        for name in ("pending rows", "pending cuts", "pending known"):
            del self.kept.arrays[name]

    def _phase_sums(
        self,
        owner: int,
        rows: NDArray[Any],
        cuts: NDArray[np.int32],
        known: NDArray[np.int32],
        upto: int,
    ) -> Iterator[tuple[slice, str]]:
        """Yield the chunks of rows of an owner's phases and the names of their sums."""
        names = np.asarray(self.kept.arrays["names"][rows])
        for number, part in enumerate(chunks(cuts)):
            yield part, name_sum(owner, number, names[part], known[part], upto)

    def _send_phases(self, request: wire.StepRequest) -> None:
        """Contribute this party's part of the phases that owners lack."""
        if not len(request.rows):
            return
        self.note_pending(request)
        rows, sums = request.rows, self.sums
        x, circle = self.features_at(rows), Encoding.circle(int(self.kept.settings["phase_bits"]))
        for known, upto in zip(request.known, request.upto.tolist(), strict=True):
            if not 0 <= int(known.min()) <= int(known.max()) <= upto:
                raise self.wrong("phases are asked for that there are not")
        for known, owner, upto in zip(
            request.known, request.owners.tolist(), request.upto.tolist(), strict=True
        ):
            first = int(known.min())
            omega, offsets = self.directions(owner, first, upto)
            for part, name in self._phase_sums(owner, rows, request.cuts, known, upto):
                if sums is None or name not in sums.orders:
                    continue
                length = int((upto - known[part]).sum())
                sums.check(name, SumRule(circle, receiver=owner, everybody=True, length=length))
                here = x[part] @ omega.T
                here += offsets
                if known[part].max() > first:
                    here = here[np.arange(first, upto) >= known[part][:, None]]
                self.note_rows(f"phases/{owner}", self.places(rows[part]), each=True)
                sums.contribute(name, here.reshape(-1))

    def _take_delivered(self, request: wire.VerticalRequest) -> None:
        """Keep what came with a request; phases that came before are not taken again."""
        kept, settings = self.kept, self.kept.settings
        scores = self._delivered.get(f"scores/{self.partition}")
        if scores is not None:  # for the iteration that a request finishes, this one or a later one
            kept.arrays["scores"] = scores
        if not request.delivered or settings.get("taken", 0) >= request.delivered:
            return
        if settings.get("collection") != request.delivered:
            raise StateError(
                "phases came that this party does not know of",
                remedy="they are sent again",
                party=self.name,
            )
        store, upto = self.store(), int(settings["pending upto"])
        rows, cuts, known = (kept.arrays[f"pending {name}"] for name in ("rows", "cuts", "known"))
        for part, name in self._phase_sums(self.partition, rows, cuts, known, upto):
            if name in self._delivered:
                store.take(rows[part], known[part], upto, self._delivered[name])
        self.note_taken()

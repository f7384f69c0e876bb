"""What a client enters in its node's ledger before an answer leaves."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import ceil, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from .. import __version__
from ..flower_compat import installed_app
from ..guard import NodePolicy, refusal
from ..guard.cells import ROWS_PER_COLUMN
from ..guard.counting import Hidden, unknowns_of_row
from ..guard.ledger import NO_ROWS, NodeLedger
from ..guard.opened import Left, Opening
from ..guard.rows import OwnRows, Places, Streamed
from ..guard.summaries import AboutRun
from ..reporting import settings_digest, settings_text
from ..secure_sum import Party, PartyState
from ..secure_sum.crypto import KEY_BYTES
from ..wire import DescribeRequest
from .sums import ClientSums

if TYPE_CHECKING:
    from .guarded import GuardedNode

logger = logging.getLogger("fedkern_flwr")

_LONGEST = 1000  # characters of a run's settings in the ledger
_FAILURES = 3  # over all runs: each may tell something of values

Positions = NDArray[np.integer[Any]]


class ClientLedger:
    """The ledger of a node, and what the message at hand enters.

    Parameters
    ----------
    folder : Path or None
        The node's own folder. Without one nothing is remembered from run to run.
    partition : int
    policy : NodePolicy
        What the node's owner allows.
    simulated : bool (default: False)
        Whether the node is one of a simulation.
    """

    def __init__(
        self, folder: Path | None, partition: int, policy: NodePolicy, *, simulated: bool = False
    ) -> None:
        self.folder, self.partition, self.simulated = folder, partition, simulated
        self._file = None if folder is None else NodeLedger(folder, partition)
        self._policy = policy
        self._noted: dict[str, tuple[Positions, bool]] = {}
        self._parts: dict[str, list[Positions]] = {}
        self._streamed: Streamed | None = None

    @property
    def counts(self) -> bool:
        """Whether it counts what is opened, over all runs."""
        return self._file is not None

    def open_run(
        self, request: DescribeRequest, kind: str, rows: OwnRows, context: Context, *, pinned: bool
    ) -> None:
        """Note that a run was opened; warn of what it cannot be compared with, and near limits."""
        if self._file is None:
            logger.warning("no state_dir: nothing is remembered from run to run")
            return
        if isfinite(limit := self._policy.max_epsilon) and not self._file.exists:
            raise refusal(
                f"max_epsilon = {limit:g}: there is no ledger of what was spent before",
                remedy="bring back a copy of its state_dir, or make one with `fedkern node init`",
                code="FK-BUDGET-LEDGER",
            )
        if request.secure and not pinned:
            logger.warning(
                "no pinned identities: runs whose parties differ by one are not told apart"
            )
        near = self._file.open_run(
            request.session,
            kind=kind,
            method=request.method,
            secure=request.secure,
            pinned=pinned,
            rows=rows,
            about=self._about(request.session, context),
        )
        for warning in near:
            logger.warning("%s", warning)
        if request.privacy and self._file.has_exact_sums(request.session):
            logger.warning(
                "exact sums of this node's rows were released before: the budget counts from today"
            )

    def _about(self, session: str, context: Context) -> AboutRun:
        """Return what joins a run up with the coordinator's records of it."""
        settings, limit = settings_text(context.run_config), self._policy.max_epsilon
        return AboutRun(
            session,
            str(context.run_id),
            __version__,
            installed_app(),
            settings if len(settings) <= _LONGEST else f"{settings[:_LONGEST]}...",
            settings_digest(context.run_config),
            self._policy.max_evaluations,
            limit if isfinite(limit) else None,
        )

    def record(self, session: str) -> str | None:
        """Return the node's record of a run; None where nothing is remembered from run to run."""
        if self._file is None:
            return None
        return self._file.record(session) if self._file.exists else ""

    def keep_record(self, session: str, record: str) -> None:
        """Keep the node's record of a run."""
        if self._file is not None:
            self._file.keep_record(session, record)

    def fail(self) -> None:
        """Count a failure that may depend on values."""
        if self._file is not None:
            self._file.fail()

    def check_failures(self) -> None:
        """Refuse all runs of a node at which too many failed by values.

        Raises
        ------
        RefusedError
        """
        if self._file is not None and self._file.exists and self._file.failures() >= _FAILURES:
            raise refusal(
                f"{_FAILURES} runs have failed here by values of rows",
                remedy="its owner looks at its log, then `fedkern node freeze --reset-failures`",
                code="FK-NODE-FAILURES",
            )

    def note(self, purpose: str, rows: Positions, *, each: bool) -> None:
        """Note of which rows what is about to be answered is."""
        purpose = _purpose(purpose)
        if purpose in self._noted:
            rows = np.union1d(self._noted[purpose][0], rows)
        self._noted[purpose] = (rows, each)

    def note_parts(self, purpose: str, parts: list[Positions]) -> None:
        """Note that a sum is several, each of a part of the rows, one after the other."""
        self._parts[purpose] = parts

    def parts(self, session: str) -> NDArray[np.int8] | None:
        """Return for each own row its part of the freeze: 0 is held out, 1 to 5 are folds."""
        return None if self._file is None else self._file.parts(session)

    def place(self) -> str:
        """Return where this node's stream goes on; nothing at first, or without a folder."""
        return "" if self._file is None else self._file.place()

    def stream(self, taken: Streamed | None) -> None:
        """Note of which rows of a stream, instead of the table's, what is to be answered is."""
        self._streamed = taken
        if taken is not None:
            self.note("update", NO_ROWS, each=True)

    def freeze(
        self, session: str, rows: OwnRows, frozen: Places | None, *, records: bool, apart: str
    ) -> Left:
        """Freeze the rows of this node; return what the run may plan with.

        Raises
        ------
        RefusedError
        """
        if self._file is None:
            return Left()
        least = self._policy.min_own_rows if records else 1
        return self._file.freeze(session, rows, frozen, least=least, apart=apart)

    def enter(
        self, session: str, sums: ClientSums | None, node: GuardedNode, share: float
    ) -> list[str]:
        """Enter what the message at hand was about; return what is only warned of.

        Parameters
        ----------
        session : str
            Name of the run.
        sums : ClientSums or None
            What was contributed to, and opened.
        node : GuardedNode
            Whose message it is.
        share : float
            Numbers that the run has opened so far for each unknown, where it counts them itself.

        Raises
        ------
        RefusedError
        """
        noted, self._noted = self._noted, {}
        parts, self._parts = self._parts, {}
        taken, self._streamed, rows = self._streamed, None, None
        if self._file is not None and taken is not None:
            rows = self._file.take(session, taken, compare=sums is not None)
        if self._file is None or sums is None:
            return []
        if taken is not None:  # no row of a stream is in two runs, so nothing adds up
            share = 0.0
        openings = [*_openings(node, sums, share, noted, parts)]
        if not (openings or sums.charges or sums.party.shown):
            return []
        return self._file.enter(
            session,
            openings,
            self._policy,
            mode=node.count_mode,
            records=node.records,
            enough=node.enough_parties,
            apart=node.apart,
            charges=sums.charges,
            taken=rows,
            shown=sums.party.shown,
        )

    def tell(self, session: str, asked: str, rows: Positions, figures: list[float]) -> list[float]:
        """Enter figures; return those to tell.

        Raises
        ------
        RefusedError
        """
        if self._file is None:
            return figures
        return self._file.tell(session, asked, rows, figures, self._policy)

    def split_key(self) -> bytes:
        """Return the key by which held-out rows are dealt to calibration and report.

        It is this node's own, and the same in all runs if there is a folder. In simulations it is
        empty: three engines must deal the same halves.
        """
        if self.simulated:
            return b""
        return secrets.token_bytes(KEY_BYTES) if self._file is None else self._file.split_key()

    @property
    def begun(self) -> bool:
        """Whether there is a ledger: to look is not to begin one."""
        return self._file is not None and self._file.exists

    def lasting_secret(self, purpose: bytes) -> bytes | None:
        """Return 32 bytes that this node draws for a purpose and keeps, None without a folder.

        What is drawn from them is the same in all runs, so that a repeated run is free.
        """
        if self._file is None:
            return None
        return self._file.lasting_secret(purpose)

    def told_counts(self) -> dict[str, dict[str, Any]]:
        """Return column of text -> counts of its categories, as last told; else nothing."""
        return {} if self._file is None else self._file.told_counts()

    def keep_counts(self, told: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep what is told of the categories of columns."""
        if self._file is not None:
            self._file.keep_counts(told)

    def noise_key(self, session: str, state: PartyState) -> bytes:
        """Return the key of the noise of a run, which lasts until the run is over.

        Without a folder it lasts as long as what the node remembers of secure sums.
        """
        if self._file is None:
            return state.noise_key or secrets.token_bytes(KEY_BYTES)
        return self._file.noise_key(session)

    def end_run(self, session: str) -> None:
        """Note that a run has ended, and erase the key of its noise."""
        if self._file is not None:
            self._file.end_run(session)

    def refuse(self, session: str, rule: str) -> None:
        """Count a refusal."""
        if self._file is not None:
            self._file.refuse(session, rule)


def _openings(
    node: GuardedNode,
    sums: ClientSums,
    share: float,
    noted: dict[str, tuple[Positions, bool]],
    parts: dict[str, list[Positions]],
) -> Iterator[Opening]:
    """Yield what is to be entered: rows that were noted, sums contributed to, sums opened."""
    party, state, added, record = sums.party, sums.party.state, dict(noted), node.record
    exact, row = node.budget is None, unknowns_of_row(record.columns, record.binary)
    for order in sums.contributed:
        members, name = state.cohorts[order.cohort].members, _purpose(order.name)
        rows, each = added.pop(name, noted.get(name, (None, False)))
        one = Opening(name, rows, each, _pinned(party, members), len(members))
        if not exact:  # noise hides rows: the owner sees that there was a sum
            yield Opening(name, NO_ROWS, True, parties=len(members))
            continue
        one = replace(one, done=not order.self_masks)
        if each or order.noise or not node.is_counted(order) or share:
            if share and not each:  # the difference of two windows is a sum as well
                start, stop, _ = node.windows[order.name]
                rows_of, hidden = sums.hidden(order, row, start=start, stop=stop)
                own, least = rows_of[party.partition], order.length / row
                least = max(least, ROWS_PER_COLUMN * node.products(order))
                if one.cohort is not None:  # the same places of the others are in it
                    least *= own / max(own + hidden.others, 1)
                one = replace(one, parts=ceil(least) if node.count_mode == "refuse" else 0)
            yield one
            continue
        width, beside = node.products(order), node.beside(order.name)
        rows_of, hidden = sums.hidden(order, row, beside)
        if one.cohort is None or node.rows_chosen:
            hidden = Hidden(row, 0, 0)
        unknowns, others, kept = hidden
        if own := rows_of[party.partition]:  # rows that bear numbers may be known
            width = -(-width * (own + others) // (own + kept))
        if rows is not None:  # who is asked for few rows cannot count on all of the others
            others = others * len(rows) // max(own, 1)
        one = replace(
            one,
            numbers=order.length * node.weight(order, sum(rows_of.values())),
            unknowns=unknowns,
            others=others,
            width=width,
            values=sums.values[order.name],
            **sums.functions.get(order.name, {}),
        )
        several = parts.get(name, [])
        for k, part in enumerate(several):
            yield replace(
                one,
                purpose=f"{name}/{k}",
                rows=part,
                numbers=one.numbers / len(several),
                others=others // len(several),
            )
        # parts that are added up are the sum over all rows
        yield replace(one, numbers=one.numbers / max(len(several), 1))
    if not exact:
        return
    for name, (rows, each) in added.items():
        if len(rows):
            yield Opening(name, rows, each)
    for full, alive in sums.survivors.items():
        name = _purpose(full)
        one = Opening(name, cohort=_pinned(party, sorted(alive)), parties=len(alive))
        yield replace(one, again=True)
    if share:
        yield Opening("windows", share=share, unknowns=row, values=record.windows.encode())


def _purpose(name: str) -> str:
    """Return what a sum is for: its name without its parts."""
    return "/".join(name.partition("#")[0].split("/")[:2])


def _pinned(party: Party, members: Iterable[int]) -> list[bytes] | None:
    """Return the pinned keys of the members of a cohort; None where they are not known."""
    if party.trusted is None or party.identity is None:
        return None
    own = party.identity.public_key().public_bytes_raw()
    return [own if k == party.partition else party.trusted[k] for k in members]

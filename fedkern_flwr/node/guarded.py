"""What a node checks, counts and remembers for its own protection, whatever its method.

The rules are pure functions of :mod:`fedkern_flwr.guard`; here they meet the node's state.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from ..errors import FedKernError, RefusedError
from ..guard import NodePolicy, RunRecord, counting, refusal
from ..guard.record import Asked, check_model, enter, too_few
from ..guard.rows import OwnRows, Places
from ..guard.spending import spend
from ..privacy import Budget
from ..privacy.accounting import check_accountant
from ..wire import DescribeRequest
from ..wire import sums as sum_wire
from .ledger import ClientLedger
from .state import SessionState
from .sums import ClientSums, erase_state

logger = logging.getLogger("fedkern_flwr")

#: Codes of refusals that may depend on values of rows.
_BY_VALUES = ("FK-CLIENT-RAISED", "FK-ORDER-UNFIT", "FK-WEIGHTS-COUNTS")
#: Fields of requests that say nothing of what is asked: a repetition may have other ones.
OF_AN_ATTEMPT = ("session", "round", "attempt", "checkpoint_every", "save_as")
_TRIES = (*OF_AN_ATTEMPT, "self_masks")


class GuardedNode:
    """The guard of a client, mixed into :class:`~fedkern_flwr.node.client.Client`."""

    #: Least number of parties of a sum that suffices, by what the method shows of each of them.
    enough_parties: ClassVar[int] = 3
    #: Whether the rows of a node are records that must hide among each other. Where a node may hold
    #: a single one it needs no others of its own, and sets of fewer rows than the policy asks for
    #: are not compared.
    records: ClassVar[bool] = True
    #: What is done, unless the policy says otherwise, where more numbers than unknowns are opened.
    usual_counting: ClassVar[counting.Mode] = "refuse"
    #: Unknowns of a row beside its columns.
    labels_of_row: int = 1
    #: Whether the server chooses the rows of all parties, so that only its own count as hidden.
    rows_chosen: bool = False
    #: Whether it adds noise in runs that have a budget of privacy.
    adds_noise: bool = False
    #: Whether anything that its method releases depends on values of rows.
    tells_values: ClassVar[bool] = True
    context: Context
    record: RunRecord  # of the run of the message at hand
    name: str
    partition: int
    policy: NodePolicy
    ledger: ClientLedger
    frozen: Places | None
    freezes_apart: ClassVar[bool]
    simulated: bool
    allow_single: bool
    sums: ClientSums | None
    _request: Any
    #: Name of a sum of the request -> first and last of its rows, where it is not of the table; and
    #: where some numbers are about the last of these alone: from which one on, and how many.
    windows: dict[str, tuple[int, int, tuple[int, int] | None]]
    _record_kept: str | None = None  # the record as the ledger has it
    _share = 0.0  # numbers that it releases for each unknown, where these are counted over runs

    def open_budget(self, request: DescribeRequest) -> Budget | None:
        """Return what the run may cost in privacy; it is fixed when the run is opened.

        Raises
        ------
        RefusedError
            This client adds no noise, or the run was opened with another budget.
        OptionError
            ``dp-accounting`` is not installed.
        """
        budget = Budget.read(request.privacy)
        if budget is not None and not self.adds_noise:
            raise refusal("privacy: this method adds no noise", code="FK-BUDGET-METHOD")
        if budget is not None:
            check_accountant(self.name)
        if self.record.secure and self.record.privacy != request.privacy:
            raise refusal(
                "privacy: the run was opened with another budget", code="FK-SETTINGS-CHANGED"
            )
        self.record.privacy = request.privacy
        return budget

    @property
    def budget(self) -> Budget | None:
        """What the run may cost in privacy; None of a run without noise."""
        return Budget.read(self.record.privacy)

    def _spend(self) -> None:
        """Refuse to release more than the run's budget allows; remember what is released.

        Raises
        ------
        RefusedError
        """
        if self.sums is not None and self.sums.charges:
            self.record.spent = spend(self.record.spent, self.sums.charges)

    def own_rows(self) -> OwnRows:
        """Return the rows of this node's table, for its ledger; none here."""
        return OwnRows()

    def check_declared(self, name: str, own: float | None, default: float, asked: float) -> None:
        """Refuse a public option of the run that is not the one with which this node was started.

        Parameters
        ----------
        name : str
            The option.
        own : float or None
            As this node was started; None for the default, or in simulations for the run's.
        default : float
            Of the strategy.
        asked : float
            As the run has it.

        Raises
        ------
        RefusedError
        """
        if own is None and self.simulated:
            return
        if asked != (default if own is None else own):
            raise refusal(
                f"the {name} of the run is not the one that it declares", code="FK-ORDER-DECLARED"
            )

    def unfit(self, error: FedKernError) -> FedKernError:
        """Return what is said of own values that do not fit what the run declares.

        In simulations all that the user must know; else nothing but that, and what a request may
        provoke is counted. The log of the node has the rest.
        """
        logger.error("%s", error)
        if self.simulated:
            return error
        return refusal("its values do not fit the run, its log says more", code="FK-ORDER-UNFIT")

    def is_counted(self, order: sum_wire.Order) -> bool:
        """Tell whether a sum is counted as a release about all rows of this node's table."""
        return counting.is_counted(order.name, order.receiver)

    @property
    def apart(self) -> str:
        """Name of the freeze of its rows where they are others than the node's table."""
        return type(self).__name__ if self.freezes_apart else ""

    def products(self, order: sum_wire.Order) -> int:
        """Return how many columns a sum has the products of; 0 if it has none."""
        return 0

    def beside(self, name: str) -> Mapping[int, float]:
        """Return who has further columns of all own rows in a sum -> unknowns of a row in these."""
        return {}

    def weight(self, order: sum_wire.Order, rows: int) -> float:
        """Return the weight of a number in a sum over so many rows: less than 1 of counts."""
        return 1.0

    def enter_sums(self, session: str) -> None:
        """Enter in the node's ledger what the message at hand was about.

        Raises
        ------
        RefusedError
        """
        if self.sums is not None:
            self._count(self.sums)
        if self._share and self.sums is not None:
            told = b"".join(value for _, value in sorted(self.sums.values.items()))
            windows = hashlib.sha256(self.record.windows.encode() + told)
            self.record.windows = windows.hexdigest()
        for problem in self.ledger.enter(session, self.sums, self, self._share):
            self.warn(problem)

    def _count(self, sums: ClientSums) -> None:
        """Refuse or warn where the sums of this run alone have more numbers than unknowns.

        A ledger counts those over whole tables, over all runs.
        """
        refuses, record = self.count_mode == "refuse", self.record
        if self.simulated and not refuses:  # there the server warns
            return
        row = counting.unknowns_of_row(record.columns, record.binary)
        own = sums.party.state.counts.get(self.partition, (0, 0))[0]
        for order in sums.contributed:
            window = self.windows.get(order.name)
            counts = own and not (order.noise or self.ledger.counts) and self.is_counted(order)
            if window is None and not counts:
                continue
            start, stop, last = window or (0, counting.ENDLESS, None)
            group = counting.Group(**record.group)
            if refuses and group.has(start, last[0] if last else stop):
                again = "rows of an earlier message are asked for again"
                raise counting.small_sum(again, self.name)
            behind = sum(sums.hidden(order, row, start=start, stop=stop)[0].values())
            length = math.ceil(order.length * self.weight(order, behind))
            told = order.name.partition("#")[0], length, sums.values[order.name].hex()
            about = [(group, group.enter(*told, start=start, stop=stop, row=row))]
            record.group = vars(group)
            about += [(counting.Group(last[0], stop, row), last[1])] if last else []
            for rows, numbers in about:
                where, beside = {"start": rows.start, "stop": rows.stop}, self.beside(order.name)
                among, hidden = sums.hidden(order, rows.row, beside, **where)
                unknowns = (among[self.partition] + hidden.others) * hidden.row
                problem = counting.too_many(numbers, unknowns)
                if problem and refuses:
                    raise counting.small_sum(problem, self.name)
                if self.count_mode == "warn":
                    self.warn(problem)
                if window:
                    self._share = max(self._share, numbers / unknowns if unknowns else np.inf)

    def warn(self, problem: str) -> None:
        """Warn, once in a run, that rows can be computed."""
        if problem and not self.record.warned:
            logger.warning("the rows behind a sum can be computed: %s", problem)
            self.record.warned = True

    @property
    def count_mode(self) -> counting.Mode:
        """What is done where more numbers are released than there are unknowns."""
        return counting.mode(self.policy, self.usual_counting)

    def note_rows(self, purpose: str, rows: NDArray[Any], *, each: bool = False) -> None:
        """Note of which rows a sum is, where the server chooses them; else it is of all.

        What nobody notes is a sum of all rows that this node learns from.

        Parameters
        ----------
        purpose : str
            Name of the sum, without what follows a # or a second slash; or of anything else that
            is made of these rows.
        rows : ndarray of int
            Places of the rows in :meth:`own_rows`.
        each : bool
            Whether it is made row by row, so that it is of a single row anyway.
        """
        if not self.simulated:
            self.ledger.note(purpose, rows, each=each)

    def figures(
        self,
        purpose: str,
        rows: NDArray[Any],
        values: NDArray[np.float64],
        *,
        total: str = "",
        alone: bool = False,
        users: bool = False,
        judged: bytes = b"",
        once: bool = True,
        trained: bool = True,
    ) -> NDArray[np.float64]:
        """Return the figures about held-out rows that may leave this node: these, or zeros.

        Parameters
        ----------
        purpose : str
            What the method calls the evaluation.
        rows : ndarray
            The held-out rows.
        values : ndarray
            The figures.
        total : str
            Name of the sum that they go into, if any.
        alone : bool
            Whether a single party may tell figures of its own rows.
        users : bool
            Whether they are about the rows that are learned from, such as users.
        judged : bytes
            Digest of what they are judged by, where the request does not hold it.
        once : bool
            Whether a run judges one model only, and not one in each round.
        trained : bool
            Whether this node has helped to make the model, in this run.

        Raises
        ------
        RefusedError
            Figures of these rows were told too often, or of another model in this run, or the model
            is not the one of this run.
        """
        if not trained:
            raise refusal(
                "a model is to be judged that it has not helped to make", code="FK-ORDER-MODEL"
            )
        tests, alone = self.told_of(rows, total, users=users), alone or self.allow_single
        why = too_few(self.policy, tests, len(rows), alone=alone or self.simulated)
        record = self.record
        if total:
            record.sums.setdefault(total.partition("#")[0], [])
            record.store(self.context)
        scalars = sorted(item for item in self._request.scalars().items() if item[0] not in _TRIES)
        parts = [repr(scalars).encode()]
        parts += [np.ascontiguousarray(array).tobytes() for array in self._request.arrays()]
        parts += [judged] if judged else []
        asked = Asked.of(purpose, np.ascontiguousarray(rows).tobytes(), parts)
        if once:
            check_model(record, asked)
        if why:
            logger.warning("figures about held-out rows are not told: %s", why)
            return np.zeros_like(values)
        if not len(rows):
            return values
        told = enter(record, asked, values.ravel().tolist(), self.policy)
        if not self.simulated:
            places = rows if users else rows + self.own_rows().learned
            told = self.ledger.tell(record.session, asked.key, places, told)
            record.told[asked.key] = told
        record.store(self.context)
        return np.array(told).reshape(values.shape)

    def told_of(self, rows: NDArray[Any], total: str, *, users: bool = False) -> list[int]:
        """Return how many rows each party has behind figures: of a sum as all have declared."""
        if not total or self.sums is None:
            return [len(rows)]
        state = self.sums.party.state
        members = state.cohorts[self.sums.order(total).cohort].members
        return [state.counts[member][0 if users else 1] for member in members]

    def _load_record(self, session: str) -> RunRecord:
        """Return the record of a run: of the node's ledger, which outlives its contexts, if any."""
        self._record_kept = kept = self.ledger.record(session)
        if kept is None:
            return RunRecord.load(self.context, session)
        return RunRecord.read(kept) if kept else RunRecord(session)

    def _keep_record(self) -> None:
        """Keep the record of a run, before the answer that it is about leaves the node."""
        self.record.store(self.context)
        if self.ledger.counts and (text := self.record.write()) != self._record_kept:
            self.ledger.keep_record(self.record.session, text)  # else the disk has it

    def _count_refusal(self, session: str, error: FedKernError) -> None:
        """Note that a request was refused; at the third nothing of the run is left here to open.

        A failure that may depend on values tells something of them: it ends the run at once, and
        counts in all runs.
        """
        by_values = error.code in _BY_VALUES or not isinstance(error, RefusedError)
        ends = by_values and not self.simulated
        name = type(error).__name__  # of other errors the text may be about rows
        with suppress(FedKernError):  # the refusal is what is told
            rule = error.problem.partition(": ")[2]
            self.ledger.refuse(session, rule if isinstance(error, RefusedError) else name)
            if ends:
                self.ledger.fail()
        if SessionState.load(self.context).session != session:
            return
        self.record = record = self._load_record(session)  # without what the request has changed
        record.refuse(ends=ends)
        self._keep_record()
        try:
            record.check()
        except RefusedError:
            erase_state(self.context)

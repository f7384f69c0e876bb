"""Apply the guard at a node: what it checks, counts and remembers for its protection.

The rules are pure functions of :mod:`fedkern_flwr.guard`; this class applies them to the node's
state.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from .. import __version__
from ..errors import FedKernError, OptionError, RefusedError
from ..flower_compat import installed_app
from ..guard import NodePolicy, counting, refusal
from ..guard.cells import ROWS_PER_COLUMN
from ..guard.counting import Hidden
from ..guard.ledger import NO_ROWS, AboutRun, NodeLedger
from ..guard.opened import Opening, spend
from ..guard.policy import Rules, is_simulated, node_policy, too_few
from ..guard.rows import OwnRows, Places, Streamed
from ..options import take_out_of_client
from ..privacy import Budget
from ..privacy.accounting import check_accountant
from ..reporting import settings_digest, settings_text
from ..secure_sum import Party
from ..wire import DescribeRequest
from ..wire import sums as sum_wire
from ..wire.describe import LONGEST_NAME, called
from ..wire.message import content_digest
from .state import KeptState, RunRecord, SessionState, erase_state, evaluation_key
from .sums import ClientSums

logger = logging.getLogger("fedkern_flwr")

#: Codes of refusals that may depend on values of rows.
_BY_VALUES = ("FK-CLIENT-RAISED", "FK-ORDER-UNFIT", "FK-WEIGHTS-COUNTS")
#: Fields of requests that may differ in a repetition.
_OF_AN_ATTEMPT = ("session", "round", "attempt", "checkpoint_every", "save_as")
_LONGEST = 1000  # characters of a run's settings in the ledger

Positions = NDArray[np.integer[Any]]


class GuardedNode:
    """Hold a node's policy, ledger and record; base of each client.

    :class:`~fedkern_flwr.node.client.Client` documents the arguments.
    """

    #: Least number of parties of a sum that suffices, by what the method shows of each of them.
    enough_parties: ClassVar[int] = 3
    #: Whether the rows of a node are records that must hide among each other. A node that may have
    #: a single one needs no others, and sets of fewer rows than the policy requires are not
    #: compared.
    records: ClassVar[bool] = True
    #: What is done, unless the policy says otherwise, where more numbers than unknowns are opened.
    usual_counting: ClassVar[counting.Mode] = "refuse"
    #: Unknowns of a row in addition to its columns.
    labels_of_row: int = 1
    #: Whether the server chooses the rows of all parties, so that only its own count as hidden.
    rows_chosen: bool = False
    #: Whether it adds noise in runs that have a budget of privacy.
    adds_noise: bool = False
    #: Whether anything that its method releases depends on values of rows.
    tells_values: ClassVar[bool] = True
    #: Whether its rows are others than those that the other clients of this node sum.
    freezes_apart: ClassVar[bool] = False
    #: What ``kept`` is: has ``unpack(bytes)``, ``pack()`` and ``twin()``.
    state_class: ClassVar[Any] = KeptState
    sums: ClientSums | None = None
    _request: Any
    _record_kept: str | None = None  # the record as the ledger has it

    def __init__(
        self,
        context: Context,
        *,
        state_dir: str | Path | None = None,
        identity_key: str | Path | None = None,
        trusted_keys: str | Path | None = None,
        allow_single: bool = False,
        policy: NodePolicy | str | Path | None = None,
        frozen: Places | None = None,
        **more: Any,
    ) -> None:
        for name in take_out_of_client(type(self), more) if more else ():
            raise TypeError(f"{type(self).__name__} takes no argument {name!r}")
        self.context, self.record, self.kept = context, RunRecord(), self.state_class()
        self.policy, self.simulated = node_policy(policy, context), is_simulated(context)
        self.identity_key, self.trusted_keys = identity_key, trusted_keys
        #: Whether this node signs its keys, and knows those of the others.
        self._pinned = bool(trusted_keys and identity_key)
        self.allow_single, self.frozen = allow_single, frozen
        self.partition = node_number(context, "partition-id")
        self.own_name = str(context.node_config.get("name", ""))
        if len(self.own_name) > LONGEST_NAME or not self.own_name.isprintable():
            raise OptionError(
                f"the name of this node is no line of at most {LONGEST_NAME} printable characters",
                code="FK-NODE-NAME",
            )
        self.name = called(self.partition, self.own_name)
        self.partitions = node_number(context, "num-partitions")
        if not 0 <= self.partition < self.partitions:
            raise OptionError(
                f"partition-id {self.partition} is outside 0..{self.partitions - 1}",
                code="FK-NODE-PARTITION",
            )
        self.state_dir = Path(state_dir) if state_dir is not None else None
        folder = None if self.simulated else self.state_dir
        self.ledger = NodeLedger(folder, self.partition, simulated=self.simulated)

    def forget_notes(self) -> None:
        """Forget notes about rows when a new message arrives."""
        #: Name of a sum of the request -> first and last of its rows, where it is not of the table;
        #: and where some numbers are about the last of these alone: from which one on, how many.
        self.windows: dict[str, tuple[int, int, tuple[int, int] | None]] = {}
        self._noted: dict[str, tuple[Positions, bool]] = {}
        self._parts: dict[str, list[Positions]] = {}
        self._streamed: Streamed | None = None
        self._share = 0.0  # numbers that it releases for each unknown, if it counts them itself
        self.ledger.rules = Rules(
            policy=self.policy,
            mode=self.count_mode,
            records=self.records,
            enough=self.enough_parties,
            apart=type(self).__name__ if self.freezes_apart else "",
        )

    # -- a run is opened

    def enter_run(self, request: DescribeRequest, rows: OwnRows) -> None:
        """Enter that a run was opened; warn near limits, and of runs that cannot be compared.

        Raises
        ------
        RefusedError
            ``max_epsilon`` is set, and there is no ledger of earlier spending.
        """
        limit = self.policy.max_epsilon
        if not self.ledger.counts:
            logger.warning("no state_dir: nothing is remembered from run to run")
            return
        if math.isfinite(limit) and not self.ledger.exists:
            raise refusal(
                f"max_epsilon = {limit:g}: there is no ledger of what was spent before",
                code="FK-BUDGET-LEDGER",
            )
        if request.secure and not self._pinned:
            logger.warning(
                "no pinned identities: runs whose parties differ by one are not told apart"
            )
        config = self.context.run_config
        settings = settings_text(config)
        about = AboutRun(
            request.session,
            str(self.context.run_id),
            __version__,
            installed_app(),
            settings if len(settings) <= _LONGEST else f"{settings[:_LONGEST]}...",
            settings_digest(config),
            self.policy.max_evaluations,
            limit if math.isfinite(limit) else None,
        )
        for warning in self.ledger.open_run(
            request.session,
            kind=type(self).__name__,
            method=request.method,
            secure=request.secure,
            pinned=self._pinned,
            rows=rows,
            about=about,
        ):
            logger.warning("%s", warning)
        if request.privacy and self.ledger.has_exact_sums(request.session):
            logger.warning(
                "exact sums of this node's rows were released before: the budget counts from today"
            )

    def open_budget(self, request: DescribeRequest) -> Budget | None:
        """Return the run's privacy budget, which is fixed when the run is opened.

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
        """The run's privacy budget; None for a run without noise."""
        return Budget.read(self.record.privacy)

    def own_rows(self) -> OwnRows:
        return OwnRows()

    def check_declared(self, name: str, own: float | None, default: float, asked: float) -> None:
        """Refuse a public option that differs from the one with which this node was started.

        ``own`` is None for ``default``, but in simulations for the run's value ``asked``.
        """
        if own is None and self.simulated:
            return
        if asked != (default if own is None else own):
            raise refusal(
                f"the {name} of the run is not the one that it declares", code="FK-ORDER-DECLARED"
            )

    def unfit(self, error: FedKernError) -> FedKernError:
        """Return the error for values of this node that do not fit the run, and log the details.

        The details may depend on values, so outside simulations they are not sent.
        """
        logger.error("%s", error)
        if self.simulated:
            return error
        return refusal("its values do not fit the run, its log says more", code="FK-ORDER-UNFIT")

    def is_counted(self, order: sum_wire.Order) -> bool:
        """Return whether a sum counts as a release about all rows of this node's table."""
        return counting.is_counted(order.name, order.receiver)

    def beside(self, name: str) -> Mapping[int, float]:
        """Return party -> unknowns of a row in its further columns of this node's rows."""
        return {}

    def weight(self, order: sum_wire.Order, rows: int) -> float:
        """Return the weight of a number in a sum over ``rows`` rows: less than 1 for counts."""
        return 1.0

    # -- what a message is about is entered before the answer leaves

    def enter_sums(self, session: str) -> None:
        """Enter the releases of the current message in the run's record and the ledger.

        Raises
        ------
        RefusedError
            They exceed the run's budget, or break a rule of the owner.
        """
        sums, taken, rows = self.sums, self._streamed, None
        if sums is not None and sums.charges:
            self.record.spent = spend(self.record.spent, sums.charges)
        if sums is not None:
            self._count(sums)
        if not self.ledger.counts:
            return
        if taken is not None:  # no row of a stream is in two runs, so nothing adds up
            rows = self.ledger.take(session, taken, compare=sums is not None)
            self._share = 0.0
        if sums is None:
            return
        openings, shown = [*self._openings(sums)], sums.party.shown
        if openings or sums.charges or shown:
            about: Any = {"charges": sums.charges, "taken": rows, "shown": shown}
            for problem in self.ledger.enter(session, openings, **about):
                self.warn(problem)

    def _count(self, sums: ClientSums) -> None:
        """Refuse or warn if the sums of this run alone have more numbers than unknowns.

        Sums over whole tables are counted by the ledger, if there is one, over all runs.
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
        if self._share:
            added = b"".join(value for _, value in sorted(sums.values.items()))
            record.windows = hashlib.sha256(record.windows.encode() + added).hexdigest()

    def _openings(self, sums: ClientSums) -> Iterator[Opening]:
        party, noted, record, share = sums.party, dict(self._noted), self.record, self._share
        exact, row = self.budget is None, counting.unknowns_of_row(record.columns, record.binary)
        for order in sums.contributed:
            members, name = party.state.cohorts[order.cohort].members, _purpose(order.name)
            noted.pop(name, None)
            rows, each = self._noted.get(name, (None, False))
            if not exact:  # noise hides rows: the owner sees that there was a sum
                yield Opening(name, NO_ROWS, True, parties=len(members))
                continue
            cohort, done = _pinned(party, members), not order.self_masks
            one = Opening(name, rows, each, cohort, len(members), done=done)
            if each or order.noise or not self.is_counted(order) or share:
                if share and not each:  # the difference of two windows is a sum as well
                    start, stop, _ = self.windows[order.name]
                    rows_of, hidden = sums.hidden(order, row, start=start, stop=stop)
                    own, least = rows_of[party.partition], order.length / row
                    least = max(least, ROWS_PER_COLUMN * sums.specs[order.name].products)
                    if cohort is not None:  # the same places of the others are in it
                        least *= own / max(own + hidden.others, 1)
                    apart = math.ceil(least) if self.count_mode == "refuse" else 0
                    one = replace(one, parts=apart)
                yield one
                continue
            width = sums.specs[order.name].products
            rows_of, hidden = sums.hidden(order, row, self.beside(order.name))
            if cohort is None or self.rows_chosen:
                hidden = Hidden(row, 0, 0)
            unknowns, others, kept = hidden
            if own := rows_of[party.partition]:  # rows that bear numbers may be known
                width = -(-width * (own + others) // (own + kept))
            if rows is not None:  # with a part of the rows, only that part of the others hides them
                others = others * len(rows) // max(own, 1)
            parts = self._parts.get(name, [])
            numbers = order.length * self.weight(order, sum(rows_of.values()))
            one = replace(
                one,
                numbers=numbers / max(len(parts), 1),  # parts add up to the sum over all rows
                unknowns=unknowns,
                others=others,
                width=width,
                values=sums.values[order.name],
                **sums.functions.get(order.name, {}),
            )
            for k, part in enumerate(parts):
                among = others // len(parts)
                yield replace(one, purpose=f"{name}/{k}", rows=part, others=among)
            yield one
        if not exact:
            return
        for name, (rows, each) in noted.items():
            if len(rows):
                yield Opening(name, rows, each)
        for full, alive in sums.survivors.items():
            cohort = _pinned(party, sorted(alive))
            yield Opening(_purpose(full), cohort=cohort, parties=len(alive), again=True)
        if share:
            yield Opening("windows", share=share, unknowns=row, values=record.windows.encode())

    def warn(self, problem: str) -> None:
        if problem and not self.record.warned:
            logger.warning("the rows behind a sum can be computed: %s", problem)
            self.record.warned = True

    @property
    def count_mode(self) -> counting.Mode:
        policy = self.policy
        return "off" if policy.allow_small_sums else policy.counting or self.usual_counting

    def note_rows(self, purpose: str, rows: NDArray[Any], *, each: bool = False) -> None:
        """Note the rows of a sum if the server chooses them. Default: all training rows.

        ``purpose`` is the name of the sum (up to a # or a second slash); ``rows`` are places in
        :meth:`own_rows`. With ``each`` it is made row by row.
        """
        purpose = _purpose(purpose)
        if purpose in self._noted:
            rows = np.union1d(self._noted[purpose][0], rows)
        self._noted[purpose] = (rows, each)

    def note_parts(self, purpose: str, parts: list[Positions]) -> None:
        """Note that a sum is several sums, each over a part of the rows."""
        self._parts[purpose] = parts

    def note_stream(self, taken: Streamed) -> None:
        """Note that the answer is about these rows of a stream instead of the table."""
        self._streamed = taken
        self.note_rows("update", NO_ROWS, each=True)

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
        """Return figures about held-out rows that may be sent: these, or zeros.

        They go into the sum ``total``, if any. With ``alone`` a single party may report figures of
        its rows, with ``users`` these are training rows. ``judged`` is a digest of the model, if
        the request does not have it. ``once`` is whether a run evaluates a single model, rather
        than one in each round; ``trained`` whether this node has helped to train it.

        Raises
        ------
        RefusedError
            These rows were evaluated too often, or the model is not the one of this run.
        """
        if not trained:
            raise refusal(
                "a model is to be judged that it has not helped to make", code="FK-ORDER-MODEL"
            )
        tests, alone = self.told_of(rows, total, users=users), alone or self.allow_single
        why = too_few(self.policy, tests, len(rows), alone=alone or self.simulated)
        record, model = self.record, [self.message_name("self_masks").encode(), judged]
        key = evaluation_key(purpose, np.ascontiguousarray(rows).tobytes(), model)
        if once:
            record.check_model(key)
        if why:
            logger.warning("figures about held-out rows are not told: %s", why)
            return np.zeros_like(values)
        if not len(rows):
            return values
        told = record.tell(key, values.ravel().tolist(), self.policy.max_evaluations)
        if self.ledger.counts:
            places = rows if users else rows + self.own_rows().learned
            told = record.told[key] = self.ledger.tell(record.session, key, places, told)
        return np.array(told).reshape(values.shape)

    def message_name(self, *less: str) -> str:
        """Return a digest of the request, equal for all attempts; fields ``less`` do not count."""
        scalars = self._request.scalars().items()
        asks = {name: value for name, value in scalars if name not in (*_OF_AN_ATTEMPT, *less)}
        return content_digest(asks, self._request.arrays())

    def told_of(self, rows: NDArray[Any], total: str, *, users: bool = False) -> list[int]:
        """Return how many rows each party has in figures, as declared."""
        if not total or self.sums is None:
            return [len(rows)]
        counts = self.sums.party.state.counts
        return [counts[member][0 if users else 1] for member in self.sums.cohort(total).members]

    def _load_record(self, session: str) -> RunRecord:
        self._record_kept = kept = self.ledger.record(session)
        if kept is None:
            return RunRecord.load(self.context, session)
        return RunRecord.read(kept) if kept else RunRecord(session)

    def _keep_record(self) -> None:
        self.record.store(self.context)
        if self.ledger.counts and (text := self.record.write()) != self._record_kept:
            self.ledger.keep_record(self.record.session, text)  # else the disk has it

    def _count_refusal(self, session: str, error: FedKernError) -> None:
        """Enter a refusal; the third one ends the run here.

        A failure that may depend on values reveals something about them. It ends the run at once,
        and counts over all runs.
        """
        by_values = error.code in _BY_VALUES or not isinstance(error, RefusedError)
        ends = by_values and not self.simulated
        name = type(error).__name__  # of other errors the text may be about rows
        with suppress(FedKernError):  # the refusal is reported
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


def node_number(context: Context, key: str) -> int:
    value = context.node_config.get(key)
    if type(value) is not int:
        raise OptionError(f"the node's configuration has no whole number {key}", code="FK-NODE-KEY")
    return value


def _purpose(name: str) -> str:
    return "/".join(name.partition("#")[0].split("/")[:2])


def _pinned(party: Party, members: Iterable[int]) -> list[bytes] | None:
    if party.trusted is None or party.identity is None:
        return None
    own = party.identity.public_key().public_bytes_raw()
    return [own if k == party.partition else party.trusted[k] for k in members]

"""Steps of FDSKL: phases for their owners, and what the parties do with them.

A party that has lost its phases gets all of them again; they are counted from nothing then.

Streaming is doubly stochastic gradients, an iteration per exchange: the exchange that brings the
active parties the phases of one batch asks for those of the next. Where a single party is active
and nothing is said of steps, it makes the last model of the phases that it has by then: of the rows
of the last half of the batches and the directions of the first half, as one-shot does. The
iterations are then what the error on the way is of. With several active parties f is summed over
them in between: an iteration then begins two exchanges before it ends, and they overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.method import Answers, Ask, Deliver, LostState, Steps, SumSpec
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.vertical import messages as wire
from fedkern_flwr.vertical.parties import LARGEST_OUTPUT, VerticalPlan, chunks, name_sum
from fedkern_flwr.vertical.phases import StepSchedule, draw_batch, step_size

Rows = NDArray[np.int64]

_CHUNK = 1 << 22  # phases of a sum
_MESSAGE = 256 << 20  # bytes of phases in a message
_NO_ROWS = np.zeros(0, np.int64)
_NOTHING = np.zeros(0, np.int32)


@dataclass(frozen=True)
class Need:
    """Phases that the owners shall have.

    Attributes
    ----------
    rows : ndarray of int64, shape (n,)
        Rows of the plan, ascending.
    upto : dict
        Owner -> how many of its directions.
    """

    rows: Rows
    upto: Mapping[int, int]


@dataclass(frozen=True)
class Collection:
    """A set of phases that is asked for at once.

    Attributes
    ----------
    number : int
    need : Need
    known : dict
        Owner -> how many phases it has of each row.
    cuts : ndarray of int32
        Ends of the chunks of rows.
    """

    number: int
    need: Need
    known: Mapping[int, NDArray[np.int32]]
    cuts: NDArray[np.int32]


@dataclass(frozen=True)
class Iteration:
    """An iteration of streaming.

    Attributes
    ----------
    number, leader : int
        The leader is the active party whose batch it takes.
    rows : ndarray of int64
        The batch, rows of the plan.
    directions : int
        r, which the leader gets.
    rate, decay : float
        gamma_t and 1 - gamma_t lambda.
    """

    number: int
    leader: int
    rows: Rows
    directions: int
    rate: float
    decay: float


_NONE = Iteration(0, -1, _NO_ROWS, 0, 0.0, 0.0)


@dataclass(kw_only=True)
class Phases:
    """Which phases the owners have, and the exchanges that bring them more.

    Attributes
    ----------
    plan : VerticalPlan
        Who holds which rows.
    settings : mapping
        Fields of a request that say how phases are made.
    loss : str
    outputs : int
        Columns of the targets.
    seed : int
        Of the run.
    attempts : int
        How often phases that were lost are sent again.
    number : int
        Of the last collection.
    """

    plan: VerticalPlan
    settings: Mapping[str, Any]
    loss: str
    outputs: int
    seed: int
    attempts: int
    number: int = 0

    def __post_init__(self) -> None:
        """Begin without phases."""
        self.forget()

    def forget(self) -> None:
        """Note that no owner has any phases."""
        self._known = {a: np.zeros(self.plan.total, np.int32) for a in self.plan.actives}
        self._parts = 0  # in how many exchanges the last phases have come
        self._waiting: dict[int, int] = {}  # owner -> number of the collection on its way

    # -- exchanges

    def advance(
        self,
        need: Need | None = None,
        again: Callable[[], Need] | None = None,
        **work: Any,
    ) -> Steps:
        """Collect phases and do other work of a :meth:`step`: one exchange where all answer.

        ``again`` returns the phases to collect anew, if a party has lost them.

        Raises
        ------
        CohortError
            Somebody did not answer, or lost its phases, ``attempts`` times in a row.
        """
        yield from self.insist(lambda: self._advance(need, work), again)

    def insist(self, steps: Callable[[], Steps], again: Callable[[], Need] | None = None) -> Steps:
        """Take steps until no party has lost what they need; ``again`` as in :meth:`advance`."""
        for _ in range(self.attempts):
            try:
                return (yield from steps())
            except LostState as error:
                lost = error
                self.forget()
                if again is not None:
                    yield from self.advance(again())
        raise lost

    def ask(
        self,
        requests: Mapping[int, Any],
        reply: type[Any],
        sums: Sequence[SumSpec] = (),
        *,
        ends: bool = False,
    ) -> Steps:
        """Ask parties; what waits for them comes along."""
        answers = yield Ask(requests, reply=reply, sums=sums, ends=ends)
        for partition in requests:
            self._waiting.pop(partition, None)
        return answers

    def _advance(self, need: Need | None, work: Mapping[str, Any]) -> Steps:
        *parts, last = self.collections(need) if need is not None else [None]
        self._parts = len(parts) + 1
        for part in parts:
            yield from self.step(part)
        if last is not None or work:
            yield from self.step(last, **work)

    def step(
        self,
        wanted: Collection | None,
        *,
        finish: Iteration = _NONE,
        score: Iteration = _NONE,
        save_as: int = 0,
    ) -> Steps:
        """Collect phases, finish an iteration, score another, have states kept: one exchange."""
        everybody = wanted is not None or score.number or save_as
        parties = self.plan.parties if everybody else self.plan.actives
        scores = self._score_terms("scores", {score.leader: score.rows})
        terms = [*self._phase_terms(wanted), *scores]
        requests = {
            p: wire.StepRequest(
                **self.fields(p, wanted),
                save_as=save_as,
                loss=self.loss,
                finish=finish.number,
                leader=finish.leader,
                score=score.number,
                scorer=score.leader,
                directions=finish.directions,
                rate=finish.rate,
                decay=finish.decay,
                finish_rows=self.positions(p, finish.rows if finish.leader == p else _NO_ROWS),
                score_rows=self.positions(p, score.rows),
            )
            for p in parties
        }
        answers: Answers = yield from self.ask(requests, wire.StepReply, terms)
        for name, running in answers.running.items():
            # an iteration needs its scores, whoever has lost phases in between
            yield Deliver(running, running.order.receiver, keep=name.startswith("scores/"))
        if wanted is not None:
            for owner in wanted.need.upto:
                self._waiting[owner] = wanted.number
                self._known[owner][wanted.need.rows] = wanted.need.upto[owner]

    def judge(
        self, need: Need, *, bins: int | None = None, calibration: Sequence[float] = ()
    ) -> Steps:
        """Let the active parties predict their held-out rows; return what each counted.

        Nothing is counted without ``bins``, which are those of histograms.
        """
        return (yield from self.insist(lambda: self._judge(bins, calibration), lambda: need))

    def train(
        self,
        owner: int,
        need: Need,
        again: Need | None = None,
        *,
        save_as: int,
        multiples: Sequence[int],
        regularizations: Sequence[float],
        bins: int,
        intercept: bool,
        balanced: bool,
    ) -> Steps:
        """Let the owner learn from its rows of ``need``, and predict, as the last thing in the run.

        If it has lost phases, it gets those of ``again``, which is of streaming alone. Where all
        came in several messages, it may have lost those before the last: the others are told of the
        end when it has answered.
        """
        ends = self._parts == 1 and again is None
        rows = np.intersect1d(need.rows, _range(self.plan.train[owner]))

        def train() -> Steps:
            request = wire.TrainRequest(
                save_as=save_as,
                delivered=self._waiting.get(owner, 0),
                loss=self.loss,
                directions=need.upto[owner],
                seed=self.seed,
                count=True,
                bins=bins,
                intercept=intercept,
                balanced=balanced,
                multiples=np.array(multiples, np.int32),
                regularizations=np.array(regularizations),
                rows=self.positions(owner, rows),
                tests=self.positions(owner, _range(self.plan.test[owner])),
            )
            asked = {owner: request}
            answers: Answers = yield from self.ask(asked, wire.TrainReply, ends=ends)
            return answers.replies[owner]

        return (yield from train() if ends else self.insist(train, lambda: again or need))

    def _judge(self, bins: int | None, calibration: Sequence[float]) -> Steps:
        plan = self.plan
        tests = {a: _range(plan.test[a]) for a in plan.actives}
        tests = {a: rows for a, rows in tests.items() if len(rows)}
        rows = np.concatenate([*tests.values()])
        several = len(plan.actives) > 1
        for scoring in (True, False) if several else (False,):
            requests = {
                p: wire.OutcomeRequest(
                    delivered=self._waiting.get(p, 0),
                    scoring=scoring,
                    count=bins is not None,
                    bins=bins or 0,
                    owners=np.array([*tests], np.int32),
                    sizes=np.array([len(own) for own in tests.values()], np.int32),
                    rows=self.positions(p, rows),
                    calibration=np.array(calibration, np.float64),
                )
                for p in (plan.parties if scoring else plan.actives)
            }
            terms = self._score_terms("outcome", tests) if scoring else []
            answers = yield from self.ask(requests, wire.OutcomeReply, terms)
            for running in answers.running.values():
                yield Deliver(running, running.order.receiver)
        return [reply.counts for reply in answers.replies.values()]

    # -- what is asked for

    def collections(self, need: Need) -> list[Collection]:
        """Return what is asked for in one exchange each, so that no message is too large."""
        width, bits = max(need.upto.values()), self.settings["phase_bits"]
        step = max(1, _MESSAGE * 8 // bits // max(1, width * len(need.upto)))
        chunk = max(1, _CHUNK // max(1, width))
        found = []
        for start in range(0, max(1, len(need.rows)), step):
            rows = need.rows[start : start + step]
            cuts = np.array([*range(chunk, len(rows), chunk), len(rows)], np.int32)
            known = {owner: self._known[owner][rows] for owner in need.upto}
            self.number += 1
            found.append(Collection(self.number, Need(rows, need.upto), known, cuts))
        return found

    def positions(self, partition: int, rows: Rows) -> NDArray[np.int32]:
        """Return the positions of rows of the plan among those that a party announced."""
        return np.ascontiguousarray(self.plan.rows[partition][rows], np.int32)

    def fields(self, partition: int, wanted: Collection | None) -> dict[str, Any]:
        """Return the fields of a request that say which phases a party shall contribute to."""
        found = {**self.settings, "delivered": self._waiting.get(partition, 0)}
        if wanted is None:
            known = np.zeros((0, 0), np.int32)
            nothing = dict.fromkeys(("owners", "upto", "rows", "cuts"), _NOTHING)
            return {**found, **nothing, "collection": 0, "known": known}
        owners = sorted(wanted.need.upto)
        return {
            **found,
            "collection": wanted.number,
            "owners": np.array(owners, np.int32),
            "upto": np.array([wanted.need.upto[o] for o in owners], np.int32),
            "known": np.stack([wanted.known[o] for o in owners]),
            "rows": self.positions(partition, wanted.need.rows),
            "cuts": wanted.cuts,
        }

    # -- sums, of whole cohorts and for single parties

    def _phase_terms(self, wanted: Collection | None) -> Iterator[SumSpec]:
        if wanted is None:
            return
        circle = Encoding.circle(self.settings["phase_bits"])
        names = self.plan.names[wanted.need.rows]
        for owner, upto in wanted.need.upto.items():
            for number, part in enumerate(chunks(wanted.cuts)):
                known = wanted.known[owner][part]
                if length := int((upto - known).sum()):
                    name = name_sum(owner, number, names[part], known, upto)
                    yield self._term(name, length, circle, owner)

    def _score_terms(self, what: str, rows: Mapping[int, Rows]) -> list[SumSpec]:
        bound = Encoding.fixed_point(LARGEST_OUTPUT)
        return [
            self._term(f"{what}/{leader}", len(batch) * self.outputs, bound, leader)
            for leader, batch in rows.items()
            if len(batch)
        ]

    def _term(self, name: str, length: int, encoding: Encoding, receiver: int) -> SumSpec:
        return SumSpec(name=name, length=length, encoding=encoding, receiver=receiver)


@dataclass(frozen=True, kw_only=True)
class Descent:
    """The iterations of a run.

    Attributes
    ----------
    plan : VerticalPlan
        Who holds which rows.
    leaders : tuple of int
        The active parties that take turns.
    seed : int
        Of the batches.
    batch, directions, step, schedule, regularization
        Options of :class:`~fedkern_flwr.strategies.FDSKL`.
    """

    plan: VerticalPlan
    leaders: tuple[int, ...]
    seed: int
    batch: int
    directions: int
    step: float
    schedule: StepSchedule
    regularization: float

    @property
    def lag(self) -> int:
        """How many exchanges after its own phases are asked for an iteration is finished."""
        return 1 if len(self.leaders) == 1 else 2

    def leader(self, number: int) -> int:
        """Return the active party whose batch an iteration takes, in turn."""
        return self.leaders[(number - 1) % len(self.leaders)]

    def rows(self, number: int) -> Rows:
        """Return the rows of an iteration's batch."""
        own = self.plan.train[self.leader(number)]
        drawn = draw_batch(self.seed, number, own.stop - own.start, self.batch)
        return np.asarray(own.start + drawn)

    def iteration(self, number: int) -> Iteration:
        """Return an iteration."""
        rate = step_size(self.step, self.schedule, self.regularization, number)
        return Iteration(
            number=number,
            leader=self.leader(number),
            rows=self.rows(number),
            directions=self.directions,
            rate=rate,
            decay=1.0 - rate * self.regularization,
        )

    def upto(self, number: int) -> dict[int, int]:
        """Return how many directions each owner has after an iteration."""
        count = len(self.leaders)
        return {
            owner: self.directions * ((number + count - 1 - k) // count)
            for k, owner in enumerate(self.leaders)
        }

    def need(self, first: int, last: int) -> Need:
        """Return the phases that iterations need."""
        rows = [self.rows(number) for number in range(first, last + 1)]
        return Need(np.unique(np.concatenate(rows)), self.upto(last))

    def solved(self, iterations: int) -> Need:
        """Return the phases that a solution takes at the end: rows of the last half of the batches.

        All of them have the directions of the first of these batches.
        """
        half = iterations // 2
        return Need(self.need(half + 1, iterations).rows, self.upto(half + 1))

    def advance(
        self, phases: Phases, t: int, done: int, last: int, tested: Need | None, save_as: int
    ) -> Steps:
        """Take an exchange of iterations ``done`` + 1 to ``last``.

        The t-th asks for the phases of iteration t and finishes the one that is due. The last of
        them asks for those of held-out rows, and has the parties keep their state.
        """
        finish, score = t - self.lag, t - 1 if self.lag == 2 else 0
        need = self.need(t, t) if t <= last else tested if finish == last else None
        work: dict[str, Any] = {}
        if finish > done:
            work["finish"] = self.iteration(finish)
        if done < score <= last:
            work["score"] = self.iteration(score)
        if finish == last and save_as:
            work["save_as"] = save_as

        def again() -> Need:
            return self.need(max(finish, done + 1), min(t - 1, last))

        yield from phases.advance(need, again if t > done + 1 else None, **work)


def held_out_rows(plan: VerticalPlan) -> Rows:
    """Return all held-out rows of a plan."""
    return np.concatenate([_range(part) for part in plan.test.values()])


def _range(part: slice) -> Rows:
    return np.arange(part.start, part.stop)

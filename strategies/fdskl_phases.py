"""Exchanges of FDSKL: phases for their owners, and what the parties do with them.

A party that has lost its phases gets all of them again; they are counted from nothing then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.method import Answers, Ask, Deliver, LostState, Steps
from fedkern_flwr.vertical import messages as wire
from fedkern_flwr.vertical.parties import VerticalPlan

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
    """A set of phases that is asked for at once; by default none.

    Attributes
    ----------
    number : int
    rows : ndarray of int64
        Rows of the plan.
    fields : dict
        Fields of a request that are the same for all parties.
    """

    number: int
    rows: Rows
    fields: Mapping[str, NDArray[np.int32]]


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


_NO_COLLECTION = Collection(0, _NO_ROWS, {"known": np.zeros((0, 0), np.int32)})
_NO_ITERATION = Iteration(0, -1, _NO_ROWS, 0, 0.0, 0.0)


@dataclass(kw_only=True)
class Phases:
    """Which phases the owners have, and the exchanges that bring them more.

    Attributes
    ----------
    plan : VerticalPlan
        Who holds which rows.
    settings : mapping
        Fields of a step that are those of the run: how phases are made, and the loss.
    outputs : int
        Columns of the targets.
    attempts : int
        How often phases that were lost are sent again.
    number : int
        Of the last collection.
    """

    plan: VerticalPlan
    settings: Mapping[str, Any]
    outputs: int
    attempts: int
    number: int = 0

    def __post_init__(self) -> None:
        """Begin without phases."""
        self._waiting: dict[int, int] = {}  # owner -> number of the collection on its way
        self._parts = 0  # in how many exchanges the last phases have come
        self.forget()

    def forget(self) -> None:
        """Note that no owner has any phases."""
        self._known = {a: np.zeros(self.plan.total, np.int32) for a in self.plan.actives}
        self._parts = 0
        self._waiting.clear()

    # -- exchanges

    def advance(
        self, need: Need | None = None, again: Callable[[], Need] | None = None, **work: Any
    ) -> Steps:
        """Collect phases and do other work of a :meth:`step`: one exchange where all answer.

        ``again`` returns the phases to collect anew, if a party has lost them.

        Raises
        ------
        CohortError
            Somebody did not answer, or lost its phases, ``attempts`` times in a row.
        """

        def steps() -> Steps:
            *parts, last = [_NO_COLLECTION] if need is None else self.collections(need)
            self._parts = len(parts) + 1
            for part in parts:
                yield from self.step(part)
            if last.number or work:
                yield from self.step(last, **work)

        yield from self.insist(steps, again)

    def insist(self, steps: Callable[[], Steps], again: Callable[[], Need] | None) -> Steps:
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

    def step(
        self,
        wanted: Collection,
        *,
        finish: Iteration = _NO_ITERATION,
        score: Iteration = _NO_ITERATION,
        save_as: int = 0,
    ) -> Steps:
        """Collect phases, finish an iteration, score another, have states kept: one exchange."""
        everybody = wanted.number or score.number or save_as
        common: dict[str, Any] = {
            **dict.fromkeys(("owners", "upto", "cuts"), _NOTHING),
            **self.settings,
            **wanted.fields,
        }
        requests = {
            p: wire.StepRequest(
                **common,
                delivered=self._waiting.get(p, 0),
                save_as=save_as,
                collection=wanted.number,
                rows=self.positions(p, wanted.rows),
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
            for p in (self.plan.parties if everybody else self.plan.actives)
        }
        # an iteration needs its scores, whoever has lost phases in between
        yield from self.ask(requests, wire.StepReply, wanted.rows, keep="scores/")
        if wanted.number:
            owners, upto = (wanted.fields[name].tolist() for name in ("owners", "upto"))
            for owner, many in zip(owners, upto, strict=True):
                self._waiting[owner] = wanted.number
                self._known[owner][wanted.rows] = many

    def judge(self, need: Need, **asked: Any) -> Steps:
        """Let the active parties predict their held-out rows; return what each counted.

        ``asked`` are fields of the request: whether they count, and by which bins; a calibration.
        Of several active parties each gets the scores of the others first.
        """
        plan = self.plan
        tests = {a: held for a in plan.actives if len(held := rows_of(plan.test[a]))}

        def steps() -> Steps:
            for scoring in (True, False) if len(plan.actives) > 1 else (False,):
                requests = {
                    p: wire.OutcomeRequest(
                        **asked,
                        delivered=self._waiting.get(p, 0),
                        scoring=scoring,
                        owners=np.array([*tests], np.int32),
                        sizes=np.array([*map(len, tests.values())], np.int32),
                        rows=self.positions(p, np.concatenate([*tests.values()])),
                    )
                    for p in (plan.parties if scoring else plan.actives)
                }
                answers = yield from self.ask(requests, wire.OutcomeReply)
            return [reply.counts for reply in answers.replies.values()]

        return (yield from self.insist(steps, lambda: need))

    def train(
        self, owner: int, request: wire.TrainRequest, need: Need, again: Need | None = None
    ) -> Steps:
        """Let the owner learn from its rows of ``need``, and predict, as the last thing in the run.

        If it has lost phases, it gets those of ``again``, which is of streaming alone. Where all
        came in several messages, it may have lost those before the last: the others are told of the
        end when it has answered.
        """
        ends = self._parts == 1 and again is None
        rows = np.intersect1d(need.rows, rows_of(self.plan.train[owner]))

        def steps() -> Steps:
            known: dict[str, Any] = {
                "delivered": self._waiting.get(owner, 0),
                "rows": self.positions(owner, rows),
                "tests": self.positions(owner, rows_of(self.plan.test[owner])),
            }
            asked = {owner: replace(request, **known)}
            answers: Answers = yield from self.ask(asked, wire.TrainReply, ends=ends)
            return answers.replies[owner]

        return (yield from steps() if ends else self.insist(steps, lambda: again or need))

    def ask(
        self,
        requests: Mapping[int, Any],
        reply: type[Any],
        rows: Rows = _NO_ROWS,
        *,
        keep: str = "",
        ends: bool = False,
    ) -> Steps:
        """Ask parties, with the sums that their request declares; each of these is one party's.

        What waits for a party comes along. ``rows`` are those whose phases are asked for; sums
        whose name begins with ``keep`` stay on their way when phases are lost.
        """
        bits, names = int(self.settings["phase_bits"]), self.plan.names[rows]
        first = next(iter(requests.values()))
        sums = first.sum_specs(wire.VerticalFacts(bits, self.outputs, names))
        answers: Answers = yield Ask(requests, reply=reply, sums=sums, ends=ends)
        for partition in requests:
            self._waiting.pop(partition, None)
        for name, running in answers.running.items():
            kept = bool(keep) and name.startswith(keep)
            yield Deliver(running, running.order.receiver, keep=kept)
        return answers

    # -- what is asked for

    def collections(self, need: Need) -> Iterator[Collection]:
        """Yield what is asked for in one exchange each, so that no message is too large."""
        owners, bits = sorted(need.upto), self.settings["phase_bits"]
        width = max(need.upto.values())
        step = max(1, _MESSAGE * 8 // bits // max(1, width * len(owners)))
        chunk = max(1, _CHUNK // max(1, width))
        for start in range(0, max(1, len(need.rows)), step):
            rows = need.rows[start : start + step]
            self.number += 1
            fields = {
                "owners": np.array(owners, np.int32),
                "upto": np.array([need.upto[owner] for owner in owners], np.int32),
                "known": np.stack([self._known[owner][rows] for owner in owners]),
                "cuts": np.array([*range(chunk, len(rows), chunk), len(rows)], np.int32),
            }
            yield Collection(self.number, rows, fields)

    def positions(self, partition: int, rows: Rows) -> NDArray[np.int32]:
        """Return the positions of rows of the plan among those that a party announced."""
        return np.ascontiguousarray(self.plan.rows[partition][rows], np.int32)


def held_out_rows(plan: VerticalPlan) -> Rows:
    """Return all held-out rows of a plan."""
    return np.concatenate([rows_of(part) for part in plan.test.values()])


def rows_of(part: range) -> Rows:
    """Return the rows of a part of a plan."""
    return np.arange(part.start, part.stop)

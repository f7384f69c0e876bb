"""The round of every online method: T samples per client, B of them per exchange.

Two rules are the online methods' own, because a sample is predicted once: a sum that cannot be
opened is a round lost and the run goes on, see :meth:`OnlineStrategy.rounds`; and a run that is
resumed repeats no round that a client has answered, see :meth:`OnlineStrategy._take_up`. Where rows
come while a run goes on, a client without enough of them has no part in the message, and the run
ends when too few clients are left whose streams go on, see :mod:`.online_streams`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import (
    CheckpointError,
    CohortError,
    FedKernError,
    ProtocolError,
    SumError,
    TableError,
)
from fedkern_flwr.method import Answers, Ask, Round, Rounds, Save, Steps, Term
from fedkern_flwr.nodes import Arrays, logger
from fedkern_flwr.online import messages as wire
from fedkern_flwr.progress import part
from fedkern_flwr.reporting import whether_converged
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.wire import DescribeReply, PhaseMessage

from .online_streams import OnlineStreams

Floats = NDArray[np.float64]
_ENCODING = Encoding.fixed_point(wire.SUM_BOUND)
_BEGINNING = 10  # samples of a client, whose errors may be large before anything is learned
_REPORTED = ("round", "total_samples", "total_squared_error", "regret", "largest_loss")


class OnlineStrategy(OnlineStreams):
    """Base class of the online methods.

    ``start(grid, num_rounds=T)`` lets every client predict T samples of its own stream, each
    before its label is used. With ``samples_per_round`` B this takes floor(T / B) exchanges, one at
    least; the last message has the rest of the samples as well.
    """

    fixed = frozenset({"attempts"})
    confirmed = True
    default_rounds = 500
    reply_class: ClassVar[type[wire.StreamReport]]
    evaluate_reply: ClassVar[type[wire.EvaluateReply]] = wire.EvaluateReply

    def _reset(self) -> None:
        super()._reset()
        self._number = 0  # of the round at hand
        self._reports: dict[int, Any] = {}  # partition -> latest report
        self._statistics = np.zeros(wire.STATISTICS)  # of a secure run, summed over the clients
        self._lost_rounds = 0  # in a row

    # -- what a method adds

    @abstractmethod
    def set_up(self, dimension: int) -> None:
        """Set the server's state for features of ``dimension`` columns."""

    @abstractmethod
    def request(self, stream: dict[str, Any]) -> wire.StreamRequest:
        """Return the request of a round; ``stream`` holds the fields of ``StreamRequest``."""

    @abstractmethod
    def step(self, total: Floats, answers: int) -> None:
        """Move the server's state by a sum over ``answers`` clients."""

    def update(self, replies: list[Any]) -> None:
        """Sum plain replies, sorted by partition, and step along the sum."""
        total = np.zeros(self.sum_length())
        for reply in replies:
            reply.add_to(total)
        self.step(total, len(replies))

    @abstractmethod
    def sent(self) -> list[NDArray[Any]]:
        """Return the arrays that the clients get next."""

    @abstractmethod
    def server_state(self) -> Arrays:
        """Return the arrays from which a run can go on, the model first."""

    @abstractmethod
    def load_server_state(self, arrays: Arrays) -> None:
        """Set the server's state from a checkpoint."""

    def reply_sizes(self) -> dict[str, int]:
        """Return the sizes of dimensions that replies must have."""
        return {}

    def evaluation(self) -> wire.StreamRequest | None:
        """Return the question for held-out rows."""
        return None

    # -- the rounds

    def rounds(self, parties: Sequence[DescribeReply]) -> Rounds:
        """Learn from the streams, then have the held-out rows predicted.

        A sum that cannot be opened is a round lost: the model stays as it is, and what the clients
        would have told of their errors they tell in a later round.

        Raises
        ------
        CohortError
            No round could be opened, or ``max_missed`` in a row could not.
        """
        self._check_streams(parties)
        dimension = parties[0].features
        self.set_up(dimension)
        self.plan_release(dimension)
        self.planned = self.exchanges()
        if self.initial_:
            self.load_server_state(self._state_from(self.initial_[0]))
        first = self._take_up() if self.saved_meta_ else 1
        yield Round(first - 1, arrays=self.sent())
        with part("train"):
            yield from self._follow_streams(first)
        metrics = self.final_metrics()
        if first <= self.planned + 1:
            with part("judge"):
                metrics |= yield from self._evaluate()
        return metrics

    def _follow_streams(self, first: int) -> Steps:
        """Learn from the streams, message by message."""
        for number in range(first, self.planned + 1):
            survivors = 0
            try:
                answers = yield self._question(number)
                survivors = self._learn(answers)
            except (CohortError, SumError) as error:
                if self.streams_end(number):
                    self.num_rounds, self.planned = self.stop(number - 1), number - 1
                    break
                if isinstance(error, CohortError) and not self.late_:
                    raise
                self._lose(number, error)
            save = Save(self.server_state(), self._memory())
            found = self._metrics(number, survivors)
            before = self.history_[-1]["mse"] if self.history_ else None
            yield Round(number, found, self.sent(), save)
            before = 0.0 if number >= self.planned else before
            self._check_error(found["round"], found["mse"], before)

    def stop(self, number: int) -> int:
        """Return how many samples a client has taken after so many messages."""
        return self.num_rounds if number >= self.planned else number * self.batch_size()

    def _question(self, number: int) -> Ask:
        step = self.stop(number - 1)
        every = number if number >= self.planned else self.checkpoint_every
        self._number = number
        request = self.request(
            {
                "step": step,
                "samples": self.stop(number) - step,
                "checkpoint_every": every if self.checkpoint else 0,
            }
        )
        length, sizes = self.message_length(), self.reply_sizes()
        if self.sums is not None:
            self._check_left(number)
        return self._ask(number, request, self.reply_class, wire.UPDATE_SUM, length, sizes=sizes)

    def _ask(
        self,
        number: int,
        request: wire.StreamRequest,
        reply: type[PhaseMessage],
        name: str,
        length: int,
        **more: Any,
    ) -> Ask:
        """Return a question, in a secure run one with a sum instead of replies."""
        sums = []
        if self.sums is not None:
            request = replace(request, whole=not self.drop_outs)
            term = Term(name=name, length=length, encoding=_ENCODING, self_masks=self.drop_outs)
            reply, sums = wire.MaskedReply, [term]
        return Ask(request, reply=reply, sums=sums, until="once", number=number, **more)

    def _learn(self, answers: Answers) -> int:
        """Move the model by what came; return how many it is from."""
        if self.sums is None:
            self._reports |= answers.replies
            self.update(list(answers.replies.values()))
            return len(answers.replies)
        total = answers.totals[wire.UPDATE_SUM]
        survivors = len(answers.contributors[wire.UPDATE_SUM])
        self._lost_rounds = 0
        self._statistics += total[-wire.STATISTICS :]
        self.step(total[: -wire.STATISTICS], survivors)
        return survivors

    def _lose(self, number: int, error: CohortError | SumError) -> None:
        problem = f"{error.party}: {error.problem}" if error.party else error.problem
        if isinstance(error, SumError):  # whoever is to blame and is left out spoils no other
            left_out = self.nodes.spoilers.intersection(self.left_out_)
            self._lost_rounds = 0 if left_out else self._lost_rounds + 1
        if self.late_:
            problem = f"{len(self.late_)} streams have too few new rows"
        logger.warning("round %d is lost: %s", number, problem)
        if self.sums is not None and number >= self.planned and not self.sums.contributors:
            problem = f"no round could be opened: {problem}"
        elif self._lost_rounds >= self.max_missed:
            problem = f"{self._lost_rounds} rounds in a row are lost: {problem}"
        else:
            return
        raise self.nodes.broken(problem, self.reply_class.phase) from None

    def _evaluate(self) -> Steps:
        """Have the clients that hold rows out predict them; all clients of a secure run answer."""
        active = [self.parties_[node] for node in self.nodes.active()]
        holders = [party.partition for party in active if party.test_rows]
        request, name = self.evaluation(), wire.EVALUATE_SUM
        if request is None or not holders:
            return {}
        among = holders if self.sums is None else None
        number, reply, rows, error = self.planned + 1, self.evaluate_reply, 0.0, 0.0
        try:
            answers = yield self._ask(number, request, reply, name, 2, among=among, least=0)
        except SumError as lost:
            logger.warning("the held-out rows are not evaluated: %s", lost)
        else:
            if self.sums is None:
                rows = sum(found.samples for found in answers.replies.values())
                error = sum(found.squared_error for found in answers.replies.values())
            else:
                rows, error = answers.totals[name].tolist()
        if not rows:
            self.nodes.note_untold()
            return {}
        return {"test_mse": float(error / rows)}

    def check_answer(self, partition: int, answer: Any) -> None:
        """Refuse an evaluation of other rows than those held out."""
        if isinstance(answer, wire.EvaluateReply):
            held_out = {p.partition: p.test_rows for p in self.parties_.values()}[partition]
            if answer.samples not in (0, held_out):
                raise ProtocolError(f"it predicted {answer.samples} rows", code="FK-MESSAGE-FIELD")

    def _check_left(self, number: int) -> None:
        """Stop when too many clients are left out for any sum to be opened."""
        assert self.sums is not None
        left, cohort = len(self.nodes.active()), self.sums.membership.cohorts[0]
        least = max(cohort.threshold, self.min_cohort)
        if not self.drop_outs:
            least = len(cohort.members)
        if left < least:
            raise self.nodes.broken(
                f"{left} of {len(cohort.members)} clients are left in round {number}, a secure "
                f"sum needs {least}",
                self.reply_class.phase,
            )

    def _check_streams(self, parties: Sequence[DescribeReply]) -> None:
        samples, shortest = self.num_rounds, min(parties, key=lambda party: party.rows)
        for party in parties:
            if party.rows < samples:
                raise TableError(
                    f"its stream has {party.rows} rows, {samples} rounds need {samples}",
                    remedy=f"ask for at most {shortest.rows} rounds",
                    party=f"partition {party.partition}",
                    code="FK-ROWS-FEW",
                )

    # -- metrics

    def _check_error(self, samples: int, mse: float | None, before: float | None) -> None:
        """Stop a run that has diverged; a large error that falls is held against it at the end."""
        if mse is None or not self.stop_diverged or (samples < _BEGINNING and math.isfinite(mse)):
            return
        worst = 10.0 * wire.LARGEST_VARIANCE
        if not math.isfinite(mse) or (before is not None and mse > max(worst, before)):
            raise FedKernError(
                f"the run has diverged: its mean squared error so far is {mse:.2g}, that of the "
                f"mean of labels in [0, 1] at most {wire.LARGEST_VARIANCE}",
                remedy="use step_size='adaptive' and smaller steps, or scale labels to [0, 1]",
                code="FK-RUN-DIVERGED",
            )

    def _metrics(self, number: int, survivors: int) -> dict[str, Any]:
        """Return the metrics of a round."""
        clients, sums = len(self._reports), self._statistics
        if self.sums is not None and not self._reported:
            clients = self.sums.contributors
        elif clients:
            sums = np.sum([report.statistics() for report in self._reports.values()], axis=0)
        samples, errors, regrets = sums[:3].tolist()
        return {
            "round": self.stop(number),
            "mse": errors / samples if samples else None,
            "regret": regrets / clients if clients and self._has_regret else None,
            "survivors": survivors,
        }

    @property
    def _reported(self) -> bool:
        """Whether the metrics are made of what clients report beside their sums, if anything."""
        return self.budget is not None

    @property
    def _has_regret(self) -> bool:
        return issubclass(self.reply_class, wire.KernelReport)

    @property
    def advice(self) -> str:
        """What to do where the mean of the labels predicts as well."""
        steps = "" if "step_size" in self.fixed else "use step_size='adaptive' and smaller steps, "
        return f"{steps}check the label and the columns, or use more rows"

    def final_metrics(self) -> dict[str, Any]:
        """Return the metrics of the finished run: means and spreads over the clients.

        From their last reports; in a secure run from sums, and no client's are known.
        """
        mse = self.history_[-1]["mse"] if self.history_ else None
        small = mse is None or mse <= wire.LARGEST_VARIANCE
        text = "the error is larger than that of the mean of labels in [0, 1] can be"
        ended = whether_converged(small, text, self.advice)
        self.note_drift()
        spread = regret = regret_spread = largest = None
        if self.sums is not None and not self._reported:
            clients = self.sums.contributors
            if not clients:
                return {"mse": mse, **ended}
            _, _, regret, regret_square, mean, mean_square = (self._statistics / clients).tolist()
            spread = math.sqrt(max(0.0, mean_square - mean * mean))
            regret_square *= wire.REGRET_SCALE
            regret_spread = math.sqrt(max(0.0, regret_square - regret * regret))
        elif self._reports:
            reports = [self._reports[partition] for partition in sorted(self._reports)]
            spread = np.std([r.total_squared_error / max(1, r.total_samples) for r in reports])
            if self._has_regret:
                regrets = [r.regret for r in reports]
                regret, regret_spread = np.mean(regrets), np.std(regrets)
                largest = max(r.largest_loss for r in reports)
        if not self._has_regret:
            regret = regret_spread = None
        found = {"mse_client_std": spread, "regret_mean": regret, "regret_std": regret_spread}
        found = {name: None if value is None else float(value) for name, value in found.items()}
        return {"mse": mse, **found, "largest_loss": largest, **ended}

    # -- checkpoints

    def _memory(self) -> dict[str, Any]:
        """Return what the metrics are made of."""
        if self.sums is not None and not self._reported:
            statistics = self._statistics.tolist()
            return {"statistics": statistics, "released": self._released, "batch": self._batch}
        reports = {
            str(partition): {n: getattr(report, n) for n in _REPORTED if hasattr(report, n)}
            for partition, report in self._reports.items()
        }
        return {"reports": reports}

    def _take_up(self) -> int:
        """Set the state of a run that broke off; return the round with which it goes on.

        Rounds that a client of a secure run answered after the checkpoint are lost: repeated with
        other survivors, the difference of the two sums would be that of single clients.
        """
        meta = self.saved_meta_
        for partition, values in meta.get("reports", {}).items():
            kind = wire.KernelReport if "regret" in values else wire.StreamReport
            self._reports[int(partition)] = kind(**values)
        if self.sums is not None and not self._reported:
            if (meta["batch"], meta["released"]) != (self._batch, self._released):
                raise CheckpointError(
                    "other clients or rows are there than when the run broke off",
                    remedy="resume with all of them",
                    code="FK-CHECKPOINT-PARTIES",
                )
            self._statistics = np.array(meta["statistics"])
        self.load_server_state(self.saved_)
        first, answered = meta["round"] + 1, max(p.answered for p in self.parties_.values())
        for number in range(first, min(answered, self.planned) + 1):
            logger.warning("round %d is lost: it was answered before the run broke off", number)
            self.history_.append(self._metrics(number, 0))
        if answered > self.planned:
            logger.warning("the held-out rows are not evaluated again")
        return int(max(first, answered + 1))

    def _state_from(self, model: NDArray[Any]) -> Arrays:
        """Replace the first array of the server's state, the model, by the one given."""
        state = self.server_state()
        if not state:
            return state
        first = next(iter(state))
        given, expected = np.asarray(model, np.float64), state[first]
        if given.size != expected.size:
            raise ProtocolError(
                f"initial_arrays has shape {given.shape} instead of {expected.shape}",
                remedy="pass the arrays of a run with the same options",
                code="FK-INITIAL-SHAPE",
            )
        return {**state, first: given.reshape(expected.shape)}

"""The base of the online methods: options, the plan of what a message releases, and the rounds.

A run takes T samples of each client, B per exchange. Each sample is predicted once, hence two
rules. A sum that cannot be opened is a lost round and the run goes on
(:meth:`OnlineStrategy.rounds`). A resumed run repeats no round that a client has answered
(:meth:`OnlineStrategy._take_up`). With streams, a client with too few rows skips the message; the
run ends when too few clients have streams that go on.

With a privacy budget every message has its own noise. A sample is in one message, so a run costs a
row as much as one message, and a party as much as all. This requires that nothing a client sends
depends on earlier samples: with a budget it reports no errors and chooses no kernels.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import (
    CheckpointError,
    CohortError,
    FedKernError,
    OptionError,
    ProtocolError,
    SumError,
    TableError,
)
from fedkern_flwr.fitted import FittedModel
from fedkern_flwr.flower_compat import is_simulated
from fedkern_flwr.guard import NodePolicy, counting
from fedkern_flwr.method import Answers, Ask, Method, Round, Rounds, Save, Steps, option
from fedkern_flwr.model_file import check_made_with, check_model
from fedkern_flwr.nodes import Arrays, logger
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.learning import StepSize, rises, step_rule
from fedkern_flwr.planning import Allowance
from fedkern_flwr.privacy import Release
from fedkern_flwr.progress import part
from fedkern_flwr.reporting import whether_converged
from fedkern_flwr.wire import DescribeReply, PhaseMessage

Floats = NDArray[np.float64]
Auto = Literal["auto"]

#: What the server sees of the clients' tables in all runs, and of sums in secure runs.
_TABLES = "number of rows, held-out rows and columns per client, digest of the column names"
_CONTRIBUTED = "which clients contributed to which sum"
_HELD_OUT = "each client's squared error on its held-out rows, if there are any"
_BEGINNING = 10  # samples of a client with possibly large errors, at the beginning
_REPORTED = ("round", "total_samples", "total_squared_error", "regret", "largest_loss")
#: How a client reports, instead of an answer, that its stream has too few rows.
_SAID = "StreamError: "
_ENDED, _LATE = "[FK-STREAM-ENDED]", "[FK-STREAM-LATE]"


class OnlineStrategy(Method):
    """Base class of the online methods.

    ``start(grid, num_rounds=T)`` lets every client predict T samples of its own stream, each
    before its label is used. With ``samples_per_round`` B this takes floor(T / B) exchanges, at
    least one; the last message also has the remaining samples. By default the server learns
    parameters by steps along the clients' gradients.

    Attributes
    ----------
    theta_ : ndarray, shape (rows, width)
        The learned parameters.
    request_ : StreamRequest
        Of the current message.
    """

    step_size: StepSize = option(
        "adaptive",
        "Step size of the paper, 1/sqrt(T), or adaptive without tuning.",
    )
    samples_per_round: int | Auto = option(
        "auto",
        "Samples per exchange, B (auto: 1, or the release limit; paper: 1).",
        least=1,
    )
    secure: bool | None = option(
        None,
        "Secure sums: the server sees sums over the clients, no client's gradient or error. Costs "
        "an exchange more per round, unless drop_outs is False. By default on in deployments and "
        "off in simulations.",
        of_model=False,
    )
    drop_outs: bool = option(
        True,
        "Secure sums: continue without clients that drop out, in another exchange.",
        of_model=False,
    )
    stop_diverged: bool = option(
        True,
        "Stop, with a checkpoint, if the mean squared error diverges.",
        of_model=False,
    )

    fixed = frozenset({"attempts"})
    confirmed = True
    default_rounds = 500
    reply_class: ClassVar[type[wire.StreamReport]]
    evaluate_reply: ClassVar[type[wire.EvaluateReply]] = wire.EvaluateReply
    predict_reply: ClassVar[type[wire.PredictReply]] = wire.PredictReply
    #: What the clients sum in a round, and what is never sent besides rows and labels.
    in_sums: ClassVar[str] = "gradients and statistics"
    sent_sums: ClassVar[str] = "gradients"
    kept: ClassVar[tuple[str, ...]] = ()
    to_clients: ClassVar[str] = "the model"
    #: Name of the parameters in a checkpoint.
    learns: ClassVar[str] = "theta"
    #: For methods with predictions at nodes: options that determine a model and its metadata, and
    #: further facts of a model.
    of_models: ClassVar[tuple[str, ...]] = ()
    model_facts: ClassVar[tuple[str, ...]] = (
        "samples",
        "secure",
        "session",
        "columns",
        "dimension",
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not self.drop_outs and self.threshold is not None:
            raise OptionError(
                "a threshold is given, and all must answer",
                remedy="leave out threshold",
                code="FK-THRESHOLD-WHOLE",
            )
        if self.budget is not None and self.secure is False:
            raise OptionError(
                "noise is added to secure sums, and secure is False",
                remedy="leave out secure=False, or privacy_epsilon",
                code="FK-BUDGET-PLAIN",
            )

    def _reset(self) -> None:
        super()._reset()
        self.is_secure, self.whole_cohorts = bool(self.secure), not self.drop_outs
        self.theta_ = np.zeros((0, 0))
        self.request_: Any = None
        self._more: Arrays = {}  # further state of the server
        self._dimension, self._batch = 0, 1  # columns, and B, of this run
        self._released: list[dict[str, Any]] = []  # numbers and unknowns of its sums
        self._reports: dict[int, Any] = {}  # partition -> latest report
        self._statistics = np.zeros(wire.STATISTICS)  # of a secure run, summed over the clients
        self._lost_rounds = 0  # in a row
        self._model: tuple[Arrays, dict[str, Any]] | None = None  # for predictions

    def takes_sums(self, grid: Grid) -> bool:
        """Return whether a run takes secure sums; predictions do what their model's run did."""
        if self._model is not None:  # clients of secure runs take part in no others
            return bool(self._model[1]["secure"])
        if self.budget is not None:
            return True
        return not is_simulated(grid) if self.secure is None else self.secure

    def options(self) -> dict[str, Any]:
        own = {"samples": self.num_rounds, "secure": self.is_secure}
        return {**super().options(), **own, **self.derived()}

    # -- hooks for methods

    @abstractmethod
    def request(self, stream: dict[str, Any]) -> wire.StreamRequest:
        """Return the request of a round; ``stream`` holds the fields of ``StreamRequest``."""

    def evaluation(self, **stream: Any) -> wire.StreamRequest | None:
        """Return the request for held-out rows; None to skip their evaluation."""
        return None

    def derived(self) -> dict[str, Any]:
        """Return what follows from options and determines the model."""
        return {}

    def first_parameters(self, dimension: int) -> Floats:
        """Return the initial parameters for ``dimension`` columns."""
        return np.zeros((0, 0))

    def weigh(self, losses: Floats, answers: int) -> None:
        """Use the losses that ``answers`` clients summed along with gradients."""

    def gradients(self, total: Floats, answers: int) -> Floats:
        """Convert a noisy sum over ``answers`` clients to the sum without a budget."""
        return total

    def set_up(self, dimension: int) -> None:
        self.theta_ = self.first_parameters(dimension)
        self._rule = step_rule(self.step_size, len(self.theta_), self.num_rounds)

    def step(self, total: Floats, answers: int) -> None:
        """Step along the mean gradient over all K clients (eq. 10).

        Clients without an answer count as zero. In ``total`` losses follow the gradients.
        """
        gradients, losses = np.split(total, [len(total) - self.request_.losses()])
        if losses.size and answers:
            self.weigh(losses, answers)
        mean = self.request_.spread(gradients) / len(self.parties_)
        self._rule.update(self.theta_, mean)

    def update(self, replies: list[Any]) -> None:
        total = np.zeros(self.sum_length())
        for reply in replies:
            reply.add_to(total)
        self.step(total, len(replies))

    def sent(self) -> list[NDArray[Any]]:
        return [self.theta_]

    def model_arrays(self) -> Arrays:
        return {}

    def server_model(self) -> FittedModel | None:
        return None

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        return self._model or (self.model_arrays(), super().learned()[1])

    def fitted(self, classes: Sequence[Any] = ()) -> FittedModel:
        self.check_run()
        found = self.server_model()
        return super().fitted(classes) if found is None else found  # or an error with the reason

    def server_state(self) -> Arrays:
        if not self.theta_.size:
            return {}
        return {self.learns: self.theta_, "step_state": self._rule.state, **self._more}

    def load_server_state(self, arrays: Arrays) -> None:
        if arrays:
            self.theta_ = arrays[self.learns].copy()
            self._rule.state = arrays["step_state"].copy()
            self._more = {name: arrays[name].copy() for name in self._more}

    # -- what a message releases, and the release limit: no more numbers than unknowns
    #
    #
    # A window is the samples of a message. If nodes count, a run releases the share of a window's
    # unknowns that each node grants, unless the user sets the samples per message.

    def sum_length(self) -> int:
        request = self.message(1) if self.request_ is None else self.request_
        return int(request.numbers(self._dimension))

    def batch_size(self) -> int:
        """Return the samples per exchange; the last one also has the remaining ones."""
        return self._batch

    def exchanges(self) -> int:
        return max(1, self.num_rounds // self.batch_size())

    def least_numbers(self, request: Any) -> int:
        return int(request.numbers(self._dimension))

    def fit_release(self, unknowns: float, request: Any) -> None:
        pass

    def plan_release(self, dimension: int) -> None:
        """Fix B and what a round sums; stop, or warn, if too much would be released.

        Raises
        ------
        RefusedError
            More numbers than unknowns, and a node would refuse.
        """
        given = self.samples_per_round
        self._batch = 1 if given == "auto" else given
        if self.sums is None or self.budget is not None:  # the noise limits the release
            self.fit_release(math.inf, self.message(1))
            return
        each, share = self.unknowns_of_samples(dimension), 1.0
        if given == "auto":
            share = self.share
            numbers = self.least_numbers(self.message(1)) + wire.STATISTICS
            wanted = counting.least_samples(numbers, each * share)
            wanted = self.fewest * max(1, math.ceil(wanted / self.fewest))
            self._batch = min(wanted, self.num_rounds)
        unknowns = each * min(self._batch, self.num_rounds)
        self.fit_release(unknowns * share - wire.STATISTICS, self.message(1))
        self.note_windows(f"{self._batch} samples per message", unknowns)
        self.note_release(dimension, self.sum_length() + wire.STATISTICS, unknowns)

    @property
    def share(self) -> float:
        """The share of a window's unknowns that the run opens by default."""
        return float(min(party.share for party in self.parties_.values()))

    def note_windows(self, what: str, unknowns: float) -> None:
        if self.share < 1.0 and self.samples_per_round == "auto":
            numbers = self.share * unknowns
            self.note_plan(f"{what}, each", Allowance(numbers, share=self.share))

    @property
    def fewest(self) -> int:
        """Default windows are multiples of this, so that no two differ by fewer samples."""
        return NodePolicy().min_own_rows if self.share < 1.0 else 1

    def hidden_rows(self) -> int:
        """Return the hidden rows of a secure sum with one sample of each client.

        The largest other party's do not count: in POF-RLS it can compute the sums of the others. A
        node without pinned identities counts only its own rows.
        """
        assert self.sums is not None
        if self.share < 1.0 and not all(p.signature for p in self.parties_.values()):
            return 1
        cohort = self.sums.membership.cohorts[0]
        one = dict.fromkeys(cohort.members, 1)
        alive = set(one)
        if self.drop_outs:
            alive = counting.least_survivors(one, cohort.threshold)
        return counting.hidden_rows(one, alive)

    def unknowns_of_samples(self, dimension: int) -> float:
        return self.hidden_rows() * self._unknowns_of_row(dimension)

    def _unknowns_of_row(self, dimension: int) -> float:
        binary = max(party.binary for party in self.parties_.values())
        return counting.unknowns_of_row(dimension + 1, binary)

    def note_release(self, dimension: int, numbers: int, unknowns: float) -> None:
        """Note what a secure sum releases; stop, or warn, if it is too much.

        Raises
        ------
        RefusedError
            More numbers than unknowns, and a node would refuse.
        """
        self._released = [counting.released(wire.UPDATE_SUM, numbers, unknowns)]
        tests = sum(party.test_rows for party in self.parties_.values())
        if tests:
            held = tests * self._unknowns_of_row(dimension)
            self._released.append(counting.released(wire.EVALUATE_SUM, 2, held))
        self.nodes.check_count(counting.too_many(numbers, unknowns))

    def privacy(self) -> dict[str, Any]:
        if self._model is not None:
            return {
                "protocol": "predictions stay at the clients",
                "server_sees": [
                    "number of rows and columns per client, digest of the column names",
                    "how many rows each client predicted",
                ],
                "never_leaves_the_client": ["rows", "predictions", *self.kept],
            }
        if not self.is_secure:
            return {
                "protocol": "plain",
                "server_sees": [
                    f"each client's {self.sent_sums}, from which its samples and labels can be "
                    "computed",
                    "each client's squared error, regret and largest loss so far",
                    _TABLES,
                    _HELD_OUT,
                    *self.server_sees,
                ],
                "never_leaves_the_client": ["rows", "labels", *self.kept],
            }
        few = any(entry["numbers"] > entry["unknowns"] for entry in self._released)
        warning = " (more numbers than unknowns: the samples can be computed)" * few
        seen = [
            f"sums over the clients of a round: {self.in_sums}{warning}",
            _CONTRIBUTED,
            _TABLES,
            "the sum of the clients' squared errors on held-out rows, if there are any",
        ]
        own, more = f"own {self.sent_sums} and errors", dict[str, Any]()
        if self.budget is not None:
            with_noise = f"sums over the clients of a round, with noise: {self.sent_sums}"
            seen = [f"{with_noise}; see budget", _CONTRIBUTED, _TABLES]
            if self._reports:
                seen.append(
                    "of a simulation each client's squared error, regret and largest loss so far: "
                    "for its report, which is no release. No deployed node tells them"
                )
            parallel = self.budget.unit == "row"
            rows = "each of other rows, so that a row pays for one" if parallel else "all add up"
            costs = {"messages": f"{len(self.history_)}, {rows}"}
            releases = [*self.noise_.reports().values()]
            more = {"budget": {**vars(self.budget), "releases": releases, **costs}}
        return {
            **self.sums_privacy(),
            "sums": list(self._released),
            "server_sees": seen,
            "clients_see": [self.to_clients, _CONTRIBUTED],
            "never_leaves_the_client": ["rows", "labels", own, *self.kept],
            **more,
        }

    # -- the rounds

    def rounds(self, parties: Sequence[DescribeReply]) -> Rounds:
        """Learn from the streams, then evaluate held-out rows.

        If a sum cannot be opened the round is lost: the model stays as it is, and clients report
        their errors later.

        Raises
        ------
        CohortError
            No round could be opened, or ``max_missed`` in a row failed.
        """
        self._check_streams(parties)
        self._dimension = dimension = parties[0].features
        self.set_up(dimension)
        self.plan_release(dimension)
        self.planned = self.exchanges()
        if self.initial_:
            self.load_server_state(self._state_from(self.initial_[0]))
        first = self._take_up() if self.saved_meta_ else 1
        # an ``evaluate_fn`` evaluates the initial model, too
        yield Round(first - 1, arrays=self.sent())
        with part("train"):
            yield from self._follow_streams(first)
        metrics = self.final_metrics()
        if first <= self.planned + 1:
            with part("judge"):
                metrics |= yield from self._evaluate()
        return metrics

    def _follow_streams(self, first: int) -> Steps:
        for number in range(first, self.planned + 1):
            survivors = 0
            try:
                self._check_left(number)
                self.request_ = self.message(number)
                sizes = self.request_.reply_sizes(self._dimension)
                answers = yield self.ask(self.request_, self.reply_class, sizes=sizes)
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
            # saved and reported before the check, so that a diverged run shows its last round
            yield Round(number, found, self.sent(), save)
            before = 0.0 if number >= self.planned else before
            self._check_error(found["round"], found["mse"], before)

    def stop(self, number: int) -> int:
        """Return a client's samples after ``number`` messages."""
        return self.num_rounds if number >= self.planned else number * self.batch_size()

    def message(self, number: int) -> wire.StreamRequest:
        step = self.stop(number - 1)
        every = number if number >= self.planned else self.checkpoint_every
        stream = {"step": step, "samples": self.stop(number) - step, **self._about(number, every)}
        if self.budget is not None:  # nodes must know how often rows pay, and the most rows
            stops = [self.stop(number) for number in range(self.planned + 1)]
            stream |= {"messages": self.planned, "most": int(np.diff(stops).max())}
        return self.request(stream)

    def _about(self, number: int, every: int) -> dict[str, Any]:
        whole = self.sums is not None and not self.drop_outs
        return {
            "round": number,
            "checkpoint_every": every if self.checkpoint else 0,
            "whole": whole,
        }

    def ask(self, request: wire.StreamRequest, reply: type[PhaseMessage], **more: Any) -> Ask:
        """Return the step of a request; secure runs answer in the sum that it declares."""
        specs = []
        if self.sums is not None:
            reply = wire.MaskedReply if self.budget is None else wire.NoisyReply
            specs = request.sum_specs(self.facts())
        return Ask(request, reply=reply, sums=specs, until="once", number=request.round, **more)

    def facts(self) -> wire.Facts:
        assert self.sums is not None
        cohort = self.sums.membership.cohorts[0]
        return wire.Facts(
            columns=self._dimension,
            parties=len(cohort.members),
            threshold=cohort.threshold,
            budget=self.budget,
        )

    def noise(self) -> Release | None:
        found: Release | None = self.request_.sum_specs(self.facts())[0].release
        return found

    def _learn(self, answers: Answers) -> int:
        # replies of secure runs are empty, except in simulations with a budget
        self._reports |= {
            p: one for p, one in answers.replies.items() if getattr(one, "total_samples", 0)
        }
        if self.sums is None:
            self.update(list(answers.replies.values()))
            return len(answers.replies)
        total = answers.totals[wire.UPDATE_SUM]
        survivors = len(answers.contributors[wire.UPDATE_SUM])
        self._lost_rounds = 0
        if (release := self.noise()) is not None:
            self.noise_.note(release, survivors)
            total = self.gradients(total, survivors)
        else:
            total, grown = np.split(total, [-wire.STATISTICS])
            self._statistics += grown
        self.step(total, survivors)
        return survivors

    def _lose(self, number: int, error: CohortError | SumError) -> None:
        problem = f"{error.party}: {error.problem}" if error.party else error.problem
        if isinstance(error, SumError):  # parties at fault that are left out do not count
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
        if self.budget is not None:
            if not self.simulated:
                logger.info("with a budget of privacy each client's errors stay in its own log")
            return {}
        active = [self.parties_[node] for node in self.nodes.active()]
        holders = [party.partition for party in active if party.test_rows]
        request = self.evaluation(**self._about(self.planned + 1, 1))
        if request is None or not holders:
            return {}
        among = holders if self.sums is None else None
        rows = error = 0.0
        try:
            answers = yield self.ask(request, self.evaluate_reply, among=among, least=0)
        except SumError as lost:
            logger.warning("the held-out rows are not evaluated: %s", lost)
        else:
            if self.sums is None:
                rows = sum(found.samples for found in answers.replies.values())
                error = sum(found.squared_error for found in answers.replies.values())
            else:
                rows, error = answers.totals[wire.EVALUATE_SUM].tolist()
        if not rows:
            self.nodes.note_untold()
            return {}
        return {"test_mse": float(error / rows)}

    def check_answer(self, partition: int, answer: Any) -> None:
        if isinstance(answer, wire.EvaluateReply):
            held_out = {p.partition: p.test_rows for p in self.parties_.values()}[partition]
            if answer.samples not in (0, held_out):
                raise ProtocolError(f"it predicted {answer.samples} rows", code="FK-MESSAGE-FIELD")

    def _check_left(self, number: int) -> None:
        left = len(self.nodes.active())
        if self.sums is not None and left < self._least:
            members = self.sums.membership.cohorts[0].members
            raise self.nodes.broken(
                f"{left} of {len(members)} clients are left in round {number}, a secure "
                f"sum needs {self._least}",
                self.reply_class.phase,
            )

    @property
    def _least(self) -> int:
        if self.sums is None:
            return self.min_clients
        cohort = self.sums.membership.cohorts[0]
        return max(cohort.threshold if self.drop_outs else len(cohort.members), self.min_cohort)

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

    # -- streams that grow during a run: late clients, and the end of the run
    #
    #
    # A client with fewer new rows than a message takes skips it, as all clients of a sum must have
    # equally many rows in it. Its rows wait for the next message. Like any other it is left out
    # after ``max_missed`` missed messages in a row. If too few clients remain, the run ends
    # regularly with what was learned.

    @property
    def late_(self) -> dict[int, bool]:
        """Partition -> whether its stream has ended, for clients that lacked rows."""
        failures = self.nodes.failures.get(self.reply_class.phase, {})
        return {
            self.parties_[node].partition: one.detail.endswith(_ENDED)
            for node, one in failures.items()
            if one.detail.startswith(_SAID) and one.detail.endswith((_ENDED, _LATE))
        }

    def streams_end(self, number: int) -> bool:
        """Return whether too few clients have streams that go on; log it.

        Raises
        ------
        CohortError
            Nothing was learned.
        """
        left = {self.parties_[node].partition for node in self.nodes.active()}
        gone = [p for p, ended in self.late_.items() if ended or p not in left]
        if not gone or len(left.difference(gone)) >= self._least:
            return False
        if not any(row["survivors"] for row in self.history_):
            raise CohortError(
                f"{len(gone)} streams have ended, and too few had the rows of a message",
                remedy="take fewer samples per round, or wait longer for rows",
                code="FK-STREAM-SHORT",
            )
        logger.warning(
            "%d streams have ended: the run ends after %d messages", len(gone), number - 1
        )
        return True

    # -- metrics

    def _check_error(self, samples: int, mse: float | None, before: float | None) -> None:
        """Stop a diverged run; a large error that falls counts only at the end."""
        if self.budget is not None:  # in a deployment no error is known, so none may decide
            return
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
        clients, sums = self._known()
        samples, errors, regrets = sums[:3].tolist()
        return {
            "round": self.stop(number),
            "mse": errors / samples if samples else None,
            "regret": regrets / clients if clients and self._has_regret else None,
            "survivors": survivors,
        }

    @property
    def _in_sums(self) -> bool:
        """Whether metrics come from sums; with a budget they come from simulated reports."""
        return self.sums is not None and self.budget is None

    @property
    def _has_regret(self) -> bool:
        return issubclass(self.reply_class, wire.KernelReport)

    @property
    def advice(self) -> str:
        if self.budget is not None:
            return "use more clients or rows, fewer kernels, or a larger privacy_epsilon"
        steps = "" if "step_size" in self.fixed else "use step_size='adaptive' and smaller steps, "
        return f"{steps}check the label and the columns, or use more rows"

    def final_metrics(self) -> dict[str, Any]:
        mse = self.history_[-1]["mse"] if self.history_ else None
        small = mse is None or mse <= wire.LARGEST_VARIANCE
        text = "the error is larger than that of the mean of labels in [0, 1] can be"
        ended = whether_converged(small, text, self.advice)
        if found := rises(self.history_):
            at = ", ".join(map(str, found))
            logger.warning("the data drifts: the error rises after %s samples of a client", at)
        clients, sums = self._known()
        figures = dict.fromkeys(("mse_client_std", "regret_mean", "regret_std", "largest_loss"))
        if clients:
            _, _, regret, regret_square, mean, mean_square = (sums / clients).tolist()
            figures["mse_client_std"] = math.sqrt(max(0.0, mean_square - mean * mean))
            if self._has_regret:
                spread = max(0.0, wire.REGRET_SCALE * regret_square - regret * regret)
                figures |= {"regret_mean": regret, "regret_std": math.sqrt(spread)}
                if self._reports:
                    largest = max(report.largest_loss for report in self._reports.values())
                    figures["largest_loss"] = largest
        return {"mse": mse, **figures, **ended}

    def _known(self) -> tuple[int, Floats]:
        """Return of how many clients statistics are known, and their sum.

        A secure run knows only the sum; with a budget only simulations report them.
        """
        if self._in_sums:
            assert self.sums is not None
            return self.sums.contributors, self._statistics
        found = [self._reports[partition].statistics() for partition in sorted(self._reports)]
        return len(found), np.sum(found, axis=0) if found else self._statistics

    def result(self) -> dict[str, Any]:
        return {**super().result(), "drift": rises(self.history_)}

    # -- checkpoints

    def _memory(self) -> dict[str, Any]:
        if self._in_sums:
            statistics = self._statistics.tolist()
            return {"statistics": statistics, "released": self._released, "batch": self._batch}
        reports = {
            str(partition): {n: getattr(report, n) for n in _REPORTED if hasattr(report, n)}
            for partition, report in self._reports.items()
        }
        return {"reports": reports}

    def _take_up(self) -> int:
        """Restore an interrupted run; return its next round.

        In secure runs, rounds that a client answered after the checkpoint are lost: if repeated
        with other survivors, the difference of the two sums would reveal single clients.
        """
        meta = self.saved_meta_
        for partition, values in meta.get("reports", {}).items():
            kind = wire.KernelReport if "regret" in values else wire.StreamReport
            self._reports[int(partition)] = kind(**values)
        if self._in_sums:
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


# -- predictions of held-out rows with a saved model, and the state that nodes kept of its run


def predict_at_nodes(
    strategy: Any,
    grid: Grid,
    arrays: Mapping[str, NDArray[Any]],
    meta: Mapping[str, Any],
    *,
    timeout: float = 3600,
) -> None:
    """Let the clients predict their held-out rows with a saved model and their own weights.

    A client uses the state it kept from that run and writes the predictions; only their number is
    sent. The strategy has the options of the model; ``arrays`` and ``meta`` are what :meth:`model`
    returned.

    Raises
    ------
    CheckpointError
        The model has another method or other options.
    TableError
        The clients have other columns, or no rows to predict.
    ProtocolError
        A client cannot predict its rows; the others have.
    CohortError
        Clients are missing or did not answer.
    """
    own = strategy.options()
    check_model(strategy.method, arrays, meta, {}, strategy.model_facts)
    made = {name: own[name] for name in strategy.of_models if name != "seed"}
    check_made_with(type(strategy), made, meta)
    check_model(strategy.method, arrays, meta, strategy.model_shapes(arrays, meta))
    strategy.begin()
    strategy._model = dict(arrays), dict(meta)
    strategy.num_rounds, strategy.run_seed = int(meta["samples"]), int(meta["seed"])
    strategy.load_model_arrays(arrays, meta)
    strategy.conduct(grid, partial(_predict, strategy, meta), timeout=timeout)


def _predict(strategy: Any, meta: Mapping[str, Any], parties: Sequence[DescribeReply]) -> Rounds:
    if (parties[0].columns, parties[0].features) != (meta["columns"], meta["dimension"]):
        raise TableError(
            "the clients have other columns than the model was learned from",
            remedy="bring the same columns in the same order",
            code="FK-COLUMNS-DIFFER",
        )
    request = strategy.prediction(str(meta["session"]))
    answers = yield Ask(request, reply=strategy.predict_reply, until="once", least=0)
    if answers.failures:
        partition, failure = min(answers.failures.items())
        all_failed = len(answers.failures)
        first = f"{all_failed} clients did not predict, first " if all_failed > 1 else ""
        if failure.told:
            raise ProtocolError(f"{first}{failure.told}", code="")  # the code is that of the node
        raise CohortError(
            f"{first}partition {partition} did not predict: {failure}",
            remedy="mend it and predict again",
            code="FK-PARTIES-LOST",
        )
    samples = sum(reply.samples for reply in answers.replies.values())
    if not samples:
        raise TableError(
            "no client holds rows to predict",
            remedy="name test-data in the --node-config of those that shall predict",
            code="FK-TEST-NONE",
        )
    return {"predicted_rows": samples}


def options_of(kind: type[OnlineStrategy], meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a saved model; CheckpointError for another method's model."""
    check_model(kind.method, {}, meta, {}, (*kind.of_models, *kind.model_facts))
    return {name: meta[name] for name in kind.of_models if name != "centre"}

"""The round of every online method: T samples per client, B of them per exchange."""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedkern_flwr.errors import (
    CheckpointError,
    EngineError,
    FedKernError,
    ProtocolError,
    SumError,
    TableError,
)
from fedkern_flwr.exchange import Failure, read_reply, request_messages
from fedkern_flwr.flower_compat import is_simulated
from fedkern_flwr.guard import counting
from fedkern_flwr.online import StepSize, check_choice
from fedkern_flwr.secure_sum import Encoding, RunningSum
from fedkern_flwr.strategy import Arrays, at_least, count_failures, logger
from fedkern_flwr.summing import SummingStrategy
from fedkern_flwr.wire import PhaseMessage
from fedkern_flwr.wire import online as wire

Floats = NDArray[np.float64]
Auto = Literal["auto"]
_ENCODING = Encoding.fixed_point(wire.SUM_BOUND)
Report = TypeVar("Report", bound=wire.StreamReport)


class OnlineStrategy(SummingStrategy, Generic[Report]):
    """Base class of the online methods.

    ``start(grid, num_rounds=T)`` lets every client predict T samples of its own stream, each
    before its label is used. With ``samples_per_round`` B this takes floor(T / B) exchanges, one at
    least; the last message has the rest of the samples as well.

    Parameters
    ----------
    step_size : {"paper", "adaptive"} (default: "adaptive")
        ``paper``: eta = eta_k = 1/sqrt(T). ``adaptive``: AdaGrad-norm for the parameters and
        AdaHedge for the weights; nothing to tune.
    samples_per_round : int or "auto" (default: "auto")
        B, samples that a client takes per exchange; 1 is the paper. With auto 1 in plain runs, and
        in secure ones as few as the rule of counting allows (see
        :mod:`fedkern_flwr.guard.counting`).
    secure : bool, optional
        Secure sums: the server sees sums over the clients, no client's gradient or error. Costs an
        exchange more per round. By default on in deployments and off in simulations.
    **common
        Options of :class:`~fedkern_flwr.summing.SummingStrategy`.
    """

    reply_class: type[Report]

    def __init__(
        self,
        *,
        step_size: StepSize = "adaptive",
        samples_per_round: int | Auto = "auto",
        secure: bool | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        check_choice("step_size", step_size, ("paper", "adaptive"))
        check_count("samples_per_round", samples_per_round, ("auto",))
        self.step_size: StepSize = step_size
        self.samples_per_round, self.secure = samples_per_round, secure
        self._samples = 0  # T of the run at hand
        self._batch = 1  # B of the run at hand
        self._number = 0  # of the round at hand
        self._released: list[dict[str, Any]] = []  # numbers and unknowns of its sums
        self._run_seed = 0
        self._reports: dict[int, wire.StreamReport] = {}  # partition -> latest report
        self._is_secure = bool(secure)
        self._statistics = np.zeros(wire.STATISTICS)  # of a secure run, summed over the clients
        self._running: RunningSum | None = None  # the secure sum of the round at hand
        self._lost_rounds = 0  # in a row

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        return {
            **super().options(),
            "step_size": self.step_size,
            "samples_per_round": self.samples_per_round,
            "samples": self._samples,
            "seed": self._run_seed,
            "secure": self._is_secure,
        }

    # -- what a method adds

    @abstractmethod
    def initial_arrays(self, dimension: int) -> ArrayRecord:
        """Set the server's state for features of ``dimension`` columns; return what is sent."""

    @abstractmethod
    def request(self, stream: dict[str, Any]) -> wire.StreamRequest:
        """Return the request of a round; ``stream`` holds the fields of ``StreamRequest``.

        The arrays of the request are packed already and sent in its place.
        """

    @abstractmethod
    def sum_length(self) -> int:
        """Return how many numbers of each client the method sums in this round."""

    @abstractmethod
    def step(self, total: Floats, answers: int) -> ArrayRecord:
        """Move the server's state by a sum over ``answers`` clients; return what is sent."""

    def update(self, replies: list[Report]) -> ArrayRecord:
        """Sum plain replies, sorted by partition, and step along the sum."""
        total = np.zeros(self.sum_length())
        for reply in replies:
            reply.add_to(total)
        return self.step(total, len(replies))

    @abstractmethod
    def server_state(self) -> Arrays:
        """Return the arrays from which a run can go on."""

    @abstractmethod
    def load_server_state(self, arrays: Arrays) -> ArrayRecord:
        """Set the server's state from a checkpoint; return what is sent."""

    def reply_sizes(self) -> dict[str, int]:
        """Return the sizes of dimensions that replies must have."""
        return {}

    def check_reply(self, reply: Report, number: int) -> None:
        """Refuse a reply that is well-formed but wrong; subclasses add what they know.

        Raises
        ------
        ProtocolError
            The reply answers another round.
        """
        if reply.round != number:
            raise ProtocolError(f"the reply belongs to round {reply.round}")

    def batch_size(self) -> int:
        """Return the number of samples per exchange; the last one has the rest as well."""
        return self._batch

    def rounds(self) -> int:
        """Return the number of exchanges."""
        return max(1, self._samples // self.batch_size())

    def least_numbers(self) -> int:
        """Return how many numbers of each client the method must sum in a round to learn well."""
        return self.sum_length()

    def fit_release(self, unknowns: float) -> None:
        """Choose what is summed in a round so that its numbers do not exceed the unknowns."""

    # -- Flower's interface

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 500,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the method.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        initial_arrays : ArrayRecord, optional
            Arrays to start from instead of the method's own start (zeros).
        num_rounds : int (default: 500)
            T, samples per client.
        timeout : float (default: 3600)
            Seconds to wait for the replies of one exchange.
        train_config : ConfigRecord, optional
            ``seed`` is the run's seed for strategies that have none of their own.
        evaluate_config : ConfigRecord, optional
            Not used.
        evaluate_fn : callable, optional
            Evaluation on the server, called before the first and after each exchange.

        Returns
        -------
        Result
            The arrays that were sent last, and metrics per exchange.

        Raises
        ------
        CohortError, ProtocolError, TableError, EngineError, CheckpointError
            The run cannot start or go on. A checkpoint, if one was asked for, stays.
        """
        at_least("num_rounds", num_rounds, 1)
        config = ConfigRecord() if train_config is None else train_config
        self._reset()
        self._reports = {}
        self._samples = num_rounds
        self._run_seed = self.seed if self.seed is not None else int(config.get("seed", 0))  # type: ignore[arg-type]
        self._is_secure = not is_simulated(grid) if self.secure is None else self.secure
        self._statistics, self._lost_rounds = np.zeros(wire.STATISTICS), 0
        self.summary()
        restored = self.restore()
        self.gather(
            grid, resume_round=restored[1]["round"] if restored else 0, secure=self._is_secure
        )
        self._check_streams(num_rounds)
        dimension = next(iter(self.parties_.values())).features
        result, first = Result(), 1
        arrays = self.initial_arrays(dimension)
        self._plan_release(dimension)
        rounds = self.rounds()
        if initial_arrays is not None and len(initial_arrays):
            arrays = self.load_server_state(self._state_from(initial_arrays))
        if restored:
            arrays, first = self._take_up(*restored), restored[1]["round"] + 1
            first = self._skip_answered(first, rounds)
        result.arrays = arrays
        if evaluate_fn and (metrics := evaluate_fn(first - 1, arrays)) is not None:
            result.evaluate_metrics_serverapp[first - 1] = metrics
        try:
            arrays = self._run_rounds(grid, result, first, rounds, timeout, config, evaluate_fn)
            self.metrics_ = self.final_metrics()
            if first <= rounds + 1:
                self._evaluate(grid, arrays, rounds, timeout, result)
        except EngineError:
            raise  # nobody can be reached any more
        except FedKernError:
            with contextlib.suppress(FedKernError):  # whoever is left erases its secrets
                self.finish_sums(grid, number=rounds, timeout=timeout)
            raise
        self.finish_sums(grid, number=rounds, timeout=timeout)
        return result

    def _run_rounds(
        self,
        grid: Grid,
        result: Result,
        first: int,
        rounds: int,
        timeout: float,
        config: ConfigRecord,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> ArrayRecord:
        arrays = result.arrays
        for number in range(first, rounds + 1):
            outcome = self.run_phase(
                grid,
                self.configure_train(number, arrays, config, grid),
                phase=self.reply_class.phase,
                timeout=timeout,
                number=number,
            )
            if self.sums is not None:
                self._open_round(grid, number, timeout, outcome.failures)
            updated, metrics = self.aggregate_train(number, self.in_order(outcome))
            if updated is not None:
                arrays = result.arrays = updated
            if metrics is not None:
                result.train_metrics_clientapp[number] = metrics
            self.keep(number, self.server_state(), self._pack_metrics(), last=number == rounds)
            self.confirm(outcome)
            if evaluate_fn and (metrics := evaluate_fn(number, arrays)) is not None:
                result.evaluate_metrics_serverapp[number] = metrics
            if self.on_round is not None:
                self.on_round(number, rounds, self.history_[-1])
        return arrays

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one request per client that takes part; ``arrays`` travels as it is."""
        step = (server_round - 1) * self.batch_size()
        last = server_round >= self.rounds()
        every = server_round if last else self.checkpoint_every
        self._number = server_round
        request = self.request(
            {
                "session": self._session,
                "round": server_round,
                "step": step,
                "samples": self._samples - step if last else self.batch_size(),
                "checkpoint_every": every if self.checkpoint else 0,
            }
        )
        sections = None
        if self.sums is not None:
            self._check_left(server_round)
            length = self.sum_length() + wire.STATISTICS
            self._running = self.sums.order(wire.UPDATE_SUM, length, _ENCODING)
            sections = self.sum_sections([self._running])
        return request_messages(
            request,
            self.active_nodes(),
            group_id=str(server_round),
            arrays=arrays,
            sections=sections,
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, move the model, return what is sent next and the round's metrics."""
        if self.sums is not None:
            return self._aggregate_masked(server_round, replies)
        reports: list[Report] = []
        failures: dict[int, Failure] = {}
        for message in replies:
            node = message.metadata.src_node_id
            try:
                reply = read_reply(
                    self.reply_class, message, party=self.party(node), **self.reply_sizes()
                )
                self.check_reply(reply, server_round)
            except ProtocolError as error:
                failures[node] = Failure("invalid reply", error.problem)
                self.reject(node, failures[node], server_round)
                continue
            self.accept(node)
            self._reports[self.parties_[node].partition] = reply
            reports.append(reply)
        self.require(len(reports), server_round, self.reply_class.phase, failures)
        return self.update(reports), self._enter_round(server_round, len(reports))

    # -- secure rounds

    def _plan_release(self, dimension: int) -> None:
        """Fix B and what is summed in a round; stop, or warn, where too much would be released.

        Raises
        ------
        RefusedError
            More numbers than unknowns, and a node would refuse.
        """
        given, self._released = self.samples_per_round, []
        self._batch = 1 if given == "auto" else given
        if self.sums is None:
            self.fit_release(math.inf)
            return
        binary = max(party.binary for party in self.parties_.values())
        row = counting.unknowns_of_row(dimension + 1, binary)
        cohort = self.sums.membership.cohorts[0]
        one = dict.fromkeys(cohort.members, 1)
        alive = counting.least_survivors(one, cohort.threshold)
        each = counting.hidden_rows(one, alive) * row
        if given == "auto":
            wanted = counting.least_samples(self.least_numbers() + wire.STATISTICS, each)
            self._batch = max(1, min(wanted, self._samples))
        unknowns = each * min(self._batch, self._samples)
        self.fit_release(unknowns - wire.STATISTICS)
        numbers = self.sum_length() + wire.STATISTICS
        self._released = [counting.released(wire.UPDATE_SUM, numbers, unknowns)]
        tests = sum(party.test_rows for party in self.parties_.values())
        if tests:
            self._released.append(counting.released(wire.EVALUATE_SUM, 2, tests * row))
        self.check_count(counting.too_many(numbers, unknowns))

    def secure_privacy(self, summed: str, *kept: str) -> dict[str, Any]:
        """Return what is seen in a secure run.

        Parameters
        ----------
        summed : str
            What the clients sum in a round.
        *kept : str
            What never leaves a client, besides rows and labels.
        """
        few = any(entry["numbers"] > entry["unknowns"] for entry in self._released)
        warning = " (more numbers than unknowns: the samples can be computed)"
        return {
            **self.sums_privacy(),
            "sums": list(self._released),
            "server_sees": [
                f"sums over the clients of a round: {summed}{warning if few else ''}",
                "which clients contributed to which sum",
                "number of rows, held-out rows and columns per client, digest of the column names",
                "the sum of the clients' squared errors on held-out rows, if there are any",
            ],
            "clients_see": ["the model", "which clients contributed to which sum"],
            "never_leaves_the_client": ["rows", "labels", "own gradients and errors", *kept],
        }

    def _check_left(self, number: int) -> None:
        """Stop when too many clients are left out for any sum to be opened."""
        assert self.sums is not None
        left, cohort = len(self.active_nodes()), self.sums.membership.cohorts[0]
        least = max(cohort.threshold, self.min_cohort)
        if left < least:
            raise self.broken(
                f"{left} of {len(cohort.members)} clients are left in round {number}, a secure "
                f"sum needs {least}",
                self.reply_class.phase,
            )

    def _open_round(
        self, grid: Grid, number: int, timeout: float, failures: Mapping[int, Failure]
    ) -> None:
        """Unmask the sum of a round; a sum that cannot be opened is a round lost."""
        assert self.sums is not None
        assert self._running is not None
        try:
            self.unmask(grid, [self._running], number=number, timeout=timeout)
            self._lost_rounds = 0
        except SumError as error:
            before = len(self.left_out_)
            self.blame(self._running, error, number)
            self.sums.close(self._running)
            self._running = None
            # whoever is to blame and has just been left out will not spoil the next round
            self._lost_rounds = self._lost_rounds + 1 if len(self.left_out_) == before else 0
            who = f"{error.party}: " if error.party else ""
            problem = f"{who}{error.problem}{count_failures(failures)}"
            logger.warning("round %d is lost: %s", number, problem)
            last = number >= self.rounds()
            if last and not self.sums.contributors:
                raise self.broken(
                    f"no round could be opened: {problem}", self.reply_class.phase
                ) from None
            if self._lost_rounds >= self.max_missed:
                lost = f"{self._lost_rounds} rounds in a row are lost: {problem}"
                raise self.broken(lost, self.reply_class.phase) from None

    def _skip_answered(self, first: int, rounds: int) -> int:
        """Return the round with which a resumed secure run goes on.

        Rounds that a client answered after the checkpoint are lost: repeated with other survivors,
        the difference of the two sums would be that of single clients.
        """
        answered = max(party.answered for party in self.parties_.values())
        for number in range(first, min(answered, rounds) + 1):
            logger.warning("round %d is lost: it was answered before the run broke off", number)
            self._enter_round(number, 0)
        if answered > rounds:
            logger.warning("the held-out rows are not evaluated again")
        return max(first, answered + 1)

    def _aggregate_masked(
        self, number: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        running, self._running = self._running, None
        proper = set(running.survivors) - set(running.silent) if running is not None else set()
        for message in replies:
            node = message.metadata.src_node_id
            try:
                if read_reply(wire.MaskedReply, message, party=self.party(node)).round != number:
                    raise ProtocolError("the reply belongs to another round")
                if self.parties_[node].partition in proper:
                    self.accept(node)
            except ProtocolError as error:
                self.reject(node, Failure("invalid reply", error.problem), number)
        if running is None:
            return None, self._enter_round(number, 0)
        total, answers = self._take_total(running)
        self._statistics += total[-wire.STATISTICS :]
        arrays = self.step(total[: -wire.STATISTICS], answers)
        return arrays, self._enter_round(number, answers)

    def _take_total(self, running: RunningSum) -> tuple[Floats, int]:
        assert self.sums is not None
        return self.sums.total(running), len(running.survivors)

    # -- pieces

    def _check_streams(self, samples: int) -> None:
        for party in self.parties_.values():
            if party.rows < samples:
                raise TableError(
                    f"its stream has {party.rows} rows, {samples} rounds need {samples}",
                    remedy=f"ask for at most {min(p.rows for p in self.parties_.values())} rounds",
                    party=f"partition {party.partition}",
                )

    def _enter_round(self, number: int, survivors: int) -> MetricRecord:
        """Append a round to the history."""
        samples, errors, clients, regrets = self._summary()
        metrics = {
            "round": self._samples if number >= self.rounds() else number * self.batch_size(),
            "mse": errors / samples if samples else None,
            "regret": regrets / clients if clients and self._has_regret else None,
            "survivors": survivors,
        }
        self.history_.append(metrics)
        return MetricRecord({k: v for k, v in metrics.items() if v is not None})

    @property
    def _has_regret(self) -> bool:
        return issubclass(self.reply_class, wire.KernelReport)

    def _summary(self) -> tuple[float, float, int, float]:
        """Return samples, squared errors, clients heard of, regrets; summed over the clients."""
        if self.sums is not None:
            samples, errors, regrets = self._statistics[:3].tolist()
            return samples, errors, self.sums.contributors, regrets
        reports = list(self._reports.values())
        samples = sum(report.total_samples for report in reports)
        errors = sum(report.total_squared_error for report in reports)
        regrets = float(np.sum([r.regret for r in reports if isinstance(r, wire.KernelReport)]))
        return samples, errors, len(reports), regrets

    def final_metrics(self) -> dict[str, Any]:
        """Return the metrics of the finished run, from the clients' last reports."""
        last = self.history_[-1] if self.history_ else {}
        if self.sums is not None:
            return {"mse": last.get("mse"), **self._secure_metrics(self.sums.contributors)}
        reports = sorted(self._reports.items())
        per_client = [r.total_squared_error / max(1, r.total_samples) for _, r in reports]
        kernel_reports = [r for _, r in reports if isinstance(r, wire.KernelReport)]
        regrets = [r.regret for r in kernel_reports]
        return {
            "mse": last.get("mse"),
            "mse_client_std": float(np.std(per_client)) if per_client else None,
            "regret_mean": float(np.mean(regrets)) if regrets else None,
            "regret_std": float(np.std(regrets)) if regrets else None,
            "largest_loss": max((r.largest_loss for r in kernel_reports), default=None),
        }

    def _secure_metrics(self, clients: int) -> dict[str, Any]:
        """Means and spreads over clients, none of which the server knows by itself."""
        if not clients:
            return {}
        _, _, regret, regret_square, mean, mean_square = (self._statistics / clients).tolist()
        spread = np.sqrt(max(0.0, wire.REGRET_SCALE * regret_square - regret * regret))
        return {
            "mse_client_std": float(np.sqrt(max(0.0, mean_square - mean * mean))),
            "regret_mean": regret if self._has_regret else None,
            "regret_std": float(spread) if self._has_regret else None,
            "largest_loss": None,
        }

    def _evaluate(
        self, grid: Grid, arrays: ArrayRecord, number: int, timeout: float, result: Result
    ) -> None:
        messages = list(self.configure_evaluate(number, arrays, ConfigRecord(), grid))
        if not messages:
            return
        outcome = self.run_phase(
            grid, messages, phase="online-evaluate", timeout=timeout, number=number, required=0
        )
        if self.sums is not None and self._running is not None:
            try:
                self.unmask(grid, [self._running], number=number, timeout=timeout)
            except SumError as error:
                logger.warning("the held-out rows are not evaluated: %s", error)
                self.sums.close(self._running)
                self._running = None
        metrics = self.aggregate_evaluate(number, self.in_order(outcome))
        if metrics is None:
            self.note_untold()
        else:
            result.evaluate_metrics_clientapp[number] = metrics
            self.metrics_.update(metrics)

    def evaluation_messages(self, request: PhaseMessage) -> list[Message]:
        """Address an evaluation to the clients that hold rows out; to all of a secure run."""
        nodes = [node for node in self.active_nodes() if self.parties_[node].test_rows]
        if self.sums is None or not nodes:
            return request_messages(request, nodes, group_id="evaluate", message_type="evaluate")
        self._running = self.sums.order(wire.EVALUATE_SUM, 2, _ENCODING)
        sections = self.sum_sections([self._running])
        return request_messages(
            request, self.active_nodes(), group_id="evaluate", sections=sections
        )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the mean squared error over all held-out rows."""
        if self.sums is not None:
            if self._running is None:
                return None
            total, _ = self._take_total(self._running)
            rows, error = total.tolist()
            return MetricRecord({"test_mse": error / rows}) if rows else None
        samples, error = 0, 0.0
        for message in replies:
            node = message.metadata.src_node_id
            try:
                reply = read_reply(self._evaluate_reply, message, party=self.party(node))
                if reply.samples not in (0, self.parties_[node].test_rows):
                    raise ProtocolError(f"it predicted {reply.samples} rows")
            except ProtocolError as broken:
                self.reject(node, Failure("invalid reply", broken.problem), server_round)
                continue
            samples, error = samples + reply.samples, error + reply.squared_error
        return MetricRecord({"test_mse": error / samples}) if samples else None

    _evaluate_reply: type[wire.EvaluateReply] = wire.EvaluateReply

    def _pack_metrics(self) -> dict[str, Any]:
        """Return what the metrics are made of, for a checkpoint."""
        if self.sums is not None:
            return {
                "statistics": self._statistics.tolist(),
                "sums": self.sums.progress(),
                "released": list(self._released),
                "batch": self._batch,
            }
        names = ("round", "total_samples", "total_squared_error", "regret", "largest_loss")
        reports = {
            str(partition): {n: getattr(report, n) for n in names if hasattr(report, n)}
            for partition, report in self._reports.items()
        }
        return {"reports": reports}

    def _take_up(self, arrays: Arrays, meta: dict[str, Any]) -> ArrayRecord:
        for partition, values in meta.get("reports", {}).items():
            kind = wire.KernelReport if "regret" in values else wire.StreamReport
            self._reports[int(partition)] = kind(**values)
        if self.sums is not None:
            if (meta["batch"], meta["released"]) != (self._batch, self._released):
                raise CheckpointError(
                    "other clients or rows are there than when the run broke off",
                    remedy="resume with all of them",
                )
            self._statistics = np.array(meta["statistics"])
            self.sums.go_on(meta["sums"])
        return self.load_server_state(arrays)

    def _state_from(self, record: ArrayRecord) -> Arrays:
        """Replace the first array of the server's state, the model, by the one given."""
        state = self.server_state()
        if not state:
            return state
        first = next(iter(state))
        given, expected = np.asarray(record.to_numpy_ndarrays()[0], np.float64), state[first]
        if given.size != expected.size:
            raise ProtocolError(
                f"initial_arrays has shape {given.shape} instead of {expected.shape}",
                remedy="pass the arrays of a run with the same options",
            )
        return {**state, first: given.reshape(expected.shape)}


def check_count(name: str, value: int | str | None, words: tuple[str, ...]) -> None:
    """Refuse an option that is neither a number of at least one nor one of the words.

    Raises
    ------
    OptionError
    """
    if isinstance(value, str):
        check_choice(name, value, words)
    elif value is not None:
        at_least(name, value, 1)

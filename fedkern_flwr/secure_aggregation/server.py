"""Secure aggregation for any Message API strategy that averages what apps return.

The strategy runs as ever, against a grid that hands it one reply in place of one per node: the
mean over the nodes, with their total weight. Everything else is the strategy's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, strategy
from flwr.serverapp.strategy import Result, Strategy

from ..errors import OptionError, ProtocolError, SumError
from ..exchange import CONFIG, REPLY, Outcome, read_reply, request_messages
from ..failure import Failure
from ..guard import counting
from ..ledger import Ledger
from ..secure_sum import RunningSum
from ..strategy import logger
from ..summing import SummingStrategy
from ..swift_grid import swift
from . import averages
from . import messages as wire
from .one_reply import OneReply

#: Strategies that look at single replies, or wrap one that does.
_SINGLE = (
    strategy.Bulyan,
    strategy.DifferentialPrivacyClientSideAdaptiveClipping,
    strategy.DifferentialPrivacyClientSideFixedClipping,
    strategy.DifferentialPrivacyServerSideAdaptiveClipping,
    strategy.DifferentialPrivacyServerSideFixedClipping,
    strategy.FedMedian,
    strategy.FedTrimmedAvg,
    strategy.FedXgbBagging,
    strategy.FedXgbCyclic,
    strategy.Krum,
    strategy.MultiKrum,
    strategy.QFedAvg,
)
_COUNTED = ("available", "train", "evaluate")


class SecureAggregation(Strategy):
    """Mixin: the server learns the mean over the nodes and their total weight, no single reply.

    ``class Secure(SecureAggregation, FedAvg): pass``. The nodes' apps have
    :func:`~fedkern_flwr.secure_aggregation.secure_aggregation_mod`. All nodes of the run are asked
    in every round: sums over changing sets show single nodes by their differences.

    Parameters
    ----------
    *args
        Of the strategy.
    bound : float (default: 1024)
        Largest absolute value of an array or a metric; that of the mod.
    threshold, min_cohort, max_missed, node_timeout
        See :class:`~fedkern_flwr.strategies.SummingStrategy`.
    **options
        Of the strategy.

    Attributes
    ----------
    ledger_ : Ledger
        Exchanges, bytes, seconds and failures of the last run.
    survivors_ : list of list of int
        Who is in the mean of each exchange of training; nobody in a round that is lost.

    Raises
    ------
    OptionError
        The strategy does not average, or an option cannot work.
    """

    def __init__(
        self,
        *args: Any,
        bound: float = averages.BOUND,
        threshold: int | None = None,
        min_cohort: int = 2,
        max_missed: int = 10,
        node_timeout: float = 60.0,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        if isinstance(self, _SINGLE):
            raise OptionError(
                f"{type(self).__name__} needs the replies of single nodes",
                remedy="use a strategy that averages, such as FedAvg, FedProx or FedAdam",
            )
        averages.check_bound(bound)
        self._averages = _Averages(
            bound=bound,
            weighted_by=str(getattr(self, "weighted_by_key", averages.WEIGHT)),
            min_clients=max(int(getattr(self, f"min_{what}_nodes", 1)) for what in _COUNTED),
            threshold=threshold,
            min_cohort=min_cohort,
            max_missed=max_missed,
            node_timeout=node_timeout,
        )

    @property
    def ledger_(self) -> Ledger:
        """Exchanges, bytes, seconds and failures of the last run."""
        return self._averages.ledger_

    @property
    def survivors_(self) -> list[list[int]]:
        """Who is in the mean of each exchange of training."""
        return self._averages.survivors_

    def privacy(self) -> dict[str, Any]:
        """Return what the server saw in the last run."""
        return self._averages.privacy()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the strategy; parameters and result are Flower's.

        Raises
        ------
        CohortError
            Nodes are missing at the start, or too few answered for ``max_missed`` rounds in a row.
        RefusedError
            A node's policy or options do not allow it.
        OptionError
            The strategy samples nodes.
        """
        grid = swift(grid)
        self._averages.open(grid, num_rounds)
        result = super().start(
            OneReply(grid, self._averages.parties_, self._averages.ask),
            initial_arrays,
            num_rounds,
            timeout,
            train_config,
            evaluate_config,
            evaluate_fn,
        )
        self._averages.close(grid, timeout)
        return result


class _Averages(SummingStrategy):
    """The exchanges of a run: each is a sum over the nodes.

    Parameters
    ----------
    bound, weighted_by
        See :class:`SecureAggregation`.
    **common
        Options of :class:`~fedkern_flwr.strategies.SummingStrategy`.
    """

    method, title = "secure-aggregation", "Secure aggregation"
    labels_of_row = 0

    def __init__(self, *, bound: float, weighted_by: str, **common: Any) -> None:
        super().__init__(**common)
        self.bound, self.weighted_by = bound, weighted_by

    def _reset(self) -> None:
        super()._reset()
        self.survivors_: list[list[int]] = []
        self._step, self._lost, self._rounds, self._layout = 0, 0, 0, ""

    def open(self, grid: Grid, rounds: int) -> None:
        """Gather the nodes and their keys."""
        self._reset()
        self._rounds = rounds
        self.gather(grid, secure=True)

    def close(self, grid: Grid, timeout: float) -> None:
        """Let the nodes erase what belongs to the run."""
        self.finish(grid, number=self._step + 1, timeout=timeout)

    def ask(self, grid: Grid, messages: list[Message], timeout: float) -> list[Message]:
        """Return one reply to the messages of a round: the mean; none if the round is lost.

        Raises
        ------
        OptionError
            Not all nodes are asked, or for something else than training and evaluation.
        CohortError
            Too few answered for so many rounds.
        """
        if not messages:
            return []
        training = self._check_messages(messages)
        first = messages[0].content
        most = max(p.rows if training else p.test_rows for p in self.parties_.values())
        if not training and not most:
            return []
        self._step += 1
        arrays = averages.sent_arrays(first) if training else ArrayRecord()
        length = averages.vector_length(arrays)
        if training and not self.survivors_:
            unknowns = self._unknowns(averages.TRAIN_SUM)
            self.check_count(counting.too_many(length * self._rounds, unknowns))
        assert self.sums is not None
        name = averages.sum_name(first, 0 if training else self._step)
        running = self.sums.order(name, length, averages.encoding(self.bound, most))
        request_class = wire.AverageRequest if training else wire.FiguresRequest
        request = request_class(
            session=self._session, round=self._step, weighted_by=self.weighted_by
        )
        self._layout = ""
        outcome = self.run_phase(
            grid,
            self._address(request, messages, running),
            phase=request.phase,
            timeout=timeout,
            number=self._step,
            required=0,
        )
        self._read(outcome, wire.AverageReply if training else wire.FiguresReply)
        found = self._mean(grid, running, arrays, timeout, training)
        if found is None:
            return []
        content = RecordDict({"metrics": found[1]})
        if training:
            content[next(iter(first.array_records), "arrays")] = found[0]
        return [Message(content, reply_to=messages[0])]

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees."""
        return {
            **self.sums_privacy(),
            "server_sees": [
                "the mean of arrays and metrics over the nodes of a round, and their total weight",
                "which nodes contributed to which mean, and the names of the metrics",
                "number of examples, held-out examples and numbers per example of each node",
            ],
            "never_leaves_the_client": ["examples", "own arrays, metrics and weight"],
        }

    def released_sums(self) -> list[dict[str, Any]]:
        """Return the numbers and unknowns of means of training, and of all evaluations together."""
        found = super().released_sums()
        judged = [entry for entry in found if entry["name"].startswith(averages.FIGURES_SUM)]
        rest = [entry for entry in found if entry not in judged]
        if judged:
            numbers = sum(entry["numbers"] for entry in judged)
            name, unknowns = averages.FIGURES_SUM.rstrip("/"), judged[0]["unknowns"]
            rest.append(counting.released(name, numbers, unknowns))
        return rest

    # -- pieces

    def _check_messages(self, messages: list[Message]) -> bool:
        """Tell whether the strategy asks for training; refuse what must not be summed.

        Raises
        ------
        OptionError
        """
        kind = messages[0].metadata.message_type.partition(".")[0]
        if kind not in ("train", "evaluate"):
            raise OptionError(f"nothing masks the answers to messages of type {kind[:20]!r}")
        asked = {message.metadata.dst_node_id for message in messages}
        if asked != self.parties_.keys():
            raise OptionError(
                f"{len(asked)} of {len(self.parties_)} nodes are asked: sums over changing sets "
                "show single nodes",
                remedy="leave fraction_train at 1, and fraction_evaluate at 1 or 0",
            )
        contents = {id(message.content): message.content for message in messages}
        one = len(contents) == 1  # as Flower's own strategies do
        if not one and len(set(map(averages.sum_name, contents.values()))) > 1:
            raise OptionError(
                "the strategy sends nodes different records, which do not sum",
                remedy="send all nodes the same",
            )
        return kind == "train"

    def _address(
        self, request: wire.AverageRequest, messages: list[Message], running: RunningSum
    ) -> list[Message]:
        """Return the messages of the strategy with our request beside the app's records."""
        asked = {message.metadata.dst_node_id: message for message in messages}
        sections = self.sum_sections([running])
        out = []
        for message in request_messages(
            request, sections, group_id=str(request.round), sections=sections
        ):
            own = asked[message.metadata.dst_node_id]
            content = RecordDict({CONFIG: message.content[CONFIG], **own.content})
            out.append(
                Message(
                    content,
                    dst_node_id=own.metadata.dst_node_id,
                    message_type=own.metadata.message_type,
                    group_id=message.metadata.group_id,
                )
            )
        return out

    def _read(self, outcome: Outcome, reply: type[wire.AverageReply]) -> None:
        for message in self.in_order(outcome):
            node = message.metadata.src_node_id
            try:
                if read_reply(reply, message, party=self.party(node)).round != self._step:
                    raise ProtocolError("the reply belongs to another round")
            except ProtocolError as error:
                self.reject(node, Failure("invalid reply", error.problem), self._step)
                continue
            self.accept(node)

    def _mean(
        self,
        grid: Grid,
        running: RunningSum,
        arrays: ArrayRecord,
        timeout: float,
        training: bool,
    ) -> tuple[ArrayRecord, MetricRecord] | None:
        """Open a sum; return the means, nothing if it cannot be opened or is of nothing."""
        assert self.sums is not None
        total = None
        try:
            self.unmask(grid, [running], number=self._step, timeout=timeout)
            survivors = sorted(running.survivors)
            total = self.sums.total(running)
        except SumError as error:
            self.blame(running, error, self._step)
            self.sums.close(running)
            logger.warning("exchange %d is lost: %s", self._step, error)
            self._count_lost(str(error), training)
        if training:
            self.survivors_.append([] if total is None else survivors)
        if total is None:
            return None
        self._lost = 0
        if total[0] <= 0.0:
            if training:
                logger.warning("exchange %d is lost: its total weight is 0", self._step)
            else:
                self.note_untold()
            return None
        return averages.unpack(total, arrays, self._layout, self.weighted_by)

    def _count_lost(self, problem: str, training: bool) -> None:
        self._lost += training
        if self._lost >= self.max_missed:
            lost = f"{self._lost} rounds in a row are lost: {problem}"
            raise self.broken(lost, wire.AverageRequest.phase) from None

    def on_reply(self) -> Callable[[int, Message], None] | None:
        """Take the sections out of replies whose metrics are those of the others."""
        take = super().on_reply()

        def seen(node: int, message: Message) -> None:
            layout = message.content.get(REPLY, ConfigRecord()).get("layout")
            if isinstance(layout, str) and layout:
                if not self._layout:
                    averages.read_layout(layout)
                    self._layout = layout
                if layout != self._layout:
                    logger.warning("%s returns other metrics than the others", self.party(node))
                    raise ProtocolError("its metrics have other names than those of the others")
            if take is not None:
                take(node, message)

        return seen

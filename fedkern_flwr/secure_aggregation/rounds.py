"""Run the rounds of secure aggregation: each sums over the nodes, and reports the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from ..errors import OptionError, ProtocolError, SumError
from ..exchange import SumSpec
from ..failure import Failure
from ..guard import counting
from ..nodes import Nodes, logger
from ..privacy import Release
from ..secure_sum import RunningSum, SecureSum
from ..transport import CONFIG, REPLY, Outcome, read_reply, request_messages
from . import averages
from .clipping import NoisyMeans


@dataclass
class Averages:
    """Run the exchanges of a run, each a sum over the nodes.

    Attributes
    ----------
    nodes : Nodes
        Nodes of the current run.
    survivors_ : list of list of int
        Nodes in the mean of each training exchange.
    """

    bound: float
    weighted_by: str
    noisy: NoisyMeans | None
    threshold: int | None
    common: dict[str, Any]

    def __post_init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.nodes = Nodes("secure-aggregation", **self.common)
        self.nodes.listener = self._check_layout
        self.survivors_: list[list[int]] = []
        self._step, self._lost, self._rounds, self._layout = 0, 0, 0, ""

    def open(self, grid: Grid, rounds: int, initial: ArrayRecord) -> None:
        """Collect the nodes and their keys; compute the cost of ``rounds`` rounds."""
        self._reset()
        self._rounds = rounds
        numbers = averages.vector_length(initial) - 1 - averages.SLOTS
        privacy = ""
        if self.noisy is not None:
            self.noisy.open(numbers, rounds)
            privacy = self.noisy.budget.write()
        self.nodes.gather(grid, secure=True, privacy=privacy)
        self.nodes.begin_sums(thresholds=[self.threshold])
        self._release(numbers)  # refuses what nobody need begin with

    def close(self, grid: Grid, timeout: float) -> None:
        """Let the nodes erase the run."""
        self.nodes.finish(grid, number=self._step + 1, timeout=timeout)

    def ask(self, grid: Grid, messages: list[Message], timeout: float) -> list[Message]:
        """Return the mean as one reply to the messages of a round; none if the round is lost.

        Raises
        ------
        OptionError
            Not all nodes get a message, or it requests neither training nor evaluation.
        CohortError
            Too few nodes answered for too many rounds.
        """
        if not messages:
            return []
        training = self._check_messages(messages)
        if self.noisy is not None and not training:
            raise no_figures()
        first = messages[0].content
        most = max(p.rows if training else p.test_rows for p in self.nodes.parties.values())
        if not training and not most:
            return []
        self._step += 1
        arrays = averages.sent_arrays(first) if training else ArrayRecord()
        length = averages.vector_length(arrays)
        code = averages.encoding(self.bound, most)
        release = self._release(length - 1 - averages.SLOTS)
        if self.noisy is not None and release is not None:
            length -= 1 + averages.SLOTS
            code = self.noisy.clip.encoding(release, len(self.nodes.parties))
        elif training and not self.survivors_:
            unknowns = self._unknowns(averages.TRAIN_SUM)
            problem = counting.too_many(length * self._rounds, unknowns)
            if problem:
                problem += "; only a budget of privacy protects single rows"
            self.nodes.check_count(problem)
        name = averages.sum_name(first, 0 if training else self._step)
        running = self._sums.order(
            SumSpec(name=name, encoding=code, length=length, self_masks=True)
        )
        request_class = averages.AverageRequest if training else averages.FiguresRequest
        request = request_class(
            session=self.nodes.session, round=self._step, weighted_by=self.weighted_by
        )
        self._layout = ""
        outcome = self.nodes.ask(
            grid,
            self._address(request, messages, running),
            phase=request.phase,
            timeout=timeout,
            number=self._step,
            required=0,
        )
        self._read(outcome, averages.AverageReply if training else averages.FiguresReply)
        found = self._mean(grid, running, arrays, timeout, training, release)
        if found is None:
            return []
        content = RecordDict({"metrics": found[1]})
        if training:
            content[next(iter(first.array_records), "arrays")] = found[0]
        return [Message(content, reply_to=messages[0])]

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees, and what it cost."""
        sees = "the mean of arrays and metrics over the nodes of a round, and their total weight"
        if self.noisy is not None:
            sees = "the mean of clipped updates over the nodes of a round, with noise"
        return {
            **self.nodes.privacy(),
            "sums": self._released(),
            **({} if self.noisy is None else {"budget": self.noisy.report()}),
            "server_sees": [
                sees,
                "which nodes contributed to which mean, and the names of the metrics",
                "number of examples, held-out examples and numbers per example of each node",
            ],
            "never_leaves_the_client": ["examples", "own arrays, metrics and weight"],
        }

    def _unknowns(self, name: str, cohort: int = 0) -> float:
        return self.nodes.unknowns(name, cohort, labels=0)

    def _released(self) -> list[dict[str, Any]]:
        found = self.nodes.released(self._unknowns)
        judged = [entry for entry in found if entry["name"].startswith(averages.FIGURES_SUM)]
        rest = [entry for entry in found if entry not in judged]
        if judged:
            numbers = sum(entry["numbers"] for entry in judged)
            name, unknowns = averages.FIGURES_SUM.rstrip("/"), judged[0]["unknowns"]
            rest.append(counting.released(name, numbers, unknowns))
        return rest

    # -- pieces

    def _release(self, numbers: int) -> Release | None:
        if self.noisy is None:
            return None
        return self.noisy.release(numbers, self._sums.membership.cohorts[0])

    def _check_messages(self, messages: list[Message]) -> bool:
        """Return whether the strategy requests training; refuse what must not be summed."""
        kind = messages[0].metadata.message_type.partition(".")[0]
        if kind not in ("train", "evaluate"):
            raise OptionError(
                f"nothing masks the answers to messages of type {kind[:20]!r}",
                code="FK-STRATEGY-UNMASKED",
            )
        asked = {message.metadata.dst_node_id for message in messages}
        if asked != self.nodes.parties.keys():
            raise OptionError(
                f"{len(asked)} of {len(self.nodes.parties)} nodes are asked: sums over changing "
                "sets show single nodes",
                remedy="leave fraction_train at 1, and fraction_evaluate at 1 or 0",
                code="FK-STRATEGY-SAMPLES",
            )
        contents = {id(message.content): message.content for message in messages}
        one = len(contents) == 1  # as Flower's own strategies do
        if not one and len(set(map(averages.sum_name, contents.values()))) > 1:
            raise OptionError(
                "the strategy sends nodes different records, which do not sum",
                remedy="send all nodes the same",
                code="FK-STRATEGY-RECORDS",
            )
        return kind == "train"

    def _address(
        self, request: averages.AverageRequest, messages: list[Message], running: RunningSum
    ) -> list[Message]:
        asked = {message.metadata.dst_node_id: message for message in messages}
        sections = self.nodes.sections([running])
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

    def _read(self, outcome: Outcome, reply: type[averages.AverageReply]) -> None:
        for message in self.nodes.in_order(outcome):
            node = message.metadata.src_node_id
            try:
                read_reply(reply, message, party=self.nodes.name(node), of=self._step)
            except ProtocolError as error:
                self.nodes.reject(node, Failure.invalid(error), self._step)
                continue
            self.nodes.accept(node)

    def _mean(
        self,
        grid: Grid,
        running: RunningSum,
        arrays: ArrayRecord,
        timeout: float,
        training: bool,
        release: Release | None,
    ) -> tuple[ArrayRecord, MetricRecord] | None:
        total = None
        try:
            self.nodes.unmask(grid, [running], number=self._step, timeout=timeout)
            survivors = sorted(running.survivors)
            total = self._sums.total(running)
        except SumError as error:
            self.nodes.blame(running, error, self._step)
            self._sums.close(running)
            logger.warning("exchange %d is lost: %s", self._step, error)
            where = f"{error.party}: " if error.party else ""
            self._count_lost(where + error.problem, training)
        if training:
            self.survivors_.append([] if total is None else survivors)
        if total is None:
            return None
        self._lost = 0
        if self.noisy is not None and release is not None:
            means, told = self.noisy.mean(arrays, total, release, len(survivors))
            return means, MetricRecord({self.weighted_by: float(len(survivors)), **told})
        if total[0] <= 0.0:
            if training:
                logger.warning("exchange %d is lost: its total weight is 0", self._step)
            else:
                self.nodes.note_untold()
            return None
        return averages.unpack(total, arrays, self._layout, self.weighted_by)

    def _count_lost(self, problem: str, training: bool) -> None:
        self._lost += training
        if self._lost >= self.nodes.max_missed:
            lost = f"{self._lost} rounds in a row are lost: {problem}"
            raise self.nodes.broken(lost, averages.AverageRequest.phase) from None

    def _check_layout(self, node: int, message: Message) -> None:
        layout = message.content.get(REPLY, ConfigRecord()).get("layout")
        if not isinstance(layout, str) or not layout:
            return
        if not self._layout:
            averages.read_layout(layout)
            self._layout = layout
        if layout != self._layout:
            logger.warning("%s returns other metrics than the others", self.nodes.name(node))
            raise ProtocolError(
                "its metrics have other names than those of the others",
                code="FK-APP-METRICS-DIFFER",
            )

    @property
    def _sums(self) -> SecureSum:
        assert self.nodes.sums is not None
        return self.nodes.sums


def no_figures() -> OptionError:
    return OptionError(
        "figures of held-out examples would be told without noise",
        remedy="with clip and noise_multiplier use fraction_evaluate=0, and evaluate_fn at the "
        "server",
        code="FK-BUDGET-FIGURES",
    )

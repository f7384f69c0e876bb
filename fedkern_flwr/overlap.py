"""Send messages while others are under way, for methods with parties that do not wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from .errors import ProtocolError
from .failure import Failure
from .nodes import Nodes
from .secure_sum import RunningSum
from .steps import Answers
from .transport import Courier, Outcome, pause, read_reply, request_messages
from .wire.message import array_record

_FIRST, _SIMULATED = 0.002, 0.01  # seconds between two looks in a simulation


class Overlap:
    """Manage overlapping messages of a run.

    Uploads to sums are removed from the replies as they arrive. The method decides about
    repetitions and time-outs. A party has one message at a time. ``check`` refuses a reply that is
    well-formed but wrong.
    """

    def __init__(
        self,
        nodes: Nodes,
        grid: Grid,
        timeout: float,
        check: Callable[[int, Any], None],
    ) -> None:
        self.nodes, self.grid, self.timeout, self.check = nodes, grid, timeout, check
        self._courier = Courier(grid, nodes.ledger, nodes.on_reply, nodes.watch)
        self._outcome, self._asked = Outcome(), dict[int, tuple[type[Any], int]]()
        self._node, self._simulated = nodes.node_of(), nodes.watch is None
        self._sent, self._pause = time.monotonic(), _FIRST
        self._phase = ""

    @property
    def deadline(self) -> float:
        """When a message sent now times out."""
        return time.monotonic() + self.timeout

    def waiting(self, partitions: Iterable[int]) -> list[int]:
        """Return the parties among these that owe a reply."""
        there = {self.nodes.parties[node].partition for node in self._courier.waiting}
        return [p for p in partitions if p in there]

    def send(
        self,
        requests: Mapping[int, Any],
        replies: Mapping[int, type[Any]],
        sums: Sequence[RunningSum],
        deliveries: Mapping[int, RunningSum],
        *,
        number: int,
    ) -> None:
        """Send requests to partitions, as one exchange; shared arrays are packed once.

        ``replies`` has the class of each reply. The parties contribute to ``sums``; ``deliveries``
        maps partitions to sums that they receive.
        """
        messages, packed = list[Message](), dict[Any, ArrayRecord]()
        sums_of = self.nodes.sums
        assert sums_of is not None
        for partition, request in requests.items():
            arrays, node = request.arrays(), self._node[partition]
            key = tuple(map(id, arrays))
            if key not in packed:
                packed[key] = array_record(arrays)
            own = [deliveries[partition].delivery()] if partition in deliveries else []
            if request.session != self.nodes.session:
                request = replace(request, session=self.nodes.session)
            messages += request_messages(
                request,
                [node],
                group_id=str(number),
                arrays=packed[key],
                sections={node: [*own, *sums_of.sections(partition, sums)]},
            )
            self._asked[node] = replies[partition], request.round
        self._phase = next(iter(requests.values())).phase
        self._outcome.failures.update(self._courier.send(messages, phase=self._phase))
        self._sent, self._pause = time.monotonic(), _FIRST

    def arrived(self, number: int) -> Answers:
        """Read what has arrived, or wait briefly; return proper replies and failures.

        Raises
        ------
        ProtocolError
            A retry is useless.
        """
        began, nodes = time.monotonic(), self.nodes
        if self._courier.collect(self._outcome) or not self._courier.waiting:
            self._pause = _FIRST
        elif self._simulated:
            time.sleep(self._pause)
            self._pause = min(1.5 * self._pause, _SIMULATED)
        else:
            time.sleep(pause(began - self._sent))
        nodes.ledger.seconds += time.monotonic() - began
        outcome, self._outcome = self._outcome, Outcome()
        if nodes.watch is not None and self._courier.waiting:
            # They overlap: no line says that one is over.
            about = self._phase, began - self._sent, outcome
            nodes.watch.waits(*about, self._courier.waiting, self._courier.away)
        found, failed = dict[int, Any](), dict(outcome.failures)
        for node, message in outcome.replies.items():
            (kind, asked), partition = self._asked[node], self.nodes.parties[node].partition
            try:
                reply = read_reply(kind, message, party=nodes.name(node), of=asked)
                self.check(partition, reply)
            except ProtocolError as error:
                failed[node] = Failure.invalid(error)
                continue
            nodes.accept(node)
            found[partition] = reply
        for node, failure in failed.items():
            nodes.reject(node, failure, number)
            failure.raise_final(self._asked[node][0].phase, nodes.name(node))
        of = nodes.parties
        return Answers(found, failures={of[n].partition: why for n, why in failed.items()})

    def give_up(self, partitions: Iterable[int], number: int) -> dict[int, Failure]:
        """Time out parties that have not answered; return these failures."""
        late = self.waiting(partitions)
        failed = dict.fromkeys(late, Failure("timed out", f"after {self.timeout:g} s"))
        for partition, failure in failed.items():
            self.nodes.reject(self._node[partition], failure, number)
        self.forget(late)
        return failed

    def forget(self, partitions: Iterable[int]) -> None:
        self._courier.forget(self._node[p] for p in partitions)

    def unmask(self, running: RunningSum, number: int) -> None:
        self.nodes.unmask(self.grid, [running], number=number, timeout=self.timeout)

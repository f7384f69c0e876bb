"""Messages that are under way while others are asked, for methods whose parties do not wait."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from .driven import Driven
from .errors import ProtocolError
from .exchange import Courier, Outcome, read_reply, request_messages
from .failure import Failure
from .flower_compat import is_simulated
from .secure_sum import RunningSum
from .wire import sums as sum_wire
from .wire.numpy_format import array_record

_FIRST, _LAST, _SIMULATED = 0.002, 0.5, 0.01  # seconds between two looks


class Overlap:
    """Messages under way, of a run whose driver asks others meanwhile.

    The uploads to sums are taken out of the replies as they arrive; what is repeated, and when a
    party has taken too long, is the method's to say.

    Parameters
    ----------
    method : Driven
        Whose run it is.
    grid : Grid
        Flower's grid.
    timeout : float
        Seconds that parties have.
    """

    def __init__(self, method: Driven, grid: Grid, timeout: float) -> None:
        self.method, self.grid, self.timeout = method, grid, timeout
        self._courier = Courier(grid, method.ledger_, method.on_reply())
        self._outcome, self._kinds = Outcome(), dict[int, Any]()
        self._node = {party.partition: node for node, party in method.parties_.items()}
        self._pause, self._longest = _FIRST, _SIMULATED if is_simulated(grid) else _LAST

    @property
    def deadline(self) -> float:
        """When the time of what is sent now is over."""
        return time.monotonic() + self.timeout

    def waiting(self, partitions: Iterable[int]) -> list[int]:
        """Return those of the parties whose replies are waited for."""
        there = {self.method.parties_[node].partition for node in self._courier.waiting}
        return [p for p in partitions if p in there]

    def send(
        self,
        requests: Mapping[int, Any],
        sums: Sequence[RunningSum] = (),
        *,
        reply: type[Any],
        number: int,
        unmask: Sequence[RunningSum] = (),
    ) -> None:
        """Send requests, and what unmasks sums along with them: one exchange.

        Arrays that requests share are packed once.
        """
        method, messages, packed = self.method, list[Message](), dict[Any, ArrayRecord]()
        assert method.sums is not None
        for partition, request in requests.items():
            arrays, node = request.arrays(), self._node[partition]
            key = tuple(map(id, arrays))
            if key not in packed:
                packed[key] = array_record(arrays)
            messages += request_messages(
                replace(request, session=method.session),
                [node],
                group_id=str(number),
                arrays=packed[key],
                sections={node: method.sums.sections(partition, sums)},
            )
            self._kinds[node] = reply
        phase = reply.phase if requests else "unmask"
        if unmask:
            more = method.unmask_messages(self.grid, unmask, number=number, timeout=self.timeout)
            self._kinds |= {m.metadata.dst_node_id: sum_wire.SumReply for m in more}
            messages += more
        self._outcome.failures.update(self._courier.send(messages, phase=phase))
        self._pause = _FIRST

    def arrived(self, number: int) -> dict[int, Failure]:
        """Take what has arrived, or wait a little; return why parties did not answer properly.

        Raises
        ------
        ProtocolError
            Another attempt would be no use.
        """
        began, method = time.monotonic(), self.method
        if self._courier.collect(self._outcome) or not self._courier.waiting:
            self._pause = _FIRST
        else:
            time.sleep(self._pause)
            self._pause = min(1.5 * self._pause, self._longest)
        method.ledger_.seconds += time.monotonic() - began
        outcome, self._outcome = self._outcome, Outcome()
        failed = dict(outcome.failures)
        for node, message in outcome.replies.items():
            try:
                read_reply(self._kinds[node], message, party=method.party(node))
                method.accept(node)
            except ProtocolError as error:
                failed[node] = Failure("invalid reply", error.problem)
        for node, failure in failed.items():
            method.reject(node, failure, number)
            failure.raise_final(self._kinds[node].phase)
        return {method.parties_[node].partition: failure for node, failure in failed.items()}

    def give_up(self, partitions: Iterable[int], number: int) -> dict[int, Failure]:
        """Wait no longer for those that have not answered; return that as failures."""
        late = self.waiting(partitions)
        failed = dict.fromkeys(late, Failure("timed out", f"after {self.timeout:g} s"))
        for partition, failure in failed.items():
            self.method.reject(self._node[partition], failure, number)
        self.forget(late)
        return failed

    def forget(self, partitions: Iterable[int]) -> None:
        """Wait no longer for some: what they send is ignored."""
        self._courier.forget(self._node[p] for p in partitions)

    def open(self, running: RunningSum, number: int) -> None:
        """Open a sum that has been unmasked.

        Raises
        ------
        SumError
            It cannot be opened. Nothing is released.
        """
        self.method.open_sums(self.grid, [running], number=number, timeout=self.timeout)

    def unmask(self, running: RunningSum, number: int) -> None:
        """Unmask and open a sum that enough have contributed to, and wait for it.

        Raises
        ------
        SumError
            It cannot be opened. Nothing is released.
        """
        self.method.unmask(self.grid, [running], number=number, timeout=self.timeout)

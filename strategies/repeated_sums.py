"""Strategies whose secure sums are repeated, with new masks, when too few nodes answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError, SumError
from fedkern_flwr.exchange import Failure, read_reply, request_messages
from fedkern_flwr.gram_plan import bind
from fedkern_flwr.secure_sum import Encoding, RunningSum
from fedkern_flwr.strategy import at_least, logger
from fedkern_flwr.summing import SummingStrategy
from fedkern_flwr.wire import PhaseMessage

#: (cohort, who is asked) -> requests, each for some of them.
Ask = Callable[[int, set[int]], Iterable[tuple[PhaseMessage, set[int]]]]
#: Errors of clients after which another attempt is no use.
_FINAL = (
    "ProtocolError:",
    "RefusedError:",
    "OptionError:",
    "TableError:",
)


class RepeatedSumsStrategy(SummingStrategy):
    """Base class of strategies that repeat a sum until enough nodes have contributed.

    Parameters
    ----------
    attempts : int (default: 5)
        An exchange that too few nodes answered is repeated so often in all.
    **common
        Options of :class:`~fedkern_flwr.summing.SummingStrategy`.

    Attributes
    ----------
    step : int
        Number of the exchange at hand.
    spent : set of int
        Partitions that have opened what a resumed run would sum again: they are not asked.
    """

    def __init__(self, *, attempts: int = 5, **common: Any) -> None:
        at_least("attempts", attempts, 1)
        self.attempts = attempts
        super().__init__(**common)

    def _reset(self) -> None:
        super()._reset()
        self.step = 0
        self.spent: set[int] = set()
        self._replies = [0, 1]  # that came, that are expected

    def total(self, running: RunningSum) -> NDArray[Any]:
        """Return an opened sum and close it."""
        assert self.sums is not None
        return self.sums.total(running)

    def expect(self, replies: int) -> None:
        """Set how many replies the progress of the run is measured by."""
        self._replies = [0, max(1, replies)]

    def sum_over(
        self,
        grid: Grid,
        name: str,
        length: int,
        encodings: Mapping[int, Encoding],
        ask: Ask,
        reply: type[Any],
        timeout: float,
        problem: Callable[[int, RunningSum], str] = lambda cohort, running: "",
        self_masks: bool = True,
        bound_to_request: bool = True,
    ) -> dict[int, RunningSum]:
        """Sum vectors over cohorts in one exchange and open the sums.

        What too few answered is repeated with new masks. Nothing of the first attempt has been
        opened then, nor will it be.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        name : str
            Name of the sums.
        length : int
            Numbers per node.
        encodings : mapping
            Cohort -> encoding.
        ask : callable
            (cohort, who is asked) -> requests, each for some of them.
        reply : type
            Class of the replies.
        timeout : float
            Seconds to wait for the replies of one exchange.
        problem : callable
            (cohort, sum) -> what is wrong with those who contributed.
        self_masks : bool (default: True)
            Without them all must contribute.
        bound_to_request : bool (default: True)
            Whether all must have been asked the same, see :func:`fedkern_flwr.gram_plan.bind`.

        Raises
        ------
        CohortError
            Too few answered every time.
        """
        assert self.sums is not None
        done: dict[int, RunningSum] = {}
        lacking, found = list(encodings), ""
        for attempt in range(self.attempts):
            self.step += 1
            running, messages = {}, []
            for cohort in lacking:
                members = set(self.sums.membership.cohorts[cohort].members)
                there = members - self.spent - set(self.left_out_)
                requests = list(ask(cohort, there))
                bound = bind(name, requests[0][0]) if bound_to_request else name
                one = self.sums.order(
                    bound, length, encodings[cohort], cohort=cohort, self_masks=self_masks
                )
                running[cohort] = one
                for request, who in requests:
                    messages += self._address(request, who, one)
            self.ask_nodes(grid, messages, reply, timeout)
            for cohort, one in running.items():
                found = self._refused(one) or problem(cohort, one)
                if found:
                    self.sums.close(one)
                    logger.warning("%s: %s (attempt %d)", name, found, attempt + 1)
                else:
                    done[cohort] = one
                    lacking.remove(cohort)
            if not lacking:
                break
        if lacking:
            raise self.broken(f"{found}, {self.attempts} times in a row", reply.phase)
        self.step += 1
        self.unmask(grid, list(done.values()), number=self.step, timeout=timeout)
        return done

    def _refused(self, running: RunningSum) -> str:
        try:
            running.check_survivors(self.min_cohort)
        except SumError as error:
            return f"{error.party}: {error.problem}" if error.party else error.problem
        return ""

    def _address(
        self, request: PhaseMessage, who: Iterable[int], running: RunningSum
    ) -> list[Message]:
        """Return a request to some nodes to contribute to a sum."""
        assert self.sums is not None
        node_of = {party.partition: node for node, party in self.parties_.items()}
        sections = {node_of[p]: self.sums.sections(p, [running]) for p in sorted(who)}
        return request_messages(request, sections, group_id=str(self.step), sections=sections)

    def ask_nodes(
        self, grid: Grid, messages: Sequence[Message], reply: type[Any], timeout: float
    ) -> dict[int, Any]:
        """Exchange messages; return the proper replies by partition."""
        outcome = self.run_phase(
            grid, messages, phase=reply.phase, timeout=timeout, number=self.step, required=0
        )
        found = {}
        for failure in outcome.failures.values():
            if failure.detail.startswith(_FINAL):  # the same at every attempt
                raise ProtocolError(failure.detail.partition(": ")[2], phase=reply.phase)
        for message in self.in_order(outcome):
            node = message.metadata.src_node_id
            try:
                answer = read_reply(reply, message, party=self.party(node))
                if answer.round != self.step:
                    raise ProtocolError(f"the reply belongs to step {answer.round}")
            except ProtocolError as error:
                self.reject(node, Failure("invalid reply", error.problem), self.step)
                continue
            self.accept(node)
            found[self.parties_[node].partition] = answer
        return found

    def on_reply(self) -> Callable[[int, Message], None] | None:
        """Take the sections of secure sums out of replies as they arrive, and show progress."""
        take = super().on_reply()

        def seen(node: int, message: Message) -> None:
            if take is not None:
                take(node, message)
            self._replies[0] += 1
            if self.on_round is not None:
                self._replies[1] = max(self._replies)
                self.on_round(self._replies[0], self._replies[1], {})

        return seen

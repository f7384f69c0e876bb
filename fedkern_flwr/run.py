"""The driver of a method's generator: sums, questions, deliveries, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from .asking import Asking
from .driven import Driven
from .errors import CohortError, ProtocolError, SumError
from .overlap import Overlap
from .privacy import Release
from .run_log import RunLog
from .secure_sum import Encoding
from .steps import (
    Ask,
    Deliver,
    LostState,
    Overlapping,
    Round,
    Rounds,
    Save,
    Step,
    Sum,
    Term,
    sum_bound,
    sum_name,
    sum_release,
)
from .wire.method import MethodReply, MethodRequest, pack, unpack


class Run:
    """One run of a method.

    Parameters
    ----------
    method : Driven
        Whose generator it is; its parties are there.
    grid : Grid
        Flower's grid.
    timeout : float
        Seconds to wait for the replies of an exchange.
    log : RunLog
        What is written down of it.
    tell : callable
        Called with each :class:`~fedkern_flwr.steps.Round`.
    """

    def __init__(
        self,
        method: Driven,
        grid: Grid,
        timeout: float,
        log: RunLog,
        tell: Callable[[Round], None],
    ) -> None:
        self.method, self.log, self.tell = method, log, tell
        self.asking = Asking(method, grid, timeout, log)
        self._counts_exchanges = True  # whether the progress is that of exchanges

    def drive(self, rounds: Rounds) -> dict[str, Any]:
        """Do what the generator yields until it returns; return its metrics."""
        value: Any = None
        lost: CohortError | SumError | None = None
        while True:
            try:
                step = rounds.send(value) if lost is None else rounds.throw(lost)
            except StopIteration as end:
                return dict(end.value or {})
            value = lost = None
            try:
                value = self._take(step)
            except (CohortError, SumError) as error:
                lost = error
                if isinstance(error, LostState):
                    self._withdraw()
            else:
                self._show(step)

    def _withdraw(self) -> None:
        """Close what is on its way to clients, but for what is to be kept."""
        deliveries = self.asking.deliveries
        for receiver, waiting in deliveries.items():
            self.asking.close(one.sum for one in waiting if not one.keep)
            deliveries[receiver] = [one for one in waiting if one.keep]

    def _show(self, step: Step) -> None:
        """Call ``on_round`` with each round, or with each exchange of methods that tell of none."""
        method, show = self.method, self.method.on_round
        if method.counts_replies:
            return
        if isinstance(step, Round):
            self._counts_exchanges = False
            row = method.history_[-1] if step.metrics else {}
            if show is not None and step.number and (row or step.arrays is None):
                show(step.number, max(method.planned, step.number), row)
        elif isinstance(step, (Sum, Ask)) and self._counts_exchanges and show is not None:
            number = self.log.number
            show(number, max(method.planned, number), {})

    def _take(self, step: Step) -> Any:
        if not isinstance(step, Step):
            raise ProtocolError(
                f"rounds() yielded {type(step).__name__}, which is no step",
                remedy="yield Sum, Ask, Deliver, Save or Round",
                code="FK-METHOD-STEP",
            )
        if isinstance(step, Save):
            return self.log.save(step, self.asking.outcome)
        if isinstance(step, Round):
            self.tell(step)
            return None if step.save is None else self._take(step.save)
        if isinstance(step, Deliver):
            self.asking.deliveries.setdefault(step.receiver, []).append(step)
            return None
        if isinstance(step, Overlapping):
            return Overlap(self.method, self.asking.grid, self.asking.timeout)
        if self.log.replay:
            known = self.log.known(step.name if isinstance(step, Sum) else step.what)
            return step.split(known["total"]) if isinstance(step, Sum) else _by_party(known)
        if isinstance(step, Sum):
            total = self._sum(step)
            self.log.note(step.name, {"total": total})
            return step.split(total)
        if not isinstance(step.what, str):
            self.log.lose()
            return self.asking.ask(step)
        found = self._ask_by_name(step.what, step)
        flat = {f"{p}/{key}": value for p, reply in found.items() for key, value in reply.items()}
        self.log.note(step.what, flat)
        return found

    def _sum(self, step: Sum) -> NDArray[np.float64]:
        request = self._request(step.name, step.ask, step.sizes)
        most = [p.test_rows if step.held_out else p.rows for p in self.method.parties_.values()]
        bound = sum_bound(step.bound, most if step.per == "row" else [1])
        length = sum(step.sizes.values())
        term = Term(
            name=sum_name(step.name, held_out=step.held_out),
            length=length,
            encoding=Encoding.fixed_point(bound),
        )
        release = self._release(step, term.name, length)
        if release is not None:
            term = replace(term, encoding=term.encoding.noisy(release.noise))
        among = self.log.again or None
        asked = Ask(request, reply=MethodReply, sums=[term], until="enough", among=among)
        found = self.asking.ask(asked)
        self.log.again = []
        if release is None:
            self.method.warn_released(term.name)
        else:
            self.method.note_noise(release, len(found.contributors[term.name]))
        return np.asarray(found.totals[term.name], np.float64)

    def _release(self, step: Sum, name: str, length: int) -> Release | None:
        """Return the noise of a sum; None in a run without a budget."""
        method = self.method
        if method.budget is None:
            return None
        assert method.sums is not None
        cohort = method.sums.membership.cohorts[0]
        parties = {p.partition: p for p in method.parties_.values()}
        rows = [parties[p].test_rows if step.held_out else parties[p].rows for p in cohort.members]
        return sum_release(
            method.budget,
            name,
            step.sensitivity,
            length=length,
            rows=rows,
            least=cohort.threshold,
            releases=method.releases,
        )

    def _ask_by_name(self, name: str, step: Ask) -> dict[int, dict[str, Any]]:
        given: Mapping[Any, Any] = step.ask
        among = self.asking.partitions() if step.among is None else list(step.among)
        each = bool(given) and set(given) <= set(among)
        shared = None if each else self._request(name, given)
        requests = {p: shared or self._request(name, given.get(p, {})) for p in among}
        answers = self.asking.ask(replace(step, what=requests, reply=MethodReply))
        called = {one.partition: one.called for one in self.method.parties_.values()}
        return {
            p: unpack(reply.plain, reply.given, party=called[p])[0] if reply.plain else {}
            for p, reply in answers.replies.items()
        }

    def _request(
        self, name: str, values: Mapping[str, Any], sizes: Mapping[str, int] | None = None
    ) -> MethodRequest:
        plain, given = pack(values, sizes)
        every = 1 if self.method.checkpoint else 0
        return MethodRequest(
            session="", round=0, checkpoint_every=every, name=name, plain=plain, given=given
        )


def _by_party(flat: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for name, value in flat.items():
        partition, _, key = name.partition("/")
        found.setdefault(int(partition), {})[key] = value
    return found

"""Agents combine: the total of their terms, in a masked sum or round a ring, and what it shows."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from fedkern_flwr.errors import CohortError
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Floats, Residuals, global_center
from fedkern_flwr.groups.members import Group
from fedkern_flwr.method import Deliver, Round, Steps
from fedkern_flwr.overlap import Overlap
from fedkern_flwr.secure_sum import RunningSum
from fedkern_flwr.strategy import logger

from .hierarchical_progress import Live, Progress
from .hierarchical_rows import RowRounds

GROUP_STATISTICS, AGENT_STATISTICS = 3, 5  # of each output, after the models


class AgentRounds(RowRounds):
    """The exchanges with the agents."""

    _post: Overlap

    def _reset(self) -> None:
        super()._reset()
        self._run = Progress({}, np.zeros((0, 0)))

    @property
    def _model(self) -> Floats:
        """The global model at hand."""
        run = self._run
        return np.asarray(run.center / len(run.live)) if self.consensus == "paper" else run.center

    # -- groups

    def _order_group(self, one: Live, name: str = wire.GROUP_SUM) -> RunningSum:
        """Begin the next sum of a group."""
        agent = one.group.agent
        one.stage, one.sum = (
            "ordered",
            self._order(name, GROUP_STATISTICS, one.cohort, receiver=agent),
        )
        return one.sum

    def _order(self, name: str, statistics: int, cohort: int, **more: Any) -> RunningSum:
        assert self.sums is not None
        length = self.shape_[0] * (self.shape_[1] + statistics)
        how = {"self_masks": False, **more}
        return self.sums.order(name, length, self.encoding, cohort=cohort, **how)

    def _close(self, one: Live) -> None:
        if one.sum is not None and self.sums is not None:
            self.sums.close(one.sum)
        one.stage, one.sum = "", None

    def _lose_agent(self, group: Group, *, stop: bool = False) -> None:
        self._lose(group, f"its agent, partition {group.agent}, did not answer", stop=stop)

    def _lose(self, group: Group, why: str, *, stop: bool = False) -> None:
        """Go on without a group, or end the run.

        Raises
        ------
        CohortError
        """
        run, number = self._run, group.number
        if stop or self.lost_groups == "stop" or len(run.live) <= max(2, self.least_agents):
            remedy = (
                f"mend it and {'resume from the checkpoint' if self.resumable else 'start again'}"
            )
            if self.lost_groups == "stop" and len(self.groups_) > 2:
                remedy += ", or go on without the group with --lost-groups leave-out"
            problem = f"group {number} cannot go on: {why}"
            asked = wire.StepWithAgentRequest if self.pipelined else wire.LocalRequest
            raise CohortError(problem, remedy=remedy, phase=asked.phase)
        logger.warning("group %d is left out from here on: %s", number, why)
        self._close(run.live.pop(number))
        self._post.forget(group.members)
        self.left_out_ = sorted({*self.left_out_, *group.members})
        run.lost[number], run.best = why, None  # the best model was judged on its rows as well

    # -- agents

    def _sigma(self, done: int, factor: Floats) -> Floats:
        if self.sigma is not None:
            return np.full((len(factor), 1), self.sigma)
        return self.mean_rho() * self.grown(done, factor) * len(self.users_) / len(self.groups_)

    def _combine(self, advancing: set[int], ordering: set[int]) -> Steps:
        """Have all agents contribute their terms, those of advancing groups after a new center.

        Those of ``ordering`` groups contribute their pad to their groups' next sums.
        """
        run = self._run
        run.tick += 1
        self.step = run.tick
        if advancing:
            self.settle()
        run.rho = self.rho_of(min(run.live), run.live[min(run.live)].done, run.factors[0])
        for number in advancing:
            one = run.live[number]
            assert one.sum is not None
            yield Deliver(one.sum, one.group.agent)
            one.stage, one.sum = "", None
        alone = len(self.groups_) == 1
        total: RunningSum | None = None
        found: dict[int, wire.AgentReply] = {}
        for attempt in range(self.attempts):
            if attempt and total is not None and self.sums is not None:
                self.sums.close(total)
            if not (self.ring or alone):
                masks, cohort = self.lost_groups == "leave-out", 1 + len(self.groups_)
                total = self._order(wire.AGENTS_SUM, AGENT_STATISTICS, cohort, self_masks=masks)
            sums = [] if total is None else [total]
            for number in sorted(ordering & set(run.live)):
                one = run.live[number]
                if attempt:
                    self._close(one)
                sums.append(self._order_group(one))
            requests = self._agent_requests(advancing, attempt)
            answers = yield self.question(requests, wire.AgentReply, running=sums, until="tried")
            found = answers.replies
            agents = {one.group.agent for one in run.live.values()}
            padded = all(
                one.sum is not None and one.group.agent in one.sum.uploaded
                for one in map(run.live.__getitem__, run.at("ordered"))
            )
            whole = total is None or agents <= set(total.uploaded)
            if padded and whole and set(found) == agents:
                break
        for one in list(run.live.values()):
            if one.group.agent not in found:
                self._lose_agent(one.group)
        advancing &= set(run.live)
        run.advances += bool(advancing)
        for number, one in run.live.items():
            if number in advancing:
                one.done += 1
                one.judged = one.judging
            if number in advancing | ordering:
                one.sealed = found[one.group.agent].sealed
        if self.ring:
            yield from self._take((yield from self._go_round()), advancing)
        elif total is None:
            yield from self._take(np.concatenate(next(iter(found.values())).term), advancing)
        elif not total.order.self_masks:
            assert self.sums is not None
            self.sums.unmask_sections([total])
            yield from self._take(self.sums.total(total), advancing)
        else:
            run.masked, run.advanced = total, advancing

    def _agent_requests(
        self,
        advancing: set[int],
        attempt: int,
        kind: type[wire.AgentRequest] = wire.AgentRequest,
    ) -> dict[int, wire.AgentRequest]:
        run = self._run
        after = min(one.done + (number in advancing) for number, one in run.live.items())
        return {
            one.group.agent: kind(
                attempt=attempt,
                advance=number in advancing,
                consensus=self.consensus,
                rho=self.rho_of(number, one.done, run.factors[0]),
                sigma=self._sigma(run.slowest, run.factors[0]),
                next_sigma=self._sigma(after, run.factors[1]),
                relaxation=self.relaxation,
                all_users=len(self.users_),
                groups=len(run.live),
                plain=len(self.groups_) == 1,
                self_masks=self.lost_groups == "leave-out",
                ring=self.ring,
                outputs=self.shape_[0],
                width=self.shape_[1],
                users=np.array(one.group.users, np.int32),
                center=run.center,
                chosen=self._chosen,
                tried=len(self.tried_),
                folds=self.folds_,
            )
            for number, one in run.live.items()
        }

    def settle(self) -> None:
        """Go on with what was chosen, if it is time: agents do so along with their next center."""
        run = self._run
        if not self.is_settled_at(run.slowest + 1):
            return
        run.center = self.chosen_of(run.center)
        run.models = {k: self.chosen_of(model) for k, model in run.models.items()}
        now, following = run.factors
        run.factors = self.chosen_of(now), self.chosen_of(following)
        run.residuals, run.best = Residuals.unknown(self.outputs_), None
        for one in run.live.values():
            one.judging = None  # a model of all that were tried

    def _take(self, total: Floats, advancing: set[int]) -> Steps:
        """Make the global model from the agents' total, and note how far the run is."""
        run, before = self._run, self._model
        numbers = self.shape_[0] * self.shape_[1]
        terms, own = total[:numbers].reshape(self.shape_), total[numbers:]
        if self.consensus == "paper":
            run.center = terms
        else:
            sigma, ridge = self._sigma(run.slowest, run.factors[1]), self.coordinates.ridge()
            run.center = global_center(terms, sigma, len(run.live), ridge)
        if not self.trying:
            self.trace_.append((time.monotonic() - run.started, run.slowest, self._model))
        if advancing:
            run.models[run.advances] = self._model
            loss, primal, size, dual, pull = own.reshape(AGENT_STATISTICS, -1)
            run.residuals = Residuals(primal, size, dual, pull * self.rows_)
            yield from self._record(loss, float(np.linalg.norm(self._model - before)))

    def _record(self, losses: Floats, change: float) -> Steps:
        run, slowest = self._run, self._run.slowest
        primal, dual = run.residuals.largest()
        if slowest <= (self.history_[-1]["round"] if self.history_ else 0):
            return
        row: dict[str, Any] = {"primal": primal, "dual": dual}
        row |= {"consensus_difference": change, "rho": float(run.rho.max())}
        numbers = {one.judged for one in run.live.values()}
        number = numbers.pop() if len(numbers) == 1 else None
        if not self.is_judged_at(slowest):
            self.take_losses(slowest, losses)
        elif number is not None and number in run.models:
            judged = self.judged(run.models[number], losses)
            row["objective"] = float(judged.objectives.sum())
            if not self.staleness:  # else few models are judged, and not the last
                run.best = judged.better(run.best)
        known = [k for one in run.live.values() for k in (one.judged, one.judging) if k is not None]
        oldest = min([*known, run.advances - 1])
        run.models = {k: model for k, model in run.models.items() if k >= oldest}
        now = run.factors[1]
        run.factors = now, self.next_growth(now, run.residuals, slowest)
        yield Round(slowest, row)

    # -- the ring

    def _go_round(self) -> Steps:
        """Sum the agents' terms around the ring, past those that do not answer.

        Raises
        ------
        CohortError
            The first agent does not answer, or an agent must not be lost.
        """
        ring = [one.group for one in self._run.live.values()]
        inputs: list[tuple[int, bytes]] = [(-1, b"")]
        first, k = ring[0], 0
        while k < len(ring):
            group = ring[k]
            reply = yield from self._hop(group, inputs[k], ring[(k + 1) % len(ring)].agent, k == 0)
            if reply is None:
                self._lose_agent(group, stop=k == 0)  # the first has the mask
                del ring[k], inputs[k]
                k -= 1  # the one before seals for another
                continue
            inputs[k + 1 :] = [(group.agent, reply.sealed)]
            k += 1
        ended = yield from self._hop(first, inputs[k], -1, False)
        if ended is None or len(ended.term) != 1:
            self._lose_agent(first, stop=True)
        return ended.term[0]

    def _hop(self, group: Group, source: tuple[int, bytes], to: int, first: bool) -> Steps:
        """Let an agent take its turn; return nothing if it does not answer."""
        request = wire.RingRequest(
            first=first,
            last=to < 0,
            source=source[0],
            destination=to,
            groups=len(self.groups_),
            bound=self.bound,
            sealed=source[1],
        )
        asked = {group.agent: request}
        answers = yield self.question(asked, wire.RingReply, least=0)
        return answers.replies.get(group.agent)

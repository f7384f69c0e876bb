"""Consensus over groups: one exchange per iteration, with groups in step or not.

A group's center follows from the group's sum and the global model. The agent opens that sum, but
users can compute the center, too, so both work at the same time. Users get the last iteration's sum
under the agent's pad, and the pad, sealed by the agent; they compute the center and solve the next
iteration. The server makes the global model from the sum of the agents' terms. Users' statistics
reach it with the agents' next sum, and the loss of its model one later: groups in step need two
exchanges after the last iteration.

**Asynchronous groups** use the same loop. The total does not wait for groups with missing replies
of users. Once it is open and two groups are ready, all agents contribute to the next total: ready
groups a new term, the others their old one. With staleness 0 all groups are ready together.

**Lost groups** can be left out. While all agents are there, their sums have no self masks and open
by themselves. After a loss, sums have self masks, opened by one more exchange with the agents while
the users work. No term may be in a total of both kinds: a lost agent's upload could arrive late,
with no self mask to hide it. So the total that lacks an agent is skipped, and after a loss all
terms of the first total are new.

Only this part of the method repeats exchanges itself, as privacy limits repetition: an incomplete
group sum to its agent and users, an incomplete agents' sum to all agents. No total is opened twice,
and each has at least two new terms; otherwise the difference of two sums would reveal single
parties.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fedkern_flwr.errors import CohortError
from fedkern_flwr.failure import Failure
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Floats, Residuals, global_center, may_advance
from fedkern_flwr.groups.members import Group
from fedkern_flwr.method import Round, Steps
from fedkern_flwr.nodes import Arrays, Overlap, logger
from fedkern_flwr.secure_sum import RunningSum

from .hierarchical_runs import Judged, Learned, RowRun

_REPLIES = {
    wire.CombineRequest: wire.CombineReply,
    wire.StepWithAgentRequest: wire.StepWithAgentReply,
}
_FRESH = 2  # fewest new groups in a total: two totals must not reveal one group


@dataclass
class Live:
    """A group that takes part.

    Attributes
    ----------
    group : Group
    place : int
        Its index among all groups.
    name : str
        Name of the pending sum, bound to all requests to the users.
    done : int
        Completed iterations.
    told : dict
        User -> its request of the current iteration.
    sum, before : RunningSum or None
        The users' sum of that iteration; the sum before, until the agent has it.
    ready : bool
        Whether the sum is complete.
    sealed : bytes
        The agent's pad of the sum, sealed for each user.
    attempt, deadline : int, float
        Earlier requests for the same sum; when the time ends.
    judging, judged : int or None
        Numbers of the models that the users evaluate, and that the agent's statistics are of.
    """

    group: Group
    place: int
    name: str
    done: int = 0
    told: dict[int, wire.StepWithAgentRequest] = field(default_factory=dict)
    sum: RunningSum | None = None
    before: RunningSum | None = None
    ready: bool = False
    sealed: bytes = b""
    attempt: int = 0
    deadline: float = 0.0
    judging: int | None = None
    judged: int | None = None


@dataclass
class GroupLoop:
    """The iterations of a run with agents.

    Attributes
    ----------
    run : RowRun
    post : Overlap
        Pending messages.
    reported : int
        Last reported iteration.
    live, lost : dict
        Number -> group; number -> why it was left out.
    tick : int
        Number of requests to the agents.
    center : ndarray
        The global model.
    residuals : Residuals
    factors : (ndarray, ndarray), shape (k,)
        Factors of rho in this iteration and the next.
    advances : int
        Number of totals, each of which made a model.
    models : dict
        Number of a total -> model, the last few.
    best : Judged or None
    row : dict
        Of the last iteration, without its objective.
    advancing : set of int
        Groups with new terms in this total.
    sigma, next_sigma : ndarray, shape (k, 1)
        Penalties of the agents, before and after this total.
    opening, last : bool
        Whether a total is pending; whether only its losses matter, as no iteration follows.
    renew : bool
        Whether all terms of the next total must be new, after a loss.
    total : RunningSum or None
        The agents' sum, if there are several.
    terms : dict
        Agent -> its reply.
    attempt, deadline : int, float
        Earlier requests for this total; when the agents' time ends.
    answered : set of int
        Partitions that answered their last request.
    failed : dict
        Partition -> why it did not answer.
    """

    run: RowRun
    post: Overlap
    reported: int
    live: dict[int, Live] = field(init=False)
    center: Floats = field(init=False)
    lost: dict[int, str] = field(default_factory=dict)
    tick: int = 0
    residuals: Residuals = field(init=False)
    factors: tuple[Floats, Floats] = field(init=False)
    advances: int = 0
    models: dict[int, Floats] = field(init=False)
    best: Judged | None = None
    row: dict[str, Any] = field(default_factory=dict)
    advancing: set[int] = field(default_factory=set)
    sigma: Floats = field(init=False)
    next_sigma: Floats = field(init=False)
    opening: bool = False
    renew: bool = False
    last: bool = False
    total: RunningSum | None = None
    terms: dict[int, wire.CombineReply] = field(default_factory=dict)
    attempt: int = 0
    deadline: float = 0.0
    answered: set[int] = field(default_factory=set)
    failed: dict[int, Failure] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        run, (outputs, _) = self.run, self.run.shape
        groups = run.options.groups_
        self.live = {g.number: Live(g, k, run.told) for k, g in enumerate(groups)}
        self.center = np.zeros(run.shape)
        self.residuals, self.models = Residuals.unknown(outputs), {0: self.center}
        self.factors = np.ones(outputs), np.ones(outputs)

    @property
    def slowest(self) -> int:
        return min(one.done for one in self.live.values())

    @property
    def agents(self) -> set[int]:
        return {one.group.agent for one in self.live.values()}

    @property
    def leave_out(self) -> bool:
        return self.run.options.lost_groups == "leave-out"

    @property
    def sums(self) -> Any:
        return self.post.nodes.sums

    def rounds(self) -> Steps:
        """Iterate until the residuals are small, or the slowest group has done all rounds."""
        run, saver = self.run, self.run.saver
        if not self.tick:
            run.note(self.started, 0, self.center)
        self._advance(set(self.live), opening=False)
        while not self._is_over():
            advancing = yield from self._wait()
            if advancing and saver.is_due(self.slowest):
                yield from self._drain()
                yield from self._save()
            elif advancing:
                self._advance(advancing)
        yield from self._drain()
        if not run.options.staleness:  # by now the agents have the losses of the last model but one
            self._advance(set(self.live), working=False)
            yield from self._drain()
        elif self.row:
            yield Round(self.row["round"], self.row)
        small = run.is_small(self.residuals, self.slowest)
        return Learned(small, self.center if self.best is None else self.best.model, self.lost)

    def _is_over(self) -> bool:
        done = self.slowest
        return not self.opening and (
            self.run.is_small(self.residuals, done) or done >= self.run.options.num_rounds
        )

    # -- what is sent

    def _advance(self, groups: set[int], *, opening: bool = True, working: bool = True) -> None:
        """Let agents complete an iteration of some groups, and their users begin the next.

        ``groups`` are those with complete sums; at first, or in a resumed run, all. ``opening``:
        there are sums to complete; ``working``: another iteration follows.
        """
        self.tick, self.opening, self.last, self.attempt = self.tick + 1, opening, not working, 0
        self.run.step = self.tick
        self.advancing = set(groups) if opening else set()
        if opening and self.run.choice.is_settled_at(self.slowest + 1):
            self._settle()
        after = min(one.done + (number in self.advancing) for number, one in self.live.items())
        self.sigma = self.run.sigma_of(self.slowest, self.factors[0])
        self.next_sigma = self.run.sigma_of(after, self.factors[1])
        for number in groups:
            one = self.live[number]
            one.told, one.attempt = self._user_requests(one, opening=opening), 0
            request = next(iter(one.told.values()))
            if opening:
                one.judged, one.judging = one.judging, self.advances
                one.before, one.sum, one.ready = one.sum, None, not working
            if opening or self.tick == 1:  # otherwise the name is known
                one.name = request.sum_name(one.name)
        self._ask(groups if working else (), total=opening)

    def _settle(self) -> None:
        part_of, (now, following) = self.run.choice.part_of, self.factors
        self.center, self.factors = part_of(self.center), (part_of(now), part_of(following))
        self.models = {k: part_of(model) for k, model in self.models.items()}
        self.residuals, self.best = Residuals.unknown(len(self.center)), None

    def _ask(self, groups: Iterable[int], *, total: bool) -> None:
        """Request groups' sums, a total from all agents, or both; also again."""
        requests, sums = dict[int, Any](), list[RunningSum]()
        combine, facts, count = self._agent_requests(), self.run.now, len(self.run.options.groups_)
        if total:
            requests, self.deadline = dict(combine), self.post.deadline
            if count > 1:
                name = wire.LEFT_SUM if self.lost else wire.AGENTS_SUM
                specs = next(iter(combine.values())).sum_specs(replace(facts, cohort=1 + count))
                self.total = self.sums.order(next(spec for spec in specs if spec.name == name))
                sums.append(self.total)
        for number in sorted(groups):
            one = self.live[number]
            agent, one.deadline, one.sealed = one.group.agent, self.post.deadline, b""
            own = replace(facts, told=one.name, cohort=1 + one.place)
            (spec,) = next(iter(one.told.values())).sum_specs(own)
            one.sum = self.sums.order(spec)
            sums.append(one.sum)
            requests[agent] = combine[agent]
            for user, request in one.told.items():
                requests[user] = replace(request, attempt=one.attempt)
        replies = {p: _REPLIES[type(request)] for p, request in requests.items()}
        self.answered -= set(requests)
        deliveries = {
            one.group.agent: one.before for one in self.live.values() if one.before is not None
        }
        self.post.send(requests, replies, sums, deliveries, number=self.tick)

    def _user_requests(self, one: Live, *, opening: bool) -> dict[int, wire.StepWithAgentRequest]:
        run, done = self.run, one.done + opening
        index, padded, width = 0, np.zeros(0, np.uint64), run.shape[1]
        if opening:
            assert one.sum is not None
            index = one.sum.order.index
            padded = np.concatenate(one.sum.delivery().padded)
            padded = padded[: len(padded) // (width + wire.USER_STATISTICS) * width]
        shared = wire.StepWithAgentRequest(
            session=self.post.nodes.session,
            round=done + 1,
            agent=one.group.agent,
            rho=run.rho_of(one.place, done, self.factors[1]),
            sealed=b"",
            judged=self.center if opening else np.zeros((0, 0)),
            sigma=self.sigma,
            next_sigma=self.next_sigma,
            index=index,
            padded=padded,
            **run.shared_fields(first=done == 0),
        )
        users = one.group.users
        size = len(one.sealed) // len(users)
        return {
            user: replace(shared, sealed=one.sealed[k * size : (k + 1) * size])
            for k, user in enumerate(users)
        }

    def _agent_requests(self) -> dict[int, wire.CombineRequest]:
        run, (outputs, width) = self.run, self.run.shape
        return {
            one.group.agent: wire.CombineRequest(
                session=self.post.nodes.session,
                round=self.tick,
                attempt=max(self.attempt, one.attempt),
                advance=number in self.advancing,
                rho=run.rho_of(one.place, one.done, self.factors[0]),
                sigma=self.sigma,
                next_sigma=self.next_sigma,
                relaxation=run.options.relaxation,
                plain=len(run.options.groups_) == 1,
                leave_out=self.leave_out,
                outputs=outputs,
                width=width,
                users=np.array(one.group.users, np.int32),
                center=self.center,
                chosen=run.choice.chosen,
                tried=len(run.choice.tried),
                folds=run.choice.folds,
            )
            for number, one in self.live.items()
        }

    # -- what arrives

    def _wait(self) -> Steps:
        """Return the groups that advance, once the total is open and enough are ready.

        At least two, unless all are ready, since two totals could reveal one group; after a loss
        all; none if all iterations are done. An agent answers a repeated request for its group's
        sum first.
        """
        while True:
            yield from self._read()
            if self._is_over():
                return set()
            if not self.opening and not self.post.waiting(self.agents):
                ready = [number for number, one in self.live.items() if one.ready]
                done = {number: one.done for number, one in self.live.items()}
                advancing = may_advance(ready, done, self.run.options.staleness)
                enough = len(advancing) >= _FRESH and not self.renew
                if enough or len(ready) == len(self.live):
                    return advancing

    def _drain(self) -> Steps:
        while self.opening or not all(one.ready for one in self.live.values()):
            yield from self._read()

    def _read(self) -> Steps:
        """Read what has arrived; repeat requests for missing sums, or lose the group."""
        found = self.post.arrived(self.tick)
        self.failed |= found.failures
        groups = {one.group.agent: one for one in self.live.values()}
        for partition, reply in found.replies.items():
            self.answered.add(partition)
            if partition in groups:
                one, self.terms[partition] = groups[partition], reply
                one.sealed = one.sealed or reply.sealed
                self._close(one, "before")
        for one in self.live.values():
            members = set(one.group.members)
            there = self.answered & set(one.sum.uploaded if one.sum is not None else ())
            if not one.ready and members <= there and one.sealed:
                assert one.sum is not None
                self.sums.unmask_sections([one.sum])
                one.ready = True
        if self.opening:
            yield from self._read_total()
            return
        late = [one for one in self.live.values() if not one.ready and self._is_late(one)]
        again = []
        for one in late:
            why = self._silent(one.group.members)
            self._close(one, "sum")
            one.attempt += 1
            if one.attempt < self.run.options.attempts:
                again.append(one.group.number)
            else:
                self._lose(one.group, f"{why or 'a reply came without its sum'}")
        if again:
            self._ask(again, total=False)

    def _is_late(self, one: Live) -> bool:
        waiting = self.post.waiting(one.group.members)
        return not waiting or time.monotonic() > one.deadline

    def _read_total(self) -> Steps:
        """Take the agents' total if complete; repeat the request if one is missing."""
        agents = self.agents
        there = agents & self.answered
        if self.total is not None:
            there &= set(self.total.uploaded)
        if there == agents:
            yield from self._take_total(self._open())
            return
        if self.post.waiting(agents) and time.monotonic() <= self.deadline:
            return
        missing = agents - there
        whys = {agent: self._silent([agent]) for agent in missing}
        if self.total is not None:
            self.sums.close(self.total)
        self.attempt += 1
        if self.attempt == self.run.options.attempts:
            for one in [one for one in self.live.values() if one.group.agent in missing]:
                self._lose(one.group, whys[one.group.agent] or "its agent sent no sum")
            yield from self._pass_over()
            return
        self._ask((), total=True)

    def _pass_over(self) -> Steps:
        """Skip the total and keep the global model.

        The iteration before is reported with the losses in the next total, if any.
        """
        self.opening, self.total = False, None
        for number in self.advancing & set(self.live):
            self.live[number].done += 1
        self.factors = self.factors[1], self.factors[1]
        if self.last and self.row:
            yield Round(self.row["round"], self.row)

    def _open(self) -> Floats:
        total = self.total
        if total is None:
            return np.concatenate([self.terms[agent].term[0] for agent in self.agents])
        if total.order.self_masks:
            self.post.unmask(total, self.tick)
        else:
            self.sums.unmask_sections([total])
        self.total = None
        return np.asarray(self.sums.total(total))

    def _silent(self, members: Iterable[int]) -> str:
        """Give up on members without an answer; return who they are, and why."""
        asked, nodes = list(members), self.post.nodes
        self.failed |= self.post.give_up(asked, self.tick)
        who = [f"{nodes.called(p)} {self.failed.pop(p)}" for p in asked if p in self.failed]
        return f"{', '.join(who[:3])}, {self.run.options.attempts} times in a row" if who else ""

    def _close(self, one: Live, *names: Literal["sum", "before"]) -> None:
        for name in names:
            running = getattr(one, name)
            if running is not None:
                self.sums.close(running)
            setattr(one, name, None)

    def _lose(self, group: Group, why: str) -> None:
        """Go on without a group, or end the run with CohortError."""
        number, nodes = group.number, self.post.nodes
        if not self.leave_out or len(self.live) <= self.run.options.least_agents:
            again = "resume from the checkpoint" if nodes.resumable else "start again"
            remedy = f"mend it and {again}"
            if not self.leave_out and len(self.run.options.groups_) > 2:
                remedy += ", or go on without the group with --lost-groups leave-out"
            problem = f"group {number} cannot go on: {why}"
            raise CohortError(
                problem,
                remedy=remedy,
                phase=wire.StepWithAgentRequest.phase,
                code="FK-PARTIES-LOST",
            )
        logger.warning("group %d is left out from here on: %s", number, why)
        self._close(self.live.pop(number), "sum", "before")
        self.post.forget(group.members)
        nodes.left_out = sorted({*nodes.left_out, *group.members})
        self.renew = True
        self.lost[number], self.best = why, None  # the best model was evaluated on its rows, too

    def _take_total(self, total: Floats) -> Steps:
        """Report the iteration before the last; compute the global model of the last."""
        run, numbers = self.run, self.center.size
        self.opening = self.renew = False
        losses, primal, size, dual, pull = total[numbers:].reshape(wire.AGENT_STATISTICS, -1)
        if self.row:
            yield from self._report(losses)
        if self.last:
            return
        first = self.live[min(self.live)]
        rho = run.rho_of(first.place, first.done, self.factors[0])
        before, now = self.center, self.factors[1]
        for number in self.advancing & set(self.live):
            self.live[number].done += 1
        terms = total[:numbers].reshape(before.shape)
        self.center = global_center(terms, self.next_sigma, len(self.live), run.ridge)
        self.advances += 1
        numbered = [k for one in self.live.values() for k in (one.judged, one.judging)]
        oldest = min([self.advances - 1, *(k for k in numbered if k is not None)])
        self.models = {k: model for k, model in self.models.items() if k >= oldest}
        self.models[self.advances] = self.center
        run.note(self.started, self.slowest, self.center)
        self.residuals = Residuals(primal, size, dual, pull * run.rows)
        if self.slowest > self.reported:
            names = zip(("primal", "dual"), self.residuals.largest(), strict=True)
            change = float(np.linalg.norm(self.center - before))
            self.row = {"round": self.slowest, **dict(names)}
            self.row |= {"consensus_difference": change, "rho": float(rho.max())}
            self.factors = now, run.next_factor(now, self.residuals, self.slowest)

    def _report(self, losses: Floats) -> Steps:
        """Report an iteration, with the objective if all groups evaluated the same model."""
        run, row, done = self.run, self.row, self.row["round"]
        numbers = {one.judged for one in self.live.values()}
        number = numbers.pop() if len(numbers) == 1 else None
        if not run.choice.is_judged_at(done):
            run.choice.take_losses(done, losses, run.rows)
        elif number is not None and number in self.models:
            judged = run.judged(self.models[number], losses)
            row["objective"] = float(judged.objectives.sum())
            if not run.options.staleness:  # else few models are evaluated, and not the last
                self.best = judged.better(self.best)
        self.row, self.reported = {}, done
        yield Round(done, row)

    # -- checkpoints

    def _save(self) -> Steps:
        yield from self.run.save(
            self.slowest,
            [p for one in self.live.values() for p in one.group.members],
            {"center": self.center, "before": self.models.get(self.advances - 1, self.center)},
            self.best,
            tick=self.tick,
            groups={str(k): [one.done, one.name, one.judging] for k, one in self.live.items()},
            lost={str(k): why for k, why in self.lost.items()},
            advances=self.advances,
            factors=[own.tolist() for own in self.factors],
            residuals=[own.tolist() for own in astuple(self.residuals)],
            row=self.row,
        )

    def restore(self, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        """Restore a checkpoint; pending messages between nodes are requested again."""
        self.best = self.run.restore(arrays, meta)
        self.lost = {int(k): why for k, why in meta["lost"].items()}
        self.live = {k: one for k, one in self.live.items() if k not in self.lost}
        self.renew = bool(self.lost)
        for number, (done, name, judging) in meta["groups"].items():
            one = self.live[int(number)]
            one.done, one.name, one.judging = done, name, judging
        self.tick, self.factors = int(meta["tick"]) - 1, tuple(np.array(meta["factors"]))
        self.center, self.advances = arrays["center"], int(meta["advances"])
        self.models = {self.advances - 1: arrays["before"], self.advances: self.center}
        self.residuals, self.row = Residuals(*np.array(meta["residuals"])), meta["row"]

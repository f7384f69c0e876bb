"""Consensus over groups: one exchange an iteration, whether groups wait for each other or not.

A group's center follows from the group's sum and the global model. The agent opens that sum, and
with the center the users have it too. So they need not wait until the agent has made the center:
users and agents are sent their requests together. The users get the sum of the last iteration
under the agent's pad, and the pad, sealed by the agent. They make the center and solve the next
iteration with it, while the agents make the same centers. The server makes the global model from
the sum of the agents' terms. What users report reaches the server with the agents' next sum, and
the loss of its model one later: of groups that wait, two exchanges follow the last iteration.

**Groups that do not wait** use the same loop. A late group is one whose users' replies are still
under way: agents are quick, so that the total of the others need not wait for it. As soon as the
total is open and two groups are ready, all agents contribute to the next total: those of the ready
groups a new term, the others the term they had. With staleness 0 all groups are ready together.

**Groups that fall silent** can be left out. Sums of the agents have no self masks while all of
them are there, so they open by themselves. Once a group is lost, sums have self masks, and one
more exchange with the agents opens them while the users of the next iteration work. No term is in
a total of both kinds: what an agent sent before it was lost may arrive late, and no self mask hides
it. So the total that a lost agent is missing from is passed over, with the model that there is, and
in the first total after a loss all terms are new.

This is the one part of the method that repeats exchanges by itself. What may be asked again is a
rule of privacy: of a group whose sum lacks somebody only its agent and its users, all agents where
their sum lacks one. No total is opened twice, as two sums over different parties would show single
ones, and a total has at least two new terms for the same reason.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fedkern_flwr.errors import CheckpointError, CohortError
from fedkern_flwr.failure import Failure
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Floats, Residuals, global_center, may_advance
from fedkern_flwr.groups.members import Group
from fedkern_flwr.method import Round, Steps
from fedkern_flwr.nodes import logger
from fedkern_flwr.overlap import Overlap
from fedkern_flwr.secure_sum import RunningSum
from fedkern_flwr.steps import Overlapping

from .hierarchical_rows import Judged, Learned, RowRounds

GROUP_STATISTICS, AGENT_STATISTICS = 3, 5  # of each output, after the models
_FRESH = 2  # groups that are new in a total at least, so that two totals do not show one group


@dataclass
class Live:
    """A group that takes part.

    Attributes
    ----------
    group : Group
    cohort : int
    done : int
        Iterations completed.
    name : str
        Of the sum under way: all that the users have been told is in it.
    told : dict
        User -> its request of the iteration under way.
    sum : RunningSum or None
        Over the users, for the agent, of that iteration.
    before : RunningSum or None
        That of the iteration before, until the agent has it.
    ready : bool
        Whether the sum is complete.
    sealed : bytes
        The agent's pad of the sum, sealed for each user in turn.
    attempt : int
        How often the group has been asked before.
    deadline : float
        Until when it has time.
    judging, judged : int or None
        Number of the model that the users judge, and of that which the agent's statistics judge.
    """

    group: Group
    cohort: int
    done: int = 0
    name: str = ""
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
class Progress:
    """How far the groups are together.

    Attributes
    ----------
    live : dict
        Number -> group.
    lost : dict
        Number -> why it was left out.
    tick : int
        How often the agents have been asked.
    center : ndarray
        The global model.
    residuals : Residuals
    factors : (ndarray, ndarray), shape (k,)
        Of rho where it follows what is summed: of this iteration and the next.
    advances : int
        Totals, each of which made a model.
    models : dict
        Number of such a total -> model, of the last few.
    best : Judged or None
    row : dict
        Of the last iteration, without its objective.
    advancing : set of int
        Groups whose new terms are in the total at hand.
    sigma, next_sigma : ndarray, shape (k, 1)
        Penalties of the agents, before and after that total.
    opening : bool
        Whether the agents are asked for a total.
    renew : bool
        Whether all terms must be new in the next total, because a group was left out.
    last : bool
        Whether no iteration follows it, so that it is of use for the losses in it only.
    total : RunningSum or None
        Their sum, where there are several.
    terms : dict
        Partition of an agent -> its reply.
    attempt : int
        How often the agents have been asked for that total before.
    deadline : float
        Until when they have time.
    answered : set of int
        Partitions that have answered what they were asked last.
    failed : dict
        Partition -> why it did not answer.
    """

    live: dict[int, Live]
    center: Floats
    lost: dict[int, str] = field(default_factory=dict)
    tick: int = 0
    residuals: Residuals = field(init=False)
    factors: tuple[Floats, Floats] = field(init=False)
    advances: int = 0
    models: dict[int, Floats] = field(default_factory=dict)
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
        """Begin with nothing known of any output."""
        outputs = len(self.center)
        self.residuals, self.models = Residuals.unknown(outputs), {0: self.center}
        self.factors = np.ones(outputs), np.ones(outputs)

    @property
    def slowest(self) -> int:
        """Iterations of the slowest group."""
        return min(one.done for one in self.live.values())

    @property
    def agents(self) -> set[int]:
        """The agents of all groups."""
        return {one.group.agent for one in self.live.values()}


class GroupRounds(RowRounds):
    """The iterations of a run with agents."""

    _run: Progress
    _post: Overlap

    def go_on(self, progress: Mapping[str, Any]) -> None:
        """Take up a run that broke off.

        Raises
        ------
        CheckpointError
            Its groups were under way in one of the two loops of an earlier release.
        """
        saved = progress.get("saved") or {}
        places = saved.get("groups", {}).values()
        if "tick" in saved and not (places and all(isinstance(at, list) for at in places)):
            raise CheckpointError(
                f"{self.checkpoint} was written by an earlier version of fedkern-flwr",
                remedy="resume with that version, or start anew",
                code="FK-CHECKPOINT-VERSION",
            )
        super().go_on(progress)

    def group_rounds(self) -> Steps:
        """Iterate until the residuals are small, or the slowest group has done all rounds."""
        live = {g.number: Live(g, 1 + k, name=self._told) for k, g in enumerate(self.groups_)}
        run = self._run = Progress(live, np.zeros(self.shape_))
        if self.saved_meta_:
            self._take_up_groups()
        elif not self.trying:
            self.trace_.append((time.monotonic() - run.started, 0, run.center))
        self._post = yield Overlapping()
        self._advance(set(run.live), opening=False)
        while not self._is_over():
            advancing = yield from self._wait()
            if advancing and self.is_due(run.slowest):
                yield from self._drain()
                yield from self._save_groups()
            elif advancing:
                self._advance(advancing)
        yield from self._drain()
        if not self.staleness:  # the losses of the last model but one are with the agents by now
            self._advance(set(run.live), working=False)
            yield from self._drain()
        elif run.row:
            yield Round(run.row["round"], run.row)
        return Learned(
            self._is_small(), run.center if run.best is None else run.best.model, run.lost
        )

    def _is_small(self) -> bool:
        run = self._run
        judged = run.slowest > 1 and self.is_judged_at(run.slowest)
        return judged and run.residuals.small(self.tolerance)

    def _is_over(self) -> bool:
        """Tell whether all iterations are done, but for the objective of the last one."""
        run = self._run
        return not run.opening and (self._is_small() or run.slowest >= self.num_rounds)

    # -- what is sent

    def _advance(self, groups: set[int], *, opening: bool = True, working: bool = True) -> None:
        """Have agents complete an iteration of some groups, and their users begin the next.

        Parameters
        ----------
        groups : set of int
            Those whose sums are complete; first of all, or in a run that is resumed, all.
        opening : bool (default: True)
            Whether there are sums to complete.
        working : bool (default: True)
            Whether another iteration follows.
        """
        run = self._run
        run.tick, run.opening, run.last, run.attempt = run.tick + 1, opening, not working, 0
        self.step = run.tick
        run.advancing = set(groups) if opening else set()
        if opening:
            self.settle()
        after = min(one.done + (number in run.advancing) for number, one in run.live.items())
        run.sigma = self._sigma(run.slowest, run.factors[0])
        run.next_sigma = self._sigma(after, run.factors[1])
        for number in groups:
            one = run.live[number]
            one.told, one.attempt = self._user_requests(one, opening=opening), 0
            request = next(iter(one.told.values()))
            if opening:
                one.judged, one.judging = one.judging, run.advances
                one.before, one.sum, one.ready = one.sum, None, not working
            if opening or run.tick == 1:  # else they have been told before
                one.name = request.sum_name(one.name)
        self._ask(groups if working else (), total=opening)

    def _ask(self, groups: Iterable[int], *, total: bool) -> None:
        """Ask groups for their sums, all agents for a total, or both at once; or ask them again."""
        run, requests, sums = self._run, dict[int, Any](), list[RunningSum]()
        combine = self._agent_requests()
        if total:
            requests, run.deadline = dict(combine), self._post.deadline
            if len(self.groups_) > 1:
                name, cohort = wire.LEFT_SUM if run.lost else wire.AGENTS_SUM, 1 + len(self.groups_)
                masks = {"self_masks": bool(run.lost)}
                run.total = self._order(name, AGENT_STATISTICS, cohort, **masks)
                sums.append(run.total)
        for number in sorted(groups):
            one = run.live[number]
            agent, one.deadline, one.sealed = one.group.agent, self._post.deadline, b""
            one.sum = self._order(one.name, GROUP_STATISTICS, one.cohort, receiver=agent)
            sums.append(one.sum)
            requests[agent] = combine[agent]
            requests |= {
                user: replace(told, attempt=one.attempt) if one.attempt else told
                for user, told in one.told.items()
            }
        replies = {
            p: wire.CombineReply if p in combine else wire.StepWithAgentReply for p in requests
        }
        run.answered -= set(requests)
        deliveries = {
            one.group.agent: one.before for one in run.live.values() if one.before is not None
        }
        self._post.send(requests, replies, sums, deliveries, number=run.tick)

    def _order(self, name: str, statistics: int, cohort: int, **more: Any) -> RunningSum:
        assert self.sums is not None
        length = self.shape_[0] * (self.shape_[1] + statistics)
        how = {"self_masks": False, **more}
        return self.sums.order(name, length, self.encoding, cohort=cohort, **how)

    def _user_requests(self, one: Live, *, opening: bool) -> dict[int, wire.StepWithAgentRequest]:
        """Return what the users of a group are told; the first time nothing of an iteration."""
        run, done = self._run, one.done + opening
        index, padded, width = 0, np.zeros(0, np.uint64), self.shape_[1]
        if opening:
            assert one.sum is not None
            index = one.sum.order.index
            padded = np.concatenate(one.sum.delivery().padded)
            padded = padded[: len(padded) // (width + GROUP_STATISTICS) * width]
        shared = wire.StepWithAgentRequest(
            session=self.session,
            round=done + 1,
            agent=one.group.agent,
            rho=self.rho_of(one.group.number, done, run.factors[1]),
            relaxation=self.relaxation,
            sealed=b"",
            judged=run.center if opening else np.zeros((0, 0)),
            sigma=run.sigma,
            next_sigma=run.next_sigma,
            index=index,
            padded=padded,
            **self.coordinate_fields(first=done == 0),
            **self.chosen_field(),
        )
        users = one.group.users
        size = len(one.sealed) // len(users)
        return {
            user: replace(shared, sealed=one.sealed[k * size : (k + 1) * size])
            for k, user in enumerate(users)
        }

    def _agent_requests(self) -> dict[int, wire.CombineRequest]:
        run = self._run
        return {
            one.group.agent: wire.CombineRequest(
                session=self.session,
                round=run.tick,
                attempt=max(run.attempt, one.attempt),
                advance=number in run.advancing,
                rho=self.rho_of(number, one.done, run.factors[0]),
                sigma=run.sigma,
                next_sigma=run.next_sigma,
                relaxation=self.relaxation,
                plain=len(self.groups_) == 1,
                leave_out=self.lost_groups == "leave-out",
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

    def _sigma(self, done: int, factor: Floats) -> Floats:
        if self.sigma is not None:
            return np.full((len(factor), 1), self.sigma / self.unit_)
        return self.mean_rho() * self.grown(done, factor) * len(self.users_) / len(self.groups_)

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

    # -- what comes

    def _wait(self) -> Steps:
        """Return the groups that advance, as soon as the total is open and enough are ready.

        Fewer than two only if all are ready, else two totals would show one group. After a loss
        all of them. None where all iterations are done. An agent that is asked for its group's sum
        again answers that first.
        """
        run = self._run
        while True:
            yield from self._read()
            if self._is_over():
                return set()
            if not run.opening and not self._post.waiting(run.agents):
                ready = [number for number, one in run.live.items() if one.ready]
                done = {number: one.done for number, one in run.live.items()}
                advancing = may_advance(ready, done, self.staleness)
                enough = len(advancing) >= _FRESH and not run.renew
                if enough or len(ready) == len(run.live):
                    return advancing

    def _drain(self) -> Steps:
        """Wait until no node is at work."""
        run = self._run
        while run.opening or not all(one.ready for one in run.live.values()):
            yield from self._read()

    def _read(self) -> Steps:
        """Take what has arrived; ask again where somebody is missing, or lose the group."""
        run, post = self._run, self._post
        found = post.arrived(run.tick)
        run.failed |= found.failures
        groups = {one.group.agent: one for one in run.live.values()}
        for partition, reply in found.replies.items():
            run.answered.add(partition)
            if partition in groups:
                one, run.terms[partition] = groups[partition], reply
                one.sealed = one.sealed or reply.sealed
                self._close(one, "before")
        for one in run.live.values():
            members = set(one.group.members)
            there = run.answered & set(one.sum.uploaded if one.sum is not None else ())
            if not one.ready and members <= there and one.sealed:
                assert self.sums is not None
                assert one.sum is not None
                self.sums.unmask_sections([one.sum])
                one.ready = True
        if run.opening:
            yield from self._read_total()
            return
        late = [one for one in run.live.values() if not one.ready and self._is_late(one)]
        again = []
        for one in late:
            why = self._silent(one.group.members)
            self._close(one, "sum")
            one.attempt += 1
            if one.attempt < self.attempts:
                again.append(one.group.number)
            else:
                self._lose(one.group, f"{why or 'a reply came without its sum'}")
        if again:
            self._ask(again, total=False)

    def _is_late(self, one: Live) -> bool:
        """Tell whether nothing more will come of a group."""
        waiting = self._post.waiting(one.group.members)
        return not waiting or time.monotonic() > one.deadline

    def _read_total(self) -> Steps:
        """Take the agents' total if it is whole; ask all of them again if one is missing."""
        run, agents = self._run, self._run.agents
        there = agents & run.answered
        if run.total is not None:
            there &= set(run.total.uploaded)
        if there == agents:
            yield from self._take_total(self._open())
            return
        if self._post.waiting(agents) and time.monotonic() <= run.deadline:
            return
        missing = agents - there
        whys = {agent: self._silent([agent]) for agent in missing}
        if run.total is not None:
            assert self.sums is not None
            self.sums.close(run.total)
        run.attempt += 1
        if run.attempt == self.attempts:
            for one in [one for one in run.live.values() if one.group.agent in missing]:
                self._lose(one.group, whys[one.group.agent] or "its agent sent no sum")
            yield from self._pass_over()
            return
        self._ask((), total=True)

    def _pass_over(self) -> Steps:
        """Go on without the total at hand, with the global model that there is.

        The iteration before is reported with the losses in the next total, if there is one.
        """
        run = self._run
        run.opening, run.total = False, None
        for number in run.advancing & set(run.live):
            run.live[number].done += 1
        run.factors = run.factors[1], run.factors[1]
        if run.last and run.row:
            yield Round(run.row["round"], run.row)

    def _open(self) -> Floats:
        """Return the agents' total."""
        run, total = self._run, self._run.total
        if total is None:
            return np.concatenate([run.terms[agent].term[0] for agent in run.agents])
        assert self.sums is not None
        if total.order.self_masks:
            self._post.unmask(total, run.tick)
        else:
            self.sums.unmask_sections([total])
        run.total = None
        return self.sums.total(total)

    def _silent(self, members: Iterable[int]) -> str:
        """Wait no longer for members who did not answer; return who they are, and why."""
        run, asked = self._run, list(members)
        run.failed |= self._post.give_up(asked, run.tick)
        who = [f"{self.nodes.called(p)} {run.failed.pop(p)}" for p in asked if p in run.failed]
        return f"{', '.join(who[:3])}, {self.attempts} times in a row" if who else ""

    def _close(self, one: Live, *names: Literal["sum", "before"]) -> None:
        """Forget sums of a group."""
        for name in names:
            running = getattr(one, name)
            if running is not None and self.sums is not None:
                self.sums.close(running)
            setattr(one, name, None)

    def _lose(self, group: Group, why: str) -> None:
        """Go on without a group, or end the run.

        Raises
        ------
        CohortError
        """
        run, number = self._run, group.number
        if self.lost_groups == "stop" or len(run.live) <= self.least_agents:
            again = "resume from the checkpoint" if self.nodes.resumable else "start again"
            remedy = f"mend it and {again}"
            if self.lost_groups == "stop" and len(self.groups_) > 2:
                remedy += ", or go on without the group with --lost-groups leave-out"
            problem = f"group {number} cannot go on: {why}"
            raise CohortError(
                problem,
                remedy=remedy,
                phase=wire.StepWithAgentRequest.phase,
                code="FK-PARTIES-LOST",
            )
        logger.warning("group %d is left out from here on: %s", number, why)
        self._close(run.live.pop(number), "sum", "before")
        self._post.forget(group.members)
        self.nodes.left_out = sorted({*self.left_out_, *group.members})
        run.renew = True
        run.lost[number], run.best = why, None  # the best model was judged on its rows as well

    def _take_total(self, total: Floats) -> Steps:
        """Report the iteration before the last; make the global model of the last one."""
        run, numbers = self._run, self._run.center.size
        run.opening = run.renew = False
        losses, primal, size, dual, pull = total[numbers:].reshape(AGENT_STATISTICS, -1)
        if run.row:
            yield from self._report(losses)
        if run.last:
            return
        rho = self.rho_of(min(run.live), run.live[min(run.live)].done, run.factors[0])
        before, now = run.center, run.factors[1]
        for number in run.advancing & set(run.live):
            run.live[number].done += 1
        terms, ridge = total[:numbers].reshape(before.shape), self.ridge_
        run.center = global_center(terms, run.next_sigma, len(run.live), ridge)
        run.advances += 1
        known = [k for one in run.live.values() for k in (one.judged, one.judging) if k is not None]
        oldest = min([*known, run.advances - 1])
        run.models = {k: model for k, model in run.models.items() if k >= oldest}
        run.models[run.advances] = run.center
        if not self.trying:
            self.trace_.append((time.monotonic() - run.started, run.slowest, run.center))
        run.residuals = Residuals(primal, size, dual, pull * self.rows_)
        if run.slowest > (self.history_[-1]["round"] if self.history_ else 0):
            names = zip(("primal", "dual"), run.residuals.largest(), strict=True)
            change = float(np.linalg.norm(run.center - before))
            run.row = {"round": run.slowest, **dict(names)}
            run.row |= {"consensus_difference": change, "rho": float(rho.max())}
            run.factors = now, self.next_growth(now, run.residuals, run.slowest)

    def _report(self, losses: Floats) -> Steps:
        """Report an iteration, with the objective if all groups have judged the same model."""
        run, row, done = self._run, self._run.row, self._run.row["round"]
        numbers = {one.judged for one in run.live.values()}
        number = numbers.pop() if len(numbers) == 1 else None
        if not self.is_judged_at(done):
            self.take_losses(done, losses)
        elif number is not None and number in run.models:
            judged = self.judged(run.models[number], losses)
            row["objective"] = float(judged.objectives.sum())
            if not self.staleness:  # else few models are judged, and not the last
                run.best = judged.better(run.best)
        run.row = {}
        yield Round(done, row)

    # -- checkpoints

    def _save_groups(self) -> Steps:
        """Write a checkpoint, for which all nodes keep their state."""
        run = self._run
        yield from self.save_rows(
            run.slowest,
            [p for one in run.live.values() for p in one.group.members],
            {"center": run.center, "before": run.models.get(run.advances - 1, run.center)},
            run.best,
            tick=run.tick,
            groups={str(k): [one.done, one.name, one.judging] for k, one in run.live.items()},
            lost={str(k): why for k, why in run.lost.items()},
            advances=run.advances,
            factors=[own.tolist() for own in run.factors],
            residuals=[own.tolist() for own in astuple(run.residuals)],
            row=run.row,
        )

    def _take_up_groups(self) -> None:
        """Go back to a checkpoint; what was under way between nodes is asked for again."""
        run, meta, arrays = self._run, self.saved_meta_, self.saved_
        run.best = self.take_up()
        run.lost = {int(k): why for k, why in meta["lost"].items()}
        run.live = {k: one for k, one in run.live.items() if k not in run.lost}
        run.renew = bool(run.lost)
        for number, (done, name, judging) in meta["groups"].items():
            one = run.live[int(number)]
            one.done, one.name, one.judging = done, name, judging
        run.tick, run.factors = int(meta["tick"]) - 1, tuple(np.array(meta["factors"]))
        run.center, run.advances = arrays["center"], int(meta["advances"])
        run.models = {run.advances - 1: arrays["before"], run.advances: run.center}
        run.residuals, run.row = Residuals(*np.array(meta["residuals"])), meta["row"]

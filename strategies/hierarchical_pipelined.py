"""Consensus over groups in one exchange an iteration: users and agents are asked together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Floats, Residuals, global_center
from fedkern_flwr.method import Answers, Deliver, Round, Steps
from fedkern_flwr.secure_sum import RunningSum

from .hierarchical_agents import AGENT_STATISTICS, GROUP_STATISTICS, AgentRounds
from .hierarchical_progress import Live, Progress
from .hierarchical_rows import Learned

_NOTHING = np.zeros((0, 0))


class PipelinedRounds(AgentRounds):
    """The iterations of a run whose groups all wait for each other, one exchange each.

    A group's center follows from the group's sum and the global model. The agent opens that sum,
    and with the center the users have it too. So they need not wait until the agent has made the
    center: the k-th exchange brings them the sum of iteration k - 1 under the agent's pad, and the
    pad, sealed by the agent. They make the center and solve iteration k with it, while the agents
    make the same centers; from their sum the server makes the global model of iteration k - 1. The
    models are those of :class:`~.hierarchical_groups.GroupRounds`, to the bit.

    What users say of an iteration reaches the server with the agents' next sum, and the loss of its
    model one later: two exchanges follow the last iteration.
    """

    def _reset(self) -> None:
        super()._reset()
        self._names: dict[int, str] = {}  # group -> of its sum under way
        self._row: dict[str, Any] = {}  # of the last iteration, without its objective

    def pipelined_rounds(self) -> Steps:
        """Iterate until the residuals are small, or all rounds are done."""
        live = {g.number: Live(g, 1 + k) for k, g in enumerate(self.groups_)}
        run = self._run = Progress(live, np.zeros(self.shape_))
        run.models = {0: run.center}
        if self.saved_meta_:
            self._take_up_groups()
        elif not self.trying:
            self.trace_.append((time.monotonic() - run.started, 0, run.center))
        yield from self._exchange(opening=False)
        while not self._is_over():
            yield from self._exchange()
            if self.is_due(run.slowest) and not self._is_over():
                yield from self._save_all()
        yield from self._exchange(working=False)
        assert run.best is not None
        return Learned(self._is_small(), run.best.model)

    def _is_small(self) -> bool:
        run = self._run
        judged = run.slowest > 1 and self.is_judged_at(run.slowest)
        return judged and run.residuals.small(self.tolerance)

    def _is_over(self) -> bool:
        """Tell whether all iterations are done, but for the objective of the last one."""
        return self._is_small() or self._run.slowest >= self.num_rounds

    # -- an exchange

    def _exchange(self, *, opening: bool = True, working: bool = True) -> Steps:
        """Have agents combine what users have sent, if so, and users work on, if so.

        Whom is asked again: of a group whose sum lacks somebody the agent and the users, and all
        agents if theirs lacks one. No total is opened twice.
        """
        run, told = self._run, dict[int, dict[int, wire.StepWithAgentRequest]]()
        run.tick += 1
        self.step = run.tick
        if opening:
            self.settle()
        for number, one in run.live.items():
            told[number] = self._user_requests(one, opening=opening)
            if opening or number not in self._names:  # else they have been told before
                before = self._names.get(number, self._told)
                self._names[number] = next(iter(told[number].values())).sum_name(before)
            if opening:
                assert one.sum is not None
                yield Deliver(one.sum, one.group.agent)
                one.stage, one.sum = "", None
        missing, total = set(run.live) if working else set[int](), None
        for attempt in range(self.attempts):
            combine = self._agent_requests(
                set(run.live) if opening else set(), attempt, wire.CombineRequest
            )
            asked: dict[int, Any] = dict(combine) if opening and total is None else {}
            terms = [self._order_agents()] if asked and len(run.live) > 1 else []
            groups = [self._order_group(run.live[k], self._names[k]) for k in sorted(missing)]
            for number in missing:
                agent = run.live[number].group.agent
                asked[agent] = combine[agent]
                asked |= {u: replace(r, attempt=attempt) for u, r in told[number].items()}
            kinds = {
                p: wire.CombineReply if p in combine else wire.StepWithAgentReply for p in asked
            }
            answers = yield self.question(asked, kinds, running=[*terms, *groups], until="tried")
            if opening and total is None:
                total = self._total_of(terms, combine, answers)
            missing -= {k for k in missing if self._take_group(run.live[k], answers)}
            if not missing and (total is not None or not opening):
                break
        else:
            self._give_up(asked, answers)
        if total is not None:
            yield from self._take_total(total, last=not working)

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
            round=run.tick,
            agent=one.group.agent,
            rho=self.rho_of(one.group.number, done, run.factors[1]),
            relaxation=self.relaxation,
            sealed=b"",
            center=_NOTHING,
            judged=run.center if opening else _NOTHING,
            sigma=self._sigma(one.done, run.factors[0]),
            next_sigma=self._sigma(done, run.factors[1]),
            index=index,
            padded=padded,
            **self.coordinate_fields(first=run.tick == 1),
            **self.chosen_field(),
        )
        users = one.group.users
        size = len(one.sealed) // len(users)
        return {
            user: replace(shared, sealed=one.sealed[k * size : (k + 1) * size] if opening else b"")
            for k, user in enumerate(users)
        }

    def _order_agents(self) -> RunningSum:
        return self._order(wire.AGENTS_SUM, AGENT_STATISTICS, 1 + len(self.groups_))

    def _total_of(
        self, terms: Sequence[RunningSum], agents: Mapping[int, Any], answers: Answers
    ) -> Floats | None:
        """Return the agents' total; nothing, and close their sum, if one of them is missing."""
        there = set(agents) <= set(answers.replies)
        if there and not terms:
            return np.concatenate([answers.replies[agent].term[0] for agent in agents])
        assert self.sums is not None
        for one in terms:
            if there and set(agents) <= set(one.uploaded):
                self.sums.unmask_sections([one])
                return self.sums.total(one)
            self.sums.close(one)
        return None

    def _take_group(self, one: Live, answers: Answers) -> bool:
        """Keep what a group has sent; close its sum if somebody is missing."""
        assert one.sum is not None
        assert self.sums is not None
        members = set(one.group.members)
        if not members <= set(one.sum.uploaded) & set(answers.replies):
            self._close(one)
            return False
        self.sums.unmask_sections([one.sum])
        one.stage, one.sealed = "ready", answers.replies[one.group.agent].sealed
        return True

    def _give_up(self, asked: Mapping[int, Any], answers: Answers) -> None:
        """End the run for want of a group."""
        silent = [p for p in asked if p not in answers.replies]
        group = next(g for g in self.groups_ if not silent or set(silent) & set(g.members))
        who = [f"partition {p} {answers.failures[p]}" for p in silent if p in group.members]
        text = ", ".join(who[:3]) or "a reply came without its sum"
        self._lose(group, f"{text}, {self.attempts} times in a row", stop=True)

    # -- what came

    def _take_total(self, total: Floats, *, last: bool) -> Steps:
        """Tell of the iteration before the last; make the global model of the last one."""
        run, numbers = self._run, self._run.center.size
        terms = total[:numbers]
        losses, primal, size, dual, pull = total[numbers:].reshape(AGENT_STATISTICS, -1)
        if self._row:
            done = self._row["round"]
            if self.is_judged_at(done):
                judged = self.judged(run.models[done - 1], losses)
                run.best = judged.better(run.best)
                self._row["objective"] = float(judged.objectives.sum())
            else:
                self.take_losses(done, losses)
            yield Round(done, self._row)
        if last:
            return
        rho = self.rho_of(min(run.live), run.slowest, run.factors[0])
        for one in run.live.values():
            one.done += 1
        done, now, before = run.slowest, run.factors[1], run.center
        sigma, ridge = self._sigma(done, now), self.coordinates.ridge()
        run.center = global_center(terms.reshape(before.shape), sigma, len(run.live), ridge)
        if not self.trying:
            self.trace_.append((time.monotonic() - run.started, done, run.center))
        run.models = {done - 1: before, done: run.center}
        run.residuals = Residuals(primal, size, dual, pull * self.rows_)
        names = ("primal", "dual")
        self._row = {"round": done, **dict(zip(names, run.residuals.largest(), strict=True))}
        change = float(np.linalg.norm(run.center - before))
        self._row |= {"consensus_difference": change, "rho": float(rho.max())}
        run.factors = now, self.next_growth(now, run.residuals, done)

    # -- checkpoints

    def _save_all(self) -> Steps:
        """Write a checkpoint, for which all nodes keep their state."""
        run = self._run
        yield from self.save_rows(
            run.slowest,
            [p for group in self.groups_ for p in group.members],
            {"center": run.center, "before": run.models[run.slowest - 1]},
            run.best,
            tick=run.tick,
            factors=[own.tolist() for own in run.factors],
            residuals=[own.tolist() for own in astuple(run.residuals)],
            row=self._row,
            names={str(k): name for k, name in self._names.items()},
        )

    def _take_up_groups(self) -> None:
        """Go back to a checkpoint; what was under way between nodes is asked for again."""
        run, meta, arrays = self._run, self.saved_meta_, self.saved_
        done = int(meta["done"])
        for one in run.live.values():
            one.done = done
        run.tick, run.factors = int(meta["tick"]) - 1, tuple(np.array(meta["factors"]))
        run.center, run.models = arrays["center"], {done - 1: arrays["before"]}
        run.residuals, run.best = Residuals(*np.array(meta["residuals"])), self.take_up()
        self._row = meta["row"]
        self._names = {int(k): name for k, name in meta["names"].items()}

"""Consensus over groups: users work, agents combine; a group need not wait for the slowest.

The one part of the method that repeats exchanges by itself. Groups overlap: while the users of one
are asked again, others have answered and agents combine. And what may be asked again is a rule of
privacy: of a group whose sum lacks a user only its agent and its users, as a total in which no
group advances would show what a lost one added; of the model in the end only all who are left, and
once, as two sums over different users would show single ones.
"""

from __future__ import annotations

import time
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from fedkern_flwr.errors import SumError
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Floats, Residuals, may_advance
from fedkern_flwr.method import Steps
from fedkern_flwr.secure_sum import RunningSum
from fedkern_flwr.steps import Overlapping
from fedkern_flwr.strategy import logger

from .hierarchical_agents import AgentRounds
from .hierarchical_cohorts import USERS
from .hierarchical_progress import Live, Progress
from .hierarchical_rows import Learned

_FRESH = 2  # groups that are new in a total at least, so that two totals do not show one group


class GroupRounds(AgentRounds):
    """The iterations of a run with agents.

    The users of a group that is due get a request; when the group's sum is complete, the group is
    ready. As soon as groups may advance, all agents are asked at once: those of advancing groups
    make a new center, all contribute their term to the total, from which the server makes the
    global model. With staleness 0 all groups advance together: two exchanges an iteration.
    """

    # -- the loop

    def group_rounds(self) -> Steps:
        """Iterate until the residuals are small, or the slowest group has done all rounds."""
        live = {g.number: Live(g, 1 + k) for k, g in enumerate(self.groups_)}
        run = self._run = Progress(live, np.zeros(self.shape_))
        run.models = {0: run.center}
        if self.saved_meta_:
            self._go_on()
        self._post = yield Overlapping()
        yield from self._combine(set(), set(run.live))
        if self.staleness:
            self._ask_users([])
        while not self._small() and run.slowest < self.num_rounds:
            if self.is_due(run.slowest):
                yield from self._drain()
                yield from self._save_groups()
            self._launch()
            advancing = yield from self._wait()
            if advancing and not self._small():
                yield from self._combine(advancing, advancing)
                if self.staleness:  # no request to the users is about to leave for all groups
                    self._ask_users([])
        yield from self._drain()
        model = self._model if run.best is None else run.best.model
        return Learned(self._small(), model, run.lost)

    def _small(self) -> bool:
        run = self._run
        done = run.slowest > 1 and run.masked is None and self.is_judged_at(run.slowest)
        return done and run.residuals.small(self.tolerance)

    def _go_on(self) -> None:
        """Take up a run where its checkpoint was written."""
        run, meta, arrays = self._run, self.saved_meta_, self.saved_
        run.lost = {int(k): v for k, v in meta["lost"].items()}
        run.live = {k: one for k, one in run.live.items() if k not in run.lost}
        for number, done in meta["groups"].items():
            run.live[int(number)].done = done
        run.tick, run.factors = int(meta["tick"]), tuple(np.array(meta["factors"]))
        run.center, run.advances = arrays["center"], int(meta["advances"])
        run.models = {run.advances - 1: arrays["before"], run.advances: self._model}
        run.residuals, run.best = Residuals(*np.array(meta["residuals"])), self.take_up()

    def _save_groups(self) -> Steps:
        """Write a checkpoint, for which all nodes keep their state."""
        run = self._run
        self.step = run.tick
        yield from self.save_rows(
            run.slowest,
            [p for one in run.live.values() for p in one.group.members],
            {"center": run.center, "before": run.models[run.newest(1)]},
            run.best,
            tick=run.tick,
            groups={str(k): one.done for k, one in run.live.items()},
            lost={str(k): why for k, why in run.lost.items()},
            advances=run.advances,
            factors=[own.tolist() for own in run.factors],
            residuals=[own.tolist() for own in astuple(run.residuals)],
        )

    # -- users

    def _launch(self) -> None:
        """Ask the users of all groups that are due, and unmask the agents' sum along with it."""
        run = self._run
        limit = run.slowest + self.staleness
        due = [number for number in run.at("ordered") if run.live[number].done <= limit]
        self._ask_users(due)

    def _ask_users(self, due: list[int]) -> None:
        run, post, requests, sums = self._run, self._post, dict[int, Any](), []
        for number in due:
            one = run.live[number]
            assert one.sum is not None
            one.stage, one.deadline = "running", post.deadline
            sums.append(one.sum)
            if not one.attempt:  # while the agents' sum is unmasked, it is the model before
                one.judging = run.newest(self.lost_groups == "leave-out" and not self.ring)
            size = len(one.sealed) // len(one.group.users)
            shared = wire.LocalRequest(
                round=one.done + 1,
                attempt=one.attempt,
                agent=one.group.agent,
                rho=self.rho_of(number, one.done, run.factors[0]),
                relaxation=self.relaxation,
                sealed=b"",
                center=np.zeros((0, 0)),
                judged=run.models[one.judging or 0],
                **self.coordinate_fields(first=one.done == 0),
                **self.chosen_field(),
            )
            for k, user in enumerate(one.group.users):
                requests[user] = replace(shared, sealed=one.sealed[k * size : (k + 1) * size])
        unmask = self._to_unmask()
        if requests or unmask:
            post.send(requests, sums, reply=wire.LocalReply, number=run.tick, unmask=unmask)

    def _to_unmask(self) -> list[RunningSum]:
        """Return the agents' sum if they have yet to unmask it; they have until the time-out."""
        run = self._run
        if run.masked is None or run.unmask_until:
            return []
        run.unmask_until = self._post.deadline
        return [run.masked]

    def _wait(self) -> Steps:
        """Return the groups that advance, as soon as enough of them are ready.

        Fewer than two only if nobody else is at work: else two totals would show one group.
        """
        run = self._run
        while True:
            yield from self._read()
            if run.masked is None:
                done = {number: one.done for number, one in run.live.items()}
                advancing = may_advance(run.at("ready"), done, self.staleness)
                if len(advancing) >= min(_FRESH, len(run.live)) or not run.at("running"):
                    return advancing

    def _drain(self) -> Steps:
        """Wait until no node is at work."""
        self._ask_users([])
        while self._run.at("running") or self._run.masked is not None:
            yield from self._read()

    def _read(self) -> Steps:
        """Take what has arrived; repeat a group's requests, or lose the group."""
        run, post = self._run, self._post
        run.failed |= post.arrived(run.tick)
        if run.masked is not None:
            yield from self._open_total()
        for number in run.at("running"):
            one = run.live[number]
            assert one.sum is not None
            assert self.sums is not None
            users = one.group.users
            if len(one.sum.uploaded) == len(one.sum.cohort.members):
                self.sums.unmask_sections([one.sum])
                post.forget(users)
                one.stage, one.attempt = "ready", 0
            elif run.masked is None and (
                not post.waiting(users) or time.monotonic() > one.deadline
            ):
                run.failed |= post.give_up(users, run.tick)
                who = [f"partition {u} {run.failed.pop(u)}" for u in users if u in run.failed]
                yield from self._again(one, who)

    def _again(self, one: Live, who: list[str]) -> Steps:
        """Ask the users of a group once more, all of them, or lose the group."""
        self._close(one)
        one.attempt += 1
        if one.attempt < self.attempts:
            if (yield from self._pad(one)):
                self._ask_users([one.group.number])
            else:
                self._lose_agent(one.group)
            return
        times = f"{self.attempts} times in a row"
        self._lose(one.group, f"{', '.join(who[:3]) or 'a user did not answer'}, {times}")

    def _pad(self, one: Live) -> Steps:
        """Begin a group's sum anew, with its agent's pad; tell whether the agent answered.

        Nothing else is asked: a total in which no group advances would show what a lost one added.
        """
        agent, self.step = one.group.agent, self._run.tick
        for attempt in range(self.attempts):
            running = self._order_group(one)
            asked = {agent: wire.PadRequest(attempt=attempt)}
            yield self.question(asked, wire.PadReply, running=[running], until="tried")
            if agent in running.uploaded:
                return True
            self._close(one)
        return False

    def _open_total(self) -> Steps:
        """Open the agents' sum once the agents have answered."""
        run, post, masked = self._run, self._post, self._run.masked
        assert masked is not None
        assert self.sums is not None
        agents = [one.group.agent for one in run.live.values()]
        late = time.monotonic() >= run.unmask_until
        if not run.unmask_until or not (masked.complete or late or not post.waiting(agents)):
            return
        post.forget(agents)
        run.unmask_until = 0.0
        post.open(masked, run.tick)
        run.masked = None
        yield from self._take(self.sums.total(masked), run.advanced)

    # -- the end

    def judge_left(self, model: Floats, lost: set[int]) -> Steps:
        """Judge a model on the users that are left, all of them; not at all if some are silent.

        It is opened once only: else the difference of two would show single users.
        """
        self.step += 1
        assert self.sums is not None
        there = [user for user in self.users_ if user not in lost]
        for attempt in range(self.attempts):
            name, length = wire.EVALUATION_SUM, self.judged_numbers
            running = self.sums.order(name, length, self.encoding, cohort=USERS)
            request = wire.EvaluateRequest(
                self_masks=True, bins=self.yard_.bins, model=model, attempt=attempt
            )
            asked = dict.fromkeys(there, request)
            yield self.question(asked, wire.EvaluateReply, running=[running], until="tried")
            if set(there) <= set(running.uploaded):
                break
            self.sums.close(running)
        else:
            there = []
        try:
            if there:
                self._post.unmask(running, self.step)
                return self.outcomes(model, self.sums.total(running))
        except SumError:
            pass
        logger.warning("the model is not judged: not all users that are left answered")
        return {}

"""Consensus over groups: users work, agents combine; a group need not wait for the slowest."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, Message

from fedkern_flwr.consensus import (
    Floats,
    Residuals,
    balance,
    global_center,
    growth,
    may_advance,
    penalty_of,
)
from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.exchange import Courier, Failure, Outcome, read_reply, request_messages
from fedkern_flwr.flower_compat import is_simulated
from fedkern_flwr.groups import AGENT, Group
from fedkern_flwr.secure_sum import RunningSum
from fedkern_flwr.strategy import logger
from fedkern_flwr.wire import hierarchical as wire
from fedkern_flwr.wire import sums as sum_wire

from .hierarchical_steps import Steps, again
from .whole_cohort import FINAL

if TYPE_CHECKING:
    from fedkern_flwr.strategy import Arrays

_GROUP_STATISTICS, _AGENT_STATISTICS = 3, 5
_FRESH = 2  # groups that are new in a total at least, so that two totals do not show one group
_POLL_FIRST, _POLL_LAST, _POLL_SIMULATED = 0.002, 0.5, 0.01  # seconds
_AGENTS = -1  # in place of a group: the deadline of the agents' unmasking


class GroupLoop:
    """The iterations of a run with agents.

    The users of a group that is due get a request; when the group's sum is complete, the group is
    ready. As soon as groups may advance, all agents are asked at once: those of advancing groups
    make a new center, all contribute their term to the total, from which the server makes the
    global model. With staleness 0 all groups advance together: two exchanges an iteration.

    Parameters
    ----------
    steps : Steps
        What belongs to the run.

    Attributes
    ----------
    done : dict
        Group -> iterations completed.
    lost : dict
        Group -> why it was left out.
    tick : int
        How often the agents have been asked.
    best : (float, ndarray) or None
        Least objective so far, and its model.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps, self.strategy = steps, steps.strategy
        self.groups = {group.number: group for group in steps.groups}
        self.cohorts = {group.number: 1 + k for k, group in enumerate(steps.groups)}
        self.done = dict.fromkeys(self.groups, 0)
        self.lost: dict[int, str] = {}
        self.tick = 0
        self.center = np.zeros(steps.shape)
        self.best: tuple[float, Floats] | None = None
        self.residuals = Residuals(0.0, 0.0, 0.0, 0.0)
        self._factors = (1.0, 1.0)  # of rho where it is balanced: of this iteration and the next
        self._advances = 0  # totals for which some group had advanced
        self._models: dict[int, Floats] = {0: self.center}  # of the last few of them
        self._judged: dict[int, int] = {}  # group -> number of the model that its last loss is of
        self._judging: dict[int, int] = {}
        self._rho_used = 0.0
        self._sealed: dict[int, bytes] = {}
        self._ordered: dict[int, RunningSum] = {}  # the agent has contributed, the users have not
        self._running: dict[int, RunningSum] = {}  # the users are at work
        self._ready: dict[int, RunningSum] = {}  # the sum is complete
        self._masked: RunningSum | None = None  # the agents' sum, while its masks are on
        self._advanced: set[int] = set()  # the groups that have advanced with it
        self._deadline: dict[int, float] = {}
        self._attempts: dict[int, int] = {}
        self._failed: dict[int, Failure] = {}
        self._outcome = Outcome()
        self._courier = Courier(steps.grid, self.strategy.ledger_, self.strategy.on_reply())
        self._longest_pause = _POLL_SIMULATED if is_simulated(steps.grid) else _POLL_LAST
        self._started = time.monotonic()

    # -- the loop

    def run(self, rounds: int) -> bool:
        """Iterate until the residuals are small, or the slowest group has done all rounds."""
        strategy = self.strategy
        self._combine(set(), set(self.groups))
        while not self._small():
            slowest = min(self.done.values())
            if slowest >= rounds:
                self._drain()
                return self._small()
            if strategy.checkpoint is not None and slowest - strategy.saved >= (
                strategy.checkpoint_every
            ):
                self._drain()
                self.save(slowest)
            self._launch()
            advancing = self._wait()
            if advancing and not self._small():
                self._combine(advancing, advancing)
        self._drain()
        return True

    def _small(self) -> bool:
        done = min(self.done.values()) > 1 and self._masked is None
        return done and self.residuals.small(self.strategy.tolerance)

    @property
    def model(self) -> Floats:
        """The global model at hand."""
        if self.strategy.consensus == "paper":
            return np.asarray(self.center / len(self.groups))
        return self.center

    def resume(self, arrays: Arrays, meta: dict[str, Any]) -> None:
        """Take up a run where its checkpoint was written."""
        self.done = {int(k): v for k, v in meta["done"].items()}
        self.lost = {int(k): v for k, v in meta["lost"].items()}
        for number in self.lost:
            self.groups.pop(number, None)
        self.tick, self._factors = int(meta["tick"]), tuple(meta["factors"])
        self.center = arrays["center"]
        self._advances = int(meta["advances"])
        self._models = {self._advances - 1: arrays["before"], self._advances: self.model}
        self.residuals = Residuals(*meta["residuals"])
        if meta["best"] is not None:
            self.best = (float(meta["best"]), arrays["best"])

    def save(self, number: int) -> None:
        """Write a checkpoint, for which all nodes keep their state."""
        nodes = [p for group in self.groups.values() for p in group.members]
        self.strategy.saved = number
        if not self.steps.save(self.tick, nodes):
            logger.warning("no checkpoint of iteration %d: not all nodes kept their state", number)
            return
        objective, best = self.best if self.best is not None else (None, np.zeros((0, 0)))
        self.steps.write(
            number,
            {"center": self.center, "best": best, "before": self._models[self._newest_model(1)]},
            {
                "saved": self.tick,
                "tick": self.tick,
                "done": {str(k): v for k, v in self.done.items()},
                "lost": {str(k): v for k, v in self.lost.items()},
                "advances": self._advances,
                "factors": self._factors,
                "residuals": dataclasses.astuple(self.residuals),
                "best": objective,
            },
        )

    # -- users

    def _launch(self) -> None:
        """Ask the users of all groups that are due, and unmask the agents' sum along with it."""
        strategy, messages = self.strategy, []
        limit = min(self.done.values()) + strategy.staleness
        for number in list(self._ordered):
            if self.done[number] <= limit:
                messages += self._requests(self.groups[number])
        if self._masked is not None and _AGENTS not in self._deadline:
            messages += self._unmask_messages()
        if messages:
            self._outcome.failures.update(self._courier.send(messages, phase="svm-local"))

    def _newest_model(self, back: int = 0) -> int:
        """Return the number of the model to judge.

        Where the agents' sum is unmasked while users are at work, it is the one before.
        """
        late = self.strategy.losing == "leave-out" and not self.strategy.ring
        limit = self._advances - max(late, back)
        return max((k for k in self._models if k <= limit), default=min(self._models))

    def _requests(self, group: Group) -> list[Message]:
        steps, strategy, number = self.steps, self.strategy, group.number
        assert strategy.sums is not None
        running = self._running[number] = self._ordered.pop(number)
        self._deadline[number] = time.monotonic() + steps.timeout
        if not self._attempts.get(number):
            self._judging[number] = self._newest_model()
        blob = self._sealed.get(number, b"")
        size = len(blob) // len(group.users)
        nothing = np.zeros((0, 0))
        shared = wire.LocalRequest(
            session=strategy.session,
            round=self.done[number] + 1,
            attempt=self._attempts.get(number, 0),
            agent=group.agent,
            rho=self._rho(number),
            relaxation=strategy.chosen_relaxation,
            sealed=b"",
            center=nothing,
            judged=self._models[self._judging[number]],
            **steps.coordinate_fields(self.done[number] == 0),
        )
        packed, messages = ArrayRecord(shared.arrays()), list[Message]()
        for k, user in enumerate(group.users):
            request = dataclasses.replace(shared, sealed=blob[k * size : (k + 1) * size])
            node = steps.node_of[user]
            messages += request_messages(
                request,
                [node],
                group_id=str(self.tick),
                arrays=packed,
                sections={node: strategy.sums.sections(user, [running])},
            )
        return messages

    def _wait(self) -> set[int]:
        """Return the groups that advance, as soon as enough of them are ready.

        Fewer than two only if nobody else is at work: else two totals would show one group.
        """
        pause, staleness = _POLL_FIRST, self.strategy.staleness
        while True:
            pause = self._collect(pause)
            self._read()
            if self._masked is None:
                advancing = may_advance(self._ready, self.done, staleness)
                if len(advancing) >= min(_FRESH, len(self.groups)) or not self._running:
                    return advancing

    def _collect(self, pause: float) -> float:
        """Take what has arrived, or wait a little; return how long to wait the next time."""
        began = time.monotonic()
        if self._courier.collect(self._outcome) or not self._courier.waiting:
            pause = _POLL_FIRST
        else:
            time.sleep(pause)
            pause = min(1.5 * pause, self._longest_pause)
        self.strategy.ledger_.seconds += time.monotonic() - began
        return pause

    def _drain(self) -> None:
        """Wait until no node is at work."""
        if self._masked is not None and _AGENTS not in self._deadline:
            self._send_unmask()
        pause = _POLL_FIRST
        while self._running or self._masked is not None:
            pause = self._collect(pause)
            self._read()

    def _read(self) -> None:
        """Check what has arrived; repeat a group's requests, or lose the group."""
        strategy, outcome = self.strategy, self._outcome
        self._outcome, failed = Outcome(), dict(outcome.failures)
        for node, message in outcome.replies.items():
            kind = sum_wire.SumReply if self._is_agent(node) else wire.LocalReply
            try:
                read_reply(kind, message, party=strategy.party(node))
                strategy.accept(node)
            except ProtocolError as error:
                failed[node] = Failure("invalid reply", error.problem)
        for node, failure in failed.items():
            strategy.reject(node, failure, self.tick)
            if failure.detail.startswith(FINAL):
                raise ProtocolError(failure.detail.partition(": ")[2], phase="svm-local")
        self._failed |= failed
        if self._masked is not None:
            self._unmask()
        for number, running in list(self._running.items()):
            group = self.groups[number]
            nodes = [self.steps.node_of[user] for user in group.users]
            waiting = set(nodes) & set(self._courier.waiting)
            if self.strategy.whole(running):
                strategy.declare(running)
                self._courier.forget(nodes)
                self._ready[number] = self._running.pop(number)
                self._attempts.pop(number, None)
            elif self._masked is None and (
                not waiting or time.monotonic() > self._deadline[number]
            ):
                for node in waiting:
                    self._failed[node] = Failure("timed out", f"after {self.steps.timeout:g} s")
                    strategy.reject(node, self._failed[node], self.tick)
                self._courier.forget(nodes)
                self._again(group, {n: self._failed.pop(n) for n in nodes if n in self._failed})

    def _is_agent(self, node: int) -> bool:
        return self.strategy.parties_[node].role == AGENT

    def _again(self, group: Group, failed: dict[int, Failure]) -> None:
        """Ask the users of a group once more, all of them, or lose the group."""
        strategy, number = self.strategy, group.number
        strategy.close(self._running.pop(number))
        self._attempts[number] = self._attempts.get(number, 0) + 1
        if self._attempts[number] < strategy.attempts:
            if self._pad(group):
                messages = self._requests(group)
                self._outcome.failures.update(self._courier.send(messages, phase="svm-local"))
            else:
                self._lose(group, f"its agent, partition {group.agent}, did not answer")
            return
        who = [f"partition {strategy.parties_[n].partition} {f}" for n, f in failed.items()]
        times = f"{strategy.attempts} times in a row"
        self._lose(group, f"{', '.join(who[:3]) or 'a user did not answer'}, {times}")

    def _pad(self, group: Group) -> bool:
        """Begin a group's sum anew, with its agent's pad; tell whether the agent answered.

        Nothing else is asked: a total in which no group advances would show what a lost one added.
        """
        strategy, steps = self.strategy, self.steps
        for attempt in range(strategy.attempts):
            running = self._order_group(group.number)
            strategy.step = self.tick
            request = wire.PadRequest(session=strategy.session, round=self.tick, attempt=attempt)
            strategy.ask(
                steps.grid, {group.agent: request}, wire.PadReply, steps.timeout, [running]
            )
            if group.agent in running.uploaded:
                return True
            strategy.close(self._ordered.pop(group.number))
        return False

    def _order_group(self, number: int) -> RunningSum:
        """Begin the next sum of a group."""
        steps, strategy = self.steps, self.strategy
        assert strategy.sums is not None
        self._ordered[number] = strategy.sums.order(
            wire.GROUP_SUM,
            steps.shape[0] * steps.shape[1] + _GROUP_STATISTICS,
            steps.encoding,
            cohort=self.cohorts[number],
            receiver=self.groups[number].agent,
            self_masks=False,
        )
        return self._ordered[number]

    def _lose(self, group: Group, why: str) -> None:
        """Go on without a group, or end the run.

        Raises
        ------
        CohortError
        """
        strategy, number = self.strategy, group.number
        if strategy.losing == "stop" or len(self.groups) <= max(2, strategy.least_agents):
            raise self.steps.lost_group(group, why)
        logger.warning("group %d is left out from here on: %s", number, why)
        for sums in (self._ordered, self._running, self._ready):
            if number in sums:
                strategy.close(sums.pop(number))
        self._courier.forget([self.steps.node_of[p] for p in group.members])
        del self.groups[number], self.done[number]
        strategy.left_out_ = sorted({*strategy.left_out_, *group.members})
        self.lost[number], self.best = why, None  # the best model was judged on its rows as well

    # -- agents

    def _rho(self, number: int) -> float:
        strategy, done = self.strategy, self.done[number]
        return strategy.first_rho(number) * growth(strategy.chosen_schedule, done, self._factors[0])

    def _sigma(self, done: int, factor: float) -> float:
        strategy, steps = self.strategy, self.steps
        if strategy.sigma is not None:
            return float(strategy.sigma)
        first = float(np.mean([strategy.first_rho(group.number) for group in steps.groups]))
        grown = growth(strategy.chosen_schedule, done, factor)
        return first * grown * len(steps.users) / len(steps.groups)

    def _combine(self, advancing: set[int], ordering: set[int]) -> None:
        """Have all agents contribute their terms, those of advancing groups after a new center.

        Those of ``ordering`` groups contribute their pad to their groups' next sums.
        """
        strategy = self.strategy
        self.tick += 1
        strategy.step = self.tick
        self._rho_used = self._rho(min(self.groups))
        found: dict[int, wire.AgentReply] = {}
        total: RunningSum | None = None
        sums: list[RunningSum] = []
        for attempt in range(strategy.attempts):
            for running in sums:
                strategy.close(running)
            total, sums = self._order(ordering & set(self.groups))
            found = strategy.ask(
                self.steps.grid,
                again(self._agent_requests(advancing), attempt),
                wire.AgentReply,
                self.steps.timeout,
                sums,
                {self.groups[g].agent: [self._ready[g]] for g in advancing},
            )
            if self._answered(found, total):
                break
        for number, group in list(self.groups.items()):
            if group.agent not in found:
                self._lose(group, f"its agent, partition {group.agent}, did not answer")
                advancing.discard(number)
        self._advances += bool(advancing)
        for number in advancing:
            strategy.close(self._ready.pop(number))
            self.done[number] += 1
            self._judged[number] = self._judging[number]
        for number, group in self.groups.items():
            if number in advancing or number in ordering:
                self._sealed[number] = found[group.agent].sealed
        if strategy.ring:
            self._take(self._go_round(), advancing)
        elif total is None:
            self._take(np.concatenate(next(iter(found.values())).term), advancing)
        elif not total.order.self_masks:
            self._take(strategy.total(total), advancing)
        else:
            self._masked, self._advanced = total, advancing
            if strategy.staleness:  # no request to the users is about to leave for all groups
                self._send_unmask()

    def _send_unmask(self) -> None:
        """Have the agents unmask their sum, in an exchange of its own."""
        messages = self._unmask_messages()
        self._outcome.failures.update(self._courier.send(messages, phase="unmask"))

    def _unmask_messages(self) -> list[Message]:
        """Return what asks the agents to unmask their sum; they have until the time-out."""
        assert self._masked is not None
        self._deadline[_AGENTS] = time.monotonic() + self.steps.timeout
        return self.strategy.unmask_messages(
            self.steps.grid, [self._masked], number=self.tick, timeout=self.steps.timeout
        )

    def _order(self, ordering: set[int]) -> tuple[RunningSum | None, list[RunningSum]]:
        """Begin the agents' sum and the next sums of groups."""
        steps, strategy = self.steps, self.strategy
        assert strategy.sums is not None
        numbers = steps.shape[0] * steps.shape[1]
        own = [self._order_group(number) for number in sorted(ordering)]
        if strategy.ring or len(steps.groups) == 1:
            return None, own
        total = strategy.sums.order(
            wire.AGENTS_SUM,
            numbers + _AGENT_STATISTICS,
            steps.encoding,
            cohort=1 + len(steps.groups),
            self_masks=strategy.losing == "leave-out",
        )
        return total, [total, *own]

    def _agent_requests(self, advancing: set[int]) -> dict[int, wire.AgentRequest]:
        steps, strategy = self.steps, self.strategy
        after = min(t + (g in advancing) for g, t in self.done.items())
        sigma = self._sigma(min(self.done.values()), self._factors[0])
        next_sigma = self._sigma(after, self._factors[1])
        return {
            group.agent: wire.AgentRequest(
                session=strategy.session,
                round=self.tick,
                advance=number in advancing,
                consensus=strategy.consensus,
                rho=self._rho(number),
                sigma=sigma,
                next_sigma=next_sigma,
                relaxation=strategy.chosen_relaxation,
                all_users=len(steps.users),
                groups=len(self.groups),
                plain=len(steps.groups) == 1,
                self_masks=strategy.losing == "leave-out",
                ring=strategy.ring,
                outputs=steps.shape[0],
                width=steps.shape[1],
                users=np.array(group.users, np.int32),
                center=self.center,
            )
            for number, group in self.groups.items()
        }

    def _answered(self, found: dict[int, wire.AgentReply], total: RunningSum | None) -> bool:
        """Tell whether all agents that are left have answered and contributed."""
        agents = {group.agent for group in self.groups.values()}
        padded = all(
            self.groups[number].agent in running.uploaded
            for number, running in self._ordered.items()
        )
        return set(found) == agents and padded and (total is None or agents <= set(total.uploaded))

    def _unmask(self) -> None:
        """Open the agents' sum once the agents have answered."""
        assert self._masked is not None
        strategy, masked = self.strategy, self._masked
        agents = [self.steps.node_of[group.agent] for group in self.groups.values()]
        waiting = set(agents) & set(self._courier.waiting)
        asked = _AGENTS in self._deadline
        if not asked or (
            not masked.complete and waiting and time.monotonic() < self._deadline[_AGENTS]
        ):
            return
        self._courier.forget(agents)
        del self._deadline[_AGENTS]
        strategy.open_sums(self.steps.grid, [masked], number=self.tick, timeout=self.steps.timeout)
        assert strategy.sums is not None
        self._masked = None
        self._take(strategy.sums.total(masked), self._advanced)

    def _take(self, total: Floats, advancing: set[int]) -> None:
        """Make the global model from the agents' total, and note how far the run is."""
        steps, strategy = self.steps, self.strategy
        numbers = steps.shape[0] * steps.shape[1]
        terms, own = total[:numbers].reshape(steps.shape), total[numbers:]
        slowest = min(self.done.values())
        before = self.model
        if strategy.consensus == "paper":
            self.center = terms
        else:
            sigma = self._sigma(slowest, self._factors[1])
            self.center = global_center(terms, sigma, len(self.groups), steps.ridge)
        if advancing:
            self._models[self._advances] = self.model
        strategy.trace_.append((time.monotonic() - self._started, slowest, self.model))
        if advancing:
            primal, size, dual, pull = own[1:].tolist()
            self.residuals = Residuals(primal, size, dual, pull * steps.rows)
            self._record(float(own[0]), slowest, float(np.linalg.norm(self.model - before)))

    def _record(self, loss: float, slowest: int, change: float) -> None:
        strategy, steps = self.strategy, self.steps
        primal, dual = self.residuals.relative
        if slowest <= (strategy.history_[-1]["round"] if strategy.history_ else 0):
            return
        row: dict[str, Any] = {"round": slowest, "primal": primal, "dual": dual}
        row |= {"consensus_difference": change, "rho": self._rho_used}
        judged = {self._judged.get(number) for number in self.groups}
        if len(judged) == 1 and (number := judged.pop()) in self._models:
            model = self._models[number]
            objective = penalty_of(model, steps.ridge) + strategy.C * steps.rows * loss
            row["objective"] = objective
            alike = not strategy.staleness  # else few models are judged, and not the last
            if alike and (self.best is None or objective < self.best[0]):
                self.best = (objective, model)
        oldest = min([*self._judged.values(), *self._judging.values(), self._advances - 1])
        self._models = {k: model for k, model in self._models.items() if k >= oldest}
        strategy.history_.append(row)
        if strategy.chosen_schedule == "balanced":
            now = self._factors[1]
            self._factors = (now, now * balance(primal, dual, slowest))
        if strategy.on_round is not None:
            strategy.on_round(min(slowest, strategy.rounds), strategy.rounds, row)

    # -- the ring

    def _go_round(self) -> Floats:
        """Sum the agents' terms around the ring, past those that do not answer.

        Raises
        ------
        CohortError
            The first agent does not answer, or an agent must not be lost.
        """
        agents = [group.agent for group in self.groups.values()]
        inputs: list[tuple[int, bytes]] = [(-1, b"")]
        k = 0
        while k < len(agents):
            reply = self._hop(agents[k], inputs[k], agents[(k + 1) % len(agents)], first=k == 0)
            if reply is None:
                group = next(g for g in self.groups.values() if g.agent == agents[k])
                why = f"its agent, partition {agents[k]}, did not answer"
                if k == 0:  # it has the mask
                    raise self.steps.lost_group(group, why)
                self._lose(group, why)
                del agents[k], inputs[k]
                k -= 1  # the one before seals for another
                continue
            inputs[k + 1 :] = [(agents[k], reply.sealed)]
            k += 1
        ended = self._hop(agents[0], inputs[k], -1, first=False)
        if ended is None or len(ended.term) != 1:
            group = next(g for g in self.groups.values() if g.agent == agents[0])
            raise self.steps.lost_group(group, f"its agent, partition {agents[0]}, did not answer")
        return ended.term[0]

    def _hop(
        self, agent: int, source: tuple[int, bytes], destination: int, *, first: bool
    ) -> wire.RingReply | None:
        """Let an agent take its turn; return nothing if it does not answer."""
        steps, strategy = self.steps, self.strategy
        request = wire.RingRequest(
            session=strategy.session,
            round=self.tick,
            first=first,
            last=destination < 0,
            source=source[0],
            destination=destination,
            groups=len(steps.groups),
            bound=strategy.bound,
            sealed=source[1],
        )
        for attempt in range(strategy.attempts):
            asked = again({agent: request}, attempt)
            found = strategy.ask(steps.grid, asked, wire.RingReply, steps.timeout)
            if agent in found:
                reply: wire.RingReply = found[agent]
                return reply
        return None

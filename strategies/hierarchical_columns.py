"""Columns at the groups: users multiply, agents and the label owner combine at the same time.

An iteration (:mod:`fedkern_flwr.solvers.dual_subspace`) is two exchanges: the users multiply the
owner's message and the agents' weights with their rows; then agents open the next weights, and the
owner the outputs, from which it makes the next message. Rows are predicted with a saved model in
three exchanges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.exchange import SERVER, SumSpec
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.members import Group, RowPlan
from fedkern_flwr.judging.figures import Yardstick, bins_of
from fedkern_flwr.method import Ask, Deliver, Round, Steps

from .hierarchical_rows import Saver

if TYPE_CHECKING:
    from .hierarchical_svm import HierarchicalSVM

_OVERHEAD = 28  # bytes that sealing adds
_NOTHING, _BYTES = np.zeros(0, np.int32), np.zeros(0, np.uint8)


class Sealed(NamedTuple):
    """What was sealed for users in a step."""

    parts: dict[int, bytes]
    step: int


_UNSEALED = Sealed({}, 0)


def cut_sealed(data: bytes, sizes: Mapping[int, int]) -> dict[int, bytes]:
    """Return what is meant for each user, from pieces of so many bytes in turn."""
    ends = np.cumsum(list(sizes.values())).tolist()
    pairs = zip(sizes, [0, *ends], ends, strict=False)
    return {user: data[start:end] for user, start, end in pairs}


@dataclass
class ColumnRun:
    """A run of a vertical split, as far as it is.

    Attributes
    ----------
    options : HierarchicalSVM
        The options, the groups and their columns, and which rows belong together.
    facts : SVMFacts
        What is public of the run.
    saver : Saver
    step : int
        Number of the exchange at hand.
    message : Sealed
        The owner's message, for users.
    opened : Sealed
        What agents opened, for their users.
    last : OwnerReply
    """

    options: HierarchicalSVM
    facts: wire.SVMFacts
    saver: Saver
    step: int
    message: Sealed = _UNSEALED
    opened: Sealed = _UNSEALED
    last: wire.OwnerReply = field(
        default_factory=lambda: wire.OwnerReply(sealed=_BYTES, counts=np.zeros(0))
    )

    @property
    def plan(self) -> RowPlan:
        """Which rows belong together."""
        return self.options.row_plan_

    @property
    def users(self) -> dict[int, Group]:
        """All users, group by group, and the group of each."""
        return {user: group for group in self.options.groups_ for user in group.users}

    @property
    def yard(self) -> Yardstick:
        """What the label owner counts."""
        facts, held_out = self.facts, self.plan.all_rows - self.plan.rows
        bins = bins_of(held_out, facts.classes)
        return Yardstick(facts.classes, facts.outputs, facts.label_bound, bins)

    # -- the loop

    def iterate(self, meta: Mapping[str, Any]) -> Steps:
        """Iterate until the duality gap is small or all rounds are done.

        Returns
        -------
        int
            Iterations.
        bool
            Whether the gap is small.
        str
            How far the run is from the optimum.
        """
        done = int(meta.get("done", 0))
        if meta:  # what was sealed has keys of another session
            yield from self._open_and_lead("again", "again")
        else:
            yield from self._measure()
            yield from self._open_and_lead("columns", "start")
            yield from self._visit("columns")
            yield from self._open_and_lead("weights", "first")
        while not self.last.model:
            if self.saver.is_due(done):
                self.step += 1
                agents = [group.agent for group in self.options.groups_]
                nodes = [*self.users, *agents, self.facts.owner]
                yield from self.saver.save(self.step, done, nodes, {})
            yield from self._visit("weights")
            done += 1
            yield from self._open_and_lead(
                "weights", "last" if done >= self.options.num_rounds else "step"
            )
            objective, bound = self.last.objective, self.last.bound
            gap = max(0.0, objective - bound) / objective
            yield Round(done, {"objective": objective, "gap": gap})
        objective, bound = self.last.objective, self.last.bound
        converged = objective - bound <= self.options.tolerance * objective
        return done, converged, f"relative gap {(objective - bound) / objective:.1e}"

    def judge(self) -> Steps:
        """Have the model made, and its outputs judged; return what the label owner counted."""
        yield from self._visit("message")
        yield from self._open_and_lead("model", None)
        yield from self._visit("judge")
        yield from self._open_and_lead(None, "judge")
        counts = self.last.counts
        if len(counts) not in (0, self.yard.length):
            raise ProtocolError(
                "its counts of held-out rows are missing",
                party="the label owner",
                code="FK-MESSAGE-SHAPE",
            )
        return counts

    # -- users

    def _plan_of(self, user: int, group: Group) -> dict[str, Any]:
        """Return the fields of a request that say which rows a user has."""
        plan = {"take": self.plan.take[user], "place": self.plan.place[user]}
        return {"agent": group.agent, "owner": self.facts.owner, **plan}

    def _measure(self) -> Steps:
        """Have the users contribute the statistics of their columns."""
        self.step += 1
        requests = {
            user: wire.ColumnsRequest(
                rows=self.plan.rows,
                all_rows=self.plan.all_rows,
                standardised=self.options.scale == "standard",
                **self._plan_of(user, group),
            )
            for user, group in self.users.items()
        }
        yield from self._ask_users(requests, wire.ColumnsReply)

    def _visit(self, kind: str) -> Steps:
        """Have the users multiply.

        ``columns``: the first message, with the coordinates; ``weights``: a message and weights;
        ``message``: the model's message; ``judge``: the model's weights, for all rows.
        """
        self.step += 1
        message, opened = self.message, self.opened
        requests = {
            user: wire.VisitRequest(
                width=self.facts.outputs,
                message_round=message.step,
                weights_round=opened.step,
                coordinates=opened.parts[user] if kind == "columns" else b"",
                message=b"" if kind == "judge" else message.parts[user],
                weights=opened.parts[user] if kind in ("weights", "judge") else b"",
                judge=kind == "judge",
            )
            for user in self.users
        }
        yield from self._ask_users(requests, wire.VisitReply)

    def _ask_users(self, requests: Mapping[int, Any], reply: Any) -> Steps:
        """Have users contribute to sums, and those whom they belong to the pads."""
        sums = dict[str, SumSpec]()
        for k, group in enumerate(self.options.groups_):
            own: dict[str, Any] = {"agent": group.agent, "label": f"group {group.number}"}
            columns = self.options.columns_of(group)
            facts = replace(self.facts, columns=columns, cohort=1 + k, **own)
            sums |= {spec.key: spec for spec in requests[group.users[0]].sum_specs(facts)}
        owners = [one.receiver for one in sums.values() if one.receiver != SERVER]
        receivers = dict.fromkeys(owners, wire.PadRequest())
        kinds = dict.fromkeys(requests, reply) | dict.fromkeys(receivers, wire.PadReply)
        asked: dict[int, Any] = {**requests, **receivers}
        specs = sorted(sums.values(), key=lambda spec: spec.cohort == wire.EVERYBODY)
        answers = yield Ask(asked, reply=kinds, number=self.step, sums=specs)
        for running in answers.running.values():
            yield Deliver(running, running.order.receiver)

    # -- agents and label owner

    def _open_and_lead(self, block: str | None, owner: str | None) -> Steps:
        """Have agents open their groups' sums, and the owner that of the outputs, at once."""
        self.step += 1
        requests: dict[int, Any] = {}
        kinds: dict[int, Any] = {}
        for group in self.options.groups_ if block is not None else ():
            kinds[group.agent] = wire.BlockReply
            requests[group.agent] = wire.BlockRequest(
                kind=block or "",
                rows=self.plan.rows,
                standardised=self.options.scale == "standard",
                users=np.array(group.users, np.int32),
            )
        if owner is not None:
            kinds[self.facts.owner] = wire.OwnerReply
            requests[self.facts.owner] = self._owner_request(owner)
        ends = owner == "judge"
        found = (yield Ask(requests, reply=kinds, number=self.step, ends=ends)).replies
        if block is not None:
            self.opened = self._in_equal_parts(found)
        if owner is not None:
            self.last = found[self.facts.owner]
        if owner not in (None, "judge"):
            width = 8 * self.facts.outputs
            sizes = {u: len(self.plan.learned(u)) * width + _OVERHEAD for u in self.users}
            self.message = Sealed(cut_sealed(self.last.sealed.tobytes(), sizes), self.step)

    def _in_equal_parts(self, replies: Mapping[int, Any]) -> Sealed:
        """Return what agents sealed in this step for each of their users."""
        parts: dict[int, bytes] = {}
        for group in self.options.groups_:
            blob = replies[group.agent].sealed
            parts |= cut_sealed(blob, dict.fromkeys(group.users, len(blob) // len(group.users)))
        return Sealed(parts, self.step)

    def _owner_request(self, kind: str) -> wire.OwnerRequest:
        plan, users = self.plan, [*self.users] if kind == "start" else []
        learned = [plan.learned(user) for user in users]
        return wire.OwnerRequest(
            kind=kind,
            loss=self.options.loss,
            c=self.options.C_,
            tolerance=self.options.tolerance,
            rows=plan.rows,
            bins=self.yard.bins if kind == "judge" else 0,
            take=plan.owner if users else _NOTHING,
            users=np.array(users, np.int32),
            sizes=np.array(list(map(len, learned)), np.int32),
            place=np.concatenate([_NOTHING, *learned]),
        )

    # -- predictions with a saved model

    def predict(self, model: str, calibration: Iterable[float]) -> Steps:
        """Predict the owner's held-out rows; return how many.

        Agents seal their parts of the model for the users, these multiply them with their rows, and
        the label owner opens the sums.
        """
        plan, owner = self.plan, self.facts.owner
        self.step += 1
        recalls = {
            group.agent: wire.RecallRequest(model=model, users=np.array(group.users, np.int32))
            for group in self.options.groups_
        }
        found = (yield Ask(recalls, reply=wire.RecallReply, number=self.step)).replies
        sealed = self._in_equal_parts(found)
        self.step += 1
        requests = {
            user: wire.ContributeRequest(
                rows=plan.all_rows,
                width=self.facts.outputs,
                sealed_round=sealed.step,
                sealed=sealed.parts[user],
                **self._plan_of(user, group),
            )
            for user, group in self.users.items()
        }
        yield from self._ask_users(requests, wire.ContributeReply)
        self.step += 1
        numbers = np.array([*calibration], np.float64)
        asked = {owner: wire.WriteRequest(model=model, take=plan.owner, calibration=numbers)}
        last = yield Ask(asked, reply=wire.WriteReply, number=self.step, ends=True)
        return int(last.replies[owner].samples)

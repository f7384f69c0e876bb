"""Vertical splits: users multiply, agents and the label owner combine at the same time.

Rows are predicted with a saved model in three exchanges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.exchange import SERVER
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.digits import DIGITS
from fedkern_flwr.groups.members import OWNER
from fedkern_flwr.judging.figures import Yardstick, bins_of
from fedkern_flwr.method import Deliver, Round, Steps, SumSpec
from fedkern_flwr.planning import Allowance, allowance

from .hierarchical_options import SVMOptions

_OVERHEAD = 28  # bytes that sealing adds
_NOTHING, _BYTES = np.zeros(0, np.int32), np.zeros(0, np.uint8)


class Sealed(NamedTuple):
    """What was sealed for users in a step."""

    parts: dict[int, bytes]
    step: int


def cut_sealed(data: bytes, sizes: Mapping[int, int]) -> dict[int, bytes]:
    """Return what is meant for each user, from pieces of so many bytes in turn."""
    ends = np.cumsum(list(sizes.values())).tolist()
    pairs = zip(sizes, [0, *ends], ends, strict=False)
    return {user: data[start:end] for user, start, end in pairs}


class ColumnRounds(SVMOptions):
    """The iterations of a vertical split, see :mod:`fedkern_flwr.solvers.dual_subspace`.

    An iteration is two exchanges: the users multiply the owner's message and the agents' weights
    with their rows; then agents open the next weights, and the owner the outputs, from which it
    makes the next message.
    """

    def _reset(self) -> None:
        super()._reset()
        self._message = Sealed({}, 0)  # the owner's, for users
        self._opened = Sealed({}, 0)  # what agents opened, for their users
        self._last = wire.OwnerReply(sealed=_BYTES, counts=np.zeros(0))

    @property
    def _owner(self) -> int:
        return int(next(p.partition for p in self.described_parties() if p.role == OWNER))

    # -- what the nodes' release limits allow

    def plan_iterations(self) -> None:
        """Plan iterations within what the users' nodes grant this run; see ``plan_sizes``.

        Users count statistics of columns, and for each visit products with the messages, objective
        and bound. There are two visits more than iterations. A user's own rows alone are hidden, as
        the server chooses those of the others.
        """
        fits = list[tuple[float, Allowance]]()
        for user in map(self.party_of, self.users_):
            rows = {user.partition: len(self.row_plan_.learned(user.partition))}
            allowed = allowance([user], labels=0, rows=rows)
            left = allowed.numbers - 2 * DIGITS * user.features
            fits.append((left / (user.features * self.outputs_ + 2) - 2, allowed))
        fit, allowed = min(fits, key=lambda one: one[0])
        if any(one.planned for _, one in fits):
            if self.num_rounds == self.default_rounds:
                self.num_rounds = int(min(self.num_rounds, max(1.0, fit)))
            self.note_plan(f"{self.num_rounds} iterations", allowed)

    # -- the loop

    def column_rounds(self) -> Steps:
        """Iterate until the duality gap is small, or all rounds are done; return the metrics."""
        done = int(self.saved_meta_.get("done", 0))
        if self.saved_meta_:  # what was sealed has keys of another session
            yield from self._open_and_lead("again", "again")
        else:
            yield from self._measure()
            yield from self._open_and_lead("columns", "start")
            yield from self._visit("columns")
            yield from self._open_and_lead("weights", "first")
        while not self._last.model:
            if self.is_due(done):
                self.step += 1
                agents = [group.agent for group in self.groups_]
                yield from self.save(done, [*self.users_, *agents, self._owner], {})
            yield from self._visit("weights")
            done += 1
            yield from self._open_and_lead("weights", "last" if done >= self.num_rounds else "step")
            objective, bound = self._last.objective, self._last.bound
            gap = max(0.0, objective - bound) / objective
            yield Round(done, {"objective": objective, "gap": gap})
        objective, bound = self._last.objective, self._last.bound
        converged = objective - bound <= self.tolerance * objective
        yield from self._visit("message")
        yield from self._open_and_lead("model", None)
        yield from self._visit("judge")
        yield from self._open_and_lead(None, "judge")
        apart = f"relative gap {(objective - bound) / objective:.1e}"
        ended = self.note_end(done, converged=converged, apart=apart)
        found: dict[str, Any] = {"objective": self._last.objective, **ended}
        if not self._last.counts.size:
            self.nodes.note_untold()
            return found
        if len(self._last.counts) != self._yard.length:
            raise ProtocolError(
                "its counts of held-out rows are missing",
                party="the label owner",
                code="FK-MESSAGE-SHAPE",
            )
        return found | self.judge_by(self._yard, self._last.counts)

    @property
    def _yard(self) -> Yardstick:
        """What the label owner counts."""
        bins = bins_of(self.row_plan_.all_rows - self.row_plan_.rows, self.classes_)
        return Yardstick(self.classes_, self.outputs_, self.label_bound_, bins)

    # -- users

    def _measure(self) -> Steps:
        """Have the users contribute the statistics of their columns."""
        self.step += 1
        plan, owner = self.row_plan_, self._owner
        requests = {
            user: wire.ColumnsRequest(
                agent=group.agent,
                owner=owner,
                rows=plan.rows,
                all_rows=plan.all_rows,
                standardised=self.scale == "standard",
                take=plan.take[user],
                place=plan.place[user],
            )
            for group in self.groups_
            for user in group.users
        }
        yield from self.sum_for_others(requests, wire.ColumnsReply, self._group_terms(2 * DIGITS))

    def _visit(self, kind: str) -> Steps:
        """Have the users multiply.

        ``columns``: the first message, with the coordinates; ``weights``: a message and weights;
        ``message``: the model's message; ``judge``: the model's weights, for all rows.
        """
        self.step += 1
        width, judge, plan = self.outputs_, kind == "judge", self.row_plan_
        weights = judge or kind == "weights"
        requests = {
            user: wire.VisitRequest(
                width=width,
                message_round=self._message.step,
                weights_round=self._opened.step,
                coordinates=self._opened.parts[user] if kind == "columns" else b"",
                message=b"" if judge else self._message.parts[user],
                weights=self._opened.parts[user] if weights else b"",
                judge=judge,
            )
            for user in self.users_
        }
        terms = [] if judge else self._group_terms(width)
        if weights:
            name = wire.JUDGED_SUM if judge else wire.OUTPUT_SUM
            rows = plan.all_rows if judge else plan.rows
            terms.append(self.term(name, rows * width, receiver=self._owner))
        yield from self.sum_for_others(requests, wire.VisitReply, terms)

    def _group_terms(self, width: int) -> list[SumSpec]:
        return [
            self.term(
                wire.GROUP_SUM,
                self.party_of(group.users[0]).features * width,
                1 + k,
                receiver=group.agent,
                label=f"group {group.number}",
            )
            for k, group in enumerate(self.groups_)
        ]

    def sum_for_others(self, requests: Mapping[int, Any], reply: Any, sums: list[SumSpec]) -> Steps:
        """Have users contribute to sums, and those whom they belong to the pads."""
        receivers = dict.fromkeys(
            [one.receiver for one in sums if one.receiver != SERVER], wire.PadRequest()
        )
        kinds = dict.fromkeys(requests, reply) | dict.fromkeys(receivers, wire.PadReply)
        answers = yield self.question({**requests, **receivers}, kinds, sums=sums)
        for running in answers.running.values():
            yield Deliver(running, running.order.receiver)
        return answers.replies

    # -- agents and label owner

    def _open_and_lead(self, block: str | None, owner: str | None) -> Steps:
        """Have agents open their groups' sums, and the owner that of the outputs, at once."""
        self.step += 1
        requests: dict[int, Any] = {}
        kinds: dict[int, Any] = {}
        for group in self.groups_ if block is not None else ():
            kinds[group.agent] = wire.BlockReply
            requests[group.agent] = wire.BlockRequest(
                kind=block or "",
                rows=self.row_plan_.rows,
                standardised=self.scale == "standard",
                users=np.array(group.users, np.int32),
            )
        if owner is not None:
            kinds[self._owner] = wire.OwnerReply
            requests[self._owner] = self._owner_request(owner)
        found = (yield self.question(requests, kinds, ends=owner == "judge")).replies
        if block is not None:
            self._opened = self.in_equal_parts(found)
        if owner is not None:
            self._last = found[self._owner]
        if owner not in (None, "judge"):
            parts = cut_sealed(self._last.sealed.tobytes(), self._sizes(self.users_))
            self._message = Sealed(parts, self.step)

    def in_equal_parts(self, replies: Mapping[int, Any]) -> Sealed:
        """Return what agents sealed in this step for each of their users."""
        parts: dict[int, bytes] = {}
        for group in self.groups_:
            blob = replies[group.agent].sealed
            parts |= cut_sealed(blob, dict.fromkeys(group.users, len(blob) // len(group.users)))
        return Sealed(parts, self.step)

    def _sizes(self, users: Any) -> dict[int, int]:
        """Return the bytes of the message for each user."""
        plan, width = self.row_plan_, 8 * self.outputs_
        return {user: len(plan.learned(user)) * width + _OVERHEAD for user in users}

    def _owner_request(self, kind: str) -> wire.OwnerRequest:
        plan, users = self.row_plan_, list[int]()
        if kind == "start":
            users = self.users_
        learned = [plan.learned(user) for user in users]
        return wire.OwnerRequest(
            kind=kind,
            loss=self.loss,
            c=self.C_,
            tolerance=self.tolerance,
            rows=plan.rows,
            bins=self._yard.bins if kind == "judge" else 0,
            take=plan.owner if users else _NOTHING,
            users=np.array(users, np.int32),
            sizes=np.array(list(map(len, learned)), np.int32),
            place=np.concatenate([_NOTHING, *learned]),
        )

    # -- predictions with a saved model

    def predict_columns(self, model: str, calibration: Sequence[float]) -> Steps:
        """Predict the owner's held-out rows of a vertical split; return how many.

        Agents seal their parts of the model for the users, these multiply them with their rows, and
        the label owner opens the sums.
        """
        self.step += 1
        recalls = {
            group.agent: wire.RecallRequest(model=model, users=np.array(group.users, np.int32))
            for group in self.groups_
        }
        found = (yield self.question(recalls, wire.RecallReply)).replies
        sealed, plan, owner = self.in_equal_parts(found), self.row_plan_, self._owner
        self.step += 1
        requests = {
            user: wire.ContributeRequest(
                agent=group.agent,
                owner=owner,
                rows=plan.all_rows,
                width=self.outputs_,
                sealed_round=sealed.step,
                sealed=sealed.parts[user],
                take=plan.take[user],
                place=plan.place[user],
            )
            for group in self.groups_
            for user in group.users
        }
        outputs = self.term(wire.PREDICTED_SUM, plan.all_rows * self.outputs_, receiver=owner)
        yield from self.sum_for_others(requests, wire.ContributeReply, [outputs])
        self.step += 1
        numbers = np.array(calibration, np.float64)
        asked = {owner: wire.WriteRequest(model=model, take=plan.owner, calibration=numbers)}
        found = (yield self.question(asked, wire.WriteReply, ends=True)).replies
        return int(found[owner].samples)

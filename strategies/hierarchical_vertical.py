"""Vertical splits: users multiply, agents and the label owner combine at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedkern_flwr.groups import OWNER, RowPlan
from fedkern_flwr.labels import outcome_metrics
from fedkern_flwr.secure_sum import Encoding, RunningSum
from fedkern_flwr.strategy import logger
from fedkern_flwr.wire import PhaseMessage
from fedkern_flwr.wire import hierarchical as wire

from .hierarchical_steps import Sealed, again, cut_sealed

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from fedkern_flwr.strategy import Arrays

    from .hierarchical_svm import HierarchicalSVM

_USERS = 0  # cohort of all users and the label owner
_OVERHEAD = 28  # bytes that sealing adds
_NOTHING, _BYTES = np.zeros(0, np.int32), np.zeros(0, np.uint8)


class Wanted(NamedTuple):
    """A sum that an exchange takes."""

    name: str
    length: int
    cohort: int
    receiver: int


class VisitLoop:
    """The iterations of a vertical split, see :mod:`fedkern_flwr.dual_subspace`.

    An iteration is two exchanges: the users multiply the owner's message and the agents' weights
    with their rows; then agents open the next weights, and the owner the outputs, from which it
    makes the next message. With orthogonal products a third, in which agents mask the message.

    Parameters
    ----------
    strategy : HierarchicalSVM
    grid : Grid
        Flower's grid.
    timeout : float
        Seconds to wait for the replies of one exchange.
    """

    def __init__(self, strategy: HierarchicalSVM, grid: Grid, timeout: float) -> None:
        self.strategy, self.grid, self.timeout = strategy, grid, timeout
        self.plan: RowPlan = strategy.row_plan_
        self.groups = strategy.groups_
        self.users = [user for group in self.groups for user in group.users]
        self.group_of = {user: group for group in self.groups for user in group.users}
        parties = list(strategy.described_parties())
        self.owner = next(p.partition for p in parties if p.role == OWNER)
        self.features = {p.partition: p.features for p in parties}
        self.encoding = Encoding.fixed_point(strategy.bound)
        self.width = strategy.outputs_
        self.done = 0
        self._message = Sealed({}, 0)  # the owner's, for users
        self._opened = Sealed({}, 0)  # what agents opened, for their users
        self._vectors: dict[int, bytes] = {}  # what users sealed for their agents
        self._group_sums: dict[int, RunningSum] = {}
        self._output_sum: RunningSum | None = None
        self._last = wire.OwnerReply(
            round=0, model=False, objective=0.0, bound=0.0, sealed=_BYTES, counts=np.zeros(0)
        )

    # -- the loop

    def run(self, rounds: int, restored: tuple[Arrays, Mapping[str, Any]] | None) -> dict[str, Any]:
        """Iterate until the duality gap is small, or all rounds are done; return the metrics."""
        strategy = self.strategy
        if restored is None:
            self._measure()
            self._combine("columns", "start")
            self._visit("columns")
            self._combine("weights", "first")
        else:
            self._resume(restored[1])
        while not self._last.model:
            if strategy.checkpoint is not None and (
                self.done - strategy.saved >= strategy.checkpoint_every
            ):
                self._save()
            self._visit("weights")
            self.done += 1
            self._combine("weights", "last" if self.done >= rounds else "step")
            self._record()
        last = self._last
        converged = last.objective - last.bound <= strategy.tolerance * last.objective
        self._visit("message")
        self._combine("model", None)
        self._visit("judge")
        self._combine(None, "judge")
        found: dict[str, Any] = {
            "objective": self._last.objective,
            "iterations": self.done,
            "converged": converged,
        }
        if self._last.counts.size:
            found |= outcome_metrics(self._last.counts, strategy.classes_, strategy.label_bound_)
        else:
            strategy.note_untold()
        return found

    def _record(self) -> None:
        strategy, last = self.strategy, self._last
        gap = max(0.0, last.objective - last.bound) / last.objective
        row = {"round": self.done, "objective": last.objective, "gap": gap}
        strategy.history_.append(row)
        if strategy.on_round is not None:
            strategy.on_round(self.done, strategy.rounds, row)

    # -- checkpoints

    def _everybody(self) -> list[int]:
        return [*self.users, *(group.agent for group in self.groups), self.owner]

    def _save(self) -> None:
        """Have all nodes keep their state, and write a checkpoint."""
        strategy = self.strategy
        strategy.saved = self.done
        strategy.next_step()
        request = wire.SaveRequest(session=strategy.session, round=strategy.step)
        nodes = self._everybody()
        found = strategy.ask(self.grid, dict.fromkeys(nodes, request), wire.SaveReply, self.timeout)
        if len(found) < len(nodes):
            logger.warning("no checkpoint: not all nodes kept their state")
            return
        assert strategy.sums is not None
        strategy.write_checkpoint(
            self.done,
            {},
            {
                "saved": strategy.step,
                "nodes": strategy.nodes_digest(),
                "sums": strategy.sums.progress(),
            },
        )

    def _resume(self, meta: Mapping[str, Any]) -> None:
        """Have everything sealed once more: the keys are those of another session."""
        self.done = int(meta["round"])
        self._combine("again", "again")

    # -- users

    def _measure(self) -> None:
        """Have the users contribute the statistics of their columns."""
        strategy = self.strategy
        strategy.next_step()
        requests: dict[int, PhaseMessage] = {
            user: wire.ColumnsRequest(
                session=strategy.session,
                round=strategy.step,
                agent=self.group_of[user].agent,
                owner=self.owner,
                rows=self.plan.rows,
                all_rows=self.plan.all_rows,
                standardised=strategy.scale == "standard",
                take=self.plan.take[user],
                place=self.plan.place[user],
            )
            for user in self.users
        }
        wanted = [self._group_sum(group.number, 2) for group in self.groups]
        found = self._sum(requests, wire.ColumnsReply, wanted)
        self._vectors = {user: found[user].orthogonal for user in self.users}

    def _visit(self, kind: str) -> None:
        """Have the users multiply.

        ``columns``: the first message, with the coordinates; ``weights``: a message and weights;
        ``message``: the model's message; ``judge``: the model's weights, for all rows.
        """
        strategy, plan = self.strategy, self.plan
        strategy.next_step()
        weights = kind in ("weights", "judge")
        requests: dict[int, PhaseMessage] = {
            user: wire.VisitRequest(
                session=strategy.session,
                round=strategy.step,
                width=self.width,
                message_round=self._message.step,
                weights_round=self._opened.step,
                coordinates=self._opened.parts[user] if kind == "columns" else b"",
                message=b"" if kind == "judge" else self._message.parts[user],
                weights=self._opened.parts[user] if weights else b"",
                judge=kind == "judge",
            )
            for user in self.users
        }
        wanted = []
        if kind != "judge":
            wanted = [self._group_sum(group.number, self.width) for group in self.groups]
        if weights:
            name = wire.JUDGED_SUM if kind == "judge" else wire.OUTPUT_SUM
            rows = plan.all_rows if kind == "judge" else plan.rows
            wanted.append(Wanted(name, rows * self.width, _USERS, self.owner))
        self._sum(requests, wire.VisitReply, wanted)

    def _group_sum(self, number: int, width: int) -> Wanted:
        position = [group.number for group in self.groups].index(number)
        group = self.groups[position]
        length = self.features[group.users[0]] * width
        return Wanted(wire.GROUP_SUM, length, 1 + position, group.agent)

    def _sum(
        self, requests: Mapping[int, PhaseMessage], reply: type[Any], wanted: list[Wanted]
    ) -> dict[int, Any]:
        """Have users contribute to sums, and those whom they belong to the pads.

        Raises
        ------
        CohortError
        """
        strategy = self.strategy
        assert strategy.sums is not None
        receivers = sorted({one.receiver for one in wanted})
        pad = wire.PadRequest(session=strategy.session, round=strategy.step)
        asked = {**requests, **dict.fromkeys(receivers, pad)}
        kinds = {node: wire.PadReply if node in receivers else reply for node in asked}
        for running in [*self._group_sums.values(), self._output_sum]:
            if running is not None:
                strategy.close(running)
        for attempt in range(strategy.attempts):
            sums = [
                strategy.sums.order(
                    one.name,
                    one.length,
                    self.encoding,
                    cohort=one.cohort,
                    receiver=one.receiver,
                    self_masks=False,
                )
                for one in wanted
            ]
            found = strategy.ask(self.grid, again(asked, attempt), kinds, self.timeout, sums)
            if len(found) == len(asked) and all(map(strategy.whole, sums)):
                break
            for running in sums:
                strategy.close(running)
        else:
            raise strategy.gave_up(reply.phase)
        self._group_sums, self._output_sum = {}, None
        for one, running in zip(wanted, sums, strict=True):
            strategy.declare(running)
            if one.cohort == _USERS:
                self._output_sum = running
            else:
                self._group_sums[one.receiver] = running
        return found

    # -- agents and label owner

    def _combine(self, block: str | None, owner: str | None) -> None:
        """Have agents open their groups' sums, and the owner that of the outputs, at once.

        Raises
        ------
        CohortError
        """
        strategy = self.strategy
        strategy.next_step()
        step = strategy.step
        requests: dict[int, PhaseMessage] = {}
        deliveries: dict[int, list[RunningSum]] = {}
        kinds: dict[int, type[Any]] = {}
        for group in self.groups if block is not None else ():
            kinds[group.agent] = wire.BlockReply
            requests[group.agent] = wire.BlockRequest(
                session=strategy.session,
                round=step,
                kind=block or "",
                rows=self.plan.rows,
                standardised=strategy.scale == "standard",
                users=np.array(group.users, np.int32),
            )
            if block != "again":
                deliveries[group.agent] = [self._group_sums[group.agent]]
        if owner is not None:
            kinds[self.owner] = wire.OwnerReply
            requests[self.owner] = self._owner_request(owner, step)
            if owner in ("step", "last", "judge"):
                assert self._output_sum is not None
                deliveries[self.owner] = [self._output_sum]
        found = self._ask(requests, kinds, deliveries)
        if block is not None:
            parts: dict[int, bytes] = {}
            for group in self.groups:
                blob = found[group.agent].sealed
                sizes = [len(blob) // len(group.users)] * len(group.users)
                parts |= cut_sealed(blob, dict(zip(group.users, sizes, strict=True)))
            self._opened = Sealed(parts, step)
        if owner is not None:
            self._last = found[self.owner]
        if owner not in (None, "judge"):
            parts = cut_sealed(self._last.sealed.tobytes(), self._message_sizes())
            self._message = Sealed(parts, step)
            if strategy.product == "orthogonal":
                self._mask()

    def _ask(
        self,
        requests: Mapping[int, PhaseMessage],
        kinds: Mapping[int, type[Any]],
        deliveries: Mapping[int, list[RunningSum]],
    ) -> dict[int, Any]:
        strategy, found = self.strategy, dict[int, Any]()
        for attempt in range(strategy.attempts):
            missing = {node: request for node, request in requests.items() if node not in found}
            missing = again(missing, attempt)
            found |= strategy.ask(self.grid, missing, kinds, self.timeout, (), deliveries)
            if len(found) == len(requests):
                return found
        raise strategy.gave_up(next(iter(kinds.values())).phase)

    def _message_sizes(self) -> dict[int, int]:
        return {
            user: len(self.plan.learned(user)) * 8 * self.width + _OVERHEAD for user in self.users
        }

    def _owner_request(self, kind: str, step: int) -> wire.OwnerRequest:
        strategy, plan, begins = self.strategy, self.plan, kind == "start"
        agents = [self.group_of[user].agent for user in self.users]
        if strategy.product == "local":
            agents = [-1] * len(agents)
        learned = [plan.learned(user) for user in self.users]
        sizes = list(map(len, learned))
        return wire.OwnerRequest(
            session=strategy.session,
            round=step,
            kind=kind,
            loss=strategy.loss,
            c=float(strategy.C),
            tolerance=float(strategy.tolerance),
            rows=plan.rows,
            take=plan.owner if begins else _NOTHING,
            users=np.array(self.users, np.int32) if begins else _NOTHING,
            agents=np.array(agents, np.int32) if begins else _NOTHING,
            sizes=np.array(sizes, np.int32) if begins else _NOTHING,
            place=np.concatenate(learned) if begins else _NOTHING,
        )

    def _mask(self) -> None:
        """Have agents mask the owner's message for their users."""
        strategy, sizes = self.strategy, self._message_sizes()
        strategy.next_step()
        first, requests = bool(self._vectors), dict[int, PhaseMessage]()
        for group in self.groups:
            vectors = [self._vectors.get(user, b"") for user in group.users]
            parts = b"".join(self._message.parts[user] for user in group.users)
            rows = [len(self.plan.learned(user)) for user in group.users]
            requests[group.agent] = wire.MultiplierRequest(
                session=strategy.session,
                round=strategy.step,
                owner=self.owner,
                message_round=self._message.step,
                width=self.width,
                first=first,
                users=np.array(group.users, np.int32),
                sizes=np.array(rows, np.int32),
                sealed=np.frombuffer(parts, np.uint8),
                vectors=np.frombuffer(b"".join(vectors), np.uint8),
                lengths=np.array(list(map(len, vectors)), np.int32),
            )
        kinds = dict.fromkeys(requests, wire.MultiplierReply)
        found = self._ask(requests, kinds, {})
        self._vectors, masked = {}, dict[int, bytes]()
        for group in self.groups:
            own = {user: sizes[user] for user in group.users}
            masked |= cut_sealed(found[group.agent].sealed.tobytes(), own)
        self._message = Sealed(masked, strategy.step)

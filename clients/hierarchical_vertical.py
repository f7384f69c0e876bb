"""Users, agents and label owner of HierarchicalSVM in a vertical split."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Coordinates, Floats
from fedkern_flwr.groups.digits import from_digits, to_digits
from fedkern_flwr.groups.orthogonal_product import default_vectors, draw_orthogonal, mask_multiplier
from fedkern_flwr.guard import check_selection, refusal
from fedkern_flwr.node.answering import answers
from fedkern_flwr.solvers.dual_subspace import LabelOwner, objective, visit

from .hierarchical_node import SVMNode
from .hierarchical_predictions import keep_part

_OVERHEAD = 28  # bytes that sealing adds


class NodeOfColumns(SVMNode):
    """What users, agents and the label owner answer in a vertical split."""

    # -- users

    @answers(wire.ColumnsRequest)
    def contribute_columns(self, request: wire.ColumnsRequest) -> wire.ColumnsReply:
        """Contribute sums and sums of squares of the columns."""
        if request.agent < 0:
            raise refusal("columns for no agent", self.name)
        self.check(wire.GROUP_SUM, request.agent)
        self._check_plan(request)
        plan = hashlib.sha256(request.take.tobytes() + b"/" + request.place.tobytes()).hexdigest()
        names = ("agent", "owner", "rows", "all_rows")
        self.pin(plan=plan, **{name: getattr(request, name) for name in names})
        self.kept.arrays |= {"take": request.take, "place": request.place}
        x = self._columns()[self._learned]
        self.note_rows(wire.GROUP_SUM, self._held(self._learned))
        share = to_digits(np.concatenate([x.sum(0), (x**2).sum(0)]) / request.rows)
        self.ordered.contribute(wire.GROUP_SUM, share)
        sealed = b""
        if self.product == "orthogonal":
            self.kept.seed = self.kept.seed or secrets.token_bytes(32)
            try:
                z = draw_orthogonal(
                    np.column_stack([x, np.ones(len(x))]),
                    default_vectors(len(x), x.shape[1] + 1),
                    int.from_bytes(self.kept.seed, "big"),
                    party=self.name,
                )
            except OptionError as error:  # which follows from rows
                raise self.unfit(error) from None
            sealed = self.seal(request.agent, z, "orthogonal")
        return wire.ColumnsReply(orthogonal=sealed)

    def _check_plan(self, request: wire.ColumnsRequest) -> None:
        """Refuse a plan by which the sums would be those of others, or of few rows."""
        announced = range(self.table.rows + self.table.tests)
        check_selection(request.take, announced, party=self.name)
        check_selection(request.place, range(request.all_rows), party=self.name)
        learned = request.take[request.place < request.rows]
        least = self.policy.min_own_rows
        check_selection(learned, announced, least=least, party=self.name)

    @answers(wire.VisitRequest)
    def multiply(self, request: wire.VisitRequest) -> wire.VisitReply:
        """Contribute X^T m to the group's weights, and the outputs of the last visit's weights.

        Where others failed to answer it is asked again for the sum that they are in.
        """
        own, found, width = self.kept.settings, self.kept.arrays, request.width
        agent, owner, orders = int(own["agent"]), int(own["owner"]), self.ordered.orders
        if request.coordinates:
            place = ("columns", request.weights_round)
            mean, deviation = self.unseal(agent, request.coordinates, (2, -1), *place)
            found |= {"mean": mean, "deviation": deviation}
        x, learned = (self._columns() - found["mean"]) / found["deviation"], self._learned
        if request.message and wire.GROUP_SUM in orders:
            source = agent if self.product == "orthogonal" else owner
            place = ("message", request.message_round)
            message = self.unseal(source, request.message, (-1, width), *place)
            self.check(wire.GROUP_SUM, agent)
            to_agent, _ = visit(x[learned], message, None)
            self.note_rows(wire.GROUP_SUM, self._held(learned))
            self.ordered.contribute(wire.GROUP_SUM, to_agent.ravel() / own["rows"])
        name = wire.JUDGED_SUM if request.judge else wire.OUTPUT_SUM
        if request.weights and name in orders:
            self.check(name, owner)
            counted = slice(None) if request.judge else learned
            shape = (self.table.features, width)
            place = ("weights", request.weights_round)
            weights = self.unseal(agent, request.weights, shape, *place)
            values = np.zeros((own["all_rows"] if request.judge else own["rows"], width))
            values[found["place"][counted]] = x[counted] @ weights
            self.note_rows(name, self._held(counted), each=True)
            self.ordered.contribute(name, values.ravel())
        return wire.VisitReply()

    def _columns(self) -> Floats:
        """Return the user's features of the plan's rows."""
        announced = self.table.announced(self.session, self.alignment_key)
        return np.asarray(announced[self.kept.arrays["take"]])

    @property
    def _learned(self) -> NDArray[np.bool_]:
        """Which of the user's rows of the plan are learned from."""
        return np.asarray(self.kept.arrays["place"] < self.kept.settings["rows"])

    def _held(self, which: slice | NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return the places of rows of the plan in the node's table."""
        order = self.table.order(self.session, self.alignment_key)
        return np.asarray(order[self.kept.arrays["take"][which]])

    # -- agents

    @answers(wire.BlockRequest)
    def open_block(self, request: wire.BlockRequest) -> wire.BlockReply:
        """Open the group's sum and seal it for the users."""
        found = self.kept.arrays
        if request.kind != "again" and not self.repeated:
            total = self.received(wire.GROUP_SUM)
            if request.kind == "columns":
                mean, square = from_digits(total).reshape(2, -1)
                fitted = Coordinates.fit(mean, square, standardised=True)
                deviation = fitted.deviation if request.standardised else np.ones(len(mean))
                found["opened"] = found["coordinates"] = np.stack([fitted.mean, deviation])
            else:
                found["opened"] = total * (request.rows if request.kind == "model" else 1.0)
        if request.kind == "model":
            part = {"coordinates": found["coordinates"], "weights": found["opened"]}
            keep_part(self, part)
        place = "columns" if request.kind == "columns" else "weights", request.round
        users = request.users.tolist()
        sealed = b"".join(self.seal(user, found["opened"], *place) for user in users)
        return wire.BlockReply(sealed=sealed)

    @answers(wire.MultiplierRequest)
    def mask_message(self, request: wire.MultiplierRequest) -> wire.MultiplierReply:
        """Mask the owner's message with the users' orthogonal vectors, and seal it for them."""
        found, users, sizes = self.kept.arrays, request.users.tolist(), request.sizes
        if request.first:
            blobs = _split(request.vectors, request.lengths)
            for user, rows, blob in zip(users, sizes.tolist(), blobs, strict=True):
                found[f"vectors {user}"] = self.unseal(user, blob, (rows, -1), "orthogonal")
        out, lengths = [], sizes.astype(np.int64) * 8 * request.width + _OVERHEAD
        for user, blob in zip(users, _split(request.sealed, lengths), strict=True):
            place = ("message", request.message_round, user)
            message = self.unseal(request.owner, blob, (-1, request.width), *place)
            masked = mask_multiplier(found[f"vectors {user}"], message)
            out.append(self.seal(user, masked, "message", request.round))
        return wire.MultiplierReply(sealed=np.frombuffer(b"".join(out), np.uint8))

    # -- the label owner

    @answers(wire.OwnerRequest)
    def lead(self, request: wire.OwnerRequest) -> wire.OwnerReply:
        """Take outputs, solve in the subspace of the messages so far, seal the next message."""
        own = self.kept.settings
        if request.kind == "start":
            for party in (*request.users.tolist(), *request.agents.tolist()):
                if party >= 0:
                    self.pair_secret(party)  # what fails later would cost the plan nothing
            self._pin_plan(request)
            names = ("take", "users", "agents", "sizes", "place")
            self.kept.arrays |= {name: getattr(request, name) for name in names}
            own |= {"loss": request.loss, "c": request.c, "rows": request.rows}
        if request.kind == "judge":
            return self._judge(request.bins)
        if not self.repeated and request.kind != "again":
            self._next_message(request)
        return wire.OwnerReply(
            model=bool(own["model"]),
            objective=float(own["objective"]),
            bound=float(own["bound"]),
            sealed=self._seal_parts(request.round),
            counts=np.zeros(0),
        )

    def _pin_plan(self, request: wire.OwnerRequest) -> None:
        """Refuse another plan than before: what is counted of one row is its label."""
        rows, tests = self.table.rows, self.table.tests
        learned, held_out = request.take[: request.rows], request.take[request.rows :]
        if len(learned) != request.rows:
            raise refusal("a plan of fewer rows than it says", self.name)
        least = self.policy.min_own_rows
        check_selection(learned, range(rows), least=least, party=self.name)
        check_selection(held_out, range(rows, rows + tests), party=self.name)
        text = repr((request.rows, request.loss, request.c)).encode() + request.take.tobytes()
        self.pin(plan=hashlib.sha256(text).hexdigest())

    def _next_message(self, request: wire.OwnerRequest) -> None:
        own, found = self.kept.settings, self.kept.arrays
        rows = self._held(slice(own["rows"]))
        try:
            leader = LabelOwner(own["loss"], self.table.y[rows], own["c"], 0, numbers=rows)
        except OptionError as error:  # which follows from labels
            raise self.unfit(error) from None
        if "sent" in found:
            leader.unpack(found)
        if request.kind in ("step", "last"):
            leader.receive(self._outputs(wire.OUTPUT_SUM, int(own["rows"])) * own["rows"])
        known = bool(np.isfinite(leader.bound).all())
        gap, value = float(leader.gap.sum()), float(leader.objective.sum())
        finished = request.kind == "last" or (known and gap <= request.tolerance * value)
        found["message"] = leader.model_message() if finished else leader.next_message()
        found |= {**leader.pack(), "bias": leader.bias}
        bound = float(leader.bound.sum()) if known else 0.0
        own |= {"model": finished, "objective": value, "bound": bound}

    def _judge(self, bins: int) -> wire.OwnerReply:
        own, found, table = self.kept.settings, self.kept.arrays, self.table
        rows, bias = int(own["rows"]), found["bias"]
        outputs = self._outputs(wire.JUDGED_SUM, len(found["take"])) + bias
        targets = table.y[self._held(slice(rows))]
        squares = ((outputs[:rows] - bias) * found["message"]).sum(0)  # |X^T m|^2
        total = sum(
            objective(own["loss"], float(squares[k]), outputs[:rows, k], targets[:, k], own["c"])
            for k in range(targets.shape[1])
        )
        tests = self._held(slice(rows, None)) - table.rows
        counts = np.zeros(0)
        if table.labelled and len(tests):
            counts = self.outcomes(tests, outputs[rows:], bins, alone=True)
            counts = counts if counts.any() else counts[:0]
        keep_part(self, {"bias": bias})
        self.write_predictions(tests, outputs[rows:])
        return wire.OwnerReply(
            model=True,
            objective=float(total),
            bound=float(own["bound"]),
            sealed=np.zeros(0, np.uint8),
            counts=counts,
        )

    def _outputs(self, name: str, rows: int) -> Floats:
        total = self.received(name)
        if total.size % rows:
            raise self.wrong("the outputs have another number of rows")
        return total.reshape(rows, -1)

    def _seal_parts(self, number: int) -> NDArray[np.uint8]:
        """Seal the message at the rows of each user, for the user or its agent."""
        found, parts = self.kept.arrays, []
        ends = np.cumsum(found["sizes"])
        for user, agent, size, end in zip(
            found["users"].tolist(), found["agents"].tolist(), found["sizes"], ends, strict=True
        ):
            part = found["message"][found["place"][end - size : end]]
            to, whose = (user, ()) if agent < 0 else (agent, (user,))
            parts.append(self.seal(to, part, "message", number, *whose))
        return np.frombuffer(b"".join(parts), np.uint8)


def _split(data: NDArray[Any], lengths: NDArray[Any]) -> list[bytes]:
    ends = np.cumsum(lengths).tolist()
    raw = data.tobytes()
    return [raw[start:end] for start, end in zip([0, *ends], ends, strict=False)]

"""Columns at the groups: users, agents and label owner of HierarchicalSVM; saved models.

Parts of a model of a vertical split stay with the nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.checkpoint import pack_arrays, unpack_arrays, write_atomically
from fedkern_flwr.errors import CheckpointError, OptionError, TableError
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Coordinates, Floats
from fedkern_flwr.groups.digits import from_digits, to_digits
from fedkern_flwr.groups.linear_model import outputs
from fedkern_flwr.guard import check_selection, check_size, refusal
from fedkern_flwr.node.client import answers
from fedkern_flwr.secure_sum.membership import asked
from fedkern_flwr.solvers.dual_subspace import LabelOwner, objective, visit

from .hierarchical_node import SVMNode

_KEPT = ".model"


def keep_part(client: SVMNode, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Keep this node's part of a model in its folder, if it has one."""
    path = client.state_path(client.session, _KEPT)
    if path is not None:
        write_atomically(path, pack_arrays(arrays, {"role": client.role}), private=True)


def read_part(client: SVMNode, session: str, *names: str) -> list[Floats]:
    """Return the named arrays of the part of a model that this node kept.

    Raises
    ------
    CheckpointError
        They are not there.
    """
    role, path = client.role, client.state_path(session, _KEPT)
    problem = remedy = code = ""
    if client.state_dir is None:
        problem = f"this {role} has no folder with its part of the model"
        remedy = "give it the state-dir that it had when the model was made"
        code = "FK-KEPT-NONE"
    elif path is None or not path.is_file():
        problem = f"this {role} kept no part of the model"
        remedy = "give it the state-dir that it had in the run that made the model"
        code = "FK-KEPT-NONE"
    else:
        try:
            arrays, _ = unpack_arrays(path.read_bytes())
            return [arrays[name] for name in names]
        except (CheckpointError, KeyError):
            problem = f"the part of the model that this {role} kept is damaged"
            remedy = "bring back a copy of its state-dir, or make the model anew"
            code = "FK-KEPT-OTHER"
    raise CheckpointError(problem, remedy=remedy, party=client.name, code=code)


class NodeOfColumns(SVMNode):
    """What users, agents and the label owner answer in a vertical split."""

    _multiplied = ""

    def question(self) -> str:
        """Name what is asked of the rows, so that a repeated run asks the same.

        What is sealed, and the order of the rows, are others in each run.
        """
        if isinstance(self._request, wire.ColumnsRequest):
            return f"columns of {self._request.rows} rows"
        if isinstance(self._request, wire.VisitRequest):
            return self._multiplied
        return super().question()

    # -- users

    @answers(wire.ColumnsRequest)
    def contribute_columns(self, request: wire.ColumnsRequest) -> wire.ColumnsReply:
        """Contribute sums and sums of squares of the columns."""
        if request.agent < 0:
            raise refusal("columns for no agent", self.name, code="FK-MESSAGE-FIELD")
        self.check(wire.GROUP_SUM, request.agent)
        self._check_plan(request)
        plan = hashlib.sha256(request.take.tobytes() + b"/" + request.place.tobytes()).hexdigest()
        names = ("agent", "owner", "rows", "all_rows")
        self.pin(plan=plan, **{name: getattr(request, name) for name in names})
        self.kept.arrays |= {"take": request.take, "place": request.place}
        held = np.sort(self._held(self._learned))
        self.note_rows(wire.GROUP_SUM, held)
        x = self.table.features_of(held)
        share = to_digits(np.concatenate([x.sum(0), (x**2).sum(0)]) / request.rows)
        self.ordered.contribute(wire.GROUP_SUM, share)
        return wire.ColumnsReply()

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
            place, held = ("message", request.message_round), self._held(learned)
            message = self.unseal(owner, request.message, (len(held), width), *place)
            self.check(wire.GROUP_SUM, agent)
            order = np.argsort(held)  # that of the table: the same bits in each run
            message = message[order]
            to_agent, _ = visit(x[learned][order], message, None)
            self._multiplied = asked("visit", message, found["mean"], found["deviation"])
            self.note_rows(wire.GROUP_SUM, held)
            self.ordered.contribute(wire.GROUP_SUM, to_agent.ravel() / own["rows"])
        name = wire.JUDGED_SUM if request.judge else wire.OUTPUT_SUM
        if request.weights and name in orders:
            counted = slice(None) if request.judge else learned
            rows = own["all_rows"] if request.judge else own["rows"]
            check_size(rows, width, party=self.name)
            self.check(name, owner, length=rows * width)
            shape = (self.table.features, width)
            place = ("weights", request.weights_round)
            weights = self.unseal(agent, request.weights, shape, *place)
            values = np.zeros((rows, width))
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

    # -- the label owner

    @answers(wire.OwnerRequest)
    def lead(self, request: wire.OwnerRequest) -> wire.OwnerReply:
        """Take outputs, solve in the subspace of the messages so far, seal the next message."""
        own = self.kept.settings
        if request.kind == "start":
            for user in request.users.tolist():
                self.pair_secret(user)  # what fails later would cost the plan nothing
            self._pin_plan(request)
            names = ("take", "users", "sizes", "place")
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
            raise refusal("a plan of fewer rows than it says", self.name, code="FK-MESSAGE-SHAPE")
        least = self.policy.min_own_rows
        check_selection(learned, range(rows), least=least, party=self.name)
        check_selection(held_out, range(rows, rows + tests), party=self.name)
        text = repr((request.rows, request.loss, request.c)).encode() + request.take.tobytes()
        self.pin(plan=hashlib.sha256(text).hexdigest())

    def _next_message(self, request: wire.OwnerRequest) -> None:
        own, found = self.kept.settings, self.kept.arrays
        held = self._held(slice(own["rows"]))
        order = np.argsort(held)  # that of the table: a repeated run has the same messages
        rows = held[order]
        try:
            leader = LabelOwner(own["loss"], self.table.y[rows], own["c"], 0, numbers=rows)
        except OptionError as error:  # which follows from labels
            raise self.unfit(error) from None
        if "sent" in found:
            leader.unpack(found)
        if request.kind in ("step", "last"):
            outputs = self._outputs(wire.OUTPUT_SUM, int(own["rows"]))
            leader.receive(outputs[order] * own["rows"])
        known = bool(np.isfinite(leader.bound).all())
        gap, value = float(leader.gap.sum()), float(leader.objective.sum())
        finished = request.kind == "last" or (known and gap <= request.tolerance * value)
        message = leader.model_message() if finished else leader.next_message()
        found |= {**leader.pack(), "bias": leader.bias, "message": message[np.argsort(order)]}
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
            trained = bool(own.get("model"))
            counts = self.outcomes(tests, outputs[rows:], bins, alone=True, trained=trained)
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
            raise self.wrong("the outputs have another number of rows", code="FK-MESSAGE-SHAPE")
        return total.reshape(rows, -1)

    def _seal_parts(self, number: int) -> NDArray[np.uint8]:
        """Seal the message at the rows of each user, for the user."""
        found, parts = self.kept.arrays, []
        ends = np.cumsum(found["sizes"])
        for user, size, end in zip(found["users"].tolist(), found["sizes"], ends, strict=True):
            part = found["message"][found["place"][end - size : end]]
            parts.append(self.seal(user, part, "message", number))
        return np.frombuffer(b"".join(parts), np.uint8)


class Predicting(SVMNode):
    """What nodes answer when rows are predicted with a model that was wire."""

    # -- users of a horizontal split

    @answers(wire.PredictRequest)
    def predict(self, request: wire.PredictRequest) -> wire.PredictReply:
        """Predict the held-out rows with the model that came along, and write them."""
        table = self.table
        if table.tests:
            arrays: dict[str, NDArray[Any]] = {"weights": request.weights, "bias": request.bias}
            if request.raw_mean.size:
                arrays |= {"raw_mean": request.raw_mean, "raw_deviation": request.raw_deviation}
            check_size(table.features, request.features, party=self.name)
            names = ("features", "gamma", "feature_seed")
            meta = {"columns": table.features, **{name: getattr(request, name) for name in names}}
            self._check_file()
            found = outputs(arrays, meta, table.x_test)
            self.write_predictions(np.arange(table.tests), found, request.calibration)
        return wire.PredictReply(samples=table.tests)

    # -- a vertical split

    @answers(wire.RecallRequest)
    def recall(self, request: wire.RecallRequest) -> wire.RecallReply:
        """Seal the group's part of the model, which this agent kept, for the users."""
        coordinates, weights = read_part(self, request.model, "coordinates", "weights")
        part = np.concatenate([coordinates.ravel(), weights.ravel()])
        users = request.users.tolist()
        sealed = b"".join(self.seal(user, part, "model", request.round) for user in users)
        return wire.RecallReply(sealed=sealed)

    @answers(wire.ContributeRequest)
    def contribute(self, request: wire.ContributeRequest) -> wire.ContributeReply:
        """Contribute the outputs of the group's columns at the rows that this user has."""
        columns = self.table.features
        check_size(request.rows, request.width, party=self.name)
        self.check(wire.PREDICTED_SUM, request.owner, length=request.rows * request.width)
        shape, place = (columns * (2 + request.width),), ("model", request.sealed_round)
        part = self.unseal(request.agent, request.sealed, shape, *place)
        mean, deviation = part[: 2 * columns].reshape(2, columns)
        announced = self.table.announced(self.session, self.alignment_key)
        x = (announced[request.take] - mean) / deviation
        values = np.zeros((request.rows, request.width))
        values[request.place] = x @ part[2 * columns :].reshape(columns, request.width)
        held = self.table.order(self.session, self.alignment_key)[request.take]
        self.note_rows(wire.PREDICTED_SUM, held, each=True)
        self.ordered.contribute(wire.PREDICTED_SUM, values.ravel())
        return wire.ContributeReply()

    @answers(wire.WriteRequest)
    def write(self, request: wire.WriteRequest) -> wire.WriteReply:
        """Open the outputs, add the bias that this owner kept, and write the predictions."""
        self._check_file()
        table, rows = self.table, len(request.take)
        (bias,) = read_part(self, request.model, "bias")
        total = self.received(wire.PREDICTED_SUM)
        if total.size != rows * bias.size or bias.size != table.y.shape[1]:
            raise self.wrong("the outputs are more than it has, or fewer", code="FK-MESSAGE-SHAPE")
        tests = table.order(self.session, self.alignment_key)[request.take] - table.rows
        self.write_predictions(tests, total.reshape(rows, -1) + bias, request.calibration)
        return wire.WriteReply(samples=rows)

    def _check_file(self) -> None:
        """Refuse to predict without a file for predictions.

        Raises
        ------
        TableError
            There is none.
        """
        if self.predictions is None:
            raise TableError(
                "there is nowhere to write the predictions",
                remedy="name predictions in --node-config",
                party=self.name,
                code="FK-PREDICT-NOWHERE",
            )

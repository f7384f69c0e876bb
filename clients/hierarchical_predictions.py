"""Predictions with a model of HierarchicalSVM, whose parts may stay with the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.checkpoint import pack_arrays, unpack_arrays, write_atomically
from fedkern_flwr.errors import CheckpointError, TableError
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups import prediction_messages as saved
from fedkern_flwr.groups.consensus import Floats
from fedkern_flwr.groups.linear_model import outputs
from fedkern_flwr.node.answering import answers

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
    problem = remedy = ""
    if client.state_dir is None:
        problem = f"this {role} has no folder with its part of the model"
        remedy = "give it the state-dir that it had when the model was made"
    elif path is None or not path.is_file():
        problem = f"this {role} kept no part of the model"
        remedy = "give it the state-dir that it had in the run that made the model"
    else:
        try:
            arrays, _ = unpack_arrays(path.read_bytes())
            return [arrays[name] for name in names]
        except (CheckpointError, KeyError):
            problem = f"the part of the model that this {role} kept is damaged"
            remedy = "bring back a copy of its state-dir, or make the model anew"
    raise CheckpointError(problem, remedy=remedy, party=client.name)


class Predicting(SVMNode):
    """What nodes answer when rows are predicted with a model that was saved."""

    # -- users of a horizontal split

    @answers(saved.PredictRequest)
    def predict(self, request: saved.PredictRequest) -> saved.PredictReply:
        """Predict the held-out rows with the model that came along, and write them."""
        table = self.table
        if table.tests:
            arrays: dict[str, NDArray[Any]] = {"weights": request.weights, "bias": request.bias}
            if request.raw_mean.size:
                arrays |= {"raw_mean": request.raw_mean, "raw_deviation": request.raw_deviation}
            names = ("features", "gamma", "feature_seed")
            meta = {"columns": table.features, **{name: getattr(request, name) for name in names}}
            self._check_file()
            found = outputs(arrays, meta, table.x_test)
            self.write_predictions(np.arange(table.tests), found, request.calibration)
        return saved.PredictReply(samples=table.tests)

    # -- a vertical split

    @answers(saved.RecallRequest)
    def recall(self, request: saved.RecallRequest) -> saved.RecallReply:
        """Seal the group's part of the model, which this agent kept, for the users."""
        coordinates, weights = read_part(self, request.model, "coordinates", "weights")
        part = np.concatenate([coordinates.ravel(), weights.ravel()])
        users = request.users.tolist()
        sealed = b"".join(self.seal(user, part, "model", request.round) for user in users)
        return saved.RecallReply(sealed=sealed)

    @answers(saved.ContributeRequest)
    def contribute(self, request: saved.ContributeRequest) -> saved.ContributeReply:
        """Contribute the outputs of the group's columns at the rows that this user has."""
        columns = self.table.features
        self.check(wire.PREDICTED_SUM, request.owner)
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
        return saved.ContributeReply()

    @answers(saved.WriteRequest)
    def write(self, request: saved.WriteRequest) -> saved.WriteReply:
        """Open the outputs, add the bias that this owner kept, and write the predictions."""
        self._check_file()
        table, rows = self.table, len(request.take)
        (bias,) = read_part(self, request.model, "bias")
        total = self.received(wire.PREDICTED_SUM)
        if total.size != rows * bias.size or bias.size != table.y.shape[1]:
            raise self.wrong("the outputs are more than it has, or fewer")
        tests = table.order(self.session, self.alignment_key)[request.take] - table.rows
        self.write_predictions(tests, total.reshape(rows, -1) + bias, request.calibration)
        return saved.WriteReply(samples=rows)

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
            )

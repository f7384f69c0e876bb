"""Predictions with a model of HierarchicalSVM, whose parts may stay with the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.checkpoint import pack_arrays, unpack_arrays, write_atomically
from fedkern_flwr.consensus import Floats
from fedkern_flwr.errors import CheckpointError, ProtocolError, TableError
from fedkern_flwr.linear_model import outputs
from fedkern_flwr.wire import hierarchical as wire

if TYPE_CHECKING:
    from .hierarchical import SVMClient

_KEPT = ".model"


def keep_part(client: SVMClient, session: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Keep this node's part of a model in its folder, if it has one."""
    path = client.state_path(session, _KEPT)
    if path is not None:
        write_atomically(path, pack_arrays(arrays, {"role": client.role}), private=True)


def read_part(client: SVMClient, session: str, *names: str) -> list[Floats]:
    """Return the named arrays of the part of a model that this node kept.

    Raises
    ------
    CheckpointError
        They are not there.
    """
    if client.state_dir is None:
        raise CheckpointError(
            f"this {client.role} has no folder with its part of the model",
            remedy="give it the state-dir that it had when the model was made",
            party=client.name,
        )
    path = client.state_path(session, _KEPT)
    if path is None or not path.is_file():
        raise CheckpointError(
            f"this {client.role} kept no part of the model",
            remedy="give it the state-dir that it had in the run that made the model",
            party=client.name,
        )
    try:
        arrays, _ = unpack_arrays(path.read_bytes())
        return [arrays[name] for name in names]
    except (CheckpointError, KeyError):
        raise CheckpointError(
            f"the part of the model that this {client.role} kept is damaged",
            remedy="bring back a copy of its state-dir, or make the model anew",
            party=client.name,
        ) from None


def check_file(client: SVMClient) -> None:
    """Refuse to predict without a file to write.

    Raises
    ------
    TableError
    """
    if client.predictions is None:
        raise TableError(
            "there is nowhere to write the predictions",
            remedy="name predictions in --node-config",
            party=client.name,
        )


# -- users of a horizontal split


def predict(client: SVMClient, request: wire.PredictRequest) -> wire.PredictReply:
    """Predict the held-out rows with the model that came along, and write them."""
    state, kept, _ = client.begin(request, gaps=True)
    table = client.table
    if table.tests:
        check_file(client)
        assert client.predictions is not None
        arrays: dict[str, NDArray[Any]] = {"weights": request.weights, "bias": request.bias}
        if request.raw_mean.size:
            arrays |= {"raw_mean": request.raw_mean, "raw_deviation": request.raw_deviation}
        names = ("features", "gamma", "feature_seed")
        meta = {"columns": table.features, **{name: getattr(request, name) for name in names}}
        found = outputs(arrays, meta, table.x_test)
        table.write_predictions(client.predictions, np.arange(table.tests), found)
    client.end(state, request.round, kept)
    return wire.PredictReply(round=request.round, samples=table.tests)


# -- a vertical split


def recall(client: SVMClient, request: wire.RecallRequest) -> wire.RecallReply:
    """Seal the group's part of the model, which this agent kept, for the users."""
    state, kept, _ = client.begin(request, gaps=True)
    coordinates, weights = read_part(client, request.model, "coordinates", "weights")
    part = np.concatenate([coordinates.ravel(), weights.ravel()])
    place = (request.session, "model", request.round, client.partition)
    sealed = [client.seal(user, part, *place, user) for user in request.users.tolist()]
    client.end(state, request.round, kept)
    return wire.RecallReply(round=request.round, sealed=b"".join(sealed))


def contribute(client: SVMClient, request: wire.ContributeRequest) -> wire.ContributeReply:
    """Contribute the outputs of the group's columns at the rows that this user has."""
    state, kept, _ = client.begin(request, gaps=True)
    columns = client.table.features
    assert client.sums is not None
    rule = client.rule(wire.PREDICTED_SUM, receiver=request.owner)
    client.sums.check(wire.PREDICTED_SUM, rule)
    place = (request.session, "model", request.sealed_round, request.agent, client.partition)
    part = client.unseal(request.agent, request.sealed, *place)
    if part.size != columns * (2 + request.width):
        raise ProtocolError(
            "its group's part of the model has another number of columns",
            remedy="bring back the columns that the model was learned from",
            party=client.name,
        )
    mean, deviation = part[: 2 * columns].reshape(2, columns)
    announced = client.table.announced(request.session, client.alignment_key)
    x = (announced[request.take] - mean) / deviation
    values = np.zeros((request.rows, request.width))
    values[request.place] = x @ part[2 * columns :].reshape(columns, request.width)
    held = client.table.order(request.session, client.alignment_key)[request.take]
    client.note_rows(wire.PREDICTED_SUM, held, each=True)
    client.sums.contribute(wire.PREDICTED_SUM, values.ravel())
    client.end(state, request.round, kept)
    return wire.ContributeReply(round=request.round)


def write(client: SVMClient, request: wire.WriteRequest) -> wire.WriteReply:
    """Open the outputs, add the bias that this owner kept, and write the predictions."""
    state, kept, _ = client.begin(request, gaps=True)
    check_file(client)
    assert client.predictions is not None
    assert client.sums is not None
    (bias,) = read_part(client, request.model, "bias")
    table, rows = client.table, len(request.take)
    total = client.sums.delivered.get(wire.PREDICTED_SUM)
    if total is None or total.size != rows * bias.size or bias.size != table.y.shape[1]:
        raise ProtocolError("the outputs are missing, or more than it has", party=client.name)
    tests = table.order(request.session, client.alignment_key)[request.take] - table.rows
    table.write_predictions(client.predictions, tests, total.reshape(rows, -1) + bias)
    client.end(state, request.round, kept)
    return wire.WriteReply(round=request.round, samples=rows)

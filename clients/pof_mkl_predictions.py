"""Predictions after a run: the weights that a node keeps of it, the file that it writes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.checkpoint import pack_arrays, unpack_arrays, write_atomically, write_csv
from fedkern_flwr.errors import CheckpointError, ProtocolError, TableError
from fedkern_flwr.node.client import Client
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.learning import Floats

from .pof_mkl_account import StreamAccount
from .pof_mkl_samples import message_features, weights_now

if TYPE_CHECKING:
    from .pof_mkl import OnlineKernelClient

_CHUNK = 256  # rows predicted at once
Layout = tuple[str, int]  # digest of the columns, how many there are
_KEPT = ".weights"
_OF_KERNELS = (
    "bandwidths",
    "features",
    "seed",
    "precision",
    "frequency_draw",
    "weight_rule",
    "learning_rate",
    "regularization",
)
_OF_RIDGES = (
    "experts",
    "kernels",
    "features",
    "seed",
    "forgetting",
    "centre",
    "raw",
    "summed",
    "shared",
)


def keep_weights(
    client: Client,
    request: wire.PersonalRequest | wire.RidgeRequest,
    account: StreamAccount,
    table: Layout,
) -> None:
    """Keep what predictions for a ``table`` need of the client's, if there is a folder."""
    path = client.state_path(request.session, _KEPT)
    if path is not None:
        own = account.own
        if isinstance(request, wire.RidgeRequest):
            from fedkern_flwr.online.ridge import without_inverses

            own = without_inverses(own)
        kept = StreamAccount.pack(replace(account, own=own))  # without the place of a stream
        meta = {"law": _law(request, table), "round": request.round}
        numbers = np.frombuffer(kept, "<f8")
        write_atomically(path, pack_arrays({"account": numbers}, meta), private=True)


def predict_later(
    client: OnlineKernelClient,
    request: wire.PredictRequest | wire.RidgePredictRequest,
    table: Layout,
) -> int:
    """Predict a client's held-out rows with what it kept, write them; return how many.

    Raises
    ------
    CheckpointError
        It kept nothing, or of another model.
    TableError
        There is no file to write, or a row has no name.
    """
    rows = client.x_test
    if not len(rows):
        return 0
    account = read_kept(client, request, table)
    if isinstance(request, wire.RidgePredictRequest):
        from .pof_rls import predict_rows

        outputs = predict_rows(request, account, rows)
    else:
        weights = weights_now(request, account.of(len(request.theta)))
        features = message_features(request, rows.shape[1])
        parts = [
            np.vecdot(features(rows[start : start + _CHUNK]), request.theta) @ weights
            for start in range(0, len(rows), _CHUNK)
        ]
        outputs = np.concatenate(parts) + request.centre
    of = (client.predictions, client.ids_test, client.label_range, client.name)
    write_outputs(outputs, *of)
    return len(rows)


def read_kept(
    client: Client, request: wire.PredictRequest | wire.RidgePredictRequest, table: Layout
) -> StreamAccount:
    """Return what this node kept at the end of the run that made the model.

    Raises
    ------
    CheckpointError
        They are not there, or belong to another model.
    """
    party = client.name
    if client.state_dir is None:
        raise CheckpointError(
            "this node has no folder with its weights over the kernels",
            remedy="give it the state-dir that it had when the model was made",
            party=party,
            code="FK-KEPT-NONE",
        )
    path = client.state_path(request.model, _KEPT)
    if path is None or not path.is_file():
        raise CheckpointError(
            "this node kept no weights of the run that made the model",
            remedy="give it the state-dir that it had in that run, or leave out its test-data",
            party=party,
            code="FK-KEPT-NONE",
        )
    try:
        arrays, meta = unpack_arrays(path.read_bytes())
        account = StreamAccount.unpack(arrays["account"].tobytes())
    except (CheckpointError, ProtocolError, KeyError):
        arrays, meta, account = {}, {}, StreamAccount()
    if meta.get("law") != _law(request, table):
        raise CheckpointError(
            "the weights of this node belong to another model or other columns, or are damaged",
            remedy="name the model that the run saved, and bring back its columns",
            party=party,
            code="FK-KEPT-OTHER",
        )
    return account


def write_outputs(
    outputs: Floats,
    path: Path | None,
    ids: Sequence[Any] | NDArray[Any] | None,
    label_range: tuple[float, float],
    party: str,
) -> None:
    """Write predictions of the held-out rows in the units of the label.

    Raises
    ------
    TableError
        There is no file to write, or a row has no name.
    """
    if path is None:
        raise TableError(
            "there is nowhere to write the predictions",
            remedy="name predictions in --node-config",
            party=party,
            code="FK-PREDICT-NOWHERE",
        )
    if ids is not None and len(ids) != len(outputs):
        raise TableError(
            f"{len(ids)} ids for {len(outputs)} rows",
            remedy="give each row an id",
            party=party,
            code="FK-SHAPE-DIFFERS",
        )
    low, high = label_range
    names = range(len(outputs)) if ids is None else ids
    scaled = (outputs * (high - low) + low).tolist()
    heads = ("row" if ids is None else "id", "output")
    write_csv(path, [heads, *zip(names, map(repr, scaled), strict=True)])


def _law(request: Any, table: Layout) -> str:
    """Return a digest of what is public of a run, and of how its weights are made."""
    names: tuple[str, ...] = _OF_KERNELS
    if isinstance(request, wire.RidgeRequest):
        names = _OF_RIDGES
    text = repr((*(getattr(request, name) for name in names), table))
    return hashlib.sha256(text.encode()).hexdigest()

"""Predictions of POF-MKL after a run: the weights that a node keeps, the file that it writes."""

from __future__ import annotations

import csv
import hashlib
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkern_flwr.checkpoint import pack_arrays, unpack_arrays, write_atomically
from fedkern_flwr.errors import CheckpointError, ProtocolError, TableError
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.learning import Floats, current_weights
from fedkern_flwr.wire import columns_digest

from .pof_mkl_account import StreamAccount

if TYPE_CHECKING:
    from .pof_mkl import OnlineKernelClient

_KEPT = ".weights"


def keep_weights(
    client: OnlineKernelClient, request: wire.PersonalRequest, account: StreamAccount
) -> None:
    """Keep what the weights are made of in the node's folder, if it has one."""
    path = client.state_path(request.session, _KEPT)
    if path is not None:
        numbers = np.frombuffer(account.pack(), "<f8")
        meta = {"law": _law(client, request), "round": request.round}
        write_atomically(path, pack_arrays({"account": numbers}, meta), private=True)


def read_weights(client: OnlineKernelClient, request: wire.PredictRequest) -> Floats:
    """Return this node's weights over the kernels at the end of the run that made the model.

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
        )
    path = client.state_path(request.model, _KEPT)
    if path is None or not path.is_file():
        raise CheckpointError(
            "this node kept no weights of the run that made the model",
            remedy="give it the state-dir that it had in that run, or leave out its test-data",
            party=party,
        )
    try:
        arrays, meta = unpack_arrays(path.read_bytes())
        account = StreamAccount.unpack(arrays["account"].tobytes()).of(len(request.theta))
    except (CheckpointError, ProtocolError, KeyError):
        arrays, meta, account = {}, {}, StreamAccount()
    if meta.get("law") != _law(client, request):
        raise CheckpointError(
            "the weights of this node belong to another model or other columns, or are damaged",
            remedy="name the model that the run saved, and bring back its columns",
            party=party,
        )
    rule: Any = request.weight_rule  # the law says that it made the weights
    return current_weights(rule, account.losses, account.gap, request.learning_rate)


def write_outputs(client: OnlineKernelClient, outputs: Floats) -> None:
    """Write predictions of the held-out rows in the units of the label.

    Raises
    ------
    TableError
        There is no file to write, or a row has no name.
    """
    party = client.name
    if client.predictions is None:
        raise TableError(
            "there is nowhere to write the predictions",
            remedy="name predictions in --node-config",
            party=party,
        )
    ids = client.ids_test
    if ids is not None and len(ids) != len(outputs):
        raise TableError(
            f"{len(ids)} ids for {len(outputs)} rows", remedy="give each row an id", party=party
        )
    low, high = client.label_range
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["row" if ids is None else "id", "output"])
    names = range(len(outputs)) if ids is None else ids
    for name, value in zip(names, (outputs * (high - low) + low).tolist(), strict=True):
        writer.writerow([name, repr(value)])
    write_atomically(client.predictions, text.getvalue().encode(), private=True)


def _law(client: OnlineKernelClient, request: wire.PersonalRequest | wire.PredictRequest) -> str:
    """Return a digest of the public kernels and of how weights are made."""
    names = ("bandwidths", "features", "seed", "precision", "frequency_draw", "weight_rule")
    public = [getattr(request, name) for name in names]
    table = (columns_digest(client.columns), client.x.shape[1])
    text = repr((*public, request.learning_rate, request.regularization, table))
    return hashlib.sha256(text.encode()).hexdigest()

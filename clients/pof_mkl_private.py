"""Budgets of the client of POF-MKL, and its predictions with a model that was saved."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.checkpoint import pack_arrays, unpack_arrays, write_atomically, write_csv
from fedkern_flwr.errors import CheckpointError, ProtocolError, TableError
from fedkern_flwr.exchange import SumSpec
from fedkern_flwr.guard import refusal
from fedkern_flwr.node.client import Client
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import private
from fedkern_flwr.online.learning import Floats, pick_frequencies, shared_frequencies, shared_subset
from fedkern_flwr.privacy import Release

from .pof_mkl_samples import StreamAccount, compare, message_features, weights_now

if TYPE_CHECKING:
    from .pof_mkl import OnlineKernelClient


# -- what a client of the online methods tells in a run with a budget of privacy
#
# A message says something of its own samples, given what was public before, and nothing else: what
# is summed is made of the rows of the message and of the request alone. What the client learns for
# itself, which depends on all its samples, is neither sent nor does it decide whether there is an
# answer.

logger = logging.getLogger("fedkern_flwr")


def private_sum(client: OnlineKernelClient, request: Any, spec: SumSpec) -> SumSpec:
    """Return what the sum of a message must be: with the noise that the client derives itself.

    Raises
    ------
    RefusedError
        Other things would be summed than those of a message's own samples, or without a bound.
    """
    code = "FK-ORDER-NOISE"
    problem = "" if 0 < request.samples <= request.most else "a message of more samples"
    largest = float(request.samples)
    if isinstance(request, wire.KernelRequest):
        largest *= request.clip
        own = isinstance(request, wire.PersonalRequest) and request.selection != "shared"
        if own and request.kernels_per_round < len(request.theta):  # type: ignore[attr-defined]
            problem = "kernels are chosen by weights of earlier samples"
    elif isinstance(request, wire.RidgeRequest):
        if request.window != request.step:
            problem = "a sum of earlier messages' samples"
    else:
        return spec  # which has no noise, so it is refused
    # else it would depend on values what does not fit, rounded as it is
    if not 0.0 < largest <= wire.SUM_BOUND / 2 or request.messages < 1:
        problem, code = "residuals without a bound", "FK-ORDER-NOISE"
    if problem:
        raise refusal(f"privacy: {problem}", client.name, code=code)
    release = _release(client, request)
    rows = (request.step, request.step + request.samples)
    length = private.message_length(request, client.x.shape[1])
    return replace(spec, release=release, rows=rows, length=length)


def _release(client: OnlineKernelClient, request: Any) -> Release:
    """Return the noise of the sum of a message."""
    assert client.budget is not None
    sums = client.secure_sums
    cohort = sums.party.state.cohorts[sums.order(wire.UPDATE_SUM).cohort]
    known: dict[str, int] = {"most": request.most, "messages": request.messages}
    known["parties"] = len(cohort.members)
    known["least"] = known["parties"] if request.whole else cohort.threshold
    if isinstance(request, wire.RidgeRequest):
        return private.ridge_release(
            client.budget,
            columns=client.x.shape[1] if request.raw else 0,
            kernels=request.shared if request.sums else 0,
            features=request.features,
            summed=request.summed,
            **known,
        )
    kernels, losses = private.summed(request)
    return private.update_release(
        client.budget,
        clip=request.clip,
        pairs=request.released or kernels * request.features,
        features=request.features,
        losses=losses,
        **known,
    )


def add_noisy(
    client: OnlineKernelClient, request: Any, learn: Callable[[Any], Any]
) -> wire.NoisyReply:
    """Add what a message is about to its sum, then learn; what is learned stays here.

    An error in learning would depend on earlier samples, and a server may provoke it: so nobody
    is told of one, but in simulations.

    Raises
    ------
    RefusedError
    """
    x, y = client._rows(request.step, request.samples)
    vector = message_sum(request, x, y)
    client.secure_sums.contribute(wire.UPDATE_SUM, vector, release=str(request.round))
    told: dict[str, Any] = {"total_samples": 0, "total_squared_error": 0.0}
    told |= {"regret": 0.0, "largest_loss": 0.0}
    before = client.kept.pack()
    try:
        report = learn(request)
        client.state_class.unpack(client.kept.pack())
    except Exception:
        if client.simulated:
            raise
        client.kept = client.state_class.unpack(before)
        logger.exception("nothing is learned from this message")
    else:
        if client.simulated:
            told = {name: getattr(report, name) for name in told}
    return wire.NoisyReply(**told)


def message_sum(request: Any, x: NDArray[Any], y: NDArray[Any]) -> Floats:
    """Return what a client adds of the samples of a message, by what the request says alone."""
    labels = np.asarray(y, np.float64) - request.centre
    if isinstance(request, wire.RidgeRequest):
        return private.ridge_sum(request, x, labels)
    seen = compare(message_features(request, x.shape[1])(x), request.theta, labels, request)
    residuals = private.clipped(seen.kernels - labels[:, None], request.clip)
    _, losses = private.summed(request)
    more = private.clipped_losses(residuals, request.clip) if losses else np.zeros(0)
    chosen = _chosen(request)
    gradient = private.weighed_features(residuals[:, chosen], seen.z[:, chosen])
    if request.released:
        shape = len(chosen), request.features
        picked = shared_frequencies(*shape, request.released, request.seed, request.round)
        gradient = pick_frequencies(gradient, picked)
    return np.concatenate([gradient.ravel(), more])


def _chosen(request: wire.KernelRequest) -> NDArray[np.integer[Any]]:
    """Return the kernels whose gradients are summed, the same at all clients."""
    if isinstance(request, wire.DrawnRequest):
        return np.array([request.kernel])
    many = len(request.theta)
    if isinstance(request, wire.PersonalRequest) and request.kernels_per_round < many:
        return shared_subset(many, request.kernels_per_round, request.seed, request.round)
    return np.arange(many)


# -- predictions after a run: the weights that a node keeps of it, the file that it writes

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

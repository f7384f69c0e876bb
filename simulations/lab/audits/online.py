"""POF-MKL and its baselines against a server that inverts gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.kernels.random_features import Precision
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.learning import shared_subset
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.wire.sections import detach
from fedkern_flwr.wire.sums import Order, Upload

from ...engines import Transcript, TranscriptEntry
from ..attacks.gradient_inversion import Inversion, invert_gradient
from ..attacks.network_inversion import invert_network
from ..attacks.transcripts import full_gradient, known_probability, request_frequencies
from .evidence import Sheet, Subject
from .plan import ALLOW_SMALL_SUMS, Plan, Recorded, Variant
from .released_sums import SERVER, attack_joint, attack_lonely, keep_sums

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Update:
    """A client's reply of one round, or what the server has in its place.

    Attributes
    ----------
    partition, round : int
    step : int
        First sample of the round in the client's stream.
    dimension : int
        Features of a row.
    request : StreamRequest
    gradient : ndarray
        What the reply says, or the masked vector read as if it were not masked.
    kernels : ndarray of int
        Kernels that the gradients are of.
    """

    partition: int
    round: int
    step: int
    dimension: int
    request: Any
    gradient: Floats
    kernels: NDArray[np.intp]


_REQUESTS: dict[str, Any] = {
    kind.phase: kind
    for kind in (wire.PersonalRequest, wire.SharedRequest, wire.DrawnRequest, wire.NetworkRequest)
}
_REPLIES: dict[str, Any] = {
    kind.phase: kind
    for kind in (wire.PersonalReply, wire.SharedReply, wire.DrawnReply, wire.NetworkReply)
}


def inspect(run: Recorded, sheet: Sheet) -> None:
    """Invert every client's reply of every round, and the sums."""
    samples = run.strategy.batch_size()
    seen = list(updates(run.transcript))
    x, y = truth(run, seen)
    found = [invert(update) for update in seen]
    lost = Inversion(np.full(x.shape[1], np.nan), np.nan, np.inf)
    whose = "one client's sample" if samples == 1 else "a sample of one client's round"
    rows = np.array([(f or lost).x for f in found])
    labels = np.array([[(f or lost).y] for f in found])
    sheet.rows(Subject("gradient inversion", SERVER, f"{whose}: features"), rows, x)
    sheet.rows(Subject("gradient inversion", SERVER, f"{whose}: label"), labels, y[:, None])
    if run.released:
        requests = {update.round: _personal(update.request) for update in seen}
        alone = attack_lonely(run.released, requests, [update.round for update in seen], x.shape[1])
        sheet.rows(Subject("sum inversion", SERVER, f"{whose}: features"), alone, x)
        attack_joint(run, requests, sheet)


def truth(run: Recorded, seen: list[Update]) -> tuple[Floats, Floats]:
    """Return the first sample of each update, shapes (n, d) and (n,)."""
    shards = run.prepared.clients.shards
    x = np.array([shards[u.partition].x[u.step % len(shards[u.partition].x)] for u in seen])
    return x, np.array([shards[u.partition].y[u.step % len(shards[u.partition].y)] for u in seen])


# -- what the server has


def updates(transcript: Transcript) -> Iterator[Update]:
    """Yield what the server has of each client in each round."""
    described: dict[int, TranscriptEntry] = {}
    asked: dict[int, TranscriptEntry] = {}
    for entry in transcript.entries():
        if entry.direction == "down":
            if entry.phase in _REQUESTS:
                asked[entry.node] = entry
        elif entry.phase == "describe":
            described[entry.node] = entry
        elif entry.phase in _REPLIES or entry.phase == wire.MaskedReply.phase:
            question = asked.get(entry.node)
            if question is not None and question.scalars["round"] == entry.scalars["round"]:
                yield _read(described[entry.node].scalars, question, entry)


def _read(party: dict[str, Any], question: TranscriptEntry, answer: TranscriptEntry) -> Update:
    arrays, scalars, orders = detach(question.arrays, question.scalars, party="server")
    request = _REQUESTS[question.phase].unpack(arrays, scalars, party="server")
    arrays, scalars, uploads = detach(answer.arrays, answer.scalars, party="client")
    if answer.phase == wire.MaskedReply.phase:
        order = next(s for s in orders if s.phase == Order.phase).read(Order, party="server")
        upload = next(s for s in uploads if s.phase == Upload.phase).read(Upload, party="client")
        encoding = Encoding(order.kind, order.bits, order.bound)  # type: ignore[arg-type]
        vector = encoding.decode(np.concatenate(upload.masked), party["partitions"])
        gradient, kernels = _unmasked(request, vector[: -wire.STATISTICS])
    else:
        reply = _REPLIES[answer.phase].unpack(arrays, scalars, party="client")
        gradient = np.asarray(reply.gradient, np.float64)
        kernels = getattr(reply, "kernels", _kernels(request)).astype(np.intp)
    return Update(
        partition=party["partition"],
        round=request.round,
        step=request.step,
        dimension=party["features"],
        request=request,
        gradient=gradient,
        kernels=kernels,
    )


def _kernels(request: Any) -> NDArray[np.intp]:
    """Return the kernels whose gradients are asked for."""
    if isinstance(request, wire.NetworkRequest):
        return np.zeros(0, np.intp)
    if isinstance(request, wire.DrawnRequest):
        return np.array([request.kernel], np.intp)
    return np.arange(len(request.theta), dtype=np.intp)


def _unmasked(request: Any, vector: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Read a masked vector as if it had no mask."""
    kernels = _kernels(request)
    if isinstance(request, wire.NetworkRequest):
        return vector, kernels
    width = request.theta.shape[1]
    if isinstance(request, wire.PersonalRequest) and request.selection == "shared":
        kernels = _shared(request)
    size = 2 * request.released or len(kernels) * width
    gradient = full_gradient(vector[:size], request)
    used = gradient.any(axis=1)  # without a mask, kernels that were not chosen are zero
    return gradient[used], kernels[used]


def _shared(request: wire.PersonalRequest) -> NDArray[np.intp]:
    many = request.kernels_per_round
    return shared_subset(len(request.theta), many, request.seed, request.round).astype(np.intp)


# -- attacks


def invert(seen: Update) -> Inversion | None:
    """Compute a client's sample from what the server has of one round."""
    request = seen.request
    if isinstance(request, wire.NetworkRequest):
        return invert_network(
            seen.gradient, request.parameters, request.layers, request.seed, seen.dimension
        )
    asked = _personal(request)
    found = invert_gradient(
        seen.gradient,
        request.theta[seen.kernels],
        request_frequencies(asked, seen.dimension)[seen.kernels],
        probability=_probability(request, seen.kernels.size),
        regularization=request.regularization,
        selection=cast(Any, getattr(request, "selection", "subset")),
        precision=cast(Precision, request.precision),
    )
    return None if found is None else replace(found, y=found.y + request.centre)


def _probability(request: Any, chosen: int) -> float | None:
    if isinstance(request, wire.PersonalRequest):
        return known_probability(request, chosen)
    return float(request.probability) if isinstance(request, wire.DrawnRequest) else 1.0


def _personal(request: Any) -> wire.PersonalRequest:
    """Return the request as one of POF-MKL for all kernels, whose gradients are the same."""
    if isinstance(request, wire.PersonalRequest):
        return request
    shared = {f.name: getattr(request, f.name) for f in fields(wire.KernelRequest)}
    return wire.PersonalRequest(
        **shared,
        kernels_per_round=len(request.theta),
        selection="subset",
        exploration=1.0,
        weight_rule="",
        learning_rate=0.0,
    )


_METHODS = ("pof-mkl", "ofskl", "ofmkl-avg", "vm-kofl", "em-kofl", "per-fed-avg")
_INVERSION, _JOINT = ("gradient inversion",), ("joint inversion",)
#: Clients choose one kernel each.
_LONELY = {
    "kernels_per_round": 1,
    "features": 40,
    "samples_per_round": 1,
    "allow_small_sums": True,
}
#: Release 0.1: whole gradients, whatever the number of samples.
_UNCOUNTED = {"frequencies_per_round": "all", "allow_small_sums": True}
#: Sums of 10 samples, with the paper's step size as well, of 2 and of 5.
_SMALL: tuple[dict[str, Any], ...] = (
    {"samples_per_round": 1},
    {"samples_per_round": 1, "step_size": "paper"},
    {"samples_per_round": 1, "clients": 2},
    {"samples_per_round": 1, "clients": 5},
)

PLAN = Plan(
    methods=_METHODS,
    inspect=inspect,
    variants=(
        *(Variant(name) for name in _METHODS),
        *(Variant(name, {"secure": False}, _INVERSION) for name in _METHODS),
        Variant("pof-mkl", _LONELY, ("sum inversion",)),
        Variant("pof-mkl", {"step_size": "paper"}),
        *(Variant("pof-mkl", {**options, **_UNCOUNTED}, _JOINT) for options in _SMALL),
    ),
    defaults={"secure": True, "rounds": 30},
    why="Secure sums are on, and samples per message and numbers per round are chosen by the rule "
    "of counting, as in a deployment; there are fewer rounds.",
    spy=keep_sums,
    hidden=("hindsight",),
    own=(ALLOW_SMALL_SUMS,),
)

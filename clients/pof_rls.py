"""What a client of POF-RLS makes of its samples: learners, and their mixture."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import ridge
from fedkern_flwr.online.learning import Floats

from .pof_mkl_account import StreamAccount
from .pof_mkl_samples import known_word

_NEVER = 1 << 62  # rows


class Expert(NamedTuple):
    """A learner of the mixture."""

    learner: ridge.Ridge
    rows: int  # place of its features among those of a row
    columns: NDArray[np.intp] | slice  # which of them it takes
    needs: int  # rows that it must have learned to take part
    own: bool  # whether it learns from the client's rows alone


def learn_samples(
    request: wire.RidgeRequest, account: StreamAccount, x: NDArray[Any], y: NDArray[Any]
) -> Floats:
    """Predict and learn the samples of a message; return the sums that are asked for."""
    y = np.asarray(y, np.float64) - request.centre
    rows = _rows_of(request, x)
    experts = _experts(request, account, x.shape[1])
    account.of(len(experts))
    hedge = ridge.Hedge(account.losses, account.gap)
    awake = _awake(experts, request.samples)
    found = np.array([_learned(one, rows, y) for one in experts])
    found = found.clip(-request.centre, 1.0 - request.centre)
    for t in range(request.samples):
        one, out = awake[:, t], found[:, t]
        mixed = float(hedge.weights(one) @ out)
        losses = (np.where(one, out, mixed) - y[t]) ** 2
        hedge.learn(losses)
        account.total += (mixed - y[t]) ** 2
        account.largest = max(account.largest, float(losses.max()))
    account.losses = account.squared = hedge.losses
    account.gap = hedge.gap
    account.samples += request.samples
    learned = [one.learner for one in experts if one.own and one.rows < len(rows)]
    account.own = [np.append(float(one.rows), one.state()) for one in learned]
    return _sums(request, rows, y)


def predict_rows(request: wire.RidgeRequest, account: StreamAccount, x: NDArray[Any]) -> Floats:
    """Predict rows with the mixture as it is now."""
    rows = np.column_stack(_rows_of(request, x))
    found = rows @ mixture(request, account, x.shape[1])
    return np.asarray(found.clip(-request.centre, 1.0 - request.centre) + request.centre)


def mixture(request: wire.RidgeRequest, account: StreamAccount, dimension: int) -> Floats:
    """Return the coefficients of all features with which the client predicts now."""
    experts = _experts(request, account, dimension)
    account.of(len(experts))
    weights = ridge.Hedge(account.losses, account.gap).weights(_awake(experts, 1)[:, 0])
    known = request.kernels if request.bandwidths else 0
    found = [np.zeros(dimension + 1), *np.zeros((known, 2 * request.features))]
    for weight, one in zip(weights, experts, strict=True):
        if one.rows < len(found):
            found[one.rows][one.columns] += weight * one.learner.theta
    return np.concatenate(found)


def _experts(request: wire.RidgeRequest, account: StreamAccount, dimension: int) -> list[Expert]:
    """Return the learners of a message: the global ones as they come, then the client's own."""
    wanted = known_word(request.experts, get_args(ridge.Experts))
    memories = (1.0,) if request.forgetting == 1.0 else (1.0, request.forgetting)
    lam, columns, wide = request.regularization, dimension + 1, 2 * request.features
    half, found = np.arange(request.summed), []
    picked = np.concatenate([half, request.features + half])
    starts, given, at = request.starts, request.inverses, 0

    def start(features: int) -> Floats:
        nonlocal starts, given
        length = ridge.numbers(features) if given > 0 else features
        one, starts, given = starts[:length], starts[length:], given - 1
        if one.size != length:
            raise ProtocolError("what global learners begin from has another size")
        return one

    for place in range(1 + request.kernels):
        few = columns if place == 0 else 2 * request.summed
        if request.raw if place == 0 else request.summed:
            sent = place == 0 or request.begun
            for _ in memories:
                begin = start(few) if sent else ridge.unlearned(few, lam)
                where = slice(None) if place == 0 else picked
                needs = 0 if sent else _NEVER
                found.append(Expert(ridge.Ridge(few, begin), place, where, needs, own=False))
        if wanted in ("all", "local", "local-kernels" if place else "local-ridge"):
            few = wide if place else columns
            for memory in memories:
                kept = account.own[at] if at < len(account.own) else None
                begin = ridge.unlearned(few, lam) if kept is None else kept[1:]
                rows = 0 if kept is None else int(kept[0])
                more: dict[str, Any] = {"memory": memory, "ridge": lam, "rows": rows}
                learner = ridge.Ridge(few, begin, **more)
                learns = place == 0 or request.bandwidths  # else its kernel has no width yet
                needs = min(few, ridge.NAP) if learns else _NEVER
                found.append(Expert(learner, place, slice(None), needs, own=True))
                at += 1
    if starts.size:
        raise ProtocolError("there are no learners for all that was sent")
    return found


def _rows_of(request: wire.RidgeRequest, x: NDArray[Any]) -> list[Floats]:
    return ridge.rows_of(x, request.bandwidths, request.features, request.seed)


def _learned(expert: Expert, rows: list[Floats], y: Floats) -> Floats:
    """Return what a learner predicts of each sample before it learns it."""
    if expert.rows >= len(rows):
        return np.zeros(len(y))  # its kernel has no width yet
    phi = np.ascontiguousarray(rows[expert.rows][:, expert.columns])
    return expert.learner.learn(phi, y)


def _awake(experts: list[Expert], samples: int) -> NDArray[np.bool_]:
    """Return who takes part in so many samples: all if nobody has learned enough."""
    ready = [one.learner.rows + np.arange(samples) >= one.needs for one in experts]
    found = np.array(ready)
    return found | ~found.any(axis=0)


def _sums(request: wire.RidgeRequest, rows: list[Floats], y: Floats) -> Floats:
    """Return the sums of the samples of a message."""
    found = [ridge.sums(rows[0], y)] if request.raw else []
    if request.sums:
        half = np.arange(request.summed)
        picked = np.concatenate([half, request.features + half])
        found += [ridge.sums(one[:, picked], y) for one in rows[1:]]
    return np.concatenate([np.zeros(0), *found]) * ridge.scale(len(y))

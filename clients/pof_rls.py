"""Learners of a POF-RLS client, and their mixture."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.guard import check_size
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import ridge
from fedkern_flwr.online.learning import Floats, Hedge

from .pof_mkl_samples import StreamAccount, known_word


@dataclass
class Bank:
    """Learners of the mixture that learn alike.

    Attributes
    ----------
    learners : Ridges
        Shape (several,) on raw columns, (kernels, several) on features.
    on_features : bool
    columns : ndarray or slice
        Features that they use.
    needs : int
        Rows to learn before they take part.
    own : bool
        Whether they learn only from the client's rows.
    learns : bool
        Whether they know anything, or could.
    """

    learners: ridge.Ridges
    on_features: bool
    columns: NDArray[np.intp] | slice
    needs: int
    own: bool
    learns: bool

    @property
    def many(self) -> int:
        return int(self.learners.theta.size // self.learners.theta.shape[-1])

    def rows(self, raw: Floats, features: Floats) -> Floats:
        if not self.on_features:
            return raw
        found = features[: len(self.learners.theta), None]
        return found if isinstance(self.columns, slice) else found[..., self.columns]

    def learn(self, raw: Floats, features: Floats, y: Floats) -> Floats:
        """Predict each sample before learning it; return the predictions, (learners, n)."""
        if not self.learns:
            return np.zeros((self.many, len(y)))
        found = self.learners.learn(self.rows(raw, features), y, last=not self.own)
        return found.reshape(self.many, len(y))


Rows = Callable[[int, int], tuple[NDArray[Any], NDArray[Any]]]  # first sample, number of samples


def learn_samples(
    request: wire.RidgeRequest, account: StreamAccount, stream: Rows, least: int = 0
) -> Floats:
    """Predict and learn the samples of a message; return the requested sums.

    ``stream`` returns rows of the stream: the samples, and earlier ones that the received learners
    on features lack. For ``least`` see :func:`.merge_rows`.

    Raises
    ------
    ProtocolError
        The sums cover other rows, or data belong to no learner.
    """
    if not 0 <= request.window <= request.step:
        raise ProtocolError("its sums are of no rows of the message", code="FK-MESSAGE-FIELD")
    x, y = stream(request.window, request.step - request.window + request.samples)
    before = len(y) - request.samples  # a stream has no rows of skipped messages
    y = np.asarray(y, np.float64) - request.centre
    raw, features = ridge.raw_rows(x[before:]), _features(request, x)
    banks = _banks(request, account, x.shape[1])
    account.of(sum(bank.many for bank in banks))
    hedge, new = Hedge(account.losses, account.gap), y[before:]
    awake = _awake(banks, request.samples)
    for bank in banks:
        if before and bank.on_features and not bank.own:  # learned before, but not received yet
            bank.learners.learn(bank.rows(raw, features[:, :before]), y[:before])
    found = np.concatenate([bank.learn(raw, features[:, before:], new) for bank in banks])
    found = found.clip(-request.centre, 1.0 - request.centre)
    for t in range(request.samples):
        one, out = awake[:, t], found[:, t]
        mixed = float(hedge.weights(one) @ out)
        losses = (np.where(one, out, mixed) - new[t]) ** 2
        hedge.learn(losses)
        account.total += (mixed - new[t]) ** 2
        account.largest = max(account.largest, float(losses.max()))
    account.losses = account.squared = hedge.losses
    account.gap = hedge.gap
    account.samples += request.samples
    account.own = [part for bank in banks if bank.own for part in _kept(bank)]
    sums = []
    if request.raw:
        from fedkern_flwr.encoding.encoder import merge_rows  # slow to import

        raw = ridge.raw_rows(merge_rows(x[before:], least))
        sums.append(ridge.sums(raw, new, wire.ridge_scale(len(new))))
    if request.sums:
        picked = features[
            : request.shared, :, ridge.summed_places(request.features, request.summed)
        ]
        sums.append(ridge.sums(picked, y, wire.ridge_scale(len(y))).ravel())
    return np.concatenate([np.zeros(0), *sums])


def predict_rows(request: wire.RidgeRequest, account: StreamAccount, x: NDArray[Any]) -> Floats:
    rows = np.column_stack([ridge.raw_rows(x), *_features(request, x)])
    found = rows @ mixture(request, account, x.shape[1])
    return np.asarray(found.clip(-request.centre, 1.0 - request.centre) + request.centre)


def mixture(request: wire.RidgeRequest, account: StreamAccount, dimension: int) -> Floats:
    """Return the current coefficients of all features."""
    banks = _banks(request, account, dimension)
    account.of(sum(bank.many for bank in banks))
    weights = Hedge(account.losses, account.gap).weights(_awake(banks, 1)[:, 0])
    known = request.kernels if request.bandwidths else 0
    raw, features, at = np.zeros(dimension + 1), np.zeros((known, 2 * request.features)), 0
    for bank in banks:
        theta = bank.learners.theta
        share = weights[at : at + bank.many].reshape(theta.shape[:-1])
        at, part = at + bank.many, np.vecdot(share[..., None, :], theta.swapaxes(-1, -2))
        if not bank.on_features:
            raw += part
        elif known:
            features[: len(part), bank.columns] += part
    return np.concatenate([raw, features.ravel()])


def _banks(request: wire.RidgeRequest, account: StreamAccount, dimension: int) -> list[Bank]:
    wanted = known_word(request.experts, get_args(ridge.Experts))
    for kernels, few in ((request.kernels, request.features), (request.shared, request.summed)):
        check_size(kernels, 2 * max(0, few), max(2 * few, dimension), party="server")
    memories = (1.0,) if request.forgetting == 1.0 else (1.0, request.forgetting)
    banks, starts, inverses, at = list[Bank](), request.starts, request.inverses, 0
    learn = request.step + request.samples - request.window > 1  # before the next message
    for on_features in (False, True):
        columns: NDArray[np.intp] | slice = slice(None)
        shape: tuple[int, ...] = ()
        few = dimension + 1
        if on_features:
            few, columns, shape = (
                2 * request.summed,
                ridge.summed_places(request.features, request.summed),
                (request.shared,),
            )
        if request.summed if on_features else request.raw:
            sent, many = request.begun or not on_features, (*shape, len(memories))
            begin = np.zeros((*many, few))
            if sent:
                length = ridge.numbers(few) if inverses > 0 else few
                size = length * math.prod(many)
                begin, starts = starts[:size], starts[size:]
                if begin.size != size:
                    raise ProtocolError(
                        "what global learners begin from has another size", code="FK-MESSAGE-SHAPE"
                    )
                begin = begin.reshape(*many, length)
            learners = ridge.from_start(begin if learn else begin[..., -few:], few)
            inverses -= sent
            banks.append(Bank(learners, on_features, columns, 0, own=False, learns=sent))
        if wanted not in ("all", "local", "local-kernels" if on_features else "local-ridge"):
            continue
        few, shape = dimension + 1, ()
        if on_features:
            few, shape = 2 * request.features, (request.kernels,)
        needs, learns = min(few, ridge.NAP), bool(request.bandwidths) or not on_features
        for memory in memories:
            more: dict[str, Any] = {"memory": memory, "ridge": request.regularization}
            kept, at = account.own[at : at + ridge.STATE], at + ridge.STATE
            if kept and kept[0].size:
                learners = ridge.from_state(kept, (*shape, 1), few, **more)
            else:
                start = ridge.unlearned(few, request.regularization)
                start = np.broadcast_to(start, (*shape, 1, start.size))
                learners = ridge.from_start(start, few, **more)
            banks.append(Bank(learners, on_features, slice(None), needs, own=True, learns=learns))
    if starts.size:
        raise ProtocolError("there are no learners for all that was sent", code="FK-MESSAGE-SHAPE")
    return banks


def _kept(bank: Bank) -> list[Floats]:
    return bank.learners.state if bank.learns else [np.zeros(0)] * ridge.STATE


def _features(request: wire.RidgeRequest, x: NDArray[Any]) -> Floats:
    kernels = len(request.bandwidths) // 8
    check_size(kernels, 2 * max(0, request.features), max(x.shape[1], 1), party="server")
    return ridge.kernel_rows(x, request.bandwidths, request.features, request.seed)


def _awake(banks: list[Bank], samples: int) -> NDArray[np.bool_]:
    """Return which learners take part in ``samples`` samples: all if none is ready."""
    after = [bank.learners.rows - bank.needs if bank.learns else -math.inf for bank in banks]
    ready = np.add.outer(after, np.arange(samples)) >= 0.0
    found = np.repeat(ready, [bank.many for bank in banks], axis=0)
    return np.asarray(found | ~found.any(axis=0))

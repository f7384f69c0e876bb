"""The client of POF-RLS: learners of a stream, and their mixture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.node.answering import answers
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import ridge
from fedkern_flwr.online.learning import Floats

from .pof_mkl import OnlineKernelClient
from .pof_mkl_account import StreamAccount
from .pof_mkl_samples import known_word


@dataclass
class RidgeAccount(StreamAccount):
    """What a client of POF-RLS remembers of its stream.

    Attributes
    ----------
    own : list of ndarray
        Of each learner of its own rows: how many they were, inverse and coefficients.
    """

    own: list[Floats] = field(default_factory=list)

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Read the account from a session's payload; empty at first.

        Raises
        ------
        ProtocolError
            It is none.
        """
        if not payload:
            return cls()
        try:
            many = int(np.frombuffer(payload, "<i8", 1)[0])
            sizes = np.frombuffer(payload, "<i8", many, 8)
            *own, rest = np.split(np.frombuffer(payload, "<f8", -1, 8 + 8 * many), sizes.cumsum())
        except (ValueError, IndexError):
            raise ProtocolError("the node's state is damaged") from None
        account = super().unpack(rest.tobytes())
        account.own = own
        return account

    def pack(self) -> bytes:
        """Return the account as bytes."""
        heads = np.array([len(self.own), *map(len, self.own)], "<i8").tobytes()
        return b"".join([heads, *(one.astype("<f8").tobytes() for one in self.own), super().pack()])


class Expert(NamedTuple):
    """A learner of the mixture."""

    learner: ridge.Ridge
    rows: int  # place of its features among those of a row
    columns: NDArray[np.intp] | slice  # which of them it takes
    needs: int  # rows that it must have learned to take part
    own: bool  # whether it learns from the client's rows alone


class OnlineRidgeClient(OnlineKernelClient):
    """Client of POF-RLS.

    It predicts each row of its stream before it looks at the label, with a mixture of learners, and
    then all of them learn. Learners of its own rows, and the weights, never leave the node.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context.
    x, y : arrays
        The stream, see :class:`OnlineKernelClient`.
    **common
        Options of :class:`OnlineKernelClient`.

    Raises
    ------
    TableError
        Rows and labels do not fit, or hold NaN or infinite values.
    """

    state_class = RidgeAccount

    @answers(wire.RidgeRequest)
    def train_ridges(self, request: wire.RidgeRequest) -> wire.RidgeReply:
        """Predict and learn B samples; return the sums that are asked for."""
        x, y = self._rows(request.step, request.samples)
        y = np.asarray(y, np.float64) - request.centre
        rows = _rows_of(request, x)
        experts = self._experts(request)
        account = self.kept.of(len(experts))
        hedge = ridge.Hedge(account.losses, account.gap)
        low, high = -request.centre, 1.0 - request.centre
        for t in range(request.samples):
            phi = [one[t] for one in rows]
            found = np.array([_output(expert, phi) for expert in experts]).clip(low, high)
            awake = _awake(experts)
            mixed = float(hedge.weights(awake) @ found)
            losses = (np.where(awake, found, mixed) - y[t]) ** 2
            hedge.learn(losses)
            account.total += (mixed - y[t]) ** 2
            account.largest = max(account.largest, float(losses.max()))
            for one in experts:
                if one.rows < len(phi):
                    one.learner.learn(phi[one.rows][one.columns], y[t])
        account.losses = account.squared = hedge.losses
        account.gap = hedge.gap
        account.samples += request.samples
        learned = [one.learner for one in experts if one.own and one.rows < len(rows)]
        account.own = [np.append(float(one.rows), one.state()) for one in learned]
        return wire.RidgeReply(total=_sums(request, rows, y), **account.report())

    @answers(wire.RidgeEvaluateRequest)
    def evaluate_ridges(self, request: wire.RidgeEvaluateRequest) -> wire.EvaluateReply:
        """Predict the held-out rows with the mixture as it is now."""
        x = self.x_test[: len(self.y_test)]
        outputs = np.column_stack(_rows_of(request, x)) @ self.mixture(request)
        outputs = outputs.clip(-request.centre, 1.0 - request.centre) + request.centre
        error = float(((outputs - self.y_test) ** 2).sum())
        return wire.EvaluateReply(samples=len(x), squared_error=error)

    def mixture(self, request: wire.RidgeRequest) -> Floats:
        """Return the coefficients of all features with which the client predicts now."""
        experts = self._experts(request)
        account = self.kept.of(len(experts))
        weights = ridge.Hedge(account.losses, account.gap).weights(_awake(experts))
        known = request.kernels if request.bandwidths else 0
        found = [np.zeros(self.x.shape[1] + 1), *np.zeros((known, 2 * request.features))]
        for weight, one in zip(weights, experts, strict=True):
            if one.rows < len(found):
                found[one.rows][one.columns] += weight * one.learner.theta
        return np.concatenate(found)

    def _experts(self, request: wire.RidgeRequest) -> list[Expert]:
        """Return the learners of a message: the global ones as they come, then the client's own."""
        wanted = known_word(request.experts, get_args(ridge.Experts))
        memories = (1.0,) if request.forgetting == 1.0 else (1.0, request.forgetting)
        lam, columns, wide = request.regularization, self.x.shape[1] + 1, 2 * request.features
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
            if (request.raw if place == 0 else request.summed):
                sent = place == 0 or request.begun
                for _ in memories:
                    begin = start(few) if sent else ridge.unlearned(few, lam)
                    where = slice(None) if place == 0 else picked
                    needs = 0 if sent else _NEVER
                    found.append(Expert(ridge.Ridge(few, begin), place, where, needs, own=False))
            if wanted in ("all", "local", "local-kernels" if place else "local-ridge"):
                few = wide if place else columns
                for memory in memories:
                    kept = self.kept.own[at] if at < len(self.kept.own) else None
                    begin = ridge.unlearned(few, lam) if kept is None else kept[1:]
                    rows = 0 if kept is None else int(kept[0])
                    more: dict[str, Any] = {"memory": memory, "ridge": lam, "rows": rows}
                    learner = ridge.Ridge(few, begin, **more)
                    found.append(Expert(learner, place, slice(None), min(few, ridge.NAP), own=True))
                    at += 1
        if starts.size:
            raise ProtocolError("there are no learners for all that was sent")
        return found


_NEVER = 1 << 62


def _rows_of(request: wire.RidgeRequest, x: NDArray[Any]) -> list[Floats]:
    return ridge.rows_of(x, request.bandwidths, request.features, request.seed)


def _output(expert: Expert, phi: list[Floats]) -> float:
    if expert.rows >= len(phi):
        return 0.0  # its kernel has no width yet
    return float(expert.learner.theta @ phi[expert.rows][expert.columns])


def _awake(experts: list[Expert]) -> NDArray[np.bool_]:
    """Return who takes part: all if nobody has learned enough."""
    found = np.array([one.learner.rows >= one.needs for one in experts])
    return found if found.any() else ~found


def _sums(request: wire.RidgeRequest, rows: list[Floats], y: Floats) -> Floats:
    """Return the sums of the samples of a message."""
    found = [ridge.sums(rows[0], y)] if request.raw else []
    if request.sums:
        half = np.arange(request.summed)
        picked = np.concatenate([half, request.features + half])
        found += [ridge.sums(one[:, picked], y) for one in rows[1:]]
    return np.concatenate([np.zeros(0), *found]) * ridge.scale(len(y))

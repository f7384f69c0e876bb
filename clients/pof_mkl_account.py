"""What a client of the online methods remembers of its stream."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.learning import Floats


def _none() -> Floats:
    return np.zeros(0)


@dataclass
class StreamAccount:
    """What a client remembers of its stream: (2N + 4) numbers, 13 more in a secure run.

    Those of its own learners, if it has some, come before.

    Attributes
    ----------
    losses : ndarray, shape (N,)
        Regularised losses of each kernel, summed: the logarithms of the weights (eq. 7).
    squared : ndarray, shape (N,)
        Squared errors of each kernel, summed: for the regret (eq. 11).
    total : float
        Squared errors of the client's own predictions, summed.
    samples : float
        Samples predicted.
    gap : float
        Mixability gap of AdaHedge.
    largest : float
        Largest loss of a kernel so far.
    counted : ndarray, shape (6,) or (0,)
        Statistics that are in the server's sums already.
    pending : ndarray, shape (6,) or (0,)
        Statistics after sum number ``pending_sum``, of which it is not known whether it counted.
    pending_sum : float
    own : list of ndarray
        Of POF-RLS: of each learner of own rows how many they were, inverse and coefficients.
    """

    losses: Floats = field(default_factory=_none)
    squared: Floats = field(default_factory=_none)
    total: float = 0.0
    samples: float = 0.0
    gap: float = 0.0
    largest: float = 0.0
    counted: Floats = field(default_factory=_none)
    pending: Floats = field(default_factory=_none)
    pending_sum: float = 0.0
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
        numbers, own_learners = np.frombuffer(payload, "<f8"), []
        if numbers[0] < 0.0:  # which no loss is
            many = int(-numbers[0])
            ends = [many + 1, *(many + 1 + numbers[1 : many + 1].cumsum().astype(int)).tolist()]
            own_learners = [numbers[a:b] for a, b in pairwise(ends)]
            numbers = numbers[ends[-1] :]
        secure = 2 * wire.STATISTICS + 1 if numbers.size % 2 else 0
        own = numbers.size - secure
        if own < 4:
            raise ProtocolError("the node's state is damaged", code="FK-CHECKPOINT-DAMAGED")
        kernels = (own - 4) // 2
        account = cls(numbers[:kernels], numbers[kernels : 2 * kernels], *numbers[own - 4 : own])
        if secure:
            account.counted, account.pending = numbers[own:-1].reshape(2, -1)
            account.pending_sum = numbers[-1]
        account.own = own_learners
        return account

    def twin(self) -> Self:
        """Return a copy, which can be changed without this one."""
        return replace(self, own=list(self.own))

    def of(self, kernels: int) -> Self:
        """Return the account, of so many kernels.

        Raises
        ------
        ProtocolError
            It is one of others.
        """
        if not self.samples and not self.losses.size:
            self.losses, self.squared = np.zeros(kernels), np.zeros(kernels)
        if self.losses.size != kernels:
            raise ProtocolError(
                f"the node's state does not belong to {kernels} kernels", code="FK-SETTINGS-CHANGED"
            )
        return self

    def pack(self) -> bytes:
        """Return the account as bytes."""
        sizes = [-len(self.own), *map(len, self.own)] if self.own else ()
        parts: list[Any] = [
            sizes,
            *self.own,
            self.losses,
            self.squared,
            (self.total, self.samples, self.gap, self.largest),
        ]
        if self.pending.size:
            parts += [self.counted, self.pending, (self.pending_sum,)]
        return b"".join(np.ascontiguousarray(part, "<f8").data for part in parts)

    def uncounted(self, statistics: Floats, number: int, counted: int) -> Floats:
        """Return what the statistics have grown by since they were last counted in a sum.

        Parameters
        ----------
        statistics : ndarray, shape (6,)
            The statistics now.
        number, counted : int
            Number of the sum at hand, and of the last one in which this client was counted.
        """
        if not self.pending.size:
            self.counted = np.zeros_like(statistics)
        elif counted >= self.pending_sum:
            self.counted = self.pending
        self.pending, self.pending_sum = statistics, number
        return statistics - self.counted

    @property
    def regret(self) -> float:
        """Squared error above that of the best kernel in hindsight (eq. 11)."""
        return float(self.total - self.squared.min()) if self.squared.size else 0.0

    def errors(self) -> dict[str, Any]:
        """Return the fields of a :class:`~fedkern_flwr.online.messages.StreamReport`."""
        return {"total_samples": int(self.samples), "total_squared_error": float(self.total)}

    def report(self) -> dict[str, Any]:
        """Return the fields of a :class:`~fedkern_flwr.online.messages.KernelReport`."""
        return {**self.errors(), "regret": self.regret, "largest_loss": float(self.largest)}

"""The two protocols of the FedCG paper, with all that every party receives.

Damiani, Rodina and Decherchi, "A Hybrid Federated Kernel Regularized Least Squares Algorithm",
2024: the naive protocol of section 2.2 and the chain of Algorithms 1 and 2. Both solve
(K^T K + lambda I) alpha = K^T y (eq. 2.9) by conjugate gradients. K is the Hadamard product of the
kernels of the blocks.

Corrected here: lines 36 and 46 of Algorithm 1 exchange v and eta, which gives the gradient the
wrong sign. Lines 28 to 30 add v over hospitals with different rows; here v stays per hospital.
Lines 40, 63 and 64 add to earlier sums; here sums begin at zero in every epoch. Line 30 of
Algorithm 2 adds lambda p / N_h at each hospital; here the server adds lambda p once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.kernels.product import (
    ProductKernel,
    kernel_from_distances,
    partial_distances,
)

Floats = NDArray[np.float64]
#: Messages in order: (sender, receiver, name, array). The parties are ``server``, ``hospital 0``,
#: ``hospital 1``, ... and ``centre 0``, ``centre 1``, ...
Transcript = list[tuple[str, str, str, Floats]]

SERVER = "server"


@dataclass(frozen=True)
class Hospital:
    """Rows of one hospital: blocks, shapes (rows, features), and labels y, shape (rows,).

    The blocks of the centres come first, in the order of the chain. A block may have no features.
    """

    blocks: Sequence[Floats]
    y: Floats


@dataclass
class Result:
    """Iterates alpha, shape (m,), at the start and after each epoch, with sum(r^2) (line 71)."""

    iterates: list[Floats] = field(default_factory=list)
    squared: list[float] = field(default_factory=list)

    @property
    def alpha(self) -> Floats:
        """The solution, shape (m,)."""
        return self.iterates[-1]

    @property
    def epochs(self) -> int:
        """Number of epochs."""
        return len(self.iterates) - 1


def sample_landmarks(
    sampling: Literal["P", "U", "N"], m: int, x: Floats, rng: np.random.Generator
) -> Floats:
    """Draw m landmarks (section 2): training rows (P), uniform (U) or normal (N) ones.

    Training rows ``x``, shape (n, d), are in [0, 1].
    """
    if sampling == "P":
        return np.asarray(x[rng.choice(len(x), m, replace=False)])
    if sampling == "U":
        return rng.random((m, x.shape[1]))
    return np.clip(rng.normal(x.mean(axis=0), x.std(axis=0), (m, x.shape[1])), 0.0, 1.0)


def build_kernel(x: Floats, w: Floats, gamma: float | Floats, kernel: ProductKernel) -> Floats:
    """Compute the kernel of rows and landmarks, shape (rows, m) (buildKernel; eq. 4.1 squared)."""
    return kernel_from_distances(partial_distances(x, w, kernel), np.atleast_1d(gamma))


def initial(m: int, seed: int) -> Floats:
    """Draw alpha, which all parties draw from the same seed (line 19 of Algorithm 1)."""
    return np.random.default_rng([seed, 0]).standard_normal(m)


def label_noise(rows: int, seed: int, hospital: int) -> Floats:
    """Draw a hospital's eta, which all parties draw from the same seed (line 20 of Algorithm 1)."""
    return np.random.default_rng([seed, 1, hospital]).random(rows)


def naive(
    hospitals: Sequence[Hospital],
    w: Sequence[Floats],
    gamma: float | Floats,
    regularization: float,
    *,
    kernel: ProductKernel = "rbf",
    alpha: Floats | None = None,
    seed: int = 0,
    tolerance: float = 1e-6,
    epochs: int = 1000,
) -> tuple[Result, Transcript]:
    """Show all kernel blocks and labels to the server, which solves alone (section 2.2).

    The paper's noise of the labels is left out: the server knows its seed.
    """
    transcript: Transcript = []
    kernels = []
    for h, hospital in enumerate(hospitals):
        product = np.ones((len(hospital.y), len(w[0])))
        for sender, x, slice_ in zip(_parties(h, w), hospital.blocks, w, strict=True):
            block = build_kernel(x, slice_, gamma, kernel)
            transcript.append((sender, SERVER, f"kernel of hospital {h}", block))
            product *= block
        kernels.append(product)
        transcript.append((f"hospital {h}", SERVER, "labels", hospital.y))
    k, y = np.concatenate(kernels), np.concatenate([hospital.y for hospital in hospitals])
    alpha = initial(k.shape[1], seed) if alpha is None else alpha
    gradient = k.T @ (k @ alpha - y)
    found = _iterate(lambda p: k.T @ (k @ p), gradient, alpha, regularization, tolerance, epochs)
    return found, transcript


def chain(
    hospitals: Sequence[Hospital],
    w: Sequence[Floats],
    gamma: float | Floats,
    regularization: float,
    *,
    kernel: ProductKernel = "rbf",
    alpha: Floats | None = None,
    seed: int = 0,
    tolerance: float = 1e-6,
    epochs: int = 1000,
) -> tuple[Result, Transcript]:
    """Pass partial products along the centres to each hospital, and back (Algorithms 1 and 2).

    Parameters
    ----------
    hospitals : sequence of Hospital
        Rows and labels.
    w : sequence of ndarray, shapes (m, features)
        The landmarks of each block.
    gamma, kernel : float or ndarray, shape (m,), {"rbf", "laplacian"}
        The kernel.
    regularization : float
        lambda.
    alpha : ndarray, shape (m,), optional
        The start (default: random).
    seed : int
        Common seed of alpha and of the noise of the labels.
    tolerance, epochs : float, int
        Stop at sum(r^2) < tolerance, or after so many epochs.

    Returns
    -------
    Result
    Transcript
        The directions alpha and p, ``K alpha`` and ``K p`` forward, ``K^T v``, ``K^T eta`` and
        ``K^T K p`` backward. The server receives v and the sums of rows of the backward matrices.
    """
    transcript: Transcript = []
    kernels = [
        [build_kernel(x, slice_, gamma, kernel) for x, slice_ in zip(one.blocks, w, strict=True)]
        for one in hospitals
    ]
    ways = [_parties(h, w) for h in range(len(hospitals))]
    noise = [label_noise(len(one.y), seed, h) for h, one in enumerate(hospitals)]

    def send(sender: str, receiver: str, name: str, array: Floats) -> Floats:
        transcript.append((sender, receiver, name, array))
        return array

    def distribute(name: str, vector: Floats) -> None:
        for party in dict.fromkeys(party for way in ways for party in way):
            send(SERVER, party, name, vector.copy())

    def forward(h: int, name: str, vector: Floats) -> Floats:
        """Return the hospital's rows of K times the vector (Algorithm 2, lines 9 to 18)."""
        way, (first, *others) = ways[h], kernels[h]
        matrix = first * vector
        for (sender, receiver), block in zip(pairwise(way), others, strict=True):
            matrix = send(sender, receiver, f"K {name} of hospital {h}", matrix) * block
        return np.asarray(matrix.sum(axis=1))

    def backward(h: int, name: str, vector: Floats) -> Floats:
        """Return K_h^T times the hospital's vector (Algorithm 2, lines 23 to 29)."""
        way, (last, *others) = ways[h][::-1], kernels[h][::-1]
        matrix = last * vector[:, None]
        for (sender, receiver), block in zip(pairwise(way), others, strict=True):
            matrix = send(sender, receiver, f"K^T {name} of hospital {h}", matrix) * block
        return send(way[-1], SERVER, f"K^T {name} of hospital {h}", matrix.sum(axis=0))

    def multiply(p: Floats) -> Floats:
        distribute("p", p)
        return sum((backward(h, "K p", forward(h, "p", p)) for h in every), np.zeros(len(p)))

    every = range(len(hospitals))
    alpha = initial(len(w[0]), seed) if alpha is None else alpha
    distribute("alpha", alpha)
    gradient = np.zeros(len(alpha))
    for h in every:  # lines 25 to 40
        v = forward(h, "alpha", alpha) - hospitals[h].y + noise[h]  # Algorithm 2, line 20
        send(f"hospital {h}", SERVER, f"v of hospital {h}", v)
        gradient += backward(h, "v", v)
    for h in every:  # lines 43 to 51
        gradient -= backward(h, "eta", noise[h])
    return _iterate(multiply, gradient, alpha, regularization, tolerance, epochs), transcript


def _parties(h: int, w: Sequence[Floats]) -> list[str]:
    """Return the holders of the blocks of a hospital's rows, in the order of the chain."""
    return [*(f"centre {o}" for o in range(len(w) - 1)), f"hospital {h}"]


def _iterate(
    multiply: Callable[[Floats], Floats],
    gradient: Floats,
    alpha: Floats,
    regularization: float,
    tolerance: float,
    epochs: int,
) -> Result:
    """Run conjugate gradients (Algorithm 1, lines 54 to 78); ``multiply`` returns K^T K p."""
    found = Result()
    r = -(gradient + regularization * alpha)  # lines 54 to 56
    p, old = r, float(r @ r)
    found.iterates.append(alpha)
    found.squared.append(old)
    while old > 0.0 and found.epochs < epochs:  # line 59
        product = multiply(p) + regularization * p
        a = old / float(p @ product)  # line 67
        alpha = alpha + a * p
        r = r - a * product
        error = float(r @ r)  # line 71
        found.iterates.append(alpha)
        found.squared.append(error)
        if error < tolerance:  # line 74
            break
        p, old = r + error / old * p, error  # lines 77 and 78
    return found

"""Compute rows from kernel PCA in a run that requests the moments again and again.

Random features of width b / k give sums of exp(i k t) over the rows, where t is a public direction
times the row. From k = 1, 2, ... Prony's method computes all t. Sums of products show which t of
two directions are of the same row. A node that opens the moments once gives one of these sums.

Run as a program, it attacks four nodes of six rows under the default policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray
from scipy.linalg import toeplitz
from scipy.optimize import linear_sum_assignment

from fedkern_flwr.clients import KernelPCAClient
from fedkern_flwr.errors import FedKernError
from fedkern_flwr.kernel_pca import MOMENTS, moments, shapes
from fedkern_flwr.kernels.product import features_of
from fedkern_flwr.strategies import KernelPCA

from ..engines import simulate

Floats = NDArray[np.float64]
Total = Mapping[str, Floats]

REQUESTS, NODES, ROWS, COLUMNS = 90, 4, 6, 3
_FAR = 1e4  # a bandwidth at which no angle is beyond half a turn
_STEPS = 5


class ManyKernels(KernelPCA):
    """A server that deviates: it sums the moments of many widths in one run."""

    widths: Sequence[float] = ()

    def rounds(self, parties: Any) -> Any:
        """Sum for each width; ``opened`` has the totals, also of a run that is ended."""
        self.opened: list[Total] = []
        features = self.features or 0
        for width in self.widths:
            kernel = {"bandwidth": width, "features": features, "seed": self.run_seed}
            total = yield MOMENTS(shapes(2 * features), **kernel)
            self.opened.append(total)
        return {}


def directions(columns: int, features: int, seed: int) -> Floats:
    """Return the frequencies of bandwidth 1, shape (features, columns)."""
    z = features_of(np.eye(columns), bandwidth=_FAR, features=features, seed=seed)
    return _FAR * np.arctan2(z[:, :features], z[:, features:]).T


def sums_of(x: Floats, features: int, widths: Floats) -> list[Total]:
    """Compute the totals that a server would open for each width, of all rows."""
    made = [features_of(x, bandwidth=width, features=features, seed=0) for width in widths]
    return [{key: np.asarray(value) for key, value in moments(z).items()} for z in made]


def widths_for(frequencies: Floats, requests: int) -> Floats:
    """Choose widths for which angles of rows in the unit cube stay on the circle."""
    most = np.abs(frequencies).sum(axis=1).max()
    return np.asarray(most / (0.95 * np.pi) / np.arange(1, requests + 1))


def powers(totals: Sequence[Total], features: int) -> tuple[Any, Any]:
    """Compute sums of exp(i k t_d), shape (k, D), and of exp(i k (t_d + t_e)), shape (k, D, D)."""
    singles, pairs = [], []
    for total in totals:
        sine, cosine = np.split(np.sqrt(features) * total["sum"], 2)
        singles.append(cosine + 1j * sine)
        square = np.zeros((2 * features, 2 * features))
        square[np.triu_indices(2 * features)] = total["products"]
        square += np.triu(square, 1).T
        square *= features
        (ss, sc), (cs, cc) = (np.hsplit(half, 2) for half in np.vsplit(square, 2))
        pairs.append(cc - ss + 1j * (sc + cs))
    return np.array(singles), np.array(pairs)


def subspace(sums: Any, rows: int) -> tuple[float, Any]:
    """Compute how well points of these power sums can be separated, and their span."""
    column = np.concatenate([[rows], sums])
    values, vectors = np.linalg.eigh(toeplitz(column, column.conj()))
    return float(values[-rows]), vectors[:, -rows:]


def points(sums: Any, rows: int) -> Any:
    """Compute the points on the circle from sums of their powers."""
    vectors = subspace(sums, rows)[1]
    found = np.linalg.eigvals(np.linalg.lstsq(vectors[:-1], vectors[1:], rcond=None)[0])
    angles, k = np.angle(found), np.arange(1, len(sums) + 1)[:, None]
    for _ in range(_STEPS):  # of least squares on all sums
        now = np.exp(1j * k * angles)
        off, slope = sums - now.sum(axis=1), 1j * k * now
        stacked = np.vstack([slope.real, slope.imag]), np.concatenate([off.real, off.imag])
        angles = angles + np.linalg.lstsq(*stacked, rcond=None)[0]
    return np.exp(1j * angles)


def recover(totals: Sequence[Total], frequencies: Floats, width: float) -> Floats:
    """Compute all rows from the opened sums of widths ``width`` / k, shape (rows, columns)."""
    features, columns = frequencies.shape
    rows = int(np.rint(totals[0]["rows"]))
    singles, pairs = powers(totals, features)
    apart = [subspace(singles[:, d], rows)[0] for d in range(features)]
    first, *others = np.argsort(apart)[::-1][:columns]
    known = points(singles[:, first], rows)
    angles = [np.angle(known)]
    for d in others:
        one, both = points(singles[:, d], rows), points(pairs[:, first, d], rows)
        distances = np.abs(known[:, None, None] * one[:, None] - both).min(axis=2)
        angles.append(np.angle(one[linear_sum_assignment(distances)[1]]))
    found = np.linalg.solve(frequencies[[first, *others]], width * np.array(angles))
    return np.asarray(found.T, np.float64)


def found_rows(guess: Floats, rows: Floats, near: float = 1e-6) -> tuple[int, float]:
    """Count the rows that were found, and compute the largest error of these."""
    errors = np.abs(guess[:, None] - rows).max(axis=2).min(axis=0)
    return int((errors < near).sum()), float(errors[errors < near].max(initial=0.0))


def attack(x: Floats, requests: int = REQUESTS, **client: Any) -> tuple[ManyKernels, str]:
    """Request many widths from nodes of a deployment; return the server and the final error."""
    features = 3 * x.shape[2]
    server = ManyKernels(features=features, seed=0)
    server.widths = widths_for(directions(x.shape[2], features, 0), requests).tolist()

    def node(context: Context) -> KernelPCAClient:
        context.node_config["simulation"] = False
        return KernelPCAClient(context, x[int(context.node_config["partition-id"])], **client)

    try:
        simulate(server, node, len(x))
    except FedKernError as error:
        return server, str(error)
    return server, ""


def main() -> None:
    """Print how many sums were opened, and how many rows follow from them."""
    x = np.random.default_rng(0).random((NODES, ROWS, COLUMNS))
    server, said = attack(x)
    print(f"{len(server.opened)} of {REQUESTS} requests answered {said}")
    if len(server.opened) > NODES * ROWS:
        frequencies = directions(COLUMNS, 3 * COLUMNS, 0)
        guess = recover(server.opened, frequencies, server.widths[0])
        number, error = found_rows(guess, x.reshape(-1, COLUMNS))
        print(f"{number} of {NODES * ROWS} rows, largest error {error:.0e}")


if __name__ == "__main__":
    main()

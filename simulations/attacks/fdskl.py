"""Attack FDSKL at its active party: phases of the others' columns.

An active party has o + b modulo 2 pi of the others together, for each row and direction: o =
omega^T x, and b is the same for all rows. Known directions omega, as in the paper, give x_i - x_0
(:class:`.inversion.Phases`). With secret ones the mean cosine of differences is the kernel, which
gives distances among rows to about sqrt(2 / number of directions), and columns of two values
(:mod:`.distances`).

Source: follows from Algorithm 3 and section 3.2 of Gu et al., KDD 2020, against its Theorem 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from fedkern_flwr.kernels.random_features import SEED_BYTES, draw_directions

from ...clients import VerticalKernelClient
from ...strategies import FDSKL
from ..papers import fdskl as paper
from .distances import columns_of_phases, share_of_columns
from .inversion import Phases, nearest_turn
from .seen import Floats, SeenRun, Watched, correlation, made_up_table

PARTIES, OWN, ROWS, DIRECTIONS = 4, 2, 60, 400  # OWN: columns of each
GAMMA = 1.0 / (PARTIES * OWN)
_TURN = 2.0 * np.pi
_SIGMAS = 6.0


@dataclass(frozen=True)
class Angles:
    """What an active party has of the rows of all others.

    Attributes
    ----------
    values : ndarray, shape (n, R)
        o + b of the others, modulo 2 pi.
    noise : float
        Standard deviation of their rounding.
    truth : ndarray, shape (n, d)
        The others' columns.
    """

    values: Floats
    noise: float
    truth: Floats

    def differences(self, directions: Floats) -> Floats:
        """Compute x_i - x_0 with directions, shape (R, d); NaN where no x explains all angles."""
        error = np.full((1, len(directions)), np.sqrt(2.0) * self.noise)
        radius = float(directions.shape[1] ** 0.5)
        found = np.full((len(self.values) - 1, directions.shape[1]), np.nan)
        for i, seen in enumerate(self.values[1:] - self.values[0]):
            phases = Phases(seen[None], error, np.ones(1), directions[None], radius)
            x = phases.unwrap()
            if x is not None:
                expected = directions @ x
                exact = expected + nearest_turn(seen - expected)
                better = np.linalg.lstsq(directions, exact, rcond=None)[0]
                if np.abs(exact - directions @ better).max() < _SIGMAS * error.max():
                    found[i] = better
        return found

    def distances(self, gamma: float) -> Floats:
        """Estimate squared distances among rows, (n, n): not above log(R) / (2 gamma)."""
        turns = np.exp(1j * self.values)
        count = self.values.shape[1]
        mean = np.real(turns @ turns.conj().T) / count
        return np.asarray(-np.log(np.clip(mean, 1.0 / np.sqrt(count), 1.0)) / gamma)

    def score(self, guesses: Iterable[Floats]) -> float:
        """Compute the correlation of differences with the true ones, by the best guess."""
        truth = self.truth[1:] - self.truth[0]
        return max(correlation(np.nan_to_num(self.differences(g)), truth) for g in guesses)

    def columns_found(self) -> float:
        """Compute the share of the others' columns of two values that phases give."""
        return share_of_columns(columns_of_phases(self.values, self.noise), self.truth)


def table(seed: int, *, binary: bool = False) -> tuple[Floats, Floats]:
    """Make the rows of all parties, those of the active party first, and labels."""
    x, y = made_up_table(ROWS, PARTIES * OWN, seed)
    if binary:
        x[:, OWN:] = x[:, OWN:] > 0.5
    return x, y


@dataclass(frozen=True)
class Printed:
    """What the active worker of Algorithm 3 receives, and the others' directions."""

    angles: Angles
    omega: Floats


def printed(seed: int, *, binary: bool = False) -> Printed:
    """Run Algorithm 3."""
    x, _ = table(seed, binary=binary)
    omega = paper.draw_directions(seed, DIRECTIONS, PARTIES * OWN, GAMMA)
    masks = paper.draw_masks(seed, DIRECTIONS, PARTIES)
    sent: paper.Transcript = []
    trees = paper.draw_trees(PARTIES, 0, PARTIES - 1, seed)
    paper.add_phases(np.split(x, PARTIES, axis=1), omega, masks, trees, sent)
    received = [a for _, to, name, a in sent if (to, name) == ("worker 0", "o + b")]
    values = np.sum(received, axis=0) % _TURN
    return Printed(Angles(values, 1e-12, x[:, OWN:]), omega[:, OWN:])


class PhasesRun(SeenRun):
    """Run FDSKL on columns of parties, the first with labels ``y`` 0 and 1."""

    def __init__(self, parts: Sequence[Floats], y: Floats, strategy: FDSKL) -> None:
        def party(context: Any, k: int) -> VerticalKernelClient:
            labels: dict[str, Any] = {} if k else {"y": y, "classes": (0, 1)}
            return VerticalKernelClient(context, parts[k], **labels)

        super().__init__(strategy, party, len(parts))
        active = self.watched[0].noted
        rows, values = (np.concatenate(found) for found in zip(*active["received"], strict=True))
        noise = active["step"] * float(np.sqrt(len(parts) / 12.0))
        self.secret: bytes = active["secret"]
        self.angles = Angles(values, noise, np.hstack(parts[1:])[rows])

    def listen(self, client: Any, insider: Watched) -> None:
        """Have a client note the phases that it receives, less its own part."""
        take = client._take_delivered

        def taken(request: Any) -> None:
            arrays, settings = client.kept.arrays, client.kept.settings
            rows, count = arrays.get("pending rows"), int(settings.get("pending upto", 0))
            take(request)
            if rows is None or "pending rows" in arrays or not count:
                return
            step = _TURN / 2.0 ** settings["phase_bits"]
            omega, offsets = client.directions(client.partition, 0, count)
            phases = np.array(client.store().read(rows, count)) * step
            values = phases - client.features_at(rows) @ omega.T - offsets
            received = [*insider.noted.get("received", ()), (arrays["order"][rows], values % _TURN)]
            insider.noted |= {"secret": client.kept.seed, "step": step, "received": received}

        client._take_delivered = taken

    def guesses(self) -> list[Floats]:
        """Return directions that the active party may draw: by its own secret, or by zeros."""
        law = DIRECTIONS, OWN, self.strategy.kernel, GAMMA
        secrets = self.secret, bytes(SEED_BYTES)
        return [np.hstack([draw_directions(s, 0, *law)] * (PARTIES - 1)) for s in secrets]


@cache
def default_run(seed: int, *, binary: bool = False) -> PhasesRun:
    """Run FDSKL with its default options, but for width, penalty and number of directions."""
    x, y = table(seed, binary=binary)
    strategy = FDSKL(features=DIRECTIONS, gamma=GAMMA, regularization=1e-3, seed=seed)
    return PhasesRun(np.split(x, PARTIES, axis=1), y, strategy)


# -- what the attacks measure


def rows_found(run: Printed, seed: int) -> float:
    """Compute the others' rows from phases of known directions."""
    return run.angles.score([run.omega])


def rows_guessed(run: PhasesRun, seed: int) -> float:
    """Try directions that the active party could draw."""
    return abs(run.angles.score(run.guesses()))


def distances_found(run: PhasesRun, seed: int) -> float:
    """Compute distances without any directions."""
    truth = run.angles.truth
    pairs = np.triu_indices(len(truth), 1)
    true = cdist(truth, truth, "sqeuclidean")[pairs]
    return correlation(run.angles.distances(GAMMA)[pairs], true)


def columns_found(run: Printed | PhasesRun, seed: int) -> float:
    """Compute columns of two values without any directions."""
    return run.angles.columns_found()

"""Pooled model of FDSKL with the same directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.alignment import hash_ids, sort_order
from fedkern_flwr.kernels.random_features import draw_directions, draw_offsets
from fedkern_flwr.labels import balanced_weights, class_counts, encode_classes
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.vertical.phase_training import minimise
from fedkern_flwr.vertical.phases import draw_batch, new_coefficients, outputs, step_size

from ...strategies import FDSKL
from .dealt_data import alignment_key, frequency_seed
from .new_rows import read_predictions

if TYPE_CHECKING:
    from .vertical import Columns, VerticalData

Floats = NDArray[np.float64]
_CHUNK = 1 << 21  # numbers of a temporary array


@dataclass(frozen=True)
class _Twin:
    """The pooled table with the parties' directions."""

    strategy: FDSKL
    pooled: Columns
    seed: int

    @property
    def targets(self) -> Floats:
        pooled = self.pooled
        if pooled.classes:
            known = np.where(np.isfinite(pooled.y), pooled.y, pooled.classes[0])
            return encode_classes(known, pooled.classes, "the pooled table")
        return np.asarray(pooled.y[:, None] / pooled.label_bound)

    def angles(self, rows: NDArray[np.intp], owner: int, first: int, upto: int) -> Floats:
        """Return omega^T x + b of an owner's directions, shape (rows, upto - first)."""
        out = np.zeros((len(rows), upto - first))
        strategy = self.strategy
        for party, columns in enumerate(self.pooled.parts):
            seed, law = frequency_seed(self.seed, party), (strategy.kernel, strategy.gamma_)
            omega = draw_directions(seed, owner, upto, len(columns), *law)
            out += self.pooled.x[np.ix_(rows, columns)] @ omega[first:].T
            out += draw_offsets(seed, owner, upto, *law)[first:]
        return out

    def announced(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return rows in the order of alignment."""
        ranks = hash_ids(rows.astype(str), alignment_key(self.seed), f"order {self.seed}")
        return rows[sort_order(ranks)]

    def phases(self, rows: NDArray[np.intp], owner: int, upto: int) -> NDArray[np.uint32]:
        """Return phases of 32 bits, shape (rows, upto)."""
        circle = Encoding.circle(32)
        out = np.empty((len(rows), upto), np.uint32)
        step = max(1, _CHUNK // upto)
        for start in range(0, len(rows), step):
            angles = self.angles(rows[start : start + step], owner, 0, upto)
            out[start : start + step] = circle.encode(angles.reshape(-1), 1, name="").reshape(
                angles.shape
            )
        return out


def centralised_difference(strategy: FDSKL, prepared: VerticalData) -> float | None:
    """Return max |f_fed - f_central| over held-out rows, or None without predictions.

    f_central is trained on pooled rows with the same directions, 32-bit phases and the chosen
    hyperparameters.
    """
    seed = strategy.seed or 0
    pooled = prepared.split(seed)
    complete = np.isfinite(pooled.x).all(axis=1)
    twin = _Twin(strategy, pooled, seed)
    train, test = (np.flatnonzero(complete & part) for part in (pooled.train, ~pooled.train))
    descends = strategy.schedule == "streaming" and not strategy.solves
    if strategy.solves:  # from rows of the last half of the batches
        solved = strategy.solved().rows
        train = twin.announced(train)[solved - strategy.plan_.train[strategy.leaders[0]].start]
    if not len(test) or strategy.model_of[0]:
        return None
    central = _streaming if descends else _one_shot
    found = read_predictions(prepared.predictions)
    if not set(test.tolist()) <= found.keys():
        return None  # a run resumed when all was done: they went with the process that made them
    federated = np.array([found[row] for row in test.tolist()]) / pooled.label_bound
    return float(np.abs(central(twin, train, test) - federated).max()) * pooled.label_bound


def _one_shot(twin: _Twin, train: NDArray[np.intp], test: NDArray[np.intp]) -> Floats:
    strategy, owner = twin.strategy, twin.strategy.plan_.actives[0]
    directions = strategy.upto_[owner]
    phases = twin.phases(train, owner, directions)
    targets, multiple = twin.targets[train], strategy.multiple_
    value, more = strategy.regularization_, dict[str, Any](intercept=strategy.has_intercept)
    if strategy.class_weight:
        more["weights"] = balanced_weights(targets, class_counts(targets))
    weights = minimise(strategy.chosen_loss, phases, targets, value, multiple, **more)
    return outputs(twin.phases(test, owner, directions), weights, multiple)


def _streaming(twin: _Twin, train: NDArray[np.intp], test: NDArray[np.intp]) -> Floats:
    """Update f of all rows: n r cosines per iteration."""
    strategy, pooled = twin.strategy, twin.pooled
    batches = {a: twin.announced(train[pooled.owner[train] == a]) for a in strategy.leaders}
    rows, directions = np.concatenate([train, test]), strategy.directions
    place = np.full(len(pooled.y), -1)
    place[rows] = np.arange(len(rows))
    f, targets = np.zeros((len(rows), twin.targets.shape[1])), twin.targets
    done = dict.fromkeys(strategy.leaders, 0)
    for t in range(1, sum(strategy.upto_.values()) // directions + 1):
        leader = strategy.leaders[(t - 1) % len(strategy.leaders)]
        own = batches[leader]
        batch = own[draw_batch(twin.seed, t, len(own), strategy.batch)]
        first = done[leader]
        done[leader] += directions
        angles = twin.angles(rows, leader, first, done[leader])
        features = np.sqrt(2.0) * np.cos(angles)
        regularization = strategy.chosen_regularization
        rate = step_size(strategy.chosen_step, strategy.step_schedule, regularization, t)
        here = place[batch]
        made = new_coefficients(strategy.chosen_loss, f[here], targets[batch], features[here], rate)
        f = f * (1.0 - rate * regularization) + features @ made
    return np.asarray(f[len(train) :])

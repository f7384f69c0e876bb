"""A hospital's part in choosing FedCG's width: the sums of each width and fold, and their rules."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.guard import refusal
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.parties import CLASS_COUNTS
from fedkern_flwr.labels import balanced_weights, class_counts
from fedkern_flwr.solvers.tuning_sums import MOST_FOLDS, MOST_WIDTHS, tuning_length

from .party_table import Floats

if TYPE_CHECKING:
    from .fed_cg import HybridKernelClient


def tuning_sums(client: HybridKernelClient, request: wire.EquationsRequest) -> Floats:
    """Return a hospital's normal equations of each width and fold, as one vector.

    Raises
    ------
    RefusedError, ProtocolError
        It is asked for more than it may tell, or for something else than before.
    """
    gammas, folds = request.gammas, request.folds
    few = 1 <= len(gammas) <= MOST_WIDTHS and 1 <= folds <= MOST_FOLDS
    if not few or not (gammas > 0.0).all():
        raise refusal(f"more than {MOST_WIDTHS} widths or {MOST_FOLDS} folds", client.name)
    if gammas.shape[1] not in (1, client.kept.landmarks):
        raise client.wrong("the widths to choose from do not fit the landmarks")
    digest = hashlib.sha256(gammas.astype("<f8").tobytes()).hexdigest()
    asked = [folds, digest, request.balanced, request.class_counts.tolist()]
    if not client.kept.pin("tuned", asked):
        raise refusal("other widths or folds are asked for than before in this run", client.name)
    weights = _weights(client, request)  # of counts that are the first: others may be guesses
    table, kept = client.table, client.kept
    length = tuning_length(kept.landmarks, table.y.shape[1], folds, len(gammas))
    largest = 1.0 if weights is None or not weights.size else float(weights.mean())
    client.check_hospital(wire.equations_sum(request), max(largest, table.label_bound**2), length)
    if folds > 1:
        _check_folds(client, request)
    return client.kernel.tuning_sums(gammas, _folds(client, folds), folds, weights)


def training_counts(client: HybridKernelClient) -> Floats:
    """Return how many training rows of each class this hospital has, to be summed.

    Raises
    ------
    RefusedError, ProtocolError
    """
    if not client.kept.tunes or not client.table.classes:
        raise client.wrong("the rows of this run are not weighed by their classes")
    client.check_hospital(CLASS_COUNTS, 1.0, len(client.table.classes))
    return class_counts(client.kernel.targets())


def _weights(client: HybridKernelClient, request: wire.EquationsRequest) -> Floats | None:
    """Return the weights of the training rows by their classes, None where all weigh the same.

    With counts of its own a server could have single rows outweigh all others in what is summed.
    """
    counts = request.class_counts
    if not request.balanced:
        return None
    if not client.table.classes:
        raise client.wrong("classes are to be balanced, and the labels are numbers")
    y = client.kernel.targets()
    own, rows = class_counts(y), float(len(y))
    name = wire.equations_sum(request)
    if client.sums is None or name not in client.sums.orders:
        counts = own if not counts.size else counts
    else:
        rows = float(sum(client.sums.rows(name)))
    fits = counts.shape == own.shape and counts.sum() == rows
    if not fits or not ((own <= counts) & (counts <= rows - own.sum() + own)).all():
        raise refusal("counts of classes that its rows contradict", client.name)
    return balanced_weights(y, counts)


def _check_folds(client: HybridKernelClient, request: wire.EquationsRequest) -> None:
    """Refuse folds of few rows, or of rows of few hospitals: their sums are told one by one."""
    folds, name = request.folds, wire.equations_sum(request)
    policy, own = client.policy, client.kept.train // folds
    if client.kept.train > 0 and own < policy.min_own_rows:
        raise refusal(f"min_own_rows = {policy.min_own_rows}: a fold has {own}", client.name)
    if client.sums is None or name not in client.sums.orders:
        return  # a single hospital that allows it
    others = [rows // folds for rows in client.sums.rows(name)]
    least = policy.least_parties(client.enough_parties)
    if sum(rows > 0 for rows in others) < least:
        raise refusal(f"min_parties = {least}: a fold has rows of fewer", client.name)
    if sum(others) < policy.min_sum_rows:
        raise refusal(f"min_sum_rows = {policy.min_sum_rows}: a fold has fewer", client.name)


def _folds(client: HybridKernelClient, folds: int) -> NDArray[np.intp]:
    """Return the fold of each training row of the kernel: dealt by keyed hashes of the ids."""
    rows = client.places(client.kept.arrays["rows"][: client.kept.train])
    return client.table.folds(rows, folds, client.alignment_key)


def check_chosen(client: HybridKernelClient, gammas: Floats) -> None:
    """Refuse a width where it is known, and none where it was to be chosen.

    Raises
    ------
    ProtocolError
    """
    tunes, known = client.kept.tunes, client.kept.arrays["gammas"]
    fits = len(gammas) in (1, client.kept.landmarks) and bool((gammas > 0.0).all())
    if not (fits if tunes else not gammas.size or np.array_equal(gammas, known)):
        raise client.wrong("the width of the model is not that of this run")

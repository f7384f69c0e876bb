"""What can be computed from what parties of HierarchicalSVM have in hand.

In a horizontal split a user's model solves rho (w - z + r) = C sum_n a_n y_n (x_n, 1), where a_n is
the dual variable of a row, from 0 to 1 for the hinge. So whoever knows the sum of w + r over some
users of each iteration, and the centers z, has for each iteration the sum of their gradients: one
vector, made of all their rows. It is a row by itself if there is one row, or if one row alone
differs from the iteration before; and all of them lie in the span of the rows, which tells guesses
of rows apart where there are fewer rows than coefficients.

Models are matrices, a row per output, the bias last; they are in the coordinates of the run.

Source: the updates of :mod:`fedkern_flwr.groups.consensus` and of
:mod:`fedkern_flwr.clients.hierarchical_user`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.groups.consensus import Penalty

from .gradient_inversion import Floats

_FLAT = 1e-9  # singular values below that, relative to the largest, are rounding


# -- gradients from what passes in a horizontal split


def gradients_of_sums(
    totals: Sequence[Floats],
    centers: Sequence[Floats],
    rhos: Sequence[Penalty],
    users: int,
    relaxation: float,
) -> list[Floats]:
    """Compute the sum of the gradients of some users in each iteration.

    Parameters
    ----------
    totals : sequence of ndarray, shape (k, d + 1)
        Sum over the users of h_ij + r_ij, from the first iteration on.
    centers : sequence of ndarray, shape (k, d + 1)
        Sum over the users' groups of z_i, each before the first iteration and after each one;
        groups of equal size.
    rhos : sequence of float or ndarray, shape (k, 1)
        Penalty of each iteration.
    users : int
        N_i, users of each group.
    relaxation : float
        a of the updates.

    Returns
    -------
    list of ndarray, shape (k, d + 1)
        C sum_n a_n y_n (x_n, 1) over all rows of the users.
    """
    found, dual = list[Floats](), np.zeros_like(centers[0])
    for t, (total, rho) in enumerate(zip(totals, rhos, strict=True)):
        before = users * centers[t]
        if t:
            dual = dual * (rhos[t - 1] / rho)
        models = (total - dual - (1.0 - relaxation) * before) / relaxation
        found.append(rho * (models - before + dual))
        dual = total - users * centers[t + 1]
    return found


def sums_of_centers(
    centers: Sequence[Floats],
    models: Sequence[Floats],
    rhos: Sequence[Penalty],
    sigmas: Sequence[Penalty],
    users: int,
    groups: int,
    relaxation: float,
) -> list[Floats]:
    """Compute the sum of h_ij + r_ij over some users, as who makes their centers has it.

    Parameters
    ----------
    centers : sequence of ndarray, shape (k, d + 1)
        z_i before the first iteration and after each one, or its sum over groups of equal size.
    models : sequence of ndarray, shape (k, d + 1)
        z with which each center was made.
    rhos, sigmas : sequence of float or ndarray, shape (k, 1)
        Penalties of each iteration.
    users : int
        N_i, users of each group.
    groups : int
        Groups over which ``centers`` are summed.
    relaxation : float
        a of the updates.
    """
    found, dual = list[Floats](), np.zeros_like(centers[0])
    for t, (rho, sigma) in enumerate(zip(rhos, sigmas, strict=True)):
        if t:
            dual = dual * (sigmas[t - 1] / sigma)
        target = relaxation * groups * models[t] + (1.0 - relaxation) * centers[t]
        after = centers[t + 1]
        found.append(((rho * users + sigma) * after - sigma * (target - dual)) / rho)
        dual = dual + after - target
    return found


def centers_of_terms(
    terms: Sequence[Floats],
    models: Sequence[Floats],
    sigmas: Sequence[Penalty],
    groups: int,
    relaxation: float,
) -> list[Floats]:
    """Compute the sum of z_i over all groups from that of z_i + s_i, which the server opens.

    Parameters
    ----------
    terms : sequence of ndarray, shape (k, d + 1)
        Sum of z_i + s_i after each iteration.
    models : sequence of ndarray, shape (k, d + 1)
        z with which the centers of each iteration were made.
    sigmas : sequence of float or ndarray, shape (k, 1)
        Penalty of each iteration, and of the one after the last.
    groups : int
        S.
    relaxation : float
        a of the updates.

    Returns
    -------
    list of ndarray, shape (k, d + 1)
        Before the first iteration, which is zero, and after each one.
    """
    found, dual = [np.zeros_like(terms[0])], np.zeros_like(terms[0])
    for t, term in enumerate(terms):
        target = relaxation * groups * models[t] + (1.0 - relaxation) * found[-1]
        scale = sigmas[t] / sigmas[t + 1]
        center = (term - scale * (dual - target)) / (1.0 + scale)
        dual = scale * (dual + center - target)
        found.append(center)
    return found


def terms_of_models(
    models: Sequence[Floats], sigmas: Sequence[Penalty], groups: Sequence[int], ridge: Floats
) -> list[Floats]:
    """Compute the sum of all terms z_i + s_i from the global model, which all agents see.

    Parameters
    ----------
    models : sequence of ndarray, shape (k, d + 1)
        z of each tick.
    sigmas : sequence of float or ndarray, shape (k, 1)
        Penalty with which each was made.
    groups : sequence of int
        Groups of which each was made.
    ridge : ndarray, shape (d + 1,)
        Penalty of each coefficient.
    """
    parts = zip(models, sigmas, groups, strict=True)
    return [model * (sigma * count + ridge) / sigma for model, sigma, count in parts]


def gradients_of_chain_end(
    own: Sequence[Floats], end: Sequence[Floats], ridge: Floats, rho: Penalty
) -> list[Floats]:
    """Compute the gradients of the last user of a chain from its models and its neighbour's.

    Parameters
    ----------
    own, end : sequence of ndarray, shape (k, d + 1)
        Models of the neighbour, and of the user at the end, after each iteration.
    ridge : ndarray, shape (d + 1,)
        What each user penalises: that of the run by the number of users.
    rho : float or ndarray, shape (k, 1)
        eta.
    """
    found, dual = list[Floats](), np.zeros_like(end[0])
    before = (np.zeros_like(end[0]), np.zeros_like(end[0]))
    for mine, its in zip(own, end, strict=True):
        dual = dual + 0.5 * rho * (before[1] - before[0])
        middle = 0.5 * (before[0] + before[1])
        found.append((ridge + 2.0 * rho) * its - 2.0 * rho * middle + 2.0 * dual)
        before = (mine, its)
    return found


# -- rows from gradients


def row_of_gradient(gradient: Floats) -> Floats:
    """Compute the only row behind a gradient, shape (k, d + 1): by its last entry, which is 1.

    Returns
    -------
    ndarray, shape (d,)
        NaN where the last entry is rounding.
    """
    largest = gradient[np.abs(gradient[:, -1]).argmax()]
    if abs(largest[-1]) <= _FLAT * np.abs(largest).max():
        return np.full(largest.size - 1, np.nan)
    return np.asarray(largest[:-1] / largest[-1])


def label_of_gradient(gradient: Floats) -> float:
    """Return the label of the only row behind a gradient of one output."""
    return float(np.sign(gradient[0, -1]))


def changes(gradients: Sequence[Floats]) -> list[Floats]:
    """Return the first gradient and by how much each differs from the one before."""
    return [gradients[0], *(b - a for a, b in itertools.pairwise(gradients))]


def lone_rows(gradients: Sequence[Floats], tolerance: float = 1e-6) -> list[Floats]:
    """Compute rows that alone made a group's gradient change, twice in a row.

    Nothing need be known to notice it: then the two changes are parallel.

    Parameters
    ----------
    gradients : sequence of ndarray, shape (1, d + 1)
        Of one set of users in consecutive iterations.
    tolerance : float (default: 1e-6)
        Largest angle between two changes that count as parallel.

    Returns
    -------
    list of ndarray, shape (d,)
        Each once.
    """
    found, steps = list[Floats](), changes(gradients)
    floor = 1e-4 * max(float(np.linalg.norm(step)) for step in steps)
    for one, other in itertools.pairwise(steps):
        sizes = np.linalg.norm(one), np.linalg.norm(other)
        if min(sizes) < floor:
            continue
        a, b = one.ravel() / sizes[0], other.ravel() / sizes[1]
        if np.linalg.norm(a - (a @ b) * b) > tolerance:
            continue
        row = row_of_gradient(other)
        if all(np.abs(row - known).max() > 1e-4 for known in found):
            found.append(row)
    return found


def rows_found(gradients: Sequence[Floats], rows: Floats, tolerance: float = 1e-4) -> set[int]:
    """Return which rows some gradient, or the change from one to the next, shows by itself.

    Parameters
    ----------
    gradients : sequence of ndarray, shape (k, d + 1)
        Of one set of users in consecutive iterations.
    rows : ndarray, shape (n, d)
        The true rows.
    tolerance : float (default: 1e-4)
        Largest error of an entry.
    """
    found = set[int]()
    for gradient in [*gradients, *changes(gradients)]:
        errors = np.abs(rows - row_of_gradient(gradient)).max(axis=1)
        if errors.min() < tolerance:
            found.add(int(errors.argmin()))
    return found


def outside_span(gradients: Sequence[Floats], guesses: Floats, rounding: float = 1e-7) -> Floats:
    """Test guesses of rows: a row whose dual variable changes lies in the span of the gradients.

    Parameters
    ----------
    gradients : sequence of ndarray, shape (k, d + 1)
        Of one set of users in many iterations.
    guesses : ndarray, shape (n, d)
        What rows may be.
    rounding : float (default: 1e-7)
        Relative size of what counts as rounding in the gradients.

    Returns
    -------
    ndarray, shape (n,)
        Part of each guess, with its 1, outside the span: from 0 to 1. All are 0 where the span is
        the whole space.
    """
    stacked = np.concatenate(list(gradients))
    _, values, basis = np.linalg.svd(stacked, full_matrices=False)
    basis = basis[values > rounding * values[0]]
    full = np.column_stack([guesses, np.ones(len(guesses))])
    rest = full - (full @ basis.T) @ basis
    return np.asarray(np.linalg.norm(rest, axis=1) / np.linalg.norm(full, axis=1))


# -- vertical splits


def columns_in_span(vectors: Floats, guesses: Floats) -> Floats:
    """Test guesses of a column by vectors to which the true columns are orthogonal.

    Parameters
    ----------
    vectors : ndarray, shape (n, g)
        Z, orthonormal, and orthogonal to a constant column as well.
    guesses : ndarray, shape (n, m)
        What columns may be.

    Returns
    -------
    ndarray, shape (m,)
        Part of each guess in the span of Z: 0 for a true column in any units, about sqrt(g / n)
        otherwise.
    """
    size = np.linalg.norm(guesses, axis=0)
    return np.asarray(np.linalg.norm(vectors.T @ guesses, axis=0) / np.where(size, size, 1.0))


def gram_of_outputs(messages: Floats, outputs: Floats) -> Floats | None:
    """Compute X X^T from messages and the outputs X X^T m of them.

    Parameters
    ----------
    messages : ndarray, shape (n, m)
        All that were answered.
    outputs : ndarray, shape (n, m)
        The answers.

    Returns
    -------
    ndarray, shape (n, n), or None
        None while the messages do not span the columns: some would give other rows.
    """
    inner = messages.T @ outputs
    values, vectors = np.linalg.eigh((inner + inner.T) / 2.0)
    keep = values > 1e-10 * values[-1]
    if keep.all():  # the last message still told something new
        return None
    half = outputs @ (vectors[:, keep] / np.sqrt(values[keep]))
    return np.asarray(half @ half.T)


def labels_of_message(message: Floats) -> Floats:
    """Compute labels of -1 and 1 from the first message of one output: its signs, shape (n,)."""
    return np.asarray(np.sign(message[:, 0]))


def fit_of(found: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """Return the cosine of the angle between two vectors."""
    size = float(np.linalg.norm(found) * np.linalg.norm(truth))
    return float(found.ravel() @ truth.ravel()) / size if size else 0.0

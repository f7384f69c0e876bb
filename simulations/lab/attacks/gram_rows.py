"""Rows out of a Gram matrix: up to a rotation, and exactly with those that are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.stats import rankdata

from fedkern_flwr.errors import OptionError

from .gradient_inversion import Floats


def requested_items_auc(requests: NDArray[np.bool_], positives: NDArray[np.bool_]) -> float:
    """Rate the guess that the items a user asks for most often are its positives.

    Parameters
    ----------
    requests : ndarray of bool, shape (t, m)
        What a user asked for each time.
    positives : ndarray of bool, shape (m,)
        The truth, to rate the guess.

    Returns
    -------
    float
        Area under the ROC curve: 0.5 tells nothing, as asking for all of K does.
    """
    own = int(positives.sum())
    others = len(positives) - own
    if not own or not others:
        raise OptionError("needs items of both kinds")
    ranks = rankdata(requests.sum(axis=0))
    return float((ranks[positives].sum() - own * (own + 1) / 2) / (own * others))


def rows_up_to_rotation(gram: Floats) -> Floats:
    """Compute rows from their inner products, but for a rotation or reflection.

    Parameters
    ----------
    gram : ndarray, shape (n, n)
        X X^T.

    Returns
    -------
    ndarray, shape (n, d)
        d is the rank.
    """
    values, vectors = eigh(gram)
    seen = values > rounding_floor(values)
    return np.asarray((vectors[:, seen] * np.sqrt(values[seen]))[:, ::-1])


def rows_by_known(gram: Floats, known: NDArray[np.intp], records: Floats) -> Floats:
    """Compute rows from their inner products with known rows.

    Parameters
    ----------
    gram : ndarray, shape (n, n)
        X X^T.
    known : ndarray of int, shape (k,)
        Which rows are known.
    records : ndarray, shape (k, d)
        They.

    Returns
    -------
    ndarray, shape (n, d)
        Exact if the known rows span all d dimensions, else what is in their span. With d - 1
        independent ones what is missing is known but for its sign, the same for all rows.
    """
    return np.asarray(np.linalg.lstsq(records, gram[known], rcond=None)[0].T)


def rounding_floor(values: Floats) -> float:
    """Return the eigenvalue below which there is only rounding."""
    return 10.0 * len(values) * float(np.finfo(np.float64).eps) * max(float(values[-1]), 1.0)

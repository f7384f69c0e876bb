"""Is this row behind the sum? A test of membership on what a secure round of POF-MKL releases.

A row adds a vector v, its gradient, to the released total g; the attacker computes it from the row,
its label and theta. Of n rows of a kind with mean m and covariance C of their vectors the total is
about normal, N(n m, n C); with the row among them N(v + (n - 1) m, (n - 1) C). To leading order n
times the logarithm of the ratio of the two is

    (v - m)^T C^-1 (g - n m) - (v - m)^T C^-1 (v - m) / 2

Mean and covariance are those of rows of the kind that the attacker has. It needs no more numbers
than unknowns: every number tells a little, and q numbers that n rows add up to tell a row from
another by about sqrt(q / n) standard deviations.

Source: Homer et al., "Resolving individuals contributing trace amounts of DNA", PLoS Genetics 2008,
for means of independent columns; the ratio of likelihoods as in Carlini et al., "Membership
Inference Attacks From First Principles", 2022.
"""

from __future__ import annotations

import numpy as np

from .gradient_inversion import Floats
from .joint_inversion import Equations, Release

_SHRINKAGE = 0.1  # of the covariance towards a multiple of the identity


def sum_membership(release: Release, familiar: Floats, candidates: Floats) -> Floats:
    """Return how much candidates look like rows behind a sum.

    Parameters
    ----------
    release : Release
        The sum.
    familiar : ndarray, shape (r, d + 1)
        Rows and labels of the same kind that the attacker has, two or more. As in ``release``,
        labels are less what theta = 0 predicts.
    candidates : ndarray, shape (k, d + 1)
        Rows and labels that may be behind the sum.

    Returns
    -------
    ndarray, shape (k,)
        The higher, the more likely behind it.
    """
    sums = Equations(release)
    known, asked = sums.terms(familiar), sums.terms(candidates)
    mean = known.mean(axis=0)
    _, sizes, axes = np.linalg.svd(known - mean, full_matrices=False)
    variances = sizes**2 / (len(known) - 1)
    floor = _SHRINKAGE * variances.sum() / mean.size
    gain = 1.0 / (variances + floor) - 1.0 / floor
    asked -= mean
    rest = sums.target - release.samples * mean
    along, of_rest = asked @ axes.T, axes @ rest
    product = asked @ rest / floor + (along * gain) @ of_rest
    square = (asked**2).sum(axis=1) / floor + along**2 @ gain
    return np.asarray(product - 0.5 * square)

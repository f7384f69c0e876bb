"""Was it this record or that one? The best test there is, and the epsilon that it proves.

Two tables differ in one record, and a run releases a noisy sum of either. Whoever knows both tables
knows the difference d of the two sums; noise of independent, nearly normal numbers hides it the
least along d. So the projection of what was released on d / ||d||, in standard deviations of the
noise, is the best test: about N(0, 1) with the one record and N(mu, 1) with the other, with mu =
||d|| / deviation. How often a threshold is wrong bounds epsilon from below:

* with nothing taken for granted (:func:`proven_epsilon`): of a run with (epsilon, delta) no test
  has error rates a, b with a e^epsilon + b < 1 - delta;
* taking the curve of errors for that of a Gaussian (:func:`gaussian_epsilon`), which Skellam noise
  of 2^8 units and more is: the rates bound mu, and mu has an epsilon. This needs hundreds of draws
  where the other needs millions.

Rates are taken at the ends of their Clopper-Pearson intervals, thresholds are chosen before the
draws.

References
----------
Kairouz, Oh and Viswanath, "The Composition Theorem for Differential Privacy", ICML 2015. Nasr et
al., "Adversary Instantiation: Lower Bounds for Differentially Private Machine Learning", S&P 2021;
"Tight Auditing of Differentially Private Machine Learning", USENIX Security 2023. Dong, Roth and
Su, "Gaussian Differential Privacy", 2022, Corollary 2.13; Balle and Wang, 2018, Theorem 8.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize
from scipy.stats import beta, norm

from .gradient_inversion import Floats

_MOST = 1e3  # of epsilon
_FARTHEST = 9.0  # deviations to a threshold


def epsilon_of_shift(mu: float, delta: float) -> float:
    """Return epsilon at delta of telling N(0, 1) from N(mu, 1)."""
    if mu <= 0.0:
        return 0.0

    def excess(epsilon: float) -> float:
        beyond = math.exp(min(700.0, epsilon + norm.logcdf(-epsilon / mu - mu / 2.0)))
        return float(norm.cdf(mu / 2.0 - epsilon / mu) - beyond - delta)

    return float(optimize.brentq(excess, 0.0, _MOST)) if excess(0.0) > 0.0 else 0.0


def shift_of_epsilon(epsilon: float, delta: float) -> float:
    """Return mu with that epsilon at delta."""
    return float(
        optimize.brentq(lambda mu: epsilon_of_shift(mu, delta) - epsilon, 0.0, 30.0, xtol=1e-6)
    )


def most(hits: ArrayLike, trials: int, confidence: float) -> Floats:
    """Return what probabilities do not exceed with that confidence (Clopper and Pearson)."""
    found = np.asarray(hits)
    return np.where(found == trials, 1.0, beta.ppf(confidence, found + 1.0, trials - found))


def gaussian_epsilon(
    one: Floats, other: Floats, mu: float, delta: float, confidence: float
) -> float:
    """Return what epsilon is at least, with that confidence, of noise that is nearly normal.

    Parameters
    ----------
    one, other : ndarray, shape (n,)
        Projections with the one record and the other, in deviations.
    mu : float
        The shift that is expected, halfway of which is the threshold.
    delta : float
        Of the budget.
    confidence : float
        Of both intervals together.
    """
    each = (1.0 + confidence) / 2.0
    false_alarm = most((one > mu / 2.0).sum(), len(one), each)
    miss = most((other <= mu / 2.0).sum(), len(other), each)
    return epsilon_of_shift(float(-norm.ppf(false_alarm) - norm.ppf(miss)), delta)


def proven_epsilon(one: Floats, other: Floats, mu: float, delta: float, confidence: float) -> float:
    """Return what epsilon is at least, with that confidence, whatever the law of the noise.

    Parameters are those of :func:`gaussian_epsilon`. The threshold is that which promises the
    largest bound where the shift is ``mu``.
    """
    each = (1.0 + confidence) / 2.0

    def bound(false_alarms: ArrayLike, misses: ArrayLike) -> Floats:
        alarm, miss = most(false_alarms, len(one), each), most(misses, len(other), each)
        return np.log(np.maximum(1.0, (1.0 - delta - miss) / alarm))

    thresholds = np.linspace(0.0, _FARTHEST, 181)
    alarms, misses = norm.sf(thresholds), norm.cdf(thresholds - mu)
    promised = bound(np.rint(len(one) * alarms), np.rint(len(other) * misses))
    chosen = thresholds[promised.argmax()]
    return float(bound((one > chosen).sum(), (other <= chosen).sum()))

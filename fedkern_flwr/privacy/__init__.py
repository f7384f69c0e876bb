"""Add differential privacy to exact sums of integers.

* :mod:`.noise`: exact Skellam noise.
* :mod:`.accounting`: the sensitivity of a release, and the cost of releases together.
* :mod:`.budget`: the budget of a run, and the noise of a release within it.
"""

from __future__ import annotations

from .budget import Budget, NoisySum, Release, plan_release, plan_sum
from .noise import skellam

__all__ = ["Budget", "NoisySum", "Release", "plan_release", "plan_sum", "skellam"]

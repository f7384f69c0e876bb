"""Add differential privacy to exact sums of integers.

* :mod:`.accounting`: sensitivities, exact Skellam noise, and the cost of releases together.
* :mod:`.budget`: the budget of a run, and the noise of a release within it.
"""

from __future__ import annotations

from .accounting import skellam
from .budget import Budget, NoisySum, Release, plan_release, plan_sum

__all__ = ["Budget", "NoisySum", "Release", "plan_release", "plan_sum", "skellam"]

"""Differential privacy on exact sums of integers: noise, what it must be, what it costs.

* :mod:`.noise`: Skellam noise, drawn exactly from the operating system's randomness.
* :mod:`.accounting`: how far one row moves a release, and what releases cost together.
* :mod:`.budget`: what a run may cost, and the noise of a release that costs so much.
"""

from __future__ import annotations

from .budget import Budget, NoisySum, Release, plan_release, plan_sum
from .noise import skellam

__all__ = ["Budget", "NoisySum", "Release", "plan_release", "plan_sum", "skellam"]

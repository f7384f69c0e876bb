"""The usual life of guarded nodes: no run is refused, and new rows are used."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.mark.parametrize(("rows", "share"), [(500, 0.9), (200, 0.8)])
def test_two_years_pass_without_a_refusal(
    script: Callable[[str], ModuleType], rows: int, share: float
) -> None:
    _, figures = script("guard_life").life(rows, 32)
    assert figures["refusals"] == 0
    assert figures["rows in the run, month 24"] >= share
    assert figures["landmarks, FedCG's fifth run"] >= 30

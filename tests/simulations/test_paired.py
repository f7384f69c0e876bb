"""Paired differences over feature draws."""

from __future__ import annotations

import pytest

from fedkern_flwr.simulations.lab.paired import paired_differences


def test_differences_are_paired_by_draw_and_reversals_are_told():
    summaries = {
        "A": {"draws": {"mse": [1.0, 2.0, 3.0, 4.0]}},
        "B": {"draws": {"mse": [1.5, 2.5, 3.5, 3.0]}},
        "C": {"draws": {"mse": [0.5, 1.0, 2.0, 3.0]}},
    }
    pairs = paired_differences(summaries, (("A",), ("B", "absent"), ("C",)))
    assert [(p.better, p.worse) for p in pairs] == [("A", "B"), ("A", "C"), ("B", "C")]
    first, second, _ = pairs
    assert first.mean == pytest.approx(0.125)
    assert (first.wins, first.draws, first.reversed) == (3, 4, False)
    assert second.mean == pytest.approx(-0.875)
    assert second.reversed
    assert second.wins == 0
    assert 0.0 < second.p_value <= 1.0


def test_one_draw_has_no_spread_and_no_test():
    (pair,) = paired_differences(
        {"A": {"draws": {"mse": [1.0]}}, "B": {"draws": {"mse": [2.0]}}}, (("A",), ("B",))
    )
    assert (pair.std, pair.p_value, pair.wins) == (0.0, 1.0, 1)

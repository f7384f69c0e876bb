"""How many numbers about rows a run may open, as nodes say their share in describe."""

from __future__ import annotations

import math
from typing import Any

import pytest
from refusals import refused

from fedkern_flwr.planning import Allowance, allowance
from fedkern_flwr.wire import DescribeReply


def party(partition: int, rows: int = 200, share: float = 0.2, **more: Any) -> DescribeReply:
    values: dict[str, Any] = {"counting": "refuse", "signature": b"s", "features": 30, **more}
    return DescribeReply(rows=rows, partition=partition, partitions=3, share=share, **values)


THREE = [party(k) for k in range(3)]
ROW = 31.0


@pytest.mark.parametrize(
    ("parties", "how", "numbers", "columns", "rows"),
    [
        (THREE, {}, 0.2 * 400 * ROW, 200, 400),  # without the strongest colluder
        ([*THREE[:2], party(2, share=0.1)], {}, 0.1 * 400 * ROW, 200, 400),  # the least share
        ([*THREE[:2], party(2, 20)], {}, 0.2 * 220 * ROW, 110, 220),
        ([party(k, signature=b"") for k in range(3)], {}, 0.2 * 200 * ROW, 100, 200),  # no pins
        (THREE, {"rows": dict.fromkeys(range(3), 40)}, 0.2 * 80 * ROW, 40, 80),  # a fold
        (THREE, {"threshold": 2}, 0.2 * 200 * ROW, 100, 200),
        (THREE, {"labels": 0}, 0.2 * 400 * 30, 200, 400),
        ([party(k, binary=31) for k in range(3)], {}, 0.2 * 400 * ROW / 64, 200, 400),
        (
            [party(k, share=1.0, counting="warn") for k in range(3)],
            {},
            400 * ROW,
            math.inf,
            400,
        ),  # a simulation
        ([party(k, counting="off") for k in range(3)], {}, math.inf, math.inf, math.inf),
    ],
)
def test_a_run_may_open_the_least_share_of_hidden_unknowns(
    parties: list[DescribeReply], how: Any, numbers: float, columns: float, rows: float
) -> None:
    found = allowance(parties, **how)
    assert found.numbers == pytest.approx(numbers)
    assert (found.columns, found.rows) == (columns, rows)
    assert found.planned == (numbers < 400 * ROW and not math.isinf(numbers))


@pytest.mark.parametrize("linear", [0.0, 1.0, 3.0])
def test_the_widest_sum_of_products_has_no_more_numbers_than_allowed(linear: float) -> None:
    for free in (0.0, 1.0, 350.0, 2480.0):
        m = Allowance(free + 7.0).square(linear, taken=7.0)
        assert m * (m + 1) / 2 + linear * m <= free < (m + 1) * (m + 2) / 2 + linear * (m + 1)
        assert Allowance(2.0 * free + 7.0).square(linear, times=2, taken=7.0) == m  # taken once
    assert Allowance(2480.0, columns=40).square(linear) == 40
    assert Allowance().square() > 1 << 20


def test_a_share_that_is_none_is_refused() -> None:
    for share in (0.0, -0.2, 1.5):
        with refused("FK-MESSAGE-FIELD"):
            DescribeReply.unpack([], party(0, share=share).scalars(), party="partition 0")
    assert DescribeReply.unpack([], party(0, share=0.5).scalars(), party="x").share == 0.5

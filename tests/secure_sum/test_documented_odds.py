"""The odds that docs/security.md states for sparse graphs are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scipy.stats import hypergeom

from fedkern_flwr.secure_sum import graph

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def odds(parties: int) -> tuple[list[float], int]:
    """Return union bounds: colluding 20, 33, 50 %, dropping out 10, 20 %; and the worst case."""
    k = graph.degree(parties)
    shares = graph.share_threshold(parties, graph.default_threshold(parties))
    others = parties - 1
    found = [
        parties * hypergeom.sf(shares - 2, others, int(f * parties), k) for f in (0.2, 0.33, 0.5)
    ]
    # a survivor's own share counts, so shares - 1 of its neighbours must be left
    found += [
        parties * hypergeom.cdf(shares - 2, others, others - int(f * parties), k)
        for f in (0.1, 0.2)
    ]
    return [min(1.0, p) for p in found], graph.fewest_colluders(
        parties, graph.default_threshold(parties)
    )


def test_the_table_of_the_security_page() -> None:
    if not PAGE.is_file():
        pytest.skip("no source tree here")
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert [int(row[0]) for row in rows] == [31, 50, 100, 200, 1000]
    for parties, k, shares, rest in rows:
        n = int(parties)
        assert int(k) == graph.degree(n)
        assert int(shares) == graph.share_threshold(n, graph.default_threshold(n))
        *stated, worst = rest.split(" | ")
        found, fewest = odds(n)
        assert int(worst) == fewest
        for text, value in zip(stated, found, strict=True):
            assert float(text) == pytest.approx(value, rel=0.2, abs=1e-15), (parties, text)


def test_the_odds_grow_with_what_goes_wrong() -> None:
    """Negative control: the bounds are not all the same."""
    (few, third, half, tenth, fifth), _ = odds(200)
    assert few < third < half == 1.0
    assert tenth < fifth

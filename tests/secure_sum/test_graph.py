"""Who masks with whom: regular, symmetric, connected, and drawn by the roster's digest."""

from __future__ import annotations

import hashlib
import math
import re
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from fedkern_flwr.secure_sum import graph

Graph = dict[int, tuple[int, ...]]


def digest(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def draw_graph(parties: int, number: int = 0) -> Graph:
    return graph.neighbourhoods(tuple(range(parties)), digest(number))


def check_graph(neighbours: Graph, parties: int, k: int) -> None:
    """Regular of degree k, symmetric, without loops, connected, neighbours ascending."""
    assert sorted(neighbours) == list(range(parties))
    for i, around in neighbours.items():
        assert list(around) == sorted(set(around))
        assert len(around) == k, f"{i} has {len(around)} neighbours"
        assert i not in around
        assert all(i in neighbours[j] for j in around), "not symmetric"
    reached, queue = {0}, deque([0])
    while queue:
        for j in neighbours[queue.popleft()]:
            if j not in reached:
                reached.add(j)
                queue.append(j)
    assert len(reached) == parties, "not connected"


DEGREES = {2: 1, 3: 2, 20: 19, 30: 29, 31: 16, 50: 16, 100: 32, 200: 46, 1000: 68}


@pytest.mark.parametrize(("parties", "k"), DEGREES.items())
def test_degrees_of_the_design(parties: int, k: int) -> None:
    assert graph.degree(parties) == k
    check_graph(draw_graph(parties), parties, k)


@given(parties=st.integers(2, 5000))
def test_degrees_are_even_possible_and_grow(parties: int) -> None:
    k = graph.degree(parties)
    if parties <= 30:
        assert k == parties - 1
        return
    assert k % 2 == 0
    assert 16 <= k < parties - 1
    assert graph.degree(parties + 1) >= k
    assert abs(graph.degree(2 * parties) - k) <= 20  # logarithmic


@given(parties=st.integers(31, 120), number=st.integers(0, 1000))
def test_sparse_graphs_are_regular_symmetric_and_connected(parties: int, number: int) -> None:
    check_graph(draw_graph(parties, number), parties, graph.degree(parties))


def test_the_graph_follows_the_digest() -> None:
    first = draw_graph(60, 1)
    assert first == draw_graph(60, 1)
    others = [draw_graph(60, number) for number in range(2, 12)]
    assert first not in others
    shared = [len(set(first[0]) & set(other[0])) for other in others]
    assert max(shared) < 16  # expected 16 * 16 / 59
    assert draw_graph(30, 1) == draw_graph(30, 2)  # complete: nothing to draw


@given(parties=st.integers(2, 2000))
def test_default_thresholds(parties: int) -> None:
    t = graph.default_threshold(parties)
    assert t == math.floor(2 * parties / 3) + 1
    assert parties // 2 < t <= parties
    needed = graph.share_threshold(parties, t)
    if parties <= 30:
        assert needed == t
    else:
        assert needed == math.ceil(0.65 * graph.degree(parties))
        assert needed > graph.degree(parties) / 2


# -- the odds that docs/security.md states for sparse graphs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def odds(parties: int) -> list[float]:
    """Return union bounds: colluding 20, 33, 50 %, dropping out 10, 20 %."""
    k = graph.degree(parties)
    shares = graph.share_threshold(parties, graph.default_threshold(parties))
    others = parties - 1
    found = [hypergeom.sf(shares - 2, others, int(f * parties), k) for f in (0.2, 0.33, 0.5)]
    # a survivor's own share counts, so shares - 1 of its neighbours must be left
    left = [others - int(f * parties) for f in (0.1, 0.2)]
    found += [hypergeom.cdf(shares - 2, others, many, k) for many in left]
    return [min(1.0, parties * p) for p in found]


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
        assert int(worst) == graph.fewest_colluders(n, graph.default_threshold(n))
        for text, value in zip(stated, odds(n), strict=True):
            assert float(text) == pytest.approx(value, rel=0.2, abs=1e-15), (parties, text)

"""Link times of star, ring and tree: formulas against figures by hand, and the plot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("matplotlib")


from fedkern_flwr.simulations.lab.topologies import (
    direct_seconds,
    relayed_seconds,
)

SIZES = st.sampled_from([12.0, 4096.0, 1e6])
#: Parties -> seconds between parties, and through the server, of a megabyte, by hand: it takes
#: 80 ms on a link, and 1 ms more until it begins to arrive.
BY_HAND = {
    8: (  # the trees have 4, 2, 1 and 3, 2, 1 messages a step
        {"star": 0.561, "ring": 0.567, "tree": 0.243, "two trees": 0.486},
        {"star": 1.122, "ring": 1.134, "tree": 1.126, "two trees": 2.086, "masked star": 0.722},
    ),
    5: (  # the trees have 2, 1, 1 and 2, 1
        {"star": 0.321, "ring": 0.324, "tree": 0.243, "two trees": 0.405},
        {"star": 0.642, "ring": 0.648, "tree": 0.646, "two trees": 1.126, "masked star": 0.482},
    ),
}


@pytest.mark.parametrize("parties", BY_HAND)
def test_times_are_those_counted_by_hand(parties: int) -> None:
    direct, relayed = BY_HAND[parties]
    assert direct_seconds(parties, 1e6) == pytest.approx(direct)
    assert relayed_seconds(parties, 1e6) == pytest.approx(relayed)


@given(st.integers(4, 200), st.floats(1e5, 1e9))
def test_the_tree_wins_with_long_vectors_between_parties(q: int, size: float) -> None:
    found = direct_seconds(q, size)
    assert found["tree"] < min(found["star"], found["ring"])


@given(st.integers(3, 200), SIZES)
def test_the_masked_star_wins_through_the_server(q: int, size: float) -> None:
    found = relayed_seconds(q, size)
    others = min(found["ring"], found["two trees"])
    assert found["masked star"] <= found["star"] < found["tree"] <= others

"""Contract: a run has one name, one set of public options, and one opening of each sum.

What release 6f0b6ef answered is said in each test; it was run there.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conversation import asked
from refusals import refuses
from summing_nodes import Nodes
from zoo import WAYS

from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.simulations.attacks import many_kernels
from fedkern_flwr.wire import sums

# -- public options

#: Way, request -> fields that no client pins by itself.
PINNED: dict[tuple[str, str], tuple[str, ...]] = {
    ("pof-mkl, secure", "online-personal"): ("bandwidths", "seed", "centre", "selection"),
    ("pof-rls, secure", "online-ridge"): ("features", "seed", "centre", "raw", "summed"),
    ("per-fed-avg, secure", "online-network"): ("seed", "inner_step"),
    ("fed-cg", "hybrid-distances"): ("kernel", "sampling", "landmarks", "gammas"),
    ("hierarchical-svm, balanced", "svm-local"): ("mean", "ridge", "relaxation"),
    ("fdskl", "vertical-train"): ("loss", "regularizations"),
    ("ranges", "ranges-means"): ("labels", "bound"),
}


def other(value: Any) -> Any:
    """Return another value of the same kind."""
    if isinstance(value, np.ndarray):
        return value + np.ones((), value.dtype)
    if isinstance(value, bytes):
        return value[:-8] + np.float64(1.5).tobytes()
    if isinstance(value, str):
        return value + "x"
    return not value if isinstance(value, bool) else value + 1


@pytest.mark.promise("requests-settled")
@pytest.mark.parametrize(("way", "phase"), PINNED)
def test_public_options_stay_as_the_first_request_states_them(way: str, phase: str) -> None:
    """Release 6f0b6ef answered: a sum of the same rows by other features, centres or ranges."""
    one = asked(way, phase)
    sections = [s for s in one.sections if not isinstance(s, sums.End)]
    assert one.send(sections=sections) == ""
    one.state = copy.deepcopy(one.client.context.state)
    for name in PINNED[way, phase]:
        changed = {"round": one.request.round + 1, name: other(getattr(one.request, name))}
        said, counted = one.try_out(request=replace(one.request, **changed), sections=[])
        assert f"another {name} " in said, said
        assert said.endswith("[FK-SETTINGS-CHANGED]")
        assert counted


@pytest.mark.parametrize(("way", "phase"), [("ranges", "ranges-write"), ("align", "align-tags")])
def test_nothing_is_asked_in_the_place_of_the_last_request(way: str, phase: str) -> None:
    """Release 6f0b6ef wrote its files anew with other ranges, and other tags."""
    one = asked(way, phase)
    assert one.send() == ""
    assert one.send() == ""  # the same may be asked again
    names = [name for name, v in vars(one.request).items() if isinstance(v, np.ndarray) and v.size]
    assert names
    for name in names:
        changed = {name: other(getattr(one.request, name)), "round": one.request.round + 1}
        said = one.send(request=replace(one.request, **changed))
        assert said.endswith("[FK-SETTINGS-CHANGED]"), said


# -- one opening


@pytest.mark.promise("requests-settled")
def test_ninety_widths_of_kernel_pca_are_one() -> None:
    """Release 6f0b6ef answered all 90 under its default policy: 24 of 24 rows, to 2e-15."""
    x = np.random.default_rng(0).random((4, 6, 3))
    server, said = many_kernels.attack(x, policy=NodePolicy(counting="warn"))
    assert len(server.opened) == 1
    assert said.endswith("[FK-SETTINGS-CHANGED]"), said
    server, said = many_kernels.attack(x)  # by default none: 190 numbers, 36 unknowns
    assert not server.opened


def test_of_ninety_sums_the_rows_follow() -> None:
    """The attack itself: with all the sums it computes every row."""
    x = np.random.default_rng(1).random((10, 3))
    frequencies = many_kernels.directions(3, 9, 0)
    widths = many_kernels.widths_for(frequencies, 60)
    totals = many_kernels.sums_of(x, 9, widths)
    guess = many_kernels.recover(totals, frequencies, widths[0])
    assert many_kernels.found_rows(guess, x)[0] == 10


@pytest.mark.promise("sums-opened-once")
def test_a_sum_is_opened_once_and_only_the_last_that_was_ordered() -> None:
    """Release 6f0b6ef opened both: its rule was about figures of held-out rows."""
    nodes = Nodes()
    first, second = nodes.order(), nodes.order()
    nodes.contribute(first)
    nodes.contribute(second)
    refuses("FK-ORDER-AGAIN", nodes.unmask, first)
    nodes.unmask(second)
    refuses("FK-ORDER-AGAIN", nodes.contribute, nodes.order())


@pytest.mark.promise("sums-opened-once")
def test_rounds_are_opened_once_each() -> None:
    nodes = Nodes()
    nodes.kind = type("Rounds", (nodes.kind,), {"rounds_of": {"a": "round"}})
    for number in (1, 2):
        running = nodes.order()
        nodes.contribute(running, number=number)
        nodes.unmask(running)
    for number in (1, 2):
        refuses("FK-ORDER-AGAIN", nodes.contribute, nodes.order(), number=number)


# -- one name


@pytest.mark.promise("session-once")
@pytest.mark.parametrize("way", ["kernel-pca", "pof-mkl, secure"])
def test_a_second_run_of_a_name_is_refused(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one party fewer, or as often as a server likes.

    Release 6f0b6ef answered POF-MKL with four parties and then with three, and six times in a row.
    """
    monkeypatch.setattr("secrets.token_hex", lambda _: "abc")
    sites = WAYS[way].sites(guarded=True, policy=NodePolicy(allow_small_sums=True, min_own_rows=0))
    sites.fit()
    sites.tables.pop()
    for _ in range(2):
        refuses("FK-SESSION-KNOWN", sites.fit)

"""Contract: which model a node judges on its held-out rows, how often, and of how many rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conversation import asked, ordered
from zoo import WAYS

from fedkern_flwr.guard import RunRecord
from fedkern_flwr.wire import sums

#: Way -> (request that judges, its field that holds the model).
JUDGING = {
    "fed-cg": ("hybrid-coefficients", "coefficients"),
    "fed-cg, numbers": ("hybrid-coefficients", "coefficients"),
    "fed-cg, cg": ("hybrid-coefficients", "coefficients"),
    "fed-cg, private": ("hybrid-coefficients", "coefficients"),
    "hierarchical-svm": ("svm-evaluate", "model"),
    "hierarchical-svm, classes": ("svm-evaluate", "model"),
    "hierarchical-svm, private": ("svm-count", "model"),
    "pof-mkl, secure": ("online-evaluate", "theta"),
    "pof-rls, secure": ("online-ridge-evaluate", "starts"),
    "fed-cfk": ("gram-recommend", "mean"),
}


def changed(request: Any, name: str) -> Any:
    """Return the request with another model: one unit in the last place, of one coefficient."""
    field = getattr(request, name)
    value = field[0] if isinstance(field, tuple) else field
    other = value.copy()
    other.flat[0] = np.nextafter(other.flat[0], np.inf, dtype=other.dtype)
    return replace(request, **{name: (other, *field[1:]) if isinstance(field, tuple) else other})


@pytest.mark.promise("held-out-one-model")
@pytest.mark.parametrize(
    ("way", "few"),
    [*((w, False) for w in JUDGING), *((w, True) for w in JUDGING if "private" not in w)],
)
def test_a_second_model_is_not_judged(way: str, few: bool) -> None:
    """A server that chooses it reads a label; also of a node that has few rows and sends zeros."""
    one = asked(way, JUDGING[way][0])
    if few:
        one.client.policy = replace(one.client.policy, min_evaluation_rows=1000)
    sections = [s for s in one.sections if not isinstance(s, sums.End)]
    assert one.send(sections=sections) == ""
    request = changed(one.request, JUDGING[way][1])
    request = replace(request, round=request.round + 1)
    again = [s for s in ordered(one, request) if isinstance(s, sums.Order)]
    again = [replace(s, index=s.index + 1) for s in again]
    said = one.send(request=request, sections=again)
    assert said.endswith("[FK-ORDER-MODEL]"), said


#: Way -> what a node lacks that has helped to make no model in this run.
BEFORE: dict[str, Any] = {
    "fed-cg": None,  # the node's record says it
    "fed-cg, cg": None,
    "kernel-pca": None,
    "hierarchical-svm": lambda kept: kept.arrays.pop("model"),
    "hierarchical-svm, private": lambda kept: kept.settings.pop("helped"),
}


@pytest.mark.promise("held-out-own-model")
@pytest.mark.parametrize("way", BEFORE)
def test_a_model_that_no_node_has_helped_to_make_is_not_judged(way: str) -> None:
    phase, model = JUDGING.get(way, ("method at client: evaluate", "given"))
    one = asked(way, phase)
    if BEFORE[way]:
        one.change_kept(BEFORE[way])
    else:
        record = RunRecord.load(one.client.context, one.request.session)
        record.helped = False
        record.store(one.client.context)
        one.client.ledger.keep_record(record.session, record.write())
    said = one.send(request=changed(one.request, model))
    assert said.endswith("[FK-ORDER-MODEL]"), said


@pytest.mark.promise("held-out-own-model")
def test_of_streams_as_well() -> None:
    one = asked("pof-mkl, secure", "online-evaluate")
    state = one.session
    state.payload = b""  # nothing was learned, whatever else was asked
    state.store(one.client.context)
    assert one.send().endswith("[FK-ORDER-MODEL]")


@pytest.mark.promise("held-out-each-holder")
@pytest.mark.parametrize("way", ["fed-cg", "hierarchical-svm"])
@pytest.mark.parametrize("few", [4, 1])
def test_a_party_with_few_held_out_rows_sends_zeros(way: str, few: int) -> None:
    """Whoever else there is. Release 6f0b6ef counted them: its limit was on the sum."""
    sites = WAYS[way].sites(guarded=True)
    table = sites.tables[0]
    for name in ("x_test", "y_test", "ids_test"):
        if name in table:
            table[name] = table[name][:few]
    found = sites.fit().strategy.result()["held_out"]
    own = [len(t["y_test"]) for t in sites.tables if t.get("y_test") is not None]
    assert own[0] == few
    assert found["rows"] == sum(n for n in own if n >= 5)

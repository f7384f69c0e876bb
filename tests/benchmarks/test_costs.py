"""The formulas of docs/scaling.md: exchanges and bytes of small runs, to the byte."""

from __future__ import annotations

import pytest

from fedkern_flwr.simulations import simulate

EXACT = (
    ("pof_mkl", {"clients": 5, "rounds": 6, "batch": 2, "features": 7, "secure": False}),
    ("pof_mkl", {"clients": 5, "rounds": 3, "batch": 1, "features": 7, "secure": True}),
    ("pof_mkl", {"clients": 33, "rounds": 1, "batch": 1, "features": 30, "secure": True}),
    ("fed_cg", {"hospitals": 2, "centres": 2, "rows": 100, "landmarks": 7}),
    ("fdskl", {"parties": 3, "rows": 100, "tests": 20, "features": 16}),
    ("secure_gram", {"nodes": 4, "users": 10, "items": 20, "drop_outs": False}),
    ("secure_gram", {"nodes": 10, "users": 5, "items": 60, "drop_outs": True}),
    ("fed_cfk", {"nodes": 4, "users": 10, "items": 20, "drop_outs": False}),
    ("fed_cfk", {"nodes": 10, "users": 5, "items": 60, "drop_outs": True}),
    ("horizontal_svm", {"users": 4, "groups": 2, "columns": 3, "rows": 40, "iterations": 4}),
    ("vertical_svm", {"groups": 2, "users": 2, "columns": 6, "rows": 40, "iterations": 4}),
)
FIXED = {"kernels": 51, "chosen": 25}


def accepted(function, values: dict) -> dict:
    code = function.__code__
    return {k: v for k, v in values.items() if k in code.co_varnames[: code.co_kwonlyargcount]}


@pytest.mark.parametrize(("method", "sizes"), EXACT)
def test_the_ledger_is_what_the_formula_says(script, method, sizes):
    case = getattr(script("cases"), method)(**sizes)
    simulate(case.strategy, case.client_fn, case.nodes, **case.start)
    formula = getattr(script("costs"), method)
    cost = formula(**accepted(formula, {**FIXED, **sizes}))
    ledger = case.strategy.ledger_
    assert cost.exact
    assert ledger.exchanges == cost.exchanges
    assert (ledger.bytes_up, ledger.bytes_down) == (cost.up(), cost.down())


def test_the_expected_bytes_of_streaming_are_close(script):
    sizes = {
        "parties": 4, "rows": 600, "tests": 50, "directions": 4, "batch": 60, "rounds": 40
    }  # fmt: skip
    case = script("cases").fdskl_streaming(**sizes)
    simulate(case.strategy, case.client_fn, case.nodes, **case.start)
    cost, ledger = script("costs").fdskl_streaming(**sizes), case.strategy.ledger_
    assert not cost.exact
    assert ledger.exchanges == cost.exchanges
    assert ledger.bytes_up == pytest.approx(cost.up(), rel=0.02)
    assert ledger.bytes_down == pytest.approx(cost.down(), rel=0.02)

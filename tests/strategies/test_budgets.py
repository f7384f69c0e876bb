"""One contract over all methods: a budget of privacy is kept, or refused in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Context

from fedkern_flwr import strategies
from fedkern_flwr.clients import KernelPCAClient, SVMClient
from fedkern_flwr.errors import OptionError
from fedkern_flwr.private_method import PrivateMethod
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import (
    EMKOFL,
    OFSKL,
    POFMKL,
    POFRLS,
    VMKOFL,
    FedCG,
    HierarchicalSVM,
    KernelPCA,
    OFMKLAvg,
)

#: What a method asks for besides.
KEEPS: dict[type[Any], dict[str, Any]] = {
    FedCG: {"basis": "fourier"},
    HierarchicalSVM: {"architecture": "centralised", "C": 1.0},
    KernelPCA: {},
    **{method: {} for method in (POFMKL, OFSKL, OFMKLAvg, VMKOFL, EMKOFL, POFRLS)},
}
EVERY = [
    found
    for name in strategies.__all__
    if getattr(found := getattr(strategies, name), "method", "")  # others are base classes
]
X = np.random.default_rng(0).random((400, 4))
Y = np.where(X.sum(axis=1) > 2.0, 1.0, -1.0)


@pytest.mark.parametrize("method", EVERY, ids=lambda cls: cls.__name__)
def test_every_method_keeps_a_budget_or_says_in_a_line_which_do(method: Any) -> None:
    if issubclass(method, PrivateMethod):
        made = method(privacy_epsilon=2.0, **KEEPS[method])
        assert made.budget is not None
        assert made.budget_report()["budget"]["epsilon"] == 2.0
        return
    for option in ("privacy_epsilon", "privacy_unit"):
        with pytest.raises(OptionError, match="fed-cg with basis fourier") as why:
            method(**{option: 2.0})
        assert "\n" not in str(why.value)
        assert method.method in str(why.value)


def test_every_way_of_keeping_a_budget_is_in_the_contract() -> None:
    assert {cls for cls in EVERY if issubclass(cls, PrivateMethod)} == set(KEEPS)


@pytest.mark.parametrize("method", [HierarchicalSVM, KernelPCA])
def test_a_run_with_a_budget_has_it_in_its_result(method: Any) -> None:
    made = _run(method, X)
    budget = made.result()["privacy"]["budget"]
    assert budget["epsilon"] == 2.0
    assert all(0.0 < one["epsilon"] <= 2.0 for one in budget["releases"])
    assert all(one["mechanism"] == "skellam" for one in budget["releases"])


@pytest.mark.parametrize("method", [HierarchicalSVM, KernelPCA])
def test_what_nodes_say_of_themselves_does_not_follow_from_values(method: Any) -> None:
    """Two tables of one size whose columns have few and many values."""
    found = []
    for x in (X, np.round(X)):
        told = [dict(vars(party)) for party in _run(method, x).parties_.values()]
        for one in told:
            one.pop("public_key")
        found.append(repr(told))
    assert found[0] == found[1]


def _run(method: Any, x: np.ndarray) -> Any:
    def client(context: Context) -> Any:
        k = int(context.node_config["partition-id"])
        rows, held = slice(k, 300, 4), slice(300 + k, None, 4)
        if method is KernelPCA:
            return KernelPCAClient(context, x[rows], x_test=x[held])
        labels: Any = {"y_test": Y[held], "classes": (-1.0, 1.0)}
        return SVMClient(context, x[rows], Y[rows], x_test=x[held], **labels)

    made = method(privacy_epsilon=2.0, seed=0, **KEEPS[method])
    simulate(made, client, 4, num_rounds=3)
    return made

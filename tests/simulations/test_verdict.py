"""What a comparison says in three sentences."""

from __future__ import annotations

from typing import Any

import pytest

from fedkern_flwr.simulations.lab.comparison import Comparison
from fedkern_flwr.simulations.lab.presets import Section
from fedkern_flwr.simulations.lab.references import references_of
from fedkern_flwr.simulations.lab.verdict import verdict
from fedkern_flwr.simulations.methods.hybrid_data import HybridSettings
from fedkern_flwr.simulations.methods.references import ALONE
from fedkern_flwr.simulations.methods.registry import family_with
from fedkern_flwr.simulations.run.entries import Entry

SETTINGS = HybridSettings("wine")


def said(metric: str, column: str, best: float, pooled: float, alone: float, none: float) -> str:
    """Return the second sentence on figures of four methods."""
    rows = (
        ("FedCG", "fed-cg", best),
        ("SVC", "svc", pooled),
        ("nothing", "constant", none),
        ("party", ALONE, alone),
    )
    entries, summaries = [], dict[str, dict[str, Any]]()
    references = references_of(family_with(SETTINGS))
    for label, method, value in rows:
        entries.append(Entry(label, method, {}, reference=references.get(method)))
        costs = {"exchanges": 0, "bytes_up": 0, "bytes_down": 0}
        summaries[label] = {"metrics": {metric: value}, "privacy": {"server_sees": []}, **costs}
    section = Section({"wine": SETTINGS}, (), (column,), ())
    text = verdict(Comparison(section, "wine", 1, entries, summaries))
    return text.split(". Beside it: ")[1].split(". Its server")[0]


@pytest.mark.parametrize(
    ("figures", "behind", "useless"),
    [
        (("test_accuracy", "accuracy", 0.90, 0.93, 0.6, 0.7), "3.0 points behind", True),
        (("test_accuracy", "accuracy", 0.92, 0.93, 0.8, 0.7), "", False),
        (("test_rmse", "rmse", 1.2, 1.0, 3.0, 2.0), "20 % behind", True),
        (("test_rmse", "rmse", 1.0, 0.0, 1.5, 2.0), "", False),
        (("test_rmse", "rmse", 1.04, 1.0, 1.5, 2.0), "", False),
    ],
)
def test_it_says_how_far_behind_pooled_models_and_whether_single_parties_are_of_use(
    figures: tuple[str, str, float, float, float, float], behind: str, useless: bool
) -> None:
    text = said(*figures)
    assert (f"(SVC), FedCG is {behind};" in text) if behind else ("behind" not in text)
    assert ("(party), no better than the nothing" in text) == useless

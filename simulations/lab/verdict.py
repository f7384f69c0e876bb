"""What a report begins with: which method is best, beside what, and what its server saw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..methods.common import COSTS, scientific
from ..methods.references import ALONE
from .comparison import Comparison, pooled_labels

#: By how much a pooled model is better for the verdict to say so: accuracy, and share of the RMSE.
MUCH_ACCURACY, MUCH_RMSE = 0.02, 0.05
_ALONE = ("local-only", ALONE)


def verdict(comparison: Comparison) -> str:
    """Return three sentences on the methods of a comparison.

    The first says which federated method has the best figure, the second how good models of the
    pooled data and of a single party are, by how much the former are better if that is much, and
    whether the latter are of use; the third what the server saw of the best one.
    """
    section, summaries = comparison.section, comparison.summaries
    references = set(pooled_labels(comparison.entries))
    ranked = [name for name in section.columns if section.column(name).rank is not None]
    if not ranked:
        return ""
    column = section.column(ranked[0])

    def best_of(labels: list[str]) -> str:
        assert column.rank is not None
        values = {label: column.rank(summaries[label]) for label in labels}
        found = {label: value for label, value in values.items() if value is not None}
        return min(found, key=lambda label: found[label], default="")

    def figure(label: str) -> str:
        return column.cells(summaries[label])[0]

    alone = [
        one.label
        for one in comparison.entries
        if one.method in _ALONE or str(one.options.get("experts")).startswith("local")
    ]
    federated = [label for label in summaries if label not in references and label not in alone]
    best = best_of(federated)
    if not best:
        return ""
    head, several = column.headings[0], len(federated) > 1
    first = f"{comparison.dataset}: {best}, {head} {figure(best)}"
    first += f", the best of {len(federated)} federated methods" if several else ""
    pooled, single = best_of([one for one in summaries if one in references]), best_of(alone)
    simple = next((one.label for one in comparison.entries if one.method == "constant"), "")
    beside = []
    if pooled:
        behind = _behind(summaries[best], summaries[pooled])
        more = f", {best} is {behind}" if behind else ""
        beside.append(f"on the pooled data {figure(pooled)} ({pooled}){more}")
    if single:
        useless = simple and best_of([simple, single]) == simple
        more = f", no better than the {simple}, {figure(simple)}" if useless else ""
        beside.append(f"each party alone {figure(single)} ({single}){more}")
    difference = summaries[best]["metrics"].get("centralised_difference")
    if beside:
        second = f"Beside it: {'; '.join(beside)}"
    elif difference is not None:
        second = f"It differs from itself on the pooled data by at most {scientific(difference)}"
    else:
        second = "No model of the pooled data or of a single party was computed beside it"
    return f"{first}. {second}. {_seen(summaries[best])}."


def _behind(best: Mapping[str, Any], pooled: Mapping[str, Any]) -> str:
    """Return by how much a method is behind the model of the pooled data, where that is much."""
    own, other = best["metrics"], pooled["metrics"]
    if "test_rmse" in own.keys() & other.keys():
        more = own["test_rmse"] - other["test_rmse"]
        much = more > MUCH_RMSE * other["test_rmse"] > 0.0
        return f"{100.0 * more / other['test_rmse']:.0f} % behind" if much else ""
    if "test_accuracy" in own.keys() & other.keys():
        less = other["test_accuracy"] - own["test_accuracy"]
        return f"{100.0 * less:.1f} points behind" if less > MUCH_ACCURACY else ""
    return ""


def _seen(summary: Mapping[str, Any]) -> str:
    """Return what the server saw of the best method's run, first of all what matters most."""
    (plain,) = COSTS["plain"].cells(summary)
    most = next(iter(summary["privacy"].get("server_sees", ())), "nothing")
    single = f"; {plain} came from single parties in plain" if plain not in ("-", "0 B") else ""
    return f"Its server saw {most}{single}"

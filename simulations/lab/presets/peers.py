"""Tables on which the methods at their defaults stand beside what one would use instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...run.data import Settings
from .base import Presets, Section, choose, data_file, is_there
from .own import own_table

# name -> (data, share of rows held out: of large tables some 2,000 rows)
_SETS = {
    "Breast cancer": ("breast-cancer", 0.3),
    "Wine": ("wine", 0.3),
    "Digits": ("digits", 0.3),
    "Sonar": ("sonar.npz", 0.3),
    "Ionosphere": ("ionosphere.npz", 0.3),
    "Svmguide1": ("svmguide1.npz", 0.28),
    "Phishing": ("phishing.npz", 0.18),
    "a9a": ("a9a.npz", 0.04),
}
_ROWS = 1000

PRESETS = Presets()


def _kept(datasets: tuple[str, ...]) -> tuple[str, ...]:
    """Return the data sets asked for; else the built-in ones, and the others that are there."""
    there = (n for n, (data, _) in _SETS.items() if not data.endswith(".npz") or is_there(data))
    return choose(datasets, _SETS, there)


@PRESETS.add(
    "peers",
    "Eight tables: our methods beside what one would use instead",
    f"At most {_ROWS:,} rows to learn from, the same for all, and others in every run; 30 % of the "
    "rows are held out, of large tables some 2,000. All methods have their defaults and parties of "
    "their own: FedCG two hospitals and two centres, FDSKL and Secure Gram four owners of columns, "
    "HierarchicalSVM and FedAvg twenty users with rows. Pooled models see all columns of all rows, "
    "width and penalty by cross-validation on the rows to learn from; Nyström ridge has 500 "
    "landmarks, boosting its defaults. FedAvg is Flower's own, 50 rounds with secure means. A "
    "party alone: the mean over the parties of a method that could learn from what they have.",
    runs=10,
)
def _tables(datasets: tuple[str, ...]) -> list[Section]:
    sections = {name: _section(name) for name in _kept(datasets)}
    first = next(iter(sections.values()))
    data: dict[str, Settings] = {}
    dealt: dict[str, Mapping[str, Settings]] = {}
    for name, own in sections.items():
        ((stem, settings),) = own.data.items()
        data[name], dealt[name] = settings, own.dealt[stem]
    return [
        replace(
            first,
            data=data,
            dealt=dealt,
            figures=("errors-box",),
            title="Eight tables",
            across=("errors-exchanges", "errors-bytes"),
        )
    ]


def _section(name: str) -> Section:
    """Return the comparison on a table of one's own."""
    data, share = _SETS[name]
    values: dict[str, Any] = {"test_size": share, "train_rows": _ROWS}
    values["data"] = data_file(data) if data.endswith(".npz") else data
    return own_table(values, [])[0].sections[0]

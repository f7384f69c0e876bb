"""Methods under the release limit of deployments, beside what simulations take.

    FEDKERN_DATA=... python benchmarks/guard_limits.py [--sets iris wine] [--splits 3] [--share 0.2]

A node of a deployment lets a run open a share of what its rows hide. Default sizes are planned
within it: landmarks, folds and widths of FedCG, iterations of HierarchicalSVM, frequencies and
messages of POF-RLS, features of kernel PCA. The table has accuracy, or the error of a regression in
units of the label (of POF-RLS always, half the range of the label), on rows held out, and for
kernel PCA the share of their variance that two components explain: before, with all that the rows
hide, and within the share of pinned nodes. FDSKL's server opens no sum over rows. Of each table
30 % are held out (of large ones some 4,000 rows), and at most 4,000 learned from, by three
hospitals and ``--centres`` more parties, or by three clients.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import Record, new_table, run_script
from rich.console import Console

from fedkern_flwr.node.client import Client
from fedkern_flwr.simulations.methods.experiment import run_entries
from fedkern_flwr.simulations.methods.registry import family
from fedkern_flwr.simulations.run.entries import Entry

#: Built-in data sets, and files of FEDKERN_DATA with their settings.
BUILT_IN = ("iris", "wine", "breast-cancer", "digits")
FILES: dict[str, dict[str, Any]] = {
    "sonar": {},
    "ionosphere": {},
    "svmguide1": {},
    "phishing": {},
    "a9a": {"test_size": 0.1},
    "ccpp": {},
    "naval": {"target": "0"},
    "beijing_prsa": {"test_size": 0.01},
}
NUMBERS = ("ccpp", "naval", "beijing_prsa")
#: Method -> how a table is dealt, and options.
_USERS = {"users": 3, "groups": None, "partition": "horizontal", "architecture": "centralised"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fed-cg": ({"hospitals": 3}, {}),
    "hierarchical-svm": (_USERS, {"architecture": "centralised"}),
    "pof-rls": ({"clients": 3}, {"secure": True}),
    "kernel-pca": ({"clients": 3}, {}),
}


def prepared(name: str, split: int, method: str, **more: Any) -> Any:
    """Prepare a data set as ``fedkern run`` does."""
    own = family(method)
    path = name if name in BUILT_IN else str(Path(os.environ["FEDKERN_DATA"]) / f"{name}.npz")
    values = {option.name: option.default for option in own.parameters()}
    values |= {"data": path, "resplit": True, "seed": split, "test_size": 0.3, "train_rows": 4000}
    return own.prepare(own.settings.from_values({**values, **FILES.get(name, {}), **more}))


@contextmanager
def sharing(share: float) -> Iterator[None]:
    """Have all nodes say a share, as nodes with pinned identities do."""
    announce = Client._announce

    def announced(client: Any, *args: Any) -> Any:
        return replace(announce(client, *args), share=share, signature=bytes(64))

    setattr(Client, "_announce", announced)  # noqa: B010
    try:
        yield
    finally:
        setattr(Client, "_announce", announce)  # noqa: B010


def measure(method: str, name: str, split: int, centres: int) -> tuple[float, float]:
    """Return the figure of a run, and how many numbers of rows to learn from it opened."""
    settings, given = CASES[method]
    data = prepared(name, split, method, **settings, centres=centres)
    ridge = {"model": "ridge"} if method == "hierarchical-svm" and name in NUMBERS else {}
    entry = Entry(method, method, {**given, **ridge})
    run_entries([entry], data, engine="in-process", seed=split)
    (result,) = entry.results
    found, sums = result["metrics"], result["privacy"]["sums"]
    numbers = sum(one["numbers"] for one in sums if not one["name"].startswith(("outcome", "eval")))
    if method == "kernel-pca":
        return found["test_explained"], numbers
    if method == "pof-rls":
        return found["test_mse"] ** 0.5, numbers
    half = data.split(split).scaling["y_half_range"]
    value = half * found["test_rmse"] if name in NUMBERS else found["test_accuracy"]
    return value, numbers


def compare(options: argparse.Namespace, console: Console) -> list[Record]:
    """Run both methods on all tables, before and within the share, and print the table."""
    records: list[Record] = []
    found = new_table("means of the splits", "table, method | before | numbers | within | numbers")
    for name in options.sets[:1] if options.quick else options.sets:
        for method in options.methods:
            means = []
            for share in (1.0, options.share):
                with sharing(share):
                    splits = range(1 if options.quick else options.splits)
                    means.append(
                        np.mean([measure(method, name, s, options.centres) for s in splits], axis=0)
                    )
            (before, all_numbers), (within, numbers) = np.array(means)
            figures = f"{before:.4g}", f"{all_numbers:,.0f}", f"{within:.4g}", f"{numbers:,.0f}"
            found.add_row(f"{name}, {method}", *figures)
            lost = (
                within / before - 1.0
                if method == "pof-rls" or (name in NUMBERS and method != "kernel-pca")
                else before - within
            )
            records.append(Record(f"{name}, {method}", float(lost), "lost"))
    console.print(found)
    return records


if __name__ == "__main__":
    names = [*BUILT_IN, *(FILES if "FEDKERN_DATA" in os.environ else ())]
    run_script(__doc__, compare, sets=names, methods=list(CASES), splits=3, share=0.2, centres=2)

"""Contract: tables or nodes that do not fit together end a run at once, in one line, unquoted.

A table that no client takes is in test_bad_tables.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from zoo import WAYS, Table, columns_of_parties

Spoil = Callable[[list[Table]], Any]


def as_it_is(tables: list[Table]) -> None:
    """Nothing is wrong with the tables."""


def change(k: int, **changes: Any) -> Spoil:
    return lambda tables: tables[k].update(changes)


def drop(*gone: int) -> Spoil:
    """Take these parties away."""
    return lambda tables: [tables.pop(k) for k in sorted(gone, reverse=True)]


def cut(k: int, rows: int) -> Spoil:
    return lambda t: t[k].update(x=t[k]["x"][:rows], ids=t[k]["ids"][:rows])


def forget(patients: slice) -> Spoil:
    """Let the first centre not know some patients of the first hospital."""

    def spoil(tables: list[Table]) -> None:
        centre, names = tables[3], [*tables[0]["ids"], *tables[0]["ids_test"]][patients]
        keep = ~np.isin(centre["ids"], names)
        centre |= {"x": centre["x"][keep], "ids": centre["ids"][keep]}

    return spoil


def in_capitals(k: int) -> Spoil:
    """Let a party write its ids otherwise than the others."""
    return lambda t: t[k].update(ids=[str(one).upper() for one in t[k]["ids"]])


def twice(tables: list[Table]) -> None:
    """Let a row be held out and learned from."""
    tables[0]["ids_test"][0] = tables[0]["ids"][0]


def one_allows(tables: list[Table]) -> None:
    """Leave two parties, one of which shows its values to a single other one."""
    del tables[2:]
    tables[0]["allow_single"] = True


def around_the_server(tables: list[Table]) -> None:
    del tables[4:]
    for table in tables:
        table["group"] = 0


def numbers(tables: list[Table]) -> None:
    for table in tables:
        table.pop("classes", None)


def two_actives(tables: list[Table]) -> None:
    tables[:] = columns_of_parties(actives=2)


def one_without_an_encoder(tables: list[Table]) -> None:
    for table in tables:
        table["kinds"] = {}
    tables[1]["encoder"] = None


def value(cell: float) -> Spoil:
    """Put a value into the rows of the third party."""

    def spoil(tables: list[Table]) -> None:
        tables[2]["x"] = tables[2]["x"].astype(float)
        tables[2]["x"][1, 3] = cell

    return spoil


def every(*names: str, **changes: Any) -> Spoil:
    """Change all tables, and take these parts away."""
    return lambda tables: [
        (table.update(changes), [table.pop(name, None) for name in names]) for table in tables
    ]


def without_columns(*parties: int) -> Spoil:
    """Leave parties their rows and none of their columns."""
    return lambda t: [
        t[k].update({name: t[k][name][:, :0] for name in {"x", "x_test"} & t[k].keys()})
        for k in parties
    ]


def both(*spoils: Spoil) -> Spoil:
    return lambda tables: [spoil(tables) for spoil in spoils]


def labels_of_all_rows(tables: list[Table]) -> None:
    """Let the second party label the rows of the first as well."""
    tables[1]["y"] = np.nan_to_num(tables[1]["y"])


def block_of(k: int, other: int) -> Spoil:
    """Let a party have other columns of the block of another one."""
    return lambda t: t[k].update({name: t[other][name] for name in ("block", "landmark_seed")})


def ids_of(k: int, other: int) -> Spoil:
    """Let a party have the last row of another one as well, under its id."""
    return lambda t: t[k].update(ids=np.append(t[k]["ids"][:-1], t[other]["ids"][-1]))


def labels_of_all(tables: list[Table]) -> None:
    for table in tables:
        table["y"] = np.full(9, 777.0)


FED, FDSKL, SVM = "fed-cg", "fdskl", "hierarchical-svm"
TWO_ACTIVE = "fdskl, two active"
NAMELESS = {"ids": None, "ids_test": None}
STREAM, ACROSS, RANGES = "fdskl, streaming", "hierarchical-svm, vertical", "ranges"
ENCODERS, GRAM, RLS, ONLINE = "ranges, encoders", "secure-gram", "pof-rls", "pof-mkl"
NEUTRAL, ALONE, DROP = {"missing": "neutral"}, {"allow_single": True}, {"missing": "drop-row"}
KEY: Table = {"alignment_key": b"another secret of somebody"}
FAST: Table = {"num_rounds": 60, "batch": 6, "directions": 3, "step": 900.0, "regularization": 1e-3}
WHOLE, BOUND = {"min_support": 0}, {"bound": 50.0}
LABELS: Table = {"y": np.ones(9)}
GLOBAL: Table = {"experts": "global-ridge", "secure": True}
#: Way, what is wrong -> code, what is changed, options of the strategy, who is named.
MISFITS: dict[tuple[str, str], tuple[str, Spoil, Table, str]] = {
    (FED, "another key"): ("FK-IDS-APART", change(3, **KEY), NEUTRAL, "partition 3"),
    (FED, "ids in capitals"): ("FK-IDS-SPELLED", in_capitals(3), NEUTRAL, "partition 0"),
    (FDSKL, "ids in capitals"): ("FK-IDS-SPELLED", in_capitals(2), {}, "partition 0"),
    (ACROSS, "ids in capitals"): ("FK-IDS-SPELLED", in_capitals(1), {}, "partition"),
    (RANGES, "other units"): ("FK-UNITS-DIFFER", change(4, units={"0": "kg"}), {}, "partition 4"),
    (FED, "unknown patients"): ("FK-ROWS-LACKING", forget(slice(99)), {}, "partition 0"),
    (FED, "one centre"): ("FK-PARTIES-ALONE", forget(slice(1)), NEUTRAL, ""),
    (FED, "two seeds"): (
        "FK-BLOCK-DIFFERS", change(1, landmark_seed=bytes(32)), {}, "partition 1"),
    (FED, "held out and learned from"): ("FK-IDS-DUPLICATE", twice, {}, "partition 0"),
    (FED, "out of range"): (
        "FK-RANGES-OUTSIDE", change(1, x=np.full((16, 2), 777.0)), {}, "partition 1"),
    (FED, "one hospital"): ("FK-PARTIES-ALONE", drop(0, 1), {}, ""),
    (FED, "rkhs"): ("FK-RKHS-ALONE", drop(1, 2, 3, 4), {"penalty": "rkhs", **ALONE}, ""),
    (FED, "no hospital"): ("FK-LABELS-NOBODY", drop(0, 1, 2), {}, ""),
    (FED, "no columns"): ("FK-COLUMNS-NONE", both(drop(3, 4), every("x", "x_test")), {}, ""),
    (FED, "a block twice"): ("FK-BLOCK-TWICE", block_of(4, 3), {}, ""),
    (FED, "that of a hospital"): ("FK-BLOCK-TWICE", block_of(4, 0), {}, ""),
    (FED, "other columns"): ("FK-COLUMNS-DIFFER", change(1, columns=("a", "b")), {}, "partition 1"),
    (FED, "other ranges"): ("FK-BLOCK-DIFFERS", change(1, ranges=[[0, 2]] * 2), {}, "partition 1"),
    (FED, "a seed of some"): ("FK-BLOCK-DIFFERS", change(1, landmark_seed=None), {}, "partition 1"),
    (FED, "other classes"): ("FK-CLASSES-DIFFER", change(1, classes=(0, 1, 2)), {}, "partition 1"),
    (FDSKL, "no active party"): ("FK-LABELS-NOBODY", drop(0), {}, ""),
    (FDSKL, "one party"): ("FK-PARTIES-FEW", drop(1, 2, 3), {}, ""),
    (FDSKL, "no columns"): ("FK-COLUMNS-NONE", without_columns(0, 1, 2, 3), {}, ""),
    (FDSKL, "columns of one other"): ("FK-PARTIES-ALONE", without_columns(0, 2, 3), {}, ""),
    (FDSKL, "ids of some"): ("FK-IDS-SOME", change(2, **NAMELESS), {}, ""),
    (FDSKL, "no ids"): ("FK-ROWS-DIFFER", both(cut(2, 57), every(**NAMELESS)), {}, ""),
    (FDSKL, "nothing in common"): ("FK-IDS-APART", change(2, ids=range(60)), DROP, ""),
    (TWO_ACTIVE, "two labels of a row"): ("FK-LABELS-TWICE", labels_of_all_rows, {}, ""),
    (TWO_ACTIVE, "other classes"): ("FK-CLASSES-DIFFER", change(1, classes=(0, 1, 2)), {}, ""),
    (TWO_ACTIVE, "one other"): (
        "FK-PARTIES-ALONE", both(drop(3), without_columns(0)), {}, ""),
    (TWO_ACTIVE, "who refuses"): (
        "FK-ALONE-REFUSED", both(drop(2, 3), change(1, allow_single=True)), ALONE, "partition 0"),
    (FDSKL, "rows missing"): ("FK-ROWS-LACKING", cut(2, 57), {}, ""),
    (FDSKL, "another key"): ("FK-IDS-APART", change(2, **KEY), {}, ""),
    (FDSKL, "two parties"): ("FK-PARTIES-ALONE", drop(2, 3), {}, ""),
    (FDSKL, "one of two"): ("FK-ALONE-REFUSED", one_allows, ALONE, "partition 1"),
    (FDSKL, "two actives at once"): ("FK-SCHEDULE-ACTIVE", two_actives, {}, ""),
    (FDSKL, "no classes"): ("FK-LOSS-CLASSES", numbers, {"loss": "logistic"}, ""),
    (STREAM, "diverges"): ("FK-RUN-DIVERGED", as_it_is, FAST, ""),
    (STREAM, "diverges slowly"): (
        "FK-RUN-DIVERGED", as_it_is, {**FAST, "loss": "smooth-hinge"}, ""),
    (SVM, "no users"): ("FK-GROUPS-SHAPE", drop(0, 1, 2, 3), {}, ""),
    (SVM, "staleness, no agents"): ("FK-GROUPS-SHAPE", around_the_server, {"staleness": 1}, ""),
    (SVM, "a budget with agents"): ("FK-GROUPS-NO-AGENT", as_it_is, {"privacy_epsilon": 1.0}, ""),
    (SVM, "numbers"): ("FK-LOSS-CLASSES", numbers, {}, ""),
    (SVM, "step sizes"): ("FK-GROUPS-DIFFER", as_it_is, {"step_sizes": (1, 1, 1)}, ""),
    (SVM, "none may go"): ("FK-GROUPS-LEFT", as_it_is, {"lost_groups": "leave-out"}, ""),
    (SVM, "a single user"): ("FK-GROUPS-SINGLE", drop(3), {}, ""),
    (SVM, "that refuses"): (
        "FK-ALONE-REFUSED", both(drop(3), change(0, allow_single=True)), ALONE, ""),
    (SVM, "other classes"): ("FK-CLASSES-DIFFER", change(1, classes=(0, 1, 2)), {}, "partition 1"),
    (SVM, "no labels"): ("FK-LABELS-MISSING", change(1, y=None, y_test=None), {}, "partition 1"),
    (SVM, "other columns"): ("FK-COLUMNS-DIFFER", change(1, columns="acb"), {}, "partition 1"),
    (SVM, "an agent more"): ("FK-GROUPS-SHAPE", change(4, group=1), {}, ""),
    (ACROSS, "labels of a user"): (
        "FK-ROLE-DATA", change(1, y=np.ones(24), y_test=np.ones(8), classes=(0, 1)), {}, ""),
    (ACROSS, "other columns"): ("FK-COLUMNS-DIFFER", change(1, columns="ba"), {}, "partition 1"),
    (ACROSS, "no columns"): ("FK-COLUMNS-NONE", without_columns(0, 1), {}, ""),
    (ACROSS, "an id at two users"): ("FK-IDS-PARTIES", ids_of(1, 0), {}, ""),
    (ACROSS, "nothing in common"): (
        "FK-IDS-APART", both(change(0, **KEY), change(1, **KEY)), DROP, ""),
    (ACROSS, "no owner"): ("FK-GROUPS-OWNER", drop(6), {}, ""),
    (ACROSS, "no ids"): ("FK-IDS-SOME", change(2, ids=None, ids_test=None), {}, ""),
    (ACROSS, "another key"): ("FK-ROWS-LACKING", change(0, **KEY), {}, ""),
    (ACROSS, "an owner"): ("FK-GROUPS-OWNER", as_it_is, {"partition": "horizontal"}, ""),
    (ACROSS, "one class"): ("FK-LOSS-CLASSES", change(6, y=np.ones(48)), {}, ""),
    (RANGES, "few holders"): ("FK-PARTIES-FEW", as_it_is, {"min_cohort": 3}, ""),
    (RANGES, "labels of some"): (
        "FK-LABELS-DIFFER", change(5, **LABELS), {"labels": True}, "partition 5"),
    (ENCODERS, "another kind"): ("FK-COLUMN-KIND", change(1, kinds={}), {}, ""),
    (ENCODERS, "another secret"): ("FK-CATEGORIES-KEY", change(1, category_key=bytes(16)), {}, ""),
    (ENCODERS, "other columns"): ("FK-COLUMNS-DIFFER", change(1, columns=("a", "c", "b")), {}, ""),
    (ENCODERS, "some without"): ("FK-ENCODERS-SOME", one_without_an_encoder, {}, ""),
    (GRAM, "a value beyond the bound"): ("FK-VALUES-BOUND", value(7), {}, "partition 2"),
    (GRAM, "a value below zero"): ("FK-VALUES-COUNTS", value(-1), {}, "partition 2"),
    (GRAM, "half a count"): ("FK-VALUES-COUNTS", value(0.5), {"min_support": 0}, "partition 2"),
    (GRAM, "no value"): ("FK-VALUES-FINITE", value(np.nan), {}, "partition 2"),
    (GRAM, "no value, all items"): ("FK-VALUES-FINITE", value(np.nan), WHOLE, "partition 2"),
    (GRAM, "large counts"): ("FK-SUM-OVERFLOW", as_it_is, {"bound": 2**30}, ""),
    ("secure-gram, fixed point", "many digits"): (
        "FK-SUM-OVERFLOW", as_it_is, {"bound": 4, "fraction_bits": 30}, ""),
    ("secure-gram, in rounds", "a value beyond the bound"): (
        "FK-VALUES-BOUND", value(7), {}, "partition 2"),
    (RANGES, "values beyond the bound"): (
        "FK-VALUES-BOUND", change(3, x=[[1.0, -777.0, 0.0]] * 9), BOUND, "partition 3: column '1'"),
    (RANGES, "labels beyond the bound"): (
        "FK-VALUES-BOUND", labels_of_all, {**BOUND, "labels": True}, ": column 'label'"),
    (RANGES, "no such folder"): (
        "FK-FILE-WRITE", change(3, ranges=__file__ + "/r.json"), {}, "partition 3"),
    (RANGES, "a folder"): ("FK-FILE-WRITE", change(3, ranges=Path("/")), {}, "partition 3"),
    (GRAM, "other items"): ("FK-COLUMNS-DIFFER", change(1, items="abcdegf"), {}, ""),
    ("align", "a single party"): ("FK-PARTIES-FEW", drop(1, 2), {}, ""),
    ("kernel-pca", "few features"): (
        "FK-COMPONENTS-MANY", as_it_is, {"components": 5, "features": 2}, ""),
    (RLS, "no room"): ("FK-RIDGE-ROOM", as_it_is, {"experts": "global", "up": 5}, ""),
    (RLS, "no room for all"): ("FK-RIDGE-ROOM", as_it_is, {"experts": "all", "up": 5}, ""),
    (RLS, "a sum of all rows of few"): (
        "FK-RIDGE-GLOBAL", as_it_is, {**GLOBAL, "num_rounds": 2}, ""),
    (ONLINE, "unknown labels"): ("FK-VALUES-FINITE", change(1, y=np.full(12, np.nan)), {}, ""),
    (ONLINE, "infinite"): ("FK-VALUES-FINITE", change(1, x=np.full((12, 3), np.inf)), {}, ""),
    (ONLINE, "one dimension"): ("FK-SHAPE-DIFFERS", change(1, x=np.zeros(12)), {}, ""),
    (ONLINE, "few labels"): ("FK-SHAPE-DIFFERS", change(1, y=np.zeros(3)), {}, ""),
    (ONLINE, "no labels"): ("FK-LABELS-MISSING", change(1, y=None), {}, ""),
    (ONLINE, "text"): ("FK-COLUMN-NUMBERS", change(1, x=np.full((12, 3), "777", object)), {}, ""),
    (ONLINE, "text labels"): ("FK-COLUMN-NUMBERS", change(1, y=np.full(12, "a777")), {}, ""),
    (RANGES, "other columns"): (
        "FK-COLUMNS-DIFFER", change(4, columns=("0", "777", "1")), {}, "partition 4"),
}  # fmt: skip


@pytest.mark.promise("svm-alone", "fdskl-alone", "ids-spelled-alike")
@pytest.mark.parametrize(("way", "what"), MISFITS, ids=map(": ".join, MISFITS))
def test_what_does_not_fit_ends_the_run(way: str, what: str, tmp_path: Path, caplog: Any) -> None:
    code, spoil, options, party = MISFITS[way, what]
    sites = WAYS[way].sites(tmp_path)
    spoil(sites.tables)
    start = {name: value for name, value in options.items() if name == "num_rounds"}
    strategy = WAYS[way].make(**{n: v for n, v in options.items() if n not in start})
    with caplog.at_level(logging.DEBUG), refused(code) as caught:
        sites.fit(strategy=strategy, start=start)
    line = str(caught.value)
    assert "\n" not in line
    assert party in line
    for secret in ("patient ", "person ", "777"):
        assert secret not in caplog.text + line
    most = max(strategy.ledger_.by_phase.values(), default=0)
    assert most <= 1 or code == "FK-RUN-DIVERGED"  # another try is of no use
    assert not strategy.ledger_.by_phase["unmask"]  # no sum is opened
    assert not [path for path in tmp_path.glob("*/*") if path.suffix in (".csv", ".json")]
    assert not list(tmp_path.rglob("*.kernel"))

"""Bad tables through every door: one line with a code that quotes no cell, and nothing is made.

A row of ``FILES`` is a file, options that name its columns, and the code of its refusal: by
``load_table``, by the node of an app, and by ``fedkern run``. A row of ``ARRAYS`` is what goes
wrong with arrays: at the clients of all methods and at the estimators."""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import runpy
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from command_line import CommandLine, Tables
from flwr.app import Context, RecordDict
from pyarrow import feather, parquet
from refusals import complaint, refused, refuses

from fedkern_flwr import clients
from fedkern_flwr.errors import OptionError
from fedkern_flwr.interactions import Interactions
from fedkern_flwr.simulations.apps.node import Node
from fedkern_flwr.simulations.estimators import FDSKLClassifier, FedCGClassifier
from fedkern_flwr.simulations.methods.hybrid import HybridSettings
from fedkern_flwr.simulations.run.party_files import PartyFiles
from fedkern_flwr.tables import Table, load_ids, load_table

pytestmark = pytest.mark.usefixtures("in_tmp")
SECRET = "s3cret"
X = np.array([[1.0, 10.0], [2.0, 30.0], [3.0, 20.0]])
Y = np.array([5.0, 7.0, 6.0])
HEAD = "key,a,b,out\n"
GOOD = HEAD + f"{SECRET},1,2,3\nk2,4,5,6\nk3,7,8,9\n"
OUT: dict[str, Any] = {"label": "out"}
KEYED = {**OUT, "id_column": "key"}
ALL, STRICT, LOAD = "load node run", "load node", "load"

#: Name -> code; a CSV, arrays of an NPZ, columns of Parquet, or name and bytes; what names its
#: columns; its doors. A run reads text, dates and gaps, which others refuse.
FILES: dict[str, tuple[str, Any, dict[str, Any], str]] = {
    "missing": ("FK-FILE-READ", ("no.csv", None), {}, ALL),
    "a folder": ("FK-FILE-FOLDER", ("folder.csv", "/"), {}, ALL),
    "another ending": ("FK-FILE-SUFFIX", ("a.xlsx", b"1"), {}, ALL),
    "an empty file": ("FK-FILE-EMPTY", ("a.csv", b""), {}, ALL),
    "a header alone": ("FK-ROWS-NONE", HEAD, KEYED, ALL),
    "no rows": ("FK-ROWS-NONE", {"X": X[:0], "y": Y[:0]}, {}, ALL),
    "no archive": ("FK-FILE-FORMAT", ("a.npz", b"s3cret"), {}, ALL),
    "half an archive": ("FK-FILE-FORMAT", ("a.npz", b"PK\x03\x04s3cret"), {}, ALL),
    "no Parquet": ("FK-FILE-FORMAT", ("a.parquet", b"s3cret"), {}, ALL),
    "a short line": ("FK-FILE-COLUMNS", f"{HEAD}1,{SECRET}\n", KEYED, ALL),
    "no text": ("FK-FILE-FORMAT", ("a.csv", b"a,out\n\x81\xff,1\n"), OUT, ALL),
    "parted otherwise": ("FK-FILE-COLUMNS", "a;b;y\n1,5;2,5;0\n2;3;1\n", {"sep": ","}, ALL),
    "an unquoted comma": ("FK-FILE-COLUMNS", "a,b,y\n1,5,2,5,0\n2,3,1\n", {"decimal": ","}, ALL),
    "pickled": ("FK-FILE-PICKLED", {"X": np.array([[SECRET, None]], object), "y": Y[:1]}, {}, ALL),
    "no X": ("FK-COLUMN-MISSING", {"y": Y, "z": Y}, {}, ALL),
    "no y": ("FK-COLUMN-MISSING", {"X": X}, {}, STRICT),
    "no such array": ("FK-COLUMN-MISSING", {"X": X, "y": Y}, {"label": "y2"}, ALL),
    "no such site": ("FK-COLUMN-MISSING", {"X": X, "y": Y}, {"site_column": "place"}, "load run"),
    "no such id": ("FK-COLUMN-MISSING", {"X": X, "y": Y}, {"id_column": "key"}, ALL),
    "several labels": ("FK-COLUMN-UNNAMED", {"X": X, "y": X}, {}, STRICT),
    "no such label of several": ("FK-COLUMN-UNNAMED", {"X": X, "y": X}, {"label": "2"}, ALL),
    "X in one dimension": ("FK-SHAPE-DIFFERS", {"X": Y, "y": Y}, {}, ALL),
    "site of floats": ("FK-SHAPE-DIFFERS", {"X": X, "y": Y, "site": Y}, {}, ALL),
    "X of text": ("FK-COLUMN-NUMBERS", {"X": np.array([[SECRET]]), "y": Y[:1]}, {}, ALL),
    "labels of other rows": ("FK-SHAPE-DIFFERS", {"X": X, "y": Y[:2]}, {}, ALL),
    "sites of other rows": ("FK-SHAPE-DIFFERS", {"X": X, "y": Y, "site": [1]}, {}, ALL),
    "too few names": ("FK-SHAPE-DIFFERS", {"X": X, "y": Y, "feature_names": ["a"]}, {}, ALL),
    "other test columns": ("FK-SHAPE-DIFFERS", {"X": X, "y": Y, "X_test": X[:, :1]}, {}, ALL),
    "other test rows": (
        "FK-SHAPE-DIFFERS", {"X": X, "y": Y, "X_test": X, "y_test": Y[:1]}, {}, ALL),
    "no columns in an NPZ": ("FK-COLUMNS-NONE", {"X": X[:, :0], "y": Y}, {}, ALL),
    "no columns": ("FK-COLUMNS-NONE", "out\n1\n", OUT, ALL),
    "the target alone": ("FK-COLUMNS-NONE", {"X": X[:, :1]}, {"target": "0"}, "load run"),
    "target out of range": ("FK-COLUMN-MISSING", {"X": X, "y": Y}, {"target": "2"}, "load run"),
    "target below": ("FK-COLUMN-MISSING", {"X": X, "y": Y}, {"target": "-1"}, LOAD),
    "no such target": ("FK-COLUMN-MISSING", {"X": X, "y": Y}, {"target": "z"}, "load run"),
    "label not named": ("FK-COLUMN-UNNAMED", GOOD, {}, STRICT),
    "no such label": ("FK-COLUMN-MISSING", GOOD, {"label": "z"}, ALL),
    "label misspelt": ("FK-COLUMN-MISSING", GOOD, {"label": "Out"}, ALL),
    "no such id column": ("FK-COLUMN-MISSING", GOOD, {**OUT, "id_column": "z"}, ALL),
    "no such site column": ("FK-COLUMN-MISSING", GOOD, {**OUT, "site_column": "z"}, "load run"),
    "two roles": ("FK-COLUMN-TWICE", GOOD, {**OUT, "id_column": "out"}, ALL),
    "no header": ("FK-FILE-HEADER", f"{SECRET},1.5,2\nk,2.5,3\n", {"label": "z"}, ALL),
    "a name twice": ("FK-COLUMN-NAMES", "a,a,b\n1,2,3\n", {"label": "b"}, ALL),
    "no name": ("FK-COLUMN-NAMES", ",a,out\n0,1,2\n", OUT, ALL),
    "text in a column": ("FK-COLUMN-NUMBERS", f"{HEAD}k1,1,2,3\nk2,4,{SECRET},6\n", KEYED, STRICT),
    "text among labels": ("FK-COLUMN-NUMBERS", f"{HEAD}k1,1,2,3\nk2,4,5,{SECRET}\n", KEYED, ALL),
    "dates": (
        "FK-COLUMN-NUMBERS", pa.table({"a": pa.array([0], pa.timestamp("s")), "out": [1]}), OUT,
        STRICT),
    "lists": ("FK-COLUMN-NUMBERS", pa.table({"a": [[1, 2]], "out": [1]}), OUT, STRICT),
    "lists in a run": ("FK-COLUMN-UNREADABLE", pa.table({"a": [[1, 2]], "out": [1]}), OUT, "run"),
    "gaps": ("FK-VALUES-MISSING", f"{HEAD}{SECRET},1,2,3\nk2,,NA,6\nk3,nan,1,1\n", KEYED, ALL),
    "gaps in Parquet": ("FK-VALUES-MISSING", pa.table({"a": [1, None], "out": [1, 2]}), OUT, ALL),
    "NaN labels": ("FK-VALUES-MISSING", {"X": X, "y": np.array([1, np.nan, 2])}, {}, ALL),
    "NaN test rows": (
        "FK-VALUES-MISSING", {"X": X, "y": Y, "X_test": X * np.nan}, {}, "load run"),
    "infinite": ("FK-VALUES-FINITE", f"{HEAD}k1,1,-inf,3\n", KEYED, ALL),
    "an empty id": ("FK-IDS-MISSING", f"{HEAD},1,2,3\n{SECRET},1,2,3\n", KEYED, ALL),
    "an id twice": (
        "FK-IDS-DUPLICATE", f"{HEAD}{SECRET},1,2,3\n{SECRET} ,4,5,6\nk,1,1,1\n", KEYED, ALL),
    "no whole row": (
        "FK-VALUES-NOROW", f"{HEAD}k,1,,3\n", {**KEYED, "missing": "drop-row"}, "load"),
    "points and commas": ("FK-DECIMAL-MIXED", "a;out\n1,5;0\n1.234;1\n", OUT, ALL),
    "points, where commas were said": (
        "FK-DECIMAL-MIXED", "a;out\n1,5;0\n1.234;1\n", {**OUT, "decimal": ","}, ALL),
    "a separator of two": ("FK-OPTION-CHOICE", GOOD, {**KEYED, "sep": ";;"}, ALL),
    "a decimal mark that is none": ("FK-OPTION-CHOICE", GOOD, {**KEYED, "decimal": ";"}, ALL),
    "missing what": ("FK-OPTION-CHOICE", GOOD, {**KEYED, "missing": "skip"}, "load run"),
    "classes that are not named": (
        "FK-CLASSES-UNKNOWN", f"a,out\n1,{SECRET}\n2,x\n", {**OUT, "classes": ("x", "y")}, STRICT),
    "numbers for classes of text": (
        "FK-CLASSES-UNKNOWN", "a,out\n1,0\n2,1\n", {**OUT, "classes": ("no", "yes")}, STRICT),
}  # fmt: skip
RUNS = {
    "fed-cg": "", "fdskl": "", "hierarchical-svm": "--users 4", "pof-mkl": "--clients 3",
    "kernel-pca": "--clients 3", "secure-gram": "--encoding fixed-point",
}  # fmt: skip
NODES: dict[str, dict[str, Any]] = {
    "fed_cg": {"role": "hospital"}, "hierarchical_svm": {"role": "user", "group": 0}, "pof_mkl": {},
}  # fmt: skip
KEYS = {"label": "label-column", "id_column": "id-column", "sep": "sep", "decimal": "decimal"}
FLAGS = {"id_column": "--id", "site_column": "--site"}


def write(content: Any) -> Path:
    """Write a table where it is to be found."""
    if isinstance(content, str):
        content = ("data.csv", content.encode())
    if isinstance(content, dict):
        np.savez("data.npz", **content)
        content = ("data.npz", None)
    if isinstance(content, pa.Table):
        parquet.write_table(content, "data.parquet")
        content = ("data.parquet", None)
    name, raw = content
    if raw == "/":
        Path(name).mkdir()
    elif raw is not None:
        Path(name).write_bytes(raw)
    return Path(name).absolute()  # a process reads a file of a node once


def quotes_nothing(text: str) -> None:
    assert "\n" not in text
    assert text.endswith("]")
    text = text.replace(str(Path.cwd()), "")  # pytest numbers its folders
    for cell in (SECRET, "1.234", "77"):
        assert cell not in text


def by_door(door: str) -> Any:
    return pytest.mark.parametrize("case", [name for name, row in FILES.items() if door in row[3]])


@pytest.mark.promise("tables-refused")
@by_door("load")
def test_a_bad_file_is_not_loaded(case: str) -> None:
    code, content, how, _ = FILES[case]
    path = write(content)
    with refused(code) as caught:
        load_table(path, **{"label": "y"} | how if "y" in how or "sep" in how else how)
    quotes_nothing(str(caught.value))
    assert caught.value.remedy
    assert caught.value.exit_code == 2
    assert caught.value.__cause__ is None  # whose text would quote cells
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.promise("tables-refused")
@by_door("run")
def test_a_bad_file_ends_a_run_at_its_start(case: str) -> None:
    code, content, how, _ = FILES[case]
    path = write(content)
    typed = {"missing": "error", **how}
    given = [f"{FLAGS.get(name, f'--{name}')}={value}" for name, value in typed.items()]
    for name, more in runs_of(case):
        refused_run(code, name, f"--data={path}", *given, *more.split())


def runs_of(case: str) -> list[tuple[str, str]]:
    """Return the methods whose runs are tried: two, but for the first case of each code all."""
    codes, runs = [row[0] for row in FILES.values()], list(RUNS.items())
    number = list(FILES).index(case)
    if codes.index(codes[number]) == number:
        return runs
    return [runs[number % len(runs)], runs[(number + 3) % len(runs)]]


def rows(names: str, ids: Any) -> str:
    """Return a CSV of numbers with ids, and with labels if one of the names is y."""
    lines = [f"id,{','.join(names)}"]
    for k in ids:
        cells = ["yn"[k % 2] if n == "y" else str((7 * k + ord(n)) % 11) for n in names]
        lines.append(f"r{k},{','.join(cells)}")
    return "\n".join(lines)


PARTIES = {
    "north.csv": rows("aby", range(30)), "south.csv": rows("aby", range(30, 60)),
    "wide.csv": rows("abcy", range(30, 60)), "same.csv": rows("aby", range(27, 60)),
    "twice.csv": rows("aby", [30, 31]) + "\n" + rows("bay", [31]).partition("\n")[2],
    "lab.csv": rows("cd", range(60)),
    "other.csv": f"id,c\n{SECRET}-1,2.5\n{SECRET}-2,3.5\n", "odd.csv": "c,d\n1,2.5\n2,3.5\n",
}  # fmt: skip
#: What is typed after ``run``; behind a colon the files of the parties.
WHOLE, LABELS = "north south lab", "--label y --id id"
DEALT: list[tuple[str, str]] = [
    (f"fed-cg {LABELS}: north", "FK-PARTIES-FEW"),
    (f"fed-cg {LABELS}: north ./north", "FK-FILE-TWICE"),
    (f"fed-cg {LABELS}: north gone", "FK-FILE-READ"),
    (f"fed-cg --label z --id id: {WHOLE}", "FK-LABELS-MISSING"),
    (f"hierarchical-svm {LABELS}: north lab", "FK-LABELS-MISSING"),
    ("hierarchical-svm --label z --id id: north south", "FK-COLUMN-MISSING"),
    (f"fed-cg --label y --id z: {WHOLE}", "FK-COLUMN-MISSING"),
    (f"fed-cg {LABELS}: north odd", "FK-COLUMN-MISSING"),
    ("fdskl --label y: north lab", "FK-COLUMN-UNNAMED"),
    (f"fed-cg --id id: {WHOLE}", "FK-COLUMN-UNNAMED"),
    (f"fdskl {LABELS}: {WHOLE}", "FK-LABELS-FILES"),
    (f"fed-cg {LABELS}: north wide", "FK-COLUMNS-DIFFER"),
    (f"pof-mkl {LABELS}: north south.csv:features", "FK-PARTY-FEATURES"),
    (f"fed-cg {LABELS}: north other", "FK-IDS-APART"),
    (f"fed-cg {LABELS}: north same", "FK-IDS-PARTIES"),
    (f"fed-cg {LABELS}: north twice", "FK-IDS-DUPLICATE"),
    (f"fed-cg {LABELS} --hospitals 3: {WHOLE}", "FK-CLIENTS-DIFFER"),
    (f"fed-cg {LABELS} --split dirichlet: {WHOLE}", "FK-CLIENTS-DIFFER"),
    (f"hierarchical-svm {LABELS} --partition vertical: north south", "FK-CLIENTS-DIFFER"),
    (f"fed-cg {LABELS} --data lab.csv: {WHOLE}", "FK-DATA-OPTION"),
    (f"fed-cg {LABELS} --target a: {WHOLE}", "FK-DATA-OPTION"),
    (f"fed-cg {LABELS}: north data.npz", "FK-FILE-SUFFIX"),
]
#: Ratings, what is typed beside, and the code.
PAIR = "--user user --item item"
RATINGS: list[tuple[str, str, str]] = [
    (f"user,item\n{SECRET},1\n{SECRET},1\nb,2\n", PAIR, "FK-PAIRS-TWICE"),
    (f"user,item\n{SECRET},1\n,2\n", PAIR, "FK-IDS-MISSING"),
    (f"user,item,rating\n{SECRET},1,nan\nb,2,3\n", f"{PAIR} --rating rating", "FK-VALUES-FINITE"),
    (f"user,item\n{SECRET},1\n{SECRET},2\n", PAIR, "FK-ITEMS-FEW"),
    ("", PAIR, "FK-FILE-EMPTY"),
    (f"user,item\n{SECRET},1\nb\n", PAIR, "FK-FILE-COLUMNS"),
    (f"person,thing\n{SECRET},1\nb,2\n", "--user person --item x", "FK-COLUMN-MISSING"),
    (f"person,thing\n{SECRET},1\nb,2\n", "--user person --item person", "FK-COLUMN-TWICE"),
    (f"{SECRET},1\nb,2\n", "--user x --item y", "FK-FILE-HEADER"),
]
#: A table of a run and what is typed beside: what is wrong with it for learning.
AND = "--data t.csv --label y"
TAUGHT: list[tuple[dict[str, str], str, str]] = [
    ({"y": "1"}, f"fed-cg {AND}", "FK-CLASSES-ONE"),
    ({"y": "1"}, f"fdskl {AND}", "FK-CLASSES-ONE"),
    ({"a": ""}, f"fed-cg {AND} --missing neutral", "FK-COLUMN-EMPTY"),
    ({"y": ""}, f"fed-cg {AND} --missing neutral", "FK-LABELS-MISSING"),
    ({"a": ""}, f"pof-mkl {AND} --missing drop-row", "FK-VALUES-NOROW"),
    ({}, f"fed-cg {AND} --split site --site s", "FK-SPLIT-SITES"),
    ({}, f"fed-cg {AND} --hospitals 19", "FK-ROWS-FEW"),
    ({}, f"fed-cg {AND} --landmarks 100000", "FK-OPTION-RANGE"),
    ({}, f"fdskl {AND} --features 2000000", "FK-OPTION-RANGE"),
    ({"y": SECRET}, "pof-mkl --data t.csv --label text --clients 3", "FK-TASK-TEXT"),
]


def refused_run(code: str, *typed: str) -> None:
    line = complaint("run", *typed)
    quotes_nothing(line)
    assert line.endswith(f"[{code}]"), line


@pytest.mark.promise("tables-refused")
@pytest.mark.parametrize(("typed", "code"), DEALT)
def test_files_that_do_not_fit_end_a_run(typed: str, code: str) -> None:
    for name, text in PARTIES.items():
        Path(name).write_text(text)
    np.savez("data.npz", X=X)
    given, _, named = typed.partition(": ")
    party = [f"--party={one if '.' in one[1:] else f'{one}.csv'}" for one in named.split()]
    refused_run(code, *given.split(), *party)


@pytest.mark.promise("tables-refused")
@pytest.mark.parametrize(("text", "typed", "code"), RATINGS)
@pytest.mark.parametrize("name", ["secure-gram", "fed-cfk"])
def test_bad_ratings_end_a_run(name: str, text: str, typed: str, code: str) -> None:
    Path("r.csv").write_text(text)
    refused_run(code, name, "--data", "r.csv", *typed.split())


@pytest.mark.promise("tables-refused")
@pytest.mark.parametrize(("change", "typed", "code"), TAUGHT)
def test_a_table_that_teaches_nothing_ends_a_run(change: Any, typed: str, code: str) -> None:
    lines = ["a,b,s,y,text"]
    for k in range(60):
        row = {"a": f"{k % 7}", "b": f"{k % 5}", "s": "uvw"[k % 3], "y": f"{k % 2}"}
        lines.append(",".join({**row, "text": ("cat", SECRET, "owl")[k % 3], **change}.values()))
    Path("t.csv").write_text("\n".join(lines))
    refused_run(code, *typed.split())


@functools.cache
def client_app(app: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return what makes the clients of an app, and its options."""
    place = Path(str(files("fedkern_flwr.simulations"))) / "apps" / app
    keys = tomllib.loads((place / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        return runpy.run_path(str(place / "client_app.py"))["make_client"], keys["config"]


@pytest.mark.promise("tables-refused")
@by_door("node")
def test_a_bad_file_of_a_node_is_refused_when_its_client_is_built(case: str) -> None:
    code, content, how, _ = FILES[case]
    path = write(content)
    for app, node in NODES.items():
        if "classes" in how and app == "pof_mkl":
            continue
        make, config = client_app(app)
        own = {"data": str(path), "partition-id": 1, "num-partitions": 3, **node}
        own |= {KEYS[name]: value for name, value in how.items() if name in KEYS}
        if "classes" in how:
            own["classes"] = ",".join(how["classes"])
        quotes_nothing(str(refuses(code, make, Context(1, 1, own, RecordDict(), config))))


# -- arrays

KEY, NAN = bytes(range(16)), np.nan
ROWS = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]])
HELD: dict[str, Any] = {"x_test": ROWS[:2], "y_test": [1, 0], "ids_test": [7, "ü"]}
JOINED = {"y": [0, 1, 1, 0], "ids": list("abcd"), "classes": (0, 1), "alignment_key": KEY}
#: Client -> what a party of four rows gives beside its features.
CLIENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "fed-cg": (clients.HybridKernelClient, JOINED),
    "fdskl": (clients.VerticalKernelClient, JOINED),
    "svm": (clients.SVMClient, {"y": [0, 1, 1, 0], "classes": (0, 1), "group": 0}),
    "pca": (clients.KernelPCAClient, {}),
    "gram": (clients.GramClient, {}),
    "ranges": (clients.RangesClient, {}),
    "align": (
        lambda context, x, **own: clients.AlignmentClient(context, **own),
        {"ids": list("abcd"), "alignment": "tags.npz"},
    ),
}
TWO, LABELLED, PLAIN = "fed-cg fdskl", "fed-cg fdskl svm", "fed-cg fdskl svm pca"
#: Name -> code, what is changed, at whose clients.
ARRAYS: dict[str, tuple[str, dict[str, Any], str]] = {
    "NaN": ("FK-VALUES-FINITE", {"x": ROWS * NAN}, PLAIN),
    "infinite": ("FK-VALUES-FINITE", {"x": [[0.1, -np.inf]] * 4}, f"{PLAIN} ranges"),
    "NaN held out": ("FK-VALUES-FINITE", {**HELD, "x_test": ROWS[:2] * NAN}, PLAIN),
    "NaN in a row without a label": (
        "FK-VALUES-FINITE", {"x": ROWS * [[1], [NAN], [1], [1]], "y": [0, NAN, 1, 1]}, "fdskl"),
    "one dimension": ("FK-SHAPE-DIFFERS FK-SHAPE-DIFFERS", {"x": ROWS[:, 0]}, f"{PLAIN} ranges"),
    "text": (
        "FK-COLUMN-NUMBERS", {"x": [[SECRET, "name"]] * 4},
        f"{PLAIN} gram ranges"),
    "no rows": ("FK-SHAPE-DIFFERS", {"x": ROWS[:0]}, "ranges"),
    "no features": ("FK-SHAPE-DIFFERS", {"x": ROWS[:, :0]}, "ranges"),
    "an empty column": ("FK-BLOCK-EMPTY", {"x": ROWS * [1.0, NAN]}, "ranges"),
    "no id for a row": ("FK-SHAPE-DIFFERS", {"ids": list("abc")}, TWO),
    "no label for a row": ("FK-SHAPE-DIFFERS", {"y": [0, 1]}, f"{LABELLED} ranges"),
    "unknown labels": ("FK-BLOCK-EMPTY", {"y": [NAN] * 4}, "ranges"),
    "infinite labels of ranges": ("FK-VALUES-FINITE", {"y": [0, np.inf, 1, NAN]}, "ranges"),
    "infinite labels": ("FK-VALUES-FINITE", {"y": [0, np.inf, 1, 1], "classes": None}, LABELLED),
    "NaN labels": ("FK-VALUES-FINITE", {"y": [0, 1, 1, NAN]}, "fed-cg svm"),
    "two columns of classes": ("FK-SHAPE-DIFFERS", {"y": [[0, 1]] * 4}, LABELLED),
    "an unknown class": ("FK-CLASSES-UNKNOWN", {"y": [0, 1, 77.0, 1]}, LABELLED),
    "an unknown class held out": ("FK-CLASSES-UNKNOWN", {**HELD, "y_test": [77.0, 0]}, LABELLED),
    "labels beyond the bound": (
        "FK-LABELS-BOUND", {"y": [0.5, -77, 1, 0], "classes": None, "label_bound": 2.0}, LABELLED),
    "other columns held out": (
        "FK-COLUMNS-DIFFER", {**HELD, "x_test": ROWS[:2, :1]}, LABELLED),
    "too few names": ("FK-COLUMN-NAMES", {"columns": ["age"]}, f"{LABELLED} ranges"),
    "a name twice": ("FK-COLUMN-NAMES", {"columns": ["age", "age"]}, "ranges"),
    "a column that is called as labels are": (
        "FK-NAMES-LABEL", {"columns": ["age", "label"], "y": ROWS[:, 0]}, "ranges"),
    "ranges and an encoder": ("FK-OPTION-BOTH", {"ranges": "r", "encoder": "e"}, "ranges"),
    "one class": ("FK-CLASSES-NAMED", {"classes": (1,), "y": [1] * 4}, LABELLED),
    "a class twice": ("FK-CLASSES-NAMED", {"classes": (1, 1, 0)}, LABELLED),
    "text labels": ("FK-COLUMN-NUMBERS", {"y": [SECRET] * 4}, LABELLED),
    "a label that no class has": (
        "FK-CLASSES-UNKNOWN", {"y": [SECRET] * 4, "classes": ("no", "yes")}, LABELLED),
    "out of range": (
        "FK-RANGES-OUTSIDE", {"x": ROWS * [[1.0, 77.0]], "columns": ["age", "weight"]}, "fed-cg"),
    "out of range below": ("FK-RANGES-OUTSIDE", {"x": ROWS - [0.77, 0.0]}, "fed-cg"),
    "held out and out of range": (
        "FK-RANGES-OUTSIDE", {**HELD, "x_test": [[0.1, 0.2], [0.3, 7.7]]}, "fed-cg"),
    "ranges of one feature": ("FK-SHAPE-DIFFERS", {"ranges": [[0, 1]]}, "fed-cg"),
    "ranges upside down": ("FK-RANGES-WRONG", {"ranges": [[1, 0]] * 2}, "fed-cg"),
    "ranges unknown": ("FK-SHAPE-DIFFERS", {"ranges": [[0, NAN]] * 2}, "fed-cg"),
    "ranges of text": ("FK-COLUMN-NUMBERS", {"ranges": [[SECRET, 1]] * 2}, "fed-cg"),
    "no alignment key": ("FK-IDS-KEY", {"alignment_key": None}, TWO),
    "no alignment key of held-out rows": (
        "FK-IDS-KEY", {**HELD, "ids": None, "alignment_key": None}, TWO),
    "a short alignment key": ("FK-KEY-LENGTH", {"alignment_key": KEY[1:]}, TWO),
    "no label bound": ("FK-OPTION-RANGE", {"classes": None, "label_bound": 0.0}, LABELLED),
    "a short landmark seed": ("FK-KEY-LENGTH", {"landmark_seed": bytes(31)}, "fed-cg"),
    "a short seed": ("FK-KEY-LENGTH", {"frequency_seed": KEY}, "fdskl"),
    "labels at a passive party": ("FK-ROLE-DATA", {"role": "passive"}, "fdskl"),
    "held-out labels at a passive party": (
        "FK-ROLE-DATA", {**HELD, "role": "passive", "y": None}, "fdskl"),
    "no labels at an active party": ("FK-ROLE-DATA", {"role": "active", "y": None}, "fdskl"),
    "only held-out labels": ("FK-ROLE-DATA", {**HELD, "y": None}, "fdskl"),
    "an unknown role": ("FK-OPTION-CHOICE", {"role": "server"}, "fdskl svm"),
    "a group below 0": ("FK-OPTION-RANGE", {"group": -1}, "svm"),
    "a group that is no whole number": ("FK-OPTION-RANGE", {"group": 1.5}, "svm"),
    "a user without features": ("FK-ROLE-DATA", {"x": None}, "svm"),
    "an agent with features": ("FK-ROLE-DATA", {"role": "agent", "y": None}, "svm"),
    "an agent with labels": ("FK-ROLE-DATA", {"role": "agent", "x": None}, "svm"),
    "an owner with features": (
        "FK-ROLE-DATA", {"role": "owner", "ids": list("abcd"), "alignment_key": KEY}, "svm"),
    "no ids": ("FK-ROWS-NONE", {"ids": []}, "align"),
    "an id twice": ("FK-IDS-DUPLICATE", {"ids": ["a", "b", "a"]}, "align"),
    "a number and its text": ("FK-IDS-DUPLICATE", {"ids": [7, "7"]}, "align"),
    "an id held out": ("FK-IDS-DUPLICATE", {"ids_test": ["a"]}, "align"),
    "a folder for a file": ("FK-FILE-WRITE", {"alignment": "."}, "align"),
    "a file for a folder": ("FK-FILE-WRITE", {"alignment": __file__ + "/tags.npz"}, "align"),
}  # fmt: skip


@pytest.mark.promise("tables-refused")
@pytest.mark.parametrize("case", ARRAYS)
def test_bad_arrays_are_refused_when_a_client_is_built(case: str) -> None:
    code, change, names = ARRAYS[case]
    for name in names.split():
        kind, own = CLIENTS[name]
        more = {k: v for k, v in change.items() if k != "ids_test" or "ids" in own}
        node = {"simulation": True, "partition-id": 4, "num-partitions": 5}
        with refused(*code.split()) as caught:
            kind(Context(1, 1, node, RecordDict(), {}), **{"x": ROWS, **own, **more})
        quotes_nothing(str(caught.value).replace("bound of 2", ""))
        assert caught.value.party == "partition 4" or isinstance(caught.value, OptionError)
        assert caught.value.remedy
        assert caught.value.__cause__ is None  # whose text would quote cells


FLAT = np.linspace(0.0, 1.0, 60).reshape(30, 2)
#: Name -> code, features, labels, options of an estimator.
FITTED: dict[str, tuple[str, Any, Any, dict[str, Any]]] = {
    "constant columns": ("FK-COLUMNS-CONSTANT", np.ones((30, 2)), np.arange(30) % 2, {}),
    "lists": (
        "FK-COLUMN-UNREADABLE", pa.table({"a": [[7, 77]] * 30}), np.arange(30) % 2, {}),
    "nothing but gaps": ("FK-COLUMNS-CONSTANT", FLAT * NAN, np.arange(30) % 2, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", FITTED)
def test_bad_tables_are_value_errors_of_an_estimator(case: str) -> None:
    code, x, y, options = FITTED[case]
    for kind in (FedCGClassifier, FDSKLClassifier):
        with pytest.raises(ValueError, match=rf"\[{code}\]$") as caught:
            kind(**options).fit(x, y)
        quotes_nothing(str(caught.value))


# -- messy tables through every door: read as the clean table that they stand for, and said so

#: Methods of tables, and what makes a run of them short.
DEALT_TO = {
    "fed-cg": "--landmarks 8", "fdskl": "--features 20 --gamma 1 --regularization 0.01",
    "hierarchical-svm": "--users 4 --C 1 --rounds 10", "pof-mkl": "--clients 3 --rounds 20",
    "secure-gram": "--encoding fixed-point --kernel rbf --cost 1",
    "kernel-pca": "--clients 3 --features 6",
}  # fmt: skip
#: Name -> cells of a column, the numbers that they are, what a note says.
NUMBERS: dict[str, tuple[Sequence[str], Sequence[float], str]] = {
    "percent": (["45.3%", "7 %", "0"], [45.3, 7, 0], "'a' in %"),
    "euros": (["€ 5,25", "€7", "-€ 1,5"], [5.25, 7, -1.5], "'a' in €"),
    "dollars": (["$1,234.50", "($3.25)", "-$2"], [1234.5, -3.25, -2], "'a' in $"),
    "kilograms": (["75.0 kg", "80kg", "8.1e1 KG"], [75, 80, 81], "'a' in kg"),
    "days": (["1 day", "12 days", "3 d"], [1, 12, 3], "'a' in d"),
    "a clinical unit": (["90 mL/min/1.73m2", "61.5 mL/min/1.73m²", "7 ml/min/1.73m2"],
                        [90, 61.5, 7], "'a' in mL/min/1.73m2"),
    "cells in a volume": (["5.1 x10^9/L", "6 10^9/L", "7 ×10⁹/L"], [5.1, 6, 7], "'a' in"),
    "spaces for thousands": (["1 234,5", "12\u00a0345,5", "3,5"], [1234.5, 12345.5, 3.5], "comma"),
    "marks for thousands": (["1'234.5", "1,234,567.5", "8.5"], [1234.5, 1234567.5, 8.5], ""),
    "brackets": (["(12.5)", "13.5", "\u22127"], [-12.5, 13.5, -7], ""),
    "limits": (["<0.5", "1.5", "≥ 30"], [NAN, 1.5, NAN], "limits"),
    "infinite": (["inf", "1.5", "-Infinity"], [NAN, 1.5, NAN], "infinite"),
    "marked as missing": (["n/a", "1.5", "#N/A"], [NAN, 1.5, NAN], "'n/a'"),
}  # fmt: skip
DAY = 86400.0
MARCH = 1709510400.0  # 2024-03-04
DATES: dict[str, tuple[Sequence[str], str | None, Sequence[float]]] = {
    "the day is first": (["04/03/2024", "29/03/2024", "2024-03-05"], None, [0, 25, 1]),
    "the month is first": (["03-04-2024", "03-29-2024", "3-5-24"], None, [0, 25, 1]),
    "said": (["04.03.2024", "05.03.2024 06:00", "4.3.24"], "day-first", [0, 1.25, 0]),
    "others are missing": (["2024-03-04", "05/03/2024", "2024-03-05"], "iso", [0, NAN, 1]),
}


def text_of(columns: Mapping[str, Sequence[Any]], sep: str = ";") -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=sep, lineterminator="\n")
    writer.writerows([list(columns), *zip(*columns.values(), strict=True)])
    return text.getvalue()


def node_table(path: Path, **config: Any) -> Table:
    """Return the table that a node of an app reads from what its configuration names."""
    own = {"data": str(path), "label-column": "out", **config}
    node = Node(Context(1, 1, own, RecordDict(), {"predict": ""}), load_table, ("classes",))
    table = node.table(missing="keep", kinds=())
    assert isinstance(table, Table)
    return table


def doors(columns: Mapping[str, Sequence[Any]], place: Path, **how: Any) -> dict[str, Table]:
    """Return the table as each door reads it."""
    whole = {**columns, "out": [k % 2 for k in range(len(next(iter(columns.values()))))]}
    path, other = place / "one.csv", place / "two.csv"
    path.write_text(text_of(whole), encoding="utf-8")
    other.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    parties = PartyFiles.read([str(path), str(other)], "rows", "out", None, how)
    both = parties.table("keep")
    found = {
        "file": load_table(path, label="out", missing="keep", kinds={}, **how),
        "node": node_table(path, **{name: str(value) for name, value in how.items()}),
        "parties": both.take(both.site == "00000"),
    }
    for name, table in found.items():
        assert found["file"].units == table.units, name
    return found


@pytest.mark.promise("cells-as-meant")
@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_are_what_they_mean(case: str, tmp_path: Path) -> None:
    cells, numbers, said = NUMBERS[case]
    for door, table in doors({"a": cells * 4, "b": range(12)}, tmp_path).items():
        x = np.where(np.isfinite(table.x), table.x, NAN)
        np.testing.assert_array_equal(x[:, 0], [*numbers] * 4, door)
        assert "a" not in table.kinds
        assert said in " ".join(table.notes), (door, table.notes)


@pytest.mark.promise("cells-as-meant")
@pytest.mark.parametrize("case", DATES)
def test_dates_are_read_in_their_order(case: str, tmp_path: Path) -> None:
    cells, order, days = DATES[case]
    how = {} if order is None else {"dates": order}
    for door, table in doors({"a": cells}, tmp_path, **how).items():
        np.testing.assert_array_equal((table.x[:, 0] - MARCH) / DAY, days, door)
        assert table.kinds == {"a": "date"}


def test_names_that_differ_in_capital_letters_are_one_everywhere(tmp_path: Path) -> None:
    cells = ["F", "f ", "M", "F", "00123", "4041"] * 3
    for door, table in doors({"a": cells, "zip": ["00123", "4041"] * 9}, tmp_path).items():
        assert table.categories["a"] == ("00123", "4041", "F", "M"), door
        assert table.categories["zip"] == ("00123", "4041")
        assert any("capital letters" in note for note in table.notes)
    data = pd.DataFrame({"sex": ["Female", "male"] * 30, "b": np.arange(60.0)})
    model = FedCGClassifier(random_state=0).fit(data, [0, 1] * 30)
    again = data.assign(sex=["FEMALE", "Male"] * 30)
    np.testing.assert_array_equal(model.decision_function(again), model.decision_function(data))


def test_an_estimator_reads_a_frame_as_it_is_meant() -> None:
    clean = pd.DataFrame({"a": np.arange(60.0), "b": -(np.arange(60.0) % 7)})
    brackets = [f"({-k:.1f})" if k else "0" for k in clean.b]
    messy = pd.DataFrame({"a": [f"{k:.1f} kg" for k in clean.a], "b": brackets})
    y = (clean.a > 30).astype(int)
    found = [FedCGClassifier().fit(table, y).decision_function(table) for table in (clean, messy)]
    np.testing.assert_allclose(*found, atol=1e-9)


#: Columns of two parties, or of one, and the code; None where they fit.
SITES: list[tuple[dict[str, Sequence[str]], dict[str, Sequence[str]], str]] = [
    ({"a": ["75 kg", "80 kg"]}, {"a": ["165 lb", "170 lb"]}, "FK-UNITS-DIFFER"),
    ({"a": ["75 kg", "80 kg"]}, {"a": ["75", "80"]}, "FK-UNITS-DIFFER"),
    ({"a": ["75 kg", "80000 g"]}, {"a": ["75", "80"]}, "FK-UNITS-DIFFER"),
    ({"a": ["75 kg", "80"]}, {"a": ["75", "80"]}, "FK-UNITS-DIFFER"),
    ({"a": ["03/04/2024", "2024-03-04"]}, {"a": ["03/04/2024"] * 2}, "FK-DATES-ORDER"),
    ({"a": ["13/04/2024", "04/13/2024"]}, {"a": ["03/04/2024"] * 2}, "FK-DATES-ORDER"),
    ({"out": ["Yes", "No"]}, {"out": ["yes", "no"]}, "FK-CLASSES-SPELLED"),
    ({"out": ["Benign", "benign"]}, {"out": ["benign", "benign"]}, "FK-CLASSES-SPELLED"),
    ({"out": ["0", "1"]}, {"out": ["no", "yes"]}, "FK-CLASSES-SPELLED"),
]


@pytest.mark.promise("sites-written-alike")
@pytest.mark.parametrize(("one", "other", "code"), SITES)
def test_parties_that_write_differently_are_refused(
    one: Any, other: Any, code: str, tmp_path: Path, commands: CommandLine
) -> None:
    typed = ["run", "hierarchical-svm", "--label", "out", "--out", str(tmp_path / "run")]
    for name, cells in (("north", one), ("south", other)):
        columns = {"out": ["no", "yes"], "a": ["1", "2"], "b": ["3", "4"], **cells}
        path = tmp_path / f"{name}.csv"
        path.write_text(text_of({n: [*c] * 20 for n, c in columns.items()}), encoding="utf-8")
        typed += ["--party", str(path)]
    line = commands.complaint(*typed)
    assert line.endswith(f"[{code}]"), line
    if code == "FK-CLASSES-SPELLED":
        assert "20" in line  # counts of the parties
        names = {name: name[0].lower() in "y1b" for c in (one, other) for name in c["out"]}
        said = ",".join(f"{name}={'bad' if bad else 'good'}" for name, bad in names.items())
        assert commands(*typed, "--classes", said, "--quiet", "--rounds", "3")[0] == (
            2 if all(names.values()) else 0
        )


#: Cells of ids at two parties, and whether they are the same ids.
APP_KEYS = [
    (["12.0", "13.0"], ["12", "13"]), (["00012", "13"], ["12", "13"]),
    (["a1", "b2"], ["A1", "B2"]), (["e\u0301", "x"], ["\u00e9", "x"]),
]  # fmt: skip


@pytest.mark.promise("ids-spelled-alike")
@pytest.mark.parametrize(("mine", "theirs"), APP_KEYS)
def test_similar_ids_are_never_guessed(mine: list[str], theirs: list[str], tmp_path: Path) -> None:
    rows = {"id": mine, "a": [1, 2], "out": [0, 1]}
    for name, columns in (("one", rows), ("two", {"id": theirs, "b": [3, 4]})):
        (tmp_path / f"{name}.csv").write_text(text_of(columns), encoding="utf-8")
    paths = [str(tmp_path / f"{name}.csv") for name in ("one", "two")]
    parties = PartyFiles.read(paths, "columns", "out", "id", {})
    refuses("FK-IDS-SPELLED", parties.table, "encode")


#: Name and bytes of a file, how it is read, its columns.
WORDS = "größe,b,out\n1,2,0\n3,4,1\n"
PAD = b" " * 100_000  # the beginning from which the separator is found ends within a line
WRITTEN: list[tuple[str, bytes, dict[str, Any], tuple[str, ...]]] = [
    ("a.csv", b"2019,2020,out\n1,2,0\n3,4,1\n", {}, ("2019", "2020")),
    ("a.csv", b"400.5,401,401.5,out\n1,2,3,0\n3,4,5,1\n", {}, ("400.5", "401", "401.5")),
    ("a.csv", b"nan,b,out\n1,2,0\n3,4,1\n", {}, ("nan", "b")),
    ("a.csv", b"1,2,0\n3,4,1\n", {"header": False, "label": "x2"}, ("x0", "x1")),
    ("a.csv", b"5.1,2,out\n1,2,0\n3,4,1\n", {"header": True}, ("5.1", "2")),
    ("a.csv.gz", gzip.compress(b"a,b,out\n1,2,0\n3,4,1\n", mtime=0), {}, ("a", "b")),
    ("a.csv", b"a;b;out\n1%b;2;0\n3%b;4%b;1\n" % (PAD, PAD, PAD), {}, ("a", "b")),
    ("a.csv", WORDS.encode("utf-16"), {}, ("größe", "b")),
    ("a.csv", WORDS.encode("utf-8-sig"), {}, ("größe", "b")),
    ("a.csv", WORDS.encode("latin-1"), {}, ("größe", "b")),
]


@pytest.mark.parametrize(("name", "data", "how", "columns"), WRITTEN, ids=range(len(WRITTEN)))
def test_files_are_read_as_they_are_written(
    name: str, data: bytes, how: dict[str, Any], columns: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    table = load_table(tmp_path / name, kinds={}, **{"label": "out", **how})
    assert table.columns == columns
    assert (table.x[:, 0].tolist(), table.rows) == ([1, 3], 2)
    found = node_table(tmp_path / name, **{"label-column": how.get("label", "out")} | how)
    assert found.columns == columns
    feather.write_feather(
        pd.DataFrame(table.x, columns=columns).assign(out=table.y), tmp_path / "a.feather"
    )
    assert load_table(tmp_path / "a.feather", label="out").columns == columns


@pytest.mark.parametrize("text", ["5.1,3.5,setosa\n4.9,3,setosa\n", "1,2\n3,4\n5,6\n"])
def test_a_first_line_of_data_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    if text.startswith("1,"):
        text = text.replace("1,2", "7.5,2.25")
        (tmp_path / "a.csv").write_text(text)
    refuses("FK-FILE-HEADER", load_table, tmp_path / "a.csv", label="out")


def test_intervals_and_data_sets_are_columns() -> None:
    class Rows:
        """A data set whose table has more rows than it: only ``to_pandas`` knows which."""

        def to_pandas(self) -> Any:
            return pd.DataFrame({"a": [3.0, 1.0], "out": [1, 0]})

    assert load_table(Rows(), label="out").x.tolist() == [[3.0], [1.0]]
    frame = pd.DataFrame({"a": pd.cut(np.arange(8.0), 2), "out": [0, 1] * 4})
    table = load_table(frame, label="out", kinds={})
    assert table.kinds == {"a": "category"}
    assert len(table.categories["a"]) == 2


def test_dislikes_are_no_likes() -> None:
    places = np.arange(4)
    found = Interactions(
        places, places, np.array([-1.0, 1.0, 0.0, 0.5]), None, tuple("abcd"), tuple("wxyz")
    )
    assert found.positive(None).rating.tolist() == [1.0, 0.5]
    assert "2 of 4 are left out" in found.positive(None).notes[0]
    assert found.positive(-1.0).rows == 4


def test_a_party_in_another_unit_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for k in range(3):
        own = {"a": np.exp(rng.normal(size=40)) * (1000 if k == 2 else 1), "b": rng.normal(size=40)}
        (tmp_path / f"{k}.csv").write_text(text_of({**own, "out": [0, 1] * 20}, ","))
    party = tuple(str(tmp_path / f"{k}.csv") for k in range(3))
    settings = HybridSettings(data="x", label="out", id_column="b", party=party)
    notes = settings.load("encode").notes
    assert [note for note in notes if "another unit" in note and "2.csv" in note and "'a'" in note]
    assert not [note for note in notes if "another unit" in note and "'b'" in note]


def test_a_row_that_stands_twice_is_used_once_and_other_ids_are_counted_by_file(
    commands: CommandLine,
) -> None:
    rows = [f"{name}{k},{k % 7}.5,{k % 5},{k % 2}" for name in "ns" for k in range(40)]
    write = lambda name, own: Path(name).write_text("\n".join(["id,a,b,y", *own]))  # noqa: E731
    write("north.csv", [*rows[:40], rows[3], rows[3]])
    write("south.csv", rows[40:])
    table = load_table("north.csv", id_column="id", label="y")
    assert table.rows == 40
    assert any("2 rows of north.csv stand twice" in note for note in table.notes)
    assert len(load_ids("north.csv", "id")) == 40
    typed = ["run", "fed-cg", "--label", "y", "--id", "id", "--landmarks", "6", "--out", "o"]
    typed += ["--party", "north.csv", "--party", "south.csv", "--test-size", "0.2"]
    text = commands.shown(*typed)
    assert "2 rows of north.csv stand twice, cell by cell: used once" in text
    write("north.csv", [*rows[:40], "n1,0,0,0", "n2,0,0,0"])
    write("south.csv", [*rows[40:], "s1,0,0,0"])
    line = commands.complaint(*typed, "--force")
    assert "2 in north.csv, 1 in south.csv" in line
    assert line.endswith("[FK-IDS-DUPLICATE]")


def test_a_column_of_several_types_is_named() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "dose": ["x", 3.5], "y": [0, 1]})
    caught = refuses("FK-COLUMN-UNREADABLE", load_table, frame, label="y")
    assert "'dose'" in str(caught)


@pytest.mark.parametrize(("method", "more"), DEALT_TO.items())
def test_columns_are_chosen_and_a_leak_is_noted_by_every_method(
    method: str, more: str, commands: CommandLine
) -> None:
    x = np.random.default_rng(0).random((120, 5)).round(4)
    x[:, 4] = (x[:, 0] + x[:, 1] > 1.0) + 0.01 * x[:, 2]  # a second label
    rows = [[f"p{k}", *row, int(row[4])] for k, row in enumerate(x.tolist())]
    heads = ["id", *"abcd", "late", "y"]
    Tables.write("t.csv", dict(zip(heads, zip(*rows, strict=True), strict=True)))
    typed = ["run", method, *more.split(), "--data", "t.csv", "--label", "y", "--id", "id"]
    ignored = (("--ignore", "late"), False)
    for chosen, noted in (((), True), *[ignored] * (method in ("fed-cg", "pof-mkl"))):
        text = commands.shown(*typed, *chosen, "--out", "o", "--force")
        columns = {
            one["column"] for one in json.loads(Path("o/result.json").read_text())["columns"]
        }
        assert columns == {*"abcd", *(("late",) if noted else ())}
        assert ("possible leak" in text) == noted

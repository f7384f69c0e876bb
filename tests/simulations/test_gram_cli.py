"""`fedkern run secure-gram` and `fed-cfk`: every option and file, one clear line for bad input."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.checkpoint import load_arrays
from fedkern_flwr.errors import CheckpointError
from fedkern_flwr.gram import unpack
from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations import engines
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.methods.registry import family, method, options

USERS, ITEMS = 24, 14
METHODS = ["secure-gram", "fed-cfk"]
CSV = ["--data", "r.csv", "--user", "who", "--item", "what"]
SMALL = [*CSV, "--clients", "6", "--min-support", "3"]


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stars() -> np.ndarray:
    """Return ratings 1 to 5 of films, 0 where there is none, and write them as r.csv."""
    rng = np.random.default_rng(2)
    taste = rng.normal(size=(USERS, 2)) @ rng.normal(size=(2, ITEMS))
    rated = np.clip(np.rint(3.0 + taste), 1, 5) * (rng.random(taste.shape) < 0.7)
    rated[3:, 5] = 0  # an item of few users
    write_ratings("r.csv", rated)
    return rated


def write_ratings(path: str, rated: np.ndarray, header: str = "who,what,stars,when") -> None:
    """Write ratings with the separator of the file's kind; items and users count from 1."""
    separator = {".csv": ",", ".dat": "::"}.get(Path(path).suffix, "\t")
    lines = [header] if header and path.endswith((".csv", ".inter")) else []
    lines += [
        separator.join(map(str, (u + 1, i + 1, int(rated[u, i]), 1000 * i + u)))
        for u, i in zip(*np.nonzero(rated), strict=True)
    ]
    Path(path).write_text("\n".join(lines) + "\n")


def result(capsys, name: str, *arguments: str, out: str = "here") -> dict[str, Any]:
    """Run and return what is printed, which is JSON and nothing else."""
    capsys.readouterr()
    assert run(["run", name, *arguments, "--quiet", "--out", out, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def complaint(capsys, *arguments: str, code: int = 2) -> str:
    """Run what must fail; return its single line."""
    capsys.readouterr()
    assert run(list(arguments)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("fedkern: ")
    return lines[0]


def gram(out: str = "here") -> tuple[np.ndarray, np.ndarray]:
    """Return the Gram matrix of a run and its items."""
    arrays, _ = load_model(Path(out) / "model.npz")
    return unpack(arrays["gram"], len(arrays["items"])), arrays["items"]


# --- What a run prints and leaves -----------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_json_alone_is_printed_with_all_its_keys(name, capsys):
    """The built-in ratings; the users take a while in fed-cfk, so once each."""
    assert run(["run", name, "--out", "here", "--json", "-"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["method"] == name
    assert (found["engine"], found["seed"]) == ("in-process", 0)
    assert {"method", "engine", "seed", "config", "versions", "metrics", "history"} <= set(found)
    assert {"exchanges", "bytes_up", "bytes_down", "seconds", "survivors"} <= set(found)
    assert {"privacy", "artifacts"} <= set(found)
    assert (found["config"]["users"], found["config"]["items"]) == (4043, 104)
    assert found["history"] == [{"round": 1, "clients": 20, "rows": 4043}]
    assert found["survivors"] == 20
    metrics = found["metrics"]
    assert metrics["items"] == 103
    table = captured.err[captured.err.index("4043 users on 20 nodes") :]
    assert "103 of 104" in table
    assert "sums of at least 14 of 20 clients" in table
    if name == "secure-gram":
        assert metrics["max_abs_error"] == 0
        assert "largest error of K" in table
        assert found["exchanges"] == 6
    else:
        assert 0.9 < metrics["auc"] < 1.0
        assert 0.6 < metrics["ndcg@100"] < 1.0
        assert 0.99 < metrics["recall@100"] <= 1.0  # of 104 items
        assert metrics["centralised_difference"] < 1e-9
        assert "nDCG@100" in table
        assert found["exchanges"] == 8
    kept = 103
    assert found["bytes_up"] >= 20 * (kept * (kept + 1) // 2) * 2  # 16-bit sums
    kinds = {row["kind"] for row in found["privacy"]["seen"]["server"]}
    assert "masked" in kinds
    assert "plain" not in kinds
    assert json.loads(Path("here/result.json").read_text()) == found
    for artifact in found["artifacts"].values():
        assert (Path("here") / artifact).is_file()


@pytest.mark.parametrize("name", METHODS)
def test_files_of_a_run(name, capsys, stars):
    found = result(capsys, name, *SMALL)
    assert json.loads(Path("here/scaling.json").read_text())["items"][:2] == ["1", "2"]
    folder = Path("here/private_state/recommendations")
    assert folder.is_dir() == (name == "fed-cfk")
    if name == "fed-cfk":
        written = sorted(folder.iterdir())
        assert [path.name for path in written] == [f"partition-{k}.csv" for k in range(6)]
        for path in written:
            assert path.stat().st_mode & 0o077 == 0
        users = {row["user"] for p in written for row in csv.DictReader(p.read_text().splitlines())}
        assert users == {str(u + 1) for u in range(USERS)}
    answered = Path("here/private_state").glob("*/partition-*.answered")
    assert len(list(answered)) == 6
    assert run(["run", name, *SMALL, "--quiet", "--json", "found.json"]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
    again = json.loads(Path("found.json").read_text())
    assert again["metrics"] == pytest.approx(found["metrics"], rel=0, abs=1e-9)
    (made,) = Path("runs").glob(f"{name}-*")
    assert json.loads((made / "result.json").read_text()) == again


def test_the_matrix_is_exact_and_leaves_out_items_of_few_users(capsys, stars):
    found = result(capsys, "secure-gram", *SMALL)
    matrix, items = gram()
    x = (stars > 0).astype(int)
    assert items.tolist() == np.flatnonzero(x.sum(axis=0) >= 3).tolist()
    assert 5 not in items or x[:, 5].sum() >= 3
    np.testing.assert_array_equal(matrix, x[:, items].T @ x[:, items])
    assert found["metrics"]["max_abs_error"] == 0
    assert found["metrics"]["items"] == len(items)


@pytest.mark.parametrize("path", ["u.data", "ratings.dat", "r.inter", "plain.csv", "r.parquet"])
def test_files_of_every_kind_give_the_same(path, capsys, stars):
    expected = result(capsys, "fed-cfk", *SMALL, "--rating", "stars", "--min-rating", "3")
    if path == "r.parquet":
        from pyarrow import csv as arrow_csv
        from pyarrow import parquet

        parquet.write_table(arrow_csv.read_csv("r.csv"), path)
        arguments = ["--user", "who", "--item", "what", "--rating", "stars"]
    else:
        header = {"r.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float"}
        write_ratings(path, stars, header.get(path, "userId,movieId,rating,timestamp"))
        arguments = []
    arguments += ["--data", path, "--clients", "6", "--min-support", "3", "--min-rating", "3"]
    found = result(capsys, "fed-cfk", *arguments, out="other")
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=0, abs=1e-9)
    np.testing.assert_array_equal(gram("other")[0], gram()[0])


def test_secure_gram_tells_ratings_by_their_file(capsys, stars):
    write_ratings("u.data", stars)
    found = result(capsys, "secure-gram", "--data", "u.data", "--clients", "6")["metrics"]
    assert found["max_abs_error"] == 0
    assert found["rows"] == USERS


# --- Tables ---------------------------------------------------------------------------------


def test_a_machine_on_the_kernel_of_a_table(capsys):
    rbf = ["--data", "breast-cancer", "--encoding", "fixed-point", "--kernel", "rbf"]
    found = result(capsys, "secure-gram", *rbf)["metrics"]
    assert found["test_accuracy"] > 0.95
    assert 0.0 < found["max_abs_error"] <= found["error_bound"] < 1e-4
    assert found["centralised_difference"] < 1e-9
    assert found["items"] == 569
    poly = ["--data", "digits", "--bound", "16", "--kernel", "poly", "--degree", "2", "--cost", "1"]
    found = result(capsys, "secure-gram", *poly, out="digits")["metrics"]
    assert found["test_accuracy"] > 0.97
    assert found["max_abs_error"] == 0
    assert found["items"] == 1797  # none is left out: a row of a table has support
    ridge = ["--data", "diabetes", "--learner", "ridge", "--encoding", "fixed-point"]
    found = result(capsys, "secure-gram", *ridge, out="diabetes")["metrics"]
    assert 40.0 < found["test_rmse"] < 65.0
    assert "test_accuracy" not in found


def test_the_table_of_a_table_says_what_it_cost(capsys):
    arguments = ["--data", "iris", "--encoding", "fixed-point", "--clients", "2", "--out", "here"]
    assert run(["run", "secure-gram", *arguments]) == 0
    text = capsys.readouterr().err
    assert "2 parties, 114 training and 36 held-out rows" in text
    assert "accuracy on held-out rows" in text
    assert "bound of rounding" in text
    assert "plain float64 matrix: 0.18" in text
    assert "…" not in text
    columns = json.loads(Path("here/result.json").read_text())["config"]["columns"]
    assert [len(part) for part in columns] == [2, 2]


TABLES: dict[str, tuple[list[str], Callable[[dict[str, Any]], bool]]] = {
    "fraction bits": (
        ["--fraction-bits", "8"],
        lambda r: 1e-4 < r["metrics"]["max_abs_error"] <= r["metrics"]["error_bound"],
    ),
    "bound": (["--bound", "4"], lambda r: r["metrics"]["error_bound"] > 1e-5),
    "label": (["--label", "last"], bool),
    "target": (["--target", "0"], lambda r: r["metrics"]["test_rmse"] > 0.0),
    "id and site": (["--id", "id", "--site", "town"], lambda r: r["config"]["rows"] == 45),
    "missing": (["--missing", "drop-row"], bool),
    "task": (["--task", "regression"], lambda r: "test_rmse" in r["metrics"]),
    "positive": (["--positive", "1"], lambda r: r["config"]["classes"] == [0.0, 1.0]),
    "test size": (["--test-size", "0.5"], lambda r: r["config"]["rows"] == 30),
    "cosine": (["--kernel", "cosine"], lambda r: r["metrics"]["test_accuracy"] > 0.5),
    "poly": (
        ["--kernel", "poly", "--degree", "3", "--gamma", "0.5", "--coef0", "2"],
        lambda r: r["metrics"]["gamma"] == 0.5,
    ),
    "series": (
        ["--kernel", "series", "--coefficients", "1", "--coefficients", "0.5"],
        lambda r: r["config"]["options"]["coefficients"] == [1.0, 0.5],
    ),
    "cost": (["--cost", "3"], lambda r: r["metrics"]["cost"] == 3.0),
    "cohorts": (["--cohorts", "2"], lambda r: len(r["privacy"]["cohorts"]) == 2),
    "participation": (["--participation", "0.5"], lambda r: r["survivors"] == 2),
    "resplit": (["--runs", "2", "--resplit"], lambda r: r["config"]["runs"] == 2),
}


@pytest.mark.parametrize("name", TABLES)
def test_an_option_of_a_table_does_what_it_should(name, capsys):
    rng = np.random.default_rng(7)
    x = rng.uniform(0.0, 9.0, (60, 5))
    with open("t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        ids, sites = ["id"] * ("id" in name), ["town"] * ("id" in name)
        last = "last" if name == "label" else "y"
        writer.writerow([*ids, *sites, *"abcde", last])
        for k, row in enumerate(x.tolist()):
            extra = [f"r{k}", "xyz"[k % 3]] if ids else []
            writer.writerow([*extra, *row, int(sum(row) > 22)])
    base = [
        "--data",
        "t.csv",
        "--encoding",
        "fixed-point",
        *([] if last == "last" else ["--label", "y"]),
    ]
    found = result(capsys, "secure-gram", *base, "--cost", "1", *TABLES[name][0])
    assert found["metrics"]["max_abs_error"] <= found["metrics"]["error_bound"]
    assert TABLES[name][1](found), found


def test_rows_that_lack_a_value(capsys):
    Path("t.csv").write_text("a,b,c,y\n" + "1,2,3,0\n5,4,,1\n2,2,1,0\n6,5,4,1\n" * 6)
    base = ["--data", "t.csv", "--label", "y", "--encoding", "fixed-point", "--clients", "3"]
    line = complaint(capsys, "run", "secure-gram", *base, "--quiet")
    assert "column 'c' of t.csv is empty or NaN in 6 rows" in line
    found = result(capsys, "secure-gram", *base, "--missing", "drop-row")
    assert found["metrics"]["items"] == 18


# --- Every option does what it says ---------------------------------------------------------

#: Options, methods, and what is true of the result.
Case = tuple[list[str], list[str], Callable[[dict[str, Any]], bool]]
CASES: dict[str, Case] = {
    "clients": (["--clients", "3"], METHODS, lambda r: r["survivors"] == 3),
    "one user each": (
        ["--users-per-client", "1"],
        METHODS,
        lambda r: r["config"]["clients"] == USERS and r["metrics"]["rows"] == USERS,
    ),
    "linear": (["--kernel", "linear"], METHODS, bool),
    "cosine": (["--kernel", "cosine"], METHODS, bool),
    "rbf": (["--kernel", "rbf", "--gamma", "0.1"], METHODS, bool),
    "poly": (["--kernel", "poly", "--degree", "3", "--coef0", "0.5"], METHODS, bool),
    "conjunctive": (["--kernel", "conjunctive", "--degree", "3"], METHODS, bool),
    "disjunctive": (["--kernel", "disjunctive"], METHODS, bool),
    "series": (
        ["--kernel", "series", "--coefficients", "0", "--coefficients", "1"],
        METHODS,
        lambda r: r["config"]["options"]["coefficients"] == [0.0, 1.0],
    ),
    "all items": (
        ["--min-support", "0"],
        METHODS,
        lambda r: r["metrics"]["items"] == ITEMS and "in how many rows" not in str(r["privacy"]),
    ),
    "cohorts": (["--cohorts", "3"], METHODS, lambda r: len(r["privacy"]["cohorts"]) >= 3),
    "participation": (
        ["--participation", "0.5"],
        METHODS,
        lambda r: r["survivors"] == 3 and r["metrics"]["rows"] < USERS,
    ),
    "maximum": (
        ["--merge", "max", "--rounds", "3", "--participation", "0.5"],
        METHODS,
        lambda r: [row["round"] for row in r["history"]] == [1, 2, 3],
    ),
    "min rating": (
        ["--rating", "stars", "--min-rating", "4"],
        METHODS,
        lambda r: r["metrics"]["rows"] == USERS,
    ),
    "threshold": (
        ["--threshold", "6", "--min-cohort", "3"],
        METHODS,
        lambda r: r["privacy"]["cohorts"][0]["threshold"] == 6,
    ),
    "patience": (["--attempts", "9", "--node-timeout", "5", "--timeout", "99"], METHODS, bool),
    "secure": (["--secure"], METHODS, bool),
    "seed": (["--seed", "5", "--participation", "0.5"], METHODS, lambda r: r["seed"] == 5),
    "time": (["--time", "when"], METHODS, bool),
    "regularization": (["--regularization", "5"], METHODS[1:], bool),
    "no mean": (["--no-subtract-mean"], METHODS[1:], bool),
    "noisy": (
        ["--request", "noisy"],
        METHODS[1:],
        lambda r: "which rows of the kernel a node asks for" in str(r["privacy"]),
    ),
    "latest": (["--time", "when", "--hold-out", "time"], METHODS[1:], bool),
    "test size": (["--test-size", "0.4"], METHODS[1:], bool),
    "nothing held out": (
        ["--test-size", "0"],
        METHODS[1:],
        lambda r: r["metrics"]["evaluated_users"] == 0 and "auc" not in r["metrics"],
    ),
    "resplit": (["--runs", "2", "--resplit"], METHODS[1:], lambda r: r["config"]["runs"] == 2),
}
PAIRS = [(name, case) for case in CASES for name in CASES[case][1]]


@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_an_option_does_what_it_should(name, case, capsys, stars):
    arguments = CASES[case][0]
    base = [*CSV]
    base += [] if {"--clients", "--users-per-client"} & set(arguments) else ["--clients", "6"]
    base += [] if {"--min-support", "max"} & set(arguments) else ["--min-support", "3"]
    found = result(capsys, name, *base, *arguments)
    metrics = found["metrics"]
    if name == "secure-gram":
        assert metrics["max_abs_error"] == 0
    elif case != "nothing held out":
        assert (0.3 if case != "latest" else 0.0) < metrics["auc"] <= 1.0  # films that are new
        assert 0.0 < metrics["ndcg@100"] <= 1.0
        assert metrics["recall@100"] == 1.0  # of 14 items
        if case not in ("maximum", "noisy"):
            assert metrics["centralised_difference"] < 1e-9
    assert CASES[case][2](found), found


def test_help_names_every_option(capsys):
    common = "kernel degree gamma min-support cohorts merge participation threshold data engine "
    common += "clients users-per-client seed test-size secure drop out json resume quiet runs"
    promised = {"secure-gram": "encoding bound fraction-bits label id site target learner cost"}
    promised["fed-cfk"] = "regularization request subtract-mean hold-out min-rating"
    for name in METHODS:
        assert run(["run", name, "--help"]) == 0
        assert "--users-per-client" in capsys.readouterr().out
        every = [*options(method(name)), *family(name).parameters()]
        declared = {o.flag.removeprefix("--") or o.name.replace("_", "-") for o in every}
        assert set(f"{common} {promised[name]}".split()) <= declared
        assert all(option.help for option in every)


@pytest.mark.parametrize("name", METHODS)
def test_runs_are_averaged(name, capsys, stars):
    found = result(capsys, name, *SMALL, "--participation", "0.6", "--runs", "3")
    draws = json.loads(Path("here/draws.json").read_text())
    metric = "rows" if name == "secure-gram" else "auc"
    values = [draw["metrics"][metric] for draw in draws]
    assert len(values) == 3
    assert found["metrics"][metric] == pytest.approx(np.mean(values))


@pytest.mark.parametrize("name", METHODS)
def test_nodes_that_vanish_leave_an_exact_matrix(name, capsys, stars):
    arguments = [*CSV, "--min-support", "0", "--clients", "12", "--attempts", "9"]
    found = result(capsys, name, *arguments, "--drop", "0.1")
    assert {reason for r in found["failures"].values() for reason in r} == {"unreachable"}
    assert 8 < found["survivors"] <= 12
    if name == "secure-gram":
        assert found["metrics"]["max_abs_error"] == 0
    else:
        assert found["metrics"]["centralised_difference"] < 1e-9


def test_nodes_that_stay_away_end_the_run(capsys, stars):
    arguments = ["run", "fed-cfk", *SMALL, "--drop", "0.9", "--attempts", "2", "--quiet"]
    line = complaint(capsys, *arguments, "--out", "lost", code=1)
    assert "2 times in a row" in line
    assert not Path("lost/model.npz").exists()
    assert not Path("lost/result.json").exists()


def test_the_modes_of_the_paper_come_with_a_warning(capsys, stars):
    arguments = [*CSV, "--clients", "6", "--merge", "max", "--rounds", "2", "--out", "here"]
    assert run(["run", "fed-cfk", *arguments, "--request", "noisy"]) == 0
    text = " ".join(capsys.readouterr().err.split())
    assert "merge max is the paper's" in text
    assert "request noisy is the paper's" in text


# --- Bad input ------------------------------------------------------------------------------

TABLE = ["--data", "iris"]
BAD: list[tuple[str, list[str], str]] = [
    ("secure-gram", ["--kernel", "sinc"], "'sinc' is not one of 'linear', 'poly', 'rbf'"),
    ("fed-cfk", ["--kernel", "laplacian"], "'laplacian' is not one of 'linear'"),
    ("secure-gram", ["--degree", "3"], "degree is not for kernel linear; leave it out"),
    ("fed-cfk", ["--gamma", "1"], "gamma is not for kernel cosine; leave it out"),
    ("secure-gram", ["--coef0", "1"], "coef0 is not for kernel linear"),
    ("secure-gram", ["--coefficients", "1"], "coefficients is not for kernel linear"),
    ("secure-gram", ["--coefficients", "a"], "not a valid float"),
    ("secure-gram", ["--kernel", "series"], "coefficients"),
    ("secure-gram", ["--kernel", "poly", "--degree", "-1"], "degree is -1"),
    ("secure-gram", ["--kernel", "rbf", "--gamma", "-1"], "gamma is -1"),
    ("secure-gram", ["--kernel", "rbf", "--gamma", "0"], "gamma is 0"),
    ("secure-gram", ["--merge", "max", "--cohorts", "2"], "cohorts is for merge disjoint"),
    ("fed-cfk", ["--merge", "max", "--min-support", "3"], "min_support is for merge disjoint"),
    ("secure-gram", ["--merge", "mean"], "'disjoint', 'max'"),
    ("secure-gram", ["--no-secure"], "this method has secure sums only"),
    ("fed-cfk", ["--no-secure"], "a node's products are its ratings; leave out --no-secure"),
    (
        "fed-cfk",
        ["--users-per-client", "3", "--clients", "4"],
        "both clients and users-per-client are given; leave one of them out",
    ),
    ("secure-gram", [*TABLE, "--users-per-client", "3"], "users-per-client is for ratings, iris"),
    ("secure-gram", [*TABLE, "--min-rating", "3"], "min-rating is for ratings, iris is a table"),
    ("secure-gram", [*TABLE, "--rating", "a"], "rating is for ratings, iris is a table"),
    ("secure-gram", TABLE, 'features are not whole numbers of at least 0; use encoding "fixed-'),
    ("secure-gram", ["--data", "diabetes"], 'at least 0; use encoding "fixed-point"'),
    ("secure-gram", ["--data", "digits", "--bound", "8"], "exceed their declared bound of 8"),
    ("secure-gram", ["--data", "digits"], "exceed their declared bound of 1; declare a larger"),
    ("secure-gram", ["--bound", "1.5"], "encoding counts has whole numbers"),
    ("secure-gram", ["--bound", "0"], "bound is 0"),
    ("secure-gram", ["--encoding", "fixed-point", "--bound", "nan"], "bound is nan"),
    (
        "secure-gram",
        [*TABLE, "--encoding", "fixed-point", "--bound", "0.5"],
        "scaled features are beyond the bound 0.5; use a bound of at least 1",
    ),
    ("secure-gram", ["--encoding", "fixed-point", "--fraction-bits", "99"], "fraction_bits is 99"),
    ("secure-gram", ["--fraction-bits", "3"], "encoding counts has whole numbers"),
    ("secure-gram", ["--encoding", "fixed-point"], "ratings are counts; leave out --encoding"),
    ("secure-gram", ["--encoding", "floats"], "'counts', 'fixed-point'"),
    (
        "secure-gram",
        [*TABLE, "--encoding", "fixed-point", "--kernel", "conjunctive"],
        "kernel conjunctive is for zeros and ones; use encoding counts with bound 1",
    ),
    (
        "secure-gram",
        [*TABLE, "--encoding", "fixed-point", "--min-support", "3"],
        "min_support is for encoding counts",
    ),
    ("secure-gram", ["--rounds", "3"], "rounds is for merge max; add --merge max"),
    ("fed-cfk", ["--merge", "max", "--rounds", "0"], "rounds is 0; use at least 1"),
    ("fed-cfk", ["--participation", "0"], "participation is 0.0; use a value in (0, 1]"),
    ("secure-gram", ["--participation", "2"], "participation is 2.0; use a value in (0, 1]"),
    ("secure-gram", ["--cohorts", "0"], "cohorts is 0"),
    ("secure-gram", ["--cohorts", "11"], "20 nodes that take part do not make 11 cohorts"),
    ("fed-cfk", ["--cohorts", "11"], "do not make 11 cohorts of two or more; use fewer cohorts"),
    ("secure-gram", ["--cohorts", "6", "--participation", "0.5"], "10 nodes that take part do"),
    ("secure-gram", ["--clients", "1"], "a single client has nobody to sum with; use more clients"),
    ("fed-cfk", ["--clients", "1"], "a single client has nobody to sum with"),
    ("fed-cfk", ["--clients", "0"], "clients is 0; use at least 1"),
    ("fed-cfk", ["--users-per-client", "-2"], "users-per-client is -2; use at least 1"),
    ("fed-cfk", ["--users-per-client", "9999"], "a single client has nobody to sum with"),
    ("fed-cfk", ["--clients", "9999"], "9999 clients for 4043 users; use fewer clients"),
    ("secure-gram", [*TABLE, "--encoding", "fixed-point", "--clients", "5"], "4 columns cannot be"),
    ("secure-gram", [*TABLE, "--encoding", "fixed-point", "--clients", "1"], "use 2 to 4 clients"),
    ("fed-cfk", ["--threshold", "21"], "threshold is 21 for 20 parties; use 11 to 20"),
    ("secure-gram", ["--threshold", "12", "--cohorts", "2"], "threshold is 12 for 10 parties"),
    ("secure-gram", ["--min-cohort", "1"], "min_cohort is 1"),
    ("secure-gram", ["--min-cohort", "21"], "20 parties are too few for a secure sum"),
    ("secure-gram", ["--min-support", "-1"], "min_support is -1"),
    ("fed-cfk", ["--regularization", "0"], "regularization is 0"),
    ("fed-cfk", ["--regularization", "-1"], "regularization is -1"),
    ("fed-cfk", ["--request", "half"], "'full', 'noisy'"),
    ("fed-cfk", ["--hold-out", "first"], "'random', 'time'"),
    ("fed-cfk", ["--test-size", "1"], "the held-out share is 1; choose from 0 to below 1"),
    ("fed-cfk", ["--encoding", "counts"], "No such option"),
    ("secure-gram", ["--regularization", "1"], "No such option"),
    ("secure-gram", ["--label", "y"], "label is for tables, nyc-flights holds ratings; leave it"),
    ("secure-gram", ["--id", "y"], "id is for tables, nyc-flights holds ratings"),
    ("secure-gram", ["--test-size", "0.5"], "test-size is for tables, nyc-flights holds ratings"),
    ("secure-gram", ["--cost", "2"], "cost is for tables, nyc-flights holds ratings"),
    ("secure-gram", ["--cost", "0"], "cost is 0.0; use a positive number"),
    ("secure-gram", ["--learner", "tree"], "'svc', 'ridge'"),
    ("secure-gram", ["--user", "a"], "the columns of the built-in interactions nyc-flights are"),
    ("fed-cfk", ["--data", "iris"], "there are no built-in interactions 'iris'; choose from nyc-"),
    ("secure-gram", ["--data", "mars"], "there is no built-in data set 'mars'"),
    ("fed-cfk", ["--data", "gone.csv"], "there is no file gone.csv; check the path"),
    ("secure-gram", ["--data", "gone.data"], "there is no file gone.data; check the path"),
    ("fed-cfk", ["--min-rating", "7"], "no rating is at least 7; choose a lower one"),
    ("secure-gram", ["--attempts", "0"], "attempts is 0"),
    ("secure-gram", ["--drop", "1"], "drop is 1.0"),
    ("secure-gram", ["--runs", "0"], "runs is 0"),
    ("secure-gram", ["--seed", "-1"], "seed is -1"),
    ("secure-gram", ["--timeout", "0"], "timeout is 0"),
    ("secure-gram", ["--engine", "moon"], "'in-process', 'ray'"),
    ("secure-gram", ["--resume", "nowhere"], "nowhere is not the folder of a run"),
    ("secure-gram", ["--json", "no/such/folder.json"], "cannot be written"),
]


@pytest.mark.parametrize(("name", "arguments", "text"), BAD)
def test_bad_options_are_one_line(name, arguments, text, capsys):
    assert text in complaint(capsys, "run", name, *arguments, "--quiet")
    assert not Path("runs").exists()  # found before anything is made


FILES = {
    "twice.csv": "user,item\ns3cret,1\ns3cret,1\nb,2\n",
    "gap.csv": "user,item\ns3cret,1\n,2\n",
    "nan.csv": "user,item,rating\ns3cret,1,nan\nb,2,3\n",
    "one.csv": "user,item\ns3cret,1\ns3cret,2\n",
    "empty.csv": "",
    "short.csv": "user,item\ns3cret,1\nb\n",
    "other.csv": "person,thing\ns3cret,1\nb,2\n",
    "head.csv": "s3cret,1\nb,2\n",
}


@pytest.mark.parametrize(
    ("path", "more", "text"),
    [
        ("twice.csv", [], "twice.csv has 1 rows that repeat a pair of user and item"),
        ("gap.csv", [], "the user id is empty in 1 rows of gap.csv, for example in row 2"),
        ("nan.csv", [], "the rating is not a finite number in 1 rows of nan.csv"),
        ("one.csv", [], "users in one.csv: 1, items: 2; give at least 2 of each"),
        ("empty.csv", [], "empty.csv is empty; give a file with data"),
        ("short.csv", [], "line 3 of short.csv has 1 columns instead of 2; mend it"),
        ("other.csv", [], "no columns that may be the user; choose one with --user: person, thing"),
        ("other.csv", ["--user", "person", "--item", "x"], "other.csv has no item column 'x'"),
        ("other.csv", ["--user", "person", "--item", "person"], "has two of the roles"),
        ("head.csv", [], "the first line of head.csv holds data instead of column names"),
    ],
)
@pytest.mark.parametrize("name", METHODS)
def test_bad_ratings_are_one_line_without_their_content(name, path, more, text, capsys):
    Path(path).write_text(FILES[path])
    if name == "secure-gram" and not more:  # else it is a table
        if path in ("other.csv", "head.csv"):
            return
        more = ["--user", "user", "--item", "item"]
        if path == "nan.csv":
            more += ["--rating", "rating"]
    line = complaint(capsys, "run", name, "--data", path, *more, "--quiet")
    assert text in line
    assert "s3cret" not in line
    assert not Path("runs").exists()


def test_no_item_with_support_ends_the_run(capsys):
    arguments = ["run", "secure-gram", "--min-support", "5000", "--quiet"]
    assert "no item is in 5000 rows; lower min_support" in complaint(capsys, *arguments, code=1)


# --- Predictions ----------------------------------------------------------------------------


def read(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_recommendations_for_users_of_a_file(capsys, stars):
    """Users of the run get from `predict` what their own nodes recommended."""
    result(capsys, "fed-cfk", *SMALL, "--test-size", "0")
    own = [
        row
        for k in range(6)
        for row in read(f"here/private_state/recommendations/partition-{k}.csv")
    ]
    assert run(["predict", "here", "--data", "r.csv", "--out", "p.csv"]) == 0
    assert f"{USERS} predictions: p.csv" in capsys.readouterr().err
    found = read("p.csv")
    assert sorted(map(str, found)) == sorted(map(str, own))

    strangers = stars[:3].copy()
    strangers[1] = 0
    strangers[2] = 0
    strangers[2, 5] = 4  # an item that is not in the kernel
    strangers[1, [0, 1]] = 5
    write_ratings("new.csv", strangers)
    write_ratings("new.data", strangers)
    for path in ("new.csv", "new.data"):
        assert run(["predict", "here/model.npz", "--data", path]) == 0
        text = " ".join(capsys.readouterr().err.split())
        few = (stars > 0)[:, 5].sum() < 3
        assert f"{3 - few} predictions: here/predictions.csv" in text
        assert ("1 left out" in text) == few
        rows = read("here/predictions.csv")
        assert {row["user"] for row in rows} == {"1", "2"} | (set() if few else {"3"})
        first = [row for row in rows if row["user"] == "1"]
        assert first == [row for row in own if row["user"] == "1"]


def test_recommendations_for_a_single_user_who_rated_unknown_items(capsys, stars):
    """Neither what the user rated, if badly, nor what is not in the kernel is recommended."""
    result(capsys, "fed-cfk", *SMALL, "--rating", "stars", "--min-rating", "3")
    kept = {str(i + 1) for i in load_model(Path("here/model.npz"))[0]["items"].tolist()}
    assert 3 < len(kept) < ITEMS
    head = "stars,what,note,who,when"
    ratings = {"1": 5, "2": 1, "s3cret-a": 5, "s3cret-b": 1}
    assert {"1", "2"} < kept
    Path("new.csv").write_text(
        "\n".join([head, *(f"{r},{i},x,s3cret-user,monday" for i, r in ratings.items())])
    )
    assert run(["predict", "here", "--data", "new.csv"]) == 0
    text = " ".join(capsys.readouterr().err.split())
    assert "left out 2 rows of new.csv that name 2 unknown items" in text
    assert "1 predictions: here/predictions.csv" in text
    assert "s3cret" not in text
    rows = read("here/predictions.csv")
    assert list(rows[0]) == ["user", "rank", "item", "score"]
    assert {row["user"] for row in rows} == {"s3cret-user"}
    assert {row["item"] for row in rows} == kept - {"1", "2"}
    assert [int(row["rank"]) for row in rows] == list(range(1, len(rows) + 1))

    more = [f"{r},{i},x,{user},1" for user, i, r in (("b", "1", 2), ("c", "900", 5), ("d", 3, 4))]
    Path("new.csv").write_text("\n".join([head, "5,1,x,s3cret-user,1", *more]))
    assert run(["predict", "here", "--data", "new.csv", "--out", "p.csv"]) == 0
    text = " ".join(capsys.readouterr().err.split())
    assert "left out 1 rows of new.csv that name 1 unknown items" in text
    assert "2 predictions: p.csv, 2 left out" in text
    assert {row["user"] for row in read("p.csv")} == {"s3cret-user", "d"}


def test_ratings_to_predict_for_have_the_columns_of_the_run(capsys, stars):
    result(capsys, "fed-cfk", *SMALL, "--rating", "stars", "--min-rating", "3", out="cfk")
    write_ratings("u.data", stars)
    plain = ["--data", "u.data", "--clients", "6", "--min-support", "3", "--min-rating", "3"]
    result(capsys, "fed-cfk", *plain, out="plain")
    for name, content in {
        "other.csv": "user,item,stars\n1,1,5\n",
        "unrated.csv": "who,what\n1,1\n",
        "who.csv": "who,what,stars\n1,1,5\n",
        "u.inter": "session:token\titem_id:token\n1\t1\n",
        "two.csv": "user,item\n1,1\n",
        "low.csv": "user,item,rating\n1,1,2\n",
        "head.csv": "user,item,rating\n",
    }.items():
        Path(name).write_text(content)
    for folder, name, text in (
        ("cfk", "other.csv", "other.csv has no user column 'who'; give the columns of the run: "
         "who, what, stars"),
        ("cfk", "unrated.csv", "unrated.csv has no rating column 'stars'; give the columns of"),
        ("plain", "who.csv", "who.csv has no columns that may be the user; give the columns of "
         "the run: user, item"),
        ("plain", "u.inter", "u.inter has no columns that may be the user; give the columns of"),
        ("plain", "two.csv", "two.csv has no ratings, the run counts those of at least 3; add"),
        ("plain", "low.csv", "low.csv rates no item of the kernel 3 or more; give ratings of"),
        ("plain", "head.csv", "head.csv has no rows; give a file with data"),
    ):  # fmt: skip
        line = complaint(capsys, "predict", folder, "--data", name)
        assert text in line
        assert "--" not in line


def test_predictions_of_a_table_are_those_of_scikit_learn(capsys):
    """The same machine on pooled features: rbf kernel and C of the run."""
    from sklearn.svm import SVC

    rng = np.random.default_rng(3)
    x = rng.normal(50.0, 20.0, (130, 5))
    y = (x.sum(axis=1) > 250.0) * 1.0
    names = list("abcde")
    np.savez("t.npz", X=x[:80], y=y[:80], X_test=x[80:100], y_test=y[80:100], feature_names=names)
    arguments = ["--data", "t.npz", "--encoding", "fixed-point", "--fraction-bits", "28"]
    arguments += ["--kernel", "rbf", "--gamma", "1.5", "--cost", "10"]
    found = result(capsys, "secure-gram", *arguments)
    low, high = x[:80].min(axis=0), x[:80].max(axis=0)
    scaled = np.clip((x - low) / (high - low), 0.0, 1.0)
    machine = SVC(kernel="rbf", gamma=1.5, C=10.0, tol=1e-5).fit(scaled[:80], y[:80])
    assert found["metrics"]["test_accuracy"] == machine.score(scaled[80:100], y[80:100])

    with open("new.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["note", "id", *reversed(names)])
        for k, row in enumerate(x[100:].tolist()):
            writer.writerow([k, f"r{k}", *reversed(row)])
        writer.writerow([0, "gap", "", 1, 2, 3, 4])
    assert run(["predict", "here", "--data", "new.csv", "--id", "id", "--out", "p.csv"]) == 0
    assert "30 predictions: p.csv, 1 left out" in capsys.readouterr().err
    rows = read("p.csv")
    assert [row["id"] for row in rows] == [f"r{k}" for k in range(30)]
    expected = machine.decision_function(scaled[100:])
    ours = [float(row["output_0"]) for row in rows]
    np.testing.assert_allclose(ours, expected, rtol=0.0, atol=1e-3)  # of LIBSVM
    assert [float(row["class"]) for row in rows] == machine.predict(scaled[100:]).tolist()


def test_predictions_of_numbers_and_of_counts(capsys):
    rng = np.random.default_rng(4)
    x = rng.integers(0, 4, (90, 6))
    y = 100.0 + x[:, 0] * 3.5 - x[:, 5]
    np.savez("t.npz", X=x[:70], y=y[:70], feature_names=list("abcdef"))
    arguments = ["--data", "t.npz", "--bound", "3", "--learner", "ridge", "--min-support", "0"]
    result(capsys, "secure-gram", *arguments, "--cost", "0.00001", "--test-size", "0.1")
    np.savetxt("new.csv", x[70:], "%d", ",", header="a,b,c,d,e,f", comments="")
    assert run(["predict", "here", "--data", "new.csv", "--quiet"]) == 0
    rows = read("here/predictions.csv")
    ours = [float(row["prediction"]) for row in rows]
    np.testing.assert_allclose(ours, y[70:], rtol=0.0, atol=25.0)  # no intercept
    assert np.corrcoef(ours, y[70:])[0, 1] > 0.5


def test_what_cannot_be_predicted_is_one_line(capsys, stars):
    result(capsys, "fed-cfk", *SMALL, out="cfk")
    result(capsys, "secure-gram", *SMALL, out="gram")
    result(capsys, "secure-gram", "--data", "iris", "--encoding", "fixed-point", out="iris")
    Path("few.csv").write_text("who,what\n1,900\n2,901\n")
    for arguments, text in (
        (["cfk", "--data", "few.csv"], "few.csv names no item of the kernel; give ratings of"),
        (["cfk", "--data", "gone.csv"], "there is no file gone.csv"),
        (["cfk", "--data", "r.csv", "--id", "who"], "ratings have no ids of records; leave out"),
        (["gram", "--data", "r.csv"], "ratings have no labels to predict; use fedkern run fed-cfk"),
        (["iris", "--data", "few.csv"], "few.csv lacks 4 columns of the model, the first is"),
        (["nowhere", "--data", "few.csv"], "nowhere is not the folder of a run"),
    ):
        assert text in complaint(capsys, "predict", *arguments)


# --- Runs that break off --------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_resuming_a_finished_run_shows_its_result(name, capsys, stars):
    found = result(capsys, name, *SMALL)
    assert run(["run", name, "--resume", "here", "--quiet", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    other = METHODS[METHODS.index(name) - 1]
    assert f"here holds a run of {name}" in complaint(capsys, "run", other, "--resume", "here")


@pytest.mark.parametrize(
    ("name", "pulls"),
    [
        *(("secure-gram", pulls) for pulls in range(6)),
        *(("fed-cfk", pulls) for pulls in (4, 5, 6, 7)),  # the first four are those of secure-gram
    ],
)
def test_a_run_that_was_interrupted_is_resumed_or_started_again(
    name, pulls, capsys, stars, monkeypatch
):
    arguments = [*SMALL, "--participation", "0.8"]
    whole = result(capsys, name, *arguments, out="whole")
    real, left = engines.InProcessGrid.pull_messages, iter(range(pulls))

    def pull(grid: Any, message_ids: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(grid, message_ids)

    with monkeypatch.context() as patch:
        patch.setattr(engines.InProcessGrid, "pull_messages", pull)
        assert run(["run", name, *arguments, "--quiet", "--out", "broken"]) == 130
    assert "--resume" in capsys.readouterr().err
    assert run(["run", name, "--resume", "broken", "--quiet"]) == 0
    found = json.loads(Path("broken/result.json").read_text())
    assert found["metrics"] == pytest.approx(whole["metrics"], rel=0, abs=1e-9)
    for ours, theirs in zip(gram("broken"), gram("whole"), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert found["history"] == whole["history"]


def test_a_run_that_was_killed_is_resumed_with_the_same_result(capsys, stars):
    rng = np.random.default_rng(0)
    write_ratings("many.data", (rng.random((1200, 60)) < 0.3) * 1)
    arguments = ["--data", "many.data", "--users-per-client", "60", "--kernel", "linear"]
    whole = result(capsys, "fed-cfk", *arguments, out="whole")
    command = [sys.executable, "-m", "fedkern_flwr.simulations.cli.main", "run", "fed-cfk"]
    process = subprocess.Popen(
        [*command, *arguments, "--quiet", "--out", "killed"], env=dict(os.environ)
    )
    deadline = time.monotonic() + 60
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if summed("killed"):  # the recommendations take longest
                os.kill(process.pid, signal.SIGKILL)
                break
            time.sleep(0.002)
    finally:
        process.kill()
        assert process.wait(timeout=30) == -signal.SIGKILL  # in the middle of it
    assert not Path("killed/result.json").exists()
    line = complaint(capsys, "run", "fed-cfk", *SMALL, "--out", "killed")
    assert "holds an unfinished run; go on with --resume killed" in line
    assert run(["run", "fed-cfk", "--resume", "killed", "--quiet", "--json", "-"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    np.testing.assert_array_equal(gram("killed")[0], gram("whole")[0])
    assert resumed["metrics"] == pytest.approx(whole["metrics"], rel=0, abs=1e-9)


def summed(out: str) -> bool:
    try:
        return load_arrays(Path(out) / "checkpoint-0.npz")[1]["saved"]["stage"] == "gram"
    except CheckpointError:
        return False

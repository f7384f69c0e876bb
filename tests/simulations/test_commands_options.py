"""Options of runs do what they say: the model stays the same, or becomes another.

Here those of the data and of who holds it, and a few of each method: that all of them reach it is
in tests/contracts/test_options.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.gram.matrix import unpack
from fedkern_flwr.model_file import load_model

pytestmark = pytest.mark.usefixtures("in_tmp")
Result = dict[str, Any]


def gram(out: Path | str = "here") -> tuple[np.ndarray, np.ndarray]:
    """Return the Gram matrix of a run and its items."""
    arrays, _ = load_model(Path(out) / "model.npz")
    return unpack(arrays["gram"], len(arrays["items"])), arrays["items"]


def widths() -> np.ndarray:
    return load_model(Path("here/model.npz"))[0]["gammas"]


def coefficients() -> np.ndarray:
    return load_model(Path("here/model.npz"))[0]["coefficients"]


SAME, OTHER, ANY = True, False, None
Check = Callable[[Result], Any]
#: Options, whether the model is that of the run without them, and what else is true of the result.
HYBRID: dict[str, tuple[bool | None, Check]] = {
    "--clients 5": (SAME, lambda r: (r["config"]["hospitals"], r["config"]["clients"]) == (3, 5)),
    "--no-own-block --centres 3": (OTHER, lambda r: "clinical" not in r["config"]["columns"]),
    "--landmarks 9": (OTHER, lambda r: coefficients().shape == (9, 1)),
    "--sampling N": (OTHER, lambda r: r["exchanges"] == 6),
    "--gamma 2": (OTHER, lambda r: set(widths()) == {2.0}),
    "--landmark-gamma": (OTHER, lambda r: 0.125 <= min(widths()) < 0.25 < max(widths()) <= 0.5),
    "--penalty rkhs": (OTHER, bool),
    "--tune off": (OTHER, lambda r: set(widths()) == {0.25} and "tuned" not in r),
    "--tune gcv": (ANY, lambda r: r["tuned"]["by"] == "generalised cross-validation"),
    "--solver normal-equations": (SAME, lambda r: r["metrics"]["iterations"] == 0),
    "--solver cg --preconditioner-rank 0 --tolerance 0.01": (
        ANY, lambda r: 1e-10 < r["metrics"]["residual"] <= 0.01
    ),
    "--hospitals 1 --allow-single --sampling U": (
        ANY, lambda r: "the only hospital" in r["privacy"]["server_sees"][0]
    ),
    "--centres 0": (OTHER, lambda r: r["survivors"] == 2),
    "--missing neutral": (SAME, bool),
    "--test-size 0.5": (OTHER, lambda r: sum(r["config"]["held_out_rows"]) == 75),
    "--attempts 9 --node-timeout 5 --timeout 100": (SAME, bool),
}  # fmt: skip
VERTICAL: dict[str, tuple[bool | None, Check]] = {
    "--parties 2 --allow-single": (ANY, lambda r: r["survivors"] == 2),
    "--features 60": (ANY, bool),
    "--kernel laplacian --gamma 1": (ANY, lambda r: r["metrics"]["gamma"] == 1),
    "--phase-bits 32": (ANY, lambda r: r["metrics"]["centralised_difference"] < 1e-6),
    "--missing drop-row": (ANY, lambda r: r["config"]["rows"] == 113),
    "--train-rows 60": (ANY, lambda r: r["config"]["rows"] == 60),
    "--schedule streaming --rounds 30 --directions 4 --batch 8": (
        ANY, lambda r: r["exchanges"] == 34
    ),
    "--schedule streaming --rounds 25 --evaluate-every 10": (
        ANY, lambda r: [row["round"] for row in r["history"]] == [10, 20, 25]
    ),
    "--schedule streaming --rounds 25 --active-parties 4": (
        ANY, lambda r: r["config"]["active_parties"] == 4
    ),
}  # fmt: skip
RATED: dict[str, tuple[bool | None, Check]] = {
    "--users-per-client 1": (
        ANY, lambda r: r["config"]["clients"] == r["metrics"]["rows"] == 24
    ),
    "--kernel conjunctive --degree 3": (ANY, bool),
    "--kernel series --coefficients 0 --coefficients 1": (
        ANY, lambda r: r["config"]["options"]["coefficients"] == [0.0, 1.0]
    ),
    "--min-support 0": (
        OTHER,
        lambda r: r["metrics"]["items"] == 14 and "in how many rows" not in str(r["privacy"]),
    ),
    "--cohorts 3": (ANY, lambda r: len(r["privacy"]["cohorts"]) >= 3),
    "--participation 0.5": (OTHER, lambda r: r["survivors"] == 3 and r["metrics"]["rows"] < 24),
    "--rounds 3": (
        ANY, lambda r: [row["round"] for row in r["history"]] == [1, 2, 3] and r["survivors"] == 6
    ),
    "--rating stars --min-rating 4": (OTHER, lambda r: r["metrics"]["rows"] == 24),
    "--threshold 6 --min-cohort 3": (
        SAME, lambda r: r["privacy"]["cohorts"][0]["threshold"] == 6
    ),
    "--attempts 9 --node-timeout 5 --timeout 99 --time when": (SAME, bool),
}  # fmt: skip
RECOMMENDED: dict[str, tuple[bool | None, Check]] = {
    "--learner ease --regularization 5": (SAME, lambda r: "tuned" not in r),
    "--learner cf-komd --clients 3": (
        ANY, lambda r: r["tuned"]["by"] == "held-out ratings"
    ),
    "--time when --hold-out time": (OTHER, bool),
    "--test-size 0": (
        OTHER, lambda r: r["metrics"]["evaluated_users"] == 0 and "auc" not in r["metrics"]
    ),
    "--runs 2 --resplit": (SAME, lambda r: r["config"]["runs"] == 2),
}  # fmt: skip
HIERARCHICAL: dict[str, tuple[bool | None, Check]] = {
    "--group-sizes 5,1 --allow-single": (SAME, bool),
    "--architecture centralised --groups 1": (SAME, lambda r: r["survivors"] == 6),
    "--model rbf --features 20 --gamma 0.1": (OTHER, bool),
    "--staleness 2 --delay exponential:0.002,0.01": (SAME, bool),
    "--groups 3 --lost-groups leave-out": (SAME, lambda r: r["survivors"] == 9),
    "--split dirichlet --alpha 1": (SAME, bool),
    "--partition vertical --group-sizes 2,4": (SAME, lambda r: r["survivors"] == 9),
}
CASES = {
    "fed-cg": HYBRID,
    "fdskl": VERTICAL,
    "secure-gram": RATED,
    "fed-cfk": RATED | RECOMMENDED,
    "hierarchical-svm": HIERARCHICAL,
}


def start_of(name: str, commands: Any, arguments: str) -> list[str]:
    """Return method and options of the run that a case changes."""
    found = commands.small(name)
    if "users-per-client" in arguments:
        del found[found.index("--clients") : found.index("--clients") + 2]
    if "streaming" in arguments:
        return [name, "--data", "iris", "--positive", "2", "--gamma", "2", "--loss", "square"]
    return found


def check_metrics(name: str, arguments: str, found: Result, changes: bool | None) -> None:
    """Every run is close to the pooled data, and has learned something."""
    metrics = found["metrics"]
    if name == "secure-gram":
        assert metrics["max_abs_error"] == 0
    elif name == "fed-cfk":
        if "auc" in metrics:
            assert (0.0 if "hold-out" in arguments else 0.3) < metrics["auc"] <= 1.0
            assert metrics["centralised_difference"] < 1e-9
    elif name == "hierarchical-svm":  # the pooled optimum of the run without options
        optimum = pytest.approx(53.44856475815867, rel=1e-6)
        assert (metrics["centralised_objective"] == optimum) == changes
        assert abs(metrics["objective_gap"]) < 5e-3
    else:
        rounded = 0.5 if "--tolerance" in arguments else 1e-6 if name == "fed-cg" else 1e-2
        assert metrics["centralised_difference"] < rounded
        if "streaming" not in arguments:  # so few steps learn little
            assert 0.8 < metrics["test_accuracy"] <= 1.0


@pytest.mark.parametrize(
    ("name", "arguments"), [(name, arguments) for name, own in CASES.items() for arguments in own]
)
def test_an_option_changes_what_it_should(name, arguments, finished, commands, differs):
    same, check = CASES[name][arguments]
    start = start_of(name, commands, arguments)
    found = commands.result(*start, *arguments.split())
    check_metrics(name, arguments, found, same)
    assert check(found), found
    if name != "hierarchical-svm" and same is not ANY:
        assert differs("here", finished(name).folder, 1e-6) != same


def test_few_rounds_end_the_run_and_tolerance_ends_it_sooner(finished, commands):
    found = []
    for more in ("--rounds 3", "--tolerance 0.05"):
        small = commands.small("hierarchical-svm")
        found.append(commands.result(*small, *more.split(), out=more)["metrics"])
    few, loose, tight = *found, finished("hierarchical-svm").result["metrics"]
    assert (few["iterations"], few["converged"]) == (3, False)
    assert loose["iterations"] < tight["iterations"]
    assert abs(tight["objective_gap"]) < abs(loose["objective_gap"])


# -- single methods


@pytest.mark.parametrize(
    ("name", "wide"),
    [
        ("ofskl", ["--step-size", "paper", "--regularization", "8"]),  # the error rises
        ("per-fed-avg", ["--inner-step", "30"]),  # it jumps, and falls till the end
    ],
)
def test_an_online_run_that_diverges_ends_with_its_checkpoint(commands, name, wide):
    steps = [*commands.small(name), *wide, "--out", "wide", "--quiet"]
    line = commands.complaint("run", *steps, "--checkpoint-every", "1", code=1)
    assert line.endswith("[FK-RUN-DIVERGED]")
    assert Path("wide/checkpoint-0.npz").is_file()
    found = commands.result(*steps[:-3], "--no-stop-diverged", out="on")
    assert found["metrics"]["mse"] > 10 * 0.25
    assert found["no_better_than"] == "the mean of all labels"


def test_the_matrix_is_exact_and_leaves_out_items_of_few_users(finished, stars, commands):
    matrix, items = gram(finished("secure-gram").folder)
    x = (stars > 0).astype(int)
    assert items.tolist() == np.flatnonzero(x.sum(axis=0) >= 3).tolist()
    np.testing.assert_array_equal(matrix, x[:, items].T @ x[:, items])
    few = commands.complaint("run", "secure-gram", "--min-support", "5000", "--quiet", code=1)
    assert few.endswith("[FK-ITEMS-SUPPORT]")


@pytest.mark.parametrize("path", ["u.data", "ratings.dat", "r.inter", "plain.csv", "r.parquet"])
def test_ratings_of_every_kind_give_the_same(path, stars, tables, commands):
    expected = commands.result(*commands.small("fed-cfk"), "--rating", "stars", "--min-rating", "3")
    columns = []
    if path == "r.parquet":
        from pyarrow import csv, parquet

        parquet.write_table(csv.read_csv(commands.ratings), path)
        columns = ["--user", "who", "--item", "what", "--rating", "stars"]
    else:
        head = {"r.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float"}
        tables.ratings(path, stars, head.get(path, "userId,movieId,rating,timestamp"))
    arguments = ["--data", path, "--clients", "6", "--min-support", "3", "--min-rating", "3"]
    found = commands.result("fed-cfk", *arguments, *columns, out="other")
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=0, abs=1e-9)
    np.testing.assert_array_equal(gram("other")[0], gram()[0])
    if path == "u.data":  # told from a table by its name
        found = commands.result("secure-gram", "--data", path, "--clients", "6")["metrics"]
        assert (found["max_abs_error"], found["rows"]) == (0, 24)


@pytest.mark.parametrize(
    ("name", "more", "close"),
    [
        ("fed-cg", [], 1e-8),
        ("fdskl", ["--features", "100"], 5e-3),
        ("hierarchical-svm", ["--users", "4", "--rounds", "25"], 1.0),
    ],
)
def test_more_classes_and_regressions(name, more, close, commands):
    found = commands.result(name, "--data", "wine", *more)
    assert found["config"]["classes"] == [0.0, 1.0, 2.0]
    assert found["metrics"]["test_accuracy"] > 0.9
    ridge = {"hierarchical-svm": ["--model", "ridge"], "fdskl": ["--parties", "3"]}.get(name, [])
    iris = ["--data", "iris", "--target", "petal width (cm)"]
    found = commands.result(name, *iris, *more, *ridge, out="iris")["metrics"]
    assert 0.05 < found["test_rmse"] < 0.5  # centimetres
    assert "test_accuracy" not in found
    assert found.get("centralised_difference", 0.0) < close
    none = commands.result(*commands.small(name), "--test-size", "0", out="none")["metrics"]
    assert not {"test_accuracy", "centralised_difference"} & none.keys()


@pytest.mark.parametrize("missing", ["drop-row", "neutral"])
def test_missing_blocks_are_counted_and_shown(missing, tables, commands):
    """Of columns that a centre has, the row stays and lacks a block."""
    tables.write("t.csv", tables.columns(**tables.holes("c", 4, 30, 55)))
    table = ["--data", "t.csv", "--label", "y", "--id", "id", "--site", "town", "--landmarks", "12"]
    arguments = ["run", "fed-cg", *table, "--missing", missing]
    if missing == "neutral":
        assert commands.complaint(*arguments, "--quiet").endswith("[FK-PARTIES-ALONE]")
    commands.shown(*arguments, "--centres", "3", "--out", "here")
    found = json.loads(Path("here/result.json").read_text())
    hospitals = found["matched"]["hospitals"].values()
    left_out = 3 if missing == "drop-row" else 0
    assert sum(h["training_rows"] + h["held_out_rows"] for h in hospitals) == 60 - left_out
    assert sum(h["dropped_rows"] for h in hospitals) == left_out
    lacking = sum(sum(h["rows_without_block"].values()) for h in hospitals)
    assert lacking == 3 - left_out
    assert found["metrics"]["centralised_difference"] < 1e-8

"""`fedkern run fed-cg`: every option, every file, and one clear line for every bad input."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.checkpoint import load_arrays
from fedkern_flwr.errors import CheckpointError
from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations import engines
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.methods.registry import family, method, options

RUN = ["run", "fed-cg"]
#: Two classes, well conditioned, so that solvers can be compared.
SMALL = ["--data", "iris", "--positive", "2", "--landmarks", "16", "--regularization", "0.05"]


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def result(capsys, *arguments: str, out: str = "here") -> dict[str, Any]:
    """Run and return what is printed, which is JSON and nothing else."""
    capsys.readouterr()
    assert run([*RUN, *arguments, "--out", out, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def coefficients(out: str = "here") -> np.ndarray:
    with np.load(Path(out) / "model.npz", allow_pickle=False) as model:
        return model["coefficients"]


def complaint(capsys, *arguments: str, code: int = 2) -> str:
    """Run what must fail; return its single line."""
    capsys.readouterr()
    assert run([*RUN, *arguments, "--quiet"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("fedkern: ")
    return lines[0]


@pytest.fixture
def base(capsys) -> dict[str, Any]:
    return result(capsys, *SMALL, "--quiet", out="base")


def write_table(path: str, **changes: Any) -> list[str]:
    """Write 60 rows with ids, sites and six columns; return the options that read them."""
    rng = np.random.default_rng(7)
    x = rng.uniform(0.0, 9.0, (60, 6))
    columns: dict[str, list[Any]] = {"id": [f"s3cret-{i}" for i in range(60)]}
    columns["town"] = ["x", "y", "z"] * 20
    columns |= {name: list(map(repr, x[:, j].tolist())) for j, name in enumerate("abcdef")}
    columns["y"] = [int(total > 27.0) for total in x.sum(axis=1)]
    for name, cells in changes.items():
        columns[name] = cells if isinstance(cells, list) else [cells] * 60
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return ["--data", path, "--label", "y", "--id", "id", "--site", "town", "--landmarks", "12"]


def with_holes(column: str, rows: list[int], text: str = "") -> dict[str, list[Any]]:
    """Return a change of a table: cells of a column are empty."""
    cells: list[Any] = [repr((31.0 * i) % 9.0) if column != "y" else i % 2 for i in range(60)]
    for row in rows:
        cells[row] = text
    return {column: cells}


# --- What a run prints and leaves -----------------------------------------------------------


def test_json_alone_is_printed_with_all_its_keys(capsys):
    assert run([*RUN, *SMALL, "--out", "here", "--json", "-"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert "accuracy on held-out rows" in captured.err
    assert found["method"] == "fed-cg"
    assert (found["engine"], found["seed"]) == ("in-process", 0)
    assert {"method", "engine", "seed", "config", "versions", "metrics", "history"} <= set(found)
    assert {"exchanges", "bytes_up", "bytes_down", "seconds", "survivors"} <= set(found)
    assert {"privacy", "artifacts", "matched"} <= set(found)
    metrics = found["metrics"]
    assert {"test_accuracy", "iterations", "residual", "centralised_difference"} <= set(metrics)
    assert 0.9 < metrics["test_accuracy"] <= 1.0
    assert metrics["iterations"] == 0
    assert metrics["residual"] < 1e-10
    assert 0.0 < metrics["centralised_difference"] < 1e-8
    assert [row["round"] for row in found["history"]] == [1]
    assert found["exchanges"] == 5
    assert found["survivors"] == 4
    assert found["bytes_up"] > 105 * 16 * 8  # masked distances, at least
    assert "sums over the hospitals" in found["privacy"]["server_sees"][0]
    kinds = {row["kind"] for row in found["privacy"]["seen"]["server"]}
    assert "masked" in kinds
    assert "plain" not in kinds
    config = found["config"]
    assert config["columns"]["clinical"] == ["sepal length (cm)", "sepal width (cm)"]
    assert config["rows"] == [53, 52]
    assert found["matched"]["hospitals"]["0"]["training_rows"] == 53
    assert json.loads(Path("here/result.json").read_text()) == found
    for artifact in found["artifacts"].values():
        assert (Path("here") / artifact).is_file()


def test_quiet_shows_nothing_and_json_goes_to_a_file(capsys):
    assert run([*RUN, *SMALL, "--quiet", "--json", "found.json"]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
    (folder,) = Path("runs").glob("fed-cg-*")
    assert json.loads(Path("found.json").read_text()) == json.loads(
        (folder / "result.json").read_text()
    )


def test_files_of_a_run(capsys):
    found = result(capsys, *SMALL, "--solver", "cg", "--quiet")
    with np.load("here/model.npz", allow_pickle=False) as model:
        assert model["coefficients"].shape == (16, 1)
        assert model["gammas"].tolist() == [0.25]
    arrays, meta = load_model(Path("here/model.npz"))
    assert set(arrays) == {"coefficients", "gammas"}  # never landmarks
    assert (meta["kernel"], meta["blocks"]) == ("rbf", ["centre 1", "centre 2", "clinical"])
    scaling = json.loads(Path("here/scaling.json").read_text())
    assert len(scaling["x_min"]) == len(scaling["columns"]) == 4
    assert found["artifacts"]["residual_plot"] == "plots/residual.png"
    assert Path("here/plots/residual.png").read_bytes().startswith(b"\x89PNG")
    assert [row["round"] for row in found["history"]] == list(
        range(1, found["metrics"]["iterations"] + 1)
    )
    for state in Path("here/private_state").glob("*/*"):
        assert state.stat().st_mode & 0o077 == 0
        assert state.suffix != ".kernel"  # erased with the run


def test_help_names_every_option(capsys):
    assert run([*RUN, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "hospitals" in text
    promised = (
        "hospitals centres landmarks sampling kernel gamma landmark-gamma regularization penalty "
        "protocol solver preconditioner-rank init tolerance missing allow-single data label id "
        "site target engine clients split seed test-size secure drop out json resume quiet"
    )
    declared = {o.flag.removeprefix("--") or o.name.replace("_", "-") for o in every_option()}
    assert set(promised.split()) <= declared
    for option in every_option():
        assert option.help, option.name


def every_option() -> list[Any]:
    return [*options(method("fed-cg")), *family("fed-cg").parameters()]


# --- Every option does what it says ---------------------------------------------------------

SAME, OTHER = True, False
CASES: dict[str, tuple[list[str], bool]] = {
    # options, and whether the model is that of the base run
    "hospitals": (["--hospitals", "3"], SAME),
    "clients": (["--clients", "5"], SAME),
    "split": (["--split", "dirichlet", "--alpha", "5"], SAME),
    "centres": (["--centres", "3"], OTHER),
    "own block": (["--no-own-block", "--centres", "3"], OTHER),
    "landmarks": (["--landmarks", "9"], OTHER),
    "sampling N": (["--sampling", "N"], OTHER),
    "sampling P": (["--sampling", "P"], OTHER),
    "kernel": (["--kernel", "laplacian"], OTHER),
    "gamma": (["--gamma", "2"], OTHER),
    "landmark gamma": (["--landmark-gamma"], OTHER),
    "regularization": (["--regularization", "0.5"], OTHER),
    "penalty": (["--penalty", "rkhs"], OTHER),
    "naive": (["--protocol", "naive"], SAME),
    "chain": (["--protocol", "chain"], SAME),
    "secure": (["--secure", "--protocol", "secure"], SAME),
    "not secure": (["--no-secure", "--protocol", "naive"], SAME),
    "cg": (["--solver", "cg"], SAME),
    "normal equations": (["--solver", "normal-equations"], SAME),
    "rank": (["--solver", "cg", "--preconditioner-rank", "0"], SAME),
    "init": (["--solver", "cg", "--init", "random"], SAME),
    "tolerance": (["--solver", "cg", "--preconditioner-rank", "0", "--tolerance", "0.01"], OTHER),
    "allow single": (["--allow-single"], SAME),
    "one centre": (["--centres", "1", "--allow-single"], OTHER),
    "one hospital": (["--hospitals", "1", "--allow-single"], SAME),
    "no centre": (["--centres", "0"], OTHER),
    "missing": (["--missing", "neutral"], SAME),
    "seed": (["--seed", "3"], OTHER),
    "test size": (["--test-size", "0.5"], OTHER),
    "attempts": (["--attempts", "9", "--node-timeout", "5", "--timeout", "100"], SAME),
}


@pytest.mark.parametrize("case", CASES)
def test_an_option_changes_what_it_should(case, base, capsys):
    arguments, same = CASES[case]
    found = result(capsys, *SMALL, *arguments, "--quiet")
    ours, theirs = coefficients(), coefficients("base")
    if same:
        np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-6)
    else:
        assert ours.shape != theirs.shape or np.abs(ours - theirs).max() > 1e-3
    loose = 0.5 if case == "tolerance" else 1e-6
    assert found["metrics"]["centralised_difference"] < loose
    assert 0.8 < found["metrics"]["test_accuracy"] <= 1.0
    EXPECTED.get(case, lambda _: None)(found)


def check_widths(found: dict[str, Any]) -> None:
    with np.load("here/model.npz", allow_pickle=False) as model:
        assert model["gammas"].shape == (16,)
        assert 0.125 <= model["gammas"].min() < 0.25 < model["gammas"].max() <= 0.5


def check_rank(found: dict[str, Any]) -> None:
    assert found["metrics"]["iterations"] > 8
    assert found["history"][-1]["residual"] <= 1e-10 < found["history"][-2]["residual"]


def check_naive(found: dict[str, Any]) -> None:
    assert found["exchanges"] == 3
    assert found["privacy"]["server_sees"][0].startswith("every kernel block")
    assert "plain" in {row["kind"] for row in found["privacy"]["seen"]["server"]}


EXPECTED: dict[str, Any] = {
    "hospitals": lambda r: check(len(r["config"]["rows"]) == 3, r["survivors"] == 5),
    "clients": lambda r: check(r["config"]["hospitals"] == 3, r["config"]["clients"] == 5),
    "split": lambda r: check(r["config"]["rows"] != [53, 52]),
    "centres": lambda r: check(len(r["config"]["columns"]) == 4, r["survivors"] == 5),
    "own block": lambda r: check("clinical" not in r["config"]["columns"]),
    "sampling N": lambda r: check(r["exchanges"] == 6),
    "landmark gamma": check_widths,
    "naive": check_naive,
    "not secure": check_naive,
    "chain": lambda r: check(r["exchanges"] > 20, r["metrics"]["iterations"] > 5),
    "cg": lambda r: check(1 <= r["metrics"]["iterations"] <= 5, r["metrics"]["residual"] <= 1e-10),
    "rank": check_rank,
    "init": lambda r: check(r["history"][0]["residual"] > 0.0),
    "tolerance": lambda r: check(1e-10 < r["metrics"]["residual"] <= 0.01),
    "one hospital": lambda r: check("the only hospital" in r["privacy"]["server_sees"][0]),
    "test size": lambda r: check(sum(r["config"]["held_out_rows"]) == 75),
}


def check(*truths: bool) -> None:
    assert all(truths), truths


def test_runs_are_averaged_and_may_have_splits_of_their_own(capsys):
    found = result(capsys, *SMALL, "--runs", "3", "--resplit", "--quiet")
    draws = json.loads(Path("here/draws.json").read_text())
    accuracy = [draw["metrics"]["test_accuracy"] for draw in draws]
    assert len(accuracy) == 3
    assert found["metrics"]["test_accuracy"] == pytest.approx(np.mean(accuracy))


def test_parties_that_vanish_are_asked_again_and_the_model_is_the_same(base, capsys):
    arguments = [*SMALL, "--solver", "cg", "--preconditioner-rank", "0", "--attempts", "30"]
    found = result(capsys, *arguments, "--drop", "0.2", "--quiet")
    assert {reason for r in found["failures"].values() for reason in r} == {"unreachable"}
    assert found["exchanges"] > base["exchanges"] + found["metrics"]["iterations"]
    assert found["survivors"] == 4
    np.testing.assert_allclose(coefficients(), coefficients("base"), rtol=0.0, atol=1e-6)


def test_a_party_that_stays_away_ends_the_run(capsys):
    line = complaint(capsys, *SMALL, "--drop", "0.9", "--attempts", "2", "--out", "lost", code=1)
    assert "not all parties answered, 2 times in a row" in line
    assert "a model of fewer rows is never made" in line
    assert not Path("lost/model.npz").exists()
    assert not Path("lost/result.json").exists()


# --- Tasks and tables -----------------------------------------------------------------------


def test_more_classes_and_regressions(capsys):
    found = result(capsys, "--data", "wine", "--quiet", out="wine")
    assert found["config"]["classes"] == [0.0, 1.0, 2.0]
    assert found["metrics"]["test_accuracy"] > 0.9
    assert coefficients("wine").shape == (100, 3)
    found = result(capsys, "--data", "iris", "--target", "petal width (cm)", "--quiet", out="iris")
    assert 0.05 < found["metrics"]["test_rmse"] < 0.5  # centimetres
    assert "test_accuracy" not in found["metrics"]
    assert found["metrics"]["centralised_difference"] < 1e-8
    found = result(capsys, "--data", "wine", "--task", "regression", "--quiet", out="number")
    assert found["metrics"]["test_rmse"] < 0.6
    assert result(capsys, *SMALL, "--test-size", "0", "--quiet", out="all")["metrics"].keys() == {
        "iterations",
        "residual",
    }


def test_a_csv_with_ids_and_sites(capsys):
    table = write_table("t.csv")
    found = result(capsys, *table, "--quiet", out="iid")
    assert found["metrics"]["centralised_difference"] < 1e-8
    assert [c for block in found["config"]["columns"].values() for c in block] == list("abcdef")
    found = result(capsys, *table, "--split", "site", "--hospitals", "3", "--quiet", out="site")
    assert found["config"]["hospitals"] == 3
    assert found["metrics"]["centralised_difference"] < 1e-8
    table = write_table("t.csv", y=["no", "yes"] * 30)
    assert result(capsys, *table, "--quiet", out="text")["config"]["classes"] == [0.0, 1.0]


@pytest.mark.parametrize("column", ["a", "c", "f", "y"])
def test_empty_cells_are_refused_unless_asked_for(column, capsys):
    table = write_table("t.csv", **with_holes(column, [4, 30, 55], "nan"))
    line = complaint(capsys, *table)
    assert f"column '{column}' of t.csv is empty or NaN in 3 rows" in line
    assert "--missing drop-row" in line
    left = {"a": 57, "y": 57, "c": 60, "f": 60}[column]
    for missing, trained in (("drop-row", 57), ("neutral", left)):
        arguments = ["--missing", missing, "--centres", "3", "--quiet"]
        found = result(capsys, *table, *arguments, out=missing)
        hospitals = found["matched"]["hospitals"].values()
        rows = [h["training_rows"] + h["held_out_rows"] for h in hospitals]
        assert sum(rows) == trained
        assert found["metrics"]["centralised_difference"] < 1e-8
        noted = any("left out 3 of 60 rows" in note for note in found["config"]["notes"])
        assert noted == (left == 57)
        lacking = sum(sum(h["rows_without_block"].values()) for h in hospitals)
        assert lacking == (3 if missing == "neutral" and left == 60 else 0)
        assert sum(h["dropped_rows"] for h in hospitals) == left - trained


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "sums over 2 hospitals"),
        (["--hospitals", "1", "--allow-single"], "the sums of a single hospital"),
        (["--protocol", "naive"], "every feature and label"),
        (["--protocol", "chain"], "products of each hospital, noisy labels"),
    ],
)
def test_the_table_fits_a_terminal_and_says_what_the_server_saw(
    arguments, text, capsys, monkeypatch
):
    monkeypatch.setattr("fedkern_flwr.simulations.cli.console._FILE_WIDTH", 80)
    assert run([*RUN, *SMALL, *arguments]) == 0
    table = capsys.readouterr().err.partition("FedCG: ")[2]
    assert "…" not in table
    (line,) = [one for one in table.splitlines() if "the server saw" in one]
    assert line.partition("the server saw")[2].strip() == text


def test_missing_blocks_are_shown(capsys):
    table = write_table("t.csv", **with_holes("c", [4, 30, 55]))
    arguments = [*table, "--centres", "3", "--missing"]
    for missing, text in (
        ("drop-row", "rows left out for a missing block"),
        ("neutral", "missing blocks of rows"),
    ):
        assert run([*RUN, *arguments, missing, "--out", missing]) == 0
        (line,) = [one for one in capsys.readouterr().err.splitlines() if text in one]
        assert line.split()[-1] == "3"


def test_a_row_that_one_centre_alone_knows_is_refused_unless_allowed(capsys):
    table = [*write_table("t.csv", **with_holes("c", [4, 30, 55])), "--missing", "neutral"]
    line = complaint(capsys, *table)
    assert "known to one centre only" in line
    assert "--allow-single" in line
    found = result(capsys, *table, "--allow-single", "--quiet", out="allowed")
    assert found["metrics"]["centralised_difference"] < 1e-8


def test_constant_columns_are_noted(capsys):
    table = write_table("t.csv", a="5", d="0.5")
    assert run([*RUN, *table, "--out", "here"]) == 0
    assert "constant in the training rows: a, d" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "arguments", "text"),
    [
        ({}, ["--label", "z"], "t.csv has no label column 'z'"),
        ({}, ["--id", "z"], "t.csv has no id column 'z'"),
        ({}, ["--site", "z"], "t.csv has no site column 'z'"),
        ({}, ["--target", "z"], "the data has no feature column 'z'"),
        ({}, ["--split", "site"], "3 sites, 2 hospitals cannot hold them all; use --hospitals 3"),
        ({}, ["--sampling", "P", "--landmarks", "43"], "43 landmarks are asked of 42 training"),
        ({}, ["--centres", "6"], "6 columns cannot be dealt to 7 blocks; use fewer centres"),
        ({}, ["--hospitals", "19"], "18 of 60 rows cannot be dealt to 19 hospitals"),
        ({}, ["--positive", "5"], "there is no class 5"),
        ({"id": ["s3cret-1"] * 2 + list(map(str, range(58)))}, [], "has 1 duplicate ids"),
        ({"b": ["s3cret"] + ["1"] * 59}, [], "column 'b' of t.csv is not numeric"),
        ({"b": ""}, ["--missing", "neutral"], "column 'b' is empty in all training rows"),
        ({"y": "1"}, [], "the label is constant"),
        ({"y": ""}, ["--missing", "neutral"], "no row has a label"),
    ],
)
def test_a_bad_table_is_one_line_without_its_data(changes, arguments, text, capsys):
    line = complaint(capsys, *write_table("t.csv", **changes), *arguments)
    assert text in line
    assert "s3cret" not in line
    assert not Path("runs").exists()  # found before anything is made


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--data", "mars"], "there is no built-in data set 'mars'; choose from iris, wine"),
        (["--data", "gone.csv", "--label", "y"], "there is no file gone.csv; check the path"),
        (["--data", "iris", "--label", "y"], "fixed"),
        (["--hospitals", "0"], "use at least one hospital"),
        (["--hospitals", "1"], "there is one hospital"),
        (["--centres", "1"], "known to one centre only"),
        (["--centres", "0", "--no-own-block"], "nobody has columns"),
        (["--centres", "4"], "4 columns cannot be dealt to 5 blocks"),
        (["--clients", "4", "--hospitals", "3"], "3 hospitals and 2 centres are not 4 clients"),
        (["--clients", "2"], "0 hospitals and 2 centres; use at least one hospital"),
        (["--split", "site"], "no site column"),
        (["--split", "moon"], "'iid', 'site', 'dirichlet'"),
        (["--landmarks", "0"], "landmarks is 0; use at least 1"),
        (["--landmarks", "many"], "not a valid integer"),
        (["--sampling", "Q"], "'U', 'N', 'P'"),
        (["--sampling", "P", "--landmarks", "106"], "106 landmarks are asked of 105 training"),
        (["--kernel", "linear"], "'rbf', 'laplacian'"),
        (["--gamma", "0"], "gamma is 0"),
        (["--gamma", "nan"], "gamma is nan"),
        (["--regularization", "0"], "regularization is 0"),
        (["--regularization", "inf"], "regularization is inf"),
        (["--penalty", "none"], "'ridge', 'rkhs'"),
        (["--penalty", "rkhs", "--landmark-gamma"], "use penalty ridge, or one width"),
        (["--penalty", "rkhs", "--protocol", "naive"], "use protocol secure"),
        (["--penalty", "rkhs", "--protocol", "chain"], "use protocol secure"),
        (["--protocol", "open"], "'secure', 'naive', 'chain'"),
        (["--protocol", "chain", "--solver", "normal-equations"], "use solver cg"),
        (["--protocol", "chain", "--preconditioner-rank", "4"], "no preconditioner"),
        (["--secure", "--protocol", "chain"], "the protocol is chain; leave out --secure"),
        (["--no-secure"], "the protocol is secure; leave out --no-secure"),
        (["--solver", "lu"], "'auto', 'normal-equations', 'cg'"),
        (["--preconditioner-rank", "4"], "is for solver cg"),
        (["--solver", "cg", "--preconditioner-rank", "17"], "use 0 to 16 (landmarks)"),
        (["--solver", "cg", "--preconditioner-rank", "-1"], "use 0 to 16 (landmarks)"),
        (["--init", "random"], "init is for solver cg"),
        (["--init", "ones"], "'zero', 'random'"),
        (["--tolerance", "0"], "tolerance is 0.0; use a value in (0, 1)"),
        (["--tolerance", "2"], "tolerance is 2.0; use a value in (0, 1)"),
        (["--missing", "guess"], "'error', 'drop-row', 'neutral'"),
        (["--task", "ranking"], "'auto', 'classification', 'regression'"),
        (["--positive", "9"], "there is no class 9"),
        (["--test-size", "1"], "test-size is 1.0"),
        (["--attempts", "0"], "attempts is 0"),
        (["--drop", "1"], "drop is 1.0"),
        (["--runs", "0"], "runs is 0"),
        (["--seed", "-1"], "seed is -1"),
        (["--timeout", "0"], "timeout is 0"),
        (["--engine", "moon"], "'in-process', 'ray'"),
        (["--rounds", "5"], "No such option"),
        (["--resume", "nowhere"], "nowhere is not the folder of a run"),
        (["--json", "no/such/folder.json"], "cannot be written"),
    ],
)
def test_bad_options_are_one_line(arguments, text, capsys):
    assert text in complaint(capsys, *SMALL, *arguments)


def test_three_classes_in_a_chain_are_refused(capsys):
    line = complaint(capsys, "--data", "iris", "--protocol", "chain")
    assert "protocol 'chain' solves for one output, the labels make 3" in line


# --- Runs that break off --------------------------------------------------------------------

MANY = ["--data", "breast-cancer", "--landmarks", "120", "--gamma", "0.5", "--solver", "cg"]
MANY += ["--preconditioner-rank", "0", "--tolerance", "1e-12", "--drop", "0.02", "--quiet"]


def test_resuming_a_finished_run_shows_its_result(base, capsys):
    assert run([*RUN, "--resume", "base", "--quiet", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == base
    assert "base holds a run of fed-cg" in complaint_of(capsys, "run", "ofskl", "--resume", "base")


def complaint_of(capsys, *arguments: str) -> str:
    assert run(list(arguments)) == 2
    return capsys.readouterr().err.strip()


def test_a_run_that_was_killed_is_resumed_with_the_same_model(capsys):
    whole = result(capsys, *MANY, out="whole")
    command = [sys.executable, "-m", "fedkern_flwr.simulations.cli.main", *RUN, *MANY]
    process = subprocess.Popen([*command, "--out", "killed"], env=dict(os.environ))
    deadline = time.monotonic() + 60
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if reached("killed") >= 5:
                os.kill(process.pid, signal.SIGKILL)
                break
            time.sleep(0.005)
    finally:
        process.kill()
        assert process.wait(timeout=30) == -signal.SIGKILL  # in the middle of it
    assert not Path("killed/result.json").exists()
    line = complaint(capsys, *SMALL, "--out", "killed")
    assert "holds an unfinished run; go on with --resume killed" in line
    capsys.readouterr()
    assert run([*RUN, "--resume", "killed", "--quiet", "--json", "-"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(coefficients("killed"), coefficients("whole"), rtol=0.0, atol=1e-6)
    rounds = [row["round"] for row in resumed["history"]]
    assert rounds == list(range(1, resumed["metrics"]["iterations"] + 1))
    assert abs(len(rounds) - whole["metrics"]["iterations"]) <= 20  # rounding makes a difference
    for a, b in zip(resumed["history"][:6], whole["history"][:6], strict=True):
        assert a["residual"] == pytest.approx(b["residual"], rel=1e-3)
    assert resumed["metrics"]["test_accuracy"] == whole["metrics"]["test_accuracy"]
    assert resumed["metrics"]["centralised_difference"] < 1e-5
    assert resumed["exchanges"] > len(rounds)


def reached(out: str) -> int:
    """Return the iteration of the run's last checkpoint."""
    try:
        return len(load_arrays(Path(out) / "checkpoint-0.npz")[1]["history"])
    except CheckpointError:
        return 0


@pytest.mark.parametrize("pulls", [2, 3, 5, 12])
def test_a_run_that_was_interrupted_is_resumed_or_started_again(pulls, capsys, monkeypatch):
    """Before the first checkpoint there is nothing to go on from, and nothing in the way."""
    arguments = [*SMALL, "--solver", "cg", "--preconditioner-rank", "0", "--quiet"]
    assert run([*RUN, *arguments, "--out", "whole"]) == 0
    real, left = engines.InProcessGrid.pull_messages, iter(range(pulls))

    def pull(grid: Any, message_ids: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(grid, message_ids)

    with monkeypatch.context() as patch:
        patch.setattr(engines.InProcessGrid, "pull_messages", pull)
        assert run([*RUN, *arguments, "--out", "broken"]) == 130
    assert "--resume" in capsys.readouterr().err
    assert run([*RUN, "--resume", "broken", "--quiet"]) == 0
    np.testing.assert_allclose(coefficients("broken"), coefficients("whole"), rtol=0.0, atol=1e-6)


def test_same_seed_same_model(base, capsys):
    again = result(capsys, *SMALL, "--quiet", out="again")
    np.testing.assert_allclose(coefficients("again"), coefficients("base"), rtol=0.0, atol=1e-8)
    assert again["metrics"]["test_accuracy"] == base["metrics"]["test_accuracy"]

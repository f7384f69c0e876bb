"""`fedkern run fdskl`: every option, every file, and one clear line for every bad input."""

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
from fedkern_flwr.model_file import load_model
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.simulations import engines
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.methods.registry import family, method, options

RUN = ["run", "fdskl"]
DATA = ["--data", "iris", "--positive", "2"]
TUNED = [*DATA, "--features", "40"]  # cross-validation chooses the rest
ONE_SHOT = [*TUNED, "--gamma", "2", "--regularization", "0.01", "--loss", "square"]
STREAMING = [*DATA, "--schedule", "streaming", "--rounds", "25", "--directions", "4"]
STREAMING += ["--batch", "8", "--gamma", "2", "--loss", "square"]


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def result(capsys, *arguments: str, out: str = "here") -> dict[str, Any]:
    """Run and return what is printed, which is JSON and nothing else."""
    capsys.readouterr()
    assert run([*RUN, *arguments, "--out", out, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def coefficients(out: str = "here", party: int = 0) -> np.ndarray:
    """Return the coefficients that an active party kept to itself."""
    arrays, meta = load_model(Path(out) / "model.npz")
    assert not arrays
    name = f"partition-{party}-round-{meta['step']}.state"
    path = Path(out) / "private_state" / meta["session"] / name
    return KeptState.unpack(path.read_bytes()).arrays["alpha"]


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
    return result(capsys, *ONE_SHOT, "--quiet", out="base")


@pytest.fixture
def streamed(capsys) -> dict[str, Any]:
    return result(capsys, *STREAMING, "--quiet", out="base")


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
    write_columns(path, columns)
    return ["--data", path, "--label", "y", "--id", "id", "--site", "town", "--features", "30"]


def write_columns(path: str, columns: dict[str, list[Any]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def with_holes(column: str, rows: list[int], text: str = "") -> dict[str, list[Any]]:
    """Return a change of a table: cells of a column are empty."""
    cells: list[Any] = [repr((31.0 * i) % 9.0) if column != "y" else i % 2 for i in range(60)]
    for row in rows:
        cells[row] = text
    return {column: cells}


# --- What a run prints and leaves -----------------------------------------------------------


def test_json_alone_is_printed_with_all_its_keys(capsys):
    assert run([*RUN, *TUNED, "--out", "here", "--json", "-"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert "accuracy on held-out rows" in captured.err
    assert "accuracy in cross-validation" in captured.err
    assert found["method"] == "fdskl"
    assert (found["engine"], found["seed"]) == ("in-process", 0)
    assert {"method", "engine", "seed", "config", "versions", "metrics", "history"} <= set(found)
    assert {"exchanges", "bytes_up", "bytes_down", "seconds", "survivors"} <= set(found)
    assert {"privacy", "artifacts", "matched"} <= set(found)
    metrics = found["metrics"]
    assert {"test_accuracy", "centralised_difference", "gamma", "regularization"} <= set(metrics)
    assert 0.85 < metrics["test_accuracy"] <= 1.0
    assert 0.85 < metrics["validation_score"] <= 1.0
    assert 0.0 < metrics["centralised_difference"] < 5e-3
    assert [row["round"] for row in found["history"]] == [1]
    assert found["exchanges"] == 4
    assert found["survivors"] == 4
    assert found["bytes_up"] >= 4 * 150 * 40 * 2  # a masked phase is 2 bytes, at least
    assert "keyed hashes of ids" in found["privacy"]["server_sees"][0]
    kinds = {row["kind"] for row in found["privacy"]["seen"]["server"]}
    assert "masked" in kinds
    config = found["config"]
    assert config["columns"][3] == ["petal width (cm)"]
    assert (config["rows"], config["held_out_rows"]) == (113, 37)
    assert found["matched"]["active_parties"] == {"0": {"training_rows": 113, "held_out_rows": 37}}
    assert found["matched"]["passive_parties"] == [1, 2, 3]
    assert json.loads(Path("here/result.json").read_text()) == found
    for artifact in found["artifacts"].values():
        assert (Path("here") / artifact).is_file()


def test_quiet_shows_nothing_and_json_goes_to_a_file(capsys):
    assert run([*RUN, *ONE_SHOT, "--quiet", "--json", "found.json"]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
    (folder,) = Path("runs").glob("fdskl-*")
    assert json.loads(Path("found.json").read_text()) == json.loads(
        (folder / "result.json").read_text()
    )


def test_files_of_a_run(capsys):
    found = result(capsys, *STREAMING, "--evaluate-every", "5", "--quiet")
    assert [row["round"] for row in found["history"]] == [5, 10, 15, 20, 25]
    assert found["artifacts"]["error_plot"] == "plots/error.png"
    assert Path("here/plots/error.png").read_bytes().startswith(b"\x89PNG")
    assert coefficients().shape == (100, 1)
    scaling = json.loads(Path("here/scaling.json").read_text())
    assert len(scaling["x_min"]) == len(scaling["columns"]) == 4
    states = list(Path("here/private_state").glob("*/*"))
    assert {path.name.split("-round")[0] for path in states} == {f"partition-{k}" for k in range(4)}
    for state in states:
        assert state.stat().st_mode & 0o077 == 0
        assert state.suffix == ".state"  # the phases were erased with the run


def test_help_names_every_option(capsys):
    assert run([*RUN, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "directions" in text
    promised = (
        "parties active-parties schedule features directions batch rounds step step-schedule loss "
        "kernel gamma regularization frequencies phase-bits topology missing allow-single data "
        "label id site target engine clients seed test-size secure drop out json resume quiet"
    )
    declared = {o.flag.removeprefix("--") or o.name.replace("_", "-") for o in every_option()}
    assert set(promised.split()) <= declared
    for option in every_option():
        assert option.help, option.name


def every_option() -> list[Any]:
    return [*options(method("fdskl")), *family("fdskl").parameters()]


# --- Every option does what it says ---------------------------------------------------------

SAME, OTHER = True, False
#: Options, whether the coefficients are those of the base run, and what else is true.
Case = tuple[list[str], bool, Callable[[dict[str, Any]], bool]]
CASES: dict[str, Case] = {
    "clients": (["--clients", "4"], SAME, lambda r: r["config"]["parties"] == 4),
    "parties": (["--parties", "3"], OTHER, lambda r: len(r["config"]["columns"]) == 3),
    "two parties": (["--parties", "2", "--allow-single"], OTHER, lambda r: r["survivors"] == 2),
    "features": (["--features", "60"], OTHER, lambda r: coefficients().shape == (60, 1)),
    "loss": (["--loss", "logistic"], OTHER, lambda r: True),
    "hinge": (["--loss", "smooth-hinge"], OTHER, lambda r: True),
    "kernel": (["--kernel", "laplacian"], OTHER, lambda r: r["metrics"]["gamma"] == 2),
    "gamma": (["--gamma", "1"], OTHER, lambda r: r["metrics"]["gamma"] == 1),
    "regularization": (["--regularization", "0.5"], OTHER, lambda r: True),
    "frequencies": (
        ["--frequencies", "shared"],
        OTHER,
        lambda r: "known directions" in r["privacy"]["active_parties_see"][0],
    ),
    "phase bits": (
        ["--phase-bits", "32"],
        SAME,
        lambda r: r["metrics"]["centralised_difference"] < 1e-6,
    ),
    "topology": (["--topology", "tree"], OTHER, lambda r: r["exchanges"] > 4),
    "not secure": (["--no-secure", "--topology", "tree"], OTHER, lambda r: r["exchanges"] > 4),
    "secure": (["--secure", "--topology", "star"], SAME, lambda r: r["exchanges"] == 4),
    "missing": (["--missing", "drop-row"], SAME, lambda r: r["config"]["rows"] == 113),
    "train rows": (["--train-rows", "60"], OTHER, lambda r: r["config"]["rows"] == 60),
    "test size": (["--test-size", "0.5"], OTHER, lambda r: r["config"]["rows"] == 75),
    "seed": (["--seed", "3"], OTHER, lambda r: r["seed"] == 3),
    "patience": (["--attempts", "9", "--node-timeout", "5", "--timeout", "100"], SAME, bool),
    "allow single": (["--allow-single"], SAME, bool),
}
STREAMS: dict[str, Case] = {
    "rounds": (["--rounds", "30"], OTHER, lambda r: r["exchanges"] == 34),
    "directions": (["--directions", "1"], OTHER, lambda r: coefficients().shape == (25, 1)),
    "batch": (["--batch", "1"], OTHER, lambda r: coefficients().shape == (100, 1)),
    "step": (["--step", "0.1"], OTHER, lambda r: True),
    "diminishing": (
        ["--step-schedule", "diminishing", "--regularization", "0.3", "--step", "0.4"],
        OTHER,
        lambda r: True,
    ),
    "constant": (["--step-schedule", "constant"], SAME, lambda r: True),
    "regularization": (["--regularization", "0.3"], OTHER, lambda r: True),
    "loss": (["--loss", "logistic"], OTHER, lambda r: True),
    "hinge": (["--loss", "smooth-hinge"], OTHER, lambda r: True),
    "kernel": (["--kernel", "laplacian"], OTHER, lambda r: True),
    "evaluations": (["--evaluate-every", "10"], SAME, lambda r: len(r["history"]) == 3),
    "two active parties": (
        ["--active-parties", "2"],
        OTHER,
        lambda r: coefficients(party=1).shape == (48, 1) and len(coefficients()) == 52,
    ),
    "all active": (["--active-parties", "4"], OTHER, lambda r: r["config"]["active_parties"] == 4),
    "tree": (["--topology", "tree", "--active-parties", "2"], OTHER, lambda r: True),
    "shared": (["--frequencies", "shared"], OTHER, lambda r: True),
    "phase bits": (["--phase-bits", "32"], SAME, lambda r: True),
    "checkpoints": (["--checkpoint-every", "7"], SAME, lambda r: True),
}
#: 25 steps with these are too few to learn anything.
SLOW = {"directions", "batch", "step", "diminishing", "regularization"}


def check_case(base: dict[str, Any], found: dict[str, Any], case: Case, least: float) -> None:
    ours, theirs = coefficients(), coefficients("base")
    if case[1]:
        np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-2 * np.abs(theirs).max())
    else:
        changed = ours.shape != theirs.shape or np.abs(ours - theirs).max() > 1e-2
        assert changed or found["seed"] != base["seed"]
    assert found["metrics"]["centralised_difference"] < 1e-2
    assert least < found["metrics"]["test_accuracy"] <= 1.0
    assert case[2](found), found


@pytest.mark.parametrize("name", CASES)
def test_an_option_changes_what_it_should(name, base, capsys):
    found = result(capsys, *ONE_SHOT, *CASES[name][0], "--quiet")
    check_case(base, found, CASES[name], 0.8)


@pytest.mark.parametrize("name", STREAMS)
def test_an_option_of_streaming_changes_what_it_should(name, streamed, capsys):
    found = result(capsys, *STREAMING, *STREAMS[name][0], "--quiet")
    check_case(streamed, found, STREAMS[name], 0.0 if name in SLOW else 0.6)


def test_runs_are_averaged_and_may_have_splits_of_their_own(capsys):
    found = result(capsys, *TUNED, "--runs", "3", "--resplit", "--quiet")
    draws = json.loads(Path("here/draws.json").read_text())
    accuracy = [draw["metrics"]["test_accuracy"] for draw in draws]
    assert len(accuracy) == 3
    assert found["metrics"]["test_accuracy"] == pytest.approx(np.mean(accuracy))


@pytest.mark.parametrize("more", [[], ["--active-parties", "2"]])
def test_parties_that_vanish_are_asked_again_and_the_model_is_the_same(more, capsys):
    quiet = result(capsys, *STREAMING, *more, "--quiet", out="base")
    arguments = [*STREAMING, *more, "--attempts", "30", "--drop", "0.1", "--quiet"]
    found = result(capsys, *arguments)
    assert {reason for r in found["failures"].values() for reason in r} == {"unreachable"}
    assert found["exchanges"] > quiet["exchanges"] + 3
    assert found["survivors"] == 4
    for party in range(1 + len(more) // 2):
        ours, theirs = coefficients(party=party), coefficients("base", party)
        np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-12)
    assert found["metrics"]["test_accuracy"] == quiet["metrics"]["test_accuracy"]


def test_one_shot_parties_that_vanish_are_asked_again(base, capsys):
    found = result(capsys, *ONE_SHOT, "--drop", "0.4", "--attempts", "50", "--quiet")
    assert found["exchanges"] > 4
    np.testing.assert_allclose(coefficients(), coefficients("base"), rtol=0.0, atol=1e-12)


def test_a_party_that_stays_away_ends_the_run(capsys):
    line = complaint(capsys, *ONE_SHOT, "--drop", "0.9", "--attempts", "2", "--out", "lost", code=1)
    assert "not all parties answered, 2 times in a row" in line
    assert not Path("lost/model.npz").exists()
    assert not Path("lost/result.json").exists()


# --- Tasks and tables -----------------------------------------------------------------------


def test_more_classes_and_regressions(capsys):
    found = result(capsys, "--data", "wine", "--features", "100", "--quiet", out="wine")
    assert found["config"]["classes"] == [0.0, 1.0, 2.0]
    assert found["metrics"]["test_accuracy"] > 0.9
    assert coefficients("wine").shape == (100, 3)
    iris = ["--data", "iris", "--target", "petal width (cm)", "--parties", "3"]
    found = result(capsys, *iris, "--features", "100", "--quiet", out="iris")
    assert 0.05 < found["metrics"]["test_rmse"] < 0.4  # centimetres
    assert 0.05 < found["metrics"]["validation_score"] < 0.4
    assert "test_accuracy" not in found["metrics"]
    assert found["metrics"]["centralised_difference"] < 5e-3
    found = result(
        capsys, "--data", "wine", "--task", "regression", "--features", "100", "--quiet", out="n"
    )
    assert found["metrics"]["test_rmse"] < 0.6
    found = result(capsys, *ONE_SHOT, "--test-size", "0", "--quiet", out="all")
    assert found["metrics"].keys() == {"gamma", "regularization"}
    found = result(capsys, *STREAMING, "--test-size", "0", "--quiet", out="stream")
    assert found["metrics"].keys() == {"gamma", "regularization"}


def test_tables_of_every_kind(capsys):
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    arguments = [*write_table("t.csv"), "--loss", "square"]  # solved in closed form
    found = result(capsys, *arguments, "--quiet", out="csv")
    assert found["metrics"]["centralised_difference"] < 5e-3
    assert [c for part in found["config"]["columns"] for c in part] == list("abcdef")
    parquet.write_table(arrow_csv.read_csv("t.csv"), "t.parquet")
    same = result(
        capsys, *["t.parquet" if a == "t.csv" else a for a in arguments], "--quiet", out="parquet"
    )
    assert same["metrics"] == pytest.approx(found["metrics"])
    x, y = (
        np.loadtxt("t.csv", delimiter=",", skiprows=1, usecols=columns)
        for columns in (range(2, 8), 8)
    )
    np.savez("t.npz", X=x, y=y)
    same = result(
        capsys, "--data", "t.npz", "--features", "30", "--loss", "square", "--quiet", out="npz"
    )
    assert same["metrics"] == pytest.approx(found["metrics"])
    arguments = write_table("t.csv", y=["no", "yes"] * 30)
    assert result(capsys, *arguments, "--quiet", out="text")["config"]["classes"] == [0.0, 1.0]


@pytest.mark.parametrize("column", ["a", "f", "y"])
def test_empty_cells_are_refused_unless_asked_for(column, capsys):
    table = write_table("t.csv", **with_holes(column, [4, 30, 55], "nan"))
    line = complaint(capsys, *table)
    assert f"column '{column}' of t.csv is empty or NaN in 3 rows" in line
    assert "--missing drop-row" in line
    assert not Path("runs").exists()
    fixed = ["--gamma", "1", "--regularization", "0.01", "--loss", "square"]
    found = result(capsys, *table, *fixed, "--missing", "drop-row", "--quiet")
    assert found["config"]["rows"] + found["config"]["held_out_rows"] == 57
    assert found["metrics"]["centralised_difference"] < 5e-3
    assert any("3 of 60 rows" in note for note in found["config"]["notes"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "masked phases, which rows belong together"),
        (["--topology", "tree"], "sealed phases, which rows belong together"),
    ],
)
def test_the_table_fits_a_terminal_and_says_what_the_server_saw(
    arguments, text, capsys, monkeypatch
):
    monkeypatch.setattr("fedkern_flwr.simulations.cli.console._FILE_WIDTH", 80)
    assert run([*RUN, *ONE_SHOT, *arguments]) == 0
    table = capsys.readouterr().err.partition("FDSKL: ")[2]
    assert "…" not in table
    (line,) = [one for one in table.splitlines() if "the server saw" in one]
    assert line.partition("the server saw")[2].strip() == text


def test_the_modes_of_the_paper_come_with_a_warning(capsys):
    assert run([*RUN, *ONE_SHOT, "--topology", "tree", "--frequencies", "shared"]) == 0
    text = " ".join(capsys.readouterr().err.split())
    assert "topology tree masks with real numbers" in text
    assert "frequencies shared draws directions that everybody knows" in text


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
        ({}, ["--parties", "7"], "6 columns cannot be dealt to 7 parties; use fewer parties"),
        ({}, ["--positive", "5"], "there is no class 5"),
        ({}, ["--task", "regression", "--loss", "logistic"], "is for classes, the labels are"),
        ({"id": ["s3cret-1"] * 2 + list(map(str, range(58)))}, [], "has 1 duplicate ids"),
        ({"b": ["s3cret"] + ["1"] * 59}, [], "column 'b' of t.csv is not numeric"),
        ({"b": ""}, ["--missing", "drop-row"], "every row of t.csv has a missing cell"),
        ({"y": "1"}, [], "the label is constant"),
    ],
)
def test_a_bad_table_is_one_line_without_its_data(changes, arguments, text, capsys):
    line = complaint(capsys, *write_table("t.csv", **changes), *arguments)
    assert text in line
    assert "s3cret" not in line
    assert not Path("runs").exists()  # found before anything is made


STREAM = ["--schedule", "streaming"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--data", "mars"], "there is no built-in data set 'mars'; choose from iris, wine"),
        (["--data", "gone.csv", "--label", "y"], "there is no file gone.csv; check the path"),
        (["--data", "iris", "--label", "y"], "fixed"),
        (["--parties", "1"], "parties is 1; use at least 2"),
        (["--parties", "-1"], "parties is -1; use at least 2"),
        (["--parties", "2"], "of two parties the active one would learn the phases of the other"),
        (["--clients", "2"], "use more --parties, or allow it with --allow-single"),
        (["--parties", "5"], "4 columns cannot be dealt to 5 parties; use fewer parties"),
        (["--parties", "3", "--clients", "4"], "3 parties are not 4 clients"),
        (["--active-parties", "0"], "0 of 4 parties are active"),
        (["--active-parties", "-1"], "-1 of 4 parties are active"),
        (
            ["--active-parties", "2"],
            "one-shot trains at one active party, not at 2; add --schedule",
        ),
        ([*STREAM, "--active-parties", "5"], "5 of 4 parties are active"),
        (["--schedule", "batch"], "'one-shot', 'streaming'"),
        ([*STREAM, "--features", "10"], "features is for schedule one-shot"),
        (["--directions", "4"], "directions is for schedule streaming"),
        (["--batch", "4"], "batch is for schedule streaming"),
        (["--step", "0.1"], "step is for schedule streaming"),
        (["--step-schedule", "constant"], "is for schedule streaming"),
        (["--evaluate-every", "5"], "is for schedule streaming"),
        (["--rounds", "5"], "rounds is for schedule streaming; add --schedule streaming"),
        (["--features", "0"], "features is 0; use at least 1"),
        (["--features", "-3"], "features is -3; use at least 1"),
        (["--features", "many"], "not a valid integer"),
        ([*STREAM, "--directions", "0"], "directions is 0; use at least 1"),
        ([*STREAM, "--batch", "-1"], "batch is -1; use at least 1"),
        ([*STREAM, "--rounds", "0"], "rounds is 0; use at least 1"),
        ([*STREAM, "--rounds", "-5"], "rounds is -5; use at least 1"),
        ([*STREAM, "--step", "0"], "step is 0.0; use a positive number"),
        ([*STREAM, "--step", "-1"], "step is -1.0; use a positive number"),
        ([*STREAM, "--step", "inf"], "step is inf; use a positive number"),
        ([*STREAM, "--step", "9", "--regularization", "0.2"], "is not below 1; use a smaller step"),
        ([*STREAM, "--regularization", "9"], "is not below 1; use a smaller step"),
        ([*STREAM, "--step-schedule", "fast"], "'constant', 'diminishing'"),
        ([*STREAM, "--evaluate-every", "0"], "is 0; use at least 1"),
        ([*STREAM, "--checkpoint-every", "0"], "is 0; use at least 1"),
        (["--loss", "hinge"], "'square', 'logistic', 'smooth-hinge'"),
        (["--target", "0", "--parties", "3", "--loss", "logistic"], "use --loss square, or --task"),
        (["--target", "0", "--parties", "3", "--loss", "smooth-hinge"], "is for classes"),
        (["--kernel", "linear"], "'rbf', 'laplacian'"),
        (["--gamma", "0"], "gamma is 0"),
        (["--gamma", "-1"], "gamma is -1"),
        (["--gamma", "nan"], "gamma is nan"),
        (["--regularization", "0"], "regularization is 0"),
        (["--regularization", "-2"], "regularization is -2"),
        (["--regularization", "inf"], "regularization is inf"),
        (["--frequencies", "open"], "'private', 'shared'"),
        (["--phase-bits", "8"], "is 8; use 16 or 32"),
        (["--topology", "ring"], "'star', 'tree'"),
        (["--no-secure"], "the topology is star; leave out --no-secure, or use --topology tree"),
        (["--secure", "--topology", "tree"], "the topology is tree; leave out --secure"),
        (["--missing", "neutral"], "'error', 'drop-row'"),
        (["--task", "ranking"], "'auto', 'classification', 'regression'"),
        (["--train-rows", "0"], "train-rows is 0; use at least 1"),
        (["--test-size", "1"], "test-size is 1.0"),
        (["--test-size", "-0.1"], "test-size is -0.1"),
        (["--attempts", "0"], "attempts is 0"),
        (["--drop", "1"], "drop is 1.0"),
        (["--drop", "-0.1"], "drop is -0.1"),
        (["--runs", "0"], "runs is 0"),
        (["--seed", "-1"], "seed is -1"),
        (["--timeout", "0"], "timeout is 0"),
        (["--engine", "moon"], "'in-process', 'ray'"),
        (["--hospitals", "2"], "No such option"),
        (["--resume", "nowhere"], "nowhere is not the folder of a run"),
        (["--json", "no/such/folder.json"], "cannot be written"),
    ],
)
def test_bad_options_are_one_line(arguments, text, capsys):
    assert text in complaint(capsys, "--data", "iris", *arguments)
    assert not Path("runs").exists()  # found before anything is made


# --- Predictions ----------------------------------------------------------------------------


def predicted(path: str) -> tuple[list[str], list[str], np.ndarray]:
    """Return heads, ids and figures of a file of predictions."""
    with open(path, newline="") as file:
        heads, *rows = csv.reader(file)
    return heads, [row[0] for row in rows], np.array([row[1:] for row in rows], float)


def given_split(path: str, y: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Write a table with held-out rows of its own, return these."""
    rng = np.random.default_rng(3)
    x = rng.normal(50.0, 20.0, (100, 5))
    train, test = x[:70], x[70:]
    names = np.array(list("abcde"))
    np.savez(path, X=train, y=y(train), X_test=test, y_test=y(test), feature_names=names)
    return test, y(test)


@pytest.mark.parametrize(
    "more",
    [
        ["--features", "60"],
        ["--schedule", "streaming", "--rounds", "40"],
        ["--schedule", "streaming", "--rounds", "40", "--active-parties", "2"],
        ["--features", "60", "--topology", "tree", "--frequencies", "shared"],
    ],
)
def test_predictions_of_a_file_are_those_of_the_run(more, capsys):
    """Held-out rows in a CSV file of their own have the error that the run found."""
    x, y = given_split("t.npz", lambda x: 1000.0 + np.sin(x[:, 0] / 20.0) + x[:, 1])
    found = result(capsys, "--data", "t.npz", *more, "--quiet")
    columns = {name: list(x[:, k]) for k, name in enumerate("abcde")}
    columns = {"note": list(range(30)), **dict(reversed(columns.items()))}
    write_columns("new.csv", columns)
    assert run(["predict", "here", "--data", "new.csv", "--out", "p.csv"]) == 0
    assert "30 predictions: p.csv" in capsys.readouterr().err
    heads, ids, values = predicted("p.csv")
    assert heads == ["id", "prediction"]
    assert ids == [str(k) for k in range(30)]
    error = np.sqrt(np.mean((values[:, 0] - y) ** 2))
    assert error == pytest.approx(found["metrics"]["test_rmse"], rel=1e-4)  # cosines are float32


def test_predictions_of_classes_and_of_odd_rows(capsys):
    x, y = given_split("t.npz", lambda x: (x.sum(axis=1) > 250.0) * 1.0 + (x[:, 0] > 70.0))
    found = result(capsys, "--data", "t.npz", "--features", "60", "--quiet")
    assert found["config"]["classes"] == [0.0, 1.0, 2.0]
    scaling = json.loads(Path("here/scaling.json").read_text())
    most = scaling["x_max"]
    rows = [*x.tolist(), most, [m + 1000.0 for m in most], [None, *most[1:]]]
    columns = {"id": [f"r{k}" for k in range(33)]}
    columns |= {
        name: ["" if r[k] is None else r[k] for r in rows] for k, name in enumerate("abcde")
    }
    write_columns("new.csv", columns)
    assert run(["predict", "here/model.npz", "--data", "new.csv", "--id", "id"]) == 0
    assert "32 predictions: here/predictions.csv, 1 left out" in capsys.readouterr().err
    heads, ids, values = predicted("here/predictions.csv")
    assert heads == ["id", "class", "output_0", "output_1", "output_2"]
    assert ids == [f"r{k}" for k in range(32)]
    assert np.mean(values[:30, 0] == y) == pytest.approx(found["metrics"]["test_accuracy"])
    np.testing.assert_allclose(values[30], values[31], rtol=0.0, atol=1e-12)  # clipped


def test_what_cannot_be_predicted_is_one_line(capsys):
    given_split("t.npz", lambda x: (x[:, 0] > 50.0) * 1.0)
    result(capsys, "--data", "t.npz", "--features", "20", "--quiet")
    write_columns("few.csv", {"a": [1.0], "b": [2.0]})
    write_columns("empty.csv", {name: ["", ""] for name in "abcde"})

    def line(*arguments: str) -> str:
        capsys.readouterr()
        assert run(["predict", *arguments]) == 2
        (one,) = capsys.readouterr().err.strip().splitlines()
        return one

    assert "few.csv lacks 3 columns of the model, the first is 'c'" in line(
        "here", "--data", "few.csv"
    )
    assert "every row lacks a value" in line("here", "--data", "empty.csv")
    assert "there is no file gone.csv" in line("here", "--data", "gone.csv")
    assert "nowhere is not the folder of a run" in line("nowhere", "--data", "few.csv")


# --- Runs that break off --------------------------------------------------------------------


def test_resuming_a_finished_run_shows_its_result(base, capsys):
    assert run([*RUN, "--resume", "base", "--quiet", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == base
    assert run(["run", "fed-cg", "--resume", "base"]) == 2
    assert "base holds a run of fdskl" in capsys.readouterr().err


def test_a_run_that_was_killed_is_resumed_with_the_same_model(capsys):
    arguments = [*STREAMING, "--rounds", "80", "--checkpoint-every", "5", "--directions", "2"]
    arguments += ["--active-parties", "2", "--drop", "0.02", "--attempts", "20", "--quiet"]
    whole = result(capsys, *arguments, out="whole")
    command = [sys.executable, "-m", "fedkern_flwr.simulations.cli.main", *RUN, *arguments]
    process = subprocess.Popen([*command, "--out", "killed"], env=dict(os.environ))
    deadline = time.monotonic() + 60
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if reached("killed") >= 10:
                os.kill(process.pid, signal.SIGKILL)
                break
            time.sleep(0.005)
    finally:
        process.kill()
        assert process.wait(timeout=30) == -signal.SIGKILL  # in the middle of it
    assert not Path("killed/result.json").exists()
    line = complaint(capsys, *ONE_SHOT, "--out", "killed")
    assert "holds an unfinished run; go on with --resume killed" in line
    capsys.readouterr()
    assert run([*RUN, "--resume", "killed", "--quiet", "--json", "-"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    for party in (0, 1):
        ours, theirs = coefficients("killed", party), coefficients("whole", party)
        np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-9)
    assert resumed["metrics"] == pytest.approx(whole["metrics"], rel=1e-6)
    assert resumed["exchanges"] > 80


def reached(out: str) -> int:
    """Return the iteration of the run's last checkpoint."""
    try:
        return int(load_arrays(Path(out) / "checkpoint-0.npz")[1]["saved"]["iteration"])
    except CheckpointError:
        return 0


@pytest.mark.parametrize(
    ("arguments", "pulls"),
    [
        (ONE_SHOT, 0),
        (ONE_SHOT, 1),
        (ONE_SHOT, 2),
        (ONE_SHOT, 3),
        ([*ONE_SHOT, "--topology", "tree"], 3),
        (STREAMING, 1),
        (STREAMING, 28),
        ([*STREAMING, "--checkpoint-every", "10"], 15),
        ([*STREAMING, "--checkpoint-every", "10", "--evaluate-every", "4"], 30),
        ([*STREAMING, "--checkpoint-every", "10", "--active-parties", "2"], 28),
        ([*STREAMING, "--checkpoint-every", "10", "--topology", "tree"], 100),
    ],
)
def test_a_run_that_was_interrupted_is_resumed_or_started_again(
    arguments, pulls, capsys, monkeypatch
):
    """Before the first checkpoint there is nothing to go on from, and nothing in the way."""
    whole = result(capsys, *arguments, "--quiet", out="whole")
    farewell = whole["exchanges"] - 1
    real, left = engines.InProcessGrid.pull_messages, iter(range(pulls))

    def pull(grid: Any, message_ids: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(grid, message_ids)

    with monkeypatch.context() as patch:
        patch.setattr(engines.InProcessGrid, "pull_messages", pull)
        assert run([*RUN, *arguments, "--quiet", "--out", "broken"]) == 130
    assert "--resume" in capsys.readouterr().err
    assert run([*RUN, "--resume", "broken", "--quiet"]) == 0
    np.testing.assert_allclose(coefficients("broken"), coefficients("whole"), rtol=0.0, atol=1e-9)
    found, expected = (
        json.loads(Path(f"{out}/result.json").read_text()) for out in ("broken", "whole")
    )
    if "centralised_difference" not in found["metrics"]:  # it broke off when all was done
        assert pulls == farewell
        del expected["metrics"]["centralised_difference"]
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-6)
    assert [row["round"] for row in found["history"]] == [
        row["round"] for row in expected["history"]
    ]


def test_same_seed_same_model(base, capsys):
    again = result(capsys, *ONE_SHOT, "--quiet", out="again")
    np.testing.assert_allclose(coefficients("again"), coefficients("base"), rtol=0.0, atol=1e-12)
    assert again["metrics"] == pytest.approx(base["metrics"])

"""`fedkern run hierarchical-svm`: every option, every file, and one clear line for bad input."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.methods.registry import family, method, options

RUN = ["run", "hierarchical-svm"]
SMALL = ["--data", "iris", "--positive", "1", "--users", "6"]
VERTICAL = [*SMALL, "--partition", "vertical"]


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def result(capsys: pytest.CaptureFixture[str], *arguments: str, out: str = "here") -> Any:
    """Run and return what is printed, which is JSON and nothing else."""
    capsys.readouterr()
    assert run([*RUN, *arguments, "--quiet", "--out", out, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """Run what must fail; return its single line."""
    capsys.readouterr()
    assert run([*arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("fedkern: ")
    return lines[0]


def weights(out: str = "here") -> np.ndarray:
    with np.load(f"{out}/model.npz", allow_pickle=False) as model:
        return np.append(model["weights"], model["bias"])


# --- What a run prints and leaves -----------------------------------------------------------


def test_json_alone_is_printed_with_all_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*RUN, *SMALL, "--out", "here", "--json", "-"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert "accuracy on held-out rows" in captured.err
    assert "of the pooled optimum" in captured.err
    assert "6 users in 2 groups, 105 training and 45 held-out rows" in captured.err
    assert (found["method"], found["engine"], found["seed"]) == (
        "hierarchical-svm",
        "in-process",
        0,
    )
    keys = {"config", "versions", "metrics", "history", "exchanges", "bytes_up", "bytes_down"}
    assert keys | {"seconds", "survivors", "privacy", "artifacts"} <= set(found)
    metrics = found["metrics"]
    assert {"test_accuracy", "objective", "centralised_objective", "iterations"} <= set(metrics)
    assert {"centralised_test_accuracy", "objective_gap", "converged"} <= set(metrics)
    assert metrics["converged"] is True
    assert abs(metrics["objective"] / metrics["centralised_objective"] - 1.0) < 0.01
    history = found["history"]
    assert [row["round"] for row in history] == list(range(1, metrics["iterations"] + 1))
    assert {"primal", "dual", "consensus_difference", "rho"} <= set(history[-1])
    assert found["survivors"] == 8
    assert found["exchanges"] <= 2.1 * metrics["iterations"] + 6  # checkpoints
    config = found["config"]
    assert (config["users"], config["group_sizes"]) == (6, [3, 3])
    assert (config["rows"], config["held_out_rows"]) == (105, 45)
    assert found["artifacts"]["convergence_plot"] == "plots/convergence.png"
    assert json.loads(Path("here/result.json").read_text()) == found
    for artifact in found["artifacts"].values():
        assert (Path("here") / artifact).is_file()


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*RUN, "--help"]) == 0
    assert "--step-sizes" in capsys.readouterr().out
    promised = (
        "users groups group-sizes partition C rho sigma model features gamma architecture "
        "consensus agent-topology product staleness step-sizes delay tolerance rounds "
        "rho-schedule relaxation scale lost-groups attempts allow-single data label id site target "
        "split engine clients seed test-size secure drop out json resume quiet"
    )
    every = [*family("hierarchical-svm").parameters(), *options(method("hierarchical-svm"))]
    declared = {o.flag.removeprefix("--") or o.name.replace("_", "-") for o in every}
    assert set(promised.split()) <= declared
    for option in every:
        assert option.help, option.name


# --- Every option does what it says ---------------------------------------------------------

#: Pooled optimum of the run without options.
OPTIMUM = 53.44856475815867
#: Nodes of runs that have not 6 users and 2 agents.
SURVIVORS = {"groups": 9, "one group": 7, "architecture": 6, "ring": 9, "lost groups": 9}
#: Options, and whether the pooled optimum is that of the run without them.
SAME, OTHER = True, False
CASES: dict[str, tuple[list[str], bool]] = {
    "clients": (["--clients", "6"], SAME),
    "groups": (["--groups", "3"], SAME),
    "one group": (["--groups", "1"], SAME),
    "group sizes": (["--group-sizes", "4,2"], SAME),
    "single": (["--group-sizes", "5,1", "--allow-single"], SAME),
    "architecture": (["--architecture", "centralised"], SAME),
    "C": (["--C", "0.1"], OTHER),
    "rho": (["--rho", "3"], SAME),
    "sigma": (["--sigma", "5"], SAME),
    "schedule": (["--rho-schedule", "balanced"], SAME),
    "relaxation": (["--relaxation", "1.2"], SAME),
    "step sizes": (["--step-sizes", "2,4"], SAME),
    "scale": (["--scale", "none"], OTHER),
    "logistic": (["--model", "logistic"], OTHER),
    "ridge": (["--model", "ridge"], OTHER),
    "rbf": (["--model", "rbf", "--features", "20", "--gamma", "0.1"], OTHER),
    "consensus": (["--consensus", "paper", "--rounds", "40"], SAME),
    "staleness": (["--staleness", "2"], SAME),
    "delay": (["--staleness", "2", "--delay", "exponential:0.002,0.01"], SAME),
    "ring": (["--groups", "3", "--agent-topology", "ring"], SAME),
    "lost groups": (["--groups", "3", "--lost-groups", "leave-out"], SAME),
    "dirichlet": (["--split", "dirichlet", "--alpha", "1"], SAME),
    "secure": (["--secure"], SAME),
    "test size": (["--test-size", "0.5"], OTHER),
    "seed": (["--seed", "3"], OTHER),
    "dropped": (["--drop", "0.02", "--attempts", "20"], SAME),
}


#: The others are run by ``make test-long``: tests of the strategy have them as well.
QUICK = ("clients", "one group", "C", "rbf", "consensus", "staleness", "ring", "secure", "dropped")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in CASES],
)
def test_an_option_changes_what_it_should(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, same = CASES[name]
    found = result(capsys, *SMALL, *arguments)
    metrics = found["metrics"]
    assert (metrics["centralised_objective"] == pytest.approx(OPTIMUM, rel=1e-6)) == same
    assert 0.6 < metrics["test_accuracy"] <= 1.0
    if name == "consensus":
        assert abs(metrics["objective_gap"]) > 3e-3
    else:
        assert abs(metrics["objective_gap"]) < 5e-3
    assert found["survivors"] == SURVIVORS.get(name, 8)


def test_few_rounds_end_the_run_and_tolerance_ends_it_sooner(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = result(capsys, *SMALL, "--rounds", "3", out="few")["metrics"]
    assert (few["iterations"], few["converged"]) == (3, False)
    loose = result(capsys, *SMALL, "--tolerance", "0.05", out="loose")["metrics"]
    tight = result(capsys, *SMALL, "--tolerance", "1e-3", out="tight")["metrics"]
    assert loose["iterations"] < tight["iterations"]
    assert abs(tight["objective_gap"]) < abs(loose["objective_gap"])


def test_a_vertical_split_has_the_same_optimum(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--product", "orthogonal"], ["--group-sizes", "2,4"]):
        found = result(capsys, *VERTICAL, *more, out="-".join(["v", *more]))
        metrics = found["metrics"]
        assert metrics["objective"] == pytest.approx(OPTIMUM, rel=2e-3)
        assert metrics["centralised_objective"] == pytest.approx(OPTIMUM, rel=1e-9)
        assert metrics["test_accuracy"] > 0.6
        assert found["survivors"] == 9
        assert [len(names) for names in found["config"]["columns"]] == [2, 2]


def test_classes_and_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    found = result(capsys, "--data", "wine", "--users", "4", out="wine")
    assert found["config"]["classes"] == [0.0, 1.0, 2.0]
    assert found["metrics"]["test_accuracy"] > 0.9
    numbers = ["--data", "iris", "--target", "petal width (cm)", "--users", "4"]
    found = result(capsys, *numbers, "--model", "ridge", out="iris")
    assert 0.1 < found["metrics"]["test_rmse"] < 0.4  # centimetres
    assert "test_accuracy" not in found["metrics"]


def test_a_run_that_breaks_off_is_resumed_to_the_same_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedkern_flwr.simulations import engines

    arguments = [*SMALL, "--rounds", "12", "--checkpoint-every", "4"]
    whole = result(capsys, *arguments, out="whole")
    real, left = engines.InProcessGrid.pull_messages, [20]

    def pull(self: Any, message_ids: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(self, message_ids)

    with monkeypatch.context() as patch:
        patch.setattr(engines.InProcessGrid, "pull_messages", pull)
        assert run([*RUN, *arguments, "--quiet", "--out", "broken"]) == 130
    assert not Path("broken/result.json").exists()
    assert run([*RUN, "--resume", "broken", "--quiet"]) == 0
    resumed = json.loads(Path("broken/result.json").read_text())
    assert resumed["metrics"]["objective"] == pytest.approx(whole["metrics"]["objective"], rel=1e-9)
    np.testing.assert_allclose(weights("broken"), weights("whole"), rtol=0.0, atol=1e-9)


# --- Bad input ------------------------------------------------------------------------------

NEEDS_V = ["--partition", "vertical"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--users", "3", "--groups", "4"], "3 users cannot be dealt to 4 groups"),
        (["--users", "0"], "0 users cannot be dealt to 2 groups"),
        (["--groups", "0"], "20 users cannot be dealt to 0 groups"),
        (["--group-sizes", "4,5", "--users", "10"], "groups of 4, 5 users are not 10 users"),
        (["--group-sizes", "4,0"], "groups of 4, 0 users are not 4 users; use positive sizes"),
        (["--group-sizes", "4;5"], "group-sizes is '4;5'; give numbers separated by commas"),
        (["--group-sizes", "4,5", "--groups", "3"], "2 group sizes are not 3 groups"),
        (["--users", "4", "--clients", "5"], "4 users are not 5 clients; leave out --clients"),
        (["--users", "3"], "group 2 has a single user, whose model its agent would see"),
        (["--users", "1", "--groups", "1"], "a single user has nobody to sum with"),
        (["--users", "400"], "105 training rows cannot be dealt to 400 users"),
        ([*NEEDS_V, "--groups", "5"], "4 columns cannot be dealt to 5 groups; use fewer groups"),
        ([*NEEDS_V, "--model", "rbf"], "model rbf needs all columns of a row"),
        ([*NEEDS_V, "--staleness", "1"], "a vertical split needs every group"),
        ([*NEEDS_V, "--split", "dirichlet"], "split dirichlet is for users who hold whole rows"),
        ([*NEEDS_V, "--rho", "1"], "rho has no meaning in a vertical split"),
        (["--agent-topology", "ring"], "in a ring of 2 agents each would see another's term"),
        (["--lost-groups", "leave-out"], "of 2 groups none can be left out"),
        (["--architecture", "chain", "--staleness", "1"], "staleness needs agents"),
        (["--architecture", "centralised", "--groups", "3"], "centralised has no groups"),
        (["--architecture", "chain", "--group-sizes", "2,2"], "chain has no groups"),
        (["--features", "10"], "features is for model rbf"),
        (["--gamma", "1"], "gamma is for model rbf"),
        (["--product", "orthogonal"], "product orthogonal is for vertical splits"),
        (["--step-sizes", "1,2,3"], "3 step sizes are not 2 groups"),
        (["--step-sizes", "1,x"], "step-sizes is '1,x'"),
        (["--step-sizes", "1,-2"], "step size 1 is -2.0; use a positive number"),
        (["--step-sizes", "1,2", "--rho", "3"], "rho and step_sizes are both given"),
        (["--delay", "5"], "delay is '5'; use exponential:SECONDS or fixed:SECONDS"),
        (["--delay", "fixed:1,2,3"], "delay has 3 numbers for 2 groups"),
        (["--target", "0"], "model linear is for classes, the labels are numbers; use --model"),
        (["--target", "0", "--model", "logistic"], "model logistic is for classes"),
        (["--split", "site"], "--site"),
        (["--no-secure"], "this method has secure sums only"),
        (["--C", "0"], "C is 0.0; use a positive number"),
        (["--rho", "-1"], "rho is -1.0; use a positive number"),
        (["--tolerance", "nan"], "tolerance is nan"),
        (["--relaxation", "2"], "relaxation is 2.0"),
        (["--staleness", "-1"], "staleness is -1"),
        (["--rounds", "0"], "rounds is 0; use at least 1"),
        (["--runs", "0"], "runs is 0"),
        (["--drop", "1"], "drop is 1.0"),
        (["--seed", "-1"], "seed is -1"),
        (["--timeout", "0"], "timeout is 0"),
        (["--test-size", "1"], "test-size is 1.0"),
        (["--consensus", "none"], "'exact', 'paper'"),
        (["--architecture", "star"], "'hierarchical', 'centralised', 'chain'"),
        (["--positive", "7"], "there is no class 7"),
        (["--data", "mars"], "there is no built-in data set 'mars'"),
        (["--hospitals", "2"], "No such option"),
    ],
)
def test_bad_options_are_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in complaint(capsys, *RUN, "--data", "iris", "--quiet", *arguments)
    assert not Path("runs").exists()  # found before anything is made


def write(path: str, rows: list[list[Any]], names: str = "abcy") -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([list(names), *rows])


def table(count: int = 60) -> list[list[Any]]:
    x = np.random.default_rng(1).normal(50.0, 20.0, (count, 3))
    return [[*row, int(row[0] > row[1])] for row in x.tolist()]


def test_missing_values_are_refused_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    rows = table()
    rows[7][1] = ""
    write("t.csv", rows)
    arguments = ["--data", "t.csv", "--label", "y", "--users", "4"]
    line = complaint(capsys, *RUN, *arguments, "--quiet")
    assert "column 'b' of t.csv is empty or NaN in 1 row" in line
    assert "--missing drop-row" in line
    found = result(capsys, *arguments, "--missing", "drop-row")
    assert found["config"]["rows"] + found["config"]["held_out_rows"] == 59


# --- Predictions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["--model", "logistic"],
        ["--model", "rbf", "--features", "30", "--gamma", "0.001"],
        ["--architecture", "centralised"],
        ["--partition", "vertical"],
        ["--partition", "vertical", "--product", "orthogonal", "--seed", "2"],
    ],
)
def test_predictions_of_a_file_are_those_of_the_run(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.array(table(90))
    train, test = rows[:60], rows[60:]
    names = np.array(list("abc"))
    np.savez(
        "t.npz",
        **{"X": train[:, :3], "y": train[:, 3], "X_test": test[:, :3], "y_test": test[:, 3]},
        feature_names=names,
    )
    found = result(capsys, "--data", "t.npz", "--users", "4", *more)
    shuffled = [[i, row[2], row[0], row[1]] for i, row in enumerate(test.tolist())]
    write("new.csv", [*shuffled, [30, "", 1.0, 1.0]], names="icab")
    assert run(["predict", "here", "--data", "new.csv", "--id", "i", "--out", "p.csv"]) == 0
    assert "30 predictions: p.csv, 1 left out" in capsys.readouterr().err
    with open("p.csv", newline="") as file:
        heads, *made = csv.reader(file)
    assert heads == ["id", "class", "output_0"]
    assert [row[0] for row in made] == [str(k) for k in range(30)]
    right = np.array([float(row[1]) for row in made]) == test[:, 3]
    assert right.mean() == pytest.approx(found["metrics"]["test_accuracy"])


@pytest.mark.parametrize("partition", ["horizontal", "vertical"])
def test_predicted_numbers_have_the_labels_unit(
    partition: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.array(table(90))
    y = 1000.0 + 3.0 * rows[:, 0] - rows[:, 2]
    train, test = slice(60), slice(60, None)
    np.savez(
        "t.npz",
        **{"X": rows[train, :3], "y": y[train], "X_test": rows[test, :3], "y_test": y[test]},
        feature_names=np.array(list("abc")),
    )
    chosen = ["--model", "ridge", "--partition", partition]
    found = result(capsys, "--data", "t.npz", "--users", "4", *chosen)
    write("new.csv", rows[test, :3].tolist(), names="abc")
    assert run(["predict", "here", "--data", "new.csv", "--out", "p.csv", "--quiet"]) == 0
    with open("p.csv", newline="") as file:
        made = np.array([float(row["prediction"]) for row in csv.DictReader(file)])
    error = float(np.sqrt(np.mean((made - y[test]) ** 2)))
    assert error == pytest.approx(found["metrics"]["test_rmse"], rel=1e-6)
    assert error < 10.0


def test_what_cannot_be_predicted_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    result(capsys, *SMALL)
    write("few.csv", [[1.0, 2.0, 3.0, 4.0]])
    assert "few.csv lacks 4 columns of the model" in complaint(
        capsys, "predict", "here", "--data", "few.csv"
    )
    result(capsys, *VERTICAL, out="vertical")
    names = json.loads(Path("vertical/scaling.json").read_text())["columns"]
    with open("new.csv", "w", newline="") as file:
        csv.writer(file).writerows([names, [1.0, 2.0, 3.0, 4.0]])
    assert run(["predict", "vertical", "--data", "new.csv", "--quiet"]) == 0
    for part in Path("vertical/private_state").glob("*/*.model"):
        part.unlink()
    line = complaint(capsys, "predict", "vertical", "--data", "new.csv", code=1)
    assert "partition 6: this agent kept no part of the model; give it the state-dir" in line
    damaged = Path("here/model.npz").read_bytes()[:-30]
    Path("here/model.npz").write_bytes(damaged)
    line = complaint(capsys, "predict", "here", "--data", "new.csv")
    assert "here/model.npz is damaged or not a model" in line
    Path("here/model.npz").write_bytes(Path("vertical/model.npz").read_bytes())
    Path("here/config.json").write_text(
        Path("here/config.json").read_text().replace("hierarchical-svm", "fdskl")
    )
    line = complaint(capsys, "predict", "here", "--data", "new.csv")
    assert "here/model.npz is a model of hierarchical-svm, not of fdskl" in line

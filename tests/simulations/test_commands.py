"""What every method promises on the command line: JSON, files, a table, seeds, going on.

Contracts say of all ways that faults, resumed runs and engines change nothing; this says that the
command line hands on what it is told, and of what it leaves.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zoo import chosen

from fedkern_flwr.gram.matrix import unpack
from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations.cli.main import app

pytestmark = pytest.mark.usefixtures("in_tmp")

METHODS: Any = app.commands["run"].loaded.commands  # type: ignore[attr-defined]
ONLINE = ["pof-mkl", "pof-rls", "ofskl", "ofmkl-avg", "vm-kofl", "em-kofl", "per-fed-avg"]
ONLINE += ["local-only"]
#: They differ from POF-MKL in their learning alone.
ALIKE = {"ofskl", "ofmkl-avg", "vm-kofl", "em-kofl"}
every_method = pytest.mark.parametrize("name", chosen(METHODS, METHODS.keys() - ALIKE))
#: The other online methods are of the same family.
every_family = pytest.mark.parametrize("name", [n for n in METHODS if n not in ONLINE[1:]])


@dataclass(frozen=True)
class Promise:
    """What a small run of a method leaves and shows."""

    exchanges: int
    nodes: int
    rounds: int
    size: str
    server_saw: str
    metrics: dict[str, tuple[float, float]]
    plots: tuple[str, ...] = ()
    plain: bool = False  # the server sees what single parties computed
    seeded: bool = True  # another seed makes another model
    tolerance: float = 1e-9


ERROR = {"mse": (0.01, 2.0), "test_mse": (1e-9, 2.0)}
STREAMS = Promise(
    14, 4, 12, "4 clients x 12 samples", "every client's reply",
    {**ERROR, "mse_std": (0.0, 0.0), "regret_mean": (0.0, 5.0), "regret_std": (0.0, 5.0)},
    ("mse_plot", "regret_plot"), plain=True,
)  # fmt: skip
FIFTH, USERS = "sums of at least 5 of 6 clients", "24 users on 6 nodes, 14 items"
PROMISES = dict.fromkeys(ONLINE, STREAMS) | {
    "per-fed-avg": replace(STREAMS, metrics=ERROR, plots=("mse_plot",)),
    "local-only": replace(STREAMS, exchanges=2),
    "fed-cg": Promise(
        5, 4, 1, "2 hospitals, 2 centres, 105 training and 45 held-out rows",
        "sums over 2 hospitals", {"test_accuracy": (0.9, 1.0)}, tolerance=1e-8,
    ),
    "fdskl": Promise(  # whose predictions are counted
        3, 4, 1, "4 parties (1 with labels), 113 training and 37 held-out rows",
        "masked phases, which rows belong together", {"test_accuracy": (0.85, 1.0)}, plain=True,
        tolerance=1e-12,
    ),
    "secure-gram": Promise(
        6, 6, 1, USERS, FIFTH, {"max_abs_error": (0, 0), "items": (13, 13)}, seeded=False,
        tolerance=0.0,
    ),
    "fed-cfk": Promise(
        8, 6, 1, USERS, FIFTH,
        {"auc": (0.3, 1.0), "ndcg@100": (0.3, 1.0), "evaluated_users": (9, 24)}, tolerance=0.0,
    ),
    "hierarchical-svm": Promise(
        17, 6, 11, "4 users in 2 groups, 105 training and 45 held-out rows",
        "the global model of each iteration",
        {"test_accuracy": (0.6, 1.0), "objective_gap": (-0.01, 0.01), "converged": (1, 1)},
        ("convergence_plot",),
    ),
    "kernel-pca": Promise(
        7, 3, 0, "3 clients, 120 rows and 30 held out", "sums of at least 3 of 3 clients",
        {"explained": (0.9, 1.0), "test_explained": (0.9, 1.0)},
        tuple(f"node_{k}_projections" for k in range(3)), plain=True,
    ),
    "summary": Promise(
        6, 3, 0, "3 clients, 150 rows", "sums of at least 3 of 3 clients",
        {"rows": (150, 150), "columns": (5, 5), "rank_error": (0.0, 0.1)},
        ("histograms_plot", "correlations_1_plot", "summary_table", "columns_table"),
        seeded=False, plain=True,
    ),
}  # fmt: skip
#: What parties of a small run turn out to hold.
MATCHED: dict[str, dict[str, Any]] = {
    "fed-cg": {"blocks": {"clinical": [0, 1], "centre 1": [2], "centre 2": [3]}},
    "fdskl": {"passive_parties": [1, 2, 3]},
}
JUDGED = {"centralised_difference", "test_accuracy", "centralised_test_accuracy"}
KEYS = {"method", "engine", "seed", "config", "versions", "metrics", "history", "exchanges"}
KEYS |= {"bytes_up", "bytes_down", "seconds", "survivors", "failures", "privacy", "artifacts"}
#: Where the time of a run goes; methods that train in exchanges or at the server.
PARTS = ["read", "collect", "train", "judge", "plots"]
TRAINING = ("fdskl", "fed-cg", "hierarchical-svm", "pof-mkl", "pof-rls")
#: Whose model ranks items, or is a matrix of rows without labels.
NOT_WHOLE = ("secure-gram", "fed-cfk", "summary")


# --- What a run prints and leaves -----------------------------------------------------------


@every_method
def test_json_alone_is_printed_and_kept_with_all_its_keys(name, finished):
    found, promise = finished(name).result, PROMISES[name]
    assert set(found) >= KEYS
    assert (found["method"], found["engine"], found["seed"]) == (name, "in-process", 0)
    assert (found["exchanges"], found["survivors"]) == (promise.exchanges, promise.nodes)
    assert len(found["history"]) == promise.rounds
    assert [row["round"] for row in found["history"]] == list(range(1, promise.rounds + 1))
    for metric, (low, high) in promise.metrics.items():
        assert low <= found["metrics"][metric] <= high, metric
    assert json.loads((finished(name).folder / "result.json").read_text()) == found
    assert MATCHED.get(name, {}).items() <= found.get("matched", {}).items()
    if name == "hierarchical-svm":
        each_user = pytest.approx(found["bytes_up"] / 4e3)
        assert found["metrics"]["kilobytes_per_user"] == each_user
    judged = {"roc_plot", "confusion_plot", "calibration_plot"} if "held_out" in found else set()
    whole = set() if name in NOT_WHOLE else {"predictor"}
    files = {*promise.plots, *judged, *whole, "model", "scaling", "report"}
    assert files == set(found["artifacts"])
    for artifact in found["artifacts"].values():
        content = (finished(name).folder / artifact).read_bytes()
        assert content.startswith(b"\x89PNG") == artifact.endswith(".png")
    seen = found["privacy"]["seen"]["server"]
    assert ("plain" in {row["kind"] for row in seen}) == promise.plain
    sums = found["privacy"]["protocol"] == "secure sums"
    assert ("masked" in {row["kind"] for row in seen}) == sums == (name not in ONLINE)
    assert found["bytes_up"] > 0
    assert found["failures"] == {}
    parts = found["seconds_by_part"]
    assert [*parts] == PARTS
    assert sum(parts.values()) >= found["seconds"] > 0.0
    assert parts["train"] > 0.0 or name not in TRAINING
    assert min(parts.values()) >= 0.0 < parts["judge"]
    config, data = found["config"], found["config"]["data"]  # what is found, and asked for
    assert config.get("clients", promise.nodes) == promise.nodes
    for fact in (config.keys() & data.keys()) - {"data"}:
        assert data[fact] in (None, [], config[fact]), fact
    assert ("held_out" in found) == ("test_accuracy" in promise.metrics)


@every_method
def test_the_table_fits_a_terminal_and_says_what_the_server_saw(name, finished):
    promise = PROMISES[name]
    head = f": {promise.size}, in-process\n"
    assert head in finished(name).shown
    table = finished(name).shown.partition(head)[2]
    assert "…" not in table
    assert max(map(len, table.partition("run folder: ")[0].splitlines())) <= 80
    (line,) = [line for line in table.splitlines() if "the server saw" in line]
    assert line.partition("the server saw")[2].strip() == promise.server_saw


def test_results_are_printed_and_notes_are_not(commands, tables, table):
    """A table that lines up, without colours, in a file of 80 columns; what was done goes apart."""
    table["a"] = [f"{value:.1f} kg" for value in table["a"]]
    run = ("--data", tables.write("t.csv", table), "--label", "y", "--id", "id", "--out", "here")
    code, out, err = commands("run", "fdskl", *run, "--features", "20", "--gamma", "1")
    assert (code, "\x1b" in out) == (0, False)
    assert "accuracy on held-out rows" in out
    assert "run folder: here" in out
    assert "note: " in err
    assert "note: " not in out
    body = out.partition("value")[2].partition("run folder")[0].splitlines()[1:-1]
    assert len({len(line) for line in body}) == 1
    assert len(body[0]) <= 80
    assert "predictions: " in commands("predict", "here", "--data", "t.csv", "--id", "id")[1]


@every_method
def test_what_stays_in_the_folder_is_its_owners_alone(name, finished):
    """The last state of each node, and no phase, kernel or checkpoint that is not needed."""
    folder = finished(name).folder
    kept = [path for path in folder.glob("private_state/*/*") if path.is_file()]
    nodes = {path.name.split("-round")[0].split(".")[0] for path in kept}
    assert nodes == {f"partition-{k}" for k in range(PROMISES[name].nodes)}
    states = [path for path in kept if path.suffix == ".state"]
    assert len(states) in (0, PROMISES[name].nodes)
    for path in kept:
        assert path.suffix not in (".kernel", ".phases")
        assert path.stat().st_mode & 0o077 == 0
    assert (folder / "checkpoint-0.npz").is_file()  # after the last round, however few there are
    scaling = json.loads((folder / "scaling.json").read_text())
    assert scaling.get("items", ["1", "2"])[:2] == ["1", "2"]
    assert {"items", "encoder"} & set(scaling), scaling


@every_family
def test_quiet_shows_nothing_and_a_seed_gives_the_same_model(name, finished, commands, differs):
    found = commands("run", *commands.small(name), "--quiet", "--json", "found.json")
    assert found == (0, "", "")
    (folder,) = Path("runs").glob(f"{name}-*")
    again = json.loads(Path("found.json").read_text())
    assert json.loads((folder / "result.json").read_text()) == again
    first = finished(name)
    assert again["metrics"] == pytest.approx(first.result["metrics"], abs=1e-9)
    assert not differs(folder, first.folder, PROMISES[name].tolerance)
    other = commands.result(*commands.small(name), "--seed", "5")
    assert other["seed"] == 5
    assert differs("here", folder, 1e-6) == PROMISES[name].seeded


#: A metric that is the mean over runs, and what makes the runs differ.
AVERAGED = {
    "pof-mkl": ("mse", []), "secure-gram": ("rows", ["--participation", "0.6"]),
    "fed-cfk": ("auc", ["--participation", "0.6"]), "kernel-pca": ("explained", []),
    "fed-cg": ("centralised_difference", []), "fdskl": ("centralised_difference", []),
}  # fmt: skip


@pytest.mark.parametrize("name", AVERAGED)
def test_runs_are_averaged(name, commands):
    metric, more = AVERAGED[name]
    found = commands.result(*commands.small(name), *more, "--runs", "2")
    draws = json.loads(Path("here/draws.json").read_text())
    values = [draw["metrics"][metric] for draw in draws]
    assert len(values) == 2
    assert (len(set(values)) > 1) == PROMISES[name].seeded
    assert found["metrics"][metric] == pytest.approx(np.mean(values))
    if name in ONLINE:
        assert found["metrics"]["mse_std"] == pytest.approx(np.std(values, ddof=1))
    else:
        assert found["history"] == draws[0]["history"]


def test_nodes_that_stay_away_end_the_run(commands):
    arguments = [*commands.small("fed-cg"), "--drop", "0.9", "--attempts", "2", "--out", "lost"]
    assert commands.complaint("run", *arguments, "--quiet", code=1).endswith("[FK-PARTIES-LOST]")
    assert not {"model.npz", "result.json"} & {path.name for path in Path("lost").iterdir()}


# -- runs that break off


@every_family
def test_resuming_a_finished_run_shows_its_result(name, finished, commands):
    shutil.copytree(finished(name).folder, "here")
    assert commands.result(name, "--resume", "here", out="other") == finished(name).result
    other = "fdskl" if name == "fed-cg" else "fed-cg"
    line = commands.complaint("run", other, "--resume", "here")
    assert f"fedkern run {name} --resume" in line
    assert line.endswith("[FK-RUN-OTHER]")
    again = [*commands.small(name), "--seed", "9", "--out", "here", "--quiet"]
    said = commands.interrupt(1, *again, "--force")
    assert said.endswith("[FK-COMMAND-INTERRUPTED]")
    kept = {path.name for path in Path("here").iterdir()}
    assert "config.json" in kept
    assert not {"result.json", "model.npz", "scaling.json"} & kept
    commands.interrupt(1, *again)  # no checkpoint yet: nothing is in the way


EVERY_4 = ["--checkpoint-every", "4"]
CG = ["--solver", "cg", "--preconditioner-rank", "0"]
STREAMING = "--data iris --positive 2 --schedule streaming --rounds 25 --directions 4 --batch 8"
STREAMING += " --gamma 2 --loss square --checkpoint-every 10"
#: Method, options beside those of a small run, after how many pulls it is killed, and whether a
#: checkpoint is there by then. Without a small run: all options.
KILLED: list[tuple[str, list[str], int, bool]] = [
    ("pof-rls", EVERY_4, 9, True), ("local-only", [], 1, False),
    ("ofmkl-avg", ["--runs", "2", "--hindsight", "--features", "4"], 15, True),
    ("fed-cg", CG, 12, True), ("fdskl", STREAMING.split(), 15, True),
    ("secure-gram", ["--participation", "0.8"], 4, True),
    ("fed-cfk", ["--participation", "0.8"], 6, True),
    ("hierarchical-svm", EVERY_4, 8, True), ("kernel-pca", [], 4, True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "pulls", "kept"), KILLED)
def test_a_killed_run_comes_to_the_same_model(name, arguments, pulls, kept, commands, differs):
    whole_run = "--schedule" in arguments
    start = [name, *arguments] if whole_run else [*commands.small(name), *arguments]
    whole = commands.result(*start, out="whole")
    commands.kill(pulls, *start, "--quiet", "--out", "killed")
    assert not Path("killed/result.json").exists()
    progress, draws = list(Path("killed").glob("checkpoint-*")), Path("killed/draws.json")
    assert bool(progress) == kept
    done = json.loads(draws.read_text()) if draws.exists() else []
    if progress:
        line = commands.complaint("run", *start, "--out", "killed")  # nothing is overwritten
        assert line.endswith("[FK-FOLDER-UNFINISHED]")
    assert commands("run", name, "--resume", "killed", "--quiet")[0] == 0
    assert json.loads(draws.read_text())[: len(done)] == done  # and are not computed again
    found = json.loads(Path("killed/result.json").read_text())
    assert not differs("killed", "whole", 1e-6 if CG[0] in arguments else 1e-9)
    assert [row["round"] for row in found["history"]] == [r["round"] for r in whole["history"]]
    assert found["artifacts"] == whole["artifacts"]
    if name in ONLINE:
        assert (found["history"], found["metrics"]) == (whole["history"], whole["metrics"])


# -- nothing is overwritten unasked, and a full disk ends in a line

SMALL = ["kernel-pca", "--clients", "3", "--features", "10", "--test-size", "0.2"]


@pytest.mark.promise("nothing-overwritten")
def test_nothing_is_replaced_unasked(commands, tables):
    run = ["run", *SMALL, "--out", "mine", "--quiet"]
    assert commands(*run)[0] == 0
    before = Path("mine/result.json").read_bytes()
    assert commands.complaint(*run).endswith("[FK-FOLDER-RESULTS]")
    assert Path("mine/result.json").read_bytes() == before
    assert commands(*run, "--force", "--features", "12")[0] == 0
    assert Path("mine/result.json").read_bytes() != before
    Path("other/clients").mkdir(parents=True)
    for file in ("clients/notes.txt", "config.json", "compare.json"):
        Path("other", file).write_text("{}")
    refused = commands.complaint("run", *SMALL, "--out", "other")
    assert refused.endswith("[FK-FOLDER-USED]")
    assert commands.complaint("compare", "demo", "--out", "other").endswith("[FK-FOLDER-RESULTS]")
    assert {path.read_text() for path in Path("other").rglob("*.*")} == {"{}"}


def test_predictions_are_not_replaced_unasked(commands, tables):
    data = tables.write("t.csv", tables.columns())
    run = ["run", "fed-cg", "--data", data, "--label", "y", "--id", "id", "--out", "o"]
    assert commands(*run)[0] == 0
    predict = ["predict", "o", "--data", data, "--id", "id"]
    first = Path("o/predictions.csv")
    assert commands(*predict)[0] == 0
    first.write_text("precious")
    assert commands(*predict)[0] == 0
    assert Path("o/predictions-2.csv").exists()
    predict += ["--out", str(first)]
    assert commands.complaint(*predict).endswith("[FK-FOLDER-RESULTS]")
    assert first.read_text() == "precious"
    assert commands(*predict, "--force")[0] == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device here")
def test_a_disk_that_takes_no_more_is_a_line(commands):
    line = commands.complaint("run", *SMALL, "--quiet", "--json", "/dev/full", code=1)
    assert line.endswith("[FK-FILE-WRITE]")


@pytest.mark.parametrize(("most", "method", "more"), [
    (2_000, "kernel-pca", ""), (12_000, "fdskl", "--features 300"),
    (12_000, "hierarchical-svm", "--model rbf --features 900"),
])  # fmt: skip
def test_files_that_stop_in_their_middle_are_a_line(most, method, more, commands):
    """After so many bytes: the settings of the run do not fit, or what nodes keep does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        code, out, err = commands("run", *commands.small(method), *more.split(), "--out", "here")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].endswith("[FK-FILE-WRITE]")
    assert "File " not in err.replace("File too large", "")  # of a traceback


def gram(out: Path | str = "here") -> tuple[np.ndarray, np.ndarray]:
    """Return the Gram matrix of a run and its items."""
    arrays, _ = load_model(Path(out) / "model.npz")
    return unpack(arrays["gram"], len(arrays["items"])), arrays["items"]


SAME, OTHER, ANY = True, False, None
RATINGS = ("secure-gram", "fed-cfk")
#: Methods, options of the data and of who holds it, whether the model is that of the run without
#: them, and what else is true of the result.
CASES: list[tuple[tuple[str, ...], str, bool | None, Callable[[Any], Any]]] = [
    (("fed-cg",), "--hospitals 3", SAME,
     lambda r: (r["config"]["hospitals"], r["config"]["clients"]) == (3, 5)),
    (("fed-cg",), "--no-own-block --centres 3", OTHER,
     lambda r: "clinical" not in r["config"]["columns"]),
    (("fed-cg",), "--hospitals 1 --allow-single --sampling U", ANY,
     lambda r: "the only hospital" in r["privacy"]["server_sees"][0]),
    (("fed-cg",), "--centres 0", OTHER, lambda r: r["survivors"] == 2),
    (("fed-cg", "fdskl"), "--test-size 0", OTHER,
     lambda r: r["metrics"] and not JUDGED & r["metrics"].keys()),
    (("fed-cg",), "--test-size 0.5", OTHER, lambda r: sum(r["config"]["held_out_rows"]) == 75),
    (("fdskl",), "--parties 2 --allow-single", ANY, lambda r: r["survivors"] == 2),
    (("fed-cfk",), "--users-per-client 1", ANY,
     lambda r: r["config"]["clients"] == r["metrics"]["rows"] == 24),
    (("secure-gram",), "--min-support 0", OTHER,
     lambda r: r["metrics"]["items"] == 14 and "in how many rows" not in str(r["privacy"])),
    (("secure-gram",), "--cohorts 3", ANY, lambda r: len(r["privacy"]["cohorts"]) >= 3),
    (("fed-cfk",), "--participation 0.5", OTHER,
     lambda r: r["survivors"] == 3 and r["metrics"]["rows"] < 24),
    (("fed-cfk",), "--rounds 3", ANY, lambda r: len(r["history"]) == 3 and r["survivors"] == 6),
    (RATINGS, "--rating stars --min-rating 4", OTHER, lambda r: r["metrics"]["rows"] == 24),
    (("fed-cfk",), "--learner cf-komd --clients 3", ANY,
     lambda r: r["tuned"]["by"] == "held-out ratings"),
    (("fed-cfk",), "--time when --hold-out time", OTHER, bool),
    (("fed-cfk",), "--test-size 0", OTHER,
     lambda r: r["metrics"]["evaluated_users"] == 0 and "auc" not in r["metrics"]),
    (("fed-cfk",), "--runs 2 --resplit", SAME, lambda r: r["config"]["runs"] == 2),
    (("hierarchical-svm",), "--group-sizes 3,1 --allow-single", ANY, bool),
    (("hierarchical-svm",), "--staleness 2 --delay exponential:0.002,0.01", ANY, bool),
    (("hierarchical-svm",), "--split dirichlet --alpha 1", ANY, bool),
    (("hierarchical-svm",), "--users 6 --partition vertical --group-sizes 2,4", ANY,
     lambda r: r["survivors"] == 9),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "same", "check"),
    [(name, *case) for names, *case in CASES for name in names],
)
def test_options_of_the_data_take_effect(name, arguments, same, check, finished, commands, differs):
    """Every run is as near to the pooled data as without it."""
    start = commands.small(name)
    if "users-per-client" in arguments:
        del start[start.index("--clients") : start.index("--clients") + 2]
    near = ["--tolerance", "0.01"] * (name == "hierarchical-svm")
    found = commands.result(*start, *near, *arguments.split())
    metrics = found["metrics"]
    assert check(found), found
    if same is not ANY:
        assert differs("here", finished(name).folder, 1e-6) != same
    if name == "secure-gram":
        assert metrics["max_abs_error"] == 0
    elif name == "hierarchical-svm":
        found = finished(name).result["metrics"]["centralised_objective"]
        assert metrics["centralised_objective"] == pytest.approx(found, rel=1e-6)
        assert abs(metrics["objective_gap"]) < 5e-3
    elif not arguments.endswith("-size 0"):
        near = {"fed-cg": 1e-6, "fdskl": 1e-2, "fed-cfk": 1e-9}[name]
        assert metrics["centralised_difference"] < near
        least = (0.0 if "hold-out" in arguments else 0.3) if name == "fed-cfk" else 0.8
        assert least < metrics.get("auc", metrics.get("test_accuracy")) <= 1.0


# Method -> what its check against pooled rows finds, and rows of the table that show it
CHECKS = {
    "fed-cg": ("centralised_difference", "difference to pooled model"),
    "fdskl": ("centralised_difference", "difference to pooled model"),
    "hierarchical-svm": ("centralised_objective", "of the pooled optimum"),
    "secure-gram": ("max_abs_error", "max. error of K"),
    "fed-cfk": ("coverage@10", "pooled"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_without_its_check_a_run_finds_the_same_and_says_how_to_ask_for_it(
    name: str, finished: Any, commands: Any
) -> None:
    metric, shown = CHECKS[name]
    checked = finished(name)
    assert checked.result["metrics"][metric] is not None
    assert shown in checked.shown
    arguments = ("--no-check-pooled", "--out", "here")
    code, out, err = commands("run", *commands.small(name), *arguments)
    found = json.loads(Path("here/result.json").read_text())
    assert (code, found["metrics"][metric]) == (0, None)
    assert shown not in out
    assert all("--check-pooled" in text for text in (err, Path("here/report.html").read_text()))
    others = {k for k, value in found["metrics"].items() if value is not None} - {"seconds"}
    assert len(others) > 3
    expected = {k: checked.result["metrics"][k] for k in others}
    assert {k: found["metrics"][k] for k in others} == pytest.approx(expected, rel=1e-6)


def test_the_table_is_shown_before_anything_is_drawn(
    commands: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = commands("run", *commands.small("fed-cg"), "--out", "here", plots=True)
    assert (code, err.strip().endswith("[FK-PACKAGE-MISSING]")) == (2, True)
    assert "accuracy on held-out rows" in out


# -- single methods


@pytest.mark.parametrize(("name", "wide"), [
    ("ofskl", ["--step-size", "paper", "--regularization", "8"]),  # the error rises
    ("per-fed-avg", ["--inner-step", "30"]),  # it jumps, and falls till the end
])  # fmt: skip
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


@pytest.mark.parametrize("path", ["u.data", "r.inter"])
def test_ratings_of_every_kind_give_the_same(path, stars, tables, commands):
    small = commands.small("fed-cfk")
    expected = commands.result(*small, "--rating", "stars", "--min-rating", "3")
    tables.ratings(path, stars, "user_id:token\titem_id:token\trating:float\ttimestamp:float")
    arguments = ["--data", path, "--clients", "6", "--min-support", "3", "--min-rating", "3"]
    found = commands.result("fed-cfk", *arguments, out="other")
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=0, abs=1e-9)
    np.testing.assert_array_equal(gram("other")[0], gram()[0])
    if path == "u.data":  # told from a table by its name
        found = commands.result("secure-gram", "--data", path, "--clients", "6")["metrics"]
        assert (found["max_abs_error"], found["rows"]) == (0, 24)


@pytest.mark.parametrize("name", ["fed-cg", "fed-cfk", "pof-mkl"])
def test_what_cannot_be_predicted_is_one_line(name, finished, tables, commands):
    here = str(finished(name).folder)
    tables.write("few.csv", {"who": [1, 2], "what": [900, 901]})
    unlike = {"fed-cg": "COLUMN-MISSING", "fed-cfk": "ITEMS-NONE"}.get(name, "COLUMN-MISSING")
    for words, code in (
        ("few.csv", unlike), ("gone.csv", "FILE-READ"), ("few.csv --out no/such.csv", "FILE-WRITE"),
    ):  # fmt: skip
        line = commands.complaint("predict", here, "--data", *words.split())
        assert line.endswith(f"[FK-{code}]")


# --- Recommendations ------------------------------------------------------------------------


def test_recommendations_for_users_of_a_file(stars, tables, commands):
    """Users of the run get from `predict` what their own nodes recommended."""
    commands.result(*commands.small("fed-cfk"), "--test-size", "0")
    folder = Path("here/private_state/recommendations")
    assert sorted(path.name for path in folder.iterdir()) == [
        f"partition-{k}.csv" for k in range(6)
    ]
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    own = [row for path in folder.iterdir() for row in tables.read(path)]
    assert {row["user"] for row in own} == {str(u + 1) for u in range(24)}
    commands.shown("predict", "here", "--data", str(commands.ratings), "--out", "p.csv")
    assert sorted(map(str, tables.read("p.csv"))) == sorted(map(str, own))
    strangers = stars[:3].copy()
    strangers[1:] = 0
    strangers[2, 5] = 4  # an item that is not in the kernel
    strangers[1, [0, 1]] = 5
    few = (stars > 0)[:, 5].sum() < 3
    for path in ("new.csv", "new.data"):
        tables.ratings(path, strangers)
        commands.shown("predict", "--force", "here/model.npz", "--data", path)
        rows = tables.read("here/predictions.csv")
        assert {row["user"] for row in rows} == {"1", "2"} | (set() if few else {"3"})
        assert [r for r in rows if r["user"] == "1"] == [r for r in own if r["user"] == "1"]


def test_recommendations_for_a_single_user_who_rated_unknown_items(tables, commands):
    """Neither what the user rated, if badly, nor what is not in the kernel is recommended."""
    commands.result(*commands.small("fed-cfk"), "--rating", "stars", "--min-rating", "3")
    rated = {str(i + 1) for i in load_model(Path("here/model.npz"))[0]["items"].tolist()}
    assert {"1", "2"} < rated
    ratings = {"1": 5, "2": 1, "s3cret-a": 5, "s3cret-b": 1}
    lines = [f"{r},{i},x,s3cret-user,monday" for i, r in ratings.items()]
    Path("new.csv").write_text("\n".join(["stars,what,note,who,when", *lines]))
    text = commands.shown("predict", "--force", "here", "--data", "new.csv")
    assert "s3cret" not in text
    rows = tables.read("here/predictions.csv")
    assert {row["user"] for row in rows} == {"s3cret-user"}
    assert {row["item"] for row in rows} == rated - {"1", "2"}
    assert [int(row["rank"]) for row in rows] == list(range(1, len(rows) + 1))
    for content, code in (
        ("user,item,stars\n1,1,5\n", "FK-COLUMN-MISSING"), ("who,what\n1,1\n", "FK-COLUMN-MISSING"),
        ("who,what,stars\n", "FK-ROWS-NONE"), ("who,what,stars\n1,1,1\n", "FK-ITEMS-NONE"),
    ):  # fmt: skip
        Path("t.csv").write_text(content)
        assert commands.complaint("predict", "here", "--data", "t.csv").endswith(f"[{code}]")

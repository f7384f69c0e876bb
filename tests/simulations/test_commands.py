"""What every method promises on the command line: JSON, files, a table, seeds, going on."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from fedkern_flwr.simulations.methods.online import OnlineFamily
from fedkern_flwr.simulations.methods.registry import METHODS, family, method, options

pytestmark = pytest.mark.usefixtures("in_tmp")
ONLINE = [cls.method for cls in OnlineFamily.strategies]


@dataclass(frozen=True)
class Promise:
    """What a small run of a method leaves and shows."""

    exchanges: int
    nodes: int
    metrics: dict[str, tuple[float, float]]
    size: str
    server_saw: str
    shown: str
    rounds: int = 1
    plots: tuple[str, ...] = ()
    sees: str = ""  # what the server sees, as the result tells it
    plain: bool = False  # the server sees what single parties computed
    seeded: bool = True  # another seed makes another model
    tolerance: float = 1e-9


REPLIES = "every client's reply"
STREAMS = Promise(
    14,
    4,
    {
        **{"mse": (0.01, 2.0), "test_mse": (1e-9, 2.0), "mse_std": (0.0, 0.0)},
        **{"regret_mean": (0.0, 5.0), "regret_std": (0, 5)},
    },
    "4 clients x 12 samples",
    REPLIES,
    "MSE (10⁻³)",
    rounds=12,
    plots=("mse_plot", "regret_plot"),
    plain=True,
)
FIFTH = "sums of at least 5 of 6 clients"
USERS = "24 users on 6 nodes, 14 items"
PROMISES = dict.fromkeys(ONLINE, STREAMS) | {
    "per-fed-avg": replace(
        STREAMS, metrics={"mse": (0.01, 2.0), "test_mse": (1e-9, 2.0)}, plots=("mse_plot",)
    ),
    "local-only": replace(STREAMS, exchanges=2),
    "fed-cg": Promise(
        5,
        4,
        {"test_accuracy": (0.9, 1.0), "iterations": (0, 0), "residual": (0.0, 1e-10),
         "centralised_difference": (1e-18, 1e-8)},
        "2 hospitals, 2 centres, 105 training and 45 held-out rows",
        "sums over 2 hospitals",
        "accuracy on held-out rows",
        sees="sums over the hospitals",
        tolerance=1e-8,
    ),
    "fdskl": Promise(
        3,
        4,
        {"test_accuracy": (0.85, 1.0), "centralised_difference": (1e-12, 5e-3), "gamma": (2, 2),
         "regularization": (0.01, 0.01)},
        "4 parties (1 with labels), 113 training and 37 held-out rows",
        "masked phases, which rows belong together",
        "accuracy on held-out rows",
        sees="numbers of rows, labelled rows, held-out rows and columns per party, keyed hashes of",
        plain=True,  # its predictions are counted
        tolerance=1e-12,
    ),
    "secure-gram": Promise(
        6, 6, {"max_abs_error": (0, 0), "items": (13, 13), "rows": (24, 24)}, USERS, FIFTH,
        "largest error of K", seeded=False, tolerance=0.0,
    ),
    "fed-cfk": Promise(
        8,
        6,
        {"auc": (0.3, 1.0), "ndcg@100": (0.3, 1.0), "recall@100": (1.0, 1.0),
         "centralised_difference": (0.0, 1e-9), "items": (13, 13), "evaluated_users": (9, 24)},
        USERS,
        FIFTH,
        "nDCG@100",
        tolerance=0.0,
    ),
    "hierarchical-svm": Promise(
        68,
        8,
        {"test_accuracy": (0.6, 1.0), "objective_gap": (-0.01, 0.01), "iterations": (30, 90),
         "centralised_test_accuracy": (0.6, 1.0), "objective": (52.0, 54.0),
         "centralised_objective": (53.4485, 53.4486), "converged": (1, 1)},
        "6 users in 2 groups, 105 training and 45 held-out rows",
        "the global model of each iteration",
        "of the pooled optimum",
        rounds=58,
        plots=("convergence_plot",),
    ),
    "kernel-pca": Promise(
        7, 3, {"explained": (0.9, 1.0), "test_explained": (0.9, 1.0), "rows": (120, 120)},
        "3 clients, 120 rows and 30 held out", "sums of at least 3 of 3 clients",
        "share of the variance explained", rounds=0, plain=True,
        plots=tuple(f"node_{k}_projections" for k in range(3)),
    ),
}  # fmt: skip
KEYS = {"method", "engine", "seed", "config", "versions", "metrics", "history", "exchanges"}
KEYS |= {"bytes_up", "bytes_down", "seconds", "survivors", "failures", "privacy", "artifacts"}
#: Whose model ranks items, or is a matrix of rows without labels.
NOT_WHOLE = ("secure-gram", "fed-cfk")
every_method = pytest.mark.parametrize("name", METHODS)


# --- What a run prints and leaves -----------------------------------------------------------


def test_every_method_has_its_promise() -> None:
    assert set(PROMISES) == set(METHODS)


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
    assert found["privacy"]["server_sees"][0].startswith(promise.sees)
    assert found["bytes_up"] > 0
    assert found["failures"] == {}
    assert ("held_out" in found) == ("test_accuracy" in promise.metrics)


@every_method
def test_the_table_fits_a_terminal_and_says_what_the_server_saw(name, finished):
    promise = PROMISES[name]
    head, _, table = finished(name).shown.partition(f"{method(name).title}: ")[2].partition("\n")
    assert head == f"{promise.size}, in-process"
    assert "…" not in table
    assert max(map(len, table.partition("run folder: ")[0].splitlines())) <= 80
    (line,) = [line for line in table.splitlines() if "the server saw" in line]
    assert line.partition("the server saw")[2].strip() == promise.server_saw
    assert promise.shown in table


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


@every_method
def test_quiet_shows_nothing_and_the_same_seed_gives_the_same_model(
    name, finished, commands, differs
):
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


PROMISED = {
    **dict.fromkeys(ONLINE, "rounds sites site-share alpha step-size hindsight"),
    "pof-rls": "kernels features width forgetting experts up down samples-per-round threshold",
    "pof-mkl": "kernels kernels-per-round exploration samples-per-round step-size threshold",
    "fed-cg": "hospitals centres landmarks sampling kernel gamma landmark-gamma regularization "
    "penalty solver preconditioner-rank init tolerance missing allow-single",
    "fdskl": "parties active-parties schedule features directions batch rounds step step-schedule "
    "loss kernel gamma regularization phase-bits missing allow-single",
    "secure-gram": "kernel degree gamma min-support cohorts participation threshold encoding "
    "rounds users-per-client bound fraction-bits learner cost min-rating",
    "fed-cfk": "kernel degree gamma min-support cohorts participation threshold rounds "
    "users-per-client regularization subtract-mean hold-out min-rating",
    "hierarchical-svm": "users groups group-sizes partition C rho sigma model features gamma "
    "architecture staleness step-sizes delay tolerance rounds rho-schedule relaxation scale "
    "lost-groups attempts allow-single",
    "kernel-pca": "components features bandwidth",
}
COMMON = "data engine ray-address clients seed test-size drop timeout out json resume quiet runs"


@every_method
def test_help_names_every_option(name, commands):
    code, text, _ = commands("run", name, "--help-all")
    every = [*options(method(name)), *family(name).parameters()]
    declared = {o.flag.removeprefix("--") or o.name.replace("_", "-") for o in every}
    promised = set(f"{COMMON} {PROMISED[name]}".split())
    promised |= {"secure"} if name != "kernel-pca" else set()
    promised |= {"label", "id", "site", "target", "missing"} if name != "fed-cfk" else {"user"}
    assert promised <= declared
    assert code == 0
    assert all(option.help for option in every)
    for flag in declared - {"C"}:
        assert flag[:12] in text, flag


AVERAGED = dict.fromkeys(METHODS, ("test_accuracy", ["--resplit"])) | {
    **dict.fromkeys(ONLINE, ("mse", [])),
    "secure-gram": ("rows", ["--participation", "0.6"]),
    "fed-cfk": ("auc", ["--participation", "0.6"]),
    "hierarchical-svm": ("objective", ["--resplit", "--rounds", "5"]),
    "kernel-pca": ("explained", []),
}


@every_method
def test_runs_are_averaged(name, commands):
    metric, more = AVERAGED[name]
    found = commands.result(*commands.small(name), *more, "--runs", "3")
    values = [draw["metrics"][metric] for draw in json.loads(Path("here/draws.json").read_text())]
    assert len(values) == 3
    assert (len(set(values)) > 1) == PROMISES[name].seeded
    assert found["metrics"][metric] == pytest.approx(np.mean(values))
    if name in ONLINE:
        assert found["metrics"]["mse_std"] == pytest.approx(np.std(values, ddof=1))


# --- Nodes that vanish ----------------------------------------------------------------------

#: How often nodes vanish, and whether the model is that of a run in which none does.
VANISHING = dict.fromkeys(ONLINE, (["--drop", "0.3"], False)) | {
    "fed-cg": (["--drop", "0.2", "--attempts", "30"], True),
    "fdskl": (["--drop", "0.4", "--attempts", "50"], True),
    "secure-gram": (["--drop", "0.1", "--attempts", "9"], False),
    "fed-cfk": (["--drop", "0.1", "--attempts", "9"], False),
    "hierarchical-svm": (["--drop", "0.02", "--attempts", "20"], True),
    "kernel-pca": (["--drop", "0.2", "--attempts", "30"], False),
}


@every_method
def test_nodes_that_vanish_are_counted(name, finished, commands, differs):
    more, same = VANISHING[name]
    found, quiet = commands.result(*commands.small(name), *more), finished(name)
    lost = [reasons for reasons in found["failures"].values() if reasons]
    assert {reason for reasons in lost for reason in reasons} == {"unreachable"}
    assert sum(sum(reasons.values()) for reasons in lost) >= 1
    if same:
        assert found["survivors"] == PROMISES[name].nodes
        assert found["exchanges"] > quiet.result["exchanges"]
        assert not differs("here", quiet.folder, max(PROMISES[name].tolerance, 1e-6))
    for exact in {"max_abs_error", "centralised_difference"} & set(found["metrics"]):
        assert found["metrics"][exact] <= PROMISES[name].metrics[exact][1]


@pytest.mark.parametrize("name", ["fed-cg", "fdskl", "fed-cfk", "secure-gram", "kernel-pca"])
def test_nodes_that_stay_away_end_the_run(name, commands):
    arguments = [*commands.small(name), "--drop", "0.9", "--attempts", "2", "--out", "lost"]
    line = commands.complaint("run", *arguments, "--quiet", code=1)
    assert "2 times in a row" in line
    assert not Path("lost/model.npz").exists()
    assert not Path("lost/result.json").exists()


def test_doctor_prints_a_line_each(commands):
    code, text, _ = commands("doctor")
    assert code == 0
    assert {line.split()[0] for line in text.strip().splitlines()} >= {"flwr", "port"}

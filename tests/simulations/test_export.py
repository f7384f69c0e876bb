"""Exported models predict what the model of the run predicts."""

from __future__ import annotations

import json
import re
import stat
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import CommandLine
from refusals import refused, refuses

from fedkern_flwr.fitted import FittedModel, load_model
from fedkern_flwr.simulations.cli.export import command
from fedkern_flwr.simulations.export.reader import outputs, predict
from fedkern_flwr.simulations.run.datasets import load_data

pytestmark = pytest.mark.usefixtures("in_tmp")
PAGE = Path(__file__).resolve().parents[2] / "docs/export.md"
TRUSTED = ["fedkern_flwr.simulations.export.scikit.ExportedModel"]
IRIS, REAL = ["--data", "iris"], ["--encoding", "fixed-point", "--data", "iris"]
FEW = ["--users", "4", "--rounds", "8", "--C", "1"]
ONLINE = ["--clients", "3", "--rounds", "16"]
RUNS: dict[str, list[str]] = {
    "fed-cg": ["fed-cg", *IRIS], "numbers": ["fed-cg", "--data", "diabetes", "--landmarks", "20"],
    "laplacian, ranks": ["fed-cg", "--kernel", "laplacian", "--scaling", "rank", *IRIS],
    "fdskl": ["fdskl", "--features", "60", *IRIS],
    "two owners": ["fdskl", "--schedule", "streaming", "--rounds", "8", "--active-parties", "2"],
    "rbf": ["secure-gram", "--kernel", "rbf", *REAL],
    "cosine": ["secure-gram", "--kernel", "cosine", "--learner", "ridge", *REAL],
    "poly": ["secure-gram", "--kernel", "poly", *REAL], "linear": ["hierarchical-svm", *FEW],
    "random features": ["hierarchical-svm", "--model", "rbf", "--features", "30", *FEW],
    "pof-mkl": ["pof-mkl", *ONLINE], "pof-rls": ["pof-rls", *ONLINE],
}  # fmt: skip


#: JSON needs no package; the file that takes its place is made by those of an extra.
KINDS = [
    "json",
    pytest.param("onnx", marks=pytest.mark.extra("onnx", "onnxruntime")),
    pytest.param("skops", marks=pytest.mark.extra("skops")),
]


def trained(options: list[str], out: str = "run") -> FittedModel:
    """Run a method; return its whole model."""
    CommandLine(Path()).trained(*options, out=out)
    return load_model(out)


def export(*options: str) -> None:
    """Export the model of the run."""
    command.main(["run", "--quiet", *options], standalone_mode=False)


def rows(options: list[str]) -> np.ndarray:
    """Return rows of the table of a run, one of them beyond its range and one with a gap."""
    named = options[options.index("--data") + 1] if "--data" in options else "breast-cancer"
    x = load_data("nyc-weather" if options[0].startswith("pof") else named).x[:120].copy()
    x[0] *= 3.0
    return x


def predicted(kind: str, given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs of an exported file for some rows, and what it predicts of them."""
    if kind == "json":
        document = json.loads(Path("run/model.json").read_text())
        return outputs(document, given), predict(document, given)
    if kind == "skops":
        estimator = import_module("skops.io").load("run/model.skops", trusted=TRUSTED)
        return estimator.decision_function(given), estimator.predict(given)
    session = import_module("onnxruntime").InferenceSession("run/model.onnx")
    names = [one.name for one in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"x": np.asarray(given, np.float64)}), strict=True))
    if "label" in found:
        return found["scores"], found["label"]
    return found["prediction"][:, None], found["prediction"]


@pytest.mark.promise("export-predicts")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", RUNS)
def test_a_file_predicts_what_the_model_predicts(name: str, kind: str) -> None:
    model, x = trained(RUNS[name]), rows(RUNS[name])
    export("--to", kind)
    given = model.features(x) if RUNS[name][0].startswith("pof") else x
    expected = model.outputs(x)
    found, labels = predicted(kind, given)
    assert np.abs(found - expected).max() < 1e-6 * max(1.0, float(np.abs(expected).max()))
    if model.classes_ is not None:
        assert np.array_equal(labels, model.predict(x))
    else:
        assert np.array_equal(labels, found[:, 0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [False, True])
def test_gaps_and_classes_are_exported(text: bool, kind: str, tables: Any, capsys: Any) -> None:
    """Columns of text are encoded elsewhere, and that is said."""
    rng = np.random.default_rng(3)
    age, dose = rng.normal(50.0, 9.0, 120), rng.lognormal(1.0, 0.8, 120)
    ill = np.where(age + dose > 53.0, "yes", "no")
    age[::7], dose[5] = np.nan, 1e4
    towns = {"town": rng.choice(["Ulm", "Bonn", "Köln"], 120)} if text else {}
    tables.write("t.csv", {"age": age, "dose": dose, **towns, "ill": ill})
    options = ["--data", "t.csv", "--label", "ill", "--centres", "1", "--allow-single"]
    model = trained(["fed-cg", *options])
    command.main(["run", "--to", kind], standalone_mode=False)
    x = model.features("t.csv") if text else np.column_stack([age, dose])
    said = " ".join(capsys.readouterr().err.split())
    assert ("columns that the encoder makes" in said) == text
    scores, labels = predicted(kind, x)
    assert np.array_equal(labels, model.predict("t.csv"))
    assert set(labels) == {"yes", "no"}
    assert np.abs(scores - model.outputs("t.csv")).max() < 1e-9


def test_the_reader_of_the_page_predicts_as_the_model_does() -> None:
    if not PAGE.is_file():
        pytest.skip("no source tree here")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.S)
    space: dict[str, Any] = {}
    exec(blocks[-1], space)
    for k, options in enumerate((["fed-cg", *IRIS], ["fdskl", "--features", "60"])):
        model, x = trained(options, f"run{k}"), rows(options)
        file = f"{k}.json"
        command.main([f"run{k}", "--to", "json", "--out", file, "--quiet"], standalone_mode=False)
        document = json.loads(Path(file).read_text())
        assert np.array_equal(space["predict"](document, x), model.predict(x))


def test_a_folder_that_is_not_there_is_named() -> None:
    refuses("FK-RUN-NONE", command.main, ["nope", "--to", "json"], standalone_mode=False)


@pytest.mark.parametrize("kind", KINDS)
def test_one_client_of_an_online_method(kind: str) -> None:
    model = trained(RUNS["pof-mkl"])
    export("--to", kind, "--client", "1")
    x = rows(RUNS["pof-mkl"])
    alone, mean = model.of_client(1).outputs(x), model.outputs(x)
    assert np.abs(alone - mean).max() > 1e-4
    found, _ = predicted(kind, model.features(x))
    assert np.abs(found - alone).max() < 1e-6 * np.abs(alone).max()


@pytest.mark.promise("export-private")
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_model_is_for_this_user_alone_and_never_overwritten(kind: str) -> None:
    trained(RUNS["fed-cg"])
    export("--to", kind)
    mode = Path(f"run/model.{kind}").stat().st_mode
    assert not mode & (stat.S_IRWXG | stat.S_IRWXO)
    refuses("FK-FOLDER-RESULTS", export, "--to", kind)
    export("--to", kind, "--force")


def test_what_cannot_be_exported_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    trained(
        ["secure-gram", "--kernel", "series", "--coefficients", "1", "--coefficients", "1", *REAL]
    )
    refuses("FK-EXPORT-KERNEL", export)
    trained(RUNS["fed-cg"], "other")
    for package in ("onnx", "skops"):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(sys.modules, f"{package}.io", raising=False)
        monkeypatch.delitem(
            sys.modules, "fedkern_flwr.simulations.export.onnx_graph", raising=False
        )
        with refused("FK-PACKAGE-MISSING"):
            command.main(["other", "--to", package, "--quiet"], standalone_mode=False)

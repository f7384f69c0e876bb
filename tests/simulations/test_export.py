"""Exported models predict what the model of the run predicts."""

from __future__ import annotations

import json
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused, refuses

from fedkern_flwr.fitted import FittedModel, load_model
from fedkern_flwr.simulations.cli.export import command
from fedkern_flwr.simulations.export.reader import outputs
from fedkern_flwr.simulations.run.datasets import load_data

pytestmark = pytest.mark.usefixtures("in_tmp")
PAGE = Path(__file__).resolve().parents[2] / "docs/export.md"
TRUSTED = ["fedkern_flwr.simulations.export.scikit.ExportedModel"]
IRIS, REAL = ["--data", "iris"], ["--encoding", "fixed-point", "--data", "iris"]
Train = Callable[..., FittedModel]
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


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    """Load them here: every process that reads the tests would take 40 MB for them."""
    for name in ("onnx", "onnxruntime", "skops"):
        pytest.importorskip(name)


@pytest.fixture
def trained(commands: Any) -> Callable[..., FittedModel]:
    """Return what runs a method; the whole model of a run."""

    def train(options: list[str], out: str = "run") -> FittedModel:
        commands.result(*options, out=out)
        return load_model(out)

    return train


def export(*options: str) -> None:
    """Export the model of the run."""
    command.main(["run", "--quiet", *options], standalone_mode=False)


def rows(options: list[str]) -> np.ndarray:
    """Return rows of the table of a run, one of them beyond its range and one with a gap."""
    named = options[options.index("--data") + 1] if "--data" in options else "breast-cancer"
    x = load_data("nyc-weather" if options[0].startswith("pof") else named).x[:120].copy()
    x[0] *= 3.0
    return x


def onnx_outputs(x: Any, file: str = "run/model.onnx") -> dict[str, Any]:
    """Run an exported graph."""
    session = pytest.importorskip("onnxruntime").InferenceSession(file)
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, {"x": np.asarray(x, np.float64)}), strict=True))


@pytest.mark.promise("export-predicts")
@pytest.mark.parametrize("name", RUNS)
def test_all_formats_predict_what_the_model_predicts(name: str, trained: Train) -> None:
    model, x = trained(RUNS[name]), rows(RUNS[name])
    for kind in ("onnx", "json", "skops"):
        export("--to", kind)
    document = json.loads(Path("run/model.json").read_text())
    assert document["encoded"] == (RUNS[name][0].startswith("pof"))
    given = model.features(x) if document["encoded"] else x
    expected = model.outputs(x)
    close = 1e-6 * max(1.0, float(np.abs(expected).max()))
    found = onnx_outputs(given)
    estimator = pytest.importorskip("skops.io").load("run/model.skops", trusted=TRUSTED)
    assert np.abs(outputs(document, given) - expected).max() < close
    assert np.abs(estimator.decision_function(given) - expected).max() < close
    told = found["scores"] if "scores" in found else found["prediction"][:, None]
    assert np.abs(told - expected).max() < close
    if "label" in found:
        assert np.array_equal(found["label"], model.predict(x))
        assert np.array_equal(estimator.predict(given), model.predict(x))


@pytest.mark.parametrize("text", [False, True])
def test_gaps_and_classes_are_exported(
    text: bool, tables: Any, capsys: Any, trained: Train
) -> None:
    """Columns of text are encoded elsewhere, and that is said."""
    rng = np.random.default_rng(3)
    age, dose = rng.normal(50.0, 9.0, 120), rng.lognormal(1.0, 0.8, 120)
    ill = np.where(age + dose > 53.0, "yes", "no")
    age[::7], dose[5] = np.nan, 1e4
    towns = {"town": rng.choice(["Ulm", "Bonn", "Köln"], 120)} if text else {}
    tables.write("t.csv", {"age": age, "dose": dose, **towns, "ill": ill})
    options = ["--data", "t.csv", "--label", "ill", "--centres", "1", "--allow-single"]
    model = trained(["fed-cg", *options])
    command.main(["run"], standalone_mode=False)
    x = model.features("t.csv") if text else np.column_stack([age, dose])
    said = " ".join(capsys.readouterr().err.split())
    assert ("columns that the encoder makes" in said) == text
    found = onnx_outputs(x)
    assert np.array_equal(found["label"], model.predict("t.csv"))
    assert set(found["label"]) == {"yes", "no"}
    assert np.abs(found["scores"] - model.outputs("t.csv")).max() < 1e-9


def test_the_reader_of_the_page_predicts_as_the_model_does(trained: Train) -> None:
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


def test_one_client_of_an_online_method(trained: Train) -> None:
    model = trained(RUNS["pof-mkl"])
    export("--client", "1")
    x = rows(RUNS["pof-mkl"])
    alone, mean = model.of_client(1).outputs(x), model.outputs(x)
    assert np.abs(alone - mean).max() > 1e-4
    found = onnx_outputs(model.features(x))["prediction"]
    assert np.abs(found - alone[:, 0]).max() < 1e-6 * np.abs(alone).max()


@pytest.mark.promise("export-private")
def test_an_exported_model_is_for_this_user_alone_and_never_overwritten(trained: Train) -> None:
    trained(RUNS["fed-cg"])
    for kind in ("onnx", "json", "skops"):
        export("--to", kind)
        mode = Path(f"run/model.{kind}").stat().st_mode
        assert not mode & (stat.S_IRWXG | stat.S_IRWXO)
        refuses("FK-FOLDER-RESULTS", export, "--to", kind)
        export("--to", kind, "--force")


def test_what_cannot_be_exported_is_one_line(monkeypatch: Any, trained: Train) -> None:
    series = ["--kernel", "series", "--coefficients", "1", "--coefficients", "1"]
    trained(["secure-gram", *series, *REAL])
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

"""Estimators: scikit-learn's checks, its tools, and the same model as ``fedkern run``."""

from __future__ import annotations

import gc
import logging
import re
import resource
import subprocess
import sys
import warnings
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedkern_flwr.fitted import load_model
from fedkern_flwr.simulations import estimators
from fedkern_flwr.simulations.estimators import (
    FDSKLClassifier,
    FDSKLRegressor,
    FedCGClassifier,
    FedCGRegressor,
    HierarchicalSVMClassifier,
    HierarchicalSVMRegressor,
    SecureGramClassifier,
    SecureGramRegressor,
)

EXACT = {"phase_bits": 32}
FEW = {"features": 100, "options": EXACT}
SMALL = {"parties": 4, "groups": 1, "options": {"rounds": 12}}
CHECKED = [
    FedCGClassifier(), FedCGRegressor(), FDSKLClassifier(**FEW), FDSKLRegressor(**FEW),
    SecureGramClassifier(), SecureGramRegressor(),
    HierarchicalSVMClassifier(C=1.0, **SMALL), HierarchicalSVMRegressor(C=1.0, **SMALL),
]  # fmt: skip
CANCER, IRIS, DIABETES = (
    load(return_X_y=True) for load in (load_breast_cancer, load_iris, load_diabetes)
)


def excused(estimator: Any) -> dict[str, str]:
    """Return the checks that fail, each with the reason, as the estimator says."""
    found: dict[str, str] = estimator.expected_failed_checks()
    return found


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(CHECKED, expected_failed_checks=excused)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("name", estimators.__all__)
def test_every_estimator_learns_and_tells_what_it_cost(name: str) -> None:
    kind, options = getattr(estimators, name), {"features": 300} if "FDSKL" in name else {}
    x, y = (part[:200] for part in (CANCER if name.endswith("Classifier") else DIABETES))
    fitted = kind(**options).fit(x, y)
    assert fitted.score(x, y) > (0.95 if name.endswith("Classifier") else 0.4)
    assert fitted.ledger_ is fitted.strategy_.ledger_
    assert fitted.ledger_.exchanges >= 3
    assert fitted.strategy_.privacy()["protocol"] == "secure sums"


def test_cross_validation_grid_search_and_pipelines() -> None:
    """Each fit has nodes, and ledgers of nodes, of its own: the same rows are asked about again."""
    x, y = (part[:210] for part in CANCER)
    assert cross_val_score(FedCGClassifier(), x, y, cv=3).mean() > 0.96
    piped = make_pipeline(StandardScaler(), FedCGClassifier(landmarks=40))
    grid = GridSearchCV(piped, {"fedcgclassifier__gamma": [0.5, 500.0]}, cv=3).fit(x, y)
    assert grid.best_params_ == {"fedcgclassifier__gamma": 0.5}
    assert grid.best_estimator_[-1].strategy_.gamma == 0.5


def test_data_frames_with_text_gaps_and_names_of_classes() -> None:
    rng = np.random.default_rng(5)
    town, age = rng.choice(["Ulm", "Köln", "Bonn"], 150), rng.normal(50.0, 9.0, 150)
    ill = np.where((town == "Ulm") ^ (age > 55.0), "yes", "no")
    gaps = [None if k % 9 == 0 else float(a) for k, a in enumerate(age)]
    table = pa.table({"town": town.tolist(), "age": gaps, "size": rng.random(150)})
    fitted = FedCGClassifier().fit(table, ill)
    assert list(fitted.feature_names_in_) == ["town", "age", "size"]
    assert fitted.score(table, ill) > 0.85
    assert set(fitted.predict(table)) <= {"yes", "no"}
    new = pa.table({"town": ["Paris", None], "age": [40.0, None], "size": [0.5, 0.5]})
    assert len(fitted.predict(new)) == 2
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(new.select(["age", "town", "size"]))


def test_a_saved_model_predicts_the_labels_of_the_estimator(tmp_path: Path) -> None:
    x, y = IRIS
    for labels in (np.array(["c", "a", "b"])[y], np.array([7, 3, 11])[y], y == 1):
        fitted = FedCGClassifier(landmarks=30).fit(x, labels)
        fitted.model_.save(tmp_path / "model.npz")
        found = load_model(tmp_path / "model.npz").predict(x)
        if labels.dtype == bool:
            found = found == "True"
        assert np.array_equal(found, fitted.predict(x))


def test_probabilities_follow_the_loss_or_rows_held_out() -> None:
    x, y = IRIS
    for fitted in (FedCGClassifier().fit(x, y), FedCGClassifier(held_out=0.3).fit(x, y)):
        found = fitted.predict_proba(x)
        assert found.shape == (150, 3)
        assert np.allclose(found.sum(axis=1), 1.0)
    x, y = (part[:200] for part in CANCER)
    likely = HierarchicalSVMClassifier(model="logistic", C=1.0).fit(x, y)
    score, found = likely.decision_function(x), likely.predict_proba(x)
    assert np.allclose(np.clip(found[:, 1], 1e-6, 1), np.clip(1 / (1 + np.exp(-score)), 1e-6, 1))


@pytest.mark.parametrize("made", [
    pytest.param(HierarchicalSVMClassifier(C=1.0), marks=pytest.mark.long),
    FDSKLClassifier(features=100, gamma=0.1, regularization=1e-3),
    SecureGramClassifier(gamma=0.1, cost=10.0),
], ids=lambda made: type(made).__name__)  # fmt: skip
def test_scores_of_a_margin_have_probabilities_that_leave_the_classes(made: Any) -> None:
    """They are those of rows held out in a second run; the model has learned from all rows."""
    x, y = CANCER
    fitted = made.fit(x[:400], y[:400])
    found, cut = fitted.predict_proba(x), fitted.model_.calibration.threshold
    assert np.array_equal(fitted.predict(x), np.where(found[:, 1] >= cut, 1, 0))
    assert log_loss(y[400:], found[400:]) < 0.25
    x, y = IRIS
    learned, held_out = np.split(np.random.default_rng(0).permutation(150), [100])
    several = clone(made).fit(x[learned], y[learned])
    likely = several.predict_proba(x)
    assert log_loss(y[held_out], likely[held_out]) < np.log(3.0)
    assert np.array_equal(several.predict(x), several.classes_[likely.argmax(axis=1)])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_any_c_is_fitted() -> None:
    """The larger, the nearer to the hard margin, which has no C."""
    x, y = IRIS[0][:100], IRIS[1][:100]
    made = [HierarchicalSVMClassifier(C=c).fit(x, y) for c in (1e6, 1e10)]
    outputs = [one.decision_function(x) for one in made]
    assert np.array_equal(outputs[0] > 0, y > 0)
    assert np.abs(outputs[1] - outputs[0]).max() < 0.05


@pytest.mark.parametrize("learner", ["svc", "ridge"])
def test_a_constant_target_is_predicted(learner: Any) -> None:
    x, y = DIABETES[0][:40], np.full(40, 3.5)
    assert np.allclose(SecureGramRegressor(learner=learner).fit(x, y).predict(x), 3.5)


@pytest.mark.parametrize("made", [
    SecureGramClassifier(gamma=0.1, cost=5.0, scaling="range"),
    SecureGramRegressor(gamma=0.1, cost=1e-2, learner="ridge", scaling="range"),
    FDSKLClassifier(features=50, gamma=0.1, regularization=1e-2, scaling="range"),
    FDSKLRegressor(features=50, gamma=0.1, regularization=1e-2, scaling="range"),
], ids=lambda made: type(made).__name__)  # fmt: skip
def test_a_row_that_counts_twice_is_as_one_that_comes_twice(made: Any) -> None:
    """Where nothing is chosen by folds; weights of classes are weights of their rows."""
    several = isinstance(made, SecureGramClassifier | FDSKLClassifier)
    x, y = (part[:100] for part in (CANCER if several else DIABETES))
    twice = np.random.default_rng(4).integers(0, 3, 100)
    outputs = "decision_function" if several else "predict"
    found = getattr(clone(made).fit(x, y, sample_weight=twice), outputs)(x)
    again = np.repeat(np.arange(100), twice)
    expected = getattr(clone(made).fit(x[again], y[again]), outputs)(x)
    alike = getattr(clone(made).fit(x, y), outputs)(x)
    far = np.abs(alike - expected).max()
    assert np.abs(found - expected).max() < 0.02 * far
    if several:
        by_class = clone(made).set_params(class_weight={0: 3.0}).fit(x, y)
        by_row = clone(made).fit(x, y, sample_weight=np.where(y == 0, 3.0, 1.0))
        assert np.allclose(by_class.decision_function(x), by_row.decision_function(x), atol=1e-6)


def test_a_fit_leaves_nothing_open() -> None:
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always", ResourceWarning)
        for made in (FedCGClassifier(), FDSKLClassifier(features=30), SecureGramClassifier()):
            clone(made).fit(*IRIS)
        gc.collect()
    assert not [str(one.message) for one in met if one.category is ResourceWarning]


def test_what_cannot_be_is_a_value_error_of_one_line() -> None:
    x, y = IRIS
    for wrong, code in (
        (FedCGClassifier(options={"landmark": 3}), "FK-OPTION-UNKNOWN"),
        (FedCGClassifier(parties=2), "FK-PARTIES-FEW"),
        (FedCGClassifier(scaling="standard"), "FK-SCALING-RANGE"),
        (FedCGClassifier(parties=1), "FK-PARTIES-FEW"),
        (FDSKLClassifier(parties=1), "FK-PARTIES-FEW"),
        (HierarchicalSVMClassifier(parties=1), "FK-PARTIES-FEW"),
        (SecureGramClassifier(parties=1), "FK-PARTIES-FEW"),
        (FedCGClassifier(landmarks=100_000), "FK-OPTION-RANGE"),
        (FDSKLClassifier(features=10_000_000), "FK-OPTION-RANGE"),
        (FedCGClassifier(tune="other"), "FK-OPTION-CHOICE"),
    ):
        with pytest.raises(ValueError, match=rf"\[{code}\]$") as met:
            wrong.fit(x, y)
        if code == "FK-PARTIES-FEW":  # the parameter, and not what the method makes of it
            assert str(met.value).startswith(f"parties is {wrong.parties}; ")


def test_arrays_are_compared_with_the_memory_there_is(commands: Any) -> None:
    """Before anything is sent, at the command line as well; few rows take little of it."""

    def check() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30,) * 2)
        for made, option in (
            (FedCGClassifier(landmarks=60_000, options={"penalty": "rkhs"}), "landmarks"),
            (FDSKLClassifier(features=1_000_000), "features"),
        ):
            with pytest.raises(ValueError, match=rf"{option} is .*\[FK-OPTION-MEMORY\]$"):
                made.fit(*IRIS)
        line = commands.complaint(
            *["run", "fed-cg", "--landmarks", "60000", "--solver", "normal-equations"]
        )
        assert "landmarks is " in line
        assert line.endswith("[FK-OPTION-MEMORY]")

    process = get_context("fork").Process(target=check)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_the_example_of_the_page_runs() -> None:
    page = Path(__file__).resolve().parents[2] / "docs/estimators.md"
    if not page.is_file():
        pytest.skip("no source tree here")
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.S)
    space: dict[str, Any] = {}
    exec(block, space)
    said = re.search(r"# (0\.\d+)", block)
    assert said
    assert round(space["scores"].mean(), 3) == float(said[1])


def test_a_fit_warns_if_it_has_not_converged(capfd: Any, caplog: pytest.LogCaptureFixture) -> None:
    level = logging.getLogger("fedkern_flwr").level
    FedCGClassifier().fit(*IRIS)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert logging.getLogger("fedkern_flwr").level == level
    with pytest.warns(ConvergenceWarning):
        HierarchicalSVMClassifier(C=1.0, options={"rounds": 2}).fit(*IRIS)


def test_seeds_decide_all_and_a_random_state_draws_one() -> None:
    x, y = IRIS

    def outputs(state: Any) -> Any:
        return FedCGClassifier(random_state=state).fit(x, y).decision_function(x)

    assert np.allclose(outputs(0), outputs(0), rtol=0, atol=1e-9)
    assert not np.allclose(outputs(0), outputs(1), atol=1e-6)
    again = [outputs(np.random.RandomState(4)) for _ in range(2)]
    assert np.allclose(*again, rtol=0, atol=1e-9)


def test_without_scikit_learn_one_line_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['sklearn'] = None\nimport fedkern_flwr.simulations.estimators"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        "ImportError: the estimators need scikit-learn; pip install 'fedkern-flwr[simulation]'"
    )

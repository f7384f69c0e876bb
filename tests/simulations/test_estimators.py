"""Estimators: scikit-learn's checks, its tools, and the same model as ``fedkern run``."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
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
CHECKED = [FedCGClassifier(), FedCGRegressor()]
SLOWER = [
    FDSKLClassifier(**FEW),
    FDSKLRegressor(**FEW),
    SecureGramClassifier(),
    SecureGramRegressor(),
    HierarchicalSVMClassifier(C=1.0, **SMALL),
    HierarchicalSVMRegressor(C=1.0, **SMALL),
]
CANCER, IRIS, DIABETES = (
    load(return_X_y=True) for load in (load_breast_cancer, load_iris, load_diabetes)
)


def excused(estimator: Any) -> dict[str, str]:
    """Return the checks that are excused, each with the reason."""
    if isinstance(estimator, HierarchicalSVMClassifier):
        reason = "class_weight is 'balanced' or None: it takes no mapping"
        return {"check_class_weight_classifiers": reason}
    return {}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(CHECKED)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(SLOWER, expected_failed_checks=excused)
def test_scikit_learns_checks_of_slower_ones(estimator: Any, check: Any) -> None:
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
    x, y = CANCER
    assert cross_val_score(FedCGClassifier(), x, y).mean() > 0.96
    piped = make_pipeline(StandardScaler(), FedCGClassifier(landmarks=40))
    grid = GridSearchCV(piped, {"fedcgclassifier__gamma": [0.5, 500.0]}, cv=3).fit(x, y)
    assert grid.best_params_ == {"fedcgclassifier__gamma": 0.5}
    assert grid.best_estimator_[-1].strategy_.gamma == 0.5


@pytest.mark.long
def test_folds_may_be_fitted_in_other_processes() -> None:
    assert cross_val_score(SecureGramClassifier(), *IRIS, n_jobs=2, cv=3).mean() > 0.9


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
    likely = HierarchicalSVMClassifier(model="logistic", C=1.0).fit(*CANCER)
    score, found = likely.decision_function(CANCER[0]), likely.predict_proba(CANCER[0])
    assert np.allclose(np.clip(found[:, 1], 1e-6, 1), np.clip(1 / (1 + np.exp(-score)), 1e-6, 1))
    assert not hasattr(HierarchicalSVMClassifier(), "predict_proba")
    assert hasattr(HierarchicalSVMClassifier(held_out=0.2), "predict_proba")


def test_what_cannot_be_is_a_value_error_of_one_line() -> None:
    x, y = IRIS
    for wrong, code in (
        (FedCGClassifier(options={"landmark": 3}), "FK-OPTION-UNKNOWN"),
        (FedCGClassifier(parties=2), "FK-PARTIES-FEW"),
        (FedCGClassifier(scaling="standard"), "FK-SCALING-RANGE"),
        (FDSKLClassifier(parties=1), "FK-PARTIES-FEW"),
        (FedCGClassifier(tune="other"), "FK-OPTION-CHOICE"),
    ):
        with pytest.raises(ValueError, match=rf"\[{code}\]$"):
            wrong.fit(x, y)


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


def test_a_fit_is_silent_and_warns_where_it_has_not_converged(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
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

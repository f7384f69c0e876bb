"""Training on phases: dense solvers as oracles, cross-validation, chunks that change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize
from sklearn.linear_model import LogisticRegression

from fedkern_flwr.errors import FedKernError, OptionError
from fedkern_flwr.labels import decide, encode_classes
from fedkern_flwr.solvers.losses import Loss, loss_derivatives, loss_values
from fedkern_flwr.vertical import phases as phases_module
from fedkern_flwr.vertical.phase_training import (
    REGULARIZATIONS_OF_NUMBERS,
    Fitted,
    fit,
    minimise,
    solve_square,
)
from fedkern_flwr.vertical.phases import angles, outputs

DTYPES = (np.uint16, np.uint32)
MARGIN_LOSSES: tuple[Loss, ...] = ("logistic", "smooth-hinge")


def phases_of(x: np.ndarray, directions: int, gamma: float, dtype: type, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    omega = np.sqrt(2 * gamma) * rng.standard_normal((x.shape[1], directions))
    turns = (x @ omega) / (2 * np.pi) + rng.random(directions)
    size = int(np.iinfo(dtype).max) + 1
    return (np.floor((turns % 1.0) * size).astype(np.int64) % size).astype(dtype)


def rings(
    n: int = 300, directions: int = 60, gamma: float = 0.5, dtype: type = np.uint16, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return phases of points in a square and targets of -1 and 1 that change with the radius."""
    rng = np.random.default_rng(seed + 1000)
    x = rng.random((n, 2)) * 2 - 1
    inside = np.sin(6.0 * np.linalg.norm(x, axis=1)) + 0.1 * rng.standard_normal(n) > 0
    return phases_of(x, directions, gamma, dtype, seed), np.where(inside, 1.0, -1.0)[:, None]


def dense(phases: np.ndarray, multiple: int) -> np.ndarray:
    return np.sqrt(2.0 / phases.shape[1]) * np.cos(multiple * angles(phases))


def objective(loss: Loss, z: np.ndarray, y: np.ndarray, w: np.ndarray, penalty: float) -> float:
    return loss_values(loss, z @ w, y).sum() / len(y) + penalty / 2 * (w * w).sum()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("penalty", [1e-6, 1e-3, 1.0])
def test_square_loss_is_solved_as_by_dense_algebra(dtype: type, penalty: float) -> None:
    phases, y = rings(dtype=dtype)
    targets = np.hstack([y, np.random.default_rng(0).uniform(-1, 1, y.shape)])
    z = dense(phases, 3)
    left = 2 / len(z) * z.T @ z + penalty * np.eye(z.shape[1])
    exact = np.linalg.solve(left, 2 / len(z) * z.T @ targets)
    found = solve_square(phases, targets, penalty, 3)
    assert found.shape == (60, 2)
    assert found.dtype == np.float64
    near = 1e-8 if dtype is np.uint32 else 1e-2
    np.testing.assert_allclose(z @ found, z @ exact, atol=near)
    best, reached = (objective("square", z, targets, w, penalty) for w in (exact, found))
    assert reached <= best * (1 + 1e-5)


@pytest.mark.parametrize("penalty", [1e-5, 1e-2])
def test_logistic_loss_is_minimised_as_by_scikit_learn(penalty: float) -> None:
    phases, y = rings()
    z = dense(phases, 3)
    other = LogisticRegression(
        C=1 / (penalty * len(y)), fit_intercept=False, solver="newton-cholesky", tol=1e-10
    ).fit(z, y[:, 0])
    found = minimise("logistic", phases, y, penalty, 3, tolerance=2e-5)
    np.testing.assert_allclose(z @ found, z @ other.coef_.T, rtol=5e-3, atol=2e-2)


@pytest.mark.parametrize("loss", MARGIN_LOSSES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_minimum_is_that_of_a_plain_optimiser(loss: Loss, dtype: type) -> None:
    phases, y = rings(dtype=dtype)
    targets = np.hstack([y, -y, np.where(np.arange(len(y)) % 3, 1.0, -1.0)[:, None]])
    z, penalty = dense(phases, 2), 1e-3
    found = minimise(loss, phases, targets, penalty, 2)
    for column in range(3):
        t = targets[:, [column]]

        def total(w: np.ndarray, t: np.ndarray = t) -> float:
            return objective(loss, z, t, w[:, None], penalty)

        def slope(w: np.ndarray, t: np.ndarray = t) -> np.ndarray:
            derivatives = loss_derivatives(loss, z @ w[:, None], t)
            return (z.T @ derivatives)[:, 0] / len(t) + penalty * w

        plain = optimize.minimize(total, np.zeros(z.shape[1]), jac=slope, options={"gtol": 1e-8})
        assert total(found[:, column]) <= plain.fun * (1 + 1e-5)
        np.testing.assert_allclose(z @ found[:, column], z @ plain.x, atol=2e-2)


@pytest.mark.parametrize("loss", MARGIN_LOSSES)
def test_the_rounding_of_float32_ends_no_search(loss: Loss) -> None:
    phases, y = rings()
    coarse, fine = (minimise(loss, phases, y, 1e-5, tolerance=value) for value in (1e-2, 1e-8))
    z = dense(phases, 1)
    pulls = [
        np.abs(z.T @ loss_derivatives(loss, z @ w, y) / len(y) + 1e-5 * w).max()
        for w in (coarse, fine)
    ]
    assert pulls[1] < 1e-6 < pulls[0]


def test_minimiser_finds_the_closed_form_of_the_square_loss() -> None:
    phases, y = rings()
    start = np.zeros((60, 1))
    found = minimise("square", phases, y, 1e-4, start=start, tolerance=1e-6)
    exact = solve_square(phases, y, 1e-4)
    np.testing.assert_allclose(outputs(phases, found), outputs(phases, exact), atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_are_products_with_the_features(dtype: type) -> None:
    phases, _ = rings(dtype=dtype)
    weights = np.random.default_rng(0).standard_normal((60, 4))
    found = outputs(phases, weights, 5)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, dense(phases, 5) @ weights, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", ["square", "smooth-hinge"])
def test_an_intercept_is_a_constant_feature(loss: Loss, dtype: type) -> None:
    phases, y = rings(dtype=dtype)
    targets, penalty = y if loss != "square" else y + 0.7, 1e-2
    z = np.hstack([dense(phases, 3), np.full((len(y), 1), 0.5)])
    start, near = np.zeros(z.shape[1]), 1e-6 if loss == "square" else 2e-3
    plain = optimize.minimize(
        lambda w: objective(loss, z, targets, w[:, None], penalty),
        start,
        jac=lambda w: (
            (z.T @ loss_derivatives(loss, z @ w[:, None], targets))[:, 0] / len(y) + penalty * w
        ),
        options={"gtol": 1e-9},
    )
    given = {"multiples": [3], "regularizations": [penalty]}
    fitted = fit(loss, phases, targets, classes=0, seed=0, intercept=True, **given)
    assert fitted.weights.shape == (61, 1)
    assert abs(fitted.weights[-1, 0]) > 0.01
    near = max(near, 2e-3 if dtype is np.uint16 else 0.0)
    np.testing.assert_allclose(outputs(phases, fitted.weights, 3)[:, 0], z @ plain.x, atol=near)


def test_a_narrow_kernel_needs_an_intercept() -> None:
    """One class is close together, the other everywhere: far from all rows only it can tell."""
    rng = np.random.default_rng(0)
    y = np.where(np.arange(600) % 2, 1.0, -1.0)[:, None]
    x = np.where(y > 0.0, 0.5 + 0.1 * rng.standard_normal((600, 12)), rng.random((600, 12)))
    phases, train = phases_of(x, 500, 4.0, np.uint16, 1), np.arange(600) < 200
    right = []
    for intercept in (False, True):
        given = {"multiples": [1], "regularizations": [1e-4, 1e-3, 1e-2], "intercept": intercept}
        found = fit("smooth-hinge", phases[train], y[train], classes=2, seed=0, **given)
        guess = decide(outputs(phases[~train], found.weights))
        right.append((guess == decide(y[~train])).mean())
    assert right[0] < 0.9 < 0.97 < right[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_size_of_chunks_changes_nothing(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    phases, y = rings(dtype=dtype)

    def results() -> list[np.ndarray]:
        square = solve_square(phases, y, 1e-3)
        hinge = minimise("smooth-hinge", phases, y, 1e-3)
        chosen = fit("square", phases, y, classes=2, seed=0, rows=150).weights
        return [outputs(phases, w) for w in (square, hinge, chosen)]

    whole = results()
    monkeypatch.setattr(phases_module, "_CHUNK", 7 * 60 * 4)
    for one, other in zip(whole, results(), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)


@pytest.mark.parametrize("constant", [0, 12345])
def test_rows_that_are_all_alike_can_be_solved(constant: int) -> None:
    phases = np.full((5000, 300), constant, np.uint16)
    found = solve_square(phases, np.ones((5000, 1)), 1e-7)
    np.testing.assert_allclose(outputs(phases, found), 1.0, atol=1e-3)


@pytest.mark.parametrize("loss", ["square", *MARGIN_LOSSES])
def test_cross_validation_chooses_a_width_that_works(loss: Loss) -> None:
    phases, y = rings(900, 200, gamma=0.5)
    chosen = fit(loss, phases[:600], y[:600], classes=2, seed=0)
    assert chosen.multiple > 1
    assert chosen.regularization < 1e-2
    assert len(chosen.widths) == 36
    assert len(chosen.scores) == (36 if loss == "square" else 6)
    assert chosen.scores[chosen.multiple, chosen.regularization] == max(chosen.scores.values())
    assert chosen.refined == {}
    found = decide(outputs(phases[600:], chosen.weights, chosen.multiple))
    assert (found == decide(y[600:])).mean() > 0.93


@pytest.mark.parametrize("loss", ["square", *MARGIN_LOSSES])
def test_cross_validation_is_a_function_of_the_seed(loss: Loss) -> None:
    phases, y = rings(400, 80)
    first, again, other = (
        fit(loss, phases, y, classes=2, seed=seed, rows=200, directions=40) for seed in (5, 5, 6)
    )
    assert first.scores == again.scores
    assert first.widths == again.widths
    assert first.refined == again.refined
    np.testing.assert_array_equal(first.weights, again.weights)
    assert first.widths != other.widths


@pytest.mark.parametrize("loss", ["square", "smooth-hinge"])
def test_many_rows_refine_what_fewer_have_chosen(loss: Loss) -> None:
    phases, y = rings(900, 150)
    chosen = fit(loss, phases, y, classes=2, seed=0, rows=300, directions=50)
    first, near = max(chosen.scores, key=lambda key: chosen.scores[key])
    tried = [value for _, value in chosen.refined]
    assert near / 11 < min(tried) <= max(tried) < near * 11
    assert (first, near) in chosen.refined
    assert len({multiple for multiple, _ in chosen.refined}) in (
        (2, 3) if loss == "square" else (1,)
    )
    best = chosen.refined[chosen.multiple, chosen.regularization]
    assert best == max(chosen.refined.values())
    one = {"multiples": [chosen.multiple], "regularizations": [chosen.regularization]}
    plain = fit(loss, phases, y, classes=2, seed=9, **one)
    np.testing.assert_array_equal(chosen.weights, plain.weights)


@pytest.mark.parametrize("loss", ["square", *MARGIN_LOSSES])
def test_single_candidates_need_no_cross_validation(loss: Loss) -> None:
    phases, y = rings()
    chosen = fit(loss, phases, y, classes=2, seed=0, multiples=[3], regularizations=[1e-3])
    assert chosen.scores == {}
    assert (chosen.multiple, chosen.regularization) == (3, 1e-3)
    plain = (
        solve_square(phases, y, 1e-3, 3) if loss == "square" else minimise(loss, phases, y, 1e-3, 3)
    )
    np.testing.assert_array_equal(chosen.weights, plain)


def test_equal_scores_go_to_the_smoother_model() -> None:
    phases, _ = rings(100)
    chosen = fit("square", phases, np.ones((100, 1)), classes=2, seed=0)
    ties = [key for key, score in chosen.scores.items() if score == 1.0]
    assert len(ties) > 1
    smallest = min(multiple for multiple, _ in ties)
    largest = max(value for multiple, value in ties if multiple == smallest)
    assert (chosen.multiple, chosen.regularization) == (smallest, largest)


def test_scores_are_those_of_models_that_have_not_seen_the_rows() -> None:
    phases, _ = rings(200, 300, gamma=5.0)
    y = np.where(np.random.default_rng(3).random((200, 1)) < 0.5, 1.0, -1.0)
    chosen = fit("square", phases, y, classes=2, seed=0)
    assert max(chosen.scores.values()) < 0.65


def test_regression_scores_are_root_mean_squared_errors() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((400, 2))
    y = np.column_stack([np.sin(5 * x[:, 0]), x[:, 1] ** 2]) + 0.1 * rng.standard_normal((400, 2))
    phases = phases_of(x, 200, 0.25, np.uint16, 1)
    chosen = fit("square", phases[:300], y[:300], classes=0, seed=0)
    best = chosen.scores[chosen.multiple, chosen.regularization]
    assert best == min(chosen.scores.values())
    assert 0.09 < best < 0.115
    found = outputs(phases[300:], chosen.weights, chosen.multiple)
    assert np.sqrt(((found - y[300:]) ** 2).mean()) < 0.12


def test_numbers_without_noise_are_known_as_exactly_as_their_phases() -> None:
    x = np.random.default_rng(0).random((700, 3))
    y = (np.sin(3 * x[:, 0]) * x[:, 1] + x[:, 2] ** 2)[:, None] / 2
    errors = {}
    for dtype in DTYPES:
        phases = phases_of(x, 300, 0.1, dtype, 1)
        tried = REGULARIZATIONS_OF_NUMBERS[5 if dtype is np.uint16 else 0 :]
        chosen = fit("square", phases[:500], y[:500], classes=0, seed=0, regularizations=tried)
        found = outputs(phases[500:], chosen.weights, chosen.multiple)
        errors[dtype] = np.sqrt(((found - y[500:]) ** 2).mean())
    assert errors[np.uint32] < 3e-5 < 3e-4 < errors[np.uint16] < 1e-2


def test_the_lambda_of_numbers_is_chosen_with_all_directions() -> None:
    """Half of them can fit noise with less: then all of them would fit too much of it."""
    rng = np.random.default_rng(1)
    x = rng.random((800, 2))
    y = np.sin(9 * x.sum(axis=1, keepdims=True)) + 0.3 * rng.standard_normal((800, 1))
    phases = phases_of(x, 900, 0.5, np.uint32, 2)
    options = {"classes": 0, "seed": 0, "regularizations": REGULARIZATIONS_OF_NUMBERS}
    chosen = fit("square", phases, y, **options)
    whole = fit("square", phases, y, directions=900, **options)
    part = fit("square", phases, y, directions=30, **options)
    assert chosen.scores == whole.scores != part.scores


@pytest.mark.parametrize("loss", ["square", *MARGIN_LOSSES])
def test_more_than_two_classes_are_told_apart(loss: Loss) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 450).astype(float)
    x = np.eye(3)[labels.astype(int)] + 0.25 * rng.standard_normal((450, 3))
    phases, targets = phases_of(x, 150, 0.1, np.uint16, 0), encode_classes(labels, range(3), "")
    chosen: Fitted = fit(loss, phases[:300], targets[:300], classes=3, seed=0)
    found = decide(outputs(phases[300:], chosen.weights, chosen.multiple))
    assert (found == labels[300:]).mean() > 0.95


def test_few_rows_have_a_fold_each() -> None:
    phases, y = rings(3)
    assert fit("logistic", phases, y, classes=2, seed=0).weights.shape == (60, 1)


def test_errors_name_what_is_wrong() -> None:
    phases, y = rings(20)
    with pytest.raises(OptionError, match=r"logistic loss is for classes.*use the square loss"):
        fit("logistic", phases, 0.5 * y, classes=0, seed=0)
    with pytest.raises(OptionError, match="loss is hinge; use one of square, logistic, smooth"):
        minimise("hinge", phases, y, 1e-3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"shape \(20, 60\), targets \(19, 1\)"):
        solve_square(phases, y[1:], 1e-3)
    with pytest.raises(OptionError, match="regularization is 0"):
        solve_square(phases, y, 0.0)
    with pytest.raises(OptionError, match="regularization is -1"):
        fit("square", phases, y, classes=2, seed=0, regularizations=[-1.0, 1.0])
    with pytest.raises(OptionError, match="there are no candidates"):
        fit("square", phases, y, classes=2, seed=0, multiples=[])
    with pytest.raises(OptionError, match="multiple is 0"):
        fit("square", phases, y, classes=2, seed=0, multiples=[0, 1])
    with pytest.raises(OptionError, match="5 folds of 1 rows"):
        fit("square", phases[:1], y[:1], classes=2, seed=0)
    with pytest.raises(OptionError, match="singular at regularization 1e-30"):
        solve_square(phases, y, 1e-30)
    with pytest.raises(FedKernError, match=r"logistic loss stopped at a gradient of .* after 1 st"):
        minimise("logistic", phases, y, 1e-6, iterations=1)

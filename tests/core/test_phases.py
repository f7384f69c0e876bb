"""Mathematics of FDSKL: directions and phases, doubly stochastic gradients, training, the file."""

from __future__ import annotations

import hashlib
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused, refuses
from scipy import optimize

from fedkern_flwr.clients.fdskl import PhaseStore
from fedkern_flwr.errors import StateError
from fedkern_flwr.kernels.random_features import (
    KERNELS,
    Kernel,
    check_frequency_seed,
    draw_directions,
    draw_offsets,
)
from fedkern_flwr.labels import decide
from fedkern_flwr.solvers.losses import LOSSES, Loss, loss_curvatures, loss_derivatives, loss_values
from fedkern_flwr.vertical import phases as phases_module
from fedkern_flwr.vertical.phase_training import (
    REGULARIZATIONS_OF_NUMBERS,
    Curvatures,
    Kept,
    Problem,
    fit,
    minimise,
)
from fedkern_flwr.vertical.phases import (
    angles,
    cosines,
    keep_features,
    outputs,
)

Array = np.ndarray
DTYPES = (np.uint16, np.uint32)
ONE, TWO = bytes([1]) * 32, bytes([2]) * 32


def size(dtype: type) -> int:
    return int(np.iinfo(dtype).max) + 1


def drawn(dtype: type, shape: tuple[int, int] = (50, 7), seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, size(dtype), shape, dtype)


# -- directions


@pytest.mark.parametrize("kernel", KERNELS)
def test_draws_are_what_the_documentation_says(kernel: Kernel) -> None:
    """One stream per secret, owner, kernel and width, a direction after the other."""

    def stream(purpose: str) -> np.random.Generator:
        text = f"fedkern-flwr {purpose}/3/{kernel}/0.8/".encode() + ONE
        return np.random.default_rng(int.from_bytes(hashlib.sha256(text).digest(), "little"))

    scale = np.sqrt(1.6) if kernel == "rbf" else 0.8
    for rows in (30, 1500):  # the first of a longer draw are the same, whoever spoils them
        rng = stream("frequencies")
        draw = rng.standard_normal if kernel == "rbf" else rng.standard_cauchy
        found = draw_directions(ONE, 3, rows, 4, kernel, 0.8)
        np.testing.assert_array_equal(found, np.stack([draw(4) for _ in range(rows)]) * scale)
        found[:] = 0.0
        turns = 2.0 * np.pi * stream("offsets").random(rows)
        np.testing.assert_array_equal(draw_offsets(ONE, 3, rows, kernel, 0.8), turns)


@pytest.mark.promise("fdskl-offsets")
def test_different_secrets_owners_widths_and_purposes_have_nothing_in_common() -> None:
    each = [(s, o, g) for s in (ONE, TWO) for o in (0, 1) for g in (0.5, 0.6)]
    draws = [draw_directions(s, o, 400, 1, "rbf", g)[:, 0] for s, o, g in each]
    draws += [draw_offsets(s, o, 400, "rbf", g) for s, o, g in each]
    assert np.abs(np.corrcoef(draws) - np.eye(16)).max() < 5.0 / np.sqrt(400)


# -- phases


@pytest.mark.parametrize("dtype", DTYPES)
def test_angles_count_steps_of_the_circle(dtype: type) -> None:
    quarter = size(dtype) // 4
    found = angles(np.array([[0, quarter, 3 * quarter]], dtype))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [[0.0, np.pi / 2, 3 * np.pi / 2]], rtol=1e-15)
    assert angles(np.array([np.iinfo(dtype).max], dtype))[0] < 2 * np.pi


@pytest.mark.parametrize("dtype", DTYPES)
@given(multiple=st.integers(1, 100), seed=st.integers(0, 99))
def test_cosines_are_those_of_the_multiplied_angles(dtype: type, multiple: int, seed: int) -> None:
    phases = drawn(dtype, seed=seed)
    found, near = cosines(phases, multiple), 1e-7 if dtype is np.uint16 else 1e-9
    assert found.dtype == (np.float32 if dtype is np.uint16 else np.float64)
    np.testing.assert_allclose(found, np.cos(multiple * angles(phases)), rtol=0, atol=near)
    np.testing.assert_array_equal(found, cosines(phases * dtype(multiple)))  # exact in the ring
    np.testing.assert_array_equal(found, cosines(phases, size(dtype) + multiple))


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_and_views_change_nothing(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = drawn(dtype, (9000, 33))
    some = phases[::3, 4:9]
    np.testing.assert_array_equal(cosines(phases)[::3, 4:9], cosines(some))
    np.testing.assert_array_equal(cosines(np.asfortranarray(phases)), cosines(phases))
    few = phases[:50, :7]
    sizes: list[tuple[int, int]] = []

    def keep(some: Array, *more: Any, **named: Any) -> Array:
        made = keep_features(some, *more, **named)
        sizes.append((made.nbytes, made.itemsize))
        return made

    monkeypatch.setattr(phases_module, "keep_features", keep)
    for most in (1, 200, 1 << 20):
        monkeypatch.setattr(phases_module, "_CHUNK", most)
        found = outputs(few, np.eye(7), 3)
        assert all(size <= max(most, 7 * each) for size, each in sizes)
        np.testing.assert_allclose(found, np.sqrt(2 / 7) * cosines(few, 3), rtol=2e-7)
        sizes.clear()
    assert outputs(few[:0], np.eye(7)).shape == (0, 7)
    assert cosines(few[:0]).shape == (0, 7)


# -- training on phases

MARGIN: tuple[Loss, ...] = ("logistic", "smooth-hinge")


def phases_of(x: Array, directions: int, gamma: float, dtype: type, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    omega = np.sqrt(2 * gamma) * rng.standard_normal((x.shape[1], directions))
    turns = (x @ omega) / (2 * np.pi) + rng.random(directions)
    return (np.rint((turns % 1.0) * size(dtype)).astype(np.int64) % size(dtype)).astype(dtype)


def rings(
    n: int = 300, r: int = 60, gamma: float = 0.5, dtype: type = np.uint16
) -> tuple[Array, Array]:
    """Return phases of points in a square and targets of -1 and 1 that change with the radius."""
    rng = np.random.default_rng(1000)
    x = rng.random((n, 2)) * 2 - 1
    inside = np.sin(6.0 * np.linalg.norm(x, axis=1)) + 0.1 * rng.standard_normal(n) > 0
    return phases_of(x, r, gamma, dtype, 0), np.where(inside, 1.0, -1.0)[:, None]


def dense(phases: Array, multiple: int) -> Array:
    return np.sqrt(2.0 / phases.shape[1]) * np.cos(multiple * angles(phases))


def objective(loss: Loss, z: Array, y: Array, w: Array, penalty: float) -> float:
    return loss_values(loss, z @ w, y).sum() / len(y) + penalty / 2 * (w * w).sum()


def slopes(loss: Loss, z: Array, y: Array, w: Array, penalty: float) -> Array:
    return z.T @ loss_derivatives(loss, z @ w, y) / len(y) + penalty * w


def plainly(loss: Loss, z: Array, y: Array, penalty: float) -> Any:
    """Minimise for one output with a plain optimiser."""
    return optimize.minimize(
        lambda w: objective(loss, z, y, w[:, None], penalty),
        np.zeros(z.shape[1]),
        jac=lambda w: slopes(loss, z, y, w[:, None], penalty)[:, 0],
        options={"gtol": 1e-9},
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("penalty", [1e-6, 1e-3, 1.0])
def test_square_loss_is_solved_as_by_dense_algebra(
    dtype: type, penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases_module, "_CHUNK", 7 * 60 * 4)
    phases, y = rings(dtype=dtype)
    targets = np.hstack([y, np.random.default_rng(0).uniform(-1, 1, y.shape)])
    z = dense(phases, 3)
    left = 2 / len(z) * z.T @ z + penalty * np.eye(z.shape[1])
    exact = np.linalg.solve(left, 2 / len(z) * z.T @ targets)
    found = minimise("square", phases, targets, penalty, 3)
    assert (found.shape, found.dtype) == ((60, 2), np.float64)
    near = 1e-8 if dtype is np.uint32 else 1e-2
    np.testing.assert_allclose(z @ found, z @ exact, atol=near)
    shown = outputs(phases, found, 3)
    assert shown.dtype == np.float64
    np.testing.assert_allclose(shown, z @ found, atol=1e-5 * max(1.0, np.abs(found).max()))
    best, reached = (objective("square", z, targets, w, penalty) for w in (exact, found))
    assert reached <= best * (1 + 1e-5)


@pytest.mark.parametrize("loss", MARGIN)
@pytest.mark.parametrize("dtype", DTYPES)
def test_minimum_is_that_of_an_optimiser(loss: Loss, dtype: type, monkeypatch: Any) -> None:
    monkeypatch.setattr(phases_module, "_CHUNK", 7 * 60 * 4)
    phases, y = rings(dtype=dtype)
    targets = np.hstack([y, np.where(np.arange(len(y)) % 3, 1.0, -1.0)[:, None]])
    z, penalty = dense(phases, 2), 1e-3
    found = minimise(loss, phases, targets, penalty, 2)
    for column in range(2):
        t = targets[:, [column]]
        plain = plainly(loss, z, t, penalty)
        reached = objective(loss, z, t, found[:, [column]], penalty)
        assert reached <= plain.fun * (1 + 1e-5)
        np.testing.assert_allclose(z @ found[:, column], z @ plain.x, atol=2e-2)


@pytest.mark.parametrize("loss", MARGIN)
def test_the_rounding_of_float32_ends_no_search(loss: Loss) -> None:
    phases, y = rings()
    pulls = []
    for tolerance in (1e-2, 1e-8):
        w = minimise(loss, phases, y, 1e-5, tolerance=tolerance)
        pulls.append(np.abs(slopes(loss, dense(phases, 1), y, w, 1e-5)).max())
    assert pulls[1] < 1e-6 < pulls[0]


@pytest.mark.parametrize("seed", range(3))
def test_no_search_ends_early_where_the_curvature_has_become_smaller(seed: int) -> None:
    """The Newton decrement of each output is within the tolerance, by dense algebra."""
    rng, penalty = np.random.default_rng(seed), 1e-6
    x = rng.standard_normal((700, 3))
    turns = (x @ rng.standard_normal((3, 140)) / (2 * np.pi) + rng.random(140)) % 1
    phases = (turns * size(np.uint16)).astype(np.uint16)
    groups = np.digitize(x[:, 0], np.quantile(x[:, 0], [0.2, 0.5, 0.9]))
    y = np.where(groups[:, None] == np.arange(4), 1.0, -1.0)
    w, z = minimise("smooth-hinge", phases, y, penalty), dense(phases, 1)
    pulls = slopes("smooth-hinge", z, y, w, penalty)
    for pull, bends in zip(pulls.T, loss_curvatures("smooth-hinge", z @ w, y).T, strict=True):
        hessian = (z.T * bends) @ z / len(z) + penalty * np.eye(140)
        assert np.sqrt(pull @ np.linalg.solve(hessian, pull)) < 1e-4


@pytest.mark.parametrize("folder", [None, "here"])
def test_features_that_do_not_fit_in_memory_are_in_a_file_without_a_name(
    folder: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases, y = rings()
    where = None if folder is None else tmp_path
    expected = keep_features(phases, 3, intercept=True)
    np.testing.assert_allclose(expected[:, :-1], dense(phases, 3), atol=1e-7)
    np.testing.assert_array_equal(expected[:, -1], 0.5)
    monkeypatch.setattr(phases_module, "IN_MEMORY", expected.nbytes - 1)
    np.testing.assert_array_equal(keep_features(phases, 3, intercept=True, folder=where), expected)
    found = fit("smooth-hinge", phases, y, classes=2, seed=0, folder=where)
    monkeypatch.undo()
    np.testing.assert_array_equal(
        fit("smooth-hinge", phases, y, classes=2, seed=0).weights, found.weights
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("penalty", [1e-5, 1e-2])
@pytest.mark.parametrize("loss", MARGIN)
def test_a_search_that_begins_elsewhere_ends_in_the_same_place(loss: Loss, penalty: float) -> None:
    """Also with the curvatures of another lambda and another start, by few rows and by many."""
    phases, y = rings(400, 80)
    near = np.where(np.arange(400)[:, None] % 50, -1.0, 1.0)  # most rows of it are in no bend
    targets, shares = np.hstack([y, near]), np.linspace(0.5, 1.5, 400)[:, None] / 400
    shares[::7] = 0.0
    kept, known = Kept.make(phases, 2, intercept=True), Curvatures()
    rows = Problem(loss, kept, targets, shares, None)
    plain = [plainly_weighted(loss, kept.z, t, shares, penalty) for t in targets.T]
    for value in (1e-1, 1e-3, penalty):
        start = np.random.default_rng(int(1 / value)).standard_normal((81, 2))
        found = rows.minimise(value, start, known, tolerance=1e-7)
    np.testing.assert_allclose(kept.z @ found, kept.z @ np.stack(plain, axis=1), atol=5e-3)
    alone = rows.minimise(penalty, np.zeros((81, 2)), tolerance=1e-7)
    np.testing.assert_allclose(kept.z @ found, kept.z @ alone, atol=5e-3)


def plainly_weighted(loss: Loss, z: Array, y: Array, shares: Array, penalty: float) -> Array:
    """Minimise for one output and rows that count differently."""
    wide, s = z.astype(np.float64), shares[:, 0]
    return optimize.minimize(
        lambda w: s @ loss_values(loss, wide @ w, y) + penalty / 2 * (w @ w),
        np.zeros(z.shape[1]),
        jac=lambda w: wide.T @ (s * loss_derivatives(loss, wide @ w, y)) + penalty * w,
        options={"gtol": 1e-10, "maxiter": 5000},
    ).x


@pytest.mark.parametrize(("loss", "dtype"), [("square", np.uint32), ("smooth-hinge", np.uint16)])
def test_an_intercept_is_a_constant_feature(loss: Loss, dtype: type) -> None:
    phases, y = rings(dtype=dtype)
    targets, penalty = y if loss != "square" else y + 0.7, 1e-2
    z = np.hstack([dense(phases, 3), np.full((len(y), 1), 0.5)])
    plain = plainly(loss, z, targets, penalty)
    only: dict[str, Any] = {"multiples": [3], "regularizations": [penalty]}
    fitted = fit(loss, phases, targets, classes=0, seed=0, intercept=True, **only)
    assert fitted.weights.shape == (61, 1)
    assert abs(fitted.weights[-1, 0]) > 0.01
    near = 1e-6 if loss == "square" else 2e-3
    np.testing.assert_allclose(outputs(phases, fitted.weights, 3)[:, 0], z @ plain.x, atol=near)


@pytest.mark.parametrize("loss", LOSSES)
def test_cross_validation_chooses_a_width_that_works(loss: Loss) -> None:
    phases, y = rings(900, 200)
    chosen = fit(loss, phases[:600], y[:600], classes=2, seed=0)
    assert chosen.multiple > 1
    assert chosen.regularization < 1e-2
    assert len(chosen.widths) == 36
    assert len(chosen.scores) == (36 if loss == "square" else 6)
    assert chosen.scores[chosen.multiple, chosen.regularization] == max(chosen.scores.values())
    found = decide(outputs(phases[600:], chosen.weights, chosen.multiple))
    assert (found == decide(y[600:])).mean() > 0.93
    # a single candidate needs no cross-validation, and gives the same
    only: Any = {"multiples": [chosen.multiple], "regularizations": [chosen.regularization]}
    plain = fit(loss, phases[:600], y[:600], classes=2, seed=9, **only)
    assert plain.scores == {}
    np.testing.assert_array_equal(chosen.weights, plain.weights)


@pytest.mark.parametrize(("loss", "widths"), [("square", (2, 3)), ("smooth-hinge", (1,))])
def test_many_rows_refine_what_fewer_have_chosen(loss: Loss, widths: tuple[int, ...]) -> None:
    """As a function of the seed."""
    phases, y = rings(500, 100)
    chosen, again, other = (
        fit(loss, phases, y, classes=2, seed=seed, rows=250, directions=50) for seed in (0, 0, 6)
    )
    assert (chosen.scores, chosen.widths) == (again.scores, again.widths)
    np.testing.assert_array_equal(chosen.weights, again.weights)
    assert chosen.widths != other.widths
    first, near = max(chosen.widths, key=lambda key: chosen.widths[key])
    tried = [value for _, value in chosen.scores]
    if loss == "square":
        assert near / 11 < min(tried) <= max(tried) < near * 11
        assert (first, near) in chosen.scores
    assert max(tried) < 110 * min(tried)
    assert len({multiple for multiple, _ in chosen.scores}) in widths
    best = chosen.scores[chosen.multiple, chosen.regularization]
    assert best == max(chosen.scores.values())


def test_equal_scores_go_to_the_smoother_model_and_noise_is_not_learned_by_heart() -> None:
    phases, _ = rings(100)
    chosen = fit("square", phases, np.ones((100, 1)), classes=2, seed=0)
    ties = [key for key, score in chosen.scores.items() if score == 1.0]
    assert len(ties) > 1
    smallest = min(multiple for multiple, _ in ties)
    largest = max(value for multiple, value in ties if multiple == smallest)
    assert (chosen.multiple, chosen.regularization) == (smallest, largest)
    phases, _ = rings(200, 300, gamma=5.0)  # scores are of models that have not seen the rows
    y = np.where(np.random.default_rng(3).random((200, 1)) < 0.5, 1.0, -1.0)
    assert max(fit("square", phases, y, classes=2, seed=0).scores.values()) < 0.65


@pytest.mark.parametrize("loss", ["square", "smooth-hinge"])
def test_scores_weigh_the_rows(loss: Loss) -> None:
    """Wrong labels of rows that hardly count lower no score."""
    phases, y = rings(300)
    wrong = np.arange(300) % 3 == 0
    weights = np.where(wrong, 1e-9, 1.0)
    labels = np.where(wrong[:, None], -y, y)
    chosen = fit(loss, phases, labels, classes=2, seed=0, weights=weights)
    assert max(chosen.scores.values()) > 0.9
    assert max(fit(loss, phases, labels, classes=2, seed=0).scores.values()) < 0.75


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


@pytest.mark.promise("fdskl-numbers")
def test_the_lambda_of_numbers_is_chosen_with_all_directions() -> None:
    """Half of them can fit noise with less: then all of them would fit too much of it."""
    rng = np.random.default_rng(1)
    x = rng.random((300, 2))
    y = np.sin(9 * x.sum(axis=1, keepdims=True)) + 0.3 * rng.standard_normal((300, 1))
    phases = phases_of(x, 600, 0.5, np.uint32, 2)
    options: Any = {"classes": 0, "seed": 0, "multiples": [1, 2]}
    options["regularizations"] = REGULARIZATIONS_OF_NUMBERS
    chosen, whole, part = (
        fit("square", phases, y, **options, **some).scores
        for some in ({}, {"directions": 600}, {"directions": 30})
    )
    assert chosen == whole != part


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_few_rows_are_learned_from_in_what_they_span(loss: Loss, intercept: bool) -> None:
    """The model is that of equations of all directions; 1,000 times as many cost little memory."""
    phases = np.random.default_rng(3).integers(0, 1 << 32, (24, 60), np.uint32)
    y = np.where(np.arange(24)[:, None] % 3 > 0, 1.0, -1.0)
    weights = np.linspace(0.5, 1.5, 24)
    train: Any = partial(minimise, loss, multiple=2 if loss == "square" else 1)
    found = train(phases, y, 1e-2, intercept=intercept, weights=weights)
    twice = np.repeat(phases, 2, axis=0), np.repeat(y, 2, axis=0)  # 48 rows, more than half of 60
    expected = train(*twice, 1e-2, intercept=intercept, weights=np.repeat(weights, 2))
    assert np.abs(found - expected).max() < (1e-10 if loss == "square" else 1e-3)
    many = np.tile(phases, (1, 1000))  # whose equations would take 29 GB
    assert train(many, y, 1e-2, intercept=intercept).shape == (60_000 + intercept, 1)


def test_what_cannot_be_trained_is_refused() -> None:
    phases, y = rings(20)
    only: Any = {"classes": 2, "seed": 0}
    assert fit("logistic", phases[:3], y[:3], **only).weights.shape == (60, 1)  # a fold each
    wide = np.zeros((2, 2), np.int64)
    twice = np.repeat(phases, 2, axis=0), np.repeat(y, 2, axis=0)  # of 20 rows: 20 equations
    cases: list[tuple[str, Any]] = [
        *(("FK-KEY-LENGTH", partial(check_frequency_seed, bytes(n))) for n in (0, 31, 33)),
        ("FK-OPTION-TYPE", lambda: angles(wide)),
        ("FK-OPTION-TYPE", lambda: cosines(wide)),
        ("FK-OPTION-TYPE", lambda: keep_features(wide)),
        ("FK-OPTION-TYPE", lambda: outputs(wide, np.eye(2))),
        ("FK-OPTION-RANGE", lambda: cosines(phases, 0)),
        ("FK-LOSS-CLASSES", lambda: fit("logistic", phases, 0.5 * y, classes=0, seed=0)),
        ("FK-OPTION-CHOICE", lambda: minimise("hinge", phases, y, 1e-3)),  # type: ignore[arg-type]
        ("FK-SHAPE-DIFFERS", lambda: minimise("square", phases, y[1:], 1e-3)),
        ("FK-OPTION-RANGE", lambda: minimise("square", phases, y, 0.0)),
        ("FK-OPTION-RANGE", lambda: fit("square", phases, y, regularizations=[-1.0], **only)),
        ("FK-OPTION-RANGE", lambda: fit("square", phases, y, multiples=[], **only)),
        ("FK-OPTION-RANGE", lambda: fit("square", phases, y, multiples=[0, 1], **only)),
        ("FK-FOLDS-FEW", lambda: fit("square", phases[:1], y[:1], **only)),
        ("FK-EQUATIONS-SINGULAR", lambda: minimise("square", *twice, 1e-30)),
        ("FK-SOLVER-STEPS", lambda: minimise("logistic", phases, y, 1e-6, steps=1)),
    ]
    for code, call in cases:
        refuses(code, call)


# -- the file of phases at an active party

ROWS, CAPACITY = 9, 12


def truth(bits: int = 16) -> Array:
    """The phase of every row and direction."""
    dtype = np.uint16 if bits == 16 else np.uint32
    return np.maximum(drawn(dtype, (ROWS, CAPACITY), bits), 1)


def make(folder: Path, bits: int = 16) -> PhaseStore:
    return PhaseStore(folder, "5e" * 8, 3, ROWS, CAPACITY, bits)


def give(store: PhaseStore, known: Array, rows: Any, upto: int, bits: int = 16) -> None:
    """Send what is missing of some rows, row by row."""
    places = np.asarray(rows, np.int32)
    have = known[places].astype(np.int32)
    missing = [truth(bits)[i, k:upto] for i, k in zip(places, have, strict=True)]
    store.take(places, have, upto, np.concatenate(missing))
    known[places] = upto


@settings(max_examples=40)
@given(
    data=st.data(),
    bits=st.sampled_from([16, 32]),
    steps=st.lists(
        st.tuples(
            st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True),
            st.integers(0, 3),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_whatever_comes_in_whatever_order_is_read_again(data: Any, bits: int, steps: Any) -> None:
    """Rows in any order, each with another number of phases; new objects, lost files."""
    with tempfile.TemporaryDirectory() as name:
        folder, upto = Path(name), 0
        known = np.zeros(ROWS, np.int32)
        for rows, more, lost in steps:
            upto = min(CAPACITY, upto + more)
            store = make(folder, bits)
            if lost and store.path.exists():
                store.path.unlink()
                with refused("FK-STATE-GONE", kind=StateError):
                    store.read(np.arange(ROWS, dtype=np.int32), upto)
                known[:] = 0  # as the server is told
            chosen = data.draw(st.sampled_from([rows, sorted(rows), list(range(ROWS))]))
            before = known.copy()
            give(store, known, chosen, upto, bits)
            give(store, before, chosen, upto, bits)  # the same twice does no harm
            again = make(folder, bits)
            for some in (chosen, sorted(chosen), list(range(ROWS)), []):
                least = int(known[some].min()) if some else upto
                found = again.read(np.array(some, np.int32), least)
                np.testing.assert_array_equal(found, truth(bits)[some, :least])
                assert found.dtype.itemsize * 8 == bits

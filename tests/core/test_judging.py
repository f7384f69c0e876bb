"""What parties count on held-out rows and what is read from it, against scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from refusals import refuses
from sklearn import metrics
from sklearn.calibration import _sigmoid_calibration, calibration_curve

from fedkern_flwr.judging.figures import (
    LARGEST_ERROR,
    Calibration,
    Judged,
    Yardstick,
    bins_of,
    calibrating,
    conformal_place,
    fit_sigmoid,
    in_units,
    middles_of,
    places_of,
)
from fedkern_flwr.labels import decide, encode_classes
from fedkern_flwr.online.learning import message_errors, recent_errors, rises
from fedkern_flwr.simulations.attacks import held_out

Floats = NDArray[np.float64]


def draw(seed: int, rows: int, classes: int) -> tuple[Floats, Floats, Floats]:
    """Return labels, targets and outputs that tell something of them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows).astype(float)
    targets = encode_classes(labels, range(classes), "me")
    outputs = 0.4 * targets + rng.standard_normal(targets.shape) * rng.choice([0.01, 0.5, 5.0])
    return labels, targets, np.round(outputs, int(rng.integers(0, 9)))  # with ties


def halves(rows: int) -> NDArray[np.bool_]:
    return calibrating(f"row {k}" for k in range(rows))


def judge(outputs: Floats, targets: Floats, classes: int, bins: int, parties: int = 1) -> Judged:
    """Judge as parties do that have the rows in turn."""
    yard = Yardstick(classes, targets.shape[1], 1.0, bins)
    half, total = halves(len(outputs)), np.zeros(yard.length)
    for k in range(parties):
        part = slice(k, None, parties)
        counts = yard.count(outputs[part], targets[part], half[part])
        assert counts.shape == (yard.length,)
        assert counts.max(initial=0.0) <= yard.largest * len(outputs[part])
        total += counts
    return Judged(yard, total)


# -- classes


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 9999), rows=st.integers(1, 80), classes=st.integers(2, 4),
    parties=st.integers(1, 3), bins=st.sampled_from([0, 8, 64]),
)  # fmt: skip
def test_the_confusion_matrix(seed: int, rows: int, classes: int, parties: int, bins: int) -> None:
    labels, targets, outputs = draw(seed, rows, classes)
    judged, chosen = judge(outputs, targets, classes, bins, parties), decide(outputs)
    found = judged.metrics()
    matrix = metrics.confusion_matrix(labels, chosen, labels=range(classes))
    np.testing.assert_array_equal(judged.details()["confusion"], matrix)
    assert found["test_accuracy"] == pytest.approx(metrics.accuracy_score(labels, chosen))
    assert found["test_most_frequent"] == pytest.approx(matrix.sum(1).max() / rows)
    recalls = metrics.recall_score(labels, chosen, average=None, labels=np.unique(labels))
    assert found["test_balanced_accuracy"] == pytest.approx(recalls.mean())
    if classes == 2:
        assert ("test_recall" in found) == (labels == 1).any()
        assert ("test_precision" in found) == (chosen == 1).any()
        for name, score in (
            ("test_recall", metrics.recall_score),
            ("test_precision", metrics.precision_score),
        ):
            if name in found:
                assert found[name] == pytest.approx(score(labels, chosen, zero_division=0))
    assert ("test_auc" in found) == (bool(bins) and len(np.unique(labels)) > 1)
    there, right = {*labels.tolist()}, {*labels[labels == chosen].tolist()}
    assert judged.never_found == (len(there - right) if len(there) > 1 else 0)
    assert bool(judged.useless) == (np.trace(matrix) <= matrix.sum(1).max() < rows)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 9999),
    rows=st.integers(2, 200),
    classes=st.integers(2, 4),
    bins=st.sampled_from([8, 32, 256]),
)
def test_the_area_under_the_curve_is_exact_on_bins_and_close_on_scores(
    seed: int, rows: int, classes: int, bins: int
) -> None:
    _, targets, outputs = draw(seed, rows, classes)
    judged = judge(outputs, targets, classes, bins)
    binned, exact, kept = [], [], judged.areas()
    for k in range(targets.shape[1]):
        own = targets[:, k] > 0
        if 0 < own.sum() < rows:
            binned.append(metrics.roc_auc_score(own, places_of(outputs, bins)[:, k]))
            exact.append(metrics.roc_auc_score(own, outputs[:, k]))
    assert [area for area, _ in kept] == pytest.approx(binned)
    for (area, error), true in zip(kept, exact, strict=True):
        assert abs(area - true) <= error + 1e-12
    found = judged.metrics()
    assert ("test_auc" in found) == bool(binned)
    if binned:
        assert found["test_auc"] == pytest.approx(np.mean(binned))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 9999), rows=st.integers(40, 300), bins=st.sampled_from([8, 64]))
def test_probabilities_are_those_of_scikit_learn_on_bins(seed: int, rows: int, bins: int) -> None:
    labels, targets, outputs = draw(seed, rows, 2)
    judged, half = judge(outputs, targets, 2, bins), halves(rows)
    scores = middles_of(bins)[places_of(outputs, bins)[:, 0]]
    found, calibration = judged.metrics(), judged.calibration
    assert calibration is not None
    if len(np.unique(labels[half])) < 2 or len(np.unique(labels[~half])) < 2:
        return
    (a,), (b,) = calibration.slopes, calibration.offsets
    _fits_as_well(scores[half], labels[half], a, b)
    q = 1.0 / (1.0 + np.exp(-(a * scores + b)))[~half]
    y, plain = labels[~half], np.clip((scores[~half] + 1.0) / 2.0, 0.0, 1.0)
    assert found["test_log_loss"] == pytest.approx(metrics.log_loss(y, q))
    assert found["test_brier"] == pytest.approx(metrics.brier_score_loss(y, q))
    for name, values in (("before", plain), ("after", q)):
        share, mean = calibration_curve(y, values, n_bins=10)
        curve = np.array(judged.details()["calibration"][name])
        np.testing.assert_allclose(curve[:, :2], np.stack([mean, share], 1), atol=1e-12)
        assert curve[:, 2].sum() == (~half).sum()
    assert ("test_calibration_error" in found) == (rows >= 200)
    error = np.average(np.abs(curve[:, 0] - curve[:, 1]), weights=curve[:, 2])
    assert found.get("test_calibration_error", 0.0) <= error


def test_the_calibration_error_of_few_rows_is_that_of_many() -> None:
    """Chance adds nothing, to probabilities that are right and to those that are off by 0.2."""
    rng = np.random.default_rng(0)

    def mean_error(rows: int, off: float) -> float:
        errors = []
        for _ in range(30):
            p = rng.uniform(0.1, 0.8, rows)
            scores, labels = 2.0 * p[:, None] - 1.0, (rng.random(rows) < p + off).astype(float)
            found = judge(scores, 2.0 * labels[:, None] - 1.0, 2, 256).metrics()
            errors.append(found["test_calibration_error_before"])
        return float(np.mean(errors))

    few, many = mean_error(240, 0.0), mean_error(6000, 0.0)
    assert few < 0.035  # without: 0.11
    assert many < 0.01
    assert mean_error(240, 0.2) == pytest.approx(mean_error(6000, 0.2), abs=0.03)


def _fits_as_well(scores: Floats, labels: Floats, a: float, b: float) -> None:
    """Compare the likelihood with that of scikit-learn's fit, which may stop early."""
    theirs = _sigmoid_calibration(scores, labels)
    p, n = labels.sum(), (1.0 - labels).sum()
    wanted = np.where(labels == 1.0, (p + 1.0) / (p + 2.0), 1.0 / (n + 2.0))

    def loss(slope: float, offset: float) -> float:
        values = slope * scores + offset
        return float((np.logaddexp(0.0, values) - wanted * values).sum())

    assert loss(a, b) <= loss(-theirs[0], -theirs[1]) + 1e-7
    q = 1.0 / (1.0 + np.exp(-(a * scores + b)))  # where the gradient is zero
    assert abs((q - wanted).sum()) < 1e-6
    assert abs(((q - wanted) * scores).sum()) < 1e-5


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 9999), classes=st.integers(3, 5))
def test_several_classes_are_judged_one_against_the_rest(seed: int, classes: int) -> None:
    labels, targets, outputs = draw(seed, 200, classes)
    judged, half = judge(outputs, targets, classes, 64), halves(200)
    calibration = judged.calibration
    assert calibration is not None
    scores = middles_of(64)[places_of(outputs, 64)]
    q = calibration.one_against_rest(scores)[~half]
    own, found = labels[~half, None] == np.arange(classes), judged.metrics()
    assert found["test_log_loss_ovr"] == pytest.approx(
        np.mean([metrics.log_loss(own[:, k], q[:, k], labels=[0, 1]) for k in range(classes)])
    )
    assert found["test_brier_ovr"] == pytest.approx(((q - own) ** 2).mean())
    assert not {"test_log_loss", "test_brier"} & set(found)
    whole = calibration.probabilities(outputs)
    np.testing.assert_allclose(whole.sum(1), 1.0)
    ratio = calibration.one_against_rest(outputs)
    np.testing.assert_allclose(whole, ratio / ratio.sum(1, keepdims=True))


@pytest.mark.parametrize("classes", [0, 2])
@pytest.mark.parametrize("bins", [0, 8])
def test_outputs_that_are_no_numbers_are_counted(classes: int, bins: int) -> None:
    """Of a forged model: a failure would tell of the row for which it overflows."""
    outputs = np.array([[np.nan], [np.inf], [-np.inf], [1e300], [0.5]])
    targets = np.array([[1.0], [-1.0], [1.0], [-1.0], [1.0]])
    found = Yardstick(classes, 1, 1.0, bins).count(outputs, targets, np.ones(5, bool))
    assert np.isfinite(found).all()


@given(
    counts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=8, max_size=8),
    level=st.sampled_from([0.5, 0.9, 0.99]),
)
def test_any_histogram_can_be_judged(counts: list[tuple[int, int]], level: float) -> None:
    """Empty bins, a class that is missing, no rows at all, rows in one half only."""
    yard = Yardstick(2, 1, bins=8)
    for half in (0, 1):
        histograms = np.zeros(yard.shape)
        histograms[half, 0] = np.array(counts, float).T
        negatives, positives = np.array(counts).sum(0)
        head = np.array([negatives, 0, 0, positives], float)
        judged = Judged(yard, np.concatenate([head, histograms.ravel()]), level)
        found = judged.metrics()
        assert all(math.isfinite(value) for value in found.values())
        assert bool(found) == (negatives + positives > 0)
        assert (judged.calibration is None) == (half == 1 or not found)
        if judged.calibration is not None:
            whole = judged.calibration.probabilities(np.array([[-9.0], [0.0], [1e300]]))
            assert ((whole >= 0.0) & (whole <= 1.0)).all()
            assert "test_log_loss" not in found  # no row is left to report on


def test_a_class_that_does_not_calibrate_leaves_its_share() -> None:
    """With 9 positives and no negative Laplace's rule says 10 of 11."""
    slope, offset = fit_sigmoid(middles_of(8), np.zeros(8), np.full(8, 9 / 8))
    assert slope == 0.0
    assert 1.0 / (1.0 + math.exp(-offset)) == pytest.approx(10 / 11)


# -- conformal sets and intervals


@pytest.mark.promise("intervals-hold")
@settings(max_examples=100)
@given(
    values=st.lists(st.integers(0, 7), max_size=60),
    level=st.sampled_from([0.1, 0.5, 0.8, 0.9, 0.95]),
)
def test_the_quantile_has_rank_n_plus_one_times_the_level(values: list[int], level: float) -> None:
    counts = np.bincount(values, minlength=8).astype(float)
    rank = math.ceil(round((len(values) + 1) * level, 9))
    expected = sorted(values)[rank - 1] if rank <= len(values) else 7
    assert conformal_place(counts, level) == expected


@pytest.mark.parametrize(("kind", "classes"), [("interval", 0), ("set", 2), ("set", 4)])
def test_new_rows_are_covered_as_often_as_the_level_says(kind: str, classes: int) -> None:
    """Mean over 400 calibrations of 60 rows each; the guarantee is about that mean."""
    rng, covered = np.random.default_rng(5), []
    for _ in range(400):
        if classes:
            labels = rng.integers(0, classes, 160)
            targets = encode_classes(labels.astype(float), range(classes), "me")
            outputs = targets * 0.3 + rng.standard_normal(targets.shape)
        else:
            targets = rng.uniform(-1, 1, (160, 1))
            outputs = targets + 0.2 * rng.standard_t(3, (160, 1))
        half = np.arange(160) < 60
        yard = Yardstick(classes, targets.shape[1], 1.0, 64)
        judged = Judged(yard, yard.count(outputs[:120], targets[:120], half[:120]), 0.9)
        covered.append(judged.metrics()[f"test_{kind}_coverage"])
    excess = 0.02 if classes else 0.05  # bins of 64 are up to 13 % wide
    assert 0.89 <= np.mean(covered) <= 0.9 + excess


def test_too_few_rows_make_intervals_without_an_end_and_sets_of_all_classes() -> None:
    outputs, y = np.zeros((8, 1)), np.full((8, 1), 0.5)
    yard = Yardstick(0, 1, 1.0, 16)
    judged = Judged(yard, yard.count(outputs, y, np.ones(8, bool)), 0.9)
    assert judged.calibration is not None
    assert judged.calibration.widths == (math.inf,)
    assert "test_interval_width" not in judged.metrics()
    yard = Yardstick(2, 1, 1.0, 8)
    judged = Judged(yard, yard.count(outputs - 9.0, y - 1.0, np.ones(8, bool)), 0.9)
    assert judged.calibration is not None
    assert judged.calibration.sets(np.array([[-1e9], [1e9]])).all()


# -- regression


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    outputs=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_the_errors_are_those_of_scikit_learn(sizes: list[int], outputs: int, seed: int) -> None:
    rng, bound = np.random.default_rng(seed), 50.0
    yard = Yardstick(0, outputs, bound, 32)
    total, y, f = np.zeros(yard.length), np.zeros((0, outputs)), np.zeros((0, outputs))
    for n in sizes:
        labels = rng.uniform(-bound, bound, (n, outputs))
        found = labels + rng.choice([0.1, 10.0]) * rng.standard_normal((n, outputs))
        total += yard.count(found, labels, halves(n))
        y, f = np.concatenate([y, labels]), np.concatenate([f, found])
    figures = Judged(yard, total).metrics()
    if not len(y):
        assert figures == {}
        return
    assert figures["test_rmse"] == pytest.approx(math.sqrt(metrics.mean_squared_error(y, f)))
    assert figures["test_mae"] == pytest.approx(metrics.mean_absolute_error(y, f))
    assert ("test_r2" in figures) == (len(y) > 1)
    if len(y) > 1:
        assert figures["test_r2"] == pytest.approx(metrics.r2_score(y, f))
    scaled = in_units(figures, 3.0)
    assert scaled["test_rmse"] == pytest.approx(3.0 * figures["test_rmse"])
    assert "test_r2" not in scaled


def test_an_error_beyond_all_bounds_counts_as_the_largest() -> None:
    """A secure sum needs a bound; a model that is far off need not be judged more finely."""
    yard = Yardstick(0, 1, 2.0)
    counts = yard.count(np.array([[1e9], [-1e9]]), np.array([[1.0], [-2.0]]))
    assert counts[:3].tolist() == [2.0, 2.0 * LARGEST_ERROR**2, 2.0 * LARGEST_ERROR]
    assert yard.largest == LARGEST_ERROR**2
    assert Judged(yard, counts).metrics()["test_rmse"] == 2.0 * LARGEST_ERROR


# -- bins and halves


@given(rows=st.integers(0, 9000), classes=st.sampled_from([2, 9]))
def test_a_bin_of_scores_has_64_rows(rows: int, classes: int) -> None:
    bins = bins_of(rows, classes)
    assert bins % 2 == 0
    assert bins == 0 if rows < 16 else bins == np.clip(rows // 64 - rows // 64 % 2, 4, 64)
    errors = bins_of(rows, 0)
    assert errors == 0 if rows < 16 else 8 <= errors <= min(64, rows // 2)


@pytest.mark.parametrize(
    ("rows", "before", "now", "auc"), [(200, 0.66, 0.24, 0.04), (2_000, 0.43, 0.15, 0.001)]
)
def test_few_bins_make_few_labels_certain(rows: int, before: float, now: float, auc: float) -> None:
    """Of a person whose columns, model and half are known: .70 -> .20, and .47 -> .12."""
    then, found = held_out.compare_bins(rows)
    assert then.known_half > before > now > found.known_half > found.unknown_half
    assert found.auc_error < auc


@pytest.mark.parametrize(
    ("rows", "columns", "least"), [(200, 10, 17), (2_000, 10, 7), (2_000, 30, 24)]
)
def test_a_model_chosen_for_one_person_shows_the_label(rows: int, columns: int, least: int) -> None:
    """Without any histogram: what bounds it is one model a run, and max_evaluations."""
    assert sum(held_out.choose_model(rows, columns, seed) for seed in range(24)) >= least


@given(scores=st.lists(st.floats(-1e308, 1e308), max_size=20), bins=st.sampled_from([8, 256]))
def test_bins_are_ordered_by_score_and_tell_the_decision(scores: list[float], bins: int) -> None:
    values = np.sort(np.array(scores, float))
    places = places_of(values, bins)
    assert (np.diff(places) >= 0).all()
    assert ((places >= 0) & (places < bins)).all()
    np.testing.assert_array_equal(places >= bins // 2, values >= 0.0)
    np.testing.assert_array_equal(places_of(middles_of(bins), bins), np.arange(bins))


@given(names=st.lists(st.text(max_size=5), max_size=30, unique=True))
def test_half_of_the_rows_calibrate_by_their_ids_in_any_order(names: list[str]) -> None:
    chosen = dict(zip(names, calibrating(names).tolist(), strict=True))
    assert sum(chosen.values()) == -(-len(names) // 2)
    turned = names[::-1]
    assert dict(zip(turned, calibrating(turned).tolist(), strict=True)) == chosen
    deals = {calibrating(names, bytes([k]) * 32).tobytes() for k in range(20)}  # under keys
    assert len(deals) > 10 or len(names) < 8


# -- as numbers, and in files


@pytest.mark.parametrize(("classes", "outputs"), [(0, 1), (0, 2), (2, 1), (3, 3)])
def test_a_calibration_travels_as_numbers(classes: int, outputs: int) -> None:
    rng = np.random.default_rng(0)
    y = rng.uniform(-1, 1, (90, outputs))
    if classes:
        y = encode_classes(rng.integers(0, classes, 90).astype(float), range(classes), "me")
    yard = Yardstick(classes, outputs, 1.0, 16)
    counts = yard.count(y + 0.3 * rng.standard_normal(y.shape), y, halves(90))
    made = Calibration.fit(yard, yard.split(counts)[1][0], 0.8)
    assert Calibration.read(made.numbers(), outputs) == made
    assert Calibration.read(np.array(made.numbers()), outputs) == made
    assert Calibration.read((), outputs) is None
    for damaged in (made.numbers()[:-1], [*made.numbers(), 1.0], [0.9], [0.9, 0.5, 0.0, 0.0]):
        refuses("FK-MODEL-DAMAGED", Calibration.read, damaged, outputs)


def test_files_have_probabilities_and_sets_or_intervals() -> None:
    of_two = Calibration(0.9, 2, 8, 3, (2.0,), (0.5,))
    heads, rows = of_two.columns(np.array([[0.0], [4.0]]), ["no", "yes"])
    assert heads == ["probability_no", "probability_yes", "threshold_yes", "set"]
    assert [row[3] for row in rows] == ["no|yes", "yes"]
    assert rows[0][2] == rows[1][2] == rows[0][1]  # where the output is 0
    assert float(rows[0][1]) == pytest.approx(1.0 / (1.0 + math.exp(-0.5)))
    assert float(rows[0][0]) + float(rows[0][1]) == pytest.approx(1.0)
    yard, rng = Yardstick(3, 3, bins=8), np.random.default_rng(0)
    many = Calibration.fit(yard, rng.integers(1, 9, (3, 2, 8)) * np.arange(1, 9.0), 0.9)
    outputs = rng.normal(size=(50, 3))  # the largest output is the most probable class
    np.testing.assert_array_equal(many.probabilities(outputs).argmax(1), decide(outputs))
    heads, rows = Calibration(0.9, 0, widths=(0.25,)).columns(np.array([[10.0]]), [], unit=4.0)
    assert (heads, rows) == (["low", "high"], [["9.0", "11.0"]])
    heads, _ = Calibration(0.9, 0, widths=(1.0, 2.0)).columns(np.zeros((1, 2)), [])
    assert heads == ["low_0", "high_0", "low_1", "high_1"]


# -- drift: where the error of a run's messages rises, and that it is not found elsewhere


def told(errors: np.ndarray, samples: int = 1) -> list[dict[str, Any]]:
    """The history of a run in which each message takes so many samples."""
    count = np.arange(1, len(errors) + 1)
    so_far = (np.cumsum(errors) / count).tolist()
    return [{"round": samples * n, "mse": mse} for n, mse in enumerate(so_far, 1)]


def test_the_error_of_late_shows_a_drift_that_the_error_so_far_hides():
    errors = np.where(np.arange(100) < 80, 0.01, 0.05)
    so_far = np.cumsum(errors) / np.arange(1, 101)
    history = [{"round": t, "mse": so_far[t - 1]} for t in range(5, 101, 5)]
    recent = dict(recent_errors(history))
    assert list(recent) == list(range(10, 101, 5))
    for t, mse in recent.items():
        assert mse == pytest.approx(errors[t - 10 : t].mean())
    assert recent[100] > 2.5 * so_far[-1]
    assert recent_errors([{"round": 5, "mse": None}, {"round": 10, "mse": 0.1}]) == [(10, 0.1)]


def noisy(seed: int, messages: int, clients: int = 20, start: float = 20.0) -> np.ndarray:
    """Errors of a learner that gets better, sums of squares over so many clients."""
    rng, n = np.random.default_rng(seed), np.arange(messages)
    return 0.01 * (1.0 + start / (1.0 + n)) * rng.chisquare(clients, messages) / clients


@pytest.mark.parametrize("messages", [12, 60, 300, 3000])
def test_learning_and_noise_are_no_drift(messages: int) -> None:
    assert not any(rises(told(noisy(seed, messages))) for seed in range(20))


@pytest.mark.parametrize(("messages", "samples"), [(100, 1), (100, 7), (300, 1), (2500, 3)])
def test_an_error_that_trebles_is_found_where_it_does(messages: int, samples: int) -> None:
    """In any unit, and once; two of them are two."""
    at = messages // 2
    for seed in range(10):
        errors = noisy(seed, messages)
        errors[at:] *= 3.0
        found = rises(told(errors, samples))
        assert found == rises(told(1e-6 * errors, samples))
        assert len(found) == 1
        assert found[0] == pytest.approx(at * samples, rel=0.05)
    errors[at + at // 2 :] *= 4.0
    assert len(rises(told(errors, samples))) == 2


@pytest.mark.parametrize(("messages", "block"), [(300, 1), (2800, 7)])
def test_a_clear_drift_is_found_less_than_five_blocks_early(messages: int, block: int) -> None:
    """From 400 messages on they are tested in blocks; errors that are all alike are no drift."""
    at = messages // 2
    (found,) = rises(told(0.01 * np.where(np.arange(messages) < at, 1.0, 3.0), 3))
    assert 3 * (at - 4 * block) <= found <= 3 * at


def test_messages_that_told_nothing_count_to_the_next() -> None:
    history = told(np.array([1.0, 3.0, 2.0, 4.0]), 5)
    history[1]["mse"] = None
    history[0]["mse"] = None
    t, errors = message_errors(history)
    np.testing.assert_allclose(t, [15, 20])
    np.testing.assert_allclose(errors, [2.0, 4.0])
    assert [len(part) for part in message_errors([{"round": 5, "mse": None}])] == [0, 0]
    assert rises([]) == []

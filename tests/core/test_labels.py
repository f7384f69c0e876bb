"""Labels as targets, and what is counted on held-out rows, against scikit-learn's metrics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from fedkern_flwr.errors import TableError
from fedkern_flwr.labels import (
    LARGEST_ERROR,
    count_outcomes,
    counts_length,
    decide,
    encode_classes,
    outcome_metrics,
)


@given(labels=st.lists(st.sampled_from([2.0, 5.0, 9.0]), max_size=20), classes=st.integers(2, 3))
def test_decisions_on_the_targets_themselves_are_the_labels(
    labels: list[float], classes: int
) -> None:
    known = [2.0, 5.0, 9.0][:classes]
    y = np.array([label for label in labels if label in known])
    targets = encode_classes(y, known, "me")
    assert targets.shape == (len(y), 1 if classes == 2 else 3)
    assert np.isin(targets, (-1.0, 1.0)).all()
    np.testing.assert_array_equal(np.array(known)[decide(targets)], y)
    if classes == 3:
        assert (targets.sum(axis=1) == -1.0).all()


def test_the_second_of_two_classes_is_the_positive_one() -> None:
    y = np.array([1.0, 0.0, 1.0])
    assert encode_classes(y, (0, 1), "me")[:, 0].tolist() == [1.0, -1.0, 1.0]
    assert encode_classes(y, (1, 0), "me")[:, 0].tolist() == [-1.0, 1.0, -1.0]
    assert decide(np.array([[0.0], [-1e-300], [3.0]])).tolist() == [1, 0, 1]
    assert decide(np.array([[0.1, 0.3, 0.2], [-3.0, -2.0, -1.0]])).tolist() == [1, 2]


def test_a_label_that_is_no_class_is_refused_and_not_quoted() -> None:
    with pytest.raises(TableError) as caught:
        encode_classes(np.array([0.0, 77.0, 78.0]), (0, 1), "partition 3")
    text = str(caught.value)
    assert (
        text == "partition 3: 2 labels are none of the 2 classes; name the same classes on every"
        " node"
    )
    assert "77" not in text


@settings(max_examples=40)
@given(
    true=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    seed=st.integers(0, 99),
    classes=st.integers(2, 4),
    parties=st.integers(1, 3),
)
def test_counts_of_classes_add_up_to_the_confusion_matrix(
    true: list[int], seed: int, classes: int, parties: int
) -> None:
    rng, labels = np.random.default_rng(seed), np.array(true) % classes
    targets = encode_classes(labels.astype(float), range(classes), "me")
    outputs = rng.standard_normal(targets.shape)
    total = np.zeros(counts_length(targets.shape[1], classes))
    for part in np.array_split(np.arange(len(labels)), parties):
        counts = count_outcomes(outputs[part], targets[part], classes, 1.0)
        assert counts.shape == total.shape
        assert counts.max(initial=0.0) <= len(part)
        total += counts
    chosen, found = decide(outputs), outcome_metrics(total, classes, 1.0)
    matrix = metrics.confusion_matrix(labels, chosen, labels=range(classes))
    np.testing.assert_array_equal(total.reshape(classes, classes), matrix)
    assert found["test_accuracy"] == pytest.approx(metrics.accuracy_score(labels, chosen))
    if classes > 2:
        assert set(found) == {"test_accuracy"}
        return
    assert ("test_recall" in found) == (labels == 1).any()
    assert ("test_precision" in found) == (chosen == 1).any()
    if "test_recall" in found:
        assert found["test_recall"] == pytest.approx(metrics.recall_score(labels, chosen))
    if "test_precision" in found:
        assert found["test_precision"] == pytest.approx(
            metrics.precision_score(labels, chosen, zero_division=0)
        )


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4), outputs=st.integers(1, 3))
def test_counts_of_a_regression_add_up_to_the_error(sizes: list[int], outputs: int) -> None:
    rng, bound = np.random.default_rng(sum(sizes)), 50.0
    total, errors = np.zeros(counts_length(outputs, 0)), []
    for n in sizes:
        y, f = rng.uniform(-bound, bound, (2, n, outputs))
        counts = count_outcomes(f, y, 0, bound)
        assert counts.shape == (1 + outputs,)
        total += counts
        errors.append((f - y) ** 2)
    if sum(sizes):
        expected = np.sqrt(np.concatenate(errors).mean())
        assert outcome_metrics(total, 0, bound) == {"test_rmse": pytest.approx(expected)}


def test_an_error_beyond_all_bounds_counts_as_the_largest() -> None:
    """A secure sum needs a bound; a model that is far off need not be judged more finely."""
    counts = count_outcomes(np.array([[1e9], [-1e9]]), np.array([[1.0], [-2.0]]), 0, 2.0)
    assert counts.tolist() == [2.0, 2.0 * LARGEST_ERROR**2]
    assert outcome_metrics(counts, 0, 2.0) == {"test_rmse": 2.0 * LARGEST_ERROR}

"""Labels as targets, and what outputs decide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.errors import TableError
from fedkern_flwr.labels import decide, encode_classes


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

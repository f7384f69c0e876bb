"""Ranking metrics against scikit-learn, and against their definitions where scores tie."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score, roc_auc_score

from fedkern_flwr.errors import OptionError
from fedkern_flwr.gram.recommenders import rank_metrics, top_items

NONE = np.array([], np.int64)


@st.composite
def users(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of up to 12 items with many ties, and the role of each: held out, excluded, other."""
    scores = draw(st.lists(st.integers(0, 3), min_size=2, max_size=12))
    roles = np.array(draw(st.lists(st.integers(0, 2), min_size=len(scores), max_size=len(scores))))
    return np.array(scores, float), np.flatnonzero(roles == 0), np.flatnonzero(roles == 1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("cutoff", [1, 10, 100, 1000])
def test_metrics_agree_with_scikit_learn(seed: int, cutoff: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=300)
    relevant, excluded, _ = np.split(rng.permutation(300), [20, 120])
    result = rank_metrics(scores, relevant, excluded, ((cutoff, cutoff),))
    kept = np.delete(np.arange(300), excluded)
    truth = np.isin(kept, relevant)
    assert result is not None
    auc, ndcg, recall = result
    assert auc == pytest.approx(roc_auc_score(truth, scores[kept]), abs=1e-12)
    assert ndcg == pytest.approx(ndcg_score([truth], [scores[kept]], k=cutoff), abs=1e-12)
    best = kept[np.argsort(-scores[kept])][:cutoff]
    assert recall == np.isin(best, relevant).sum() / 20


@given(users(), st.integers(1, 5))
def test_ties_count_half_and_are_ranked_by_index(
    user: tuple[np.ndarray, np.ndarray, np.ndarray], cutoff: int
) -> None:
    scores, relevant, excluded = user
    candidates = [k for k in range(scores.size) if k not in excluded]
    others = [k for k in candidates if k not in relevant]
    assume(relevant.size > 0 and others)
    pairs = [
        (scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]) for i in relevant for j in others
    ]
    ranked = sorted(candidates, key=lambda k: (-scores[k], k))
    gains = [1.0 / math.log2(2 + rank) for rank in range(scores.size)]
    found = [rank for rank, k in enumerate(ranked[:cutoff]) if k in relevant]
    ideal = sum(gains[: min(relevant.size, cutoff)])
    assert rank_metrics(scores, relevant, excluded, ((cutoff, cutoff),)) == pytest.approx(
        (np.mean(pairs), sum(gains[rank] for rank in found) / ideal, len(found) / relevant.size)
    )
    assert top_items(scores, excluded, cutoff).tolist() == ranked[:cutoff]


def test_constant_scores_have_an_auc_of_a_half() -> None:
    result = rank_metrics(np.zeros(10), np.array([9]), np.array([0, 1]), ((3, 3),))
    assert result == (0.5, 0.0, 0.0)


def test_a_perfect_ranking() -> None:
    scores = np.array([3.0, 2.0, 1.0, 0.0])
    assert rank_metrics(scores, np.array([0, 1]), NONE) == (1.0,) * 5


def test_the_ideal_list_is_no_longer_than_the_cutoff() -> None:
    result = rank_metrics(np.arange(10.0)[::-1], np.arange(5), NONE, ((2, 2),))
    assert result == (1.0, 1.0, 0.4)


@pytest.mark.parametrize(
    ("relevant", "excluded"), [([], [0]), ([0, 1, 2], []), ([0], [1, 2]), ([0], [0])]
)
def test_without_pairs_there_is_no_result(relevant: list[int], excluded: list[int]) -> None:
    held_out, seen = np.array(relevant, np.int64), np.array(excluded, np.int64)
    assert rank_metrics(np.arange(3.0), held_out, seen) is None


def test_held_out_items_that_are_excluded_do_not_count() -> None:
    result = rank_metrics(np.array([1.0, 2.0, 3.0]), np.array([1, 2]), np.array([1]))
    assert result == (1.0,) * 5


def test_top_items_are_as_many_as_there_are() -> None:
    scores = np.array([1.0, 5.0, 5.0, 7.0])
    assert top_items(scores, np.array([3]), 2).tolist() == [1, 2]
    assert top_items(scores, np.arange(4), 2).tolist() == []
    assert top_items(scores, NONE, 9).tolist() == [3, 1, 2, 0]


def test_options_and_scores_that_cannot_work_are_refused() -> None:
    with pytest.raises(OptionError, match="cutoff is 0"):
        rank_metrics(np.arange(3.0), np.array([0]), NONE, ((0, 1),))
    with pytest.raises(OptionError, match="count is 0"):
        top_items(np.arange(3.0), NONE, 0)
    with pytest.raises(OptionError, match="NaN"):
        top_items(np.array([1.0, math.nan]), NONE, 1)

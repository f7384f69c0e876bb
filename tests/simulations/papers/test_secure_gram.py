"""The paper's Secure Gram: equal to the pooled Gram matrix; what each message shows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.sparse import csr_array

from fedkern_flwr.simulations.papers.secure_gram import (
    RING,
    kernel_round,
    masked_gram,
    noisy_requests,
    random_users,
)


@pytest.fixture
def ratings():
    return (np.random.default_rng(0).random((40, 12)) < 0.3).astype(np.int64)


def test_masked_contributions_add_up_to_the_pooled_gram_matrix():
    x = np.random.default_rng(1).integers(0, 50, (7, 9))
    gram, transcript = masked_gram(x, np.random.default_rng(2))
    np.testing.assert_array_equal(gram, x.T @ x)  # eq. 1
    assert Counter(name for *_, name, _ in transcript) == {"S": 7 * 6, "Y": 7}
    shown = sum(array for _, receiver, _, array in transcript if receiver == "server")
    np.testing.assert_array_equal(shown % RING, x.T @ x)


def test_a_masked_contribution_shows_nothing_and_its_pads_show_all():
    x = np.eye(3, 40, dtype=np.int64)
    _, transcript = masked_gram(x, np.random.default_rng(3))
    (masked,) = [a for sender, _, name, a in transcript if (sender, name) == ("user 0", "Y")]
    assert abs(masked.mean() / RING - 0.5) < 0.05  # uniform below R
    np.testing.assert_allclose(np.quantile(masked, [0.25, 0.75]) / RING, [0.25, 0.75], atol=0.05)
    for sender, receiver, name, array in transcript:
        if name == "S" and sender == "user 0":
            masked = masked - array
        elif name == "S" and receiver == "user 0":
            masked = masked + array
    np.testing.assert_array_equal(masked % RING, np.outer(x[0], x[0]))


def test_the_maximum_of_rounds_comes_near_and_everybody_at_once_is_exact(ratings):
    exact = ratings.T @ ratings
    rng, found, sums = np.random.default_rng(4), None, []
    for _ in range(60):
        found, transcript = kernel_round(ratings, random_users(40, 0.5, rng), found)
        sums += [array for *_, name, array in transcript if name == "sum"]
    np.testing.assert_array_equal(found, np.max(sums, axis=0))
    assert (found <= exact).all()
    first = np.abs(exact - sums[0]).mean()
    assert np.abs(exact - found).mean() < 0.5 * first
    np.testing.assert_array_equal(kernel_round(ratings, random_users(40, 1.0, rng))[0], exact)
    np.testing.assert_array_equal(kernel_round(csr_array(ratings), range(40))[0], exact)


def test_sums_of_two_rounds_that_differ_by_a_user_show_the_user(ratings):
    known, first = kernel_round(ratings, range(39))
    _, second = kernel_round(ratings, range(40), known)
    difference = second[1][3] - first[1][3]
    np.testing.assert_array_equal(
        np.flatnonzero(difference.diagonal()), np.flatnonzero(ratings[39])
    )
    assert first[0][:3] == ("users", "server", "answering")
    np.testing.assert_array_equal(first[0][3], np.arange(39))


def test_noisy_requests_bring_the_rows_and_their_frequencies_show_what_is_liked(ratings):
    kernel = np.random.default_rng(6).random((200, 200))
    liked = [3, 50, 77, 120]
    rows, transcript = noisy_requests(kernel, liked, 30, np.random.default_rng(7), "user 8")
    assert sorted(rows) == liked
    for item in liked:
        np.testing.assert_array_equal(rows[item], kernel[item])
    asked = [array for *_, name, array in transcript if name == "request"]
    answers = [array for *_, name, array in transcript if name == "rows"]
    assert {t[:2] for t in transcript} == {("user 8", "server"), ("server", "user 8")}
    for wanted, answer in zip(asked, answers, strict=True):
        np.testing.assert_array_equal(answer, kernel[wanted])
    assert any(set(liked) - set(wanted.tolist()) for wanted in asked)  # some are left out
    assert all(len(set(wanted.tolist()) - set(liked)) == 16 for wanted in asked)
    often = Counter(np.concatenate(asked).tolist())
    assert sorted(item for item, _ in often.most_common(4)) == liked

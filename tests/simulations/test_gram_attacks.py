"""What a Gram matrix gives away: profiles of users, rows, and requests."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Context
from scipy.linalg import qr

from fedkern_flwr.clients import GramClient
from fedkern_flwr.errors import CohortError, OptionError
from fedkern_flwr.gram.matrix import unpack
from fedkern_flwr.gram.messages import Merge, combine
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Audit, Fault, FaultPlan
from fedkern_flwr.simulations.lab.attacks.gram import (
    binary_vector,
    difference_profile,
    implied_items,
    peel_profiles,
    raised_items,
    rare_profiles,
    sparse_profile,
)
from fedkern_flwr.simulations.lab.attacks.gram_rows import (
    requested_items_auc,
    rows_by_known,
    rows_up_to_rotation,
)
from fedkern_flwr.strategies import FedCFK, SecureGram

MIN_SUPPORT = 5
EXACT = 1e-9


def profiles_of(
    users: int, items: int, *, seed: int = 0, min_support: int = MIN_SUPPORT
) -> np.ndarray:
    """Binary profiles over items of very different popularity, none of them rare."""
    rng = np.random.default_rng(seed)
    popularity = np.clip(0.6 / np.arange(1.0, items + 1.0) ** 0.5, 0.08, 0.5)
    activity = rng.uniform(0.5, 2.0, (users, 1))
    rated = rng.random((users, items)) < np.minimum(popularity * activity, 0.9)
    supported = rated[:, rated.sum(axis=0) >= min_support]
    return supported[supported.any(axis=1)].astype(np.int64)


def rows_in(found: np.ndarray, x: np.ndarray) -> int:
    """How many of the rows found are rows of x."""
    truth = {tuple(row) for row in x.tolist()}
    return sum(tuple(row) in truth for row in found.tolist())


def same_rows(found: np.ndarray, x: np.ndarray) -> bool:
    return sorted(map(tuple, found.tolist())) == sorted(map(tuple, x.tolist()))


def test_a_rare_item_is_its_users_profile() -> None:
    x = profiles_of(60, 80)
    x[:, 3] = 0
    x[7, 3] = 1
    kernel = x.T @ x
    np.testing.assert_array_equal(rare_profiles(kernel), x[[7]])
    supported = x[:, x.sum(axis=0) >= MIN_SUPPORT]
    assert len(rare_profiles(supported.T @ supported)) == 0


def test_items_that_all_raters_share() -> None:
    x = profiles_of(60, 80)
    implied = implied_items(x.T @ x)
    for i, j in np.argwhere(implied):
        assert x[x[:, i] == 1, j].all()
    x[:, 5] = 0
    x[:4, 5] = 1
    x[:4, 11] = 1
    implied = implied_items(x.T @ x)
    assert implied[5, 11]
    assert not implied.diagonal().any()


@pytest.mark.parametrize("full", [True, False])
def test_a_difference_of_one_user_is_its_profile(full: bool) -> None:
    x = profiles_of(40, 50)
    small, large = (part.T @ part if full else part.sum(axis=0) for part in (x[1:], x))
    for pair in ((small, large), (large, small)):
        found = difference_profile(*pair)
        assert found is not None
        np.testing.assert_array_equal(found, x[0])
    without = x[2:].T @ x[2:] if full else x[2:].sum(axis=0)
    assert difference_profile(without, large) is None


def test_counts_that_could_be_one_user_are_not_if_the_kernel_says_otherwise() -> None:
    kernel = np.eye(4, dtype=np.int64)  # four users with an item each
    nothing = np.zeros_like(kernel)
    assert difference_profile(nothing.diagonal(), kernel.diagonal()) is not None
    assert difference_profile(nothing, kernel) is None
    assert difference_profile(nothing, nothing) is None


def test_a_user_subtracts_itself_in_a_cohort_of_two() -> None:
    x = profiles_of(40, 50)[:2]
    found = difference_profile(np.outer(x[0], x[0]), x.T @ x)
    assert found is not None
    np.testing.assert_array_equal(found, x[1])


def peeled(case: str) -> tuple[np.ndarray, np.ndarray]:
    """A kernel, and the profiles that it is made of."""
    many = profiles_of(200, 90)
    rows = {
        "2 users": profiles_of(2, 120, min_support=2),
        "40 users": profiles_of(40, 120, min_support=2),
        "minimum support": profiles_of(80, 160),
        "equal profiles": np.repeat(profiles_of(10, 60, min_support=2), 2, axis=0),
        "a difference": many[:30],
    }[case]
    kernel = rows.T @ rows
    if case == "a difference":  # kernels of many users are no cover
        kernel = many.T @ many - many[30:].T @ many[30:]
    return kernel, rows[rows.any(axis=1)]


@pytest.mark.parametrize(
    "case", ["2 users", "40 users", "minimum support", "equal profiles", "a difference"]
)
def test_fewer_users_than_items_are_all_found(case: str) -> None:
    kernel, rows = peeled(case)
    assert len(rows) <= len(kernel)
    assert case != "minimum support" or kernel.diagonal().min() >= MIN_SUPPORT
    found = peel_profiles(kernel)
    assert found.complete
    assert same_rows(found.profiles, rows)


def test_many_more_users_than_items_are_not_found() -> None:
    x = profiles_of(400, 40)
    found = peel_profiles(x.T @ x, patience=20, limit=40)
    assert not found.complete
    assert rows_in(found.profiles, x) < 40


def test_nothing_to_peel() -> None:
    found = peel_profiles(np.zeros((4, 4), np.int64))
    assert found.complete
    assert found.profiles.shape == (0, 4)
    assert found.tries == 0


def test_stops_at_the_limit() -> None:
    x = profiles_of(30, 120, min_support=2)
    found = peel_profiles(x.T @ x, limit=3)
    assert len(found.profiles) == rows_in(found.profiles, x) == 3
    rest = x.T @ x - found.profiles.astype(int).T @ found.profiles.astype(int)
    np.testing.assert_array_equal(found.remaining, rest)


def test_binary_vector_is_the_one_in_the_ellipsoid() -> None:
    rng = np.random.default_rng(3)
    x = (rng.random((6, 30)) < 0.4).astype(float)
    inverse = np.linalg.pinv(x.T @ x, rcond=EXACT)
    precision = inverse + 1e5 * (np.eye(30) - np.linalg.pinv(x) @ x)
    everything = np.ones((30, 30), bool)
    found = binary_vector(precision, np.flatnonzero(x[0])[:3], everything)
    assert found is not None
    assert any(np.array_equal(found, row) for row in x)
    assert binary_vector(10.0 * np.eye(3), np.array([0]), np.ones((3, 3), bool)) is None
    assert binary_vector(precision, np.flatnonzero(x[0])[:3], everything, nodes=0) is None


def test_linear_program_finds_profiles_of_few_users() -> None:
    x = profiles_of(40, 160, min_support=2)
    kernel = x.T @ x
    found = [sparse_profile(kernel, item) for item in range(0, len(kernel), 24)]
    rows = np.array([z for z in found if z is not None])
    assert len(rows) > len(found) / 2
    assert rows_in(rows, x) == len(rows)


def test_linear_program_fails_for_many_users() -> None:
    x = profiles_of(300, 60)
    found = sparse_profile(x.T @ x, 0)
    assert found is None or not rows_in(found[None], x)


def test_successive_maxima_show_a_single_user() -> None:
    x = profiles_of(60, 80)
    before = np.max([np.outer(row, row) for row in x[:3]], axis=0)
    after = np.maximum(before, np.outer(x[3], x[3]))
    np.testing.assert_array_equal(raised_items(before, after), x[3] == 1)
    assert not raised_items(before, before).any()


def test_maximum_is_not_positive_semidefinite() -> None:
    x = profiles_of(90, 60)
    cohorts = [part.T @ part for part in np.array_split(x, 3)]
    assert np.linalg.eigvalsh(np.max(cohorts, axis=0))[0] < -1.0
    assert np.linalg.eigvalsh(np.sum(cohorts, axis=0))[0] > -EXACT


def test_noisy_requests_show_positives() -> None:
    rng = np.random.default_rng(4)
    positives = np.zeros(1000, bool)
    positives[rng.choice(1000, 50, replace=False)] = True
    requests = np.zeros((10, 1000), bool)
    for asked in requests:
        asked[positives] = rng.random(50) < 0.9
        asked[rng.choice(np.flatnonzero(~positives), 200, replace=False)] = True
    rated = [requested_items_auc(requests[:count], positives) for count in (1, 2, 5, 10)]
    assert sorted(rated) == rated
    assert 0.75 < rated[0] < 0.95
    assert rated[-1] > 0.999
    assert requested_items_auc(np.ones((10, 1000), bool), positives) == pytest.approx(0.5)
    with pytest.raises(OptionError, match="both kinds"):
        requested_items_auc(requests, np.ones(1000, bool))


def test_real_rows_up_to_a_rotation_and_by_known_rows() -> None:
    rng = np.random.default_rng(5)
    x = rng.random((200, 7))
    gram = x @ x.T
    rows = rows_up_to_rotation(gram)
    assert rows.shape == x.shape
    assert np.abs(rows @ rows.T - gram).max() < EXACT
    rotation = qr(rng.normal(size=(7, 7)))[0]
    assert np.abs(rows_up_to_rotation((x @ rotation) @ (x @ rotation).T) - rows).max() > 0.0
    for count in (7, 8):
        known = np.arange(count)
        assert np.abs(rows_by_known(gram, known, x[known]) - x).max() < EXACT
    missing = x - rows_by_known(gram, np.arange(6), x[:6])
    assert np.abs(missing).max() > 0.01
    assert np.linalg.matrix_rank(missing, tol=EXACT) == 1
    length = np.sqrt(np.maximum(gram.diagonal() - ((x - missing) ** 2).sum(axis=1), 0.0))
    np.testing.assert_allclose(length, np.linalg.norm(missing, axis=1), atol=1e-6)


# -- runs: what the server of the paper's variants and of the default can do


def run(
    strategy: SecureGram, x: np.ndarray, *, faults: FaultPlan | None = None, rounds: int = 1
) -> SecureGram:
    """Sum K over nodes of one user each."""

    def client_fn(context: Context) -> GramClient:
        row = x[int(context.node_config["partition-id"])]
        noisy = getattr(strategy, "request", "full")
        return GramClient(context, row, merge=strategy.merge, request=noisy, noise_seed=int(row[0]))

    simulate(strategy, client_fn, len(x), faults=faults, num_rounds=rounds)
    return strategy


def rare_table() -> np.ndarray:
    """Profiles of 60 users; the last 12 of 52 items have a single user each."""
    x = profiles_of(60, 40, seed=3)
    rare = np.zeros((len(x), 12), np.int64)
    rare[np.arange(12), np.arange(12)] = 1
    return np.concatenate([x, rare], axis=1)


def test_rare_items_show_profiles_on_the_papers_setting_and_not_by_default() -> None:
    x = rare_table()
    paper = run(SecureGram(min_support=0, seed=0), x)
    found = rare_profiles(paper.gram_)
    assert len(found) == 12
    assert rows_in(found, x) == 12
    default = run(SecureGram(seed=0), x)
    assert len(default.items_) < x.shape[1]
    assert len(rare_profiles(default.gram_)) == 0
    assert default.gram_.diagonal().min() >= MIN_SUPPORT


def test_rounds_that_differ_by_one_user_show_it_on_the_papers_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = profiles_of(12, 60, min_support=0)
    released: list[np.ndarray] = []

    def spy(known: np.ndarray | None, fresh: np.ndarray, rule: Merge) -> np.ndarray:
        released.append(unpack(fresh, int((8 * len(fresh) + 1) ** 0.5 - 1) // 2))
        return combine(known, fresh, rule)

    monkeypatch.setattr("fedkern_flwr.strategies.gram_release.combine", spy)
    share = (len(x) - 1) / len(x)
    run(SecureGram(merge="max", participation=share, seed=1), x, rounds=2)
    first, second = released
    joined = difference_of_two(first, second)  # without who left and who came
    assert any((row == joined).all() for row in x)
    released.clear()
    run(SecureGram(seed=1), x)
    assert len(released) == 1  # by default there is nothing to take differences of


def difference_of_two(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the profile of the user who came, where another one left."""
    change = after - before
    own = np.flatnonzero(change.diagonal() > 0)  # items of the newcomer and not of the other
    return (change[own] > 0).any(axis=0).astype(np.int64)


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_user_who_drops_out_after_the_counts_is_not_shown_by_default(attempts: int) -> None:
    x = profiles_of(30, 20, seed=2)
    gone = FaultPlan([(4, "gram-matrix", None, Fault("vanished"))])
    strategy = SecureGram(seed=0, attempts=attempts)
    with pytest.raises(CohortError, match="would show what they have"):
        run(strategy, x, faults=gone)
    assert not strategy.gram_.size
    counts = x.sum(axis=0)  # what it would have shown: the released counts less the diagonal
    others = np.delete(x, 4, axis=0)
    shown = difference_profile(counts, others.sum(axis=0))
    assert shown is not None
    assert (shown == x[4]).all()


def test_noisy_requests_show_what_a_user_likes_and_whole_kernels_do_not() -> None:
    rng = np.random.default_rng(7)
    x = np.zeros((20, 400), np.int64)
    x[:, :8] = 1
    for row in x:
        row[8 + rng.choice(392, 20, replace=False)] = 1
    noisy = FedCFK(merge="max", request="noisy", seed=0)
    run(noisy, x, rounds=8)
    rated = []
    for partition, asked in noisy.asked_.items():
        requests = np.zeros((len(asked), 400), bool)
        for number, items in enumerate(asked):
            requests[number, items] = True
        rated.append(requested_items_auc(requests, x[partition] > 0))
    assert len(rated) == 20
    assert np.mean(rated) > 0.98
    default = FedCFK(seed=0)
    run(default, x)
    assert default.asked_ == {}  # everybody gets the same
    everything = np.ones((8, 400), bool)
    assert requested_items_auc(everything, x[0] > 0) == pytest.approx(0.5)


def test_a_matrix_of_few_rows_shows_all_of_them_and_is_refused_in_a_deployment() -> None:
    x = profiles_of(80, 160)
    strategy = run(SecureGram(seed=0), x)
    found = peel_profiles(strategy.gram_)
    assert found.complete
    assert same_rows(found.profiles, x[:, strategy.items_])
    with pytest.raises(OptionError, match="rows can be computed from the matrix; use rows_per"):
        run(SecureGram(seed=0, allow_recovery=False), x)


def test_two_rows_per_item_withstand_the_search() -> None:
    x = profiles_of(140, 100)
    strategy = run(SecureGram(seed=0, rows_per_item=2.0, allow_recovery=False), x)
    assert len(strategy.items_) == len(x) // 2
    found = peel_profiles(strategy.gram_, patience=10, limit=20, nodes=5_000)
    assert not found.complete
    assert rows_in(found.profiles, x[:, strategy.items_]) <= 1


def test_the_server_of_a_default_run_reads_nothing_in_plain() -> None:
    x, audit = profiles_of(30, 20, seed=2), Audit()
    strategy = FedCFK(seed=0)
    simulate(
        strategy,
        lambda c: GramClient(c, x[int(c.node_config["partition-id"])]),
        len(x),
        audit=audit,
    )
    assert "plain" not in audit.kinds("up")
    view = audit.view("up")
    uniform = [seen.uniform for seen in view.values() if seen.kind in ("masked", "sealed")]
    assert all(p is None or p > 1e-4 for p in uniform)

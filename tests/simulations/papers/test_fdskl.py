"""FDSKL as printed: against doubly stochastic gradients on pooled data, and what messages show."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkern_flwr.simulations.papers.fdskl import (
    Structure,
    Tree,
    add_phases,
    draw_directions,
    draw_masks,
    draw_trees,
    fdskl,
    totally_different,
)

Floats = NDArray[np.float64]
N, WIDTHS, T = 30, (2, 3, 1, 2), 25
D, Q = sum(WIDTHS), len(WIDTHS)
OPTIONS = {"step": 0.3, "regularization": 0.05}
STRUCTURES: tuple[Structure, ...] = ("trees", "star")


class Problem:
    """Rows of four workers, of which the first ``actives`` lead in turn."""

    def __init__(self, actives: int = 1, seed: int = 3, kernel: str = "rbf") -> None:
        rng = np.random.default_rng(seed)
        self.x = rng.random((N, D))
        self.y = np.where(self.x[:, 0] + self.x[:, 3] > 1.0, 1.0, -1.0)
        self.parts = np.split(self.x, np.cumsum(WIDTHS)[:-1], axis=1)
        self.leaders = [t % actives for t in range(T)]
        self.rows = [int(rng.choice(np.arange(leader, N - 5, actives))) for leader in self.leaders]
        self.omega = draw_directions(seed, T, D, 0.7, kernel)
        self.b = draw_masks(seed, T, Q)
        self.tests = range(N - 5, N)

    def run(self, **options: Any) -> Any:
        """Run the program."""
        given = OPTIONS | {"tests": self.tests} | options
        more = (self.leaders, self.rows, self.omega, self.b)
        return fdskl(self.parts, self.y, *more, **given)


SLOPES = {
    "square": lambda f, y: 2.0 * (f - y),
    "logistic": lambda f, y: -y / (1.0 + np.exp(y * f)),
    "smooth-hinge": lambda f, y: -y * min(1.0, max(0.0, 1.0 - y * f)),
}


def pooled(problem: Problem, offsets: Floats, loss: str) -> tuple[list[float], Floats]:
    """Equation 7 by a single owner: f of all rows is kept up to date."""
    f, seen = np.zeros(N), []
    for t, row in enumerate(problem.rows):
        phi = np.sqrt(2.0) * np.cos(problem.x @ problem.omega[t] + offsets[t])
        seen.append(float(f[row]))
        gradient = SLOPES[loss](f[row], problem.y[row]) * phi[row] * phi
        f = f - OPTIONS["step"] * (gradient + OPTIONS["regularization"] * f)
    return seen, f[problem.tests]


@pytest.mark.promise("fdskl-pooled")
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(("actives", "loss"), [(1, "square"), (2, "logistic"), (4, "smooth-hinge")])
def test_it_is_doubly_stochastic_gradients(structure: Structure, actives: int, loss: str) -> None:
    problem = Problem(actives, kernel="laplacian" if loss == "logistic" else "rbf")
    result, _ = problem.run(structure=structure, loss=loss)
    if structure == "star":
        np.testing.assert_allclose(result.offsets, problem.b.sum(axis=1))
    else:  # that of l', another worker than the leader, the same whenever it leads
        kept = np.argmin(np.abs(problem.b - result.offsets[:, None]), axis=1)
        np.testing.assert_array_equal(result.offsets, problem.b[np.arange(T), kept])
        assert len({*zip(problem.leaders, kept, strict=True)}) == actives
        assert (kept != problem.leaders).all()
    seen, scores = pooled(problem, result.offsets, loss)
    np.testing.assert_allclose(result.outputs, seen, atol=1e-11)
    np.testing.assert_allclose(result.scores, scores, atol=1e-11)
    assert np.ptp(result.scores) > 0.1


def test_trees_with_a_common_subtree_are_refused() -> None:
    figure = Tree(0, ((1, 0), (3, 2), (2, 0))), Tree(0, ((2, 1), (1, 0)))  # Figure 2
    assert figure[0].subtrees == {frozenset({0, 1}), frozenset({2, 3}), frozenset(range(4))}
    assert totally_different(*figure)
    same = figure[0], Tree(0, ((1, 0), (2, 0)))  # workers 0 and 1 are a pair in both
    assert not totally_different(*same)
    problem = Problem()
    add_phases(problem.parts, problem.omega, problem.b, figure, [])
    with pytest.raises(ValueError):  # noqa: PT011  (the paper's program has no errors of ours)
        add_phases(problem.parts, problem.omega, problem.b, same, [])


@pytest.mark.parametrize("q", [2, 4, 7])
def test_drawn_trees_are_totally_different(q: int) -> None:
    for seed in range(20):
        t1, t2 = draw_trees(q, 0, q - 1, seed)
        assert totally_different(t1, t2)
        for tree, members in ((t1, set(range(q))), (t2, set(range(q - 1)))):
            assert {sender for sender, _ in tree.sends} == members - {0}  # each sends once
            values = {worker: np.array([2.0**worker]) for worker in members}
            assert tree.add_up(values, "", [])[0] == sum(2.0**worker for worker in members)


def test_every_hop_is_in_the_transcript() -> None:
    problem = Problem(actives=2)
    result, sent = problem.run(structure="trees")
    names = Counter(name for _, _, name, _ in sent)
    asked = T + len(problem.tests)  # f of a batch, f of a test row: a sum over T0 each
    assert names["row"] == names["shrink"] == T * (Q - 1)
    assert names["f"] == asked * (Q - 1)
    assert names["b"] * (Q - 1) == names["o + b"] * (Q - 2)  # T2 has one worker less
    first = [message for message in sent if message[2] == "row"][: Q - 1]
    assert {receiver for _, receiver, _, _ in first} == {f"worker {w}" for w in (1, 2, 3)}
    assert all(array == problem.rows[0] for *_, array in first)
    # no phase of a row is asked for twice
    wanted = {(row, j) for t, row in enumerate(problem.rows) for j in range(t + 1)}
    wanted |= {(row, j) for row in problem.tests for j in range(T)}
    numbers = sum(array.size for _, _, name, array in sent if name == "o + b")
    assert numbers == len(wanted) * (Q - 1)
    assert len(result.alpha) == T


@pytest.mark.parametrize(("q", "share"), [(3, 1 / 2), (4, 1 / 3)])
def test_totally_different_trees_can_show_a_value_and_its_mask(q: int, share: float) -> None:
    """Against Lemma 2: one worker gets o + b and b of another, each alone, and subtracts."""
    x, omega, b = np.split(Problem().x[:, :q], q, axis=1), np.ones((1, q)), draw_masks(0, 1, q)
    shown = 0
    for seed in range(600):
        trees, sent = draw_trees(q, 0, q - 1, seed), list[Any]()
        add_phases(x, omega, b, trees, sent)
        alone = [
            {send for k, send in enumerate(t.sends) if send[0] not in {r for _, r in t.sends[:k]}}
            for t in trees
        ]
        for sender, receiver in alone[0] & alone[1]:
            masked, mask = (
                m for *who, _, m in sent if who == [f"worker {sender}", f"worker {receiver}"]
            )
            np.testing.assert_allclose(masked - mask, x[sender])
        shown += bool(alone[0] & alone[1])
    assert shown / 600 == pytest.approx(share, abs=0.08)  # four standard deviations

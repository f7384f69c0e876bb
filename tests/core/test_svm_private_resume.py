"""A run of HierarchicalSVM with a budget that breaks off goes on: the same noise, paid once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import Cut, PowerCutError, never
from flwr.app import Context
from known_noise import know_noise
from refusals import refused

from fedkern_flwr.clients import SVMClient
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import HierarchicalSVM

USERS, STEPS, EPSILON = 3, 5, 3.0
LAST = STEPS + 1  # exchange of the counts; 0 describes, 1 is the first iteration


def rows(n: int = 120, d: int = 4) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).random((n, d))
    return x, np.where(x.sum(axis=1) > d / 2, 1.0, -1.0)


X, Y = rows()


@dataclass
class Users:
    """Users with folders, whose owners allow one run about their rows."""

    folder: Path
    state: bool = True
    last: Any = None
    checkpoint: Path = field(init=False)

    def __post_init__(self) -> None:
        self.checkpoint = self.folder / "run.npz"

    def client(self, context: Context) -> SVMClient:
        k = int(context.node_config["partition-id"])
        context.node_config["simulation"] = False
        learn, held = np.arange(k, 90, USERS), np.arange(90 + k, len(X), USERS)
        policy = NodePolicy(max_epsilon=EPSILON if self.state else float("inf"))
        return SVMClient(
            context,
            X[learn],
            Y[learn],
            x_test=X[held],
            y_test=Y[held],
            classes=(-1.0, 1.0),
            policy=policy,
            state_dir=self.folder / str(k) if self.state else None,
        )

    def fit(self, plan: Any = None, rounds: int = STEPS, **more: Any) -> HierarchicalSVM:
        own: dict[str, Any] = {"architecture": "centralised", "C": 1.0, "seed": 0, "attempts": 2}
        own |= {"checkpoint": self.checkpoint, "checkpoint_every": 2, "privacy_epsilon": EPSILON}
        self.last = HierarchicalSVM(**{**own, **more})
        simulate(self.last, self.client, USERS, num_rounds=rounds, faults=plan)
        return self.last

    def epsilons(self) -> list[list[float]]:
        return [
            [run.epsilon for run in NodeLedger(self.folder / str(k), k).runs()]
            for k in range(USERS)
        ]


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Users:
    """Users whose noise is known to the test: drawn again it is other noise."""
    know_noise(monkeypatch)
    return Users(tmp_path)


@pytest.fixture
def quiet(users: Users, tmp_path: Path) -> HierarchicalSVM:
    """The run that nothing happens to."""
    found = Users(tmp_path / "quiet")
    return found.fit()


def check(users: Users, quiet: HierarchicalSVM) -> None:
    """The same model and figures, byte for byte; paid once."""
    assert np.array_equal(users.last.coefficients_, quiet.coefficients_)
    assert users.last.metrics_ == quiet.metrics_
    assert users.last.history_ == quiet.history_
    assert users.last.privacy()["budget"] == quiet.privacy()["budget"]
    assert users.epsilons() == [[pytest.approx(EPSILON, rel=1e-2)]] * USERS


def test_the_noise_of_these_tests_is_one(quiet: HierarchicalSVM, users: Users) -> None:
    """So that a model can be compared; with keys of the system it is another each time."""
    users.fit()
    check(users, quiet)


@pytest.mark.promise("svm-budget-resumes")
@pytest.mark.parametrize("number", range(2, LAST + 1))
@pytest.mark.parametrize("parties", [1, USERS])
def test_a_server_that_broke_down_goes_on(
    number: int, parties: int, users: Users, quiet: HierarchicalSVM
) -> None:
    """Some users have answered the exchange, or none of them; one costs nothing twice."""
    with pytest.raises(PowerCutError):
        users.fit(Cut(number=number, parties=parties))
    users.fit(resume=True)
    check(users, quiet)


@pytest.mark.parametrize("phase", ["svm-gradient", "svm-count"])
def test_a_run_that_lost_a_user_goes_on(phase: str, users: Users, quiet: HierarchicalSVM) -> None:
    """All are told that it broke off, and erase their secrets but for the key of their noise."""
    plan = never(1, phase)
    plan.number = 4 if phase == "svm-gradient" else 1
    with refused("FK-PARTIES-LOST"):
        users.fit(plan)
    assert plan.seen[-1][0] == "break"
    users.fit(resume=True)
    check(users, quiet)


def test_a_run_without_a_checkpoint_is_over_when_it_breaks_off(users: Users) -> None:
    plan = never(1, "svm-gradient")
    with refused("FK-PARTIES-LOST"):
        users.fit(plan, checkpoint=None)
    assert plan.seen[-1][0] == "finish"


def test_another_number_of_iterations_is_refused(users: Users) -> None:
    """What they may cost was divided among those."""
    with pytest.raises(PowerCutError):
        users.fit(Cut(number=4))
    with refused("FK-SETTINGS-CHANGED") as why:
        users.fit(rounds=STEPS + 1, resume=True)
    assert "\n" not in str(why.value)


def test_a_node_without_a_folder_cannot_go_on(users: Users) -> None:
    """It has lost the key of its noise."""
    users.state = False
    with pytest.raises(PowerCutError):
        users.fit(Cut(number=4))
    with refused("FK-STATE-GONE") as why:
        users.fit(resume=True)
    assert "state_dir" in str(why.value)


def test_noise_that_was_lost_is_not_drawn_again(users: Users) -> None:
    """The mean of two noises has less of it: a node whose key is gone takes part no longer."""
    with pytest.raises(PowerCutError):
        users.fit(Cut(number=5))
    session = users.last.session
    NodeLedger(users.folder / "1", 1).forget_noise(session)
    with refused("FK-BUDGET-EXCEEDED") as why:
        users.fit(resume=True)
    assert "\n" not in str(why.value)

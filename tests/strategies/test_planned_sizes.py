"""Default sizes fit the share of its rows' unknowns that a node lets a run open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from identities import pin_identities

from fedkern_flwr.clients import HybridKernelClient, KernelPCAClient
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import FedCG, KernelPCA

NODES, ROWS, COLUMNS = 3, 200, 30
RNG = np.random.default_rng(0)
X = RNG.random((NODES, ROWS, COLUMNS))
Y = np.where(X[..., 0] + X[..., 1] ** 2 > 0.8, 1.0, -1.0)
DRAWN: dict[int, Any] = {}  # partition -> its landmarks of the last run
Run = Callable[..., Any]


class Hospital(HybridKernelClient):
    def _landmarks(self) -> Any:
        DRAWN[self.partition] = super()._landmarks()
        return DRAWN[self.partition]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a strategy with pinned nodes that keep their folders; with share 1 they simulate."""
    pin_identities(tmp_path, NODES)

    def start(strategy: Any, share: float = 0.2, blocks: str = "aaa") -> Any:
        def client_fn(context: Context) -> Any:
            k = int(context.node_config["partition-id"])
            own: dict[str, Any] = {"state_dir": tmp_path / str(k)}
            if share < 1.0:
                context.node_config["simulation"] = False
                own["identity_key"] = tmp_path / f"identity-{k}"
                own["trusted_keys"] = tmp_path / "trusted"
            if isinstance(strategy, KernelPCA):
                client: Any = KernelPCAClient(context, X[k], **own)
            else:
                own |= {"classes": (-1.0, 1.0), "block": blocks[k]}
                client = Hospital(context, X[k], Y[k], **own)
            return client

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedkern_flwr.guard.ledger.planned_share", lambda *_: share)
            simulate(strategy, client_fn, NODES)
        return strategy

    return start


def released(strategy: Any) -> int:
    """Return the numbers about rows to learn from that the server opened."""
    sums = strategy.privacy()["sums"]
    return sum(s["numbers"] for s in sums if s["name"].startswith(("equations", "mom", "mean")))


@pytest.mark.parametrize(("share", "options", "landmarks", "by"), [
    (0.2, {}, 67, "generalised"),  # not 100 with folds, or with a second width
    (0.02, {}, 20, "generalised"),
    (0.99, {}, 152, "generalised"),
    (0.2, {"landmarks": 30}, 30, "generalised"),  # as stated
    (0.5, {"landmarks": 15}, 15, "5 folds"),
    (0.2, {"gamma": 0.1, "regularization": 1e-2}, 67, ""),
    (1.0, {}, 155, "generalised"),
])  # fmt: skip
def test_fedcg_takes_the_landmarks_folds_and_widths_that_fit(
    share: float, options: Any, landmarks: int, by: str, run: Run
) -> None:
    fitted = run(FedCG(**options), share)
    assert fitted.landmarks_ == landmarks
    assert fitted.tuned_.get("by", "").startswith(by)
    assert released(fitted) <= share * 400 * (COLUMNS + 1)
    assert bool(fitted.result().get("notes")) == (share < 1.0)


def test_a_repeated_run_has_the_same_landmarks_and_a_smaller_one_the_first(run: Run) -> None:
    """Also where two hold a block; other holders draw others, though it is called the same."""
    drawn: dict[str, Any] = {}
    for blocks in ("aaa", "aab", "aba"):
        run(FedCG(landmarks=40, missing="neutral"), blocks=blocks)
        drawn[blocks] = dict(DRAWN)
        run(FedCG(landmarks=10, missing="neutral"), blocks=blocks)
        for k, few in DRAWN.items():
            np.testing.assert_array_equal(few, drawn[blocks][k][:10])
            np.testing.assert_array_equal(few, DRAWN[blocks.index(blocks[k])])  # of one block
    assert len({of[0].tobytes() for of in drawn.values()}) == 3


@pytest.mark.parametrize(
    ("share", "options", "features"),
    [(0.2, {}, 33), (0.01, {"components": 5}, 7), (0.2, {"features": 40}, 40), (1.0, {}, 50)],
)
def test_kernel_pca_takes_what_fits(share: float, options: Any, features: int, run: Run) -> None:
    fitted = run(KernelPCA(**options), share)
    assert len(fitted.model_["mean"]) == 2 * features

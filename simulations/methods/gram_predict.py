"""Predictions for new rows with the Gram matrix of a run: their products come from the parties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from ...strategies import SecureGram
from ..engines import InProcessGrid
from .gram_data import GramSettings, InstanceClients, InstanceData
from .gram_learner import Machine, choose_machine
from .new_rows import Outputs, SavedRun, complete_rows


def predict_rows(run: SavedRun, x: NDArray[np.float64]) -> Outputs:
    """Predict new rows with the kernel of a run, whose data must still be there.

    Columns are dealt as in the run. The parties sum the products of the new rows with those of the
    run securely; the machine is trained again on the matrix of the run.

    Raises
    ------
    TableError
        Every row lacks a value.
    """
    part = InstanceData(GramSettings.from_values(run.config["data"])).split(run.seed)
    rows = complete_rows(x)
    strategy = SecureGram.of_model(run.meta, seed=run.seed)
    clients = InstanceClients(part.features(strategy.encoding), part.parts, x_new=x[rows])
    app = ClientApp(client_fn=lambda context: clients(context).to_client())
    grid = InProcessGrid(app, len(part.parts))
    products, squares = strategy.cross(grid, (run.arrays, run.meta))
    train = part.train[strategy.items_]
    own, y = strategy.linear_[np.ix_(train, train)], part.y[strategy.items_][train]
    machine = train_machine(strategy, own, y, part.classes, run.config, run.seed)
    outputs = machine.outputs(
        machine.kernel.matrix(own, machine.rows),
        y,
        machine.kernel.block(products[:, train], squares, own.diagonal(), machine.rows),
    )
    return dict(zip(rows, outputs.tolist(), strict=True))


def train_machine(
    strategy: SecureGram,
    gram: NDArray[np.float64],
    y: NDArray[np.float64],
    classes: tuple[float, ...],
    config: Mapping[str, Any],
    seed: int,
) -> Machine:
    """Choose the machine that a run is asked for on the matrix of the rows to learn from."""
    return choose_machine(
        gram,
        strategy.rows_,
        y,
        strategy.dot_kernel_,
        classes,
        learner=config.get("learner", "svc"),
        gamma=strategy.gamma,
        cost=config.get("cost"),
        seed=seed,
    )

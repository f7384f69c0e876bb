"""Predictions for new rows with the Gram matrix of a run: their products come from the parties."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.clientapp import ClientApp

from fedkern_flwr.errors import OptionError

from ...strategies import SecureGram
from ..engines import InProcessGrid
from .gram_data import GramSettings, InstanceClients, InstanceData, prepare_gram
from .gram_learner import choose_machine
from .new_rows import complete_rows, read_model, read_rows, write_rows


def predict_rows(
    folder: Path, config: Mapping[str, Any], data: Path, id_column: str | None, out: Path
) -> tuple[int, int]:
    """Predict the rows of a file with the kernel of a run and write a CSV file.

    Columns are dealt as in the run. The parties sum the products of the new rows with those of the
    run securely; the machine is trained again on the matrix of the run. Scaled values beyond the
    training rows' range are clipped to it.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    config : mapping
        The run's configuration; its data must still be there.
    data : Path
        File with the columns of the training data; others are ignored, as is a label.
    id_column : str or None
        Column of record ids; row numbers by default.
    out : Path
        CSV file: id, then the predicted class and the outputs, or the predicted value.

    Returns
    -------
    (int, int)
        Rows predicted, and rows left out because they lack a value.

    Raises
    ------
    TableError
        The file lacks a column of the model, or every row lacks a value.
    OptionError
        The run had no labels.
    CheckpointError
        The folder has no model.
    """
    arrays, meta, scaling = read_model(folder, config["method"])
    prepared = prepare_gram(GramSettings.from_values(config["data"]))
    if not isinstance(prepared, InstanceData):
        raise OptionError(
            "ratings have no labels to predict", remedy="use fedkern run fed-cfk to recommend"
        )
    raw = meta["encoding"] == "counts"
    label = str(config["data"].get("label") or "")
    x, ids = read_rows(data, scaling, id_column, label, scaled=not raw)
    rows = complete_rows(x)
    seed = int(config["seed"])
    part = prepared.split(seed)
    strategy = SecureGram.of_model(meta, seed=seed)
    clients = InstanceClients(part.features(strategy.encoding), part.parts, x_new=x[rows])
    app = ClientApp(client_fn=lambda context: clients(context).to_client())
    products, squares = strategy.cross(InProcessGrid(app, len(part.parts)), (arrays, meta))
    gram, train = strategy.linear_, part.train[strategy.items_]
    y = part.y[strategy.items_][train]
    machine = choose_machine(
        gram[np.ix_(train, train)],
        strategy.rows_,
        y,
        strategy.dot_kernel_,
        part.classes,
        learner=config["learner"],
        gamma=strategy.gamma,
        cost=config["cost"],
        seed=seed,
    )
    own = gram[np.ix_(train, train)]
    outputs = machine.outputs(
        machine.kernel.matrix(own, machine.rows),
        y,
        machine.kernel.block(products[:, train], squares, own.diagonal(), machine.rows),
    )
    write_rows(out, [ids[k] for k in rows], outputs.tolist(), scaling)
    return len(rows), len(x) - len(rows)

"""Predictions for new rows with a model of HierarchicalSVM, in a vertical split by its nodes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedkern_flwr.groups.linear_model import outputs
from fedkern_flwr.groups.members import OWNER

from ...clients import SVMClient
from ...strategies import HierarchicalSVM
from ..engines import InProcessGrid
from .groups_data import HierarchicalClients, HierarchicalData
from .groups_settings import HierarchicalSettings
from .new_rows import complete_rows, read_model, read_predictions, read_rows, write_rows

Floats = NDArray[np.float64]


def predict_rows(
    folder: Path, config: Mapping[str, Any], data: Path, id_column: str | None, out: Path
) -> tuple[int, int]:
    """Predict the rows of a file with the model of a run and write a CSV file.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    config : mapping
        The run's configuration; of a vertical split the data must still be there.
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
    CheckpointError
        The folder has no model, or nodes of a vertical split kept no parts of it.
    """
    arrays, meta, scaling = read_model(folder, config["method"])
    label = str(config["data"].get("label") or "")
    x, ids = read_rows(data, scaling, id_column, label, scaled=False)
    rows = complete_rows(x)
    if meta["partition"] == "vertical":
        found = vertical_outputs(folder, config, meta, x[rows])
    else:
        found = outputs(arrays, meta, x[rows])
    write_rows(out, [ids[k] for k in rows], found.tolist(), scaling)
    return len(rows), len(x) - len(rows)


@dataclass(frozen=True)
class NewRows:
    """A ``client_fn``: the nodes of a run, with new rows held out whose labels nobody knows.

    Attributes
    ----------
    clients : HierarchicalClients
    predictions : Path
        CSV file that the label owner writes.
    """

    clients: HierarchicalClients
    predictions: Path

    def __call__(self, context: Context) -> SVMClient:
        """Build the client of a node."""
        own = self.clients.arguments(int(context.node_config["partition-id"]))
        if own["role"] == OWNER:
            own = {name: value for name, value in own.items() if name != "y_test"}
            own["predictions"] = self.predictions
        return SVMClient(context, **own, state_dir=self.clients.state_dir)


def vertical_outputs(
    folder: Path, config: Mapping[str, Any], meta: Mapping[str, Any], x: Floats
) -> Floats:
    """Return the outputs of new rows, shape (n, k), by the nodes of a vertical split.

    Columns are dealt as in the run; the first user of each group has all new rows. Agents and label
    owner use the parts of the model that they kept.
    """
    prepared = HierarchicalData(HierarchicalSettings.from_values(config["data"]))
    seed = int(config["seed"])
    dealt = prepared.split(seed)
    train, new = np.flatnonzero(dealt.train), len(x)
    known, first = len(train), np.cumsum([0, *prepared.sizes[:-1]])
    with_new = replace(
        dealt,
        x=np.concatenate([dealt.x[train], x]),
        y=np.concatenate([dealt.y[train], np.full(new, dealt.y[train[0]])]),
        train=np.arange(known + new) < known,
        holders=tuple(
            np.concatenate([holders[train], np.full(new, user)])
            for holders, user in zip(dealt.holders, first, strict=True)
        ),
    )
    allow_single = bool(config["options"].get("allow_single", False))
    strategy = HierarchicalSVM.of_model(meta, allow_single=allow_single)
    with tempfile.TemporaryDirectory(prefix="fedkern-") as place:
        clients = HierarchicalClients(
            with_new,
            prepared.sizes,
            prepared.columns,
            seed,
            True,
            allow_single,
            strategy.product,
            folder / "private_state",
        )
        nodes = NewRows(clients, Path(place) / "partition-0.csv")
        app = ClientApp(client_fn=lambda context: nodes(context).to_client())
        strategy.predict(InProcessGrid(app, prepared.num_clients), {}, meta)
        found = read_predictions(Path(place))
    return np.array([found[known + k] for k in range(new)])

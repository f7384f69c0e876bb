"""``fedkern predict``: a model of an earlier run, new rows, a file of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkern_flwr.errors import OptionError, TableError

from ..methods.registry import family
from ..run.folders import FORCE, used
from ..run.run_folder import RunFolder
from .console import Screen
from .lazy import as_command


def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a run, or its model.")],
    data: Annotated[str, typer.Option(help="File with the columns of the training data.")],
    id_column: Annotated[
        str | None, typer.Option("--id", help="Column of record ids (default: row numbers).")
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="CSV file (default: predictions.csv in the run's folder).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")] = False,
) -> None:
    """Predict new rows with the model of an earlier run."""
    screen = Screen(quiet)
    path = Path(model)
    folder, config = RunFolder.open(path.parent if path.is_file() else path)
    own, name = family(config["method"]), config["method"]
    if config["engine"] == "deployment":
        raise OptionError(
            f"{folder.path} is a deployment: its nodes predict, each its own rows",
            remedy="put the rows into nodes/*/test-data.csv, then use "
            f"fedkern deploy-local {name} --predict {folder.path}",
        )
    target = Path(out) if out else folder.path / "predictions.csv"
    if target.is_dir() or not target.resolve().parent.is_dir():
        raise OptionError(f"--out {target} cannot be written", remedy="name a file in a folder")
    if target.exists() and not force:
        raise used(target)
    if not Path(data).is_file():
        raise TableError(f"there is no file {data}", remedy="check the path")
    made, left_out = own.predict(folder.path, config, Path(data), id_column, target)
    note = f", {left_out} left out: {own.left_out}" if left_out else ""
    screen.note(f"{made} predictions: {target}{note}")


command = as_command("predict", predict)

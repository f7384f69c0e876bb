"""``fedkern predict``: a model of an earlier run, new rows, a file of predictions."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.fitted import PREDICTOR, load_model

from ..methods.new_rows import NewRows
from ..methods.registry import family, open_run
from ..run.folders import FORCE, check_target, used
from ..run.party_files import FEATURES
from .console import Screen
from .lazy import as_command

_ROWS = "use --data FILE, or --party FILE for every party's file"


def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Run folder or saved model.")],
    data: Annotated[
        str | None, typer.Option(help="File with the columns of the training data.")
    ] = None,
    party: Annotated[
        list[str] | None,
        typer.Option(help="File of a party, once for each, instead of --data; matched by --id."),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id", help="Column of record ids (default: the run's if it is there, or row numbers)."
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="CSV file (default: predictions.csv beside the model, or -2, -3)."),
    ] = None,
    sep: Annotated[
        str | None, typer.Option(help="What parts the columns: a character, or tab.")
    ] = None,
    decimal: Annotated[str | None, typer.Option(help="Decimal mark: . or ,")] = None,
    na: Annotated[
        str | None, typer.Option(help="More marks of missing cells, separated by commas.")
    ] = None,
    dates: Annotated[
        str | None, typer.Option(help="Order of dates: day-first, month-first or iso.")
    ] = None,
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether the first line has names.")
    ] = None,
    client: Annotated[
        int | None,
        typer.Option(help="Of online methods: whose model predicts (default: the mean of all)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")] = False,
) -> None:
    """Predict new rows with the model of an earlier run."""
    screen = Screen(quiet)
    path = Path(model)
    place = path.parent if path.is_file() else path
    of_run = path.name in ("model.npz", PREDICTOR) and (place / "config.json").is_file()
    alone = path.is_file() and not of_run  # the file of save()
    run = None if alone else _open(place)
    target = Path(out) if out else _free(place / "predictions.csv", force=force)
    check_target(target, "--out")
    if (data is None) == (not party):
        raise OptionError(
            "new rows are in one file or in files of parties", remedy=_ROWS, code="FK-PREDICT-ROWS"
        )
    if data is not None and not Path(data).is_file():
        raise TableError(f"there is no file {data}", remedy="check the path", code="FK-FILE-READ")
    dialect = {"sep": sep, "decimal": decimal, "na": na, "dates": dates, "header": header}
    rows: Any = [one.removesuffix(FEATURES) for one in party] if party else Path(str(data))

    def writable() -> Path:
        if out and target.exists() and not force:
            raise used(target)
        return target

    new = NewRows(rows, id_column, writable, client, dialect)
    if run is None:
        whole = load_model(path)
        own, (made, left_out) = family(whole.method), new.predict(whole)
    else:
        own = family(run["method"])
        made, left_out = own.predict(place, run, new)
    note = f", {left_out} left out: {own.left_out}" if left_out else ""
    screen.result(f"{made} predictions: {target}{note}")


def _free(path: Path, *, force: bool) -> Path:
    """Return a path, or one with a number behind its name if a file is there already."""
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in range(2, 10**6))
    return path if force else next(one for one in chain([path], numbered) if not one.exists())


def _open(place: Path) -> dict[str, Any]:
    """Return the configuration of a run that was simulated."""
    folder, config = open_run(place)
    if config["engine"] == "deployment":
        raise OptionError(
            f"{folder.path} is a deployment: its nodes predict, each its own rows",
            remedy="put the rows into nodes/*/test-data.csv, then use "
            f"fedkern deploy-local {config['method']} --predict {folder.path}",
            code="FK-PREDICT-DEPLOYED",
        )
    return config


command = as_command("predict", predict)

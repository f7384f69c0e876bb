"""``fedkern predict``: predictions of a saved model for new rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.fitted import PREDICTOR, load_model
from fedkern_flwr.tables.dialect import DIALECT

from ..methods.new_rows import NewRows
from ..methods.registry import family, open_run
from ..run.options import argument, declare, switch
from ..run.party_files import FEATURES
from ..run.run_folder import check_target, used
from .console import Screen
from .options import of_function


@dataclass(frozen=True)
class PredictOptions:
    """Options of ``fedkern predict``.

    Attributes
    ----------
    model : str
        Run folder or saved model.
    data : str or None
        File with the columns of the training data.
    party : list of str
        File of a party, once for each; rows are matched by --id.
    id_column : str or None
        Column of record ids (default: that of the run, or row numbers).
    out : str or None
        CSV file (default: predictions.csv next to the model).
    sep : str or None
        Separator of the columns: a character, or tab.
    decimal : str or None
        Decimal mark: . or ,
    na : str or None
        More marks of missing cells, separated by commas.
    dates : str or None
        Order of dates: day-first, month-first or iso.
    header : bool or None
        Whether the first line has names.
    client : int or None
        Online methods: client that predicts (default: mean of all models).
    force : bool
        Replace what an earlier command left in --out.
    quiet : bool
        Show nothing but errors.
    """

    model: str = argument()
    data: str | None = None
    party: list[str] = declare(())
    id_column: str | None = None
    out: str | None = None
    sep: str | None = None
    decimal: str | None = None
    na: str | None = None
    dates: str | None = None
    header: bool | None = None
    client: int | None = None
    force: bool = switch()
    quiet: bool = switch()


def predict(asked: PredictOptions) -> None:
    """Predict new rows with the model of an earlier run."""
    screen, out, party = Screen(asked.quiet), asked.out, asked.party
    path = Path(asked.model)
    place = path.parent if path.is_file() else path
    of_run = path.name in ("model.npz", PREDICTOR) and (place / "config.json").is_file()
    alone = path.is_file() and not of_run  # the file of save()
    run = None if alone else _open(place)
    target = Path(out) if out else _free(place / "predictions.csv", force=asked.force)
    check_target(target, "--out")
    if (asked.data is None) == (not party):
        raise OptionError("new rows are in one file or in files of parties", code="FK-PREDICT-ROWS")
    if asked.data is not None and not Path(asked.data).is_file():
        raise TableError(f"there is no file {asked.data}", code="FK-FILE-READ")
    dialect = {key: getattr(asked, key) for key in DIALECT if hasattr(asked, key)}
    rows: Any = [one.removesuffix(FEATURES) for one in party] if party else Path(str(asked.data))

    def writable() -> Path:
        if out and target.exists() and not asked.force:
            raise used(target)
        return target

    new = NewRows(rows, asked.id_column, writable, asked.client, dialect)
    if run is None:
        whole = load_model(path)
        own, (made, left_out) = family(whole.method), new.predict(whole)
    else:
        own = family(run["method"])
        made, left_out = own.predict(place, run, new)
    note = f", {left_out} left out: {own.left_out}" if left_out else ""
    screen.result(f"{made} predictions: {target}{note}")


def _free(path: Path, *, force: bool) -> Path:
    """Return a free path, with a number if needed."""
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in range(2, 10**6))
    return path if force else next(one for one in chain([path], numbered) if not one.exists())


def _open(place: Path) -> dict[str, Any]:
    """Return the configuration of a simulated run."""
    folder, config = open_run(place)
    if config["engine"] == "deployment":
        raise OptionError(
            f"{folder.path} is a deployment: its nodes predict, each its own rows",
            remedy="put the rows into nodes/*/test-data.csv, then use "
            f"fedkern deploy-local {config['method']} --predict {folder.path}",
            code="FK-PREDICT-DEPLOYED",
        )
    return config


command = of_function("predict", predict, PredictOptions)

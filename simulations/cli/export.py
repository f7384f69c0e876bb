"""``fedkern export``: a model of an earlier run in a format that other programs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import OptionError
from fedkern_flwr.fitted import load_model

from ..export.document import document, plain
from ..run.folders import FORCE, check_target, used
from ..run.run_folder import RunFolder
from .console import Screen
from .lazy import as_command

Format = Literal["onnx", "skops", "json"]


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Run folder or saved model.")],
    to: Annotated[Format, typer.Option(help="Format.")] = "onnx",
    out: Annotated[
        str | None, typer.Option(help="File (default: model.FORMAT in the run's folder).")
    ] = None,
    client: Annotated[
        int | None,
        typer.Option(help="Of POF-MKL: whose weights predict (default: the mean of all clients)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")] = False,
) -> None:
    """Write a model of an earlier run as ONNX, skops or JSON."""
    screen, place = Screen(quiet), Path(model)
    if not place.exists():
        RunFolder.open(place)  # says so
    folder = place.parent if place.is_file() else place
    target = Path(out) if out else folder / f"model.{to}"
    check_target(target, "--out")
    if target.exists() and not force:
        raise used(target)
    whole = load_model(model)
    found = document(whole if client is None else whole.of_client(client))
    write_atomically(target, _bytes(found, to), private=True)
    screen.result(f"exported: {target}; keep it like the training table")
    if found["encoded"]:
        screen.note(
            f"note: it takes the {len(found['inputs'])} columns that the encoder makes, not those "
            "of the table: `load_model(MODEL).features(rows)` returns them"
        )


def _bytes(found: dict[str, object], to: Format) -> bytes:
    """Return the file of a document.

    Raises
    ------
    OptionError
        A package is missing.
    """
    if to == "json":
        return json.dumps(plain(found), allow_nan=False).encode()
    try:
        if to == "onnx":
            from ..export.onnx_graph import build

            return bytes(build(found).SerializeToString())
        from skops.io import dumps

        from ..export.scikit import ExportedModel

        return bytes(dumps(ExportedModel(found)))
    except ImportError:
        raise OptionError(
            f"--to {to} needs the package {to}",
            remedy="pip install 'fedkern-flwr[export]'",
            code="FK-PACKAGE-MISSING",
        ) from None


command = as_command("export", export)

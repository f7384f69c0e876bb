"""``fedkern export``: a model in a format of other programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import missing_package
from fedkern_flwr.fitted import load_model

from ..export.document import document, plain
from ..run.options import argument, switch
from ..run.run_folder import RunFolder, check_target, used
from .console import Screen
from .options import of_function

Format = Literal["onnx", "skops", "json"]


@dataclass(frozen=True)
class ExportOptions:
    """Options of ``fedkern export``.

    Attributes
    ----------
    model : str
        Run folder or saved model.
    to : {"onnx", "skops", "json"}
        Format.
    out : str or None
        File (default: model.FORMAT in the folder of the run).
    client : int or None
        POF-MKL: client that predicts (default: mean of all clients).
    force : bool
        Replace what an earlier command left in --out.
    quiet : bool
        Show nothing but errors.
    """

    model: str = argument()
    to: Format = "onnx"
    out: str | None = None
    client: int | None = None
    force: bool = switch()
    quiet: bool = switch()


def export(asked: ExportOptions) -> None:
    """Write a model of an earlier run as ONNX, skops or JSON."""
    screen, place, to = Screen(asked.quiet), Path(asked.model), asked.to
    if not place.exists():
        RunFolder.open(place)  # says so
    folder = place.parent if place.is_file() else place
    target = Path(asked.out) if asked.out else folder / f"model.{to}"
    check_target(target, "--out")
    if target.exists() and not asked.force:
        raise used(target)
    whole = load_model(asked.model)
    found = document(whole if asked.client is None else whole.of_client(asked.client))
    write_atomically(target, _bytes(found, to), private=True)
    screen.result(f"exported: {target}; keep it like the training table")
    if found["encoded"]:
        screen.note(
            f"note: it takes the {len(found['inputs'])} columns that the encoder makes, not those "
            "of the table: `load_model(MODEL).features(rows)` returns them"
        )


def _bytes(found: dict[str, object], to: Format) -> bytes:
    """Return the contents of the file."""
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
        raise missing_package(f"--to {to} needs the package {to}", "export") from None


command = of_function("export", export, ExportOptions)

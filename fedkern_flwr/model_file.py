"""Save and load model files, for later runs and other machines.

A model file is an ``.npz`` of :mod:`fedkern_flwr.checkpoint`. Its JSON object starts with format,
version, method and release.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import __version__
from .checkpoint import load_arrays, save_arrays
from .errors import CheckpointError
from .options import take_out

FORMAT, VERSION = "fedkern-flwr model", 1
_HEADER = "file"


def save_model(
    path: str | Path, method: str, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
) -> None:
    """Save the result of a strategy's ``model()`` to an ``.npz`` file."""
    header = {"format": FORMAT, "version": VERSION, "method": method, "fedkern_flwr": __version__}
    save_arrays(Path(path), arrays, {_HEADER: header, **meta})


def load_model(
    path: str | Path, method: str | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Load the file of :func:`save_model`.

    Parameters
    ----------
    path : path
        The file.
    method : str, optional
        Required method of the model.

    Returns
    -------
    arrays, meta : dict
        As they were saved.

    Raises
    ------
    CheckpointError
        The file is missing, damaged, no model, of another method, or from a newer release.
    """
    if not Path(path).is_file():
        raise CheckpointError(
            f"there is no model {path}", remedy="check the path", code="FK-FILE-READ"
        )
    try:
        arrays, meta = load_arrays(Path(path))
    except CheckpointError:
        raise CheckpointError(
            f"{path} is damaged or not a model",
            remedy="bring the file that a run saved, whole",
            code="FK-MODEL-DAMAGED",
        ) from None
    header = meta.pop(_HEADER, None)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        what = "a checkpoint" if {"options", "session", "round"} <= set(meta) else "another file"
        raise CheckpointError(
            f"{path} is {what}, not a model",
            remedy="name the model of a run",
            code="FK-FILE-FORMAT",
        )
    version, found = header.get("version"), header.get("method")
    if not isinstance(version, int) or version > VERSION:
        raise CheckpointError(
            f"{path} has format {version} of fedkern-flwr {header.get('fedkern_flwr')}, this "
            f"release reads up to {VERSION}",
            remedy="upgrade fedkern-flwr",
            code="FK-MODEL-VERSION",
        )
    for place in ("run", "model"):
        take_out(str(found), meta, place=place, level=logging.INFO)
    if method is not None and found != method:
        raise CheckpointError(
            f"{path} is a model of {found}, not of {method}",
            remedy=f"name a model of {method}",
            code="FK-MODEL-OTHER",
        )
    return arrays, meta


def check_model(
    method: str,
    arrays: Mapping[str, NDArray[Any]],
    meta: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    needs: Iterable[str] = (),
) -> None:
    """Refuse a model of another method, or one that is inconsistent.

    ``shapes`` are the required shapes of arrays, ``needs`` the required entries of ``meta``.
    """
    if meta.get("method") != method:
        raise CheckpointError(
            f"the model is one of {meta.get('method') or 'another method'}",
            remedy=f"give a model of {method}",
            code="FK-MODEL-OTHER",
        )
    if not set(needs) <= set(meta):
        raise CheckpointError(
            "the model says too little of itself",
            remedy="bring the file that the run saved",
            code="FK-MODEL-DAMAGED",
        )
    for name, shape in shapes.items():
        array = arrays.get(name)
        if array is None or array.shape != shape or array.dtype.kind not in "fiu":
            found = "missing" if array is None else f"of shape {array.shape}"
            raise CheckpointError(
                f"the model's {name} should have shape {shape} and is {found}",
                remedy="bring the file that the run saved",
                code="FK-MODEL-DAMAGED",
            )
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CheckpointError(
                f"the model's {name} is not finite",
                remedy="bring the file that the run saved",
                code="FK-MODEL-DAMAGED",
            )


def check_made_with(strategy: type, options: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Refuse a model made with other options."""
    if any(meta.get(name) != value for name, value in options.items()):
        raise CheckpointError(
            "the model was made with other options",
            remedy=f"use {strategy.__name__}.of_model(meta)",
            code="FK-MODEL-OPTIONS",
        )

"""Translate options of a command into keys of ``[tool.flwr.app.config]``."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedkern_flwr.errors import OptionError

from ..run.options import Option

_MODEL = ("saved-model", "model")  # the first one that an app has names the file


def app_folder(name: str) -> Path:
    """Return the folder of an app."""
    return Path(str(files("fedkern_flwr.simulations"))) / "apps" / name


def declared(app: Path) -> dict[str, Any]:
    """Return the keys that may be set, with their defaults."""
    with (app / "pyproject.toml").open("rb") as file:
        found: dict[str, Any] = tomllib.load(file)["tool"]["flwr"]["app"]["config"]
    return found


def run_config(
    app: Path,
    chosen: Mapping[str, Any],
    known: Mapping[str, Option],
    more: Mapping[str, Any],
    model: Path,
) -> dict[str, Any]:
    """Return the configuration of a run on nodes with their own tables.

    ``chosen`` are options of the strategy, of all ``known`` ones; ``more`` are further keys, where
    the app has them; ``model`` is the file for the model.

    Raises
    ------
    OptionError
        An option is not at its default, and the app does not have it.
    """
    keys, found = declared(app), dict[str, Any](data="")
    if "options" in keys:  # the app takes any
        found, chosen = {"options": json.dumps(dict(chosen))}, {}
    for name, value in chosen.items():
        key = name.replace("_", "-")
        if key in keys:
            found[key] = _plain(value, keys[key])
        elif name not in known or value != known[name].default:
            raise OptionError(
                f"--{key} is not an option of the app {app.name}", code="FK-APP-OPTION"
            )
    found |= {key: _plain(value, keys[key]) for key, value in more.items() if key in keys}
    found[next(key for key in _MODEL if key in keys)] = str(model)
    return found


def _plain(value: Any, default: Any) -> Any:
    """Return a value in the type that the app declares."""
    if isinstance(default, int) and value == "auto":
        return 0
    if isinstance(default, str) and isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return ",".join(repr(v) for v in value)
    return float(value) if isinstance(default, float) else value

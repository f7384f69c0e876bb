"""Methods of the command line, and their families."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from fedkern_flwr.checkpoint import other_release
from fedkern_flwr.errors import OptionError
from fedkern_flwr.options import take_out
from fedkern_flwr.registered import registered

from ...strategies import Method
from ..run.data import Settings
from ..run.options import Option, options
from ..run.run_folder import RunFolder
from .base import Family

__all__ = [
    "METHODS",
    "Option",
    "complete_settings",
    "families",
    "family",
    "family_with",
    "method",
    "open_run",
    "options",
]

#: Class of a family in its module -> its methods. A new family is registered here.
_FAMILIES = {
    "online.OnlineFamily": (
        *("pof-mkl", "pof-rls", "ofskl", "ofmkl-avg", "vm-kofl", "em-kofl"),
        *("per-fed-avg", "local-only"),
    ),
    "hybrid.HybridFamily": ("fed-cg",),
    "vertical.VerticalFamily": ("fdskl",),
    "gram.GramFamily": ("secure-gram",),
    "recommender.RecommenderFamily": ("fed-cfk",),
    "groups.HierarchicalFamily": ("hierarchical-svm",),
    "rows.RowsFamily": tuple(registered()),
}
_FAMILY_OF = {name: place for place, names in _FAMILIES.items() for name in names}


class _Methods(Mapping[str, type[Method]]):
    """Strategy classes by name, loaded on demand."""

    def __getitem__(self, name: str) -> type[Method]:
        found = _load(_FAMILY_OF[name]).strategies
        return next(strategy for strategy in found if strategy.method == name)

    def __iter__(self) -> Iterator[str]:
        return iter(_FAMILY_OF)

    def __len__(self) -> int:
        return len(_FAMILY_OF)


METHODS = _Methods()


@cache
def _load(place: str) -> Family[Any, Any, Any]:
    module, name = place.split(".")
    made: Family[Any, Any, Any] = getattr(import_module(f".{module}", __package__), name)()
    return made


def families() -> list[Family[Any, Any, Any]]:
    """Return all families."""
    return [_load(place) for place in _FAMILIES]


def method(name: str) -> type[Method]:
    """Return the strategy class of a method."""
    if name not in METHODS:
        raise OptionError(
            f"there is no method {name!r}",
            remedy=f"choose of {', '.join(METHODS)}",
            code="FK-METHOD-UNKNOWN",
        )
    return METHODS[name]


def family(name: str) -> Family[Any, Any, Any]:
    """Return the family of a method."""
    method(name)
    return _load(_FAMILY_OF[name])


def family_with(settings: Settings) -> Family[Any, Any, Any]:
    """Return the family with settings of this kind."""
    return next(family for family in families() if family.settings is type(settings))


def open_run(path: Path) -> tuple[RunFolder, dict[str, Any]]:
    """Open the folder of a run; return it and its settings.

    Runs of an earlier release are read if this release has their options.
    """
    folder, config = RunFolder.open(path)
    name = config["method"]
    parts = {
        "options": [o.name for o in options(method(name))],
        "data": [f.name for f in fields(family(name).settings)],
    }
    for part, known in parts.items():
        config[part] = take_out(name, config[part], known=known, level=logging.INFO)
    return folder, config


def complete_settings(folder: RunFolder, config: dict[str, Any]) -> None:
    """Add missing settings to a finished run of an earlier release."""
    own = fields(family(config["method"]).settings)
    lacking = {f.name: f.default for f in own if f.name not in config["data"]}
    if lacking and folder.result() is None:
        raise other_release(folder.path, config)
    config["data"] |= lacking

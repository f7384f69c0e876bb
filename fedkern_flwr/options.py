"""Declare options once, as annotated attributes of a strategy; handle removed options."""

from __future__ import annotations

import inspect
import logging
import math
import os
import resource
import tomllib
import types
from ast import literal_eval
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from .errors import OptionError

# -- options that are declared once: as annotated attributes of a strategy, with their bounds
#
# The constructor checks them, ``options()`` returns them, the command line, ``pyproject.toml`` of a
# deployment and the docstring are made of them.


class UnknownOptionError(OptionError, TypeError):
    """A strategy has no option of this name."""


@dataclass(frozen=True)
class Declared:
    """Declaration of an option, see :func:`option`."""

    default: Any
    help: str = ""
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    of_model: bool = True
    name: str = ""
    type: Any = None

    def __set_name__(self, owner: type, name: str) -> None:
        object.__setattr__(self, "name", name)

    def check(self, value: Any) -> Any:
        """Return a value in the declared type, or raise OptionError."""
        kinds = members(self.type)
        value = value.item() if isinstance(value, np.generic) else value
        if value is None and type(None) in kinds:
            return None
        choices = [c for kind in kinds if get_origin(kind) is Literal for c in get_args(kind)]
        if value in choices and not isinstance(value, bool):
            return value
        plain = [kind for kind in kinds if isinstance(kind, type) and kind is not type(None)]
        if float in plain and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        fits = any(type(value) is kind for kind in plain)
        if not fits:
            names = [*map(str, choices), *(_WORDS.get(kind, kind.__name__) for kind in plain)]
            verb = "use" if plain else "choose one of"
            raise OptionError(
                f"{self.name} is {value!r}",
                remedy=f"{verb} {', '.join(names)}",
                code="FK-OPTION-TYPE" if plain else "FK-OPTION-CHOICE",
            )
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self._check_number(value)
        return value

    def _check_number(self, value: float) -> None:
        inside = self.least <= value <= self.most and self.above < value < self.below
        if inside and math.isfinite(value):
            return
        low = self.above if math.isfinite(self.above) else self.least
        high = self.below if math.isfinite(self.below) else self.most
        if not (math.isfinite(low) or math.isfinite(high)):
            remedy = "use a finite number"
        elif math.isfinite(low) and math.isfinite(high):
            brackets = "(["[low == self.least] + ")]"[high == self.most]
            ends = [
                f"{end:.0f}" if end % 1 == 0 and abs(end) < 1e9 else f"{end:g}"
                for end in (low, high)
            ]
            remedy = f"use a value in {brackets[0]}{', '.join(ends)}{brackets[1]}"
        elif math.isfinite(high):
            remedy = f"use less than {high:g}" if high == self.below else f"use at most {high:g}"
        elif low == self.least:
            remedy = f"use at least {low:g}"
        else:
            remedy = "use a positive number" if low == 0.0 else f"use a finite number above {low:g}"
        raise OptionError(f"{self.name} is {value}", remedy=remedy, code="FK-OPTION-RANGE")


_TAKEN = frozenset({"seed", "checkpoint", "resume"})  # what every run has
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
}


def option(
    default: Any,
    help: str = "",
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    of_model: bool = True,
) -> Any:
    """Declare an option of a method, as an annotated attribute of its class.

    Parameters
    ----------
    default : object
        Default. None is allowed for any type, if the constructor replaces it.
    help : str
        Meaning.
    least, most, above, below : float
        Bounds of a number, the first two inclusive.
    of_model : bool (default: True)
        Whether it determines the model: a checkpoint must have the same.
    """
    return Declared(default, help, least, most, above, below, of_model)


@cache
def declared(cls: Any) -> dict[str, Declared]:
    """Return the options that a class and its bases declare, its own first."""
    found: dict[str, Declared] = {}
    hints = get_type_hints(cls) if cls is not object else {}
    for base in cls.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, Declared) and name not in found:
                kind = hints[name] if value.default is not None else hints[name] | None
                object.__setattr__(value, "type", kind)
                odd = [k for k in members(kind) if get_origin(k) is not Literal]
                if name in _TAKEN or not set(odd) <= {int, float, str, bool, type(None)}:
                    raise TypeError(
                        f"{cls.__name__} cannot have an option {name} of type {hints[name]}: an "
                        "option is int, float, str, bool, Literal[...] or one of these or None, "
                        f"and has another name than {', '.join(sorted(_TAKEN))}"
                    )
                found[name] = value
    return found


def describe(cls: type) -> str:
    """Return the options of a class as the section Parameters of a docstring."""
    lines, fixed = ["Parameters", "----------"], getattr(cls, "fixed", ())
    for name, found in declared(cls).items():
        if name in fixed:
            continue
        kind = str(found.type.__name__ if isinstance(found.type, type) else found.type)
        default = "" if found.default is None else f" (default: {found.default!r})"
        lines += [f"{name} : {kind.replace('typing.', '')}{default}", f"    {found.help}"]
    return "\n".join(lines)


def members(kind: Any) -> tuple[Any, ...]:
    """Return the types in a union, or a single type."""
    if get_origin(kind) in (Union, types.UnionType):
        return tuple(part for member in get_args(kind) for part in members(member))
    return (kind,)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        raise OptionError(
            f"{name} is {value!r}",
            remedy=f"choose one of {', '.join(choices)}",
            code="FK-OPTION-CHOICE",
        )


def at_least(name: str, value: float, least: float) -> None:
    """Refuse a value below the least one."""
    if not isinstance(value, (int, float, np.number)):
        raise OptionError(f"{name} is {value!r}", remedy="use a number", code="FK-OPTION-TYPE")
    if not least <= value < math.inf:
        raise OptionError(
            f"{name} is {value}", remedy=f"use at least {least}", code="FK-OPTION-RANGE"
        )


def within(name: str, value: float, interval: str) -> None:
    """Refuse a value outside an interval, such as ``"[0, 1)"``."""
    low, high = map(float, interval[1:-1].split(","))
    ends = [end for end, mark in ((low, "["), (high, "]")) if mark in interval]
    if not (low < value < high or value in ends):
        raise OptionError(
            f"{name} is {value}", remedy=f"use a number in {interval}", code="FK-OPTION-RANGE"
        )


def check_memory(name: str, value: float, numbers: float) -> None:
    """Refuse an option if its arrays (``numbers`` of float64) exceed this machine's memory."""
    needed, there = 8.0 * numbers, memory()
    if needed > there:
        raise OptionError(
            f"{name} is {value}: its arrays take {needed / 1e9:,.1f} GB, "
            f"and this machine has {there / 1e9:,.1f} GB",
            code="FK-OPTION-MEMORY",
        )


def memory() -> float:
    """Return the bytes of memory that this process may use."""
    found = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    limit, container = resource.getrlimit(resource.RLIMIT_AS)[0], Path("/sys/fs/cgroup/memory.max")
    limits = [str(limit), container.read_text().strip() if container.is_file() else "max"]
    return min(found + [float(one) for one in limits if one.isdecimal()])  # none: -1, max


def unknown_option(cls: Any, name: str) -> UnknownOptionError:
    known = set(declared(cls))
    for base in cls.__mro__:
        if init := vars(base).get("__init__"):
            parameters = inspect.signature(init).parameters.values()
            known |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    known -= cls.fixed
    spelled = {one.lower(): one for one in sorted(known)}
    close = get_close_matches(name.lower(), spelled, n=1)
    listed = f"choose of {', '.join(sorted(known))}"
    remedy = f"did you mean {spelled[close[0]]}?" if close else listed
    return UnknownOptionError(
        f"{cls.__name__} has no option {name}", remedy=remedy, code="FK-OPTION-UNKNOWN"
    )


# -- options that this release no longer has, and what a user does instead
#
# One dictionary serves every door: the constructors of strategies and clients, the configuration of
# a node and of an app, the command line, the folder, the checkpoint and the model of an earlier
# run. An option at its old default is dropped with a note. Any other value ends the program with
# the sentence of its row and a code that stays. The rows go in the release after this one.

logger = logging.getLogger(__name__)


class RemovedOptionError(OptionError):
    """The option, or this value of it, was removed."""


@dataclass(frozen=True)
class Removed:
    """An option that was removed, or values of one.

    Attributes
    ----------
    instead : str
        What a user does now, without a full stop.
    defaults : tuple
        Old defaults, which are ignored.
    values : tuple
        Removed values; empty if the whole option was removed.
    places : str
        Where it was: ``run`` (strategy, command, app, model, checkpoint), ``client`` (argument of
        the client), ``node`` (node configuration) and ``model`` (entry of a model).
    """

    code: str
    instead: str
    defaults: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()
    places: str = "run"

    @property
    def switch(self) -> bool:
        """Whether it was a boolean."""
        return any(isinstance(default, bool) for default in self.defaults)

    def error(self, name: str, value: Any) -> RemovedOptionError:
        """Return the error for a value that this release does not support."""
        shown = f"={value!r}" if isinstance(value, (str, float)) else ""  # no data, no secret
        return RemovedOptionError(
            f"{name}{shown} was removed",
            remedy=self.instead,
            code=f"FK-REMOVED-{self.code}",
        )


def _removed() -> tuple[dict[str, dict[str, Removed]], Removed]:
    found = tomllib.loads(files(__package__).joinpath("removed.toml").read_text(encoding="utf-8"))
    instead, rows = found.pop("instead"), dict[str, dict[str, Removed]]()
    for method, options in found.items():
        rows[method] = {}
        for name, (code, places, *values) in options.items():
            read = [literal_eval(f"({one},)" if one else "()") for one in values]
            defaults, went = (*read, ())[:2]
            rows[method][name] = Removed(code, instead[code], defaults, went, places)
    return rows, Removed("AUDIT", instead["AUDIT"])


#: Method -> name of the option -> what there is to say; and of ``fedkern audit``, which attacks the
#: papers' protocols and the defaults.
REMOVED, AUDIT = _removed()
#: Client -> its method in :data:`REMOVED`.
CLIENTS = {
    "HybridKernelClient": "fed-cg",
    "VerticalKernelClient": "fdskl",
    "SVMClient": "hierarchical-svm",
    "GramClient": "fed-cfk",
}


def gone(method: str, place: str = "run", known: Collection[str] = ()) -> dict[str, Removed]:
    """Return the removed options of a method that are not ``known``."""
    return {
        name: row
        for name, row in REMOVED.get(method, {}).items()
        if not row.values and place in row.places.split() and name not in known
    }


def take_out(
    method: str,
    options: Mapping[str, Any],
    *,
    known: Collection[str] = (),
    place: str = "run",
    values: bool = True,
    level: int = logging.WARNING,
) -> dict[str, Any]:
    """Return options without removed ones.

    ``known`` are existing options, which may have the name of a removed one. Without ``values``,
    removed values of existing options pass. ``level`` is the log level of the note about ignored
    options.

    Raises
    ------
    RemovedOptionError
        A removed option has another value than its old default.
    """
    rows, absent = REMOVED.get(method, {}), gone(method, place, known)
    left, dropped = {}, []
    for name, value in options.items():
        row = rows.get(name)
        if values and row is not None and place in row.places.split() and value in row.values:
            raise row.error(name, value)
        if row is None or name not in absent:
            left[name] = value
        elif not any(_same(value, default) for default in row.defaults):
            raise row.error(name, value)
        else:
            dropped.append(name)
    if dropped:
        logger.log(
            level,
            "removed options at their old defaults are ignored, leave them out: %s",
            ", ".join(dropped),
        )
    return left


def take_out_of_client(
    client: object,
    options: Mapping[str, Any],
    *,
    known: Collection[str] = (),
    place: str = "client",
) -> dict[str, Any]:
    """Return arguments of a client, or keys of its node's configuration, without removed ones."""
    kinds = getattr(client, "__mro__", ())  # a function that makes a client has none
    method = next((CLIENTS[c.__name__] for c in kinds if c.__name__ in CLIENTS), "")
    return take_out(method, options, known=known, place=place)


def removed_value(name: str, value: Any) -> RemovedOptionError | None:
    """Return the error for a value that some method removed, or None."""
    for rows in REMOVED.values():
        if name in rows and value in rows[name].values:
            return rows[name].error(name, value)
    return None


def _same(value: Any, default: Any) -> bool:
    """Return whether a value, perhaps as text, is a default."""
    if isinstance(default, bool) or isinstance(value, bool):
        return value is default or str(value).lower() == str(default).lower()
    if isinstance(value, str) and isinstance(default, float):
        try:
            return float(value) == default
        except ValueError:
            return False
    return type(value) in (type(default), int) and bool(value == default)

"""Options that are declared once: as annotated attributes of a strategy, with their bounds.

The constructor checks them, ``options()`` returns them, the command line, ``pyproject.toml`` of a
deployment and the docstring are made of them.
"""

from __future__ import annotations

import inspect
import math
import os
import resource
import types
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from .errors import OptionError


class UnknownOptionError(OptionError, TypeError):
    """A strategy has no option of this name."""


@dataclass(frozen=True)
class Declared:
    """What is declared of an option.

    Attributes
    ----------
    default : object
    help : str
        One or more sentences; a command's help shows the first.
    least, most : float
        Bounds of a number, which may be taken.
    above, below : float
        Bounds of a number, which may not.
    of_model : bool
        Whether it determines the model: a checkpoint must have the same.
    name, type
        Filled in from the attribute.
    """

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
        """Take the name of the attribute."""
        object.__setattr__(self, "name", name)

    def check(self, value: Any) -> Any:
        """Return a value in the type that is declared.

        Raises
        ------
        OptionError
            Another type, none of the choices, or out of bounds.
        """
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
    """Declare an option of a method, which is an annotated attribute of its class.

    Parameters
    ----------
    default : object
        Its default. None may be given for any type: the constructor puts in what it stands for.
    help : str
        What it is.
    least, most, above, below : float
        Bounds of a number.
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
    """Return the types that a union is of, or the one that is none."""
    if get_origin(kind) in (Union, types.UnionType):
        return tuple(part for member in get_args(kind) for part in members(member))
    return (kind,)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse an option that is not one of the choices.

    Raises
    ------
    OptionError
    """
    if value not in choices:
        raise OptionError(
            f"{name} is {value!r}",
            remedy=f"choose one of {', '.join(choices)}",
            code="FK-OPTION-CHOICE",
        )


def at_least(name: str, value: float, least: float) -> None:
    """Refuse an option below its least value.

    Raises
    ------
    OptionError
    """
    if not isinstance(value, (int, float, np.number)):
        raise OptionError(f"{name} is {value!r}", remedy="use a number", code="FK-OPTION-TYPE")
    if not least <= value < math.inf:
        raise OptionError(
            f"{name} is {value}", remedy=f"use at least {least}", code="FK-OPTION-RANGE"
        )


def check_memory(name: str, value: float, numbers: float) -> None:
    """Refuse an option whose arrays this machine cannot hold, before any is made.

    Parameters
    ----------
    name, value : str, float
        The option.
    numbers : float
        How many float64 a simulation holds at once.

    Raises
    ------
    OptionError
    """
    needed, there = 8.0 * numbers, memory()
    if needed > there:
        raise OptionError(
            f"{name} is {value}: its arrays take {needed / 1e9:,.1f} GB, "
            f"and this machine has {there / 1e9:,.1f} GB",
            remedy=f"use less {name}",
            code="FK-OPTION-MEMORY",
        )


def memory() -> float:
    """Return the bytes of memory that this process may take."""
    found = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    limit, container = resource.getrlimit(resource.RLIMIT_AS)[0], Path("/sys/fs/cgroup/memory.max")
    limits = [str(limit), container.read_text().strip() if container.is_file() else "max"]
    return min(found + [float(one) for one in limits if one.isdecimal()])  # none: -1, max


def unknown_option(cls: Any, name: str) -> UnknownOptionError:
    """Return the error of an option that a strategy has not, with one that may be meant."""
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

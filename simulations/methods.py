"""The methods that the command line knows, and the options of each."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any, get_type_hints

from fedkern_flwr.errors import OptionError

from .. import strategies
from ..strategies.online import OnlineStrategy

METHODS: dict[str, type[OnlineStrategy[Any]]] = {
    cls.method: cls
    for cls in (
        strategies.POFMKL,
        strategies.OFSKL,
        strategies.OFMKLAvg,
        strategies.VMKOFL,
        strategies.EMKOFL,
        strategies.PerFedAvg,
        strategies.LocalOnly,
    )
}

# Options of every run, or set by the run itself.
_OF_THE_RUN = frozenset({"seed", "checkpoint", "resume", "secure"})


@dataclass(frozen=True)
class Option:
    """An option of a strategy.

    Attributes
    ----------
    name : str
        Name of the constructor's argument.
    type : type
        Its annotation.
    default : object
        Its default value.
    help : str
        First sentence of its description in the docstring.
    """

    name: str
    type: Any
    default: Any
    help: str


def method(name: str) -> type[OnlineStrategy[Any]]:
    """Return the strategy class of a method.

    Raises
    ------
    OptionError
        Unknown method.
    """
    if name not in METHODS:
        raise OptionError(f"there is no method {name!r}", remedy=f"choose of {', '.join(METHODS)}")
    return METHODS[name]


def options(strategy: type[OnlineStrategy[Any]]) -> list[Option]:
    """Return the options of a strategy, its own first, then those of its base classes."""
    found: dict[str, Option] = {}
    for cls in strategy.__mro__:
        init = cls.__dict__.get("__init__")
        if init is None or cls is object:
            continue
        hints, texts = get_type_hints(init), _descriptions(cls)
        for parameter in inspect.signature(init).parameters.values():
            name = parameter.name
            if parameter.kind is parameter.KEYWORD_ONLY and name not in found:
                found[name] = Option(name, hints[name], parameter.default, texts.get(name, ""))
    return [o for o in found.values() if o.name not in strategy.fixed | _OF_THE_RUN]


def _descriptions(cls: type) -> dict[str, str]:
    """Read the descriptions of the parameters from a NumPy docstring."""
    lines = inspect.cleandoc(cls.__doc__ or "").splitlines()
    texts: dict[str, str] = {}
    name = ""
    for line in lines:
        if head := re.match(r"(\w+) : ", line):
            name = head[1]
            texts[name] = ""
        elif name and line.startswith("    "):
            texts[name] = f"{texts[name]} {line.strip()}".strip()
        else:
            name = ""
    return {name: text.replace("``", "") for name, text in texts.items()}

"""Options of a command: those read off a strategy, and those that a family of methods declares."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any, Literal, get_origin, get_type_hints

from fedkern_flwr.options import declared, members

from ...strategies import PhaseStrategy

# Options of every run, or set by the run itself.
_OF_THE_RUN = frozenset({"seed", "checkpoint", "resume", "secure"})

METHOD, DATA, RUN = "Method", "Data", "Run"


@dataclass(frozen=True)
class Option:
    """An option of a command.

    Attributes
    ----------
    name : str
        Name of the argument.
    type : type
        Its annotation; a ``Literal`` lists the choices.
    default : object
        Its default value.
    help : str
        One sentence: of a strategy's option the first of its description in the docstring.
    panel : str
        Where the help shows it: :data:`METHOD`, :data:`DATA` or :data:`RUN`.
    flag : str
        Its name on the command line; by default made of ``name``.
    """

    name: str
    type: Any
    default: Any
    help: str
    panel: str = METHOD
    flag: str = ""

    def kinds(self) -> set[Any]:
        """Return the types that a value may have."""
        return set(members(self.type))

    def takes_text(self) -> bool:
        """Tell whether a value may be a text."""
        return any(kind is str or get_origin(kind) is Literal for kind in self.kinds())


def options(strategy: type[PhaseStrategy]) -> list[Option]:
    """Return the options of a strategy that a command has."""
    hidden = strategy.fixed | _OF_THE_RUN
    return [o for o in _every(strategy) if o.name not in hidden]


def accepted(strategy: type[PhaseStrategy]) -> list[Option]:
    """Return what the constructor of a strategy takes: options, and what every run has."""
    own = inspect.signature(strategy.__init__).parameters
    more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())
    return [o for o in _every(strategy) if o.name in own or (more and o.name not in strategy.fixed)]


def _every(strategy: type[PhaseStrategy]) -> list[Option]:
    """Return all options, a strategy's own first, then those of its base classes."""
    found: dict[str, Option] = {
        name: Option(name, one.type, one.default, one.help)
        for name, one in declared(strategy).items()
    }
    for cls in strategy.__mro__:
        init = cls.__dict__.get("__init__")
        if init is None or cls is object:
            continue
        hints, texts = get_type_hints(init), _descriptions(cls)
        for parameter in inspect.signature(init).parameters.values():
            name = parameter.name
            if parameter.kind is parameter.KEYWORD_ONLY and name not in found:
                found[name] = Option(name, hints[name], parameter.default, texts.get(name, ""))
    return list(found.values())


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

"""Options: of a strategy, of the settings of data, and of dataclasses."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, get_origin, get_type_hints

from fedkern_flwr.options import declared, members

if TYPE_CHECKING:  # else every command would load what a method needs
    from ...strategies import Method

# Options of every run, or set by the run itself.
_OF_THE_RUN = frozenset({"seed", "checkpoint", "resume", "secure"})

#: Groups of options in the help, in their order.
PANELS = (DATA, PARTIES, METHOD, RUN) = ("Data", "Parties", "Method", "Engine and output")
#: The panel of what is named without a flag.
ARGUMENTS = "Arguments"

_OF_A_RUN = frozenset({"rounds", "resplit", "delay"})  # of the settings
_REPEATED = frozenset({"party", "ignore", "use"})
_OF_PARTIES = {"clients", "hospitals", "centres", "own_block", "parties", "active_parties"}
_OF_PARTIES |= {"users", "groups", "group_sizes", "users_per_client", "sites", "site_share"}
_OF_PARTIES |= {"split", "alpha", "allow_single"}
_FLAGS = {"id_column": "--id", "site_column": "--site", "class_of": "--classes"}
_FLAGS |= {"json_target": "--json", "as_json": "--json"}


@dataclass(frozen=True)
class Option:
    """An option of a command.

    Attributes
    ----------
    name : str
        Name of the argument.
    type : type
        Annotation; a ``Literal`` lists the choices.
    default : object
        Default value; ``MISSING`` if required.
    help : str
        First sentence of its description.
    panel : str
        Section of the help, one of :data:`PANELS` or :data:`ARGUMENTS`.
    flag : str
        Flag; by default made of ``name``.
    choices : tuple of str
        Choices, if the type does not list them.
    limits : (float, float or None) or None
        Least and largest number.
    metavar : str
        Name of an argument in the usage line.
    """

    name: str
    type: Any
    default: Any
    help: str
    panel: str = METHOD
    flag: str = ""
    choices: tuple[str, ...] = ()
    limits: tuple[float, float | None] | None = None
    metavar: str = ""

    def kinds(self) -> set[Any]:
        """Return the types that a value may have."""
        return set(members(self.type))

    def takes_text(self) -> bool:
        """Return whether a value may be text."""
        return any(kind is str or get_origin(kind) is Literal for kind in self.kinds())


def of_settings(settings: type[Any], data: str) -> list[Option]:
    """Return options for the fields of a settings class, with help from docstrings.

    Parameters
    ----------
    settings : type of Settings
        Dataclass.
    data : str
        Default data set.
    """
    hints = get_type_hints(settings)
    texts: dict[str, str] = {}
    for cls in reversed(settings.__mro__):
        texts |= _descriptions(cls)
    found = []
    for one in sorted(fields(settings), key=lambda one: one.name == "test_size"):  # as the last
        if one.name not in ("seed", *settings.of_method):
            default = settings.of_runs.get(one.name, one.default)
            default = data if one.name == "data" else default
            kinds = members(hints[one.name])
            kind = str if any(get_origin(k) is tuple for k in kinds) else hints[one.name]
            if one.name in _REPEATED:
                kind, default = list[str], []
            if (kind is str and one.name != "data") or one.name in settings.worked_out:
                kind, default = kind | None, None
            panel = PARTIES if one.name in _OF_PARTIES else DATA
            panel = RUN if one.name in _OF_A_RUN else panel
            flag = _FLAGS.get(one.name, "")
            found.append(Option(one.name, kind, default, texts[one.name], panel, flag))
    return found


def declare(default: Any = MISSING, **how: Any) -> Any:
    """Declare a field with attributes of its :class:`Option`."""
    return field(default=default, metadata=how)


def argument(default: Any = MISSING, **how: Any) -> Any:
    """Declare a positional argument."""
    return declare(default, panel=ARGUMENTS, **how)


def switch() -> Any:
    """Declare a flag without a negative form."""
    return declare(False, flag="-")


def of_fields(kind: type[Any], panel: str = RUN) -> list[Option]:
    """Return options for the fields of a dataclass, with help from its docstring."""
    hints, texts = get_type_hints(kind), _descriptions(kind)
    found = []
    for one in fields(kind):
        own = {"panel": panel, "flag": _FLAGS.get(one.name, ""), **one.metadata}
        if own["flag"] == "-":
            own["flag"] = f"--{one.name.replace('_', '-')}"
        found.append(Option(one.name, hints[one.name], one.default, texts[one.name], **own))
    return found


def options(strategy: type[Method]) -> list[Option]:
    """Return the options of a strategy for a command."""
    hidden = strategy.fixed | _OF_THE_RUN
    return [o for o in _every(strategy) if o.name not in hidden]


def accepted(strategy: type[Method]) -> list[Option]:
    """Return the arguments of the constructor of a strategy."""
    own = inspect.signature(strategy.__init__).parameters
    more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())
    return [o for o in _every(strategy) if o.name in own or (more and o.name not in strategy.fixed)]


def _every(strategy: type[Method]) -> list[Option]:
    """Return all options of a strategy and its base classes."""
    found: dict[str, Option] = {
        name: Option(name, one.type, one.default, _plain(one.help))
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
    """Read descriptions of parameters from a docstring."""
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
    return {name: _plain(text) for name, text in texts.items()}


def _plain(text: str) -> str:
    """Return the first sentence of a text, without markup."""
    plain = re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "")
    return re.split(r"(?<=\.) (?=[A-Z])", plain, maxsplit=1)[0]

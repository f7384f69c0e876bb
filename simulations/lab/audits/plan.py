"""What an audit of a family of methods consists of, and a run that was recorded for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...engines import Transcript
from ...run.options import RUN, Option
from ..attacks.seen import Watcher
from .evidence import Sheet

#: Turns the rule of counting off, as release 0.1 had none: the control of what it prevents.
ALLOW_SMALL_SUMS = Option(
    "allow_small_sums",
    bool,
    False,
    "Whether the nodes let more numbers be released than there are unknowns behind them.",
    RUN,
)


@dataclass
class Recorded:
    """A run of which everything was kept.

    Attributes
    ----------
    strategy : PhaseStrategy
        After the run.
    prepared : Prepared
        The data.
    clients : callable
        The ``client_fn`` of the run, which knows who holds what.
    transcript : Transcript
        All messages.
    watcher : Watcher or None
        What each party has in hand.
    released : list
        What the server learned beyond messages, as :attr:`Plan.spy` noted it.
    """

    strategy: Any
    prepared: Any
    clients: Any
    transcript: Transcript
    watcher: Any
    released: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Variant:
    """A choice of options to audit.

    Attributes
    ----------
    method : str
    options : dict
        Values of the command line that differ from the defaults of an audit.
    leaks : tuple of str
        Attacks that find something; none for a default.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    leaks: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """Return the command that audits it."""
        words = ["fedkern", "audit", self.method]
        for name, value in self.options.items():
            flag = name.removesuffix("_column").replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                words += [f"--{flag}", str(value)]
        return " ".join(words)


def _leave(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    return values


def _nothing(strategy: Any, released: list[Any]) -> None:
    return None


@dataclass(frozen=True)
class Plan:
    """How the methods of a family are audited.

    Attributes
    ----------
    methods : tuple of str
    inspect : callable
        Runs the attacks on a recorded run and enters what they find into a sheet.
    variants : tuple of Variant
        What ``fedkern audit all`` looks at: the default of each method first.
    defaults : dict
        Options whose default is another one in an audit.
    why : str
        Why they are.
    watcher : callable, optional
        Makes what watches the parties of a run.
    complete : callable
        Called with the values of a command line and a folder for data made up; returns them
        with what follows from them.
    spy : callable
        Called with a strategy before its run and a list, to which it has the strategy add what the
        server learns.
    hidden : tuple of str
        Options of a run that mean nothing here.
    own : tuple of Option
        Options that a run does not have.
    """

    methods: tuple[str, ...]
    inspect: Callable[[Recorded, Sheet], None]
    variants: tuple[Variant, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    watcher: Callable[[], Watcher[Any]] | None = None
    complete: Callable[[dict[str, Any], Path], dict[str, Any]] = _leave
    spy: Callable[[Any, list[Any]], None] = _nothing
    hidden: tuple[str, ...] = ()
    own: tuple[Option, ...] = ()

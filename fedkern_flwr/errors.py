"""Define the errors of the suite: each says who, where and what to do.

The command line prints a :class:`FedKernError` as one line and exits with its
:attr:`FedKernError.exit_code`.
"""

from __future__ import annotations

import errno
import logging
import re
from functools import cache

#: Errors of a disk to which nothing can be written.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
#: The code at the end of the line of an error.
_QUOTED = re.compile(r" \[(FK-[A-Z0-9-]+)\]$")


def quoted_code(text: str) -> tuple[str, str]:
    """Split an error text into text and code; the code is "" if there is none."""
    quoted = _QUOTED.search(text)
    return (text, "") if quoted is None else (text[: quoted.start()], quoted[1])


def read_codes() -> dict[str, dict[str, list[str]]]:
    """Return topic -> code -> cause and remedy, from ``codes.toml``."""
    import tomllib  # a command without an error needs neither
    from importlib.resources import files

    return tomllib.loads(files(__package__).joinpath("codes.toml").read_text(encoding="utf-8"))


@cache
def _remedies() -> dict[str, str]:
    told = {code: remedy for rows in read_codes().values() for code, (_, remedy) in rows.items()}
    return {code: f"{text[:1].lower()}{text[1:].rstrip('.')}" for code, text in told.items()}


class FedKernError(Exception):
    """Base class of all errors raised by fedkern-flwr.

    Parameters
    ----------
    problem : str
        What is wrong, without a full stop.
    remedy : str, optional
        What the reader can do. Default: the remedy of the code in ``codes.toml``.
    party : str (default: "")
        The party concerned, such as ``"partition 3"`` or ``"server"``.
    phase : str (default: "")
        Phase of the protocol.
    code : str (default: "")
        Stable code, such as ``FK-ROWS-FEW``, in brackets at the end of the text; texts may change.
        Default: the code at the end of ``problem``.
    """

    #: Exit code of the command line: 2 for bad input, 1 for a run that fails later.
    exit_code = 1
    #: Whether the log has its line already.
    told = False
    #: Whether it follows from files, or from when rows come, and never from their values.
    free = False
    #: What stays when the sentence is mended; empty where it has none yet.
    code = ""

    def __init__(
        self,
        problem: str,
        *,
        remedy: str | None = None,
        party: str = "",
        phase: str = "",
        code: str = "",
    ) -> None:
        if remedy is None:
            remedy = _remedies().get(code, "")
        if not code:  # that of what a node or another error said
            problem, code = quoted_code(problem)
        self.problem, self.remedy, self.party, self.phase = problem, remedy, party, phase
        self.code = code or self.code
        super().__init__(self._text())

    def name(self, party: str) -> None:
        """Add the party's name, unless there is one."""
        if not self.party:
            self.party = party
            self.args = (self._text(),)

    def _text(self) -> str:
        where = (self.party, f"phase {self.phase}" if self.phase else "")
        place = ", ".join(part for part in where if part)
        text = f"{place}: {self.problem}" if place else self.problem
        text = f"{text}; {self.remedy}" if self.remedy else text
        return f"{text} [{self.code}]" if self.code else text


class OptionError(FedKernError):
    """An option has a value that cannot work; found before anything is sent."""

    exit_code = 2


def missing_package(problem: str, extra: str = "simulation") -> OptionError:
    """Make the error of a package that an extra of this one installs."""
    return OptionError(
        problem, remedy=f"pip install 'fedkern-flwr[{extra}]'", code="FK-PACKAGE-MISSING"
    )


class TableError(FedKernError):
    """A party's table cannot be used: missing file or column, text, NaN, duplicate ids, ..."""

    exit_code = 2


class ColumnError(TableError):
    """A column is missing. The remedy lists the columns: cells, for a file without header."""


class ProtocolError(FedKernError):
    """A message breaks the protocol: wrong shape, dtype, version or step."""


class RefusedError(ProtocolError):
    """A node cannot take part: its table or its configuration is wrong; found at the start."""

    exit_code = 2


#: How refusals of a node begin.
REFUSED = "refused by the node"


def refusal(
    rule: str, party: str = "", remedy: str | None = None, *, code: str = ""
) -> RefusedError:
    """Return a node's refusal, which names the rule and quotes no data.

    The client adds its party before the error is sent.
    """
    return RefusedError(f"{REFUSED}: {rule}", remedy=remedy, party=party, code=code)


class StateError(ProtocolError):
    """A node has lost its state; it must get again what that was made of."""

    free = True


class StreamError(FedKernError):
    """A stream has too few new rows for a message now, or has ended."""

    free = True


class SumError(FedKernError):
    """A secure sum cannot be made or opened: values out of bounds, wrong shares, broken rules."""


class ClientError(FedKernError):
    """Client code raised; only the class of its exception is sent, never its text."""


class CohortError(FedKernError):
    """Too few parties, at the start or after failures."""


class SmallCohortError(CohortError):
    """Fewer parties than a secure sum needs; found before anything is sent."""

    exit_code = 2


class PartitionError(CohortError):
    """Partition ids of the nodes are duplicate or incomplete."""

    exit_code = 2


class EngineError(FedKernError):
    """The engine that carries the messages failed (a dead Ray actor, no free port, ...)."""


class CheckpointError(FedKernError):
    """A checkpoint is missing, damaged or from another run."""

    exit_code = 2
    free = True


def log_in_one_line() -> None:
    """Let Flower log a FedKernError that ends an app as one line, without a traceback."""
    logging.getLogger("flwr").addFilter(_one_line)


def _one_line(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, FedKernError):
        return True
    record.exc_info, record.exc_text = None, None
    record.msg, record.args = "fedkern: %s", (" ".join(str(error).split()),)
    return not error.told

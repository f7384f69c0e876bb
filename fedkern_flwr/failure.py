"""Describe why a node did not answer: what the node says of it, and what the server reads."""

from __future__ import annotations

import inspect
import logging
import os
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any, Literal

from flwr.app import Context, Message

from .errors import (
    FULL,
    CheckpointError,
    ClientError,
    ColumnError,
    EngineError,
    FedKernError,
    ProtocolError,
    TableError,
    quoted_code,
)
from .flower_compat import ACTOR_DIED, APP_UNSIGNED, CLIENT_CRASHED, MESSAGE_LOST, NODE_UNAVAILABLE
from .plain_text import LONGEST, plain_line

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST_CODE = 40  # characters of a code that is kept where the text before it is cut
_READ = 50_000  # characters of a report that are read at its beginning and at its end
_MARK = "[fedkern] "  # what follows was written by one of our clients and quotes no data
_MARKED = re.compile(re.escape(_MARK) + r"(.*?)(?:'>|\n|$)")
# Otherwise Flower reports <class 'module.Name'>:<'text'>, Ray a traceback with module.Name: text.
_CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)(?:\(\w+\))?'>")
_TRACEBACK_END = re.compile(r"^(?:[a-z_]\w*\.)*([A-Z]\w*)(?:: |$)", re.MULTILINE)
_WRAPPERS = ("RayTaskError", "ClientAppException")
_FOREIGN = re.compile(r"(\w+) does not take part in phase ")

_UNSIGNED = "FK-APP-UNSIGNED"

#: Errors of clients after which another attempt is no use.
_FINAL = (
    "ProtocolError:",
    "RefusedError:",
    "OptionError:",
    "TableError:",
    "SumError:",
    "CheckpointError:",
)


@dataclass(frozen=True)
class Failure:
    """Why a node did not answer properly.

    Attributes
    ----------
    kind : {"raised", "timed out", "unreachable", "invalid reply"}
        Kind of failure.
    detail : str
        Class of the client's exception, or the text of a FedKernError, in one line. Never the text
        of another exception: it may quote data.
    """

    kind: Literal["raised", "timed out", "unreachable", "invalid reply"]
    detail: str = ""

    def __post_init__(self) -> None:
        """Remove what a terminal would obey from a node's text, but keep its code."""
        line, (_, code) = plain_line(self.detail), quoted_code(self.detail.rstrip())
        if code and len(code) <= _LONGEST_CODE and not line.endswith(f"[{code}]"):
            line = f"{plain_line(self.detail, LONGEST - _LONGEST_CODE)} [{code}]"
        object.__setattr__(self, "detail", line)

    def __str__(self) -> str:
        return f"{self.kind} {self.detail}".strip()

    @property
    def told(self) -> str:
        """Text of the client's FedKernError, without its class; "" if there is none."""
        return self.detail.partition(": ")[2] if self.kind == "raised" else ""

    @classmethod
    def invalid(cls, error: FedKernError) -> Failure:
        """Return the failure of an invalid reply."""
        code = f" [{error.code}]" if error.code else ""
        return cls("invalid reply", f"{error.problem}{code}")

    def raise_foreign(self, method: str, phase: str) -> None:
        """Raise ProtocolError if the node serves another method's client."""
        if found := _FOREIGN.search(self.detail):
            raise ProtocolError(
                f"{found[1]} is no client of {method}",
                remedy="serve the client that belongs to the strategy",
                phase=phase,
                code="FK-NODE-METHOD",
            )

    def raise_final(self, phase: str, party: str = "") -> None:
        """Raise the node's error, if a retry is useless."""
        if self.kind == "raised" and self.detail.endswith("MemoryError"):
            raise ClientError(
                "there is not enough memory for what is asked",
                remedy="use less landmarks, features or samples, or a larger machine",
                party=party,
                phase=phase,
                code="FK-COMMAND-MEMORY",
            )
        if self.detail.startswith(_FINAL):
            raise ProtocolError(self.told, phase=phase, code="")  # that of the node


def read_error(reply: Message, phase: str) -> Failure:
    """Read the error that came instead of a reply.

    Raises
    ------
    EngineError
        A Ray actor died.
    """
    reason = reply.error.reason or ""
    if len(reason) > 2 * _READ:
        reason = f"{reason[:_READ]}\n{reason[-_READ:]}"
    reason = _COLOUR.sub("", reason)
    if reply.error.code == ACTOR_DIED and "ActorDied" in reason:
        raise EngineError(
            "a Ray actor died and its engine cannot go on without it",
            remedy="look for memory exhaustion or a crash in client code, then resume",
            phase=phase,
            code="FK-ENGINE-ACTOR",
        )
    if reply.error.code == NODE_UNAVAILABLE:
        return Failure("unreachable")
    if reply.error.code in MESSAGE_LOST:
        return Failure("unreachable", "(its message was lost at the SuperLink)")
    if (marked := _MARKED.search(reason)) is not None:
        return Failure("raised", marked[1])
    if reply.error.code == APP_UNSIGNED:
        problem = "the app is signed by nobody whom the node trusts; sign it"
        return Failure("raised", f"RefusedError: {problem} [{_UNSIGNED}]")
    if reply.error.code == CLIENT_CRASHED:  # where nothing at the node says more
        return Failure("raised", "EngineError: its process has ended [FK-NODE-ENDED]")
    found = _CLASS.match(reason)
    if found is None or found[1] in _WRAPPERS:
        found = _TRACEBACK_END.search(reason) or found
    return Failure("raised", found[1] if found else f"error code {reply.error.code}")


def mark_error(text: str) -> str:
    """Mark a client's error text as safe for the server to show."""
    return text if text.startswith(_MARK) else f"{_MARK}{text}"


def describe_unanswered(problem: str, code: str) -> str:
    """Return the error text that a node sends instead of its client's reply."""
    return mark_error(f"EngineError: {EngineError(problem, remedy='', code=code)}")


def count_failures(failures: Mapping[int, Failure] | None) -> str:
    """Return failures by reason in brackets, for the end of a sentence."""
    kinds = Counter(str(failure) for failure in (failures or {}).values())
    why = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f" ({why})" if why else ""


# -- exceptions of client code: where they were raised, and what the server may see of them
#
# In a simulation the user owns the data and sees all: class, text and place. In a deployment the
# node's log has class and place. The text may quote data and is shown to no one. The server sees
# the class.

logger = logging.getLogger("fedkern_flwr")

# Modules through which a request passes before it is at the code that answers it.
_ON_THE_WAY = (
    "flwr",
    "fedkern_flwr.failure",
    "fedkern_flwr.node.client",
    "fedkern_flwr.node.method_client",
    "fedkern_flwr.clients.serving",
    "fedkern_flwr.simulations.engines",
)


class NoReplyError(TypeError):
    """A handler returned something other than a message; only its type is reported."""

    def __init__(self, handler: Callable[..., Any], returned: Any) -> None:
        self.code = getattr(inspect.unwrap(handler), "__code__", None)
        name = getattr(handler, "__qualname__", type(handler).__qualname__)
        super().__init__(f"{name} returned {type(returned).__name__} instead of its reply")


def describe_raised(error: BaseException, *, text: bool) -> str:
    """Return class, text (if ``text``) and place of an exception of client code.

    Frames before the code of the handler are omitted.
    """
    met = list(traceback.walk_tb(error.__traceback__))
    frames = list(dropwhile(lambda one: _is_on_the_way(one[0].f_globals), met))
    places = traceback.StackSummary.extract(iter(frames))
    if isinstance(error, NoReplyError) and error.code is not None:
        code = error.code
        places.append(traceback.FrameSummary(code.co_filename, code.co_firstlineno, code.co_name))
    if not places:
        places = traceback.extract_tb(error.__traceback__)
    told = f"{type(error).__name__}: {error}" if text else type(error).__name__
    return f"{told}\n{''.join(places.format())}".rstrip()


def unwritable(error: OSError, party: str) -> Exception:
    """Return CheckpointError for a full disk, which a retry does not fix; otherwise the error."""
    if error.errno not in FULL:
        return error
    remedy = "make room there, then start again or resume"
    text = os.strerror(error.errno)
    return CheckpointError(text, remedy=remedy, party=party, code="FK-FILE-WRITE")


def conceal(error: Exception) -> ClientError:
    """Log the place of a foreign exception; return an error that the server may see."""
    logger.error(
        "client code raised; its text is left out, it may quote data: %s",
        describe_raised(error, text=False),
    )
    return ClientError(mark_error(type(error).__name__), remedy="", code="FK-CLIENT-RAISED")


def _is_on_the_way(module: dict[str, Any]) -> bool:
    name = str(module.get("__name__", ""))
    return any(name == known or name.startswith(f"{known}.") for known in _ON_THE_WAY)


# -- errors while a node is built are sent to the server, as far as it may see them

_LISTED = "that node's log lists the columns that it has"


@contextmanager
def reported(context: Context) -> Iterator[None]:
    """Convert exceptions of the block to errors with a text that the server may see."""
    try:
        yield
        return
    except FedKernError as error:
        who = f"partition {context.node_config.get('partition-id', '?')}"
        logger.error("%s", _from(who, error))
        if isinstance(error, ColumnError):
            error = TableError(error.problem, remedy=_LISTED, party=error.party, code=error.code)
        error.args = (mark_error(f"{type(error).__name__}: {_from(who, error)}"),)
        raise error from None
    except Exception as error:
        concealed = conceal(error)
    raise concealed from None


def _from(who: str, error: FedKernError) -> str:
    named = who in error.party or str(error).startswith(who)
    return str(error) if named else f"{who}: {error}"

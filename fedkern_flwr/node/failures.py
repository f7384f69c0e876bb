"""Handle exceptions of client code: where they were raised, and what the server may see."""

from __future__ import annotations

import inspect
import logging
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import dropwhile
from typing import Any, TypeVar

from flwr.app import Context

from ..errors import FULL, CheckpointError, ClientError, ColumnError, FedKernError, TableError
from ..failure import mark_error
from ..wire.message import PhaseMessage

# -- exceptions of client code: where they were raised, and what the server may see of them
#
# In a simulation the user owns the data and sees all: class, text and place. In a deployment the
# node's log has class and place. The text may quote data and is shown to no one. The server sees
# the class.

Reply = TypeVar("Reply", bound=PhaseMessage)

logger = logging.getLogger("fedkern_flwr")

# Modules through which a request passes before it is at the code that answers it.
_ON_THE_WAY = (
    "flwr",
    "fedkern_flwr.node.failures",
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


def replied(handler: Callable[[Any], Reply], request: Any) -> Reply:
    """Return the reply of a handler; raise NoReplyError if it is no message."""
    reply = handler(request)
    if not isinstance(reply, PhaseMessage):
        raise NoReplyError(handler, reply)
    return reply


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

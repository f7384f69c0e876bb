"""The app of a node: clients in Flower's ``ClientApp``, and the mods that it allows."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedkern_flwr.checkpoint import with_session
from fedkern_flwr.errors import FedKernError, OptionError
from fedkern_flwr.failure import reported
from fedkern_flwr.flower_compat import CLIENT_RAISED, is_started_for_message
from fedkern_flwr.flower_compat import Client as FlowerClient
from fedkern_flwr.guard.policy import is_simulated
from fedkern_flwr.node.client import Client
from fedkern_flwr.node_config import renew
from fedkern_flwr.transport import packed

# -- Flower mods besides ours: mods that only inspect get messages that they can count

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]

#: They clip or add noise to a node's answers, which are masked or summed.
_CHANGING = ("LocalDpMod", "fixedclipping_mod", "adaptiveclipping_mod")


class _Counted(ConfigRecord):
    """A record that can count bytes of empty values, too."""

    def count_bytes(self) -> int:
        values = (v if isinstance(v, list) else [v] for v in self.values())
        cells = [cell for cell_list in values for cell in cell_list]
        sizes = (
            len(c) if isinstance(c, (str, bytes)) else 1 if isinstance(c, bool) else 8
            for c in cells
        )
        return sum(map(len, self)) + sum(sizes)


def refuse_changing(mod: Mod) -> None:
    """Raise OptionError for a Flower mod that changes a node's answers."""
    name = getattr(mod, "__name__", type(mod).__name__)
    if name in _CHANGING:
        raise OptionError(
            f"{name} changes what a node answers: the sums would be wrong",
            remedy="leave it out, or train with a strategy of Flower's and secure_aggregation_mod, "
            "behind which it may stand (docs/secure-aggregation.md)",
            code="FK-MOD-CHANGES",
        )


def counted(mod: Mod) -> Mod:
    """Return a mod that sees our messages without what Flower cannot count.

    These are empty values, and Flower's placeholder of an empty list of arrays.
    """

    def call(
        message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        give_back = _show(message)

        def inner(message: Message, context: Context) -> Message:
            nonlocal give_back
            give_back(message)
            reply = call_next(message, context)
            give_back = _show(reply)
            return reply

        reply = mod(message, context, inner)
        give_back(reply)
        return reply

    return call


def _show(message: Message) -> Callable[[Message], None]:
    """Put countable records into a message; return a function that restores the real ones."""
    if not message.has_content():
        return lambda message: None
    real = dict(message.content)
    shown: dict[str, Any] = {name: _stand_in(record) for name, record in real.items()}
    message.content = RecordDict(shown)

    def give_back(message: Message) -> None:
        if message.has_content():
            kept = dict(message.content)
            same = {name: real[name] for name in real if kept.get(name) is shown[name]}
            message.content = RecordDict({**kept, **same})

    return give_back


def _stand_in(record: Any) -> Any:
    if isinstance(record, ConfigRecord):
        return _Counted(dict(record))
    if isinstance(record, ArrayRecord):
        return ArrayRecord({name: array for name, array in record.items() if array.data})
    return record


# -- the app of our clients: the server sees errors in building a node

logger = logging.getLogger("flwr")

App = Callable[[Message, Context], Message]


def serve(make_client: Callable[[Context], Client], mods: Sequence[Mod] = ()) -> ClientApp:
    """Return the app of a node.

    The server sees the text of this package's errors, which quote no data, so that the coordinator
    knows which node lacks which column; of other exceptions it sees only the class. Lists of
    columns are only in the node's log: in a file without header they are a row.

    Parameters
    ----------
    make_client : callable
        Context -> a client; called with every message.
    mods : sequence of callable
        Flower mods that inspect messages, such as ``message_size_mod``, before they are packed.

    Raises
    ------
    OptionError
        A mod changes a node's answers, as ``LocalDpMod`` does.
    """
    for mod in mods:
        refuse_changing(mod)

    def client_fn(context: Context) -> FlowerClient:
        if is_started_for_message() and not context.state and not is_simulated(context):
            logger.info(
                "this message cost %.1f s of CPU to start a process; `fedkern node start` keeps "
                "one warm (docs/deploy.md)",
                time.process_time(),
            )
        with reported(context):
            renew(context)
            return make_client(context).to_client()

    return ClientApp(client_fn=client_fn, mods=[_told, packed, with_session, *map(counted, mods)])


def _told(message: Message, context: Context, app: App) -> Message:
    """Return errors of this package as a reply in simulations.

    Flower's engine would print four tracebacks per node for a raised error.
    """
    try:
        return app(message, context)
    except FedKernError as error:
        if not is_simulated(context):
            raise
        return Message(Error(code=CLIENT_RAISED, reason=str(error)), reply_to=message)

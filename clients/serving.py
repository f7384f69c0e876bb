"""Serving our clients from an app: what goes wrong while a node is built is told to the server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedkern_flwr.checkpoint import with_session
from fedkern_flwr.errors import FedKernError
from fedkern_flwr.flower_compat import CLIENT_RAISED, is_started_for_message
from fedkern_flwr.flower_compat import Client as FlowerClient
from fedkern_flwr.guard.policy import is_simulated
from fedkern_flwr.node.client import Client
from fedkern_flwr.node.failures import reported
from fedkern_flwr.node_config import renew
from fedkern_flwr.transport import packed

from .mods import Mod, counted, refuse_changing

logger = logging.getLogger("flwr")

App = Callable[[Message, Context], Message]


def serve(make_client: Callable[[Context], Client], mods: Sequence[Mod] = ()) -> ClientApp:
    """Return the app of a node.

    An error of ours, which quotes no data, is shown to the server, so that the coordinator reads
    which node lacks which column; of any other exception the server sees the class alone. Which
    columns there are stands in the node's log only: of a file without header they are a row.

    At the first message of a run the log of a stock SuperNode says what its process cost.

    Parameters
    ----------
    make_client : callable
        Context -> one of our clients; called with every message.
    mods : sequence of callable
        Mods of Flower's that look at messages, such as ``message_size_mod``: they see them as they
        were before they are packed for the wire.

    Raises
    ------
    OptionError
        A mod changes what a node answers, as ``LocalDpMod`` does.
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
    """Answer an error of ours in a simulation, of which Flower's engine prints nothing.

    Of one that is raised it prints four tracebacks for each node.
    """
    try:
        return app(message, context)
    except FedKernError as error:
        if not is_simulated(context):
            raise
        return Message(Error(code=CLIENT_RAISED, reason=str(error)), reply_to=message)

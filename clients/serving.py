"""Serving our clients from an app: what goes wrong while a node is built is told to the server."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import Context
from flwr.clientapp import ClientApp

from fedkern_flwr.errors import ClientError, FedKernError
from fedkern_flwr.exchange import mark_error
from fedkern_flwr.flower_compat import Client

from .base import PhaseClient

logger = logging.getLogger("fedkern_flwr")


def serve(make_client: Callable[[Context], PhaseClient]) -> ClientApp:
    """Return the app of a node.

    An error of ours, which quotes no data, is shown to the server in full, so that the coordinator
    reads which node lacks which column; of any other exception the server sees the class alone.

    Parameters
    ----------
    make_client : callable
        Context -> one of our clients; called with every message.
    """

    def client_fn(context: Context) -> Client:
        try:
            return make_client(context).to_client()
        except FedKernError as error:
            who = f"partition {context.node_config.get('partition-id', '?')}"
            text = str(error) if str(error).startswith(who) else f"{who}: {error}"
            logger.error("%s", text)
            error.args = (mark_error(f"{type(error).__name__}: {text}"),)
            raise
        except Exception as error:
            logger.exception("the node's client cannot be built")
            name = type(error).__name__
        raise ClientError(mark_error(name))

    return ClientApp(client_fn=client_fn)

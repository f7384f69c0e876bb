"""Serving our clients from an app: what goes wrong while a node is built is told to the server."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context
from flwr.clientapp import ClientApp

from fedkern_flwr.flower_compat import Client
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.node.reported import reported
from fedkern_flwr.node_config import renew


def serve(make_client: Callable[[Context], PhaseClient]) -> ClientApp:
    """Return the app of a node.

    An error of ours, which quotes no data, is shown to the server, so that the coordinator reads
    which node lacks which column; of any other exception the server sees the class alone. Which
    columns there are stands in the node's log only: of a file without header they are a row.

    Parameters
    ----------
    make_client : callable
        Context -> one of our clients; called with every message.
    """

    def client_fn(context: Context) -> Client:
        with reported(context):
            renew(context)
            return make_client(context).to_client()

    return ClientApp(client_fn=client_fn)

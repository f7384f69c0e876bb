"""Serving our clients from an app: what goes wrong while a node is built is told to the server."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import Context
from flwr.clientapp import ClientApp

from fedkern_flwr.errors import ColumnError, FedKernError, TableError
from fedkern_flwr.exchange import mark_error
from fedkern_flwr.flower_compat import Client
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.node.failures import conceal

logger = logging.getLogger("fedkern_flwr")

_LISTED = "that node's log lists the columns that it has"


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
        try:
            return make_client(context).to_client()
        except FedKernError as error:
            who = f"partition {context.node_config.get('partition-id', '?')}"
            logger.error("%s", _from(who, error))
            if isinstance(error, ColumnError):
                error = TableError(error.problem, remedy=_LISTED, party=error.party)
            error.args = (mark_error(f"{type(error).__name__}: {_from(who, error)}"),)
            raise error from None
        except Exception as error:
            concealed = conceal(error)
        raise concealed

    return ClientApp(client_fn=client_fn)


def _from(who: str, error: FedKernError) -> str:
    return str(error) if str(error).startswith(who) else f"{who}: {error}"

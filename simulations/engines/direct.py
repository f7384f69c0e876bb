"""Answer messages in a simulation without copies, and report what client code raises.

Flower turns each message into records, parameters and arrays (``np.load``): a third of the time of
a run of a hundred iterations.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedkern_flwr.errors import FedKernError
from fedkern_flwr.failure import mark_error
from fedkern_flwr.flower_compat import CLIENT_RAISED, config_record
from fedkern_flwr.flower_compat import Client as FlowerClient
from fedkern_flwr.node.client import Client
from fedkern_flwr.node.failures import describe_raised
from fedkern_flwr.transport import CONFIG, PARAMETERS, REPLY, UPLOADS
from fedkern_flwr.wire.message import array_record, read_arrays

from .wrapper import Direction, WatchingGrid

_LARGE = 1 << 20  # bytes


class DirectApp(ClientApp):
    """Serve the clients of a simulation.

    Parameters
    ----------
    clients : callable
        Context -> one of our clients, or any ``Client`` of Flower's.
    """

    def __init__(self, clients: Callable[[Context], Any]) -> None:
        super().__init__()
        self.clients = clients

    def __call__(self, message: Message, context: Context) -> Message:
        """Let the client of a node answer."""
        client = self.clients(context)
        if not isinstance(client, Client) or message.metadata.message_type != "train":
            found = as_client(client)
            return ClientApp(client_fn=lambda context: found)(message, context)
        asked: Any = message.content
        # Small ones may be written to, as with Flower; copies of large ones would fill the memory.
        read = read_arrays(asked[PARAMETERS])
        arrays = [a if a.nbytes > _LARGE else a.copy(order="K") for a in read]
        uploads, samples, told = client.fit(arrays, dict(asked[CONFIG].items()))
        content = RecordDict()
        content[REPLY] = config_record(told)
        content["fitres.num_examples"] = MetricRecord({"num_examples": samples})
        content[UPLOADS] = array_record(uploads)
        content["fitres.status"] = config_record({"code": 0, "message": "Success"})
        return Message(content, reply_to=message)


def as_client(client: Any) -> FlowerClient:
    """Return what Flower serves for one of our clients or a ``Client``."""
    return client if isinstance(client, FlowerClient) else client.to_client()


# -- what client code raises: class, text and place, once, on any engine

logger = logging.getLogger("fedkern_flwr")


class ReportingApp(ClientApp):
    """Answer what another app raises as an error with class, text and place.

    Our own errors keep their words. Of others the first line is the class, which strategies read.
    Flower's engine logs a raised error four times, and an answered one never.
    """

    def __init__(self, app: ClientApp) -> None:
        super().__init__()
        self.app = app

    def __call__(self, message: Message, context: Context) -> Message:
        """Let the app answer."""
        party = f"partition {context.node_config.get('partition-id', '?')}"
        try:
            return self.app(message, context)
        except FedKernError as error:
            reason = str(error)
            if reason != mark_error(reason):  # it was raised outside the client's answer
                place = "" if error.party else f"{party}: "
                reason = mark_error(f"{type(error).__name__}: {place}{reason}")
        except MemoryError as error:  # where it was raised is of no use
            reason = mark_error(f"MemoryError\n{party} raised MemoryError: {error}")
        except Exception as error:
            raised = describe_raised(error, text=True)
            reason = mark_error(f"{type(error).__name__}\n{party} raised {raised}")
        return Message(Error(code=CLIENT_RAISED, reason=reason), reply_to=message)


class ReportingGrid(WatchingGrid):
    """Log errors of :class:`ReportingApp`, once for all nodes that raise at the same place."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._seen: set[tuple[str, ...]] = set()

    def watch(self, direction: Direction, message: Message) -> None:
        """Log a reply with an exception."""
        if direction == "up" and message.has_error():
            kind, _, text = (message.error.reason or "").partition("\n")
            place = (kind, *(s for s in text.splitlines() if s.startswith("  File ")))
            if kind == mark_error(kind) and text and place not in self._seen:
                self._seen.add(place)
                logger.error("%s", text)

"""A node that sends back what it gets."""

from __future__ import annotations

from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import fedkern_flwr.clients.serving  # noqa: F401  # what an app of ours imports
from fedkern_flwr.transport import PARAMETERS, packed, reply_content

app = ClientApp()


@app.train(mods=[packed])
def pong(message: Message, context: Context) -> Message:
    """Send back what came."""
    values: Any = message.content[PARAMETERS]
    return Message(reply_content(values.to_numpy_ndarrays(), {}), reply_to=message)

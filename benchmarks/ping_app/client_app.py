"""A node that sends back what it gets."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import fedkern_flwr.clients.serving  # noqa: F401  # what an app of ours imports

app = ClientApp()


@app.train()
def pong(message: Message, context: Context) -> Message:
    """Send back what came."""
    return Message(message.content, reply_to=message)

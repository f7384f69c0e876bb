"""The server of the app: relays sealed lists, counts common rows, logs and writes the counts."""

from __future__ import annotations

from fedkern_flwr.simulations.apps.server import server_app
from fedkern_flwr.strategies import AlignIds

app = server_app(AlignIds)

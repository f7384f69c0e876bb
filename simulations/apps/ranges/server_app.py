"""The server of the app: has the columns' statistics summed, logs the result."""

from __future__ import annotations

from fedkern_flwr.simulations.apps.server import server_app
from fedkern_flwr.strategies import ColumnRanges

app = server_app(ColumnRanges)

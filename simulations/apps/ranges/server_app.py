"""The server of the app: has the columns' statistics summed, logs the result."""

from __future__ import annotations

import app_release  # type: ignore[import-not-found]  # noqa: F401

from fedkern_flwr.simulations.apps.server import server_app
from fedkern_flwr.strategies import ColumnRanges

app = server_app(ColumnRanges)

"""Relay sealed lists, count common rows, log and write the counts."""

from __future__ import annotations

import app_release  # type: ignore[import-not-found]  # noqa: F401

from fedkern_flwr.simulations.apps.server import server_app
from fedkern_flwr.strategies import AlignIds

app = server_app(AlignIds)

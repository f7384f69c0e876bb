"""The server of the app: runs HierarchicalSVM, logs the result, saves the model; or predicts."""

from __future__ import annotations

import app_release  # type: ignore[import-not-found]  # noqa: F401

from fedkern_flwr.simulations.apps.server import server_app
from fedkern_flwr.strategies import HierarchicalSVM

app = server_app(HierarchicalSVM, agreed=("partition",))

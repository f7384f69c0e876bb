"""Run a registered method, log the result, save the model."""

from __future__ import annotations

import app_release  # type: ignore[import-not-found]  # noqa: F401

from fedkern_flwr.registered import find_method
from fedkern_flwr.simulations.apps.server import server_app

app = server_app(lambda config: find_method(str(config["method"])))

"""Run FDSKL, log the result, save the model; or predict with one."""

from __future__ import annotations

import app_release  # type: ignore[import-not-found]  # noqa: F401

from fedkern_flwr.simulations.apps.server import server_app
from fedkern_flwr.strategies import FDSKL

app = server_app(FDSKL)

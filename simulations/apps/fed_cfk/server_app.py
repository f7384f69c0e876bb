"""Run FedCFK, log the result, save the kernel; or recommend with one."""

from __future__ import annotations

import app_release  # type: ignore[import-not-found]  # noqa: F401

from fedkern_flwr.simulations.apps.server import server_app
from fedkern_flwr.strategies import FedCFK

app = server_app(FedCFK)

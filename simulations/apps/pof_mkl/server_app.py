"""Run POF-MKL or POF-RLS, log the result, save the model; or predict."""

from __future__ import annotations

import app_release  # type: ignore[import-not-found]  # noqa: F401

from fedkern_flwr.simulations.apps.server import one_of, server_app
from fedkern_flwr.strategies import POFMKL, POFRLS

app = server_app(one_of(POFMKL, POFRLS))

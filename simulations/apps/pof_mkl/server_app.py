"""The server of the app: runs POF-MKL, logs the result, saves the model; or predicts with one."""

from __future__ import annotations

from fedkern_flwr.simulations.apps.server import server_app
from fedkern_flwr.strategies import POFMKL

app = server_app(POFMKL)

"""The same with Flower's SecAgg+, which the Message API does not have: NumPyClient and workflow."""

import numpy as np
from flwr.app import Context, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from work import BOUND, CLIENTS, LENGTH, MOST, examples, step


class Client(NumPyClient):
    def __init__(self, x):
        self.x = x

    def fit(self, parameters, config):
        return [step(parameters[0], self.x)], len(self.x), {}


def client_fn(context):
    return Client(examples(context)).to_client()


app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod])


class KeepArrays(FedAvg):
    def aggregate_fit(self, server_round, results, failures):
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        self.arrays = parameters_to_ndarrays(parameters)
        return parameters, metrics


def run(grid, rounds):
    strategy = KeepArrays(
        fraction_evaluate=0.0,
        min_fit_clients=CLIENTS,
        min_available_clients=CLIENTS,
        initial_parameters=ndarrays_to_parameters([np.zeros(LENGTH)]),
    )
    workflow = SecAggPlusWorkflow(
        CLIENTS, CLIENTS * 2 // 3 + 1, max_weight=MOST, clipping_range=BOUND
    )
    context = Context(1, 1, node_config={}, state=RecordDict(), run_config={})
    legacy = LegacyContext(context, ServerConfig(num_rounds=rounds), strategy)
    DefaultWorkflow(fit_workflow=workflow)(grid, legacy)
    return strategy.arrays[0]

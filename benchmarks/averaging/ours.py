"""The same with secure aggregation: one mod, one mixin."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from work import LENGTH, examples, step

from fedkern_flwr.secure_aggregation import SecureAggregation, secure_aggregation_mod

app = ClientApp(mods=[secure_aggregation_mod(examples)])


@app.train()
def train(message, context):
    x, rows = examples(context), message.content["arrays"]["x"].numpy()
    arrays = ArrayRecord({"x": Array(step(rows, x))})
    metrics = MetricRecord({"num-examples": len(x)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


class SecureFedAvg(SecureAggregation, FedAvg):
    pass


def run(grid, rounds):
    strategy = SecureFedAvg(fraction_evaluate=0.0)
    initial = ArrayRecord({"x": Array(np.zeros(LENGTH))})
    return strategy.start(grid, initial, num_rounds=rounds).arrays["x"].numpy()

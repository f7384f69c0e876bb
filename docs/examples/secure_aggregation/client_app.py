"""The app of a node: stock Flower, and one mod."""

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import fit, load, load_test, loss, outputs

from fedkern_flwr.secure_aggregation import secure_aggregation_mod

app = ClientApp(mods=[secure_aggregation_mod(load, held_out=load_test)])


@app.train()
def train(message, context):
    """Train on the rows of the node."""
    net = {name: array.numpy() for name, array in message.content["arrays"].items()}
    x, y = load(context)
    net, found = fit(net, x, y)
    arrays = ArrayRecord({name: Array(value) for name, value in net.items()})
    metrics = MetricRecord({"loss": found, "num-examples": len(x)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    """Evaluate on the rows that the node holds out."""
    net = {name: array.numpy() for name, array in message.content["arrays"].items()}
    x, y = load_test(context)
    p = outputs(net, x)[1]
    found = {"loss": loss(p, y), "accuracy": float(((p > 0.5) == y).mean())}
    metrics = MetricRecord({**found, "num-examples": len(x)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)

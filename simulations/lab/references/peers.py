"""Train the alternatives: XGBoost on pooled data, and Flower's FedAvg with the same parties.

Arguments and results are as described in :mod:`.tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, get_args

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from fedkern_flwr.errors import TableError, missing_package
from fedkern_flwr.options import check_choice
from fedkern_flwr.secure_aggregation import SecureAggregation, secure_aggregation_mod
from fedkern_flwr.seeding import derive_seed

from ...engines import simulate
from ...methods.pooled import FED_AVG, PooledSplit, error_of
from ...run.entries import Outcome
from .tables import Progress, fit

Floats = NDArray[np.float64]
Network = dict[str, Floats]
PeerModel = Literal["mlp", "logistic"]

_HIDDEN, _STEP, _EPOCHS, _BATCH = 64, 0.1, 5, 32
_LEAST_PARTIES = 3  # a mean of two shows each party the other


def xgboost(pooled: PooledSplit, *, seed: int, progress: Progress) -> Outcome:
    """Boost trees with XGBoost's defaults, on one thread.

    Raises
    ------
    OptionError
        XGBoost is not installed.
    TableError
    """
    pooled.check()
    try:
        library = import_module("xgboost")
    except ImportError:
        raise missing_package("XGBoost is not installed", "peers") from None
    trees = library.XGBClassifier if pooled.classes else library.XGBRegressor
    model = _Numbered(trees(random_state=derive_seed(seed, "xgboost") % 2**31, n_jobs=1))
    return fit(model, pooled, np.arange(len(pooled.y)), 0, progress)


@dataclass
class _Numbered:
    """A classifier that needs its classes numbered from 0."""

    model: Any

    def fit(self, x: Floats, y: Floats) -> _Numbered:
        """Learn."""
        self.known, codes = np.unique(y, return_inverse=True)
        self.numbered = hasattr(self.model, "predict_proba")
        self.model.fit(x, codes if self.numbered else y)
        return self

    def predict(self, x: Floats) -> Floats:
        """Return the classes, or the numbers."""
        found = self.model.predict(x)
        return np.asarray(self.known[found] if self.numbered else found, np.float64)

    def predict_proba(self, x: Floats) -> Floats:
        """Return the probabilities of the classes."""
        return np.asarray(self.model.predict_proba(x), np.float64)


class _SecureFedAvg(SecureAggregation, FedAvg):
    """FedAvg with secure means."""


def fed_avg(
    pooled: PooledSplit,
    *,
    seed: int,
    progress: Progress,
    model: PeerModel = "mlp",
    rounds: int = 50,
) -> Outcome:
    """Run Flower's FedAvg, with secure means, on the parties with rows of the same columns.

    In a round a party trains five epochs of stochastic gradient descent in batches of 32, step 0.1,
    on standardised columns: a network with 64 hidden units, or no hidden layer.

    Parameters
    ----------
    pooled, seed, progress
        See above.
    model : {"mlp", "logistic"} (default: "mlp")
        Network, or logistic regression (linear for numbers).
    rounds : int (default: 50)
        At least 1.

    Returns
    -------
    metrics : dict
        Also ``costs``, ``parties`` and ``server_sees``.
    history : list of dict
        Per round ``test_error``, and ``exchanges`` and ``bytes`` so far.

    Raises
    ------
    OptionError, TableError
        Fewer than three parties have rows of the same columns.
    """
    check_choice("model", model, get_args(PeerModel))
    pooled.check()
    parties, columns = parties_alike(pooled)
    middle, spread = _standard(pooled.x[:, columns])
    x, x_test = ((given[:, columns] - middle) / spread for given in (pooled.x, pooled.x_test))
    targets = pooled.targets()
    hidden = _HIDDEN if model == "mlp" else 0
    first = _initial(x.shape[1], targets.shape[1], hidden, derive_seed(seed, "network"))
    strategy = _SecureFedAvg(fraction_train=1.0, fraction_evaluate=0.0)
    history: list[dict[str, Any]] = []
    last: list[Floats] = []

    def judge(number: int, arrays: ArrayRecord) -> MetricRecord:
        net = {name: array.numpy() for name, array in arrays.items()}
        outputs = _outputs(net, x_test)[1]
        ledger = strategy.ledger_
        if number:
            history.append(
                {
                    "round": number,
                    "test_error": error_of(pooled.judge(_scores(pooled, outputs), scores=False)),
                    "exchanges": ledger.exchanges,
                    "bytes": ledger.bytes_up + ledger.bytes_down,
                }
            )
            last[:] = [outputs]
            progress(number, rounds)
        return MetricRecord({})

    app = _app(x, targets, parties, bool(pooled.classes), seed)
    arrays = ArrayRecord({name: Array(value) for name, value in first.items()})
    simulate(
        strategy,
        app,
        len(parties),
        seed=seed,
        num_rounds=rounds,
        initial_arrays=arrays,
        evaluate_fn=judge,
    )
    ledger = strategy.ledger_
    metrics: dict[str, Any] = dict(pooled.judge(_scores(pooled, last[0])))
    metrics["parties"] = len(parties)
    metrics["costs"] = {
        name: getattr(ledger, name) for name in ("exchanges", "bytes_up", "bytes_down")
    }
    metrics["server_sees"] = list(strategy.privacy()["server_sees"])
    return metrics, history


def parties_alike(pooled: PooledSplit) -> tuple[list[NDArray[np.intp]], NDArray[np.intp]]:
    """Return the rows of the parties that hold the same columns, and these columns.

    Raises
    ------
    TableError
        They are fewer than three.
    """
    found: dict[tuple[int, ...], list[NDArray[np.intp]]] = {}
    for rows, columns in pooled.parties:
        found.setdefault(tuple(columns.tolist()), []).append(rows)
    shared, parties = max(found.items(), key=lambda one: len(one[1]), default=((), []))
    if len(parties) < _LEAST_PARTIES or not shared:
        raise TableError(
            f"FedAvg needs {_LEAST_PARTIES} parties with rows of the same columns",
            code="FK-PARTIES-ALIKE",
        )
    return parties, np.array(shared, np.intp)


def _standard(x: Floats) -> tuple[Floats, Floats]:
    deviation = x.std(axis=0)
    return x.mean(axis=0), np.where(deviation > 0.0, deviation, 1.0)


def _scores(pooled: PooledSplit, outputs: Floats) -> Floats:
    """Return outputs in the range of targets: between -1 and 1 for classes."""
    if not pooled.classes:
        return outputs
    return np.asarray(2.0 / (1.0 + np.exp(-outputs)) - 1.0)


def _app(
    x: Floats, targets: Floats, parties: list[NDArray[np.intp]], classes: bool, seed: int
) -> ClientApp:
    """Return the app of the parties: stock Flower, and the mod of secure aggregation."""

    def rows(context: Context) -> NDArray[np.intp]:
        return parties[int(str(context.node_config["partition-id"]))]

    def examples(context: Context) -> tuple[Floats, Floats]:
        mine = rows(context)
        return x[mine], targets[mine]

    app = ClientApp(mods=[secure_aggregation_mod(examples)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        net = {
            n: array.numpy().copy() for n, array in message.content.array_records["arrays"].items()
        }
        own, wanted = examples(context)
        party = context.node_config["partition-id"]
        number = int(str(message.content.config_records["config"]["server-round"]))
        rng = np.random.default_rng([derive_seed(seed, f"batches of {party}"), number])
        for _ in range(_EPOCHS):
            for batch in np.array_split(rng.permutation(len(own)), max(1, len(own) // _BATCH)):
                _descend(net, own[batch], wanted[batch], classes)
        arrays = ArrayRecord({name: Array(value) for name, value in net.items()})
        metrics = MetricRecord({"num-examples": len(own)})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def _initial(columns: int, outputs: int, hidden: int, seed: int) -> Network:
    """Return a new network; without hidden units a linear model."""
    rng = np.random.default_rng(seed)
    inner = hidden or columns
    net = {"w2": np.zeros((inner, outputs)), "b2": np.zeros(outputs)}
    if hidden:
        net["w1"] = rng.standard_normal((columns, hidden)) / np.sqrt(columns)
        net["b1"] = np.zeros(hidden)
        net["w2"] = rng.standard_normal((hidden, outputs)) / np.sqrt(hidden)
    return net


def _outputs(net: Mapping[str, Floats], x: Floats) -> tuple[Floats, Floats]:
    """Return what reaches the last layer, and what it makes of it."""
    inner = np.tanh(x @ net["w1"] + net["b1"]) if "w1" in net else x
    return inner, inner @ net["w2"] + net["b2"]


def _descend(net: Network, x: Floats, targets: Floats, classes: bool) -> None:
    """Take a step of logistic loss of each output, or of squared error."""
    inner, outputs = _outputs(net, x)
    predicted = 1.0 / (1.0 + np.exp(-outputs)) if classes else outputs
    error = (predicted - ((targets + 1.0) / 2.0 if classes else targets)) / len(x)
    back = error @ net["w2"].T * (1.0 - inner**2)
    net["w2"] -= _STEP * inner.T @ error
    net["b2"] -= _STEP * error.sum(axis=0)
    if "w1" in net:
        net["w1"] -= _STEP * x.T @ back
        net["b1"] -= _STEP * back.sum(axis=0)


PEERS: dict[str, Callable[..., Outcome]] = {"xgboost": xgboost, FED_AVG: fed_avg}

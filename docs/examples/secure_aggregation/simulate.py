"""The same app in this process; `python simulate.py ray` on Flower's engine."""

import sys

from client_app import app
from flwr.app import Array, ArrayRecord
from server_app import SecureFedAdam
from task import initial

from fedkern_flwr.simulations import simulate

if __name__ == "__main__":
    arrays = ArrayRecord({name: Array(value) for name, value in initial().items()})
    strategy = SecureFedAdam()
    engine = sys.argv[1] if len(sys.argv) > 1 else "in-process"
    result = simulate(strategy, app, 4, engine, num_rounds=10, initial_arrays=arrays)
    print("accuracy:", round(result.evaluate_metrics_clientapp[10]["accuracy"], 4))
    print("server saw:", *strategy.privacy()["server_sees"], sep="\n  ")

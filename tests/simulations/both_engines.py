"""Every method in process and on Ray, which starts once; a program of its own, see test_ray.py.

Seven nodes serve all methods. In the folder that it works in, the file ``now`` names the method at
hand, and ``phase-round-partition`` is a message at which a node raises, once; it prints what each
run came to. With ``bugs`` the clients with bugs alone are run, in process; with an address the runs
that a cluster has.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fdskl_bridge import paper_run
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.errors import FedKernError, TableError
from fedkern_flwr.flower_compat import quiet_flower
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.simulations import Fault, SimulationStep, simulate_all
from fedkern_flwr.simulations.engines import ray_cluster
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.simulations.engines.ray import served
from fedkern_flwr.simulations.lab.cells import Cell, run_cell
from fedkern_flwr.simulations.lab.sweep import CellFailed, sweep
from fedkern_flwr.simulations.methods.online_data import DataSettings
from fedkern_flwr.simulations.methods.registry import family, method, options
from fedkern_flwr.strategies import POFMKL

HERE = Path.cwd()
NODES = 7
WINE = {"data": "wine", "clients": NODES}
STREAMS = {**WINE, "rounds": 6, "features": 4, "checkpoint_every": 3}
FILES = {"party": tuple(f"{HERE}/{k}.csv" for k in range(NODES)), "label": "y", "stream_wait": 0.0}
RATINGS = {"data": "r.csv", "clients": NODES, "min_support": 3}
HYBRID = {"data": "wine", "hospitals": 4, "centres": 3, "landmarks": 12, "regularization": 0.1}
WELL = {"gamma": 4.0, "regularization": 0.3}  # else plain conjugate gradients amplify rounding
VERTICAL = {"data": "wine", "parties": NODES, "gamma": 1.0, "regularization": 0.01}
STREAMING = {**VERTICAL, "schedule": "streaming", "directions": 4, "batch": 6, "rounds": 7}
PAPER = {**STREAMING, "data": "breast-cancer", "directions": 1, "batch": 1, "step": 0.3}
GROUPS = {"data": "iris", "positive": 1.0, "rounds": 6, "tolerance": 1e-9}
SVM = {**GROUPS, "users": 5, "groups": 2}
LEAVES = {"lost_groups": "leave-out", "C": 1.0}
#: Options of each run, whose name begins with its method, and the messages at which a node raises.
RUNS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "pof-mkl": (STREAMS, ("online-personal-2-1", "online-personal-5-1")),
    "pof-mkl, secure": (
        {**STREAMS, "secure": True, "samples_per_round": 1},
        ("online-personal-2-1", "unmask-3-2"),
    ),
    "pof-mkl, slow": (STREAMS, ("online-personal-6-1",)),  # where it sleeps instead
    "pof-rls": (STREAMS, ("online-ridge-3-2",)),
    "pof-rls, streams": ({**STREAMS, **FILES, "split": "site"}, ("online-ridge-3-2",)),
    "ofskl": (STREAMS, ("online-shared-2-3",)),
    "ofmkl-avg": (STREAMS, ("online-shared-3-0",)),
    "vm-kofl": (STREAMS, ("online-shared-2-6",)),
    "em-kofl": (STREAMS, ("online-drawn-4-2",)),
    "per-fed-avg": (STREAMS, ("online-network-2-1",)),
    "local-only": (STREAMS, ()),
    "fed-cg": (HYBRID, ("hybrid-distances-1-5", "hybrid-equations-3-0")),
    "fed-cg, cg": ({**HYBRID, "solver": "cg"}, ("hybrid-product-2-1",)),
    "fed-cg, cg as in the paper": (
        {**HYBRID, **WELL, "solver": "cg", "init": "random", "preconditioner_rank": 0},
        ("hybrid-distances-1-1", "hybrid-product-4-2"),
    ),
    "fdskl": (VERTICAL, ("vertical-step-1-3", "vertical-train-3-0")),
    "fdskl, streaming": (STREAMING, ("vertical-step-3-0", "vertical-step-5-2")),
    "fdskl, two active": ({**STREAMING, "active_parties": 2}, ("vertical-step-5-1",)),
    "fdskl, Algorithm 1": ({**PAPER, "phase_bits": 32, "active_parties": 2}, ()),
    "secure-gram": ({**WINE, "encoding": "fixed-point"}, ("unmask-2-3",)),
    "secure-gram, in rounds": (  # a node of the first round is away: it is summed after the second
        {**WINE, "encoding": "fixed-point", "rounds": 2, "attempts": 1},
        ("gram-matrix-1-4",),
    ),
    "fed-cfk": (RATINGS, ("gram-recommend-5-2",)),
    "fed-cfk, rbf": ({**RATINGS, "kernel": "rbf", "gamma": 0.05, "cohorts": 2}, ()),
    "fed-cfk, raising always": ({**RATINGS, "attempts": 1, "threshold": 7}, ("gram-matrix-3-1",)),
    "hierarchical-svm": (SVM, ("svm-step-2-1", "svm-combine-3-6")),
    "hierarchical-svm, vertical": (
        {**GROUPS, "users": 4, "partition": "vertical"},
        ("svm-visit-3-1", "svm-owner-2-6"),
    ),
    "hierarchical-svm, left out": (  # who raises once is not asked again, nor is its group
        {**SVM, "users": 4, "groups": 3, "allow_single": True, "attempts": 1, **LEAVES},
        ("svm-combine-3-6",),
    ),
    "hierarchical-svm, asynchronous": ({**SVM, "staleness": 4, "rounds": 16}, ()),
    "kernel-pca": ({**WINE, "features": 6, "test_size": 0.2}, ("method-3-4",)),
}
BROKEN, SLOW, BUGS = "pof-mkl, broken", "pof-mkl, slow", "bugs"
SECONDS, PATIENCE = {SLOW: 8.0}, 200.0  # to answer: in a run, and elsewhere on a busy machine


class Nodes(ClientApp):
    """The nodes of all methods: those of the one at hand answer."""

    def __init__(self, clients: dict[str, Any], here: Path) -> None:
        super().__init__()
        self.clients, self.here = clients, here

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer, or raise where it is told to."""
        if (self.here / "seen").is_dir():  # by the nodes of a cluster
            import ray

            node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "here"
            (self.here / "seen" / node).touch()
        config = next(iter(message.content.config_records.values()), {})
        partition = context.node_config["partition-id"]
        number = message.content.config_records.get("config", {}).get("server-round", 0)
        if partition == 3 and number >= 2:
            raise RuntimeError("a node of the example is lost")
        place = self.here / f"{config.get('phase')}-{config.get('round', 0)}-{partition}"
        if place.exists():
            told = place.read_text()
            place.unlink()
            if told == "die":
                os._exit(1)
            if told == "interrupt":
                raise KeyboardInterrupt
            if told != "sleep":
                raise ValueError("private value 4711")
            (self.here / "asleep").touch()
            time.sleep(SECONDS[SLOW] + 1.0)
        return served(self.clients[(self.here / "now").read_text()])(message, context)


def prepared_of(name: str, given: dict[str, Any]) -> tuple[Any, dict[str, Any], Any]:
    """Return data, options and more arguments of the start of a run."""
    own = family(name)
    values = {o.name: o.default for o in [*options(method(name)), *own.parameters()]}
    config = own.config(name, values | given)
    prepared = own.prepare(own.settings.from_values(config["data"]))
    return prepared, config["options"], prepared.start()


class Buggy(OnlineKernelClient):
    """A client with a bug in each of its first five rounds, in the nodes 0 and 1."""

    def __init__(self, context: Context) -> None:
        self.buggy = context.node_config["partition-id"] < 2
        if self.buggy and SessionState.load(context).round == 5:
            raise ValueError("nine lives")  # init
        rng = np.random.default_rng(context.node_config["partition-id"])
        super().__init__(context, rng.random((6, 3)) / 2, np.ones(6) / 2)

    def train_personal(self, request: Any) -> Any:  # none
        """Fail."""
        number = request.round if self.buggy else 0
        if number == 1:
            np.ones((3, 4)) @ np.ones((5, 6))  # shape
        reply = super().train_personal(request)
        if number == 2:
            return replace(reply, round=np.int64(2))  # type: ignore[arg-type]  # int64
        if number == 4:
            raise TableError("nine rows", remedy="count", party=self.name)
        return None if number == 3 else reply


class Runs:
    """Runs on the same nodes, one after the other."""

    def __init__(self) -> None:
        self.clients: dict[str, Any] = {}
        self.found: dict[str, Any] = {}
        self.steps: list[SimulationStep[Any]] = []

    def enter(
        self,
        run: str,
        strategy: Any,
        clients: Any,
        look: Callable[[SimulationStep[Any]], dict[str, Any]],
        raising: tuple[str, ...] = (),
        told: str = "",
        **start: Any,
    ) -> None:
        """Add a run; ``look`` says what it came to, ``told`` what a node does besides raising."""
        found = self.found[run] = {"ended": ""}
        self.clients[run] = clients
        real: Callable[..., Any] = strategy.start

        def started(**arguments: Any) -> Any:  # an error must not end the steps that follow
            try:
                return real(**arguments)
            except FedKernError as error:
                found["ended"] = f"{type(error).__name__}: {error}"

        def before(_: Any) -> None:
            (HERE / "now").write_text(run)
            for place in raising:
                (HERE / place).write_text(told)

        def after(step: SimulationStep[Any]) -> None:
            left: Any = [place for place in raising if (HERE / place).exists()]
            found.update(look(step), left=left)
            if (HERE / "asleep").exists():
                time.sleep(
                    3.0
                )  # what the node keeps is saved when it wakes, over that of a next run
                (HERE / "asleep").unlink()

        if told != "die":  # that ends the engine
            strategy.start = started
        self.steps.append(SimulationStep(strategy, before=before, after=after, start=start))

    def add(self, run: str, raising: tuple[str, ...] = (), told: str = "", **more: Any) -> None:
        """Add a run of a method."""
        name, given = run.partition(",")[0], STREAMS if run.startswith(BROKEN) else RUNS[run][0]
        prepared, chosen, start = prepared_of(name, given)
        chosen = {**chosen, **more, "node_timeout": PATIENCE}
        strategy = method(name)(seed=5, **chosen)
        assert prepared.nodes(strategy) == NODES, run
        state = HERE / "state" / run.replace(", ", "-")
        # nodes of kernel-pca with a folder draw a plot there, which takes longer than all the rest
        clients = prepared.client_fn(strategy, None if name == "kernel-pca" else state)

        def look(_: Any) -> dict[str, Any]:
            arrays = model(strategy, state)
            more = {"paper": paper(strategy, clients)} if run.endswith("Algorithm 1") else {}
            return {
                **more,
                "model": {name: array.ravel().tolist() for name, array in arrays.items()},
                "metrics": strategy.metrics_,
                "history": strategy.history_,
                "failures": strategy.ledger_.failures,
                "by_phase": {k: v for k, v in strategy.ledger_.by_phase.items() if k != "describe"},
            }

        start = {**start, "timeout": SECONDS.get(run, PATIENCE)}
        told = "sleep" if run == SLOW else told
        self.enter(run, strategy, clients, look, raising, told, **start)

    def add_bugs(self) -> None:
        """Add a run whose clients have bugs."""
        strategy = POFMKL(kernels=5, features=4, secure=False, node_timeout=PATIENCE)
        self.enter(BUGS, strategy, Buggy, lambda _: strategy.ledger_.failures, num_rounds=6)

    def add_example(self, *strategies: type[Any]) -> None:
        """Add runs of the example of secure aggregation, which loses a node on its way."""
        from client_app import app
        from task import initial

        def look(step: SimulationStep[Any]) -> dict[str, Any]:
            assert step.result is not None
            return {name: array.numpy().tolist() for name, array in step.result.arrays.items()}

        for kind in strategies:
            arrays = ArrayRecord({name: Array(value) for name, value in initial().items()})
            run = f"example, {kind.__name__}"
            self.enter(run, kind(), app, look, num_rounds=3, initial_arrays=arrays)

    def run(self, engine: Any, **more: Any) -> dict[str, Any]:
        """Run all; return what was found."""
        nodes, faults = Nodes(self.clients, HERE), delays if engine == "ray" else losses
        simulate_all(self.steps, nodes, NODES, engine=engine, faults=faults, **more)
        return self.found


def delays(delivery: Delivery) -> Fault | None:
    """Hold back the first group where groups do not wait for each other."""
    late = delivery.phase == "svm-step" and delivery.partition < 2
    late = late and (HERE / "now").read_text().endswith("asynchronous")
    return Fault("delay", seconds=0.1) if late else None


def losses(delivery: Delivery) -> Fault | None:
    """Lose in process, where nobody can be late, the reply that is late on Ray."""
    place = HERE / f"{delivery.phase}-{delivery.round}-{delivery.partition}"
    if place.exists() and place.read_text() == "sleep":
        place.unlink()
        return Fault("lost reply")
    return delays(delivery)


def model(strategy: Any, state: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a model, or the coefficients that parties keep to themselves."""
    arrays, meta = strategy.model()
    if arrays or "step" not in meta:
        return dict(arrays)
    kept = {
        path.name.partition("-round")[0]: KeptState.unpack(path.read_bytes()).arrays
        for path in state.glob(f"*/*-round-{meta['step']}.state")
    }
    return {name: arrays["alpha"] for name, arrays in kept.items() if "alpha" in arrays}


def paper(strategy: Any, clients: Any) -> dict[str, list[float]]:
    """Return the coefficients of the parties that the paper's program of FDSKL makes."""
    tables = [clients.arguments(party) for party in range(NODES)]
    made, _ = paper_run(strategy, tables, clients.alignment_key, PAPER["rounds"])
    return {f"partition-{party}": alpha.ravel().tolist() for party, alpha in made.items()}


def ratings() -> None:
    rng = np.random.default_rng(2)
    pairs = np.argwhere(rng.random((42, 20)) < 0.4)
    lines = ["user,item", *(f"{u + 1},{i + 1}" for u, i in pairs)]
    Path("r.csv").write_text("\n".join(lines))
    for k in range(NODES):
        rows = np.random.default_rng(k).random((9, 3)).tolist()
        text = "\n".join(",".join(map(repr, row)) for row in rows)
        Path(f"{k}.csv").write_text(f"a,b,y\n{text}\n")


@atexit.register
def tell_telemetry() -> None:
    from flwr.supercore import telemetry

    print("telemetry", telemetry.FLWR_TELEMETRY_ENABLED)


def on_both_engines() -> dict[str, Any]:
    """Run all methods; break off in process and go on with Ray, and the other way round."""
    found: dict[str, Any] = {}
    for label, engine in (("quiet", "in-process"), ("in-process", "in-process"), ("ray", "ray")):
        runs = Runs()
        for run, (_, raising) in RUNS.items():
            runs.add(run, raising if label != "quiet" else ())
        runs.add_example(*((FedAvg, FedAdam) if label == "in-process" else ()))
        if engine == "in-process":
            found[label] = runs.run(engine)
    from server_app import STRATEGIES

    runs.add_example(*STRATEGIES.values())
    runs.add_bugs()
    at = ("online-personal-5-1",)
    broken, there, here = Runs(), {"checkpoint": HERE / "a.npz"}, {"checkpoint": HERE / "b.npz"}
    broken.add(f"{BROKEN} off", at, "interrupt", **there)
    with suppress(KeyboardInterrupt):
        broken.run("in-process")
    runs.add(f"{BROKEN} off", resume=True, **there)
    runs.add(f"{BROKEN} down", at, "die", **here)
    try:
        found["ray"] = runs.run("ray")
    except FedKernError as error:
        found["ray"] = runs.found
        found["died"] = [type(error).__name__, str(error), runs.found.pop(f"{BROKEN} down")]
    resumed = Runs()
    resumed.add(f"{BROKEN} down", resume=True, **here)
    return found | {"resumed": resumed.run("in-process")[f"{BROKEN} down"]}


def on_a_cluster(address: str) -> dict[str, Any]:
    """Run a method and a sweep on a cluster; be told what does not fit it."""
    found: dict[str, Any] = {}
    for engine, more in (
        ("in-process", {}),
        ("ray", {"ray_address": address, "shared_dir": HERE / "shared"}),
    ):
        runs = Runs()
        runs.add("fed-cg")
        found[engine] = runs.run(engine, **more)["fed-cg"]["model"]
    found["left behind"] = [path.name for path in (HERE / "shared").iterdir()]

    def draw(seed: int, data: str = "iris") -> Cell:
        settings = DataSettings(data, clients=3, rounds=6)
        return Cell(settings, "pof-mkl", {"features": 4}, seed, False, "in-process")

    def keep(cell: Cell, record: Any) -> None:
        swept[cell.seed] = record["result"]["metrics"]

    swept: dict[int, Any] = {}
    cells = [draw(seed) for seed in range(5)]
    sweep(cells, ray_address=address, progress=lambda *_: None, done=keep)
    alone = {cell.seed: run_cell(cell)["result"]["metrics"] for cell in cells}
    found["sweep"] = swept == alone and len(swept) == 5
    try:
        sweep([draw(0, "no.npz")], ray_address=address, progress=print, done=print)
    except CellFailed as failed:
        found["no data"] = [type(failed.error).__name__, str(failed.error)]
    os.environ["RAY_ADDRESS"] = address  # the cluster is still there
    ray_cluster.version = lambda package: "0.0.1"  # type: ignore[attr-defined]
    try:
        runs.run("ray")
    except FedKernError as error:
        found["other release"] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    quiet_flower(50)
    ratings()
    if sys.argv[1:] == ["bugs"]:
        alone = Runs()
        alone.add_bugs()
        outcome = alone.run("in-process")
    else:
        outcome = on_a_cluster(sys.argv[1]) if sys.argv[1:] else on_both_engines()
    print(json.dumps(outcome))

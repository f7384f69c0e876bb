"""Ways of all methods in process and on Ray; a program of its own, see test_doors.py.

In the folder that it works in, the file ``now`` names the way at hand, and a file
``phase-round-partition`` is a message at which a node raises, once. It prints what a run came to.
With an address it makes the runs that a cluster has.
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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg
from zoo import WAYS as EVERY
from zoo import Found, Table, hospitals, users

from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.errors import FedKernError, TableError
from fedkern_flwr.simulations import Fault, SimulationStep, simulate_all
from fedkern_flwr.simulations.engines import ray as on_ray
from fedkern_flwr.simulations.lab.cells import Cell, CellFailed, run_cell, sweep
from fedkern_flwr.simulations.methods.online import DataSettings
from fedkern_flwr.strategies import POFMKL

HERE = Path.cwd()


def seven() -> list[Table]:
    """Deal rows to five users and two agents."""
    first, *others = users()
    rows = ("x", "y", "x_test", "y_test")
    return [*({**first, **{n: first[n][k::2] for n in rows}} for k in (0, 1)), *others]


#: Of four or seven nodes: Ray starts once for each number of them.
WAYS = {**EVERY, "fed-cg": replace(EVERY["fed-cg"], tables=partial(hospitals, count=2))}
for name, way in EVERY.items():
    if name in ("hierarchical-svm", "hierarchical-svm, vertical"):  # few iterations are enough
        WAYS[name] = replace(way, rounds=4, options={**way.options, "tolerance": 1e-12})
for name in ("hierarchical-svm", "hierarchical-svm, asynchronous"):
    WAYS[name] = replace(WAYS[name], tables=seven)
#: Ways, and the messages at which a node raises.
RUNS: dict[str, tuple[str, ...]] = {
    "pof-mkl": ("online-personal-2-1", "online-personal-5-1"),
    "pof-mkl, secure": ("online-personal-2-1", "unmask-3-2"), "pof-rls": ("online-ridge-3-2",),
    "vm-kofl": ("online-shared-2-3",), "per-fed-avg": ("online-network-2-1",), "local-only": (),
    "fdskl": ("vertical-step-1-3", "vertical-train-3-0"),
    "fdskl, streaming": ("vertical-step-3-0", "vertical-step-5-2"), "secure-gram": ("unmask-2-3",),
    "fed-cfk": ("gram-recommend-5-2",), "kernel-pca": ("method-3-3",),
    "summary": ("method-5-1",),
    "fed-cg": ("hybrid-distances-1-3", "hybrid-equations-3-0"),
    "hierarchical-svm": ("svm-step-2-1", "svm-combine-3-6"), "hierarchical-svm, asynchronous": (),
    "hierarchical-svm, vertical": ("svm-visit-3-1", "svm-owner-2-6"),
}  # fmt: skip
BROKEN, SLOW, BUGS = "pof-mkl, broken", "pof-mkl, slow", "bugs"
#: Seconds to answer while other tests run: with a slow node on each engine, and elsewhere.
SECONDS, PATIENCE = {"ray": 10.0, "in-process": 0.5}, 200.0
CLIENTS = 4


class Nodes(ClientApp):
    """The nodes of all ways: those of the one at hand answer."""

    def __init__(self, apps: dict[str, Any], here: Path) -> None:
        super().__init__()
        self.apps, self.here = apps, here

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
            time.sleep(SECONDS["ray"] + 1.0)
        app = self.apps[(self.here / "now").read_text()]
        return app(message, context)  # type: ignore[no-any-return]


class Buggy(OnlineKernelClient):
    """A client with a bug in each of its first five rounds, in the nodes 0 and 1."""

    def __init__(self, context: Context) -> None:
        self.buggy = context.node_config["partition-id"] < 2
        with (HERE / f"asked-{context.node_config['partition-id']}").open("a") as file:
            file.write(".")  # once a message: to be described, and six rounds
            if self.buggy and file.tell() == 7:
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


def app_of(client_fn: Callable[[Context], Any]) -> ClientApp:
    """Return the app of clients."""
    return ClientApp(client_fn=lambda context: client_fn(context).to_client())


class Runs:
    """Runs on the same nodes, one after the other."""

    def __init__(self, count: int, found: dict[str, Any] | None = None) -> None:
        self.count = count
        self.apps: dict[str, Any] = {}
        self.found = {} if found is None else found
        self.steps: list[SimulationStep[Any]] = []

    def enter(
        self,
        run: str,
        strategy: Any,
        app: Any,
        look: Callable[[SimulationStep[Any]], dict[str, Any]],
        raising: tuple[str, ...] = (),
        told: str = "",
        **start: Any,
    ) -> None:
        """Add a run; ``look`` says what it came to, ``told`` what a node does besides raising."""
        found = self.found[run] = {"ended": ""}
        self.apps[run] = app
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
            if (HERE / "asleep").exists():  # what the node keeps would be saved over the next run's
                time.sleep(3.0)
                (HERE / "asleep").unlink()

        if told != "die":  # that ends the engine
            strategy.start = started
        self.steps.append(SimulationStep(strategy, before=before, after=after, start=start))

    def add(
        self,
        run: str,
        raising: tuple[str, ...] = (),
        told: str = "",
        timeout: float = PATIENCE,
        **more: Any,
    ) -> None:
        """Add a run of a way."""
        way = WAYS["pof-mkl" if run.startswith((BROKEN, SLOW)) else run]
        sites = way.sites(state_dir=None)
        folder = HERE / run.replace(", ", "-")
        sites.more = {"state_dir": folder} if run.startswith(BROKEN) else {}
        strategy = way.make(**more, node_timeout=PATIENCE)

        def look(step: SimulationStep[Any]) -> dict[str, Any]:
            found = Found(way, strategy, sites, step.result, None)
            arrays = {k: plain(v) for k, v in found.outcome().items()}
            failures = strategy.ledger_.failures
            return {"outcome": arrays, "failures": failures, "phases": found.phases}

        start = {"num_rounds": way.rounds} if way.rounds else {}
        app = app_of(sites.client_fn)
        self.enter(run, strategy, app, look, raising, told, timeout=timeout, **start)

    def add_bugs(self) -> None:
        """Add a run whose clients have bugs."""
        strategy = POFMKL(kernels=5, features=4, secure=False, node_timeout=PATIENCE)
        look = lambda _: {"failures": strategy.ledger_.failures}  # noqa: E731
        self.enter(BUGS, strategy, app_of(Buggy), look, num_rounds=6)

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
        nodes, faults = Nodes(self.apps, HERE), None if engine == "ray" else losses
        simulate_all(self.steps, nodes, self.count, engine=engine, faults=faults, **more)
        return self.found


def plain(value: Any) -> Any:
    """Return what JSON can say of a value."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def losses(delivery: Any) -> Fault | None:
    """Lose in process, where nobody can be late, the reply that is late on Ray."""
    place = HERE / f"{delivery.phase}-{delivery.round}-{delivery.partition}"
    if place.exists() and place.read_text() == "sleep":
        place.unlink()
        return Fault("lost reply")
    return None


@atexit.register
def tell_telemetry() -> None:
    from flwr.supercore import telemetry

    print("telemetry", telemetry.FLWR_TELEMETRY_ENABLED)


def on_both_engines() -> dict[str, Any]:
    """Run all ways; break off in process and go on with Ray, and the other way round."""
    from server_app import STRATEGIES

    found: dict[str, Any] = {"quiet": {}, "in-process": {}, "ray": {}}
    at = ("online-personal-5-1",)
    broken, there, here = (
        Runs(CLIENTS),
        {"checkpoint": HERE / "a.npz", "checkpoint_every": 3},
        {"checkpoint": HERE / "b.npz", "checkpoint_every": 3},
    )
    broken.add(f"{BROKEN} off", at, "interrupt", **there)
    with suppress(KeyboardInterrupt):
        broken.run("in-process")
    sizes = {run: len(WAYS[run].tables()) for run in RUNS}
    for label, engine in (("quiet", "in-process"), ("in-process", "in-process"), ("ray", "ray")):
        for count in sorted(set(sizes.values()), reverse=True):  # the engine that dies comes last
            runs = Runs(count, found[label])
            for run in (run for run, size in sizes.items() if size == count):
                runs.add(run, RUNS[run] if label != "quiet" else ())
            if count == CLIENTS and label != "quiet":
                runs.add(SLOW, ("online-personal-12-1",), "sleep", SECONDS[engine])
                runs.add_example(*((FedAvg, FedAdam) if engine != "ray" else STRATEGIES.values()))
            if count == CLIENTS and engine == "ray":
                runs.add_bugs()
                runs.add(f"{BROKEN} off", resume=True, **there)
                runs.add(f"{BROKEN} down", at, "die", **here)
            try:
                runs.run(engine)
            except FedKernError as error:
                found["died"] = [type(error).__name__, str(error), runs.found.pop(f"{BROKEN} down")]
    resumed = Runs(CLIENTS)
    resumed.add(f"{BROKEN} down", resume=True, **here)
    return found | {"resumed": resumed.run("in-process")[f"{BROKEN} down"]}


def on_a_cluster(address: str) -> dict[str, Any]:
    """Run a method and a sweep on a cluster; be told what does not fit it."""
    found: dict[str, Any] = {}
    for engine, more in (
        ("in-process", {}),
        ("ray", {"ray_address": address, "shared_dir": HERE / "shared"}),
    ):
        runs = Runs(len(WAYS["fed-cg"].tables()))
        runs.add("fed-cg")
        found[engine] = runs.run(engine, **more)["fed-cg"]["outcome"]
    found["left behind"] = [path.name for path in (HERE / "shared").iterdir()]

    def draw(seed: int, data: str = "iris") -> Cell:
        settings = DataSettings(data, clients=3, rounds=6)
        return Cell(settings, "pof-mkl", {"features": 4}, seed, False)

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
    on_ray.version = lambda package: "0.0.1"  # type: ignore[attr-defined]
    try:
        runs.run("ray")
    except FedKernError as error:
        found["other release"] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    import logging

    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    outcome = on_a_cluster(sys.argv[1]) if sys.argv[1:] else on_both_engines()
    print(json.dumps(outcome, default=float))

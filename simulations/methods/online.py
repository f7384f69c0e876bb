"""Online methods, in which clients predict each row before they learn it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedkern_flwr.checkpoint import run_folder
from fedkern_flwr.clients.pof_mkl_samples import StreamAccount
from fedkern_flwr.online import network
from fedkern_flwr.online.drift import recent_errors, rises
from fedkern_flwr.online.learning import current_weights
from fedkern_flwr.reporting import whether_converged
from fedkern_flwr.tables.table import listing

from ... import strategies
from ...clients.pof_rls import mixture
from ...strategies import POFRLS, LocalOnly, PerFedAvg
from ...strategies.online import OnlineStrategy
from ...strategies.pof_mkl import KernelLearning
from ..run import plots
from ..run.entries import Entry, average, mean
from ..run.format import figure, milli
from ..run.options import of_fields
from .base import Config, Family, Kept
from .new_rows import Parts
from .online_data import DataSettings, Streams, prepare


@dataclass(frozen=True)
class OnlineOptions:
    """Options of online methods.

    Attributes
    ----------
    secure : bool
        Secure sums: the server sees sums over clients only.
    """

    secure: bool = False


class OnlineFamily(Family[OnlineStrategy, DataSettings, Streams]):
    """POF-MKL, POF-RLS and their baselines."""

    strategies = (
        strategies.POFMKL,
        strategies.POFRLS,
        strategies.OFSKL,
        strategies.OFMKLAvg,
        strategies.VMKOFL,
        strategies.EMKOFL,
        strategies.PerFedAvg,
        strategies.LocalOnly,
    )
    settings, makes = DataSettings, staticmethod(prepare)
    run_options = ("secure",)
    app, deployable = "pof_mkl", ("pof-mkl", "pof-rls")
    deployed_defaults = {"samples_per_round": 50, "checkpoint_every": 2}  # noqa: RUF012
    usual = "clients split kernels_per_round features step_size samples_per_round"
    data = "nyc-weather"
    own_options = of_fields(OnlineOptions)

    def config(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Make the configuration; a privacy budget needs secure sums."""
        found = super().config(name, values)
        if found["options"].get("privacy_epsilon") is not None:
            found["secure"] = found["options"]["secure"] = True
            if found["data"]["missing"] == "encode":  # gaps would be filled by all rows
                found["data"]["missing"] = "error"
        return found

    def measure(
        self, strategy: OnlineStrategy, prepared: Streams, config: Config
    ) -> dict[str, Any]:
        """Return the regret of the server, and whether a constant is as good."""
        shards, metrics = prepared.shards, strategy.metrics_
        y = np.concatenate([one.y[: prepared.rounds] for one in shards])
        held = np.concatenate([one.y_test for one in shards])
        found: dict[str, Any] = {}
        judged = held if "test_mse" in metrics else y  # what was learned in the end counts
        if metrics["mse"] is None:
            return {}
        if metrics.get("test_mse", metrics["mse"]) >= np.mean((judged - y.mean()) ** 2):
            found["no_better_than"] = "the mean of all labels"
            if metrics.get("converged", True):  # else it has been said
                text = "the error is no smaller than that of the mean of all labels"
                found |= whether_converged(False, text, strategy.advice)
        return found

    def whole_model(self, strategy: OnlineStrategy, prepared: Streams, kept: Kept) -> Parts:
        """Return the whole model."""
        return whole_model(strategy, prepared, kept.state_dir)

    def summarise(self, entry: Entry) -> dict[str, Any]:
        """Average the runs round by round; ``mse_std`` is over runs."""
        results = entry.results
        errors = [result["metrics"]["mse"] for result in results]
        told = None not in errors  # as nodes do not with a budget of privacy
        history = [
            {
                "round": rows[0]["round"],
                "mse": mean([row["mse"] for row in rows]),
                "regret": mean([row["regret"] for row in rows]),
                "survivors": min(row["survivors"] for row in rows),
            }
            for rows in zip(*(r["history"] for r in results), strict=True)
        ]
        found = average(
            results,
            metrics={"mse_std": float(np.std(errors, ddof=len(errors) > 1)) if told else None},
            history=history,
            survivors=results[-1]["history"][-1]["survivors"],
        )
        return {**found, "drift": rises(history)}

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return numbers of clients and samples."""
        return f"{facts['clients']} clients x {facts['rounds']} samples"

    def figures(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return errors and regrets."""
        metrics, config = result["metrics"], result["config"]
        if metrics["mse"] is None and "budget" in result["privacy"]:
            return [["errors", "only in the log of each client, because of the privacy budget"]]
        rows = [
            ["MSE (10⁻³; labels from 0 to 1)", milli(metrics["mse"], 3)],
            ["  std over clients (10⁻³)", milli(metrics["mse_client_std"], 3)],
            ["regret per client, mean", figure(metrics["regret_mean"], 3)],
            ["regret per client, std", figure(metrics["regret_std"], 3)],
        ]
        if config["runs"] > 1:
            rows.insert(1, ["  std over runs (10⁻³)", milli(metrics["mse_std"], 3)])
        if recent := recent_errors(result["history"]):
            rows.insert(1, ["  of the last tenth (10⁻³)", milli(recent[-1][1], 3)])
        if drift := rises(result["history"]):
            rows.append(["the data drifts: error rises after", listing(map(str, drift))])
        if "test_mse" in metrics:
            rows.insert(2, ["MSE on held-out rows (10⁻³)", milli(metrics["test_mse"], 3)])
        if "regret_to_bound" in metrics:
            share = f"{100 * metrics['regret_to_bound']:.1f} %"
            rows.append(["  largest share of Theorem 1's bound", share])
        return rows

    def seen(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return active clients, what the server saw, and lost rounds."""
        present = f"{result['survivors']} of {result['config']['clients']}"
        rows = [["clients in the last round", present], *super().seen(result)]
        if rounds_lost := sum(row["survivors"] == 0 for row in result["history"]):
            rows.append(["rounds lost: too few for a sum", str(rounds_lost)])
        return rows

    def plots(self, folder: Path, label: str, summary: Mapping[str, Any]) -> dict[str, Path]:
        """Draw error and average regret over time."""
        history = [row for row in summary["history"] if row["mse"] is not None]
        if not history:
            return {}
        recent = [(t, mse, 0.0) for t, mse in recent_errors(history)]
        made = {
            "mse_plot": plots.plot_sweep(
                {
                    f"{label}, of the first t": [(r["round"], r["mse"], 0.0) for r in history],
                    "of the last tenth up to t": recent,
                },
                folder / "mean_squared_error.png",
                title="Prediction error so far and of the last tenth",
                xlabel="samples per client t",
                ylabel="error (MSE) of predictions",
                marks={"error rises": rises(history)},
                svg=False,
            )
        }
        if history[0]["regret"] is not None:
            made["regret_plot"] = plots.plot_sweep(
                {label: [(r["round"], r["regret"] / r["round"], 0.0) for r in history]},
                folder / "average_regret.png",
                title="Average regret of the clients",
                xlabel="samples per client t",
                ylabel="regret per sample (squared error)",
                svg=False,
            )
        return made


# -- the model that predicts new rows

_CHUNK = 512  # rows at a time: memory 512 * N * 2D numbers


def whole_model(strategy: OnlineStrategy, prepared: Streams, state_dir: Path) -> Parts:
    """Return a model that predicts rows in one place."""
    if isinstance(strategy, PerFedAvg):
        return _networks(strategy, prepared)
    if isinstance(strategy, LocalOnly):
        return _lone(strategy, prepared, state_dir)
    if isinstance(strategy, POFRLS):
        return _mixtures(strategy, prepared, state_dir)
    assert isinstance(strategy, KernelLearning)
    return _dictionary(strategy, _accounts(strategy, prepared, state_dir))


def _dictionary(strategy: KernelLearning, accounts: Iterable[StreamAccount]) -> Parts:
    """Return parameters, with weights of the server or of each client."""
    weights = strategy.evaluation_weights()[None]
    personal = not weights.size
    if personal:
        rule, rate = strategy.weight_fields().values()
        found = []
        for account in accounts:
            account = account.of(strategy.kernels)
            found.append(current_weights(rule, account.losses, account.gap, rate))
        weights = np.array(found)
    arrays, own = strategy.whole(weights)
    return Parts("dictionary", arrays, {**own, "personal": personal})


def _mixtures(strategy: POFRLS, prepared: Streams, state_dir: Path) -> Parts:
    """Return the mixture coefficients of each client."""
    request, dimension = strategy.evaluation(), prepared.shards[0].x.shape[1]
    accounts = _accounts(strategy, prepared, state_dir)
    weights = np.array([mixture(request, account, dimension) for account in accounts])
    arrays = {"weights": weights, "bandwidths": np.frombuffer(request.bandwidths, "<f8")}
    names = ("features", "seed", "centre")
    own = {name: getattr(request, name) for name in names}
    return Parts("ridges", arrays, {**own, "columns": dimension, "personal": True})


def _lone(strategy: LocalOnly, prepared: Streams, state_dir: Path) -> Parts:
    """Return the weighted parameters of each client."""
    fields, dimension = strategy.dictionary_fields(), prepared.shards[0].x.shape[1]
    rule, rate = strategy.weight_fields().values()
    found = []
    for account in _accounts(strategy, prepared, state_dir):
        account = account.of(strategy.kernels)
        weights = current_weights(rule, account.losses, account.gap, rate)
        theta = account.own[0] if account.own else np.zeros(weights.size * 2 * strategy.features)
        theta = theta.reshape(len(weights), -1).astype(strategy.precision)
        found.append((theta * weights[:, None]).ravel())
    names = ("features", "seed", "precision", "frequency_draw", "centre")
    arrays = {"weights": np.array(found), "bandwidths": strategy.bandwidths}
    own = {name: fields[name] for name in names}
    return Parts("lone-dictionaries", arrays, {**own, "columns": dimension, "personal": True})


def _networks(strategy: PerFedAvg, prepared: Streams) -> Parts:
    """Return the adapted network of each client."""
    request = strategy.evaluation()
    shards, seed = prepared.shards, request.seed
    widths = tuple(int(width) for width in np.frombuffer(request.layers, "<i4"))
    last, found = slice(max(0, request.step - request.samples), request.step), []
    for shard in shards:
        inputs = network.project(shard.x[last], widths[0], seed)
        step = request.inner_step
        found.append(network.adapt(request.parameters, widths, inputs, shard.y[last], step))
    meta = {"layers": list(widths), "seed": seed, "columns": shards[0].x.shape[1]}
    return Parts("networks", {"weights": np.array(found)}, {**meta, "personal": True})


def _accounts(
    strategy: OnlineStrategy, prepared: Streams, state_dir: Path
) -> Iterator[StreamAccount]:
    """Yield the state of each simulated client."""
    state: type[StreamAccount] = prepared.clients.kind.state_class
    for partition in range(prepared.num_clients):
        folder = run_folder(state_dir, strategy.session, partition)
        files = folder.glob(f"partition-{partition}-round-*.state")
        last = max(files, key=lambda file: int(file.stem.rsplit("-", 1)[1]), default=None)
        yield state() if last is None else state.unpack(last.read_bytes())

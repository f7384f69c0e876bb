"""Error of POF-MKL against epsilon: few clients and many, short messages and long ones.

``FEDKERN_DATA=FOLDER python benchmarks/private_streams.py [SEEDS]`` prints a table (mean squared
error, 10⁻³, of predictions made before the label is known) and draws
``docs/images/privacy-streams.png``; with ``rls`` instead of SEEDS it prints that of POF-RLS, whose
runs are made as they are: one seed, 50 samples a message.

A message is an exact sum of clipped terms and noise, as ``test_private_online.py`` shows. So that
hundreds of runs take minutes, all clients are computed in one place, with the library's features,
noise and step rule; ``tests/benchmarks/test_private_streams.py`` compares that with runs. One
client colludes, all answer each message. ``none`` is POF-MKL as it is without a budget, with the
same messages; ``alone`` the same learner at each client by itself, which needs no budget: nothing
leaves the client. A budget is worth it where a row's error is below that of ``alone``.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.kernels.dictionary import bandwidth_dictionary
from fedkern_flwr.kernels.random_features import feature_map
from fedkern_flwr.online import private
from fedkern_flwr.online.learning import CENTRE, LOCAL_STEP, AdaGradNorm
from fedkern_flwr.privacy import Budget, skellam
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.methods.online_data import DataSettings, Streams, prepare
from fedkern_flwr.strategies import POFRLS

Floats = NDArray[np.float64]

EPSILONS = (math.inf, 8.0, 3.0, 1.0, 0.3)
CLIENTS, BATCHES, KERNELS, FEATURES, PENALTY = (23, 240), (1, 10, 50), (9, 51), 20, 1e-3
PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "privacy-streams.png"


def load(name: str, clients: int, seed: int) -> tuple[Floats, Floats]:
    """Return rows of every client in order, (K, T, d), and labels without the centre, (K, T)."""
    data = "nyc-weather" if name == "nyc-weather" else f"{os.environ['FEDKERN_DATA']}/naval.npz"
    target = {} if name == "nyc-weather" else {"target": "0"}
    settings: dict[str, Any] = {"data": data, "clients": clients, "seed": seed, **target}
    found: Streams = prepare(DataSettings(**settings))
    shards, rounds = found.clients.shards, found.rounds
    x = np.stack([one.x[:rounds] for one in shards])
    return x, np.stack([one.y[:rounds] for one in shards]) - CENTRE


class Hedges:
    """AdaHedge of many clients at once: see :func:`.learning.adahedge_weights`."""

    def __init__(self, clients: int, kernels: int) -> None:
        self.losses, self.gaps = np.zeros((clients, kernels)), np.zeros(clients)

    def take(self, losses: Floats) -> Floats:
        """Return the weights before a sample, (K, N), and learn its losses."""
        best = self.losses.min(axis=1, keepdims=True)
        if self.losses.shape[1] == 1:
            self.losses += losses
            return np.ones_like(losses)
        known = self.gaps > 0.0
        rates = math.log(losses.shape[1]) / np.where(known, self.gaps, 1.0)
        after = self.losses + losses
        least = after.min(axis=1, keepdims=True)
        weights = np.where(
            known[:, None], np.exp(-rates[:, None] * (self.losses - best)), self.losses == best
        )
        total = weights.sum(axis=1)
        later = np.exp(-rates[:, None] * (after - least)).sum(axis=1)
        mix = (least - best)[:, 0] - np.where(known, np.log(later / total) / rates, 0.0)
        weights /= total[:, None]
        self.gaps += np.maximum(0.0, np.vecdot(weights, losses) - mix)
        self.losses = after
        return weights


def features(x: Floats, kernels: int, seed: int) -> Floats:
    """Return random features, (K, T, N, 2D)."""
    widths = bandwidth_dictionary(kernels).astype("<f8").tobytes()
    made = feature_map(widths, x.shape[2], FEATURES, seed, "float32", "orthogonal")
    return made(x.reshape(-1, x.shape[2])).reshape(*x.shape[:2], kernels, 2 * FEATURES)


def noise_of(budget: Budget, clients: int, kernels: int, stops: list[int], clip: float) -> Any:
    """Return what draws the noise of a sum over all clients."""
    release = private.update_release(
        budget,
        clip=clip,
        pairs=kernels * FEATURES,
        features=FEATURES,
        losses=0,
        most=int(np.diff([0, *stops]).max()),
        messages=len(stops),
        parties=clients,
        least=clients,
    )
    unit, size = 2.0**-release.noise.fraction, 2 * kernels * FEATURES

    def draw() -> Floats:
        # independent Skellam variables add up to one of all their variance; drawn at most 2^32
        variance, many = clients * release.noise.variance, 1
        while variance // many > 1 << 32:
            many += 1
        total = sum(skellam(variance // many, size) for _ in range(many))
        return unit * np.asarray(total, np.float64).reshape(kernels, -1)

    return draw


def together(
    x: Floats,
    y: Floats,
    *,
    batch: int,
    epsilon: float = math.inf,
    kernels: int = 9,
    seed: int = 0,
    unit: Any = "row",
    clip: float = private.CLIP,
) -> float:
    """Return the mean squared error of POF-MKL with messages of ``batch`` samples of a client."""
    clients, samples = y.shape
    z = features(x, kernels, seed)
    messages = max(1, samples // batch)
    stops = [*(batch * np.arange(1, messages)), samples]
    theta, rule = np.zeros(z.shape[2:]), AdaGradNorm(kernels)
    hedges, squared, error = Hedges(clients, kernels), np.zeros((clients, kernels)), 0.0
    finite = math.isfinite(epsilon)
    draw = noise_of(Budget(epsilon, 1e-5, unit), clients, kernels, stops, clip) if finite else None
    for start, stop in zip([0, *stops[:-1]], stops, strict=True):
        own = np.broadcast_to(theta, (clients, *theta.shape))
        grown = 4.0 * squared
        for t in range(start, stop):
            predicted = np.vecdot(z[:, t], own)
            residual = predicted - y[:, t, None]
            losses = residual**2 + PENALTY * np.vecdot(own, own)
            weights = hedges.take(losses)
            error += float(((np.vecdot(weights, predicted) - y[:, t]) ** 2).sum())
            squared += residual**2
            if stop - start > 1:
                step = 2.0 * (residual[..., None] * z[:, t] + PENALTY * own)
                grown = grown + np.vecdot(step, step)
                long = np.sqrt(np.where(grown > 0.0, grown, 1.0))
                own = own - LOCAL_STEP * step / long[..., None]
        part = z[:, start:stop].astype(np.float64)
        residual = np.einsum("ktnw,nw->ktn", part, theta) - y[:, start:stop, None]
        if draw is not None:
            residual = private.clipped(residual, clip)
        total = np.einsum("ktn,ktnw->nw", residual, part)
        total += PENALTY * clients * (stop - start) * theta
        if draw is not None:
            total += draw()
        rule.update(theta, 2.0 * total / clients)
    return error / y.size


def alone(x: Floats, y: Floats, *, kernels: int = 9, seed: int = 0) -> float:
    """Return the mean squared error of the same learner at each client by itself."""
    clients, samples = y.shape
    z = features(x, kernels, seed)
    own, state = np.zeros((clients, *z.shape[2:])), np.zeros((clients, kernels))
    hedges, error = Hedges(clients, kernels), 0.0
    for t in range(samples):
        predicted = np.vecdot(z[:, t], own)
        residual = predicted - y[:, t, None]
        weights = hedges.take(residual**2 + PENALTY * np.vecdot(own, own))
        error += float(((np.vecdot(weights, predicted) - y[:, t]) ** 2).sum())
        step = 2.0 * (residual[..., None] * z[:, t] + PENALTY * own)
        state += np.vecdot(step, step)
        own -= step / np.sqrt(np.where(state > 0.0, state, 1.0))[..., None]
    return error / y.size


Results = dict[tuple[str, int, int, int, float], float]


def measure(seeds: int) -> Results:
    """Print a table; return (data, clients, kernels, batch, epsilon) -> error; batch 0 is alone."""
    found: Results = {}
    head = " | ".join("none" if math.isinf(e) else f"ε {e:g}" for e in EPSILONS)
    print(f"| stream | clients x samples | kernels | B | {head} | alone |")
    print("|---|---|---|---|" + "---|" * (len(EPSILONS) + 1))
    for name in ("naval", "nyc-weather"):
        for clients in CLIENTS:
            data = [load(name, clients, seed) for seed in range(seeds)]
            size = f"{clients} x {data[0][1].shape[1]}"
            for kernels in KERNELS:
                each = [alone(*one, kernels=kernels, seed=k) for k, one in enumerate(data)]
                found[name, clients, kernels, 0, 0.0] = float(np.mean(each))
                for batch in BATCHES:
                    for epsilon in EPSILONS:
                        how = {"batch": batch, "epsilon": epsilon, "kernels": kernels}
                        each = [together(*one, **how, seed=k) for k, one in enumerate(data)]
                        found[name, clients, kernels, batch, epsilon] = float(np.mean(each))
                    row = [found[name, clients, kernels, batch, e] for e in EPSILONS]
                    row.append(found[name, clients, kernels, 0, 0.0])
                    figures = " | ".join(f"{1e3 * one:.1f}" for one in row)
                    print(f"| {name} | {size} | {kernels} | {batch} | {figures} |", flush=True)
    return found


def rls(x: Floats, y: Floats, seed: int, **options: Any) -> float:
    """Return the mean squared error of a run of POF-RLS."""

    def client_fn(context: Context) -> OnlineKernelClient:
        k = int(context.node_config["partition-id"])
        return OnlineKernelClient(context, x[k], y[k] + CENTRE)

    strategy = POFRLS(drop_outs=False, seed=seed, **options)
    simulate(strategy, client_fn, len(x), num_rounds=y.shape[1])
    return float(strategy.metrics_["mse"])


def measure_rls(seeds: int) -> None:
    """Print the table of POF-RLS."""
    head = " | ".join("none" if math.isinf(e) else f"ε {e:g}" for e in EPSILONS)
    print(f"| stream | clients x samples | B | {head} | alone |")
    print("|---|---|---|" + "---|" * (len(EPSILONS) + 1))
    for name in ("naval", "nyc-weather"):
        for clients in CLIENTS:
            data = [load(name, clients, seed) for seed in range(seeds)]
            size = f"{clients} x {data[0][1].shape[1]}"
            each = [rls(*one, k, experts="local", secure=False) for k, one in enumerate(data)]
            by_itself = float(np.mean(each))
            for batch in BATCHES[2:]:
                row = []
                for epsilon in EPSILONS:
                    how: dict[str, Any] = {"samples_per_round": batch}
                    if math.isfinite(epsilon):
                        how["privacy_epsilon"] = epsilon
                    each = [rls(*one, k, **how) for k, one in enumerate(data)]
                    row.append(float(np.mean(each)))
                figures = " | ".join(f"{1e3 * one:.2f}" for one in [*row, by_itself])
                print(f"| {name} | {size} | {batch} | {figures} |", flush=True)


def draw(found: Results) -> None:
    """Draw error over epsilon, a panel per stream and number of clients."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    panels = [(name, clients) for name in ("naval", "nyc-weather") for clients in CLIENTS]
    figure, axes = plt.subplots(1, len(panels), figsize=(3.2 * len(panels), 3.2))
    epsilons = sorted(e for e in EPSILONS if math.isfinite(e))
    kernels = KERNELS[0]
    for axis, (name, clients) in zip(axes, panels, strict=True):
        for k, batch in enumerate(BATCHES):
            row = [1e3 * found[name, clients, kernels, batch, e] for e in epsilons]
            axis.plot(epsilons, row, "o-", color=f"C{k}", label=f"{batch} a message")
            plain = 1e3 * found[name, clients, kernels, batch, math.inf]
            axis.axhline(plain, color=f"C{k}", lw=0.8, ls=":")
        by_itself = 1e3 * found[name, clients, kernels, 0, 0.0]
        axis.axhline(by_itself, color="black", lw=1.2, label="each client alone")
        axis.set(title=f"{name}, {clients} clients", xscale="log", yscale="log", xlabel="epsilon")
        axis.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
        limits = axis.get_ylim()
        ticks = [one for one in (1, 2, 5, 10, 20, 50) if limits[0] <= one <= limits[1]]
        axis.set_yticks(ticks, [str(one) for one in ticks])
        axis.minorticks_off()
    axes[0].set_ylabel("mean squared error (10⁻³)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0.0, 0.1, 1.0, 1.0))
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    """Print the table, draw the picture."""
    if sys.argv[1:] == ["rls"]:
        return measure_rls(1)
    return draw(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5))


if __name__ == "__main__":
    main()

"""Whole models of online methods, and the regret of the server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from fedkern_flwr.checkpoint import run_folder
from fedkern_flwr.clients.pof_mkl_samples import StreamAccount
from fedkern_flwr.online import network
from fedkern_flwr.online.learning import current_weights

from ...clients.pof_rls import mixture
from ...strategies import POFRLS, LocalOnly, PerFedAvg
from ...strategies.online import OnlineStrategy
from ...strategies.pof_mkl import KernelLearning
from .new_rows import Parts
from .online_data import Streams

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

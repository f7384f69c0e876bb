"""The whole model of a simulated run of an online method: the weights that its clients kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedkern_flwr.online.learning import current_weights

from ...clients.pof_mkl_account import StreamAccount
from ...clients.pof_rls import mixture
from ...strategies import POFRLS
from ...strategies.kernel_online import KernelOnlineStrategy
from ...strategies.online import OnlineStrategy
from .new_rows import Parts
from .online_data import Streams


def whole_model(strategy: KernelOnlineStrategy, prepared: Streams, state_dir: Path) -> Parts:
    """Return the parameters with the server's weights over the kernels, or each client's."""
    weights = strategy.evaluation_weights()[None]
    personal = not weights.size
    if personal:
        rule, rate = strategy.weight_fields().values()
        found = []
        for account in _accounts(strategy, prepared, state_dir):
            account = account.of(strategy.kernels)
            found.append(current_weights(rule, account.losses, account.gap, rate))
        weights = np.array(found)
    arrays, own = strategy.whole(weights)
    return Parts("dictionary", arrays, {**own, "personal": personal})


def whole_mixture(strategy: POFRLS, prepared: Streams, state_dir: Path) -> Parts:
    """Return the coefficients of each client's mixture of learners."""
    request, dimension = strategy.evaluation(), prepared.clients.shards[0].x.shape[1]
    accounts = _accounts(strategy, prepared, state_dir)
    weights = np.array([mixture(request, account, dimension) for account in accounts])
    arrays = {"weights": weights, "bandwidths": np.frombuffer(request.bandwidths, "<f8")}
    names = ("features", "seed", "centre")
    own = {name: getattr(request, name) for name in names}
    return Parts("ridges", arrays, {**own, "columns": dimension, "personal": True})


def _accounts(
    strategy: OnlineStrategy, prepared: Streams, state_dir: Path
) -> Iterator[StreamAccount]:
    """Yield what the clients of a simulated run remember, by partition."""
    state: type[StreamAccount] = prepared.clients.kind.state_class
    for partition in range(prepared.num_clients):
        files = (state_dir / strategy.session).glob(f"partition-{partition}-round-*.state")
        last = max(files, key=lambda file: int(file.stem.rsplit("-", 1)[1]), default=None)
        yield state() if last is None else state.unpack(last.read_bytes())

"""The whole model of a simulated run of an online method: the weights that its clients kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedkern_flwr.online.learning import current_weights

from ...clients.pof_mkl_account import StreamAccount
from ...strategies.kernel_online import KernelOnlineStrategy
from .new_rows import Parts
from .online_data import Streams


def whole_model(strategy: KernelOnlineStrategy, prepared: Streams, state_dir: Path) -> Parts:
    """Return the parameters with the server's weights over the kernels, or each client's."""
    weights = strategy.evaluation_weights()[None]
    personal = not weights.size
    if personal:
        rule, rate = strategy.weight_fields().values()
        found = []
        for partition in range(prepared.num_clients):
            files = (state_dir / strategy.session).glob(f"partition-{partition}-round-*.state")
            last = max(files, key=lambda file: int(file.stem.rsplit("-", 1)[1]), default=None)
            account = StreamAccount() if last is None else StreamAccount.unpack(last.read_bytes())
            account = account.of(strategy.kernels)
            found.append(current_weights(rule, account.losses, account.gap, rate))
        weights = np.array(found)
    arrays, own = strategy.whole(weights)
    return Parts("dictionary", arrays, {**own, "personal": personal})

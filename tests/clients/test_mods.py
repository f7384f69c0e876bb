"""Stock mods of Flower's around our clients: they work, or are refused in a line."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)

from fedkern_flwr.clients import KernelPCAClient, serve
from fedkern_flwr.errors import OptionError
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import KernelPCA

ROWS = np.random.default_rng(0).random((4, 30, 3))


def client(context: Context) -> KernelPCAClient:
    return KernelPCAClient(context, ROWS[int(context.node_config["partition-id"])])


def components(*mods: Any) -> np.ndarray:
    """Return the model of a run whose nodes have these mods."""
    strategy = KernelPCA(features=10)
    simulate(strategy, serve(client, mods=mods), len(ROWS))
    return np.asarray(strategy.model_["components"])


def test_mods_that_count_see_what_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    def spy(message: Message, context: Context, call_next: Any) -> Message:
        seen.append(type(message.content.config_records["fitins.config"]).__name__)
        return call_next(message, context)

    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.INFO, logger="flwr"):
        found = components(message_size_mod, arrays_size_mod, spy)
    np.testing.assert_array_equal(found, components())
    sizes = [r.args[0] for r in caplog.records if "message size" in r.msg and r.args]
    assert len(sizes) == 2 * len(seen) > 0
    assert min(sizes) > 50
    assert max(sizes) > 10 * 10 * 8  # a sum of outer products of ten features
    assert sum("Total array elements" in r.msg for r in caplog.records) == len(sizes)


@pytest.mark.parametrize(
    "mod", [LocalDpMod(1.0, 1.0, 1.0, 1e-5), fixedclipping_mod, adaptiveclipping_mod]
)
def test_mods_that_change_answers_are_refused_in_a_line(mod: Any) -> None:
    with pytest.raises(OptionError, match=r"changes what a node answers.*secure_aggregation_mod"):
        serve(client, mods=[mod])

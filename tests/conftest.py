"""Fixtures of all tests: small seeded streams and the clients that serve them."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from hypothesis import HealthCheck, settings
from hypothesis.strategies import characters

from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.node.session_state import SessionState

settings.register_profile(
    "fedkern",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("fedkern")


def pytest_configure(config: pytest.Config) -> None:
    """Have Hypothesis make its table of characters before there are workers: it takes 200 MB."""
    if config.getoption("numprocesses", None):
        characters(categories=["Lu"]).validate()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Look for no garbage in what is read, which stays: that takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def memory_goes_back() -> Iterator[None]:
    """Give back what the tables of a file took: else a worker keeps it to its end."""
    yield
    gc.collect()
    if arrow := sys.modules.get("pyarrow"):
        arrow.default_memory_pool().release_unused()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
        if trim is not None:
            trim(0)


@dataclass
class Streams:
    """Streams of several clients: rows in the unit ball, labels in [0, 1], each client its own law.

    ``client_fn`` serves them and keeps the nodes' contexts by partition.
    """

    x: list[np.ndarray]
    y: list[np.ndarray]
    test_rows: int = 0
    client: type[OnlineKernelClient] = OnlineKernelClient
    state_dir: Path | None = None
    contexts: dict[int, Context] = field(default_factory=dict)

    def client_fn(self, context: Context) -> OnlineKernelClient:
        """Build the client of a node."""
        k = int(context.node_config["partition-id"])
        self.contexts[k] = context
        held_out = len(self.x[k]) - self.test_rows
        return self.client(
            context,
            self.x[k][:held_out],
            self.y[k][:held_out],
            x_test=self.x[k][held_out:],
            y_test=self.y[k][held_out:],
            state_dir=None if self.state_dir is None else self.state_dir / f"node-{k}",
        )

    def numbers(self, partition: int) -> np.ndarray:
        """Return what a node keeps: 2N + 4 numbers."""
        return np.frombuffer(SessionState.load(self.contexts[partition]).payload, "<f8")


@pytest.fixture
def make_streams() -> Callable[..., Streams]:
    """Return a function that makes streams."""

    def make(
        clients: int = 3, rows: int = 20, dimension: int = 4, seed: int = 0, **more: Any
    ) -> Streams:
        rng = np.random.default_rng(seed)
        x, y = [], []
        for k in range(clients):
            points = rng.uniform(-1.0, 1.0, (rows, dimension)) / np.sqrt(dimension)
            clean = np.sin(3.0 * points[:, 0] + 0.5 * k) * 0.4 + 0.5
            x.append(points)
            y.append(np.clip(clean + 0.02 * rng.standard_normal(rows), 0.0, 1.0))
        return Streams(x, y, **more)

    return make


#: Tests that try the same fault in every place: `make test` takes every fourth case, the others are
#: run by `make test-long`.
SWEEPS = {
    "test_no_group_is_further_ahead_than_it_may",
    "test_every_method_takes_each_table_or_says_why_not",
    "test_streaming_is_doubly_stochastic_gradients_of_the_pooled_data",
}
_EVERY = 4


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases that are left to `make test-long`."""
    places: Counter[tuple[object, str]] = Counter()
    for item in items:
        name = getattr(item, "originalname", "")
        if name in SWEEPS and item.get_closest_marker("long") is None:
            if places[item.path, name] % _EVERY:
                item.add_marker(pytest.mark.long)
            places[item.path, name] += 1

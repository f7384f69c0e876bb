"""Fixtures of all tests, and which are left to `make test-long`."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.strategies import characters

settings.register_profile(
    "fedkern", deadline=None, derandomize=True, database=None, max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
settings.load_profile("fedkern")
# Ray gives its workers the lowest priority: beside the other tests they would hardly ever run.
os.environ.setdefault("RAY_worker_niceness", "0")


def pytest_configure(config: pytest.Config) -> None:
    """Have Hypothesis make its table of characters before all else: it takes 200 MB."""
    if not hasattr(config, "workerinput"):
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


@pytest.fixture
def make_streams() -> Callable[..., Any]:
    """Return a function that makes clients with streams, which write nothing."""
    from zoo import WAYS, Sites, new_folder, streams  # which only these tests load

    def make(
        clients: int = 3, rows: int = 20, dimension: int = 4, seed: int = 0, test_rows: int = 0
    ) -> Any:
        how: dict[str, Any] = {"held": test_rows, "rows": rows - test_rows}
        tables = streams(clients, dimension=dimension, seed=seed, **how)
        return Sites(WAYS["local-only"], new_folder(), tables, {"state_dir": None})

    return make


@pytest.fixture
def cheap_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have parties add normal noise of the same variance by the same key.

    The tables of the true law take a second of each run, and tests/core/test_privacy.py proves it.
    """

    def drawn(variance: int, size: int, key: bytes | None = None) -> Any:
        rng = np.random.default_rng(None if key is None else list(key))
        return np.rint(rng.normal(0.0, variance**0.5, size)).astype(np.int64)

    monkeypatch.setattr("fedkern_flwr.secure_sum.party.skellam", drawn)


#: Tests that try the same fault in every place: `make test` takes every fifth case, the others are
#: run by `make test-long`.
SWEEPS = {
    "test_no_group_is_further_ahead_than_it_may",
    "test_a_method_takes_each_table_or_says_why_not",
    "test_streaming_is_doubly_stochastic_gradients_of_the_pooled_data",
}
_EVERY = 5


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


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs packages that `make test` does without."""
    for name in (name for mark in item.iter_markers("extra") for name in mark.args):
        try:
            distribution(name)
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed: make test-extras brings it")

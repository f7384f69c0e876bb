"""Clients take data frames of any library: columns by name, the same as from arrays."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from flwr.app import Context, RecordDict
from refusals import refuses

from fedkern_flwr import clients

X = np.random.default_rng(0).random((6, 3))
NAMES = ("age", "height", "№ 3")
JOINED: dict[str, Any] = {"alignment_key": bytes(range(32)), "ids": list("abcdef")}
KEYS = {"ids_test": list("uvwxyz"), **JOINED}
NAMED = {"classes": ("no", "yes")}
WORDS = ["no", "yes", "yes", "no", "no", "yes"]
NUMBERS = [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]

#: Client, further arguments, and which it takes of labels and held-out rows.
CLIENTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "fed-cg": (clients.HybridKernelClient, {**KEYS, **NAMED}, "y x_test"),
    "fdskl": (clients.VerticalKernelClient, {**KEYS, **NAMED}, "y x_test y_test"),
    "hierarchical-svm": (clients.SVMClient, NAMED, "y x_test y_test"),
    "pof-mkl": (clients.OnlineKernelClient, {}, "y x_test"),
    "kernel-pca": (clients.KernelPCAClient, {}, "x_test"),
    "secure-gram": (clients.GramClient, {}, "x_test"),
    "ranges": (clients.RangesClient, {}, ""),
}


def make(name: str, x: Any, y: Any, x_test: Any, **more: Any) -> Any:
    """Return what has the features of a client."""
    kind, common, takes = CLIENTS[name]
    given = {"y": np.array(NUMBERS) if name == "pof-mkl" else y, "x_test": x_test, "y_test": y}
    if name == "secure-gram" and more:
        more = {"items": more["columns"]}
    found = kind(context(), x, **{n: given[n] for n in takes.split()}, **common, **more)
    return getattr(found, "table", found)


every_client = pytest.mark.parametrize("name", CLIENTS)


def of_pandas(table: pa.Table) -> Any:
    """Return a frame of pandas, where it is installed."""
    return pytest.importorskip("pandas").DataFrame(table.to_pydict())


#: Data frames of libraries that we do not know have the Arrow C stream, or the older protocol.
WRAPS: dict[str, Callable[[pa.Table], Any]] = {
    "pyarrow": lambda table: table, "pandas": of_pandas,
    "stream": lambda table: SimpleNamespace(__arrow_c_stream__=table.__arrow_c_stream__),
    "interchange": lambda table: SimpleNamespace(__dataframe__=table.__dataframe__),
}  # fmt: skip


def context() -> Context:
    config: dict[str, Any] = {"simulation": True, "partition-id": 0, "num-partitions": 5}
    return Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})


def frame(x: np.ndarray, order: tuple[int, ...] = (0, 1, 2)) -> pa.Table:
    return pa.table({NAMES[k]: x[:, k] for k in order})


@every_client
@pytest.mark.parametrize("wrap", WRAPS)
def test_a_frame_is_as_its_columns(name: str, wrap: str) -> None:
    """Held-out rows have them in any order, and more of them."""
    wanted = make(name, X, NUMBERS, X[::-1], columns=NAMES)
    held = frame(X[::-1], (2, 0, 1)).append_column("more", pa.array(["text"] * len(X)))
    given = frame(X).append_column("__index_level_0__", pa.array(range(6)))  # which is no column
    found = make(name, WRAPS[wrap](given), WORDS, WRAPS[wrap](held))
    heads = "items" if name == "secure-gram" else "columns"
    assert getattr(found, heads) == NAMES
    for attribute in ("x", "x_test", "y", "y_test"):
        if attribute in vars(wanted):
            ours, theirs = (getattr(one, attribute) for one in (found, wanted))
            assert (ours is None) == (theirs is None)
            if ours is not None:
                np.testing.assert_array_equal(ours, theirs)


@every_client
def test_named_columns_are_taken_in_their_order(name: str) -> None:
    found = make(name, frame(X), NUMBERS, frame(X), columns=NAMES[::-1][:2])
    np.testing.assert_array_equal(found.x, X[:, [2, 1]])


@every_client
def test_a_frame_that_cannot_be_used_is_refused_in_a_line(name: str) -> None:
    words = frame(X).append_column("word", pa.array(["Zeppelin"] * len(X)))
    fewer = frame(X).drop_columns([NAMES[1]])
    for table, code, named in (
        (words, "FK-COLUMN-NUMBERS", {}),
        (fewer, "FK-COLUMN-MISSING", {"columns": NAMES}),
    ):
        caught = refuses(code, make, name, table, NUMBERS, None, **named)
        assert caught.party == "partition 0"
        assert "Zeppelin" not in str(caught)


def test_series_are_labels_and_ids() -> None:
    pandas = pytest.importorskip("pandas")
    for kind in (pandas.Series, pa.array, lambda cells: pa.chunked_array([cells])):
        named = {**JOINED, "ids": kind(JOINED["ids"]), **NAMED}
        client = clients.HybridKernelClient(context(), frame(X), kind(WORDS), **named)
        np.testing.assert_array_equal(client.table.y[:, 0], 2 * np.array(NUMBERS) - 1)
        assert list(client.table.own_rows().ids) == JOINED["ids"]

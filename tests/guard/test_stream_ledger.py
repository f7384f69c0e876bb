"""Rows of streams in the ledger: entered when they take part, told apart, and never twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from hypothesis import given, settings
from hypothesis import strategies as st
from identities import pin_identities, pinned
from refusals import refused, refuses

from fedkern_flwr.clients import OnlineKernelClient, StreamClient
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.guard.ledger_file import FILE
from fedkern_flwr.guard.rows import OwnRows, Streamed
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import POFMKL, POFRLS

NODES, D, BATCH = 4, 3, 20
RNG = np.random.default_rng(0)
X, Y = RNG.uniform(-0.5, 0.5, (NODES, 400, D)), RNG.random((NODES, 400))
ALL: dict[str, Any] = {"frequencies_per_round": "all"}
HEAD = ",".join([*(f"x{k}" for k in range(D)), "y"]) + "\n"


class Federation:
    """Nodes with folders and pinned identities that are no simulation, each with a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        pin_identities(folder, NODES)
        for k in range(NODES):
            self.file(k).write_text(HEAD)

    def file(self, k: int) -> Path:
        return self.folder / f"{k}.csv"

    def grow(self, rows: slice, k: int | None = None) -> None:
        """Append rows to the file of a node, or of all."""
        for node in range(NODES) if k is None else [k]:
            with self.file(node).open("a") as file:
                for x, y in zip(X[node, rows].tolist(), Y[node, rows].tolist(), strict=True):
                    file.write(",".join(map(repr, [*x, y])) + "\n")

    def run(self, rounds: int, nodes: int = NODES, **how: Any) -> Any:
        table, batch = how.pop("table", None), how.pop("batch", BATCH)
        few = how.pop("few", None)

        def client_fn(context: Context) -> OnlineKernelClient:
            k = int(context.node_config["partition-id"])
            context.node_config["simulation"] = False
            own = {**pinned(self.folder, k), "state_dir": self.folder / f"node-{k}", **how}
            if table is not None:
                return OnlineKernelClient(context, X[k, table], Y[k, table], **own)
            return StreamClient(context, self.file(k), label="y", wait=0.0, **own)

        strategy: Any = POFRLS(
            secure=True, experts="global-ridge", forgetting=1.0, samples_per_round=batch, seed=1
        )
        if few is not None:
            strategy = POFMKL(kernels=1, features=few, secure=True, samples_per_round=batch, **ALL)
        simulate(strategy, client_fn, nodes, num_rounds=rounds)
        return strategy

    def ledger(self, k: int = 0) -> NodeLedger:
        return NodeLedger(self.folder / f"node-{k}", k)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def rewrite(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    head, *rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([head, *change(rows)]))


# -- whole runs


def test_later_rows_are_learned_in_later_runs(federation: Federation) -> None:
    """A run goes on where the last one ended; what was not needed for a message waits."""
    federation.grow(slice(0, 50))
    first = federation.run(40)
    federation.grow(slice(50, 100))
    second = federation.run(60)
    for strategy, rows in ((first, slice(0, 40)), (second, slice(40, 100))):
        x, y = X[:, rows].reshape(-1, D), Y[:, rows].ravel() - 0.5
        phi = np.column_stack([x, np.ones(len(x))])
        expected = np.linalg.solve(phi.T @ phi + 1e-3 * np.eye(D + 1), phi.T @ y)
        np.testing.assert_allclose(strategy.model()[0]["raw"][0], expected, rtol=0, atol=1e-9)
    assert [run.rows for run in federation.ledger().runs()] == [40, 60]
    assert [run.sums for run in federation.ledger().runs()] == [("update",), ("update",)]
    assert federation.ledger().refusals() == []


@pytest.mark.parametrize("dropped", [0, 1, 7])
def test_the_same_rows_again_are_refused(federation: Federation, dropped: int) -> None:
    """Also where a few of them are gone, so that each has another place and other neighbours."""
    federation.grow(slice(0, 60))
    federation.run(40)
    rewrite(federation.file(0), lambda rows: rows[dropped:])
    if not dropped:
        with sqlite3.connect(federation.folder / "node-0" / FILE) as db:
            db.execute("DELETE FROM facts")
            db.execute("DELETE FROM seen")
    refuses("FK-LEDGER-STREAM", federation.run, 40)


def test_a_table_of_the_same_rows_is_refused(federation: Federation) -> None:
    federation.grow(slice(0, 60))
    federation.run(40)
    refuses("FK-LEDGER-STREAM", federation.run, 40, table=slice(20, 80), batch="auto")


@pytest.mark.promise("stream-after-a-table")
def test_a_stream_of_rows_of_a_table_is_refused(federation: Federation) -> None:
    federation.run(40, table=slice(0, 60), batch=10, few=1)
    federation.grow(slice(50, 120))
    refuses("FK-LEDGER-STREAM", federation.run, 40)


def test_equal_rows_of_a_stream_are_rows_of_their_own(federation: Federation) -> None:
    """A sensor that stands still is no row that comes again."""
    federation.grow(slice(0, 20))
    for _ in range(4):
        federation.grow(slice(0, 5))
    federation.run(20)
    assert federation.run(20).history_[-1]["survivors"] == NODES
    assert [run.rows for run in federation.ledger().runs()] == [20, 20]


def test_few_samples_per_message_are_no_few_rows_apart(federation: Federation) -> None:
    """Messages of two rows each: sums over rows that have nothing in common."""
    federation.grow(slice(0, 40))
    for _ in range(2):
        assert federation.run(16, batch=2, few=1).history_[-1]["survivors"] == NODES


def test_too_few_samples_are_refused_as_of_tables(federation: Federation) -> None:
    """What counts is what a message takes, not what the stream may have."""
    federation.grow(slice(0, 60))
    refuses("FK-POLICY-COUNTING", federation.run, 16, batch=1, few=9)
    assert federation.ledger().place() == ""


@pytest.mark.promise("stream-columns")
def test_columns_of_two_values_hide_less(federation: Federation) -> None:
    federation.grow(slice(0, 60))
    usual = federation.run(40, batch="auto").plan_.stops
    for k in range(NODES):
        federation.file(k).write_text(HEAD)
        X[k, 100:160, :2] = X[k, 100:160, :2] > 0
    federation.grow(slice(100, 160))
    assert federation.run(40, batch="auto").plan_.stops[0] > usual[0]


def test_a_plain_run_reads_on_as_well(federation: Federation, tmp_path: Path) -> None:
    """It shows rows anyway: nothing is compared, but the place moves."""
    federation.grow(slice(0, 60))

    def client_fn(context: Context) -> StreamClient:
        k = int(context.node_config["partition-id"])
        context.node_config["simulation"] = False
        own = {"state_dir": tmp_path / f"node-{k}", "policy": policy}
        return StreamClient(context, federation.file(k), label="y", wait=0.0, **own)

    policy = NodePolicy(require_secure_sums=False)

    for rounds in (25, 35):
        strategy = POFRLS(secure=False, samples_per_round=5)
        simulate(strategy, client_fn, NODES, num_rounds=rounds)
        assert strategy.history_[-1]["round"] == rounds
    assert [run.rows for run in federation.ledger().runs()] == [25, 35]


# -- the ledger by itself


def rows_of(numbers: Any, ids: Any = None) -> OwnRows:
    x = np.array(numbers, np.float64).reshape(-1, 1)
    return OwnRows([(x,)], ids, len(x))


def opened(folder: Path, session: str) -> NodeLedger:
    ledger, what = NodeLedger(folder), {"kind": "K", "method": "m", "secure": True, "pinned": True}
    ledger.open_run(session, rows=OwnRows(), **what)
    return ledger


@settings(max_examples=25, deadline=None)
@given(
    messages=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=6),
    again=st.integers(0, 30),
    many=st.integers(1, 6),
)
def test_any_row_again_is_known_and_no_new_one(
    messages: list[list[int]], again: int, many: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A file read on is new however alike its rows are; read from its beginning it is known."""
    folder = tmp_path_factory.mktemp("ledger")
    for number, message in enumerate(messages):
        ledger = opened(folder, f"s{number // 2}")
        ledger.take(f"s{number // 2}", Streamed(rows_of(message), str(number)), compare=True)
        assert ledger.place() == str(number)
    assert sum(run.rows for run in ledger.runs()) == sum(map(len, messages))
    whole = [value for message in messages for value in message]
    last = opened(folder, "last")
    part = whole[: again % len(whole) + 1][:many]
    with refused("FK-LEDGER-STREAM"):
        last.take("last", Streamed(rows_of(part), "x", anew=True), compare=True)
    assert last.place() == str(len(messages) - 1)


def test_names_know_a_row_whose_content_was_edited(tmp_path: Path) -> None:
    ledger = opened(tmp_path, "a")
    ledger.take("a", Streamed(rows_of([1, 2], ["p", "q"]), "2"), compare=True)
    for session, ids in (("a", ["q", "r"]), ("b", ["q", "r"]), ("b", ["t", "t"])):
        opened(tmp_path, session)
        with refused("FK-LEDGER-STREAM", "FK-STREAM-TWICE"):
            ledger.take(session, Streamed(rows_of([7, 8], ids), "4"), compare=True)
    ledger.take("b", Streamed(rows_of([1, 2], ["r", "s"]), "4"), compare=True)


@pytest.mark.promise("stream-rows")
def test_a_row_is_in_one_run(tmp_path: Path) -> None:
    ledger = opened(tmp_path, "a")
    for n in range(3):
        ledger.take("a", Streamed(rows_of([n]), str(n)), compare=True)
    opened(tmp_path, "c")
    with refused("FK-LEDGER-STREAM"):
        ledger.take("c", Streamed(rows_of([0]), "0", anew=True), compare=True)

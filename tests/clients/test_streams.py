"""Streams: rows that come while a run goes on; the same numbers as from a table; who is late."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from refusals import refused, refuses

from fedkern_flwr.clients import OnlineKernelClient, StreamClient
from fedkern_flwr.online import ridge
from fedkern_flwr.online.source import IteratorSource, Place
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import OFSKL, POFMKL, POFRLS, VMKOFL, LocalOnly, PerFedAvg

ROWS, FEW, CLIENTS = 48, 20, 5

Make = Callable[..., Any]

METHODS: dict[str, Callable[..., Any]] = {
    "pof-rls": lambda **o: POFRLS(**{"samples_per_round": 10, "seed": 1, **o}),
    "pof-rls secure": lambda **o: POFRLS(secure=True, seed=1, **o),
    "pof-mkl": lambda **o: POFMKL(kernels=5, samples_per_round=5, seed=1, **o),
    "pof-mkl secure": lambda **o: POFMKL(kernels=5, features=3, secure=True, seed=1, **o),
    "vm-kofl": lambda **o: VMKOFL(kernels=5, seed=1, **o),
    "ofskl": lambda **o: OFSKL(features=5, seed=1, **o),
    "local-only": lambda **o: LocalOnly(kernels=5, seed=1, **o),
}

NAMES = ("a", "b", "c", "d")


def number(context: Context) -> int:
    return int(context.node_config["partition-id"])


def rows_of(streams: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    return streams.tables[k]["x"], streams.tables[k]["y"]


def learned(method: str, client_fn: Any, clients: int = 3, rounds: int = ROWS, **how: Any) -> Any:
    """Return a strategy that has run."""
    strategy = METHODS[method](**how)
    simulate(strategy, client_fn, clients, num_rounds=rounds)
    return strategy


def iterators(streams: Any, **how: Any) -> Callable[[Context], Any]:
    """Serve streams as iterators that are made anew with every client."""

    def client_fn(context: Context) -> StreamClient:
        k = number(context)
        rows = zip(*rows_of(streams, k), strict=True)
        return StreamClient(context, rows, **{"wait": 0.0, **how})

    return client_fn


def from_sources(sources: list[Any]) -> Callable[[Context], Any]:
    """Serve sources that live as long as the run."""
    return lambda context: StreamClient(context, sources[number(context)])


def lines(x: np.ndarray, y: np.ndarray, kind: str = "csv") -> Iterator[str]:
    for row, label in zip(x.tolist(), y.tolist(), strict=True):
        if kind == "csv":
            yield ",".join(map(repr, [*row, label])) + "\n"
        else:
            yield json.dumps({**dict(zip(NAMES, row, strict=True)), "y": label}) + "\n"


HEAD = ",".join([*NAMES, "y"]) + "\n"


@pytest.mark.promise("stream-as-table")
@pytest.mark.parametrize("method", METHODS)
def test_a_stream_gives_the_numbers_of_its_table(method: str, make_streams: Make) -> None:
    """Bit by bit: what is learned, told and counted."""
    streams = make_streams(3, FEW)
    table, stream = (
        learned(method, client_fn, rounds=FEW)
        for client_fn in (streams.client_fn, iterators(streams))
    )
    assert stream.metrics_ == table.metrics_
    assert stream.history_ == table.history_
    assert stream.ledger_.exchanges == table.ledger_.exchanges
    assert stream.privacy() == table.privacy()
    for name, array in table.server_state().items():
        assert np.array_equal(stream.server_state()[name], array)


def test_an_iterator_may_live_on(make_streams: Make) -> None:
    streams = make_streams(3, ROWS)
    sources = [IteratorSource(zip(*rows_of(streams, k), strict=True)) for k in range(3)]
    strategy = learned("pof-mkl", from_sources(sources))
    assert strategy.metrics_ == learned("pof-mkl", streams.client_fn).metrics_
    refuses("FK-STREAM-PAST", simulate, strategy, from_sources(sources), 3, num_rounds=ROWS)


def test_public_ranges_scale_as_they_scale_a_table(make_streams: Make) -> None:
    scaling = Scaling(np.full(4, -2.0), np.full(4, 1.0), 1.5, -1.0, 2.0, clip=True)
    raw, scaled = make_streams(3, ROWS), make_streams(3, ROWS)
    for k, table in enumerate(scaled.tables):
        table["x"], table["y"] = scaling.rows(*rows_of(raw, k))
    found = learned("pof-rls", iterators(raw, scaling=scaling))
    assert found.metrics_ == learned("pof-rls", iterators(scaled)).metrics_


# -- the end, and who is late


@pytest.mark.promise("stream-ends")
@pytest.mark.parametrize("secure", [False, True])
def test_a_run_ends_when_its_streams_do(secure: bool, make_streams: Make, caplog: Any) -> None:
    """With the model, the figures and the held-out rows of the samples that there were."""
    streams = make_streams(CLIENTS, ROWS)
    test = {"x_test": streams.tables[0]["x"][:7], "y_test": streams.tables[0]["y"][:7]}
    found, rounds = [], 1000
    for _ in range(2):
        how: dict[str, Any] = {"secure": secure, "samples_per_round": 9}
        strategy = learned("vm-kofl", iterators(streams, **test), CLIENTS, rounds, **how)
        rounds = strategy.history_[-1]["round"]
        found.append(strategy)
    assert rounds == 45
    assert found[0].metrics_ == found[1].metrics_
    assert "test_mse" in found[0].metrics_
    assert caplog.text.count("5 streams have ended: the run ends after 5 messages") == 1


class Late:
    """A source that has no rows at some looks."""

    def __init__(self, x: np.ndarray, y: np.ndarray, gone: set[int]) -> None:
        self._rows, self._gone, self.looks = IteratorSource(zip(x, y, strict=True)), gone, 0

    def names(self, wait: float) -> tuple[str, ...]:
        return self._rows.names(wait)

    def take(self, place: Place, rows: int, wait: float) -> Any:
        self.looks += 1
        return self._rows.take(place, 0 if self.looks in self._gone else rows, wait)


def delayed(streams: Any, gone: set[int], who: range = range(1, 2)) -> Any:
    """Serve streams, of which some have no rows at some looks."""
    each = (gone if k in who else set() for k in range(CLIENTS))
    return from_sources([Late(*rows_of(streams, k), away) for k, away in enumerate(each)])


@pytest.mark.parametrize("secure", [False, True])
def test_who_is_late_has_no_part_and_its_rows_wait(secure: bool, make_streams: Make) -> None:
    """The first two global learners are ridge regressions of the rows that took part."""
    streams = make_streams(CLIENTS, ROWS)
    how: dict[str, Any] = {"experts": "global-ridge", "forgetting": 1.0, "secure": secure}
    strategy = learned("pof-rls", delayed(streams, {3}), CLIENTS, 30, samples_per_round=6, **how)
    stops = strategy.plan_.stops
    missed = stops[1] - stops[0]  # the second message: after a look at the beginning, the third
    assert [row["survivors"] for row in strategy.history_] == [
        CLIENTS - (n == 1) for n in range(len(stops))
    ]
    matrix, vector = 1e-3 * np.eye(5), np.zeros(5)
    for k in range(CLIENTS):
        n = 30 - missed * (k == 1)
        phi = np.column_stack([streams.tables[k]["x"][:n], np.ones(n)])
        matrix, vector = matrix + phi.T @ phi, vector + phi.T @ (streams.tables[k]["y"][:n] - 0.5)
    found = strategy.model()[0]["raw"][0]
    np.testing.assert_allclose(found, np.linalg.solve(matrix, vector), rtol=0, atol=1e-9)


@pytest.mark.promise("stream-whole-in-sums")
def test_features_are_summed_of_those_who_had_part_in_all_messages(make_streams: Make) -> None:
    """Of who was late in one of them none, and later ones again; the rows are the next ones."""
    streams = make_streams(CLIENTS, ROWS)
    strategy = learned("pof-rls secure", delayed(streams, {3}), CLIENTS, features=6, width=1.0)
    plan, several = strategy.plan_, strategy.plan_.sums.index(True)
    assert several > 1  # the first features are of more than two messages
    survivors = [CLIENTS - (n in (1, several)) for n in range(len(plan.stops))]
    assert [row["survivors"] for row in strategy.history_] == survivors
    lengths = np.diff((0, *plan.stops))
    late = int(lengths[1] + lengths[several])  # samples that client 1 had no part in
    matrix, vector = 1e-3 * np.eye(12), np.zeros(12)
    for n in np.flatnonzero(plan.sums):
        for k in range(CLIENTS):
            if k == 1 and n == several:
                continue
            rows = slice(plan.starts[n] - late * (k == 1), plan.stops[n] - late * (k == 1))
            width = np.array([1.0]).astype("<f8").tobytes()
            x, y = (part[rows] for part in rows_of(streams, k))
            phi = ridge.kernel_rows(x, width, 6, strategy.run_seed)[0]
            matrix, vector = matrix + phi.T @ phi, vector + phi.T @ (y - 0.5)
    found = strategy.model()[0]["kernels"][0]
    np.testing.assert_allclose(found, np.linalg.solve(matrix, vector), rtol=0, atol=1e-8)


@pytest.mark.parametrize("secure", [False, True])
def test_messages_of_few_rows_end_a_run(secure: bool, make_streams: Make, caplog: Any) -> None:
    streams = make_streams(CLIENTS, ROWS)
    for often, ends in ((2, False), (100, True)):
        gone = set(range(4, 4 + often))
        how: dict[str, Any] = {"secure": secure, "samples_per_round": 4, "max_missed": 3}
        strategy = learned("vm-kofl", delayed(streams, gone, range(CLIENTS)), CLIENTS, **how)
        lost = [row["survivors"] for row in strategy.history_].count(0)
        assert lost == 2
        assert strategy.history_[-1]["round"] == (16 if ends else 48)
    assert "5 streams have ended" in caplog.text


BAD = ["1,2,3,4\n", "1,,3,4,5\n", "1,2,x,4,5\n", "1,2,3,4,nan\n", "inf,2,3,4,5\n", "1,2,3,4,5,6\n"]

BAD_JSON = ["{]\n", "[1]\n", '{"a": 1}\n', '{"a": "x", "b": 1, "c": 1, "d": 1, "y": 1}\n']


@pytest.mark.parametrize(("kind", "bad"), [("csv", BAD), ("jsonl", BAD_JSON)])
def test_rows_of_files_that_are_none_are_left_out_and_told_of_without_their_values(
    kind: str, bad: list[str], make_streams: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The others, and held-out rows, give the numbers of their table."""
    streams, rng = make_streams(3, FEW), np.random.default_rng(0)
    paths = [tmp_path / f"0.{kind}", tmp_path / "1", tmp_path / "2"]
    test = {"x_test": streams.tables[0]["x"][:7], "y_test": streams.tables[0]["y"][:7]}
    for k, path in enumerate(paths):
        own = list(lines(*rows_of(streams, k), kind))
        for line in bad:
            own.insert(rng.integers(len(own)), line.replace("x", "Mallory"))
        text = (HEAD if kind == "csv" else "") + "\n".join(line.strip() for line in own) + "\n\n"
        path.write_text(text)

    def table(context: Context) -> OnlineKernelClient:
        return OnlineKernelClient(context, *rows_of(streams, number(context)), **test)

    def files(context: Context) -> StreamClient:
        return StreamClient(context, paths[number(context)], label="y", wait=0.0, **test)

    strategy = learned("pof-rls", files, rounds=FEW)
    assert strategy.metrics_ == learned("pof-rls", table, rounds=FEW).metrics_
    assert "test_mse" in strategy.metrics_
    assert "rows of the stream that are left out: " in caplog.text
    assert "with gaps" in caplog.text
    told = [int(number) for number in re.findall(r"left out: (\d+) \(", caplog.text)]
    assert sum(told) == 3 * len(bad)
    assert "Mallory" not in caplog.text + str(strategy.result())


@pytest.mark.promise("stream-own-machine")
@pytest.mark.parametrize(("how", "code"), [
    ({"wait": -1.0}, "FK-OPTION-RANGE"), ({"label": None}, "FK-LABELS-MISSING"),
    ({"stream": "10.0.0.7:80"}, "FK-STREAM-HOST"),
    *(({"stream": place}, "FK-STREAM-SOCKET") for place in ("127.0.0.1:0", "unix:")),
    ({"stream": "unix:/run/x"}, "FK-STREAM-FOLDER"), ({"simulation": False}, "FK-STREAM-FOLDER"),
])  # fmt: skip
def test_what_can_be_no_stream_is_refused(how: dict[str, Any], code: str) -> None:
    given = {"stream": "s.csv", "label": "y", "simulation": True, **how}
    config = {"partition-id": 0, "num-partitions": 1, "simulation": given.pop("simulation")}
    refuses(code, StreamClient, Context(1, 1, config, RecordDict(), {}), **given)


def test_a_run_that_streams_cannot_serve_is_refused(make_streams: Make) -> None:
    short = make_streams(3, ROWS)
    for table in short.tables:
        table |= {"x": table["x"][:3], "y": table["y"][:3]}
    refuses("FK-STREAM-SHORT", simulate, METHODS["pof-mkl"](), iterators(short), 3)
    with refused("FK-ROWS-FEW"):  # of a table: it is known before anything is asked
        learned("pof-mkl", short.client_fn, rounds=16)
    with refused("FK-PARTIES-LOST"):
        simulate(PerFedAvg(), iterators(make_streams(3, ROWS)), 3, num_rounds=4)

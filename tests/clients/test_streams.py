"""Streams: rows that come while a run goes on; the same numbers as from a table; who is late."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import PowerCutError
from flwr.app import Context, RecordDict
from refusals import refused

from fedkern_flwr.clients import OnlineKernelClient, StreamClient
from fedkern_flwr.online import ridge
from fedkern_flwr.online.source import IteratorSource, Place
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import OFSKL, POFMKL, POFRLS, VMKOFL, LocalOnly, PerFedAvg

ROWS, CLIENTS = 48, 5

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


def iterators(streams: Any, **how: Any) -> Callable[[Context], Any]:
    """Serve streams as iterators that are made anew with every client."""

    def client_fn(context: Context) -> StreamClient:
        k = number(context)
        rows = ((streams.x[k][t], streams.y[k][t]) for t in range(len(streams.x[k])))
        return StreamClient(context, rows, **{"wait": 0.0, **how})

    return client_fn


def lines(x: np.ndarray, y: np.ndarray, kind: str = "csv") -> Iterator[str]:
    for row, label in zip(x.tolist(), y.tolist(), strict=True):
        if kind == "csv":
            yield ",".join(map(repr, [*row, label])) + "\n"
        else:
            yield json.dumps({**dict(zip(NAMES, row, strict=True)), "y": label}) + "\n"


HEAD = ",".join([*NAMES, "y"]) + "\n"


def write(path: Path, x: np.ndarray, y: np.ndarray, kind: str = "csv") -> Path:
    path.write_text((HEAD if kind == "csv" else "") + "".join(lines(x, y, kind)))
    return path


@pytest.mark.promise("stream-as-table")
@pytest.mark.parametrize("method", METHODS)
def test_a_stream_gives_the_numbers_of_its_table(method: str, make_streams: Make) -> None:
    """Bit by bit: what is learned, told and counted."""
    streams = make_streams(CLIENTS, ROWS)
    found = []
    for client_fn in (streams.client_fn, iterators(streams)):
        strategy = METHODS[method]()
        simulate(strategy, client_fn, CLIENTS, num_rounds=ROWS)
        found.append(strategy)
    table, stream = found
    assert stream.metrics_ == table.metrics_
    assert stream.history_ == table.history_
    assert stream.ledger_.exchanges == table.ledger_.exchanges
    assert stream.privacy() == table.privacy()
    for name, array in table.server_state().items():
        assert np.array_equal(stream.server_state()[name], array)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_files_and_held_out_rows_as_well(kind: str, make_streams: Make, tmp_path: Path) -> None:
    streams = make_streams(3, ROWS)
    test = {"x_test": streams.x[0][:7], "y_test": streams.y[0][:7]}
    for k in range(3):
        write(tmp_path / f"{k}.{kind}", streams.x[k], streams.y[k], kind)

    def table(context: Context) -> OnlineKernelClient:
        k = number(context)
        return OnlineKernelClient(context, streams.x[k], streams.y[k], **test)

    def files(context: Context) -> StreamClient:
        path = tmp_path / f"{number(context)}.{kind}"
        return StreamClient(context, path, label="y", wait=0.0, **test)

    found = [METHODS["pof-rls"](), METHODS["pof-rls"]()]
    for strategy, client_fn in zip(found, (table, files), strict=True):
        simulate(strategy, client_fn, 3, num_rounds=ROWS)
    assert found[0].metrics_ == found[1].metrics_
    assert "test_mse" in found[1].metrics_


def test_an_iterator_may_live_on(make_streams: Make) -> None:
    streams = make_streams(3, ROWS)
    pairs = [zip(streams.x[k], streams.y[k], strict=True) for k in range(3)]
    sources = [IteratorSource(pair) for pair in pairs]
    strategy, table = METHODS["pof-mkl"](), METHODS["pof-mkl"]()
    simulate(strategy, lambda c: StreamClient(c, sources[number(c)]), 3, num_rounds=ROWS)
    simulate(table, streams.client_fn, 3, num_rounds=ROWS)
    assert strategy.metrics_ == table.metrics_
    with refused("FK-STREAM-PAST"):
        simulate(strategy, lambda c: StreamClient(c, sources[number(c)]), 3, num_rounds=ROWS)


def test_public_ranges_scale_as_they_scale_a_table(make_streams: Make) -> None:
    scaling = Scaling(np.full(4, -2.0), np.full(4, 1.0), 1.5, -1.0, 2.0, clip=True)
    raw, scaled, found = make_streams(3, ROWS), make_streams(3, ROWS), []
    for k in range(3):
        scaled.x[k], scaled.y[k] = scaling.rows(raw.x[k], raw.y[k])
    for source, how in ((scaled, {}), (raw, {"scaling": scaling})):
        strategy = METHODS["pof-rls"]()
        simulate(strategy, iterators(source, **how), 3, num_rounds=ROWS)
        found.append(strategy.metrics_)
    assert found[0] == found[1]


@pytest.mark.parametrize("secure", [False, True])
def test_a_run_goes_on_where_it_broke_off(secure: bool, make_streams: Make, tmp_path: Path) -> None:
    """The place is kept with the weights: rows are neither repeated nor left out."""
    how: dict[str, Any] = {"secure": secure, "samples_per_round": 8, "checkpoint_every": 1}
    client_fn = iterators(make_streams(3, ROWS), state_dir=tmp_path / "nodes")
    whole = METHODS["pof-rls"](**how)
    simulate(whole, client_fn, 3, num_rounds=ROWS)
    broken = METHODS["pof-rls"](**how, checkpoint=tmp_path / "c.npz")

    def stop(done: int, *_: Any) -> None:
        if done == 4:
            raise PowerCutError

    broken.on_round = stop
    with pytest.raises(PowerCutError):
        simulate(broken, client_fn, 3, num_rounds=ROWS)
    resumed = METHODS["pof-rls"](**how, checkpoint=tmp_path / "c.npz", resume=True)
    simulate(resumed, client_fn, 3, num_rounds=ROWS)
    assert resumed.metrics_ == whole.metrics_


# -- the end, and who is late


@pytest.mark.promise("stream-ends")
@pytest.mark.parametrize("secure", [False, True])
def test_a_run_ends_when_its_streams_do(
    secure: bool, make_streams: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """With the model, the figures and the held-out rows of the samples that there were."""
    streams = make_streams(CLIENTS, ROWS)
    test = {"x_test": streams.x[0][:7], "y_test": streams.y[0][:7]}
    found, rounds = [], 1000
    for _ in range(2):
        strategy = METHODS["vm-kofl"](secure=secure, samples_per_round=9)
        simulate(strategy, iterators(streams, **test), CLIENTS, num_rounds=rounds)
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


@pytest.mark.parametrize("secure", [False, True])
def test_who_is_late_has_no_part_in_a_message_and_its_rows_wait(
    secure: bool, make_streams: Make
) -> None:
    """The first two global learners are ridge regressions of the rows that took part."""
    streams = make_streams(CLIENTS, ROWS)
    sources = [Late(streams.x[k], streams.y[k], {3} if k == 1 else set()) for k in range(CLIENTS)]
    strategy = METHODS["pof-rls"](
        secure=secure, samples_per_round=6, experts="global-ridge", forgetting=1.0
    )
    simulate(strategy, lambda c: StreamClient(c, sources[number(c)]), CLIENTS, num_rounds=30)
    stops = strategy.plan_.stops
    missed = stops[1] - stops[0]  # the second message: after a look at the beginning, the third
    assert [row["survivors"] for row in strategy.history_] == [
        CLIENTS - (n == 1) for n in range(len(stops))
    ]
    matrix, vector = 1e-3 * np.eye(5), np.zeros(5)
    for k in range(CLIENTS):
        n = 30 - missed * (k == 1)
        phi = np.column_stack([streams.x[k][:n], np.ones(n)])
        matrix, vector = matrix + phi.T @ phi, vector + phi.T @ (streams.y[k][:n] - 0.5)
    found = strategy.model()[0]["raw"][0]
    np.testing.assert_allclose(found, np.linalg.solve(matrix, vector), rtol=0, atol=1e-9)


@pytest.mark.promise("stream-whole-in-sums")
def test_features_are_summed_of_those_who_had_part_in_all_messages_about_them(
    make_streams: Make,
) -> None:
    """Of who was late in one of them none, and later ones again; the rows are the next ones."""
    streams = make_streams(CLIENTS, ROWS)
    sources = [Late(streams.x[k], streams.y[k], {3} if k == 1 else set()) for k in range(CLIENTS)]
    strategy = METHODS["pof-rls secure"](features=6, width=1.0)
    simulate(strategy, lambda c: StreamClient(c, sources[number(c)]), CLIENTS, num_rounds=ROWS)
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
            phi = ridge.kernel_rows(streams.x[k][rows], width, 6, strategy.run_seed)[0]
            matrix, vector = matrix + phi.T @ phi, vector + phi.T @ (streams.y[k][rows] - 0.5)
    found = strategy.model()[0]["kernels"][0]
    np.testing.assert_allclose(found, np.linalg.solve(matrix, vector), rtol=0, atol=1e-8)


@pytest.mark.parametrize("secure", [False, True])
def test_messages_without_enough_rows_are_lost_and_end_a_run_in_the_end(
    secure: bool, make_streams: Make, caplog: pytest.LogCaptureFixture
) -> None:
    streams = make_streams(CLIENTS, ROWS)
    for often, ends in ((2, False), (100, True)):
        gone = set(range(4, 4 + often))
        sources = [Late(streams.x[k], streams.y[k], gone) for k in range(CLIENTS)]
        strategy = METHODS["vm-kofl"](secure=secure, samples_per_round=4, max_missed=3)
        simulate(strategy, lambda c, s=sources: StreamClient(c, s[number(c)]), 5, num_rounds=48)
        lost = [row["survivors"] for row in strategy.history_].count(0)
        assert lost == 2
        assert strategy.history_[-1]["round"] == (16 if ends else 48)
    assert "5 streams have ended" in caplog.text


BAD = ["1,2,3,4\n", "1,,3,4,5\n", "1,2,x,4,5\n", "1,2,3,4,nan\n", "inf,2,3,4,5\n", "1,2,3,4,5,6\n"]

BAD_JSON = ["{]\n", "[1]\n", '{"a": 1}\n', '{"a": "x", "b": 1, "c": 1, "d": 1, "y": 1}\n']


@pytest.mark.parametrize(("kind", "bad"), [("csv", BAD), ("jsonl", BAD_JSON)])
def test_rows_that_are_none_are_left_out_and_told_of_without_their_values(
    kind: str, bad: list[str], make_streams: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    streams, rng = make_streams(3, ROWS), np.random.default_rng(0)
    for k in range(3):
        own = list(lines(streams.x[k], streams.y[k], kind))
        for line in bad:
            own.insert(1 + rng.integers(len(own)), line.replace("x", "Mallory"))
        text = (HEAD if kind == "csv" else "") + "\n".join(line.strip() for line in own) + "\n\n"
        (tmp_path / f"{k}").write_text(text)

    def files(context: Context) -> StreamClient:
        return StreamClient(context, tmp_path / f"{number(context)}", label="y", wait=0.0)

    strategy, table = METHODS["pof-rls"](), METHODS["pof-rls"]()
    simulate(strategy, files, 3, num_rounds=ROWS)
    simulate(table, streams.client_fn, 3, num_rounds=ROWS)
    assert strategy.metrics_ == table.metrics_
    assert "rows of the stream that are left out: " in caplog.text
    assert "with gaps" in caplog.text
    told = [int(number) for number in re.findall(r"left out: (\d+) \(", caplog.text)]
    assert sum(told) == 3 * len(bad)
    assert "Mallory" not in caplog.text + str(strategy.result())


@pytest.mark.promise("stream-own-machine")
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"wait": -1.0}, "FK-OPTION-RANGE"),
        ({"label": None}, "FK-LABELS-MISSING"),
        ({"stream": "10.0.0.7:80"}, "FK-STREAM-HOST"),
        *(({"stream": place}, "FK-STREAM-SOCKET") for place in ("127.0.0.1:0", "unix:")),
        ({"stream": "unix:/run/x"}, "FK-STREAM-FOLDER"),
        ({"simulation": False}, "FK-STREAM-FOLDER"),
    ],
)
def test_what_can_be_no_stream_is_refused(how: dict[str, Any], code: str) -> None:
    given = {"stream": "s.csv", "label": "y", "simulation": True, **how}
    config = {"partition-id": 0, "num-partitions": 1, "simulation": given.pop("simulation")}
    with refused(code):
        StreamClient(Context(1, 1, config, RecordDict(), {}), **given)


def test_a_run_that_streams_cannot_serve_is_refused(make_streams: Make) -> None:
    short = make_streams(3, ROWS)
    for k in range(3):
        short.x[k], short.y[k] = short.x[k][:3], short.y[k][:3]
    with refused("FK-STREAM-SHORT"):
        simulate(METHODS["pof-mkl"](), iterators(short), 3)
    with refused("FK-ROWS-FEW"):  # of a table: it is known before anything is asked
        simulate(METHODS["pof-mkl"](), short.client_fn, 3, num_rounds=16)
    with refused("FK-PARTIES-LOST"):
        simulate(PerFedAvg(), iterators(make_streams(3, ROWS)), 3, num_rounds=4)


@pytest.mark.parametrize(
    ("x", "y", "code"),
    [
        (np.zeros((4, 3)), np.array([0.0, np.nan, 0.0, 0.0]), "FK-VALUES-FINITE"),
        (np.full((4, 3), np.inf), np.zeros(4), "FK-VALUES-FINITE"),
        (np.zeros(4), np.zeros(4), "FK-SHAPE-DIFFERS"),
        (np.zeros((4, 2)), np.zeros(3), "FK-SHAPE-DIFFERS"),
        (np.zeros((4, 2)), None, "FK-LABELS-MISSING"),
        (np.full((4, 2), "a", object), np.zeros(4), "FK-COLUMN-NUMBERS"),
        (np.zeros((4, 2)), np.full(4, "a"), "FK-COLUMN-NUMBERS"),
    ],
)
def test_a_table_that_can_be_no_stream_is_refused(x: Any, y: Any, code: str) -> None:
    with refused(code):
        simulate(POFMKL(), lambda context: OnlineKernelClient(context, x, y), 1, num_rounds=2)

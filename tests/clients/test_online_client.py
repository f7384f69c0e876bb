"""The online client by itself: what it refuses, what it keeps, what it tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr.clients import OnlineKernelClient, PhaseClient
from fedkern_flwr.errors import OptionError, ProtocolError, TableError
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.strategies import EMKOFL, OFSKL, POFMKL, VMKOFL, LocalOnly, OFMKLAvg, PerFedAvg
from fedkern_flwr.wire import DescribeReply, DescribeRequest

ROWS = 10
OPENING = DescribeRequest(session="abc", method="pof-mkl", resume_round=0)


def context(config: dict[str, Any] | None = None) -> Context:
    config = (
        {"simulation": True, "partition-id": 2, "num-partitions": 4} if config is None else config
    )
    return Context(run_id=1, node_id=9, node_config=config, state=RecordDict(), run_config={})


def client(at: Context | None = None, **more: Any) -> OnlineKernelClient:
    rng = np.random.default_rng(0)
    data = {"x": rng.random((ROWS, 3)), "y": rng.random(ROWS), **more}
    return OnlineKernelClient(at or context(), data.pop("x"), data.pop("y"), **data)


def ask(served: PhaseClient, request: Any, **change: Any) -> Any:
    """Send a request as Flower does; return the metrics of the reply."""
    _, _, metrics = served.fit(request.arrays(), {**request.scalars(), **change})
    return metrics


def test_a_new_session_starts_from_nothing() -> None:
    served = client()
    ask(served, OPENING)
    served.close_round(served.open_round("abc", 1, 0), 1, b"weights", 0)
    ask(served, DescribeRequest(session="next", method="pof-mkl", resume_round=0))
    assert SessionState.load(served.context) == SessionState(session="next")


def test_a_stream_too_short_for_the_run_is_named(make_streams: Callable[..., Any]) -> None:
    streams = make_streams(3, 20)
    streams.x[1], streams.y[1] = streams.x[1][:15], streams.y[1][:15]
    text = "partition 1: its stream has 15 rows, 16 rounds need 16; ask for at most 15 rounds"
    with pytest.raises(TableError, match=text):
        simulate(POFMKL(kernels=3), streams.client_fn, 3, num_rounds=16)


@pytest.mark.parametrize("where", ["x", "y", "x_test", "y_test"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_with_nan_are_refused_at_the_start(where: str, value: float) -> None:
    rng = np.random.default_rng(0)
    data = {"x": rng.random((4, 3)), "y": rng.random(4)}
    data |= {"x_test": rng.random((4, 3)), "y_test": rng.random(4)}
    data[where].flat[1] = value
    with pytest.raises(TableError, match="partition 2: NaN or infinite values; clean the table"):
        ask(client(**data), DescribeRequest(session="s", method="m", resume_round=0))


def test_nan_rows_stop_the_run_with_the_partition_named(make_streams: Callable[..., Any]) -> None:
    streams = make_streams(3, 20)
    streams.y[2][7] = np.nan
    text = "partition 2, phase describe: NaN or infinite values"
    with pytest.raises(ProtocolError, match=text):
        simulate(POFMKL(kernels=3), streams.client_fn, 3, num_rounds=5)


@pytest.mark.parametrize(
    ("x", "y"), [((4,), (4,)), ((4, 2), (4, 1)), ((4, 2), (3,)), ((2, 2, 2), (2,))]
)
def test_shapes_that_do_not_fit_are_refused(x: tuple[int, ...], y: tuple[int, ...]) -> None:
    served = client(x=np.zeros(x), y=np.zeros(y))
    with pytest.raises(TableError, match=r"partition 2: features of shape .* do not fit; pass x"):
        ask(served, DescribeRequest(session="s", method="m", resume_round=0))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, 'no whole number partition-id; start the SuperNode with --node-config "partition-id'),
        ({"partition-id": 0}, "no whole number num-partitions; add num-partitions=..."),
        ({"partition-id": "0", "num-partitions": 1}, "no whole number partition-id"),
        ({"partition-id": True, "num-partitions": 1}, "no whole number partition-id"),
        ({"partition-id": 3, "num-partitions": 3}, r"partition-id 3 is outside 0\.\.2"),
        ({"partition-id": -1, "num-partitions": 3}, r"partition-id -1 is outside 0\.\.2"),
    ],
)
def test_a_wrong_node_configuration_is_refused(config: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        client(context(config))


@pytest.mark.parametrize("phase", ["", "fdskl-phases", "x" * 100])
def test_an_unknown_phase_is_refused(phase: str) -> None:
    text = "partition 2: OnlineKernelClient does not take part in phase '.{0,40}'; serve the client"
    with pytest.raises(ProtocolError, match=text):
        ask(client(), OPENING, phase=phase)


def test_the_description_holds_sizes_and_no_values() -> None:
    served = client(x_test=np.zeros((2, 3)), y_test=np.zeros(2), columns=("a", "b", "c"))
    arrays, samples, metrics = served.fit(
        [], DescribeRequest(session="s", method="m", resume_round=0).scalars()
    )
    reply = DescribeReply.unpack(arrays, metrics, party="node 9")
    assert (reply.partition, reply.partitions, reply.role) == (2, 4, "client")
    assert (reply.rows, reply.features, reply.test_rows) == (ROWS, 3, 2)
    assert samples == 0
    assert arrays == []


@pytest.mark.parametrize("method", [POFMKL, OFSKL, OFMKLAvg, VMKOFL, EMKOFL, LocalOnly, PerFedAvg])
def test_a_node_keeps_2n_plus_4_numbers_and_no_rows(
    method: Any, make_streams: Callable[..., Any], tmp_path: Path
) -> None:
    streams = make_streams(2, 20, state_dir=tmp_path)
    strategy = method(checkpoint=tmp_path / "run.npz", checkpoint_every=1)
    simulate(strategy, streams.client_fn, 2, num_rounds=15)
    kernels = {OFSKL: 1, PerFedAvg: 0}.get(method, 51)
    more = 2 + 51 * 40 if method is LocalOnly else 0  # the model is the client's own
    saved = [path.read_bytes() for path in tmp_path.rglob("*.state")]
    assert saved
    for k in range(2):
        records = streams.contexts[k].state
        assert list(records) == ["fedkern"]
        assert set(records["fedkern"]) <= {"session", "round", "payload"}
        assert streams.numbers(k).size == 2 * kernels + 4 + more
        blob = bytes(records["fedkern"]["payload"])
        for state in (blob, *saved):
            assert len(state) == 8 * (2 * kernels + 4 + more)
            for row in (*streams.x[k][:15].ravel(), *streams.y[k][:15]):
                assert np.float64(row).tobytes() not in state


@pytest.mark.parametrize("method", [POFMKL, OFMKLAvg, VMKOFL, EMKOFL, LocalOnly])
@pytest.mark.parametrize("step_size", ["paper", "adaptive"])
def test_no_reply_holds_rows_or_private_weights(
    method: Any, step_size: Any, make_streams: Callable[..., Any]
) -> None:
    streams, record, rounds = make_streams(2, 20, test_rows=4), Transcript(), 12
    strategy = method(kernels=6, features=4, step_size=step_size)
    simulate(strategy, streams.client_fn, 2, num_rounds=rounds, transcript=record)
    private: list[np.ndarray] = []
    for k in range(2):
        losses = streams.numbers(k)[:6]
        exponents = -(losses - losses.min()) / np.sqrt(rounds)
        private += [losses, np.exp(exponents), np.exp(exponents) / np.exp(exponents).sum()]
        private += list(streams.x[k])
    sent = 0
    for entry in record.entries(direction="up"):
        numbers = [a.astype(np.float64).ravel() for a in entry.arrays]
        scalars = [v for v in entry.scalars.values() if type(v) is float]
        sent += len(scalars)
        told = np.concatenate([*numbers, scalars])
        for secret in private:
            if secret.size > 1 and len(told):
                assert not np.isclose(secret[:, None], told, rtol=1e-6, atol=0).any(axis=1).all()
    assert sent > 0

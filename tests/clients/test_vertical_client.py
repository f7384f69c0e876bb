"""The client of FDSKL: what it refuses, what it tells, what it keeps and erases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr.alignment import hash_ids
from fedkern_flwr.clients import VerticalKernelClient
from fedkern_flwr.errors import FedKernError, ProtocolError, StateError, TableError
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.vertical import messages as wire
from fedkern_flwr.wire import DescribeRequest
from fedkern_flwr.wire.sums import FinishRequest

KEY = bytes(range(16))
SESSION = "5e" * 8
X = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]])
Y = np.array([0.0, np.nan, 1.0, 1.0])
Table = dict[str, Any]


def context(partition: int = 4) -> Context:
    config: dict[str, Any] = {"simulation": True, "partition-id": partition, "num-partitions": 5}
    return Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})


def make(place: Context | None = None, **more: Any) -> VerticalKernelClient:
    """Build an active party of four rows, one of which has its label elsewhere."""
    table: Table = {"x": X, "y": Y, "ids": list("abcd"), "classes": (0, 1), "alignment_key": KEY}
    table |= {"x_test": X[:1] + 0.1, "y_test": [1], "ids_test": ["e"], **more}
    return VerticalKernelClient(place or context(), table.pop("x"), table.pop("y"), **table)


def passive(place: Context | None = None, **more: Any) -> VerticalKernelClient:
    table: Table = {"x": X, "ids": list("abcd"), "alignment_key": KEY, **more}
    return VerticalKernelClient(place or context(), table.pop("x"), **table)


def test_edges_of_what_may_be() -> None:
    assert make(y=[np.nan] * 4).table.rows == 0  # only held-out rows
    assert make(y=np.array([[0.0], [1.0], [np.nan], [1.0]])).table.rows == 3
    numbers = make(y=[[0.1, 0.2], [0.3, np.nan], [0.5, 0.1], [1, 1]], classes=None, y_test=[[0, 0]])
    assert (numbers.table.rows, numbers.table.others) == (3, 1)
    labels_only = make(x=None, x_test=None)
    assert (labels_only.table.features, labels_only.table.rows) == (0, 3)
    assert passive(x=np.zeros((4, 0))).table.features == 0
    assert make(role="active").role == "active"
    assert passive(role="passive").role == "passive"
    assert passive(x_test=X[:2], ids_test=["e", "f"]).table.others == 6


# -- what a party tells


def opening(**more: Any) -> DescribeRequest:
    fields: Table = {"session": SESSION, "method": "fdskl", "resume_round": 0, **more}
    return DescribeRequest(**fields)


def send(client: VerticalKernelClient, request: Any, reply: Any = None) -> Any:
    arrays, _, scalars = client.fit(request.arrays(), {"phase": request.phase, **request.scalars()})
    return None if reply is None else reply.unpack(arrays, scalars, party="test")


def describe(client: VerticalKernelClient, **more: Any) -> wire.VerticalDescribeReply:
    found: wire.VerticalDescribeReply = send(client, opening(**more), wire.VerticalDescribeReply)
    return found


def test_a_party_tells_sizes_and_keyed_hashes() -> None:
    found = describe(make(columns=["age", "weight"]), order_seed=7)
    assert (found.partition, found.partitions, found.role) == (4, 5, "active")
    assert (found.rows, found.test_rows, found.others, found.features) == (3, 1, 1, 2)
    assert (found.outputs, found.classes, found.named, found.labelled) == (1, 2, True, True)
    assert not found.allow_single
    assert "weight" not in repr(found)
    labelled = {tuple(row) for row in hash_ids(list("acd"), KEY, SESSION).tolist()}
    assert {tuple(row) for row in found.ids[:3].tolist()} == labelled
    np.testing.assert_array_equal(found.ids[3:], hash_ids(["e", "b"], KEY, SESSION))
    quiet = describe(passive(allow_single=True))
    assert (quiet.role, quiet.rows, quiet.test_rows, quiet.others) == ("passive", 0, 0, 4)
    assert (quiet.outputs, quiet.classes, quiet.allow_single) == (0, 0, True)


def test_the_order_of_the_table_is_not_told() -> None:
    """Rows are announced by their hashes; the same seed makes the same order in any session."""
    turned = [2, 0, 3, 1]
    for seed in (-1, 0, 7):
        same = passive(x=X[turned], ids=[list("abcd")[k] for k in turned])
        one, two = describe(passive(), order_seed=seed), describe(same, order_seed=seed)
        np.testing.assert_array_equal(one.ids, two.ids)

    def order(session: str, seed: int) -> list[str]:
        found = describe(passive(), session=session, order_seed=seed).ids
        hashes = {tuple(hash_ids([i], KEY, session)[0].tolist()): i for i in "abcd"}
        return [hashes[tuple(row)] for row in found.tolist()]

    orders = [order(f"{k}" * 16, 7) for k in range(6)]
    assert all(o == orders[0] for o in orders)
    assert len({tuple(order(f"{k}" * 16, -1)) for k in range(6)}) > 1
    assert len({tuple(order(SESSION, seed)) for seed in range(6)}) > 1


def test_duplicate_ids_are_refused() -> None:
    for client in (
        passive(ids=["a", "b", "a", "c"]),
        make(ids=["a", "b", "e", "c"]),  # learned from and held out
        make(ids=["a", "b", "b", "c"]),  # the label of one of them is elsewhere
    ):
        with pytest.raises(TableError, match="partition 4: 1 duplicate ids; keep one row per id"):
            describe(client)


def test_rows_without_ids_are_named_by_their_order() -> None:
    one = make(ids=None, ids_test=None, alignment_key=None)
    two = passive(ids=None, alignment_key=None, x_test=X[:1])
    found, other = describe(one), describe(two)
    assert not found.named
    assert not other.named
    assert {tuple(r) for r in found.ids.tolist()} == {tuple(r) for r in other.ids.tolist()}


# -- what a party is asked for


def step(number: int = 1, **more: Any) -> wire.StepRequest:
    """Ask for nothing in particular."""
    nothing = np.zeros(0, np.int32)
    fields: Table = {
        "session": SESSION,
        "round": number,
        "save_as": 0,
        "delivered": 0,
        "kernel": "rbf",
        "gamma": 0.5,
        "phase_bits": 32,
        "model": "",
        "model_round": 0,
        "capacity": 8,
        "collection": 0,
        "owners": nothing,
        "upto": nothing,
        "known": np.zeros((0, 0), np.int32),
        "rows": nothing,
        "cuts": nothing,
        "loss": "square",
        "finish": 0,
        "leader": -1,
        "score": 0,
        "scorer": -1,
        "directions": 2,
        "rate": 0.0,
        "decay": 0.0,
        "finish_rows": nothing,
        "score_rows": nothing,
    }
    return wire.StepRequest(**{**fields, **more})


def outcome(number: int, rows: Any = ()) -> wire.OutcomeRequest:
    """Ask for the counts of some of its held-out rows."""
    held = np.array(rows, np.int32)
    owner, size = np.array([4], np.int32), np.array([len(held)], np.int32)
    fields: Table = {"scoring": False, "count": True, "owners": owner, "sizes": size, "rows": held}
    calibration = np.zeros(0)
    return wire.OutcomeRequest(session=SESSION, round=number, calibration=calibration, **fields)


def phases(rows: Any, owner: int = 4, upto: int = 4) -> Table:
    return {
        "collection": 1,
        "owners": np.array([owner], np.int32),
        "upto": np.array([upto], np.int32),
        "known": np.zeros((1, len(rows)), np.int32),
        "rows": np.array(rows, np.int32),
        "cuts": np.array([len(rows)], np.int32),
    }


def opened(build: Callable[..., Any] = make, **more: Any) -> tuple[Context, Any]:
    place = context()
    client = build(place, **more)
    describe(client)
    return place, client


WRONG: dict[str, tuple[Table, str]] = {
    "rows that are not there": (phases([5]), "partition 4: rows are asked for that were not anno"),
    "rows before the first": (phases([-1]), "partition 4: rows are asked for that were not annou"),
    "scores in plain": (
        {"score": 1, "scorer": 4, "score_rows": np.array([0], np.int32)},
        "partition 4: scores are asked for outside a secure sum",
    ),
    "another session": ({"session": "ab" * 8}, "session that this node has not opened; start the"),
}


@pytest.mark.parametrize("name", WRONG)
def test_requests_that_cannot_be_are_refused_in_one_line(name: str) -> None:
    change, text = WRONG[name]
    _, client = opened()
    with pytest.raises(ProtocolError, match=text) as caught:
        send(client, step(**change))
    assert "\n" not in str(caught.value)


def test_settings_stay_as_they_were() -> None:
    for change in ({"gamma": 0.6}, {"kernel": "laplacian"}, {"phase_bits": 16}, {"capacity": 9}):
        _, client = opened()
        send(client, step(1))
        send(client, step(2))
        with pytest.raises(ProtocolError, match="partition 4: the settings of the run have change"):
            send(client, step(3, **change))


def test_late_duplicates_are_refused() -> None:
    _, client = opened()
    send(client, step(3))
    for number in (1, 3):
        with pytest.raises(ProtocolError, match=f"round {number} has been done already"):
            send(client, step(number))


def test_phases_never_leave_a_node_but_in_secure_sums() -> None:
    """A run that has no sums gets empty replies."""
    _, client = opened(passive)
    arrays, _, scalars = client.fit(
        step(1, **phases([0, 1], owner=0)).arrays(),
        {"phase": "vertical-step", **step(1, **phases([0, 1], owner=0)).scalars()},
    )
    assert sum(np.asarray(a).size for a in arrays) == 0
    assert set(scalars) <= {"round", "phase", "protocol"}


def test_what_comes_before_the_first_step_is_told_again() -> None:
    _, client = opened()
    request = outcome(1)
    with pytest.raises(StateError, match="partition 4: it knows nothing of this run; it is told"):
        send(client, request)
    send(client, step(2))
    send(client, replace(request, round=3))


def test_phases_that_nobody_asked_for_are_not_taken() -> None:
    _, client = opened()
    with pytest.raises(StateError, match="phases came that this party does not know of; they are"):
        send(client, step(1, delivered=5))


def test_labels_are_used_for_own_rows_only() -> None:
    """Rows that are held out, or whose label is elsewhere, are not learned from."""
    place, client = opened()
    send(client, step(1))
    client.kept = KeptState.unpack(SessionState.load(place).payload)
    for row in (3, 4):
        with pytest.raises(ProtocolError, match="partition 4: rows are named that have no label"):
            client._targets(np.array([row]))
    with pytest.raises(ProtocolError, match="partition 4: rows are named that are not held out he"):
        client._judge(outcome(2), np.array([0]), np.zeros((1, 1)))
    with pytest.raises(ProtocolError, match="partition 4: rows are named that are not held out he"):
        client._judge(outcome(2), np.array([4]), np.zeros((1, 1)))


def test_counts_are_of_the_same_held_out_rows_in_a_run_and_of_half_of_them_at_least() -> None:
    """The difference of two counts is the label of the row in which they differ."""

    place, client = opened(x_test=X + 0.1, y_test=[1, 0, 1, 0], ids_test=list("efgh"))
    send(client, step(1))
    order = KeptState.unpack(SessionState.load(place).payload).arrays["order"]
    held_out = np.flatnonzero((order >= 3) & (order < 7)).astype(np.int32)
    with pytest.raises(ProtocolError, match="1 of 4 held-out rows are to be counted, which would"):
        send(client, outcome(2, held_out[:1]))
    found = send(client, outcome(2, held_out[:3]), wire.OutcomeReply)
    assert found.counts.sum() == 3
    with pytest.raises(ProtocolError, match="other held-out rows are to be counted than before"):
        send(client, outcome(3, held_out[1:]))
    send(client, outcome(3, held_out[:3]))


def test_counts_are_of_the_model_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a run that was resumed asks in the same words for another model."""
    place, client = opened(x_test=X + 0.1, y_test=[1, 0, 1, 1], ids_test=list("efgh"))
    send(client, step(1))
    order = KeptState.unpack(SessionState.load(place).payload).arrays["order"]
    held_out, found = np.flatnonzero((order >= 3) & (order < 7)), []
    for number, score in ((2, 1.0), (3, -1.0)):
        scores = np.full((4, 1), score)
        monkeypatch.setattr(VerticalKernelClient, "_scores", lambda *_, scores=scores: scores)
        found.append(send(client, outcome(number, held_out), wire.OutcomeReply).counts)
    assert found[0].sum() == found[1].sum() == 4
    assert (found[0] != found[1]).any()


def test_rows_that_are_learned_from_stay_the_same_in_a_run() -> None:
    """What validates them is told."""
    place, client = opened()
    send(client, step(1))
    client.kept = KeptState.unpack(SessionState.load(place).payload)
    client._check_trained(np.arange(3))
    client._check_trained(np.arange(3)[::-1])
    with pytest.raises(ProtocolError, match="other rows are to be learned from than before"):
        client._check_trained(np.arange(2))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e7])
def test_scores_that_diverge_are_refused(value: float) -> None:
    text = "partition 4: the iteration has diverged; use a smaller step"
    with pytest.raises(ProtocolError, match=text):
        make()._bounded(np.array([[0.0], [value]]))
    make()._bounded(np.zeros((0, 1)))


# -- secrets


def test_a_run_draws_a_secret_of_its_own() -> None:
    seeds = set()
    for _ in range(3):
        place, client = opened()
        send(client, step(1))
        seeds.add(KeptState.unpack(SessionState.load(place).payload).seed)
        send(client, step(2))
        assert KeptState.unpack(SessionState.load(place).payload).seed in seeds
    assert len(seeds) == 3
    assert {len(seed) for seed in seeds} == {32}
    place, client = opened(frequency_seed=bytes(range(32)))
    send(client, step(1))
    assert KeptState.unpack(SessionState.load(place).payload).seed == bytes(range(32))


def test_the_end_of_a_run_erases_everything_but_what_was_saved(tmp_path: Path) -> None:
    place, client = opened(state_dir=tmp_path, frequency_seed=b"\x5a" * 32)
    send(client, step(1, save_as=1))
    client.kept = KeptState.unpack(SessionState.load(place).payload)
    store = client.store()
    store.take(np.array([0]), np.array([0]), 4, np.arange(4, dtype=np.uint32))
    assert store.path.is_file()
    (saved,) = tmp_path.rglob("*.state")
    assert saved.stat().st_mode & 0o777 == 0o600
    send(client, FinishRequest(session=SESSION, round=2))
    assert not store.path.exists()
    assert saved.is_file()
    assert not SessionState.load(place).payload
    assert "5a5a" not in repr(place.state)
    with pytest.raises(StateError, match="it knows nothing of this run"):
        send(client, outcome(3))


def test_a_table_must_not_change_in_a_run(tmp_path: Path) -> None:
    """Neither labelled rows nor the others, at active and at passive parties."""
    _, client = opened(state_dir=tmp_path)
    send(client, step(1, save_as=1))
    describe(make(state_dir=tmp_path), resume_round=1)
    changes: list[Table] = [
        {"x": X + np.array([[1e-9], [0.0], [0.0], [0.0]])},
        {"x": X + np.array([[0.0], [1e-9], [0.0], [0.0]])},
        {"y": [1.0, np.nan, 1.0, 1.0]},
        {"x_test": X[:1]},
    ]
    text = "partition 4: its table is not the one with which this run began; bring that table back"
    for change in changes:
        with pytest.raises(TableError, match=text):
            describe(make(state_dir=tmp_path, **change), resume_round=1)
    _, other = opened(passive, state_dir=tmp_path / "passive")
    send(other, step(1, save_as=1))
    describe(passive(state_dir=tmp_path / "passive"), resume_round=1)
    with pytest.raises(TableError, match=text):
        describe(passive(state_dir=tmp_path / "passive", x=X + 1e-9), resume_round=1)


def test_a_model_needs_the_folder_in_which_it_was_made(tmp_path: Path) -> None:
    _, client = opened(state_dir=tmp_path, frequency_seed=b"\x5a" * 32)
    send(client, step(1, save_as=1))
    again: Table = {"model": SESSION, "model_round": 1, "session": "ab" * 8}

    def remembered(**more: Any) -> KeptState:
        place = context()
        later = make(place, **more)
        describe(later, session="ab" * 8)
        send(later, step(1, **again))
        return KeptState.unpack(SessionState.load(place).payload)

    assert remembered(state_dir=tmp_path).seed == b"\x5a" * 32
    text = "partition 4: what this party kept of the model is not here any more; give the client"
    for more in ({}, {"state_dir": tmp_path / "elsewhere"}):
        with pytest.raises(ProtocolError, match=text):
            remembered(**more)
    again["model_round"] = 2
    with pytest.raises(ProtocolError, match=text):
        remembered(state_dir=tmp_path)
    again["model"] = "../" + SESSION  # a name that is no name
    with pytest.raises(FedKernError):
        remembered(state_dir=tmp_path)

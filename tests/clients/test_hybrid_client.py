"""The client of FedCG: what it refuses, what it tells, what it keeps and erases."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr.clients import HybridKernelClient
from fedkern_flwr.errors import (
    ProtocolError,
    RefusedError,
    StateError,
)
from fedkern_flwr.guard import NodePolicy, SumRule
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.node.sums import ClientSums
from fedkern_flwr.secure_sum import Encoding, SecureSum
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import FedCG
from fedkern_flwr.wire import DescribeRequest
from fedkern_flwr.wire.sums import FinishRequest

KEY = bytes(range(16))
X = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
Y = np.array([0, 1, 1])
Table = dict[str, Any]


def context(partition: int = 4) -> Context:
    config: dict[str, Any] = {"simulation": True, "partition-id": partition, "num-partitions": 5}
    return Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})


def make(place: Context | None = None, **more: Any) -> HybridKernelClient:
    """Build a hospital of three rows."""
    table: Table = {"x": X, "y": Y, "ids": ["a", "b", "c"], "classes": (0, 1), "alignment_key": KEY}
    table |= more
    return HybridKernelClient(place or context(), table.pop("x"), table.pop("y"), **table)


def test_edges_of_what_may_be() -> None:
    """Ranges include their ends; a feature may be constant."""
    make(x=[[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
    make(x=[[5.0, 0.5]] * 3, ranges=[[5, 5], [0, 1]])


# -- messages without a network


SESSION = "5e55"


def send(client: HybridKernelClient, request: Any, reply: Any = None) -> Any:
    """Send a request to a client as Flower does, and read its reply."""
    arrays, _, scalars = client.fit(request.arrays(), request.scalars())
    return None if reply is None else reply.unpack(arrays, scalars, party="node")


def describe(client: HybridKernelClient, **more: Any) -> wire.HybridDescribeReply:
    request = DescribeRequest(session=SESSION, method="fed-cg", resume_round=0, **more)
    return send(client, request, wire.HybridDescribeReply)  # type: ignore[no-any-return]


def about_rows(kind: Any, number: int = 1, rows: Any = (0, 1, 2), **more: Any) -> Any:
    """Make a request about rows of hospital 4, three of them."""
    count = len(rows)
    fields: Table = {
        "session": SESSION,
        "round": number,
        "hospitals": np.array([4], np.int32),
        "trains": np.array([count], np.int32),
        "starts": np.array([0], np.int32),
        "stops": np.array([count], np.int32),
        "rows": (np.array(rows, np.int32),),
        "kernel": "rbf",
        "sampling": "U",
        "landmarks": 5,
        "seed_from": -1,
        "model": "",
        "model_round": 0,
        "landmark_pairs": False,
        "keep_training": True,
        "save_as": 1,
        "gammas": np.array([0.5]),
        "moments": np.zeros(0),
        "sealed_seed": np.zeros(0, np.uint8),
        "peers": np.zeros(0, np.int32),
    }
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in {**fields, **more}.items() if name in names})


def test_a_centre_describes_itself() -> None:
    found = describe(make(y=None, classes=None, ranges=[[0, 2], [-3, 1]]))
    assert (found.role, found.block, found.outputs, found.classes) == ("centre", "centre 4", 0, 0)
    assert found.square_bound == 20.0
    assert found.absolute_bound == pytest.approx(40.0**0.5)
    assert not found.seeded
    assert not found.labelled


def test_rows_without_ids_match_nobody_else_s() -> None:
    one = describe(make(context(1), ids=None, alignment_key=None)).ids
    other = describe(make(context(2), ids=None, alignment_key=None)).ids
    assert not np.intersect1d(one, other).size


# -- requests that are refused


def opened(**more: Any) -> tuple[Context, HybridKernelClient]:
    """Return a hospital that has described itself in a plain run."""
    place = context()
    client = make(place, **more)
    describe(client)
    return place, client


PHASES: list[Any] = [wire.EquationsRequest, wire.ProductRequest, wire.CoefficientsRequest]


def later(kind: Any, number: int = 2) -> Any:
    """Make a request that needs the kernel."""
    more: Table = {"directions": np.full((5, 1), 5.0**-0.5), "labels": True, "count": True}
    more |= {"coefficients": np.ones((5, 1))}
    more |= {"gammas": np.zeros((0, 1) if kind is wire.EquationsRequest else 0)}
    more |= {
        "class_counts": np.zeros(0),
        "calibration": np.zeros(0),
        "noise": np.zeros(0),
        "factor": np.zeros((0, 0)),
    }
    names = {field.name for field in dataclasses.fields(kind)}
    chosen = {name: value for name, value in more.items() if name in names}
    return kind(session=SESSION, round=number, **chosen)


@pytest.mark.parametrize("kind", PHASES)
def test_what_needs_the_kernel_is_refused_before_it_has_come(kind: Any) -> None:
    _, client = opened()
    with pytest.raises(
        StateError, match="partition 4: it has not the whole kernel of this run; it"
    ):
        send(client, later(kind))


def test_a_step_is_done_once() -> None:
    place, client = opened()
    request = about_rows(wire.DistancesRequest, 3)
    send(client, request)
    before = SessionState.load(place)
    for number in (3, 2):
        again = dataclasses.replace(request, round=number)
        with pytest.raises(ProtocolError, match=f"round {number} has been done already"):
            send(make(place), again)
    assert SessionState.load(place) == before


def test_another_session_is_refused() -> None:
    _, client = opened()
    request = about_rows(wire.DistancesRequest, session="another")
    with pytest.raises(
        ProtocolError, match="a session that this node has not opened; start the ru"
    ):
        send(client, request)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ((0, 1, 3), "rows are asked for that it did not announce"),
        ((0, -2, 1), "rows are asked for twice, or are none"),
        ((0, 1, 1), "rows are asked for twice, or are none"),
    ],
)
def test_rows_that_were_not_announced_are_refused(rows: tuple[int, ...], text: str) -> None:
    _, client = opened()
    with pytest.raises(RefusedError, match=f"partition 4: refused by the node: {text}"):
        send(client, about_rows(wire.DistancesRequest, rows=rows))


@pytest.mark.parametrize("rows", [(0, 1), (0, 2, 1), (0, 1, -1)])
def test_rows_stay_the_same_in_a_run(rows: tuple[int, ...]) -> None:
    """Sums over rows that differ by one patient would show that one."""
    _, client = opened()
    send(client, about_rows(wire.DistancesRequest))
    send(client, about_rows(wire.DistancesRequest, 2))
    with pytest.raises(RefusedError, match="other rows are asked for than before in this run"):
        send(client, about_rows(wire.DistancesRequest, 3, rows=rows))


def test_a_hospital_alone_shows_its_sums_only_if_allowed() -> None:
    """It makes its kernel by itself, and has nobody to sum with."""
    for kind in PHASES:
        _, client = opened()
        send(client, about_rows(wire.DistancesRequest, stops=np.array([0], np.int32)))
        with pytest.raises(
            ProtocolError, match="there is nobody to sum with; let more hospitals ta"
        ):
            send(client, later(kind))
    place, client = opened(allow_single=True, landmark_seed=bytes(32))
    alone = about_rows(wire.DistancesRequest, stops=np.array([0], np.int32), keep_training=False)
    send(client, alone)
    reply = send(client, later(wire.EquationsRequest), wire.EquationsReply)
    (plain,) = reply.plain
    assert plain.shape == (15 + 5,)
    send(make(place, allow_single=True), FinishRequest(session=SESSION, round=3))


def of_unknown_width(**more: Any) -> HybridKernelClient:
    """Return a hospital whose kernel's width is chosen, alone in its run."""
    policy = NodePolicy.of_simulations(min_own_rows=2)
    _, client = opened(allow_single=True, policy=policy, **more)
    alone = {"stops": np.zeros(1, np.int32), "gammas": np.zeros(0)}
    send(client, about_rows(wire.DistancesRequest, **alone))
    return client


def equations(number: int, gammas: list[float], folds: int = 1) -> Any:
    request = dataclasses.replace(later(wire.EquationsRequest, number), folds=folds)
    return dataclasses.replace(request, gammas=np.array(gammas).reshape(-1, 1))


@pytest.mark.parametrize(("gammas", "folds"), [([], 1), ([1.0] * 10, 1), ([-1.0], 1), ([1.0], 6)])
def test_a_hospital_answers_for_few_widths_and_folds(gammas: list[float], folds: int) -> None:
    with pytest.raises(RefusedError, match="more than 9 widths or 5 folds"):
        send(of_unknown_width(), equations(2, gammas, folds))


@pytest.mark.parametrize(("gammas", "folds"), [([0.5], 1), ([0.5, 2.0], 1), ([0.5, 1.0], 2)])
def test_a_hospital_answers_for_one_choice_of_widths(gammas: list[float], folds: int) -> None:
    client = of_unknown_width()
    for number in (2, 3):
        (found,) = send(client, equations(number, [0.5, 1.0]), wire.EquationsReply).plain
        assert len(found) == 1 + 2 * (15 + 5)
    with pytest.raises(RefusedError, match="other widths or folds are asked"):
        send(client, equations(4, gammas, folds))


def test_a_hospital_that_is_alone_weighs_its_rows_by_its_own_counts() -> None:
    client, asked = of_unknown_width(), equations(2, [0.5])
    (plain,) = send(of_unknown_width(), asked, wire.EquationsReply).plain
    (found,) = send(client, dataclasses.replace(asked, balanced=True), wire.EquationsReply).plain
    # y^T W y is the sum of the weights, K^T W y no more that of the labels
    np.testing.assert_allclose(found[0], plain[0])
    assert np.abs(found[1:] - plain[1:]).max() > 0.01
    counts = np.array([2.0, 1.0])  # it has one row of the first class, two of the second
    for number, wrong in ((3, counts), (4, np.array([1.0, 2.0, 0.0])), (5, 9 * counts)):
        request = dataclasses.replace(asked, round=number, balanced=True, class_counts=wrong)
        with pytest.raises(RefusedError, match="counts of classes that its rows contradict"):
            send(of_unknown_width(), dataclasses.replace(request, round=2))
    with pytest.raises(RefusedError, match="other widths or folds are asked"):
        send(client, dataclasses.replace(asked, round=6))


def test_a_hospital_of_numbers_weighs_no_classes() -> None:
    client = of_unknown_width(classes=None, y=np.array([0.1, 0.2, 0.3]))
    with pytest.raises(ProtocolError, match="classes are to be balanced, and the labels are numb"):
        send(client, dataclasses.replace(equations(2, [0.5]), balanced=True))


def test_a_landmark_has_a_width_of_its_own_or_that_of_all() -> None:
    client, asked = of_unknown_width(), equations(2, [1.0])
    with pytest.raises(ProtocolError, match="widths to choose from do not fit the landmarks"):
        send(client, dataclasses.replace(asked, gammas=np.ones((1, 4))))
    whole = dataclasses.replace(asked, gammas=np.ones((1, 5)))
    assert len(send(client, whole, wire.EquationsReply).plain) == 1


def test_what_needs_a_width_is_refused_before_it_is_known() -> None:
    client = of_unknown_width()
    with pytest.raises(ProtocolError, match="the width of this run is not known"):
        send(client, later(wire.ProductRequest))
    with pytest.raises(ProtocolError, match="the width of the model is not that of this run"):
        send(client, later(wire.CoefficientsRequest, 3))


def test_folds_have_as_many_rows_of_a_hospital_as_its_owner_says() -> None:
    with pytest.raises(RefusedError, match="min_own_rows = 2: a fold has 1"):
        send(of_unknown_width(), equations(2, [1.0], folds=2))


def test_widths_are_not_chosen_where_one_is_known() -> None:
    _, client = opened(allow_single=True)
    send(client, about_rows(wire.DistancesRequest, stops=np.zeros(1, np.int32)))
    asked = dataclasses.replace(later(wire.EquationsRequest), gammas=np.ones((1, 1)))
    with pytest.raises(ProtocolError, match="the width of this run is known"):
        send(client, asked)


def test_moments_leave_a_secure_node_in_secure_sums_only() -> None:
    _, client = opened()
    with pytest.raises(
        ProtocolError, match="values are asked for that leave this node in secure s"
    ):
        send(client, about_rows(wire.MomentsRequest, moments=True, sampling="N"))


def test_a_secret_is_sealed_for_those_only_with_whom_there_is_one() -> None:
    _, client = opened()
    request = about_rows(wire.MomentsRequest, moments=False, peers=np.array([2], np.int32))
    with pytest.raises(
        ProtocolError, match="shares no secret with partition 2; configure the land"
    ):
        send(client, request)


# -- sums that a server orders for others than those whom they belong to

HOSPITALS, CENTRES = (0, 1, 2), (3, 4)


def test_moments_are_of_landmarks_that_need_them() -> None:
    _, client = opened()
    with pytest.raises(ProtocolError, match="moments are asked for of landmarks that need none"):
        send(client, about_rows(wire.MomentsRequest, moments=True, sampling="U"))


SERVERS = ("equations", "product", "outcomes", "moments/clinical", "landmark pairs")


def lying_run(what: str, wrong: Table, honest: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run three hospitals and two centres under a server that orders other sums than it says.

    All nodes but one collude: they look at nothing. Returns the names of the sums it lied about.
    """
    order, look, lied = SecureSum.order, ClientSums.check, []

    def ordered(sums: SecureSum, name: str, length: int, encoding: Encoding, **options: Any) -> Any:
        if name.startswith(what):
            lied.append(name)
            options |= {k: v for k, v in wrong.items() if k == "receiver"}
            encoding = wrong.get("encoding", encoding)
        return order(sums, name, length, encoding, **options)

    def checked(sums: ClientSums, name: str, rule: SumRule) -> None:
        right = sums.order(name)
        if sums.party.partition != honest:  # whatever was ordered is right
            bounded = Encoding(right.kind, right.bits, right.bound)  # type: ignore[arg-type]
            rule = SumRule(bounded, right.receiver, right.self_masks)
        look(sums, name, rule)

    monkeypatch.setattr(SecureSum, "order", ordered)
    monkeypatch.setattr(ClientSums, "check", checked)

    def client_fn(place: Context) -> HybridKernelClient:
        k = int(place.node_config["partition-id"])
        x = np.random.default_rng(k).random((6, 2))
        if k in CENTRES:
            x = np.random.default_rng(k).random((18, 2))
            return HybridKernelClient(place, x, ids=[str(i) for i in range(18)], alignment_key=KEY)
        ids, y = [str(6 * k + i) for i in range(6)], np.array([0, 1, 0, 1, 1, 0])
        return HybridKernelClient(
            place,
            x[:4],
            y[:4],
            ids=ids[:4],
            x_test=x[4:],
            y_test=y[4:],
            ids_test=ids[4:],
            classes=(0, 1),
            alignment_key=KEY,
        )

    strategy = FedCG(
        landmarks=3,
        sampling="N" if what == "moments/clinical" else "U",
        solver="cg" if what == "product" else "normal-equations",
        penalty="rkhs" if what == "landmark pairs" else "ridge",
        attempts=1,
    )
    simulate(strategy, client_fn, 5)
    return lied


LIES: list[tuple[str, Table, int]] = [
    *(("distances/0#0", {"receiver": None}, honest) for honest in (0, 3)),
    *(("distances/0#0", {"receiver": 4}, honest) for honest in (0, 3)),
    ("distances/0#0", {"encoding": Encoding.circle(32)}, 3),
    ("distances/0#0", {"encoding": Encoding.circle(64)}, 0),
    *((what, {"receiver": 1}, 0) for what in SERVERS),
    ("landmark pairs", {"receiver": 1}, 3),
    ("equations", {"encoding": Encoding.circle(64)}, 0),
    ("outcomes", {"encoding": Encoding.integers(100)}, 0),
]


@pytest.mark.parametrize(("what", "wrong", "honest"), LIES)
def test_a_node_contributes_to_sums_for_those_whom_they_belong_to(
    what: str, wrong: Table, honest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Distances of a hospital's rows are opened by that hospital, all else by the server."""
    part = "receiver" if "receiver" in wrong else "encoding"
    text = f"partition {honest}: refused by the node: the {part} of a sum"
    with pytest.raises(ProtocolError, match=text):
        lying_run(what, wrong, honest, monkeypatch)


@pytest.mark.parametrize("what", ["distances/0#0", *SERVERS])
def test_a_server_that_does_not_lie_gets_its_sums(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: the node looks, and the run goes on."""
    checks: list[str] = []
    look = ClientSums.check

    def counted(sums: ClientSums, name: str, rule: SumRule) -> None:
        checks.append(name)
        look(sums, name, rule)

    monkeypatch.setattr(ClientSums, "check", counted)
    assert set(lying_run(what, {}, 0, monkeypatch)) == {what}
    assert what in checks


# -- what is remembered


def test_the_end_of_a_run_erases_everything(tmp_path: Path) -> None:
    place = context()
    client = make(place, state_dir=tmp_path, allow_single=True)
    describe(client)
    send(client, about_rows(wire.DistancesRequest, stops=np.array([0], np.int32)))
    send(client, later(wire.ProductRequest))
    assert len(list(tmp_path.rglob("*.kernel"))) == 1
    assert SessionState.load(place).payload
    send(client, FinishRequest(session=SESSION, round=9))
    assert not list(tmp_path.rglob("*.kernel"))
    assert not SessionState.load(place).payload
    assert set(place.state) <= {"fedkern", "fedkern-guard"}
    with pytest.raises(StateError):
        send(make(place, state_dir=tmp_path), later(wire.EquationsRequest, 10))

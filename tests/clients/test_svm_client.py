"""The client of HierarchicalSVM: what it refuses, what it tells, what it answers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr.clients import SVMClient
from fedkern_flwr.errors import FedKernError, OptionError, ProtocolError, TableError
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.wire import DescribeRequest

KEY, SESSION = bytes(range(16)), "5e" * 8
X = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.9]])
Y = np.array([-1.0, 1.0, 1.0, -1.0])
USER = {"x": X, "y": Y, "classes": (-1, 1)}
OWNER = {"role": "owner", "y": Y, "ids": list("abcd"), "classes": (-1, 1), "alignment_key": KEY}
COLUMNS = {"x": X, "ids": list("dcba"), "alignment_key": KEY}
Table = dict[str, Any]


def context(partition: int = 4, **config: Any) -> Context:
    config = {"simulation": True, "partition-id": partition, "num-partitions": 5, **config}
    return Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})


def make(place: Context | None = None, **table: Any) -> SVMClient:
    return SVMClient(place or context(), **table)


def opening(session: str = SESSION) -> Table:
    request = DescribeRequest(session=session, method="hierarchical-svm", resume_round=0)
    return {"parameters": request.arrays(), "config": request.scalars()}


BAD: dict[str, tuple[Table, type[FedKernError], str]] = {
    "an unknown role": ({**USER, "role": "server"}, OptionError, "role is 'server'"),
    "a group below 0": ({**USER, "group": -1}, OptionError, "group is -1; use a whole number"),
    "a group that is no number": ({**USER, "group": 1.5}, OptionError, "group is 1.5; use a whole"),
    "a user without features": (
        {"y": Y, "classes": (-1, 1)},
        OptionError,
        "partition 4: a node with role user has no features and labels; users hold features",
    ),
    "an agent with features": (
        {"role": "agent", "x": X},
        OptionError,
        "partition 4: a node with role agent has features; users hold features, the owner labels",
    ),
    "an agent with labels": (
        {"role": "agent", "y": Y, "classes": (-1, 1)},
        OptionError,
        "partition 4: a node with role agent has no features and labels",
    ),
    "an owner with features": (
        {**OWNER, "x": X},
        OptionError,
        "partition 4: a node with role owner has features and labels",
    ),
    "label_bound": ({"x": X, "y": Y, "label_bound": 0.0}, OptionError, "label_bound is 0.0; use a"),
    "ids without a key": (
        {"x": X, "ids": list("abcd")},
        OptionError,
        "partition 4: ids are joined by keyed hashes, and there is no alignment key; give all",
    ),
    "a short key": ({**COLUMNS, "alignment_key": b"k"}, OptionError, "the alignment key has 1 byt"),
    "NaN": ({**USER, "x": X * np.nan}, TableError, "partition 4: NaN or infinite values"),
    "an unknown class": ({**USER, "y": Y * 2}, TableError, "partition 4: 4 labels are none of the"),
    "other rows": ({**USER, "y": Y[:3]}, TableError, "partition 4: "),
    "other held-out columns": ({**USER, "x_test": X[:, :1]}, TableError, "partition 4: its held-"),
    "labels beyond the bound": (
        {"x": X, "y": 7 * Y, "label_bound": 2.0},
        TableError,
        "partition 4: labels beyond the declared bound of 2",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_refused_in_one_line(name: str) -> None:
    table, error, text = BAD[name]
    with pytest.raises(error, match=f"^{text}") as caught:
        make(**table)
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)


def test_role_and_group_may_be_in_the_configuration_of_the_node() -> None:
    assert (make(**USER).role, make(**USER).group) == ("user", 0)
    agent = make(context(role="agent", group=3))
    assert (agent.role, agent.group) == ("agent", 3)
    given = make(context(role="agent", group=3), **USER, role="user", group=1)
    assert (given.role, given.group) == ("user", 1)
    with pytest.raises(OptionError, match=r"group is 2.0; use a whole number"):
        make(context(role="agent", group="2.0"))


def describe(**table: Any) -> wire.SVMDescribeReply:
    arrays, _, scalars = make(**table).fit(**opening())
    return wire.SVMDescribeReply.unpack(arrays, dict(scalars), party="")


def test_nodes_tell_who_they_are() -> None:
    user = describe(**USER, group=2, x_test=X[:1], y_test=Y[:1], allow_single=True)
    assert (user.role, user.group, user.partition, user.partitions) == ("user", 2, 4, 5)
    assert (user.rows, user.features, user.test_rows, user.outputs) == (4, 2, 1, 1)
    assert (user.classes, user.labelled, user.named, user.allow_single) == (2, True, False, True)
    assert user.ids.shape == (0, 2)  # in a horizontal split nobody joins rows
    agent = describe(role="agent", group=1)
    assert (agent.role, agent.group, agent.rows, agent.outputs) == ("agent", 1, 0, 0)
    owner = describe(**OWNER, group=1)
    assert (owner.role, owner.group, owner.rows, owner.features) == ("owner", -1, 4, 0)
    column = describe(**COLUMNS)
    assert (column.outputs, column.named) == (0, True)
    assert column.ids.shape == (4, 2)
    np.testing.assert_array_equal(np.sort(owner.ids, axis=0), np.sort(column.ids, axis=0))
    other = describe(**{**COLUMNS, "alignment_key": KEY[::-1]})
    assert not np.isin(other.ids[:, 0], owner.ids[:, 0]).any()
    three = describe(x=X, y=[0, 1, 2, 2], classes=(0, 1, 2))
    assert (three.outputs, three.classes) == (3, 3)


def evaluate(**fields: Any) -> wire.EvaluateRequest:
    model = np.zeros((1, 3))
    return wire.EvaluateRequest(**{"session": SESSION, "round": 1, "model": model, **fields})


def local(number: int, **fields: Any) -> wire.LocalRequest:
    nothing = np.zeros(0)
    common: Table = {"session": SESSION, "relaxation": 1.0, "rho": np.ones((1, 1))}
    common |= {"center": np.zeros((0, 0)), "judged": np.zeros((0, 0))}
    common |= dict.fromkeys(("mean", "deviation", "ridge", "shares"), nothing)
    return wire.LocalRequest(round=number, **{**common, **fields})


def test_messages_are_sealed_only_for_chosen_partners() -> None:
    user, agent = make(**USER), make(role="agent")
    given = {f.name: getattr(local(1), f.name) for f in fields(wire.SolveRequest)}
    ones = {name: np.ones((1, 1)) for name in ("sigma", "next_sigma")}
    more: Table = {"relaxation": 1.0, "sealed": b"", "index": 0, "padded": np.zeros(0, np.uint64)}
    step = wire.StepWithAgentRequest(**given, **ones, **more, agent=2)
    assert list(user.choose_partners(step)) == [2]
    assert list(user.choose_partners(local(1))) == []
    assert list(user.choose_partners(evaluate(self_masks=True))) == []
    assert set(agent.choose_partners(object())) == set(range(5))
    with pytest.raises(ProtocolError, match="shares no secret with partition 2"):
        user.seal(2, np.zeros(3), "place")

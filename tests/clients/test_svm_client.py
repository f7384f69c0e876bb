"""The client of HierarchicalSVM: which roles and data go together, and what it tells of itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from refusals import refused

from fedkern_flwr.clients import SVMClient

KEY = bytes(range(16))
X = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.9]])
Y = np.array([-1.0, 1.0, 1.0, -1.0])
USER: dict[str, Any] = {"x": X, "y": Y, "classes": (-1, 1)}
OWNER = {"role": "owner", "y": Y, "ids": list("abcd"), "classes": (-1, 1), "alignment_key": KEY}
AGENT = {"role": "agent"}


def make(config: dict[str, Any] | None = None, **table: Any) -> SVMClient:
    place = {"simulation": True, "partition-id": 4, "num-partitions": 5, **(config or {})}
    state = RecordDict()
    context = Context(run_id=1, node_id=1, node_config=place, state=state, run_config={})
    return SVMClient(context, **table)


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "an unknown role": ("FK-OPTION-CHOICE", {**USER, "role": "server"}),
    "a group below 0": ("FK-OPTION-RANGE", {**USER, "group": -1}),
    "a group that is no whole number": ("FK-OPTION-RANGE", {**USER, "group": 1.5}),
    "a user without features": ("FK-ROLE-DATA", {"y": Y, "classes": (-1, 1)}),
    "an agent with features": ("FK-ROLE-DATA", {**AGENT, "x": X}),
    "an agent with labels": ("FK-ROLE-DATA", {**AGENT, "y": Y, "classes": (-1, 1)}),
    "an owner with features": ("FK-ROLE-DATA", {**OWNER, "x": X}),
}


@pytest.mark.parametrize(("code", "table"), BAD.values(), ids=BAD)
def test_roles_without_their_data_are_refused_in_one_line(code: str, table: dict[str, Any]) -> None:
    with refused(code) as caught:
        make(**table)
    assert "\n" not in str(caught.value)


def test_role_and_group_may_be_in_the_configuration_of_the_node() -> None:
    assert (make(**USER).role, make(**USER).group) == ("user", 0)
    agent = make({"role": "agent", "group": 3})
    assert (agent.role, agent.group) == ("agent", 3)
    given = make({"role": "agent", "group": 3}, **USER, role="user", group=1)
    assert (given.role, given.group) == ("user", 1)
    with refused("FK-OPTION-RANGE"):
        make({"role": "agent", "group": "2.0"})

"""One run, one name: a node answers a run that it knows only to who resumes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from summing_nodes import ENCODING, Nodes, SummingClient, opening, work

from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.secure_sum import SecureSum
from fedkern_flwr.wire import DescribeRequest


class Breaking(SummingClient):
    """Fails where it looks at its rows, as a forged request makes it do."""

    def secure_sum(self, name: str, values: Any) -> None:
        self._looked = True
        raise ValueError(f"row {values[0]}")


def deployed(folder: Path, kind: type[SummingClient] = SummingClient) -> Nodes:
    policy = NodePolicy(min_sum_rows=0)
    return Nodes(kind=kind, simulation=False, state_dir=folder, policy=policy)


@pytest.mark.parametrize("simulation", [True, False])
def test_a_known_run_is_answered_to_who_knows_its_nonce(simulation: bool, tmp_path: Path) -> None:
    more: dict[str, Any] = {} if simulation else {"state_dir": tmp_path}
    nodes = Nodes(simulation=simulation, policy=NodePolicy(min_sum_rows=0), **more)
    again = nodes.ask(0, opening())[0]  # asked twice before it has begun: the same key
    assert again["public_key"] == nodes.keys[0][0]
    assert len(again["nonce"]) == 32
    nodes.contribute(nodes.order())

    def resume(nonces: Any) -> dict[str, Any]:
        how: dict[str, Any] = {"resume_round": 1, "secure": True, "nonces": json.dumps(nonces)}
        return nodes.ask(0, DescribeRequest(session="abc", method="m", **how))[0]

    for said in ({"1": again["nonce"]}, [again["nonce"]]):
        with refused("FK-SESSION-KNOWN"):
            resume(said)
    assert resume({"0": again["nonce"]})["nonce"] == again["nonce"]


def test_another_run_in_between_makes_nothing_forgotten() -> None:
    """Refusals, figures told and budgets of a run stay, whatever else the server opens."""
    nodes = Nodes()
    nodes.contribute(nodes.order())
    nodes.ask(0, opening("between"))
    with refused("FK-SESSION-KNOWN"):
        nodes.ask(0, opening())
    with refused("FK-SESSION-MANY"):
        for k in range(40):
            nodes.ask(0, opening(f"run{k}"))


@pytest.mark.promise("failures-over-all-runs")
def test_failures_by_values_end_the_run_and_count_in_all_runs(tmp_path: Path) -> None:
    nodes = deployed(tmp_path, Breaking)
    for k in range(3):
        if k:
            told = nodes.ask(0, opening(f"run{k}"))[0]
            keys = {**nodes.keys, 0: (told["public_key"], told["signature"])}
            nodes.server = SecureSum(f"run{k}", keys, counts=nodes.counts)
        running = nodes.server.order("a", 3, ENCODING)
        request = type(work())(session=f"run{k}" if k else "abc", round=1)
        with refused("FK-CLIENT-RAISED"):
            nodes.ask(0, request, nodes.server.sections(0, [running]))
        with refused("FK-ORDER-OVER"):
            nodes.ask(0, request, nodes.server.sections(0, [running]))
    with refused("FK-NODE-FAILURES"):
        nodes.ask(0, opening("next"))
    assert NodeLedger(tmp_path).failures(reset=True) == 3
    nodes.ask(0, opening("next"))


def test_the_newest_states_are_kept_whatever_their_digits(tmp_path: Path) -> None:
    client = deployed(tmp_path).client(0)
    for number in range(90, 131):
        client._save(SessionState(session="abc"), number)
    kept = {int(path.stem.rpartition("-")[2]) for path in (tmp_path / "abc").glob("*.state")}
    assert kept == set(range(99, 131))

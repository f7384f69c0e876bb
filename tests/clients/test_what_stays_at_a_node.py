"""What a node keeps to itself when its code fails, and what it erases when a run has died."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr.clients import serve
from fedkern_flwr.errors import FedKernError, RefusedError
from fedkern_flwr.exchange import request_messages
from fedkern_flwr.failure import mark_error
from fedkern_flwr.flower_compat import set_task_identity
from fedkern_flwr.guard import NodePolicy, SumRule
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.node.sums import load_state
from fedkern_flwr.secure_sum import Encoding, SecureSum
from fedkern_flwr.wire import DescribeReply, DescribeRequest, PhaseMessage, sums
from fedkern_flwr.wire.sections import attach, detach

SESSION, ENCODING = "abc", Encoding.fixed_point(10.0)


class Work(sums.SumRequest):
    phase = "work"


class Done(PhaseMessage):
    phase = "work"


class Client(PhaseClient):
    """Contributes a vector to a sum."""

    def handlers(self) -> dict[str, Any]:
        return {"work": (Work, self.work)}

    def describe(self, request: DescribeRequest) -> DescribeReply:
        return DescribeReply(rows=9, features=1)

    def work(self, request: PhaseMessage) -> PhaseMessage:
        assert self.sums is not None
        self.sums.check("a", SumRule(ENCODING, self_masks=None))
        self.sums.contribute("a", np.ones(3))
        return Done()


class Failing(Client):
    def work(self, request: PhaseMessage) -> PhaseMessage:
        raise KeyError(6 * 98765)


class Silent(Client):
    def work(self, request: PhaseMessage) -> Any:
        return None


class Numeric(Client):
    def work(self, request: PhaseMessage) -> PhaseMessage:
        return Work(session=SESSION, round=np.int64(6 * 98765))  # type: ignore[arg-type]


class Unbuilt(Client):
    def __init__(self, context: Context) -> None:
        raise KeyError(6 * 98765)


class Run:
    """Nodes that have announced their keys."""

    def __init__(self, nodes: int = 3, *, simulation: bool = True) -> None:
        own = {"num-partitions": nodes, "simulation": simulation}
        self.contexts = [
            Context(k, 1000 + k, {**own, "partition-id": k}, RecordDict(), {}) for k in range(nodes)
        ]
        keys = {}
        for k in range(nodes):
            reply = self.ask(k, opening(SESSION))[0]
            keys[k] = (reply["public_key"], reply["signature"])
        self.server = SecureSum(SESSION, keys, counts=dict.fromkeys(keys, (9, 0)))

    def ask(
        self, k: int, request: PhaseMessage, sections: Any = (), cls: type[Client] = Client
    ) -> tuple[dict[str, Any], Any]:
        arrays, scalars = attach(list(sections))
        out, _, metrics = cls(self.contexts[k]).fit(
            request.arrays() + arrays, request.scalars() | scalars
        )
        _, own, found = detach(out, metrics, party=f"partition {k}")
        return own, found


def opening(session: str, *, secure: bool = True) -> DescribeRequest:
    return DescribeRequest(session=session, method="m", resume_round=0, secure=secure)


@pytest.mark.parametrize(
    ("kind", "name", "place"),
    [
        (Failing, "KeyError", Failing.work),
        (Silent, "NoReplyError", Silent.work),
        (Numeric, "TypeError", Numeric.work),
        (Unbuilt, "KeyError", Unbuilt.__init__),
    ],
)
def test_what_client_code_raises_is_told_by_its_class_alone(
    caplog: pytest.LogCaptureFixture, kind: Any, name: str, place: Any
) -> None:
    run = Run(simulation=False)
    request = Work(session=SESSION, round=1)
    set_task_identity(1, 1)
    content = request_messages(request, [1], group_id="1")[0]
    with pytest.raises(FedKernError) as caught, caplog.at_level("DEBUG"):
        serve(kind)(content, run.contexts[1])
    assert caught.value.args == (mark_error(name),)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert "592590" not in str(caught.value) + caplog.text
    (record,) = [
        r for r in caplog.records if r.levelname == "ERROR"
    ]  # the place is in the node's log, once, and nothing before it
    first = place.__code__.co_firstlineno
    found = re.findall(r'File "(.+)", line (\d+), in (\w+)', record.getMessage())
    assert found[0][0] == __file__
    assert first <= int(found[0][1]) <= first + 1
    assert found[0][2] == place.__name__


def test_every_party_gets_the_sizes_of_all_tables() -> None:
    """Documented: numbers of rows and held-out rows are in the roster."""
    run = Run()
    running = run.server.order("a", 3, ENCODING)
    run.ask(2, Work(session=SESSION, round=1), run.server.sections(2, [running]))
    state = load_state(run.contexts[2])
    assert state is not None
    assert state.counts == dict.fromkeys(range(3), (9, 0))


@pytest.mark.parametrize("secure", [True, False])
def test_the_next_run_erases_the_secrets_of_one_that_died(secure: bool) -> None:
    run = Run()
    running = run.server.order("a", 3, ENCODING)
    run.ask(2, Work(session=SESSION, round=1), run.server.sections(2, [running]))
    state = load_state(run.contexts[2])
    assert state is not None
    secrets = [root for roots in state.roots.values() for root in roots.values()]
    secrets += [k for one in state.open.values() for pair in one.keys.values() for k in pair]
    assert len(secrets) == 2 + 4
    before = str(run.contexts[2].state)
    assert all(secret.hex() in before for secret in secrets)  # negative control
    run.ask(2, opening("later", secure=secure))
    after = str(run.contexts[2].state)
    assert not any(secret.hex() in after for secret in secrets)
    assert (load_state(run.contexts[2]) is not None) == secure


def test_a_deployed_node_refuses_a_sum_of_two_unless_two_suffice() -> None:
    class Enough(Client):
        enough_parties = 2

    request = Work(session=SESSION, round=1)
    for nodes, simulation, kind, refused in (
        (2, False, Client, True),
        (2, False, Enough, False),
        (2, True, Client, False),
        (3, False, Client, False),
    ):
        run = Run(nodes, simulation=simulation)
        running = run.server.order("a", 3, ENCODING)
        sections = run.server.sections(1, [running])
        if refused:
            with pytest.raises(RefusedError, match="min_parties = 3: a sum has 2"):
                run.ask(1, request, sections, kind)
        else:
            assert run.ask(1, request, sections, kind)[1]


@pytest.mark.parametrize("least", [27, 28])
def test_a_node_refuses_a_sum_of_fewer_rows_than_its_owner_allows(least: int) -> None:
    class Careful(Client):
        def __init__(self, context: Context) -> None:
            super().__init__(context, policy=NodePolicy(min_sum_rows=least))

    run = Run()
    sections = run.server.sections(1, [run.server.order("a", 3, ENCODING)])
    if least == 27:
        assert run.ask(1, Work(session=SESSION, round=1), sections, Careful)[1]
    else:
        with pytest.raises(RefusedError, match="min_sum_rows = 28: a sum has 27"):
            run.ask(1, Work(session=SESSION, round=1), sections, Careful)

"""What a node keeps to itself when its code fails, and what it erases when a run has died."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from summing_nodes import SESSION, Nodes, SummingClient, Work, opening, work

from fedkern_flwr.clients import serve
from fedkern_flwr.errors import FedKernError, RefusedError
from fedkern_flwr.exchange import request_messages
from fedkern_flwr.failure import mark_error
from fedkern_flwr.flower_compat import set_task_identity
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.node.sums import load_state
from fedkern_flwr.wire import PhaseMessage


class Failing(SummingClient):
    def work(self, request: PhaseMessage) -> PhaseMessage:
        raise KeyError(6 * 98765)


class Silent(SummingClient):
    def work(self, request: PhaseMessage) -> Any:
        return None


class Numeric(SummingClient):
    def work(self, request: PhaseMessage) -> PhaseMessage:
        return Work(session=SESSION, round=np.int64(6 * 98765))  # type: ignore[arg-type]


class Unbuilt(SummingClient):
    def __init__(self, context: Context) -> None:
        raise KeyError(6 * 98765)


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
    run = Nodes(3, simulation=False)
    request = work()
    set_task_identity(1, 1)
    content = request_messages(request, [1], group_id="1")[0]
    with pytest.raises(FedKernError) as caught, caplog.at_level("DEBUG"):
        serve(kind)(content, run.contexts[1])
    assert caught.value.args == (f"{mark_error(name)} [FK-CLIENT-RAISED]",)
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
    run = Nodes(3)
    running = run.order()
    run.ask(2, work(), run.server.sections(2, [running]))
    state = load_state(run.contexts[2])
    assert state is not None
    assert state.counts == dict.fromkeys(range(3), (9, 0))


@pytest.mark.parametrize("secure", [True, False])
def test_the_next_run_erases_the_secrets_of_one_that_died(secure: bool) -> None:
    run = Nodes(3)
    running = run.order()
    run.ask(2, work(), run.server.sections(2, [running]))
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
    class Enough(SummingClient):
        enough_parties = 2

    request = work()
    for nodes, simulation, kind, refused in (
        (2, False, SummingClient, True),
        (2, False, Enough, False),
        (2, True, SummingClient, False),
        (3, False, SummingClient, False),
    ):
        run = Nodes(nodes, simulation=simulation)
        running = run.order()
        sections = run.server.sections(1, [running])
        if refused:
            with pytest.raises(RefusedError, match="min_parties = 3: a sum has 2"):
                run.ask(1, request, sections, kind)
        else:
            assert run.ask(1, request, sections, kind)[1]


@pytest.mark.parametrize("least", [27, 28])
def test_a_node_refuses_a_sum_of_fewer_rows_than_its_owner_allows(least: int) -> None:
    class Careful(SummingClient):
        def __init__(self, context: Context) -> None:
            super().__init__(context, policy=NodePolicy(min_sum_rows=least))

    run = Nodes(3)
    sections = run.server.sections(1, [run.order()])
    if least == 27:
        assert run.ask(1, work(), sections, Careful)[1]
    else:
        with pytest.raises(RefusedError, match="min_sum_rows = 28: a sum has 27"):
            run.ask(1, work(), sections, Careful)

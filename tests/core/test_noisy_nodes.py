"""Nodes of sums, message by message: noise, the same values again, what a node keeps to itself."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from refusals import refused
from summing_nodes import ENCODING, SESSION, Nodes, SummingClient, Work, opening, work

from fedkern_flwr.clients import serve
from fedkern_flwr.errors import FedKernError
from fedkern_flwr.exchange import request_messages
from fedkern_flwr.failure import mark_error
from fedkern_flwr.flower_compat import set_task_identity
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.node.sums import load_state
from fedkern_flwr.privacy import Budget, NoisySum, Release, plan_release
from fedkern_flwr.secure_sum import RunningSum
from fedkern_flwr.wire import PhaseMessage, sums

BUDGET = Budget(2.0)


class Question(Work):
    """A request that may ask the same of the rows in another way."""

    gamma: float = 0.0


def question(gamma: float = 0.0) -> Question:
    return Question(session=SESSION, round=1, gamma=gamma)


def own_rows(client: SummingClient) -> OwnRows:
    return OwnRows([(np.arange(9.0)[:, None] + 100.0 * client.partition,)], learned=9)


def planned(parties: int = 4, times: int = 1) -> Release:
    about: Any = {"sensitivity": 3.0, "length": 3, "parties": parties, "least": parties}
    return plan_release("a", BUDGET, **about, times=times)


class NoisyClient(SummingClient):
    """Derives the noise of its sum from the run's budget."""

    adds_noise = True
    times = 1

    own_rows = own_rows

    def handlers(self) -> dict[str, Any]:
        return {"work": (Question, self.work)}

    def secure_sum(self, name: str, values: np.ndarray) -> None:
        assert self.sums is not None
        release = None
        if self.budget is not None:
            release = planned(len(self.sums.party.state.cohorts[0].members), self.times)
            assert self.budget == BUDGET
        rule = replace(self.rule, self_masks=None, release=release)
        self.sums.check(name, rule)
        self.sums.contribute(name, values, release="the question")


class NoisyNodes(Nodes):
    """Nodes of a run that was opened with a budget."""

    def __init__(self, kind: Any = NoisyClient, count: int = 4, **options: Any) -> None:
        super().__init__(count, kind, **options)

    def ask(self, k: int, request: Any, sections: Any = (), kind: Any = None) -> Any:
        if request.phase == "describe":
            request = replace(request, privacy=BUDGET.write())
        return super().ask(k, request, sections, kind)

    def noisy(self, release: Release, **options: Any) -> RunningSum:
        encoding = ENCODING.noisy(release.noise)
        return self.server.order("a", 3, encoding, self_masks=False, **options)

    def total(self, release: Release, gamma: float = 0.0, kind: Any = None) -> np.ndarray:
        """Return the total of a sum that all contribute to."""
        running = self.noisy(release)
        for k in self.members:
            sections = self.server.sections(k, [running])
            self.server.take(k, self.ask(k, question(gamma), sections, kind)[1])
        self.server.unmask_sections([running])
        return self.server.total(running)


def test_a_sum_has_the_noise_of_the_budget_and_the_same_when_it_is_asked_again() -> None:
    """Order after order of the same sum, from clients that are made anew for each."""
    run = NoisyNodes()
    total = run.total(planned())
    assert not np.array_equal(total, np.full(3, 10.0))
    assert np.abs(total - 10.0).max() < 7.0 * planned().noise.deviation(4)
    assert np.array_equal(run.total(planned()), total)


@pytest.mark.promise("noise-own-reckoning")
@pytest.mark.parametrize(
    "change",
    [
        lambda noise: replace(noise, variance=noise.variance * 9 // 10),
        lambda noise: replace(noise, variance=noise.variance + 1),
        lambda noise: replace(noise, fraction=noise.fraction - 1),
        lambda noise: NoisySum(),
    ],
    ids=["less noise", "more noise", "a coarser unit", "none"],
)
def test_an_order_with_other_noise_than_the_node_derives_is_refused(change: Any) -> None:
    run, right = NoisyNodes(), planned()
    running = run.noisy(replace(right, noise=change(right.noise)))
    with refused("FK-ORDER-NOISE"):
        run.ask(0, question(), run.server.sections(0, [running]))


def test_noise_that_the_run_did_not_declare_and_a_budget_without_noise_are_refused() -> None:
    run = Nodes(4, NoisyClient)
    running = run.server.order("a", 3, ENCODING.noisy(planned().noise), self_masks=False)
    with refused("FK-ORDER-NOISE"):
        run.ask(0, question(), run.server.sections(0, [running]))
    with refused("FK-BUDGET-METHOD"):
        NoisyNodes(SummingClient)


@pytest.mark.promise("budget-fixed")
def test_a_run_is_not_opened_again_with_another_budget() -> None:
    run = NoisyNodes()
    for text in ("", replace(BUDGET, epsilon=9.0).write()):
        with refused("FK-SETTINGS-CHANGED"):
            Nodes.ask(run, 0, replace(opening(), privacy=text))
    key = run.state(0).noise_key
    run.ask(0, opening())
    assert run.state(0).noise_key == key
    assert len({run.state(k).noise_key for k in run.members}) == 4


@pytest.mark.promise("budget-kept")
def test_a_server_gets_no_more_releases_than_the_run_said_that_it_costs() -> None:
    """Other numbers under the same name are another release, with noise of its own."""

    class Moved(NoisyClient):
        def secure_sum(self, name: str, values: np.ndarray) -> None:
            super().secure_sum(name, values + 1.0)

    run = NoisyNodes()
    run.total(planned())
    with refused("FK-BUDGET-EXCEEDED"):
        run.total(planned(), kind=Moved)


@pytest.mark.promise("noise-per-question")
def test_another_question_has_noise_of_its_own_though_the_answer_is_the_same() -> None:
    """Else equal totals would tell, without noise, that no node's values differ."""

    class Twice(NoisyClient):
        times = 2

    run, release = NoisyNodes(Twice), planned(times=2)
    first, again, other = (run.total(release, gamma) for gamma in (0.0, 0.0, 1.0))
    assert np.array_equal(first, again)
    assert (first != other).all()


def deployed(folder: Any, **policy: Any) -> dict[str, Any]:
    policy = {"min_sum_rows": 0, **policy}
    return {"simulation": False, "state_dir": folder, "policy": NodePolicy(**policy)}


@pytest.mark.promise("noise-kept-and-erased")
def test_a_run_that_is_resumed_has_the_noise_that_it_had(tmp_path: Any) -> None:
    """Its key is in the node's folder until the run is over: a resumed run has new contexts."""
    about = deployed(tmp_path)
    first = NoisyNodes(**about)
    total, key = first.total(planned()), first.state(1).noise_key
    spent = NodeLedger(tmp_path, 1).spent()
    again = NoisyNodes(resumes=first, **about)
    assert np.array_equal(again.total(planned()), total)
    assert NodeLedger(tmp_path, 1).spent() == spent > 0.0
    assert again.state(1).noise_key == key != again.state(0).noise_key
    again.ask(1, sums.FinishRequest(session=SESSION, round=2))
    assert NoisyNodes(resumes=again, **about).state(1).noise_key != key


@pytest.mark.parametrize("between", [sums.BreakRequest, sums.FinishRequest])
def test_a_name_that_is_used_anew_gets_other_noise_for_other_parties(
    between: Any, tmp_path: Any
) -> None:
    """Else the difference of the sums has none of the noise of the parties that are in both."""
    about = deployed(tmp_path)
    run = NoisyNodes(**about)
    run.total(planned())
    for k in (0, 1, 2):
        run.ask(k, between(session=SESSION, round=9))
    with refused("FK-BUDGET-EXCEEDED"):  # so it would be paid for again
        NoisyNodes(count=3, resumes=run, **about).total(planned(3))


@pytest.mark.promise("values-same-survivors")
@pytest.mark.parametrize("ended", [False, True])
def test_the_same_values_are_opened_over_the_same_survivors(ended: bool, tmp_path: Any) -> None:
    """Else the difference of two rounds is the vector of the one who is said to be late."""
    kind = type("Summing", (SummingClient,), {"same_parties": True, "own_rows": own_rows})
    run = Nodes(4, kind, **deployed(tmp_path))

    def opened(number: int, *alive: int) -> None:
        running = run.order(self_masks=True)
        for k in run.members:
            said = run.ask(k, work(number), run.server.sections(k, [running]))[1]
            if k in alive:
                run.server.take(k, said)
        unmask = sums.UnmaskRequest(session=SESSION, round=number)
        for k, sections in run.server.unmask_sections([running]).items():
            run.server.take(k, run.ask(k, unmask, sections)[1])

    opened(1, 0, 1, 2, 3)
    opened(2, 0, 1, 2, 3)
    if ended:  # and its name is used anew: the ledger knows
        for k in run.members:
            run.ask(k, sums.FinishRequest(session=SESSION, round=9))
        run = Nodes(4, kind, resumes=run, **deployed(tmp_path))
    with refused("FK-ORDER-PARTIES"):
        opened(3, 0, 1, 2)


# -- what a node keeps to itself when its code fails, and erases when a run has died


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
    set_task_identity(1, 1)
    content = request_messages(work(), [1], group_id="1")[0]
    with pytest.raises(FedKernError) as caught, caplog.at_level("DEBUG"):
        serve(kind)(content, run.contexts[1])
    assert caught.value.args == (f"{mark_error(name)} [FK-CLIENT-RAISED]",)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert "592590" not in str(caught.value) + caplog.text
    # the place is in the node's log, once, and nothing before it
    (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
    first = place.__code__.co_firstlineno
    found = re.findall(r'File "(.+)", line (\d+), in (\w+)', record.getMessage())
    assert found[0][0] == __file__
    assert first <= int(found[0][1]) <= first + 1
    assert found[0][2] == place.__name__


@pytest.mark.parametrize("secure", [True, False])
def test_the_next_run_erases_the_secrets_of_one_that_died(secure: bool) -> None:
    run = Nodes(3)
    running = run.order()
    run.ask(2, work(), run.server.sections(2, [running]))
    state = load_state(run.contexts[2])
    assert state is not None
    sizes = {k: counts[:2] for k, counts in state.counts.items()}
    assert sizes == dict.fromkeys(range(3), (9, 0))  # of all tables they are known to all
    secrets = [root for roots in state.roots.values() for root in roots.values()]
    secrets += [k for one in state.open.values() for pair in one.keys.values() for k in pair]
    assert len(secrets) == 2 + 4
    before = str(run.contexts[2].state)
    assert all(secret.hex() in before for secret in secrets)  # negative control
    run.ask(2, opening("later", secure=secure))
    after = str(run.contexts[2].state)
    assert not any(secret.hex() in after for secret in secrets)
    assert (load_state(run.contexts[2]) is not None) == secure


DEPLOYED, ENOUGH = {"simulation": False}, type("Enough", (SummingClient,), {"enough_parties": 2})


@pytest.mark.parametrize(
    ("nodes", "options", "kind", "code"),
    [
        (2, DEPLOYED, SummingClient, "FK-POLICY-PARTIES"),
        (2, DEPLOYED, ENOUGH, ""),
        (2, {}, SummingClient, ""),
        (3, DEPLOYED, SummingClient, ""),
        (3, {"policy": NodePolicy(min_sum_rows=27)}, SummingClient, ""),
        (3, {"policy": NodePolicy(min_sum_rows=28)}, SummingClient, "FK-POLICY-SUM-ROWS"),
    ],
)
def test_a_node_refuses_a_sum_of_fewer_parties_or_rows_than_its_owner_allows(
    nodes: int, options: Any, kind: Any, code: str
) -> None:
    run = Nodes(nodes, **options)
    sections = run.server.sections(1, [run.order()])
    with refused(code) if code else nullcontext():
        assert run.ask(1, work(), sections, kind)[1]

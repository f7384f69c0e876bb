"""Nodes in a run with a budget of privacy: what noise they add is their own reckoning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from summing_nodes import ENCODING, SESSION, Nodes, SummingClient, opening, work

from fedkern_flwr.errors import FedKernError, RefusedError
from fedkern_flwr.guard import NodePolicy, SumRule
from fedkern_flwr.privacy import Budget, Release, plan_release
from fedkern_flwr.secure_sum import RunningSum
from fedkern_flwr.wire import sums

BUDGET = Budget(2.0)


def planned(parties: int = 4) -> Release:
    return plan_release("a", BUDGET, sensitivity=3.0, length=3, parties=parties, least=parties)


class NoisyClient(SummingClient):
    """Derives the noise of its sum from the run's budget."""

    adds_noise = True

    def secure_sum(self, name: str, values: np.ndarray) -> None:
        assert self.sums is not None
        release = None
        if self.budget is not None:
            release = planned(len(self.sums.party.state.cohorts[0].members))
            assert self.budget == BUDGET
        rule = replace(self.rule, self_masks=None, release=release)
        self.sums.check(name, rule)
        self.sums.contribute(name, values, release="the question")


class NoisyNodes(Nodes):
    """Nodes of a run that was opened with a budget."""

    def __init__(self, kind: Any = NoisyClient, **options: Any) -> None:
        super().__init__(4, kind, **options)
        self.privacy = BUDGET.write()

    def ask(self, k: int, request: Any, sections: Any = (), kind: Any = None) -> Any:
        if request.phase == "describe":
            request = replace(request, privacy=BUDGET.write())
        return super().ask(k, request, sections, kind)

    def noisy(self, release: Release, **options: Any) -> RunningSum:
        encoding = ENCODING.noisy(release.noise)
        return self.server.order("a", 3, encoding, self_masks=False, **options)


def test_a_sum_with_the_noise_of_the_budget_is_opened() -> None:
    run = NoisyNodes()
    running = run.noisy(planned())
    run.contribute(running)
    run.server.unmask_sections([running])
    total = run.server.total(running)
    assert not np.array_equal(total, np.full(3, 10.0))
    assert np.abs(total - 10.0).max() < 7.0 * planned().noise.deviation(4)


@pytest.mark.parametrize("change", ["less noise", "more noise", "a coarser unit", "a finer unit"])
def test_an_order_with_other_noise_than_the_node_derives_is_refused(change: str) -> None:
    right = planned()
    noise = {
        "less noise": replace(right.noise, variance=right.noise.variance * 9 // 10),
        "more noise": replace(right.noise, variance=right.noise.variance + 1),
        "a coarser unit": replace(right.noise, fraction=right.noise.fraction - 1),
        "a finer unit": replace(right.noise, fraction=right.noise.fraction + 1),
    }[change]
    run = NoisyNodes()
    running = run.noisy(replace(right, noise=noise))
    with pytest.raises(RefusedError, match="the noise of a sum"):
        run.ask(0, work(), run.server.sections(0, [running]))


def test_an_order_without_noise_is_refused_in_a_run_with_a_budget() -> None:
    run = NoisyNodes()
    with pytest.raises(RefusedError, match="the noise of a sum"):
        run.ask(0, work(), run.server.sections(0, [run.order(self_masks=False)]))


class Careless(SummingClient):
    """A method whose rule says nothing of noise."""

    adds_noise = True


@pytest.mark.parametrize(("change", "fine"), [({}, False), ({"nobodys": True}, True)])
def test_a_sum_for_which_a_method_derives_no_noise_is_refused(change: Any, fine: bool) -> None:
    class Client(Careless):
        rule = replace(SumRule(ENCODING), **change)

    run = NoisyNodes(Client)
    sections = run.server.sections(0, [run.order(self_masks=False)])
    if fine:
        run.ask(0, work(), sections)
        return
    with pytest.raises(RefusedError, match="opens a sum without noise"):
        run.ask(0, work(), sections)


def test_noise_that_the_run_did_not_declare_is_refused() -> None:
    run = Nodes(4, NoisyClient)
    running = run.server.order("a", 3, ENCODING.noisy(planned().noise), self_masks=False)
    with pytest.raises(RefusedError, match="the noise of a sum"):
        run.ask(0, work(), run.server.sections(0, [running]))


def test_a_client_that_adds_no_noise_refuses_the_budget() -> None:
    with pytest.raises(RefusedError, match="adds no noise"):
        NoisyNodes(SummingClient)


def test_a_run_is_not_opened_again_with_another_budget() -> None:
    run = NoisyNodes()
    for text in ("", replace(BUDGET, epsilon=9.0).write()):
        request = replace(opening(), privacy=text)
        with pytest.raises(RefusedError, match="another budget"):
            Nodes.ask(run, 0, request)
    run.ask(0, opening())


def test_noise_is_kept_with_what_the_node_remembers_and_erased_with_it() -> None:
    run = NoisyNodes()
    key = run.state(0).noise_key
    assert len(key) == 32
    run.ask(0, opening())
    assert run.state(0).noise_key == key
    keys = {run.state(k).noise_key for k in run.members}
    assert len(keys) == 4


def test_what_is_asked_again_has_the_noise_that_it_had() -> None:
    """Order after order of the same sum, from clients that are made anew for each."""
    run = NoisyNodes()
    totals = []
    for _ in range(2):
        running = run.noisy(planned())
        run.contribute(running)
        run.server.unmask_sections([running])
        totals.append(run.server.total(running))
    assert np.array_equal(*totals)


def test_a_server_gets_no_more_releases_than_the_run_said_that_it_costs() -> None:
    """Other numbers under the same name are another release, with noise of its own."""

    class Moved(NoisyClient):
        def secure_sum(self, name: str, values: np.ndarray) -> None:
            super().secure_sum(name, values + 1.0)

    run = NoisyNodes()
    for kind, fine in ((NoisyClient, True), (NoisyClient, True), (Moved, False)):
        sections = run.server.sections(0, [run.noisy(planned())])
        if fine:
            run.server.take(0, run.ask(0, work(), sections, kind)[1])
            continue
        with pytest.raises(RefusedError, match="more than the budget that it declared"):
            run.ask(0, work(), sections, kind)


def test_a_run_that_is_resumed_has_the_noise_that_it_had(tmp_path: Any) -> None:
    """Its key is in the node's folder until the run is over: a resumed run has new contexts."""
    about: Any = {"simulation": False, "state_dir": tmp_path, "policy": NodePolicy(min_sum_rows=0)}
    first = NoisyNodes(**about).state(1).noise_key
    again = NoisyNodes(**about)
    assert again.state(1).noise_key == first
    assert again.state(0).noise_key != first
    again.ask(1, sums.FinishRequest(session=SESSION, round=2))
    assert NoisyNodes(**about).state(1).noise_key != first


def test_without_dp_accounting_a_node_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(FedKernError, match="pip install"):
        NoisyNodes()

"""Servers of HierarchicalSVM that lie: what groups are told, and which totals are opened."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import svm_groups
from refusals import refuses
from svm_groups import GROUPS, USERS, Network, Open, check_optimum, delays, hits

from fedkern_flwr.exchange import SumSpec
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.node.sums import ClientSums
from fedkern_flwr.nodes import Overlap
from fedkern_flwr.secure_sum import SecureSum
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Fault
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.strategies import HierarchicalSVM, hierarchical_svm
from fedkern_flwr.strategies.hierarchical_loop import GroupLoop
from fedkern_flwr.strategies.hierarchical_runs import RowRun

network, same_session = svm_groups.network, svm_groups.same_session


@pytest.mark.promise("svm-told-alike")
@pytest.mark.parametrize(
    ("story", "code"),
    [("now", "FK-PARTIES-LOST"), ("before", "FK-PARTIES-LOST"), ("at first", "FK-SUM-MASKS")],
)
def test_a_group_that_is_told_different_things_has_no_sum(
    story: str, code: str, network: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it makes one user do, now or before, a server never reads: masks do not cancel.

    With the name of another request; with its own, tests/contracts/test_forged_orders.py, a node
    says that it was not asked.
    """
    make, ask = GroupLoop._user_requests, RowRun.ask_users
    carry, names = SecureSum.sections, dict[str, str]()

    def deceive(self: Any, one: Any, *, opening: bool) -> Any:
        found = make(self, one, opening=opening)
        told = one.name
        if story == "before" and opening:  # all the same, whatever the sum was
            far = np.full_like(next(iter(found.values())).sigma, 1e30)
            found = {user: replace(request, sigma=far) for user, request in found.items()}
        if opening == (story == "now") and 3 in found and story != "at first":
            name = found[3].sum_name(told)
            found[3] = replace(found[3], next_sigma=2.0 * found[3].next_sigma)
            names[name] = found[3].sum_name(told)
        return found

    def begin(self: Any, requests: Any, *args: Any, **more: Any) -> Any:
        if story == "at first" and isinstance(requests, dict):  # the columns' statistics
            lie = replace(requests[3], c=1e5)
            names[requests[3].sum_name("")] = lie.sum_name("")
            requests = {**requests, 3: lie}
        return ask(self, requests, *args, **more)

    def forge(self: Any, partition: int, sums: Any) -> Any:
        own = names if partition == 3 else {}
        return [
            replace(s, name=own[s.name]) if getattr(s, "name", "") in own else s
            for s in carry(self, partition, sums)
        ]

    monkeypatch.setattr(GroupLoop, "_user_requests", deceive)
    monkeypatch.setattr(RowRun, "ask_users", begin)
    monkeypatch.setattr(SecureSum, "sections", forge)
    caught = refuses(code, network("pairwise").learn)
    assert "partition 3" in str(caught)
    assert names


@pytest.mark.promise("faults-sealed")
def test_pads_of_two_sums_are_not_mixed(network: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two sums of an iteration the first user gets the pad of the one that was not completed."""
    take, sealed = Overlap.arrived, list[bytes]()

    def mix(self: Any, number: int) -> Any:
        found, agent = take(self, number), USERS  # that of the first group
        if agent in found.replies:
            reply = found.replies[agent]
            sealed.append(reply.sealed)
            half = len(reply.sealed) // 2
            if len(sealed) == 2:
                found.replies[agent] = replace(reply, sealed=sealed[0][:half] + reply.sealed[half:])
        return found

    monkeypatch.setattr(Overlap, "arrived", mix)
    refuses("FK-SUM-CHANGED", network("pairwise").learn, hits(1, "svm-step", Fault("error")))
    assert len(sealed) >= 2


class _Deceitful(GroupLoop):
    """Orders sums otherwise than the requests declare them."""

    @property
    def sums(self) -> Any:
        true, changed = super().sums, copy(super().sums)
        changed.order = lambda spec, *more: true.order(self.changed(spec), *more)
        return changed

    def changed(self, spec: SumSpec) -> SumSpec:
        raise NotImplementedError


class _Curious(_Deceitful):
    """Orders the agents' total once more in each exchange, under its other name, over fewer."""

    def changed(self, spec: SumSpec) -> SumSpec:
        if spec.name == wire.AGENTS_SUM and self.tick > 3:
            spec = replace(spec, name=wire.LEFT_SUM, self_masks=self.leave_out)
        elif spec.name == wire.AGENTS_SUM:
            spec = replace(spec, cohort=spec.cohort + 1)
        return spec


def with_fewer(strategy: HierarchicalSVM) -> list[list[int]]:
    """Have a set of all agents but one before that of all agents."""
    found = COHORTS(strategy)
    assert found is not None
    return [*found[:-1], found[-1][:-1], found[-1]]


COHORTS = HierarchicalSVM.cohorts


def refuse(
    monkeypatch: pytest.MonkeyPatch, loop: type[GroupLoop], found: Network, code: str, **more: Any
) -> HierarchicalSVM:
    """Have the groups iterated otherwise; return the strategy whose run is refused."""
    monkeypatch.setattr(hierarchical_svm, "GroupLoop", loop)
    options = {"seed": 3, "tolerance": 1e-12, "lost_groups": more.pop("lost_groups", "leave-out")}
    strategy = HierarchicalSVM(**options)
    refuses(code, simulate, strategy, found.client_fn, len(found.tables), num_rounds=6, **more)
    return strategy


@pytest.mark.promise("svm-same-agents")
@pytest.mark.parametrize(
    ("lost_groups", "code"), [("stop", "FK-ORDER-TERMS"), ("leave-out", "FK-SETTINGS-CHANGED")]
)
def test_totals_are_of_the_same_agents_only(
    lost_groups: Any, code: str, network: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HierarchicalSVM, "cohorts", with_fewer)
    found = network("pairwise")
    strategy = refuse(monkeypatch, _Curious, found, code, lost_groups=lost_groups)
    assert len(strategy.trace_) == 3


@pytest.mark.parametrize(
    ("name", "fault"),
    [("leave-out", ("svm-combine", 9)), ("asynchronous, leave-out", ("svm-step", 2))],
)
def test_no_term_is_in_a_total_of_all_agents_and_in_one_of_those_left(
    name: str, fault: tuple[str, int], network: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost reply may arrive late: then the total of all is open, and no self mask hides it."""
    totals: dict[str, set[bytes]] = {wire.AGENTS_SUM: set(), wire.LEFT_SUM: set()}
    contribute = ClientSums.contribute

    def kept(sums: ClientSums, order: str, values: Any, **more: Any) -> None:
        if order in totals:
            totals[order].add(np.asarray(values).tobytes())
        contribute(sums, order, values, **more)

    monkeypatch.setattr(ClientSums, "contribute", kept)
    found, (phase, partition) = network(name), fault
    lost = hits(partition, phase, Fault("lost reply"), 5, always=True)

    def plan(delivery: Delivery) -> Fault | None:
        return lost(delivery) or delays(1, 0.002)(delivery)

    strategy = found.learn(plan, 60, timeout=0.6, tolerance=2e-3)
    check_optimum(strategy, found, [1])
    assert len(totals[wire.LEFT_SUM]) > 6
    assert not totals[wire.AGENTS_SUM] & totals[wire.LEFT_SUM]


class _Hasty(GroupLoop):
    """Asks the agents that are left for the terms that all of them were asked for."""

    def _pass_over(self) -> Any:
        self.attempt = 0
        self._ask((), total=True)
        yield from ()


def test_an_agent_adds_a_term_to_one_kind_of_total(
    network: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = hits(9, "svm-combine", Fault("lost reply"), 4, always=True)
    found = network("leave-out")
    refuse(monkeypatch, _Hasty, found, "FK-ORDER-TWICE", faults=lost, timeout=0.3)


class _Twofold(_Deceitful):
    """Opens the total of one exchange twice: over all agents, then over those who answer again."""

    def changed(self, spec: SumSpec) -> SumSpec:
        left = spec.name == wire.AGENTS_SUM
        return replace(spec, name=wire.LEFT_SUM, self_masks=True) if left else spec

    def _read_total(self) -> Any:
        again = self.tick == 4 and self.attempt == 1
        if again and len(self.agents & self.answered) == GROUPS - 1:
            raise AssertionError(f"opened twice: {self._open()}")
        yield from super()._read_total()

    def _take_total(self, total: Any) -> Any:
        if self.tick == 4 and self.attempt == 0:
            self.attempt = 1
            self._ask((), total=True)
        else:
            yield from super()._take_total(total)


@pytest.mark.promise("svm-one-opening")
def test_agents_open_a_total_over_one_set_of_agents(
    network: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = hits(11, "svm-combine", Fault("lost reply"), 5)
    found = network("leave-out")
    strategy = refuse(monkeypatch, _Twofold, found, "FK-SUM-SILENT", faults=lost, timeout=3.0)
    assert len(strategy.trace_) == 3

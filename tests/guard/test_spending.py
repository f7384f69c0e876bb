"""What releases with noise cost the rows of a node, and what its owner lets them cost."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused, refuses

from fedkern_flwr.guard import NodePolicy, opened
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.guard.opened import Charge, Opening
from fedkern_flwr.guard.policy import Rules, check_run
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.privacy import Budget, Release, plan_release
from fedkern_flwr.privacy.accounting import epsilon_of

RUN: dict[str, Any] = {"kind": "K", "method": "m", "secure": True, "pinned": False}


def release(epsilon: float, delta: float = 1e-5) -> Release:
    budget = Budget(epsilon, delta)
    return plan_release("sum", budget, sensitivity=2.0, length=50, parties=3, least=3)


def table(ids: range, learned: int | None = None) -> OwnRows:
    x = np.array([[float(k)] for k in ids])
    return OwnRows([(x,)], [str(k) for k in ids], len(ids) if learned is None else learned)


def spend(
    ledger: NodeLedger,
    session: str,
    rows: OwnRows,
    one: Release,
    *,
    most: float = np.inf,
    key: bytes = b"k",
    held_out: bool = False,
    permanent: bool = False,
    **run: Any,
) -> None:
    ledger.open_run(session, rows=rows, **{**RUN, **run})
    charges = [Charge(key, one, held_out)]
    answers = [Opening("sum", parties=3)]
    ledger.rules = Rules(policy=NodePolicy(max_epsilon=most, permanent_ids=permanent))
    ledger.enter(session, answers, charges=charges)


def epsilons(ledger: NodeLedger) -> list[float]:
    return [run.epsilon for run in ledger.runs()]


def test_a_run_is_told_what_it_cost(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    ledger.open_run("none", rows=table(range(20)), **RUN)
    spend(ledger, "a", table(range(20)), release(1.0))
    assert epsilons(ledger) == [0.0, pytest.approx(1.0, rel=1e-3)]


def test_a_repeated_release_is_charged_once_and_another_again(tmp_path: Path) -> None:
    ledger, one = NodeLedger(tmp_path), release(1.0)
    for _ in range(3):
        spend(ledger, "a", table(range(20)), one)
    assert epsilons(ledger) == [pytest.approx(1.0, rel=1e-3)]
    refuses("FK-BUDGET-EXCEEDED", spend, ledger, "a", table(range(20)), one, key=b"other noise")
    half = replace(one, budget=Budget(3.0))  # a part of a run's budget
    spend(ledger, "b", table(range(20)), half, key=b"first")
    spend(ledger, "b", table(range(20)), half, key=b"second")
    assert epsilons(ledger)[1] == pytest.approx(epsilon_of(2 * one.curve, one.delta))


@pytest.mark.promise("noise-all-runs")
def test_runs_about_the_same_rows_add_up_until_the_owner_s_limit(tmp_path: Path) -> None:
    ledger, one = NodeLedger(tmp_path), release(1.0)
    both = epsilon_of(2 * one.curve, one.delta)
    spend(ledger, "a", table(range(20)), one, most=both * 0.99)
    refuses("FK-BUDGET-SPENT", spend, ledger, "b", table(range(20)), one, most=both * 0.99)
    assert epsilons(ledger)[1] == 0.0  # what is refused is not entered
    spend(ledger, "c", table(range(20)), one, most=both * 1.01)


@pytest.mark.promise("noise-all-runs")
def test_runs_of_all_methods_add_up_whatever_their_rows_are_called(tmp_path: Path) -> None:
    """The same patients come scaled otherwise, or with other ids: no row tells that it is new."""
    ledger, one = NodeLedger(tmp_path), release(1.0)
    both = epsilon_of(2 * one.curve, one.delta)
    scaled = OwnRows([(np.arange(20.0)[:, None] / 7,)], None, 20)
    spend(ledger, "a", table(range(20)), one, most=both * 1.01)
    spend(ledger, "b", scaled, one, most=both * 1.01, kind="other")
    assert ledger.spent() == pytest.approx(both)
    with refused("FK-BUDGET-SPENT"):
        spend(ledger, "c", table(range(50, 70)), one, most=both * 1.01, kind="third")
    spend(NodeLedger(tmp_path, 1), "d", table(range(20)), one, most=1.01)  # another node


def test_people_with_ids_that_are_permanent_pay_for_their_own_runs(tmp_path: Path) -> None:
    ledger, one = NodeLedger(tmp_path), release(1.0)
    how: dict[str, Any] = {"most": 1.1, "permanent": True}
    spend(ledger, "a", table(range(20)), one, **how)
    spend(ledger, "others", table(range(20, 40)), one, **how)
    with refused("FK-BUDGET-SPENT"):  # one is in both
        spend(ledger, "b", table(range(19, 60)), one, **how)
    spend(ledger, "cheap", table(range(60, 80)), release(0.05), **how)  # it lowers nobody's cost
    assert ledger.spent() == pytest.approx(1.0, rel=1e-3)
    nameless = OwnRows([(np.arange(100.0, 120.0)[:, None],)], None, 20)
    refuses("FK-BUDGET-SPENT", spend, ledger, "c", nameless, one, **how)


def test_held_out_rows_are_other_rows(tmp_path: Path) -> None:
    """Releases about disjoint records do not add up; with the next split they do."""
    ledger, one = NodeLedger(tmp_path), release(1.0)
    spend(ledger, "a", table(range(20), 14), one, most=1.1)
    spend(ledger, "a", table(range(20), 14), one, most=1.1, key=b"e", held_out=True)
    assert epsilons(ledger) == [pytest.approx(1.0, rel=1e-3)]
    refuses("FK-BUDGET-SPENT", spend, ledger, "b", table(range(20), 8), one, most=1.1)


def test_a_party_without_rows_is_charged_nothing(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    spend(ledger, "a", table(range(0)), release(1.0), most=0.5)
    assert epsilons(ledger) == [0.0]


def test_the_smallest_delta_counts(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    first, second = release(1.0, 1e-5), release(1.0, 1e-8)
    first, second = (replace(one, budget=Budget(9.0)) for one in (first, second))
    spend(ledger, "a", table(range(20)), first)
    spend(ledger, "a", table(range(20)), second, key=b"l")
    assert epsilons(ledger) == [pytest.approx(epsilon_of(first.curve + second.curve, 1e-8))]
    assert ledger.spent() == pytest.approx(epsilons(ledger)[0])  # what is kept says the same


def test_the_key_of_a_run_s_noise_lasts_until_it_is_over(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    for session in ("a", "b"):
        ledger.open_run(session, rows=table(range(20)), **RUN)
    first = ledger.noise_key("a")
    assert len(first) == 32
    assert NodeLedger(tmp_path).noise_key("a") == first != ledger.noise_key("b")
    ledger.end_run("a")
    assert ledger.noise_key("a") != first


def test_a_budget_counts_from_today_where_sums_were_exact_before(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    ledger.open_run("a", rows=table(range(20)), **RUN)
    ledger.enter("a", [Opening("sum", parties=3, numbers=1.0)])
    spend(ledger, "b", table(range(20)), release(1.0))
    assert [ledger.has_exact_sums(run) for run in ("a", "b")] == [False, True]


@pytest.mark.promise("noise-limit")
@pytest.mark.parametrize(("most", "budget", "tells", "secure", "code"), [
    (3.0, None, True, True, "FK-POLICY-NOISE"), (3.0, None, False, True, ""),
    (3.0, Budget(3.1), True, True, "FK-POLICY-EPSILON"), (3.0, Budget(3.0), True, True, ""),
    (np.inf, None, True, True, ""), (np.inf, Budget(9.0), True, True, ""),
    (np.inf, Budget(9.0), True, False, "FK-BUDGET-PLAIN"),
])  # fmt: skip
def test_a_run_is_opened_only_within_the_limit(
    most: float, budget: Budget | None, tells: bool, secure: bool, code: str
) -> None:
    policy = NodePolicy(max_epsilon=most, require_secure_sums=False)
    about: dict[str, Any] = {"secure": secure, "pinned": True, "budget": budget, "tells": tells}
    if not code:
        check_run(policy, "m", **about)
        return
    refuses(code, check_run, policy, "m", **about)


@pytest.mark.parametrize(("about", "code"), [
    ({}, ""),
    ({"budget": Budget(1.0, delta=0.5)}, "FK-POLICY-DELTA"),
    ({"budget": Budget(1.0, colluders=0)}, "FK-POLICY-COLLUDERS"),
    ({"remembers": False}, "FK-POLICY-STATE"),
    pytest.param(
        {"pinned": False}, "FK-BUDGET-IDENTITIES",
        marks=pytest.mark.promise("noise-of-known-parties"),
    ),
])  # fmt: skip
def test_a_promise_is_of_delta_colluders_parties_and_runs(about: dict[str, Any], code: str) -> None:
    """Parties that the server has invented would add no noise."""
    about = {"secure": True, "pinned": True, "budget": Budget(1.0), **about}
    check_run(NodePolicy(), "fed-cg", **about)  # whose owner promises nobody anything
    with refused(code) if code else nullcontext():
        check_run(NodePolicy(max_epsilon=1.0), "fed-cg", **about)


def test_what_is_told_of_a_party_adds_up_whichever_rows_it_is_about(tmp_path: Path) -> None:
    """Learned and held-out rows are one party's; those of records are not."""
    one, found = release(1.0), {}
    both = epsilon_of(2 * one.curve, one.delta)
    for unit in ("row", "party"):
        ledger = NodeLedger(tmp_path / unit)
        told = replace(one, budget=Budget(3.0, unit=unit))
        for held_out in (False, True):
            key = b"held out" if held_out else b"learned"
            spend(ledger, "a", table(range(20), 12), told, key=key, held_out=held_out)
        found[unit] = epsilons(ledger)[0]
        refuses("FK-BUDGET-SPENT", spend, ledger, "b", table(range(20), 12), told, most=both * 0.99)
    assert found == {"row": pytest.approx(1.0, rel=1e-3), "party": pytest.approx(both)}


# -- releases about some of the rows, as each message of a stream is


def message(ledger: NodeLedger, run: str, start: int, one: Release, *, most: float) -> None:
    ledger.open_run(run, rows=table(range(20)), **RUN)
    charges = [Charge(b"%d" % start, one, rows=(start, start + 5))]
    ledger.rules = Rules(policy=NodePolicy(max_epsilon=most))
    ledger.enter(run, [], charges=charges)


def test_messages_about_other_rows_do_not_add_up_and_a_second_run_does(tmp_path: Path) -> None:
    ledger, one = NodeLedger(tmp_path), release(1.0)
    both = epsilon_of(2 * one.curve, one.delta)
    for run in ("a", "b"):
        for start in (0, 5, 10):
            message(ledger, run, start, one, most=both * 1.01)
    assert epsilons(ledger) == [pytest.approx(1.0, rel=1e-3)] * 2
    for start in (5, 15):  # which rows of a table these are, in another run, nobody can tell
        refuses("FK-BUDGET-SPENT", message, ledger, "c", start, one, most=both * 1.01)


def test_rows_at_other_places_of_a_stream_do_not_add_up(tmp_path: Path) -> None:
    ledger, one = NodeLedger(tmp_path), release(1.0)

    def window(run: str, start: int, most: float) -> None:
        ledger.open_run(run, rows=table(range(0)), **RUN)
        taken = table(range(start, start + 5)).digests(b"k" * 32)
        charges = [Charge(b"%d" % start, one, rows=(start, start + 5))]
        ledger.rules = Rules(policy=NodePolicy(max_epsilon=most))
        ledger.enter(run, [], charges=charges, taken=taken)

    for run, start in (("a", 0), ("a", 5), ("b", 10)):
        window(run, start, 1.01)
    assert ledger.spent() == pytest.approx(1.0, rel=1e-3)
    refuses("FK-BUDGET-SPENT", window, "b", 4, 1.01)
    with refused("FK-BUDGET-SPENT"):  # a run about a table adds to all of them
        spend(ledger, "c", table(range(90, 99)), one, most=1.01)


def test_messages_about_some_of_the_same_rows_add_up_within_a_run(tmp_path: Path) -> None:
    ledger, one = NodeLedger(tmp_path), release(1.0)
    message(ledger, "a", 0, one, most=np.inf)
    refuses("FK-BUDGET-EXCEEDED", message, ledger, "a", 4, one, most=np.inf)
    message(ledger, "b", 0, replace(one, budget=Budget(3.0)), most=np.inf)
    message(ledger, "b", 3, replace(one, budget=Budget(3.0)), most=np.inf)
    both = epsilon_of(2 * one.curve, one.delta)  # of the rows that are in both
    assert epsilons(ledger) == [pytest.approx(1.0, rel=1e-3), pytest.approx(both)]


def test_messages_about_a_party_add_up_in_all_runs_whatever_their_rows(tmp_path: Path) -> None:
    ledger, one = NodeLedger(tmp_path), release(1.0)
    one = replace(one, budget=Budget(2.0, unit="party"))
    both = epsilon_of(2 * one.curve, one.delta)
    message(ledger, "a", 0, one, most=both * 1.01)
    ledger.open_run("b", rows=table(range(50, 60)), **RUN)
    taken = table(range(50, 60)).digests(b"k" * 32)
    charges = [Charge(b"other rows", one, rows=(0, 5))]
    ledger.rules = Rules(policy=NodePolicy(max_epsilon=both * 1.01))
    ledger.enter("b", [], charges=charges, taken=taken)
    refuses("FK-BUDGET-SPENT", message, ledger, "a", 5, one, most=both * 1.01)


def test_a_stream_does_not_go_back_and_its_record_stays_short() -> None:
    one, found = release(1.0), {}
    for start in (0, 5, 5, 10):  # one is asked for again
        charge = Charge(b"%d" % start, one, rows=(start, start + 5))
        found = opened.spend(found, [charge])
    assert len(found) == 1
    refuses("FK-BUDGET-AGAIN", opened.spend, found, [Charge(b"other", one, rows=(14, 19))])


def test_all_rows_are_not_asked_for_after_messages_of_some() -> None:
    """What messages of a stream cost is of their own rows: a sum of all would cost them twice."""
    one = release(1.0)
    found = opened.spend({}, [Charge(b"0", one, rows=(0, 5))])
    refuses("FK-BUDGET-AGAIN", opened.spend, found, [Charge(b"all", one)])
    assert len(opened.spend(found, [Charge(b"held out", one, held_out=True)])) == 2


def test_messages_of_a_party_add_up_within_a_run() -> None:
    one, found = release(1.0), {}
    one = replace(one, budget=Budget(epsilon_of(3 * one.curve, one.delta) * 1.001, unit="party"))
    for start in (0, 5, 5, 10):
        charge = Charge(b"%d" % start, one, rows=(start, start + 5))
        found = opened.spend(found, [charge])
    assert len(found) == 2
    refuses("FK-BUDGET-EXCEEDED", opened.spend, found, [Charge(b"15", one, rows=(15, 20))])

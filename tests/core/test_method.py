"""A method is a generator of rounds; of what its clients hold only noisy or masked sums leave."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import PowerCutError
from flwr.app import Context
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from refusals import raises, refused, refuses
from summing_nodes import (
    ENCODING,
    HELD_SUM,
    ROW_SUM,
    SESSION,
    Done,
    Mean,
    MeanClient,
    Nodes,
    SummingClient,
    Work,
    opening,
    work,
)

from fedkern_flwr import nodes, registered
from fedkern_flwr.clients import serve
from fedkern_flwr.errors import FedKernError, ProtocolError, StreamError, SumError
from fedkern_flwr.failure import mark_error
from fedkern_flwr.flower_compat import set_task_identity
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.method import (
    Ask,
    MethodClient,
    Sum,
    SumSpec,
    answers,
    contributes,
)
from fedkern_flwr.node.state import KeptState, Recent, load_state
from fedkern_flwr.options import declared
from fedkern_flwr.privacy import Budget, NoisySum, Release, plan_release
from fedkern_flwr.secure_sum import Encoding, RunningSum
from fedkern_flwr.simulations import Fault, FaultPlan, simulate
from fedkern_flwr.simulations.run.options import options
from fedkern_flwr.transport import request_messages
from fedkern_flwr.wire import PhaseMessage, sums
from fedkern_flwr.wire.message import attach, detach
from fedkern_flwr.wire.method import pack, unpack

CLIENTS, ROWS = 5, 12

X = np.random.default_rng(3).random((CLIENTS, ROWS, 2))


def make(kind: type[MethodClient] = MeanClient, **own: Any) -> Callable[[Context], MethodClient]:
    def client(context: Context) -> MethodClient:
        k = int(context.node_config["partition-id"])
        return kind(context, X[k], x_test=X[k, :6], **own)

    return client


def test_a_method_of_ten_lines_is_the_pooled_one() -> None:
    strategy = Mean()
    simulate(strategy, make(), CLIENTS, serialise=True)
    np.testing.assert_allclose(strategy.model_["mean"], X.mean(axis=(0, 1)), rtol=0, atol=1e-12)
    far = np.abs(X.mean(axis=1) - X.mean(axis=(0, 1))).max(axis=1)
    assert strategy.metrics_["far"] == pytest.approx(far.tolist(), abs=1e-6)
    assert (strategy.metrics_["rows"], strategy.metrics_["held"]) == (60, 30)
    privacy = strategy.privacy()
    assert [entry["name"] for entry in privacy["sums"]] == ["rows", "evaluate/held"]
    assert privacy["sums"][0] == {"name": "rows", "numbers": 3, "unknowns": 96}
    assert strategy.model()[1]["dimension"] == 2
    few = Mean()  # figures of held-out rows obey the policy
    simulate(few, make(policy=NodePolicy(min_evaluation_rows=100)), CLIENTS)
    assert (few.metrics_["held"], few.metrics_["rows"]) == (0, 60)


def lose(*lost: tuple[int, str, int]) -> FaultPlan:
    """Lose the requests of (partition, phase, exchange)."""
    return FaultPlan([(k, phase, number, Fault("vanished")) for k, phase, number in lost])


def test_who_does_not_answer_a_question_is_asked_again_alone() -> None:
    asked: list[int] = []

    class Counting(MeanClient):
        @answers("judge")
        def judge(self, mean: Any, note: str) -> dict[str, Any]:
            asked.append(self.partition)
            return super().judge(mean, note)

    strategy = Mean()
    simulate(strategy, make(Counting), CLIENTS, faults=lose((3, "method", 3), (3, "method", 4)))
    assert {k: asked.count(k) for k in asked} == {0: 1, 1: 1, 2: 1, 3: 3, 4: 1}
    assert len(strategy.metrics_["far"]) == CLIENTS


def adding(values: Callable[[Any], Any]) -> Callable[[Context], MethodClient]:
    """Make clients that add these values to the sum of rows."""

    class Adding(MeanClient):
        @contributes(ROW_SUM)
        def add(self, k: int) -> Any:
            return values(self)

    return make(Adding)


def asking(*steps: Any) -> Mean:
    """Make a method of these steps."""

    class Asking(Mean):
        def rounds(self, parties: Any) -> Any:
            for step in steps:  # noqa: UP028 - a tuple takes no answers
                yield step

    return Asking()


def test_more_numbers_than_unknowns_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    steps = [ROW_SUM({"sum": (200,), "count": ()}, k=k) for k in range(3)]
    simulate(asking(*steps), adding(lambda _: {"count": 1, "sum": np.zeros(200)}), CLIENTS)
    (said,) = [r.getMessage() for r in caplog.records if "can be computed" in r.getMessage()]
    assert "behind the sum 'rows'" in said
    assert "201 numbers would be released about 96 unknowns" in said


@pytest.mark.parametrize(("who", "fail", "code"), [
    (range(CLIENTS), lambda: 1 / 0, "FK-CLIENT-RAISED"),
    ({1}, lambda: np.empty(1 << 58), "FK-COMMAND-MEMORY"),
])  # fmt: skip
def test_what_fails_is_not_asked_for_again(who: Any, fail: Any, code: str, caplog: Any) -> None:
    asked: list[int] = []

    def add(client: MeanClient) -> Any:
        asked.append(client.partition)
        return fail() if client.partition in who else MeanClient.add(client, 0)

    met = refuses(code, simulate, Mean(), adding(add), CLIENTS)
    assert sorted(asked) == list(range(CLIENTS))
    if len(who) == 1:  # and is named in a line
        assert str(met).count("partition 1") == 1
        assert not [r for r in caplog.records if "\n" in r.getMessage()]


@pytest.mark.parametrize(("returned", "code"), [
    (None, "FK-CLIENT-REPLY"), ({"count": 1}, "FK-CLIENT-REPLY"),
    ({"count": 1, "sum": np.zeros(3)}, "FK-CLIENT-REPLY"),
    ({"count": 1, "sum": [0.0, 1e9]}, "FK-SUM-BOUND"),
    ({"count": np.nan, "sum": [0.0, 0.0]}, "FK-SUM-BOUND"),
])  # fmt: skip
def test_terms_that_do_not_fit_are_refused(returned: Any, code: str) -> None:
    refuses(code, simulate, Mean(), adding(lambda _: returned), CLIENTS)


def test_a_run_ends_with_sums_that_open_by_themselves() -> None:
    ring = Encoding.fixed_point(1.0)
    terms = [SumSpec(name="rows", length=1, encoding=ring, self_masks=masks) for masks in (0, 1)]
    Ask("tell", sums=terms[:1], ends=True)
    for more in ({"sums": terms}, {"until": "enough"}, {"until": "tried"}):
        refuses("FK-METHOD-STEP", Ask, "tell", ends=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("step", "code"), [
    (3, "FK-METHOD-STEP"), (ROW_SUM, "FK-METHOD-STEP"),
    (Sum("rows", bound=2.0)({"count": (), "sum": (2,)}, k=0), "FK-ORDER-BOUND"),
    (Sum("judge")({"far": ()}), "FK-CLIENT-MARK"),
    (Ask("rows", {"k": 0}), "FK-CLIENT-MARK"), (Ask("tell"), "FK-CLIENT-REPLY"),
    (Ask("weigh"), "FK-CLIENT-HANDLER"),
])  # fmt: skip
def test_steps_that_do_not_fit_their_handlers_are_refused(step: Any, code: str) -> None:
    class Telling(MeanClient):
        @answers("tell")
        def tell(self) -> Any:
            return (1, 2)

    refuses(code, simulate, asking(step), make(Telling), CLIENTS)


def test_a_sum_that_may_have_been_opened_is_not_summed_again(tmp_path: Path) -> None:
    own = make(state_dir=tmp_path / "state")
    options: dict[str, Any] = {"times": 2, "checkpoint": tmp_path / "run.npz"}
    first = Mean(**options)
    kept: list[bytes] = []
    first.on_round = lambda *_: kept.append((tmp_path / "run.npz").read_bytes())
    simulate(first, own, CLIENTS)
    (tmp_path / "run.npz").write_bytes(kept[0])  # an earlier checkpoint: the nodes have gone on
    refuses("FK-CHECKPOINT-OPENED", simulate, Mean(**options, resume=True), own, CLIENTS)


@pytest.mark.parametrize("which", [1, 2])
def test_a_sum_being_opened_is_opened_over_the_same_clients(
    which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut before that, a run goes on as well: see tests/contracts/test_faults.py."""
    whole, own = Mean(times=3), make(state_dir=tmp_path / "state")
    simulate(whole, own, CLIENTS)
    options: dict[str, Any] = {"times": 3, "checkpoint": tmp_path / "run.npz", "threshold": 4}
    first, opened, exchange = Mean(**options), list[str](), nodes.Nodes.ask

    def cut(*args: Any, **more: Any) -> Any:
        found = exchange(*args, **more)
        opened.extend([more["phase"]] * (more["phase"] == "unmask"))
        if len(opened) == which:
            raise PowerCutError
        return found

    with monkeypatch.context() as patched:
        patched.setattr(nodes.Nodes, "ask", cut)
        raises(PowerCutError, simulate, first, own, CLIENTS)
    gone = FaultPlan([(2, "method", None, Fault("vanished"))])
    with refused("FK-PARTIES-LOST"):
        simulate(Mean(**options, resume=True, attempts=1), own, CLIENTS, faults=gone)
    resumed = Mean(**options, resume=True)
    simulate(resumed, own, CLIENTS)
    assert resumed.metrics_ == whole.metrics_


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)

ARRAYS = st.builds(
    lambda shape, kind: np.arange(int(np.prod(shape))).reshape(shape).astype(kind),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(["<f8", "<f4", "<i8", "<i4", "|b1"]),
)


@given(values=st.dictionaries(st.text(max_size=4), PLAIN | ARRAYS, max_size=4))
@settings(max_examples=60)
def test_values_travel_as_they_are(values: dict[str, Any]) -> None:
    found, sizes = unpack(*pack(values, {"n": 3}), party="p")
    assert sizes == {"n": 3}
    assert found.keys() == values.keys()
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype
            np.testing.assert_array_equal(found[name], value)
        else:
            assert found[name] == value


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), np.array(["a"])])
def test_what_cannot_travel_is_refused_where_it_is_made(value: Any) -> None:
    refuses("FK-MESSAGE-SEND", pack, {"thing": value})


def test_entry_points_are_found_or_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    points = dict.fromkeys(("kernel-pca", "misnamed"), "fedkern_flwr.strategies:KernelPCA")
    points |= {"gone": "no_such_package:Method", "other": "fedkern_flwr.strategies:FedCG"}
    found = {n: EntryPoint(n, v, registered.GROUP) for n, v in points.items()}
    monkeypatch.setattr(registered, "registered", lambda: found)
    find = registered.find_method.__wrapped__
    assert find("kernel-pca").title == "Kernel PCA"
    codes = {"gone": "LOAD", "other": "CLASS", "misnamed": "CLASS", "unknown": "UNKNOWN"}
    for name, code in codes.items():
        refuses(f"FK-METHOD-{code}", find, name)
    refuses("FK-METHOD-CLASS", registered.client_of, Mean)


def test_a_sum_has_one_handler_which_is_marked_with_its_declaration() -> None:
    class Twice(MeanClient):
        @contributes(ROW_SUM)
        def add_again(self, k: int) -> dict[str, Any]:
            return {"count": 0.0, "sum": np.zeros(2)}

    context = Nodes().contexts[0]
    assert MeanClient(context, np.ones((2, 2))).marks("contributes") == [ROW_SUM, HELD_SUM]
    refuses("FK-CLIENT-TWICE", Twice, context, np.ones((2, 2)))
    refuses("FK-CLIENT-HANDLER", contributes, "rows")  # as in release 0.1


# -- options: declared once, documented; how they are checked is in tests/contracts/test_options.py


def test_options_are_stated_once() -> None:
    assert [o.name for o in options(Mean)][:1] == list(declared(Mean)) == ["times"]
    assert "times : int (default: 1)\n        How often to sum." in (Mean.__doc__ or "")


# -- a client in a secure run: nothing leaves it unmasked, its secrets end, its noise is its own


@pytest.mark.promise("requests-declared")
def test_a_sum_of_which_nothing_is_said_is_not_made() -> None:
    class Careless(SummingClient):
        def work(self, request: PhaseMessage) -> PhaseMessage:
            self.sums.contribute("a", np.zeros(3))  # type: ignore[union-attr]
            return Done()

    run = Nodes()
    refuses("FK-CLIENT-CHECK", run.contribute, run.order("a"), kind=Careless)


def test_sums_are_those_that_were_asked_for_once_and_nothing_is_answered_in_plain() -> None:
    run = Nodes()
    refuses("FK-SUM-UNASKED", run.ask, 0, work())
    for names, code in (("aa", "FK-SUM-NAMED-TWICE"), ("ac", "FK-SUM-UNASKED")):
        refuses(code, run.contribute, *map(run.order, names))


def test_a_node_with_pinned_identities_refuses_a_plain_run(tmp_path: Any) -> None:
    (tmp_path / "trusted").write_text("")
    run = Nodes()
    client = SummingClient(run.contexts[0], trusted_keys=tmp_path / "trusted")
    refuses("FK-IDENTITY-PLAIN", client.fit, [], opening(secure=False).scalars())


def test_messages_of_evaluation_reach_no_handler() -> None:
    """Flower says of a client without that method that it is not implemented."""
    assert {"fit", "evaluate"} & vars(type(Nodes().client(0).to_client())).keys() == {"fit"}


def test_the_last_request_erases_everything_and_its_answer_may_come_again() -> None:
    """The same bytes for the same request; nothing for any other."""
    run = Nodes()
    running, other = (run.order("a", self_masks=False) for _ in range(2))
    sections = [*run.server.sections(2, [running]), sums.End()]
    assert run.state(2).roots or run.state(2).private
    first = run.ask(2, work(1), sections)
    assert "fedkern-sums" not in run.contexts[2].state
    again = run.ask(2, work(1), sections)
    assert [(s.phase, s.scalars) for s in again[1]] == [(s.phase, s.scalars) for s in first[1]]
    for one, two in zip(first[1], again[1], strict=True):
        assert [a.tobytes() for a in one.arrays] == [a.tobytes() for a in two.arrays]
    for changed in ([*run.server.sections(2, [other]), sums.End()], sections[:-1], [sums.End()]):
        raises((ProtocolError, SumError), run.ask, 2, work(1), changed)
    raises((ProtocolError, SumError), run.ask, 2, work(7), sections)
    run.ask(2, opening("def"))  # the next run
    assert not any("fedkern-last" in name for name in run.contexts[2].state)


def test_a_last_request_that_is_refused_erases_nothing() -> None:
    run = Nodes()
    running = run.order("c", self_masks=False)
    refuses("FK-SUM-UNASKED", run.ask, 2, work(), [*run.server.sections(2, [running]), sums.End()])
    assert "fedkern-sums" in run.contexts[2].state
    again = run.order("a", self_masks=False)
    assert run.ask(2, work(), run.server.sections(2, [again]))[1]


def test_a_resumed_run_repeats_no_round_that_was_answered(tmp_path: Any) -> None:
    """Whatever its server says: with other survivors the difference would show single parties."""
    run = Nodes(state_dir=tmp_path)
    run.client(0).note_answered(SESSION, 4)
    run.ask(0, opening(resume_round=2, nonces=json.dumps(run.nonces)))
    refuses("FK-MESSAGE-ORDER", run.client(0).open_round, SESSION, 4, 0)
    run.client(0).open_round(SESSION, 5, 0)


def test_a_message_that_fails_has_fixed_how_its_sums_are_repeated() -> None:
    """Else the next could ask for the same values under other terms."""

    class Late(SummingClient):
        def work(self, request: PhaseMessage) -> PhaseMessage:
            super().work(request)
            raise StreamError("its rows come too late", code="FK-STREAM-LATE")

    run = Nodes()
    refuses("FK-STREAM-LATE", run.ask, 1, work(), run.server.sections(1, [run.order("a")]), Late)
    with refused("FK-ORDER-PARTIES"):
        run.ask(1, work(), run.server.sections(1, [run.order("a", self_masks=False)]))


def test_a_client_object_does_not_repeat_the_sections_of_an_earlier_reply() -> None:
    run = Nodes()
    running = run.order("a")
    client = run.client(0)
    arrays, scalars = attach(run.server.sections(0, [running]))
    out, _, metrics = client.fit(arrays, work().scalars() | scalars)
    assert detach(out, metrics, party="")[2]
    finish = sums.FinishRequest(session=SESSION, round=1)
    out, _, metrics = client.fit([], finish.scalars())
    assert not out
    assert not detach(out, metrics, party="")[2]


# -- what a node keeps between two messages comes back as it was, or is refused


@given(arrays(np.float64, (2, 3)), st.binary(max_size=4), st.text(max_size=5))
def test_a_state_comes_back_as_it_was(found: np.ndarray, seed: bytes, text: str) -> None:
    sealed = np.arange(3, dtype=np.uint64)
    state = KeptState({"c": 0.1, "name": text}, seed, {"a": found, "b": found[:0], "s": sealed})
    again = KeptState.unpack(state.pack())
    assert (again.settings, again.seed) == ({"c": 0.1, "name": text}, seed)
    for name, one in state.arrays.items():
        assert again.arrays[name].dtype == one.dtype
        np.testing.assert_array_equal(again.arrays[name], one)
        assert again.arrays[name].flags.writeable


def test_a_state_with_a_lost_or_another_end_is_refused() -> None:
    kept = KeptState({"c": 1}, b"^" * 32, {"a": np.arange(3.0)})
    packed = kept.pack()
    assert "^^" not in repr(kept)
    for data in (packed[:-1], packed + b"x", packed[3:], packed.replace(b"<f8", b"|O8")):
        refuses("FK-CHECKPOINT-DAMAGED", KeptState.unpack, data)


def test_a_message_that_fails_leaves_what_it_pinned_and_no_secret_of_another_run() -> None:
    before, failed, borrowed = KeptState({"a": 1}), KeptState({"a": 1}), KeptState()
    assert failed.pin("a", 1)
    assert failed.pin("b", 2)
    assert not failed.pin("b", 3)
    failed.settings["done"], failed.seed = 7, b"new"
    failed.leave_pins(before)
    assert (before.settings, before.seed) == ({"a": 1, "b": 2}, b"new")
    borrowed.borrow(b"of another run")
    fresh = KeptState()
    borrowed.leave_pins(fresh)
    assert not fresh.seed


def test_what_was_made_last_is_kept_as_far_as_there_is_room() -> None:
    made, recent = [], Recent(3 * 80)

    def make(key: bytes) -> tuple[np.ndarray, ...]:
        made.append(key)
        return (np.full(10, len(made)),)

    for key in (b"a", b"b", b"a", b"c", b"d", b"a", b"b"):
        (found,) = recent.get(key, lambda key=key: make(key))
        assert not found.flags.writeable
    assert made == [b"a", b"b", b"c", b"d", b"b"]  # the fourth displaced the oldest
    assert recent.get(b"large", lambda: (np.zeros(100),))[0].size == 100
    recent.get(b"large", lambda: make(b"large"))
    assert made[-1] == b"large"  # more than there is room for is not kept


# -- noise, the same values again, and what a node keeps to itself


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
        masks = self.sums.order(name).self_masks
        self.sums.check(replace(self.spec, name=name, self_masks=masks, release=release))
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
        return self.order(encoding=encoding, self_masks=False, **options)

    def total(self, release: Release, gamma: float = 0.0, kind: Any = None) -> np.ndarray:
        """Return the total of a sum that all contribute to."""
        running = self.noisy(release)
        for k in self.members:
            sections = self.server.sections(k, [running])
            self.server.take(k, self.ask(k, question(gamma), sections, kind)[1])
        self.server.unmask_sections([running])
        return self.server.total(running)


@pytest.mark.promise("noise-own-reckoning")
@pytest.mark.parametrize("change", [
    lambda noise: replace(noise, variance=noise.variance * 9 // 10),
    lambda noise: replace(noise, variance=noise.variance + 1),
    lambda noise: replace(noise, fraction=noise.fraction - 1),
    lambda noise: NoisySum(),
], ids=["less noise", "more noise", "a coarser unit", "none"])  # fmt: skip
def test_an_order_with_other_noise_than_the_node_derives_is_refused(change: Any) -> None:
    run, right = NoisyNodes(), planned()
    running = run.noisy(replace(right, noise=change(right.noise)))
    refuses("FK-ORDER-NOISE", run.ask, 0, question(), run.server.sections(0, [running]))


def test_noise_that_the_run_did_not_declare_and_a_budget_without_noise_are_refused() -> None:
    run = Nodes(4, NoisyClient)
    running = run.order(encoding=ENCODING.noisy(planned().noise), self_masks=False)
    refuses("FK-ORDER-NOISE", run.ask, 0, question(), run.server.sections(0, [running]))
    refuses("FK-BUDGET-METHOD", NoisyNodes, SummingClient)


@pytest.mark.promise("budget-fixed")
def test_a_run_is_not_opened_again_with_another_budget() -> None:
    run = NoisyNodes()
    for text in ("", replace(BUDGET, epsilon=9.0).write()):
        refuses("FK-SETTINGS-CHANGED", Nodes.ask, run, 0, replace(opening(), privacy=text))
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
    refuses("FK-BUDGET-EXCEEDED", run.total, planned(), kind=Moved)


@pytest.mark.promise("noise-per-question")
def test_another_question_has_noise_of_its_own_though_the_answer_is_the_same() -> None:
    """Else equal totals would tell, without noise, that no node's values differ."""

    class Twice(NoisyClient):
        times = 2

    run, release = NoisyNodes(Twice), planned(times=2)
    first, again, other = (run.total(release, gamma) for gamma in (0.0, 0.0, 1.0))
    assert 0.0 < np.abs(first - 10.0).max() < 7.0 * release.noise.deviation(4)
    assert np.array_equal(first, again)  # from clients that are made anew for each order
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
def test_a_name_used_anew_gets_other_noise_for_other_parties(between: Any, tmp_path: Any) -> None:
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
    refuses("FK-ORDER-PARTIES", opened, 3, 0, 1, 2)


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


@pytest.mark.parametrize(("kind", "name", "place"), [
    (Failing, "KeyError", Failing.work), (Silent, "NoReplyError", Silent.work),
    (Numeric, "TypeError", Numeric.work), (Unbuilt, "KeyError", Unbuilt.__init__),
])  # fmt: skip
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

"""A method is a generator of rounds: what it yields is done, retried, checked, kept and refused."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from faulty import PowerCutError
from flwr.app import Context
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import raises, refused, refuses

from fedkern_flwr import registered
from fedkern_flwr.errors import StateError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.method import (
    Ask,
    LostState,
    Method,
    MethodClient,
    Sum,
    Term,
    answers,
    contributes,
    option,
)
from fedkern_flwr.options import declared
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.simulations import Fault, FaultPlan, simulate
from fedkern_flwr.simulations.run.options import options
from fedkern_flwr.wire.method import pack, unpack

CLIENTS, ROWS = 5, 12

X = np.random.default_rng(3).random((CLIENTS, ROWS, 2))


class Mean(Method):
    """Means of the columns, and how far each client's are from them."""

    method, title = "mean", "Mean"
    labels_of_row = 0

    times: int = option(1, "How often to sum.", least=1)

    def rounds(self, parties: Any) -> Any:
        """Sum; then ask each client."""
        width, total = parties[0].features, {}
        for k in range(self.times):
            total = yield Sum("rows", {"sum": (width,), "count": ()}, ask={"k": k})
            self.history_.append({"round": k + 1})
        mean = total["sum"] / total["count"]
        self.model_ = {"mean": mean}
        told = yield Ask("judge", {"mean": mean, "note": "how far"})
        held = yield Sum("held", {"count": ()}, held_out=True)
        return {
            "rows": int(np.rint(total["count"])),
            "held": int(np.rint(held["count"])),
            "far": [round(reply["far"], 6) for reply in told.values()],
        }


class MeanClient(MethodClient):
    """The client of it."""

    labels_of_row = 0

    @contributes("rows", rounds=True)
    def add(self, k: int) -> dict[str, Any]:
        self.kept.arrays["seen"] = np.array([k])
        return {"count": len(self.x), "sum": self.x.sum(axis=0)}

    @answers("judge")
    def judge(self, mean: Any, note: str) -> dict[str, Any]:
        assert note == "how far"
        assert self.kept.arrays["seen"].shape == (1,)
        return {"far": np.abs(self.x.mean(axis=0) - mean).max(), "mean": mean}

    @contributes("held", held_out=True)
    def count(self) -> dict[str, Any]:
        return {"count": len(self.x_test)}


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


@pytest.mark.parametrize("lost", [{0}, {3}, {1, 2}, {0, 1, 2, 3, 4}])
def test_sums_are_of_whoever_is_left_and_never_of_too_few(lost: set[int]) -> None:
    strategy = Mean(threshold=4)
    simulate(strategy, make(), CLIENTS, faults=lose(*((k, "method", 1) for k in lost)))
    left = [k for k in range(CLIENTS) if k not in lost] if len(lost) == 1 else [*range(CLIENTS)]
    assert strategy.metrics_["rows"] == ROWS * len(left)
    np.testing.assert_allclose(strategy.model_["mean"], X[left].mean(axis=(0, 1)), atol=1e-12)


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
        @contributes("rows", rounds=True)
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


def test_a_generator_that_is_told_of_a_lost_state_goes_on() -> None:
    tries: list[int] = []

    class Patient(Mean):
        def rounds(self, parties: Any) -> Any:
            for _ in range(3):
                try:
                    return (yield from super().rounds(parties))
                except LostState:
                    tries.append(1)
            return {}

    def forgets(client: MeanClient) -> Any:
        if client.partition == 1 and not tries:
            raise StateError("forgotten", party=client.name)
        return MeanClient.add(client, 0)

    strategy = Patient()
    simulate(strategy, adding(forgets), CLIENTS)
    assert len(tries) == 1
    assert strategy.metrics_["rows"] == 60


def test_more_numbers_than_unknowns_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    steps = [Sum("rows", {"sum": (200,), "count": ()}, ask={"k": k}) for k in range(3)]
    simulate(asking(*steps), adding(lambda _: {"count": 1, "sum": np.zeros(200)}), CLIENTS)
    (said,) = [r.getMessage() for r in caplog.records if "can be computed" in r.getMessage()]
    assert "behind the sum 'rows'" in said
    assert "201 numbers would be released about 96 unknowns" in said


def test_an_error_of_a_handler_is_not_asked_for_again() -> None:
    asked: list[int] = []

    def fails(client: MeanClient) -> Any:
        asked.append(client.partition)
        raise ZeroDivisionError

    refuses("FK-CLIENT-RAISED", simulate, Mean(), adding(fails), CLIENTS)
    assert len(asked) == CLIENTS


def test_a_node_without_enough_memory_ends_the_run_at_once(caplog: Any) -> None:
    asked: list[int] = []

    def fails(client: MeanClient) -> Any:
        asked.append(client.partition)
        return MeanClient.add(client, 0) if client.partition != 1 else np.empty(1 << 58)

    met = refuses("FK-COMMAND-MEMORY", simulate, Mean(), adding(fails), CLIENTS)
    assert str(met).count("partition 1") == 1
    assert sorted(asked) == list(range(CLIENTS))
    assert not [r for r in caplog.records if "\n" in r.getMessage()]


@pytest.mark.parametrize(("returned", "code"), [
    (None, "FK-CLIENT-REPLY"), ({"count": 1}, "FK-CLIENT-REPLY"),
    ({"count": 1, "sum": np.zeros(3)}, "FK-CLIENT-REPLY"),
    ({"count": 1, "sum": [0.0, 1e9]}, "FK-SUM-BOUND"),
    ({"count": np.nan, "sum": [0.0, 0.0]}, "FK-SUM-BOUND"),
])  # fmt: skip
def test_terms_that_do_not_fit_are_refused(returned: Any, code: str) -> None:
    refuses(code, simulate, Mean(), adding(lambda _: returned), CLIENTS)


def test_the_node_declares_the_bound_not_the_server() -> None:
    wider = asking(Sum("rows", {"sum": (2,), "count": ()}, bound=2.0, ask={"k": 0}))

    def deployed(context: Context) -> MethodClient:
        context.node_config["simulation"] = False
        return make(policy=NodePolicy())(context)

    for client in (make(), deployed):
        with refused("FK-ORDER-BOUND", "FK-CLIENT-BOUND"):
            simulate(wider, client, CLIENTS)


def test_a_run_ends_with_sums_that_open_by_themselves() -> None:
    ring = Encoding.fixed_point(1.0)
    terms = [Term(name="rows", length=1, encoding=ring, self_masks=masks) for masks in (0, 1)]
    Ask("tell", sums=terms[:1], ends=True)
    for more in ({"sums": terms}, {"until": "enough"}, {"until": "tried"}):
        refuses("FK-METHOD-STEP", Ask, "tell", ends=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("step", "code"), [
    (3, "FK-METHOD-STEP"), (Sum("judge", {"far": ()}), "FK-CLIENT-MARK"),
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
def test_a_sum_being_opened_is_opened_over_the_same_clients(which: int, tmp_path: Path) -> None:
    """Cut before that, a run goes on as well: see tests/contracts/test_faults.py."""
    whole, own = Mean(times=3), make(state_dir=tmp_path / "state")
    simulate(whole, own, CLIENTS)
    options: dict[str, Any] = {"times": 3, "checkpoint": tmp_path / "run.npz", "threshold": 4}
    first, opened = Mean(**options), list[str]()
    exchange = first.run_phase

    def cut(*args: Any, **more: Any) -> Any:
        found = exchange(*args, **more)
        opened.extend([more["phase"]] * (more["phase"] == "unmask"))
        if len(opened) == which:
            raise PowerCutError
        return found

    first.run_phase = cut  # type: ignore[method-assign]
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


# -- options: declared once, checked, documented, shown on the command line


class Declares(Method):
    """A method with options."""

    method, title = "declares", "Declares"

    count: int = option(2, "How many.", least=1, most=9)
    kind: Literal["a", "b"] = option("a", "Which.")
    loud: bool = option(False, "Whether to say it.", of_model=False)

    def rounds(self, parties: Any) -> Any:
        """Ask nothing."""
        yield from ()


class Other(Declares):
    count: int = option(5, "How many.", least=4)


def test_options_are_stated_once_and_a_subclass_may_declare_another_default() -> None:
    made = Declares(count=3, threshold=4)
    assert made.threshold == 4
    assert made.options() == {"method": "declares", "count": 3, "kind": "a", "seed": 0}
    assert [o.name for o in options(Declares)][:3] == list(declared(Declares))
    assert "count : int (default: 2)\n        How many." in (Declares.__doc__ or "")
    assert (Other().count, Declares().count) == (5, 2)
    refuses("FK-OPTION-RANGE", Other, count=2)
    refuses("FK-OPTION-TYPE", Other, count=True)

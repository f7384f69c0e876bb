"""What secure sums with drop-outs do to a stream: the plain run, or a round that is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import PowerCutError
from flwr.app import ArrayRecord, ConfigRecord, Message
from refusals import raises
from zoo import WAYS, Sites, Table, streams

from fedkern_flwr.errors import CohortError, RefusedError
from fedkern_flwr.secure_sum import Party
from fedkern_flwr.simulations.engines import Audit, DropOut, Fault, FaultPlan, Transcript
from fedkern_flwr.strategies import POFMKL

CLIENTS, ROUNDS, UPLOAD = 7, 8, "online-personal"
SOME: Table = {"kernels_per_round": 3}
ADAPTIVE: Table = {"step_size": "adaptive"}
#: Ways of the zoo, and other options than theirs.
METHODS: dict[str, tuple[str, Table]] = {
    "pof-mkl": ("pof-mkl", {**SOME, "exploration": 0.5}),
    "pof-mkl batches": ("pof-mkl", {"samples_per_round": 3}),
    "pof-mkl both": ("pof-mkl", {**SOME, "frequencies_per_round": 5, "subset": "shared"}),
    "vm-kofl frequencies": ("vm-kofl, secure", {"frequencies_per_round": 9, **ADAPTIVE}),
    "em-kofl": ("em-kofl", {}),
    "pof-rls": ("pof-rls", {"features": 1, "up": 11, "samples_per_round": 1}),
    "per-fed-avg": ("per-fed-avg, secure", {}),
}
METRICS = ("mse", "mse_client_std", "regret_mean", "regret_std", "test_mse")


def sites(name: str, clients: int = CLIENTS, rows: int = ROUNDS, held: int = 0) -> Sites:
    """Return clients of a method, with so many rows each."""
    base, options = WAYS[METHODS[name][0]], METHODS[name][1]
    tables = partial(streams, clients, held=held, rows=rows)
    return replace(
        base, tables=tables, options={**base.options, **options}, rounds=rows, paths={}
    ).sites()


def run(made: Sites, faults: Any = None, start: Table | None = None, **options: Any) -> Any:
    return made.fit(faults=faults, start=start, **options).strategy


def model(strategy: Any) -> np.ndarray:
    return next(iter(strategy.model()[0].values()))


def assert_same_run(secure: Any, plain: Any) -> None:
    """Equal but for the rounding of fixed point."""
    np.testing.assert_allclose(model(secure), model(plain), rtol=0, atol=1e-8)
    ours, theirs = (
        {n: v for n in METRICS if (v := one.metrics_.get(n)) is not None} for one in (secure, plain)
    )
    assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-7)
    for own, other in zip(secure.history_, plain.history_, strict=True):
        assert own["survivors"] == other["survivors"]
        assert own["mse"] == pytest.approx(other["mse"], rel=1e-9, abs=1e-11)


SECRET_FREE = {"size", "key", "masked", "sealed", "commitment", "share", "seed", "control"}


@pytest.mark.promise("online-lost-round-once")
@pytest.mark.parametrize("name", [n for n in METHODS if n != "em-kofl"])
def test_a_run_with_drop_outs_is_the_plain_run_over_the_same_survivors(name: str) -> None:
    """Clients vanish in every exchange: before the upload, before and during the recovery.

    The server reads nothing of a single one.
    """
    made, drop, seen, read = sites(name, 10, 8, 2), DropOut(0.12, seed=4), Audit(), Audit()
    secure = run(made, drop, {"audit": seen}, secure=True, threshold=6)
    plain = run(made, drop, {"audit": read}, secure=False)
    assert_same_run(secure, plain)
    assert np.abs(model(secure)).max() > 1e-3
    assert secure.ledger_.by_phase["recover"] > 0
    assert any(row["survivors"] < 10 for row in secure.history_)
    assert seen.kinds("up") == SECRET_FREE
    assert seen.kinds("down") <= {"public", "key", "sealed", "control"}
    assert "plain" in read.kinds("up")
    masked = seen.view("up")["sum-upload", "masked"]
    assert masked.uniform is not None
    assert masked.uniform > 1e-9


@pytest.mark.parametrize("name", ["pof-mkl batches", "em-kofl", "pof-rls", "per-fed-avg"])
def test_without_drop_outs_a_round_is_one_exchange(name: str) -> None:
    """Everybody answers, so nobody has to be unmasked; what is learned is the same."""
    made = sites(name, held=4)
    plain = run(made, secure=False)
    secure = run(made, start={"serialise": True}, secure=True, drop_outs=False)
    assert_same_run(secure, plain)
    assert secure.ledger_.exchanges == 1 + len(plain.history_) + 1 + 1
    assert {entry["threshold"] for entry in secure.privacy()["cohorts"]} == {CLIENTS}


def garbage(change: Callable[[ConfigRecord, ArrayRecord], None]) -> Fault:
    """Return a fault that changes the records of a reply."""

    def apply(message: Message) -> Message:
        metrics, arrays = message.content["fitres.metrics"], message.content["fitres.parameters"]
        change(metrics, arrays)  # type: ignore[arg-type]
        return message

    return Fault("tamper", change=apply)


def replace_array(value: np.ndarray) -> Callable[[Any, ArrayRecord], None]:
    def change(metrics: Any, arrays: ArrayRecord) -> None:
        (key,) = list(arrays)
        arrays[key] = ArrayRecord([value])["0"]

    return change


def lie(metrics: ConfigRecord, arrays: ArrayRecord) -> None:
    """Commit to seeds that are not those of the masks."""
    name = next(n for n in metrics if n.endswith("commitments"))
    metrics[name] = bytes(len(metrics[name]))  # type: ignore[arg-type]


def scramble(metrics: ConfigRecord, arrays: ArrayRecord) -> None:
    """Send random numbers of the ring: the total is not one of vectors within the bound."""
    length = 5 * 8 + 6
    replace_array(np.random.default_rng(0).integers(0, 2**64, length, np.uint64))(metrics, arrays)


# -- rounds that are lost


def always(fault: Fault, *phases: str, of: tuple[int, ...] = (1,)) -> list[Any]:
    return [(k, phase, None, fault) for k in of for phase in phases]


AWAY = Fault("vanished")
TWO_AND_A_LIAR = always(AWAY, UPLOAD, of=(0, 1)) + always(garbage(lie), UPLOAD, of=(2,))
#: Faults, options, survivors of each round, and who is left out in the end.
LOST: dict[str, tuple[list[Any], dict[str, Any], list[int], list[int]]] = {
    "too few answer": ([(k, UPLOAD, 2, AWAY) for k in (0, 1, 2)], {}, [7, 0, 7, 7], []),
    "survivors fall silent": (
        [(k, p, 2, AWAY) for k in (0, 1, 2) for p in ("unmask", "recover")], {}, [7, 0, 7, 7], [],
    ),
    "garbage": ([(1, UPLOAD, 2, garbage(scramble))], {}, [7, 0, 7, 7], []),
    "masks that do not fit": (
        always(garbage(lie), UPLOAD), {"max_missed": 3}, [0, 0, 0, 6, 6, 6], [1],
    ),
    "never unmasks": (
        always(AWAY, "unmask", "recover"), {"max_missed": 3}, [7, 7, 7, 6, 6, 6], [1],
    ),
    "two away and one that lies": (
        TWO_AND_A_LIAR, {"max_missed": 2, "threshold": 4}, [0, 0, 4, 4, 4], [0, 1, 2],
    ),
    "one misses a round of all": (
        [(1, UPLOAD, 3, AWAY)], {"drop_outs": False}, [7, 7, 0, 7, 7], [],
    ),
    "one raises in a round of all": (
        [(1, UPLOAD, 3, Fault("error"))], {"drop_outs": False}, [7, 7, 0, 7, 7], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LOST)
def test_a_round_that_cannot_be_opened_leaves_the_model_and_the_run_goes_on(what: str) -> None:
    """What the clients would have told of it they tell in a later round."""
    faults, options, survivors, left_out = LOST[what]
    made, models = sites("pof-mkl", rows=len(survivors)), [np.zeros((5, 8))]
    strategy = made.way.make(secure=True, **options)
    strategy.on_round = lambda *_: models.append(model(strategy).copy())
    run(made, FaultPlan(faults), strategy=strategy)
    assert [row["survivors"] for row in strategy.history_] == survivors
    for before, after, many in zip(models, models[1:], survivors, strict=False):
        assert np.array_equal(before, after) == (many == 0)
    assert sorted(strategy.left_out_) == left_out
    assert strategy.history_[-1]["mse"] > 0.0


@pytest.mark.parametrize(
    ("faults", "options"),
    [
        (always(AWAY, UPLOAD), {"drop_outs": False, "max_missed": 3}),
        (always(AWAY, UPLOAD, of=(0, 1, 2)), {"max_missed": 3}),
        (TWO_AND_A_LIAR, {"max_missed": 2}),
    ],
    ids=["one stays away from sums of all", "too few answer", "too few are left for any sum"],
)
def test_a_run_ends_where_no_round_can_be_opened_any_more(faults: Any, options: Table) -> None:
    made = sites("pof-mkl", rows=6)
    strategy = made.way.make(secure=True, **options)
    raises(CohortError, run, made, FaultPlan(faults), strategy=strategy)
    assert [row["survivors"] for row in strategy.history_] == [0, 0]  # the third is one too many


def test_a_lost_evaluation_does_not_lose_the_run() -> None:
    faults = FaultPlan(always(AWAY, "online-evaluate", of=(0, 1, 2)))
    made = sites("pof-mkl", rows=3, held=3)
    strategy = run(made, faults, secure=True)
    assert "test_mse" not in strategy.metrics_
    assert strategy.metrics_["mse"] > 0
    assert strategy.history_[-1]["survivors"] == CLIENTS
    assert all("fedkern-sums" not in context.state for context in made.contexts.values())


def test_an_evaluation_on_other_rows_than_those_held_out_is_not_used() -> None:
    def change(metrics: ConfigRecord, arrays: ArrayRecord) -> None:
        metrics["samples"] = 300

    faults = FaultPlan([(1, "online-evaluate", None, garbage(change))])
    forged = run(sites("pof-mkl", rows=3, held=3), faults, secure=False)
    assert "FK-MESSAGE-FIELD" in str(forged.ledger_.failures)


@pytest.mark.parametrize(("kernels", "subset"), [
    ([5, 0], "private"), ([0, -1], "private"), ([3, 3], "private"), ([0, 1, 2], "private"),
    ([1, 0], "shared"),
])  # fmt: skip
def test_gradients_of_other_kernels_than_may_be_sent_are_not_used(
    kernels: list[int], subset: str
) -> None:
    """Kernels that do not exist, twice the same, too many, not those of the round."""

    def change(metrics: Any, arrays: ArrayRecord) -> None:
        for key, one in list(arrays.items()):
            old = one.numpy()
            new = np.array(kernels, old.dtype) if old.ndim == 1 else old[[0] * len(kernels)]
            arrays[key] = ArrayRecord([new])["0"]

    made, faults = sites("pof-mkl", rows=3), FaultPlan([(1, UPLOAD, 2, garbage(change))])
    forged = run(made, faults, secure=False, kernels_per_round=2, subset=subset)
    assert [row["survivors"] for row in forged.history_] == [7, 6, 7]
    assert "FK-MESSAGE-FIELD" in str(forged.ledger_.failures)


# -- what a node does not tell


@pytest.mark.promise("refusals-tell-no-values")
@pytest.mark.parametrize(("change", "why"), [
    (lambda v: v + 2.0**21, "exceeds its declared bound"),
    (lambda v: v * np.nan, "NaN or infinite"), (lambda v: v[:-1], "has shape (45,)"),
])  # fmt: skip
def test_a_vector_that_does_not_fit_never_leaves_the_client(
    change: Any, why: str, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The server hears that it was refused, the node's log says why."""
    honest = Party.contribute

    def contribute(party: Any, order: Any, values: Any, **more: Any) -> Any:
        return honest(party, order, change(values) if party.partition == 1 else values, **more)

    monkeypatch.setattr(Party, "contribute", contribute)
    caught = raises(RefusedError, run, sites("pof-mkl", rows=3), secure=True)
    assert "partition 1: refused by the node" in str(caught.value)
    assert why in caplog.text
    assert why not in str(caught.value)


def test_secure_sums_are_the_default_of_every_grid_that_is_no_simulation() -> None:
    cases = ((False, None, True), (False, False, False), (True, None, False), (True, True, True))
    for simulation, secure, expected in cases:
        made = sites("pof-mkl", 3, 4)
        grid, strategy = made.grid(), made.way.make(secure=secure)
        grid.simulation = simulation
        strategy.start(grid=grid, num_rounds=3)
        assert strategy.privacy()["protocol"] == ("secure sums" if expected else "plain")


# -- a run that is resumed repeats no sum: two sums of the same values show a client


class Watching(POFMKL):
    """A semi-honest server that keeps every total it is shown."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.totals: dict[int, np.ndarray] = {}

    def step(self, total: np.ndarray, answers: int) -> Any:
        self.totals[len(self.history_) + 1] = total.copy()
        return super().step(total, answers)


@pytest.mark.promise("online-answered-once")
def test_rounds_that_were_answered_are_lost_not_repeated(tmp_path: Path) -> None:
    """A run is cut after round 5, and resumed from the checkpoint of round 3 without client 3."""

    def cut(done: int, total: int, metrics: Any) -> None:
        if done == 5:
            raise PowerCutError

    made, record = sites("pof-mkl batches", 5), Transcript()
    options = {**WAYS["pof-mkl, secure"].options, "threshold": 4}
    options |= {"checkpoint": tmp_path / "c.npz", "checkpoint_every": 3}
    first, second = Watching(**options), Watching(**options, resume=True)
    first.on_round = cut
    raises(PowerCutError, run, made, strategy=first)
    gone = FaultPlan([(3, UPLOAD, 4, AWAY)])
    made.fit(faults=gone, strategy=second, transcript=record)
    assert sorted(first.totals) == [1, 2, 3, 4, 5]
    assert sorted(second.totals) == [6, 7, 8]
    assert [row["survivors"] for row in second.history_] == [5, 5, 5, 0, 0, 5, 5, 5]
    assert {e.scalars["round"] for e in record.entries(phase=UPLOAD)} == {6, 7, 8}
    assert second.metrics_["mse"] > 0


def test_a_checkpoint_does_not_wait_for_a_client_that_is_left_out(tmp_path: Path) -> None:
    def cut(done: int, total: int, metrics: Any) -> None:
        if done == 7:
            raise PowerCutError

    made = sites("pof-mkl batches", 5)
    options = {**WAYS["pof-mkl, secure"].options, "threshold": 4, "max_missed": 2}
    options |= {"checkpoint": tmp_path / "c.npz", "checkpoint_every": 1}
    first, second = Watching(**options), Watching(**options, resume=True)
    first.on_round = cut
    raises(PowerCutError, made.fit, faults=FaultPlan(always(AWAY, UPLOAD)), strategy=first)
    assert first.left_out_ == [1]
    made.fit(strategy=second)
    assert [row["survivors"] for row in second.history_][:6] == [4] * 6


@pytest.mark.parametrize("name", ["pof-mkl", "per-fed-avg"])
def test_held_out_rows_are_evaluated_once(name: str, tmp_path: Path) -> None:
    made, options = sites(name, 5, held=3), {"secure": True, "checkpoint": tmp_path / "c.npz"}
    first, second = (run(made, resume=resume, **options) for resume in (False, True))
    assert first.metrics_["test_mse"] > 0
    assert "test_mse" not in second.metrics_
    assert second.metrics_["mse"] == first.metrics_["mse"]
    assert second.ledger_.by_phase["online-evaluate"] == 0

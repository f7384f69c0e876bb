"""What secure sums with drop-outs do to a stream: the plain run, or a round that is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversation import asked_first
from faulty import PowerCutError
from flwr.app import ArrayRecord, ConfigRecord, Message

from fedkern_flwr.clients import serve
from fedkern_flwr.errors import CohortError, OptionError, RefusedError, SmallCohortError
from fedkern_flwr.secure_sum import Party
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import (
    Audit,
    DropOut,
    Fault,
    FaultPlan,
    InProcessGrid,
    Transcript,
)
from fedkern_flwr.strategies import EMKOFL, OFSKL, POFMKL, POFRLS, VMKOFL, PerFedAvg

Make = Callable[..., Any]

CLIENTS, ROUNDS, UPLOAD = 7, 8, "online-personal"

KERNELS: dict[str, Any] = {
    "kernels": 7,
    "features": 4,
    "seed": 3,
    "samples_per_round": 1,
    "frequencies_per_round": "all",
}


METHODS: dict[str, Make] = {
    "pof-mkl": lambda **o: POFMKL(**KERNELS, kernels_per_round=3, exploration=0.5, **o),
    "pof-mkl paper": lambda **o: POFMKL(
        **KERNELS, kernels_per_round=3, step_size="paper", exploration=0.5, **o
    ),
    "pof-mkl batches": lambda **o: POFMKL(**{**KERNELS, "samples_per_round": 3}, **o),
    "pof-mkl both": lambda **o: POFMKL(
        **{**KERNELS, "frequencies_per_round": 5}, kernels_per_round=3, subset="shared", **o
    ),
    "vm-kofl frequencies": lambda **o: VMKOFL(**{**KERNELS, "frequencies_per_round": 9}, **o),
    "em-kofl": lambda **o: EMKOFL(**KERNELS, **o),
    "ofskl": lambda **o: OFSKL(
        features=4, seed=3, samples_per_round=1, frequencies_per_round="all", **o
    ),
    "pof-rls": lambda **o: POFRLS(features=1, up=11, seed=3, samples_per_round=1, **o),
    "per-fed-avg": lambda **o: PerFedAvg(seed=3, samples_per_round=1, **o),
}
METRICS = ("mse", "mse_client_std", "regret_mean", "regret_std", "test_mse")


def run(strategy: Any, streams: Any, rounds: int = ROUNDS, **more: Any) -> Any:
    simulate(strategy, streams.client_fn, len(streams.x), num_rounds=rounds, **more)
    return strategy


def model(strategy: Any) -> np.ndarray:
    return next(iter(strategy.model()[0].values()))


def assert_same_run(secure: Any, plain: Any) -> None:
    """Equal but for the rounding of fixed point."""
    np.testing.assert_allclose(model(secure), model(plain), rtol=0, atol=1e-8)
    for name in METRICS:
        ours, theirs = secure.metrics_.get(name), plain.metrics_.get(name)
        assert (ours is None) == (theirs is None), name
        if theirs is not None:
            assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-7), name
    for ours, theirs in zip(secure.history_, plain.history_, strict=True):
        assert ours["survivors"] == theirs["survivors"]
        assert ours["mse"] == pytest.approx(theirs["mse"], rel=1e-9, abs=1e-11)


SECRET_FREE = {"size", "key", "masked", "sealed", "commitment", "share", "seed", "control"}


@pytest.mark.promise("online-lost-round-once")
@pytest.mark.parametrize("name", METHODS)
def test_a_run_with_drop_outs_is_the_plain_run_over_the_same_survivors(
    name: str, make_streams: Make
) -> None:
    """Clients vanish in every exchange: before the upload, before and during the recovery.

    The server reads nothing of a single one.
    """
    streams, drop = make_streams(10, 10, test_rows=2), DropOut(0.12, seed=4)
    seen, read = Audit(), Audit()
    secure = run(METHODS[name](secure=True, threshold=6), streams, faults=drop, audit=seen)
    plain = run(METHODS[name](secure=False), streams, faults=drop, audit=read)
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


@pytest.mark.promise("online-one-exchange")
@pytest.mark.parametrize(
    "name", ["pof-mkl", "pof-mkl batches", "em-kofl", "pof-rls", "per-fed-avg"]
)
def test_without_drop_outs_a_round_is_one_exchange(name: str, make_streams: Make) -> None:
    """Everybody answers, so nobody has to be unmasked; what is learned is the same."""
    streams = make_streams(CLIENTS, ROUNDS + 4, test_rows=4)
    plain = run(METHODS[name](secure=False), streams)
    secure = run(METHODS[name](secure=True, drop_outs=False), streams, serialise=True)
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
    length = 7 * 8 + 6
    replace_array(np.random.default_rng(0).integers(0, 2**64, length, np.uint64))(metrics, arrays)


# -- rounds that are lost


def always(fault: Fault, *phases: str, of: tuple[int, ...] = (1,)) -> list[Any]:
    return [(k, phase, None, fault) for k in of for phase in phases]


AWAY = Fault("vanished")
#: Faults, options, survivors of each round, and who is left out in the end.
LOST: dict[str, tuple[list[Any], dict[str, Any], list[int], list[int]]] = {
    "too few answer": ([(k, UPLOAD, 2, AWAY) for k in (0, 1, 2)], {}, [7, 0, 7, 7], []),
    "survivors fall silent": (
        [(k, p, 2, AWAY) for k in (0, 1, 2) for p in ("unmask", "recover")],
        {},
        [7, 0, 7, 7],
        [],
    ),
    "garbage": ([(1, UPLOAD, 2, garbage(scramble))], {}, [7, 0, 7, 7], []),
    "masks that do not fit": (
        always(garbage(lie), UPLOAD),
        {"max_missed": 3},
        [0, 0, 0, 6, 6, 6],
        [1],
    ),
    "never unmasks": (
        always(AWAY, "unmask", "recover"),
        {"max_missed": 3},
        [7, 7, 7, 6, 6, 6],
        [1],
    ),
    "two away and one that lies": (
        always(AWAY, UPLOAD, of=(0, 1)) + always(garbage(lie), UPLOAD, of=(2,)),
        {"max_missed": 2, "threshold": 4},
        [0, 0, 4, 4, 4],
        [0, 1, 2],
    ),
    "one misses a round of all": (
        [(1, UPLOAD, 3, AWAY)],
        {"drop_outs": False},
        [7, 7, 0, 7, 7],
        [],
    ),
    "one raises in a round of all": (
        [(1, UPLOAD, 3, Fault("error"))],
        {"drop_outs": False},
        [7, 7, 0, 7, 7],
        [],
    ),
}


@pytest.mark.parametrize("what", LOST)
def test_a_round_that_cannot_be_opened_leaves_the_model_and_the_run_goes_on(
    what: str, make_streams: Make
) -> None:
    """What the clients would have told of it they tell in a later round."""
    faults, options, survivors, left_out = LOST[what]
    rounds, models = len(survivors), [np.zeros((7, 8))]
    strategy = METHODS["pof-mkl"](secure=True, **options)
    strategy.on_round = lambda *_: models.append(model(strategy).copy())
    run(strategy, make_streams(CLIENTS, rounds), rounds, faults=FaultPlan(faults))
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
        (
            always(AWAY, UPLOAD, of=(0, 1)) + always(garbage(lie), UPLOAD, of=(2,)),
            {"max_missed": 2},
        ),
    ],
    ids=["one stays away from sums of all", "too few answer", "too few are left for any sum"],
)
def test_a_run_ends_where_no_round_can_be_opened_any_more(
    faults: Any, options: dict[str, Any], make_streams: Make
) -> None:
    strategy = METHODS["pof-mkl"](secure=True, **options)
    with pytest.raises(CohortError):
        run(strategy, make_streams(CLIENTS, 6), 6, faults=FaultPlan(faults))
    assert not any(row["survivors"] for row in strategy.history_)


def test_a_lost_evaluation_does_not_lose_the_run(make_streams: Make) -> None:
    faults = FaultPlan([(k, "online-evaluate", None, Fault("vanished")) for k in (0, 1, 2)])
    streams, strategy = make_streams(CLIENTS, 6, test_rows=3), METHODS["pof-mkl"](secure=True)
    run(strategy, streams, 3, faults=faults)
    assert "test_mse" not in strategy.metrics_
    assert strategy.metrics_["mse"] > 0
    assert strategy.history_[-1]["survivors"] == CLIENTS
    assert all("fedkern-sums" not in context.state for context in streams.contexts.values())


# -- what a node does not tell


@pytest.mark.promise("online-no-rows-without-order")
@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("pof-mkl", UPLOAD),
        ("ofskl", "online-shared"),
        ("pof-rls", "online-ridge"),
        ("per-fed-avg", "online-network"),
    ],
)
def test_rows_are_not_looked_at_without_an_order(name: str, phase: str, make_streams: Make) -> None:
    """Whether a message fails says something of rows, and no sum would be charged for it."""
    streams = make_streams(CLIENTS, 5)
    met = asked_first(lambda: run(METHODS[name](secure=True), streams, 5), 0, phase, "update")
    assert met.send(sections=[]).endswith("[FK-ORDER-PLAIN]")
    assert met.send() == ""


@pytest.mark.promise("refusals-tell-no-values")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda v: v + 2.0**21, "exceeds its declared bound"),
        (lambda v: v * np.nan, "NaN or infinite"),
        (lambda v: v[:-1], "has shape (61,)"),
    ],
)
def test_a_vector_that_does_not_fit_never_leaves_the_client(
    change: Any, why: str, make_streams: Make, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The server hears that it was refused, the node's log says why."""
    honest = Party.contribute

    def contribute(party: Any, order: Any, values: Any, **more: Any) -> Any:
        return honest(party, order, change(values) if party.partition == 1 else values, **more)

    monkeypatch.setattr(Party, "contribute", contribute)
    with pytest.raises(RefusedError) as caught:
        run(METHODS["pof-mkl"](secure=True), make_streams(CLIENTS, 5), 3)
    assert "partition 1: refused by the node" in str(caught.value)
    assert why in caplog.text
    assert why not in str(caught.value)


@pytest.mark.parametrize(
    ("clients", "options"), [(3, {"min_cohort": 4}), (1, {}), (CLIENTS, {"threshold": 3})]
)
def test_a_cohort_below_the_minimum_is_refused_before_anything_is_sent(
    clients: int, options: dict[str, Any], make_streams: Make
) -> None:
    seen = Audit()
    with pytest.raises((SmallCohortError, OptionError)):
        run(METHODS["pof-mkl"](secure=True, **options), make_streams(clients, 5), 5, audit=seen)
    assert "masked" not in seen.kinds("up")


def test_secure_sums_are_the_default_of_every_grid_that_is_no_simulation(
    make_streams: Make,
) -> None:
    class DeployedGrid(InProcessGrid):
        simulation = False

    app = serve(make_streams(3, 4).client_fn)
    for kind, secure, expected in (
        (DeployedGrid, None, True),
        (DeployedGrid, False, False),
        (InProcessGrid, None, False),
        (InProcessGrid, True, True),
    ):
        strategy = METHODS["pof-mkl"](secure=secure)
        strategy.start(grid=kind(app, 3), num_rounds=3)
        assert strategy.privacy()["protocol"] == ("secure sums" if expected else "plain")


def test_maxima_over_clients_are_not_known_in_a_secure_run(make_streams: Make) -> None:
    found = {}
    for secure in (True, False):
        found[secure] = run(METHODS["pof-mkl paper"](secure=secure), make_streams(CLIENTS, 5), 4)
    for name in ("largest_loss", "regret_to_bound"):
        assert found[True].metrics_.get(name) is None, name
        assert np.isfinite(found[False].metrics_[name]), name


# -- a run that is resumed repeats no sum: two sums of the same values show a client


class Watching(POFMKL):
    """A semi-honest server that keeps every total it is shown."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**KERNELS, "kernels": 5}, secure=True, threshold=4, **options)
        self.totals: dict[int, np.ndarray] = {}

    def step(self, total: np.ndarray, answers: int) -> Any:
        self.totals[len(self.history_) + 1] = total.copy()
        return super().step(total, answers)


def two_lives(streams: Any, folder: Path, **more: Any) -> tuple[Watching, Watching]:
    """Cut a run after round 5, resume it from the checkpoint of round 3 with client 3 away."""

    def cut(done: int, total: int, metrics: Any) -> None:
        if done == 5:
            raise PowerCutError

    options: dict[str, Any] = {"checkpoint": folder / "c.npz", "checkpoint_every": 3}
    first = Watching(**options)
    first.on_round = cut
    with pytest.raises(PowerCutError):
        run(first, streams)
    second = Watching(**options, resume=True)
    gone = FaultPlan([(3, "online-personal", 4, Fault("vanished"))])
    run(second, streams, faults=gone, **more)
    return first, second


@pytest.mark.promise("online-answered-once")
def test_rounds_that_were_answered_are_lost_not_repeated(
    make_streams: Make, tmp_path: Path
) -> None:
    streams, record = make_streams(5, ROUNDS, state_dir=tmp_path / "state"), Transcript()
    first, second = two_lives(streams, tmp_path, transcript=record)
    assert sorted(first.totals) == [1, 2, 3, 4, 5]
    assert sorted(second.totals) == [6, 7, 8]
    assert [row["survivors"] for row in second.history_] == [5, 5, 5, 0, 0, 5, 5, 5]
    asked = {e.scalars["round"] for e in record.entries(phase="online-personal")}
    assert asked == {6, 7, 8}
    assert second.metrics_["mse"] > 0


@pytest.mark.parametrize(
    "make", [Watching, lambda **o: PerFedAvg(secure=True, seed=1, samples_per_round=1, **o)]
)
def test_held_out_rows_are_evaluated_once(make: Make, make_streams: Make, tmp_path: Path) -> None:
    streams = make_streams(5, ROUNDS + 3, test_rows=3, state_dir=tmp_path / "state")
    first = make(checkpoint=tmp_path / "c.npz")
    run(first, streams)
    assert first.metrics_["test_mse"] > 0
    second = make(checkpoint=tmp_path / "c.npz", resume=True)
    run(second, streams)
    assert "test_mse" not in second.metrics_
    assert second.metrics_["mse"] == first.metrics_["mse"]
    assert second.ledger_.by_phase["online-evaluate"] == 0

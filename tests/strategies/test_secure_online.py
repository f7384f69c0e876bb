"""Secure runs of the online methods: the same numbers as plain ones, or a round that is lost."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ArrayRecord, ConfigRecord, Message

from fedkern_flwr import __version__
from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.errors import (
    CohortError,
    FedKernError,
    OptionError,
    RefusedError,
    SmallCohortError,
)
from fedkern_flwr.secure_sum import party as party_module
from fedkern_flwr.secure_sum import running_sum
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import (
    Audit,
    DropOut,
    Fault,
    FaultPlan,
    InProcessGrid,
    Transcript,
)
from fedkern_flwr.simulations.engines.direct import as_client
from fedkern_flwr.strategies import (
    EMKOFL,
    OFSKL,
    POFMKL,
    POFRLS,
    VMKOFL,
    LocalOnly,
    OFMKLAvg,
    PerFedAvg,
)
from fedkern_flwr.wire import PROTOCOL_VERSION
from fedkern_flwr.wire.sections import detach

Make = Callable[..., Any]

CLIENTS, ROUNDS = 7, 8
KERNELS: dict[str, Any] = {
    "kernels": 7,
    "features": 4,
    "seed": 3,
    "samples_per_round": 1,
    "frequencies_per_round": "all",
}
FULL: dict[str, Any] = {"samples_per_round": 1, "frequencies_per_round": "all"}
METHODS: dict[str, Make] = {
    "pof-mkl": lambda **o: POFMKL(**KERNELS, kernels_per_round=3, exploration=0.5, **o),
    "pof-mkl paper": lambda **o: POFMKL(
        **KERNELS, kernels_per_round=3, step_size="paper", exploration=0.5, **o
    ),
    "pof-mkl batches": lambda **o: POFMKL(**{**KERNELS, "samples_per_round": 3}, **o),
    "pof-mkl shared": lambda **o: POFMKL(**KERNELS, kernels_per_round=3, subset="shared", **o),
    "pof-mkl frequencies": lambda **o: POFMKL(**{**KERNELS, "frequencies_per_round": 9}, **o),
    "pof-mkl both": lambda **o: POFMKL(
        **{**KERNELS, "frequencies_per_round": 5}, kernels_per_round=3, subset="shared", **o
    ),
    "vm-kofl frequencies": lambda **o: VMKOFL(**{**KERNELS, "frequencies_per_round": 9}, **o),
    "em-kofl frequencies": lambda **o: EMKOFL(**{**KERNELS, "frequencies_per_round": 3}, **o),
    "ofskl": lambda **o: OFSKL(features=4, seed=3, **FULL, **o),
    "ofmkl-avg": lambda **o: OFMKLAvg(**KERNELS, **o),
    "vm-kofl": lambda **o: VMKOFL(**KERNELS, **o),
    "em-kofl": lambda **o: EMKOFL(**KERNELS, **o),
    "pof-rls": lambda **o: POFRLS(features=1, up=11, seed=3, samples_per_round=1, **o),
    "per-fed-avg": lambda **o: PerFedAvg(seed=3, samples_per_round=1, **o),
}
#: A vector long enough that seeds of pairs are shared as well, so that any t answers open a sum.
WIDE: dict[str, Any] = {"kernels": 7, "features": 30, "seed": 3, "kernels_per_round": 3, **FULL}
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


@pytest.mark.parametrize("name", METHODS)
def test_a_secure_run_is_the_plain_run(name: str, make_streams: Make) -> None:
    streams = make_streams(CLIENTS, ROUNDS + 4, test_rows=4)
    plain = run(METHODS[name](secure=False), streams)
    secure = run(METHODS[name](secure=True), streams, serialise=True)
    assert_same_run(secure, plain)
    assert np.abs(model(secure)).max() > 1e-3
    rounds = len(plain.history_)
    # describe, two exchanges a round, two for the held-out rows, one to erase all secrets
    assert secure.ledger_.exchanges == 1 + 2 * rounds + 2 + 1


SECRET_FREE = {"size", "key", "masked", "sealed", "commitment", "share", "seed", "control"}


@pytest.mark.parametrize("name", METHODS)
def test_a_secure_run_with_drop_outs_is_the_plain_run_over_the_same_survivors(
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
    assert secure.ledger_.by_phase["recover"] > 0
    assert any(row["survivors"] < 10 for row in secure.history_)
    assert seen.kinds("up") == SECRET_FREE
    assert seen.kinds("down") <= {"public", "key", "sealed", "control"}
    assert "plain" in read.kinds("up")
    masked = seen.view("up")["sum-upload", "masked"]
    assert masked.uniform is not None
    assert masked.uniform > 1e-9
    for node in range(1000, 1010):
        assert "plain" not in seen.kinds("up", node)


UPLOAD = "online-personal"
GONE = (1, UPLOAD, 3, Fault("lost request"))


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


def cut(metrics: ConfigRecord, arrays: ArrayRecord) -> None:
    name = next(n for n in metrics if n.endswith("shares"))
    metrics[name] = metrics[name][:-1]  # type: ignore[index]


def damage(metrics: ConfigRecord, arrays: ArrayRecord) -> None:
    metrics["sections"] = "rubbish"


LENGTH = 7 * 60 + 6
# What happens to client 1 in round 3 (and to others later in it), and whether its vector counts.
STAGES: dict[str, tuple[list[Any], bool]] = {
    "after the keys, before the upload": ([GONE], False),
    "the upload is lost": ([(1, UPLOAD, 3, Fault("lost reply"))], False),
    "it raises": ([(1, UPLOAD, 3, Fault("error"))], False),
    "after the upload": ([(1, "unmask", 3, Fault("vanished"))], True),
    "after the upload, for good": (
        [(1, "unmask", 3, Fault("vanished")), (1, "recover", 3, Fault("vanished"))],
        True,
    ),
    "one before and one after the upload": (
        [GONE, (2, "unmask", 3, Fault("lost request")), (2, "recover", 3, Fault("lost request"))],
        False,
    ),
    "one before, one after, one during recovery": (
        [
            GONE,
            (2, "unmask", 3, Fault("vanished")),
            (2, "recover", 3, Fault("vanished")),
            (4, "recover", 3, Fault("vanished")),
        ],
        False,
    ),
    "late": ([(1, UPLOAD, 3, Fault("delay", seconds=60.0))], False),
    "duplicate": ([(1, UPLOAD, 3, Fault("duplicate"))], True),
    "duplicate unmask": ([(1, "unmask", 3, Fault("duplicate"))], True),
    "wrong dtype": (
        [(1, UPLOAD, 3, garbage(replace_array(np.zeros(LENGTH, np.float64))))],
        False,
    ),
    "wrong ring": ([(1, UPLOAD, 3, garbage(replace_array(np.zeros(LENGTH, np.uint32))))], False),
    "wrong size": ([(1, UPLOAD, 3, garbage(replace_array(np.zeros(3, np.uint64))))], False),
    "shares cut off": ([(1, UPLOAD, 3, garbage(cut))], False),
    "damaged sections": ([(1, UPLOAD, 3, garbage(damage))], False),
    "damaged answer to unmask": ([(1, "unmask", 3, garbage(cut))], True),
}


@pytest.mark.parametrize("stage", STAGES)
def test_whatever_happens_to_a_client_the_sum_is_that_of_the_declared_survivors(
    stage: str, make_streams: Make
) -> None:
    faults, counts = STAGES[stage]
    # a reply is late when it comes after the time-out of its exchange
    timeout = 0.3 if "late" in stage or "lost" in str(faults) else 60.0
    streams = make_streams(10, 6)
    # t = 6 of 10, so that backups of the seeds of pairs can be held by enough others
    secure = run(
        POFMKL(**WIDE, secure=True, threshold=6),
        streams,
        6,
        faults=FaultPlan(faults),
        timeout=timeout,
    )
    kind = faults[0][3].kind if faults[0][3].kind in ("lost request", "error") else "vanished"
    same = FaultPlan([] if counts else [(1, UPLOAD, 3, Fault(kind))])
    plain = run(POFMKL(**WIDE, secure=False), streams, 6, faults=same, timeout=timeout)
    assert_same_run(secure, plain)
    other = FaultPlan([(1, UPLOAD, 3, Fault("vanished"))] if counts else [])
    wrong = run(POFMKL(**WIDE, secure=False), streams, 6, faults=other)
    assert np.abs(model(secure) - model(wrong)).max() > 1e-5  # the comparison can fail


@pytest.mark.parametrize("name", METHODS)
def test_without_drop_outs_a_round_is_one_exchange(name: str, make_streams: Make) -> None:
    """Everybody answers, so nobody has to be unmasked; what is learned is the same."""
    streams = make_streams(CLIENTS, ROUNDS + 4, test_rows=4)
    plain = run(METHODS[name](secure=False), streams)
    secure = run(METHODS[name](secure=True, drop_outs=False), streams, serialise=True)
    assert_same_run(secure, plain)
    assert secure.ledger_.exchanges == 1 + len(plain.history_) + 1 + 1
    assert {entry["threshold"] for entry in secure.privacy()["cohorts"]} == {CLIENTS}


MISSED = ("vanished", "lost reply", "error")


@pytest.mark.parametrize("kind", MISSED)
@pytest.mark.parametrize("name", ["pof-mkl", "pof-rls"])
def test_without_drop_outs_a_round_that_one_client_misses_is_lost(
    name: str, kind: str, make_streams: Make
) -> None:
    phase = UPLOAD if name == "pof-mkl" else "online-ridge"
    faults = FaultPlan([(1, phase, 3, Fault(kind))])
    models: list[np.ndarray] = []
    strategy = METHODS[name](secure=True, drop_outs=False)
    strategy.on_round = lambda *_: models.append(model(strategy).copy())
    timeout = 0.5 if kind == "lost reply" else 60.0
    run(strategy, make_streams(CLIENTS, 6), 6, faults=faults, timeout=timeout)
    assert [row["survivors"] for row in strategy.history_] == [7, 7, 0, 7, 7, 7]
    assert np.array_equal(models[1], models[2])
    assert not np.array_equal(models[2], models[3])
    assert not strategy.ledger_.by_phase.get("unmask")
    # what the others said of round 3 they say again in round 4
    assert strategy.history_[-1]["mse"] > 0.0


def test_without_drop_outs_a_run_ends_when_a_client_stays_away(make_streams: Make) -> None:
    faults = FaultPlan([(1, UPLOAD, None, Fault("vanished"))])
    strategy = METHODS["pof-mkl"](secure=True, drop_outs=False, max_missed=3)
    with pytest.raises(CohortError, match="3 rounds in a row are lost"):
        run(strategy, make_streams(CLIENTS, 6), 6, faults=faults)
    with pytest.raises(OptionError, match="a threshold is given, and all must answer"):
        POFRLS(drop_outs=False, threshold=5)


def test_a_replayed_upload_is_refused(make_streams: Make) -> None:
    kept: list[Message] = []

    def replay(message: Message) -> Message:
        kept.append(message)
        if len(kept) == 1:
            return message
        message.content["fitres.metrics"] = ConfigRecord(dict(old["metrics"]))
        message.content["fitres.parameters"] = ArrayRecord(old["arrays"])
        return message

    old: dict[str, Any] = {}

    def remember(message: Message) -> Message:
        old["metrics"] = dict(message.content["fitres.metrics"])
        old["arrays"] = message.content["fitres.parameters"].to_numpy_ndarrays()  # type: ignore[union-attr]
        return replay(message)

    faults = FaultPlan(
        [
            (1, UPLOAD, 2, Fault("tamper", change=remember)),
            (1, UPLOAD, 3, Fault("tamper", change=replay)),
        ]
    )
    streams = make_streams(CLIENTS, 5)
    secure = run(METHODS["pof-mkl"](secure=True), streams, 5, faults=faults)
    same = FaultPlan([(1, UPLOAD, 3, Fault("vanished"))])
    assert_same_run(secure, run(METHODS["pof-mkl"](secure=False), streams, 5, faults=same))
    assert secure.ledger_.failures == {"1": {"invalid reply its message belongs to no open sum": 1}}


@pytest.mark.parametrize("name", ["pof-mkl", "ofskl", "pof-rls", "per-fed-avg"])
def test_rows_are_not_looked_at_without_an_order(name: str, make_streams: Make) -> None:
    """Whether a message fails says something of rows, and no sum would be charged for it."""
    said = []

    class Asked(OnlineKernelClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            arrays, plain, sections = detach(list(parameters), dict(config), party="server")
            if sections and self.partition == 0 and plain["phase"] != "describe" and not said:
                with pytest.raises(RefusedError, match="outside of their sum") as why:
                    super().fit(arrays, plain)
                said.append(why.value)
            return super().fit(parameters, config)

    streams = make_streams(CLIENTS, 5)

    def client_fn(context: Any) -> Asked:
        k = int(context.node_config["partition-id"])
        return Asked(context, streams.x[k], streams.y[k])

    simulate(METHODS[name](secure=True), client_fn, CLIENTS, num_rounds=5)
    assert said


def test_a_node_that_fails_before_the_keys_stops_the_run(make_streams: Make) -> None:
    faults = FaultPlan([(1, "describe", None, Fault("error"))])
    with pytest.raises(FedKernError, match="phase describe: raised InjectedError"):
        run(METHODS["pof-mkl"](secure=True), make_streams(3, 5), 5, faults=faults)


def test_a_round_with_too_few_clients_is_lost_and_releases_nothing(make_streams: Make) -> None:
    """t = 5 of 7: with 4 uploads the model stays as it is, and the run goes on."""
    faults = FaultPlan([(k, UPLOAD, 2, Fault("vanished")) for k in (0, 1, 2)])
    models: list[np.ndarray] = []
    strategy = METHODS["pof-mkl"](secure=True)
    strategy.on_round = lambda *_: models.append(strategy.theta_.copy())
    run(strategy, make_streams(CLIENTS, 4), 4, faults=faults)
    assert [row["survivors"] for row in strategy.history_] == [7, 0, 7, 7]
    assert np.array_equal(models[0], models[1])
    assert not np.array_equal(models[1], models[2])
    assert strategy.ledger_.by_phase["unmask"] == 3  # nobody is asked to reveal anything


def test_a_round_whose_survivors_fall_silent_is_lost(make_streams: Make) -> None:
    silent = [(k, p, 2, Fault("vanished")) for k in (0, 1, 2) for p in ("unmask", "recover")]
    strategy = run(
        METHODS["pof-mkl"](secure=True), make_streams(CLIENTS, 4), 4, faults=FaultPlan(silent)
    )
    assert [row["survivors"] for row in strategy.history_] == [7, 0, 7, 7]


def lie(metrics: ConfigRecord, arrays: ArrayRecord) -> None:
    """Commit to seeds that are not those of the masks."""
    name = next(n for n in metrics if n.endswith("commitments"))
    metrics[name] = bytes(len(metrics[name]))  # type: ignore[arg-type]


def test_a_client_whose_masks_do_not_fit_is_left_out(make_streams: Make) -> None:
    """Its vector may be anything, so nothing is released; it is named, and soon not asked again."""
    faults = FaultPlan([(1, UPLOAD, None, garbage(lie))])
    strategy = METHODS["pof-mkl"](secure=True, max_missed=3)
    run(strategy, make_streams(CLIENTS, 6), 6, faults=faults)
    assert [row["survivors"] for row in strategy.history_] == [0, 0, 0, 6, 6, 6]
    assert strategy.left_out_ == [1]
    (reasons,) = strategy.ledger_.failures.values()
    assert reasons == {"invalid reply its masks in update do not fit those of 6 others": 3}


def test_garbage_instead_of_a_vector_loses_the_round(make_streams: Make) -> None:
    """Random ring elements: the total is not one of vectors within the bound."""

    def scramble(metrics: ConfigRecord, arrays: ArrayRecord) -> None:
        noise = np.random.default_rng(0).integers(0, 2**64, LENGTH - 7 * 52, np.uint64)
        replace_array(noise)(metrics, arrays)

    faults = FaultPlan([(1, UPLOAD, 2, garbage(scramble))])
    strategy = run(METHODS["pof-mkl"](secure=True), make_streams(CLIENTS, 4), 4, faults=faults)
    assert [row["survivors"] for row in strategy.history_] == [7, 0, 7, 7]


def test_a_client_that_never_unmasks_is_left_out(make_streams: Make) -> None:
    """One miss a round, however many exchanges it has; contributing does not make up for it."""
    faults = FaultPlan([(1, p, None, Fault("vanished")) for p in ("unmask", "recover")])
    strategy = METHODS["pof-mkl"](secure=True, max_missed=3)
    run(strategy, make_streams(CLIENTS, 6), 6, faults=faults)
    assert [row["survivors"] for row in strategy.history_] == [7, 7, 7, 6, 6, 6]
    assert strategy.left_out_ == [1]


def test_a_run_ends_when_too_few_are_left_for_any_sum(make_streams: Make) -> None:
    """0 and 1 never answer, 2 lies; all three are left out, and t = 5 of 7 cannot be reached."""
    gone = [(k, UPLOAD, None, Fault("vanished")) for k in (0, 1)]
    faults = FaultPlan([*gone, (2, UPLOAD, None, garbage(lie))])
    strategy = METHODS["pof-mkl"](secure=True, max_missed=2, threshold=4)
    run(strategy, make_streams(CLIENTS, 5), 5, faults=faults)
    assert [row["survivors"] for row in strategy.history_] == [0, 0, 4, 4, 4]
    strategy = METHODS["pof-mkl"](secure=True, max_missed=2)
    with pytest.raises(CohortError, match=r"4 of 7 clients are left in round 3, .* sum needs 5"):
        run(strategy, make_streams(CLIENTS, 5), 5, faults=faults)


def test_a_lost_evaluation_does_not_lose_the_run(make_streams: Make) -> None:
    faults = FaultPlan([(k, "online-evaluate", None, Fault("vanished")) for k in (0, 1, 2)])
    streams, strategy = make_streams(CLIENTS, 6, test_rows=3), METHODS["pof-mkl"](secure=True)
    run(strategy, streams, 3, faults=faults)
    assert "test_mse" not in strategy.metrics_
    assert strategy.metrics_["mse"] > 0
    assert strategy.history_[-1]["survivors"] == CLIENTS
    assert all("fedkern-sums" not in context.state for context in streams.contexts.values())


def test_too_many_lost_rounds_in_a_row_stop_the_run(make_streams: Make) -> None:
    faults = FaultPlan([(k, UPLOAD, None, Fault("vanished")) for k in (0, 1, 2)])
    with pytest.raises(CohortError, match="10 rounds in a row are lost: 4 of 7 parties contrib"):
        run(METHODS["pof-mkl"](secure=True), make_streams(CLIENTS, 15), 15, faults=faults)


def test_a_cohort_below_the_minimum_is_refused(make_streams: Make) -> None:
    with pytest.raises(SmallCohortError, match=r"3 parties are too few .* 4 are needed"):
        run(METHODS["pof-mkl"](secure=True, min_cohort=4), make_streams(3, 5), 5)
    with pytest.raises(SmallCohortError, match="1 party is too few"):
        run(METHODS["pof-mkl"](secure=True), make_streams(1, 5), 5)
    with pytest.raises(OptionError, match="threshold is 3 for 7 parties; use 4 to 7"):
        run(METHODS["pof-mkl"](secure=True, threshold=3), make_streams(CLIENTS, 5), 5)
    with pytest.raises(TypeError):
        LocalOnly(secure=True)  # nothing is summed there


def test_secure_sums_are_the_default_of_every_grid_that_is_no_simulation(
    make_streams: Make,
) -> None:
    class DeployedGrid(InProcessGrid):
        simulation = False

    from flwr.clientapp import ClientApp

    streams = make_streams(3, 4)
    app = ClientApp(client_fn=lambda context: as_client(streams.client_fn(context)))
    for grid, secure, expected in (
        (DeployedGrid(app, 3), None, True),
        (DeployedGrid(app, 3), False, False),
        (InProcessGrid(app, 3), None, False),
        (InProcessGrid(app, 3), True, True),
    ):
        strategy = METHODS["pof-mkl"](secure=secure)
        strategy.start(grid=grid, num_rounds=3)
        assert (strategy.sums is not None) == expected
        assert strategy.privacy()["protocol"] == ("secure sums" if expected else "plain")


# -- what is seen


def test_the_audit_finds_masks_that_are_none(
    make_streams: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation that must be seen: vectors that are encoded but not masked."""
    monkeypatch.setattr(party_module, "add_streams", lambda *a, **o: None)
    monkeypatch.setattr(running_sum, "add_streams", lambda *a, **o: None)
    audit, strategy = Audit(), METHODS["pof-mkl"](secure=True)
    run(strategy, make_streams(CLIENTS, 12), audit=audit)
    rows = {(r["phase"], r["field"]): r for r in audit.to_dict()["server"]}
    assert rows["sum-upload", "masked"]["uniform_p"] < 1e-12
    assert rows["sum-upload", "shares"]["uniform_p"] > 1e-9
    json.dumps(audit.to_dict())


def test_nothing_secret_stays_behind(
    make_streams: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After the run the nodes remember no secret; logs, metrics and files never held one."""
    made: list[str] = []
    original = party_module.OpenSum

    def opened(order: Any, keys: dict[int, tuple[bytes, bytes]], **more: Any) -> Any:
        made.extend(key.hex() for pair in keys.values() for key in pair)
        return original(order, keys, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(party_module, "OpenSum", opened)
        streams = make_streams(CLIENTS, ROUNDS, state_dir=tmp_path / "state")
        strategy = METHODS["pof-mkl"](secure=True, checkpoint=tmp_path / "checkpoint.npz")
        with caplog.at_level("DEBUG"):
            run(strategy, streams, faults=DropOut(0.1, 2))
    assert len(made) > 100
    text = caplog.text + json.dumps([strategy.metrics_, strategy.history_, strategy.privacy()])
    text += json.dumps(strategy.ledger_.to_dict())
    raw = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for context in streams.contexts.values():
        assert "fedkern-sums" not in context.state
        text += str(context.state)
    for secret in made:
        assert secret not in text
        assert bytes.fromhex(secret) not in raw


def test_state_between_rounds_holds_no_secret_of_a_finished_round(make_streams: Make) -> None:
    """Once the next round has begun, keys of the last one are gone and cannot be derived."""
    streams = make_streams(CLIENTS, ROUNDS)
    strategy, seen = METHODS["pof-mkl"](secure=True), []

    def look(done: int, total: int, metrics: Any) -> None:
        record = streams.contexts[2].state["fedkern-sums"]
        seen.append(json.loads(record["state"]))

    strategy.on_round = look
    run(strategy, streams)
    secrets_of = [
        {
            keys[at : at + 64]  # hexadecimal
            for keys in [*(e["keys"][1] for e in state["open"]), *(r[2] for r in state["roots"])]
            for at in range(0, len(keys), 64)
        }
        for state in seen
    ]
    assert all(len(found) == 3 * (CLIENTS - 1) for found in secrets_of)
    for earlier, later in itertools.pairwise(secrets_of):
        assert not earlier & later
    assert all(state["private"] == "" for state in seen)


def test_by_default_every_client_updates_every_kernel_of_a_dense_sum(
    make_streams: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the sum of a kernel that few clients chose would be nearly their own gradient."""
    streams = make_streams(CLIENTS, 5)
    for options, many, warned in (
        ({}, 7, False),
        ({"kernels_per_round": 7}, 7, False),
        ({"kernels_per_round": 3}, 3, True),
        ({"kernels_per_round": 3, "subset": "shared"}, 3, False),
        ({"subset": "shared", "kernels": 40}, 25, False),
        ({"kernels": 40, "secure": False}, 25, False),
    ):
        caplog.clear()
        settings = {**KERNELS, "secure": True, **options}
        strategy = run(POFMKL(**settings), streams, 3)
        assert strategy.kernels_per_round == strategy.options()["kernels_per_round"] == many
        assert ("chosen by fewer than 4 clients" in caplog.text) == warned
        seen = strategy.privacy()["server_sees"]
        assert any("few clients chose" in line for line in seen) == warned
        assert (strategy.lonely_kernels > 1e-9) == warned


# -- bad input: before anything leaves the client


class Misbehaving(OnlineKernelClient):
    change: Callable[[np.ndarray], np.ndarray] = staticmethod(lambda v: v)

    def fit(self, parameters: Any, config: Any) -> Any:
        from fedkern_flwr.node.sums import ClientSums

        original = ClientSums.contribute

        def contribute(sums: ClientSums, name: str, values: np.ndarray) -> None:
            original(sums, name, self.change(values) if self.partition == 1 else values)

        ClientSums.contribute = contribute  # type: ignore[method-assign]
        try:
            return super().fit(parameters, config)
        finally:
            ClientSums.contribute = original  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda v: v + 2.0**21, "update exceeds its declared bound of 1.04858e+06; scale the"),
        (lambda v: v * np.nan, "update holds NaN or infinite values; clean the data"),
        (lambda v: v + np.inf, "update holds NaN or infinite values"),
        (lambda v: v[:-1], "update has shape (61,) instead of (62,)"),
        (lambda v: v[None], "update has shape (1, 62) instead of (62,)"),
        (lambda v: v.astype(complex), "update has dtype complex128, declared as fixed-point"),
    ],
)
def test_a_vector_that_does_not_fit_never_leaves_the_client(
    change: Any, text: str, make_streams: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The server hears that it was refused, the node's log says why."""
    client = type("Client", (Misbehaving,), {"change": staticmethod(change)})
    with pytest.raises(RefusedError) as caught:
        run(METHODS["pof-mkl"](secure=True), make_streams(CLIENTS, 5, client=client), 3)
    refused = "partition 1: refused by the node: the values of a sum, its log says more; its owner"
    assert refused in str(caught.value)
    assert "\n" not in str(caught.value)
    assert f"partition 1: {text}" in caplog.text


def test_other_protocol_versions_are_refused_in_one_line(
    make_streams: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Older(OnlineKernelClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return super().fit(parameters, {**config, "protocol": 1})

    with pytest.raises(FedKernError) as caught:
        run(METHODS["pof-mkl"](secure=True), make_streams(3, 5, client=Older), 3)
    text = str(caught.value)
    assert text.startswith("partition 0, phase describe: the server has fedkern-flwr ")
    assert f"(protocol 1), this node {__version__} (protocol {PROTOCOL_VERSION}); the ser" in text
    assert "\n" not in text


# -- identities


@pytest.fixture
def identities(tmp_path: Path) -> Path:
    """Key pairs of three organisations and the file of trusted keys, as ssh-keygen writes them."""
    lines = ["# partition, then the public key"]
    for k in range(3):
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
        (tmp_path / f"identity-{k}").write_bytes(private)
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        lines.append(f"{k} {public.decode()} hospital-{k}")
    (tmp_path / "trusted").write_text("\n".join(lines))
    return tmp_path


def identified(streams: Any, folder: Path, identity: Callable[[int], Path | None]) -> Any:
    def client_fn(context: Any) -> OnlineKernelClient:
        k = int(context.node_config["partition-id"])
        return OnlineKernelClient(
            context,
            streams.x[k],
            streams.y[k],
            identity_key=identity(k),
            trusted_keys=folder / "trusted",
        )

    return client_fn


def test_pinned_identities_are_checked(identities: Path, make_streams: Make) -> None:
    streams = make_streams(3, 5)
    strategy = METHODS["pof-mkl"](secure=True)
    client_fn = identified(streams, identities, lambda k: identities / f"identity-{k}")
    simulate(strategy, client_fn, 3, num_rounds=4)
    assert [row["survivors"] for row in strategy.history_] == [3] * 4
    assert_same_run(strategy, run(METHODS["pof-mkl"](secure=False), streams, 4))


def test_survivors_vote_where_a_client_is_missing(identities: Path, make_streams: Make) -> None:
    """An exchange more, in that round only; without pinned identities there is none."""
    faults, streams = FaultPlan([(1, UPLOAD, 3, Fault("vanished"))]), make_streams(3, 5)
    client_fn = identified(streams, identities, lambda k: identities / f"identity-{k}")
    pinned, plain = (METHODS["pof-mkl"](secure=True, threshold=2) for _ in range(2))
    simulate(pinned, client_fn, 3, num_rounds=4, faults=faults)
    run(plain, streams, 4, faults=faults)
    assert [row["survivors"] for row in pinned.history_] == [3, 3, 2, 3]
    assert pinned.ledger_.exchanges == plain.ledger_.exchanges + 1
    assert_same_run(pinned, plain)
    silent = [(1, UPLOAD, 3, Fault("vanished")), (0, "vote", 3, Fault("vanished"))]
    lost = METHODS["pof-mkl"](secure=True, threshold=2)
    simulate(lost, client_fn, 3, num_rounds=4, faults=FaultPlan(silent))
    assert [row["survivors"] for row in lost.history_] == [3, 3, 0, 3]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("no signature", "partition 2: its key of this run is not signed, its identity is pinned"),
        ("another identity", "partition 2: its key of this run is not signed by its pinned id"),
        ("not pinned", "partition 2: its identity key is not pinned; add it to the trusted keys"),
    ],
)
def test_a_key_that_is_not_pinned_stops_its_clients(
    case: str, text: str, identities: Path, make_streams: Make
) -> None:
    def identity(k: int) -> Path | None:
        if k == 2 and case == "no signature":
            return None
        return identities / f"identity-{0 if k == 2 and case == 'another identity' else k}"

    if case == "not pinned":
        trusted = identities / "trusted"
        trusted.write_text("\n".join(trusted.read_text().splitlines()[:-1]))
    strategy = METHODS["pof-mkl"](secure=True)
    client_fn = identified(make_streams(3, 5), identities, identity)
    audit = Audit()
    alone = case == "no signature"  # without an identity it cannot vote, and refuses as well
    ends = "0 of 3 clients answered" if alone else "no round could be opened: 1 of 3 parties"
    with pytest.raises(CohortError, match=ends) as caught:
        simulate(strategy, client_fn, 3, num_rounds=4, audit=audit)
    assert text in str(caught.value)
    reasons = strategy.ledger_.failures
    assert all(text in reason for k in ("0", "1") for reason in reasons[k])
    assert ("sum-upload", "masked") not in audit.view("up", 1000)


# -- riding on other messages


def test_uploads_leave_the_reply_as_they_are_taken(
    make_streams: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A streaming server keeps no upload: what stays of a reply has no array."""
    strategy, kept, transcript = METHODS["pof-mkl"](secure=True), [], Transcript()
    original = strategy.in_order
    monkeypatch.setattr(
        strategy, "in_order", lambda o: kept.extend(o.replies.values()) or original(o)
    )
    run(strategy, make_streams(3, 5), 3, transcript=transcript)
    assert len(kept) == 9
    for reply in kept:
        assert not reply.content["fitres.parameters"]
        assert set(reply.content["fitres.metrics"]) == {"phase", "protocol", "round"}
    seen = list(transcript.entries(phase="online-masked", direction="up"))
    assert [len(entry.arrays) for entry in seen] == [1] * 9  # the transcript has them all


def test_maxima_over_clients_are_not_known_in_a_secure_run(make_streams: Make) -> None:
    found = {}
    for secure in (True, False):
        strategy = METHODS["pof-mkl paper"](secure=secure)
        run(strategy, make_streams(CLIENTS, 5), 4)
        found[secure] = strategy.metrics_
    for name in ("largest_loss", "regret_to_bound"):
        assert found[True].get(name) is None, name
        assert np.isfinite(found[False][name]), name


def test_a_dead_client_costs_no_waiting_in_the_recovery(make_streams: Make) -> None:
    """The recovery ends as soon as enough has been revealed, not when the dead time out."""
    faults = [GONE, (2, "unmask", 3, Fault("vanished")), (2, "recover", 3, Fault("lost request"))]
    started = time.monotonic()
    strategy = run(
        POFMKL(**WIDE, secure=True, threshold=6),
        make_streams(10, 4),
        4,
        faults=FaultPlan([(1, UPLOAD, 3, Fault("vanished")), *faults[1:]]),
        timeout=30.0,
    )
    assert strategy.history_[2]["survivors"] == 9
    assert time.monotonic() - started < 20.0

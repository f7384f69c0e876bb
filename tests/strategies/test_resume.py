"""A run that breaks off and is resumed ends exactly as one that did not."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import PowerCutError

from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.errors import CheckpointError, FedKernError
from fedkern_flwr.simulations import DropOut, Fault, FaultPlan, simulate
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

Make = Callable[..., Any]

CLIENTS, ROUNDS = 4, 24
KERNELS = {"kernels": 7, "features": 4}
METHODS: dict[str, Make] = {
    "pof-mkl paper": lambda **o: POFMKL(**KERNELS, step_size="paper", exploration=0.3, **o),
    "pof-mkl": lambda **o: POFMKL(**KERNELS, kernels_per_round=3, exploration=0.3, **o),
    "pof-mkl batches": lambda **o: POFMKL(**KERNELS, samples_per_round=3, **o),
    "ofskl": lambda **o: OFSKL(features=4, **o),
    "ofmkl-avg": lambda **o: OFMKLAvg(**KERNELS, **o),
    "vm-kofl": lambda **o: VMKOFL(**KERNELS, **o),
    "em-kofl": lambda **o: EMKOFL(**KERNELS, **o),
    "pof-rls": lambda **o: POFRLS(features=4, **o),
    "per-fed-avg": PerFedAvg,
}


@pytest.fixture
def streams(make_streams: Make) -> Make:
    """Streams of fresh processes: contexts are lost, state folders remain."""
    return lambda folder=None: make_streams(
        CLIENTS, ROUNDS + 6, seed=5, test_rows=6, state_dir=folder
    )


def run(strategy: Any, streams: Any, cut_after: int = 0, rounds: int = ROUNDS, **more: Any) -> Any:
    """Run to the end or until the power cut after exchange ``cut_after``."""

    def cut(done: int, rounds: int, metrics: Any) -> None:
        if done == cut_after:
            raise PowerCutError

    if not cut_after:
        simulate(strategy, streams.client_fn, CLIENTS, seed=2, num_rounds=rounds, **more)
        return strategy
    strategy.on_round = cut
    with pytest.raises(PowerCutError):
        simulate(strategy, streams.client_fn, CLIENTS, seed=2, num_rounds=rounds, **more)
    return strategy


def ending(strategy: Any) -> dict[str, Any]:
    return {
        "model": {name: a.tolist() for name, a in strategy.model()[0].items()},
        "history": strategy.history_,
        "metrics": strategy.metrics_,
        "failures": strategy.ledger_.failures,
        "left out": strategy.left_out_,
    }


@pytest.mark.parametrize(("every", "drop", "cuts"), [(1, 0.0, (17,)), (7, 0.2, (9, 17))])
@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_ends_as_if_it_had_never_broken_off(
    name: str, every: int, drop: float, cuts: tuple[int, ...], streams: Make, tmp_path: Path
) -> None:
    """Also after it has broken off twice."""
    make, faults = METHODS[name], DropOut(drop, seed=3) if drop else None
    if name.endswith("batches"):  # 8 exchanges in all
        cuts, every = {17: (7,), 9: (5, 7)}[cuts[0]], min(every, 3)
    whole = run(make(), streams(), faults=faults)
    where = {"checkpoint": tmp_path / "run.npz", "checkpoint_every": every}
    for cut in cuts:
        resume = {"resume": cut > cuts[0]}
        run(make(**where, **resume), streams(tmp_path), cut_after=cut, faults=faults)
        assert 0 < load_arrays(tmp_path / "run.npz")[1]["round"] <= cut
    again = run(make(**where, resume=True), streams(tmp_path), faults=faults)
    assert ending(again) == ending(whole)
    assert again.metrics_["mse"] is not None
    assert again.metrics_["test_mse"] > 0.0
    exchanges = again.ledger_.by_phase[again.reply_class.phase]
    assert exchanges == whole.ledger_.by_phase[whole.reply_class.phase]


@pytest.mark.parametrize(
    "every", [2, *(pytest.param(every, marks=pytest.mark.long) for every in (1, 3))]
)
def test_requests_that_never_arrived_do_not_spoil_the_checkpoint(
    every: int, streams: Make, tmp_path: Path
) -> None:
    """A client that misses two rounds has the state of the checkpoint's round all the same."""
    lost = [(k, None, t, Fault("error")) for k, t in ((0, 6), (0, 7), (1, 7), (1, 8), (2, 12))]
    lost += [(3, None, t, Fault("error")) for t in (11, 12)]
    faults, make = FaultPlan(lost), METHODS["pof-mkl"]
    whole = run(make(), streams(), faults=faults)
    for cut in (7, 8, 9, 13):
        folder = tmp_path / str(cut)
        where = {"checkpoint": folder / "run.npz", "checkpoint_every": every}
        run(make(**where), streams(folder), cut_after=cut, faults=faults)
        again = run(make(**where, resume=True), streams(folder), faults=faults)
        assert ending(again) == ending(whole), f"cut after {cut}"


def test_a_client_that_was_left_out_does_not_prevent_resuming(
    streams: Make, tmp_path: Path
) -> None:
    faults = FaultPlan([(2, "online-personal", t, Fault("error")) for t in range(2, 5)])
    make = METHODS["pof-mkl"]
    whole = run(make(max_missed=3), streams(), faults=faults)
    assert whole.left_out_ == [2]
    where = {"checkpoint": tmp_path / "run.npz", "checkpoint_every": 5, "max_missed": 3}
    run(make(**where), streams(tmp_path), cut_after=17, faults=faults)
    again = run(make(**where, resume=True), streams(tmp_path), faults=faults)
    assert ending(again) == ending(whole)


def test_a_finished_run_can_be_resumed_to_its_result(streams: Make, tmp_path: Path) -> None:
    for method in (METHODS["pof-mkl"], LocalOnly):
        where = {"checkpoint": tmp_path / method.__name__, "checkpoint_every": 1}
        where["checkpoint"] = where["checkpoint"].with_suffix(".npz")  # type: ignore[attr-defined]
        whole = run(method(**where), streams(tmp_path))
        again = run(method(**where, resume=True), streams(tmp_path))
        assert again.history_ == whole.history_
        assert again.metrics_["mse"] == whole.metrics_["mse"]


# -- what cannot be resumed


@pytest.fixture(scope="module")
def broken_off_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broken")


@pytest.fixture
def broken_off(broken_off_once: Path, streams: Make, tmp_path: Path) -> Path:
    """Return the checkpoint of a run that broke off, with the nodes' folders: a copy of each."""
    if not any(broken_off_once.iterdir()):
        where = {"checkpoint": broken_off_once / "run.npz", "checkpoint_every": 5}
        run(METHODS["pof-mkl"](**where), streams(broken_off_once), cut_after=12)
    shutil.copytree(broken_off_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run.npz"


@pytest.mark.parametrize(
    "other",
    [
        {"kernels": 6},
        {"features": 5},
        {"kernels_per_round": 2},
        {"exploration": 0.4},
        {"step_size": "paper"},
        {"regularization": 0.1},
        {"samples_per_round": 2},
        {"precision": "float64"},
        {"seed": 3},
        {"method": VMKOFL},
        {"rounds": ROUNDS - 1},
    ],
    ids=lambda other: next(iter(other)),
)
def test_other_options_methods_or_lengths_are_refused(
    other: dict[str, Any], broken_off: Path, streams: Make
) -> None:
    options = {**KERNELS, "kernels_per_round": 3, "exploration": 0.3, **other}
    method, rounds = options.pop("method", POFMKL), options.pop("rounds", ROUNDS)
    options = KERNELS if method is VMKOFL else options
    strategy = method(**options, checkpoint=broken_off, resume=True)
    with pytest.raises(CheckpointError, match="belongs to a run with other options; resume with"):
        run(strategy, streams(broken_off.parent), rounds=rounds)


def npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


DAMAGED = {
    "empty": lambda good: b"",
    "text": lambda good: b"not a checkpoint",
    "cut in half": lambda good: good[: len(good) // 2],
    "flipped bit": lambda good: good[:300] + bytes([good[300] ^ 1]) + good[301:],
    "a single array": lambda good: npy(),
    "another archive": lambda good: npz(a=np.zeros(2)),
    "pickled": lambda good: npz(meta_json=np.array([{"a": 1}], dtype=object)),
    "bad json": lambda good: npz(meta_json=np.frombuffer(b"{", np.uint8)),
    "json list": lambda good: npz(meta_json=np.frombuffer(b"[]", np.uint8)),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_checkpoint_is_refused(damage: str, broken_off: Path, streams: Make) -> None:
    broken_off.write_bytes(DAMAGED[damage](broken_off.read_bytes()))
    strategy = METHODS["pof-mkl"](checkpoint=broken_off, resume=True)
    with pytest.raises(CheckpointError, match=r"run\.npz is damaged or not one of ours; start an"):
        run(strategy, streams(broken_off.parent))


def test_arrays_and_meta_survive_the_file(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "empty": np.zeros((0, 4), np.float32)}
    meta = {"n": 1, "list": [1.5, None], "text": "\u00e9"}
    save_arrays(tmp_path / "deep" / "x.npz", arrays, meta)
    found, told = load_arrays(tmp_path / "deep" / "x.npz")
    assert told == meta
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    assert [f.name for f in (tmp_path / "deep").iterdir()] == ["x.npz"]  # no temporary left


def test_clients_without_their_state_say_so(
    broken_off: Path, streams: Make, tmp_path: Path
) -> None:
    for folder in (None, tmp_path / "elsewhere"):
        strategy = METHODS["pof-mkl"](checkpoint=broken_off, resume=True, checkpoint_every=5)
        text = r"partition 0.*: no private state saved for round 10; give the client the state_dir"
        with pytest.raises(FedKernError, match=text):
            run(strategy, streams(folder))


def test_the_checkpoint_holds_no_client_weights(broken_off: Path) -> None:
    arrays, meta = load_arrays(broken_off)
    assert set(arrays) == {"theta", "step_state"}
    reported = {"round", "total_samples", "total_squared_error", "regret", "largest_loss"}
    assert all(set(values) == reported for values in meta["reports"].values())

"""Files of models: what they are is written in them and checked when they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from fedkern_flwr import __version__
from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.errors import CheckpointError
from fedkern_flwr.model_file import check_model, load_model, save_model

ARRAYS = {"theta": np.arange(6.0).reshape(2, 3), "items": np.arange(4)}
META = {"method": "pof-mkl", "seed": 3, "names": ["a", "b"]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "model.npz"
    save_model(path, "pof-mkl", ARRAYS, META)
    return path


def rewrite(path: Path, **header: Any) -> None:
    arrays, meta = load_arrays(path)
    save_arrays(path, arrays, {**meta, "file": {**meta["file"], **header}})


def test_a_model_comes_back_as_it_was(path: Path) -> None:
    for method in (None, "pof-mkl"):
        arrays, meta = load_model(path, method)
        assert meta == META
        assert arrays.keys() == ARRAYS.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, ARRAYS[name])


def test_the_file_says_what_it_is(path: Path) -> None:
    with np.load(path, allow_pickle=False) as data:
        head = json.loads(bytes(data["meta_json"]))["file"]
    assert head == {
        "format": "fedkern-flwr model",
        "version": 1,
        "method": "pof-mkl",
        "fedkern_flwr": __version__,
    }


def test_files_that_are_no_such_model_are_refused(path: Path, tmp_path: Path) -> None:
    with refused("FK-MODEL-OTHER") as caught:
        load_model(path, "fed-cg")
    assert caught.value.exit_code == 2
    rewrite(path, version=2, fedkern_flwr="9.1")
    with refused("FK-MODEL-VERSION"):
        load_model(path, "pof-mkl")
    for arrays, meta in (
        ({}, {"options": {}, "session": "ab", "round": 3}),  # a checkpoint
        (ARRAYS, META),
        (ARRAYS, {**META, "file": 1}),
    ):
        save_arrays(path, arrays, meta)
        with refused("FK-FILE-FORMAT"):
            load_model(path)
    np.savez(path, **ARRAYS)
    with refused("FK-MODEL-DAMAGED"):
        load_model(path)
    for nothing in (tmp_path / "none.npz", tmp_path):
        with refused("FK-FILE-READ"):
            load_model(nothing)


def test_a_damaged_file_is_refused_or_its_damage_does_not_matter(path: Path) -> None:
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for end in rng.integers(0, len(whole), 60):
        path.write_bytes(whole[:end])
        with refused("FK-MODEL-DAMAGED"):
            load_model(path)
    for place in rng.integers(0, len(whole), 400):
        damaged = bytearray(whole)
        damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(bytes(damaged))
        try:
            arrays, meta = load_model(path)
        except CheckpointError:
            continue
        assert meta == META  # a byte of the archive that nobody reads, such as a date
        for name in arrays.keys() & ARRAYS.keys():
            np.testing.assert_array_equal(arrays[name], ARRAYS[name])


def test_arrays_that_do_not_fit_the_model_are_refused() -> None:
    shapes = {"theta": (2, 3)}
    check_model("pof-mkl", ARRAYS, META, shapes)
    for meta in (META, {}):
        with refused("FK-MODEL-OTHER"):
            check_model("fdskl", ARRAYS, meta, shapes)
    endless = {"theta": np.full((2, 3), np.nan)}
    for arrays, wanted in (
        (ARRAYS, {"theta": (2, 4)}),
        (ARRAYS, {"bias": (2,)}),
        (endless, shapes),
    ):
        with refused("FK-MODEL-DAMAGED"):
            check_model("pof-mkl", arrays, META, wanted)

"""Files of models: what they are is written in them and checked when they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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


def line(path: Path, method: str | None = None) -> str:
    with pytest.raises(CheckpointError) as error:
        load_model(path, method)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_model_of_another_method_is_refused(path: Path) -> None:
    assert line(path, "fed-cg") == (
        f"{path} is a model of pof-mkl, not of fed-cg; name a model of fed-cg"
    )


def test_a_model_of_a_newer_format_is_refused(path: Path) -> None:
    rewrite(path, version=2, fedkern_flwr="9.1")
    assert line(path, "pof-mkl") == (
        f"{path} has format 2 of fedkern-flwr 9.1, this release reads up to 1; upgrade fedkern-flwr"
    )


def test_other_files_are_refused(path: Path, tmp_path: Path) -> None:
    save_arrays(path, {}, {"options": {}, "session": "ab", "round": 3})
    assert line(path) == f"{path} is a checkpoint, not a model; name the model of a run"
    save_arrays(path, ARRAYS, META)
    assert "is another file, not a model" in line(path)
    save_arrays(path, ARRAYS, {**META, "file": 1})
    assert "is another file, not a model" in line(path)
    np.savez(path, **ARRAYS)
    assert "is damaged or not a model; bring the file" in line(path)
    assert "there is no model" in line(tmp_path / "none.npz")
    assert "there is no model" in line(tmp_path)


def test_a_damaged_file_is_refused_or_its_damage_does_not_matter(path: Path) -> None:
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for end in rng.integers(0, len(whole), 60):
        path.write_bytes(whole[:end])
        assert "is damaged or not a model" in line(path)
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
    with pytest.raises(CheckpointError, match="the model is one of pof-mkl; give a model of fdskl"):
        check_model("fdskl", ARRAYS, META, shapes)
    with pytest.raises(CheckpointError, match="the model is one of another method"):
        check_model("fdskl", ARRAYS, {}, shapes)
    expected = r"the model's theta should have shape \(2, 4\) and is of shape \(2, 3\)"
    with pytest.raises(CheckpointError, match=expected):
        check_model("pof-mkl", ARRAYS, META, {"theta": (2, 4)})
    with pytest.raises(CheckpointError, match=r"bias should have shape \(2,\) and is missing"):
        check_model("pof-mkl", ARRAYS, META, {"bias": (2,)})
    with pytest.raises(CheckpointError, match="the model's theta is not finite"):
        check_model("pof-mkl", {"theta": np.full((2, 3), np.nan)}, META, shapes)

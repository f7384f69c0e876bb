"""Presets of Secure Gram and FedCFK, on ratings in the format of MovieLens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.errors import TableError
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.lab.presets import preset
from fedkern_flwr.simulations.lab.presets.demo import demo

USERS, ITEMS = 72, 30


@pytest.fixture
def movies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tastes, so that there is something to recommend."""
    rng = np.random.default_rng(0)
    taste = np.arange(USERS)[:, None] % 2 == np.arange(ITEMS)[None] % 2
    rated = rng.random((USERS, ITEMS)) < np.where(taste, 0.7, 0.15)
    rows = [
        (u + 1, i + 1, 3 + int(taste[u, i]) + int(rng.integers(2)), int(rng.integers(10**6)))
        for u, i in np.argwhere(rated).tolist()
    ]
    for name, separator in (("ml-100k/u.data", "\t"), ("ml-1m/ratings.dat", "::")):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text("".join(separator.join(map(str, row)) + "\n" for row in rows))
    monkeypatch.setenv("FEDKERN_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["compare", *arguments, "--json", "-", "--quiet", "--out", "here"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("number", [1, 2])
def test_tables_compare_participation_with_pooled_data(
    number: int, movies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(capsys, f"fed-cfk-table{number}", "--runs", "1")
    assert len(found["datasets"]) == 2
    for dataset in found["datasets"].values():
        methods = dataset["methods"]
        assert list(methods) == ["pooled", "100 %", "90 %", "70 %", "50 %", "30 %"]
        assert methods["pooled"]["metrics"]["auc"] > 0.6
        for label, summary in methods.items():
            if label != "pooled":
                assert summary["metrics"]["centralised_difference"] < 1e-9
        assert methods["100 %"]["metrics"]["rows"] == USERS
        if number == 1:  # nodes of 60 users are but two here
            assert methods["30 %"]["metrics"]["rows"] < USERS
    assert len(list(Path("here/plots").glob("*participation.png"))) == 2
    assert "0.808" in Path("here/report.html").read_text() or number == 2


def test_rounds_of_random_users_come_near_only_if_they_add_up(
    movies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(capsys, "fed-cfk-figure1")
    (dataset,) = found["datasets"].values()
    final = {k: v["metrics"]["kernel_error"] for k, v in dataset["methods"].items()}
    assert final["disjoint, 50 %"] == 0.0 < final["max, 50 %"]
    assert final["max, 10 %"] > final["max, 50 %"]
    assert dataset["methods"]["disjoint, 50 %"]["metrics"]["exact_from"] < 40
    assert Path("here/plots/ml-100k-kernel-error.png").is_file()


def test_without_movielens_the_user_is_told_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDKERN_DATA", str(tmp_path))
    for name in ("fed-cfk-table1", "fed-cfk-table2", "fed-cfk-figure1"):
        with pytest.raises(TableError, match=r"there is none of .*grouplens\.org"):
            preset(name)


def test_the_demo_has_both_methods() -> None:
    methods = {method for _, method, _ in demo(()).entries}
    assert {"secure-gram", "fed-cfk"} <= methods

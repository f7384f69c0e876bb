"""Cells of comparisons: what they are known by, what is kept, and that a draw is a draw."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

from fedkern_flwr.errors import TableError
from fedkern_flwr.simulations.lab import cells as module
from fedkern_flwr.simulations.lab.cells import (
    Cell,
    CellFailed,
    CellStore,
    choose_jobs,
    run_cell,
    sweep,
)
from fedkern_flwr.simulations.methods.experiment import run_entries
from fedkern_flwr.simulations.methods.online import DataSettings, prepare
from fedkern_flwr.simulations.methods.registry import family
from fedkern_flwr.simulations.methods.vertical import VerticalSettings
from fedkern_flwr.simulations.run import provenance as origin
from fedkern_flwr.simulations.run.entries import Entry
from fedkern_flwr.tables.cells import _moment

WEATHER = DataSettings("iris", clients=3, rounds=6)


def cell(**changes: Any) -> Cell:
    given: dict[str, Any] = {"settings": WEATHER, "method": "ofskl", "options": {"features": 8}}
    given |= {"seed": 3, "audited": False}
    return Cell(**{**given, **changes})


def test_a_cell_is_the_draw_that_a_run_of_several_draws_has() -> None:
    entry = Entry("OFSKL", "ofskl", {"features": 8})
    data, own = prepare(WEATHER), family("ofskl")
    measure = lambda strategy: own.measure(strategy, data, {})  # noqa: E731
    run_entries([entry], data, engine="in-process", seed=2, runs=3, measure=measure)
    for draw, expected in enumerate(entry.results):
        found = run_cell(cell(seed=2 + draw))["result"]
        for name in ("metrics", "history", "exchanges", "bytes_up", "bytes_down", "privacy"):
            assert found[name] == expected[name], name
    audited = run_cell(cell(seed=4, audited=True))["result"]  # which changes no figure
    assert audited["privacy"]["seen"]["server"]
    assert "seen" not in found["privacy"]
    assert (found["metrics"], found["bytes_up"]) == (audited["metrics"], audited["bytes_up"])


def test_what_a_result_depends_on_changes_its_key(tmp_path: Path, monkeypatch: Any) -> None:
    other: dict[str, Any] = {"seed": 4, "options": {"features": 9}, "method": "pof-mkl"}
    other |= {"audited": True, "check_pooled": True, "describes": True}
    settings = replace(WEATHER, seed=1), replace(WEATHER, data="wine"), VerticalSettings("iris")
    changes = [
        *({name: value} for name, value in other.items()),
        *({"settings": s} for s in settings),
    ]
    before = cell().key
    assert len({before, *(cell(**change).key for change in changes)}) == 1 + len(changes)
    files = [tmp_path / name for name in ("a.npz", "b.npz")]
    for file in files:
        file.write_bytes(b"one")
    first, moved = (cell(settings=replace(WEATHER, data=str(file))).key for file in files)
    assert first == moved
    files[0].write_bytes(b"two")
    origin.file_digest.cache_clear()
    assert cell(settings=replace(WEATHER, data=str(files[0]))).key != first
    assert cell().key == before
    monkeypatch.setattr(module, "code_digest", lambda: "other")
    assert cell().key != before


def test_a_store_finds_what_it_keeps_and_nothing_that_was_cut_off(tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cells")
    result = {"metrics": {"mse": 0.1 + 0.2}, "history": [], "privacy": {}}
    record = {"result": result, "facts": {}, "notes": []}
    assert store.find(cell()) is None
    assert store.keep(cell(), record) == record
    assert CellStore(tmp_path / "cells").find(cell()) == record
    fresh = CellStore(tmp_path / "cells", fresh=True)
    assert fresh.find(cell()) is None
    fresh.keep(cell(), record)
    assert fresh.find(cell()) == record  # it is its own
    (file,) = (tmp_path / "cells").iterdir()
    assert str(tmp_path) not in file.read_text()
    whole = file.read_text()
    for damaged in (whole[:50], "null", "[]", "{}", '{"cell": 1, "record": {"result": 3}}'):
        file.write_text(damaged)
        assert store.find(cell()) is None
    other = cell(seed=9)
    store._file(other).write_text(whole)  # another cell's record under its name
    assert store.find(other) is None
    refuses("FK-FILE-WRITE", CellStore, file / "cells")


def test_a_sweep_gives_what_is_finished_before_it_names_the_cell_that_fails(tmp_path: Path) -> None:
    good, bad = cell(), cell(settings=replace(WEATHER, data=str(tmp_path / "no.npz")))
    done: list[Cell] = []
    steps: list[tuple[int, int]] = []
    told = {"progress": lambda _, *step: steps.append(step), "done": lambda c, _: done.append(c)}
    with pytest.raises(CellFailed) as failed:
        sweep([good, bad, cell(seed=5)], **told)  # type: ignore[arg-type]
    assert done == [good]
    assert failed.value.cell is bad
    assert isinstance(failed.value.error, TableError)
    assert steps[-1] == (6, 6)
    refuses("FK-OPTION-RANGE", sweep, [good], jobs=0, **told)  # type: ignore[arg-type]


def test_a_worker_with_other_data_or_code_is_refused() -> None:
    from fedkern_flwr.simulations.lab.cells import _compute

    refuses("FK-ENGINE-DIFFERS", _compute, cell(), "something else")
    assert _compute(cell(), cell().key)["result"]["exchanges"] == 7


def test_records_are_json_and_one_draw_is_timed_alone(tmp_path: Path, monkeypatch: Any) -> None:
    own = VerticalSettings("wine", rounds=None)
    record = run_cell(cell(settings=own, method="svc", options={}))
    assert json.loads(json.dumps(record)) == CellStore(tmp_path).keep(cell(), record)
    monkeypatch.setattr("fedkern_flwr.simulations.lab.cells.processors", lambda: 8)
    many = [cell(seed=s) for s in range(40)]
    assert [choose_jobs(*one) for one in ((many, 1), (many[:5], 20), (many, 20))] == [1, 1, 8]


def test_dates_without_a_zone_are_in_utc(monkeypatch: Any) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        found = _moment("2020-01-02")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found == datetime(2020, 1, 2, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("clock", ["9:05", "09:05", "9:05:30", "09:05:30"])
def test_an_hour_may_have_one_digit(clock: str) -> None:
    seconds = 30 * (clock.count(":") == 2)
    found = _moment(f"1/2/2024 {clock}", "day-first")
    assert found == datetime(2024, 2, 1, 9, 5, seconds, tzinfo=UTC).timestamp()

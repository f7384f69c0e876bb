"""The client of column ranges: what it refuses, what it tells, what it writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr.align import range_messages as wire
from fedkern_flwr.align.column_ranges import Centre
from fedkern_flwr.clients import RangesClient
from fedkern_flwr.encoding.common import Coarse
from fedkern_flwr.errors import (
    OptionError,
    ProtocolError,
    RefusedError,
    TableError,
)
from fedkern_flwr.scaling import Scaling, read_ranges
from fedkern_flwr.wire import DescribeRequest, columns_digest

SESSION = "5e" * 8
X = np.array([[1.0, np.nan], [3.0, 5.0], [2.0, -5.0]])
Table = dict[str, Any]


def context(partition: int = 4, **config: Any) -> Context:
    config = {"simulation": True, "partition-id": partition, "num-partitions": 5, **config}
    return Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})


def make(place: Context | None = None, **table: Any) -> RangesClient:
    return RangesClient(place or context(), **{"x": X, "columns": ("a", "b"), **table})


def opening() -> Table:
    request = DescribeRequest(session=SESSION, method="ranges", resume_round=0, secure=True)
    return {"parameters": request.arrays(), "config": request.scalars()}


def answer(client: RangesClient, request: Any) -> Any:
    return client.fit(request.arrays(), request.scalars())


BAD: dict[str, tuple[Table, str]] = {
    "text": ({"x": [["a", "b"]]}, "features that are not numbers; clean the table first"),
    "no matrix": ({"x": np.ones(3)}, "features of shape (3,); pass x of shape (n, d)"),
    "no rows": ({"x": np.ones((0, 2))}, "features of shape (0, 2); pass x of shape"),
    "no columns": ({"x": np.ones((2, 0))}, "features of shape (2, 0); pass x of shape"),
    "too few names": ({"columns": ("a",)}, "2 features have 1 different names; name each"),
    "a name twice": ({"columns": ("a", "a")}, "2 features have 1 different names; name each"),
    "infinite": (
        {"x": np.where(X == 5.0, np.inf, X)},
        "column 'b' is infinite in 1 rows; leave these",
    ),
    "empty": ({"x": X * [1.0, np.nan]}, "column 'b' has no value: its sums would be those"),
    "labels of text": ({"y": ["x", "y", "z"]}, "labels that are not numbers; clean the table"),
    "other labels": ({"y": np.ones(2)}, "labels of shape (2,) do not fit 3 rows; pass one"),
    "no labels": ({"y": np.full(3, np.nan)}, "column 'label' has no value"),
    "infinite labels": ({"y": [1.0, np.inf, 2.0]}, "column 'label' is infinite in 1 rows"),
    "a feature named label": (
        {"columns": ("a", "label"), "y": np.ones(3)},
        "a feature is named 'label', as the range of the labels is; rename it",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_tables_that_cannot_be_used_are_refused_in_one_line(name: str) -> None:
    table, text = BAD[name]
    with pytest.raises(TableError) as error:
        make(**table)
    assert str(error.value).startswith(f"partition 4: {text}")
    assert "\n" not in str(error.value)


def test_a_node_tells_sizes_and_a_digest() -> None:
    place = context()
    make(place, block="genes", y=np.ones(3)).fit(**opening())
    _, _, told = make(place, block="genes", y=np.ones(3)).fit(**opening())
    assert told["block"] == "genes"
    assert told["labelled"] is True
    assert (told["rows"], told["features"], told["test_rows"]) == (3, 2, 0)
    assert told["columns"] == columns_digest(("a", "b"))
    assert len(told["public_key"]) == 32
    assert set(told) - {"phase", "protocol", "partition", "partitions", "role", "restored"} == {
        "release",
        "rows",
        "features",
        "test_rows",
        "columns",
        "public_key",
        "signature",
        "answered",
        "opened",
        "binary",
        "counting",
        "block",
        "labelled",
        "kinds",
        "secret_digest",
    }


def write(**fields: Any) -> wire.WriteRequest:
    own: Table = {"session": SESSION, "round": 3, "labels": False, "alone": False, "clip": True}
    own |= {"low": np.array([-1.0, -2.0]), "high": np.array([1.0, 0.1])}
    return wire.WriteRequest(**{**own, **fields})


def test_files_are_written_as_often_as_asked(tmp_path: Path) -> None:
    place, ranges = context(), tmp_path / "new" / "ranges.json"
    client = make(place, ranges=ranges, scaling=str(tmp_path / "scaling.json"))
    client.fit(**opening())
    for _ in range(2):
        answer(client, write())
        found = read_ranges(("b", "a"), ranges)
        assert (found.low.tolist(), found.high.tolist()) == ([-2.0, -1.0], [0.1, 1.0])
        assert found.clip
        scaling = Scaling.from_json((tmp_path / "scaling.json").read_text())
        assert (scaling.row_norm, scaling.y_min, scaling.y_max) == (2.0**0.5, 0.0, 1.0)
        ranges.unlink()
    answer(client, write(clip=False))
    assert json.loads(ranges.read_text()) == {"a": [-1.0, 1.0], "b": [-2.0, 0.1]}
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == ["ranges.json", "scaling.json"]


def test_a_node_by_itself_takes_its_own_extremes(tmp_path: Path) -> None:
    client = make(ranges=tmp_path / "ranges.json", y=[7.0, np.nan, 8.0])
    client.fit(**opening())
    none = np.zeros(0)
    answer(client, write(alone=True, labels=True, low=none, high=none))
    ranges = json.loads((tmp_path / "ranges.json").read_text())["ranges"]
    assert ranges == {"a": [1.0, 3.0], "b": [-5.0, 5.0], "label": [7.0, 8.0]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"low": np.zeros(3), "high": np.ones(3)},
        {"low": np.array([0.0, 1.0]), "high": np.array([1.0, 1.0])},
    ],
)
def test_ranges_that_do_not_fit_are_refused(tmp_path: Path, wrong: Table) -> None:
    client = make(ranges=tmp_path / "ranges.json")
    client.fit(**opening())
    with pytest.raises(ProtocolError, match="the ranges do not fit the columns of this node"):
        answer(client, write(**wrong))
    assert not (tmp_path / "ranges.json").exists()


def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "ranges.json"):
        with pytest.raises(OptionError, match="partition 4: the file of ranges or of the scaling"):
            make(ranges=path).fit(**opening())
    client = make(scaling=tmp_path / "late" / "scaling.json")
    client.fit(**opening())
    (tmp_path / "late").write_text("")  # since then
    with pytest.raises(OptionError, match="partition 4: the file of ranges or of the scaling"):
        answer(client, write())


def test_a_node_that_was_described_anew_takes_no_second_centre() -> None:
    place = context()
    centres = (Centre(np.full(2, 9.0), np.full(2, m), np.ones(2)) for m in (0.0, 1.0))
    one, other = (replace(Coarse.nothing(), centre=centre) for centre in centres)
    for _ in range(2):
        client = make(place)
        client.fit(**opening())
        with client.keeping(SESSION):
            client._fix(one)
    make(place).fit(**opening())
    client = make(place)
    with pytest.raises(RefusedError, match="another centre or other"), client.keeping(SESSION):
        client._fix(other)


def test_a_node_that_is_described_with_another_table_refuses() -> None:
    place = context()
    make(place).fit(**opening())
    with pytest.raises(TableError, match="not the one with which this run began"):
        make(place, x=X + 1.0).fit(**opening())

"""Texts and numbers that somebody else wrote: what a node reads, quotes, and lets others open."""

from __future__ import annotations

import csv
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from fedkern_flwr.checkpoint import plain_cell, write_csv
from fedkern_flwr.encoding.columns import Number
from fedkern_flwr.plain_text import read_json
from fedkern_flwr.simulations.run.drawing import save_figure
from fedkern_flwr.simulations.run.report import write_report
from fedkern_flwr.wire import DescribeRequest
from fedkern_flwr.wire.sections import detach

DEEP = "[" * 100_000


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 100_000, DEEP.encode(), "{", "nan nan"])
def test_deeply_nested_json_is_no_recursion_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_json(text)


def test_sections_may_not_be_nested_deeply() -> None:
    with refused("FK-MESSAGE-DAMAGED"):
        detach([], {"sections": DEEP}, party="server")


@pytest.mark.promise("texts-are-short")
@pytest.mark.parametrize("text", ["x" * 201, "x" * 200_000, "\x1b[31mred", "a\nb", "a\u202eb"])
def test_a_name_has_200_printable_characters(text: str) -> None:
    """So no error quotes more, nor what a terminal obeys: 200 kB and escape codes on 6f0b6ef."""
    scalars = {**DescribeRequest(session="ab", method="m", resume_round=0).scalars()}
    DescribeRequest.unpack([], {**scalars, "method": "x" * 200}, party="server")
    with refused("FK-MESSAGE-TEXT") as caught:
        DescribeRequest.unpack([], {**scalars, "method": text}, party="server")
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


# -- files


@pytest.mark.promise("cells-are-no-formulas")
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_cell_is_a_formula(text: str) -> None:
    cell = plain_cell(text)
    try:
        float(cell)
    except ValueError:
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


@pytest.mark.promise("cells-are-no-formulas")
def test_formulas_are_quoted_and_numbers_stay(tmp_path: Path) -> None:
    cells = ["=1+1", "+cmd", "-x", "@a", "-1.5", "+4", "-1e-300", "-inf", "a=b", "", "'q"]
    write_csv(tmp_path / "p.csv", [cells, [-1.5, 3, "x", None]])
    with (tmp_path / "p.csv").open(newline="") as file:
        first, second = csv.reader(file)
    assert first[:4] == ["'=1+1", "'+cmd", "'-x", "'@a"]
    assert first[4:] == cells[4:]
    assert second == ["-1.5", "3", "x", ""]


@pytest.mark.promise("pictures-are-private")
def test_pictures_and_reports_are_private(tmp_path: Path) -> None:
    """A point of a picture may be a row with its label; they had mode 644."""
    from matplotlib.figure import Figure

    save_figure(Figure(figsize=(1, 1)), tmp_path / "scatter.png")
    write_report(tmp_path / "report.html", title="title", subtitle="", blocks=[])
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert found == dict.fromkeys(("scatter.png", "scatter.svg", "report.html"), 0o600)


@pytest.mark.promise("no-sorted-values")
@pytest.mark.parametrize("scaling", ["range", "standard", "none", "auto", "rank"])
def test_sorted_values_are_kept_for_ranks_only(scaling: Any) -> None:
    """Of up to 1,000 rows they are all values of the column."""
    values = np.random.default_rng(0).random(50)
    column = Number.fit("dose", values, scaling, "keep")
    kept = set(column.to_dict()["facts"]["knots"])
    assert kept == (set(values) if column.scale == "rank" else {values.min(), values.max()})
    again = Number.from_dict(column.to_dict())
    np.testing.assert_array_equal(again.transform(values), column.transform(values))

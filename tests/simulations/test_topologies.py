"""The comparison of star, ring and tree: rows, cells and figure."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from fedkern_flwr.errors import OptionError
from fedkern_flwr.simulations.lab.links import Link
from fedkern_flwr.simulations.lab.topologies import (
    COLUMNS,
    SERVER_NOTE,
    plot_topologies,
    table_rows,
    topology_rows,
)
from fedkern_flwr.simulations.run import drawing


def test_every_topology_stands_in_every_block() -> None:
    rows = topology_rows((4, 8), (1e6, 1e8))
    assert [(row.size, row.parties) for row in rows[::5]] == [
        (1e6, 4),
        (1e6, 8),
        (1e8, 4),
        (1e8, 8),
    ]
    names = ["star", "ring", "tree", "two trees", "masked star"]
    assert [row.topology for row in rows] == 4 * names
    assert [row.exchanges for row in rows[5:10]] == [2, 8, 4, 4, 2]


def test_cells_fit_their_headings() -> None:
    cells = table_rows(topology_rows((8,), (1e8,)))
    assert {len(row) for row in cells} == {len(COLUMNS)}
    tree, masked = cells[2], cells[4]
    assert tree == ["1.56", "8", "tree", "24.0", "3", "700", "112", "14", "1,400", "4"]
    assert masked == ["1.00", "8", "masked star", "-", "-", "-", "72.0", "9", "900", "2"]


def test_a_faster_link_takes_less_time() -> None:
    slow, fast = (topology_rows((8,), (1e6,), link=Link(1e-3, rate)) for rate in (1e8, 1e9))
    assert all(a.server.seconds > b.server.seconds for a, b in zip(slow, fast, strict=True))


def test_the_figure_shows_both_ways_with_units_and_says_what_flower_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    save = drawing.save_figure
    monkeypatch.setattr(
        drawing, "save_figure", lambda f, path: (figures.append(f), save(f, path))[1]
    )
    png = plot_topologies(tmp_path / "links.png", (4, 16), (1e4, 1e8))
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert png.with_suffix(".svg").exists()
    (figure,) = figures
    assert figure.get_suptitle() == SERVER_NOTE
    axes = figure.axes
    assert [a.get_ylabel() for a in axes] == ["time of a sum (s)", "", "time of a sum (s)", ""]
    assert [len([line for line in a.lines if len(line.get_xdata())]) for a in axes] == [4, 5, 4, 5]


def test_one_party_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="use at least 2 parties"):
        plot_topologies(tmp_path / "links.png", (1, 2))

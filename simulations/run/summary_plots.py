"""Plots of a summary: histograms, correlations and missing cells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from . import drawing

_MOST = 60  # columns that are drawn
_ACROSS = 5
_TITLE = 16  # letters in a line above a small histogram


def plot_summary(folder: Path, details: Mapping[str, Any]) -> dict[str, Path]:
    """Draw the details of a summary; return artifact -> file."""
    found, columns = {}, [one for one in details.get("columns", ()) if one["histogram"]]
    if columns:
        found["histograms_plot"] = _histograms(folder, columns[:_MOST])
    for k, one in enumerate(details.get("correlations", ())):
        if len(one["columns"]) <= _MOST:
            found[f"correlations_{k + 1}_plot"] = _correlations(folder, one, k + 1)
    gaps = {one["name"]: one["gaps"] / max(one["rows"], 1) for one in details.get("columns", ())}
    for name, one in details.get("categories", {}).items():
        known = sum(one["counts"].values())
        gaps[name] = (one["rows"] - known) / max(one["rows"], 1)
    gaps = {name: share for name, share in gaps.items() if share > 0.0}
    if gaps:
        found["missing_plot"] = _missing(folder, dict([*gaps.items()][:_MOST]))
    return found


def _histograms(folder: Path, columns: list[Any]) -> Path:
    down = -(-len(columns) // _ACROSS)
    figure = drawing.new_figure(1.2 + 1.3 * down)
    style = drawing.assign_styles(["all"])["all"]
    grid = figure.subplots(down, _ACROSS, squeeze=False).ravel()
    for axes, one in zip(grid, columns, strict=False):
        edges, counts = map(np.asarray, one["histogram"])
        axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=style.colour)
        axes.set_title(fill(drawing.clean_name(one["name"]), _TITLE), fontsize=7)
        axes.set_yticks([])
        axes.set_xticks([edges[0], edges[-1]])
        axes.set_xticklabels([_end(value, one["kind"]) for value in edges[[0, -1]]], fontsize=6)
        axes.spines[["top", "right", "left"]].set_visible(False)
    for axes in grid[len(columns) :]:
        axes.set_axis_off()
    return drawing.save_figure(figure, folder / "histograms", svg=False)


def _end(value: float, kind: str) -> str:
    """Write an end of an axis; dates are in days since 1970."""
    return str(np.datetime64(int(value), "D")) if kind == "date" else f"{value:.3g}"


def _correlations(folder: Path, one: Mapping[str, Any], number: int) -> Path:
    names = [drawing.clean_name(name) for name in one["columns"]]
    figure = drawing.new_figure(min(5.0, 2.0 + 0.25 * len(names)))  # it is as wide as the page
    axes = figure.add_subplot()
    matrix = np.array(one["matrix"], np.float64)
    image = axes.imshow(matrix, cmap="RdBu_r", vmin=-1.0, vmax=1.0)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    figure.colorbar(image, ax=axes, fraction=0.046, label="correlation")
    return drawing.save_figure(figure, folder / f"correlations-{number}", svg=False)


def _missing(folder: Path, gaps: Mapping[str, float]) -> Path:
    figure = drawing.new_figure(1.2 + 0.25 * len(gaps))
    axes = figure.add_subplot()
    style = drawing.assign_styles(["all"])["all"]
    axes.barh(range(len(gaps)), [100.0 * share for share in gaps.values()], color=style.colour)
    axes.invert_yaxis()
    axes.set_yticks(range(len(gaps)), [drawing.clean_name(name) for name in gaps], fontsize=7)
    axes.set_xlabel("missing cells (%)")
    axes.spines[["top", "right"]].set_visible(False)
    return drawing.save_figure(figure, folder / "missing", svg=False)

"""FedCG: rows and features both split, solved once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedkern_flwr.hybrid import MissingBlocks

from ... import strategies
from ...strategies import FedCG, PhaseStrategy
from .. import plots
from ..entries import Entry, average
from ..format import figure
from ..options import DATA, RUN, Option
from ..splits import Split
from .base import Config, Family
from .common import (
    COSTS,
    DROP,
    ENGINE,
    RESULT,
    TIMEOUT,
    Column,
    cost_rows,
    failure_rows,
    held_out,
    seed,
    source,
)
from .hybrid_data import HybridData, HybridSettings, Task
from .hybrid_figures import FIGURES
from .hybrid_oracle import centralised_difference


def _range(name: str) -> Any:
    def cells(summary: Mapping[str, Any]) -> list[str]:
        values = summary.get("draws", {}).get(name) or [summary["metrics"].get(name)]
        if any(value is None for value in values):
            return ["-", "-"]
        return [f"{np.mean(values):.3f}", f"{min(values):.3f}-{max(values):.3f}"]

    return cells


def _mean(name: str, digits: int) -> Any:
    return lambda summary: [figure(summary["metrics"].get(name), digits)]


def _scientific(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _two_digits(value: float | None) -> str:
    return figure(value, 2)


_COLUMNS = {
    "accuracy": Column(
        ("accuracy", "range"),
        _range("test_accuracy"),
        rank=lambda s: -(s["metrics"].get("test_accuracy") or 0.0),
        paper=_two_digits,
    ),
    "rmse": Column(
        ("RMSE", "range"), _range("test_rmse"), rank=lambda s: s["metrics"].get("test_rmse")
    ),
    "recall": Column(("recall",), _mean("test_recall", 3), paper=_two_digits),
    "precision": Column(("precision",), _mean("test_precision", 3), paper=_two_digits),
    "iterations": Column(("iterations",), _mean("iterations", 1)),
    "stop epoch": Column(("stop epoch",), _mean("stop_epoch", 1), paper=lambda v: figure(v, 1)),
    "residual": Column(("residual",), lambda s: [_scientific(s["metrics"]["residual"])]),
    "difference": Column(
        ("to pooled",), lambda s: [_scientific(s["metrics"].get("centralised_difference"))]
    ),
    **COSTS,
}

#: The paper stops at sum(r^2) below a tolerance that differs by data set; a preset names it here.
STOP_TOLERANCE = "stop_tolerance"


class HybridFamily(Family[HybridSettings, HybridData]):
    """FedCG."""

    strategies = (strategies.FedCG,)
    settings = HybridSettings
    draws = "runs"
    columns = _COLUMNS
    figures = FIGURES
    reading = (
        "Accuracy, recall, precision: of held-out rows, mean and range over runs. To pooled: "
        "largest difference of a prediction from that of the pooled solution in float64.",
        "Iterations: of conjugate gradients, 0 where the normal equations were solved. Stop epoch: "
        "first iteration at which the sum of squared residuals is below the paper's tolerance.",
    )

    def parameters(self) -> list[Option]:
        """Return the options of a run that are not the strategy's."""
        return [
            *source("breast-cancer"),
            Option("missing", MissingBlocks, "error", "Rows that lack a block of features.", DATA),
            Option("hospitals", int, 2, "Hospitals, which hold rows.", DATA),
            Option("centres", int, 2, "Centres, which hold columns.", DATA),
            Option("own_block", bool, True, "Hospitals hold the first block of columns.", DATA),
            Option("split", Split, "iid", "How rows are dealt to hospitals.", DATA),
            Option("alpha", float, 0.5, "Concentration of the Dirichlet split.", DATA),
            Option("task", Task, "auto", "What the labels are (auto: few whole numbers).", DATA),
            Option("positive", float | None, None, "Class that is told from all others.", DATA),
            Option(
                "allow_single",
                bool,
                False,
                "Allow a single hospital, and rows that a single centre knows.",
                DATA,
            ),
            held_out(0.3),
            Option("resplit", bool, False, "A split of its own for every run.", RUN),
            Option("runs", int, 1, "Runs averaged, each with its own landmarks.", RUN),
            ENGINE,
            seed("split and landmarks"),
            DROP,
            TIMEOUT,
            *RESULT,
        ]

    def prepare(self, settings: HybridSettings) -> HybridData:
        """Load the table and deal it."""
        return HybridData(settings)

    def measure(
        self, strategy: PhaseStrategy, prepared: HybridData, config: Config
    ) -> dict[str, Any]:
        """Return the difference from the pooled solution, and errors in the labels' units."""
        assert isinstance(strategy, FedCG)
        found: dict[str, Any] = {}
        difference = centralised_difference(strategy, prepared)
        if difference is not None:
            found["centralised_difference"] = difference
        if "test_rmse" in strategy.metrics_:
            half = prepared.split(strategy.seed or 0).scaling["y_half_range"]
            found["test_rmse"] = strategy.metrics_["test_rmse"] * half
        return found

    def summarise(self, entry: Entry) -> dict[str, Any]:
        """Average the runs; the history is that of the first."""
        first = entry.results[0]
        return average(
            entry.results,
            metrics={},
            history=first["history"],
            survivors=first["history"][-1]["survivors"] if first["history"] else 0,
        )

    def per_draw(self, entry: Entry) -> dict[str, Any]:
        """Return the metrics and squared residuals of the single runs."""
        names = {name for result in entry.results for name in result["metrics"]}
        return {
            "draws": {n: [r["metrics"].get(n) for r in entry.results] for n in sorted(names)},
            "squared_residuals": [
                [row["squared_residual"] for row in r["history"]] for r in entry.results
            ],
        }

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return the numbers of parties and rows."""
        rows = f"{sum(facts['rows'])} training and {sum(facts['held_out_rows'])} held-out rows"
        return f"{facts['hospitals']} hospitals, {facts['centres']} centres, {rows}"

    def rows(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return how good the model is, what it cost and who saw what."""
        metrics, rows = result["metrics"], []
        for name, text in (
            ("test_accuracy", "accuracy on held-out rows"),
            ("test_recall", "  recall"),
            ("test_precision", "  precision"),
            ("test_rmse", "RMSE on held-out rows"),
        ):
            if metrics.get(name) is not None:
                rows.append([text, figure(metrics[name], 4)])
        if metrics.get("centralised_difference") is not None:
            rows.append(
                ["largest difference to pooled", _scientific(metrics["centralised_difference"])]
            )
        rows.append(["iterations", figure(metrics["iterations"], 1).removesuffix(".0")])
        rows.append(["relative residual", _scientific(metrics["residual"])])
        rows += cost_rows(result)
        rows.append(["the server saw", result["privacy"]["server_sees"][0]])
        return rows + failure_rows(result)

    def plots(self, folder: Path, label: str, summary: Mapping[str, Any]) -> dict[str, Path]:
        """Draw the residual over the iterations, where there were any."""
        history = summary["history"]
        if len(history) < 2:
            return {}
        return {
            "residual_plot": plots.plot_sweep(
                {label: [(row["round"], row["residual"], 0.0) for row in history]},
                folder / "residual.png",
                title="Conjugate gradients",
                xlabel="iteration",
                ylabel="residual relative to that of zero",
            )
        }

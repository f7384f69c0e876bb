"""FedCG: rows and features both split, solved once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedkern_flwr.errors import OptionError
from fedkern_flwr.judging.figures import in_units
from fedkern_flwr.options import check_memory
from fedkern_flwr.tables.table import how_many

from ... import strategies
from ...strategies import FedCG, Method
from ..run import plots
from ..run.entries import Entry, mean
from ..run.format import figure
from ..run.options import PARTIES, Option
from .base import Config, Family
from .common import (
    COSTS,
    DIFFERENCE,
    ITERATIONS,
    JUDGED,
    Column,
    Shown,
    accuracy,
    metric,
    rmse,
    scientific,
    to_pooled,
)
from .hybrid_data import HybridData, HybridSettings
from .hybrid_fitted import whole_model
from .hybrid_oracle import centralised_difference
from .new_rows import Parts

#: Attacks of the paper's Figure 8 and the two closed forms: name -> how tables call them.
ATTACKS = {
    "alternating-descent": "alternating descent",
    "rank-alternation": "rank alternation",
    "soft-impute": "soft-impute",
    "svd": "closed form",
    "trilateration": "trilateration",
}


def _stop_epoch(tolerance: str) -> Column:
    """First iteration at which sum(r^2) is below the paper's tolerance, mean over runs."""

    def epochs(summary: Mapping[str, Any]) -> list[float | None]:
        found: list[float | None] = []
        for run in summary.get("squared_residuals", []):
            below = np.flatnonzero(np.asarray(run) < float(tolerance))
            found.append(None if len(run) < 2 or not len(below) else float(below[0]) + 1.0)
        return found

    def cells(summary: Mapping[str, Any]) -> list[str]:
        return [figure(mean(epochs(summary)), 1)]

    return Column(
        (f"epochs to {tolerance}",),
        cells,
        paper=lambda value: figure(value, 1),
        values=epochs,
        reading="Epochs to: first iteration at which the sum of squared residuals is below the "
        "paper's tolerance.",
    )


def _reconstruction(summary: Mapping[str, Any]) -> list[str]:
    found = summary["metrics"]
    return [scientific(found.get(f"reconstruction_{name}")) for name in ATTACKS]


def _server_saw(config: Mapping[str, Any]) -> str:
    """Return what the server saw in a few words; ``result.json`` has all of it."""
    if config["hospitals"] == 1:
        return "the sums of a single hospital"
    return f"sums over {config['hospitals']} hospitals"


def _missing_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of a run's table that count rows with missing blocks, if any."""
    wards = result.get("matched", {}).get("hospitals", {}).values()
    dropped = sum(ward["dropped_rows"] for ward in wards)
    lacking = sum(sum(ward["rows_without_block"].values()) for ward in wards)
    found = (("rows left out for a missing block", dropped), ("missing blocks of rows", lacking))
    return [[text, str(count)] for text, count in found if count]


_COLUMNS = {
    "accuracy": accuracy(3),
    "rmse": rmse(3),
    "recall": metric(
        "recall",
        "test_recall",
        3,
        paper=2,
        higher_is_better=True,
        reading="Recall, precision: of held-out rows, mean over the draws.",
    ),
    "precision": metric("precision", "test_precision", 3, paper=2, higher_is_better=True),
    "iterations": metric(
        "iterations",
        "iterations",
        1,
        reading="Iterations: of conjugate gradients, 0 where the normal equations were solved.",
    ),
    **{f"stop epoch {t}": _stop_epoch(t) for t in ("1e-3", "1e-4", "1e-6")},
    "residual": metric("residual", "residual"),
    "difference": to_pooled(
        "To pooled: largest difference of a prediction from that of the pooled solution in "
        "float64, where the labels of a regression are scaled to [-1, 1]."
    ),
    "reconstruction": Column(tuple(ATTACKS.values()), _reconstruction),
    **COSTS,
}


class _Residual(Shown):
    """The row of the residual that iterations left."""

    def rows(self, metrics: Mapping[str, Any]) -> list[list[str]]:
        """Return the row, if there were iterations."""
        return super().rows(metrics) if metrics.get("iterations") else []


class HybridFamily(Family[HybridSettings, HybridData]):
    """FedCG."""

    strategies = (strategies.FedCG,)
    settings = HybridSettings
    left_out = "they lack a block of columns"
    draws = "runs"
    checked = ("centralised_difference",)
    app, deployable = "fed_cg", ("fed-cg",)
    dealt_by_nodes = ("clients", "centres")
    columns = _COLUMNS
    usual = "hospitals centres landmarks gamma regularization tune"
    shown = (
        *JUDGED,
        DIFFERENCE,
        replace(ITERATIONS, zero=False),  # a system that is solved directly has none
        _Residual("residual", "relative residual", scientific),
    )
    data = "breast-cancer"
    own_options = (
        Option(
            "clients",
            int | None,
            None,
            "Hospitals and centres together, instead of --hospitals.",
            PARTIES,
        ),
    )
    repetitions, seeded = "Runs averaged, each with its own landmarks.", "split and landmarks"
    always_secure = "columns of a kernel show the rows of a hospital"

    def deal_nodes(self, values: Mapping[str, Any], nodes: int) -> dict[str, Any]:
        """Make two nodes hospitals unless told otherwise, the others centres."""
        hospitals = 2 if values.get("hospitals") is None else int(values["hospitals"])
        if not 1 <= hospitals <= nodes:
            raise OptionError(
                f"{hospitals} hospitals on {nodes} nodes",
                remedy="use more nodes or less hospitals",
                code="FK-PARTIES-FEW",
            )
        return {"hospitals": hospitals, "centres": nodes - hospitals, "clients": None}

    def config(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Make the configuration of a run; refuse what contradicts itself.

        Raises
        ------
        OptionError
        """
        hospitals, centres, clients = (values[n] for n in ("hospitals", "centres", "clients"))
        if hospitals is None:
            hospitals = 2 if clients is None else clients - centres
        if clients not in (None, hospitals + centres):
            raise OptionError(
                f"{how_many(hospitals, 'hospital')} and {how_many(centres, 'centre')} "
                f"are not {clients} clients",
                remedy="leave out --clients",
                code="FK-CLIENTS-DIFFER",
            )
        return super().config(name, {**values, "hospitals": hospitals})

    def check(self, config: Config) -> None:
        """Refuse options that cannot work before any data is read."""
        super().check(config)
        if config["data"]["scaling"] == "standard":
            raise OptionError(
                "scaling standard has no public range, within which landmarks are drawn",
                remedy="use --scaling rank or range",
                code="FK-SCALING-RANGE",
            )

    def check_data(self, config: Config, prepared: HybridData) -> None:
        """Refuse options that cannot work with the data.

        Raises
        ------
        OptionError
        """
        super().check_data(config, prepared)
        landmarks = config["options"].get("landmarks", "auto")
        if landmarks != "auto":  # equations, at least those of the pooled solution, and copies
            rows, m = len(prepared.split(config["seed"]).x), int(landmarks)
            check_memory("landmarks", m, 3.0 * m * m + rows * m)

    def prepare(self, settings: HybridSettings) -> HybridData:
        """Load the table and deal it."""
        return HybridData(settings)

    def measure(self, strategy: Method, prepared: HybridData, config: Config) -> dict[str, Any]:
        """Return the difference from the pooled solution, and errors in the labels' units."""
        assert isinstance(strategy, FedCG)
        found: dict[str, Any] = {}
        check = self.checks_pooled(prepared, config)
        difference = centralised_difference(strategy, prepared) if check else None
        if difference is not None:
            found["centralised_difference"] = difference
        half = prepared.split(strategy.seed or 0).scaling["y_half_range"]
        return found | in_units(strategy.metrics_, half)

    def whole_model(
        self,
        strategy: Method,
        prepared: HybridData,
        config: Config,
        state_dir: Path,
        metrics: Config,
    ) -> Parts:
        """Return what predicts rows in one place."""
        assert isinstance(strategy, FedCG)
        return whole_model(strategy, prepared, state_dir)

    def outcome(self, strategy: Method) -> dict[str, Any]:
        """Return which rows were matched, and what was chosen."""
        assert isinstance(strategy, FedCG)
        tuned = {"tuned": strategy.tuned_} if strategy.tuned_ else {}
        return {"matched": strategy.plan_.report(), **tuned}

    def per_draw(self, entry: Entry) -> dict[str, Any]:
        """Return the metrics and squared residuals of the single runs."""
        return {
            **super().per_draw(entry),
            "squared_residuals": [
                [row["squared_residual"] for row in r["history"] if "squared_residual" in row]
                for r in entry.results
            ],
        }

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return the numbers of parties and rows."""
        rows = f"{sum(facts['rows'])} training and {sum(facts['held_out_rows'])} held-out rows"
        hospitals, centres = how_many(facts["hospitals"], "hospital"), facts["centres"]
        return f"{hospitals}, {how_many(centres, 'centre')}, {rows}"

    def seen(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return what the server saw, and how many rows lack a block."""
        return [["the server saw", _server_saw(result["config"])], *_missing_rows(result)]

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
                svg=False,
            )
        }

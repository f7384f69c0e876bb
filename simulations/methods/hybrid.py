"""FedCG: rows and features both split, solved once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedkern_flwr.errors import OptionError
from fedkern_flwr.hybrid.parties import MissingBlocks

from ... import strategies
from ...strategies import FedCG, PhaseStrategy
from ..run import plots
from ..run.entries import Entry, average, mean
from ..run.format import figure
from ..run.options import DATA, RUN, Option
from ..run.splits import Split
from .base import Config, Family
from .common import (
    COSTS,
    DROP,
    ENGINE,
    RAY_ADDRESS,
    RESULT,
    TIMEOUT,
    TRAIN_ROWS,
    Column,
    accuracy,
    cost_rows,
    drawn,
    failure_rows,
    held_out,
    rmse,
    scientific,
    seed,
    source,
    to_pooled,
)
from .hybrid_data import HybridData, HybridSettings, Task
from .hybrid_oracle import ATTACKS, centralised_difference, check_reconstruction, reconstruction


def _mean(name: str, digits: int) -> Any:
    return lambda summary: [figure(summary["metrics"].get(name), digits)]


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


def _two_digits(value: float | None) -> str:
    return figure(value, 2)


def _server_saw(config: Mapping[str, Any]) -> str:
    """Return what the server saw in a few words; ``result.json`` has all of it."""
    short = {"naive": "every feature and label", "chain": "products of each hospital, noisy labels"}
    sums = f"sums over {config['hospitals']} hospitals"
    if config["hospitals"] == 1:
        sums = "the sums of a single hospital"
    return short.get(config["options"].get("protocol", "secure"), sums)


def _missing_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of a run's table that count rows with missing blocks, if any."""
    wards = result.get("matched", {}).get("hospitals", {}).values()
    dropped = sum(ward["dropped_rows"] for ward in wards)
    lacking = sum(sum(ward["rows_without_block"].values()) for ward in wards)
    found = (("rows left out for a missing block", dropped), ("missing blocks of rows", lacking))
    return [[text, str(count)] for text, count in found if count]


_COLUMNS = {
    "accuracy": accuracy(3, paper=_two_digits),
    "rmse": rmse(3),
    "recall": Column(
        ("recall",),
        _mean("test_recall", 3),
        paper=_two_digits,
        values=drawn("test_recall"),
        higher_is_better=True,
        reading="Recall, precision: of held-out rows, mean over the draws.",
    ),
    "precision": Column(
        ("precision",),
        _mean("test_precision", 3),
        paper=_two_digits,
        values=drawn("test_precision"),
        higher_is_better=True,
    ),
    "iterations": Column(
        ("iterations",),
        _mean("iterations", 1),
        reading="Iterations: of conjugate gradients, 0 where the normal equations were solved.",
    ),
    **{f"stop epoch {t}": _stop_epoch(t) for t in ("1e-3", "1e-4", "1e-6")},
    "residual": Column(("residual",), lambda s: [scientific(s["metrics"]["residual"])]),
    "difference": to_pooled(
        "To pooled: largest difference of a prediction from that of the pooled solution in "
        "float64, where the labels of a regression are scaled to [-1, 1]."
    ),
    "reconstruction": Column(tuple(ATTACKS.values()), _reconstruction),
    **COSTS,
}


class HybridFamily(Family[HybridSettings, HybridData]):
    """FedCG."""

    strategies = (strategies.FedCG,)
    settings = HybridSettings
    left_out = "they lack a block of columns"
    draws = "runs"
    app, deployable = "fed_cg", ("fed-cg",)
    dealt_by_nodes = ("clients", "centres")
    columns = _COLUMNS

    def parameters(self) -> list[Option]:
        """Return the options of a run that are not the strategy's."""
        return [
            *source("breast-cancer"),
            Option("missing", MissingBlocks, "error", "Rows that lack a block of features.", DATA),
            Option("hospitals", int | None, None, "Hospitals, which hold rows (default: 2).", DATA),
            Option("centres", int, 2, "Centres, which hold columns.", DATA),
            Option(
                "clients",
                int | None,
                None,
                "Hospitals and centres together, instead of --hospitals.",
                DATA,
            ),
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
            TRAIN_ROWS,
            held_out(0.3),
            Option(
                "reconstruction",
                bool,
                False,
                "Attack the naive protocol's kernel and report the errors (pools the data).",
                RUN,
            ),
            Option("resplit", bool, False, "A split of its own for every run.", RUN),
            Option("runs", int, 1, "Runs averaged, each with its own landmarks.", RUN),
            ENGINE,
            RAY_ADDRESS,
            Option(
                "secure",
                bool | None,
                None,
                "Refuse the run unless --protocol is secure, or unless it is not.",
                RUN,
            ),
            seed("split and landmarks"),
            DROP,
            TIMEOUT,
            *RESULT,
        ]

    def deal_nodes(self, values: Mapping[str, Any], nodes: int) -> dict[str, Any]:
        """Make two nodes hospitals unless told otherwise, the others centres."""
        hospitals = 2 if values.get("hospitals") is None else int(values["hospitals"])
        if not 1 <= hospitals <= nodes:
            raise OptionError(
                f"{hospitals} hospitals on {nodes} nodes", remedy="use more nodes or less hospitals"
            )
        return {"hospitals": hospitals, "centres": nodes - hospitals, "clients": None}

    def config(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Make the configuration of a run; refuse what contradicts itself.

        Raises
        ------
        OptionError
        """
        protocol, secure = values["protocol"], values["secure"]
        if secure is not None and secure != (protocol == "secure"):
            remedy = "leave out --secure, or use --protocol secure"
            if not secure:
                remedy = "leave out --no-secure, or use --protocol naive or chain"
            raise OptionError(f"the protocol is {protocol}", remedy=remedy)
        hospitals, centres, clients = (values[n] for n in ("hospitals", "centres", "clients"))
        if hospitals is None:
            hospitals = 2 if clients is None else clients - centres
        if clients not in (None, hospitals + centres):
            raise OptionError(
                f"{hospitals} hospitals and {centres} centres are not {clients} clients",
                remedy="leave out --clients",
            )
        return super().config(name, {**values, "hospitals": hospitals})

    def check(self, config: Config) -> None:
        """Refuse options that cannot work before any data is read."""
        super().check(config)
        if config["data"]["reconstruction"]:
            check_reconstruction(FedCG(**config["options"]))

    def check_data(self, config: Config, prepared: HybridData) -> None:
        """Refuse more landmarks than there are training rows, where they are such rows.

        Raises
        ------
        OptionError
        """
        super().check_data(config, prepared)
        prepared.given(FedCG(**config["options"], seed=config["seed"]))

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
        if prepared.settings.reconstruction:
            found |= reconstruction(strategy, prepared)
        if "test_rmse" in strategy.metrics_:
            half = prepared.split(strategy.seed or 0).scaling["y_half_range"]
            found["test_rmse"] = strategy.metrics_["test_rmse"] * half
        return found

    def predict(
        self, folder: Path, config: Config, data: Path, id_column: str | None, out: Path
    ) -> tuple[int, int]:
        """Predict the rows of a file with the model of a run."""
        from .hybrid_predict import predict_rows

        return predict_rows(folder, config, data, id_column, out)

    def outcome(self, strategy: PhaseStrategy) -> dict[str, Any]:
        """Return which rows were matched."""
        assert isinstance(strategy, FedCG)
        return {"matched": strategy.plan_.report()}

    def summarise(self, entry: Entry) -> dict[str, Any]:
        """Average the runs; history and matched rows are those of the first."""
        first = entry.results[0]
        matched = {"matched": first["matched"]} if "matched" in first else {}
        return matched | average(
            entry.results,
            metrics={},
            history=first["history"],
            survivors=first["history"][-1]["survivors"] if first["history"] else 0,
        )

    def per_draw(self, entry: Entry) -> dict[str, Any]:
        """Return the metrics and squared residuals of the single runs."""
        return {
            **super().per_draw(entry),
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
                ["largest difference to pooled", scientific(metrics["centralised_difference"])]
            )
        for name, text in ATTACKS.items():
            if f"reconstruction_{name}" in metrics:
                error = scientific(metrics[f"reconstruction_{name}"])
                rows.append([f"error of distances by {text}", error])
        rows.append(["iterations", figure(metrics["iterations"], 1).removesuffix(".0")])
        rows.append(["relative residual", scientific(metrics["residual"])])
        rows += cost_rows(result)
        rows.append(["the server saw", _server_saw(result["config"])])
        return rows + _missing_rows(result) + failure_rows(result)

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

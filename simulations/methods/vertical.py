"""FDSKL: columns split over parties, labels with some of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkern_flwr.errors import OptionError
from fedkern_flwr.vertical.parties import MissingRows

from ... import strategies
from ...strategies import FDSKL, PhaseStrategy
from ..run import plots
from ..run.entries import Entry, average
from ..run.format import figure
from ..run.options import DATA, RUN, Option
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
from .labelled_data import Task
from .pooled import error_of
from .vertical_data import VerticalData, VerticalSettings
from .vertical_oracle import centralised_difference

DEFAULT_ROUNDS = 200


def _value(name: str) -> Any:
    def cells(summary: Mapping[str, Any]) -> list[str]:
        value = summary["metrics"].get(name)
        return ["-" if value is None else f"{value:.3g}"]

    return cells


_COLUMNS = {
    "accuracy": accuracy(4),
    "rmse": rmse(4),
    "difference": to_pooled(
        "To pooled: largest difference of a prediction from that of the same training on pooled "
        "data with the same directions, where the labels of a regression are scaled to [-1, 1]; it "
        "comes from rounding phases."
    ),
    "gamma": Column(("gamma",), _value("gamma")),
    "regularization": Column(("lambda",), _value("regularization")),
    "minutes": Column(
        ("minutes",),
        lambda s: [figure(s["seconds"] / 60.0, 2)],
        paper=lambda value: figure(value, 0),
        values=drawn("seconds", 60.0),
    ),
    **COSTS,
}


class VerticalFamily(Family[VerticalSettings, VerticalData]):
    """FDSKL."""

    strategies = (strategies.FDSKL,)
    settings = VerticalSettings
    draws = "runs"
    app, deployable = "fdskl", ("fdskl",)
    dealt_by_nodes = ("clients", "parties")
    columns = _COLUMNS
    reading = ("Methods whose name says pooled see all columns at once; they cost no exchange.",)

    def parameters(self) -> list[Option]:
        """Return the options of a run that are not the strategy's."""
        return [
            *source("breast-cancer"),
            Option("missing", MissingRows, "error", "Rows that lack a value.", DATA),
            Option("parties", int | None, None, "Parties, which hold columns (default: 4).", DATA),
            Option("clients", int | None, None, "The same as --parties.", DATA),
            Option("active_parties", int, 1, "Parties that hold labels.", DATA),
            TRAIN_ROWS,
            Option("task", Task, "auto", "What the labels are (auto: few whole numbers).", DATA),
            Option("positive", float | None, None, "Class that is told from all others.", DATA),
            Option(
                "allow_single",
                bool,
                False,
                "Let an active party learn the phases of the only other party with columns.",
                DATA,
            ),
            held_out(0.25),
            Option(
                "rounds",
                int | None,
                None,
                f"Iterations of schedule streaming (default: {DEFAULT_ROUNDS}).",
                RUN,
            ),
            Option("resplit", bool, False, "A split of its own for every run.", RUN),
            Option("runs", int, 1, "Runs averaged, each with its own directions.", RUN),
            ENGINE,
            RAY_ADDRESS,
            Option(
                "secure",
                bool | None,
                None,
                "Refuse the run unless --topology is star, or unless it is not.",
                RUN,
            ),
            seed("split, batches and directions"),
            DROP,
            TIMEOUT,
            *RESULT,
        ]

    def deal_nodes(self, values: Mapping[str, Any], nodes: int) -> dict[str, Any]:
        """Make every node a party."""
        return {"parties": nodes, "clients": None}

    def config(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Make the configuration of a run; refuse what contradicts itself.

        Raises
        ------
        OptionError
        """
        secure, topology = values["secure"], values["topology"]
        if secure is not None and secure != (topology == "star"):
            remedy = "leave out --secure, or use --topology star"
            if not secure:
                remedy = "leave out --no-secure, or use --topology tree"
            raise OptionError(f"the topology is {topology}", remedy=remedy)
        parties, clients = values["parties"], values["clients"]
        if None not in (parties, clients) and parties != clients:
            raise OptionError(
                f"{parties} parties are not {clients} clients", remedy="leave out --clients"
            )
        parties = next((n for n in (parties, clients) if n is not None), 4)
        return super().config(name, {**values, "parties": parties})

    def check(self, config: Config) -> None:
        """Refuse options that cannot work before any data is read."""
        super().check(config)
        rounds, schedule = config["data"]["rounds"], config["options"].get("schedule")
        if rounds is not None and schedule != "streaming":
            raise OptionError("rounds is for schedule streaming", remedy="add --schedule streaming")
        if rounds is not None and rounds < 1:
            raise OptionError(f"rounds is {rounds}", remedy="use at least 1")
        parties, actives = config["data"]["parties"], config["data"]["active_parties"]
        if parties < 2:
            raise OptionError(f"parties is {parties}", remedy="use at least 2")
        if actives > 1 and schedule != "streaming":
            raise OptionError(
                f"schedule one-shot trains at one active party, not at {actives}",
                remedy="add --schedule streaming, or leave out --active-parties",
            )
        if parties == 2 and not config["data"]["allow_single"]:
            raise OptionError(
                "of two parties the active one would learn the phases of the other alone",
                remedy="use more --parties, or allow it with --allow-single",
            )

    def check_data(self, config: Config, prepared: VerticalData) -> None:
        """Refuse options that cannot work with the data.

        Raises
        ------
        OptionError
        """
        super().check_data(config, prepared)
        loss = config["options"].get("loss")
        if loss not in (None, "square") and not prepared.facts()["classes"]:
            raise OptionError(
                f"loss {loss} is for classes, the labels are numbers",
                remedy="use --loss square, or --task classification",
            )

    def prepare(self, settings: VerticalSettings) -> VerticalData:
        """Load the table and deal it."""
        return VerticalData(settings)

    def measure(
        self, strategy: PhaseStrategy, prepared: VerticalData, config: Config
    ) -> dict[str, Any]:
        """Return the difference from the pooled twin, and errors in the labels' units."""
        assert isinstance(strategy, FDSKL)
        found: dict[str, Any] = {}
        difference = centralised_difference(strategy, prepared)
        if difference is not None:
            found["centralised_difference"] = difference
        part = prepared.split(strategy.seed or 0)
        half = part.scaling["y_half_range"]
        if "test_rmse" in strategy.metrics_:
            found["test_rmse"] = strategy.metrics_["test_rmse"] * half
        if not part.classes and "validation_score" in strategy.metrics_:
            unit = half * part.label_bound
            found["validation_score"] = strategy.metrics_["validation_score"] * unit
        return found

    def predict(
        self, folder: Path, config: Config, data: Path, id_column: str | None, out: Path
    ) -> tuple[int, int]:
        """Predict the rows of a file with the model of a run."""
        from .vertical_predict import predict_rows

        return predict_rows(folder, config, data, id_column, out)

    def outcome(self, strategy: PhaseStrategy) -> dict[str, Any]:
        """Return the number of parties, and which rows were matched."""
        assert isinstance(strategy, FDSKL)
        return {"survivors": len(strategy.plan_.parties), "matched": strategy.plan_.report()}

    def summarise(self, entry: Entry) -> dict[str, Any]:
        """Average the runs; history and matched rows are those of the first."""
        first = entry.results[0]
        found = average(
            entry.results, metrics={}, history=first["history"], survivors=first["survivors"]
        )
        return {"matched": first["matched"], **found}

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return the numbers of parties and rows."""
        rows = f"{facts['rows']} training and {facts['held_out_rows']} held-out rows"
        return f"{facts['parties']} parties ({facts['active_parties']} with labels), {rows}"

    def rows(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return how good the model is, what it cost and who saw what."""
        metrics, rows = result["metrics"], []
        config, numbers = result["config"], not result["config"]["classes"]
        for name, text in (
            ("test_accuracy", "accuracy on held-out rows"),
            ("test_recall", "  recall"),
            ("test_precision", "  precision"),
            ("test_rmse", "RMSE on held-out rows"),
            ("validation_score", f"{'RMSE' if numbers else 'accuracy'} in cross-validation"),
        ):
            if metrics.get(name) is not None:
                rows.append([text, figure(metrics[name], 4)])
        for name, text in (("gamma", "gamma"), ("regularization", "lambda")):
            if metrics.get(name) is not None:
                rows.append([text, f"{metrics[name]:.3g}"])
        if metrics.get("centralised_difference") is not None:
            rows.append(
                ["largest difference to pooled", scientific(metrics["centralised_difference"])]
            )
        rows += cost_rows(result)
        phases = "sealed" if config["options"].get("topology") == "tree" else "masked"
        rows.append(["the server saw", f"{phases} phases, which rows belong together"])
        dropped = result.get("matched", {}).get("dropped_rows", 0)
        if dropped:
            rows.append(["rows left out, a party lacks them", str(dropped)])
        return rows + failure_rows(result)

    def plots(self, folder: Path, label: str, summary: Mapping[str, Any]) -> dict[str, Path]:
        """Draw the test error over the iterations, where there were evaluations."""
        history = [row for row in summary["history"] if row["round"]]
        if len(history) < 2:
            return {}
        classes = "test_accuracy" in history[0]
        return {
            "error_plot": plots.plot_sweep(
                {label: [(row["round"], error_of(row), 0.0) for row in history]},
                folder / "error.png",
                title="Held-out rows during streaming",
                xlabel="iteration",
                ylabel="share of wrong classes" if classes else "RMSE (scaled labels)",
            )
        }

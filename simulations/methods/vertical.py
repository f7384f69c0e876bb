"""FDSKL: columns split over parties, labels with some of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedkern_flwr.checkpoint import run_folder
from fedkern_flwr.errors import OptionError
from fedkern_flwr.judging.figures import in_units
from fedkern_flwr.kernels.random_features import draw_directions, draw_offsets
from fedkern_flwr.node.state import KeptState
from fedkern_flwr.options import check_memory

from ... import strategies
from ...strategies import FDSKL, Method
from ..run import plots
from ..run.format import figure
from ..run.options import PARTIES, Option
from .base import Config, Family, check_numbers, check_rounds, same_number
from .common import (
    COSTS,
    DIFFERENCE,
    JUDGED,
    Column,
    Shown,
    accuracy,
    digits,
    drawn,
    metric,
    rmse,
    short,
    to_pooled,
)
from .new_rows import Parts
from .pooled import error_of
from .vertical_data import VerticalData, VerticalSettings, frequency_seed
from .vertical_oracle import centralised_difference

DEFAULT_ROUNDS = 200


_COLUMNS = {
    "accuracy": accuracy(4),
    "rmse": rmse(4),
    "difference": to_pooled(
        "To pooled: largest difference of a prediction from that of the same training on pooled "
        "data with the same directions, where the labels of a regression are scaled to [-1, 1]; it "
        "comes from rounding phases."
    ),
    "gamma": metric("gamma", "gamma", short),
    "regularization": metric("lambda", "regularization", short),
    "minutes": Column(
        ("minutes",),
        lambda s: [figure(s["seconds"] / 60.0, 2)],
        paper=digits(0),
        values=drawn("seconds", 60.0),
    ),
    **COSTS,
}


class VerticalFamily(Family[VerticalSettings, VerticalData]):
    """FDSKL."""

    strategies = (strategies.FDSKL,)
    settings = VerticalSettings
    draws = "runs"
    checked = ("centralised_difference",)
    app, deployable = "fdskl", ("fdskl",)
    dealt_by_nodes = ("clients", "parties")
    columns = _COLUMNS
    usual = "parties schedule features gamma regularization loss"
    reading = ("Methods whose name says pooled see all columns at once; they cost no exchange.",)
    data = "breast-cancer"
    own_options = (Option("clients", int | None, None, "The same as --parties.", PARTIES),)
    repetitions = "Runs averaged, each with its own directions."
    seeded = "split, batches and directions"
    always_secure = "phases without masks show columns"

    def deal_nodes(self, values: Mapping[str, Any], nodes: int) -> dict[str, Any]:
        """Make every node a party."""
        return {"parties": nodes, "clients": None}

    def config(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Make the configuration of a run; refuse what contradicts itself.

        Raises
        ------
        OptionError
        """
        parties = same_number(values, "parties")
        return super().config(name, {**values, "parties": 4 if parties is None else parties})

    def check(self, config: Config) -> None:
        """Refuse options that cannot work before any data is read."""
        super().check(config)
        rounds, schedule = config["data"]["rounds"], config["options"].get("schedule")
        if rounds is not None and schedule != "streaming":
            raise OptionError(
                "rounds is for schedule streaming",
                remedy="add --schedule streaming",
                code="FK-OPTION-CONFLICT",
            )
        check_rounds(config)
        parties, actives = config["data"]["parties"], config["data"]["active_parties"]
        if parties < 2:
            raise OptionError(
                f"parties is {parties}", remedy="use at least 2", code="FK-PARTIES-FEW"
            )
        if actives > 1 and schedule != "streaming":
            raise OptionError(
                f"schedule one-shot trains at one active party, not at {actives}",
                remedy="add --schedule streaming, or leave out --active-parties",
                code="FK-SCHEDULE-ACTIVE",
            )
        if parties == 2 and not config["data"]["allow_single"]:
            more = "name a third file with --party"
            if not config["data"].get("party"):
                more = "use more --parties"
            raise OptionError(
                "of two parties the active one would learn the phases of the other alone",
                remedy=f"{more}, or allow it with --allow-single",
                code="FK-PARTIES-ALONE",
            )

    def check_data(self, config: Config, prepared: VerticalData) -> None:
        """Refuse options that cannot work with the data.

        Raises
        ------
        OptionError
        """
        super().check_data(config, prepared)
        check_numbers(prepared, "loss", config["options"].get("loss"), "square")
        features = config["options"].get("features")
        if features is not None:  # the equations, or rows and their basis; and copies of them
            rows = len(prepared.split(config["seed"]).x)
            check_memory("features", features, 3.0 * features * min(features, 2 * rows))

    def prepare(self, settings: VerticalSettings) -> VerticalData:
        """Load the table and deal it."""
        return VerticalData(settings)

    def measure(self, strategy: Method, prepared: VerticalData, config: Config) -> dict[str, Any]:
        """Return the difference from the pooled twin, and errors in the labels' units."""
        assert isinstance(strategy, FDSKL)
        found: dict[str, Any] = {}
        check = self.checks_pooled(prepared, config)
        difference = centralised_difference(strategy, prepared) if check else None
        if difference is not None:
            found["centralised_difference"] = difference
        part = prepared.split(strategy.seed or 0)
        half = part.scaling["y_half_range"]
        found |= in_units(strategy.metrics_, half)
        if not part.classes and "validation_score" in strategy.metrics_:
            unit = half * part.label_bound
            found["validation_score"] = strategy.metrics_["validation_score"] * unit
        return found

    def whole_model(
        self,
        strategy: Method,
        prepared: VerticalData,
        config: Config,
        state_dir: Path,
        metrics: Config,
    ) -> Parts:
        """Return the coefficients that active parties kept, and the directions of all."""
        assert isinstance(strategy, FDSKL)
        _, meta = strategy.model()
        split, law = prepared.split(strategy.seed or 0), (strategy.kernel, strategy.gamma_)
        weights, directions = [], []
        offsets: list[list[np.ndarray]] = [[] for _ in split.parts]
        for owner in strategy.upto_:
            folder = run_folder(state_dir, meta["session"], owner)
            file = folder / f"partition-{owner}-round-{meta['step']}.state"
            found = KeptState.unpack(file.read_bytes()).arrays
            alpha = found.get("alpha")
            if alpha is None:  # it has led no iteration
                continue
            count = len(alpha)
            intercept = found.get("intercept", alpha[:0])
            weights.append(np.concatenate([alpha * np.sqrt(count), intercept]))
            drawn = np.zeros((count, len(split.columns)))
            for party, columns in enumerate(split.parts):
                seed = frequency_seed(strategy.seed or 0, party)
                drawn[:, columns] = draw_directions(seed, owner, count, len(columns), *law)
                offsets[party].append(draw_offsets(seed, owner, count, *law))
            directions.append(drawn)
        arrays = {
            "weights": np.concatenate(weights),
            "directions": np.concatenate(directions),
            "offsets": np.array([np.concatenate(part) for part in offsets]),
        }
        told = {
            "blocks": [columns.tolist() for columns in split.parts],
            "sizes": [len(part) for part in weights],
            "phase_bits": strategy.chosen_bits,
            "multiple": strategy.multiple_,
            "label_bound": strategy.label_bound_,
        }
        return Parts("directions", arrays, told)

    def outcome(self, strategy: Method) -> dict[str, Any]:
        """Return the number of parties, and which rows were matched."""
        assert isinstance(strategy, FDSKL)
        return {"survivors": len(strategy.plan_.parties), "matched": strategy.plan_.report()}

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return the numbers of parties and rows."""
        rows = f"{facts['rows']} training and {facts['held_out_rows']} held-out rows"
        return f"{facts['parties']} parties ({facts['active_parties']} with labels), {rows}"

    def figures(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return how good the model is."""
        score = "accuracy" if result["config"]["classes"] else "RMSE"
        shown = (
            *JUDGED,
            Shown("validation_score", f"{score} in cross-validation"),
            Shown("gamma", "gamma", short),
            Shown("regularization", "lambda", short),
            DIFFERENCE,
        )
        return [row for one in shown for row in one.rows(result["metrics"])]

    def seen(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return what the server saw, and how many rows a party lacks."""
        rows = [["the server saw", "masked phases, which rows belong together"]]
        dropped = result.get("matched", {}).get("dropped_rows", 0)
        return [*rows, *([["rows left out, a party lacks them", str(dropped)]] if dropped else [])]

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
                svg=False,
            )
        }

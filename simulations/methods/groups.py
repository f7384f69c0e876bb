"""HierarchicalSVM: users in groups, rows or columns split over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedkern_flwr.checkpoint import run_folder, unpack_arrays
from fedkern_flwr.errors import OptionError
from fedkern_flwr.groups.linear_model import model_rows
from fedkern_flwr.judging.figures import in_units

from ... import strategies
from ...strategies import HierarchicalSVM, Method
from ..engines.faults import DelayLaw
from ..run import plots
from ..run.format import figure
from ..run.options import METHOD, PARTIES, Option
from .base import Config, Family, check_numbers, check_rounds, same_number
from .common import (
    COSTS,
    ERRORS,
    ITERATIONS,
    MOST_FREQUENT,
    SCORED,
    Column,
    Shown,
    accuracy,
    digits,
    metric,
    rmse,
    scientific,
    to_pooled,
)
from .groups_data import HierarchicalData
from .groups_oracle import pooled_optimum
from .groups_settings import HierarchicalSettings
from .new_rows import Parts

DEFAULT_ROUNDS = 200
USERS, GROUPS = 20, 2  # by default, where there are groups
_CLOSE = 1e-3  # relative distance from the pooled optimum that counts as reached
_OPTIMUM = "  of the pooled optimum"
_CURVES = {
    "primal": "primal residual",
    "dual": "dual residual",
    "consensus_difference": "change of the model",
    "gap": "duality gap",
}


def _of_converged(name: str) -> Callable[[Mapping[str, Any]], list[float | None]]:
    """Return what reads a figure of the draws that came to their stop; others have none."""

    def values(summary: Mapping[str, Any]) -> list[float | None]:
        draws = summary["draws"]
        ended = draws.get("converged", [True] * len(draws[name]))
        return [v if done else None for v, done in zip(draws[name], ended, strict=True)]

    return values


_COLUMNS = {
    "accuracy": accuracy(4, paper=4),
    "rmse": rmse(4),
    "objective": metric("objective", "objective", 3),
    "gap": to_pooled(
        "To pooled: objective of the model on all rows, relative to the optimum of pooled data, "
        "less 1.",
        "objective_gap",
    ),
    "iterations": metric(
        "iterations",
        "iterations",
        1,
        rank=lambda s: s["metrics"].get("iterations"),
        paper=0,
        values=_of_converged("iterations"),
        reading="Iterations: those of the slowest group.",
    ),
    "close": metric(
        "iterations to 1e-3",
        "iterations_to_pooled",
        1,
        reading="Iterations to 1e-3: until the objective is within 0.1 % of the pooled optimum.",
        pooled=True,
    ),
    "time": Column(
        ("seconds",),
        lambda s: [figure(s["seconds"], 2)],
        paper=digits(0),
        values=_of_converged("seconds"),
    ),
    "kilobytes": metric(
        "KB up per user",
        "kilobytes_per_user",
        1,
        paper=0,
        values=_of_converged("kilobytes_per_user"),
        reading="KB up per user: arrays that all nodes sent, divided by the number of users.",
    ),
    **COSTS,
}


class HierarchicalFamily(Family[HierarchicalSettings, HierarchicalData]):
    """HierarchicalSVM."""

    strategies = (strategies.HierarchicalSVM,)
    settings = HierarchicalSettings
    draws = "runs"
    checked = ("centralised_objective", "objective_gap")
    app, deployable, nodes = "hierarchical_svm", ("hierarchical-svm",), 8
    dealt_by_nodes = ("clients", "users")
    columns = _COLUMNS
    usual = "users groups partition model C class_weight"
    shown = (
        Shown("test_accuracy", "accuracy on held-out rows"),
        MOST_FREQUENT,
        Shown("centralised_test_accuracy", _OPTIMUM),
        *SCORED,
        Shown("test_rmse", "RMSE on held-out rows"),
        Shown("centralised_test_rmse", _OPTIMUM),
        *ERRORS,
        Shown("objective", "objective"),
        Shown("centralised_objective", _OPTIMUM),
        Shown("objective_gap", "  relative difference", scientific),
        ITERATIONS,
        Shown("groups_left_out", "groups left out", 0, zero=False),
    )
    data = "breast-cancer"
    own_options = (
        Option("clients", int | None, None, "The same as --users.", PARTIES),
        Option("step_sizes", str | None, None, "rho of each group, separated by commas.", METHOD),
    )
    repetitions = "Runs averaged, each with its own delays and features."
    seeded = "split, delays and random features"
    always_secure = "a user's model shows its rows"

    def deal_nodes(self, values: Mapping[str, Any], nodes: int) -> dict[str, Any]:
        """Make a node per group an agent, in a vertical split one the label owner, others users."""
        layers = has_agents(values)
        groups = int(values.get("groups") or (GROUPS if layers else 1))
        if values.get("group_sizes"):
            groups = len(str(values["group_sizes"]).split(","))
        agents = groups if layers else 0
        users = nodes - agents - (values.get("partition") == "vertical")
        if users < groups:
            raise OptionError(
                f"{nodes} nodes are too few for {groups} groups",
                remedy="use more nodes: users, an agent per group and, if vertical, a label owner",
                code="FK-PARTIES-FEW",
            )
        return {"users": users, "clients": None}

    def config(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Make the configuration of a run; refuse what contradicts itself.

        Raises
        ------
        OptionError
        """
        sizes = read_numbers("group-sizes", values["group_sizes"], int)
        steps = read_numbers("step-sizes", values["step_sizes"], float)
        given = {"group_sizes": sizes, "step_sizes": steps}
        return super().config(name, {**values, **given, **count_users(values, sizes)})

    def check(self, config: Config) -> None:
        """Refuse options that cannot work before any data is read."""
        super().check(config)
        data, chosen = config["data"], config["options"]
        sizes = HierarchicalSettings.from_values(data).sizes
        hierarchical = chosen.get("architecture") != "centralised"
        groups = len(sizes)
        check_rounds(config)
        if not hierarchical and groups > 1:
            raise OptionError(
                f"architecture {chosen['architecture']} has no groups",
                remedy="leave out --groups and --group-sizes",
                code="FK-GROUPS-OPTION",
            )
        if data["users"] < 2:
            raise OptionError(
                "a single user has nobody to sum with",
                remedy="use more --users",
                code="FK-PARTIES-FEW",
            )
        if hierarchical and min(sizes) == 1 and not chosen.get("allow_single"):
            raise OptionError(
                f"group {sizes.index(1) + 1} has a single user, whose model its agent would see",
                remedy="form larger groups, or allow it with --allow-single",
                code="FK-GROUPS-SINGLE",
            )
        if chosen.get("lost_groups") == "leave-out" and groups < 3:
            raise OptionError(
                f"of {groups} groups none can be left out: the total would be that of one",
                remedy="use at least 3 --groups, or --lost-groups stop",
                code="FK-GROUPS-LEFT",
            )
        steps = chosen.get("step_sizes")
        if steps is not None and len(steps) != groups:
            raise OptionError(
                f"{len(steps)} step sizes are not {groups} groups",
                remedy="give a number for each group",
                code="FK-GROUPS-DIFFER",
            )
        if data["delay"] is not None:
            DelayLaw.parse(data["delay"]).check(groups)
        if data["partition"] == "vertical" and data["split"] != "iid":
            raise OptionError(
                f"split {data['split']} is for users who hold whole rows",
                remedy="leave out --split, or use --partition horizontal",
                code="FK-OPTION-CONFLICT",
            )

    def check_data(self, config: Config, prepared: HierarchicalData) -> None:
        """Refuse options that cannot work with the data.

        Raises
        ------
        OptionError
        """
        super().check_data(config, prepared)
        model = config["options"].get("model", "linear")
        check_numbers(prepared, "model", model, "ridge")

    # -- data and draws

    def prepare(self, settings: HierarchicalSettings) -> HierarchicalData:
        """Load the table and deal it."""
        return HierarchicalData(settings)

    def measure(
        self, strategy: Method, prepared: HierarchicalData, config: Config
    ) -> dict[str, Any]:
        """Return the pooled optimum, what was sent, and errors in the labels' units."""
        assert isinstance(strategy, HierarchicalSVM)
        users = prepared.settings.users
        found: dict[str, Any] = {"kilobytes_per_user": strategy.ledger_.bytes_up / 1e3 / users}
        pooled = prepared.pooled(strategy.seed or 0)
        found |= in_units(strategy.metrics_, pooled.label_unit)
        # the pooled optimum is that of equal weights, in coordinates that follow from the rows
        unlike = strategy.class_weight or strategy.budget is not None
        if unlike or not self.checks_pooled(prepared, config):
            return found
        features = None
        if strategy.frequencies:
            _, meta = strategy.model()
            features = partial(
                model_rows,
                features=int(meta["features"]),
                gamma=float(meta["gamma"]),
                seed=int(meta["feature_seed"]),
            )
        best = pooled_optimum(pooled, strategy.loss, strategy.C_, strategy.scale, features)
        if best is None:
            return found
        found["centralised_objective"] = best.objective
        found |= {f"centralised_{name}": value for name, value in best.metrics.items()}
        objective = strategy.metrics_.get("objective")
        if objective is not None:
            found["objective_gap"] = objective / best.objective - 1.0
            close = [
                row["round"]
                for row in strategy.history_
                if row.get("objective", np.inf) <= (1.0 + _CLOSE) * best.objective
            ]
            if close:
                found["iterations_to_pooled"] = close[0]
        return found

    def whole_model(
        self,
        strategy: Method,
        prepared: HierarchicalData,
        config: Config,
        state_dir: Path,
        metrics: Config,
    ) -> Parts:
        """Return what predicts rows in one place."""
        assert isinstance(strategy, HierarchicalSVM)
        return _whole_model(strategy, prepared, state_dir)

    def outcome(self, strategy: Method) -> dict[str, Any]:
        """Return how many nodes took part to the end, and what was chosen."""
        assert isinstance(strategy, HierarchicalSVM)
        tuned = {"tuned": strategy.tuned_} if strategy.tuned_ else {}
        return {"survivors": len(strategy.nodes.active()), **tuned}

    # -- what the user sees of a run

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return the numbers of users, groups and rows."""
        groups = len(facts["group_sizes"])
        dealt = f"{facts['users']} users in {groups} group{'s' * (groups > 1)}"
        return f"{dealt}, {facts['rows']} training and {facts['held_out_rows']} held-out rows"

    def seen(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return what the server saw, first of all what matters most."""
        return [["the server saw", result["privacy"]["server_sees"][0]]]

    def plots(self, folder: Path, label: str, summary: Mapping[str, Any]) -> dict[str, Path]:
        """Draw the residuals, or the label owner's duality gap, over the iterations."""
        curves = {
            text: [
                (float(row["round"]), max(float(row[name]), 1e-12), 0.0)
                for row in summary["history"]
                if row.get(name) is not None and np.isfinite(row[name])
            ]
            for name, text in _CURVES.items()
        }
        curves = {text: points for text, points in curves.items() if len(points) > 1}
        if not curves:
            return {}
        return {
            "convergence_plot": plots.plot_sweep(
                curves,
                folder / "convergence.png",
                title=f"{label}: convergence",
                xlabel="iteration",
                ylabel="gap, relative to the objective" if "duality gap" in curves else "residuals",
                svg=False,
            )
        }


def read_numbers(name: str, text: str | None, kind: Callable[[str], Any]) -> list[Any] | None:
    """Read numbers separated by commas.

    Raises
    ------
    OptionError
    """
    if text is None:
        return None
    try:
        return [kind(number) for number in text.split(",")]
    except ValueError:
        raise OptionError(
            f"{name} is {text!r}",
            remedy="give numbers separated by commas, such as 10,10",
            code="FK-OPTION-TYPE",
        ) from None


def has_agents(values: Mapping[str, Any]) -> bool:
    """Tell whether a run has groups with agents: by default where groups are named or needed."""
    if values.get("architecture"):
        return bool(values["architecture"] == "hierarchical")
    needed = ("groups", "group_sizes", "staleness", "step_sizes", "sigma")
    named = {"partition": "vertical", "lost_groups": "leave-out"}
    return any(map(values.get, needed)) or any(values.get(k) == v for k, v in named.items())


def count_users(values: Mapping[str, Any], sizes: list[int] | None) -> dict[str, Any]:
    """Return the numbers of users and groups, which may be named in several ways, and the layers.

    Raises
    ------
    OptionError
        They contradict each other.
    """
    users, groups, layers = same_number(values, "users"), values["groups"], has_agents(values)
    if sizes is not None and groups not in (None, len(sizes)):
        raise OptionError(
            f"{len(sizes)} group sizes are not {groups} groups",
            remedy="leave out --groups",
            code="FK-GROUPS-DIFFER",
        )
    if users is None:
        users = USERS if sizes is None else sum(sizes)
    if groups is None:
        alone = values.get("party") and users < 2 * GROUPS  # nobody is alone in a group
        several = GROUPS if layers and not alone else 1
        groups = len(sizes) if sizes is not None else several
    architecture = "hierarchical" if layers else "centralised"
    return {"users": users, "groups": groups, "architecture": architecture}


def _whole_model(strategy: HierarchicalSVM, prepared: HierarchicalData, state_dir: Path) -> Parts:
    """Return weights and biases, which agents and label owner of a vertical split kept."""
    arrays, meta = strategy.model()
    if strategy.partition == "vertical":
        split = prepared.split(strategy.seed or 0)

        def part(partition: int) -> dict[str, np.ndarray]:
            folder = run_folder(state_dir, meta["session"], partition)
            return unpack_arrays((folder / f"partition-{partition}.model").read_bytes())[0]

        bias = part(prepared.num_clients - 1)["bias"]
        weights = np.zeros((len(bias), len(split.columns)))
        for group in strategy.groups_:
            own = part(group.agent)
            mean, deviation = own["coordinates"]
            scaled = own["weights"].reshape(len(mean), -1) / deviation[:, None]
            weights[:, split.blocks[group.number]] = scaled.T
            bias = bias - mean @ scaled
        arrays = {"weights": weights, "bias": bias}
        meta = {**meta, "columns": len(split.columns)}
    names = ("columns", "features", "gamma", "feature_seed")
    return Parts("linear", arrays, {name: meta[name] for name in names})

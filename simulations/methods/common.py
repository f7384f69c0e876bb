"""Options and table columns of all families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.markup import escape

from fedkern_flwr.judging.figures import OUTCOMES
from fedkern_flwr.plain_text import plain_line

from ..engines import Engine
from ..run.entries import Entry
from ..run.format import figure, megabytes
from ..run.options import switch

Summary = Mapping[str, Any]
_LONGEST_NAME, _MOST_CLASSES = 24, 12  # of the confusion matrix
CONFUSION = "confusion matrix of the held-out rows (true class by predicted class)"
_NOISY = "~"  # before figures that are made of counts with noise
_MOST_OFF = 0.1  # an area under the curve that may be farther off says nothing


@dataclass(frozen=True)
class RunOptions:
    """Options of every run.

    Attributes
    ----------
    runs : int
        Runs that are averaged, each with its own seed.
    check_pooled : bool or None
        Also train on pooled rows (default: up to 2,000 training rows).
    engine : {"in-process", "ray"}
        Engine.
    ray_address : str or None
        Ray cluster: host:port, or auto (default: RAY_ADDRESS, else local).
    secure : bool or None
        Secure sums: always; --no-secure is refused.
    seed : int
        Seed of the split and of the method.
    drop : float
        Probability that a client drops out in a round.
    timeout : float
        Seconds to wait for the replies of a round.
    explain_columns : bool
        Show how each column was encoded.
    out : str or None
        Folder of the run.
    force : bool
        Replace what an earlier command left in --out.
    json_target : str or None
        Write the result here; - for stdout.
    resume : str or None
        Continue the run in this folder, with its options.
    quiet : bool
        Show nothing but errors.
    """

    runs: int = 1
    check_pooled: bool | None = None
    engine: Engine = "in-process"
    ray_address: str | None = None
    secure: bool | None = None
    seed: int = 0
    drop: float = 0.0
    timeout: float = 600.0
    explain_columns: bool = switch()
    out: str | None = None
    force: bool = switch()
    json_target: str | None = None
    resume: str | None = None
    quiet: bool = switch()


def per_draw(entry: Entry) -> dict[str, list[Any]]:
    """Return each metric and ``seconds`` of the single runs."""
    names = {name for result in entry.results for name in result["metrics"]}
    found = {n: [r["metrics"].get(n) for r in entry.results] for n in sorted(names)}
    return found | {"seconds": [result["seconds"] for result in entry.results]}


@dataclass(frozen=True)
class Shown:
    """A metric in the table of a run.

    Attributes
    ----------
    metric, text : str
    form : int or str
        Decimals, or a format.
    zero : bool
        Whether zero is shown.
    target : bool
        Whether the name shows the nominal level.
    only : str
        Another metric, without which it is not shown.
    """

    metric: str
    text: str
    form: int | str = 4
    zero: bool = True
    target: bool = False
    only: str = ""

    def rows(self, metrics: Mapping[str, Any], level: float = 0.9) -> list[list[str]]:
        """Return the row, if there is one."""
        value, text = metrics.get(self.metric), self.text
        here = value is not None if self.zero else bool(value)
        text += f" (target {level:.2f})" * self.target
        written = figure(value, self.form)
        if self.metric == "iterations":
            note = ", not converged" if metrics.get("converged") is False else ""
            written = written.removesuffix(".0") + note
        if self.metric.startswith("test_auc") and (metrics.get("test_auc_bin") or 0.0) > _MOST_OFF:
            return []  # bins give no useful AUC
        return [[text, written]] if here and (not self.only or metrics.get(self.only)) else []


_OPTIMUM = "  of the pooled optimum"
ITERATIONS = Shown("iterations", "iterations", 1, zero=False)
#: Metrics in the table of a run, of all methods; each has some of them.
SHOWN = (
    Shown("test_accuracy", "accuracy on held-out rows"),
    Shown("test_most_frequent", "  majority-class baseline"),
    Shown("centralised_test_accuracy", _OPTIMUM),
    Shown("test_recall", "  recall"),
    Shown("test_precision", "  precision"),
    Shown("test_balanced_accuracy", "  balanced accuracy"),
    Shown("test_auc", "  AUC"),
    Shown("test_auc_bin", "    binning error (at most)", zero=False),
    Shown("test_log_loss", "  log loss of probabilities"),
    Shown("test_log_loss_ovr", "  log loss, one class against the rest"),
    Shown("test_brier", "  Brier score"),
    Shown("test_brier_ovr", "  Brier score, one class against the rest"),
    Shown("test_calibration_error_before", "  calibration error before"),
    Shown("test_calibration_error", "  calibration error after"),
    Shown("test_set_coverage", "  conformal coverage", target=True),
    Shown("test_set_size", "    mean set size", 2),
    Shown("test_rmse", "RMSE on held-out rows (unit of the label)"),
    Shown("centralised_test_rmse", _OPTIMUM),
    Shown("test_mae", "  MAE (unit of the label)"),
    Shown("test_r2", "  R2"),
    Shown("test_interval_coverage", "  interval coverage", target=True),
    Shown("test_interval_width", "    mean interval width (unit of the label)"),
    Shown("auc", "AUC"),
    Shown("ndcg@100", "nDCG@100"),
    Shown("recall@100", "recall@100"),
    Shown("ndcg@10", "nDCG@10"),
    Shown("popularity ndcg@10", "  of the most popular items"),
    Shown("item-knn ndcg@10", "  of item-kNN, pooled"),
    Shown("recall@20", "recall@20"),
    Shown("coverage@10", "coverage@10"),
    Shown("evaluated_users", "evaluated users", 0),
    Shown("validation_score", "score in cross-validation"),
    Shown("gamma", "gamma", ".3g"),
    Shown("cost", "C, or lambda", ".3g"),
    Shown("regularization", "lambda", ".3g"),
    Shown("objective", "objective"),
    Shown("centralised_objective", _OPTIMUM),
    Shown("objective_gap", "  relative difference", ".1e"),
    Shown("centralised_difference", "max. difference to pooled model", ".1e"),
    Shown("max_abs_error", "max. error of K", ".1e"),
    Shown("error_bound", "  bound of rounding errors", ".1e", zero=False),
    ITERATIONS,
    Shown("residual", "relative residual", ".1e", only="iterations"),
    Shown("groups_left_out", "groups left out", 0, zero=False),
)


def tables_of(result: Summary) -> dict[str, list[list[str]]]:
    """Return the tables of a run, with the confusion matrix of few classes."""
    tables, found = dict(result.get("tables", {})), result.get("held_out", {})
    names = [plain_line(name, _LONGEST_NAME) for name in found.get("class_names", ())]
    if "confusion" in found and 0 < len(names) <= _MOST_CLASSES:
        mark = noise_mark(result["privacy"])
        counts = [[f"{mark}{n}" for n in row] for row in found["confusion"]]
        rows = [[name, *row] for name, row in zip(names, counts, strict=True)]
        tables[CONFUSION] = [["true", *names], *rows]
    return tables


def positive_rows(result: Summary) -> list[list[str]]:
    """Return the row that names the positive class."""
    positive = result.get("held_out", {}).get("positive")
    return (
        []
        if positive is None
        else [["positive class", escape(plain_line(positive, _LONGEST_NAME))]]
    )


def useless_rows(result: Summary) -> list[list[str]]:
    """Return rows about a model that finds too little."""
    simple, missed = result.get("no_better_than"), result.get("never_found")
    rows = [["predicts no better than", str(simple)]] if simple else []
    if not missed:
        return rows
    return [*rows, ["classes never found", f"{missed} of {len(result['held_out']['confusion'])}"]]


def unconverged_rows(result: Summary) -> list[list[str]]:
    """Return the row of a run that did not converge, unless iterations show it."""
    metrics = result["metrics"]
    said = metrics.get("converged", True) or ITERATIONS.rows(metrics)
    return [] if said else [["converged", "no"]]


def cost_rows(result: Summary) -> list[list[str]]:
    """Return rows with exchanges, MB and seconds."""
    return [
        ["exchanges", f"{result['exchanges']:g}"],
        ["MB from clients", megabytes(result["bytes_up"])],
        ["MB to clients", megabytes(result["bytes_down"])],
        ["seconds", f"{result['seconds']:.1f}"],
    ]


def server_row(result: Summary) -> list[str]:
    """Return the row with what the server saw."""
    privacy = result["privacy"]
    if privacy.get("protocol") != "secure sums":
        return ["the server saw", "every client's reply"]
    sizes = [f"{cohort['threshold']} of {cohort['parties']}" for cohort in privacy["cohorts"]]
    return ["the server saw", f"sums of at least {' or '.join(dict.fromkeys(sizes))} clients"]


def exposed_rows(result: Summary) -> list[list[str]]:
    """Return red rows for sums that reveal rows."""
    privacy = result["privacy"]
    few = [one for one in privacy.get("sums", ()) if one["numbers"] > one["unknowns"]]
    if privacy.get("budget"):  # noise hides them
        few = []
    return [
        [
            "[red]rows can be computed[/]",
            f"[red]from {escape(one['name'])}: {one['numbers']:,} numbers of "
            f"{one['unknowns']:,} unknowns[/]",
        ]
        for one in few
    ]


def failure_rows(result: Summary) -> list[list[str]]:
    """Return the row that counts requests without a reply."""
    lost = sum(sum(reasons.values()) for reasons in result["failures"].values())
    return [["unanswered requests", str(lost)]] if lost else []


def noise_mark(privacy: Mapping[str, Any]) -> str:
    """Return the mark of figures from counts with noise."""
    releases = (privacy.get("budget") or {}).get("releases", ())
    return _NOISY if any(one["release"] == OUTCOMES for one in releases) else ""


def budget_rows(privacy: Mapping[str, Any]) -> list[list[str]]:
    """Return rows with the privacy budget and its noise."""
    budget = privacy.get("budget")
    if budget is None:
        return []
    about = f"epsilon {budget['epsilon']:g} at delta {budget['delta']:g} of each {budget['unit']}"
    noise = [
        [
            f"noise of {one['release']}",
            f"{one['deviation']:.3g} on each number"
            + f" (figures with {_NOISY})" * (one["release"] == OUTCOMES),
        ]
        for one in budget["releases"]
    ]
    return [["privacy", about], *noise]

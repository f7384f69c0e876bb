"""Options and table columns of all families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.markup import escape

from fedkern_flwr.judging.figures import OUTCOMES
from fedkern_flwr.plain_text import plain_line

from ..engines import Engine
from ..run.entries import Entry
from ..run.format import count, figure, megabytes, size
from ..run.options import switch

Summary = Mapping[str, Any]
_LONGEST_NAME, _MOST_CLASSES = 24, 12  # of the confusion matrix
CONFUSION = "confusion matrix of the held-out rows (true class by predicted class)"
_NOISY = "~"  # before figures that are made of counts with noise
_MOST_OFF = 0.1  # an area under the curve that may be farther off says nothing
Writer = Callable[[float | None], str]


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


@dataclass(frozen=True)
class Column:
    """One or several columns in the table of a comparison.

    Attributes
    ----------
    headings : tuple of str
    cells : callable
        Returns the cells from the summary of an entry.
    rank : callable, optional
        Returns a number; the smallest is the best entry.
    paper : callable
        Writes a figure of the paper.
    values : callable, optional
        Returns the figure of each run.
    higher_is_better : bool (default: False)
    reading : str
        Explanation of the column.
    wide : bool (default: False)
        Only in reports.
    pooled : bool (default: False)
        Needs the comparison with a pooled model.
    """

    headings: tuple[str, ...]
    cells: Callable[[Summary], list[str]]
    rank: Callable[[Summary], float | None] | None = None
    paper: Writer = figure
    values: Callable[[Summary], list[float | None]] | None = None
    higher_is_better: bool = False
    reading: str = ""
    wide: bool = False
    pooled: bool = False


def _sent(summary: Summary) -> list[str]:
    if not summary["exchanges"]:
        return ["-", "-"]
    return [megabytes(summary["bytes_up"]), megabytes(summary["bytes_down"])]


def drawn(name: str, unit: float = 1.0) -> Callable[[Summary], list[float | None]]:
    """Return a reader of a metric of each run, divided by ``unit``."""

    def values(summary: Summary) -> list[float | None]:
        found = summary["draws"].get(name, [])
        return [None if value is None else value / unit for value in found]

    return values


def _seen_plainly(summary: Summary) -> list[str]:
    """Write the bytes of single clients that the server saw in plain."""
    if not summary["exchanges"]:
        return ["all data" if summary["privacy"]["server_sees"] else "-"]
    seen = summary["privacy"].get("seen")
    if seen is None:
        return ["-"]
    return [size(sum(row["bytes"] for row in seen["server"] if row["kind"] == "plain"))]


#: Columns of what a method costs; reference methods exchange nothing.
COSTS: dict[str, Column] = {
    "plain": Column(
        ("plain",),
        _seen_plainly,
        reading="Plain: bytes that a single party computed from its rows and the server could "
        "read. What sums and released matrices say of the rows is not counted here.",
    ),
    "seconds": Column(
        ("seconds",),
        lambda s: [figure(s["seconds"], 1)],
        values=drawn("seconds"),
        reading="Seconds depend on the machine.",
    ),
    "megabytes": Column(
        ("MB up", "MB down"),
        _sent,
        reading="MB: arrays sent by all clients (up) and to them (down).",
    ),
    "exchanges": Column(
        ("exchanges",),
        lambda s: [count(s["exchanges"]) if s["exchanges"] else "-"],
        reading="Exchanges: messages to every client with their replies, the opening one included.",
    ),
}


def ranged(
    heading: str, name: str, places: int, reading: str, *, paper: int = 2, higher: bool = False
) -> Column:
    """Make columns with mean and range of a metric.

    Parameters
    ----------
    heading, name : str
        Heading, and name of the metric.
    places, paper : int
        Digits of the mean, and in the paper.
    reading : str
        Explanation of the column.
    higher : bool
        Whether higher is better.
    """

    def cells(summary: Summary) -> list[str]:
        values = summary.get("draws", {}).get(name) or [summary["metrics"].get(name)]
        if any(value is None for value in values):
            return ["-", "-"]
        mean, less = sum(values) / len(values), places - 1
        return [f"{mean:.{places}f}", f"{min(values):.{less}f}-{max(values):.{less}f}"]

    def rank(summary: Summary) -> float | None:
        value = summary["metrics"].get(name)
        return -(value or 0.0) if higher else value

    return Column(
        (heading, "range"),
        cells,
        rank=rank,
        paper=digits(paper),
        values=drawn(name),
        higher_is_better=higher,
        reading=reading,
    )


def accuracy(places: int, paper: int = 2) -> Column:
    """Return the column of accuracies."""
    text = "Accuracy: of held-out rows, mean and range over the runs."
    return ranged("accuracy", "test_accuracy", places, text, paper=paper, higher=True)


def rmse(places: int) -> Column:
    """Return the column of root mean squared errors."""
    text = "RMSE: of held-out rows, in the unit of the label; mean and range over the runs."
    return ranged("RMSE", "test_rmse", places, text)


def _log_loss(summary: Summary) -> list[str]:
    found = summary["metrics"]
    return [figure(found.get("test_log_loss", found.get("test_log_loss_ovr")), 3)]


def scientific(value: float | None) -> str:
    """Write a small number, or - for none."""
    return "-" if value is None else f"{value:.1e}"


def digits(count: int) -> Writer:
    """Return a writer with fixed digits."""
    return partial(figure, digits=count)


def metric(
    heading: str,
    name: str,
    write: int | Writer = scientific,
    *,
    paper: int | None = None,
    **more: Any,
) -> Column:
    """Make a column with the mean of a metric.

    Parameters
    ----------
    heading, name : str
        Heading, and name of the metric.
    write : int or callable
        Digits, or a writer.
    paper : int, optional
        Digits in the paper, for the comparison of runs.
    **more
        See :class:`Column`.
    """
    written: Writer = digits(write) if isinstance(write, int) else write
    if paper is not None:
        more = {"paper": digits(paper), "values": drawn(name), **more}
    return Column((heading,), lambda s: [written(s["metrics"].get(name))], **more)


def short(value: float | None) -> str:
    """Write a chosen option, or - for none."""
    return "-" if value is None else f"{value:.3g}"


def to_pooled(reading: str, name: str = "centralised_difference") -> Column:
    """Make a column with the difference from a pooled model."""
    return metric("to pooled", name, reading=reading, pooled=True)


#: Further metrics of classes and probabilities.
SCORED_COLUMNS: dict[str, Column] = {
    "test_balanced_accuracy": metric(
        "balanced", "test_balanced_accuracy", 3, reading="Balanced: mean recall of the classes."
    ),
    "test_auc": metric(
        "AUC",
        "test_auc",
        3,
        reading="AUC, log loss: of scores and of probabilities fitted to half of the held-out "
        "rows; of several classes means of one against the rest.",
    ),
    "test_log_loss": Column(("log loss",), _log_loss),
}


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
    write : int or callable
        Digits, or a writer.
    zero : bool
        Whether zero is shown.
    target : bool
        Whether the name shows the nominal level.
    only : callable
        Returns, from all metrics, whether it is shown.
    """

    metric: str
    text: str
    write: int | Writer = 4
    zero: bool = True
    target: bool = False
    only: Callable[[Mapping[str, Any]], object] = lambda metrics: True

    def rows(self, metrics: Mapping[str, Any], level: float = 0.9) -> list[list[str]]:
        """Return the row, if there is one."""
        value, text = metrics.get(self.metric), self.text
        write = digits(self.write) if isinstance(self.write, int) else self.write
        here = value is not None if self.zero else bool(value)
        text += f" (target {level:.2f})" * self.target
        return [[text, write(value)]] if here and self.only(metrics) else []


def _near(metrics: Mapping[str, Any]) -> bool:
    """Return whether bins give a useful AUC."""
    return (metrics.get("test_auc_bin") or 0.0) <= _MOST_OFF


#: The accuracy without a model.
MOST_FREQUENT = Shown("test_most_frequent", "  majority-class baseline")
#: Further metrics of classes, probabilities and sets.
SCORED = (
    Shown("test_balanced_accuracy", "  balanced accuracy"),
    Shown("test_auc", "  AUC", only=_near),
    Shown("test_auc_bin", "    binning error (at most)", 4, zero=False, only=_near),
    Shown("test_log_loss", "  log loss of probabilities"),
    Shown("test_log_loss_ovr", "  log loss, one class against the rest"),
    Shown("test_brier", "  Brier score"),
    Shown("test_brier_ovr", "  Brier score, one class against the rest"),
    Shown("test_calibration_error_before", "  calibration error before"),
    Shown("test_calibration_error", "  calibration error after"),
    Shown("test_set_coverage", "  conformal coverage", target=True),
    Shown("test_set_size", "    mean set size", 2),
)
#: Further metrics of predicted numbers and intervals.
ERRORS = (
    Shown("test_mae", "  MAE (unit of the label)"),
    Shown("test_r2", "  R2"),
    Shown("test_interval_coverage", "  interval coverage", target=True),
    Shown("test_interval_width", "    mean interval width (unit of the label)"),
)
#: How good a model is.
JUDGED = (
    Shown("test_accuracy", "accuracy on held-out rows"),
    MOST_FREQUENT,
    Shown("test_recall", "  recall"),
    Shown("test_precision", "  precision"),
    *SCORED,
    Shown("test_rmse", "RMSE on held-out rows (unit of the label)"),
    *ERRORS,
)
DIFFERENCE = Shown("centralised_difference", "max. difference to pooled model", scientific)


class _Iterations(Shown):
    """Iterations, with a note if they did not converge."""

    def rows(self, metrics: Mapping[str, Any], level: float = 0.9) -> list[list[str]]:
        """Return the row, if there is one."""
        more = ", not converged" if metrics.get("converged") is False else ""
        return [[name, value + more] for name, value in super().rows(metrics, level)]


ITERATIONS = _Iterations("iterations", "iterations", lambda v: figure(v, 1).removesuffix(".0"))


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

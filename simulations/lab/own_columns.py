"""Columns of a comparison on a user's table, the same for all families."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..methods.common import Column, Summary
from ..run.format import figure


def _spread(heading: str, name: str, form: str, **more: Any) -> Column:
    """Return the column of a metric's mean and standard deviation."""

    def cells(summary: Summary) -> list[str]:
        values = summary["draws"].get(name, [None])
        if None in values:
            return ["-", "-"]
        deviation = format(np.std(values, ddof=1), form) if len(values) > 1 else "-"
        return [format(np.mean(values), form), deviation]

    return Column((heading, "± std"), cells, **more)


def _beside(summary: Summary) -> list[str]:
    value, form = summary.get("beside_pooled"), "+.3g"
    if "test_accuracy" in summary["metrics"]:
        form = "+.4f"
    return ["-" if value is None else format(value, form)]


#: Seconds of an exchange with three warm nodes on one machine, measured by benchmarks/ping.py.
_EXCHANGE_SECONDS = 1.07


def _deployed(summary: Summary) -> list[str]:
    if not summary["exchanges"]:
        return ["-"]
    cpu = summary.get("cpu_seconds") or 0.0
    return [f"{_EXCHANGE_SECONDS * summary['exchanges'] + cpu:.0f}"]


def _cpu(summary: Summary) -> list[str]:
    found = summary.get("cpu_seconds")
    return ["-" if found is None else figure(found, 1)]


def _epsilon(summary: Summary) -> list[str]:
    if not summary["exchanges"]:
        return ["-"]
    return [str(summary["privacy"].get("epsilon", "none"))]


#: By name; families have more.
OWN_COLUMNS: dict[str, Column] = {
    "accuracies": _spread(
        "accuracy",
        "test_accuracy",
        ".4f",
        rank=lambda s: -(s["metrics"].get("test_accuracy") or 0.0),
        higher_is_better=True,
        reading="Accuracy: of held-out rows, mean and standard deviation over the runs.",
    ),
    "rmses": _spread(
        "RMSE",
        "test_rmse",
        ".4g",
        rank=lambda s: s["metrics"].get("test_rmse"),
        reading="RMSE: of held-out rows, in the unit of the label; mean and standard deviation "
        "over the runs.",
    ),
    "beside": Column(
        ("minus pooled",),
        _beside,
        reading="Minus pooled: the figure minus that of the best tuned model of the pooled data, "
        "mean over the runs.",
    ),
    "traffic": Column(
        ("kB",),
        lambda s: [f"{(s['bytes_up'] + s['bytes_down']) / 1e3:.0f}" if s["exchanges"] else "-"],
        reading="kB: arrays sent by all parties and to them.",
    ),
    "cpu": Column(
        ("CPU s",),
        _cpu,
        reading="CPU s: seconds of all parties and the server together, in one process, "
        "cross-validation included.",
    ),
    "deployed": Column(
        ("s deployed",),
        _deployed,
        reading=f"S deployed: estimated, {_EXCHANGE_SECONDS} s an exchange (three nodes "
        "on one machine) and the CPU seconds.",
    ),
    "epsilon": Column(
        ("epsilon",),
        _epsilon,
        reading="Epsilon: of differential privacy; none: what is released has no noise.",
        wide=True,
    ),
    "sees": Column(
        ("the server sees",),
        lambda s: [next(iter(s["privacy"].get("server_sees", ())), "-")],
        wide=True,
    ),
}

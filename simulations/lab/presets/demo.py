"""The demo: every method once, on data that comes with the package."""

from __future__ import annotations

from fedkern_flwr.errors import TableError

from .base import Preset
from .gram import instances, recommendations
from .groups import user_groups
from .hybrid import hospitals
from .online import weather
from .vertical import columns


def demo_quick(datasets: tuple[str, ...]) -> Preset:
    """Return a demo of a minute, in one process, the hybrid task first."""
    _refuse(datasets)
    return Preset(
        "demo-quick",
        "Kernel learning without pooling the data, in short",
        "A task of each kind, on data that comes with the package: hybrid, by columns, by rows, "
        "ratings.",
        (hospitals(), columns(), user_groups(), recommendations()),
        runs=1,
        engine="in-process",
    )


def _refuse(datasets: tuple[str, ...]) -> None:
    """Refuse data sets.

    Raises
    ------
    TableError
    """
    if datasets:
        raise TableError(
            "the demo has its own data", remedy="leave out --datasets", code="FK-COMPARE-OPTION"
        )


def demo(datasets: tuple[str, ...]) -> Preset:
    """Return the demo, a section per family."""
    _refuse(datasets)
    return Preset(
        "demo",
        "Kernel learning without pooling the data",
        "Every method once, on data that comes with the package.",
        (weather(), hospitals(), columns(), instances(), recommendations(), user_groups()),
        runs=1,
        engine="ray",
    )

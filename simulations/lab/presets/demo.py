"""The demo: every method once, on data that comes with the package."""

from __future__ import annotations

from fedkern_flwr.errors import TableError

from .base import Preset
from .gram import instances, recommendations
from .groups import user_groups
from .hybrid import hospitals
from .online import weather
from .vertical import columns


def demo(datasets: tuple[str, ...]) -> Preset:
    """Return the demo, a section per family."""
    if datasets:
        raise TableError(
            "the demo has its own data", remedy="leave out --datasets", code="FK-COMPARE-OPTION"
        )
    return Preset(
        "demo",
        "Kernel learning without pooling the data",
        "Every method once, on data that comes with the package.",
        (weather(), hospitals(), columns(), instances(), recommendations(), user_groups()),
        runs=1,
        engine="ray",
    )

"""The demo: every method once, on data that comes with the package."""

from __future__ import annotations

from fedkern_flwr.errors import TableError

from .base import Preset
from .online import weather


def demo(datasets: tuple[str, ...]) -> Preset:
    """Return the demo, a section per family."""
    if datasets:
        raise TableError("the demo has its own data", remedy="leave out --datasets")
    return Preset(
        "demo",
        "Who predicts the weather of three airports best, without pooling it?",
        "Hourly weather of the three New York airports in 2013: nine clients, three at each "
        "airport, keep their rows. Every method predicts the temperature of each hour before it "
        "learns it, in time order; only gradients are sent. Local only shows what a client "
        "reaches without the others.",
        (weather(),),
        runs=1,
        engine="ray",
    )

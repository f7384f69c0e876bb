"""Messages of secure aggregation: weighted means of what any Flower app returns.

A request rides beside the records that a strategy sends to the app, which never sees it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..wire.message import PhaseMessage

__all__ = ["AverageReply", "AverageRequest", "FiguresReply", "FiguresRequest"]


@dataclass(frozen=True, kw_only=True)
class AverageRequest(PhaseMessage):
    """Have the app train; add what it returns, times its weight, to the sum of this exchange.

    Attributes
    ----------
    session : str
    round : int
        Number of the exchange, from 1.
    weighted_by : str
        Metric that is the weight.
    """

    phase = "average"
    session: str
    round: int
    weighted_by: str


@dataclass(frozen=True, kw_only=True)
class AverageReply(PhaseMessage):
    """The vector travels masked, in a section.

    Attributes
    ----------
    round : int
    layout : str
        Names of the metrics and how many numbers each has, as JSON; empty for a node that
        contributes zeros.
    """

    phase = "average"
    round: int
    layout: str


@dataclass(frozen=True, kw_only=True)
class FiguresRequest(AverageRequest):
    """Have the app evaluate; add its metrics, times their weight, to the sum of this exchange."""

    phase = "average-evaluate"


@dataclass(frozen=True, kw_only=True)
class FiguresReply(AverageReply):
    """The figures travel masked, in a section."""

    phase = "average-evaluate"

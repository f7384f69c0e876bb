"""Messages of secure aggregation: weighted means of what any Flower app returns.

A request rides beside the records that a strategy sends to the app, which never sees it.
"""

from __future__ import annotations

from ..wire.message import Message


class AverageRequest(Message, phase="average"):
    """Have the app train; add what it returns, times its weight, to the sum of this exchange.

    Attributes
    ----------
    session : str
    round : int
        Number of the exchange, from 1.
    weighted_by : str
        Metric that is the weight.
    """

    session: str
    round: int
    weighted_by: str


class AverageReply(Message, phase="average"):
    """The vector travels masked, in a section.

    Attributes
    ----------
    round : int
    layout : str
        Names of the metrics and how many numbers each has, as JSON; empty for a node that
        contributes zeros.
    """

    long_texts = ("layout",)

    round: int
    layout: str


class FiguresRequest(AverageRequest, phase="average-evaluate"):
    """Have the app evaluate; add its metrics, times their weight, to the sum of this exchange."""


class FiguresReply(AverageReply, phase="average-evaluate"):
    """The figures travel masked, in a section."""

"""Define the messages of secure aggregation: weighted means of any Flower app's results.

A request is added to the records that a strategy sends to the app, which never sees it.
"""

from __future__ import annotations

from ..wire.message import Message


class AverageRequest(Message, phase="average"):
    """Request to train, and to add the weighted result to the sum of this exchange.

    Attributes
    ----------
    round : int
        Number of the exchange, from 1.
    weighted_by : str
        Metric that is the weight.
    """

    session: str
    round: int
    weighted_by: str


class AverageReply(Message, phase="average"):
    """Reply to a request; the masked vector is in a section.

    ``layout`` has the names and lengths of the metrics as JSON; empty for a node that contributes
    zeros.
    """

    long_texts = ("layout",)

    round: int
    layout: str


class FiguresRequest(AverageRequest, phase="average-evaluate"):
    """Request to evaluate, and to add the weighted metrics to the sum of this exchange."""


class FiguresReply(AverageReply, phase="average-evaluate"):
    """Reply to a request; the masked figures are in a section."""

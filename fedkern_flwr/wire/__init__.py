"""Define the messages of server and clients."""

from __future__ import annotations

from .describe import DescribeReply, DescribeRequest, check_parties, columns_digest
from .message import PROTOCOL_VERSION, PhaseMessage, Scalar, array

__all__ = [
    "PROTOCOL_VERSION",
    "DescribeReply",
    "DescribeRequest",
    "PhaseMessage",
    "Scalar",
    "array",
    "check_parties",
    "columns_digest",
]

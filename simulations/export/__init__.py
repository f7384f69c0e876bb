"""Models in formats that other programs read."""

from .document import FORMAT, document
from .reader import predict

__all__ = ["FORMAT", "document", "predict"]

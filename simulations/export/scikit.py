"""Wrap a document as an estimator of scikit-learn's, for skops files."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator

from .reader import outputs, predict


class ExportedModel(BaseEstimator):  # type: ignore[misc]
    """A model that was fitted elsewhere and needs NumPy alone.

    Parameters
    ----------
    document : dict
        See :func:`~fedkern_flwr.simulations.export.document.document`.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    def __sklearn_is_fitted__(self) -> bool:
        """Return True."""
        return True

    def decision_function(self, X: Any) -> Any:
        """Return scores of classes, shape (n, k), or numbers, shape (n, 1)."""
        return outputs(self.document, X)

    def predict(self, X: Any) -> Any:
        """Return the class of each row, or its number; shape (n,)."""
        return predict(self.document, X)

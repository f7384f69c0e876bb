"""Methods as scikit-learn estimators: ``fit(X, y)`` deals a table to parties in this process."""

try:
    import sklearn  # noqa: F401
except ImportError:
    raise ImportError(
        "the estimators need scikit-learn; pip install 'fedkern-flwr[simulation]'"
    ) from None

from .base import (
    FDSKLClassifier,
    FDSKLRegressor,
    FedCGClassifier,
    FedCGRegressor,
    HierarchicalSVMClassifier,
    HierarchicalSVMRegressor,
    SecureGramClassifier,
    SecureGramRegressor,
)

__all__ = [
    "FDSKLClassifier",
    "FDSKLRegressor",
    "FedCGClassifier",
    "FedCGRegressor",
    "HierarchicalSVMClassifier",
    "HierarchicalSVMRegressor",
    "SecureGramClassifier",
    "SecureGramRegressor",
]

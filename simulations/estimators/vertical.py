"""Methods whose parties hold columns, as estimators: FDSKL and Secure Gram."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fedkern_flwr.encoding.columns import Scaling
from fedkern_flwr.errors import TableError
from fedkern_flwr.kernels.frequencies import Kernel

from .base import Classifier, Federated, Regressor


class _Columns(Federated):
    """A party has one column or more: of a narrow table there are fewer parties."""

    def _dealt(self, parties: dict[str, int], columns: int) -> dict[str, Any]:
        if columns < 2:
            raise TableError(
                "1 feature(s) cannot be split by columns",
                remedy="add columns",
                code="FK-COLUMNS-FEW",
            )
        return {name: min(count, columns) for name, count in parties.items()}


class _FDSKL(_Columns):
    """Columns dealt in order to parties, of which the first has the labels.

    Parameters
    ----------
    parties : int (default: 4)
        Parties with columns; fewer where the table has not one for each. Two are allowed here,
        where all are one's own.
    features : int or None (default: None)
        Directions, by default 2000.
    kernel : {"rbf", "laplacian"} (default: "rbf")
        The kernel, of all columns.
    gamma, regularization : float or None (default: None)
        Width and lambda; by default chosen by cross-validation at the party with the labels.
    loss : {"square", "logistic", "smooth-hinge"} or None (default: None)
        By default smooth hinge for classes and square for numbers.
    scaling : {"auto", "rank", "standard", "range", "none"} (default: "auto")
        How numbers are scaled.
    held_out : float (default: 0.0)
        Share of the rows that calibrates probabilities and is not learned from.
    options : mapping or None (default: None)
        Further options of ``fedkern run fdskl``, such as ``{"kernel": "laplacian"}``.
    random_state : int, RandomState or None (default: 0)
        Seed of directions and split.
    """

    _method, _parties, _fixed = "fdskl", "parties", {"allow_single": True}

    def __init__(
        self,
        *,
        parties: int = 4,
        features: int | None = None,
        kernel: Kernel = "rbf",
        gamma: float | None = None,
        regularization: float | None = None,
        loss: Literal["square", "logistic", "smooth-hinge"] | None = None,
        scaling: Scaling = "auto",
        held_out: float = 0.0,
        options: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.parties, self.features, self.kernel, self.gamma = parties, features, kernel, gamma
        self.regularization, self.loss, self.scaling = regularization, loss, scaling
        self.held_out, self.options, self.random_state = held_out, options, random_state

    def _loss(self) -> str:
        return self.loss or "smooth-hinge"


class FDSKLClassifier(Classifier, _FDSKL):
    __doc__ = f"Classes by FDSKL. {_FDSKL.__doc__}"


class FDSKLRegressor(Regressor, _FDSKL):
    __doc__ = f"Numbers by FDSKL. {_FDSKL.__doc__}"


class _SecureGram(_Columns):
    """Columns dealt in order to parties; a machine learns from the matrix that they sum.

    Parameters
    ----------
    parties : int (default: 4)
        Parties with columns; fewer where the table has not one for each.
    kernel : {"linear", "poly", "rbf", "cosine"} (default: "rbf")
        The kernel, made of the exact matrix of products.
    gamma, cost : float or None (default: None)
        Width, and C of ``svc`` or lambda of ``ridge``; by default chosen by cross-validation.
    learner : {"svc", "ridge"} (default: "svc")
        The machine.
    scaling : {"auto", "rank", "range"} (default: "auto")
        How numbers are scaled.
    options : mapping or None (default: None)
        Further options of ``fedkern run secure-gram``, such as ``{"fraction_bits": 30}``.
    random_state : int, RandomState or None (default: 0)
        Seed of the folds.
    """

    _method, _fixed = "secure-gram", {"encoding": "fixed-point"}

    def __init__(
        self,
        *,
        parties: int = 4,
        kernel: Literal["linear", "poly", "rbf", "cosine"] = "rbf",
        gamma: float | None = None,
        cost: float | None = None,
        learner: Literal["svc", "ridge"] = "svc",
        scaling: Scaling = "auto",
        options: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.parties, self.kernel, self.gamma, self.cost = parties, kernel, gamma, cost
        self.learner, self.scaling = learner, scaling
        self.options, self.random_state = options, random_state

    def _loss(self) -> str:
        return "square" if self.learner == "ridge" else "margin"


class SecureGramClassifier(Classifier, _SecureGram):
    __doc__ = f"Classes by Secure Gram. {_SecureGram.__doc__}"


class SecureGramRegressor(Regressor, _SecureGram):
    __doc__ = f"Numbers by Secure Gram. {_SecureGram.__doc__}"

"""Methods whose parties hold columns, as estimators: FDSKL and Secure Gram."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fedkern_flwr.encoding.columns import Scaling
from fedkern_flwr.errors import TableError
from fedkern_flwr.kernels.random_features import Kernel

from .base import REPEATED, Federated, WeightedClassifier, WeightedRegressor


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
        Share of the rows that calibrates probabilities and is not learned from. At 0 scores of a
        margin are calibrated by a second run, and the model learns from all rows.
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

    def _chosen(self) -> dict[str, Any]:
        return {"regularization": self.strategy_.metrics_.get("regularization")}


class FDSKLClassifier(WeightedClassifier, _FDSKL):
    __doc__ = f"""Classes by FDSKL. {_FDSKL.__doc__}
    class_weight : mapping, {{"balanced"}} or None (default: None)
        What the rows of each class count, or so much that all classes count alike.
    """

    _failing = {  # noqa: RUF012
        **REPEATED,
        "check_methods_subset_invariance": "features of 16-bit phases are float32, so that the "
        "last digits of a row depend on the rows beside it; with phase_bits 32 they do not",
    }

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
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        held_out: float = 0.0,
        options: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        super().__init__(
            parties=parties,
            features=features,
            kernel=kernel,
            gamma=gamma,
            regularization=regularization,
            loss=loss,
            scaling=scaling,
            held_out=held_out,
            options=options,
            random_state=random_state,
        )
        self.class_weight = class_weight


class FDSKLRegressor(WeightedRegressor, _FDSKL):
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
    held_out : float (default: 0.0)
        Share of the rows that calibrates probabilities and is not learned from. At 0 scores of a
        margin are calibrated by a second run, and the model learns from all rows.
    options : mapping or None (default: None)
        Further options of ``fedkern run secure-gram``, such as ``{"fraction_bits": 30}``.
    random_state : int, RandomState or None (default: 0)
        Seed of the folds.
    """

    _method, _fixed = "secure-gram", {"encoding": "fixed-point"}
    _judged_after = True

    def __init__(
        self,
        *,
        parties: int = 4,
        kernel: Literal["linear", "poly", "rbf", "cosine"] = "rbf",
        gamma: float | None = None,
        cost: float | None = None,
        learner: Literal["svc", "ridge"] = "svc",
        scaling: Scaling = "auto",
        held_out: float = 0.0,
        options: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.parties, self.kernel, self.gamma, self.cost = parties, kernel, gamma, cost
        self.learner, self.scaling, self.held_out = learner, scaling, held_out
        self.options, self.random_state = options, random_state

    def _loss(self) -> str:
        return "square" if self.learner == "ridge" else "margin"


class SecureGramClassifier(WeightedClassifier, _SecureGram):
    __doc__ = f"""Classes by Secure Gram. {_SecureGram.__doc__}
    class_weight : mapping, {{"balanced"}} or None (default: None)
        What the rows of each class count, or so much that all classes count alike.
    """

    def __init__(
        self,
        *,
        parties: int = 4,
        kernel: Literal["linear", "poly", "rbf", "cosine"] = "rbf",
        gamma: float | None = None,
        cost: float | None = None,
        learner: Literal["svc", "ridge"] = "svc",
        scaling: Scaling = "auto",
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        held_out: float = 0.0,
        options: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        super().__init__(
            parties=parties,
            kernel=kernel,
            gamma=gamma,
            cost=cost,
            learner=learner,
            scaling=scaling,
            held_out=held_out,
            options=options,
            random_state=random_state,
        )
        self.class_weight = class_weight


class SecureGramRegressor(WeightedRegressor, _SecureGram):
    __doc__ = f"Numbers by Secure Gram. {_SecureGram.__doc__}"

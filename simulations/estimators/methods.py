"""Estimators of FedCG, FDSKL, Secure Gram and HierarchicalSVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedkern_flwr.encoding.columns import Scaling
from fedkern_flwr.errors import TableError
from fedkern_flwr.kernels.product import ProductKernel
from fedkern_flwr.kernels.random_features import Kernel

from ..run.splits import Split
from .base import BALANCED_ALONE, REPEATED, Classifier, Federated, Regressor, Weighted


@dataclass(kw_only=True, eq=False, repr=False)
class _Dealt(Federated):
    """Parameters of all estimators."""

    parties: int = 4
    scaling: Scaling = "auto"
    held_out: float = 0.0
    options: Mapping[str, Any] | None = None
    random_state: Any = 0


@dataclass(kw_only=True, eq=False, repr=False)
class _FedCG(_Dealt):
    """Rows dealt to hospitals, further columns to centres.

    Parameters
    ----------
    parties : int (default: 4)
        Hospitals and centres.
    centres : int (default: 2)
        Centres among them, which hold columns only; fewer for narrow tables. One is allowed.
    split : {"iid", "dirichlet"} (default: "iid")
        Split of the rows among hospitals.
    alpha : float (default: 0.5)
        Concentration of the Dirichlet split.
    landmarks : int or "auto" (default: "auto")
        Number of landmarks, m.
    kernel : {"rbf", "laplacian"} (default: "rbf")
        Kernel of all columns.
    gamma, regularization : float or None (default: None)
        Width and lambda (default: chosen in the run, see ``tune``).
    tune : {"auto", "folds", "gcv", "off"} (default: "auto")
        How gamma and lambda are chosen.
    scaling : {"auto", "rank", "range", "none"} (default: "auto")
        Scaling of numbers.
    held_out : float (default: 0.0)
        Share of the rows held out to calibrate probabilities.
    options : mapping or None (default: None)
        Further options of ``fedkern run fed-cg``, such as ``{"basis": "fourier"}``.
    random_state : int, RandomState or None (default: 0)
        Seed of split and landmarks.
    """

    _method, _fixed = "fed-cg", {"allow_single": True}
    _why_parties = ", one more than centres"

    centres: int = 2
    split: Split = "iid"
    alpha: float = 0.5
    landmarks: int | Literal["auto"] = "auto"
    kernel: ProductKernel = "rbf"
    gamma: float | None = None
    regularization: float | None = None
    tune: Literal["auto", "folds", "gcv", "off"] = "auto"

    def _dealt(self, parties: dict[str, int], columns: int) -> dict[str, Any]:
        centres = min(self.centres, max(columns - 1, 0))
        return {"hospitals": parties["clients"] - self.centres, "centres": centres}

    def _least_parties(self) -> int:
        return max(2, self.centres + 1)

    def _loss(self) -> str:
        return "square"


@dataclass(kw_only=True, eq=False, repr=False)
class FedCGClassifier(Classifier, _FedCG):
    __doc__ = f"""Classes by FedCG. {_FedCG.__doc__}
    class_weight : {{"balanced"}} or None (default: None)
        Whether classes have equal weight. Other weights and ``sample_weight`` are refused: with
        them a sum of a hospital could be that of a few rows.
    """

    _failing = BALANCED_ALONE

    class_weight: Literal["balanced"] | None = None


class FedCGRegressor(Regressor, _FedCG):
    __doc__ = f"Numbers by FedCG. {_FedCG.__doc__}"


class _Columns(_Dealt):
    """Parties with a column or more each; fewer parties for a narrow table."""

    def _dealt(self, parties: dict[str, int], columns: int) -> dict[str, Any]:
        if columns < 2:
            raise TableError(
                "1 feature(s) cannot be split by columns",
                remedy="add columns",
                code="FK-COLUMNS-FEW",
            )
        return {name: min(count, columns) for name, count in parties.items()}


@dataclass(kw_only=True, eq=False, repr=False)
class _FDSKL(_Columns):
    """Columns dealt in order to parties, of which the first has the labels.

    Parameters
    ----------
    parties : int (default: 4)
        Parties with columns; fewer for narrow tables. Two are allowed.
    features : int or None (default: None)
        Number of directions (default: 2000).
    kernel : {"rbf", "laplacian"} (default: "rbf")
        Kernel of all columns.
    gamma, regularization : float or None (default: None)
        Width and lambda (default: cross-validation at the party with the labels).
    loss : {"square", "logistic", "smooth-hinge"} or None (default: None)
        Loss (default: smooth-hinge for classes, square for numbers).
    scaling : {"auto", "rank", "standard", "range", "none"} (default: "auto")
        Scaling of numbers.
    held_out : float (default: 0.0)
        Share of the rows held out to calibrate probabilities; at 0, a second run calibrates scores
        of a margin.
    options : mapping or None (default: None)
        Further options of ``fedkern run fdskl``, such as ``{"kernel": "laplacian"}``.
    random_state : int, RandomState or None (default: 0)
        Seed of directions and split.
    """

    _method, _parties, _fixed = "fdskl", "parties", {"allow_single": True}

    features: int | None = None
    kernel: Kernel = "rbf"
    gamma: float | None = None
    regularization: float | None = None
    loss: Literal["square", "logistic", "smooth-hinge"] | None = None

    def _loss(self) -> str:
        return self.loss or "smooth-hinge"

    def _chosen(self) -> dict[str, Any]:
        return {"regularization": self.strategy_.metrics_.get("regularization")}


@dataclass(kw_only=True, eq=False, repr=False)
class FDSKLClassifier(Weighted, Classifier, _FDSKL):
    __doc__ = f"""Classes by FDSKL. {_FDSKL.__doc__}
    class_weight : mapping, {{"balanced"}} or None (default: None)
        Weights of the classes, or equal weight of all.
    """

    _failing = {  # noqa: RUF012
        **REPEATED,
        "check_methods_subset_invariance": "features of 16-bit phases are float32, so that the "
        "last digits of a row depend on the other rows; with phase_bits 32 they do not",
    }

    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None


class FDSKLRegressor(Weighted, Regressor, _FDSKL):
    __doc__ = f"Numbers by FDSKL. {_FDSKL.__doc__}"


@dataclass(kw_only=True, eq=False, repr=False)
class _SecureGram(_Columns):
    """Columns dealt in order to parties; a model is trained on the matrix that they sum.

    Parameters
    ----------
    parties : int (default: 4)
        Parties with columns; fewer for narrow tables.
    kernel : {"linear", "poly", "rbf", "cosine"} (default: "rbf")
        Kernel, from the exact matrix of products.
    gamma, cost : float or None (default: None)
        Width, and C of ``svc`` or lambda of ``ridge`` (default: cross-validation).
    learner : {"svc", "ridge"} (default: "svc")
        Model on the kernel.
    scaling : {"auto", "rank", "range"} (default: "auto")
        Scaling of numbers.
    held_out : float (default: 0.0)
        Share of the rows held out to calibrate probabilities; at 0, a second run calibrates scores
        of a margin.
    options : mapping or None (default: None)
        Further options of ``fedkern run secure-gram``, such as ``{"fraction_bits": 30}``.
    random_state : int, RandomState or None (default: 0)
        Seed of the folds.
    """

    _method, _fixed = "secure-gram", {"encoding": "fixed-point"}
    _judged_after = True

    kernel: Literal["linear", "poly", "rbf", "cosine"] = "rbf"
    gamma: float | None = None
    cost: float | None = None
    learner: Literal["svc", "ridge"] = "svc"

    def _loss(self) -> str:
        return "square" if self.learner == "ridge" else "margin"


@dataclass(kw_only=True, eq=False, repr=False)
class SecureGramClassifier(Weighted, Classifier, _SecureGram):
    __doc__ = f"""Classes by Secure Gram. {_SecureGram.__doc__}
    class_weight : mapping, {{"balanced"}} or None (default: None)
        Weights of the classes, or equal weight of all.
    """

    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None


class SecureGramRegressor(Weighted, Regressor, _SecureGram):
    __doc__ = f"Numbers by Secure Gram. {_SecureGram.__doc__}"


@dataclass(kw_only=True, eq=False, repr=False)
class _Hierarchical(_Dealt):
    """Rows dealt to users, users evenly and in order to groups if there are any.

    Parameters
    ----------
    parties : int (default: 4)
        Users, each with rows of its own.
    groups : int or None (default: None)
        Groups with an agent each (default: none).
    split : {"iid", "dirichlet"} (default: "iid")
        Split of the rows among users.
    alpha : float (default: 0.5)
        Concentration of the Dirichlet split.
    C : float or None (default: None)
        Weight of the losses (default: chosen in the run).
    scaling : {"auto", "rank", "standard", "range", "none"} (default: "auto")
        Scaling of numbers.
    held_out : float (default: 0.0)
        Share of the rows held out to calibrate probabilities; at 0, a second run calibrates scores
        of a margin.
    options : mapping or None (default: None)
        Further options of ``fedkern run hierarchical-svm``, such as ``{"rounds": 400}``.
    random_state : int, RandomState or None (default: 0)
        Seed of split and random features.
    """

    _method, _parties = "hierarchical-svm", "users"

    groups: int | None = None
    split: Split = "iid"
    alpha: float = 0.5
    C: float | None = None

    def _chosen(self) -> dict[str, Any]:
        return {"C": self.strategy_.result().get("tuned", {}).get("C", self.get_params()["C"])}


@dataclass(kw_only=True, eq=False, repr=False)
class HierarchicalSVMClassifier(Classifier, _Hierarchical):
    __doc__ = f"""Classes by HierarchicalSVM. {_Hierarchical.__doc__}
    model : {{"linear", "rbf", "logistic"}} (default: "linear")
        Model.
    class_weight : {{"balanced"}} or None (default: None)
        Whether classes have equal weight. Other weights and ``sample_weight`` are refused: with
        them a sum of models could be that of a few rows.
    """

    _failing = BALANCED_ALONE

    model: Literal["linear", "rbf", "logistic"] = "linear"
    class_weight: Literal["balanced"] | None = None

    def _loss(self) -> str:
        return "logistic" if self.model == "logistic" else "margin"


class HierarchicalSVMRegressor(Regressor, _Hierarchical):
    __doc__ = f"Ridge regression by HierarchicalSVM. {_Hierarchical.__doc__}"

    _fixed = {"model": "ridge"}  # noqa: RUF012

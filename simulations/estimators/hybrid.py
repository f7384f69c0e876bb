"""FedCG as estimators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fedkern_flwr.encoding.columns import Scaling
from fedkern_flwr.kernels.product import ProductKernel

from ..run.splits import Split
from .base import BALANCED_ALONE, Classifier, Federated, Regressor


class _FedCG(Federated):
    """Rows dealt to hospitals, further columns to centres.

    Parameters
    ----------
    parties : int (default: 4)
        Hospitals and centres.
    centres : int (default: 2)
        Those of them that hold columns only; fewer where the table has not a column for each. One
        is allowed here, where all are one's own.
    split : {"iid", "dirichlet"} (default: "iid")
        How rows are dealt to hospitals.
    alpha : float (default: 0.5)
        Concentration of the Dirichlet split.
    landmarks : int or "auto" (default: "auto")
        m.
    kernel : {"rbf", "laplacian"} (default: "rbf")
        The kernel, of all columns.
    gamma, regularization : float or None (default: None)
        Width and lambda; by default chosen in the run, see ``tune``.
    tune : {"auto", "folds", "gcv", "off"} (default: "auto")
        How they are chosen.
    scaling : {"auto", "rank", "range", "none"} (default: "auto")
        How numbers are scaled.
    held_out : float (default: 0.0)
        Share of the rows that calibrates probabilities and is not learned from.
    options : mapping or None (default: None)
        Further options of ``fedkern run fed-cg``, such as ``{"basis": "fourier"}``.
    random_state : int, RandomState or None (default: 0)
        Seed of split and landmarks.
    """

    _method, _fixed = "fed-cg", {"allow_single": True}
    _why_parties = ", one more than centres"

    def __init__(
        self,
        *,
        parties: int = 4,
        centres: int = 2,
        split: Split = "iid",
        alpha: float = 0.5,
        landmarks: int | Literal["auto"] = "auto",
        kernel: ProductKernel = "rbf",
        gamma: float | None = None,
        regularization: float | None = None,
        tune: Literal["auto", "folds", "gcv", "off"] = "auto",
        scaling: Scaling = "auto",
        held_out: float = 0.0,
        options: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.parties, self.centres, self.split, self.alpha = parties, centres, split, alpha
        self.landmarks, self.kernel = landmarks, kernel
        self.gamma, self.regularization = gamma, regularization
        self.tune, self.scaling, self.held_out = tune, scaling, held_out
        self.options, self.random_state = options, random_state

    def _dealt(self, parties: dict[str, int], columns: int) -> dict[str, Any]:
        centres = min(self.centres, max(columns - 1, 0))
        return {"hospitals": parties["clients"] - self.centres, "centres": centres}

    def _least_parties(self) -> int:
        return max(2, self.centres + 1)

    def _loss(self) -> str:
        return "square"


class FedCGClassifier(Classifier, _FedCG):
    __doc__ = f"""Classes by FedCG. {_FedCG.__doc__}
    class_weight : {{"balanced"}} or None (default: None)
        Rows of rare classes count so much that all classes count alike. Others are not taken, nor
        is ``sample_weight``: hospitals send the server sums of their rows, and weights of one's
        choice would make such a sum that of a few rows.
    """

    _failing = BALANCED_ALONE

    def __init__(
        self,
        *,
        parties: int = 4,
        centres: int = 2,
        split: Split = "iid",
        alpha: float = 0.5,
        landmarks: int | Literal["auto"] = "auto",
        kernel: ProductKernel = "rbf",
        gamma: float | None = None,
        regularization: float | None = None,
        tune: Literal["auto", "folds", "gcv", "off"] = "auto",
        scaling: Scaling = "auto",
        class_weight: Literal["balanced"] | None = None,
        held_out: float = 0.0,
        options: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        super().__init__(
            parties=parties,
            centres=centres,
            split=split,
            alpha=alpha,
            landmarks=landmarks,
            kernel=kernel,
            gamma=gamma,
            regularization=regularization,
            tune=tune,
            scaling=scaling,
            held_out=held_out,
            options=options,
            random_state=random_state,
        )
        self.class_weight = class_weight


class FedCGRegressor(Regressor, _FedCG):
    __doc__ = f"Numbers by FedCG. {_FedCG.__doc__}"

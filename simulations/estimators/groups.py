"""HierarchicalSVM as estimators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fedkern_flwr.encoding.columns import Scaling

from ..run.splits import Split
from .base import BALANCED_ALONE, Classifier, Federated, Regressor


class _Hierarchical(Federated):
    """Rows dealt to users, users evenly and in order to groups if there are any.

    Parameters
    ----------
    parties : int (default: 4)
        Users, each with rows of its own.
    groups : int or None (default: None)
        Groups of users, each with an agent; by default all users are around the server.
    split : {"iid", "dirichlet"} (default: "iid")
        How rows are dealt to users.
    alpha : float (default: 0.5)
        Concentration of the Dirichlet split.
    C : float or None (default: None)
        Weight of the losses, by default chosen in the run.
    scaling : {"auto", "rank", "standard", "range", "none"} (default: "auto")
        How numbers are scaled.
    held_out : float (default: 0.0)
        Share of the rows that calibrates probabilities and is not learned from. At 0 scores of a
        margin are calibrated by a second run, and the model learns from all rows.
    options : mapping or None (default: None)
        Further options of ``fedkern run hierarchical-svm``, such as ``{"rounds": 400}``.
    random_state : int, RandomState or None (default: 0)
        Seed of split and random features.
    """

    _method, _parties = "hierarchical-svm", "users"

    def _chosen(self) -> dict[str, Any]:
        return {"C": self.strategy_.result().get("tuned", {}).get("C", self.get_params()["C"])}


class HierarchicalSVMClassifier(Classifier, _Hierarchical):
    __doc__ = f"""Classes by HierarchicalSVM. {_Hierarchical.__doc__}
    model : {{"linear", "rbf", "logistic"}} (default: "linear")
        What is learned.
    class_weight : {{"balanced"}} or None (default: None)
        Rows of rare classes count so much that all classes count alike. Others are not taken, nor
        is ``sample_weight``: users check the weights of a run by their own labels, as weights of
        one's choice would make a sum of models that of a few rows.
    """

    _failing = BALANCED_ALONE

    def __init__(
        self,
        *,
        parties: int = 4,
        groups: int | None = None,
        split: Split = "iid",
        alpha: float = 0.5,
        model: Literal["linear", "rbf", "logistic"] = "linear",
        C: float | None = None,
        class_weight: Literal["balanced"] | None = None,
        scaling: Scaling = "auto",
        held_out: float = 0.0,
        options: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.parties, self.groups, self.split, self.alpha = parties, groups, split, alpha
        self.model, self.C, self.class_weight = model, C, class_weight
        self.scaling, self.held_out = scaling, held_out
        self.options, self.random_state = options, random_state

    def _loss(self) -> str:
        return "logistic" if self.model == "logistic" else "margin"


class HierarchicalSVMRegressor(Regressor, _Hierarchical):
    __doc__ = f"Ridge regression by HierarchicalSVM. {_Hierarchical.__doc__}"

    _fixed = {"model": "ridge"}  # noqa: RUF012

    def __init__(
        self,
        *,
        parties: int = 4,
        groups: int | None = None,
        split: Split = "iid",
        alpha: float = 0.5,
        C: float | None = None,
        scaling: Scaling = "auto",
        held_out: float = 0.0,
        options: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.parties, self.groups, self.split, self.alpha = parties, groups, split, alpha
        self.C, self.scaling, self.held_out = C, scaling, held_out
        self.options, self.random_state = options, random_state

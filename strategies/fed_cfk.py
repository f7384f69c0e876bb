"""FedCFK: a recommender from a secure sum; ratings stay at the users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import CheckpointError, OptionError, TableError
from fedkern_flwr.gram import messages as wire
from fedkern_flwr.gram import recommenders
from fedkern_flwr.gram.dot_kernels import KernelName
from fedkern_flwr.gram.messages import RANKING
from fedkern_flwr.gram.recommenders import ItemKernel, Learner, Recommender
from fedkern_flwr.method import Ask, Rounds, Steps, option
from fedkern_flwr.model_file import check_model
from fedkern_flwr.nodes import Arrays, logger
from fedkern_flwr.wire import DescribeReply

from .secure_gram import SecureGram, not_for

#: What recommendations depend on, besides the kernel.
_USED = ("learner", "regularization", "subtract_mean", "neighbours")
_OLD: dict[str, Any] = {
    "learner": "cf-komd",
    "neighbours": recommenders.NEIGHBOURS,
    "tuned": {},
}  # of 0.1


class FedCFK(SecureGram):
    """FedCFK: each user's device ranks the items by their matrix K from a secure sum.

    ``ease``: with P = (K + lambda I)^-1 the score of item i is the sum of -P_ji / P_ii over what
    the user likes. ``cf-komd``, the paper's: with a kernel of K and positives P a user minimises
    a^T K_PP a + lambda |a|^2 - 2 a^T q_P over the simplex, q the means of the rows; scores are K[:,
    P] a - q. ``knn``: the sum of the kernel to the item's nearest neighbours that the user likes.

    Attributes
    ----------
    tuned_ : dict
        If nodes chose lambda: ``regularization``, its geometric mean over all users.
    judged_ : list of int
        Partitions in the mean metrics.

    Notes
    -----
    Exchanges: those of Secure Gram, one for the recommendations and, with drop_outs, one to open
    their metrics.

    References
    ----------
    Polato, Gallinaro and Aiolli, "Privacy-Preserving Kernel Computation For Vertically Partitioned
    Data", ESANN 2021, section 3. Polato and Aiolli, "Exploiting sparsity to build efficient kernel
    based collaborative filtering for top-N item recommendation", Neurocomputing 268, 2017. Steck,
    "Embarrassingly Shallow Autoencoders for Sparse Data", WWW 2019.
    """

    method, title = "fed-cfk", "FedCFK"
    no_budget = (
        "releases a number for each pair of items, where noise for a user would leave nothing of "
        "most"
    )
    left_whole = False
    fixed: ClassVar[frozenset[str]] = SecureGram.fixed | {"encoding", "bound", "fraction_bits"}
    of_kernel: ClassVar[tuple[str, ...]] = (*SecureGram.of_kernel, *_USED)
    of_models: ClassVar[frozenset[str]] = SecureGram.of_models | {"names"}

    learner: Learner = option(
        None,
        "Recommender (default: ease for the cosine kernel, else cf-komd).",
    )
    kernel: KernelName = option("cosine", "CF-KOMD and kNN: kernel between items.")
    regularization: float = option(
        None,
        "Penalty lambda (default: chosen at each node on held-out ratings).",
        above=0.0,
    )
    subtract_mean: bool = option(True, "CF-KOMD: subtract q from the scores.")
    neighbours: int = option(None, "KNN: number of neighbours (default: 100).", least=1)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.encoding != "counts" or self.bound != 1:
            raise OptionError(
                "recommendations are made from zeros and ones",
                remedy="leave out encoding and bound",
                code="FK-RECOMMEND-BINARY",
            )
        self._check_learner()
        self.fill_in(neighbours=recommenders.NEIGHBOURS)

    def _check_learner(self) -> None:
        own = self.kernel != "cosine" or not self.subtract_mean
        if self.regularization and not own and self.learner not in recommenders.LEARNERS:
            raise OptionError(
                "regularization is in other units for each learner",
                remedy="name the learner as well: ease, or cf-komd",
                code="FK-OPTION-PARTNER",
            )
        self.fill_in(learner="cf-komd" if own else "ease")
        others = {
            "kernel": self.kernel != "cosine" and self.learner == "ease",
            "subtract_mean": not self.subtract_mean and self.learner != "cf-komd",
            "regularization": self.regularization is not None and self.learner == "knn",
            "neighbours": self.neighbours is not None and self.learner != "knn",
        }
        for name, wrong in others.items():
            if wrong:
                raise not_for(name, f"learner {self.learner}")

    def _reset(self) -> None:
        super()._reset()
        self.judged_: list[int] = []
        self.tuned_: dict[str, Any] = {}
        self._predicting = False

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        arrays, meta = super().learned()
        return arrays, {**meta, "names": self._names, "tuned": self.tuned_}

    def result(self) -> dict[str, Any]:
        return {**super().result(), **({"tuned": self.tuned_} if self.tuned_ else {})}

    @property
    def regularization_(self) -> float:
        """Lambda: given, chosen, or the start of the choice."""
        given = self.regularization or self.tuned_.get("regularization")
        return float(given or recommenders.REGULARIZATION[self.learner])

    def privacy(self) -> dict[str, Any]:
        if self._predicting:
            return {
                "protocol": "recommendations stay at the nodes",
                "server_sees": [
                    "numbers of rows and items per node, digest of the names of the items",
                    "how many users of each node have recommendations",
                ],
                "clients_see": ["products of pairs of items, summed over the users of the model"],
                "never_leaves_the_client": ["ratings", "recommendations", "names of rows"],
            }
        seen = super().privacy()
        seen["server_sees"].append("sums of the users' AUC, nDCG and recall")
        if self.tunes:
            seen["server_sees"].append("mean of the lambdas that nodes chose")
        seen["clients_see"].append("these products of items")
        seen["never_leaves_the_client"] += ["ratings", "recommendations"]
        return seen

    def more_cohorts(self) -> list[list[int]]:
        """Sum the metrics over all nodes, also those without a part in the kernel."""
        everybody = sorted(party.partition for party in self.parties_.values())
        return [] if self._members == [everybody] else [everybody]

    # -- what users do with the kernel

    def _offer(self, kind: type[wire.RecommendRequest], **tuning: Any) -> wire.RecommendRequest:
        whole = self.gram_, self.items_, self.catalogue_, self.rows_
        ranks = self.recommender(ItemKernel.of_gram(*whole, self.dot_kernel_))
        rows = max(party.rows for party in self.parties_.values())
        known = {"tune": False, "summed": b"", **tuning}
        return kind.of(ranks, rows=rows, self_masks=self.self_masks, **known)

    def use(self) -> Steps:
        everybody = len(self._counted) - 1
        cohort = self._cohort(everybody)
        if "judged" in self.saved_meta_:
            self.judged_ = self.saved_meta_["judged"]
            self.tuned_ = self.saved_meta_.get("tuned", {})
            return dict(self.saved_meta_["ranking"])
        if len(set(cohort.members) - self.spent_) < cohort.threshold:
            logger.warning("the recommendations are not judged again: nodes have answered before")
            return {}
        tuning = {"tune": True, "summed": cohort.pack(self.survivors_)} if self.tunes else {}
        offer = self._offer(wire.RecommendRequest, **tuning)
        sums = yield from self.sum_over({everybody: offer}, wire.RecommendReply)
        self.judged_, total = sums[everybody]
        *figures, judged, steps = total
        evaluated = round(judged)
        ranking: dict[str, Any] = {"evaluated_users": evaluated}
        if evaluated:
            ranking |= {n: float(v) / evaluated for n, v in zip(RANKING, figures, strict=True)}
        rows = [p.rows for p in self.parties_.values() if p.partition in self.judged_]
        if self.tunes and max(rows) >= recommenders.FEWEST_USERS:
            found = recommenders.REGULARIZATION[self.learner] * recommenders.STEP ** (
                recommenders.MOST_STEPS * float(steps) / sum(rows)
            )
            self.tuned_ = {"regularization": found, "by": "held-out ratings"}
        yield from self.save("used", judged=self.judged_, ranking=ranking)
        return ranking

    @property
    def tunes(self) -> bool:
        return not self.regularization and self.learner != "knn"

    # -- recommendations with a saved kernel

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> Self:
        own = {**_OLD, **meta}
        if own["learner"] != "knn":
            own["neighbours"] = None
        found = super().of_model(own, **more)
        found.tuned_ = dict(own["tuned"])
        return found

    def recommender(self, kernel: ItemKernel, found: float | None = None) -> Recommender:
        how = found or self.regularization_, self.subtract_mean, self.neighbours
        return Recommender(kernel, self.learner, *how)

    @property
    def _names(self) -> str:
        return next((party.columns for party in self.parties_.values()), "")

    def predict_at_nodes(
        self,
        grid: Grid,
        arrays: Mapping[str, NDArray[Any]],
        meta: Mapping[str, Any],
        *,
        timeout: float = 3600,
    ) -> None:
        """Let the nodes recommend to their present users with a saved kernel.

        Nothing is summed; the nodes write the recommendations. Other nodes with the same items may
        take part. ``arrays`` and ``meta`` are from :meth:`model`; ``timeout`` is in seconds per
        exchange.

        Raises
        ------
        CheckpointError
            The model has another method, other options or other items.
        TableError
            No node writes recommendations.
        CohortError, ProtocolError
            See :meth:`start`.
        """
        meta = {**_OLD, **meta}
        self.check_same(meta, (*_USED, "kernel"))
        items = arrays.get("items", np.zeros(0)).size
        shapes = {"items": (items,), "gram": (items * (items + 1) // 2,)}
        check_model(self.method, arrays, meta, shapes)
        self.begin()
        self._load(arrays, meta)
        self._predicting, self.run_seed = True, int(meta["seed"])
        self.tuned_ = dict(meta["tuned"])

        def rounds(parties: Sequence[DescribeReply]) -> Rounds:
            if (self._names, self.catalogue_) != (meta["names"], meta["catalogue"]):
                raise CheckpointError(
                    "the nodes have another catalogue of items than the model",
                    remedy="bring the catalogue that the model was made with",
                    code="FK-MODEL-ITEMS",
                )
            offer = self._offer(wire.PredictRequest)
            others = "mend it and start again; the others have written theirs"
            found = yield Ask(offer, reply=wire.PredictReply, remedy=others)
            users = sum(reply.users for reply in found.replies.values())
            if not users:
                raise TableError(
                    "no node writes recommendations",
                    remedy="name recommendations in --node-config",
                    code="FK-PREDICT-NOWHERE",
                )
            return {"items": len(self.items_), "users": users}

        self.conduct(grid, rounds, timeout=timeout)

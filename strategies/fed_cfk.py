"""FedCFK: a kernel recommender whose ratings never leave the users."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.dot_kernels import KernelName
from fedkern_flwr.errors import (
    CheckpointError,
    CohortError,
    FedKernError,
    OptionError,
    TableError,
)
from fedkern_flwr.exchange import Failure, request_messages
from fedkern_flwr.gram import packed_columns
from fedkern_flwr.gram_plan import RANKING, ranking_encoding
from fedkern_flwr.item_kernel import ItemKernel, compact
from fedkern_flwr.least_squares import check_regularization
from fedkern_flwr.model_file import check_model
from fedkern_flwr.online import check_choice
from fedkern_flwr.recommending import REQUESTS, Request, are_positions
from fedkern_flwr.strategy import Arrays, logger
from fedkern_flwr.wire import PhaseMessage
from fedkern_flwr.wire import gram as wire

from .secure_gram import SecureGram

_NOISY_WARNING = (
    "request noisy is the paper's: a user asks for the rows of most of its items and of some "
    "others, and after a few requests the server can tell them apart"
)


class FedCFK(SecureGram):
    """FedCFK: CF-KOMD on each user's device, with a kernel between items from a secure sum.

    A user with positives P minimises a^T K_PP a + lambda |a|^2 - 2 a^T q_P over the simplex, where
    q_i is the mean of row i of K, and scores all items by K[:, P] a - q.

    Parameters
    ----------
    kernel : {"linear", "poly", "rbf", "cosine", "conjunctive", "disjunctive", "series"}
        The kernel between items, by default cosine.
    regularization : float (default: 0.1)
        lambda.
    subtract_mean : bool (default: True)
        Whether q is subtracted from the scores.
    request : {"full", "noisy"} (default: "full")
        Every user gets the whole kernel; or the rows of the paper's noisy requests.
    **common
        Options of :class:`~fedkern_flwr.strategies.secure_gram.SecureGram`.

    Attributes
    ----------
    asked_ : dict
        Of noisy requests: partition -> items whose rows it has asked for, in each round.
    judged_ : list of int
        Partitions whose metrics are in the means.

    Notes
    -----
    Exchanges: those of Secure Gram, one for the recommendations and, with drop_outs, one to open
    their metrics.

    References
    ----------
    Polato, Gallinaro and Aiolli, "Privacy-Preserving Kernel Computation For Vertically Partitioned
    Data", ESANN 2021, section 3. Polato and Aiolli, "Exploiting sparsity to build efficient kernel
    based collaborative filtering for top-N item recommendation", Neurocomputing 268, 2017.
    """

    method: ClassVar[str] = "fed-cfk"
    title: ClassVar[str] = "FedCFK"
    fixed: ClassVar[frozenset[str]] = SecureGram.fixed | {"encoding", "bound", "fraction_bits"}

    def __init__(
        self,
        *,
        kernel: KernelName = "cosine",
        regularization: float = 0.1,
        subtract_mean: bool = True,
        request: Request = "full",
        **common: Any,
    ) -> None:
        check_regularization(regularization)
        if regularization == 0:
            raise OptionError("regularization is 0", remedy="use a positive number")
        check_choice("request", request, REQUESTS)
        self.regularization, self.subtract_mean = regularization, subtract_mean
        self.request = request
        super().__init__(kernel=kernel, **common)
        if self.encoding != "counts" or self.bound != 1:
            raise OptionError(
                "recommendations are made from zeros and ones",
                remedy="leave out encoding and bound",
            )

    def _reset(self) -> None:
        super()._reset()
        self.asked_: dict[int, list[list[int]]] = {}
        self.judged_: list[int] = []
        self._wanted: dict[int, set[int]] = {}
        self._predicting = False

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        more = ("regularization", "subtract_mean", "request")
        return {**super().options(), **{name: getattr(self, name) for name in more}}

    def model(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the Gram matrix, packed, its items, and what belongs to them."""
        arrays, meta = super().model()
        return arrays, {**meta, "names": self._names}

    def privacy(self) -> dict[str, Any]:
        """Return what is seen by whom."""
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
        if self.request == "noisy":
            seen["server_sees"].append("which rows of the kernel a node asks for: what users like")
        seen["clients_see"].append("these products of items" + self._rows_only)
        seen["never_leaves_the_client"] += ["ratings", "recommendations"]
        return seen

    @property
    def _rows_only(self) -> str:
        return ", in the rows asked for" if self.request == "noisy" else ""

    def more_cohorts(self) -> list[list[int]]:
        """Sum the metrics over everybody, those who had no part in the kernel as well."""
        everybody = sorted(party.partition for party in self.parties_.values())
        return [] if self._members == [everybody] else [everybody]

    def progress(self) -> dict[str, Any]:
        """Return what else a checkpoint holds: whose metrics are in the means, who wants what."""
        asked = {str(partition): rounds for partition, rounds in self.asked_.items()}
        return {"judged": self.judged_, "asked": asked}

    def take_up(self, meta: Mapping[str, Any]) -> None:
        """Go on with what :meth:`progress` returned."""
        self.judged_ = meta["judged"]
        for partition, rounds in meta["asked"].items():
            for items in rounds:
                self._ask_for(int(partition), items)

    # -- what users do with the kernel

    def item_kernel(self) -> ItemKernel:
        """Return the kernel as users get it."""
        return ItemKernel.of_gram(
            self.gram_, self.items_, self.catalogue_, self.rows_, self.dot_kernel_
        )

    def after_round(self, grid: Grid, timeout: float) -> None:
        """Let users ask for rows of the kernel, if they do."""
        if self.request != "noisy":
            return
        if not self.asked_:
            logger.warning(_NOISY_WARNING)
        self.step += 1
        request = wire.AskRequest(session=self._session, round=self.step, items=self.items_)
        sections = self.sum_sections([])  # whoever answers must know the roster
        messages = request_messages(request, sections, group_id=str(self.step), sections=sections)
        node_of = {party.partition: node for node, party in self.parties_.items()}
        for partition, reply in self.ask_nodes(grid, messages, wire.AskReply, timeout).items():
            if are_positions(reply.wanted, len(self.items_)):
                self._ask_for(partition, self.items_[reply.wanted].tolist())
            else:
                failure = Failure("invalid reply", "it asks for rows that are not there")
                self.reject(node_of[partition], failure, self.step)

    def _ask_for(self, partition: int, items: list[int]) -> None:
        self.asked_.setdefault(partition, []).append(items)
        self._wanted.setdefault(partition, set()).update(items)

    @property
    def _most_users(self) -> int:
        return max(party.rows for party in self.parties_.values())

    def _kernel_fields(self, kernel: ItemKernel) -> dict[str, Any]:
        """Return the fields of a request that carry a kernel, all but its products."""
        return {
            "session": self._session,
            "request": self.request,
            "kernel": self.kernel,
            "degree": self.degree,
            "gamma": kernel.kernel.gamma,
            "coef0": self.coef0,
            "users": self.rows_,
            "regularization": self.regularization,
            "subtract_mean": self.subtract_mean,
            "rows": self._most_users,
            "self_masks": self.self_masks,
            "items": self.items_,
            "coefficients": np.array(self.coefficients),
            "mean": kernel.mean,
            "squares": compact(kernel.squares),
        }

    def use(self, grid: Grid, timeout: float) -> None:
        """Send the kernel; sum how good the recommendations are."""
        everybody = len(self._counted) - 1
        if self._stage == "used" or self._judged_before(everybody):
            return
        kernel = self.item_kernel()
        public, whole = self._kernel_fields(kernel), kernel.products

        def ask(cohort: int, there: set[int]) -> Iterable[tuple[PhaseMessage, set[int]]]:
            fields = {**public, "round": self.step}
            if self.request == "full":
                nothing = np.zeros(0, np.int32)
                yield wire.RecommendRequest(**fields, wanted=nothing, products=whole), there
                return
            for partition in there:
                rows = np.flatnonzero(np.isin(self.items_, list(self._wanted.get(partition, ()))))
                block = np.ascontiguousarray(packed_columns(whole, len(self.items_), rows).T)
                wanted = rows.astype(np.int32)
                yield (
                    wire.RecommendRequest(**fields, wanted=wanted, products=block.ravel()),
                    {partition},
                )

        sums = self.sum_over(
            grid,
            wire.RANKING_SUM,
            len(RANKING) + 1,
            {everybody: ranking_encoding(self._most_users)},
            ask,
            wire.RecommendReply,
            timeout,
            self_masks=self.self_masks,
            bound_to_request=self.request == "full",
        )
        self.judged_ = list(sums[everybody].survivors)
        total = self.total(sums[everybody])
        evaluated = round(total[-1])
        self.metrics_["evaluated_users"] = evaluated
        if evaluated:
            self.metrics_ |= {
                name: float(value) / evaluated for name, value in zip(RANKING, total, strict=False)
            }
        self._save("used")

    def _judged_before(self, cohort: int) -> bool:
        """Tell whether nodes had opened their metrics when the run broke off."""
        assert self.sums is not None
        members = self.sums.membership.cohorts[cohort]
        if len(set(members.members) - self.spent) >= members.threshold:
            return False
        logger.warning("the recommendations are not judged again: nodes have answered before")
        return True

    # -- recommendations with a kernel that was saved

    @property
    def _names(self) -> str:
        """Digest of the names of all items."""
        return next((party.columns for party in self.parties_.values()), "")

    def predict(
        self,
        grid: Grid,
        arrays: Mapping[str, NDArray[Any]],
        meta: Mapping[str, Any],
        *,
        timeout: float = 3600,
    ) -> None:
        """Have the nodes recommend to their present users with a kernel that was saved.

        Nothing is summed; the nodes write the recommendations. They may be others than those of the
        run that made the kernel, with the same items.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        arrays : mapping
            Arrays of the model, see :meth:`model`.
        meta : mapping
            What else belongs to the model.
        timeout : float (default: 3600)
            Seconds to wait for the replies of an exchange.

        Raises
        ------
        CheckpointError
            The model is not one of this method, of these options or of these items.
        TableError
            No node writes recommendations.
        CohortError, ProtocolError
        """
        self._check_kernel(arrays, meta)
        self._reset()
        self._load(arrays, meta)
        self._predicting, self.run_seed = True, int(meta["seed"])
        try:
            self.gather(grid, secure=True)  # nodes with pinned identities take part in no others
            if (self._names, self.catalogue_) != (meta["names"], meta["catalogue"]):
                raise CheckpointError(
                    "the nodes have another catalogue of items than the model",
                    remedy="bring the catalogue that the model was made with",
                )
            self._predict(grid, timeout)
        finally:
            with contextlib.suppress(FedKernError):
                self.finish_sums(grid, number=self.step + 1, timeout=timeout)

    def _check_kernel(self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
        self.check_model(meta)
        if any(meta.get(name) != getattr(self, name) for name in (*_USED, "kernel")):
            raise CheckpointError(
                "the kernel was made with other options", remedy="use FedCFK.of_model(meta)"
            )
        items = arrays.get("items", np.zeros(0)).size
        shapes = {"items": (items,), "gram": (items * (items + 1) // 2,)}
        check_model(self.method, arrays, meta, shapes)

    def _predict(self, grid: Grid, timeout: float) -> None:
        kernel = self.item_kernel()
        public, whole = self._kernel_fields(kernel), kernel.products
        node_of = {party.partition: node for node, party in self.parties_.items()}
        found: dict[int, Any] = {}
        for _ in range(self.attempts):
            self.step += 1
            request = wire.PredictRequest(
                **public, round=self.step, wanted=np.zeros(0, np.int32), products=whole
            )
            sections = self.sum_sections([])  # whoever answers must know the roster
            waiting = {node_of[p]: sections[node_of[p]] for p in node_of if p not in found}
            messages = request_messages(request, waiting, group_id=str(self.step), sections=waiting)
            found |= self.ask_nodes(grid, messages, wire.PredictReply, timeout)
            if len(found) == len(node_of):
                break
        else:
            silent = ", ".join(str(p) for p in node_of if p not in found)
            raise CohortError(
                f"partitions {silent} did not recommend, {self.attempts} times in a row",
                remedy="mend them and start again; the others have written theirs",
            )
        users = sum(reply.users for reply in found.values())
        if not users:
            raise TableError(
                "no node writes recommendations", remedy="name recommendations in --node-config"
            )
        self.metrics_ = {"items": len(self.items_), "users": users}

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> FedCFK:
        """Return a strategy with the options of a kernel that was saved.

        Raises
        ------
        CheckpointError
            It is not a model of this method.
        """
        cls.check_model(meta)
        if not {"names", *_USED} <= set(meta):
            raise CheckpointError(
                "the model says too little of itself", remedy="bring the file that the run saved"
            )
        made = super().of_model(meta, **{name: meta[name] for name in _USED}, **more)
        assert isinstance(made, FedCFK)
        return made


#: What recommendations depend on besides the kernel.
_USED = ("regularization", "subtract_mean")

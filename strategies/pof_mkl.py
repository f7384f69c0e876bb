"""POF-MKL: personalised online federated multi-kernel learning."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import (
    CheckpointError,
    CohortError,
    FedKernError,
    OptionError,
    ProtocolError,
    TableError,
)
from fedkern_flwr.exchange import read_reply, request_messages
from fedkern_flwr.model_file import check_model
from fedkern_flwr.online import Selection, Subset, check_choice, regret_bound, shared_subset
from fedkern_flwr.strategy import PLAIN_GRADIENTS, Arrays, at_least, logger, within
from fedkern_flwr.wire import online as wire

from .kernel_online import KernelOnlineStrategy
from .online import Floats

DEFAULT_KERNELS_PER_ROUND = 25
_FEW = 4  # clients whose sum hides them: sums of up to three samples have long been inverted
_NEGLIGIBLE = 1e-9
#: Options by which features and weights are made of a model.
_OF_MODELS = (
    "bandwidths",
    "features",
    "regularization",
    "precision",
    "frequency_draw",
    "step_size",
    "seed",
    "centre",
)


class POFMKL(KernelOnlineStrategy[wire.PersonalReply]):
    """Personalised online multi-kernel learning with few kernels per message.

    The server holds parameters theta_i for each of N kernels; every client keeps its own weights
    over the kernels. In a round a client predicts its next sample with all kernels, and sends the
    gradients of M of them, drawn by their weights.

    Parameters
    ----------
    kernels : int (default: 51)
        N, Gaussian kernels with bandwidths from 1e-2 to 1e2.
    kernels_per_round : int, optional
        M, kernels whose gradients a client sends. By default all N with secure sums and a private
        subset, which costs the same and leaves no kernel to few clients; else 25, or N if less.
    features : int (default: 20)
        D, random frequencies per kernel. The paper caps 2 M D at 1000 numbers.
    exploration : float (default: 1.0)
        xi in (0, 1]; with 1 all kernels are equally likely.
    selection : {"bins", "subset"}, optional
        How a client chooses its kernels: the bins of Algorithm 1, or exactly M kernels, each with
        a probability of its own. By default ``bins`` with the paper's step size, else ``subset``.
    subset : {"private", "shared"} (default: "private")
        ``shared``: all clients send the gradients of the same M kernels, drawn publicly each round.
        With secure sums a round then costs 2 M D numbers of a client instead of 2 N D.
    **common
        Options of ``KernelOnlineStrategy``: ``regularization``, ``step_size``,
        ``samples_per_round``, ``frequencies_per_round``, ``precision``, ``seed``, ...

    Attributes
    ----------
    theta_ : ndarray, shape (N, 2D)
        The learned parameters.

    Notes
    -----
    Without secure sums the server can compute a client's sample and label from its gradient. With
    them it sees sums over at least ``threshold`` clients, each of ``samples_per_round`` samples.

    References
    ----------
    Ghari and Shen, "Personalized Online Federated Learning with Multiple Kernels",
    NeurIPS 2022, Algorithms 1 and 2, eq. 6-10.
    """

    method = "pof-mkl"
    title = "POF-MKL"
    reply_class = wire.PersonalReply

    def __init__(
        self,
        *,
        kernels: int = 51,
        kernels_per_round: int | None = None,
        features: int = 20,
        exploration: float = 1.0,
        selection: Selection | None = None,
        subset: Subset = "private",
        **common: Any,
    ) -> None:
        super().__init__(kernels=kernels, features=features, **common)
        if kernels_per_round is not None:
            at_least("kernels_per_round", kernels_per_round, 1)
            if kernels_per_round > self.kernels:
                raise OptionError(
                    f"kernels_per_round is {kernels_per_round} but there are {self.kernels} "
                    "kernels",
                    remedy=f"use at most {self.kernels}",
                )
        own = subset == "private" and (kernels_per_round or self.kernels) < self.kernels
        if own and isinstance(self.frequencies_per_round, int):
            raise OptionError(
                "clients choose kernels of their own and frequencies_per_round is given",
                remedy="use subset='shared' or leave out kernels_per_round",
            )
        within("exploration", exploration, 0.0, 1.0, open_low=True)
        self._kernels_per_round, self.exploration = kernels_per_round, exploration
        if selection is None:
            selection = "bins" if self.step_size == "paper" else "subset"
        check_choice("selection", selection, ("bins", "subset"))
        check_choice("subset", subset, ("private", "shared"))
        self.selection: Selection = selection
        self.subset: Subset = subset
        self._chosen = np.arange(self.kernels, dtype=np.int32)  # the shared kernels of the round

    @property
    def kernels_per_round(self) -> int:
        """M, kernels whose gradients a client sends."""
        if self._kernels_per_round is not None:
            return self._kernels_per_round
        shared = self._is_secure or isinstance(self.frequencies_per_round, int)
        if shared and self.subset == "private":
            return self.kernels
        return min(DEFAULT_KERNELS_PER_ROUND, self.kernels)

    @property
    def lonely_kernels(self) -> float:
        """Chance that some kernel of a round is chosen by fewer than four clients.

        A secure sum over the clients is, for each kernel, a sum over those who chose it, and from
        sums of up to three clients the server can compute their samples.
        """
        everybody = self.subset == "shared" or self.kernels_per_round == self.kernels
        if self.sums is None or everybody:
            return 0.0
        survivors = self.sums.membership.cohorts[0].threshold
        share = self.exploration * self.kernels_per_round / self.kernels
        few = sum(
            math.comb(survivors, n) * share**n * (1.0 - share) ** (survivors - n)
            for n in range(min(_FEW, survivors))
        )
        return min(1.0, self.kernels * few)

    def initial_arrays(self, dimension: int) -> ArrayRecord:
        """Start from theta = 0; warn of what a private subset shows in spite of secure sums."""
        if self.lonely_kernels > _NEGLIGIBLE:
            logger.warning(
                "in a round a kernel may be chosen by fewer than %d clients (chance up to %.1g): "
                "their samples can be computed from its sum; leave out kernels_per_round or use "
                "subset='shared'",
                _FEW,
                self.lonely_kernels,
            )
        self._chosen = np.arange(self.kernels_per_round, dtype=np.int32)
        return super().initial_arrays(dimension)

    def in_question(self) -> NDArray[np.int32]:
        """Return the kernels of the round, all where clients choose their own."""
        return self._chosen if self.subset == "shared" else super().in_question()

    def _may_choose(self) -> bool:
        return self.subset == "shared" or self.kernels_per_round == self.kernels

    def _reset(self) -> None:
        super()._reset()
        self._predicting = False
        self._model: tuple[Arrays, dict[str, Any]] | None = None  # that predictions are made with

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        return {
            **super().options(),
            "kernels_per_round": self.kernels_per_round,
            "exploration": self.exploration,
            "selection": self.selection,
            "subset": self.subset,
        }

    def model(self) -> tuple[Arrays, dict[str, Any]]:
        """Return theta, and what a prediction needs to know; the weights stay with the clients."""
        if self._model is not None:
            return self._model
        arrays, meta = super().model()
        party = next(iter(self.parties_.values()), None)
        table = {
            "session": self._session,
            "columns": "" if party is None else party.columns,
            "dimension": 0 if party is None else party.features,
        }
        return arrays, {**meta, **table}

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees."""
        if self._predicting:
            return {
                "protocol": "predictions stay at the clients",
                "server_sees": [
                    "number of rows and columns per client, digest of the column names",
                    "how many rows each client predicted",
                ],
                "never_leaves_the_client": ["rows", "predictions", "weights over the kernels"],
            }
        if self._is_secure:
            seen = self.secure_privacy("gradients and statistics", "weights over the kernels")
            if self.lonely_kernels > _NEGLIGIBLE:
                chance = f"{self.lonely_kernels:.1g} a round"
                few = f"gradients of kernels that few clients chose (chance up to {chance})"
                seen["server_sees"].append(few)
            return seen
        return {
            "protocol": "plain",
            "server_sees": [
                *PLAIN_GRADIENTS,
                "which kernels a client chose, hence something of the order of its weights",
            ],
            "never_leaves_the_client": ["rows", "labels", "weights over the kernels"],
        }

    def request(self, stream: dict[str, Any]) -> wire.PersonalRequest:
        """Ask for the gradients of M kernels."""
        rule, rate = self.weight_rule()
        many = self.kernels_per_round
        if self.subset == "shared":
            self._chosen = shared_subset(self.kernels, many, self._run_seed, stream["round"])
        return wire.PersonalRequest(
            **stream,
            **self.kernel_fields(),
            kernels_per_round=many,
            selection="shared" if self.subset == "shared" else self.selection,
            exploration=self.exploration,
            weight_rule=rule,
            learning_rate=rate,
        )

    def final_metrics(self) -> dict[str, Any]:
        """Return the metrics; in paper mode also the largest share of Theorem 1's bound reached."""
        metrics = super().final_metrics()
        rule, rate = self.weight_rule()
        if rule == "exponential" and self._reports:
            metrics["regret_to_bound"] = max(
                report.regret
                / regret_bound(self.kernels, rate, report.total_samples, report.largest_loss)
                for report in self._reports.values()
                if isinstance(report, wire.KernelReport)
            )
        return metrics

    def reply_sizes(self) -> dict[str, int]:
        """Return the shape of the gradients, as far as it is known."""
        sizes = super().reply_sizes()
        if self._frequencies:
            return {**sizes, "named": 0}
        return {"width": sizes["width"]}

    def check_reply(self, reply: wire.PersonalReply, number: int) -> None:
        """Refuse kernels that do not exist, come twice or are too many."""
        super().check_reply(reply, number)
        if self._frequencies:
            return
        kernels = reply.kernels
        if len(kernels) != len(reply.gradient):
            raise ProtocolError(f"gradients of {len(reply.gradient)} kernels for {len(kernels)}")
        inside = not kernels.size or (kernels.min() >= 0 and kernels.max() < self.kernels)
        if not inside or np.unique(kernels).size < kernels.size:
            raise ProtocolError("its kernels do not exist or come twice")
        if kernels.size > self.kernels_per_round:
            raise ProtocolError(f"it sends {kernels.size} kernels, {self.kernels_per_round} asked")
        if self.subset == "shared" and not np.array_equal(kernels, self._chosen):
            raise ProtocolError("its kernels are not those of the round")

    def step(self, total: Floats, answers: int) -> ArrayRecord:
        """Equation 10: a step along the mean of the weighted gradients."""
        return self.move(self.spread(total))

    # -- predictions with a model that was saved

    def predict(
        self,
        grid: Grid,
        arrays: Mapping[str, NDArray[Any]],
        meta: Mapping[str, Any],
        *,
        timeout: float = 3600,
    ) -> None:
        """Have the clients predict their held-out rows with a model and weights of their own.

        A client uses the weights that it kept after its last round of the run that made the model,
        and writes the predictions; only how many there are is sent.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        arrays : mapping
            Arrays of the model, see :meth:`model`.
        meta : mapping
            What else belongs to the model.
        timeout : float (default: 3600)
            Seconds to wait for the replies.

        Raises
        ------
        CheckpointError
            The model is not one of this method or of these options.
        TableError
            The clients have other columns than the model, or no rows to predict.
        ProtocolError
            A client cannot predict its rows; the others have.
        CohortError
            Not all clients are there, or some did not answer.
        """
        self._check_model(arrays, meta)
        self._reset()
        self._predicting, self._model = True, (dict(arrays), dict(meta))
        self._samples, self._run_seed = int(meta["samples"]), int(meta["seed"])
        self._is_secure = bool(meta["secure"])
        self.theta_ = np.asarray(arrays["theta"], np.float64)
        self.gather(grid, secure=self._is_secure)  # clients of secure runs take part in no others
        try:
            self._predict(grid, str(meta["session"]), timeout)
        finally:
            with contextlib.suppress(FedKernError):
                self.finish_sums(grid, number=2, timeout=timeout)

    def _check_model(self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
        shapes = {"theta": (self.kernels, 2 * self.features), "bandwidths": (self.kernels,)}
        check_model(self.method, arrays, meta, shapes)
        own = KernelOnlineStrategy.options(self)
        if any(meta.get(name) != own[name] for name in _OF_MODELS if name != "seed"):
            raise CheckpointError(
                "the model was made with other options", remedy="use POFMKL.of_model(meta)"
            )

    def _predict(self, grid: Grid, session: str, timeout: float) -> None:
        party = next(iter(self.parties_.values()))
        assert self._model is not None
        meta = self._model[1]
        if (party.columns, party.features) != (meta["columns"], meta["dimension"]):
            raise TableError(
                "the clients have other columns than the model was learned from",
                remedy="bring the same columns in the same order",
            )
        rule, rate = self.weight_rule()
        request = wire.PredictRequest(
            session=self._session,
            round=1,
            step=0,
            samples=0,
            checkpoint_every=0,
            model=session,
            weight_rule=rule,
            learning_rate=rate,
            **{**self.kernel_fields(), "theta": self.theta_.astype(self.precision)},
        )
        nodes = self.active_nodes()
        sections = None if self.sums is None else self.sum_sections([])
        messages = request_messages(request, nodes, group_id="predict", sections=sections)
        outcome = self.run_phase(
            grid, messages, phase=request.phase, timeout=timeout, number=1, required=0
        )
        if outcome.failures:
            node, failure = min(outcome.failures.items())
            all_failed = len(outcome.failures)
            others = f" ({all_failed} clients in all)" if all_failed > 1 else ""
            _, _, text = failure.detail.partition(": ")
            if text:
                raise ProtocolError(f"{text}{others}")
            raise CohortError(
                f"{self.party(node)} did not predict: {failure}{others}",
                remedy="mend it and predict again",
            )
        samples = 0
        for message in self.in_order(outcome):
            where = self.party(message.metadata.src_node_id)
            samples += read_reply(wire.PredictReply, message, party=where).samples
        if not samples:
            raise TableError(
                "no client holds rows to predict",
                remedy="name test-data in the --node-config of those that shall predict",
            )
        self.metrics_ = {"predicted_rows": samples}

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> POFMKL:
        """Return a strategy with the options of a model that was saved.

        Raises
        ------
        CheckpointError
            It is not a model of this method.
        """
        check_model(cls.method, {}, meta, {})
        if not {*_OF_MODELS, "samples", "secure", "session", "columns", "dimension"} <= set(meta):
            raise CheckpointError(
                "the model says too little of itself", remedy="bring the file that the run saved"
            )
        return cls(**{name: meta[name] for name in _OF_MODELS if name != "centre"}, **more)

"""The client of the online methods: predicts its stream, learns its weights, sends gradients."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.checkpoint import pack_arrays, unpack_arrays, write_atomically, write_csv
from fedkern_flwr.errors import CheckpointError, ProtocolError, TableError
from fedkern_flwr.guard import counting, refusal
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.node.client import Client, answers
from fedkern_flwr.node.state import SessionState
from fedkern_flwr.node.sums import ClientSums
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import network, ridge
from fedkern_flwr.online.learning import Floats, check_rows
from fedkern_flwr.online.ridge import too_wide, wide_sum
from fedkern_flwr.tables import take_frame
from fedkern_flwr.wire import DescribeReply, DescribeRequest, columns_digest
from fedkern_flwr.wire.sums import Order

from . import pof_mkl_samples as samples
from . import pof_rls
from .pof_mkl_samples import Predictions, StreamAccount

logger = logging.getLogger("fedkern_flwr")

#: Besides its arrays, what predictions with a model depend on; a node compares it.
_OF_KERNELS = (
    "bandwidths",
    "features",
    "seed",
    "precision",
    "frequency_draw",
    "weight_rule",
    "learning_rate",
    "regularization",
)
_OF_RIDGES = (
    "experts",
    "kernels",
    "features",
    "seed",
    "forgetting",
    "centre",
    "raw",
    "summed",
    "shared",
)


_WEIGHTS = ".weights"  # ending of the file for predictions with a run's model


class OnlineKernelClient(Client):
    """Client of POF-MKL, POF-RLS, their baselines and PerFedAvg.

    The client reads its own stream row by row, predicts each row *before* it looks at the label,
    and learns. Its kernel weights are in ``Context.state`` and never leave the node.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context.
    x : array-like, shape (n, d)
        Rows in stream order, scaled by public statistics into the unit ball.
    y : array-like, shape (n,)
        Labels, scaled to [0, 1].
    x_test, y_test : array-like, optional
        Held-out rows: labelled for the evaluation after the last round, also unlabelled for
        predictions with a saved model.
    ids_test : sequence, optional
        Names of the held-out rows; default: numbers.
    columns : sequence of str, optional
        Names of the features; the server compares a digest.
    label_range : (float, float) (default: (0.0, 1.0))
        The labels 0 and 1 in original units, for predictions.
    predictions : path, optional
        CSV file for predictions of the held-out rows: row or id, output.
    keep_weights : bool (default: False)
        Whether ``state_dir`` keeps what later predictions need, after each round of POF-MKL and
        POF-RLS.
    state_dir : path, optional
        The node's folder for saved state; needed to resume, and to keep the weights.

    Raises
    ------
    TableError
        Rows and labels do not fit, or hold NaN or infinite values.

    References
    ----------
    Ghari and Shen, "Personalized Online Federated Learning with Multiple Kernels",
    NeurIPS 2022, Algorithms 1 and 2.
    """

    rounds_of: ClassVar[Mapping[str, str]] = {wire.UPDATE_SUM: "step"}
    adds_noise = True
    state_class = StreamAccount

    def is_counted(self, order: Order) -> bool:
        """Return False: sums of a round are counted separately."""
        return False

    def __init__(
        self,
        context: Context,
        x: ArrayLike,
        y: ArrayLike | None,
        *,
        x_test: ArrayLike | None = None,
        y_test: ArrayLike | None = None,
        ids_test: Sequence[Any] | NDArray[Any] | None = None,
        columns: tuple[str, ...] = (),
        label_range: tuple[float, float] = (0.0, 1.0),
        predictions: str | Path | None = None,
        keep_weights: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(context, **common)
        if y is None:
            raise TableError(
                "the table has no labels",
                remedy="name its label column",
                party=self.name,
                code="FK-LABELS-MISSING",
            )
        taken, self.columns = take_frame(x, columns, self.name)
        self.x, self.y = np.asarray(taken), np.asarray(y)
        self.x_test = self.x[:0]
        if x_test is not None:
            self.x_test = np.asarray(take_frame(x_test, self.columns, self.name)[0])
        self.y_test = self.y[:0] if y_test is None else np.asarray(y_test)
        self.ids_test, self.label_range = ids_test, label_range
        self.predictions = None if predictions is None else Path(predictions)
        self.keep_weights = keep_weights

    def own_rows(self) -> OwnRows:
        held = (self.x_test, self.y_test) if len(self.y_test) else (self.x_test,)
        return OwnRows([(self.x, self.y), held], learned=len(self.x))

    def describe(self, request: DescribeRequest) -> DescribeReply:
        check_rows(self.x, self.y, self.name)
        tests = self.y_test if len(self.y_test) else np.zeros(len(self.x_test))  # without labels
        check_rows(self.x_test, tests, self.name)
        if np.vecdot(self.x, self.x).max(initial=0.0) > 1.01 or np.ptp(self.y) > 1.01:
            logger.warning("rows outside the unit ball or labels wider than [0, 1]: scale them")
        return DescribeReply(
            rows=len(self.x),
            features=self.x.shape[1],
            test_rows=len(self.y_test),
            columns=columns_digest(self.columns),
            binary=0 if self.budget else self.binary,
        )

    @property
    def binary(self) -> int:
        return counting.binary_columns(self.x, self.y)

    # -- phases

    @answers(wire.PersonalRequest)
    def train_personal(self, request: wire.PersonalRequest) -> wire.PersonalReply:
        account, seen = self.kept.of(len(request.theta)), self._predict(request)
        followed = samples.learn_between(seen, request, account.squared)
        weights, losses, account.gap = samples.weigh_samples(request, account, followed.losses)
        chosen, probabilities = samples.choose_kernels(request, weights[0], self.partition)
        gradient = samples.chosen_gradients(seen, request, chosen, probabilities)
        samples.book(account, followed, losses, weights)
        kernels = chosen[:0] if request.released else chosen
        return wire.PersonalReply(kernels=kernels, gradient=gradient, **account.report())

    @answers(wire.SharedRequest)
    def train_shared(self, request: wire.SharedRequest) -> wire.SharedReply:
        return wire.SharedReply(**self._follow(request, request.weights))

    @answers(wire.DrawnRequest)
    def train_drawn(self, request: wire.DrawnRequest) -> wire.DrawnReply:
        weights = np.zeros(len(request.theta))
        weights[request.kernel] = 1.0
        return wire.DrawnReply(**self._follow(request, weights))

    def _follow(self, request: wire.KernelRequest, weights: Floats) -> dict[str, Any]:
        account, seen = self.kept.of(len(request.theta)), self._predict(request)
        sums, chosen = seen.losses.sum(axis=0), request.kernels_summed()
        likely = np.full(len(chosen), request.chance())
        gradient = samples.chosen_gradients(seen, request, chosen, likely)
        samples.book(account, seen, account.losses + sums, weights)
        return {"gradient": gradient, "losses": sums[: request.losses()], **account.report()}

    @answers(wire.RidgeRequest)
    def train_ridges(self, request: wire.RidgeRequest) -> wire.RidgeReply:
        # noise hides single rows anyway, and merging could move more rows than one
        least = 0 if self.budget else self.policy.min_sum_rows
        total = pof_rls.learn_samples(request, self.kept, self._rows, least)
        return wire.RidgeReply(total=total, **self.kept.report())

    @answers(wire.RidgeEvaluateRequest)
    def evaluate_ridges(self, request: wire.RidgeEvaluateRequest) -> wire.RidgeEvaluateReply:
        tests = self.x_test[: len(self.y_test)]
        outputs = pof_rls.predict_rows(request, self.kept, tests)
        return wire.RidgeEvaluateReply(**self._judged(outputs))

    @answers(wire.LocalRequest)
    def train_local(self, request: wire.LocalRequest) -> wire.LocalReply:
        if self.sums is not None:
            raise ProtocolError(
                "its errors are told in runs without secure sums",
                party=self.name,
                code="FK-ORDER-PLAIN",
            )
        account = self.kept.of(len(request.bandwidths) // 8)
        theta, errors, regrets = samples.learn_alone(
            request, account, *self._rows(request.step, request.samples)
        )
        many, weights = len(self.y_test), samples.weights_now(request, account)
        outputs = samples.predict_rows(request, theta, weights, self.x_test[:many])
        judged = np.array([*self._judged(outputs).values()], np.float64)
        tests, error = self.figures("held-out rows", np.arange(many), judged, alone=True)
        return wire.LocalReply(
            test_samples=int(tests),
            test_squared_error=float(error),
            squared_errors=errors,
            regrets=regrets,
            **account.report(),
        )

    @answers(wire.NetworkRequest)
    def train_network(self, request: wire.NetworkRequest) -> wire.NetworkReply:
        account, widths = self.kept.of(0), _widths(request)
        adapted = self._adapt(request, widths)
        x, y = self._rows(request.step, request.samples)
        inputs = network.project(x, widths[0], request.seed)
        predicted, gradient = network.squared_loss_gradient(adapted, widths, inputs, y)
        account.total += float(((predicted - y) ** 2).sum())
        account.samples += request.samples
        return wire.NetworkReply(gradient=gradient.astype(np.float32), **account.errors())

    @answers(wire.EvaluateRequest)
    def evaluate_kernels(self, request: wire.EvaluateRequest) -> wire.EvaluateReply:
        weights = request.weights
        if not weights.size:
            weights = samples.weights_now(request, self.kept.of(len(request.theta)))
        tests = self.x_test[: len(self.y_test)]
        outputs = samples.predict_rows(request, request.theta, weights, tests)
        return wire.EvaluateReply(**self._judged(outputs))

    @answers(wire.PredictRequest)
    def predict_kernels(self, request: wire.PredictRequest) -> wire.PredictReply:
        if len(self.x_test):
            account = self._read_kept(request).of(len(request.theta))
            weights = samples.weights_now(request, account)
            found = samples.predict_rows(request, request.theta, weights, self.x_test)
            self._write_outputs(found)
        return wire.PredictReply(samples=len(self.x_test))

    @answers(wire.RidgePredictRequest)
    def predict_ridges(self, request: wire.RidgePredictRequest) -> wire.RidgePredictReply:
        if len(self.x_test):
            account = self._read_kept(request)
            self._write_outputs(pof_rls.predict_rows(request, account, self.x_test))
        return wire.RidgePredictReply(samples=len(self.x_test))

    @answers(wire.NetworkEvaluateRequest)
    def evaluate_network(self, request: wire.NetworkEvaluateRequest) -> wire.NetworkEvaluateReply:
        widths = _widths(request)
        inputs = network.project(self.x_test[: len(self.y_test)], widths[0], request.seed)
        outputs = network.predict(self._adapt(request, widths), widths, inputs)
        return wire.NetworkEvaluateReply(**self._judged(outputs))

    # -- sums

    def answer(self, request: Any, method: Callable[[Any], Any]) -> Any:
        """Check the sums; in a secure run put the whole reply into one."""
        if getattr(request, "regularization", 0.0) < 0.0:
            raise refusal("a negative regularization", self.name, code="FK-MESSAGE-FIELD")
        if (sums := self.sums) is not None:
            self._check_sums(request, sums)
        summed = sums is not None and request.sum_name == wire.UPDATE_SUM
        if summed and self.budget is not None:
            reply: Any = self._add_noisy(request, method)
        else:
            if summed:
                self._count_rows(request)
            reply = method(request)
            if isinstance(reply, wire.EvaluateReply):
                reply = self._tell(reply)
            elif summed:
                reply = self._mask(reply)
        if self.keep_weights and type(request) in (wire.PersonalRequest, wire.RidgeRequest):
            self._keep_weights(request)
        return reply

    def _check_sums(self, request: wire.StreamRequest, sums: ClientSums) -> None:
        """Refuse sums that the request does not declare, or that noise would not hide."""
        specs = []
        if name := request.sum_name:
            if set(sums.orders) != {name}:  # else errors could reveal something about rows
                raise refusal(
                    "values of rows are asked for outside of their sum",
                    self.name,
                    code="FK-ORDER-PLAIN",
                )
            problem = request.noise_problem() if name == wire.UPDATE_SUM else ""
            if problem and self.budget is not None:
                raise refusal(f"privacy: {problem}", self.name, code="FK-ORDER-NOISE")
            cohort = sums.party.state.cohorts[sums.order(name).cohort]
            facts = wire.Facts(
                columns=self.x.shape[1],
                parties=len(cohort.members),
                threshold=cohort.threshold,
                budget=self.budget,
            )
            specs = request.sum_specs(facts)
        sums.check_all(specs)

    def _add_noisy(self, request: Any, learn: Callable[[Any], Any]) -> wire.NoisyReply:
        """Add a message's contribution to its sum, then learn locally.

        The contribution depends only on the message's rows and the request. What the client learns
        depends on all its samples: neither it nor an error in it, which a server may provoke, is
        sent, except in simulations.

        Raises
        ------
        RefusedError
        """
        vector = samples.message_sum(request, *self._rows(request.step, request.samples))
        self.secure_sums.contribute(wire.UPDATE_SUM, vector, release=str(request.round))
        told: dict[str, Any] = {"total_samples": 0, "total_squared_error": 0.0}
        told |= {"regret": 0.0, "largest_loss": 0.0}
        before = self.kept.twin()
        try:
            report = learn(request)
            self.state_class.unpack(self.kept.pack())
        except Exception:
            if self.simulated:
                raise
            self.kept = before
            logger.exception("nothing is learned from this message")
        else:
            if self.simulated:
                told = {name: getattr(report, name) for name in told}
        return wire.NoisyReply(**told)

    def _count_rows(self, request: Any) -> None:
        """Refuse to release more numbers about a round's rows than there are unknowns."""
        if request.chosen_alone and not request.released and self.count_mode == "refuse":
            raise counting.small_sum(
                "clients choose kernels of their own, and a kernel may be one client's", self.name
            )
        columns, (start, stop), last = self.x.shape[1], request.rows(), None
        if isinstance(request, wire.RidgeRequest) and start < request.step:
            raw = ridge.numbers(columns + 1) if request.raw else 0  # of the message's rows
            last = request.step, raw + wire.STATISTICS
        self.windows[wire.UPDATE_SUM] = start, stop, last
        self.note_window(start, stop)
        for width, first in request.products(columns):
            self._check_width(width, first, stop)

    def note_window(self, start: int, stop: int) -> None:
        """Note a message's samples, so that no run of this node sums few of them."""
        self.note_rows(wire.UPDATE_SUM, np.arange(start, min(stop, len(self.x))))

    def _check_width(self, width: int, start: int, stop: int) -> None:
        """Refuse products of more columns than half the hidden samples."""
        if self.sums is None or self.count_mode == "off":
            return
        order, hidden = self.sums.order(wire.UPDATE_SUM), stop - start
        if self.simulated or self._pinned:  # otherwise a server may have invented the other clients
            rows, hides = self.sums.hidden(order, 1.0, start=start, stop=stop)
            hidden = rows[self.partition] + hides.kept
        problem = too_wide(width, hidden)
        if problem and self.count_mode == "refuse":
            raise wide_sum(problem, self.name)
        if problem and not self.simulated:
            self.warn(problem)

    def forget(self, state: SessionState) -> bytes:
        """Log this node's prediction error if it is not sent to others."""
        if self.budget is not None and not self.simulated and state.kept:
            account = state.opened(self.state_class)
            error = account.total / max(1.0, account.samples)
            log = logging.getLogger("flwr")  # shown in a node's log
            log.info("own mean squared error, told to nobody: %.3g", error)
        return super().forget(state)

    def _mask(self, report: wire.StreamReport) -> wire.MaskedReply:
        """Add the reply to the sum, with the growth of the statistics since the last count."""
        order = self.secure_sums.order(wire.UPDATE_SUM)
        vector = np.zeros(order.length)
        try:
            report.add_to(vector[: -wire.STATISTICS])
        except (ValueError, IndexError):  # the request's fields contradict each other
            raise refusal("the length of a sum", self.name, code="FK-ORDER-TERMS") from None
        grown = self.kept.uncounted(report.statistics(), order.index, order.counted)
        vector[-wire.STATISTICS :] = grown
        self.secure_sums.contribute(wire.UPDATE_SUM, vector)
        return wire.MaskedReply()

    def _tell(self, reply: wire.EvaluateReply) -> wire.EvaluateReply | wire.MaskedReply:
        values = np.array([reply.samples, reply.squared_error], np.float64)
        rows = np.arange(len(self.y_test))
        total = "" if self.sums is None else wire.EVALUATE_SUM
        trained = self.kept.samples > 0
        vector = self.figures("held-out rows", rows, values, total=total, trained=trained)
        if self.sums is None:
            return replace(reply, samples=int(vector[0]), squared_error=float(vector[1]))
        self.sums.contribute(wire.EVALUATE_SUM, vector)
        return wire.MaskedReply()

    # -- pieces

    def _judged(self, outputs: Floats) -> dict[str, Any]:
        error = float(((outputs - self.y_test) ** 2).sum())
        return {"samples": len(self.y_test), "squared_error": error}

    def _rows(self, step: int, samples: int) -> tuple[NDArray[Any], NDArray[Any]]:
        if step < 0 or samples < 1 or step + samples > len(self.x):
            raise TableError(
                f"the stream has {len(self.x)} rows, the request needs row {step + samples}",
                remedy="ask for fewer rounds",
                party=self.name,
                code="FK-ROWS-FEW",
            )
        return self.x[step : step + samples], self.y[step : step + samples]

    def _predict(self, request: wire.KernelRequest) -> Predictions:
        x, y = self._rows(request.step, request.samples)
        z = samples.message_features(request, x.shape[1])(x)
        return samples.compare(z, request.theta, y - request.centre, request)

    def _adapt(self, request: wire.NetworkRequest, widths: tuple[int, ...]) -> Floats:
        """Take one inner step on the samples before ``request.step``, if any."""
        support = slice(max(0, request.step - request.samples), request.step)
        x, y = self.x[support], self.y[support]
        inputs = network.project(x, widths[0], request.seed)
        return network.adapt(request.parameters, widths, inputs, y, request.inner_step)

    # -- predictions after a run: the weights that a node kept, the file that it writes

    def _law(self, request: Any) -> str:
        """Return a digest of the public facts that determine a run's weights."""
        names = _OF_RIDGES if isinstance(request, wire.RidgeRequest) else _OF_KERNELS
        table = columns_digest(self.columns), self.x.shape[1]
        text = repr((*(getattr(request, name) for name in names), table))
        return hashlib.sha256(text.encode()).hexdigest()

    def _keep_weights(self, request: wire.PersonalRequest | wire.RidgeRequest) -> None:
        path, own = self.state_path(request.session, _WEIGHTS), self.kept.own
        if path is None:
            return
        if isinstance(request, wire.RidgeRequest):
            own = ridge.without_inverses(own)
        account = StreamAccount(self.kept.losses, gap=self.kept.gap, own=own)
        account.samples = self.kept.samples
        meta = {"law": self._law(request), "round": request.round}
        packed = np.frombuffer(account.pack(), np.uint8)
        write_atomically(path, pack_arrays({"account": packed}, meta), private=True)

    def _read_kept(self, request: wire.PredictRequest | wire.RidgePredictRequest) -> StreamAccount:
        """Return what this node kept of the model's run.

        Raises
        ------
        CheckpointError
            It is missing, or belongs to another model.
        """
        path = self.state_path(request.model, _WEIGHTS)
        if path is None or not path.is_file():
            raise CheckpointError(
                "this node kept no weights of the run that made the model",
                remedy="give it the state-dir that it had in that run, or leave out its test-data",
                party=self.name,
                code="FK-KEPT-NONE",
            )
        try:
            arrays, meta = unpack_arrays(path.read_bytes())
            account = StreamAccount.of_weights(arrays)
        except (CheckpointError, ProtocolError, KeyError):
            arrays, meta, account = {}, {}, StreamAccount()
        if meta.get("law") != self._law(request):
            raise CheckpointError(
                "the weights of this node belong to another model or other columns, or are damaged",
                remedy="name the model that the run saved, and bring back its columns",
                party=self.name,
                code="FK-KEPT-OTHER",
            )
        return account

    def _write_outputs(self, outputs: Floats) -> None:
        """Write predictions of the held-out rows in the label's units.

        Raises
        ------
        TableError
            No file is named, or a row has no name.
        """
        path, ids = self.predictions, self.ids_test
        if path is None:
            raise TableError(
                "there is nowhere to write the predictions",
                remedy="name predictions in --node-config",
                party=self.name,
                code="FK-PREDICT-NOWHERE",
            )
        if ids is not None and len(ids) != len(outputs):
            raise TableError(
                f"{len(ids)} ids for {len(outputs)} rows",
                remedy="give each row an id",
                party=self.name,
                code="FK-SHAPE-DIFFERS",
            )
        low, high = self.label_range
        names = range(len(outputs)) if ids is None else ids
        scaled = (outputs * (high - low) + low).tolist()
        heads = ("row" if ids is None else "id", "output")
        write_csv(path, [heads, *zip(names, map(repr, scaled), strict=True)])


def _widths(request: wire.NetworkRequest) -> tuple[int, ...]:
    """Return the widths of the layers; refuse them if the parameters do not fit."""
    whole = len(request.layers) // 4 * 4
    widths = tuple(int(width) for width in np.frombuffer(request.layers[:whole], "<i4"))
    fits = len(widths) > 1 and min(widths) > 0 and whole == len(request.layers)
    if not fits or network.count_parameters(widths) != request.parameters.size:
        raise ProtocolError(
            "the parameters are not those of the layers",
            remedy="run the same release on both sides",
            code="FK-MESSAGE-SHAPE",
        )
    return widths

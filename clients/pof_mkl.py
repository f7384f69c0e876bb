"""The client of the online methods: predicts its stream, learns its weights, sends gradients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.errors import ProtocolError, TableError
from fedkern_flwr.exchange import SumSpec
from fedkern_flwr.guard import counting, refusal
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.kernels.random_features import FeatureMap, Real
from fedkern_flwr.node.client import Client, answers
from fedkern_flwr.node.state import SessionState
from fedkern_flwr.node.sums import ClientSums
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import network
from fedkern_flwr.online.learning import Floats, check_rows
from fedkern_flwr.online.ridge_plan import too_wide, wide_sum
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.tables.arrow import take_frame
from fedkern_flwr.wire import DescribeReply, DescribeRequest, columns_digest
from fedkern_flwr.wire.sums import Order

from .pof_mkl_alone import learn_alone
from .pof_mkl_private import add_noisy, keep_weights, predict_later, private_sum
from .pof_mkl_samples import (
    Predictions,
    StreamAccount,
    book,
    choose_kernels,
    chosen_gradients,
    compare,
    learn_between,
    message_features,
    weigh_samples,
    weights_now,
)

logger = logging.getLogger("fedkern_flwr")

_CHUNK = 256  # rows predicted at once when there is no order to keep
_ENCODING = Encoding.fixed_point(wire.SUM_BOUND)
_JUDGING = (wire.EvaluateRequest, wire.RidgeEvaluateRequest, wire.NetworkEvaluateRequest)
_NOT_SUMMED = (wire.PredictRequest, wire.RidgePredictRequest, wire.LocalRequest)


class OnlineKernelClient(Client):
    """Client of POF-MKL, POF-RLS, their baselines and PerFedAvg.

    The client reads its own stream row by row, predicts each row *before* it looks at the label,
    and learns. Its weights over the kernels live in ``Context.state`` and never leave the node.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context.
    x : array-like, shape (n, d)
        Rows in the order of the stream, scaled by public statistics (rows in the unit ball).
    y : array-like, shape (n,)
        Labels, scaled to [0, 1].
    x_test, y_test : array-like, optional
        Held-out rows: with labels for the evaluation after the last round, with or without for
        predictions with a model that was saved.
    ids_test : sequence, optional
        Names of the held-out rows, by default their numbers.
    columns : sequence of str, optional
        Names of the features; the server compares a digest of them.
    label_range : (float, float) (default: (0.0, 1.0))
        The labels 0 and 1 in their own units, in which predictions are written.
    predictions : path, optional
        CSV file for predictions of the held-out rows: row or id, output.
    keep_weights : bool (default: False)
        Whether what predictions need is kept in ``state_dir`` after each round of POF-MKL and
        POF-RLS, for predictions with its model in a later run.
    state_dir : path, optional
        The node's own folder for saved state; needed to resume, and to keep the weights.

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
        """Tell that no sum is about the whole table: those of a round are counted by themselves."""
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

    def products(self, order: Order) -> int:
        """Return how many raw columns a message sums the products of; only POF-RLS does."""
        raw = isinstance(self._request, wire.RidgeRequest) and self._request.raw
        return self.x.shape[1] + 1 if raw and order.name == wire.UPDATE_SUM else 0

    def own_rows(self) -> OwnRows:
        """Return the rows of the table."""
        held = (self.x_test, self.y_test) if len(self.y_test) else (self.x_test,)
        return OwnRows([(self.x, self.y), held], learned=len(self.x))

    def describe(self, request: DescribeRequest) -> DescribeReply:
        """Tell partition, role and the size of the table."""
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
        """Columns of the stream, label included, with at most two values."""
        return counting.binary_columns(self.x, self.y)

    # -- phases

    @answers(wire.PersonalRequest)
    def train_personal(self, request: wire.PersonalRequest) -> wire.PersonalReply:
        """Algorithm 2 of POF-MKL on the client, for B samples."""
        account, seen = self.kept.of(len(request.theta)), self._predict(request)
        followed = learn_between(seen, request, account.squared)
        weights, losses, account.gap = weigh_samples(request, account, followed.losses)
        chosen, probabilities = choose_kernels(request, weights[0], self.partition)
        gradient = chosen_gradients(seen, request, chosen, probabilities)
        book(account, followed, losses, weights)
        kernels = chosen[:0] if request.released else chosen
        return wire.PersonalReply(kernels=kernels, gradient=gradient, **account.report())

    @answers(wire.SharedRequest)
    def train_shared(self, request: wire.SharedRequest) -> wire.SharedReply:
        """Predict with the server's weights, send the gradients of all kernels."""
        account, seen = self.kept.of(len(request.theta)), self._predict(request)
        sums = seen.losses.sum(axis=0)
        everything = np.arange(len(request.theta))
        gradient = chosen_gradients(seen, request, everything, np.ones(len(everything)))
        book(account, seen, account.losses + sums, request.weights)
        losses = sums if request.send_losses else sums[:0]
        return wire.SharedReply(gradient=gradient, losses=losses, **account.report())

    @answers(wire.DrawnRequest)
    def train_drawn(self, request: wire.DrawnRequest) -> wire.DrawnReply:
        """Predict with the kernel drawn by the server, send its gradient and all losses."""
        account, seen = self.kept.of(len(request.theta)), self._predict(request)
        sums = seen.losses.sum(axis=0)
        drawn, probability = np.array([request.kernel]), np.array([request.probability])
        gradient = chosen_gradients(seen, request, drawn, probability)
        weights = np.zeros(len(request.theta))
        weights[request.kernel] = 1.0
        book(account, seen, account.losses + sums, weights)
        return wire.DrawnReply(gradient=gradient, losses=sums, **account.report())

    @answers(wire.RidgeRequest)
    def train_ridges(self, request: wire.RidgeRequest) -> wire.RidgeReply:
        """POF-RLS: predict with a mixture of learners, send sums of products of features."""
        from .pof_rls import learn_samples

        # noise hides single rows anyway, and a merge could move more rows than one
        least = 0 if self.budget else self.policy.min_sum_rows
        total = learn_samples(request, self.kept, self._rows, least)
        return wire.RidgeReply(total=total, **self.kept.report())

    @answers(wire.RidgeEvaluateRequest)
    def evaluate_ridges(self, request: wire.RidgeEvaluateRequest) -> wire.RidgeEvaluateReply:
        """Predict the held-out rows with the mixture of learners as it is now."""
        from .pof_rls import predict_rows

        tests = len(self.y_test)
        outputs = predict_rows(request, self.kept, self.x_test[:tests])
        error = float(((outputs - self.y_test) ** 2).sum())
        return wire.RidgeEvaluateReply(samples=tests, squared_error=error)

    @answers(wire.LocalRequest)
    def train_local(self, request: wire.LocalRequest) -> wire.LocalReply:
        """Multi-kernel learning on this node alone, sample by sample."""
        return learn_alone(self, request)

    @answers(wire.NetworkRequest)
    def train_network(self, request: wire.NetworkRequest) -> wire.NetworkReply:
        """Adapt to the previous samples, predict, send the first-order meta-gradient."""
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
        """Predict the held-out rows; own weights unless the server gives weights."""
        weights = request.weights
        if not weights.size:
            weights = weights_now(request, self.kept.of(len(request.theta)))
        features = message_features(request, self.x_test.shape[1])
        error = self._test_error(features, request.theta, weights, request.centre)
        return wire.EvaluateReply(samples=len(self.y_test), squared_error=error)

    @answers(wire.PredictRequest)
    def predict_kernels(self, request: wire.PredictRequest) -> wire.PredictReply:
        """Predict the held-out rows with the weights kept of an earlier run, and write them."""
        return wire.PredictReply(samples=predict_later(self, request, self._table()))

    @answers(wire.RidgePredictRequest)
    def predict_ridges(self, request: wire.RidgePredictRequest) -> wire.RidgePredictReply:
        """Predict the held-out rows with the mixture kept of an earlier run, and write them."""
        return wire.RidgePredictReply(samples=predict_later(self, request, self._table()))

    @answers(wire.NetworkEvaluateRequest)
    def evaluate_network(self, request: wire.NetworkEvaluateRequest) -> wire.NetworkEvaluateReply:
        """Predict the held-out rows with the network adapted to the last samples."""
        widths = _widths(request)
        inputs = network.project(self.x_test[: len(self.y_test)], widths[0], request.seed)
        predicted = network.predict(self._adapt(request, widths), widths, inputs)
        error = float(((predicted - self.y_test) ** 2).sum())
        return wire.NetworkEvaluateReply(samples=len(self.y_test), squared_error=error)

    # -- sums

    def answer(self, request: Any, method: Callable[[Any], Any]) -> Any:
        """Check what is ordered; of a secure run put all that is told into a sum."""
        if getattr(request, "regularization", 0.0) < 0.0:
            raise refusal("a negative regularization", self.name, code="FK-MESSAGE-FIELD")
        if (sums := self.sums) is not None:
            if not isinstance(request, _NOT_SUMMED):  # what fails would tell of rows, for nothing
                due = wire.EVALUATE_SUM if isinstance(request, _JUDGING) else wire.UPDATE_SUM
                if set(sums.orders) != {due}:
                    raise refusal(
                        "values of rows are asked for outside of their sum",
                        self.name,
                        code="FK-ORDER-PLAIN",
                    )
            for name in tuple(sums.orders):
                masks: dict[str, Any] = {"self_masks": not request.whole, "everybody": True}
                spec = SumSpec(name=name, encoding=_ENCODING, **masks)
                if name == wire.UPDATE_SUM and self.budget is not None:
                    spec = private_sum(self, request, spec)
                sums.check(spec)
        if sums is not None and wire.UPDATE_SUM in sums.orders and self.budget is None:
            self._count_rows(request)
        private = self.budget is not None and sums is not None and wire.UPDATE_SUM in sums.orders
        reply = add_noisy(self, request, method) if private else method(request)
        if isinstance(reply, wire.EvaluateReply):
            reply = self._tell(reply)
        elif sums is not None and isinstance(reply, wire.StreamReport) and not private:
            reply = self._mask(reply, sums)
        if self.keep_weights and type(request) in (wire.PersonalRequest, wire.RidgeRequest):
            keep_weights(self, request, self.kept, self._table())
        return reply

    def _table(self) -> tuple[str, int]:
        """Return a digest of the columns, to know them again."""
        return columns_digest(self.columns), self.x.shape[1]

    def _count_rows(self, request: wire.StreamRequest) -> None:
        """Refuse to release more numbers of the rows of a round than there are unknowns."""
        chosen = (
            isinstance(request, wire.PersonalRequest)
            and request.selection != "shared"
            and request.kernels_per_round < len(request.theta)
            and not request.released
        )
        if chosen and self.count_mode == "refuse":
            raise counting.small_sum(
                "clients choose kernels of their own, and a kernel may be one client's", self.name
            )
        # an adaptation looks at the samples before as well, and sums of features may be of them
        start, stop = request.step, request.step + request.samples
        columns, last = self.x.shape[1] + 1, None
        if isinstance(request, wire.NetworkRequest):
            start = max(0, start - request.samples)
        elif isinstance(request, wire.RidgeRequest) and request.window < start:
            raw = columns * (columns + 3) // 2 if request.raw else 0  # of the message's own rows
            start, last = request.window, (start, raw + wire.STATISTICS)
        self.windows[wire.UPDATE_SUM] = start, stop, last
        self.note_window(start, stop)
        if isinstance(request, wire.RidgeRequest):
            from .pof_rls import products

            for width, first in products(request, columns):
                self._check_width(width, first, stop)

    def note_window(self, start: int, stop: int) -> None:
        """Note of which samples a message is, so that this node sums no few of them in any run."""
        self.note_rows(wire.UPDATE_SUM, np.arange(start, min(stop, len(self.x))))

    def _check_width(self, width: int, start: int, stop: int) -> None:
        """Refuse sums of products of more columns than half the hidden samples."""
        if self.sums is None or self.count_mode == "off":
            return
        order, hidden = self.sums.order(wire.UPDATE_SUM), stop - start
        if self.simulated or self._pinned:  # else a server may have invented the others
            rows, hides = self.sums.hidden(order, 1.0, start=start, stop=stop)
            hidden = rows[self.partition] + hides.kept
        problem = too_wide(width, hidden)
        if problem and self.count_mode == "refuse":
            raise wide_sum(problem, self.name)
        if problem and not self.simulated:
            self.warn(problem)

    def forget(self, state: SessionState) -> bytes:
        """Tell this node how well it has predicted, where nobody else is told."""
        if self.budget is not None and not self.simulated and state.kept:
            account = state.opened(self.state_class)
            error = account.total / max(1.0, account.samples)
            log = logging.getLogger("flwr")  # which a node's log shows
            log.info("own mean squared error, told to nobody: %.3g", error)
        return super().forget(state)

    def _mask(self, report: wire.StreamReport, sums: ClientSums) -> wire.MaskedReply:
        order = sums.order(wire.UPDATE_SUM)
        known = sum(a.size for a in (*self._request.arrays(), *report.arrays()))
        if order.length > known + wire.STATISTICS:  # parameters, gradients and losses of all
            raise refusal("the length of a sum", self.name, code="FK-ORDER-TERMS")
        vector = np.zeros(order.length)
        try:
            report.add_to(vector[: -wire.STATISTICS])
            vector[-wire.STATISTICS :] = np.zeros(wire.STATISTICS)
        except (ValueError, IndexError):
            raise refusal("the length of a sum", self.name, code="FK-ORDER-TERMS") from None
        grown = self.kept.uncounted(report.statistics(), order.index, order.counted)
        vector[-wire.STATISTICS :] = grown
        sums.contribute(wire.UPDATE_SUM, vector)
        return wire.MaskedReply()

    def _tell(self, reply: wire.EvaluateReply) -> wire.EvaluateReply | wire.MaskedReply:
        """Tell figures of held-out rows, if so many are enough."""
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

    def _test_error(
        self, features: FeatureMap, theta: Real, weights: Floats, centre: float
    ) -> float:
        """Squared error summed over the held-out rows, a chunk at a time."""
        error = 0.0
        for start in range(0, len(self.y_test), _CHUNK):
            rows = slice(start, start + _CHUNK)
            predicted = np.vecdot(features(self.x_test[rows]), theta) @ weights
            error += float(((predicted + centre - self.y_test[rows]) ** 2).sum())
        return error

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
        z = message_features(request, x.shape[1])(x)
        return compare(z, request.theta, y - request.centre, request)

    def _adapt(self, request: wire.NetworkRequest, widths: tuple[int, ...]) -> Floats:
        """One inner step on the samples before ``request.step``; none at the start."""
        support = slice(max(0, request.step - request.samples), request.step)
        x, y = self.x[support], self.y[support]
        inputs = network.project(x, widths[0], request.seed)
        return network.adapt(request.parameters, widths, inputs, y, request.inner_step)


def _widths(request: wire.NetworkRequest) -> tuple[int, ...]:
    """Return the widths of the layers; refuse what the parameters are not enough for."""
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

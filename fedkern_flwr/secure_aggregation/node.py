"""Secure aggregation of any ``ClientApp``: a mod that masks what the app returns.

The app trains as ever; its arrays and metrics, times its weight, leave the node under masks only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from ..errors import ProtocolError, RefusedError, TableError
from ..exchange import SumSpec
from ..flower_compat import copy_message
from ..guard import counting, refusal
from ..guard.rows import OwnRows
from ..node.client import Client, answers, logger
from ..node.failures import reported
from ..node.sums import ClientSums
from ..node_config import renew
from ..privacy import Budget
from ..secure_sum.membership import asked
from ..transport import CONFIG, PARAMETERS, reply_content
from ..wire import DescribeReply, DescribeRequest, columns_digest
from . import averages
from . import messages as wire
from .clipping import Clip, flatten

App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]
Examples = Callable[[Context], Any]
_Tables = tuple[NDArray[Any], ...]


def secure_aggregation_mod(
    examples: Examples,
    *,
    held_out: Examples | None = None,
    bound: float = averages.BOUND,
    weighted_by: str = averages.WEIGHT,
    clip: float | None = None,
    noise_multiplier: float | None = None,
    **common: Any,
) -> Mod:
    """Return a mod that has an app take part in secure aggregation; the first in its list.

    Its server runs a strategy with :class:`~fedkern_flwr.secure_aggregation.SecureAggregation`.
    A node that sums securely, as every deployed one does unless its policy says otherwise, answers
    no other server.

    Parameters
    ----------
    examples : callable
        Context -> what the node trains on: an array or several, with a row each per example. The
        guard counts them, the ledger knows them again; none leaves the node. Called once in a run,
        and before evaluations.
    held_out : callable, optional
        The same of the examples that the app evaluates on. Without it the node tells no metrics of
        evaluations.
    bound : float (default: 1024)
        Largest absolute value of an array or a metric that the app returns; that of the strategy.
        A node refuses to send more, and clips nothing.
    weighted_by : str (default: "num-examples")
        Metric that is the weight; that of the strategy. It is at most the number of examples of
        the node that has most.
    clip, noise_multiplier : float, optional
        Those of the strategy: the node clips its update and adds its share of the noise, and takes
        part in no run with another clip, less noise or none. By default it adds none.
    **common
        ``state_dir``, ``identity_key``, ``trusted_keys``, ``policy``: see
        :class:`~fedkern_flwr.clients.Client`.

    Raises
    ------
    OptionError
        The bound is none, or clip and noise are not.
    """
    averages.check_bound(bound)
    clipped = Clip.of(clip, noise_multiplier)

    def mod(message: Message, context: Context, app: App) -> Message:
        with reported(context):
            renew(context)
            client = AveragingClient(
                context,
                message,
                app,
                examples=examples,
                held_out=held_out,
                bound=bound,
                weighted_by=weighted_by,
                clip=clipped,
                **common,
            )
        return client.reply()

    return mod


class AveragingClient(Client):
    """A node whose answers are those of an app.

    Parameters
    ----------
    context : flwr.app.Context
    message : Message
        What came, with the records of the app beside ours.
    app : callable
        Answers the app's part of it.
    examples, held_out, bound, weighted_by
        See :func:`secure_aggregation_mod`.
    clip : Clip or None
        Clip and noise; None for a node that adds none.
    **common
        Options of :class:`~fedkern_flwr.clients.Client`.
    """

    freezes_apart = True
    labels_of_row = 0  # what is a label is the app's business
    #: Networks have more numbers than tables have unknowns: only a budget protects single rows.
    usual_counting = "warn"
    rounds_of: ClassVar[Mapping[str, str]] = {averages.TRAIN_SUM: "round"}

    def __init__(
        self,
        context: Context,
        message: Message,
        app: App,
        *,
        examples: Examples,
        held_out: Examples | None,
        bound: float,
        weighted_by: str,
        clip: Clip | None,
        **common: Any,
    ) -> None:
        super().__init__(context, **common)
        self.message, self.app = message, app
        self.examples, self.held_out = examples, held_out
        self.bound, self.weighted_by, self.clip = bound, weighted_by, clip
        self.adds_noise = clip is not None

    def open_budget(self, request: DescribeRequest) -> Budget | None:
        """Return what the run may cost; it must be one with noise where this node adds some.

        Raises
        ------
        RefusedError
        """
        declared = Budget.read(request.privacy)
        if (declared is None) != (self.clip is None) or (declared and declared.unit != "party"):
            raise refusal(
                "privacy: the run and the node differ in clip and noise",
                self.name,
                code="FK-ORDER-DECLARED",
            )
        return super().open_budget(request)

    def reply(self) -> Message:
        """Answer the message.

        Raises
        ------
        FedKernError
            What the server is told.
        """
        content = self.message.content
        config = content.get(CONFIG)
        if not isinstance(config, ConfigRecord) or "phase" not in config:
            if self.policy.require_secure_sums or self.clip is not None:
                with reported(self.context):
                    raise refusal(
                        "require_secure_sums: the run sums in plain",
                        self.name,
                        code="FK-POLICY-SECURE",
                    )
            return self.app(self.message, self.context)
        arrays, _, scalars = self.fit([], dict(config))  # type: ignore[arg-type]
        return Message(reply_content(arrays, scalars), reply_to=self.message)

    def describe(self, request: DescribeRequest) -> DescribeReply:
        """Tell how many examples there are, and of how many numbers each is."""
        learned, tests = self._tables(self.examples), self._tables(self.held_out)
        widths = [table.shape[1] for table in learned]
        return DescribeReply(
            rows=len(learned[0]) if learned else 0,
            features=sum(widths),
            test_rows=len(tests[0]) if tests else 0,
            columns=columns_digest(map(str, widths)),
            binary=counting.binary_columns(*learned),
        )

    def own_rows(self) -> OwnRows:
        """Return the examples, those held out last."""
        learned, tests = self._tables(self.examples), self._tables(self.held_out)
        parts = [part for part in (learned, tests) if part]
        return OwnRows(parts=parts, learned=len(learned[0]) if learned else 0)

    @answers(wire.AverageRequest)
    def train(self, request: wire.AverageRequest) -> wire.AverageReply:
        """Have the app train; contribute its arrays and metrics."""
        records = self._records()
        sent, name = averages.sent_arrays(records), averages.sum_name(records)
        if self.clip is not None:
            return self._train_clipped(request, sent, name, self.clip)
        sums, most = self._check(request, name, 0, averages.vector_length(sent))
        vector, layout = self._ask_app(sent, most)
        sums.contribute(name, vector, overwrite=True)
        return wire.AverageReply(round=request.round, layout=layout)

    def _train_clipped(
        self, request: wire.AverageRequest, sent: ArrayRecord, name: str, clip: Clip
    ) -> wire.AverageReply:
        """Have the app train; contribute how it moves the arrays, clipped, and noise."""
        sums, budget, before = self._sums_of(request, name), self.budget, flatten(sent)
        assert budget is not None
        cohort = sums.party.state.cohorts[sums.order(name).cohort]
        parties = len(cohort.members)
        release = clip.release(budget, len(before), parties, cohort.threshold)
        spec = SumSpec(
            name=name,
            encoding=clip.encoding(release, parties),
            length=len(before),
            self_masks=True,
            everybody=True,
            release=release,
        )
        sums.check(spec)
        with self._fitting():
            after = averages.returned_arrays(self._app_answer(), sent)
        question = asked(str(request.round), before)
        sums.contribute(name, clip.shorten(after - before), release=question)
        return wire.AverageReply(round=request.round, layout="")

    @answers(wire.FiguresRequest)
    def evaluate_app(self, request: wire.FiguresRequest) -> wire.FiguresReply:
        """Have the app evaluate; contribute its metrics, or zeros where none may be told."""
        name = averages.sum_name(self._records(), request.round)
        length = averages.vector_length(ArrayRecord())
        sums, most = self._check(request, name, 1, length)
        tests = sums.party.state.counts[self.partition][1]
        vector, layout = np.zeros(length), ""
        if tests:
            vector, layout = self._ask_app(ArrayRecord(), most)
            judged = name.partition("#")[2].encode()
            try:
                examples = np.arange(tests)
                vector = self.figures(
                    "held-out examples", examples, vector, total=name, judged=judged, once=False
                )
            except RefusedError as error:  # the run goes on without figures of this node
                logger.warning("%s", error)
                vector = np.zeros(length)
        sums.contribute(name, vector)
        return wire.FiguresReply(round=request.round, layout=layout)

    # -- pieces

    def _check(
        self, request: wire.AverageRequest, name: str, place: int, length: int
    ) -> tuple[ClientSums, int]:
        """Refuse a sum that is not that of this method; return the most examples of a node.

        ``place`` is 0 for those that are trained on, 1 for those held out.
        """
        sums = self._sums_of(request, name)
        state = sums.party.state
        members = state.cohorts[sums.order(name).cohort].members
        most = max(state.counts[member][place] for member in members)
        spec = SumSpec(
            name=name,
            encoding=averages.encoding(self.bound, most),
            length=length,
            self_masks=True,
            everybody=True,
        )
        sums.check(spec)
        return sums, most

    def _sums_of(self, request: wire.AverageRequest, name: str) -> ClientSums:
        """Return the sums of a request; refuse one that has not that of what the app is sent."""
        if self.sums is None:
            raise refusal("the run sums in plain", self.name, code="FK-ORDER-PLAIN")
        if request.weighted_by != self.weighted_by:
            raise refusal(
                f"the weight of the run is not {self.weighted_by!r}",
                self.name,
                code="FK-ORDER-DECLARED",
            )
        if name not in self.sums.orders:
            raise refusal(
                "the sum is over nodes that were sent something else",
                self.name,
                code="FK-STRATEGY-RECORDS",
            )
        return self.sums

    def _ask_app(self, sent: ArrayRecord, most: int) -> tuple[NDArray[np.float64], str]:
        """Return the vector of what the app answers, and the layout of its metrics."""
        with self._fitting():
            return averages.pack(self._app_answer(), sent, self.weighted_by, most)

    def _app_answer(self) -> RecordDict:
        """Have the app answer the message without our records."""
        message = copy_message(self.message)
        for name in (CONFIG, PARAMETERS):
            message.content.pop(name, None)
        answer = self.app(message, self.context)
        if answer.has_error():
            raise ProtocolError("its app answers with an error", code="FK-CLIENT-RAISED")
        return answer.content

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Name this node in what is said of an answer of its app that does not fit."""
        try:
            yield
        except ProtocolError as error:
            named = ProtocolError(
                error.problem, remedy=error.remedy, party=self.name, code=error.code
            )
            raise self.unfit(named) from None

    def _records(self) -> RecordDict:
        """Return the app's own records."""
        found = {n: r for n, r in self.message.content.items() if n not in (CONFIG, PARAMETERS)}
        return RecordDict(found)

    def _tables(self, load: Examples | None) -> _Tables:
        """Return what a function of the app's owner loads, as matrices of equal length."""
        found = () if load is None else load(self.context)
        tables = [np.asarray(t) for t in (found if isinstance(found, tuple | list) else (found,))]
        if any(table.ndim < 1 for table in tables) or len({len(table) for table in tables}) > 1:
            raise TableError(
                "the arrays of its examples have different lengths",
                remedy="return arrays with a row each per example",
                party=self.name,
                code="FK-SHAPE-DIFFERS",
            )
        return tuple(table.reshape(len(table), math.prod(table.shape[1:])) for table in tables)

"""Add secure aggregation to a ``ClientApp``: a mod that masks what the app returns."""

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
from ..failure import reported
from ..flower_compat import copy_message
from ..guard import counting, refusal
from ..guard.rows import OwnRows
from ..node.client import Client, answers, logger
from ..node.sums import ClientSums
from ..node_config import renew
from ..privacy import Budget
from ..secure_sum.membership import asked
from ..transport import CONFIG, PARAMETERS, reply_content
from ..wire import DescribeReply, DescribeRequest, columns_digest
from . import averages
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
    """Return a mod for secure aggregation; it must be the first in an app's list.

    The server runs a strategy with :class:`~fedkern_flwr.secure_aggregation.SecureAggregation`. A
    node that requires secure sums (the default of deployed nodes) answers no other server.

    Parameters
    ----------
    examples : callable
        Context -> training data: an array or several, one row per example. The guard counts the
        rows, and the ledger identifies them; none is sent. Called once in a run, and before
        evaluations.
    held_out : callable, optional
        The same for the examples of evaluations. Without it the node reports no evaluation metrics.
    bound : float (default: 1024)
        Largest absolute value of a returned array or metric, as in the strategy. A node refuses to
        send more, and clips nothing.
    weighted_by : str (default: "num-examples")
        Metric that is the weight, as in the strategy. At most the number of examples of the largest
        node.
    clip, noise_multiplier : float, optional
        As in the strategy: the node clips its update and adds its share of the noise. It refuses
        runs with another clip or less noise. Default: no noise.
    **common
        ``state_dir``, ``identity_key``, ``trusted_keys``, ``policy``: see
        :class:`~fedkern_flwr.clients.Client`.
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
    """Answer messages with the results of an app; parameters as :func:`secure_aggregation_mod`."""

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
        """Return the run's budget; refuse one that does not fit the node's clip and noise."""
        declared = Budget.read(request.privacy)
        if (declared is None) != (self.clip is None) or (declared and declared.unit != "party"):
            raise refusal(
                "privacy: the run and the node differ in clip and noise",
                self.name,
                code="FK-ORDER-DECLARED",
            )
        return super().open_budget(request)

    def reply(self) -> Message:
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
        """Describe the number of examples, and the length of each."""
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
        learned, tests = self._tables(self.examples), self._tables(self.held_out)
        parts = [part for part in (learned, tests) if part]
        return OwnRows(parts=parts, learned=len(learned[0]) if learned else 0)

    @answers(averages.AverageRequest)
    def train(self, request: averages.AverageRequest) -> averages.AverageReply:
        """Let the app train; contribute its arrays and metrics."""
        records = self._records()
        sent, name = averages.sent_arrays(records), averages.sum_name(records)
        if self.clip is not None:
            return self._train_clipped(request, sent, name, self.clip)
        sums, most = self._check(request, name, 0, averages.vector_length(sent))
        vector, layout = self._ask_app(sent, most)
        sums.contribute(name, vector, overwrite=True)
        return averages.AverageReply(round=request.round, layout=layout)

    def _train_clipped(
        self, request: averages.AverageRequest, sent: ArrayRecord, name: str, clip: Clip
    ) -> averages.AverageReply:
        """Let the app train; contribute its clipped update, and noise."""
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
        return averages.AverageReply(round=request.round, layout="")

    @answers(averages.FiguresRequest)
    def evaluate_app(self, request: averages.FiguresRequest) -> averages.FiguresReply:
        """Let the app evaluate; contribute its metrics, or zeros if they may not be reported."""
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
        return averages.FiguresReply(round=request.round, layout=layout)

    # -- pieces

    def _check(
        self, request: averages.AverageRequest, name: str, place: int, length: int
    ) -> tuple[ClientSums, int]:
        """Check a sum; return the number of examples of the largest node.

        ``place`` is 0 for training examples, 1 for held-out ones.
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

    def _sums_of(self, request: averages.AverageRequest, name: str) -> ClientSums:
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
        with self._fitting():
            return averages.pack(self._app_answer(), sent, self.weighted_by, most)

    def _app_answer(self) -> RecordDict:
        message = copy_message(self.message)
        for name in (CONFIG, PARAMETERS):
            message.content.pop(name, None)
        answer = self.app(message, self.context)
        if answer.has_error():
            raise ProtocolError("its app answers with an error", code="FK-CLIENT-RAISED")
        return answer.content

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        try:
            yield
        except ProtocolError as error:
            named = ProtocolError(
                error.problem, remedy=error.remedy, party=self.name, code=error.code
            )
            raise self.unfit(named) from None

    def _records(self) -> RecordDict:
        found = {n: r for n, r in self.message.content.items() if n not in (CONFIG, PARAMETERS)}
        return RecordDict(found)

    def _tables(self, load: Examples | None) -> _Tables:
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

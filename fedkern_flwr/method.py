"""Write a method of your own: a generator of rounds at the server, handlers at the clients.

>>> from fedkern_flwr.method import Method, MethodClient, Sum, contributes, option
>>> ROWS = Sum("rows", bound=1.0)  # what one row adds is at most 1
>>> class Mean(Method):
...     method, title = "mean", "Mean"
...     def rounds(self, parties):
...         width = parties[0].features
...         total = yield ROWS({"count": (), "sum": (width,)})
...         self.model_ = {"mean": total["sum"] / total["count"]}
...         return {"rows": int(total["count"].round())}
>>> class MeanClient(MethodClient):
...     @contributes(ROWS)
...     def add_rows(self):
...         return {"count": len(self.x), "sum": self.x.sum(axis=0)}

Secure sums, the node's checks, its policy and its ledger are on. See *Your own method* in the
documentation.
"""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from .errors import EngineError, FedKernError, OptionError
from .exchange import Answers, Ask, Deliver, LostState, Round, Rounds, Save, Steps, Sum, SumSpec
from .flower_compat import is_simulated
from .node.client import Client, answers
from .node.method_client import MethodClient, contributes
from .nodes import NODE_TIMEOUT, Arrays, Nodes, logger
from .options import (
    UnknownOptionError,
    at_least,
    declared,
    describe,
    option,
    removed_value,
    take_out,
    unknown_option,
)
from .planning import Allowance
from .privacy import Budget
from .privacy.accounting import check_accountant
from .privacy.budget import Releases
from .run import Run, RunRules
from .run_log import RunLog
from .secure_sum import SecureSum
from .transport import swift
from .watch import Ledger
from .wire import DescribeReply, check_parties

__all__ = [
    "Answers",
    "Ask",
    "Client",
    "Deliver",
    "LostState",
    "Method",
    "MethodClient",
    "PrivateMethod",
    "Round",
    "Rounds",
    "Save",
    "Steps",
    "Sum",
    "SumSpec",
    "answers",
    "contributes",
    "option",
]

Progress = Callable[[int, int, Mapping[str, float]], None]

#: Methods that keep a budget of privacy, for those who ask others for one.
KEEP_BUDGETS = (
    "fed-cg with basis fourier, hierarchical-svm with architecture centralised, pof-mkl, pof-rls, "
    "kernel-pca or summary"
)
#: Errors after which a run goes on from its checkpoint, whatever a node advises that knows of none.
_RESUMED = ("FK-STATE-GONE", "FK-SUM-KEY-NONE", "FK-MESSAGE-SESSION", "FK-PARTIES-LOST")


class Method(Strategy):
    """Base class of methods: a Flower ``Strategy`` with the generator :meth:`rounds`.

    Options are annotated attributes, ``components: int = option(2, "Components.", least=1)``, given
    by name.

    Parameters
    ----------
    seed : int, optional
        Seed of everything public and random. Default: ``train_config["seed"]``, else 0.
    min_clients : int (default: 1)
        Stop, with a checkpoint, if fewer clients answer a round.
    max_missed : int (default: 10)
        Exclude a client that misses this many rounds in a row.
    node_timeout : float (default: 120.0)
        Seconds to wait for nodes at the start, and for an absent one later.
    attempts : int (default: 5)
        Number of attempts if too few clients answer a request.
    checkpoint : path, optional
        File for checkpoints; none are written without it.
    checkpoint_every : int (default: 50)
        Rounds between checkpoints.
    resume : bool (default: False)
        Continue from the checkpoint.
    threshold : int, optional
        Secure sums: least number of clients in a sum, t (default: floor(2 K / 3) + 1). It also
        decides how many colluding clients could open another's vector, see
        :mod:`fedkern_flwr.secure_sum.membership`.
    min_cohort : int (default: 2)
        Secure sums: least number of clients in a sum, whatever the threshold.
    **common
        Options that the class declares.

    Raises
    ------
    OptionError
        An option is unknown or has an invalid value.

    Attributes
    ----------
    nodes : Nodes
        Nodes of the current run, with their costs, failures and sums.
    run_seed : int
        Seed of the current run.
    num_rounds : int
        Number of rounds given to ``start``; ignored by methods with a fixed number.
    model_ : dict
        Arrays of the model, set by :meth:`rounds`.
    history_ : list of dict
        Metrics per round.
    metrics_ : dict
        Metrics of the finished run.
    planned, saved_, saved_meta_, kept_, spent_
        See :class:`~fedkern_flwr.run.Program`.
    noise_ : Releases
        Releases with noise.
    notes_ : list of str
        Sizes that the last run planned within its nodes' shares, for ``result.json``.
    tables_ : dict
        Tables for display: name -> header and rows, all texts.
    details_ : dict
        More plain values for ``result.json``.
    is_secure, simulated : bool
        Whether the current run uses secure sums, and whether it is a simulation.
    initial_ : list of ndarray
        Initial arrays given to ``start``.
    stage : {"new", "running", "over", "failed"}
        Stage of the last run.
    order_seed : int
        Seed of the order in which clients announce rows, -1 for one per session.
    on_round : callable or None
        Called after each round with (rounds done, all rounds, metrics of the round).
    figures : path or None
        In deployments: file for Prometheus figures.
    """

    #: Its name on the command line, and its name in tables.
    method: ClassVar[str] = ""
    title: ClassVar[str] = ""
    #: Options of base classes that this method fixes.
    fixed: ClassVar[frozenset[str]] = frozenset()
    #: Default of ``num_rounds``, for methods that stop by themselves.
    default_rounds: ClassVar[int] = 1
    #: The client that belongs to it, or where it is: "package.module:Class".
    client: ClassVar[type[MethodClient] | str] = ""
    #: How its clients describe themselves.
    described: ClassVar[type[DescribeReply]] = DescribeReply
    #: Metrics that tables show: name -> what it is.
    shows: ClassVar[Mapping[str, str]] = {}
    #: What the server sees in addition to the sums, for ``result.json``.
    server_sees: ClassVar[tuple[str, ...]] = ()
    #: Why a method without noise keeps no budget of privacy; completes "fdskl ...".
    no_budget: ClassVar[str] = "adds no noise to what it releases"
    #: Whether a simulated run leaves a model that predicts rows in one place.
    left_whole: ClassVar[bool] = False

    #: Whether checkpoints are those of rounds that the clients confirm: a ``Save`` after each round
    #: is kept every ``checkpoint_every`` rounds and after the last of ``planned``, and written when
    #: all who take part have answered that round or a later one. They keep their states in the same
    #: rounds. What was answered after it is the method's to skip: it has no log of answers.
    confirmed: ClassVar[bool] = False
    #: Whether its clients open a sum of their rows once in a run, and remember that: a run that
    #: broke off while one was opened goes on without those who opened it, in ``spent_``.
    opens_once: ClassVar[bool] = False
    #: Whether a run that is resumed may open a sum again: what the clients add is the same each
    #: time, and what another set of them would show is said by the method.
    reopens: ClassVar[bool] = False
    #: Whether the progress is that of replies, ``planned`` in all: with few exchanges of many.
    counts_replies: ClassVar[bool] = False

    #: Sums about the same rows that share a budget of privacy; the client's class says the same.
    releases: ClassVar[int] = 1
    #: Unknowns of a row in addition to its columns.
    labels_of_row: ClassVar[int] = 1
    #: Whether a sum of two parties may belong to one of them.
    allow_single: bool = False
    #: Whether the method sums nothing: its clients have keys to seal messages for each other.
    relays_only: ClassVar[bool] = False
    #: Whether all sums of the method are over whole cohorts, without self masks.
    whole_cohorts: bool = False
    #: What a run may cost in privacy.
    budget: Budget | None = None

    def __init_subclass__(cls, **more: Any) -> None:
        """Write the declared options into the docstring."""
        super().__init_subclass__(**more)
        if any(hasattr(value, "__set_name__") for value in vars(cls).values()):
            text, own = (cls.__doc__ or cls.__name__).rstrip(), "    Parameters\n    ----------"
            found = "    " + describe(cls).replace("\n", "\n    ")
            cls.__doc__ = text.replace(own, found) if own in text else f"{text}\n\n{found}"

    def __new__(cls, *unnamed: Any, **options: Any) -> Self:
        if unnamed:
            raise UnknownOptionError(
                f"{cls.__name__} takes options by name only", code="FK-OPTION-NAME"
            )
        return super().__new__(cls)

    def __init__(
        self,
        *,
        seed: int | None = None,
        min_clients: int = 1,
        max_missed: int = 10,
        node_timeout: float = NODE_TIMEOUT,
        attempts: int = 5,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 50,
        resume: bool = False,
        threshold: int | None = None,
        min_cohort: int = 2,
        **common: Any,
    ) -> None:
        at_least("attempts", attempts, 1)
        at_least("checkpoint_every", checkpoint_every, 1)
        known = declared(type(self))
        common = take_out(self.method, common, known=known, values=False)
        for name, found in known.items():
            value = common.pop(name, found.default)
            try:
                setattr(self, name, found.check(value))
            except OptionError as error:
                raise removed_value(name, value) or error from None
        for name in common:
            if name.startswith("privacy_"):
                raise OptionError(
                    f"{self.method} {self.no_budget}, so it keeps no privacy_epsilon",
                    remedy=f"leave it out, or take {KEEP_BUDGETS}",
                    code="FK-BUDGET-METHOD",
                )
            raise unknown_option(type(self), name)
        if resume and checkpoint is None:
            raise OptionError("resume without a checkpoint", code="FK-OPTION-PARTNER")
        self.seed, self.attempts, self.threshold = seed, attempts, threshold
        self.min_clients, self.max_missed = min_clients, max_missed
        self.node_timeout, self.min_cohort = node_timeout, min_cohort
        self.checkpoint = Path(checkpoint) if checkpoint is not None else None
        self.checkpoint_every, self.resume = checkpoint_every, resume
        self.on_round: Progress | None = None
        self.figures: str | Path | None = None
        self._reset()

    def fill_in(self, **defaults: Any) -> None:
        """Set options that are None."""
        for name, value in defaults.items():
            if getattr(self, name) is None:
                setattr(self, name, value)

    def _reset(self) -> None:
        self.nodes = Nodes(
            self.method,
            min_clients=self.min_clients,
            max_missed=self.max_missed,
            node_timeout=self.node_timeout,
            min_cohort=self.min_cohort,
        )
        self.nodes.keeps = self.checkpoint is not None
        self.stage: Literal["new", "running", "over", "failed"] = "new"
        self.run_seed, self.num_rounds, self.order_seed = 0, 1, -1
        self.is_secure, self.simulated, self.planned = True, False, 1
        self.initial_: list[NDArray[Any]] = []
        self.history_: list[dict[str, Any]] = []
        self.metrics_: dict[str, Any] = {}
        self.model_: Arrays = {}
        self.saved_: Arrays = {}
        self.saved_meta_: dict[str, Any] = {}
        self.kept_: int | None = None
        self.spent_: set[int] = set()
        self.noise_ = Releases()
        self.notes_: list[str] = []
        self.tables_: dict[str, list[list[str]]] = {}
        self.details_: dict[str, Any] = {}

    # -- what a method adds

    @abstractmethod
    def rounds(self, parties: Sequence[DescribeReply]) -> Rounds:
        """Yield steps, receive their results, return the metrics.

        Parameters
        ----------
        parties : sequence of DescribeReply
            The clients by partition: ``rows``, ``features``, ``test_rows``.

        Yields
        ------
        Sum, Ask, Deliver, Save or Round
            See :mod:`fedkern_flwr.exchange`.
        """

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model; a checkpoint must have the same."""
        own = {n: getattr(self, n) for n, found in declared(type(self)).items() if found.of_model}
        seed = {} if "seed" in self.fixed else {"seed": self.run_seed}
        return {"method": self.method, **own, **seed}

    def takes_sums(self, grid: Grid) -> bool:
        """Return whether a run uses secure sums. Default: always."""
        return True

    def cohorts(self) -> list[list[int]] | None:
        """Return the sets of partitions that sum; None for one of all, [] for no sums.

        Sums of the same values over two sets that differ by one party reveal that party's values.
        """
        return None

    def thresholds(self, cohorts: int) -> list[int | None]:
        """Return the threshold of each cohort, None for the default."""
        return [self.threshold] * cohorts

    def check_parties(self, parties: Sequence[Any]) -> None:
        """Refuse parties that do not fit together."""
        check_parties(parties)

    def check_answer(self, partition: int, answer: Any) -> None:
        """Refuse a reply that is well-formed but wrong; raise ProtocolError."""

    def unknowns(self, name: str, cohort: int = 0) -> float:
        """Return the number of unknowns in a sum over a cohort."""
        return self.nodes.unknowns(name, cohort, labels=self.labels_of_row)

    # -- the run at hand

    @property
    def parties_(self) -> dict[int, Any]:
        """Node id -> description, by partition."""
        return self.nodes.parties

    @property
    def ledger_(self) -> Ledger:
        """Exchanges, bytes, seconds and failures of the last run."""
        return self.nodes.ledger

    @property
    def left_out_(self) -> list[int]:
        """Partitions excluded for missing too many rounds."""
        return self.nodes.left_out

    @property
    def sums(self) -> SecureSum | None:
        """The secure sums of the current run."""
        return self.nodes.sums

    @property
    def session(self) -> str:
        """Name of the run."""
        return self.nodes.session

    def check_count(self, problem: str) -> None:
        """Stop, or warn, if a sum would break a node's release limit."""
        self.nodes.check_count(problem)

    def note_plan(self, what: str, allowed: Allowance) -> None:
        """Note and log the planned default sizes."""
        self.notes_.append(
            f"{what}; at most {math.floor(allowed.numbers):,} numbers, "
            f"{allowed.share:.2g} of what the nodes' rows hide"
        )
        logger.info(self.notes_[-1])

    def summary(self) -> None:
        """Log the configuration."""
        for name, value in self.options().items():
            logger.info("%s: %s", name, value)

    # -- what came of it

    def result(self) -> dict[str, Any]:
        """Return the result of the last run as plain values: figures, costs, who saw what."""
        ledger = self.ledger_
        found = {
            "method": self.method,
            "metrics": dict(self.metrics_),
            "history": list(self.history_),
            "exchanges": ledger.exchanges,
            "bytes_up": ledger.bytes_up,
            "bytes_down": ledger.bytes_down,
            "seconds": ledger.seconds,
            "survivors": len(self.nodes.active()),
            "failures": ledger.failures,
            "privacy": self.privacy(),
        }
        more = {"matched": self.matched(), "notes": self.notes_}
        more |= {"tables": self.tables_, "details": self.details_}
        return found | {name: value for name, value in more.items() if value}

    def matched(self) -> dict[str, Any]:
        """Return the matched rows of each party, if the method matches rows."""
        return {}

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees: sums, sizes of tables, and :attr:`server_sees`."""
        sums = self.sums_privacy()
        names = [entry["name"] for entry in sums["sums"]]
        return {
            **sums,
            "server_sees": [
                *(f"the sum over the clients: {name}" for name in names),
                "number of rows, held-out rows and columns per client, digest of the column names, "
                "how much a run should open",
                "which clients contributed to which sum",
                *self.server_sees,
            ],
            "never_leaves_the_client": ["rows", "labels", "own terms of the sums"],
        }

    def sums_privacy(self) -> dict[str, Any]:
        """Return the parameters of the secure sums of the last run, and their releases."""
        sums = self.nodes.released(self.unknowns)
        return {**self.nodes.privacy(whole_cohorts=self.whole_cohorts), "sums": sums}

    def model(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the model of the last run as arrays and a JSON object.

        Raises
        ------
        OptionError
            There was no run, or it failed.
        """
        self.check_run()
        return self.learned()

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the result of :meth:`model`, also during a run."""
        first = next(iter(self.parties_.values()), None)
        table = {
            "columns": "" if first is None else first.columns,
            "dimension": 0 if first is None else first.features,
        }
        return dict(self.model_), {**self.options(), "session": self.session, **table}

    def fitted(self, classes: Sequence[Any] = ()) -> Any:
        """Return a model that predicts rows here, if the server has all of it.

        Parameters
        ----------
        classes : sequence (default: ())
            Names of the classes at the nodes, ascending. Default: 0, 1, ...

        Returns
        -------
        ~fedkern_flwr.fitted.FittedModel
            A model of features and labels as nodes have them.

        Raises
        ------
        OptionError
            Parts of it stay with the parties, or there was no run.
        """
        ways = ["predict_at_nodes(grid, ...)"] * hasattr(self, "predict_at_nodes")
        ways += ["load_model of the folder of a simulated run"] * self.left_whole
        raise OptionError(
            f"parts of a model of {self.method} stay with the parties, the server cannot predict",
            remedy=f"use {', or '.join(ways)}" if ways else "see docs/predict.md for what nodes do",
            code="FK-MODEL-PARTS",
        )

    def predict(self, rows: Any) -> NDArray[Any]:
        """Return the class or the number of each row, see :meth:`fitted`."""
        return np.asarray(self.fitted().predict(rows))

    def predict_proba(self, rows: Any) -> NDArray[np.float64]:
        """Return the probability of each class, see :meth:`fitted`."""
        return np.asarray(self.fitted().predict_proba(rows))

    def check_run(self) -> None:
        """Raise OptionError if there was no run, or it failed."""
        if self.stage == "failed":
            raise OptionError(
                f"the last run of {self.method} failed and left no model", code="FK-MODEL-FAILED"
            )
        if self.stage == "new":
            raise OptionError(f"there is no model of {self.method} yet", code="FK-MODEL-NONE")

    # -- Flower's interface

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the method.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        initial_arrays : ArrayRecord, optional
            For methods that start from a model.
        num_rounds : int, optional
            Number of rounds, if the method does not fix it. Default: ``default_rounds``.
        timeout : float (default: 3600)
            Seconds to wait for the replies of one exchange.
        train_config : ConfigRecord, optional
            ``seed`` is the run's seed if the method has none.
        evaluate_config : ConfigRecord, optional
            Not used.
        evaluate_fn : callable, optional
            Evaluation on the server, called with the arrays of the model after the run; by methods
            that report rounds also before the first and after some.

        Raises
        ------
        FedKernError
            The run cannot start or continue. A checkpoint stays.
        """
        most = self.default_rounds if num_rounds is None else num_rounds
        at_least("num_rounds", most, 1)
        self.begin(train_config)
        self.num_rounds = most
        self.initial_ = [] if initial_arrays is None else initial_arrays.to_numpy_ndarrays()
        result = Result()
        arrays: Sequence[NDArray[Any]] = ()  # of the last round

        def tell(step: Round) -> Mapping[str, Any]:
            nonlocal arrays
            if step.metrics:
                self.history_.append({"round": step.number, **step.metrics})
                enter(step.number, self.history_[-1])
            if step.arrays is not None:
                arrays = step.arrays
                if evaluate_fn is not None:
                    judge(step.number, ArrayRecord(list(arrays)))
            return self.history_[-1] if step.metrics else {}

        def enter(number: int, row: Mapping[str, Any]) -> None:
            result.train_metrics_clientapp[number] = _numbers(row)
            if tests := _tests(row):
                result.evaluate_metrics_clientapp[number] = tests

        def judge(number: int, record: ArrayRecord) -> None:
            if evaluate_fn is not None and (metrics := evaluate_fn(number, record)) is not None:
                result.evaluate_metrics_serverapp[number] = metrics

        self.conduct(grid, self.rounds, tell, timeout=timeout)
        result.arrays = ArrayRecord(list(arrays))
        last = max([1, *result.train_metrics_clientapp])
        if not self.history_:
            enter(last, self.metrics_)
        elif tests := _tests(self.metrics_):
            result.evaluate_metrics_clientapp[last] = tests
        if self.model_:
            result.arrays = ArrayRecord({n: Array(np.asarray(a)) for n, a in self.model_.items()})
            judge(last, result.arrays)
        return result

    def begin(self, config: ConfigRecord | None = None) -> None:
        """Forget the last run; set the seed of the next."""
        self._reset()
        self.stage = "failed"  # until it goes on
        seed = 0 if config is None else config.get("seed", 0)
        self.run_seed = self.seed if self.seed is not None else int(seed)  # type: ignore[arg-type]

    def conduct(
        self,
        grid: Grid,
        rounds: Callable[[Sequence[Any]], Rounds],
        tell: Callable[[Round], Mapping[str, Any]] = lambda step: {},
        *,
        timeout: float,
    ) -> None:
        """Collect the parties, run a generator's steps, and let all parties erase their secrets."""
        self.is_secure = secure = self.takes_sums(grid)
        self.simulated, grid, nodes = is_simulated(grid), swift(grid), self.nodes
        self.summary()
        rules = RunRules.of(self)
        log = RunLog(self, rules, nodes)
        restored = log.restore()
        nodes.gather(
            grid,
            reply=self.described,
            check=self.check_parties,
            figures=self.figures,
            resume_round=log.round_of(restored),
            secure=secure,
            order_seed=self.order_seed,
            privacy="" if self.budget is None else self.budget.write(),
        )
        cohorts = self.cohorts() if secure else []
        if cohorts != []:
            nodes.begin_sums(
                cohorts,
                self.thresholds(1 if cohorts is None else len(cohorts)),
                allow_single=self.allow_single,
                relays_only=self.relays_only,
            )
        if self.counts_replies:
            nodes.listener = self._show_replies()
        run = Run(self, rules, nodes, grid, timeout, log, self.noise_, tell, self.on_round)
        self.stage = "running"
        try:
            if restored:
                log.take_up(*restored)
            self.metrics_ = run.drive(rounds(list(self.parties_.values())))
        except BaseException as error:
            self.stage = "failed"
            if isinstance(error, FedKernError) and not isinstance(error, EngineError):
                goes_on = self.budget is not None and nodes.resumable
                self._part(run, secure, goes_on=goes_on)
                raise self._resumed(error) from error.__cause__
            raise  # after an error of the engine nobody can be reached any more
        else:
            self.stage = "over"
            self._part(run, secure and not run.over)
        finally:
            if nodes.watch is not None:
                nodes.watch.close()

    def _show_replies(self) -> Callable[[int, Message], None]:
        seen = 0

        def show(node: int, message: Message) -> None:
            nonlocal seen
            seen += 1
            if self.on_round is not None:
                self.on_round(seen, max(seen, self.planned), {})

        return show

    def _part(self, run: Run, secure: bool, *, goes_on: bool = False) -> None:
        if secure:
            with contextlib.suppress(FedKernError):
                number = run.log.number + 1
                self.nodes.finish(run.grid, number=number, timeout=run.timeout, goes_on=goes_on)

    def _resumed(self, error: FedKernError) -> FedKernError:
        """Return the error with which a run ends; its remedy is to resume if a checkpoint helps."""
        if not self.nodes.resumable or error.code not in _RESUMED or "resume" in str(error):
            return error
        return type(error)(
            error.problem.partition("; ")[0],  # a node advises behind that to start again
            remedy="mend it and resume from the checkpoint",
            party=error.party,
            phase=error.phase,
            code=error.code,
        )

    # -- checkpoints

    def progress(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return {"history": list(self.history_), "releases": self.noise_.reports()}

    def go_on(self, progress: Mapping[str, Any]) -> None:
        """Restore an interrupted run, before the nodes are collected."""
        self.history_ = progress["history"]
        self.noise_.go_on(progress.get("releases", {}))

    # -- Flower's rounds of training and evaluation: start() does not come here

    def configure_train(self, *args: Any, **options: Any) -> Iterable[Message]:
        """Return no messages: :meth:`rounds` yields an ``Ask`` or a ``Sum`` instead.

        :meth:`fedkern_flwr.run.Run.ask` makes the messages, :meth:`fedkern_flwr.nodes.Nodes.ask`
        sends them.
        """
        return []

    def aggregate_train(
        self, *args: Any, **options: Any
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return nothing: :meth:`rounds` receives totals or replies from its ``yield``.

        Replies are added under masks as they arrive (:meth:`fedkern_flwr.nodes.Nodes.on_reply`),
        and the sum is opened when enough are in. :meth:`start` copies ``model_`` to
        ``Result.arrays``.
        """
        return None, None

    def configure_evaluate(self, *args: Any, **options: Any) -> Iterable[Message]:
        """Return no messages: a step of :meth:`rounds` evaluates held-out rows.

        This is a ``Sum`` with ``held_out=True``, or a message with a handler that calls
        ``figures``.
        """
        return []

    def aggregate_evaluate(self, *args: Any, **options: Any) -> MetricRecord | None:
        """Return nothing: :meth:`rounds` returns or yields the figures of held-out rows.

        :meth:`start` copies figures named ``test_...`` to ``Result.evaluate_metrics_clientapp``.
        """
        return None


class PrivateMethod(Method):
    """A method with sums that may have noise, so that a run keeps a privacy ``budget``."""

    privacy_epsilon: float | None = option(
        None,
        "Add noise so that the run costs at most this epsilon.",
        above=0.0,
    )
    privacy_delta: float = option(
        1e-5, "Delta of the budget: far less than one over the rows.", above=0.0, below=1.0
    )
    privacy_unit: Literal["row", "party"] = option(
        "row", "Unit of epsilon: one record, or all records of a party."
    )
    privacy_colluders: int = option(
        1,
        "Parties that may collude: the others add more noise.",
        least=0,
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.privacy_epsilon is not None:
            self.budget = Budget(
                self.privacy_epsilon,
                self.privacy_delta,
                self.privacy_unit,
                self.privacy_colluders,
            )
            check_accountant()

    def budget_report(self) -> dict[str, Any]:
        """Return the budget, the releases and their cost, for ``privacy()``."""
        if self.budget is None:
            return {}
        return {"budget": {**vars(self.budget), "releases": [*self.noise_.reports().values()]}}

    def privacy(self) -> dict[str, Any]:
        return {**super().privacy(), **self.budget_report()}


def _tests(row: Mapping[str, Any]) -> MetricRecord:
    return _numbers({name: value for name, value in row.items() if name.startswith("test_")})


def _numbers(row: Mapping[str, Any]) -> MetricRecord:
    return MetricRecord({k: v for k, v in row.items() if isinstance(v, (int, float))})

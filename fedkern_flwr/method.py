"""Write a method of your own: a generator of rounds at the server, handlers at the clients.

>>> from fedkern_flwr.method import Method, MethodClient, Sum, contributes, option
>>> class Mean(Method):
...     method, title = "mean", "Mean"
...     def rounds(self, parties):
...         width = parties[0].features
...         total = yield Sum("rows", {"count": (), "sum": (width,)}, bound=1.0)
...         self.model_ = {"mean": total["sum"] / total["count"]}
...         return {"rows": int(total["count"].round())}
>>> class MeanClient(MethodClient):
...     @contributes("rows", bound=1.0)
...     def add_rows(self):
...         return {"count": len(self.x), "sum": self.x.sum(axis=0)}

Secure sums, the node's checks of what it is ordered, its policy and its ledger are on. See *Your
own method* in the documentation.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from .driven import Driven
from .errors import EngineError, FedKernError, OptionError
from .flower_compat import is_simulated
from .node.answering import AnsweringClient, answers
from .node.method_client import MethodClient, contributes
from .options import at_least, declared, describe, option
from .removed import removed_value, take_out
from .run import Run
from .run_log import RunLog
from .steps import Answers, Ask, Deliver, LostState, Round, Rounds, Save, Steps, Sum, Term
from .strategy import Arrays
from .swift_grid import swift
from .wire import DescribeReply

__all__ = [
    "AnsweringClient",
    "Answers",
    "Ask",
    "Deliver",
    "LostState",
    "Method",
    "MethodClient",
    "Round",
    "Rounds",
    "Save",
    "Steps",
    "Sum",
    "Term",
    "answers",
    "contributes",
    "option",
]


#: Methods that keep a budget of privacy, for those who ask others for one.
KEEP_BUDGETS = (
    "fed-cg with basis fourier, hierarchical-svm with architecture centralised, pof-mkl, pof-rls, "
    "or kernel-pca"
)


class Method(Driven):
    """Base class of methods: a Flower ``Strategy`` whose run is the generator :meth:`rounds`.

    Options are annotated attributes, ``components: int = option(2, "Components.", least=1)``.

    Parameters
    ----------
    attempts : int (default: 5)
        A question that too few answered is asked so often in all.
    **common
        The options that the class declares, and those of
        :class:`~fedkern_flwr.summing.SummingStrategy`.

    Attributes
    ----------
    run_seed : int
        Seed of the run at hand.
    num_rounds : int
        What ``start`` was asked for; a method with a fixed number of rounds takes no notice.
    model_ : dict
        Arrays of the model, set by :meth:`rounds`.
    saved_, saved_meta_ : dict
        What the last ``Save`` kept, in a run that is resumed; else empty.
    is_secure, simulated : bool
        Whether the run at hand takes secure sums, and whether it is a simulation.
    initial_ : list of ndarray
        What ``start`` was given to begin with.
    planned : int
        How many rounds, or exchanges, the run will take, for its progress, if :meth:`rounds` sets
        it.
    """

    #: Default of ``num_rounds``, for methods that stop by themselves.
    default_rounds: ClassVar[int] = 1
    #: Whether checkpoints are those of rounds that the clients confirm: a ``Save`` after each round
    #: is kept every ``checkpoint_every`` rounds and after the last of ``planned``, and written when
    #: all who take part have answered that round or a later one. They keep their states in the same
    #: rounds. What was answered after it is the method's to skip: it has no log of answers.
    confirmed: ClassVar[bool] = False
    #: Whether its clients open a sum of their rows once in a run, and remember that: a run that
    #: broke off while one was opened goes on without those who opened it, in ``spent_``.
    opens_once: ClassVar[bool] = False
    #: Whether the progress is that of replies, ``planned`` in all: with few exchanges of many.
    counts_replies: ClassVar[bool] = False
    #: Whether a run that is resumed may open a sum again: what the clients add is the same each
    #: time, and what another set of them would show is said by the method.
    reopens: ClassVar[bool] = False
    #: The client that belongs to it, or where it is: "package.module:Class".
    client: ClassVar[type[MethodClient] | str] = ""
    #: Metrics that tables show: name -> what it is.
    shows: ClassVar[Mapping[str, str]] = {}
    #: Why a method without noise keeps no budget of privacy; completes "fdskl ...".
    no_budget: ClassVar[str] = "adds no noise to what it releases"
    #: What the server sees beside the sums, for ``result.json``.
    server_sees: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **more: Any) -> None:
        """Write the declared options into the docstring."""
        super().__init_subclass__(**more)
        if any(hasattr(value, "__set_name__") for value in vars(cls).values()):
            text, own = (cls.__doc__ or cls.__name__).rstrip(), "    Parameters\n    ----------"
            found = "    " + describe(cls).replace("\n", "\n    ")
            cls.__doc__ = text.replace(own, found) if own in text else f"{text}\n\n{found}"

    def __init__(self, *, attempts: int = 5, **common: Any) -> None:
        at_least("attempts", attempts, 1)
        self.attempts = attempts
        known = declared(type(self))
        common = take_out(self.method, common, known=known, values=False)
        for name, found in known.items():
            value = common.pop(name, found.default)
            try:
                setattr(self, name, found.check(value))
            except OptionError as error:
                raise removed_value(name, value) or error from None
        if any(name.startswith("privacy_") for name in common):
            raise OptionError(
                f"{self.method} {self.no_budget}, so it keeps no privacy_epsilon",
                remedy=f"leave it out, or take {KEEP_BUDGETS}",
                code="FK-BUDGET-METHOD",
            )
        super().__init__(**common)

    def fill_in(self, **defaults: Any) -> None:
        """Set options that were not given."""
        for name, value in defaults.items():
            if getattr(self, name) is None:
                setattr(self, name, value)

    def _reset(self) -> None:
        super()._reset()
        self.run_seed, self.num_rounds, self.is_secure = 0, 1, True
        self.model_: Arrays = {}
        self.initial_: list[NDArray[Any]] = []
        self._seen = 0  # replies

    # -- what a method adds

    @abstractmethod
    def rounds(self, parties: Sequence[DescribeReply]) -> Rounds:
        """Yield steps, receive what came of them, return the metrics.

        Parameters
        ----------
        parties : sequence of DescribeReply
            The clients by partition: ``rows``, ``features``, ``test_rows``.

        Yields
        ------
        Sum, Ask, Deliver, Save or Round
            See :mod:`fedkern_flwr.steps`.
        """

    # -- what a method tells about itself

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        own = {n: getattr(self, n) for n, found in declared(type(self)).items() if found.of_model}
        seed = {} if "seed" in self.fixed else {"seed": self.run_seed}
        return {**super().options(), **own, **seed}

    def takes_sums(self, grid: Grid) -> bool:
        """Tell whether a run takes secure sums: always, unless a method says otherwise."""
        return True

    def cohorts(self) -> list[list[int]] | None:
        """Return None: sums are over everybody."""
        return None

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the model's arrays, and the options and columns that belong to them."""
        first = next(iter(self.parties_.values()), None)
        table = {
            "columns": "" if first is None else first.columns,
            "dimension": 0 if first is None else first.features,
        }
        return dict(self.model_), {**self.options(), "session": self.session, **table}

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees: sums, sizes of tables, and what the class says."""
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

    def on_reply(self) -> Callable[[int, Message], None] | None:
        """Take the sections of secure sums out of replies as they arrive, and show progress."""
        take = super().on_reply()
        if not self.counts_replies:
            return take

        def seen(node: int, message: Message) -> None:
            if take is not None:
                take(node, message)
            self._seen += 1
            if self.on_round is not None:
                self.on_round(self._seen, max(self._seen, self.planned), {})

        return seen

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
            For methods whose number of rounds is not fixed, by default ``default_rounds``.
        timeout : float (default: 3600)
            Seconds to wait for the replies of one exchange.
        train_config : ConfigRecord, optional
            ``seed`` is the run's seed for methods that have none of their own.
        evaluate_config : ConfigRecord, optional
            Not used.
        evaluate_fn : callable, optional
            Evaluation on the server, called with the arrays of the model: after the run, or of
            methods that tell of rounds before the first and after some.

        Returns
        -------
        Result
            The model's arrays and the metrics.

        Raises
        ------
        FedKernError
            The run cannot start or go on. A checkpoint, if one was written, stays.
        """
        most = self.default_rounds if num_rounds is None else num_rounds
        at_least("num_rounds", most, 1)
        self.begin(train_config)
        self.num_rounds = most
        self.initial_ = [] if initial_arrays is None else initial_arrays.to_numpy_ndarrays()
        result = Result()
        arrays: Sequence[NDArray[Any]] = ()  # of the last round

        def tell(step: Round) -> None:
            nonlocal arrays
            if step.metrics:
                self.history_.append({"round": step.number, **step.metrics})
                enter(step.number, self.history_[-1])
            if step.arrays is not None:
                arrays = step.arrays
                if evaluate_fn is not None:
                    judge(step.number, ArrayRecord(list(arrays)))

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
        """Forget the last run; take the seed of the next."""
        self._reset()
        self.stage = "failed"  # until it goes on
        seed = 0 if config is None else config.get("seed", 0)
        self.run_seed = self.seed if self.seed is not None else int(seed)  # type: ignore[arg-type]

    def conduct(
        self,
        grid: Grid,
        rounds: Callable[[Sequence[Any]], Rounds],
        tell: Callable[[Round], None] = lambda step: None,
        *,
        timeout: float,
    ) -> None:
        """Gather the parties, do what a generator yields, and let all erase their secrets.

        Raises
        ------
        FedKernError
            See :meth:`start`.
        """
        self.is_secure = secure = self.takes_sums(grid)
        self.simulated = is_simulated(grid)
        grid = swift(grid)
        self.summary()
        log = RunLog(self)
        restored = log.restore()
        resume_round = 0
        if restored:
            kept = restored[1].get("kept")
            resume_round = restored[1]["round"] if kept is None else kept
        self.gather(grid, resume_round=resume_round, secure=secure)
        run = Run(self, grid, timeout, log, tell)
        self.stage = "running"
        try:
            if restored:
                log.take_up(*restored)
            self.metrics_ = run.drive(rounds(list(self.parties_.values())))
        except BaseException as error:
            self.stage = "failed"
            if isinstance(error, FedKernError) and not isinstance(error, EngineError):
                self._part(run, secure, goes_on=self.budget is not None and self.resumable)
                raise self.resumed(error) from error.__cause__
            raise  # after an error of the engine nobody can be reached any more
        else:
            self.stage = "over"
            self._part(run, secure and not run.asking.over)
        finally:
            if self.watch is not None:
                self.watch.close()

    def _part(self, run: Run, secure: bool, *, goes_on: bool = False) -> None:
        """Let whoever is left erase the secrets of the run."""
        if secure:
            with contextlib.suppress(FedKernError):
                asking, number = run.asking, run.log.number + 1
                self.finish(asking.grid, number=number, timeout=asking.timeout, goes_on=goes_on)


def _tests(row: Mapping[str, Any]) -> MetricRecord:
    return _numbers({name: value for name, value in row.items() if name.startswith("test_")})


def _numbers(row: Mapping[str, Any]) -> MetricRecord:
    return MetricRecord({k: v for k, v in row.items() if isinstance(v, (int, float))})

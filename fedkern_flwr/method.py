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
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from .errors import EngineError, FedKernError
from .node.method_client import MethodClient, answers, contributes
from .options import declared, describe, option
from .run import Rounds, Run
from .steps import Answers, Ask, Deliver, LostState, Save, Sum, Term
from .strategy import Arrays, at_least
from .summing import SummingStrategy
from .wire import DescribeReply

__all__ = [
    "Answers",
    "Ask",
    "Deliver",
    "LostState",
    "Method",
    "MethodClient",
    "Rounds",
    "Save",
    "Sum",
    "Term",
    "answers",
    "contributes",
    "option",
]


class Method(SummingStrategy):
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
    planned : int
        How many exchanges the run will take, for its progress, if :meth:`rounds` sets it.
    """

    #: The client that belongs to it, or where it is: "package.module:Class".
    client: ClassVar[type[MethodClient] | str] = ""
    #: Metrics that tables show: name -> what it is.
    shows: ClassVar[Mapping[str, str]] = {}
    #: What the server sees beside the sums, for ``result.json``.
    server_sees: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **more: Any) -> None:
        """Write the declared options into the docstring."""
        super().__init_subclass__(**more)
        if any(hasattr(value, "__set_name__") for value in vars(cls).values()):
            cls.__doc__ = f"{(cls.__doc__ or cls.__name__).rstrip()}\n\n    " + describe(
                cls
            ).replace("\n", "\n    ")

    def __init__(self, *, attempts: int = 5, **common: Any) -> None:
        at_least("attempts", attempts, 1)
        self.attempts = attempts
        for name, found in declared(type(self)).items():
            setattr(self, name, found.check(common.pop(name, found.default)))
        super().__init__(**common)

    def _reset(self) -> None:
        super()._reset()
        self.run_seed, self.num_rounds, self.planned = 0, 1, 1
        self.model_: Arrays = {}
        self.saved_: Arrays = {}
        self.saved_meta_: dict[str, Any] = {}

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
        Sum, Ask, Deliver or Save
            See :mod:`fedkern_flwr.steps`.
        """

    def check_answer(self, partition: int, answer: Any) -> None:
        """Refuse a reply that is well-formed but wrong.

        Raises
        ------
        ProtocolError
        """

    # -- what a method tells about itself

    @property
    def session(self) -> str:
        """Name of the run."""
        return self._session

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        own = {n: getattr(self, n) for n, found in declared(type(self)).items() if found.of_model}
        return {**super().options(), **own, "seed": self.run_seed}

    def takes_sums(self, grid: Grid) -> bool:
        """Tell whether a run takes secure sums: always, unless a method says otherwise."""
        return True

    def cohorts(self) -> list[list[int]] | None:
        """Return None: sums are over everybody."""
        return None

    def model(self) -> tuple[Arrays, dict[str, Any]]:
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
                "number of rows, held-out rows and columns per client, digest of the column names",
                "which clients contributed to which sum",
                *self.server_sees,
            ],
            "never_leaves_the_client": ["rows", "labels", "own terms of the sums"],
        }

    # -- Flower's interface

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 1,
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
            Not used.
        num_rounds : int (default: 1)
            For methods whose number of rounds is not fixed.
        timeout : float (default: 3600)
            Seconds to wait for the replies of one exchange.
        train_config : ConfigRecord, optional
            ``seed`` is the run's seed for methods that have none of their own.
        evaluate_config : ConfigRecord, optional
            Not used.
        evaluate_fn : callable, optional
            Evaluation on the server, called once with the arrays of the model.

        Returns
        -------
        Result
            The model's arrays and the metrics.

        Raises
        ------
        FedKernError
            The run cannot start or go on. A checkpoint, if one was written, stays.
        """
        at_least("num_rounds", num_rounds, 1)
        self._reset()
        seed = 0 if train_config is None else train_config.get("seed", 0)
        self.run_seed = self.seed if self.seed is not None else int(seed)  # type: ignore[arg-type]
        self.num_rounds = num_rounds
        self.summary()
        restored = self.restore()
        resume_round = restored[1]["round"] if restored else 0
        self.gather(grid, resume_round=resume_round, secure=self.takes_sums(grid))
        run = Run(self, grid, timeout)
        try:
            if restored:
                run.take_up(*restored)
            self.metrics_ = run.drive(self.rounds(list(self.parties_.values())))
        except EngineError:
            raise  # nobody can be reached any more
        except FedKernError:
            with contextlib.suppress(FedKernError):  # whoever is left erases its secrets
                self.finish_sums(grid, number=run.number + 1, timeout=timeout)
            raise
        self.finish_sums(grid, number=run.number + 1, timeout=timeout)
        result = Result()
        result.arrays = ArrayRecord({n: Array(np.asarray(a)) for n, a in self.model_.items()})
        told: dict[str, Any] = {
            k: v for k, v in self.metrics_.items() if isinstance(v, (int, float))
        }
        result.train_metrics_clientapp[1] = MetricRecord(told)
        if evaluate_fn and (metrics := evaluate_fn(1, result.arrays)) is not None:
            result.evaluate_metrics_serverapp[1] = metrics
        return result

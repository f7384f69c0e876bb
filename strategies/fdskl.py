"""FDSKL: kernel learning over columns that different parties hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedkern_flwr.doubly_stochastic import STEP_SCHEDULES, StepSchedule
from fedkern_flwr.errors import CheckpointError, EngineError, FedKernError, OptionError
from fedkern_flwr.frequencies import FREQUENCIES, KERNELS, Frequencies, Kernel
from fedkern_flwr.least_squares import check_regularization
from fedkern_flwr.losses import LOSSES, Loss
from fedkern_flwr.online import check_choice
from fedkern_flwr.product_kernel import check_gamma
from fedkern_flwr.strategy import Arrays, at_least, logger
from fedkern_flwr.vertical import MISSING_ROWS, MissingRows

from .fdskl_one_shot import train_once
from .fdskl_privacy import WARNINGS, seen_by
from .fdskl_steps import Steps
from .fdskl_streaming import iterate
from .vertical_base import Need, VerticalStrategy

Schedule = Literal["one-shot", "streaming"]
Topology = Literal["star", "tree"]

_FEATURES = 2000
_BASE_SHARE = 4.0  # the widths tried begin at 1 / (this times the number of columns)
#: Steps that learn fast and stayed stable, measured with r = 16 on two data sets.
_STEP: dict[str, float] = {"square": 0.5, "logistic": 4.0, "smooth-hinge": 2.0}


class FDSKL(VerticalStrategy):
    """FDSKL: kernel learning over columns that different parties hold.

    f(x) = sum_j alpha_j sqrt(2) cos(omega_j^T x + b_j) with random directions omega of a Gaussian
    or Laplacian kernel. Each party adds its part of omega^T x + b as an angle, in secure sums that
    an active party (one with labels) opens: it gets phases and nothing else. One-shot, it gets
    all of them at once and trains alone: four exchanges. Streaming is the paper's doubly stochastic
    gradient in blocks of rows and directions.

    Parameters
    ----------
    schedule : {"one-shot", "streaming"} (default: "one-shot")
        All phases at once, or an iteration per exchange.
    features : int, optional
        Of one-shot: R, directions in all, by default 2000.
    directions : int, optional
        Of streaming: r, new directions per iteration, by default 16; 1 is the paper's.
    batch : int, optional
        Of streaming: B, rows per iteration, by default 64; 1 is the paper's.
    step : float, optional
        Of streaming: gamma, by default 0.5 for the square loss, 4 for logistic and 2 for smooth
        hinge, and r / 16 of that with fewer than 16 directions.
    step_schedule : {"constant", "diminishing"}, optional
        Of streaming: gamma_t = gamma, which is the default, or gamma / (1 + gamma lambda t).
    loss : {"square", "logistic", "smooth-hinge"}, optional
        Loss of each output (Table 1), by default smooth hinge for classes and square for numbers.
    kernel : {"rbf", "laplacian"} (default: "rbf")
        exp(-gamma d) of squared Euclidean or of absolute distances d.
    gamma : float, optional
        Width; by default chosen by cross-validation at the active party (one-shot), or 1 / number
        of columns (streaming).
    regularization : float, optional
        lambda; by default chosen by cross-validation (one-shot), or 1e-4 (streaming).
    frequencies : {"private", "shared"} (default: "private")
        Each party draws its part of the directions from a secret of its own, or all from a seed
        that everybody knows (the paper's mode).
    phase_bits : {16, 32} (default: 16)
        Bits of a phase that travels, 16 or 32.
    topology : {"star", "tree"} (default: "star")
        One masked sum, or the paper's two trees with real-valued masks.
    missing : {"error", "drop-row"} (default: "error")
        Rows that some party does not hold: refuse the run, or leave them out.
    evaluate_every : int, optional
        Of streaming: iterations from one evaluation on held-out rows to the next; by default only
        the last model is evaluated.
    allow_single : bool (default: False)
        Let an active party learn the phases of the only other party with columns.
    attempts : int (default: 5)
        An exchange that somebody failed to answer is repeated so often in all.
    checkpoint_every : int (default: 50)
        Of streaming: iterations from one checkpoint to the next.
    **common
        Options of :class:`~fedkern_flwr.strategies.whole_cohort.WholeCohortStrategy`.

    Attributes
    ----------
    plan_ : VerticalPlan
        Who holds which rows.
    gamma_, multiple_, regularization_ : float, int, float
        Width that the directions were drawn for, what multiplies their phases, and lambda.

    References
    ----------
    Gu, Dang, Li and Huang, "Federated Doubly Stochastic Kernel Learning for Vertically Partitioned
    Data", KDD 2020.
    """

    method: ClassVar[str] = "fdskl"
    title: ClassVar[str] = "FDSKL"
    fixed: ClassVar[frozenset[str]] = VerticalStrategy.fixed - {"checkpoint_every"}

    def __init__(
        self,
        *,
        schedule: Schedule = "one-shot",
        features: int | None = None,
        directions: int | None = None,
        batch: int | None = None,
        step: float | None = None,
        step_schedule: StepSchedule | None = None,
        loss: Loss | None = None,
        kernel: Kernel = "rbf",
        gamma: float | None = None,
        regularization: float | None = None,
        frequencies: Frequencies = "private",
        phase_bits: int = 16,
        topology: Topology = "star",
        missing: MissingRows = "error",
        evaluate_every: int | None = None,
        **common: Any,
    ) -> None:
        check_choice("schedule", schedule, ("one-shot", "streaming"))
        if loss is not None:
            check_choice("loss", loss, LOSSES)
        check_choice("kernel", kernel, KERNELS)
        check_choice("frequencies", frequencies, FREQUENCIES)
        check_choice("topology", topology, ("star", "tree"))
        check_choice("missing", missing, MISSING_ROWS)
        if phase_bits not in (16, 32):
            raise OptionError(f"phase_bits is {phase_bits}", remedy="use 16 or 32")
        given = {
            "directions": directions,
            "batch": batch,
            "step": step,
            "step_schedule": step_schedule,
            "evaluate_every": evaluate_every,
        }
        _check_schedule(schedule, features, given)
        for name, number in (("features", features), ("directions", directions), ("batch", batch)):
            if number is not None:
                at_least(name, number, 1)
        if evaluate_every is not None:
            at_least("evaluate_every", evaluate_every, 1)
        if gamma is not None:
            check_gamma(gamma)
        if regularization is not None:
            check_regularization(regularization)
        if step is not None and not 0.0 < step < np.inf:
            raise OptionError(f"step is {step}", remedy="use a positive number")
        if step_schedule is not None:
            check_choice("step_schedule", step_schedule, STEP_SCHEDULES)
        self.schedule, self.loss, self.kernel = schedule, loss, kernel
        self.features = _FEATURES if features is None else features
        self.directions = 16 if directions is None else directions
        self.batch = 64 if batch is None else batch
        self.step_length, self.step_schedule = step, step_schedule
        self.gamma, self.regularization = gamma, regularization
        self.frequencies, self.topology = frequencies, topology
        self.evaluate_every = evaluate_every
        super().__init__(phase_bits=phase_bits, missing=missing, **common)
        largest = step or _STEP[loss or "smooth-hinge"] * min(1.0, self.directions / 16.0)
        if schedule == "streaming" and largest * self.chosen_regularization >= 1.0:
            raise OptionError(
                f"step {largest:g} times regularization {self.chosen_regularization:g} is not "
                "below 1",
                remedy="use a smaller step",
            )

    def _reset(self) -> None:
        super()._reset()
        self.gamma_, self.multiple_, self.regularization_ = 0.0, 1, 0.0
        self.capacity = 0
        self.leaders: tuple[int, ...] = ()
        self.counting, self.evaluated = True, np.zeros(2)  # seconds and bytes of evaluations
        self.upto_: dict[int, int] = {}

    # -- what a method tells about itself

    @property
    def chosen_loss(self) -> Loss:
        """The loss, which depends on the labels by default."""
        return self.loss or ("smooth-hinge" if self.classes_ else "square")

    @property
    def chosen_regularization(self) -> float:
        """Lambda of streaming."""
        return 1e-4 if self.regularization is None else self.regularization

    @property
    def chosen_step(self) -> float:
        """Gamma of streaming; fewer new directions are noisier and stand smaller steps."""
        if self.step_length is not None:
            return self.step_length
        return _STEP[self.chosen_loss] * min(1.0, self.directions / 16.0)

    @property
    def chosen_step_schedule(self) -> StepSchedule:
        """The schedule of step sizes."""
        return self.step_schedule or "constant"

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        names = (
            "schedule",
            "loss",
            "kernel",
            "gamma",
            "regularization",
            "frequencies",
            "phase_bits",
            "topology",
            "missing",
        )
        found = {**super().options(), **{name: getattr(self, name) for name in names}}
        if self.schedule == "one-shot":
            found["features"] = self.features
        else:
            found |= {
                "directions": self.directions,
                "batch": self.batch,
                "step": self.step_length,
                "step_schedule": self.chosen_step_schedule,
            }
        return {**found, "seed": self.run_seed}

    def model(self) -> tuple[Arrays, dict[str, Any]]:
        """Return what a prediction needs to know; the coefficients stay with the active parties."""
        meta = {
            **self.options(),
            "session": self.model_of[0] or self.session,
            "step": self.model_of[1] or self.first_step,
            "drawn_for": self.gamma_,
            "multiple": self.multiple_,
            "capacity": self.capacity,
            "columns": self.features_in_all if self.parties_ else 0,
            "leaders": list(self.leaders),
            "actives": list(self.plan_.actives),
            "upto": {str(k): v for k, v in self.upto_.items()},
            "outputs": self.outputs_,
            "classes": self.classes_,
            "label_bound": self.label_bound_,
        }
        return {}, meta

    def privacy(self) -> dict[str, Any]:
        """Return what is seen by whom."""
        return {**self.whole_sums_privacy(), **seen_by(self)}

    def settings(self) -> dict[str, Any]:
        """Return the fields of a request that say how phases are made."""
        return {
            "kernel": self.kernel,
            "gamma": self.gamma_,
            "phase_bits": self.phase_bits,
            "topology": self.topology,
            "public_seed": self.run_seed if self.frequencies == "shared" else -1,
            "model": self.model_of[0],
            "model_round": self.model_of[1],
            "capacity": self.capacity,
        }

    # -- Flower's interface

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 200,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Fit the model at the active parties and judge it on their held-out rows.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        initial_arrays : ArrayRecord, optional
            Not used: the model never leaves the active parties.
        num_rounds : int (default: 200)
            T, iterations of the streaming schedule.
        timeout : float (default: 3600)
            Seconds to wait for the replies of one exchange.
        train_config : ConfigRecord, optional
            ``seed`` is the run's seed for strategies that have none of their own.
        evaluate_config, evaluate_fn : optional
            Not used.

        Returns
        -------
        Result
            No arrays; metrics per evaluation.

        Raises
        ------
        CohortError, ProtocolError, TableError, SumError, EngineError, CheckpointError, OptionError
            The run cannot start or go on. A checkpoint, if one was written, stays.
        """
        at_least("num_rounds", num_rounds, 1)
        result = Result()
        restored = self._open(grid, train_config)
        try:
            steps = Steps(self, grid, timeout)
            if self.schedule == "one-shot":
                train_once(self, steps, restored)
            else:
                iterate(self, steps, num_rounds, restored)
            for row in self.history_:
                numbers = {k: v for k, v in row.items() if k != "round"}
                result.evaluate_metrics_clientapp[row["round"]] = MetricRecord(numbers)
        except EngineError:
            raise  # nobody can be reached any more
        except FedKernError:
            self._part(grid, timeout)
            raise
        self._part(grid, timeout)
        return result

    def predict(self, grid: Grid, meta: Mapping[str, Any], *, timeout: float = 3600) -> None:
        """Have the active parties predict their held-out rows with a model that was saved.

        They write the predictions; nothing of them is sent.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        meta : mapping
            What belongs to the model, see :meth:`model`.
        timeout : float (default: 3600)
            Seconds to wait for the replies of one exchange.

        Raises
        ------
        CheckpointError
            The model is not one of this method, or of other parties.
        CohortError, ProtocolError, TableError, OptionError
            See :meth:`start`.
        """
        self._open(grid, None, of=meta)
        try:
            owners = tuple(meta["leaders"])
            actives, allowed = set(self.leaders), set(meta["actives"])
            same = self.features_in_all == meta["columns"]
            if not same or not set(owners) <= actives <= allowed:  # who was passive stays so
                raise CheckpointError(
                    "the parties are not those of the model",
                    remedy="bring the parties that the model was made with",
                )
            self.counting, self.leaders = False, owners
            steps, upto = Steps(self, grid, timeout), self.upto_
            steps.advance(Need(steps.test_rows(), upto))
            steps.judge(upto)
        finally:
            self._part(grid, timeout)

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> FDSKL:
        """Return a strategy with the options of a model that was saved.

        Raises
        ------
        CheckpointError
            It is not a model of this method.
        """
        names = ("schedule", "loss", "kernel", "frequencies", "phase_bits", "topology", "missing")
        if meta.get("method") != cls.method or not {*names, "upto", "seed"} <= set(meta):
            raise CheckpointError(
                f"the model is one of {meta.get('method') or 'another method'}",
                remedy=f"give a model of {cls.method}",
            )
        return cls(**{name: meta[name] for name in names}, **{"seed": meta["seed"], **more})

    # -- a run

    def _open(
        self,
        grid: Grid,
        config: ConfigRecord | None,
        *,
        of: Mapping[str, Any] | None = None,
    ) -> tuple[Arrays, dict[str, Any]] | None:
        """Begin or take up a run: parties, plan, width."""
        self._reset()
        if of is not None:
            self.model_of = (str(of["session"]), int(of["step"]))
        seed = self.seed if config is None else config.get("seed", self.seed)
        chosen = self.seed if self.seed is not None else seed
        self.run_seed = int(chosen or 0)  # type: ignore[arg-type]
        at_least("seed", self.run_seed, 0)
        if chosen is not None:
            self.order_seed = self.run_seed
        for name in ("frequencies", "topology"):
            if getattr(self, name) in WARNINGS:
                logger.warning(WARNINGS[getattr(self, name)])
        self.summary()
        restored = None if of is not None else self.restore()
        self.gather(grid, resume_round=int(restored[1]["saved"]) if restored else 0, secure=True)
        self._choose_leaders()
        self.gamma_ = self._width()
        if of is not None:
            self.gamma_, self.capacity = float(of["drawn_for"]), int(of["capacity"])
            self.upto_ = {int(k): int(v) for k, v in of["upto"].items()}
        if restored:
            if restored[1].get("rows") != self.rows_digest():
                raise CheckpointError(
                    f"the rows of the parties are not those of the run of {self.checkpoint}",
                    remedy="bring back the tables of that run, or start anew",
                )
            self.step = int(restored[1]["round"])
            self.first_step = int(restored[1]["saved"])
            self.collection = int(restored[1]["collection"])
            if self.sums is not None and restored[1].get("sums"):
                self.sums.go_on(restored[1]["sums"])
        return restored

    def _choose_leaders(self) -> None:
        """Find the active parties that have rows to learn from: they lead iterations in turn."""
        plan = self.plan_
        self.leaders = plan.actives
        if self.model_of[0]:
            return
        self.leaders = tuple(a for a in plan.actives if plan.train[a].stop > plan.train[a].start)
        if self.schedule == "one-shot" and len(plan.actives) > 1:
            raise OptionError(
                f"schedule one-shot trains at one active party, there are {len(plan.actives)}",
                remedy="use --schedule streaming, or let one party have the labels",
            )
        if self.chosen_loss != "square" and not self.classes_:
            raise OptionError(
                f"loss {self.loss} is for classes, the labels are numbers",
                remedy="use --loss square, or name the classes at the active parties",
            )

    def _width(self) -> float:
        if self.gamma is not None:
            return self.gamma
        columns = max(1, self.features_in_all)
        return 1.0 / (columns * (_BASE_SHARE if self.schedule == "one-shot" else 1.0))

    def _part(self, grid: Grid, timeout: float) -> None:
        """Let whoever is left erase the run's secrets."""
        with contextlib.suppress(FedKernError):
            self.finish(grid, number=self.step + 1, timeout=timeout)

    def save(self, stage: str, saved: int, **meta: Any) -> None:
        """Write a checkpoint, if one was asked for; the parties kept their state as ``saved``."""
        if self.checkpoint is None:
            return
        self.write_checkpoint(
            self.step,
            {},
            {
                "stage": stage,
                "saved": saved,
                "collection": self.collection,
                "rows": self.rows_digest(),
                "sums": self.sums.progress() if self.sums is not None else {},
                **meta,
            },
        )


def _check_schedule(
    schedule: str, features: int | None, given: Mapping[str, object | None]
) -> None:
    if schedule == "streaming" and features is not None:
        raise OptionError(
            "features is for schedule one-shot",
            remedy="leave it out: streaming makes rounds times directions",
        )
    for name, value in given.items():
        if schedule == "one-shot" and value is not None:
            raise OptionError(
                f"{name} is for schedule streaming",
                remedy="add schedule streaming, or leave it out",
            )

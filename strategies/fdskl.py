"""FDSKL: kernel learning over columns that different parties hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import CheckpointError, OptionError
from fedkern_flwr.judging.figures import Yardstick, bins_of
from fedkern_flwr.judging.judges import Judges
from fedkern_flwr.kernels.random_features import Kernel
from fedkern_flwr.method import Answers, Ask, Deliver, LostState, Round, Rounds, Save, Steps, option
from fedkern_flwr.model_file import check_model
from fedkern_flwr.nodes import Arrays
from fedkern_flwr.options import at_least
from fedkern_flwr.solvers.losses import Loss
from fedkern_flwr.vertical import messages as wire
from fedkern_flwr.vertical import parties as vertical
from fedkern_flwr.vertical.parties import MissingRows, VerticalPlan, held_out_rows, rows_of
from fedkern_flwr.vertical.phase_training import (
    MULTIPLES,
    REGULARIZATIONS,
    REGULARIZATIONS_OF_NUMBERS,
)
from fedkern_flwr.vertical.phases import MOST_DIRECTIONS, StepSchedule, draw_batch, step_size
from fedkern_flwr.wire import DescribeReply
from fedkern_flwr.wire.describe import rows_digest

_BASE_SHARE = 4.0  # the first candidate width is 1 / (this times the number of columns)
_KEPT = 1  # the parties save the state of a one-shot run under this number
_CHUNK = 1 << 22  # phases of a sum
_MESSAGE = 256 << 20  # bytes of phases in a message
_NO_ROWS, _NOTHING = np.zeros(0, np.int64), np.zeros(0, np.int32)
_OF_MODEL = ("schedule", "loss", "kernel", "phase_bits", "missing")

Rows = NDArray[np.int64]
Schedule = Literal["one-shot", "streaming"]

#: Fast and stable steps, measured with r = 16 on two data sets.
_STEP: dict[str, float] = {"square": 0.5, "logistic": 4.0, "smooth-hinge": 2.0}
#: Options of streaming only -> their defaults.
_STREAMING: dict[str, Any] = {
    "directions": 16,
    "batch": 64,
    "step": None,
    "step_schedule": "constant",
    "evaluate_every": None,
}
_ONE_SHOT = ("features", "class_weight")

_SIZES = "numbers of rows, labelled rows, held-out rows and columns per party, keyed hashes of ids"
_DECLARED = (
    "what each party declares: bound of its labels, whether rows have ids; digests of the names of "
    "columns and classes"
)
_PHASES = [
    "phases of all rows that it trains on and predicts: distances between the rows of the "
    "others together, to about sqrt(2 / number of directions); these rows up to an unknown "
    "linear map, and the number of their columns, unless the kernel is very narrow",
    "columns of two values, up to their order and 0/1, whether they depend on each other or not",
    "with one known record more than the others have columns, these rows themselves",
    "which rows are equal in the columns of the others",
]


class FDSKL(Judges):
    """FDSKL: kernel learning over columns that different parties hold.

    f(x) = sum_j alpha_j sqrt(2) cos(omega_j^T x + b_j) with random directions omega of a Gaussian
    or Laplacian kernel. Each party adds its part of omega^T x + b as an angle, in secure sums that
    an active party (one with labels) opens: it gets only phases. One-shot, it gets all of them at
    once and trains alone: four exchanges. Streaming is the paper's doubly stochastic gradient in
    blocks of rows and directions.

    Flower's ``num_rounds`` (200) are T, iterations of the streaming schedule. The model never
    leaves the active parties, so there are no arrays and no ``evaluate_fn``.

    Attributes
    ----------
    plan_ : VerticalPlan
        Parties and their rows.
    gamma_, multiple_, regularization_ : float, int, float
        Width of the directions, factor of their phases, and lambda.
    outputs_, classes_, label_bound_
        Of the active parties' labels.
    leaders : tuple of int
        Active parties with training rows.
    upto_ : dict
        Owner -> directions of its model.
    model_of : (str, int)
        For predictions: session and step of the model's run.

    References
    ----------
    Gu, Dang, Li and Huang, "Federated Doubly Stochastic Kernel Learning for Vertically Partitioned
    Data", KDD 2020.
    """

    method, title = "fdskl", "FDSKL"
    no_budget = (
        "shows the label owner the phases of each row, where noise would leave nothing of them"
    )
    left_whole = True
    described = wire.VerticalDescribeReply
    default_rounds = 200
    whole_cohorts = True

    fixed: ClassVar[frozenset[str]] = frozenset(
        {"min_clients", "max_missed", "threshold", "min_cohort"}
    )

    schedule: Schedule = option(
        "one-shot", "All phases in one exchange, or an exchange per iteration."
    )
    features: int | None = option(
        None,
        "One-shot: directions in all, R (default: 2000; 1000 for numbers).",
        least=1,
        most=MOST_DIRECTIONS,
    )
    directions: int = option(
        None,
        "Streaming: new directions per iteration, r (default: 16; paper: 1).",
        least=1,
    )
    batch: int = option(None, "Streaming: rows per iteration, B (default: 64; paper: 1).", least=1)
    step: float | None = option(
        None,
        "Streaming: step size (default: by loss, 0.5 square, 4 logistic, 2 smooth-hinge).",
        above=0.0,
    )
    step_schedule: StepSchedule = option(
        None, "Streaming: constant step (default), or gamma / (1 + gamma lambda t)."
    )
    loss: Loss | None = option(
        None, "Loss, Table 1 (default: smooth-hinge for classes, square for numbers)."
    )
    kernel: Kernel = option(
        "rbf", "Kernel exp(-gamma d) of squared Euclidean or of absolute distances d."
    )
    gamma: float | None = option(
        None, "Width of the kernel (default: chosen by cross-validation).", above=0.0
    )
    regularization: float | None = option(
        None, "Penalty lambda (default: chosen by cross-validation, or 1e-4).", above=0.0
    )
    intercept: bool = option(True, "One-shot: add a constant to the kernel for classes.")
    phase_bits: int | None = option(
        None, "Bits of a phase (default: 16; 32 for numbers in one-shot)."
    )
    missing: MissingRows = option("error", "Rows that a party lacks: refuse the run, or drop them.")
    evaluate_every: int | None = option(
        None,
        "Streaming: iterations between evaluations (default: only the last model).",
        least=1,
        of_model=False,
    )
    allow_single: bool = option(
        False, "Let an active party learn the phases of the only other party.", of_model=False
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.phase_bits not in (None, 16, 32):
            raise OptionError(
                f"phase_bits is {self.phase_bits}", remedy="use 16 or 32", code="FK-OPTION-CHOICE"
            )
        streams = self.schedule == "streaming"
        for name in _ONE_SHOT if streams else _STREAMING:
            if getattr(self, name) is not None:
                other = "one-shot" if streams else "streaming"
                raise OptionError(
                    f"{name} is for schedule {other}",
                    remedy=f"choose schedule {other}, or leave it out",
                    code="FK-OPTION-CONFLICT",
                )
        self.may_weigh = not streams  # one active party has all rows
        self._descends = self.step is not None or self.step_schedule is not None
        self.fill_in(**_STREAMING)
        largest, shrinks = self.chosen_step, self.chosen_regularization
        if streams and largest * shrinks >= 1.0:
            raise OptionError(
                f"step {largest:g} times regularization {shrinks:g} is not below 1",
                code="FK-STEP-LARGE",
            )

    def _reset(self) -> None:
        super()._reset()
        self.plan_ = VerticalPlan((), (), {}, {}, {})
        self.leaders: tuple[int, ...] = ()
        self.classes_, self.outputs_, self.label_bound_ = 0, 0, 1.0
        self.gamma_, self.multiple_, self.regularization_ = 0.0, 1, 0.0
        self.model_of: tuple[str, int] = ("", 0)
        self.capacity = 0
        self.upto_: dict[int, int] = {}
        self._rows = ""

    # -- defaults of options

    @property
    def chosen_loss(self) -> Loss:
        return self.loss or ("smooth-hinge" if self.classes_ else "square")

    @property
    def learns_numbers(self) -> bool:
        """Whether numbers are learned in one shot, as precisely as the phases are."""
        return self.schedule == "one-shot" and not self.classes_

    @property
    def solves(self) -> bool:
        """Whether streaming ends with a solution on the received phases (not in paper mode)."""
        fixed = self._descends or 1 in (self.directions, self.batch)
        return self.schedule == "streaming" and not fixed and len(self.plan_.actives) == 1

    @property
    def chosen_bits(self) -> int:
        return self.phase_bits or (32 if self.learns_numbers else 16)

    @property
    def chosen_features(self) -> int:
        """R of one-shot: by default 4 kB of phases per row, for any phase size."""
        return self.features or (1000 if self.learns_numbers else 2000)

    @property
    def has_intercept(self) -> bool:
        chosen = self.schedule == "one-shot" and self.gamma is None
        return self.intercept and chosen and self.classes_ > 0

    @property
    def tried_regularizations(self) -> tuple[float, ...]:
        if self.regularization is not None:
            return (self.regularization,)
        exact = self.learns_numbers and self.chosen_bits == 32
        return REGULARIZATIONS_OF_NUMBERS if exact else REGULARIZATIONS

    @property
    def chosen_regularization(self) -> float:
        return 1e-4 if self.regularization is None else self.regularization

    @property
    def chosen_step(self) -> float:
        """Gamma of streaming; with fewer new directions, which are noisier, it is smaller."""
        if self.step is not None:
            return self.step
        known = self.chosen_loss if self.plan_.actives else self.loss or "smooth-hinge"
        return _STEP[known] * min(1.0, self.directions / 16.0)

    def options(self) -> dict[str, Any]:
        other = ("features",) if self.schedule == "streaming" else _STREAMING
        return {name: value for name, value in super().options().items() if name not in other}

    @property
    def advice(self) -> str:
        if self.schedule == "one-shot":
            return super().advice
        smaller = "" if self.solves else "a smaller --step or "
        return f"it has not converged: try {smaller}more --rounds"

    # -- what a method reports

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        meta = {
            **self.options(),
            "phase_bits": self.chosen_bits,
            "session": self.model_of[0] or self.session,
            "step": self.model_of[1] or self.kept_ or 0,
            "drawn_for": self.gamma_,
            "multiple": self.multiple_,
            "capacity": self.capacity,
            "columns": self._columns,
            "tables": self._tables(),
            "leaders": list(self.leaders),
            "actives": list(self.plan_.actives),
            "upto": {str(k): v for k, v in self.upto_.items()},
            "outputs": self.outputs_,
            "classes": self.classes_,
            "label_bound": self.label_bound_,
            "calibration": self.calibration_numbers(),
        }
        return {}, meta

    def privacy(self) -> dict[str, Any]:
        actives, one_shot = self.plan_.actives, self.schedule == "one-shot"
        holders = {p.partition for p in self.parties_.values() if p.features}
        server = [_SIZES, "which rows of the parties belong together, and which are learned from"]
        server.append(_DECLARED)
        if self.order_seed >= 0:
            server.append(
                "the order of rows, by which it can link those of runs with the same seed"
            )
        if one_shot or self.solves:
            server.append(
                "the width and regularization chosen, and their score in cross-validation"
            )
        if not one_shot:
            server.append("which rows are in which batch")
        server.append("each active party's counts on its held-out rows")
        seen = [*_PHASES]
        if any(len(holders - {active}) == 1 for active in actives):
            seen.append("all this of a single party's columns")
        if len(actives) > 1:
            seen.append(
                "f on its batches and held-out rows; of two active parties each the other's part"
            )
        seen += ["which of its rows all parties hold", "its own coefficients"]
        passive = ["which of their rows are learned from, in which batch, and predicted"]
        never = ["rows in plain", "labels", "ids", "offsets", "coefficients", "predictions"]
        return {
            **self.sums_privacy(),
            "server_sees": server,
            "active_parties_see": seen,
            "passive_parties_see": passive,
            "never_leaves_the_client": [*never, "directions"],
        }

    def matched(self) -> dict[str, Any]:
        return self.plan_.report() if self.plan_.actives else {}

    # -- parties

    def begin(self, config: ConfigRecord | None = None) -> None:
        """Reset; an explicit seed also fixes the order of rows."""
        super().begin(config)
        at_least("seed", self.run_seed, 0)
        if self.seed is not None or (config is not None and config.get("seed") is not None):
            self.order_seed = self.run_seed

    def check_parties(self, parties: Sequence[Any]) -> None:
        vertical.check_parties(parties)

    def cohorts(self) -> list[list[int]] | None:
        parties = list(self.parties_.values())
        self.plan_ = vertical.make_plan(parties, self.missing, predict=bool(self.model_of[0]))
        vertical.check_alone(self.plan_, parties, allow_single=self.allow_single)
        first = next(p for p in parties if p.partition == self.plan_.actives[0])
        self.outputs_, self.classes_ = first.outputs, first.classes
        self.label_bound_ = first.label_bound
        return None

    @property
    def _columns(self) -> int:
        return sum(party.features for party in self.parties_.values())

    def _tables(self) -> dict[str, str]:
        return {str(party.partition): party.columns for party in self.parties_.values()}

    # -- a run

    def rounds(self, parties: Sequence[DescribeReply]) -> Rounds:
        plan = self.plan_
        self.leaders = tuple(a for a in plan.actives if len(plan.train[a]))
        if self.schedule == "one-shot" and len(plan.actives) > 1:
            raise OptionError(
                f"schedule one-shot trains at one active party, there are {len(plan.actives)}",
                code="FK-SCHEDULE-ACTIVE",
            )
        self.check_weighted(self.classes_)
        if self.chosen_loss != "square" and not self.classes_:
            raise OptionError(
                f"loss {self.loss} is for classes, the labels are numbers", code="FK-LOSS-CLASSES"
            )
        share = _BASE_SHARE if self.schedule == "one-shot" else 1.0
        self.gamma_ = self.gamma or 1.0 / (max(1, self._columns) * share)
        saved, described = self.saved_meta_.get("rows"), list(self.parties_.values())
        self._rows = rows_digest(described, saved=saved, checkpoint=self.checkpoint)
        if "judged" in self.saved_meta_:
            self.judge_by(self._yard, np.array(self.saved_meta_["judged"]))
        return (yield from self._train() if self.schedule == "one-shot" else self._descend())

    def _phases(self) -> Phases:
        return Phases(
            plan=self.plan_,
            settings={
                "kernel": self.kernel,
                "gamma": self.gamma_,
                "phase_bits": self.chosen_bits,
                "model": self.model_of[0],
                "model_round": self.model_of[1],
                "capacity": self.capacity,
                "loss": self.chosen_loss,
            },
            outputs=self.outputs_,
            attempts=self.attempts,
            number=int(self.saved_meta_.get("collection", 0)),
        )

    def _save(self, phases: Phases, kept: int, **meta: Any) -> Save:
        judged = {} if self.judged_ is None else {"judged": self.judged_.total.tolist()}
        known = {"rows": self._rows, "collection": phases.number, **judged}
        return Save({}, {**known, **meta}, kept=kept)

    def _metrics(self, counts: Sequence[NDArray[np.float64]]) -> dict[str, float]:
        found = [c for c in counts if len(c) == self._yard.length]
        if not found:
            self.nodes.note_untold()
            return {}
        return self.judge_by(self._yard, np.sum(found, axis=0))

    @property
    def _yard(self) -> Yardstick:
        tests = [len(part) for part in self.plan_.test.values() if len(part)]
        bins = bins_of(min(tests, default=0), self.classes_)
        return Yardstick(self.classes_, self.outputs_, self.label_bound_, bins)

    def _train(self) -> Rounds:
        owner, meta = self.plan_.actives[0], self.saved_meta_
        self.capacity, self.planned = self.chosen_features, 2
        self.upto_ = {owner: self.capacity}
        if "metrics" in meta:
            self.multiple_ = int(meta["multiple"])
            self.regularization_ = float(meta["metrics"]["regularization"])
            return dict(meta["metrics"])
        phases, need = self._phases(), Need(np.arange(self.plan_.total), self.upto_)
        yield from phases.advance(need, save_as=_KEPT)
        yield self._save(phases, _KEPT)
        metrics, found = yield from self._solve(phases, need, None, _KEPT)
        if found:
            self.history_.append({"round": 1, **found})
        yield self._save(phases, _KEPT, metrics=metrics, multiple=self.multiple_)
        return dict(metrics)

    def _solve(self, phases: Phases, need: Need, again: Need | None, save_as: int) -> Steps:
        owner = self.plan_.actives[0]
        request = wire.TrainRequest(
            save_as=save_as,
            loss=self.chosen_loss,
            directions=need.upto[owner],
            seed=self.run_seed,
            count=True,
            bins=self._yard.bins,
            intercept=self.has_intercept,
            balanced=self.class_weight is not None,
            multiples=np.array(MULTIPLES if self.gamma is None else (1,), np.int32),
            regularizations=np.array(self.tried_regularizations),
            rows=_NOTHING,
            tests=_NOTHING,
        )
        reply = yield from phases.train(owner, request, need, again)
        self.multiple_, self.regularization_ = reply.multiple, reply.regularization
        factor = reply.multiple if self.kernel == "laplacian" else reply.multiple**2
        metrics = {"gamma": self.gamma_ * factor, "regularization": reply.regularization}
        if reply.score >= 0.0:
            metrics["validation_score"] = reply.score
        found = self._metrics([reply.counts])
        return metrics | found, found

    # -- streaming: doubly stochastic gradients, an iteration per exchange
    #
    #
    # The exchange that brings the active parties the phases of one batch requests those of the
    # next. If there is one active party and no option sets steps, it fits the final model to the
    # phases that it has received, as one-shot does: rows of the last half of the batches,
    # directions of the first half. The iterations then serve only for the reported errors on the
    # way. With several active parties f is summed over them in between: an iteration takes two
    # exchanges, and iterations overlap.

    @property
    def _lag(self) -> int:
        """Number of exchanges from the request for an iteration's phases to its end."""
        return 1 if len(self.leaders) == 1 else 2

    def iteration(self, number: int) -> Iteration:
        """Return an iteration, on a batch of one of the leaders in turn."""
        leader = self.leaders[(number - 1) % len(self.leaders)]
        own = self.plan_.train[leader]
        shrinks = self.chosen_regularization
        rate = step_size(self.chosen_step, self.step_schedule, shrinks, number)
        return Iteration(
            number=number,
            leader=leader,
            rows=own.start + draw_batch(self.run_seed, number, len(own), self.batch),
            directions=self.directions,
            rate=rate,
            decay=1.0 - rate * shrinks,
        )

    def upto(self, number: int) -> dict[int, int]:
        count = len(self.leaders)
        return {
            owner: self.directions * ((number + count - 1 - k) // count)
            for k, owner in enumerate(self.leaders)
        }

    def _need(self, first: int, last: int) -> Need:
        rows = [self.iteration(number).rows for number in range(first, last + 1)]
        return Need(np.unique(np.concatenate(rows)), self.upto(last))

    def solved(self) -> Need:
        """Return the phases of the final solution: rows of the last half of the batches.

        All have the directions of the first of these batches.
        """
        half = self.num_rounds // 2
        return Need(self._need(half + 1, self.num_rounds).rows, self.upto(half + 1))

    def _exchange(
        self, phases: Phases, t: int, done: int, last: int, tested: Need | None, save_as: int
    ) -> Steps:
        """Take an exchange of iterations ``done`` + 1 to ``last``.

        The t-th requests the phases of iteration t and finishes the one that is due. The last also
        requests those of held-out rows and saves states.
        """
        finish, score = t - self._lag, t - 1 if self._lag == 2 else 0
        need = self._need(t, t) if t <= last else tested if finish == last else None
        work: dict[str, Any] = {}
        if finish > done:
            work["finish"] = self.iteration(finish)
        if done < score <= last:
            work["score"] = self.iteration(score)
        if finish == last and save_as:
            work["save_as"] = save_as

        def again() -> Need:
            return self._need(max(finish, done + 1), min(t - 1, last))

        yield from phases.advance(need, again if t > done + 1 else None, **work)

    def _descend(self) -> Rounds:
        most = self.planned = self.num_rounds
        self.capacity = max(self.upto(most).values())
        self.regularization_ = self.chosen_regularization
        meta, phases, tests = self.saved_meta_, self._phases(), held_out_rows(self.plan_)
        done, metrics = int(meta.get("iteration", 0)), dict(meta.get("metrics", {}))
        spent = np.array(meta.get("evaluated", (0.0, 0.0)))  # seconds and bytes of evaluations
        self.upto_, solved = self.upto(done), self.solved()
        if done == most and self.solves:
            self.upto_, self.multiple_ = dict(solved.upto), int(meta["multiple"])
            self.regularization_ = float(metrics["regularization"])
        yield Round(0)
        while done < most:
            every = self.checkpoint_every if self.checkpoint is not None else None
            last = min(_next(done, every), _next(done, self.evaluate_every), most)
            judged = last == most or (self.evaluate_every and not last % self.evaluate_every)
            tested = Need(tests, self.upto(last)) if judged and len(tests) else None
            keeps = last == most or self.checkpoint is not None
            for t in range(done + 1, last + self._lag + 1):
                before = self._spent
                yield from self._exchange(phases, t, done, last, tested, last if keeps else 0)
                if done < t - self._lag < last:
                    yield Round(t - self._lag)
            done, self.upto_, row = last, self.upto(last), dict[str, Any]()
            if judged:
                metrics = {"gamma": self.gamma_, "regularization": self.regularization_}
            found: Mapping[str, float] = {}
            if last == most and self.solves:
                again = Need(np.union1d(solved.rows, tests), self.upto_)
                metrics, found = yield from self._solve(phases, solved, again, last)
                self.upto_ = dict(solved.upto)
            elif tested is not None:
                counts = yield from phases.judge(tested, count=True, bins=self._yard.bins)
                found = self._metrics(counts)
                metrics |= found
            if tested is not None:
                spent += self._spent - before  # of the exchange that requested their phases
                row = _evaluation_row(found, self._spent - spent) if found else {}
            state = {"iteration": done, "metrics": metrics, "multiple": self.multiple_}
            state["evaluated"] = spent.tolist()
            yield Round(done, row, save=self._save(phases, done, **state) if keeps else None)
        return {**metrics, **({"converged": not self.judged_.useless} if self.judged_ else {})}

    @property
    def _spent(self) -> NDArray[np.float64]:
        return np.array([self.ledger_.seconds, self.ledger_.bytes_up])

    # -- predictions with a saved model

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> FDSKL:
        """Return a strategy with the options of a saved model of this method (CheckpointError)."""
        check_model(cls.method, {}, meta, {}, needs=(*_OF_MODEL, "upto", "seed"))
        return cls(**{name: meta[name] for name in _OF_MODEL}, **{"seed": meta["seed"], **more})

    def predict_at_nodes(
        self, grid: Grid, meta: Mapping[str, Any], *, timeout: float = 3600
    ) -> None:
        """Let the active parties predict their held-out rows with a saved model.

        They write the predictions and send nothing of them. ``meta`` is from :meth:`model`;
        ``timeout`` is in seconds per exchange.

        Raises
        ------
        CheckpointError
            The model has another method or other parties.
        CohortError, ProtocolError, TableError, OptionError
            See :meth:`start`.
        """
        self.begin()
        self.model_of = (str(meta["session"]), int(meta["step"]))

        def rounds(parties: Sequence[DescribeReply]) -> Rounds:
            self.leaders = tuple(meta["leaders"])
            actives, allowed = set(self.plan_.actives), set(meta["actives"])
            same = self._columns == meta["columns"]
            # older models lack the tables
            same = same and self._tables() == meta.get("tables", self._tables())
            if not same or not set(self.leaders) <= actives <= allowed:  # passive ones stay so
                raise CheckpointError(
                    "the parties are not those of the model", code="FK-MODEL-PARTIES"
                )
            self.gamma_, self.capacity = float(meta["drawn_for"]), int(meta["capacity"])
            self.upto_ = {int(k): int(v) for k, v in meta["upto"].items()}
            phases, need = self._phases(), Need(held_out_rows(self.plan_), self.upto_)
            yield from phases.advance(need)
            yield from phases.judge(need, calibration=meta.get("calibration", ()))
            return {}

        self.conduct(grid, rounds, timeout=timeout)


def _next(done: int, every: int | None) -> int:
    return done + every - done % every if every else 1 << 62


def _evaluation_row(found: Mapping[str, float], spent: NDArray[np.float64]) -> dict[str, Any]:
    seconds, bytes_up = spent.tolist()
    error = found.get("test_rmse", 1.0 - found.get("test_accuracy", 1.0))
    return {**found, "test_error": error, "bytes_up": int(bytes_up), "seconds": seconds}


# -- exchanges: phases for their owners, and what the parties do with them
#
#
# A party that has lost its phases gets all of them again, counted from zero.


@dataclass(frozen=True)
class Need:
    """Phases that the owners need."""

    rows: Rows  # of the plan, ascending
    upto: Mapping[int, int]  # owner -> number of its directions


@dataclass(frozen=True)
class Iteration:
    number: int
    leader: int  # the active party whose batch it takes
    rows: Rows  # the batch, rows of the plan
    directions: int  # r, which the leader gets
    rate: float  # gamma_t
    decay: float  # 1 - gamma_t lambda


_NO_ITERATION = Iteration(0, -1, _NO_ROWS, 0, 0.0, 0.0)
#: One request: number, rows of the plan, fields that are the same for all parties.
Collection = tuple[int, Rows, Mapping[str, NDArray[np.int32]]]
_NO_FIELDS = {
    **dict.fromkeys(("owners", "upto", "cuts"), _NOTHING),
    "known": np.zeros((0, 0), np.int32),
}
_NO_COLLECTION: Collection = 0, _NO_ROWS, _NO_FIELDS


@dataclass(kw_only=True)
class Phases:
    """Phases that the owners have, and the exchanges for more."""

    plan: VerticalPlan  # who holds which rows
    settings: Mapping[str, Any]  # fields of a step that are fixed in a run
    outputs: int  # columns of the targets
    attempts: int  # how often lost phases are sent again
    number: int = 0  # of the last collection
    _waiting: dict[int, int] = field(default_factory=dict)  # owner -> pending collection
    _parts: int = 0  # number of exchanges of the last phases

    def __post_init__(self) -> None:
        """Reset: no owner has phases, at the beginning or after a loss."""
        self._known = {a: np.zeros(self.plan.total, np.int32) for a in self.plan.actives}
        self._parts = 0
        self._waiting.clear()

    # -- exchanges

    def advance(
        self, need: Need | None = None, again: Callable[[], Need] | None = None, **work: Any
    ) -> Steps:
        """Collect phases and do other work of a :meth:`step`: one exchange if all answer.

        ``again`` returns the phases to collect again, if a party has lost them.

        Raises
        ------
        CohortError
            A party did not answer, or lost its phases, ``attempts`` times in a row.
        """

        def steps() -> Steps:
            *parts, last = [_NO_COLLECTION] if need is None else self.collections(need)
            self._parts = len(parts) + 1
            for part in parts:
                yield from self.step(part)
            if last[0] or work:
                yield from self.step(last, **work)

        yield from self.insist(steps, again)

    def insist(self, steps: Callable[[], Steps], again: Callable[[], Need] | None) -> Steps:
        """Repeat steps until no party has lost phases; ``again`` as in :meth:`advance`."""
        for _ in range(self.attempts):
            try:
                return (yield from steps())
            except LostState as error:
                lost = error
                self.__post_init__()
                if again is not None:
                    yield from self.advance(again())
        raise lost

    def step(
        self,
        wanted: Collection,
        *,
        finish: Iteration = _NO_ITERATION,
        score: Iteration = _NO_ITERATION,
        save_as: int = 0,
    ) -> Steps:
        """Collect phases, finish an iteration, score another, save states: one exchange."""
        number, rows, fields = wanted
        everybody = number or score.number or save_as
        common: dict[str, Any] = {**self.settings, **fields}
        requests = {
            p: wire.StepRequest(
                **common,
                delivered=self._waiting.get(p, 0),
                save_as=save_as,
                collection=number,
                rows=self.positions(p, rows),
                finish=finish.number,
                leader=finish.leader,
                score=score.number,
                scorer=score.leader,
                directions=finish.directions,
                rate=finish.rate,
                decay=finish.decay,
                finish_rows=self.positions(p, finish.rows if finish.leader == p else _NO_ROWS),
                score_rows=self.positions(p, score.rows),
            )
            for p in (self.plan.parties if everybody else self.plan.actives)
        }
        # an iteration needs its scores, even if phases were lost in between
        yield from self.ask(requests, wire.StepReply, rows, keep="scores/")
        if number:
            for owner, many in zip(fields["owners"].tolist(), fields["upto"].tolist(), strict=True):
                self._waiting[owner] = number
                self._known[owner][rows] = many

    def judge(
        self, need: Need, *, count: bool = False, bins: int = 0, calibration: Sequence[float] = ()
    ) -> Steps:
        """Let the active parties predict their held-out rows; return their counts if requested.

        ``calibration`` is that of a saved model. With several active parties, each first gets the
        others' scores.
        """
        plan = self.plan
        tests = {a: held for a in plan.actives if len(held := rows_of(plan.test[a]))}

        def steps() -> Steps:
            for scoring in (True, False) if len(plan.actives) > 1 else (False,):
                requests = {
                    p: wire.OutcomeRequest(
                        count=count,
                        bins=bins,
                        calibration=np.array(calibration, np.float64),
                        delivered=self._waiting.get(p, 0),
                        scoring=scoring,
                        owners=np.array([*tests], np.int32),
                        sizes=np.array([*map(len, tests.values())], np.int32),
                        rows=self.positions(p, np.concatenate([*tests.values()])),
                    )
                    for p in (plan.parties if scoring else plan.actives)
                }
                answers = yield from self.ask(requests, wire.OutcomeReply)
            return [reply.counts for reply in answers.replies.values()]

        return (yield from self.insist(steps, lambda: need))

    def train(
        self, owner: int, request: wire.TrainRequest, need: Need, again: Need | None = None
    ) -> Steps:
        """Let the owner train on its rows of ``need`` and predict, as the last exchange of the run.

        If it has lost phases, it gets those of ``again`` (streaming). After several messages it may
        have lost the earlier ones, so the others get the end only after its answer.
        """
        ends = self._parts == 1 and again is None
        rows = np.intersect1d(need.rows, rows_of(self.plan.train[owner]))

        def steps() -> Steps:
            known: dict[str, Any] = {
                "delivered": self._waiting.get(owner, 0),
                "rows": self.positions(owner, rows),
                "tests": self.positions(owner, rows_of(self.plan.test[owner])),
            }
            asked = {owner: replace(request, **known)}
            answers: Answers = yield from self.ask(asked, wire.TrainReply, ends=ends)
            return answers.replies[owner]

        return (yield from steps() if ends else self.insist(steps, lambda: again or need))

    def ask(
        self,
        requests: Mapping[int, Any],
        reply: type[Any],
        rows: Rows = _NO_ROWS,
        *,
        keep: str = "",
        ends: bool = False,
    ) -> Steps:
        """Send requests with their declared sums, each received by one party.

        Pending deliveries come along. ``rows`` are those with requested phases; sums whose name
        begins with ``keep`` stay pending when phases are lost.
        """
        bits, names = int(self.settings["phase_bits"]), self.plan.names[rows]
        first = next(iter(requests.values()))
        sums = first.sum_specs(wire.VerticalFacts(bits, self.outputs, names))
        answers: Answers = yield Ask(requests, reply=reply, sums=sums, ends=ends)
        for partition in requests:
            self._waiting.pop(partition, None)
        for name, running in answers.running.items():
            kept = bool(keep) and name.startswith(keep)
            yield Deliver(running, running.order.receiver, keep=kept)
        return answers

    # -- what is requested

    def collections(self, need: Need) -> Iterator[Collection]:
        """Yield what to request in one exchange each, so that no message is too large."""
        owners, bits = sorted(need.upto), self.settings["phase_bits"]
        width = max(need.upto.values())
        step = max(1, _MESSAGE * 8 // bits // max(1, width * len(owners)))
        chunk = max(1, _CHUNK // max(1, width))
        for start in range(0, max(1, len(need.rows)), step):
            rows = need.rows[start : start + step]
            self.number += 1
            fields = {
                "owners": np.array(owners, np.int32),
                "upto": np.array([need.upto[owner] for owner in owners], np.int32),
                "known": np.stack([self._known[owner][rows] for owner in owners]),
                "cuts": np.array([*range(chunk, len(rows), chunk), len(rows)], np.int32),
            }
            yield self.number, rows, fields

    def positions(self, partition: int, rows: Rows) -> NDArray[np.int32]:
        return np.ascontiguousarray(self.plan.rows[partition][rows], np.int32)

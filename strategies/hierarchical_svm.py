"""HierarchicalSVM: linear and kernel classifiers from users in groups, each with an agent.

The strategy has options, cohorts, privacy report and the steps of a run. Its parts are
:class:`~.hierarchical_runs.RowRun` (rows at users), :class:`~.hierarchical_loop.GroupLoop` (groups
with agents) and :class:`~.hierarchical_runs.ColumnRun` (columns at groups).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedkern_flwr.errors import CheckpointError, OptionError
from fedkern_flwr.exchange import Overlapping
from fedkern_flwr.fitted import FittedModel
from fedkern_flwr.groups import linear_model
from fedkern_flwr.groups import members as groups
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import (
    FOLDS,
    LEAST_ROUNDS,
    TRIAL_ROUNDS,
    TRIED,
    Floats,
    RhoSchedule,
    folds_held_out,
)
from fedkern_flwr.groups.linear_model import DIGITS, LOSS_OF, MODELS, Model, model_columns
from fedkern_flwr.groups.members import Group, predictions_seen_by, seen_by
from fedkern_flwr.groups.messages import AGENT, OWNER
from fedkern_flwr.judging.judges import Judges
from fedkern_flwr.method import PrivateMethod, Round, Rounds, Steps, option
from fedkern_flwr.model_file import check_made_with, check_model
from fedkern_flwr.nodes import Arrays, logger
from fedkern_flwr.options import at_least, check_choice, declared
from fedkern_flwr.planning import Allowance, allowance
from fedkern_flwr.progress import part
from fedkern_flwr.reporting import iterations_ended
from fedkern_flwr.solvers.local_solvers import Loss
from fedkern_flwr.vertical.parties import MissingRows
from fedkern_flwr.wire import DescribeReply

from .hierarchical_loop import GroupLoop
from .hierarchical_runs import Choice, ColumnRun, Learned, RowRun, Saver

Partition = Literal["horizontal", "vertical"]
Architecture = Literal["hierarchical", "centralised"]
_WIDTH = 3.0  # default gamma for columns in [0, 1], in units of 1 / their number
#: Default D.
FEATURES = 500
_RELAXATION, _RESIDUAL, _GAP = 1.7, 0.01, 1e-3
_ADMM = ("rho", "sigma", "rho_schedule", "relaxation", "step_sizes")
#: Remedy if iterations did not converge.
MORE_ROUNDS = "use more --rounds, or a larger --tolerance"
_ONE_FOLD = 5 / 3  # numbers about the other rows are spread over these alone
_ENOUGH = 40  # iterations until rho has risen; with fewer, more frequencies or several C harm
#: Options that decide who predicts, and their attributes.
_OF_MODELS = {"partition": "partition", "model": "kind"}


class HierarchicalSVM(Judges, PrivateMethod):
    """HierarchicalSVM: linear and kernel classifiers from users in groups, each with an agent.

    Minimises 1/2 |w|^2 + C sum_n loss(y_n, w^T x_n + b) over the rows of all users. Horizontal
    splits use consensus ADMM in two layers, see :mod:`fedkern_flwr.groups.consensus`: users solve
    their part of the problem, only agents open the sums of their groups, the server makes the
    global model from the agents' masked sum. Without agents it uses the masked sum of all users.
    Both take one exchange per iteration. A vertical split takes two, by
    :mod:`fedkern_flwr.solvers.dual_subspace`.

    Flower's ``initial_arrays`` are not used: ADMM starts at zero. ``num_rounds`` (200) are its most
    iterations, fewer if the nodes' release limits require it. The result has the weights and biases
    of a horizontal split.

    Parameters
    ----------
    model : {"linear", "rbf", "logistic", "ridge"} (default: "linear")
        Linear SVM, SVM on random features (rbf), logistic or ridge regression. More than two
        classes have one model per class against the rest.
    step_sizes : sequence of float, optional
        First rho of each group.
    checkpoint_every : int (default: 10)
        Iterations from one checkpoint to the next.
    **options
        The others, and those of :class:`~fedkern_flwr.method.Method`.

    Attributes
    ----------
    groups_ : tuple of Group
        The groups.
    row_plan_ : RowPlan
        For vertical splits: matched rows.
    trace_ : list of (float, int, ndarray)
        For each of the agents' totals: seconds since the start, iterations of the slowest group,
        global model.
    coefficients_ : ndarray, shape (k, d + 1)
        The model in the coordinates of the run.
    outputs_, classes_, label_bound_
        Of the labels.
    predicting : str
        For predictions: session of the model's run.

    References
    ----------
    Jia, Guo and Fang, "Efficient Privacy-Preserving Machine Learning in Hierarchical Distributed
    System", IEEE TNSE 2019.
    """

    method, title = "hierarchical-svm", "HierarchicalSVM"
    left_whole = True
    described = wire.SVMDescribeReply
    default_rounds = 200
    reopens = True
    fixed: ClassVar[frozenset[str]] = frozenset(
        {"min_clients", "max_missed", "threshold", "min_cohort"}
    )

    partition: Partition = option(
        "horizontal",
        "Users hold rows, or users of a group rows of its columns.",
    )
    architecture: Architecture | None = option(
        None,
        "Groups with agents, or all users at the server (default: by groups).",
    )
    C: float | None = option(
        None,
        "Weight of the losses (default: chosen by held-out folds, or 1).",
        above=0.0,
    )
    class_weight: Literal["balanced"] | None = option(
        None,
        "Balanced: weigh rows of rare classes more, as scikit-learn does.",
    )
    rho: float | None = option(
        None,
        "First penalty of the users (default: from C).",
        above=0,
    )
    sigma: float | None = option(
        None, "Penalty of the agents (default: rho times users per group).", above=0.0
    )
    rho_schedule: RhoSchedule | None = option(
        None,
        "How the penalty changes (default: rising for one output, duals for several).",
    )
    relaxation: float = option(None, "Over-relaxation in [1, 2).", least=1.0, below=2.0)
    scale: Literal["standard", "none"] = option(
        "standard",
        "Penalise weights of standardised columns, or of columns as they are.",
    )
    features: int | None = option(
        None,
        "RBF: random frequencies, D (default: 500, within the release limits).",
        least=1,
    )
    gamma: float | None = option(None, "RBF: width (default: 1 / number of columns).", above=0.0)
    staleness: int = option(
        0,
        "Iterations that a group may be ahead of the slowest, D.",
        least=0,
    )
    tolerance: float = option(
        None,
        "Stop at this relative residual or gap (default: 0.01; vertical 1e-3).",
        above=0.0,
    )
    lost_groups: Literal["stop", "leave-out"] = option(
        "stop",
        "If a group does not reply: stop, or continue without it.",
    )
    missing: MissingRows = option(
        "error",
        "Vertical: rows that a group lacks stop the run or are dropped.",
        of_model=False,
    )
    bound: float = option(
        wire.DEFAULT_BOUND,
        "Public bound on the numbers that are summed.",
        above=0.0,
        of_model=False,
    )
    allow_single: bool = option(
        False, "Let agents see the model of a user that is alone.", of_model=False
    )

    def __init__(
        self,
        *,
        model: Model = "linear",
        step_sizes: Sequence[float] | None = None,
        checkpoint_every: int = 10,
        **options: Any,
    ) -> None:
        check_choice("model", model, MODELS)
        self.kind = model
        self.step_sizes = None if step_sizes is None else tuple(map(float, step_sizes))
        for k, size in enumerate(self.step_sizes or ()):
            if not 0.0 < size < np.inf:
                raise OptionError(
                    f"step size {k} is {size}",
                    remedy="use a positive number",
                    code="FK-OPTION-RANGE",
                )
        super().__init__(checkpoint_every=checkpoint_every, **options)
        for code, text in broken_rules(self):
            problem, _, remedy = text.partition("; ")
            raise OptionError(problem, remedy=remedy, code=code)
        if self.rho is not None or self.step_sizes is not None:
            self.fill_in(rho_schedule="fixed")
        self.fill_in(
            relaxation=_RELAXATION,
            tolerance=_GAP if self.partition == "vertical" else _RESIDUAL,
        )

    def _reset(self) -> None:
        super()._reset()
        self.groups_: tuple[Group, ...] = ()
        self.row_plan_ = groups.RowPlan(0, 0, np.zeros(0, np.int32), {}, {}, 0)
        self.trace_: list[tuple[float, int, Floats]] = []
        self.coefficients_ = np.zeros((0, 0))
        self.outputs_, self.classes_, self.label_bound_ = 0, 0, 1.0
        self.choice_ = Choice(1.0 if self.C is None else self.C)
        self.fitting_ = 0  # D within the nodes' release limits, 0 for the default
        self._most_folds = FOLDS
        self.predicting = ""

    # -- what follows from the options

    @property
    def layers(self) -> bool:
        """Whether there are agents; by default as the nodes describe themselves."""
        if self.architecture is not None or self.budget is not None:
            return self.architecture == "hierarchical"
        grouped = any(p.role == AGENT or p.group > 0 for p in self.parties_.values())
        return grouped or bool(needs_agents(self))

    @property
    def loss(self) -> Loss:
        return LOSS_OF[self.kind]

    @property
    def frequencies(self) -> int:
        """D, 0 for models of the columns."""
        return (self.features or self.fitting_ or FEATURES) if self.kind == "rbf" else 0

    @property
    def columns_(self) -> int:
        """Columns of the rows; in a vertical split of all groups together."""
        found = list(map(self.columns_of, self.groups_))
        return sum(found) if self.partition == "vertical" else sum(found[:1])

    def columns_of(self, group: Group) -> int:
        return int(self.party_of(group.users[0]).features)

    @property
    def chosen_gamma(self) -> float:
        """The width of the kernel, 0 without one."""
        if self.kind != "rbf":
            return 0.0
        wide = 1.0 if self.budget is None else _WIDTH
        return wide / max(1, self.columns_) if self.gamma is None else self.gamma

    @property
    def C_(self) -> float:
        return self.choice_.C

    @property
    def tuned_(self) -> dict[str, Any]:
        """What was tried and chosen, or why not; empty for a given C."""
        return self.choice_.tuned

    def options(self) -> dict[str, Any]:
        return {
            **super().options(),
            "model": self.kind,
            "step_sizes": None if self.step_sizes is None else list(self.step_sizes),
        }

    def result(self) -> dict[str, Any]:
        return super().result() | ({"tuned": self.tuned_} if self.tuned_ else {})

    @property
    def advice_of_classes(self) -> str:
        if self.partition == "vertical":
            return "if they are rare, fdskl with --class-weight balanced finds more of them"
        return super().advice_of_classes

    # -- who sums with whom

    @property
    def users_(self) -> list[int]:
        return [user for group in self.groups_ for user in group.users]

    def party_of(self, partition: int) -> Any:
        return next(p for p in self.parties_.values() if p.partition == partition)

    @property
    def least_agents(self) -> int:
        return max(2, len(self.groups_) // 2 + 1)

    def check_parties(self, parties: Sequence[Any]) -> None:
        groups.check_parties(parties)

    def cohorts(self) -> list[list[int]] | None:
        """Return the sets of nodes that sum: all users, the groups, the agents."""
        parties, layers = list(self.parties_.values()), self.layers
        self.groups_ = found = groups.read_groups(parties, layers=layers)
        groups.check_count(len(found), self.step_sizes, self.lost_groups == "leave-out")
        vertical = self.partition == "vertical"
        first = (
            groups.check_vertical(parties, found) if vertical else groups.check_horizontal(parties)
        )
        groups.check_single(found, parties, allow_single=self.allow_single)
        small = [group for group in found if group.agent >= 0 and len(group.users) <= 2]
        if small and not vertical and not self.predicting:
            logger.warning(
                "%d groups have one or two users: agents or partners see gradients of single "
                "users; form larger groups",
                len(small),
            )
        self.outputs_, self.classes_ = first.outputs, first.classes
        self.label_bound_ = first.label_bound
        if self.loss != "squared" and not self.classes_:
            raise OptionError(
                f"model {self.kind} is for classes, the labels are numbers",
                remedy="use model ridge, or name the classes at all nodes with labels",
                code="FK-LOSS-CLASSES",
            )
        if self.class_weight and not self.classes_:
            raise OptionError(
                "class_weight is for classes",
                remedy="leave it out for numbers",
                code="FK-WEIGHTS-NUMBERS",
            )
        if vertical:
            self.row_plan_ = groups.match_rows(
                parties, found, drop=self.missing == "drop-row", held_out=bool(self.predicting)
            )
        owner = [first.partition] if vertical else []
        agents = [group.agent for group in found]
        sets = [sorted([*self.users_, *owner])]
        if layers:
            sets += [group.members for group in found]
            if not vertical and len(agents) > 1:
                sets.append(sorted(agents))
        return sets

    def thresholds(self, cohorts: int) -> list[int | None]:
        """Return the thresholds; if groups may be left out, more than half of the agents."""
        found: list[int | None] = [None] * cohorts
        if self.lost_groups == "leave-out":
            found[-1] = self.least_agents
        return found

    # -- what the nodes' release limits allow

    def _plan_rows(self) -> None:
        """Plan frequencies, folds and iterations within the users' release limits.

        Numbers of all iterations add up, as they are about the same rows. The default number of
        iterations becomes the most that fit. Group sums count, as an agent may send them to the
        server.
        """
        sets = [group.users for group in self.groups_] if self.layers else [self.users_]
        columns, outputs = self.columns_, self.outputs_
        found = [allowance(map(self.party_of, users), columns=columns + 1) for users in sets]
        allowed = min(found, key=lambda one: one.numbers)
        if not any(one.planned for one in found):
            return
        digits, statistics = 2 * DIGITS * columns + 1, wire.USER_STATISTICS
        if self.kind == "rbf" and self.features is None:
            free = allowed.numbers - digits - _ENOUGH * outputs * (1 + statistics)
            self.fitting_ = int(min(max(1, free // (2 * _ENOUGH * outputs + 4)), FEATURES))
        taken, width = float(digits + 4 * self.frequencies), self._width()
        each = outputs * (width + statistics)
        trial = TRIAL_ROUNDS * len(TRIED) * each  # of a fold
        spare = allowed.numbers - taken - (_ENOUGH - TRIAL_ROUNDS) * each
        trials = {FOLDS: FOLDS * trial, 1: trial * _ONE_FOLD}
        folds = [n for n in trials if trials[n] <= spare] if self.C is None else []
        self._most_folds = max(folds, default=0)
        tries = self._most_folds and not self._why_not()
        if tries:
            taken += trials[folds_held_out(outputs, width, self._most_folds)]
        fit = max(1, int((allowed.numbers - taken) // each) + TRIAL_ROUNDS * bool(tries))
        of_rbf = f", {self.frequencies} frequencies" if self.frequencies else ""
        self._plan_iterations(fit, allowed, of_rbf)

    def _plan_columns(self) -> None:
        """Plan iterations within the users' release limits.

        Users count statistics of columns, and per visit products with the messages, objective and
        bound; visits are two more than iterations. Only a user's own rows hide each other: the
        server chooses the others'.
        """
        fits = list[tuple[float, Allowance]]()
        for user in map(self.party_of, self.users_):
            rows = {user.partition: len(self.row_plan_.learned(user.partition))}
            allowed = allowance([user], labels=0, rows=rows)
            left = allowed.numbers - 2 * DIGITS * user.features
            fits.append((left / (user.features * self.outputs_ + 2) - 2, allowed))
        fit, allowed = min(fits, key=lambda one: one[0])
        if any(one.planned for _, one in fits):
            self._plan_iterations(max(1.0, fit), allowed)

    def _plan_iterations(self, fit: float, allowed: Allowance, more: str = "") -> None:
        if self.num_rounds == self.default_rounds:
            self.num_rounds = int(min(self.num_rounds, fit))
        self.note_plan(f"{self.num_rounds} iterations{more}", allowed)

    def _width(self) -> int:
        return model_columns(self.columns_, self.frequencies) + 1

    def _plan_trials(self) -> None:
        if self.C is not None:
            return
        if why := self._why_not():
            self.choice_.tuned = {"C": self.C_, "by": "nothing", "why": why}
            logger.info("C = 1: %s", why)
            return
        self.choice_.tried = TRIED
        self.choice_.folds = folds_held_out(self.outputs_, self._width(), self._most_folds)

    def _why_not(self) -> str:
        if self.staleness:
            return "that is for groups that wait for each other"
        if self.rho is not None or self.step_sizes is not None or self.sigma is not None:
            return "penalties are given"
        if self.num_rounds < LEAST_ROUNDS:
            return f"fewer than {LEAST_ROUNDS} rounds"
        if not self._most_folds:
            return "the release limits of the nodes leave too few iterations"
        sets = [list(map(self.party_of, group.users)) for group in self.groups_]
        if any(user.rows // FOLDS < user.fold_rows for users in sets for user in users):
            return "a fold would have too few rows of a user"
        for users in sets:
            least = max(user.fold_sum_rows for user in users)
            if sum(user.rows // FOLDS for user in users) < least:
                return "a fold would have too few rows of a group"
        return ""

    # -- a run

    def begin(self, config: ConfigRecord | None = None) -> None:
        super().begin(config)
        at_least("seed", self.run_seed, 0)

    def start(self, *arguments: Any, **named: Any) -> Result:
        """Run the method; with a budget in fewer iterations by default."""
        if self.budget is not None and len(arguments) < 3 and named.get("num_rounds") is None:
            named["num_rounds"] = linear_model.ITERATIONS
        return super().start(*arguments, **named)

    def rounds(self, parties: Sequence[DescribeReply]) -> Rounds:
        known, vertical, step = self.saved_meta_, self.partition == "vertical", 0
        if vertical:
            self._plan_columns()
        elif self.budget is None and not known:
            self._plan_rows()
        elif self.budget is None:  # by now less is left, as this run's own sums count
            planned = known["trials"]
            self.fitting_ = int(planned.get("fitting", 0))
            self.notes_ = list(planned.get("notes", ()))
            if self.num_rounds == self.default_rounds:
                self.num_rounds = int(planned.get("rounds", self.num_rounds))
        self.planned = self.num_rounds
        nodes = groups.digest(self.parties_.values())
        saver = Saver(self.checkpoint_every if self.checkpoint else 0, nodes)
        if known:
            if known["nodes"] != saver.nodes:
                raise CheckpointError(
                    f"the nodes are not those of the run of {self.checkpoint}",
                    remedy="bring back the nodes and tables of that run, or start anew",
                    code="FK-CHECKPOINT-PARTIES",
                )
            step, saver.last = int(self.kept_ or 0), int(known["done"])
        yield Round(0)  # progress is that of iterations
        if vertical:
            return (yield from self._learn_columns(saver, step))
        if self.budget is None and not known:
            self._plan_trials()
        run = RowRun(self, self._facts(), saver, step)
        if self.budget is not None:
            return (yield from self._learn_privately(run))
        if not known:
            yield from run.measure()
        with part("train"):
            found = yield from (
                self._learn_groups(run) if self.layers else run.central_rounds(self.saved_, known)
            )
        return (yield from self._judge_rows(run, found))

    def _facts(self, **more: Any) -> wire.SVMFacts:
        users = list(map(self.party_of, self.users_))
        return wire.SVMFacts(
            bound=self.bound,
            columns=self.columns_,
            features=self.frequencies,
            outputs=self.outputs_,
            classes=self.classes_,
            label_bound=self.label_bound_,
            rows=[user.rows for user in users],
            tests=[user.test_rows for user in users],
            budget=self.budget,
            **more,
        )

    def _learn_groups(self, run: RowRun) -> Steps:
        reported = self.history_[-1]["round"] if self.history_ else 0
        loop = GroupLoop(run, (yield Overlapping()), reported)
        if self.saved_meta_:
            loop.restore(self.saved_, self.saved_meta_)
        return (yield from loop.rounds())

    def _judge_rows(self, run: RowRun, found: Learned) -> Rounds:
        model, row = found.model, self.history_[-1] if self.history_ else {}
        lost = {user for g in self.groups_ if g.number in found.lost for user in g.users}
        with part("judge"):
            total = yield from (
                run.judge_left(model, lost, self.attempts) if lost else run.judge(model)
            )
        judged = dict[str, Any]()
        if total is not None:
            judged["objective"] = run.objective_of(model, total)
            figures = self.judge_by(run.yard, total[1:])
            judged |= figures
            if not figures:
                self.nodes.note_untold()
        self._take_model(run, model)
        left_out = {"groups_left_out": len(found.lost)} if found.lost else {}
        names = [name for name in ("primal", "dual") if name in row]
        apart = ", ".join(f"{name} residual {row[name]:.1e}" for name in names)
        ended = self._note_end(row.get("round", 0), found.converged, apart)
        return {**judged, **ended, **left_out}

    def _learn_privately(self, run: RowRun) -> Rounds:
        with part("train"):
            found = yield from run.private_rounds(self.saved_)
        with part("judge"):
            counts = yield from run.judge_with_noise(found.model)
        held_out = sum(run.facts.tests)
        judged = self.judge_by(replace(run.yard, bins=0), counts) if held_out else {}
        self._take_model(run, found.model)
        return {**judged, **iterations_ended(self.num_rounds, True, "", MORE_ROUNDS)}

    def _take_model(self, run: RowRun, model: Floats) -> None:
        weights, bias = run.coordinates.model(model)
        self.coefficients_ = model
        self.model_ = {"weights": weights, "bias": bias, **run.raw_arrays()}

    def _column_run(self, saver: Saver, step: int) -> ColumnRun:
        owner = next(p.partition for p in self.parties_.values() if p.role == OWNER)
        rows = {"plan_rows": self.row_plan_.rows, "all_rows": self.row_plan_.all_rows}
        return ColumnRun(self, self._facts(owner=owner, **rows), saver, step)

    def _learn_columns(self, saver: Saver, step: int) -> Rounds:
        if self.C is None:
            self.choice_.tuned = {"C": 1.0, "by": "nothing", "why": "the split is vertical"}
        run = self._column_run(saver, step)
        with part("train"):
            ended = self._note_end(*(yield from run.iterate(self.saved_meta_)))
            counts = yield from run.judge()
        found: dict[str, Any] = {"objective": run.last.objective, **ended}
        if counts.size:
            return found | self.judge_by(run.yard, counts)
        self.nodes.note_untold()
        return found

    def _note_end(self, last: int, converged: bool, apart: str) -> dict[str, Any]:
        if self.notes_ and not converged and self.num_rounds < self.default_rounds:
            self.notes_.append(f"stopped after {last} iterations, which is its share: {apart}")
        return iterations_ended(last, converged, apart, MORE_ROUNDS)

    # -- predictions with a saved model

    def predict_at_nodes(
        self,
        grid: Grid,
        arrays: Mapping[str, NDArray[Any]],
        meta: Mapping[str, Any],
        *,
        timeout: float = 3600,
    ) -> None:
        """Have held-out rows predicted with a saved model.

        Users of a horizontal split get the model and predict their own rows. In a vertical split
        agents and label owner use the parts of the model that they kept, and the label owner gets
        the outputs. Only the number of rows is sent to the server. ``arrays`` and ``meta`` are from
        :meth:`model`; ``timeout`` is in seconds per exchange.

        Raises
        ------
        CheckpointError
            The model has another method, other options or other nodes.
        CohortError, ProtocolError, TableError, OptionError
            See :meth:`start`.
        """
        shapes: dict[str, tuple[int, ...]] = {}  # a vertical split has no arrays
        if meta["partition"] != "vertical":
            width = model_columns(int(meta["columns"]), int(meta["features"]))
            shapes = {"weights": (meta["outputs"], width), "bias": (meta["outputs"],)}
        check_model(self.method, arrays, meta, shapes)
        own = {name: getattr(self, held) for name, held in _OF_MODELS.items()}
        check_made_with(type(self), own, meta)
        self.begin()
        self.predicting = str(meta["session"])
        self.run_seed, self.model_ = int(meta["seed"]), dict(arrays)
        numbers = meta.get("calibration", ())

        def rounds(parties: Sequence[DescribeReply]) -> Rounds:
            if meta["tables"] != self._tables():
                raise CheckpointError(
                    "the nodes have other columns, groups or classes than the model was made with",
                    remedy="bring back the tables and groups of that run",
                    code="FK-MODEL-PARTIES",
                )
            if self.partition == "vertical":
                columns = self._column_run(Saver(0, ""), 0)
                samples = yield from columns.predict(self.predicting, numbers)
            else:
                rows = RowRun(self, self._facts(), Saver(0, ""), 0)
                samples = yield from rows.predict(arrays, meta)
            return {"predicted_rows": samples}

        self.conduct(grid, rounds, timeout=timeout)

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> HierarchicalSVM:
        """Return a strategy with the options of a saved model of this method (CheckpointError)."""
        numbers = ("outputs", "columns", "features", "gamma", "seed", "feature_seed")
        check_model(cls.method, {}, meta, {}, (*_OF_MODELS, *numbers, "session", "tables"))
        chosen = {name: meta[name] for name in _OF_MODELS}
        if meta.get("architecture") == "centralised":  # the groups that nodes name do not matter
            chosen["architecture"] = "centralised"
        if meta.get("privacy_epsilon") is not None:
            chosen |= {n: meta[n] for n in ("C", *declared(PrivateMethod)) if n in meta}
        if meta["model"] == "rbf":
            chosen |= {"features": meta["features"], "gamma": meta["gamma"]}
        return cls(**chosen, **more)

    # -- what a method reports

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        meta = {
            **self.options(),
            "C": self.C_,
            "columns": self.columns_,
            "features": self.frequencies,
            "gamma": self.chosen_gamma,
            "feature_seed": self.run_seed,
            "outputs": self.outputs_,
            "classes": self.classes_,
            "session": self.predicting or self.session,
            "tables": self._tables(),
            "calibration": self.calibration_numbers(),
        }
        return dict(self.model_), meta

    def fitted(self, classes: Sequence[Any] = ()) -> FittedModel:
        if self.partition == "vertical":
            super().fitted(classes)  # raises an error with the reason
        return FittedModel.of_server(self.method, "linear", *self.model(), classes or self.classes_)

    def _tables(self) -> dict[str, list[Any]]:
        tables: dict[str, list[Any]] = {}
        for group in self.groups_:
            first = self.party_of(group.users[0])
            number = str(group.number) if self.partition == "vertical" else "all"
            tables.setdefault(number, [first.columns, first.features])
        if labelled := next((p for p in self.parties_.values() if p.outputs), None):
            tables["labels"] = [labelled.labels, labelled.label_bound]
        return tables

    def privacy(self) -> dict[str, Any]:
        sums = self.sums_privacy()
        cohorts = sums.get("cohorts", [])
        agents = self.lost_groups == "leave-out"  # these may lack some
        for cohort in cohorts[: len(cohorts) - agents]:
            cohort["threshold"] = cohort.pop("parties")
            cohort["parties"] = cohort["threshold"]
            del cohort["shares_to_open"]
        if self.predicting:
            return predictions_seen_by(self.partition, sums)
        found = {**sums, **seen_by(self.options(), self.layers), **self.budget_report()}
        for one in found["budget"]["releases"] if "budget" in found else ():
            if one["release"] == linear_model.GRADIENT_SUM:  # one of many such releases
                one["times"] = self.num_rounds
        return found

    def matched(self) -> dict[str, Any]:
        groups = {
            str(group.number): {"users": list(group.users), "agent": group.agent}
            for group in self.groups_
        }
        dropped = self.row_plan_.dropped
        return {"groups": groups, "dropped_rows": dropped} if dropped else {"groups": groups}

    def summary(self) -> None:
        text = "lost_groups leave-out shows the server about what a lost group had contributed"
        if self.lost_groups == "leave-out" and not self.predicting:
            logger.warning(text)
        if not self.predicting:
            super().summary()


# -- which options go together


def needs_agents(strategy: HierarchicalSVM) -> list[str]:
    used = {
        "partition vertical": strategy.partition == "vertical",
        "staleness": strategy.staleness > 0,
        "step_sizes": strategy.step_sizes is not None,
        "sigma": strategy.sigma is not None,
        "lost_groups leave-out": strategy.lost_groups == "leave-out",
    }
    return [name for name, is_used in used.items() if is_used]


def broken_rules(strategy: HierarchicalSVM) -> Iterator[tuple[str, str]]:
    """Yield the code, and problem with remedy, of each rule that the options break."""
    vertical, kernel = strategy.partition == "vertical", strategy.kind == "rbf"
    admm = [name for name in _ADMM if getattr(strategy, name) is not None]
    late, weighted = strategy.staleness > 0, strategy.class_weight is not None
    for name in ("features", "gamma"):
        if getattr(strategy, name) is not None and not kernel:
            yield "FK-OPTION-CONFLICT", f"{name} is for model rbf; add model rbf, or leave it out"
    if vertical:
        for name in admm:
            text = f"{name} has no meaning in a vertical split; leave it out"
            yield "FK-OPTION-CONFLICT", text
        if late or strategy.lost_groups == "leave-out":
            text = "a vertical split needs every group in every iteration"
            yield "FK-OPTION-CONFLICT", f"{text}; leave staleness and lost_groups out"
        if weighted:
            text = "class_weight is for horizontal splits; leave it out"
            yield "FK-OPTION-CONFLICT", text
        if kernel:
            text = "model rbf needs all columns of a row; use fdskl for vertical splits"
            yield "FK-SPLIT-KERNEL", text
    if strategy.architecture == "centralised":
        for name in needs_agents(strategy):
            yield "FK-GROUPS-OPTION", f"{name} needs agents; use architecture hierarchical"
    if {"rho", "step_sizes"} <= set(admm):
        yield "FK-OPTION-BOTH", "rho and step_sizes are both given; give one of them"
    if late and strategy.rho_schedule in ("balanced", "scaled"):
        text = "groups that do not wait have no residuals in common; use another rho_schedule"
        yield "FK-SVM-STALENESS", text
    if strategy.budget is None:
        return
    if vertical:
        text = "privacy_epsilon is for horizontal splits; of columns fed-cg with basis fourier"
        yield "FK-BUDGET-SPLIT", f"{text} keeps a budget"
    if strategy.architecture == "hierarchical" or needs_agents(strategy):
        text = "privacy_epsilon is for one sum of all users; use architecture centralised"
        yield "FK-BUDGET-OPTION", f"{text}, where no group needs noise of its own"
    if strategy.scale == "none":
        text = "scale none has no meaning with privacy_epsilon; leave it out"
        yield "FK-BUDGET-OPTION", f"{text}, columns are to lie in [0, 1]"
    if admm:
        text = f"{' and '.join(admm)} are those of ADMM, privacy_epsilon takes steps of its own"
        yield "FK-BUDGET-OPTION", f"{text}; leave them out"
    if strategy.loss not in linear_model.BOUNDED:
        text = "privacy_epsilon is for losses whose derivatives are bounded; use model linear, rbf"
        yield "FK-BUDGET-LOSS", f"{text} or logistic, or for numbers fed-cg with basis fourier"
    if strategy.C is None:
        text = "C is not chosen by the rows in a run with privacy_epsilon; give C, such as 1"
        yield "FK-BUDGET-CHOICE", text
    if weighted:
        yield "FK-BUDGET-WEIGHTS", "class_weight counts classes without noise; leave it out"

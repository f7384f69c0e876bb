"""HierarchicalSVM: linear and kernel classifiers from users in groups, each with an agent."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedkern_flwr import groups
from fedkern_flwr.consensus import (
    CONSENSUS,
    RHO_SCHEDULES,
    Consensus,
    Floats,
    RhoSchedule,
    initial_rho,
)
from fedkern_flwr.errors import CheckpointError, EngineError, FedKernError, OptionError
from fedkern_flwr.groups import DEFAULT_BOUND, Group
from fedkern_flwr.linear_model import LOSS_OF, MODELS, Model
from fedkern_flwr.local_solvers import Loss
from fedkern_flwr.model_file import check_model
from fedkern_flwr.online import check_choice
from fedkern_flwr.orthogonal_product import PRODUCTS, Product
from fedkern_flwr.product_kernel import check_gamma
from fedkern_flwr.strategy import Arrays, at_least, logger
from fedkern_flwr.vertical import MISSING_ROWS, MissingRows
from fedkern_flwr.wire.hierarchical import SVMDescribeReply

from .hierarchical_flat import FlatLoop
from .hierarchical_groups import GroupLoop
from .hierarchical_predictions import PredictionLoop, predict_at_users, shapes_of
from .hierarchical_privacy import predictions_seen_by, seen_by, warning_of_groups, warnings_of
from .hierarchical_steps import Steps
from .hierarchical_vertical import VisitLoop
from .whole_cohort import WholeCohortStrategy

Partition = Literal["horizontal", "vertical"]
Architecture = Literal["hierarchical", "centralised", "chain"]
Scale = Literal["standard", "none"]
AgentTopology = Literal["pairwise", "ring"]
LostGroups = Literal["stop", "leave-out"]
PARTITIONS = ("horizontal", "vertical")
ARCHITECTURES = ("hierarchical", "centralised", "chain")

#: Options that determine who predicts, and the attributes that hold them.
_OF_MODELS = {
    "partition": "partition",
    "model": "kind",
    "architecture": "architecture",
    "product": "product",
}
_FEATURES = 500
_RELAXATION = 1.7
_RESIDUAL, _GAP = 0.01, 1e-3


class HierarchicalSVM(WholeCohortStrategy):
    """HierarchicalSVM: linear and kernel classifiers from users in groups, each with an agent.

    Minimises 1/2 |w|^2 + C sum_n loss(y_n, w^T x_n + b) over the rows of all users. In a horizontal
    split by consensus ADMM in two layers, see :mod:`fedkern_flwr.consensus`: users solve their part
    of the problem, agents open the sums of their groups and nobody else does, the server makes the
    global model from the agents' masked sum. In a vertical split by
    :mod:`fedkern_flwr.dual_subspace`. Both take two exchanges an iteration.

    Parameters
    ----------
    partition : {"horizontal", "vertical"} (default: "horizontal")
        Users hold rows; or the users of a group rows of its block of columns.
    model : {"linear", "rbf", "logistic", "ridge"} (default: "linear")
        Linear SVM, SVM on random Fourier features of a Gaussian kernel, logistic or ridge
        regression. More than two classes: one model per class against the rest.
    architecture : {"hierarchical", "centralised", "chain"} (default: "hierarchical")
        Two layers; all users around the server, one exchange an iteration; or each user with its
        two neighbours (the paper's "fully distributed").
    consensus : {"exact", "paper"} (default: "exact")
        Two-block ADMM, which reaches the pooled optimum; or our reading of the paper's equation 11,
        which does not.
    C : float (default: 1.0)
        Weight of the losses.
    rho : float, optional
        First penalty of the users, by default C where it rises and 3 C otherwise.
    sigma : float, optional
        Penalty of the agents, by default rho times users per group.
    rho_schedule : {"rising", "balanced", "fixed"}, optional
        The penalty grows 20 times within 40 iterations, which is the default; or follows the
        residuals; or stays, which is the default where ``rho`` or ``step_sizes`` are given.
    relaxation : float, optional
        Over-relaxation in [1, 2), by default 1.7; with ``consensus="paper"`` 1.
    scale : {"standard", "none"} (default: "standard")
        The model penalises the weights of columns that are brought to mean 0 and variance 1, or of
        the columns as they are; random features are made of them. Means and variances of all users'
        rows are summed securely.
    features : int, optional
        Of ``rbf``: number D of random frequencies, by default 500.
    gamma : float, optional
        Of ``rbf``: width, by default 1 / number of columns.
    agent_topology : {"pairwise", "ring"} (default: "pairwise")
        Agents' terms are summed with pairwise masks, or passed round a ring of at least three.
    product : {"local", "orthogonal"} (default: "local")
        Of vertical splits: the multiplier goes to the user; or the paper's secure matrix product.
    staleness : int (default: 0)
        D: how many iterations a group may be ahead of the slowest. 0 is synchronous.
    step_sizes : sequence of float, optional
        First rho of each group.
    tolerance : float, optional
        The run ends when the relative primal and dual residuals are at most that, by default 0.01,
        where the objective is about 1e-3 from the optimum; in a vertical split the relative duality
        gap, by default 1e-3.
    lost_groups : {"stop", "leave-out"}, optional
        What to do with a group whose agent or user does not answer. ``stop`` is the default; the
        ring leaves out.
    missing : {"error", "drop-row"} (default: "error")
        Of vertical splits: labelled rows that some group does not hold end the run, or are left
        out.
    bound : float (default: 2**20)
        Public bound on the numbers that are summed.
    attempts : int (default: 5)
        An exchange that somebody failed to answer is repeated so often in all.
    allow_single : bool (default: False)
        Let agents see the models of users that are alone in their group.
    checkpoint_every : int (default: 10)
        Iterations from one checkpoint to the next.
    **common
        Options of :class:`~fedkern_flwr.strategies.whole_cohort.WholeCohortStrategy`.

    Attributes
    ----------
    groups_ : tuple of Group
        Who belongs to which group.
    row_plan_ : RowPlan
        Of vertical splits: which rows belong together.
    trace_ : list of (float, int, ndarray)
        Seconds since the start, iterations of the slowest group and global model, for each of the
        agents' totals.
    model_ : ndarray, shape (k, d + 1)
        The model in the coordinates of the run.
    outputs_, classes_, label_bound_
        What the labels are.
    saved : int
        Iteration of the last checkpoint.
    rounds : int
        Most iterations of the run.

    References
    ----------
    Jia, Guo and Fang, "Efficient Privacy-Preserving Machine Learning in Hierarchical Distributed
    System", IEEE TNSE 2019.
    """

    method: ClassVar[str] = "hierarchical-svm"
    title: ClassVar[str] = "HierarchicalSVM"
    fixed: ClassVar[frozenset[str]] = WholeCohortStrategy.fixed - {"checkpoint_every"}
    described = SVMDescribeReply

    def __init__(
        self,
        *,
        partition: Partition = "horizontal",
        model: Model = "linear",
        architecture: Architecture = "hierarchical",
        consensus: Consensus = "exact",
        C: float = 1.0,
        rho: float | None = None,
        sigma: float | None = None,
        rho_schedule: RhoSchedule | None = None,
        relaxation: float | None = None,
        scale: Scale = "standard",
        features: int | None = None,
        gamma: float | None = None,
        agent_topology: AgentTopology = "pairwise",
        product: Product = "local",
        staleness: int = 0,
        step_sizes: Sequence[float] | None = None,
        tolerance: float | None = None,
        lost_groups: LostGroups | None = None,
        missing: MissingRows = "error",
        bound: float = DEFAULT_BOUND,
        attempts: int = 5,
        checkpoint_every: int = 10,
        **common: Any,
    ) -> None:
        check_choice("partition", partition, PARTITIONS)
        check_choice("model", model, MODELS)
        check_choice("architecture", architecture, ARCHITECTURES)
        check_choice("consensus", consensus, CONSENSUS)
        check_choice("scale", scale, ("standard", "none"))
        check_choice("agent_topology", agent_topology, ("pairwise", "ring"))
        check_choice("product", product, PRODUCTS)
        check_choice("missing", missing, MISSING_ROWS)
        if rho_schedule is not None:
            check_choice("rho_schedule", rho_schedule, RHO_SCHEDULES)
        if lost_groups is not None:
            check_choice("lost_groups", lost_groups, ("stop", "leave-out"))
        self.step_sizes = None if step_sizes is None else tuple(map(float, step_sizes))
        positive = {"C": C, "rho": rho, "sigma": sigma, "tolerance": tolerance, "bound": bound}
        positive |= {f"step size {k}": v for k, v in enumerate(self.step_sizes or ())}
        for name, value in positive.items():
            if value is not None and not 0.0 < value < np.inf:
                raise OptionError(f"{name} is {value}", remedy="use a positive number")
        if relaxation is not None and not 1.0 <= relaxation < 2.0:
            raise OptionError(f"relaxation is {relaxation}", remedy="use a number in [1, 2)")
        at_least("staleness", staleness, 0)
        if features is not None:
            at_least("features", features, 1)
        if gamma is not None:
            check_gamma(gamma)
        self.partition, self.architecture, self.consensus = partition, architecture, consensus
        self.kind, self.C, self.rho, self.sigma = model, C, rho, sigma
        self.rho_schedule, self.relaxation, self.scale = rho_schedule, relaxation, scale
        self.features, self.gamma, self.agent_topology = features, gamma, agent_topology
        self.product, self.staleness, self.given_tolerance = product, staleness, tolerance
        self.lost_groups, self.missing, self.bound = lost_groups, missing, float(bound)
        super().__init__(attempts=attempts, checkpoint_every=checkpoint_every, **common)
        self._check_together()

    def _check_together(self) -> None:
        """Refuse options that do not go together."""
        for name, value in {"features": self.features, "gamma": self.gamma}.items():
            if value is not None and self.kind != "rbf":
                _refuse(f"{name} is for model rbf", "add model rbf, or leave it out")
        if self.partition == "vertical":
            admm = {
                "rho": self.rho,
                "sigma": self.sigma,
                "rho_schedule": self.rho_schedule,
                "relaxation": self.relaxation,
                "step_sizes": self.step_sizes,
            }
            given = [name for name, value in admm.items() if value is not None]
            if given:
                _refuse(f"{given[0]} has no meaning in a vertical split", "leave it out")
            if self.kind == "rbf":
                _refuse("model rbf needs all columns of a row", "use fdskl for vertical splits")
            if self.architecture != "hierarchical":
                _refuse(
                    f"architecture {self.architecture} is for horizontal splits",
                    "use architecture hierarchical",
                )
            if self.consensus == "paper" or self.agent_topology == "ring":
                _refuse(
                    "consensus paper and agent_topology ring are for horizontal splits",
                    "leave them out: agents of a vertical split sum nothing among themselves",
                )
            if self.staleness or self.lost_groups == "leave-out":
                _refuse(
                    "a vertical split needs every group in every iteration",
                    "leave staleness and lost_groups out",
                )
        elif self.product == "orthogonal":
            _refuse("product orthogonal is for vertical splits", "use partition vertical")
        if self.architecture != "hierarchical":
            layers = {
                "consensus paper": self.consensus == "paper",
                "agent_topology ring": self.ring,
                "staleness": bool(self.staleness),
                "step_sizes": self.step_sizes is not None,
                "sigma": self.sigma is not None,
                "lost_groups leave-out": self.lost_groups == "leave-out",
            }
            given = [name for name, used in layers.items() if used]
            if given:
                _refuse(f"{given[0]} needs agents", "use architecture hierarchical")
        if self.consensus == "paper" and self.sigma is not None:
            _refuse("sigma has no meaning in consensus paper", "leave it out")
        if self.architecture == "chain" and (
            self.relaxation is not None or self.rho_schedule == "rising"
        ):
            _refuse(
                "relaxation and rho_schedule rising have no meaning in a chain", "leave them out"
            )
        if self.step_sizes is not None and self.rho is not None:
            _refuse("rho and step_sizes are both given", "give one of them")
        if self.staleness and self.chosen_schedule == "balanced":
            _refuse(
                "residuals of groups that do not wait cannot be balanced", "use another schedule"
            )

    def _reset(self) -> None:
        super()._reset()
        self.groups_: tuple[Group, ...] = ()
        self.row_plan_ = groups.RowPlan(0, 0, np.zeros(0, np.int32), {}, {}, 0)
        self.trace_: list[tuple[float, int, Floats]] = []
        self.model_ = np.zeros((0, 0))
        self.outputs_, self.classes_, self.label_bound_ = 0, 0, 1.0
        self.saved, self.rounds = 0, 0
        self._arrays: Arrays = {}
        self._columns = 0
        self._predicting = False

    # -- what follows from the options

    @property
    def ring(self) -> bool:
        """Whether the agents' terms go round a ring."""
        return self.agent_topology == "ring"

    @property
    def loss(self) -> Loss:
        """The loss of the model."""
        return LOSS_OF[self.kind]

    @property
    def frequencies(self) -> int:
        """D, 0 for models of the columns."""
        return (self.features or _FEATURES) if self.kind == "rbf" else 0

    def chosen_gamma(self, columns: int) -> float:
        """Return the width of the kernel, 0 without one."""
        if self.kind != "rbf":
            return 0.0
        return 1.0 / max(1, columns) if self.gamma is None else self.gamma

    @property
    def chosen_schedule(self) -> RhoSchedule:
        """How rho changes."""
        if self.rho_schedule is not None:
            return self.rho_schedule
        given = self.rho is not None or self.step_sizes is not None
        flat = given or self.consensus == "paper" or self.architecture == "chain"
        return "fixed" if flat else "rising"

    @property
    def chosen_relaxation(self) -> float:
        """The over-relaxation."""
        if self.relaxation is not None:
            return self.relaxation
        return 1.0 if self.consensus == "paper" or self.architecture == "chain" else _RELAXATION

    @property
    def tolerance(self) -> float:
        """When the run ends."""
        if self.given_tolerance is not None:
            return self.given_tolerance
        return _GAP if self.partition == "vertical" else _RESIDUAL

    @property
    def standardising(self) -> bool:
        """Whether ADMM runs on standardised columns, whatever the model penalises."""
        plain = self.scale == "none" or self.frequencies
        return self.consensus == "exact" or not plain

    @property
    def losing(self) -> LostGroups:
        """What is done with a lost group."""
        return self.lost_groups or ("leave-out" if self.ring else "stop")

    @property
    def least_agents(self) -> int:
        """Agents that must be left when groups are left out."""
        return 3 if self.ring else max(2, len(self.groups_) // 2 + 1)

    def first_rho(self, group: int) -> float:
        """Return rho of a group in the first iteration."""
        if self.step_sizes is not None:
            return self.step_sizes[[g.number for g in self.groups_].index(group)]
        if self.rho is not None:
            return self.rho
        return self.C if self.architecture == "chain" else initial_rho(self.chosen_schedule, self.C)

    # -- what a method tells about itself

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        names = (
            "partition",
            "architecture",
            "consensus",
            "C",
            "rho",
            "sigma",
            "scale",
            "features",
            "gamma",
            "agent_topology",
            "product",
            "staleness",
            "tolerance",
        )
        found = {**super().options(), **{name: getattr(self, name) for name in names}}
        found |= {
            "model": self.kind,
            "rho_schedule": self.chosen_schedule,
            "relaxation": self.chosen_relaxation,
            "step_sizes": list(self.step_sizes) if self.step_sizes is not None else None,
            "lost_groups": self.losing,
        }
        return {**found, "seed": self.run_seed}

    def model(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the model for columns as they are; in a vertical split its parts stay behind."""
        meta = {
            **self.options(),
            "columns": self._columns,
            "features": self.frequencies,
            "gamma": self.chosen_gamma(self._columns),
            "feature_seed": self.run_seed,
            "outputs": self.outputs_,
            "classes": self.classes_,
            "session": self.model_of[0] or self.session,
            "tables": self._tables(),
        }
        return dict(self._arrays), meta

    def _tables(self) -> dict[str, list[Any]]:
        """Return names and number of the columns of each group, and what the labels are."""
        known = {p.partition: p for p in self.described_parties()}
        tables: dict[str, list[Any]] = {}
        for group in self.groups_:
            first = known[group.users[0]]
            number = str(group.number) if self.partition == "vertical" else "all"
            tables.setdefault(number, [first.columns, first.features])
        if labelled := next((p for p in known.values() if p.outputs), None):
            tables["labels"] = [labelled.labels, labelled.label_bound]
        return tables

    def privacy(self) -> dict[str, Any]:
        """Return what is seen by whom."""
        if self._predicting:
            return predictions_seen_by(self)
        others = self.losing == "leave-out" and not self.ring
        return {**self.whole_sums_privacy(int(others)), **seen_by(self)}

    def matched(self) -> dict[str, Any]:
        """Return who is in which group, and how many rows were left out."""
        found: dict[str, Any] = {
            "groups": {
                str(group.number): {"users": list(group.users), "agent": group.agent}
                for group in self.groups_
            }
        }
        if self.row_plan_.dropped:
            found["dropped_rows"] = self.row_plan_.dropped
        return found

    # -- set-up

    def check_parties(self, parties: Sequence[Any]) -> None:
        """Refuse nodes that clash."""
        groups.check_parties(parties)

    def cohorts(self) -> list[list[int]] | None:
        """Return the sets of nodes that sum: all users, the groups, the agents."""
        parties = list(self.described_parties())
        self.groups_ = groups.read_groups(parties, layers=self.architecture == "hierarchical")
        self._check_groups()
        first = (
            groups.check_vertical(parties, self.groups_, product=self.product)
            if self.partition == "vertical"
            else groups.check_horizontal(parties)
        )
        groups.check_single(self.groups_, parties, allow_single=self.allow_single)
        if not self._predicting and (text := warning_of_groups(self)):
            logger.warning(text)
        self.outputs_, self.classes_ = first.outputs, first.classes
        self.label_bound_ = first.label_bound
        known = {p.partition: p for p in parties}
        self._columns = first.features
        if self.partition == "vertical":
            self._columns = sum(known[group.users[0]].features for group in self.groups_)
        if self.loss != "squared" and not self.classes_:
            raise OptionError(
                f"model {self.kind} is for classes, the labels are numbers",
                remedy="use model ridge, or name the classes at all nodes with labels",
            )
        users = [user for group in self.groups_ for user in group.users]
        if self.partition == "vertical":
            users.append(first.partition)
            self.row_plan_ = groups.match_rows(
                parties,
                self.groups_,
                drop=self.missing == "drop-row",
                held_out=self._predicting,
            )
        found = [sorted(users)]
        if self.architecture == "hierarchical":
            found += [group.members for group in self.groups_]
            agents = [group.agent for group in self.groups_]
            if self.product == "orthogonal":  # the owner seals its messages for the agents
                found.append(sorted([*agents, first.partition]))
            elif self.partition == "horizontal" and len(agents) > 1:
                found.append(sorted(agents))
        return found

    def _check_groups(self) -> None:
        count = len(self.groups_)
        if self.ring and count < 3:
            raise OptionError(
                f"a ring of {count} agents shows each the other's term",
                remedy="use at least 3 groups, or agent_topology pairwise",
            )
        if self.step_sizes is not None and len(self.step_sizes) != count:
            raise OptionError(
                f"{len(self.step_sizes)} step sizes for {count} groups",
                remedy="give each group one",
            )
        if self.losing == "leave-out" and not self.ring and count < 3:
            raise OptionError(
                f"of {count} groups none can be left out: the total would be that of one",
                remedy="use lost_groups stop",
            )

    def thresholds(self, cohorts: int) -> list[int | None]:
        """Return the thresholds; where groups may be left out, more than half of the agents."""
        found: list[int | None] = [None] * cohorts
        if self.losing == "leave-out":
            found[-1] = self.least_agents
        return found

    def partners_of(self, user: int) -> list[int]:
        """Return with whom a user exchanges sealed messages."""
        if self.architecture == "hierarchical":
            return [g.agent for g in self.groups_ if user in g.users]
        if self.architecture == "chain":
            users = self.groups_[0].users
            k = users.index(user)
            return [*users[max(0, k - 1) : k], *users[k + 1 : k + 2]]
        return []

    def nodes_digest(self) -> str:
        """Return a digest of who is there with how many rows, to be the same after a resume."""
        digest = hashlib.sha256()
        for p in self.described_parties():
            digest.update(
                repr((p.partition, p.role, p.group, p.rows, p.test_rows, p.features)).encode()
            )
        return digest.hexdigest()

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
        """Fit the model and judge it on held-out rows.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        initial_arrays : ArrayRecord, optional
            Not used: ADMM starts at zero.
        num_rounds : int (default: 200)
            Most iterations.
        timeout : float (default: 3600)
            Seconds to wait for the replies of one exchange.
        train_config : ConfigRecord, optional
            ``seed`` is the run's seed for strategies that have none of their own.
        evaluate_config, evaluate_fn : optional
            Not used.

        Returns
        -------
        Result
            The weights and biases of a horizontal split; metrics per iteration.

        Raises
        ------
        CohortError, ProtocolError, TableError, SumError, EngineError, CheckpointError, OptionError
            The run cannot start or go on. A checkpoint, if one was written, stays.
        """
        at_least("num_rounds", num_rounds, 1)
        self._reset()
        self.rounds = num_rounds
        seed = self.seed if train_config is None else train_config.get("seed", self.seed)
        self.run_seed = int((self.seed if self.seed is not None else seed) or 0)  # type: ignore[arg-type]
        at_least("seed", self.run_seed, 0)
        for text in warnings_of(self):
            logger.warning(text)
        self.summary()
        restored = self.restore()
        self.gather(grid, resume_round=int(restored[1]["saved"]) if restored else 0, secure=True)
        if restored:
            self._go_on(restored[1])
        try:
            if self.partition == "vertical":
                self.metrics_ = VisitLoop(self, grid, timeout).run(num_rounds, restored)
            else:
                self._fit(Steps(self, grid, timeout), restored)
        except EngineError:
            raise  # nobody can be reached any more
        except FedKernError:
            self._part(grid, timeout)
            raise
        self._part(grid, timeout)
        result = Result()
        if self._arrays:
            result.arrays = ArrayRecord([self._arrays["weights"], self._arrays["bias"]])
        for row in self.history_:
            numbers = {k: v for k, v in row.items() if k != "round"}
            result.train_metrics_clientapp[row["round"]] = MetricRecord(numbers)
        return result

    def predict(
        self,
        grid: Grid,
        arrays: Mapping[str, NDArray[Any]],
        meta: Mapping[str, Any],
        *,
        timeout: float = 3600,
    ) -> None:
        """Have held-out rows predicted with a model that was saved.

        Users of a horizontal split get the model and predict their own rows. In a vertical split
        agents and label owner take up their parts of the model, which they kept; the label owner
        gets the outputs of its rows. Nothing but their number is sent to the server.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        arrays : mapping
            Arrays of the model, see :meth:`model`.
        meta : mapping
            What else belongs to the model.
        timeout : float (default: 3600)
            Seconds to wait for the replies of one exchange.

        Raises
        ------
        CheckpointError
            The model is not one of this method, of these options or of these nodes.
        CohortError, ProtocolError, TableError, OptionError
            See :meth:`start`.
        """
        check_model(self.method, arrays, meta, shapes_of(meta))
        if any(meta.get(name) != getattr(self, own) for name, own in _OF_MODELS.items()):
            raise CheckpointError(
                "the model was made with other options", remedy="use HierarchicalSVM.of_model(meta)"
            )
        self._reset()
        self._predicting, self.model_of = True, (str(meta["session"]), 0)
        self.run_seed, self._arrays = int(meta["seed"]), dict(arrays)
        self.gather(grid, secure=True)
        try:
            if meta["tables"] != self._tables():
                raise CheckpointError(
                    "the nodes have other columns, groups or classes than the model was made with",
                    remedy="bring back the tables and groups of that run",
                )
            if self.partition == "vertical":
                samples = PredictionLoop(self, grid, timeout).predict(self.model_of[0])
            else:
                samples = predict_at_users(self, grid, arrays, meta, timeout)
            self.metrics_ = {"predicted_rows": samples}
        finally:
            self._part(grid, timeout)

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> HierarchicalSVM:
        """Return a strategy with the options of a model that was saved.

        Raises
        ------
        CheckpointError
            It is not a model of this method.
        """
        check_model(cls.method, {}, meta, {})
        numbers = {"outputs", "columns", "features", "gamma", "seed", "feature_seed"}
        if not {*_OF_MODELS, *numbers, "session", "tables"} <= set(meta):
            raise CheckpointError(
                "the model says too little of itself", remedy="bring the file that the run saved"
            )
        chosen = {name: meta[name] for name in _OF_MODELS}
        if meta["model"] == "rbf":
            chosen |= {"features": meta["features"], "gamma": meta["gamma"]}
        return cls(**chosen, **more)

    def _go_on(self, meta: Mapping[str, Any]) -> None:
        if meta.get("nodes") != self.nodes_digest():
            raise CheckpointError(
                f"the nodes are not those of the run of {self.checkpoint}",
                remedy="bring back the nodes and tables of that run, or start anew",
            )
        self.step, self.saved = int(meta["saved"]), int(meta["round"])
        assert self.sums is not None
        self.sums.go_on(meta["sums"])

    def _part(self, grid: Grid, timeout: float) -> None:
        """Let whoever is left erase the run's secrets."""
        with contextlib.suppress(FedKernError):
            self.finish(grid, number=self.step + 1, timeout=timeout)

    def _fit(self, steps: Steps, restored: tuple[Arrays, dict[str, Any]] | None) -> None:
        loop: GroupLoop | FlatLoop = (
            GroupLoop(steps) if self.architecture == "hierarchical" else FlatLoop(steps)
        )
        if restored:
            steps.read(*restored)
            loop.resume(*restored)
        else:
            steps.measure_columns()
        converged = loop.run(self.rounds)
        last = self.history_[-1]["round"] if self.history_ else 0
        self.model_ = loop.best[1] if loop.best is not None else loop.model
        lost = {u for g in self.groups_ if g.number in loop.lost for u in g.users}
        judged = steps.judge(self.model_, lost)
        weights, bias = steps.coordinates.model(self.model_)
        self._arrays = {"weights": weights, "bias": bias, **steps.raw_arrays()}
        self.metrics_ = {**judged, "iterations": last, "converged": converged}
        if loop.lost:
            self.metrics_["groups_left_out"] = len(loop.lost)


def _refuse(problem: str, remedy: str) -> NoReturn:
    raise OptionError(problem, remedy=remedy)

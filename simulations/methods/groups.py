"""HierarchicalSVM: data of groups of users, metrics, table and plot."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.checkpoint import run_folder, unpack_arrays
from fedkern_flwr.clients.table_client import PartyTable
from fedkern_flwr.encoding.columns import Scaling
from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.groups.consensus import Coordinates
from fedkern_flwr.groups.linear_model import LOSS_OF, model_rows
from fedkern_flwr.groups.messages import AGENT, OWNER, USER
from fedkern_flwr.judging.figures import in_units
from fedkern_flwr.options import check_choice
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.solvers.dual_subspace import objective, restricted_optimum
from fedkern_flwr.solvers.local_solvers import Loss
from fedkern_flwr.tables.table import Table, how_many
from fedkern_flwr.vertical.parties import MissingRows

from ...clients import SVMClient
from ...strategies import HierarchicalSVM, Method
from ..engines.faults import DelayLaw, GroupDelays, Plan
from ..run.datasets import RANDOM_LABELS, random_labels
from ..run.entries import Outcome
from ..run.options import METHOD, Option
from ..run.party_files import PartyFiles
from ..run.splits import Split, split_rows
from .base import (
    Config,
    Curves,
    Family,
    Kept,
    check_numbers,
    check_rounds,
    chosen,
    rows_of,
)
from .dealt_data import DealtData, DealtTable, LabelledSettings, alignment_key, check_sites, owners
from .new_rows import Parts
from .pooled import PooledSplit, error_of

Partition = Literal["horizontal", "vertical"]

DEFAULT_ROUNDS = 200
USERS, GROUPS = 20, 2  # by default, where there are groups
_CLOSE = 1e-3  # relative distance from the pooled optimum that counts as reached
_OPTIMUM = "  of the pooled optimum"
_CURVES = {
    "primal": "primal residual",
    "dual": "dual residual",
    "consensus_difference": "change of the model",
    "gap": "duality gap",
}


@dataclass(frozen=True)
class HierarchicalSettings(LabelledSettings):
    """Users, groups, and the data of each.

    In a horizontal split each user holds labelled rows. In a vertical split each group holds a
    block of columns, and a label owner holds the labels.

    Attributes
    ----------
    partition : {"horizontal", "vertical"}
        Split of the table.
    users : int
        Number of users, N (default: 20).
    groups : int or None
        Groups with an agent each, S (default: none; vertical: 2).
    group_sizes : tuple of int or None
        Users of each group, separated by commas, instead of --groups.
    split : {"iid", "site", "dirichlet"}
        Split of the rows among users (horizontal).
    alpha : float
        Concentration of the Dirichlet split.
    delay : str or None
        Simulated delay: exponential:SECONDS or fixed:SECONDS, also one per group.
    rounds : int or None
        Most iterations (default: 200).
    """

    of_method = frozenset({"partition"})
    worked_out = frozenset({"users", "groups"})

    test_size: float = 0.3
    missing: Literal["encode", MissingRows] = "error"
    scaling: Scaling = "none"
    partition: Partition = "horizontal"
    users: int = 20
    groups: int | None = None
    group_sizes: tuple[int, ...] | None = None
    split: Split = "iid"
    alpha: float = 0.5
    rounds: int | None = None
    delay: str | None = None

    @classmethod
    def counted(cls, files: PartyFiles) -> dict[str, Any]:
        """Return the number of users."""
        return {"users": len(files.owners), "partition": "horizontal", "split": "site"}

    @property
    def grouped(self) -> bool:
        """Whether groups were named."""
        return self.groups is not None or self.group_sizes is not None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Users of each group; without groups, all users."""
        sizes = self.group_sizes
        if sizes is None:
            groups = self.groups or (2 if self.partition == "vertical" else 1)
            if not 1 <= groups <= self.users or self.groups == 0:
                raise OptionError(
                    f"{self.users} users cannot be dealt to {self.groups} groups",
                    remedy="use at least one group, and at least as many users",
                    code="FK-PARTIES-FEW",
                )
            each, more = divmod(self.users, groups)
            sizes = tuple(each + (g < more) for g in range(groups))
        if min(sizes) < 1 or sum(sizes) != self.users:
            listed = ", ".join(map(str, sizes))
            raise OptionError(
                f"groups of {listed} users are not {self.users} users", code="FK-GROUPS-DIFFER"
            )
        return sizes

    def describe(self) -> str:
        """Describe the groups for a caption."""
        sizes = self.sizes
        if max(sizes) - min(sizes) > 1:
            return f"groups of {', '.join(map(str, sizes))} users"
        return f"{self.users} users in {len(sizes)} group{'s' * (len(sizes) > 1)}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Dealt(DealtTable):
    """One split of the pooled table.

    Attributes
    ----------
    blocks : tuple of ndarray
        Columns of each group, or all columns.
    holders : tuple of ndarray of int, each of shape (n,)
        User of each row, per block.
    vertical : bool
        Whether groups hold blocks and an owner the labels.
    sizes : tuple of int
        Users of each group.
    agents : bool
        Whether groups have agents.
    """

    blocks: tuple[NDArray[np.intp], ...]
    holders: tuple[NDArray[np.intp], ...]
    vertical: bool
    sizes: tuple[int, ...]
    agents: bool = True

    def alone(self) -> list[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
        """Return rows and columns of each user."""
        parts = zip(self.blocks, self.holders, strict=True)
        return [(who == user, block) for block, who in parts for user in np.unique(who)]

    @property
    def roles(self) -> tuple[str, ...]:
        """Role of each partition: users first, by group."""
        users, agents = sum(self.sizes), len(self.sizes) * self.agents
        return (*(USER,) * users, *(AGENT,) * agents, *(OWNER,) * self.vertical)

    def node(self, seed: int, partition: int) -> dict[str, Any]:
        """Return role, group and table of a node."""
        role, users, key = self.roles[partition], sum(self.sizes), alignment_key(seed)
        if role == AGENT:
            return {"role": AGENT, "group": partition - users}
        names = np.arange(len(self.y)).astype(str)
        if role == OWNER:
            rng = np.random.default_rng(derive_seed(seed, "label owner"))
            rows = rng.permutation(len(self.y))
            own = {**self._parts("ids", names, rows), "alignment_key": key, **self._targets(rows)}
            return {"role": OWNER, "table": _KeptTable(), **own}
        group = group_of(self.sizes)[partition]
        block = group if self.vertical else 0
        rows, columns = np.flatnonzero(self.holders[block] == partition), self.blocks[block]
        own = self._parts("x", self.x[:, columns], rows)
        if self.vertical:
            own |= {**self._parts("ids", names, rows), "alignment_key": key}
        else:
            own |= self._targets(rows)
        named = tuple(self.columns[c] for c in columns)
        return {"role": USER, "group": group, "table": _KeptTable(), "columns": named, **own}

    def configured(self, partition: int) -> dict[str, Any]:
        """Return the ids of the rows of a deployed user."""
        if self.ids is None or self.vertical or self.roles[partition] != USER:
            return {}
        rows = np.flatnonzero(self.holders[0] == partition)
        return self._parts("ids", np.arange(len(self.y)), rows)

    def _parts(self, name: str, values: NDArray[Any], rows: NDArray[np.intp]) -> dict[str, Any]:
        """Return values of training rows and, if there are any, of held-out rows."""
        train = self.train
        found = {name: values[rows[train[rows]]]}
        return found if train.all() else {**found, f"{name}_test": values[rows[~train[rows]]]}

    def _targets(self, rows: NDArray[np.intp]) -> dict[str, Any]:
        found = self._parts("y", self.y, rows)
        if not np.isfinite(found.get("y_test", 0.0)).all():  # of new rows nobody knows them
            del found["y_test"]
        return {**found, "classes": self.class_names or None, "label_bound": self.label_bound}


class _KeptTable:
    """Table of a simulated node, made once."""

    made: PartyTable | None = None

    def __call__(self, *rows: Any, **how: Any) -> PartyTable:
        """Return the table of a node."""
        if self.made is None:
            self.made = PartyTable(*rows, **how)
        return self.made


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupedSplit(PooledSplit):
    """Pooled split with the holders of rows and columns.

    Attributes
    ----------
    blocks : tuple of ndarray
        Columns of each group, or all columns.
    holders : tuple of ndarray of int, each of shape (n,)
        User of each training row, per block.
    sizes : tuple of int
        Users of each group.
    rounds : int or None
        Most iterations.
    """

    blocks: tuple[NDArray[np.intp], ...]
    holders: tuple[NDArray[np.intp], ...]
    sizes: tuple[int, ...]
    rounds: int | None


class HierarchicalData(DealtData[HierarchicalSettings, Dealt]):
    """A table dealt to groups.

    Parameters
    ----------
    settings : HierarchicalSettings
    """

    client, told = SVMClient, ("allow_single",)
    drawn = {RANDOM_LABELS: random_labels}  # noqa: RUF012

    def __init__(self, settings: HierarchicalSettings) -> None:
        self.sizes = settings.sizes
        super().__init__(settings)

    @property
    def num_clients(self) -> int:
        """Number of users, agents and label owners."""
        owners = self.settings.partition == "vertical"
        return self.settings.users + len(self.sizes) + owners

    def nodes(self, strategy: Method) -> int:
        """Return the number of nodes, with agents if there are any."""
        return self.num_clients if self.layers(strategy) else self.settings.users

    def sizes_of(self, strategy: Method) -> tuple[int, ...]:
        """Return the users of each group."""
        return self.sizes if self.layers(strategy) else (self.settings.users,)

    def layers(self, strategy: Method) -> bool:
        """Return whether groups have agents: by default if groups are given."""
        assert isinstance(strategy, HierarchicalSVM)
        unsaid = strategy.architecture is None and strategy.budget is None
        return strategy.layers or (unsaid and self.settings.grouped)

    def dealt_to(self, strategy: Method) -> Dealt:
        """Return the split of a run with its groups."""
        dealt, agents = super().dealt_to(strategy), self.layers(strategy)
        return replace(dealt, sizes=self.sizes_of(strategy), agents=agents)

    def variant(self, strategy: Method) -> tuple[Hashable, ...]:
        """Return what nodes and delays depend on."""
        settings = self.settings
        *told, seed = super().variant(strategy)
        own = settings.resplit or settings.delay or settings.partition == "vertical"
        return self.layers(strategy), *told, seed if own else 0

    def faults(self, strategy: Method) -> Plan | None:
        """Return the delays of a run."""
        if self.settings.delay is None:
            return None
        groups = group_of(self.sizes_of(strategy))
        return GroupDelays(DelayLaw.parse(self.settings.delay), groups, strategy.seed or 0)

    def pooled(self, seed: int) -> GroupedSplit:
        """Return the pooled split with its holders."""
        dealt = self.split(seed)
        holders = tuple(holder[dealt.train] for holder in dealt.holders)
        own: dict[str, Any] = {"sizes": self.sizes, "rounds": self.settings.rounds}
        return GroupedSplit(**vars(dealt.pooled()), blocks=dealt.blocks, holders=holders, **own)

    def facts(self) -> dict[str, Any]:
        """Return columns and rows of the groups."""
        first = self.split(self.settings.seed)
        return {
            **super().facts(),
            "users": self.settings.users,
            "group_sizes": list(self.sizes),
            "columns": first.names(first.blocks),
        }

    def deal(self, found: DealtTable, table: Table, seed: int) -> Dealt:
        """Deal columns and rows."""
        settings, sizes, train = self.settings, self.sizes, found.train
        vertical = settings.partition == "vertical"
        if not vertical:
            blocks: tuple[NDArray[np.intp], ...] = (np.arange(len(found.columns)),)
            holders = (deal_rows(settings, table, train, settings.users, seed),)
        else:
            blocks = found.columns_of(None, len(sizes), "groups")
            first = np.cumsum([0, *sizes[:-1]])
            seeds = [derive_seed(seed, "group", g) for g in range(len(sizes))]
            holders = tuple(
                start + deal_rows(settings, table, train, size, own)
                for start, size, own in zip(first, sizes, seeds, strict=True)
            )
        return Dealt(**vars(found), blocks=blocks, holders=holders, vertical=vertical, sizes=sizes)


def group_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the group of each user."""
    return tuple(np.repeat(np.arange(len(sizes)), sizes).tolist())


def deal_rows(
    settings: HierarchicalSettings, table: Table, train: NDArray[np.bool_], users: int, seed: int
) -> NDArray[np.intp]:
    """Return the user of each row; every user gets training rows."""
    if train.sum() < users:
        raise TableError(
            f"{int(train.sum())} training rows cannot be dealt to {users} users", code="FK-ROWS-FEW"
        )
    if settings.files is not None:
        return owners(table, train, users)
    kind = settings.split
    if kind == "site":
        check_sites(table.take(np.flatnonzero(train)), users, "users")
    holder = np.empty(table.rows, np.intp)
    rows, held_out = np.flatnonzero(train), np.flatnonzero(~train)
    for user, mine in enumerate(
        split_rows(table.take(rows), kind, users, seed, alpha=settings.alpha)
    ):
        holder[rows[mine]] = user
    rng = np.random.default_rng(derive_seed(seed, "held-out rows of users"))
    for user, mine in enumerate(np.array_split(rng.permutation(held_out), users)):
        holder[mine] = user  # the sum does not depend on the user that evaluates a row
    return holder


class HierarchicalFamily(Family[HierarchicalSVM, HierarchicalSettings, HierarchicalData]):
    """HierarchicalSVM."""

    strategies = (HierarchicalSVM,)
    settings, makes = HierarchicalSettings, HierarchicalData
    checked = ("centralised_objective", "objective_gap")
    app, deployable, nodes = "hierarchical_svm", ("hierarchical-svm",), 8
    dealt_by_nodes = ("users",)
    usual = "users groups partition model C class_weight"
    curves = (
        Curves("convergence", "Convergence", "residual, or gap relative to the objective", _CURVES),
    )
    data = "breast-cancer"
    own_options = (
        Option("step_sizes", str | None, None, "rho of each group, separated by commas.", METHOD),
    )
    always_secure = "a user's model shows its rows"

    def deal_nodes(self, values: Mapping[str, Any], nodes: int) -> dict[str, Any]:
        """Assign agents, the label owner and users to nodes."""
        layers = has_agents(values)
        groups = int(values.get("groups") or (GROUPS if layers else 1))
        if values.get("group_sizes"):
            groups = len(str(values["group_sizes"]).split(","))
        agents = groups if layers else 0
        users = nodes - agents - (values.get("partition") == "vertical")
        if users < groups:
            raise OptionError(
                f"{nodes} nodes are too few for {groups} groups",
                remedy="use more nodes: users, an agent per group and, if vertical, a label owner",
                code="FK-PARTIES-FEW",
            )
        return {"users": users}

    def config(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Make the configuration of a run."""
        sizes = read_numbers("group-sizes", values["group_sizes"], int)
        steps = read_numbers("step-sizes", values["step_sizes"], float)
        named = USERS if sizes is None else sum(sizes)
        users = named if values["users"] is None else values["users"]
        groups, layers = values["groups"], has_agents(values)
        if sizes is not None and groups not in (None, len(sizes)):
            raise OptionError(
                f"{len(sizes)} group sizes are not {groups} groups", code="FK-GROUPS-DIFFER"
            )
        if groups is None:
            alone = values.get("party") and users < 2 * GROUPS  # nobody is alone in a group
            several = GROUPS if layers and not alone else 1
            groups = len(sizes) if sizes is not None else several
        made = {"group_sizes": sizes, "step_sizes": steps, "users": users, "groups": groups}
        made["architecture"] = "hierarchical" if layers else "centralised"
        return super().config(name, {**values, **made})

    def check(self, config: Config) -> None:
        """Refuse options that cannot work before any data is read."""
        super().check(config)
        data, chosen = config["data"], config["options"]
        sizes = HierarchicalSettings.from_values(data).sizes
        hierarchical = chosen.get("architecture") != "centralised"
        groups = len(sizes)
        check_rounds(config)
        if not hierarchical and groups > 1:
            raise OptionError(
                f"architecture {chosen['architecture']} has no groups", code="FK-GROUPS-OPTION"
            )
        if data["users"] < 2:
            raise OptionError("a single user has nobody to sum with", code="FK-PARTIES-FEW")
        if hierarchical and min(sizes) == 1 and not chosen.get("allow_single"):
            raise OptionError(
                f"group {sizes.index(1) + 1} has a single user, and its agent would see the model",
                code="FK-GROUPS-SINGLE",
            )
        if chosen.get("lost_groups") == "leave-out" and groups < 3:
            raise OptionError(
                f"of {groups} groups none can be left out: the total would be that of one",
                code="FK-GROUPS-LEFT",
            )
        steps = chosen.get("step_sizes")
        if steps is not None and len(steps) != groups:
            raise OptionError(
                f"{len(steps)} step sizes are not {groups} groups", code="FK-GROUPS-DIFFER"
            )
        if data["delay"] is not None:
            DelayLaw.parse(data["delay"]).check(groups)
        if data["partition"] == "vertical" and data["split"] != "iid":
            raise OptionError(
                f"split {data['split']} is for users who hold whole rows",
                remedy="leave out --split, or use --partition horizontal",
                code="FK-OPTION-CONFLICT",
            )

    def check_data(self, config: Config, prepared: HierarchicalData) -> None:
        """Refuse options that cannot work with the data.

        Raises
        ------
        OptionError
        """
        super().check_data(config, prepared)
        model = config["options"].get("model", "linear")
        check_numbers(prepared, "model", model, "ridge")

    # -- data and runs

    def measure(
        self, strategy: HierarchicalSVM, prepared: HierarchicalData, config: Config
    ) -> dict[str, Any]:
        """Return the pooled optimum, kilobytes, and errors in units of the label."""
        users = prepared.settings.users
        found: dict[str, Any] = {"kilobytes_per_user": strategy.ledger_.bytes_up / 1e3 / users}
        pooled = prepared.pooled(strategy.seed or 0)
        found |= in_units(strategy.metrics_, pooled.label_unit)
        # the pooled optimum is that of equal weights, in coordinates that follow from the rows
        unlike = strategy.class_weight or strategy.budget is not None
        if unlike or not self.checks_pooled(prepared, config):
            return found
        features = None
        if strategy.frequencies:
            _, meta = strategy.model()
            features = partial(
                model_rows,
                features=int(meta["features"]),
                gamma=float(meta["gamma"]),
                seed=int(meta["feature_seed"]),
            )
        best = pooled_optimum(pooled, strategy.loss, strategy.C_, strategy.scale, features)
        if best is None:
            return found
        found["centralised_objective"] = best.objective
        found |= {f"centralised_{name}": value for name, value in best.metrics.items()}
        objective = strategy.metrics_.get("objective")
        if objective is not None:
            found["objective_gap"] = objective / best.objective - 1.0
            close = [
                row["round"]
                for row in strategy.history_
                if row.get("objective", np.inf) <= (1.0 + _CLOSE) * best.objective
            ]
            if close:
                found["iterations_to_pooled"] = close[0]
        return found

    def whole_model(
        self, strategy: HierarchicalSVM, prepared: HierarchicalData, kept: Kept
    ) -> Parts:
        """Return weights and biases from the files of agents and label owner."""
        arrays, meta = strategy.model()
        if strategy.partition == "vertical":
            split = prepared.split(strategy.seed or 0)

            def part(partition: int) -> dict[str, np.ndarray]:
                folder = run_folder(kept.state_dir, meta["session"], partition)
                return unpack_arrays((folder / f"partition-{partition}.model").read_bytes())[0]

            bias = part(prepared.num_clients - 1)["bias"]
            weights = np.zeros((len(bias), len(split.columns)))
            for group in strategy.groups_:
                own = part(group.agent)
                mean, deviation = own["coordinates"]
                scaled = own["weights"].reshape(len(mean), -1) / deviation[:, None]
                weights[:, split.blocks[group.number]] = scaled.T
                bias = bias - mean @ scaled
            arrays = {"weights": weights, "bias": bias}
            meta = {**meta, "columns": len(split.columns)}
        names = ("columns", "features", "gamma", "feature_seed")
        return Parts("linear", arrays, {name: meta[name] for name in names})

    def outcome(self, strategy: HierarchicalSVM) -> dict[str, Any]:
        """Return the number of active nodes, and what was chosen."""
        return {"survivors": len(strategy.nodes.active()), **chosen(strategy)}

    # -- what the user sees of a run

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return numbers of users, groups and rows."""
        groups = len(facts["group_sizes"])
        return f"{facts['users']} users in {how_many(groups, 'group')}, {rows_of(facts)}"

    def seen(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return what the server saw."""
        return [["the server saw", result["privacy"]["server_sees"][0]]]


def read_numbers(name: str, text: str | None, kind: Callable[[str], Any]) -> list[Any] | None:
    """Read numbers separated by commas."""
    if text is None:
        return None
    try:
        return [kind(number) for number in text.split(",")]
    except ValueError:
        raise OptionError(
            f"{name} is {text!r}",
            remedy="give numbers separated by commas, such as 10,10",
            code="FK-OPTION-TYPE",
        ) from None


def has_agents(values: Mapping[str, Any]) -> bool:
    """Return whether groups have agents: by default if groups are given or needed."""
    if values.get("architecture"):
        return bool(values["architecture"] == "hierarchical")
    needed = ("groups", "group_sizes", "staleness", "step_sizes", "sigma")
    named = {"partition": "vertical", "lost_groups": "leave-out"}
    return any(map(values.get, needed)) or any(values.get(k) == v for k, v in named.items())


# -- the optimum of pooled rows

__all__ = ["Optimum", "linear_svm", "pooled_optimum"]

Floats = NDArray[np.float64]
FeatureMap = Callable[[Floats], Floats]
Scale = Literal["standard", "none"]

MOST_WORK = 2e11  # rows times columns squared: beyond that the optimum takes minutes


@dataclass(frozen=True)
class Optimum:
    """The optimum, to 1e-9 of its objective.

    Attributes
    ----------
    objective : float
        1/2 |w|^2 + C sum loss, over all outputs.
    metrics : dict
        Metrics of held-out rows, if there are any.
    """

    objective: float
    metrics: Mapping[str, float]


def pooled_optimum(
    pooled: PooledSplit,
    loss: Loss,
    cost: float,
    scale: Scale,
    features: FeatureMap | None = None,
    label_bound: float = 1.0,
) -> Optimum | None:
    """Minimise 1/2 |w|^2 + C sum loss(y, w^T x + b) on pooled rows, per output.

    Parameters
    ----------
    pooled : PooledSplit
        Rows.
    loss : {"hinge", "logistic", "squared"}
        max(0, 1 - y f), log(1 + exp(-y f)) or (y - f)^2 / 2.
    cost : float
        C.
    scale : {"standard", "none"}
        Penalise weights of standardised columns, or of columns as they are.
    features : callable, optional
        Random Fourier features of the scaled columns.
    label_bound : float (default: 1.0)
        Unit of numeric targets.

    Returns
    -------
    Optimum or None
        None if it would take minutes.
    """
    x, x_test = pooled.x, pooled.x_test
    if scale == "standard":
        standard = Coordinates.fit(x.mean(axis=0), (x**2).mean(axis=0), standardised=True)
        x, x_test = standard.rows(x)[:, :-1], standard.rows(x_test)[:, :-1]
    if features is not None:
        x, x_test = features(x), features(x_test)
    if len(x) * (x.shape[1] + 1.0) ** 2 > MOST_WORK:
        return None
    targets, total = pooled.targets() / label_bound, 0.0
    outputs = np.empty((len(x_test), targets.shape[1]))
    for k, y in enumerate(targets.T):
        best = restricted_optimum(loss, x, y, cost)
        square = float(best.weights @ best.weights)
        total += objective(loss, square, x @ best.weights + best.bias, y, cost)
        outputs[:, k] = x_test @ best.weights + best.bias
    metrics = pooled.judge(outputs * label_bound) if len(x_test) else {}
    return Optimum(total, metrics)


def linear_svm(
    pooled: PooledSplit,
    *,
    seed: int,
    progress: Callable[[int, int], None],
    C: float = 1.0,
    model: str = "linear",
    scale: Scale = "standard",
) -> Outcome:
    """Train the linear model on pooled data.

    Parameters
    ----------
    pooled : PooledSplit
        Data.
    seed : int
        Not used.
    progress : callable
        Called with steps done and steps in all.
    C : float (default: 1.0)
        Weight of the losses.
    model : {"linear", "logistic", "ridge"} (default: "linear")
        Hinge, logistic or squared loss.
    scale : {"standard", "none"} (default: "standard")
        See :func:`pooled_optimum`.

    Returns
    -------
    metrics : dict
        With ``objective`` and ``centralised_objective``, which are equal.
    history : list of dict
        One row.
    """
    check_choice("model", model, tuple(name for name in LOSS_OF if name != "rbf"))
    check_choice("scale", scale, get_args(Scale))
    pooled.check()
    best = pooled_optimum(pooled, LOSS_OF[model], C, scale)
    progress(1, 1)
    if best is None:
        return {}, [{"round": 1}]
    found: dict[str, Any] = {"objective": best.objective, "centralised_objective": best.objective}
    history = [{"round": 1, "test_error": error_of(best.metrics)}]
    return {**best.metrics, **found}, history

"""All ways of all methods: a small run of each, who holds what, and what it should come to.

One registry for all contracts. A row of ``WAYS`` has a strategy with options, small tables, the
client of each party, and a pooled oracle: the same result from all rows in one place, in plain
NumPy, SciPy or scikit-learn. ::

    found = quiet("fed-cg")                      # the run in which nothing happens: made once
    found = fit("fed-cg", tmp_path, faults=plan, landmarks=8)  # another one
    for got, expected in found.oracle(): ...     # equal to way.near
    found.outcome()                              # all that must be the same, by name
    found.phases                                 # exchanges by phase, in order
"""

from __future__ import annotations

import atexit
import csv
import functools
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from pooled import (
    KEY,
    Floats,
    Pairs,
    Table,
    as_in_plain,
    doubly_stochastic,
    gram,
    intersections,
    kernel_ridge,
    plain_average,
    plain_online,
    pooled_figures,
    pooled_ranges,
    pooled_svm,
    principal,
    random_features,
    ridges,
    square_step,
)

from fedkern_flwr.clients import (
    AlignmentClient,
    GramClient,
    HybridKernelClient,
    KernelPCAClient,
    OnlineKernelClient,
    RangesClient,
    StreamClient,
    SummaryClient,
    SVMClient,
    VerticalKernelClient,
)
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.hybrid.landmarks import public_seed
from fedkern_flwr.secure_aggregation import SecureAggregation, secure_aggregation_mod
from fedkern_flwr.simulations import InProcessGrid, Transcript, simulate
from fedkern_flwr.simulations.engines import Audit
from fedkern_flwr.strategies import (
    EMKOFL,
    FDSKL,
    OFSKL,
    POFMKL,
    POFRLS,
    VMKOFL,
    AlignIds,
    ColumnRanges,
    FedCFK,
    FedCG,
    HierarchicalSVM,
    KernelPCA,
    LocalOnly,
    OFMKLAvg,
    PerFedAvg,
    SecureGram,
    Summary,
)


@dataclass(frozen=True)
class Way:
    """A way of a method to its result.

    Attributes
    ----------
    strategy, client : class
    tables : callable
        Makes the arguments of each party's client.
    oracle : callable, optional
        (found) -> pairs of what was found and what the pooled rows give. None where noise cannot
        be seeded, or where a file of the method has a plain implementation.
    near : float
        How near they are.
    options, common : dict
        Of every strategy, and of every client.
    rounds : int, optional
    paths : dict
        Options of clients that name files, with the partition in braces.
    start : callable
        Makes more arguments of ``start``.
    """

    strategy: type[Any]
    client: Any
    tables: Callable[[], list[Table]]
    oracle: Callable[[Found], Pairs] | None = None
    near: float = 1e-9
    options: Table = field(default_factory=dict)
    common: Table = field(default_factory=dict)
    rounds: int | None = None
    paths: dict[str, str] = field(default_factory=dict)
    start: Callable[[], Table] = dict

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(getattr(self.strategy, "method", "") or "secure-aggregation")

    @property
    def private(self) -> bool:
        """Whether the run has a budget of privacy."""
        return bool({"privacy_epsilon", "noise_multiplier"} & set(self.options))

    @property
    def secure(self) -> bool:
        """Whether values leave in secure sums only."""
        return not self.method.endswith(_ONLINE) or self.options.get("secure", self.private)

    def make(self, **options: Any) -> Any:
        """Return the strategy, with other options."""
        return self.strategy(**{**self.options, **options})

    def few(self, most: int = 12) -> Way:
        """Return the way with no more rounds than that, for tests of what does not converge."""
        return replace(self, rounds=self.rounds and min(self.rounds, most))

    def sites(self, folder: Path | None = None, *, guarded: bool = False, **client: Any) -> Sites:
        """Return the nodes, with more arguments for every client; guarded: of no simulation."""
        return Sites(self, folder or new_folder(), self.tables(), client, guarded)


@dataclass
class Sites:
    """The nodes of a way, each with its table and a folder of its own.

    Attributes
    ----------
    tables : list of dict
        A test may change them.
    contexts : dict
        Flower's, by partition.
    """

    way: Way
    folder: Path
    tables: list[Table]
    more: Table = field(default_factory=dict)
    guarded: bool = False
    contexts: dict[int, Context] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tables)

    def arguments(self, k: int) -> Table:
        """Return the arguments of a node's client."""
        files = {name: self.folder / path.format(k) for name, path in self.way.paths.items()}
        if not _has_held_out(self.tables[k]):
            files.pop("predictions", None)
        files["state_dir"] = self.folder / f"state-{k}"
        given = {**files, **self.way.common, **self.tables[k], **self.more}
        if self.guarded:  # what so few rows hide is the question of one test, not of all
            given.setdefault("policy", NodePolicy(counting="warn"))
        return {name: value() if callable(value) else value for name, value in given.items()}

    def client_fn(self, context: Context) -> Any:
        """Build the client of a node."""
        k = int(context.node_config["partition-id"])
        self.contexts[k] = context
        if self.guarded:
            context.node_config["simulation"] = False
        return self.way.client(context, **self.arguments(k))

    @property
    def app(self) -> Any:
        """What simulations run: ``client_fn``, or the app of nodes that have one."""
        return self.client_fn if isinstance(self.way.client, type) else self.way.client(self)

    def grid(self) -> InProcessGrid:
        """Return a grid of these nodes."""
        app = self.app
        if not isinstance(app, ClientApp):
            app = ClientApp(client_fn=lambda context: self.client_fn(context).to_client())
        return InProcessGrid(app, len(self))

    def fit(
        self,
        *,
        faults: Any = None,
        transcript: Transcript | None = None,
        engine: Any = "in-process",
        start: Table | None = None,
        strategy: Any = None,
        **options: Any,
    ) -> Found:
        """Run the way, perhaps with other options of it or of ``start``."""
        made = strategy or self.way.make(**options)
        more = {"num_rounds": self.way.rounds} if self.way.rounds else {}
        more |= {"faults": faults, "transcript": transcript, **self.way.start(), **(start or {})}
        result = simulate(made, self.app, len(self), engine, **more)
        return Found(self.way, made, self, result, transcript, more.get("audit"))

    def rows(self) -> dict[str, dict[str, str]]:
        """Return the rows that nodes wrote, by partition and id or row."""
        found: dict[str, dict[str, str]] = {}
        for path in sorted(self.folder.glob("*/*.csv")):
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    found[f"{path.parent.name} {row.get('id') or row.get('row')}"] = row
        return found

    def written(self) -> dict[str, list[float]]:
        """Return the outputs or components in these rows."""
        heads = ("output", "component")
        return {
            name: [float(value) for head, value in row.items() if head.startswith(heads)]
            for name, row in self.rows().items()
        }


@dataclass
class Found:
    """What a run came to."""

    way: Way
    strategy: Any
    sites: Sites
    result: Any
    transcript: Transcript | None
    audit: Any = None

    @functools.cached_property
    def predictions(self) -> dict[str, list[float]]:
        """What nodes wrote of held-out rows."""
        return self.sites.written()

    @property
    def contexts(self) -> dict[int, Context]:
        """The contexts of the nodes."""
        return self.sites.contexts

    @property
    def phases(self) -> dict[str, int]:
        """How many exchanges each phase took, between describe and the farewell, in order."""
        ends = ("describe", "finish")
        return {k: n for k, n in self.strategy.ledger_.by_phase.items() if k not in ends}

    def oracle(self) -> list[tuple[Any, Any]]:
        """Return pairs of what was found and what the pooled rows give."""
        assert self.way.oracle is not None
        return list(self.way.oracle(self))

    def outcome(self) -> Table:
        """Return all that must be the same whatever happens on the way, by name."""
        if isinstance(self.strategy, FedAvg):
            metrics = self.result.train_metrics_clientapp
            arrays = {name: array.numpy() for name, array in self.result.arrays.items()}
            return {**arrays, "metrics": {n: dict(m) for n, m in metrics.items()}}
        found: Table = {**self.strategy.model()[0], "metrics": self.strategy.metrics_}
        return {**found, "history": self.strategy.history_, "predictions": self.predictions}


def fit(
    way: str | Way,
    folder: Path | None = None,
    *,
    client: Table | None = None,
    guarded: bool = False,
    **more: Any,
) -> Found:
    """Run a way with new nodes; ``client`` has more arguments of theirs, see :meth:`Sites.fit`."""
    chosen = WAYS[way] if isinstance(way, str) else way
    return chosen.sites(folder, guarded=guarded, **(client or {})).fit(**more)


@functools.cache
def quiet(name: str) -> Found:
    """Return the run of a way in which nothing happens, with transcript and audit; made once."""
    return fit(name, transcript=Transcript(), start={"audit": Audit()})


#: Ways on which ``make test`` tries every fault.
MAIN = (
    "fed-cg",
    "fed-cg, cg",
    "fed-cg, rows",
    "fdskl",
    "fdskl, two active",
    "fed-cfk, whole",
    "hierarchical-svm",
    "hierarchical-svm, centralised",
    "hierarchical-svm, vertical",
    "kernel-pca",
    "align",
    "ranges",
)
#: Ways whose requests and sums are those of another way, with other numbers in them.
LIKE_ANOTHER = {
    "ofskl, secure",
    "vm-kofl, secure",
    "vm-kofl, private",
    "fed-cg, rkhs",
    "fed-cg, fourier",
    "fed-cg, classes",
    "fed-cg, numbers",
    "fed-cg, rows, private",
    "fdskl, logistic",
    "fdskl, balanced",
    "fdskl, numbers",
    "fdskl, classes",
    "hierarchical-svm, classes",
    "hierarchical-svm, logistic",
    "hierarchical-svm, ridge",
}  # fmt: skip


def chosen(names: Iterable[str], tried: Collection[str]) -> list[Any]:
    """Return names of ways; all but those that are to be tried are left to make test-long."""
    assert set(tried) <= WAYS.keys()
    return [pytest.param(n, marks=() if n in tried else pytest.mark.long) for n in names]


def same(ours: Any, theirs: Any, near: float) -> bool:
    """Tell whether two outcomes are equal but for the rounding of sums in another order."""
    if isinstance(theirs, dict):
        keys = theirs.keys() - {"seconds", "bytes_up"}
        return keys <= ours.keys() and all(same(ours[k], theirs[k], near) for k in keys)
    if isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs, [near] * len(theirs)))
    if isinstance(theirs, str | None):
        return bool(ours == theirs)
    return bool(np.allclose(ours, theirs, rtol=1e-6, atol=near))


def everything(transcript: Transcript) -> bytes:
    """Return all that passed between nodes and server."""
    parts: list[bytes] = []
    for entry in transcript.entries():
        parts += [array.tobytes() for array in entry.arrays]
        parts += [v if isinstance(v, bytes) else str(v).encode() for v in entry.scalars.values()]
    return b"|".join(parts)


def new_folder() -> Path:
    """Return an empty folder that goes when the process ends."""
    return Path(tempfile.mkdtemp(dir=_base()))


@functools.cache
def _base() -> str:
    base = tempfile.mkdtemp(prefix="zoo")
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    return base


def _has_held_out(table: Table) -> bool:
    return any(table.get(name) is not None for name in ("x_test", "y_test"))


# -- tables


def side(n: int, d: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Return rows of the unit cube and the side of a curved surface on which they lie."""
    x = np.random.default_rng(seed).random((n, d))
    return x, (np.sin(3.0 * x[:, 0]) + x[:, 1:].sum(axis=1) > d / 2).astype(int)


def labels_of(x: Floats, kind: Any) -> tuple[Floats, Table]:
    """Return labels of rows, and what all tables say of them: so many classes, or numbers."""
    score = np.sin(3.0 * x[:, 0]) + x[:, 1:].sum(axis=1)
    if kind == "numbers":
        return score - x.shape[1] / 2, {"label_bound": 3.0}
    cuts = np.quantile(score, np.arange(1, kind) / kind)
    return np.digitize(score, cuts), {"classes": tuple(range(kind))}


def streams(
    clients: int = 4, *, held: int = 6, rows: int = 12, dimension: int = 3, seed: int = 8
) -> list[Table]:
    """Rows of the unit ball and labels in [0, 1], each client its own law."""
    rng, tables = np.random.default_rng(seed), list[Table]()
    for k in range(clients):
        x = rng.uniform(-0.5, 0.5, (rows + held, dimension))
        y = np.clip(0.5 + 0.4 * np.sin(3.0 * x[:, 0] + 0.5 * k), 0.0, 1.0)
        table: Table = {"x": x[:rows], "y": y[:rows], "x_test": x[rows:], "y_test": y[rows:]}
        tables.append(table if held else {"x": x[:rows], "y": y[:rows]})
    return tables


def endless() -> list[Table]:
    """The same rows, as they come."""
    tables = streams(held=0, rows=30)
    return [{"stream": partial(zip, t["x"], t["y"], strict=True), "wait": 0.0} for t in tables]


def hospitals(
    kind: Any = 2, *, count: int = 3, landmark_seeds: bool = True, gaps: int = 0, centres: int = 2
) -> list[Table]:
    """Deal rows to hospitals and columns to two centres, each party with an order of its own.

    So many ``gaps``: rows that the last centre does not know. Without centres hospitals have all.
    """
    x, rng = side(72, 6)[0], np.random.default_rng(1)
    y, more = labels_of(x, kind)
    ids = np.array([f"patient {k}" for k in range(72)])
    tables: list[Table] = []
    for rows in np.array_split(rng.permutation(72), count):
        rows, test = rows[: 2 * len(rows) // 3], rows[2 * len(rows) // 3 :]
        own = slice(2 if centres else 6)
        table: Table = {"x": x[rows, own], "y": y[rows], "ids": ids[rows], "block": "clinical"}
        table |= {"x_test": x[test, own], "y_test": y[test], "ids_test": ids[test], **more}
        tables.append(table)
    for k, columns in ((0, (2, 3)), (1, (4, 5)))[:centres]:
        order = rng.permutation(72)[gaps * k :]
        block: Table = {"x": x[np.ix_(order, columns)], "block": f"centre {k}"}
        tables.append({**block, "ids": ids[order]})
    for table in tables if landmark_seeds else []:
        table["landmark_seed"] = public_seed(0, table["block"])
    return tables


def columns_of_parties(kind: Any = 2, *, actives: int = 1) -> list[Table]:
    """Deal columns to four parties, each with an order of its own; the first have labels."""
    x, rng = side(60, 8)[0], np.random.default_rng(1)
    y, more = labels_of(x, kind)
    ids, tables = np.array([f"person {k}" for k in range(60)]), list[Table]()
    for k in range(4):
        columns, order = slice(2 * k, 2 * k + 2), rng.permutation(60)
        table: Table = {"frequency_seed": bytes([k + 1]) * 32}
        if k < actives:
            held = order[(order >= 42) & (order % actives == k)]
            order = rng.permutation(np.setdiff1d(order, held))
            own = (order < 42) & (order % actives == k)
            table |= {"y": np.where(own, y[order], np.nan), "ids_test": ids[held], **more}
            table |= {"x_test": x[held, columns], "y_test": y[held]}
        tables.append({**table, "x": x[order, columns], "ids": ids[order]})
    return tables


def users(kind: Any = 2, *, groups: int = 2, agents: bool = True) -> list[Table]:
    """Deal rows to users in groups, in columns of different units; the rest is held out."""
    count, x = max(4, 2 * groups), side(72, 3)[0]
    y, more = labels_of(x, kind)
    x = x * [1.0, 3.0, 0.5] + [0.0, 1.0, 2.0]
    tables: list[Table] = []
    for k in range(count):
        fit_, test = np.arange(k, 48, count), np.arange(48 + k, 72, count)
        table: Table = {"x": x[fit_], "y": y[fit_], "x_test": x[test], "y_test": y[test], **more}
        tables.append({**table, "group": k * groups // count})
    return tables + [{"role": "agent", "group": group} for group in range(groups * agents)]


def columns_of_groups() -> list[Table]:
    """Deal columns to two groups and their rows to two users each; an owner has the labels."""
    x, y = side(64, 4)
    ids, rng = np.array([f"person {k}" for k in range(64)]), np.random.default_rng(2)
    joined: Table = {"alignment_key": KEY}
    tables: list[Table] = []
    for k in range(4):
        columns, own = slice(2 * (k // 2), 2 * (k // 2) + 2), rng.permutation(48)[k % 2 :: 2]
        own = np.arange(k % 2, 48, 2) if k // 2 == 0 else rng.permutation(np.arange(k % 2, 48, 2))
        test = np.arange(48 + k % 2, 64, 2)
        table: Table = {"x": x[own, columns], "ids": ids[own], "group": k // 2, **joined}
        tables.append({**table, "x_test": x[test, columns], "ids_test": ids[test]})
    tables += [{"role": "agent", "group": group} for group in range(2)]
    owner: Table = {"role": "owner", "y": y[:48], "ids": ids[:48], "classes": (0, 1), **joined}
    return [*tables, {**owner, "y_test": y[48:], "ids_test": ids[48:]}]


def items(nodes: int = 4, *, numbers: bool = False) -> list[Table]:
    """Rows of zeros and ones, or of numbers up to one; some items are in few of them."""
    rng, chance = np.random.default_rng(0), np.array([0.9, 0.6, 0.6, 0.5, 0.4, 0.05, 0.0])
    x = [(rng.random((8, 7)) < chance).astype(int) for _ in range(nodes)]
    if numbers:
        x = [rng.uniform(-1.0, 1.0, (8, 5)) for _ in range(nodes)]
    return [{"x": rows, "x_test": np.roll(rows, 1, axis=1)} for rows in x]


def components_of() -> list[Table]:
    """Rows of four nodes, with some held out."""
    x = np.random.default_rng(3).random((4, 20, 3))
    ids = [[f"{k}/{i}" for i in range(15)] for k in range(4)]
    return [{"x": x[k, :15], "x_test": x[k, 15:], "ids": ids[k]} for k in range(4)]


def texts_and_gaps() -> list[Table]:
    """Rows of four nodes with numbers, gaps and categories."""
    rng, about = np.random.default_rng(5), {"columns": ("age", "dose", "ward")}
    about |= {"kinds": {"ward": "category"}, "categories": {"ward": ("A", "B")}}
    x = np.stack(
        [rng.normal(60.0, 9.0, (4, 30)), rng.random((4, 30)), rng.random((4, 30)) > 0.5], 2
    )
    x[:, :4, 1] = np.nan
    return [{"x": x[k], "ids": [f"{k}/{i}" for i in range(30)], **about} for k in range(4)]


def overlapping() -> list[Table]:
    """Ids of three parties."""
    return [{"ids": [f"patient {k}" for k in range(i, i + 9)]} for i in (0, 3, 5)]


def blocks() -> list[Table]:
    """Deal rows of a block to three nodes, of another to two; a node has one by itself."""
    rng, names = np.random.default_rng(0), ("own", "patients", "genes", "patients", "genes")
    own = [*names, "patients"]
    return [{"x": rng.standard_normal((9, 3)) + k, "block": b} for k, b in enumerate(own)]


def text_columns() -> list[Table]:
    """Deal rows with text to three nodes of a block; a node has one by itself."""
    rng = np.random.default_rng(0)
    own: Table = {"columns": ("a", "b", "c"), "kinds": {"c": "category"}, "category_key": b"s" * 16}
    own["categories"] = {"c": ("one", "other")}
    x = [np.column_stack([rng.random((9, 2)) + k, np.arange(9) % 2]) for k in range(4)]
    return [{**own, "x": x[k], "block": f"block {k == 3}"} for k in range(4)]


def squares() -> list[Table]:
    """Rows of least squares, of an app whose nodes have different numbers of them."""
    rng = np.random.default_rng(4)
    return [{"x": rng.standard_normal((20 + 7 * k, 3))} for k in range(4)]


class SecureMean(SecureAggregation, FedAvg):
    """Any strategy that averages."""

    method = "secure-aggregation"


def least_squares(sites: Sites, **mod: Any) -> ClientApp:
    """Return an app that takes a step of least squares; its sums are secure."""
    app = ClientApp(mods=[secure_aggregation_mod(partial(_load, sites), **mod, **sites.more)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        x = _load(sites, context)
        sent: Any = message.content["arrays"]
        moved, loss = square_step(x, *sent.to_numpy_ndarrays())
        found = MetricRecord({"loss": loss, "num-examples": len(x)})
        content = RecordDict({"metrics": found, "arrays": ArrayRecord([moved])})
        return Message(content, reply_to=message)

    return app


def _load(sites: Sites, context: Context) -> Floats:
    k = int(context.node_config["partition-id"])
    sites.contexts[k] = context
    if sites.guarded:
        context.node_config["simulation"] = False
    rows: Floats = sites.tables[k]["x"]
    return rows


def _from_zero() -> Table:
    return {"initial_arrays": ArrayRecord([np.zeros(3)])}


# -- the registry

_ONLINE = ("-mkl", "-rls", "ofskl", "ofmkl-avg", "-kofl", "-avg", "local-only")
_SMALL: Table = {"kernels": 5, "features": 4, "precision": "float64", "seed": 3}
_ALL: Table = {**_SMALL, "samples_per_round": 1, "frequencies_per_round": "all"}
_PAPER: Table = {**_SMALL, "step_size": "paper"}
_ONE_KERNEL = {k: v for k, v in _PAPER.items() if k != "kernels"}
_BUDGET: Table = {"privacy_epsilon": 8.0}
_SECURE: Table = {"secure": True, "samples_per_round": 1, "frequencies_per_round": "all"}


_WRITE = {"predictions": "{}/out.csv"}


def _online(kind: type[Any], oracle: Any = None, /, **options: Any) -> Way:
    paths = {} if kind in (PerFedAvg, LocalOnly) else _WRITE
    return Way(kind, OnlineKernelClient, streams, oracle, 1e-8, options, {}, 12, paths)


def _hybrid(kind: Any = 2, tables: Any = hospitals, near: float = 1e-7, **more: Any) -> Way:
    given: Table = {"landmarks": 8, "sampling": "U", "regularization": 0.05, "tune": "off", **more}
    oracle = None if "privacy_epsilon" in given else kernel_ridge
    common: Table = {"alignment_key": KEY, "allow_single": "allow_single" in more}
    tables = partial(tables, kind)
    return Way(FedCG, HybridKernelClient, tables, oracle, near, given, common, None, _WRITE)


def _vertical(
    oracle: Any,
    kind: Any = 2,
    rounds: int | None = None,
    actives: int = 1,
    near: float = 1e-6,
    **options: Any,
) -> Way:
    given: Table = {"gamma": 0.5, "phase_bits": 32, "seed": 3, "regularization": 0.02, **options}
    tables, common = partial(columns_of_parties, kind, actives=actives), {"alignment_key": KEY}
    return Way(FDSKL, VerticalKernelClient, tables, oracle, near, given, common, rounds, _WRITE)


def _svm(tables: Any = users, near: float = 1e-3, rounds: int = 200, **options: Any) -> Way:
    given: Table = {"C": 0.1, "seed": 3, **options}
    oracle = None if {"privacy_epsilon", "features"} & set(options) else pooled_svm
    return Way(HierarchicalSVM, SVMClient, tables, oracle, near, given, {}, rounds, _WRITE)


def _gram(kind: Any = SecureGram, tables: Any = items, rounds: int = 1, **options: Any) -> Way:
    return Way(kind, GramClient, tables, gram, 5e-4, options, {}, rounds)


_ROWS = partial(hospitals, centres=0)  # and no columns apart
_STREAM: Table = {"schedule": "streaming", "directions": 2, "batch": 3, "step": 0.3}
_CENTRAL: Table = {"tables": partial(users, groups=1, agents=False)}
_ENCODER = {"encoder": "{}/encoder.json"}
_RANGES = {"ranges": "{}/ranges.json", "scaling": "{}/scaling.json"}
WAYS: dict[str, Way] = {
    "pof-mkl": _online(POFMKL, plain_online, **_ALL),
    "pof-mkl, paper": _online(POFMKL, plain_online, **_PAPER),
    "pof-mkl, secure": _online(POFMKL, plain_online, **_ALL, secure=True),
    "pof-mkl, private": _online(POFMKL, **_SMALL, **_BUDGET),
    "pof-rls": _online(POFRLS, ridges, features=2, seed=3, samples_per_round=4),
    "pof-rls, secure": _online(POFRLS, ridges, features=2, samples_per_round=6, secure=True),
    "pof-rls, private": _online(POFRLS, features=2, samples_per_round=4, **_BUDGET),
    "ofskl": _online(OFSKL, partial(plain_online, weigh="no"), **_ONE_KERNEL),
    "ofskl, secure": _online(OFSKL, partial(plain_online, weigh="no"), **_ONE_KERNEL, **_SECURE),
    "ofmkl-avg": _online(OFMKLAvg, partial(plain_online, weigh="no"), **_PAPER),
    "vm-kofl": _online(VMKOFL, partial(plain_online, weigh="mean"), **_PAPER),
    "vm-kofl, secure": _online(VMKOFL, partial(plain_online, weigh="mean"), **_PAPER, **_SECURE),
    "vm-kofl, private": _online(VMKOFL, **_SMALL, **_BUDGET),
    "vm-kofl, streams": Way(
        VMKOFL, StreamClient, endless, options={**_SMALL, "secure": True}, rounds=30
    ),
    "em-kofl": _online(
        EMKOFL, partial(plain_online, weigh="mean", drawn=True), **_ALL, loss_aggregation="mean"
    ),
    "per-fed-avg": _online(PerFedAvg, seed=3),
    "per-fed-avg, secure": _online(
        PerFedAvg, as_in_plain, seed=3, secure=True, samples_per_round=1
    ),
    "local-only": _online(LocalOnly, plain_online, **_PAPER),
    "fed-cg": _hybrid(),
    "fed-cg, cg": _hybrid(solver="cg", near=1e-6),
    "fed-cg, rkhs": _hybrid(penalty="rkhs", gamma=2.0),
    "fed-cg, normal landmarks": _hybrid(sampling="N"),
    "fed-cg, fourier": _hybrid(basis="fourier", gamma=0.7),
    "fed-cg, tuned": _hybrid(tune="gcv", sampling="auto", regularization=None),
    "fed-cg, balanced": _hybrid(class_weight="balanced", tune="auto", gamma=1.0),
    "fed-cg, classes": _hybrid(3),
    "fed-cg, numbers": _hybrid("numbers"),
    "fed-cg, missing blocks": _hybrid(
        tables=partial(hospitals, gaps=8), missing="neutral", allow_single=True
    ),
    "fed-cg, private": _hybrid(basis="fourier", gamma=0.7, **_BUDGET),
    "fed-cg, rows": _hybrid(tables=_ROWS, tune="gcv", sampling="auto", regularization=None),
    "fed-cg, rows, cg": _hybrid(tables=_ROWS, solver="cg", near=1e-6),
    "fed-cg, rows, private": _hybrid(tables=_ROWS, basis="fourier", gamma=0.7, **_BUDGET),
    "fdskl": _vertical(random_features, features=16, loss="square"),
    "fdskl, logistic": _vertical(random_features, features=16, loss="logistic", near=1e-3),
    "fdskl, balanced": _vertical(
        random_features, features=16, loss="square", class_weight="balanced"
    ),
    "fdskl, numbers": _vertical(random_features, "numbers", features=16),
    "fdskl, streaming": _vertical(doubly_stochastic, 2, 6, loss="square", **_STREAM),
    "fdskl, classes": _vertical(doubly_stochastic, 3, 6, loss="logistic", **_STREAM),
    "fdskl, two active": _vertical(doubly_stochastic, 2, 5, 2, loss="logistic", **_STREAM),
    "secure-gram": _gram(min_support=2),
    "secure-gram, fixed point": _gram(
        tables=partial(items, numbers=True), encoding="fixed-point", fraction_bits=16
    ),
    "secure-gram, in rounds": _gram(tables=partial(items, 8), rounds=2, min_support=2),
    "fed-cfk": _gram(FedCFK, min_support=2),
    "fed-cfk, whole": _gram(FedCFK, min_support=2, drop_outs=False, allow_recovery=True),
    "hierarchical-svm": _svm(),
    "hierarchical-svm, asynchronous": _svm(staleness=2, model="logistic"),
    "hierarchical-svm, leave out": _svm(
        partial(users, groups=3), lost_groups="leave-out", model="logistic"
    ),
    "hierarchical-svm, classes": _svm(partial(users, 3)),
    "hierarchical-svm, centralised": _svm(**_CENTRAL),
    "hierarchical-svm, logistic": _svm(model="logistic", **_CENTRAL),
    "hierarchical-svm, ridge": _svm(partial(users, "numbers"), model="ridge", tolerance=1e-5),
    "hierarchical-svm, rbf": _svm(model="rbf", features=8, rounds=20, **_CENTRAL),
    "hierarchical-svm, balanced": _svm(class_weight="balanced", **_CENTRAL),
    "hierarchical-svm, vertical": _svm(
        columns_of_groups, partition="vertical", tolerance=1e-7, near=1e-5
    ),
    "hierarchical-svm, private": _svm(rounds=4, **_CENTRAL, **_BUDGET),
    "kernel-pca": Way(
        KernelPCA, KernelPCAClient, components_of, principal, 1e-9,
        {"features": 4, "seed": 7, "bandwidth": 1.2}, paths={"results": "{}"},
    ),
    "kernel-pca, private": Way(
        KernelPCA, KernelPCAClient, components_of, options={"features": 4, **_BUDGET}
    ),
    "summary": Way(
        Summary, SummaryClient, texts_and_gaps, pooled_figures, 1e-9, {"group": "ward"},
        paths={"results": "{}"},
    ),
    "align": Way(
        AlignIds, AlignmentClient, overlapping, intersections, paths={"alignment": "{}/tags.npz"}
    ),
    "ranges": Way(ColumnRanges, RangesClient, blocks, pooled_ranges, 1e-8, paths=_RANGES),
    "ranges, encoders": Way(
        ColumnRanges, RangesClient, text_columns, pooled_ranges, 1e-8, paths=_ENCODER
    ),
    "secure-aggregation": Way(
        SecureMean, least_squares, squares, plain_average, rounds=3, start=_from_zero
    ),
    "secure-aggregation, private": Way(
        SecureMean, partial(least_squares, clip=1.0, noise_multiplier=1.0), squares,
        options={"clip": 1.0, "noise_multiplier": 1.0, "fraction_evaluate": 0.0}, rounds=1,
        start=_from_zero,
    ),
}  # fmt: skip

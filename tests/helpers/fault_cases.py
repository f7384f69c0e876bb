"""The methods whose result is the same whatever happens on the way; see the contract of faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from fdskl_bridge import TOLERANCE, paper_run
from nodes import Nodes, Table, side

from fedkern_flwr.alignment import AlignmentTags
from fedkern_flwr.clients import (
    AlignmentClient,
    GramClient,
    HybridKernelClient,
    RangesClient,
    SVMClient,
    VerticalKernelClient,
)
from fedkern_flwr.hybrid.landmarks import public_seed
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.strategies import FDSKL, AlignIds, ColumnRanges, FedCFK, FedCG, HierarchicalSVM

Tables = list[Table]
Change = Callable[[Tables], None]


@dataclass(frozen=True)
class Method:
    """What the contract has to know of a method.

    Attributes
    ----------
    outcome : callable
        (strategy, nodes) -> all that must be the same, by name.
    options, common : dict
        Of every strategy and of every client.
    files : str
        Ending of the private files that nodes keep while a run lasts.
    changes : sequence of dict
        Options of other runs, whose checkpoints are not those of this one.
    tables : sequence of callable
        What makes other tables of tables.
    spent : tuple of str
        Phases that are not asked for again where a run is resumed.
    open_sums : int
        Most sums of a set of parties whose secrets a node keeps at a time.
    paths : dict
        Of the nodes.
    resumes : bool
        Whether a run may have a checkpoint.
    sums_alone : bool
        Whether replies say nothing but what is in sums.
    missing, ended : str
        What is said of a run that a party has ended: why, and what to do.
    stays : tuple of str
        Endings of files in which nodes remember for ever what they released.
    """

    strategy: type[Any]
    client: type[Any]
    outcome: Callable[[Any, Nodes], Table]
    options: Table = field(default_factory=dict)
    common: Table = field(default_factory=dict)
    files: str = ""
    changes: Sequence[Table] = ()
    tables: Sequence[Change] = ()
    spent: tuple[str, ...] = ()
    open_sums: int = 2
    paths: dict[str, str] = field(default_factory=dict)
    resumes: bool = True
    sums_alone: bool = False
    missing: str = "not all parties answered"
    stays: tuple[str, ...] = ()
    ended: str = "mend it and start again.*; a model of fewer rows is never"


@dataclass(frozen=True)
class Way:
    """A way of a method to its result.

    Attributes
    ----------
    main : bool
        Whether ``make test`` tries everything on it; the others are left to ``make test-long``.
    checkpoints : dict
        Options of runs with a checkpoint.
    patches : dict
        Names and values of what is patched.
    """

    method: Method
    tables: Callable[[], Tables]
    options: Table = field(default_factory=dict)
    rounds: int | None = None
    main: bool = False
    checkpoints: Table = field(default_factory=dict)
    patches: Mapping[str, Any] = field(default_factory=dict)


def without_a_row(partition: int) -> Change:
    """Return what takes the last row of a party away."""

    def change(tables: Tables) -> None:
        for name in ("x", "y", "ids"):
            if name in tables[partition]:
                tables[partition][name] = tables[partition][name][:-1]

    return change


def with_a_stranger(tables: Tables) -> None:
    """Put another person in the place of one, wherever it is known."""
    old = tables[0]["ids"][0]
    for table in tables:
        table["ids"] = ["stranger" if name == old else name for name in table["ids"]]


def other_labels(tables: Tables) -> None:
    """Turn the labels round."""
    tables[0]["y"] = 1 - tables[0]["y"]


def other_features(partition: int) -> Change:
    """Return what changes the features of a party a little."""

    def change(tables: Tables) -> None:
        tables[partition]["x"] = tables[partition]["x"] * 0.999

    return change


# -- FedCG: three hospitals with some features, two centres that hold the rest


def hospitals_and_centres() -> Tables:
    """Deal rows to hospitals and columns to centres, each with a row order of its own."""
    (x, y), rng = side(72, 6), np.random.default_rng(1)
    ids = np.array([f"patient {k}" for k in range(72)])
    tables: Tables = []
    for rows in np.array_split(rng.permutation(72), 3):
        fit, test = rows[:-12], rows[-12:]
        table = {"x": x[fit, :2], "y": y[fit], "ids": ids[fit], "classes": (0, 1)}
        table |= {"x_test": x[test, :2], "y_test": y[test], "ids_test": ids[test]}
        tables.append({**table, "landmark_seed": public_seed(0, "clinical")})
    for k, columns in ((3, (2, 3)), (4, (4, 5))):
        order = rng.permutation(72)
        seed = public_seed(0, f"centre {k}")
        tables.append({"x": x[np.ix_(order, columns)], "ids": ids[order], "landmark_seed": seed})
    return tables


def outcome_of_fed_cg(strategy: Any, nodes: Nodes) -> Table:
    """Return the model, what it predicts, and what is told of it."""
    assert strategy.coefficients_.any()
    return {
        "coefficients": strategy.coefficients_,
        "predictions": nodes.written(),
        "metrics": strategy.metrics_,
        "history": strategy.history_,
    }


FED_CG = Method(
    FedCG,
    HybridKernelClient,
    outcome_of_fed_cg,
    {"landmarks": 12, "regularization": 0.1},
    {"alignment_key": bytes(16)},
    files="kernel",
    changes=({"regularization": 0.2}, {"sampling": "N"}, {"seed": 1}, {"tolerance": 1e-7}),
    tables=(without_a_row(0), with_a_stranger, other_labels, other_features(4)),
    spent=("hybrid-equations", "hybrid-product"),
)
_CG: Table = {"solver": "cg", "preconditioner_rank": 4, "tolerance": 1e-3}
_CG_PAPER: Table = {**_CG, "preconditioner_rank": 0, "init": "random"}


def fed_cg(options: Table, rows: int = 1000, *, main: bool = False) -> Way:
    """Return a way of FedCG; ``rows`` are those that a message of distances holds."""
    size = {"fedkern_flwr.strategies.fed_cg_system._MESSAGE": 8 * 12 * rows}
    return Way(FED_CG, hospitals_and_centres, options, main=main, patches=size)


# -- FDSKL: four parties with two columns each, some of them with labels


def parties_with_columns(actives: int) -> Tables:
    """Deal columns to parties, each with a row order of its own, labels to the active ones."""
    (x, y), rng = side(30, 8), np.random.default_rng(1)
    ids = np.array([f"person {k}" for k in range(30)])
    tables: Tables = []
    for k in range(4):
        columns, order = slice(2 * k, 2 * k + 2), rng.permutation(30)
        table: Table = {"frequency_seed": bytes([k + 1]) * 32}
        if k < actives:
            held = order[(order >= 18) & (order % actives == k)]
            order = rng.permutation(np.setdiff1d(order, held))
            labels = np.where((order < 18) & (order % actives == k), y[order], np.nan)
            table |= {"y": labels, "classes": (0, 1), "ids_test": ids[held]}
            table |= {"x_test": x[held, columns], "y_test": y[held]}
        tables.append({**table, "x": x[order, columns], "ids": ids[order]})
    return tables


def outcome_of_fdskl(strategy: Any, nodes: Nodes) -> Table:
    """Return what the active parties keep of the model, what it predicts, what is told of it.

    With B = r = 1 the model is that of the paper's program.
    """
    meta = strategy.model()[1]
    owners = [k for k, table in enumerate(nodes.tables) if "y" in table]
    found: Table = {"predictions": nodes.written(), "metrics": strategy.metrics_}
    found["history"] = [{**row, "bytes_up": 0, "seconds": 0} for row in strategy.history_]
    for k in owners:
        name = f"partition-{k}-round-{meta['step']}.state"
        path = nodes.folder / f"node-{k}" / meta["session"] / name
        found[f"coefficients {k}"] = KeptState.unpack(path.read_bytes()).arrays["alpha"]
        assert found[f"coefficients {k}"].any()
    if strategy.batch == strategy.directions == 1:
        rounds = sum(strategy.upto_.values())
        paper, _ = paper_run(strategy, nodes.tables, nodes.common["alignment_key"], rounds)
        for k, alpha in paper.items():
            np.testing.assert_allclose(found[f"coefficients {k}"], alpha, atol=TOLERANCE[32])
    return found


FDSKL_ = Method(
    FDSKL,
    VerticalKernelClient,
    outcome_of_fdskl,
    {"gamma": 0.5, "phase_bits": 32, "seed": 3},
    {"alignment_key": b"k" * 16},
    files="phases",
    changes=({"gamma": 0.4}, {"seed": 1}, {"loss": "logistic"}, {"regularization": 1e-2}),
    tables=(
        without_a_row(3),
        with_a_stranger,
        other_labels,
        other_features(0),
        other_features(3),
    ),
    spent=("vertical-train",),
    open_sums=14,
)
_ONCE: Table = {"features": 24, "regularization": 1e-3}
_STREAM: Table = {"schedule": "streaming", "directions": 2, "batch": 2, "step": 0.3}
_PAPER: Table = {**_STREAM, "directions": 1, "batch": 1}


def fdskl(
    actives: int,
    options: Table,
    rounds: int | None = None,
    *,
    message: int = 1 << 20,
    main: bool = False,
) -> Way:
    """Return a way of FDSKL; ``message`` are the bytes of phases in one."""
    every = {"checkpoint_every": 2} if rounds else {}
    tables = lambda: parties_with_columns(actives)  # noqa: E731
    size = {"fedkern_flwr.strategies.fdskl_phases._MESSAGE": message}
    return Way(FDSKL_, tables, options, rounds, main=main, checkpoints=every, patches=size)


# -- align and ranges, which nodes end by files of their own


def outcome_of_align(strategy: Any, nodes: Nodes) -> Table:
    """Return who shares how many rows, by the server and by the nodes' files."""
    tags: dict[str, set[bytes]] = {}
    for k, table in enumerate(nodes.tables):
        file = AlignmentTags.load(nodes.folder / f"{k}.npz")
        for name, tag in zip(table["ids"], file.tags_of(table["ids"]), strict=True):
            tags.setdefault(name, set()).add(tag)
        assert KeptState.unpack(SessionState.load(nodes.contexts[k]).payload).seed == b""
    assert all(len(found) == 1 for found in tags.values())
    return {"overlaps": strategy.overlaps_, "metrics": strategy.metrics_}


def outcome_of_ranges(strategy: Any, nodes: Nodes) -> Table:
    """Return what is summed, and what the nodes have written."""
    files = {path.name: path.read_text() for path in nodes.folder.glob("*.json")}
    assert all(not SessionState.load(context).payload for context in nodes.contexts.values())
    return {**strategy.model()[0], "files": files, "metrics": strategy.metrics_}


def ids_of_three() -> Tables:
    """Deal ids that overlap in part."""
    return [{"ids": [f"patient {k}" for k in range(i, i + 9)]} for i in (0, 3, 5)]


def blocks_of_columns() -> Tables:
    """Deal rows of a block to three nodes, of another to two; a node has one by itself."""
    rng = np.random.default_rng(0)
    blocks = ("own", "patients", "genes", "patients", "genes", "patients")
    return [{"x": rng.standard_normal((9, 3)) + k, "block": b} for k, b in enumerate(blocks)]


def columns_to_encode() -> Tables:
    """Deal rows with text to three nodes of a block; a node has one by itself."""
    rng = np.random.default_rng(0)
    own: Table = {"columns": ("a", "b", "c"), "kinds": {"c": "category"}, "category_key": b"s" * 16}
    own["categories"] = {"c": ("one", "other")}
    x = [np.column_stack([rng.random((9, 2)) + k, np.arange(9) % 2]) for k in range(4)]
    return [{**own, "x": x[k], "block": f"block {k == 3}"} for k in range(4)]


ALIGN = Method(
    AlignIds,
    AlignmentClient,
    outcome_of_align,
    files="none",
    paths={"alignment": "{}.npz"},
    resumes=False,
    ended="mend it and start align again",
)
RANGES = Method(
    ColumnRanges,
    RangesClient,
    outcome_of_ranges,
    files="none",
    paths={"ranges": "{}.json", "scaling": "{}-scaling.json"},
    resumes=False,
    ended="mend it and start again, .*; two runs that differ in their nodes show single ones",
)

# -- Secure Gram and FedCFK where all nodes must answer: four nodes with some rows each


def rows_of_items(nodes: int = 4) -> Tables:
    """Rows of zeros and ones; some items are in few of them."""
    rng, chance = np.random.default_rng(0), np.array([0.9, 0.6, 0.6, 0.5, 0.4, 0.05, 0.0])
    x = [(rng.random((4, 7)) < chance).astype(int) for _ in range(nodes)]
    return [{"x": rows, "x_test": np.roll(rows, 1, axis=1)} for rows in x]


def with_a_row_more(tables: Tables) -> None:
    """Give a node another row."""
    tables[1] = {name: np.concatenate([x, x[:1]]) for name, x in tables[1].items()}


def outcome_of_gram(strategy: Any, nodes: Nodes) -> Table:
    """Return the exact matrix, of which items, and what is told of it."""
    rows = np.concatenate([table["x"] for table in nodes.tables])[:, strategy.items_]
    np.testing.assert_array_equal(strategy.gram_, rows.T @ rows)
    return {
        "gram": strategy.gram_,
        "items": strategy.items_,
        "counts": strategy.counts_,
        "metrics": strategy.metrics_,
        "history": strategy.history_,
    }


GRAM = Method(
    FedCFK,
    GramClient,
    outcome_of_gram,
    {"drop_outs": False, "allow_recovery": True, "seed": 0},
    files="none",
    changes=({"min_support": 4}, {"kernel": "linear"}, {"seed": 1}, {"cohorts": 2}),
    tables=(with_a_row_more,),
    spent=("gram-counts", "gram-matrix", "gram-recommend"),
    stays=(".released",),
    sums_alone=True,
    missing="1 parties are missing in .*, which has no self masks",
    ended="mend (it and start again, with more attempts|the clients and start again with all)",
)
GROWING = replace(GRAM, changes=({"min_support": 4}, {"kernel": "linear"}, {"seed": 1}))


WAYS: dict[str, Way] = {
    "fed-cg": fed_cg({}, main=True),
    "fed-cg in parts": fed_cg({}, 20),
    "fed-cg, function's norm": fed_cg({"penalty": "rkhs", "gamma": 2.0}, 20),
    "fed-cg, normal landmarks": fed_cg({"sampling": "N"}),
    "fed-cg, balanced classes": fed_cg({"class_weight": "balanced"}),
    "fed-cg, tuned": fed_cg({"tune": "folds", "regularization": None}, main=True),
    "fed-cg by products": fed_cg(_CG),
    "fed-cg by products, in parts": fed_cg(_CG, 40, main=True),
    "fed-cg by products, as in the paper": fed_cg(_CG_PAPER),
    "fdskl": fdskl(1, _ONCE, main=True),
    "fdskl in parts": fdskl(1, _ONCE, message=1200, main=True),
    "fdskl streaming": fdskl(1, _STREAM, 6),
    "fdskl, two actives": fdskl(2, _STREAM, 5, main=True),
    "fdskl, three actives, judged on the way": fdskl(3, {**_STREAM, "evaluate_every": 3}, 5),
    "fdskl, Algorithm 1": fdskl(1, _PAPER, 5),
    "fdskl, Algorithm 1, two actives": fdskl(2, _PAPER, 5),
    "secure-gram, fed-cfk": Way(GRAM, rows_of_items, main=True),
    "secure-gram in rounds": Way(GROWING, partial(rows_of_items, 8), rounds=2, main=True),
    "align": Way(ALIGN, ids_of_three, main=True),
    "ranges": Way(RANGES, blocks_of_columns, main=True),
    "ranges, with encoders": Way(replace(RANGES, paths={"encoder": "{}.json"}), columns_to_encode),
}


# -- HierarchicalSVM whose agents leave out a group that is silent: four groups of two users


def users_in_groups(without: int | None = None) -> Tables:
    """Deal rows to the users of all groups but one; columns are in different units."""
    (x, y), agents = side(120, 4), range(4)
    labels = {"classes": (0, 1)}
    tables = [
        {"x": x[rows] * [1.0, 3.0, 0.5, 1.0], "y": y[rows], "group": k // 2, **labels}
        for k, rows in enumerate(np.array_split(np.arange(120), 8))
    ]
    tables += [{"role": "agent", "group": group} for group in agents]
    return [table for table in tables if table["group"] != without]


def outcome_of_svm(strategy: Any, nodes: Nodes) -> Table:
    """Return the model for columns as they are, and its objective."""
    return {**strategy.model()[0], "objective": strategy.metrics_["objective"]}


SVM = Method(
    HierarchicalSVM,
    SVMClient,
    outcome_of_svm,
    {"C": 1.0, "scale": "none", "tolerance": 2e-3, "seed": 0, "lost_groups": "leave-out"},
)
#: Ways on which the others go on without a group, one of whose nodes never answers again.
LEAVING: dict[str, Way] = {
    "hierarchical-svm": Way(SVM, users_in_groups, rounds=200),
    "hierarchical-svm, asynchronous": Way(SVM, users_in_groups, {"staleness": 2}, rounds=200),
}


def assert_same(found: Table, expected: Table) -> None:
    """The same to the last bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        else:
            assert found[name] == value, f"{name}: {found[name]} instead of {value}"

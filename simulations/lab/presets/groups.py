"""Tables and figures of the paper on HierarchicalSVM, and its part of the demo.

The paper gives neither C, rho (but for Table 2) nor the rule by which it stops; ours: C = 1,
standardised columns, penalties chosen by the method, and both residuals below 1e-3. Its figures are
pictures without numbers; beside them stands what its text says of them. Higgs takes part where the
user has put it beside the other data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedkern_flwr.errors import TableError

from ...methods.groups_settings import HierarchicalSettings
from ...run.random_labels import RANDOM_LABELS
from .base import Builder, Contender, Preset, Section, choose, data_file, is_there

_SETS = {
    "Breast cancer": "breast_cancer_original.npz",
    "Svmguide1": "svmguide1.npz",
    "Higgs": "higgs.npz",
}
_OPTIONAL = "Higgs"
_SMALL = "Breast cancer"

_POOLED = "linear SVM, pooled"
_CHAIN, _CENTRALISED, _HIERARCHICAL = "chain of neighbours", "centralised", "hierarchical"
_EXACT, _PAPER = "exact consensus", "the paper's equation 11"
_ALL_GROUPS, _FEW_GROUPS = (2, 3, 4, 5, 7, 9, 11, 13), (2, 4, 7, 10, 13)
_CHAIN_ROUNDS, _MANY_USERS_ROUNDS = 1000, 300

# Table 2: architecture -> iterations, seconds, KB
_TABLE2 = {_CHAIN: (514.0, 766.0, 144.0), _CENTRALISED: (67.0, 107.0, 10.0)}
# Table 3: data set -> accuracy of each architecture
_TABLE3: dict[str, dict[str, float]] = {
    "Breast cancer": {
        _POOLED: 0.9683,
        _CHAIN: 0.8967,
        _CENTRALISED: 0.955,
        _HIERARCHICAL: 0.9483,
    },
    "Svmguide1": {_POOLED: 0.954, _CHAIN: 0.842, _CENTRALISED: 0.922, _HIERARCHICAL: 0.897},
    "Higgs": {_POOLED: 0.644, _CHAIN: 0.537, _CENTRALISED: 0.6116, _HIERARCHICAL: 0.5776},
}


def _settings(dataset: str, **more: Any) -> HierarchicalSettings:
    given: dict[str, Any] = {"resplit": True, **more}
    return HierarchicalSettings(data=data_file(_SETS[dataset]), **given)


def _kept(datasets: tuple[str, ...], known: Iterable[str] = _SETS) -> tuple[str, ...]:
    """Return the data sets asked for; of all that are known those that are there."""
    kept = choose(datasets, tuple(known))
    if datasets:
        return kept
    return tuple(name for name in kept if name != _OPTIONAL or is_there(_SETS[name]))


def _architecture(name: str, **options: Any) -> Contender:
    kinds = {_CHAIN: "chain", _CENTRALISED: "centralised"}
    chosen = {"architecture": kinds[name]} if name in kinds else {}
    return (name, "hierarchical-svm", {**chosen, **options})


_PLAIN: Contender = (_POOLED, "linear-svm", {})


def _table2(datasets: tuple[str, ...]) -> Preset:
    if datasets:
        raise TableError("Table 2 has its own data", remedy="leave out --datasets")
    users = HierarchicalSettings(
        RANDOM_LABELS, users=100, groups=1, test_size=0.0, rounds=_MANY_USERS_ROUNDS
    )
    as_printed = {f"{name}, rho 5": figures for name, figures in _TABLE2.items()}
    return Preset(
        "hierarchical-table2",
        "HierarchicalSVM, Table 2: two simple architectures",
        "100 users with 100 rows of 25 columns each and random labels. Paper: its own step size "
        "of 5; beside it stands rho 5, and for the centralised architecture also the penalties "
        f"that the method chooses. Runs end after {_MANY_USERS_ROUNDS} iterations at the latest.",
        (
            Section(
                {"Random labels": users},
                (
                    *(_as_printed(name) for name in _TABLE2),
                    _architecture(_CENTRALISED),
                ),
                ("iterations", "time", "kilobytes", "gap", "exchanges"),
                ("consensus",),
                paper={
                    "Random labels": {
                        column: {label: row[place] for label, row in as_printed.items()}
                        for place, column in enumerate(("iterations", "time", "kilobytes"))
                    }
                },
            ),
        ),
        runs=1,
    )


def _as_printed(name: str) -> Contender:
    label, method, options = _architecture(name, rho=5.0)
    return (f"{label}, rho 5", method, options)


def _table3(datasets: tuple[str, ...]) -> Preset:
    return Preset(
        "hierarchical-table3",
        "HierarchicalSVM, Table 3: accuracy of the architectures",
        "20 users, in two groups where there are any; 70 % of the rows for training. Whatever the "
        "architecture, the model is that of pooled data: the paper loses 2 to 7 points.",
        tuple(
            Section(
                {name: _settings(name, rounds=_CHAIN_ROUNDS)},
                (_PLAIN, *map(_architecture, (_CHAIN, _CENTRALISED, _HIERARCHICAL))),
                ("accuracy", "gap", "iterations", "exchanges", "seconds"),
                ("consensus",),
                title=name,
                paper={name: {"accuracy": _TABLE3[name]}},
            )
            for name in _kept(datasets)
        ),
        runs=3,
    )


def _over_groups(
    name: str, counts: Iterable[int], *, users_per_group: int | None = None, **more: Any
) -> dict[str, HierarchicalSettings]:
    """Return settings for each number of groups."""
    return {
        f"{name}, {count} groups": _settings(
            name,
            groups=count,
            users=20 if users_per_group is None else users_per_group * count,
            **more,
        )
        for count in counts
    }


def _figure7(datasets: tuple[str, ...]) -> Preset:
    single = {"allow_single": True}
    return Preset(
        "hierarchical-figure7",
        "HierarchicalSVM, Figure 7: accuracy against the number of groups",
        "20 users in 2 to 13 groups. Paper: the accuracy falls with the number of groups. Exact "
        "consensus is the pooled model for any number; the paper's equation 11 is missing in its "
        "text, and what stands here is our reading of it.",
        tuple(
            Section(
                _over_groups(name, _FEW_GROUPS),
                (
                    (_EXACT, "hierarchical-svm", single),
                    (_PAPER, "hierarchical-svm", {**single, "consensus": "paper"}),
                    _PLAIN,
                ),
                ("accuracy", "gap", "iterations"),
                (),
                title=f"{name}, groups",
                across=("accuracy-over-groups",),
            )
            for name in _kept(datasets)
        ),
        runs=1,
    )


def _figure8(datasets: tuple[str, ...]) -> Preset:
    return Preset(
        "hierarchical-figure8",
        "HierarchicalSVM, Figure 8: iterations against the number of users",
        "4 to 20 users; two groups in the hierarchical architecture. Paper: the chain needs most "
        "and more with every user, the centralised one hardly more, the hierarchical one least.",
        tuple(
            Section(
                {
                    f"{name}, {users} users": _settings(name, users=users, rounds=_CHAIN_ROUNDS)
                    for users in (4, 8, 12, 16, 20)
                },
                tuple(map(_architecture, (_CHAIN, _CENTRALISED, _HIERARCHICAL))),
                ("iterations", "gap", "accuracy", "seconds"),
                (),
                title=f"{name}, users",
                across=("iterations-over-users",),
            )
            for name in _kept(datasets, ("Breast cancer", "Svmguide1"))
        ),
        runs=1,
    )


def _figure10a(datasets: tuple[str, ...]) -> Preset:
    return Preset(
        "hierarchical-figure10a",
        "HierarchicalSVM, Figure 10(a): iterations against the number of groups",
        "20 users in 2 to 13 groups. Paper: grows with the number of groups.",
        tuple(
            Section(
                _over_groups(name, _ALL_GROUPS),
                ((_EXACT, "hierarchical-svm", {"allow_single": True}),),
                ("close", "iterations", "gap", "accuracy", "seconds"),
                (),
                title=f"{name}, groups",
                across=("reached-over-groups", "iterations-over-groups"),
            )
            for name in _kept(datasets, ("Breast cancer", "Svmguide1"))
        ),
        runs=1,
    )


def _figure10b(datasets: tuple[str, ...]) -> Preset:
    name = _kept(datasets, (_SMALL, "Svmguide1"))[0]
    return Preset(
        "hierarchical-figure10b",
        "HierarchicalSVM, Figure 10(b): two groups of different sizes",
        "20 users in two groups, 10:10 to 1:19. Paper: the larger the deviation, the more the "
        "iterations differ.",
        (
            Section(
                {
                    f"{name}, {few}:{20 - few}": _settings(name, group_sizes=(few, 20 - few))
                    for few in (10, 8, 6, 4, 2, 1)
                },
                ((_EXACT, "hierarchical-svm", {"allow_single": True}),),
                ("iterations", "gap", "accuracy", "seconds"),
                (),
                title=f"{name}, ratio of users",
                across=("iterations-over-ratio",),
            ),
        ),
        runs=3,
    )


def _figure11(datasets: tuple[str, ...]) -> Preset:
    local = {"partition": "vertical"}
    return Preset(
        "hierarchical-figure11",
        "HierarchicalSVM, Figure 11: groups that hold columns",
        "Vertical split: a block of columns for each group, its rows at five users, the labels at "
        "an owner. Paper: the secure matrix product of its section 3.3 costs a little time; it is "
        "product orthogonal here.",
        tuple(
            Section(
                _over_groups(name, (2, 3, 4), users_per_group=5, partition="vertical"),
                (
                    ("product local", "hierarchical-svm", local),
                    ("product orthogonal", "hierarchical-svm", {**local, "product": "orthogonal"}),
                    _PLAIN,
                ),
                ("accuracy", "gap", "iterations", "exchanges", "megabytes", "seconds"),
                (),
                title=f"{name}, columns",
                across=("seconds-over-groups", "iterations-over-groups"),
            )
            for name in _kept(datasets)
        ),
        runs=1,
    )


def _figure12(datasets: tuple[str, ...]) -> Preset:
    name = _kept(datasets, (_SMALL, "Svmguide1"))[0]
    pairs = ((1, 1), (5, 5), (10, 10), (20, 20), (50, 50), (100, 100))
    mixed = ((1, 10), (5, 50), (10, 100))
    return Preset(
        "hierarchical-figure12",
        "HierarchicalSVM, Figure 12: step sizes of two groups",
        "20 users in two groups with penalties rho of their own, which stay as they are. Paper: "
        "larger steps need fewer iterations, and may classify worse; one should not be above 50. "
        "All end at the same model here, given iterations enough.",
        (
            Section(
                {name: _settings(name, rounds=500)},
                tuple(
                    (f"{kind}, {a} and {b}", "hierarchical-svm", {"step_sizes": [a, b]})
                    for kind, given in (("equal", pairs), ("different", mixed))
                    for a, b in given
                ),
                ("iterations", "gap", "accuracy", "seconds"),
                ("sweep-iterations", "sweep-accuracy"),
                sweep="step_sizes",
            ),
        ),
        runs=1,
    )


def _figure13(datasets: tuple[str, ...]) -> Preset:
    name = _kept(datasets, ("Svmguide1", _SMALL))[0]
    return Preset(
        "hierarchical-figure13",
        "HierarchicalSVM, Figure 13: synchronous and asynchronous advance",
        "20 users; the replies of each group come later by an exponential time of 0.1 s on "
        "average, drawn anew in every iteration. Asynchronous: groups may be 4 iterations apart. "
        "Paper: half the iterations (it does not say whose). Here iterations are those of the "
        "slowest group, and the seconds count.",
        (
            Section(
                _over_groups(name, (2, 3, 5, 8), delay="exponential:0.1"),
                (
                    ("synchronous", "hierarchical-svm", {}),
                    ("asynchronous, D = 4", "hierarchical-svm", {"staleness": 4}),
                ),
                ("iterations", "gap", "accuracy", "seconds"),
                (),
                title=f"{name}, advance",
                across=("seconds-over-groups", "iterations-over-groups"),
            ),
        ),
        runs=2,
    )


def _staleness(datasets: tuple[str, ...]) -> Preset:
    name = _kept(datasets, ("Svmguide1", _SMALL))[0]
    return Preset(
        "hierarchical-staleness",
        "HierarchicalSVM: how far groups may be apart when one is slow",
        "20 users in five groups with exponential delays of 0.05 s on average in each iteration; "
        "those of the last group are five times as long. D: iterations that the fastest group may "
        "be ahead of the slowest.",
        (
            Section(
                {name: _settings(name, groups=5, delay="exponential:0.05,0.05,0.05,0.05,0.25")},
                tuple(
                    (f"groups apart, D = {apart}", "hierarchical-svm", {"staleness": apart})
                    for apart in (0, 1, 4, 16)
                ),
                ("iterations", "gap", "accuracy", "seconds"),
                ("sweep-seconds",),
                sweep="staleness",
            ),
        ),
        runs=2,
    )


def user_groups() -> Section:
    """Return HierarchicalSVM's part of the demo."""
    settings = HierarchicalSettings("breast-cancer", users=6, groups=2, rounds=12)
    return Section(
        {"Tumours, in two groups": settings},
        (("HierarchicalSVM", "hierarchical-svm", {}), _PLAIN),
        ("accuracy", "gap", "iterations", "exchanges", "megabytes", "seconds"),
        (),
        title="Breast cancer a last time: six users in two groups, each with an agent",
        text="HierarchicalSVM fits a linear support vector machine. Users' models are summed for "
        "their agent alone, agents' for the server, which sees nothing but the global model.",
    )


PRESETS: Mapping[str, Builder] = {
    "hierarchical-table2": _table2,
    "hierarchical-table3": _table3,
    "hierarchical-figure7": _figure7,
    "hierarchical-figure8": _figure8,
    "hierarchical-figure10a": _figure10a,
    "hierarchical-figure10b": _figure10b,
    "hierarchical-figure11": _figure11,
    "hierarchical-figure12": _figure12,
    "hierarchical-figure13": _figure13,
    "hierarchical-staleness": _staleness,
}

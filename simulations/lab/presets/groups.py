"""Tables and figures of the paper on HierarchicalSVM, and its part of the demo.

The paper gives neither C, rho (but for Table 2) nor the rule by which it stops; ours: C = 1,
standardised columns, penalties chosen by the method, and both residuals at most 0.01. Its figures
are pictures without numbers; beside them stands what its text says of them. Higgs takes part where
the user has put it beside the other data. The chain of neighbours, the consensus of equation 11
and the secure matrix product are the plain programs of
:mod:`fedkern_flwr.simulations.papers.hierarchical_svm`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedkern_flwr.errors import TableError

from ...methods.groups import HierarchicalSettings
from ...run.random_labels import RANDOM_LABELS
from .base import Contender, Presets, Section, choose, data_file, is_there

_SETS = {
    "Breast cancer": "breast_cancer_original.npz",
    "Svmguide1": "svmguide1.npz",
    "Higgs": "higgs.npz",
}
_OPTIONAL = "Higgs"
_SMALL, _LARGE = "Breast cancer", "Svmguide1"

_POOLED = "linear SVM, pooled"
_CHAIN, _CENTRALISED, _HIERARCHICAL = "chain of neighbours", "centralised", "hierarchical"
_EXACT, _PAPER = "exact consensus", "the paper's equation 11"
_ALL_GROUPS, _FEW_GROUPS = (2, 3, 4, 5, 7, 9, 11, 13), (2, 4, 7, 10, 13)
_CHAIN_ROUNDS, MANY_USERS, _MANY_USERS_ROUNDS = 1000, 100, 300

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


PRESETS = Presets()


def _settings(dataset: str, **more: Any) -> HierarchicalSettings:
    given: dict[str, Any] = {"resplit": True, "groups": 2, **more}
    return HierarchicalSettings(data=data_file(_SETS[dataset]), **given)


def _kept(datasets: tuple[str, ...]) -> tuple[str, ...]:
    """Return the data sets asked for; of all that are known those that are there."""
    there = (name for name in _SETS if name != _OPTIONAL or is_there(_SETS[name]))
    return choose(datasets, _SETS, there)


def _of_two(datasets: tuple[str, ...]) -> tuple[str, ...]:
    """Return the data sets asked for, of those that need no file of the user's."""
    return choose(datasets, (_SMALL, _LARGE))


def _svm(label: str, architecture: str = "hierarchical", **options: Any) -> Contender:
    return (label, "hierarchical-svm", {"C": 1.0, "architecture": architecture, **options})


def _paper(label: str, consensus: str, **options: Any) -> Contender:
    return (label, "svm-paper", {"consensus": consensus, **options})


_PLAIN: Contender = (_POOLED, "linear-svm", {})
_ARCHITECTURES = (
    _paper(_CHAIN, "chain"),
    _svm(_CENTRALISED, "centralised"),
    _svm(_HIERARCHICAL),
)
_COLUMNS = ("iterations", "gap", "accuracy", "seconds")


@PRESETS.add(
    "hierarchical-table2",
    "HierarchicalSVM, Table 2: two simple architectures",
    "100 users with 100 rows of 25 columns each and random labels. Paper: its own step size "
    "of 5; beside it stands rho 5, and for the centralised architecture also the penalties "
    f"that the method chooses. Runs end after {_MANY_USERS_ROUNDS} iterations at the latest.",
    runs=1,
)
def _table2(datasets: tuple[str, ...]) -> list[Section]:
    if datasets:
        raise TableError(
            "Table 2 has its own data", remedy="leave out --datasets", code="FK-COMPARE-OPTION"
        )
    name, columns = "Random labels", ("iterations", "time", "kilobytes")
    users = HierarchicalSettings(
        RANDOM_LABELS, users=MANY_USERS, groups=1, test_size=0.0, rounds=_MANY_USERS_ROUNDS
    )
    as_printed = {f"{label}, rho 5": figures for label, figures in _TABLE2.items()}
    chain, central = as_printed
    return [
        Section(
            {name: users},
            (
                _paper(chain, "chain", rho=5.0),
                _svm(central, "centralised", rho=5.0),
                _svm(_CENTRALISED, "centralised"),
            ),
            (*columns, "gap", "exchanges"),
            ("consensus",),
            paper={
                name: {
                    column: {label: figures[place] for label, figures in as_printed.items()}
                    for place, column in enumerate(columns)
                }
            },
        )
    ]


@PRESETS.each(
    "hierarchical-table3",
    "HierarchicalSVM, Table 3: accuracy of the architectures",
    "20 users, in two groups where there are any; 70 % of the rows for training. Whatever the "
    "architecture, the model is that of pooled data: the paper loses 2 to 7 points.",
    _kept,
    runs=3,
)
def _table3(name: str) -> Section:
    return Section(
        {name: _settings(name, rounds=_CHAIN_ROUNDS)},
        (_PLAIN, *_ARCHITECTURES),
        ("accuracy", "gap", "iterations", "exchanges", "seconds"),
        ("consensus",),
        title=name,
        paper={name: {"accuracy": _TABLE3[name]}},
    )


def _over_groups(
    name: str, counts: Iterable[int], *, users_per_group: int | None = None, **more: Any
) -> dict[str, HierarchicalSettings]:
    """Return settings for each number of groups."""
    users = {count: 20 if users_per_group is None else users_per_group * count for count in counts}
    return {
        f"{name}, {count} groups": _settings(name, groups=count, users=many, **more)
        for count, many in users.items()
    }


@PRESETS.add(
    "hierarchical-figure5",
    "HierarchicalSVM, Figure 5: step size of the centralised architecture",
    "20 users and a penalty rho that stays as it is. Paper: with a larger step the iterations "
    "fall and so does the accuracy. The penalty decides how fast users come to the same model, "
    "and not to which.",
    runs=1,
)
def _figure5(datasets: tuple[str, ...]) -> list[Section]:
    entries = tuple(
        _svm(f"{_CENTRALISED}, {rho}", "centralised", rho=rho, rho_schedule="fixed")
        for rho in (1, 5, 10, 20, 50, 100)
    )
    plots = ("sweep-iterations", "sweep-accuracy")
    return [
        Section({name: _settings(name, rounds=500)}, entries, _COLUMNS, plots, sweep="rho")
        for name in _of_two(datasets)
    ]


@PRESETS.each(
    "hierarchical-figure7",
    "HierarchicalSVM, Figure 7: accuracy against the number of groups",
    "20 users in 2 to 13 groups. Paper: the accuracy falls with the number of groups. Exact "
    "consensus is the pooled model for any number; the paper's equation 11 is missing in its "
    "text, and what stands here is our reading of it.",
    _kept,
    runs=1,
)
def _figure7(name: str) -> Section:
    entries = (
        _svm(_EXACT, allow_single=True),
        _paper(_PAPER, "equation 11"),
        _PLAIN,
    )
    title, across = f"{name}, groups", ("accuracy-over-groups",)
    columns = ("accuracy", "gap", "iterations")
    data = _over_groups(name, _FEW_GROUPS)
    return Section(data, entries, columns, (), title=title, across=across)


@PRESETS.each(
    "hierarchical-figure8",
    "HierarchicalSVM, Figure 8: iterations against the number of users",
    "4 to 20 users; two groups in the hierarchical architecture. Paper: the chain needs most "
    "and more with every user, the centralised one hardly more, the hierarchical one least.",
    _of_two,
    runs=1,
)
def _figure8(name: str) -> Section:
    data = {
        f"{name}, {users} users": _settings(name, users=users, rounds=_CHAIN_ROUNDS)
        for users in (4, 8, 12, 16, 20)
    }
    title, across = f"{name}, users", ("iterations-over-users",)
    return Section(data, _ARCHITECTURES, _COLUMNS, (), title=title, across=across)


@PRESETS.each(
    "hierarchical-figure10a",
    "HierarchicalSVM, Figure 10(a): iterations against the number of groups",
    "20 users in 2 to 13 groups. Paper: grows with the number of groups.",
    _of_two,
    runs=1,
)
def _figure10a(name: str) -> Section:
    return Section(
        _over_groups(name, _ALL_GROUPS),
        (_svm(_EXACT, allow_single=True),),
        ("close", *_COLUMNS),
        (),
        title=f"{name}, groups",
        across=("reached-over-groups", "iterations-over-groups"),
    )


@PRESETS.add(
    "hierarchical-figure10b",
    "HierarchicalSVM, Figure 10(b): two groups of different sizes",
    "20 users in two groups, 10:10 to 1:19. Paper: the larger the deviation, the more the "
    "iterations differ.",
    runs=3,
)
def _figure10b(datasets: tuple[str, ...]) -> list[Section]:
    name = _of_two(datasets)[0]
    data = {
        f"{name}, {few}:{20 - few}": _settings(name, group_sizes=(few, 20 - few))
        for few in (10, 8, 6, 4, 2, 1)
    }
    entries = (_svm(_EXACT, allow_single=True),)
    title, across = f"{name}, ratio of users", ("iterations-over-ratio",)
    return [Section(data, entries, _COLUMNS, (), title=title, across=across)]


@PRESETS.each(
    "hierarchical-figure11",
    "HierarchicalSVM, Figure 11: groups that hold columns",
    "Vertical split: a block of columns for each group, its rows at five users, the labels at "
    "an owner. Paper: the secure matrix product of its section 3.3 costs a little time. Here it "
    "is a plain program in one process, and its traffic that of the products alone.",
    _kept,
    runs=1,
)
def _figure11(name: str) -> Section:
    return Section(
        _over_groups(name, (2, 3, 4), users_per_group=5, partition="vertical"),
        (
            _svm("product local", partition="vertical"),
            ("product orthogonal", "svm-columns-paper", {}),
            _PLAIN,
        ),
        ("accuracy", "gap", "iterations", "exchanges", "megabytes", "seconds"),
        (),
        title=f"{name}, columns",
        across=("seconds-over-groups", "iterations-over-groups"),
    )


@PRESETS.add(
    "hierarchical-figure12",
    "HierarchicalSVM, Figure 12: step sizes of two groups",
    "20 users in two groups with penalties rho of their own, which stay as they are. Paper: "
    "larger steps need fewer iterations, and may classify worse; one should not be above 50. "
    "All end at the same model here, given iterations enough.",
    runs=1,
)
def _figure12(datasets: tuple[str, ...]) -> list[Section]:
    name = _of_two(datasets)[0]
    pairs = {
        "equal": ((1, 1), (5, 5), (10, 10), (20, 20), (50, 50), (100, 100)),
        "different": ((1, 10), (5, 50), (10, 100)),
    }
    entries = tuple(
        _svm(f"{kind}, {a} and {b}", step_sizes=[a, b])
        for kind, given in pairs.items()
        for a, b in given
    )
    data, plots = {name: _settings(name, rounds=500)}, ("sweep-iterations", "sweep-accuracy")
    return [Section(data, entries, _COLUMNS, plots, sweep="step_sizes")]


@PRESETS.add(
    "hierarchical-figure13",
    "HierarchicalSVM, Figure 13: synchronous and asynchronous advance",
    "20 users; the replies of each group come later by an exponential time of 0.1 s on "
    "average, drawn anew in every iteration. Asynchronous: groups may be 4 iterations apart. "
    "Paper: half the iterations (it does not say whose). Here iterations are those of the "
    "slowest group, and the seconds count.",
    runs=2,
)
def _figure13(datasets: tuple[str, ...]) -> list[Section]:
    name = choose(datasets, (_LARGE, _SMALL))[0]
    return [
        Section(
            _over_groups(name, (2, 3, 5, 8), delay="exponential:0.1"),
            (_svm("synchronous"), _svm("asynchronous, D = 4", staleness=4)),
            _COLUMNS,
            (),
            title=f"{name}, advance",
            across=("seconds-over-groups", "iterations-over-groups"),
        )
    ]


@PRESETS.add(
    "hierarchical-staleness",
    "HierarchicalSVM: how far groups may be apart when one is slow",
    "20 users in five groups with exponential delays of 0.05 s on average in each iteration; "
    "those of the last group are five times as long. D: iterations that the fastest group may "
    "be ahead of the slowest.",
    runs=2,
)
def _staleness(datasets: tuple[str, ...]) -> list[Section]:
    name = choose(datasets, (_LARGE, _SMALL))[0]
    delay = "exponential:0.05,0.05,0.05,0.05,0.25"
    entries = tuple(_svm(f"groups apart, D = {apart}", staleness=apart) for apart in (0, 1, 4, 16))
    data = {name: _settings(name, groups=5, delay=delay)}
    return [Section(data, entries, _COLUMNS, ("sweep-seconds",), sweep="staleness")]


def user_groups() -> Section:
    """Return HierarchicalSVM's part of the demo."""
    settings = HierarchicalSettings("breast-cancer", users=6, groups=2, rounds=300)
    return Section(
        {"Tumours, in two groups": settings},
        (_svm("HierarchicalSVM", tolerance=1e-2), _PLAIN),
        ("accuracy", "gap", "iterations", "exchanges", "megabytes", "seconds"),
        (),
        title="Breast cancer a last time: six users in two groups, each with an agent",
        text="HierarchicalSVM fits a linear support vector machine. Users' models are summed for "
        "their agent alone, agents' for the server, which sees nothing but the global model.",
    )

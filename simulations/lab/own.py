"""Compare methods at their defaults with scikit-learn, on a user's table and on eight of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedkern_flwr.errors import FedKernError, OptionError, TableError
from fedkern_flwr.registered import find_method, registered
from fedkern_flwr.tables.dialect import DIALECT

from ..methods.dealt_data import LabelledSettings
from ..methods.pooled import ALONE, FED_AVG
from ..methods.registry import METHODS, family, method
from ..methods.rows import RowSettings
from ..run.data import Prepared, Settings
from ..run.options import Option, options
from .references.peers import parties_alike
from .sections import Contender, DataFiles, Preset, Section, choose

#: Methods that learn from labelled rows and are evaluated on held-out rows.
METHODS_OF_TABLES = tuple(m for m in METHODS if issubclass(family(m).settings, LabelledSettings))
#: Options of the table and its parties, for all methods that have them.
_SHARED = (
    "data",
    "label",
    "target",
    "id_column",
    "site_column",
    "party",
    "scaling",
    *DIALECT,
    "use",
    "ignore",
    "common_columns",
    "task",
    "positive",
    "test_size",
    "train_rows",
    "hospitals",
    "centres",
    "parties",
    "users",
    "groups",
    "partition",
    "split",
    "alpha",
    "allow_single",
)
_COSTS = ("exchanges", "traffic", "cpu", "deployed", "plain", "epsilon", "sees")
_SHARE, _SPLITS, _SVC_ROWS = 0.3, 10, 4000
_RIDGE: dict[str, Any] = {"landmarks": 500, "wide": True}
# options of a method on a table of features, and where the labels are numbers
_ON_TABLES: Mapping[str, dict[str, Any]] = {
    "secure-gram": {"encoding": "fixed-point", "kernel": "rbf"}
}
_OF_NUMBERS: Mapping[str, dict[str, Any]] = {"hierarchical-svm": {"model": "ridge"}}


def own_options() -> list[Option]:
    """Return the options of the table and its parties, without defaults."""
    found = {o.name: o for name in METHODS_OF_TABLES for o in _every(name)}
    return [
        Option(o.name, o.type if o.name == "party" else o.type | None, *_text(o), o.panel, o.flag)
        for o in map(found.__getitem__, _SHARED)
    ]


def own_table(values: Mapping[str, Any], methods: Sequence[str]) -> tuple[Preset, list[str]]:
    """Make a comparison on a user's table.

    Parameters
    ----------
    values : mapping
        Those of :func:`own_options`; None for an option that is not given.
    methods : sequence of str
        Methods to compare; if empty, all that can learn from the table.

    Returns
    -------
    preset : Preset
    left_out : list of str
        Methods that cannot, with reasons.

    Raises
    ------
    OptionError, TableError
        A method in ``methods`` cannot learn from the table, or none can.
    """
    given = {name: value for name, value in values.items() if value not in (None, [])}
    for name in methods:
        _check_method(name)
    chosen = tuple(dict.fromkeys(methods)) or METHODS_OF_TABLES
    for name in given:
        if not any(name in _names(one) for one in chosen):
            flag = name.removesuffix("_column").replace("_", "-")
            raise OptionError(
                f"none of {', '.join(chosen)} has {flag}",
                remedy=f"leave out --{flag}",
                code="FK-COMPARE-OPTION",
            )
    entries: dict[str, Contender] = {}
    dealt: dict[str, Settings] = {}
    left_out, errors, numbers, alike = list[str](), list[FedKernError](), False, ""
    for name in chosen:
        try:
            settings, own, prepared = _deal(name, given)
        except FedKernError as why:
            if methods:
                raise
            left_out.append(f"{name}: {why}")
            errors.append(why)
            continue
        title, numbers = method(name).title, not prepared.facts()["classes"]
        entries[title], dealt[title] = (title, name, own), settings
        alike = alike or title * _can_average(prepared)
    if errors and not entries:
        raise errors[0]
    peers: list[Contender] = [("Nyström ridge, pooled", "kernel-ridge", _RIDGE)]
    if find_spec("xgboost") is None:
        left_out.append("XGBoost: it is not installed; pip install 'fedkern-flwr[peers]'")
    else:
        peers.append(("XGBoost, pooled", "xgboost", {}))
    if alike:
        linear = "linear" if numbers else "logistic"
        peers += [
            ("FedAvg, network", FED_AVG, {"model": "mlp"}),
            (f"FedAvg, {linear}", FED_AVG, {"model": "logistic"}),
        ]
    else:
        left_out.append("FedAvg: no three parties of a method have rows of the same columns")
    return _preset([*entries.values()], dealt, peers, alike, numbers=numbers), left_out


def _can_average(prepared: Prepared) -> bool:
    """Return whether enough parties of a method have rows of the same columns for FedAvg."""
    try:
        parties_alike(prepared.pooled(0))
    except TableError:
        return False
    return True


def _check_method(name: str) -> None:
    """Refuse a method without held-out rows.

    Raises
    ------
    OptionError
    """
    listed = f"choose of {', '.join(METHODS_OF_TABLES)}"
    if name not in METHODS:
        close = get_close_matches(name, METHODS, n=1)
        remedy = f"did you mean {close[0]}?" if close else listed
        raise OptionError(f"there is no method {name!r}", remedy=remedy, code="FK-METHOD-UNKNOWN")
    if name in METHODS_OF_TABLES:
        return
    if name in registered():
        remedy = f"use fedkern compare {name} --datasets FILE"
        raise OptionError(
            f"{name} is not judged by labels", remedy=remedy, code="FK-COMPARE-METHOD"
        )
    what = "predicts ratings" if name == "fed-cfk" else "predicts each row before it learns it"
    raise OptionError(
        f"{name} {what}, others learn from a table of labelled rows",
        remedy=listed,
        code="FK-COMPARE-METHOD",
    )


def _every(name: str) -> list[Option]:
    """Return the options of a run; of equal names the last one has the default."""
    return [*options(method(name)), *family(name).parameters()]


def _names(name: str) -> frozenset[str]:
    known = frozenset(o.name for o in _every(name))
    return known | {"parties"} if name == "secure-gram" else known


def _text(option: Option) -> tuple[Any, str]:
    """Return default and help of a shared option."""
    if option.name == "party":
        return [], option.help
    texts = {
        "test_size": f"Share of rows held out in each split (default: {_SHARE}).",
        "parties": "Parties of FDSKL and Secure Gram, which hold columns (default: 4).",
        "allow_single": "Allow what a single party would show of itself.",
    }
    return None, texts.get(option.name, option.help)


def _deal(name: str, given: Mapping[str, Any]) -> tuple[Settings, dict[str, Any], Prepared]:
    """Deal the table to a method; return settings, options and the table.

    Raises
    ------
    OptionError, TableError
    """
    own = family(name)
    values = {o.name: o.default for o in _every(name)} | _ON_TABLES.get(name, {})
    values |= {"test_size": _SHARE, "resplit": True} | dict(given)
    if name == "secure-gram" and "parties" in given:
        values["clients"] = given["parties"]
    config = own.config(name, own.deal_files(values))
    own.check(config)
    prepared = own.prepare(own.settings.from_values(config["data"]))
    if not prepared.facts()["classes"]:
        config["options"] |= _OF_NUMBERS.get(name, {})
    own.check_data(config, prepared)
    usual = {o.name: o.default for o in options(method(name))}
    chosen = {k: v for k, v in config["options"].items() if v != usual.get(k)}
    return own.settings.from_values(config["data"]), chosen, prepared


def _preset(
    methods: list[Contender],
    dealt: Mapping[str, Settings],
    peers: list[Contender],
    alike: str,
    *,
    numbers: bool,
) -> Preset:
    """Return the comparison; baselines use the table of the first method."""
    first = dealt[methods[0][0]]
    name = Path(first.data).stem if Path(first.data).is_file() else first.data
    pooled: tuple[Contender, ...] = (
        ("logistic, pooled", "linear", {}),
        ("SVC, pooled", "svc", {"max_rows": _SVC_ROWS, "wide": True}),
        ("boosted trees, pooled", "boosting", {}),
        ("most frequent class", "constant", {}),
    )
    if numbers:
        pooled = (
            ("ridge regression, pooled", "linear", {}),
            ("boosted trees, pooled", "boosting", {}),
            ("mean", "constant", {}),
        )
    alone = {f"{title}: local model": title for title, *_ in methods}
    settings = {**dealt, **{label: dealt[title] for label, title in alone.items()}}
    settings |= {label: dealt[alike] for label, name, _ in peers if name == FED_AVG}
    holders = "; ".join(f"{title} {one.describe()}" for title, one in dealt.items())
    section = Section(
        {name: first},
        (*methods, *peers, *pooled, *((label, ALONE, {}) for label in alone)),
        ("rmses" if numbers else "accuracies", "beside", *_COSTS),
        ("errors-box", "error-exchanges", "error-bytes"),
        dealt={name: {label: one for label, one in settings.items() if one is not first}},
        parties="each method with parties of its own",
    )
    text = (
        f"All methods hold out the same {100 * first.test_size:g} % of the rows, others in every "
        "run; features are made of the others alone, and the same for all. The methods have their "
        f"defaults. Who holds what: {holders}. Pooled models see all columns of all rows; they and "
        "those of single parties are scikit-learn's, with width and regularisation by "
        "cross-validation on the rows to learn from; SVC learns from at most "
        f"{_SVC_ROWS:,} of them, kernel ridge on 500 landmarks. A party alone: the mean over the "
        "parties of a method that could learn from what they have themselves, a linear model or a "
        "support vector machine, whichever is better in cross-validation; parties without labels "
        "are given them. XGBoost has its defaults. "
    ) + (
        f"FedAvg is Flower's own, 50 rounds with secure means over the parties of {alike}: a "
        "network of 64 hidden units, or a linear model."
        if alike
        else ""
    )
    files = [Path(file).name for file in getattr(first, "party", ())]
    asked = " ".join(f"--party {file}" for file in files) or f"--data {Path(first.data).name}"
    return Preset(asked, f"Methods on {name}", text, (section,), _SPLITS)


# -- tables of ours

# name -> (data, share of rows held out: of large tables some 2,000 rows)
_TABLES = {
    "Breast cancer": ("breast-cancer", 0.3),
    "Wine": ("wine", 0.3),
    "Digits": ("digits", 0.3),
    "Sonar": ("sonar.npz", 0.3),
    "Ionosphere": ("ionosphere.npz", 0.3),
    "Svmguide1": ("svmguide1.npz", 0.28),
    "Phishing": ("phishing.npz", 0.18),
    "a9a": ("a9a.npz", 0.04),
}
_MOST_ROWS = 1000


def eight_tables(datasets: tuple[str, ...], place: DataFiles) -> Preset:
    """Make the preset ``peers`` of the given tables, else of all that are available."""
    known = {name: {"data": data, "optional": True} for name, (data, _) in _TABLES.items()}
    kept = choose(datasets, known, [n for n, own in known.items() if place.is_there(n, own)])
    sections = {}
    for name in kept:
        values = {"test_size": _TABLES[name][1], "train_rows": _MOST_ROWS}
        own, _ = own_table({**values, "data": place.find(name, known[name])}, [])
        sections[name] = own.sections[0]
    made = replace(
        sections[kept[0]],  # all tables have the same methods and columns
        data={name: next(iter(own.data.values())) for name, own in sections.items()},
        dealt={name: next(iter(own.dealt.values())) for name, own in sections.items()},
        figures=("errors-box",),
        title="Eight tables",
        across=("errors-exchanges", "errors-bytes"),
    )
    return Preset(
        "peers",
        "Eight tables: our methods beside what one would use instead",
        f"At most {_MOST_ROWS:,} rows to learn from, the same for all, and others in every run; "
        "30 % of the rows are held out, of large tables some 2,000. All methods have their "
        "defaults and parties of their own: FedCG two hospitals and two centres, FDSKL and Secure "
        "Gram four owners of columns, HierarchicalSVM and FedAvg twenty users with rows. Pooled "
        "models see all columns of all rows, width and penalty by cross-validation on the rows to "
        "learn from; Nyström ridge has 500 landmarks, boosting its defaults. FedAvg is Flower's "
        "own, 50 rounds with secure means. A party alone: the mean over the parties of a method "
        "that could learn from what they have.",
        (made,),
        runs=10,
    )


# -- registered methods

_USUAL = ("iris", "wine", "breast-cancer")
_RUNS = 5


def registered_methods(names: Sequence[str], datasets: tuple[str, ...]) -> Preset:
    """Compare registered methods.

    Parameters
    ----------
    names : sequence of str
        The methods.
    datasets : tuple of str
        Built-in data sets or files of features; by default three built-in ones.

    Raises
    ------
    TableError
        A method needs labels, and a table has none.
    """
    entries: tuple[Contender, ...] = tuple((find_method(n).title, n, {}) for n in names)
    data = {
        Path(table).stem: RowSettings(data=table, test_size=_SHARE) for table in datasets or _USUAL
    }
    labelled = [name for name in names if find_method(name).labels_of_row]
    for name, settings in data.items() if labelled else ():
        if settings.table().y is None:
            raise TableError(
                f"{labelled[0]} needs labels, and {name} is compared by its features alone",
                remedy=f"use fedkern run {labelled[0]} --data FILE --label COLUMN",
                code="FK-LABELS-MISSING",
            )
    return Preset(
        "-".join(names),
        ", ".join(title for title, *_ in entries),
        f"Rows at five clients, {100 * _SHARE:.0f} % of them held out.",
        (Section(data, entries, ("figures", "exchanges", "megabytes", "seconds", "plain"), ()),),
        runs=_RUNS,
    )

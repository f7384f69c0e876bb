"""Options: a constructor, the command line and the keys of an app take and refuse the same.

What an option may be is read off its declaration, an attribute of the strategy's class. Values are
made of it: another good one, those just outside of its range, words that it does not know.
"""

from __future__ import annotations

import functools
import json
import runpy
import tomllib
import types
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from refusals import complaint, refuses

from fedkern_flwr import strategies
from fedkern_flwr.errors import FedKernError
from fedkern_flwr.simulations.cli.main import app, run

pytestmark = pytest.mark.usefixtures("in_tmp")
TYPE, RANGE, CHOICE = "FK-OPTION-TYPE", "FK-OPTION-RANGE", "FK-OPTION-CHOICE"
APPS = {"pof-mkl": "pof_mkl", "pof-rls": "pof_mkl", "kernel-pca": "method", "align": "align"}
APPS |= {"fed-cg": "fed_cg", "fdskl": "fdskl", "hierarchical-svm": "hierarchical_svm"}
APPS |= {"fed-cfk": "fed_cfk", "ranges": "ranges"}
COMMANDS: dict[str, Any] = app.commands["run"].loaded.commands  # type: ignore[attr-defined]
CLASSES: dict[str, Any] = {
    cls.method: cls for one in strategies.__all__ if (cls := getattr(strategies, one)).method
}
#: What is no declared option, but an argument of every run: a value that it refuses.
ARGUMENTS: dict[str, Any] = {"attempts": 0, "min_clients": 0, "max_missed": 0}
ARGUMENTS |= {"checkpoint_every": 0, "cohorts": 0, "node_timeout": 0}
#: Values of keys that stand for a default which is found out in the run.
UNSET = {("kernels", 0), ("min_support", -1), ("preconditioner_rank", -1)}
#: Keys that are no option: of every app, and of the tables of those that no command runs.
OF_APPS = {"method", "model", "options", "predict", "predictions", "result", "saved_model"}
OF_APPS |= {"state_dir", "timeout", "bandwidths", "metrics", "log_format"}
OF_DEALT = {"data", "files", "folder", "label", "rows", "share", "split"}
every_method = pytest.mark.parametrize("name", COMMANDS)


def declared(cls: Any) -> dict[str, Any]:
    """Return the options that a class declares and that are not settled by it."""
    cls()  # which finds out their types
    found = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}
    return {n: o for n, o in found.items() if hasattr(o, "of_model") and n not in cls.fixed}


def kinds(hint: Any) -> list[Any]:
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else [hint]
    return [one for part in parts for one in (kinds(part) if part is not hint else [part])]


def words(option: Any) -> list[str]:
    return [one for kind in kinds(option.type) for one in get_args(kind)]


def another(option: Any) -> Any:
    """Return a good value that is not the default."""
    own = kinds(option.type)
    if found := [word for word in words(option) if word != option.default]:
        return found[0]
    if bool in own:
        return not option.default
    if int in own:
        usual = option.default if isinstance(option.default, int) else 0
        return int(max(usual, option.least if option.least > 0 else 0)) + 1
    if float not in own:
        return "text"
    tried = (v for v in (0.25, 1.5, 20.0) if option.least <= v <= option.most)
    return next(v for v in tried if option.above < v < option.below and v != option.default)


def wrong(option: Any) -> Iterator[tuple[Any, str]]:
    """Yield values that an option refuses, with the code."""
    own = kinds(option.type)
    number = next((kind for kind in (float, int) if kind in own), None)
    if str not in own:
        yield "s3cret", CHOICE if words(option) and not number and bool not in own else TYPE
    if number is None:
        return
    ends = [option.least - 1, option.most + 1, option.above, option.below]
    yield from ((number(end), RANGE) for end in ends if np.isfinite(end))
    yield from ((end, RANGE) for end in (np.nan, np.inf) if number is float)


def parsed(name: str, *typed: str) -> dict[str, Any]:
    """Return what the command line makes of what is typed, by names of options."""
    return COMMANDS[name].make_context(name, list(typed)).params


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class Begun(Exception):
    """Carries the strategy that an app would start."""


@functools.cache
def config_of(app: str) -> dict[str, Any]:
    place = Path(str(files("fedkern_flwr.simulations"))) / "apps" / app / "pyproject.toml"
    return tomllib.loads(place.read_text())["tool"]["flwr"]["app"]["config"]


def keys_of(name: str) -> dict[str, Any]:
    found = config_of(APPS[name])
    return {**found, "method": name, "result": ""} if "method" in found else found


@functools.cache
def server_of(app: str) -> Any:
    place = Path(str(files("fedkern_flwr.simulations"))) / "apps" / app
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        return runpy.run_path(str(place / "server_app.py"))["app"]


def begun(name: str, **given: Any) -> Any:
    """Return the strategy that the server of an app starts with these keys."""
    config = {**keys_of(name), "result": ""}
    if name == "kernel-pca":  # all that a method of somebody else takes is one key
        config["options"] = json.dumps(given)
    else:
        config |= {key.replace("_", "-"): value for key, value in given.items()}

    def start(strategy: Any, *_: Any, **__: Any) -> Any:
        raise Begun(strategy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CLASSES[name], "start", start)
        try:
            server_of(APPS[name])(None, Context(1, 1, {}, RecordDict(), config))
        except Begun as found:
            return found.args[0]
    raise AssertionError("nothing was started")


def code_of(*typed: str) -> str:
    """Return the code with which the command line refuses."""
    return complaint(*typed).rpartition("[")[2][:-1]


# -- each by itself


@pytest.mark.promise("options-alike")
@every_method
def test_a_command_has_the_options_of_the_constructor_with_their_defaults(name: str) -> None:
    usual, made = parsed(name), CLASSES[name]()
    for option in declared(CLASSES[name]).values():
        if option.name in ("secure", "missing"):  # which a run decides by its data
            continue
        assert usual[option.name] == option.default, option.name
        if option.default is not None:
            assert getattr(made, option.name) == option.default, option.name
        value, typed = another(option), flag(option.name)
        text = [typed if value else typed.replace("--", "--no-", 1)]
        text = text if isinstance(value, bool) else [typed, str(value)]
        found = parsed(name, *text)[option.name]
        assert (found, type(found)) == (value, type(value)), option.name


@pytest.mark.promise("options-alike")
@pytest.mark.parametrize("name", APPS)
def test_an_app_has_the_options_of_the_constructor_with_their_defaults(name: str) -> None:
    cls, keys, made = CLASSES[name], keys_of(name), begun(name)
    known = {one for other in APPS if APPS[other] == APPS[name] for one in declared(CLASSES[other])}
    known |= {*vars(cls()), *OF_APPS, *(parsed(name) if name in COMMANDS else OF_DEALT)}
    assert {key.replace("-", "_") for key in keys} <= known  # no key is for nothing
    for option in declared(cls).values():
        key = option.name.replace("_", "-")
        if name != "kernel-pca" and key not in keys:
            assert option.name == "secure", option.name
            continue
        if option.name not in ("samples_per_round", "secure"):  # of which an app has its own
            assert getattr(made, option.name) == getattr(cls(), option.name), option.name
        value = another(option)
        try:
            wanted = getattr(cls(**{option.name: value}), option.name)
        except FedKernError as error:  # it needs another option beside it
            refuses(error.code, begun, name, **{option.name: value})
        else:
            given = (
                ("on" if value else "off")
                if isinstance(keys.get(key), str) and (isinstance(value, bool))
                else value
            )
            assert getattr(begun(name, **{option.name: given}), option.name) == wanted, option.name


@pytest.mark.promise("options-alike")
@every_method
def test_a_wrong_value_is_refused_by_constructor_and_command(name: str) -> None:
    cls = CLASSES[name]
    for option in declared(cls).values():
        for value, code in wrong(option):
            caught = refuses(code, cls, **{option.name: value})
            assert option.name in str(caught)
            odd = (option.name, value) == ("privacy_epsilon", np.inf)  # needs a scaling first
            if bool not in kinds(option.type) and not odd:
                typed = f"{flag(option.name)}={value}"
                assert code_of("run", name, typed) == code, typed
    for argument, value in ARGUMENTS.items():
        if argument in parsed(name):
            refuses(RANGE, cls, **{argument: value})
            assert code_of("run", name, flag(argument), str(value)) == RANGE
    refuses("FK-OPTION-UNKNOWN", cls, never_there=1)
    assert code_of("run", name, "--never-there", "1") == "FK-OPTION-UNKNOWN"


@pytest.mark.promise("options-alike")
@pytest.mark.parametrize("name", APPS)
def test_a_wrong_value_is_refused_with_its_code_by_an_app(name: str) -> None:
    keys = keys_of(name)
    for option in declared(CLASSES[name]).values():
        key = option.name.replace("_", "-")
        if name != "kernel-pca" and key not in keys:
            continue
        for value, code in wrong(option):
            unset = not value and option.default in (None, "auto")  # stands for the default
            if (
                unset
                or (option.name, value) in UNSET
                or (isinstance(value, float) and not np.isfinite(value))
            ):
                continue
            switch = bool in kinds(option.type) and name != "kernel-pca"  # auto, on or off
            refuses(CHOICE if switch else code, begun, name, **{option.name: value})


# -- together: options that contradict each other, of a constructor


STREAM, ACROSS = {"schedule": "streaming"}, {"partition": "vertical"}
FLAT, FIXED = {"architecture": "centralised"}, {"encoding": "fixed-point"}
PAID: dict[str, Any] = {"C": 1.0, "privacy_epsilon": 3.0}
#: Method -> code -> options with which its constructor refuses.
TOGETHER: dict[str, dict[str, list[dict[str, Any]]]] = {
    "fed-cg": {
        RANGE: [{"basis": "fourier", "landmarks": 41},
                *({"solver": "cg", "preconditioner_rank": rank} for rank in (101, -1))],
        "FK-OPTION-CONFLICT": [
            {"preconditioner_rank": 5}, {"init": "random"},
            *({"basis": "fourier", name: value} for name, value in (
                ("penalty", "rkhs"), ("sampling", "C"), ("missing", "neutral"),
                ("variance", True), ("landmark_gamma", True), ("tune", "gcv"))),
        ],
        "FK-BUDGET-OPTION": [
            {"privacy_epsilon": 1.0}, {"basis": "fourier", "privacy_epsilon": 1.0, "solver": "cg"},
        ],
        "FK-RKHS-WIDTHS": [{"penalty": "rkhs", "landmark_gamma": True}],
        "FK-OPTION-BOTH": [
            {"tune": "gcv", "gamma": 1.0, "regularization": 1.0},
            {"tune": "gcv", "landmark_gamma": True},
        ],
        "FK-EQUATIONS-NEEDED": [
            *({"tune": tune, "solver": "cg"} for tune in ("gcv", "folds")),
            {"tune": "gcv", "penalty": "rkhs"}, {"variance": True, "solver": "cg"},
            {"class_weight": "balanced", "tune": "off"},
        ],
    },
    "fdskl": {
        "FK-OPTION-CONFLICT": [
            *({name: 3} for name in ("directions", "batch", "evaluate_every")),
            {"step": 0.5}, {"step_schedule": "constant"}, {**STREAM, "features": 30},
            {**STREAM, "class_weight": "balanced"},
        ],
        RANGE: [{**STREAM, name: 0} for name in ("batch", "directions", "step")],
        "FK-STEP-LARGE": [{**STREAM, "step": 2.0, "regularization": 0.5}, {**STREAM, "step": 2e4}],
    },
    "pof-mkl": {
        RANGE: [{"kernels": 6, "kernels_per_round": 7}, {"bandwidths": [1.0, -1.0]}],
        "FK-OPTION-BOTH": [{"kernels_per_round": 3, "frequencies_per_round": 4}],
        "FK-BUDGET-KERNELS": [{"kernels_per_round": 3, "privacy_epsilon": 3.0}],
    },
    "pof-rls": {"FK-THRESHOLD-WHOLE": [{"drop_outs": False, "threshold": 3}]},
    "hierarchical-svm": {
        RANGE: [{"step_sizes": (1.0, 0.0)}, {"model": "rbf", "features": 0},
                {"model": "rbf", "gamma": 0.0}],
        "FK-OPTION-CONFLICT": [
            {"features": 5}, {"gamma": 0.5, "model": "ridge"},
            *({**ACROSS, name: 1.0} for name in ("rho", "sigma")), {**ACROSS, "relaxation": 1.5},
            {**ACROSS, "rho_schedule": "rising"}, {**ACROSS, "step_sizes": (1.0, 1.0)},
            {**ACROSS, "staleness": 1}, {**ACROSS, "lost_groups": "leave-out"},
        ],
        "FK-SPLIT-KERNEL": [{**ACROSS, "model": "rbf"}],
        "FK-GROUPS-OPTION": [
            {**ACROSS, **FLAT}, {**FLAT, "staleness": 1}, {**FLAT, "step_sizes": (1.0,)},
            {**FLAT, "sigma": 1.0}, {**FLAT, "lost_groups": "leave-out"},
        ],
        "FK-OPTION-BOTH": [{"rho": 1.0, "step_sizes": (1.0, 2.0)}],
        "FK-SVM-STALENESS": [{"rho_schedule": "balanced", "staleness": 1}],
        "FK-BUDGET-OPTION": [
            {**PAID, "architecture": "hierarchical"},
            *({**PAID, n: v} for n, v in (("staleness", 1), ("scale", "none"), ("rho", 1.0))),
        ],
        "FK-BUDGET-SPLIT": [{**PAID, **ACROSS}], "FK-BUDGET-CHOICE": [{**PAID, "C": None}],
        "FK-BUDGET-LOSS": [{**PAID, "model": "ridge"}],
        "FK-BUDGET-WEIGHTS": [{**PAID, "class_weight": "balanced"}],
    },
    "secure-gram": {
        "FK-GRAM-WHOLE": [{"fraction_bits": 4}],
        "FK-OPTION-CONFLICT": [
            {**FIXED, "min_support": 5}, {**FIXED, "rows_per_item": 2},
            {"gamma": 1.0}, {"kernel": "rbf", "degree": 2}, {"kernel": "rbf", "coef0": 1.0},
            {"kernel": "poly", "coefficients": [1.0]},
        ],
        "FK-OPTION-PARTNER": [{"kernel": "series"}],
        RANGE: [{"kernel": "rbf", "gamma": -1.0}, {"kernel": "poly", "degree": 0}],
        "FK-KERNEL-BINARY": [{"kernel": "conjunctive", "bound": 5}],
        "FK-THRESHOLD-WHOLE": [{"drop_outs": False, "threshold": 2}],
    },
    "fed-cfk": {  # whose kernel is sent as counts: real numbers would be others
        "FK-OPTION-CONFLICT": [{"gamma": 1.0}],
        "FK-RECOMMEND-BINARY": [{**FIXED, "kernel": name} for name in ("cosine", "linear")],
    },
}  # fmt: skip


@pytest.mark.promise("options-together")
@pytest.mark.parametrize("name", TOGETHER)
def test_options_that_do_not_go_together_are_refused(name: str) -> None:
    for code, cases in TOGETHER[name].items():
        for options in cases:
            caught = refuses(code, CLASSES[name], **options)
            assert caught.remedy


@every_method
def test_a_constructor_takes_names_and_what_a_run_needs(name: str) -> None:
    refuses("FK-OPTION-PARTNER", CLASSES[name], resume=True)
    unnamed = refuses("FK-OPTION-NAME", CLASSES[name], 100)
    assert isinstance(unnamed, TypeError)


@pytest.mark.parametrize(
    ("name", "wrong", "meant"),
    [("fed-cg", "landmark", "landmarks"), ("hierarchical-svm", "c", "C"),
     ("fed-cfk", "regularisation", "regularization"), ("pof-mkl", "num_kernels", "kernels")],
)  # fmt: skip
def test_an_option_that_may_be_meant_is_named(name: str, wrong: str, meant: str) -> None:
    caught = refuses("FK-OPTION-UNKNOWN", CLASSES[name], **{wrong: 1})
    assert f"{meant}?" in caught.remedy


# -- together: options and data, of a command


#: Of every method on its own data.
COMMON = {
    RANGE: ["--runs 0", "--seed -1", "--timeout 0", "--drop 1", "--drop -0.1", "--test-size 1"],
    "FK-RUN-NONE": ["--resume nowhere"],
    "FK-FILE-WRITE": ["--json no/such/folder.json"],
    "FK-ENGINE-RAY": ["--ray-address here:1"],
}
IRIS = "--data iris --positive 2"
#: Numbers have no classes that could be weighed alike.
WEIGHED = {"FK-WEIGHTS-NUMBERS": ["--data diabetes --class-weight balanced"]}
RATED = "--data r.csv --user user --item item --rating stars"  # the usual data are large
FIRM = "--data iris --encoding fixed-point"
TABLE = {"FK-BUILTIN-UNKNOWN": ["--data mars"], "FK-FILE-READ": ["--data gone.csv --label y"]}
TABLE |= {"FK-COLUMN-UNNAMED": ["--data iris --split site"]}
#: Method -> code -> what is typed: beside what a constructor refuses.
TYPED: dict[str, dict[str, list[str]]] = {
    "pof-mkl": {
        **TABLE, RANGE: ["--rounds 0", "--clients 0", "--secure --min-cohort 1"],
        "FK-PARTIES-FEW": ["--secure --clients 1"], "FK-SUM-THRESHOLD": ["--secure --threshold 5"],
        "FK-SECURE-NEEDED": ["--threshold 5"],
        "FK-ROWS-FEW": ["--data iris --clients 9 --rounds 50"],
        "FK-BUDGET-SCALING": ["--data iris --privacy-epsilon 3 --scaling rank"],
    },
    "local-only": {"FK-SECURE-FIXED": ["--secure"]},
    "fed-cg": {
        **TABLE, **WEIGHED,
        RANGE: [f"{IRIS} --split dirichlet --alpha 0"],
        "FK-COLUMNS-FIXED": ["--data iris --label y"],
        "FK-PARTIES-FEW": [f"{IRIS} --hospitals 0", f"{IRIS} --centres -1"],
        "FK-PARTIES-ALONE": [f"{IRIS} --hospitals 1", f"{IRIS} --centres 1"],
        "FK-COLUMNS-FEW": [f"{IRIS} --centres 0 --no-own-block", f"{IRIS} --centres 4"],
        "FK-REMOVED-CLIENTS": [f"{IRIS} --clients 4 --hospitals 3"],
        "FK-CLASSES-UNKNOWN": ["--data iris --positive 9"],
        "FK-SCALING-RANGE": [f"{IRIS} --scaling standard"],
    },
    "fdskl": {
        **WEIGHED,
        RANGE: [f"{IRIS} --active-parties 0", f"{IRIS} --train-rows 0",
                f"{IRIS} --schedule streaming --active-parties 5"],
        "FK-COLUMNS-FIXED": ["--data iris --label y"],
        "FK-PARTIES-FEW": [f"{IRIS} --parties 1"],
        "FK-PARTIES-ALONE": [f"{IRIS} --parties 2"],
        "FK-COLUMNS-FEW": [f"{IRIS} --parties 5"],
        "FK-REMOVED-CLIENTS": [f"{IRIS} --parties 3 --clients 4"],
        "FK-SCHEDULE-ACTIVE": [f"{IRIS} --active-parties 2"],
        "FK-OPTION-CONFLICT": [f"{IRIS} --rounds 5"],
        "FK-STEP-LARGE": [f"{IRIS} --schedule streaming --regularization 9"],
        "FK-TASK-OPTION": ["--data iris --target 0 --parties 3 --loss logistic"],
    },
    "secure-gram": {
        RANGE: ["--cost 0"],
        TYPE: ["--coefficients a"],
        "FK-WEIGHTS-NUMBERS": [
            "--encoding fixed-point --data diabetes --class-weight balanced"],
        "FK-FILE-READ": ["--data gone.csv --label y"],
        "FK-OPTION-BOTH": ["--rounds 3 --cohorts 2"],
        "FK-COHORTS-MANY": [
            f"{RATED} {one}" for one in
            ("--rounds 11", "--cohorts 11", "--cohorts 6 --participation 0.5")],
        "FK-VALUES-COUNTS": ["--data iris", "--data diabetes"],
        "FK-VALUES-BOUND": ["--data digits --bound 8", f"{FIRM} --bound 0.5"],
        "FK-COLUMNS-FEW": [f"{FIRM} --clients 5", f"{FIRM} --clients 1"],
        "FK-PARTIES-FEW": [f"{RATED} --clients 1", f"{RATED} --min-cohort 21"],
        "FK-SUM-THRESHOLD": [f"{RATED} --threshold 12 --cohorts 2"],
        "FK-DATA-OPTION": [
            *("--data iris --users-per-client 3", "--data iris --min-rating 3"),
            "--data iris --rating a",
            *(f"{RATED} {one}" for one in (
                "--label y", "--id y", "--sep ;", "--na gone", "--cost 2", "--test-size 0.5",
                "--encoding fixed-point")),
        ],
        "FK-RATINGS-LOW": [f"{RATED} --min-rating 7"],
        "FK-COLUMNS-FIXED": ["--user a"],
    },
    "fed-cfk": {
        RANGE: [f"{RATED} {one}" for one in
                ("--rounds 0", "--clients 0", "--users-per-client -2", "--test-size 1")],
        "FK-OPTION-BOTH": [f"{RATED} --users-per-client 3 --clients 4"],
        "FK-COHORTS-MANY": [f"{RATED} --cohorts 11"],
        "FK-PARTIES-FEW": [f"{RATED} --clients 1", f"{RATED} --users-per-client 9999"],
        "FK-ROWS-FEW": [f"{RATED} --clients 9999"],
        "FK-SUM-THRESHOLD": [f"{RATED} --threshold 21"],
        "FK-RATINGS-LOW": [f"{RATED} --min-rating 7"],
        "FK-BUILTIN-UNKNOWN": ["--data iris"],
        "FK-FILE-READ": ["--data gone.csv"],
    },
    "hierarchical-svm": {
        **TABLE,
        RANGE: ["--rounds 0"],
        TYPE: ["--group-sizes 4;5", "--step-sizes 1,x"],
        "FK-PARTIES-FEW": ["--users 3 --groups 4", "--users 0", "--groups 0", "--users 1"],
        "FK-GROUPS-DIFFER": [
            *("--group-sizes 4,5 --users 10", "--group-sizes 4,0", "--group-sizes 4,5 --groups 3"),
            *("--data iris --step-sizes 1,2,3", "--delay fixed:1,2,3 --groups 2"),
        ],
        "FK-OPTION-TYPE": ["--delay 5"],
        "FK-REMOVED-CLIENTS": ["--users 4 --clients 5"],
        "FK-GROUPS-SINGLE": ["--users 3 --groups 2"],
        "FK-ROWS-FEW": ["--data iris --users 400"],
        "FK-COLUMNS-FEW": ["--data iris --partition vertical --groups 5"],
        "FK-OPTION-CONFLICT": ["--partition vertical --split dirichlet"],
        "FK-GROUPS-LEFT": ["--lost-groups leave-out"],
        "FK-WEIGHTS-NUMBERS": ["--data diabetes --model ridge --class-weight balanced"],
        "FK-GROUPS-OPTION": [
            f"--architecture centralised {one}" for one in ("--groups 3", "--group-sizes 2,2")],
        "FK-TASK-OPTION": ["--data iris --target 0", "--data iris --target 0 --model logistic"],
        "FK-CLASSES-UNKNOWN": ["--data iris --positive 7"],
    },
    "kernel-pca": {**TABLE, RANGE: ["--clients 0"]},
}  # fmt: skip


@pytest.mark.promise("options-together")
@pytest.mark.parametrize("name", TYPED)
def test_what_cannot_be_run_is_refused_first(name: str) -> None:
    cells = (f"u{k % 40},i{k % 7},{k % 5}" for k in range(280))
    Path("r.csv").write_text("\n".join(["user,item,stars", *cells]))
    always = name in ("fed-cg", "fdskl", "secure-gram", "fed-cfk", "hierarchical-svm")
    alone = {"FK-SECURE-FIXED": ["--no-secure"]} if always else {}
    for codes in (TYPED[name], alone, {} if name == "secure-gram" else COMMON):
        for code, cases in codes.items():
            for typed in cases:
                found = code_of("run", name, *typed.split(), "--quiet")
                assert (found, typed) == (code, typed)


@pytest.mark.parametrize(("typed", "code"), [
    ("dance", "FK-COMMAND-UNKNOWN"), ("run pof-nkl", "FK-COMMAND-UNKNOWN"),
    ("predict", "FK-COMMAND-MISSING"), ("predict nowhere --data file", "FK-RUN-NONE"),
    ("predict nowhere --client many", TYPE), ("compare lunch", CHOICE),
    ("run fed-cg --party", "FK-COMMAND-USAGE"),
])  # fmt: skip
def test_what_is_no_command_is_refused(typed: str, code: str) -> None:
    assert code_of(*typed.split()) == code


# -- budgets


@pytest.mark.parametrize("name", CLASSES)
def test_who_keeps_no_budget_says_which_do(name: str, tmp_path: Path) -> None:
    if hasattr(CLASSES[name], "privacy_epsilon"):
        assert "privacy_epsilon" in parsed(name)
        more: dict[str, Any] = {"fed-cg": {"basis": "fourier"}}
        more["hierarchical-svm"] = {**FLAT, "C": 1.0}
        (tmp_path / "bounds.json").write_text('{"age": [0, 120]}')
        more["summary"] = {"bounds": str(tmp_path / "bounds.json")}
        made = CLASSES[name](privacy_epsilon=2.0, **more.get(name, {}))
        assert made.budget_report()["budget"]["epsilon"] == 2.0
        return
    for option in ("privacy_epsilon", "privacy_unit"):
        caught = refuses("FK-BUDGET-METHOD", CLASSES[name], **{option: 3.0})
        assert "fed-cg" in caught.remedy
    if name in COMMANDS:
        assert code_of("run", name, "--privacy-epsilon", "3") == "FK-BUDGET-METHOD"


@pytest.mark.promise("budget-all-rows")
@pytest.mark.parametrize(
    ("name", "more"),
    [("fed-cg", "--basis fourier --centres 1"), ("hierarchical-svm", "--C 1"), ("kernel-pca", "")],
)
def test_nothing_is_read_off_rows_in_a_run_with_a_budget(name: str, more: str, capsys: Any) -> None:
    begun = ["run", name, *more.split(), "--privacy-epsilon", "3"]
    for scaling in ("rank", "standard"):
        told = code_of(*begun, "--data", "breast-cancer", "--scaling", scaling)
        ours = scaling == "standard" and name == "fed-cg"  # which it takes without a budget neither
        assert told == ("FK-SCALING-RANGE" if ours else "FK-BUDGET-SCALING")
    rows = [f"{k % 7 / 7},{k % 5},{'ab'[k % 2]}" for k in range(120)]
    Path("gaps.csv").write_text("a,b,y\n,1,a\n" + "\n".join(rows))
    Path("text.csv").write_text("a,b,y\n" + "\n".join(r.replace(",", ",t", 1) for r in rows))
    for file in ("gaps.csv", "text.csv"):  # as they are: the defaults are others
        own = ["--data", file, "--label", "y"]
        assert code_of(*begun, *own, "--privacy-delta", "0.1") == "FK-BUDGET-DELTA"
    own += ["--categories", "onehot"]
    assert code_of(*begun, *own) == "FK-BUDGET-CATEGORIES"
    assert run([*begun, *own, "--scaling", "rank"]) == 2
    assert "--scaling range --categories hashing" in capsys.readouterr().err

"""Bad input of every command: one line, exit code 2, nothing made, and no data quoted."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from fedkern_flwr.options import declared
from fedkern_flwr.private_method import PrivateMethod
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.methods.registry import METHODS, family, method, options

pytestmark = pytest.mark.usefixtures("in_tmp")

# --- Of every method ------------------------------------------------------------------------

COMMON = {
    "--runs 0": "runs is 0",
    "--seed -1": "seed is -1",
    "--timeout 0": "timeout is 0",
    "--drop 1": "drop is 1.0; use a fraction in [0, 1)",
    "--drop -0.1": "drop is -0.1",
    "--test-size 1": "test-size is 1.0",
    "--data mars": "there is no built-in data set 'mars'; choose from",
    "--data gone.csv --label y": "there is no file gone.csv; check the path",
    "--resume nowhere": "nowhere is not the folder of a run",
    "--json no/such/folder.json": "--json no/such/folder.json cannot be written",
    "--dance": "No such option",
    "--ray-address here:1": "a Ray address goes with engine ray, not in-process; add --engine ray",
}
#: What is another method's business.
OTHERWISE = {
    "fed-cfk": {
        "--data mars": "there are no built-in interactions 'mars'; choose from nyc-flights",
        "--data gone.csv --label y": "No such option",
        "--test-size 1": "the held-out share is 1; choose from 0 to below 1",
    },
    "secure-gram": {"--test-size 1": "test-size is for tables, nyc-flights holds ratings"},
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("arguments", COMMON)
def test_what_no_method_takes_is_one_line(name, arguments, commands):
    text = OTHERWISE.get(name, {}).get(arguments, COMMON[arguments])
    assert text in commands.complaint("run", name, *arguments.split())
    assert not Path("runs").exists()  # found before anything is made


def words(hint: Any) -> tuple[str, ...]:
    """Return the words that an option takes, if it takes these alone."""
    kinds = get_args(hint) if get_origin(hint) in (typing.Union, type(int | None)) else (hint,)
    found = [get_args(kind) for kind in kinds if get_origin(kind) is Literal]
    return found[0] if found else ()


@pytest.mark.parametrize("name", METHODS)
def test_words_and_numbers_that_an_option_does_not_know_are_one_line(name, commands):
    """Every choice is named; what is no number is told as such."""
    every = [*options(method(name)), *family(name).parameters()]
    choices = 0
    for option in every:
        flag = option.flag or f"--{option.name.replace('_', '-')}"
        kinds = set(get_args(option.type)) | {option.type}
        if known := words(option.type):
            line = commands.complaint("run", name, flag, "s3cret")
            assert all(word in line for word in known), line
            choices += 1
        elif {int, float} & kinds:
            line = commands.complaint("run", name, flag, "many")
            assert "not a valid" in line
        else:
            continue
        assert flag in line
    assert choices >= 1
    assert not Path("runs").exists()


# --- Of single methods ----------------------------------------------------------------------

STREAM = "--schedule streaming"
VERTICAL = "--partition vertical"
FIXED = "--data iris --encoding fixed-point"
#: Beside what a constructor refuses: tests/strategies/test_options.py and those of the methods.
BAD: dict[str, dict[str, str]] = {
    "pof-mkl": {
        "--step-size huge": "'paper', 'adaptive'",
        "--rounds 0": "rounds is 0",
        "--clients 0": "at least 1",
        "--secure --clients 1": "too few for a secure sum",
        "--secure --threshold 5": "threshold is 5 for 10 parties",
        "--secure --min-cohort 1": "min_cohort is 1",
        "--threshold 5": "--threshold is for secure sums; add --secure",
        "--data iris --split site": "--site",
        "--data iris --clients 9 --rounds 50": "150 rows",
        "--regularization inf": "regularization is inf",
        "--bandwidths -1": "bandwidths",
    },
    "local-only": {"--secure": "sends nothing that could be summed"},
    "fed-cg": {
        "--data iris --label y": "fixed",
        "--hospitals 0": "use at least one hospital",
        "--hospitals 1": "there is one hospital",
        "--centres -1": "2 hospitals and -1 centres",
        "--split dirichlet --alpha 0": "alpha is 0",
        "--centres 1": "known to one centre only",
        "--centres 0 --no-own-block": "nobody has columns",
        "--centres 4": "4 columns cannot be dealt to 5 blocks",
        "--clients 4 --hospitals 3": "3 hospitals and 2 centres are not 4 clients",
        "--clients 2": "0 hospitals and 2 centres; use at least one hospital",
        "--split site": "no site column",
        "--gamma nan": "gamma is nan",
        "--regularization inf": "regularization is inf",
        "--no-secure": "this method has secure sums only: columns of a kernel show the rows",
        "--solver cg --preconditioner-rank 17": "use 0 to 16 (landmarks)",
        "--positive 9": "there is no class 9",
        "--scaling standard": "scaling standard has no public range, within which landmarks are",
        "--rounds 5": "No such option",
    },
    "fdskl": {
        "--label y": "fixed",
        "--parties 1": "parties is 1; use at least 2",
        "--parties 2": "of two parties the active one would learn the phases of the other",
        "--clients 2": "use more --parties, or allow it with --allow-single",
        "--parties 5": "4 columns cannot be dealt to 5 parties; use fewer parties",
        "--parties 3 --clients 4": "3 parties are not 4 clients",
        "--active-parties 0": "0 of 4 parties are active",
        "--active-parties -1": "-1 of 4 parties are active",
        "--active-parties 2": "one-shot trains at one active party, not at 2; add --schedule",
        f"{STREAM} --active-parties 5": "5 of 4 parties are active",
        "--rounds 5": "rounds is for schedule streaming; add --schedule streaming",
        f"{STREAM} --rounds 0": "rounds is 0; use at least 1",
        f"{STREAM} --regularization 9": "is not below 1; use a smaller step",
        f"{STREAM} --evaluate-every 0": "is 0; use at least 1",
        f"{STREAM} --checkpoint-every 0": "is 0; use at least 1",
        "--target 0 --parties 3 --loss logistic": "use --loss square, or --task",
        "--target 0 --parties 3 --loss smooth-hinge": "is for classes",
        "--gamma nan": "gamma is nan",
        "--regularization inf": "regularization is inf",
        "--no-secure": "this method has secure sums only: phases without masks show columns",
        "--train-rows 0": "train-rows is 0; use at least 1",
    },
    "secure-gram": {
        "--coefficients 1": "coefficients is not for kernel linear",
        "--coefficients a": "not a valid float",
        "--rounds 3 --cohorts 2": "cohorts are summed at once, and rounds one by one; leave out",
        "--no-secure": "this method has secure sums only",
        "--data iris --users-per-client 3": "users-per-client is for ratings, iris",
        "--data iris --min-rating 3": "min-rating is for ratings, iris is a table",
        "--data iris --rating a": "rating is for ratings, iris is a table",
        "--data iris": 'features are not whole numbers of at least 0; use encoding "fixed-',
        "--data diabetes": 'at least 0; use encoding "fixed-point"',
        "--data digits --bound 8": "exceed their declared bound of 8",
        "--data digits": "exceed their declared bound of 1; declare a larger",
        "--bound 1.5": "encoding counts has whole numbers",
        "--encoding fixed-point --bound nan": "bound is nan",
        f"{FIXED} --bound 0.5": "scaled features are beyond the bound 0.5; use a bound of at least",
        "--encoding fixed-point --fraction-bits 99": "fraction_bits is 99",
        "--encoding fixed-point": "ratings are counts; leave out --encoding",
        f"{FIXED} --kernel conjunctive": "kernel conjunctive is for zeros and ones; use encoding",
        f"{FIXED} --min-support 3": "min_support is for encoding counts",
        f"{FIXED} --clients 5": "4 columns cannot be",
        f"{FIXED} --clients 1": "use 2 to 4 clients",
        "--rounds 11": "20 nodes that take part do not make 11 rounds of two or more; use fewer r",
        "--cohorts 11": "20 nodes that take part do not make 11 cohorts",
        "--cohorts 6 --participation 0.5": "10 nodes that take part do",
        "--clients 1": "a single client has nobody to sum with; use more clients",
        "--threshold 12 --cohorts 2": "threshold is 12 for 10 parties",
        "--min-cohort 21": "20 parties are too few for a secure sum",
        "--regularization 1": "No such option",
        "--label y": "label is for tables, nyc-flights holds ratings; leave it",
        "--id y": "id is for tables, nyc-flights holds ratings",
        "--sep ;": "sep is for tables, nyc-flights holds ratings",
        "--na gone": "na is for tables, nyc-flights holds ratings",
        "--min-rating 7": "no rating is at least 7; choose a lower one",
        "--test-size 0.5": "test-size is for tables, nyc-flights holds ratings",
        "--cost 2": "cost is for tables, nyc-flights holds ratings",
        "--cost 0": "cost is 0.0; use a positive number",
        "--user a": "the columns of the built-in interactions nyc-flights are",
    },
    "fed-cfk": {
        "--no-secure": "a node's products are its ratings; leave out --no-secure",
        "--users-per-client 3 --clients 4": "both clients and users-per-client are given; leave",
        "--rounds 0": "rounds is 0; use at least 1",
        "--cohorts 11": "do not make 11 cohorts of two or more; use fewer cohorts",
        "--clients 1": "a single client has nobody to sum with",
        "--clients 0": "clients is 0; use at least 1",
        "--users-per-client -2": "users-per-client is -2; use at least 1",
        "--users-per-client 9999": "a single client has nobody to sum with",
        "--clients 9999": "9999 clients for 4043 users; use fewer clients",
        "--threshold 21": "threshold is 21 for 20 parties; use 11 to 20",
        "--test-size 1": "the held-out share is 1; choose from 0 to below 1",
        "--encoding counts": "No such option",
        "--min-rating 7": "no rating is at least 7; choose a lower one",
        "--data iris": "there are no built-in interactions 'iris'; choose from nyc-",
        "--data gone.csv": "there is no file gone.csv; check the path",
    },
    "hierarchical-svm": {
        "--users 3 --groups 4": "3 users cannot be dealt to 4 groups",
        "--users 0": "0 users cannot be dealt to 1 groups",
        "--groups 0": "20 users cannot be dealt to 0 groups",
        "--group-sizes 4,5 --users 10": "groups of 4, 5 users are not 10 users",
        "--group-sizes 4,0": "groups of 4, 0 users are not 4 users; use positive sizes",
        "--group-sizes 4;5": "group-sizes is '4;5'; give numbers separated by commas",
        "--group-sizes 4,5 --groups 3": "2 group sizes are not 3 groups",
        "--users 4 --clients 5": "4 users are not 5 clients; leave out --clients",
        "--users 3 --groups 2": "group 2 has a single user, whose model its agent would see",
        "--users 1 --groups 1": "a single user has nobody to sum with",
        "--users 1": "a single user has nobody to sum with",
        "--users 400": "105 training rows cannot be dealt to 400 users",
        f"{VERTICAL} --groups 5": "4 columns cannot be dealt to 5 groups; use fewer groups",
        f"{VERTICAL} --split dirichlet": "split dirichlet is for users who hold whole rows",
        "--lost-groups leave-out": "of 2 groups none can be left out",
        "--architecture centralised --groups 3": "centralised has no groups",
        "--architecture centralised --group-sizes 2,2": "centralised has no groups",
        "--step-sizes 1,2,3": "3 step sizes are not 2 groups",
        "--step-sizes 1,x": "step-sizes is '1,x'",
        "--delay 5": "delay is '5'; use exponential:SECONDS or fixed:SECONDS",
        "--delay fixed:1,2,3 --groups 2": "delay has 3 numbers for 2 groups",
        "--target 0": "model linear is for classes, the labels are numbers; use --model",
        "--target 0 --model logistic": "model logistic is for classes",
        "--split site": "--site",
        "--no-secure": "this method has secure sums only",
        "--C 0": "C is 0.0; use a positive number",
        "--rounds 0": "rounds is 0; use at least 1",
        "--positive 7": "there is no class 7",
    },
    "kernel-pca": {
        "--components 0": "components is 0; use at least 1",
        "--features 0": "features is 0; use at least 1",
        "--bandwidth 0": "bandwidth is 0.0",
        "--clients 0": "clients is 0; use at least 1",
        "--split site": "--site",
        "--secure": "No such option",
    },
}
SMALL = {
    "fed-cg": "--data iris --positive 2 --landmarks 16 --regularization 0.05",
    "fdskl": "--data iris",
    "hierarchical-svm": "--data iris",
}
PAIRS = [(name, arguments) for name, bad in BAD.items() for arguments in bad]


@pytest.mark.parametrize(("name", "arguments"), PAIRS)
def test_bad_options_are_one_line(name, arguments, commands):
    given = f"{SMALL.get(name, '') if not arguments.startswith('--data') else ''} {arguments}"
    line = commands.complaint("run", name, *given.split(), "--quiet")
    assert BAD[name][arguments] in line
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("run pof-nkl", "No such command 'pof-nkl'"),
        ("dance", "No such command 'dance'"),
        ("compare lunch", "is not one of"),
        ("compare pof-mkl-table1 --datasets Mars", "no data set 'Mars'"),
        ("compare demo --runs 0", "runs is 0"),
        ("compare demo --datasets Naval", "leave out --datasets"),
        ("compare demo demo", "a preset is named twice"),
        ("compare demo papers", "papers are all presets of the papers"),
        ("compare demo fed-cg-table2 --datasets Iris", "--datasets goes with one preset"),
        ("compare demo --jobs 0", "jobs is 0"),
        ("compare papers --datasets Iris", "--datasets goes with one preset"),
        (f"compare demo --seed {2**62}", "use a whole number from 0 to 2^62"),
        ("compare demo --cells /proc/1", "choose another --cells"),
        ("compare demo --out /proc/1", "choose another --out"),
        ("compare demo --cells file/cells", "choose another --cells"),
        ("compare demo --out file/out", "choose another --out"),
        ("compare demo --out mine", "mine is not empty and has no compare.json"),
        ("predict nowhere --data file", "nowhere is not the folder of a run"),
    ],
)
def test_bad_input_of_other_commands_is_one_line(arguments, text, commands):
    Path("file").touch()
    Path("mine").mkdir()
    Path("mine/letter.txt").write_text("mine")
    assert text in commands.complaint(*arguments.split())
    assert [file.name for file in Path("mine").iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_keeps_a_budget_or_says_in_a_line_which_do(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the command line; with a budget by default options or with what the line names."""
    if issubclass(METHODS[name], PrivateMethod):
        assert "privacy_epsilon" in declared(METHODS[name])
        return
    assert run(["run", name, "--privacy-epsilon", "3"]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert METHODS[name].no_budget in said  # type: ignore[attr-defined]
    assert "fed-cg with basis fourier" in said


@pytest.mark.parametrize("name", ["fed-cg", "hierarchical-svm", "kernel-pca"])
def test_nothing_is_read_off_the_rows_for_nothing_in_a_run_with_a_budget(
    name: str, commands: Any
) -> None:
    options = {
        "fed-cg": "--basis fourier --centres 1",
        "hierarchical-svm": "--C 1",
        "kernel-pca": "",
    }[name]
    begun = f"run {name} --data breast-cancer {options} --privacy-epsilon 3"
    for scaling in ("auto", "rank", "standard"):
        assert "scaled by all rows" in commands.complaint(*f"{begun} --scaling {scaling}".split())
    rows = [f"{k % 7 / 7},{k % 5},{'ab'[k % 2]}" for k in range(120)]
    Path("gaps.csv").write_text("a,b,y\n,1,a\n" + "\n".join(rows))
    Path("text.csv").write_text("a,b,y\n" + "\n".join(r.replace(",", ",t", 1) for r in rows))
    for file, said in (("gaps.csv", "median of all rows"), ("text.csv", "rows are counted")):
        begun = f"run {name} --data {file} --label y {options} --scaling range --privacy-epsilon 3"
        assert said in commands.complaint(*begun.split())

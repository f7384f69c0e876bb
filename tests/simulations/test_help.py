"""Help: at once, the dozen options that matter, all of them when asked for, plain words."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedkern_flwr.simulations.cli.main import app
from fedkern_flwr.simulations.cli.options import METHODS
from fedkern_flwr.simulations.methods.registry import families, family
from fedkern_flwr.simulations.run.datasets import BUILTIN, usual_name
from fedkern_flwr.simulations.run.options import PANELS

every_method = pytest.mark.parametrize("name", METHODS)


def shown(text: str) -> list[str]:
    """Return the options that a help shows, in its order."""
    return re.findall(r"^│ (--[\w-]+)", text, flags=re.M)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["rnu"]])
def test_nothing_of_a_method_is_loaded(arguments: list[str]) -> None:
    program = (
        "import sys; from fedkern_flwr.simulations.cli.main import run; "
        f"run({arguments!r}); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    modules = set(done.stderr.split())
    packages = {"numpy", "scipy", "flwr", "grpc", "pyarrow", "sklearn", "cryptography"}
    assert not packages & modules, done.stderr
    cli = "fedkern_flwr.simulations.cli"
    parents = {"fedkern_flwr", "fedkern_flwr.errors", "fedkern_flwr.simulations"}
    ours = {name for name in modules if name.startswith("fedkern_flwr")}
    assert ours == {*parents, cli, f"{cli}.main", f"{cli}.lazy"}


def test_a_run_loads_its_own_family_and_little_else(tmp_path: Path) -> None:
    """No other family, no SciPy, which linear SVMs do without, and no pandas for a plain table."""
    file, rows = tmp_path / "t.csv", [f"{k % 7},{k % 5},{k % 2}\n" for k in range(99)]
    file.write_text("a,b,y\n" + "".join(rows))
    command = f"run hierarchical-svm --data {file} --label y --users 4 --C 1 --rounds 2"
    program = (
        "import sys; from fedkern_flwr.simulations.cli.main import run; "
        f"assert not run({[*command.split(), '--out', str(tmp_path / 'run')]!r}); "
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    methods = "fedkern_flwr.simulations.methods"
    found = set(done.stderr.split())
    assert f"{methods}.groups" in found
    others = {f"{methods}.{name}" for name in ("hybrid", "vertical", "gram", "online", "rows")}
    assert not found & {"scipy", "pandas", *others}


def test_methods_are_listed_with_their_families() -> None:
    listed = [(own, strategy.method) for own in families() for strategy in own.strategies]
    assert [name for _, name in listed] == list(METHODS)
    assert all(family(name) is own for own, name in listed)


def test_commands_say_what_they_say_when_they_are_loaded() -> None:
    for name, command in app.commands.items():
        loaded = command.loaded
        assert loaded.name == name
        assert (loaded.help or "").split("\n")[0] == command.help


@every_method
def test_help_shows_the_options_that_matter_in_groups(name, commands):
    code, text, _ = commands("run", name, "--help")
    found = shown(text)
    assert code == 0
    assert {"--data", "--seed", "--out", "--help-all"} <= set(found)
    assert 9 <= len(found) <= 17, found
    panels = [text.index(f"─ {panel} ─") for panel in PANELS if f"─ {panel} ─" in text]
    assert len(panels) >= 3
    assert panels == sorted(panels)
    _, every, _ = commands("run", name, "--help-all")
    assert len(found) + 20 < len(shown(every))
    assert shown(commands("run", name, "--help")[1]) == found  # asking for all changes nothing


def every_command(group):
    """Yield all commands, loaded."""
    for command in group.commands.values():
        loaded = getattr(command, "loaded", command)
        yield loaded
        if hasattr(loaded, "commands"):
            yield from every_command(loaded)


def test_help_is_without_markup():
    found = [*every_command(app)]
    assert len(found) > 40
    for command in found:
        for one in (command, *command.params):
            text = (one.help or "").replace("\\[", "")
            assert not re.search(r"[`\\*]|:\w+:", text), (command.name, one.name)


@pytest.mark.parametrize("name", ["compare", "init", "predict", "new-method"])
def test_help_is_whole_lines_and_says_what_is_to_be_named(name, commands):
    """A paragraph has no line that ends in its middle; arguments are explained."""
    _, text, _ = commands(name, "--help")
    command = app.commands[name].loaded
    assert "\n" not in command.help.replace("\n\n", "")
    for argument in command.params:
        if argument.param_type_name == "argument":
            assert argument.help
            assert argument.help.split()[0] in text.partition("─ Arguments ")[2]
    if name == "init":
        assert "hierarchical-svm" in text


def test_help_lists_the_built_in_tables(commands):
    _, text, _ = commands("run", "fed-cg", "--help")
    words = set(re.findall(r"[\w-]+", text))
    assert set(BUILTIN) <= words
    assert "nyc-flights" in commands("run", "fed-cfk", "--help")[1]


def test_names_have_one_spelling_and_others_are_understood(commands, in_tmp):
    assert [usual_name(name) for name in ("breast_cancer", "Breast Cancer", "iris", "my_own")] == [
        *["breast-cancer"] * 2,
        *["iris", "my_own"],
    ]
    found = commands.result("kernel-pca", "--data", "Iris", "--clients", "3", "--features", "10")
    assert found["config"]["data"]["data"] == "iris"


def test_an_unknown_method_is_suggested_once(commands):
    line = commands.complaint("run", "fedcg")
    assert line.count("fed-cg") == 2  # a suggestion, and the list of methods
    assert line.lower().count("did you mean") == 1

"""Help and progress: at once, the options that matter, plain words; lines where nobody sits."""

from __future__ import annotations

import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedkern_flwr.simulations.cli import console
from fedkern_flwr.simulations.cli.console import Screen
from fedkern_flwr.simulations.cli.main import app
from fedkern_flwr.simulations.run.datasets import BUILTIN

METHODS: Any = app.commands["run"].loaded.commands  # type: ignore[attr-defined]
PANELS = ("Data", "Parties", "Method", "Engine and output")


def shown(text: str) -> list[str]:
    """Return the options that a help shows, in its order."""
    return re.findall(r"^│ (--[\w-]+)", text, flags=re.M)


def loaded_by(*arguments: str) -> set[str]:
    """Return the modules that a command has loaded, in a process of its own."""
    program = "import sys; from fedkern_flwr.simulations.cli.main import run; "
    program += f"run({[*arguments]!r}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("argument", ["--help", "--version", "rnu"])
def test_nothing_of_a_method_is_loaded(argument: str) -> None:
    modules = loaded_by(argument)
    packages = {"numpy", "scipy", "flwr", "grpc", "pyarrow", "sklearn", "cryptography"}
    assert not packages & modules
    cli = "fedkern_flwr.simulations.cli"
    parents = {"fedkern_flwr", "fedkern_flwr.errors", "fedkern_flwr.simulations"}
    ours = {name for name in modules if name.startswith("fedkern_flwr.") or name == "fedkern_flwr"}
    assert ours == {*parents, cli, f"{cli}.main", f"{cli}.lazy"}


def test_a_run_loads_its_own_family_and_little_else(in_tmp: Path) -> None:
    """No other family, no SciPy, which linear SVMs do without, and no pandas for a plain table."""
    rows = [f"{k % 7},{k % 5},{k % 2}\n" for k in range(99)]
    Path("t.csv").write_text("a,b,y\n" + "".join(rows))
    command = "run hierarchical-svm --data t.csv --label y --users 4 --C 1 --rounds 2 --out o"
    found, methods = loaded_by(*command.split()), "fedkern_flwr.simulations.methods"
    assert Path("o/result.json").is_file()
    assert f"{methods}.groups" in found
    others = {f"{methods}.{name}" for name in ("hybrid", "vertical", "gram", "online", "rows")}
    assert not found & {"scipy", "pandas", *others}


@pytest.mark.parametrize(("command", "more"), [
    ("fed-cg", {"scipy.special"}),
    *(pytest.param(*row, marks=pytest.mark.long) for row in (
        ("fdskl", {"scipy.optimize", "scipy.special"}),
        ("secure-gram --encoding fixed-point --learner ridge", {"scipy.linalg"}),
        ("pof-rls --clients 3 --rounds 4", {"scipy.special"}))),
])  # fmt: skip
def test_a_run_on_a_built_in_table_loads_no_library_that_it_does_not_need(
    command: str, more: set[str], in_tmp: Path
) -> None:
    """Each of these takes as long to load as the run takes; the plots need Matplotlib alone."""
    found = loaded_by(*f"run {command} --data iris --out o".split())
    assert any(Path("o/plots").glob("*.png"))
    assert "matplotlib.figure" in found
    slow = {"pandas", "sklearn", "pyarrow", "ray", "scipy.stats", "matplotlib.pyplot"}
    assert not found & {*slow, "matplotlib.backends.backend_svg", "flwr.simulation", *more}


@pytest.mark.parametrize("name", METHODS)
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


def test_help_is_without_markup_and_the_same_before_a_command_is_loaded():
    for name, command in app.commands.items():
        assert command.loaded.name == name
        assert (command.loaded.help or "").split("\n")[0] == command.help
    found = [*every_command(app)]
    assert len(found) > 40
    for command in found:
        for one in (command, *command.params):
            text = (one.help or "").replace("\\[", "")
            assert not re.search(r"[`\\*]|:\w+:", text), (command.name, one.name)


def test_built_in_tables_are_listed_and_other_spellings_understood(commands, in_tmp):
    _, text, _ = commands("run", "fed-cg", "--help")
    assert set(BUILTIN) <= set(re.findall(r"[\w-]+", text))
    assert "nyc-flights" in commands("run", "fed-cfk", "--help")[1]
    for typed, name in (("Iris", "iris"), ("Breast Cancer", "breast-cancer")):
        given = ["--data", typed, "--clients", "3", "--features", "10"]
        assert commands.result("kernel-pca", *given)["config"]["data"]["data"] == name


def test_doctor_prints_a_line_each(commands):
    code, text, _ = commands("doctor")
    assert code == 0
    assert {line.split()[0] for line in text.strip().splitlines()} >= {"flwr", "port"}


def test_an_unknown_method_is_suggested_once(commands):
    line = commands.complaint("run", "fedcg")
    assert line.count("fed-cg") == 2  # a suggestion, and the list of methods
    assert line.lower().count("did you mean") == 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def test_a_log_file_gets_a_line_a_minute(clock: list[float], capsys: Any) -> None:
    with Screen().progress() as bar:
        for second in range(0, 150, 10):
            clock[0] = float(second)
            bar.update(f"draw {second}", second + 0.5, 200)
    assert capsys.readouterr().err.splitlines() == ["draw 60: 60 of 200", "draw 120: 120 of 200"]
    rare = [(Screen(), 30.0, ""), (Screen(), 61.0, "t\n"), (Screen(quiet=True), 61.0, "")]
    for screen, done, said in rare:
        clock[0] = 0.0
        with screen.progress() as bar:
            clock[0] = done
            bar.update("t", 0, 0)  # of what has no count
        assert capsys.readouterr().err == said


def test_a_terminal_shows_that_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    file, screen = StringIO(), Screen()
    monkeypatch.setattr(screen, "console", Console(file=file, force_terminal=True, width=120))
    with screen.progress() as bar:
        bar.update("draw 1", 1, 2)
        bar.work("training on 120 rows", 3, 12)
    shown = file.getvalue().rpartition("draw 1")[2]
    assert "training on 120 rows" in shown
    assert "3/12" in shown

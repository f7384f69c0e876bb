"""The command line and tables for it, and apps as modules."""

from __future__ import annotations

import csv
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from refusals import SLOW

from fedkern_flwr.model_file import load_model
from fedkern_flwr.node.state import KeptState
from fedkern_flwr.simulations.cli import console, main
from fedkern_flwr.simulations.cli import run as run_command
from fedkern_flwr.simulations.deployment.run_config import app_folder, declared
from fedkern_flwr.simulations.engines import InProcessGrid
from fedkern_flwr.simulations.methods import rows

BIN = Path(sys.executable).parent
#: Methods that are compared with a model of the pooled rows.
POOLED = ("fed-cg", "fdskl", "secure-gram", "fed-cfk", "hierarchical-svm")


@pytest.fixture
def import_app(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """Return what imports the modules of an app afresh, with its declared options."""

    def imported(name: str, *modules: str) -> SimpleNamespace:
        monkeypatch.syspath_prepend(app_folder(name))
        for module in modules:
            monkeypatch.delitem(sys.modules, module, raising=False)
        found = {module: importlib.import_module(module) for module in modules}
        return SimpleNamespace(**found, config=declared(app_folder(name)))

    return imported


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class CommandLine:
    """The command line as its users know it: what it shows, what it leaves, how it ends."""

    def __init__(self, ratings: Path) -> None:
        self.ratings = ratings

    def __call__(self, *arguments: str, plots: bool = False) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error of a command."""
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
            for module in () if plots else (run_command, rows):  # as if there were no Matplotlib
                patch.setattr(module, "find_spec", lambda name: None)
            code = main.run([*arguments])
        return code, out.getvalue(), err.getvalue()

    def shown(self, *arguments: str) -> str:
        """Run what succeeds; return notes and results, as one line."""
        code, out, err = self(*arguments)
        assert code == 0, err
        return " ".join((err + out).split())

    def result(self, *arguments: str, out: str = "here", plots: bool = False) -> Any:
        """Run a method quietly; return what it prints, which is JSON and nothing else."""
        where = ("--out", out, "--force")  # in place of what an earlier run left there
        told = ("--quiet", *where, "--json", "-")
        code, printed, err = self("run", *arguments, *told, plots=plots)
        assert (code, err) == (0, "")
        return json.loads(printed)

    def trained(self, *arguments: str, out: str = "here") -> Any:
        """Run a method without its model of the pooled rows, which takes longer than a run."""
        unchecked = ["--no-check-pooled"] * (arguments[0] in POOLED)
        return self.result(*arguments, *unchecked, out=out)

    def complaint(self, *arguments: str, code: int = 2) -> str:
        """Run what must fail with this code; return its single line."""
        found, out, err = self(*arguments)
        assert (found, out) == (code, ""), err
        (line,) = (one for one in err.strip().splitlines() if one != SLOW)
        assert line.startswith("fedkern: ")
        return line

    def interrupt(self, pulls: int, *arguments: str) -> str:
        """Press Ctrl-C after so many pulls of replies; return what is shown."""

        def interrupted() -> None:
            raise KeyboardInterrupt

        with at_pull(pulls, interrupted):
            code, out, err = self("run", *arguments)
        assert (code, out) == (130, "")
        return " ".join(err.split())

    def kill(self, pulls: int, *arguments: str) -> None:
        """Kill the command, in a process of its own, after so many pulls of replies."""

        def killed() -> None:
            with at_pull(pulls, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                self("run", *arguments)

        process = get_context("fork").Process(target=killed)
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL

    def small(self, method: str) -> list[str]:
        """Return a method's name and options that make a run of a second."""
        ratings = ["--data", str(self.ratings), "--user", "who", "--item", "what"]
        ratings += ["--clients", "6", "--min-support", "3"]
        stream = ["--data", "wine", "--clients", "4", "--rounds", "12", "--test-size", "0.3"]
        two = ["--data", "iris", "--positive", "2"]
        raw = [*two, "--scaling", "none", "--C", "0.1", "--tolerance", "0.05"]
        own = {
            "fed-cg": ["--landmarks", "16", "--regularization", "0.05"],
            "fdskl": ["--features", "40", "--gamma", "2", "--regularization", "0.01"],
            "secure-gram": ratings,
            "fed-cfk": ratings,
            "hierarchical-svm": [*raw, "--users", "4", "--groups", "2"],
            "summary": ["--clients", "3"],
            "kernel-pca": ["--test-size", "0.2", "--clients", "3", "--features", "10"],
        }
        if method in ("fed-cg", "fdskl"):  # two classes
            own[method] += two
        if method == "fdskl":  # solved in closed form
            own[method] += ["--loss", "square"]
        return [method, *own.get(method, stream)]


@contextmanager
def at_pull(pulls: int, act: Callable[[], None]) -> Iterator[None]:
    """Let something happen in place of a pull of the in-process engine."""
    real, left = InProcessGrid.pull_messages, iter(range(pulls))

    def pull(grid: InProcessGrid, message_ids: Any) -> Any:
        if next(left, None) is None:
            act()
        return real(grid, message_ids)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcessGrid, "pull_messages", pull)
        yield


@pytest.fixture(scope="session")
def stars() -> np.ndarray:
    """Return ratings 1 to 5 of 14 films by 24 users, 0 where there is none."""
    rng = np.random.default_rng(2)
    taste = rng.normal(size=(24, 2)) @ rng.normal(size=(2, 14))
    rated = np.clip(np.rint(3.0 + taste), 1, 5) * (rng.random(taste.shape) < 0.7)
    rated[3:, 5] = 0  # an item of few users
    return rated


@pytest.fixture(scope="session")
def commands(tmp_path_factory: Any, stars: np.ndarray, tables: type[Tables]) -> CommandLine:
    """Return the command line."""
    path = tmp_path_factory.mktemp("ratings") / "r.csv"
    tables.ratings(path, stars)
    return CommandLine(path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: Any, commands: CommandLine) -> Callable[..., SimpleNamespace]:
    """Return what runs a method (small, or with these options) once, on a screen of 80."""
    made: dict[tuple[str, ...], SimpleNamespace] = {}

    def finish(method: str, *more: str) -> SimpleNamespace:
        if (method, *more) not in made:
            folder = tmp_path_factory.mktemp(method) / "run"
            given = [method, *more] if more else commands.small(method)
            options = [*given, "--out", str(folder), "--json", "-"]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(console, "FILE_WIDTH", 80)
                code, out, shown = commands("run", *options, plots=True)
            assert code == 0, shown
            found = {"folder": folder, "result": json.loads(out), "shown": shown}
            made[method, *more] = SimpleNamespace(**found)
        return made[method, *more]

    return finish


class Tables:
    """Tables of sixty rows with ids, sites, six columns and a label, as files."""

    @staticmethod
    def columns(**changes: Any) -> dict[str, Any]:
        """Return columns by name; a change is a column or what stands in all its cells."""
        x = np.random.default_rng(7).uniform(0.0, 9.0, (60, 6))
        found: dict[str, Any] = {"id": [f"s3cret-{i}" for i in range(60)]}
        found["town"] = ["x", "y", "z"] * 20
        found |= {name: x[:, j] for j, name in enumerate("abcdef")}
        found["y"] = (x.sum(axis=1) > 27.0) * 1.0
        for name, cells in changes.items():
            found[name] = cells if np.ndim(cells) else [cells] * 60
        return found

    @staticmethod
    def write(path: Path | str, columns: Mapping[str, Any]) -> str:
        """Write columns; NaN becomes an empty cell."""
        with Path(path).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            for row in zip(*(np.asarray(c).tolist() for c in columns.values()), strict=True):
                writer.writerow("" if cell != cell else cell for cell in row)
        return str(path)

    @staticmethod
    def ratings(
        path: Path | str,
        rated: np.ndarray,
        head: str = "who,what,stars,when",
        users: Sequence[Any] = range(1, 1000),
        items: Sequence[Any] = range(1, 1000),
    ) -> None:
        """Write ratings with the separator of the file's kind; items and users count from 1."""
        path = Path(path)
        separator = {".csv": ",", ".dat": "::"}.get(path.suffix, "\t")
        headed = path.suffix in (".csv", ".inter", ".tsv")
        lines = [head.replace(",", separator)] if headed else []
        lines += [
            separator.join(map(str, (users[u], items[i], int(rated[u, i]), 1000 * i + u)))
            for u, i in zip(*np.nonzero(rated), strict=True)
        ]
        path.write_text("\n".join(lines) + "\n")

    @staticmethod
    def read(path: Path | str) -> list[dict[str, str]]:
        """Return the rows of a CSV file."""
        with Path(path).open(newline="") as file:
            return list(csv.DictReader(file))

    @staticmethod
    def outputs(folder: Path) -> dict[int, list[float]]:
        """Return what simulated parties predicted, by row."""
        rows = [row for file in folder.glob("partition-*.csv") for row in Tables.read(file)]
        names = [name for name in rows[0] if name.startswith("output_")]
        return {int(row["id"]): [float(row[name]) for name in names] for row in rows}

    @staticmethod
    def put(folder: Path, outputs: Mapping[int, Sequence[float]]) -> None:
        """Put predictions where simulated parties put theirs."""
        for file in folder.glob("*.csv"):
            file.unlink()
        columns = zip(*outputs.values(), strict=True)
        named = {f"output_{k}": list(column) for k, column in enumerate(columns)}
        Tables.write(folder / "partition-0.csv", {"id": list(outputs), **named})


@pytest.fixture(scope="session")
def tables() -> type[Tables]:
    """Return what writes tables."""
    return Tables


@pytest.fixture
def table() -> dict[str, Any]:
    """Return the columns of a table, which a test may change and write."""
    return Tables.columns()


def _model(out: Path | str) -> dict[str, np.ndarray]:
    """Return the arrays of a model, or what its parties kept to themselves: alpha, or an error."""
    arrays, meta = load_model(Path(out) / "model.npz")
    if arrays:
        return dict(arrays)
    if "step" not in meta:
        return {"mse": np.array(json.loads(Path(out, "result.json").read_text())["metrics"]["mse"])}
    states = Path(out).glob(f"private_state/*{meta['session']}/*-round-{meta['step']}.state")
    kept = {path.name: KeptState.unpack(path.read_bytes()).arrays for path in states}
    return {name: arrays["alpha"] for name, arrays in kept.items() if "alpha" in arrays}


def _differs(ours: Path | str, theirs: Path | str, tolerance: float) -> bool:
    """Tell whether two runs made different models."""
    first, second = _model(ours), _model(theirs)
    assert first
    assert second
    if first.keys() != second.keys():
        return True
    shapes = [(first[k].shape, second[k].shape) for k in first]
    return any(a != b for a, b in shapes) or any(
        np.abs(first[k].astype(float) - second[k]).max() > tolerance for k in first
    )


@pytest.fixture(scope="session")
def differs() -> Callable[..., bool]:
    """Return what tells whether the models of two runs differ by more than a tolerance."""
    return _differs

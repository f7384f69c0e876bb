"""The README: its blocks run as they are printed, every method leads to a page and to figures."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message

from fedkern_flwr import strategies
from fedkern_flwr.clients import HybridKernelClient, serve
from fedkern_flwr.simulations import InProcessGrid
from fedkern_flwr.simulations.lab.presets import NAMES
from fedkern_flwr.tables import load_table

ROOT = Path(__file__).resolve().parents[2]
README, RESULTS = ROOT / "README.md", ROOT / "docs/results-archive.md"
METHODS = ("POFMKL", "FedCG", "FDSKL", "SecureGram", "FedCFK", "HierarchicalSVM")

pytestmark = pytest.mark.skipif(not README.is_file(), reason="no source tree here")


def methods() -> list[list[str]]:
    """Return the cells of the table of methods."""
    body = README.read_text("utf-8").split("\n## Methods\n")[1].split("\n|---")[1].split("\n\n")[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in body.splitlines()[1:]]


def python_blocks() -> list[str]:
    """Return the examples in Python."""
    return re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), flags=re.S)


def write(path: str, columns: dict[str, Any]) -> None:
    """Write a CSV file."""
    rows = zip(*columns.values(), strict=True)
    Path(path).write_text("\n".join([",".join(columns), *(",".join(map(str, r)) for r in rows)]))


def patients(rows: int = 240, label: str = "ill") -> dict[str, Any]:
    """Return columns of patients and a label that follows from them."""
    x = np.random.default_rng(0).random((rows, 6))
    ill = (x[:, 0] + x[:, 2] + x[:, 4] > 1.5).astype(int)
    names = ("age", "dose", "iron", "salt", "gene", "cell")
    columns = {name: column.round(4).tolist() for name, column in zip(names, x.T, strict=True)}
    return {"patient": [f"p{k}" for k in range(rows)], **columns, label: ill.tolist()}


def part(columns: dict[str, Any], names: str, rows: slice) -> dict[str, Any]:
    """Return some columns and rows."""
    return {name: columns[name][rows] for name in names.split()}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which the blocks run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_ten_lines_on_each_side_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two hospitals as in the README; a centre reads one table, without labels."""
    server, client, _ = python_blocks()
    every = patients()
    Path("key").write_text("5e" * 32)
    files: dict[int, dict[str, Any]] = {}
    for k, rows in enumerate((range(120), range(120, 240))):
        for name, own in (("data", rows[:90]), ("test-data", rows[90:])):
            file = files.setdefault(k, {"alignment-key": "key"})[name] = f"{k}-{name}.csv"
            write(file, part(every, "patient age dose ill", slice(own[0], own[-1] + 1)))
    for k, names in ((2, "patient iron salt"), (3, "patient gene cell")):
        files[k] = {"data": f"{k}.csv"}
        write(f"{k}.csv", part(every, names, slice(None)))
    space: dict[str, Any] = {}
    exec(client, space)

    def make_centre(context: Context) -> HybridKernelClient:
        table = load_table(context.node_config["data"], id_column="patient", labelled=False)
        key = space["read_alignment"]("key")
        return HybridKernelClient(context, table.x, ids=table.ids, alignment_key=key)

    hospital, centre = space["app"], serve(make_centre)

    def nodes(message: Message, context: Context) -> Message:
        return (hospital if "test-data" in context.node_config else centre)(message, context)

    grid: Any = InProcessGrid(nodes, 4)  # type: ignore[arg-type]  # called as an app is
    for context in grid.contexts.values():
        context.node_config |= files[context.node_config["partition-id"]]
    exec(server, space)
    space["main"](grid, None)
    accuracy, exchanges = capsys.readouterr().out.split()
    assert float(accuracy) > 0.85
    assert exchanges == "5"


def commands() -> list[str]:
    """Return the lines of the blocks for a shell, without their comments."""
    text = "\n".join(re.findall(r"```console\n(.*?)```", README.read_text("utf-8"), flags=re.S))
    lines = re.findall(r"^\$ (.*)", text, re.M)
    return [shlex.join(shlex.split(line, comments=True)) for line in lines]


def test_every_target_of_make_is_there() -> None:
    targets = {line.split()[1] for line in commands() if line.startswith("make ")}
    assert targets
    assert targets <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))


def section(anchor: str) -> str:
    """Return the section of the results that has this anchor."""
    for part in re.split(r"^(?=## )", RESULTS.read_text("utf-8"), flags=re.M):
        heading = part.splitlines()[0].removeprefix("## ")
        if re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") == anchor:
            return part
    raise AssertionError(f"the results have no section {anchor}")


def test_every_method_links_to_figures_with_the_commands_that_made_them() -> None:
    named = [re.findall(r"`(\w+)`", row[0])[-1] for row in methods()]
    assert tuple(named) == METHODS
    assert set(named) <= set(strategies.__all__)
    for row in methods():
        anchors = re.findall(r"\(docs/results-archive\.md#([\w-]+)\)", row[-1])
        assert anchors, row[0]
        for anchor in anchors:
            commands = re.findall(r"`fedkern compare ([\w-]+)", section(anchor))
            assert commands, f"{anchor} states no command"
            assert set(commands) <= set(NAMES), anchor

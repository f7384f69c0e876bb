"""Compute the tables of the papers, keep them, and render them beside the papers' own figures.

``results.py keep PRESET`` computes a preset (``make results PRESET=...``) and keeps its tables as
JSON in simulations/papers/results/; of ``peers`` it keeps the pictures in docs/images/ as well.
``results.py take FILE`` keeps what ``fedkern compare PRESET --json FILE`` has written.
``results.py missing`` computes all presets of the papers that are not kept yet. ``results.py page``
writes simulations/papers/results/README.md: what each paper prints, what we get, and why they
differ. The list of what the papers have, and the reasons, is catalogue.toml in that folder.
"""

from __future__ import annotations

import json
import shlex
import shutil
import string
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
KEPT = ROOT / "simulations" / "papers" / "results"
PAGE = KEPT / "README.md"
#: Pictures of a comparison, without the name of its section, and what they are called.
PICTURES = {
    "errors-exchanges.png": "peers-tables-exchanges.png",
    "errors-bytes.png": "peers-tables-bytes.png",
}
_SPLIT = " --paper-split"
_HEADINGS = ("data", "method", "figure", "paper", "ours", "± std", "difference", "reason")

app = typer.Typer(help=__doc__, no_args_is_help=True)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def keep(
    context: typer.Context,
    preset: Annotated[str, typer.Argument(help="A preset of fedkern compare.")],
) -> None:
    """Compute a preset, keep its tables, and write the page anew.

    What follows the preset goes to ``fedkern compare``: ``--datasets``, ``--runs``, ``--jobs``.
    """
    with tempfile.TemporaryDirectory(prefix="fedkern-") as folder:
        file = Path(folder) / "result.json"
        command = [str(Path(sys.executable).parent / "fedkern"), "compare", preset]
        command += [*context.args, "--json", str(file), "--out", f"{folder}/out"]
        if status := subprocess.run(command, check=False).returncode:
            raise typer.Exit(status)
        for picture in Path(folder, "out", "plots").glob("*.png"):
            for end, name in PICTURES.items():
                if picture.name.endswith(end):
                    shutil.copy(picture, IMAGES / name)
        _keep(file, preset, context.args)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def take(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="What fedkern compare --json has written.")],
    preset: Annotated[str, typer.Argument(help="The preset that it computed.")],
) -> None:
    """Keep the tables of a comparison that was run before; its options follow the preset."""
    _keep(file, preset, context.args)


def _keep(file: Path, preset: str, given: Sequence[str]) -> None:
    split = _SPLIT if _SPLIT.strip() in given else ""
    command = shlex.join(["fedkern", "compare", preset, *given])
    made = _kept(json.loads(file.read_text()), command)
    file_of(preset + split).write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    page()


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def missing(context: typer.Context) -> None:
    """Keep all presets of the list of which nothing is kept; what follows is as of ``keep``.

    One that cannot be computed does not stop the others.
    """
    failed = 0
    for preset in sorted({item.get("preset", "") for item in _items()} - {""}):
        if not file_of(preset).is_file():
            command = [sys.executable, __file__, "keep", *preset.split(), *context.args]
            failed += bool(subprocess.run(command, check=False).returncode)
    raise typer.Exit(int(failed > 0))


def _items() -> Iterator[Mapping[str, Any]]:
    """Yield the tables and figures of all papers."""
    for paper in _papers():
        yield from paper["items"]


@app.command()
def page() -> None:
    """Write the page of tables from what is kept."""
    PAGE.write_text(rendered())


def file_of(preset: str) -> Path:
    """Return the file of what is kept of a preset, with its flag if it has one."""
    return KEPT / f"{preset.replace(' --', '-')}.json"


def _kept(found: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Return what is kept of a result of ``fedkern compare``: tables and figures of the paper."""
    return {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        **{name: found[name] for name in ("engine", "seed", "runs", "versions")},
        "datasets": {
            name: {part: of[part] for part in ("source", "notes", "table", "paper_figures")}
            for name, of in found["datasets"].items()
        },
    }


def rendered() -> str:
    """Return the page: a paper's list of tables, then each table beside ours."""
    lines = [
        "# The papers' tables beside ours",
        "",
        "`benchmarks/results.py` makes this page from the files beside it. `make results "
        "PRESET=...` computes a table again. *Difference* is ours minus the paper's figure. A "
        "figure is met if the difference is within the standard deviation of ours over repetitions "
        "plus half a unit of the paper's last digit. Otherwise an arrow says whether ours is "
        "better (↑) or worse (↓), and a letter gives the reason, which is below the table.",
    ]
    for paper in _papers():
        lines += ["", f"## {paper['name']}", "", f"{paper['source']}.", ""]
        lines += ["| | what | status | command | date |", "|---|---|---|---|---|"]
        shown = dict[str, Any]()
        for item in paper["items"]:
            found = _read(item.get("preset", ""))
            done = (f"`{found['command']}`", found["date"]) if found else ("", "")
            lines.append(_row((item["item"], item["what"], _status(item, found), *done)))
            if found and item["preset"] not in shown:
                shown[item["preset"]] = (item, found)
        for item, found in shown.values():
            lines += ["", f"### {paper['name']}, {item['item']}", ""]
            lines += _compared(paper, item, found) if any(_figures(found)) else _ours(found)
    if peers := _read("peers"):
        lines += ["", "## Peers", "", f"`{peers['command']}`, {peers['date']}.", *_ours(peers)]
    return "\n".join(lines) + "\n"


def _papers() -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = tomllib.loads((KEPT / "catalogue.toml").read_text())["paper"]
    return found


def _read(preset: str) -> dict[str, Any]:
    """Return what is kept of a preset; nothing if it was not computed."""
    file = file_of(preset)
    found: dict[str, Any] = json.loads(file.read_text()) if preset and file.is_file() else {}
    return found


def _figures(found: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for of in found.get("datasets", {}).values():
        yield from of["paper_figures"]


def _status(item: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return how many figures of a table are met, and which data are not at hand."""
    if "preset" not in item:
        return str(item["why"])
    if not found:
        needs = item.get("needs")
        return f"no data: `--datasets {needs}=FILE` computes it" if needs else "not computed yet"
    figures = list(_figures(found))
    without = f"; without {item['without']}" if "without" in item else ""
    if not figures:
        return f"computed; the paper prints no numbers{without}"
    met = sum(not one["misses"] for one in figures)
    better = sum(one["misses"] and one["better"] is True for one in figures)
    return f"{met} of {len(figures)} figures met, {better} better, {_worse(figures)}{without}"


def _worse(figures: Sequence[Mapping[str, Any]]) -> str:
    worse = sum(one["misses"] and one["better"] is False for one in figures)
    absent = sum(one["misses"] and one["better"] is None for one in figures)
    return f"{worse} worse" + f", {absent} not computed" * bool(absent)


def reason(paper: Mapping[str, Any], item: str, figure: Mapping[str, Any]) -> str:
    """Return why a figure differs: the first reason of the paper that applies to it."""
    known = {"item": item, "better": figure["better"]}
    known |= {name: figure[name] for name in ("dataset", "label", "column")}
    for one in paper.get("reason", ()):
        if all(known[name] in wanted for name, wanted in one.items() if name != "text"):
            return str(one["text"])
    where = f"{paper['name']}, {item}, {figure['dataset']}, {figure['label']}, {figure['column']}"
    raise SystemExit(f"catalogue.toml has no reason why this figure differs: {where}")


def _compared(
    paper: Mapping[str, Any], item: Mapping[str, Any], found: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a table of paper, ours and difference, and the reasons where they differ."""
    reasons: dict[str, str] = {}
    yield from (_row(_HEADINGS), "|---" * len(_HEADINGS) + "|")
    for one in _figures(found):
        digits, why = one["decimals"], ""
        if one["misses"]:
            why = reasons.setdefault(
                reason(paper, item["item"], one), string.ascii_lowercase[len(reasons)]
            )
        cells = [one["dataset"], one["label"], one["column"], f"{one['paper']:.{digits}f}"]
        if one["ours"] is None:
            cells += ["not computed", "", ""]
        else:
            arrow = {True: " ↑", False: " ↓"}.get(one["better"], "") if one["misses"] else ""
            cells += [_number(one["ours"], digits + 1)]
            cells += ["" if one["spread"] is None else _number(one["spread"], digits + 1)]
            cells += [_number(one["ours"] - one["paper"], digits + 1, "+") + arrow]
        yield _row((*cells, why))
    yield from (line for text, key in reasons.items() for line in ("", f"({key}) {text}"))


def _number(value: float, digits: int, sign: str = "") -> str:
    return f"{value:{sign}.3g}" if abs(value) >= 1e5 else f"{value:{sign}.{digits}f}"


def _ours(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield our tables of a preset for which the paper prints no numbers."""
    for of in found["datasets"].values():
        table = of["table"]
        yield from ("", f"{table['caption']}:", "", _row(table["headings"]))
        yield from ("|---" * len(table["headings"]) + "|", *map(_row, table["rows"]))
        yield from (f"\n{note}." for note in of["notes"])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    app()

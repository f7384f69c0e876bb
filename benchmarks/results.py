"""Keep the tables of presets, and write the pages that are made of them.

``results.py keep PRESET`` computes a preset (``make results PRESET=...``) and keeps its tables in
docs/results/, of ``peers`` its pictures in docs/images/ as well; ``results.py missing`` does so for
all presets of the papers that are not kept yet. ``results.py pages`` writes the checklist of
docs/results.md and the tables of docs/results/README.md from what is kept. The catalogue of what
the papers have is docs/results/papers.toml.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

DOCS = Path(__file__).parent.parent / "docs"
KEPT = DOCS / "results"
PAGE, TABLES = DOCS / "results.md", KEPT / "README.md"
BEGIN, END = "<!-- checklist -->", "<!-- end of the checklist -->"
#: Pictures of a comparison, without the name of its section, and what they are called.
PICTURES = {
    "errors-exchanges.png": "peers-tables-exchanges.png",
    "errors-bytes.png": "peers-tables-bytes.png",
}
_SPLIT = " --paper-split"
_HEADINGS = ("data", "method", "figure", "ours", "± std", "paper")

app = typer.Typer(help=__doc__, no_args_is_help=True)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def keep(
    context: typer.Context,
    preset: Annotated[str, typer.Argument(help="A preset of fedkern compare.")],
) -> None:
    """Compute a preset, keep its tables, and write the pages anew.

    What follows the preset goes to ``fedkern compare``: ``--datasets``, ``--runs``, ``--jobs``.
    """
    with tempfile.TemporaryDirectory(prefix="fedkern-") as folder:
        file = Path(folder) / "result.json"
        command = [str(Path(sys.executable).parent / "fedkern"), "compare", preset]
        command += [*context.args, "--json", str(file), "--out", f"{folder}/out"]
        if status := subprocess.run(command, check=False).returncode:
            raise typer.Exit(status)
        found = json.loads(file.read_text())
        for picture in Path(folder, "out", "plots").glob("*.png"):
            for end, name in PICTURES.items():
                if picture.name.endswith(end):
                    shutil.copy(picture, DOCS / "images" / name)
    split = _SPLIT if _SPLIT.strip() in context.args else ""
    made = _kept(found, shlex.join(["fedkern", "compare", preset, *context.args]))
    file_of(preset + split).write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    pages()


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
    for paper in tomllib.loads((KEPT / "papers.toml").read_text())["paper"]:
        yield from paper["items"]


@app.command()
def pages() -> None:
    """Write the checklist and the page of tables from what is kept."""
    text = PAGE.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        Console(stderr=True).print(f"{PAGE} lacks the lines {BEGIN} and {END}")
        raise typer.Exit(2)
    PAGE.write_text(f"{before}{BEGIN}\n\n{checklist()}\n{END}{after}")
    TABLES.write_text(tables())


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


def checklist() -> str:
    """Return a row per table and figure of the papers, and the figures that are missed."""
    lines: list[str] = []
    missed: list[str] = []
    for paper in tomllib.loads((KEPT / "papers.toml").read_text())["paper"]:
        lines += [f"**{paper['name']}** ({paper['source']})", ""]
        lines += ["| | what | status | command | date |", "|---|---|---|---|---|"]
        for item in paper["items"]:
            found = _read(item.get("preset", ""))
            told = (f"`{found['command']}`", found["date"]) if found else ("", "")
            cells = (item["item"], item["what"], _status(item, found), *told)
            lines.append(_row(cells))
            missed += [_row((paper["name"], item["item"], *cells)) for cells in _missed(found)]
        lines.append("")
    lines += [
        "**Missed** (by more than the standard deviation of ours over the draws and half a unit of "
        "the paper's last digit; ↑ ours is better, ↓ worse):",
        "",
        _row(("paper", "", *_HEADINGS)),
        "|---" * (2 + len(_HEADINGS)) + "|",
        *missed,
    ]
    return "\n".join(lines) + "\n"


def _read(preset: str) -> dict[str, Any]:
    """Return what is kept of a preset; nothing if it was not computed."""
    file = file_of(preset)
    found: dict[str, Any] = json.loads(file.read_text()) if preset and file.is_file() else {}
    return found


def _figures(found: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for of in found.get("datasets", {}).values():
        yield from of["paper_figures"]


def _status(item: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return whether a table or figure is met."""
    if "preset" not in item:
        return str(item["why"])
    if not found:
        needs = item.get("needs")
        return f"no data: `--datasets {needs}=FILE` computes it" if needs else "not computed yet"
    figures = list(_figures(found))
    without = f"; without {item['without']}" if "without" in item else ""
    if not figures:
        return f"computed; the paper prints no numbers{without}"
    missed = [one for one in figures if one["misses"]]
    if not missed:
        return f"met: all {len(figures)} figures{without}"
    better, worse, absent = (
        sum(one["better"] is which for one in missed) for which in (True, False, None)
    )
    text = f"{len(figures) - len(missed)} of {len(figures)} figures met"
    text += f", {better} missed for the better, {worse} for the worse"
    return f"{text}{f', {absent} not there' * bool(absent)}{without}"


def _missed(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for one in _figures(found):
        if one["misses"] and one["ours"] is not None:
            digits, better = one["decimals"] + 1, {True: " ↑", False: " ↓"}
            ours = f"{one['ours']:.{digits}f}"
            spread = "" if one["spread"] is None else f"{one['spread']:.{digits}f}"
            paper = f"{one['paper']:.{one['decimals']}f}"
            names = (one["dataset"], one["label"], one["column"])
            yield (*names, ours + better.get(one["better"], ""), spread, paper)


def tables() -> str:
    """Return the tables of all presets that are kept, as a page."""
    lines = [
        "# Tables of the presets",
        "",
        "Made by `benchmarks/results.py` from the files beside this page; `make results PRESET=...`"
        " renews one.",
    ]
    for file in sorted(KEPT.glob("*.json")):
        found = json.loads(file.read_text())
        known = ", ".join(f"{k} {v}" for k, v in found["versions"].items() if k != "platform")
        lines += ["", f"## {file.stem}", "", f"`{found['command']}`, {found['date']}; {known}."]
        for of in found["datasets"].values():
            table = of["table"]
            lines += ["", f"{table['caption']}:", "", _row(table["headings"])]
            lines += ["|---" * len(table["headings"]) + "|", *map(_row, table["rows"])]
            lines += [f"\n{note}." for note in of["notes"]]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    app()

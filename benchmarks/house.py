"""The house in figures and in a picture: lines of code per room and method, and who imports whom.

``python benchmarks/house.py`` prints a table of lines of code, without blank lines, comments and
docstrings; ``--since REVISION`` sets those of a revision beside them; ``--picture`` prints the
rooms and their imports as the Mermaid diagram of CONTRIBUTING.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ("fedkern_flwr", "strategies", "clients", "simulations")
#: Method -> what its files are called in the rooms.
METHODS = {
    "POF-MKL, baselines": "online|pof_mkl|average|kofl|per_fed_avg|local_only|account",
    "FedCG": "hybrid|fed_cg|chain",
    "FDSKL": "vertical|fdskl",
    "Secure Gram, FedCFK": "gram|fed_cfk|recommender|rating|kernel_rows|cf_komd",
    "HierarchicalSVM": "groups|hierarchical|svm",
    "kernel PCA": "kernel_pca",
    "align, ranges": "align|alignment|ranges|column_ranges",
}
#: Files of the core that drive a method; the others, such as errors, are used by all.
DRIVER = {
    "method",
    "driven",
    "run",
    "run_log",
    "asking",
    "strategy",
    "summing",
    "gather",
    "overlap",
}
_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """Return how many lines of a module have code."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                documented.update(range(body[0].lineno, (body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def files(revision: str | None) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of the Python files of the checkout or of a revision."""
    if revision is None:
        for room in (*SOURCE, "tests", "benchmarks"):
            for file in sorted((ROOT / room).rglob("*.py")):
                yield file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
        return
    for path in _git("ls-tree", "-r", "--name-only", revision).splitlines():
        if path.endswith(".py") and path.split("/")[0] in (*SOURCE, "tests", "benchmarks"):
            yield path, _git("show", f"{revision}:{path}")


def count(revision: str | None) -> tuple[Counter[str], Counter[str]]:
    """Return the lines of code per room, and of the source per method."""
    rooms: Counter[str] = Counter()
    methods: Counter[str] = Counter()
    for path, text in files(revision):
        lines, parts = code_lines(text), path.split("/")
        rooms[parts[0]] += lines
        if parts[0] in SOURCE:
            rooms["source"] += lines
            rooms["longest file"] = max(rooms["longest file"], len(text.splitlines()))
            for method, names in METHODS.items():
                if any(
                    re.fullmatch(rf"({names})(_\w+)?", p.removesuffix(".py")) for p in parts[1:]
                ):
                    methods[method] += lines
                    break
            else:
                methods["shared by all"] += lines
    return rooms, methods


def table(now: Mapping[str, int], then: Mapping[str, int] | None) -> str:
    """Return a Markdown table."""
    rows = ["| | lines of code |" if then is None else "| | before | now | |"]
    rows.append("|---|---:|" if then is None else "|---|---:|---:|---:|")
    for name in sorted({*now, *(then or {})}):
        own = now.get(name, 0)
        if then is None:
            rows.append(f"| {name} | {own:,} |")
        else:
            share = f"{100 * own / then[name]:.0f} %" if then.get(name) else ""
            rows.append(f"| {name} | {then.get(name, 0):,} | {own:,} | {share} |")
    return "\n".join(rows)


def room_of(module: str) -> str:
    """Return how the picture calls the room of a module, such as ``hybrid`` or ``lab``."""
    parts = module.split("/")
    if parts[0] == "simulations":
        upto = 3 if parts[1:3] == ["lab", "attacks"] else 2  # attacks are below the methods
        return "simulations" if len(parts) == 2 else "/".join(parts[1:upto])
    if parts[0] != "fedkern_flwr" or len(parts) > 2:
        return parts[0] if parts[0] != "fedkern_flwr" else parts[1]
    return "driver" if parts[1].removesuffix(".py") in DRIVER else ""


def picture() -> str:
    """Return the rooms and who imports whom, but for what follows from other arrows."""
    arrows: dict[str, set[str]] = {}
    for path, text in files(None):
        if path.split("/")[0] in SOURCE and "apps" not in path:
            own = arrows.setdefault(room_of(path), set())
            own |= imported(path, text) - {room_of(path), ""}
    lines = ["```mermaid", "flowchart BT"]
    for room in sorted(arrows.keys() - {""}):
        for target in sorted(arrows[room]):
            others = arrows[room] - {target}
            if not any(
                target in arrows.get(o, ()) and room not in arrows.get(o, ()) for o in others
            ):
                lines.append(f"    {room} --> {target}")
    return "\n".join([*lines, "```"])


def imported(path: str, text: str) -> set[str]:
    """Return the rooms that a file imports from."""
    found: set[str] = set()
    package = ["fedkern_flwr", *path.split("/")[:-1]]
    package = package[1:] if path.startswith("fedkern_flwr/") else package
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base += (node.module or "").split(".") if node.module else []
            if base[:1] == ["fedkern_flwr"]:
                found |= {_place([*base, alias.name]) for alias in node.names}
    return found


def _place(parts: list[str]) -> str:
    """Return the room of ``fedkern_flwr.a.b.name``."""
    rest = parts[1:] if parts[1] in SOURCE[1:] else parts
    path = ROOT.joinpath(*rest[:-1])
    inside = [*rest[:-1], rest[-1]] if (path / rest[-1]).is_dir() else rest[:-1]
    return room_of(
        "/".join([*inside, "x.py"]) if ROOT.joinpath(*inside).is_dir() else f"{'/'.join(inside)}.py"
    )


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--since", metavar="REVISION")
    asked.add_argument("--picture", action="store_true")
    options = asked.parse_args()
    if options.picture:
        print(picture())
    else:
        before = count(options.since) if options.since else (None, None)
        for now, then in zip(count(None), before, strict=True):
            print(table(now, then), end="\n\n")

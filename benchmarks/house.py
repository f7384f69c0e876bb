"""The house in figures and in a picture: lines of code per room and method, and who imports whom.

``python benchmarks/house.py`` prints lines of code, without blank lines, comments and docstrings,
and other measures: files, words of the pages, comments, the longest chains of classes.
``--since REVISION`` sets those of a revision beside them; ``--picture`` prints the rooms and their
imports as the Mermaid diagram of CONTRIBUTING.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tarfile
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ("fedkern_flwr", "strategies", "clients", "simulations")
ROOMS = (*SOURCE, "tests", "benchmarks")
#: Pages that nobody writes by hand, and the measurements, which are tables.
GENERATED = ("simulations/papers/results/", "docs/api/", "docs/claims.md", "docs/exchanges.md")
GENERATED += ("docs/node-packages.md", "docs/options.md", "docs/troubleshooting.md")
GENERATED += ("docs/node-keys.md", "benchmarks/results/")
#: Method -> what its files are called in the rooms.
METHODS = {
    "POF-MKL, baselines": "online|pof_mkl|average|kofl|per_fed_avg|local_only|baselines|account",
    "FedCG": "hybrid|fed_cg|chain",
    "FDSKL": "vertical|fdskl",
    "Secure Gram, FedCFK": "gram|fed_cfk|recommender|rating|kernel_rows|cf_komd",
    "HierarchicalSVM": "groups|hierarchical|svm",
    "kernel PCA": "kernel_pca",
    "align, ranges": "align|alignment|ranges|column_ranges",
}
#: Files of the core that drive a method; the others, such as errors, are used by all.
DRIVER = {"method", "nodes", "run", "run_log"}
_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(text: str, comments: bool = False) -> int:
    """Return how many lines of a module have code, or comments."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                documented.update(range(body[0].lineno, (body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if (token.type == tokenize.COMMENT) if comments else (token.type not in _SILENT):
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def files(tree: Path, rooms: tuple[str, ...] = ROOMS) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of the Python files of a checkout."""
    for room in rooms:
        for file in sorted((tree / room).rglob("*.py")):
            yield file.relative_to(tree).as_posix(), file.read_text(encoding="utf-8")


def count(revision: str | None) -> list[Mapping[str, float]]:
    """Return the lines of code per room, of the source per method, and other measures."""
    if revision is None:
        return measured(ROOT, _git("ls-files", "-co", "--exclude-standard").splitlines())
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder, "tree.tar")
        _git("archive", "--output", str(packed), revision)
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
        return measured(Path(folder), _git("ls-tree", "-r", "--name-only", revision).splitlines())


def measured(tree: Path, names: list[str]) -> list[Mapping[str, float]]:
    """Return what :func:`count` does, of a checkout with files of these names."""
    there = [name for name in names if (tree / name).is_file()]
    pages = [n for n in there if n.endswith(".md") and not n.startswith(GENERATED)]
    words = {page: len((tree / page).read_text(encoding="utf-8").split()) for page in pages}
    source = list(files(tree, SOURCE))
    comments = sum(code_lines(text, comments=True) for _, text in source)
    rooms, methods = lines_of(tree)
    others = {
        "files in the repository": len(there),
        "words of pages": sum(words.values()),
        "of these in docs/": sum(words[page] for page in words if page.startswith("docs/")),
        "comments per 100 lines of the source": round(100.0 * comments / rooms["source"], 1),
        **chains(source),
    }
    return [rooms, methods, others]


def chains(source: list[tuple[str, str]]) -> dict[str, int]:
    """Return how many classes the longest chain of inheritance has, and levels below two bases."""
    bases: dict[str, set[str]] = {}
    for _, text in source:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                plain = (b.value if isinstance(b, ast.Subscript) else b for b in node.bases)
                names = {ast.unparse(base).rpartition(".")[2] for base in plain} - {node.name}
                bases[node.name] = bases.get(node.name, set()) | names

    def length(name: str, until: str = "") -> int:
        above = [length(base, until) for base in bases[name] if base in bases and name != until]
        if until and name != until and not any(above):
            return 0
        return 1 + max(above, default=0)

    client = next((name for name in ("Client", "PhaseClient") if name in bases), "")
    return {
        "classes in the longest chain": max(map(length, bases)),
        "levels below Method": max(length(name, "Method") for name in bases) - 1,
        "levels below the client's base": max(length(name, client) for name in bases) - 1,
    }


def lines_of(tree: Path) -> tuple[Counter[str], Counter[str]]:
    """Return the lines of code per room, and of the source per method."""
    rooms: Counter[str] = Counter()
    methods: Counter[str] = Counter()
    for room in ROOMS:  # data that somebody has written is code
        for file in (tree / room).rglob("*.toml"):
            if "apps" in file.parts:  # what Flower reads of an app
                continue
            written = file.read_text(encoding="utf-8").splitlines()
            lines = sum(bool(line) and not line.startswith("#") for line in written)
            rooms[room] += lines
            rooms["source"] += lines * (room in SOURCE)
    for path, text in files(tree):
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


def table(now: Mapping[str, float], then: Mapping[str, float] | None) -> str:
    """Return a Markdown table."""
    rows = ["| | now |" if then is None else "| | before | now | |"]
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
        return "simulations" if len(parts) == 2 else parts[1]
    if parts[0] != "fedkern_flwr" or len(parts) > 2:
        return parts[0] if parts[0] != "fedkern_flwr" else parts[1]
    return "driver" if parts[1].removesuffix(".py") in DRIVER else ""


def picture() -> str:
    """Return the rooms and who imports whom, but for what follows from other arrows."""
    arrows: dict[str, set[str]] = {}
    for path, text in files(ROOT, SOURCE):
        if "apps" not in path:
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
        before = count(options.since) if options.since else [None] * 3
        for now, then in zip(count(None), before, strict=True):
            print(table(now, then), end="\n\n")

"""The pages and the README: links, commands, options and figures are those of the code, and run."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from command_line import POOLED, CommandLine, Tables
from exchanges import PAGE as EXCHANGES
from exchanges import page as exchanges_page
from flwr.app import Context, Message
from options_page import PAGE as OPTIONS
from options_page import PAGES
from options_page import page as options_page
from promises import PAGE, ROOT, marks, promises
from promises import page as claims

from fedkern_flwr import strategies
from fedkern_flwr.clients import HybridKernelClient, serve
from fedkern_flwr.simulations import InProcessGrid
from fedkern_flwr.simulations.cli.main import app
from fedkern_flwr.simulations.lab.presets import NAMES
from fedkern_flwr.simulations.methods.registry import METHODS
from fedkern_flwr.tables import load_table

DOCS, COMMANDS = ROOT / "docs", CommandLine(ROOT)
README, RESULTS = ROOT / "README.md", ROOT / "benchmarks/results/README.md"

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no source tree here")


def pages() -> Iterator[Path]:
    """Yield all Markdown that people read."""
    yield from sorted(ROOT.glob("*.md"))
    yield from sorted(DOCS.rglob("*.md"))
    yield from (ROOT / "benchmarks/README.md", RESULTS)
    yield from sorted(ROOT.glob("simulations/apps/*/README.md"))


@lru_cache
def text_of(page: Path) -> str:
    """Return a page without its code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


@lru_cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", text_of(page), flags=re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        while slug in found:
            slug += "-1"
        found.add(slug)
    return found


def links(page: Path) -> list[str]:
    """Return the targets of links and pictures that are no addresses."""
    targets = re.findall(r"\]\(([^)\s]+)\)", text_of(page))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def test_links_lead_somewhere_and_every_picture_is_shown_and_told_in_words() -> None:
    shown: set[Path] = set()
    for page in pages():
        for target in links(page):
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            assert path.exists(), f"{page}: {target} does not exist"
            if anchor and path.suffix == ".md":
                assert anchor in anchors(path), f"{page}: {target} has no such heading"
        for alt, target in re.findall(r"!\[([^]]*)\]\(([^)]+)\)", text_of(page)):
            assert len(alt.split()) >= 2, f"{page.name}: {target} has no alternative text"
            shown.add((page.parent / target).resolve())
    drawn = {*DOCS.glob("pictures/*.svg"), *DOCS.glob("images/*.png")}
    assert drawn
    assert drawn <= shown, f"nobody sees {sorted(p.name for p in drawn - shown)}"


def test_every_page_is_in_the_table_of_contents() -> None:
    listed: set[Path] = set()
    for page in (DOCS / "index.md", DOCS / "api/index.md"):
        for body in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), flags=re.M | re.S):
            names = [line for line in body.splitlines() if line and not line.startswith(":")]
            listed |= {(page.parent / name).resolve() for name in names}
    found = [path for ending in ("md", "rst", "ipynb") for path in DOCS.rglob(f"[!.]*.{ending}")]
    assert {path.with_suffix("") for path in found} - {DOCS / "index"} == listed


# -- commands


def commands() -> dict[str, set[str]]:
    """Return command line -> the pages that print it."""
    found: dict[str, set[str]] = {}
    for page in [README, RESULTS, *sorted(DOCS.rglob("*.md"))]:
        text = page.read_text("utf-8").replace("\\\n", " ")
        lines = re.findall(r"^(?:\$ )?(fedkern [a-z].*)$", text, flags=re.M)
        lines += re.findall(r"`(fedkern (?:run|compare|predict|deploy-local|audit) [^`]*)`", text)
        for line in lines:
            found.setdefault(line, set()).add(page.name)
    return found


def unknown(line: str) -> str:
    """Return what `fedkern` does not know of a command line, or nothing."""
    own = "kernel-pca"  # stands for the method that a reader of a page writes
    words = [w for w in shlex.split(line, comments=True)[1:] if w not in ("...", "|")]
    words = [own if w == "my-method" and words[0] != "new-method" else w for w in words]
    command: click.Command = app
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name.isupper():  # stands for any
            return ""
        found = command.commands.get(name)
        if found is None:
            return f"no command {name}"
        command = getattr(found, "loaded", found)
    there = [p for p in command.params if getattr(p, "help", "")]  # those that went have none
    names = {o for p in there for o in (*p.opts, *p.secondary_opts)} | {"--help"}
    missing = [word for word in words if word.startswith("--") and word not in names]
    if missing:
        return f"no option {missing[0]}"
    if command.name == "compare" and words and re.fullmatch(r"[a-z][a-z0-9-]+", words[0]):
        return "" if words[0] in (*NAMES, "kernel-pca", "papers") else f"no preset {words[0]}"
    return ""


def test_commands_on_the_pages_exist() -> None:
    found = commands()
    assert len(found) > 30
    wrong = {line: (unknown(line), pages) for line, pages in found.items() if unknown(line)}
    assert not wrong


WRONG = {"fedkern rnu fed-cg": "no command rnu", "fedkern compare table1": "no preset table1"}
WRONG |= {"fedkern run fed-cg --landmark 3": "no option --landmark"}


@pytest.mark.parametrize(("line", "what"), WRONG.items())
def test_what_is_wrong_is_noticed(line: str, what: str) -> None:
    assert unknown(line) == what


# -- methods

HEADINGS = ["What it computes", "When to use it", "Quick start", "Protocol"]
HEADINGS += ["What each party sees", "Limits"]


def sections(page: str) -> dict[str, str]:
    """Return heading -> text of the sections of a page."""
    parts = re.split(r"^## (.*)$", (DOCS / f"{page}.md").read_text("utf-8"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(text: str, head: str) -> list[list[str]]:
    """Return the cells of the table with this head."""
    body = text.split(head, 1)[1].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in body]
    assert all(len(row) == head.count("|") - 1 for row in cells), "a bar in a cell"
    return cells


@pytest.mark.parametrize("page", PAGES)
def test_all_methods_have_a_page_with_the_same_headings_and_their_options(page: str) -> None:
    assert set(" ".join(methods for _, methods in PAGES.values()).split()) == set(METHODS)
    assert list(sections(page)) == HEADINGS
    assert "(options.md#" in sections(page)["Quick start"]
    blocks = re.findall(r"```python\n(.*?)```", sections(page)["Quick start"], flags=re.S)
    assert blocks
    for block in blocks:
        compile(block, page, "exec")
        imports = re.findall(r"^from fedkern_flwr.*$", block, flags=re.M)
        assert imports
        exec("\n".join(imports), {})


#: Figures that every `make test` computes; the others take long.
QUICK = ("fed-cg-0", "fed-cg-1", "online-methods-2", "online-methods-3")


def expectations() -> list[Any]:
    """Return the commands whose figures the pages state."""
    head = "| command | metric | value |"
    return [
        pytest.param(*row, id=name, marks=() if name in QUICK else pytest.mark.long)
        for page in PAGES
        if (DOCS / f"{page}.md").is_file()
        for number, row in enumerate(rows(sections(page)["Quick start"], head))
        for name in [f"{page}-{number}"]
    ]


@pytest.mark.parametrize(("command", "metric", "value"), expectations())
def test_expected_results_are_what_the_commands_print(command, metric, value, tmp_path):
    words = shlex.split(command.strip("`"))
    assert words[:2] == ["fedkern", "run"]
    found = COMMANDS.result(*words[2:], out=str(tmp_path / "run"))["metrics"][metric.strip("`")]
    assert f"{found:.4f}" == value


def test_the_picture_is_that_of_the_imports() -> None:
    house = runpy.run_path(str(ROOT / "benchmarks/house.py"))
    assert house["picture"]() in (ROOT / "CONTRIBUTING.md").read_text("utf-8")


# -- promises: each has a fault and a test that notices it, and the page of claims has them all


def test_every_promise_has_a_fault_and_a_test_and_every_mark_a_promise() -> None:
    made = promises()
    assert {name for name, _ in marks()} <= made.keys()
    assert len(made) <= 200
    for one in made.values():
        text = Path(ROOT, one.file).read_text(encoding="utf-8")
        assert text.count(one.find) == 1, f"the fault of {one.name} does not apply"
        assert one.replace != one.find
        assert one.tests, f"no test carries the mark of {one.name}"
        assert one.says.endswith("."), one.name


def test_the_page_of_claims_is_made_from_them() -> None:
    assert PAGE.read_text(encoding="utf-8") == claims()


def test_the_page_of_exchanges_is_made_from_the_messages() -> None:
    assert EXCHANGES.read_text(encoding="utf-8") == exchanges_page()


def test_the_page_of_options_is_made_from_the_declarations() -> None:
    assert OPTIONS.read_text(encoding="utf-8") == options_page()


# -- the README: its blocks run as they are printed, every method leads to a page and to figures


TABLED = ("FedCG", "FDSKL", "SecureGram", "FedCFK", "HierarchicalSVM", "POFMKL")


def methods() -> list[list[str]]:
    """Return the cells of the table of methods."""
    body = README.read_text("utf-8").split("\n## Methods\n")[1].split("\n|---")[1].split("\n\n")[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in body.splitlines()[1:]]


def python_blocks() -> list[str]:
    """Return the examples in Python."""
    return re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), flags=re.S)


def patients(rows: int = 240) -> dict[str, Any]:
    """Return columns of patients and a label that follows from them."""
    x = np.random.default_rng(0).random((rows, 6)).round(4)
    ill = (x[:, 0] + x[:, 2] + x[:, 4] > 1.5).astype(int).tolist()
    columns = dict(zip(["age", "dose", "iron", "salt", "gene", "cell"], x.T.tolist(), strict=True))
    return {"patient": [f"p{k}" for k in range(rows)], **columns, "ill": ill}


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
    _, server, client = python_blocks()
    every = patients()
    Path("key").write_text("5e" * 32)
    files: dict[int, dict[str, Any]] = {}
    for k, rows in enumerate((range(120), range(120, 240))):
        for name, own in (("data", rows[:90]), ("test-data", rows[90:])):
            file = files.setdefault(k, {"alignment-key": "key"})[name] = f"{k}-{name}.csv"
            Tables.write(file, part(every, "patient age dose ill", slice(own[0], own[-1] + 1)))
    for k, names in ((2, "patient iron salt"), (3, "patient gene cell")):
        files[k] = {"data": f"{k}.csv"}
        Tables.write(f"{k}.csv", part(every, names, slice(None)))
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


def typed() -> list[str]:
    """Return the lines of the blocks for a shell, without their comments."""
    text = "\n".join(re.findall(r"```console\n(.*?)```", README.read_text("utf-8"), flags=re.S))
    lines = re.findall(r"^\$ (.*)", text, re.M)
    return [shlex.join(shlex.split(line, comments=True)) for line in lines]


def test_every_target_of_make_is_there() -> None:
    targets = {line.split()[1] for line in typed() if line.startswith("make ")}
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
    named = [re.findall(r"`(\w+)`", row[1])[-1] for row in methods()]
    assert tuple(named) == TABLED
    assert set(named) <= set(strategies.__all__)
    for row in methods():
        anchors = re.findall(r"\(benchmarks/results/README\.md#([\w-]+)\)", row[-1])
        assert anchors, row[1]
        for anchor in anchors:
            typed = re.findall(r"`fedkern compare ([\w-]+)", section(anchor))
            assert typed, f"{anchor} states no command"
            assert set(typed) <= set(NAMES), anchor


# -- the code blocks of README, and of the pages of methods, run as they are printed


# Python runs in an empty folder, lines of a console in one with tables of the names that the pages
# have. Left out is what a comment above a block says: ``<!-- not run by the tests: why -->``. The
# quick start is in ``test_long_pages.py``.
FILES = {name: ROOT / f"docs/{name}.md" for name in [*PAGES, "streams"]}
FILES["README"] = ROOT / "README.md"
BLOCK = re.compile(
    r"^(?:<!-- not run by the tests: ([^\n]*) -->\n)?```(\w*)\n(.*?)^```", re.M | re.S
)
#: Of README's ten lines two are the sides of a Flower app: a test above runs them.
SIDES = "app = "


@dataclass(frozen=True)
class Block:
    """A block, and why it is left out."""

    page: str
    language: str
    text: str
    left_out: str = ""


def blocks() -> list[Block]:
    """Return the blocks of all pages."""
    texts = {page: path.read_text("utf-8") for page, path in FILES.items() if path.is_file()}
    return [Block(p, m[2], m[3], m[1] or "") for p, t in texts.items() for m in BLOCK.finditer(t)]


def test_what_is_left_out_is_little() -> None:
    left = [(one.page, one.left_out) for one in blocks() if one.left_out]
    assert left == [
        ("online-methods", "minutes, data of others, servers"), ("kernel-pca", "servers"),
        ("streams", "waits for rows"), ("README", "minutes"), ("README", "minutes"),
        ("README", "servers, minutes"),
    ]  # fmt: skip


PYTHON = [one for one in blocks() if one.language == "python" and SIDES not in one.text]


@pytest.mark.parametrize("block", PYTHON, ids=[f"{one.page}-{k}" for k, one in enumerate(PYTHON)])
def test_python_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, block.page, "exec"), {})


def make_tables() -> None:
    """Write tables of the names that the pages have, one of them with text and gaps."""
    rng, every = np.random.default_rng(0), patients(120)
    every |= {"sex": ["F", "M"] * 60, "hospital": [f"h{k % 3}" for k in range(120)]}
    every |= {"customer": every["patient"], "outcome": every["ill"], "default": every["ill"]}
    six, whole = "age dose iron salt sex gene", slice(None)
    for name, names, rows in (
        ("patients", f"patient hospital {six} outcome", whole),
        ("customers", f"customer {six} default", whole), ("new", f"patient hospital {six}", whole),
        ("new-patients", f"patient {six} hospital", slice(50)),
        ("new-customers", f"customer {six}", slice(50)),
        ("north", "patient age dose outcome", slice(60)),
        ("south", "patient age dose outcome", slice(60, None)),
        ("lab", "patient iron salt gene", whole),
    ):  # fmt: skip
        Tables.write(f"{name}.csv", part(every, names, rows))
    hours = rng.random((1200, 3))
    columns = {name: hours[:, k].tolist() for k, name in enumerate("abc")}
    Tables.write("weather.csv", {**columns, "temp": np.sin(hours.sum(axis=1)).tolist()})
    films = [(u, i) for u in range(24) for i in range(1, 13) if rng.random() < 0.5]
    lines = [f"{u}\t{i}\t{rng.integers(1, 6)}\t{1000 * i + u}" for u, i in films]
    Path("u.data").write_text("\n".join(lines) + "\n")
    Path("ratings-of-new-users.csv").write_text("user,item\n" + "\n".join(
        f"new-{u},{i}" for u, i in films[:60]))  # fmt: skip


def lines(page: str) -> list[str]:
    """Return what is typed on a page."""
    shown = [one.text for one in blocks() if one.page == page and one.language == "console"
             and not one.left_out]  # fmt: skip
    return re.findall(r"^\$ (.*)$", "\n".join(shown), flags=re.M)


@pytest.mark.parametrize("page", FILES)
def test_what_is_typed_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_tables()
    for line in lines(page):
        _, *words = shlex.split(line, comments=True)
        rounds = words[0] == "run" and ("--rounds" in words or "hierarchical-svm" in words)
        checked = words[0] == "run" and words[1] in POOLED
        few = ["--rounds", "6"] * rounds  # of up to 200
        code, _, err = COMMANDS(*words, *few, *["--no-check-pooled"] * checked)
        assert code == 0, (line, err)

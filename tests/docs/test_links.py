"""Links between pages, anchors and pictures: what they name is there, on GitHub and on the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no source tree here")


def pages() -> Iterator[Path]:
    """Yield all Markdown that people read."""
    yield from sorted(ROOT.glob("*.md"))
    yield from sorted(DOCS.rglob("*.md"))
    yield ROOT / "benchmarks/README.md"
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


@pytest.mark.parametrize("page", list(pages()), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{target} does not exist"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{target} has no such heading"


def test_pictures_say_in_words_what_they_show() -> None:
    for page in pages():
        for alt, target in re.findall(r"!\[([^]]*)\]\(([^)]+)\)", text_of(page)):
            assert len(alt.split()) >= 2, f"{page.name}: {target} has no alternative text"


def test_every_picture_is_shown() -> None:
    shown = {
        (page.parent / target).resolve()
        for page in pages()
        for target in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text_of(page))
    }
    drawn = {*DOCS.glob("pictures/*.svg"), *DOCS.glob("images/*.png")}
    assert drawn
    assert drawn <= shown, f"nobody sees {sorted(p.name for p in drawn - shown)}"


def test_every_page_is_in_the_table_of_contents() -> None:
    listed: set[Path] = set()
    for page in (DOCS / "index.md", DOCS / "api/index.md"):
        for body in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), flags=re.M | re.S):
            names = [line for line in body.splitlines() if line and not line.startswith(":")]
            listed |= {(page.parent / name).resolve() for name in names}
    suffixes = {".md", ".rst", ".ipynb"}
    found = {
        path.with_suffix("")
        for path in DOCS.rglob("*")
        if path.suffix in suffixes and not path.name.startswith(".")
    }
    assert found - {DOCS / "index"} == listed

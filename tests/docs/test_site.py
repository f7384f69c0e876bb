"""The site: built without warnings, complete, and without anything from the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("myst_nb")
pytest.importorskip("furo")

DOCS = Path(__file__).resolve().parents[2] / "docs"
PUBLIC = (
    "",
    ".strategies",
    ".clients",
    ".simulations",
    ".method",
    ".secure_aggregation",
    ".secure_sum",
    ".wire",
    ".tables",
)

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no source tree here")


def build(out: Path) -> None:
    """Build the site as ``make docs`` does, but for the outputs of the tutorials."""
    command = ["-m", "sphinx", "-q", "-W", "--keep-going", "-D", "nb_execution_mode=off"]
    done = subprocess.run(
        [sys.executable, *command, str(DOCS), str(out)],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=out,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def html(site: Path) -> dict[str, str]:
    """Return the pages."""
    return {p.relative_to(site).as_posix(): p.read_text("utf-8") for p in site.rglob("*.html")}


def check_nothing_is_loaded_from_the_network(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe|source|video|audio)\b[^>]*\ssrc=[\"'](?:https?:)?//[^\"']+"
        r"|<link\b[^>]*\shref=[\"'](?:https?:)?//[^\"']+"
    )
    for name, text in html(site).items():
        assert not loads.findall(text), name
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet


def check_public_names_are_in_the_reference(site: Path) -> None:
    text = "".join(page for name, page in html(site).items() if name.startswith("api/"))
    found = {full.rpartition(".")[2] for full in re.findall(r'id="(fedkern_flwr[\w.]+)"', text)}
    for package in PUBLIC:
        missing = set(import_module(f"fedkern_flwr{package}").__all__) - found
        assert not missing, f"fedkern_flwr{package}"


def check_links_of_pages_stay_in_the_site(site: Path) -> None:
    pages = html(site)
    for name, text in pages.items():
        for target in re.findall(r'<a class="[^"]*internal[^"]*" href="([^"#]+)', text):
            path = (site / name).parent / target
            assert path.resolve().exists(), f"{name} -> {target}"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_site_is_built_without_warnings_and_complete(tmp_path: Path) -> None:
    build(tmp_path)
    check_nothing_is_loaded_from_the_network(tmp_path)
    check_public_names_are_in_the_reference(tmp_path)
    check_links_of_pages_stay_in_the_site(tmp_path)

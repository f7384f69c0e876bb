"""Sites of all apps, and lines with which they refuse."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import refusals
from app_sites import SITES, Given, Import, Refuses, Site

from fedkern_flwr.simulations.apps import node


@pytest.fixture
def make_site(tmp_path: Path, import_app: Import) -> Callable[..., Site]:
    """Return a function that makes a site by its name."""
    return lambda name: SITES[name](tmp_path, import_app)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """Return what tells with which arguments a site builds the client of a node."""
    real = node.client_maker

    def maker(client: Any, *arguments: Any, **more: Any) -> Any:
        return real(lambda context, **found: found, *arguments, **more)

    def found(site: Site, *arguments: Any, **more: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(node, "client_maker", maker)
            return site.client(*arguments, **more)

    return found


@pytest.fixture
def refuses() -> Refuses:
    """Return what runs something that is refused with a code and returns the line."""

    def found(code: str, do: Callable[..., Any], *arguments: Any, **more: Any) -> str:
        text = str(refusals.refuses(code, do, *arguments, **more))
        assert not re.search(r"(patient|person) \d|s3cret|film-|007", text)
        return text

    return found

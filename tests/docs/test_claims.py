"""Promises: each has a fault and a test that notices it, and the page of claims has them all."""

from __future__ import annotations

from pathlib import Path

import pytest
from promises import PAGE, ROOT, marks, page, promises

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="no source tree here")
MOST = 200


def test_every_promise_has_a_fault_and_a_test() -> None:
    made = promises()
    assert len(made) <= MOST
    for one in made.values():
        text = Path(ROOT, one.file).read_text(encoding="utf-8")
        assert text.count(one.find) == 1, f"the fault of {one.name} does not apply"
        assert one.replace != one.find
        assert one.tests, f"no test carries the mark of {one.name}"
        assert one.says.endswith("."), one.name


def test_every_mark_is_of_a_promise() -> None:
    assert {name for name, _ in marks()} <= set(promises())


def test_the_page_of_claims_is_made_from_them() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()

"""Options that went are ignored at their old defaults, however these are written."""

from __future__ import annotations

from typing import Any

import pytest

from fedkern_flwr.errors import FedKernError
from fedkern_flwr.removed import REMOVED, take_out

WENT = [
    (method, name, row.places.split()[0], default)
    for method, rows in REMOVED.items()
    for name, row in rows.items()
    for default in row.defaults
]


def spellings(default: Any) -> list[Any]:
    """Return what a user may write for a default."""
    if not isinstance(default, bool | int | float):
        return [default]
    whole = [int(default)] if isinstance(default, float) and default.is_integer() else []
    return [default, str(default), *whole]


@pytest.mark.parametrize(("method", "name", "place", "default"), WENT)
def test_an_old_default_is_ignored(method: str, name: str, place: str, default: Any) -> None:
    for value in spellings(default):
        assert take_out(method, {name: value, "other": 1}, place=place) == {"other": 1}
    with pytest.raises(FedKernError):
        take_out(method, {name: "of no release"}, place=place)

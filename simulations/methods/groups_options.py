"""Options of HierarchicalSVM that are read from text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedkern_flwr.errors import OptionError

from .base import same_number

USERS, GROUPS = 20, 2  # by default


def read_numbers(name: str, text: str | None, kind: Callable[[str], Any]) -> list[Any] | None:
    """Read numbers separated by commas.

    Raises
    ------
    OptionError
    """
    if text is None:
        return None
    try:
        return [kind(number) for number in text.split(",")]
    except ValueError:
        raise OptionError(
            f"{name} is {text!r}", remedy="give numbers separated by commas, such as 10,10"
        ) from None


def count_users(values: Mapping[str, Any], sizes: list[int] | None) -> dict[str, int]:
    """Return the numbers of users and groups, which may be named in several ways.

    Raises
    ------
    OptionError
        They contradict each other.
    """
    users, groups = same_number(values, "users"), values["groups"]
    if sizes is not None and groups not in (None, len(sizes)):
        raise OptionError(
            f"{len(sizes)} group sizes are not {groups} groups", remedy="leave out --groups"
        )
    if users is None:
        users = USERS if sizes is None else sum(sizes)
    if groups is None:
        layers = values["architecture"] == "hierarchical"
        groups = len(sizes) if sizes is not None else GROUPS if layers else 1
    return {"users": users, "groups": groups}

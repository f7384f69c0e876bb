"""The methods that the command line knows, and the family of each."""

from __future__ import annotations

from typing import Any

from fedkern_flwr.errors import OptionError

from ..strategies import PhaseStrategy
from .data import Settings
from .families.base import Family
from .families.gram import GramFamily
from .families.hierarchical import HierarchicalFamily
from .families.hybrid import HybridFamily
from .families.online import OnlineFamily
from .families.recommender import RecommenderFamily
from .families.rows import RowsFamily
from .families.vertical import VerticalFamily
from .options import Option, options

__all__ = [
    "FAMILIES",
    "METHODS",
    "Option",
    "family",
    "family_with",
    "method",
    "options",
]

#: A new family is registered here.
FAMILIES: tuple[Family[Any, Any], ...] = (
    OnlineFamily(),
    HybridFamily(),
    VerticalFamily(),
    GramFamily(),
    RecommenderFamily(),
    HierarchicalFamily(),
    RowsFamily(),
)

METHODS: dict[str, type[PhaseStrategy]] = {
    cls.method: cls for family in FAMILIES for cls in family.strategies
}


def method(name: str) -> type[PhaseStrategy]:
    """Return the strategy class of a method.

    Raises
    ------
    OptionError
        Unknown method.
    """
    if name not in METHODS:
        raise OptionError(f"there is no method {name!r}", remedy=f"choose of {', '.join(METHODS)}")
    return METHODS[name]


def family(name: str) -> Family[Any, Any]:
    """Return the family of a method.

    Raises
    ------
    OptionError
        Unknown method.
    """
    strategy = method(name)
    return next(family for family in FAMILIES if strategy in family.strategies)


def family_with(settings: Settings) -> Family[Any, Any]:
    """Return the family whose data has settings of this kind."""
    return next(family for family in FAMILIES if family.settings is type(settings))

"""The methods that the command line knows, and the family of each."""

from __future__ import annotations

from typing import Any

from fedkern_flwr.errors import OptionError

from ...strategies import PhaseStrategy
from ..run.data import Settings
from ..run.options import Option, options
from .base import Family
from .gram import GramFamily
from .groups import HierarchicalFamily
from .hybrid import HybridFamily
from .online import OnlineFamily
from .recommender import RecommenderFamily
from .rows import RowsFamily
from .vertical import VerticalFamily

__all__ = ["FAMILIES", "METHODS", "Option", "family", "family_with", "method", "options"]

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

"""The methods that the command line knows, and the family of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedkern_flwr.errors import OptionError

from ..strategies import PhaseStrategy
from .families.base import Family
from .families.gram import GramFamily
from .families.hierarchical import HierarchicalFamily
from .families.hybrid import HybridFamily
from .families.online import OnlineFamily
from .families.recommender import RecommenderFamily
from .families.vertical import VerticalFamily
from .options import Option, options

__all__ = ["FAMILIES", "METHODS", "Option", "family", "family_of", "method", "options"]

#: A new family is registered here.
FAMILIES: tuple[Family[Any, Any], ...] = (
    OnlineFamily(),
    HybridFamily(),
    VerticalFamily(),
    GramFamily(),
    RecommenderFamily(),
    HierarchicalFamily(),
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


def family_of(names: Iterable[str]) -> Family[Any, Any]:
    """Return the family of some methods, of which any may be reference methods.

    Raises
    ------
    OptionError
        Unknown method, or methods that no single family has.
    """
    names = tuple(names)
    for family in FAMILIES:
        own = {cls.method for cls in family.strategies} | family.references.keys()
        if own.issuperset(names):
            return family
    known = set(METHODS).union(*(family.references for family in FAMILIES))
    for name in names:
        if name not in known:
            raise OptionError(f"there is no method {name!r}", remedy="see fedkern run --help")
    raise OptionError(
        f"no family has all of {', '.join(dict.fromkeys(names))}", remedy="use a section for each"
    )

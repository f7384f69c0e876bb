"""Figures of comparisons by name, for each family of methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...methods.base import Family
from ...methods.gram import GramFamily
from ...methods.groups import HierarchicalFamily
from ...methods.hybrid import HybridFamily
from ...methods.online import OnlineFamily
from ...methods.recommender import RecommenderFamily
from ...methods.vertical import VerticalFamily
from . import groups, hybrid, online, recommender, vertical
from .common import DrawAcross, DrawFigure, traffic
from .costs import ACROSS, COSTS

_OF_TABLES = {"errors-box": vertical.FIGURES["errors-box"], "bytes": traffic, **COSTS}
_FIGURES: dict[type[Family[Any, Any, Any]], Mapping[str, DrawFigure]] = {
    OnlineFamily: online.FIGURES,
    HybridFamily: {**_OF_TABLES, **hybrid.FIGURES},
    VerticalFamily: vertical.FIGURES,
    GramFamily: _OF_TABLES,
    RecommenderFamily: recommender.FIGURES,
    HierarchicalFamily: {**_OF_TABLES, **groups.FIGURES},
}
_ACROSS: dict[type[Family[Any, Any, Any]], Mapping[str, DrawAcross]] = {
    HybridFamily: ACROSS,
    VerticalFamily: vertical.ACROSS,
    HierarchicalFamily: groups.ACROSS,
}


def figures_of(family: Family[Any, Any, Any]) -> Mapping[str, DrawFigure]:
    """Return the figures that show a comparison on one data set."""
    return _FIGURES.get(type(family), {})


def across_of(family: Family[Any, Any, Any]) -> Mapping[str, DrawAcross]:
    """Return the figures over the comparisons of a section on several data sets."""
    return _ACROSS.get(type(family), {})

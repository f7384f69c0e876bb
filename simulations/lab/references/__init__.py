"""Methods to compare with that need all data in one place, for each family; no command runs them.

A family's :class:`Prepared` has :meth:`~Prepared.pooled` data for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...methods.base import Family
from ...methods.gram import GramFamily
from ...methods.groups import HierarchicalFamily
from ...methods.groups_oracle import linear_svm
from ...methods.hybrid import HybridFamily
from ...methods.recommender import RecommenderFamily
from ...methods.references import ALONE, TWO_TREES
from ...methods.vertical import VerticalFamily
from ...run.entries import Reference
from . import vertical
from .baselines import alone, constant
from .groups import GROUPS
from .hybrid import HYBRID
from .peers import PEERS
from .recommenders import RECOMMENDERS

_TABLES: Mapping[str, Reference] = {
    **vertical.VERTICAL,
    "constant": constant,
    ALONE: alone,
    **PEERS,
}

REFERENCES: dict[type[Family[Any, Any, Any]], Mapping[str, Reference]] = {
    HybridFamily: {**HYBRID, **_TABLES},
    VerticalFamily: {TWO_TREES: vertical.two_trees, **_TABLES},
    GramFamily: _TABLES,
    RecommenderFamily: RECOMMENDERS,
    HierarchicalFamily: {"linear-svm": linear_svm, **GROUPS, **_TABLES},
}


def references_of(family: Family[Any, Any, Any]) -> Mapping[str, Reference]:
    """Return the methods by name that a family's are compared with."""
    return REFERENCES.get(type(family), {})

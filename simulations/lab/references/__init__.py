"""Methods to compare with that need all data in one place, for each family; no command runs them.

A family's :class:`Prepared` has :meth:`~Prepared.pooled` data for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...methods.base import Family
from ...run.entries import Reference
from .papers import GROUPS, HYBRID, RECOMMENDERS, VERTICAL
from .peers import PEERS
from .tables import TABLES

_TABLES = {**TABLES, **PEERS}
#: Method of a family -> what it is compared with.
REFERENCES: Mapping[str, Mapping[str, Reference]] = {
    "fed-cg": {**HYBRID, **_TABLES},
    "fdskl": {**VERTICAL, **_TABLES},
    "secure-gram": _TABLES,
    "fed-cfk": RECOMMENDERS,
    "hierarchical-svm": {**GROUPS, **_TABLES},
}


def references_of(family: Family[Any, Any, Any]) -> Mapping[str, Reference]:
    """Return the methods by name that a family's are compared with."""
    return REFERENCES.get(family.strategies[0].method, {})

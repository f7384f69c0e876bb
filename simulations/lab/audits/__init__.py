"""Audits: the known attacks against a run, and what they recover against chance."""

from __future__ import annotations

from . import gram, hybrid, online, vertical
from . import groups as hierarchical
from .engine import audit
from .plan import Plan, Variant
from .report import Audited

__all__ = ["PLANS", "Audited", "Plan", "Variant", "audit", "plan_of"]

#: How the methods of each family are audited.
PLANS: tuple[Plan, ...] = (
    online.PLAN,
    hybrid.PLAN,
    vertical.PLAN,
    gram.PLAN,
    hierarchical.PLAN,
)


def plan_of(method: str) -> Plan:
    """Return how a method is audited."""
    return next(plan for plan in PLANS if method in plan.methods)

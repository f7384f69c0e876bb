"""What a node checks before it answers: pure functions that the base of all clients calls.

An order, the options that the node was started with, its policy and what it has answered before
go in; nothing comes out, or a :class:`~fedkern_flwr.errors.RefusedError` of one line that names
the rule. No refusal depends on a value of the node's table, and none quotes one.

* :mod:`.policy`: what the node's owner allows.
* :mod:`.counting`: how many numbers may be released about how many unknowns.
* :mod:`.orders`: who may open a sum, of which numbers, over which cohort.
"""

from __future__ import annotations

from .orders import (
    check_cohort,
    check_order,
    check_own_rows,
    check_run,
    check_selection,
    check_size,
    refusal,
)
from .policy import NodePolicy

__all__ = [
    "NodePolicy",
    "check_cohort",
    "check_order",
    "check_own_rows",
    "check_run",
    "check_selection",
    "check_size",
    "refusal",
]

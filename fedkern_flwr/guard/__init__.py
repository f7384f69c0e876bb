"""What a node checks before it answers, counts and remembers.

An order, the options that the node was started with, its policy and what it has answered before
go in; nothing comes out, or a :class:`~fedkern_flwr.errors.RefusedError` of one line that names
the rule. No refusal depends on a value of the node's table, and none quotes one. A client asks
through its base (:mod:`fedkern_flwr.node.guarded`), which holds the policy and the ledger.

* :mod:`.policy`: what the node's owner allows: who may open a sum, of what, over which cohort.
* :mod:`.counting`: how many numbers may be released about how many unknowns, within a run.
* :mod:`.freeze`, :mod:`.cells`: blocks of rows, and what was opened about them over all runs.
* :mod:`.opened`: what sums and noise have cost, in the ledger.
* :mod:`.ledger`: the file of all that, which a run is opened, entered and ended in.
"""

from __future__ import annotations

from ..errors import refusal
from .policy import NodePolicy, check_selection, check_size

__all__ = ["NodePolicy", "check_selection", "check_size", "refusal"]

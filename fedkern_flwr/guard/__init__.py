"""Check requests to a node, count what it has released, and remember both.

The inputs are a request, the node's start options, its policy and its earlier answers. The result
is nothing, or a one-line :class:`~fedkern_flwr.errors.RefusedError` that names the rule. No refusal
depends on values in the node's table, and none quotes one. Clients use the guard through
:mod:`fedkern_flwr.node.guarded`.

* :mod:`.policy`: what the node's owner allows.
* :mod:`.counting`: the release limit within a run.
* :mod:`.freeze`, :mod:`.cells`: blocks of rows, and the release limit over all runs.
* :mod:`.opened`: what sums and noise have cost.
* :mod:`.ledger`: the file that keeps all this.
"""

from __future__ import annotations

from ..errors import refusal
from .policy import NodePolicy, check_selection, check_size

__all__ = ["NodePolicy", "check_selection", "check_size", "refusal"]

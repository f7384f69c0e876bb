"""Read a node's own ratings. CHANGE THIS if they need more preparation.

No error may repeat an id or a rating.
"""

from __future__ import annotations

from typing import Any

from fedkern_flwr.interactions import Interactions, load_interactions


def own_table(path: str, **how: Any) -> Interactions:
    """Read ratings, or held-out ones; the app reads each file once.

    ``how`` has columns and the public catalogue of items; see
    :func:`fedkern_flwr.interactions.load_interactions`.
    """
    return load_interactions(path, **how)

"""What a deployed node reads from its own disk.

CHANGE THIS if your ratings need more preparation. No error may repeat an id or a rating.
"""

from __future__ import annotations

from typing import Any

from fedkern_flwr.interactions import Interactions, load_interactions


def own_table(path: str, **how: Any) -> Interactions:
    """Read ratings, or those held out; the app reads each file once.

    Parameters
    ----------
    path : str
        The file.
    **how
        What the app needs: columns, and the public catalogue of items; see
        :func:`fedkern_flwr.interactions.load_interactions`.
    """
    return load_interactions(path, **how)

"""What a deployed node reads from its own disk.

CHANGE THIS if your table needs more preparation.
"""

from __future__ import annotations

from typing import Any

from fedkern_flwr.tables import load_table
from fedkern_flwr.tables.table import Table


def own_table(path: str, **how: Any) -> Table:
    """Read a table, or that of the rows held out; the app reads each once.

    Features are scaled afterwards, if the node's configuration names ranges.

    Parameters
    ----------
    path : str
        The file.
    **how
        What the app needs: columns of ids and labels, whether there must be labels, and which
        classes there are; see :func:`fedkern_flwr.tables.load_table`.
    """
    return load_table(path, **how)

"""Data frames as clients take them: columns of numbers, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import TableError
from .table import how_many


def take_frame(x: Any, columns: Sequence[str] | None, party: str) -> tuple[Any, Any]:
    """Return the features of a data frame and the names of its columns; other features as they are.

    Parameters
    ----------
    x : array or data frame
        Of pandas, polars or pyarrow: what has the Arrow C stream or the DataFrame interchange
        protocol. A missing cell is NaN.
    columns : sequence of str or None
        Which columns of the frame are taken, in this order; all of them where none are named.
    party : str
        Whose features they are, for errors.

    Raises
    ------
    TableError
        A column is not there, or holds something else than numbers.
    """
    if not any(hasattr(x, name) for name in ("__arrow_c_stream__", "__dataframe__")):
        return x, columns
    from .arrow import frame_columns, read_columns  # loads PyArrow, which arrays do not need
    from .dialect import Dialect

    try:
        found = frame_columns(x)
        if columns:
            lacking = [name for name in columns if name not in found]
            if lacking:
                raise TableError(
                    f"the data frame lacks {how_many(len(lacking), 'column')}, "
                    f"the first is {lacking[0]!r}",
                    remedy="give rows and held-out rows the same columns",
                    code="FK-COLUMN-MISSING",
                )
            found = {name: found[name] for name in columns}
        how = (None, None, None, False, False, None, None, Dialect(), None)
        table = read_columns(found, "the data frame", *how)
    except TableError as error:
        raise TableError(error.problem, remedy=error.remedy, party=party, code=error.code) from None
    return table.x, table.columns

"""What a deployed node reads from its own disk: its table.

CHANGE THIS if your table needs more preparation.
"""

from __future__ import annotations

from functools import lru_cache

from fedkern_flwr.node_files import whole_rows
from fedkern_flwr.tables import Table, load_table


@lru_cache  # a process reads its tables once
def own_table(
    path: str,
    id_column: str | None,
    label: str | None,
    labelled: bool,
    classes: tuple[str, ...],
    missing: str,
    bare: bool,
    numbered: bool = False,
) -> Table:
    """Read a table, with labels if it is ``labelled``, perhaps without features if ``bare``.

    Of a text label ``classes`` are all there are. ``missing`` says what to do with rows that lack
    anything: ``error`` or ``drop-row``; of ``numbered`` rows none may be dropped.
    """
    table = load_table(
        path,
        id_column=id_column,
        label=label,
        labelled=labelled,
        classes=classes,
        missing="keep",
        bare=bare,
    )
    return whole_rows(table, path, missing, labels=labelled, numbered=numbered)

"""Read the configuration of a node, and the files that it names."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context

from .checkpoint import write_atomically
from .errors import OptionError, TableError
from .failure import unwritable
from .guard.policy import SIMULATION, read_policy
from .labels import are_numbers
from .tables.dialect import read_class_of
from .tables.table import Table

# -- a node's configuration, read again while its SuperNode and its runs continue
#
# A SuperNode reads its configuration once and gives every run a copy. A restart would interrupt its
# runs. So the process that keeps a node warm reads the file again on request. Every process that
# answers a message is a copy of it, and uses the latest configuration instead of the SuperNode's. A
# message in progress is not affected. An unusable file changes nothing. Files named in the
# configuration, such as tables and the policy, are read with every message anyway.

Config = dict[str, str | int | float | bool]

#: Who the node is and where it keeps what it remembers: to change these it is started again.
FIXED = ("partition-id", "num-partitions", "role", "group", "state-dir", SIMULATION)

#: File of a state-dir: the partition that owns the folder.
_OWNER = "partition"

_latest: Config | None = None


def read_config(file: Path) -> Config:
    """Read the file of ``--node-config``.

    Raises
    ------
    OptionError
        It cannot be read, has a value of another type than text, number or boolean, or names an
        invalid policy.
    """
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not TOML"
        code = "FK-FILE-READ" if isinstance(error, OSError) else "FK-FILE-FORMAT"
        raise OptionError(f"{file} cannot be read: {reason}", remedy="mend it", code=code) from None
    wrong = [key for key, value in found.items() if type(value) not in (str, int, float, bool)]
    if wrong:
        raise OptionError(
            f"{', '.join(wrong)} in {file.name} is neither text, number, true nor false",
            remedy="write one value per key, without tables and lists",
            code="FK-OPTION-TYPE",
        )
    if policy := found.get("policy"):
        read_policy(Path(str(policy)))
    return found


def reread_config(file: Path, before: Mapping[str, Any]) -> Config:
    """Read the file again; new copies of this process then use it.

    Parameters
    ----------
    file : Path
        The file of ``--node-config``.
    before : mapping
        The current configuration, which stays if this raises.

    Raises
    ------
    OptionError
        It cannot be used, or is that of another node.
    """
    global _latest
    found = read_config(file)
    other = [key for key in FIXED if found.get(key) != before.get(key)]
    if other:
        raise OptionError(
            f"{', '.join(other)} in {file.name} has changed",
            remedy="start the node again for that",
            code="FK-NODE-CHANGED",
        )
    _latest = found
    return found


def renew(context: Context) -> None:
    """Replace the configuration of a context by the one read last."""
    if _latest is not None:
        context.node_config = dict(_latest)


def claim_folder(state_dir: Path, partition: int) -> None:
    """Refuse a ``state-dir`` that another partition used first; mark a new one.

    Ledger and freeze belong to a partition. With another number a node would count its releases
    from zero. Two nodes in one folder would overwrite each other's files.
    """
    file, own = state_dir / _OWNER, f"{partition}\n"
    if not file.exists():
        try:
            write_atomically(file, own.encode(), private=True)
        except OSError as error:
            raise unwritable(error, f"partition {partition}") from None
    first = file.read_text()  # of two nodes that begin at the same time one is refused
    if first != own:
        raise OptionError(
            f"the state-dir of partition {partition} is that of partition {first.strip()[:9]}",
            remedy=f"set partition-id = {first.strip()[:9]}, or name a folder of its own, which "
            "remembers nothing of earlier runs",
            party=f"partition {partition}",
            code="FK-NODE-STATE",
        )


# -- what a node reads from its own disk, whatever its method: secrets, classes, whole rows


def read_secret(path: str | Path | None, name: str) -> bytes | None:
    """Read a secret from a file in hexadecimal; None without a file.

    ``name`` is its name in errors, such as ``"the alignment key"``.
    """
    try:
        return None if path is None else bytes.fromhex(Path(path).read_text())
    except (OSError, ValueError):
        raise OptionError(
            f"the file of {name} cannot be read",
            remedy="put 64 hexadecimal digits into it",
            code="FK-KEY-FILE",
        ) from None


def read_classes(text: str) -> tuple[str, ...]:
    """Return the names of all classes; text is sorted.

    Parameters
    ----------
    text : str
        Classes separated by commas, "" for none; or labels and classes, such as ``0=no,1=yes``.
    """
    names = tuple(dict.fromkeys(name for _, name in read_class_of(text)))
    return names if are_numbers(names) else tuple(sorted(names))


def check_predictions(node: Mapping[str, object], *, predicting: bool) -> None:
    """Refuse a node that must predict its test data and has no file for the predictions."""
    if predicting and "test-data" in node and "predictions" not in node:
        raise OptionError(
            "there is nowhere to write the predictions",
            remedy="name predictions in --node-config",
            code="FK-PREDICT-NOWHERE",
        )


def whole_rows(
    table: Table, path: str | Path, missing: str, *, labels: bool, numbered: bool = False
) -> Table:
    """Return the rows without NaN and empty ids.

    Parameters
    ----------
    table : Table
        The rows.
    path : path
        Its file, for errors.
    missing : {"error", "drop-row"}
        Refuse a table with incomplete rows, or drop these.
    labels : bool
        Whether a row needs a label.
    numbered : bool (default: False)
        Whether rows are known by their place in the file, so that none may be dropped.
    """
    if missing not in ("error", "drop-row"):
        raise OptionError(
            f"missing is {missing!r}",
            remedy="choose 'error' or 'drop-row'",
            code="FK-OPTION-CHOICE",
        )
    whole = np.isfinite(table.x).all(axis=1)
    if labels and table.y is not None:
        whole &= np.isfinite(table.y)
    if table.ids is not None and table.ids.dtype.kind == "U":
        whole &= table.ids != ""
    lacking, name = table.rows - int(whole.sum()), Path(path).name
    code = "FK-VALUES-MISSING"
    if np.isfinite(table.x).all() and (table.y is None or np.isfinite(table.y).all()):
        code = "FK-IDS-MISSING"
    elif np.isinf(table.x).any() and not np.isnan(table.x).any():
        code = "FK-VALUES-FINITE"
    what = "a value, a label or an id" if labels else "a value or an id"
    if lacking and missing == "error":
        raise TableError(
            f"{lacking} rows of {name} lack {what}",
            remedy='leave them out, or run with missing="drop-row"',
            code=code,
        )
    if lacking and numbered:
        raise TableError(
            f"{lacking} rows of {name} lack {what}, and rows without ids are known by their place",
            remedy="fill in these cells, or take the rows out of the files of all nodes concerned",
            code=code,
        )
    if lacking == table.rows:
        raise TableError(
            f"every row of {name} lacks {what}", remedy="fill in its cells", code="FK-VALUES-NOROW"
        )
    return table.take(whole) if lacking else table

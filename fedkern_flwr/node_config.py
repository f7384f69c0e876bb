"""A node's configuration, read anew while its SuperNode runs and runs go on.

A SuperNode reads its configuration once and hands a copy of it to every run. Restarted, it would
break off what it is doing. So it is left alone: whoever keeps a node warm reads the file again when
told to, and every process that answers a message is a copy of it and has what was read last, in
place of what the SuperNode hands over. A message that is being answered ends as it began. A file
that cannot be used changes nothing. Files that the configuration names, such as tables and the
policy, are read with every message anyway.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context

from .checkpoint import write_atomically
from .errors import OptionError
from .guard.policy import SIMULATION, read_policy
from .node.failures import unwritable

Config = dict[str, str | int | float | bool]

#: Who the node is and where it keeps what it remembers: to change these it is started again.
FIXED = ("partition-id", "num-partitions", "role", "group", "state-dir", SIMULATION)

#: File of a state-dir: the partition whose folder it is.
_OWNER = "partition"

_latest: Config | None = None


def read_config(file: Path) -> Config:
    """Read the file of ``--node-config``.

    Raises
    ------
    OptionError
        It cannot be read, holds something else than texts, numbers and truth values, or names a
        policy that is none.
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
    """Read the file again; from now on copies of this process answer with it.

    Parameters
    ----------
    file : Path
        The file of ``--node-config``.
    before : mapping
        The configuration that holds so far, and goes on to hold if this raises.

    Raises
    ------
    OptionError
        It cannot be used, or says that this is another node.
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
    """Put the configuration that was read last in place of the one that a context has."""
    if _latest is not None:
        context.node_config = dict(_latest)


def claim_folder(state_dir: Path, partition: int) -> None:
    """Refuse a ``state-dir`` that another partition used first; note who uses a new one.

    The ledger and the freeze in it belong to a partition. Under another number a node would count
    anew what it opens about the same rows. Two nodes in one folder would change each other's files.

    Raises
    ------
    OptionError
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

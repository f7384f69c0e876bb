"""The state of a run on the node's own disk: a node that is restarted goes on where it was.

Flower keeps a node's ``Context`` in the memory of its SuperNode, which a restart empties. So a node
of a deployment that has a ``state_dir`` writes its context to a file of the run before each reply
leaves, also a reply that is an error: what a message that failed has fixed stays fixed.

Why no request is answered twice with other masks or other values, whenever the node is killed:

* Before the file is written nothing has left the node. It has the state of the message before, and
  answers the request as if it came for the first time. What the ledger has entered meanwhile counts
  as it does for a run that is resumed: the same again is free, anything else is refused.
* After the file is written the request counts as answered, whether the reply left or not. A copy of
  it is refused by the number of its round, and the coordinator asks anew, with other masks. The
  last request of a run is the exception: its answer is kept and sent again, the same bytes.
* Where only the process that answers is killed, the SuperNode still has the state of the message
  before. It is older than the file, and the file is taken. Where the disk was full, the memory is
  newer, and stays.

A state is taken by the same node, partition and run of Flower only, and by the same session. A run
that is resumed is another run of Flower: it begins with new keys. Nothing that a message says
decides which of two states is taken, or a server could choose the older one. Only the node's own
administrator can put an old file back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context

from ..checkpoint import write_atomically
from ..errors import CheckpointError
from ..flower_compat import pack_context, unpack_context
from ..guard import RunRecord
from ..wire import DescribeRequest, Scalar
from ..wire.sums import BreakRequest, FinishRequest
from .failures import unwritable
from .reported import reported
from .session_state import SessionState
from .sums import has_state

_ENDS = (FinishRequest.phase, BreakRequest.phase)  # nothing is asked again after these
_NUMBER = "fedkern-number"  # record of a context: how often it was written
_HEAD = 8  # bytes of a number: a file begins with its run of Flower and that; the context follows


@contextmanager
def on_disk(context: Context, file: Path | None, config: Mapping[str, Scalar]) -> Iterator[None]:
    """Answer a message of a run with the state that the disk has, and keep what it becomes.

    Parameters
    ----------
    context : Context
        The node's.
    file : Path or None
        Where the state of the run is kept; None where it is not.
    config : mapping
        The scalars of the message.
    """
    if file is None:
        yield
        return
    session, ends = str(config.get("session", "")), config.get("phase") in _ENDS
    # Who resumes a run, of which the memory has nothing, opens it anew: its keys are new as well.
    resumes = config.get("phase") == DescribeRequest.phase and bool(config.get("nonces"))
    if not resumes or SessionState.load(context).session:
        with reported(context):
            _take(context, file, session)
    failed = True
    try:
        yield
        failed = False
    finally:
        with reported(context):
            try:
                _keep(context, file, session, failed=failed, ends=ends)
            except OSError as error:
                party = f"partition {context.node_config.get('partition-id')}"
                raise unwritable(error, party) from None


def _take(context: Context, file: Path, session: str) -> None:
    """Take the newest state of this run that the disk has, unless the memory has a newer one."""
    packed, newest = b"", _number(context)
    for one in (file, _last(file)):  # both are there if it was killed while it ended the run
        if one.is_file():
            with one.open("rb") as opened:
                run, number = (int.from_bytes(opened.read(_HEAD)) for _ in range(2))
                if run == context.run_id and number > newest:
                    packed, newest = opened.read(), number
    if not packed:
        return
    try:
        kept = unpack_context(packed)
    except ValueError:
        raise CheckpointError(
            "the state of the run on its disk is damaged",
            remedy="start the run again",
            code="FK-CHECKPOINT-DAMAGED",
        ) from None
    if (_who(kept), SessionState.load(kept).session) == (_who(context), session):
        context.state = kept.state


def _keep(context: Context, file: Path, session: str, *, failed: bool, ends: bool) -> None:
    """Write the state of the run; once it is over only its last answer, which holds no secret."""
    if SessionState.load(context).session != session or (failed and not file.exists()):
        return  # another run, or one that was refused when it was to be opened
    context.state[_NUMBER] = ConfigRecord({"number": _number(context) + 1})
    if has_state(context) or not RunRecord.load(context, session).secure:
        _write(file, context)
        return
    if ends:
        _remove(_last(file))
    elif not failed:
        _write(_last(file), context)
    _remove(file)


def forget_last(state_dir: Path | None, partition: int) -> None:
    """Remove the last answers of earlier runs, which nobody asks for when another run begins."""
    for file in [] if state_dir is None else state_dir.glob(f"*/partition-{partition}.last"):
        _remove(file)


def _remove(file: Path) -> None:
    """Remove a file, what is left where writing it was cut off, and the folder if it is empty."""
    for one in (file, *file.parent.glob(f".{file.name}.*.tmp")):
        one.unlink(missing_ok=True)
    with suppress(OSError):
        file.parent.rmdir()


def _write(file: Path, context: Context) -> None:
    """Write so that a power cut leaves the old state or the new, and its name with it."""
    head = b"".join(one.to_bytes(_HEAD) for one in (context.run_id, _number(context)))
    write_atomically(file, head + pack_context(context), private=True)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _last(file: Path) -> Path:
    return file.with_suffix(".last")


def _number(context: Context) -> int:
    record: Any = context.state.get(_NUMBER, {})
    return int(record.get("number", 0))


def _who(context: Context) -> tuple[object, ...]:
    return context.run_id, context.node_id, context.node_config.get("partition-id")

"""What a node remembers of a run between two messages, in memory and on its own disk."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context
from numpy.typing import NDArray

from ..checkpoint import write_atomically
from ..errors import CheckpointError
from ..flower_compat import held_in, held_record, pack_context, unpack_context
from ..guard import RunRecord
from ..wire import DescribeRequest, Scalar
from ..wire.sums import BreakRequest, FinishRequest
from .failures import reported, unwritable
from .sums import has_state

# -- what a node need not make again for the next message: Flower makes a client for each

Made = tuple[NDArray[Any], ...]


class Recent:
    """Arrays by a key that determines them, in the memory of this process.

    Parameters
    ----------
    most : int
        Bytes that are kept; the arrays that were asked for last stay.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._made: OrderedDict[bytes, Made] = OrderedDict()

    def get(self, key: bytes, make: Callable[[], Made]) -> Made:
        """Return the arrays of a key, which nobody may change; make them if they are not kept."""
        found = self._made.pop(key, None)
        if found is None:
            found = make()
            for array in found:
                array.flags.writeable = False
        self._made[key] = found
        while sum(a.nbytes for made in list(self._made.values()) for a in made) > self.most:
            self._made.popitem(last=False)
        return found


# -- what a party remembers of a run between two messages; small, never sent


class NotKeptError(KeyError):
    """What a request needs has not been asked for in this run, or is forgotten."""

    def __init__(self, name: str, *, code: str) -> None:
        super().__init__(name)
        self.code = code


class _Kept(dict[str, Any]):
    """A dictionary that says so."""

    def __missing__(self, name: str) -> Any:
        raise NotKeptError(name, code="FK-MESSAGE-ORDER")


@dataclass(repr=False)  # its text would show the secret
class KeptState:
    """State of a run.

    Attributes
    ----------
    settings : dict
        Scalars: what the server asked for, and how far the party is.
    seed : bytes
        A secret of the party.
    arrays : dict
        What else the method keeps.
    """

    #: Settings that tell how far the party is.
    progress: ClassVar[tuple[str, ...]] = ("done",)
    settings: dict[str, Any] = field(default_factory=dict)
    seed: bytes = b""
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have what is missing be told apart from a mistake of the code."""
        self.settings, self.arrays = _Kept(self.settings), _Kept(self.arrays)
        self._pins: set[str] = set()
        self._borrowed = False

    def borrow(self, seed: bytes) -> None:
        """Take the secret of another run, for as long as the messages that need it do not fail."""
        self.seed, self._borrowed = seed, True

    def pin(self, name: str, value: Any) -> bool:
        """Fix a setting for the rest of the run, also if the message at hand fails.

        Returns
        -------
        bool
            Whether it has this value, as from the first time on.
        """
        self._pins.add(name)
        return bool(self.settings.setdefault(name, value) == value)

    def settled(self, session: str) -> bytes:
        """Return what the server has settled of the run, but for its name."""
        known = self.settings.items()
        settings = {k: v for k, v in known if k not in self.progress and v != session}
        return json.dumps(settings, sort_keys=True).encode()

    def leave_pins(self, before: KeptState) -> None:
        """Write what was pinned since, and a new secret, to the state of the message before."""
        before.seed = before.seed or (b"" if self._borrowed else self.seed)
        for name in self._pins:
            before.settings.setdefault(name, self.settings[name])

    def twin(self) -> Self:
        """Return a copy, which can be changed without this one; its arrays are read only."""
        arrays = {name: array.view() for name, array in self.arrays.items()}
        for array in arrays.values():
            array.flags.writeable = False
        settings = {
            n: one.copy() if type(one) in (dict, list) else one for n, one in self.settings.items()
        }
        return type(self)(settings, self.seed, arrays)

    def pack(self) -> bytes:
        """Return the state as bytes; an empty one as nothing.

        A line of JSON, then the bytes of the arrays: in a deployment it is packed and unpacked for
        each message, in which an archive would take most of the time.
        """
        if not (self.settings or self.seed or self.arrays):
            return b""
        found = {name: np.asarray(array) for name, array in self.arrays.items()}
        heads = [[name, one.dtype.str, one.shape] for name, one in found.items()]
        known = {"settings": self.settings, "seed": self.seed.hex(), "arrays": heads}
        text = json.dumps(known).encode()
        return b"".join([text, b"\n", *(one.tobytes() for one in found.values())])

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Rebuild a state from :meth:`pack`; an empty one from nothing.

        Raises
        ------
        CheckpointError
            The bytes are damaged or of another kind.
        """
        if not data:
            return cls()
        try:
            text, _, rest = data.partition(b"\n")
            known, arrays, at = json.loads(text), dict[str, NDArray[Any]](), 0
            for name, kind, shape in known["arrays"]:
                count = math.prod(shape)
                array = np.frombuffer(rest, kind, count, at).reshape(shape)
                arrays[name], at = array.copy(), at + array.nbytes
            if at != len(rest):
                raise ValueError
            return cls(known["settings"], bytes.fromhex(known["seed"]), arrays)
        except (KeyError, TypeError, ValueError) as error:
            problem = "what was kept is damaged or not one of ours"
            raise CheckpointError(
                problem, remedy="start anew", code="FK-CHECKPOINT-DAMAGED"
            ) from error


# -- the private state of a node within a run

_RECORD = "fedkern"


@dataclass
class SessionState:
    """The private state of a node within a run; lives in ``Context.state``, never sent.

    Attributes
    ----------
    session : str
        The run it belongs to.
    round : int
        Last round done.
    kept : bytes or object
        What the method keeps, small: packed, or an object with ``pack()`` and ``twin()``.
    """

    session: str = ""
    round: int = 0
    kept: Any = b""

    @property
    def payload(self) -> bytes:
        """What the method keeps, packed."""
        return self.kept if isinstance(self.kept, bytes) else bytes(self.kept.pack())

    @payload.setter
    def payload(self, packed: bytes) -> None:
        self.kept = packed

    def opened(self, kind: Any) -> Any:
        """Return what the method keeps, of its class ``kind``, to be changed at will.

        What a message that fails has changed must be gone with it, so this is a twin.
        """
        return self.kept.twin() if type(self.kept) is kind else kind.unpack(self.payload)

    @classmethod
    def load(cls, context: Context) -> SessionState:
        """Read the state of a node, empty at first."""
        record: Any = context.state.get(_RECORD)
        held: SessionState | None = held_in(record)
        if held is not None:
            return replace(held)
        names = ("session", "round", "payload")
        return cls() if record is None else cls(*(record[name] for name in names))

    def store(self, context: Context) -> None:
        """Replace the state of a node."""
        now = replace(self)
        context.state[_RECORD] = held_record(
            now, lambda: {"session": now.session, "round": now.round, "payload": now.payload}
        )


# -- the last answer of a run: all that a node keeps of its sums, in case the reply is lost
#
# Who has answered the last request has erased its secrets and cannot answer anew. It may be asked
# the same again, and sends the same bytes: the server learns nothing that it was not sent before.

_SAID, _ARRAYS, _ASKED = "fedkern-last", "fedkern-last-arrays", "fedkern-last-asked"

Arrays = list[NDArray[Any]]
Answer = tuple[Arrays, int, dict[str, Scalar]]


def keep_answer(
    context: Context, asked: tuple[Arrays, Mapping[str, Scalar]], answer: Answer
) -> None:
    """Keep what was answered to a request."""
    arrays, samples, scalars = answer
    context.state[_ASKED] = ConfigRecord({"digest": _digest(*asked), "samples": samples})
    context.state[_ARRAYS] = ArrayRecord(arrays)
    context.state[_SAID] = ConfigRecord(dict(scalars))


def kept_answer(context: Context, arrays: Arrays, config: Mapping[str, Scalar]) -> Answer | None:
    """Return what was answered to the same request."""
    known = context.state.get(_ASKED)
    if not isinstance(known, ConfigRecord) or known["digest"] != _digest(arrays, config):
        return None
    said: Any = dict(context.state.config_records[_SAID])
    found = context.state.array_records[_ARRAYS].to_numpy_ndarrays()
    return found, int(known["samples"]), said  # type: ignore[arg-type]


def forget_answer(context: Context) -> None:
    """Erase it."""
    for name in (_SAID, _ARRAYS, _ASKED):
        context.state.pop(name, None)


def _digest(arrays: Arrays, config: Mapping[str, Scalar]) -> str:
    digest = hashlib.sha256(json.dumps(sorted(config.items()), default=bytes.hex).encode())
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


# -- the state of a run on the node's own disk: a node that is restarted goes on where it was
#
# Flower keeps a node's ``Context`` in the memory of its SuperNode, which a restart empties. So a
# node of a deployment that has a ``state_dir`` writes its context to a file of the run before each
# reply leaves, also a reply that is an error: what a message that failed has fixed stays fixed.
#
# Why no request is answered twice with other masks or other values, whenever the node is killed:
#
# * Before the file is written nothing has left the node. It has the state of the message before,
#   and answers the request as if it came for the first time. What the ledger has entered
#   meanwhile counts as it does for a run that is resumed: the same again is free, anything else
#   is refused.
# * After the file is written the request counts as answered, whether the reply left or not. A
#   copy of it is refused by the number of its round, and the coordinator asks anew, with other
#   masks. The last request of a run is the exception: its answer is kept and sent again, the same
#   bytes.
# * Where only the process that answers is killed, the SuperNode still has the state of the
#   message before. It is older than the file, and the file is taken. Where the disk was full, the
#   memory is newer, and stays.
#
# A state is taken by the same node, partition and run of Flower only, and by the same session. A
# run that is resumed is another run of Flower: it begins with new keys. Nothing that a message says
# decides which of two states is taken, or a server could choose the older one. Only the node's own
# administrator can put an old file back.

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

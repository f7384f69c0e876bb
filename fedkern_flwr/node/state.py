"""Keep what a node remembers of a run between two messages, in memory and on its disk."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context
from numpy.typing import NDArray

from ..checkpoint import write_atomically
from ..errors import CheckpointError, RefusedError
from ..failure import reported, unwritable
from ..flower_compat import held_in, held_record, pack_context, unpack_context
from ..guard import refusal
from ..secure_sum import PartyState
from ..wire import DescribeRequest, Scalar
from ..wire.message import content_digest
from ..wire.sums import BreakRequest, FinishRequest

#: What is kept in ``Context.state``: of the method, of the guard, of secure sums.
_SESSION, _GUARD, _SUMS = "fedkern", "fedkern-guard", "fedkern-sums"


def _held(context: Context, name: str, read: Callable[[Mapping[str, Any]], Any]) -> Any:
    if name not in context.state:
        return None
    record = context.state[name]
    held = held_in(record)
    if held is not None or not isinstance(record, ConfigRecord):
        return held
    return read(record)


# -- secure sums: small, never sent


def load_state(context: Context) -> PartyState | None:
    """Return the state of secure sums; None outside a secure run."""
    found = _held(context, _SUMS, lambda record: PartyState.unpack(record["state"]))
    return None if found is None else found.twin()


def store_state(context: Context, state: PartyState) -> None:
    context.state[_SUMS] = held_record(state, lambda: {"state": state.pack()})


def has_state(context: Context) -> bool:
    return _SUMS in context.state


def erase_state(context: Context) -> None:
    context.state.pop(_SUMS, None)


# -- what a node need not make again for the next message: Flower makes a client for each

Made = tuple[NDArray[Any], ...]


class Recent:
    """Cache arrays by a key that determines them, in the memory of this process.

    At most ``most`` bytes are kept, those used last.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._made: OrderedDict[bytes, Made] = OrderedDict()

    def get(self, key: bytes, make: Callable[[], Made]) -> Made:
        """Return the read-only arrays of a key; make them if they are not cached."""
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
    """What a request needs was not requested before in this run, or is forgotten."""

    def __init__(self, name: str, *, code: str) -> None:
        super().__init__(name)
        self.code = code


class _Kept(dict[str, Any]):
    """A dictionary that raises NotKeptError for a missing key."""

    def __missing__(self, name: str) -> Any:
        raise NotKeptError(name, code="FK-MESSAGE-ORDER")


@dataclass(repr=False)  # its text would show the secret
class KeptState:
    """What the client of a method remembers of a run; never sent.

    ``settings`` are scalars: requests of the server, and the client's progress. ``seed`` is a
    secret of the party. ``arrays`` are those of the method.
    """

    #: Settings that record the progress of the party.
    progress: ClassVar[tuple[str, ...]] = ("done",)
    settings: dict[str, Any] = field(default_factory=dict)
    seed: bytes = b""
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings, self.arrays = _Kept(self.settings), _Kept(self.arrays)
        self._pins: set[str] = set()
        self._borrowed = False

    def borrow(self, seed: bytes) -> None:
        """Use the secret of another run; a message that fails does not save it."""
        self.seed, self._borrowed = seed, True

    def pin(self, name: str, value: Any) -> bool:
        """Fix a setting for the rest of the run, even if the current message fails.

        Returns whether the setting has this value: the first value stays.
        """
        self._pins.add(name)
        return bool(self.settings.setdefault(name, value) == value)

    def settled(self, session: str) -> bytes:
        """Return the settings of the run, except progress and name."""
        known = self.settings.items()
        settings = {k: v for k, v in known if k not in self.progress and v != session}
        return json.dumps(settings, sort_keys=True).encode()

    def leave_pins(self, before: KeptState) -> None:
        """Copy new pins, and a new secret, to the state of the message before."""
        before.seed = before.seed or (b"" if self._borrowed else self.seed)
        for name in self._pins:
            before.settings.setdefault(name, self.settings[name])

    def twin(self) -> Self:
        """Return a copy that can be changed independently; its arrays are read-only."""
        arrays = {name: array.view() for name, array in self.arrays.items()}
        for array in arrays.values():
            array.flags.writeable = False
        settings = {
            n: one.copy() if type(one) in (dict, list) else one for n, one in self.settings.items()
        }
        return type(self)(settings, self.seed, arrays)

    def pack(self) -> bytes:
        """Return the state as bytes: a line of JSON, then the arrays; b"" for an empty state.

        An archive would take most of the time of a message.
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
        """Rebuild a state from :meth:`pack`; CheckpointError if it is damaged."""
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
            raise CheckpointError(problem, code="FK-CHECKPOINT-DAMAGED") from error


# -- the private state of a node within a run


@dataclass
class SessionState:
    """The private state of a node within a run, in ``Context.state``; never sent.

    ``round`` is the last round done. ``kept`` belongs to the method: packed, or an object with
    ``pack()`` and ``twin()``.
    """

    session: str = ""
    round: int = 0
    kept: Any = b""

    @property
    def payload(self) -> bytes:
        return self.kept if isinstance(self.kept, bytes) else bytes(self.kept.pack())

    @payload.setter
    def payload(self, packed: bytes) -> None:
        self.kept = packed

    def opened(self, kind: Any) -> Any:
        """Return a copy of what the method keeps, so that a message that fails changes nothing."""
        return self.kept.twin() if type(self.kept) is kind else kind.unpack(self.payload)

    @classmethod
    def load(cls, context: Context) -> SessionState:
        names = ("session", "round", "payload")
        found = _held(context, _SESSION, lambda record: cls(*(record[name] for name in names)))
        return cls() if found is None else cls(found.session, found.round, found.kept)

    def store(self, context: Context) -> None:
        now = SessionState(self.session, self.round, self.kept)
        context.state[_SESSION] = held_record(
            now, lambda: {"session": now.session, "round": now.round, "payload": now.payload}
        )


# -- what a node remembers of the run at hand for its own protection; never sent

_REFUSALS = 3
_PLAIN = (str, bytes, int, float)
_SHORT = 256  # bytes of a value with a cached digest
_SESSIONS = 32  # of one context, which are far more than an honest server opens


@dataclass
class RunRecord:
    """What a node remembers of a run for its protection.

    Attributes
    ----------
    nonce : str
        Random; a request that resumes the run must know it.
    secure : bool
        Whether the run uses secure sums; then nothing is answered without them.
    told : dict
        Evaluation (:func:`evaluation_key`) -> reported figures; erased when the run is over.
    judged : dict
        Name of an evaluation -> the one of this run.
    sums, ordered : dict
        Name of a sum -> the opened one, and the last one contributed to: [cohort, number, round,
        digest of its request].
    helped : bool
        Whether this node has contributed to a model, which it may then evaluate.
    pinned : dict
        Public option of the run -> digest of its first value.
    group : dict
        Rows summed last and their releases, see :class:`~fedkern_flwr.guard.counting.Group`.
    beside : dict
        Partition, as text -> unknowns of a row in its further columns of all training rows.
    windows : str
        Digest of its contributions to windows of a stream or table.
    spent : dict
        Releases with noise, see :func:`~fedkern_flwr.guard.opened.spend`.
    """

    session: str = ""
    nonce: str = ""
    begun: bool = False
    secure: bool = False
    refusals: int = 0
    told: dict[str, list[float]] = field(default_factory=dict)
    sums: dict[str, list[Any]] = field(default_factory=dict)
    group: dict[str, Any] = field(default_factory=dict)
    columns: int = 0
    binary: int = 0
    beside: dict[str, float] = field(default_factory=dict)
    warned: bool = False
    privacy: str = ""
    windows: str = ""
    spent: dict[str, Any] = field(default_factory=dict)
    judged: dict[str, str] = field(default_factory=dict)
    ordered: dict[str, list[Any]] = field(default_factory=dict)
    helped: bool = False
    pinned: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> RunRecord:
        """Read from :meth:`write`; ignore unknown fields."""
        known = cls.__dataclass_fields__
        return cls(**{name: value for name, value in json.loads(text).items() if name in known})

    def twin(self) -> RunRecord:
        twin = object.__new__(RunRecord)  # faster than copy(), for every message
        own = vars(self).items()
        vars(twin).update({n: v.copy() if type(v) is dict else v for n, v in own})
        return twin

    def write(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def load(cls, context: Context, session: str) -> RunRecord:
        """Return the record of a run from the node's state; an empty one for an unknown run."""
        found = cls._known(context).get(session)
        return cls(session) if found is None else found.twin()

    def store(self, context: Context) -> None:
        known = self._known(context)
        if known.get(self.session) == self:
            return  # most messages change nothing
        kept = {**known, self.session: self.twin()}
        context.state[_GUARD] = held_record(
            kept, lambda: {name: one.write() for name, one in kept.items()}
        )

    @classmethod
    def _known(cls, context: Context) -> dict[str, RunRecord]:
        found = _held(context, _GUARD, lambda record: {n: cls.read(t) for n, t in record.items()})
        return found or {}

    def check_new(self, context: Context) -> None:
        """Refuse to open a run if the server has opened too many."""
        known = self._known(context)
        if self.session not in known and len(known) >= _SESSIONS:
            raise refusal(
                f"more than {_SESSIONS} sessions in one run of Flower", code="FK-SESSION-MANY"
            )

    def pin(self, options: Mapping[str, Any]) -> bool:
        """Fix public options for the rest of the run; return whether any is new.

        Empty texts and arrays are ignored. A changed option is refused: each further way to sum the
        same rows reveals more about single rows.
        """
        known = len(self.pinned)
        for name, value in options.items():
            if isinstance(value, _PLAIN):
                empty, content = value in ("", b""), repr(value).encode()
            else:
                array = np.ascontiguousarray(value)
                empty = not array.size
                content = f"{array.dtype} {array.shape}".encode() + array.tobytes()
            if empty:
                continue
            digest = (_short if len(content) > _SHORT else _cached)(content)
            if self.pinned.setdefault(name, digest) != digest:
                raise refusal(
                    f"the run states another {name.rpartition('.')[2]} than before",
                    code="FK-SETTINGS-CHANGED",
                )
        return len(self.pinned) > known

    def refuse(self, *, ends: bool) -> None:
        """Count a refusal; one that ``ends`` the run counts as all that it may have."""
        self.refusals += _REFUSALS if ends else 1

    def check(self) -> None:
        if self.refusals >= _REFUSALS:
            raise refusal(
                f"{_REFUSALS} orders of this run were refused, it is over here",
                code="FK-ORDER-OVER",
            )

    # -- each named sum is opened once in a run
    #
    # A node helps to open a sum of masked vectors. With a second sum of the same name the server
    # would learn the same values over other survivors, or other numbers about the same rows.
    # Methods that learn in rounds say which field of a request numbers them: then a later round is
    # another sum. Sums without self masks need no help. They are repeated over the same cohort
    # only, see fedkern_flwr.secure_sum.party.Party.check_order.

    def note_order(
        self, name: str, place: tuple[int, int], number: int, digest: str, *, repeats: bool
    ) -> None:
        """Enter the sum that this node is about to contribute to; refuse one that was opened.

        ``number`` is that of its round (0 for a sum that a run opens once). The same request may be
        opened again only with ``repeats``: use it only if the node ensures that the same values are
        opened over the same survivors.
        """
        opened = self.sums.get(name)
        if opened and number <= opened[2] and not (repeats and digest == opened[3]):
            raise _again()
        self.ordered[name] = [*place, number, digest]

    def open_once(self, name: str, place: tuple[int, int]) -> None:
        """Refuse to help open any sum but the last one of its name; enter it."""
        ordered = self.ordered.get(name, [])
        if ordered[:2] != list(place):
            raise _again()
        self.sums[name] = ordered

    # -- figures about held-out rows: only for enough rows, for one model a run, and seldom
    #
    # A count of one row reveals its label, and the difference of two counts over nearly the same
    # rows reveals the rows in which they differ. A model chosen for one person shows that person's
    # label. So a run evaluates one model, once, and a set of rows is evaluated as often as the
    # policy allows over all runs. A repeated request gets the earlier report.

    def check_model(self, key: str) -> None:
        """Refuse to evaluate a second model in a run, or the same one with other rows or bins."""
        if self.judged.setdefault(key.rsplit("/", 2)[0], key) != key:
            raise refusal("a run judges one model, once", code="FK-ORDER-MODEL")

    def tell(self, key: str, values: list[float], most: int) -> list[float]:
        """Enter an evaluation; return the figures to report: the earlier ones, if it is repeated.

        When a run is over its figures are erased, but still count. RefusedError after ``most``
        evaluations of the same rows.
        """
        if key in self.told:
            return self.told[key] or values
        rows = key.rsplit("/", 2)[1]
        done = sum(known.rsplit("/", 2)[1] == rows for known in self.told)
        if done >= most:
            rule = f"max_evaluations = {most} of these rows"
            raise refusal(rule, code="FK-POLICY-EVALUATIONS")
        self.told[key] = values
        return values


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


_cached = lru_cache(maxsize=4096)(_short)  # every message of a run states the same


def _again() -> RefusedError:
    return refusal("a sum is opened a second time in this run", code="FK-ORDER-AGAIN")


def evaluation_key(purpose: str, rows: bytes, model: Iterable[bytes]) -> str:
    """Return the name of an evaluation in the record; ``model`` is the model and the bins."""
    digest = hashlib.sha256()
    for part in model:
        digest.update(len(part).to_bytes(8, "little") + part)
    return f"{purpose}/{hashlib.sha256(rows).hexdigest()}/{digest.hexdigest()}"


# -- the last answer of a run: all that a node keeps of its sums, in case the reply is lost
#
# After the last request a node has erased its secrets and cannot compute an answer again. A
# repeated request gets the same bytes: the server learns nothing that it was not sent before.

_SAID, _ARRAYS, _ASKED = "fedkern-last", "fedkern-last-arrays", "fedkern-last-asked"

Arrays = list[NDArray[Any]]
Answered = tuple[Arrays, int, dict[str, Scalar]]


def keep_answer(
    context: Context, asked: tuple[Arrays, Mapping[str, Scalar]], answer: Answered
) -> None:
    (arrays, samples, scalars), (given, config) = answer, asked
    digest = content_digest(config, given)
    context.state[_ASKED] = ConfigRecord({"digest": digest, "samples": samples})
    context.state[_ARRAYS] = ArrayRecord(arrays)
    context.state[_SAID] = ConfigRecord(dict(scalars))


def kept_answer(context: Context, arrays: Arrays, config: Mapping[str, Scalar]) -> Answered | None:
    """Return the saved answer, if this is the same request."""
    if _ASKED not in context.state:
        return None
    known: Any = context.state[_ASKED]
    if known["digest"] != content_digest(config, arrays):
        return None
    said: Any = dict(context.state.config_records[_SAID])
    found = context.state.array_records[_ARRAYS].to_numpy_ndarrays()
    return found, int(known["samples"]), said


def forget_answer(context: Context) -> None:
    for name in (_SAID, _ARRAYS, _ASKED):
        context.state.pop(name, None)


# -- the state of a run on the node's own disk: a restarted node continues where it was
#
# Flower keeps a node's ``Context`` in the memory of its SuperNode, which a restart empties. So a
# node of a deployment with a ``state_dir`` writes its context to a file of the run before each
# reply is sent, even if the reply is an error: what a failed message has fixed stays fixed.
#
# Why no request is answered twice with other masks or other values, whenever the node is killed:
#
# * Before the file is written nothing has been sent. The node has the state of the message before,
#   and answers the request as if it came for the first time. What the ledger has entered meanwhile
#   counts as for a resumed run: the same again is free, anything else is refused.
# * After the file is written the request counts as answered, whether the reply was sent or not. A
#   copy of it is refused by the number of its round, and the coordinator sends a new request, with
#   other masks. The last request of a run is the exception: its answer is kept and sent again, the
#   same bytes.
# * If only the answering process is killed, the SuperNode still has the state of the message
#   before. It is older than the file, and the file is used. If the disk was full, the memory is
#   newer, and is used.
#
# A state is used by the same node, partition and run of Flower only, and by the same session. A
# resumed run is another run of Flower: it starts with new keys. No content of a message decides
# which of two states is used, or a server could choose the older one. Only the node's administrator
# can restore an old file.

_ENDS = (FinishRequest.phase, BreakRequest.phase)  # there are no requests after these
_NUMBER = "fedkern-number"  # record of a context: how often it was written
_HEAD = 8  # bytes of a number: a file begins with its run of Flower and that; the context follows


@contextmanager
def on_disk(context: Context, file: Path | None, config: Mapping[str, Scalar]) -> Iterator[None]:
    """Answer a message with the state in ``file`` (None for no file), and save the new state."""
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
    """Load the newest state of this run from disk, unless the memory has a newer one."""
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
            "the state of the run on its disk is damaged", code="FK-CHECKPOINT-DAMAGED"
        ) from None
    if (_who(kept), SessionState.load(kept).session) == (_who(context), session):
        context.state = kept.state


def _keep(context: Context, file: Path, session: str, *, failed: bool, ends: bool) -> None:
    """Write the state of the run; once it is over only its last answer, which has no secret."""
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
    """Remove the last answers of earlier runs when another run starts."""
    for file in [] if state_dir is None else state_dir.glob(f"*/partition-{partition}.last"):
        _remove(file)


def _remove(file: Path) -> None:
    for one in (file, *file.parent.glob(f".{file.name}.*.tmp")):
        one.unlink(missing_ok=True)
    with suppress(OSError):
        file.parent.rmdir()


def _write(file: Path, context: Context) -> None:
    """Write a file so that a power cut leaves the old state or the new one."""
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

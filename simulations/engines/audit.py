"""Audit the traffic: which kinds of values the server and each client saw.

The audit reads every message as it passes and keeps counts, no values. One table declares the kind
of each field; other fields count as ``plain``. Masked and sealed bytes are tested for uniformity.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.wire.message import PhaseMessage, detach, read_array

from .in_process import Direction, WatchingGrid


def _by_field(**kinds: dict[str, str]) -> dict[tuple[str, str], str]:
    """Return (phase, field) -> kind from kind -> phase -> fields."""
    return {
        (phase, name): kind
        for kind, phases in kinds.items()
        for phase, names in phases.items()
        for name in names.split()
    }


#: Kinds of values from a client. ``plain``: computed from its own rows, for the server to read.
#: ``size``: of its table. ``declared``: statements of its owner, such as ranges and classes.
#: ``pseudonym``: keyed hash of an id. ``masked``: one-time padded. ``sealed``: for another client.
#: ``total``: of a sum over several clients that one of them opened for the server.
#: ``commitment``: digest of a random seed or a secret. ``share``: of the seed of a survivor's self
#: mask. ``seed``: of a mask of a client that dropped out. ``key``: public. ``control``: numbers of
#: rounds and sums, names, versions.
_UP = _by_field(
    sealed={
        "align-hop": "sealed",
        "hybrid-moments": "sealed",
        "svm-combine": "sealed",
        "svm-block": "sealed",
        "svm-owner": "sealed",
        "svm-recall": "sealed",
        "sum-upload": "shares backups",
    },
    commitment={
        "align-hop": "fingerprint",
        "align-tags": "fingerprint",
        "describe": "secret_digest secret_digests",
        "hybrid-distances": "fingerprint",
        "hybrid-equations": "fingerprint",
        "hybrid-product": "fingerprint",
        "sum-upload": "commitments",
    },
    pseudonym={"align-tags": "ids", "describe": "ids spelled"},
    control={
        "average": "layout",
        "average-evaluate": "layout",
        "describe": "partition partitions role restored answered opened counting release name",
        "svm-owner": "model",
    },
    size={
        "describe": "binary bits rows features test_rows others columns share again how",
        "svm-predict": "samples",
        "svm-write": "samples",
        "gram-predict": "users",
        "online-predict": "samples",
        "online-ridge-predict": "samples",
    },
    key={"describe": "public_key signature nonce", "sum-vote": "signature"},
    declared={
        "describe": "block seeded square_bound absolute_bound fold_rows fold_sum_rows outputs "
        "classes labels label_bound labelled kinds units allow_single named group product",
    },
    total={"svm-combine": "term"},
    masked={"sum-upload": "masked"},
    share={"sum-unmask": "shares", "sum-recover": "shares"},
    seed={"sum-unmask": "seeds"},
)
#: Other values for a client are ``public``: chosen by the server, or made of released sums.
#: ``matching``: which of its rows belong together with those of others.
_DOWN = _by_field(
    sealed={
        "align-hop": "received",
        "align-tags": "received",
        "sum-unmask": "shares",
        "sum-recover": "backups",
        "hybrid-distances": "sealed_seed",
        "hybrid-own-equations": "sealed_seed",
        "hybrid-own-product": "sealed_seed",
        "svm-step": "sealed",
        "svm-visit": "coordinates message weights",
        "svm-contribute": "sealed",
    },
    key={"sum-roster": "keys signatures"},
    masked={"sum-delivery": "padded"},
    padded={"svm-step": "padded"},  # the same for all users of a group, so not tested for itself
    matching={
        "hybrid-moments": "rows",
        "hybrid-distances": "rows",
        "vertical-step": "rows finish_rows score_rows",
        "vertical-train": "rows tests",
        "vertical-outcome": "rows",
        "svm-columns": "take place",
        "svm-write": "take",
        "svm-contribute": "take place",
        "svm-owner": "take place",
    },
)
_CONTROL = {"phase", "protocol", "round", "cohort", "index", "session"}
_CONTROL |= {"num_examples", "code", "message"}  # Flower's own: samples asked for, status
_UNIFORM = ("masked", "sealed")
_MANY = 1000  # chunks of a vector that keep its name
_SAMPLE = 4096  # bytes of each value that enter the test of uniformity

Key = tuple[Direction, int, str, str]  # direction, node, phase, field


@dataclass
class Seen:
    """Count and size of one field, and a histogram of bytes declared random."""

    kind: str
    values: int = 0
    bytes: int = 0
    histogram: NDArray[np.int64] | None = None

    def add(self, value: Any) -> None:
        """Count a value."""
        self.values += 1
        if isinstance(value, np.ndarray):
            self.bytes += value.nbytes
        else:
            self.bytes += len(value if isinstance(value, bytes) else str(value).encode())
        if self.kind in _UNIFORM and isinstance(value, np.ndarray | bytes):
            flat = value if isinstance(value, bytes) else value.reshape(-1).view(np.uint8)
            counts = np.bincount(np.frombuffer(flat[:_SAMPLE], np.uint8), minlength=256)
            self.histogram = counts if self.histogram is None else self.histogram + counts

    def merge(self, other: Seen) -> None:
        """Add the counts of the same field of another node."""
        self.values += other.values
        self.bytes += other.bytes
        if other.histogram is not None:
            mine = 0 if self.histogram is None else self.histogram
            self.histogram = other.histogram + mine

    @property
    def uniform(self) -> float | None:
        """P-value of the chi-square test of uniform bytes; None if untested.

        Fewer than five expected of each byte are too few.
        """
        if self.histogram is None or (total := int(self.histogram.sum())) < 5 * 256:
            return None
        expected = total / 256
        statistic = float(((self.histogram - expected) ** 2).sum() / expected)
        return chi_square_tail(255, statistic)


def chi_square_tail(freedom: int, statistic: float) -> float:
    """Compute P(X > statistic) of a chi-square X with an odd number of degrees of freedom.

    Abramowitz and Stegun, 26.4.4. Loading SciPy takes longer than a run to audit.
    """
    half = statistic / 2.0
    found = math.erfc(math.sqrt(half))
    for k in range(1, freedom // 2 + 1) if half else ():
        found += math.exp((k - 0.5) * math.log(half) - half - math.lgamma(k + 0.5))
    return min(found, 1.0)


@dataclass
class Audit:
    """What was seen in a run, by direction, node, phase and field.

    Attributes
    ----------
    seen : dict
    seconds : float
        Time of counting, which is no part of the run.
    """

    seen: dict[Key, Seen] = field(default_factory=dict)
    seconds: float = 0.0
    #: The last message down, and its fields: many nodes often receive the same.
    _shared: tuple[Any, list[tuple[str, str, Any]]] = field(
        default=(None, []), repr=False, compare=False
    )

    def add(self, direction: Direction, message: Message) -> None:
        """Count the fields of a message."""
        if message.has_error():
            return
        started = time.perf_counter()
        self._count(direction, message)
        self.seconds += time.perf_counter() - started

    def _count(self, direction: Direction, message: Message) -> None:
        meta, seen = message.metadata, self.seen
        node = meta.dst_node_id if direction == "down" else meta.src_node_id
        known, found = self._shared
        if direction == "up" or known is not message.content:
            found = [*_fields(direction, message)]
            if direction == "down":
                self._shared = message.content, found
        for phase, name, value in found:
            if isinstance(value, np.ndarray) and not value.size:
                continue  # nothing to see
            key = (direction, node, phase, name)
            entry = seen.get(key)
            if entry is None:
                entry = seen[key] = Seen(_kind(direction, phase, name))
            entry.add(value)

    def view(self, direction: Direction, node: int | None = None) -> dict[tuple[str, str], Seen]:
        """Return (phase, field) -> what was sent ``up`` to the server or ``down``.

        It is that of one node, or of all together.
        """
        out: dict[tuple[str, str], Seen] = {}
        for (way, owner, phase, name), entry in self.seen.items():
            if way == direction and node in (None, owner):
                out.setdefault((phase, name), Seen(entry.kind)).merge(entry)
        return out

    def kinds(self, direction: Direction, node: int | None = None) -> set[str]:
        """Return the kinds of values that were seen."""
        return {entry.kind for entry in self.view(direction, node).values()}

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Return plain values for JSON: what the server and the clients saw."""
        return {
            "server": _rows(self.view("up")),
            "clients": _rows(self.view("down")),
        }


class AuditingGrid(WatchingGrid):
    """Audit the traffic of another grid."""

    def __init__(self, grid: Grid, audit: Audit) -> None:
        super().__init__(grid)
        self.audit = audit

    def watch(self, direction: Direction, message: Message) -> None:
        """Count the values of a message."""
        self.audit.add(direction, message)


def _fields(direction: Direction, message: Message) -> Iterator[tuple[str, str, Any]]:
    """Yield (phase, field, value) of a message and its sections."""
    scalars, arrays, metrics = dict[str, Any](), list[Any](), dict[str, Any]()
    for record in message.content.values():
        if isinstance(record, ConfigRecord):
            scalars.update(record.items())
        elif isinstance(record, ArrayRecord):
            arrays += [array for key, array in record.items() if key != "_empty"]
        else:
            metrics.update(record.items())
    try:
        own, plain, sections = detach(arrays, scalars, party="")
    except ProtocolError:
        own, plain, sections = arrays, scalars, []
    phase = str(plain.get("phase", ""))
    for name, value in plain.items():
        yield phase, name, value
    for name, array in zip(_array_names(phase, direction), own, strict=False):
        yield phase, name, _content(array)
    for section in sections:
        for name, value in section.scalars.items():
            yield section.phase, name, value
        for name, array in zip(_array_names(section.phase, ""), section.arrays, strict=False):
            yield section.phase, name, _content(array)
    for name, value in metrics.items():
        yield phase, name, value


def _content(array: Any) -> NDArray[Any]:
    """Return an array without the header of its bytes, which is not random."""
    try:
        return read_array(array)
    except ValueError:
        return np.frombuffer(array.data, np.uint8)


@cache
def _array_names(phase: str, direction: str) -> tuple[str, ...]:
    """Return the names of the arrays of a phase's request (down) or reply (up).

    Sections have one message per phase that carries arrays.
    """
    end = {"up": "Reply", "down": "Request", "": ""}[direction]
    for cls in _subclasses(PhaseMessage):
        if cls.phase == phase and cls.__name__.endswith(end):
            names = [f for f in fields(cls) if "dimensions" in f.metadata]
            many = [f.name for f in names if f.metadata["many"]] * _MANY
            if names:
                return (*(f.name for f in names if not f.metadata["many"]), *many)
    return ("arrays",) * _MANY


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def _kind(direction: Direction, phase: str, name: str) -> str:
    declared = (_UP if direction == "up" else _DOWN).get((phase, name))
    if declared is not None:
        return declared
    if name in _CONTROL:
        return "control"
    return "plain" if direction == "up" else "public"


def _rows(view: dict[tuple[str, str], Seen]) -> list[dict[str, Any]]:
    """Return a row per field; public fields are one row per phase."""
    merged: dict[tuple[str, str], Seen] = {}
    for (phase, name), seen in sorted(view.items()):
        if seen.kind != "control" and seen.bytes:
            what = "all that is not listed" if seen.kind == "public" else name
            merged.setdefault((phase, what), Seen(seen.kind)).merge(seen)
    return [
        {
            "phase": phase,
            "field": name,
            "kind": seen.kind,
            "values": seen.values,
            "bytes": seen.bytes,
            **({"uniform_p": seen.uniform} if seen.kind in _UNIFORM else {}),
        }
        for (phase, name), seen in merged.items()
    ]

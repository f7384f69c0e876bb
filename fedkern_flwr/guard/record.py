"""What a node remembers of the run at hand for its own protection; never sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context

from ..flower_compat import held_in, held_record
from .orders import refusal

_RECORD = "fedkern-guard"
_REFUSALS = 3
_SHORT = 256  # bytes of a value whose digest is kept
_SESSIONS = 32  # of one context, which are far more than an honest server opens


@dataclass
class RunRecord:
    """Refusals and evaluations of a run.

    Attributes
    ----------
    session : str
        The run it belongs to.
    nonce : str
        Drawn by the node when the run was opened: who resumes the run must know it.
    begun : bool
        Whether anything but its opening was answered.
    secure : bool
        Whether it takes secure sums: when they have ended, nothing is answered in plain.
    refusals : int
        Orders refused so far.
    told : dict
        Digest of an evaluation -> the figures told; none when the run is over.
    evaluations : dict
        Digest of a set of held-out rows -> how many evaluations of it were answered.
    judged : dict
        What an evaluation is called -> the one of this run.
    sums : dict
        Name of a sum -> the one that was opened: [cohort, number, round, digest of its request];
        or nothing. See :mod:`.openings`.
    ordered : dict
        Name of a sum -> the last one that this node contributed to, in the same form.
    helped : bool
        Whether this node has contributed to what a model is made of, which it may then judge.
    pinned : dict
        Public option of the run -> digest of the value that was stated first.
    group : dict
        Rows that were summed last and what was released of them, see
        :class:`~fedkern_flwr.guard.counting.Group`.
    columns : int
        Columns of a row of its table, label included.
    binary : int
        How many of them have two values.
    beside : dict
        Partition, as text -> unknowns of a row in the columns that it has of all rows learned from.
    warned : bool
        Whether it was warned of a release of too many numbers.
    windows : str
        Digest of what it has contributed to windows of a stream or table.
    privacy : str
        What the run may cost in privacy, as it was opened; empty without noise.
    spent : dict
        What it has released with noise, see :func:`~fedkern_flwr.guard.spending.spend`.
    """

    session: str = ""
    nonce: str = ""
    begun: bool = False
    secure: bool = False
    refusals: int = 0
    told: dict[str, list[float]] = field(default_factory=dict)
    evaluations: dict[str, int] = field(default_factory=dict)
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
        """Read from :meth:`write`."""
        return cls(**json.loads(text))

    def twin(self) -> RunRecord:
        """Return a copy, which can be changed without this one."""
        twin = copy(self)
        for name, value in vars(self).items():
            if type(value) is dict:
                setattr(twin, name, value.copy())
        return twin

    def write(self) -> str:
        """Return the record as JSON."""
        return json.dumps(vars(self))

    @classmethod
    def load(cls, context: Context, session: str) -> RunRecord:
        """Read the record of a run from the node's state; an empty one of a run not known there."""
        found = _kept(context).get(session)
        return cls(session) if found is None else found.twin()

    def store(self, context: Context) -> None:
        """Keep the record in the node's state, beside those of other runs."""
        kept = {**_kept(context), self.session: self.twin()}
        context.state[_RECORD] = held_record(
            kept, lambda: {session: one.write() for session, one in kept.items()}
        )

    def check_new(self, context: Context) -> None:
        """Refuse to open a further run where the server has opened too many.

        Raises
        ------
        RefusedError
        """
        known = _kept(context)
        if self.session not in known and len(known) >= _SESSIONS:
            raise refusal(
                f"more than {_SESSIONS} sessions in one run of Flower",
                remedy="start each run by itself",
                code="FK-SESSION-MANY",
            )

    def pin(self, options: Mapping[str, Any]) -> bool:
        """Fix public options for the rest of the run; tell whether any is stated the first time.

        An empty text or array states nothing.

        Raises
        ------
        RefusedError
            One of them has another value than before: the same rows would be summed in another
            way, and each way adds to what the sums together say of single rows.
        """
        known = len(self.pinned)
        for name, value in options.items():
            if isinstance(value, str | bytes | int | float):
                empty, text, data = value in ("", b""), repr(value), b""
            else:
                array = np.ascontiguousarray(value)
                empty, data = not array.size, array.tobytes()
                text = f"{array.dtype} {array.shape}"
            if empty:
                continue
            content = text.encode() + data
            digest = (_digest if len(content) > _SHORT else _short_digest)(content)
            if self.pinned.setdefault(name, digest) != digest:
                raise refusal(
                    f"the run states another {name.rpartition('.')[2]} than before",
                    remedy="resume it with the options that it began with, or start a new run",
                    code="FK-SETTINGS-CHANGED",
                )
        return len(self.pinned) > known

    def refuse(self, *, ends: bool) -> None:
        """Count a refusal; one that ``ends`` the run counts for all that it may have."""
        self.refusals += _REFUSALS if ends else 1

    def check(self) -> None:
        """Refuse a run of which too many orders were refused.

        Raises
        ------
        RefusedError
        """
        if self.refusals >= _REFUSALS:
            raise refusal(
                f"{_REFUSALS} orders of this run were refused, it is over here",
                code="FK-ORDER-OVER",
            )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


_short_digest = lru_cache(maxsize=4096)(_digest)  # every message of a run states the same


def _kept(context: Context) -> dict[str, RunRecord]:
    """Return the records in a node's state: session -> record."""
    record = context.state.get(_RECORD)
    if (held := held_in(record)) is not None:
        return dict(held)
    if not isinstance(record, ConfigRecord):
        return {}
    return {name: RunRecord.read(str(text)) for name, text in record.items()}

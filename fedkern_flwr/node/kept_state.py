"""What a party remembers of a run between two messages; small, never sent."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError


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

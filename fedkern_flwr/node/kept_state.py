"""What a party remembers of a run between two messages; small, never sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from numpy.typing import NDArray

from ..checkpoint import pack_arrays, unpack_arrays


class NotKeptError(KeyError):
    """What a request needs has not been asked for in this run, or is forgotten."""


class _Kept(dict[str, Any]):
    """A dictionary that says so."""

    def __missing__(self, name: str) -> Any:
        raise NotKeptError(name)


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

    settings: dict[str, Any] = field(default_factory=dict)
    seed: bytes = b""
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have what is missing be told apart from a mistake of the code."""
        self.settings, self.arrays = _Kept(self.settings), _Kept(self.arrays)

    def pack(self) -> bytes:
        """Return the state as bytes; an empty one as nothing."""
        if not (self.settings or self.seed or self.arrays):
            return b""
        return pack_arrays(self.arrays, {**self.settings, "seed": self.seed.hex()})

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Rebuild a state from :meth:`pack`; an empty one from nothing."""
        if not data:
            return cls()
        arrays, settings = unpack_arrays(data)
        return cls(settings, bytes.fromhex(settings.pop("seed")), arrays)

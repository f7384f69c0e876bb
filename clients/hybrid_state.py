"""What a party of FedCG remembers of a run between two messages; small, never sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from fedkern_flwr.checkpoint import pack_arrays, unpack_arrays


@dataclass(repr=False)  # its text would show the secret
class RunState:
    """State of a run.

    Attributes
    ----------
    settings : dict
        Scalars: what the server asked for, and how far the kernel of a hospital is.
    seed : bytes
        The secret of the block's landmarks.
    arrays : dict
        ``order`` (rows,), the row of the table at each announced position. ``gammas`` (1,) or
        (m,). ``moments`` (2, d), if landmarks are normal. At a hospital: ``rows``, its announced
        rows in the kernel's order; ``gram`` and ``right``, the normal equations so far. In a
        chain: ``rows/<hospital>`` and what the method keeps.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    seed: bytes = b""
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def pack(self) -> bytes:
        """Return the state as bytes."""
        return pack_arrays(self.arrays, {**self.settings, "seed": self.seed.hex()})

    @classmethod
    def unpack(cls, data: bytes) -> RunState:
        """Rebuild a state from :meth:`pack`; an empty one from nothing."""
        if not data:
            return cls()
        arrays, settings = unpack_arrays(data)
        return cls(settings, bytes.fromhex(settings.pop("seed")), arrays)

    @property
    def begun(self) -> bool:
        """Whether the settings of the run have arrived."""
        return "landmarks" in self.settings

    @property
    def landmarks(self) -> int:
        """Number m of landmarks."""
        return int(self.settings["landmarks"])

    @property
    def train(self) -> int:
        """Training rows of the kernel."""
        return int(self.settings["train"])

    @property
    def total(self) -> int:
        """Rows of the kernel."""
        return int(self.settings["total"])

    @property
    def done(self) -> int:
        """Rows of the kernel that have been made."""
        return int(self.settings["done"])

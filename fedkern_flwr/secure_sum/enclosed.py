"""What comes with the uploads of a sum: sealed shares and backups, and digests of seeds."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from ..wire.sums import Upload
from . import relay
from .membership import Cohort
from .seeds import COMMITMENT_BYTES
from .shamir import SHARE_BYTES, cut

_SPOOL = 16 << 20  # bytes of sealed backups in memory, more go to a temporary file


class _Enclosed(NamedTuple):
    shares: list[bytes]
    commitments: list[bytes]
    backups: int  # where they begin in the spool, -1 if there are none


class Enclosures:
    """Of all uploads of a sum.

    Parameters
    ----------
    cohort : Cohort
    double : bool
        Whether the sum has self masks: then a digest of the self seed comes first.
    """

    def __init__(self, cohort: Cohort, *, double: bool) -> None:
        self.cohort, self.double = cohort, double
        self._of: dict[int, _Enclosed] = {}
        self.spool = tempfile.SpooledTemporaryFile(max_size=_SPOOL)  # noqa: SIM115

    @property
    def uploaded(self) -> tuple[int, ...]:
        """Whose are here, ascending."""
        return tuple(sorted(self._of))

    def fit(self, upload: Upload, *, backups: bool) -> bool:
        """Tell whether what came has the right sizes; a party may leave ``backups`` out."""
        degree, double = self.cohort.degree, int(self.double)
        return (
            len(upload.shares) == double * degree * relay.SEALED_SHARE
            and len(upload.backups) in (0, backups * self.cohort.backup_bytes)
            and len(upload.commitments) == (double + degree) * COMMITMENT_BYTES
        )

    def at_odds(self, partition: int, commitments: bytes) -> list[int]:
        """Return the neighbours that committed to another seed of their pair with a newcomer."""
        own = cut(commitments, COMMITMENT_BYTES)[int(self.double) :]
        pairs = zip(self.cohort.neighbours[partition], own, strict=True)
        return [j for j, one in pairs if j in self._of and one != self.commitment(j, partition)]

    def add(self, partition: int, upload: Upload) -> None:
        """Keep what came; the backups in the spool."""
        place = self.spool.seek(0, 2) if upload.backups else -1
        self.spool.write(upload.backups)
        shares = cut(upload.shares, relay.SEALED_SHARE)
        self._of[partition] = _Enclosed(shares, cut(upload.commitments, COMMITMENT_BYTES), place)

    def share(self, source: int, destination: int) -> bytes:
        """Return the share that one party sealed for another."""
        return self._of[source].shares[self._place(source, destination)]

    def commitment(self, owner: int, other: int | None = None) -> bytes:
        """Return a party's digest of its seed with another, or of its self seed."""
        place = 0 if other is None else self.double + self._place(owner, other)
        return self._of[owner].commitments[place]

    def has_backups(self, source: int) -> bool:
        """Tell whether a party shared the seeds of its pairs."""
        return self._of[source].backups >= 0

    def backed_up(self, sources: Sequence[int], destination: int) -> bytes:
        """Return the backups that some parties sealed for another, joined."""
        out = b""
        for source in sources:
            size = len(self.cohort.neighbours[source]) * SHARE_BYTES + relay.TAG_BYTES
            self.spool.seek(self._of[source].backups + self._place(source, destination) * size)
            out += self.spool.read(size)
        return out

    def close(self) -> None:
        """Drop everything."""
        self.spool.close()
        self._of.clear()

    def _place(self, owner: int, other: int) -> int:
        return self.cohort.neighbours[owner].index(other)

"""A party's table in a hybrid split: features within declared ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.alignment import AlignmentKey, hash_ids, sort_order

from .party_table import PartyTable


class HybridTable(PartyTable):
    """Rows of one party: a block of features, labels at a hospital, held-out rows at a hospital.

    Parameters
    ----------
    *rows
        Party and rows, see :class:`~fedkern_flwr.clients.party_table.PartyTable`.
    ranges : array, shape (d, 2), or None
        [0, 1] by default.
    **common
        Options of :class:`~fedkern_flwr.clients.party_table.PartyTable`.
    """

    def __init__(self, *rows: Any, ranges: ArrayLike | None, **common: Any) -> None:
        super().__init__(*rows, **common)
        unit = np.tile([0.0, 1.0], (self.features, 1))
        self.ranges = unit if ranges is None else self._numbers(ranges, "ranges")
        self._check_ranges()

    def folds(
        self, rows: NDArray[np.intp], folds: int, key: AlignmentKey | None
    ) -> NDArray[np.intp]:
        """Deal training rows to folds of equal sizes, in the order of keyed hashes of their ids.

        Which row is in which fold stays the same as long as the rows do, and is not known without
        the key.
        """
        hashes = hash_ids(self._ids[rows], key or self._own_key(), "fedkern-flwr folds")
        out = np.empty(len(rows), np.intp)
        out[sort_order(hashes)] = np.arange(len(rows)) % folds
        return out

    def _check_ranges(self) -> None:
        if self.ranges.shape != (self.features, 2) or not np.isfinite(self.ranges).all():
            raise self._bad(
                f"ranges of shape {self.ranges.shape} do not fit {self.features} features",
                "declare least and greatest value of each",
            )
        low, high = self.ranges.T
        if not (high >= low).all():
            raise self._bad(
                "ranges that end before they begin", "declare least and greatest value of each"
            )
        for x in (self.x, self.x_test):
            outside = ((x < low) | (x > high)).any(axis=0)
            if outside.any():
                name = self.columns[int(np.argmax(outside))]
                more = f" (and {int(outside.sum()) - 1} more)" if outside.sum() > 1 else ""
                raise self._bad(
                    f"column {name!r}{more} has values outside its declared range",
                    "scale it by the public range, or declare a wider one at all its holders",
                )

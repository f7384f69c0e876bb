"""A party's table in a vertical split: columns of all rows, labels of some."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.alignment import AlignmentKey, Hashes, hash_ids
from fedkern_flwr.labels import label_rows

from .party_table import Floats, Ids, PartyTable

_ROW_NUMBERS = b"fedkern-flwr rows in the same order at all parties"


class VerticalTable(PartyTable):
    """Rows of one party: features of all rows; at an active party labels of some or all of them.

    Rows are announced in three parts: those with a label, held-out ones, and the others.

    Parameters
    ----------
    party, x, y, ids, x_test, y_test, ids_test
        See :class:`~fedkern_flwr.clients.party_table.PartyTable`. NaN in y marks a row whose label
        another party has. Without ids the rows of all parties stand in the same order.
    **common
        Options of :class:`~fedkern_flwr.clients.party_table.PartyTable`.

    Attributes
    ----------
    order_seed : int
        Rows are announced in an order that depends on it, on the alignment key and the ids; at -1
        in one that depends on the session.
    """

    order_seed = -1

    def __init__(
        self,
        party: str,
        x: ArrayLike | None,
        y: ArrayLike | None,
        ids: Ids | None,
        *held_out: Any,
        **common: Any,
    ) -> None:
        self.party = party
        rows = next((len(v) for v in (x, y, ids) if v is not None), 0)  # type: ignore[arg-type]
        features, names = self._features(x, rows), self._names(ids, rows, "row")
        labels = None
        if y is not None:
            labels = self._numbers(label_rows(y, common["classes"], party), "labels")
        known: NDArray[np.bool_] = np.zeros(rows, bool)
        if labels is not None:
            if labels.ndim not in (1, 2) or len(labels) != rows:
                raise self._bad(
                    f"labels of shape {labels.shape} do not fit {rows} rows",
                    "pass one label per row",
                )
            missing = np.isnan(labels)
            known = np.asarray(~(missing.any(axis=1) if labels.ndim == 2 else missing), bool)
            labels = labels[known]
        super().__init__(party, features[known], labels, names[known], *held_out, **common)
        self.identified = ids is not None or held_out[-1] is not None
        self.x_other = features[~known]
        self._ids = np.concatenate([self._ids, names[~known]])
        if y is None:  # to a passive party no row is held out
            self.x_other = np.concatenate([self.x_other, self.x_test])
            self._ids = np.concatenate([names, self._ids[: self.tests]])
            self.x_test = self.x_test[:0]

    @property
    def parts(self) -> tuple[Floats, ...]:
        """The features of rows with labels, of held-out rows, and of the others."""
        return self.x, self.x_test, self.x_other

    @property
    def announced_rows(self) -> int:
        """Number of all rows."""
        return sum(len(part) for part in self.parts)

    @property
    def others(self) -> int:
        """Number of rows that are neither labelled nor held out."""
        return len(self.x_other)

    def digest(self) -> str:
        """Return a digest of the features of all rows, and of the targets to learn from."""
        digest = hashlib.sha256(super().digest().encode())
        for part in self.parts[1:]:
            digest.update(b"/" + part.tobytes())
        return digest.hexdigest()

    def _ranks(self, hashes: Hashes, session: str, key: AlignmentKey) -> Hashes:
        if self.order_seed < 0:
            return hashes
        return hash_ids(self._ids, key, f"order {self.order_seed}")

    def _own_key(self) -> bytes:
        return _ROW_NUMBERS

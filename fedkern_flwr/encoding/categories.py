"""Fitted columns of categories: a column each, how frequent they are, or signed buckets."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np

from .facts import MIN_ROWS, CategoryFacts, Floats
from .gaps import Gaps, explained, indicator, stacked

#: What becomes of categories; auto: a column each up to ``MOST_COLUMNS``, else their frequency.
Categories = Literal["auto", "onehot", "frequency", "hashing"]

#: Up to so many categories become a column each.
MOST_COLUMNS = 20
#: Columns that hashed categories become.
HASHED = 32
#: Among which categories are that holders of a column count without their names.
BUCKETS = 2**14


@dataclass(frozen=True)
class Category:
    """Text: a column of 0 and 1 for each category, how frequent it is, or signed buckets.

    A hashed category is -1 or 1 in one of a fixed number of columns and 0 in the others, by a keyed
    hash of its name, put on 0 to 1. Over keys the products of two categories are 0 on average, so
    that many share few columns; one that the rows to learn from do not have is hashed as well, and
    no name is kept.

    Attributes
    ----------
    name : str
        Name of the column.
    gaps : {"encode", "keep"}
    facts : CategoryFacts
        Of the rows to learn from, without rare categories; of hashed ones without all.
    rare : int
        Categories that have too few rows, or are hashed; at least so many, if holders merged some.
    how : {"onehot", "frequency", "hashing"}
    key : str
        In hexadecimal, where categories are hashed or told apart by their buckets.
    """

    kind: ClassVar[str] = "category"
    name: str
    gaps: Gaps
    facts: CategoryFacts
    rare: int
    how: Categories
    key: str = field(default="", repr=False)

    @classmethod
    def of(
        cls,
        name: str,
        facts: CategoryFacts,
        gaps: Gaps,
        min_rows: int = MIN_ROWS,
        how: Categories = "auto",
        key: str = "",
        merged: int = 0,
    ) -> Self:
        """Make the column of its facts; ``merged`` more categories are not among them."""
        kept = {one: facts.counts[one] for one in sorted(facts.counts)}
        kept = {one: count for one, count in kept.items() if count >= min_rows}
        if how == "auto":
            how = "frequency" if len(kept) > MOST_COLUMNS else "onehot"
        if how == "hashing":
            kept = {}
        own = CategoryFacts(facts.rows, facts.missing, kept)
        return cls(name, gaps, own, len(facts.counts) - len(kept) + merged, how, key)

    @property
    def _values(self) -> list[str]:
        """Names of the columns, without that of gaps."""
        if self.how == "hashing":
            return [f"{self.name}[hash {k + 1}]" for k in range(HASHED)] if self.rare > 1 else []
        if len(self.facts.counts) + bool(self.rare) < 2:
            return []
        if self.how == "frequency":
            constant = not self.rare and len(set(self.facts.counts.values())) == 1
            return [] if constant else [f"{self.name}[frequency]"]
        names = [f"{self.name}[{k + 1}]" for k in range(len(self.facts.counts))]
        return names + [f"{self.name}[other]"] * bool(self.rare)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what it becomes; they say no category."""
        return (*self._values, *indicator(self.name, self.facts, self.gaps))

    def transform(self, codes: Floats, names: Sequence[str]) -> Floats:
        """Return the outputs of rows, shape (n, outputs).

        A category that is rare or unknown is one of the others; where there are no others, it has
        no column, or the frequency 0. A hashed one has its bucket.
        """
        known = np.isfinite(codes)
        rows = np.where(known, codes, len(names)).astype(np.intp)
        found = self._cells(rows, names) if self._values else []
        if self.gaps == "keep":
            found = [np.where(known, values, np.nan) for values in found]
        return stacked(found, known, self.facts, self.gaps)

    def _cells(self, rows: Any, names: Sequence[str]) -> list[Floats]:
        """Return the columns of rows, given by their positions among the names, or behind them."""
        if self.how == "hashing":
            table = np.full((len(names) + 1, HASHED), 0.5)
            for k, name in enumerate(names):
                bucket, sign = signed_bucket(bytes.fromhex(self.key), name)
                table[k, bucket] = (1 + sign) / 2
            return list(table[rows].T)
        names, kept = self._kept_as(names), list(self.facts.counts)
        places = {name: k for k, name in enumerate(kept)}
        missing = len(kept) + 1  # which no column is of
        place = np.array([*(places.get(name, len(kept)) for name in names), missing], np.intp)[rows]
        if self.how == "onehot":
            return [np.where(place == k, 1.0, 0.0) for k in range(len(self._values))]
        total = self.facts.rows - self.facts.missing
        shares = np.array([*(count / total for count in self.facts.counts.values()), 0.0, 0.0])
        return [shares[place]]

    def unknown(self, codes: Floats, names: Sequence[str]) -> Any:
        """Return which rows have a category that is not kept: a rare or an unknown one.

        Names of hashed categories are not kept, so that nothing is known of them.
        """
        if self.how == "hashing" or not self._values:
            return np.zeros(len(codes), bool)
        known = np.append(np.isin(self._kept_as(names), list(self.facts.counts)), True)
        return ~known[np.where(np.isfinite(codes), codes, len(names)).astype(np.intp)]

    def _kept_as(self, names: Sequence[str]) -> Sequence[str]:
        """Return what names are kept as: themselves, capital letters aside, or their buckets."""
        key = bytes.fromhex(self.key)
        if key:
            return [str(bucket_of(key, name)) for name in names]
        spelled = {name.casefold(): name for name in self.facts.counts}
        return [spelled.get(name.casefold(), name) for name in names]

    def explain(self) -> str:
        """Return what becomes of it, without a category."""
        kept, rare = len(self.facts.counts), self.rare
        text = f"{kept} categories, "
        if not self._values:
            text = f"fewer than {MIN_ROWS} rows have the same text" if self.rare > 1 else "constant"
        elif self.how == "hashing":
            text = f"{rare} categories, hashed to {HASHED} columns"
        else:
            frequent = self.how == "frequency"
            text += "their frequency" if frequent else "a column each"
            text += f"; {rare} rare ones are {'0' if frequent else 'others'}" if rare else ""
        return explained(text, self.facts, self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        own = {"kind": self.kind, "name": self.name, "gaps": self.gaps, "rare": self.rare}
        own |= {"how": self.how, "facts": vars(self.facts)}
        return own | ({"key": self.key} if self.key else {})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read what :meth:`to_dict` returned."""
        facts = values["facts"]
        counts = {str(name): int(count) for name, count in facts["counts"].items()}
        own = CategoryFacts(int(facts["rows"]), int(facts["missing"]), counts)
        key = bytes.fromhex(values.get("key", "")).hex()
        how: Any = values.get("how") or ("frequency" if len(counts) > MOST_COLUMNS else "onehot")
        if how not in get_args(Categories)[1:]:
            raise ValueError
        return cls(str(values["name"]), values["gaps"], own, int(values["rare"]), how, key)


def column_key(secret: bytes, name: str) -> bytes:
    """Return the key of the hash of a column's categories."""
    return hmac.digest(secret, f"fedkern-flwr categories/{name}".encode(), "sha256")


def bucket_of(key: bytes, name: str) -> int:
    """Return the bucket of a category, which tells nothing of it without the key."""
    digest = hmac.digest(key, name.casefold().encode(), "sha256")
    return int.from_bytes(digest[:8], "big") % BUCKETS


def signed_bucket(key: bytes, name: str) -> tuple[int, int]:
    """Return the column of a hashed category and its sign, -1 or 1."""
    digest = hmac.digest(key, name.casefold().encode(), "sha256")
    return int.from_bytes(digest[:8], "big") % HASHED, 1 - 2 * (digest[8] & 1)

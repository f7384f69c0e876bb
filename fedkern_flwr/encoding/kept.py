"""Encoders that a node keeps beside its state, for later runs and predictions."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any, Self

from ..checkpoint import write_atomically
from ..errors import TableError
from ..plain_text import read_json
from ..tables.table import Table
from .encoder import Encoder


class KeptEncoder:
    """The encoder of a block of columns: of the node's own rows, or common to all its holders.

    Parameters
    ----------
    encoder : Encoder
        Fitted on rows of the node, or made of sums over all holders.
    mark : str
        Drawn when it was fitted: another holder of the block with an encoder of its own has another
        one, so that names of columns tell them apart and say nothing of the rows. Of a common
        encoder that of the run that made it.
    """

    def __init__(self, encoder: Encoder, mark: str) -> None:
        self.encoder, self.mark = encoder, mark

    @classmethod
    def fit(cls, path: Path, table: Table, scaling: Any = "auto", categories: Any = "auto") -> Self:
        """Fit the rows of a table and keep the encoder in a file, for this user's eyes only.

        Raises
        ------
        TableError
            The file cannot be written, or no column says anything.
        OptionError
            There is no such scaling, or no such form of categories.
        """
        encoder = Encoder.fit(table, scaling, categories=categories)
        kept = cls(encoder, secrets.token_hex(8))
        kept.write(path)
        return kept

    def write(self, path: Path) -> None:
        """Keep the encoder in a file, for this user's eyes only.

        Raises
        ------
        TableError
            The file cannot be written.
        """
        text = json.dumps({**self.encoder.to_dict(), "mark": self.mark})
        try:
            write_atomically(path, text.encode(), private=True)
        except OSError:
            raise TableError(
                "the file of the encoder cannot be written",
                remedy="name one in a folder of this user",
                code="FK-FILE-WRITE",
            ) from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the encoder of an earlier run.

        Raises
        ------
        TableError
            The file cannot be read, or holds something else.
        """
        try:
            values = read_json(path.read_text())
        except (OSError, ValueError):
            raise TableError(
                "the file of the encoder cannot be read",
                remedy="name that of the earlier run",
                code="FK-FILE-READ",
            ) from None
        encoder = Encoder.from_dict(values)
        return cls(encoder, str(values.get("mark", "")))

    def apply(self, table: Table) -> Table:
        """Return a table of what the columns become."""
        return self.encoder.apply(table)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what the columns become, which no other encoder has."""
        return tuple(f"{name} of {self.mark}" for name in self.encoder.outputs)

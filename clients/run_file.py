"""A private file of a run on a node, for what is too large to travel with its state."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import BinaryIO

from fedkern_flwr.checkpoint import open_private, run_folder, temporary_folder
from fedkern_flwr.errors import StateError


class RunFile:
    """A file that only this user can read.

    Parameters
    ----------
    folder : Path or None
        Where; by default a folder for this user's eyes in the system's place for temporary files.
    session : str
        Name of the run.
    partition : int
    kind : str
        End of the file's name.
    """

    def __init__(self, folder: Path | None, session: str, partition: int, kind: str) -> None:
        base = folder if folder is not None else temporary_folder()
        self.path = run_folder(base, session, partition) / f"partition-{partition}.{kind}"
        self.party = f"partition {partition}"

    def open(self) -> BinaryIO:
        """Open the file to read and write; it is made if it is not there."""
        return open_private(self.path)

    def gone(self, what: str, remedy: str, *, code: str = "FK-STATE-GONE") -> StateError:
        """Return the error that says that this node has lost what was in the file."""
        return StateError(
            f"the {what} of this run are gone from its disk",
            remedy=remedy,
            party=self.party,
            code=code,
        )

    def erase(self) -> None:
        """Remove the file and, if it was the last, the run's folder."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty, or just removed by another party
            self.path.parent.rmdir()

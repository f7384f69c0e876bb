"""What the driver needs of a method: how its run is kept, and what it remembers of it."""

from __future__ import annotations

from typing import Any, ClassVar

from .guard.counting import too_many
from .privacy import Release
from .strategy import Arrays, logger
from .summing import SummingStrategy


class Driven(SummingStrategy):
    """A strategy whose exchanges are the driver's, see :class:`~fedkern_flwr.method.Method`.

    Attributes
    ----------
    attempts : int
        A question that too few answered is asked so often in all.
    planned : int
        How many rounds, or exchanges, the run will take, for its progress.
    saved_, saved_meta_ : dict
        What the last ``Save`` kept, in a run that is resumed; else empty.
    kept_ : int or None
        The exchange after which the clients kept what they go on from.
    spent_ : set of int
        Partitions that have opened what is opened once.
    simulated : bool
        Whether the run at hand is a simulation.
    noised_ : dict
        Name -> a sum with noise that was opened, and over how many parties.
    """

    confirmed: ClassVar[bool]
    opens_once: ClassVar[bool]
    counts_replies: ClassVar[bool]
    reopens: ClassVar[bool]
    attempts: int
    #: Sums about the same rows that share a budget of privacy; the client's class says the same.
    releases: ClassVar[int] = 1

    def _reset(self) -> None:
        super()._reset()
        self.planned, self.simulated = 1, False
        self._warned: set[str] = set()
        self.saved_: Arrays = {}
        self.saved_meta_: dict[str, Any] = {}
        self.kept_: int | None = None
        self.spent_: set[int] = set()
        self.noised_: dict[str, tuple[Release, int]] = {}

    def note_noise(self, release: Release, parties: int) -> None:
        """Remember a sum with noise that was opened over so many parties."""
        self.noised_[release.name] = release, parties

    @property
    def session(self) -> str:
        """Name of the run."""
        return self._session

    def check_answer(self, partition: int, answer: Any) -> None:
        """Refuse a reply that is well-formed but wrong.

        Raises
        ------
        ProtocolError
        """

    def warn_released(self, name: str) -> None:
        """Warn once of a sum of more numbers than unknowns; in deployments the nodes do."""
        if name in self._warned or not self.simulated:
            return
        for entry in self.released_sums():
            if entry["name"] == name and entry["numbers"] > entry["unknowns"]:
                self._warned.add(name)
                problem = too_many(entry["numbers"], entry["unknowns"])
                logger.warning("the rows behind the sum %r can be computed: %s", name, problem)

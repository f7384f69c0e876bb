"""What a party of FedCG has besides the messages that it is sent, and what a viewer writes down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .gradient_inversion import Floats
from .seen import Watched, Watcher

#: The server as a viewer; parties are named by their partition.
SERVER = -1


@dataclass
class Insider(Watched):
    """What a party has besides the messages that it is sent.

    Attributes
    ----------
    seed : bytes
    landmarks : ndarray, shape (m, d)
        Of its block.
    """

    seed: bytes = b""
    landmarks: Floats = field(default_factory=lambda: np.zeros((0, 0)))


class Insiders(Watcher[Insider]):
    """Watches all parties of one run in this process.

    Examples
    --------
    ::

        insiders, transcript = Insiders(), Transcript()
        simulate(FedCG(), insiders.watch(client_fn), 5, transcript=transcript)
        run = HybridRun(transcript, insiders)
    """

    insider = Insider

    def listen(self, client: Any, insider: Insider) -> None:
        """Have a client note its landmarks and their secret."""
        landmarks = client._landmarks

        def drawn() -> Floats:
            insider.seed, insider.landmarks = client.kept.seed, landmarks()
            return insider.landmarks

        client._landmarks = drawn


@dataclass(frozen=True)
class Matrix:
    """What a viewer can write down of a hospital's patients.

    Attributes
    ----------
    viewer : int
        A partition, or :data:`SERVER`.
    source : str
        Where it is from.
    hospital : int
    start : int
        Position of its first row among the hospital's rows.
    blocks : tuple of str
        The blocks whose features are in it.
    exponents : ndarray, shape (n, m)
        gamma_j D[i, j] with squared distances D, or what the viewer takes for that.
    gammas : ndarray, shape (1,) or (m,)
    landmarks : ndarray, shape (m, d), or None
        Of these blocks, where the viewer knows them.
    scaled : bool
        Whether to each row of the exponents a number is added that the viewer does not know.
    """

    viewer: int
    source: str
    hospital: int
    start: int
    blocks: tuple[str, ...]
    exponents: Floats
    gammas: Floats
    landmarks: Floats | None = None
    scaled: bool = False

    @property
    def distances(self) -> Floats:
        """The squared distances, shape (n, m)."""
        return np.asarray(self.exponents / self.gammas)

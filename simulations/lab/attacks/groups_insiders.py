"""What the parties of HierarchicalSVM have in hand, noted as they run in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .gradient_inversion import Floats
from .seen import Watched, Watcher


@dataclass
class SVMInsider(Watched):
    """What a party has besides the messages that it is sent.

    Attributes
    ----------
    steps : list of (int, dict)
        What it kept after each step: its number, and arrays by name.
    opened : list of (int, place, ndarray)
        What it unsealed: from whom, where it belongs, and the numbers.
    """

    steps: list[tuple[int, dict[str, Floats]]] = field(default_factory=list)
    opened: list[tuple[int, tuple[str | int, ...], Floats]] = field(default_factory=list)


class SVMInsiders(Watcher[SVMInsider]):
    """Watches all parties of one run in this process.

    Examples
    --------
    ::

        insiders, transcript = SVMInsiders(), Transcript()
        simulate(HierarchicalSVM(), insiders.watch(client_fn), 12, transcript=transcript)
        run = SVMRun(transcript, insiders)
    """

    insider = SVMInsider

    def listen(self, client: Any, insider: SVMInsider) -> None:
        """Have a client note what it keeps and what it unseals."""
        close, unseal = client.close_round, client.unseal

        def closed(state: Any, number: int, *rest: Any) -> None:
            close(state, number, *rest)
            kept = client.kept
            if kept.settings.get("done") == number:
                arrays = {k: np.array(v) for k, v in kept.arrays.items()}
                insider.steps.append((number, arrays))

        def opened(other: int, sealed: bytes, shape: tuple[int, ...], *place: str | int) -> Floats:
            found: Floats = unseal(other, sealed, shape, *place)
            insider.opened.append((other, (client.session, *place), found.ravel()))
            return found

        client.close_round, client.unseal = closed, opened

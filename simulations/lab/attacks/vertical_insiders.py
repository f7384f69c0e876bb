"""What the parties of FDSKL have in hand, noted as they run in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .seen import Watched, Watcher


@dataclass
class VerticalInsider(Watched):
    """What a party has besides the messages that it is sent.

    Attributes
    ----------
    kept : KeptState or None
        What it keeps of the run: secret of its directions, order of its rows, coefficients.
    phases : list of (rows, phases)
        What it received: positions among its announced rows, shape (n,), and phases, (n, R).
    """

    kept: Any = None
    phases: list[tuple[NDArray[np.int32], NDArray[Any]]] = field(default_factory=list)

    def again(self) -> Any:
        """Return its client as it was during the run."""
        self.client.kept = self.kept
        return self.client


class VerticalInsiders(Watcher[VerticalInsider]):
    """Watches all parties of one run in this process.

    Examples
    --------
    ::

        insiders, transcript = VerticalInsiders(), Transcript()
        simulate(FDSKL(), insiders.watch(client_fn), 3, transcript=transcript)
        run = VerticalRun(transcript, insiders)
    """

    insider = VerticalInsider

    def listen(self, client: Any, insider: VerticalInsider) -> None:
        """Have a client note the phases that it received, and its state."""
        note_taken, close_round = client.note_taken, client.close_round

        def taken() -> None:
            rows, upto = client.kept.arrays["pending rows"], client.kept.settings["pending upto"]
            if upto:
                insider.phases.append((rows.copy(), np.array(client.store().read(rows, int(upto)))))
            note_taken()

        def closed(state: Any, *done: Any) -> None:
            insider.kept = client.kept
            close_round(state, *done)

        client.note_taken, client.close_round = taken, closed

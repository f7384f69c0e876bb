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
        note_taken, end = client.note_taken, client.end

        def taken(kept: Any) -> None:
            rows, upto = kept.arrays["pending rows"], int(kept.settings["pending upto"])
            if upto:
                insider.phases.append((rows.copy(), np.array(client.store(kept).read(rows, upto))))
            note_taken(kept)

        def ended(state: Any, request: Any, kept: Any) -> None:
            insider.kept = kept
            end(state, request, kept)

        client.note_taken, client.end = taken, ended

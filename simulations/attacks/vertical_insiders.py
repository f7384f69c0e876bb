"""What the parties of FDSKL have in hand, noted as they run in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class VerticalInsider:
    """What a party has besides the messages that it is sent.

    Attributes
    ----------
    client : VerticalKernelClient
    kept : KeptState or None
        What it keeps of the run: secret of its directions, order of its rows, coefficients.
    phases : list of (rows, phases)
        What it received: positions among its announced rows, shape (n,), and phases, (n, R).
    totals : list of (str, ndarray)
        Name and content of the sums that it opened.
    secrets : dict
        Partition -> secret of the pair, as far as it used it.
    """

    client: Any
    kept: Any = None
    phases: list[tuple[NDArray[np.int32], NDArray[Any]]] = field(default_factory=list)
    totals: list[tuple[str, NDArray[Any]]] = field(default_factory=list)
    secrets: dict[int, bytes] = field(default_factory=dict)


class VerticalInsiders:
    """Watches all parties of one run in this process.

    Attributes
    ----------
    parties : dict
        Partition -> :class:`VerticalInsider`.

    Examples
    --------
    ::

        insiders, transcript = VerticalInsiders(), Transcript()
        simulate(FDSKL(), insiders.watch(client_fn), 3, transcript=transcript)
        run = VerticalRun(transcript, insiders)
    """

    def __init__(self) -> None:
        self.parties: dict[int, VerticalInsider] = {}

    def watch(self, client_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a ``client_fn`` whose clients note what they open, and are as before."""

        def watched(context: Any) -> Any:
            client = client_fn(context)
            insider = self.parties.setdefault(client.partition, VerticalInsider(client))
            insider.client = client
            _listen(client, insider)
            return client

        return watched


def _listen(client: Any, insider: VerticalInsider) -> None:
    open_sums, pair_secret = client._open_sums, client.pair_secret
    note_taken, end = client.note_taken, client.end

    def opened(session: str, sections: Any) -> Any:
        sums = open_sums(session, sections)
        if sums is not None:
            insider.totals += [(name, total.copy()) for name, total in sums.delivered.items()]
        return sums

    def shared(other: int) -> bytes:
        insider.secrets[other] = pair_secret(other)
        return insider.secrets[other]

    def taken(kept: Any) -> None:
        rows, upto = kept.arrays["pending rows"], int(kept.settings["pending upto"])
        if upto:
            insider.phases.append((rows.copy(), np.array(client.store(kept).read(rows, upto))))
        note_taken(kept)

    def ended(state: Any, request: Any, kept: Any) -> None:
        insider.kept = kept
        end(state, request, kept)

    client._open_sums, client.pair_secret = opened, shared
    client.note_taken, client.end = taken, ended

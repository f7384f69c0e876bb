"""A noisy sum that is released again and again: what the server opens, less what colluders know."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.secure_sum import Encoding, Party, PartyState, SecureSum
from fedkern_flwr.wire.sections import Section, attach, detach
from fedkern_flwr.wire.sums import Order, Unmask, Upload

from .gradient_inversion import Floats

#: Name of a sum -> partition -> its order and what that party adds, before noise and masks.
Contributions = dict[str, dict[int, tuple[Order, Floats]]]

_CONTRIBUTE = Party.contribute
_NUMBERS = 1 << 18  # of releases that are made at once


@contextmanager
def contributions() -> Iterator[Contributions]:
    """Note what the parties of a run in this process add to sums with noise: the first of a name.

    The run itself is made without noise. So two runs over two tables have the same model, and what
    is counted on held-out rows with it differs by nothing but rows.
    """
    found: Contributions = {}

    def noted(party: Party, order: Order, values: NDArray[Any], **more: Any) -> Upload:
        if not order.noise:
            return _CONTRIBUTE(party, order, values, **more)
        parties = found.setdefault(order.name.partition("#")[0], {})
        parties.setdefault(party.partition, (order, np.array(values, np.float64)))
        return _without_noise(party, order, values, **more)

    Party.contribute = noted  # type: ignore[method-assign,assignment]
    try:
        yield found
    finally:
        Party.contribute = _CONTRIBUTE  # type: ignore[method-assign]


class ReplayedSum:
    """A sum of a run, made anew with fresh keys, masks and noise as often as one likes.

    Parameters
    ----------
    order : Order
        With which the run had it made.
    vectors : mapping
        Partition -> what that party adds.
    threshold : int, optional
        Fewest parties over which it may be opened; by default all.
    colluders : collection of int
        Parties that tell the server what they added, noise included.

    Attributes
    ----------
    alive : list of int
        The parties over which it is opened: the fewest, colluders and the first among them.
    """

    def __init__(
        self,
        order: Order,
        vectors: Mapping[int, Floats],
        threshold: int | None = None,
        colluders: Collection[int] = (),
    ) -> None:
        self.order, self.vectors, self.colluders = order, dict(vectors), colluders
        others = [p for p in vectors if p not in colluders]
        least = len(vectors) if threshold is None else threshold
        self.alive = sorted([*others[: least - len(colluders)], *colluders])
        self.parties = {p: Party(p, PartyState("replayed")) for p in vectors}
        keys = {p: party.announce() for p, party in self.parties.items()}
        self.server = SecureSum("replayed", keys, threshold=threshold)
        for party in self.parties.values():
            party.join(self.server.roster)

    def releases(self, victim: int, values: Floats, times: int) -> Floats:
        """Release the sum so often; return what is left for whoever knows all but the victim.

        Many releases are one long sum, whose numbers all have noise of their own.

        Parameters
        ----------
        victim : int
            A party that does not collude.
        values : ndarray, shape (length,)
            What it adds.
        times : int
            How often.

        Returns
        -------
        ndarray, shape (times, length)
            Its numbers and the noise of all who do not collude.
        """
        most = max(1, _NUMBERS // self.order.length)
        parts = [min(most, times - start) for start in range(0, times, most)]
        return np.concatenate([self._release(victim, values, some) for some in parts])

    def _release(self, victim: int, values: Floats, times: int) -> Floats:
        order, encoding = self.order, Encoding.of(self.order)
        length = times * order.length
        running = self.server.order(order.name, length, encoding, self_masks=order.self_masks)
        known = np.zeros(length, encoding.dtype)
        for p in self.alive:
            party = self.parties[p]
            party.state.noise_key = secrets.token_bytes(32)  # as each run has its own
            added = np.tile(values if p == victim else self.vectors[p], times)
            if p != victim:
                known += encoding.encode(added, len(self.vectors), name=order.name)
            send = _without_noise if p in self.colluders else _CONTRIBUTE
            self.server.take(p, _carried(send(party, running.order, added)))
        for p, messages in self.server.unmask_sections([running]).items():
            (section,) = _carried(*messages)
            reply = self.parties[p].unmask(section.read(Unmask, party="server"))
            self.server.take(p, _carried(reply))
        left = self.server.total(running) - encoding.decode(known, len(self.vectors))
        return np.asarray(left).reshape(times, order.length)


def _without_noise(party: Party, order: Order, values: NDArray[Any], **more: Any) -> Upload:
    """Contribute as a colluder does who tells its noise: it may as well add none."""
    if (order.cohort, order.index) not in party.accepted:
        party.accept(order)
    upload = _CONTRIBUTE(party, replace(order, noise=0), values, **more)
    party.state.open[order.cohort, order.index].order = order
    party.drawn[order.name] = secrets.token_bytes(32)  # nobody's, for the ledger
    return upload


def _carried(*messages: Any) -> list[Section]:
    arrays, scalars = attach(messages)
    return detach(arrays, scalars, party="server")[2]

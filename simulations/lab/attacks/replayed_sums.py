"""A noisy sum that is released again and again: what the server opens, less what colluders know."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.secure_sum import Encoding, Party, PartyState, SecureSum
from fedkern_flwr.wire.sections import Section, attach, detach
from fedkern_flwr.wire.sums import Order, Unmask, Upload

from .gradient_inversion import Floats
from .seen import Watched, Watcher


@dataclass
class Contributed(Watched):
    """What a party adds to sums.

    Attributes
    ----------
    sums : dict
        Name of the sum -> its order and what this party adds, before noise and masks; the first.
    """

    sums: dict[str, tuple[Order, Floats]] = field(default_factory=dict)


class Contributions(Watcher[Contributed]):
    """Watches what all parties of a run add to sums with noise."""

    insider = Contributed

    def listen(self, client: Any, insider: Contributed) -> None:
        """Have a client note what it adds."""
        open_sums = client._open_sums

        def opened(*known: Any) -> Any:
            sums = open_sums(*known)
            if sums is not None:
                _note(sums.party, insider.sums)
            return sums

        client._open_sums = opened


def _note(party: Party, sums: dict[str, tuple[Order, Floats]]) -> None:
    contribute = party.contribute

    def noted(order: Order, values: NDArray[Any], **more: Any) -> Any:
        if order.noise:
            name = order.name.partition("#")[0]
            sums.setdefault(name, (order, np.array(values, np.float64)))
        return contribute(order, values, **more)

    party.contribute = noted  # type: ignore[method-assign]


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

    def release(self, victim: int, values: Floats) -> Floats:
        """Release the sum once; return what is left of it for whoever knows all but the victim.

        Parameters
        ----------
        victim : int
            A party that does not collude.
        values : ndarray
            What it adds.

        Returns
        -------
        ndarray
            Its numbers and the noise of all who do not collude.
        """
        order, encoding = self.order, Encoding.of(self.order)
        running = self.server.order(order.name, order.length, encoding, self_masks=order.self_masks)
        known = np.zeros(order.length, encoding.dtype)
        for p in self.alive:
            party = self.parties[p]
            party.state.noise_key = secrets.token_bytes(32)  # as each run has its own
            added = values if p == victim else self.vectors[p]
            if p != victim:
                known += encoding.encode(added, len(self.vectors), name=order.name)
            send = _without_noise if p in self.colluders else Party.contribute
            self.server.take(p, _carried(send(party, running.order, added)))
        for p, messages in self.server.unmask_sections([running]).items():
            (section,) = _carried(*messages)
            reply = self.parties[p].unmask(section.read(Unmask, party="server"))
            self.server.take(p, _carried(reply))
        total = self.server.total(running)
        return np.asarray(total - encoding.decode(known, len(self.vectors)))


def _without_noise(party: Party, order: Order, values: Floats) -> Upload:
    """Contribute as a colluder does who tells its noise: it may as well add none."""
    party.accept(order)
    upload = party.contribute(replace(order, noise=0), values)
    party.state.open[order.cohort, order.index].order = order
    return upload


def _carried(*messages: Any) -> list[Section]:
    arrays, scalars = attach(messages)
    return detach(arrays, scalars, party="server")[2]

"""What votes for survivors cost: exchanges, bytes and time of a secure sum with pinned identities.

Party and server are driven by hand, without Flower. Counted are all sections of a sum but its
order; a vector is that of a POF-MKL round (2,046 numbers). Per client, the mean over survivors.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import Record, run_script
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rich.console import Console
from rich.table import Table

from fedkern_flwr.secure_sum import Encoding, Party, PartyState, SecureSum
from fedkern_flwr.wire import PhaseMessage
from fedkern_flwr.wire.sections import Section
from fedkern_flwr.wire.sums import Ballot

LENGTH = 2046


@dataclass
class Cost:
    """Of one sum: exchanges, bytes of a client, CPU seconds of a client after its upload."""

    exchanges: int = 1
    up: float = 0.0
    down: float = 0.0
    seconds: float = 0.0


def one_sum(clients: int, gone: int, *, pinned: bool) -> Cost:
    """Return what a sum costs of which ``gone`` clients never upload."""
    identities = {p: Ed25519PrivateKey.generate() for p in range(clients)} if pinned else {}
    trusted = {p: k.public_key().public_bytes_raw() for p, k in identities.items()} or None
    parties = {
        p: Party(p, PartyState("bench"), identity=identities.get(p), trusted=trusted)
        for p in range(clients)
    }
    server = SecureSum("bench", {p: party.announce() for p, party in parties.items()})
    running = server.order("vector", LENGTH, Encoding.integers(1 << 20))
    cost, living = Cost(), range(gone, clients)

    def answer(p: int, reply: PhaseMessage) -> None:
        cost.up += _size([reply])
        server.take(p, [Section(reply.phase, reply.arrays(), reply.scalars())])

    def exchange(asked: Mapping[int, Sequence[Any]]) -> None:
        cost.exchanges += bool(asked)
        for p, (request,) in asked.items():
            cost.down += _size([request])
            started = time.process_time()
            known = parties[p]
            reply = known.vote(request) if isinstance(request, Ballot) else known.unmask(request)
            cost.seconds += time.process_time() - started
            answer(p, reply)

    for p in living:
        roster, order = server.sections(p, [running])
        parties[p].join(roster)  # type: ignore[arg-type]
        answer(p, parties[p].contribute(order, np.full(LENGTH, p)))  # type: ignore[arg-type]
    exchange(server.ballot_sections([running]))
    exchange(server.unmask_sections([running]))
    assert (server.total(running) == sum(living)).all()
    for name in ("up", "down", "seconds"):
        setattr(cost, name, getattr(cost, name) / len(living))
    return cost


def _size(messages: Iterable[PhaseMessage]) -> int:
    texts = [v for m in messages for v in m.scalars().values() if isinstance(v, bytes)]
    return sum(a.nbytes for m in messages for a in m.arrays()) + sum(map(len, texts))


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Print the table."""
    table = Table("clients", "gone", "identities", "exchanges", "bytes up", "bytes down", "CPU ms")
    records = []
    for clients in (10,) if options.quick else (10, 100):
        for gone in (0, 1):
            plain, voted = (one_sum(clients, gone, pinned=pinned) for pinned in (False, True))
            for who, cost in (("none", plain), ("pinned", voted)):
                sizes = (f"{n:,.0f}" for n in (cost.up, cost.down))
                row = (f"{cost.exchanges}", *sizes, f"{1000 * cost.seconds:.1f}")
                table.add_row(f"{clients}", f"{gone}", who, *row)
            case = f"{clients} clients, {gone} gone"
            records += [
                Record(f"{case}: exchanges", voted.exchanges - plain.exchanges, "more"),
                Record(f"{case}: up", voted.up - plain.up, "bytes more"),
                Record(f"{case}: down", voted.down - plain.down, "bytes more"),
            ]
    console.print(table)
    return records


if __name__ == "__main__":
    run_script(__doc__, measure)

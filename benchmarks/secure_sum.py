"""Whole secure sums: without Flower, through the in-process engine, and masks alone.

A sum counts from the parties' first keys to the server's total: all clients' work, one after the
other, and the server's. Several sums of a run share the set-up. The yardstick makes and removes as
many masks with AES and NumPy and does nothing else: no keys, no shares, no checks, no messages.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from common import Record, run_script
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedkern_flwr.exchange import request_messages
from fedkern_flwr.guard import SumRule
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.secure_sum import Encoding, Party, PartyState, SecureSum
from fedkern_flwr.secure_sum.graph import degree
from fedkern_flwr.secure_sum.masks import _PARALLEL, _processors
from fedkern_flwr.simulations import Fault, simulate
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.strategies import SummingStrategy
from fedkern_flwr.wire import DescribeReply, DescribeRequest, PhaseMessage
from fedkern_flwr.wire.sections import Section
from fedkern_flwr.wire.sums import Roster, SumReply, SumRequest

Make = Callable[[int], NDArray[Any]]

GOAL = 4.0  # seconds, for the first case
BOUND, BITS = 2**40, 64
BLOCK = 1 << 20
NAME = "vector"
TIMEOUT = 3600.0
ROWS = (
    f"goal of {GOAL:g} s / ours",
    "ours / bare masks",
    "through Flower / ours",
    "ours",
    "  set-up",
    "  masking",
    "  adding",
    "  unmasking",
    "through Flower",
    "bare masks",
    "kB up per client",
    "  not the vector",
    "exact",
)
SECTIONS = (ROWS[2], ROWS[9])


def integers(length: int, bound: int, partition: int) -> NDArray[np.int64]:
    """Return the vector of a partition."""
    return np.random.default_rng(partition).integers(-bound, bound, length, endpoint=True)


# -- a method that sums one vector: all that the package asks for


@dataclass(frozen=True, kw_only=True)
class VectorRequest(SumRequest):
    """Ask for a vector."""

    phase = NAME


class VectorClient(PhaseClient):
    """Contributes the vector that ``make`` returns for its partition."""

    def __init__(self, context: Context, make: Make) -> None:
        super().__init__(context)
        self.make = make

    def describe(self, request: DescribeRequest) -> DescribeReply:
        """Tell the partition; there is no table."""
        return DescribeReply(
            rows=0,
            features=0,
            test_rows=0,
            columns="",
        )

    def handlers(self) -> dict[str, Any]:
        """Answer one phase."""
        return {NAME: (VectorRequest, self.give)}

    def give(self, request: VectorRequest) -> SumReply:
        """Contribute the vector."""
        assert self.sums is not None
        order = self.sums.order(NAME)
        encoding = Encoding(order.kind, order.bits, order.bound)  # type: ignore[arg-type]
        self.sums.check(NAME, SumRule(encoding, self_masks=None))
        self.sums.contribute(NAME, self.make(self.partition))
        return SumReply()


class OneSum(SummingStrategy):
    """Sums one vector of every client, ``num_rounds`` times.

    Parameters
    ----------
    length : int
    encoding : Encoding

    Attributes
    ----------
    total_ : ndarray
        The last sum.
    seconds_ : float
        From the first key to the last sum.
    """

    method = "one-sum"

    def __init__(self, length: int, encoding: Encoding, **common: Any) -> None:
        super().__init__(**common)
        self.length, self.encoding = length, encoding
        self.total_: NDArray[Any] = np.zeros(0)
        self.seconds_ = 0.0

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 1,
        timeout: float = TIMEOUT,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the method."""
        self._reset()
        started = time.perf_counter()
        self.gather(grid, secure=True)
        assert self.sums is not None
        for number in range(1, num_rounds + 1):
            running = self.sums.order(NAME, self.length, self.encoding)
            request = VectorRequest(session=self._session, round=number)
            messages = request_messages(
                request,
                self.active_nodes(),
                group_id=str(number),
                sections=self.sum_sections([running]),
            )
            self.run_phase(grid, messages, phase=NAME, timeout=timeout, number=number)
            self.unmask(grid, [running], number=number, timeout=timeout)
            self.total_ = self.sums.total(running)
        self.seconds_ = time.perf_counter() - started
        self.finish(grid, number=num_rounds, timeout=timeout)
        return Result()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Not used: ``start`` sends its own messages."""
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Not used: ``start`` reads the sum."""
        return None, None


# -- the three ways to sum


@dataclass
class Case:
    """What is summed, and who fails.

    Attributes
    ----------
    name : str
    clients, length : int
    gone : frozenset of int
        Partitions that drop out before the upload.
    silent : frozenset of int
        Partitions that fall silent after it, and stay so.
    sums : int
        Sums per run, with one set-up.
    vectors : list of ndarray
        By partition; made when the case is run.
    """

    name: str
    clients: int
    length: int
    gone: frozenset[int] = frozenset()
    silent: frozenset[int] = frozenset()
    sums: int = 1
    vectors: list[NDArray[np.int64]] = field(default_factory=list)

    def expected(self) -> NDArray[np.int64]:
        """Return the sum of the integers of those that upload."""
        total = np.zeros(self.length, np.int64)
        for partition in set(range(self.clients)) - self.gone:
            total += self.vectors[partition]
        return total

    def fault(self, delivery: Delivery) -> Fault | None:
        """Say who fails, for the engine."""
        if delivery.partition in self.gone and delivery.phase == NAME:
            return Fault("error")
        if delivery.partition in self.silent and delivery.phase in ("unmask", "recover"):
            return Fault("error")
        return None


@dataclass
class Account:
    """What a sum has cost: seconds of all clients and the server, mean bytes of a client."""

    setup: float = 0.0
    masking: float = 0.0
    adding: float = 0.0
    unmasking: float = 0.0
    bytes_up: float = 0.0
    exact: bool = True

    @property
    def seconds(self) -> float:
        """All seconds."""
        return self.setup + self.masking + self.adding + self.unmasking


def protocol(case: Case) -> Account:
    """Drive parties and server by hand, without messages.

    masking: the clients' ``contribute``; adding: the server takes the uploads; unmasking: all that
    follows, clients and server.
    """
    account, clock, sent = Account(), time.perf_counter, 0
    started = clock()
    parties = {p: Party(p, PartyState("bench")) for p in range(case.clients)}
    server = SecureSum("bench", {p: party.announce() for p, party in parties.items()})
    account.setup = clock() - started

    def answer(p: int, message: PhaseMessage) -> None:
        nonlocal sent
        sent += _size(message)
        server.take(p, [Section(message.phase, message.arrays(), message.scalars())])

    for _ in range(case.sums):
        running = server.order(NAME, case.length, Encoding.integers(BOUND, BITS))
        for p, party in parties.items():
            started = clock()
            sections: list[Any] = server.sections(p, [running])
            if isinstance(sections[0], Roster):
                party.join(sections.pop(0))
            joined = clock()
            account.setup += joined - started
            if p in case.gone:
                continue
            upload = party.contribute(sections[0], case.vectors[p])
            masked = clock()
            answer(p, upload)
            account.masking += masked - joined
            account.adding += clock() - masked
        started = clock()
        requests: list[Any] = [*server.unmask_sections([running]).items()]
        for p, (request,) in requests:
            if p not in case.silent:
                answer(p, parties[p].unmask(request))
        requests = [*server.recover_sections([running]).items()]
        for p, (request,) in requests:
            if p not in case.silent:
                answer(p, parties[p].recover(request))
        total = server.total(running)
        account.unmasking += clock() - started
        account.exact &= bool(np.array_equal(total, case.expected()))
    for name in ("setup", "masking", "adding", "unmasking"):
        setattr(account, name, getattr(account, name) / case.sums)
    account.bytes_up = sent / case.sums / (case.clients - len(case.gone))
    return account


def _size(message: PhaseMessage) -> int:
    """Return the payload of a message in bytes."""
    texts = [value for value in message.scalars().values() if isinstance(value, bytes)]
    return sum(array.nbytes for array in message.arrays()) + sum(map(len, texts))


class CaseClients:
    """``client_fn``: a client with the vector of its partition."""

    def __init__(self, make: Make) -> None:
        self.make = make

    def __call__(self, context: Context) -> VectorClient:
        """Build the client of a node."""
        return VectorClient(context, self.make)


def flower(case: Case, *, serialise: bool = False) -> tuple[float, bool]:
    """Sum through the in-process engine; return the seconds of a sum, and whether it is exact."""
    strategy = OneSum(case.length, Encoding.integers(BOUND, BITS))
    simulate(
        strategy,
        CaseClients(case.vectors.__getitem__),
        case.clients,
        faults=case.fault if case.gone or case.silent else None,
        serialise=serialise,
        num_rounds=case.sums,
    )
    return strategy.seconds_ / case.sums, bool(np.array_equal(strategy.total_, case.expected()))


def bare_masks(case: Case) -> float:
    """Return the seconds of a sum's masks alone, in blocks, on as many cores as ours take.

    As many streams as the protocol makes: k and one of its own per uploading client, and at the end
    one per client and one per pair of a client and a dropped neighbour.
    """
    threads = min(_processors(), -(-8 * case.length // _PARALLEL))
    k, uploads = degree(case.clients), case.clients - len(case.gone)
    left = uploads + round(uploads * k * len(case.gone) / (case.clients - 1))
    zeros, key = bytes(BLOCK), bytes(32)
    chunk = BLOCK // 8

    def add(target: NDArray[np.uint64], streams: int) -> None:
        ciphers = [Cipher(algorithms.AES256(key), modes.CTR(bytes(16))) for _ in range(streams)]
        encryptors = [cipher.encryptor() for cipher in ciphers]
        noise = np.empty(min(chunk, target.size), np.uint64)
        for start in range(0, target.size, chunk):
            part = target[start : start + chunk]
            block = noise[: part.size]
            for encryptor in encryptors:
                encryptor.update_into(memoryview(zeros)[: part.nbytes], block.data.cast("B"))
                np.add(part, block, out=part)

    def mask(vector: NDArray[np.int64]) -> NDArray[np.uint64]:
        masked = vector.view(np.uint64).copy()
        add(masked, k + 1)
        return masked

    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(case.sums):
            total = np.zeros(case.length, np.uint64)
            for first in range(0, uploads, threads):
                vectors = case.vectors[first : min(first + threads, uploads)]
                for masked in map(mask, vectors) if threads == 1 else pool.map(mask, vectors):
                    np.add(total, masked, out=total)
            for _ in pool.map(partial(add, streams=left), np.array_split(total, threads)):
                pass
    return (time.perf_counter() - started) / case.sums


def cases(clients: int, length: int) -> list[Case]:
    """Return the cases; all draws are seeded."""
    order = np.random.default_rng(0).permutation(200).tolist()
    gone, silent = frozenset(order[:20]), frozenset(order[20:30])
    return [
        Case(f"{clients} x {length:,}", clients, length),
        Case("200 x 100,000\n20 drop out", 200, 100_000, gone),
        Case("and 10 more\nfall silent", 200, 100_000, gone, silent),
        Case("23 x 2,046\none of 20", 23, 2046, sums=20),
    ]


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Interleave the three ways for each case; print the best repetition of each."""
    runs, length = options.repetitions, 200_000 if options.quick else options.length
    records = []
    table = Table(title=f"ms of a secure sum of uint64 on {_processors()} cores, best of {runs}")
    table.add_column("", no_wrap=True)
    columns: list[list[str]] = []
    for case in cases(options.clients, length):
        table.add_column(case.name, justify="right")
        case.vectors = [integers(case.length, BOUND, p) for p in range(case.clients)]
        ours: list[Account] = []
        via: list[tuple[float, bool]] = []
        bare: list[float] = []
        for _ in range(runs):
            ours.append(protocol(case))
            via.append(flower(case))
            bare.append(bare_masks(case))
        case.vectors = []
        best = min(ours, key=lambda account: account.seconds)
        flowered, masks = min(seconds for seconds, _ in via), min(bare)
        exact = all(account.exact for account in ours) and all(right for _, right in via)
        name = case.name.replace("\n", ", ")
        records += [
            Record(name, best.seconds / masks, "ours / bare masks", "lower"),
            Record(name, flowered / best.seconds, "through Flower / by hand", "lower"),
        ]
        columns.append(
            [
                "" if columns else f"{GOAL / best.seconds:.2f}",
                f"{best.seconds / masks:.2f}",
                f"{flowered / best.seconds:.2f}",
                *(f"{1e3 * s:,.1f}" for s in (best.seconds, best.setup, best.masking)),
                *(f"{1e3 * s:,.1f}" for s in (best.adding, best.unmasking, flowered, masks)),
                f"{best.bytes_up / 1e3:,.1f}",
                f"{1.0 - BITS // 8 * case.length / best.bytes_up:.2%}",
                "yes" if exact else "NO",
            ]
        )
    for row in zip(ROWS, *columns, strict=True):
        table.add_row(*row, end_section=row[0] in SECTIONS)
    console.print(table)
    return records


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        clients=(50, "of the first case"),
        length=(1_400_000, "of the first case"),
        repetitions=2,
    )

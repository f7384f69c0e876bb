"""Secure sums in memory: a server and parties that forget everything but their packed state,
the integer sum that they must hit, and the checkers that say what looks random."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import refusals
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy import stats

from fedkern_flwr.errors import FedKernError
from fedkern_flwr.exchange import SumSpec
from fedkern_flwr.secure_sum import Encoding, Party, PartyState, RunningSum, SecureSum
from fedkern_flwr.secure_sum import membership as graph
from fedkern_flwr.wire import sums as wire
from fedkern_flwr.wire.message import PhaseMessage, Section, attach, detach

# -- the protocol without Flower


def carry(messages: Sequence[PhaseMessage]) -> list[Section]:
    """Send messages as sections of one message, and return them as they arrive."""
    arrays, scalars = attach(messages)
    return detach(arrays, scalars, party="the wire")[2]


@dataclass
class Transcript:
    """What the server has seen of one sum."""

    uploads: dict[int, wire.Upload] = field(default_factory=dict)
    unmasked: dict[int, wire.UnmaskReply] = field(default_factory=dict)
    recovered: dict[int, tuple[wire.Recover, wire.RecoverReply]] = field(default_factory=dict)


class Run:
    """A server and its parties. Between two messages a party is nothing but packed bytes."""

    def __init__(
        self,
        parties: int | Sequence[int] = 4,
        *,
        session: str = "run",
        clients: Mapping[str, Any] | None = None,
        pinned: bool = False,
        **options: Any,
    ) -> None:
        ids = list(range(parties)) if isinstance(parties, int) else list(parties)
        self.clients = dict(clients or {})
        self.identities = {p: Ed25519PrivateKey.generate() for p in ids} if pinned else {}
        if pinned:
            keys = {p: key.public_key() for p, key in self.identities.items()}
            self.clients["trusted"] = {p: key.public_bytes_raw() for p, key in keys.items()}
        self.states = {p: PartyState(session).pack() for p in ids}
        self.keys = {}
        for p in ids:
            party = self.party(p)
            self.keys[p] = party.announce()
            self.keep(party)
        self.server = SecureSum(session, self.keys, **options)
        self.seen: dict[tuple[int, int], Transcript] = {}
        self.encodings: dict[Encoding, int] = {}

    @property
    def members(self) -> list[int]:
        return list(self.states)

    def party(self, partition: int) -> Party:
        state = PartyState.unpack(self.states[partition])
        return Party(partition, state, identity=self.identities.get(partition), **self.clients)

    def keep(self, party: Party) -> None:
        self.states[party.partition] = party.state.pack()

    def join(self) -> None:
        for p in self.members:
            party = self.party(p)
            party.join(self.server.roster)
            self.keep(party)

    def order(
        self, length: int, encoding: Any = None, *, backups: bool | None = None, **options: Any
    ) -> RunningSum:
        """Order a sum; ``backups`` overrules what both sides would decide by their cost.

        Without a name it gets one that only sums of the same encoding share.
        """
        chosen = encoding or Encoding.integers(1 << 20)
        number = self.encodings.setdefault(chosen, len(self.encodings))
        usual = {"name": f"gradient {number}" if number else "gradient", "self_masks": True}
        spec = SumSpec(encoding=chosen, length=length, **(usual | options))
        running = self.server.order(spec)
        if backups is not None:
            running.backups = backups
        return running

    def transcript(self, running: RunningSum) -> Transcript:
        key = running.order.cohort, running.order.index
        return self.seen.setdefault(key, Transcript())

    def take(self, partition: int, *messages: PhaseMessage) -> None:
        self.server.take(partition, carry(messages))

    def contribute(self, running: RunningSum, partition: int, values: Any) -> wire.Upload:
        """A party does all that the server asks before its vector leaves; it is not sent."""
        party = self.party(partition)
        for section in carry(self.server.sections(partition, [running])):
            if section.phase == wire.Roster.phase:
                party.join(section.read(wire.Roster, party="server"))
            else:
                order = section.read(wire.Order, party="server")
        cohort = party.state.cohorts[order.cohort]
        vars(cohort)["backs_up"] = lambda nbytes: running.backups
        upload = party.contribute(order, np.asarray(values))
        self.keep(party)
        self.transcript(running).uploads[partition] = upload
        return upload

    def upload(self, running: RunningSum, partition: int, values: Any) -> None:
        self.take(partition, self.contribute(running, partition, values))

    def filled(
        self, length: int = 1, *, dead: Iterable[int] = (), plus: int = 0, **options: Any
    ) -> RunningSum:
        """Order a sum to which party p contributes p + ``plus``, but for the dead."""
        running = self.order(length, **options)
        for p in set(running.cohort.members).difference(dead):
            self.upload(running, p, np.full(length, p + plus))
        return running

    def unmask_request(self, running: RunningSum, partition: int) -> wire.Unmask:
        (section,) = carry(self.server.unmask_sections([running])[partition])
        return section.read(wire.Unmask, party="server")

    def told(
        self, running: RunningSum, partition: int, alive: Any, votes: Mapping[int, bytes]
    ) -> wire.Unmask:
        """What a server may tell a party: any survivors, with the shares and votes that it has."""
        cohort, order, sealed = running.cohort, running.order, b""
        for j in cohort.neighbours[partition] if order.self_masks else ():
            if j in alive:
                there = j in running.uploaded
                sealed += running.enclosed.share(j, partition) if there else bytes(49)
        return wire.Unmask(
            cohort=order.cohort, index=order.index, alive=cohort.pack(alive),
            dead=cohort.pack(set(cohort.members).difference(alive)), shares=sealed,
            voters=cohort.pack(votes) if votes else b"",
            votes=b"".join(votes[p] for p in sorted(votes)),
        )  # fmt: skip

    def vote(self, running: RunningSum, voting: Iterable[int] | None = None) -> None:
        """Ask all survivors to vote, where they must; only those who do, in that order."""
        self._answer(running, self.server.ballot_sections([running]), voting)

    def unmask(self, running: RunningSum, answering: Iterable[int] | None = None) -> None:
        """Ask all survivors; only those who answer, in that order."""
        requests = self.server.unmask_sections([running])
        self._answer(running, requests, answering)

    def recover(self, running: RunningSum, answering: Iterable[int] | None = None) -> None:
        self._answer(running, self.server.recover_sections([running]), answering)

    def _answer(self, running: RunningSum, requests: Any, answering: Iterable[int] | None) -> None:
        seen = self.transcript(running)
        for p in requests if answering is None else answering:
            if p not in requests:
                continue
            (section,) = carry(requests[p])
            party = self.party(p)
            reply: wire.Vote | wire.UnmaskReply | wire.RecoverReply
            if section.phase == wire.Ballot.phase:
                reply = party.vote(section.read(wire.Ballot, party="server"))
            elif section.phase == wire.Unmask.phase:
                reply = party.unmask(section.read(wire.Unmask, party="server"))
                seen.unmasked[p] = reply
            else:
                request = section.read(wire.Recover, party="server")
                reply = party.recover(request)
                seen.recovered[p] = request, reply
            self.keep(party)
            self.take(p, reply)

    def result(self, running: RunningSum) -> np.ndarray:
        """The total, at the server or at its receiver; the sum is closed."""
        if running.order.receiver < 0:
            return self.server.total(running)
        party = self.party(running.order.receiver)
        (section,) = carry([running.delivery()])
        self.server.close(running)
        name, total = party.receive(section.read(wire.Delivery, party="server"))
        if running.encoding.kind == "circle":  # a receiver is given the ring's own numbers
            assert total.dtype == running.encoding.dtype
            total = running.encoding.decode(total, len(running.cohort.members))
        assert name == running.order.name
        return total

    def sum(self, values: Mapping[int, Any], **options: Any) -> np.ndarray:
        """A whole sum in which those take part who have values."""
        running = self.order(len(next(iter(values.values()))), **options)
        for p, vector in values.items():
            self.upload(running, p, vector)
        self.vote(running)
        self.unmask(running)
        return self.result(running)


def flip(data: bytes, at: int) -> bytes:
    """Return the data with another bit at a place."""
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@contextmanager
def sparse(k: int | None) -> Iterator[None]:
    """Let every party mask with k others, however few parties there are; None changes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        if k is not None:
            patch.setattr(graph, "degree", lambda parties: min(k, parties - 1))
        graph.neighbourhoods.cache_clear()
        yield
    graph.neighbourhoods.cache_clear()


# -- the integer sum


def ceil_log2(value: Fraction) -> int:
    e = 0
    while Fraction(2) ** e < value:
        e += 1
    while Fraction(2) ** (e - 1) >= value:
        e -= 1
    return e


class Reference:
    """What a sum must be, from Python's integers and fractions alone."""

    @staticmethod
    def fraction_bits(encoding: Encoding, parties: int) -> int:
        room = ceil_log2(Fraction(parties)) + ceil_log2(Fraction(encoding.bound))
        return encoding.bits - 2 - room

    @classmethod
    def ring(cls, encoding: Encoding, parties: int, values: Iterable[Any]) -> list[int]:
        """Ring elements of one party's vector."""
        if encoding.kind == "integer":
            return [int(v) % 2**encoding.bits for v in values]
        if encoding.kind == "fixed-point":
            scale = Fraction(2) ** cls.fraction_bits(encoding, parties)
            return [round(Fraction(float(v)) * scale) % 2**encoding.bits for v in values]
        steps = min(encoding.bits, 53)
        out = []
        for v in values:
            turns = float(v) / (2.0 * math.pi)
            out.append(round((turns - math.floor(turns)) * 2.0**steps) << (encoding.bits - steps))
        return [element % 2**encoding.bits for element in out]

    @classmethod
    def ring_sum(cls, encoding: Encoding, parties: int, vectors: Iterable[Any]) -> list[int]:
        rings = [cls.ring(encoding, parties, vector) for vector in vectors]
        return [sum(column) % 2**encoding.bits for column in zip(*rings, strict=True)]

    @classmethod
    def total(cls, encoding: Encoding, parties: int, vectors: Iterable[Any]) -> np.ndarray:
        elements = cls.ring_sum(encoding, parties, vectors)
        if encoding.kind == "circle":
            return np.array([e * (2.0 * math.pi / 2.0**encoding.bits) for e in elements])
        half = 2 ** (encoding.bits - 1)
        signed = [(e + half) % (2 * half) - half for e in elements]
        if encoding.kind == "integer":
            return np.array(signed, np.int64)
        f = cls.fraction_bits(encoding, parties)
        return np.array([math.ldexp(float(s), -f) for s in signed])


def draw(encoding: Encoding, length: int, seed: int | np.random.Generator = 0) -> np.ndarray:
    """Values all over the declared range."""
    rng = np.random.default_rng(seed)
    if encoding.kind == "integer":
        bound = int(encoding.bound)
        return rng.integers(-bound, bound, length, endpoint=True)
    if encoding.kind == "circle":
        return rng.uniform(-9.0, 9.0, length)
    return rng.uniform(-encoding.bound, encoding.bound, length)


# -- what looks random

_LEAST_P = 1e-9
_MOST_SIGMA = 7.0


def _bit_sigmas(words: np.ndarray, axis: int | None = None) -> float:
    """Largest distance of a bit's frequency from one half, in standard deviations."""
    count = words.size if axis is None else words.shape[axis]
    one, worst = words.dtype.type(1), 0.0
    for bit in range(8 * words.itemsize):
        ones = ((words >> words.dtype.type(bit)) & one).sum(axis=axis, dtype=np.int64)
        worst = max(worst, float(np.abs(2.0 * ones - count).max()) / math.sqrt(count))
    return worst


def _byte_counts(words: np.ndarray) -> np.ndarray:
    """Per byte of a word, how often it takes each of its 256 values."""
    table = np.ascontiguousarray(words).reshape(-1, 1).view(np.uint8)
    return np.stack([np.bincount(column, minlength=256) for column in table.T])


def assert_uniform(words: np.ndarray) -> None:
    """Every bit and every byte is uniform, over all words and from one upload to the next.

    ``words`` has a row per upload, or is one long vector. Chance fails this once in 10^7 times.
    """
    rows = np.atleast_2d(words)
    assert rows.size >= 2560, "too few words to say anything"
    samples = [rows] + ([rows[1:] - rows[:-1]] if len(rows) > 1 else [])
    for sample in samples:
        sigmas = _bit_sigmas(sample)
        assert sigmas < _MOST_SIGMA, f"a bit is {sigmas:.1f} standard deviations from fair"
        counts, expected = _byte_counts(sample), sample.size / 256
        p = stats.chi2.sf(((counts - expected) ** 2 / expected).sum(axis=1), 255).min()
        assert p > _LEAST_P, f"a byte is not uniform, p = {p:.1e}"
    if len(rows) >= 200:
        sigmas = _bit_sigmas(rows, axis=0)
        assert sigmas < _MOST_SIGMA, f"a bit of a place is {sigmas:.1f} deviations from fair"


def assert_alike(one: np.ndarray, other: np.ndarray) -> None:
    """Two samples of equal size follow the same law: bytes by chi-square, words by Smirnov."""
    assert one.size == other.size >= 2560
    a, b = _byte_counts(one), _byte_counts(other)
    both = np.maximum(a + b, 1)
    freedom = (a + b > 0).sum(axis=1) - 1
    p = stats.chi2.sf(((a - b) ** 2 / both).sum(axis=1), np.maximum(freedom, 1)).min()
    assert p > _LEAST_P, f"bytes differ, p = {p:.1e}"
    words = [np.ravel(sample).astype(np.float64) for sample in (one, other)]
    p = stats.ks_2samp(*words, method="asymp").pvalue
    assert p > _LEAST_P, f"words differ, p = {p:.1e}"


# -- refusals


def refuses(
    code: str, action: Callable[..., Any], *args: Any, party: int | None = None, **more: Any
) -> FedKernError:
    """The action fails with this code, in one line that names the party, if there is one."""
    error = refusals.refuses(code, action, *args, **more)
    assert error.party == ("" if party is None else f"partition {party}")
    return error

"""Shamir's sharing: any t shares give the seed, fewer say nothing; checked by another library."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
import shamirs
from hypothesis import given, settings
from hypothesis import strategies as st
from sums_in_memory import assert_uniform, refused

from fedkern_flwr.secure_sum import shamir
from fedkern_flwr.secure_sum.seeds import commitment, open_seed
from fedkern_flwr.secure_sum.shamir import PRIME, SHARE_BYTES, reconstruct_seed, share_seeds

seeds = st.binary(min_size=32, max_size=32) | st.sampled_from(
    [bytes(32), b"\xff" * 32, b"\x01" + bytes(31), bytes(31) + b"\x80"]
)


def share(seed: bytes, points: list[int], threshold: int) -> dict[int, bytes]:
    return dict(zip(points, share_seeds([seed], points, threshold), strict=True))


def value(data: bytes) -> int:
    return int.from_bytes(data, "little")


def is_prime(n: int) -> bool:
    """Miller-Rabin with the first 40 prime bases."""
    bases = [p for p in range(2, 180) if all(p % q for q in range(2, p))][:40]
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return n % 2 == 1 and all(
        pow(a, odd, n) == 1 or any(pow(a, odd << k, n) == n - 1 for k in range(twos)) for a in bases
    )


def test_the_modulus_is_the_least_prime_above_all_seeds() -> None:
    assert PRIME > 2**256
    assert [n for n in range(2**256, PRIME + 1) if is_prime(n)] == [PRIME]


# -- against an independent library


@settings(max_examples=40)
@given(seed=seeds, parties=st.integers(2, 12), data=st.data())
def test_our_shares_interpolate_elsewhere(seed: bytes, parties: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, parties))
    points = data.draw(st.permutations(range(1, parties + 1)))[:parties]
    ours = share(seed, list(points), threshold)
    theirs = [shamirs.share(x, value(s), PRIME) for x, s in ours.items()]
    assert shamirs.interpolate(theirs[:threshold]) == value(seed)
    assert shamirs.interpolate(theirs) == value(seed)
    if threshold > 1:  # negative control: one share fewer gives something else
        assert shamirs.interpolate(theirs[: threshold - 1]) != value(seed)


@settings(max_examples=40)
@given(seed=seeds, parties=st.integers(2, 12), data=st.data())
def test_foreign_shares_reconstruct_here(seed: bytes, parties: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, parties))
    theirs = shamirs.shares(value(seed), parties, modulus=PRIME, threshold=threshold)
    chosen = data.draw(st.permutations(list(theirs)))[:threshold]
    shares = {int(s[0]): int(s[1]).to_bytes(SHARE_BYTES, "little") for s in chosen}
    assert reconstruct_seed(shares) == seed
    if threshold > 1:
        shares.popitem()
        assert reconstruct_seed(shares) != seed


# -- our own


@given(seed=seeds, parties=st.integers(1, 40), data=st.data())
def test_any_t_shares_reconstruct_and_fewer_do_not(
    seed: bytes, parties: int, data: st.DataObject
) -> None:
    points = data.draw(
        st.lists(st.integers(1, 1000), min_size=parties, max_size=parties, unique=True)
    )
    threshold = data.draw(st.integers(1, parties))
    shares = share(seed, points, threshold)
    assert all(len(s) == SHARE_BYTES and value(s) < PRIME for s in shares.values())
    chosen = data.draw(st.permutations(points))
    assert reconstruct_seed({x: shares[x] for x in chosen[:threshold]}) == seed
    assert reconstruct_seed({x: shares[x] for x in chosen[: threshold - 1]}) != seed or (
        threshold == 1 and seed == bytes(32)
    )
    if threshold < parties:  # more than t lie on the same polynomial
        assert reconstruct_seed(shares) == seed


@pytest.mark.parametrize(("parties", "threshold"), [(30, 21), (47, 30), (69, 45), (200, 134)])
def test_slots_hold_large_points_and_thresholds(parties: int, threshold: int) -> None:
    """Seeds shared at once sit side by side in long integers: none runs over into the next."""
    many = [bytes(32), b"\xff" * 32, os.urandom(32), b"\xff" * 32, bytes(32)]
    points = list(range(1001 - parties, 1001))
    joined = share_seeds(many, points, threshold)
    for place, seed in enumerate(many):
        cut = slice(place * SHARE_BYTES, (place + 1) * SHARE_BYTES)
        shares = {x: s[cut] for x, s in zip(points, joined, strict=True)}
        last = dict(list(shares.items())[-threshold:])
        assert reconstruct_seed(last) == seed
        last.popitem()
        assert reconstruct_seed(last) != seed


def by_horner(noise: bytes, seeds: list[bytes], points: list[int], threshold: int) -> list[bytes]:
    """Evaluate the polynomials one at a time, leading coefficient first."""
    rows = [
        [value(noise[48 * (k * len(seeds) + s) :][:48]) for s in range(len(seeds))]
        for k in range(threshold - 1)
    ]
    out = []
    for x in points:
        joined = b""
        for place, seed in enumerate(seeds):
            total = 0
            for row in rows:
                total = (total * x + row[place]) % PRIME
            total = (total * x + value(seed)) % PRIME
            joined += total.to_bytes(SHARE_BYTES, "little")
        out.append(joined)
    return out


@given(many=st.lists(seeds, min_size=1, max_size=6), data=st.data())
def test_many_seeds_at_once_are_their_polynomials_one_at_a_time(
    many: list[bytes], data: st.DataObject
) -> None:
    parties = data.draw(st.integers(1, 20))
    threshold = data.draw(st.integers(1, parties))
    points = data.draw(
        st.lists(st.integers(1, 2000), min_size=parties, max_size=parties, unique=True)
    )
    fill = data.draw(st.sampled_from([0, 255, None]))
    drawn: list[bytes] = []

    def token_bytes(size: int) -> bytes:
        drawn.append(os.urandom(size) if fill is None else bytes([fill]) * size)
        return drawn[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shamir.secrets, "token_bytes", token_bytes)
        found = share_seeds(many, points, threshold)
    assert found == by_horner(b"".join(drawn), many, points, threshold)
    if fill is None and threshold > 1:
        assert found != by_horner(os.urandom(len(drawn[0])), many, points, threshold)


# -- t - 1 shares say nothing


def polynomial(places: dict[int, int], x: int) -> int:
    """The value at x of the polynomial through the places, by Lagrange."""
    total = 0
    for a, y in places.items():
        above = below = 1
        for b in places:
            if b != a:
                above, below = above * (x - b) % PRIME, below * (a - b) % PRIME
        total = (total + y * above * pow(below, -1, PRIME)) % PRIME
    return total


@settings(max_examples=40)
@given(seed=seeds, guess=seeds, parties=st.integers(2, 12), data=st.data())
def test_fewer_shares_fit_every_seed(
    seed: bytes, guess: bytes, parties: int, data: st.DataObject
) -> None:
    """For t - 1 shares and any seed there is one last share that makes them shares of it."""
    threshold = data.draw(st.integers(2, parties))
    points = data.draw(st.permutations(range(1, parties + 1)))
    shares = share(seed, list(range(1, parties + 1)), threshold)
    known = {x: shares[x] for x in points[: threshold - 1]}
    places = {0: value(guess)} | {x: value(s) for x, s in known.items()}
    last = polynomial(places, points[threshold - 1]).to_bytes(SHARE_BYTES, "little")
    assert reconstruct_seed({**known, points[threshold - 1]: last}) == guess
    if guess != seed:  # negative control: with t shares only one seed fits
        assert last != shares[points[threshold - 1]]


SCALES = [(1, 0), (0, 1), (1, 1), (1, PRIME - 1), (3, PRIME - 1), (PRIME - 14, 3)]


def collect_shares(seed: bytes, count: int = 800) -> list[np.ndarray]:
    """Combinations of t - 1 = 2 shares of a seed that is shared many times: low words of each."""
    held = [share_seeds([seed], [1, 2], 3) for _ in range(count)]
    out = []
    for a, b in SCALES:
        sums = [(a * value(one) + b * value(other)) % PRIME for one, other in held]
        data = b"".join((s % 2**256).to_bytes(32, "little") for s in sums)
        out.append(np.frombuffer(data, "<u8").reshape(count, 4))
    return out


def check_combinations(seed: bytes) -> None:
    for combination in collect_shares(seed):
        assert_uniform(combination)


@pytest.mark.parametrize("seed", [bytes(32), b"\xff" * 32], ids=["zeros", "ones"])
def test_fewer_shares_are_uniform_whatever_the_seed(seed: bytes) -> None:
    check_combinations(seed)


@pytest.mark.parametrize(
    "noise",
    [
        bytes,
        lambda size: (os.urandom(20) + bytes(28) + os.urandom(20) + bytes(28))[:size],
        lambda size: os.urandom(48) * (size // 48),
    ],
    ids=["none", "short", "the same for all coefficients"],
)
def test_poor_coefficients_are_noticed(
    monkeypatch: pytest.MonkeyPatch, noise: Callable[[int], bytes]
) -> None:
    """Negative control of the test above."""
    monkeypatch.setattr(shamir.secrets, "token_bytes", noise)
    with pytest.raises(AssertionError):
        check_combinations(bytes(32))


# -- opening a seed in spite of a forged share

LABEL = b"a sum"


@given(seed=seeds, parties=st.integers(2, 10), data=st.data())
def test_one_forged_share_is_found_and_left_out(
    seed: bytes, parties: int, data: st.DataObject
) -> None:
    threshold = data.draw(st.integers(1, parties - 1))
    shares = share(seed, list(range(1, parties + 1)), threshold)
    committed = commitment(LABEL, seed)
    assert open_seed(shares, threshold, LABEL, committed) == (seed, None)
    forger = data.draw(st.integers(1, parties))
    shares[forger] = bytes([shares[forger][0] ^ 1]) + shares[forger][1:]
    used = forger <= threshold  # the first t points are tried; a later one does no harm
    assert open_seed(shares, threshold, LABEL, committed) == (seed, forger if used else None)


def test_forgery_beyond_repair_is_an_error() -> None:
    seed = os.urandom(32)
    committed = commitment(LABEL, seed)
    shares = share(seed, [1, 2, 3, 4, 5], 3)
    text = "shares do not fit the seed that its owner committed to"
    two = {**shares, 1: bytes(SHARE_BYTES), 2: bytes(SHARE_BYTES)}
    exact = {x: shares[x] for x in (1, 2)} | {3: bytes(SHARE_BYTES)}
    for broken in (two, exact):
        refused(open_seed, broken, 3, LABEL, committed, text=text)
    for more in ((b"another sum", committed), (LABEL, commitment(LABEL, bytes(32)))):
        refused(open_seed, shares, 3, *more, text=text)
    assert open_seed(shares, 3, LABEL, committed) == (seed, None)


def test_shares_that_give_no_seed_are_none() -> None:
    """2^256 .. PRIME - 1 are field elements, but no seeds."""
    for outside in (2**256, PRIME - 1):
        constant = {x: outside.to_bytes(SHARE_BYTES, "little") for x in (1, 2, 3)}
        assert reconstruct_seed(constant) is None
    edge = (2**256 - 1).to_bytes(SHARE_BYTES, "little")
    assert reconstruct_seed({1: edge, 2: edge}) == b"\xff" * 32


@settings(max_examples=25)
@given(seed=seeds, label=st.binary(max_size=20))
def test_a_commitment_binds_sum_and_seed(seed: bytes, label: bytes) -> None:
    made = commitment(label, seed)
    assert len(made) == 16
    assert made == commitment(label, seed)
    assert made != commitment(label + b"1", seed)
    assert made != commitment(label, seed[:-1] + bytes([seed[-1] ^ 1]))

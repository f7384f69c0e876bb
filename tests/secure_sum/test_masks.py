"""Streams of masks, shares of their seeds, and the randomness of both."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shamirs
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from sums_in_memory import assert_uniform, refuses

import fedkern_flwr.node.sums as client_sums
from fedkern_flwr import secure_sum
from fedkern_flwr.secure_sum import CIPHERS, add_streams, masks
from fedkern_flwr.secure_sum.seeds import commitment, open_seed
from fedkern_flwr.secure_sum.shamir import PRIME, SHARE_BYTES, reconstruct_seed, share_seeds

# -- no mask is made of poor randomness

FOLDER = Path(str(secure_sum.__file__)).parent
SOURCES = [*sorted(FOLDER.rglob("*.py")), Path(str(client_sums.__file__))]
BANNED = {"random", "seeding", "default_rng"}


def names_used(source: str) -> set[str]:
    """The parts of all names that a module imports or reaches into, and words it looks up by."""
    used: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            used.update(*(name.name.split(".") for name in node.names))
            used.update((getattr(node, "module", "") or "").split("."))
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.Call):
            words = [one.value for one in node.args if isinstance(one, ast.Constant)]
            used.update(*(word.split(".") for word in words if isinstance(word, str)))
    return used


def test_masks_come_from_the_operating_system() -> None:
    found = {path.stem: names_used(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {"masks", "party", "keys", "shamir", "seeds", "relay", "sums", "server"} <= set(found)
    assert {name: used & BANNED for name, used in found.items() if used & BANNED} == {}
    assert {name for name, used in found.items() if "secrets" in used} >= {"party", "shamir"}


@pytest.mark.parametrize(
    "source",
    [
        "import random as r",
        "from random import randbytes",
        "def f():\n    import numpy.random",
        "import numpy as np\nx = np.random",
        "from numpy.random import default_rng",
        "from ..seeding import generator",
        "from fedkern_flwr import seeding",
        "__import__('random')",
        "from importlib import import_module\nimport_module('numpy.random')",
        "import numpy as np\ngetattr(np, 'random')",
    ],
)
def test_banned_modules_are_noticed(source: str) -> None:
    """Negative control of the scan."""
    assert names_used(source) & BANNED
    assert not names_used("import secrets, randomish\nrandom = secrets.token_bytes(3)") & BANNED


# -- streams

TYPES = (np.uint16, np.uint32, np.uint64)
BLOCK = 1 << 20
ODD = st.integers(0, 5000)


def one_shot(key: bytes, size: int, cipher: str) -> bytes:
    """The key stream in one piece, straight from ``cryptography``."""
    made: Cipher[Any]
    if cipher == "aes-256-ctr":
        made = Cipher(algorithms.AES(key), modes.CTR(bytes(16)))
    else:
        made = Cipher(algorithms.ChaCha20(key, bytes(16)), None)
    return made.encryptor().update(bytes(size))


def by_hand(target: np.ndarray, streams: list[tuple[bytes, bool]], cipher: str) -> np.ndarray:
    """The same sum with Python's integers."""
    width, modulus = target.itemsize, 2 ** (8 * target.itemsize)
    out = target.tolist()
    for key, negative in streams:
        stream = one_shot(key, target.nbytes, cipher)
        for k in range(len(out)):
            word = int.from_bytes(stream[k * width : (k + 1) * width], "little")
            out[k] = (out[k] + (-word if negative else word)) % modulus
    return np.array(out, target.dtype)


@pytest.mark.parametrize("cipher", CIPHERS)
@given(
    length=st.integers(0, 40),
    dtype=st.sampled_from(TYPES),
    seeds=st.lists(st.tuples(st.integers(0, 2**64), st.booleans()), max_size=4),
)
def test_short_vectors_agree_with_integer_arithmetic(
    cipher: str, length: int, dtype: Any, seeds: list[tuple[int, bool]]
) -> None:
    streams = [(seed.to_bytes(32, "little"), negative) for seed, negative in seeds]
    target = np.arange(length, dtype=dtype) * dtype(40503)
    expected = by_hand(target, streams, cipher)
    add_streams(target, streams, cipher=cipher)
    np.testing.assert_array_equal(target, expected)


def check_stream(dtype: Any, size: int, threads: int, cipher: str) -> None:
    """One positive and one negative stream over ``size`` bytes are those of the cipher."""
    plus, minus = os.urandom(32), os.urandom(32)
    target = np.arange(size // np.dtype(dtype).itemsize).astype(dtype)
    expected = target.copy()
    expected += np.frombuffer(one_shot(plus, target.nbytes, cipher), dtype)
    expected -= np.frombuffer(one_shot(minus, target.nbytes, cipher), dtype)
    add_streams(target, [(plus, False), (minus, True)], cipher=cipher, threads=threads)
    assert (target == expected).all()


LONG = [BLOCK - 8, BLOCK, BLOCK + 8, 4 * BLOCK + 8, 5 * BLOCK - 8]


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", LONG)
def test_streams_cross_blocks_and_threads(size: int, threads: int, cipher: str) -> None:
    for dtype in TYPES if size == LONG[3] else TYPES[2:]:
        check_stream(dtype, size, threads, cipher)


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("broken", ["offset forgotten", "offset of one cipher block"])
def test_a_stream_that_starts_anew_is_noticed(
    monkeypatch: pytest.MonkeyPatch, cipher: str, broken: str
) -> None:
    """Negative control of the test above."""
    right = masks._cipher
    wrong = {"offset forgotten": 0, "offset of one cipher block": 64}[broken]
    monkeypatch.setattr(masks, "_cipher", lambda name, key, at: right(name, key, at and wrong))
    check_stream(np.uint64, 4 * BLOCK + 8, 1, cipher)
    with pytest.raises(AssertionError):
        check_stream(np.uint64, 4 * BLOCK + 8, 2, cipher)


def test_the_ciphers_differ_and_an_unknown_one_is_refused() -> None:
    made = [np.zeros(64, np.uint64) for _ in CIPHERS]
    for target, cipher in zip(made, CIPHERS, strict=True):
        add_streams(target, [(bytes(32), False)], cipher=cipher)
    assert (made[0] != made[1]).all()
    with pytest.raises(ValueError, match="unknown cipher 'rot13'"):
        add_streams(made[0], [(bytes(32), False)], cipher="rot13")


def stream(key: bytes, cipher: str, words: int = 32) -> np.ndarray:
    target = np.zeros(words, np.uint64)
    add_streams(target, [(key, False)], cipher=cipher, threads=1)
    return target


def check_flips(cipher: str, words: int = 32) -> None:
    """Each flipped bit of a seed changes half of the stream's bits."""
    key = os.urandom(32)
    base, bits = stream(key, cipher, words), 64 * words
    for bit in range(256):
        flipped = (int.from_bytes(key, "little") ^ (1 << bit)).to_bytes(32, "little")
        changed = int(np.bitwise_count(stream(flipped, cipher, words) ^ base).sum())
        assert abs(2 * changed - bits) < 7 * bits**0.5, f"bit {bit} changes {changed} of {bits}"


@pytest.mark.parametrize("cipher", CIPHERS)
def test_a_flipped_seed_bit_changes_half_the_stream(cipher: str) -> None:
    check_flips(cipher)


@pytest.mark.parametrize("cipher", CIPHERS)
def test_first_words_never_collide(cipher: str) -> None:
    """Of keys that differ in their last bytes only: a collision has probability 1e-11."""
    words = np.zeros(20_000, np.uint64)
    for k in range(words.size):
        add_streams(words[k : k + 1], [(k.to_bytes(32, "big"), False)], cipher=cipher, threads=1)
    assert np.unique(words).size == words.size
    assert_uniform(words)
    short = words >> np.uint64(40)  # negative control: as from a seed of 24 effective bits
    assert np.unique(short).size < words.size


# -- shares of seeds

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


@given(seed=seeds, parties=st.integers(1, 40), data=st.data())
def test_any_t_shares_reconstruct_and_fewer_do_not(
    seed: bytes, parties: int, data: st.DataObject
) -> None:
    numbers = st.integers(1, 1000)
    points = data.draw(st.lists(numbers, min_size=parties, max_size=parties, unique=True))
    threshold = data.draw(st.integers(1, parties))
    shares = share(seed, points, threshold)
    assert all(len(s) == SHARE_BYTES and value(s) < PRIME for s in shares.values())
    chosen = data.draw(st.permutations(points))
    assert reconstruct_seed({x: shares[x] for x in chosen[:threshold]}) == seed
    assert reconstruct_seed(shares) == seed  # more than t lie on the same polynomial
    assert reconstruct_seed({x: shares[x] for x in chosen[: threshold - 1]}) != seed or (
        threshold == 1 and seed == bytes(32)
    )


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


# -- opening a seed in spite of a forged share

LABEL = b"a sum"


@given(seed=seeds, parties=st.integers(2, 10), data=st.data())
def test_one_forged_share_is_found_and_left_out(
    seed: bytes, parties: int, data: st.DataObject
) -> None:
    """A commitment binds the sum and the seed."""
    threshold = data.draw(st.integers(1, parties - 1))
    shares = share(seed, list(range(1, parties + 1)), threshold)
    committed = commitment(LABEL, seed)
    assert len(committed) == 16
    assert open_seed(shares, threshold, LABEL, committed) == (seed, None)
    other = commitment(LABEL, seed[:-1] + bytes([seed[-1] ^ 1]))
    for more in ((LABEL + b"1", committed), (LABEL, other)):
        refuses("FK-SUM-SEED", open_seed, shares, threshold, *more)
    forger = data.draw(st.integers(1, parties))
    shares[forger] = bytes([shares[forger][0] ^ 1]) + shares[forger][1:]
    used = forger <= threshold  # the first t points are tried; a later one does no harm
    assert open_seed(shares, threshold, LABEL, committed) == (seed, forger if used else None)
    if used:  # beyond repair: no share to spare, or one more that is forged
        exact = {x: shares[x] for x in list(shares)[:threshold]}
        refuses("FK-SUM-SEED", open_seed, exact, threshold, LABEL, committed)


def test_shares_that_give_no_seed_are_none() -> None:
    """2^256 .. PRIME - 1 are field elements, but no seeds."""
    for outside in (2**256, PRIME - 1):
        constant = {x: outside.to_bytes(SHARE_BYTES, "little") for x in (1, 2, 3)}
        assert reconstruct_seed(constant) is None
    edge = (2**256 - 1).to_bytes(SHARE_BYTES, "little")
    assert reconstruct_seed({1: edge, 2: edge}) == b"\xff" * 32

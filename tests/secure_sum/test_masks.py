"""Streams of masks: the right ones, whatever the length and the number of threads."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from sums_in_memory import assert_uniform

from fedkern_flwr.secure_sum import CIPHERS, add_streams, masks

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


def test_two_threads_are_used_only_where_they_help(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    pool = masks.ThreadPoolExecutor

    def watched(workers: int) -> Any:
        started.append(workers)
        return pool(workers)

    monkeypatch.setattr(masks, "ThreadPoolExecutor", watched)
    add_streams(np.zeros(4 * BLOCK, np.uint8).view(np.uint64), [(bytes(32), False)], threads=2)
    assert not started
    add_streams(np.zeros(4 * BLOCK + 8, np.uint8).view(np.uint64), [(bytes(32), False)], threads=2)
    assert started == [2]


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("dtype", TYPES)
def test_adding_and_subtracting_a_stream_leaves_nothing(dtype: Any, cipher: str) -> None:
    target = np.arange(1001, dtype=dtype)
    key = os.urandom(32)
    add_streams(target, [(key, False)], cipher=cipher)
    assert (target != np.arange(1001, dtype=dtype)).mean() > 0.98
    add_streams(target, [(key, True)], cipher=cipher)
    np.testing.assert_array_equal(target, np.arange(1001, dtype=dtype))


def test_the_ciphers_differ_and_an_unknown_one_is_refused() -> None:
    made = [np.zeros(64, np.uint64) for _ in CIPHERS]
    for target, cipher in zip(made, CIPHERS, strict=True):
        add_streams(target, [(bytes(32), False)], cipher=cipher)
    assert (made[0] != made[1]).all()
    with pytest.raises(ValueError, match="unknown cipher 'rot13'"):
        add_streams(made[0], [(bytes(32), False)], cipher="rot13")


# -- seeds matter: every bit of them


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
@pytest.mark.parametrize("used", [4, 31])
def test_a_folded_seed_is_noticed(monkeypatch: pytest.MonkeyPatch, cipher: str, used: int) -> None:
    """Negative control: a generator that uses only part of the seed, as a 32-bit one does."""
    right = masks._cipher
    monkeypatch.setattr(
        masks, "_cipher", lambda name, key, at: right(name, key[:used].ljust(32, b"\0"), at)
    )
    with pytest.raises(AssertionError, match="changes 0 of"):
        check_flips(cipher)


KEYS = 50_000


def first_words(cipher: str, keys: int = KEYS) -> np.ndarray:
    """The first 64-bit word of the streams of keys that differ in their last bytes only."""
    words = np.zeros(keys, np.uint64)
    for k in range(keys):
        add_streams(words[k : k + 1], [(k.to_bytes(32, "big"), False)], cipher=cipher, threads=1)
    return words


def check_no_collision(words: np.ndarray) -> None:
    assert np.unique(words).size == words.size


@pytest.mark.parametrize("cipher", CIPHERS)
def test_first_words_never_collide(cipher: str) -> None:
    """Among 50 000 words of 64 bits a collision has probability 7e-11."""
    words = first_words(cipher)
    check_no_collision(words)
    assert_uniform(words)
    with pytest.raises(AssertionError):
        check_no_collision(words >> np.uint64(40))  # as from a seed of 24 effective bits

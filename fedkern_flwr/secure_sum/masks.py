"""Masks: pseudo-random streams added to ring vectors in place, a block at a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from ..threads import processors as _processors
from .encoding import RingArray

BLOCK = 1 << 20  # bytes; smaller blocks do not keep the cipher busy
_PARALLEL = 4 * BLOCK  # bytes of streams that are worth another thread
_STEP = 1 << 16  # ranges of threads begin at multiples of it
_ZEROS = bytes(BLOCK)
_AES_BLOCK, _CHACHA_BLOCK = 16, 64

#: Ciphers that make masks; ChaCha20 is the faster one on machines without AES instructions.
CIPHERS = ("aes-256-ctr", "chacha20")

#: A key of 32 bytes, used for one sum only, and whether its stream is subtracted.
Stream = tuple[bytes, bool]


def add_streams(
    target: RingArray, streams: Sequence[Stream], *, cipher: str = CIPHERS[0], threads: int = 0
) -> None:
    """Add or subtract pseudo-random streams to a ring vector, in place.

    Parameters
    ----------
    target : ndarray of unsigned integers, shape (length,)
        Contiguous; changed in place modulo 2^bits of its dtype.
    streams : sequence of (key, negative)
        32-byte keys. The stream of a key is the key stream of the cipher from its beginning, with
        a zero nonce: a key must never serve two sums.
    cipher : {"aes-256-ctr", "chacha20"}
        What makes the streams.
    threads : int (default: 0)
        Threads that share a long vector; 0 for one per processor.

    Notes
    -----
    Memory: one block of 1 MiB per thread.
    """
    size = target.nbytes
    if not size or not streams:
        return
    workers = min(threads or _processors(), -(-size * len(streams) // _PARALLEL))
    step = -(-size // workers // _STEP) * _STEP
    if step >= size:
        _add_range(target, streams, cipher, 0, size)
        return
    ranges = [(start, min(start + step, size)) for start in range(0, size, step)]
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(_add_range, target, streams, cipher, *r) for r in ranges]:
            done.result()


def _add_range(
    target: RingArray, streams: Sequence[Stream], cipher: str, start: int, stop: int
) -> None:
    """Add the streams to the bytes from ``start``, a multiple of ``_STEP``, to ``stop``."""
    width = target.itemsize
    buffer = np.empty(min(BLOCK, stop - start), np.uint8)
    ciphers = [(_cipher(cipher, key, start), negative) for key, negative in streams]
    for low in range(start, stop, BLOCK):
        high = min(low + BLOCK, stop)
        part = target[low // width : high // width]
        noise = buffer[: high - low]
        words = noise.view(target.dtype)
        for encryptor, negative in ciphers:
            encryptor.update_into(memoryview(_ZEROS)[: high - low], noise.data)
            (np.subtract if negative else np.add)(part, words, out=part)


def _cipher(name: str, key: bytes, offset: int) -> CipherContext:
    """Return the key stream of ``key`` from byte ``offset`` on."""
    chosen: Cipher[Any]
    if name == "aes-256-ctr":
        chosen = Cipher(algorithms.AES256(key), _counter(offset // _AES_BLOCK))
    elif name == "chacha20":
        counter = (offset // _CHACHA_BLOCK).to_bytes(4, "little") + bytes(12)
        chosen = Cipher(algorithms.ChaCha20(key, counter), None)
    else:
        raise ValueError(f"unknown cipher {name!r}")
    return chosen.encryptor()


@lru_cache(maxsize=64)  # to make one takes as long as the cipher of a short vector
def _counter(block: int) -> modes.CTR:
    return modes.CTR(block.to_bytes(16, "big"))

"""Encode numbers as integers on a ring, under masks that cancel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from ..errors import OptionError, SumError
from ..privacy.accounting import LEAST_VARIANCE, MOST_VARIANCE, reach
from ..privacy.budget import NoisySum
from ..threads import processors as _processors
from ..wire.sums import Order

# -- how numbers enter a ring: fixed point with a declared bound, integers, angles on the circle
#
# Sums are taken modulo 2^16, 2^32 or 2^64 with unsigned wrap-around, never in floating point: a
# float mask cannot both hide a value and keep its last digits.

Kind = Literal["fixed-point", "integer", "circle"]
RingArray = NDArray[np.unsignedinteger[Any]]

_UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {16: np.uint16, 32: np.uint32, 64: np.uint64}
_SIGNED: dict[int, type[np.signedinteger[Any]]] = {16: np.int16, 32: np.int32, 64: np.int64}
CHUNK_BYTES = 4 << 20  # of a vector that travels

_KINDS = get_args(Kind)
_MOST_FRACTION = 60  # fractional bits of numbers with noise
_CHUNK = 1 << 16  # numbers encoded at once: their copies stay in the processor's cache
_TURN = 2.0 * math.pi


@dataclass(frozen=True)
class Encoding:
    """Map vectors to ring elements, and sums of ring elements back.

    Use :meth:`fixed_point`, :meth:`integers` or :meth:`circle`.

    Attributes
    ----------
    bits : {16, 32, 64}
        The ring is Z modulo 2^bits.
    bound : float
        Public bound B on the absolute value of each number of each party; 0 for angles.
    noise : NoisySum
        Noise that each party adds, and its number of fractional bits.
    """

    kind: Kind
    bits: int
    bound: float
    noise: NoisySum = NoisySum()

    def __post_init__(self) -> None:
        if self.kind not in _KINDS or self.bits not in _UNSIGNED:
            raise OptionError(
                f"there is no {self.bits}-bit ring for {self.kind!r} numbers",
                remedy="use 16, 32 or 64 bits",
                code="FK-OPTION-CHOICE",
            )
        if self.kind != "circle" and not 0.0 < self.bound < math.inf:
            raise OptionError(
                f"bound is {self.bound}", remedy="declare a positive bound", code="FK-OPTION-RANGE"
            )
        variance = self.noise.variance
        if variance and not (
            self.kind == "fixed-point"
            and LEAST_VARIANCE <= variance <= MOST_VARIANCE
            and abs(self.noise.fraction) <= _MOST_FRACTION
        ):
            raise OptionError(
                f"there is no noise of variance {variance} on {self.kind!r} numbers",
                code="FK-SUM-ENCODING",
            )

    @classmethod
    def fixed_point(cls, bound: float, bits: int = 64) -> Encoding:
        """Encode real numbers of absolute value up to ``bound``, with the most fractional bits."""
        return cls("fixed-point", bits, float(bound))

    @classmethod
    def integers(cls, bound: int, bits: int = 64) -> Encoding:
        """Encode integers of absolute value up to ``bound``, summed exactly."""
        return cls("integer", bits, float(bound))

    @classmethod
    def circle(cls, bits: int = 32) -> Encoding:
        """Encode angles in radians; the sum is modulo 2 pi."""
        return cls("circle", bits, 0.0)

    @classmethod
    def of(cls, order: Order) -> Encoding:
        """Return the encoding of an order; OptionError if there is none such."""
        noise = NoisySum(order.noise, order.fraction)
        return cls(order.kind, order.bits, order.bound, noise)  # type: ignore[arg-type]

    def noisy(self, noise: NoisySum) -> Encoding:
        """Return the same encoding with noise that each party adds."""
        return replace(self, noise=noise)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        return np.dtype(_UNSIGNED[self.bits])

    def fraction_bits(self, parties: int) -> int:
        """Return f, the number of fractional bits in a fixed-point sum of ``parties`` numbers.

        f = bits - 2 - ceil(log2 parties) - ceil(log2 bound), so that the sum stays below a quarter
        of the ring. Each number is rounded to a multiple of 2^-f. With noise f is that of the
        noise, which also hides the rounding.
        """
        if self.noise.variance:
            return self.noise.fraction
        return self.bits - 2 - _ceil_log2(parties) - _ceil_log2(self.bound)

    def check_room(self, parties: int) -> None:
        """Raise OptionError if a sum could overflow the ring."""
        if self.kind == "integer" and parties * self.bound >= 2.0 ** (self.bits - 1):
            raise OptionError(
                f"{parties} integers up to {self.bound:g} overflow a {self.bits}-bit ring",
                code="FK-SUM-OVERFLOW",
            )
        if self.noise.variance:
            units = self._largest * 2.0**self.noise.fraction + 1.0  # and what rounding adds
            if parties * units >= 2.0 ** (self.bits - 1):
                raise OptionError(
                    f"{parties} numbers up to {self.bound:g} with their noise overflow a "
                    f"{self.bits}-bit ring",
                    code="FK-SUM-OVERFLOW",
                )
            return
        if self.kind == "fixed-point" and not 0 <= self.fraction_bits(parties) < 900:
            raise OptionError(
                f"{parties} numbers up to {self.bound:g} leave no fractional bits in a "
                f"{self.bits}-bit ring",
                code="FK-SUM-OVERFLOW",
            )

    def encode(
        self, values: NDArray[Any], parties: int, *, name: str, overwrite: bool = False
    ) -> RingArray:
        """Return ring elements.

        - ``values``: Real numbers, integers, or angles in radians; of a circle also ring elements.
        - ``parties``: Number of parties in the sum.
        - ``overwrite`` (default: False): Whether the result may reuse the memory of ``values``.

        Raises
        ------
        SumError
            Values are NaN, infinite, beyond the bound, or of the wrong kind. The text quotes no
            value.
        """
        allowed = "iub" if self.kind == "integer" else "fiub"
        if not isinstance(values, np.ndarray) or values.ndim != 1:
            raise SumError(f"{name} is not a vector", code="FK-SUM-VALUES")
        if values.dtype.kind not in allowed:
            raise SumError(
                f"{name} has dtype {values.dtype}, declared as {self.kind}", code="FK-SUM-VALUES"
            )
        if values.strides == (0,) and not values[:1].any():  # broadcast zeros
            return np.zeros(values.size, self.dtype)
        if self.kind == "circle" and values.dtype == self.dtype:
            return values if overwrite else values.copy()
        if overwrite and values.flags.carray and values.itemsize == self.dtype.itemsize:
            out = values.view(self.dtype)  # new memory costs as much as the rest
        else:
            out = np.empty(values.size, self.dtype)
        for start in range(0, values.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            self._encode(values[part], out[part], parties, name)
        return out

    def decode(self, total: RingArray, parties: int, *, overwrite: bool = False) -> NDArray[Any]:
        """Return the sum: float64 numbers, angles in [0, 2 pi), or int64 integers.

        With ``overwrite`` real numbers may reuse the memory of ``total``.
        """
        if self.kind == "circle":
            angles = total * (_TURN / 2.0**self.bits)
            angles[angles >= _TURN] = 0.0  # the last few of 2^64 steps round up to a full turn
            return angles
        signed = total.view(_SIGNED[self.bits])
        if self.kind == "integer":
            return signed.astype(np.int64)
        step = 2.0 ** -self.fraction_bits(parties)  # as exact as np.ldexp, in one pass
        out = total.view(np.float64) if overwrite and self.bits == 64 else None
        return np.multiply(signed, step, out=out, dtype=np.float64)

    def check_total(self, total: NDArray[Any], parties: int, *, name: str) -> None:
        """Refuse a decoded sum that ``parties`` vectors within the bound cannot have.

        This detects nearly all garbage, but not its sender.
        """
        if self.kind == "circle" or not total.size:
            return
        largest = max(abs(float(total.min())), abs(float(total.max())))
        step = 2.0 ** -self.fraction_bits(parties) if self.kind == "fixed-point" else 0.0
        if largest > parties * (self._largest * (1.0 + 1e-9) + step):
            raise SumError(
                f"{name} is larger than {parties} vectors within the bound can be: a party did not "
                "keep to the protocol",
                code="FK-SUM-TOTAL",
            )

    @property
    def _largest(self) -> float:
        return self.bound + reach(self.noise.variance) * 2.0**-self.noise.fraction

    def _encode(self, values: NDArray[Any], out: RingArray, parties: int, name: str) -> None:
        number: type[float] | type[int] = int if self.kind == "integer" else float
        largest = max(number(values.max()), -number(values.min()))  # NaN if there is one
        if not math.isfinite(largest):
            raise SumError(f"{name} holds NaN or infinite values", code="FK-VALUES-FINITE")
        if self.kind == "circle":
            steps = np.divide(values, _TURN, dtype=np.float64)
            steps -= np.floor(steps)
            steps *= 2.0 ** min(self.bits, 53)
            np.rint(steps, out=steps)
            # a whole turn can round up to 2^bits, which the narrower integer takes for 0
            units = steps.astype(np.int32 if self.bits < 31 else np.int64)
            out[:] = units << max(0, self.bits - 53)
            return
        if largest > self.bound:  # exact: Python compares integers of any size with floats
            raise SumError(
                f"{name} exceeds its declared bound of {self.bound:g}", code="FK-SUM-BOUND"
            )
        signed = out.view(_SIGNED[self.bits])
        if self.kind == "integer":
            signed[:] = values.astype(np.int64)
            return
        scaled = np.multiply(values, 2.0 ** self.fraction_bits(parties), dtype=np.float64)
        np.rint(scaled, out=scaled)
        np.copyto(signed, scaled, casting="unsafe")  # fits, by the bound


def _ceil_log2(value: float) -> int:
    mantissa, exponent = math.frexp(value)
    return exponent - 1 if mantissa == 0.5 else exponent


def chunks(vector: RingArray) -> tuple[RingArray, ...]:
    """Split a vector into chunks of 4 MiB, so that neither side copies the whole."""
    step = CHUNK_BYTES // vector.itemsize
    return tuple(vector[k : k + step] for k in range(0, vector.size, step))


# -- masks: pseudo-random streams added to ring vectors in place, a block at a time

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
        32-byte keys. A stream is the cipher's key stream from its beginning, with a zero nonce:
        never use a key for two sums.
    cipher : {"aes-256-ctr", "chacha20"}
        Cipher of the streams.
    threads : int (default: 0)
        Threads that share a long vector; 0 for one per processor. Each needs 1 MiB.
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
    """Add the streams to the bytes ``start`` to ``stop``; ``start`` is a multiple of ``_STEP``."""
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

"""Kernels that are functions of dot products, computed from the Gram matrix alone.

With K = X^T X no features are needed: each kernel follows from K_ij, K_ii and K_jj. The boolean
kernels are for features of 0 and 1, where K_ij counts the features that two instances share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from .matrix import mirror_upper

Floats = NDArray[np.float64]
Array = NDArray[Any]

KernelName = Literal["linear", "poly", "rbf", "cosine", "conjunctive", "disjunctive", "series"]
KERNELS: tuple[str, ...] = get_args(KernelName)

_BLOCK_BYTES = 4 << 20  # of the rows that are computed at once
_SUMMED = 60  # bits: sums of four such integers fit 64
_AT_LEAST_0 = "at least 0, or the kernel is not positive semi-definite"


@dataclass(frozen=True)
class DotKernel:
    """A kernel that is a function of dot products.

    ===============  =================================================
    name             k(x, z), with <x, z> the dot product
    ===============  =================================================
    ``linear``       <x, z>
    ``poly``         (gamma <x, z> + coef0)^degree
    ``rbf``          exp(-gamma |x - z|^2)
    ``cosine``       <x, z> / sqrt(<x, x> <z, z>), 0 where a norm is 0
    ``conjunctive``  number of conjunctions of ``degree`` different
                     features that are true of both x and z
    ``disjunctive``  the same of disjunctions
    ``series``       sum_d coefficients[d] <x, z>^d, d from 0
    ===============  =================================================

    Attributes
    ----------
    name : str (default: "linear")
        One of ``KERNELS``.
    degree : int (default: 2)
        Of "poly", "conjunctive" and "disjunctive".
    gamma : float (default: 1.0)
        Of "poly" and "rbf"; in units of the inverse of a dot product.
    coef0 : float (default: 1.0)
        Of "poly".
    coefficients : tuple of float (default: ())
        Of "series".

    Raises
    ------
    OptionError
        If the name is unknown, or a value is out of range or makes the kernel indefinite.

    References
    ----------
    Polato and Aiolli, "Boolean kernels for collaborative filtering in top-N item recommendation",
    Neurocomputing 286, 2018.
    """

    name: str = "linear"
    degree: int = 2
    gamma: float = 1.0
    coef0: float = 1.0
    coefficients: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in KERNELS:
            raise OptionError(
                f"there is no kernel {self.name!r}",
                remedy=f"use one of {', '.join(KERNELS)}",
                code="FK-OPTION-CHOICE",
            )
        if self.name == "series" and not self.coefficients:
            raise OptionError(
                "the series has no coefficients",
                remedy="give one for each power, from 0 on",
                code="FK-OPTION-PARTNER",
            )
        whole = isinstance(self.degree, int) and not isinstance(self.degree, bool)
        weights = (("coef0", self.coef0), *(("coefficient", a) for a in self.coefficients))
        for name, value, fits, remedy in (
            ("degree", self.degree, whole and self.degree >= 1, "a whole number of at least 1"),
            ("gamma", self.gamma, 0.0 < self.gamma < math.inf, "a positive number"),
            *((name, value, 0.0 <= value < math.inf, _AT_LEAST_0) for name, value in weights),
        ):
            if not fits:
                raise OptionError(
                    f"{name} is {value}", remedy=f"use {remedy}", code="FK-OPTION-RANGE"
                )

    @property
    def needs_binary(self) -> bool:
        """Whether the features must be 0 or 1."""
        return self.name in ("conjunctive", "disjunctive")

    def block(self, products: Array, left: Array, right: Array, features: int) -> Floats:
        """Return the kernel between two sets of instances, shape (a, b).

        From integers, "disjunctive" and the squared distances of "rbf" (norms below 2^61) are exact
        before the final rounding; "conjunctive" is exact up to 2^53. From floats, squared distances
        have the rounding errors of K; negative ones become 0. Memory: the result and some 20 MB.

        Parameters
        ----------
        products : ndarray, shape (a, b)
            <x_i, z_j>, integers or floats.
        left, right : ndarray, shapes (a,) and (b,)
            <x_i, x_i> and <z_j, z_j>.
        features : int
            n, number of features summed over; only for "disjunctive".

        Raises
        ------
        OptionError
            Values exceed float64, or are impossible for features of 0 and 1.
        """
        if products.shape != (left.size, right.size):
            raise OptionError(
                "the dot products do not match the two sets of instances", code="FK-SHAPE-DIFFERS"
            )
        compute = self._function(features)
        out = np.empty(products.shape, np.float64)
        step = max(1, _BLOCK_BYTES // (8 * max(1, right.size)))
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, left.size, step):
                rows = slice(start, start + step)
                compute(products[rows], left[rows, None], right[None, :], out[rows])
                if not np.isfinite(out[rows]).all():
                    raise OptionError(
                        f"the {self.name} kernel has values beyond the range of float64",
                        remedy="use smaller parameters or scale the data",
                        code="FK-KERNEL-OVERFLOW",
                    )
        return out

    def matrix(self, gram: Array, features: int) -> Floats:
        """Return the kernel of all pairs of instances, shape (m, m), exactly symmetric.

        The diagonal of "cosine" is exactly 1, or 0 where the norm is 0.

        Parameters
        ----------
        gram : ndarray, shape (m, m)
            K, integers or floats.
        features : int
            n, number of features summed over; only for "disjunctive".

        Raises
        ------
        OptionError
            As :meth:`block`.
        """
        norms = gram.diagonal()
        out = self.block(gram, norms, norms, features)
        mirror_upper(out)
        if self.name == "cosine":
            np.fill_diagonal(out, norms > 0)
        return out

    def _function(self, features: int) -> Callable[[Array, Array, Array, Floats], None]:
        if self.name == "disjunctive":
            return _disjunctive(features, self.degree)
        functions: dict[str, Callable[[Array, Array, Array, Floats], None]] = {
            "linear": _linear,
            "poly": self._poly,
            "rbf": self._rbf,
            "cosine": _cosine,
            "conjunctive": self._conjunctive,
            "series": self._series,
        }
        return functions[self.name]

    def _poly(self, products: Array, left: Array, right: Array, out: Floats) -> None:
        np.multiply(products, self.gamma, out=out)
        out += self.coef0
        out **= self.degree

    def _rbf(self, products: Array, left: Array, right: Array, out: Floats) -> None:
        np.multiply(_squared_distances(products, left, right), -self.gamma, out=out)
        np.minimum(out, 0.0, out=out)
        np.exp(out, out=out)

    def _series(self, products: Array, left: Array, right: Array, out: Floats) -> None:
        out.fill(0.0)
        for coefficient in reversed(self.coefficients):  # Horner's rule
            out *= products
            out += coefficient

    def _conjunctive(self, products: Array, left: Array, right: Array, out: Floats) -> None:
        """Write binom(K_ij, c): the conjunctions of c features that two instances share."""
        _check_boolean(products.min(initial=0) >= 0)
        out.fill(1.0)
        for drawn in range(self.degree):  # binom(k, t + 1) = binom(k, t) (k - t) / (t + 1)
            out *= np.maximum(products.astype(np.float64) - drawn, 0.0)
            out /= drawn + 1


def _disjunctive(features: int, degree: int) -> Callable[[Array, Array, Array, Floats], None]:
    """Return a function that counts the disjunctions of d of n features true of both instances.

    binom(n, d) - binom(n - K_ii, d) - binom(n - K_jj, d) + binom(n - K_ii - K_jj + K_ij, d): all
    disjunctions minus those that miss one or the other. The terms are far larger than the result,
    so they are added as integers (Python's beyond 64 bits) and rounded last.
    """
    binomials = [math.comb(v, degree) for v in range(features + 1)]
    kind: Any = object if max(binomials, default=0).bit_length() > _SUMMED else np.int64
    table = np.array(binomials, kind)

    def compute(products: Array, left: Array, right: Array, out: Floats) -> None:
        first, second = features - _rounded(left), features - _rounded(right)
        neither = _rounded(products) + first + second - features
        lowest = min(part.min(initial=0) for part in (products, first, second, neither))
        _check_boolean(lowest >= 0 and neither.max(initial=0) <= features)
        try:
            out[:] = table[neither] - table[first] - table[second] + table[-1]
        except OverflowError:
            out.fill(np.inf)

    return compute


def _linear(products: Array, left: Array, right: Array, out: Floats) -> None:
    out[:] = products


def _cosine(products: Array, left: Array, right: Array, out: Floats) -> None:
    scales = np.sqrt(left.astype(np.float64)) * np.sqrt(right.astype(np.float64))
    out.fill(0.0)
    np.divide(products, scales, out=out, where=scales > 0.0)


def _squared_distances(products: Array, left: Array, right: Array) -> Array:
    """Return K_ii + K_jj - 2 K_ij, in integers if they cannot overflow."""
    whole = all(part.dtype.kind in "iu" for part in (products, left, right))
    largest = max(float(left.max(initial=0)), float(right.max(initial=0)))
    kind = np.int64 if whole and largest < 2.0**61 else np.float64
    distances: Array = products.astype(kind)
    distances *= -2
    distances += left.astype(kind)
    distances += right.astype(kind)
    return distances


def _rounded(values: Array) -> NDArray[np.int64]:
    return np.rint(values).astype(np.int64) if values.dtype.kind == "f" else values.astype(np.int64)


def _check_boolean(possible: Any) -> None:
    if not possible:
        raise OptionError(
            "the dot products are not those of features of 0 and 1",
            remedy="use a kernel that is not boolean, or other features",
            code="FK-KERNEL-BINARY",
        )

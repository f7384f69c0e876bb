"""Training on random Fourier features held as phases: after one exchange all work is local.

The model f(x) = phi(x) w, phi_j = sqrt(2 / R) cos(m angle_j), minimises mean_i L(f(x_i), y_i) +
lambda / 2 |w|^2 for each output. Features of a width are computed once
(:func:`~fedkern_flwr.vertical.phases.keep_features`). Width and regularization are chosen by
cross-validation at the label holder, the width with the square loss in closed form.

References
----------
Gu, Dang, Li and Huang 2020 (FDSKL): the model and the objective. Keerthi and DeCoste, "A Modified
Finite Newton Method for Fast Solution of Large Scale Linear SVMs", JMLR 6, 2005: Newton steps on
the rows in the bend, with a line search. Nocedal, "Updating Quasi-Newton Matrices with Limited
Storage", Mathematics of Computation 35, 1980.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from threadpoolctl import threadpool_limits

from ..errors import FedKernError, OptionError
from ..labels import decide
from ..progress import progress
from ..seeding import derive_seed
from ..solvers.least_squares import check_regularization
from ..solvers.losses import (
    LOSSES,
    Loss,
    line_search,
    loss_curvatures,
    loss_derivatives,
    reduced,
)
from .phases import INTERCEPT, Features, Floats, Phases, blocks, keep_features

Scores = dict[tuple[int, float], float]  # by (multiple, regularization)

# -- Quasi-Newton steps for a regularised mean loss of stored features, all outputs at once
#
# The objective of each output is F(w) = sum_i s_i L(f_i, y_i) + lambda / 2 |w|^2 with f = Z w. Its
# curvature is Z^T D Z + lambda I, where D holds s_i times the curvature of the loss at each row. A
# Newton step would need Z^T D Z and its factor at each point. They cost as much as several passes
# over Z, and D changes little: so the factor of an earlier point is used, limited-memory BFGS
# corrects it, and it is made anew when the search becomes slow. Z^T D Z is kept, and only rows
# with a changed curvature are added. For the smooth hinge these enter or exit its bend.

LARGEST_CURVATURE = {"square": 2.0, "logistic": 0.25, "smooth-hinge": 1.0}
#: The search ends when the quadratic model promises less than half the square of this.
TOLERANCE = 1e-4
STEPS = 300
#: Curvatures that changed by a smaller share are not updated: the direction is off by at most as
#: much, and the next steps correct it.
_CHANGE = 0.1
#: The promise of a corrected factor is less exact than that of Newton's method: by this factor.
_SURE = 0.5
_PAIRS = 20  # steps that correct a factor
_PATIENCE = 4  # steps without half the promise, after which the factor is made anew
#: Bytes of the matrices of all outputs up to which each has its own, 32 MB; else they share one.
_KEPT = 1 << 25

Pair = tuple[Floats, Floats]  # a step of each output and the change of its slope, (R, k)
Inverse = Callable[[Floats], Floats]  # the product with an inverse curvature


@dataclass(frozen=True)
class Kept:
    """Features of all rows at a width; for few rows, in a basis of their span.

    The solution is in the span of the rows: n equations determine it as well as R.

    Parameters
    ----------
    z : ndarray of float32 or float64, shape (n, R) or (n, n)
        Features.
    basis : ndarray of float64, shape (R, n), or None
        Of the span.
    intercept : bool
        Whether the last column of z is the constant.
    """

    z: Features
    basis: Floats | None
    intercept: bool

    @classmethod
    def make(
        cls, phases: Phases, multiple: int, intercept: bool, folder: Path | None = None
    ) -> Kept:
        z = keep_features(phases, multiple, intercept=intercept, folder=folder)
        if len(z) >= 0.75 * z.shape[1]:  # the basis costs as much as a few equations
            return cls(z, None, intercept)
        basis, rows = reduced(z.astype(np.float64))
        return cls(rows, basis, False)

    def whole(self, weights: Floats) -> Floats:
        """Convert weights of z to weights of the features."""
        return weights if self.basis is None else np.asarray(self.basis @ weights)

    def inside(self, weights: Floats) -> Floats:
        """Convert weights of the features to weights of z."""
        return weights if self.basis is None else np.asarray(self.basis.T @ weights)

    def of(self, rows: slice | NDArray[np.intp]) -> Kept:
        return Kept(self.z[rows], self.basis, self.intercept)


@dataclass(frozen=True)
class Equations:
    """Sums over rows: Z^T Z, shape (R, R), and Z^T y, shape (R, k)."""

    gram: Floats
    right: Floats
    rows: int

    def plus(self, other: Equations) -> Equations:
        rows = self.rows + other.rows
        return Equations(self.gram + other.gram, self.right + other.right, rows)


@dataclass
class Curvatures:
    """Z^T D Z, where D is the mean curvature of outputs at each row; reused from fit to fit.

    Parameters
    ----------
    matrices : dict
        Outputs -> Z^T D Z, shape (R, R).
    of_rows : dict
        Outputs -> the diagonal of D without s_i, shape (n,).
    """

    matrices: dict[int, Floats] = field(default_factory=dict)
    of_rows: dict[int, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """The objective of ``loss`` on features ``kept``; ``shares`` multiply the rows' losses.

    ``equations`` cover all rows with non-zero shares; rows without a curvature may be subtracted
    from them.
    """

    loss: Loss
    kept: Kept
    targets: Floats
    shares: Floats
    equations: Equations | None

    def minimise(
        self,
        regularization: float,
        start: Floats,
        known: Curvatures | None = None,
        *,
        tolerance: float = TOLERANCE,
        steps: int = STEPS,
    ) -> Floats:
        """Return the weights of the smallest objective, (R, k); parameters as in :func:`minimise`.

        ``known`` are curvatures of an earlier call with the same rows and shares, and are updated.

        Raises
        ------
        OptionError
            lambda is too small for the precision of the features.
        FedKernError
            The tolerance is not reached.
        """
        known, z, w, exact = known or Curvatures(), self.kept.z, start.copy(), False
        f, left = multiply(z, w), np.arange(w.shape[1])  # outputs that are not at their minimum
        slope = self._slope(w, f, left, regularization)
        inverses, pairs = list[Inverse](), list[Pair]()
        best, since, last = np.inf, _PATIENCE, np.inf
        for _ in range(steps):
            renewed = since == _PATIENCE
            if renewed:
                inverses = self._inverses(known, f, left, regularization)
                # a shared inverse is still corrected by what is known of each output
                pairs = pairs if len(set(map(id, inverses))) < len(left) else []
                best, since = np.inf, 0
            direction = -quasi_newton(inverses, pairs, slope)
            promised = np.sqrt(np.maximum(0.0, -(direction * slope).sum(axis=0)))
            largest, far = float(promised.max()), promised > _SURE * tolerance
            if not far.any():
                if renewed and len(left) == w.shape[1]:
                    return w
                # an earlier curvature, if larger, promises less than there is: look again
                left, pairs, since = np.arange(w.shape[1]), [], _PATIENCE
                slope = self._slope(w, f, left, regularization, exact=exact)
                continue
            if not far.all():
                left, direction, slope = left[far], direction[:, far], slope[:, far]
                inverses = list(compress(inverses, far))
                pairs = [(step[:, far], change[:, far]) for step, change in pairs]
            best, since = (largest, 0) if largest < 0.5 * best else (best, since + 1)
            along, lengths = multiply(z, direction, exact=exact), np.empty(len(left))
            for place, k in enumerate(left.tolist()):
                d, df, g = direction[:, place], along[:, place], slope[:, place]
                lengths[place] = self._length(
                    k, regularization, w[:, k], d, f[:, k], df, float(d @ g)
                )
            direction *= lengths
            w[:, left] += direction
            f[:, left] += lengths * along
            if since == _PATIENCE and not exact and z.dtype != np.float64 and largest < 0.1:
                exact = largest > 0.5 * last
                last = largest
                f = multiply(z, w, exact=True) if exact else f
            before, slope = slope, self._slope(w, f, left, regularization, exact=exact)
            pairs = [*pairs[1 - _PAIRS :], (direction, slope - before)]
        raise FedKernError(
            f"the {self.loss} loss stopped {largest:.1e} from its minimum after {steps} steps",
            remedy="use a larger regularization or tolerance, or more iterations",
            code="FK-SOLVER-STEPS",
        )

    def _slope(
        self,
        w: Floats,
        f: Floats,
        outputs: NDArray[np.intp],
        penalty: float,
        *,
        exact: bool = False,
    ) -> Floats:
        pull = self.shares * loss_derivatives(self.loss, f[:, outputs], self.targets[:, outputs])
        return penalty * w[:, outputs] + multiply_back(self.kept.z, pull, exact=exact)

    def _length(
        self, output: int, penalty: float, w: Floats, d: Floats, f: Floats, df: Floats, begin: float
    ) -> float:
        shares, linear, square = self.shares[:, 0], penalty * float(w @ d), penalty * float(d @ d)
        y = self.targets[:, output]

        def slope(t: float) -> tuple[float, float]:
            at = f + t * df
            first = float((shares * loss_derivatives(self.loss, at, y)) @ df) + linear + t * square
            curvature = float((shares * loss_curvatures(self.loss, at, y)) @ (df * df)) + square
            return first, curvature

        return line_search(slope, begin)

    def _inverses(
        self, known: Curvatures, f: Floats, outputs: NDArray[np.intp], penalty: float
    ) -> list[Inverse]:
        """Return products with inverse curvatures, one for each output.

        If few rows of an output have a curvature, A = D^1/2 Z of these, it is exact: (A^T A +
        lambda I)^-1 = (I - A^T (A A^T + lambda I)^-1 A) / lambda. Other outputs with large
        matrices share that of their mean curvature.
        """
        of_rows = loss_curvatures(self.loss, f[:, outputs], self.targets[:, outputs])
        of_rows[self.shares[:, 0] == 0.0] = 0.0
        width = self.kept.z.shape[1]
        few = 2 * (of_rows > 0.0).sum(axis=0) <= width
        alone = 8 * width * width * f.shape[1] <= _KEPT

        def of_few(curvatures: Floats) -> Inverse:
            rows = np.flatnonzero(curvatures)
            a = self.kept.z[rows] * np.sqrt(curvatures[rows] * self.shares[rows, 0])[:, None]
            small = factorise(a @ a.T, penalty)
            return lambda v: (v - a.T @ linalg.cho_solve((small, True), a @ v)) / penalty

        def of_many(output: int, curvatures: Floats) -> Inverse:
            self._bring_up(known, output, curvatures)
            factor = factorise_near(known.matrices[output], penalty)
            return lambda v: linalg.cho_solve((factor, True), v, check_finite=False)

        shared = None if few.all() or alone else of_many(-1, of_rows[:, ~few].mean(axis=1))
        found = list[Inverse]()
        for k, curvatures, own in zip(outputs.tolist(), of_rows.T, few, strict=True):
            found.append(of_few(curvatures) if own else shared or of_many(k, curvatures))
        return found

    def _bring_up(self, known: Curvatures, output: int, wanted: Floats) -> None:
        largest = LARGEST_CURVATURE[self.loss]
        if output not in known.matrices:
            full, begin = np.where(self.shares[:, 0] > 0.0, largest, 0.0), self.equations
            removed = full - wanted > _CHANGE * full
            if begin is not None and removed.sum() < (wanted > 0.0).sum():  # less work
                known.matrices[output] = (largest / begin.rows) * begin.gram
                known.of_rows[output] = full
            else:
                known.matrices[output] = np.zeros((self.kept.z.shape[1],) * 2)
                known.of_rows[output] = np.zeros_like(full)
        before, matrix = known.of_rows[output], known.matrices[output]
        change = wanted - before
        for sign in (1, -1):
            rows = np.flatnonzero(sign * change > _CHANGE * np.maximum(before, wanted))
            root = np.sqrt(np.abs(change[rows]) * self.shares[rows, 0])
            for part in blocks(len(rows), self.kept.z.strides[0]):
                z = self.kept.z[rows[part]]
                add_gram(matrix, z, root[part], intercept=self.kept.intercept, sign=sign)
            before[rows] = wanted[rows]


def quasi_newton(inverses: Sequence[Inverse], pairs: Sequence[Pair], slope: Floats) -> Floats:
    """Return the inverse curvature times the slope of each output, (R, k), by limited-memory BFGS.

    ``pairs`` correct the inverses, which are those of an earlier point (Nocedal 1980).
    """
    q, passed = slope.copy(), list[tuple[Floats, Floats]]()
    for step, change in reversed(pairs):
        product = (step * change).sum(axis=0)
        inverse = np.divide(1.0, product, out=np.zeros_like(product), where=product > 0.0)
        passed.append((inverse, inverse * (step * q).sum(axis=0)))
        q -= passed[-1][1] * change
    for k, inverse_of in enumerate(inverses):
        q[:, k] = inverse_of(q[:, k])
    for (step, change), (inverse, share) in zip(pairs, reversed(passed), strict=True):
        q += (share - inverse * (change * q).sum(axis=0)) * step
    return q


def add_gram(
    matrix: Floats, z: Features, root: Floats | None, *, intercept: bool, sign: int = 1
) -> None:
    """Add (or subtract) Z^T D Z of rows; ``root`` is the diagonal of D^1/2.

    With an intercept, sums of features are in float64: float32 would make equations of a small
    lambda singular.
    """
    scale: Any = 1 if root is None else root.astype(z.dtype)[:, None]
    z = z if root is None else z * scale
    gram = z.T @ z
    if intercept:
        sums = multiply_back(z, np.ones((len(z), 1)) if root is None else root[:, None], exact=True)
        gram[-1] = gram[:, -1] = 0.0
        matrix[-1] += sign * np.sqrt(INTERCEPT) * sums[:, 0]
        matrix[:-1, -1] = matrix[-1, :-1]
    (np.add if sign > 0 else np.subtract)(matrix, gram, out=matrix)


def factorise(matrix: Floats, regularization: float) -> Floats:
    shifted = matrix.copy()
    shifted[np.diag_indices_from(shifted)] += regularization
    try:
        # LAPACK can overwrite the transpose of a symmetric matrix in C order
        options = {"lower": True, "overwrite_a": True, "check_finite": False}  # cosines are finite
        return np.asarray(linalg.cho_factor(shifted.T, **options)[0])
    except linalg.LinAlgError:
        raise OptionError(
            f"the normal equations are singular at regularization {regularization:g}",
            code="FK-EQUATIONS-SINGULAR",
        ) from None


def factorise_near(matrix: Floats, regularization: float) -> Floats:
    """Return the factor of a direction, with a larger lambda if rounding requires it.

    The direction is then a little shorter; the end of the search stays the same.
    """
    for times in (1.0, 10.0, 100.0):
        try:
            return factorise(matrix, times * regularization)
        except OptionError:
            continue
    return factorise(matrix, 1000.0 * regularization)


def multiply(z: Features, weights: Floats, *, exact: bool = False) -> Floats:
    """Return Z w in float64, (n, k); ``exact`` uses products in float64."""
    out = np.empty((len(z), weights.shape[1]))
    dtype: Any = np.float64 if exact else z.dtype
    small = weights.astype(dtype)
    for part in blocks(len(z), 16 * z.strides[0]):
        out[part] = z[part].astype(dtype, copy=False) @ small
    return out


def multiply_back(z: Features, values: NDArray[np.float64], *, exact: bool = False) -> Floats:
    """Return Z^T v in float64, (R, k), of values of rows, (n, k)."""
    out = np.zeros((values.shape[1], z.shape[1]))
    dtype: Any = np.float64 if exact else z.dtype
    small = np.ascontiguousarray(values.T, dtype)  # BLAS is twice as fast with Z on the right
    for part in blocks(len(z), 16 * z.strides[0]):
        out += small[:, part] @ z[part].astype(dtype, copy=False)
    return out.T


# -- training, and the choice of width and lambda

#: Candidates for the multiple of the base frequencies: widths up to 64 times the base.
MULTIPLES = (1, 2, 3, 4, 6, 8)
REGULARIZATIONS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
#: Targets may be exact; float64 features, of 32-bit phases, allow such small values.
REGULARIZATIONS_OF_NUMBERS = (1e-12, 1e-11, 1e-10, 1e-9, 1e-8, *REGULARIZATIONS)
#: Most rows and directions for the comparison of neighbouring widths and lambda.
_COMPARED, _DIRECTIONS = 10_000, 1000


def minimise(
    loss: Loss,
    phases: Phases,
    targets: Floats,
    regularization: float,
    multiple: int = 1,
    start: Floats | None = None,
    *,
    intercept: bool = False,
    weights: Floats | None = None,
    tolerance: float = TOLERANCE,
    steps: int = STEPS,
    folder: Path | None = None,
) -> Floats:
    """Minimise the regularised mean loss of all outputs, in closed form or by quasi-Newton steps.

    Parameters
    ----------
    loss : {"square", "logistic", "smooth-hinge"}
        L. The square loss solves (2/n Z^T Z + lambda I) w = 2/n Z^T y.
    phases : ndarray of uint16 or uint32, shape (n, R)
        Angles as integers.
    targets : ndarray of float64, shape (n, k)
        y.
    regularization : float
        lambda.
    multiple : int (default: 1)
        m, which multiplies the frequencies.
    start : ndarray of float64, of the shape of w, optional
        First weights; default: those of the square loss, one pass over all rows.
    intercept : bool (default: False)
        Whether to add a constant feature.
    weights : ndarray of float64, shape (n,), optional
        Factors of the rows' losses, of mean one.
    tolerance : float (default: 1e-4)
        The search ends at steps that lower the objective by less than half its square.
    steps : int (default: 300)
        Most steps.
    folder : path, optional
        For a file of features that exceed memory.

    Returns
    -------
    ndarray of float64, shape (R, k) or (R + 1, k)
        w.

    Raises
    ------
    OptionError
        lambda is not positive or too small for the features' precision; targets of a loss for
        classes are not -1 and 1.
    FedKernError
        The tolerance is not reached.
    """
    check_training(phases, targets, loss)
    check_regularization(regularization)
    kept = Kept.make(phases, multiple, intercept, folder)
    equations = None
    if start is None or loss == "square":
        equations = add_equations(kept, targets, weights=weights)
        first = solve(equations, regularization)
        if loss == "square":
            return kept.whole(first)
    else:
        first = kept.inside(start)
    problem = Problem(loss, kept, targets, shares_of(len(targets), weights), equations)
    return kept.whole(problem.minimise(regularization, first, tolerance=tolerance, steps=steps))


@dataclass(frozen=True)
class Fitted:
    """A model and how its options were chosen.

    Parameters
    ----------
    weights : ndarray of float64, shape (R, k) or, with an intercept, (R + 1, k)
        w.
    multiple : int
        m.
    regularization : float
        lambda.
    scores : dict (default: empty)
        Accuracy or root mean squared error by (multiple, regularization), on rows held out from the
        last comparison, which has the loss itself.
    widths : dict (default: empty)
        The same for all candidates, by cross-validation with the square loss.
    """

    weights: Floats
    multiple: int
    regularization: float
    scores: Scores = field(default_factory=dict)
    widths: Scores = field(default_factory=dict)


def fit(
    loss: Loss,
    phases: Phases,
    targets: Floats,
    *,
    classes: int,
    seed: int,
    multiples: Sequence[int] = MULTIPLES,
    regularizations: Sequence[float] = REGULARIZATIONS,
    intercept: bool = False,
    weights: Floats | None = None,
    folds: int = 5,
    rows: int = 4000,
    directions: int | None = None,
    folder: Path | None = None,
) -> Fitted:
    """Choose width and regularization by cross-validation, then train on all rows.

    Both are chosen with the square loss, by K-fold cross-validation on a sample of rows and the
    first directions; then lambda with the loss itself. With more rows than the sample, the choices
    of the square loss, and then of the loss itself, are compared with their neighbours (lambda
    within a factor of ten) on at most 10,000 rows and 1,000 directions, one fold held out. Ties go
    to the smaller multiple, then the larger regularization.

    Parameters
    ----------
    loss, phases, targets, intercept, folder
        As in :func:`minimise`.
    classes : int
        Number of classes, 0 for regression.
    seed : int
        Of the sample and the folds.
    multiples : sequence of int (default: MULTIPLES)
        Candidates for m.
    regularizations : sequence of float (default: REGULARIZATIONS)
        Candidates for lambda. One of each: nothing is chosen.
    weights : ndarray of float64, shape (n,), optional
        Of rows, in losses and scores; for instance class weights.
    folds : int (default: 5)
        K.
    rows : int (default: 4000)
        Most rows of the sample.
    directions : int, optional
        Most directions in the cross-validation; default 500 for classes, 1000 for numbers.

    Raises
    ------
    OptionError
        Candidates are missing or invalid, or rows too few for two folds; as :func:`minimise`.
    FedKernError
        The tolerance is not reached.
    """
    check_training(phases, targets, loss)
    multiples = sorted(set(multiples))
    regularizations = sorted(set(regularizations), reverse=True)
    _check_candidates(multiples, regularizations, folds, len(targets))
    more: dict[str, Any] = {"intercept": intercept, "folder": folder}

    def train(multiple: int, regularization: float, start: Floats | None = None) -> Floats:
        progress(f"training on {len(phases):,} rows x {phases.shape[1]:,} features")
        known = phases, targets, regularization, multiple
        return minimise(loss, *known, start, weights=weights, **more)

    if len(multiples) * len(regularizations) == 1:
        trained = train(multiples[0], regularizations[0])
        return Fitted(trained, multiples[0], regularizations[0])

    def trials(chosen: NDArray[np.intp], width: int) -> _Trials:
        own = None if weights is None else weights[chosen]
        return _Trials(phases[chosen, :width], targets[chosen], own, classes, **more)

    order = np.random.default_rng(derive_seed(seed, "folds")).permutation(len(targets))
    folds = min(folds, len(targets))
    first = np.concatenate([order[:rows][k::folds] for k in range(folds)])
    few = trials(first, directions or (500 if classes else 1000))
    some = trials(order[:_COMPARED], _DIRECTIONS) if len(targets) > rows else None
    scores = Scores()
    for number, value in enumerate(multiples, 1):
        progress(f"choosing a width on {few}", number, len(multiples))
        scores |= few.compare("square", value, regularizations, folds, folds)
    (multiple, near), widths = _best(scores, classes), scores
    if some is not None:
        place, scores = multiples.index(multiple), Scores()
        for value in multiples[max(0, place - 1) : place + 2]:
            scores |= some.compare("square", value, _within(regularizations, near), folds)
        multiple, near = _best(scores, classes)
    if loss != "square":
        progress(f"choosing lambda on {some or few}")
        if some is None:
            scores = few.compare(loss, multiple, regularizations, folds, folds)
        else:
            scores = some.compare(loss, multiple, _within(regularizations, near), folds)
        near = _best(scores, classes)[1]
    start = None if some is None else some.start(near, phases.shape[1])
    del some  # its features are large
    return Fitted(train(multiple, near, start), multiple, near, scores, widths)


def _within(regularizations: Sequence[float], near: float) -> list[float]:
    return [value for value in regularizations if 0.09 < value / near < 11.0]


def _path(
    problem: Problem,
    equations: Equations,
    regularizations: Sequence[float],
    tell: Callable[[int], None] = lambda number: None,
) -> Iterator[tuple[float, Floats]]:
    """Yield each lambda and its weights, warm-started; skip singular ones."""
    model: Floats | None = None
    known = Curvatures()
    for number, value in enumerate(regularizations, 1):
        tell(number)
        if problem.loss != "square":
            first = solve(equations, value, factorise_near) if model is None else model
            model = problem.minimise(value, first, known)
        else:
            try:
                model = solve(equations, value)
            except OptionError:  # too small for the precision of the features
                continue
        yield value, model


@dataclass
class _Trials:
    """Rows and directions for comparing candidates on held-out rows."""

    phases: Phases
    targets: Floats
    weights: Floats | None
    classes: int
    intercept: bool
    folder: Path | None
    kept: Kept | None = None
    models: dict[float, Floats] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{len(self.phases):,} rows x {self.phases.shape[1]:,} features"

    def compare(
        self,
        loss: Loss,
        multiple: int,
        regularizations: Sequence[float],
        folds: int,
        held: int = 1,
    ) -> Scores:
        """Return scores on the first ``held`` of the folds; of one fold, keep the last models.

        Rows are in random order, and a fold is a block of them.
        """
        self.kept = kept = Kept.make(self.phases, multiple, self.intercept, self.folder)
        if loss == "square" and held > 1:  # closed forms with a small lambda need float64
            kept = Kept(kept.z.astype(np.float64), kept.basis, kept.intercept)
        y, rows, weights = self.targets, len(self.targets), self.weights
        each, more = divmod(rows, folds)
        ends = [each * k + min(k, more) for k in range(folds + 1)]
        parts = [slice(*ends[k : k + 2]) for k in range(folds)]
        predictions = {value: list[Floats]() for value in regularizations}

        def equations(part: slice) -> Equations:
            return add_equations(kept.of(part), y[part], None if weights is None else weights[part])

        def tell(number: int) -> None:
            if held == 1:
                text = f"training on {rows - ends[1]:,} rows x {self.phases.shape[1]:,} features"
                progress(text, number, len(regularizations))

        # threads would share matrices that are too small
        with threadpool_limits(1 if held > 1 else None, "blas"):
            sums = [equations(part) for part in parts] if held > 1 else []
            for number, part in enumerate(parts[:held]):
                rest: Any = slice(part.stop, None)  # needs no copy
                if part.start:
                    rest = np.r_[: part.start, part.stop : rows]
                train = reduce(
                    Equations.plus, sums[:number] + sums[number + 1 :] or [equations(rest)]
                )
                own = kept if loss == "square" else kept.of(rest)
                shares = shares_of(train.rows, None if weights is None else weights[rest])
                problem = Problem(loss, own, y[rest], shares, train)
                for value, model in _path(problem, train, regularizations, tell):
                    predictions[value].append(multiply(kept.z[part], model))
                    self.models[value] = model
        found = {k: np.concatenate(f) for k, f in predictions.items() if len(f) == held}
        return self._scores(multiple, found, slice(ends[held]))

    def _scores(self, multiple: int, predictions: Mapping[float, Floats], held: slice) -> Scores:
        if not predictions:
            raise OptionError(
                "the normal equations are singular at each regularization",
                code="FK-EQUATIONS-SINGULAR",
            )
        known = self.targets[held], self.classes
        weights = None if self.weights is None else self.weights[held]
        return {(multiple, k): _score(f, *known, weights) for k, f in predictions.items()}

    def start(self, regularization: float, directions: int) -> Floats | None:
        if regularization not in self.models:
            return None
        assert self.kept is not None
        found, few = self.kept.whole(self.models[regularization]), self.phases.shape[1]
        start = np.zeros((directions + len(found) - few, found.shape[1]))
        start[:few] = found[:few] * np.sqrt(directions / few)
        start[directions:] = found[few:]
        return start


def _score(
    predictions: Floats, targets: Floats, classes: int, weights: Floats | None = None
) -> float:
    if classes:
        return float(np.average(decide(predictions) == decide(targets), weights=weights))
    return float(np.sqrt(((predictions - targets) ** 2).mean()))


def _best(scores: Scores, classes: int) -> tuple[int, float]:
    return (max if classes else min)(scores, key=lambda key: scores[key])


def _check_candidates(
    multiples: Sequence[int], regularizations: Sequence[float], folds: int, rows: int
) -> None:
    if not multiples or not regularizations:
        raise OptionError(
            "there are no candidates",
            remedy="name a multiple and a regularization",
            code="FK-OPTION-RANGE",
        )
    if multiples[0] < 1:
        raise OptionError(
            f"multiple is {multiples[0]}", remedy="use whole numbers from 1", code="FK-OPTION-RANGE"
        )
    for value in regularizations:
        check_regularization(value)
    if len(multiples) * len(regularizations) > 1 and min(folds, rows) < 2:
        raise OptionError(f"cross-validation in {folds} folds of {rows} rows", code="FK-FOLDS-FEW")


# -- sums over the rows


def add_equations(kept: Kept, targets: Floats, weights: Floats | None = None) -> Equations:
    """Sum the weighted equations of all rows, in float64 over blocks."""
    width = kept.z.shape[1]
    gram, right = np.zeros((width, width)), np.zeros((width, targets.shape[1]))
    for part in blocks(len(kept.z), kept.z.strides[0]):
        z, y, root = kept.z[part], targets[part], None
        if weights is not None:
            root = np.sqrt(weights[part])
            y = y * root[:, None] ** 2
        right += z.T @ y.astype(z.dtype)
        add_gram(gram, z, root, intercept=kept.intercept)
    return Equations(gram, right, len(targets))


def shares_of(rows: int, weights: Floats | None) -> Floats:
    return np.full((rows, 1), 1.0 / rows) if weights is None else weights[:, None] / rows


def solve(
    equations: Equations, regularization: float, factors: Callable[..., Floats] = factorise
) -> Floats:
    factor = factors((2.0 / equations.rows) * equations.gram, regularization)
    right = (2.0 / equations.rows) * equations.right
    return np.asarray(linalg.cho_solve((factor, True), right, check_finite=False))


def check_training(phases: Phases, targets: Floats, loss: Loss) -> None:
    """Raise OptionError for input that no loss can be trained on."""
    if loss not in LOSSES:
        raise OptionError(
            f"loss is {loss}", remedy=f"use one of {', '.join(LOSSES)}", code="FK-OPTION-CHOICE"
        )
    if targets.shape[:1] != phases.shape[:1] or targets.ndim != 2 or not phases.size:
        raise OptionError(
            f"phases have shape {phases.shape}, targets {targets.shape}",
            remedy="give as many rows of both, at least one",
            code="FK-SHAPE-DIFFERS",
        )
    if loss != "square" and not (np.abs(targets) == 1.0).all():
        raise OptionError(
            f"the {loss} loss is for classes, targets are not -1 and 1", code="FK-LOSS-CLASSES"
        )

"""Coordinator of Secure Gram: trains a model on the Gram matrix of a table."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.gram.matrix import count_values, quantise
from fedkern_flwr.judging.figures import in_units
from fedkern_flwr.judging.judges import FIND_RARE
from fedkern_flwr.labels import balanced_weights, class_counts, decide, encode_classes
from fedkern_flwr.nodes import logger
from fedkern_flwr.options import check_choice, within
from fedkern_flwr.progress import part as time_of
from fedkern_flwr.progress import progress
from fedkern_flwr.reporting import whether_converged
from fedkern_flwr.seeding import derive_seed

from ...strategies import SecureGram
from .new_rows import Config, Parts
from .pooled import PooledSplit

if TYPE_CHECKING:
    from .gram import Instances

Floats = NDArray[np.float64]
Learner = Literal["svc", "ridge"]

_FOLDS, _TUNING_ROWS = 5, 3000
_TELLING = 3  # a machine that is worse in each of so many folds is tried in no further one
_WIDTHS = tuple(2.0**k for k in range(-4, 5))  # times 1 / mean squared distance to the centre
_COSTS = {"svc": (0.1, 1.0, 10.0, 100.0), "ridge": (1e-4, 1e-3, 1e-2, 1e-1, 1.0)}
#: Width and cost of the first two: a wider kernel with a larger C is about as smooth. Of those that
#: are as good as each other the wider one stays.
_BEGIN = {"svc": ((0.25, 10.0), (1.0, 1.0)), "ridge": ((0.25, 1e-3), (1.0, 1e-2))}
_STEPS = ((1, 0), (-1, 0), (0, 1), (0, -1))  # to a narrower or wider kernel, a larger or smaller C
_TUBE = 0.01  # errors of SVR that cost nothing, in units of labels scaled to [-1, 1]
_TOLERANCE, STEPS, STEPS_A_ROW = 1e-5, 10**6, 100  # of LIBSVM; else it may never end
_OF_TRIALS = 1e-3  # tolerance, LIBSVM's own: errors of a fold are equal to four digits
_OWNER = "the coordinator"


@dataclass(frozen=True)
class Machine:
    """Support vector machine or ridge regression on a kernel.

    Attributes
    ----------
    kernel : DotKernel
    rows : int
        Features in the Gram matrix.
    learner : {"svc", "ridge"}
    cost : float
        C, or lambda.
    classes : tuple of float
        Empty for a regression.
    balanced : bool (default: False)
        Whether classes have equal weight.
    tolerance : float (default: 1e-5)
        Tolerance of LIBSVM.
    """

    kernel: DotKernel
    rows: int
    learner: str
    cost: float
    classes: tuple[float, ...]
    balanced: bool = False
    tolerance: float = _TOLERANCE

    def outputs(
        self,
        train: Floats,
        y: Floats,
        test: Floats,
        weights: Floats | None = None,
        stopped: Callable[[int], None] = lambda steps: None,
    ) -> Floats:
        """Fit, and return outputs of other instances for :func:`fedkern_flwr.labels.decide`.

        Parameters
        ----------
        train : ndarray, shape (n, n)
            Kernel of the training instances.
        y : ndarray, shape (n,)
            Their labels.
        test : ndarray, shape (m, n)
            Kernel between other and training instances.
        weights : ndarray, shape (n,), optional
            Weights of the training instances.
        stopped : callable
            Called with the number of steps if they were too few.

        Returns
        -------
        ndarray, shape (m, outputs)
        """
        if self.learner == "ridge":
            return np.asarray(test @ self.fit(train, y, weights)[0])
        fitted = self._vectors(train, y, weights)
        if fitted.fit_status_:
            stopped(fitted.max_iter)
        found = np.asarray(fitted.decision_function(test) if self.classes else fitted.predict(test))
        return found[:, None] if found.ndim == 1 else found

    def fit(self, train: Floats, y: Floats, weights: Floats | None = None) -> tuple[Floats, Floats]:
        """Fit, and return weights of the instances and biases.

        With svc, several classes have an output per pair, see :func:`fedkern_flwr.fitted.votes`.

        Returns
        -------
        (ndarray, ndarray), shapes (n, outputs) and (outputs,)
        """
        if self.learner == "ridge":
            targets = encode_classes(y, self.classes, _OWNER) if self.classes else y[:, None]
            shares = self.shares(y, weights)
            ridge = train + self.cost * shares.sum() * np.diag(1.0 / shares)
            made = np.asarray(np.linalg.solve(ridge, targets))
            return made, np.zeros(made.shape[1])
        fitted, count = self._vectors(train, y, weights), max(2, len(self.classes))
        place = np.searchsorted(self.classes, y[fitted.support_]) if self.classes else None
        made = np.zeros((len(y), len(fitted.intercept_)))
        for k, (i, j) in enumerate(zip(*np.triu_indices(count, 1), strict=True)):
            if count == 2 or place is None:
                made[fitted.support_, k] = fitted.dual_coef_[0]
                continue
            for mine, other in ((i, j - 1), (j, i)):  # LIBSVM's order: a row for each other class
                own = place == mine
                made[fitted.support_[own], k] = fitted.dual_coef_[other, own]
        return made, np.asarray(fitted.intercept_)

    def shares(self, y: Floats, weights: Floats | None = None) -> Floats:
        """Return the weights of rows with these labels, shape (n,); 1 on average."""
        own = np.ones(len(y)) if weights is None else weights
        if not self.balanced:
            return own
        targets = encode_classes(y, self.classes, _OWNER)
        return own * balanced_weights(targets, class_counts(targets))

    def _vectors(self, train: Floats, y: Floats, weights: Floats | None = None) -> Any:
        """Fit the support vector machine of scikit-learn."""
        from sklearn import svm

        own = {"kernel": "precomputed", "C": self.cost, "tol": self.tolerance}
        own["max_iter"] = max(STEPS, STEPS_A_ROW * len(y))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the evaluation reports it
            if self.classes:
                own["class_weight"] = "balanced" if self.balanced else None
                fitted = svm.SVC(decision_function_shape="ovr", **own).fit(train, y, weights)
            else:
                fitted = svm.SVR(epsilon=_TUBE, **own).fit(train, y, weights)
        return fitted


def choose_machine(
    gram: Floats,
    rows: int,
    y: Floats,
    kernel: DotKernel,
    classes: tuple[float, ...],
    *,
    learner: str,
    gamma: float | None,
    cost: float | None,
    seed: int,
    balanced: bool = False,
    weights: Floats | None = None,
) -> Machine:
    """Choose width and cost by five-fold cross-validation on the Gram matrix.

    The search starts at the better of two models. It doubles or halves the width and changes C
    tenfold while the error falls. Distant values are not tried, because LIBSVM is slow at large C.

    Parameters
    ----------
    gram : ndarray, shape (n, n)
        Gram matrix of the training instances.
    rows : int
        Number of features in it.
    y : ndarray, shape (n,)
        Labels.
    kernel : DotKernel
        Kernel without its width.
    classes : tuple of float
        Empty for a regression.
    learner : {"svc", "ridge"}
        Model.
    gamma : float or None
        Width of rbf.
    cost : float or None
        C, or lambda of ridge.
    seed : int
        Seed of the folds.
    balanced : bool (default: False)
        Whether classes have equal weight.
    weights : ndarray, shape (n,), optional
        Weights of the instances.
    """
    check_choice("learner", learner, get_args(Learner))
    if cost is not None:
        within("cost", cost, "(0, inf)")
    kernels, wide = [kernel], kernel.name == "rbf" and gamma is None
    if wide:
        spread = float(np.trace(gram) / len(gram) - gram.mean()) or 1.0
        kernels = [replace(kernel, gamma=width / spread) for width in _WIDTHS]
    costs = _COSTS[learner] if cost is None else (cost,)
    machines = {
        (i, j): Machine(one, rows, learner, c, classes, balanced)
        for (i, one), (j, c) in product(enumerate(kernels), enumerate(costs))
    }
    starts = [
        (_WIDTHS.index(width) if wide else 0, costs.index(c) if cost is None else 0)
        for width, c in _BEGIN[learner]
    ]
    best, error, of_folds, tried = starts[0], np.inf, list[float](), set[tuple[int, int]]()
    if len(machines) == 1:
        return machines[best]
    order = np.random.default_rng(derive_seed(seed, "folds")).permutation(len(y))[:_TUNING_ROWS]
    part, own = gram[np.ix_(order, order)], None if weights is None else weights[order]

    @lru_cache(maxsize=2)  # those of the best and of its neighbour, each of all rows
    def matrix(one: DotKernel) -> Floats:
        return one.matrix(part, rows)

    def improves(place: tuple[int, int]) -> bool:
        nonlocal best, error, of_folds
        if place not in machines or place in tried:
            return False
        tried.add(place)
        progress(f"choosing the machine on {len(order):,} rows")
        trial = replace(machines[place], tolerance=_OF_TRIALS)
        found = _validate(trial, matrix(trial.kernel), y[order], own, of_folds)
        if found[0] >= error:
            return False
        best, (error, of_folds) = place, found
        return True

    for place in starts:
        improves(place)
    moved = True
    while moved:
        moved = False
        for right, up in _STEPS:
            while improves((best[0] + right, best[1] + up)):
                moved = True
    return machines[best]


def _validate(
    machine: Machine,
    matrix: Floats,
    y: Floats,
    weights: Floats | None,
    least: Sequence[float],
) -> tuple[float, list[float]]:
    """Return the mean error in cross-validation, and that of each fold.

    The error is infinite if the first folds are all worse than ``least``.
    """
    shares, errors, sizes = machine.shares(y, weights), list[float](), list[float]()
    for fold in np.array_split(np.arange(len(y)), _FOLDS):
        rest = np.delete(np.arange(len(y)), fold)
        if machine.classes and len(np.unique(y[rest])) < 2:
            continue
        own, other = matrix[np.ix_(rest, rest)], matrix[np.ix_(fold, rest)]
        found = machine.outputs(own, y[rest], other, None if weights is None else weights[rest])
        wrong, share = _errors(found, y[fold], machine.classes), shares[fold]
        errors.append(float(np.average(wrong, weights=share)))
        sizes.append(float(share.sum()))
        worse = [now > before for now, before in zip(errors, least, strict=False)]
        if len(worse) == _TELLING and all(worse):
            return np.inf, errors
    return float(np.average(errors, weights=sizes)) if errors else np.inf, errors


def _errors(outputs: Floats, y: Floats, classes: tuple[float, ...]) -> NDArray[Any]:
    if not classes:
        return np.asarray((outputs[:, 0] - y) ** 2)
    return np.asarray(np.asarray(classes)[decide(outputs)] != y)


@dataclass(frozen=True)
class Coordinator:
    """Training on the matrix of a run with labels.

    Attributes
    ----------
    strategy : SecureGram
    part : Instances
        Table.
    config : dict
        Configuration of the run.
    """

    strategy: SecureGram
    part: Instances
    config: Config

    @cached_property
    def train(self) -> NDArray[np.bool_]:
        """Training rows of the matrix."""
        return self.part.train[self.strategy.items_]

    @cached_property
    def y(self) -> Floats:
        """Labels of the rows of the matrix."""
        return self.part.y[self.strategy.items_]

    @cached_property
    def weights(self) -> Floats | None:
        """Weights of the training rows."""
        own = self.part.weights
        return None if own is None else own[self.strategy.items_][self.train]

    @property
    def one_class(self) -> bool:
        """Whether all training rows are of one class."""
        return bool(self.part.classes) and len(np.unique(self.y[self.train])) < 2

    def features(self, rows: Any = slice(None)) -> Floats:
        """Return summed features of some rows of the matrix."""
        used = np.concatenate([self.part.parts[p] for p in self.strategy.survivors_])
        whole = self.part.features(self.strategy.encoding)
        return np.asarray(whole[np.ix_(self.strategy.items_[rows], used)])

    def machine(self) -> Machine:
        """Choose the model of the run."""
        return choose_machine(
            self.strategy.linear_[np.ix_(self.train, self.train)],
            self.strategy.rows_,
            self.y[self.train],
            self.strategy.dot_kernel_,
            self.part.classes,
            learner=self.config.get("learner", "svc"),
            gamma=self.strategy.gamma,
            cost=self.config.get("cost"),
            seed=self.strategy.seed or 0,
            balanced=bool(self.config.get("class_weight")),
            weights=self.weights,
        )

    def outputs(
        self, machine: Machine, gram: Floats, stopped: Callable[[int], None] = lambda steps: None
    ) -> Floats:
        """Return outputs of held-out rows, see :meth:`Machine.outputs`."""
        train, kernel = self.train, machine.kernel.matrix(gram, machine.rows)
        own, other = kernel[np.ix_(train, train)], kernel[np.ix_(~train, train)]
        return machine.outputs(own, self.y[train], other, self.weights, stopped)

    def measure(self, pooled: PooledSplit, *, check: bool) -> dict[str, Any]:
        """Train a model; return its metrics, seconds and errors.

        With ``check``, matrix and model are compared with those of pooled rows.
        """
        strategy, x = self.strategy, self.features()
        found: dict[str, Any] = {"error_bound": strategy.error_bound_}
        if check:
            found["max_abs_error"] = _largest_error(strategy.linear_, x)
        if self.train.all() or self.one_class:
            return found
        started, stopped = time.perf_counter(), list[int]()
        with time_of("train"):
            machine = self.machine()
            outputs = self.outputs(machine, strategy.linear_, stopped.append)
        seconds = time.perf_counter() - started
        if machine.learner == "svc":
            text = f"the support vector machine needs more than {max(stopped, default=0):,} steps"
            remedy = "scale the columns, ignore columns of ids, or give a smaller --cost"
            found |= whether_converged(not stopped, text, remedy)
        if check:
            steps = 2.0**strategy.fraction_bits
            rounded = np.rint(x * steps) / steps
            twin = self.outputs(machine, rounded @ rounded.T)
            found["centralised_difference"] = float(np.abs(outputs - twin).max())
        judged = pooled.judged(outputs, level=self.config.get("level", 0.9))
        judged = replace(judged, weighted=bool(self.config.get("class_weight")))
        metrics = judged.metrics()
        if judged.never_found and not judged.weighted:
            text = "Secure Gram: %d of %d classes are found in no held-out row; %s"
            logger.warning(text, judged.never_found, judged.yard.classes, FIND_RARE)
        if machine.kernel.name in ("rbf", "poly"):
            found["gamma"] = machine.kernel.gamma
        own = {"judged": judged, "cost": machine.cost, "seconds": seconds}
        return {**found, **metrics, **in_units(metrics, pooled.label_unit), **own}

    def whole_model(self, metrics: Mapping[str, Any]) -> Parts | None:
        """Return the model with its support rows, or None for a single class."""
        strategy, train, classes = self.strategy, self.train, self.part.classes
        if self.one_class:
            return None
        if "cost" in metrics:
            kernel = strategy.dot_kernel_
            kernel = replace(kernel, gamma=metrics.get("gamma", kernel.gamma))
            learner, cost = self.config.get("learner", "svc"), metrics["cost"]
            weighed = bool(self.config.get("class_weight"))
            machine = Machine(kernel, strategy.rows_, learner, cost, classes, weighed)
        else:
            machine = self.machine()
        gram = machine.kernel.matrix(strategy.linear_[np.ix_(train, train)], machine.rows)
        weights, bias = machine.fit(gram, self.y[train], self.weights)
        bits, bound, counts = strategy.fraction_bits, strategy.bound, strategy.encoding == "counts"
        supports = (weights != 0.0).any(axis=1)
        x = self.features(np.flatnonzero(train)[supports])
        whole = count_values(x, bound) if counts else quantise(x, bits, bound)
        arrays = {"instances": whole * 2.0**-bits, "weights": weights[supports], "bias": bias}
        used = np.concatenate([self.part.parts[p] for p in strategy.survivors_])
        told = {
            "encoded": not counts,
            "encoding": strategy.encoding,
            "bound": bound,
            "fraction_bits": bits,
            "used": used.tolist(),
            "kernel": asdict(machine.kernel),
            "rows": machine.rows,
            "votes": len(classes) if machine.learner == "svc" and len(classes) > 2 else 0,
        }
        return Parts("instances", arrays, told)


def _largest_error(gram: Floats, x: Floats) -> float:
    """Return the largest error of a Gram matrix."""
    worst, step = 0.0, 512
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        worst = max(worst, float(np.abs(gram[rows] - x[rows] @ x.T).max()))
    return worst

"""What a coordinator does with the Gram matrix of a table: train a machine on the kernel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count, product
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError
from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.labels import balanced_weights, class_counts, decide, encode_classes
from fedkern_flwr.options import check_choice
from fedkern_flwr.progress import progress
from fedkern_flwr.seeding import derive_seed

Floats = NDArray[np.float64]
Learner = Literal["svc", "ridge"]

_FOLDS, _TUNING_ROWS = 5, 3000
_RISEN = 0.7  # share of folds in which an error must rise: in one or two it may by chance
_WIDTHS = (0.25, 1.0, 4.0, 16.0)  # times 1 / mean squared distance to the centre
_COSTS = {"svc": (1.0, 10.0, 100.0), "ridge": (1e-4, 1e-3, 1e-2, 1e-1, 1.0)}
_TUBE = 0.01  # errors of SVR that cost nothing, in units of labels scaled to [-1, 1]
_TOLERANCE, STEPS, STEPS_A_ROW = 1e-5, 10**6, 100  # of LIBSVM; else it may never end
_OF_TRIALS = 1e-3  # tolerance, LIBSVM's own: errors of a fold are equal to four digits
_OWNER = "the coordinator"


@dataclass(frozen=True)
class Machine:
    """A support vector machine or ridge regression on a kernel.

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
        Whether rows of rare classes weigh so much that all classes count alike.
    tolerance : float (default: 1e-5)
        At which LIBSVM ends its search.
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
        """Fit and return outputs of other instances, as :func:`fedkern_flwr.labels.decide` reads.

        Parameters
        ----------
        train : ndarray, shape (n, n)
            Kernel between the instances to learn from.
        y : ndarray, shape (n,)
            Their labels.
        test : ndarray, shape (m, n)
            Kernel between other instances and these.
        weights : ndarray, shape (n,), optional
            What the instances to learn from count.
        stopped : callable
            Called with the steps that were too few, if they were.

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
        """Fit and return what outputs are linear in: weights of the instances, and biases.

        Several classes have an output for each pair of them, see
        :func:`fedkern_flwr.fitted.forms.votes`, where the learner is svc.

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
        """Return what the rows of these labels weigh, shape (n,): 1 on average without weights."""
        own = np.ones(len(y)) if weights is None else weights
        if not self.balanced:
            return own
        targets = encode_classes(y, self.classes, _OWNER)
        return own * balanced_weights(targets, class_counts(targets))

    def _vectors(self, train: Floats, y: Floats, weights: Floats | None = None) -> Any:
        """Fit and return scikit-learn's support vector machine."""
        from sklearn import svm

        own = {"kernel": "precomputed", "C": self.cost, "tol": self.tolerance}
        own["max_iter"] = max(STEPS, STEPS_A_ROW * len(y))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whoever judges the machine tells it
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
    """Choose what is not given by five-fold cross-validation; the Gram matrix is enough for it.

    Costs are raised until the error rises in most folds. A larger C takes LIBSVM many times the
    steps, and beyond its best the error of a width only rises.

    Parameters
    ----------
    gram : ndarray, shape (n, n)
        Of the instances to learn from.
    rows : int
        Features in it.
    y : ndarray, shape (n,)
        Their labels.
    kernel : DotKernel
        The kernel, but for its width.
    classes : tuple of float
        Empty for a regression.
    learner : {"svc", "ridge"}
        Support vector machine, or ridge regression.
    gamma : float or None
        Width of rbf.
    cost : float or None
        C of a support vector machine, lambda of ridge.
    seed : int
        Of the folds.
    balanced : bool (default: False)
        Whether all classes count alike, in the machine and in the choice of it.
    weights : ndarray, shape (n,), optional
        What the instances count, in the machine and in the choice of it.

    Raises
    ------
    OptionError
    """
    check_choice("learner", learner, get_args(Learner))
    if cost is not None and not 0.0 < cost < np.inf:
        raise OptionError(f"cost is {cost}", remedy="use a positive number", code="FK-OPTION-RANGE")
    kernels = [kernel]
    if kernel.name == "rbf" and gamma is None:
        spread = float(np.trace(gram) / len(gram) - gram.mean()) or 1.0
        kernels = [replace(kernel, gamma=width / spread) for width in _WIDTHS]
    costs = _COSTS[learner] if cost is None else (cost,)
    machines = [Machine(k, rows, learner, c, classes, balanced) for k, c in product(kernels, costs)]
    if len(machines) == 1:
        return machines[0]
    order = np.random.default_rng(derive_seed(seed, "folds")).permutation(len(y))[:_TUNING_ROWS]
    folds = np.array_split(order, _FOLDS)
    part = np.ix_(order, order)
    places = np.empty(len(y), np.intp)
    places[order] = np.arange(len(order))
    best: tuple[float, Machine] | None = None
    tried = count(1)
    for group in _by_kernel(machines):
        matrix, last = group[0].kernel.matrix(gram[part], rows), [np.inf]
        for machine in group:
            progress(f"choosing the machine on {len(order):,} rows", next(tried), len(machines))
            parts = [places[fold] for fold in folds]
            own = None if weights is None else weights[order]
            trial = replace(machine, tolerance=_OF_TRIALS)
            error, of_folds = _validate(trial, matrix, y[order], parts, own)
            if best is None or error < best[0]:
                best = error, machine
            risen = sum(now > before for now, before in zip(of_folds, last, strict=False))
            if risen > _RISEN * _FOLDS:
                break
            last = of_folds
    assert best is not None
    return best[1]


def _by_kernel(machines: Sequence[Machine]) -> Iterable[list[Machine]]:
    for kernel in dict.fromkeys(machine.kernel for machine in machines):
        yield [machine for machine in machines if machine.kernel == kernel]


def _validate(
    machine: Machine,
    matrix: Floats,
    y: Floats,
    folds: Sequence[NDArray[np.intp]],
    weights: Floats | None,
) -> tuple[float, list[float]]:
    """Return the mean error in cross-validation, and that of each fold that can be judged.

    It is the share of wrong classes, or the squared error. Balanced classes count alike over all
    folds: few of them may have rows of a rare one.
    """
    errors, tested = [], list[NDArray[np.intp]]()
    for fold in folds:
        rest = np.setdiff1d(np.arange(len(y)), fold)
        if machine.classes and len(np.unique(y[rest])) < 2:
            continue
        own, other = matrix[np.ix_(rest, rest)], matrix[np.ix_(fold, rest)]
        found = machine.outputs(own, y[rest], other, None if weights is None else weights[rest])
        errors.append(_errors(found, y[fold], machine.classes))
        tested.append(fold)
    if not errors:
        return np.inf, []
    of_folds = [float(each.mean()) for each in errors]
    if machine.balanced or weights is not None:
        rows = np.concatenate(tested)
        shares = machine.shares(y[rows], None if weights is None else weights[rows])
        return float(np.average(np.concatenate(errors), weights=shares)), of_folds
    return float(np.mean(of_folds)), of_folds


def _errors(outputs: Floats, y: Floats, classes: tuple[float, ...]) -> NDArray[Any]:
    if not classes:
        return np.asarray((outputs[:, 0] - y) ** 2)
    return np.asarray(np.asarray(classes)[decide(outputs)] != y)

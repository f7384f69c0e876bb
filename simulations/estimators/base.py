"""What all estimators do: deal a table, run a method in process, predict in one place."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_is_fitted, validate_data

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.fitted import FittedModel
from fedkern_flwr.labels import decide
from fedkern_flwr.ledger import Ledger
from fedkern_flwr.removed import take_out
from fedkern_flwr.tables import load_table
from fedkern_flwr.tables.table import Table

from ...strategies import PhaseStrategy
from ..methods.experiment import run_entries
from ..methods.registry import family, method, options
from ..run.entries import LARGEST_SEED, Entry

Floats = NDArray[np.float64]
_FRAMES = ("__dataframe__", "__arrow_c_stream__")


class Federated(BaseEstimator):  # type: ignore[misc]
    """A method whose parties are simulated in this process, with scikit-learn's habits.

    Parameters are options of ``fedkern run`` by the same names and with the same defaults, but for
    ``parties`` and for ``held_out``, which is ``test_size``.

    Attributes
    ----------
    strategy_ : PhaseStrategy
        The strategy of the run: ``metrics_``, ``history_``, ``privacy()``.
    ledger_ : Ledger
        Exchanges and bytes of the run.
    model_ : FittedModel
        What predicts new rows.
    n_features_in_, feature_names_in_
        Columns of the table; the names only where it has some.
    """

    #: Of the method, and the option that ``parties`` is.
    _method: ClassVar[str]
    _parties: ClassVar[str] = "clients"
    #: Options of the run that are no parameters.
    _fixed: ClassVar[Mapping[str, Any]] = {}

    strategy_: PhaseStrategy
    ledger_: Ledger
    model_: FittedModel

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn should know: gaps are taken, labels are needed."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        return tags

    def _fit(self, x: Any, labels: Floats, classes: tuple[str, ...]) -> Self:
        """Run the method on all rows, with nodes whose ledgers are of this run alone."""
        own = family(self._method)
        with refusals(), quiet(), tempfile.TemporaryDirectory(prefix="fedkern-") as folder:
            table = self._table(x, labels, classes)
            config = own.config(self._method, self._values(table))
            own.check(config)
            prepared = own.prepare(own.settings.from_values(config["data"]).of_table(table))
            own.check_data(config, prepared)

            def done(entry: Entry, strategy: PhaseStrategy) -> None:
                found = own.fitted(strategy, prepared, config, Path(folder), entry.results[0])
                assert found is not None
                self.strategy_, self.ledger_, self.model_ = strategy, strategy.ledger_, found

            run_entries(
                [Entry(self._method, self._method, config["options"])],
                prepared,
                engine="in-process",
                seed=config["seed"],
                state_dir=Path(folder),
                draw_done=done,
            )
        del self.strategy_.on_round  # scikit-learn pickles estimators
        if self.strategy_.metrics_.get("converged") is False:
            text = f"{self._method} has not converged, give it more rounds"
            warnings.warn(text, ConvergenceWarning, stacklevel=3)
        return self

    def _values(self, table: Table) -> dict[str, Any]:
        """Return the values of a command line that would run this."""
        own, mine = family(self._method), self.get_params(deep=False)
        known = {o.name: o.default for o in [*options(method(self._method)), *own.parameters()]}
        more = take_out(self._method, mine.pop("options", None) or {}, known=known)
        if strange := [name for name in more if name not in known]:
            raise OptionError(
                f"{self._method} has no option {strange[0]!r}",
                remedy="see fedkern run --help-all",
                code="FK-OPTION-UNKNOWN",
            )
        state = mine.pop("random_state", 0)
        seed = state if isinstance(state, int) else check_random_state(state).randint(2**31)
        seed %= LARGEST_SEED
        parties = {self._parties: mine.pop("parties")}
        share = {"test_size": mine.pop("held_out", 0.0)}
        chosen = {**self._fixed, **mine, **share, **more, "data": "the table", "seed": seed}
        return {**known, **chosen, **self._dealt(parties, len(table.columns))}

    def _dealt(self, parties: dict[str, int], columns: int) -> dict[str, Any]:
        """Return the options that say who holds what of so many columns."""
        return parties

    def _loss(self) -> str:
        """Return the loss of the outputs."""
        return "margin"

    def _table(self, x: Any, y: Floats | None, classes: tuple[str, ...] = ()) -> Table:
        """Return rows as a table; those to predict have the columns of the rows learned from."""
        if any(hasattr(x, name) for name in _FRAMES):
            encoder = None if y is not None else self.model_.encoder
            kinds = encoder.kinds if encoder is not None else {}
            table = load_table(
                x, labelled=False, missing="keep", kinds=kinds, needed=kinds or None, bare=True
            )
            x, columns, how = table.x, table.columns, (table.kinds, table.categories)
        else:
            columns, how = tuple(f"x{k}" for k in range(x.shape[1])), ({}, {})
        label = None if y is None else "y"
        return Table(x, y, columns, label, kinds=how[0], categories=how[1], classes=classes)

    def _outputs(self, x: Any) -> Floats:
        """Return the outputs of new rows, shape (n, k)."""
        check_is_fitted(self)
        x = _rows(self, x, reset=False)
        with refusals():
            return self.model_.outputs(self._table(x, None))


class Classifier(ClassifierMixin, Federated):  # type: ignore[misc]
    """Tells classes.

    Attributes
    ----------
    classes_ : ndarray
        The labels, sorted.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from rows and labels of any type; return the estimator.

        Parameters
        ----------
        X : array, shape (n, d), or data frame
            Numbers; of a data frame text, dates and booleans as well. Cells may be missing.
        y : array, shape (n,)
            Labels, of two classes or more.

        Raises
        ------
        ValueError
            Table, labels or parameters cannot be used.
        """
        x, labels = _rows(self, X, y, reset=True)
        check_classification_targets(labels)
        self.classes_, places = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"{type(self).__name__} needs labels of two classes, there is 1 class")
        names = tuple(f"class {k}" for k in range(len(self.classes_)))
        self._fit(x, places.astype(np.float64), names)
        meta, told = self.model_.meta, [str(label) for label in self.classes_.tolist()]
        named = {**meta, "table": {**meta["table"], "class_names": told}}
        self.model_ = replace(self.model_, meta=named)  # who loads its file sees the labels
        return self

    def decision_function(self, X: Any) -> Floats:
        """Return the scores of rows: shape (n,) for two classes, else (n, classes)."""
        found = self._outputs(X)
        return found[:, 0] if found.shape[1] == 1 else found

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of each row, shape (n,)."""
        found = decide(self._outputs(X))
        return np.asarray(self.classes_[found])

    def _has_probabilities(self) -> bool:
        """Tell whether outputs can be read as probabilities."""
        if getattr(self, "held_out", 0.0) or self._loss() in ("square", "logistic"):
            return True
        raise AttributeError("scores of a margin are no probabilities: set held_out, such as 0.2")

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class, shape (n, classes).

        Calibrated on held-out rows where ``held_out`` is above 0; else of least squares
        (1 + f) / 2 within [0, 1] and of the logistic loss 1 / (1 + exp(-f)), of several classes
        divided by their sum.
        """
        found = self._outputs(X)
        calibration = self.model_.calibration
        if calibration is not None:
            return calibration.probabilities(found)
        logistic = self._loss() == "logistic"
        likely = 0.5 + 0.5 * np.tanh(found / 2.0) if logistic else (1.0 + found) / 2.0
        if found.shape[1] == 1:
            likely = np.hstack([1.0 - likely, likely])
        likely = np.clip(likely, 1e-9, 1.0)  # so that the largest output stays the largest
        return np.asarray(likely / likely.sum(axis=1, keepdims=True))


class Regressor(RegressorMixin, Federated):  # type: ignore[misc]
    """Predicts numbers."""

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from rows and numbers; return the estimator.

        Parameters
        ----------
        X : array, shape (n, d), or data frame
            Numbers; of a data frame text, dates and booleans as well. Cells may be missing.
        y : array, shape (n,)
            Numbers.

        Raises
        ------
        ValueError
            Table, labels or parameters cannot be used.
        """
        x, labels = _rows(self, X, y, reset=True, numbers=True)
        return self._fit(x, labels.astype(np.float64), ())

    def _values(self, table: Table) -> dict[str, Any]:
        return {**super()._values(table), "task": "regression"}

    def predict(self, X: Any) -> Floats:
        """Return the number of each row, shape (n,)."""
        return self._outputs(X)[:, 0]


def _rows(estimator: Any, x: Any, y: Any = None, *, reset: bool, numbers: bool = False) -> Any:
    """Check rows, and labels where they are learned from, as scikit-learn does; return them."""
    told = {} if not reset else {"y": y}
    if not any(hasattr(x, name) for name in _FRAMES):
        how = {"dtype": np.float64, "ensure_all_finite": "allow-nan", "reset": reset}
        if reset:
            how |= {"ensure_min_samples": 2, "y_numeric": numbers}
        return validate_data(estimator, x, **told, **how)
    validate_data(estimator, x, **told, reset=reset, skip_check_array=True)
    if not reset:
        return x
    y = column_or_1d(y, warn=True)
    assert_all_finite(y)
    check_consistent_length(x, y)
    return x, y


@contextmanager
def refusals() -> Iterator[None]:
    """Raise ``ValueError`` where table or options cannot be used, as scikit-learn does."""
    try:
        yield
    except (OptionError, TableError) as error:
        raise ValueError(str(error)) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Log errors only: what else there is to say, ``strategy_`` knows, as of every run."""
    loggers = [logging.getLogger(name) for name in ("fedkern_flwr", "flwr")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

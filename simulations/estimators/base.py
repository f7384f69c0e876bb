"""Base classes of the estimators."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import (
    _safe_indexing,
    check_consistent_length,
    check_random_state,
    column_or_1d,
)
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    assert_all_finite,
    check_is_fitted,
    validate_data,
)

from fedkern_flwr.encoding.columns import Scaling
from fedkern_flwr.errors import FedKernError, OptionError, TableError
from fedkern_flwr.fitted import FittedModel
from fedkern_flwr.kernels.product import ProductKernel
from fedkern_flwr.kernels.random_features import Kernel
from fedkern_flwr.labels import decide
from fedkern_flwr.options import take_out
from fedkern_flwr.tables import load_table
from fedkern_flwr.tables.table import Table
from fedkern_flwr.watch import Ledger

from ...strategies import Method
from ..engines.simulate import quiet
from ..methods.experiment import run_entries
from ..methods.registry import family, method, options
from ..run.entries import LARGEST_SEED, Entry
from ..run.splits import Split

Floats = NDArray[np.float64]
#: Checks of scikit-learn that fail, with reasons.
BALANCED_ALONE = {
    "check_class_weight_classifiers": "class_weight is 'balanced' or None: parties that send sums "
    "of rows take no weights of one's choice"
}
REPEATED = {
    "check_sample_weight_equivalence_on_dense_data": "a row of weight 2 is one row to the scaling "
    "and the folds, and a row that is repeated is two"
}
#: Losses with outputs that are probabilities.
_LIKELY = ("square", "logistic")
_HELD_OUT = 0.2  # of the rows, in the second run of other losses
_LEAST_SLOPE = 1e-6  # so that the class of the largest output is never the least probable one
_FRAMES = ("__dataframe__", "__arrow_c_stream__")


class Federated(BaseEstimator):  # type: ignore[misc]
    """Estimator with simulated parties in this process.

    Parameters have names and defaults of ``fedkern run``, except ``parties`` and ``held_out``
    (``test_size``).

    Attributes
    ----------
    strategy_ : Method
        Strategy of the run: ``metrics_``, ``history_``, ``privacy()``.
    ledger_ : Ledger
        Exchanges and bytes of the run.
    model_ : FittedModel
        Model that predicts new rows.
    n_features_in_, feature_names_in_
        Columns of the table; names if it has some.
    """

    #: Of the method, and the option that ``parties`` is.
    _method: ClassVar[str]
    _parties: ClassVar[str] = "clients"
    #: After the fewest parties in an error.
    _why_parties: ClassVar[str] = ""
    #: Whether held-out rows are judged after the exchanges, by who has the matrix.
    _judged_after: ClassVar[bool] = False
    #: Whether rows may have weights: where one party alone learns from the labels.
    _takes_weights: ClassVar[bool] = False
    #: Checks of scikit-learn that fail, with the reason.
    _failing: ClassVar[Mapping[str, str]] = {}
    #: Options of the run that are no parameters.
    _fixed: ClassVar[Mapping[str, Any]] = {}

    strategy_: Method
    ledger_: Ledger
    model_: FittedModel

    def __sklearn_tags__(self) -> Any:
        """Return tags of scikit-learn: gaps are allowed, labels are needed."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the model to rows and labels.

        Parameters
        ----------
        X : array, shape (n, d), or data frame
            Numbers; data frames may also have text, dates and booleans. Cells may be missing.
        y : array, shape (n,)
            Labels of at least two classes, of any type; or numbers.

        Raises
        ------
        ValueError
            Table, labels or parameters cannot be used.
        """
        return self._learn(X, y, None)

    def _learn(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """Learn from rows with labels and weights."""
        raise NotImplementedError

    def _weighted(
        self, x: Any, labels: NDArray[Any], sample_weight: Any
    ) -> tuple[Any, NDArray[Any], Floats | None]:
        """Return rows with positive weight, their labels and weights; None if all are equal."""
        shares = getattr(self, "class_weight", None)
        if not (isinstance(shares, Mapping) and self._takes_weights):
            shares = None
        if sample_weight is None and shares is None:
            return x, labels, None
        table = np.empty((len(labels), 0))
        own = _check_sample_weight(sample_weight, table, dtype=np.float64, ensure_non_negative=True)
        if shares is not None:
            own = own * np.array([float(shares.get(one, 1.0)) for one in labels.tolist()])
        if not own.any():
            raise ValueError("Sample weights must contain at least one non-zero number.")
        keep = np.flatnonzero(own)
        return _safe_indexing(x, keep), labels[keep], own[keep]

    def expected_failed_checks(self) -> dict[str, str]:
        """Return checks of ``check_estimator`` that fail, with reasons."""
        return dict(self._failing)

    def _fit(
        self, x: Any, labels: Floats, classes: tuple[str, ...], weights: Floats | None
    ) -> Self:
        """Run the method on all rows, with ledgers of this run only."""
        with refusals(), quiet():
            table = replace(self._table(x, labels, classes), weights=weights)
            self.strategy_, self.model_ = self._run(table, self._values(table))
            self.ledger_ = self.strategy_.ledger_
            if classes and self._loss() not in _LIKELY and self.model_.calibration is None:
                self._calibrate(table)
        if self.strategy_.metrics_.get("converged") is False:
            text = f"{self._method} has not converged, give it more rounds"
            warnings.warn(text, ConvergenceWarning, stacklevel=4)
        return self

    def _run(self, table: Table, values: Mapping[str, Any]) -> tuple[Method, FittedModel]:
        """Run the method with command line values."""
        own, runs = family(self._method), list[tuple[Method, FittedModel]]()
        with tempfile.TemporaryDirectory(prefix="fedkern-") as folder:
            config = own.config(self._method, values)
            own.check(config)
            prepared = own.prepare(own.settings.from_values(config["data"]).of_table(table))
            own.check_data(config, prepared)

            def done(entry: Entry, strategy: Method) -> None:
                found = own.fitted(strategy, prepared, config, Path(folder), entry.results[0])
                assert found is not None
                runs.append((strategy, found))

            run_entries(
                [Entry(self._method, self._method, config["options"])],
                prepared,
                engine="in-process",
                seed=config["seed"],
                state_dir=Path(folder),
                measure=partial(own.measure, prepared=prepared, config=config)
                if self._judged_after
                else lambda strategy: {},
                draw_done=done,
            )
        strategy = runs[0][0]
        del strategy.on_round  # scikit-learn pickles estimators
        strategy.nodes.listener = None
        return runs[0]

    def _calibrate(self, table: Table) -> None:
        """Take the probabilities from a second run with held-out rows."""
        values = {**self._values(table), **self._chosen(), "test_size": _HELD_OUT}
        try:
            _, other = self._run(table, values)
        except FedKernError:  # there are too few rows to hold some out
            return
        if (found := other.calibration) is None:
            return
        slopes = tuple(max(slope, _LEAST_SLOPE) for slope in found.slopes)
        centred = len(slopes) == 1 and values.get("class_weight") is None
        fitted = replace(found, slopes=slopes, offsets=(0.0,) if centred else found.offsets)
        meta = {**self.model_.meta, "calibration": fitted.numbers()}
        self.model_ = replace(self.model_, meta=meta)

    def _chosen(self) -> dict[str, Any]:
        """Return chosen options for a second run."""
        return {}

    def _values(self, table: Table) -> dict[str, Any]:
        """Return command line values for this run."""
        own, mine = family(self._method), self.get_params(deep=False)
        known = {o.name: o.default for o in [*options(method(self._method)), *own.parameters()]}
        more = take_out(self._method, mine.pop("options", None) or {}, known=known)
        if strange := [name for name in more if name not in known]:
            raise OptionError(
                f"{self._method} has no option {strange[0]!r}",
                remedy="see fedkern run --help-all",
                code="FK-OPTION-UNKNOWN",
            )
        if self._takes_weights and isinstance(mine.get("class_weight"), Mapping):
            del mine["class_weight"]  # the rows have weights
        state = mine.pop("random_state", 0)
        seed = state if isinstance(state, int) else check_random_state(state).randint(2**31)
        seed %= LARGEST_SEED
        parties, least = {self._parties: mine.pop("parties")}, self._least_parties()
        if parties[self._parties] < least:
            raise OptionError(
                f"parties is {parties[self._parties]}",
                remedy=f"use at least {least}{self._why_parties}",
                code="FK-PARTIES-FEW",
            )
        share = {"test_size": mine.pop("held_out", 0.0), "check_pooled": False}
        chosen = {**self._fixed, **mine, **share, **more, "data": "the table", "seed": seed}
        return {**known, **chosen, **self._dealt(parties, len(table.columns))}

    def _dealt(self, parties: dict[str, int], columns: int) -> dict[str, Any]:
        """Return options that split so many columns."""
        return parties

    def _least_parties(self) -> int:
        """Return the least number of parties."""
        return 2

    def _loss(self) -> str:
        """Return the loss of the outputs."""
        return "margin"

    def _table(self, x: Any, y: Floats | None, classes: tuple[str, ...] = ()) -> Table:
        """Return rows as a table with the training columns."""
        label = None if y is None else "y"
        if not _is_frame(x):
            return Table(x, y, tuple(f"x{k}" for k in range(x.shape[1])), label, classes=classes)
        encoder = None if y is not None else self.model_.encoder
        kinds = encoder.kinds if encoder is not None else {}
        try:
            table = load_table(
                x, labelled=False, missing="keep", kinds=kinds, needed=kinds or None, bare=True
            )
        except TableError as error:
            if error.code != "FK-DATES-ORDER":
                raise
            remedy = "convert it, such as with pandas.to_datetime(column, dayfirst=True)"
            raise TableError(error.problem, remedy=remedy, code=error.code) from None
        return replace(table, y=y, label=label, classes=classes)

    def _outputs(self, x: Any) -> Floats:
        """Return the outputs of new rows, shape (n, k)."""
        check_is_fitted(self)
        x = _rows(self, x, reset=False)
        with refusals():
            return self.model_.outputs(self._table(x, None))


class Classifier(ClassifierMixin, Federated):  # type: ignore[misc]
    """Classifier.

    Attributes
    ----------
    classes_ : ndarray
        Labels, sorted.
    """

    def _learn(self, X: Any, y: Any, sample_weight: Any) -> Self:
        x, labels = _rows(self, X, y, reset=True)
        check_classification_targets(labels)
        x, labels, weights = self._weighted(x, labels, sample_weight)
        self.classes_, places = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"{type(self).__name__} needs labels of two classes, there is 1 class")
        names = tuple(f"class {k}" for k in range(len(self.classes_)))
        self._fit(x, places.astype(np.float64), names, weights)
        meta, told = self.model_.meta, [str(label) for label in self.classes_.tolist()]
        named = {**meta, "table": {**meta["table"], "class_names": told}}
        self.model_ = replace(self.model_, meta=named)  # who loads its file sees the labels
        return self

    def decision_function(self, X: Any) -> Floats:
        """Return scores, shape (n,) for two classes, else (n, classes)."""
        found = self._outputs(X)
        return found[:, 0] if found.shape[1] == 1 else found

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of each row, shape (n,)."""
        found = decide(self._outputs(X))
        return np.asarray(self.classes_[found])

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class, shape (n, classes).

        With ``held_out`` above 0 they are calibrated on held-out rows. Otherwise least squares give
        (1 + f) / 2 within [0, 1] and the logistic loss 1 / (1 + exp(-f)), normalised over several
        classes. For scores of a margin, ``fit`` makes a second run that holds out a fifth of the
        rows, and uses its calibration; with too few rows they are read as logistic.

        The predicted class is the most probable one. With ``held_out`` or ``class_weight`` and two
        classes, the second class is predicted from ``model_.calibration.threshold`` on.
        """
        found = self._outputs(X)
        calibration = self.model_.calibration
        if calibration is not None:
            return calibration.probabilities(found)
        square = self._loss() == "square"
        likely = (1.0 + found) / 2.0 if square else 0.5 + 0.5 * np.tanh(found / 2.0)
        if found.shape[1] == 1:
            likely = np.hstack([1.0 - likely, likely])
        likely = np.clip(likely, 1e-9, 1.0)  # so that the largest output stays the largest
        return np.asarray(likely / likely.sum(axis=1, keepdims=True))


class Regressor(RegressorMixin, Federated):  # type: ignore[misc]
    """Predicts numbers."""

    def _learn(self, X: Any, y: Any, sample_weight: Any) -> Self:
        x, labels = _rows(self, X, y, reset=True, numbers=True)
        x, labels, weights = self._weighted(x, labels, sample_weight)
        return self._fit(x, labels.astype(np.float64), (), weights)

    def _values(self, table: Table) -> dict[str, Any]:
        return {**super()._values(table), "task": "regression"}

    def predict(self, X: Any) -> Floats:
        """Return the predicted numbers, shape (n,)."""
        return self._outputs(X)[:, 0]


class Weighted(Federated):
    """A method with weights of rows."""

    _takes_weights, _failing = True, REPEATED

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model to rows and labels.

        Parameters
        ----------
        X : array, shape (n, d), or data frame
            Numbers; data frames may also have text, dates and booleans. Cells may be missing.
        y : array, shape (n,)
            Labels of at least two classes, of any type; or numbers.
        sample_weight : array, shape (n,), or None (default: None)
            Weights of the rows, known only to the party with the labels. They do not change scaling
            and folds.

        Raises
        ------
        ValueError
            Table, labels, weights or parameters cannot be used.
        """
        return self._learn(X, y, sample_weight)


def _is_frame(x: Any) -> bool:
    return any(hasattr(x, name) for name in _FRAMES)


def _rows(estimator: Any, x: Any, y: Any = None, *, reset: bool, numbers: bool = False) -> Any:
    """Check rows and labels as scikit-learn does."""
    told = {} if not reset else {"y": y}
    if not _is_frame(x) and hasattr(x, "to_pandas"):  # a datasets.Dataset
        x = x.to_pandas()
    if not _is_frame(x):
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
    """Raise ``ValueError`` for tables or parameters that cannot be used."""
    try:
        yield
    except FedKernError as error:
        if error.exit_code != OptionError.exit_code:
            raise
        raise ValueError(str(error)) from error


# -- the estimators of the methods


@dataclass(kw_only=True, eq=False, repr=False)
class _Dealt(Federated):
    """Parameters of all estimators."""

    parties: int = 4
    scaling: Scaling = "auto"
    held_out: float = 0.0
    options: Mapping[str, Any] | None = None
    random_state: Any = 0


@dataclass(kw_only=True, eq=False, repr=False)
class _FedCG(_Dealt):
    """Rows dealt to hospitals, further columns to centres.

    Parameters
    ----------
    parties : int (default: 4)
        Hospitals and centres.
    centres : int (default: 2)
        Centres among them, which hold columns only; fewer for narrow tables. One is allowed.
    split : {"iid", "dirichlet"} (default: "iid")
        Split of the rows among hospitals.
    alpha : float (default: 0.5)
        Concentration of the Dirichlet split.
    landmarks : int or "auto" (default: "auto")
        Number of landmarks, m.
    kernel : {"rbf", "laplacian"} (default: "rbf")
        Kernel of all columns.
    gamma, regularization : float or None (default: None)
        Width and lambda (default: chosen in the run, see ``tune``).
    tune : {"auto", "folds", "gcv", "off"} (default: "auto")
        How gamma and lambda are chosen.
    scaling : {"auto", "rank", "range", "none"} (default: "auto")
        Scaling of numbers.
    held_out : float (default: 0.0)
        Share of the rows held out to calibrate probabilities.
    options : mapping or None (default: None)
        Further options of ``fedkern run fed-cg``, such as ``{"basis": "fourier"}``.
    random_state : int, RandomState or None (default: 0)
        Seed of split and landmarks.
    """

    _method, _fixed = "fed-cg", {"allow_single": True}
    _why_parties = ", one more than centres"

    centres: int = 2
    split: Split = "iid"
    alpha: float = 0.5
    landmarks: int | Literal["auto"] = "auto"
    kernel: ProductKernel = "rbf"
    gamma: float | None = None
    regularization: float | None = None
    tune: Literal["auto", "folds", "gcv", "off"] = "auto"

    def _dealt(self, parties: dict[str, int], columns: int) -> dict[str, Any]:
        centres = min(self.centres, max(columns - 1, 0))
        return {"hospitals": parties["clients"] - self.centres, "centres": centres}

    def _least_parties(self) -> int:
        return max(2, self.centres + 1)

    def _loss(self) -> str:
        return "square"


@dataclass(kw_only=True, eq=False, repr=False)
class FedCGClassifier(Classifier, _FedCG):
    __doc__ = f"""Classes by FedCG. {_FedCG.__doc__}
    class_weight : {{"balanced"}} or None (default: None)
        Whether classes have equal weight. Other weights and ``sample_weight`` are refused: with
        them a sum of a hospital could be that of a few rows.
    """

    _failing = BALANCED_ALONE

    class_weight: Literal["balanced"] | None = None


class FedCGRegressor(Regressor, _FedCG):
    __doc__ = f"Numbers by FedCG. {_FedCG.__doc__}"


class _Columns(_Dealt):
    """Parties with a column or more each; fewer parties for a narrow table."""

    def _dealt(self, parties: dict[str, int], columns: int) -> dict[str, Any]:
        if columns < 2:
            raise TableError(
                "1 feature(s) cannot be split by columns",
                remedy="add columns",
                code="FK-COLUMNS-FEW",
            )
        return {name: min(count, columns) for name, count in parties.items()}


@dataclass(kw_only=True, eq=False, repr=False)
class _FDSKL(_Columns):
    """Columns dealt in order to parties, of which the first has the labels.

    Parameters
    ----------
    parties : int (default: 4)
        Parties with columns; fewer for narrow tables. Two are allowed.
    features : int or None (default: None)
        Number of directions (default: 2000).
    kernel : {"rbf", "laplacian"} (default: "rbf")
        Kernel of all columns.
    gamma, regularization : float or None (default: None)
        Width and lambda (default: cross-validation at the party with the labels).
    loss : {"square", "logistic", "smooth-hinge"} or None (default: None)
        Loss (default: smooth-hinge for classes, square for numbers).
    scaling : {"auto", "rank", "standard", "range", "none"} (default: "auto")
        Scaling of numbers.
    held_out : float (default: 0.0)
        Share of the rows held out to calibrate probabilities; at 0, a second run calibrates scores
        of a margin.
    options : mapping or None (default: None)
        Further options of ``fedkern run fdskl``, such as ``{"kernel": "laplacian"}``.
    random_state : int, RandomState or None (default: 0)
        Seed of directions and split.
    """

    _method, _parties, _fixed = "fdskl", "parties", {"allow_single": True}

    features: int | None = None
    kernel: Kernel = "rbf"
    gamma: float | None = None
    regularization: float | None = None
    loss: Literal["square", "logistic", "smooth-hinge"] | None = None

    def _loss(self) -> str:
        return self.loss or "smooth-hinge"

    def _chosen(self) -> dict[str, Any]:
        return {"regularization": self.strategy_.metrics_.get("regularization")}


@dataclass(kw_only=True, eq=False, repr=False)
class FDSKLClassifier(Weighted, Classifier, _FDSKL):
    __doc__ = f"""Classes by FDSKL. {_FDSKL.__doc__}
    class_weight : mapping, {{"balanced"}} or None (default: None)
        Weights of the classes, or equal weight of all.
    """

    _failing = {  # noqa: RUF012
        **REPEATED,
        "check_methods_subset_invariance": "features of 16-bit phases are float32, so that the "
        "last digits of a row depend on the other rows; with phase_bits 32 they do not",
    }

    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None


class FDSKLRegressor(Weighted, Regressor, _FDSKL):
    __doc__ = f"Numbers by FDSKL. {_FDSKL.__doc__}"


@dataclass(kw_only=True, eq=False, repr=False)
class _SecureGram(_Columns):
    """Columns dealt in order to parties; a model is trained on the matrix that they sum.

    Parameters
    ----------
    parties : int (default: 4)
        Parties with columns; fewer for narrow tables.
    kernel : {"linear", "poly", "rbf", "cosine"} (default: "rbf")
        Kernel, from the exact matrix of products.
    gamma, cost : float or None (default: None)
        Width, and C of ``svc`` or lambda of ``ridge`` (default: cross-validation).
    learner : {"svc", "ridge"} (default: "svc")
        Model on the kernel.
    scaling : {"auto", "rank", "range"} (default: "auto")
        Scaling of numbers.
    held_out : float (default: 0.0)
        Share of the rows held out to calibrate probabilities; at 0, a second run calibrates scores
        of a margin.
    options : mapping or None (default: None)
        Further options of ``fedkern run secure-gram``, such as ``{"fraction_bits": 30}``.
    random_state : int, RandomState or None (default: 0)
        Seed of the folds.
    """

    _method, _fixed = "secure-gram", {"encoding": "fixed-point"}
    _judged_after = True

    kernel: Literal["linear", "poly", "rbf", "cosine"] = "rbf"
    gamma: float | None = None
    cost: float | None = None
    learner: Literal["svc", "ridge"] = "svc"

    def _loss(self) -> str:
        return "square" if self.learner == "ridge" else "margin"


@dataclass(kw_only=True, eq=False, repr=False)
class SecureGramClassifier(Weighted, Classifier, _SecureGram):
    __doc__ = f"""Classes by Secure Gram. {_SecureGram.__doc__}
    class_weight : mapping, {{"balanced"}} or None (default: None)
        Weights of the classes, or equal weight of all.
    """

    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None


class SecureGramRegressor(Weighted, Regressor, _SecureGram):
    __doc__ = f"Numbers by Secure Gram. {_SecureGram.__doc__}"


@dataclass(kw_only=True, eq=False, repr=False)
class _Hierarchical(_Dealt):
    """Rows dealt to users, users evenly and in order to groups if there are any.

    Parameters
    ----------
    parties : int (default: 4)
        Users, each with rows of its own.
    groups : int or None (default: None)
        Groups with an agent each (default: none).
    split : {"iid", "dirichlet"} (default: "iid")
        Split of the rows among users.
    alpha : float (default: 0.5)
        Concentration of the Dirichlet split.
    C : float or None (default: None)
        Weight of the losses (default: chosen in the run).
    scaling : {"auto", "rank", "standard", "range", "none"} (default: "auto")
        Scaling of numbers.
    held_out : float (default: 0.0)
        Share of the rows held out to calibrate probabilities; at 0, a second run calibrates scores
        of a margin.
    options : mapping or None (default: None)
        Further options of ``fedkern run hierarchical-svm``, such as ``{"rounds": 400}``.
    random_state : int, RandomState or None (default: 0)
        Seed of split and random features.
    """

    _method, _parties = "hierarchical-svm", "users"

    groups: int | None = None
    split: Split = "iid"
    alpha: float = 0.5
    C: float | None = None

    def _chosen(self) -> dict[str, Any]:
        return {"C": self.strategy_.result().get("tuned", {}).get("C", self.get_params()["C"])}


@dataclass(kw_only=True, eq=False, repr=False)
class HierarchicalSVMClassifier(Classifier, _Hierarchical):
    __doc__ = f"""Classes by HierarchicalSVM. {_Hierarchical.__doc__}
    model : {{"linear", "rbf", "logistic"}} (default: "linear")
        Model.
    class_weight : {{"balanced"}} or None (default: None)
        Whether classes have equal weight. Other weights and ``sample_weight`` are refused: with
        them a sum of models could be that of a few rows.
    """

    _failing = BALANCED_ALONE

    model: Literal["linear", "rbf", "logistic"] = "linear"
    class_weight: Literal["balanced"] | None = None

    def _loss(self) -> str:
        return "logistic" if self.model == "logistic" else "margin"


class HierarchicalSVMRegressor(Regressor, _Hierarchical):
    __doc__ = f"Ridge regression by HierarchicalSVM. {_Hierarchical.__doc__}"

    _fixed = {"model": "ridge"}  # noqa: RUF012

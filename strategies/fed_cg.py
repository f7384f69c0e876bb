"""FedCG: kernel regularised least squares over rows and features held by different parties."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray
from scipy import linalg

from fedkern_flwr.errors import CheckpointError, OptionError, ProtocolError
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid import parties as hybrid
from fedkern_flwr.hybrid.landmarks import MOST_LANDMARKS, Sampling, usual_gamma
from fedkern_flwr.hybrid.parties import MissingBlocks, Plan, match_rows, summing_sets
from fedkern_flwr.judging.judges import Judges
from fedkern_flwr.kernels.product import ProductKernel, landmark_gammas
from fedkern_flwr.method import PrivateMethod, Round, Rounds, Save, Steps, option
from fedkern_flwr.model_file import check_model
from fedkern_flwr.nodes import Arrays
from fedkern_flwr.progress import part
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.solvers.conjugate_gradient import probe_vectors
from fedkern_flwr.solvers.least_squares import Penalty
from fedkern_flwr.wire import DescribeReply
from fedkern_flwr.wire.describe import rows_digest

from .fed_cg_system import (
    KEPT,
    Floats,
    HybridSystem,
    Sums,
    auto_landmarks,
    hospital_allowance,
    iterate,
    most_iterations,
    of_landmarks,
    plan_landmarks,
    solve_directly,
    tune_and_solve,
)

#: Options that basis fourier allows, by name.
_OF_FOURIER: dict[str, tuple[Any, ...]] = {
    "penalty": ("ridge",),
    "sampling": ("U", "auto"),
    "missing": ("error", "drop-row"),
    "landmark_gamma": (False,),
    "tune": ("off", "auto"),
    "variance": (False,),
}
_DIRECT_UP_TO, _RANK = 1000, 200  # landmarks; of the preconditioner
_LANDMARKS, _LAMBDA = 100, 1e-3  # defaults if neither given nor chosen
_OF_MODEL = ("landmarks", "sampling", "kernel", "basis", "missing")
_SIZES = "numbers of rows, held-out rows and columns per party, keyed hashes of ids"
_KERNELS = (
    "the kernel of their own rows: distances between their own patients, with many landmarks also "
    "along random directions of a centre's features; of a centre with a single feature that "
    "feature; columns of two values, up to their order and 0/1"
)
_DECLARED = (
    "what each party declares: block, bounds that follow from its ranges, bound of its labels, "
    "fewest rows of its own and of all in a fold, how much a run should open; digests of the "
    "names of columns and classes, and of its landmarks"
)


class FedCG(PrivateMethod, Judges):
    """FedCG: kernel regularised least squares over rows and features held by different parties.

    Hospitals own rows with labels, centres own blocks of features of these rows. The kernel is a
    product over blocks, its landmarks are random; the coefficients solve
    (K^T K + lambda I) a = K^T y (eq. 2.9) for all hospitals' rows together. They are the same as if
    all data were pooled, by default after five exchanges, three without centres.

    Flower's ``initial_arrays`` are coefficients, shape (m, k), from which cg starts, and
    ``num_rounds`` (1000) its most iterations.

    Attributes
    ----------
    plan_ : Plan
        Parties, their rows and blocks.
    landmarks_ : int
        m.
    coefficients_ : ndarray of float64, shape (m, k)
        The model, k outputs.
    gammas_ : ndarray of float64, shape (1,) or (m,)
        Width of all landmarks or of each.
    regularization_ : float
        Lambda of the model.
    tuned_ : dict
        What was tried and chosen; empty if nothing was. Landmarks have half and double the chosen
        width, in turn.
    outputs_, classes_, label_bound_
        Of the hospitals' labels.
    model_of : (str, int)
        For predictions: session and step of the model's run.

    References
    ----------
    Damiani, Rodina and Decherchi, "A Hybrid Federated Kernel Regularized Least Squares Algorithm",
    2024.
    """

    method, title = "fed-cg", "FedCG"
    left_whole = True
    described = wire.HybridDescribeReply
    default_rounds = 1000
    whole_cohorts = True
    fixed: ClassVar[frozenset[str]] = frozenset(
        {"min_clients", "max_missed", "checkpoint_every", "threshold", "min_cohort"}
    )

    landmarks: int | Literal["auto"] = option(
        "auto",
        "Random landmarks, m (auto: 20 to 400, within the release limits).",
        least=1,
        most=MOST_LANDMARKS,
    )
    sampling: Literal[Sampling, "auto"] = option(
        "auto",
        "Landmarks: uniform, normal, or normal with covariance (auto: C or U).",
    )
    basis: Literal["landmarks", "fourier"] = option(
        "landmarks",
        "Kernel columns of landmarks, or random Fourier features (for privacy budgets).",
    )
    kernel: ProductKernel = option(
        "rbf", "Kernel exp(-gamma d) of squared Euclidean or of absolute distances d."
    )
    gamma: float | None = option(
        None, "Width of the kernel (default: chosen, see tune).", above=0.0
    )
    landmark_gamma: bool = option(
        False, "A random width per landmark, in [gamma / 2, 2 gamma] (eq. 4.1)."
    )
    regularization: float | None = option(
        None, "Penalty lambda (default: chosen, see tune, or 1e-3).", above=0.0
    )
    tune: Literal["auto", "folds", "gcv", "off"] = option(
        "auto", "How gamma and lambda are chosen (auto: best that nodes allow)."
    )
    penalty: Penalty = option("ridge", "Penalty lambda I (eq. 2.9) or lambda K_mm (eq. 2.10).")
    solver: Literal["auto", "normal-equations", "cg"] = option(
        "auto",
        "Normal equations or conjugate gradients (auto: equations up to 1000 landmarks).",
        of_model=False,
    )
    preconditioner_rank: int | None = option(
        None,
        "CG: rank of the Nystrom preconditioner, 0 for none (default: 200).",
        of_model=False,
    )
    init: Literal["zero", "random"] = option(
        "zero", "CG: start at zero, or at random normal numbers as the paper."
    )
    tolerance: float = option(
        1e-10, "CG: stop at this residual, relative to K^T y.", above=0.0, below=1.0
    )
    missing: MissingBlocks = option(
        "error", "Rows that lack a block: refuse, drop, or set its factor to one."
    )
    allow_single: bool = option(
        False, "Allow what shows values of a single hospital or centre.", of_model=False
    )
    distance_bits: int = option(64, "Bits of a number in sums of distances; 32 is less exact.")
    variance: bool = option(
        False, "Numbers: predict variances as well; the model then holds K^T K."
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        direct = self.chosen_solver == "normal-equations"
        possible = direct and self.penalty == "ridge" and self.basis == "landmarks"
        given = self.landmark_gamma or None not in (self.gamma, self.regularization)
        weighs = self.class_weight is not None
        self.tunes = self.tune != "off" and possible and (weighs or not given)
        self.may_weigh = self.tunes  # as the normal equations are summed at once
        for problem, remedy, code in self._misfits(direct, possible, given):
            raise OptionError(problem, remedy=remedy, code=code)

    def _misfits(self, direct: bool, possible: bool, given: bool) -> Iterator[tuple[str, str, str]]:
        """Yield problem, remedy and code of options that conflict.

        ``possible``: width and lambda can be chosen; ``given``: they need not be.
        """
        rank, asked = self.preconditioner_rank, self.tune in ("folds", "gcv")
        if self.distance_bits not in (32, 64):
            yield f"distance_bits is {self.distance_bits}", "use 32 or 64", "FK-OPTION-CHOICE"
        if rank is not None and not 0 <= rank <= self.fixed_landmarks:
            remedy = f"use 0 to {self.fixed_landmarks} (landmarks)"
            yield f"preconditioner_rank is {rank}", remedy, "FK-OPTION-RANGE"
        if direct and (rank or self.init == "random"):
            name = "preconditioner_rank" if rank else "init"
            yield f"{name} is for solver cg", "add solver cg, or leave it out", "FK-OPTION-CONFLICT"
        if self.penalty == "rkhs" and self.landmark_gamma:
            problem = "with a width per landmark the kernel of the landmarks is not symmetric"
            yield problem, "use penalty ridge, or one width", "FK-RKHS-WIDTHS"
        for name, wanted in (("chosen_solver", "normal-equations"), ("penalty", "ridge")):
            if self.variance and (chosen := getattr(self, name)) != wanted:
                problem = f"there is no variance with {name.removeprefix('chosen_')} {chosen}"
                yield problem, f"use {wanted}, or leave variance out", "FK-EQUATIONS-NEEDED"
        if self.privacy_epsilon is not None and self.basis != "fourier":
            problem = "privacy_epsilon is for basis fourier: kernel columns are too long for it"
            remedy = "add --basis fourier, and leave columns at --scaling range"
            yield problem, remedy, "FK-BUDGET-OPTION"
        if self.privacy_epsilon is not None and not direct:
            problem = "privacy_epsilon is for solver normal-equations: each product would cost"
            remedy = "leave the solver out, or use fewer landmarks"
            yield f"{problem} as much", remedy, "FK-BUDGET-OPTION"
        for name, goes in _OF_FOURIER.items() if self.basis == "fourier" else ():
            if (chosen := getattr(self, name)) not in goes:
                remedy = f"use {goes[0]}" if goes[0] else "leave it out"
                yield f"{name} {chosen} is not for basis fourier", remedy, "FK-OPTION-CONFLICT"
        if self.basis == "fourier" and self.fixed_landmarks % 2:
            problem = f"basis fourier has a sine and a cosine of each phase, not {self.landmarks}"
            yield problem, f"use --landmarks {self.fixed_landmarks + 1}", "FK-OPTION-RANGE"
        if self.class_weight is not None and (not self.tunes or self.landmark_gamma):
            problem = "class_weight is for normal equations and penalty ridge, without tune off"
            yield f"{problem} and landmark_gamma", "leave it out", "FK-EQUATIONS-NEEDED"
        if asked and given:
            problem = "gamma and regularization are given, and tune"
            yield problem, "leave it out", "FK-OPTION-BOTH"
        if asked and not possible:
            problem = f"tune {self.tune} is for normal equations and penalty ridge"
            yield problem, "leave it out", "FK-EQUATIONS-NEEDED"

    @property
    def chosen_solver(self) -> str:
        if self.solver != "auto":
            return self.solver
        return "normal-equations" if self.fixed_landmarks <= _DIRECT_UP_TO else "cg"

    @property
    def fixed_landmarks(self) -> int:
        return _LANDMARKS if self.landmarks == "auto" else int(self.landmarks)

    @property
    def chosen_sampling(self) -> str:
        """Sampling of landmarks; basis fourier needs no moments of the rows."""
        return "U" if self.sampling == "auto" and self.basis == "fourier" else self.sampling

    @property
    def rank(self) -> int:
        if self.preconditioner_rank is not None:
            return self.preconditioner_rank
        return min(_RANK, self.fixed_landmarks // 2)

    def _reset(self) -> None:
        super()._reset()
        self.plan_ = Plan({}, {}, {})
        self.landmarks_ = self.fixed_landmarks
        self.coefficients_: Floats = np.zeros((self.landmarks_, 0))
        self.gammas_: Floats = np.zeros(0)
        self.regularization_ = _LAMBDA if self.regularization is None else self.regularization
        self.tuned_: dict[str, Any] = {}
        self.fingerprints_: dict[str, str] = {}
        self.outputs_, self.classes_, self.label_bound_ = 0, 0, 1.0
        self.model_of: tuple[str, int] = ("", 0)
        self._tunes, self._at_once = False, False
        self._sums: Sums | None = None
        self._sets: dict[str, list[int]] = {}
        self._parties: dict[int, wire.HybridDescribeReply] = {}
        self._factor: Arrays = {}

    def options(self) -> dict[str, Any]:
        rank = self.rank if self.chosen_solver == "cg" else 0
        return {**super().options(), "solver": self.chosen_solver, "preconditioner_rank": rank}

    # -- what a method reports

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        judged = self.judged_ if self._factor else None
        meta = {
            **self.options(),
            "landmarks": self.landmarks_,
            "regularization": self.regularization_,
            "session": self.model_of[0] or self.session,
            "step": self.model_of[1] or KEPT,
            "fingerprints": self.fingerprints_,
            "blocks": sorted(self.plan_.blocks),
            "tables": self._tables(),
            "outputs": self.outputs_,
            "classes": self.classes_,
            "label_bound": self.label_bound_,
            "calibration": self.calibration_numbers(),
            "noise": [] if judged is None else judged.squares(),
        }
        arrays = {"coefficients": self.coefficients_, "gammas": self.gammas_}
        return {**arrays, **self._factor}, meta

    def _tables(self) -> dict[str, str]:
        parties: Mapping[int, Any] = self.parties_
        return {party.block: party.columns for party in parties.values()}

    def privacy(self) -> dict[str, Any]:
        predicts, alone = bool(self.model_of[0]), len(self.plan_.hospitals) == 1
        private, sampling = self.budget is not None, self.chosen_sampling
        summed = "K^T y and products of K^T K" if self.chosen_solver == "cg" else "K^T K and K^T y"
        hospitals = "sums over the hospitals of"
        server = [f"{hospitals} {summed}, and of counts and histograms on held-out rows"]
        if predicts:
            whose = "the only hospital's" if alone else hospitals
            server = [f"{whose} counts on held-out rows"]
        elif alone:
            server = [f"{summed} of the only hospital, and its counts on held-out rows"]
        if private:
            server = [f"{server[0]}, with noise; see budget"]
        if self.penalty == "rkhs" and not predicts:
            server.append("distances between landmarks")
        moments = {"N": "means and deviations", "C": "means and covariances"}.get(sampling, "")
        if moments and not predicts:
            server.append(
                f"{moments} of blocks that several parties hold; a value that fewer than "
                "min_sum_rows rows of a node have counts as the most frequent one"
            )
        if self._tunes:
            distance = "" if self._at_once else "; the mean distance to the landmarks"
            server.append(f"these sums for each width and fold{distance}")
        if self.class_weight is not None and not predicts:
            server.append("how many training rows each class has over the hospitals")
        shared = [f"{moments} of their own block over all its holders"] if moments else []
        spread = ["of a centre's training rows the covariance, up to a motion and chance"]
        joined = not self.plan_.rows_alone
        seen = {
            "server_sees": [
                *server,
                _SIZES,
                "which rows of which party belong together",
                _DECLARED,
            ],
            "hospitals_see": [
                *([_KERNELS] if joined else []),
                "the coefficients, made of sums with noise"
                if private
                else "the coefficients; of two hospitals each can compute K^T(K a - y) of the "
                "other",
                *(spread if joined and sampling in ("C", "auto") else []),
                *(["K^T K, when they predict with the model"] if self.variance else []),
                *shared,
            ],
            "never_leaves_the_client": ["rows", "labels", "ids", "landmarks", "predictions"],
        }
        if joined:
            seen["centres_see"] = ["which of their rows belong to which hospital", *shared]
        return {**self.sums_privacy(), **seen, **self.budget_report()}

    def unknowns(self, name: str, cohort: int = 0) -> float:
        """Count the centres' columns of the hospitals' rows as well."""
        if not name.startswith("equations"):
            return super().unknowns(name, cohort)
        off = ("off", "warn")  # nodes without a release limit count as well
        known = {
            p: replace(said, share=1.0, counting=said.counting.replace(*off))
            for p, said in self._parties.items()
        }
        return hospital_allowance(self.plan_, known).numbers

    def matched(self) -> dict[str, Any]:
        return self.plan_.report() if self.plan_.wards else {}

    def result(self) -> dict[str, Any]:
        return {**super().result(), **({"tuned": self.tuned_} if self.tuned_ else {})}

    # -- parties

    def check_parties(self, parties: Sequence[Any]) -> None:
        hybrid.check_parties(parties)

    def cohorts(self) -> list[list[int]] | None:
        """Match the rows; return the sets that sum, which follow from the parties' rows."""
        parties: list[Any] = list(self.parties_.values())
        self.plan_ = match_rows(
            parties,
            self.missing,
            predict=bool(self.model_of[0]),
            allow_single=self.allow_single,
        )
        self._parties = {party.partition: party for party in parties}
        first = self._parties[self.plan_.hospitals[0]]
        self.outputs_, self.classes_ = first.outputs, first.classes
        self.label_bound_ = first.label_bound
        self.check_weighted(self.classes_)
        predicts = bool(self.model_of[0])
        self._tunes = self.tunes and not predicts
        # hospitals make their kernels with the first request if nothing is summed before
        ahead = self.penalty == "rkhs" or self.class_weight is not None
        self._at_once = self.plan_.rows_alone and not (ahead or predicts)
        self._plan_sizes()
        known = self._sums is not None and self._sums.known
        tunes = self._tunes and self.gamma is None and not known and not self._at_once
        self._sets = summing_sets(self.plan_, penalty=self.penalty, tunes=tunes)
        return list(self._sets.values())

    def _plan_sizes(self) -> None:
        if self.model_of[0] or not (self.tunes or self.landmarks == "auto"):
            return
        counts = self.classes_ if self.class_weight else 0
        allowed = hospital_allowance(self.plan_, self._parties)
        if allowed.planned and self.budget is None:
            found = plan_landmarks(self, self.plan_, self._parties, counts)
            self.landmarks_, self._sums = found
        elif self.landmarks == "auto" and self._tunes:
            self.landmarks_ = auto_landmarks(self.plan_, self.outputs_, allowed, counts)

    # -- a run

    def rounds(self, parties: Sequence[Any]) -> Rounds:
        arrays, meta = self.saved_, self.saved_meta_
        self.fingerprints_ = dict(meta.get("fingerprints", {}))
        self.landmarks_ = meta.get("landmarks", self.landmarks_)  # a node's share has shrunk since
        system = self._system()
        digest = rows_digest(parties, "block", saved=meta.get("rows"), checkpoint=self.checkpoint)
        start = self._first_coefficients()
        yield Round(0, arrays=[start])
        metrics = meta.get("metrics")
        if metrics is not None:
            self.coefficients_ = arrays["coefficients"]
            self.regularization_ = metrics.get("regularization", self.regularization_)
            self._factor = {name: arrays[name] for name in ("factor",) if name in arrays}
            self._take_tuned(meta.get("tuned", {}))
        yield from system.open(resumed=bool(meta))
        if not (meta and system.at_once):  # in a resumed run fingerprints are not sent again
            self.fingerprints_ = system.fingerprints

        def save(arrays: Mapping[str, NDArray[Any]], **meta: Any) -> Save:
            known = {"rows": digest, "landmarks": self.landmarks_}
            return Save(arrays, {**known, "fingerprints": self.fingerprints_, **meta}, kept=KEPT)

        if metrics is None:
            self.coefficients_, metrics = yield from self._solve(system, start, arrays, save)
            self.regularization_ = metrics.get("regularization", self.regularization_)
            self._keep_factor(system)
            done = {"metrics": metrics, "tuned": self.tuned_}
            yield save({"coefficients": self.coefficients_, **self._factor}, **done)
        with part("judge"):
            yard, counts = yield from system.evaluate(self.coefficients_)
        if counts is not None and counts.any():
            metrics = {**metrics, **self.judge_by(yard, counts)}
        elif counts is not None:
            self.nodes.note_untold()
        for entry in self.nodes.released(self.unknowns) if self.budget is None else ():
            self.nodes.warn_released(entry["name"], self.unknowns)
        yield Round(max(1, metrics["iterations"]), arrays=[self.coefficients_])
        return metrics

    def _first_coefficients(self) -> Floats:
        shape = (self.landmarks_, self.outputs_)
        if self.initial_:
            (start,) = self.initial_
            if start.shape != shape:
                problem = f"initial_arrays has shape {start.shape} instead of {shape}"
                raise ProtocolError(problem, code="FK-INITIAL-SHAPE")
            return np.asarray(start, np.float64)
        if self.init == "random":
            rng = np.random.default_rng(derive_seed(self.run_seed, "initial coefficients"))
            return np.asarray(rng.standard_normal(shape))
        return np.zeros(shape)

    def _system(self) -> HybridSystem:
        if not self.gammas_.size:
            features = sum(self._parties[h[0]].features for h in self.plan_.blocks.values())
            usual = usual_gamma(features) if self.basis == "fourier" else 1.0 / features
            gamma = self.gamma if self.gamma is not None else usual
            self.gammas_ = np.array([] if self._tunes else [gamma], np.float64)
            if self.landmark_gamma:
                self.gammas_ = landmark_gammas(gamma, self.landmarks_, self.run_seed)
        return HybridSystem(
            options=self,
            parties=self._parties,
            # a single hospital needs no summing set
            cohorts={"hospitals": -1, **{name: k for k, name in enumerate(self._sets)}},
            tunes=self._tunes,
            sums=self._sums,
            at_once=self._at_once,
        )

    def _solve(
        self, system: HybridSystem, start: Floats, arrays: Arrays, save: Callable[..., Save]
    ) -> Steps:
        if self._tunes:
            coefficients, metrics, tuned = yield from tune_and_solve(system)
            self._take_tuned(tuned)
            return coefficients, metrics
        if self.chosen_solver == "normal-equations":
            return (yield from solve_directly(system, self.regularization_))
        rank, most = self.rank, self.num_rounds
        allowed = hospital_allowance(self.plan_, self._parties, 1)
        if allowed.planned and self.landmarks == "auto":
            rank = min(rank, self.landmarks_ // 2)
            if most == self.default_rounds:
                most = min(most, most_iterations(self.landmarks_, rank, self.outputs_, allowed))
        self.planned = most
        system.landmark_kernel = arrays.get("landmark_kernel", system.landmark_kernel)
        probes = np.zeros((self.landmarks_, 0))
        if rank:
            probes = probe_vectors(self.landmarks_, rank, derive_seed(self.run_seed, "probes"))
        return (yield from iterate(system, start, probes, most, arrays, save))

    def _take_tuned(self, tuned: dict[str, Any]) -> None:
        if tuned:
            self.tuned_, self.regularization_ = tuned, tuned["regularization"]
            self.gammas_ = of_landmarks(self, np.array([tuned["gamma"]]))[0]

    def _keep_factor(self, system: HybridSystem) -> None:
        if self.variance and not self.classes_ and system.gram is not None:
            matrix = system.gram + self.regularization_ * np.eye(len(system.gram))
            lower = linalg.cholesky(matrix, lower=True)
            inverse = linalg.solve_triangular(lower, np.eye(len(lower)), lower=True)
            self._factor = {"factor": np.ascontiguousarray(inverse.T)}

    # -- predictions with a saved model

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> FedCG:
        """Return a strategy with the options of a saved model of this method (CheckpointError)."""
        meta = {"basis": "landmarks", **meta}  # older models lack it
        check_model(cls.method, {}, meta, {}, needs=_OF_MODEL)
        private = {name: meta[name] for name in meta if name.startswith("privacy_")}
        return cls(**{name: meta[name] for name in _OF_MODEL}, **private, **more)

    def predict_at_nodes(
        self, grid: Grid, arrays: Arrays, meta: Mapping[str, Any], *, timeout: float = 3600
    ) -> None:
        """Let the hospitals predict their held-out rows with a saved model.

        They write the predictions and send nothing of them. ``arrays`` and ``meta`` are from
        :meth:`model`; ``timeout`` is in seconds per exchange.

        Raises
        ------
        CheckpointError
            The model has another method or other options.
        CohortError, ProtocolError, TableError, OptionError
            See :meth:`start`.
        """
        meta = {"basis": "landmarks", **meta}
        if any(meta.get(name) != getattr(self, name) for name in ("method", *_OF_MODEL[:4])):
            raise CheckpointError(
                "the model was made with other options",
                remedy="use FedCG.of_model(meta)",
                code="FK-MODEL-OPTIONS",
            )
        outputs = int(meta["outputs"])
        check_model(self.method, arrays, meta, {"coefficients": (self.landmarks_, outputs)})
        self.begin()
        self.model_of = (str(meta["session"]), int(meta["step"]))

        def rounds(parties: Sequence[DescribeReply]) -> Rounds:
            self.coefficients_, self.gammas_ = arrays["coefficients"], arrays["gammas"]
            self.outputs_, self.fingerprints_ = outputs, dict(meta["fingerprints"])
            if sorted(self.plan_.blocks) != meta["blocks"]:
                raise ProtocolError(
                    f"the parties hold blocks {sorted(self.plan_.blocks)}, the model has "
                    f"{meta['blocks']}",
                    remedy="bring the parties that the model was made with",
                    code="FK-MODEL-PARTIES",
                )
            if self._tables() != meta.get("tables", self._tables()):  # older models lack it
                raise CheckpointError(
                    "the parties have other columns than the model was made with",
                    code="FK-COLUMNS-DIFFER",
                )
            system = self._system()
            yield from system.open()
            more = {name: meta.get(name, ()) for name in ("calibration", "noise")}
            yield from system.give(self.coefficients_, **more, factor=arrays.get("factor"))
            return {}

        self.conduct(grid, rounds, timeout=timeout)

"""FedCG: kernel regularised least squares over rows and features held by different parties."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedkern_flwr import hybrid
from fedkern_flwr.errors import (
    CheckpointError,
    EngineError,
    FedKernError,
    OptionError,
    ProtocolError,
)
from fedkern_flwr.hybrid import MissingBlocks
from fedkern_flwr.labels import counts_length, largest_count, outcome_metrics
from fedkern_flwr.landmarks import SAMPLINGS, Sampling
from fedkern_flwr.least_squares import (
    PENALTIES,
    Penalty,
    check_regularization,
)
from fedkern_flwr.model_file import check_model
from fedkern_flwr.online import check_choice
from fedkern_flwr.product_kernel import (
    PRODUCT_KERNELS,
    ProductKernel,
    check_gamma,
    landmark_gammas,
)
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.strategy import Arrays, at_least, logger
from fedkern_flwr.wire import PhaseMessage
from fedkern_flwr.wire import hybrid as wire

from .hybrid_base import HybridStrategy
from .hybrid_chain import ChainSystem
from .hybrid_naive import NaiveSystem
from .hybrid_privacy import WARNINGS, seen_by
from .hybrid_secure import SecureSystem
from .hybrid_solvers import iterate, solve_directly
from .hybrid_system import Floats, HybridSystem

Protocol = Literal["secure", "naive", "chain"]
Solver = Literal["auto", "normal-equations", "cg"]
_DIRECT_UP_TO = 1000  # landmarks
_RANK = 200
_SYSTEMS: dict[str, type[HybridSystem]] = {
    "secure": SecureSystem,
    "naive": NaiveSystem,
    "chain": ChainSystem,
}


class FedCG(HybridStrategy):
    """FedCG: kernel regularised least squares over rows and features held by different parties.

    Hospitals own rows with labels, centres own blocks of features of these rows. The kernel is a
    product over blocks, its landmarks are random; the coefficients solve
    (K^T K + lambda I) a = K^T y (eq. 2.9) for all hospitals' rows together. With the default
    protocol they are the same as if all data were pooled, after five exchanges.

    Parameters
    ----------
    landmarks : int (default: 100)
        m, number of random landmarks.
    sampling : {"U", "N", "P"} (default: "U")
        Landmarks uniform on each feature's range, normal with mean and deviation of the data and
        clipped to the range, both turned at random (see :mod:`fedkern_flwr.landmarks`), or training
        rows (only where data may be pooled).
    kernel : {"rbf", "laplacian"} (default: "rbf")
        exp(-gamma d) of squared Euclidean or of absolute distances d.
    gamma : float, optional
        Width, by default 1 / number of features.
    landmark_gamma : bool (default: False)
        A random width per landmark, log-uniform in [gamma / 2, 2 gamma] (eq. 4.1).
    regularization : float (default: 1e-3)
        lambda.
    penalty : {"ridge", "rkhs"} (default: "ridge")
        lambda I (eq. 2.9) or lambda K_mm with the pseudo-inverse (eq. 2.10).
    protocol : {"secure", "naive", "chain"} (default: "secure")
        Secure sums, or the paper's protocols, which log what they give away.
    solver : {"auto", "normal-equations", "cg"} (default: "auto")
        Sum the normal equations once, or iterate conjugate gradients, an exchange each (chain:
        several). Auto: the former up to 1000 landmarks, except in a chain.
    preconditioner_rank : int, optional
        Of cg: rank of the Nystrom preconditioner, 0 for none. By default 200 (at most m / 2) with
        protocol secure, none with the paper's.
    init : {"zero", "random"} (default: "zero")
        Of cg: where to start; random is standard normal, as in the paper.
    tolerance : float (default: 1e-10)
        Of cg: stop when the residual is so small relative to K^T y.
    missing : {"error", "drop-row", "neutral"} (default: "error")
        Rows that lack a block: refuse the run, leave them out, or let the block's factor be one.
    allow_single : bool (default: False)
        Allow a single hospital, and rows that a single centre knows: their values are then shown.
    distance_bits : int (default: 64)
        Of protocol secure: bits of a number in the sums of distances, 32 or 64. With 32 they are
        half as large; the total of C centres' distances of at most b is then off by less than
        C 2^(ceil(log2(C + 1)) + floor(log2 b) - 30).
    attempts : int (default: 5)
        An exchange that somebody failed to answer is repeated so often in all.
    **common
        Options of :class:`~fedkern_flwr.summing.SummingStrategy`.

    Attributes
    ----------
    plan_ : Plan
        Who holds which rows and blocks.
    coefficients_ : ndarray of float64, shape (m, k)
        The model, k outputs.
    gammas_ : ndarray of float64, shape (1,) or (m,)

    References
    ----------
    Damiani, Rodina and Decherchi, "A Hybrid Federated Kernel Regularized Least Squares Algorithm",
    2024.
    """

    method: ClassVar[str] = "fed-cg"
    title: ClassVar[str] = "FedCG"

    def __init__(
        self,
        *,
        landmarks: int = 100,
        sampling: Sampling = "U",
        kernel: ProductKernel = "rbf",
        gamma: float | None = None,
        landmark_gamma: bool = False,
        regularization: float = 1e-3,
        penalty: Penalty = "ridge",
        protocol: Protocol = "secure",
        solver: Solver = "auto",
        preconditioner_rank: int | None = None,
        init: Literal["zero", "random"] = "zero",
        tolerance: float = 1e-10,
        missing: MissingBlocks = "error",
        allow_single: bool = False,
        distance_bits: int = 64,
        attempts: int = 5,
        **common: Any,
    ) -> None:
        check_choice("sampling", sampling, SAMPLINGS)
        check_choice("kernel", kernel, PRODUCT_KERNELS)
        check_choice("penalty", penalty, PENALTIES)
        check_choice("protocol", protocol, tuple(_SYSTEMS))
        check_choice("solver", solver, ("auto", "normal-equations", "cg"))
        check_choice("init", init, ("zero", "random"))
        check_choice("missing", missing, hybrid.MISSING_BLOCKS)
        at_least("landmarks", landmarks, 1)
        if distance_bits not in (32, 64):
            raise OptionError(f"distance_bits is {distance_bits}", remedy="use 32 or 64")
        check_regularization(regularization)
        if gamma is not None:
            check_gamma(gamma)
        if not 0.0 < tolerance < 1.0:
            raise OptionError(f"tolerance is {tolerance}", remedy="use a value in (0, 1)")
        self.gamma, self.landmark_gamma = gamma, landmark_gamma
        self.regularization, self.tolerance = regularization, tolerance
        self.solver, self.init, self.preconditioner_rank = solver, init, preconditioner_rank
        super().__init__(
            landmarks=landmarks,
            sampling=sampling,
            kernel=kernel,
            penalty=penalty,
            protocol=protocol,
            missing=missing,
            allow_single=allow_single,
            distance_bits=distance_bits,
            attempts=attempts,
            **common,
        )
        self._check_combination()

    def _check_combination(self) -> None:
        rank, direct = self.preconditioner_rank, self.chosen_solver == "normal-equations"
        if rank is not None and not 0 <= rank <= self.landmarks:
            raise OptionError(
                f"preconditioner_rank is {rank}", remedy=f"use 0 to {self.landmarks} (landmarks)"
            )
        if direct and self.protocol == "chain":
            raise OptionError("a chain has no normal equations", remedy="use solver cg")
        if direct and (rank or self.init == "random"):
            name = "preconditioner_rank" if rank else "init"
            raise OptionError(f"{name} is for solver cg", remedy="add solver cg, or leave it out")
        if self.protocol == "chain" and rank:
            raise OptionError("a chain has no preconditioner", remedy="use protocol secure")
        if self.penalty == "rkhs" and self.protocol != "secure":
            raise OptionError(
                f"penalty rkhs is not made with protocol {self.protocol}",
                remedy="use protocol secure",
            )
        if self.penalty == "rkhs" and self.landmark_gamma:
            raise OptionError(
                "with a width per landmark the kernel of the landmarks is not symmetric",
                remedy="use penalty ridge, or one width",
            )

    def _reset(self) -> None:
        super()._reset()
        self.coefficients_: Floats = np.zeros((self.landmarks, 0))

    # -- what a method tells about itself

    @property
    def chosen_solver(self) -> str:
        """The solver that ``auto`` stands for."""
        if self.solver != "auto":
            return self.solver
        direct = self.landmarks <= _DIRECT_UP_TO and self.protocol != "chain"
        return "normal-equations" if direct else "cg"

    @property
    def rank(self) -> int:
        """Rank of the preconditioner, 0 for none."""
        if self.preconditioner_rank is not None:
            return self.preconditioner_rank
        return min(_RANK, self.landmarks // 2) if self.protocol == "secure" else 0

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        names = (
            "landmarks",
            "sampling",
            "kernel",
            "gamma",
            "landmark_gamma",
            "regularization",
            "penalty",
            "protocol",
            "init",
            "tolerance",
            "missing",
            "distance_bits",
        )
        return {
            **super().options(),
            **{name: getattr(self, name) for name in names},
            "solver": self.chosen_solver,
            "preconditioner_rank": self.rank if self.chosen_solver == "cg" else 0,
            "seed": self.run_seed,
        }

    def model(self) -> tuple[Arrays, dict[str, Any]]:
        """Return coefficients and widths, and what a prediction needs to know."""
        meta = {
            **self.options(),
            "session": self.model_of[0] or self._session,
            "step": self.model_of[1] or self.first_step,
            "fingerprints": self.fingerprints_,
            "blocks": sorted(self.plan_.blocks),
            "outputs": self.outputs_,
            "classes": self.classes_,
            "label_bound": self.label_bound_,
        }
        return {"coefficients": self.coefficients_, "gammas": self.gammas_}, meta

    def privacy(self) -> dict[str, Any]:
        """Return what is seen by whom."""
        seen = seen_by(self)
        if self.protocol != "secure":
            return seen
        sums = self.sums_privacy()
        for cohort in sums.get("cohorts", []):  # every sum is over its whole cohort
            cohort["threshold"] = cohort.pop("parties")
            cohort["parties"] = cohort["threshold"]
            del cohort["shares_to_open"]
        return {**sums, **seen}

    # -- Flower's interface

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 1000,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Fit the model, give it to the hospitals, judge it on their held-out rows.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        initial_arrays : ArrayRecord, optional
            Coefficients, shape (m, k), from which cg starts.
        num_rounds : int (default: 1000)
            Most iterations of cg.
        timeout : float (default: 3600)
            Seconds to wait for the replies of one exchange.
        train_config : ConfigRecord, optional
            ``seed`` is the run's seed for strategies that have none of their own.
        evaluate_config : ConfigRecord, optional
            Not used.
        evaluate_fn : callable, optional
            Evaluation on the server, called with the coefficients before and after the solution.

        Returns
        -------
        Result
            The coefficients; metrics per iteration.

        Raises
        ------
        CohortError, ProtocolError, TableError, SumError, EngineError, CheckpointError, OptionError
            The run cannot start or go on. A checkpoint, if one was written, stays.
        """
        at_least("num_rounds", num_rounds, 1)
        result = Result()
        restored = self._open(grid, timeout, train_config)
        try:
            system = _SYSTEMS[self.protocol](self, grid, timeout)
            start = self._initial(initial_arrays)
            result.arrays = ArrayRecord([start])
            if evaluate_fn and (metrics := evaluate_fn(0, result.arrays)) is not None:
                result.evaluate_metrics_serverapp[0] = metrics
            self._solve(system, start, num_rounds, restored)
            result.arrays = ArrayRecord([self.coefficients_])
            for row in self.history_:
                numbers = MetricRecord({k: v for k, v in row.items() if k != "round"})
                result.train_metrics_clientapp[row["round"]] = numbers
            found = self._judge(system)
            self.metrics_ |= found
            last = max(1, int(self.metrics_["iterations"]))
            if found:
                result.evaluate_metrics_clientapp[last] = MetricRecord(dict(found))
            if evaluate_fn and (metrics := evaluate_fn(last, result.arrays)) is not None:
                result.evaluate_metrics_serverapp[last] = metrics
        except EngineError:
            raise  # nobody can be reached any more
        except FedKernError:
            self._part(grid, timeout)
            raise
        self._part(grid, timeout)
        return result

    def predict(
        self,
        grid: Grid,
        arrays: Arrays,
        meta: Mapping[str, Any],
        *,
        timeout: float = 3600,
    ) -> None:
        """Have the hospitals predict their held-out rows with a model that was saved.

        The hospitals write the predictions; nothing of them is sent.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        arrays : dict
            Arrays of the model, see :meth:`model`.
        meta : mapping
            What else belongs to the model.
        timeout : float (default: 3600)
            Seconds to wait for the replies of one exchange.

        Raises
        ------
        CheckpointError
            The model is not one of this method or of these options.
        CohortError, ProtocolError, TableError, OptionError
            See :meth:`start`.
        """
        if self.protocol != "secure":
            raise OptionError("predictions are made with protocol secure")
        model = dict(meta)
        names = ("method", "landmarks", "sampling", "kernel")
        if any(model.get(name) != getattr(self, name) for name in names):
            raise CheckpointError(
                "the model was made with other options", remedy="use FedCG.of_model(meta)"
            )
        shapes = {"coefficients": (self.landmarks, int(model["outputs"]))}
        check_model(self.method, arrays, model, shapes)
        self._open(grid, timeout, None, of=model)
        try:
            self.coefficients_, self.gammas_ = arrays["coefficients"], arrays["gammas"]
            self.outputs_ = self.coefficients_.shape[1]
            self.fingerprints_ = dict(model["fingerprints"])
            if sorted(self.plan_.blocks) != model["blocks"]:
                raise ProtocolError(
                    f"the parties hold blocks {sorted(self.plan_.blocks)}, the model has "
                    f"{model['blocks']}",
                    remedy="bring the parties that the model was made with",
                )
            system = SecureSystem(self, grid, timeout)
            system.open()
            system.tell_hospitals(
                lambda _: self._coefficients_request(count=False), wire.CoefficientsReply
            )
        finally:
            self._part(grid, timeout)

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> FedCG:
        """Return a strategy with the options of a model that was saved.

        Raises
        ------
        CheckpointError
            It is not a model of this method.
        """
        names = ("landmarks", "sampling", "kernel", "missing")
        if meta.get("method") != cls.method or not set(names) <= set(meta):
            raise CheckpointError(
                f"the model is one of {meta.get('method') or 'another method'}",
                remedy=f"give a model of {cls.method}",
            )
        return cls(**{name: meta[name] for name in names}, **more)

    def _open(
        self,
        grid: Grid,
        timeout: float,
        config: ConfigRecord | None,
        *,
        of: Mapping[str, Any] | None = None,
    ) -> tuple[Arrays, dict[str, Any]] | None:
        """Begin or take up a run: parties, plan, landmarks' widths."""
        self._reset()
        if of is not None:
            self.model_of = (str(of["session"]), int(of["step"]))
        seed = 0 if config is None else config.get("seed", 0)
        self.run_seed = self.seed if self.seed is not None else int(seed)  # type: ignore[arg-type]
        if self.protocol in WARNINGS:
            logger.warning(WARNINGS[self.protocol])
        self.summary()
        restored = None if of is not None else self.restore()
        resume_round = 0
        if restored:
            resume_round = self.first_step = int(restored[1]["first_step"])
            self.fingerprints_ = restored[1]["fingerprints"]
        self.gather(grid, resume_round=resume_round, secure=self.protocol != "naive")
        self.gammas_ = self._widths()
        if restored:
            if restored[1].get("rows") != self.rows_digest():
                raise CheckpointError(
                    f"the rows of the parties are not those of the run of {self.checkpoint}",
                    remedy="bring back the tables of that run, or start anew",
                )
            answered = max(party.answered for party in self.parties_.values())
            self.step = max(int(restored[1]["round"]), answered)
            if self.sums is not None and restored[1].get("sums"):
                self.sums.go_on(restored[1]["sums"])
        return restored

    def _widths(self) -> Floats:
        features = sum(self.features_of(block) for block in self.plan_.blocks)
        gamma = self.gamma if self.gamma is not None else 1.0 / features
        if self.landmark_gamma:
            return landmark_gammas(gamma, self.landmarks, self.run_seed)
        return np.array([gamma], np.float64)

    # -- solving

    def _initial(self, given: ArrayRecord | None) -> Floats:
        shape = (self.landmarks, self.outputs_)
        if given is not None and len(given):
            (start,) = given.to_numpy_ndarrays()
            if start.shape != shape:
                raise ProtocolError(f"initial_arrays has shape {start.shape} instead of {shape}")
            return np.asarray(start, np.float64)
        if self.init == "random":
            rng = np.random.default_rng(derive_seed(self.run_seed, "initial coefficients"))
            return np.asarray(rng.standard_normal(shape))
        return np.zeros(shape)

    def _solve(
        self,
        system: HybridSystem,
        start: Floats,
        num_rounds: int,
        restored: tuple[Arrays, dict[str, Any]] | None,
    ) -> None:
        arrays, meta = restored or ({}, {})
        stage = meta.get("stage", "")
        if stage == "solved":
            self.coefficients_, self.metrics_ = arrays["coefficients"], meta["metrics"]
        system.open()
        self.fingerprints_ = dict(system.fingerprints)
        if stage == "solved":
            return
        if self.chosen_solver == "normal-equations":
            self.coefficients_ = solve_directly(self, system)
        else:
            system.landmark_kernel = arrays.get("landmark_kernel", system.landmark_kernel)
            self.coefficients_ = iterate(self, system, start, num_rounds, arrays)
        self.save("solved", {"coefficients": self.coefficients_}, metrics=self.metrics_)

    def enter(self, number: int, residuals: Floats, squared: Floats) -> None:
        """Enter an iteration in the history."""
        self.history_.append(
            {
                "round": number,
                "residual": float(np.max(residuals)),
                "squared_residual": float(np.sum(squared)),
                "survivors": len(self.plan_.parties),
            }
        )

    # -- the model at the hospitals

    def _coefficients_request(
        self, *, count: bool, predictions: Floats | None = None
    ) -> wire.CoefficientsRequest:
        return wire.CoefficientsRequest(
            session=self.session,
            round=self.step,
            count=count,
            coefficients=self.coefficients_,
            predictions=np.zeros((0, self.outputs_)) if predictions is None else predictions,
        )

    def _judge(self, system: HybridSystem) -> dict[str, float]:
        """Give the hospitals the model; return the metrics of held-out rows, if there are any."""
        wards = self.plan_.wards
        if isinstance(system, ChainSystem):
            system.predict(self.coefficients_)
        predicted = system.predictions(self.coefficients_)
        tested = [h for h, ward in wards.items() if ward.test]
        count = bool(tested) and all(self.party_of(h).labelled for h in tested)
        if count and len(tested) == 1 < len(wards) and self.protocol == "secure":
            if not self.allow_single:
                logger.warning(
                    "partition %d alone has held-out rows: their counts are not sent", tested[0]
                )
            count = self.allow_single

        def request(h: int) -> wire.CoefficientsRequest:
            return self._coefficients_request(count=count, predictions=predicted.get(h))

        if isinstance(system, SecureSystem):
            if not count:
                system.tell_hospitals(request, wire.CoefficientsReply)
                return {}
            length = counts_length(self.outputs_, self.classes_)
            most = max(ward.test for ward in wards.values())
            bound = float(most) * largest_count(self.classes_) * (1.0 + 1e-9)
            counts = system.sum_over_hospitals(
                "outcomes", request, wire.CoefficientsReply, length, bound
            )
        else:
            counts = self._plain_counts(system, request, count)
        if not count:
            return {}
        if not counts.any():
            self.note_untold()
            return {}
        if self.classes_:
            counts = np.rint(counts)
        return outcome_metrics(counts, self.classes_, self.label_bound_)

    def _plain_counts(
        self, system: HybridSystem, request: Callable[[int], PhaseMessage], count: bool
    ) -> Floats:
        counts = np.zeros(counts_length(self.outputs_, self.classes_))
        waiting = set(self.plan_.hospitals)
        for _ in range(self.attempts):
            self.next_step()
            requests = {h: request(h) for h in sorted(waiting)}
            replies = self.ask(system.grid, requests, wire.CoefficientsReply, system.timeout)
            if count and replies:
                counts += self.single_vector(replies, len(counts))
            waiting -= set(replies)
            if not waiting:
                return counts
        raise self.gave_up("hybrid-coefficients")

    def _part(self, grid: Grid, timeout: float) -> None:
        """Let whoever is left erase the run's secrets."""
        if self.protocol != "naive":
            with contextlib.suppress(FedKernError):
                self.finish(grid, number=self.step + 1, timeout=timeout)

    # -- checkpoints

    def save(self, stage: str, arrays: Mapping[str, NDArray[Any]], **meta: Any) -> None:
        """Write a checkpoint, if one was asked for."""
        if self.checkpoint is None:
            return
        self.write_checkpoint(
            self.step,
            dict(arrays),
            {
                "stage": stage,
                "first_step": self.first_step,
                "fingerprints": self.fingerprints_,
                "rows": self.rows_digest(),
                "sums": self.sums.progress() if self.sums is not None else {},
                **meta,
            },
        )

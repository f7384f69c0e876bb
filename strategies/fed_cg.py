"""FedCG: kernel regularised least squares over rows and features held by different parties."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr import hybrid
from fedkern_flwr.errors import CheckpointError, OptionError, ProtocolError, TableError
from fedkern_flwr.hybrid import HOSPITAL, MissingBlocks, Plan, check_alone, make_plan
from fedkern_flwr.labels import counts_length, largest_count, outcome_metrics
from fedkern_flwr.landmarks import Sampling
from fedkern_flwr.least_squares import Penalty
from fedkern_flwr.method import Method, Round, Rounds, Save, Steps, option
from fedkern_flwr.model_file import check_model
from fedkern_flwr.preconditioner import probe_vectors
from fedkern_flwr.product_kernel import ProductKernel, landmark_gammas
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.strategy import Arrays, logger
from fedkern_flwr.wire import DescribeReply
from fedkern_flwr.wire import hybrid as wire

from .hybrid_paper import ChainSystem, NaiveSystem
from .hybrid_privacy import WARNINGS, seen_by
from .hybrid_secure import SecureSystem
from .hybrid_solvers import iterate, solve_directly
from .hybrid_system import KEPT, Floats, HybridSystem

Protocol = Literal["secure", "naive", "chain"]
Solver = Literal["auto", "normal-equations", "cg"]
_DIRECT_UP_TO = 1000  # landmarks
_RANK = 200
_OF_MODEL = ("landmarks", "sampling", "kernel", "missing")
_SYSTEMS: dict[str, type[HybridSystem]] = {
    "secure": SecureSystem,
    "naive": NaiveSystem,
    "chain": ChainSystem,
}


class FedCG(Method):
    """FedCG: kernel regularised least squares over rows and features held by different parties.

    Hospitals own rows with labels, centres own blocks of features of these rows. The kernel is a
    product over blocks, its landmarks are random; the coefficients solve
    (K^T K + lambda I) a = K^T y (eq. 2.9) for all hospitals' rows together. With the default
    protocol they are the same as if all data were pooled, after five exchanges.

    Flower's ``initial_arrays`` are coefficients, shape (m, k), from which cg starts, and
    ``num_rounds`` (1000) its most iterations.

    Attributes
    ----------
    plan_ : Plan
        Who holds which rows and blocks.
    coefficients_ : ndarray of float64, shape (m, k)
        The model, k outputs.
    gammas_ : ndarray of float64, shape (1,) or (m,)
        Width of all landmarks or of each.
    outputs_, classes_, label_bound_
        What the hospitals have labels of.
    model_of : (str, int)
        Of predictions: session and step of the run that made the model.

    References
    ----------
    Damiani, Rodina and Decherchi, "A Hybrid Federated Kernel Regularized Least Squares Algorithm",
    2024.
    """

    method, title = "fed-cg", "FedCG"
    described = wire.HybridDescribeReply
    default_rounds = 1000
    fixed: ClassVar[frozenset[str]] = frozenset(
        {"min_clients", "max_missed", "checkpoint_every", "threshold", "min_cohort"}
    )

    landmarks: int = option(100, "m, number of random landmarks.", least=1)
    sampling: Sampling = option(
        "U",
        "Landmarks uniform on each feature's range, normal with mean and deviation of the data and "
        "clipped to the range, both turned at random (see fedkern_flwr.landmarks), or training "
        "rows (only where data may be pooled).",
    )
    kernel: ProductKernel = option(
        "rbf", "exp(-gamma d) of squared Euclidean or of absolute distances d."
    )
    gamma: float | None = option(None, "Width, by default 1 / number of features.", above=0.0)
    landmark_gamma: bool = option(
        False, "A random width per landmark, log-uniform in [gamma / 2, 2 gamma] (eq. 4.1)."
    )
    regularization: float = option(1e-3, "lambda.", above=0.0)
    penalty: Penalty = option(
        "ridge", "lambda I (eq. 2.9) or lambda K_mm with the pseudo-inverse (eq. 2.10)."
    )
    protocol: Protocol = option(
        "secure", "Secure sums, or the paper's protocols, which log what they give away."
    )
    solver: Solver = option(
        "auto",
        "Sum the normal equations once, or iterate conjugate gradients, an exchange each (chain: "
        "several). Auto: the former up to 1000 landmarks, except in a chain.",
        of_model=False,
    )
    preconditioner_rank: int | None = option(
        None,
        "Of cg: rank of the Nystrom preconditioner, 0 for none. By default 200 (at most m / 2) "
        "with protocol secure, none with the paper's.",
        of_model=False,
    )
    init: Literal["zero", "random"] = option(
        "zero", "Of cg: where to start; random is standard normal, as in the paper."
    )
    tolerance: float = option(
        1e-10,
        "Of cg: stop when the residual is so small relative to K^T y.",
        above=0.0,
        below=1.0,
    )
    missing: MissingBlocks = option(
        "error",
        "Rows that lack a block: refuse the run, leave them out, or let the block's factor be one.",
    )
    allow_single: bool = option(
        False,
        "Allow a single hospital, and rows that a single centre knows: their values are then "
        "shown.",
        of_model=False,
    )
    distance_bits: int = option(
        64,
        "Of protocol secure: bits of a number in the sums of distances, 32 or 64. With 32 they are "
        "half as large; the total of C centres' distances of at most b is then off by less than "
        "C 2^(ceil(log2(C + 1)) + floor(log2 b) - 30).",
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        rank, direct = self.preconditioner_rank, self.chosen_solver == "normal-equations"
        if self.distance_bits not in (32, 64):
            raise OptionError(f"distance_bits is {self.distance_bits}", remedy="use 32 or 64")
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
        self.plan_ = Plan({}, {}, {})
        self.coefficients_: Floats = np.zeros((self.landmarks, 0))
        self.gammas_: Floats = np.zeros(0)
        self.fingerprints_: dict[str, str] = {}
        self.outputs_, self.classes_, self.label_bound_ = 0, 0, 1.0
        self.model_of: tuple[str, int] = ("", 0)
        self._cohorts: list[str] = []

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
        rank = self.rank if self.chosen_solver == "cg" else 0
        return {**super().options(), "solver": self.chosen_solver, "preconditioner_rank": rank}

    def summary(self) -> None:
        """Log the configuration, and what a protocol gives away."""
        if self.protocol in WARNINGS:
            logger.warning(WARNINGS[self.protocol])
        super().summary()

    def model(self) -> tuple[Arrays, dict[str, Any]]:
        """Return coefficients and widths, and what a prediction needs to know."""
        meta = {
            **self.options(),
            "session": self.model_of[0] or self._session,
            "step": self.model_of[1] or KEPT,
            "fingerprints": self.fingerprints_,
            "blocks": sorted(self.plan_.blocks),
            "outputs": self.outputs_,
            "classes": self.classes_,
            "label_bound": self.label_bound_,
        }
        return {"coefficients": self.coefficients_, "gammas": self.gammas_}, meta

    def privacy(self) -> dict[str, Any]:
        """Return what is seen by whom."""
        seen = seen_by(
            self.protocol,
            direct=self.chosen_solver == "normal-equations",
            alone=len(self.plan_.hospitals) == 1,
            predicts=bool(self.model_of[0]),
            penalty=self.penalty,
            sampling=self.sampling,
        )
        return {**self.whole_sums_privacy(), **seen} if self.protocol == "secure" else seen

    def matched(self) -> dict[str, Any]:
        """Return whose rows were matched."""
        return self.plan_.report() if self.plan_.wards else {}

    # -- parties

    def takes_sums(self, grid: Grid) -> bool:
        """Tell whether clients need keys: not to show all to the server."""
        return self.protocol != "naive"

    def check_parties(self, parties: Sequence[Any]) -> None:
        """Refuse partitions that clash and ids that come twice."""
        hybrid.check_parties(parties)

    def cohorts(self) -> list[list[int]] | None:
        """Match the rows; return the sets among which is summed, fixed by who holds what."""
        self._make_plan()
        sets: dict[str, list[int]] = {}
        if len(self.plan_.hospitals) > 1:
            sets["hospitals"] = list(self.plan_.hospitals)
        for h, ward in self.plan_.wards.items():
            if ward.centres:
                sets[f"ward {h}"] = sorted(ward.rows)
        for block, holders in self.plan_.blocks.items():
            if len(holders) > 1:
                sets[f"block {block}"] = list(holders)
        if self.penalty == "rkhs" and len(self.plan_.parties) > 1:
            sets["everybody"] = list(self.plan_.parties)
        if self.protocol == "chain":
            sets = {name: members for name, members in sets.items() if name.startswith("ward")}
        if self.penalty == "rkhs" and "everybody" not in sets:
            raise OptionError(
                "penalty rkhs sums distances between landmarks over the parties, and there is one",
                remedy="use penalty ridge",
            )
        self._cohorts = list(sets)
        return list(sets.values())

    def _make_plan(self) -> None:
        parties: list[Any] = list(self.parties_.values())
        predict = bool(self.model_of[0])
        if predict and not any(p.role == HOSPITAL and p.test_rows for p in parties):
            raise TableError(
                "no hospital holds rows to predict",
                remedy="name test-data in the --node-config of those that shall predict",
            )
        self.plan_ = make_plan(parties, self.missing, predict=predict)
        secure, single = self.protocol == "secure", self.allow_single
        check_alone(self.plan_, parties, secure=secure, allow_single=single)
        first = self._party(self.plan_.hospitals[0])
        self.outputs_, self.classes_ = first.outputs, first.classes
        self.label_bound_ = first.label_bound
        for h, ward in self.plan_.wards.items():
            if ward.dropped or ward.lacking:
                logger.warning(
                    "partition %d: %d rows dropped, rows without a block: %s",
                    h,
                    ward.dropped,
                    dict(ward.lacking) or "none",
                )
        for c, unknown in self.plan_.unknown.items():
            if unknown:
                logger.info("partition %d: %d rows belong to no hospital", c, unknown)

    def _party(self, partition: int) -> Any:
        return next(p for p in self.parties_.values() if p.partition == partition)

    def _rows_digest(self) -> str:
        """Return a digest of which rows, features and outputs each party has, in this session."""
        digest = hashlib.sha256()
        parties: list[Any] = list(self.parties_.values())
        for party in parties:
            sizes = (party.partition, party.block, party.rows, party.features, party.outputs)
            digest.update(repr(sizes).encode() + party.ids.tobytes())
        return digest.hexdigest()

    # -- a run

    def rounds(self, parties: Sequence[DescribeReply]) -> Rounds:
        """Fit the model, give it to the hospitals, judge it on their held-out rows."""
        arrays, meta = self.saved_, self.saved_meta_
        self.fingerprints_ = dict(meta.get("fingerprints", {}))
        system = self._system()
        if meta.get("rows", self._rows_digest()) != self._rows_digest():
            raise CheckpointError(
                f"the rows of the parties are not those of the run of {self.checkpoint}",
                remedy="bring back the tables of that run, or start anew",
            )
        start = self._initial()
        yield Round(0, arrays=[start])
        metrics = meta.get("metrics")
        if metrics is not None:
            self.coefficients_ = arrays["coefficients"]
        yield from system.open()
        self.fingerprints_ = dict(system.fingerprints)
        if metrics is None:
            self.coefficients_, metrics = yield from self._solve(system, start, arrays)
            yield self._save({"coefficients": self.coefficients_}, metrics=metrics)
        metrics = {**metrics, **(yield from self._judge(system))}
        yield Round(max(1, metrics["iterations"]), arrays=[self.coefficients_])
        return metrics

    def _system(self) -> HybridSystem:
        if not self.plan_.wards:
            self._make_plan()
        if not self.gammas_.size:
            features = sum(self._party(h[0]).features for h in self.plan_.blocks.values())
            gamma = self.gamma if self.gamma is not None else 1.0 / features
            self.gammas_ = np.array([gamma], np.float64)
            if self.landmark_gamma:
                self.gammas_ = landmark_gammas(gamma, self.landmarks, self.run_seed)
        parties: list[Any] = list(self.parties_.values())
        return _SYSTEMS[self.protocol](
            plan=self.plan_,
            parties={party.partition: party for party in parties},
            cohorts=self._cohorts,
            landmarks=self.landmarks,
            sampling=self.sampling,
            kernel=self.kernel,
            penalty=self.penalty,
            protocol=self.protocol,
            distance_bits=self.distance_bits,
            attempts=self.attempts,
            keep_training=self.chosen_solver == "cg",
            gammas=self.gammas_,
            public_seed=self.run_seed,
            model_of=self.model_of,
            known=self.fingerprints_,
        )

    def _initial(self) -> Floats:
        shape = (self.landmarks, self.outputs_)
        if self.initial_:
            (start,) = self.initial_
            if start.shape != shape:
                raise ProtocolError(f"initial_arrays has shape {start.shape} instead of {shape}")
            return np.asarray(start, np.float64)
        if self.init == "random":
            rng = np.random.default_rng(derive_seed(self.run_seed, "initial coefficients"))
            return np.asarray(rng.standard_normal(shape))
        return np.zeros(shape)

    def _solve(self, system: HybridSystem, start: Floats, arrays: Arrays) -> Steps:
        if self.chosen_solver == "normal-equations":
            return (yield from solve_directly(system, self.regularization))
        self.planned = self.num_rounds
        system.landmark_kernel = arrays.get("landmark_kernel", system.landmark_kernel)
        probes = np.zeros((self.landmarks, 0))
        if self.rank:
            probes = probe_vectors(self.landmarks, self.rank, derive_seed(self.run_seed, "probes"))
        return (
            yield from iterate(
                system,
                start,
                probes,
                self.num_rounds,
                arrays,
                self._save,
                regularization=self.regularization,
                tolerance=self.tolerance,
            )
        )

    def _save(self, arrays: Mapping[str, NDArray[Any]], **meta: Any) -> Save:
        known = {"fingerprints": self.fingerprints_, "rows": self._rows_digest()}
        return Save(arrays, {**known, **meta}, kept=KEPT)

    def _judge(self, system: HybridSystem) -> Steps:
        """Give the hospitals the model; return the metrics of held-out rows, if there are any."""
        wards = self.plan_.wards
        predicted = yield from system.predict(self.coefficients_)
        tested = [h for h, ward in wards.items() if ward.test]
        count = bool(tested) and all(self._party(h).labelled for h in tested)
        if count and len(tested) == 1 < len(wards) and self.protocol == "secure":
            if not self.allow_single:
                logger.warning(
                    "partition %d alone has held-out rows: their counts are not sent", tested[0]
                )
            count = self.allow_single
        most = max(ward.test for ward in wards.values())
        counts = yield from system.judge(
            {h: self._model_request(count, predicted.get(h)) for h in wards},
            counts_length(self.outputs_, self.classes_) if count else 0,
            float(most) * largest_count(self.classes_),
        )
        if not counts.any():
            if count:
                self.note_untold()
            return {}
        if self.classes_:
            counts = np.rint(counts)
        return outcome_metrics(counts, self.classes_, self.label_bound_)

    def _model_request(
        self, count: bool = False, predictions: Floats | None = None
    ) -> wire.CoefficientsRequest:
        nothing = np.zeros((0, self.outputs_))
        return wire.CoefficientsRequest(
            count=count,
            coefficients=self.coefficients_,
            predictions=nothing if predictions is None else predictions,
        )

    # -- predictions with a model that was saved

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> FedCG:
        """Return a strategy with the options of a model that was saved.

        Raises
        ------
        CheckpointError
            It is not a model of this method.
        """
        if meta.get("method") != cls.method or not set(_OF_MODEL) <= set(meta):
            raise CheckpointError(
                f"the model is one of {meta.get('method') or 'another method'}",
                remedy=f"give a model of {cls.method}",
            )
        return cls(**{name: meta[name] for name in _OF_MODEL}, **more)

    def predict(
        self, grid: Grid, arrays: Arrays, meta: Mapping[str, Any], *, timeout: float = 3600
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
        outputs = int(model["outputs"])
        check_model(self.method, arrays, model, {"coefficients": (self.landmarks, outputs)})
        self.begin()
        self.model_of = (str(model["session"]), int(model["step"]))

        def rounds(parties: Sequence[DescribeReply]) -> Rounds:
            self.coefficients_, self.gammas_ = arrays["coefficients"], arrays["gammas"]
            self.outputs_, self.fingerprints_ = outputs, dict(model["fingerprints"])
            if sorted(self.plan_.blocks) != model["blocks"]:
                raise ProtocolError(
                    f"the parties hold blocks {sorted(self.plan_.blocks)}, the model has "
                    f"{model['blocks']}",
                    remedy="bring the parties that the model was made with",
                )
            system = self._system()
            yield from system.open()
            yield from system.judge(
                dict.fromkeys(self.plan_.hospitals, self._model_request()), 0, 1.0
            )
            return {}

        self.conduct(grid, rounds, timeout=timeout)

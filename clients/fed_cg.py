"""The client of FedCG: a hospital with labels, or a centre with a block of features."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike

from fedkern_flwr.errors import StateError
from fedkern_flwr.guard import SumRule, check_selection, refusal
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.fourier import CIRCLE
from fedkern_flwr.hybrid.landmarks import check_seed_bytes
from fedkern_flwr.hybrid.parties import CENTRE, CLASS_COUNTS, HOSPITAL, MEAN_DISTANCE
from fedkern_flwr.judging.noisy import OUTCOMES
from fedkern_flwr.kernels.product import distance_bound, mean_distances, partial_distances
from fedkern_flwr.node.answering import answers
from fedkern_flwr.secure_sum.noise_keys import asked
from fedkern_flwr.solvers.equations import pack_equations
from fedkern_flwr.wire import DescribeRequest

from .fed_cg_kernel import HospitalKernel, KernelRows
from .fed_cg_landmarks import LandmarkedParty, training_positions, wider
from .fed_cg_private import charge_centre, release_of, weight_of
from .fed_cg_table import HybridTable
from .fed_cg_tuning import check_chosen, training_counts, tuning_sums
from .party_table import Floats

_UNIT = 1.0 + 1e-9
_NO_ROWS = np.zeros(0, np.int32)


class HybridKernelClient(LandmarkedParty):
    """A hospital or a centre in FedCG.

    A hospital has labels for its rows and perhaps a block of features; a centre has a block of
    features for rows of some or all hospitals. Rows may stand in any order at each party.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context.
    x : array or data frame, shape (n, d), optional
        The party's block of features, within ``ranges``; None at a hospital without features.
    y : array, shape (n,) or (n, k), optional
        Labels; a party with labels (if of no rows) is a hospital.
    ids : sequence of length n, optional
        Record ids. Without them rows cannot be joined with those of other parties.
    x_test, y_test, ids_test : arrays, optional
        Held-out rows of a hospital: predicted with the model and, if labelled, counted.
    block : str (default: "clinical" at a hospital, "centre <partition>" at a centre)
        Name of the block of features. Parties with the same name hold the same columns, of
        different rows.
    columns : sequence of str, optional
        Names of the features.
    ranges : array, shape (d, 2), optional
        Least and greatest value of each feature, public; [0, 1] by default.
    classes : sequence of float or str, optional
        All classes of a classification, by whose names y may be given, the same order everywhere;
        without them y holds the targets of a regression.
    label_bound : float (default: 1.0)
        Public bound of abs(y) in a regression.
    alignment_key : bytes or AlignmentTags, optional
        Secret of all parties that share records, not of the server: joins ids. Or what each of
        them has of one align run.
    landmark_seed : bytes, optional
        Secret of 32 bytes, the same at all holders of the block. Without it a single holder draws
        one, and several agree on one during the run.
    predictions : path, optional
        CSV file that a hospital writes for its held-out rows: id, outputs, predicted class.
    **common
        Options of :class:`~fedkern_flwr.node.client.PhaseClient`; ``allow_single`` here also lets
        a hospital without others show its normal equations to the server.

    Raises
    ------
    TableError
        Wrong shapes, NaN, values out of range, duplicate ids, unknown classes.
    OptionError
        A key that is too short.

    Notes
    -----
    Memory: a few times the kernel of the rows asked for in one message, which the server keeps
    below 256 MB.
    """

    whole_cohorts: ClassVar[bool] = True
    adds_noise = True
    without_secret: ClassVar[str] = "configure the landmark seed at all holders of the block"
    without_key: ClassVar[str] = (
        "give all parties that share records the same alignment_key, or pass no ids"
    )
    run_file: ClassVar[str] = "kernel"

    def __init__(
        self,
        context: Context,
        x: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        block: str | None = None,
        ranges: ArrayLike | None = None,
        landmark_seed: bytes | None = None,
        **common: Any,
    ) -> None:
        def check() -> None:
            if landmark_seed is not None:
                check_seed_bytes(landmark_seed)

        super().__init__(
            context, x, y, table=partial(HybridTable, ranges=ranges), check=check, **common
        )
        self.role = HOSPITAL if y is not None else CENTRE
        default = "clinical" if y is not None else f"centre {self.partition}"
        self.block = default if block is None else block
        self.landmark_seed = landmark_seed

    # -- phases

    def describe(self, request: DescribeRequest) -> wire.HybridDescribeReply:
        """Tell who this is; see the message."""
        return self.tell(
            request,
            wire.HybridDescribeReply,
            block=self.block,
            seeded=self.landmark_seed is not None,
            square_bound=distance_bound(self.table.ranges, "rbf"),
            absolute_bound=distance_bound(self.table.ranges, "laplacian"),
            fold_rows=self.policy.min_own_rows,
            fold_sum_rows=self.policy.min_sum_rows,
        )

    def answer(self, request: Any, method: Any) -> Any:
        """Take up the settings or the distances that come along, before a handler."""
        if isinstance(request, wire.DistancesRequest):
            self._begin(request)
        elif not isinstance(request, wire.MomentsRequest):
            self._go_on()
        return method(request)

    @answers(wire.DistancesRequest)
    def send_distances(self, request: wire.DistancesRequest) -> wire.DistancesReply:
        """Contribute partial distances; take the totals of an earlier part that come along."""
        self._take_distances()
        self._note_rows(request)
        charge_centre(self)
        landmarks = self._landmarks()
        if self._ordered("landmark pairs"):
            if self.kept.fourier:
                raise self.wrong("features have no landmarks whose distances could be told")
            rule = replace(self._distance_rule(), nobodys=self.kept.settings["sampling"] == "U")
            self.secure_sums.check("landmark pairs", rule)
            self._note("landmark pairs", _NO_ROWS)
            if request.landmark_pairs:
                square = partial_distances(landmarks, landmarks, self.kept.settings["kernel"])
                pairs = square[np.triu_indices(len(square), 1)]
                self.secure_sums.contribute("landmark pairs", pairs)
            else:  # another holder of the block adds it
                self.secure_sums.contribute_nothing("landmark pairs")
        if self._ordered(MEAN_DISTANCE):
            self._add_mean_distance(request, landmarks)
        if self._ordered(CLASS_COUNTS):
            self._add(CLASS_COUNTS, training_counts(self))
        for (hospital, _, start, stop), all_rows in zip(request.parts, request.rows, strict=True):
            rows, name = all_rows[start:stop], f"distances/{hospital}#{start}"
            if not self._ordered(name):
                continue
            rule = self._distance_rule(receiver=hospital)
            self.secure_sums.check(name, replace(rule, length=len(rows) * self.kept.summed))
            if hospital == self.partition:  # adds its own block by itself
                self.secure_sums.contribute_nothing(name)
            else:
                self._note(f"distances/{hospital}", rows, each=True)
                found = self._distances(rows, landmarks)
                self.secure_sums.contribute(name, found.reshape(-1), overwrite=True)
        return wire.DistancesReply(fingerprint=self._fingerprint())

    @answers(wire.EquationsRequest)
    def send_equations(self, request: wire.EquationsRequest) -> wire.EquationsReply:
        """Contribute K_h^T K_h and K_h^T y_h of the training rows (eq. 2.9)."""
        if self.kept.tunes:
            return wire.EquationsReply(
                plain=self._add(wire.equations_sum(request), tuning_sums(self, request))
            )
        if request.gammas.size or request.folds != 1:
            raise self.wrong("the width of this run is known: there is none to choose")
        self.check_hospital("equations", 1.0)
        m, outputs = self.kept.landmarks, self.table.y.shape[1]
        gram = self.kept.arrays.setdefault("gram", np.zeros((m, m)))  # without training rows
        right = self.kept.arrays.setdefault("right", np.zeros((m, outputs)))
        right = right * weight_of(self)
        return wire.EquationsReply(plain=self._add("equations", pack_equations(gram, right)))

    @answers(wire.ProductRequest)
    def send_product(self, request: wire.ProductRequest) -> wire.ProductReply:
        """Contribute K_h^T (K_h P); with ``labels`` K_h^T y_h before it."""
        if not (np.linalg.norm(request.directions, axis=0) <= _UNIT).all():
            raise refusal("directions longer than one", self.name)
        if self.kept.tunes:
            raise self.wrong("the width of this run is not known: there are no products")
        self.check_hospital("product", np.sqrt(self.kept.landmarks))
        vector = self.kernel.products(request.directions, labels=request.labels)
        return wire.ProductReply(plain=self._add("product", vector))

    @answers(wire.CoefficientsRequest)
    def take_coefficients(self, request: wire.CoefficientsRequest) -> wire.CoefficientsReply:
        """Predict the held-out rows, keep the predictions here, count how good they are."""
        kept, table = self.kept, self.table
        self._check_role()
        asked = kept.arrays["rows"][kept.train :]
        if request.count:
            self._check_alone(OUTCOMES)
            if self.budget is not None and request.bins:
                raise refusal("privacy: histograms without noise are asked for", self.name)
            self._check_sum("outcomes", len(asked) * self.yardstick(request.bins).largest)
            least = self.policy.min_evaluation_rows
            check_selection(asked, self._held_out, least=least, party=self.name)
        check_chosen(self, request.gammas)
        columns, outputs = request.coefficients, request.coefficients.shape[1]
        if request.noise.size:
            columns = np.hstack([columns, request.factor])
        found = self.kernel.predict(columns, request.gammas)
        predictions, spread = found[:, :outputs], found[:, outputs:]
        if not table.classes:  # no label is beyond its bound
            predictions = np.nan_to_num(predictions)  # whether they are numbers must not show
            predictions = np.clip(predictions, -table.label_bound, table.label_bound)
        tests = self.places(asked) - table.rows
        deviations = np.zeros((len(tests), 0))
        if request.noise.size:
            deviations = np.sqrt(request.noise * (1.0 + (spread**2).sum(axis=1, keepdims=True)))
        self.write_predictions(tests, predictions, request.calibration, deviations)
        if not request.count:
            return wire.CoefficientsReply(plain=())
        total = "outcomes" if self._ordered("outcomes") else ""
        counts = self.outcomes(tests, predictions, request.bins, total=total)
        model = (request.coefficients, request.gammas)
        return wire.CoefficientsReply(plain=self._add("outcomes", counts, *model))

    # -- what the phases share

    @property
    def kernel(self) -> HospitalKernel:
        """The kernel of this hospital's rows."""
        rows = KernelRows(self.state_dir, self.session, self.partition, self.kept.landmarks)
        landmarks = self._landmarks if self.table.features else None
        return HospitalKernel(self.kept, rows, self.table.y, landmarks, self._distances)

    def _ordered(self, name: str) -> bool:
        return self.sums is not None and name in self.sums.orders

    def _take_distances(self) -> None:
        self.kernel.take({} if self.sums is None else self.sums.delivered)

    def _note_rows(self, request: wire.DistancesRequest) -> None:
        """Note which rows the request is about; at a hospital a kernel begins at position 0."""
        self._fix_rows(request)
        arrays = self.kept.arrays
        for (hospital, train, start, stop), rows in zip(request.parts, request.rows, strict=True):
            if hospital == self.partition and not start:
                arrays["rows"] = rows
                self.kept.settings |= {
                    "train": train,
                    "total": len(rows),
                    "alone": not stop,
                    "keep_training": request.keep_training,
                    "done": 0,
                }
                for name in ("gram", "right"):
                    arrays.pop(name, None)

    def _check_role(self) -> None:
        """Refuse to add a centre's zeros to a sum of hospitals: it may be that of a single one."""
        if self.role != HOSPITAL:
            raise self.wrong("it has no labels, so it adds nothing")

    def check_hospital(self, name: str, kernel: float, length: int | None = None) -> None:
        """Refuse to add what would be nothing, or of few rows, or to another sum than is meant.

        ``kernel`` is what a row's product with a kernel value cannot exceed.
        """
        self._check_role()
        self._check_share(self.kept.arrays["rows"][: self.kept.train])
        self._check_sum(name, self.kept.train * max(kernel, self.table.label_bound), length)

    def _go_on(self) -> None:
        """Take the kernel as far as it has arrived; go on with the whole, once a run has begun."""
        settings, begun = self.kept.settings, self.kept.begun
        if begun and "rows" in self.kept.arrays:
            self._take_distances()
        lacks = settings.get("done") != settings.get("total")
        if not begun or (self.role == HOSPITAL and lacks):
            raise StateError(
                "it has not the whole kernel of this run",
                remedy="it is sent again",
                party=self.name,
            )

    def _check_sum(self, name: str, bound: float, length: int | None = None) -> None:
        """Refuse a sum of hospitals that is not the one meant.

        ``bound`` is what no number of this node's vector can exceed.
        """
        if self._ordered(name):
            rule = replace(wider(bound), length=length)
            if self.budget is not None:
                rule = replace(rule, release=release_of(self, name), held_out=name == OUTCOMES)
            self.secure_sums.check(name, rule)

    def _add(self, name: str, vector: Floats, *model: Floats) -> tuple[Floats, ...]:
        """Contribute to a sum; without one return the vector, where that is allowed."""
        if self._ordered(name):
            rows = self.kept.arrays.get("rows", _NO_ROWS)
            release = "" if self.budget is None else asked(rows, *model)
            learned = rows[: self.kept.settings.get("train", 0)]
            self._note(name, _NO_ROWS if name == "outcomes" else learned)
            self.secure_sums.contribute(name, vector, release=release)
            return ()
        self._check_alone(name)
        return (vector,)

    def _check_alone(self, name: str) -> None:
        """Refuse to tell the server what no sum was ordered of, where that is not allowed."""
        if self._ordered(name):
            return
        if self.budget is not None:
            raise refusal("privacy: its own values would be sent without noise", self.name)
        if not self.allow_single:
            raise self.wrong(
                "its own values would be shown to the server: there is nobody to sum with",
                "let more hospitals take part, or allow it with allow_single",
            )

    def _add_mean_distance(self, request: wire.DistancesRequest, landmarks: Floats) -> None:
        """Contribute the mean distances of all training rows to the landmarks, added up."""
        if not self.kept.tunes:
            raise self.wrong("the width of this run is known: it needs no mean distance")
        rows, kernel = training_positions(request), self.kept.settings["kernel"]
        self._check_share(np.unique(rows))
        bound = len(rows) * self._distance_bound
        self.secure_sums.check(MEAN_DISTANCE, replace(wider(bound), length=1))
        self._note(MEAN_DISTANCE, rows)
        found = mean_distances(self.features_at(rows), landmarks, kernel)
        self.secure_sums.contribute(MEAN_DISTANCE, np.array([found.sum()]))

    @property
    def _distance_bound(self) -> float:
        """What no distance of this party's block is beyond."""
        return distance_bound(self.table.ranges, self.kept.settings["kernel"])

    def _distance_rule(self, receiver: int = -1) -> SumRule:
        """Return the rule of sums of distances: this block's are within its declared ranges."""
        if self.kept.fourier:
            return SumRule(CIRCLE, receiver)
        return replace(
            wider(self._distance_bound), receiver=receiver, rings=() if receiver < 0 else (32,)
        )

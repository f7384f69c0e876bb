"""The client of FedCG: a hospital with labels, or a centre with a block of features."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.encoding.encoder import merge_rows
from fedkern_flwr.errors import CheckpointError, StateError
from fedkern_flwr.guard import check_selection, check_size, counting, refusal
from fedkern_flwr.guard.freeze import FOLDS
from fedkern_flwr.guard.opened import Charge
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.landmarks import (
    EQUATIONS,
    MOST_LANDMARKS,
    SAMPLINGS,
    SEED_BYTES,
    SharedSecret,
    block_phases,
    check_seed_bytes,
    draw_block,
    draw_landmarks,
    label_weight,
    moment_sums,
    moments_length,
    read_moments,
    seed_fingerprint,
    session_digest,
)
from fedkern_flwr.hybrid.parties import CENTRE, HOSPITAL
from fedkern_flwr.judging.figures import OUTCOMES
from fedkern_flwr.kernels.product import (
    PRODUCT_KERNELS,
    distance_bound,
    mean_distances,
    partial_distances,
)
from fedkern_flwr.labels import balanced_weights, class_counts
from fedkern_flwr.node.client import Handler, answers
from fedkern_flwr.privacy import plan_release
from fedkern_flwr.secure_sum.crypto import derive_key, seal_message, unseal_message
from fedkern_flwr.secure_sum.membership import asked
from fedkern_flwr.solvers.least_squares import MOST_FOLDS, MOST_WIDTHS, pack_equations
from fedkern_flwr.wire import DescribeRequest, PhaseMessage

from .fed_cg_kernel import HospitalKernel, HybridTable, KernelRows, RunState
from .table_client import Floats, TableClient

BASES = ("landmarks", "fourier")
#: Landmarks drawn at once in deployments: smaller numbers are the first of these, in all runs.
SEQUENCE = 400
_SETTINGS = ("kernel", "landmarks", "basis", "sampling")
_UNIT = 1.0 + 1e-9
_NO_ROWS = np.zeros(0, np.int32)


class HybridKernelClient(TableClient):
    """A hospital or a centre in FedCG.

    A hospital has labels for its rows and perhaps a block of features; a centre has a block of
    features for rows of some or all hospitals. Rows may be in any order at each party.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context.
    x : array or data frame, shape (n, d), optional
        The party's block of features, within ``ranges``; None at a hospital without features.
    y : array, shape (n,) or (n, k), optional
        Labels; a party with labels (even of no rows) is a hospital.
    ids : sequence of length n, optional
        Record ids; without them rows cannot be joined.
    x_test, y_test, ids_test : arrays, optional
        Held-out rows of a hospital: predicted and, if labelled, counted.
    block : str (default: "clinical" at a hospital, "centre <partition>" at a centre)
        Name of the features. Parties with the same name hold the same columns of different rows.
    columns : sequence of str, optional
        Names of the features.
    ranges : array, shape (d, 2), optional
        Public least and greatest value of each feature; default [0, 1].
    classes : sequence of float or str, optional
        All classes, in the same order everywhere; y may have their names. Default: regression.
    label_bound : float (default: 1.0)
        Public bound of abs(y) in a regression.
    alignment_key : bytes or AlignmentTags, optional
        Joins ids: a secret of all parties, not of the server, or the result of an align run.
    landmark_seed : bytes, optional
        Secret of 32 bytes, the same at all holders of the block. By default a single holder draws
        one, and several agree on one during the run.
    predictions : path, optional
        CSV file that a hospital writes for its held-out rows: id, outputs, predicted class.
    **common
        Options of :class:`~fedkern_flwr.node.client.Client`; ``allow_single`` also lets a hospital
        without others send its normal equations to the server.

    Raises
    ------
    TableError
        Wrong shapes, NaN, values out of range, duplicate ids, unknown classes.
    OptionError
        A key that is too short.

    Notes
    -----
    Memory: a few times the kernel of the rows in one message, which the server keeps below 256 MB.
    """

    state_class = RunState
    kept: RunState
    table: HybridTable
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
        if landmark_seed is not None:
            check_seed_bytes(landmark_seed)
        super().__init__(context, x, y, table=partial(HybridTable, ranges=ranges), **common)
        self.role = HOSPITAL if y is not None else CENTRE
        self.labels_of_row = int(y is not None)
        default = "clinical" if y is not None else f"centre {self.partition}"
        self.block = default if block is None else block
        self.landmark_seed = landmark_seed

    def beside(self, name: str) -> Mapping[int, float]:
        """Return the centres' unknowns of a row, on which the normal equations depend too."""
        if not name.startswith("equations"):
            return {}
        return {int(p): unknowns for p, unknowns in self.record.beside.items()}

    @property
    def shows_rows(self) -> bool:
        return self.role == CENTRE

    def describe(self, request: DescribeRequest) -> wire.HybridDescribeReply:
        told = self._shared.told(request.session) if self.ledger.exists else ""
        if self.landmark_seed is not None:
            told = session_digest(self.landmark_seed, request.session)
        return self.tell(
            request,
            wire.HybridDescribeReply,
            block=self.block,
            seeded=self.landmark_seed is not None,
            square_bound=distance_bound(self.table.ranges, "rbf"),
            absolute_bound=distance_bound(self.table.ranges, "laplacian"),
            fold_rows=self.policy.min_own_rows,
            fold_sum_rows=self.policy.min_sum_rows,
            secret_digests=told,
        )

    def answer(self, request: Any, method: Any) -> Any:
        if isinstance(request, wire.DistancesRequest):
            self._begin(request)
        if isinstance(request, wire.RowsRequest):
            return method(request)
        self._check_role()
        makes = isinstance(request, wire.KernelRequest)
        if makes:
            self._take_own_rows(request)
        self._go_on()
        reply = method(request)
        return replace(reply, fingerprint=self._fingerprint()) if makes else reply

    def handlers(self) -> dict[str, tuple[type[PhaseMessage], Handler]]:
        found = super().handlers()
        return found | {own.phase: (own, found[phase][1]) for phase, own in wire.OWN.items()}

    # -- settings and rows

    def _begin(self, request: wire.KernelRequest) -> None:
        widths, fourier = request.fixed_gammas, request.basis == "fourier"
        fits = len(widths) in (1, request.landmarks) or not (request.model or len(widths))
        fits &= request.kernel in PRODUCT_KERNELS and request.sampling in SAMPLINGS
        fits &= bool((widths > 0.0).all()) and request.basis in BASES
        if fourier:
            fits &= len(widths) == 1 and request.sampling == "U" and request.landmarks % 2 == 0
        if not 0 <= request.landmarks <= MOST_LANDMARKS:
            raise refusal("landmarks that no run needs", code="FK-ORDER-SIZE")
        check_size(request.landmarks, self.table.features + 1)
        if not fits:
            raise self.wrong("a kernel or widths that no node makes", code="FK-ASKED-KERNEL")
        if self.budget is not None and not fourier:
            raise self.wrong(
                "with a budget of privacy features are of basis 'fourier' only",
                code="FK-BUDGET-OPTION",
            )
        kept = self.kept
        if kept.begun:
            return
        stated = self.landmark_seed is not None  # then all engines draw the same
        kept.settings["sequence"] = 0 if self.simulated or stated else SEQUENCE
        if request.model:
            self._remember(request)
        else:
            kept.seed = self._landmark_secret(request)
            if request.sampling in ("N", "C"):
                kept.arrays["moments"] = self._moments(request)
        kept.arrays["gammas"] = request.fixed_gammas
        kept.settings |= {
            **{name: getattr(request, name) for name in _SETTINGS},
            "model": request.model or request.session,
            "alike": request.alike,
        }

    def _fix_rows(self, request: wire.MomentsRequest | wire.DistancesRequest) -> None:
        """Refuse changed rows: sums that differ by one patient would reveal that one."""
        table, party = self.table, self.name
        if len(np.unique(request.hospitals)) < len(request.hospitals):
            raise refusal("rows of one hospital are named twice", code="FK-ORDER-ROWS")
        for hospital, train, start, stop, rows in request.parts:
            if not 0 <= train <= len(rows) or not 0 <= start <= stop <= len(rows):
                raise refusal("parts of rows that there are not", code="FK-ORDER-ROWS")
            if hospital == self.partition:
                check_selection(rows[:train], range(table.rows), party=party)
                check_selection(rows[train:], self._held_out, party=party)
            else:
                check_selection(rows, range(table.rows + table.tests), party=party)
            whole = wire.distances_sum(hospital, start, train)
            if self.budget is not None or self._ordered(whole):
                self._check_apart(hospital, rows)
            self._pin_rows(hospital, train, rows)
            self._note(f"rows of {hospital}", rows[:train])

    def _pin_rows(self, hospital: int, train: int, rows: NDArray[Any]) -> None:
        """Refuse other rows of a hospital than in an earlier request of the run."""
        text = b"%d/" % train + np.ascontiguousarray(rows, "<i4").tobytes()
        digest, name = hashlib.sha256(text).hexdigest(), f"rows of {hospital}"
        if not self.kept.pin(name, digest):
            raise refusal(
                "other rows are asked for than before in this run", code="FK-ORDER-CHANGED"
            )

    def _check_apart(self, hospital: int, rows: NDArray[Any]) -> None:
        """Refuse rows that are named for two hospitals: each moves the sums of both."""
        named = self.kept.arrays.get("named", np.zeros((0, 2), np.int64))
        mine = rows[rows >= 0]
        if np.isin(mine, named[named[:, 0] != hospital, 1]).any():
            raise refusal(
                "a row is asked for by two hospitals, which costs twice", code="FK-IDS-PARTIES"
            )
        if not (named[:, 0] == hospital).any():
            both = np.column_stack([np.full(len(mine), hospital), mine])
            self.kept.arrays["named"] = np.concatenate([named, both])

    @property
    def _held_out(self) -> range:
        return range(self.table.rows, self.table.rows + self.table.tests)

    def _check_share(self, rows: NDArray[Any]) -> None:
        """Refuse to sum fewer training rows than the node's owner allows."""
        last = self.table.rows + (0 if self.role == HOSPITAL else self.table.tests)
        check_selection(rows, range(last), least=self.policy.min_own_rows, party=self.name)

    def _note(self, purpose: str, rows: NDArray[Any], *, each: bool = False) -> None:
        if not self.simulated:
            self.note_rows(purpose, self.places(rows[rows >= 0]), each=each)

    # -- landmarks

    @answers(wire.MomentsRequest)
    def agree(self, request: wire.MomentsRequest) -> wire.MomentsReply:
        self._fix_rows(request)
        sealed = []
        if request.moments and request.sampling not in ("N", "C"):
            raise self.wrong(
                "moments are asked for of landmarks that need none", code="FK-ASKED-MORE"
            )
        # a row that two hospitals name counts once: repeated five times it would not be rare
        positions = np.unique(request.training_positions)
        for name in self._declared(request, len(positions)):
            self.secure_sums.order(name)  # refuses without a sum, before any row is read
            self._note(name, positions)
            self._check_share(positions)
            x = merge_rows(self.table.in_order(self.places(positions)), self.policy.min_sum_rows)
            self.secure_sums.contribute(name, moment_sums(x, self.table.ranges, request.sampling))
        for peer in (peers := request.peers.tolist()):
            self.kept.seed = self.kept.seed or self._own_secret(peers)
            place = ("landmarks", self.session, self.block, self.partition, peer)
            sealed.append(seal_message(self.pair_secret(peer), self.kept.seed, *place))
        return wire.MomentsReply(sealed=tuple(np.frombuffer(one, np.uint8) for one in sealed))

    def _landmark_secret(self, request: wire.KernelRequest) -> bytes:
        if self.landmark_seed is not None:
            return self.landmark_seed
        other, session, holders = request.seed_from, self.session, request.holders
        if request.lasting:
            return self._shared.take(b"", holders, lasting=True)[0]
        made = self.kept.seed or b""
        if request.sealed_seed.size:
            place = ("landmarks", session, self.block, other, self.partition)
            made = unseal_message(self.pair_secret(other), request.sealed_seed.tobytes(), *place)
        elif other >= 0:  # two holders derive it without an exchange
            made = derive_key(self.pair_secret(other), "landmarks", session, self.block)
        made = made or self._own_secret()
        if holders > 1:
            _, gone = self._shared.take(made, holders, lasting=False)
            self.kept.settings["passing"] = gone and holders == 2  # a later run derives another one
        return made

    @property
    def _shared(self) -> SharedSecret:
        place = self.ledger.lasting_secret(f"pair/{self.block}".encode())
        return SharedSecret.of(self.state_dir, place)

    def _own_secret(self, peers: Sequence[int] = ()) -> bytes:
        """Return an own secret, the same in all runs if the node has a folder.

        A repeated run then sums the same numbers, which reveals nothing new. Other peers get
        another secret: a former holder of the block would know the landmarks of later runs.
        """
        known = (self.secure_sums.party.trusted or {}) if peers else {}
        told = sorted(known.get(peer, b"%d" % peer).hex() for peer in peers)
        purpose = "/".join(["landmarks", self.block, *told])
        return self.ledger.lasting_secret(purpose.encode()) or secrets.token_bytes(SEED_BYTES)

    def _moments(self, request: wire.KernelRequest) -> Floats:
        sums, ranges, sampling = request.moments, self.table.ranges, request.sampling
        if not sums.size:
            rows = np.arange(self.table.rows)
            if isinstance(request, wire.DistancesRequest):
                rows = self.places(request.training_positions)
            sums = moment_sums(self.table.in_order(rows), ranges, sampling)
        if sums.shape != (moments_length(self.table.features, sampling),):
            raise self.wrong("moments of another number of features", code="FK-MESSAGE-SHAPE")
        return read_moments(sums, ranges, sampling)

    def _remember(self, request: wire.KernelRequest) -> None:
        path = self.saved_state(request.model, request.model_round)
        if path is not None and path.is_file():
            old = RunState.unpack(path.read_bytes())
            self.kept.borrow(old.seed)
            self.kept.settings["sequence"] = old.settings.get("sequence", 0)
            self.kept.arrays |= {k: v for k, v in old.arrays.items() if k == "moments"}
        elif self.landmark_seed and request.sampling == "U":
            self.kept.borrow(self.landmark_seed)
        else:
            raise CheckpointError(
                "the landmarks of the model are not known here any more", code="FK-KEPT-NONE"
            )

    def _landmarks(self) -> Floats:
        if not self.table.features:
            return np.zeros((self.kept.landmarks, 0))
        if self.kept.fourier:
            kernel, (gamma,) = self.kept.settings["kernel"], self.kept.arrays["gammas"]
            width = self.table.features
            return draw_block(self.kept.seed, self.kept.summed, width, kernel, float(gamma))
        moments = self.kept.arrays.get("moments")
        m, drawn = self.kept.landmarks, max(self.kept.landmarks, self.kept.settings["sequence"])
        return draw_landmarks(self.kept.seed, drawn, self.table.ranges, moments)[:m]

    def _fingerprint(self) -> bytes:
        model = str(self.kept.settings["model"])
        model += f"/{n}" if (n := self.kept.settings["sequence"]) else ""
        drawn_from = np.vstack([self.table.ranges.T, *self.kept.arrays.get("moments", ())])
        return seed_fingerprint(self.kept.seed, model, self.block, drawn_from)

    # -- distances, and the kernel that a hospital makes of them

    @answers(wire.DistancesRequest)
    def send_distances(self, request: wire.DistancesRequest) -> wire.DistancesReply:
        self._take_distances()
        self._fix_rows(request)
        for hospital, train, start, stop, rows in request.parts:
            if hospital == self.partition and not start:
                self._begin_rows(request, rows, train, alone=not stop)
        self._charge_centre()
        positions = request.training_positions
        self._declared(request, len(positions))
        landmarks = self._landmarks()
        if self._ordered(wire.PAIRS):
            self._add_pairs(request, landmarks)
        if self._ordered(wire.MEAN_DISTANCE):
            self._add_mean_distance(positions, landmarks)
        if self._ordered(wire.CLASS_COUNTS):
            self._add(wire.CLASS_COUNTS, self._training_counts())
        for hospital, train, start, stop, all_rows in request.parts:
            rows = all_rows[start:stop]
            name = wire.distances_sum(hospital, start, train)
            if not (whole := self._ordered(name)):
                name = wire.distances_sum(hospital, start, None)
            if not self._ordered(name):
                continue
            if hospital == self.partition:  # its own block is added later
                self._note_centres(name, whole=whole or start >= train)
                self.secure_sums.contribute_nothing(name)
            elif whole and (self.role != CENTRE or (all_rows[:train] < 0).any()):
                raise refusal(
                    "training rows that it lacks are said to be here", code="FK-ORDER-ROWS"
                )
            else:
                self._note(f"distances/{hospital}", rows, each=True)
                found = self._distances(rows, landmarks)
                self.secure_sums.contribute(name, found.reshape(-1), overwrite=True)
        return wire.DistancesReply(fingerprint=self._fingerprint())

    def _note_centres(self, name: str, *, whole: bool) -> None:
        """Note the columns that centres have for all training rows: they hide the rows, too.

        Centres state their number of columns when they sign their keys of the run.
        """
        state = self.secure_sums.party.state
        self.kept.settings["of"] = name.partition("#")[0]  # only totals of this sum are used
        if not whole:
            self.record.beside = {}
        elif name.endswith("#0"):
            members = state.cohorts[self.secure_sums.order(name).cohort].members
            self.record.beside = {
                str(p): counting.unknowns_of_bits(state.counts[p].bits)
                for p in members
                if p != self.partition
            }

    def _add_pairs(self, request: wire.DistancesRequest, landmarks: Floats) -> None:
        """Contribute this block's distances between landmarks, unless another holder does."""
        if self.kept.fourier:
            raise self.wrong(
                "features have no landmarks whose distances could be told", code="FK-ASKED-MORE"
            )
        self._note(wire.PAIRS, _NO_ROWS)
        if not request.landmark_pairs:
            self.secure_sums.contribute_nothing(wire.PAIRS)
            return
        square = partial_distances(landmarks, landmarks, self.kept.settings["kernel"])
        upper = square[np.triu_indices(len(square), 1)]
        self.secure_sums.contribute(wire.PAIRS, upper)

    def _add_mean_distance(self, rows: NDArray[Any], landmarks: Floats) -> None:
        if not self.kept.tunes:
            raise self.wrong(
                "the width of this run is known: it needs no mean distance", code="FK-ASKED-MORE"
            )
        self._check_share(np.unique(rows))
        self._note(wire.MEAN_DISTANCE, rows)
        x, kernel = self.table.in_order(self.places(rows)), self.kept.settings["kernel"]
        found = mean_distances(x, landmarks, kernel).sum()
        self.secure_sums.contribute(wire.MEAN_DISTANCE, np.array([found]))

    def _distances(self, rows: NDArray[Any], landmarks: Floats) -> Floats:
        held = rows >= 0
        out = np.zeros((len(rows), self.kept.summed))
        if self.table.features and held.any():
            x, kernel = self.features_at(rows[held]), self.kept.settings["kernel"]
            fourier = self.kept.fourier
            found = (
                block_phases(x, landmarks) if fourier else partial_distances(x, landmarks, kernel)
            )
            if held.all():
                return found
            out[held] = found
        return out

    @property
    def kernel(self) -> HospitalKernel:
        rows = KernelRows(self.state_dir, self.session, self.partition, self.kept.landmarks)
        landmarks = self._landmarks if self.table.features else None
        return HospitalKernel(self.kept, rows, self.table.y, landmarks, self._distances)

    def _take_distances(self) -> None:
        self.kernel.take({} if self.sums is None else self.sums.delivered)

    def _take_own_rows(self, request: wire.KernelRequest) -> None:
        if request.model:
            raise self.wrong("a saved model is made of no other rows", code="FK-ASKED-MORE")
        self._begin(request)
        train = self.table.rows
        rows = np.arange(train + self.table.tests, dtype=np.int32)
        self._pin_rows(self.partition, train, rows)
        if "rows" not in self.kept.arrays:  # otherwise the request is repeated
            self._begin_rows(request, rows, train, alone=True)

    def _begin_rows(
        self, request: wire.KernelRequest, rows: NDArray[Any], train: int, *, alone: bool
    ) -> None:
        kept = self.kept
        kept.arrays["rows"] = rows
        kept.settings |= {
            "train": train,
            "total": len(rows),
            "alone": alone,
            "keep_training": request.keep_training,
        }
        self.record.beside, kept.settings["of"] = {}, ""
        kept.begin_kernel()

    def _go_on(self) -> None:
        settings, begun = self.kept.settings, self.kept.begun
        if begun and "rows" in self.kept.arrays:
            self._take_distances()
        lacks = settings.get("done") != settings.get("total")
        if not begun or (self.role == HOSPITAL and lacks):
            raise StateError(
                "it has not the whole kernel of this run",
                remedy="it is sent again",
                code="FK-STATE-GONE",
            )

    # -- sums over the hospitals

    @answers(wire.EquationsRequest)
    def send_equations(self, request: wire.EquationsRequest) -> wire.EquationsReply:
        kept, table = self.kept, self.table
        self.record.helped = True
        rows = kept.arrays["rows"][: kept.train]
        self._check_share(rows)
        if not kept.tunes and (request.gammas.size or request.folds != 1):
            raise self.wrong(
                "the width of this run is known: there is none to choose", code="FK-ASKED-MORE"
            )
        weights = self._check_tuning(request) if kept.tunes else None
        (name,) = self._declared(request, kept.train)
        if kept.tunes:
            if request.folds > 1:
                self._check_folds(name, request.folds)
            fold = self._folds(self.places(rows), request.folds)
            vector = self.kernel.tuning_sums(request.gammas, fold, request.folds, weights)
            if self._ordered(name):
                known = kept.function(request, self.block, table.ranges)
                self.secure_sums.functions[name] = known
        else:
            m, outputs = kept.landmarks, table.y.shape[1]
            check_size(m, m)
            gram = kept.arrays.setdefault("gram", np.zeros((m, m)))  # without training rows
            right = kept.arrays.setdefault("right", np.zeros((m, outputs)))
            if self.budget is not None:  # labels of length 1/2 need less noise
                right = right * label_weight(table.label_bound, outputs)
            vector = pack_equations(gram, right)
        return wire.EquationsReply(plain=self._add(name, vector))

    def _check_tuning(self, request: wire.EquationsRequest) -> Floats | None:
        """Refuse widths and folds that may not be tried; return the training rows' weights.

        Raises
        ------
        RefusedError, ProtocolError
            The request exceeds what may be released, or has changed.
        """
        gammas, folds = request.gammas, request.folds
        few = 1 <= len(gammas) <= MOST_WIDTHS and 1 <= folds <= MOST_FOLDS
        if not few or not (gammas > 0.0).all():
            raise refusal(
                f"more than {MOST_WIDTHS} widths or {MOST_FOLDS} folds", code="FK-TUNE-MANY"
            )
        if gammas.shape[1] not in (1, self.kept.landmarks):
            raise self.wrong(
                "the widths to choose from do not fit the landmarks", code="FK-ASKED-KERNEL"
            )
        digest = hashlib.sha256(gammas.astype("<f8").tobytes()).hexdigest()
        choice = [folds, digest, request.balanced, request.class_counts.tolist()]
        if not self.kept.pin("tuned", choice):
            raise refusal(
                "other widths or folds are asked for than before in this run",
                code="FK-ORDER-CHANGED",
            )
        # only for the first counts: repeated guesses would reveal labels
        return self._class_weights(request)

    def _folds(self, rows: NDArray[Any], folds: int) -> NDArray[np.intp]:
        """Deal training rows to folds: those of the node's freeze, the same in all runs.

        In simulations, and for more folds than the freeze has, by keyed hashes of ids.
        """
        parts = None if self.budget else self.ledger.parts(self.session)
        if parts is None or folds > FOLDS:
            fold = self.table.folds(rows, folds, self.alignment_key)
        else:
            fold = (parts[rows] - 1).astype(np.intp) % folds
        if parts is not None and folds > 1:
            self.note_parts("equations", [rows[fold == k] for k in range(folds)])
        return fold

    def _training_counts(self) -> Floats:
        if not self.kept.tunes or not self.table.classes:
            raise self.wrong(
                "the rows of this run are not weighed by their classes", code="FK-ASKED-MORE"
            )
        self._check_role()
        self._check_share(self.kept.arrays["rows"][: self.kept.train])
        return class_counts(self.kernel.targets())

    def _class_weights(self, request: wire.EquationsRequest) -> Floats | None:
        """Return the class weights of the training rows, None if all are equal.

        Counts made up by a server could let single rows outweigh all others in a sum.
        """
        counts = request.class_counts
        if not request.balanced:
            return None
        if not self.table.classes:
            raise self.wrong(
                "classes are to be balanced, and the labels are numbers", code="FK-WEIGHTS-NUMBERS"
            )
        y = self.kernel.targets()
        own, rows = class_counts(y), float(len(y))
        name = wire.equations_sum(request)
        if self._ordered(name):
            rows = float(sum(self.secure_sums.rows(name)))
        elif not counts.size:
            counts = own
        fits = counts.shape == own.shape and counts.sum() == rows
        if not fits or not ((own <= counts) & (counts <= rows - own.sum() + own)).all():
            raise refusal("counts of classes that its rows contradict", code="FK-WEIGHTS-COUNTS")
        return balanced_weights(y, counts)

    def _check_folds(self, name: str, folds: int) -> None:
        """Refuse folds of few rows or few hospitals: their sums are released one by one."""
        policy, own = self.policy, self.kept.train // folds
        if self.kept.train > 0 and own < policy.min_own_rows:
            raise refusal(
                f"min_own_rows = {policy.min_own_rows}: a fold has {own}", code="FK-POLICY-OWN-ROWS"
            )
        if not self._ordered(name):
            return  # a single hospital, which allows it
        others = [rows // folds for rows in self.secure_sums.rows(name)]
        least = policy.least_parties(self.enough_parties)
        if sum(rows > 0 for rows in others) < least:
            raise refusal(
                f"min_parties = {least}: a fold has rows of fewer", code="FK-POLICY-PARTIES"
            )
        if sum(others) < policy.min_sum_rows:
            raise refusal(
                f"min_sum_rows = {policy.min_sum_rows}: a fold has fewer", code="FK-POLICY-SUM-ROWS"
            )

    def _check_chosen(self, gammas: Floats) -> None:
        tunes, known = self.kept.tunes, self.kept.arrays["gammas"]
        fits = len(gammas) in (1, self.kept.landmarks) and bool((gammas > 0.0).all())
        if not (fits if tunes else not gammas.size or np.array_equal(gammas, known)):
            raise self.wrong(
                "the width of the model is not that of this run", code="FK-SETTINGS-CHANGED"
            )

    @answers(wire.ProductRequest)
    def send_product(self, request: wire.ProductRequest) -> wire.ProductReply:
        self.record.helped = True
        if not (np.linalg.norm(request.directions, axis=0) <= _UNIT).all():
            raise refusal("directions longer than one", code="FK-ASKED-MORE")
        if self.kept.tunes:
            raise self.wrong(
                "the width of this run is not known: there are no products", code="FK-MESSAGE-ORDER"
            )
        self._check_share(self.kept.arrays["rows"][: self.kept.train])
        (name,) = self._declared(request, self.kept.train)
        vector = self.kernel.products(request.directions, labels=request.labels)
        return wire.ProductReply(plain=self._add(name, vector, request.directions))

    @answers(wire.CoefficientsRequest)
    def take_coefficients(self, request: wire.CoefficientsRequest) -> wire.CoefficientsReply:
        """Predict the held-out rows, write the predictions here, count the outcomes."""
        kept, table = self.kept, self.table
        asked = kept.arrays["rows"][kept.train :]
        if request.count:
            self._check_alone(OUTCOMES)
            if self.budget is not None and request.bins:
                raise refusal(
                    "privacy: histograms without noise are asked for", code="FK-BUDGET-FIGURES"
                )
            least = self.policy.min_evaluation_rows
            check_selection(asked, self._held_out, least=least, party=self.name)
        self._declared(request, kept.train, len(asked))
        self._check_chosen(request.gammas)
        columns, outputs = request.coefficients, request.coefficients.shape[1]
        if request.noise.size:
            columns = np.hstack([columns, request.factor])
        found = self.kernel.predict(columns, request.gammas)
        predictions, spread = found[:, :outputs], found[:, outputs:]
        if not table.classes:  # labels are within their bound
            predictions = np.nan_to_num(predictions)  # NaN must not show
            predictions = np.clip(predictions, -table.label_bound, table.label_bound)
        tests = self.places(asked) - table.rows
        deviations = np.zeros((len(tests), 0))
        if request.noise.size:
            deviations = np.sqrt(request.noise * (1.0 + (spread**2).sum(axis=1, keepdims=True)))
        self.write_predictions(tests, predictions, request.calibration, deviations)
        if not request.count:
            return wire.CoefficientsReply(plain=())
        total = OUTCOMES if self._ordered(OUTCOMES) else ""
        trained = self.record.helped or self.simulated  # lost when a simulation breaks off
        counts = self.outcomes(tests, predictions, request.bins, total=total, trained=trained)
        model = (request.coefficients, request.gammas)
        return wire.CoefficientsReply(plain=self._add(OUTCOMES, counts, *model))

    # -- what a sum of hospitals may be

    def _facts(self, rows: int, tests: int = 0) -> wire.Facts:
        """Return this party's facts about its sums, with its own numbers of rows.

        The noise of a sum follows from the rows that its parties signed. Predictions with a saved
        model have none: a run with a budget refuses sums without it.
        """
        table, kept = self.table, self.kept
        orders = {} if self.sums is None else self.sums.orders
        kernel = kept.settings.get("kernel", "rbf")  # the moments come before the kernel
        budget, signed = None, list[tuple[int, int]]()
        if orders and kept.fourier and kept.settings["model"] == self.session:
            state = self.secure_sums.party.state
            cohort = state.cohorts[next(iter(orders.values())).cohort]
            budget, signed = self.budget, [state.counts[p][:2] for p in cohort.members]
        return wire.Facts(
            landmarks=kept.settings.get("landmarks", 0),
            labels=self.yardstick(0),
            rows=(rows,),
            tests=(tests,),
            block=self.block,
            features=table.features,
            distance=distance_bound(table.ranges, kernel),
            budget=budget,
            signed=signed,
            wanted=orders,
            cohorts=defaultdict(int),
            counted=kept.settings.get("train", 0),
        )

    def _declared(self, request: wire.HybridRequest, rows: int, tests: int = 0) -> list[str]:
        sums = request.sum_specs(self._facts(rows, tests))
        if self.sums is not None:
            self.sums.check_all(sums)
        return [one.name for one in sums]

    def _ordered(self, name: str) -> bool:
        return self.sums is not None and name in self.sums.orders

    def _check_role(self) -> None:
        """Refuse to add a centre's zeros to a sum of hospitals: it could be one hospital's own."""
        if self.role != HOSPITAL:
            raise self.wrong("it has no labels, so it adds nothing", code="FK-ASKED-MORE")

    def _add(self, name: str, vector: Floats, *model: Floats) -> tuple[Floats, ...]:
        """Contribute to a sum; without one return the vector, if that is allowed."""
        if self._ordered(name):
            rows = self.kept.arrays.get("rows", _NO_ROWS)
            release = "" if self.budget is None else asked(rows, *model)
            learned = rows[: self.kept.settings.get("train", 0)]
            self._note(name, _NO_ROWS if name == OUTCOMES else learned)
            common = self._common(name, *model)
            self.secure_sums.contribute(name, vector, release=release, common=common)
            return ()
        self._check_alone(name)
        return (vector,)

    def _common(self, name: str, *asked_for: Floats) -> bytes:
        """Return the digest of what determines the summed function of a row.

        If some nodes sum the function of an earlier run and others a new one, the difference of the
        runs' sums covers only the latter's rows. So masks cancel only if all sum the same. If
        hospitals may have other landmarks, this one counts only its own rows.
        """
        if not name.startswith(EQUATIONS):
            return b""
        kept = self.kept
        alike = bool(kept.settings.get("alike"))
        self.rows_chosen = bool(kept.settings["alone"]) and not alike
        if not alike:
            return b""
        drawn = json.dumps([kept.settings[name] for name in _SETTINGS])
        about = (kept.arrays["gammas"], *asked_for)
        return asked(drawn, self._fingerprint(), *map(np.ascontiguousarray, about)).encode()

    def _check_alone(self, name: str) -> None:
        """Refuse to send the server values outside of a sum, unless allowed."""
        if self._ordered(name):
            return
        if self.budget is not None:
            raise refusal(
                "privacy: its own values would be sent without noise", code="FK-BUDGET-ALONE"
            )
        if not self.allow_single:
            raise self.wrong(
                "its own values would be shown to the server: there is nobody to sum with",
                "let more hospitals take part, or allow it with allow_single",
                code="FK-ALONE-REFUSED",
            )

    def _charge_centre(self) -> None:
        """Charge a centre's rows for the whole run: the hospitals' releases contain them.

        The centre cannot verify a claim that the hospitals only predict.
        """
        budget = self.budget
        if budget is None or self.role != CENTRE:
            return
        least = budget.colluders + 1
        whole = plan_release("run", budget, sensitivity=1.0, length=1, parties=least, least=least)
        self.secure_sums.charges.append(Charge(self.session.encode(), whole))

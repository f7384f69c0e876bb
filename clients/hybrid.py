"""The client of FedCG: a hospital with labels, or a centre with a block of features."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.alignment import AlignmentKey, check_alignment_key
from fedkern_flwr.errors import (
    CheckpointError,
    OptionError,
    ProtocolError,
    StateError,
)
from fedkern_flwr.guard import SumRule, check_selection, refusal
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.hybrid import CENTRE, HOSPITAL
from fedkern_flwr.labels import count_outcomes, largest_count
from fedkern_flwr.landmarks import (
    SAMPLINGS,
    array_fingerprint,
    check_seed_bytes,
    draw_landmarks,
    moment_sums,
    public_seed,
    read_moments,
    seed_fingerprint,
)
from fedkern_flwr.least_squares import pack_equations
from fedkern_flwr.method import AnsweringClient, answers
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.online import check_choice
from fedkern_flwr.product_kernel import (
    PRODUCT_KERNELS,
    distance_bound,
    kernel_from_distances,
    partial_distances,
    row_chunks,
)
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.envelope import derive_key, seal_message, unseal_message
from fedkern_flwr.wire import DescribeRequest, columns_digest
from fedkern_flwr.wire import hybrid as wire

from .chain import make_hops
from .hybrid_state import RunState
from .hybrid_table import HybridTable
from .kernel_rows import KernelRows
from .party_table import Floats, Ids

Protocol = Literal["secure", "naive", "chain"]
PROTOCOLS = ("secure", "naive", "chain")
_SEED_BYTES = 32
_UNIT = 1.0 + 1e-9
_ROUNDED = 1.0 + 5e-10  # less than what strategies allow for rounding
_NO_ROWS = np.zeros(0, np.int32)


class HybridKernelClient(AnsweringClient):
    """A hospital or a centre in FedCG.

    A hospital has labels for its rows and perhaps a block of features; a centre has a block of
    features for rows of some or all hospitals. Rows may stand in any order at each party.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context.
    x : array, shape (n, d), optional
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
    classes : sequence of float, optional
        All classes of a classification; without them y holds the targets of a regression.
    label_bound : float (default: 1.0)
        Public bound of abs(y) in a regression.
    alignment_key : bytes or AlignmentTags, optional
        Secret of all parties that share records, not of the server: joins ids. Or what each of
        them has of one align run.
    landmark_seed : bytes, optional
        Secret of 32 bytes, the same at all holders of the block. Without it a single holder draws
        one, and several agree on one during the run.
    landmarks : array, shape (m, d), optional
        The block's slice of landmarks that were chosen elsewhere (sampling P), where data may be
        pooled.
    protocol : {"secure", "naive", "chain"} (default: "secure")
        The only protocol in which this node takes part. ``naive`` shows the block's kernel and the
        labels to the server, ``chain`` shows most of it to the other parties.
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
        A key that is too short, an unknown protocol.

    Notes
    -----
    Memory: a few times the kernel of the rows asked for in one message, which the server keeps
    below 256 MB.
    """

    state_class = RunState
    kept: RunState
    pair_secrets: ClassVar[bool] = True
    whole_cohorts: ClassVar[bool] = True
    enough_parties: ClassVar[int] = 2
    without_secret: ClassVar[str] = "configure the landmark seed at all holders of the block"

    def __init__(
        self,
        context: Context,
        x: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        ids: Ids | None = None,
        x_test: ArrayLike | None = None,
        y_test: ArrayLike | None = None,
        ids_test: Ids | None = None,
        block: str | None = None,
        columns: Sequence[str] | None = None,
        ranges: ArrayLike | None = None,
        classes: Sequence[float] | None = None,
        label_bound: float = 1.0,
        alignment_key: AlignmentKey | None = None,
        landmark_seed: bytes | None = None,
        landmarks: ArrayLike | None = None,
        protocol: Protocol = "secure",
        predictions: str | Path | None = None,
        **common: Any,
    ) -> None:
        super().__init__(context, **common)
        check_choice("protocol", protocol, PROTOCOLS)
        if landmark_seed is not None:
            check_seed_bytes(landmark_seed)
        if not 0.0 < label_bound < np.inf:
            raise OptionError(f"label_bound is {label_bound}", remedy="use a positive number")
        self.role = HOSPITAL if y is not None else CENTRE  # type: ignore[misc]
        default = "clinical" if y is not None else f"centre {self.partition}"
        self.block = default if block is None else block
        self.protocol, self.landmark_seed, self.alignment_key = (
            protocol,
            landmark_seed,
            alignment_key,
        )
        self.predictions = None if predictions is None else Path(predictions)
        self.table = HybridTable(
            self.name,
            x,
            y,
            ids,
            x_test,
            y_test,
            ids_test,
            columns=columns,
            ranges=ranges,
            classes=classes or (),
            label_bound=1.0 if classes else label_bound,
        )
        if alignment_key is not None:
            check_alignment_key(alignment_key)
        elif self.table.identified:
            raise OptionError(
                "ids are joined by keyed hashes, and there is no alignment key",
                remedy="give all parties that share records the same alignment_key, or pass no ids",
                party=self.name,
            )
        self.landmarks = None if landmarks is None else self.table.check_landmarks(landmarks)

    # -- phases

    def own_rows(self) -> OwnRows:
        """Return the rows of the table."""
        return self.table.own_rows()

    def describe(self, request: DescribeRequest) -> wire.HybridDescribeReply:
        """Tell who this is; see the message."""
        table = self.table
        table.check_ids(request.session, self.alignment_key)
        with self.keeping(request.session):
            self.check_table(table.digest())
            order = table.order(request.session, self.alignment_key)
            self.kept.arrays["order"] = order.astype(np.int32)
        return wire.HybridDescribeReply(
            partition=self.partition,
            partitions=self.partitions,
            role=self.role,
            rows=table.rows,
            features=table.features,
            test_rows=table.tests,
            columns=columns_digest(table.columns),
            restored=self.restored,
            block=self.block,
            seeded=self.landmark_seed is not None or self.landmarks is not None,
            square_bound=distance_bound(table.ranges, "rbf"),
            absolute_bound=distance_bound(table.ranges, "laplacian"),
            outputs=table.y.shape[1],
            classes=len(table.classes),
            labels=columns_digest(map(str, table.classes)),
            label_bound=table.label_bound,
            labelled=table.labelled,
            allow_single=self.allow_single,
            ids=table.pseudonyms(request.session, self.alignment_key),
        )

    def answer(self, request: Any, method: Any) -> Any:
        """Take up the settings, or the distances that come along, before a handler is called."""
        if isinstance(request, wire.LandmarksRequest):
            self._begin(request)
        elif not isinstance(request, wire.MomentsRequest):
            self._go_on()
        return method(request)

    @answers(wire.MomentsRequest)
    def agree(self, request: wire.MomentsRequest) -> wire.MomentsReply:
        """Add up the moments of the block; draw and seal its secret, if it falls to this party."""
        self._fix_rows(request)
        plain, sealed = np.zeros(0), []
        if request.moments:
            positions, name = _training_positions(request), f"moments/{self.block}"
            self._note(name, positions)
            if self.protocol == "secure":
                self.secure_sums.check(name, _wider(len(positions)))
            self._check_share(np.unique(positions))
            plain = moment_sums(self._features(positions), self.table.ranges)
            if self.protocol == "secure":
                self.secure_sums.contribute(name, plain)
                plain = plain[:0]
        for peer in request.peers.tolist():
            self.kept.seed = self.kept.seed or secrets.token_bytes(_SEED_BYTES)
            place = ("landmarks", self.session, self.block, self.partition, peer)
            secret = seal_message(self.pair_secret(peer), self.kept.seed, *place)
            sealed.append(np.frombuffer(secret, np.uint8))
        return wire.MomentsReply(plain=plain, sealed=tuple(sealed))

    @answers(wire.DistancesRequest)
    def send_distances(self, request: wire.DistancesRequest) -> wire.DistancesReply:
        """Contribute partial distances; take the totals of an earlier part that come along."""
        self._take_distances()
        self._note_rows(request)
        landmarks = self._landmarks()
        orders = {} if self.sums is None else self.sums.orders
        if "landmark pairs" in orders:
            self.secure_sums.check("landmark pairs", self._distance_rule())
            self._note("landmark pairs", _NO_ROWS)
            if request.landmark_pairs:
                square = partial_distances(landmarks, landmarks, self.kept.settings["kernel"])
                pairs = square[np.triu_indices(len(square), 1)]
                self.secure_sums.contribute("landmark pairs", pairs)
            else:  # another holder of the block adds it
                self.secure_sums.contribute_nothing("landmark pairs")
        for k, hospital in enumerate(request.hospitals.tolist()):
            rows = request.rows[k][int(request.starts[k]) : int(request.stops[k])]
            name = f"distances/{hospital}#{request.starts[k]}"
            if name not in orders:
                continue
            rule = self._distance_rule(receiver=hospital)
            self.secure_sums.check(name, replace(rule, length=len(rows) * self.kept.landmarks))
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
        self._check_hospital("equations", 1.0)
        m, outputs = self.kept.landmarks, self.table.y.shape[1]
        gram = self.kept.arrays.setdefault("gram", np.zeros((m, m)))  # without training rows
        right = self.kept.arrays.setdefault("right", np.zeros((m, outputs)))
        return wire.EquationsReply(plain=self._add("equations", pack_equations(gram, right)))

    @answers(wire.ProductRequest)
    def send_product(self, request: wire.ProductRequest) -> wire.ProductReply:
        """Contribute K_h^T (K_h P); with ``labels`` K_h^T y_h before it."""
        if not (np.linalg.norm(request.directions, axis=0) <= _UNIT).all():
            raise refusal("directions longer than one", self.name)
        self._check_hospital("product", np.sqrt(self.kept.landmarks))
        train, y = self.kept.train, self.kernel_targets()
        kernel = self._kernel_rows().read(0, train)
        out = np.zeros(request.directions.shape)
        right = np.zeros((len(out), y.shape[1] if request.labels else 0))
        for part in row_chunks(train, len(out)):
            k = np.asarray(kernel[part])
            out += k.T @ (k @ request.directions)
            if request.labels:
                right += k.T @ y[part]
        vector = np.concatenate([right.ravel(), out.ravel()])
        return wire.ProductReply(plain=self._add("product", vector))

    @answers(wire.CoefficientsRequest)
    def take_coefficients(self, request: wire.CoefficientsRequest) -> wire.CoefficientsReply:
        """Predict the held-out rows, keep the predictions here, count how good they are."""
        kept, table = self.kept, self.table
        if len(request.predictions) and self.protocol == "secure":
            raise ProtocolError(
                "a node makes its predictions itself in protocol 'secure'", party=self.name
            )
        self._check_role()
        asked = kept.arrays["rows"][kept.train :]
        if request.count:
            self._check_sum("outcomes", len(asked) * largest_count(table.classes))
            least = self.policy.min_evaluation_rows
            check_selection(asked, self._held_out, least=least, party=self.name)
        predictions = kept.arrays.get("predictions", request.predictions)
        if not len(predictions):
            kernel = self._kernel_rows().read(kept.train, kept.total)
            predictions = np.asarray(kernel @ request.coefficients)
        tests = kept.arrays["order"][asked] - table.rows
        if self.predictions is not None:
            table.write_predictions(self.predictions, tests, predictions)
        if not request.count:
            return wire.CoefficientsReply(plain=())
        targets = table.y_test[tests] if table.labelled else predictions[:0]
        counts = count_outcomes(
            predictions[: len(targets)], targets, len(table.classes), table.label_bound
        )
        ordered = self.sums is not None and "outcomes" in self.sums.orders
        counts = self.figures("outcomes", tests, counts, total="outcomes" if ordered else "")
        return wire.CoefficientsReply(plain=self._add("outcomes", counts))

    @answers(wire.BlocksRequest)
    def send_blocks(self, request: wire.BlocksRequest) -> wire.BlocksReply:
        """Naive protocol (section 2.2): show this block's kernel and the labels to the server."""
        self._note_rows(request)
        return wire.BlocksReply(
            fingerprint=self._fingerprint(),
            targets=self.kernel_targets() if self.role == HOSPITAL else np.zeros((0, 0)),
            blocks=tuple(self.block_kernel(rows) for rows in request.rows),
        )

    @answers(wire.ChainRequest)
    def send_hops(self, request: wire.ChainRequest) -> wire.ChainReply:
        """Chain protocol (Algorithms 1 and 2): this party's hops; see :mod:`.chain`."""
        return make_hops(self, request)

    def close_round(self, state: SessionState, *done: Any) -> None:
        """Keep the state; on disk as well, if there is a place and the request says so."""
        super().close_round(state, *done)
        if save_as := getattr(self._request, "save_as", 0):
            self._save(state, save_as)

    def forget(self, state: SessionState) -> bytes:
        """Erase the kernel rows and all else at the end of a run."""
        KernelRows(self.state_dir, state.session, self.partition, 1).erase()
        return b""

    # -- what the phases share

    @property
    def session(self) -> str:
        """Name of the run of the message at hand."""
        return str(self._request.session)

    @property
    def _secure(self) -> bool:
        """Whether values leave in sums only: this node or the run says so."""
        return "secure" in (self.protocol, self.kept.settings.get("protocol"))

    def _begin(self, request: wire.LandmarksRequest) -> None:
        """Take up the settings of a run; a request that is repeated finds them again."""
        if request.variant != self.protocol:
            raise ProtocolError(
                f"this node takes part in runs with protocol {self.protocol!r} only, not "
                f"{request.variant!r}",
                remedy=f"start it with protocol={request.variant!r}"
                + ("" if request.variant == "secure" else ", knowing what that shows"),
                party=self.name,
            )
        if self.protocol != "naive" and isinstance(request, wire.BlocksRequest):
            raise ProtocolError(
                "kernel blocks and labels leave a node in protocol 'naive' only", party=self.name
            )
        if self.protocol == "secure" and request.public_seed >= 0:
            raise ProtocolError(
                "landmarks that everybody knows are not for protocol 'secure'", party=self.name
            )
        known = request.kernel in PRODUCT_KERNELS and request.sampling in SAMPLINGS
        fits = len(request.gammas) in (1, request.landmarks) and (request.gammas > 0.0).all()
        if not known or not fits:
            raise ProtocolError("the kernel or its widths do not fit", party=self.name)
        kept = self.kept
        if kept.begun:
            return
        if request.model:
            self._remember(request)
        else:
            kept.seed = self._landmark_secret(request)
            if request.sampling == "N":
                kept.arrays["moments"] = self._moments(request)
        kept.arrays["gammas"] = request.gammas
        kept.settings |= {
            "model": request.model or request.session,
            "kernel": request.kernel,
            "landmarks": request.landmarks,
            "sampling": request.sampling,
            "protocol": request.variant,
            "public_seed": request.public_seed,
        }

    def _note_rows(self, request: wire.LandmarksRequest) -> None:
        """Note which rows the request is about; at a hospital a kernel begins at position 0."""
        self._fix_rows(request)
        arrays = self.kept.arrays
        for k, hospital in enumerate(request.hospitals.tolist()):
            if request.variant == "chain":
                arrays[f"rows/{hospital}"] = request.rows[k]
            if hospital == self.partition and not request.starts[k]:
                arrays["rows"] = request.rows[k]
                self.kept.settings |= {
                    "train": int(request.trains[k]),
                    "total": len(request.rows[k]),
                    "alone": not request.stops[k],
                    "keep_training": request.keep_training,
                    "done": 0,
                }
                for name in ("gram", "right"):
                    arrays.pop(name, None)

    def _fix_rows(self, request: wire.MomentsRequest | wire.LandmarksRequest) -> None:
        """Refuse other rows than before: sums that differ by one patient would show that one."""
        table, party = self.table, self.name
        for hospital, rows, train, start, stop in zip(
            request.hospitals.tolist(),
            request.rows,
            request.trains.tolist(),
            request.starts.tolist(),
            request.stops.tolist(),
            strict=True,
        ):
            if not 0 <= train <= len(rows) or not 0 <= start <= stop <= len(rows):
                raise refusal("parts of rows that there are not", party)
            if hospital == self.partition:
                check_selection(rows[:train], range(table.rows), party=party)
                check_selection(rows[train:], self._held_out, party=party)
            else:
                check_selection(rows, range(table.rows + table.tests), party=party)
            text = b"%d/" % train + np.ascontiguousarray(rows, "<i4").tobytes()
            digest, name = hashlib.sha256(text).hexdigest(), f"rows of {hospital}"
            if self.kept.settings.setdefault(name, digest) != digest:
                raise refusal("other rows are asked for than before in this run", party)
            self._note(name, rows[:train])

    @property
    def _held_out(self) -> range:
        """Positions of held-out rows among those that are announced."""
        return range(self.table.rows, self.table.rows + self.table.tests)

    def _check_role(self) -> None:
        """Refuse at a centre what is asked of hospitals: its zeros would show a single one's sum.

        Raises
        ------
        ProtocolError
        """
        if self.role != HOSPITAL:
            raise ProtocolError("it has no labels, so it adds nothing", party=self.name)

    def _check_hospital(self, name: str, kernel: float) -> None:
        """Refuse to add what would be nothing, or of few rows, or to another sum than is meant.

        ``kernel`` is what a row's product with a kernel value cannot exceed.
        """
        self._check_role()
        if self._secure:
            self._check_share(self.kept.arrays["rows"][: self.kept.train])
        self._check_sum(name, self.kept.train * max(kernel, self.table.label_bound))

    def _check_share(self, rows: NDArray[Any]) -> None:
        """Refuse to stand in a sum with fewer training rows than the node's owner allows."""
        least = self.policy.min_own_rows
        among = range(
            self.table.rows if self.role == HOSPITAL else self.table.rows + self.table.tests
        )
        check_selection(rows, among, least=least, party=self.name)

    def _note(self, purpose: str, rows: NDArray[Any], *, each: bool = False) -> None:
        """Note what is made of which announced rows; -1 is a row that is not held."""
        if not self.simulated:
            self.note_rows(purpose, self.kept.arrays["order"][rows[rows >= 0]], each=each)

    def _go_on(self) -> None:
        """Take the kernel as far as it has arrived, in a run that has begun.

        Raises
        ------
        StateError
            Some of it is missing.
        """
        settings, needed = self.kept.settings, self.role == HOSPITAL and self._secure
        if self.kept.begun and "rows" in self.kept.arrays and self._secure:
            self._take_distances()
        if not self.kept.begun or (needed and settings.get("done") != settings.get("total")):
            raise StateError(
                "it has not the whole kernel of this run",
                remedy="it is sent again",
                party=self.name,
            )

    def _check_sum(self, name: str, bound: float) -> None:
        """Refuse a sum of hospitals that is not the one meant.

        ``bound`` is what no number of this node's vector can exceed.
        """
        if self.sums is not None and name in self.sums.orders:
            self.sums.check(name, _wider(bound))

    def _add(self, name: str, vector: Floats) -> tuple[Floats, ...]:
        """Contribute to a sum; without one return the vector, where that is allowed."""
        if self.sums is not None and name in self.sums.orders:
            learned = self.kept.arrays.get("rows", _NO_ROWS)[: self.kept.settings.get("train", 0)]
            self._note(name, _NO_ROWS if name == "outcomes" else learned)
            self.sums.contribute(name, vector)
            return ()
        if self._secure and not self.allow_single:
            raise ProtocolError(
                "its own values would be shown to the server: there is nobody to sum with",
                remedy="let more hospitals take part, or allow it with allow_single",
                party=self.name,
            )
        return (vector,)

    def _distance_rule(self, receiver: int = -1) -> SumRule:
        """Return the rule of sums of distances: this block's are within its declared ranges."""
        bound = distance_bound(self.table.ranges, self.kept.settings["kernel"])
        return replace(_wider(bound), receiver=receiver, rings=() if receiver < 0 else (32,))

    # -- landmarks

    def _landmark_secret(self, request: wire.LandmarksRequest) -> bytes:
        if request.public_seed >= 0:
            return public_seed(request.public_seed, self.block)
        if self.landmark_seed is not None:
            return self.landmark_seed
        other, session = request.seed_from, self.session
        if request.sealed_seed.size:
            place = ("landmarks", session, self.block, other, self.partition)
            return unseal_message(self.pair_secret(other), request.sealed_seed.tobytes(), *place)
        if other >= 0:
            return derive_key(self.pair_secret(other), "landmarks", session, self.block)
        return self.kept.seed or secrets.token_bytes(_SEED_BYTES)

    def _moments(self, request: wire.LandmarksRequest) -> Floats:
        sums, ranges = request.moments, self.table.ranges
        if not sums.size:
            sums = moment_sums(self._features(_training_positions(request)), ranges)
        if sums.shape != (1 + 2 * self.table.features,):
            raise ProtocolError("moments of another number of features", party=self.name)
        return read_moments(sums, ranges)

    def _remember(self, request: wire.LandmarksRequest) -> None:
        """Take up the secret and moments that this party kept of the run that made a model."""
        path = self.saved_state(request.model, request.model_round)
        if path is not None and path.is_file():
            old = RunState.unpack(path.read_bytes())
            self.kept.seed = old.seed
            self.kept.arrays |= {k: v for k, v in old.arrays.items() if k == "moments"}
        elif request.sampling == "P" or (self.landmark_seed and request.sampling == "U"):
            self.kept.seed = self.landmark_seed or b""
        else:
            raise CheckpointError(
                "the landmarks of the model are not known here any more",
                remedy="give the client the state_dir that it had when the model was made",
                party=self.name,
            )

    def _landmarks(self) -> Floats:
        if not self.table.features:
            return np.zeros((self.kept.landmarks, 0))
        if self.kept.settings["sampling"] == "P":
            if self.landmarks is None or self.landmarks.shape[1] != self.table.features:
                raise OptionError(
                    "sampling P takes training rows as landmarks, which data that may not be "
                    "pooled does not allow: this node was given none",
                    remedy="use sampling U or N",
                    party=self.name,
                )
            if len(self.landmarks) != self.kept.landmarks:
                raise OptionError(
                    f"{self.kept.landmarks} landmarks are asked for, this node was given "
                    f"{len(self.landmarks)}",
                    party=self.name,
                )
            return self.landmarks
        moments = self.kept.arrays.get("moments")
        return draw_landmarks(self.kept.seed, self.kept.landmarks, self.table.ranges, moments)

    def _fingerprint(self) -> bytes:
        model = str(self.kept.settings["model"])
        if self.kept.settings["sampling"] == "P":
            return array_fingerprint(self._landmarks(), model, self.block)
        drawn_from = np.vstack([self.table.ranges.T, *self.kept.arrays.get("moments", ())])
        return seed_fingerprint(self.kept.seed, model, self.block, drawn_from)

    # -- kernels

    def block_kernel(self, rows: NDArray[Any]) -> Floats:
        """Return the factor of the kernel that this party's block makes, shape (rows, m)."""
        found = self._distances(rows, self._landmarks())
        return kernel_from_distances(found, self.kept.arrays["gammas"])

    def _distances(self, rows: NDArray[Any], landmarks: Floats) -> Floats:
        """Return partial distances of announced rows, zeros where a row is not held (-1)."""
        held = rows >= 0
        out = np.zeros((len(rows), len(landmarks)))
        if self.table.features and held.any():
            x, kernel = self._features(rows[held]), self.kept.settings["kernel"]
            found = partial_distances(x, landmarks, kernel)
            if held.all():
                return found
            out[held] = found
        return out

    def _features(self, positions: NDArray[Any]) -> Floats:
        """Return the features of announced rows."""
        return self.table.features_of(self.kept.arrays["order"][positions])

    def _take_distances(self) -> None:
        """Turn totals that came with a request into kernel rows."""
        kept = self.kept
        for name, total in self.sums.delivered.items() if self.sums is not None else ():
            if int(name.rpartition("#")[2]) != kept.done:  # it came before
                continue
            try:
                self._absorb(total.reshape(-1, kept.landmarks))
            except StateError:  # the rows before are gone: the next step asks for all of them
                kept.settings["done"] = -1
        while kept.settings.get("alone") and kept.done < kept.total:
            part = next(row_chunks(kept.total - kept.done, kept.landmarks))
            self._absorb(np.zeros((part.stop, kept.landmarks)))

    def _absorb(self, totals: Floats) -> None:
        """Add this hospital's own block, make the kernel, keep what later steps need of it."""
        kept = self.kept
        start, stop = kept.done, kept.done + len(totals)
        if self.table.features:
            rows, landmarks = kept.arrays["rows"][start:stop], self._landmarks()
            for part in row_chunks(len(rows), 32 * kept.landmarks):  # 1 MB: no array of full size
                totals[part] += self._distances(rows[part], landmarks)
        kernel = kernel_from_distances(totals, kept.arrays["gammas"])
        trained = max(0, min(kept.train, stop) - start)
        if kept.settings["keep_training"]:
            self._kernel_rows().write(start, kernel)
        else:
            self._add_equations(kernel[:trained])
            if trained < len(kernel):
                self._kernel_rows().write(start + trained, kernel[trained:], first=kept.train)
        kept.settings["done"] = stop

    def _add_equations(self, kernel: Floats) -> None:
        """Add rows in the order of the table: the announced one differs from run to run."""
        arrays = self.kept.arrays
        part = slice(self.kept.done, self.kept.done + len(kernel))
        order = np.argsort(arrays["order"][arrays["rows"][part]])
        kernel, y = kernel[order], self.kernel_targets()[part][order]
        for name, found in (("gram", kernel.T @ kernel), ("right", kernel.T @ y)):
            arrays[name] = found + arrays[name] if name in arrays else found

    def _kernel_rows(self) -> KernelRows:
        return KernelRows(self.state_dir, self.session, self.partition, self.kept.landmarks)

    def kernel_targets(self) -> Floats:
        """Return the targets of the training rows, shape (train, k), in the kernel's order."""
        rows = self.kept.arrays["rows"][: self.kept.train]
        return np.asarray(self.table.y[self.kept.arrays["order"][rows]])


def _training_positions(request: wire.MomentsRequest | wire.LandmarksRequest) -> NDArray[Any]:
    """Return the positions of all training rows that a request names and this party holds."""
    named = [r[: int(t)] for r, t in zip(request.rows, request.trains, strict=True)]
    positions = np.concatenate(named) if named else np.zeros(0, np.int32)
    return positions[positions >= 0]


def _wider(bound: float) -> SumRule:
    """Return the rule of a sum whose bound is the largest of those of its parties."""
    own = max(bound * _ROUNDED, np.finfo(np.float64).tiny)
    return SumRule(Encoding.fixed_point(own), wider=True)

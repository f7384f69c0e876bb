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
    TableError,
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
from fedkern_flwr.node.client import Handler, PhaseClient
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
from fedkern_flwr.wire import DescribeRequest, PhaseMessage, columns_digest
from fedkern_flwr.wire import hybrid as wire

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


class HybridKernelClient(PhaseClient):
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

    def handlers(self) -> dict[str, tuple[type[PhaseMessage], Handler]]:
        """Return the phases that this client answers."""
        return {
            "hybrid-moments": (wire.MomentsRequest, self.agree),
            "hybrid-distances": (wire.DistancesRequest, self.send_distances),
            "hybrid-equations": (wire.EquationsRequest, self.send_equations),
            "hybrid-product": (wire.ProductRequest, self.send_product),
            "hybrid-coefficients": (wire.CoefficientsRequest, self.take_coefficients),
            "hybrid-blocks": (wire.BlocksRequest, self.send_blocks),
            "hybrid-chain": (wire.ChainRequest, self.send_hops),
        }

    def own_rows(self) -> OwnRows:
        """Return the rows of the table."""
        return self.table.own_rows()

    def describe(self, request: DescribeRequest) -> wire.HybridDescribeReply:
        """Tell who this is; see the message."""
        table = self.table
        table.check_ids(request.session, self.alignment_key)
        state = self.open_session(request.session)
        kept = RunState.unpack(state.payload)
        digest = table.digest()
        if kept.begun and kept.settings.get("table") != digest:
            raise TableError(
                "its table is not the one with which this run began",
                remedy="bring that table back, or start the run anew",
                party=self.name,
            )
        kept.settings["table"] = digest
        kept.arrays["order"] = table.order(request.session, self.alignment_key).astype(np.int32)
        state.payload = kept.pack()
        state.store(self.context)
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

    def agree(self, request: wire.MomentsRequest) -> wire.MomentsReply:
        """Add up the moments of the block; draw and seal its secret, if it falls to this party."""
        state = self.open_round(request.session, request.round, 0)
        kept = RunState.unpack(state.payload)
        self._fix_rows(kept, request)
        plain = np.zeros(0)
        if request.moments:
            positions, name = _training_positions(request), f"moments/{self.block}"
            self._note(kept, name, positions)
            if self.protocol == "secure":
                self._sums.check(name, _wider(len(positions)))
            self._check_share(np.unique(positions))
            moments = moment_sums(self._announced(request, positions), self.table.ranges)
            if self.protocol == "secure":
                self._sums.contribute(name, moments)
            else:
                plain = moments
        sealed = []
        if request.peers.size:
            kept.seed = kept.seed or secrets.token_bytes(_SEED_BYTES)
            for peer in request.peers.tolist():
                place = ("landmarks", request.session, self.block, self.partition, peer)
                sealed.append(seal_message(self.pair_secret(peer), kept.seed, *place))
        self.close_round(state, request.round, kept.pack(), 0)
        return wire.MomentsReply(
            round=request.round,
            plain=plain,
            sealed=tuple(np.frombuffer(s, np.uint8) for s in sealed),
        )

    def send_distances(self, request: wire.DistancesRequest) -> wire.DistancesReply:
        """Contribute partial distances; take the totals of an earlier part that come along."""
        state, kept = self._begin(request)
        self._take_distances(request.session, kept)
        self._note_rows(request, kept)
        landmarks = self._landmarks(kept)
        orders = {} if self.sums is None else self.sums.orders
        if "landmark pairs" in orders:
            self._sums.check("landmark pairs", self._distance_rule(kept))
            self._note(kept, "landmark pairs", _NO_ROWS)
            if request.landmark_pairs:
                square = partial_distances(landmarks, landmarks, kept.settings["kernel"])
                pairs = square[np.triu_indices(len(square), 1)]
                self._sums.contribute("landmark pairs", pairs)
            else:  # another holder of the block adds it
                self._sums.contribute_nothing("landmark pairs")
        for k, hospital in enumerate(request.hospitals.tolist()):
            start, stop = int(request.starts[k]), int(request.stops[k])
            name = f"distances/{hospital}#{start}"
            if name not in orders:
                continue
            rule = self._distance_rule(kept, receiver=hospital)
            length = (stop - start) * kept.landmarks
            self._sums.check(name, replace(rule, length=length))
            if hospital == self.partition:  # adds its own block by itself
                self._sums.contribute_nothing(name)
            else:
                rows = request.rows[k][start:stop]
                self._note(kept, f"distances/{hospital}", rows, each=True)
                found = self._distances(request.session, rows, landmarks, kept)
                self._sums.contribute(name, found.reshape(-1), overwrite=True)
        self._keep(state, request, kept)
        return wire.DistancesReply(round=request.round, fingerprint=self._fingerprint(kept))

    def send_equations(self, request: wire.EquationsRequest) -> wire.EquationsReply:
        """Contribute K_h^T K_h and K_h^T y_h of the training rows (eq. 2.9)."""
        state, kept = self._go_on(request)
        self._check_hospital(kept)
        bound = kept.train * self._largest(1.0)
        self._check_sum("equations", bound)
        if "gram" not in kept.arrays:  # a hospital without training rows
            m, outputs = kept.landmarks, self.table.y.shape[1]
            kept.arrays |= {"gram": np.zeros((m, m)), "right": np.zeros((m, outputs))}
        vector = pack_equations(kept.arrays["gram"], kept.arrays["right"])
        plain = self._add(kept, "equations", vector)
        self.close_round(state, request.round, kept.pack(), 0)
        return wire.EquationsReply(round=request.round, plain=plain)

    def send_product(self, request: wire.ProductRequest) -> wire.ProductReply:
        """Contribute K_h^T (K_h P); with ``labels`` K_h^T y_h before it."""
        state, kept = self._go_on(request)
        self._check_hospital(kept)
        if not (np.linalg.norm(request.directions, axis=0) <= _UNIT).all():
            raise refusal("directions longer than one", self.name)
        self._check_sum("product", kept.train * self._largest(np.sqrt(kept.landmarks)))
        train, y = kept.train, self.kernel_targets(request.session, kept)
        kernel = self._kernel_rows(request.session, kept).read(0, train)
        out = np.zeros(request.directions.shape)
        right = np.zeros((len(out), y.shape[1] if request.labels else 0))
        for part in row_chunks(train, len(out)):
            k = np.asarray(kernel[part])
            out += k.T @ (k @ request.directions)
            if request.labels:
                right += k.T @ y[part]
        vector = np.concatenate([right.ravel(), out.ravel()])
        plain = self._add(kept, "product", vector)
        self.close_round(state, request.round, kept.pack(), 0)
        return wire.ProductReply(round=request.round, plain=plain)

    def take_coefficients(self, request: wire.CoefficientsRequest) -> wire.CoefficientsReply:
        """Predict the held-out rows, keep the predictions here, count how good they are."""
        state, kept = self._go_on(request)
        session, table = request.session, self.table
        if len(request.predictions) and self.protocol == "secure":
            raise ProtocolError(
                "a node makes its predictions itself in protocol 'secure'", party=self.name
            )
        self._check_role()
        numbers, held_out = len(kept.arrays["rows"]) - kept.train, self._held_out
        if request.count:
            self._check_sum("outcomes", numbers * largest_count(table.classes))
            least = self.policy.min_evaluation_rows
            asked = kept.arrays["rows"][kept.train :]
            check_selection(asked, held_out, least=least, party=self.name)
        predictions = kept.arrays.get("predictions", request.predictions)
        if not len(predictions):
            kernel = self._kernel_rows(session, kept).read(kept.train, kept.total)
            predictions = np.asarray(kernel @ request.coefficients)
        tests = self._order(session, kept)[kept.arrays["rows"][kept.train :]]
        tests = tests - table.rows
        if self.predictions is not None:
            table.write_predictions(self.predictions, tests, predictions)
        plain: tuple[Floats, ...] = ()
        if request.count:
            targets = table.y_test[tests] if table.labelled else predictions[:0]
            counts = count_outcomes(
                predictions[: len(targets)], targets, len(table.classes), table.label_bound
            )
            ordered = self.sums is not None and "outcomes" in self.sums.orders
            total = "outcomes" if ordered else ""
            counts = self.figures("outcomes", tests, counts, total=total)
            plain = self._add(kept, "outcomes", counts)
        self.close_round(state, request.round, kept.pack(), 0)
        return wire.CoefficientsReply(round=request.round, plain=plain)

    def send_blocks(self, request: wire.BlocksRequest) -> wire.BlocksReply:
        """Naive protocol (section 2.2): show this block's kernel and the labels to the server."""
        state, kept = self._begin(request)
        self._note_rows(request, kept)
        blocks = tuple(self.block_kernel(request.session, rows, kept) for rows in request.rows)
        targets = np.zeros((0, 0))
        if self.role == HOSPITAL:
            targets = self.kernel_targets(request.session, kept)
        self._keep(state, request, kept)
        return wire.BlocksReply(
            round=request.round,
            fingerprint=self._fingerprint(kept),
            targets=targets,
            blocks=blocks,
        )

    def send_hops(self, request: wire.ChainRequest) -> wire.ChainReply:
        """Chain protocol (Algorithms 1 and 2): this party's hops; see :mod:`.chain`."""
        from .chain import make_hops

        state, kept = self._go_on(request)
        reply = make_hops(self, request, kept)
        self.close_round(state, request.round, kept.pack(), 0)
        return reply

    def forget(self, state: SessionState) -> bytes:
        """Erase the kernel rows and all else at the end of a run."""
        KernelRows(self.state_dir, state.session, self.partition, 1).erase()
        return b""

    # -- what the phases share

    @property
    def _sums(self) -> Any:
        if self.sums is None:
            raise ProtocolError(
                "values are asked for that leave this node in secure sums only", party=self.name
            )
        return self.sums

    def _begin(self, request: wire.LandmarksRequest) -> tuple[SessionState, RunState]:
        """Take up the settings of a run; a request that is repeated finds them again."""
        state = self.open_round(request.session, request.round, 0)
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
        kept = RunState.unpack(state.payload)
        known = request.kernel in PRODUCT_KERNELS and request.sampling in SAMPLINGS
        fits = len(request.gammas) in (1, request.landmarks) and (request.gammas > 0.0).all()
        if not known or not fits:
            raise ProtocolError("the kernel or its widths do not fit", party=self.name)
        if not kept.begun:
            fixed = {
                name: value
                for name, value in kept.settings.items()
                if name == "table" or name.startswith("rows of ")
            }
            if request.model:
                kept = self._remembered(request)
            else:
                kept.seed = self._landmark_secret(request, kept)
                if request.sampling == "N":
                    kept.arrays["moments"] = self._moments(request)
            kept.settings = {
                **fixed,
                "model": request.model or request.session,
                "kernel": request.kernel,
                "landmarks": request.landmarks,
                "sampling": request.sampling,
                "protocol": request.variant,
                "public_seed": request.public_seed,
            }
            kept.arrays["gammas"] = request.gammas
        return state, kept

    def _keep(self, state: SessionState, request: wire.LandmarksRequest, kept: RunState) -> None:
        """Keep the state; on disk as well, if there is a place, unless the run only predicts."""
        self.close_round(state, request.round, kept.pack(), 0)
        if not request.model:
            self._save(state, request.save_as)

    def _note_rows(self, request: wire.LandmarksRequest, kept: RunState) -> None:
        """Note which rows the request is about; at a hospital a kernel begins at position 0."""
        self._fix_rows(kept, request)
        for k, hospital in enumerate(request.hospitals.tolist()):
            rows = request.rows[k]
            if request.variant == "chain":
                kept.arrays[f"rows/{hospital}"] = rows
            if hospital == self.partition and not request.starts[k]:
                kept.arrays["rows"] = rows
                kept.settings |= {
                    "train": int(request.trains[k]),
                    "total": len(rows),
                    "alone": not request.stops[k],
                    "keep_training": request.keep_training,
                    "done": 0,
                }
                for name in ("gram", "right"):
                    kept.arrays.pop(name, None)

    def _fix_rows(
        self, kept: RunState, request: wire.MomentsRequest | wire.LandmarksRequest
    ) -> None:
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
            if kept.settings.setdefault(name, digest) != digest:
                raise refusal("other rows are asked for than before in this run", party)
            self._note(kept, name, rows[:train])

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

    def _check_hospital(self, kept: RunState) -> None:
        """Refuse to add what would be nothing, or of few rows."""
        self._check_role()
        if kept.settings["protocol"] == "secure":
            self._check_share(kept.arrays["rows"][: kept.train])

    def _check_share(self, rows: NDArray[Any]) -> None:
        """Refuse to stand in a sum with fewer training rows than the node's owner allows."""
        least = self.policy.min_own_rows
        among = range(
            self.table.rows if self.role == HOSPITAL else self.table.rows + self.table.tests
        )
        check_selection(rows, among, least=least, party=self.name)

    def _note(
        self, kept: RunState, purpose: str, rows: NDArray[Any], *, each: bool = False
    ) -> None:
        """Note what is made of which announced rows; -1 is a row that is not held."""
        if not self.simulated:
            self.note_rows(purpose, kept.arrays["order"][rows[rows >= 0]], each=each)

    def _go_on(self, request: wire.HybridRequest) -> tuple[SessionState, RunState]:
        """Return the state of a run that has begun, with the kernel as far as it has arrived."""
        state = self.open_round(request.session, request.round, 0)
        kept = RunState.unpack(state.payload)
        if kept.begun and "rows" in kept.arrays and kept.settings["protocol"] == "secure":
            self._take_distances(request.session, kept)
        settings = kept.settings
        needed = self.role == HOSPITAL and settings.get("protocol") == "secure"
        if not kept.begun or (needed and settings.get("done") != settings.get("total")):
            raise StateError(
                "it has not the whole kernel of this run",
                remedy="it is sent again",
                party=self.name,
            )
        return state, kept

    def _check_sum(self, name: str, bound: float) -> None:
        """Refuse a sum of hospitals that is not the one meant.

        ``bound`` is what no number of this node's vector can exceed.
        """
        if self.sums is not None and name in self.sums.orders:
            self.sums.check(name, _wider(bound))

    def _add(self, kept: RunState, name: str, vector: Floats) -> tuple[Floats, ...]:
        """Contribute to a sum; without one return the vector, where that is allowed."""
        if self.sums is not None and name in self.sums.orders:
            learned = kept.arrays.get("rows", _NO_ROWS)[: kept.settings.get("train", 0)]
            self._note(kept, name, _NO_ROWS if name == "outcomes" else learned)
            self.sums.contribute(name, vector)
            return ()
        if kept.settings["protocol"] == "secure" and not self.allow_single:
            raise ProtocolError(
                "its own values would be shown to the server: there is nobody to sum with",
                remedy="let more hospitals take part, or allow it with allow_single",
                party=self.name,
            )
        return (vector,)

    def _largest(self, kernel: float) -> float:
        """Return what a row's product with a kernel value, or with its label, cannot exceed."""
        return max(kernel, self.table.label_bound)

    def _distance_rule(self, kept: RunState, receiver: int = -1) -> SumRule:
        """Return the rule of sums of distances: this block's are within its declared ranges."""
        bound = distance_bound(self.table.ranges, kept.settings["kernel"])
        return replace(_wider(bound), receiver=receiver, rings=() if receiver < 0 else (32,))

    # -- landmarks

    def _landmark_secret(self, request: wire.LandmarksRequest, kept: RunState) -> bytes:
        if request.public_seed >= 0:
            return public_seed(request.public_seed, self.block)
        if self.landmark_seed is not None:
            return self.landmark_seed
        other, session = request.seed_from, request.session
        if request.sealed_seed.size:
            place = ("landmarks", session, self.block, other, self.partition)
            return unseal_message(self.pair_secret(other), request.sealed_seed.tobytes(), *place)
        if other >= 0:
            return derive_key(self.pair_secret(other), "landmarks", session, self.block)
        return kept.seed or secrets.token_bytes(_SEED_BYTES)

    def _moments(self, request: wire.LandmarksRequest) -> Floats:
        sums, ranges = request.moments, self.table.ranges
        if not sums.size:
            sums = moment_sums(self._announced(request, _training_positions(request)), ranges)
        if sums.shape != (1 + 2 * self.table.features,):
            raise ProtocolError("moments of another number of features", party=self.name)
        return read_moments(sums, ranges)

    def _remembered(self, request: wire.LandmarksRequest) -> RunState:
        """Return the secret and moments that this party kept of the run that made a model."""
        path = self.state_path(request.model, f"-round-{request.model_round}.state")
        if path is not None and path.is_file():
            old = RunState.unpack(path.read_bytes())
            return RunState({}, old.seed, {k: v for k, v in old.arrays.items() if k == "moments"})
        if request.sampling == "P" or (self.landmark_seed and request.sampling == "U"):
            return RunState({}, self.landmark_seed or b"")
        raise CheckpointError(
            "the landmarks of the model are not known here any more",
            remedy="give the client the state_dir that it had when the model was made",
            party=self.name,
        )

    def _landmarks(self, kept: RunState) -> Floats:
        if not self.table.features:
            return np.zeros((kept.landmarks, 0))
        if kept.settings["sampling"] == "P":
            if self.landmarks is None or self.landmarks.shape[1] != self.table.features:
                raise OptionError(
                    "sampling P takes training rows as landmarks, which data that may not be "
                    "pooled does not allow: this node was given none",
                    remedy="use sampling U or N",
                    party=self.name,
                )
            if len(self.landmarks) != kept.landmarks:
                raise OptionError(
                    f"{kept.landmarks} landmarks are asked for, this node was given "
                    f"{len(self.landmarks)}",
                    party=self.name,
                )
            return self.landmarks
        moments = kept.arrays.get("moments")
        return draw_landmarks(kept.seed, kept.landmarks, self.table.ranges, moments)

    def _fingerprint(self, kept: RunState) -> bytes:
        model = str(kept.settings["model"])
        if kept.settings["sampling"] == "P":
            return array_fingerprint(self._landmarks(kept), model, self.block)
        drawn_from = np.vstack([self.table.ranges.T, *kept.arrays.get("moments", ())])
        return seed_fingerprint(kept.seed, model, self.block, drawn_from)

    # -- kernels

    def block_kernel(self, session: str, rows: NDArray[Any], kept: RunState) -> Floats:
        """Return the factor of the kernel that this party's block makes, shape (rows, m)."""
        found = self._distances(session, rows, self._landmarks(kept), kept)
        return kernel_from_distances(found, kept.arrays["gammas"])

    def _distances(
        self, session: str, rows: NDArray[Any], landmarks: Floats, kept: RunState
    ) -> Floats:
        """Return partial distances of announced rows, zeros where a row is not held (-1)."""
        held = rows >= 0
        if not self.table.features or not held.any():
            return np.zeros((len(rows), len(landmarks)))
        x = self.table.features_of(self._order(session, kept)[rows[held]])
        found = partial_distances(x, landmarks, kept.settings["kernel"])
        if held.all():
            return found
        out = np.zeros((len(rows), len(landmarks)))
        out[held] = found
        return out

    def _order(self, session: str, kept: RunState) -> NDArray[Any]:
        """Return the row of the table at each announced position; ids are hashed once per run."""
        if "order" not in kept.arrays:
            kept.arrays["order"] = self.table.order(session, self.alignment_key).astype(np.int32)
        return kept.arrays["order"]

    def _take_distances(self, session: str, kept: RunState) -> None:
        """Turn totals that came with a request into kernel rows."""
        for name, total in self.sums.delivered.items() if self.sums is not None else ():
            if int(name.rpartition("#")[2]) != kept.done:  # it came before
                continue
            try:
                self._absorb(session, kept, total.reshape(-1, kept.landmarks))
            except StateError:  # the rows before are gone: the next step asks for all of them
                kept.settings["done"] = -1
        while kept.settings.get("alone") and kept.done < kept.total:
            part = next(row_chunks(kept.total - kept.done, kept.landmarks))
            self._absorb(session, kept, np.zeros((part.stop, kept.landmarks)))

    def _absorb(self, session: str, kept: RunState, totals: Floats) -> None:
        """Add this hospital's own block, make the kernel, keep what later steps need of it."""
        start, stop = kept.done, kept.done + len(totals)
        if self.table.features:
            rows, landmarks = kept.arrays["rows"][start:stop], self._landmarks(kept)
            for part in row_chunks(len(rows), 32 * kept.landmarks):  # 1 MB: no array of full size
                totals[part] += self._distances(session, rows[part], landmarks, kept)
        kernel = kernel_from_distances(totals, kept.arrays["gammas"])
        trained = max(0, min(kept.train, stop) - start)
        if kept.settings["keep_training"]:
            self._kernel_rows(session, kept).write(start, kernel)
        else:
            self._add_equations(session, kept, kernel[:trained])
            if trained < len(kernel):
                test = kernel[trained:]
                self._kernel_rows(session, kept).write(start + trained, test, first=kept.train)
        kept.settings["done"] = stop

    def _add_equations(self, session: str, kept: RunState, kernel: Floats) -> None:
        """Add rows in the order of the table: the announced one differs from run to run."""
        part = slice(kept.done, kept.done + len(kernel))
        order = np.argsort(self._order(session, kept)[kept.arrays["rows"][part]])
        kernel, y = kernel[order], self.kernel_targets(session, kept)[part][order]
        gram, right = kernel.T @ kernel, kernel.T @ y
        if "gram" in kept.arrays:
            gram += kept.arrays["gram"]
            right += kept.arrays["right"]
        kept.arrays |= {"gram": gram, "right": right}

    def _kernel_rows(self, session: str, kept: RunState) -> KernelRows:
        return KernelRows(self.state_dir, session, self.partition, kept.landmarks)

    def kernel_targets(self, session: str, kept: RunState) -> Floats:
        """Return the targets of the training rows, shape (train, k), in the kernel's order."""
        rows = kept.arrays["rows"][: kept.train]
        return np.asarray(self.table.y[self._order(session, kept)[rows]])

    def _announced(self, request: wire.HybridRequest, positions: NDArray[Any]) -> Floats:
        """Return the features of announced rows."""
        return np.asarray(self.table.announced(request.session, self.alignment_key)[positions])


def _training_positions(request: wire.MomentsRequest | wire.LandmarksRequest) -> NDArray[Any]:
    """Return the positions of all training rows that a request names and this party holds."""
    named = [r[: int(t)] for r, t in zip(request.rows, request.trains, strict=True)]
    positions = np.concatenate(named) if named else np.zeros(0, np.int32)
    return positions[positions >= 0]


def _wider(bound: float) -> SumRule:
    """Return the rule of a sum whose bound is the largest of those of its parties."""
    own = max(bound * _ROUNDED, np.finfo(np.float64).tiny)
    return SumRule(Encoding.fixed_point(own), wider=True)

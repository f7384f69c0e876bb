"""The client of FDSKL: a party with a block of columns, active if it has labels."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.alignment import AlignmentKey, Hashes, hash_ids
from fedkern_flwr.errors import FedKernError, OptionError, RefusedError, StateError, TableError
from fedkern_flwr.guard import check_selection, refusal
from fedkern_flwr.guard.policy import check_binary_columns
from fedkern_flwr.kernels.random_features import (
    SEED_BYTES,
    check_frequency_seed,
    draw_directions,
    draw_offsets,
)
from fedkern_flwr.labels import balanced_weights, class_counts, label_rows
from fedkern_flwr.node.client import answers
from fedkern_flwr.node.state import KeptState
from fedkern_flwr.options import check_choice
from fedkern_flwr.progress import part
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.solvers.losses import loss_values
from fedkern_flwr.vertical import messages as wire
from fedkern_flwr.vertical.messages import LARGEST_OUTPUT, phase_parts
from fedkern_flwr.vertical.parties import ACTIVE, PASSIVE
from fedkern_flwr.vertical.phases import (
    MOST_DIRECTIONS,
    Phases,
    blocks,
    cosines,
    new_coefficients,
    outputs,
)
from fedkern_flwr.wire import DescribeRequest

from .table_client import Floats, Ids, PartyTable, RunFile, TableClient

# -- A party's table in a vertical split, and the file of phases that an active party has received

Positions = NDArray[np.signedinteger[Any]]
_COUNT = np.dtype("<i4")

_ROW_NUMBERS = b"fedkern-flwr rows in the same order at all parties"


class VerticalTable(PartyTable):
    """Rows of one party: features of all rows; at an active party labels of some or all.

    Rows are announced in three parts: labelled, held-out, others.

    Parameters
    ----------
    party, x, y, ids, x_test, y_test, ids_test
        See :class:`~fedkern_flwr.clients.table_client.PartyTable`. NaN in y: another party has the
        label. Without ids all parties must have the same row order.
    **common
        Options of :class:`~fedkern_flwr.clients.table_client.PartyTable`.

    Attributes
    ----------
    known : ndarray of bool, shape (rows given,)
        Which of the given rows have a label.
    order_seed : int
        The announced order depends on it, on the alignment key and the ids; at -1 on the session.
    """

    order_seed = -1

    def __init__(
        self,
        party: str,
        x: ArrayLike | None,
        y: ArrayLike | None,
        ids: Ids | None,
        *held_out: Any,
        **common: Any,
    ) -> None:
        self.party = party
        rows = next((len(v) for v in (x, y, ids) if v is not None), 0)  # type: ignore[arg-type]
        features, names = self._features(x, rows), self._names(ids, rows, "row")
        labels = None
        known: NDArray[np.bool_] = np.zeros(rows, np.bool_)
        if y is not None:
            labels = self._numbers(label_rows(y, common["classes"], party), "labels")
            if labels.ndim not in (1, 2) or len(labels) != rows:
                raise self._bad(
                    f"labels of shape {labels.shape} do not fit {rows} rows",
                    code="FK-SHAPE-DIFFERS",
                )
            known = np.asarray(~np.isnan(labels).any(axis=tuple(range(1, labels.ndim))), np.bool_)
            labels = labels[known]
        self.known = known
        super().__init__(party, features[known], labels, names[known], *held_out, **common)
        self.identified = ids is not None or held_out[-1] is not None
        self.x_other = features[~known]
        self._ids = np.concatenate([self._ids, names[~known]])
        if y is None:  # for a passive party no row is held out
            self.x_other = np.concatenate([self.x_other, self.x_test])
            self._ids = np.concatenate([names, self._ids[: self.tests]])
            self.x_test = self.x_test[:0]

    @property
    def parts(self) -> tuple[Floats, ...]:
        return self.x, self.x_test, self.x_other

    @property
    def announced_rows(self) -> int:
        return sum(len(part) for part in self.parts)

    @property
    def others(self) -> int:
        """Number of rows neither labelled nor held out."""
        return len(self.x_other)

    def digest(self) -> str:
        """Return a digest of all features, and of the training targets."""
        digest = hashlib.sha256(super().digest().encode())
        for rows in self.parts[1:]:
            digest.update(b"/" + rows.tobytes())
        return digest.hexdigest()

    def _ranks(self, hashes: Hashes, session: str, key: AlignmentKey) -> Hashes:
        if self.order_seed < 0:
            return hashes
        return hash_ids(self._ids, key, f"order {self.order_seed}")

    def _own_key(self) -> bytes:
        return _ROW_NUMBERS


class PhaseStore(RunFile):
    """Phases that an active party has received, row by row, in a sparse private file.

    It is erased at the end of the run. It begins with the number of phases of each row, so that
    lost rows are never read as zeros. ``capacity`` is the most phases per row.
    """

    def __init__(
        self, folder: Path | None, session: str, partition: int, rows: int, capacity: int, bits: int
    ) -> None:
        super().__init__(folder, session, partition, "phases")
        self.shape = (rows, capacity)
        self.dtype = np.dtype(np.uint16 if bits == 16 else np.uint32).newbyteorder("<")

    def take(self, rows: Positions, known: Positions, upto: int, phases: Phases) -> None:
        """Store new phases of rows, which have ``known`` already and ``upto`` afterwards.

        Raises
        ------
        StateError
            Phases that should be stored are gone.
        """
        counts, store = self._map(begin=not known.any())
        if (counts[rows] < known).any():
            raise self.gone("phases", "they are sent again")
        first = int(known.min()) if len(known) else 0
        if (known == first).all():
            block = phases.reshape(len(rows), upto - first)
        else:
            block = store[rows, first:upto]
            block[np.arange(first, upto) >= known[:, None]] = phases
        store[_together(rows), first:upto] = block
        counts[rows] = upto

    def read(self, rows: Positions, upto: int) -> Phases:
        """Return the first phases of rows, (n, upto); StateError if they are gone."""
        counts, whole = self._map(begin=False)
        if (counts[rows] < upto).any():
            raise self.gone("phases", "they are sent again")
        return whole[:, :upto][_together(rows)].view(np.ndarray)

    def _map(self, *, begin: bool) -> tuple[NDArray[np.int32], Phases]:
        rows, capacity = self.shape
        size = rows * (_COUNT.itemsize + capacity * self.dtype.itemsize)
        if not self.path.is_file() or self.path.stat().st_size != size:
            if not begin:
                raise self.gone("phases", "they are sent again")
            with self.open() as file:
                file.truncate(0)
                file.truncate(size)
                if hasattr(os, "posix_fallocate"):  # not on macOS
                    os.posix_fallocate(file.fileno(), 0, size)  # a full disk kills later writes
        with self.open() as file:
            counts = np.memmap(file, _COUNT, mode="r+", shape=(rows,))
            place = rows * _COUNT.itemsize
            return counts, np.memmap(file, self.dtype, mode="r+", offset=place, shape=self.shape)


def _together(rows: Positions) -> slice | Positions:
    """Return consecutive rows as a slice, which needs no copy."""
    follow = len(rows) and (np.diff(rows) == 1).all()
    return slice(rows[0], rows[-1] + 1) if follow else rows


# -- the client of FDSKL: a party with columns of the rows, and labels if it is active

_PINNED = ("kernel", "gamma", "phase_bits", "capacity")
_ROOT_2 = np.sqrt(2.0)
MOST_OUTPUTS = 1 << 10  # of a model
LARGEST_LOSS = 100.0  # mean of a batch: beyond it a run has diverged; zero outputs have at most 1


class VerticalKernelClient(TableClient):
    """A party of FDSKL.

    All parties hold columns of the same rows, in any order. Active parties also hold labels, of all
    rows or of some.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context.
    x : array or data frame, shape (n, d), optional
        The party's columns, scaled for the kernel (such as to [0, 1]); None with labels only.
    y : array, shape (n,) or (n, k), optional
        Labels; NaN if another active party has the label. A party with labels is active.
    ids : sequence of length n, optional
        Record ids. Without them all parties must have the same row order.
    x_test, y_test, ids_test : arrays, optional
        Held-out rows: predicted by the active party and, if labelled, counted. A passive party may
        add them to the others.
    role : {"active", "passive"}, optional
        Intended role; default: active with labels.
    columns : sequence of str, optional
        Names of the features.
    classes : sequence of float or str, optional
        All classes, in the same order everywhere; y may have their names. Default: regression.
    label_bound : float (default: 1.0)
        Bound of abs(y) in a regression, the same at all active parties.
    alignment_key : bytes or AlignmentTags, optional
        Joins ids: a secret of all parties, not of the server, or the result of an align run.
    weights : array, shape (n,), optional
        Weights of rows in this party's training losses; never sent.
    frequency_seed : bytes, optional
        Secret of 32 bytes of this party, from which its directions are drawn; default: new per run.
    predictions : path, optional
        CSV file that an active party writes for its held-out rows: id, outputs, predicted class.
    **common
        Options of :class:`~fedkern_flwr.node.client.Client`; ``allow_single`` also lets an active
        party see the phases of this party alone.

    Raises
    ------
    TableError
        Wrong shapes, NaN, duplicate ids, unknown classes.
    OptionError
        Labels at a passive party, none at an active one, a key that is too short.

    Notes
    -----
    Memory: about 100 MB besides the table and training (see
    :mod:`fedkern_flwr.vertical.phase_training`); phases are in a file.
    """

    whole_cohorts: ClassVar[bool] = True
    without_key: ClassVar[str] = (
        "give all parties the same alignment_key, or pass no ids and the rows in the same order"
    )
    run_file: ClassVar[str] = "phases"

    def __init__(
        self,
        context: Context,
        x: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        role: Literal["active", "passive"] | None = None,
        weights: ArrayLike | None = None,
        frequency_seed: bytes | None = None,
        **common: Any,
    ) -> None:
        super().__init__(context, x, y, table=VerticalTable, **common)
        self._check_role(role, y, common.get("y_test"))
        if frequency_seed is not None:
            check_frequency_seed(frequency_seed)
        own = None if weights is None else np.asarray(weights, np.float64)
        if own is not None and (own.shape != np.asarray(y).shape[:1] or not (own > 0.0).all()):
            problem = f"weights of shape {own.shape} are not one for each label, or not positive"
            raise TableError(problem, party=self.name, code="FK-SHAPE-DIFFERS")
        self.role = ACTIVE if y is not None else PASSIVE
        self.frequency_seed = frequency_seed
        self._row_weights = own

    @property
    def shows_rows(self) -> bool:
        return self.role == PASSIVE

    def _check_role(self, role: str | None, y: object, y_test: object) -> None:
        if role is not None:
            check_choice("role", role, (ACTIVE, PASSIVE))
        if role == PASSIVE and (y is not None or y_test is not None):
            raise OptionError(
                "a passive party has labels",
                remedy="leave them out, or make it an active party",
                party=self.name,
                code="FK-ROLE-DATA",
            )
        if y is None and (role == ACTIVE or y_test is not None):
            raise OptionError(
                "an active party has no labels to learn from",
                remedy="give it labels, or make it a passive party",
                party=self.name,
                code="FK-ROLE-DATA",
            )

    def describe(self, request: DescribeRequest) -> wire.VerticalDescribeReply:
        self.table.order_seed = request.order_seed
        named, others = self.table.identified, self.table.others
        return self.tell(request, wire.VerticalDescribeReply, others=others, named=named)

    def keep_order(self, ids: NDArray[np.uint64], order: NDArray[np.int32]) -> None:
        self.kept.arrays |= {"order": order, "names": ids[:, 0].copy()}

    def answer(self, request: Any, method: Any) -> Any:
        """Take settings and deliveries, and check the sums, before a handler runs."""
        if isinstance(request, wire.StepRequest):
            self._begin(request)
        elif "gamma" not in self.kept.settings:
            raise StateError(
                "it knows nothing of this run",
                remedy="it is told again",
                code="FK-STATE-GONE",
            )
        self._take_delivered(request)
        if self.sums is not None:
            asked = request.rows if isinstance(request, wire.StepRequest) else request.rows[:0]
            bits, outputs = int(self.kept.settings["phase_bits"]), self.table.y.shape[1] or None
            facts = wire.VerticalFacts(bits, outputs, self._names(asked))
            self.sums.check_all(request.sum_specs(facts))
        return method(request)

    # -- settings and deliveries

    def _begin(self, request: wire.StepRequest) -> None:
        """Take the settings of a run, which are fixed by its first request.

        Raises
        ------
        ProtocolError
            They have changed, or the request is invalid.
        """
        kept, settings = self.kept, self.kept.settings
        asked = {name: getattr(request, name) for name in _PINNED}
        if "gamma" not in settings:
            if not 0 <= request.capacity <= MOST_DIRECTIONS:  # this decides the width of a file
                raise refusal("phases that no run needs", code="FK-ORDER-SIZE")
            if request.model:
                self._remember(request, asked)
            else:
                law = f"frequencies/{request.kernel}/{request.gamma!r}".encode()
                lasting = self.ledger.lasting_secret(law)
                kept.seed = self.frequency_seed or kept.seed or lasting
                kept.seed = kept.seed or secrets.token_bytes(SEED_BYTES)
            settings |= asked
        if any(settings[name] != value for name, value in asked.items()):
            raise self.wrong(
                "the settings of the run have changed",
                remedy="resume it with the options and the number of rounds it began with",
                code="FK-SETTINGS-CHANGED",
            )
        if self.role == PASSIVE and self.partition in request.owners:
            raise self.wrong("phases are for parties with labels", code="FK-ASKED-MORE")
        settings["owners"] = sorted({*settings.get("owners", ()), *request.owners.tolist()})
        announced = self.table.announced_rows
        if len(request.rows) and not 0 <= request.rows.min() <= request.rows.max() < announced:
            raise self.wrong("rows are asked for that were not announced", code="FK-ORDER-ROWS")
        if request.upto.max(initial=0) > settings["capacity"]:
            raise refusal("more phases than a row may have", code="FK-ORDER-SIZE")
        for _, known, upto in request.wanted():
            if (known < 0).any() or (known > upto).any():
                raise self.wrong("phases are asked for that there are not", code="FK-ASKED-MORE")

    def _remember(self, request: wire.StepRequest, asked: Mapping[str, Any]) -> None:
        path = self.state_path(request.model, f"-round-{request.model_round}.state")
        if path is None or not path.is_file():
            raise self.wrong(
                "what this party kept of the model is not here any more",
                remedy="give the client the state_dir that it had when the model was made",
                code="FK-KEPT-NONE",
            )
        old = KeptState.unpack(path.read_bytes())
        if any(old.settings.get(name) != value for name, value in asked.items()):
            raise self.wrong(
                "the settings are not those of the run that made the model", code="FK-MODEL-OPTIONS"
            )
        self.kept.borrow(old.seed)
        if self.role == ACTIVE and "alpha" in old.arrays:
            self.kept.arrays["alpha"] = old.arrays["alpha"]
            self.kept.settings["multiple"] = old.settings.get("multiple", 1)

    @property
    def _delivered(self) -> dict[str, NDArray[Any]]:
        return {} if self.sums is None else self.sums.delivered

    def _names(self, rows: NDArray[Any]) -> NDArray[np.uint64]:
        return np.asarray(self.kept.arrays["names"][rows])

    # -- phases of this party's columns

    def directions(self, owner: int, first: int, upto: int) -> tuple[Floats, Floats]:
        """Return components of an owner's directions, (upto - first, d), and own offsets."""
        settings, seed = self.kept.settings, self.kept.seed
        law = settings["kernel"], settings["gamma"]
        offsets = draw_offsets(seed, owner, upto, *law)[first:]
        omega = draw_directions(seed, owner, upto, self.table.features, *law)
        return omega[first:], offsets

    def store(self) -> PhaseStore:
        rows, settings = self.table.announced_rows, self.kept.settings
        capacity, bits = int(settings["capacity"]), int(settings["phase_bits"])
        return PhaseStore(self.state_dir, self.session, self.partition, rows, capacity, bits)

    def _send_phases(self, request: wire.StepRequest) -> None:
        rows, sums, kept = request.rows, self.sums, self.kept
        if not len(rows):
            return
        x, names = self.features_at(rows), self._names(rows)
        circle = Encoding.circle(int(kept.settings["phase_bits"]))
        for owner, known, upto in request.wanted():
            if owner == self.partition:  # for the delivery of the sums
                pending = {"rows": rows, "cuts": request.cuts, "known": known}
                kept.arrays |= {f"pending {name}": array for name, array in pending.items()}
                kept.settings |= {"pending upto": upto, "collection": request.collection}
            else:  # several active parties open each other's phases
                check_binary_columns(self.policy, np.vstack(self.table.parts), party=self.name)
            first = int(known.min())
            omega, offsets = self.directions(owner, first, upto)
            for span, name in phase_parts(owner, names, request.cuts, known, upto):
                if sums is None or name not in sums.orders:
                    continue
                here = np.empty((len(rows[span]), upto - first), circle.dtype)
                for some in blocks(len(here), 1024 * upto):  # whose angles stay in the cache
                    angles = x[span][some] @ omega.T
                    angles += offsets
                    here[some] = sums.encode(name, angles.reshape(-1)).reshape(angles.shape)
                if known[span].max() > first:
                    here = here[np.arange(first, upto) >= known[span][:, None]]
                self.note_rows(f"phases/{owner}", self.places(rows[span]), each=True)
                given = (omega, offsets, x[span], known[span], np.array([first, upto]))
                told = hashlib.sha256(b"".join(map(np.ndarray.tobytes, given))).digest()
                sums.contribute(name, here.reshape(-1), overwrite=True, told=told)

    def _take_delivered(self, request: wire.VerticalRequest) -> None:
        kept, settings, delivered = self.kept, self.kept.settings, self._delivered
        scores = delivered.get(f"scores/{self.partition}")
        if scores is not None:  # for an iteration that this request or a later one finishes
            kept.arrays["scores"] = scores
        if not request.delivered or settings.get("taken", 0) >= request.delivered:
            return
        if settings.get("collection") != request.delivered:
            raise StateError(
                "phases came that this party does not know of",
                remedy="they are sent again",
                code="FK-STATE-GONE",
            )
        store, upto = self.store(), int(settings["pending upto"])
        rows, cuts, known = (kept.arrays[f"pending {name}"] for name in ("rows", "cuts", "known"))
        for span, name in phase_parts(self.partition, self._names(rows), cuts, known, upto):
            if name in delivered:
                store.take(rows[span], known[span], upto, delivered.pop(name))
        settings |= {"taken": settings["collection"], "upto": upto}
        for name in ("pending rows", "pending cuts", "pending known"):
            del kept.arrays[name]

    # -- steps

    @answers(wire.StepRequest)
    def take_step(self, request: wire.StepRequest) -> wire.StepReply:
        if request.finish and self.role == ACTIVE:
            self._finish_iteration(request)
        if request.score:
            self._contribute_scores("scores", request.scorer, request.score_rows)
            self.kept.settings["scored"] = request.score
        self._send_phases(request)
        return wire.StepReply()

    @answers(wire.TrainRequest)
    def train(self, request: wire.TrainRequest) -> wire.TrainReply:
        """Fit the model here to the named rows' phases; predict the held-out rows."""
        from fedkern_flwr.vertical.phase_training import fit  # loads SciPy, for this only

        self._check_trained(request.rows)
        kept, upto = self.kept, request.directions
        y, phases = self._targets(request.rows), self.store().read(request.rows, upto)
        try:
            with part("train"):
                chosen = fit(
                    request.loss,  # type: ignore[arg-type]
                    phases,
                    y,
                    classes=len(self.table.classes),
                    seed=request.seed,
                    multiples=request.multiples.tolist(),
                    regularizations=request.regularizations.tolist(),
                    intercept=request.intercept,
                    weights=self._weights(request, y),
                    folder=self.store().path.parent,
                )
        except FedKernError as error:  # the error depends on labels
            raise self.unfit(error) from None
        kept.arrays["alpha"] = chosen.weights[:upto] / np.sqrt(upto)
        kept.arrays["intercept"] = chosen.weights[upto:]
        kept.settings["multiple"] = chosen.multiple
        with part("judge"):
            counts = self._judge(request, request.tests, self._scores(request.tests))
        score = chosen.scores.get((chosen.multiple, chosen.regularization), -1.0)
        if score >= 0.0:
            rows, found = self.places(request.rows), np.array([score])
            told = self.figures("validation", rows, found, alone=True, users=True)
            score = float(told[0]) if told.any() else -1.0
        return wire.TrainReply(
            multiple=chosen.multiple,
            regularization=chosen.regularization,
            score=float(score),
            counts=counts,
        )

    @answers(wire.OutcomeRequest)
    def predict_rows(self, request: wire.OutcomeRequest) -> wire.OutcomeReply:
        """Predict this party's held-out rows, or score all parties' for their owners."""
        ends, counts = np.cumsum(request.sizes), np.zeros(0)
        for owner, size, end in zip(request.owners.tolist(), request.sizes, ends, strict=True):
            rows = request.rows[end - size : end]
            if request.scoring and size:
                self._contribute_scores("outcome", owner, rows)
            elif owner == self.partition and size:
                # the sum over all owners, or this party's own scores if it is alone
                total = self._delivered.get(f"outcome/{owner}")
                scores = self._scores(rows) if total is None else total.reshape(size, -1)
                calibration = request.calibration
                counts = self._judge(request, rows, scores, calibration, judged=scores.tobytes())
        return wire.OutcomeReply(counts=counts)

    # -- the function

    @property
    def _alpha(self) -> Floats:
        return np.asarray(self.kept.arrays.get("alpha", np.zeros((0, self.table.y.shape[1]))))

    def _weights(self, request: wire.TrainRequest, y: Floats) -> Floats | None:
        found = balanced_weights(y, class_counts(y)) if request.balanced else np.ones(len(y))
        if self._row_weights is not None:
            found = found * self._row_weights[self.table.known][self.places(request.rows)]
        alike = self._row_weights is None and not request.balanced
        return None if alike else found / found.mean()

    def _targets(self, rows: NDArray[Any]) -> Floats:
        places = self.places(rows)
        if len(places) and places.max() >= self.table.rows:
            raise self.wrong("rows are named that have no label here", code="FK-ORDER-ROWS")
        return np.asarray(self.table.y[places] / self.table.label_bound)

    def _scores(self, rows: NDArray[Any]) -> Floats:
        alpha = self._alpha
        if not len(alpha) or not len(rows):
            return np.zeros((len(rows), self.table.y.shape[1]))
        phases = self.store().read(rows, len(alpha))
        intercept = self.kept.arrays.get("intercept", alpha[:0])
        weights = np.concatenate([alpha * np.sqrt(len(alpha)), intercept])
        return outputs(phases, weights, int(self.kept.settings.get("multiple", 1)))

    def _contribute_scores(self, what: str, receiver: int, rows: NDArray[Any]) -> None:
        name = f"{what}/{receiver}"
        if self.sums is None or name not in self.sums.orders:
            raise self.wrong("scores are asked for outside a secure sum", code="FK-ORDER-PLAIN")
        if what == "scores" and receiver not in self.kept.settings.get("owners", ()):
            raise refusal("scores for a party that learns nothing", code="FK-ASKED-MORE")
        outputs, rest = divmod(self.sums.order(name).length, max(1, len(rows)))
        if rest or outputs > MOST_OUTPUTS:  # the only limit that a party without labels knows
            raise refusal("scores of too many classes", code="FK-ORDER-SIZE")
        self.note_rows(name, self.places(rows), each=True)
        if self.role == ACTIVE:
            self.sums.contribute(name, self._bounded(self._scores(rows)).reshape(-1))
        else:
            self.sums.contribute_nothing(name)

    def _finish_iteration(self, request: wire.StepRequest) -> None:
        """Compute an iteration's coefficients, shrink the older ones (Algorithm 1)."""
        kept, settings = self.kept, self.kept.settings
        scores = kept.arrays.pop("scores", None)
        if settings.get("finished", 0) >= request.finish:
            return
        alpha, new = self._alpha, []
        if request.leader == self.partition:
            rows, have = request.finish_rows, len(alpha)
            features = cosines(self.store().read(rows, have + request.directions))
            features *= features.dtype.type(_ROOT_2)
            if scores is None and settings.get("scored", 0) >= request.finish:
                raise self.wrong("the sum of the scores is missing", code="FK-MESSAGE-FIELD")
            if scores is None:
                scores = features[:, :have] @ alpha.astype(features.dtype)
            outputs = self._bounded(np.asarray(scores, np.float64).reshape(len(rows), -1))
            loss, targets = request.loss, self._targets(rows)
            if self.simulated:
                reached = loss_values(loss, outputs, targets).mean()  # type: ignore[arg-type]
                if reached > LARGEST_LOSS:
                    raise self._diverged()
            made = new_coefficients(
                loss,  # type: ignore[arg-type]
                outputs,
                targets,
                features[:, have:],
                request.rate,
            )
            new.append(made)
        kept.arrays["alpha"] = np.concatenate([alpha * request.decay, *new])
        settings["finished"] = request.finish

    def _bounded(self, scores: Floats) -> Floats:
        """Clip scores to the bound: an error at a node would depend on labels."""
        if self.simulated and not np.abs(scores).max(initial=0.0) < LARGEST_OUTPUT:
            raise self._diverged()
        return np.asarray(np.clip(np.nan_to_num(scores), -LARGEST_OUTPUT, LARGEST_OUTPUT))

    def _diverged(self) -> RefusedError:
        return RefusedError(
            "the iteration has diverged",
            remedy="use a smaller step",
            party=self.name,
            code="FK-RUN-DIVERGED",
        )

    def _judge(
        self,
        request: wire.TrainRequest | wire.OutcomeRequest,
        rows: NDArray[Any],
        scores: Floats,
        calibration: Floats | None = None,
        *,
        judged: bytes = b"",
    ) -> Floats:
        table = self.table
        tests = self.places(rows) - table.rows
        if len(tests) and not 0 <= tests.min() <= tests.max() < table.tests:
            raise self.wrong("rows are named that are not held out here", code="FK-ORDER-ROWS")
        predictions = scores * table.label_bound
        self.write_predictions(tests, predictions, calibration)
        if not request.count or not table.labelled or not len(rows):
            return np.zeros(0)
        self._check_counted(tests)
        # streaming evaluates several models of a run; the parties with labels made them
        named: Any = {"judged": judged, "once": isinstance(request, wire.TrainRequest)}
        told = self.outcomes(tests, predictions, request.bins, alone=True, **named)
        return told if told.any() else told[:0]

    # -- the same rows as before

    def _fixed(self, name: str, rows: NDArray[Any]) -> bool:
        digest = hashlib.sha256(np.sort(rows).astype("<i8").tobytes()).hexdigest()
        return bool(self.kept.pin(name, digest))

    def _check_trained(self, rows: NDArray[Any]) -> None:
        """Refuse few or changed training rows: their validation score is released."""
        among, least = range(self.table.announced_rows), self.policy.min_own_rows
        check_selection(rows, among, least=least, party=self.name)
        if not self._fixed("trained", rows):
            raise refusal("other rows are to be learned from than before", code="FK-ORDER-CHANGED")

    def _check_counted(self, tests: NDArray[Any]) -> None:
        """Refuse to count few or changed rows: the count of one row is its label."""
        if 2 * len(tests) < self.table.tests:
            raise self.wrong(
                f"{len(tests)} of {self.table.tests} held-out rows are to be counted, which "
                "would tell too much of them",
                remedy="check the ids: most of these rows are not held by all parties",
                code="FK-COUNTED-FEW",
            )
        if not self._fixed("counted", tests):
            raise self.wrong(
                "other held-out rows are to be counted than before", code="FK-ORDER-CHANGED"
            )

"""The client of FDSKL: a party with columns of the rows, and labels if it is active."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.alignment import AlignmentKey, check_alignment_key
from fedkern_flwr.doubly_stochastic import new_coefficients
from fedkern_flwr.errors import (
    OptionError,
    ProtocolError,
    RefusedError,
    StateError,
    TableError,
)
from fedkern_flwr.frequencies import (
    FREQUENCIES,
    SEED_BYTES,
    Frequencies,
    check_frequency_seed,
    draw_directions,
    draw_offsets,
    public_frequency_seed,
)
from fedkern_flwr.guard import SumRule, check_selection, refusal
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.labels import count_outcomes
from fedkern_flwr.method import AnsweringClient, answers
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.online import check_choice
from fedkern_flwr.phase_training import fit, outputs
from fedkern_flwr.phases import cosines
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.vertical import ACTIVE, LARGEST_OUTPUT, PASSIVE, chunks, name_sum
from fedkern_flwr.wire import DescribeRequest, columns_digest
from fedkern_flwr.wire import vertical as wire

from .party_table import Floats, Ids
from .phase_store import PhaseStore
from .trees import make_hops
from .vertical_table import VerticalTable

Topology = Literal["star", "tree"]
TOPOLOGIES = ("star", "tree")
_ROOT_2 = np.sqrt(2.0)
_PINNED = ("kernel", "gamma", "phase_bits", "topology", "public_seed", "capacity")


class VerticalKernelClient(AnsweringClient):
    """A party of FDSKL.

    All parties hold columns of the same rows, in any order. Active parties also hold labels, of all
    rows or of some.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context.
    x : array, shape (n, d), optional
        The party's columns, scaled as the kernel needs them (such as to [0, 1]); None at an active
        party that has labels only.
    y : array, shape (n,) or (n, k), optional
        Labels; NaN where another active party has the label. A party with labels is active.
    ids : sequence of length n, optional
        Record ids. Without them all parties bring their rows in the same order.
    x_test, y_test, ids_test : arrays, optional
        Held-out rows: predicted by the active party and, if labelled, counted. A passive party may
        as well bring them with the others.
    role : {"active", "passive"}, optional
        What this party is meant to be; by default active if there are labels.
    columns : sequence of str, optional
        Names of the features.
    classes : sequence of float, optional
        All classes of a classification; without them y holds the targets of a regression.
    label_bound : float (default: 1.0)
        Bound of abs(y) in a regression, the same at all active parties.
    alignment_key : bytes or AlignmentTags, optional
        Secret of all parties, not of the server: joins ids. Or what each has of one align run.
    frequency_seed : bytes, optional
        Secret of 32 bytes of this party alone, from which its directions are drawn. Without it a
        run draws a new one.
    frequencies : {"private", "shared"} (default: "private")
        The only kind of runs in which this node takes part. ``shared`` draws directions that all
        parties and the server know.
    topology : {"star", "tree"} (default: "star")
        The same of sums. ``tree`` masks with real numbers in [0, 2 pi), as the paper does.
    predictions : path, optional
        CSV file that an active party writes for its held-out rows: id, outputs, predicted class.
    **common
        Options of :class:`~fedkern_flwr.node.client.PhaseClient`; ``allow_single`` here also lets
        an active party learn the phases of this party alone.

    Raises
    ------
    TableError
        Wrong shapes, NaN, duplicate ids, unknown classes.
    OptionError
        Labels at a passive party, none at an active one, a key that is too short.

    Notes
    -----
    Memory: about 100 MB above the table and, at an active party, what training needs (see
    :mod:`fedkern_flwr.phase_training`); phases lie in a file.
    """

    pair_secrets: ClassVar[bool] = True
    whole_cohorts: ClassVar[bool] = True
    enough_parties: ClassVar[int] = 2
    session = ""

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
        role: Literal["active", "passive"] | None = None,
        columns: Sequence[str] | None = None,
        classes: Sequence[float] | None = None,
        label_bound: float = 1.0,
        alignment_key: AlignmentKey | None = None,
        frequency_seed: bytes | None = None,
        frequencies: Frequencies = "private",
        topology: Topology = "star",
        predictions: str | Path | None = None,
        **common: Any,
    ) -> None:
        super().__init__(context, **common)
        check_choice("frequencies", frequencies, FREQUENCIES)
        check_choice("topology", topology, TOPOLOGIES)
        self._check_role(role, y, y_test)
        self.role = ACTIVE if y is not None else PASSIVE  # type: ignore[misc]
        if frequency_seed is not None:
            check_frequency_seed(frequency_seed)
        if not 0.0 < label_bound < np.inf:
            raise OptionError(f"label_bound is {label_bound}", remedy="use a positive number")
        self.frequencies, self.topology = frequencies, topology
        self.frequency_seed, self.alignment_key = frequency_seed, alignment_key
        self.predictions = None if predictions is None else Path(predictions)
        self.table = VerticalTable(
            self.name,
            x,
            y,
            ids,
            x_test,
            y_test,
            ids_test,
            columns=columns,
            classes=classes or (),
            label_bound=1.0 if classes else label_bound,
        )
        if alignment_key is not None:
            check_alignment_key(alignment_key)
        elif self.table.identified:
            raise OptionError(
                "ids are joined by keyed hashes, and there is no alignment key",
                remedy="give all parties the same alignment_key, or pass no ids and the rows in "
                "the same order",
                party=self.name,
            )

    def _check_role(self, role: str | None, y: object, y_test: object) -> None:
        if role is not None:
            check_choice("role", role, (ACTIVE, PASSIVE))
        if role == PASSIVE and (y is not None or y_test is not None):
            raise OptionError(
                "a passive party has labels",
                remedy="leave them out, or make it an active party",
                party=self.name,
            )
        if y is None and (role == ACTIVE or y_test is not None):
            raise OptionError(
                "an active party has no labels to learn from",
                remedy="give it labels, or make it a passive party",
                party=self.name,
            )

    # -- phases

    def own_rows(self) -> OwnRows:
        """Return the rows of the table."""
        return self.table.own_rows()

    def describe(self, request: DescribeRequest) -> wire.VerticalDescribeReply:
        """Tell who this is; see the message."""
        table, known = self.table, (request.session, self.alignment_key)
        table.order_seed = request.order_seed
        table.check_ids(*known)
        state = self.open_session(request.session)
        kept, digest = KeptState.unpack(state.payload), table.digest()
        if "gamma" in kept.settings and kept.settings.get("table") != digest:
            raise TableError(
                "its table is not the one with which this run began",
                remedy="bring that table back, or start the run anew",
                party=self.name,
            )
        ids = table.pseudonyms(*known)
        kept.settings["table"] = digest
        kept.arrays |= {"order": table.order(*known).astype(np.int32), "names": ids[:, 0].copy()}
        state.payload = kept.pack()
        state.store(self.context)
        return wire.VerticalDescribeReply(
            partition=self.partition,
            partitions=self.partitions,
            role=self.role,
            rows=table.rows,
            features=table.features,
            test_rows=table.tests,
            columns=columns_digest(table.columns),
            restored=self.restored,
            others=table.others,
            outputs=table.y.shape[1],
            classes=len(table.classes),
            labels=columns_digest(map(str, table.classes)),
            label_bound=table.label_bound,
            labelled=table.labelled,
            named=table.identified,
            allow_single=self.allow_single,
            ids=ids,
        )

    def answer(self, request: Any, method: Any) -> Any:
        """Take up the settings and what has come along before a handler is called."""
        self.session = request.session
        if isinstance(request, wire.PhasesRequest):
            self._begin(request)
        elif "gamma" not in self.kept.settings:
            raise StateError(
                "it knows nothing of this run", remedy="it is told again", party=self.name
            )
        self._take_delivered(request)
        return method(request)

    @answers(wire.StepRequest)
    def take_step(self, request: wire.StepRequest) -> wire.StepReply:
        """Finish an iteration, score the next batch, contribute phases for a third."""
        if request.finish and self.role == ACTIVE:
            self._finish_iteration(request)
        if request.score:
            self._contribute_scores("scores", request.scorer, request.score_rows)
            self.kept.settings["scored"] = request.score
        self._send_phases(request)
        return wire.StepReply()

    @answers(wire.HopsRequest)
    def send_hops(self, request: wire.HopsRequest) -> wire.HopsReply:
        """Take part in a sum over two trees (Algorithm 3); see :mod:`.trees`."""
        if request.topology != "tree":
            raise ProtocolError(
                "hops leave a node in runs with topology 'tree' only", party=self.name
            )
        self.note_rows("hops", self.places(request.rows), each=True)
        return make_hops(self, request)

    @answers(wire.TrainRequest)
    def train(self, request: wire.TrainRequest) -> wire.TrainReply:
        """Fit the model here, from the phases of all rows; predict the held-out ones."""
        self._check_trained(request.rows)
        kept, upto = self.kept, int(self.kept.settings["upto"])
        chosen = fit(
            request.loss,  # type: ignore[arg-type]
            self.store().read(request.rows, upto),
            self._targets(request.rows),
            classes=len(self.table.classes),
            seed=request.seed,
            multiples=request.multiples.tolist(),
            regularizations=request.regularizations.tolist(),
        )
        kept.arrays["alpha"] = chosen.weights / np.sqrt(upto)
        kept.settings["multiple"] = chosen.multiple
        counts = self._judge(request.tests, self._scores(request.tests), request.count)
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
        """Predict this party's held-out rows, or score those of all for their owners."""
        ends, counts = np.cumsum(request.sizes), np.zeros(0)
        for owner, size, end in zip(request.owners.tolist(), request.sizes, ends, strict=True):
            rows = request.rows[end - size : end]
            if request.scoring and size:
                self._contribute_scores("outcome", owner, rows)
            elif owner == self.partition and size:
                # what came from all owners, or this party's own where it is alone
                total = self._delivered.get(f"outcome/{owner}")
                scores = self._scores(rows) if total is None else total.reshape(size, -1)
                counts = self._judge(rows, scores, request.count)
        return wire.OutcomeReply(counts=counts)

    def close_round(self, state: SessionState, *done: Any) -> None:
        """Keep the state; on disk as well, if there is a place and the request says so."""
        super().close_round(state, *done)
        if self._request.save_as:
            self._save(state, self._request.save_as)

    def forget(self, state: SessionState) -> bytes:
        """Erase the phases and all else at the end of a run."""
        PhaseStore(self.state_dir, state.session, self.partition, 1, 1, 16).erase()
        return b""

    # -- what the phases share

    def _begin(self, request: wire.PhasesRequest) -> None:
        """Take up the settings of a run, which stay as they are in the first request.

        Raises
        ------
        ProtocolError
            The run is not of the kind that this node takes part in, or has changed.
        """
        shared = request.public_seed >= 0
        for option, value, default in (
            ("frequencies", "shared" if shared else "private", "private"),
            ("topology", request.topology, "star"),
        ):
            if getattr(self, option) != value:
                raise ProtocolError(
                    f"this node takes part in runs with {option} {getattr(self, option)!r} only, "
                    f"not {value!r}",
                    remedy=f"start it with {option}={value!r}"
                    + ("" if value == default else ", knowing what that shows"),
                    party=self.name,
                )
        kept, settings = self.kept, self.kept.settings
        asked = {name: getattr(request, name) for name in _PINNED}
        if "gamma" not in settings:
            if request.model:
                self._remember(request, asked)
            else:
                kept.seed = self.frequency_seed or kept.seed or secrets.token_bytes(SEED_BYTES)
            settings |= asked
        if any(settings[name] != value for name, value in asked.items()):
            raise ProtocolError(
                "the settings of the run have changed",
                remedy="resume it with the options and the number of rounds it began with",
                party=self.name,
            )
        if self.role == PASSIVE and self.partition in request.owners:
            raise ProtocolError("phases are for parties with labels", party=self.name)
        settings["owners"] = sorted({*settings.get("owners", ()), *request.owners.tolist()})
        announced = self.table.announced_rows
        if len(request.rows) and not 0 <= request.rows.min() <= request.rows.max() < announced:
            raise ProtocolError("rows are asked for that were not announced", party=self.name)

    def _remember(self, request: wire.PhasesRequest, asked: Mapping[str, Any]) -> None:
        """Take up what this party kept of the run that made a model."""
        path = self.state_path(request.model, f"-round-{request.model_round}.state")
        if path is None or not path.is_file():
            raise ProtocolError(
                "what this party kept of the model is not here any more",
                remedy="give the client the state_dir that it had when the model was made",
                party=self.name,
            )
        old = KeptState.unpack(path.read_bytes())
        if any(old.settings.get(name) != value for name, value in asked.items()):
            raise ProtocolError(
                "the settings are not those of the run that made the model", party=self.name
            )
        self.kept.seed = old.seed
        if self.role == ACTIVE and "alpha" in old.arrays:
            self.kept.arrays["alpha"] = old.arrays["alpha"]
            self.kept.settings["multiple"] = old.settings.get("multiple", 1)

    @property
    def _delivered(self) -> Mapping[str, NDArray[Any]]:
        """Totals of sums that belong to this party, of the message at hand."""
        return {} if self.sums is None else self.sums.delivered

    def places(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return which rows of the table announced rows are."""
        return np.asarray(self.kept.arrays["order"][rows])

    # -- phases of this party's columns

    def directions(self, owner: int, first: int, upto: int) -> tuple[Floats, Floats]:
        """Return the components of an owner's directions, and this party's part of their offsets.

        Returns
        -------
        (ndarray, ndarray), shapes (upto - first, d) and (upto - first,)
        """
        settings, seed = self.kept.settings, self.kept.seed
        law = settings["kernel"], settings["gamma"]
        offsets = draw_offsets(seed, owner, upto, *law)[first:]
        if settings["public_seed"] >= 0:
            seed = public_frequency_seed(int(settings["public_seed"]), self.partition)
        omega = draw_directions(seed, owner, upto, self.table.features, *law)
        return omega[first:], offsets

    def features_at(self, rows: NDArray[Any]) -> Floats:
        """Return the features of announced rows, shape (n, d)."""
        return self.table.features_of(self.places(rows))

    def store(self) -> PhaseStore:
        """Return the file of phases that this party has received."""
        rows, settings = self.table.announced_rows, self.kept.settings
        capacity, bits = int(settings["capacity"]), int(settings["phase_bits"])
        return PhaseStore(self.state_dir, self.session, self.partition, rows, capacity, bits)

    def note_pending(self, request: wire.PhasesRequest) -> None:
        """Remember, at an owner, which phases have been asked for."""
        if self.partition not in request.owners:
            return
        place, kept = request.owners.tolist().index(self.partition), self.kept
        kept.arrays |= {
            "pending rows": request.rows,
            "pending cuts": request.cuts,
            "pending known": request.known[place],
        }
        kept.settings |= {
            "pending upto": int(request.upto[place]),
            "collection": request.collection,
        }

    def note_taken(self) -> None:
        """Note that the pending phases have arrived."""
        settings = self.kept.settings
        settings |= {"taken": settings["collection"], "upto": settings["pending upto"]}
        for name in ("pending rows", "pending cuts", "pending known"):
            del self.kept.arrays[name]

    def _phase_sums(
        self,
        owner: int,
        rows: NDArray[Any],
        cuts: NDArray[np.int32],
        known: NDArray[np.int32],
        upto: int,
    ) -> Iterator[tuple[slice, str]]:
        """Yield the chunks of rows of an owner's phases and the names of their sums."""
        names = np.asarray(self.kept.arrays["names"][rows])
        for number, part in enumerate(chunks(cuts)):
            yield part, name_sum(owner, number, names[part], known[part], upto)

    def _send_phases(self, request: wire.StepRequest) -> None:
        """Contribute this party's part of the phases that owners lack."""
        if not len(request.rows):
            return
        self.note_pending(request)
        rows, sums = request.rows, self.sums
        x, circle = self.features_at(rows), Encoding.circle(int(self.kept.settings["phase_bits"]))
        for known, upto in zip(request.known, request.upto.tolist(), strict=True):
            if not 0 <= int(known.min()) <= int(known.max()) <= upto:
                raise ProtocolError("phases are asked for that there are not", party=self.name)
        for known, owner, upto in zip(
            request.known, request.owners.tolist(), request.upto.tolist(), strict=True
        ):
            first = int(known.min())
            omega, offsets = self.directions(owner, first, upto)
            for part, name in self._phase_sums(owner, rows, request.cuts, known, upto):
                if sums is None or name not in sums.orders:
                    continue
                length = int((upto - known[part]).sum())
                sums.check(name, SumRule(circle, receiver=owner, everybody=True, length=length))
                here = x[part] @ omega.T
                here += offsets
                if known[part].max() > first:
                    here = here[np.arange(first, upto) >= known[part][:, None]]
                self.note_rows(f"phases/{owner}", self.places(rows[part]), each=True)
                sums.contribute(name, here.reshape(-1))

    def _take_delivered(self, request: wire.VerticalRequest) -> None:
        """Keep what came with a request; phases that came before are not taken again."""
        kept, settings = self.kept, self.kept.settings
        scores = self._delivered.get(f"scores/{self.partition}")
        if scores is not None:  # for the iteration that a request finishes, this one or a later one
            kept.arrays["scores"] = scores
        if not request.delivered or settings.get("taken", 0) >= request.delivered:
            return
        if settings.get("collection") != request.delivered:
            raise StateError(
                "phases came that this party does not know of",
                remedy="they are sent again",
                party=self.name,
            )
        store, upto = self.store(), int(settings["pending upto"])
        rows, cuts, known = (kept.arrays[f"pending {name}"] for name in ("rows", "cuts", "known"))
        for part, name in self._phase_sums(self.partition, rows, cuts, known, upto):
            if name in self._delivered:
                store.take(rows[part], known[part], upto, self._delivered[name])
        self.note_taken()

    # -- the function

    @property
    def _alpha(self) -> Floats:
        return np.asarray(self.kept.arrays.get("alpha", np.zeros((0, self.table.y.shape[1]))))

    def _targets(self, rows: NDArray[Any]) -> Floats:
        """Return the targets of labelled rows, in units of the bound."""
        places = self.places(rows)
        if len(places) and places.max() >= self.table.rows:
            raise ProtocolError("rows are named that have no label here", party=self.name)
        return np.asarray(self.table.y[places] / self.table.label_bound)

    def _scores(self, rows: NDArray[Any]) -> Floats:
        """Return this party's part of f at rows, shape (n, k)."""
        alpha = self._alpha
        if not len(alpha) or not len(rows):
            return np.zeros((len(rows), self.table.y.shape[1]))
        phases = self.store().read(rows, len(alpha))
        weights = alpha * np.sqrt(len(alpha))
        return outputs(phases, weights, int(self.kept.settings.get("multiple", 1)))

    def _contribute_scores(self, what: str, receiver: int, rows: NDArray[Any]) -> None:
        name = f"{what}/{receiver}"
        if self.sums is None or name not in self.sums.orders:
            raise ProtocolError("scores are asked for outside a secure sum", party=self.name)
        if what == "scores" and receiver not in self.kept.settings.get("owners", ()):
            raise refusal("scores for a party that learns nothing", self.name)
        encoding = Encoding.fixed_point(LARGEST_OUTPUT)
        self.sums.check(name, SumRule(encoding, receiver=receiver, everybody=True))
        self.note_rows(name, self.places(rows), each=True)
        if self.role == ACTIVE:
            self.sums.contribute(name, self._bounded(self._scores(rows)).reshape(-1))
        else:
            self.sums.contribute_nothing(name)

    def _finish_iteration(self, request: wire.StepRequest) -> None:
        """Make the coefficients of an iteration, shrink the older ones (Algorithm 1)."""
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
                raise ProtocolError("the sum of the scores is missing", party=self.name)
            if scores is None:
                scores = features[:, :have] @ alpha.astype(features.dtype)
            made = new_coefficients(
                request.loss,  # type: ignore[arg-type]
                self._bounded(np.asarray(scores, np.float64).reshape(len(rows), -1)),
                self._targets(rows),
                features[:, have:],
                request.rate,
            )
            new.append(made)
        kept.arrays["alpha"] = np.concatenate([alpha * request.decay, *new])
        settings["finished"] = request.finish

    def _bounded(self, scores: Floats) -> Floats:
        if not np.abs(scores).max(initial=0.0) < LARGEST_OUTPUT:
            raise RefusedError(  # counted: a server could ask with ever other steps
                "the iteration has diverged", remedy="use a smaller step", party=self.name
            )
        return scores

    def _judge(self, rows: NDArray[Any], scores: Floats, count: bool) -> Floats:
        """Write predictions of held-out rows; return how good they are, if that is asked for."""
        table = self.table
        tests = self.places(rows) - table.rows
        if len(tests) and not 0 <= tests.min() <= tests.max() < table.tests:
            raise ProtocolError("rows are named that are not held out here", party=self.name)
        predictions = scores * table.label_bound
        if self.predictions is not None and len(rows):
            table.write_predictions(self.predictions, tests, predictions)
        if not count or not table.labelled or not len(rows):
            return np.zeros(0)
        self._check_counted(tests)
        counts = count_outcomes(
            predictions, table.y_test[tests], len(table.classes), table.label_bound
        )
        told = self.figures("outcomes", tests, counts, alone=True)
        return told if told.any() else told[:0]

    # -- the same rows as before

    def _fixed(self, name: str, rows: NDArray[Any]) -> bool:
        """Tell whether rows are those of the first time; which they were is remembered."""
        digest = hashlib.sha256(np.sort(rows).astype("<i8").tobytes()).hexdigest()
        return bool(self.kept.settings.setdefault(name, digest) == digest)

    def _check_trained(self, rows: NDArray[Any]) -> None:
        """Refuse to learn from few or other rows than before: what validates them is told."""
        among, least = range(self.table.announced_rows), self.policy.min_own_rows
        check_selection(rows, among, least=least, party=self.name)
        if not self._fixed("trained", rows):
            raise refusal("other rows are to be learned from than before", self.name)

    def _check_counted(self, tests: NDArray[Any]) -> None:
        """Refuse to count few or other rows than before: what is counted of one row is its label.

        Raises
        ------
        ProtocolError
        """
        if not self._fixed("counted", tests):
            raise ProtocolError(
                "other held-out rows are to be counted than before", party=self.name
            )
        if 2 * len(tests) < self.table.tests:
            raise ProtocolError(
                f"{len(tests)} of {self.table.tests} held-out rows are to be counted, which would "
                "tell too much of them",
                remedy="check the ids: most of these rows are not held by all parties",
                party=self.name,
            )

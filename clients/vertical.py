"""The client of FDSKL: a party with columns of the rows, and labels if it is active."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
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
from fedkern_flwr.node.client import Handler, PhaseClient
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.online import check_choice
from fedkern_flwr.phase_training import fit, outputs
from fedkern_flwr.phases import cosines
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.vertical import ACTIVE, PASSIVE, chunks, name_sum
from fedkern_flwr.wire import DescribeRequest, PhaseMessage, columns_digest
from fedkern_flwr.wire import vertical as wire

from .party_table import Floats, Ids
from .phase_store import PhaseStore
from .vertical_table import VerticalTable

Topology = Literal["star", "tree"]
TOPOLOGIES = ("star", "tree")
_ROOT_2 = np.sqrt(2.0)
_LARGEST = 1e6  # an output beyond it has diverged; also the bound of sums of outputs
_PINNED = ("kernel", "gamma", "phase_bits", "topology", "public_seed", "capacity")


class VerticalKernelClient(PhaseClient):
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

    def handlers(self) -> dict[str, tuple[type[PhaseMessage], Handler]]:
        """Return the phases that this client answers."""
        return {
            "vertical-step": (wire.StepRequest, self.take_step),
            "vertical-hops": (wire.HopsRequest, self.send_hops),
            "vertical-train": (wire.TrainRequest, self.train),
            "vertical-outcome": (wire.OutcomeRequest, self.predict_rows),
        }

    def own_rows(self) -> OwnRows:
        """Return the rows of the table."""
        return self.table.own_rows()

    def describe(self, request: DescribeRequest) -> wire.VerticalDescribeReply:
        """Tell who this is; see the message."""
        table = self.table
        table.order_seed = request.order_seed
        table.check_ids(request.session, self.alignment_key)
        state = self.open_session(request.session)
        kept = KeptState.unpack(state.payload)
        digest = table.digest()
        if "gamma" in kept.settings and kept.settings.get("table") != digest:
            raise TableError(
                "its table is not the one with which this run began",
                remedy="bring that table back, or start the run anew",
                party=self.name,
            )
        kept.settings["table"] = digest
        kept.arrays["order"] = table.order(request.session, self.alignment_key).astype(np.int32)
        kept.arrays["names"] = table.pseudonyms(request.session, self.alignment_key)[:, 0].copy()
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
            ids=table.pseudonyms(request.session, self.alignment_key),
        )

    def take_step(self, request: wire.StepRequest) -> wire.StepReply:
        """Finish an iteration, score the next batch, contribute phases for a third."""
        state, kept = self.begin(request)
        self._take_phases(request, kept)
        if request.finish and self.role == ACTIVE:
            self._finish_iteration(request, kept)
        if request.score:
            self._contribute_scores("scores", request.scorer, request.score_rows, kept)
            kept.settings["scored"] = request.score
        self._send_phases(request, kept)
        self.end(state, request, kept)
        return wire.StepReply(round=request.round)

    def send_hops(self, request: wire.HopsRequest) -> wire.HopsReply:
        """Take part in a sum over two trees (Algorithm 3); see :mod:`.trees`."""
        from .trees import make_hops

        if request.topology != "tree":
            raise ProtocolError(
                "hops leave a node in runs with topology 'tree' only", party=self.name
            )
        state, kept = self.begin(request)
        self.note_rows("hops", kept.arrays["order"][request.rows], each=True)
        reply = make_hops(self, request, kept)
        self.end(state, request, kept)
        return reply

    def train(self, request: wire.TrainRequest) -> wire.TrainReply:
        """Fit the model here, from the phases of all rows; predict the held-out ones."""
        state, kept = self._go_on(request)
        self._check_trained(request.rows, kept)
        self._take_phases(request, kept)
        table, upto = self.table, int(kept.settings["upto"])
        chosen = fit(
            request.loss,  # type: ignore[arg-type]
            self.store(kept).read(request.rows, upto),
            self._targets(request.rows, kept),
            classes=len(table.classes),
            seed=request.seed,
            multiples=request.multiples.tolist(),
            regularizations=request.regularizations.tolist(),
        )
        kept.arrays["alpha"] = chosen.weights / np.sqrt(upto)
        kept.settings["multiple"] = chosen.multiple
        counts = self._judge(request.tests, self._scores(request.tests, kept), request.count, kept)
        score = chosen.scores.get((chosen.multiple, chosen.regularization), -1.0)
        if score >= 0.0:
            rows = kept.arrays["order"][request.rows]
            told = self.figures("validation", rows, np.array([score]), alone=True, users=True)
            score = float(told[0]) if told.any() else -1.0
        self.end(state, request, kept)
        return wire.TrainReply(
            round=request.round,
            multiple=chosen.multiple,
            regularization=chosen.regularization,
            score=float(score),
            counts=counts,
        )

    def predict_rows(self, request: wire.OutcomeRequest) -> wire.OutcomeReply:
        """Predict this party's held-out rows, or score those of all for their owners."""
        state, kept = self._go_on(request)
        self._take_phases(request, kept)
        ends = np.cumsum(request.sizes)
        counts = np.zeros(0)
        for owner, size, end in zip(request.owners.tolist(), request.sizes, ends, strict=True):
            rows = request.rows[end - size : end]
            if request.scoring and size:
                self._contribute_scores("outcome", owner, rows, kept)
            elif owner == self.partition and size:
                counts = self._judge(
                    rows, self._summed(f"outcome/{owner}", rows, kept), request.count, kept
                )
        self.end(state, request, kept)
        return wire.OutcomeReply(round=request.round, counts=counts)

    def forget(self, state: SessionState) -> bytes:
        """Erase the phases and all else at the end of a run."""
        PhaseStore(self.state_dir, state.session, self.partition, 1, 1, 16).erase()
        return b""

    # -- what the phases share

    def begin(self, request: wire.PhasesRequest) -> tuple[SessionState, KeptState]:
        """Take up the settings of a run, which stay as they are in the first request.

        Raises
        ------
        ProtocolError
            The run is not of the kind that this node takes part in, or has changed.
        """
        state, self.session = self.open_round(request.session, request.round, 0), request.session
        shared = request.public_seed >= 0
        found = {"frequencies": "shared" if shared else "private", "topology": request.topology}
        for option, value in found.items():
            if getattr(self, option) != value:
                default = {"frequencies": "private", "topology": "star"}[option]
                raise ProtocolError(
                    f"this node takes part in runs with {option} {getattr(self, option)!r} only, "
                    f"not {value!r}",
                    remedy=f"start it with {option}={value!r}"
                    + ("" if value == default else ", knowing what that shows"),
                    party=self.name,
                )
        kept = KeptState.unpack(state.payload)
        if "gamma" not in kept.settings:
            if request.model:
                self._remember(request, kept)
            else:
                kept.seed = self.frequency_seed or kept.seed or secrets.token_bytes(SEED_BYTES)
            kept.settings |= {name: getattr(request, name) for name in _PINNED}
        if any(kept.settings[name] != getattr(request, name) for name in _PINNED):
            raise ProtocolError(
                "the settings of the run have changed",
                remedy="resume it with the options and the number of rounds it began with",
                party=self.name,
            )
        if self.role == PASSIVE and self.partition in request.owners:
            raise ProtocolError("phases are for parties with labels", party=self.name)
        owners = {*kept.settings.get("owners", ()), *request.owners.tolist()}
        kept.settings["owners"] = sorted(owners)
        announced = self.table.announced_rows
        if len(request.rows) and not 0 <= request.rows.min() <= request.rows.max() < announced:
            raise ProtocolError("rows are asked for that were not announced", party=self.name)
        return state, kept

    def end(self, state: SessionState, request: wire.VerticalRequest, kept: KeptState) -> None:
        """Keep the state; on disk as well, if that is asked for and there is a place."""
        self.close_round(state, request.round, kept.pack(), 0)
        if request.save_as:
            self._save(state, request.save_as)

    def _go_on(self, request: wire.VerticalRequest) -> tuple[SessionState, KeptState]:
        state, self.session = self.open_round(request.session, request.round, 0), request.session
        kept = KeptState.unpack(state.payload)
        if "gamma" not in kept.settings:
            raise StateError(
                "it knows nothing of this run", remedy="it is told again", party=self.name
            )
        return state, kept

    def _remember(self, request: wire.PhasesRequest, kept: KeptState) -> None:
        """Take up what this party kept of the run that made a model."""
        path = self.state_path(request.model, f"-round-{request.model_round}.state")
        if path is None or not path.is_file():
            raise ProtocolError(
                "what this party kept of the model is not here any more",
                remedy="give the client the state_dir that it had when the model was made",
                party=self.name,
            )
        old = KeptState.unpack(path.read_bytes())
        if any(old.settings.get(name) != getattr(request, name) for name in _PINNED):
            raise ProtocolError(
                "the settings are not those of the run that made the model", party=self.name
            )
        kept.seed = old.seed
        if self.role == ACTIVE and "alpha" in old.arrays:
            kept.arrays["alpha"] = old.arrays["alpha"]
            kept.settings["multiple"] = old.settings.get("multiple", 1)

    # -- phases of this party's columns

    def directions(
        self, kept: KeptState, owner: int, first: int, upto: int
    ) -> tuple[Floats, Floats]:
        """Return the components of an owner's directions, and this party's part of their offsets.

        Returns
        -------
        (ndarray, ndarray), shapes (upto - first, d) and (upto - first,)
        """
        settings, seed = kept.settings, kept.seed
        law = settings["kernel"], settings["gamma"]
        offsets = draw_offsets(seed, owner, upto, *law)[first:]
        if settings["public_seed"] >= 0:
            seed = public_frequency_seed(int(settings["public_seed"]), self.partition)
        omega = draw_directions(seed, owner, upto, self.table.features, *law)
        return omega[first:], offsets

    def features_at(self, kept: KeptState, rows: NDArray[Any]) -> Floats:
        """Return the features of announced rows, shape (n, d)."""
        return self.table.features_of(kept.arrays["order"][rows])

    def note_pending(self, request: wire.PhasesRequest, kept: KeptState) -> None:
        """Remember, at an owner, which phases have been asked for."""
        if self.partition not in request.owners:
            return
        place = request.owners.tolist().index(self.partition)
        kept.arrays["pending rows"], kept.arrays["pending cuts"] = request.rows, request.cuts
        kept.arrays["pending known"] = request.known[place]
        kept.settings["pending upto"] = int(request.upto[place])
        kept.settings["collection"] = request.collection

    def store(self, kept: KeptState) -> PhaseStore:
        """Return the file of phases that this party has received."""
        rows = self.table.announced_rows
        capacity, bits = int(kept.settings["capacity"]), int(kept.settings["phase_bits"])
        return PhaseStore(self.state_dir, self.session, self.partition, rows, capacity, bits)

    def _send_phases(self, request: wire.StepRequest, kept: KeptState) -> None:
        """Contribute this party's part of the phases that owners lack."""
        if not len(request.rows):
            return
        self.note_pending(request, kept)
        x = self.features_at(kept, request.rows)
        orders = {} if self.sums is None else self.sums.orders
        circle = Encoding.circle(int(kept.settings["phase_bits"]))
        self._check_phases(request)
        for place, owner in enumerate(request.owners.tolist()):
            upto, all_known = int(request.upto[place]), request.known[place]
            first = int(all_known.min())
            omega, offsets = self.directions(kept, owner, first, upto)
            for number, part in enumerate(chunks(request.cuts)):
                known = all_known[part]
                name = name_sum(owner, number, self._names(kept, request.rows[part]), known, upto)
                if name not in orders:
                    continue
                length = int((upto - known).sum())
                rule = SumRule(circle, receiver=owner, everybody=True, length=length)
                self.sums.check(name, rule)  # type: ignore[union-attr]
                here = x[part] @ omega.T
                here += offsets
                if known.max() > first:
                    here = here[np.arange(first, upto) >= known[:, None]]
                held = kept.arrays["order"][request.rows[part]]
                self.note_rows(f"phases/{owner}", held, each=True)
                self.sums.contribute(name, here.reshape(-1))  # type: ignore[union-attr]

    def _check_phases(self, request: wire.StepRequest) -> None:
        """Refuse phases before the first or after the last that there are."""
        for known, upto in zip(request.known, request.upto.tolist(), strict=True):
            if not 0 <= int(known.min()) <= int(known.max()) <= upto:
                raise ProtocolError("phases are asked for that there are not", party=self.name)

    def _names(self, kept: KeptState, rows: NDArray[Any]) -> NDArray[np.uint64]:
        """Return the first halves of the pseudonyms of announced rows."""
        return np.asarray(kept.arrays["names"][rows])

    def _take_phases(self, request: wire.VerticalRequest, kept: KeptState) -> None:
        """Keep phases that came with a request; those that came before are not taken again."""
        settings = kept.settings
        if not request.delivered or settings.get("taken", 0) >= request.delivered:
            return
        if settings.get("collection") != request.delivered:
            raise StateError(
                "phases came that this party does not know of",
                remedy="they are sent again",
                party=self.name,
            )
        store, upto = self.store(kept), settings["pending upto"]
        rows, known = kept.arrays["pending rows"], kept.arrays["pending known"]
        for number, part in enumerate(chunks(kept.arrays["pending cuts"])):
            names = self._names(kept, rows[part])
            name = name_sum(self.partition, number, names, known[part], upto)
            phases = self.sums.delivered.get(name)  # type: ignore[union-attr]
            if phases is not None:
                store.take(rows[part], known[part], upto, phases)
        self.note_taken(kept)

    def note_taken(self, kept: KeptState) -> None:
        """Note that the pending phases have arrived."""
        kept.settings |= {
            "taken": kept.settings["collection"],
            "upto": kept.settings["pending upto"],
        }
        for name in ("pending rows", "pending cuts", "pending known"):
            del kept.arrays[name]

    # -- the function

    def _alpha(self, kept: KeptState) -> Floats:
        return kept.arrays.get("alpha", np.zeros((0, self.table.y.shape[1])))

    def _targets(self, rows: NDArray[Any], kept: KeptState) -> Floats:
        """Return the targets of labelled rows, in units of the bound."""
        places = kept.arrays["order"][rows]
        if len(places) and places.max() >= self.table.rows:
            raise ProtocolError("rows are named that have no label here", party=self.name)
        return np.asarray(self.table.y[places] / self.table.label_bound)

    def _scores(self, rows: NDArray[Any], kept: KeptState) -> Floats:
        """Return this party's part of f at rows, shape (n, k)."""
        alpha = self._alpha(kept)
        if not len(alpha) or not len(rows):
            return np.zeros((len(rows), self.table.y.shape[1]))
        phases = self.store(kept).read(rows, len(alpha))
        weights = alpha * np.sqrt(len(alpha))
        return outputs(phases, weights, int(kept.settings.get("multiple", 1)))

    def _contribute_scores(
        self, what: str, receiver: int, rows: NDArray[Any], kept: KeptState
    ) -> None:
        name = f"{what}/{receiver}"
        if self.sums is None or name not in self.sums.orders:
            raise ProtocolError("scores are asked for outside a secure sum", party=self.name)
        if what == "scores" and receiver not in kept.settings.get("owners", ()):
            raise refusal("scores for a party that learns nothing", self.name)
        rule = SumRule(Encoding.fixed_point(_LARGEST), receiver=receiver, everybody=True)
        self.sums.check(name, rule)
        self.note_rows(name, kept.arrays["order"][rows], each=True)
        if self.role == ACTIVE:
            self.sums.contribute(name, self._bounded(self._scores(rows, kept)).reshape(-1))
        else:
            self.sums.contribute_nothing(name)

    def _summed(self, name: str, rows: NDArray[Any], kept: KeptState) -> Floats:
        """Return f at rows: what came from all owners, or this party's own where it is alone."""
        if self.sums is not None and name in self.sums.delivered:
            return np.asarray(self.sums.delivered[name].reshape(len(rows), -1))
        return self._scores(rows, kept)

    def _finish_iteration(self, request: wire.StepRequest, kept: KeptState) -> None:
        """Make the coefficients of an iteration, shrink the older ones (Algorithm 1)."""
        if kept.settings.get("finished", 0) >= request.finish:
            return
        alpha, new = self._alpha(kept), []
        if request.leader == self.partition:
            rows, have = request.finish_rows, len(alpha)
            phases = self.store(kept).read(rows, have + request.directions)
            features = cosines(phases)
            features *= features.dtype.type(_ROOT_2)
            name = f"scores/{self.partition}"
            if self.sums is not None and name in self.sums.delivered:
                scores = self.sums.delivered[name].reshape(len(rows), -1)
            elif kept.settings.get("scored", 0) >= request.finish:
                raise ProtocolError("the sum of the scores is missing", party=self.name)
            else:
                scores = features[:, :have] @ alpha.astype(features.dtype)
            made = new_coefficients(
                request.loss,  # type: ignore[arg-type]
                self._bounded(np.asarray(scores, np.float64)),
                self._targets(rows, kept),
                features[:, have:],
                request.rate,
            )
            new.append(made)
        kept.arrays["alpha"] = np.concatenate([alpha * request.decay, *new])
        kept.settings["finished"] = request.finish

    def _bounded(self, scores: Floats) -> Floats:
        if not np.abs(scores).max(initial=0.0) < _LARGEST:
            raise RefusedError(  # counted: a server could ask with ever other steps
                "the iteration has diverged", remedy="use a smaller step", party=self.name
            )
        return scores

    def _judge(self, rows: NDArray[Any], scores: Floats, count: bool, kept: KeptState) -> Floats:
        """Write predictions of held-out rows; return how good they are, if that is asked for."""
        table = self.table
        tests = kept.arrays["order"][rows] - table.rows
        if len(tests) and not 0 <= tests.min() <= tests.max() < table.tests:
            raise ProtocolError("rows are named that are not held out here", party=self.name)
        predictions = scores * table.label_bound
        if self.predictions is not None and len(rows):
            table.write_predictions(self.predictions, tests, predictions)
        if not count or not table.labelled or not len(rows):
            return np.zeros(0)
        self._check_counted(tests, kept)
        counts = count_outcomes(
            predictions, table.y_test[tests], len(table.classes), table.label_bound
        )
        told = self.figures("outcomes", tests, counts, alone=True)
        return told if told.any() else told[:0]

    def _check_trained(self, rows: NDArray[Any], kept: KeptState) -> None:
        """Refuse to learn from few or other rows than before: what validates them is told."""
        among, least = range(self.table.announced_rows), self.policy.min_own_rows
        check_selection(rows, among, least=least, party=self.name)
        digest = hashlib.sha256(np.sort(rows).astype("<i8").tobytes()).hexdigest()
        if kept.settings.setdefault("trained", digest) != digest:
            raise refusal("other rows are to be learned from than before", self.name)

    def _check_counted(self, tests: NDArray[Any], kept: KeptState) -> None:
        """Refuse to count few or other rows than before: what is counted of one row is its label.

        Raises
        ------
        ProtocolError
        """
        digest = hashlib.sha256(np.sort(tests).astype("<i8").tobytes()).hexdigest()
        if kept.settings.setdefault("counted", digest) != digest:
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

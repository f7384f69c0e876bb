"""FDSKL: columns dealt to parties, labels to some of them; metrics, table and plot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.alignment import hash_ids, sort_order
from fedkern_flwr.errors import OptionError
from fedkern_flwr.judging.figures import in_units
from fedkern_flwr.kernels.random_features import draw_directions, draw_offsets
from fedkern_flwr.labels import balanced_weights, class_counts, encode_classes
from fedkern_flwr.node.state import KeptState
from fedkern_flwr.options import check_memory
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.tables.table import Table
from fedkern_flwr.vertical.parties import ACTIVE, PASSIVE, MissingRows
from fedkern_flwr.vertical.phase_training import minimise
from fedkern_flwr.vertical.phases import draw_batch, new_coefficients, outputs, step_size

from ...clients import VerticalKernelClient
from ...strategies import FDSKL
from ..run.party_files import PartyFiles
from .base import (
    Config,
    Curves,
    Family,
    Kept,
    check_numbers,
    check_rounds,
    rows_of,
)
from .dealt_data import DealtData, DealtTable, LabelledSettings, alignment_key, frequency_seed
from .new_rows import Parts, read_predictions

DEFAULT_ROUNDS = 200


@dataclass(frozen=True)
class VerticalSettings(LabelledSettings):
    """Columns of each party.

    Columns are dealt in order. The first parties have the labels, of equal shares of the rows.

    Attributes
    ----------
    parties : int
        Parties, which hold columns (default: 4).
    active_parties : int
        Parties that hold labels.
    allow_single : bool
        Let an active party learn the phases of the only other party.
    rounds : int or None
        Iterations of schedule streaming (default: 200).
    """

    worked_out = frozenset({"parties"})
    holding = "columns"

    test_size: float = 0.25
    missing: Literal["encode", MissingRows] = "error"
    parties: int = 4
    active_parties: int = 1
    allow_single: bool = False
    rounds: int | None = None

    @classmethod
    def counted(cls, files: PartyFiles) -> dict[str, Any]:
        """Return the number of parties; one has the labels."""
        return {"parties": len(files.blocks), "active_parties": 1}

    def describe(self) -> str:
        """Describe the split for a caption."""
        return f"{self.parties} parties, {self.active_parties} with labels"


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns(DealtTable):
    """One split of the pooled table.

    Attributes
    ----------
    owner : ndarray of int, shape (n,)
        Active party with the label of each row.
    parts : tuple of ndarray
        Columns of each party.
    actives : int
        Number of active parties, which are the first.
    labelled : tuple of int
        Other parties with unused labels.
    """

    owner: NDArray[np.intp]
    parts: tuple[NDArray[np.intp], ...]
    actives: int
    labelled: tuple[int, ...] = ()

    def alone(self) -> list[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
        """Return rows and columns of each party with labels."""
        found = [(self.owner == p, self.parts[p]) for p in np.unique(self.owner)]
        return found + [(self.complete(self.parts[p]), self.parts[p]) for p in self.labelled]

    def predicts(self, party: int) -> bool:
        """Return whether a party is active."""
        return party < self.actives

    def configured(self, party: int) -> dict[str, Any]:
        """Return the role of a deployed node."""
        return {"role": ACTIVE if self.predicts(party) else PASSIVE}

    def node(self, seed: int, party: int) -> dict[str, Any]:
        """Return rows (in random order), labels and secrets of a party."""
        columns = self.parts[party]
        rows = np.random.default_rng([seed, party]).permutation(len(self.y))
        rows = rows[self.complete(columns)[rows]]
        x = self.x[np.ix_(rows, columns)]
        common = {
            "columns": tuple(self.columns[c] for c in columns),
            "alignment_key": alignment_key(seed),
            "frequency_seed": frequency_seed(seed, party),
        }
        if not self.predicts(party):
            return {"x": x, "ids": rows.astype(str), **common}
        mine, train = self.owner[rows] == party, self.train[rows]
        tests = mine & ~train
        return {
            "x": x[~tests],
            "y": np.where(mine & train, self.y[rows], np.nan)[~tests],
            "weights": None if self.weights is None else self.weights[rows[~tests]],
            "ids": rows[~tests].astype(str),
            "x_test": x[tests],
            "y_test": self.known_labels(rows[tests]),
            "ids_test": rows[tests].astype(str),
            "classes": self.class_names or None,
            "label_bound": self.label_bound,
            **common,
        }


class VerticalData(DealtData[VerticalSettings, Columns]):
    """A table with columns dealt to parties.

    Parameters
    ----------
    settings : VerticalSettings
    """

    client, told = VerticalKernelClient, ("allow_single",)

    def __init__(self, settings: VerticalSettings) -> None:
        if not 1 <= settings.active_parties <= settings.parties:
            raise OptionError(
                f"{settings.active_parties} of {settings.parties} parties are active",
                remedy="use at least one, and no more than there are parties",
                code="FK-OPTION-RANGE",
            )
        super().__init__(settings)

    @property
    def num_clients(self) -> int:
        """Number q of parties."""
        return self.settings.parties

    def facts(self) -> dict[str, Any]:
        """Return columns and rows of the parties."""
        first = self.split(self.settings.seed)
        return {
            **super().facts(),
            "parties": self.settings.parties,
            "active_parties": self.settings.active_parties,
            "columns": first.names(first.parts),
        }

    def deal(self, found: DealtTable, table: Table, seed: int) -> Columns:
        """Deal columns to parties, and labels to active ones."""
        settings, files = self.settings, self.settings.files
        parts = found.columns_of(files, settings.parties, "parties")
        owner, actives = np.zeros(len(found.y), np.intp), settings.active_parties
        for part in (found.train, ~found.train):
            owner[part] = np.arange(int(part.sum())) % actives
        labelled = () if files is None else tuple(k + 1 for k in files.labelled)
        return Columns(**vars(found), owner=owner, parts=parts, actives=actives, labelled=labelled)


class VerticalFamily(Family[FDSKL, VerticalSettings, VerticalData]):
    """FDSKL."""

    strategies = (FDSKL,)
    settings, makes = VerticalSettings, VerticalData
    checked = ("centralised_difference",)
    app, deployable = "fdskl", ("fdskl",)
    dealt_by_nodes = ("parties",)
    usual = "parties schedule features gamma regularization loss"
    curves = (
        Curves(
            "error",
            "Held-out rows during streaming",
            "accuracy, or RMSE of scaled labels",
            {"test_accuracy": "accuracy", "test_rmse": "RMSE"},
        ),
    )
    reading = ("Pooled methods see all columns at once; they need no exchange.",)
    data = "breast-cancer"
    always_secure = "phases without masks show columns"

    def check(self, config: Config) -> None:
        """Refuse options that cannot work before any data is read."""
        super().check(config)
        rounds, schedule = config["data"]["rounds"], config["options"].get("schedule")
        if rounds is not None and schedule != "streaming":
            raise OptionError(
                "rounds is for schedule streaming",
                remedy="add --schedule streaming",
                code="FK-OPTION-CONFLICT",
            )
        check_rounds(config)
        parties, actives = config["data"]["parties"], config["data"]["active_parties"]
        if parties < 2:
            raise OptionError(
                f"parties is {parties}", remedy="use at least 2", code="FK-PARTIES-FEW"
            )
        if actives > 1 and schedule != "streaming":
            raise OptionError(
                f"schedule one-shot trains at one active party, not at {actives}",
                code="FK-SCHEDULE-ACTIVE",
            )
        if parties == 2 and not config["data"]["allow_single"]:
            raise OptionError(
                "of two parties the active one would learn the phases of the other alone",
                code="FK-PARTIES-ALONE",
            )

    def check_data(self, config: Config, prepared: VerticalData) -> None:
        """Refuse options that cannot work with the data.

        Raises
        ------
        OptionError
        """
        super().check_data(config, prepared)
        check_numbers(prepared, "loss", config["options"].get("loss"), "square")
        features = config["options"].get("features")
        if features is not None:  # the equations, or rows and their basis; and copies of them
            rows = len(prepared.split(config["seed"]).x)
            check_memory("features", features, 3.0 * features * min(features, 2 * rows))

    def measure(self, strategy: FDSKL, prepared: VerticalData, config: Config) -> dict[str, Any]:
        """Return the difference from the pooled model, and errors in units of the label."""
        part = prepared.split(strategy.seed or 0)
        half = part.scaling["y_half_range"]
        found: dict[str, Any] = in_units(strategy.metrics_, half)
        if not part.classes and "validation_score" in strategy.metrics_:
            unit = half * part.label_bound
            found["validation_score"] = strategy.metrics_["validation_score"] * unit
        check = self.checks_pooled(prepared, config)
        difference = centralised_difference(strategy, prepared) if check else None
        return found if difference is None else {"centralised_difference": difference, **found}

    def whole_model(self, strategy: FDSKL, prepared: VerticalData, kept: Kept) -> Parts:
        """Return coefficients of active parties and all directions."""
        _, meta = strategy.model()
        split, law = prepared.split(strategy.seed or 0), (strategy.kernel, strategy.gamma_)
        weights, directions = [], []
        offsets: list[list[np.ndarray]] = [[] for _ in split.parts]
        for owner in strategy.upto_:
            found = KeptState.unpack(kept.of_node(meta, owner)).arrays
            alpha = found.get("alpha")
            if alpha is None:  # it has led no iteration
                continue
            count = len(alpha)
            intercept = found.get("intercept", alpha[:0])
            weights.append(np.concatenate([alpha * np.sqrt(count), intercept]))
            placed = np.zeros((count, len(split.columns)))
            for party, columns in enumerate(split.parts):
                seed = frequency_seed(strategy.seed or 0, party)
                placed[:, columns] = draw_directions(seed, owner, count, len(columns), *law)
                offsets[party].append(draw_offsets(seed, owner, count, *law))
            directions.append(placed)
        arrays = {
            "weights": np.concatenate(weights),
            "directions": np.concatenate(directions),
            "offsets": np.array([np.concatenate(part) for part in offsets]),
        }
        told = {
            "blocks": [columns.tolist() for columns in split.parts],
            "sizes": [len(part) for part in weights],
            "phase_bits": strategy.chosen_bits,
            "multiple": strategy.multiple_,
            "label_bound": strategy.label_bound_,
        }
        return Parts("directions", arrays, told)

    def outcome(self, strategy: FDSKL) -> dict[str, Any]:
        """Return the number of parties, and matched rows."""
        return {"survivors": len(strategy.plan_.parties), "matched": strategy.plan_.report()}

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return the numbers of parties and rows."""
        parties = f"{facts['parties']} parties ({facts['active_parties']} with labels)"
        return f"{parties}, {rows_of(facts)}"

    def seen(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return what the server saw, and dropped rows."""
        rows = [["the server saw", "masked phases, which rows belong together"]]
        dropped = result.get("matched", {}).get("dropped_rows", 0)
        return [
            *rows,
            *([["rows dropped because a party lacks them", str(dropped)]] if dropped else []),
        ]


# -- the same training on pooled rows, with the same directions

Floats = NDArray[np.float64]
_CHUNK = 1 << 21  # numbers of a temporary array


@dataclass(frozen=True)
class _Twin:
    """The pooled table with the parties' directions."""

    strategy: FDSKL
    pooled: Columns
    seed: int

    @property
    def targets(self) -> Floats:
        pooled = self.pooled
        if pooled.classes:
            known = np.where(np.isfinite(pooled.y), pooled.y, pooled.classes[0])
            return encode_classes(known, pooled.classes, "the pooled table")
        return np.asarray(pooled.y[:, None] / pooled.label_bound)

    def angles(self, rows: NDArray[np.intp], owner: int, first: int, upto: int) -> Floats:
        """Return omega^T x + b of an owner's directions, shape (rows, upto - first)."""
        out = np.zeros((len(rows), upto - first))
        strategy = self.strategy
        for party, columns in enumerate(self.pooled.parts):
            seed, law = frequency_seed(self.seed, party), (strategy.kernel, strategy.gamma_)
            omega = draw_directions(seed, owner, upto, len(columns), *law)
            out += self.pooled.x[np.ix_(rows, columns)] @ omega[first:].T
            out += draw_offsets(seed, owner, upto, *law)[first:]
        return out

    def announced(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return rows in the order of alignment."""
        ranks = hash_ids(rows.astype(str), alignment_key(self.seed), f"order {self.seed}")
        return rows[sort_order(ranks)]

    def phases(self, rows: NDArray[np.intp], owner: int, upto: int) -> NDArray[np.uint32]:
        """Return phases of 32 bits, shape (rows, upto)."""
        circle = Encoding.circle(32)
        out = np.empty((len(rows), upto), np.uint32)
        step = max(1, _CHUNK // upto)
        for start in range(0, len(rows), step):
            angles = self.angles(rows[start : start + step], owner, 0, upto)
            out[start : start + step] = circle.encode(angles.reshape(-1), 1, name="").reshape(
                angles.shape
            )
        return out


def centralised_difference(strategy: FDSKL, prepared: VerticalData) -> float | None:
    """Return max |f_fed - f_central| over held-out rows, or None without predictions.

    f_central is trained on pooled rows with the same directions, 32-bit phases and the chosen
    hyperparameters.
    """
    seed = strategy.seed or 0
    pooled = prepared.split(seed)
    complete = np.isfinite(pooled.x).all(axis=1)
    twin = _Twin(strategy, pooled, seed)
    train, test = (np.flatnonzero(complete & part) for part in (pooled.train, ~pooled.train))
    descends = strategy.schedule == "streaming" and not strategy.solves
    if strategy.solves:  # from rows of the last half of the batches
        solved = strategy.solved().rows
        train = twin.announced(train)[solved - strategy.plan_.train[strategy.leaders[0]].start]
    if not len(test) or strategy.model_of[0]:
        return None
    central = _streaming if descends else _one_shot
    found = read_predictions(prepared.predictions)
    if not set(test.tolist()) <= found.keys():
        return None  # a run resumed when all was done: they went with the process that made them
    federated = np.array([found[row] for row in test.tolist()]) / pooled.label_bound
    return float(np.abs(central(twin, train, test) - federated).max()) * pooled.label_bound


def _one_shot(twin: _Twin, train: NDArray[np.intp], test: NDArray[np.intp]) -> Floats:
    strategy, owner = twin.strategy, twin.strategy.plan_.actives[0]
    directions = strategy.upto_[owner]
    phases = twin.phases(train, owner, directions)
    targets, multiple = twin.targets[train], strategy.multiple_
    value, more = strategy.regularization_, dict[str, Any](intercept=strategy.has_intercept)
    if strategy.class_weight:
        more["weights"] = balanced_weights(targets, class_counts(targets))
    weights = minimise(strategy.chosen_loss, phases, targets, value, multiple, **more)
    return outputs(twin.phases(test, owner, directions), weights, multiple)


def _streaming(twin: _Twin, train: NDArray[np.intp], test: NDArray[np.intp]) -> Floats:
    """Update f of all rows: n r cosines per iteration."""
    strategy, pooled = twin.strategy, twin.pooled
    batches = {a: twin.announced(train[pooled.owner[train] == a]) for a in strategy.leaders}
    rows, directions = np.concatenate([train, test]), strategy.directions
    place = np.full(len(pooled.y), -1)
    place[rows] = np.arange(len(rows))
    f, targets = np.zeros((len(rows), twin.targets.shape[1])), twin.targets
    done = dict.fromkeys(strategy.leaders, 0)
    for t in range(1, sum(strategy.upto_.values()) // directions + 1):
        leader = strategy.leaders[(t - 1) % len(strategy.leaders)]
        own = batches[leader]
        batch = own[draw_batch(twin.seed, t, len(own), strategy.batch)]
        first = done[leader]
        done[leader] += directions
        angles = twin.angles(rows, leader, first, done[leader])
        features = np.sqrt(2.0) * np.cos(angles)
        regularization = strategy.chosen_regularization
        rate = step_size(strategy.chosen_step, strategy.step_schedule, regularization, t)
        here = place[batch]
        made = new_coefficients(strategy.chosen_loss, f[here], targets[batch], features[here], rate)
        f = f * (1.0 - rate * regularization) + features @ made
    return np.asarray(f[len(train) :])

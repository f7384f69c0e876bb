"""FedCG: rows dealt to hospitals, columns to centres; metrics, table and plot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.hybrid.landmarks import (
    draw_block,
    draw_landmarks,
    moment_sums,
    public_seed,
    read_moments,
)
from fedkern_flwr.hybrid.parties import CENTRE, HOSPITAL
from fedkern_flwr.judging.figures import in_units
from fedkern_flwr.labels import balanced_weights, class_counts, encode_classes
from fedkern_flwr.options import check_memory
from fedkern_flwr.tables.table import Table, how_many

from ...clients import HybridKernelClient
from ...clients.fed_cg_kernel import RunState
from ...strategies import FedCG
from ..run.data import hold_out
from ..run.datasets import three_hospitals
from ..run.entries import Entry
from ..run.party_files import PartyFiles
from ..run.splits import Split, split_rows
from .base import Config, Curves, Family, Kept, chosen, rows_of
from .dealt_data import DealtData, DealtTable, LabelledSettings, alignment_key, check_sites, owners
from .new_rows import Parts, read_predictions
from .pooled import PooledSplit

OWN_BLOCK = "clinical"


@dataclass(frozen=True)
class HybridSettings(LabelledSettings):
    """Rows of each hospital and columns of each centre.

    Columns are dealt in order: the block of the hospitals, then a block per centre.

    Attributes
    ----------
    missing : {"error", "drop-row", "neutral"}
        Rows that lack a block of features.
    hospitals : int
        Hospitals, which hold rows (default: 2).
    centres : int
        Centres, which hold columns.
    own_block : bool
        Hospitals hold the first block of columns.
    split : {"iid", "site", "dirichlet"}
        Split of the rows among hospitals.
    alpha : float
        Concentration of the Dirichlet split.
    allow_single : bool
        Allow a single hospital, and rows that a single centre knows.
    paper_split : bool
        Hold out the rows of the paper: train_test_split of scikit-learn, seed 0.
    """

    worked_out = frozenset({"hospitals"})
    holding = "rows and columns"

    test_size: float = 0.3
    hospitals: int = 2
    centres: int = 2
    own_block: bool = True
    split: Split = "iid"
    alpha: float = 0.5
    allow_single: bool = False
    paper_split: bool = False

    def training(self, table: Table, seed: int) -> NDArray[np.bool_]:
        """Return the training rows."""
        if not self.paper_split:
            return super().training(table, seed)
        hold_out(table, self.test_size, seed)  # refuses shares that cannot be
        from sklearn.model_selection import train_test_split

        rows, _ = train_test_split(np.arange(table.rows), test_size=self.test_size, random_state=0)
        return np.isin(np.arange(table.rows), rows)

    @classmethod
    def counted(cls, files: PartyFiles) -> dict[str, Any]:
        """Return the numbers of hospitals and centres."""
        found = {"hospitals": len(files.owners), "centres": len(files.others), "split": "site"}
        return {**found, "own_block": bool(files.blocks[0])}

    def describe(self) -> str:
        """Describe the split for a caption."""
        own = "" if self.own_block else " (no own columns)"
        return f"{how_many(self.hospitals, 'hospital')}{own} and {how_many(self.centres, 'centre')}"


@dataclass(frozen=True, kw_only=True, eq=False)
class HybridSplit(PooledSplit):
    """Pooled split with the holders of rows and columns.

    Attributes
    ----------
    hospital : ndarray of int, shape (n,)
        Hospital of each training row.
    blocks : dict
        Columns of each block; that of the hospitals first.
    """

    hospital: NDArray[np.intp]
    blocks: Mapping[str, NDArray[np.intp]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pooled(DealtTable):
    """One split of the pooled table.

    Attributes
    ----------
    hospital : ndarray of int, shape (n,)
        Hospital of each row.
    blocks : dict
        Columns of each block; that of the hospitals first.
    labelled : tuple of str
        Blocks of centres with unused labels.
    """

    hospital: NDArray[np.intp]
    blocks: Mapping[str, NDArray[np.intp]]
    labelled: tuple[str, ...] = ()

    @property
    def hospitals(self) -> int:
        """Number of hospitals."""
        return int(self.hospital.max()) + 1

    def pooled(self) -> HybridSplit:
        """Return the pooled split with its holders."""
        mine = self.hospital[self.train]
        return HybridSplit(**vars(super().pooled()), hospital=mine, blocks=self.blocks)

    def alone(self) -> list[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
        """Return rows and columns of parties with labels."""
        own = self.blocks.get(OWN_BLOCK, np.empty(0, np.intp))
        found = [(self.hospital == h, own) for h in range(self.hospitals)]
        return found + [(self.complete(self.blocks[b]), self.blocks[b]) for b in self.labelled]

    def predicts(self, partition: int) -> bool:
        """Return whether a node is a hospital; hospitals come first."""
        return partition < self.hospitals

    def configured(self, partition: int) -> dict[str, Any]:
        """Return the role of a deployed node."""
        return {"role": HOSPITAL if self.predicts(partition) else CENTRE}

    def node(self, seed: int, partition: int) -> dict[str, Any]:
        """Return block, rows and secrets of a node."""
        centre = partition - self.hospitals
        block = OWN_BLOCK if centre < 0 else [b for b in self.blocks if b != OWN_BLOCK][centre]
        columns = self.blocks.get(block, np.zeros(0, np.intp))
        common: dict[str, Any] = {
            "block": block,
            "columns": tuple(self.columns[c] for c in columns),
            "alignment_key": alignment_key(seed),
            "landmark_seed": public_seed(seed, block),
        }
        if centre >= 0:
            rows = np.flatnonzero(self.complete(columns))
            rows = np.random.default_rng([seed, partition]).permutation(rows)
            return {"x": self.x[np.ix_(rows, columns)], "ids": rows, **common}
        mine = self.hospital == partition
        train, test = (np.flatnonzero(mine & part) for part in (self.train, ~self.train))
        return {
            "x": self.x[np.ix_(train, columns)],
            "x_test": self.x[np.ix_(test, columns)],
            "y": self.y[train],
            "ids": train,
            "y_test": self.known_labels(test),
            "ids_test": test,
            "classes": self.class_names or None,
            "label_bound": self.label_bound,
            **common,
        }


class HybridData(DealtData[HybridSettings, Pooled]):
    """A table dealt to hospitals and centres.

    Parameters
    ----------
    settings : HybridSettings
    """

    client, told = HybridKernelClient, ("allow_single",)
    drawn = {"three-hospitals": three_hospitals}  # noqa: RUF012

    def __init__(self, settings: HybridSettings) -> None:
        if settings.hospitals < 1 or settings.centres < 0:
            raise OptionError(
                f"{settings.hospitals} hospitals and {settings.centres} centres",
                remedy="use at least one hospital",
                code="FK-PARTIES-FEW",
            )
        if not settings.centres and not settings.own_block:
            raise OptionError(
                "nobody has columns",
                remedy="use --own-block or more centres",
                code="FK-COLUMNS-FEW",
            )
        super().__init__(settings)

    @property
    def num_clients(self) -> int:
        """Number of hospitals and centres."""
        return self.settings.hospitals + self.settings.centres

    def facts(self) -> dict[str, Any]:
        """Return columns and rows of the parties."""
        first = self.split(self.settings.seed)
        rows, held_out = (
            [int((first.hospital[part] == h).sum()) for h in range(first.hospitals)]
            for part in (first.train, ~first.train)
        )
        return {
            **super().facts(),
            "hospitals": self.settings.hospitals,
            "centres": self.settings.centres,
            "columns": dict(zip(first.blocks, first.names(first.blocks.values()), strict=True)),
            "rows": rows,
            "held_out_rows": held_out,
        }

    def read(self) -> Table:
        """Load the table; alignment finds rows that lack a block."""
        missing = self.settings.missing
        return self.settings.load(missing if missing in ("error", "encode") else "keep")

    def usable(self, table: Table, train: NDArray[np.bool_], seed: int) -> NDArray[np.intp]:
        """Return all rows, or the chosen ones."""
        if self.settings.train_rows is None:
            return np.arange(table.rows)
        return super().usable(table, train, seed)

    def deal(self, found: DealtTable, table: Table, seed: int) -> Pooled:
        """Deal columns to blocks, and rows to hospitals."""
        settings, files = self.settings, self.settings.files
        names = [OWN_BLOCK] * settings.own_block
        names += [f"centre {c + 1}" for c in range(settings.centres)]
        parts = found.columns_of(files, len(names), "blocks")[-len(names) :]
        blocks = dict(zip(names, parts, strict=True))
        keep = np.isfinite(found.y)
        if settings.own_block:
            keep &= found.complete(blocks[OWN_BLOCK])
        rows = np.flatnonzero(keep)
        if len(rows) < len(keep):
            lack = "the label" + " or a value of the hospitals' block" * settings.own_block
            note = f"left out {int((~keep).sum())} of {len(keep)} rows that lack {lack}"
            found = replace(found, notes=(*found.notes, note))
        found = found.take(rows)
        for block, columns in blocks.items():
            if not found.complete(columns).any():
                raise TableError(
                    f"every row lacks a column of block {block!r}", code="FK-VALUES-NOROW"
                )
        labelled = () if files is None else (f"centre {k + 1}" for k in files.labelled)
        hospital = _deal_rows(settings, table.take(rows), found.train, seed)
        return Pooled(**vars(found), hospital=hospital, blocks=blocks, labelled=tuple(labelled))


def _deal_rows(
    settings: HybridSettings, table: Table, train: NDArray[np.bool_], seed: int
) -> NDArray[np.intp]:
    """Return the hospital of each row."""
    if settings.files is not None:
        return owners(table, train, settings.hospitals)
    hospitals, parts = settings.hospitals, [part for part in (train, ~train) if part.any()]
    if settings.split == "site" and table.site is not None:
        sites = check_sites(table, hospitals, "hospitals")
        if any(len(np.unique(table.site[part])) < sites for part in parts):
            parts = [np.ones_like(train)]  # else a hospital's two parts would be of two sites
    hospital = np.empty(table.rows, np.intp)
    for held in map(np.flatnonzero, parts):  # so that every hospital has rows of both kinds
        if len(held) < hospitals:
            raise OptionError(
                f"{len(held)} of {table.rows} rows cannot be dealt to {hospitals} hospitals",
                code="FK-ROWS-FEW",
            )
        rows = table.take(held)
        dealt = split_rows(rows, settings.split, hospitals, seed, alpha=settings.alpha)
        for h, mine in enumerate(dealt):
            hospital[held[mine]] = h
    if (np.bincount(hospital[train], minlength=hospitals) == 0).any():
        raise OptionError("a hospital has no training rows", code="FK-ROWS-FEW")
    return hospital


#: Attacks of the paper's Figure 8 and the two closed forms: name -> how tables call them.
def _server_saw(config: Mapping[str, Any]) -> str:
    """Return what the server saw, in a few words."""
    if config["hospitals"] == 1:
        return "the sums of a single hospital"
    return f"sums over {config['hospitals']} hospitals"


def _missing_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Return rows that count missing blocks."""
    wards = result.get("matched", {}).get("hospitals", {}).values()
    dropped = sum(ward["dropped_rows"] for ward in wards)
    lacking = sum(sum(ward["rows_without_block"].values()) for ward in wards)
    found = (("rows dropped for a missing block", dropped), ("missing blocks", lacking))
    return [[text, str(count)] for text, count in found if count]


class HybridFamily(Family[FedCG, HybridSettings, HybridData]):
    """FedCG."""

    strategies = (FedCG,)
    settings, makes = HybridSettings, HybridData
    left_out = "they lack a block of columns"
    checked = ("centralised_difference",)
    app, deployable = "fed_cg", ("fed-cg",)
    dealt_by_nodes = ("centres",)
    usual = "hospitals centres landmarks gamma regularization tune"
    curves = (
        Curves(
            "residual",
            "Conjugate gradients",
            "residual relative to that of zero",
            {"residual": "FedCG"},
        ),
    )
    data = "breast-cancer"
    always_secure = "columns of a kernel show the rows of a hospital"

    def deal_nodes(self, values: Mapping[str, Any], nodes: int) -> dict[str, Any]:
        """Assign two hospitals by default; the others are centres."""
        hospitals = 2 if values.get("hospitals") is None else int(values["hospitals"])
        if not 1 <= hospitals <= nodes:
            raise OptionError(
                f"{hospitals} hospitals on {nodes} nodes",
                remedy="use more nodes or less hospitals",
                code="FK-PARTIES-FEW",
            )
        return {"hospitals": hospitals, "centres": nodes - hospitals}

    def check(self, config: Config) -> None:
        """Refuse options that cannot work before any data is read."""
        super().check(config)
        if config["data"]["scaling"] == "standard":
            raise OptionError(
                "scaling standard has no public range, within which landmarks are drawn",
                code="FK-SCALING-RANGE",
            )

    def check_data(self, config: Config, prepared: HybridData) -> None:
        """Refuse options that cannot work with the data.

        Raises
        ------
        OptionError
        """
        super().check_data(config, prepared)
        landmarks = config["options"].get("landmarks", "auto")
        if landmarks != "auto":  # equations, at least those of the pooled solution, and copies
            rows, m = len(prepared.split(config["seed"]).x), int(landmarks)
            check_memory("landmarks", m, 3.0 * m * m + rows * m)

    def measure(self, strategy: FedCG, prepared: HybridData, config: Config) -> dict[str, Any]:
        """Return the difference from the pooled model, and errors in units of the label."""
        half = prepared.split(strategy.seed or 0).scaling["y_half_range"]
        found: dict[str, Any] = in_units(strategy.metrics_, half)
        check = self.checks_pooled(prepared, config)
        difference = centralised_difference(strategy, prepared) if check else None
        return found if difference is None else {"centralised_difference": difference, **found}

    def whole_model(self, strategy: FedCG, prepared: HybridData, kept: Kept) -> Parts:
        """Return coefficients, and landmarks from the secrets of the parties."""
        arrays, meta = strategy.model()
        split = prepared.split(strategy.seed or 0)
        landmarks = np.zeros((strategy.landmarks_, len(split.columns)))
        if strategy.basis == "fourier":
            landmarks, offsets = landmarks[::2], np.zeros(len(landmarks) // 2)
        centre = prepared.settings.hospitals
        for block, columns in split.blocks.items():
            partition = 0 if block == OWN_BLOCK else centre
            centre += block != OWN_BLOCK
            party = RunState.unpack(kept.of_node(meta, partition))
            if strategy.basis == "fourier":
                gamma, pairs = float(strategy.gammas_[0]), len(landmarks)
                drawn = draw_block(party.seed, pairs, len(columns), strategy.kernel, gamma)
                landmarks[:, columns] = drawn[:, :-1]
                offsets += drawn[:, -1]
                continue
            unit, moments = np.tile([0.0, 1.0], (len(columns), 1)), party.arrays.get("moments")
            landmarks[:, columns] = draw_landmarks(party.seed, len(landmarks), unit, moments)
        blocks = [columns.tolist() for columns in split.blocks.values()]
        needed = {"needed": blocks[0]} if prepared.settings.missing == "neutral" else {}
        own = {name: meta[name] for name in ("kernel", "noise", "classes", "label_bound")}
        own |= {"blocks": blocks, **needed}
        if strategy.basis == "fourier":
            return Parts("fourier", {**arrays, "directions": landmarks, "offsets": offsets}, own)
        return Parts("landmarks", {**arrays, "landmarks": landmarks}, own)

    def outcome(self, strategy: FedCG) -> dict[str, Any]:
        """Return matched rows, and what was chosen."""
        return {"matched": strategy.plan_.report(), **chosen(strategy)}

    def per_draw(self, entry: Entry) -> dict[str, Any]:
        """Return metrics and squared residuals of each run."""
        return {
            **super().per_draw(entry),
            "squared_residuals": [
                [row["squared_residual"] for row in r["history"] if "squared_residual" in row]
                for r in entry.results
            ],
        }

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return numbers of parties and rows."""
        hospitals, centres = how_many(facts["hospitals"], "hospital"), facts["centres"]
        return f"{hospitals}, {how_many(centres, 'centre')}, {rows_of(facts)}"

    def seen(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return what the server saw, and missing blocks."""
        return [["the server saw", _server_saw(result["config"])], *_missing_rows(result)]


# -- the same system on pooled rows, with the same landmarks

Floats = NDArray[np.float64]

_CHUNK = 1 << 21  # numbers of a chunk of the kernel


def pooled_landmarks(strategy: FedCG, prepared: HybridData) -> dict[str, Floats]:
    """Return the landmarks or directions of each block."""
    seed = strategy.seed or 0
    pooled = prepared.split(seed)
    out = {}
    for block, columns in pooled.blocks.items():
        if strategy.basis == "fourier":
            pairs, gamma = strategy.landmarks_ // 2, float(strategy.gammas_[0])
            seed_of = public_seed(seed, block)
            out[block] = draw_block(seed_of, pairs, len(columns), strategy.kernel, gamma)
            continue
        sampling = strategy.plan_.sampling(block, strategy.chosen_sampling)
        x = pooled.x[np.ix_(taking_part(strategy, pooled) & pooled.train, columns)]
        out[block] = block_landmarks(sampling, strategy.landmarks_, x, seed, block)
    return out


def block_landmarks(sampling: str, m: int, x: Floats, seed: int, block: str) -> Floats:
    """Return the landmarks of a block with training rows ``x`` in [0, 1]."""
    ranges, moments = np.tile([0.0, 1.0], (x.shape[1], 1)), None
    if sampling in ("N", "C"):
        sums = moment_sums(x[np.isfinite(x).all(axis=1)], ranges, sampling)
        moments = read_moments(sums, ranges, sampling)
    return draw_landmarks(public_seed(seed, block), m, ranges, moments)


def taking_part(strategy: FedCG, pooled: Pooled) -> NDArray[np.bool_]:
    """Return which rows take part."""
    if strategy.missing == "drop-row":
        return np.asarray(np.isfinite(pooled.x).all(axis=1))
    return np.ones(len(pooled.x), bool)


def pooled_kernel(
    strategy: FedCG, pooled: Pooled, rows: NDArray[np.intp], landmarks: dict[str, Floats]
) -> Floats:
    """Return the kernel of rows and landmarks from its definition."""
    if strategy.basis == "fourier":
        turns = np.zeros((len(rows), strategy.landmarks_ // 2))
        for block, columns in pooled.blocks.items():
            turns += pooled.x[np.ix_(rows, columns)] @ landmarks[block][:, :-1].T
            turns += landmarks[block][:, -1]
        return np.hstack([np.cos(turns), np.sin(turns)]) / math.sqrt(strategy.landmarks_ / 2)
    total = np.zeros((len(rows), strategy.landmarks_))
    for block, columns in pooled.blocks.items():
        x = pooled.x[np.ix_(rows, columns)]
        known = np.isfinite(x).all(axis=1)
        total[known] += _distances(strategy, x[known], landmarks[block])
    return np.exp(-strategy.gammas_ * total)


def centralised_difference(strategy: FedCG, prepared: HybridData) -> float | None:
    """Return max |f_fed - f_central| over held-out rows, or None without predictions."""
    pooled = prepared.split(strategy.seed or 0)
    here = taking_part(strategy, pooled)
    train, test = (np.flatnonzero(here & part) for part in (pooled.train, ~pooled.train))
    if not len(test) or strategy.budget is not None:
        return None
    landmarks = pooled_landmarks(strategy, prepared)
    m = strategy.landmarks_
    y = pooled.y[:, None]
    if pooled.classes:
        y = encode_classes(pooled.y, pooled.classes, "the pooled table")
    gram, right = np.zeros((m, m)), np.zeros((m, y.shape[1]))
    step = max(1, _CHUNK // m)
    for start in range(0, len(train), step):
        part = train[start : start + step]
        k, goals = pooled_kernel(strategy, pooled, part, landmarks), y[part]
        if strategy.class_weight:
            root = np.sqrt(balanced_weights(goals, class_counts(y[train])))[:, None]
            k, goals = k * root, goals * root
        gram += k.T @ k
        right += k.T @ goals
    if strategy.penalty == "rkhs":
        whole = np.hstack(list(landmarks.values()))
        pairs = np.exp(-strategy.gammas_ * _distances(strategy, whole, whole))
        gram += strategy.regularization_ * pairs
        coefficients = linalg.pinvh(gram) @ right
    else:
        gram[np.diag_indices(m)] += strategy.regularization_
        coefficients = _solve(gram, right)
    found = read_predictions(prepared.predictions)
    worst = 0.0
    for start in range(0, len(test), step):
        part = test[start : start + step]
        central = pooled_kernel(strategy, pooled, part, landmarks) @ coefficients
        if not pooled.classes:
            central = np.clip(central, -pooled.label_bound, pooled.label_bound)
        federated = np.array([found[row] for row in part.tolist()])
        worst = max(worst, float(np.abs(central - federated).max()))
    return worst


def _solve(matrix: Floats, right: Floats) -> Floats:
    try:
        return np.asarray(linalg.solve(matrix, right, assume_a="pos"))
    except linalg.LinAlgError:  # lambda is lost in rounding
        return np.asarray(linalg.lstsq(matrix, right)[0])


def _distances(strategy: FedCG, x: Floats, landmarks: Floats) -> Floats:
    total = np.zeros((len(x), len(landmarks)))
    for column, place in zip(x.T, landmarks.T, strict=True):
        apart = column[:, None] - place
        total += apart**2 if strategy.kernel == "rbf" else np.abs(apart)
    return total

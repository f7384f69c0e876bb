"""FDSKL against its server and its parties."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from fedkern_flwr.kernels.frequencies import draw_directions, public_frequency_seed

from ..attacks.vertical import Hop, VerticalRun
from ..attacks.vertical_inference import (
    differences_of_phases,
    distances_of_phases,
    row_differences,
    row_of_bounds,
    rows_of_known,
    rows_up_to_map,
    without_masks,
)
from ..attacks.vertical_insiders import VerticalInsiders
from .evidence import CHOICES, Sheet, Subject
from .plan import Plan, Recorded, Variant

Floats = NDArray[np.float64]

_TURN = 2.0 * np.pi
_ROWS = 60  # of a run that are attacked one by one
_WORKER, _TOGETHER = "worker of a tree", "passive party and server together"


@dataclass(frozen=True)
class Sums:
    """Numbers o + b of some rows that a viewer has of one party, or what it has in their place.

    Attributes
    ----------
    viewer : str
    values : ndarray, shape (n, R)
    directions : ndarray, shape (R, d), or None
        Known, or given to the viewer; None where nobody gives them.
    truth : ndarray, shape (n, d)
    """

    viewer: str
    values: Floats
    directions: Floats | None
    truth: Floats


def inspect(run: Recorded, sheet: Sheet) -> None:
    """Attack sums of trees or masked vectors, and the phases of the active parties."""
    seen = VerticalRun(run.transcript, run.watcher)
    hops = {viewer: list(seen.hops(viewer)) for viewer in seen.parties}
    masked = list(masked_sums(seen))
    sums = list(of_hops(seen, hops)) if any(hops.values()) else masked
    for each in sums:
        bounds(each, sheet)
        differences(each, sheet)
    two_trees(seen, hops, masked, sheet)
    for each in masked:
        phase_differences(seen, each, sheet)
    for viewer in seen.parties:
        phases(seen, viewer, sheet)


# -- what there is


def of_hops(seen: VerticalRun, hops: dict[int, list[Hop]]) -> Iterator[Sums]:
    """Yield the sums o + b of single parties that workers received."""
    for viewer, received in hops.items():
        for hop in received:
            if hop.tree == 1 and len(hop.parties) == 1:
                truth = seen.features(sorted(hop.parties), viewer, hop.rows)
                yield Sums(_WORKER, hop.values, hop.directions, truth)


def masked_sums(seen: VerticalRun) -> Iterator[Sums]:
    """Yield masked vectors read as angles; the viewer is given the true directions."""
    turn = _TURN / 2.0**seen.settings.phase_bits
    actives = {p for p in seen.parties if seen.phases(p) is not None}
    for vector in seen.masked():
        rows = getattr(vector.request, "rows", np.zeros(0, np.int32))
        party, owner = vector.partition, vector.order.receiver
        if vector.delivered or party in actives or vector.ring.dtype.itemsize > 4:
            continue
        if len(rows) < CHOICES or vector.ring.size % len(rows):
            continue
        values = np.asarray(vector.ring.reshape(len(rows), -1) * turn, np.float64)
        directions, _ = seen.own_directions(party, owner, values.shape[1])
        insider = seen.insiders.parties[party]
        order = insider.kept.arrays["order"]
        truth = insider.client.table.features_of(order[rows])
        yield Sums(_TOGETHER, values, directions, truth)


# -- attacks


def some_rows(count: int, sheet: Sheet) -> NDArray[np.intp]:
    """Draw rows that are attacked one by one."""
    return np.sort(sheet.rng.permutation(count)[:_ROWS])


def bounds(seen: Sums, sheet: Sheet) -> None:
    """Compute rows from the bounds of their masks."""
    rows = some_rows(len(seen.values), sheet)
    truth, found = seen.truth[rows], np.full(seen.truth[rows].shape, np.nan)
    if seen.directions is not None:
        for k, values in enumerate(seen.values[rows]):
            row = row_of_bounds(values, seen.directions)
            if row is not None:
                found[k] = row
    sheet.rows(Subject("LP inference", seen.viewer, "columns of another party"), found, truth)


def differences(seen: Sums, sheet: Sheet) -> None:
    """Compute differences of rows, and distances among them: b is the same in all rows."""
    what = "columns of another party: differences of rows"
    found = None
    if seen.directions is not None:
        found = row_differences(seen.values, seen.directions)[1:]
    truth = (seen.truth - seen.truth[0])[1:]
    sheet.rows(Subject("differences of sums", seen.viewer, what), found, truth)
    far = cdist(seen.values, seen.values, "sqeuclidean")
    what = "columns of another party: distances of rows"
    sheet.distances(Subject("differences of sums", seen.viewer, what), far, seen.truth)


def two_trees(
    seen: VerticalRun, hops: dict[int, list[Hop]], masked: list[Sums], sheet: Sheet
) -> None:
    """Take the masks of one tree off the sums of the other; of a star, one mask off another."""

    def enter(viewer: str, found: Floats | None, truth: Floats) -> None:
        rows = some_rows(len(truth), sheet)
        subject = Subject("two trees", viewer, "omega^T x of other parties")
        sheet.rows(subject, None if found is None else found[rows], truth[rows])

    exposed = 0
    for received in hops.values():
        for group, values in without_masks(received):
            enter(_WORKER, values, sums_of(seen, received[0], group, values.shape[1]))
            exposed += 1
    for one, other in pairwise(masked):
        if one.values.shape == other.values.shape and one.directions is not None:
            enter(one.viewer, one.values - other.values, one.truth @ one.directions.T)
    for received in hops.values():
        firsts = [h for h in received if h.tree == 1]
        if firsts and not exposed:  # these trees keep their values apart: nothing to compute with
            enter(_WORKER, None, sums_of(seen, firsts[0], firsts[0].parties))
            exposed += 1


def sums_of(seen: VerticalRun, hop: Hop, parties: frozenset[int], count: int = 0) -> Floats:
    """Return omega^T x of parties together, for the rows of a hop."""
    width = count or hop.values.shape[1]
    parts = [seen.own_directions(p, hop.owner, width)[0] for p in sorted(parties)]
    features = seen.features(sorted(parties), hop.viewer, hop.rows)
    return np.asarray(features @ np.hstack(parts).T)


def phase_differences(seen: VerticalRun, each: Sums, sheet: Sheet) -> None:
    """Compute differences of rows from masked vectors, as if they were phases."""
    assert each.directions is not None
    noise = _TURN / 2.0**seen.settings.phase_bits
    rows = some_rows(len(each.values), sheet)
    radius = float(each.truth.shape[1] ** 0.5)
    found = differences_of_phases(each.values[rows], each.directions, noise, radius)[1:]
    truth = (each.truth[rows] - each.truth[rows[0]])[1:]
    what = "columns of another party: differences of rows"
    sheet.rows(Subject("phase differences", each.viewer, what), found, truth)


def phases(seen: VerticalRun, viewer: int, sheet: Sheet) -> None:
    """Attack the phases of an active party: with public directions or with guesses of them."""
    known = seen.phases(viewer)
    if known is None or len(known.rows) < CHOICES + 1:
        return
    features = seen.features(seen.others(viewer), viewer, known.rows)
    rows = some_rows(len(known.rows), sheet)
    truth = (features[rows] - features[rows[0]])[1:]
    found = np.full(truth.shape, np.nan)
    radius = float(features.shape[1] ** 0.5)
    for directions in guessed_directions(seen, viewer, known.directions, known.angles.shape[1]):
        tried = differences_of_phases(known.angles[rows], directions, known.noise, radius)[1:]
        better = ~np.isfinite(found).all(axis=1)
        found[better] = tried[better]
    what = "columns of the others: differences of rows"
    sheet.rows(Subject("phase differences", "active party", what), found, truth)
    geometry(seen, known, features, sheet)


def guessed_directions(
    seen: VerticalRun, viewer: int, public: Floats | None, count: int
) -> Iterable[Floats]:
    """Return the directions that are public, or else those that a party may try."""
    if public is not None:
        return [public]
    own, settings = seen.insiders.parties[viewer].kept.seed, seen.settings
    tries: list[Any] = [
        *([public_frequency_seed(seed, p) for p in seen.others(viewer)] for seed in (-1, 0)),
        [own for _ in seen.others(viewer)],
    ]
    sizes = [seen.parties[p].features for p in seen.others(viewer)]
    return [
        np.hstack(
            [
                draw_directions(
                    secret,
                    viewer,
                    count,
                    size,
                    settings.kernel,
                    settings.gamma,
                )
                for secret, size in zip(secrets, sizes, strict=True)
            ]
        )
        for secrets in tries
    ]


def geometry(seen: VerticalRun, known: Any, features: Floats, sheet: Sheet) -> None:
    """Compute what an active party is entitled to: distances, and rows from known records."""
    settings = seen.settings
    far = distances_of_phases(
        known.angles,
        settings.gamma,
        settings.kernel,
    )
    subject = Subject("distances of phases", "active party", "distances of the others' rows", True)
    sheet.distances(subject, far, features)
    up_to_map = rows_up_to_map(known.angles, known.noise)
    records = np.arange(min(features.shape[1] + 1, len(features) // 2))
    rows = rows_of_known(up_to_map, records, features[records]) if up_to_map.consistent else None
    if rows is not None:
        rest = slice(len(records), None)
        subject = Subject("known records", "active party", "the others' rows", True)
        sheet.rows(subject, rows[rest], features[rest])


_FEATURES = 400


def _complete(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Leave the number of directions to the iterations where there are any."""
    if values["schedule"] == "streaming" and values["features"] == _FEATURES:
        values["features"] = None
    return values


PLAN = Plan(
    methods=("fdskl",),
    inspect=inspect,
    variants=(
        Variant("fdskl"),
        Variant("fdskl", {"frequencies": "shared"}, ("phase differences",)),
        Variant("fdskl", {"topology": "tree"}, ("differences of sums", "two trees")),
        Variant(
            "fdskl",
            {"topology": "tree", "frequencies": "shared"},
            ("LP inference", "differences of sums", "phase differences", "two trees"),
        ),
    ),
    defaults={"features": _FEATURES, "regularization": 1e-3, "scaling": "range"},
    why="400 directions and a given lambda: more directions make no attack succeed that fails, "
    "and what is learned from phases is not what is audited.",
    watcher=VerticalInsiders,
    complete=_complete,
)

"""Secure Gram and FedCFK against whoever gets the matrix, and against the server."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.gram import messages as wire
from fedkern_flwr.gram.matrix import packed_diagonal, packed_size, unpack
from fedkern_flwr.seeding import derive_seed

from ....strategies import FedCFK
from ....strategies.gram_release import SAFER_ROWS_PER_ITEM
from ...methods.gram_data import InstanceData
from ..attacks.gram import peel_profiles
from ..attacks.gram_rows import rows_up_to_rotation
from ..attacks.seen import SeenRun
from .evidence import CHOICES, Sheet, Subject
from .plan import Plan, Recorded, Variant

Floats = NDArray[np.float64]

USERS, COMMON, OWNERS = 120, 50, 116
_LEAST, _MOST = 0.06, 0.16  # popularity of the common items
_ROUNDS, _HALF = 12, 0.5  # of merge max, with half the nodes each
_NEVER = 1e-9
_NODES, _PATIENCE, _LIMIT = 4_000, 8, 60  # effort of the search for profiles


class GramRun(SeenRun):
    """A recorded run of Secure Gram or FedCFK."""

    name, kinds, opening = "Secure Gram", wire, wire.SumRequest


def inspect(run: Recorded, sheet: Sheet) -> None:
    """Attack the matrix, the sums of which it is made, and what users ask for."""
    if isinstance(run.prepared, InstanceData):
        masked_features(run, sheet)
        return
    everybody = run.clients.train.toarray().astype(np.float64)
    viewer = "server or any user" if isinstance(run.strategy, FedCFK) else "server"
    rare_items(run, everybody, viewer, sheet)
    cohort_differences(run, everybody, sheet)
    whole_matrix(run, everybody, viewer, sheet)
    if isinstance(run.strategy, FedCFK):
        requests(run, everybody, sheet)


# -- ratings


def rare_items(run: Recorded, users: Floats, viewer: str, sheet: Sheet) -> None:
    """Read the profile of a user off the row of an item that nobody else has.

    Where that item is not in the matrix, the row of the item with the fewest users is read.
    """
    kernel, items = run.strategy.gram_, run.strategy.items_
    support = (users > 0).sum(axis=0)
    shared = np.flatnonzero(support[items] > 1)
    rare = np.flatnonzero(support == 1)
    if len(rare) < CHOICES or not len(shared):
        return
    owners = users[:, rare].argmax(axis=0)
    place = {int(item): k for k, item in enumerate(items)}
    least = int(kernel.diagonal().argmin())
    rows = np.array([place.get(int(item), least) for item in rare])
    truth = users[owners][:, items[shared]]
    subject = Subject("rare items", viewer, "profile of a user with an item of its own")
    sheet.rows(subject, kernel[np.ix_(rows, shared)], truth)


def cohort_differences(run: Recorded, users: Floats, sheet: Sheet) -> None:
    """Solve the sums over ever new sets of nodes for each node's counts.

    Of a single sum, each node's masked vector is read: what the sum without the others would be.
    """
    strategy, parts = run.strategy, run.prepared.parts
    items = strategy.items_
    nodes = np.array([users[part][:, items].sum(axis=0) for part in parts])
    if len(nodes) < CHOICES:
        return
    subject = Subject("cohort differences", "server", "what a single node has")
    if strategy.merge == "max":
        sums = [(m, t) for name, m, t in run.released if _is_matrix(name)]
        taking = np.zeros((len(sums), len(nodes)))
        for row, (members, _) in zip(taking, sums, strict=True):
            row[list(members)] = 1.0
        counts = np.array([packed_diagonal(t, len(items)) for _, t in sums], np.float64)
        middle = counts.sum(axis=0) / max(1.0, taking.sum())  # mean of a node
        more = counts - taking.sum(axis=1, keepdims=True) * middle
        solved = np.linalg.pinv(taking)
        share = np.vecdot(solved, taking.T)[:, None]  # of each node's own counts in its solution
        share = np.where(share > _NEVER, share, np.nan)  # whoever took part in no round
        sheet.rows(subject, middle + solved @ more / share, nodes)
        return
    found = np.full(nodes.shape, np.nan)
    for vector in masked(run):
        numbers, kept = vector.read("fixed point"), len(vector.request.items)
        own = packed_diagonal(numbers[: packed_size(kept)], kept)
        found[vector.partition] = own[np.isin(vector.request.items, items)]
    sheet.rows(subject, found, nodes)


def masked(run: Recorded) -> list[Any]:
    """Return the masked matrix of each node, as the server was sent it.

    Raises
    ------
    ProtocolError
        There is none: nothing could be audited.
    """
    sent = [v for v in GramRun(run.transcript).masked() if not v.delivered]
    matrices = [v for v in sent if _is_matrix(v.order.name)]
    if not matrices:
        raise ProtocolError(
            "the transcript holds no masked matrix", remedy="record all messages as they pass"
        )
    return matrices


def _is_matrix(name: str) -> bool:
    """Whether a sum is one of matrices; sums that are repeated have a number behind the name."""
    return name.partition("#")[0] == wire.GRAM_SUM


def whole_matrix(run: Recorded, users: Floats, viewer: str, sheet: Sheet) -> None:
    """Search profiles that the whole matrix is made of; tell users from made-up ones by them."""
    strategy = run.strategy
    summed = np.concatenate([np.arange(p.start, p.stop) for p in _survivors(run)])
    profiles = users[np.ix_(summed, strategy.items_)]
    if strategy.merge == "max" or not np.isin(profiles, (0.0, 1.0)).all():
        return
    few = len(profiles) < SAFER_ROWS_PER_ITEM * len(strategy.items_)
    found = peel_profiles(strategy.gram_, nodes=_NODES, patience=_PATIENCE, limit=_LIMIT)
    known = {row.tobytes() for row in found.profiles.astype(np.int8)}
    made_up = sheet.rng.permuted(profiles, axis=0)
    real, fake = (
        np.array([float(row.tobytes() in known) for row in rows.astype(np.int8)])
        for rows in (profiles, made_up)
    )
    what = "profile of a user, told from a made-up one"
    sheet.pairs(Subject("whole matrix", viewer, what, documented=few), real, fake)


def _survivors(run: Recorded) -> list[slice]:
    return [run.prepared.parts[p] for p in run.strategy.survivors_]


def requests(run: Recorded, users: Floats, sheet: Sheet) -> None:
    """Guess that an item for whose row a user asked more often is one that it likes."""
    strategy, items = run.strategy, run.strategy.items_
    liked, other = [], []
    for partition, part in enumerate(run.prepared.parts):
        own = users[part][:, items].sum(axis=0) > 0
        if own.all() or not own.any():
            continue
        asked = np.zeros(users.shape[1])
        for wanted in strategy.asked_.get(partition, ()):
            asked[wanted] += 1.0
        liked.append(asked[items[sheet.rng.choice(np.flatnonzero(own))]])
        other.append(asked[items[sheet.rng.choice(np.flatnonzero(~own))]])
    what = "which of two items a user likes"
    sheet.pairs(Subject("noisy requests", "server", what), np.array(liked), np.array(other))


# -- features


def masked_features(run: Recorded, sheet: Sheet) -> None:
    """Read each party's masked products; compute the geometry that the matrix shows."""
    strategy, clients = run.strategy, run.clients
    items = strategy.items_
    size = packed_size(len(items))
    subject = Subject("masked matrix", "server", "distances among rows at one party")
    for vector in masked(run):
        x = clients.x[items][:, clients.parts[vector.partition]]
        numbers = vector.read("fixed point")[:size]
        diagonal = packed_diagonal(numbers, len(items))
        found = diagonal[:, None] + diagonal - 2.0 * unpack(numbers, len(items))
        sheet.distances(subject, found, x)
    rows = rows_up_to_rotation(np.asarray(strategy.linear_))
    truth = clients.x[items]
    what = "distances among the rows, as the matrix tells"
    far = cdist(rows, rows, "sqeuclidean")
    sheet.distances(Subject("whole matrix", "server", what, documented=True), far, truth)


# -- the plan


def made_up_ratings(seed: int) -> str:
    """Return ratings as CSV: 120 users, 50 common items, 116 items with one user each."""
    rng = np.random.default_rng(derive_seed(seed, "ratings of an audit"))
    popularity = np.linspace(_LEAST, _MOST, COMMON)
    has = rng.random((USERS, COMMON)) < popularity
    owners = rng.permutation(USERS)[:OWNERS]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("user", "item"))
    for user in range(USERS):
        writer.writerows((f"u{user}", f"common {item}") for item in np.flatnonzero(has[user]))
        writer.writerows((f"u{user}", f"own {k}") for k in np.flatnonzero(owners == user))
    return text.getvalue()


def _complete(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write ratings where no data are named; let merge max have rounds of half the nodes."""
    if not values["data"]:
        file = folder / "ratings.csv"
        write_atomically(file, made_up_ratings(int(values["seed"])).encode(), private=True)
        values |= {"data": str(file), "user": "user", "item": "item", "users_per_client": 1}
    if values["merge"] == "max":
        if values["rounds"] is None:
            values["rounds"] = _ROUNDS
        if values["participation"] == 1.0:
            values["participation"] = _HALF
    return values


def _spy(strategy: Any, released: list[Any]) -> None:
    """Keep the sums that the server opens: their name, whose they are, and the total."""
    known = strategy.sum_over

    def summed(name: str, *args: Any, **more: Any) -> Any:
        found = yield from known(name, *args, **more)
        released.extend((name, tuple(who), np.array(total)) for who, total in found.values())
        return found

    strategy.sum_over = summed


PLAN = Plan(
    methods=("secure-gram", "fed-cfk"),
    inspect=inspect,
    variants=(
        Variant("secure-gram"),
        Variant("fed-cfk"),
        Variant("secure-gram", {"min_support": 0}, ("rare items",)),
        Variant("secure-gram", {"merge": "max"}, ("cohort differences", "rare items")),
        Variant("fed-cfk", {"min_support": 0}, ("rare items",)),
        Variant("fed-cfk", {"merge": "max"}, ("cohort differences", "rare items")),
        Variant("fed-cfk", {"request": "noisy"}, ("noisy requests",)),
    ),
    defaults={"data": ""},
    why="Made-up ratings of 120 users, a node each: 50 common items, and 116 that a single "
    "user has. With --merge max, 12 rounds of half the nodes.",
    complete=_complete,
    spy=_spy,
)

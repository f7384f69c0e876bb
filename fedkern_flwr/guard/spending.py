"""What releases with noise have cost the rows of a node, in all runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..privacy.accounting import ORDERS, Curve, epsilon_of
from ..privacy.budget import Release
from .ledger_file import Entries
from .orders import refusal
from .policy import NodePolicy
from .rows import RowSet, digest

_ROUNDING = 1e-6
_FEW = 1000  # rows that are compared one by one

#: Of a release: whether it is about held-out rows, its curve (or the key of an earlier release that
#: has the same one), its delta, and of one about some rows where these end, else 0.
Spent = tuple[bool, list[float] | str, float, int]

_BEFORE = "before"  # of a party: all that was told of earlier rows


@dataclass(frozen=True)
class Charge:
    """A release that an answer is about.

    Attributes
    ----------
    key : bytes
        Of its noise: a release that is repeated, with the same noise, is charged once.
    release : Release
        What it costs.
    held_out : bool
        Whether it is about the held-out rows; else about those that are learned from.
    rows : (int, int) or None
        The first of the rows that it is about, and the one after the last; by default all.
    """

    key: bytes
    release: Release
    held_out: bool = False
    rows: tuple[int, int] | None = None


def charge(
    db: Entries,
    run: int,
    charges: Sequence[Charge],
    policy: NodePolicy,
    *,
    taken: RowSet | None = None,
) -> None:
    """Enter what releases cost; refuse those that cost a row more than the node's owner allows.

    Releases of different runs add up, whichever rows they are about: the same patient may have
    another id, another order or another scale in the next run. Two releases do not add up where a
    row is in one of them only for certain: about other rows of the same run, about other places of
    one stream, or about other ids that the owner has declared permanent. What is told of a party
    adds up always.

    Parameters
    ----------
    db, run
        The ledger, and which run it is.
    charges : sequence of Charge
        What is released now.
    policy : NodePolicy
        What the node's owner allows.
    taken : RowSet, optional
        Of a stream: the rows of the message at hand.

    Raises
    ------
    RefusedError
    """
    partition, key = db.partition, db.key
    for one in charges:
        rows = _rows(db, run, one) if taken is None else taken
        if not len(rows):
            continue
        pool = f"{partition}: run {run}"
        if taken is not None:
            pool = f"{partition}: stream"
        elif policy.permanent_ids and not np.array_equal(rows.names, rows.values):
            pool = f"{partition}: ids"
        if one.release.budget.unit == "party":
            everything = np.array(np.frombuffer(digest(key, b"party")[:8], "<u8"))
            rows = rows.union(RowSet(everything, everything))
        curve, delta = json.dumps(one.release.curve.tolist()), one.release.delta
        entry = run, digest(key, one.key), db.keep_array(rows.pack()), curve, delta, pool
        found = db.execute("INSERT OR IGNORE INTO spending VALUES (?, ?, ?, ?, ?, ?)", entry)
        if found.rowcount:
            cost = _epsilon(_about(db, rows, "run = ?", run))
            _check_run(cost, one.release)
            db.execute("UPDATE runs SET epsilon = max(epsilon, ?) WHERE id = ?", (cost, run))
            about = _about(db, rows, "pool = ?", pool)
            others = db.execute(
                "SELECT curve, delta FROM pools WHERE partition = ? AND pool <> ?",
                (partition, pool),
            ).fetchall()
            _check(_epsilon([*about, *others]), policy)
            _keep_most(db, pool, about)


def _keep_most(db: Entries, pool: str, about: Sequence[tuple[str, float]]) -> None:
    """Keep the most that any row of a pool has lost, order by order of the curve."""
    most, delta = _total(about), min(delta for _, delta in about)
    before = db.execute("SELECT curve, delta FROM pools WHERE pool = ?", (pool,)).fetchone()
    if before is not None:
        most, delta = np.maximum(most, json.loads(before[0])), min(delta, before[1])
    values = (db.partition, pool, json.dumps(most.tolist()), delta)
    db.execute("INSERT OR REPLACE INTO pools VALUES (?, ?, ?, ?)", values)


def spend(spent: Mapping[str, Spent], charges: Sequence[Charge]) -> dict[str, Spent]:
    """Return what a run has released with what is released now, by the keys of the noise.

    A server that has a sum made again of other numbers gets other noise and another release: no
    more of them than the run said that it costs.

    Parameters
    ----------
    spent : mapping
        Key of the noise -> whether it is about held-out rows, curve, delta.
    charges : sequence of Charge
        What is released now.

    Raises
    ------
    RefusedError
    """
    found = dict(spent)
    for one in charges:
        release, name, stop = one.release, one.key.hex(), 0
        whole = release.budget.unit == "party"
        if one.rows is not None:
            start, stop = one.rows
            earlier = {k: s for k, s in found.items() if s[3] and k != name}
            if any(s[3] > start for s in earlier.values()):
                raise refusal(
                    "privacy: rows of an earlier message are asked for again",
                    code="FK-BUDGET-AGAIN",
                )
            found = {k: s for k, s in found.items() if k not in earlier}
            if whole and earlier:
                curve = np.sum([s[1] for s in earlier.values()], axis=0).tolist()
                least = min(s[2] for s in earlier.values())
                found[_BEFORE] = (False, curve, least, start)
        elif not (whole or one.held_out or name in found) and any(s[3] for s in found.values()):
            raise refusal("privacy: rows of messages are asked for again", code="FK-BUDGET-AGAIN")
        if name not in found:
            curve = release.curve.tolist()
            alike = (k for k, s in found.items() if not (stop or s[3]) and s[1] == curve)
            found[name] = (one.held_out, next(alike, curve), release.delta, stop)
        about = [s for s in found.values() if whole or s[0] == one.held_out]
        curves = [found[s[1]][1] if isinstance(s[1], str) else s[1] for s in about]
        epsilon = epsilon_of(np.sum(curves, axis=0), min(s[2] for s in about))
        _check_run(epsilon, release)
    return found


def _check_run(epsilon: float, release: Release) -> None:
    """Refuse where a run costs more than it said.

    Raises
    ------
    RefusedError
    """
    if epsilon > release.budget.epsilon * (1.0 + _ROUNDING):
        raise refusal(
            "privacy: the run would cost more than the budget that it declared",
            code="FK-BUDGET-EXCEEDED",
        )


def spent_in_all(db: Entries, partition: int) -> float:
    """Return epsilon of what all runs together have released with noise of one row, at most."""
    query = "SELECT curve, delta FROM pools WHERE partition = ?"
    return _epsilon(db.execute(query, (partition,)).fetchall())


def _check(total: float, policy: NodePolicy) -> None:
    """Refuse where a row would lose more than it may.

    Raises
    ------
    RefusedError
    """
    if total > policy.max_epsilon * (1.0 + _ROUNDING):
        raise refusal(
            f"max_epsilon = {policy.max_epsilon:g}: with this run its rows would lose {total:.3g} "
            "in all runs",
            remedy="use a smaller privacy_epsilon; `fedkern node policy show` has the rules",
            code="FK-BUDGET-SPENT",
        )


def _total(found: Sequence[tuple[str, float]]) -> Curve:
    """Return the curve of releases together."""
    total: Curve = np.zeros(len(ORDERS))
    for curve, _ in found:
        total = total + np.array(json.loads(curve))
    return total


def _epsilon(found: Sequence[tuple[str, float]]) -> float:
    """Return epsilon of releases together, at the smallest of their deltas."""
    return epsilon_of(_total(found), min(delta for _, delta in found)) if found else 0.0


def _about(db: Entries, rows: RowSet, where: str, value: int | str) -> list[tuple[str, float]]:
    """Return curve and delta of the releases of a run, or of a pool, about some of the rows."""
    query = f"SELECT data, curve, delta FROM spending JOIN arrays ON arrays.id = rows WHERE {where}"
    about = db.execute(query, (value,))
    meets = rows.meets
    if len(rows) < _FEW:  # of a stream there are many small sets
        names = set(rows.names.tolist())

        def meets(other: RowSet) -> bool:
            return not names.isdisjoint(other.names.tolist())

    return [(curve, delta) for data, curve, delta in about if meets(RowSet.unpack(data))]


def _rows(db: Entries, run: int, one: Charge) -> RowSet:
    """Return the rows that a release of a run is about; all of its table if it is about a party."""
    whole, first = db.row_set(db.value(_HELD, run)), learned_rows(db, run)
    if one.release.budget.unit == "party":
        return whole.sorted()
    if one.rows is not None:
        return whole.take(slice(*one.rows)).sorted()
    return whole.take(~np.isin(whole.values, first.values)).sorted() if one.held_out else first


_HELD = "SELECT held FROM runs WHERE id = ?"


def learned_rows(db: Entries, run: int) -> RowSet:
    """Return the rows of the table of a run that are learned from."""
    learned = db.value("SELECT learned FROM runs WHERE id = ?", run)
    return db.row_set(db.value(_HELD, run)).take(slice(learned)).sorted()

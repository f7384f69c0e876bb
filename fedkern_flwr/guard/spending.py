"""What releases with noise have cost the rows of a node, in all runs."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..privacy.accounting import ORDERS, Curve, epsilon_of
from ..privacy.budget import Release
from .ledger_file import keep_set, kept_set
from .orders import refusal
from .policy import NodePolicy
from .rows import RowSet, digest

_ROUNDING = 1e-6

#: Of a release: whether it is about held-out rows, its curve (or the key of an earlier release that
#: has the same one) and its delta.
Spent = tuple[bool, list[float] | str, float]


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
    """

    key: bytes
    release: Release
    held_out: bool = False


def kept_noise(db: sqlite3.Connection, run: int) -> bytes:
    """Return the key of the noise of a run; draw it from the operating system, if there is none."""
    db.execute("INSERT OR IGNORE INTO noise VALUES (?, ?)", (run, secrets.token_bytes(32)))
    return bytes(db.execute("SELECT key FROM noise WHERE run = ?", (run,)).fetchone()[0])


def charge(
    db: sqlite3.Connection,
    key: bytes,
    run: int,
    charges: Sequence[Charge],
    policy: NodePolicy,
    party: str,
) -> None:
    """Enter what releases cost; refuse those that cost rows more than the node's owner allows.

    Releases about a set of rows add up with all others about some of the same rows, in this run and
    in others. The rows that a run learns from and those that it holds out are not the same.

    Raises
    ------
    RefusedError
    """
    for one in charges:
        learned, held_out, whole = _rows(db, run)
        rows = held_out if one.held_out else learned
        if one.release.budget.unit == "party":  # whatever is told of it adds up
            rows = whole
        if not len(rows):
            continue
        found = db.execute(
            "INSERT OR IGNORE INTO spending VALUES (?, ?, ?, ?, ?)",
            (
                run,
                digest(key, one.key),
                keep_set(db, key, rows),
                json.dumps(one.release.curve.tolist()),
                one.release.delta,
            ),
        )
        if found.rowcount:
            query = "SELECT curve, delta FROM spending WHERE run = ? AND rows = ?"
            own = db.execute(query, (run, keep_set(db, key, rows))).fetchall()
            _check_run(_epsilon(own), one.release, party)
            _check(db, rows, policy, party)


def spend(spent: Mapping[str, Spent], charges: Sequence[Charge], party: str) -> dict[str, Spent]:
    """Return what a run has released with what is released now, by the keys of the noise.

    A server that has a sum made again of other numbers gets other noise and another release: no
    more of them than the run said that it costs.

    Parameters
    ----------
    spent : mapping
        Key of the noise -> whether it is about held-out rows, curve, delta.
    charges : sequence of Charge
        What is released now.
    party : str
        How errors name this node.

    Raises
    ------
    RefusedError
    """
    found = dict(spent)
    for one in charges:
        release, held_out, key = one.release, one.held_out, one.key.hex()
        if key not in found:
            curve = release.curve.tolist()
            same = next((k for k, s in found.items() if s[1] == curve), curve)
            found[key] = (held_out, same, release.delta)
        whole = release.budget.unit == "party"
        about = [s for s in found.values() if whole or s[0] == held_out]
        curves = [found[s[1]][1] if isinstance(s[1], str) else s[1] for s in about]
        epsilon = epsilon_of(np.sum(curves, axis=0), min(s[2] for s in about))
        _check_run(epsilon, release, party)
    return found


def _check_run(epsilon: float, release: Release, party: str) -> None:
    """Refuse where a run costs more than it said.

    Raises
    ------
    RefusedError
    """
    if epsilon > release.budget.epsilon * (1.0 + _ROUNDING):
        raise refusal("privacy: the run would cost more than the budget that it declared", party)


def spent(db: sqlite3.Connection, run: int) -> float:
    """Return epsilon of what a run has released with noise: the larger of learned and held out."""
    groups: dict[int, list[tuple[str, float]]] = {}
    query = "SELECT rows, curve, delta FROM spending WHERE run = ?"
    for rows, curve, delta in db.execute(query, (run,)).fetchall():
        groups.setdefault(rows, []).append((curve, delta))
    return max((_epsilon(found) for found in groups.values()), default=0.0)


def _check(db: sqlite3.Connection, rows: RowSet, policy: NodePolicy, party: str) -> None:
    """Refuse where the rows would lose more than they may.

    Raises
    ------
    RefusedError
    """
    if not np.isfinite(policy.max_epsilon):
        return
    query = "SELECT rows, curve, delta FROM spending"
    found = [
        (curve, delta)
        for other, curve, delta in db.execute(query).fetchall()
        if rows.meets(kept_set(db, other))
    ]
    total = _epsilon(found)
    if total > policy.max_epsilon * (1.0 + _ROUNDING):
        raise refusal(
            f"max_epsilon = {policy.max_epsilon:g}: with this run its rows would lose {total:.3g} "
            "in all runs",
            party,
            "use a smaller privacy_epsilon; its owner decides, with `fedkern node policy show`",
        )


def _epsilon(found: Sequence[tuple[str, float]]) -> float:
    """Return epsilon of releases together, at the smallest of their deltas."""
    total: Curve = np.zeros(len(ORDERS))
    for curve, _ in found:
        total = total + np.array(json.loads(curve))
    return epsilon_of(total, min(delta for _, delta in found)) if found else 0.0


def _rows(db: sqlite3.Connection, run: int) -> tuple[RowSet, RowSet, RowSet]:
    """Return the rows that a run learns from, those that it holds out, and all of them."""
    held, learned = db.execute("SELECT held, learned FROM runs WHERE id = ?", (run,)).fetchone()
    first = kept_set(db, learned)
    whole = kept_set(db, held)
    rest = ~np.isin(whole.values, first.values)
    return first, whole.take(rest).sorted(), whole

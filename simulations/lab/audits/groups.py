"""HierarchicalSVM against its server, agents, users and label owner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.secure_sum import Encoding

from ..attacks.groups import SVMRun
from ..attacks.groups_inference import (
    columns_in_span,
    gram_of_outputs,
    labels_of_message,
    lone_rows,
)
from ..attacks.groups_insiders import SVMInsiders
from ..attacks.seen import MaskedVector
from .evidence import CHOICES, Sheet, Subject, two_kinds
from .plan import Plan, Recorded, Variant

Floats = NDArray[np.float64]

_GROUPS = 5
_FLAT = 1e-9  # singular values below that, relative to the largest, are rounding
_SHOWN = 1e-5  # largest error of a row that was read off
_USER_SUMS = ("group", "users")


def inspect(run: Recorded, sheet: Sheet) -> None:
    """Attack the messages of a horizontal or of a vertical split."""
    seen = SVMRun(run.transcript, run.watcher)
    if any(party.role == "owner" for party in seen.parties.values()):
        split = _Vertical(run, seen)
        split.test_guesses(sheet)
        split.labels(sheet)
        split.geometry(sheet)
        return
    models(seen, sheet)
    if len(seen.agents) > 2:
        terms(run, seen, sheet)
    if seen.agents and run.strategy.agent_topology == "pairwise":
        late_rows(seen, sheet)


# -- rows at users


def models(seen: SVMRun, sheet: Sheet) -> None:
    """Read the model of a single user, which tells its rows' gradients.

    Of a chain a neighbour unseals it; else the masked vector is read as if it were not masked.
    """
    users = [user for members in seen.groups.values() for user in members]
    own = {user: dict(seen.insiders.parties[user].steps) for user in users}
    unsealed = {
        (user, int(place[2])): numbers
        for viewer in users
        for user, place, numbers in seen.insiders.parties[viewer].opened
        if place[1] == "model"
    }
    sent = _masked_models(seen)
    rounds = sorted({number for _, number in (unsealed or sent)})
    for number in rounds:
        there = [user for user in users if number in own[user]]
        if len(there) < CHOICES:
            continue
        truth = np.array([own[user][number]["model"].ravel() for user in there])
        found = np.full(truth.shape, np.nan)
        for k, user in enumerate(there):
            numbers = unsealed.get((user, number), sent.get((user, number)))
            if numbers is not None:
                found[k] = numbers[: truth.shape[1]]
        viewer = "neighbour in the chain" if unsealed else "server"
        sheet.rows(Subject("single models", viewer, "model of a single user"), found, truth)


def _masked_models(seen: SVMRun) -> dict[tuple[int, int], Floats]:
    """Return (user, iteration) -> its masked vector, read as numbers.

    Raises
    ------
    ProtocolError
        There is none: nothing could be audited.
    """
    found = {
        (v.partition, v.request.round): v.read("fixed point")
        for v in seen.masked()
        if v.order.name.partition("#")[0] in _USER_SUMS
        and not v.delivered
        and seen.parties[v.partition].role == "user"
    }
    if not found:
        raise ProtocolError(
            "the transcript holds no masked model", remedy="record all messages as they pass"
        )
    return found


def terms(run: Recorded, seen: SVMRun, sheet: Sheet) -> None:
    """Compute an agent's term: of a ring from what its neighbours have, else from its mask."""
    subject = Subject("neighbours in a ring", "two agents together", "term of the agent between")
    if run.strategy.agent_topology == "pairwise":
        subject = Subject("neighbours in a ring", "two agents and server together", "another term")
    found = list(_terms(run, seen))
    if found:
        guess, truth = (np.array(side) for side in zip(*found, strict=True))
        sheet.rows(subject, guess, truth)


def _terms(run: Recorded, seen: SVMRun) -> Iterator[tuple[Floats, Floats]]:
    """Yield (what is computed of a term, the term)."""
    own = {
        group: {
            number: kept["term"][: kept["center"].size]
            for number, kept in seen.insiders.parties[agent].steps
        }
        for group, agent in seen.agents.items()
    }
    if run.strategy.agent_topology == "ring":
        encoding = Encoding.fixed_point(run.strategy.bound)
        for group, agent in seen.agents.items():
            received, sent = seen.ring(agent)
            for tick, (before, after) in enumerate(zip(received, sent, strict=False), start=1):
                if group != min(seen.agents) and tick in own[group]:
                    truth = own[group][tick]
                    # words of the ring, whatever their annotation says
                    words = np.asarray(after, np.uint64) - np.asarray(before, np.uint64)
                    between = encoding.decode(words, len(seen.agents))
                    yield between[: truth.size], truth
        return
    group_of = {agent: group for group, agent in seen.agents.items()}
    for vector in seen.masked():
        if vector.order.name == wire.AGENTS_SUM and not vector.delivered:
            term = own[group_of[vector.partition]].get(vector.request.round)
            if term is not None:
                yield vector.read("fixed point")[: term.size], term


def late_rows(seen: SVMRun, sheet: Sheet) -> None:
    """Count rows that an agent reads off the changes of its group's gradients."""
    subject = Subject("late rows", "agent", "rows of its group's users", documented=True)
    for group, users in seen.groups.items():
        rows, gradients = seen.rows(*users), seen.by_agent(group)
        if gradients[0].shape[0] > 1:
            continue
        shown = np.zeros(len(rows), np.bool_)
        for row in lone_rows(gradients):
            shown |= np.abs(rows - row).max(axis=1) < _SHOWN
        sheet.counts(subject, shown)


# -- columns at groups


class _Vertical:
    """A recorded run of a vertical split, and who has which rows."""

    def __init__(self, run: Recorded, seen: SVMRun) -> None:
        self.seen, self.dealt = seen, run.clients.dealt
        self.owner = next(p for p, about in seen.parties.items() if about.role == "owner")
        self.client = seen.insiders.parties[self.owner].client
        order = self.client.table.order(seen.session, self.client.alignment_key)
        self.order = np.asarray(order[seen.kept(self.owner)["take"]])
        table = run.clients.table(self.owner)
        ids = np.concatenate([table["ids"], table.get("ids_test", [])])
        self.trained = len(seen.kept(self.owner)["outputs"])  # rows held out stand behind them
        self.rows = ids[self.order[: self.trained]].astype(int)

    def columns(self, user: int) -> Floats:
        """Return the columns of a user's rows, in the order of its messages."""
        block = self.dealt.blocks[self.seen.parties[user].group]
        return np.asarray(self.dealt.x[np.ix_(self.rows[self.place(user)], block)])

    def place(self, user: int) -> NDArray[np.intp]:
        """Return which rows of the plan a user has to learn from."""
        place = np.asarray(self.seen.kept(user)["place"], np.intp)
        return place[place < self.trained]

    def masked(self, user: int) -> Floats:
        """Return the masked outputs of a user's rows, shape (n, iterations), read as numbers.

        Raises
        ------
        ProtocolError
            There are none: nothing could be audited.
        """
        vectors: list[MaskedVector] = [
            v
            for v in self.seen.masked()
            if v.partition == user and v.order.name == wire.OUTPUT_SUM and not v.delivered
        ]
        if not vectors:
            raise ProtocolError(
                "the transcript holds no masked outputs", remedy="record all messages as they pass"
            )
        read = [v.read("fixed point").reshape(len(self.rows), -1)[:, :1] for v in vectors]
        return np.hstack(read)[self.place(user)]

    def vectors(self, user: int) -> tuple[str, Floats]:
        """Return who looks, and the vectors Z to which a user's columns are said orthogonal."""
        agent = self.seen.agents[self.seen.parties[user].group]
        kept = self.seen.kept(agent).get(f"vectors {user}")
        if kept is not None:
            return "agent", kept
        numbers = self.masked(user)
        few = max(1, len(numbers) // 3)
        numbers = numbers[:, :few] - numbers[:, :few].mean(axis=0)
        return "agent and server together", np.linalg.qr(numbers)[0]

    def test_guesses(self, sheet: Sheet) -> None:
        """Find the true column among ten orders of its values, by the vectors of the product.

        Columns are first made uncorrelated, so that no trial repeats another: what is orthogonal to
        columns is orthogonal to their combinations.
        """
        for user in self.users:
            viewer, vectors = self.vectors(user)
            subject = Subject("orthogonal product", viewer, "a column of a user, among guesses")
            misfits = []
            columns = self.columns(user)
            columns = columns - columns.mean(axis=0)
            left, size, _ = np.linalg.svd(columns, full_matrices=False)
            for column in left[:, size > _FLAT * size[0]].T:
                others = [sheet.rng.permutation(column) for _ in range(CHOICES - 1)]
                misfits.append(columns_in_span(vectors, np.column_stack([column, *others])))
            sheet.guesses(subject, np.array(misfits))

    def labels(self, sheet: Sheet) -> None:
        """Read labels off the signs of the first message that somebody opens."""
        kind = two_kinds(self.dealt.y[self.rows])
        for user in self.users:
            agent, mine = self.seen.agents[self.seen.parties[user].group], kind[self.place(user)]
            opened = self.seen.unsealed(agent, "message")
            viewer, numbers = "agent and server together", self.masked(user)[:, :1]
            if opened:
                members = self.seen.groups[self.seen.parties[user].group]
                numbers = opened[members.index(user)].reshape(len(mine), -1)
                viewer = "agent"
            sheet.order(Subject("labels", viewer, "labels"), labels_of_message(numbers), mine)
            first = self.seen.unsealed(user, "message")[0].reshape(len(mine), -1)
            subject = Subject("labels", "user", "labels of its own rows", documented=True)
            sheet.order(subject, labels_of_message(first), mine)

    def geometry(self, sheet: Sheet) -> None:
        """Compute what the label owner is entitled to: distances among all rows."""
        kept = self.seen.kept(self.owner)
        sent = kept["sent"][:, : kept["outputs"].shape[1]]
        gram = gram_of_outputs(sent, kept["outputs"])
        if gram is None:  # too few iterations: what is in the span of its messages
            inner = sent.T @ kept["outputs"]
            gram = kept["outputs"] @ np.linalg.pinv(inner) @ kept["outputs"].T
        size = gram.diagonal()
        x = self.dealt.x[self.rows]
        spread = x.std(axis=0)
        x = (x - x.mean(axis=0)) / np.where(spread, spread, 1.0)
        far = size[:, None] + size - 2.0 * gram
        subject = Subject("inner products", "label owner", "distances among all rows", True)
        sheet.distances(subject, far, x)

    @property
    def users(self) -> list[int]:
        """All users."""
        return [user for members in self.seen.groups.values() for user in members]


def _complete(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Form groups of agents who are more than two, where there are agents; run long enough."""
    if values["partition"] == "vertical":
        return values
    sized = values["groups"] is not None or values["group_sizes"] is not None
    if values["architecture"] == "hierarchical" and not sized:
        values["groups"] = _GROUPS
    if values["rounds"] is None:
        values["rounds"] = 54
    if values["tolerance"] is None:
        values["tolerance"] = 1e-9
    if values["C"] is None:  # what is attacked are the sums of one model
        values["C"] = 1.0
    return values


PLAN = Plan(
    methods=("hierarchical-svm",),
    inspect=inspect,
    variants=(
        Variant("hierarchical-svm"),
        Variant("hierarchical-svm", {"partition": "vertical"}),
        Variant("hierarchical-svm", {"architecture": "chain"}, ("single models",)),
        Variant("hierarchical-svm", {"agent_topology": "ring"}, ("neighbours in a ring",)),
        Variant(
            "hierarchical-svm",
            {"partition": "vertical", "product": "orthogonal"},
            ("labels", "orthogonal product"),
        ),
    ),
    why="Rows at users: 5 groups of 4, for two agents have no secrets from each other, and 54 "
    "iterations, far beyond what the model needs, as late ones tell most.",
    watcher=SVMInsiders,
    complete=_complete,
    defaults={"scaling": "none"},
    hidden=("delay",),
)

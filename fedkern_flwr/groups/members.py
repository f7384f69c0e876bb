"""Groups of users, their agents and the label owner: do they fit together, and who sees what?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..alignment import SAME_KEY, Positions, count_duplicates, find_rows
from ..errors import CohortError, OptionError, ProtocolError, TableError
from ..wire.describe import check_columns, check_labels, check_partitions, check_spelling, misfit
from .messages import AGENT, OWNER, ROLES, USER, SVMDescribeReply


@dataclass(frozen=True)
class Group:
    """A group of users.

    Attributes
    ----------
    number : int
        From 0.
    agent : int
        Partition of its agent, -1 if there are no agents.
    users : tuple of int
        Partitions, ascending.
    """

    number: int
    agent: int
    users: tuple[int, ...]

    @property
    def members(self) -> list[int]:
        return sorted([*self.users, self.agent])


def read_groups(parties: Sequence[SVMDescribeReply], *, layers: bool) -> tuple[Group, ...]:
    """Return the groups that the nodes report; without ``layers`` all users are one group.

    Raises
    ------
    CohortError
        A group has no users, or not exactly one agent.
    """
    users = [p for p in parties if p.role == USER]
    agents = [p for p in parties if p.role == AGENT]
    if not layers:
        if agents:
            raise CohortError(
                f"partition {agents[0].partition} is an agent, and this architecture has none",
                remedy="leave the agents out, or choose architecture hierarchical",
                phase="describe",
                code="FK-GROUPS-NO-AGENT",
            )
        return (Group(0, -1, tuple(p.partition for p in users)),)
    found = []
    for number in sorted({p.group for p in [*users, *agents]}):
        own = [p.partition for p in agents if p.group == number]
        members = tuple(p.partition for p in users if p.group == number)
        if len(own) != 1 or not members:
            raise CohortError(
                f"group {number} has {len(own)} agents and {len(members)} users",
                remedy="give every group one node with role agent and at least one user",
                phase="describe",
                code="FK-GROUPS-SHAPE",
            )
        found.append(Group(number, own[0], members))
    return tuple(found)


def digest(parties: Iterable[SVMDescribeReply]) -> str:
    """Return a digest of parties and row counts, which must stay the same after a resume."""
    found = hashlib.sha256()
    for p in parties:
        told = (p.partition, p.role, p.group, p.rows, p.test_rows, p.features)
        found.update(repr(told).encode())
    return found.hexdigest()


def check_count(count: int, step_sizes: Sequence[float] | None, leave_out: bool) -> None:
    """Raise OptionError for options that do not fit so many groups."""
    if step_sizes is not None and len(step_sizes) != count:
        raise OptionError(
            f"{len(step_sizes)} step sizes for {count} groups",
            remedy="give each group one",
            code="FK-GROUPS-DIFFER",
        )
    if leave_out and count < 3:
        raise OptionError(
            f"of {count} groups none can be left out: the total would be that of one",
            remedy="use lost_groups stop",
            code="FK-GROUPS-LEFT",
        )


def check_parties(parties: Sequence[Any]) -> None:
    """Refuse clashing partitions, unknown roles, and runs without users."""
    check_partitions(parties)
    for party in parties:
        if party.role not in ROLES or party.group < -1 or (party.role != OWNER and party.group < 0):
            raise misfit(
                party.partition,
                "it is neither a user nor an agent of a group, nor the label owner",
                "set role and group in the node's configuration",
                code="FK-NODE-ROLE",
            )
    if not any(p.role == USER for p in parties):
        raise CohortError(
            "there are no users",
            remedy="start nodes with role user",
            phase="describe",
            code="FK-GROUPS-SHAPE",
        )


def check_horizontal(parties: Sequence[SVMDescribeReply]) -> SVMDescribeReply:
    """Refuse users with different columns or labels; return the first user."""
    users = [p for p in parties if p.role == USER]
    owner = next((p for p in parties if p.role == OWNER), None)
    if owner is not None:
        raise misfit(
            owner.partition,
            "it is a label owner, and in a horizontal split users have their labels",
            "leave it out, or choose partition vertical",
            code="FK-GROUPS-OWNER",
        )
    check_columns(users)
    first = users[0]
    for party in users:
        if not party.rows or not party.outputs:
            raise misfit(
                party.partition,
                "it has no rows with labels to learn from",
                "give every user rows and labels",
                code="FK-LABELS-MISSING",
            )
    check_labels(users, "users")
    return first


def check_single(
    groups: Sequence[Group], parties: Sequence[SVMDescribeReply], *, allow_single: bool
) -> None:
    """Refuse groups of one user: the agent would see that user's model.

    Raises
    ------
    OptionError
        The run does not allow it.
    ProtocolError
        The run allows it, that user does not.
    """
    for group in groups:
        if group.agent < 0 or len(group.users) > 1:
            continue
        alone = group.users[0]
        if not allow_single:
            raise OptionError(
                f"group {group.number} has one user, partition {alone}, whose model its agent "
                "would see",
                remedy="form larger groups, or allow it with --allow-single",
                code="FK-GROUPS-SINGLE",
            )
        if not next(p for p in parties if p.partition == alone).allow_single:
            raise misfit(
                alone,
                "its agent would see its model, and it does not allow that",
                "form larger groups, or set allow_single at this node",
                code="FK-ALONE-REFUSED",
            )


def check_vertical(
    parties: Sequence[SVMDescribeReply], groups: Sequence[Group]
) -> SVMDescribeReply:
    """Refuse nodes that do not fit a vertical split; return the label owner."""
    owners = [p for p in parties if p.role == OWNER]
    if len(owners) != 1:
        raise CohortError(
            f"{len(owners)} nodes have the labels in a vertical split",
            remedy="start one node with role owner, with ids and labels",
            phase="describe",
            code="FK-GROUPS-OWNER",
        )
    owner = owners[0]
    if not owner.rows or not owner.outputs:
        raise misfit(
            owner.partition,
            "it is the label owner and has no labels",
            "give it ids and labels",
            code="FK-LABELS-MISSING",
        )
    known = {p.partition: p for p in parties}
    for group in groups:
        users = [known[user] for user in group.users]
        check_columns(users)
        for party in users:
            if party.outputs:
                raise misfit(
                    party.partition,
                    "it has labels, and in a vertical split the label owner alone has them",
                    "leave its labels out, or choose partition horizontal",
                    code="FK-ROLE-DATA",
                )
            if not party.features:
                raise misfit(
                    party.partition, "it has no columns", "give it features", code="FK-COLUMNS-NONE"
                )
    return owner


@dataclass(frozen=True)
class RowPlan:
    """Matched rows of a vertical split.

    Attributes
    ----------
    rows, all_rows : int
        Training rows; with the held-out rows, which follow them.
    owner : ndarray of int32, shape (all_rows,)
        Position of each row among those that the label owner announced.
    take, place : dict
        User -> positions among its announced rows, and their numbers in the plan.
    dropped : int
        Rows left out because some group lacks them.
    """

    rows: int
    all_rows: int
    owner: Positions
    take: dict[int, Positions]
    place: dict[int, Positions]
    dropped: int

    def learned(self, user: int) -> NDArray[np.int32]:
        place = self.place[user]
        return np.ascontiguousarray(place[place < self.rows])


def match_rows(
    parties: Sequence[SVMDescribeReply],
    groups: Sequence[Group],
    *,
    drop: bool,
    held_out: bool = False,
) -> RowPlan:
    """Find each of the label owner's rows at one user of every group.

    Rows that some group lacks are left out with ``drop``, else they end the run. ``held_out``
    matches only held-out rows, to predict them.

    Raises
    ------
    ProtocolError, TableError
        Rows lack ids, come twice or do not match.
    """
    owner = next(p for p in parties if p.role == OWNER)
    known = {p.partition: p for p in parties if p.role != AGENT}
    for party in known.values():
        name = f"partition {party.partition}"
        if not party.named:
            raise misfit(
                party.partition,
                "its rows have no ids to join them by",
                "give label owner and users ids and an alignment key",
                code="FK-IDS-SOME",
            )
        if repeated := count_duplicates(party.ids):
            raise TableError(
                f"{repeated} duplicate ids",
                remedy="keep one row per id",
                party=name,
                code="FK-IDS-DUPLICATE",
            )
    check_spelling([*known.values()])
    first = owner.rows if held_out else 0
    ids, kind = owner.ids[first:], "held-out" if held_out else "labelled"
    if held_out and not len(ids):
        raise TableError(
            "the label owner holds no rows to predict",
            remedy="name test-data in its --node-config",
            party=f"partition {owner.partition}",
            code="FK-TEST-NONE",
        )
    keep = np.ones(len(ids), bool)
    found: dict[int, Positions] = {}
    for group in groups:
        times = np.zeros(len(ids), np.int64)
        for user in group.users:
            found[user] = find_rows(ids, known[user].ids)
            times += found[user] >= 0
        if (times > 1).any():
            raise TableError(
                f"{int((times > 1).sum())} rows are at two users of group {group.number}",
                remedy="keep each row at one user of a group",
                code="FK-IDS-PARTIES",
            )
        if (missing := int((times == 0).sum())) and not drop:
            raise ProtocolError(
                f"group {group.number} does not hold {missing} of the {len(times)} {kind} rows",
                remedy=f"check ids, {SAME_KEY}, or choose --missing drop-row",
                phase="describe",
                code="FK-ROWS-LACKING",
            )
        keep &= times == 1
    rows, number = int(keep[: owner.rows - first].sum()), np.cumsum(keep) - 1
    if not (keep.any() if held_out else rows):
        raise ProtocolError(
            f"no {kind} row is held by all groups",
            remedy=f"check ids, and {SAME_KEY}",
            phase="describe",
            code="FK-IDS-APART",
        )
    held = {user: np.flatnonzero(keep & (positions >= 0)) for user, positions in found.items()}
    return RowPlan(
        rows,
        int(keep.sum()),
        (first + np.flatnonzero(keep)).astype(np.int32),
        {user: found[user][where].astype(np.int32) for user, where in held.items()},
        {user: number[where].astype(np.int32) for user, where in held.items()},
        int((~keep).sum()),
    )


# -- who sees what of a run, in sentences for its result

Seen = dict[str, list[str]]

_SIZES = "who belongs to which group, with how many rows and columns"
_DECLARED = (
    "what each user declares: bound of its labels; digests of the names of columns and classes; "
    "the fewest rows of its own and of all in a fold"
)
_PUBLIC = [_SIZES, _DECLARED]
_PSEUDONYMS = "pseudonyms of the rows, and which users hold them"
_MODELS = "the global model of each iteration"

#: A vertical split.
_COLUMNS: Seen = {
    "server_sees": [
        "objective and duality gap of each iteration",
        "outcomes on held-out rows",
        _PSEUDONYMS,
        *_PUBLIC,
    ],
    "agent_sees": [
        "means, variances and the model of its group's columns",
        "products of its group's columns with messages that it does not know",
    ],
    "owner_sees": [
        "inner products of all rows: the rows up to a rotation, once there are as many "
        "iterations as columns",
    ],
    "user_sees": [
        "means and variances of its group's columns, and the group's model",
        "messages at its rows, whose signs are at first the labels",
    ],
}
#: A run with a budget of privacy.
_PRIVATE: Seen = {
    "server_sees": [
        "sums of all users' gradients with noise, see budget",
        "outcomes on the held-out rows of all users together, with noise",
        *_PUBLIC,
    ],
    "user_sees": ["the model of each iteration"],
}


def seen_by(options: Mapping[str, Any], layers: bool) -> Seen:
    """Return what server, agents, users and label owner see; ``layers``: there are agents."""
    if options["partition"] == "vertical":
        return _COLUMNS
    if options["privacy_epsilon"] is not None:
        return _PRIVATE
    of_rbf = " and of the random features" if options["model"] == "rbf" else ""
    statistics = f"means and variances of the columns{of_rbf} over all users"
    outcomes = "outcomes on the held-out rows of all users together"
    server = [_MODELS, "the total loss of each class", statistics, outcomes, *_PUBLIC]
    if options["C"] is None:
        server.append("models of each C that is tried and each fold, and losses on the folds")
    if options["class_weight"]:
        server.append("how many rows of each class all users have together")
    if not layers:
        return {"server_sees": server, "user_sees": [_MODELS, statistics]}
    if options["lost_groups"] == "leave-out":
        server.append("about what the term of a group was that is left out, by difference")
    if options["staleness"]:
        server.append("how the terms of the groups change that advance together, two at least")
    return {
        "server_sees": server,
        "agent_sees": [
            "sum of its users' models with their duals, of their losses and of their "
            "distances: sums of gradients, which late in a run may be those of single rows",
            _MODELS,
        ],
        "user_sees": [
            "its group's and the global model of each iteration: its group's sum of gradients",
            statistics,
        ],
    }


def predictions_seen_by(partition: str, sums: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is seen in predictions with a saved model; ``sums`` are of the run."""
    if partition == "horizontal":
        return {
            "protocol": "predictions stay at the users",
            "server_sees": [_SIZES, "how many rows each user predicted"],
            "user_sees": ["the model"],
        }
    return {
        **sums,
        "server_sees": [_SIZES, _PSEUDONYMS, "how many rows were predicted"],
        "owner_sees": ["outputs of the new rows: a linear function of all columns"],
        "user_sees": ["means, variances and the model of its group's columns"],
    }

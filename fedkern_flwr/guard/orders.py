"""Orders of sums: a node contributes to the sum that its method means, and to no other.

Who opens a sum, with which ring and bound, and over whom, is the server's word until the node
compares it with what it derives itself from its own declared ranges and the public options. A
bound taken from the order would be a question about the data: whether a vector fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import RefusedError
from ..exchange import SERVER, SumSpec
from ..privacy.budget import Budget, NoisySum
from ..secure_sum.identity import Counts
from ..secure_sum.membership import Cohort
from ..wire.sums import Order
from .policy import NodePolicy

#: How refusals begin.
REFUSED = "refused by the node"
#: Numbers of the largest array that a request may name: 512 MB of float64.
MOST_NUMBERS = 1 << 26


def check_order(order: Order, spec: SumSpec, *, cohorts: int) -> None:
    """Refuse an order that is not the one which the method means.

    Parameters
    ----------
    order : Order
        As it came.
    spec : SumSpec
        What it must be.
    cohorts : int
        Number of cohorts that this node is a member of.

    Raises
    ------
    RefusedError
    """
    right, bound, terms = spec.encoding, order.bound, "FK-ORDER-TERMS"
    as_meant = bound >= right.bound if spec.wider else bound == right.bound
    noise, rings = NoisySum(order.noise, order.fraction), (right.bits, *spec.rings)
    for term, wrong, code in (
        ("receiver", order.receiver != spec.receiver or order.receiver < SERVER, terms),
        ("masks", order.self_masks != spec.self_masks, terms),
        ("encoding", order.kind != right.kind or order.bits not in rings, terms),
        ("noise", noise != spec.noise, "FK-ORDER-NOISE"),
        ("length", spec.length not in (None, order.length), terms),
        ("bound", not as_meant, "FK-ORDER-BOUND"),
        ("cohort", spec.everybody and cohorts > 1, terms),
    ):
        if wrong:
            raise refusal(f"the {term} of a sum", code=code)


def check_cohort(
    cohort: Cohort,
    counts: Mapping[int, Counts],
    policy: NodePolicy,
    *,
    enough: int,
    holds: bool,
) -> None:
    """Refuse a cohort that hides too little.

    Parameters
    ----------
    cohort : Cohort
        Over which a sum is ordered.
    counts : mapping
        Partition -> what it declared of its table.
    policy : NodePolicy
        What the node's owner allows.
    enough : int
        Parties of a sum that suffice, as the method states.
    holds : bool
        Whether this node has rows; those that have none, such as agents, sum what others had.

    Raises
    ------
    RefusedError
    """
    least = policy.least_parties(enough)
    if len(cohort.members) < least:
        raise refusal(
            f"min_parties = {least}: a sum has {len(cohort.members)}", code="FK-POLICY-PARTIES"
        )
    if not holds:
        return
    declared = [counts[member] for member in cohort.members if member in counts]
    rows = sum(one.rows + one.held_out for one in declared)
    if rows < policy.min_sum_rows:
        raise refusal(
            f"min_sum_rows = {policy.min_sum_rows}: a sum has {rows}", code="FK-POLICY-SUM-ROWS"
        )


def check_run(
    policy: NodePolicy,
    method: str,
    *,
    secure: bool,
    pinned: bool,
    budget: Budget | None = None,
    tells: bool = True,
    remembers: bool = True,
    simulated: bool = False,
) -> None:
    """Refuse a run in which the owner does not take part.

    Parameters
    ----------
    policy : NodePolicy
        What the node's owner allows.
    method : str
        Name under which the run was opened.
    secure : bool
        Whether the run takes secure sums.
    pinned : bool
        Whether this node signs its keys, and knows those of the others.
    budget : Budget, optional
        What the run may cost in privacy; none of a run without noise.
    tells : bool (default: True)
        Whether the method releases anything that depends on values of rows.
    remembers : bool (default: True)
        Whether this node knows what earlier runs cost.
    simulated : bool (default: False)
        Whether all nodes are those of a simulation, which invents no parties.

    Raises
    ------
    RefusedError
    """
    if tells and math.isfinite(limit := policy.max_epsilon):
        most = f"max_epsilon = {limit:g}"
        if budget is None:
            raise refusal(f"{most}: the run adds no noise", code="FK-POLICY-NOISE")
        if budget.epsilon > limit:
            raise refusal(f"{most}: the run costs {budget.epsilon:g}", code="FK-POLICY-EPSILON")
        if not remembers:
            forgets, folder = "it does not know what earlier runs cost", "give it a state_dir"
            raise refusal(f"{most}: {forgets}", remedy=folder, code="FK-POLICY-STATE")
        if not (pinned or simulated):
            noise = f"{most}: it cannot know who adds the others' noise"
            keys = "give it an identity_key and the trusted_keys of the others"
            raise refusal(noise, remedy=keys, code="FK-BUDGET-IDENTITIES")
        if budget.delta > policy.max_delta:
            delta = f"max_delta = {policy.max_delta:g}: that of the run is {budget.delta:g}"
            raise refusal(delta, code="FK-POLICY-DELTA")
        if budget.colluders < 1:
            nobody = "max_epsilon: the run counts on nobody who tells its noise"
            raise refusal(nobody, code="FK-POLICY-COLLUDERS")
    if budget is not None and not secure:
        plain = "privacy: noise is added to secure sums, the run sums in plain"
        raise refusal(plain, code="FK-BUDGET-PLAIN")
    if policy.methods and method not in policy.methods:
        raise refusal(f"methods: {method[:40]} is not among them", code="FK-POLICY-METHODS")
    if policy.require_secure_sums and not secure:
        raise refusal("require_secure_sums: the run sums in plain", code="FK-POLICY-SECURE")
    if policy.require_pinned_identities and not pinned:
        keys = "require_pinned_identities: it has no identity key or no trusted keys"
        raise refusal(keys, code="FK-POLICY-IDENTITIES")


def check_own_rows(policy: NodePolicy, rows: int) -> None:
    """Refuse to take part with next to no rows.

    Raises
    ------
    RefusedError
    """
    if 0 < rows < policy.min_own_rows:
        few = f"min_own_rows = {policy.min_own_rows}: it has {rows}"
        raise refusal(few, code="FK-POLICY-OWN-ROWS")


def check_selection(rows: NDArray[Any], among: range, *, least: int = 0, party: str) -> None:
    """Refuse a selection of rows behind which those of others, or a single one, would stand alone.

    Which rows are in a sum is the server's word: with none of one party's the sum is that of the
    others, and with one row a hundred times it is that of this row.

    Parameters
    ----------
    rows : ndarray of int
        Positions of the rows that are asked for; those not held (-1) do not count.
    among : range
        The positions that may be asked for.
    least : int (default: 0)
        How many it must be, if there are so many: a rule of the node's owner.
    party : str
        How errors name this node.

    Raises
    ------
    RefusedError
    """
    held = rows[rows >= 0]
    if (len(rows) and int(rows.min()) < -1) or len(np.unique(held)) < len(held):
        raise refusal("rows are asked for twice, or are none", party, code="FK-ORDER-ROWS")
    if len(held) and not among.start <= int(held.min()) <= int(held.max()) < among.stop:
        raise refusal(
            "rows are asked for that it did not announce", party=party, code="FK-ORDER-ROWS"
        )
    if len(held) < min(least, len(among)):
        raise refusal(
            f"fewer than {least} of its rows are asked for", party=party, code="FK-ORDER-ROWS-FEW"
        )


def too_few(policy: NodePolicy, tests: Sequence[int], own: int, *, alone: bool) -> str:
    """Return why figures are not reported, nothing if they may be.

    The limit holds at each holder: one with fewer rows adds zeros, whoever else there is, and hides
    nobody's rows.

    Parameters
    ----------
    policy : NodePolicy
        What the node's owner allows.
    tests : sequence of int
        Held-out rows of each party in the sum, this node included.
    own : int
        Those of this node.
    alone : bool
        Whether a single party may report figures of its own rows.
    """
    least = policy.min_evaluation_rows
    if 0 < own < least:
        return f"min_evaluation_rows = {least}: it has {own}"
    if sum(number >= max(1, least) for number in tests) == 1 and not alone:
        return "a single party has enough held-out rows"
    return ""


def check_size(*sizes: int, party: str = "") -> None:
    """Refuse an array that no run needs, before it is allocated.

    One bit of a number in a message may ask for gigabytes. Sizes that follow from the node's own
    table are compared with it; all others, and what they multiply to, end here.

    Parameters
    ----------
    *sizes : int
        Of the array, as the request names them.
    party : str
        How errors name this node.

    Raises
    ------
    RefusedError
    """
    if min(sizes) < 0 or math.prod(sizes) > MOST_NUMBERS:
        raise refusal("sizes that no run needs", party=party, code="FK-ORDER-SIZE")


def refusal(rule: str, party: str = "", remedy: str = "", *, code: str = "") -> RefusedError:
    """Return the error with which a node refuses: it names the rule and quotes no data.

    The client names its party before the error leaves the node.
    """
    return RefusedError(
        f"{REFUSED}: {rule}",
        remedy=remedy or "its owner decides, with `fedkern node policy show`",
        party=party,
        code=code,
    )


def check_binary_columns(policy: NodePolicy, table: NDArray[Any], *, party: str) -> int:
    """Return how many columns of a table have two values; another party is to compute them.

    Raises
    ------
    RefusedError
        They are more than its owner allows.
    """
    if not len(table):
        return 0
    low, high = table.min(axis=0), table.max(axis=0)
    two = ((table == low) | (table == high)).all(axis=0) & (low < high)
    limit = policy.max_binary_columns
    if limit is not None and two.sum() > limit:
        raise refusal(
            f"max_binary_columns = {limit}: its table has more, and others open values of its rows",
            party=party,
            code="FK-POLICY-BINARY",
        )
    return int(two.sum())

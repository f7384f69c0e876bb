"""Read a node's policy, and refuse what the policy or the method does not allow."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from ..errors import OptionError, refusal
from ..exchange import SERVER, SumSpec
from ..privacy.budget import Budget, NoisySum
from ..secure_sum.identity import Counts
from ..secure_sum.membership import Cohort
from ..wire.sums import Order
from .counting import Mode

Counting = Literal["refuse", "warn"]

#: Of a node's configuration: the node is one of a simulation, where all data is in one place.
SIMULATION = "simulation"
_PARTIES = 3
_HEAD = "# What this node takes part in. A line that begins with # is the default.\n\n"

#: What each rule says, in a line.
RULES: Mapping[str, str] = {
    "methods": "names under which runs may be opened; all if empty",
    "min_parties": "least number of parties in a sum; by default 2 where the method says so",
    "colluders": "parties that may work with the server: sums need so many more",
    "min_own_rows": "least number of own rows, and of rows that sums tell apart",
    "min_sum_rows": "least number of declared rows behind a sum",
    "min_evaluation_rows": "least number of held-out rows of each party in figures",
    "require_secure_sums": "refuse runs that sum in plain",
    "require_pinned_identities": "refuse runs without pinned identities",
    "max_evaluations": "how often figures about the same held-out rows are reported, in all runs",
    "report_checks": "report to the server in which columns a summary finds the node unlike others",
    "counting": "more numbers than unknowns over all runs: refuse, or warn",
    "allow_party_change": "let a run have one party more or less than an earlier one",
    "allow_small_sums": "do not count numbers and unknowns",
    "allow_recovery": "let others hold shares of the node's seeds, so that sums survive it",
    "max_epsilon": "largest epsilon of a row in all runs; runs without noise are refused",
    "max_delta": "with max_epsilon: largest delta of a run, the chance that its promise is broken",
    "max_binary_columns": "most own columns of two values where others open values of single rows",
    "permanent_ids": "with budgets: an id is one person for good, other ids are other people",
    "strata": "columns whose values are kept apart when rows are frozen in blocks",
    "labels": "columns without which a row waits, and is in no block",
    "held_out": "hold out a fifth of the rows of a node without test-data",
}
#: Those of them that are in the table ``[freeze]`` of the file.
_FREEZE = ("strata", "labels", "held_out")


@dataclass(frozen=True, kw_only=True)
class NodePolicy:
    """State what a node takes part in.

    Attributes
    ----------
    methods : tuple of str
        Names under which runs may be opened; all if empty. The server gives that name: the app at
        the node decides which requests are answered.
    min_parties : int, optional
        Least number of parties in a sum, and common to all cohorts of its rows. Default: 3, or 2 if
        the method states that two suffice.
    colluders : int
        Number of parties that may work with the server; added to ``min_parties``.
    min_own_rows : int
        Least number of the node's rows, and of rows that sums of all runs may separate from others
        (not of live streams).
    min_sum_rows : int
        Least number of declared rows in a sum.
    min_evaluation_rows : int
        Least number of held-out rows of each party in figures. A party with fewer sends zeros.
    require_secure_sums : bool
        Whether to refuse runs without secure sums.
    require_pinned_identities : bool
        Whether to refuse runs in which the other parties' identities cannot be checked.
    max_evaluations : int
        How often figures about the same held-out rows are reported, in all runs; 0 for never.
    report_checks : bool
        Whether the server gets the columns in which a summary finds this node unlike others.
    counting : {"refuse", "warn"}, optional
        What happens above the release limit: more numbers than unknowns, over all runs. Default:
        ``refuse``, but ``warn`` for the sums of a mod, which no limit fits.
    allow_party_change : bool
        Whether the parties may differ by one from an earlier run of the same rows. The difference
        of the sums is that party's.
    allow_small_sums : bool
        Whether to switch the release limit off.
    allow_recovery : bool
        Whether others get shares of its seeds, so that a sum can be opened if the node drops out.
    max_epsilon : float
        Largest epsilon of one row, in all runs together. If finite, runs without noise are refused,
        and the node needs pinned identities and a ``state_dir`` with a ledger.
    max_delta : float
        Largest delta of a run, if ``max_epsilon`` is finite. The run must then also allow for one
        colluding party that reveals its noise.
    max_binary_columns : int, optional
        Most two-valued columns with which it answers if another party opens values of single rows,
        and so could compute such columns. Default: answer and warn.
    permanent_ids : bool
        Whether an id always means the same person. Then the epsilon of runs about other ids does
        not add up. Default: all runs add up.
    strata : tuple of str
        Columns with a single value in each block of frozen rows. Rows without a value wait.
    labels : tuple of str
        Columns without which a row waits.
    held_out : bool
        Whether a node without ``test-data`` holds out a fifth of its rows for good. Otherwise it
        learns from all, and reports no figures.

    Notes
    -----
    In a file ``strata``, ``labels`` and ``held_out`` are in the table ``[freeze]``.
    """

    methods: tuple[str, ...] = ()
    min_parties: int | None = None
    colluders: int = 0
    min_own_rows: int = 5
    min_sum_rows: int = 5
    min_evaluation_rows: int = 5
    require_secure_sums: bool = True
    require_pinned_identities: bool = False
    max_evaluations: int = 10
    report_checks: bool = False
    counting: Counting | None = None
    allow_party_change: bool = False
    allow_small_sums: bool = False
    allow_recovery: bool = True
    max_epsilon: float = math.inf
    max_delta: float = 1e-5
    max_binary_columns: int | None = None
    permanent_ids: bool = False
    strata: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    held_out: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            allowed = _wrong(name, value)
            if allowed:
                raise OptionError(
                    f"{name} is {str(value)[:40]!r} in a policy",
                    remedy=allowed,
                    code="FK-POLICY-VALUE",
                )

    @property
    def changed(self) -> dict[str, Any]:
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}

    @classmethod
    def of_simulations(cls, **changes: Any) -> NodePolicy:
        """Return the policy of simulated nodes, where all data is in one place: warnings only."""
        relaxed: dict[str, Any] = {
            "min_parties": 2,
            "min_own_rows": 0,
            "min_sum_rows": 0,
            "min_evaluation_rows": 0,
            "require_secure_sums": False,
            "max_evaluations": 1 << 30,
            "counting": "warn",
        }
        return cls(**{**relaxed, **changes})

    def least_parties(self, enough: int) -> int:
        """Return the least number of parties in a sum, for a method that states ``enough``."""
        least = min(_PARTIES, enough) if self.min_parties is None else self.min_parties
        return least + self.colluders


def read_policy(path: str | Path) -> NodePolicy:
    """Read a policy from a TOML file.

    Raises
    ------
    OptionError
        The file cannot be read, or has an unknown rule.
    """
    name = Path(path).name
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise OptionError(f"the policy {name} cannot be read", code="FK-POLICY-FILE") from None
    frozen = found.pop("freeze", {})
    parts = dict(frozen) if isinstance(frozen, dict) else {"freeze": frozen}
    known = {field.name for field in fields(NodePolicy)}.difference(_FREEZE)
    unknown = sorted({*found}.difference(known) | parts.keys() - {*_FREEZE})
    if unknown:
        raise OptionError(
            f"the policy {name} has a rule {unknown[0][:40]!r}",
            remedy=f"choose from {', '.join(sorted(known))}; [freeze] has {', '.join(_FREEZE)}",
            code="FK-POLICY-RULE",
        )
    lists: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in {**found, **parts}.items()
    }
    return NodePolicy(**lists)


def write_policy(policy: NodePolicy) -> str:
    """Return a policy as TOML, one rule with its comment a line; defaults are commented out.

    >>> print(write_policy(NodePolicy(min_own_rows=20)).splitlines()[5])
    min_own_rows = 20  # least number of own rows, and of rows that sums tell apart
    """
    lines = []
    for field in fields(NodePolicy):
        value = getattr(policy, field.name)
        plain = value == field.default
        text = f"{field.name} = {toml(_DEFAULTS.get(field.name, value) if plain else value)}"
        if field.name == _FREEZE[0]:
            named = any(getattr(policy, name) for name in _FREEZE)
            lines.append("[freeze]\n" if named else "# [freeze]\n")
        lines.append(f"{'# ' if plain else ''}{text}  # {RULES[field.name]}\n")
    return "".join([_HEAD, *lines])


def node_policy(given: NodePolicy | str | Path | None, context: Context) -> NodePolicy:
    if isinstance(given, NodePolicy):
        return given
    if given is not None:
        return read_policy(given)
    return _usual(is_simulated(context))


@cache  # a client is made for every message
def _usual(simulated: bool) -> NodePolicy:
    return NodePolicy.of_simulations() if simulated else NodePolicy()


def as_simulated(context: Context) -> Context:
    """Mark the context of an app's node as simulated: it loads its part of public data itself."""
    context.node_config[SIMULATION] = True
    return context


def is_simulated(context: Context) -> bool:
    return context.node_config.get(SIMULATION) is True


def _wrong(name: str, value: Any) -> str:
    """Return which values a rule allows, if this is none of them."""
    kind = type(value)
    if name in ("strata", "labels"):
        names = kind is tuple and all(type(w) is str and w for w in value)
        return "" if names else 'use a list of columns, such as ["sex"]'
    if name == "methods":
        words = kind is tuple and all(type(w) is str and _NAME.fullmatch(w) for w in value)
        return "" if words else 'use a list of names, such as ["pof-mkl"]'
    if name == "counting":
        ways = get_args(Counting)
        return "" if value is None or value in ways else f"choose {' or '.join(map(repr, ways))}"
    if name in ("max_epsilon", "max_delta"):
        number = kind in (int, float) and value >= 0.0
        return "" if number else "use a number from 0"
    if type(_BY_NAME[name].default) is bool:
        return "" if kind is bool else "use true or false"
    least = _LEAST.get(name, 0)
    whole = (kind is int and value >= least) or (value is None and _BY_NAME[name].default is None)
    return "" if whole else f"use a whole number from {least}"


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)


_NAME = re.compile(r"[\w.-]+", re.ASCII)
_BY_NAME: Mapping[str, Any] = {field.name: field for field in fields(NodePolicy)}
_LEAST = {"min_parties": 2}  # of whole numbers; 0 for the others
_DEFAULTS: Mapping[str, Any] = {
    "min_parties": _PARTIES,
    "counting": "refuse",
    "max_binary_columns": 0,
}  # what None means, or warns of


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Combine the owner's policy with what the client reports about its rows.

    ``mode`` is what happens above the release limit. ``records`` is whether the rows are records
    that must hide among each other. ``enough`` parties in a sum suffice, as the method states.
    ``apart`` names a freeze of rows other than the node's table.
    """

    policy: NodePolicy = NodePolicy()
    mode: Mode = "refuse"
    records: bool = True
    enough: int = 3
    apart: str = ""


# -- requests for sums: a node contributes to the sum that its method means, and to no other
#
# The server says who opens a sum, with which ring and bound, and over whom. The node compares this
# with what it derives from its own declared ranges and the public options. With a bound from the
# server, a refusal would reveal whether a vector fits.

#: Numbers of the largest array that a request may name: 512 MB of float64.
MOST_NUMBERS = 1 << 26


def check_order(order: Order, spec: SumSpec, *, cohorts: int) -> None:
    """Refuse a request for a sum (``order``) other than the one that the method means (``spec``).

    This node is a member of ``cohorts`` cohorts.
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
    rules: Rules,
    *,
    holds: bool,
) -> None:
    """Refuse a cohort with too few parties or rows.

    ``counts`` are the row counts that each partition declared. Without rows at this node
    (``holds``) only the parties count: such parties, as agents, sum other parties' values.
    """
    policy = rules.policy
    least = policy.least_parties(rules.enough)
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

    ``pinned`` is whether this node signs its keys, and knows those of the others. ``budget`` is
    None for a run without noise. ``tells`` is whether anything is released that depends on values
    of rows, ``remembers`` whether this node knows what earlier runs cost. In simulations
    (``simulated``) no party can be invented.
    """
    if tells and math.isfinite(limit := policy.max_epsilon):
        most = f"max_epsilon = {limit:g}"
        if budget is None:
            raise refusal(f"{most}: the run adds no noise", code="FK-POLICY-NOISE")
        if budget.epsilon > limit:
            raise refusal(f"{most}: the run costs {budget.epsilon:g}", code="FK-POLICY-EPSILON")
        if not remembers:
            forgets = "it does not know what earlier runs cost"
            raise refusal(f"{most}: {forgets}", code="FK-POLICY-STATE")
        if not (pinned or simulated):
            noise = "it cannot know who adds the others' noise"
            raise refusal(f"{most}: {noise}", code="FK-BUDGET-IDENTITIES")
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
    if 0 < rows < policy.min_own_rows:
        few = f"min_own_rows = {policy.min_own_rows}: it has {rows}"
        raise refusal(few, code="FK-POLICY-OWN-ROWS")


def check_selection(rows: NDArray[Any], among: range, *, least: int = 0, party: str) -> None:
    """Refuse a selection of rows that would isolate other parties' rows, or a single row.

    The server chooses the rows of a sum. If it selects no row of one party, the sum is that of the
    others; one row repeated a hundred times would be shown alone. ``rows`` are positions in
    ``among``, -1 for a row of another party; there must be at least ``least`` (or all, if there are
    fewer).
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
    """Return why figures are not reported; "" if they may be.

    The limit holds at each party: one with fewer rows adds zeros, and so hides no other's rows.
    ``tests`` are the held-out rows of each party in the sum, ``own`` those of this node. With
    ``alone`` a single party may report figures of its rows.
    """
    least = policy.min_evaluation_rows
    if 0 < own < least:
        return f"min_evaluation_rows = {least}: it has {own}"
    if sum(number >= max(1, least) for number in tests) == 1 and not alone:
        return "a single party has enough held-out rows"
    return ""


def check_size(*sizes: int, party: str = "") -> None:
    """Refuse an array that no run needs, before it is allocated.

    One flipped bit of a number in a message may request gigabytes. Sizes that follow from the
    node's table are compared with it; all other sizes are limited here, by their product.
    """
    if min(sizes) < 0 or math.prod(sizes) > MOST_NUMBERS:
        raise refusal("sizes that no run needs", party=party, code="FK-ORDER-SIZE")


def check_binary_columns(policy: NodePolicy, table: NDArray[Any], *, party: str) -> int:
    """Return how many columns of a table have two values, since another party can compute them.

    Raises
    ------
    RefusedError
        There are more than the owner allows.
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

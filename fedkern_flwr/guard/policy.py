"""What the owner of a node allows: a few rules, with defaults that suit most."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from flwr.app import Context

from ..errors import OptionError

Counting = Literal["refuse", "warn"]

#: Of a node's configuration: the node is one of a simulation, where all data is in one place.
SIMULATION = "simulation"
_PARTIES = 3


@dataclass(frozen=True, kw_only=True)
class NodePolicy:
    """The rules of a node.

    Attributes
    ----------
    methods : tuple of str
        Methods that it takes part in, by the names under which runs are opened; all if empty.
    min_parties : int, optional
        Least number of parties in a sum. By default 3, or 2 where the method states that two do.
    min_own_rows : int
        Least number of rows with which it takes part, if it has any; and two runs may not differ
        by fewer of its own rows.
    min_sum_rows : int
        Least number of declared rows behind a sum.
    min_evaluation_rows : int
        Least number of held-out rows about which figures are told.
    require_secure_sums : bool
        Whether it refuses runs in which it would send its part in plain.
    require_pinned_identities : bool
        Whether it refuses runs in which it cannot check who the others are.
    max_evaluations : int
        How often figures about the same held-out rows are told, whatever the model.
    counting : {"refuse", "warn"}, optional
        What happens where more numbers would be released than there are unknowns behind them. By
        default ``refuse`` for gradients and statistics of streams, ``warn`` elsewhere.
    allow_small_sums : bool
        Whether the rule of counting does not apply.
    allow_recovery : bool
        Whether shares of its seeds are held by others, so that a sum can be opened if it vanishes.
    max_epsilon : float
        Largest privacy loss of a run that it takes part in; of no effect while no method adds
        noise.
    """

    methods: tuple[str, ...] = ()
    min_parties: int | None = None
    min_own_rows: int = 5
    min_sum_rows: int = 5
    min_evaluation_rows: int = 5
    require_secure_sums: bool = True
    require_pinned_identities: bool = False
    max_evaluations: int = 10
    counting: Counting | None = None
    allow_small_sums: bool = False
    allow_recovery: bool = True
    max_epsilon: float = math.inf

    @classmethod
    def of_simulations(cls, **changes: Any) -> NodePolicy:
        """Return the policy of nodes whose data lies in one place anyway: warnings only."""
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
        """Return how many parties a sum must have, in a method that states that so many do."""
        return min(_PARTIES, enough) if self.min_parties is None else self.min_parties


def read_policy(path: str | Path) -> NodePolicy:
    """Read a policy from a TOML file.

    Raises
    ------
    OptionError
        The file cannot be read, or has a rule that there is not.
    """
    name = Path(path).name
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise OptionError(
            f"the policy {name} cannot be read", remedy="write it as TOML, one rule a line"
        ) from None
    known = {field.name for field in fields(NodePolicy)}
    unknown = sorted(set(found) - known)
    if unknown:
        raise OptionError(
            f"the policy {name} has a rule {unknown[0][:40]!r}",
            remedy=f"choose from {', '.join(sorted(known))}",
        )
    if "methods" in found:
        found["methods"] = tuple(found["methods"])
    return NodePolicy(**found)


def node_policy(given: NodePolicy | str | Path | None, context: Context) -> NodePolicy:
    """Return the policy of a node: as given, else the default of nodes or that of simulations.

    Raises
    ------
    OptionError
    """
    if isinstance(given, NodePolicy):
        return given
    if given is not None:
        return read_policy(given)
    return NodePolicy.of_simulations() if is_simulated(context) else NodePolicy()


def is_simulated(context: Context) -> bool:
    """Tell whether a node is one of a simulation; one that does not say so is not."""
    return context.node_config.get(SIMULATION) is True

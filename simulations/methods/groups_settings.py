"""What is said of the data of HierarchicalSVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fedkern_flwr.encoding.columns import Scaling
from fedkern_flwr.errors import OptionError
from fedkern_flwr.vertical.parties import MissingRows

from ..run.party_files import PartyFiles
from ..run.splits import Split
from .labelled_data import LabelledSettings

Partition = Literal["horizontal", "vertical"]


@dataclass(frozen=True)
class HierarchicalSettings(LabelledSettings):
    """Which users are in which group, and who holds what.

    Horizontal: every user holds rows with their labels. Vertical: every group holds a block of
    columns, dealt in order, its users rows of it; a label owner holds the labels. Rows held out are
    dealt to the users as well, users to groups evenly and in order.

    Attributes
    ----------
    partition : {"horizontal", "vertical"}
        How the table is split.
    users : int
        N, all users (default: 20).
    groups : int or None
        S, groups with an agent each; by default none, in a vertical split 2.
    group_sizes : tuple of int or None
        Users of each group, separated by commas, instead of --groups.
    split : {"iid", "site", "dirichlet"}
        How rows are dealt to users (horizontal).
    alpha : float
        Concentration of the Dirichlet split.
    delay : str or None
        Simulated: replies of a group's users come later by exponential:SECONDS, drawn per
        iteration, or fixed:SECONDS; a number for each group, separated by commas.
    rounds : int or None
        Most iterations (default: 200).
    """

    of_method = frozenset({"partition"})
    worked_out = frozenset({"users", "groups"})

    test_size: float = 0.3
    missing: Literal["encode", MissingRows] = "error"
    scaling: Scaling = "none"
    partition: Partition = "horizontal"
    users: int = 20
    groups: int | None = None
    group_sizes: tuple[int, ...] | None = None
    split: Split = "iid"
    alpha: float = 0.5
    rounds: int | None = None
    delay: str | None = None

    @classmethod
    def counted(cls, files: PartyFiles) -> dict[str, Any]:
        """Return how many users there are, each with rows of its own."""
        return {"users": len(files.owners), "partition": "horizontal", "split": "site"}

    @property
    def grouped(self) -> bool:
        """Whether groups were named."""
        return self.groups is not None or self.group_sizes is not None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of users of each group; without groups all users are one.

        Raises
        ------
        OptionError
            Users cannot be dealt to groups like that.
        """
        sizes = self.group_sizes
        if sizes is None:
            groups = self.groups or (2 if self.partition == "vertical" else 1)
            if not 1 <= groups <= self.users or self.groups == 0:
                raise OptionError(
                    f"{self.users} users cannot be dealt to {self.groups} groups",
                    remedy="use at least one group, and at least as many users",
                    code="FK-PARTIES-FEW",
                )
            each, more = divmod(self.users, groups)
            sizes = tuple(each + (g < more) for g in range(groups))
        if min(sizes) < 1 or sum(sizes) != self.users:
            listed = ", ".join(map(str, sizes))
            raise OptionError(
                f"groups of {listed} users are not {self.users} users",
                remedy="use positive sizes that add up to --users, or leave out --users",
                code="FK-GROUPS-DIFFER",
            )
        return sizes

    def describe(self) -> str:
        """Return who is in which group, for the caption of a table."""
        sizes = self.sizes
        if max(sizes) - min(sizes) > 1:
            return f"groups of {', '.join(map(str, sizes))} users"
        return f"{self.users} users in {len(sizes)} group{'s' * (len(sizes) > 1)}"

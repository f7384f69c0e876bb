"""What a party of FedCG remembers of a run between two messages; small, never sent."""

from __future__ import annotations

from fedkern_flwr.node.kept_state import KeptState


class RunState(KeptState):
    """State of a run.

    Its seed is the secret of the block's landmarks. ``settings`` holds what the server asked for,
    and how far the kernel of a hospital is. ``arrays``:

    ``order`` (rows,), the row of the table at each announced position; ``gammas`` (1,) or (m,);
    ``moments`` (2, d), if landmarks are normal. At a hospital ``rows``, its announced rows in the
    kernel's order, ``gram`` and ``right``, the normal equations so far. In a chain
    ``rows/<hospital>`` and what the method keeps.
    """

    @property
    def begun(self) -> bool:
        """Whether the settings of the run have arrived."""
        return "landmarks" in self.settings

    @property
    def landmarks(self) -> int:
        """Number m of landmarks."""
        return int(self.settings["landmarks"])

    @property
    def train(self) -> int:
        """Training rows of the kernel."""
        return int(self.settings["train"])

    @property
    def total(self) -> int:
        """Rows of the kernel."""
        return int(self.settings["total"])

    @property
    def done(self) -> int:
        """Rows of the kernel that have been made."""
        return int(self.settings["done"])

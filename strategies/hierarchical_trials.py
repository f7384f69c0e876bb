"""C is chosen: several are tried side by side, and the run goes on with one of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkern_flwr.groups.consensus import Floats
from fedkern_flwr.groups.trials import (
    FOLDS,
    ITERATIONS,
    JUDGED,
    LEAST_ROUNDS,
    TRIED,
    choose,
    folds_held_out,
    part_of,
)
from fedkern_flwr.strategy import logger

from .hierarchical_cohorts import Grouped


class Trials(Grouped):
    """What is tried, and what follows from it.

    Attributes
    ----------
    tuned_ : dict
        What was tried and chosen, or why nothing was; empty where C was given.
    tried_ : tuple of float
        C that are or were tried.
    folds_ : int
        How many folds are held out in turn.
    """

    def _reset(self) -> None:
        super()._reset()
        self.tuned_: dict[str, Any] = {}
        self.tried_: tuple[float, ...] = ()
        self.folds_ = 0
        self._found = self._chosen = -1  # positions of what was found, of what the run goes on with

    def result(self) -> dict[str, Any]:
        """Return the result of the last run, with what was tried and chosen in it."""
        return {**super().result(), **({"tuned": self.tuned_} if self.tuned_ else {})}

    @property
    def rows_(self) -> int:
        """Rows to learn from, of all users."""
        return sum(self.party_of(user).rows for user in self.users_)

    @property
    def trying(self) -> bool:
        """Whether outputs are those of all that are tried."""
        return self.folds_ > 0 and self._chosen < 0

    @property
    def each_c(self) -> Floats:
        """C of each output, shape (k, 1)."""
        if not self.trying:
            return super().each_c
        return np.tile(np.repeat(self.tried_, self.outputs_), self.folds_)[:, None]

    def plan_trials(self, width: int) -> None:
        """Try several C, if none is given, and users and options allow it."""
        if self.C is not None:
            return
        if why := self._why_not():
            self.tuned_ = {"C": self.C_, "by": "nothing", "why": why}
            logger.info("C = 1: %s", why)
            return
        self.tried_, self.folds_ = TRIED, folds_held_out(self.outputs_, width)

    def _why_not(self) -> str:
        """Return why nothing is tried."""
        if self.architecture == "chain" or self.consensus == "paper" or self.ring or self.staleness:
            return "that is for groups that wait for each other, of consensus exact, without a ring"
        if self.rho is not None or self.step_sizes is not None or self.sigma is not None:
            return "penalties are given"
        if self.num_rounds < LEAST_ROUNDS:
            return f"fewer than {LEAST_ROUNDS} rounds"
        users = [self.party_of(user) for user in self.users_]
        if any(user.counting == "refuse" for user in users):
            return "a user counts what is released, and refuses more than there are unknowns"
        if any(user.rows // FOLDS < user.fold_rows for user in users):
            return "a fold would have too few rows of a user"
        for group in self.groups_:
            members = [self.party_of(user) for user in group.users]
            least = max(one.fold_sum_rows for one in members)
            if sum(one.rows // FOLDS for one in members) < least:
                return "a fold would have too few rows of a group"
        return ""

    def take_losses(self, number: int, losses: Floats) -> None:
        """Choose by the losses that came with the record of an iteration, if it is the one."""
        if not self.trying or number < JUDGED or self._found >= 0:
            return
        self._found, errors = choose(losses, self.folds_, self.tried_)
        found = self.tried_[self._found]
        held = f"{self.folds_} folds" if self.folds_ > 1 else f"one fold of {FOLDS}"
        self.tuned_ = {
            "by": held,
            "why": "all that is tried",
            "Cs": list(self.tried_),
            "losses": errors,
            "C": found,
            "iterations": ITERATIONS,
        }
        logger.info("by %s: C %g", held, found)

    def is_judged_at(self, number: int) -> bool:
        """Tell whether losses that come with the record of an iteration are of the rows learned."""
        return not self.folds_ or number > ITERATIONS

    def is_settled_at(self, number: int) -> bool:
        """Go on with what was chosen, if the center of that iteration is the first of it."""
        if not self.trying or self._found < 0 or number < ITERATIONS:
            return False
        self._chosen, self.C_ = self._found, self.tried_[self._found]
        return True

    def chosen_of(self, stacked: Floats) -> Floats:
        """Return what belongs to the chosen C, of what belongs to all that were tried."""
        return part_of(stacked, self.folds_, len(self.tried_), self._chosen)

    def chosen_field(self) -> dict[str, Any]:
        """Return the field of a request that says which C it goes on with."""
        return {"chosen": self._chosen}

    # -- checkpoints

    def trials_meta(self) -> dict[str, Any]:
        """Return how far that is, for a checkpoint."""
        own = {"tuned": self.tuned_, "tried": list(self.tried_), "folds": self.folds_}
        return {**own, "found": self._found, "chosen": self._chosen}

    def take_trials(self, meta: dict[str, Any]) -> None:
        """Take that from a checkpoint."""
        self.tuned_, self.tried_, self.folds_ = meta["tuned"], tuple(meta["tried"]), meta["folds"]
        self._found, self._chosen = int(meta["found"]), int(meta["chosen"])
        if self._chosen >= 0:
            self.C_ = self.tried_[self._chosen]

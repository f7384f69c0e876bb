"""A user's local problems, those of several C side by side while C is chosen."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Floats
from fedkern_flwr.groups.trials import FOLDS, MOST_TRIED, deal, part_of
from fedkern_flwr.guard import refusal
from fedkern_flwr.solvers.local_solvers import balanced_weights, solve_local, total_loss

from .hierarchical_node import SVMNode

#: What a user keeps of each output.
_STACKED = ("model", "dual", "counted", "rho", "memory", "group_center", "group_dual")


class SolverOfUser(SVMNode):
    """What a user computes with its rows.

    While C is tried, outputs are those of :mod:`fedkern_flwr.groups.trials`: each learns from the
    rows of the other folds, and its loss is that of the fold.
    """

    # -- what is tried

    def check_trials(self, request: wire.StatisticsRequest) -> None:
        """Refuse to try more than a few C, or in folds that there are not."""
        tried, folds = request.tried, request.folds
        few = 1 <= folds <= FOLDS and 2 <= len(tried) <= MOST_TRIED
        fits = few and bool(((tried > 0.0) & (tried < np.inf)).all())
        if (tried.size or folds) and not fits:
            raise refusal(f"to try other than 2 to {MOST_TRIED} C in 1 to {FOLDS} folds", self.name)

    def check(self, name: str, receiver: int = -1, *, self_masks: bool = False) -> None:
        """Refuse, while C is tried, any sum that would be of folds of few rows as well."""
        super().check(name, receiver, self_masks=self_masks)
        if not self._trying:
            return
        policy, own = self.policy, len(self.table.y) // FOLDS
        if own < policy.min_own_rows:
            raise refusal(f"min_own_rows = {policy.min_own_rows}: a fold has {own}", self.name)
        if sum(rows // FOLDS for rows in self.ordered.rows(name)) < policy.min_sum_rows:
            raise refusal(f"min_sum_rows = {policy.min_sum_rows}: a fold has fewer", self.name)

    def choose(self, chosen: int) -> None:
        """Go on with one of the C that were tried; it cannot be changed.

        Raises
        ------
        ProtocolError
        """
        own, found = self.kept.settings, self.kept.arrays
        if chosen == own.get("chosen", -1):
            return
        if not self._trying or not 0 <= chosen < len(own["tried"]):
            raise self.wrong("the C to go on with is none that was tried, or another than before")
        own["chosen"], own["c"] = chosen, own["tried"][chosen]
        found |= {name: self.chosen_of(found[name]) for name in _STACKED if name in found}

    def chosen_of(self, stacked: Floats) -> Floats:
        """Return what belongs to the chosen C, of what belongs to all that were tried."""
        own = self.kept.settings
        return part_of(stacked, own["folds"], len(own["tried"]), own["chosen"])

    @property
    def _trying(self) -> bool:
        own = self.kept.settings
        return own.get("folds", 0) > 0 and "chosen" not in own

    @property
    def trials(self) -> int:
        """How many outputs there are for each class while C is tried."""
        own = self.kept.settings
        return int(own.get("folds", 0)) * len(own.get("tried", ()))

    @property
    def outputs(self) -> int:
        """Number of models."""
        return int(self.table.y.shape[1]) * (self.trials if self._trying else 1)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the models."""
        return self.outputs, len(self.kept.arrays["ridge"])

    # -- what is computed

    def solve(self, target: Floats, penalty: Floats) -> Floats:
        """Return the models that minimise C sum loss + 1/2 |w - target|^2 in their penalty."""
        own, (rows, gram), y = self.kept.settings, self.learned_rows(), self.table.y
        hinge, classes = own["loss"] == "hinge", y.shape[1]
        blank = np.zeros((self.outputs, len(y) if hinge else 0))
        cold, models = hinge and "memory" not in self.kept.arrays, []
        memory = blank if cold else self.kept.arrays.get("memory", blank)
        each, kept = len(target) // self._folds, list[Floats]()
        tried = own["tried"] if self._trying else [own["c"]]
        for fold in range(self._folds):
            seen = ~self._held_out(fold) if self._trying else np.ones(len(y), np.bool_)
            part = rows if seen.all() else rows[seen]
            among = gram if gram is None or seen.all() else gram[np.ix_(seen, seen)]
            for output in range(fold * each, (fold + 1) * each):
                k, weights = output % classes, self._weights(output % classes)
                c, before = tried[output // classes % len(tried)], output - classes
                if cold and before >= fold * each:  # the duals of two C are about as these
                    memory[output] = kept[before] * (c / tried[before // classes % len(tried)])
                model, found = solve_local(
                    own["loss"],
                    part,
                    y[seen, k],
                    target[output],
                    penalty[output],
                    c,
                    memory[output, seen] if hinge else memory[output],
                    None if weights is None else weights[seen],
                    among,
                )
                models.append(model)
                if hinge:
                    found, short = np.zeros(len(y)), found
                    found[seen] = short
                kept.append(found)
        self.kept.arrays["memory"] = np.stack(kept)
        return np.stack(models)

    def losses(self, model: Floats) -> Floats:
        """Return each output's sum of losses per row of the run, 0 without a model."""
        own, y = self.kept.settings, self.table.y
        if not model.size:
            return np.zeros(self.outputs)
        if len(model) != self.outputs:
            raise self.wrong("the models to be judged are not those of its classes")
        outputs, totals = self.learned_rows()[0] @ model.T, []
        each = len(model) // self._folds
        for output in range(len(model)):
            k = output % y.shape[1]
            rows = self._held_out(output // each) if self._trying else slice(None)
            weights = self._weights(k)
            share = None if weights is None else weights[rows]
            totals.append(total_loss(own["loss"], outputs[rows, output], y[rows, k], share))
        return np.asarray(np.array(totals) / own["rows"])

    @property
    def _folds(self) -> int:
        return int(self.kept.settings["folds"]) if self._trying else 1

    def _held_out(self, fold: int) -> NDArray[np.bool_]:
        return np.asarray(self._dealt == fold)

    @cached_property
    def _dealt(self) -> NDArray[np.intp]:
        return deal(len(self.table.y), self.table.digest())

    def _weights(self, output: int) -> Floats | None:
        """Return the weights of the rows to learn from, where classes are weighted."""
        shares = self.kept.arrays["shares"]
        if not shares.size:
            return None
        return balanced_weights(self.table.y[:, output], float(shares[output]))

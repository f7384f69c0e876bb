"""Rows at the users: coordinates, the choice of C, iterations without agents, judging.

C is chosen in the run: several are tried side by side, and the run goes on with one of them, see
:mod:`fedkern_flwr.groups.trials`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import SumError, TableError
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Coordinates, Floats, Residuals, norms, penalties_of
from fedkern_flwr.groups.digits import DIGITS, from_digits
from fedkern_flwr.groups.linear_model import model_columns
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
from fedkern_flwr.judging.figures import Yardstick, bins_of
from fedkern_flwr.method import Round, Steps
from fedkern_flwr.nodes import Arrays, logger
from fedkern_flwr.planning import Allowance, allowance
from fedkern_flwr.progress import progress
from fedkern_flwr.steps import Overlapping

from .hierarchical_options import FEATURES, USERS, SVMOptions

_NONE, _NOTHING = np.zeros(0), np.zeros((0, 0))
_STATISTICS = 3  # of each output: loss, primal residual, pull
_ONE_FOLD = 5 / 3  # what is learned from the other rows is spread over these alone
_ENOUGH = 40  # iterations in which rho has risen: with fewer more frequencies or several C harm


class Judged(NamedTuple):
    """Models, shape (k, d + 1), and the objective of each."""

    objectives: Floats
    model: Floats

    def better(self, other: Judged | None) -> Judged:
        """Return the better of two, output by output."""
        if other is None:
            return self
        mine = self.objectives < other.objectives
        model = np.where(mine[:, None], self.model, other.model)
        return Judged(np.where(mine, self.objectives, other.objectives), model)


class Learned(NamedTuple):
    """What the iterations came to: whether they converged, the model, the groups left out."""

    converged: bool
    model: Floats
    lost: Mapping[int, str] = {}


class RowRounds(SVMOptions):
    """Rounds of a horizontal split.

    Attributes
    ----------
    coordinates : Coordinates
    raw : Coordinates or None
        By which columns are standardised before random features are made of them.
    shares_ : ndarray, shape (k,)
        Where classes are weighted: share of the rows of each output that are positive.
    tuned_ : dict
        What was tried and chosen, or why nothing was; empty where C was given.
    tried_ : tuple of float
        C that are or were tried.
    folds_ : int
        How many folds are held out in turn.
    """

    def _reset(self) -> None:
        super()._reset()
        self.coordinates = Coordinates.identity(0)
        self.raw: Coordinates | None = None
        self._told = ""  # name of the last sum over all users: they have been told the same
        self.shares_ = _NONE
        self.tuned_: dict[str, Any] = {}
        self.tried_: tuple[float, ...] = ()
        self.folds_ = 0
        self._found = self._chosen = -1  # positions of what was found, of what the run goes on with
        self._most_folds = FOLDS

    @property
    def shape_(self) -> tuple[int, int]:
        """Of a model: outputs, coefficients with the bias."""
        return len(self.each_c), model_columns(self.columns_, self.frequencies) + 1

    @property
    def ridge_(self) -> Floats:
        """The penalty in units of the objective, shape (d + 1,)."""
        return self.coordinates.ridge() / self.unit_

    def default_rho(self) -> Floats:
        """Return the first rho where none is given.

        Random features vary little, so that their weights in the coordinates of the run are
        penalised by far more than 1, and rho grows with the root of that.
        """
        wide = self.coordinates.ridge()[:-1].mean() ** 0.5 if self.frequencies else 1
        return super().default_rho() * wide

    def judged(self, model: Floats, losses: Floats) -> Judged:
        """Return models with their objectives, of so much loss per row each."""
        penalties = penalties_of(model, self.coordinates.ridge())
        return Judged(penalties + self.C_ * self.rows_ * losses, model)

    # -- what the nodes' release limits allow

    def plan_sizes(self) -> None:
        """Plan frequencies, folds and iterations within what the users' nodes grant this run.

        All iterations are about the same rows, so that their numbers add up. The default number of
        iterations is the most that fit; so is one that the user states as the default. The numbers
        of a group count, as its agent may send the server what it opens.
        """
        sets = [group.users for group in self.groups_] if self.layers else [self.users_]
        columns = self.columns_ + 1
        found = [allowance(map(self.party_of, users), columns=columns) for users in sets]
        allowed = min(found, key=lambda one: one.numbers)
        if not any(one.planned for one in found):
            return
        digits, outputs = 2 * DIGITS * self.columns_ + 1, self.outputs_
        if self.kind == "rbf" and self.features is None:
            free = allowed.numbers - digits - _ENOUGH * outputs * (1 + _STATISTICS)
            self.fitting_ = int(min(max(1, free // (2 * _ENOUGH * outputs + 4)), FEATURES))
        taken = float(digits + 4 * self.frequencies)
        each = outputs * (self.shape_[1] + _STATISTICS)
        trial = ITERATIONS * len(TRIED) * each  # of a fold
        spare = allowed.numbers - taken - (_ENOUGH - ITERATIONS) * each
        trials = {FOLDS: FOLDS * trial, 1: trial * _ONE_FOLD}
        folds = [n for n in trials if trials[n] <= spare] if self.C is None else []
        self._most_folds = max(folds, default=0)
        tries = self._most_folds and not self._why_not()
        if tries:
            taken += trials[folds_held_out(outputs, self.shape_[1], self._most_folds)]
        fit = max(1, int((allowed.numbers - taken) // each) + ITERATIONS * bool(tries))
        if self.num_rounds == self.default_rounds:
            self.num_rounds = min(self.num_rounds, fit)
        self._note_sizes(allowed)

    def _note_sizes(self, allowed: Allowance) -> None:
        of_rbf = f", {self.frequencies} frequencies" if self.frequencies else ""
        self.note_plan(f"{self.num_rounds} iterations{of_rbf}", allowed)

    # -- C is chosen

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
        self.tried_ = TRIED
        self.folds_ = folds_held_out(self.outputs_, width, self._most_folds)

    def _why_not(self) -> str:
        """Return why nothing is tried."""
        if self.staleness:
            return "that is for groups that wait for each other"
        if self.rho is not None or self.step_sizes is not None or self.sigma is not None:
            return "penalties are given"
        if self.num_rounds < LEAST_ROUNDS:
            return f"fewer than {LEAST_ROUNDS} rounds"
        users = [self.party_of(user) for user in self.users_]
        if not self._most_folds:
            return "the release limits of the nodes leave too few iterations"
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
        if not self.trying or self._found >= 0:
            return
        text = f"choosing C of {len(self.tried_)} values on {self.rows_:,} rows"
        progress(text, number, ITERATIONS)
        if number < JUDGED:
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
        progress(f"training with C = {found:g} on {self.rows_:,} rows")

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

    # -- exchanges with all users

    def sum_users(self, name: str, length: int, requests: Any, reply: Any, **more: Any) -> Steps:
        """Sum vectors of all users; repeat it with all of them if somebody did not answer."""
        sums = [self.term(name, length)]
        answers = yield self.question(requests, reply, sums=sums, **more)
        return answers.totals[name], answers.replies

    def measure_columns(self) -> Steps:
        """Fit the coordinates to what the model is linear in: one exchange, two with features."""
        standard, width = self.scale == "standard", self.shape_[1] - 1
        if self.frequencies and standard:
            self.raw = yield from self._fit(self.columns_, standardised=True, raw=True)
        self.coordinates = yield from self._fit(
            width, standardised=standard and not self.frequencies
        )

    def _fit(self, columns: int, *, standardised: bool, raw: bool = False) -> Steps:
        self.step += 1
        counted = self.outputs_ if self.class_weight == "balanced" and not raw else 0
        requests = {
            user: wire.StatisticsRequest(
                loss=self.loss,
                c=self.C_ / self.unit_,
                tried=np.array(self.tried_),
                folds=self.folds_,
                features=self.frequencies,
                gamma=self.chosen_gamma,
                feature_seed=self.run_seed,
                rows=self.rows_,
                raw=raw,
                counted=counted > 0,
                partners=np.array(self._partners_of(user), np.int32),
                raw_mean=_NONE if self.raw is None else self.raw.mean,
                raw_deviation=_NONE if self.raw is None else self.raw.deviation,
            )
            for user in self.users_
        }
        name = self._told = next(iter(requests.values())).sum_name(self._told)
        wide = raw or not self.frequencies
        length = 2 * columns * (DIGITS if wide else 1)
        sums = yield from self.sum_users(name, length + counted, requests, wire.StatisticsReply)
        total, self.shares_ = np.split(sums[0], [length])
        mean, square = (from_digits(total) if wide else total).reshape(2, columns)
        return Coordinates.fit(mean, square, standardised=standardised)

    def _partners_of(self, user: int) -> list[int]:
        """Return with whom a user exchanges sealed messages."""
        return [g.agent for g in self.groups_ if g.agent >= 0 and user in g.users]

    def coordinate_fields(self, *, first: bool) -> dict[str, Any]:
        """Return the fields of a request that carry the coordinates, with the first iteration."""
        own, names = self.coordinates, ("mean", "deviation", "ridge", "shares")
        found = (own.mean, own.deviation, self.ridge_, self.shares_) if first else (_NONE,) * 4
        return dict(zip(names, found, strict=True))

    # -- without agents

    def central_rounds(self) -> Steps:
        """Iterate with all users around the server, one exchange each.

        The server makes the center from the masked sum of all users, as a single agent would. It
        ends when the residuals are small, or all rounds are done.
        """
        meta, started = self.saved_meta_, time.monotonic()
        model, best, done = np.zeros(self.shape_), None, int(meta.get("done", 0))
        if meta:
            best, model = self.take_up(), self.saved_["model"]
        factor = np.array(meta.get("factor", [1.0] * len(model)))
        count, ridge, converged = len(self.users_), self.ridge_, False
        while done < self.num_rounds and not converged:
            if self.is_settled_at(done + 1):
                model, factor, best = self.chosen_of(model), self.chosen_of(factor), None
            if self.is_due(done):
                yield from self.save_rows(
                    done, self.users_, {"model": model}, best, factor=factor.tolist()
                )
            rho, judged, before = self.rho_of(0, done, factor), model if done else _NOTHING, model
            done += 1
            total = yield from self._local_sum(done, rho, judged)
            terms = total[: model.size].reshape(self.shape_)
            losses, primal, pull = total[model.size :].reshape(_STATISTICS, -1)
            model = rho * terms / (rho * count + ridge)
            change = rho[:, 0] * count * norms(model - before)
            residuals = Residuals(primal, count * norms(model), change, pull * self.rows_)
            row: dict[str, Any] = dict(zip(("primal", "dual"), residuals.largest(), strict=True))
            moved = float(np.linalg.norm(model - before))
            row |= {"consensus_difference": moved, "rho": float(rho.max())}
            if not self.is_judged_at(done):
                self.take_losses(done, losses)
            elif judged.size:
                best = (now := self.judged(judged, losses)).better(best)
                row["objective"] = float(now.objectives.sum())
            if not self.trying:
                self.trace_.append((time.monotonic() - started, done, model))
            factor = self.next_growth(factor, residuals, done)
            yield Round(done, row)
            converged = done > 1 and self.is_judged_at(done) and residuals.small(self.tolerance)
        return Learned(converged, model if best is None else best.model)

    def _local_sum(self, number: int, rho: Floats, judged: Floats) -> Steps:
        """Return the sum over all users of an iteration."""
        self.step = number
        request = wire.LocalRequest(
            rho=rho,
            judged=judged,
            relaxation=self.relaxation,
            center=judged,
            **self.coordinate_fields(first=number == 1),
            **self.chosen_field(),
        )
        length = self.shape_[0] * (self.shape_[1] + _STATISTICS)
        asked = dict.fromkeys(self.users_, request)
        total, _ = yield from self.sum_users(wire.FLAT_SUM, length, asked, wire.LocalReply)
        return total

    # -- the end

    def judge(self, model: Floats) -> Steps:
        """Return the objective of a model and its outcomes on held-out rows: the last exchange."""
        self.step += 1
        request = wire.EvaluateRequest(self_masks=False, bins=self.yard_.bins, model=model)
        total, _ = yield from self.sum_users(
            wire.EVALUATION_SUM,
            self.judged_numbers,
            dict.fromkeys(self.users_, request),
            wire.EvaluateReply,
            ends=True,
        )
        return self.outcomes(model, total)

    def judge_left(self, model: Floats, lost: set[int]) -> Steps:
        """Judge a model on the users that are left, all of them; not at all if some are silent.

        It is opened once only: else the difference of two would show single users.
        """
        self.step += 1
        assert self.sums is not None
        post = yield Overlapping()
        there = [user for user in self.users_ if user not in lost]
        for attempt in range(self.attempts):
            running = self.sums.order(
                wire.EVALUATION_SUM, self.judged_numbers, self.encoding, cohort=USERS
            )
            request = wire.EvaluateRequest(
                self_masks=True, bins=self.yard_.bins, model=model, attempt=attempt
            )
            asked = dict.fromkeys(there, request)
            yield self.question(asked, wire.EvaluateReply, running=[running], until="tried")
            if set(there) <= set(running.uploaded):
                try:
                    post.unmask(running, self.step)
                    return self.outcomes(model, self.sums.total(running))
                except SumError:
                    break
            self.sums.close(running)
        logger.warning("the model is not judged: not all users that are left answered")
        return {}

    @property
    def judged_numbers(self) -> int:
        """How many numbers a user adds when a model is judged."""
        return 1 + self.yard_.length

    @property
    def yard_(self) -> Yardstick:
        """What a user counts."""
        rows = sum(self.party_of(user).test_rows for user in self.users_)
        bins = bins_of(rows, self.classes_)
        return Yardstick(self.classes_, self.outputs_, self.label_bound_, bins)

    def outcomes(self, model: Floats, total: Floats) -> dict[str, Any]:
        """Return the metrics of a model, of the sum over the users."""
        penalty = float(penalties_of(model, self.coordinates.ridge()).sum())
        loss = self.C_ * self.rows_ * float(total[0])
        found: dict[str, Any] = {"objective": penalty + loss}
        judged = self.judge_by(self.yard_, total[1:])
        if not judged:
            self.nodes.note_untold()
        return found | judged

    # -- predictions with a saved model

    def predict_at_users(
        self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
    ) -> Steps:
        """Send all users the model of a horizontal split; return how many rows they predicted.

        Raises
        ------
        TableError
            They hold none.
        """
        none = np.zeros(0)
        self.step += 1
        request = wire.PredictRequest(
            features=int(meta["features"]),
            gamma=float(meta["gamma"]),
            feature_seed=int(meta["feature_seed"]),
            weights=arrays["weights"],
            bias=arrays["bias"],
            calibration=np.array(meta.get("calibration", ()), np.float64),
            raw_mean=arrays.get("raw_mean", none),
            raw_deviation=arrays.get("raw_deviation", none),
        )
        asked = dict.fromkeys(self.users_, request)
        answers = yield self.question(asked, wire.PredictReply, ends=True)
        samples = int(sum(reply.samples for reply in answers.replies.values()))
        if not samples:
            raise TableError(
                "no user holds rows to predict",
                remedy="name test-data in the --node-config of those that shall predict",
                code="FK-TEST-NONE",
            )
        return samples

    # -- checkpoints

    def save_rows(
        self, done: int, nodes: Iterable[int], arrays: Arrays, best: Judged | None, **meta: Any
    ) -> Steps:
        """Keep the run after an iteration, see :meth:`save`."""
        own, meta = self.coordinates, {**meta, "trials": self.trials_meta()}
        arrays = {**arrays, "mean": own.mean, "deviation": own.deviation, **self.raw_arrays()}
        if best is not None:
            arrays |= {"best": best.model, "best_objectives": best.objectives}
        yield from self.save(done, nodes, arrays, standardised=own.standardised, **meta)

    def take_up(self) -> Judged | None:
        """Take coordinates from a checkpoint; return the best model so far."""
        arrays, meta = self.saved_, self.saved_meta_
        self.take_trials(meta["trials"])
        self.coordinates = Coordinates(
            arrays["mean"], arrays["deviation"], bool(meta["standardised"])
        )
        if "raw_mean" in arrays:
            self.raw = Coordinates(arrays["raw_mean"], arrays["raw_deviation"], True)
        return Judged(arrays["best_objectives"], arrays["best"]) if "best" in arrays else None

    def raw_arrays(self) -> Arrays:
        """Return by which columns are standardised before random features, if they are."""
        if self.raw is None:
            return {}
        return {"raw_mean": self.raw.mean, "raw_deviation": self.raw.deviation}

    def trials_meta(self) -> dict[str, Any]:
        """Return how far that is, for a checkpoint."""
        own = {"tuned": self.tuned_, "tried": list(self.tried_), "folds": self.folds_}
        sizes = {"rounds": self.num_rounds, "fitting": self.fitting_, "notes": self.notes_}
        return {**own, **sizes, "found": self._found, "chosen": self._chosen}

    def take_sizes(self, meta: dict[str, Any]) -> None:
        """Take from a checkpoint what was planned: later less is left, by this run's own sums."""
        self.fitting_, self.notes_ = int(meta.get("fitting", 0)), list(meta.get("notes", ()))
        if self.num_rounds == self.default_rounds:
            self.num_rounds = int(meta.get("rounds", self.num_rounds))

    def take_trials(self, meta: dict[str, Any]) -> None:
        """Take that from a checkpoint."""
        self.tuned_, self.tried_, self.folds_ = meta["tuned"], tuple(meta["tried"]), meta["folds"]
        self._found, self._chosen = int(meta["found"]), int(meta["chosen"])
        if self._chosen >= 0:
            self.C_ = self.tried_[self._chosen]


def shapes_of(meta: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the arrays of a model must have; a vertical split has none."""
    if meta["partition"] == "vertical":
        return {}
    outputs, columns = int(meta["outputs"]), int(meta["columns"])
    width = model_columns(columns, int(meta["features"]))
    return {"weights": (outputs, width), "bias": (outputs,)}

"""Rows at the users: coordinates, the choice of C, iterations without agents, judging.

A :class:`RowRun` is a run of a horizontal split as far as it is. It goes through the exchanges with
all users; those of groups with agents are in :mod:`.hierarchical_loop`. C is chosen in the run:
several are tried side by side, and the run goes on with one of them, see
:mod:`fedkern_flwr.groups.consensus`. With a budget of privacy the run takes steps along noisy sums
of gradients instead, see :mod:`fedkern_flwr.groups.gradients`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import SumError, TableError
from fedkern_flwr.groups import consensus, gradients
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Coordinates, Floats, Residuals, RhoSchedule
from fedkern_flwr.groups.linear_model import from_digits
from fedkern_flwr.judging.figures import Yardstick, bins_of, tidy
from fedkern_flwr.method import Ask, Round, Save, Steps
from fedkern_flwr.nodes import Arrays, logger
from fedkern_flwr.progress import progress
from fedkern_flwr.steps import Overlapping

if TYPE_CHECKING:
    from .hierarchical_svm import HierarchicalSVM

_NONE, _NOTHING = np.zeros(0), np.zeros((0, 0))
_LARGE_C = 1e3  # with a larger C the whole objective is divided by a number


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


@dataclass
class Saver:
    """Keeps the run after some iterations.

    Attributes
    ----------
    every : int
        Iterations from one checkpoint to the next, 0 without checkpoints.
    nodes : str
        Digest of who is there.
    last : int
        Iterations done at the last checkpoint.
    """

    every: int
    nodes: str
    last: int = 0

    def is_due(self, done: int) -> bool:
        """Tell whether a checkpoint is due after so many iterations."""
        return bool(self.every) and done - self.last >= self.every

    def save(
        self, step: int, done: int, nodes: Iterable[int], arrays: Arrays, **meta: Any
    ) -> Steps:
        """Have nodes keep their state under the step at hand; keep the run's if all did."""
        self.last, asked = done, dict.fromkeys(nodes, wire.SaveRequest())
        answers = yield Ask(asked, reply=wire.SaveReply, number=step, until="tried")
        if len(answers.replies) == len(asked):
            yield Save(arrays, {**meta, "nodes": self.nodes, "done": done}, kept=step)
        else:
            logger.warning("no checkpoint of iteration %d: not all nodes kept their state", done)


@dataclass
class Choice:
    """The choice of C.

    Attributes
    ----------
    C : float
        That of the model, or 1 until it is chosen.
    tried : tuple of float
        C that are or were tried.
    folds : int
        How many folds are held out in turn, 0 where nothing is tried.
    tuned : dict
        What was tried and chosen, or why nothing was; empty where C was given.
    found, chosen : int
        Positions of what was found, and of what the run goes on with; -1 before.
    """

    C: float = 1.0
    tried: tuple[float, ...] = ()
    folds: int = 0
    tuned: dict[str, Any] = field(default_factory=dict)
    found: int = -1
    chosen: int = -1

    @property
    def trying(self) -> bool:
        """Whether outputs are those of all that are tried."""
        return self.folds > 0 and self.chosen < 0

    def take_losses(self, number: int, losses: Floats, rows: int) -> None:
        """Choose by the losses that came with the record of an iteration, if it is the one."""
        if not self.trying or self.found >= 0:
            return
        text = f"choosing C of {len(self.tried)} values on {rows:,} rows"
        progress(text, number, consensus.TRIAL_ROUNDS)
        if number < consensus.JUDGED:
            return
        self.found, errors = consensus.choose(losses, self.folds, self.tried)
        found = self.tried[self.found]
        held = f"{self.folds} folds" if self.folds > 1 else f"one fold of {consensus.FOLDS}"
        self.tuned = {
            "by": held,
            "why": "all that is tried",
            "Cs": list(self.tried),
            "losses": errors,
            "C": found,
            "iterations": consensus.TRIAL_ROUNDS,
        }
        logger.info("by %s: C %g", held, found)
        progress(f"training with C = {found:g} on {rows:,} rows")

    def is_judged_at(self, number: int) -> bool:
        """Tell whether losses that come with the record of an iteration are of the rows learned."""
        return not self.folds or number > consensus.TRIAL_ROUNDS

    def is_settled_at(self, number: int) -> bool:
        """Go on with what was chosen, if the center of that iteration is the first of it."""
        if not self.trying or self.found < 0 or number < consensus.TRIAL_ROUNDS:
            return False
        self.chosen, self.C = self.found, self.tried[self.found]
        return True

    def part_of(self, stacked: Floats) -> Floats:
        """Return what belongs to the chosen C, of what belongs to all that were tried."""
        return consensus.part_of(stacked, self.folds, len(self.tried), self.chosen)

    def restore(self, meta: Mapping[str, Any]) -> None:
        """Take from a checkpoint how far that is."""
        self.tuned, self.tried, self.folds = meta["tuned"], tuple(meta["tried"]), meta["folds"]
        self.found, self.chosen = int(meta["found"]), int(meta["chosen"])
        if self.chosen >= 0:
            self.C = self.tried[self.chosen]


@dataclass
class RowRun:
    """A run of a horizontal split.

    Attributes
    ----------
    options : HierarchicalSVM
        The options, the groups, and the choice of C of the run.
    facts : SVMFacts
        What is public of the run.
    saver : Saver
    step : int
        Number of the exchange at hand.
    coordinates : Coordinates
    raw : Coordinates or None
        By which columns are standardised before random features are made of them.
    shares : ndarray, shape (k,)
        Where classes are weighted: share of the rows of each output that are positive.
    told : str
        Name of the last sum over all users: they have been told the same.
    """

    options: HierarchicalSVM
    facts: wire.SVMFacts
    saver: Saver
    step: int
    coordinates: Coordinates = field(default_factory=lambda: Coordinates.identity(0))
    raw: Coordinates | None = None
    shares: Floats = field(default_factory=lambda: _NONE)
    told: str = ""

    # -- what the users minimise

    @property
    def choice(self) -> Choice:
        """The choice of C."""
        return self.options.choice_

    @property
    def users(self) -> list[int]:
        """All users, group by group."""
        return self.options.users_

    @property
    def schedule(self) -> RhoSchedule:
        """How rho grows."""
        several = self.facts.outputs > 1 and not self.options.staleness
        return self.options.rho_schedule or ("scaled" if several else "rising")

    @property
    def rows(self) -> int:
        """Rows to learn from, of all users."""
        return sum(self.facts.rows)

    @property
    def now(self) -> wire.SVMFacts:
        """The facts at this time: while C is tried, there are several models of each output."""
        choice = self.choice
        trials = choice.folds * len(choice.tried) if choice.trying else 1
        return replace(self.facts, trials=trials, told=self.told)

    @property
    def shape(self) -> tuple[int, int]:
        """Of a model: outputs, coefficients with the bias."""
        return self.now.shape

    @property
    def unit(self) -> float:
        """What the objective is divided by, so that a large C does not exceed the public bound.

        Duals and penalties grow with C. C and the penalty divided by one number have the same
        optimum, and the same iterations.
        """
        return max(1.0, self.choice.C / _LARGE_C)

    @property
    def ridge(self) -> Floats:
        """The penalty in units of the objective, shape (d + 1,)."""
        return self.coordinates.ridge() / self.unit

    @property
    def each_c(self) -> Floats:
        """C of each output in units of the objective, shape (k, 1)."""
        choice, outputs = self.choice, self.facts.outputs
        if choice.trying:
            return np.tile(np.repeat(choice.tried, outputs), choice.folds)[:, None]
        return np.full((outputs, 1), choice.C / self.unit)

    def judged(self, model: Floats, losses: Floats) -> Judged:
        """Return models with their objectives, of so much loss per row each."""
        penalties = consensus.penalties_of(model, self.coordinates.ridge())
        return Judged(penalties + self.choice.C * self.rows * losses, model)

    # -- penalties of ADMM

    def first_rho(self, place: int) -> Floats:
        """Return the first rho of a group for each output, shape (k, 1).

        Random features vary little, so that their weights in the coordinates of the run are
        penalised by far more than 1, and rho grows with the root of that.
        """
        if (given := self.options.step_sizes or self.options.rho) is not None:
            rho = given[place] if isinstance(given, tuple) else given
            return np.full(self.each_c.shape, rho / self.unit)
        wide = self.coordinates.ridge()[:-1].mean() ** 0.5 if self.facts.features else 1
        return consensus.initial_rho(self.schedule, self.each_c) * wide

    def mean_rho(self) -> Floats:
        """Return the first rho, on average over the groups, shape (k, 1)."""
        groups = range(len(self.options.groups_))
        return np.asarray(np.mean([self.first_rho(k) for k in groups], 0))

    def rho_of(self, place: int, done: int, factor: Floats) -> Floats:
        """Return rho of a group for each output, shape (k, 1), after so many iterations."""
        return self.first_rho(place) * consensus.growth(self.schedule, done, factor)[:, None]

    def sigma_of(self, done: int, factor: Floats) -> Floats:
        """Return the penalty of the agents for each output, by default rho times users a group."""
        if (given := self.options.sigma) is not None:
            return np.full((len(factor), 1), given / self.unit)
        grown = self.mean_rho() * consensus.growth(self.schedule, done, factor)[:, None]
        return grown * len(self.users) / len(self.options.groups_)

    def next_factor(self, now: Floats, residuals: Residuals, done: int) -> Floats:
        """Return the factors of rho in the next iteration."""
        rho = self.mean_rho()[:, 0] * now
        return consensus.next_growth(self.schedule, now, residuals, rho, done)

    def is_small(self, residuals: Residuals, done: int) -> bool:
        """Tell whether the run has converged after so many iterations."""
        small = residuals.small(self.options.tolerance)
        return done > 1 and self.choice.is_judged_at(done) and small

    def note(self, started: float, done: int, model: Floats) -> None:
        """Note the model of an iteration, unless it is one of those that are tried."""
        if not self.choice.trying:
            self.options.trace_.append((time.monotonic() - started, done, model))

    # -- exchanges with all users

    def ask_users(self, requests: Any, reply: Any, **more: Any) -> Steps:
        """Ask all users for what a request sums; again with all of them if somebody is missing."""
        each = requests if isinstance(requests, dict) else dict.fromkeys(self.users, requests)
        sums = next(iter(each.values())).sum_specs(self.now)
        for spec in sums:
            if spec.release is not None:
                self.options.noise_.note(spec.release, len(each))
        answers = yield Ask(each, reply=reply, number=self.step, sums=sums, **more)
        return answers.totals[sums[0].key] if sums else answers.replies

    def measure(self) -> Steps:
        """Fit the coordinates to what the model is linear in: one exchange, two with features."""
        standard = self.options.scale == "standard"
        if self.facts.features and standard:
            self.raw = yield from self._fit(standardised=True, raw=True)
        standardised = standard and not self.facts.features
        self.coordinates = yield from self._fit(standardised=standardised)

    def _fit(self, *, standardised: bool, raw: bool = False) -> Steps:
        self.step += 1
        own, groups = self.options, self.options.groups_
        partners = {u: [g.agent] for g in groups if g.agent >= 0 for u in g.users}
        shared = wire.StatisticsRequest(
            loss=own.loss,
            c=self.choice.C / self.unit,
            tried=np.array(self.choice.tried),
            folds=self.choice.folds,
            features=self.facts.features,
            gamma=own.chosen_gamma,
            feature_seed=own.run_seed,
            rows=self.rows,
            raw=raw,
            counted=own.class_weight == "balanced" and not raw,
            partners=np.zeros(0, np.int32),
            raw_mean=_NONE if self.raw is None else self.raw.mean,
            raw_deviation=_NONE if self.raw is None else self.raw.deviation,
        )
        self.told = shared.sum_name(self.told)
        requests = {
            user: replace(shared, partners=np.array(partners.get(user, ()), np.int32))
            for user in self.users
        }
        found = yield from self.ask_users(requests, wire.StatisticsReply)
        total, self.shares = np.split(found, [len(found) - self.facts.outputs * shared.counted])
        if raw or not self.facts.features:
            total = from_digits(total)
        return Coordinates.fit(*total.reshape(2, -1), standardised=standardised)

    def shared_fields(self, *, first: bool) -> dict[str, Any]:
        """Return fields of a request for an iteration: the coordinates come with the first."""
        own, names = self.coordinates, ("mean", "deviation", "ridge", "shares")
        found = (own.mean, own.deviation, self.ridge, self.shares) if first else (_NONE,) * 4
        known: dict[str, Any] = dict(zip(names, found, strict=True))
        return known | {"chosen": self.choice.chosen, "relaxation": self.options.relaxation}

    # -- without agents

    def central_rounds(self, arrays: Arrays, meta: Mapping[str, Any]) -> Steps:
        """Iterate with all users around the server, one exchange each.

        The server makes the center from the masked sum of all users, as a single agent would. It
        ends when the residuals are small, or all rounds are done.
        """
        choice, started, converged = self.choice, time.monotonic(), False
        model, best, done = np.zeros(self.shape), None, int(meta.get("done", 0))
        if meta:
            best, model = self.restore(arrays, meta), arrays["model"]
        factor = np.array(meta.get("factor", [1.0] * len(model)))
        count, ridge = len(self.users), self.ridge
        while done < self.options.num_rounds and not converged:
            if choice.is_settled_at(done + 1):
                model, factor, best = choice.part_of(model), choice.part_of(factor), None
            if self.saver.is_due(done):
                about = {"factor": factor.tolist()}
                yield from self.save(done, self.users, {"model": model}, best, **about)
            rho, before, judged = self.rho_of(0, done, factor), model, model if done else _NOTHING
            done += 1
            self.step = done
            fields = self.shared_fields(first=done == 1)
            request = wire.LocalRequest(rho=rho, judged=judged, center=judged, **fields)
            total = yield from self.ask_users(request, wire.LocalReply)
            terms, statistics = np.split(total, [model.size])
            losses, primal, pull = statistics.reshape(wire.USER_STATISTICS, -1)
            model = rho * terms.reshape(model.shape) / (rho * count + ridge)
            change = rho[:, 0] * count * consensus.norms(model - before)
            residuals = Residuals(primal, count * consensus.norms(model), change, pull * self.rows)
            row: dict[str, Any] = dict(zip(("primal", "dual"), residuals.largest(), strict=True))
            moved = float(np.linalg.norm(model - before))
            row |= {"consensus_difference": moved, "rho": float(rho.max())}
            if not choice.is_judged_at(done):
                choice.take_losses(done, losses, self.rows)
            elif judged.size:
                best = (now := self.judged(judged, losses)).better(best)
                row["objective"] = float(now.objectives.sum())
            self.note(started, done, model)
            factor = self.next_factor(factor, residuals, done)
            yield Round(done, row)
            converged = self.is_small(residuals, done)
        return Learned(converged, model if best is None else best.model)

    # -- checkpoints

    def save(
        self, done: int, nodes: Iterable[int], arrays: Arrays, best: Judged | None, **meta: Any
    ) -> Steps:
        """Keep the run after an iteration, see :class:`Saver`."""
        own, options = self.coordinates, self.options
        planned = {"fitting": options.fitting_, "notes": options.notes_}
        trials = {**vars(self.choice), **planned, "rounds": options.num_rounds}
        meta |= {"standardised": own.standardised, "trials": trials}
        arrays = {**arrays, "mean": own.mean, "deviation": own.deviation, **self.raw_arrays()}
        if best is not None:
            arrays |= {"best": best.model, "best_objectives": best.objectives}
        yield from self.saver.save(self.step, done, nodes, arrays, **meta)

    def restore(self, arrays: Arrays, meta: Mapping[str, Any]) -> Judged | None:
        """Take coordinates and the choice of C from a checkpoint; return the best model so far."""
        self.choice.restore(meta["trials"])
        standardised = bool(meta["standardised"])
        self.coordinates = Coordinates(arrays["mean"], arrays["deviation"], standardised)
        if "raw_mean" in arrays:
            self.raw = Coordinates(arrays["raw_mean"], arrays["raw_deviation"], True)
        return Judged(arrays["best_objectives"], arrays["best"]) if "best" in arrays else None

    def raw_arrays(self) -> Arrays:
        """Return by which columns are standardised before random features, if they are."""
        if self.raw is None:
            return {}
        return {"raw_mean": self.raw.mean, "raw_deviation": self.raw.deviation}

    # -- the end

    @property
    def yard(self) -> Yardstick:
        """What a user counts of held-out rows."""
        facts = self.facts
        bins = bins_of(sum(facts.tests), facts.classes)
        return Yardstick(facts.classes, facts.outputs, facts.label_bound, bins)

    def judge(self, model: Floats) -> Steps:
        """Judge a model: the last exchange."""
        self.step += 1
        request = wire.EvaluateRequest(self_masks=False, bins=self.yard.bins, model=model)
        return (yield from self.ask_users(request, wire.EvaluateReply, ends=True))

    def judge_left(self, model: Floats, lost: set[int], attempts: int) -> Steps:
        """Judge a model on the users that are left, all of them; not at all if some are silent.

        It is opened once only: else the difference of two would show single users.
        """
        self.step += 1
        post = yield Overlapping()
        sums = post.nodes.sums
        there = [user for user in self.users if user not in lost]
        for attempt in range(attempts):
            request = wire.EvaluateRequest(
                self_masks=True, bins=self.yard.bins, model=model, attempt=attempt
            )
            (spec,) = request.sum_specs(self.now)
            running = sums.order(spec.name, spec.length, spec.encoding, cohort=spec.cohort)
            how: dict[str, Any] = {"until": "tried", "number": self.step, "running": [running]}
            yield Ask(dict.fromkeys(there, request), reply=wire.EvaluateReply, **how)
            if set(there) <= set(running.uploaded):
                try:
                    post.unmask(running, self.step)
                    return sums.total(running)
                except SumError:
                    break
            sums.close(running)
        logger.warning("the model is not judged: not all users that are left answered")
        return None

    def objective_of(self, model: Floats, total: Floats) -> float:
        """Return the objective of a model, of what was summed to judge it."""
        penalty = float(consensus.penalties_of(model, self.coordinates.ridge()).sum())
        return penalty + self.choice.C * self.rows * float(total[0])

    # -- with a budget of privacy

    def private_rounds(self, arrays: Arrays) -> Steps:
        """Take all steps, one exchange each, all users in each; return the mean of the second half.

        A run that is resumed repeats the iterations since its checkpoint: the same questions, so
        that users answer with the noise that they had.
        """
        facts, saver = self.facts, self.saver
        self.coordinates = gradients.public_coordinates(facts.columns, facts.features)
        start, ridge = np.zeros(self.shape), self.coordinates.ridge()
        model, mean = arrays.get("model", start), arrays.get("mean", start)
        rounds = self.options.num_rounds
        half, self.step = rounds // 2, saver.last
        for done in range(saver.last, rounds):
            request = self._noisy(wire.GradientRequest, model)
            total = yield from self.ask_users(request, wire.GradientReply)
            how: dict[str, Any] = {"c": self.choice.C, "rows": self.rows, "ridge": ridge}
            before, slope = model, total.reshape(self.shape)
            model = gradients.next_model(before, slope, done, loss=self.options.loss, **how)
            mean = mean + model * (done >= half) / (rounds - half)
            moved, save = float(np.linalg.norm(model - before)), None
            if done in (0, rounds - 1) or saver.is_due(done + 1):
                saver.last = done + 1
                meta = {"nodes": saver.nodes, "done": done + 1}
                save = Save({"model": model, "mean": mean}, meta, kept=1)
            yield Round(done + 1, {"consensus_difference": moved}, save=save)
        return Learned(True, mean)

    def judge_with_noise(self, model: Floats) -> Steps:
        """Return the counts of held-out rows, as such a sum may be: the last exchange."""
        ends = not self.saver.every  # else users need the key of their noise to answer again
        request = self._noisy(wire.CountRequest, model)
        found = yield from self.ask_users(request, wire.CountReply, ends=ends)
        return tidy(found, self.facts.classes, sum(self.facts.tests))

    def _noisy(self, kind: type[wire.GradientRequest], model: Floats) -> wire.GradientRequest:
        """Return a request for the next sum with noise."""
        self.step += 1
        return kind(
            round=self.step,
            loss=self.options.loss,
            features=self.facts.features,
            gamma=self.options.chosen_gamma,
            feature_seed=self.options.run_seed,
            iterations=self.options.num_rounds,
            model=model,
        )

    # -- predictions with a saved model

    def predict(self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> Steps:
        """Send all users a saved model; return how many rows they predicted.

        Raises
        ------
        TableError
            They hold none.
        """
        self.step += 1
        request = wire.PredictRequest(
            features=int(meta["features"]),
            gamma=float(meta["gamma"]),
            feature_seed=int(meta["feature_seed"]),
            weights=arrays["weights"],
            bias=arrays["bias"],
            calibration=np.array(meta.get("calibration", ()), np.float64),
            raw_mean=arrays.get("raw_mean", _NONE),
            raw_deviation=arrays.get("raw_deviation", _NONE),
        )
        replies = yield from self.ask_users(request, wire.PredictReply, ends=True)
        samples = int(sum(reply.samples for reply in replies.values()))
        if not samples:
            raise TableError(
                "no user holds rows to predict",
                remedy="name test-data in the --node-config of those that shall predict",
                code="FK-TEST-NONE",
            )
        return samples

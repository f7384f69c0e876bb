"""State and exchanges of a HierarchicalSVM run, with rows at users or columns at groups.

A :class:`RowRun` has the exchanges with all users (those of groups are in
:mod:`.hierarchical_loop`). Several C are tried side by side, and the run continues with one, see
:mod:`fedkern_flwr.groups.consensus`. With a privacy budget it takes noisy gradient steps, see
:mod:`fedkern_flwr.groups.linear_model`.

A :class:`ColumnRun` iterates by :mod:`fedkern_flwr.solvers.dual_subspace`, two exchanges each:
users multiply the owner's message and the agents' weights with their rows; then agents open the
next weights, and the owner the outputs, from which it makes the next message. Predictions take
three exchanges.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError, SumError, TableError
from fedkern_flwr.exchange import SERVER, Overlapping, SumSpec
from fedkern_flwr.groups import consensus, linear_model
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Coordinates, Floats, Residuals, RhoSchedule
from fedkern_flwr.groups.linear_model import from_digits
from fedkern_flwr.groups.members import Group, RowPlan
from fedkern_flwr.judging.figures import Yardstick, bins_of, tidy
from fedkern_flwr.method import Ask, Deliver, Round, Save, Steps
from fedkern_flwr.nodes import Arrays, logger
from fedkern_flwr.progress import progress

if TYPE_CHECKING:
    from .hierarchical_svm import HierarchicalSVM

_NONE, _NOTHING = np.zeros(0), np.zeros((0, 0))
_NO_ROWS, _NO_BYTES = np.zeros(0, np.int32), np.zeros(0, np.uint8)
_OVERHEAD = 28  # bytes that sealing adds
_LARGE_C = 1e3  # with a larger C the whole objective is scaled down


class Judged(NamedTuple):
    """Models, shape (k, d + 1), and the objective of each."""

    objectives: Floats
    model: Floats

    def better(self, other: Judged | None) -> Judged:
        if other is None:
            return self
        mine = self.objectives < other.objectives
        model = np.where(mine[:, None], self.model, other.model)
        return Judged(np.where(mine, self.objectives, other.objectives), model)


class Learned(NamedTuple):
    """Result of the iterations: whether they converged, the model, the groups left out."""

    converged: bool
    model: Floats
    lost: Mapping[int, str] = {}


@dataclass
class Saver:
    """Writes checkpoints of a run.

    Attributes
    ----------
    every : int
        Iterations between checkpoints, 0 for none.
    nodes : str
        Digest of the nodes.
    last : int
        Iterations done at the last checkpoint.
    """

    every: int
    nodes: str
    last: int = 0

    def is_due(self, done: int) -> bool:
        return bool(self.every) and done - self.last >= self.every

    def save(
        self, step: int, done: int, nodes: Iterable[int], arrays: Arrays, **meta: Any
    ) -> Steps:
        """Let nodes save their state under the number ``step``; save the run if all did."""
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
        That of the model, 1 until it is chosen.
    tried : tuple of float
        Candidates.
    folds : int
        Folds held out in turn, 0 if nothing is tried.
    tuned : dict
        What was tried and chosen, or why not; empty for a given C.
    found, chosen : int
        Positions of the best candidate and of the one in use; -1 before.
    """

    C: float = 1.0
    tried: tuple[float, ...] = ()
    folds: int = 0
    tuned: dict[str, Any] = field(default_factory=dict)
    found: int = -1
    chosen: int = -1

    @property
    def trying(self) -> bool:
        return self.folds > 0 and self.chosen < 0

    def take_losses(self, number: int, losses: Floats, rows: int) -> None:
        """Choose by the losses of an iteration's record, if it is the decisive one."""
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
        """Return whether the losses of an iteration's record are on training rows."""
        return not self.folds or number > consensus.TRIAL_ROUNDS

    def is_settled_at(self, number: int) -> bool:
        """Switch to the chosen C if that iteration's center is the first of it; return whether."""
        if not self.trying or self.found < 0 or number < consensus.TRIAL_ROUNDS:
            return False
        self.chosen, self.C = self.found, self.tried[self.found]
        return True

    def part_of(self, stacked: Floats) -> Floats:
        return consensus.part_of(stacked, self.folds, len(self.tried), self.chosen)

    def restore(self, meta: Mapping[str, Any]) -> None:
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
    facts : SVMFacts
    saver : Saver
    step : int
        Number of the exchange.
    coordinates : Coordinates
    raw : Coordinates or None
        Standardisation of columns before random features.
    shares : ndarray, shape (k,)
        With weighted classes: share of positive rows per output.
    told : str
        Name of the last sum over all users, bound to all earlier requests.
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
        return self.options.choice_

    @property
    def users(self) -> list[int]:
        return self.options.users_

    @property
    def schedule(self) -> RhoSchedule:
        several = self.facts.outputs > 1 and not self.options.staleness
        return self.options.rho_schedule or ("scaled" if several else "rising")

    @property
    def rows(self) -> int:
        return sum(self.facts.rows)

    @property
    def now(self) -> wire.SVMFacts:
        """The facts now: while C is tried, each output has several models."""
        choice = self.choice
        trials = choice.folds * len(choice.tried) if choice.trying else 1
        return replace(self.facts, trials=trials, told=self.told)

    @property
    def shape(self) -> tuple[int, int]:
        return self.now.shape

    @property
    def unit(self) -> float:
        """Divisor of the objective, with which a large C stays within the public bound.

        Dividing C and the penalty by one number changes neither the optimum nor the iterations.
        """
        return max(1.0, self.choice.C / _LARGE_C)

    @property
    def ridge(self) -> Floats:
        """The penalty in units of the objective, (d + 1,)."""
        return self.coordinates.ridge() / self.unit

    @property
    def each_c(self) -> Floats:
        """C of each output in units of the objective, (k, 1)."""
        choice, outputs = self.choice, self.facts.outputs
        if choice.trying:
            return np.tile(np.repeat(choice.tried, outputs), choice.folds)[:, None]
        return np.full((outputs, 1), choice.C / self.unit)

    def judged(self, model: Floats, losses: Floats) -> Judged:
        penalties = consensus.penalties_of(model, self.coordinates.ridge())
        return Judged(penalties + self.choice.C * self.rows * losses, model)

    # -- penalties of ADMM

    def first_rho(self, place: int) -> Floats:
        """Return the first rho of a group for each output, (k, 1).

        Random features vary little, so their weights are penalised by far more than 1; rho grows
        with the root of that.
        """
        if (given := self.options.step_sizes or self.options.rho) is not None:
            rho = given[place] if isinstance(given, tuple) else given
            return np.full(self.each_c.shape, rho / self.unit)
        wide = self.coordinates.ridge()[:-1].mean() ** 0.5 if self.facts.features else 1
        return consensus.initial_rho(self.schedule, self.each_c) * wide

    def mean_rho(self) -> Floats:
        groups = range(len(self.options.groups_))
        return np.asarray(np.mean([self.first_rho(k) for k in groups], 0))

    def rho_of(self, place: int, done: int, factor: Floats) -> Floats:
        return self.first_rho(place) * consensus.growth(self.schedule, done, factor)[:, None]

    def sigma_of(self, done: int, factor: Floats) -> Floats:
        """Return the agents' penalty for each output, by default rho times users per group."""
        if (given := self.options.sigma) is not None:
            return np.full((len(factor), 1), given / self.unit)
        grown = self.mean_rho() * consensus.growth(self.schedule, done, factor)[:, None]
        return grown * len(self.users) / len(self.options.groups_)

    def next_factor(self, now: Floats, residuals: Residuals, done: int) -> Floats:
        rho = self.mean_rho()[:, 0] * now
        return consensus.next_growth(self.schedule, now, residuals, rho, done)

    def is_small(self, residuals: Residuals, done: int) -> bool:
        small = residuals.small(self.options.tolerance)
        return done > 1 and self.choice.is_judged_at(done) and small

    def note(self, started: float, done: int, model: Floats) -> None:
        if not self.choice.trying:
            self.options.trace_.append((time.monotonic() - started, done, model))

    # -- exchanges with all users

    def ask_users(self, requests: Any, reply: Any, **more: Any) -> Steps:
        """Request the sums of a request from all users; repeated with all if one is missing."""
        each = requests if isinstance(requests, dict) else dict.fromkeys(self.users, requests)
        sums = next(iter(each.values())).sum_specs(self.now)
        for spec in sums:
            if spec.release is not None:
                self.options.noise_.note(spec.release, len(each))
        answers = yield Ask(each, reply=reply, number=self.step, sums=sums, **more)
        return answers.totals[sums[0].key] if sums else answers.replies

    def measure(self) -> Steps:
        """Fit the coordinates: one exchange, two with random features."""
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
        own, names = self.coordinates, ("mean", "deviation", "ridge", "shares")
        found = (own.mean, own.deviation, self.ridge, self.shares) if first else (_NONE,) * 4
        known: dict[str, Any] = dict(zip(names, found, strict=True))
        return known | {"chosen": self.choice.chosen, "relaxation": self.options.relaxation}

    # -- without agents

    def central_rounds(self, arrays: Arrays, meta: Mapping[str, Any]) -> Steps:
        """Iterate with all users around the server, one exchange each.

        The server computes the center from the masked sum of all users, as a single agent would.
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
        own, options = self.coordinates, self.options
        planned = {"fitting": options.fitting_, "notes": options.notes_}
        trials = {**vars(self.choice), **planned, "rounds": options.num_rounds}
        meta |= {"standardised": own.standardised, "trials": trials}
        arrays = {**arrays, "mean": own.mean, "deviation": own.deviation, **self.raw_arrays()}
        if best is not None:
            arrays |= {"best": best.model, "best_objectives": best.objectives}
        yield from self.saver.save(self.step, done, nodes, arrays, **meta)

    def restore(self, arrays: Arrays, meta: Mapping[str, Any]) -> Judged | None:
        self.choice.restore(meta["trials"])
        standardised = bool(meta["standardised"])
        self.coordinates = Coordinates(arrays["mean"], arrays["deviation"], standardised)
        if "raw_mean" in arrays:
            self.raw = Coordinates(arrays["raw_mean"], arrays["raw_deviation"], True)
        return Judged(arrays["best_objectives"], arrays["best"]) if "best" in arrays else None

    def raw_arrays(self) -> Arrays:
        if self.raw is None:
            return {}
        return {"raw_mean": self.raw.mean, "raw_deviation": self.raw.deviation}

    # -- the end

    @property
    def yard(self) -> Yardstick:
        facts = self.facts
        bins = bins_of(sum(facts.tests), facts.classes)
        return Yardstick(facts.classes, facts.outputs, facts.label_bound, bins)

    def judge(self, model: Floats) -> Steps:
        self.step += 1
        request = wire.EvaluateRequest(self_masks=False, bins=self.yard.bins, model=model)
        return (yield from self.ask_users(request, wire.EvaluateReply, ends=True))

    def judge_left(self, model: Floats, lost: set[int], attempts: int) -> Steps:
        """Evaluate a model on all remaining users; not at all if some do not answer.

        It is opened once only: the difference of two sums would reveal single users.
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
            running = sums.order(spec)
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
        penalty = float(consensus.penalties_of(model, self.coordinates.ridge()).sum())
        return penalty + self.choice.C * self.rows * float(total[0])

    # -- with a budget of privacy

    def private_rounds(self, arrays: Arrays) -> Steps:
        """Take all steps, one exchange with all users each; return the mean of the second half.

        A resumed run repeats the requests since its checkpoint, so that users answer with the same
        noise.
        """
        facts, saver = self.facts, self.saver
        self.coordinates = linear_model.public_coordinates(facts.columns, facts.features)
        start, ridge = np.zeros(self.shape), self.coordinates.ridge()
        model, mean = arrays.get("model", start), arrays.get("mean", start)
        rounds = self.options.num_rounds
        half, self.step = rounds // 2, saver.last
        for done in range(saver.last, rounds):
            request = self._noisy(wire.GradientRequest, model)
            total = yield from self.ask_users(request, wire.GradientReply)
            how: dict[str, Any] = {"c": self.choice.C, "rows": self.rows, "ridge": ridge}
            before, slope = model, total.reshape(self.shape)
            model = linear_model.next_model(before, slope, done, loss=self.options.loss, **how)
            mean = mean + model * (done >= half) / (rounds - half)
            moved, save = float(np.linalg.norm(model - before)), None
            if done in (0, rounds - 1) or saver.is_due(done + 1):
                saver.last = done + 1
                meta = {"nodes": saver.nodes, "done": done + 1}
                save = Save({"model": model, "mean": mean}, meta, kept=1)
            yield Round(done + 1, {"consensus_difference": moved}, save=save)
        return Learned(True, mean)

    def judge_with_noise(self, model: Floats) -> Steps:
        """Return the noisy counts of held-out rows, made plausible: the last exchange."""
        ends = not self.saver.every  # to repeat the same noise, users need its key
        request = self._noisy(wire.CountRequest, model)
        found = yield from self.ask_users(request, wire.CountReply, ends=ends)
        return tidy(found, self.facts.classes, sum(self.facts.tests))

    def _noisy(self, kind: type[wire.GradientRequest], model: Floats) -> wire.GradientRequest:
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
        """Send all users a saved model; return the number of predicted rows (TableError if 0)."""
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


# -- columns at the groups: users multiply, agents and label owner combine at the same time


class Sealed(NamedTuple):
    parts: dict[int, bytes]
    step: int


_UNSEALED = Sealed({}, 0)


def cut_sealed(data: bytes, sizes: Mapping[int, int]) -> dict[int, bytes]:
    ends = np.cumsum(list(sizes.values())).tolist()
    pairs = zip(sizes, [0, *ends], ends, strict=False)
    return {user: data[start:end] for user, start, end in pairs}


@dataclass
class ColumnRun:
    """A run of a vertical split.

    Attributes
    ----------
    options : HierarchicalSVM
    facts : SVMFacts
    saver : Saver
    step : int
        Number of the exchange.
    message, opened : Sealed
        The owner's message and the agents' sums, for users.
    last : OwnerReply
    """

    options: HierarchicalSVM
    facts: wire.SVMFacts
    saver: Saver
    step: int
    message: Sealed = _UNSEALED
    opened: Sealed = _UNSEALED
    last: wire.OwnerReply = field(
        default_factory=lambda: wire.OwnerReply(sealed=_NO_BYTES, counts=np.zeros(0))
    )

    @property
    def plan(self) -> RowPlan:
        return self.options.row_plan_

    @property
    def users(self) -> dict[int, Group]:
        return {user: group for group in self.options.groups_ for user in group.users}

    @property
    def yard(self) -> Yardstick:
        facts, held_out = self.facts, self.plan.all_rows - self.plan.rows
        bins = bins_of(held_out, facts.classes)
        return Yardstick(facts.classes, facts.outputs, facts.label_bound, bins)

    # -- the loop

    def iterate(self, meta: Mapping[str, Any]) -> Steps:
        """Iterate until the duality gap is small or all rounds are done.

        Return the iterations, whether the gap is small, and the gap as text.
        """
        done = int(meta.get("done", 0))
        if meta:  # data sealed in the earlier session cannot be opened
            yield from self._open_and_lead("again", "again")
        else:
            yield from self._measure()
            yield from self._open_and_lead("columns", "start")
            yield from self._visit("columns")
            yield from self._open_and_lead("weights", "first")
        while not self.last.model:
            if self.saver.is_due(done):
                self.step += 1
                agents = [group.agent for group in self.options.groups_]
                nodes = [*self.users, *agents, self.facts.owner]
                yield from self.saver.save(self.step, done, nodes, {})
            yield from self._visit("weights")
            done += 1
            yield from self._open_and_lead(
                "weights", "last" if done >= self.options.num_rounds else "step"
            )
            objective, bound = self.last.objective, self.last.bound
            gap = max(0.0, objective - bound) / objective
            yield Round(done, {"objective": objective, "gap": gap})
        objective, bound = self.last.objective, self.last.bound
        converged = objective - bound <= self.options.tolerance * objective
        return done, converged, f"relative gap {(objective - bound) / objective:.1e}"

    def judge(self) -> Steps:
        yield from self._visit("message")
        yield from self._open_and_lead("model", None)
        yield from self._visit("judge")
        yield from self._open_and_lead(None, "judge")
        counts = self.last.counts
        if len(counts) not in (0, self.yard.length):
            raise ProtocolError(
                "its counts of held-out rows are missing",
                party="the label owner",
                code="FK-MESSAGE-SHAPE",
            )
        return counts

    # -- users

    def _plan_of(self, user: int, group: Group) -> dict[str, Any]:
        plan = {"take": self.plan.take[user], "place": self.plan.place[user]}
        return {"agent": group.agent, "owner": self.facts.owner, **plan}

    def _measure(self) -> Steps:
        self.step += 1
        requests = {
            user: wire.ColumnsRequest(
                rows=self.plan.rows,
                all_rows=self.plan.all_rows,
                standardised=self.options.scale == "standard",
                **self._plan_of(user, group),
            )
            for user, group in self.users.items()
        }
        yield from self._ask_users(requests, wire.ColumnsReply)

    def _visit(self, kind: str) -> Steps:
        """Let the users multiply.

        ``columns``: the first message, with the coordinates; ``weights``: a message and weights;
        ``message``: the model's message; ``judge``: the model's weights, for all rows.
        """
        self.step += 1
        message, opened = self.message, self.opened
        requests = {
            user: wire.VisitRequest(
                width=self.facts.outputs,
                message_round=message.step,
                weights_round=opened.step,
                coordinates=opened.parts[user] if kind == "columns" else b"",
                message=b"" if kind == "judge" else message.parts[user],
                weights=opened.parts[user] if kind in ("weights", "judge") else b"",
                judge=kind == "judge",
            )
            for user in self.users
        }
        yield from self._ask_users(requests, wire.VisitReply)

    def _ask_users(self, requests: Mapping[int, Any], reply: Any) -> Steps:
        sums = dict[str, SumSpec]()
        for k, group in enumerate(self.options.groups_):
            own: dict[str, Any] = {"agent": group.agent, "label": f"group {group.number}"}
            columns = self.options.columns_of(group)
            facts = replace(self.facts, columns=columns, cohort=1 + k, **own)
            sums |= {spec.key: spec for spec in requests[group.users[0]].sum_specs(facts)}
        owners = [one.receiver for one in sums.values() if one.receiver != SERVER]
        receivers = dict.fromkeys(owners, wire.PadRequest())
        kinds = dict.fromkeys(requests, reply) | dict.fromkeys(receivers, wire.PadReply)
        asked: dict[int, Any] = {**requests, **receivers}
        specs = sorted(sums.values(), key=lambda spec: spec.cohort == wire.EVERYBODY)
        answers = yield Ask(asked, reply=kinds, number=self.step, sums=specs)
        for running in answers.running.values():
            yield Deliver(running, running.order.receiver)

    # -- agents and label owner

    def _open_and_lead(self, block: str | None, owner: str | None) -> Steps:
        """Let agents open their groups' sums, and the owner the outputs, in one exchange."""
        self.step += 1
        requests: dict[int, Any] = {}
        kinds: dict[int, Any] = {}
        for group in self.options.groups_ if block is not None else ():
            kinds[group.agent] = wire.BlockReply
            requests[group.agent] = wire.BlockRequest(
                kind=block or "",
                rows=self.plan.rows,
                standardised=self.options.scale == "standard",
                users=np.array(group.users, np.int32),
            )
        if owner is not None:
            kinds[self.facts.owner] = wire.OwnerReply
            requests[self.facts.owner] = self._owner_request(owner)
        ends = owner == "judge"
        found = (yield Ask(requests, reply=kinds, number=self.step, ends=ends)).replies
        if block is not None:
            self.opened = self._in_equal_parts(found)
        if owner is not None:
            self.last = found[self.facts.owner]
        if owner not in (None, "judge"):
            width = 8 * self.facts.outputs
            sizes = {u: len(self.plan.learned(u)) * width + _OVERHEAD for u in self.users}
            self.message = Sealed(cut_sealed(self.last.sealed.tobytes(), sizes), self.step)

    def _in_equal_parts(self, replies: Mapping[int, Any]) -> Sealed:
        parts: dict[int, bytes] = {}
        for group in self.options.groups_:
            blob = replies[group.agent].sealed
            parts |= cut_sealed(blob, dict.fromkeys(group.users, len(blob) // len(group.users)))
        return Sealed(parts, self.step)

    def _owner_request(self, kind: str) -> wire.OwnerRequest:
        plan, users = self.plan, [*self.users] if kind == "start" else []
        learned = [plan.learned(user) for user in users]
        return wire.OwnerRequest(
            kind=kind,
            loss=self.options.loss,
            c=self.options.C_,
            tolerance=self.options.tolerance,
            rows=plan.rows,
            bins=self.yard.bins if kind == "judge" else 0,
            take=plan.owner if users else _NO_ROWS,
            users=np.array(users, np.int32),
            sizes=np.array(list(map(len, learned)), np.int32),
            place=np.concatenate([_NO_ROWS, *learned]),
        )

    # -- predictions with a saved model

    def predict(self, model: str, calibration: Iterable[float]) -> Steps:
        """Predict the owner's held-out rows; return their number.

        Agents seal their parts of the model for the users, these multiply them with their rows, and
        the label owner opens the sums.
        """
        plan, owner = self.plan, self.facts.owner
        self.step += 1
        recalls = {
            group.agent: wire.RecallRequest(model=model, users=np.array(group.users, np.int32))
            for group in self.options.groups_
        }
        found = (yield Ask(recalls, reply=wire.RecallReply, number=self.step)).replies
        sealed = self._in_equal_parts(found)
        self.step += 1
        requests = {
            user: wire.ContributeRequest(
                rows=plan.all_rows,
                width=self.facts.outputs,
                sealed_round=sealed.step,
                sealed=sealed.parts[user],
                **self._plan_of(user, group),
            )
            for user, group in self.users.items()
        }
        yield from self._ask_users(requests, wire.ContributeReply)
        self.step += 1
        numbers = np.array([*calibration], np.float64)
        asked = {owner: wire.WriteRequest(model=model, take=plan.owner, calibration=numbers)}
        last = yield Ask(asked, reply=wire.WriteReply, number=self.step, ends=True)
        return int(last.replies[owner].samples)

"""What all architectures of a horizontal split share: coordinates, exchanges with all users."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Coordinates, Floats, penalties_of
from fedkern_flwr.groups.digits import DIGITS, from_digits
from fedkern_flwr.groups.linear_model import model_columns
from fedkern_flwr.judging.counts import Yardstick, bins_of
from fedkern_flwr.method import Steps
from fedkern_flwr.strategy import Arrays

from .hierarchical_trials import Trials

_NONE = np.zeros(0)


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


class RowRounds(Trials):
    """Rounds of a horizontal split.

    Attributes
    ----------
    coordinates : Coordinates
    raw : Coordinates or None
        By which columns are standardised before random features are made of them.
    shares_ : ndarray, shape (k,)
        Where classes are weighted: share of the rows of each output that are positive.
    """

    def _reset(self) -> None:
        super()._reset()
        self.coordinates = Coordinates.identity(0)
        self.raw: Coordinates | None = None
        self._told = ""  # name of the last sum over all users: they have been told the same
        self.shares_ = _NONE

    @property
    def shape_(self) -> tuple[int, int]:
        """Of a model: outputs, coefficients with the bias."""
        return len(self.each_c), model_columns(self.columns_, self.frequencies) + 1

    def default_rho(self) -> Floats:
        """Return the first rho where none is given.

        Random features vary little, so that their weights in the coordinates of the run are
        penalised by far more than 1, and rho grows with the root of that.
        """
        wide = self.frequencies and self.architecture != "chain"
        return super().default_rho() * (self.coordinates.ridge()[:-1].mean() ** 0.5 if wide else 1)

    def judged(self, model: Floats, losses: Floats) -> Judged:
        """Return models with their objectives, of so much loss per row each."""
        penalties = penalties_of(model, self.coordinates.ridge())
        return Judged(penalties + self.C_ * self.rows_ * losses, model)

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
        plain = not standard or self.frequencies
        found = yield from self._fit(width, standardised=standard and not self.frequencies)
        # The users must know of the run even where ADMM runs on columns as they are.
        bare = self.consensus == "paper" and plain
        self.coordinates = Coordinates.identity(width) if bare else found

    def _fit(self, columns: int, *, standardised: bool, raw: bool = False) -> Steps:
        self.step += 1
        counted = self.outputs_ if self.class_weight == "balanced" and not raw else 0
        requests = {
            user: wire.StatisticsRequest(
                loss=self.loss,
                c=self.C_,
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
        if self.architecture == "chain":
            users = self.users_
            k = users.index(user)
            return [*users[max(0, k - 1) : k], *users[k + 1 : k + 2]]
        return [g.agent for g in self.groups_ if g.agent >= 0 and user in g.users]

    def coordinate_fields(self, *, first: bool) -> dict[str, Any]:
        """Return the fields of a request that carry the coordinates, with the first iteration."""
        own, names = self.coordinates, ("mean", "deviation", "ridge", "shares")
        found = (own.mean, own.deviation, own.ridge(), self.shares_) if first else (_NONE,) * 4
        return dict(zip(names, found, strict=True))

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
            self.note_untold()
        return found | judged

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

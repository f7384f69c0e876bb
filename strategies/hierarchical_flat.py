"""One layer, for comparison: users around the server, or in a chain of neighbours."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkern_flwr.consensus import Floats, Residuals, balance, growth, penalty_of
from fedkern_flwr.wire import hierarchical as wire

from .hierarchical_steps import Steps, again

if TYPE_CHECKING:
    from fedkern_flwr.strategy import Arrays

_STATISTICS = 3  # loss, primal residual, pull or change
_NOTHING = np.zeros((0, 0))


class FlatLoop:
    """The iterations of a run without agents, one exchange each.

    ``centralised``: the server makes the center from the masked sum of all users, as a single agent
    would. ``chain``: users exchange models with their neighbours; the mean of all models, a masked
    sum, stands for the result.

    Parameters
    ----------
    steps : Steps
        What belongs to the run.

    Attributes
    ----------
    best : (float, ndarray) or None
        Least objective so far, and its model.
    lost : dict
        Always empty: every user is needed.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps, self.strategy = steps, steps.strategy
        self.chain = self.strategy.architecture == "chain"
        self.users = list(steps.groups[0].users)
        self.model, self.before = np.zeros(steps.shape), np.zeros(steps.shape)
        self.best: tuple[float, Floats] | None = None
        self.lost: dict[int, str] = {}
        self.done, self._factor = 0, 1.0
        self._sealed: dict[int, tuple[bytes, bytes]] = {}
        self._started = time.monotonic()

    @property
    def rho(self) -> float:
        """The penalty of the iteration at hand."""
        strategy = self.strategy
        return strategy.first_rho(0) * growth(strategy.chosen_schedule, self.done, self._factor)

    def run(self, rounds: int) -> bool:
        """Iterate until the residuals are small, or all rounds are done."""
        strategy = self.strategy
        while self.done < rounds:
            if strategy.checkpoint is not None and (
                self.done - strategy.saved >= strategy.checkpoint_every
            ):
                self._save()
            residuals = self._iterate()
            if self.done > 1 and residuals.small(strategy.tolerance):
                return True
        return False

    def resume(self, arrays: Arrays, meta: dict[str, Any]) -> None:
        """Take up a run where its checkpoint was written."""
        self.model, self.before, self.done = arrays["model"], arrays["before"], int(meta["round"])
        self._factor = float(meta["factor"])
        if meta["best"] is not None:
            self.best = (float(meta["best"]), arrays["best"])
        if self.chain:  # what was sealed for the neighbours has keys of another session
            self._iterate(again=True)

    def _save(self) -> None:
        strategy = self.strategy
        strategy.saved = self.done
        if self.steps.save(strategy.step, self.users):
            objective, best = self.best if self.best is not None else (None, _NOTHING)
            self.steps.write(
                self.done,
                {"model": self.model, "before": self.before, "best": best},
                {"saved": strategy.step, "factor": self._factor, "best": objective},
            )

    def _iterate(self, *, again: bool = False) -> Residuals:
        """Do one iteration; ``again``: only have the last one's messages sealed once more."""
        steps, strategy = self.steps, self.strategy
        number = self.done if again else self.done + 1
        strategy.step = number
        rho, judged = self.rho, self.model if self.done else _NOTHING
        length = steps.shape[0] * steps.shape[1] + _STATISTICS
        total, replies = self._sum(number, rho, judged, length)
        if self.chain:
            self._pass_on(replies)
        if again:
            return Residuals(1.0, 1.0, 1.0, 1.0)
        terms, (loss, primal, last) = total[:-3].reshape(steps.shape), total[-3:]
        count = len(self.users)
        if self.chain:
            model = terms / count
            norm = count * float(np.linalg.norm(model))
            residuals = Residuals(float(primal), norm, float(last), norm)
        else:
            model = rho * terms / (rho * count + steps.ridge)
            change = rho * count * float(np.linalg.norm(model - self.model))
            norm = count * float(np.linalg.norm(model))
            residuals = Residuals(float(primal), norm, change, float(last) * steps.rows)
        self.done = number
        self._record(model, judged, float(loss), residuals, rho)
        self.before, self.model = self.model, model
        return residuals

    def _sum(
        self, number: int, rho: float, judged: Floats, length: int
    ) -> tuple[Floats, dict[int, Any]]:
        """Return the sum over all users, and their replies."""
        steps, strategy = self.steps, self.strategy
        assert strategy.sums is not None
        kind = wire.ChainReply if self.chain else wire.LocalReply
        common: dict[str, Any] = {
            "session": strategy.session,
            "round": number,
            "rho": rho,
            "judged": judged,
            **steps.coordinate_fields(number == 1),
        }
        for attempt in range(strategy.attempts):
            running = strategy.sums.order(
                wire.FLAT_SUM, length, steps.encoding, cohort=0, self_masks=False
            )
            requests = again({user: self._request(user, common) for user in self.users}, attempt)
            found = strategy.ask(steps.grid, requests, kind, steps.timeout, [running])
            if strategy.whole(running) and len(found) == len(self.users):
                return strategy.total(running), found
            strategy.close(running)
        raise strategy.gave_up(kind.phase)

    def _request(self, user: int, common: dict[str, Any]) -> wire.LocalRequest | wire.ChainRequest:
        if not self.chain:
            return wire.LocalRequest(
                agent=-1,
                relaxation=self.strategy.chosen_relaxation,
                sealed=b"",
                center=self.model if self.done else _NOTHING,
                **common,
            )
        k = self.users.index(user)
        left = self.users[k - 1] if k else -1
        right = self.users[k + 1] if k + 1 < len(self.users) else -1
        return wire.ChainRequest(
            left=left,
            right=right,
            from_left=self._sealed.get(left, (b"", b""))[1],
            from_right=self._sealed.get(right, (b"", b""))[0],
            users=len(self.users),
            **common,
        )

    def _pass_on(self, replies: dict[int, wire.ChainReply]) -> None:
        self._sealed = {user: (reply.to_left, reply.to_right) for user, reply in replies.items()}

    def _record(
        self, model: Floats, judged: Floats, loss: float, residuals: Residuals, rho: float
    ) -> None:
        strategy, steps = self.strategy, self.steps
        primal, dual = residuals.relative
        row: dict[str, Any] = {"round": self.done, "primal": primal, "dual": dual}
        row |= {"consensus_difference": float(np.linalg.norm(model - self.model)), "rho": rho}
        if judged.size:
            objective = penalty_of(judged, steps.ridge) + strategy.C * steps.rows * loss
            row["objective"] = objective
            if self.best is None or objective < self.best[0]:
                self.best = (objective, judged)
        strategy.history_.append(row)
        strategy.trace_.append((time.monotonic() - self._started, self.done, model))
        if strategy.chosen_schedule == "balanced":
            self._factor *= balance(primal, dual, self.done)
        if strategy.on_round is not None:
            strategy.on_round(self.done, strategy.rounds, row)

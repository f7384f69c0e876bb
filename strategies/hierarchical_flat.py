"""One layer, for comparison: users around the server, or in a chain of neighbours."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Floats, Residuals, norms
from fedkern_flwr.method import Round, Steps

from .hierarchical_rows import Learned, RowRounds

_STATISTICS = 3  # of each output: loss, primal residual, pull or change
_NOTHING = np.zeros((0, 0))


class FlatRounds(RowRounds):
    """The iterations of a run without agents, one exchange each.

    ``centralised``: the server makes the center from the masked sum of all users, as a single agent
    would. ``chain``: users exchange models with their neighbours; the mean of all models, a masked
    sum, stands for the result.
    """

    def flat_rounds(self) -> Steps:
        """Iterate until the residuals are small, or all rounds are done."""
        meta, chain, started = self.saved_meta_, self.architecture == "chain", time.monotonic()
        model, best, sealed = np.zeros(self.shape_), None, dict[int, wire.ChainReply]()
        done = int(meta.get("done", 0))
        if meta:
            best, model = self.take_up(), self.saved_["model"]
        factor = np.array(meta.get("factor", [1.0] * len(model)))
        count, ridge = len(self.users_), self.coordinates.ridge()
        if meta and chain:  # what was sealed for the neighbours has keys of another session
            _, sealed = yield from self._ask_all(done, factor, model, sealed)
        while done < self.num_rounds:
            if self.is_settled_at(done + 1):
                model, factor, best = self.chosen_of(model), self.chosen_of(factor), None
            if self.is_due(done):
                yield from self.save_rows(
                    done, self.users_, {"model": model}, best, factor=factor.tolist()
                )
            rho, judged = self.rho_of(0, done, factor), model if done else _NOTHING
            done += 1
            total, sealed = yield from self._ask_all(done, factor, model, sealed)
            terms = total[: model.size].reshape(self.shape_)
            losses, primal, last = total[model.size :].reshape(_STATISTICS, -1)
            before = model
            if chain:
                model = terms / count
                size = count * norms(model)
                residuals = Residuals(primal, size, last, size)
            else:
                model = rho * terms / (rho * count + ridge)
                change = rho[:, 0] * count * norms(model - before)
                size = count * norms(model)
                residuals = Residuals(primal, size, change, last * self.rows_)
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
            if done > 1 and self.is_judged_at(done) and residuals.small(self.tolerance):
                return Learned(True, model if best is None else best.model)
        return Learned(False, model if best is None else best.model)

    def _ask_all(
        self, number: int, factor: Floats, model: Floats, sealed: dict[int, wire.ChainReply]
    ) -> Steps:
        """Return the sum over all users, and their replies, of an iteration or of that again."""
        self.step = number
        common: dict[str, Any] = {
            "rho": self.rho_of(0, number - 1, factor),
            "judged": model if number > 1 else _NOTHING,
            **self.coordinate_fields(first=number == 1),
            **self.chosen_field(),
        }
        requests: dict[int, Any]
        reply: type[wire.SVMReply]
        if self.architecture == "chain":
            reply = wire.ChainReply
            requests = {user: self._chain_request(user, sealed, common) for user in self.users_}
        else:
            reply = wire.LocalReply
            request = wire.LocalRequest(
                agent=-1,
                relaxation=self.relaxation,
                sealed=b"",
                center=common["judged"],
                **common,
            )
            requests = dict.fromkeys(self.users_, request)
        length = self.shape_[0] * (self.shape_[1] + _STATISTICS)
        return (yield from self.sum_users(wire.FLAT_SUM, length, requests, reply))

    def _chain_request(
        self, user: int, sealed: dict[int, wire.ChainReply], common: dict[str, Any]
    ) -> wire.ChainRequest:
        k, users = self.users_.index(user), self.users_
        left = users[k - 1] if k else -1
        right = users[k + 1] if k + 1 < len(users) else -1
        return wire.ChainRequest(
            left=left,
            right=right,
            from_left=sealed[left].to_right if left in sealed else b"",
            from_right=sealed[right].to_left if right in sealed else b"",
            users=len(users),
            **common,
        )

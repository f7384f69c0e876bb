"""Predictions with a saved model of HierarchicalSVM: one exchange, or three in a vertical split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import TableError
from fedkern_flwr.linear_model import model_columns
from fedkern_flwr.wire import PhaseMessage
from fedkern_flwr.wire import hierarchical as wire

from .hierarchical_steps import again, cut_sealed
from .hierarchical_vertical import VisitLoop, Wanted

if TYPE_CHECKING:
    from .hierarchical_svm import HierarchicalSVM

_USERS = 0  # cohort of all users and the label owner


def shapes_of(meta: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the arrays of a model must have; a vertical split has none."""
    if meta["partition"] == "vertical":
        return {}
    outputs, columns = int(meta["outputs"]), int(meta["columns"])
    width = model_columns(columns, int(meta["features"]))
    return {"weights": (outputs, width), "bias": (outputs,)}


def predict_at_users(
    strategy: HierarchicalSVM,
    grid: Grid,
    arrays: Mapping[str, NDArray[Any]],
    meta: Mapping[str, Any],
    timeout: float,
) -> int:
    """Send all users the model of a horizontal split; return how many rows they predicted.

    Raises
    ------
    CohortError, ProtocolError, TableError
    """
    none, found = np.zeros(0), dict[int, Any]()
    strategy.next_step()
    request = wire.PredictRequest(
        session=strategy.session,
        round=strategy.step,
        features=int(meta["features"]),
        gamma=float(meta["gamma"]),
        feature_seed=int(meta["feature_seed"]),
        weights=arrays["weights"],
        bias=arrays["bias"],
        raw_mean=arrays.get("raw_mean", none),
        raw_deviation=arrays.get("raw_deviation", none),
    )
    users = [user for group in strategy.groups_ for user in group.users]
    for attempt in range(strategy.attempts):
        waiting = again({user: request for user in users if user not in found}, attempt)
        found |= strategy.ask(grid, waiting, wire.PredictReply, timeout)
        if len(found) == len(users):
            break
    else:
        raise strategy.gave_up(request.phase)
    samples = int(sum(reply.samples for reply in found.values()))
    if not samples:
        raise TableError(
            "no user holds rows to predict",
            remedy="name test-data in the --node-config of those that shall predict",
        )
    return samples


class PredictionLoop(VisitLoop):
    """The exchanges by which a vertical split predicts the label owner's held-out rows.

    Agents seal their parts of the model for the users, these multiply them with their rows, and the
    label owner opens the sums.
    """

    def predict(self, model: str) -> int:
        """Predict with the model of a session; return how many rows were predicted.

        Raises
        ------
        CohortError, ProtocolError
        """
        sealed = self._recall(model)
        self._contribute(sealed)
        return self._write(model)

    def _recall(self, model: str) -> dict[int, bytes]:
        strategy = self.strategy
        strategy.next_step()
        requests: dict[int, PhaseMessage] = {
            group.agent: wire.RecallRequest(
                session=strategy.session,
                round=strategy.step,
                model=model,
                users=np.array(group.users, np.int32),
            )
            for group in self.groups
        }
        found = self._ask(requests, dict.fromkeys(requests, wire.RecallReply), {})
        parts: dict[int, bytes] = {}
        for group in self.groups:
            blob = found[group.agent].sealed
            sizes = dict.fromkeys(group.users, len(blob) // len(group.users))
            parts |= cut_sealed(blob, sizes)
        return parts

    def _contribute(self, sealed: Mapping[int, bytes]) -> None:
        strategy, plan = self.strategy, self.plan
        sealed_round = strategy.step
        strategy.next_step()
        requests: dict[int, PhaseMessage] = {
            user: wire.ContributeRequest(
                session=strategy.session,
                round=strategy.step,
                agent=self.group_of[user].agent,
                owner=self.owner,
                rows=plan.all_rows,
                width=self.width,
                sealed_round=sealed_round,
                sealed=sealed[user],
                take=plan.take[user],
                place=plan.place[user],
            )
            for user in self.users
        }
        outputs = Wanted(wire.PREDICTED_SUM, plan.all_rows * self.width, _USERS, self.owner)
        self._sum(requests, wire.ContributeReply, [outputs])

    def _write(self, model: str) -> int:
        strategy = self.strategy
        strategy.next_step()
        assert self._output_sum is not None
        requests: dict[int, PhaseMessage] = {
            self.owner: wire.WriteRequest(
                session=strategy.session,
                round=strategy.step,
                model=model,
                take=self.plan.owner,
            )
        }
        kinds = {self.owner: wire.WriteReply}
        found = self._ask(requests, kinds, {self.owner: [self._output_sum]})
        return int(found[self.owner].samples)

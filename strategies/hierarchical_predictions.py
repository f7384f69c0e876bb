"""Predictions with a saved model of HierarchicalSVM: one exchange, or three in a vertical split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import TableError
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups import prediction_messages as saved
from fedkern_flwr.groups.linear_model import model_columns
from fedkern_flwr.method import Steps

from .hierarchical_vertical import ColumnRounds


def shapes_of(meta: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the arrays of a model must have; a vertical split has none."""
    if meta["partition"] == "vertical":
        return {}
    outputs, columns = int(meta["outputs"]), int(meta["columns"])
    width = model_columns(columns, int(meta["features"]))
    return {"weights": (outputs, width), "bias": (outputs,)}


class PredictionRounds(ColumnRounds):
    """The exchanges by which rows are predicted with a saved model."""

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
        request = saved.PredictRequest(
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
        answers = yield self.question(asked, saved.PredictReply, ends=True)
        samples = int(sum(reply.samples for reply in answers.replies.values()))
        if not samples:
            raise TableError(
                "no user holds rows to predict",
                remedy="name test-data in the --node-config of those that shall predict",
            )
        return samples

    def predict_columns(self, model: str, calibration: Sequence[float]) -> Steps:
        """Predict the owner's held-out rows of a vertical split; return how many.

        Agents seal their parts of the model for the users, these multiply them with their rows, and
        the label owner opens the sums.
        """
        self.step += 1
        recalls = {
            group.agent: saved.RecallRequest(model=model, users=np.array(group.users, np.int32))
            for group in self.groups_
        }
        found = (yield self.question(recalls, saved.RecallReply)).replies
        sealed, plan, owner = self.in_equal_parts(found), self.row_plan_, self._owner
        self.step += 1
        requests = {
            user: saved.ContributeRequest(
                agent=group.agent,
                owner=owner,
                rows=plan.all_rows,
                width=self.outputs_,
                sealed_round=sealed.step,
                sealed=sealed.parts[user],
                take=plan.take[user],
                place=plan.place[user],
            )
            for group in self.groups_
            for user in group.users
        }
        outputs = self.term(wire.PREDICTED_SUM, plan.all_rows * self.outputs_, receiver=owner)
        yield from self.sum_for_others(requests, saved.ContributeReply, [outputs])
        self.step += 1
        numbers = np.array(calibration, np.float64)
        asked = {owner: saved.WriteRequest(model=model, take=plan.owner, calibration=numbers)}
        found = (yield self.question(asked, saved.WriteReply, ends=True)).replies
        return int(found[owner].samples)

"""A user of HierarchicalSVM in a run with a budget of privacy: gradients and counts, with noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkern_flwr.exchange import SumSpec
from fedkern_flwr.groups import gradients
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.linear_model import model_columns
from fedkern_flwr.guard import refusal
from fedkern_flwr.judging.figures import OUTCOMES, outcomes_release
from fedkern_flwr.node.client import answers
from fedkern_flwr.node.state import SessionState
from fedkern_flwr.privacy import Budget, Release
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.membership import asked

from .hierarchical_node import SVMNode

_PINNED = ("features", "gamma", "feature_seed", "iterations")


class PrivateUser(SVMNode):
    """What a user answers in a run with a budget, and nothing else."""

    adds_noise = True

    def answer(self, request: Any, method: Any) -> Any:
        """Refuse in a run with a budget what has no noise, and else what has."""
        noisy = isinstance(request, wire.GradientRequest)
        if noisy != (self.budget is not None) and not isinstance(request, wire.PredictRequest):
            why = "is asked for without a budget" if noisy else "adds no noise to what is asked for"
            raise refusal(f"privacy: it {why}", self.name, code="FK-BUDGET-SIDES")
        return super().answer(request, method)

    def close_round(
        self, state: SessionState, number: int, kept: Any, checkpoint_every: int
    ) -> None:
        """Keep the settings of the run, and that this node has a folder, to go on with it."""
        super().close_round(state, number, kept, checkpoint_every)
        if number == 1 and isinstance(self._request, wire.GradientRequest):
            self._save(state, number)

    @answers(wire.GradientRequest)
    def add_gradient(self, request: wire.GradientRequest) -> wire.GradientReply:
        """Contribute the gradient of the losses at a model."""
        self._take_up(request)
        name, rows = gradients.GRADIENT_SUM, self.ordered.rows(gradients.GRADIENT_SUM)
        planned = gradients.gradient_release(
            self._kept_budget,
            outputs=request.model.shape[0],
            width=request.model.shape[1],
            rows=rows,
            iterations=request.iterations,
        )
        self._check_noisy(name, planned, rows)
        self.kept.settings["helped"] = True  # to make a model, which may then be judged
        own = gradients.shortened(self.learned_rows()[0])
        found = gradients.gradient(request.loss, own, self.table.y, request.model)  # type: ignore[arg-type]
        self.ordered.contribute(
            name, found.ravel(), release=asked(str(request.round), request.model)
        )
        return wire.GradientReply()

    @answers(wire.CountRequest)
    def add_counts(self, request: wire.CountRequest) -> wire.CountReply:
        """Contribute the counts of held-out rows; write their predictions."""
        self._take_up(request)
        table, counts = self.table, self.ordered.party.state.counts
        cohort = self.ordered.party.state.cohorts[self.ordered.order(OUTCOMES).cohort]
        rows = [counts[p][1] for p in cohort.members]
        classes, outputs = len(table.classes), table.y.shape[1]
        release = outcomes_release(self._kept_budget, classes=classes, outputs=outputs, rows=rows)
        self._check_noisy(OUTCOMES, release, rows, held_out=True)
        tests, held_out = np.arange(table.tests), self.rows_of(table.x_test) @ request.model.T
        trained = bool(self.kept.settings.get("helped"))
        found = self.outcomes(tests, held_out, 0, total=OUTCOMES, trained=trained)
        self.ordered.contribute(OUTCOMES, found, release=asked(request.model))
        self.write_predictions(tests, held_out)
        return wire.CountReply()

    @property
    def _kept_budget(self) -> Budget:
        assert self.budget is not None  # or it would have been refused
        return self.budget

    def _take_up(self, request: wire.GradientRequest) -> None:
        """Take the public settings and coordinates; refuse what a row could move farther by.

        Raises
        ------
        RefusedError, ProtocolError
        """
        table = self.table
        if request.loss not in gradients.BOUNDED or not len(table.classes):
            raise refusal(
                "privacy: the derivatives of the loss have no bound",
                self.name,
                code="FK-BUDGET-LOSS",
            )
        if not request.iterations > 0:
            raise refusal("privacy: a run without iterations", self.name, code="FK-MESSAGE-FIELD")
        self.pin(slopes=request.loss, **{name: getattr(request, name) for name in _PINNED})
        width = model_columns(table.features, request.features) + 1
        shape, model = (table.y.shape[1], width), request.model
        if model.shape != shape or not np.isfinite(model).all():
            raise self.wrong(
                "the model of the run has another shape than its columns and classes",
                "run the same release on both sides",
                code="FK-MESSAGE-SHAPE",
            )
        own = gradients.public_coordinates(table.features, request.features)
        self.kept.arrays |= {"mean": own.mean, "deviation": own.deviation}

    def _check_noisy(
        self, name: str, release: Release, rows: list[int], *, held_out: bool = False
    ) -> None:
        """Refuse a sum whose noise, bound or length is not what this user derives."""
        code = Encoding.fixed_point(float(max(1, *rows)))
        spec = SumSpec(name=name, encoding=code, release=release, held_out=held_out)
        self.ordered.check(spec)

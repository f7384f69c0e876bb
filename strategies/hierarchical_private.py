"""HierarchicalSVM with a budget of privacy: proximal steps along noisy sums of gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkern_flwr.groups import gradients
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Floats
from fedkern_flwr.judging.figures import OUTCOMES, Yardstick, outcomes_release, tidy
from fedkern_flwr.method import Round, Save, Steps
from fedkern_flwr.privacy import Release
from fedkern_flwr.secure_sum import Encoding

from .hierarchical_rows import Learned, RowRounds


class PrivateRounds(RowRounds):
    """The iterations of a run with a budget, one exchange each, all users in each.

    A run that is resumed repeats the iterations since its checkpoint: the same questions, so that
    users answer with the noise that they had.
    """

    def private_rounds(self) -> Steps:
        """Take all steps; return the mean of the second half of the models."""
        columns, shape = self.columns_, self.shape_
        self.coordinates = gradients.public_coordinates(columns, self.frequencies)
        parties = [self.party_of(user) for user in self.users_]
        release = gradients.gradient_release(
            self._budget(),
            outputs=shape[0],
            width=shape[1],
            rows=[party.rows for party in parties],
            iterations=self.num_rounds,
        )
        self.noise_.note(release, len(parties))
        start, ridge = np.zeros(shape), self.coordinates.ridge()
        model, mean = self.saved_.get("model", start), self.saved_.get("mean", start)
        half, known = self.num_rounds // 2, {"nodes": self.nodes_digest()}
        self.step = self.last_saved
        for done in range(self.last_saved, self.num_rounds):
            self.step += 1
            most = float(max(party.rows for party in parties))
            request, name = self._request(wire.GradientRequest, model), gradients.GRADIENT_SUM
            total = yield from self._noisy_sum(name, request, wire.GradientReply, release, most)
            before, model = (
                model,
                gradients.next_model(
                    model,
                    total.reshape(shape),
                    done,
                    loss=self.loss,
                    c=self.C_,
                    rows=self.rows_,
                    ridge=ridge,
                ),
            )
            mean = mean + model * (done >= half) / (self.num_rounds - half)
            moved, save = float(np.linalg.norm(model - before)), None
            if done in (0, self.num_rounds - 1) or self.is_due(done + 1):
                self.last_saved = done + 1
                save = Save({"model": model, "mean": mean}, {**known, "done": done + 1}, kept=1)
            yield Round(done + 1, {"consensus_difference": moved}, save=save)
        return Learned(True, mean)

    def judge_with_noise(self, model: Floats) -> Steps:
        """Return the metrics of a model on held-out rows: the last exchange."""
        self.step += 1
        parties = [self.party_of(user) for user in self.users_]
        rows = [party.test_rows for party in parties]
        release = outcomes_release(
            self._budget(), classes=self.classes_, outputs=self.outputs_, rows=rows
        )
        self.noise_.note(release, len(parties))
        request, most = self._request(wire.CountRequest, model), float(max(1, *rows))
        ends = self.checkpoint is None  # else users need the key of their noise to answer again
        found = yield from self._noisy_sum(
            OUTCOMES, request, wire.CountReply, release, most, ends=ends
        )
        if not sum(rows):
            return {}
        yard = Yardstick(self.classes_, self.outputs_, self.label_bound_, 0)
        return self.judge_by(yard, tidy(found, self.classes_, sum(rows)))

    def _budget(self) -> Any:
        assert self.budget is not None
        return self.budget

    def _request(self, kind: type[wire.GradientRequest], model: Floats) -> wire.GradientRequest:
        return kind(
            round=self.step,
            loss=self.loss,
            features=self.frequencies,
            gamma=self.chosen_gamma,
            feature_seed=self.run_seed,
            iterations=self.num_rounds,
            model=model,
        )

    def _noisy_sum(
        self,
        name: str,
        request: wire.GradientRequest,
        reply: Any,
        release: Release,
        most: float,
        **more: Any,
    ) -> Steps:
        """Return the sum of all users' vectors with its noise."""
        length = request.model.size if name == gradients.GRADIENT_SUM else self.classes_**2
        sums = [self.term(name, length, encoding=Encoding.fixed_point(most), release=release)]
        asked = dict.fromkeys(self.users_, request)
        answers = yield self.question(asked, reply, sums=sums, **more)
        return answers.totals[name]

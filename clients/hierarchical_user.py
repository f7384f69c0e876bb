"""A user of HierarchicalSVM in a horizontal split: solves its part of the problem."""

from __future__ import annotations

import numpy as np

from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Floats, next_group_center, norms, relax
from fedkern_flwr.groups.digits import to_digits
from fedkern_flwr.groups.linear_model import model_columns
from fedkern_flwr.guard import refusal
from fedkern_flwr.node.answering import answers
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.wire.sums import Order

from .hierarchical_trials import SolverOfUser

_PINNED = ("loss", "c", "features", "gamma", "feature_seed", "rows", "folds")
_COORDINATES = ("mean", "deviation", "ridge")


class UserOfRows(SolverOfUser):
    """What a user answers in a horizontal split."""

    @answers(wire.StatisticsRequest)
    def contribute_statistics(self, request: wire.StatisticsRequest) -> wire.StatisticsReply:
        """Contribute sums and sums of squares of the columns that the model is linear in."""
        name = self._told(request)
        self.check(name)
        if request.rows != sum(self.ordered.rows(name)):
            raise refusal("the rows of a sum", self.name)
        self.check_trials(request)
        self.pin(tried=request.tried.tolist(), **{n: getattr(request, n) for n in _PINNED})
        if request.raw_mean.size:
            self.kept.arrays |= {
                "raw_mean": request.raw_mean,
                "raw_deviation": request.raw_deviation,
            }
        rows = self.table.x if request.raw else self.features_of(self.table.x)
        positive = (self.table.y > 0.0).sum(0) if request.counted else np.zeros(0)
        share = np.concatenate([rows.sum(0), (rows**2).sum(0)]) / request.rows
        if request.raw or not request.features:
            share = to_digits(share)
        self.ordered.contribute(name, np.concatenate([share, positive / request.rows]))
        return wire.StatisticsReply()

    @answers(wire.LocalRequest)
    def solve_local_problem(self, request: wire.LocalRequest) -> wire.LocalReply:
        """Take over the center of the last iteration, solve, contribute the model and its dual."""
        name = wire.FLAT_SUM if request.agent < 0 else wire.GROUP_SUM
        self.check(name, request.agent)
        self.pin(agent=request.agent, left=-1, right=-1, pipelined=False)
        if not self.repeated:
            self._take_coordinates(request)
            center = np.zeros(self.shape)
            if request.sealed:
                place = ("center", request.round - 1)
                center = self.unseal(request.agent, request.sealed, self.shape, *place)
            elif request.center.size:
                center = request.center
            self._step(request, center)
        self.ordered.contribute(name, self.kept.arrays["vector"])
        return wire.LocalReply()

    @answers(wire.StepWithAgentRequest)
    def solve_with_agent(self, request: wire.StepWithAgentRequest) -> wire.StepWithAgentReply:
        """Make the group's center of the last iteration, as its agent does meanwhile; go on."""
        own = self.kept.settings
        name = str(own.get("told", "")) if self.repeated else self._told(request)
        self.check(name, request.agent)
        self.pin(left=-1, right=-1, pipelined=True)
        if not self.repeated:
            before = self.kept.settings.get("chosen", -1)
            self._take_coordinates(request)
            just = before != request.chosen
            self._step(request, self._make_center(request, self.ordered.order(name), just=just))
        self.ordered.contribute(name, self.kept.arrays["vector"])
        return wire.StepWithAgentReply()

    def _told(self, request: wire.StatisticsRequest | wire.StepWithAgentRequest) -> str:
        """Name a sum after all that this user has been told; what it is told again counts once."""
        own, asked = self.kept.settings, request.sum_name("")
        if own.get("asked") != asked:
            own |= {"asked": asked, "before": own.get("told", "")}
        own["told"] = request.sum_name(own["before"])
        return str(own["told"])

    def _make_center(
        self, request: wire.StepWithAgentRequest, order: Order, *, just: bool
    ) -> Floats:
        """Open the group's sum with the agent's pad, and make the center; zero at first.

        If C has ``just`` been chosen, the sum is still that of all that were tried.
        """
        found = self.kept.arrays
        made = dual = np.zeros(self.shape)
        if request.round > 1:
            parties = len(self.ordered.party.state.cohorts[order.cohort].members)
            place, padded = ("pad", request.round - 1, request.index), request.padded
            pad = self.unseal(request.agent, request.sealed, padded.shape, *place)
            if padded.size != made.size * (self.trials if just else 1) or padded.dtype != np.uint64:
                raise self.wrong("the sum of its group has another length")
            encoding = Encoding.of(order)
            total = encoding.decode(padded - pad.view(np.uint64), parties)
            total = total.reshape(-1, made.shape[1])
            made, dual = next_group_center(
                self.chosen_of(total) if just else total,
                parties - 1,
                request.judged,
                (found["group_center"], found["group_dual"]),
                found["rho"],
                request.sigma,
                request.relaxation,
            )
        found["group_center"] = made
        found["group_dual"] = dual * (request.sigma / request.next_sigma)
        return made

    def _step(self, request: wire.LocalRequest, center: Floats) -> None:
        """Update the dual at a center, solve, and have the vector ready that is summed."""
        found, own, rho = self.kept.arrays, self.kept.settings, request.rho
        dual, primal = np.zeros(self.shape), np.zeros(len(center))
        if "model" in found:
            primal = norms(found["model"] - center)
            dual = (found["dual"] + found["counted"] - center) * (found["rho"] / rho)
        model = self.solve(center - dual, np.broadcast_to(rho, self.shape))
        counted = relax(model, center, request.relaxation)
        found |= {"model": model, "dual": dual, "counted": counted, "rho": rho}
        pull = rho[:, 0] * norms(dual) / own["rows"]
        statistics = [*self.losses(request.judged), *primal, *pull]
        found["vector"] = np.concatenate([(counted + dual).ravel(), statistics])

    @answers(wire.ChainRequest)
    def solve_with_neighbours(self, request: wire.ChainRequest) -> wire.ChainReply:
        """Take over the neighbours' models, solve, contribute the model.

        Decentralised ADMM over the edges of a graph (Forero, Cano and Giannakis, "Consensus-Based
        Distributed Support Vector Machines", JMLR 2010): with duals a_j and neighbours B_j,
        a_j += eta / 2 sum_k (w_j - w_k), then w_j = argmin 1 / (2 N) |w|^2 + C sum loss + 2 a_j^T w
        + eta sum_k |w - (w_j + w_k) / 2|^2.
        """
        self.check(wire.FLAT_SUM)
        self.pin(agent=-1, left=request.left, right=request.right)
        found, sides = self.kept.arrays, (request.left, request.right)
        if not self.repeated:
            self._take_coordinates(request)
            own = found.get("model", np.zeros(self.shape))
            others = [
                self.unseal(other, sealed, self.shape, "model", request.round - 1)
                for other, sealed in zip(
                    sides, (request.from_left, request.from_right), strict=True
                )
                if other >= 0 and sealed
            ] or [own] * sum(other >= 0 for other in sides)
            dual = found.get("dual", np.zeros(self.shape))
            dual = dual + 0.5 * request.rho * sum(own - other for other in others)
            middle = sum(0.5 * (own + other) for other in others)
            ridge = found["ridge"] / request.users
            penalty = ridge + 2.0 * request.rho * len(others)
            target = (2.0 * request.rho * middle - 2.0 * dual) / penalty
            model = self.solve(np.asarray(target), penalty)
            apart = np.sum([norms(model - other) for other in others], axis=0) / len(others)
            found |= {"model": model, "dual": np.asarray(dual)}
            statistics = [*self.losses(request.judged), *apart, *norms(model - own)]
            found["vector"] = np.concatenate([model.ravel(), statistics])
        self.ordered.contribute(wire.FLAT_SUM, found["vector"])
        to_left, to_right = (
            self.seal(other, found["model"], "model", request.round) if other >= 0 else b""
            for other in sides
        )
        return wire.ChainReply(to_left=to_left, to_right=to_right)

    @answers(wire.EvaluateRequest)
    def judge(self, request: wire.EvaluateRequest) -> wire.EvaluateReply:
        """Contribute the model's loss and its outcomes on held-out rows; write predictions."""
        table = self.table
        self.check(wire.EVALUATION_SUM, self_masks=request.self_masks)
        held_out = self.rows_of(table.x_test) @ request.model.T
        tests = np.arange(table.tests)
        counts = self.outcomes(tests, held_out, request.bins, total=wire.EVALUATION_SUM)
        loss = self.losses(request.model)
        self.ordered.contribute(wire.EVALUATION_SUM, np.concatenate([[loss.sum()], counts]))
        self.write_predictions(tests, held_out)
        return wire.EvaluateReply()

    def _take_coordinates(self, request: wire.SolveRequest) -> None:
        found, outputs = self.kept.arrays, self.table.y.shape[1]
        self.choose(request.chosen)
        if request.rho.shape != (self.outputs, 1) or len(request.shares) not in (0, outputs):
            raise self.wrong("penalties or weights are not those of its classes")
        if request.mean.size:
            self._check_shares(request.shares)
            found |= {name: getattr(request, name) for name in (*_COORDINATES, "shares")}
        width = model_columns(self.table.features, int(self.kept.settings.get("features", 0)))
        if not all(len(found.get(name, ())) >= width for name in _COORDINATES):
            raise self.wrong(
                "the coordinates of the run are missing or have another number of columns",
                "run the same release on both sides, and resume from a checkpoint",
            )

    def _check_shares(self, shares: Floats) -> None:
        """Refuse weights of classes that are not those of the run, or cannot be.

        With a share of its own a user's rows could outweigh all others' in what is summed. Whether
        they can be tells of labels: it is told of the first that come, and of no others.
        """
        fits, rows = self.kept.pin("shares", shares.tolist()), self.kept.settings["rows"]
        if shares.size:
            positive = (self.table.y > 0.0).sum(0)
            least, most = positive - 0.5, rows - len(self.table.y) + positive + 0.5
            fits = fits and bool(((least <= shares * rows) & (shares * rows <= most)).all())
        if not fits:
            raise refusal("weights of classes that its rows contradict", self.name)

"""Users and agents of HierarchicalSVM in a horizontal split.

Users solve their part of the problem, those of several C side by side while C is chosen. The agent
of a group is between its users and the other groups.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Floats, next_group_center, norms, relax
from fedkern_flwr.groups.digits import DIGITS, to_digits
from fedkern_flwr.groups.linear_model import model_columns
from fedkern_flwr.groups.trials import FOLDS, MOST_TRIED, deal, part_of
from fedkern_flwr.guard import check_size, refusal
from fedkern_flwr.node.client import answers
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.solvers.local_solvers import balanced_weights, solve_local, total_loss
from fedkern_flwr.wire.sums import Order

from .hierarchical_node import SVMNode

#: What a user keeps of each output.
_STACKED = ("model", "dual", "counted", "rho", "sigma", "memory", "group_center", "group_dual")
_PINNED = ("loss", "c", "features", "gamma", "feature_seed", "rows", "folds")
_COORDINATES = ("mean", "deviation", "ridge")
#: Of users, of each output, after the models: loss, primal residual, pull. No user gets their pad.
_GROUP_STATISTICS = 3


class SolverOfUser(SVMNode):
    """What a user computes with its rows.

    While C is tried, outputs are those of :mod:`fedkern_flwr.groups.trials`: each learns from the
    rows of the other folds, and its loss is that of the fold.
    """

    # -- what is tried

    def check_trials(self, request: wire.StatisticsRequest) -> None:
        """Refuse to try more than a few C, or in folds that there are not."""
        tried, folds = request.tried, request.folds
        few = 1 <= folds <= FOLDS and 2 <= len(tried) <= MOST_TRIED
        fits = few and bool(((tried > 0.0) & (tried < np.inf)).all())
        if (tried.size or folds) and not fits:
            raise refusal(
                f"to try other than 2 to {MOST_TRIED} C in 1 to {FOLDS} folds",
                self.name,
                code="FK-TUNE-MANY",
            )

    def check(
        self,
        name: str,
        receiver: int = -1,
        *,
        self_masks: bool = False,
        length: int | None = None,
    ) -> None:
        """Refuse, while C is tried, any sum that would be of folds of few rows as well."""
        super().check(name, receiver, self_masks=self_masks, length=length)
        if not self._trying:
            return
        policy, own = self.policy, len(self.table.y) // FOLDS
        if own < policy.min_own_rows:
            raise refusal(
                f"min_own_rows = {policy.min_own_rows}: a fold has {own}",
                self.name,
                code="FK-POLICY-OWN-ROWS",
            )
        if sum(rows // FOLDS for rows in self.ordered.rows(name)) < policy.min_sum_rows:
            raise refusal(
                f"min_sum_rows = {policy.min_sum_rows}: a fold has fewer",
                self.name,
                code="FK-POLICY-SUM-ROWS",
            )

    def choose(self, chosen: int) -> None:
        """Go on with one of the C that were tried; it cannot be changed.

        Raises
        ------
        ProtocolError
        """
        own, found = self.kept.settings, self.kept.arrays
        if chosen == own.get("chosen", -1):
            return
        if not self._trying or not 0 <= chosen < len(own["tried"]):
            raise self.wrong(
                "the C to go on with is none that was tried, or another than before",
                code="FK-ORDER-CHANGED",
            )
        own["chosen"], own["c"] = chosen, own["tried"][chosen]
        found |= {name: self.chosen_of(found[name]) for name in _STACKED if name in found}

    def chosen_of(self, stacked: Floats) -> Floats:
        """Return what belongs to the chosen C, of what belongs to all that were tried."""
        own = self.kept.settings
        return part_of(stacked, own["folds"], len(own["tried"]), own["chosen"])

    @property
    def _trying(self) -> bool:
        own = self.kept.settings
        return own.get("folds", 0) > 0 and "chosen" not in own

    @property
    def trials(self) -> int:
        """How many outputs there are for each class while C is tried."""
        own = self.kept.settings
        return int(own.get("folds", 0)) * len(own.get("tried", ()))

    @property
    def outputs(self) -> int:
        """Number of models."""
        return int(self.table.y.shape[1]) * (self.trials if self._trying else 1)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the models."""
        return self.outputs, len(self.kept.arrays["ridge"])

    # -- what is computed

    def solve(self, target: Floats, penalty: Floats) -> Floats:
        """Return the models that minimise C sum loss + 1/2 |w - target|^2 in their penalty."""
        own, (rows, gram), y = self.kept.settings, self.learned_rows(), self.table.y
        hinge, classes = own["loss"] == "hinge", y.shape[1]
        blank = np.zeros((self.outputs, len(y) if hinge else 0))
        cold, models = hinge and "memory" not in self.kept.arrays, []
        memory = blank if cold else self.kept.arrays.get("memory", blank)
        each, kept = len(target) // self._folds, list[Floats]()
        tried = own["tried"] if self._trying else [own["c"]]
        for fold in range(self._folds):
            seen = ~self._held_out(fold) if self._trying else np.ones(len(y), np.bool_)
            part = rows if seen.all() else rows[seen]
            among = gram if gram is None or seen.all() else gram[np.ix_(seen, seen)]
            for output in range(fold * each, (fold + 1) * each):
                k, weights = output % classes, self._weights(output % classes)
                c, before = tried[output // classes % len(tried)], output - classes
                starts = memory[output : output + (not cold)]
                if hinge and before >= fold * each:  # the duals of two C are about as these
                    near = kept[before] * (c / tried[before // classes % len(tried)])
                    starts = np.stack([near] if cold else [*starts, near])
                model, found = solve_local(
                    own["loss"],
                    part,
                    y[seen, k],
                    target[output],
                    penalty[output],
                    c,
                    starts[:, seen] if hinge else starts[0],
                    None if weights is None else weights[seen],
                    among,
                )
                models.append(model)
                if hinge:
                    found, short = np.zeros(len(y)), found
                    found[seen] = short
                kept.append(found)
        self.kept.arrays["memory"] = np.stack(kept)
        return np.stack(models)

    def losses(self, model: Floats) -> Floats:
        """Return each output's sum of losses per row of the run, 0 without a model."""
        own, y = self.kept.settings, self.table.y
        if not model.size:
            return np.zeros(self.outputs)
        if len(model) != self.outputs:
            raise self.wrong(
                "the models to be judged are not those of its classes", code="FK-MESSAGE-SHAPE"
            )
        outputs, totals = self.learned_rows()[0] @ model.T, []
        each = len(model) // self._folds
        for output in range(len(model)):
            k = output % y.shape[1]
            rows = self._held_out(output // each) if self._trying else slice(None)
            weights = self._weights(k)
            share = None if weights is None else weights[rows]
            totals.append(total_loss(own["loss"], outputs[rows, output], y[rows, k], share))
        return np.asarray(np.array(totals) / own["rows"])

    @property
    def _folds(self) -> int:
        return int(self.kept.settings["folds"]) if self._trying else 1

    def _held_out(self, fold: int) -> NDArray[np.bool_]:
        return np.asarray(self._dealt == fold)

    @cached_property
    def _dealt(self) -> NDArray[np.intp]:
        """The fold of each row: that of the node's freeze, so that all runs have the same folds."""
        parts, rows = self.ledger.parts(self.session), len(self.table.y)
        if parts is None:
            return deal(rows, self.table.digest())
        return (parts[:rows] - 1).astype(np.intp) % FOLDS

    def weight(self, order: Order, rows: int) -> float:
        """Count numbers that are about the rows of some folds as if these were all that there are.

        What is about the rows outside of each of several folds can be spread over all rows.
        """
        spread = 1.0
        if self._trying:
            fewest = min(int((~self._held_out(k)).sum()) for k in range(self._folds))
            spread = max(1.0, len(self.table.y) / (self._folds * max(1, fewest)))
        return super().weight(order, rows) * spread

    def _weights(self, output: int) -> Floats | None:
        """Return the weights of the rows to learn from, where classes are weighted."""
        shares = self.kept.arrays["shares"]
        if not shares.size:
            return None
        return balanced_weights(self.table.y[:, output], float(shares[output]))


class UserOfRows(SolverOfUser):
    """What a user answers in a horizontal split."""

    @answers(wire.StatisticsRequest)
    def contribute_statistics(self, request: wire.StatisticsRequest) -> wire.StatisticsReply:
        """Contribute sums and sums of squares of the columns that the model is linear in."""
        name, own, outputs = self._told(request), self.table.features, self.table.y.shape[1]
        check_size(own, 2 * request.features + 1, party=self.name)
        wide = request.raw or not request.features
        columns = own if request.raw else model_columns(own, request.features)
        counted = outputs if request.counted else 0
        self.check(name, length=2 * columns * (DIGITS if wide else 1) + counted)
        if request.rows != sum(self.ordered.rows(name)):
            raise refusal("the rows of a sum", self.name, code="FK-ORDER-ROWS")
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
        if wide:
            share = to_digits(share)
        self.ordered.contribute(name, np.concatenate([share, positive / request.rows]))
        return wire.StatisticsReply()

    @answers(wire.LocalRequest)
    def solve_local_problem(self, request: wire.LocalRequest) -> wire.LocalReply:
        """Take over the center, solve, contribute the model and its dual; without agents."""
        self.check(wire.FLAT_SUM)
        self.pin(agent=-1)
        if not self.repeated:
            self._take_coordinates(request)
            center = request.center if request.center.size else np.zeros(self.shape)
            if "model" not in self.kept.arrays and center.any():
                raise refusal("a first center that is not zero", self.name, code="FK-MESSAGE-FIELD")
            self._step(request, center)
        self.ordered.contribute(wire.FLAT_SUM, self.kept.arrays["vector"])
        return wire.LocalReply()

    @answers(wire.StepWithAgentRequest)
    def solve_with_agent(self, request: wire.StepWithAgentRequest) -> wire.StepWithAgentReply:
        """Make the group's center of the last iteration, as its agent does meanwhile; go on."""
        own = self.kept.settings
        name = str(own.get("told", "")) if self.repeated else self._told(request)
        self.check(name, request.agent)
        self.pin(agent=request.agent)
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
                raise self.wrong("the sum of its group has another length", code="FK-MESSAGE-SHAPE")
            encoding = Encoding.of(order)
            total = encoding.decode(padded - pad.view(np.uint64), parties)
            total = total.reshape(-1, made.shape[1])
            made, dual = next_group_center(
                self.chosen_of(total) if just else total,
                parties - 1,
                request.judged,
                (found["group_center"], found["group_dual"] * (found["sigma"] / request.sigma)),
                found["rho"],
                request.sigma,
                request.relaxation,
            )
        found["group_center"] = made
        found["group_dual"] = dual * (request.sigma / request.next_sigma)
        found["sigma"] = request.next_sigma
        return made

    def _step(self, request: wire.LocalRequest | wire.StepWithAgentRequest, center: Floats) -> None:
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

    @answers(wire.EvaluateRequest)
    def judge(self, request: wire.EvaluateRequest) -> wire.EvaluateReply:
        """Contribute the model's loss and its outcomes on held-out rows; write predictions."""
        table = self.table
        self.check(wire.EVALUATION_SUM, self_masks=request.self_masks)
        held_out = self.rows_of(table.x_test) @ request.model.T
        tests = np.arange(table.tests)
        trained, name = "model" in self.kept.arrays, wire.EVALUATION_SUM
        counts = self.outcomes(tests, held_out, request.bins, total=name, trained=trained)
        loss = self.losses(request.model)
        self.ordered.contribute(wire.EVALUATION_SUM, np.concatenate([[loss.sum()], counts]))
        self.write_predictions(tests, held_out)
        return wire.EvaluateReply()

    def _take_coordinates(self, request: wire.SolveRequest) -> None:
        found, outputs = self.kept.arrays, self.table.y.shape[1]
        self.choose(request.chosen)
        if request.rho.shape != (self.outputs, 1) or len(request.shares) not in (0, outputs):
            raise self.wrong(
                "penalties or weights are not those of its classes", code="FK-MESSAGE-SHAPE"
            )
        if request.mean.size:
            self._check_shares(request.shares)
            found |= {name: getattr(request, name) for name in (*_COORDINATES, "shares")}
        width = model_columns(self.table.features, int(self.kept.settings.get("features", 0)))
        if not all(len(found.get(name, ())) >= width for name in _COORDINATES):
            raise self.wrong(
                "the coordinates of the run are missing or have another number of columns",
                "run the same release on both sides, and resume from a checkpoint",
                code="FK-MESSAGE-SHAPE",
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
            raise refusal(
                "weights of classes that its rows contradict", self.name, code="FK-WEIGHTS-COUNTS"
            )


class AgentOfRows(SVMNode):
    """What an agent answers in a horizontal split."""

    @answers(wire.CombineRequest)
    def combine(self, request: wire.CombineRequest) -> wire.CombineReply:
        """Contribute the term, and the pad of the users' sum, for which they are asked meanwhile.

        Each user of the group gets the part of the pad that is on the models, and none of that on
        the statistics: with the padded sum it makes the same center as this agent.
        """
        sums, sealed, users = self.ordered, b"", request.users.tolist()
        self._make_term(request)
        for name in [n for n in sums.orders if n.partition("#")[0] == wire.GROUP_SUM]:
            self.check(name, self.partition)
            order = sums.order(name)
            if {*users, self.partition} != set(sums.party.state.cohorts[order.cohort].members):
                raise refusal(
                    "the pad of its group for others than its users", self.name, code="FK-ORDER-PAD"
                )
            length = order.length - _GROUP_STATISTICS * request.outputs
            if request.outputs * request.width != length:
                raise refusal(
                    "the pad of more than models, or of fewer", self.name, code="FK-ORDER-PAD"
                )
            sums.contribute_nothing(name)
            pad = sums.party.pad(order, length).view(np.float64)
            place = ("pad", int(self.kept.settings.get("iteration", 0)) + 1, order.index)
            sealed = b"".join(self.seal(user, pad, *place) for user in users)
        for name in (wire.AGENTS_SUM, wire.LEFT_SUM):
            if name in sums.orders:
                self._check_total(name, request)
                sums.contribute(name, self.kept.arrays["term"])
        term = (self.kept.arrays["term"],) if request.plain else ()
        return wire.CombineReply(sealed=sealed, term=term)

    def _check_total(self, name: str, request: wire.CombineRequest) -> None:
        """Refuse a total of other agents than before, or of those left where none may be lost.

        It has two names, one for each kind of masks. The rule that a sum is repeated with the same
        parties holds name by name: without this check the server would get two totals whose
        difference is the term of one group.
        """
        left = name == wire.LEFT_SUM
        if left and not request.leave_out:
            raise refusal("the masks of a sum", self.name, code="FK-ORDER-TERMS")
        self.check(name, self_masks=left)
        state = self.ordered.party.state
        self.pin(agents=list(state.cohorts[self.ordered.order(name).cohort].members))
        own, other = self.kept.settings, wire.AGENTS_SUM if left else wire.LEFT_SUM
        iteration = int(own.get("iteration", 0))
        if own.get(f"last of {other}") == iteration:
            raise refusal(
                "a term in a total of all agents, and in one of those left",
                self.name,
                code="FK-ORDER-TWICE",
            )
        own[f"last of {name}"] = iteration

    def _make_term(self, request: wire.CombineRequest) -> None:
        """Complete an iteration, unless that is done; refuse to tell what must be masked."""
        found = self.kept.arrays
        if request.plain and len(self.ordered.party.state.cohorts) > 1:
            raise refusal(
                "its term in plain, where there are other agents",
                self.name,
                code="FK-ORDER-PLAIN",
            )
        self.pin(leave_out=request.leave_out)
        if self.repeated:
            return
        shape, penalties = (request.outputs, request.width), (request.outputs, 1)
        check_size(*shape, party=self.name)
        if not request.rho.shape == request.sigma.shape == request.next_sigma.shape == penalties:
            raise self.wrong("penalties are not those of the outputs", code="FK-MESSAGE-SHAPE")
        found.setdefault("center", np.zeros(shape))
        found.setdefault("dual", np.zeros(shape))
        found.setdefault("statistics", np.zeros(5 * request.outputs))
        found.setdefault("sigma", request.sigma)
        just = request.chosen != self.kept.settings.setdefault("chosen", -1)
        if just:
            self._choose(request)
        if request.advance:
            self._advance(request, just=just)
        found["dual"] = found["dual"] * (found["sigma"] / request.next_sigma)
        found["sigma"] = request.next_sigma
        term = found["center"] + found["dual"]
        found["term"] = np.concatenate([term.ravel(), found["statistics"]])

    def _choose(self, request: wire.CombineRequest) -> None:
        """Go on with what belongs to one of the C that were tried."""
        found, own = self.kept.arrays, self.kept.settings
        tried = request.folds * request.tried
        if own["chosen"] >= 0 or not 0 <= request.chosen < request.tried or request.folds < 1:
            raise self.wrong(
                "the C to go on with is none that was tried, or another than before",
                code="FK-ORDER-CHANGED",
            )
        own["chosen"] = request.chosen
        for name in ("center", "dual", "sigma"):
            if len(found[name]) == request.outputs * tried:
                found[name] = self._chosen_of(found[name], request)

    def _chosen_of(self, stacked: Floats, request: wire.CombineRequest) -> Floats:
        return part_of(stacked, request.folds, request.tried, request.chosen)

    def _advance(self, request: wire.CombineRequest, *, just: bool) -> None:
        """Complete an iteration of the group.

        If C has ``just`` been chosen, the group's sum is still that of all that were tried.
        """
        found, own, total = self.kept.arrays, self.kept.settings, self.received(wire.GROUP_SUM)
        outputs = request.outputs * (request.folds * request.tried if just else 1)
        models = outputs * request.width
        if total.size != models + _GROUP_STATISTICS * outputs:
            raise self.wrong("the sum of its group has another length", code="FK-MESSAGE-SHAPE")
        sums = total[:models].reshape(outputs, request.width)
        statistics = total[models:].reshape(_GROUP_STATISTICS, outputs)
        if just:
            sums = self._chosen_of(sums, request)
            statistics = self._chosen_of(statistics.T, request).T
        loss, primal, pull = statistics
        before, users = found["center"], len(request.users)
        found["dual"] = found["dual"] * (found["sigma"] / request.sigma)
        found["sigma"] = request.sigma
        center, found["dual"] = next_group_center(
            sums,
            users,
            request.center,
            (before, found["dual"]),
            request.rho,
            request.sigma,
            request.relaxation,
        )
        stiff = (request.rho * users + request.sigma)[:, 0]
        found["center"] = center
        found["statistics"] = np.concatenate(
            [
                loss,
                primal + norms(center - request.center),
                users * norms(center) + norms(request.center),
                stiff * norms(center - before),
                pull,
            ]
        )
        own["iteration"] = int(own.get("iteration", 0)) + 1

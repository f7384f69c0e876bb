"""The agent of a group in a horizontal split: between its users and the other groups."""

from __future__ import annotations

import secrets

import numpy as np

from fedkern_flwr.errors import SumError
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Floats, next_group_center, norms, paper_group_center
from fedkern_flwr.groups.members import DEFAULT_BOUND
from fedkern_flwr.groups.trials import part_of
from fedkern_flwr.guard import refusal
from fedkern_flwr.node.answering import answers
from fedkern_flwr.secure_sum import Encoding

from .hierarchical_node import SVMNode

#: Of users, of each output, after the models: loss, primal residual, pull. No user gets their pad.
_GROUP_STATISTICS = 3


class AgentOfRows(SVMNode):
    """What an agent answers in a horizontal split."""

    @answers(wire.AgentRequest)
    def combine(self, request: wire.AgentRequest) -> wire.AgentReply:
        """Make the group's center from its users' sum and the global model; contribute the term."""
        found, own, sums = self.kept.arrays, self.kept.settings, self.ordered
        self._make_term(request)
        sealed, number = b"", int(own.get("iteration", 0))
        if number:
            users = request.users.tolist()
            sealed = b"".join(self.seal(u, found["center"], "center", number) for u in users)
        if wire.GROUP_SUM in sums.orders:  # the pad of the users' next sum
            self.check(wire.GROUP_SUM, self.partition)
            sums.contribute_nothing(wire.GROUP_SUM)
        if request.plain:
            return wire.AgentReply(sealed=sealed, term=(found["term"],))
        if not request.ring:
            self.check(wire.AGENTS_SUM, self_masks=request.self_masks)
            sums.contribute(wire.AGENTS_SUM, found["term"])
        return wire.AgentReply(sealed=sealed, term=())

    @answers(wire.CombineRequest)
    def combine_with_users(self, request: wire.CombineRequest) -> wire.CombineReply:
        """Contribute the term and the pad of the users' sum, for which they are asked meanwhile.

        Each user of the group gets the part of the pad that is on the models, and none of that on
        the statistics: with the padded sum it makes the same center as this agent.
        """
        sums, sealed, users = self.ordered, b"", request.users.tolist()
        self._make_term(request)
        for name in [n for n in sums.orders if n.partition("#")[0] == wire.GROUP_SUM]:
            self.check(name, self.partition)
            order = sums.order(name)
            if {*users, self.partition} != set(sums.party.state.cohorts[order.cohort].members):
                raise refusal("the pad of its group for others than its users", self.name)
            sums.contribute_nothing(name)
            length = order.length - _GROUP_STATISTICS * request.outputs
            if request.outputs * request.width != length:
                raise refusal("the pad of more than models, or of fewer", self.name)
            pad = sums.party.pad(order, length).view(np.float64)
            place = ("pad", request.round, order.index)
            sealed = b"".join(self.seal(user, pad, *place) for user in users)
        if wire.AGENTS_SUM in sums.orders:
            self.check(wire.AGENTS_SUM)
            sums.contribute(wire.AGENTS_SUM, self.kept.arrays["term"])
        term = (self.kept.arrays["term"],) if request.plain else ()
        return wire.CombineReply(sealed=sealed, term=term)

    def _make_term(self, request: wire.AgentRequest) -> None:
        """Complete an iteration, unless that is done; refuse to tell what must be masked."""
        found = self.kept.arrays
        if request.plain and len(self.ordered.party.state.cohorts) > 1:
            raise refusal("its term in plain, where there are other agents", self.name)
        if self.repeated:
            return
        shape, penalties = (request.outputs, request.width), (request.outputs, 1)
        if not request.rho.shape == request.sigma.shape == request.next_sigma.shape == penalties:
            raise self.wrong("penalties are not those of the outputs")
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
        term = found["center"] + (found["dual"] if request.consensus == "exact" else 0.0)
        found["term"] = np.concatenate([term.ravel(), found["statistics"]])

    def _choose(self, request: wire.AgentRequest) -> None:
        """Go on with what belongs to one of the C that were tried."""
        found, own = self.kept.arrays, self.kept.settings
        tried = request.folds * request.tried
        if own["chosen"] >= 0 or not 0 <= request.chosen < request.tried or request.folds < 1:
            raise self.wrong("the C to go on with is none that was tried, or another than before")
        own["chosen"] = request.chosen
        for name in ("center", "dual", "sigma"):
            if len(found[name]) == request.outputs * tried:
                found[name] = self._chosen_of(found[name], request)

    def _chosen_of(self, stacked: Floats, request: wire.AgentRequest) -> Floats:
        return part_of(stacked, request.folds, request.tried, request.chosen)

    def _advance(self, request: wire.AgentRequest, *, just: bool) -> None:
        """Complete an iteration of the group.

        If C has ``just`` been chosen, the group's sum is still that of all that were tried.
        """
        found, own, total = self.kept.arrays, self.kept.settings, self.received(wire.GROUP_SUM)
        outputs = request.outputs * (request.folds * request.tried if just else 1)
        models = outputs * request.width
        if total.size != models + _GROUP_STATISTICS * outputs:
            raise self.wrong("the sum of its group has another length")
        sums = total[:models].reshape(outputs, request.width)
        statistics = total[models:].reshape(_GROUP_STATISTICS, outputs)
        if just:
            sums = self._chosen_of(sums, request)
            statistics = self._chosen_of(statistics.T, request).T
        loss, primal, pull = statistics
        before, users, exact = found["center"], len(request.users), request.consensus == "exact"
        found["dual"] = found["dual"] * (found["sigma"] / request.sigma)
        found["sigma"] = request.sigma
        if exact:
            center, found["dual"] = next_group_center(
                sums,
                users,
                request.center,
                (before, found["dual"]),
                request.rho,
                request.sigma,
                request.relaxation,
            )
        else:
            others = request.center - before
            center = paper_group_center(
                sums, users, others, request.rho, request.all_users, request.groups
            )
        middle = request.center / (1 if exact else request.groups)
        stiff = (request.rho * users + request.sigma)[:, 0]
        found["center"] = center
        found["statistics"] = np.concatenate(
            [
                loss,
                primal + norms(center - middle),
                users * norms(center) + norms(middle),
                stiff * norms(center - before),
                pull,
            ]
        )
        own["iteration"] = int(own.get("iteration", 0)) + 1

    @answers(wire.RingRequest)
    def pass_round_ring(self, request: wire.RingRequest) -> wire.RingReply:
        """Add this agent's term to what went round the ring, and seal it for the next agent.

        Who begins adds a mask, and takes it off at the end. Terms are fixed-point numbers modulo
        2^64.
        """
        found, own = self.kept.arrays, self.kept.settings
        if "term" not in found or not self.repeated:
            raise self.wrong("it has no term for this round of the ring")
        term = found["term"]
        self.check_declared("bound", self.bound, DEFAULT_BOUND, request.bound)
        encoding = Encoding.fixed_point(request.bound)
        encoding.check_room(request.groups)
        if request.first:
            if own.get("masked") != request.round:  # a repetition has the same mask
                found["mask"] = np.frombuffer(secrets.token_bytes(term.nbytes), np.uint64)
                own["masked"] = request.round
            running = found["mask"]
        else:
            place = ("ring", request.round)
            words = self.unseal(request.source, request.sealed, term.shape, *place)
            running = words.view(np.uint64)
        if request.last:
            total = encoding.decode(running - found["mask"], request.groups)
            return wire.RingReply(sealed=b"", term=(total,))
        try:
            running = running + encoding.encode(term, request.groups, name="ring")
        except SumError as error:
            raise self.unfit(error) from None
        words = running.view(np.float64)
        sealed = self.seal(request.destination, words, "ring", request.round)
        return wire.RingReply(sealed=sealed, term=())

"""What server, agents, users and label owner of HierarchicalSVM see of a recorded run.

A viewer is the server, which sees all messages, or a party, which sees those that it is sent and
opens what is sealed or padded for it. In a horizontal split with agents:

    ========  ==================================================================================
    viewer    what it has of the others
    ========  ==================================================================================
    server    masked vectors; the agents' total and the global model: :meth:`SVMRun.by_server`
    agent     the total of its users in each iteration: :meth:`SVMRun.by_agent`
    user      its group's center and the global model, from which that total follows:
              :meth:`SVMRun.by_user`
    ========  ==================================================================================

What can be made of all that is in :mod:`.groups_inference`.

Source: the messages of :mod:`fedkern_flwr.groups.messages`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.linear_model import model_rows
from fedkern_flwr.secure_sum.envelope import unseal_message

from ...engines import Transcript
from .gradient_inversion import Floats
from .groups_inference import centers_of_terms, gradients_of_sums, sums_of_centers, terms_of_models
from .groups_insiders import SVMInsiders
from .seen import MaskedVector, SeenRun


class SVMRun(SeenRun):
    """A recorded run of HierarchicalSVM: messages, and what each party can open of them.

    Parameters
    ----------
    transcript : Transcript
        All messages.
    insiders : SVMInsiders
        Who watched the same run.

    Attributes
    ----------
    groups : dict
        Group -> its users; those of the only layer are group 0.
    agents : dict
        Group -> its agent.
    """

    name, kinds, opening = "HierarchicalSVM", wire, wire.SVMRequest
    insiders: SVMInsiders

    def __init__(self, transcript: Transcript, insiders: SVMInsiders) -> None:
        super().__init__(transcript, insiders)
        self.groups: dict[int, list[int]] = {}
        self.agents: dict[int, int] = {}
        for number, party in sorted(self.parties.items()):
            if party.role == "user":
                self.groups.setdefault(party.group, []).append(number)
            elif party.role == "agent":
                self.agents[party.group] = number

    # -- the truth

    def rows(self, *users: int) -> Floats:
        """Return the rows of users in the coordinates of the run, shape (n, D)."""
        about = next(self.requests(wire.StatisticsRequest))
        made = next(m for m in self._solved() if m.mean.size)
        x = np.concatenate([self.insiders.parties[user].client.table.x for user in users])
        features = model_rows(x, about.features, about.gamma, about.feature_seed)
        return np.asarray((features - made.mean) / made.deviation)

    def _solved(self) -> Iterator[Any]:
        yield from self._worked()
        yield from self.requests(wire.ChainRequest)

    def _worked(self, user: int | None = None) -> Iterator[Any]:
        """Yield what users with agents, or one of them, were asked in each iteration."""
        yield from self.requests(wire.LocalRequest, user)
        yield from self.requests(wire.StepWithAgentRequest, user)

    def _combined(self, agent: int) -> list[Any]:
        """Return what an agent was asked."""
        found = list(self.requests(wire.CombineRequest, agent))
        return found or list(self.requests(wire.AgentRequest, agent))

    def _centers(self, user: int) -> dict[int, Floats]:
        """Return the group's centers as a user unseals or makes them, by iteration."""
        insider = self.insiders.parties[user]
        made = {t - 1: kept["group_center"] for t, kept in insider.steps if "group_center" in kept}
        return made or {int(p[2]): v for _, p, v in insider.opened if p[1] == "center"}

    def labels(self, user: int) -> Floats:
        """Return the labels of a user or of the owner, shape (n, k)."""
        return np.asarray(self.insiders.parties[user].client.table.y)

    def own_gradients(self, user: int) -> list[Floats]:
        """Return a user's own gradients, which nobody else is to have."""
        insider, found = self.insiders.parties[user], list[Floats]()
        kept = dict(insider.steps)
        centers = self._centers(user)
        for asked in self._worked(user):
            own = kept[asked.round]
            center = centers.get(asked.round - 1, np.zeros(own["model"].size))
            found.append(
                asked.rho * (own["model"] - center.reshape(own["model"].shape) + own["dual"])
            )
        return found

    # -- what passes

    def totals(self, name: str) -> list[Floats]:
        """Return what the server opens by adding up the vectors of whole cohorts."""
        sums: dict[tuple[int, int], list[MaskedVector]] = {}
        for vector in self.masked():
            order = vector.order
            if order.name == name and not order.self_masks and not vector.delivered:
                sums.setdefault((order.cohort, order.index), []).append(vector)
        whole = [v for v in sums.values() if len(v) == len(v[0].members)]
        return [
            v[0].encoding.decode(np.sum([u.ring for u in v], axis=0, dtype=np.uint64), len(v))
            for v in whole
        ]

    def ring(self, viewer: int) -> tuple[list[Floats], list[Floats]]:
        """Return what went round the ring as an agent received it and as it passed it on.

        Fixed-point numbers modulo 2^64, each under the first agent's mask. The next agent has what
        it passed on; it is opened here with that agent's secret.
        """
        found: tuple[list[Floats], list[Floats]] = ([], [])
        for passed in self.messages:
            request = passed.message
            if (
                isinstance(request, wire.RingRequest)
                and request.sealed
                and (viewer in (passed.partition, request.source))
            ):
                place = (request.session, "ring", request.round)
                secret = self.insiders.parties[passed.partition].secrets[request.source]
                plain = unseal_message(
                    secret, request.sealed, *place, request.source, passed.partition
                )
                found[passed.partition != viewer].append(np.frombuffer(plain, "<u8"))
        return found

    def unsealed(self, viewer: int, what: str, source: int | None = None) -> list[Floats]:
        """Return what a party unsealed: ``center``, ``model``, ``message``, ``weights``, .."""
        opened = self.insiders.parties[viewer].opened
        return [v for other, place, v in opened if place[1] == what and source in (None, other)]

    def kept(self, viewer: int) -> dict[str, Floats]:
        """Return what a party keeps at the end."""
        return self.insiders.parties[viewer].steps[-1][1]

    # -- sums of gradients: what everybody can compute in a horizontal split

    def by_agent(self, group: int) -> list[Floats]:
        """Return the gradients of a group's users together, as its agent computes them."""
        agent, users = self.agents[group], len(self.groups[group])
        insider, asked = self.insiders.parties[agent], self._advances(group)
        shape = (asked[0].outputs, asked[0].width)
        kept = dict(insider.steps)
        sums = [
            t[: shape[0] * shape[1]].reshape(shape)
            for name, t in insider.totals
            if name.partition("#")[0] == wire.GROUP_SUM
        ]
        centers = [np.zeros(shape), *(kept[a.round]["center"] for a in asked)]
        rhos = [a.rho for a in asked]
        return gradients_of_sums(sums[: len(asked)], centers, rhos, users, asked[0].relaxation)

    def by_user(self, user: int) -> list[Floats]:
        """Return the gradients of all users of its group, as a user computes them.

        From the centers that it unseals and the global models that it judges; sigma and the number
        of users follow from public options. Groups must not advance by themselves.
        """
        group = self.parties[user].group
        asked, users = self._advances(group), len(self.groups[group])
        opened, local = self._centers(user), list(self._worked(user))
        shape = (asked[0].outputs, asked[0].width)
        centers = [np.zeros(shape)] + [opened[t].reshape(shape) for t in sorted(opened) if t]
        late = isinstance(local[0], wire.StepWithAgentRequest)  # gets a model an exchange later
        judged = [a.judged for a in local[late:]]
        count = min(len(centers) - 1, len(judged))
        rhos, sigmas = [a.rho for a in local[:count]], [a.sigma for a in asked[:count]]
        a = asked[0].relaxation
        sums = sums_of_centers(centers[: count + 1], judged, rhos, sigmas, users, 1, a)
        return gradients_of_sums(sums, centers, rhos, users, a)

    def by_server(self) -> list[Floats]:
        """Return the gradients of all users, as the server computes them; equal groups."""
        group = min(self.groups)
        asked, users = self._advances(group), len(self.groups[group])
        shape, groups = (asked[0].outputs, asked[0].width), len(self.groups)
        terms = self.terms()[1:]  # the first is of no iteration
        return self._of_terms(terms[: len(asked)], asked, shape, users, groups)

    def by_other_agent(self, viewer: int, other: int) -> list[Floats]:
        """Return the gradients of one of two groups, as the agent of the other computes them."""
        asked, users = self._advances(other), len(self.groups[other])
        shape = (asked[0].outputs, asked[0].width)
        own = dict(self.insiders.parties[self.agents[viewer]].steps)
        terms = [
            total - own[a.round]["term"][: shape[0] * shape[1]].reshape(shape)
            for total, a in zip(self.terms()[1:], asked, strict=False)
        ]
        return self._of_terms(terms, asked, shape, users, 1)

    def terms(self) -> list[Floats]:
        """Return the sum of all agents' terms at each tick, as whoever sees the model has it."""
        asked = self._combined(self.agents[min(self.agents)])
        made, sigmas = [a.center for a in asked[1:]], [a.next_sigma for a in asked]
        counts = [a.groups for a in asked[: len(made)]]
        return terms_of_models(made, sigmas[: len(made)], counts, self.ridge)

    @property
    def ridge(self) -> Floats:
        """Penalty of each coefficient."""
        found: Floats = next(m for m in self._solved() if m.ridge.size).ridge
        return found

    def _advances(self, group: int) -> list[wire.AgentRequest]:
        return [a for a in self._combined(self.agents[group]) if a.advance]

    def _of_terms(
        self,
        terms: list[Floats],
        asked: list[wire.AgentRequest],
        shape: tuple[int, int],
        users: int,
        groups: int,
    ) -> list[Floats]:
        count = len(terms)
        models, rhos = [a.center for a in asked[:count]], [a.rho for a in asked[:count]]
        sigmas = [*(a.sigma for a in asked[:count]), asked[count - 1].next_sigma]
        a = asked[0].relaxation
        centers = centers_of_terms(terms, models, sigmas, groups, a)
        sums = sums_of_centers(centers, models, rhos, sigmas[:-1], users, groups, a)
        return gradients_of_sums(sums, centers, rhos, users, a)

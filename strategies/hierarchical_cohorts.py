"""Who sums with whom in HierarchicalSVM, and what its splits ask and keep alike."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedkern_flwr.errors import OptionError
from fedkern_flwr.groups import members as groups
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.method import Ask, Save, Steps, Term
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.strategy import Arrays, logger

from .hierarchical_checks import check_groups
from .hierarchical_options import SVMOptions

USERS = 0  # cohort of all users, and of the label owner; the groups follow, then the agents


class Grouped(SVMOptions):
    """A run over users in groups."""

    def check_parties(self, parties: Sequence[Any]) -> None:
        """Refuse nodes that clash."""
        groups.check_parties(parties)

    def cohorts(self) -> list[list[int]] | None:
        """Return the sets of nodes that sum: all users, the groups, the agents."""
        parties, layers = list(self.described_parties()), self.architecture == "hierarchical"
        self.groups_ = found = groups.read_groups(parties, layers=layers)
        check_groups(self, len(found))
        vertical = self.partition == "vertical"
        first = (
            groups.check_vertical(parties, found, product=self.product)
            if vertical
            else groups.check_horizontal(parties)
        )
        groups.check_single(found, parties, allow_single=self.allow_single)
        small = [group for group in found if group.agent >= 0 and len(group.users) <= 2]
        if small and not vertical and not self.predicting:
            logger.warning(
                "%d groups have one or two users: agents or partners see gradients of single "
                "users; form larger groups",
                len(small),
            )
        self.outputs_, self.classes_ = first.outputs, first.classes
        self.label_bound_ = first.label_bound
        if self.loss != "squared" and not self.classes_:
            raise OptionError(
                f"model {self.kind} is for classes, the labels are numbers",
                remedy="use model ridge, or name the classes at all nodes with labels",
            )
        if self.class_weight and not self.classes_:
            raise OptionError("class_weight is for classes", remedy="leave it out for numbers")
        if vertical:
            self.row_plan_ = groups.match_rows(
                parties, found, drop=self.missing == "drop-row", held_out=bool(self.predicting)
            )
        owner = [first.partition] if vertical else []
        agents = [group.agent for group in found]
        sets = [sorted([*self.users_, *owner])]
        if layers:
            sets += [group.members for group in found]
            if self.product == "orthogonal":  # the owner seals its messages for the agents
                sets.append(sorted([*agents, *owner]))
            elif not vertical and len(agents) > 1:
                sets.append(sorted(agents))
        return sets

    def thresholds(self, cohorts: int) -> list[int | None]:
        """Return the thresholds; where groups may be left out, more than half of the agents."""
        found: list[int | None] = [None] * cohorts
        if self.lost_groups == "leave-out":
            found[-1] = self.least_agents
        return found

    def nodes_digest(self) -> str:
        """Return a digest of who is there with how many rows, to be the same after a resume."""
        digest = hashlib.sha256()
        for p in self.described_parties():
            digest.update(
                repr((p.partition, p.role, p.group, p.rows, p.test_rows, p.features)).encode()
            )
        return digest.hexdigest()

    # -- what the splits share

    @property
    def encoding(self) -> Encoding:
        """Of all sums."""
        return Encoding.fixed_point(self.bound)

    def term(self, name: str, length: int, cohort: int = USERS, **more: Any) -> Term:
        """Return a sum that needs its whole cohort."""
        common: dict[str, Any] = {"encoding": self.encoding, "cohort": cohort, **more}
        return Term(name=name, length=length, self_masks=False, **common)

    def question(self, requests: Mapping[int, Any], reply: Any, **more: Any) -> Ask:
        """Return the question of the step at hand."""
        return Ask(requests, reply=reply, number=self.step, **more)

    def is_due(self, done: int) -> bool:
        """Tell whether a checkpoint is due after so many iterations."""
        return self.checkpoint is not None and done - self.last_saved >= self.checkpoint_every

    def save(self, done: int, nodes: Iterable[int], arrays: Arrays, **meta: Any) -> Steps:
        """Have nodes keep their state under the step at hand; keep the run's if all did."""
        self.last_saved, asked = done, dict.fromkeys(nodes, wire.SaveRequest())
        answers = yield self.question(asked, wire.SaveReply, until="tried")
        if len(answers.replies) < len(asked):
            logger.warning("no checkpoint of iteration %d: not all nodes kept their state", done)
            return
        meta |= {"nodes": self.nodes_digest(), "done": done}
        yield Save(arrays, meta, kept=self.step)

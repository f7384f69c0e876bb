"""Exchanges that all splits and architectures of HierarchicalSVM share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.consensus import Coordinates, Floats, penalty_of
from fedkern_flwr.errors import CohortError, SumError
from fedkern_flwr.groups import Group
from fedkern_flwr.labels import counts_length, outcome_metrics
from fedkern_flwr.linear_model import model_columns
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.strategy import logger
from fedkern_flwr.wire import hierarchical as wire

if TYPE_CHECKING:
    from fedkern_flwr.strategy import Arrays

    from .hierarchical_svm import HierarchicalSVM


class Sealed(NamedTuple):
    """What was sealed for users in a step."""

    parts: dict[int, bytes]
    step: int


def cut_sealed(data: bytes, sizes: Mapping[int, int]) -> dict[int, bytes]:
    """Return what is meant for each user, from pieces of so many bytes in turn."""
    ends = np.cumsum(list(sizes.values())).tolist()
    pairs = zip(sizes, [0, *ends], ends, strict=False)
    return {user: data[start:end] for user, start, end in pairs}


def again(requests: Mapping[int, Any], attempt: int) -> dict[int, Any]:
    """Return requests with the number of the attempt."""
    return {node: dataclasses.replace(r, attempt=attempt) for node, r in requests.items()}


#: Cohorts of the sums: all users, then the groups, then the agents.
USERS = 0


class Steps:
    """What belongs to a run over rows: groups, coordinates, and exchanges with all users.

    Parameters
    ----------
    strategy : HierarchicalSVM
    grid : Grid
        Flower's grid.
    timeout : float
        Seconds to wait for the replies of one exchange.

    Attributes
    ----------
    groups : tuple of Group
    rows : int
        Rows to learn from, of all users.
    shape : (int, int)
        Of a model: outputs, coefficients with the bias.
    coordinates : Coordinates
    ridge : ndarray, shape (d + 1,)
        Penalty of each coefficient.
    raw : Coordinates or None
        By which columns are standardised before random features are made of them.
    encoding : Encoding
        Of all sums.
    """

    def __init__(self, strategy: HierarchicalSVM, grid: Grid, timeout: float) -> None:
        self.strategy, self.grid, self.timeout = strategy, grid, timeout
        self.groups = strategy.groups_
        self.node_of = {p.partition: node for node, p in strategy.parties_.items()}
        self.users = [u for group in self.groups for u in group.users]
        self.rows = sum(strategy.party_of(u).rows for u in self.users)
        self.columns = strategy.party_of(self.users[0]).features
        self.width = model_columns(self.columns, strategy.frequencies)
        self.shape = (strategy.outputs_, self.width + 1)
        self.encoding = Encoding.fixed_point(strategy.bound)
        self.coordinates = Coordinates.identity(self.width)
        self.ridge = self.coordinates.ridge()
        self.raw: Coordinates | None = None

    @property
    def gamma(self) -> float:
        """Width of the kernel, 0 without one."""
        return self.strategy.chosen_gamma(self.columns)

    # -- exchanges with all users

    def sum_users(self, name: str, length: int, requests: Any, reply: type[Any]) -> Floats:
        """Sum vectors of all users; repeat it with all of them if somebody did not answer.

        Raises
        ------
        CohortError
        """
        strategy = self.strategy
        assert strategy.sums is not None
        for attempt in range(strategy.attempts):
            running = strategy.sums.order(
                name, length, self.encoding, cohort=USERS, self_masks=False
            )
            asked = again(requests, attempt)
            strategy.ask(self.grid, asked, reply, self.timeout, [running])
            if strategy.whole(running):
                return strategy.total(running)
            strategy.close(running)
        raise strategy.gave_up(reply.phase)

    def measure_columns(self) -> None:
        """Fit the coordinates to what the model is linear in: one exchange, two with features."""
        strategy = self.strategy
        standard = strategy.scale == "standard"
        if strategy.frequencies and standard:
            self.raw = self._fit(self.columns, standardised=True, raw=True)
        if strategy.standardising:
            own = standard and not strategy.frequencies
            self.coordinates = self._fit(self.width, standardised=own, raw=False)
        else:  # the users must know of the run all the same
            self._fit(self.width, standardised=True, raw=False)
        self.ridge = self.coordinates.ridge()

    def _fit(self, columns: int, *, standardised: bool, raw: bool) -> Coordinates:
        strategy = self.strategy
        strategy.next_step()
        none = np.zeros(0)
        requests = {
            user: wire.StatisticsRequest(
                session=strategy.session,
                round=strategy.step,
                loss=strategy.loss,
                c=float(strategy.C),
                features=strategy.frequencies,
                gamma=self.gamma,
                feature_seed=strategy.run_seed,
                rows=self.rows,
                raw=raw,
                partners=np.array(strategy.partners_of(user), np.int32),
                raw_mean=none if self.raw is None else self.raw.mean,
                raw_deviation=none if self.raw is None else self.raw.deviation,
            )
            for user in self.users
        }
        name = wire.STATISTICS_SUM + ("#raw" if raw else "")
        total = self.sum_users(name, 2 * columns, requests, wire.StatisticsReply)
        return Coordinates.fit(total[:columns], total[columns:], standardised=standardised)

    def coordinate_fields(self, first: bool) -> dict[str, NDArray[Any]]:
        """Return the fields of a request that carry the coordinates, with the first iteration."""
        if first:
            own = self.coordinates
            return {"mean": own.mean, "deviation": own.deviation, "ridge": self.ridge}
        return {name: np.zeros(0) for name in ("mean", "deviation", "ridge")}

    def judge(self, model: Floats, lost: set[int]) -> dict[str, Any]:
        """Return the objective of a model and its outcomes on held-out rows: one exchange.

        ``lost`` are users that are gone: then the sum may miss others too, which takes another
        exchange.
        """
        strategy = self.strategy
        assert strategy.sums is not None
        classes = strategy.classes_
        length = 1 + counts_length(strategy.outputs_, classes)
        there = [user for user in self.users if user not in lost]
        strategy.next_step()
        request = wire.EvaluateRequest(
            session=strategy.session, round=strategy.step, self_masks=bool(lost), model=model
        )
        requests = dict.fromkeys(there, request)
        if not lost:
            total = self.sum_users(wire.EVALUATION_SUM, length, requests, wire.EvaluateReply)
        else:
            found = self._sum_left(requests, length)
            if found is None:
                logger.warning("the model is not judged: not all users that are left answered")
                return {}
            total = found
        counts = total[1:]
        metrics: dict[str, Any] = {
            "objective": penalty_of(model, self.ridge) + strategy.C * self.rows * float(total[0])
        }
        if (counts if classes else counts[:1]).sum() > 0.5:
            metrics |= outcome_metrics(
                np.rint(counts) if classes else counts, classes, strategy.label_bound_
            )
        else:
            strategy.note_untold()
        return metrics

    def _sum_left(self, requests: Mapping[int, Any], length: int) -> Floats | None:
        """Sum what is judged over the users that are left, all of them; nothing if some are silent.

        It is opened once only: else the difference of two would show single users.
        """
        strategy = self.strategy
        assert strategy.sums is not None
        for attempt in range(strategy.attempts):
            running = strategy.sums.order(wire.EVALUATION_SUM, length, self.encoding, cohort=USERS)
            asked = again(requests, attempt)
            strategy.ask(self.grid, asked, wire.EvaluateReply, self.timeout, [running])
            if set(requests) <= set(running.uploaded):
                break
            strategy.close(running)
        else:
            return None
        try:
            strategy.unmask(self.grid, [running], number=strategy.step, timeout=self.timeout)
        except SumError:
            return None
        return strategy.sums.total(running)

    def save(self, number: int, nodes: Iterable[int]) -> bool:
        """Have all nodes keep their state as ``number``, the step at hand; tell whether all did."""
        strategy, wanted = self.strategy, list(nodes)
        request = wire.SaveRequest(session=strategy.session, round=number)
        found = strategy.ask(
            self.grid, dict.fromkeys(wanted, request), wire.SaveReply, self.timeout
        )
        return len(found) == len(wanted)

    def write(self, number: int, arrays: Arrays, meta: dict[str, Any]) -> None:
        """Write a checkpoint of an iteration."""
        strategy, own = self.strategy, self.coordinates
        assert strategy.sums is not None
        strategy.write_checkpoint(
            number,
            {**arrays, "mean": own.mean, "deviation": own.deviation, **self.raw_arrays()},
            {
                **meta,
                "standardised": own.standardised,
                "nodes": strategy.nodes_digest(),
                "sums": strategy.sums.progress(),
            },
        )

    def read(self, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        """Take the coordinates from a checkpoint."""
        self.coordinates = Coordinates(
            arrays["mean"], arrays["deviation"], bool(meta["standardised"])
        )
        self.ridge = self.coordinates.ridge()
        if "raw_mean" in arrays:
            self.raw = Coordinates(arrays["raw_mean"], arrays["raw_deviation"], True)

    def raw_arrays(self) -> Arrays:
        """Return by which columns are standardised before random features, if they are."""
        if self.raw is None:
            return {}
        return {"raw_mean": self.raw.mean, "raw_deviation": self.raw.deviation}

    def lost_group(self, group: Group, why: str) -> CohortError:
        """Return the error with which a run ends that cannot go on without a group."""
        strategy = self.strategy
        again = "resume from the checkpoint" if strategy.resumable else "start again"
        remedy = f"mend it and {again}"
        if strategy.losing == "stop" and len(self.groups) > 2:
            remedy += ", or go on without the group with --lost-groups leave-out"
        return CohortError(
            f"group {group.number} cannot go on: {why}",
            remedy=remedy,
            phase="svm-local",
        )

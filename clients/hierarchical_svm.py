"""The client of HierarchicalSVM: a user with rows, the agent of a group, or the label owner.

Requests are checked here, and all data are sent from here, in secure sums or sealed for one party.
Computations are in :mod:`.hierarchical_parties`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.checkpoint import pack_arrays, unpack_arrays, write_atomically
from fedkern_flwr.errors import CheckpointError, OptionError, StateError, TableError
from fedkern_flwr.groups import linear_model
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import FOLDS, Floats, deal
from fedkern_flwr.groups.linear_model import model_columns, outputs, to_digits
from fedkern_flwr.groups.messages import AGENT, OWNER, ROLES, USER
from fedkern_flwr.guard import check_selection, check_size, refusal
from fedkern_flwr.judging.figures import OUTCOMES
from fedkern_flwr.node.client import Handler, answers
from fedkern_flwr.node.state import SessionState
from fedkern_flwr.options import check_choice
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.crypto import seal_message, unseal_message
from fedkern_flwr.secure_sum.membership import asked
from fedkern_flwr.wire import DescribeRequest, PhaseMessage
from fedkern_flwr.wire.sums import Order

from . import hierarchical_parties as parties
from .hierarchical_parties import UserRows
from .table_client import TableClient

Role = Literal["user", "agent", "owner"]
_NUMBERED = (wire.IterationRequest, wire.StepRequest)
_POSITIVE = ("c", "rho", "sigma", "next_sigma", "relaxation")
#: Settings that are fixed in a run.
_PINNED = ("loss", "c", "features", "gamma", "feature_seed", "rows", "folds")
_PINNED_PRIVATE = ("features", "gamma", "feature_seed", "iterations")
_PINNED_PLAN = ("agent", "owner", "rows", "all_rows")
_SAME_RELEASE = "run the same release on both sides"
_KEPT = ".model"
#: Names of the agents' total, one per kind of masks.
_TOTALS = (wire.AGENTS_SUM, wire.LEFT_SUM)


class SVMClient(TableClient):
    """A node of HierarchicalSVM.

    In a horizontal split users hold rows with labels, and agents no data. In a vertical one the
    users of a group hold the same columns of different rows, and one node, the owner, the labels.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context; ``role`` and ``group`` of its ``node_config`` are defaults of these
        options.
    x : array or data frame, shape (n, d), optional
        Features of a user.
    y : array, shape (n,) or (n, k), optional
        Labels of a user in a horizontal split, of the owner in a vertical one.
    role : {"user", "agent", "owner"}, optional
        Default "user".
    group : int, optional
        Number of the group, from 0.
    ids : sequence of length n, optional
        Record ids, to join rows in a vertical split.
    x_test, y_test, ids_test : arrays, optional
        Held-out rows.
    columns : sequence of str, optional
        Names of the features.
    classes : sequence of float or str, optional
        All classes, in the same order everywhere; y may have their names. Default: regression.
    label_bound : float (default: 1.0)
        Bound of abs(y) in a regression, the same at all nodes with labels.
    alignment_key : bytes or AlignmentTags, optional
        Joins ids: a secret of users and owner, not of the server, or the result of an align run.
    bound : float, optional
        Public bound on summed numbers, equal to that of the run; default: the strategy's.
    predictions : path, optional
        CSV file for predictions of held-out rows: id, outputs, predicted class.
    **common
        Options of :class:`~fedkern_flwr.node.client.Client`; ``allow_single`` lets the agent see
        this user's model if it is the only one of its group.

    Raises
    ------
    TableError
        Wrong shapes, NaN, duplicate ids, unknown classes.
    OptionError
        Data at an agent, none at a user, an unknown role.

    Attributes
    ----------
    repeated : bool
        Whether the requested iteration has been done already.
    """

    without_key = "give all users and the owner the same alignment_key, or pass no ids"
    without_secret: ClassVar[str] = "resume or start the run again"
    adds_noise = True
    repeated = False
    same_parties = True
    rounds_of: ClassVar[Mapping[str, str]] = {wire.LEFT_SUM: "round"}
    _user: UserRows | None = None
    _multiplied = ""

    def __init__(
        self,
        context: Context,
        x: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        role: Role | None = None,
        group: int | None = None,
        bound: float | None = None,
        **table: Any,
    ) -> None:
        self.role = role or str(context.node_config.get("role", USER))
        super().__init__(context, x, y, check=lambda: self._check_role(x, y), **table)
        number = group if group is not None else context.node_config.get("group", 0)
        if type(number) is not int or number < 0:
            raise OptionError(
                f"group is {number}", remedy="use a whole number from 0", code="FK-OPTION-RANGE"
            )
        self.group, self.bound = number, bound
        self.labels_of_row, self.rows_chosen = int(not self.shows_rows), self.shows_rows

    def _check_role(self, x: object, y: object) -> None:
        check_choice("role", self.role, ROLES)
        if (x is not None) != (self.role == USER) or (self.role == AGENT and y is not None):
            raise OptionError(
                f"a node with role {self.role} has "
                + ("no features" if x is None else "features")
                + (" and labels" if y is not None else ""),
                remedy="users hold features, the owner labels, agents no data",
                party=self.name,
                code="FK-ROLE-DATA",
            )

    # -- interface of the base class

    def handlers(self) -> dict[str, tuple[type[PhaseMessage], Handler]]:
        found: Any = super().handlers()
        own = ("", self.role)
        return {phase: one for phase, one in found.items() if one[0].role in own}

    def choose_partners(self, request: Any) -> Collection[int]:
        if self.role != USER:
            return range(self.partitions)
        if isinstance(request, wire.StatisticsRequest):
            return list(request.partners.tolist())
        if isinstance(request, wire.ColumnsRequest):
            return [request.agent, request.owner]
        known = isinstance(request, wire.StepWithAgentRequest | wire.ContributeRequest)
        return [request.agent] if known else ()

    def is_counted(self, order: Order) -> bool:
        """Count a group's sums as well, as an agent may pass them on."""
        return super().is_counted(order) or order.name.partition("#")[0] == wire.GROUP_SUM

    def weight(self, order: Order, rows: int) -> float:
        """Return the weight of a number.

        Objective and bound, which follow from a visit and are sent by the label owner, count as
        well. Numbers about the rows of some folds count as if there were no others.
        """
        told = 2 if isinstance(self._request, wire.VisitRequest) else 0
        return (super().weight(order, rows) + told / order.length) * self.user.spread

    @property
    def joins_rows(self) -> bool:
        """Whether columns are split: users then have no labels."""
        return self.role == OWNER or not self.table.y.size

    @property
    def shows_rows(self) -> bool:
        """Whether the label owner opens inner products of its rows: in vertical splits."""
        return self.role == USER and not self.table.y.size

    def describe(self, request: DescribeRequest) -> wire.SVMDescribeReply:
        group = -1 if self.role == OWNER else self.group
        own = {"group": group, "named": self.table.identified}
        if self.role == USER:
            policy = self.policy
            own |= {"fold_rows": policy.min_own_rows, "fold_sum_rows": policy.min_sum_rows}
        reply = self.tell(request, wire.SVMDescribeReply, **own)
        state = self.open_session(request.session)
        state.round = int(self.kept.settings.get("done", 0))
        state.store(self.context)
        if self.role == OWNER or not self.table.y.size:
            return reply
        nobody = np.zeros((0, 2), np.uint64)  # in a horizontal split no rows are joined
        return replace(reply, ids=nobody, spelled=nobody)

    def keep_order(self, ids: NDArray[np.uint64], order: NDArray[np.int32]) -> None:
        pass

    def open_round(self, session: str, number: int, checkpoint_every: int) -> SessionState:
        """Return the node's state; an iteration may be repeated, with the same result.

        Raises
        ------
        StateError
            The node is not at the iteration before.
        """
        state, request = self.open_session(session), self._request
        ahead = isinstance(request, wire.IterationRequest) and number > state.round + 1
        if isinstance(request, _NUMBERED) and (number < state.round or ahead):
            raise StateError(
                f"iteration {number} does not follow iteration {state.round}",
                remedy="resume the run from its checkpoint",
                code="FK-MESSAGE-ORDER",
            )
        self.repeated = number == state.round
        return state

    def answer(self, request: Any, method: Any) -> Any:
        noisy = isinstance(request, wire.GradientRequest)
        if noisy != (self.budget is not None) and not isinstance(request, wire.PredictRequest):
            why = "is asked for without a budget" if noisy else "adds no noise to what is asked for"
            raise refusal(f"privacy: it {why}", code="FK-BUDGET-SIDES")
        for name in _POSITIVE:
            weights = np.asarray(getattr(request, name, 1.0))
            if not ((weights > 0.0) & (weights < np.inf)).all():
                raise refusal(f"{name} that is no positive number", code="FK-MESSAGE-FIELD")
        if isinstance(request, wire.PlanRequest) and (
            not self.shows_rows or request.agent == request.owner
        ):  # one party in both roles could weigh one row by 1, all others by 0, and read it
            raise refusal(
                "sums of columns from a user with labels, or for one party in two roles",
                code="FK-ASKED-MORE",
            )
        reply = method(request)
        if isinstance(request, _NUMBERED):
            self.kept.settings["done"] = request.round
        return reply

    def close_round(
        self, state: SessionState, number: int, kept: Any, checkpoint_every: int
    ) -> None:
        """Save the state; with a budget on disk, as the node needs a folder to continue."""
        state.kept = kept
        if isinstance(self._request, _NUMBERED):
            state.round = number
        state.store(self.context)
        if number == 1 and isinstance(self._request, wire.GradientRequest):
            self._save(state, number)

    def forget(self, state: SessionState) -> bytes:
        """Drop all at the end of a run; checkpoints stay on disk."""
        return b""

    def question(self) -> str:
        """Name the request to the rows, so that a repeated run is recognised.

        Sealed data and the order of rows differ between runs of a vertical split.
        """
        if isinstance(self._request, wire.ColumnsRequest):
            return f"columns of {self._request.rows} rows"
        if isinstance(self._request, wire.VisitRequest):
            return self._multiplied
        return super().question()

    # -- sums, pins and seals

    @property
    def user(self) -> UserRows:
        if self._user is None or self._user.kept is not self.kept:
            run = self.session, self.partition
            self._user = UserRows(self.table, self.kept, run, self._deal)
        return self._user

    def _deal(self) -> NDArray[np.intp]:
        """Return the fold of each row, that of the node's freeze, the same in all runs."""
        dealt, rows = self.ledger.parts(self.session), len(self.table.y)
        if dealt is None:
            return deal(rows, self.table.digest())
        return (dealt[:rows] - 1).astype(np.intp) % FOLDS

    def facts(self, **known: Any) -> wire.SVMFacts:
        table, features = self.table, int(self.kept.settings.get("features", 0))
        own: dict[str, Any] = {"columns": table.features, "features": features, **known}
        return wire.SVMFacts(
            outputs=table.y.shape[1],
            classes=len(table.classes),
            label_bound=table.label_bound,
            **own,
        )

    def check(self, request: wire.SVMRequest, **known: Any) -> None:
        """Refuse sums that the request does not declare; while C is tried, also folds of few rows.

        Raises
        ------
        SumError, RefusedError
        """
        for order in self.secure_sums.orders.values():
            self.check_declared("bound", self.bound, wire.DEFAULT_BOUND, order.bound)
            known["bound"] = order.bound
        self.secure_sums.check_all(request.sum_specs(self.facts(**known)))
        if not self.user.trying:
            return
        policy, own = self.policy, len(self.table.y) // FOLDS
        if own < policy.min_own_rows:
            raise refusal(
                f"min_own_rows = {policy.min_own_rows}: a fold has {own}",
                code="FK-POLICY-OWN-ROWS",
            )
        for name in self.secure_sums.orders:
            if sum(rows // FOLDS for rows in self.secure_sums.rows(name)) < policy.min_sum_rows:
                raise refusal(
                    f"min_sum_rows = {policy.min_sum_rows}: a fold has fewer",
                    code="FK-POLICY-SUM-ROWS",
                )

    def members(self, name: str) -> list[int]:
        sums = self.secure_sums
        return list(sums.party.state.cohorts[sums.order(name).cohort].members)

    def received(self, name: str) -> Floats:
        """Return the total of a sum for this node; ProtocolError if it did not come."""
        delivered = self.secure_sums.delivered.items()
        found = next((total for n, total in delivered if n.partition("#")[0] == name), None)
        if found is None:
            problem = f"the sum {name!r} did not come with the request"
            raise self.wrong(problem, _SAME_RELEASE, code="FK-ORDER-PLAIN")
        return found

    def pin(self, **settings: Any) -> None:
        """Fix settings of the run.

        Raises
        ------
        ProtocolError
            They have changed: the same values would be summed in another way.
        """
        if not all(self.kept.pin(name, value) for name, value in settings.items()):
            raise self.wrong(
                "the settings of the run have changed",
                f"{_SAME_RELEASE}, and resume with the same options",
                code="FK-SETTINGS-CHANGED",
            )

    def seal(self, other: int, numbers: NDArray[Any], *place: str | int) -> bytes:
        secret, plain = self.pair_secret(other), np.ascontiguousarray(numbers, "<f8").tobytes()
        return seal_message(secret, plain, self.session, *place, self.partition, other)

    def seal_all(self, users: NDArray[Any], numbers: NDArray[Any], *place: str | int) -> bytes:
        return b"".join(self.seal(user, numbers, *place) for user in users.tolist())

    def unseal(
        self, other: int, sealed: bytes, shape: tuple[int, ...], *place: str | int
    ) -> Floats:
        """Open numbers that another party sealed.

        Raises
        ------
        ProtocolError
            They were changed on the way, or have another shape.
        """
        secret = self.pair_secret(other)
        plain = unseal_message(secret, sealed, self.session, *place, other, self.partition)
        try:
            return np.frombuffer(plain, "<f8").reshape(shape)
        except ValueError:
            raise self.wrong(
                f"what partition {other} sealed for it has another size",
                "bring back the columns that the run, or its model, began with",
                code="FK-MESSAGE-SHAPE",
            ) from None

    @answers(wire.SaveRequest)
    def save_state(self, request: wire.SaveRequest) -> wire.SaveReply:
        self._save(self.open_session(request.session), request.round)
        return wire.SaveReply()

    @answers(wire.PadRequest)
    def contribute_pads(self, request: wire.PadRequest) -> wire.PadReply:
        self.check(request, agent=self.partition, owner=self.partition)
        for name in list(self.secure_sums.orders):
            self.secure_sums.contribute_nothing(name)
        return wire.PadReply()

    # -- rows at users

    @answers(wire.StatisticsRequest)
    def contribute_statistics(self, request: wire.StatisticsRequest) -> wire.StatisticsReply:
        name, table = self._told(request), self.table
        check_size(table.features, 2 * request.features + 1)
        self.check(request, told=name)
        if request.rows != sum(self.secure_sums.rows(name)):
            raise refusal("the rows of a sum", code="FK-ORDER-ROWS")
        parties.check_trials(request.tried, request.folds)
        self.pin(tried=request.tried.tolist(), **{n: getattr(request, n) for n in _PINNED})
        if request.raw_mean.size:
            names = ("raw_mean", "raw_deviation")
            self.kept.arrays |= {name: getattr(request, name) for name in names}
        rows = table.x if request.raw else self.user.features_of(table.x)
        positive = (table.y > 0.0).sum(0) if request.counted else np.zeros(0)
        share = np.concatenate([rows.sum(0), (rows**2).sum(0)]) / request.rows
        if request.raw or not request.features:
            share = to_digits(share)
        self.secure_sums.contribute(name, np.concatenate([share, positive / request.rows]))
        return wire.StatisticsReply()

    @answers(wire.LocalRequest)
    def solve_local_problem(self, request: wire.LocalRequest) -> wire.LocalReply:
        self.check(request, trials=self._trials(request))
        self.pin(agent=-1)
        if not self.repeated:
            user = self.user
            user.take_coordinates(request)
            center = request.center if request.center.size else np.zeros(user.shape)
            if "model" not in self.kept.arrays and center.any():
                raise refusal("a first center that is not zero", code="FK-MESSAGE-FIELD")
            user.step(request, center)
        self.secure_sums.contribute(wire.FLAT_SUM, self.kept.arrays["vector"])
        return wire.LocalReply()

    @answers(wire.StepWithAgentRequest)
    def solve_with_agent(self, request: wire.StepWithAgentRequest) -> wire.StepWithAgentReply:
        """Compute the group's last center, as its agent does meanwhile, and continue."""
        own, user = self.kept.settings, self.user
        name = str(own.get("told", "")) if self.repeated else self._told(request)
        self.check(request, told=name, trials=self._trials(request))
        self.pin(agent=request.agent)
        if not self.repeated:
            before, users = own.get("chosen", -1), len(self.members(name)) - 1
            user.take_coordinates(request)
            total = self._group_total(request, name)
            just = before != request.chosen
            user.step(request, user.make_center(request, total, users, just=just))
        self.secure_sums.contribute(name, self.kept.arrays["vector"])
        return wire.StepWithAgentReply()

    def _told(self, request: wire.StatisticsRequest | wire.StepWithAgentRequest) -> str:
        """Name a sum after all requests to this user; a repeated one counts once."""
        own, name = self.kept.settings, request.sum_name("")
        if own.get("asked") != name:
            own |= {"asked": name, "before": own.get("told", "")}
        own["told"] = request.sum_name(own["before"])
        return str(own["told"])

    def _trials(self, request: wire.SolveRequest) -> int:
        return self.user.trials if self.user.trying and request.chosen < 0 else 1

    def _group_total(self, request: wire.StepWithAgentRequest, name: str) -> Floats:
        """Open the group's last sum with the agent's pad; at first there is none.

        The pad covers the models only. It is sealed with the number of that sum, so that two sums
        cannot be mixed.
        """
        padded = request.padded
        if request.round <= 1:
            return np.zeros(0)
        place = ("pad", request.round - 1, request.index)
        pad = self.unseal(request.agent, request.sealed, padded.shape, *place)
        if padded.dtype != np.uint64:
            raise self.wrong("the sum of its group has another length", code="FK-MESSAGE-SHAPE")
        encoding = Encoding.of(self.secure_sums.order(name))
        return encoding.decode(padded - pad.view(np.uint64), len(self.members(name)))

    @answers(wire.EvaluateRequest)
    def judge(self, request: wire.EvaluateRequest) -> wire.EvaluateReply:
        table, name = self.table, wire.EVALUATION_SUM
        self.check(request)
        held_out = self.user.rows_of(table.x_test) @ request.model.T
        tests, trained = np.arange(table.tests), "model" in self.kept.arrays
        counts = self.outcomes(tests, held_out, request.bins, total=name, trained=trained)
        loss = self.user.losses(request.model)
        self.secure_sums.contribute(name, np.concatenate([[loss.sum()], counts]))
        self.write_predictions(tests, held_out)
        return wire.EvaluateReply()

    # -- the agent of a group of users with rows

    @answers(wire.CombineRequest)
    def combine(self, request: wire.CombineRequest) -> wire.CombineReply:
        """Contribute the term, and the pad of the users' current sum.

        Each user gets the part of the pad for the models, not for the statistics. With the padded
        sum it computes the same center as this agent.
        """
        sums, found = self.secure_sums, self.kept.arrays
        if request.plain and len(sums.party.state.cohorts) > 1:
            raise refusal(
                "its term in plain, where there are other agents",
                code="FK-ORDER-PLAIN",
            )
        self.pin(leave_out=request.leave_out)
        if not self.repeated:
            total = self.received(wire.GROUP_SUM) if request.advance else np.zeros(0)
            parties.make_term(self.kept, request, total)
        if wire.LEFT_SUM in sums.orders and not request.leave_out:
            raise refusal("the masks of a sum", code="FK-ORDER-TERMS")
        pads = [name for name in sums.orders if name.partition("#")[0] == wire.GROUP_SUM]
        self.check(request, told=next(iter(pads), ""), agent=self.partition)
        sealed = b"".join(self._seal_pad(request, name) for name in pads)
        for name in [name for name in _TOTALS if name in sums.orders]:
            self._check_total(name)
            sums.contribute(name, found["term"])
        return wire.CombineReply(sealed=sealed, term=(found["term"],) if request.plain else ())

    def _seal_pad(self, request: wire.CombineRequest, name: str) -> bytes:
        """Contribute the pad of a group's sum; seal its part for the models to the users."""
        sums, order = self.secure_sums, self.secure_sums.order(name)
        if {*request.users.tolist(), self.partition} != set(self.members(name)):
            raise refusal("the pad of its group for others than its users", code="FK-ORDER-PAD")
        length = order.length - wire.USER_STATISTICS * request.outputs
        if request.outputs * request.width != length:
            raise refusal("the pad of more than models, or of fewer", code="FK-ORDER-PAD")
        sums.contribute_nothing(name)
        pad = sums.party.pad(order, length).view(np.float64)
        place = ("pad", int(self.kept.settings.get("iteration", 0)) + 1, order.index)
        return self.seal_all(request.users, pad, *place)

    def _check_total(self, name: str) -> None:
        """Refuse a total with other agents than before, or a term in totals of both kinds.

        The total has two names, one per kind of masks, and the rule that a sum is repeated with the
        same parties works by name. Without this check the server could get two totals that differ
        by one group's term.
        """
        self.pin(agents=self.members(name))
        own, other = self.kept.settings, next(one for one in _TOTALS if one != name)
        iteration = int(own.get("iteration", 0))
        if own.get(f"last of {other}") == iteration:
            raise refusal(
                "a term in a total of all agents, and in one of those left",
                code="FK-ORDER-TWICE",
            )
        own[f"last of {name}"] = iteration

    # -- a user in a run with a budget of privacy: gradients and counts, with noise

    @answers(wire.GradientRequest)
    def add_gradient(self, request: wire.GradientRequest) -> wire.GradientReply:
        self._take_up(request, linear_model.GRADIENT_SUM)
        self.kept.settings["helped"] = True  # trained: the model may be evaluated
        rows = linear_model.shortened(self.user.learned[0])
        found = linear_model.gradient(request.loss, rows, self.table.y, request.model)  # type: ignore[arg-type]
        release = asked(str(request.round), request.model)
        self.secure_sums.contribute(linear_model.GRADIENT_SUM, found.ravel(), release=release)
        return wire.GradientReply()

    @answers(wire.CountRequest)
    def add_counts(self, request: wire.CountRequest) -> wire.CountReply:
        self._take_up(request, OUTCOMES)
        table, trained = self.table, bool(self.kept.settings.get("helped"))
        tests, held_out = np.arange(table.tests), self.user.rows_of(table.x_test) @ request.model.T
        found = self.outcomes(tests, held_out, 0, total=OUTCOMES, trained=trained)
        self.secure_sums.contribute(OUTCOMES, found, release=asked(request.model))
        self.write_predictions(tests, held_out)
        return wire.CountReply()

    def _take_up(self, request: wire.GradientRequest, name: str) -> None:
        """Take public settings and coordinates; refuse what a row could move farther.

        Noise, bound and length of the sum must be those that this user derives.

        Raises
        ------
        RefusedError, ProtocolError
        """
        table = self.table
        if request.loss not in linear_model.BOUNDED or not len(table.classes):
            raise refusal(
                "privacy: the derivatives of the loss have no bound",
                code="FK-BUDGET-LOSS",
            )
        if not request.iterations > 0:
            raise refusal("privacy: a run without iterations", code="FK-MESSAGE-FIELD")
        self.pin(slopes=request.loss, **{n: getattr(request, n) for n in _PINNED_PRIVATE})
        width = model_columns(table.features, request.features) + 1
        shape, model = (table.y.shape[1], width), request.model
        if model.shape != shape or not np.isfinite(model).all():
            raise self.wrong(
                "the model of the run has another shape than its columns and classes",
                _SAME_RELEASE,
                code="FK-MESSAGE-SHAPE",
            )
        own = linear_model.public_coordinates(table.features, request.features)
        self.kept.arrays |= {"mean": own.mean, "deviation": own.deviation}
        counts = self.secure_sums.party.state.counts
        signed = [counts[member] for member in self.members(name)]
        rows, tests = [one.rows for one in signed], [one.held_out for one in signed]
        facts = self.facts(budget=self.budget, rows=rows, tests=tests)
        self.secure_sums.check_all(request.sum_specs(facts))

    # -- a user with columns

    @answers(wire.ColumnsRequest)
    def contribute_columns(self, request: wire.ColumnsRequest) -> wire.ColumnsReply:
        if request.agent < 0:
            raise refusal("columns for no agent", code="FK-MESSAGE-FIELD")
        self.check(request)
        self._check_plan(request)
        plan = hashlib.sha256(request.take.tobytes() + b"/" + request.place.tobytes()).hexdigest()
        self.pin(plan=plan, **{name: getattr(request, name) for name in _PINNED_PLAN})
        self.kept.arrays |= {"take": request.take, "place": request.place}
        held = np.sort(self._held(self._learned))
        self.note_rows(wire.GROUP_SUM, held)
        x = self.table.features_of(held)
        share = to_digits(np.concatenate([x.sum(0), (x**2).sum(0)]) / request.rows)
        self.secure_sums.contribute(wire.GROUP_SUM, share)
        return wire.ColumnsReply()

    def _check_plan(self, request: wire.ColumnsRequest) -> None:
        """Refuse a plan with invalid or few rows in its sums."""
        announced = range(self.table.rows + self.table.tests)
        check_selection(request.take, announced, party=self.name)
        check_selection(request.place, range(request.all_rows), party=self.name)
        learned = request.take[request.place < request.rows]
        least = self.policy.min_own_rows
        check_selection(learned, announced, least=least, party=self.name)

    @answers(wire.VisitRequest)
    def multiply(self, request: wire.VisitRequest) -> wire.VisitReply:
        """Contribute X^T m to the group's weights, and outputs of the last visit's weights.

        If others failed to answer, only their sum is requested again.
        """
        own, found, width = self.kept.settings, self.kept.arrays, request.width
        agent, owner, orders = int(own["agent"]), int(own["owner"]), self.secure_sums.orders
        rows = int(own["all_rows"] if request.judge else own["rows"])
        check_size(rows, width)
        plan = {"plan_rows": own["rows"], "all_rows": own["all_rows"]}
        self.check(request, agent=agent, owner=owner, **plan)
        if request.coordinates:
            place = ("columns", request.weights_round)
            mean, deviation = self.unseal(agent, request.coordinates, (2, -1), *place)
            found |= {"mean": mean, "deviation": deviation}
        announced = self.table.announced(self.session, self.alignment_key)[found["take"]]
        x, learned = (announced - found["mean"]) / found["deviation"], self._learned
        if request.message and wire.GROUP_SUM in orders:
            place, held = ("message", request.message_round), self._held(learned)
            message = self.unseal(owner, request.message, (len(held), width), *place)
            order = np.argsort(held)  # table order: the same bits in each run
            message = message[order]
            to_agent = x[learned][order].T @ message
            self._multiplied = asked("visit", message, found["mean"], found["deviation"])
            self.note_rows(wire.GROUP_SUM, held)
            self.secure_sums.contribute(wire.GROUP_SUM, to_agent.ravel() / own["rows"])
        name = wire.JUDGED_SUM if request.judge else wire.OUTPUT_SUM
        if request.weights and name in orders:
            counted = slice(None) if request.judge else learned
            place = ("weights", request.weights_round)
            weights = self.unseal(agent, request.weights, (self.table.features, width), *place)
            values = np.zeros((rows, width))
            values[found["place"][counted]] = x[counted] @ weights
            self.note_rows(name, self._held(counted), each=True)
            self.secure_sums.contribute(name, values.ravel())
        return wire.VisitReply()

    @property
    def _learned(self) -> NDArray[np.bool_]:
        return np.asarray(self.kept.arrays["place"] < self.kept.settings["rows"])

    def _held(self, which: slice | NDArray[np.bool_]) -> NDArray[np.intp]:
        order = self.table.order(self.session, self.alignment_key)
        return np.asarray(order[self.kept.arrays["take"][which]])

    # -- the agent of a group with columns

    @answers(wire.BlockRequest)
    def open_block(self, request: wire.BlockRequest) -> wire.BlockReply:
        found = self.kept.arrays
        if request.kind != "again" and not self.repeated:
            parties.open_block(self.kept, request, self.received(wire.GROUP_SUM))
        if request.kind == "model":
            self._keep_part(coordinates=found["coordinates"], weights=found["opened"])
        place = "columns" if request.kind == "columns" else "weights", request.round
        return wire.BlockReply(sealed=self.seal_all(request.users, found["opened"], *place))

    # -- the label owner

    @answers(wire.OwnerRequest)
    def lead(self, request: wire.OwnerRequest) -> wire.OwnerReply:
        own, found = self.kept.settings, self.kept.arrays
        if request.kind == "start":
            for user in request.users.tolist():
                self.pair_secret(user)  # fail now, before the plan is fixed
            self._pin_plan(request)
            names = ("take", "users", "sizes", "place")
            found |= {name: getattr(request, name) for name in names}
            own |= {"loss": request.loss, "c": request.c, "rows": request.rows}
        if request.kind == "judge":
            return self._judge(request.bins)
        if not self.repeated and request.kind != "again":
            step = request.kind in ("step", "last")
            last = self._outputs(wire.OUTPUT_SUM, int(own["rows"])) if step else None
            try:
                held = self._held(slice(own["rows"]))
                parties.lead(self.kept, request, self.table.y, held, last)
            except OptionError as error:  # the error depends on labels
                raise self.unfit(error) from None
        return wire.OwnerReply(
            model=bool(own["model"]),
            objective=float(own["objective"]),
            bound=float(own["bound"]),
            sealed=self._seal_message(request.round),
            counts=np.zeros(0),
        )

    def _pin_plan(self, request: wire.OwnerRequest) -> None:
        """Refuse a changed plan: the count of one row is its label."""
        rows, tests = self.table.rows, self.table.tests
        learned, held_out = request.take[: request.rows], request.take[request.rows :]
        if len(learned) != request.rows:
            raise refusal("a plan of fewer rows than it says", code="FK-MESSAGE-SHAPE")
        least = self.policy.min_own_rows
        check_selection(learned, range(rows), least=least, party=self.name)
        check_selection(held_out, range(rows, rows + tests), party=self.name)
        text = repr((request.rows, request.loss, request.c)).encode() + request.take.tobytes()
        self.pin(plan=hashlib.sha256(text).hexdigest())

    def _judge(self, bins: int) -> wire.OwnerReply:
        own, found, table = self.kept.settings, self.kept.arrays, self.table
        rows, bias = int(own["rows"]), found["bias"]
        last = self._outputs(wire.JUDGED_SUM, len(found["take"])) + bias
        targets = table.y[self._held(slice(rows))]
        tests = self._held(slice(rows, None)) - table.rows
        counts = np.zeros(0)
        if table.labelled and len(tests):
            trained = bool(own.get("model"))
            counts = self.outcomes(tests, last[rows:], bins, alone=True, trained=trained)
            counts = counts if counts.any() else counts[:0]
        self._keep_part(bias=bias)
        self.write_predictions(tests, last[rows:])
        return wire.OwnerReply(
            model=True,
            objective=parties.final_objective(self.kept, last[:rows], targets),
            bound=float(own["bound"]),
            sealed=np.zeros(0, np.uint8),
            counts=counts,
        )

    def _outputs(self, name: str, rows: int) -> Floats:
        total = self.received(name)
        if total.size % rows:
            raise self.wrong("the outputs have another number of rows", code="FK-MESSAGE-SHAPE")
        return total.reshape(rows, -1)

    def _seal_message(self, number: int) -> NDArray[np.uint8]:
        found = self.kept.arrays
        places = np.split(found["place"], np.cumsum(found["sizes"])[:-1])
        sealed = [
            self.seal(user, found["message"][place], "message", number)
            for user, place in zip(found["users"].tolist(), places, strict=True)
        ]
        return np.frombuffer(b"".join(sealed), np.uint8)

    # -- predictions with a saved model; in a vertical split nodes keep its parts

    def _keep_part(self, **arrays: NDArray[Any]) -> None:
        path = self.state_path(self.session, _KEPT)
        if path is not None:
            write_atomically(path, pack_arrays(arrays, {"role": self.role}), private=True)

    def _read_part(self, session: str, *names: str) -> list[Floats]:
        """Return arrays of this node's saved part of a model; CheckpointError if missing."""
        path, code = self.state_path(session, _KEPT), "FK-KEPT-NONE"
        problem = f"this {self.role} has no part of the model"
        if path is not None and path.is_file():
            try:
                arrays, _ = unpack_arrays(path.read_bytes())
                return [arrays[name] for name in names]
            except (CheckpointError, KeyError):
                problem = f"the part of the model that this {self.role} kept is damaged"
                code = "FK-KEPT-OTHER"
        remedy = "give it the state-dir that it had in the run that made the model"
        raise CheckpointError(problem, remedy=remedy, code=code)

    @answers(wire.PredictRequest)
    def predict(self, request: wire.PredictRequest) -> wire.PredictReply:
        table = self.table
        if table.tests:
            arrays: dict[str, NDArray[Any]] = {"weights": request.weights, "bias": request.bias}
            if request.raw_mean.size:
                arrays |= {"raw_mean": request.raw_mean, "raw_deviation": request.raw_deviation}
            check_size(table.features, request.features)
            names = ("features", "gamma", "feature_seed")
            meta = {"columns": table.features, **{name: getattr(request, name) for name in names}}
            self._check_file()
            found = outputs(arrays, meta, table.x_test)
            self.write_predictions(np.arange(table.tests), found, request.calibration)
        return wire.PredictReply(samples=table.tests)

    @answers(wire.RecallRequest)
    def recall(self, request: wire.RecallRequest) -> wire.RecallReply:
        kept = self._read_part(request.model, "coordinates", "weights")
        part = np.concatenate([array.ravel() for array in kept])
        return wire.RecallReply(sealed=self.seal_all(request.users, part, "model", request.round))

    @answers(wire.ContributeRequest)
    def contribute(self, request: wire.ContributeRequest) -> wire.ContributeReply:
        columns = self.table.features
        check_size(request.rows, request.width)
        self.check(request)
        shape, place = (columns * (2 + request.width),), ("model", request.sealed_round)
        part = self.unseal(request.agent, request.sealed, shape, *place)
        mean, deviation = part[: 2 * columns].reshape(2, columns)
        announced = self.table.announced(self.session, self.alignment_key)
        x = (announced[request.take] - mean) / deviation
        values = np.zeros((request.rows, request.width))
        values[request.place] = x @ part[2 * columns :].reshape(columns, request.width)
        held = self.table.order(self.session, self.alignment_key)[request.take]
        self.note_rows(wire.PREDICTED_SUM, held, each=True)
        self.secure_sums.contribute(wire.PREDICTED_SUM, values.ravel())
        return wire.ContributeReply()

    @answers(wire.WriteRequest)
    def write(self, request: wire.WriteRequest) -> wire.WriteReply:
        self._check_file()
        table, rows = self.table, len(request.take)
        (bias,) = self._read_part(request.model, "bias")
        total = self.received(wire.PREDICTED_SUM)
        if total.size != rows * bias.size or bias.size != table.y.shape[1]:
            raise self.wrong("the outputs are more than it has, or fewer", code="FK-MESSAGE-SHAPE")
        tests = table.order(self.session, self.alignment_key)[request.take] - table.rows
        self.write_predictions(tests, total.reshape(rows, -1) + bias, request.calibration)
        return wire.WriteReply(samples=rows)

    def _check_file(self) -> None:
        if self.predictions is None:
            raise TableError(
                "there is nowhere to write the predictions",
                remedy="name predictions in --node-config",
                code="FK-PREDICT-NOWHERE",
            )

"""What users, agents and the label owner of HierarchicalSVM share."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.errors import OptionError, StateError
from fedkern_flwr.exchange import SERVER, SumSpec
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import Coordinates, Floats
from fedkern_flwr.groups.linear_model import model_rows
from fedkern_flwr.groups.members import AGENT, DEFAULT_BOUND, OWNER, ROLES, USER
from fedkern_flwr.guard import refusal
from fedkern_flwr.node.client import answers
from fedkern_flwr.node.state import Recent, SessionState
from fedkern_flwr.node.sums import ClientSums
from fedkern_flwr.options import check_choice
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.crypto import seal_message, unseal_message
from fedkern_flwr.wire import DescribeRequest
from fedkern_flwr.wire.sums import Order

from .table_client import TableClient

Role = Literal["user", "agent", "owner"]
_WEIGHTS = ("c", "rho", "sigma", "next_sigma", "relaxation")
_OF_ROWS = ("features", "gamma", "feature_seed")
_RECENT = Recent(1 << 28)
_NUMBERED = (wire.IterationRequest, wire.StepRequest)


class SVMNode(TableClient):
    """Base of the parts of :class:`~fedkern_flwr.clients.SVMClient`, where its options stand.

    Attributes
    ----------
    repeated : bool
        Whether the iteration of the request at hand has been done already.
    """

    without_key = "give all users and the owner the same alignment_key, or pass no ids"
    without_secret: ClassVar[str] = "resume or start the run again"
    repeated = False
    same_parties = True
    rounds_of: ClassVar[Mapping[str, str]] = {wire.LEFT_SUM: "round"}

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
        super().__init__(context, x, y, check=lambda: self._check(x, y), **table)
        self.group = _group(group if group is not None else context.node_config.get("group", 0))
        self.bound = bound
        self.labels_of_row, self.rows_chosen = int(not self.shows_rows), self.shows_rows
        self._prepared: tuple[Floats, ...] = ()

    def _check(self, x: object, y: object) -> None:
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

    # -- what the base asks for

    def choose_partners(self, request: Any) -> Collection[int]:
        """Return with whom this node exchanges sealed messages."""
        if self.role != USER:
            return range(self.partitions)
        if isinstance(request, wire.StatisticsRequest):
            return list(request.partners.tolist())
        if isinstance(request, wire.ColumnsRequest):
            return [request.agent, request.owner]
        known = isinstance(request, wire.StepWithAgentRequest | wire.ContributeRequest)
        return [request.agent] if known else ()

    def is_counted(self, order: Order) -> bool:
        """Tell whether a sum is about rows: those of a group are, as an agent may pass them on."""
        return super().is_counted(order) or order.name.partition("#")[0] == wire.GROUP_SUM

    def weight(self, order: Order, rows: int) -> float:
        """Count objective and bound, which follow from a visit and the label owner sends."""
        told = 2 if isinstance(self._request, wire.VisitRequest) else 0
        return super().weight(order, rows) + told / order.length

    @property
    def joins_rows(self) -> bool:
        """Whether columns are split: users have no labels then."""
        return self.role == OWNER or not self.table.y.size

    @property
    def shows_rows(self) -> bool:
        """Whether the label owner opens inner products of its rows: where columns are split."""
        return self.role == USER and not self.table.y.size

    def describe(self, request: DescribeRequest) -> wire.SVMDescribeReply:
        """Tell who this is; see the message."""
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
        nobody = np.zeros((0, 2), np.uint64)  # in a horizontal split nobody joins rows
        return replace(reply, ids=nobody, spelled=nobody)

    def keep_order(self, ids: NDArray[np.uint64], order: NDArray[np.int32]) -> None:
        """Remember nothing: the table knows the order."""

    def open_round(self, session: str, number: int, checkpoint_every: int) -> SessionState:
        """Return the node's state; an iteration may be repeated, with what came of it before.

        Raises
        ------
        StateError
            The node is not at the iteration before.
        """
        state, asked = self.open_session(session), self._request
        ahead = isinstance(asked, wire.IterationRequest) and number > state.round + 1
        if isinstance(asked, _NUMBERED) and (number < state.round or ahead):
            raise StateError(
                f"iteration {number} does not follow iteration {state.round}",
                remedy="resume the run from its checkpoint",
                party=self.name,
                code="FK-MESSAGE-ORDER",
            )
        self.repeated = number == state.round
        return state

    def answer(self, request: Any, method: Any) -> Any:
        """Refuse weights that are none; note which iteration was the last, once it is done."""
        for name in _WEIGHTS:
            weights = np.asarray(getattr(request, name, 1.0))
            if not ((weights > 0.0) & (weights < np.inf)).all():
                raise refusal(
                    f"{name} that is no positive number", self.name, code="FK-MESSAGE-FIELD"
                )
        if isinstance(request, wire.PlanRequest) and (
            not self.shows_rows or request.agent == request.owner
        ):  # who is both weighs one row by 1 and all others by 0, and reads it in the sum
            raise refusal(
                "sums of columns from a user with labels, or for one party in two roles",
                self.name,
                code="FK-ASKED-MORE",
            )
        reply = method(request)
        if isinstance(request, _NUMBERED):
            self.kept.settings["done"] = request.round
        return reply

    def close_round(
        self, state: SessionState, number: int, kept: Any, checkpoint_every: int
    ) -> None:
        """Keep the state."""
        state.kept = kept
        if isinstance(self._request, _NUMBERED):
            state.round = number
        state.store(self.context)

    def forget(self, state: SessionState) -> bytes:
        """Forget all at the end of a run; what was saved to resume it stays on disk."""
        return b""

    @answers(wire.SaveRequest)
    def save_state(self, request: wire.SaveRequest) -> wire.SaveReply:
        """Keep the state on disk."""
        self._save(self.open_session(request.session), request.round)
        return wire.SaveReply()

    @answers(wire.PadRequest)
    def contribute_pads(self, request: wire.PadRequest) -> wire.PadReply:
        """Contribute this node's pad to the sums that belong to it."""
        for name in list(self.ordered.orders):
            self.check(name, self.partition)
            self.ordered.contribute_nothing(name)
        return wire.PadReply()

    # -- what the roles share

    @property
    def ordered(self) -> ClientSums:
        """The secure sums of the request at hand.

        Raises
        ------
        ProtocolError
            There are none: nothing leaves this node unmasked.
        """
        if self.sums is None:
            problem = "values are asked for that leave this node in secure sums only"
            raise self.wrong(problem, "start the run again", code="FK-ORDER-PLAIN")
        return self.sums

    def check(
        self,
        name: str,
        receiver: int = SERVER,
        *,
        self_masks: bool = False,
        length: int | None = None,
    ) -> None:
        """Refuse a sum with another receiver, bound, masks or length than it must have."""
        asked = self.ordered.order(name).bound
        self.check_declared("bound", self.bound, DEFAULT_BOUND, asked)
        about: dict[str, Any] = {"receiver": receiver, "self_masks": self_masks, "length": length}
        self.ordered.check(SumSpec(name=name, encoding=Encoding.fixed_point(asked), **about))

    def received(self, name: str) -> Floats:
        """Return the total of a sum that belongs to this node.

        Raises
        ------
        ProtocolError
            It did not come with the request.
        """
        delivered = self.ordered.delivered.items()
        found = next((total for n, total in delivered if n.partition("#")[0] == name), None)
        if found is None:
            problem = f"the sum {name!r} did not come with the request"
            raise self.wrong(problem, "run the same release on both sides", code="FK-ORDER-PLAIN")
        return found

    def pin(self, **settings: Any) -> None:
        """Take up settings of the run, which stay as they are.

        Raises
        ------
        ProtocolError
            They have changed: the same values would be summed in another way.
        """
        if not all(self.kept.pin(name, value) for name, value in settings.items()):
            raise self.wrong(
                "the settings of the run have changed",
                "run the same release on both sides, and resume with the same options",
                code="FK-SETTINGS-CHANGED",
            )

    def seal(self, other: int, numbers: NDArray[Any], *place: str | int) -> bytes:
        """Seal numbers for another party."""
        secret, plain = self.pair_secret(other), np.ascontiguousarray(numbers, "<f8").tobytes()
        return seal_message(secret, plain, self.session, *place, self.partition, other)

    def unseal(
        self, other: int, sealed: bytes, shape: tuple[int, ...], *place: str | int
    ) -> Floats:
        """Open numbers that another party sealed.

        Raises
        ------
        ProtocolError
            They were changed on the way, or do not have the shape.
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

    def features_of(self, x: Floats) -> Floats:
        """Return what the model is linear in, shape (n, columns of the model)."""
        own, found = self.kept.settings, self.kept.arrays
        if "raw_mean" in found:
            x = (x - found["raw_mean"]) / found["raw_deviation"]
        return model_rows(x, int(own["features"]), own["gamma"], int(own["feature_seed"]))

    def learned_rows(self) -> tuple[Floats, Floats | None]:
        """Return the rows to learn from in the coordinates of the run, shape (n, d + 1).

        And their inner products, shape (n, n), where there are fewer of them than columns and the
        local problem is solved with them. Random features are dear to make: those of the last
        messages are kept.
        """
        own = self.kept.settings

        def make() -> tuple[Floats, ...]:
            rows = self.rows_of(self.table.x)
            used = own.get("loss") == "hinge" and len(rows) < rows.shape[1]
            return (rows, rows @ rows.T) if used else (rows,)

        if not self._prepared:
            settings = {name: own[name] for name in _OF_ROWS}
            if settings["features"]:
                text = repr((self.session, self.partition, self.table.digest(), settings))
                key = hashlib.sha256(text.encode())
                for name in ("raw_mean", "raw_deviation", "mean", "deviation"):
                    key.update(self.kept.arrays.get(name, np.zeros(0)).tobytes())
                self._prepared = _RECENT.get(key.digest(), make)
            else:
                self._prepared = make()
        rows, *gram = self._prepared
        return rows, gram[0] if gram else None

    def rows_of(self, x: Floats) -> Floats:
        """Return rows in the coordinates of the run, shape (n, d + 1)."""
        found = self.kept.arrays
        return Coordinates(found["mean"], found["deviation"], True).rows(self.features_of(x))


def _group(value: object) -> int:
    if type(value) is not int or value < 0:
        raise OptionError(
            f"group is {value}", remedy="use a whole number from 0", code="FK-OPTION-RANGE"
        )
    return value

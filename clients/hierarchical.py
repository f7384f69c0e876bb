"""The client of HierarchicalSVM: a user with rows, the agent of a group, or the label owner."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.alignment import AlignmentKey, check_alignment_key
from fedkern_flwr.consensus import Floats
from fedkern_flwr.errors import OptionError, ProtocolError, StateError, TableError
from fedkern_flwr.groups import AGENT, DEFAULT_BOUND, OWNER, ROLES, USER
from fedkern_flwr.guard import SumRule
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.linear_model import model_rows
from fedkern_flwr.node.client import Handler, PhaseClient
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.online import check_choice
from fedkern_flwr.orthogonal_product import PRODUCTS, Product
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.envelope import seal_message, unseal_message
from fedkern_flwr.wire import DescribeRequest, PhaseMessage, columns_digest
from fedkern_flwr.wire import hierarchical as wire
from fedkern_flwr.wire.sums import Order

from .party_table import Ids, PartyTable
from .svm_agent import combine, pass_round_ring
from .svm_predictions import contribute, predict, recall, write
from .svm_user import contribute_statistics, judge, solve_local_problem, solve_with_neighbours
from .svm_vertical import (
    contribute_columns,
    contribute_pads,
    lead,
    mask_message,
    multiply,
    open_block,
)

Role = Literal["user", "agent", "owner"]


class SVMClient(PhaseClient):
    """A node of HierarchicalSVM.

    In a horizontal split users hold rows with labels, and agents no data. In a vertical one the
    users of a group hold the same columns of different rows, and one node, the owner, the labels.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context; ``role`` and ``group`` of its ``node_config`` are the defaults of the
        options of these names.
    x : array, shape (n, d), optional
        Features of a user.
    y : array, shape (n,) or (n, k), optional
        Labels of a user in a horizontal split, of the owner in a vertical one.
    role : {"user", "agent", "owner"}, optional
        By default a user.
    group : int, optional
        Number of the group, from 0.
    ids : sequence of length n, optional
        Record ids, by which rows are joined in a vertical split.
    x_test, y_test, ids_test : arrays, optional
        Held-out rows.
    columns : sequence of str, optional
        Names of the features.
    classes : sequence of float, optional
        All classes of a classification; without them y holds the targets of a regression.
    label_bound : float (default: 1.0)
        Bound of abs(y) in a regression, the same at all nodes with labels.
    alignment_key : bytes or AlignmentTags, optional
        Secret of users and owner, not of the server: joins ids. Or what each has of one align run.
    product : {"local", "orthogonal"} (default: "local")
        The only kind of matrix products in which a user of a vertical split takes part.
    bound : float, optional
        Public bound on the numbers that are summed, which must be that of the run; the strategy's
        default by default.
    predictions : path, optional
        CSV file for predictions of this node's held-out rows: id, outputs, predicted class.
    **common
        Options of :class:`~fedkern_flwr.node.client.PhaseClient`; ``allow_single`` lets the agent
        see the model of this user where it is the only one of its group.

    Raises
    ------
    TableError
        Wrong shapes, NaN, duplicate ids, unknown classes.
    OptionError
        Data at an agent, none at a user, an unknown role.
    """

    pair_secrets: ClassVar[bool] = True
    enough_parties: ClassVar[int] = 2
    without_secret: ClassVar[str] = "resume or start the run again"

    def __init__(
        self,
        context: Context,
        x: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        role: Role | None = None,
        group: int | None = None,
        ids: Ids | None = None,
        x_test: ArrayLike | None = None,
        y_test: ArrayLike | None = None,
        ids_test: Ids | None = None,
        columns: Sequence[str] | None = None,
        classes: Sequence[float] | None = None,
        label_bound: float = 1.0,
        alignment_key: AlignmentKey | None = None,
        product: Product = "local",
        bound: float | None = None,
        predictions: str | Path | None = None,
        **common: Any,
    ) -> None:
        super().__init__(context, **common)
        self.role = role or str(context.node_config.get("role", USER))  # type: ignore[misc]
        check_choice("role", self.role, ROLES)
        check_choice("product", product, PRODUCTS)
        self.group = _group(group if group is not None else context.node_config.get("group", 0))
        self.product, self.alignment_key, self.bound = product, alignment_key, bound
        self.predictions = None if predictions is None else Path(predictions)
        if (x is not None) != (self.role == USER) or (self.role == AGENT and y is not None):
            raise OptionError(
                f"a node with role {self.role} has "
                + ("no features" if x is None else "features")
                + (" and labels" if y is not None else ""),
                remedy="users hold features, the owner labels, agents no data",
                party=self.name,
            )
        if not 0.0 < label_bound < np.inf:
            raise OptionError(f"label_bound is {label_bound}", remedy="use a positive number")
        self.table = PartyTable(
            self.name,
            x,
            y,
            ids,
            x_test,
            y_test,
            ids_test,
            columns=columns,
            classes=classes or (),
            label_bound=1.0 if classes else label_bound,
        )
        if alignment_key is not None:
            check_alignment_key(alignment_key)
        elif self.table.identified:
            raise OptionError(
                "ids are joined by keyed hashes, and there is no alignment key",
                remedy="give all users and the owner the same alignment_key, or pass no ids",
                party=self.name,
            )
        self._rows: tuple[str, Floats] | None = None

    def counts(self, order: Order) -> bool:
        """Tell whether a sum is about rows: those of a group of users are as well."""
        of_rows = isinstance(self._request, wire.LocalRequest | wire.ChainRequest)
        return super().counts(order) or (of_rows and order.name == wire.GROUP_SUM)

    # -- phases

    def handlers(self) -> dict[str, tuple[type[PhaseMessage], Handler]]:
        """Return the phases that a node of this role answers."""
        own: dict[str, tuple[type[PhaseMessage], Handler]] = {
            "svm-save": (wire.SaveRequest, self._save_state),
            "svm-pad": (wire.PadRequest, self._with(contribute_pads)),
        }
        if self.role == USER:
            own |= {
                "svm-statistics": (wire.StatisticsRequest, self._with(contribute_statistics)),
                "svm-local": (wire.LocalRequest, self._with(solve_local_problem)),
                "svm-chain": (wire.ChainRequest, self._with(solve_with_neighbours)),
                "svm-evaluate": (wire.EvaluateRequest, self._with(judge)),
                "svm-columns": (wire.ColumnsRequest, self._with(contribute_columns)),
                "svm-visit": (wire.VisitRequest, self._with(multiply)),
                "svm-predict": (wire.PredictRequest, self._with(predict)),
                "svm-contribute": (wire.ContributeRequest, self._with(contribute)),
            }
        elif self.role == AGENT:
            own |= {
                "svm-agent": (wire.AgentRequest, self._with(combine)),
                "svm-ring": (wire.RingRequest, self._with(pass_round_ring)),
                "svm-block": (wire.BlockRequest, self._with(open_block)),
                "svm-multiplier": (wire.MultiplierRequest, self._with(mask_message)),
                "svm-recall": (wire.RecallRequest, self._with(recall)),
            }
        else:
            own |= {
                "svm-owner": (wire.OwnerRequest, self._with(lead)),
                "svm-write": (wire.WriteRequest, self._with(write)),
            }
        return own

    def _with(self, handler: Any) -> Handler:
        return lambda request: handler(self, request)

    def choose_partners(self, request: Any) -> Collection[int]:
        """Return with whom this node exchanges sealed messages."""
        if isinstance(request, wire.StatisticsRequest):
            return [int(k) for k in request.partners]
        if isinstance(request, wire.LocalRequest):
            return [request.agent]
        if isinstance(request, wire.ChainRequest):
            return [request.left, request.right]
        if isinstance(request, wire.ColumnsRequest):
            return [request.agent, request.owner]
        if isinstance(request, wire.ContributeRequest):
            return [request.agent]
        return () if self.role == USER else range(self.partitions)

    def own_rows(self) -> OwnRows:
        """Return the rows of the table."""
        return self.table.own_rows()

    def describe(self, request: DescribeRequest) -> wire.SVMDescribeReply:
        """Tell who this is; see the message."""
        table = self.table
        table.check_ids(request.session, self.alignment_key)
        state = self.open_session(request.session)
        kept = KeptState.unpack(state.payload)
        digest = table.digest()
        if kept.settings.get("table", digest) != digest:
            raise TableError(
                "its table is not the one with which this run began",
                remedy="bring that table back, or start the run anew",
                party=self.name,
            )
        kept.settings["table"] = digest
        state.round = int(kept.settings.get("done", 0))
        state.payload = kept.pack()
        state.store(self.context)
        aligned = self.role == OWNER or not table.y.size
        return wire.SVMDescribeReply(
            partition=self.partition,
            partitions=self.partitions,
            role=self.role,
            rows=table.rows,
            features=table.features,
            test_rows=table.tests,
            columns=columns_digest(table.columns),
            restored=self.restored,
            group=-1 if self.role == OWNER else self.group,
            outputs=table.y.shape[1],
            classes=len(table.classes),
            labels=columns_digest(map(str, table.classes)),
            label_bound=table.label_bound,
            labelled=table.labelled,
            named=table.identified,
            allow_single=self.allow_single,
            product=self.product,
            ids=table.pseudonyms(request.session, self.alignment_key)
            if aligned
            else np.zeros((0, 2), np.uint64),
        )

    def _save_state(self, request: wire.SaveRequest) -> wire.SaveReply:
        state = self.open_session(request.session)
        self._save(state, request.round)
        return wire.SaveReply(round=request.round)

    # -- what the roles share

    def begin(
        self, request: wire.SVMRequest, *, gaps: bool = False
    ) -> tuple[SessionState, KeptState, bool]:
        """Return the node's state, and whether this iteration has been done already.

        With ``gaps`` numbers that others were asked under may lie between.

        Raises
        ------
        StateError
            The node is not at the iteration before.
        """
        state = self.open_session(request.session)
        late = request.round < state.round
        if late or (request.round > state.round + 1 and not gaps):
            raise StateError(
                f"iteration {request.round} does not follow iteration {state.round}",
                remedy="resume the run from its checkpoint",
                party=self.name,
            )
        return state, KeptState.unpack(state.payload), request.round == state.round

    def end(self, state: SessionState, number: int, kept: KeptState) -> None:
        """Keep the state after an iteration."""
        kept.settings["done"] = state.round = number
        state.payload = kept.pack()
        state.store(self.context)

    def pin(self, kept: KeptState, **settings: Any) -> None:
        """Take up settings of the run, which stay as they are.

        Raises
        ------
        ProtocolError
            They have changed: the same values would be summed in another way.
        """
        if any(kept.settings.setdefault(name, value) != value for name, value in settings.items()):
            raise ProtocolError(
                "the settings of the run have changed",
                remedy="run the same release on both sides, and resume with the same options",
                party=self.name,
            )

    def forget(self, state: SessionState) -> bytes:
        """Forget all at the end of a run; what was saved to resume it stays on disk."""
        return b""

    def rule(self, name: str, *, receiver: int = -1, self_masks: bool = False) -> SumRule:
        """Return what the order of a sum must be."""
        assert self.sums is not None
        asked = self.sums.order(name).bound
        self.check_declared("bound", self.bound, DEFAULT_BOUND, asked)
        return SumRule(Encoding.fixed_point(asked), receiver, self_masks)

    def seal(self, other: int, matrix: NDArray[Any], *place: str | int) -> bytes:
        """Seal numbers for another party."""
        plain = np.ascontiguousarray(matrix, "<f8").tobytes()
        return seal_message(self.pair_secret(other), plain, *place)

    def unseal(self, other: int, sealed: bytes, *place: str | int) -> Floats:
        """Open numbers that another party sealed, as one vector."""
        return np.frombuffer(unseal_message(self.pair_secret(other), sealed, *place), "<f8")

    def features_of(self, kept: KeptState, x: Floats) -> Floats:
        """Return what the model is linear in, shape (n, columns of the model)."""
        own, found = kept.settings, kept.arrays
        if "raw_mean" in found:
            x = (x - found["raw_mean"]) / found["raw_deviation"]
        return model_rows(x, int(own["features"]), own["gamma"], int(own["feature_seed"]))

    def learned_rows(self, kept: KeptState, session: str, *, held_out: bool = False) -> Floats:
        """Return rows in the coordinates of the run, shape (n, d + 1); those to learn from stay."""
        from fedkern_flwr.consensus import Coordinates

        if not held_out and self._rows is not None and self._rows[0] == session:
            return self._rows[1]
        coordinates = Coordinates(kept.arrays["mean"], kept.arrays["deviation"], True)
        x = self.table.x_test if held_out else self.table.x
        rows = coordinates.rows(self.features_of(kept, x))
        if not held_out:
            self._rows = (session, rows)
        return rows


def _group(value: object) -> int:
    if type(value) is not int or value < 0:
        raise OptionError(f"group is {value}", remedy="use a whole number from 0")
    return value

"""The client of HierarchicalSVM: a user with rows, the agent of a group, or the label owner."""

from __future__ import annotations

from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.members import AGENT, OWNER, USER
from fedkern_flwr.node.client import Handler
from fedkern_flwr.wire import PhaseMessage

from .hierarchical_private import PrivateUser
from .hierarchical_rows import AgentOfRows, UserOfRows
from .hierarchical_vertical import NodeOfColumns, Predicting

#: What a role is asked, beside what all are.
_ASKED: dict[str, tuple[type[wire.SVMRequest], ...]] = {
    USER: (
        wire.FeaturesRequest,
        wire.SolveRequest,
        wire.EvaluateRequest,
        wire.GradientRequest,
        wire.PlanRequest,
        wire.VisitRequest,
    ),
    AGENT: (
        wire.CombineRequest,
        wire.BlockRequest,
        wire.RecallRequest,
    ),
    OWNER: (wire.OwnerRequest, wire.WriteRequest),
}


class SVMClient(PrivateUser, UserOfRows, AgentOfRows, NodeOfColumns, Predicting):
    """A node of HierarchicalSVM.

    In a horizontal split users hold rows with labels, and agents no data. In a vertical one the
    users of a group hold the same columns of different rows, and one node, the owner, the labels.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context; ``role`` and ``group`` of its ``node_config`` are the defaults of the
        options of these names.
    x : array or data frame, shape (n, d), optional
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
    classes : sequence of float or str, optional
        All classes of a classification, by whose names y may be given, the same order everywhere;
        without them y holds the targets of a regression.
    label_bound : float (default: 1.0)
        Bound of abs(y) in a regression, the same at all nodes with labels.
    alignment_key : bytes or AlignmentTags, optional
        Secret of users and owner, not of the server: joins ids. Or what each has of one align run.
    bound : float, optional
        Public bound on the numbers that are summed, which must be that of the run; the strategy's
        default by default.
    predictions : path, optional
        CSV file for predictions of this node's held-out rows: id, outputs, predicted class.
    **common
        Options of :class:`~fedkern_flwr.node.client.Client`; ``allow_single`` lets the agent
        see the model of this user where it is the only one of its group.

    Raises
    ------
    TableError
        Wrong shapes, NaN, duplicate ids, unknown classes.
    OptionError
        Data at an agent, none at a user, an unknown role.
    """

    def handlers(self) -> dict[str, tuple[type[PhaseMessage], Handler]]:
        """Return the phases that a node of this role answers."""
        own = (*_ASKED[self.role], wire.SaveRequest, wire.PadRequest)
        found = super().handlers()
        return {phase: one for phase, one in found.items() if issubclass(one[0], own)}

"""Users, agents and label owner of HierarchicalSVM in a vertical split."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.consensus import Coordinates, Floats
from fedkern_flwr.dual_subspace import LabelOwner, objective, visit
from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.guard import check_selection
from fedkern_flwr.labels import count_outcomes
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.orthogonal_product import default_vectors, draw_orthogonal, mask_multiplier
from fedkern_flwr.wire import hierarchical as wire

from .svm_predictions import keep_part

if TYPE_CHECKING:
    from .hierarchical import SVMClient

_OVERHEAD = 28  # bytes that sealing adds


# -- users


def contribute_columns(client: SVMClient, request: wire.ColumnsRequest) -> wire.ColumnsReply:
    """Contribute sums and sums of squares of the columns."""
    state, kept, _ = client.begin(request, gaps=True)
    assert client.sums is not None
    client.sums.check(wire.GROUP_SUM, client.rule(wire.GROUP_SUM, receiver=request.agent))
    _check_plan(client, request)
    names = ("agent", "owner", "rows", "all_rows")
    plan = hashlib.sha256(request.take.tobytes() + b"/" + request.place.tobytes()).hexdigest()
    client.pin(kept, plan=plan, **{name: getattr(request, name) for name in names})
    kept.arrays |= {"take": request.take, "place": request.place}
    x = _columns(client, kept, request.session)[request.place < request.rows]
    client.note_rows(wire.GROUP_SUM, _held(client, kept, request.session, learned=True))
    share = np.concatenate([x.sum(0), (x**2).sum(0)]) / request.rows
    client.sums.contribute(wire.GROUP_SUM, share)
    sealed = b""
    if client.product == "orthogonal":
        if not kept.seed:
            kept.seed = secrets.token_bytes(32)
        z = draw_orthogonal(
            np.column_stack([x, np.ones(len(x))]),
            default_vectors(len(x), x.shape[1] + 1),
            int.from_bytes(kept.seed, "big"),
            party=client.name,
        )
        place = (request.session, "orthogonal", client.partition, request.agent)
        sealed = client.seal(request.agent, z, *place)
    client.end(state, request.round, kept)
    return wire.ColumnsReply(round=request.round, orthogonal=sealed)


def _check_plan(client: SVMClient, request: wire.ColumnsRequest) -> None:
    """Refuse a plan by which the sums would be those of others, or of few rows."""
    announced = range(client.table.rows + client.table.tests)
    check_selection(request.take, announced, party=client.name)
    check_selection(request.place, range(request.all_rows), party=client.name)
    learned = request.take[request.place < request.rows]
    least = client.policy.min_own_rows
    check_selection(learned, announced, least=least, party=client.name)


def multiply(client: SVMClient, request: wire.VisitRequest) -> wire.VisitReply:
    """Contribute X^T m to the group's weights, and the outputs of the weights of the last visit."""
    state, kept, _ = client.begin(request, gaps=True)
    own, session, number = kept.settings, request.session, request.round
    agent, owner = int(own["agent"]), int(own["owner"])
    columns = client.table.features
    if request.coordinates:
        place = (session, "columns", request.weights_round, agent, client.partition)
        mean, deviation = client.unseal(agent, request.coordinates, *place).reshape(2, -1)
        kept.arrays |= {"mean": mean, "deviation": deviation}
    if "mean" not in kept.arrays:
        raise ProtocolError("the coordinates of the run are missing", party=client.name)
    x = _columns(client, kept, session)
    x = (x - kept.arrays["mean"]) / kept.arrays["deviation"]
    learned = kept.arrays["place"] < own["rows"]
    assert client.sums is not None
    weights = None
    if request.weights:
        place = (session, "weights", request.weights_round, agent, client.partition)
        weights = client.unseal(agent, request.weights, *place).reshape(columns, request.width)
    if request.message:
        source = agent if client.product == "orthogonal" else owner
        place = (session, "message", request.message_round, source, client.partition)
        message = client.unseal(source, request.message, *place).reshape(-1, request.width)
        to_agent, _ = visit(x[learned], message, None)
        client.sums.check(wire.GROUP_SUM, client.rule(wire.GROUP_SUM, receiver=agent))
        client.note_rows(wire.GROUP_SUM, _held(client, kept, session, learned=True))
        client.sums.contribute(wire.GROUP_SUM, to_agent.ravel() / own["rows"])
    if weights is not None:
        rows = own["all_rows"] if request.judge else own["rows"]
        values = np.zeros((rows, request.width))
        counted = slice(None) if request.judge else learned
        values[kept.arrays["place"][counted]] = x[counted] @ weights
        name = _output_name(judge=request.judge)
        client.sums.check(name, client.rule(name, receiver=owner))
        held = _held(client, kept, session, learned=not request.judge)
        client.note_rows(name, held, each=True)
        client.sums.contribute(name, values.ravel())
    client.end(state, number, kept)
    return wire.VisitReply(round=number)


def _columns(client: SVMClient, kept: KeptState, session: str) -> Floats:
    """Return the user's features of the plan's rows."""
    announced = client.table.announced(session, client.alignment_key)
    return np.asarray(announced[kept.arrays["take"]])


def _held(client: SVMClient, kept: KeptState, session: str, *, learned: bool) -> NDArray[np.intp]:
    """Return the places in the user's table of the plan's rows, of all or of those learned from."""
    take = kept.arrays["take"]
    if learned:
        take = take[kept.arrays["place"] < kept.settings["rows"]]
    return np.asarray(client.table.order(session, client.alignment_key)[take])


def _output_name(*, judge: bool) -> str:
    return wire.JUDGED_SUM if judge else wire.OUTPUT_SUM


# -- agents


def contribute_pads(client: SVMClient, request: wire.PadRequest) -> wire.PadReply:
    """Contribute this node's pad to the sums that belong to it."""
    assert client.sums is not None
    for name in list(client.sums.orders):
        client.sums.check(name, client.rule(name, receiver=client.partition))
        client.sums.contribute_nothing(name)
    return wire.PadReply(round=request.round)


def open_block(client: SVMClient, request: wire.BlockRequest) -> wire.BlockReply:
    """Open the group's sum and seal it for the users."""
    state, kept, repeated = client.begin(request, gaps=True)
    assert client.sums is not None
    if request.kind != "again" and not repeated:
        total = client.sums.delivered.get(wire.GROUP_SUM)
        if total is None:
            raise ProtocolError("the sum of its group is missing", party=client.name)
        if request.kind == "columns":
            half = total.size // 2
            fitted = Coordinates.fit(total[:half], total[half:], standardised=True)
            deviation = fitted.deviation if request.standardised else np.ones(half)
            kept.arrays["opened"] = np.stack([fitted.mean, deviation])
            kept.arrays["coordinates"] = kept.arrays["opened"]
        else:
            kept.arrays["opened"] = total * (request.rows if request.kind == "model" else 1.0)
    if request.kind == "model":
        part = {"coordinates": kept.arrays["coordinates"], "weights": kept.arrays["opened"]}
        keep_part(client, request.session, part)
    kind = "columns" if request.kind == "columns" else "weights"
    place = (request.session, kind, request.round, client.partition)
    sealed = [
        client.seal(user, kept.arrays["opened"], *place, user) for user in request.users.tolist()
    ]
    client.end(state, request.round, kept)
    return wire.BlockReply(round=request.round, sealed=b"".join(sealed))


def mask_message(client: SVMClient, request: wire.MultiplierRequest) -> wire.MultiplierReply:
    """Mask the owner's message with the users' orthogonal vectors, and seal it for them."""
    state, kept, _ = client.begin(request, gaps=True)
    session, users = request.session, request.users.tolist()
    if request.first:
        blobs = _split(request.vectors, request.lengths)
        for user, rows, blob in zip(users, request.sizes.tolist(), blobs, strict=True):
            place = (session, "orthogonal", user, client.partition)
            kept.arrays[f"vectors {user}"] = client.unseal(user, blob, *place).reshape(rows, -1)
    lengths = request.sizes.astype(np.int64) * 8 * request.width + _OVERHEAD
    out = []
    for user, blob in zip(users, _split(request.sealed, lengths), strict=True):
        sent = (session, "message", request.message_round, request.owner, client.partition, user)
        message = client.unseal(request.owner, blob, *sent).reshape(-1, request.width)
        masked = mask_multiplier(kept.arrays[f"vectors {user}"], message)
        out.append(
            client.seal(user, masked, session, "message", request.round, client.partition, user)
        )
    client.end(state, request.round, kept)
    sealed = np.frombuffer(b"".join(out), np.uint8)
    return wire.MultiplierReply(round=request.round, sealed=sealed)


def _split(data: NDArray[Any], lengths: NDArray[Any]) -> list[bytes]:
    ends = np.cumsum(lengths).tolist()
    raw = data.tobytes()
    return [raw[start:end] for start, end in zip([0, *ends], ends, strict=False)]


# -- the label owner


def lead(client: SVMClient, request: wire.OwnerRequest) -> wire.OwnerReply:
    """Take outputs, solve in the subspace of the messages so far, seal the next message."""
    state, kept, repeated = client.begin(request, gaps=True)
    if request.kind == "start":
        _pin_plan(client, request, kept)
        kept.arrays |= {
            name: getattr(request, name) for name in ("take", "users", "agents", "sizes", "place")
        }
        kept.settings |= {"loss": request.loss, "c": request.c, "rows": request.rows}
    if request.kind == "judge":
        found = _judge(client, request, kept)
        client.end(state, request.round, kept)
        return found
    if not repeated and request.kind != "again":
        _next_message(client, request, kept)
    client.end(state, request.round, kept)
    return wire.OwnerReply(
        round=request.round,
        model=bool(kept.settings["model"]),
        objective=float(kept.settings["objective"]),
        bound=float(kept.settings["bound"]),
        sealed=_seal_parts(client, request, kept),
        counts=np.zeros(0),
    )


def _pin_plan(client: SVMClient, request: wire.OwnerRequest, kept: KeptState) -> None:
    """Refuse another plan than before: what is counted of one row is its label."""
    rows, tests = client.table.rows, client.table.tests
    learned, held_out = request.take[: request.rows], request.take[request.rows :]
    least = client.policy.min_own_rows
    check_selection(learned, range(rows), least=least, party=client.name)
    check_selection(held_out, range(rows, rows + tests), party=client.name)
    text = repr((request.rows, request.loss, request.c)).encode() + request.take.tobytes()
    client.pin(kept, plan=hashlib.sha256(text).hexdigest())


def _next_message(client: SVMClient, request: wire.OwnerRequest, kept: KeptState) -> None:
    own = kept.settings
    rows = _learned(client, request.session, kept)
    leader = LabelOwner(own["loss"], client.table.y[rows], own["c"], 0, numbers=rows)
    if "sent" in kept.arrays:
        leader.unpack(kept.arrays)
    if request.kind in ("step", "last"):
        leader.receive(_delivered(client, wire.OUTPUT_SUM, int(own["rows"])) * own["rows"])
    known = bool(np.isfinite(leader.bound).all())
    gap, value = float(leader.gap.sum()), float(leader.objective.sum())
    finished = request.kind == "last" or (known and gap <= request.tolerance * value)
    kept.arrays["message"] = leader.model_message() if finished else leader.next_message()
    kept.arrays |= leader.pack()
    kept.arrays["bias"] = leader.bias
    bound = float(leader.bound.sum()) if known else 0.0
    own |= {"model": finished, "objective": value, "bound": bound}


def _judge(client: SVMClient, request: wire.OwnerRequest, kept: KeptState) -> wire.OwnerReply:
    own, table = kept.settings, client.table
    rows = int(own["rows"])
    outputs = _delivered(client, wire.JUDGED_SUM, len(kept.arrays["take"])) + kept.arrays["bias"]
    targets = table.y[_learned(client, request.session, kept)]
    message = kept.arrays["message"]
    squares = ((outputs[:rows] - kept.arrays["bias"]) * message).sum(0)  # |X^T m|^2
    total = sum(
        objective(own["loss"], float(squares[k]), outputs[:rows, k], targets[:, k], own["c"])
        for k in range(targets.shape[1])
    )
    tests = table.order(request.session, client.alignment_key)[kept.arrays["take"][rows:]]
    tests = tests - table.rows
    counts = np.zeros(0)
    if table.labelled and len(tests):
        counts = count_outcomes(
            outputs[rows:], table.y_test[tests], len(table.classes), table.label_bound
        )
        counts = client.figures("outcomes", tests, counts, alone=True)
        counts = counts if counts.any() else counts[:0]
    keep_part(client, request.session, {"bias": kept.arrays["bias"]})
    if client.predictions is not None and len(tests):
        table.write_predictions(client.predictions, tests, outputs[rows:])
    return wire.OwnerReply(
        round=request.round,
        model=True,
        objective=float(total),
        bound=float(own["bound"]),
        sealed=np.zeros(0, np.uint8),
        counts=counts,
    )


def _learned(client: SVMClient, session: str, kept: KeptState) -> NDArray[np.intp]:
    """Return the rows of the owner's table to learn from, in the order of the plan."""
    order = client.table.order(session, client.alignment_key)
    return np.asarray(order[kept.arrays["take"][: kept.settings["rows"]]])


def _delivered(client: SVMClient, name: str, rows: int) -> Floats:
    assert client.sums is not None
    total = client.sums.delivered.get(name)
    if total is None or total.size % rows:
        raise ProtocolError("the outputs are missing", party=client.name)
    return total.reshape(rows, -1)


def _seal_parts(
    client: SVMClient, request: wire.OwnerRequest, kept: KeptState
) -> NDArray[np.uint8]:
    """Seal the message at the rows of each user, for the user or its agent."""
    found, parts = kept.arrays, []
    ends = np.cumsum(found["sizes"])
    for user, agent, size, end in zip(
        found["users"].tolist(), found["agents"].tolist(), found["sizes"], ends, strict=True
    ):
        part = found["message"][found["place"][end - size : end]]
        place = (request.session, "message", request.round, client.partition)
        if agent < 0:
            parts.append(client.seal(user, part, *place, user))
        else:
            parts.append(client.seal(agent, part, *place, agent, user))
    return np.frombuffer(b"".join(parts), np.uint8)

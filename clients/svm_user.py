"""A user of HierarchicalSVM in a horizontal split: solves its part of the problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedkern_flwr.consensus import Floats, relax
from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.guard import refusal
from fedkern_flwr.labels import count_outcomes
from fedkern_flwr.linear_model import model_columns
from fedkern_flwr.local_solvers import solve_local, total_loss
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.wire import hierarchical as wire

if TYPE_CHECKING:
    from .hierarchical import SVMClient

_PINNED = ("loss", "c", "features", "gamma", "feature_seed", "rows")
_COORDINATES = ("mean", "deviation", "ridge")


def contribute_statistics(
    client: SVMClient, request: wire.StatisticsRequest
) -> wire.StatisticsReply:
    """Contribute sums and sums of squares of the columns that the model is linear in."""
    state = client.open_session(request.session)
    kept = KeptState.unpack(state.payload)
    name = wire.STATISTICS_SUM + ("#raw" if request.raw else "")
    assert client.sums is not None
    client.sums.check(name, client.rule(name))
    if request.rows != sum(client.sums.rows(name)):
        raise refusal("the rows of a sum", client.name)
    client.pin(kept, **{name: getattr(request, name) for name in _PINNED})
    if request.raw_mean.size:
        kept.arrays |= {"raw_mean": request.raw_mean, "raw_deviation": request.raw_deviation}
    rows = client.table.x if request.raw else client.features_of(kept, client.table.x)
    share = np.concatenate([rows.sum(0), (rows**2).sum(0)]) / request.rows
    client.sums.contribute(name, share)
    state.payload = kept.pack()
    state.store(client.context)
    return wire.StatisticsReply(round=request.round)


def solve_local_problem(client: SVMClient, request: wire.LocalRequest) -> wire.LocalReply:
    """Take over the center of the last iteration, solve, contribute the model and its dual."""
    state, kept, repeated = client.begin(request)
    name = wire.FLAT_SUM if request.agent < 0 else wire.GROUP_SUM
    assert client.sums is not None
    client.sums.check(name, client.rule(name, receiver=request.agent))
    client.pin(kept, agent=request.agent, left=-1, right=-1)
    if not repeated:
        _take_coordinates(client, request, kept)
        shape = _shape(client, kept)
        center = np.zeros(shape)
        if request.sealed:
            place = (request.session, "center", request.round - 1, request.agent, client.partition)
            center = client.unseal(request.agent, request.sealed, *place).reshape(shape)
        elif request.center.size:
            center = request.center
        found, primal = kept.arrays, 0.0
        dual = np.zeros(shape)
        if "model" in found:
            primal = float(np.linalg.norm(found["model"] - center))
            dual = found["dual"] + found["counted"] - center
            dual *= kept.settings["rho"] / request.rho
        model = _solve(client, kept, request.session, center - dual, np.full(shape[1], request.rho))
        counted = relax(model, center, request.relaxation)
        found |= {"model": model, "dual": dual, "counted": counted}
        kept.settings["rho"] = request.rho
        statistics = [
            _loss(client, kept, request.session, request.judged),
            primal,
            request.rho * float(np.linalg.norm(dual)) / kept.settings["rows"],
        ]
        found["vector"] = np.concatenate([(counted + dual).ravel(), statistics])
        client.end(state, request.round, kept)
    client.sums.contribute(name, kept.arrays["vector"])
    return wire.LocalReply(round=request.round)


def solve_with_neighbours(client: SVMClient, request: wire.ChainRequest) -> wire.ChainReply:
    """Take over the neighbours' models, solve, contribute the model.

    Decentralised ADMM over the edges of a graph (Forero, Cano and Giannakis, "Consensus-Based
    Distributed Support Vector Machines", JMLR 2010): with duals a_j and neighbours B_j,
    a_j += eta / 2 sum_k (w_j - w_k), then w_j = argmin 1 / (2 N) |w|^2 + C sum loss + 2 a_j^T w
    + eta sum_k |w - (w_j + w_k) / 2|^2.
    """
    state, kept, repeated = client.begin(request)
    assert client.sums is not None
    client.sums.check(wire.FLAT_SUM, client.rule(wire.FLAT_SUM))
    client.pin(kept, agent=-1, left=request.left, right=request.right)
    if not repeated:
        _take_coordinates(client, request, kept)
        shape, found = _shape(client, kept), kept.arrays
        own = found.get("model", np.zeros(shape))
        others = [
            client.unseal(
                other, sealed, request.session, "model", request.round - 1, other, client.partition
            ).reshape(shape)
            for other, sealed in (
                (request.left, request.from_left),
                (request.right, request.from_right),
            )
            if other >= 0 and sealed
        ] or [own] * ((request.left >= 0) + (request.right >= 0))
        dual = found.get("dual", np.zeros(shape))
        dual = dual + 0.5 * request.rho * sum(own - other for other in others)
        middle = sum(0.5 * (own + other) for other in others)
        ridge = found["ridge"] / request.users
        penalty = ridge + 2.0 * request.rho * len(others)
        target = (2.0 * request.rho * middle - 2.0 * dual) / penalty
        model = _solve(client, kept, request.session, np.asarray(target), penalty)
        apart = float(sum(np.linalg.norm(model - other) for other in others)) / len(others)
        found |= {"model": model, "dual": np.asarray(dual)}
        statistics = [
            _loss(client, kept, request.session, request.judged),
            apart,
            float(np.linalg.norm(model - own)),
        ]
        found["vector"] = np.concatenate([model.ravel(), statistics])
        client.end(state, request.round, kept)
    client.sums.contribute(wire.FLAT_SUM, kept.arrays["vector"])

    def sealed(other: int) -> bytes:
        place = (request.session, "model", request.round, client.partition, other)
        return client.seal(other, kept.arrays["model"], *place) if other >= 0 else b""

    return wire.ChainReply(
        round=request.round, to_left=sealed(request.left), to_right=sealed(request.right)
    )


def judge(client: SVMClient, request: wire.EvaluateRequest) -> wire.EvaluateReply:
    """Contribute the model's loss and its outcomes on held-out rows; write predictions."""
    state = client.open_session(request.session)
    kept, table = KeptState.unpack(state.payload), client.table
    assert client.sums is not None
    rule = client.rule(wire.EVALUATION_SUM, self_masks=request.self_masks)
    client.sums.check(wire.EVALUATION_SUM, rule)
    held_out = client.learned_rows(kept, request.session, held_out=True) @ request.model.T
    counts = count_outcomes(
        held_out if table.labelled else held_out[:0],
        table.y_test if table.labelled else table.y[:0],
        len(table.classes),
        table.label_bound,
    )
    loss = _loss(client, kept, request.session, request.model)
    tests = np.arange(table.tests if table.labelled else 0)
    counts = client.figures("outcomes", tests, counts, total=wire.EVALUATION_SUM)
    client.sums.contribute(wire.EVALUATION_SUM, np.concatenate([[loss], counts]))
    if client.predictions is not None and table.tests:
        table.write_predictions(client.predictions, np.arange(table.tests), held_out)
    return wire.EvaluateReply(round=request.round)


def _take_coordinates(
    client: SVMClient, request: wire.LocalRequest | wire.ChainRequest, kept: KeptState
) -> None:
    if request.mean.size:
        kept.arrays |= {name: getattr(request, name) for name in _COORDINATES}
    width = model_columns(client.table.features, int(kept.settings.get("features", 0)))
    if not all(len(kept.arrays.get(name, ())) >= width for name in _COORDINATES):
        raise ProtocolError(
            "the coordinates of the run are missing or have another number of columns",
            remedy="run the same release on both sides, and resume from a checkpoint",
            party=client.name,
        )


def _shape(client: SVMClient, kept: KeptState) -> tuple[int, int]:
    return client.table.y.shape[1], len(kept.arrays["ridge"])


def _solve(
    client: SVMClient, kept: KeptState, session: str, target: Floats, penalty: Floats
) -> Floats:
    """Return the models that minimise C sum loss + 1/2 |w - target|^2 in the metric of penalty."""
    rows, y = client.learned_rows(kept, session), client.table.y
    memory = kept.arrays.get("memory", np.zeros((y.shape[1], 0)))
    solved = [
        solve_local(
            kept.settings["loss"], rows, y[:, k], target[k], penalty, kept.settings["c"], memory[k]
        )
        for k in range(y.shape[1])
    ]
    kept.arrays["memory"] = np.stack([found for _, found in solved])
    return np.stack([model for model, _ in solved])


def _loss(client: SVMClient, kept: KeptState, session: str, model: Floats) -> float:
    """Return the sum of losses of a model per row of the run, 0 without a model."""
    if not model.size:
        return 0.0
    y = client.table.y
    outputs = client.learned_rows(kept, session) @ model.T
    total = sum(
        total_loss(kept.settings["loss"], outputs[:, k], y[:, k]) for k in range(y.shape[1])
    )
    return float(total / kept.settings["rows"])

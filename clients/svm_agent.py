"""The agent of a group in a horizontal split: between its users and the other groups."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np

from fedkern_flwr.consensus import group_center, paper_group_center, relax
from fedkern_flwr.errors import ProtocolError, SumError
from fedkern_flwr.groups import DEFAULT_BOUND
from fedkern_flwr.guard import refusal
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.envelope import seal_message, unseal_message
from fedkern_flwr.wire import hierarchical as wire

if TYPE_CHECKING:
    from .hierarchical import SVMClient

_GROUP_STATISTICS = 3  # loss, primal residual, pull


def combine(client: SVMClient, request: wire.AgentRequest) -> wire.AgentReply:
    """Make the group's center from its users' sum and the global model; contribute the term."""
    state, kept, repeated = client.begin(request)
    shape, found = (request.outputs, request.width), kept.arrays
    assert client.sums is not None
    if request.plain and len(client.sums.party.state.cohorts) > 1:
        raise refusal("its term in plain, where there are other agents", client.name)
    if not repeated:
        found.setdefault("center", np.zeros(shape))
        found.setdefault("dual", np.zeros(shape))
        found.setdefault("statistics", np.zeros(5))
        kept.settings.setdefault("sigma", request.sigma)
        if request.advance:
            _advance(client, request, kept)
        found["dual"] *= kept.settings["sigma"] / request.next_sigma
        kept.settings["sigma"] = request.next_sigma
        term = found["center"] + (found["dual"] if request.consensus == "exact" else 0.0)
        found["term"] = np.concatenate([term.ravel(), found["statistics"]])
        client.end(state, request.round, kept)
    number = int(kept.settings.get("iteration", 0))
    sealed = b""
    if number:
        sealed = b"".join(
            client.seal(
                user, found["center"], request.session, "center", number, client.partition, user
            )
            for user in request.users.tolist()
        )
    if wire.GROUP_SUM in client.sums.orders:  # the pad of the users' next sum
        client.sums.check(wire.GROUP_SUM, client.rule(wire.GROUP_SUM, receiver=client.partition))
        client.sums.contribute_nothing(wire.GROUP_SUM)
    if request.plain:
        return wire.AgentReply(round=request.round, sealed=sealed, term=(found["term"],))
    if not request.ring:
        rule = client.rule(wire.AGENTS_SUM, self_masks=request.self_masks)
        client.sums.check(wire.AGENTS_SUM, rule)
        client.sums.contribute(wire.AGENTS_SUM, found["term"])
    return wire.AgentReply(round=request.round, sealed=sealed, term=())


def _advance(client: SVMClient, request: wire.AgentRequest, kept: KeptState) -> None:
    """Complete an iteration of the group."""
    assert client.sums is not None
    found, shape = kept.arrays, (request.outputs, request.width)
    total = client.sums.delivered.get(wire.GROUP_SUM)
    if total is None or total.size != shape[0] * shape[1] + _GROUP_STATISTICS:
        raise ProtocolError("the sum of its group is missing", party=client.name)
    sums, (loss, primal, pull) = total[:-3].reshape(shape), total[-3:]
    before, users = found["center"], len(request.users)
    found["dual"] *= kept.settings["sigma"] / request.sigma
    kept.settings["sigma"] = request.sigma
    if request.consensus == "exact":
        target = relax(request.center, before, request.relaxation)
        center = group_center(sums, users, request.rho, request.sigma, target, found["dual"])
        found["dual"] = found["dual"] + center - target
    else:
        center = paper_group_center(
            sums, users, request.center - before, request.rho, request.all_users, request.groups
        )
    middle = request.center / (request.groups if request.consensus == "paper" else 1)
    norm = float(np.linalg.norm(center))
    found["center"] = center
    found["statistics"] = np.array(
        [
            loss,
            primal + float(np.linalg.norm(center - middle)),
            users * norm + float(np.linalg.norm(middle)),
            (request.rho * users + request.sigma) * float(np.linalg.norm(center - before)),
            pull,
        ]
    )
    kept.settings["iteration"] = int(kept.settings.get("iteration", 0)) + 1


def pass_round_ring(client: SVMClient, request: wire.RingRequest) -> wire.RingReply:
    """Add this agent's term to what went round the ring, and seal it for the next agent.

    Who begins adds a mask, and takes it off at the end. Terms are fixed-point numbers modulo 2^64.
    """
    state = client.open_session(request.session)
    kept = KeptState.unpack(state.payload)
    term = kept.arrays.get("term")
    if term is None or request.round != state.round:
        raise ProtocolError("it has no term for this round of the ring", party=client.name)
    client.check_declared("bound", client.bound, DEFAULT_BOUND, request.bound)
    encoding = Encoding.fixed_point(request.bound)
    encoding.check_room(request.groups)
    place = (request.session, "ring", request.round)
    if request.first:
        if kept.settings.get("masked") != request.round:  # a repetition has the same mask
            kept.arrays["mask"] = np.frombuffer(secrets.token_bytes(term.nbytes), np.uint64)
            kept.settings["masked"] = request.round
        running = kept.arrays["mask"].copy()
    else:
        plain = unseal_message(
            client.pair_secret(request.source),
            request.sealed,
            *place,
            request.source,
            client.partition,
        )
        running = np.frombuffer(plain, "<u8").astype(np.uint64)
    if running.shape != term.shape:
        raise ProtocolError("what went round the ring has another length", party=client.name)
    if request.last:
        running = running - kept.arrays["mask"]
        total = encoding.decode(running, request.groups)
        state.payload = kept.pack()
        state.store(client.context)
        return wire.RingReply(round=request.round, sealed=b"", term=(total,))
    try:
        running = running + encoding.encode(term, request.groups, name="ring")
    except SumError as error:
        raise client.unfit(error) from None
    sealed = seal_message(
        client.pair_secret(request.destination),
        running.astype("<u8").tobytes(),
        *place,
        client.partition,
        request.destination,
    )
    state.payload = kept.pack()
    state.store(client.context)
    return wire.RingReply(round=request.round, sealed=sealed, term=())

"""The audit of HierarchicalSVM: what leaves a party is masked or sealed, but for what is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from flwr.app import Context

from fedkern_flwr.clients import SVMClient
from fedkern_flwr.clients import hierarchical_node as svm_node
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.secure_sum import party as party_module
from fedkern_flwr.secure_sum import running_sum
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Audit, audit
from fedkern_flwr.strategies import HierarchicalSVM

KEY = b"a key of all parties but the server"
UNIFORM, NOT_UNIFORM = 1e-9, 1e-12  # p-values
ROWS, USERS = 60, 6
SECRET_FREE = {"control", "size", "declared", "pseudonym", "key", "commitment"}
FIXED: dict[str, Any] = {"rho": 2.0, "tolerance": 1e-12}
VERTICAL: dict[str, Any] = {"partition": "vertical", "tolerance": 1e-9}
#: Number of groups, and options.
RUNS: dict[str, tuple[int, dict[str, Any]]] = {
    "two groups": (2, FIXED),
    "one group": (1, FIXED),
    "random features": (2, {**FIXED, "model": "rbf", "features": 20}),
    "paper": (2, {"consensus": "paper", "tolerance": 1e-12}),
    "asynchronous": (3, {**FIXED, "staleness": 1}),
    "leave-out": (3, {**FIXED, "lost_groups": "leave-out"}),
    "ring": (3, {**FIXED, "agent_topology": "ring"}),
    "centralised": (1, {**FIXED, "architecture": "centralised"}),
    "chain": (1, {**FIXED, "architecture": "chain"}),
    "vertical": (2, VERTICAL),
    "orthogonal": (2, {**VERTICAL, "product": "orthogonal"}),
}
SPLITS = ("vertical", "orthogonal")
#: What the label owner tells the server.
TOLD = {("svm-owner", name) for name in ("objective", "bound", "counts")}
#: What is opened for the server by one party.
TOTALS = {"one group": {("svm-agent", "term")}, "ring": {("svm-ring", "term")}}
#: What is sealed on its way to a party, and by whom it was sent.
SEALED: dict[str, tuple[set[tuple[str, str]], set[tuple[str, str]]]] = {
    "ring": (
        {("svm-agent", "sealed"), ("svm-ring", "sealed")},
        {("svm-local", "sealed"), ("svm-ring", "sealed")},
    ),
    "centralised": (set(), set()),
    "chain": (
        {("svm-chain", "to_left"), ("svm-chain", "to_right")},
        {("svm-chain", "from_left"), ("svm-chain", "from_right")},
    ),
    "vertical": (
        {("svm-block", "sealed"), ("svm-owner", "sealed")},
        {("svm-visit", name) for name in ("coordinates", "message", "weights")},
    ),
}
SEALED["orthogonal"] = (
    SEALED["vertical"][0] | {("svm-columns", "orthogonal"), ("svm-multiplier", "sealed")},
    SEALED["vertical"][1] | {("svm-multiplier", name) for name in ("sealed", "vectors")},
)
USUAL = ({("svm-agent", "sealed")}, {("svm-local", "sealed")})


def serve(name: str) -> tuple[Callable[[Context], SVMClient], int]:
    """Clients of a random table: six users, four features at each; and how many nodes there are."""
    groups, options = RUNS[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 4))
    y = np.where(x[:, 0] + rng.normal(size=ROWS) > 0.0, 1.0, -1.0)
    layers = options.get("architecture", "hierarchical") == "hierarchical"
    split = name in SPLITS

    def client_fn(context: Context) -> SVMClient:
        k = int(context.node_config["partition-id"])
        if k >= USERS + groups:
            common: dict[str, Any] = {"ids": np.arange(50), "ids_test": np.arange(50, ROWS)}
            labels = {"y": y[:50], "y_test": y[50:], "classes": [-1, 1], "alignment_key": KEY}
            return SVMClient(context, role="owner", **common, **labels)
        if k >= USERS:
            return SVMClient(context, role="agent", group=k - USERS)
        if not split:
            mine, held = slice(8 * k, 8 * k + 8), slice(48 + 2 * k, 50 + 2 * k)
            own: dict[str, Any] = {"x_test": x[held], "y_test": y[held], "classes": [-1, 1]}
            return SVMClient(context, x[mine], y[mine], group=k * groups // USERS, **own)
        group, j = divmod(k, USERS // groups)
        columns, learned = x[:, 2 * group : 2 * group + 2], np.arange(j, 50, USERS // groups)
        tests = np.arange(50 + j, ROWS, USERS // groups)
        own = {"x_test": columns[tests], "ids_test": tests, "alignment_key": KEY}
        own["product"] = options.get("product", "local")
        return SVMClient(context, columns[learned], ids=learned, group=group, **own)

    return client_fn, USERS + (groups if layers else 0) + split


def watch(name: str, rounds: int = 16) -> Audit:
    client_fn, nodes = serve(name)
    seen = Audit()
    simulate(HierarchicalSVM(**RUNS[name][1]), client_fn, nodes, audit=seen, num_rounds=rounds)
    return seen


def of_kind(seen: Audit, kind: str, way: Any = "up", node: int | None = None) -> set[Any]:
    return {
        key for key, entry in seen.view(way, node).items() if entry.kind == kind and entry.bytes
    }


@pytest.mark.parametrize("name", RUNS)
def test_nothing_plain_leaves_a_party_but_what_the_owner_tells(name: str) -> None:
    seen, (groups, _) = watch(name), RUNS[name]
    told = TOLD if name in SPLITS else set()
    assert of_kind(seen, "plain") == told
    assert of_kind(seen, "total") == TOTALS.get(name, set())
    assert of_kind(seen, "sealed") == SEALED.get(name, USUAL)[0] | (
        {("sum-upload", "shares"), ("sum-unmask", "shares")} & of_kind(seen, "sealed")
    )
    nodes = sorted({node for way, node, *_ in seen.seen if way == "up"})
    for k, node in enumerate(nodes):
        kinds = {entry.kind for entry in seen.view("up", node).values() if entry.bytes}
        owner = k == USERS + groups
        assert ("plain" in kinds) == owner
        assert ("total" in kinds) == (bool(TOTALS.get(name)) and k == USERS)
        rest = kinds - SECRET_FREE - {"plain", "total"}
        assert rest <= {"masked", "sealed", "commitment", "share"}
        assert k >= USERS or "masked" in rest
    for way in ("up", "down"):
        for key, entry in seen.view(way).items():  # type: ignore[arg-type]
            if entry.uniform is not None:
                assert entry.uniform > UNIFORM, key
    assert seen.view("up")["sum-upload", "masked"].uniform is not None
    json.dumps(seen.to_dict())


@pytest.mark.parametrize("name", RUNS)
def test_what_parties_get_of_others_is_sealed_or_padded(name: str) -> None:
    seen, (groups, options) = watch(name, rounds=6), RUNS[name]
    sealed = SEALED.get(name, USUAL)[1]
    assert of_kind(seen, "sealed", "down") - {("sum-unmask", "shares")} == sealed
    layers = options.get("architecture", "hierarchical") == "hierarchical"
    nodes = sorted({node for way, node, *_ in seen.seen if way == "down"})
    for k, node in enumerate(nodes):
        kinds = {entry.kind for entry in seen.view("down", node).values() if entry.bytes}
        rest = kinds - {"control", "public", "key"}
        assert ("masked" in rest) == (k >= USERS)  # totals for agents and owner
        assert ("matching" in rest) == (name in SPLITS and not USERS <= k < USERS + groups)
        assert ("sealed" in rest) or k >= USERS or not sealed
    assert bool(of_kind(seen, "masked", "down")) == layers


# -- mutations that must be seen


def kinds(end: str) -> list[Any]:
    """Return the messages of the method whose names end so."""
    found = [kind for name, kind in vars(wire).items() if name.endswith(end)]
    return [kind for kind in found if kind.phase]


def test_fields_that_are_not_declared_count_as_plain() -> None:
    """So that what is added to a reply is noticed: this is all that may be plain."""
    plain = set()
    replies = kinds("Reply")
    assert len(replies) >= 13
    for reply in replies:
        for field in fields(reply):
            if audit._kind("up", reply.phase, field.name) == "plain":
                plain.add((reply.phase, field.name))
    assert plain == TOLD
    assert audit._kind("up", "svm-local", "model") == "plain"


def test_bytes_in_requests_are_sealed() -> None:
    """Whatever is passed on from another party."""
    requests = kinds("Request")
    found = {
        (request.phase, field.name)
        for request in requests
        for field in fields(request)
        if field.type == "bytes" or field.metadata.get("dtype") == "byte"
    }
    assert len(found) >= 6
    for phase, name in found:
        assert audit._kind("down", phase, name) == "sealed", (phase, name)
    assert audit._kind("down", "svm-local", "message") == "control"  # Flower's own


@pytest.mark.parametrize("name", ["two groups", "vertical"])
def test_masks_that_are_none_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(party_module, "add_streams", lambda *a, **o: None)
    monkeypatch.setattr(running_sum, "add_streams", lambda *a, **o: None)
    seen = watch(name)
    assert seen.view("up")["sum-upload", "masked"].uniform < NOT_UNIFORM
    assert seen.view("down")["sum-delivery", "padded"].uniform < NOT_UNIFORM


@pytest.mark.parametrize("name", ["two groups", "ring", "chain", "vertical", "orthogonal"])
def test_messages_that_are_not_sealed_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros take the place of nonce and tag, as sizes are fixed."""

    def bare(secret: bytes, plain: bytes, *place: Any) -> bytes:
        return bytes(28) + plain

    def read(secret: bytes, sealed: bytes, *place: Any) -> bytes:
        return sealed[28:]

    monkeypatch.setattr(svm_node, "seal_message", bare)
    monkeypatch.setattr(svm_node, "unseal_message", read)
    seen = watch(name)
    for way, keys in zip(("up", "down"), SEALED.get(name, USUAL), strict=True):
        tested = 0
        for key in keys:
            p = seen.view(way)[key].uniform  # type: ignore[index]
            assert p is None or p < NOT_UNIFORM, key
            tested += p is not None
        assert tested

"""The audit of FedCG: nothing plain leaves a party in a secure run; in others it says what does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context

from fedkern_flwr.clients import HybridKernelClient
from fedkern_flwr.clients import fed_cg_paper as chain_module
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.secure_sum import party as party_module
from fedkern_flwr.secure_sum import running_sum
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Audit, audit
from fedkern_flwr.strategies import FedCG

KEY = b"a key of all parties but the server"
UNIFORM, NOT_UNIFORM = 1e-9, 1e-12  # p-values
SECRET_FREE = {"control", "size", "declared", "pseudonym", "key", "masked", "commitment"}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "cg": {"solver": "cg"},
    "cg from a random start": {"solver": "cg", "init": "random", "preconditioner_rank": 0},
    "rkhs": {"penalty": "rkhs"},
    "normal landmarks": {"sampling": "N"},
    "a width per landmark": {"landmark_gamma": True},
    "laplacian": {"kernel": "laplacian"},
}


def serve(
    hospitals: int, centres: int, protocol: str, *, single: bool = False
) -> Callable[[Context], HybridKernelClient]:
    """Clients of a random table: two features at each party."""
    rng = np.random.default_rng(0)
    many = 60 * hospitals
    x, y = rng.random((many, 2 + 2 * centres)), rng.integers(0, 2, many).astype(float)

    def client_fn(context: Context) -> HybridKernelClient:
        k = int(context.node_config["partition-id"])
        common: dict[str, Any] = {"alignment_key": KEY, "protocol": protocol}
        common["allow_single"] = single
        if k >= hospitals:
            first = 2 * (k - hospitals) + 2
            return HybridKernelClient(context, x[:, first : first + 2], ids=range(many), **common)
        rows = np.arange(60 * k, 60 * k + 60)
        train, test = rows[:45], rows[45:]
        held_out = {"x_test": x[test, :2], "y_test": y[test], "ids_test": test}
        options = {"ids": train, "classes": (0, 1), **held_out, **common}
        return HybridKernelClient(context, x[train, :2], y[train], **options)

    return client_fn


def watch(
    hospitals: int = 3,
    centres: int = 2,
    protocol: str = "secure",
    *,
    single: bool = False,
    **more: Any,
) -> Audit:
    seen = Audit()
    options = {"landmarks": 20, "gamma": 1.0, "protocol": protocol, "allow_single": single, **more}
    client_fn = serve(hospitals, centres, protocol, single=single)
    simulate(FedCG(**options), client_fn, hospitals + centres, audit=seen)
    return seen


def of_kind(seen: Audit, kind: str, direction: Any = "up") -> set[tuple[str, str]]:
    return {key for key, entry in seen.view(direction).items() if entry.kind == kind}


# -- secure


@pytest.mark.parametrize("name", OPTIONS)
def test_nothing_plain_leaves_a_party_in_a_secure_run(name: str) -> None:
    seen = watch(**OPTIONS[name])
    sealed = {"sealed"}  # three hospitals share their block's secret
    assert seen.kinds("up") == SECRET_FREE | sealed
    for node in range(1000, 1005):
        assert seen.kinds("up", node) <= SECRET_FREE | sealed
    for way in ("up", "down"):
        for key, entry in seen.view(way).items():
            if entry.uniform is not None:
                assert entry.uniform > UNIFORM, key
    assert seen.view("up")["sum-upload", "masked"].uniform is not None
    assert seen.view("down")["sum-delivery", "padded"].uniform is not None
    json.dumps(seen.to_dict())


def test_what_each_party_is_shown_in_a_secure_run() -> None:
    seen = watch()
    for node in (1000, 1001, 1002):  # hospitals
        expected = {"control", "public", "key", "matching", "masked"}
        assert seen.kinds("down", node) - {"sealed"} == expected
    for node in (1003, 1004):  # centres
        assert seen.kinds("down", node) == {"control", "public", "key", "matching"}
    assert of_kind(seen, "matching", "down") == {
        ("hybrid-moments", "rows"),
        ("hybrid-distances", "rows"),
    }


def test_what_the_server_reads_of_a_secure_run() -> None:
    rows = watch().to_dict()["server"]
    by_kind: dict[str, set[str]] = {}
    for row in rows:
        by_kind.setdefault(row["kind"], set()).add(row["field"])
    assert by_kind["pseudonym"] == {"ids"}
    assert by_kind["commitment"] == {"commitments", "fingerprint"}
    assert by_kind["masked"] == {"masked"}
    assert by_kind["sealed"] == {"sealed"}
    assert by_kind["size"] == {"rows", "features", "test_rows", "columns", "binary"}
    assert by_kind["declared"] == {
        "block",
        "seeded",
        "square_bound",
        "absolute_bound",
        "outputs",
        "classes",
        "labels",
        "label_bound",
        "labelled",
        "allow_single",
    }


def test_the_only_hospital_is_plain() -> None:
    """Where both sides allow it: its own sums. Its distances to two centres are masked."""
    seen = watch(1, 2, single=True)
    assert of_kind(seen, "plain") == {
        ("hybrid-equations", "plain"),
        ("hybrid-coefficients", "plain"),
    }
    assert "plain" not in seen.kinds("up", 1001) | seen.kinds("up", 1002)
    cg = watch(1, 2, single=True, solver="cg")
    assert of_kind(cg, "plain") == {("hybrid-product", "plain"), ("hybrid-coefficients", "plain")}


# -- the paper's protocols


def test_naive_is_plain() -> None:
    seen = watch(protocol="naive")
    assert of_kind(seen, "plain") == {
        ("hybrid-blocks", "targets"),
        ("hybrid-blocks", "blocks"),
        ("hybrid-coefficients", "plain"),
    }
    for centre in (1003, 1004):
        view = seen.view("up", centre)
        assert view["hybrid-blocks", "blocks"].bytes == 8 * 20 * 180
        assert ("hybrid-blocks", "targets") not in view  # it has none
    assert seen.view("up")["hybrid-blocks", "targets"].bytes == 8 * 3 * 45
    assert of_kind(seen, "own", "down") == {("hybrid-coefficients", "predictions")}


def test_naive_with_normal_landmarks_shows_moments_too() -> None:
    seen = watch(protocol="naive", sampling="N")
    assert ("hybrid-moments", "plain") in of_kind(seen, "plain")


def test_chain_is_sealed_but_at_the_end_of_the_way() -> None:
    """Matrices go from party to party; what the last one sums up is for the server to read."""
    seen = watch(protocol="chain", regularization=1.0)
    assert of_kind(seen, "plain") == {
        ("hybrid-chain", "residual"),
        ("hybrid-chain", "sent to the server"),
        ("hybrid-coefficients", "plain"),
    }
    up = seen.view("up")
    assert up["hybrid-chain", "sent"].kind == "sealed"
    assert up["hybrid-chain", "sent to the server"].bytes % (8 * 20) == 0
    assert up["hybrid-chain", "residual"].bytes == 8 * 3 * 45
    for way, field in (("up", "sent"), ("down", "received")):
        entry = seen.view(way)["hybrid-chain", field]  # type: ignore[arg-type]
        assert entry.uniform is not None
        assert entry.uniform > UNIFORM
    first = seen.view("up", 1003)  # the way back ends at the first centre
    assert ("hybrid-chain", "sent to the server") in first
    assert ("hybrid-chain", "sent to the server") not in seen.view("up", 1004)
    for hospital in (1000, 1001, 1002):
        assert ("hybrid-chain", "sent to the server") not in seen.view("up", hospital)


def test_a_chain_of_one_party_sends_its_product_to_the_server() -> None:
    seen = watch(2, 0, protocol="chain", regularization=1.0)
    assert ("hybrid-chain", "sent") not in seen.view("up")
    assert ("hybrid-chain", "sent to the server") in of_kind(seen, "plain")


# -- mutations that must be seen


def test_fields_that_are_not_declared_count_as_plain() -> None:
    """So that what is added to a reply is noticed: this is all that may be plain."""
    plain = set()
    replies = [reply for name, reply in vars(wire).items() if name.endswith("Reply")]
    for reply in replies:
        for field in fields(reply) if reply.phase else ():
            if audit._kind("up", reply.phase, field.name) == "plain":
                plain.add((reply.phase, field.name))
    assert plain == {
        ("hybrid-moments", "plain"),
        ("hybrid-blocks", "targets"),
        ("hybrid-blocks", "blocks"),
        ("hybrid-equations", "plain"),
        ("hybrid-product", "plain"),
        ("hybrid-coefficients", "plain"),
        ("hybrid-chain", "residual"),
    }
    assert audit._kind("up", "hybrid-distances", "distances") == "plain"


def test_masks_that_are_none_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(party_module, "add_streams", lambda *a, **o: None)
    monkeypatch.setattr(running_sum, "add_streams", lambda *a, **o: None)
    seen = watch()
    assert seen.view("up")["sum-upload", "masked"].uniform < NOT_UNIFORM
    assert seen.view("down")["sum-delivery", "padded"].uniform < NOT_UNIFORM


def test_a_pad_that_is_none_is_seen_in_the_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The uploads stay uniform: each carries masks with the other parties."""
    pads: set[bytes] = set()
    add_streams, token_bytes = party_module.add_streams, party_module.secrets.token_bytes

    def draw(size: int) -> bytes:
        pad = token_bytes(size)
        pads.add(pad)
        return pad

    def without_pads(target: Any, streams: Any, **options: Any) -> None:
        add_streams(target, [s for s in streams if s[0] not in pads], **options)

    monkeypatch.setattr(party_module, "secrets", SimpleNamespace(token_bytes=draw))
    monkeypatch.setattr(party_module, "add_streams", without_pads)
    seen = watch()
    assert seen.view("up")["sum-upload", "masked"].uniform > UNIFORM
    assert seen.view("down")["sum-delivery", "padded"].uniform < NOT_UNIFORM


def test_a_chain_that_is_not_sealed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bare matrices are plain; bytes that only look sealed are not uniform."""
    monkeypatch.setattr(chain_module, "seal_message", lambda secret, plain, *place: plain)
    monkeypatch.setattr(chain_module, "unseal_message", lambda secret, sealed, *place: sealed)
    bare = watch(protocol="chain", regularization=1.0)
    assert ("hybrid-chain", "sent") not in bare.view("up")
    assert bare.view("up")["hybrid-chain", "sent to the server"].bytes > 8 * 20 * 45
    padding = bytes(28)
    monkeypatch.setattr(chain_module, "seal_message", lambda secret, plain, *place: padding + plain)
    monkeypatch.setattr(chain_module, "unseal_message", lambda secret, sealed, *place: sealed[28:])
    padded = watch(protocol="chain", regularization=1.0)
    assert padded.view("up")["hybrid-chain", "sent"].uniform < NOT_UNIFORM

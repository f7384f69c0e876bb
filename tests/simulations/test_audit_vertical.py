"""The audit of FDSKL: what leaves a party is masked or sealed, but for what the server is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context

from fedkern_flwr.clients import VerticalKernelClient
from fedkern_flwr.clients import fdskl_paper as trees_module
from fedkern_flwr.secure_sum import party as party_module
from fedkern_flwr.secure_sum import running_sum
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Audit, audit
from fedkern_flwr.strategies import FDSKL
from fedkern_flwr.vertical import messages as wire

KEY = b"a key of all parties but the server"
UNIFORM, NOT_UNIFORM = 1e-9, 1e-12  # p-values
ROWS, HELD, PARTIES = 90, 60, 4
SECRET_FREE = {"control", "size", "declared", "pseudonym", "key", "commitment"}
STREAMING: dict[str, Any] = {"schedule": "streaming", "directions": 4, "batch": 8}
FIXED: dict[str, Any] = {"gamma": 1.0, "regularization": 0.01}  # no cross-validation
#: Number of active parties, and options.
RUNS: dict[str, tuple[int, dict[str, Any]]] = {
    "one-shot": (1, FIXED),
    "one-shot, cross-validated": (1, {"loss": "square"}),
    "one-shot, logistic": (1, {**FIXED, "loss": "logistic"}),
    "one-shot, 32 bits": (1, {**FIXED, "phase_bits": 32}),
    "one-shot, laplacian": (1, {**FIXED, "kernel": "laplacian"}),
    "streaming": (1, STREAMING),
    "streaming, judged on the way": (1, {**STREAMING, "evaluate_every": 5}),
    "two active": (2, STREAMING),
    "shared": (1, {**FIXED, "frequencies": "shared"}),
    "tree": (1, {**FIXED, "topology": "tree"}),
    "streaming tree": (2, {**STREAMING, "topology": "tree"}),
}
STARS = [name for name in RUNS if "tree" not in name]
#: What the server is told of the active party's work.
TOLD = {
    "one-shot": {("vertical-train", f) for f in ("multiple", "regularization", "score", "counts")},
    "streaming": {("vertical-outcome", "counts")},
}


def serve(actives: int, **more: Any) -> Callable[[Context], VerticalKernelClient]:
    """Clients of a random table: two features at each party."""
    rng = np.random.default_rng(0)
    x, y = rng.random((ROWS, 2 * PARTIES)), rng.integers(0, 2, ROWS).astype(float)

    def client_fn(context: Context) -> VerticalKernelClient:
        k = int(context.node_config["partition-id"])
        own, rows = x[:, 2 * k : 2 * k + 2], np.arange(ROWS)
        common: dict[str, Any] = {"alignment_key": KEY, "frequency_seed": bytes([k]) * 32, **more}
        if k >= actives:
            return VerticalKernelClient(context, own, ids=rows, **common)
        test = rows[(rows >= HELD) & (rows % actives == k)]
        train = np.setdiff1d(rows, test)
        labels = np.where((train < HELD) & (train % actives == k), y[train], np.nan)
        held_out = {"x_test": own[test], "y_test": y[test], "ids_test": test}
        options = {"ids": train, "classes": (0, 1), **held_out, **common}
        return VerticalKernelClient(context, own[train], labels, **options)

    return client_fn


def watch(name: str = "one-shot", **more: Any) -> Audit:
    actives, options = RUNS[name][0], {**RUNS[name][1], **more}
    seen = Audit()
    mode = {k: v for k, v in options.items() if k in ("frequencies", "topology")}
    options = options if "schedule" in options else {"features": 40, **options}
    simulate(FDSKL(**options), serve(actives, **mode), PARTIES, audit=seen, num_rounds=12)
    return seen


def of_kind(seen: Audit, kind: str, way: Any = "up", node: int | None = None) -> set[Any]:
    return {
        key for key, entry in seen.view(way, node).items() if entry.kind == kind and entry.bytes
    }


@pytest.mark.parametrize("name", RUNS)
def test_nothing_plain_leaves_a_party_but_what_the_server_is_told(name: str) -> None:
    seen, actives = watch(name), RUNS[name][0]
    told = TOLD[RUNS[name][1].get("schedule", "one-shot")]
    hidden = ("vertical-hops", "sealed") if "tree" in name else ("sum-upload", "masked")
    assert of_kind(seen, "plain") == told
    for k in range(PARTIES):
        kinds = {entry.kind for entry in seen.view("up", 1000 + k).values() if entry.bytes}
        node = 1000 + k
        assert of_kind(seen, "plain", "up", node) == (told if k < actives else set())
        assert kinds - {"plain"} <= SECRET_FREE | {"masked", "sealed"}
    for way in ("up", "down"):
        for key, entry in seen.view(way).items():
            if entry.uniform is not None:
                assert entry.uniform > UNIFORM, key
    assert seen.view("up")[hidden].uniform is not None
    json.dumps(seen.to_dict())


@pytest.mark.parametrize("name", RUNS)
def test_phases_reach_active_parties_only(name: str) -> None:
    seen, actives = watch(name), RUNS[name][0]
    for k in range(PARTIES):
        shown = {entry.kind for entry in seen.view("down", 1000 + k).values() if entry.bytes}
        assert {"control", "public", "key", "matching"} <= shown
        rest = shown - {"control", "public", "key", "matching"}
        if name in STARS:
            assert rest == ({"masked"} if k < actives else set())
        else:  # values under real-valued masks pass the parties of a tree
            assert rest <= {"sealed", "masked"}
            assert ("sealed" in rest) or k >= actives
    delivered = seen.view("down")
    if name in STARS:
        assert delivered["sum-delivery", "padded"].uniform is not None
    assert of_kind(seen, "matching", "down") >= {
        ("vertical-hops" if "tree" in name else "vertical-step", "rows")
    }


def test_the_number_of_bytes_is_that_of_the_phases() -> None:
    """One-shot: each party sends 2 bytes per row and direction; the active one gets as many."""
    for name, width in (("one-shot", 2), ("one-shot, 32 bits", 4)):
        seen = watch(name)
        for node in range(1000, 1000 + PARTIES):
            assert seen.view("up", node)["sum-upload", "masked"].bytes == width * ROWS * 40
        assert seen.view("down")["sum-delivery", "padded"].bytes == width * ROWS * 40


def test_what_the_server_reads() -> None:
    by_kind: dict[str, set[str]] = {}
    for row in watch().to_dict()["server"]:
        by_kind.setdefault(row["kind"], set()).add(row["field"])
    assert by_kind["pseudonym"] == {"ids"}
    assert by_kind["masked"] == {"masked"}
    assert by_kind["size"] == {"rows", "features", "test_rows", "others", "columns", "binary"}
    assert by_kind["declared"] == {
        "outputs",
        "classes",
        "labels",
        "label_bound",
        "labelled",
        "named",
        "allow_single",
    }


# -- mutations that must be seen


def test_fields_that_are_not_declared_count_as_plain() -> None:
    """So that what is added to a reply is noticed: this is all that may be plain."""
    plain = set()
    replies = [getattr(wire, name) for name in vars(wire) if name.endswith("Reply")]
    assert len(replies) >= 5
    for reply in replies:
        for field in fields(reply):
            if audit._kind("up", reply.phase, field.name) == "plain":
                plain.add((reply.phase, field.name))
    assert plain - TOLD["one-shot"] == TOLD["streaming"]
    assert audit._kind("up", "vertical-step", "phases") == "plain"


@pytest.mark.parametrize("name", ["one-shot", "two active"])
def test_masks_that_are_none_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Angles of many rows look random themselves; in a wide kernel all rows have the same."""
    monkeypatch.setattr(party_module, "add_streams", lambda *a, **o: None)
    monkeypatch.setattr(running_sum, "add_streams", lambda *a, **o: None)
    seen = watch(name, gamma=1e-12)
    assert seen.view("up")["sum-upload", "masked"].uniform < NOT_UNIFORM


def test_a_pad_that_is_none_is_seen_in_the_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads stay uniform: each carries masks with the other parties."""
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
    seen = watch(gamma=1e-12)
    assert seen.view("up")["sum-upload", "masked"].uniform > UNIFORM
    assert seen.view("down")["sum-delivery", "padded"].uniform < NOT_UNIFORM


def test_hops_that_are_not_sealed_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees_module, "seal_message", lambda secret, plain, *place: plain)
    monkeypatch.setattr(trees_module, "unseal_message", lambda secret, sealed, *place: sealed)
    seen = watch("tree")
    assert seen.view("up")["vertical-hops", "sealed"].uniform < NOT_UNIFORM
    assert seen.view("down")["vertical-hops", "received"].uniform < NOT_UNIFORM

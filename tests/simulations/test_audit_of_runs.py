"""The audit of runs: what leaves a party is masked or sealed, but for what the server is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from scipy.special import chdtrc

from fedkern_flwr.clients import (
    HybridKernelClient,
    SVMClient,
    VerticalKernelClient,
    hierarchical_node,
)
from fedkern_flwr.groups import messages as groups
from fedkern_flwr.hybrid import messages as hybrid
from fedkern_flwr.secure_sum import party as party_module
from fedkern_flwr.secure_sum import running_sum
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Audit, audit
from fedkern_flwr.strategies import FDSKL, FedCG, HierarchicalSVM
from fedkern_flwr.vertical import messages as vertical

KEY = b"a key of all parties but the server"
UNIFORM, NOT_UNIFORM = 1e-9, 1e-12  # p-values
SECRET_FREE = {"control", "size", "declared", "pseudonym", "key", "commitment"}
ROWS, HELD, PARTIES, USERS = 90, 60, 4, 6

Names = Collection[tuple[str, str]]


@dataclass(frozen=True)
class Case:
    """A run, and who is told what in it.

    Attributes
    ----------
    start : callable
        Makes strategy, ``client_fn``, number of nodes and most rounds; takes more options.
    told, tellers
        Fields that the server reads in plain, and the nodes that tell them.
    totals : names
        What one party opens for the server.
    sent, received : names
        Fields that are sealed on their way up and down, but for shares of masks.
    opening, matched : collection of int
        Nodes that get a total of others, and nodes that are told which rows belong together.
    hidden : name
        What is tested to be uniform.
    """

    start: Callable[..., tuple[Any, Callable[[Context], Any], int, int | None]]
    told: Names = ()
    tellers: Collection[int] = ()
    totals: Names = ()
    sent: Names = ()
    received: Names = ()
    opening: Collection[int] = ()
    matched: Collection[int] = ()
    hidden: tuple[str, str] = ("sum-upload", "masked")


# -- FedCG: hospitals with rows, centres with columns


def fed_cg(hospitals: int = 3, centres: int = 2, **more: Any) -> Any:
    """A random table: two features at each party."""
    options = {"landmarks": 20, "gamma": 1.0, "allow_single": False, **more}
    rng = np.random.default_rng(0)
    many = 60 * hospitals
    x, y = rng.random((many, 2 + 2 * centres)), rng.integers(0, 2, many).astype(float)
    common: dict[str, Any] = {"allow_single": options["allow_single"], "alignment_key": KEY}

    def client_fn(context: Context) -> HybridKernelClient:
        k = int(context.node_config["partition-id"])
        if k >= hospitals:
            first = 2 * (k - hospitals) + 2
            return HybridKernelClient(context, x[:, first : first + 2], ids=range(many), **common)
        train, test = np.split(np.arange(60 * k, 60 * k + 60), [45])
        held_out = {"x_test": x[test, :2], "y_test": y[test], "ids_test": test}
        own = {"ids": train, "classes": (0, 1), **held_out, **common}
        return HybridKernelClient(context, x[train, :2], y[train], **own)

    return FedCG(**options), client_fn, hospitals + centres, None


# -- FDSKL: parties with columns of the same rows, the first ones with labels

STREAMING: dict[str, Any] = {"schedule": "streaming", "directions": 4, "batch": 8}
ONE_SHOT: dict[str, Any] = {"features": 40, "gamma": 1.0, "regularization": 0.01}


def fdskl(actives: int = 1, **options: Any) -> Any:
    """A random table: two features at each party."""
    rng = np.random.default_rng(0)
    x, y = rng.random((ROWS, 2 * PARTIES)), rng.integers(0, 2, ROWS).astype(float)

    def client_fn(context: Context) -> VerticalKernelClient:
        k = int(context.node_config["partition-id"])
        own, rows = x[:, 2 * k : 2 * k + 2], np.arange(ROWS)
        common: dict[str, Any] = {"alignment_key": KEY, "frequency_seed": bytes([k]) * 32}
        if k >= actives:
            return VerticalKernelClient(context, own, ids=rows, **common)
        test = rows[(rows >= HELD) & (rows % actives == k)]
        train = np.setdiff1d(rows, test)
        labels = np.where((train < HELD) & (train % actives == k), y[train], np.nan)
        held_out = {"x_test": own[test], "y_test": y[test], "ids_test": test}
        given = {"ids": train, "classes": (0, 1), **held_out, **common}
        return VerticalKernelClient(context, own[train], labels, **given)

    return FDSKL(**options), client_fn, PARTIES, 12


# -- HierarchicalSVM: users in groups, an agent each, an owner of the labels


def svm(many: int = 2, **options: Any) -> Any:
    """A random table: six users, four features at each, or two columns at each group."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    y = np.where(x[:, 0] + rng.normal(size=60) > 0.0, 1.0, -1.0)
    layers = options.get("architecture", "hierarchical") == "hierarchical"
    split = options.get("partition") == "vertical"

    def client_fn(context: Context) -> SVMClient:
        k = int(context.node_config["partition-id"])
        if k >= USERS + many:
            common: dict[str, Any] = {"ids": np.arange(50), "ids_test": np.arange(50, 60)}
            labels = {"y": y[:50], "y_test": y[50:], "classes": [-1, 1], "alignment_key": KEY}
            return SVMClient(context, role="owner", **common, **labels)
        if k >= USERS:
            return SVMClient(context, role="agent", group=k - USERS)
        if not split:
            mine, held = slice(8 * k, 8 * k + 8), slice(48 + 2 * k, 50 + 2 * k)
            own: dict[str, Any] = {"x_test": x[held], "y_test": y[held], "classes": [-1, 1]}
            return SVMClient(context, x[mine], y[mine], group=k * many // USERS, **own)
        group, j = divmod(k, USERS // many)
        columns, learned = x[:, 2 * group : 2 * group + 2], np.arange(j, 50, USERS // many)
        tests = np.arange(50 + j, 60, USERS // many)
        own = {"x_test": columns[tests], "ids_test": tests, "alignment_key": KEY}
        return SVMClient(context, columns[learned], ids=learned, group=group, **own)

    steps = {"tolerance": 1e-9 if split else 1e-12, **({} if split else {"rho": 2.0})}
    nodes = USERS + (many if layers else 0) + split
    return HierarchicalSVM(**steps, **options), client_fn, nodes, 16


def names(phase: str, *of: str) -> set[tuple[str, str]]:
    return {(phase, name) for name in of}


FED_CG = Case(
    fed_cg,
    sent=names("hybrid-moments", "sealed"),  # three hospitals share their block's secret
    received=names("hybrid-distances", "sealed_seed"),
    opening=range(3),
    matched=range(5),
)
TRAINED = names("vertical-train", "multiple", "regularization", "score", "counts")
COUNTED = names("vertical-outcome", "counts")
OWNED = names("svm-owner", "objective", "bound", "counts")
PADS = {"sent": names("svm-combine", "sealed"), "received": names("svm-step", "sealed")}
VISITS = {
    "sent": names("svm-block", "sealed") | names("svm-owner", "sealed"),
    "received": names("svm-visit", "coordinates", "message", "weights"),
}


def party_run(told: Names, actives: int = 1, **options: Any) -> Case:
    """A run of FDSKL."""
    own, start = range(actives), partial(fdskl, actives, **options)
    return Case(start, told, tellers=own, opening=own, matched=range(PARTIES))


def group_run(many: int, paths: dict[str, Any] = PADS, *, told: Names = (), **more: Any) -> Case:
    """A run of HierarchicalSVM."""
    layers = more.get("architecture", "hierarchical") == "hierarchical"
    totals = more.pop("totals", ())
    agents, owner = range(USERS, USERS + many * layers), [USERS + many] if told else []
    opening = [*agents, *owner]
    matched = [*range(USERS), *owner] if told else []
    start = partial(svm, many, **more)
    return Case(start, told, owner, totals, **paths, opening=opening, matched=matched)


SPLIT = {"told": OWNED, "partition": "vertical"}
CASES: dict[str, Case] = {
    "fed-cg": FED_CG,
    "fed-cg, cg": replace(FED_CG, start=partial(fed_cg, solver="cg")),
    "fed-cg, cg from a random start": replace(
        FED_CG, start=partial(fed_cg, solver="cg", init="random", preconditioner_rank=0)
    ),
    "fed-cg, rkhs": replace(FED_CG, start=partial(fed_cg, penalty="rkhs")),
    "fed-cg, normal landmarks": replace(FED_CG, start=partial(fed_cg, sampling="N")),
    "fdskl": party_run(TRAINED, **ONE_SHOT),
    "fdskl, cross-validated": party_run(TRAINED, features=40, loss="square"),
    "fdskl, 32 bits": party_run(TRAINED, **ONE_SHOT, phase_bits=32),
    "fdskl, streaming": party_run(TRAINED, **STREAMING),
    "fdskl, streaming, last iterate": party_run(COUNTED, **STREAMING, step=0.5),
    "fdskl, judged on the way": party_run(TRAINED | COUNTED, **STREAMING, evaluate_every=5),
    "fdskl, two active": party_run(COUNTED, 2, **STREAMING),
    "svm": group_run(2),
    "svm, one group": group_run(1, totals=names("svm-combine", "term")),
    "svm, asynchronous": group_run(3, staleness=1),
    "svm, leave-out": group_run(3, lost_groups="leave-out"),
    "svm, centralised": group_run(1, {}, architecture="centralised"),
    "svm, columns": group_run(2, VISITS, **SPLIT),
}


def watch(start: Callable[..., Any], **changes: Any) -> Audit:
    strategy, client_fn, nodes, rounds = start(**changes)
    seen = Audit()
    simulate(strategy, client_fn, nodes, audit=seen, num_rounds=rounds)
    return seen


@cache
def watched(name: str) -> Audit:
    return watch(CASES[name].start)


def of_kind(seen: Audit, kind: str, way: Any = "up", node: int | None = None) -> set[Any]:
    return {key for key, e in seen.view(way, node).items() if e.kind == kind and e.bytes}


def kinds_of(seen: Audit, way: Any, node: int) -> set[str]:
    return {entry.kind for entry in seen.view(way, node).values() if entry.bytes}


@pytest.mark.parametrize("name", CASES)
def test_nothing_plain_leaves_a_party_but_what_the_server_is_told(name: str) -> None:
    seen, case = watched(name), CASES[name]
    assert of_kind(seen, "plain") == set(case.told)
    assert of_kind(seen, "total") == set(case.totals)
    shares = names("sum-upload", "shares") | names("sum-unmask", "shares")
    assert of_kind(seen, "sealed") - shares == set(case.sent)
    for node in sorted({node for way, node, *_ in seen.seen if way == "up"}):
        told = case.told if node - 1000 in case.tellers else ()
        assert of_kind(seen, "plain", "up", node) == set(told)
        open_sums = {"share"} if name.startswith("svm") else set()  # the others' need everybody
        rest = kinds_of(seen, "up", node) - SECRET_FREE - open_sums - {"plain"}
        total = {"total"} if case.totals and node == 1000 + USERS else set()
        assert total <= rest <= total | {"masked", "sealed"}
    for way in ("up", "down"):
        for key, entry in seen.view(way).items():  # type: ignore[arg-type]
            assert entry.uniform is None or entry.uniform > UNIFORM, key
    assert seen.view("up")[case.hidden].uniform is not None
    json.dumps(seen.to_dict())


@pytest.mark.parametrize("name", CASES)
def test_what_parties_get_of_others_is_sealed_or_padded(name: str) -> None:
    """And who gets none of it: totals are for those whom they belong to."""
    seen, case = watched(name), CASES[name]
    assert of_kind(seen, "sealed", "down") - names("sum-unmask", "shares") == set(case.received)
    for node in sorted({node for way, node, *_ in seen.seen if way == "down"}):
        kinds = kinds_of(seen, "down", node)
        assert kinds <= {"padded", "control", "public", "key", "matching", "masked", "sealed"}
        assert ("masked" in kinds) == (node - 1000 in case.opening)
        assert ("matching" in kinds) == (node - 1000 in case.matched)
        assert "sealed" not in kinds or case.received
        assert "padded" not in kinds or ("svm-step", "sealed") in case.received
    if case.opening and not name.startswith("svm"):  # enough to be tested
        assert seen.view("down")["sum-delivery", "padded"].uniform is not None


def fields_seen(seen: Audit) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in seen.to_dict()["server"]:
        found.setdefault(row["kind"], set()).add(row["field"])
    return found


def test_what_the_server_reads() -> None:
    common = {"outputs", "classes", "labels", "label_bound", "labelled", "allow_single"}
    by_kind = fields_seen(watched("fed-cg"))
    assert by_kind["commitment"] == {"commitments", "fingerprint"}
    assert by_kind["size"] == {"rows", "features", "test_rows", "columns", "binary"}
    bounds = {"block", "seeded", "square_bound", "absolute_bound", "fold_rows", "fold_sum_rows"}
    assert by_kind["declared"] == common | bounds
    by_kind = fields_seen(watched("fdskl"))
    assert by_kind["size"] == {"rows", "features", "test_rows", "others", "columns", "binary"}
    assert by_kind["declared"] == common | {"named"}
    for name in ("fed-cg", "fdskl"):
        by_kind = fields_seen(watched(name))
        assert (by_kind["pseudonym"], by_kind["masked"]) == ({"ids"}, {"masked"})
    matching = of_kind(watched("fed-cg"), "matching", "down")
    assert matching == names("hybrid-moments", "rows") | names("hybrid-distances", "rows")


def test_the_number_of_bytes_is_that_of_the_phases() -> None:
    """One-shot: each party sends 2 bytes per row and direction; the active one gets as many."""
    for name, width in (("fdskl", 2), ("fdskl, 32 bits", 4)):
        seen = watched(name)
        for node in range(1000, 1000 + PARTIES):
            assert seen.view("up", node)["sum-upload", "masked"].bytes == width * ROWS * 40
        assert seen.view("down")["sum-delivery", "padded"].bytes == width * ROWS * 40


def test_the_only_hospital_is_plain() -> None:
    """Where both sides allow it: its own sums. Its distances to two centres are masked."""
    plain = names("hybrid-equations", "plain") | names("hybrid-coefficients", "plain")
    seen = watch(fed_cg, hospitals=1, allow_single=True)
    assert of_kind(seen, "plain") == of_kind(seen, "plain", "up", 1000) == plain
    seen = watch(fed_cg, hospitals=1, allow_single=True, solver="cg")
    plain = names("hybrid-product", "plain") | names("hybrid-coefficients", "plain")
    assert of_kind(seen, "plain") == plain


# -- mutations that must be seen


@pytest.mark.parametrize(
    ("messages", "plain", "undeclared"),
    [
        (
            hybrid,
            {(f"hybrid-{phase}", "plain") for phase in ("equations", "product", "coefficients")},
            ("hybrid-distances", "distances"),
        ),
        (vertical, TRAINED | COUNTED, ("vertical-step", "phases")),
        (groups, OWNED, ("svm-local", "model")),
    ],
    ids=["fed-cg", "fdskl", "svm"],
)
def test_fields_that_are_not_declared_count_as_plain(
    messages: ModuleType, plain: Names, undeclared: tuple[str, str]
) -> None:
    """So that what is added to a reply is noticed: this is all that may be plain.

    What requests pass on from other parties counts as sealed.
    """
    kinds = [kind for kind in vars(messages).values() if getattr(kind, "phase", "")]
    replies = [kind for kind in kinds if kind.__name__.endswith("Reply")]
    requests = [kind for kind in kinds if kind.__name__.endswith("Request")]
    assert len(replies) >= 5
    found = {(reply.phase, each.name) for reply in replies for each in fields(reply)}
    assert {key for key in found if audit._kind("up", *key) == "plain"} == plain
    assert audit._kind("up", *undeclared) == "plain"
    passed = {
        (request.phase, each.name)
        for request in requests
        for each in fields(request)
        if each.type == "bytes" or each.metadata.get("dtype") == "byte"
    }
    assert bool(passed) == (messages is groups)
    assert {audit._kind("down", *key) for key in passed} <= {"sealed"}
    assert audit._kind("down", requests[0].phase, "message") == "control"  # Flower's own


def without_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(party_module, "add_streams", lambda *a, **o: None)
    monkeypatch.setattr(running_sum, "add_streams", lambda *a, **o: None)


#: Angles of many rows look random themselves; in a wide kernel all rows have the same.
WIDE = {"gamma": 1e-12}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fed-cg", {}),
        ("fdskl", WIDE),
        ("fdskl, two active", WIDE),
        ("svm", {}),
        ("svm, columns", {}),
    ],
)
def test_masks_that_are_none_are_seen(
    name: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_masks(monkeypatch)
    seen = watch(CASES[name].start, **changes)
    assert seen.view("up")["sum-upload", "masked"].uniform < NOT_UNIFORM
    if name != "fdskl, two active":
        assert seen.view("down")["sum-delivery", "padded"].uniform < NOT_UNIFORM


@pytest.mark.parametrize(("name", "changes"), [("fed-cg", {}), ("fdskl", WIDE)])
def test_a_pad_that_is_none_is_seen_in_the_totals(
    name: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    seen = watch(CASES[name].start, **changes)
    assert seen.view("up")["sum-upload", "masked"].uniform > UNIFORM
    assert seen.view("down")["sum-delivery", "padded"].uniform < NOT_UNIFORM


@pytest.mark.parametrize(
    "name",
    ["svm", "svm, asynchronous", "svm, columns"],
)
def test_messages_that_are_not_sealed_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros take the place of nonce and tag, as sizes are fixed."""
    node = hierarchical_node
    monkeypatch.setattr(node, "seal_message", lambda secret, plain, *at: bytes(28) + plain)
    monkeypatch.setattr(node, "unseal_message", lambda secret, sealed, *at: sealed[28:])
    seen, case = watch(CASES[name].start), CASES[name]
    for way, keys in (("up", case.sent), ("down", case.received)):
        found = [seen.view(way)[key].uniform for key in keys]  # type: ignore[arg-type]
        tested = [p for p in found if p is not None]
        assert tested
        assert max(tested) < NOT_UNIFORM


def test_the_tail_of_chi_square_is_that_of_scipy() -> None:
    for statistic in (0.0, 1.0, 180.0, 255.0, 400.0, 1e4):
        right = chdtrc(255, statistic)
        assert audit.chi_square_tail(255, statistic) == pytest.approx(right, rel=1e-9, abs=1e-300)

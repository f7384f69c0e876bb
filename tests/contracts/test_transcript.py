"""What passes in a run of any method is masked, sealed, or in the words of ``privacy()``.

An audit counts the kinds of values that the server and each node see. A field that it does not
know counts as plain. That masked and sealed bytes look random is tested; p-values below are those
of a chance in a million runs or less.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from scipy.stats import chisquare
from zoo import WAYS, Found, fit, hospitals, quiet

from fedkern_flwr.simulations import Transcript
from fedkern_flwr.simulations.engines import Audit, AuditingGrid

UNIFORM = 1e-9  # p-value
#: Kind of what the server sees -> words, of which one is in what it is said to see.
KINDS = {
    "size": ("number", "how many"), "pseudonym": ("hashes of ids", "pseudonyms"),
    "declared": ("declares", "who holds which block"), "commitment": ("landmarks", "which"),
    "total": ("sum", "total"),
}  # fmt: skip
#: Field that a party declares -> words.
DECLARED = dict.fromkeys(("fold_rows", "fold_sum_rows"), ("rows of its own and of all in a fold",))
#: Field that the server reads in plain -> words.
FIELDS = {
    "counts": ("counts", "outcomes"), "score": ("score",), "multiple": ("width",),
    "regularization": ("regularization",), "objective": ("objective",), "bound": ("gap",),
    **dict.fromkeys(("total_squared_error", "total_samples"), ("of a simulation each client's",)),
    **dict.fromkeys(("regret", "largest_loss"), ("of a simulation each client's",)),
}  # fmt: skip
#: Who tells such things: parties with labels alone. By method, the argument that they have.
TELLERS = {"fdskl": "y", "hierarchical-svm": "y"}
#: Kinds that tell nothing by themselves: what may be computed from released sums is said in words.
SILENT = {"key", "masked", "sealed", "share", "seed", "control"}
SECURE = [name for name, way in WAYS.items() if way.secure]
SUMS = [name for name in SECURE if name != "align"]  # which has no sums


def told(found: Found, *keys: str) -> str:
    privacy = found.strategy.privacy()
    names = keys or [k for k in privacy if k.endswith(("_see", "_sees")) and k != "server_sees"]
    return " ".join(line for key in names for line in privacy.get(key, []))


def of_kind(audit: Audit, kind: str, way: Any = "up", node: int | None = None) -> set[Any]:
    return {key for key, e in audit.view(way, node).items() if e.kind == kind and e.bytes}


def says_the_same(found: Found, phase: str, field: str) -> bool:
    """Tell whether all nodes send the same in a field, which then tells nothing of any."""
    assert found.transcript is not None
    entries = found.transcript.entries(phase=phase, direction="up")
    values = [(entry.group, str(entry.scalars.get(field))) for entry in entries]
    return len(values) > len(set(values)) == len({group for group, _ in values})


@pytest.mark.promise("transcript-said")
@pytest.mark.parametrize("name", SECURE)
def test_what_the_server_sees_is_said(name: str) -> None:
    """And what is said of pseudonyms and declarations is seen."""
    found, kinds = quiet(name), set()
    text = told(found, "server_sees")
    for (phase, field), entry in found.audit.view("up").items():
        if not entry.bytes or (entry.kind == "plain" and says_the_same(found, phase, field)):
            continue
        kinds.add(entry.kind)
        words: Collection[str] = KINDS.get(entry.kind, ())
        if entry.kind == "plain" or field in DECLARED:
            words = (FIELDS | DECLARED)[field]
        assert words or entry.kind in SILENT, (phase, field, entry.kind)
        assert not words or any(word in text for word in words), (phase, field)
    for kind in ("pseudonym",):
        assert (kind in kinds) == any(word in text for word in KINDS[kind])
    label = TELLERS.get(WAYS[name].method)
    for k, table in enumerate(found.sites.tables if label else []):
        if label not in table or table.get("role", "owner") != "owner":
            assert not of_kind(found.audit, "plain", "up", 1000 + k)
    json.dumps(found.audit.to_dict())


@pytest.mark.promise("transcript-masked", "transcript-nodes")
@pytest.mark.parametrize("name", SECURE)
def test_what_is_masked_and_sealed_looks_random(name: str) -> None:
    found = quiet(name)
    kinds = {entry.kind for entry in found.audit.view("up").values() if entry.bytes}
    assert kinds & {"masked", "sealed"}
    for way in ("up", "down"):
        for key, entry in found.audit.view(way).items():  # type: ignore[arg-type]
            assert entry.uniform is None or entry.uniform > UNIFORM, key


def test_enough_is_tested() -> None:
    """Uploads, totals that parties get, and what they seal for each other, of each method."""
    tested = {
        (WAYS[name].method, *key)
        for name in SECURE
        for way in ("up", "down")
        for key, entry in quiet(name).audit.view(way).items()  # type: ignore[arg-type]
        if entry.uniform is not None
    }
    for method in ("pof-mkl", "fed-cg", "fdskl", "hierarchical-svm", "kernel-pca"):
        assert (method, "sum-upload", "masked") in tested
    for method in ("fed-cg", "fdskl", "hierarchical-svm"):
        assert (method, "sum-delivery", "padded") in tested
    for key in (
        ("svm-combine", "sealed"), ("svm-step", "sealed"), ("svm-visit", "message"),
        ("svm-block", "sealed"),
    ):  # fmt: skip
        assert ("hierarchical-svm", *key) in tested
    assert ("align", "align-hop", "sealed") in tested


@pytest.mark.promise("transcript-nodes")
@pytest.mark.parametrize("name", SUMS)
def test_what_nodes_get_of_others_is_sealed_or_said(name: str) -> None:
    found = quiet(name)
    text, every = told(found), told(found, "everybody_sees")
    assert "with how many rows" in every  # on the roster
    for k, table in enumerate(found.sites.tables):
        kinds = {e.kind for e in found.audit.view("down", 1000 + k).values() if e.bytes}
        assert kinds <= {"padded", "control", "public", "key", "matching", "masked", "sealed"}
        if "matching" in kinds:
            assert any(word in text for word in ("which of", "its rows"))
        if "padded" in kinds:
            assert "its group's sum" in told(found, "user_sees")
        # totals are for those whom they belong to: hospitals, parties with labels, agents
        joined = any("y" not in table for table in found.sites.tables)  # with columns of others
        opens = {"fed-cg": "y" in table and joined, "fdskl": "y" in table}
        opens["hierarchical-svm"] = table.get("role") in ("agent", "owner")
        assert ("masked" in kinds) == opens.get(WAYS[name].method, False)
    seen = of_kind(found.audit, "sealed", "down") - {("sum-unmask", "shares")}
    assert not seen or WAYS[name].method in ("hierarchical-svm", "fed-cg")


@pytest.mark.parametrize("name", [name for name in WAYS if name not in SECURE])
def test_a_run_in_plain_says_so(name: str) -> None:
    found = quiet(name)
    assert found.strategy.privacy()["protocol"] == "plain"
    assert of_kind(found.audit, "plain")
    assert not of_kind(found.audit, "masked")


# -- what defaults show


def test_the_server_is_shown_who_seals_and_opens_sums_of_all_only() -> None:
    """Of FedCG by default: two hospitals' sums would be those of single ones."""
    privacy = quiet("fed-cg").strategy.privacy()
    assert {entry["name"] for entry in privacy["sums"]} == {"equations", "outcomes"}
    assert {cohort["parties"] for cohort in privacy["cohorts"]} == {3}
    kept = of_kind(quiet("fed-cg").audit, "sealed", "up") - {("sum-upload", "shares")}
    assert kept == set()  # in the zoo all holders of a block know its secret
    seen = Audit()
    fit("fed-cg", start={"audit": seen}, client={"landmark_seed": None})
    assert of_kind(seen, "sealed", "down") == {("hybrid-distances", "sealed_seed")}
    assert seen.view("up")["hybrid-moments", "sealed"].bytes > 0


def test_the_server_learns_how_many_rows_a_class_has_where_classes_are_weighted_only() -> None:
    lengths = []
    for name in ("hierarchical-svm, centralised", "hierarchical-svm, balanced"):
        privacy = quiet(name).strategy.privacy()
        lengths += [s["numbers"] for s in privacy["sums"] if s["name"] == "column statistics"]
        assert ("rows of each class" in str(privacy["server_sees"])) == name.endswith("balanced")
    assert lengths[1] == lengths[0] + 1  # one number for two classes


@pytest.mark.parametrize(("solver", "phase"), [("auto", "equations"), ("cg", "product")])
def test_the_only_hospital_is_plain_where_both_sides_allow_it(solver: Any, phase: str) -> None:
    """Its own sums. Its distances to two centres are masked."""
    sites = WAYS["fed-cg"].sites(allow_single=True)
    sites.tables, seen = hospitals(count=1), Audit()
    sites.fit(solver=solver, allow_single=True, start={"audit": seen})
    plain = {(f"hybrid-{phase}", "plain"), ("hybrid-coefficients", "plain")}
    assert of_kind(seen, "plain") == of_kind(seen, "plain", "up", 1000) == plain


@pytest.mark.parametrize(("bits", "width"), [(16, 2), (32, 4)])
def test_phases_of_columns_are_all_that_a_party_sends(bits: Any, width: int) -> None:
    """Of FDSKL: so many bytes for each row and direction, and the active one gets as many."""
    seen = Audit()
    fit("fdskl", phase_bits=bits, start={"audit": seen})
    for node in range(1000, 1004):
        assert seen.view("up", node)["sum-upload", "masked"].bytes == width * 60 * 16
    assert seen.view("down")["sum-delivery", "padded"].bytes == width * 60 * 16


@pytest.mark.parametrize("name", ["pof-mkl", "pof-rls", "fed-cg", "fdskl", "hierarchical-svm"])
def test_predictions_of_new_rows_are_in_no_reply(name: str) -> None:
    """Nodes predict with a saved model, and tell the server how many rows they did."""
    sites = WAYS[name].sites(**({"keep_weights": True} if name.startswith("pof") else {}))
    found, seen = sites.fit(), Audit()
    arrays, meta = found.strategy.model()
    again = type(found.strategy).of_model(meta)
    model = {"meta": meta} if name == "fdskl" else {"arrays": arrays, "meta": meta}
    again.predict_at_nodes(AuditingGrid(sites.grid(), seen), **model)
    assert of_kind(seen, "plain") == of_kind(seen, "total") == set()
    assert len(sites.written()) >= 18


# -- the audit itself


def message(phase: str, **values: Any) -> Message:
    quiet("kernel-pca")  # Flower makes messages where there has been a run
    asked = Message(RecordDict(), message_type="train", dst_node_id=1, group_id="1")
    content = RecordDict({"fitres.metrics": ConfigRecord({"phase": phase, **values})})
    return Message(content, reply_to=asked)


def test_a_field_that_is_not_declared_counts_as_plain() -> None:
    """So that what is added to a reply is noticed; what is not random is no mask."""
    seen = Audit()
    seen.add("up", message("vertical-step", round=1, phases=b"1" * 3000))
    seen.add("up", message("sum-upload", masked=b"2" * 3000, index=2))
    assert of_kind(seen, "plain") == {("vertical-step", "phases")}
    masked = seen.view("up")["sum-upload", "masked"]
    assert masked.kind == "masked"
    assert masked.uniform is not None
    assert masked.uniform < 1e-12


def test_the_tail_of_chi_square_is_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    for high in (256, 250):
        seen = Audit()
        drawn = rng.integers(0, high, 4000).astype(np.uint8)
        seen.add("up", message("sum-upload", masked=drawn.tobytes()))
        expected = chisquare(np.bincount(drawn, minlength=256)).pvalue
        found = seen.view("up")["sum-upload", "masked"].uniform
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_the_transcript_holds_every_message() -> None:
    found = quiet("pof-mkl")
    assert isinstance(found.transcript, Transcript)
    entries = partial(found.transcript.entries, phase="online-personal")
    down, up = [*entries(direction="down")], [*entries(direction="up")]
    assert (len(down), len(up)) == (48, 48)
    assert [e.group for e in down[:5]] == ["1", "1", "1", "1", "2"]
    assert {e.node for e in up} == set(found.strategy.parties_) == {e.node for e in down}
    assert [a.shape for a in up[0].arrays] == [(5,), (5, 8)]
    assert len([*found.transcript.entries(phase="describe")]) == 8

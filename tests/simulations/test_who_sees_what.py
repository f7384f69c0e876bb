"""What runs say of who sees what, against what the audit of their traffic saw.

Each kind of value that somebody saw must be in the words of ``privacy``, which the pages of the
methods repeat; what the words name must have been there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.engines import audit
from fedkern_flwr.wire import PhaseMessage

RUNS = {
    "pof-mkl": ["--secure", "--clients", "5", "--rounds", "5"],
    "per-fed-avg": ["--secure", "--clients", "5", "--rounds", "5"],
    "fed-cg": ["--hospitals", "3", "--landmarks", "20"],
    "fdskl": ["--features", "40", "--train-rows", "60"],
    "secure-gram": ["--data", "breast-cancer", "--clients", "4", "--encoding", "fixed-point"],
    "hierarchical-svm": ["--data", "wine", "--users", "6", "--groups", "2", "--rounds", "3"],
    "hierarchical-svm rbf": ["--users", "6", "--rounds", "2", "--model", "rbf", "--features", "20"],
    "hierarchical-svm columns": ["--data", "wine", "--partition", "vertical", "--rounds", "3"],
}
#: Kind of what the server sees -> words of which one must be there.
KINDS = {
    "size": ("number", "how many"),
    "pseudonym": ("hashes of ids", "pseudonyms"),
    "declared": ("declares",),
    "commitment": ("landmarks", "which"),
}
#: Field that a party declares -> words.
DECLARED = dict.fromkeys(("fold_rows", "fold_sum_rows"), ("rows of its own and of all in a fold",))
#: Field that the server reads in plain -> words.
FIELDS = {
    "counts": ("counts", "outcomes"),
    "score": ("score",),
    "multiple": ("width",),
    "regularization": ("regularization",),
    "objective": ("objective",),
    "bound": ("gap",),
}
#: Kinds that tell nothing by themselves: what may be computed from released sums is said in words.
SILENT = {"key", "masked", "sealed", "share", "seed"}


@cache
def seen(name: str, folder: Path) -> dict[str, Any]:
    words = ["run", name.split()[0], *RUNS[name], "--quiet", "--force"]
    assert run([*words, "--json", str(folder / "result.json"), "--out", str(folder / "run")]) == 0
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())["privacy"]
    return found


@pytest.fixture(params=RUNS)
def privacy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return seen(request.param, tmp_path_factory.getbasetemp())


def told(privacy: dict[str, Any], *parties: str) -> str:
    return " ".join(line for party in parties for line in privacy.get(party, []))


def test_what_the_server_saw_is_said(privacy: dict[str, Any]) -> None:
    text = told(privacy, "server_sees")
    rows = privacy["seen"]["server"]
    for row in rows:
        kind = row["kind"]
        words = KINDS.get(kind, ())
        if kind == "plain" or row["field"] in DECLARED:
            words = (FIELDS | DECLARED)[row["field"]]
        assert kind in SILENT or words, row
        assert not words or any(word in text for word in words), row
    kinds = {row["kind"] for row in rows}
    for kind in ("pseudonym", "declared"):
        assert (kind in kinds) == any(word in text for word in KINDS[kind])
    assert privacy["protocol"] == "secure sums"


def test_what_clients_saw_is_said(privacy: dict[str, Any]) -> None:
    rows = {(row["phase"], row["field"]): row["kind"] for row in privacy["seen"]["clients"]}
    others = [
        name for name in privacy if name.endswith(("_see", "_sees")) and name != "server_sees"
    ]
    text = told(privacy, *others)
    if "matching" in rows.values():
        assert any(word in text for word in ("which of", "its rows"))
    assert ("sum-roster", "all that is not listed") in rows  # with it the sizes of all tables
    assert "with how many rows" in told(privacy, "everybody_sees")
    kinds = set(rows.values())
    assert kinds <= {"public", "key", "sealed", "masked", "matching", "padded"}
    assert "padded" not in kinds or "its group's sum" in told(privacy, "user_sees")


def replies(kind: type[PhaseMessage] = PhaseMessage) -> Iterator[type[PhaseMessage]]:
    for message in kind.__subclasses__():
        yield from replies(message)
        if message.__name__.endswith("Reply"):
            yield message


def test_predictions_of_new_rows_are_in_no_reply() -> None:
    """Phases in which nodes predict with a saved model tell the server how many rows they did."""
    found = {r for r in replies() if r.phase.endswith(("-predict", "-write"))}
    known = {"online-predict", "online-ridge-predict", "gram-predict", "svm-predict", "svm-write"}
    assert known <= {r.phase for r in found}
    for reply in found:
        kinds = {audit._kind("up", reply.phase, field.name) for field in fields(reply)}
        assert kinds <= {"control", "size"}, reply
    assert audit._kind("up", "online-predict", "outputs") == "plain"  # negative control

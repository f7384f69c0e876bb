"""The table of attacks: each succeeds on the paper's protocol, none beyond what is admitted here.

Masks and noise come from the operating system: what is random here fails once in a million runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from refusals import refuses

from fedkern_flwr.clients import VerticalKernelClient
from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.kernels.random_features import SEED_BYTES, draw_directions
from fedkern_flwr.secure_sum import party, running_sum
from fedkern_flwr.simulations.attacks import audit, fdskl, fed_cg, hierarchical_svm, pof_mkl
from fedkern_flwr.simulations.attacks.audit import ATTACKS, METHODS, attacks_on
from fedkern_flwr.simulations.attacks.budgets import CASES
from fedkern_flwr.simulations.attacks.seen import Attack, Seen
from fedkern_flwr.simulations.cli.main import run

*ROWS, BUDGETS = ATTACKS  # of the last see tests/core/test_privacy.py
TRILATERATION, VECTORS = ROWS[3], ROWS[8]
#: What defaults admit; everything else must fail.
ADMITTED = {
    ("membership in a sum", "server"), ("completion of distances", "hospital"),
    ("a hospital's gradient", "a hospital of 2"),
    ("rows from phases", "active party, distances only"),
    ("binary columns from phases", "active party"), ("binary columns from distances", "hospital"),
    ("a single rating", "server, one rating"), ("a single rating", "server, a profile"),
    ("the others' sums", "client"),
}  # fmt: skip


@pytest.mark.promise("attacks-fail")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("attack", ROWS, ids=[attack.name for attack in ROWS])
def test_attacks_succeed_on_the_papers_protocol_and_not_on_ours(attack: Attack, seed: int) -> None:
    for seen in attack.runs[0](seed):
        assert attack.threshold < seen.score <= 1.0 + 1e-9, seen.viewer
    found = {(attack.name, seen.viewer): attack.verdict(seen) for seen in attack.runs[1](seed)}
    expected = {key: "admitted" if key in ADMITTED else "fails" for key in found}
    assert found == expected


def test_there_are_fourteen_attacks_and_all_that_is_admitted_is_tried() -> None:
    assert len(ATTACKS) == len({attack.name for attack in ATTACKS}) == 14
    assert {name for name, _ in ADMITTED} < {attack.name for attack in ROWS}
    assert set(BUDGETS.methods) == {case.method for case in CASES}
    assert set(METHODS) > set(BUDGETS.methods)


# -- controls: what protects is the mask, the secret or the budget


def forget_runs() -> None:
    for module in (pof_mkl, fed_cg, fdskl, hierarchical_svm):
        for one in vars(module).values():
            if hasattr(one, "cache_clear"):
                one.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def _short_and_forgotten() -> Iterator[None]:
    """Streams of two sums of the default; transcripts take 30 MB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pof_mkl, "SAMPLES", 16)
        yield
    forget_runs()


@pytest.fixture
def without_masks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Vectors are encoded and not masked; runs are short and not remembered."""
    forget_runs()
    monkeypatch.setattr(pof_mkl, "SAMPLES", 4)
    for module in (party, running_sum):
        monkeypatch.setattr(module, "add_streams", lambda *a, **o: None)
    yield
    forget_runs()


@pytest.mark.usefixtures("without_masks")
def test_without_masks_the_same_attacks_succeed_on_the_default() -> None:
    assert pof_mkl.samples_found(pof_mkl.whole_gradients(0)) > 0.99
    assert TRILATERATION.verdict(TRILATERATION.runs[1](0)[0]) == "LEAK"
    users = hierarchical_svm.horizontal(0)
    assert hierarchical_svm.models_read(users, 0) > VECTORS.threshold


def test_with_masks_whole_gradients_of_one_client_are_not_inverted(monkeypatch: Any) -> None:
    monkeypatch.setattr(pof_mkl, "SAMPLES", 4)
    assert pof_mkl.samples_found(pof_mkl.whole_gradients.__wrapped__(0)) == 0.0


def test_with_the_true_directions_phases_give_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the secret of the directions that protects, not how phases are read."""

    def party(context: Context, *table: Any, **options: Any) -> VerticalKernelClient:
        secret = bytes([int(context.node_config["partition-id"])]) * SEED_BYTES
        return VerticalKernelClient(context, *table, frequency_seed=secret, **options)

    monkeypatch.setattr(fdskl, "VerticalKernelClient", party)
    angles = fdskl.default_run.__wrapped__(0).angles
    law = fdskl.DIRECTIONS, fdskl.OWN, "rbf", fdskl.GAMMA
    others = range(1, fdskl.PARTIES)
    omega = [draw_directions(bytes([k]) * SEED_BYTES, 0, *law) for k in others]
    assert angles.score([np.hstack(omega)]) > 0.99
    assert angles.score([np.hstack(omega[::-1])]) < 0.3


def test_with_a_budget_a_sum_does_not_tell_who_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one it does, and that is admitted."""
    monkeypatch.setattr(pof_mkl, "SAMPLES", 40)
    free = pof_mkl.members_found(pof_mkl.run(0, secure=True), 0)
    options: dict[str, Any] = {"privacy_epsilon": 1.0, "samples_per_round": 8}
    noisy = [
        pof_mkl.members_found(pof_mkl.run(seed, secure=True, **options), seed) for seed in (0, 1, 2)
    ]
    assert free > 0.3
    assert np.mean(noisy) < 0.15


def test_a_transcript_without_its_uploads_is_refused() -> None:
    """Otherwise an attack would find nothing and say so."""
    recorded = pof_mkl.run(0, secure=True)
    for way, message in recorded.transcript._messages:
        scalars = next(iter(message.content.config_records.values()))
        if way == "up" and scalars["phase"] == "online-masked":
            del scalars["sections"]
            next(iter(message.content.array_records.values())).clear()
    refuses("FK-ATTACK-TRANSCRIPT", pof_mkl.samples_found, recorded)


# -- the command


def made_up(score: float = 0.0, paper: float = 1.0, admits: str = "") -> Attack:
    """An attack that recovers so much."""
    return Attack(
        name="made up",
        methods=("pof-mkl",),
        claim="nothing is seen",
        protocol="all in plain",
        measure="share",
        threshold=0.5,
        runs=(
            lambda seed: [Seen("client", 1.0), Seen("server", paper)],  # each must succeed
            lambda seed: [Seen("server", score, admits, {"server_sees": ["all rows"]})],
        ),
    )


@pytest.mark.promise("audit-admits")
@pytest.mark.parametrize(("attack", "code", "verdict"), [
    (made_up(), 0, "fails"), (made_up(0.9, admits="all rows"), 0, "admitted"),
    (made_up(0.9, admits="all labels"), 3, "LEAK"), (made_up(0.9), 3, "LEAK"),
], ids=["fails", "admitted", "other things are admitted", "nothing is admitted"])  # fmt: skip
def test_exit_codes_say_whether_more_was_recovered_than_is_admitted(
    attack: Attack, code: int, verdict: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(audit, "ATTACKS", (attack,))
    assert run(["audit", "pof-mkl", "--json", "-"]) == code
    said = capsys.readouterr()
    found = json.loads(said.out)
    (row,) = found["attacks"]
    assert [seen["verdict"] for seen in row["default"]] == [verdict]
    assert found["verdict"] == ("LEAK" if code else "as admitted")
    assert verdict in said.err
    assert ("LEAK: made up" in said.err) == bool(code)


def test_an_attack_that_must_succeed_and_does_not(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(audit, "ATTACKS", (made_up(paper=0.4),))
    assert run(["audit"]) == 1
    assert capsys.readouterr().err.strip().endswith("[FK-ATTACK-VAIN]")


def test_a_run_that_breaks_down_is_no_leak(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def broken(seed: int) -> list[Seen]:
        raise ProtocolError("a run broke down", code="FK-STATE-GONE")

    monkeypatch.setattr(audit, "ATTACKS", (replace(made_up(), runs=(made_up().runs[0], broken)),))
    assert run(["audit"]) == 1
    assert capsys.readouterr().err.strip().endswith("[FK-STATE-GONE]")


@pytest.mark.parametrize(
    "words", [["nothing"], ["--seed", "-1"], ["--json", "nowhere/here"], ["--trials", "3"]]
)
def test_bad_input_is_refused_at_once(words: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(audit, "ATTACKS", ())
    assert run(["audit", *words]) == 2


def test_a_method_has_its_attacks_and_epsilon_its_sums(capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    assert run(["audit", "kernel-pca", "--json", str(file), "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    found = json.loads(file.read_text())
    (row,) = found["attacks"]
    assert row["name"] == "lower bound of epsilon"
    assert [seen["viewer"].partition(",")[0] for seen in row["default"]] == 2 * ["kernel-pca"]
    assert all(
        0.0 < seen["score"] <= 1.0 < other["score"]
        for seen, other in zip(row["default"], row["paper"], strict=True)
    )
    found = [attack.name for attack in attacks_on("fdskl")]
    assert found == ["rows from phases", "binary columns from phases"]
    assert attacks_on("epsilon") == [BUDGETS]
    assert attacks_on(None) == list(ATTACKS)
    refuses("FK-ATTACK-METHOD", attacks_on, "local")


def test_the_table_has_a_line_for_each_viewer(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    many, (paper, _) = [Seen(f"sum {k}", k / 10.0) for k in range(5)], made_up().runs
    rows = (
        replace(made_up(), runs=(paper, lambda seed: many[:2])),
        replace(made_up(), runs=(paper, lambda seed: many)),
    )
    monkeypatch.setattr(audit, "ATTACKS", rows)
    assert run(["audit"]) == 0
    said = capsys.readouterr().out
    assert all(line in said for line in ("sum 0", "sum 1", "most of 5: sum 4"))
    assert not any(line in said for line in ("sum 2", "sum 3"))

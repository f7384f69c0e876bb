"""What does not fit into one message goes in parts: the same result, also if nodes lose files."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zoo import fit

#: The way, where the size of its messages is, bytes of a message, and the phase that has parts.
PARTS = [
    ("fdskl", "fdskl_phases._MESSAGE", 1200, "vertical-step"),
    ("fed-cg", "fed_cg_system._MESSAGE", 8 * 8 * 20, "hybrid-distances"),
    ("fed-cg, cg", "fed_cg_system._MESSAGE", 8 * 8 * 20, "hybrid-distances"),
]


@pytest.mark.promise("faults-made-again")
@pytest.mark.parametrize(("name", "place", "size", "phase"), PARTS)
def test_runs_in_parts_come_to_the_same(
    name: str, place: str, size: int, phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda n: "5e" * n)
    whole = fit(name, tmp_path / "whole")
    monkeypatch.setattr(f"fedkern_flwr.strategies.{place}", size)
    exchanges = fit(name, tmp_path / "quiet").phases
    assert exchanges[phase] > whole.phases[phase]
    noticed = 0
    for lost in range(1, sum(exchanges.values())):
        folder, rounds = tmp_path / str(lost), set[int]()

        def spoil(
            delivery: Any, folder: Path = folder, rounds: Any = rounds, n: int = lost
        ) -> None:
            if delivery.phase in ("describe", "finish"):
                return
            rounds.add(delivery.round)
            if len(rounds) == n + 1:
                rounds.add(-1)  # once
                for path in [*folder.rglob("*.phases"), *folder.rglob("*.kernel")]:
                    path.unlink()

        found = fit(name, folder, faults=spoil)
        assert found.predictions.keys() == whole.predictions.keys()
        for key, row in whole.predictions.items():
            np.testing.assert_allclose(found.predictions[key], row, rtol=1e-9)
        for key, value in whole.outcome().items():
            if isinstance(value, np.ndarray):
                np.testing.assert_allclose(found.outcome()[key], value, rtol=1e-9)
        noticed += "FK-STATE-GONE" in str(found.strategy.ledger_.failures)
    assert noticed

"""Keys of noise that follow from the node: runs whose noise is drawn once have the same noise."""

from __future__ import annotations

from typing import Any

import pytest

from fedkern_flwr.node.ledger import ClientLedger


def key_of(partition: int) -> bytes:
    """Return the key that a node with a folder draws first in a run."""
    return bytes([partition]) * 32


def know_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first key of a node in a run be known; another one of the run is the system's."""
    drawn: dict[Any, bytes] = {}
    honest = ClientLedger.noise_key

    def known(self: Any, session: str, state: Any) -> bytes:
        key = honest(self, session, state)
        first = drawn.setdefault((self._folder, session, self._partition), key)
        return key_of(self._partition) if first == key else key

    monkeypatch.setattr(ClientLedger, "noise_key", known)

"""Keys of nodes that tests know: identities that trust each other, of noise, of held-out halves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedkern_flwr.guard.ledger import NodeLedger

if TYPE_CHECKING:
    from zoo import Sites


def pin_identities(folder: Path, nodes: int) -> None:
    """Write ``identity-K`` of each node, and ``trusted``, which has the public keys of all."""
    lines = []
    for k in range(nodes):
        key, text = Ed25519PrivateKey.generate(), serialization.Encoding
        private, plain = serialization.PrivateFormat, serialization.NoEncryption()
        (folder / f"identity-{k}").write_bytes(key.private_bytes(text.PEM, private.OpenSSH, plain))
        public = key.public_key().public_bytes(text.OpenSSH, serialization.PublicFormat.OpenSSH)
        lines.append(f"{k} {public.decode()}")
    (folder / "trusted").write_text("\n".join(lines))


def known_node(folder: Path, k: int, nodes: int) -> dict[str, Any]:
    """Return the options of a node that the others know, with the ledger of a new node."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "trusted").exists():
        pin_identities(folder, nodes)
    NodeLedger(folder / str(k), k).make()
    return pinned(folder, k)


def pinned(folder: Path, k: int) -> dict[str, Any]:
    """Return the options of a node whose identity is pinned already."""
    keys = {"identity_key": folder / f"identity-{k}", "trusted_keys": folder / "trusted"}
    return {"state_dir": folder / str(k), **keys}


def known(sites: Sites) -> Sites:
    """Let the nodes of a way know each other, with the ledgers of new nodes."""
    for k, table in enumerate(sites.tables):
        table |= known_node(sites.folder, k, len(sites))
    return sites


def paid_epsilons(folder: Path, k: int) -> list[float]:
    """Return what a node has paid for each run."""
    return [run.epsilon for run in NodeLedger(folder / str(k), k).runs()]


def know_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first key of a node in a run be known; another one of the run is the system's."""
    drawn: dict[Any, bytes] = {}
    honest = NodeLedger.noise_key

    def known(self: Any, session: str, before: bytes = b"") -> bytes:
        key = honest(self, session, before)
        first = drawn.setdefault((self.folder, session, self.partition), key)
        return bytes([self.partition]) * 32 if first == key else key

    monkeypatch.setattr(NodeLedger, "noise_key", known)


def know_halves(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let simulated nodes deal calibration and report under the keys of deployed ones in a folder.

    A deployed node draws its key itself; it is in the ledger in ``K/state`` of node K.
    """

    honest = NodeLedger.split_key

    def known(self: Any) -> bytes:
        return honest(NodeLedger(folder / str(self.partition) / "state", self.partition))

    monkeypatch.setattr(NodeLedger, "split_key", known)

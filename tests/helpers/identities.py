"""Identity keys of nodes that know each other's."""

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


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

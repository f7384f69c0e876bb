"""Make keys for a deployment on this machine: an authority, a server certificate, keys of nodes."""

from __future__ import annotations

import datetime as dt
import ipaddress
from inspect import signature
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedkern_flwr.checkpoint import write_atomically

_CURVE = ec.SECP384R1  # what Flower takes for nodes


def make_certificates(folder: Path, days: float = 365.0) -> None:
    """Write ``ca.crt``, ``server.pem`` and ``server.key`` for localhost and 127.0.0.1.

    The authority's key is not kept, so it signs nothing else.
    """
    authority, server = ec.generate_private_key(_CURVE()), ec.generate_private_key(_CURVE())
    name = _name("fedkern-flwr deployment")
    key_id = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    uses = dict.fromkeys(signature(x509.KeyUsage).parameters, False)
    signs = x509.KeyUsage(**uses | {"key_cert_sign": True, "crl_sign": True})
    root = (
        _certificate(name, name, authority.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs, critical=True)
        .add_extension(key_id, critical=False)
        .sign(authority, hashes.SHA256())
    )
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id)
    leaf = (
        _certificate(_name("localhost"), name, server.public_key(), days)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issued_by, critical=False)
        .sign(authority, hashes.SHA256())
    )
    write_atomically(folder / "ca.crt", root.public_bytes(Encoding.PEM))
    write_atomically(folder / "server.pem", leaf.public_bytes(Encoding.PEM))
    key = server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_atomically(folder / "server.key", key, private=True)


def make_node_key(path: Path) -> None:
    """Write a node's private key to ``path``, and its public key with suffix .pub."""
    key = ec.generate_private_key(_CURVE())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_atomically(path, private, private=True)
    write_atomically(path.with_name(f"{path.name}.pub"), public + b"\n")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=days))
    )

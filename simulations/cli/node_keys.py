"""``fedkern node init`` and ``trust``: who a node is, and whom it knows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkern_flwr.checkpoint import make_private_folder, write_atomically
from fedkern_flwr.errors import OptionError
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.node_config import claim_folder
from fedkern_flwr.secure_sum.identity import (
    fingerprint,
    make_identity,
    read_identity,
    read_trusted,
    trusted_line,
)

IDENTITY, PUBLIC, TRUSTED = "identity", "identity.pub", "trusted"

_Folder = Annotated[Path, typer.Option("--state-dir", help="The node's own folder.")]


def init_node(
    partition_id: Annotated[
        int, typer.Option(min=0, help="The node's number, as all parties agreed.")
    ],
    state_dir: _Folder = Path("state"),
) -> None:
    """Make a node's folder with its identity key and its ledger; what is there stays."""
    make_private_folder(state_dir)
    claim_folder(state_dir, partition_id)
    key, public = state_dir / IDENTITY, state_dir / PUBLIC
    made = not key.exists()
    raw = make_identity(key) if made else read_identity(key).public_key().public_bytes_raw()
    write_atomically(public, f"{trusted_line(partition_id, raw)}\n".encode())
    NodeLedger(state_dir, partition_id).make()
    typer.echo(
        f"{'made' if made else 'kept'} {key}, which never leaves this machine\n"
        f"send {public} to every other party; its fingerprint, to compare by telephone, is\n"
        f"  {fingerprint(raw)}\n"
        "then pin theirs with `fedkern node trust FILE...`; write into node.toml\n"
        f'  state-dir = "{state_dir.resolve()}"\n'
        f'  identity-key = "{key.resolve()}"\n'
        f'  trusted-keys = "{(state_dir / TRUSTED).resolve()}"'
    )


def trust_parties(
    files: Annotated[list[Path], typer.Argument(help="Files identity.pub, the node's own too.")],
    state_dir: _Folder = Path("state"),
    replace: Annotated[
        bool, typer.Option("--replace", help="Also keys that differ from those pinned before.")
    ] = False,
) -> None:
    """Pin the identity keys of the parties of a federation."""
    place = state_dir / TRUSTED
    trusted = read_trusted(place) if place.exists() else {}
    own = state_dir / PUBLIC
    for file in [*([own] if own.exists() else []), *files]:
        for partition, raw in read_trusted(file).items():
            if trusted.get(partition, raw) != raw and not replace:
                raise OptionError(
                    f"{file.name} has another key of partition {partition} than the one pinned",
                    remedy="ask that party which is right; --replace takes the new one",
                    code="FK-IDENTITY-CHANGED",
                )
            trusted[partition] = raw
    make_private_folder(state_dir)
    lines = [f"{trusted_line(partition, raw)}\n" for partition, raw in sorted(trusted.items())]
    write_atomically(place, "".join(lines).encode())
    for partition, raw in sorted(trusted.items()):
        typer.echo(f"partition {partition:<4} {fingerprint(raw)}")
    typer.echo(f"{place} has the keys of {len(trusted)} parties: compare the fingerprints")

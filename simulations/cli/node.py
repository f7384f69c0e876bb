"""``fedkern node``: what the owner of a node decides, and what the node has answered."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkern_flwr.checkpoint import make_private_folder, write_atomically
from fedkern_flwr.errors import OptionError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.guard.policy import RULES, read_policy, write_policy
from fedkern_flwr.node_config import claim_folder, read_config
from fedkern_flwr.online.source import fed_by_socket
from fedkern_flwr.secure_sum.identity import (
    fingerprint,
    make_identity,
    read_identity,
    read_trusted,
    trusted_line,
)

from ..deployment.start import NO_THREADS, LogFormat, node_command
from .console import print_table
from .node_records import clean_folders, freeze_rows, show_ledger, show_status

IDENTITY, PUBLIC, TRUSTED = "identity", "identity.pub", "trusted"

node_app = typer.Typer(
    name="node", help="For the owner of a node.", no_args_is_help=True, add_completion=False
)
policy_app = typer.Typer(name="policy", help="What a node takes part in.", no_args_is_help=True)
ledger_app = typer.Typer(name="ledger", help="What a node has answered.", no_args_is_help=True)
node_app.add_typer(policy_app)
node_app.add_typer(ledger_app)
ledger_app.command("show")(show_ledger)

_File = Annotated[Path, typer.Argument(help="TOML file of the policy.")]
_Folder = Annotated[Path, typer.Option("--state-dir", help="The node's own folder.")]


@node_app.command("init")
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


@node_app.command("trust")
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


node_app.command("status")(show_status)
node_app.command("freeze")(freeze_rows)
node_app.command("clean")(clean_folders)


@node_app.command(
    "start", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def start_node(
    context: typer.Context,
    superlink: Annotated[str, typer.Option(help="Host and port of the SuperLink.")],
    node_config: Annotated[Path, typer.Option(help="TOML file of the node's configuration.")],
    root_certificates: Annotated[
        Path | None, typer.Option(help="Certificate of who signed the SuperLink's.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The node's private key.")] = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1 for the node's processes.")
    ] = 9094,
    max_processes: Annotated[
        int, typer.Option(min=1, help="Messages that are answered at a time.")
    ] = 1,
    message_seconds: Annotated[
        float, typer.Option(min=1.0, help="What answering a message may take.")
    ] = 3600.0,
    message_gigabytes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Memory that answering a message may take.",
            show_default="three quarters of the machine's",
        ),
    ] = None,
    metrics: Annotated[
        Path | None, typer.Option(help="File for figures in Prometheus' text format.")
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Of what it prints.")] = "text",
) -> None:
    """Start a SuperNode that stays warm: messages need not wait until Python has started.

    Other options are those of flower-supernode.
    """
    given = {"root-certificates": root_certificates}
    given["auth-supernode-private-key"] = key
    arguments: list[str] = []
    for name, path in given.items():
        if path is not None:
            _refuse_unreadable(path, f"--{name}")
            arguments += [f"--{name}", str(path)]
    fed_by_socket(read_config(node_config))
    _refuse_taken(port)
    command = node_command(
        superlink,
        node_config,
        [*arguments, *context.args],
        port,
        max_processes=max_processes,
        message_seconds=message_seconds,
        message_gigabytes=message_gigabytes,
        metrics=metrics and str(metrics.resolve()),
        log_format=log_format,
    )
    sys.stdout.flush()
    os.execve(command[0], command, {**os.environ, **NO_THREADS})


@node_app.command("feed")
def feed_stream(
    node_config: Annotated[Path, typer.Option(help="TOML file of the node's configuration.")],
) -> None:
    """Take the rows that come to the socket of a node's stream; 'node start' does it by itself."""
    from ..deployment.feeder import feed

    fed = fed_by_socket(read_config(node_config))
    if fed is None:
        raise OptionError(
            f"{node_config.name} names no socket as stream",
            remedy='write stream = "unix:/path" or "127.0.0.1:PORT"; files need no feeder',
            code="FK-STREAM-SOCKET",
        )
    feed(*fed)


@policy_app.command("show")
def show_policy(
    file: Annotated[Path | None, typer.Argument(help="TOML file; the defaults without.")] = None,
    toml: Annotated[bool, typer.Option("--toml", help="As a file to begin with.")] = False,
) -> None:
    """Show what a node with this policy would accept."""
    policy = NodePolicy() if file is None else read_policy(file)
    if toml:
        typer.echo(write_policy(policy), nl=False)
        return
    changed = policy.changed
    rows = [
        (
            field.name,
            _text(field.name, getattr(policy, field.name)),
            "" if field.name in changed else "default",
            RULES[field.name],
        )
        for field in fields(policy)
    ]
    print_table(("rule", "value", "", "meaning"), rows)


@policy_app.command("check")
def check_policy(file: _File) -> None:
    """Check a policy; exit code 2 if a node would refuse it."""
    changed = read_policy(file).changed
    typer.echo(f"{file.name} is a policy; {len(changed)} rules are not at their defaults")


def _refuse_unreadable(path: Path, option: str) -> None:
    """Refuse a file that is not there, or not for this user.

    Raises
    ------
    OptionError
    """
    if not os.access(path, os.R_OK) or not path.is_file():
        raise OptionError(
            f"{option}: {path} cannot be read", remedy="check the path", code="FK-FILE-READ"
        )


def _refuse_taken(port: int) -> None:
    """Refuse a port on which somebody listens.

    Raises
    ------
    OptionError
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise OptionError(
                f"port {port} of 127.0.0.1 is in use",
                remedy="choose another with --port",
                code="FK-LISTEN-ADDRESS",
            ) from None


def _text(rule: str, value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or ("all" if rule == "methods" else "none")
    if value is None:
        words = {"min_parties": "3 or 2", "counting": "refuse", "max_binary_columns": "warns"}
        return words[rule]
    return str(value).lower() if isinstance(value, bool) else str(value)


command = typer.main.get_command(node_app)

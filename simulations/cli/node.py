"""``fedkern node``: policy, identity, processes and records of a node."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import click

from fedkern_flwr.checkpoint import make_private_folder, session_of, write_atomically
from fedkern_flwr.errors import OptionError
from fedkern_flwr.frozen_files import FrozenFiles, NodeFiles
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.freeze import HELD_OUT, USED, Change, Freeze
from fedkern_flwr.guard.ledger import NOT_ENDED, NodeLedger, RunSummary, ledger_totals
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

from ..deployment.report import NodeStatus
from ..deployment.start import NO_THREADS, LogFormat, node_command
from ..run.options import argument, declare, switch
from .console import print_table
from .options import group, of_function

IDENTITY, PUBLIC, TRUSTED = "identity", "identity.pub", "trusted"


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """Options of ``fedkern node init``.

    Attributes
    ----------
    partition_id : int
        Number of the node, as all parties agreed.
    state_dir : Path
        Folder of the node.
    """

    partition_id: int = declare(limits=(0, None))
    state_dir: Path = Path("state")


def init_node(asked: InitOptions) -> None:
    """Make the folder of a node, with identity key and ledger; keep what exists."""
    state_dir, partition_id = asked.state_dir, asked.partition_id
    make_private_folder(state_dir)
    claim_folder(state_dir, partition_id)
    key, public = state_dir / IDENTITY, state_dir / PUBLIC
    made = not key.exists()
    raw = make_identity(key) if made else read_identity(key).public_key().public_bytes_raw()
    write_atomically(public, f"{trusted_line(partition_id, raw)}\n".encode())
    NodeLedger(state_dir, partition_id).make()
    click.echo(
        f"{'made' if made else 'kept'} {key}, which never leaves this machine\n"
        f"send {public} to every other party; its fingerprint, to compare by telephone, is\n"
        f"  {fingerprint(raw)}\n"
        "then pin theirs with `fedkern node trust FILE...`; write into node.toml\n"
        f'  state-dir = "{state_dir.resolve()}"\n'
        f'  identity-key = "{key.resolve()}"\n'
        f'  trusted-keys = "{(state_dir / TRUSTED).resolve()}"'
    )


@dataclass(frozen=True)
class TrustOptions:
    """Options of ``fedkern node trust``.

    Attributes
    ----------
    files : list of Path
        Files identity.pub of the parties, including this node.
    state_dir : Path
        Folder of the node.
    replace : bool
        Also accept keys that differ from those pinned before.
    """

    files: list[Path] = argument()
    state_dir: Path = Path("state")
    replace: bool = switch()


def trust_parties(asked: TrustOptions) -> None:
    """Pin the identity keys of the parties of a federation."""
    state_dir = asked.state_dir
    place = state_dir / TRUSTED
    trusted = read_trusted(place) if place.exists() else {}
    own = state_dir / PUBLIC
    for file in [*([own] if own.exists() else []), *asked.files]:
        for partition, raw in read_trusted(file).items():
            if trusted.get(partition, raw) != raw and not asked.replace:
                raise OptionError(
                    f"{file.name} has another key of partition {partition} than the one pinned",
                    code="FK-IDENTITY-CHANGED",
                )
            trusted[partition] = raw
    make_private_folder(state_dir)
    lines = [f"{trusted_line(partition, raw)}\n" for partition, raw in sorted(trusted.items())]
    write_atomically(place, "".join(lines).encode())
    for partition, raw in sorted(trusted.items()):
        click.echo(f"partition {partition:<4} {fingerprint(raw)}")
    click.echo(f"{place} has the keys of {len(trusted)} parties: compare the fingerprints")


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """Options of ``fedkern node start``.

    Attributes
    ----------
    superlink : str
        Host and port of the SuperLink.
    node_config : Path
        TOML file of the configuration of the node.
    root_certificates : Path or None
        Certificate of the authority that signed that of the SuperLink.
    key : Path or None
        Private key of the node.
    port : int
        Port on 127.0.0.1 for the processes of the node.
    max_processes : int
        Messages that are processed at a time.
    message_seconds : float
        Most seconds for a message.
    message_gigabytes : float or None
        Most memory for a message (default: three quarters of this machine).
    metrics : Path or None
        File for figures in the text format of Prometheus.
    log_format : {"text", "json"}
        Format of the log.
    """

    superlink: str
    node_config: Path
    root_certificates: Path | None = None
    key: Path | None = None
    port: int = declare(9094, limits=(1, 65535))
    max_processes: int = declare(1, limits=(1, None))
    message_seconds: float = declare(3600.0, limits=(1.0, None))
    message_gigabytes: float | None = declare(None, limits=(0.1, None))
    metrics: Path | None = None
    log_format: LogFormat = "text"


def start_node(asked: StartOptions) -> None:
    """Start a warm SuperNode, which does not start Python for each message.

    Other options are those of flower-supernode.
    """
    given = {"root-certificates": asked.root_certificates}
    given["auth-supernode-private-key"] = asked.key
    arguments: list[str] = []
    for name, path in given.items():
        if path is not None:
            _refuse_unreadable(path, f"--{name}")
            arguments += [f"--{name}", str(path)]
    fed_by_socket(read_config(asked.node_config))
    _refuse_taken(asked.port)
    command = node_command(
        asked.superlink,
        asked.node_config,
        [*arguments, *click.get_current_context().args],
        asked.port,
        max_processes=asked.max_processes,
        message_seconds=asked.message_seconds,
        message_gigabytes=asked.message_gigabytes,
        metrics=asked.metrics and str(asked.metrics.resolve()),
        log_format=asked.log_format,
    )
    sys.stdout.flush()
    os.execve(command[0], command, {**os.environ, **NO_THREADS})


@dataclass(frozen=True)
class FeedOptions:
    """Options of ``fedkern node feed``.

    Attributes
    ----------
    node_config : Path
        TOML file of the configuration of the node.
    """

    node_config: Path


def feed_stream(asked: FeedOptions) -> None:
    """Read rows from the socket of a stream; 'node start' does this itself."""
    from ..deployment.feeder import feed

    fed = fed_by_socket(read_config(asked.node_config))
    if fed is None:
        raise OptionError(
            f"{asked.node_config.name} names no socket as stream", code="FK-STREAM-SOCKET"
        )
    feed(*fed)


@dataclass(frozen=True)
class ShowOptions:
    """Options of ``fedkern node policy show``.

    Attributes
    ----------
    file : Path or None
        TOML file of the policy; without it, the defaults.
    toml : bool
        Print a file to start from.
    """

    file: Path | None = argument(None)
    toml: bool = switch()


def show_policy(asked: ShowOptions) -> None:
    """Show what a node with this policy accepts."""
    policy = NodePolicy() if asked.file is None else read_policy(asked.file)
    if asked.toml:
        click.echo(write_policy(policy), nl=False)
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


@dataclass(frozen=True)
class CheckOptions:
    """Options of ``fedkern node policy check``.

    Attributes
    ----------
    file : Path
        TOML file of the policy.
    """

    file: Path = argument()


def check_policy(asked: CheckOptions) -> None:
    """Check a policy; exit code 2 if a node would refuse it."""
    changed = read_policy(asked.file).changed
    click.echo(f"{asked.file.name} is a policy; {len(changed)} rules are not at their defaults")


def _refuse_unreadable(path: Path, option: str) -> None:
    """Refuse an unreadable file."""
    if not os.access(path, os.R_OK) or not path.is_file():
        raise OptionError(f"{option}: {path} cannot be read", code="FK-FILE-READ")


def _refuse_taken(port: int) -> None:
    """Refuse a port in use."""
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


# -- what a node has: its status, rows, ledger and folders

CONNECTED, NOT_CONNECTED, NOT_RUNNING = 0, 1, 3

_STUCK = "stuck"
_STATES = {CONNECTED: "connected", NOT_CONNECTED: "not connected", NOT_RUNNING: "not running"}
_WIDTH, _METHOD = 100, 18  # characters of a line, and of the name of a method in it
_UNITS = {"h": 3600.0, "d": 86400.0, "w": 604800.0}
#: What a prediction with the model of the run needs of a node.
_MODEL = (".model", ".weights", ".state")
#: What has keys of a session: a resumed run makes new ones.
_KEYS = (".context", ".tmp")


@dataclass(frozen=True)
class StatusOptions:
    """Options of ``fedkern node status``.

    Attributes
    ----------
    state_dir : Path
        Folder of the node.
    as_json : bool
        As a JSON object.
    max_age : float
        Seconds after which a status is too old.
    """

    state_dir: Path
    as_json: bool = declare(False, flag="--json")
    max_age: float = declare(60.0, limits=(0.0, None))


def show_status(asked: StatusOptions) -> int:
    """Show whether a node of 'fedkern node start' is connected, and its answers.

    Exit code 0: connected; 1: running, but not connected, stuck on a message or without a recent
    status; 2: bad input; 3: not running.
    """
    state_dir = asked.state_dir
    if not state_dir.is_dir():
        raise OptionError(f"there is no folder {state_dir}", code="FK-NODE-FOLDER")
    status, totals = NodeStatus.read(state_dir), ledger_totals(state_dir)
    code, state = _state(status, asked.max_age)
    told: dict[str, Any] = {"state": state}
    if status is not None:
        connected = code == CONNECTED or state.startswith(_STUCK)
        told |= {**asdict(status), "connected": connected}
    told["ledger"] = None if totals is None else asdict(totals)
    if asked.as_json:
        click.echo(json.dumps(told, indent=2))
    else:
        for name, value in _facts_now(told):
            click.echo(f"{name:<18} {value}")
    return code


def _state(status: NodeStatus | None, max_age: float) -> tuple[int, str]:
    """Return exit code and state of a node."""
    if status is None or not status.running:
        return NOT_RUNNING, _STATES[NOT_RUNNING]
    if status.age > max_age:
        return NOT_CONNECTED, f"no status for {status.age:.0f} s"
    if status.connected and status.stuck:
        do = "stop that run with flwr stop, or start the node again"
        return NOT_CONNECTED, f"{_STUCK} on a message of run {status.run}: {status.stuck}; {do}"
    code = CONNECTED if status.connected else NOT_CONNECTED
    return code, _STATES[code]


def _facts_now(told: dict[str, Any]) -> list[tuple[str, str]]:
    """Return names and values of a node."""
    state, ledger = str(told["state"]), told["ledger"]
    if state == _STATES[CONNECTED]:
        state += f" since {told['connected_since']}"
    rows = [("node", state)]
    if "pid" in told:
        answered = f"{told['messages']}, {told['failures']} failed, {told['busy']} under way"
        rows += [
            ("SuperLink", told["superlink"]),
            ("process", f"{told['pid']}, started {told['started']}, release {told['version']}"),
            ("messages", answered),
            (
                "message at hand",
                f"since {told['message_since']}, run {told['run']}" if told["run"] else "-",
            ),
            ("last message", told["last_message"] or "-"),
            ("last error", told["last_error"] or "-"),
        ]
    if ledger is None:
        return [*rows, ("ledger", "cannot be read now")]
    refused = ", ".join(f"{rule} {times}" for rule, times in ledger["refusals"].items())
    return [
        *rows,
        ("runs, sums", f"{ledger['runs']}, {ledger['sums']}"),
        ("figures sent", f"{ledger['told']} times about the same rows"),
        *(("warning", limit) for limit in ledger["near"]),
        ("refusals", refused or "-"),
    ]


@dataclass(frozen=True)
class FreezeOptions:
    """Options of ``fedkern node freeze``.

    Attributes
    ----------
    node_config : Path
        TOML file of the configuration of the node.
    show : bool
        Show blocks and pending changes.
    withdraw : Path or None
        File of ids, one a line; their rows are removed at once.
    force : bool
        Let all changes take effect.
    reset_failures : bool
        Take part again after failed runs.
    """

    node_config: Path
    show: bool = switch()
    withdraw: Path | None = None
    force: bool = switch()
    reset_failures: bool = switch()


def freeze_rows(asked: FreezeOptions) -> None:
    """Freeze the rows of the node in blocks, or apply changes that form whole blocks.

    A run does the same at its start. --withdraw also removes other rows, for good. --force can show
    single rows to the server.
    """
    config, force = read_config(asked.node_config), asked.force
    for key in ("data", "state-dir", "partition-id"):
        if key not in config:
            raise OptionError(
                f"{asked.node_config.name} does not name {key}",
                remedy="streams, ratings and nodes without a state-dir have no freeze",
                code="FK-NODE-KEY",
            )
    policy = read_policy(str(config["policy"])) if "policy" in config else NodePolicy()
    state_dir, partition = Path(str(config["state-dir"])), int(config["partition-id"])
    claim_folder(state_dir, partition)
    files, node = FrozenFiles(state_dir, partition, policy), NodeFiles.of(config)
    if not files.may_begin():  # with a budget a ledger is never begun anew
        known_ledger(state_dir, partition)
    if asked.reset_failures:
        number = known_ledger(state_dir, partition).failures(reset=True)
        click.echo(f"{number} runs had failed here by values of rows; now none counts")
    elif asked.show:
        _show_freeze(files, node)
    else:
        ids = [] if asked.withdraw is None else _read_ids(asked.withdraw)
        NodeLedger(state_dir, partition).make()
        table, change = files.update(node, force=force, withdraw=ids)
        if table is None:
            click.echo(f"there are too few rows for a block of {policy.min_own_rows}")
            return
        done = ", ".join(f"{n} {kind}" for kind, n in change.done.items() if n)
        click.echo(f"took effect: {done or 'nothing'}")
        click.echo(str(change))
        if force:
            click.echo("what was forced may be computed from the sums of earlier and later runs")


def known_ledger(state_dir: Path, partition: int = 0) -> NodeLedger:
    """Return the ledger in a folder."""
    ledger = NodeLedger(state_dir, partition)
    if not ledger.exists:
        raise OptionError(
            f"there is no {ledger.file.path.name} in {state_dir}", code="FK-LEDGER-NONE"
        )
    return ledger


def _show_freeze(files: FrozenFiles, node: NodeFiles) -> None:
    freeze = Freeze.load(files.folder)
    if freeze is None:
        click.echo("nothing is frozen yet; the first run does it, or `fedkern node freeze`")
        return
    print_table(("block", "part", "rows", "stratum"), list(_blocks(freeze)))
    change: Change = files.preview(node)
    done = ", ".join(f"{n} {kind}" for kind, n in change.done.items() if n)
    click.echo(f"{int(freeze.used.sum())} rows are in blocks")
    click.echo(f"a run that begins now: {done or 'nothing'} will take effect; {change}")


def _blocks(freeze: Freeze) -> Iterator[tuple[str, ...]]:
    """Yield a line for each block in use, with numbered strata."""
    blocks: Any = freeze.blocks
    strata = {group: str(k) for k, group in enumerate(sorted({*blocks["group"].tolist()}))}
    for number, block in enumerate(blocks):
        if block["state"] == USED:
            part = int(block["part"])
            name = "held out" if part == HELD_OUT else f"fold {part}"
            yield str(number), name, str(block["rows"]), strata[int(block["group"])]


def _read_ids(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        raise OptionError(
            f"{path} cannot be read", remedy="write one id a line", code="FK-FILE-READ"
        ) from None
    return [line for line in lines if line.strip()]  # ids are trimmed where they are compared


@dataclass(frozen=True)
class LedgerOptions:
    """Options of ``fedkern node ledger show``.

    Attributes
    ----------
    state_dir : Path
        Folder of the node.
    run : int or None
        All of one run, by its number.
    as_json : bool
        As JSON.
    """

    state_dir: Path
    run: int | None = declare(None, limits=(1, None))
    as_json: bool = declare(False, flag="--json")


def show_ledger(asked: LedgerOptions) -> None:
    """Show runs, sums and refusals, without rows, ids or values."""
    ledger, run = known_ledger(asked.state_dir), asked.run
    runs = [one for one in ledger.runs() if run in (None, one.number)]
    if run is not None and not runs:
        raise OptionError(
            f"--run: the ledger has no run {run}",
            remedy="omit it to see all",
            code="FK-OPTION-RANGE",
        )
    if asked.as_json:
        click.echo(json.dumps([asdict(one) for one in runs], indent=2))
    elif run is not None:
        for name, value in _facts(runs[0]):
            click.echo(f"{name:<18} {value}")
    else:
        _show_all(asked.state_dir, ledger, runs)


def _show_all(state_dir: Path, ledger: NodeLedger, runs: list[RunSummary]) -> None:
    heads = ("run", "opened (UTC)", "method", "rows", "parties", "figures", "refused", "epsilon")
    lines = [heads, *map(_cells, runs)]
    widths = [max(map(len, column)) + 2 for column in zip(*lines, strict=True)]
    for line, names in zip(lines, [("sums",), *(run.sums for run in runs)], strict=True):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("".join(cells) + _short(", ".join(names) or "-", _WIDTH - sum(widths)))
    refused = [
        (str(number) if number else "-", rule, str(times))
        for number, rule, times in ledger.refusals()
    ]
    if refused:
        print_table(("run", "refused", "times"), refused)
    if spent := ledger.spent():
        click.echo(f"all runs with noise together: epsilon {spent:.3g} of a row, at most")
    totals = ledger_totals(state_dir)
    for limit in totals.near if totals else ():
        click.echo(f"warning: {limit}")


def _cells(run: RunSummary) -> tuple[str, ...]:
    named = run.number, run.opened[:16], _short(run.method, _METHOD), run.rows, _parties(run)
    return tuple(map(str, (*named, run.evaluations, run.refusals, _epsilon(run))))


def _facts(run: RunSummary) -> Iterator[tuple[str, Any]]:
    """Yield names and values of one run."""
    about = run.about
    yield from (("run", run.number), ("session", about.session), ("Flower run", about.flower_run))
    yield from (("opened (UTC)", run.opened), ("ended (UTC)", run.ended or "-"))
    yield from (("method", run.method), ("release", about.release), ("app", about.app))
    yield from (("settings", about.settings), ("settings digest", about.settings_digest))
    yield from (("rows", run.rows), ("parties", _parties(run)), ("sums", ", ".join(run.sums)))
    yield from (("figures sent", run.evaluations), ("refusals", run.refusals))
    yield "epsilon", _epsilon(run)


def _epsilon(run: RunSummary) -> str:
    return f"{run.epsilon:.3g}" if run.epsilon else "-"


def _parties(run: RunSummary) -> str:
    return f"{run.parties}{'' if run.pinned else '?'}" if run.secure else "plain"


def _short(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(room, 4) - 3]}..."


@dataclass(frozen=True)
class CleanOptions:
    """Options of ``fedkern node clean``.

    Attributes
    ----------
    state_dir : Path
        Folder of the node.
    older_than : str
        Least age of a run, such as 12h, 30d or 8w.
    models : bool
        Also remove parts of models, which predictions need.
    unfinished : bool
        Also remove unfinished runs; they cannot be resumed.
    dry_run : bool
        Only print what would be removed.
    """

    state_dir: Path
    older_than: str
    models: bool = switch()
    unfinished: bool = switch()
    dry_run: bool = switch()


def clean_folders(asked: CleanOptions) -> None:
    """Remove files of old runs; keep ledger, freeze, keys and secrets."""
    state_dir, dry_run = asked.state_dir, asked.dry_run
    limit = time.time() - _seconds(asked.older_than)
    ledger, status = known_ledger(state_dir), NodeStatus.read(state_dir)
    if status is not None and status.running and status.busy:
        raise OptionError("the node is answering a message", code="FK-NODE-BUSY")
    count = 0
    for folder in sorted(state_dir.iterdir()):
        session = "" if folder.is_symlink() or not folder.is_dir() else session_of(folder)
        files = [*folder.glob("partition-*"), *folder.glob(".partition-*.tmp")] if session else []
        gone = [file for file in files if asked.models or file.suffix not in _MODEL]
        used = max((file.stat().st_mtime for file in files), default=limit)
        if not gone or used >= limit:
            continue
        if why := ledger.clean(session, unfinished=asked.unfinished, dry_run=dry_run):
            gone = [file for file in gone if file.suffix in _KEYS and why == NOT_ENDED]
            click.echo(f"kept {folder.name}: {why}{', but no keys of its session' * bool(gone)}")
        else:
            count += 1
            kept = f", {len(files) - len(gone)} of its model stay" if len(files) > len(gone) else ""
            click.echo(f"{folder.name}: {len(gone)} files{kept}")
        if not dry_run:
            for file in gone:
                file.unlink()
            with suppress(OSError):  # not empty
                folder.rmdir()
    click.echo(f"{'would clean' if dry_run else 'cleaned'} {count} runs")


def _seconds(text: str) -> float:
    """Return a duration such as 30d in seconds."""
    found = re.fullmatch(r"(\d{1,6})([hdw])", text)
    if found is None:
        raise OptionError(
            f"--older-than is {text!r}", remedy="write 12h, 30d or 8w", code="FK-OPTION-TYPE"
        )
    return int(found[1]) * _UNITS[found[2]]


#: ``fedkern node start`` passes further options on.
_PASSED = {"allow_extra_args": True, "ignore_unknown_options": True}
_POLICY = (
    of_function("show", show_policy, ShowOptions),
    of_function("check", check_policy, CheckOptions),
)
command = group(
    "node",
    "For the owner of a node.",
    [
        of_function("init", init_node, InitOptions),
        of_function("trust", trust_parties, TrustOptions),
        of_function("status", show_status, StatusOptions),
        of_function("freeze", freeze_rows, FreezeOptions),
        of_function("clean", clean_folders, CleanOptions),
        of_function("start", start_node, StartOptions, context_settings=_PASSED),
        of_function("feed", feed_stream, FeedOptions),
        group("policy", "What a node takes part in.", _POLICY),
        group(
            "ledger",
            "What a node has answered.",
            [of_function("show", show_ledger, LedgerOptions)],
        ),
    ],
)

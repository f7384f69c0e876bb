"""``fedkern node status``, ``freeze``, ``ledger show`` and ``clean``."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from fedkern_flwr.checkpoint import session_of
from fedkern_flwr.errors import OptionError
from fedkern_flwr.frozen_files import FrozenFiles, NodeFiles
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.freeze import HELD_OUT, USED, Change, Freeze
from fedkern_flwr.guard.ledger import NOT_ENDED, NodeLedger, RunSummary, ledger_totals
from fedkern_flwr.guard.policy import read_policy
from fedkern_flwr.node_config import claim_folder, read_config

from ..deployment.report import NodeStatus
from ..run.options import declare, switch
from .console import print_table

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

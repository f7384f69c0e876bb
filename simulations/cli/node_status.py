"""``fedkern node status``: whether a node runs and is connected, for its owner and for monitors."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkern_flwr.errors import OptionError
from fedkern_flwr.guard.ledger import ledger_totals

from ..warm_node.report import NodeStatus

CONNECTED, NOT_CONNECTED, NOT_RUNNING = 0, 1, 3

_STUCK = "stuck"
_STATES = {CONNECTED: "connected", NOT_CONNECTED: "not connected", NOT_RUNNING: "not running"}


def show_status(
    state_dir: Annotated[Path, typer.Option("--state-dir", help="The node's own folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON object.")] = False,
    max_age: Annotated[
        float, typer.Option("--max-age", min=0.0, help="Seconds after which a status is too old.")
    ] = 60.0,
) -> int:
    """Show whether a node of 'fedkern node start' is connected, and what it has answered.

    Exit code 0: connected; 1: it runs, and is not connected, is stuck on a message, or says nothing
    any more; 2: bad input; 3: it does not run.
    """
    if not state_dir.is_dir():
        raise OptionError(
            f"there is no folder {state_dir}",
            remedy="name the state-dir of the node's configuration",
            code="FK-NODE-FOLDER",
        )
    status, totals = NodeStatus.read(state_dir), ledger_totals(state_dir)
    code, state = _state(status, max_age)
    told: dict[str, Any] = {"state": state}
    if status is not None:
        connected = code == CONNECTED or state.startswith(_STUCK)
        told |= {**asdict(status), "connected": connected}
    told["ledger"] = None if totals is None else asdict(totals)
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    else:
        for name, value in _rows(told):
            typer.echo(f"{name:<18} {value}")
    return code


def _state(status: NodeStatus | None, max_age: float) -> tuple[int, str]:
    """Return exit code and state of a node."""
    if status is None or not status.running:
        return NOT_RUNNING, _STATES[NOT_RUNNING]
    if status.age > max_age:
        return NOT_CONNECTED, f"silent for {status.age:.0f} s"
    if status.connected and status.stuck:
        do = "stop that run with flwr stop, or start the node again"
        return NOT_CONNECTED, f"{_STUCK} on a message of run {status.run}: {status.stuck}; {do}"
    code = CONNECTED if status.connected else NOT_CONNECTED
    return code, _STATES[code]


def _rows(told: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what is shown of a node, by name."""
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
        ("figures told", f"{ledger['told']} times about the same rows"),
        *(("warning", limit) for limit in ledger["near"]),
        ("refusals", refused or "-"),
    ]

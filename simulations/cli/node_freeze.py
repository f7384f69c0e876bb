"""``fedkern node freeze``: the owner freezes the node's rows, and sees what waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkern_flwr.errors import OptionError
from fedkern_flwr.frozen_files import FrozenFiles, NodeFiles
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.freeze import HELD_OUT, USED, Change, Freeze
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.guard.policy import read_policy
from fedkern_flwr.node_config import claim_folder, read_config

from .console import print_table


def freeze_rows(
    node_config: Annotated[Path, typer.Option(help="TOML file of the node's configuration.")],
    show: Annotated[bool, typer.Option("--show", help="Show blocks and what waits.")] = False,
    withdraw: Annotated[
        Path | None, typer.Option(help="File of ids, one a line, whose rows leave at once.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let all changes take effect.")] = False,
    reset_failures: Annotated[
        bool, typer.Option("--reset-failures", help="Take part again after failed runs.")
    ] = False,
) -> None:
    """Freeze the node's rows in blocks, or let changes take effect that form whole blocks.

    A run does the same when it begins. --withdraw takes other rows along, for good. What --force
    does can show single rows to the server.
    """
    config = read_config(node_config)
    for key in ("data", "state-dir", "partition-id"):
        if key not in config:
            raise OptionError(
                f"{node_config.name} does not name {key}",
                remedy="streams, ratings and nodes without a state-dir have no freeze",
                code="FK-NODE-KEY",
            )
    policy = read_policy(str(config["policy"])) if "policy" in config else NodePolicy()
    state_dir, partition = Path(str(config["state-dir"])), int(config["partition-id"])
    claim_folder(state_dir, partition)
    files, node = FrozenFiles(state_dir, partition, policy), NodeFiles.of(config)
    if not files.may_begin():  # with a budget a ledger is never begun anew
        known_ledger(state_dir, partition)
    if reset_failures:
        number = known_ledger(state_dir, partition).failures(reset=True)
        typer.echo(f"{number} runs had failed here by values of rows; now none counts")
    elif show:
        _show(files, node)
    else:
        ids = [] if withdraw is None else _read_ids(withdraw)
        NodeLedger(state_dir, partition).make()
        table, change = files.update(node, force=force, withdraw=ids)
        if table is None:
            typer.echo(f"there are too few rows for a block of {policy.min_own_rows}")
            return
        done = ", ".join(f"{n} {kind}" for kind, n in change.done.items() if n)
        typer.echo(f"took effect: {done or 'nothing'}")
        typer.echo(str(change))
        if force:
            typer.echo("what was forced may be computed from the sums of earlier and later runs")


def known_ledger(state_dir: Path, partition: int = 0) -> NodeLedger:
    """Return the ledger in a folder.

    Raises
    ------
    OptionError
        There is none.
    """
    ledger = NodeLedger(state_dir, partition)
    if not ledger.exists:
        raise OptionError(
            f"there is no {ledger.file.path.name} in {state_dir}",
            remedy="name the state-dir of the node's configuration; a first run makes the ledger",
            code="FK-LEDGER-NONE",
        )
    return ledger


def _show(files: FrozenFiles, node: NodeFiles) -> None:
    freeze = Freeze.load(files.folder)
    if freeze is None:
        typer.echo("nothing is frozen yet; the first run does it, or `fedkern node freeze`")
        return
    print_table(("block", "part", "rows", "stratum"), list(_blocks(freeze)))
    change: Change = files.preview(node)
    done = ", ".join(f"{n} {kind}" for kind, n in change.done.items() if n)
    typer.echo(f"{int(freeze.used.sum())} rows are in blocks")
    typer.echo(f"a run that begins now: {done or 'nothing'} will take effect; {change}")


def _blocks(freeze: Freeze) -> Iterator[tuple[str, ...]]:
    """Yield a line for each block in use; strata are numbered, not named."""
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

"""A server that asks all nodes, again and again, and writes down how long that takes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.transport import exchange, request_content, swift
from fedkern_flwr.watch import Ledger

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask all nodes several times."""
    config = context.run_config
    while len(nodes := list(grid.get_node_ids())) < int(config["nodes"]):
        time.sleep(0.1)
    values = np.zeros(int(config["payload"]), np.uint8)
    content = request_content(ArrayRecord([values]), ConfigRecord({}))
    if config["swift"]:
        grid = swift(grid)
    found = []
    for k in range(int(config["exchanges"])):
        messages = [
            Message(content, dst_node_id=node, message_type="train", group_id=str(k))
            for node in nodes
        ]
        started = time.monotonic()
        outcome = exchange(grid, messages, phase="ping", timeout=600.0, ledger=Ledger())
        found.append((time.monotonic() - started, len(outcome.replies)))
    Path(str(config["result"])).write_text(json.dumps(found))

"""Start a warm node; no import here starts a thread."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedkern_flwr.options import memory
from fedkern_flwr.threads import processors

LogFormat = Literal["text", "json"]

#: Keeps libraries from starting threads at import.
NO_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
_SHARE = 0.75  # of the memory that there is, for a message


@dataclass(frozen=True)
class NodeSettings:
    """Settings of a warm node.

    ``supernode`` are more arguments of ``flower-supernode``, ``port`` is that of its runtime API,
    ``max_processes`` limits messages at a time, ``message_seconds`` and ``message_gigabytes`` an
    answer. A process gets ``grace`` seconds to end by itself.
    """

    superlink: str
    node_config: str
    supernode: Sequence[str]
    port: int
    max_processes: int = 1
    message_seconds: float = 3600.0
    message_gigabytes: float = field(default_factory=lambda: round(_SHARE * memory() / 1e9, 1))
    threads: int = field(default_factory=lambda: _threads())
    metrics: str = ""
    log_format: LogFormat = "text"
    grace: float = 10.0


def node_command(
    superlink: str, node_config: Path, supernode: Sequence[str], port: int, **more: Any
) -> list[str]:
    """Return the command of a warm node; ``None`` keeps a default of :class:`NodeSettings`.

    Its environment needs :data:`NO_THREADS`.
    """
    given = {name: value for name, value in more.items() if value is not None}
    settings = NodeSettings(superlink, str(node_config.resolve()), supernode, port, **given)
    module = f"{__package__}.warm_node"
    return [sys.executable, "-P", "-m", module, json.dumps(asdict(settings))]


def _threads() -> int:
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdigit() and int(wanted) else processors()

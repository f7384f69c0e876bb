"""What a warm node is started with; nothing is imported here that starts a thread."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fedkern_flwr.threads import processors

#: What keeps libraries from starting threads when they are imported.
NO_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
_SHARE = 0.75  # of the machine's memory that a message may take


@dataclass(frozen=True)
class NodeSettings:
    """What a warm node is started with.

    Attributes
    ----------
    supernode : sequence of str
        Arguments of ``flower-supernode``.
    port : int
        Of the SuperNode's runtime API, on 127.0.0.1.
    max_processes : int
        How many messages are answered at a time.
    message_seconds : float
        What one may take.
    message_gigabytes : float
        Memory that one may take.
    threads : int
        How many threads linear algebra may use.
    """

    supernode: Sequence[str]
    port: int
    max_processes: int
    message_seconds: float
    message_gigabytes: float
    threads: int


def node_command(
    supernode: Sequence[str],
    port: int,
    *,
    max_processes: int = 1,
    message_seconds: float = 3600.0,
    message_gigabytes: float | None = None,
) -> list[str]:
    """Return the command of a warm node; see :class:`NodeSettings`.

    Its environment needs :data:`NO_THREADS`.
    """
    if message_gigabytes is None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        message_gigabytes = round(_SHARE * memory / 1e9, 1)
    threads = int(os.environ.get("OMP_NUM_THREADS", "0")) or processors()
    settings = NodeSettings(
        supernode, port, max_processes, message_seconds, message_gigabytes, threads
    )
    module = f"{__package__}.supervisor"
    return [sys.executable, "-m", module, json.dumps(asdict(settings))]

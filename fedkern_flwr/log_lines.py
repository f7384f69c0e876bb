"""Write log lines as JSON objects, in the same format at nodes and at the server."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from .errors import OptionError
from .flower_compat import time_the_log


def utc_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def json_line(text: str, level: str, source: str, run: int | None = None, **facts: Any) -> str:
    """Return a log line as one JSON object.

    Parameters
    ----------
    text : str
        The text, without level and time.
    level : str
        Such as ``INFO``.
    source : str
        Name of the program.
    run : int, optional
        Flower's run number.
    **facts
        Further fields.
    """
    about = {"time": utc_now(), "level": level, "source": source}
    if run is not None:
        about["run"] = str(run)  # more digits than a double has
    return json.dumps({**about, "text": text, **facts}, ensure_ascii=False, default=str)


class JsonLines(logging.StreamHandler[Any]):
    """Print log records as JSON objects, one a line."""

    def __init__(self, source: str, run: int) -> None:
        super().__init__(sys.stdout)
        self.setLevel(logging.INFO)
        self._about = source, run

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record; its ``facts`` are further fields."""
        facts = getattr(record, "facts", {})
        return json_line(super().format(record), record.levelname, *self._about, **facts)


def log_as(form: str, run: int) -> None:
    """Let this process log with times, as ``text`` or ``json``."""
    if form not in ("text", "json"):
        raise OptionError(
            f"log-format is {form!r}", remedy="use text or json", code="FK-OPTION-CHOICE"
        )
    if form == "text":
        time_the_log()
        return
    handler = JsonLines("coordinator", run)
    for name in ("flwr", "fedkern_flwr"):
        logger = logging.getLogger(name)
        logger.handlers[:], logger.propagate = [handler], False

"""Lines of a log as JSON objects, alike at a node and at the server of a run."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from .errors import OptionError
from .flower_compat import time_the_log


def utc_now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def json_line(text: str, level: str, source: str, run: int | None = None, **facts: Any) -> str:
    """Return a line of a log as one JSON object.

    Parameters
    ----------
    text : str
        What it says, without level and time.
    level : str
        Such as ``INFO``.
    source : str
        Who says it.
    run : int, optional
        Flower's run that it is about.
    **facts
        Further fields, for programs.
    """
    about = {"time": utc_now(), "level": level, "source": source}
    if run is not None:
        about["run"] = str(run)  # more digits than a double has
    return json.dumps({**about, "text": text, **facts}, ensure_ascii=False, default=str)


class JsonLines(logging.StreamHandler[Any]):
    """Prints what is logged as JSON objects, one a line; what cannot be printed ends no run.

    Parameters
    ----------
    source : str
        Who logs.
    run : int
        The run.
    """

    def __init__(self, source: str, run: int) -> None:
        super().__init__(sys.stdout)
        self.setLevel(logging.INFO)
        self._about = source, run

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record; its ``facts`` are further fields."""
        facts = getattr(record, "facts", {})
        return json_line(super().format(record), record.levelname, *self._about, **facts)


def log_as(form: str, run: int) -> None:
    """Have this process log with times, in lines of text or of JSON.

    Parameters
    ----------
    form : {"text", "json"}
        How lines look.
    run : int
        The run that they are about.

    Raises
    ------
    OptionError
    """
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

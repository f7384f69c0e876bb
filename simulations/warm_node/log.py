"""The lines that a node's processes print: as they are, or as JSON; and what they tell of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedkern_flwr.flower_compat import CONNECTED, DISCONNECTED, RUN_OF_MESSAGE
from fedkern_flwr.log_lines import json_line
from fedkern_flwr.plain_text import plain_line

SUPERNODE = "supernode"

# As Flower prints it, "INFO :  text", with the time where it logs more, and as uvicorn does.
_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) ?(?:\d{4}-\d\d-\d\d [\d:,]+ ?)?:( |$)")
_LONGEST = 10_000  # characters of a line


@dataclass(frozen=True)
class Line:
    """A line of a log.

    Attributes
    ----------
    source : str
        Who printed it: ``supernode``, ``executor``, ``client`` or ``node``, which keeps them.
    text : str
        What it says, without colours and the level.
    level : str
        ``DEBUG``, ``INFO``, ``WARNING``, ``ERROR`` or ``CRITICAL``; of a line that states none,
        such as those of a traceback, the level of the line before.
    run : int, optional
        The run that it is about, if it is known.
    """

    source: str
    text: str
    level: str = "INFO"
    run: int | None = None

    def to_json(self) -> str:
        """Return it as one JSON object on a line."""
        return json_line(self.text, self.level, self.source, self.run)


class LogReader:
    """Makes lines of what one process prints.

    Parameters
    ----------
    source : str
        Who prints.
    run : int, optional
        The run that all of it is about.
    """

    def __init__(self, source: str, run: int | None = None) -> None:
        self.source, self.run, self._level = source, run, "INFO"

    def line(self, printed: str) -> Line:
        """Return the parts of a line that was printed, which comes without its end."""
        text = plain_line(printed, _LONGEST)
        found = _LEVEL.match(text)
        if found is not None:
            self._level, text = found[1], text[found.end() :]
        else:  # of a traceback
            text = " " * (len(printed) - len(printed.lstrip(" "))) + text
        about = re.match(RUN_OF_MESSAGE, text)
        if about is not None and self.source == SUPERNODE:
            self.run = int(about[1])
        return Line(self.source, text, self._level, self.run)


def connection(line: Line) -> bool | None:
    """Tell from a line of the SuperNode whether it reaches the SuperLink; None if it says neither.

    Only what the SuperNode itself prints counts.
    """
    if line.source != SUPERNODE:
        return None
    if line.text.startswith(CONNECTED):
        return True
    return False if line.text.startswith(DISCONNECTED) else None

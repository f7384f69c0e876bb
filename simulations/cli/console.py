"""Progress and notes on standard error, results on standard output."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fedkern_flwr.flower_compat import quiet_flower

FILE_WIDTH = 120  # columns of a log file
_HOUR = 3600.0  # seconds of steps that the time left is reckoned from
_PAUSE = 60.0  # seconds between two lines of a log file that say how far the same work is
_SOON = 2.0  # seconds after which a log file says what is being done


class Screen:
    """Output of a command.

    Parameters
    ----------
    quiet : bool
        Show nothing but errors.
    json_target : str or None (default: None)
        Target of ``--json``; with -, tables go to standard error.
    """

    def __init__(self, quiet: bool = False, json_target: str | None = None) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        if not self.console.is_terminal:
            self.console.width = FILE_WIDTH
        self.results = Console(quiet=quiet, highlight=False)
        on_one_screen = self.console.is_terminal and self.results.is_terminal
        if json_target == "-" or on_one_screen:  # where a bar and a table would overwrite another
            self.results = self.console
        quiet_flower(logging.CRITICAL)
        handler = RichHandler(console=self.console, show_path=False, show_time=False)
        #: What warnings are about, where several things are run.
        self.subject = ""
        handler.addFilter(_Once(self))
        logger = logging.getLogger("fedkern_flwr")
        logger.handlers[:] = [handler]
        logger.setLevel(logging.WARNING)
        logger.propagate = False

    def note(self, text: str) -> None:
        """Print a line on standard error."""
        self.console.print(text, markup=False, soft_wrap=True)

    def result(self, text: str) -> None:
        """Print a line of the results."""
        self.results.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def progress(self) -> Iterator[ProgressBar | ProgressLines]:
        """Show a progress bar during the block, or lines in a log file."""
        if not self.console.is_terminal:
            lines = ProgressLines(self.note)
            try:
                yield lines
            finally:
                lines.close()
            return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(
            *columns,
            console=self.console,
            transient=True,
            speed_estimate_period=_HOUR,
        ) as bar:
            yield ProgressBar(bar)

    @contextmanager
    def status(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show the current step during the block; yield a function that changes it."""
        if not self.console.is_terminal:
            lines, steps = ProgressLines(self.note), self._lines()
            lines.update(text, 0, 0)

            def say(step: str) -> None:
                lines.close()  # a step says more than the text of the block
                steps(step)

            try:
                yield say
            finally:
                lines.close()
            return
        with self.console.status(text) as status:
            yield status.update

    def _lines(self) -> Callable[[str], None]:
        """Return a printer of steps; one that counts seconds is printed once."""
        said: set[str] = set()

        def say(text: str) -> None:
            step = text.partition(",")[0]
            if step not in said:
                said.add(step)
                self.note(step)

        return say

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, text: int = 1
    ) -> None:
        """Print a table; the first ``text`` columns are text."""
        table = plain_table()
        for number, column in enumerate(columns):
            justify: Literal["left", "right"] = "left" if number < text else "right"
            table.add_column(column.replace(" ", "\n"), justify=justify, no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self.results.print(f"\n{title}", style="bold", markup=False, soft_wrap=True)
        print_whole(self.results, table)


def print_whole(console: Console, table: Table) -> None:
    """Print a table without wrapping in a file."""
    if not console.is_terminal:
        unbounded = console.options.update(max_width=10_000)
        console.width = max(80, console.measure(table, options=unbounded).maximum)
    console.print(table)


def plain_table(*headings: str) -> Table:
    """Return a table with a line below its headings."""
    return Table(*headings, header_style="bold", box=SIMPLE_HEAD, pad_edge=False)


class _Once(logging.Filter):
    """Filter that passes a message once per subject."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the message is new."""
        text = record.getMessage()
        if self._screen.subject:
            text = f"{self._screen.subject}: {text}"
            record.msg, record.args = text, ()
        new = text not in self._seen
        self._seen.add(text)
        return new


class ProgressLines:
    """Lines for long steps in a log file, once a minute.

    Equal steps of several runs have one line.

    Parameters
    ----------
    say : callable
        Prints a line.
    soon : float (default: 2.0)
        Seconds before the first line of a step.
    """

    def __init__(self, say: Callable[[str], None], soon: float = _SOON) -> None:
        self._say, self._soon = say, soon
        self._next = time.monotonic() + _PAUSE
        self._label = self._count = self._work = self._step = self._line = ""
        self._said: set[str] = set()
        self._timer: threading.Timer | None = None

    def update(self, label: str, done: float, total: int) -> None:
        """Note the progress of the current run."""
        if label != self._label:
            self._label, self._work = label, ""
        self._count = f"{int(done)} of {total}" if total else ""
        self._note()

    def work(self, text: str, done: int, of: int) -> None:
        """Note the current step within a run."""
        self._work, self._step = text, f", {done} of {of}" if of else ""
        self._note()

    def close(self) -> None:
        """Print nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _text(self) -> str:
        """Current step, equal in all runs."""
        return self._work or ("" if self._count else self._label.rpartition(": ")[2])

    def _note(self) -> None:
        self._line = f"{self._label}: {self._count}" if self._count else self._label
        if self._work:
            count = f" ({self._count})" if self._count else ""
            self._line = f"{self._label}{count}: {self._work}{self._step}"
        if time.monotonic() >= self._next:
            self._print()
        elif self._text not in self._said and self._timer is None:
            # Work that takes long calls nobody meanwhile, so the line comes from another thread.
            self._timer = threading.Timer(self._soon, self._print_new)
            self._timer.daemon = True
            self._timer.start()

    def _print_new(self) -> None:
        self._timer = None
        if self._text not in self._said:
            self._print()

    def _print(self) -> None:
        self._next = time.monotonic() + _PAUSE
        self._said.add(self._text)
        self._say(self._line)


class ProgressBar:
    """A line per run; finished ones disappear."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting the engine", total=None)
        self._work: TaskID | None = None  # what is being done within the draw at hand
        self._label = self._text = ""

    def update(self, label: str, done: float, total: int) -> None:
        """Show the progress of the current run, or a spinner without a ``total``."""
        if label != self._label:
            self._label = label
            self._end_work()
        if not total:
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task(label, total=None)
            return
        self._bar.update(self._task, description=label, completed=done, total=total)

    def work(self, text: str, done: int, of: int) -> None:
        """Show the current step within a run."""
        if text != self._text or self._work is None:
            self._end_work()
            self._text, self._work = text, self._bar.add_task(f"  {text}", total=None)
        self._bar.update(self._work, completed=done, total=of or None)

    def _end_work(self) -> None:
        if self._work is not None:
            self._bar.remove_task(self._work)
            self._work = None


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to standard output."""
    console = Console(highlight=False)
    table = plain_table(*heads)
    for row in rows:
        table.add_row(*map(escape, row))
    print_whole(console, table)

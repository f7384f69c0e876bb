"""Commands that are imported when they are called."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import Any

import click
from typer.core import TyperCommand


class LazyCommand(TyperCommand):
    """A command with a name and a help text, loaded on demand.

    Parameters
    ----------
    name : str
    text : str or callable
        Help text, or a function that returns it.
    load : callable or str
        Returns the command; or the module in this folder with a ``command``.
    """

    def __init__(
        self,
        name: str,
        text: str | Callable[[], str],
        load: Callable[[], click.Command] | str,
    ) -> None:
        super().__init__(name)
        self._text, self._load = text, load

    @property
    def help(self) -> str | None:
        """The line of help."""
        return self._text if isinstance(self._text, str) else self._text()

    @help.setter
    def help(self, text: str | None) -> None:
        """Click sets none."""

    @cached_property
    def loaded(self) -> click.Command:
        """The command itself."""
        if isinstance(self._load, str):
            found: click.Command = import_module(f".{self._load}", __package__).command
            return found
        return self._load()

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **more: Any,
    ) -> click.Context:
        """Return the context of the loaded command."""
        return self.loaded.make_context(info_name, args, parent, **more)

"""Options as Typer wants them: a command with a parameter for each."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import click
import typer
from rich.markup import escape

from ..options import Option


def parameter(option: Option) -> tuple[str, Any, Any]:
    """Return (argument, annotation, default) of an option, as Typer wants it."""
    kind, choices, optional = _read_type(option.type)
    flag = option.flag
    if not flag:
        name = option.name.replace("_", "-")
        flag = f"--{name}/--no-{name}" if kind is bool else f"--{name}"
    annotation: Any = kind | None if optional else kind
    chosen_of = click.Choice(choices) if choices else None
    text = escape(option.help)  # brackets are not markup
    shown = typer.Option(flag, help=text, rich_help_panel=option.panel, click_type=chosen_of)
    return option.name, Annotated[annotation, shown], option.default


def build_command(
    run: Callable[[dict[str, Any]], None], parameters: list[tuple[str, Any, Any]], text: str
) -> Callable[..., None]:
    """Return a function with the given parameters for Typer, which reads its signature."""

    def command(**values: Any) -> None:
        run(values)

    command.__doc__ = text
    command.__annotations__ = {name: annotation for name, annotation, _ in parameters}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
            )
            for name, annotation, default in parameters
        ]
    )
    return command


def _read_type(hint: Any) -> tuple[Any, tuple[str, ...], bool]:
    """Return (type for Typer, choices, whether None is allowed) of an annotation."""
    optional = False
    if get_origin(hint) in (typing.Union, type(int | None)):
        (inner,) = (arg for arg in get_args(hint) if arg is not NoneType)
        hint, optional = inner, True
    if get_origin(hint) is Literal:
        return str, get_args(hint), optional
    if get_origin(hint) is Iterable or get_origin(hint) is not None:
        return list[float], (), optional
    return hint, (), optional

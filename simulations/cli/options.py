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

from ..run.options import Option


def build_command(
    run: Callable[[dict[str, Any]], None], options: Iterable[Option], text: str
) -> Callable[..., None]:
    """Return a function with a parameter per option for Typer, which reads its signature."""
    parameters = [_parameter(option) for option in options]

    def command(**values: Any) -> None:
        run(values)

    command.__doc__ = text
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameter(option: Option) -> inspect.Parameter:
    """Return an option as a parameter that Typer understands."""
    kind, choices, optional = _read_type(option.type)
    flag = option.flag
    if not flag:
        name = option.name.replace("_", "-")
        flag = f"--{name}/--no-{name}" if kind is bool else f"--{name}"
    annotation: Any = kind | None if optional else kind
    chosen_of: Any = click.Choice(choices) if choices else None
    if kind is int and choices:  # a number or a word
        chosen_of, annotation = _NumberOr(choices), Any
    text = escape(option.help)  # brackets are not markup
    shown = typer.Option(flag, help=text, rich_help_panel=option.panel, click_type=chosen_of)
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[annotation, shown],
        default=option.default,
    )


class _NumberOr(click.ParamType):  # type: ignore[type-arg]
    """A whole number or one of a few words."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words, self.name = words, "|".join(("integer", *words))

    def convert(self, value: Any, param: Any, ctx: Any) -> int | str:
        """Read what was typed."""
        if isinstance(value, int) or value in self.words:
            return value  # type: ignore[no-any-return]
        try:
            return int(value)
        except ValueError:
            return str(self.fail(f"{value!r} is neither a number nor {', '.join(self.words)}"))


def _read_type(hint: Any) -> tuple[Any, tuple[str, ...], bool]:
    """Return (type for Typer, choices, whether None is allowed) of an annotation."""
    optional = False
    if get_origin(hint) in (typing.Union, type(int | None)):
        words = [get_args(arg) for arg in get_args(hint) if get_origin(arg) is Literal]
        if words and int in get_args(hint):
            return int, words[0], False
        (inner,) = (arg for arg in get_args(hint) if arg is not NoneType)
        hint, optional = inner, True
    if get_origin(hint) is Literal:
        return str, get_args(hint), optional
    if get_origin(hint) is list:
        return hint, (), optional
    if get_origin(hint) is not None:
        return list[float], (), optional
    return hint, (), optional

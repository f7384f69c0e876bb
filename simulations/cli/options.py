"""Commands from options: a Click parameter for each, with short and full help."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import MISSING
from functools import partial
from inspect import cleandoc
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from rich.markup import escape
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from fedkern_flwr.options import gone, members, removed_value, take_out

from ..run.options import ARGUMENTS, PANELS, Option, of_fields
from .lazy import LazyCommand

#: What the short help of every command shows; methods add theirs.
_USUAL = {"data", "party", "label", "id_column", "test_size", "user", "item", "rounds", "engine"}
_USUAL |= {"seed", "out"}
_USUAL |= {"nodes", "predict", "trials", "allow_small_sums"}
_TYPES = {int: click.INT, float: click.FLOAT, str: click.STRING, Path: click.Path(path_type=Path)}

T = TypeVar("T")


def by_method(
    name: str,
    text: str,
    methods: Iterable[str],
    run: Callable[[str, dict[str, Any]], None],
    options_of: Callable[[str], list[Option]],
) -> TyperGroup:
    """Return a command with a subcommand for each method."""
    from ..methods.registry import METHODS, family  # which load what other commands do not need

    def summary(method: str) -> str:
        return escape((METHODS[method].__doc__ or "").strip().splitlines()[0])

    def build(method: str) -> click.Command:
        usual = _USUAL | family(method).usual_options(method)
        found = options_of(method)
        known = {o.name for o in found}
        absent = [
            Option(one, (bool if row.switch else str) | None, None, "")
            for one, row in gone(method, known=known).items()
        ]

        def checked(values: dict[str, Any]) -> None:
            given = {one.name: values.pop(one.name) for one in absent}
            take_out(method, {name: value for name, value in given.items() if value is not None})
            run(method, values)

        return command(method, summary(method), [*found, *absent], checked, usual)

    lazy = [LazyCommand(one, partial(summary, one), partial(build, one)) for one in methods]
    return group(name, text, lazy)


def group(name: str, text: str, commands: Iterable[click.Command]) -> TyperGroup:
    """Return a command with subcommands."""
    return TyperGroup(
        name=name,
        help=text,
        commands=[*commands],
        no_args_is_help=True,
        rich_markup_mode="rich",
        suggest_commands=False,  # Click does
    )


def of_function(name: str, run: Callable[[T], Any], kind: type[T], **more: Any) -> click.Command:
    """Return a command for a function that takes a dataclass of options."""
    text = escape(cleandoc(run.__doc__ or ""))
    return command(name, text, of_fields(kind, ""), lambda values: run(kind(**values)), **more)


def command(
    name: str,
    text: str,
    options: Iterable[Option],
    run: Callable[[dict[str, Any]], Any],
    usual: Collection[str] | None = None,
    **more: Any,
) -> click.Command:
    """Return a command with a parameter per option.

    Parameters
    ----------
    name : str
        Name.
    text : str
        Help; lines of a paragraph are joined.
    options : iterable of Option
        Options, shown by panel.
    run : callable
        Called with name -> value; returns the exit code.
    usual : collection of str, optional
        Options of the short help; ``--help-all`` shows all.
    **more
        See :class:`click.Command`.
    """
    panels = [ARGUMENTS, "", *PANELS]
    ordered = sorted(options, key=lambda option: panels.index(option.panel))
    shown = {o.name for o in ordered} if usual is None else usual
    params = [_parameter(one, one.name not in shown) for one in ordered]
    defaults = {o.name: o.default for o in ordered}

    def call(**values: Any) -> Any:
        lists = {k: list(v) or defaults[k] for k, v in values.items() if isinstance(v, tuple)}
        return run({**values, **lists})

    return TyperCommand(
        name,
        callback=call,
        params=[*params, *([] if usual is None else [_every()])],
        help="\n\n".join(" ".join(part.split()) for part in text.split("\n\n")),
        rich_markup_mode="rich",
        **more,
    )


def _every() -> click.Option:
    """Return the option ``--help-all``."""

    def show_all(context: click.Context, _: click.Parameter, asked: bool) -> None:
        if not asked:
            return
        command = copy(context.command)
        command.params = [copy(one) for one in command.params]
        for one in command.params:
            one.hidden = not getattr(one, "help", "")  # type: ignore[attr-defined]  # removed ones
        click.echo(command.get_help(context))
        context.exit()

    return TyperOption(
        param_decls=["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show_all,
        help="Show all options and exit.",
    )


def _parameter(option: Option, hidden: bool) -> click.Parameter:
    """Return an option as a parameter of Click."""
    kinds = [kind for kind in members(option.type) if kind is not NoneType]
    words = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), option.choices)
    (kind,) = [one for one in kinds if get_origin(one) is not Literal] or [str]
    several, flag = get_origin(kind) is not None, option.flag
    if several:  # sequences are of numbers
        kind = get_args(kind)[0] if get_origin(kind) is list else float
    taken: Any = None if kind is bool else _TYPES.get(kind)
    if words:
        taken = _NumberOr(words) if kind is int else _Choice(option.name, words)
    elif option.limits is not None:
        ranged: Any = click.IntRange if kind is int else click.FloatRange
        taken = ranged(*option.limits)
    shown: dict[str, Any] = {
        "type": taken,
        "help": escape(option.help),  # brackets are not markup
        "required": option.default is MISSING,
        "default": None if option.default is MISSING else option.default,
        "show_default": True,
    }
    if option.panel == ARGUMENTS:
        if option.choices and not several:
            shown["help"] += f" One of {', '.join(option.choices)}."
        more: dict[str, Any] = {"nargs": -1 if several else None, "metavar": option.metavar or None}
        made = TyperArgument(param_decls=[option.name], **shown, **more)
        made.help = shown["help"]  # which Click 8.5 drops
        return made
    if not flag:
        flag = f"--{option.name.replace('_', '-')}"
        flag += f"/--no-{flag[2:]}" * (kind is bool)
    return TyperOption(
        param_decls=[option.name, *flag.split()],
        is_flag=True if kind is bool else None,
        multiple=several,
        hidden=hidden,
        rich_help_panel=option.panel or None,
        **shown,
    )


class _Choice(click.Choice[str]):
    """Choices; removed ones give their own error."""

    def __init__(self, name: str, choices: tuple[str, ...]) -> None:
        super().__init__(choices)
        self._name = name

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the word."""
        if value not in self.choices and (error := removed_value(self._name, value)):
            raise error
        return super().convert(value, param, ctx)


class _NumberOr(click.ParamType):  # type: ignore[type-arg]
    """A whole number or a word."""

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

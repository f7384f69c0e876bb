"""Options as Typer wants them: a command with a parameter for each."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Iterable
from copy import copy
from functools import partial
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import click
import typer
from rich.markup import escape
from typer.core import TyperGroup

from fedkern_flwr.options import gone, removed_value, take_out

from ..methods.registry import METHODS, family
from ..run.options import PANELS, Option
from .lazy import LazyCommand, as_command

#: What the short help of every command shows; methods add theirs.
_USUAL = {"data", "party", "label", "id_column", "test_size", "user", "item", "rounds", "engine"}
_USUAL |= {"seed", "out"}
_USUAL |= {"nodes", "predict", "trials", "allow_small_sums"}


def by_method(
    name: str,
    text: str,
    methods: Iterable[str],
    run: Callable[[str, dict[str, Any]], None],
    options_of: Callable[[str], list[Option]],
) -> TyperGroup:
    """Return a command with a command for each method, with the method's options."""

    def summary(method: str) -> str:
        return (METHODS[method].__doc__ or "").strip().splitlines()[0]

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

        return as_command(method, build_command(checked, [*found, *absent], summary(method), usual))

    found = TyperGroup(
        name=name,
        help=text,
        no_args_is_help=True,
        rich_markup_mode="rich",
        suggest_commands=False,  # Click does
    )
    for method in methods:
        told = partial(lambda name: escape(summary(name)), method)
        found.add_command(LazyCommand(method, told, partial(build, method)))
    return found


def build_command(
    run: Callable[[dict[str, Any]], None],
    options: Iterable[Option],
    text: str,
    usual: Collection[str],
) -> Callable[..., None]:
    """Return a function with a parameter per option for Typer, which reads its signature.

    The help shows the ``usual`` ones; all of them with ``--help-all``.
    """

    def command(**values: Any) -> None:
        run(values)

    command.__doc__ = escape(text)
    return with_options(command, options, usual)


def with_options(
    function: Callable[..., None], options: Iterable[Option], usual: Collection[str]
) -> Callable[..., None]:
    """Return a function that has a parameter per option beside those it names, for Typer.

    The help shows the ``usual`` ones; all of them with ``--help-all``.
    """
    ordered = sorted(options, key=lambda option: PANELS.index(option.panel))
    named = inspect.signature(function, eval_str=True).parameters.values()
    parameters = [
        *(one for one in named if one.kind is not one.VAR_KEYWORD),
        *(_parameter(option, option.name not in usual) for option in ordered),
        _EVERY,
    ]

    def command(**values: Any) -> None:
        del values[_EVERY.name]
        function(**values)

    command.__doc__ = function.__doc__
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _show_all(context: typer.Context, asked: bool) -> None:
    """Show the help with what is hidden."""
    if not asked:
        return
    command = copy(context.command)
    command.params = [copy(one) for one in command.params]
    for one in command.params:
        one.hidden = not getattr(one, "help", "")  # type: ignore[attr-defined]  # removed options
    click.echo(command.get_help(context))
    raise typer.Exit


_EVERY = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    annotation=Annotated[
        bool,
        typer.Option(
            "--help-all",
            help="Show all options and exit.",
            is_eager=True,
            callback=_show_all,
        ),
    ],
    default=False,
)


def _parameter(option: Option, hidden: bool) -> inspect.Parameter:
    """Return an option as a parameter that Typer understands."""
    kind, choices, optional = _read_type(option.type)
    flag = option.flag
    if not flag:
        name = option.name.replace("_", "-")
        flag = f"--{name}/--no-{name}" if kind is bool else f"--{name}"
    annotation: Any = kind | None if optional else kind
    chosen_of: Any = _Choice(option.name, choices) if choices else None
    if kind is int and choices:  # a number or a word
        chosen_of, annotation = _NumberOr(choices), Any
    shown = typer.Option(
        flag,
        help=escape(option.help),  # brackets are not markup
        rich_help_panel=option.panel,
        click_type=chosen_of,
        hidden=hidden,
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[annotation, shown],
        default=option.default,
    )


class _Choice(click.Choice[str]):
    """Words to choose of; those that went answer with what there is instead."""

    def __init__(self, name: str, choices: tuple[str, ...]) -> None:
        super().__init__(choices)
        self._name = name

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the word."""
        if value not in self.choices and (error := removed_value(self._name, value)):
            raise error
        return super().convert(value, param, ctx)


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

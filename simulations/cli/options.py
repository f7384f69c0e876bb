"""Options of the command line: the common ones, and those read off a strategy."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import click
import typer

from ..methods import Option

_DATA, _RUN, _METHOD = "Data", "Run", "Method"


def _option(name: str, text: str, panel: str, choices: tuple[str, ...] = ()) -> Any:
    kind = click.Choice(choices) if choices else None
    return typer.Option(name, help=text, rich_help_panel=panel, click_type=kind)


#: (argument, annotation, default) of the options of every run.
COMMON: list[tuple[str, Any, Any]] = [
    (
        "data",
        Annotated[
            str, _option("--data", "Built-in data set, or a .npz, .csv or .parquet file.", _DATA)
        ],
        "nyc-weather",
    ),
    (
        "label",
        Annotated[
            str | None, _option("--label", "Label column (npz: array, or column of y).", _DATA)
        ],
        None,
    ),
    (
        "target",
        Annotated[
            str | None,
            _option("--target", "Feature column (index or name) to predict instead.", _DATA),
        ],
        None,
    ),
    (
        "id_column",
        Annotated[str | None, _option("--id", "Column of record ids.", _DATA)],
        None,
    ),
    (
        "site_column",
        Annotated[str | None, _option("--site", "Column of sites.", _DATA)],
        None,
    ),
    (
        "sites",
        Annotated[str | None, _option("--sites", "Sites to keep, separated by commas.", _DATA)],
        None,
    ),
    (
        "missing",
        Annotated[
            str,
            _option("--missing", "Rows with missing values.", _DATA, ("error", "drop-row")),
        ],
        "error",
    ),
    (
        "clients",
        Annotated[
            int | None,
            _option("--clients", "K, number of clients (default: 10, or one a site).", _DATA),
        ],
        None,
    ),
    (
        "split",
        Annotated[
            str, _option("--split", "How rows are dealt.", _DATA, ("iid", "site", "dirichlet"))
        ],
        "iid",
    ),
    (
        "site_share",
        Annotated[
            float,
            _option("--site-share", "Share of a client's rows from its own site.", _DATA),
        ],
        1.0,
    ),
    (
        "alpha",
        Annotated[float, _option("--alpha", "Concentration of the Dirichlet split.", _DATA)],
        0.5,
    ),
    (
        "test_size",
        Annotated[
            float,
            _option("--test-size", "Share of rows held out for a last evaluation.", _DATA),
        ],
        0.0,
    ),
    (
        "rounds",
        Annotated[
            int | None,
            _option("--rounds", "T, samples per client (default: 500, or what there is).", _RUN),
        ],
        None,
    ),
    (
        "runs",
        Annotated[int, _option("--runs", "Feature draws averaged.", _RUN)],
        1,
    ),
    (
        "engine",
        Annotated[str, _option("--engine", "Engine.", _RUN, ("in-process", "ray"))],
        "in-process",
    ),
    ("seed", Annotated[int, _option("--seed", "Seed of split and features.", _RUN)], 0),
    (
        "secure",
        Annotated[
            bool,
            _option(
                "--secure/--no-secure",
                "Secure sums: the server sees sums over the clients, no client's update; costs an "
                "exchange more per round, and rounds with too few clients are lost.",
                _RUN,
            ),
        ],
        False,
    ),
    (
        "drop",
        Annotated[float, _option("--drop", "Probability that a client vanishes in a round.", _RUN)],
        0.0,
    ),
    (
        "timeout",
        Annotated[float, _option("--timeout", "Seconds to wait for a round's replies.", _RUN)],
        600.0,
    ),
    (
        "hindsight",
        Annotated[
            bool,
            _option(
                "--hindsight/--no-hindsight",
                "Also the server's regret against the best kernel in hindsight (pools the data).",
                _RUN,
            ),
        ],
        False,
    ),
    (
        "out",
        Annotated[str | None, _option("--out", "Folder of the run.", _RUN)],
        None,
    ),
    (
        "json_target",
        Annotated[str | None, _option("--json", "Write the result here; - for stdout.", _RUN)],
        None,
    ),
    (
        "resume",
        Annotated[
            str | None,
            _option(
                "--resume",
                "Go on with the run in this folder; all other options are its own.",
                _RUN,
            ),
        ],
        None,
    ),
    (
        "quiet",
        Annotated[bool, _option("--quiet", "Show nothing but errors.", _RUN)],
        False,
    ),
]


def method_option(option: Option) -> tuple[str, Any, Any]:
    """Turn an option of a strategy into one of the command line."""
    kind, choices, optional = _read_type(option.type)
    name = "--" + option.name.replace("_", "-")
    if kind is bool:
        name += "/--no-" + option.name.replace("_", "-")
    annotation: Any = kind | None if optional else kind
    return (
        option.name,
        Annotated[annotation, _option(name, option.help, _METHOD, choices)],
        option.default,
    )


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

"""Entry point of ``fedkern``: one line and an exit code for every error."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import click
import typer

from fedkern_flwr import __version__
from fedkern_flwr.errors import FedKernError

from ..lab.presets import NAMES
from ..methods.registry import METHODS
from ..run.options import Option
from .audit import AUDITED, audit_all, audit_method, audit_options
from .compare import ALL, compare_presets
from .deploy import DEPLOYABLE, deploy_method, deploy_options
from .doctor import doctor
from .front import front_app
from .new_method import new_method
from .node import node_app
from .options import build_command
from .predict import predict
from .run import run_method, run_options

_INTERRUPTED_TEXT = (
    "interrupted; a comparison goes on with the same command, a run with --resume and its folder"
)
_INTERRUPTED = 130  # what Typer makes of Ctrl-C, as shells do

app = typer.Typer(
    name="fedkern",
    help="Federated kernel learning on Flower.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _commands(
    name: str,
    text: str,
    methods: Iterable[str],
    run: Callable[[str, dict[str, Any]], None],
    options_of: Callable[[str], list[Option]],
) -> typer.Typer:
    """Return a command with a command for each method, with the method's options."""
    group = typer.Typer(name=name, help=text, no_args_is_help=True)
    for method in methods:
        summary = (METHODS[method].__doc__ or "").strip().splitlines()[0]
        group.command(method)(build_command(partial(run, method), options_of(method), summary))
    app.add_typer(group)
    return group


_commands("run", "Run one method on one data set.", METHODS, run_method, run_options)
_commands(
    "deploy-local",
    "Run one method on a SuperLink and SuperNodes of this machine.",
    DEPLOYABLE,
    deploy_method,
    deploy_options,
)
_ATTACK = "Attack a method and report what is recovered."
_commands("audit", _ATTACK, AUDITED, audit_method, audit_options).command("all")(audit_all)
app.add_typer(node_app)
app.add_typer(front_app)
app.command("compare", epilog=f"Presets: {', '.join((*NAMES, ALL))}.")(compare_presets)
app.command("predict")(predict)
app.command("doctor")(doctor)
app.command("new-method")(new_method)


@app.callback(invoke_without_command=True)
def top(
    version: bool = typer.Option(False, "--version", help="Show the version and leave."),
) -> None:
    """Federated kernel learning on Flower."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line.

    Exit code 0, 1 (a run failed), 2 (bad input), 3 (an audit found a leak) or 130 (interrupted).
    """
    code = run()
    if code == _INTERRUPTED:
        # Flower's engine may have left a thread that waits for replies which nobody sends.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        code = app(arguments, standalone_mode=False)
        if code == _INTERRUPTED:
            return _complain(_INTERRUPTED_TEXT, code)
        return code if isinstance(code, int) else 0
    except FedKernError as error:
        return _complain(str(error), error.exit_code)
    except MemoryError:
        return _complain("not enough memory; use fewer features, kernels or samples per round", 1)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.ClickException as error:
        return _complain(error.format_message() + _known(error), 2)


def _known(error: click.ClickException) -> str:
    """Name the commands there are when an unknown one was asked for."""
    context = getattr(error, "ctx", None)
    if context is None or not isinstance(context.command, click.Group):
        return ""
    return f" Choose of {', '.join(context.command.list_commands(context))}."


def _complain(text: str, code: int) -> int:
    click.echo(f"fedkern: {' '.join(text.split())}", err=True)
    return code


if __name__ == "__main__":
    main()

"""Entry point of ``fedkern``: one line and an exit code for each error."""

from __future__ import annotations

import atexit
import gc
import os
import sys

import click
from typer.core import TyperGroup, TyperOption

from fedkern_flwr import __version__
from fedkern_flwr.errors import FULL, FedKernError

from .lazy import LazyCommand

_INTERRUPTED_TEXT = (
    "interrupted; a comparison goes on with the same command, a run with --resume and its folder"
)
_INTERRUPTED = 130  # what Typer makes of Ctrl-C, as shells do

_MATRIX = {"'all'", "'epsilon'"}  # parts of the audit that went
_NOWHERE = click.Context(click.Command(""))

#: Command -> module with its ``command``, and what it does.
_COMMANDS = {
    "run": ("run", "Run one method on one data set."),
    "compare": ("compare", "Compare methods on your own table, or on that of a preset."),
    "predict": ("predict", "Predict new rows with the model of an earlier run."),
    "export": ("export", "Write a model of an earlier run as ONNX, skops or JSON."),
    "deploy-local": ("deploy", "Run one method on a SuperLink and SuperNodes of this machine."),
    "init": (
        "init",
        "Copy the Flower app of a method to a folder, where 'flwr run .' runs it at once.",
    ),
    "audit": ("audit", "Run the known attacks on the protocols of the papers and on the defaults."),
    "new-method": (
        "new_method",
        "Write a package with a method of your own: a working example to change, with its test.",
    ),
    "node": ("node", "For the owner of a node."),
    "doctor": ("doctor", "Check versions, Ray, ports and write access."),
}


def _version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(__version__)
        context.exit()


app = TyperGroup(
    name="fedkern",
    help="Federated kernel learning on Flower.",
    commands=[LazyCommand(name, text, module) for name, (module, text) in _COMMANDS.items()],
    no_args_is_help=True,
    rich_markup_mode="rich",
    suggest_commands=False,  # Click does
    params=[
        TyperOption(
            param_decls=["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="Show the version and exit.",
        )
    ],
)


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
    gc.freeze()  # else Python searches all that was loaded for cycles at its end, for 0.3 s
    sys.exit(code)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    try:
        code = app(arguments, standalone_mode=False)
        if code == _INTERRUPTED:
            return _complain(_INTERRUPTED_TEXT, code, "FK-COMMAND-INTERRUPTED")
        return code if isinstance(code, int) else 0
    except FedKernError as error:
        return _complain(str(error), error.exit_code)
    except MemoryError:
        problem = "not enough memory; use fewer features, kernels or samples per round"
        return _complain(problem, 1, "FK-COMMAND-MEMORY")
    except OSError as error:
        if error.errno not in FULL:
            raise
        file = error.filename or "a file could not be written"
        return _complain(f"{error.strerror}: {file}", 1, "FK-FILE-WRITE")
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.ClickException as error:
        text = error.format_message() + _known(error)
        return _complain(text, 2, "" if text.endswith("]") else _code(error))


def _code(error: click.ClickException) -> str:
    """Return the code of an error of Click."""
    if isinstance(error, click.NoSuchOption):
        no_budget = error.option_name.startswith("--privacy-")
        return "FK-BUDGET-METHOD" if no_budget else "FK-OPTION-UNKNOWN"
    if isinstance(error, click.MissingParameter):
        return "FK-COMMAND-MISSING"
    if isinstance(error, click.BadParameter):
        kind = getattr(error.param, "type", None)
        return "FK-OPTION-CHOICE" if isinstance(kind, click.Choice) else "FK-OPTION-TYPE"
    context = getattr(error, "ctx", None)
    if context is not None and isinstance(context.command, click.Group):
        return "FK-COMMAND-UNKNOWN"
    return "FK-COMMAND-USAGE"


def _known(error: click.ClickException) -> str:
    """Return known commands, or methods with privacy budgets, for an error."""
    place = (getattr(error, "ctx", None) or _NOWHERE).command_path
    of_audit = isinstance(error, click.NoSuchOption) or _MATRIX.intersection(str(error).split())
    if " audit" in place and of_audit:
        from fedkern_flwr.options import AUDIT

        return f" {AUDIT.instead[0].upper()}{AUDIT.instead[1:]}. [FK-REMOVED-{AUDIT.code}]"
    if isinstance(error, click.NoSuchOption) and error.option_name.startswith("--privacy-"):
        from fedkern_flwr.method import KEEP_BUDGETS, Method  # what takes long to load

        from ..methods.registry import METHODS

        known = METHODS.get(error.ctx.info_name or "" if error.ctx else "")
        why = getattr(known, "no_budget", Method.no_budget)
        return f" {known.method if known else 'This'} {why}; take {KEEP_BUDGETS}."
    context = getattr(error, "ctx", None)
    if context is None or not isinstance(context.command, click.Group):
        return ""
    return f" Choose of {', '.join(context.command.list_commands(context))}."


def _complain(text: str, exit_code: int, code: str = "") -> int:
    """Print an error as one line."""
    line = " ".join(f"{text} [{code}]".split()) if code else " ".join(text.split())
    click.echo(f"fedkern: {line}", err=True)
    return exit_code


if __name__ == "__main__":
    main()

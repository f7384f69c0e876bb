"""``fedkern front``: what stands before a SuperLink."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..deployment.front import run_front

front_app = typer.Typer(
    name="front", help="For the coordinator.", no_args_is_help=True, add_completion=False
)


@front_app.callback()
def _group() -> None:
    """For the coordinator: what SuperNodes connect to, before the SuperLink."""


@front_app.command("start")
def start_front(
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the SuperLink.")],
    root_certificates: Annotated[
        Path, typer.Option(help="What the SuperLink's certificate is checked against.")
    ],
    certificate: Annotated[Path, typer.Option(help="What SuperNodes are shown.")],
    key: Annotated[Path, typer.Option(help="The private key of the certificate.")],
    listen: Annotated[
        str, typer.Option(help="HOST:PORT that SuperNodes connect to.")
    ] = "127.0.0.1:8000",
) -> None:
    """Pass SuperNodes' calls on to a SuperLink, and hold those that wait for a message."""
    run_front(
        listen,
        superlink,
        root_certificates=root_certificates,
        certificate=certificate,
        key=key,
    )


command = typer.main.get_command(front_app)

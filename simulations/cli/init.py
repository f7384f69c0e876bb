"""``fedkern init``: copy the Flower app of a method."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import click

from fedkern_flwr.errors import OptionError

from ..deployment.run_config import app_folder
from ..methods.registry import families, family
from ..run.options import argument
from .options import of_function

#: Methods with an app that deals public data to simulated nodes.
COPIED = tuple(name for own in families() if own.app != "method" for name in own.deployable)
#: Registered methods, with an app for nodes with tables.
_REGISTERED = tuple(name for own in families() if own.app == "method" for name in own.deployable)

_FEDERATION = """
# For `flwr run .`, which moves it to Flower's own configuration when it is run first.
[tool.flwr.federations]
default = "{name}-simulation"

[tool.flwr.federations.{name}-simulation]
options.num-supernodes = {nodes}
options.backend.client-resources.num-cpus = 1
"""
_NEEDED, _OURS = '["flwr>=1.41,<1.43", "fedkern-flwr>=0.2.dev0"]', '["flwr>=1.41,<1.43"]'


@dataclass(frozen=True)
class InitOptions:
    """Options of ``fedkern init``.

    Attributes
    ----------
    method : str
        Method of the app.
    folder : Path
        Where to copy the app to.
    """

    method: str = argument(metavar="METHOD", choices=(*COPIED, *_REGISTERED))
    folder: Path = argument()


def init(asked: InitOptions) -> None:
    """Copy the Flower app of a method to a folder, where 'flwr run .' runs it at once.

    The app takes public data and its own number of nodes, until options in pyproject.toml or
    --run-config change that. 'flwr run . --stream' prints the log, which ends with the figures and
    what the server saw. The options result and model name files to keep.

    The app of a registered method needs nodes with tables: rehearse it with deploy-local.
    """
    method, folder = asked.method, asked.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionError(f"{folder} is there already", code="FK-FOLDER-USED")
    own = family(method)
    left_out = shutil.ignore_patterns("__pycache__")
    try:
        shutil.copytree(app_folder(own.app), folder, ignore=left_out, dirs_exist_ok=True)
        project = folder / "pyproject.toml"
        text = project.read_text("utf-8")
        assert _NEEDED in text
        added = _FEDERATION.format(name=method, nodes=own.nodes) if method in COPIED else ""
        text = re.sub(r'^method = "[a-z-]+"', f'method = "{method}"', text, flags=re.MULTILINE)
        project.write_text(text.replace(_NEEDED, _OURS) + added, "utf-8")
    except OSError as error:
        raise OptionError(
            f"{folder} cannot be written ({error.strerror})", code="FK-FILE-WRITE"
        ) from None
    if method in _REGISTERED:  # its nodes have tables of their own, public data are not dealt
        click.echo(f"an app of {method}, for nodes that have tables: {folder}")
        click.echo(f"rehearse it on this machine: fedkern deploy-local {method} --data FILE")
        return
    click.echo(f"an app of {method} with {own.nodes} nodes: {folder}")
    place = folder.resolve()
    files = f"""'result="{place}/result.json" model="{place}/model.npz"'"""
    click.echo(f"next: cd {folder}; flwr run . --stream")
    click.echo("it prints Flower's log, which ends with the figures and what the server saw")
    click.echo(f"results are kept if you name files: --run-config {files}")


command = of_function("init", init, InitOptions)

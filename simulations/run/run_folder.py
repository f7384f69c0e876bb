"""Folder of a run: settings, results, model, plots and checkpoint."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkern_flwr import __version__
from fedkern_flwr.checkpoint import make_private_folder, write_atomically
from fedkern_flwr.errors import CheckpointError, EngineError, OptionError
from fedkern_flwr.fitted import PREDICTOR, FittedModel
from fedkern_flwr.model_file import save_model

from ...strategies import Method

# -- folders of results


def chosen_folder(out: str | None, stem: str) -> Path:
    """Return the folder of ``--out``, by default a new one below ``runs``."""
    if out:
        return Path(out)
    name = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (name, *(f"{name}-{number}" for number in range(2, 1000)))
    return next(path for path in map(Path("runs").joinpath, names) if not path.exists())


def json_writer(target: str | None) -> Callable[[Mapping[str, Any]], None]:
    """Return a writer for ``--json``: nothing, a file, or - for stdout."""
    path = None if target in (None, "", "-") else Path(str(target))
    if path is not None:
        check_target(path, "--json", devices=True)

    def write(result: Mapping[str, Any]) -> None:
        text = f"{json.dumps(result, allow_nan=False)}\n"
        try:
            if path is not None:
                path.write_text(text)
            elif target:
                sys.stdout.write(text)
                sys.stdout.flush()
        except OSError as error:
            raise EngineError(
                f"--json {target} cannot be written ({error.strerror})",
                remedy="the result is in the folder of the run",
                code="FK-FILE-WRITE",
            ) from None

    return write


def check_target(path: Path, option: str, *, devices: bool = False) -> None:
    """Refuse a path that cannot become a file."""
    odd = path.is_dir() if devices else path.exists() and not path.is_file()
    if odd or not path.resolve().parent.is_dir():
        raise OptionError(
            f"{option} {path} cannot be written",
            remedy="name a file in a folder",
            code="FK-FILE-WRITE",
        )


def make_folder(folder: Path, option: str) -> None:
    """Make a private folder, and check that it is writable."""
    try:
        make_private_folder(folder)
        write_atomically(folder / ".probe", b"")
        (folder / ".probe").unlink()
    except OSError as error:
        raise OptionError(
            f"{folder} cannot be written ({error.strerror})", code="FK-FILE-WRITE"
        ) from None


def used(folder: Path) -> OptionError:
    """Return the error for a folder with results."""
    return OptionError(f"{folder} has results already", code="FK-FOLDER-RESULTS")


@contextmanager
def folder_of_results(folder: Path, result: str, *, force: bool) -> Iterator[None]:
    """Make the folder of ``--out``; remove it if the block fails and it is empty.

    Parameters
    ----------
    folder : Path
        Folder.
    result : str
        File that identifies a used folder.
    force : bool
        Whether results may be replaced.
    """
    new = not folder.exists()
    if (folder / result).exists() and not force:
        raise used(folder)
    make_folder(folder, "--out")
    if any(folder.iterdir()) and not (folder / result).exists():
        raise OptionError(f"{folder} is not empty and has no {result}", code="FK-FOLDER-USED")
    try:
        yield
    except BaseException:
        if new:
            with suppress(OSError):  # it holds something, or is gone
                folder.rmdir()
        raise


ARTIFACTS = {"model": "model.npz", "scaling": "scaling.json"}


@dataclass(frozen=True)
class RunFolder:
    """Files of a run.

    Attributes
    ----------
    path : Path
        ``config.json``, ``draws.json`` (finished runs), ``checkpoint-<run>.npz``,
        ``private_state/`` (simulated nodes), ``result.json``, ``model.npz``, ``scaling.json``,
        ``predictor.npz`` (whole model, with secrets of the parties), ``plots/``, ``report.html``.
    """

    path: Path

    @classmethod
    def create(cls, path: Path, config: dict[str, Any], *, force: bool = False) -> RunFolder:
        """Make the folder of a new run; ``force`` replaces an earlier one."""
        folder = cls(path)
        if path.exists() and not folder.may_be_used:
            raise OptionError(
                f"{path} is not empty and not the folder of a run", code="FK-FOLDER-USED"
            )
        if folder.unfinished and not force:
            raise OptionError(
                f"{path} holds an unfinished run",
                remedy=f"continue with --resume {path}, or choose another --out",
                code="FK-FOLDER-UNFINISHED",
            )
        if (path / "result.json").exists() and not force:
            raise used(path)
        make_folder(path, "--out")
        folder.forget_progress()
        folder._write("config.json", {**config, "fedkern_flwr": __version__})
        of_earlier_run = ("result.json", "report.html", PREDICTOR, *ARTIFACTS.values())
        for name in of_earlier_run:  # with other options
            (path / name).unlink(missing_ok=True)
        shutil.rmtree(folder.plots, ignore_errors=True)  # pictures of one run are none of the next
        return folder

    @classmethod
    def open(cls, path: Path) -> tuple[RunFolder, dict[str, Any]]:
        """Open the folder of a run; return it and its settings."""
        folder = cls(path)
        if not (path / "config.json").is_file():
            raise CheckpointError(f"{path} is not the folder of a run", code="FK-RUN-NONE")
        return folder, folder._read("config.json")

    @property
    def may_be_used(self) -> bool:
        """Whether the folder is empty or of an earlier run."""
        if not self.path.is_dir():
            return False
        if not any(self.path.iterdir()):
            return True
        try:
            return {"method", "data", "options"} <= set(self._read("config.json"))
        except (CheckpointError, TypeError):
            return False

    @property
    def unfinished(self) -> bool:
        """Whether a run without a result is here."""
        progress = any(self.path.glob("checkpoint-*.npz")) or (self.path / "draws.json").exists()
        return progress and not (self.path / "result.json").exists()

    @property
    def state_dir(self) -> Path:
        """Folder of the simulated nodes' private state."""
        return self.path / "private_state"

    @property
    def plots(self) -> Path:
        """Folder of the plots."""
        return self.path / "plots"

    def draws(self) -> list[dict[str, Any]]:
        """Return the results of finished runs."""
        return list(self._read("draws.json")) if (self.path / "draws.json").is_file() else []

    def save_draws(self, draws: list[dict[str, Any]]) -> None:
        """Save the results of finished runs."""
        self._write("draws.json", draws)

    def result(self) -> dict[str, Any] | None:
        """Return the result of a finished run."""
        return self._read("result.json") if (self.path / "result.json").is_file() else None

    def save_result(self, result: dict[str, Any]) -> None:
        """Save the result; the run is finished."""
        self.tidy()
        self._write("result.json", result)

    def save_model(self, strategy: Method, scaling: str, whole: FittedModel | None = None) -> None:
        """Save model and scaling, and the whole model if there is one."""
        save_model(self.path / ARTIFACTS["model"], strategy.method, *strategy.model())
        write_atomically(self.path / ARTIFACTS["scaling"], scaling.encode(), private=True)
        if whole is not None:
            whole.save(self.path / PREDICTOR)

    def discard(self) -> None:
        """Remove what :meth:`create` made."""
        shutil.rmtree(self.state_dir, ignore_errors=True)
        (self.path / "config.json").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody has something there
            self.path.rmdir()
            if self.path.parent == Path("runs"):  # made for it
                self.path.parent.rmdir()

    def tidy(self) -> None:
        """Keep only the last state of each simulated node."""
        for session in self.state_dir.glob("*"):
            newest: dict[str, tuple[int, Path]] = {}
            for file in session.glob("*.state"):
                owner, _, number = file.stem.rpartition("-")
                found = (int(number), file)
                stale = min(newest.get(owner, found), found)
                newest[owner] = max(newest.get(owner, found), found)
                if stale != newest[owner]:
                    stale[1].unlink()

    def forget_progress(self) -> None:
        """Remove files of an unfinished run."""
        for file in (*self.path.glob("checkpoint-*.npz"), self.path / "draws.json"):
            file.unlink(missing_ok=True)
        for file in self.state_dir.glob("*/partition-*"):
            file.unlink()

    def _write(self, name: str, value: Any) -> None:
        text = json.dumps(value, indent=2, allow_nan=False)
        write_atomically(self.path / name, f"{text}\n".encode())

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError):
            raise CheckpointError(
                f"{self.path / name} is damaged", code="FK-CHECKPOINT-DAMAGED"
            ) from None

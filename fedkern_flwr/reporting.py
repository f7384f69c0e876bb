"""Report the end of a run at the server: a log for people, a JSON file for programs."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import __version__
from .checkpoint import temporary_folder, write_atomically
from .errors import EngineError, FedKernError, OptionError
from .log_lines import utc_now

logger = logging.getLogger("flwr")  # what `flwr log` shows

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def settings_text(config: Mapping[str, Any]) -> str:
    """Return the configuration of a run as one line, equal at server and nodes."""
    stated = {key: value for key, value in config.items() if value != ""}
    return json.dumps(stated, sort_keys=True)


def settings_digest(config: Mapping[str, Any]) -> str:
    """Return a digest by which server and nodes compare the configuration."""
    return hashlib.sha256(settings_text(config).encode()).hexdigest()[:16]


@dataclass
class RunFacts:
    """Identify a run in Flower's list of runs and in the nodes' ledgers.

    Attributes
    ----------
    flower : object
        Flower's ``Run`` of a grid with a SuperLink; None in a simulation.
    settings : dict
        Run configuration. Its digest is in the nodes' ledgers too.
    config : dict
        The same with None for possible paths or secrets.
    """

    flower: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    strategy: Any = None
    began: str = field(default_factory=utc_now)

    def stopped(self) -> EngineError:
        """Return the error of a run that a signal has ended."""
        remedy = "submit it again: it has no checkpoint"
        nodes = getattr(self.strategy, "nodes", None)
        if nodes is not None and nodes.resumable:
            remedy = f"submit it again with resume=true, checkpoint={self.strategy.checkpoint}"
        problem = f"run {getattr(self.flower, 'run_id', '')} was stopped by a signal"
        return EngineError(problem, remedy=remedy, code="FK-RUN-STOPPED")

    def to_dict(self) -> dict[str, Any]:
        """Return the facts of a run that ends now, as plain values."""
        parties = getattr(self.strategy, "parties_", {})
        run, found = self.flower, dict[str, Any]()
        if run is not None:  # numbers of 64 bits are texts: many readers of JSON would round them
            found = {"run_id": str(run.run_id), "app": f"{run.fab_id} {run.fab_version}"}
            found |= {"fab_hash": run.fab_hash, "config": self.config}
            found["settings_digest"] = settings_digest(self.settings)
        return {
            **found,
            "session": getattr(self.strategy, "session", ""),
            "began": self.began,
            "ended": utc_now(),
            "release": __version__,
            "nodes": [
                {"partition": p.partition, "name": getattr(p, "name", ""), "node_id": str(node)}
                for node, p in parties.items()
            ],
        }


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block by a ``KeyboardInterrupt``, as Ctrl-C does.

    Ctrl-C does so too if Flower has set another handler for it. Ignored signals stay ignored, such
    as SIGHUP under ``nohup``. Outside the main thread, as in Flower's simulations, nothing is
    changed.
    """
    main = threading.current_thread() is threading.main_thread()
    numbers = [n for n in _ENDS if main and signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def write_result(path: str | Path, result: Mapping[str, Any]) -> None:
    """Write plain values as JSON, unless the path is empty."""
    if path:
        text = json.dumps(result, indent=2, allow_nan=False, default=_plain)
        write_somewhere(path, lambda file: write_atomically(file, f"{text}\n".encode()))


def write_somewhere(path: str | Path, write: Callable[[Path], None]) -> Path:
    """Write a file; if that fails, in the current folder or in this user's temporary one.

    Returns where the file is, and logs another place. EngineError if it cannot be written anywhere.
    """
    path = Path(path)
    try:
        write(path)
        return path
    except OSError as error:
        reason = error.strerror
    other = f"{path.stem}-{secrets.token_hex(4)}{path.suffix}"
    for folder in (Path.cwd, temporary_folder):
        with suppress(OSError, FedKernError):
            write(place := folder() / other)
            told = "%s cannot be written (%s): it is in %s instead [%s]"
            logger.warning(told, path, reason, place, "FK-FILE-WRITE")
            return place
    raise EngineError(
        f"{path} cannot be written ({reason}), nor can the current and the temporary folder",
        remedy="make room, and resume the run if it has a checkpoint",
        code="FK-FILE-WRITE",
    )


def log_result(result: Mapping[str, Any]) -> None:
    """Log the result of :meth:`Method.result`, line by line."""
    for name, value in result.get("matched", {}).items():
        for key, facts in value.items() if isinstance(value, dict) else [("", value)]:
            logger.info("%s %s: %s", name.replace("_", " "), key, facts)
    for name, value in result["metrics"].items():
        if value is not None:
            logger.info("%s: %s", name, f"{value:.6g}" if isinstance(value, float) else value)
    for seen in result["privacy"].get("server_sees", ()):
        logger.info("the server saw: %s", seen)
    logger.info("exchanges: %d in %.1f s", result["exchanges"], result["seconds"])
    up, down = result["bytes_up"] / 1e6, result["bytes_down"] / 1e6
    logger.info("MB from nodes: %.3g, to nodes: %.3g", up, down)
    for partition, reasons in result["failures"].items():
        logger.warning("partition %s: %s", partition, reasons)


@contextmanager
def errors_reported(path: str | Path, facts: RunFacts | None = None) -> Iterator[None]:
    """Log a FedKernError in one line, and write it to the result file.

    A signal that stops the run is treated alike. The error continues: Flower marks the run as
    failed. An earlier result is removed first, so that a killed run has none.

    Raises
    ------
    OptionError
        The file cannot be written.
    """
    try:
        if path:
            Path(path).unlink(missing_ok=True)
    except OSError:
        raise OptionError(
            "the file of the result cannot be written",
            remedy="name a file in a folder of the server's user as result",
            code="FK-FILE-WRITE",
        ) from None
    facts = facts or RunFacts()
    try:
        try:
            with ended_by_signals():
                yield
        except KeyboardInterrupt:
            raise facts.stopped() from None
    except FedKernError as error:
        line = " ".join(str(error).split())
        logger.error("fedkern: %s", line)
        error.told = True
        told = {"error": line, "code": error.code, "exit_code": error.exit_code}
        with suppress(EngineError):  # the log has the line
            write_result(path, {**told, "run": facts.to_dict()})
        raise


def _plain(value: Any) -> Any:
    return value.item()


def whether_converged(
    converged: bool, apart: str, remedy: str, *, after: str = ""
) -> dict[str, Any]:
    """Return the metric ``converged``; warn if it is false.

    All iterative methods use it, so that tables, ``result.json`` and reports agree.

    Parameters
    ----------
    converged : bool
        Whether the target was reached. For streams: whether it predicts better than a constant.
    apart : str
        How far it is from the target.
    remedy : str
        What to do about it.
    after : str
        After what it ended.
    """
    if not converged:
        named = f" after {after}" if after else ""
        logging.getLogger("fedkern_flwr").warning("not converged%s: %s; %s", named, apart, remedy)
    return {"converged": converged}


def iterations_ended(done: int, converged: bool, apart: str, remedy: str) -> dict[str, Any]:
    """Return the metrics of an iteration's end, see :func:`whether_converged`."""
    ended = whether_converged(converged, apart, remedy, after=f"{done} iterations")
    return {"iterations": done, **ended}

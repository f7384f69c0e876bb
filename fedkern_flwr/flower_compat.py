"""Every import from Flower that is not public API, in one place (checked on flwr 1.41).

A future removal in Flower is mended here and nowhere else.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from flwr.client import Client, NumPyClient

logger = logging.getLogger("fedkern_flwr")

__all__ = [
    "ACTOR_DIED",
    "CLIENT_CRASHED",
    "CLIENT_RAISED",
    "CONNECTED",
    "DISCONNECTED",
    "MESSAGE_LOST",
    "NODE_UNAVAILABLE",
    "RUN_OF_MESSAGE",
    "Client",
    "Control",
    "NumPyClient",
    "Refused",
    "TaskQueue",
    "answer_task",
    "copy_message",
    "empty_run",
    "is_simulated",
    "is_started_for_message",
    "message_round_trip",
    "patient",
    "poll_eagerly",
    "quiet_flower",
    "run_supernode",
    "set_task_identity",
    "set_telemetry",
    "stamp_message",
    "time_the_log",
]

#: Error codes of ``flwr.common.constant.ErrorCode``.
ACTOR_DIED, CLIENT_RAISED, NODE_UNAVAILABLE, CLIENT_CRASHED = 0, 2, 5, 8
MESSAGE_LOST = (3, 4)  # request or reply: gone at a SuperLink that was killed, or too old

#: What a SuperNode logs when it reaches the SuperLink, and when it does not.
CONNECTED = ("SuperNode ID: ", "Connection successful after ")
DISCONNECTED = ("Connection attempt failed", "Giving up reconnection", "Exit Code: ")
#: What it logs before it says what it does with a message, as a regular expression.
RUN_OF_MESSAGE = r"\[RUN (\d+)[\],]"
_LOOK, _LOOKS = 0.1, 50  # seconds from one look for a part of a reply to the next; how many
#: Whether this process was forked by one that is kept warm, which sets it before it forks.
warm = False


def set_task_identity(run_id: int, node_id: int) -> None:
    """Let this process create messages; ``flwr.app.Message`` refuses to without an identity."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, node_id, 1


def set_telemetry(enabled: str) -> None:
    """Switch Flower's telemetry on ("1") or off; it reads the environment on import only."""
    from flwr.supercore import telemetry

    telemetry.FLWR_TELEMETRY_ENABLED = enabled


def empty_run(run_id: int) -> Any:
    """Return the ``Run`` that a grid outside a SuperLink reports."""
    from flwr.supercore.run import Run

    return Run.create_empty(run_id=run_id)


def is_simulated(grid: Any) -> bool:
    """Tell whether a grid belongs to a simulation; any grid that is not known does not.

    Our own grids say so; Flower's engine uses ``InMemoryGrid``, which is not public.
    """
    names = {cls.__name__ for cls in type(grid).__mro__}
    return bool(getattr(grid, "simulation", False)) or "InMemoryGrid" in names


class _PatientClient:
    """The client of a grid, which waits for what is on its way to the SuperLink."""

    def __init__(self, client: Any) -> None:
        self._client, self._turn = client, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def PullObject(self, request: Any) -> Any:
        reply = self._client.PullObject(request)
        if not reply.object_found or reply.object_available:
            return reply
        with self._turn:  # one is asked for at a time: they come together
            for _ in range(_LOOKS):
                reply = self._client.PullObject(request)
                if not reply.object_found or reply.object_available:
                    break
                time.sleep(_LOOK)
        return reply


def patient(grid: Any) -> Any:
    """Return a grid that soon has a reply whose parts are on their way to the SuperLink.

    Flower's own looks again after a second, two, four. None for grids without a SuperLink.
    """
    if type(grid).__name__ != "HttpGrid":
        return None
    twin = copy.copy(grid)
    twin.__dict__["_client"] = _PatientClient(grid._runtime_client)
    return twin


def stamp_message(message: Message, *, message_id: str) -> None:
    """Give a message the id that a SuperLink would give it."""
    message.metadata.__dict__["_message_id"] = message_id


def copy_message(message: Message) -> Message:
    """Copy a message and its records, but not the values in them."""
    if message.has_error():
        return message
    content = RecordDict({n: type(r)(dict(r)) for n, r in message.content.items()})  # type: ignore[arg-type]
    twin = copy.copy(message)
    twin.__dict__["_content"] = content
    return twin


def message_round_trip(message: Message) -> Message:
    """Serialise a message with Flower's protobuf code and read it back."""
    from flwr.common.serde import message_from_proto, message_to_proto

    copy = message_from_proto(message_to_proto(message))
    stamp_message(copy, message_id=message.metadata.message_id)
    return copy


def quiet_flower(level: int = logging.WARNING) -> None:
    """Set the level of Flower's own log, which otherwise reports every round."""
    logging.getLogger("flwr").setLevel(level)


def time_the_log() -> None:
    """Have Flower's log carry times, as it does by itself at the level DEBUG only."""
    from flwr.supercore.logger import update_console_handler

    update_console_handler(timestamps=True)


# -- a warm node: what Flower offers to whoever runs a SuperNode's tasks (isolation ``process``)

#: What a SuperNode prints when a message is there for whoever asks for tasks.
MESSAGE_ARRIVED = "Received successfully"
_SOON, _SHARE_OF_IDLE = 0.5, 0.05  # seconds to the next request at least; share of the idle time


class _EagerClock:
    """The module ``time`` for a SuperNode's loop, with shorter sleeps while messages come."""

    def __init__(self, clock: Any) -> None:
        self._clock, self._last = clock, clock.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def note_message(self) -> None:
        self._last = self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        # Flower sleeps 3 s after each request that finds no message. A run's next message comes
        # soon after the last one. After a minute without any the 3 s are reached again, so that
        # many idle nodes do not keep a SuperLink busy.
        idle = self._clock.monotonic() - self._last
        self._clock.sleep(min(seconds, max(_SOON, idle * _SHARE_OF_IDLE)))


def poll_eagerly(loop: Any) -> None:
    """Make a SuperNode ask for messages every 0.5 s while there are some, every 3 s when idle.

    Flower has no option for it. Of the releases that are allowed, 1.41 and 1.42, it was tried with
    1.42.0 only. Where the names that it replaces are missing, the SuperNode stays as Flower makes
    it, and a warning says so.

    Parameters
    ----------
    loop : module
        ``flwr.supernode.start_client_internal``; its ``time`` and ``_push_messages`` are replaced.
    """
    clock, push = getattr(loop, "time", None), getattr(loop, "_push_messages", None)
    if not (hasattr(clock, "sleep") and hasattr(clock, "monotonic") and callable(push)):
        logger.warning(
            "this release of Flower has no start_client_internal.time or _push_messages: "
            "the node asks for messages every 3 s, as a stock SuperNode does"
        )
        return
    eager = _EagerClock(clock)

    def push_and_note(*args: Any, **named: Any) -> None:
        push(*args, **named)
        eager.note_message()

    loop.time, loop._push_messages = eager, push_and_note


def run_supernode(arguments: Sequence[str]) -> None:
    """Be a SuperNode as ``flower-supernode`` with these arguments is, but poll more eagerly."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    poll_eagerly(start_client_internal)
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


def answer_task(address: str, token: str, parent: int) -> None:
    """Answer the message of a task, as ``flwr-clientapp`` does; ends in ``SystemExit``.

    Parameters
    ----------
    address : str
        Of the SuperNode's runtime API, on this machine.
    token : str
        Of the task.
    parent : int
        Process that ends this one when it is gone.
    """
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    run_clientapp(address, token, insecure=True, parent_pid=parent)


class TaskQueue:
    """The tasks of a SuperNode, as Flower's SuperExec asks for them.

    Parameters
    ----------
    address : str
        Of the SuperNode's runtime API.
    secret : bytes
        What the SuperNode was given as ``--superexec-auth-secret-file``.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        from flwr.supercore.interceptors import (
            RuntimeVersionHttpInterceptor,
            SuperExecAuthHttpInterceptor,
        )
        from flwr.supercore.runtime import RuntimeHttpClient

        asking = frozenset({"/flwr.proto.Runtime/AcquireTask"})
        self._client = RuntimeHttpClient.from_server_address(
            server_address=address,
            insecure=True,
            root_certificates=None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperExec"),
                SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=asking),
            ],
        )

    def take(self) -> tuple[str, int] | None:
        """Return the token and the run of a task that waits, if there is one.

        Raises
        ------
        ConnectionError
            The SuperNode does not answer.
        """
        import httpx
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        kinds = ["clientapp", "flwr-clientapp"]
        try:
            found = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=kinds))
        except httpx.TransportError:
            raise ConnectionError from None
        has_task = found.HasField("task") and found.token
        return (str(found.token), int(found.task.run_id)) if has_task else None


# -- a coordinator: what the command ``flwr`` does, without a process for each


class Refused(Exception):
    """A SuperLink refuses something, or does not answer; the text has Flower's reason."""


class Control:
    """The control API of a SuperLink, for ``flwr supernode``, ``flwr run``, ``ls`` and ``log``.

    Parameters
    ----------
    address : str
        Of the SuperLink.
    root_certificates : Path
        Who signed its certificate.
    """

    def __init__(self, address: str, root_certificates: Path) -> None:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        self._client = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=False,
            root_certificates=root_certificates.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def register(self, public_key: Path) -> None:
        """Register the key of a SuperNode, a file in OpenSSH's format."""
        from flwr.cli.supernode.register import try_load_public_key
        from flwr.proto.control_pb2 import RegisterNodeRequest

        request = RegisterNodeRequest(public_key=try_load_public_key(public_key))
        _called(lambda: self._client.RegisterNode(request))

    def online(self) -> int:
        """Return how many SuperNodes are connected."""
        from flwr.proto.control_pb2 import ListNodesRequest

        found = _called(lambda: self._client.ListNodes(ListNodesRequest()))
        return sum(node.status == "online" for node in found.nodes_info)

    def start(self, app: Path, config: Mapping[str, Any]) -> int:
        """Run an app; return the number of the run."""
        from flwr.cli.build import build_fab_from_disk
        from flwr.cli.config_utils import load_and_validate
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        try:
            load_and_validate(app / "pyproject.toml")
            content = build_fab_from_disk(app)
        except ValueError as error:
            raise Refused(str(error)) from None
        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {})),
            override_config=user_config_to_proto(dict(config)),
        )
        return int(_called(lambda: self._client.StartRun(request)).run_id)

    def status(self, run_id: int) -> str:
        """Return the status of a run, such as ``finished:completed``."""
        from flwr.proto.control_pb2 import ListRunsRequest

        found = _called(lambda: self._client.ListRuns(ListRunsRequest(run_id=run_id)))
        status = found.run_dict[run_id].status
        return ":".join(part for part in (status.status, status.sub_status) if part)

    def stop(self, run_id: int) -> None:
        """Stop a run."""
        from flwr.proto.control_pb2 import StopRunRequest

        _called(lambda: self._client.StopRun(StopRunRequest(run_id=run_id)))

    def log(self, run_id: int) -> str:
        """Return what the server of a run has printed."""
        from flwr.proto.control_pb2 import StreamLogsRequest

        request = StreamLogsRequest(run_id=run_id, after_timestamp=0.0)
        return str(_called(lambda: next(self._client.StreamLogs(request))).log_output)


def _called(call: Callable[[], Any]) -> Any:
    """Return what a call to a SuperLink does.

    Raises
    ------
    Refused
    """
    import httpx
    from flwr.supercore.error import FlowerError

    try:
        return call()
    except httpx.HTTPStatusError as error:
        told = FlowerError.from_json(error.response.text)
        code = error.response.status_code
        raise Refused(told.public_details or str(told) if told else f"HTTP {code}") from None
    except httpx.HTTPError as error:
        raise Refused(f"the SuperLink does not answer ({type(error).__name__})") from None


def is_started_for_message() -> bool:
    """Tell whether a stock SuperNode started this process, as it does for every message."""
    return not warm and "flwr.supernode.cli.flwr_clientapp" in sys.modules

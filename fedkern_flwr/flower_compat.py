"""Contain every import from Flower that is not public API (checked on flwr 1.41)."""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.client import Client as Client
from flwr.client import NumPyClient as NumPyClient

logger = logging.getLogger("fedkern_flwr")

#: Error codes of ``flwr.common.constant.ErrorCode``.
ACTOR_DIED, CLIENT_RAISED, NODE_UNAVAILABLE, APP_UNSIGNED, CLIENT_CRASHED = 0, 2, 5, 7, 8
MESSAGE_LOST = (3, 4)  # request or reply: gone at a SuperLink that was killed, or too old

#: What a SuperNode logs when it reaches the SuperLink, and when it does not.
CONNECTED = ("SuperNode ID: ", "Connection successful after ")
GIVES_UP = "Giving up reconnection"
DISCONNECTED = ("Connection attempt failed", GIVES_UP, "Exit Code: ")
#: What it logs where its key is one of a node that is connected, or of none.
NOT_ACTIVATED = "Failed to activate SuperNode"
#: What it logs before it says what it does with a message, as a regular expression.
RUN_OF_MESSAGE = r"\[RUN (\d+)[\],]"
_LOOK, _LOOKS = 0.1, 50  # seconds from one look for a part of a reply to the next; how many
#: Whether this process was forked by one that is kept warm, which sets it before it forks.
warm = False


def set_task_identity(run_id: int, node_id: int) -> None:
    """Let this process create messages; ``flwr.app.Message`` requires an identity."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, node_id, 1


def set_telemetry(enabled: str) -> None:
    """Switch Flower's telemetry on ("1") or off; Flower reads the environment on import only."""
    from flwr.supercore import telemetry

    telemetry.FLWR_TELEMETRY_ENABLED = enabled


def empty_run(run_id: int) -> Any:
    from flwr.supercore.run import Run

    return Run.create_empty(run_id=run_id)


def is_simulated(grid: Any) -> bool:
    """Return whether a grid belongs to a simulation; False for unknown grids."""
    names = {cls.__name__ for cls in type(grid).__mro__}
    return bool(getattr(grid, "simulation", False)) or "InMemoryGrid" in names


class _PatientClient:
    """Make a grid's client wait for replies that the SuperLink is still receiving."""

    def __init__(self, client: Any) -> None:
        self._client, self._turn = client, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def PullObject(self, request: Any) -> Any:
        reply = self._client.PullObject(request)
        if not reply.object_found or reply.object_available:
            return reply
        with self._turn:  # poll for one at a time: parts arrive together
            for _ in range(_LOOKS):
                reply = self._client.PullObject(request)
                if not reply.object_found or reply.object_available:
                    break
                time.sleep(_LOOK)
        return reply


def patient(grid: Any) -> Any:
    """Return a grid that gets replies in parts soon; None for grids without a SuperLink.

    Flower's own grid retries after 1, 2, 4 seconds.
    """
    if type(grid).__name__ != "HttpGrid":
        return None
    twin = copy.copy(grid)
    twin.__dict__["_client"] = _PatientClient(grid._runtime_client)
    return twin


def stamp_message(message: Message, *, message_id: str) -> None:
    """Give a message an id, as a SuperLink does."""
    message.metadata.__dict__["_message_id"] = message_id


def config_record(values: Mapping[str, Any]) -> ConfigRecord:
    """Return a record of values that have the right types; Flower would check each value."""
    record = ConfigRecord()
    record.__dict__["_data"].update(values)
    return record


class _Held(dict[str, Any]):
    """The values of a record, computed on first access."""

    def __init__(self, held: Any, write: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__()
        self.held, self._write = held, write

    def written(self) -> None:
        if self.held is not None:
            self.update(self._write())
            self.held = None

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _written_first(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def call(self: _Held, *arguments: Any) -> Any:
        self.written()
        return method(self, *arguments)

    return call


for _name in ["getitem", "setitem", "delitem", "iter", "len", "contains", "eq", "ne", "repr"]:
    setattr(_Held, f"__{_name}__", _written_first(f"__{_name}__"))
for _name in ["get", "keys", "values", "items", "copy", "pop"]:
    setattr(_Held, _name, _written_first(_name))


def held_record(held: Any, write: Callable[[], Mapping[str, Any]]) -> ConfigRecord:
    """Return a record that holds an object until its values (``write``) are accessed.

    A node's state is packed for every message. If the next message comes to the same process, this
    can be skipped. Do not change a held object: :func:`held_in` returns it without a copy.
    """
    record = ConfigRecord()
    record.__dict__["_data"] = _Held(held, write)
    return record


def held_in(record: Any) -> Any:
    """Return the object that a record holds; None if its values were computed."""
    values = record.__dict__["_data"] if isinstance(record, ConfigRecord) else None
    return values.held if isinstance(values, _Held) else None


def copy_message(message: Message) -> Message:
    """Copy a message and its records, but not their values."""
    if message.has_error():
        return message
    content = RecordDict({n: type(r)(dict(r)) for n, r in message.content.items()})  # type: ignore[arg-type]
    twin = copy.copy(message)
    twin.__dict__["_content"] = content
    return twin


def message_round_trip(message: Message) -> Message:
    from flwr.common.serde import message_from_proto, message_to_proto

    copy = message_from_proto(message_to_proto(message))
    stamp_message(copy, message_id=message.metadata.message_id)
    return copy


def pack_context(context: Context) -> bytes:
    """Return a node's state and identity as bytes, with the partition only of its configuration."""
    from flwr.common.serde import context_to_proto

    own = {k: v for k, v in context.node_config.items() if k == "partition-id"}
    known = Context(context.run_id, context.node_id, own, context.state, {})
    packed: bytes = context_to_proto(known).SerializeToString()
    return packed


def unpack_context(data: bytes) -> Context:
    """Rebuild a context from :func:`pack_context`; ValueError if damaged."""
    from flwr.common.serde import context_from_proto
    from flwr.proto.message_pb2 import Context as Packed
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        return context_from_proto(Packed.FromString(data))
    except DecodeError as error:
        raise ValueError("no context") from error


def installed_app() -> str:
    """Return publisher, name, version and hash prefix of this process's app; "" in a simulation.

    Flower reveals to a client only the folder of its app.
    """
    from flwr.common.constant import APP_DIR
    from flwr.supercore.utils import get_flwr_home

    apps = get_flwr_home() / APP_DIR
    return next((Path(one).name for one in sys.path if Path(one).parent == apps), "")


def quiet_flower(level: int = logging.WARNING) -> None:
    """Set the level of Flower's log, which otherwise reports every round."""
    logging.getLogger("flwr").setLevel(level)


def time_the_log() -> None:
    """Add times to Flower's log, as Flower does at level DEBUG only."""
    from flwr.supercore.logger import update_console_handler

    update_console_handler(timestamps=True)


# -- a warm node: what Flower offers to a process that runs a SuperNode's tasks

#: What the SuperNode prints for the process that keeps it, a word and a number on a line: a message
#: of this run, or a part of it, arrives; it is complete, as this task; this task ended with its
#: run; the message was erased.
COMES, THERE, STOPPED, DONE = "@comes", "@there", "@stopped", "@done"
CONTENT_SECONDS = 60.0  # after which a message of which no further part comes is given up
_SOON, _SHARE_OF_IDLE = 0.5, 0.05  # seconds to the next request at least; share of the idle time
_UNANSWERED = "the process that answered the message ended without a reply"
_GLANCE, _ASK_RUN = 0.1, 5.0  # seconds from one look for a reply, for the run, to the next

#: What is used of the module of Flower's loop, and parameters of the functions among it.
_USED = {
    "_pull_and_store_message": "state object_store receive get_run pull_object",
    "_push_messages": "state object_store",
    "_insert_message": "msg state store",
}
_USED |= dict.fromkeys(("iterate_object_tree", "RunNotRunningException", "SubStatus"), "")
_STATE = "create_task finish_task get_tasks store_message get_messages_legacy delete_messages"
_STATE += " record_message_processing_start record_message_processing_end"
_USED |= {f"NodeState.{name}": "" for name in _STATE.split()}
_USED |= {f"ObjectStore.{name}": "" for name in ("get", "get_object_tree", "clear")}
_USED |= {f"time.{name}": "" for name in ("sleep", "monotonic")}


class _EagerClock:
    """Replace ``time`` in a SuperNode's loop: sleep less while messages arrive."""

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


class _Instead:
    def __init__(self, state: Any, name: str, method: Callable[..., Any]) -> None:
        self._state = state
        setattr(self, name, method)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


class _Exchanges:
    """Run a SuperNode's loop so that each message is completed before the next.

    Flower creates a task before all parts of its message have arrived, keeps the message if the run
    is stopped, and then takes any reply for that of the next message. Here a task is created for a
    complete message, a reply belongs to its message, and a stopped run ends the wait.
    """

    def __init__(self, loop: Any, describe: Callable[[str, str], str], words: int) -> None:
        self._loop, self._describe, self._words = loop, describe, words
        self._pull, self._push = loop._pull_and_store_message, loop._push_messages
        self._clock = loop.time = _EagerClock(loop.time)
        self._message: Any = None
        self._task: int | None = None
        self._why = ""  # why the process of the task has ended
        self._get_run: Any = None
        loop._pull_and_store_message, loop._push_messages = self.pull, self.push

    def pull(self, *, state: Any, object_store: Any, **calls: Any) -> int | None:
        """Get a message, and create its task when all parts have arrived."""
        receive, pull_object = calls["receive"], calls["pull_object"]
        wanted: dict[str, Any] = {}
        came = self._clock.monotonic()
        self._message, self._task, self._why, self._get_run = None, None, "", calls["get_run"]

        def create_task(**about: Any) -> int:
            wanted.update(about)
            return 0  # of no task: what is done with it does nothing

        def received() -> Any:
            if (found := receive()) is not None:
                self._message = found[0]
                print(COMES, self._message.metadata.run_id, flush=True)
            return found

        def pulled(run_id: int, object_id: str) -> bytes:
            nonlocal came
            try:
                content: bytes = pull_object(run_id, object_id)
            except Exception:
                if self._clock.monotonic() > came + CONTENT_SECONDS:
                    raise TimeoutError("its parts do not come") from None
                raise
            came = self._clock.monotonic()
            print(f"{COMES} {run_id}\n", end="", flush=True)  # at once: parts come in threads
            return content

        calls |= {"receive": received, "pull_object": pulled}
        late = _Instead(state, "create_task", create_task)
        run: int | None = self._pull(state=late, object_store=object_store, **calls)
        if run is not None and wanted:
            self._task = state.create_task(**wanted)
            print(THERE, self._task, flush=True)
        elif run is None and self._message is not None:
            self._forget(state, object_store)
            if wanted:  # the server hears of it at once; that of a stopped run takes no reply
                run = self._message.metadata.run_id
                problem = "the parts of the message did not come"
                self._fail(state, object_store, self._describe(problem, "FK-NODE-CONTENT"))
        return run

    def push(self, *, state: Any, object_store: Any, **calls: Any) -> None:
        try:
            if self._task is not None:
                replies = [self._reply(state, object_store)]
                state = _Instead(state, "get_messages_legacy", lambda **_: replies)
            self._push(state=state, object_store=object_store, **calls)
        except self._loop.RunNotRunningException:
            state.finish_task(self._task, self._loop.SubStatus.STOPPED, "the run was stopped")
            print(STOPPED, self._task, flush=True)
        finally:
            self._forget(state, object_store)
            self._clock.note_message()

    def _reply(self, state: Any, store: Any) -> Any:
        """Wait for the reply, or make an error if the client has ended without one.

        The reply waits for the client's state too. Otherwise the next message would get the earlier
        state, and could have the same request answered differently.
        """
        own, found, asked = self._message.metadata, None, self._clock.monotonic()
        while True:
            self._hear(state)
            (task,) = state.get_tasks(task_ids=[self._task])
            for reply in state.get_messages_legacy(is_reply=True):
                if reply.metadata.reply_to_message_id == own.message_id:
                    found = reply
            if task.finished_at:
                if found is not None and not self._why and self._whole(found, store):
                    return found
                self._fail(state, store, self._why or self._describe(_UNANSWERED, "FK-NODE-ENDED"))
                self._why = ""
            if self._clock.monotonic() > asked + _ASK_RUN:
                asked = self._clock.monotonic()
                with suppress(Exception):  # a SuperLink that does not answer now
                    self._get_run(own.run_id)

    def _hear(self, state: Any) -> None:
        """Read which processes have ended, by task, and why."""
        if not select.select([self._words], [], [], _GLANCE)[0]:
            return
        told = os.read(self._words, 1 << 16)  # all that a pipe holds: every line is whole
        if not told:  # the keeper is gone, and this process ends too
            time.sleep(_GLANCE)
        for line in told.decode().splitlines():
            task, _, why = line.partition(" ")
            ended = state.finish_task(int(task), self._loop.SubStatus.FAILED, why)
            if ended and int(task) == self._task:
                self._why = why

    def _whole(self, reply: Message, store: Any) -> bool:
        """Return whether all parts of a reply are here; a process may end before sending them."""
        with suppress(Exception):  # they were given up
            tree = store.get_object_tree(reply.metadata.message_id)
            return all(store.get(o.object_id) for o in self._loop.iterate_object_tree(tree))
        return False

    def _fail(self, state: Any, store: Any, reason: str) -> None:
        error, own = Error(CLIENT_RAISED, reason), self._message.metadata.message_id
        state.store_message(self._message)  # else it is not known what answering it took
        state.record_message_processing_start(message_id=own)
        state.record_message_processing_end(message_id=own)
        self._loop._insert_message(Message(error, reply_to=self._message), state, store)

    def _forget(self, state: Any, store: Any) -> None:
        state.delete_messages()
        store.clear()
        print(DONE, flush=True)


def mend_supernode(loop: Any, describe: Callable[[str, str], str], words: int = 0) -> None:
    """Make a SuperNode poll often, and complete each message before the next.

    It polls every 0.5 s while messages arrive, and every 3 s when idle; Flower has no option for
    this. Tested with flwr 1.41.0 and 1.42.0. If Flower's code is not as expected, the SuperNode is
    unchanged, with a warning. The file descriptor ``words`` has lines of a task, a space and an
    error text, for each process that ended.
    """
    missing = [name for name, parameters in _USED.items() if not _has(loop, name, parameters)]
    if missing:
        logger.warning(
            "this release of Flower has no %s as they are known: the node asks for messages every "
            "3 s and may wait for a stopped run, as a stock SuperNode does",
            ", ".join(missing),
        )
    else:
        _Exchanges(loop, describe, words)


def _has(loop: Any, name: str, parameters: str) -> bool:
    for part in name.split("."):
        loop = getattr(loop, part, None)
    known = inspect.signature(loop).parameters if loop and parameters else ()
    return loop is not None and set(parameters.split()) <= set(known)


def run_supernode(arguments: Sequence[str], describe: Callable[[str, str], str]) -> None:
    """Run a SuperNode as ``flower-supernode`` does, with :func:`mend_supernode`."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    mend_supernode(start_client_internal, describe)
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


def answer_task(address: str, token: str, parent: int) -> None:
    """Answer the message of a task, as ``flwr-clientapp`` does; ends in ``SystemExit``.

    ``address`` is that of the SuperNode's runtime API on this machine, ``token`` that of the task.
    This process ends when the process ``parent`` does.
    """
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    run_clientapp(address, token, insecure=True, parent_pid=parent)


class TaskQueue:
    """Get the tasks of a SuperNode, as Flower's SuperExec does.

    ``secret`` is the SuperNode's ``--superexec-auth-secret-file``.
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

    def take(self) -> tuple[str, int, int] | None:
        """Return token, run and number of a waiting task, or None.

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
        task, token = found.task, str(found.token)
        return (token, int(task.run_id), int(task.task_id)) if token else None


# -- a coordinator: what the command ``flwr`` does, without a process for each


class Refused(Exception):
    """A SuperLink refuses a call, or does not answer; the text has Flower's reason."""


class Control:
    """Use a SuperLink's control API, as ``flwr supernode``, ``run``, ``ls`` and ``log`` do.

    ``root_certificates`` is the file of the authority that signed its certificate.
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
        """Register the public key of a SuperNode, a file in OpenSSH's format."""
        from flwr.cli.supernode.register import try_load_public_key
        from flwr.proto.control_pb2 import RegisterNodeRequest

        request = RegisterNodeRequest(public_key=try_load_public_key(public_key))
        _called(lambda: self._client.RegisterNode(request))

    def online(self) -> int:
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
        from flwr.proto.control_pb2 import StopRunRequest

        _called(lambda: self._client.StopRun(StopRunRequest(run_id=run_id)))

    def log(self, run_id: int) -> str:
        from flwr.proto.control_pb2 import StreamLogsRequest

        request = StreamLogsRequest(run_id=run_id, after_timestamp=0.0)
        return str(_called(lambda: next(self._client.StreamLogs(request))).log_output)


def _called(call: Callable[[], Any]) -> Any:
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
    return not warm and "flwr.supernode.cli.flwr_clientapp" in sys.modules

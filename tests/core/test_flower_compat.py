"""What is used of Flower that it does not promise: each fails here first, and says what broke."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from fedkern_flwr import flower_compat


def parameters(call: Callable[..., object]) -> list[str]:
    return list(inspect.signature(call).parameters)


def test_a_message_is_announced_by_the_supernode() -> None:
    """Else a warm node asks for tasks once a second only."""
    from flwr.supernode import start_client_internal

    assert f'"{flower_compat.MESSAGE_ARRIVED}"' in inspect.getsource(start_client_internal)


def test_a_task_is_answered_as_by_the_command_of_flower() -> None:
    """Else messages of warm nodes are not answered."""
    from flwr.supernode.cli import flwr_clientapp as command
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    assert parameters(run_clientapp)[:3] == ["runtime_api_address", "token", "insecure"]
    assert "parent_pid" in parameters(run_clientapp)
    used = inspect.getsource(command)
    assert "run_clientapp(" in used, "flwr-clientapp answers tasks in another way now"


def test_a_supernode_takes_what_a_warm_node_gives_it() -> None:
    from importlib import import_module

    module = import_module("flwr.supernode.cli.flower_supernode")
    parser = module._parse_args_run_supernode()
    arguments = "--isolation process --host 127.0.0.1 --port 1 --superexec-auth-secret-file f"
    arguments += " --superlink h:1 --node-config k=1 --root-certificates c"
    arguments += " --auth-supernode-private-key k"
    found = vars(parser.parse_args(arguments.split()))
    assert (found["isolation"], found["superexec_auth_secret_file"]) == ("process", "f")


def test_tasks_are_asked_for_as_by_the_superexec() -> None:
    """Else a warm node takes no tasks."""
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec import run_superexec

    used = inspect.getsource(run_superexec)
    for text in ("/flwr.proto.Runtime/AcquireTask", "RuntimeVersionHttpInterceptor(component_name"):
        assert text in used, f"the SuperExec does without {text}"
    assert TaskType.CLIENT_APP == "flwr-clientapp"
    flower_compat.TaskQueue("127.0.0.1:1", b"secret")


def test_a_supernode_that_is_not_there_is_a_connection_error() -> None:
    with pytest.raises(ConnectionError):
        flower_compat.TaskQueue("127.0.0.1:1", b"secret").take()


def test_a_grid_waits_for_parts_of_a_reply_that_are_on_their_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else an exchange takes a second more whenever the server is quicker than a SuperNode."""
    from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
    from flwr.superlink.grid.http_grid import HttpGrid

    class Runtime:
        def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
            seen.append(request.object_id)
            there = len(seen) > 3 or request.object_id == "gone"
            return PullObjectResponse(
                object_found=request.object_id != "gone", object_available=there
            )

    seen: list[str] = []
    monkeypatch.setattr(flower_compat, "_LOOK", 0.0)
    grid = HttpGrid(token="t")
    grid.__dict__["_client"] = Runtime()
    patient = flower_compat.patient(grid)
    pull = "pull_object_protobuf=self._runtime_client.PullObject"
    assert pull in inspect.getsource(HttpGrid.pull_messages), "a grid pulls otherwise now"
    assert patient._runtime_client.PullObject(PullObjectRequest(object_id="a")).object_available
    assert seen == ["a"] * 4
    assert not patient._runtime_client.PullObject(PullObjectRequest(object_id="gone")).object_found
    assert flower_compat.patient(object()) is None
    assert isinstance(grid.__dict__["_client"], Runtime), "Flower's own grid is left as it is"


def test_the_control_api_has_what_deployments_use() -> None:
    """Else ``deploy-local`` cannot register nodes, or start, follow and stop runs."""
    from flwr.supercore.control import ControlHttpClient

    for name in ("RegisterNode", "ListNodes", "StartRun", "ListRuns", "StopRun", "StreamLogs"):
        assert hasattr(ControlHttpClient, name), f"the control API has no {name}"


def test_a_supernode_ends_by_sigint_where_its_signature_is_refused() -> None:
    """Else a warm node explains such an end wrongly."""
    from flwr.supercore.retry import http_retry

    used = inspect.getsource(http_retry)
    assert "UNAUTHORIZED" in used
    assert "os.kill(os.getpid(), signal.SIGINT)" in used

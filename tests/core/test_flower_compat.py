"""What is used of Flower that it does not promise: each fails here first, and says what broke."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.supernode.runtime.run_clientapp import run_clientapp

from fedkern_flwr import flower_compat

#: Module, what its text has, and what goes wrong else.
TEXTS = [
    ("supernode.start_client_internal", f'"{flower_compat.MESSAGE_ARRIVED}"', "asked each second"),
    ("supernode.cli.flwr_clientapp", "run_clientapp(", "messages of warm nodes are not answered"),
    ("supercore.superexec.run_superexec", "/flwr.proto.Runtime/AcquireTask", "no tasks"),
    (
        "supercore.superexec.run_superexec",
        "RuntimeVersionHttpInterceptor(component_name",
        "no tasks",
    ),
    ("supercore.retry.http_retry", "UNAUTHORIZED", "an end is explained wrongly"),
    ("supercore.retry.http_retry", "os.kill(os.getpid(), signal.SIGINT)", "as wrongly"),
]


@pytest.mark.parametrize(("name", "text", "otherwise"), TEXTS)
def test_flower_does_as_its_text_says(name: str, text: str, otherwise: str) -> None:
    assert text in inspect.getsource(import_module(f"flwr.{name}")), otherwise


def test_tasks_are_of_the_client_app_and_of_a_supernode_that_is_there() -> None:
    assert TaskType.CLIENT_APP == "flwr-clientapp"
    with pytest.raises(ConnectionError):
        flower_compat.TaskQueue("127.0.0.1:1", b"secret").take()


def test_a_task_is_answered_as_by_the_command_of_flower() -> None:
    parameters = list(inspect.signature(run_clientapp).parameters)
    assert parameters[:3] == ["runtime_api_address", "token", "insecure"]
    assert "parent_pid" in parameters


def test_a_supernode_takes_what_a_warm_node_gives_it() -> None:
    module = import_module("flwr.supernode.cli.flower_supernode")
    parser = module._parse_args_run_supernode()
    arguments = "--isolation process --host 127.0.0.1 --port 1 --superexec-auth-secret-file f"
    arguments += " --superlink h:1 --node-config k=1 --root-certificates c"
    arguments += " --auth-supernode-private-key k"
    found = vars(parser.parse_args(arguments.split()))
    assert (found["isolation"], found["superexec_auth_secret_file"]) == ("process", "f")


def test_a_grid_waits_for_parts_of_a_reply_that_are_on_their_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else an exchange takes a second more whenever the server is quicker than a SuperNode."""

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
    for name in ("RegisterNode", "ListNodes", "StartRun", "ListRuns", "StopRun", "StreamLogs"):
        assert hasattr(ControlHttpClient, name), f"the control API has no {name}"

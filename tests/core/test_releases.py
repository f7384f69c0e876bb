"""Releases of server and nodes, compared when a run begins."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from refusals import refused

from fedkern_flwr import __version__
from fedkern_flwr.clients import KernelPCAClient
from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.failure import mark_error
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import KernelPCA
from fedkern_flwr.wire import PROTOCOL_VERSION, DescribeReply, DescribeRequest
from fedkern_flwr.wire.releases import check_node, check_server, other_releases

NEWER, OLDER = PROTOCOL_VERSION + 1, PROTOCOL_VERSION - 1

HERE = f"{__version__} (protocol {PROTOCOL_VERSION})"

OPENING = DescribeRequest(session="s", method="kernel-pca", resume_round=0, secure=True)


class Node(KernelPCAClient):
    """A node of whatever release: what it says of itself can be changed, and how it refuses."""

    def __init__(self, context: Context, **said: Any) -> None:
        rng = np.random.default_rng(int(context.node_config["partition-id"]))
        super().__init__(context, rng.random((8, 2)))
        self.said = said

    def fit(self, parameters: Any, config: Any) -> Any:
        arrays, samples, scalars = super().fit(parameters, config)
        if config["phase"] == "describe":
            scalars = {k: v for k, v in (scalars | self.said).items() if v is not None}
        return arrays, samples, scalars


class Node01(Node):
    """A node of release 0.1, with the words in which it refuses another protocol."""

    def fit(self, parameters: Any, config: Any) -> Any:
        raise ProtocolError(
            mark_error(
                f"ProtocolError: server, phase describe: protocol version {config['protocol']} "
                f"instead of {OLDER}; run the same release of fedkern-flwr on both sides"
            )
        )


def run(*nodes: dict[str, Any], kinds: Any = Node) -> None:
    """Run kernel PCA with nodes that say other things of themselves."""

    def client_fn(context: Context) -> PhaseClient:
        k = int(context.node_config["partition-id"])
        return kinds(context, **nodes[k])

    simulate(KernelPCA(features=3), client_fn, len(nodes))


def told(**scalars: Any) -> str:
    """Return what a node says to a server of another release."""
    context = Context(1, 1, {"partition-id": 3, "num-partitions": 4}, RecordDict(), {})
    asked = {**OPENING.scalars(), **scalars}
    with refused("FK-MESSAGE-VERSION") as caught:
        Node(context).fit([], {k: v for k, v in asked.items() if v is not None})
    return str(caught.value)


def test_both_openings_say_their_release_and_no_other_message_does() -> None:
    reply = DescribeReply(rows=1, features=1)
    assert OPENING.scalars()["release"] == reply.scalars()["release"] == __version__
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 1}, RecordDict(), {})
    assert Node(context).fit([], OPENING.scalars())[2]["release"] == __version__


@pytest.mark.promise("releases-named")
@pytest.mark.parametrize(
    ("protocol", "release", "who", "install"),
    [
        (OLDER, None, "the server is older", f"fedkern-flwr=={__version__}"),
        (OLDER, "0.0.9", "the server is older", f"fedkern-flwr=={__version__}"),
        (NEWER, "9.1.0rc1", "this node is older", "fedkern-flwr==9.1.0rc1"),
        (NEWER, None, "this node is older", "upgrade fedkern-flwr`"),
    ],
)
def test_a_node_says_which_side_is_older_and_what_to_install(
    protocol: int, release: str | None, who: str, install: str
) -> None:
    found = told(protocol=protocol, release=release)
    assert HERE in found
    assert f"(protocol {protocol})" in found
    assert release is None or f"fedkern-flwr {release} " in found
    assert who in found
    assert install in found
    assert "\n" not in found


@pytest.mark.parametrize("release", ["9.0; rm -rf /", "9" * 40, "latest", "9.0\n", 9, b"9.0", ""])
def test_what_is_no_release_is_not_quoted(release: Any) -> None:
    assert told(protocol=NEWER, release=release) == told(protocol=NEWER, release=None)


@pytest.mark.parametrize("protocol", [None, "4", True])
def test_what_is_no_protocol_says_nothing_of_releases(protocol: Any) -> None:
    assert HERE not in told(protocol=protocol)


def test_a_server_names_an_older_node_also_behind_one_that_fails_otherwise() -> None:
    class Broken(Node):
        def fit(self, parameters: Any, config: Any) -> Any:
            raise ValueError

    def kinds(context: Context, **said: Any) -> Node:
        first = context.node_config["partition-id"] == 0
        return (Broken if first else Node01)(context)

    for kind, party in ((Node01, "node 1000"), (kinds, "node 1001")):
        with refused("FK-MESSAGE-VERSION") as caught:
            run({}, {}, kinds=kind)
        assert caught.value.party == party
        assert f"(protocol {OLDER})" in str(caught.value)
        assert HERE in str(caught.value)
        assert f"fedkern-flwr=={__version__}" in str(caught.value)


def test_a_reply_of_another_protocol_is_refused_as_that() -> None:
    with refused("FK-MESSAGE-VERSION") as caught:
        run({}, {"protocol": OLDER, "release": "0.0.9"})
    assert caught.value.party == "node 1001"
    assert "fedkern-flwr 0.0.9 (" in str(caught.value)
    with refused("FK-MESSAGE-VERSION") as caught:
        check_node({"protocol": NEWER, "release": "9.0"}, party="node 1")
    assert "fedkern-flwr==9.0" in str(caught.value)


def test_other_releases_of_the_same_protocol_are_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run({}, {"release": "0.0.9"}, {"release": None}, {"release": "0.0.9"})
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    (text,) = [text for text in warned if "the server has" in text]
    assert f"{__version__}, partitions 1, 3 0.0.9, partition 2 an earlier" in text
    caplog.clear()
    run({}, {})
    assert "the server has" not in caplog.text


def test_a_node_writes_into_its_log_that_the_server_has_another_release(
    caplog: pytest.LogCaptureFixture,
) -> None:
    same = {"protocol": PROTOCOL_VERSION}
    check_server({**same, "release": __version__}, party="partition 1")
    assert caplog.text == ""
    check_server({**same, "release": "9.0"}, party="partition 1")
    check_server(same, party="partition 1")
    first, second = (record.getMessage() for record in caplog.records)
    assert f"partition 1: the server has fedkern-flwr 9.0, this node {__version__};" in first
    assert f"the server has an earlier release of fedkern-flwr, this node {__version__};" in second


def test_everybody_has_the_release_of_the_server() -> None:
    assert other_releases({0: __version__, 1: __version__}) == other_releases({}) == ""

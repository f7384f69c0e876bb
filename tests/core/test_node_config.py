"""A node's configuration is read anew without its SuperNode, by whoever answers next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from fedkern_flwr import node_config
from fedkern_flwr.clients import serve
from fedkern_flwr.errors import FedKernError, OptionError
from fedkern_flwr.flower_compat import set_task_identity
from fedkern_flwr.node_config import FIXED, read_config, renew, reread_config
from fedkern_flwr.secure_aggregation import secure_aggregation_mod

START = {"partition-id": 0, "num-partitions": 2, "role": "hospital", "data": "old.csv"}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no configuration behind; let this process make messages."""
    monkeypatch.setattr(node_config, "_latest", None)
    set_task_identity(1, 1)


def write(folder: Path, **changes: Any) -> Path:
    """Write the configuration with some changes; None leaves a key out."""
    values = {**START, **{key.replace("_", "-"): value for key, value in changes.items()}}
    lines = [f"{key} = {value!r}\n" for key, value in values.items() if value is not None]
    (folder / "node.toml").write_text("".join(lines).replace("True", "true"))
    return folder / "node.toml"


def context() -> Context:
    """Return what a SuperNode hands over, which knows the first configuration only."""
    return Context(1, 2, dict(START), RecordDict(), {})


def seen(own: Context) -> dict[str, Any]:
    """Return the configuration that a client of ours is built with."""
    found: list[dict[str, Any]] = []

    def make_client(given: Context) -> Any:
        found.append(dict(given.node_config))
        raise OptionError("enough")

    message = Message(RecordDict(), dst_node_id=2, message_type="train")
    with pytest.raises(OptionError, match="enough"):
        serve(make_client)(message, own)
    return found[0]


def test_the_next_client_has_what_was_read_last(tmp_path: Path) -> None:
    before = read_config(write(tmp_path))
    assert before == START
    own = context()
    assert seen(own) == START  # a file that was read and not read again changes nothing
    config = reread_config(write(tmp_path, data="new.csv", allow_single=True), before)
    assert seen(own) == config == {**START, "data": "new.csv", "allow-single": True}
    config = reread_config(write(tmp_path, data=None), config)
    assert seen(own) == config == {key: START[key] for key in list(START)[:3]}
    own.node_config["data"] = "by the app"
    assert seen(own) == config


def test_an_app_with_secure_sums_has_it_too(tmp_path: Path) -> None:
    own = context()
    reread_config(write(tmp_path, data="new.csv"), START)
    message = Message(RecordDict(), dst_node_id=2, message_type="train")
    with pytest.raises(FedKernError):  # the message is none of ours
        secure_aggregation_mod(lambda _: 1)(message, own, lambda *_: message)
    assert own.node_config["data"] == "new.csv"


def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    config = reread_config(write(tmp_path, data="new.csv"), START)
    (tmp_path / "policy.toml").write_text("min_partie = 3\n")
    for changes, text in (
        ({"data": ["a.csv"]}, "data in node.toml is neither text, number, true nor false"),
        ({"policy": str(tmp_path / "policy.toml")}, "has a rule 'min_partie'"),
        *(({key: 7}, f"{key} in node.toml has changed; start the node again") for key in FIXED),
        *(({key: None}, f"{key} in node.toml has changed") for key in FIXED if key in START),
    ):
        with pytest.raises(OptionError, match=text) as caught:
            reread_config(write(tmp_path, **changes), config)
        assert "\n" not in str(caught.value)
    for content in (b"data = ", b"\xff", b"[a]\nb = 1\n"):
        (tmp_path / "node.toml").write_bytes(content)
        with pytest.raises(OptionError):
            reread_config(tmp_path / "node.toml", config)
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        reread_config(tmp_path / "none.toml", config)
    own = context()
    renew(own)
    assert own.node_config == config

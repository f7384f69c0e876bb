"""The client of an align run: what it sends, remembers and refuses."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr.align import messages as wire
from fedkern_flwr.align.private_intersection import Exponents, blind_ids
from fedkern_flwr.alignment import AlignmentTags, hash_ids
from fedkern_flwr.clients import AlignmentClient
from fedkern_flwr.clients.alignment import _place
from fedkern_flwr.errors import FedKernError, OptionError, ProtocolError, StateError, TableError
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.node.sums import load_state
from fedkern_flwr.secure_sum import SecureSum
from fedkern_flwr.secure_sum.envelope import seal_message, unseal_message
from fedkern_flwr.wire import DescribeReply, DescribeRequest, PhaseMessage
from fedkern_flwr.wire.sections import attach

SESSION = "5e5510"
IDS = [["a", "b", "c"], ["c", "a", "d", "é"], ["x", "a"]]


class Nodes:
    """The nodes of a run; every message meets a new client object, as in a deployment."""

    def __init__(self, folder: Path, ids: Any = IDS, **common: Any) -> None:
        self.folder, self.ids, self.common = folder, [list(own) for own in ids], common
        config = {"simulation": True, "num-partitions": len(self.ids)}
        self.contexts = [
            Context(1, 1, {**config, "partition-id": k}, RecordDict(), {})
            for k in range(len(self.ids))
        ]
        self.step = 0
        self.lists: dict[int, Any] = {}

    def client(self, k: int) -> AlignmentClient:
        mine = {name: value[k] for name, value in self.common.items()}
        path = self.folder / f"{k}.npz"
        return AlignmentClient(self.contexts[k], self.ids[k], alignment=path, **mine)

    def send(self, k: int, request: PhaseMessage, *sections: PhaseMessage) -> Any:
        more, extra = attach(list(sections))
        arrays, config = [*request.arrays(), *more], {**request.scalars(), **extra}
        answer, _, scalars = self.client(k).fit(arrays, config)
        kinds: dict[str, type[PhaseMessage]] = {
            "describe": DescribeReply,
            "align-hop": wire.HopReply,
            "align-tags": wire.TagsReply,
        }
        return kinds[request.phase].unpack(answer, scalars, party=f"partition {k}")

    def describe(self) -> None:
        request = DescribeRequest(session=SESSION, method="align", resume_round=0, secure=True)
        replies = [self.send(k, request) for k in range(len(self.ids))]
        keys = {r.partition: (r.public_key, r.signature) for r in replies}
        counts = {r.partition: (r.rows, r.test_rows) for r in replies}
        self.sums = SecureSum(SESSION, keys, relays_only=True, counts=counts)
        self.lists = dict.fromkeys(range(len(self.ids)), np.zeros(0, np.uint8))

    def hop(self, hop: int, k: int) -> Any:
        self.step += 1
        sections = self.sums.sections(k, [])
        request = wire.HopRequest(session=SESSION, round=self.step, hop=hop, received=self.lists[k])
        reply = self.send(k, request, *sections)
        self.sums.take(k, [])
        return reply

    def hops(self, upto: int) -> None:
        for hop in range(upto):
            replies = {k: self.hop(hop, k) for k in range(len(self.ids))}
            self.lists = {(k + 1) % len(self.ids): r.sealed for k, r in replies.items()}

    def last(self, k: int, received: Any = None) -> Any:
        self.step += 1
        got = self.lists[k] if received is None else received
        return self.send(k, wire.TagsRequest(session=SESSION, round=self.step, received=got))

    def whole(self) -> list[Any]:
        self.describe()
        self.hops(len(self.ids))
        return [self.last(k) for k in range(len(self.ids))]

    def kept(self, k: int) -> KeptState:
        return KeptState.unpack(SessionState.load(self.contexts[k]).payload)

    def secret_of(self, k: int, other: int) -> bytes:
        state = load_state(self.contexts[k])
        assert state is not None
        return state.secrets[other]

    def bytes_of(self, k: int) -> bytes:
        """All that the node's state holds."""
        records = self.contexts[k].state.config_records.values()
        values = [value for record in records for value in record.values()]
        return b"".join(v if isinstance(v, bytes) else str(v).encode() for v in values)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def test_tags_meet_where_ids_do(nodes: Nodes, tmp_path: Path) -> None:
    replies = nodes.whole()
    pseudonyms = {}
    for k, reply in enumerate(replies):
        tags = AlignmentTags.load(tmp_path / f"{k}.npz")
        assert tags.run == SESSION
        hashes = hash_ids(nodes.ids[k], tags, SESSION)
        for name, value in zip(nodes.ids[k], hashes.tolist(), strict=True):
            pseudonyms.setdefault(name, set()).add(tuple(value))
        assert sorted(map(tuple, hashes.tolist())) == [tuple(v) for v in reply.ids.tolist()]
    assert all(len(values) == 1 for values in pseudonyms.values())
    assert len({v for values in pseudonyms.values() for v in values}) == len(pseudonyms) == 6


def test_training_and_held_out_rows_get_tags(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, [["a", "b"], ["c"]], ids_test=[["c"], ["a", "d"]])
    nodes.whole()
    one, other = (AlignmentTags.load(tmp_path / f"{k}.npz") for k in range(2))
    for name in ("a", "c"):
        assert one.tags_of([name]) == other.tags_of([name])
    reply = nodes.client(1).describe(
        DescribeRequest(session=SESSION, method="align", resume_round=0)
    )
    assert (reply.rows, reply.test_rows, reply.features) == (1, 2, 0)


def test_a_neighbour_reads_points_and_others_do_not(nodes: Nodes) -> None:
    nodes.describe()
    reply = nodes.hop(0, 0)
    place = _place(
        wire.HopRequest(session=SESSION, round=1, hop=0, received=reply.sealed), 1, 0, 0, 1
    )
    exponents = Exponents.unpack(nodes.kept(0).seed)
    order = exponents.order(nodes.ids[0])
    nodes.hop(0, 1)
    points = unseal_message(nodes.secret_of(1, 0), reply.sealed.tobytes(), *place)
    assert points == blind_ids([nodes.ids[0][k] for k in order], exponents.blind)
    nodes.hop(0, 2)
    for secret in (nodes.secret_of(2, 0), nodes.secret_of(2, 1), bytes(32)):
        with pytest.raises(ProtocolError):
            unseal_message(secret, reply.sealed.tobytes(), *place)


def test_little_is_remembered_and_nothing_secret_in_the_end(nodes: Nodes) -> None:
    nodes.describe()
    nodes.hops(3)
    drawn = [nodes.kept(k).seed for k in range(3)]
    assert all(len(seed) == 96 for seed in drawn)
    assert len(set(drawn)) == 3
    assert max(len(SessionState.load(context).payload) for context in nodes.contexts) < 1000
    secrets_of_pairs = [nodes.secret_of(k, (k + 1) % 3) for k in range(3)]
    for k in range(3):
        nodes.last(k)
    for k in range(3):
        assert nodes.kept(k).seed == b""
        assert load_state(nodes.contexts[k]) is None
        left = nodes.bytes_of(k)
        for secret in (drawn[k][:32], drawn[k][32:64], drawn[k][64:], secrets_of_pairs[k]):
            assert secret not in left
            assert secret.hex().encode() not in left


def test_every_message_may_come_twice(nodes: Nodes, tmp_path: Path) -> None:
    nodes.describe()
    for hop in range(3):
        first = {k: nodes.hop(hop, k) for k in range(3)}
        again = {k: nodes.hop(hop, k) for k in range(3)}
        assert [first[k].fingerprint for k in range(3)] == [again[k].fingerprint for k in range(3)]
        for k in range(3):
            assert first[k].sealed.tobytes() != again[k].sealed.tobytes()  # a fresh nonce
        chosen = first if hop % 2 else again
        nodes.lists = {(k + 1) % 3: chosen[k].sealed for k in range(3)}
    replies = [nodes.last(0), nodes.last(0), nodes.last(1), nodes.last(2)]
    np.testing.assert_array_equal(replies[0].ids, replies[1].ids)
    assert replies[0].fingerprint == replies[1].fingerprint
    tags = [AlignmentTags.load(tmp_path / f"{k}.npz").tags_of(["a"]) for k in range(3)]
    assert tags[0] == tags[1] == tags[2]


# -- what it refuses of the server and of other parties


def changed(data: np.ndarray, place: int) -> np.ndarray:
    out = data.copy()
    out[place] ^= 1
    return out


def test_a_relayed_list_that_was_changed_is_refused(nodes: Nodes) -> None:
    nodes.describe()
    nodes.hops(1)
    good = dict(nodes.lists)
    for place in (0, 12, 40, -1):
        nodes.lists[1] = changed(good[1], place)
        with pytest.raises(ProtocolError, match="partition 1: what another party sent through the"):
            nodes.hop(1, 1)
    for wrong in (good[2], good[1][:-1], np.zeros(0, np.uint8)):
        nodes.lists[1] = wrong
        with pytest.raises(ProtocolError, match="was changed or misplaced"):
            nodes.hop(1, 1)
    nodes.lists = good
    with pytest.raises(ProtocolError, match="was changed or misplaced"):
        nodes.hop(2, 1)  # as if it were one hop further
    with pytest.raises(ProtocolError, match="was changed or misplaced"):
        nodes.last(1)
    nodes.hop(1, 1)


FORGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "low order": (lambda points: bytes(32) + points[32:], "is not a point of the curve"),
    "twist": (lambda points: (2).to_bytes(32, "little") + points[32:], "is not a point of the c"),
    "not reduced": (lambda points: b"\xff" * 32 + points[32:], "is not a point of the curve"),
    "no list": (lambda points: points[:-3], "is no list of points"),
}


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("hop", [1, 3])
def test_improper_points_of_a_neighbour_are_refused(nodes: Nodes, name: str, hop: int) -> None:
    forge, text = FORGED[name]
    nodes.describe()
    nodes.hops(hop)
    secret, owner = nodes.secret_of(0, 2), (0 - hop) % 3
    request = wire.HopRequest(session=SESSION, round=1, hop=hop, received=nodes.lists[0])
    place = _place(request, hop, owner, 2, 0)
    points = forge(unseal_message(secret, nodes.lists[0].tobytes(), *place))
    nodes.lists[0] = np.frombuffer(seal_message(secret, points, *place), np.uint8)
    expected = "another length" if hop == 3 and name == "no list" else text
    with pytest.raises(ProtocolError, match=f"partition 0: .*{expected}.*; start align again"):
        nodes.last(0) if hop == 3 else nodes.hop(hop, 0)
    assert not (nodes.folder / "0.npz").exists()


def test_a_list_with_rows_added_or_repeated_is_refused(nodes: Nodes) -> None:
    nodes.describe()
    nodes.hops(3)
    secret = nodes.secret_of(0, 2)
    request = wire.HopRequest(session=SESSION, round=1, hop=3, received=nodes.lists[0])
    place = _place(request, 3, 0, 2, 0)
    points = unseal_message(secret, nodes.lists[0].tobytes(), *place)
    for forged, text in ((points + points[:32], "length"), (points[:32] * 3, "twice")):
        sealed = np.frombuffer(seal_message(secret, forged, *place), np.uint8)
        with pytest.raises(ProtocolError, match=text):
            nodes.last(0, sealed)


def test_requests_out_of_turn_are_refused(nodes: Nodes) -> None:
    nodes.describe()
    with pytest.raises(StateError, match="its secret of this run is gone; start align again"):
        nodes.hop(1, 0)  # nothing has been drawn
    nodes.hops(3)
    nodes.last(0)
    for hop in (0, 1):
        with pytest.raises(StateError, match="its secret of this run is gone"):
            nodes.hop(hop, 0)  # never again in this session
    assert not nodes.kept(0).seed  # nor is anything drawn


def test_a_node_that_was_described_anew_does_not_draw_other_secrets(nodes: Nodes) -> None:
    nodes.describe()
    nodes.hops(2)
    nodes.send(1, DescribeRequest(session=SESSION, method="align", resume_round=0, secure=True))
    with pytest.raises(FedKernError, match=r"gone|no secret with"):
        nodes.hop(2, 1)
    with pytest.raises(FedKernError, match=r"gone|no secret with"):
        nodes.last(1)


def test_a_table_that_changed_within_the_run_is_refused(nodes: Nodes) -> None:
    nodes.describe()
    nodes.hops(3)
    nodes.ids[0].append("new")
    with pytest.raises(TableError, match="its table is not the one with which this run began"):
        nodes.last(0)
    nodes.ids[0].pop()
    nodes.last(0)


def test_the_file_of_another_run_is_not_taken_for_a_lost_reply(nodes: Nodes) -> None:
    nodes.whole()
    AlignmentTags.of("other", nodes.ids[0], [secrets.token_bytes(32)] * 3).save(
        nodes.folder / "0.npz"
    )
    with pytest.raises(StateError, match="the file of this run is gone"):
        nodes.last(0)


# -- pinned identities


@pytest.fixture
def pinned(tmp_path: Path) -> dict[str, list[Path]]:
    lines = []
    for k in range(3):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / f"id{k}")]
        subprocess.run(command, check=True)
        lines.append(f"{k} {(tmp_path / f'id{k}.pub').read_text()}")
    (tmp_path / "trusted").write_text("".join(lines))
    return {
        "identity_key": [tmp_path / f"id{k}" for k in range(3)],
        "trusted_keys": [tmp_path / "trusted"] * 3,
    }


def test_parties_with_pinned_identities_align(
    tmp_path: Path, pinned: dict[str, list[Path]]
) -> None:
    nodes = Nodes(tmp_path, **pinned)
    nodes.whole()
    one, other = (AlignmentTags.load(tmp_path / f"{k}.npz") for k in (0, 2))
    assert one.tags_of(["a"]) == other.tags_of(["a"])


def test_a_party_with_another_identity_gets_no_list(
    tmp_path: Path, pinned: dict[str, list[Path]]
) -> None:
    keys = pinned["identity_key"]
    nodes = Nodes(tmp_path, **{**pinned, "identity_key": [keys[0], keys[0], keys[2]]})
    nodes.describe()
    with pytest.raises(FedKernError, match="partition 1: its key of this run is not signed by its"):
        nodes.hop(0, 0)


# -- what cannot be served


WRONG: dict[str, tuple[dict[str, Any], type[FedKernError], str]] = {
    "twice": ({"ids": ["a", "b", "a"]}, TableError, "1 duplicate ids; keep one row per id"),
    "same text": ({"ids": [7, "7"]}, TableError, "1 duplicate ids"),
    "held out and not": (
        {"ids": ["a", "b"], "ids_test": ["b"]},
        TableError,
        "1 duplicate ids; keep one row per id",
    ),
    "none": ({"ids": []}, TableError, "there are no ids; bring rows to align"),
    "a folder": (
        {"alignment": "{}"},
        OptionError,
        "the alignment file cannot be written; name a file in a folder of this node's user",
    ),
    "below a file": (
        {"alignment": "{}/file/x.npz"},
        OptionError,
        "the alignment file cannot be written",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_work_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    change, kind, text = WRONG[name]
    table = {"ids": ["a"], "alignment": "{}/new/folder/a.npz", **change}
    table["alignment"] = table["alignment"].format(tmp_path)
    context = Context(1, 1, {"partition-id": 1, "num-partitions": 2}, RecordDict(), {})
    ids = table.pop("ids")
    with pytest.raises(kind) as error:
        AlignmentClient(context, ids, **table)
    assert str(error.value).startswith(f"partition 1: {text}")
    assert "\n" not in str(error.value)

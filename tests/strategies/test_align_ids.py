"""Align: plain set intersection by secret tags, in view of a server that learns no id."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_cases import WAYS
from flwr.app import ArrayRecord, Context, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from nodes import Nodes

import fedkern_flwr.clients.alignment as client_module
from fedkern_flwr.align import private_intersection
from fedkern_flwr.alignment import AlignmentTags, hash_ids
from fedkern_flwr.clients import (
    AlignmentClient,
    SVMClient,
)
from fedkern_flwr.clients.fdskl_table import VerticalTable
from fedkern_flwr.clients.party_table import PartyTable
from fedkern_flwr.errors import (
    CohortError,
    FedKernError,
    OptionError,
    PartitionError,
    ProtocolError,
    SmallCohortError,
    StateError,
)
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.node.sums import load_state
from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.simulations.engines import Fault, FaultPlan
from fedkern_flwr.strategies import AlignIds
from fedkern_flwr.wire import DescribeRequest

KEY = b"a secret of the data's owners"
IDS = [
    [f"patient {k}" for k in range(12)],
    [f"patient {k}" for k in range(20, 5, -1)],
    ["patient 7", "patient 9", "jürgen", *(f"patient {k}" for k in range(30, 34))],
]


@dataclass
class Parties:
    """Serves the parties of an align run, keeps their contexts."""

    ids: list[list[str]]
    folder: Path
    tests: list[list[str]] = field(default_factory=list)
    contexts: dict[int, Context] = field(default_factory=dict)

    def client_fn(self, context: Context) -> AlignmentClient:
        k = int(context.node_config["partition-id"])
        self.contexts[k] = context
        held_out = self.tests[k] if self.tests else None
        return AlignmentClient(context, self.ids[k], alignment=self.path(k), ids_test=held_out)

    def path(self, k: int) -> Path:
        return self.folder / f"alignment-{k}.npz"

    def run(self, strategy: AlignIds | None = None, **more: Any) -> AlignIds:
        chosen = strategy or AlignIds()
        simulate(chosen, self.client_fn, len(self.ids), serialise=True, **more)
        return chosen

    def files(self) -> list[AlignmentTags]:
        return [AlignmentTags.load(self.path(k)) for k in range(len(self.ids))]

    def table(self, k: int) -> list[str]:
        return [*self.ids[k], *(self.tests[k] if self.tests else [])]

    def check(self, strategy: AlignIds) -> None:
        """What is reported, and what the files say, is what sets say."""
        tables = [self.table(k) for k in range(len(self.ids))]
        found = [
            dict(zip(table, file.tags_of(table), strict=True))
            for table, file in zip(tables, self.files(), strict=True)
        ]
        for k, own in enumerate(tables):
            overlap = strategy.overlaps_[k]
            assert overlap.rows == len(own)
            for j, other in enumerate(tables):
                common = set(own) & set(other)
                assert set(found[k].values()) & set(found[j].values()) == {
                    found[k][name] for name in common
                }
                assert all(found[k][name] == found[j][name] for name in common)
                assert j == k or overlap.shared[j] == len(common)
            assert overlap.in_all == len(set.intersection(*map(set, tables)))
        assert strategy.metrics_["rows"] == sum(map(len, tables))


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties(IDS, tmp_path)


names = st.lists(st.sampled_from("abcdefg") | st.text(max_size=3), unique=True, max_size=6)
tables = st.lists(names.filter(len), min_size=2, max_size=5)


@settings(max_examples=12)
@given(ids=tables, data=st.data())
def test_the_intersection_is_that_of_sets(
    ids: list[list[str]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shuffled = [data.draw(st.permutations(own)) for own in ids]
    cuts = [data.draw(st.integers(0, len(own))) for own in shuffled]
    parties = Parties(
        [own[:cut] for own, cut in zip(shuffled, cuts, strict=True)],
        tmp_path_factory.mktemp("align"),
        [own[cut:] for own, cut in zip(shuffled, cuts, strict=True)],
    )
    strategy = parties.run()
    parties.check(strategy)
    assert strategy.ledger_.exchanges == len(ids) + 2
    phases = {"describe": 1, "align-hop": len(ids), "align-tags": 1}
    assert strategy.ledger_.by_phase == phases


def test_tables_without_a_common_row(tmp_path: Path) -> None:
    parties = Parties([["a", "b"], ["c"], ["d", "e", "f"]], tmp_path)
    strategy = parties.run()
    parties.check(strategy)
    assert strategy.metrics_ == {"rows": 6, "rows_in_all": 0}


def test_what_is_reported(parties: Parties) -> None:
    strategy = parties.run()
    parties.check(strategy)
    assert strategy.result()["matched"]["partition"]["0"] == {
        "rows": 12,
        "shared_with": {"1": 6, "2": 2},
        "known_to_others": [6, 4, 2],
        "in_all": 2,
    }
    assert strategy.metrics_ == {"rows": 34, "rows_in_all": 2}
    assert {file.run for file in parties.files()} == {strategy.session}
    assert all(parties.path(k).stat().st_mode & 0o777 == 0o600 for k in range(3))
    assert strategy.privacy()["server_sees"]
    told: list[int] = []
    strategy.on_round = lambda done, total, _: told.append(total - done)
    parties.run(strategy)
    assert told == [3, 2, 1, 0]


def test_a_ring_of_more_parties_than_share_masks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many parties not everybody is a neighbour in the graph of masks."""
    monkeypatch.setattr("fedkern_flwr.secure_sum.graph.COMPLETE_UP_TO", 5)
    monkeypatch.setattr("fedkern_flwr.secure_sum.graph._DEGREES", (4, 4, 4, 4))
    parties = Parties([["common", f"own {k}"] for k in range(9)], tmp_path)
    strategy = parties.run()
    assert strategy.metrics_ == {"rows": 18, "rows_in_all": 1}
    assert len({file.tags_of(["common"])[0] for file in parties.files()}) == 1


# -- what the server sees


class Watch:
    """Notes all points, tags and secrets that the parties of a run ever hold."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.points: set[bytes] = set()
        self.secrets: set[bytes] = set()
        for name in ("blind_ids", "multiply_points"):
            patch.setattr(client_module, name, self.noting(getattr(private_intersection, name)))
        real, draw = private_intersection.finish_tags, private_intersection.Exponents.draw

        def finish(points: bytes, exponent: bytes, ids: int) -> list[bytes]:
            self.note(points)
            self.note(private_intersection.multiply_points(points, exponent))
            tags = real(points, exponent, ids)
            self.secrets.update(tags)
            return tags

        def note_drawn() -> Any:
            drawn = draw()
            self.secrets.update((drawn.own, drawn.blind, drawn.rest))
            return drawn

        patch.setattr(client_module, "finish_tags", finish)
        patch.setattr(client_module.Exponents, "draw", staticmethod(note_drawn))

    def note(self, data: bytes) -> None:
        self.points.update(data[k : k + 32] for k in range(0, len(data), 32))

    def noting(self, real: Callable[..., bytes]) -> Callable[..., bytes]:
        def noted(*arguments: Any) -> bytes:
            out = real(*arguments)
            self.note(out)
            return out

        return noted


def everything(transcript: Transcript) -> bytes:
    """Return all bytes that passed, up and down."""
    parts: list[bytes] = []
    for entry in transcript.entries():
        parts += [array.tobytes() for array in entry.arrays]
        parts += [v if isinstance(v, bytes) else str(v).encode() for v in entry.scalars.values()]
    return b"|".join(parts)


def guesses(ids: Iterable[str], session: str, transcript: Transcript) -> dict[str, set[bytes]]:
    """Return what a server could make of ids that it guesses: kind -> how byte strings begin."""
    public = [
        value
        for entry in transcript.entries(phase="describe", direction="up")
        for value in (entry.scalars["public_key"], str(entry.scalars["columns"]).encode())
    ]
    constants = [
        value
        for module in (private_intersection, client_module)
        for value in vars(module).values()
        if isinstance(value, bytes)
    ]
    keys = [b"", bytes(16), bytes(32), session.encode(), bytes.fromhex(session), *public]
    keys += [*constants, b"fedkern-flwr alignment 1"]
    found: dict[str, set[bytes]] = {"id": set(), "hash": set(), "keyed hash": set(), "point": set()}
    for text in ids:
        name = text.encode()
        found["id"].add(name)
        found["hash"] |= {hashlib.sha256(key + name).digest()[:8] for key in keys}
        found["hash"] |= {hashlib.sha256(name + key).digest()[:8] for key in keys}
        for key in keys:
            found["keyed hash"].add(hmac.digest(key, name, "sha256")[:8])
            found["keyed hash"].add(hmac.digest(name, key, "sha256")[:8])
            for label in (session, "", "align"):
                found["keyed hash"].add(hash_ids([text], key, label)[0].tobytes())
        found["point"].add(private_intersection.hash_to_curve(text))
    return found


def seen(needles: Iterable[bytes], data: bytes) -> int:
    lower = data.lower()
    return sum(one in data or one.hex().encode() in lower for one in needles)


@dataclass
class Sight:
    """How much of what may not be seen was seen."""

    guessed: dict[str, int]
    points: int
    secrets: int
    noted: Watch


def look(parties: Parties, patch: pytest.MonkeyPatch) -> Sight:
    watch, transcript = Watch(patch), Transcript()
    strategy = parties.run(transcript=transcript)
    data = everything(transcript)
    assert len(data) > 1000
    ids = {name for k in range(3) for name in parties.table(k)}
    found = guesses(ids, strategy.session, transcript)
    return Sight(
        {kind: seen(needles, data) for kind, needles in found.items()},
        seen(watch.points, data),
        seen(watch.secrets, data),
        watch,
    )


def test_the_server_sees_no_id_no_guessable_hash_and_no_point(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    sight = look(parties, monkeypatch)
    # of each id and party: blinded, two products, the final point
    assert len(sight.noted.points) == 3 * 34 + len({n for own in IDS for n in own})
    assert len(sight.noted.secrets) == 9 + len({n for own in IDS for n in own})
    assert sight.guessed == {"id": 0, "hash": 0, "keyed hash": 0, "point": 0}
    assert sight.points == sight.secrets == 0


def test_with_a_key_that_can_be_guessed_the_ids_are_found(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    monkeypatch.setattr(
        client_module, "hash_ids", lambda ids, tags, session: hash_ids(ids, bytes(16), session)
    )
    sight = look(parties, monkeypatch)
    assert sight.guessed["keyed hash"] == len({name for own in IDS for name in own})


def test_without_encryption_the_points_are_found(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    monkeypatch.setattr(client_module, "seal_message", lambda secret, plain, *at: plain + bytes(28))
    monkeypatch.setattr(client_module, "unseal_message", lambda secret, sealed, *at: sealed[:-28])
    sight = look(parties, monkeypatch)
    assert sight.points == 3 * 34  # all but the final ones
    assert sight.secrets == 0
    assert sight.guessed["point"] == 0


def test_no_party_sees_final_points_of_another(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the last in the ring would know which of its own ids the owner has."""
    received: list[set[bytes]] = []
    final: list[set[bytes]] = []
    real = private_intersection.multiply_points
    finish = private_intersection.finish_tags

    def split(data: bytes) -> set[bytes]:
        return {data[k : k + 32] for k in range(0, len(data), 32)}

    def multiply(points: bytes, exponent: bytes) -> bytes:
        out = real(points, exponent)
        received.extend((split(points), split(out)))
        return out

    def finish_noted(points: bytes, exponent: bytes, ids: int) -> list[bytes]:
        final.append(split(real(points, exponent)))
        return finish(points, exponent, ids)

    monkeypatch.setattr(client_module, "multiply_points", multiply)
    monkeypatch.setattr(client_module, "finish_tags", finish_noted)
    parties.run()
    assert [len(one) for one in final] == [12, 15, 7]
    assert len(final[0] & final[1]) == 6
    assert not set.union(*received) & set.union(*final)
    for k, one in enumerate(received):  # lists of two owners never meet before
        for other in received[k + 1 :]:
            assert not one & other or one == other


# -- the same model as with a common key


def align(tables: list[dict[str, Any]], folder: Path) -> list[AlignmentTags]:
    folder.mkdir()
    ids = [[str(name) for name in table["ids"]] for table in tables]
    tests = [[str(name) for name in table.get("ids_test", [])] for table in tables]
    parties = Parties(ids, folder, tests)
    parties.check(parties.run())
    return parties.files()


METHODS = ("fed-cg", "fdskl")


def fit(name: str, keys: list[Any], folder: Path) -> tuple[Any, list[list[str]]]:
    """Return the strategy after a run, and the lines of all predictions."""
    way, method = WAYS[name], WAYS[name].method
    folder.mkdir()
    tables = [{**own, "alignment_key": key} for own, key in zip(way.tables(), keys, strict=True)]
    strategy = method.strategy(**{**method.options, **way.options, "seed": 1})
    Nodes(method.client, tables, folder).run(strategy)
    written = [sorted(p.read_text().splitlines()) for p in sorted(folder.glob("*.csv"))]
    assert written
    return strategy, written


@pytest.mark.parametrize("name", METHODS)
def test_tags_give_the_model_of_a_common_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, where rows are announced in one order: the order follows the pseudonyms."""

    def ranks(self: Any, hashes: Any, session: str, key: Any) -> Any:
        return hash_ids(self._ids, b"a common order", "rows")

    monkeypatch.setattr(PartyTable, "_ranks", ranks)
    monkeypatch.setattr(VerticalTable, "_ranks", ranks)
    tables = WAYS[name].tables()
    expected, lines = fit(name, [KEY] * len(tables), tmp_path / "key")
    found, again = fit(name, align(tables, tmp_path / "align"), tmp_path / "tags")
    assert again == lines
    assert found.metrics_ == expected.metrics_
    arrays, expected_arrays = found.model()[0], expected.model()[0]
    assert arrays.keys() == expected_arrays.keys()
    for key, values in expected_arrays.items():
        np.testing.assert_array_equal(arrays[key], values)


def numbers(lines: list[str]) -> dict[str, float]:
    return {line.split(",")[0]: float(line.split(",")[1]) for line in lines if "output" not in line}


@pytest.mark.parametrize("name", METHODS)
def test_in_an_order_of_their_own_tags_give_the_same_predictions(name: str, tmp_path: Path) -> None:
    """FDSKL's batches and folds follow the order too: its accuracy is what can be compared."""
    tables = WAYS[name].tables()
    expected, lines = fit(name, [KEY] * len(tables), tmp_path / "key")
    found, again = fit(name, align(tables, tmp_path / "align"), tmp_path / "tags")
    for one, other in zip(lines, again, strict=True):
        assert numbers(one).keys() == numbers(other).keys()
        if name == "fed-cg":
            assert numbers(one) == pytest.approx(numbers(other), abs=1e-8)
    accuracy = expected.metrics_["test_accuracy"]
    assert found.metrics_["test_accuracy"] == pytest.approx(accuracy, abs=0.3)


@pytest.mark.parametrize("name", METHODS)
def test_files_of_two_runs_do_not_match(name: str, tmp_path: Path) -> None:
    """Neither do a file and a key; nor has a file tags of rows that were not aligned."""
    tables, other_run = WAYS[name].tables(), r"the same alignment key, or files of the same align"
    one, other = (align(tables, tmp_path / run) for run in ("one", "other"))
    fewer = align([{**table, "ids": table["ids"][3:]} for table in tables], tmp_path / "fewer")
    untagged = r"3 of \d+ ids have no tag in the alignment file; run align again with"
    for k, (keys, text) in enumerate(
        [([*one[:-1], other[-1]], other_run), ([*one[:-1], KEY], other_run), (fewer, untagged)]
    ):
        with pytest.raises(FedKernError, match=text) as error:
            fit(name, keys, tmp_path / str(k))
        assert "\n" not in str(error.value)


def test_users_and_owner_of_an_svm_take_tags(tmp_path: Path) -> None:
    x, y = np.arange(12.0).reshape(6, 2), np.array([1.0, -1.0] * 3)
    ids = [f"row {k}" for k in range(6)]
    files = align([{"ids": ids}, {"ids": ids[::-1]}], tmp_path / "align")
    seen = []
    for k in range(2):
        config = {"simulation": True, "partition-id": k, "num-partitions": 2}
        context = Context(1, 1, config, RecordDict(), {})
        own: dict[str, Any] = {"ids": ids, "y": y, "role": "owner", "classes": (-1, 1)}
        if k:
            own = {"ids": ids[::-1], "x": x[::-1]}
        client = SVMClient(context, alignment_key=files[k], **own)
        SessionState("5e55").store(context)
        asked = DescribeRequest(session="5e55", method="hierarchical-svm", resume_round=0)
        seen.append(client.describe(asked).ids)
    np.testing.assert_array_equal(seen[0], seen[1])


# -- what goes wrong


@pytest.mark.parametrize("phase", ["align-hop", "align-tags"])
def test_a_party_that_stays_away_ends_the_run(parties: Parties, phase: str) -> None:
    faults = FaultPlan([(1, phase, None, Fault("error"))])
    with pytest.raises(CohortError) as error:
        parties.run(AlignIds(attempts=2), faults=faults)
    text = "phase {}: not all parties answered, 2 times in a row: partition 1 raised InjectedError;"
    assert str(error.value).startswith(text.format(phase))
    assert "mend it and start align again" in str(error.value)
    written = [k for k in range(3) if parties.path(k).exists()]
    assert written == ([0, 2] if phase == "align-tags" else [])
    assert ("nodes that have written files of this run" in str(error.value)) == bool(written)
    for context in parties.contexts.values():  # told that the run is over
        assert load_state(context) is None
        assert KeptState.unpack(SessionState.load(context).payload).seed == b""
    parties.check(parties.run())


def test_a_node_that_lost_its_state_ends_the_run(parties: Parties) -> None:
    def forget(message: Message) -> Message:
        state = SessionState.load(parties.contexts[1])
        state.payload = b""
        state.store(parties.contexts[1])
        return message

    faults = FaultPlan([(1, "align-hop", 2, Fault("tamper", change=forget))])
    with pytest.raises(StateError, match="has lost its secret of this run; start align again"):
        parties.run(faults=faults)


def test_a_node_that_drew_another_secret_ends_the_run(parties: Parties) -> None:
    def swap(message: Message) -> Message:
        state = SessionState.load(parties.contexts[1])
        kept = KeptState.unpack(state.payload)
        kept.seed = private_intersection.Exponents.draw().pack()
        state.payload = kept.pack()
        state.store(parties.contexts[1])
        return message

    faults = FaultPlan([(1, "align-hop", 1, Fault("tamper", change=swap))])
    with pytest.raises(ProtocolError, match=r"partition 1.*: its secret of the run has changed"):
        parties.run(faults=faults)


def shorten(message: Message) -> Message:
    record = message.content["fitres.parameters"]
    data = record[next(iter(record))].numpy()[:-32]
    message.content["fitres.parameters"] = ArrayRecord([data])
    return message


def test_a_list_of_another_length_ends_the_run(parties: Parties) -> None:
    faults = FaultPlan([(0, "align-hop", 2, Fault("tamper", change=shorten))])
    with pytest.raises(ProtocolError, match="partition 0, phase align-hop: what it passes on is a"):
        parties.run(faults=faults)


def double(message: Message) -> Message:
    record = message.content["fitres.parameters"]
    data = record[next(iter(record))].numpy().copy()
    data[1] = data[0]
    message.content["fitres.parameters"] = ArrayRecord([data])
    return message


def cut(message: Message) -> Message:
    record = message.content["fitres.parameters"]
    data = record[next(iter(record))].numpy()[1:]
    message.content["fitres.parameters"] = ArrayRecord([data])
    return message


@pytest.mark.parametrize("change", [double, cut])
def test_pseudonyms_that_do_not_fit_are_refused(parties: Parties, change: Any) -> None:
    faults = FaultPlan([(2, "align-tags", None, Fault("tamper", change=change))])
    with pytest.raises(ProtocolError, match="partition 2, phase align-tags: its pseudonyms do not"):
        parties.run(faults=faults)


def test_one_party_has_nobody_to_align_with(tmp_path: Path) -> None:
    with pytest.raises(SmallCohortError) as error:
        Parties([["a"]], tmp_path).run()
    assert str(error.value) == (
        "phase describe: there is one party, and nobody to align with; start the other parties' "
        "nodes"
    )


def test_partitions_that_clash_are_refused(parties: Parties) -> None:
    def client_fn(context: Context) -> AlignmentClient:
        context.node_config["partition-id"] = 0
        return parties.client_fn(context)

    with pytest.raises(PartitionError, match="two nodes have partition-id 0"):
        simulate(AlignIds(), client_fn, 3)


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="attempts is 0; use at least 1"):
        AlignIds(attempts=0)

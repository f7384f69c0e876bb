"""Align: plain set intersection by secret tags, in view of a server that learns no id."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversation import Asked, asked_in
from faulty import change_reply
from flwr.app import ArrayRecord, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from identities import pin_identities
from pooled import KEY
from refusals import refused, refuses
from zoo import WAYS, Found, Sites, Table, everything, new_folder

import fedkern_flwr.clients.alignment as client_module
from fedkern_flwr.align import private_intersection
from fedkern_flwr.alignment import AlignmentTags, hash_ids
from fedkern_flwr.simulations import Transcript
from fedkern_flwr.simulations.engines import Fault, FaultPlan
from fedkern_flwr.wire import DescribeRequest

IDS = [
    [f"patient {k}" for k in range(12)],
    [f"patient {k}" for k in range(20, 5, -1)],
    ["patient 7", "patient 9", "jürgen", *(f"patient {k}" for k in range(30, 34))],
]


def parties(ids: list[list[str]] = IDS, tests: Any = None, folder: Path | None = None) -> Sites:
    tables: list[Table] = [{"ids": list(own)} for own in ids]
    for table, held_out in zip(tables, tests or [[]] * len(ids), strict=True):
        table["ids_test"] = list(held_out)
    return Sites(WAYS["align"], folder or new_folder(), tables)


def path_of(sites: Sites, k: int) -> Path:
    return sites.folder / str(k) / "tags.npz"


def files(sites: Sites) -> list[AlignmentTags]:
    return [AlignmentTags.load(path_of(sites, k)) for k in range(len(sites))]


def check(found: Found) -> None:
    """What is reported, and what the files say, is what sets say."""
    for got, expected in found.oracle():
        assert got == expected


class Watch:
    """Notes all points, tags and secrets that the parties of a run ever hold."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.points: set[bytes] = set()
        self.secrets: set[bytes] = set()
        self.passed: list[set[bytes]] = []  # lists that somebody multiplies, before and after
        self.final: list[set[bytes]] = []  # points that tags are made of
        draw = private_intersection.Exponents.draw
        for name in ("blind_ids", "multiply_points", "finish_tags"):
            patch.setattr(client_module, name, getattr(self, name))

        def note_drawn() -> Any:
            drawn = draw()
            self.secrets.update((drawn.own, drawn.blind, drawn.rest))
            return drawn

        patch.setattr(client_module.Exponents, "draw", staticmethod(note_drawn))

    def note(self, data: bytes) -> set[bytes]:
        found = {data[k : k + 32] for k in range(0, len(data), 32)}
        self.points |= found
        return found

    def blind_ids(self, texts: Iterable[str], exponent: bytes) -> bytes:
        out = private_intersection.blind_ids(texts, exponent)
        self.note(out)
        return out

    def multiply_points(self, points: bytes, exponent: bytes) -> bytes:
        out = private_intersection.multiply_points(points, exponent)
        self.passed += [self.note(points), self.note(out)]
        return out

    def finish_tags(self, points: bytes, exponent: bytes, ids: int) -> list[bytes]:
        self.note(points)
        self.final.append(self.note(private_intersection.multiply_points(points, exponent)))
        tags = private_intersection.finish_tags(points, exponent, ids)
        self.secrets.update(tags)
        return tags


def guesses(ids: Iterable[str], session: str, transcript: Transcript) -> dict[str, set[bytes]]:
    """Return what a server could make of ids that it guesses: kind -> how byte strings begin."""
    public = [
        value
        for entry in transcript.entries(phase="describe", direction="up")
        for value in (entry.scalars["public_key"], str(entry.scalars["columns"]).encode())
    ]
    both = (*vars(private_intersection).values(), *vars(client_module).values())
    keys = [b"", bytes(16), bytes(32), session.encode(), bytes.fromhex(session), *public]
    keys += [value for value in both if isinstance(value, bytes)]
    keys += [b"fedkern-flwr alignment 1"]
    found: dict[str, set[bytes]] = {"id": set(), "hash": set(), "keyed hash": set(), "point": set()}
    for text in ids:
        name = text.encode()
        found["id"].add(name)
        found["point"].add(private_intersection.hash_to_curve(text))
        for key in keys:
            found["hash"] |= {hashlib.sha256(w).digest()[:8] for w in (key + name, name + key)}
            found["keyed hash"] |= {
                hmac.digest(key, name, "sha256")[:8],
                hmac.digest(name, key, "sha256")[:8],
                *(hash_ids([text], key, label)[0].tobytes() for label in (session, "", "align")),
            }
    return found


def seen(needles: Iterable[bytes], data: bytes) -> int:
    lower = data.lower()
    return sum(one in data or one.hex().encode() in lower for one in needles)


@dataclass
class Sight:
    """How much of what may not be seen was seen, and what the nodes keep."""

    guessed: dict[str, int]
    points: int
    secrets: int
    noted: Watch
    kept: bytes


def look(patch: pytest.MonkeyPatch) -> Sight:
    watch, transcript, sites = Watch(patch), Transcript(), parties()
    strategy = sites.fit(transcript=transcript).strategy
    data = everything(transcript)
    assert len(data) > 1000
    found = guesses({name for own in IDS for name in own}, strategy.session, transcript)
    guessed = {kind: seen(needles, data) for kind, needles in found.items()}
    records = (r for c in sites.contexts.values() for r in c.state.config_records.values())
    kept = (v if isinstance(v, bytes) else str(v).encode() for r in records for v in r.values())
    points, secrets = seen(watch.points, data), seen(watch.secrets, data)
    return Sight(guessed, points, secrets, watch, b"|".join(kept))


names = st.lists(st.sampled_from("abcdefg") | st.text(max_size=3), unique=True, max_size=6)


@settings(max_examples=6)
@given(ids=st.lists(names.filter(len), min_size=2, max_size=5), data=st.data())
def test_the_intersection_is_that_of_sets(ids: list[list[str]], data: st.DataObject) -> None:
    shuffled = [data.draw(st.permutations(own)) for own in ids]
    cuts = [data.draw(st.integers(0, len(own))) for own in shuffled]
    known, held_out = (
        [own[part] for own, part in zip(shuffled, parts, strict=True)]
        for parts in ([slice(cut) for cut in cuts], [slice(cut, None) for cut in cuts])
    )
    sites = parties(known, held_out)
    found = sites.fit()
    check(found)
    assert found.phases == {"align-hop": len(ids), "align-tags": 1}


def test_what_is_reported() -> None:
    sites = parties()
    found = sites.fit()
    check(found)
    strategy = found.strategy
    told = {"rows": 12, "shared_with": {"1": 6, "2": 2}, "known_to_others": [6, 4, 2], "in_all": 2}
    assert strategy.result()["matched"]["partition"]["0"] == told
    assert strategy.metrics_ == {"rows": 34, "rows_in_all": 2}
    assert {file.run for file in files(sites)} == {strategy.session}
    assert all(path_of(sites, k).stat().st_mode & 0o777 == 0o600 for k in range(3))
    sites = parties([["a", "b"], ["c"], ["d", "e", "f"]])
    assert sites.fit().strategy.metrics_ == {"rows": 6, "rows_in_all": 0}


def test_parties_with_keys_of_their_own_align_and_an_impostor_gets_no_list(tmp_path: Path) -> None:
    sites = parties(folder=tmp_path)
    pin_identities(tmp_path, 3)
    for k, table in enumerate(sites.tables):
        table |= {"identity_key": tmp_path / f"identity-{k}", "trusted_keys": tmp_path / "trusted"}
    check(sites.fit())
    for k in range(3):
        path_of(sites, k).unlink()
    sites.tables[1]["identity_key"] = tmp_path / "identity-0"
    refuses("FK-IDENTITY-UNSIGNED", sites.fit)
    assert not any(path_of(sites, k).exists() for k in range(3))


# -- what the server and the parties see


@pytest.mark.promise("align-secrets-erased")
def test_nobody_sees_ids_guessable_hashes_or_final_points(monkeypatch: pytest.MonkeyPatch) -> None:
    sight, different = look(monkeypatch), len({name for own in IDS for name in own})
    watch = sight.noted
    # of each id and party: blinded, two products, the final point
    assert len(watch.points) == 3 * 34 + different
    assert len(watch.secrets) == 9 + different
    assert sight.guessed == {"id": 0, "hash": 0, "keyed hash": 0, "point": 0}
    assert sight.points == sight.secrets == 0
    # in the end nodes keep nothing of it
    assert seen(watch.secrets, sight.kept) == seen(watch.points, sight.kept) == 0
    # final points of others would tell the last in the ring which of its own ids the owner has
    assert [len(one) for one in watch.final] == [12, 15, 7]
    assert len(watch.final[0] & watch.final[1]) == 6
    assert not set.union(*watch.passed) & set.union(*watch.final)
    for k, one in enumerate(watch.passed):  # lists of two owners never meet before
        assert all(not one & other or one == other for other in watch.passed[k + 1 :])


def test_without_encryption_points_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    monkeypatch.setattr(client_module, "seal_message", lambda secret, plain, *at: plain + bytes(28))
    monkeypatch.setattr(client_module, "unseal_message", lambda secret, sealed, *at: sealed[:-28])
    sight = look(monkeypatch)
    assert sight.points == 3 * 34  # all but the final ones
    assert sight.secrets == sight.guessed["point"] == 0


def test_in_a_run_with_a_common_key_ids_are_found_by_who_has_the_key_alone() -> None:
    for key in (KEY, bytes(16)):  # the second can be guessed: negative control
        record, sites = Transcript(), WAYS["fed-cg"].sites(alignment_key=key)
        strategy = sites.fit(transcript=record).strategy
        data = everything(record)
        ids = {str(name) for table in sites.tables for name in table["ids"]}
        needles = guesses(ids, strategy.session, record)
        assert {kind: seen(some, data) for kind, some in needles.items()} == {
            "id": 0, "hash": 0, "keyed hash": 0 if key == KEY else len(ids), "point": 0,
        }  # fmt: skip
        owned = hash_ids(sorted(ids), key, strategy.session)
        assert seen((one.tobytes() for one in owned), data) == len(ids)


def aligned(tables: list[Table]) -> Sites:
    """Return the parties of an align run of tables that have ids."""
    own = [[str(name) for name in table["ids"]] for table in tables]
    tests = [[str(name) for name in table.get("ids_test", [])] for table in tables]
    sites = parties(own, tests)
    check(sites.fit())
    return sites


def with_keys(way: str, keys: list[Any]) -> Sites:
    sites, left = WAYS[way].sites(), iter(keys)
    for table in sites.tables:
        if "ids" in table:
            table["alignment_key"] = next(left)
    return sites


@pytest.mark.parametrize("way", ["fed-cg", "fdskl", "hierarchical-svm, vertical"])
def test_tags_give_the_model_of_a_common_key_and_those_of_two_runs_none(way: str) -> None:
    """Neither do a file and a key; nor has a file tags of rows that were not aligned.

    Batches and folds of FDSKL follow the order of pseudonyms: its accuracy is what is compared.
    """
    tables = [table for table in WAYS[way].sites().tables if "ids" in table]
    one, other = (files(aligned(tables)) for _ in range(2))
    expected, found = WAYS[way].sites().fit(), with_keys(way, one).fit()
    assert expected.predictions
    assert found.predictions.keys() == expected.predictions.keys()
    for name, values in expected.predictions.items() if way == "fed-cg" else ():
        assert found.predictions[name] == pytest.approx(values, abs=1e-8)
    accuracy = expected.strategy.metrics_["test_accuracy"]
    assert found.strategy.metrics_["test_accuracy"] == pytest.approx(accuracy, abs=0.3)
    for last in (other[-1], b"a key of its own"):
        with refused("FK-ROWS-LACKING", "FK-IDS-APART"):
            with_keys(way, [*one[:-1], last]).fit()
    fewer = files(aligned([{**table, "ids": table["ids"][3:]} for table in tables]))
    refuses("FK-ALIGN-UNTAGGED", with_keys(way, fewer).fit)


# -- what goes wrong


def changed(change: Callable[[np.ndarray], Any]) -> Fault:
    """Return the fault of a reply whose array is changed on its way."""

    def go(message: Message) -> Message:
        (array,) = message.content["fitres.parameters"].to_numpy_ndarrays()
        message.content["fitres.parameters"] = ArrayRecord([change(array.copy())])
        return message

    return change_reply(go)


@pytest.mark.parametrize(
    ("partition", "phase", "change"),
    [
        (0, "align-hop", lambda data: data[:-32]),
        (2, "align-tags", lambda data: data[1:]),
        (2, "align-tags", lambda data: data[[0, 0, *range(2, 7)]]),
    ],
)
def test_answers_that_do_not_fit_end_the_run(partition: int, phase: str, change: Any) -> None:
    with refused("FK-ALIGN-LIST") as caught:
        parties().fit(faults=FaultPlan([(partition, phase, None, changed(change))]))
    assert caught.value.party == f"partition {partition}"


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that runs until a request is at party 1: its phase, and which hop."""

    def find(phase: str, hop: int = 0) -> tuple[Sites, Asked]:
        sites = parties(folder=tmp_path)

        def here(client: Any, r: Any) -> bool:
            return (client.partition, r.phase, getattr(r, "hop", 0)) == (1, phase, hop)

        (found,) = asked_in(lambda *_: sites.fit(), tmp_path, here).values()
        return sites, found

    return find


@pytest.mark.promise("align-lists-placed")
def test_a_list_that_was_changed_or_is_of_another_place_is_refused(ask: Any) -> None:
    good = {hop: ask("align-hop", hop)[1] for hop in (1, 2)}
    for hop, one in good.items():
        received = one.request.received
        turned = [
            received ^ (np.arange(len(received)) == k) for k in (0, 12, 40, len(received) - 1)
        ]
        changes: list[Table] = [{"hop": 3 - hop}]  # one further, or before
        changes += [{"received": wrong} for wrong in (*turned, received[:-1], received[:0])]
        for change in changes:
            said, _ = one.try_out(request=replace(one.request, **change))
            assert said.endswith("[FK-SUM-CHANGED]")
        assert one.try_out() == ("", False)


FORGED: dict[str, Callable[[bytes], bytes]] = {
    "low order": lambda points: bytes(32) + points[32:],
    "twist": lambda points: (2).to_bytes(32, "little") + points[32:],
    "not reduced": lambda points: b"\xff" * 32 + points[32:],
    "repeated": lambda points: points[:32] * (len(points) // 32),
}


@pytest.mark.parametrize("hop", [1, 3])
@pytest.mark.parametrize("name", FORGED)
def test_improper_points_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, hop: int) -> None:
    """By party 0, of what party 2 seals for it."""
    forge, seal, sites = FORGED[name], client_module.seal_message, parties()

    def sealed(secret: bytes, points: bytes, *at: Any) -> bytes:
        forged = at[2] == hop and at[4:] == (2, 0)
        return seal(secret, forge(points) if forged else points, *at)

    monkeypatch.setattr(client_module, "seal_message", sealed)
    caught = refuses("FK-ALIGN-LIST", sites.fit)
    owner = -hop % 3  # who notices what comes twice, when the list is back
    assert f"partition {owner if name == 'repeated' else 0}: " in str(caught)
    assert not path_of(sites, owner).exists()


def test_secrets_are_drawn_once_in_a_session(ask: Any, tmp_path: Path) -> None:
    _, first = ask("align-hop", 0)
    _, later = ask("align-hop", 2)
    said, _ = first.try_out(request=replace(first.request, hop=1))  # nothing has been drawn
    assert said.endswith("[FK-STATE-GONE]")
    sites, last = ask("align-tags")
    last.begin()
    assert last.send() == ""
    for hop in (0, 1):  # never again in this session
        asked = replace(later.request, session=last.request.session, round=9 + hop, hop=hop)
        assert last.send(request=asked, sections=[]).endswith("[FK-STATE-GONE]")
    again = replace(last.request, round=20)
    assert last.send(request=again, sections=[]) == ""  # its reply was lost
    path = path_of(sites, 1)
    AlignmentTags.of("other", IDS[1], [bytes(32)] * len(IDS[1])).save(path)
    assert last.send(request=replace(again, round=21), sections=[]).endswith("[FK-STATE-GONE]")
    later.begin()  # nor by being described anew
    session = later.request.session
    anew = DescribeRequest(session=session, method="align", resume_round=0, secure=True)
    assert later.send(request=anew, sections=[]).endswith("[FK-SESSION-KNOWN]")

"""Preparations: ids that are joined by secret tags; ranges and encoders of all holders' rows."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversation import Asked, asked_in
from faulty import change_reply
from flwr.app import ArrayRecord, Context, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from identities import pin_identities, pinned
from refusals import refused, refuses
from zoo import WAYS, Found, Sites, Table, everything, new_folder

import fedkern_flwr.clients.alignment as client_module
from fedkern_flwr.align import private_intersection
from fedkern_flwr.align.column_ranges import Centre, read_second_pass
from fedkern_flwr.alignment import AlignmentTags
from fedkern_flwr.clients import RangesClient
from fedkern_flwr.encoding import Encoder
from fedkern_flwr.encoding.encoder import KeptEncoder
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.simulations import Transcript
from fedkern_flwr.simulations.engines import Fault, FaultPlan
from fedkern_flwr.strategies import ColumnRanges
from fedkern_flwr.tables import Table as Columns
from fedkern_flwr.wire import DescribeRequest, columns_digest

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


def tags_of_node(sites: Sites, k: int) -> Path:
    return sites.folder / str(k) / "tags.npz"


def files(sites: Sites) -> list[AlignmentTags]:
    return [AlignmentTags.load(tags_of_node(sites, k)) for k in range(len(sites))]


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


def seen(needles: Iterable[bytes], data: bytes) -> int:
    lower = data.lower()
    return sum(one in data or one.hex().encode() in lower for one in needles)


def look(patch: pytest.MonkeyPatch) -> tuple[tuple[int, int, int], Watch, bytes]:
    """Return how many ids, points and secrets were seen, what there was, and what nodes keep."""
    watch, transcript, sites = Watch(patch), Transcript(), parties()
    sites.fit(transcript=transcript)
    data = everything(transcript)
    assert len(data) > 1000
    ids = seen({name.encode() for own in IDS for name in own}, data)
    records = (r for c in sites.contexts.values() for r in c.state.config_records.values())
    kept = (v if isinstance(v, bytes) else str(v).encode() for r in records for v in r.values())
    found = ids, seen(watch.points, data), seen(watch.secrets, data)
    return found, watch, b"|".join(kept)


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
    assert all(tags_of_node(sites, k).stat().st_mode & 0o777 == 0o600 for k in range(3))
    sites = parties([["a", "b"], ["c"], ["d", "e", "f"]])
    assert sites.fit().strategy.metrics_ == {"rows": 6, "rows_in_all": 0}


def test_parties_with_keys_of_their_own_align_and_an_impostor_gets_no_list(tmp_path: Path) -> None:
    sites = parties(folder=tmp_path)
    pin_identities(tmp_path, 3)
    for k, table in enumerate(sites.tables):
        table |= {n: v for n, v in pinned(tmp_path, k).items() if n != "state_dir"}
    check(sites.fit())
    for k in range(3):
        tags_of_node(sites, k).unlink()
    sites.tables[1]["identity_key"] = tmp_path / "identity-0"
    refuses("FK-IDENTITY-UNSIGNED", sites.fit)
    assert not any(tags_of_node(sites, k).exists() for k in range(3))


# -- what the server and the parties see


@pytest.mark.promise("align-secrets-erased")
def test_nobody_sees_ids_or_points(monkeypatch: pytest.MonkeyPatch) -> None:
    found, watch, kept = look(monkeypatch)
    different = len({name for own in IDS for name in own})
    # of each id and party: blinded, two products, the final point
    assert len(watch.points) == 3 * 34 + different
    assert len(watch.secrets) == 9 + different
    assert found == (0, 0, 0)
    # in the end nodes keep nothing of it
    assert seen(watch.secrets, kept) == seen(watch.points, kept) == 0
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
    (_, points, secrets), *_ = look(monkeypatch)
    assert (points, secrets) == (3 * 34, 0)  # all but the final ones


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


@pytest.mark.parametrize(("partition", "phase", "change"), [
    (0, "align-hop", lambda data: data[:-32]), (2, "align-tags", lambda data: data[1:]),
    (2, "align-tags", lambda data: data[[0, 0, *range(2, 7)]]),
])  # fmt: skip
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
    path = tags_of_node(sites, 1)
    AlignmentTags.of("other", IDS[1], [bytes(32)] * len(IDS[1])).save(path)
    assert last.send(request=replace(again, round=21), sections=[]).endswith("[FK-STATE-GONE]")
    later.begin()  # nor by being described anew
    session = later.request.session
    anew = DescribeRequest(session=session, method="align", resume_round=0, secure=True)
    assert later.send(request=anew, sections=[]).endswith("[FK-SESSION-KNOWN]")


# -- column ranges and common encoders: holders of a block get those of all rows, in sums only


NAMES, GENES = ("height", "weight", "income"), ("g1", "g2", "g3")
PATIENTS = (1, 3, 5)  # who holds these columns; 2 and 4 hold genes, 0 its own


def table(seed: int, rows: int = 20, **more: Any) -> Table:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 3)) * [0.01, 2.0, 3e3] + [1e5, -3.0, 0.0]
    return {"x": x, "columns": NAMES, **more}


def served(folder: Path, tables: list[Table]) -> Sites:
    return Sites(WAYS["ranges"], folder, tables)


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    """A block of three nodes, one of two, and a node by itself."""
    tables = [table(k, 10 + 5 * k, block="patients") for k in range(3)]
    tables += [table(k, block="genes", columns=GENES) for k in (7, 8)]
    tables.append(table(9, block="own", columns=("p", "q", "r")))
    tables[1]["x"][2:5, 1] = np.nan
    return served(tmp_path, [tables[k] for k in (5, 0, 3, 1, 4, 2)])


def path_of(sites: Sites, k: int, name: str = "ranges") -> Path:
    return sites.folder / str(k) / f"{name}.json"


def written(sites: Sites) -> dict[int, str]:
    paths = {k: path_of(sites, k) for k in range(len(sites))}
    return {k: path.read_text() for k, path in paths.items() if path.exists()}


# -- what the nodes get


def test_holders_of_a_block_get_the_ranges_of_all_their_rows_and_labels(sites: Sites) -> None:
    rng = np.random.default_rng(5)
    for k in (0, *PATIENTS):
        sites.tables[k]["y"] = 20.0 + 3.0 * rng.standard_normal(len(sites.tables[k]["x"]))
    found = sites.fit(labels=True)
    strategy, texts = found.strategy, written(sites)
    assert strategy.blocks_ == {"genes": (2, 4), "own": (0,), "patients": PATIENTS}
    told = {"holders": list(PATIENTS), "rows": 45, "columns": 4}
    assert strategy.matched()["blocks"]["patients"] == told
    assert strategy.statistics_["patients"].count.tolist() == [45, 42, 45, 45]
    assert len(set(texts.values())) == 3  # of a block the same to the last digit
    for got, expected in found.oracle():
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-6)
    y = np.concatenate([sites.tables[k]["y"] for k in PATIENTS])
    limits = [y.mean() - 4.0 * y.std(), y.mean() + 4.0 * y.std()]
    ranges = {k: json.loads(text)["ranges"] for k, text in texts.items()}
    np.testing.assert_allclose(ranges[1]["label"], limits, rtol=1e-12)
    assert "label" not in ranges[2]  # genes have none
    y = sites.tables[0]["y"]  # a block of one node is its own
    assert ranges[0]["label"] == [y.min(), y.max()]
    scaling = Scaling.from_json(path_of(sites, 1, "scaling").read_text())
    assert [scaling.y_min, scaling.y_max] == ranges[1]["label"]
    ends = np.column_stack([scaling.x_min, scaling.x_max])
    assert ends.tolist() == [ranges[1][name] for name in NAMES]
    assert (scaling.clip, scaling.row_norm) == (True, 3.0**0.5)
    for path in sites.folder.glob("*/*.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("holders", [PATIENTS, (5,)])
def test_without_being_asked_for_labels_are_not_summed(holders: Any, sites: Sites) -> None:
    """They may be at some nodes only."""
    for k in holders:
        sites.tables[k]["y"] = np.ones(len(sites.tables[k]["x"]))
    sites.fit()
    assert "label" not in written(sites)[1]
    scaling = Scaling.from_json(path_of(sites, 1, "scaling").read_text())
    assert (scaling.y_min, scaling.y_max) == (0.0, 1.0)


def test_where_all_blocks_have_one_holder_nothing_is_summed(tmp_path: Path) -> None:
    sites = served(tmp_path, [table(k, block=f"block {k}") for k in range(3)])
    found = sites.fit()
    assert found.phases == {"ranges-write": 1}
    assert set(written(sites)) == {0, 1, 2}
    assert found.strategy.statistics_ == {}


def test_constant_columns_and_numbers_as_names(tmp_path: Path) -> None:
    x = np.array([[5.0, 1.0], [5.0, 2.0]])
    sites = served(tmp_path, [{"x": x}, {"x": x}, {"x": x + np.array([0.0, 1.0])}])
    sites.fit(deviations=1.0, clip=False)
    found = json.loads(written(sites)[2])
    assert found.keys() == {"0", "1"}  # a plain file
    assert found["0"] == [2.5, 7.5]
    mean, deviation = 11.0 / 6.0, np.std([1, 2, 1, 2, 2, 3])
    np.testing.assert_allclose(found["1"], [mean - deviation, mean + deviation])


def test_both_sides_warn_of_two_holders(sites: Sites, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="fedkern_flwr"):
        sites.fit()
    told = [r.getMessage() for r in caplog.records if "two holders" in r.getMessage()]
    assert len(told) == 3  # the server and each of the two
    assert all("'genes'" in text for text in told)


# -- what is refused


@pytest.mark.promise("ranges-centre-tells-nothing")
def test_a_false_centre_makes_values_alike(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal would tell whether they are near: they are cut off instead."""
    totals, far = list[Any](), Centre(np.full(3, 2.0), np.full(3, -1e9), np.full(3, 1e-9))

    def read(total: np.ndarray, centre: Centre, holders: int) -> Any:
        totals.append((total, holders))
        return read_second_pass(total, centre, holders)

    monkeypatch.setattr("fedkern_flwr.align.column_ranges.read_first_pass", lambda *_: far)
    monkeypatch.setattr("fedkern_flwr.align.column_ranges.read_second_pass", read)
    sites.fit()
    assert totals
    for total, holders in totals:
        np.testing.assert_allclose(total, holders)


# -- who sees what


def test_nobody_sees_more_than_sums_of_blocks_and_no_names(sites: Sites) -> None:
    record = Transcript()
    sites.fit(transcript=record)
    nodes = {c.node_id: k for k, c in sites.contexts.items()}
    for entry in record.entries():
        k = nodes[entry.node]
        if k == 0:  # the only holder of its block shows nothing of its columns
            assert entry.phase in ("describe", "ranges-write", "finish")
            assert not any(values.size for values in entry.arrays)
            told = [v for name, v in entry.scalars.items() if name not in ("share", "again")]
            assert not any(isinstance(value, float) for value in told)
    text = everything(record)
    assert not any(name.encode() in text for name in NAMES)
    assert columns_digest(NAMES).encode() in text  # negative control


# -- common encoders of a block: text, dates and gaps


PHASES = ("describe", "ranges-means", "ranges-deviations", "ranges-write")
SECRET = bytes(range(32))
COLOURS = ("carmine", "magenta", "turquoise", "ultramarine")
KINDS = {"ill": "boolean", "seen": "date", "colour": "category"}


class Network(Sites):
    """Nodes with their files, and what passes between them and the server."""

    def go(self, strategy: Any = None, **more: Any) -> Any:
        self.transcript = Transcript()
        more |= {"transcript": self.transcript, "start": {"serialise": True}}
        return self.fit(strategy=strategy or ColumnRanges(), **more).strategy

    def kept(self, k: int) -> KeptEncoder:
        return KeptEncoder.read(self.folder / str(k) / "encoder.json")


def holder(rows: np.ndarray, **more: Any) -> dict[str, Any]:
    """Return some rows of a table with text, dates and gaps."""
    rng, n = np.random.default_rng(0), 400
    weight = np.exp(rng.normal(4.0, 1.0, n))
    weight[::7] = np.nan
    colour = rng.choice(4, n, p=[0.5, 0.3, 0.195, 0.005]).astype(float)
    colour[::11] = np.nan
    days = 86400.0 * (18_000 + rng.integers(0, 90, n))
    x = np.column_stack([weight, rng.integers(20, 90, n), rng.random(n) < 0.4, days, colour])[rows]
    own = sorted({COLOURS[int(one)] for one in x[:, 4] if one == one})
    x[:, 4] = [own.index(COLOURS[int(one)]) if one == one else np.nan for one in x[:, 4]]
    common = {"columns": ("weight", "age", "ill", "seen", "colour"), "kinds": KINDS}
    return {"x": x, **common, "categories": {"colour": own}, "category_key": SECRET, **more}


def serve(folder: Path, tables: list[dict[str, Any]]) -> Network:
    return Network(WAYS["ranges, encoders"], folder, tables)


def dealt(holders: int, **more: Any) -> list[dict[str, Any]]:
    """Return what the holders of a block have, of 400 rows in all."""
    parts = np.array_split(np.random.default_rng(1).permutation(400), holders)
    return [holder(part, **more) for part in parts]


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return serve(tmp_path, dealt(3))


def as_table(own: dict[str, Any]) -> Columns:
    return Columns(own["x"], None, own["columns"], kinds=own["kinds"], categories=own["categories"])


@pytest.mark.parametrize("holders", [2, 5])
def test_holders_get_one_encoder(tmp_path: Path, holders: int, caplog: Any) -> None:
    network = serve(tmp_path, dealt(holders))
    strategy = network.go(ColumnRanges(scaling="rank"))
    assert strategy.ledger_.by_phase == dict.fromkeys(PHASES, 1)
    kept = [network.kept(k) for k in range(holders)]
    assert len({json.dumps(one.encoder.to_dict()) + one.mark for one in kept}) == 1
    for path in tmp_path.glob("*/*.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600  # for its owner alone
    told = "means and deviations from those of both, and its histograms" in caplog.text
    assert told == (holders == 2)


@pytest.mark.parametrize("scaling", ["auto", "standard"])
def test_columns_become_what_the_run_asks_for(tmp_path: Path, scaling: Any) -> None:
    """Those of several holders and of one alike, by the same sums."""
    network = serve(tmp_path, [*dealt(3), holder(np.arange(50), block="own", category_key=b"")])
    network.go(ColumnRanges(scaling=scaling, categories="hashing"))
    for k, rows in ((0, 400), (3, 50)):
        expected = Encoder.fit(as_table(holder(np.arange(rows))), scaling, categories="hashing")
        for what in (
            lambda made: [(one.column, one.outputs) for one in made.explain()],
            lambda made: [getattr(one, "scale", "") for one in made.columns],
        ):
            assert what(network.kept(k).encoder) == what(expected)
    keys = [network.kept(k).encoder.columns[4].key for k in (3, 0)]  # type: ignore[union-attr]
    assert (len(keys[0]), len(set(keys))) == (64, 2)


def test_a_scaling_is_that_of_encoded_columns(tmp_path: Path) -> None:
    tables = dealt(2)
    for k, own in enumerate(tables):
        own |= {"y": 7.0 + np.arange(200.0), "scaling": tmp_path / f"{k}-scaling.json"}
    network = serve(tmp_path, tables)
    with refused("FK-ENCODER-SCALING"):  # columns are to be from 0 to 1
        network.go(ColumnRanges(scaling="standard"))
    assert not list(tmp_path.glob("*scaling.json"))
    network.go(ColumnRanges(labels=True))
    scaling = Scaling.from_json((tmp_path / "1-scaling.json").read_text())
    d, half = len(network.kept(1).encoder.outputs), 4.0 * np.arange(200.0).std()
    np.testing.assert_array_equal(scaling.x_max - scaling.x_min, np.ones(d))
    assert scaling.row_norm == d**0.5
    assert [scaling.y_min, scaling.y_max] == pytest.approx([106.5 - half, 106.5 + half])


def test_a_row_with_a_new_category_leaves_the_others_what_they_were() -> None:
    """The ledger tells rows apart by content: all but one are those of the run before."""
    own = [holder(np.arange(n)) for n in (40, 41)]
    for one, words in zip(own, (("red", "white"), ("blue", "red", "white")), strict=True):
        one["categories"] = {"colour": words}
        one["x"][:40, 4] = np.arange(40) % 2 + len(words) - 2
    own[1]["x"][40, 4] = 0.0  # blue, which comes first
    place = Context(1, 1, {"partition-id": 0, "num-partitions": 3}, RecordDict(), {})
    rows = [RangesClient(place, **one, encoder="e.json").own_rows().digests(b"k") for one in own]
    np.testing.assert_array_equal(rows[1].values[:40], rows[0].values)
    assert rows[1].values[40] not in rows[0].values


# -- what is refused


def test_what_makes_no_encoder_is_refused(network: Network) -> None:
    for own in network.tables:
        own["category_key"] = b"short"
    refuses("FK-CATEGORIES-KEY", network.go)
    replies = [e for e in network.transcript.entries() if "secret_digest" in e.scalars]
    assert [e.scalars["secret_digest"] for e in replies] == [""] * 3  # nothing to guess
    network.tables = [{"x": np.full((9, 2), 7.0)} for _ in range(2)]
    refuses("FK-COLUMNS-CONSTANT", network.go)
    assert not list(network.folder.glob("*/*.json"))


# -- who sees what


def test_no_name_of_a_column_or_category_is_in_any_message(network: Network) -> None:
    strategy = network.go()
    parts = [strategy.result(), *(one.to_dict() for one in strategy.encoders_.values())]
    told = everything(network.transcript) + json.dumps(parts).encode()
    key = network.kept(0).encoder.columns[4].key  # type: ignore[union-attr]
    for secret in (*COLOURS, "colour", "weight", "seen", key, SECRET.hex()):
        assert secret.encode() not in told
    assert SECRET not in told
    assert bytes.fromhex(key) not in told
    assert network.kept(0).mark.encode() in told  # negative control: the run's session
    # rare categories are not told apart by what the server sends back
    for entry in network.transcript.entries(phase="ranges-write", direction="down"):
        columns = {one["name"]: one for one in json.loads(entry.scalars["encoder"])["columns"]}
        assert columns["4"]["rare"] == 1
        assert min(columns["4"]["facts"]["counts"].values()) >= 5

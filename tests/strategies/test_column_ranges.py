"""Column ranges and common encoders: holders of a block get those of all rows, in sums only."""

from __future__ import annotations

import json
import logging
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import At
from flwr.app import Context, RecordDict
from refusals import refused, refuses
from zoo import WAYS, Sites, Table, everything

from fedkern_flwr.align.column_ranges import Centre, read_second_pass
from fedkern_flwr.clients import RangesClient
from fedkern_flwr.encoding import Encoder
from fedkern_flwr.encoding.kept import KeptEncoder
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.simulations import Transcript
from fedkern_flwr.simulations.engines import Fault
from fedkern_flwr.strategies import ColumnRanges
from fedkern_flwr.tables import Table as Columns
from fedkern_flwr.wire import columns_digest

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


def stacked(sites: Sites, who: Any) -> np.ndarray:
    return np.concatenate([sites.tables[k]["x"] for k in who])


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


def test_without_being_asked_for_labels_are_not_summed(sites: Sites) -> None:
    for k in PATIENTS:
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


def test_only_blocks_that_lack_somebody_are_asked_again(sites: Sites) -> None:
    record, lost = Transcript(), At(partition=2, phase="ranges-means", what=Fault("vanished"))
    sites.fit(faults=lost, transcript=record)
    nodes = {c.node_id: k for k, c in sites.contexts.items()}
    asked = [nodes[e.node] for e in record.entries(phase="ranges-means", direction="down")]
    assert sorted(asked) == [1, 2, 2, 3, 4, 4, 5]
    wrote = [nodes[e.node] for e in record.entries(phase="ranges-write", direction="down")]
    assert sorted(wrote) == list(range(6))


def test_both_sides_warn_of_two_holders(sites: Sites, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="fedkern_flwr"):
        sites.fit()
    told = [r.getMessage() for r in caplog.records if "two holders" in r.getMessage()]
    assert len(told) == 3  # the server and each of the two
    assert all("'genes'" in text for text in told)


# -- what is refused


def test_without_being_asked_for_labels_may_be_at_some(sites: Sites) -> None:
    sites.tables[5]["y"] = np.ones(len(sites.tables[5]["x"]))
    sites.fit()
    assert len(written(sites)) == len(sites)


@pytest.mark.promise("ranges-centre-tells-nothing")
def test_a_false_centre_makes_values_alike(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal would tell whether they are near: they are cut off instead."""
    totals, far = list[Any](), Centre(np.full(3, 2.0), np.full(3, -1e9), np.full(3, 1e-9))

    def read(total: np.ndarray, centre: Centre, holders: int) -> Any:
        totals.append((total, holders))
        return read_second_pass(total, centre, holders)

    monkeypatch.setattr("fedkern_flwr.encoding.common.read_first_pass", lambda *_: far)
    monkeypatch.setattr("fedkern_flwr.strategies.column_ranges.read_second_pass", read)
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
        if (entry.phase, entry.direction) == ("ranges-deviations", "down"):
            x = stacked(sites, PATIENTS if k in PATIENTS else (2, 4))
            counts, means, scale = entry.arrays[:3]
            np.testing.assert_array_equal(counts, (~np.isnan(x)).sum(axis=0))
            np.testing.assert_allclose(means, np.nanmean(x, axis=0), rtol=1e-6, atol=1e-3)
            assert (np.frexp(scale)[0] == 0.5).all()
            assert (scale >= np.nanstd(x, axis=0)).all()
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


def test_small_shares_have_fewer_bins(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are not split further by their rows; the encoder is much the same."""
    describe, numbers, middles = RangesClient.describe, list[int](), list[Any]()
    for share in (1.0, 0.2):
        monkeypatch.setattr(
            RangesClient, "describe", lambda *one, s=share: replace(describe(*one), share=s)
        )
        strategy = network.go()
        (told,) = [one for one in strategy.privacy()["sums"] if "deviations" in one["name"]]
        numbers.append(told["numbers"])
        middles.append(strategy.statistics_["all"].mean)
    assert numbers[1] < numbers[0] - 100
    np.testing.assert_allclose(*middles, rtol=1e-9)
    assert "0.2 of what" in strategy.result()["notes"][0]


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
    pooled, encoder = as_table(holder(np.arange(400))), kept[0].encoder
    expected = Encoder.fit(pooled, "rank")
    assert encoder.outputs == expected.outputs
    found, wanted = encoder.transform(pooled), expected.transform(pooled)
    texts = [name.startswith("colour[") for name in encoder.outputs]
    one, other = (sorted(map(tuple, made[:, texts].T)) for made in (found, wanted))
    assert one == other
    rest = np.flatnonzero(~np.array(texts))
    np.testing.assert_allclose(found[:, rest], wanted[:, rest], atol=0.02)
    exact = [k for k, name in enumerate(encoder.outputs) if name in ("ill", "weight[missing]")]
    np.testing.assert_array_equal(found[:, exact], wanted[:, exact])
    told = "means and deviations from those of both, and its histograms" in caplog.text
    assert told == (holders == 2)


def test_a_block_of_one_node_and_one_without_an_encoder_are_as_before(tmp_path: Path) -> None:
    x = np.random.default_rng(2).random((30, 2))
    tables = [
        *dealt(2, block="patients"),
        holder(np.arange(50), block="own", category_key=b""),
        *({"x": x + k, "encoder": None, "block": "plain"} for k in range(2)),
    ]
    network = serve(tmp_path, tables)
    for k in (3, 4):
        tables[k]["ranges"] = tmp_path / f"{k}-ranges.json"
    strategy = network.go()
    assert strategy.ledger_.by_phase == dict.fromkeys(PHASES, 1)
    assert set(strategy.encoders_) == {"patients"}
    assert network.kept(2).encoder == Encoder.fit(as_table(tables[2]))
    assert network.kept(2).mark != network.kept(0).mark == network.kept(1).mark
    assert json.loads((tmp_path / "3-ranges.json").read_text())["ranges"].keys() == {"0", "1"}
    assert not (tmp_path / "3" / "encoder.json").exists()
    asked = network.transcript.entries(phase="ranges-deviations")
    binned = {e.node for e in asked if any(a.ndim == 2 and a.size for a in e.arrays)}
    assert binned == {network.contexts[k].node_id for k in (0, 1)}


@pytest.mark.parametrize("scaling", ["auto", "range", "standard", "none"])
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

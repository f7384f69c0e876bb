"""Common encoders of a block: every holder gets that of all rows, and names stay with the nodes."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from refusals import refused
from zoo import WAYS, Sites, everything

from fedkern_flwr.clients import RangesClient
from fedkern_flwr.encoding import Encoder
from fedkern_flwr.encoding.kept import KeptEncoder
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.simulations import Transcript
from fedkern_flwr.simulations.engines import Fault
from fedkern_flwr.strategies import ColumnRanges
from fedkern_flwr.tables import Table

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


def as_table(own: dict[str, Any]) -> Table:
    return Table(own["x"], None, own["columns"], kinds=own["kinds"], categories=own["categories"])


@pytest.mark.parametrize("holders", [2, 5])
def test_all_holders_get_the_encoder_of_all_rows(
    tmp_path: Path, holders: int, caplog: pytest.LogCaptureFixture
) -> None:
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


def no_encoder(network: Network, code: str, **more: Any) -> None:
    with refused(code) as error:
        network.go(**more)
    assert not any(name in str(error.value) for name in (*COLOURS, "100000"))
    assert not list(network.folder.glob("*/*.json"))


def test_holders_that_do_not_fit_together_are_refused(network: Network) -> None:
    own, usual = network.tables[1], dict(network.tables[1])
    four = {"x": usual["x"][:, :4], "columns": usual["columns"][:4]}
    for change, code in (
        ({"kinds": {**KINDS, "ill": "number"}}, "FK-COLUMN-KIND"),
        ({"category_key": bytes(32)}, "FK-CATEGORIES-KEY"),
        (four, "FK-COLUMNS-DIFFER"),
        ({"ranges": network.folder / "r.json"}, "FK-OPTION-BOTH"),
    ):
        own |= usual | change
        no_encoder(network, code)
        own.pop("ranges", None)
    four = {"columns": ("a", "b", "c", "d"), "kinds": {}}
    network.tables = [{**one, **four, "x": one["x"][:, :4]} for one in network.tables]
    network.tables[1]["encoder"] = None
    no_encoder(network, "FK-ENCODERS-SOME")


def test_what_makes_no_encoder_is_refused(network: Network) -> None:
    for own in network.tables:
        own["category_key"] = b"short"
    no_encoder(network, "FK-CATEGORIES-KEY")
    replies = [e for e in network.transcript.entries() if "secret_digest" in e.scalars]
    assert [e.scalars["secret_digest"] for e in replies] == [""] * 3  # nothing to guess
    network.tables = [{"x": np.full((9, 2), 7.0)} for _ in range(2)]
    no_encoder(network, "FK-COLUMNS-CONSTANT")


class Binning(ColumnRanges):
    """Asks for the second sums with another request than the first ones give."""

    change: Any
    again = False  # the second time only

    def _sum(self, blocks: Any, name: str, lengths: Any, request: Any, reply: Any) -> Any:
        def moved(block: str) -> Any:
            found = request(block)
            return replace(found, **type(self).change(found)) if hasattr(found, "strays") else found

        if self.again:
            yield from super()._sum(blocks, name, lengths, request, reply)
        return (yield from super()._sum(blocks, name, lengths, moved, reply))


def shift(found: Any) -> dict[str, Any]:
    change = np.zeros(found.counts.shape[1])
    change[:2] = -1.0, 1.0
    return {"counts": found.counts + change}


@pytest.mark.parametrize(
    "change",
    [
        lambda found: {"counts": found.counts + 1.0},
        lambda found: {name: getattr(found, name)[:2] for name in ("counts", "strays", "places")},
        shift,
        lambda found: {"places": 0.0 * found.places},
    ],
)
def test_a_server_that_counts_in_other_bins_gets_nothing(network: Network, change: Any) -> None:
    """The second bins follow from the first counts, whose sums are those of the first pass."""
    liar = type("Liar", (Binning,), {"change": staticmethod(change)})
    no_encoder(network, "FK-MESSAGE-SHAPE", strategy=liar())


def test_second_bins_are_fixed_in_a_run(network: Network) -> None:
    """Counts in ever new bins would tell of single values."""
    asked: list[int] = []

    def vanish(delivery: Any) -> Fault | None:
        if delivery.phase == "ranges-deviations" and delivery.partition == 1 and not asked:
            asked.append(1)
            return Fault("vanished")
        return None

    def moved(found: Any) -> dict[str, Any]:  # of the same number of values
        return {"counts": np.roll(found.counts, 1, axis=1)}

    liar = type("Liar", (Binning,), {"change": staticmethod(moved), "again": True})
    no_encoder(network, "FK-SETTINGS-CHANGED", strategy=liar(), faults=vanish)


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

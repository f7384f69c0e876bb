"""Common encoders of a block: every holder gets that of all rows, and names stay with the nodes."""

from __future__ import annotations

import json
import logging
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from nodes import Nodes

from fedkern_flwr.align import range_messages as wire
from fedkern_flwr.align.column_ranges import ENCODING
from fedkern_flwr.clients import RangesClient
from fedkern_flwr.encoding import Encoder
from fedkern_flwr.encoding.bins import CIRCLES, COARSE, DECIMALS
from fedkern_flwr.encoding.categories import BUCKETS
from fedkern_flwr.encoding.kept import KeptEncoder
from fedkern_flwr.errors import FedKernError, ProtocolError
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.simulations import Transcript
from fedkern_flwr.simulations.engines import Audit, Fault
from fedkern_flwr.strategies import ColumnRanges
from fedkern_flwr.tables import Table

PHASES = ("ranges-means", "ranges-deviations", "ranges-write")
FOUR = {"describe": 1} | dict.fromkeys(PHASES, 1)
SECRET = bytes(range(32))
COLOURS = ("carmine", "magenta", "turquoise", "ultramarine")
KINDS = {"ill": "boolean", "seen": "date", "colour": "category"}


@dataclass
class Network(Nodes):
    """Nodes with their files, and what passes between them and the server."""

    transcript: Transcript = field(default_factory=Transcript)

    def go(self, strategy: ColumnRanges | None = None, **more: Any) -> ColumnRanges:
        strategy = strategy or ColumnRanges()
        self.run(strategy, transcript=self.transcript, serialise=True, **more)
        return strategy

    def kept(self, k: int) -> KeptEncoder:
        return KeptEncoder.read(self.folder / f"{k}-encoder.json")


def holder(rows: np.ndarray, **more: Any) -> dict[str, Any]:
    """Return some rows of a table with text, dates and gaps."""
    rng = np.random.default_rng(0)
    n = 400
    weight = np.exp(rng.normal(4.0, 1.0, n))
    weight[::7] = np.nan
    colour = rng.choice(4, n, p=[0.5, 0.3, 0.195, 0.005]).astype(float)
    colour[::11] = np.nan
    days = 86400.0 * (18_000 + rng.integers(0, 90, n))
    x = np.column_stack([weight, rng.integers(20, 90, n), rng.random(n) < 0.4, days, colour])
    x = x[rows]
    own = sorted({COLOURS[int(one)] for one in x[:, 4] if one == one})
    x[:, 4] = [own.index(COLOURS[int(one)]) if one == one else np.nan for one in x[:, 4]]
    columns = ("weight", "age", "ill", "seen", "colour")
    categories = {"colour": tuple(own)}
    common = {"columns": columns, "kinds": KINDS, "categories": categories}
    return {"x": x, **common, "category_key": SECRET, **more}


def serve(folder: Path, tables: list[dict[str, Any]]) -> Network:
    return Network(RangesClient, tables, folder, paths={"encoder": "{}-encoder.json"})


def dealt(holders: int, **more: Any) -> list[dict[str, Any]]:
    """Return what the holders of a block have, of 400 rows in all."""
    parts = np.array_split(np.random.default_rng(1).permutation(400), holders)
    return [holder(part, **more) for part in parts]


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return serve(tmp_path, dealt(3))


def as_table(own: dict[str, Any]) -> Table:
    kinds, categories = own["kinds"], own["categories"]
    return Table(own["x"], None, own["columns"], kinds=kinds, categories=categories)


@pytest.mark.parametrize("holders", [2, 3, 5])
def test_all_holders_get_the_encoder_of_all_rows(tmp_path: Path, holders: int) -> None:
    network = serve(tmp_path, dealt(holders))
    strategy = network.go(ColumnRanges(scaling="rank"))
    assert strategy.ledger_.by_phase == FOUR
    kept = [network.kept(k) for k in range(holders)]
    assert len({json.dumps(one.encoder.to_dict()) + one.mark for one in kept}) == 1
    pooled, encoder = as_table(holder(np.arange(400))), kept[0].encoder
    expected = Encoder.fit(pooled, "rank")
    assert encoder.outputs == expected.outputs
    found, wanted = encoder.transform(pooled), expected.transform(pooled)
    texts = [k for k, name in enumerate(encoder.outputs) if name[:7] == "colour["]
    one, other = (sorted(map(tuple, made[:, texts].T)) for made in (found, wanted))
    assert one == other
    rest = [k for k in range(len(encoder.outputs)) if k not in texts]
    np.testing.assert_allclose(found[:, rest][:, 1:], wanted[:, rest][:, 1:], atol=0.015)
    assert np.abs(found[:, 0] - wanted[:, 0]).max() < 0.02
    exact = [k for k, name in enumerate(encoder.outputs) if name in ("ill", "weight[missing]")]
    np.testing.assert_array_equal(found[:, exact], wanted[:, exact])
    assert strategy.privacy()["client_sees"][1].startswith("of its columns that are encoded")


def test_a_block_of_one_node_and_one_without_an_encoder_are_as_before(tmp_path: Path) -> None:
    x = np.random.default_rng(2).random((30, 2))
    tables = [
        *dealt(2, block="patients"),
        holder(np.arange(50), block="own", category_key=b""),
        *({"x": x + k, "encoder": None, "block": "plain"} for k in range(2)),
        *({"x": x + k, "encoder": None, "block": "more"} for k in range(2)),
    ]
    network = serve(tmp_path, tables)
    for k in range(3, 7):
        tables[k]["ranges"] = tmp_path / f"{k}-ranges.json"
    strategy = network.go()
    assert strategy.ledger_.by_phase == FOUR
    assert set(strategy.encoders_) == {"patients"}
    own = network.kept(2)
    assert own.encoder == Encoder.fit(as_table(tables[2]))
    assert own.mark != network.kept(0).mark == network.kept(1).mark
    assert json.loads((tmp_path / "3-ranges.json").read_text())["ranges"].keys() == {"0", "1"}
    assert not (tmp_path / "3-encoder.json").exists()
    asked = network.transcript.entries(phase="ranges-deviations")
    binned = {e.node for e in asked if any(a.ndim == 2 and a.size for a in e.arrays)}
    assert binned == {network.contexts[k].node_id for k in (0, 1)}


@pytest.mark.parametrize("scaling", ["auto", "range", "standard", "none"])
def test_columns_become_what_the_run_asks_for(tmp_path: Path, scaling: Any) -> None:
    """Those of several holders and of one alike, by the same sums."""
    tables = [*dealt(3), holder(np.arange(50), block="own", category_key=b"")]
    network = serve(tmp_path, tables)
    strategy = network.go(ColumnRanges(scaling=scaling, categories="hashing"))
    assert strategy.ledger_.by_phase == FOUR
    for k, rows in ((0, 400), (3, 50)):
        encoder = network.kept(k).encoder
        expected = Encoder.fit(as_table(holder(np.arange(rows))), scaling, categories="hashing")
        assert [(one.column, one.outputs) for one in encoder.explain()] == [
            (one.column, one.outputs) for one in expected.explain()
        ]
        scales = [getattr(one, "scale", "") for one in encoder.columns]
        assert scales == [getattr(one, "scale", "") for one in expected.columns]
    key = network.kept(3).encoder.columns[4].key  # type: ignore[union-attr]
    assert len(key) == 64
    assert key != network.kept(0).encoder.columns[4].key  # type: ignore[union-attr]


def test_a_scaling_needs_columns_from_0_to_1(tmp_path: Path) -> None:
    tables = dealt(2)
    tables[1]["scaling"] = tmp_path / "scaling.json"
    network = serve(tmp_path, tables)
    with pytest.raises(FedKernError, match="those of scaling standard are not; use scaling auto"):
        network.go(ColumnRanges(scaling="standard"))
    assert not (tmp_path / "scaling.json").exists()


def test_text_alone_needs_no_means(tmp_path: Path) -> None:
    tables = dealt(2)
    for own in tables:
        own |= {"x": own["x"][:, 4:], "columns": ("colour",), "kinds": {"colour": "category"}}
    network = serve(tmp_path, tables)
    strategy = network.go()
    assert strategy.ledger_.by_phase == dict.fromkeys(("describe", *PHASES[1:]), 1)
    assert len(network.kept(1).encoder.outputs) == 5  # three colours, another, none


def test_a_scaling_is_that_of_encoded_columns(tmp_path: Path) -> None:
    tables = dealt(2)
    for k, own in enumerate(tables):
        own |= {"y": 7.0 + np.arange(200.0), "scaling": tmp_path / f"{k}-scaling.json"}
    network = serve(tmp_path, tables)
    network.go(ColumnRanges(labels=True))
    scaling = Scaling.from_json((tmp_path / "1-scaling.json").read_text())
    d = len(network.kept(1).encoder.outputs)
    np.testing.assert_array_equal(scaling.x_max - scaling.x_min, np.ones(d))
    assert scaling.row_norm == d**0.5
    half = 4.0 * np.arange(200.0).std()
    assert [scaling.y_min, scaling.y_max] == pytest.approx([106.5 - half, 106.5 + half])


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_encoders_are_for_their_owner_alone(network: Network) -> None:
    network.go()
    for path in network.folder.glob("*.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


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


# -- nodes that fail


def test_a_holder_that_stays_away_ends_the_run_without_an_encoder(network: Network) -> None:
    def away(delivery: Any) -> Fault | None:
        gone = delivery.phase == "ranges-deviations" and delivery.partition == 2
        return Fault("vanished") if gone else None

    with pytest.raises(FedKernError) as error:
        network.go(ColumnRanges(attempts=2), faults=away)
    assert "\n" not in str(error.value)
    assert not list(network.folder.glob("*.json"))


# -- what is refused


def refused(network: Network, text: str) -> None:
    with pytest.raises(FedKernError) as error:
        network.go()
    assert text in str(error.value)
    assert "\n" not in str(error.value)
    assert not any(name in str(error.value) for name in (*COLOURS, "100000"))
    assert not list(network.folder.glob("*.json"))


def test_holders_that_do_not_fit_together_are_refused(network: Network) -> None:
    own = network.tables[1]
    usual = dict(own)
    own["kinds"] = {**KINDS, "ill": "number"}
    refused(network, "partition 1, phase describe: its column 3 is read as something else than th")
    own |= usual | {"category_key": bytes(32)}
    refused(network, "partition 1, phase describe: its categories are hidden by another secret tha")
    own |= usual | {"x": usual["x"][:, :4], "columns": usual["columns"][:4]}
    refused(network, "its table has 4 feature columns that differ")
    own |= usual | {"x": usual["x"][:, :4], "columns": ("a", "b", "c", "d"), "encoder": None}
    own |= {"kinds": {}}
    network.tables = [
        {k: v for k, v in one.items() if k != "kinds"}
        | {"x": one["x"][:, :4], "columns": ("a", "b", "c", "d")}
        for one in network.tables
    ]
    network.tables[1]["encoder"] = None
    refused(network, "partition 1, phase describe: it makes no encoder, unlike partition 0 in the")


def test_categories_of_several_holders_need_a_secret(network: Network) -> None:
    for own in network.tables:
        own["category_key"] = b"short"
    refused(network, "column 'colour' holds text, and there is no secret of the holders, 16 bytes")
    replies = [e for e in network.transcript.entries() if "secret_digest" in e.scalars]
    assert [e.scalars["secret_digest"] for e in replies] == [""] * len(network.tables)  # to guess


def test_constant_columns_alone_are_refused(tmp_path: Path) -> None:
    tables = [{"x": np.full((9, 2), 7.0)} for _ in range(2)]
    refused(serve(tmp_path, tables), "every column of block 'all' is constant; add columns")


def test_ranges_and_an_encoder_are_one_too_many(network: Network) -> None:
    network.tables[0]["ranges"] = network.folder / "r.json"
    refused(network, "partition 0, phase describe: this node has ranges and an encoder; leave one")


def test_a_server_that_counts_in_other_bins_gets_nothing(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second bins follow from the first counts, whose sums are those of the first pass."""
    place = "fedkern_flwr.strategies.column_ranges.wire.DeviationsRequest"
    real = wire.DeviationsRequest

    def more(counts: np.ndarray, **own: Any) -> Any:
        return real(counts=counts + 1.0, **own)

    def fewer(counts: np.ndarray, strays: np.ndarray, places: np.ndarray, **own: Any) -> Any:
        return real(counts=counts[:2], strays=strays[:2], places=places[:2], **own)

    def negative(counts: np.ndarray, **own: Any) -> Any:
        shift = np.zeros(counts.shape[1])
        shift[:2] = -1.0, 1.0
        return real(counts=counts + shift, **own)

    def nowhere(places: np.ndarray, **own: Any) -> Any:
        return real(places=0.0 * places, **own)

    for change in (more, fewer, negative, nowhere):
        with monkeypatch.context() as patch:
            patch.setattr(place, change)
            refused(network, "what was summed before does not fit the columns of this node")


def test_second_bins_are_fixed_in_a_run(network: Network) -> None:
    """Counts in ever new bins would tell of single values."""
    asked: list[int] = []

    def vanish(delivery: Any) -> Fault | None:
        if delivery.phase == "ranges-deviations" and delivery.partition == 1 and not asked:
            asked.append(1)
            return Fault("vanished")
        return None

    real, times = wire.DeviationsRequest, []

    class Moving(ColumnRanges):
        """Asks for other bins the second time, of the same number of values."""

        def _sum(self, blocks: Any, name: str, lengths: Any, request: Any, reply: Any) -> Any:
            if name != wire.DEVIATIONS_SUM:
                return (yield from super()._sum(blocks, name, lengths, request, reply))

            def moved(block: str) -> Any:
                times.append(1)
                found = request(block)
                counts = np.roll(found.counts, len(times) - 1, axis=1)
                return real(**{**vars(found), "counts": counts})

            yield from super()._sum(blocks, name, lengths, moved, reply)
            return (yield from super()._sum(blocks, name, lengths, moved, reply))

    with pytest.raises(ProtocolError, match="another centre or other bins than before"):
        network.go(Moving(), faults=vanish)


def test_two_holders_are_warned_of_histograms(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="fedkern_flwr"):
        serve(tmp_path, dealt(2)).go()
    told = [record.getMessage() for record in caplog.records]
    assert (
        sum("means and deviations from those of both, and its histograms" in t for t in told) == 3
    )


# -- who sees what


def everything(transcript: Transcript) -> bytes:
    parts = []
    for entry in transcript.entries():
        parts += [values.tobytes() for values in entry.arrays]
        parts += [v if isinstance(v, bytes) else str(v).encode() for v in entry.scalars.values()]
    return b"\n".join(parts)


def test_no_name_of_a_column_or_category_is_in_any_message(network: Network) -> None:
    strategy = network.go()
    told = everything(network.transcript) + json.dumps(strategy.result()).encode()
    told += json.dumps([encoder.to_dict() for encoder in strategy.encoders_.values()]).encode()
    key = network.kept(0).encoder.columns[4].key  # type: ignore[union-attr]
    assert len(bytes.fromhex(key)) == 32
    for secret in (*COLOURS, "colour", "weight", "seen", key, SECRET.hex()):
        assert secret.encode() not in told
    assert SECRET not in told
    assert bytes.fromhex(key) not in told
    assert network.kept(0).mark.encode() in told  # negative control: the run's session


def own_counts(network: Network) -> dict[int, np.ndarray]:
    """Return for each node how many of its rows have each weekday, which has no gap."""
    found = {}
    for k, own in enumerate(network.tables):
        days = (own["x"][:, 3] // 86400.0 + 3) % 7
        found[k] = np.bincount(days.astype(int), minlength=7) / 400.0
    return found


def shows_counts(network: Network) -> set[int]:
    """Return the nodes whose own counts of weekdays stand in a message to the server."""
    seen = set()
    for entry in network.transcript.entries(direction="up"):
        for values in entry.arrays:
            if values.dtype == np.uint64 and values.size > 7:
                numbers = ENCODING.decode(values.copy(), 3)
                windows = np.lib.stride_tricks.sliding_window_view(numbers, 7)
                for k, counts in own_counts(network).items():
                    if (np.abs(windows - counts).max(axis=1) < 1e-12).any():
                        seen.add(k)
    return seen


def test_no_histogram_of_a_single_node_is_in_any_message(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.go()
    assert shows_counts(network) == set()
    monkeypatch.setattr("fedkern_flwr.secure_sum.party.add_streams", lambda *a, **k: None)
    network.go()
    assert shows_counts(network) == {0, 1, 2}  # negative control: the masks hide them


def test_the_audit_finds_no_plain_field(network: Network) -> None:
    audit = Audit()
    strategy = network.go(audit=audit)
    assert "plain" not in audit.kinds("up")
    first = 4 * (3 + COARSE + DECIMALS + 2 * CIRCLES)
    second = {s["numbers"] for s in strategy.privacy()["sums"]} - {first}
    assert 4 * 2 + 43 + BUCKETS < min(second) < 4 * 700 + 43 + BUCKETS  # bins as rows allow
    sums = first, *second
    assert audit.view("up")["sum-upload", "masked"].bytes == 8 * 3 * sum(sums)


def test_what_single_rows_have_stays_out_of_the_encoder(network: Network) -> None:
    """Rare categories are not told apart by what the server sends back."""
    network.go()
    for entry in network.transcript.entries(phase="ranges-write", direction="down"):
        (column,) = (
            one for one in json.loads(entry.scalars["encoder"])["columns"] if one["name"] == "4"
        )
        assert column["rare"] == 1
        assert min(column["facts"]["counts"].values()) >= 5

"""Column ranges: every holder of a block gets those of all rows, and nobody's own are shown."""

from __future__ import annotations

import inspect
import json
import logging
import os
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import At
from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy
from hypothesis import given, settings
from hypothesis import strategies as st
from nodes import Nodes, Table

from fedkern_flwr.align import range_messages as wire
from fedkern_flwr.align.column_ranges import (
    ENCODING,
    Centre,
    first_pass,
    read_second_pass,
    second_pass,
)
from fedkern_flwr.clients import RangesClient
from fedkern_flwr.errors import (
    FedKernError,
    ProtocolError,
    SmallCohortError,
)
from fedkern_flwr.node.sums import load_state
from fedkern_flwr.scaling import Scaling, read_ranges, scale_by_ranges
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.simulations import InProcessGrid, Transcript, simulate
from fedkern_flwr.simulations.engines import Audit, Fault
from fedkern_flwr.simulations.engines.direct import as_client
from fedkern_flwr.strategies import ColumnRanges
from fedkern_flwr.wire import columns_digest

FOUR = {"describe": 1, "ranges-means": 1, "ranges-deviations": 1, "ranges-write": 1}
NAMES = ("height", "weight", "income")


def table(seed: int, rows: int = 20, shift: float = 0.0, **more: Any) -> Table:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 3)) * [0.01, 2.0, 3e3] + [1e5, -3.0, 0.0] + shift
    return {"x": x, "columns": NAMES, **more}


def mixed() -> list[Table]:
    """A block of three nodes, one of two, and a node by itself."""
    tables = [table(k, 10 + 5 * k, block="patients") for k in range(3)]
    tables += [table(k, block="genes", columns=("g1", "g2", "g3")) for k in (7, 8)]
    tables.append(table(9, block="own", columns=("p", "q", "r"), shift=1.0))
    tables[1]["x"][2:5, 1] = np.nan
    return [tables[k] for k in (5, 0, 3, 1, 4, 2)]


@dataclass
class Network(Nodes):
    """Nodes with their files, and what passes between them and the server."""

    transcript: Transcript = field(default_factory=Transcript)

    def path(self, k: int) -> Path:
        return self.folder / f"{k}-ranges.json"

    def go(self, strategy: ColumnRanges | None = None, **more: Any) -> ColumnRanges:
        strategy = strategy or ColumnRanges()
        self.run(strategy, transcript=self.transcript, serialise=True, **more)
        return strategy

    def texts(self) -> dict[int, str]:
        return {k: self.path(k).read_text() for k in self.contexts if self.path(k).exists()}


def serve(folder: Path, tables: list[Table]) -> Network:
    paths = {"ranges": "{}-ranges.json", "scaling": "{}-scaling.json"}
    return Network(RangesClient, tables, folder, paths=paths)


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return serve(tmp_path, mixed())


def pooled(tables: list[Table], deviations: float = 4.0) -> np.ndarray:
    """Return the ranges of all rows, shape (2, d)."""
    x = np.concatenate([t["x"] for t in tables]).astype(np.longdouble)
    mean = np.nanmean(x, axis=0)
    spread = deviations * np.sqrt(np.nanmean((x - mean) ** 2, axis=0))
    return np.stack([mean - spread, mean + spread]).astype(np.float64)


def holders(tables: list[Table], block: str) -> list[int]:
    return [k for k, t in enumerate(tables) if t.get("block", "all") == block]


# -- what the nodes get


def test_every_node_gets_the_ranges_of_its_block(network: Network) -> None:
    strategy = network.go()
    assert strategy.ledger_.by_phase == FOUR
    assert strategy.blocks_ == {"genes": (2, 4), "own": (0,), "patients": (1, 3, 5)}
    for block in ("genes", "patients"):
        mine = holders(network.tables, block)
        expected = pooled([network.tables[k] for k in mine])
        texts = {network.texts()[k] for k in mine}
        assert len(texts) == 1  # the same to the last digit
        for k in mine:
            low, high, clip = read_ranges(network.tables[k]["columns"], network.path(k))
            assert clip
            spread = (expected[1] - expected[0]) / 8.0
            assert (np.abs(low - expected[0]) <= 5e-9 * spread + np.spacing(np.abs(low))).all()
            assert (np.abs(high - expected[1]) <= 5e-9 * spread + np.spacing(np.abs(high))).all()
            scaled = scale_by_ranges(
                network.tables[k]["x"], network.tables[k]["columns"], network.path(k)
            )
            assert np.nanmin(scaled) >= 0.0
            assert np.nanmax(scaled) <= 1.0
        np.testing.assert_allclose(strategy.ranges_[block], expected, rtol=1e-12, atol=1e-6)
    count = strategy.statistics_["patients"].count
    np.testing.assert_array_equal(count, [45, 42, 45])


@settings(max_examples=8)
@given(
    nodes=st.integers(2, 5),
    mean=st.floats(-1e5, 1e5),
    exponent=st.floats(-2.0, 4.0),
    seed=st.integers(0, 2**32 - 1),
)
def test_statistics_are_those_of_the_pooled_rows(
    tmp_path: Path, nodes: int, mean: float, exponent: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    tables: list[Table] = []
    for _ in range(nodes):
        x = mean + 10.0**exponent * rng.standard_normal((int(rng.integers(2, 12)), 2))
        x[1:][rng.random((len(x) - 1, 2)) < 0.2] = np.nan
        tables.append({"x": x})
    found = serve(tmp_path, tables).go().statistics_["all"]
    x = np.concatenate([t["x"] for t in tables]).astype(np.longdouble)
    expected = np.nanmean(x, axis=0)
    spread = np.sqrt(np.nanmean((x - expected) ** 2, axis=0))
    rounding = 2.0 * np.spacing(np.abs(found.mean))
    assert (np.abs(found.mean - expected) <= 1e-9 * spread + rounding).all()
    assert (np.abs(found.deviation - spread) <= 1e-9 * spread).all()


@pytest.mark.parametrize(
    ("node", "phase"),
    [(1, "ranges-means"), (1, "ranges-deviations"), (1, "ranges-write"), (0, "ranges-write")],
)
def test_a_table_that_changed_within_the_run_is_refused(
    network: Network, node: int, phase: str
) -> None:
    def change(delivery: Any) -> None:
        if (delivery.partition, delivery.phase) == (node, phase):
            network.tables[node]["x"] = network.tables[node]["x"] + 1.0

    with pytest.raises(ProtocolError, match="its table is not the one with which this run began"):
        network.go(faults=change)
    assert node not in network.texts()


def test_a_block_of_one_node_is_its_own(network: Network) -> None:
    network.go()
    x = network.tables[0]["x"]
    low, high, clip = read_ranges(("p", "q", "r"), network.path(0))
    np.testing.assert_array_equal(low, x.min(axis=0))
    np.testing.assert_array_equal(high, x.max(axis=0))
    assert clip


def test_where_all_blocks_have_one_holder_nothing_is_summed(tmp_path: Path) -> None:
    tables = [table(k, block=f"block {k}") for k in range(3)]
    network = serve(tmp_path, tables)
    strategy = network.go()
    assert strategy.ledger_.by_phase == {"describe": 1, "ranges-write": 1}
    assert set(network.texts()) == {0, 1, 2}
    assert strategy.statistics_ == {}
    assert all(load_state(c) is None for c in network.contexts.values())


def test_constant_columns_and_numbers_as_names(tmp_path: Path) -> None:
    x = np.array([[5.0, 1.0], [5.0, 2.0]])
    network = serve(tmp_path, [{"x": x}, {"x": x}, {"x": x + np.array([0.0, 1.0])}])
    network.go(ColumnRanges(deviations=1.0, clip=False))
    found = json.loads(network.path(2).read_text())
    assert found.keys() == {"0", "1"}  # a plain file
    assert found["0"] == [2.5, 7.5]
    mean, deviation = 11.0 / 6.0, np.std([1, 2, 1, 2, 2, 3])
    np.testing.assert_allclose(found["1"], [mean - deviation, mean + deviation])


def test_labels_are_one_more_column_where_all_holders_have_them(network: Network) -> None:
    rng = np.random.default_rng(5)
    for k in (0, 1, 3, 5):  # the node by itself and the patients
        rows = len(network.tables[k]["x"])
        network.tables[k]["y"] = 20.0 + 3.0 * rng.standard_normal(rows)
    strategy = network.go(ColumnRanges(labels=True))
    y = np.concatenate([network.tables[k]["y"] for k in (1, 3, 5)])
    limits = [y.mean() - 4.0 * y.std(), y.mean() + 4.0 * y.std()]
    ranges = json.loads(network.path(1).read_text())["ranges"]
    np.testing.assert_allclose(ranges["label"], limits, rtol=1e-12)
    assert "label" not in json.loads(network.path(2).read_text())["ranges"]  # genes have none
    alone = json.loads(network.path(0).read_text())["ranges"]["label"]
    assert alone == [network.tables[0]["y"].min(), network.tables[0]["y"].max()]
    scaling = Scaling.from_json((network.folder / "1-scaling.json").read_text())
    np.testing.assert_allclose([scaling.y_min, scaling.y_max], limits, rtol=1e-12)
    np.testing.assert_array_equal(scaling.x_min, [ranges[name][0] for name in NAMES])
    np.testing.assert_array_equal(scaling.x_max, [ranges[name][1] for name in NAMES])
    assert scaling.clip
    assert scaling.row_norm == 3.0**0.5
    assert strategy.matched()["blocks"]["patients"] == {
        "holders": [1, 3, 5],
        "rows": 45,
        "columns": 4,
    }


def test_without_being_asked_for_labels_are_not_summed(network: Network) -> None:
    for k in (1, 3, 5):
        network.tables[k]["y"] = np.ones(len(network.tables[k]["x"]))
    network.go()
    assert "label" not in network.path(1).read_text()
    scaling = Scaling.from_json((network.folder / "1-scaling.json").read_text())
    assert (scaling.y_min, scaling.y_max) == (0.0, 1.0)


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_files_are_for_their_owner_alone(network: Network) -> None:
    network.go()
    for path in network.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


# -- Flower's interface


def test_start_is_called_like_a_stock_strategy(network: Network) -> None:
    assert issubclass(ColumnRanges, Strategy)
    ours = inspect.signature(ColumnRanges.start).parameters
    stock = inspect.signature(FedAvg.start).parameters
    assert list(ours) == list(stock)
    app = ClientApp(client_fn=lambda context: as_client(network.client_fn(context)))
    strategy = ColumnRanges()
    result = strategy.start(
        InProcessGrid(app, 6), initial_arrays=ArrayRecord(), num_rounds=3, timeout=30.0
    )
    arrays, meta = strategy.model()
    for got, expected in zip(result.arrays.to_numpy_ndarrays(), arrays.values(), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert meta["blocks"] == {"genes": [2, 4], "own": [0], "patients": [1, 3, 5]}
    assert {name.partition("/")[0] for name in arrays} == {"genes", "patients"}
    json.dumps(strategy.result())


# -- what is refused


def refused(network: Network, error: type[FedKernError], **options: Any) -> str:
    with pytest.raises(error) as caught:
        network.go(ColumnRanges(**options))
    assert "\n" not in str(caught.value)
    assert not network.texts()
    return str(caught.value)


def test_values_beyond_the_bound_are_refused_by_name(network: Network) -> None:
    text = refused(network, ProtocolError, bound=5e4)  # by several nodes, one is named
    column = "'g1'" if "partition 2" in text or "partition 4" in text else "'height'"
    assert f"column {column} has values beyond the public bound of 50000; write it in" in text
    assert "phase ranges-means: partition" in text
    assert "100000" not in text  # no value is quoted
    assert all(load_state(context) is None for context in network.contexts.values())
    network.tables = [{"x": np.array([[1.0, -9.0]])}, {"x": np.array([[2.0, 3.0]])}]
    assert "partition 0: column '1' has values" in refused(network, ProtocolError, bound=5.0)


def test_a_label_beyond_the_bound_is_called_so(network: Network) -> None:
    network.tables = [{"x": np.ones((1, 1)), "y": np.array([v])} for v in (7.0, 1.0)]
    text = refused(network, ProtocolError, bound=5.0, labels=True)
    assert "column 'label' has values beyond" in text


def test_holders_of_a_block_must_fit_together(network: Network) -> None:
    network.tables[4]["columns"] = ("g1", "g3", "g2")
    text = refused(network, ProtocolError)
    assert "partition 4, phase describe: its table has 3 feature columns that differ" in text
    assert "g3" not in text


def test_either_all_holders_of_a_block_have_labels_or_none(network: Network) -> None:
    network.tables[5]["y"] = np.ones(len(network.tables[5]["x"]))
    text = refused(network, ProtocolError, labels=True)
    assert "partition 5, phase describe: it has labels, unlike partition 1 in the same b" in text
    network.go()  # without labels they may differ


def test_blocks_of_fewer_nodes_than_the_least_are_refused(network: Network) -> None:
    text = refused(network, SmallCohortError, min_cohort=3)
    assert "2" in text
    network.tables = [t for t in network.tables if t["block"] != "genes"]
    network.go(ColumnRanges(min_cohort=3))


def test_two_holders_are_warned_of_on_both_sides(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> int:
        told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert not any("'patients'" in text for text in told)
        return sum("block 'genes' has two holders: each can compute" in text for text in told)

    with caplog.at_level(logging.WARNING, logger="fedkern_flwr"):
        network.go()
    assert warnings() == 3  # the server and each of the two


def test_a_folder_that_cannot_be_written_is_noticed_before_anything_is_sent(
    network: Network,
) -> None:
    network.tables[3]["ranges"] = network.folder / "file" / "ranges.json"
    (network.folder / "file").write_text("")
    text = refused(network, ProtocolError)
    assert "partition 3" in text
    assert "the file of ranges or of the scaling cannot be written; name a path" in text
    assert len(list(network.transcript.entries(phase="ranges-means"))) == 0


def test_other_clients_are_refused(network: Network) -> None:
    class Chatty(RangesClient):
        """Sends its statistics in plain, without the sum."""

        def send_means(self, request: wire.MeansRequest) -> wire.MeansReply:
            return wire.MeansReply()

    def client_fn(context: Context) -> RangesClient:
        return Chatty(context, np.ones((3, 1)))

    with pytest.raises(ProtocolError, match="contributes nothing to column means"):
        simulate(ColumnRanges(), client_fn, 3)


def test_a_server_that_asks_for_other_sums_gets_none(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, sums = "fedkern_flwr.strategies.column_ranges", "fedkern_flwr.encoding.common"

    class Overlapping(ColumnRanges):
        """Sums over a second set as well, so that the difference of two sums shows a node."""

        def cohorts(self) -> list[list[int]] | None:
            return [*(super().cohorts() or []), [1, 3]]

    class Fewer(ColumnRanges):
        """Counts fewer rows than there are, so that more digits of few rows are seen."""

        def rounds(self, parties: Any) -> Any:
            return super().rounds([replace(p, rows=1) for p in parties])

    for strategy, text in (
        (Overlapping(), "refused by the node: the cohort of a sum"),
        (Fewer(), "refused by the node: the rows of a block"),
    ):
        with pytest.raises(ProtocolError, match=text):
            network.go(strategy)
    with monkeypatch.context() as patch:
        patch.setattr(f"{place}.ENCODING", Encoding.fixed_point(4.0))
        with pytest.raises(ProtocolError, match="refused by the node: the bound of a sum"):
            network.go()
    one = np.ones(3)
    for centre, text in (
        (Centre(1e3 * one, one, 0.0 * one), "what was summed before does not fit the columns"),
        (Centre(0.0 * one, one, one), "what was summed before does not fit the columns"),
        (Centre(1e3 * one[:2], one[:2], one[:2]), "what was summed before does not fit the co"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"{sums}.read_first_pass", lambda *_, found=centre: found)
            with pytest.raises(ProtocolError, match=text):
                network.go()
    assert not network.texts()


def test_about_a_false_centre_all_values_look_alike(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal would tell whether they are near: they are cut off instead."""
    place, totals = "fedkern_flwr.strategies.column_ranges", []
    far = Centre(np.full(3, 2.0), np.full(3, -1e9), np.full(3, 1e-9))
    monkeypatch.setattr("fedkern_flwr.encoding.common.read_first_pass", lambda *_: far)

    def read(total: np.ndarray, centre: Centre, holders: int) -> Any:
        totals.append((total, holders))
        return read_second_pass(total, centre, holders)

    monkeypatch.setattr(f"{place}.read_second_pass", read)
    network.go()
    assert totals
    for total, holders in totals:
        np.testing.assert_allclose(total, holders)


# -- nodes that fail


def test_only_blocks_that_lack_somebody_are_asked_again(network: Network) -> None:
    network.go(faults=At(partition=2, phase="ranges-means", what=Fault("vanished")))
    asked = [e.node for e in network.transcript.entries(phase="ranges-means", direction="down")]
    nodes = {k: c.node_id for k, c in network.contexts.items()}
    assert asked.count(nodes[4]) == asked.count(nodes[2]) == 2
    assert asked.count(nodes[1]) == 1
    wrote = [e.node for e in network.transcript.entries(phase="ranges-write", direction="down")]
    assert sorted(wrote) == sorted(nodes.values())


# -- who sees what


def own_vectors(network: Network, strategy: ColumnRanges) -> dict[str, np.ndarray]:
    """Return every kind of sum of each node's own rows that the server must not see."""
    found: dict[str, np.ndarray] = {}
    for k, own in enumerate(network.tables):
        x = own["x"]
        block = own.get("block", "all")
        everything = [network.tables[j]["x"] for j in holders(network.tables, block)]
        plain = {"sum": np.nansum(x, 0), "squares": np.nansum(x**2, 0), "mean": np.nanmean(x, 0)}
        plain |= {"deviation": np.nanstd(x, 0), "min": np.nanmin(x, 0), "max": np.nanmax(x, 0)}
        d = x.shape[1]
        first = first_pass(x, 2.0**20, sum(map(len, everything)))
        plain |= {"scaled sums": first[d : 2 * d], "scaled squares": first[2 * d :]}
        if block in strategy.statistics_:
            # of the centre the transcript tells
            request = next(
                e
                for e in network.transcript.entries(phase="ranges-deviations", direction="down")
                if e.node == network.contexts[k].node_id
            )
            second = second_pass(x, Centre(*request.arrays[:3]))
            plain |= {"distances": second[:d], "squared distances": second[d:]}
        found |= {f"{k}/{name}": values for name, values in plain.items()}
    return found


def shown(network: Network, strategy: ColumnRanges) -> set[str]:
    """Return which of the nodes' own vectors stand in some message, as they are or encoded."""
    numbers: list[np.ndarray] = []
    for entry in network.transcript.entries():
        for values in entry.arrays:
            if values.dtype.kind == "f":
                numbers.append(values.ravel())
            elif values.dtype == np.uint64:
                for parties in (2, 3):
                    numbers.append(ENCODING.decode(values.copy(), parties))
        numbers += [np.array([v]) for v in entry.scalars.values() if isinstance(v, float)]
    seen = np.sort(np.concatenate(numbers))

    def stands(value: float) -> bool:
        slack = 1e-12 * abs(value) + 1e-15
        return bool(np.searchsorted(seen, value - slack) < np.searchsorted(seen, value + slack))

    vectors = own_vectors(network, strategy).items()
    return {name for name, values in vectors if any(map(stands, values.tolist()))}


def test_no_sum_of_a_single_node_is_in_any_message(network: Network) -> None:
    strategy = network.go()
    assert shown(network, strategy) == set()


def test_without_masks_the_sums_of_single_nodes_would_be_found(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the search finds what the masks hide."""
    monkeypatch.setattr("fedkern_flwr.secure_sum.party.add_streams", lambda *a, **k: None)
    strategy = network.go()
    kinds = ("scaled sums", "scaled squares", "distances", "squared distances")
    found = {f"{k}/{kind}" for k in (1, 2, 3, 4, 5) for kind in kinds}
    assert found <= shown(network, strategy)
    assert not any(name.startswith("0/") for name in shown(network, strategy))


def everything(transcript: Transcript) -> bytes:
    parts = []
    for entry in transcript.entries():
        parts += [values.tobytes() for values in entry.arrays]
        parts += [v if isinstance(v, bytes) else str(v).encode() for v in entry.scalars.values()]
    return b"\n".join(parts)


def test_holders_get_counts_means_and_powers_of_two_of_their_own_columns(network: Network) -> None:
    network.go()
    for entry in network.transcript.entries(phase="ranges-deviations", direction="down"):
        k = entry.node - network.contexts[0].node_id
        mine = holders(network.tables, network.tables[k].get("block", ""))
        x = np.concatenate([network.tables[m]["x"] for m in mine])
        counts, means, scale = entry.arrays[:3]
        np.testing.assert_array_equal(counts, (~np.isnan(x)).sum(axis=0))
        np.testing.assert_allclose(means, np.nanmean(x, axis=0), rtol=1e-6, atol=1e-3)
        assert (np.frexp(scale)[0] == 0.5).all()
        assert (scale >= np.nanstd(x, axis=0)).all()
    asked = {e.node for e in network.transcript.entries(phase="ranges-deviations")}
    assert network.contexts[0].node_id not in asked  # the only holder of its block


def test_names_of_columns_are_in_no_message(network: Network) -> None:
    network.go()
    text = everything(network.transcript)
    for name in (*NAMES, "g1", "g2"):
        assert name.encode() not in text or len(name) < 3
    assert b"height" not in text
    assert columns_digest(NAMES).encode() in text  # negative control


def test_a_block_of_one_node_shows_nothing_of_its_columns(network: Network) -> None:
    network.go()
    node = network.contexts[0].node_id
    mine = [e for e in network.transcript.entries() if e.node == node]
    assert {e.phase for e in mine} == {"describe", "ranges-write"}
    assert all(not values.size for e in mine for values in e.arrays)
    (reply,) = (e for e in mine if e.phase == "ranges-write" and e.direction == "up")
    assert reply.scalars["round"] == 3
    assert not any(isinstance(value, float) for value in reply.scalars.values())


def test_the_audit_finds_no_plain_field(network: Network) -> None:
    audit = Audit()
    strategy = network.go(audit=audit)
    assert "plain" not in audit.kinds("up")
    assert "masked" in audit.kinds("up")
    assert audit.view("up")["sum-upload", "masked"].bytes == 8 * (5 * 9 + 5 * 6)
    seen = strategy.privacy()
    assert [c["parties"] for c in seen["cohorts"]] == [2, 3]
    assert any("counts, means and variances" in line for line in seen["server_sees"])

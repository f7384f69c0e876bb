"""FedCG encodes what several hold alike in its own exchanges: as if it had been encoded before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import At, Cut, PowerCutError
from nodes import Nodes

from fedkern_flwr.clients import HybridKernelClient
from fedkern_flwr.encoding import Encoder
from fedkern_flwr.encoding.common import OwnColumns
from fedkern_flwr.errors import FedKernError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.landmarks import public_seed
from fedkern_flwr.simulations import Transcript
from fedkern_flwr.simulations.engines import Fault
from fedkern_flwr.strategies import FedCG
from fedkern_flwr.strategies.fed_cg_columns import CommonColumns
from fedkern_flwr.tables import Table

SECRET, KEY = bytes(range(32)), b"joins the ids of all"
COLOURS = ("carmine", "magenta", "turquoise", "ultramarine")
KINDS = {"ill": "boolean", "seen": "date", "colour": "category"}
NAMES = ("weight", "age", "ill", "seen", "colour")
SIX = ("describe", "hybrid-distances", "hybrid-histograms", "hybrid-equations")
SIX = dict.fromkeys((*SIX, "hybrid-coefficients", "finish"), 1)
N = 400


def patients() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return text, dates and gaps of all patients, two other features, and classes."""
    rng = np.random.default_rng(0)
    weight = np.exp(rng.normal(4.0, 1.0, N))
    colour = rng.choice(4, N, p=[0.5, 0.3, 0.195, 0.005]).astype(float)
    days = 86400.0 * (18_000 + rng.integers(0, 90, N))
    more = rng.random((N, 2))
    y = (np.log(weight) + 2.0 * (colour == 1) + more.sum(axis=1) > 5.6).astype(float)
    weight[::7] = np.nan
    colour[::11] = np.nan
    age = rng.integers(20, 90, N)
    return np.column_stack([weight, age, rng.random(N) < 0.4, days, colour]), more, y


def raw(rows: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """Return some rows as a holder has them, by positions among its own categories."""
    x = patients()[0][rows]
    own = sorted({COLOURS[int(one)] for one in x[:, 4] if one == one})
    x[:, 4] = [own.index(COLOURS[int(one)]) if one == one else np.nan for one in x[:, 4]]
    return x, {"colour": tuple(own)}


def dealt(hospitals: int, centres: int = 2, **more: Any) -> list[dict[str, Any]]:
    """Return the tables of hospitals, with columns as they are, and of centres."""
    _, other, y = patients()
    order = np.random.default_rng(1).permutation(N)
    tables: list[dict[str, Any]] = []
    for rows in np.array_split(order, hospitals):
        fit, test = rows[: 3 * len(rows) // 4], rows[3 * len(rows) // 4 :]
        (x, categories), (x_test, categories_test) = raw(fit), raw(test)
        own = {"x": x, "y": y[fit], "ids": fit, "x_test": x_test, "y_test": y[test]}
        own |= {"ids_test": test, "categories": categories, "categories_test": categories_test}
        own |= {"columns": NAMES, "kinds": KINDS, "category_key": SECRET, "encode": True}
        seed = public_seed(0, "clinical")
        tables.append({**own, "classes": (0, 1), "landmark_seed": seed, **more})
    for k, columns in enumerate(np.array_split(np.arange(2), centres) if centres else ()):
        rows = np.random.default_rng(2 + k).permutation(N)
        seed = public_seed(0, f"centre {k}")
        x = other[np.ix_(rows, columns)]
        tables.append({"x": x, "ids": rows, "block": f"omics {k}", "landmark_seed": seed})
    return tables


def encoded(tables: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return the tables with columns that were encoded beforehand."""
    made = []
    for own in tables:
        if not own.get("encode"):
            made.append(own)
            continue
        kinds = {"kinds": own["kinds"], "columns": own["columns"], "y": None}
        parts = [
            Table(own[x], categories=own[names], **kinds)
            for x, names in (("x", "categories"), ("x_test", "categories_test"))
        ]
        encoder = OwnColumns(parts[0], own["category_key"]).named(text)
        x, x_test = (encoder.transform(part) for part in parts)
        gone = ("encode", "kinds", "categories", "categories_test", "category_key")
        rest = {name: value for name, value in own.items() if name not in gone}
        made.append({**rest, "x": x, "x_test": x_test, "columns": encoder.outputs})
    return made


class Parties(Nodes):
    """Nodes of FedCG."""

    def fit(self, more: dict[str, Any] | None = None, **options: Any) -> FedCG:
        """Run it."""
        strategy: FedCG = self.run(FedCG(seed=0, **options), **(more or {}))
        return strategy


@pytest.fixture
def parties(tmp_path: Path) -> Callable[..., Parties]:
    count: list[int] = []

    def make(tables: list[dict[str, Any]]) -> Parties:
        count.append(1)
        folder = tmp_path / str(len(count))
        folder.mkdir()
        return Parties(HybridKernelClient, tables, folder, {"alignment_key": KEY})

    return make


def text_of(strategy: FedCG) -> str:
    (text,) = strategy.encoders_.values()
    return text


def same(one: FedCG, other: FedCG) -> None:
    np.testing.assert_allclose(one.coefficients_, other.coefficients_, rtol=1e-7, atol=1e-9)
    assert one.metrics_["test_accuracy"] == other.metrics_["test_accuracy"]


def alike(one: dict[str, list[float]], other: dict[str, list[float]]) -> None:
    assert one.keys() == other.keys()
    found, wanted = (np.array([made[key] for key in one]) for made in (one, other))
    np.testing.assert_allclose(found, wanted, atol=1e-8)


@pytest.mark.parametrize("hospitals", [2, 3])
@pytest.mark.parametrize("centres", [0, 2])
def test_a_run_is_that_of_tables_encoded_beforehand(
    parties: Callable[..., Parties], hospitals: int, centres: int
) -> None:
    """One exchange more than the five, and no other number."""
    tables = dealt(hospitals, centres)
    group = parties(tables)
    fused = group.fit(gamma=0.3, regularization=1e-2, landmarks=30)
    assert fused.ledger_.by_phase == SIX
    before = parties(encoded(tables, text_of(fused)))
    plain = before.fit(gamma=0.3, regularization=1e-2, landmarks=30)
    assert plain.ledger_.exchanges == fused.ledger_.exchanges - 1 == 5
    same(fused, plain)
    alike(group.outputs(), before.outputs())


def test_the_encoder_is_that_of_the_pooled_rows(parties: Callable[..., Parties]) -> None:
    tables = dealt(3)
    fused = parties(tables).fit(encoder_scaling="rank")
    rows = np.concatenate([own["ids"] for own in tables[:3]])
    x, categories = raw(rows)
    pooled = Table(x, None, NAMES, kinds=KINDS, categories=categories)  # type: ignore[arg-type]
    expected = Encoder.fit(pooled, "rank")
    named = OwnColumns(pooled, SECRET).named(text_of(fused))
    assert named.outputs == expected.outputs
    found, wanted = named.transform(pooled), expected.transform(pooled)
    numbers = [k for k, name in enumerate(named.outputs) if "colour[" not in name]
    np.testing.assert_allclose(found[:, numbers], wanted[:, numbers], atol=0.02)
    texts = [k for k, name in enumerate(named.outputs) if "colour[" in name]
    one, other = (sorted(map(tuple, made[:, texts].T)) for made in (found, wanted))
    assert one == other
    assert [row["text"] for row in fused.result()["encoded"]] == [
        one.text for one in expected.explain()
    ]


@pytest.mark.parametrize("tune", ["auto", "gcv"])
def test_the_width_is_chosen_as_of_tables_encoded_beforehand(
    parties: Callable[..., Parties], tune: Any
) -> None:
    """Of the hospitals' own block the mean distance follows from the encoder, by three hundredths.

    The nodes count the columns of the file: that a text became several is no more to hide.
    """
    tables = [{**own, "policy": NodePolicy(allow_small_sums=True)} for own in dealt(2)]
    given = {"tune": tune, "landmarks": 30, "sampling": "U"}
    fused = parties(tables).fit(**given)
    assert fused.ledger_.by_phase == SIX
    plain = parties(encoded(tables, text_of(fused))).fit(**given)
    grids = [np.array(run.tuned_["gammas"]) for run in (fused, plain)]
    np.testing.assert_allclose(grids[0], grids[1], rtol=0.03)
    for name in ("by", "why", "numbers", "regularization"):
        assert fused.tuned_[name] == plain.tuned_[name]
    both = zip(grids, (fused, plain), strict=True)
    picked = [list(grid).index(run.tuned_["gamma"]) for grid, run in both]
    assert picked[0] == picked[1]
    assert fused.metrics_["test_accuracy"] > 0.8


@pytest.mark.parametrize(
    "options", [{"solver": "cg"}, {"penalty": "rkhs"}, {"sampling": "N"}, {"kernel": "laplacian"}]
)
def test_every_solver_and_sampling_has_the_encoder(
    parties: Callable[..., Parties], options: dict[str, Any]
) -> None:
    tables = dealt(3)
    given = {"gamma": 0.3, "regularization": 1e-2, "landmarks": 20, **options}
    fused = parties(tables).fit(**given)
    before = options.keys() & {"penalty", "sampling"}  # landmarks must be known earlier
    assert fused.ledger_.by_phase.get("hybrid-columns", 0) == bool(before)
    plain = parties(encoded(tables, text_of(fused))).fit(**given)
    assert fused.ledger_.exchanges == plain.ledger_.exchanges + 1 + bool(before)
    same(fused, plain)


def test_centres_that_share_a_block_have_one_encoder(parties: Callable[..., Parties]) -> None:
    """Their distances need it: both sums come before, seven exchanges."""
    tables = dealt(2, 1)
    features = patients()[0]
    for half in (0, 1):
        rows = np.arange(half, N, 2)
        x, categories = raw(rows)
        own = {"columns": NAMES, "kinds": KINDS, "categories": categories, "encode": True}
        own |= {"category_key": SECRET, "landmark_seed": public_seed(0, "shared")}
        tables.append({"x": x, "ids": rows, "block": "shared", **own})
    for own in tables[:2]:
        for name in ("x", "x_test", "kinds", "categories", "categories_test", "encode", "columns"):
            del own[name]
        own.pop("category_key")
    assert len(features) == N
    given = {"gamma": 0.3, "regularization": 1e-2, "landmarks": 20, "sampling": "U"}
    fused = parties(tables).fit(**given)
    assert fused.ledger_.by_phase == {**SIX, "hybrid-columns": 1}
    for own in tables[3:]:
        own |= {"x_test": np.zeros((0, 5)), "categories_test": {}}
    plain = parties(encoded(tables, text_of(fused)))
    for own in plain.tables:
        own.pop("x_test", None)
    same(fused, plain.fit(**given))


# -- nodes that fail


@pytest.mark.parametrize("phase", [name for name in SIX if name.startswith("hybrid")])
def test_an_exchange_that_somebody_missed_is_repeated(
    parties: Callable[..., Parties], phase: str
) -> None:
    given = {"gamma": 0.3, "regularization": 1e-2, "landmarks": 20}
    whole = parties(dealt(3)).fit(**given)
    plan = At(partition=1, phase=phase, what=Fault("vanished"))
    again = parties(dealt(3)).fit(more={"faults": plan}, **given)
    assert again.ledger_.by_phase[phase] == 2
    assert text_of(again) == text_of(whole)
    same(again, whole)


@pytest.mark.parametrize("number", [3, 4, 6, 8])
def test_a_run_that_broke_off_is_resumed(parties: Callable[..., Parties], number: int) -> None:
    given = {"gamma": 0.3, "regularization": 1e-2, "landmarks": 20, "solver": "cg"}
    whole = parties(dealt(2)).fit(**given)
    group = parties(dealt(2))
    where = {**given, "checkpoint": group.folder / "run.npz"}
    with pytest.raises(PowerCutError):
        group.fit(more={"faults": Cut(number=number)}, **where)
    resumed = group.fit(resume=where["checkpoint"].exists(), **where)
    same(resumed, whole)
    if number > 5:  # both runs together: what was encoded stays so
        assert resumed.ledger_.by_phase["describe"] == 2
        assert resumed.ledger_.by_phase["hybrid-histograms"] == 1


@pytest.mark.parametrize("options", [{}, {"sampling": "N"}])
def test_a_saved_model_predicts_new_rows(
    parties: Callable[..., Parties], options: dict[str, Any]
) -> None:
    """With categories and gaps that no row had; nodes keep the encoder, and no sum is made."""
    tables = dealt(2)
    group = parties(tables)
    fused = group.fit(gamma=0.3, regularization=1e-2, landmarks=20, **options)
    first = group.outputs()
    arrays, meta = fused.model()
    assert json.loads(json.dumps(meta))["encoders"] == fused.encoders_
    for own in tables[:2]:
        own["y_test"] = None
    predicted = FedCG.of_model(meta)
    record = Transcript()
    grid = group.grid()
    predicted.predict_at_nodes(grid, arrays, meta)
    alike(group.outputs(), first)
    assert not list(record.entries(phase="hybrid-histograms"))
    new = tables[0]
    new["x_test"] = np.array([[np.nan, 30.0, 1.0, 86400.0 * 18_020, 0.0], [60.0] + [np.nan] * 4])
    new |= {"ids_test": tables[1]["ids_test"][:2], "categories_test": {"colour": ("unseen",)}}
    tables[1] |= {"x_test": None, "ids_test": None, "y_test": None}
    for path in group.folder.glob("*.csv"):
        path.unlink()
    FedCG.of_model(meta).predict_at_nodes(grid, arrays, meta)
    found = group.outputs()
    assert len(found) == 2
    assert np.isfinite([*found.values()]).all()


# -- what is refused, and who sees what


def refused(group: Parties, text: str, **options: Any) -> None:
    with pytest.raises(FedKernError) as error:
        group.fit(landmarks=20, **options)
    assert text in str(error.value)
    assert "\n" not in str(error.value)
    assert not any(name in str(error.value) for name in COLOURS)


def test_holders_that_do_not_fit_together_are_refused(parties: Callable[..., Parties]) -> None:
    for change, text in (
        ({"kinds": {**KINDS, "ill": "number"}}, "its column 3 is read as something else than that"),
        ({"category_key": bytes(32)}, "its categories are hidden by another secret than those of"),
        ({"value_bound": 2.0**22}, "its value bound is not that of partition 0, which holds"),
        ({"value_bound": 1000.0}, "column 'weight' has values beyond the public bound of 1000"),
        ({"ranges": np.zeros((5, 2))}, "ranges are of features that are encoded; leave them out"),
        ({"x": np.zeros(9)}, "features of shape (9,); pass x of shape (n, d)"),
        ({"protocol": "naive"}, "encoders are made in protocol 'secure' only"),
    ):
        tables = dealt(2)
        tables[1] |= change
        refused(parties(tables), text)
    short = dealt(2, category_key=b"short")
    refused(parties(short), "column 'colour' holds text, and there is no secret of the holders, 16")
    alone = dealt(2)
    alone[1]["block"] = "another"
    refused(parties(alone), "it alone holds block", missing="neutral", allow_single=True)
    plain = dealt(2)
    plain[1] = encoded(plain[1:2], parties(dealt(2)).fit(landmarks=20).encoders_["clinical"])[0]
    refused(parties(plain), "partition 1, phase describe:")
    constant = dealt(2)
    for own in constant[:2]:
        own |= {"x": 0.0 * own["x"][:, :1] + 1.0, "x_test": 0.0 * own["x_test"][:, :1]}
        own |= {"columns": ("a",), "kinds": {}}
        own["x"][:] = own["x_test"][:] = 7.0
    refused(parties(constant), "every column of block 'clinical' is constant; add columns")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda r: replace(r, counts=r.counts + 1.0), "what was summed before does not fit"),
        (lambda r: replace(r, places=0.0 * r.places), "what was summed before does not fit"),
        (lambda r: replace(r, scale=0.0 * r.scale), "what was summed before does not fit"),
    ],
)
def test_a_server_that_counts_in_other_bins_gets_nothing(
    parties: Callable[..., Parties],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Any], Any],
    text: str,
) -> None:
    real, place = wire.HistogramsRequest, "fedkern_flwr.strategies.fed_cg_columns.wire"
    monkeypatch.setattr(f"{place}.HistogramsRequest", lambda **own: change(real(**own)))
    refused(parties(dealt(2)), text)


def test_an_encoder_without_its_sums_is_refused(
    parties: Callable[..., Parties], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = text_of(parties(dealt(2)).fit(landmarks=20))
    columns = "fedkern_flwr.strategies.fed_cg.FedCG._unencoded"
    usual = FedCG._unencoded

    def told(self: FedCG) -> Any:
        found = usual(self)
        found.encoders["clinical"] = text
        return found

    monkeypatch.setattr(columns, told)
    refused(parties(dealt(2)), "an encoder before the sums that it is made of")


def test_the_fine_sum_comes_after_the_coarse_one(
    parties: Callable[..., Parties], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bins that no sum of this run says are the server's own."""
    known: list[Any] = []
    usual = CommonColumns.take

    def note(self: CommonColumns, totals: Any) -> None:
        usual(self, totals)
        known.append(self._coarse)

    def invent(self: CommonColumns, totals: Any) -> None:
        self._coarse = known[0]

    with monkeypatch.context() as patch:
        patch.setattr(CommonColumns, "take", note)
        parties(dealt(2)).fit(landmarks=20)
    monkeypatch.setattr(CommonColumns, "terms", lambda self: [])
    monkeypatch.setattr(CommonColumns, "take", invent)
    refused(parties(dealt(2)), "the second sum of columns before the first")


def test_a_node_that_refuses_has_the_encoder_counted_first(
    parties: Callable[..., Parties],
) -> None:
    strategy = parties(dealt(2)).fit(landmarks=20)
    usual = strategy._parties
    allowed = []
    for counting in ("warn", "refuse"):
        strategy._parties = {k: replace(p, counting=counting) for k, p in usual.items()}
        allowed.append(strategy.counting_allows())
    made = [e["numbers"] for e in strategy.privacy()["sums"] if e["name"].endswith("/clinical")]
    assert allowed[0] - allowed[1] >= sum(made) > 16_384


def test_numbers_are_counted_and_few_rows_are_refused(parties: Callable[..., Parties]) -> None:
    tables = dealt(2)
    strategy = parties(tables).fit(landmarks=20)
    names = [entry["name"] for entry in strategy.privacy()["sums"]]
    assert {"columns/clinical", "histograms/clinical"} <= set(names)
    strict = dealt(2, policy=NodePolicy(counting="refuse"))
    refused(parties(strict), "refused by the rule of counting")
    few = dealt(2, policy=NodePolicy(min_own_rows=300))
    refused(parties(few), "min_own_rows = 300")


def test_no_name_is_in_any_message(parties: Callable[..., Parties]) -> None:
    record = Transcript()
    group = parties(dealt(3))
    strategy = group.fit(landmarks=20, more={"transcript": record, "serialise": True})
    told = json.dumps([strategy.result(), strategy.encoders_]).encode()
    for entry in record.entries():
        told += b"".join(values.tobytes() for values in entry.arrays)
        told += b"".join(
            v if isinstance(v, bytes) else str(v).encode() for v in entry.scalars.values()
        )
    for secret in (*COLOURS, "colour", "weight", SECRET.hex()):
        assert secret.encode() not in told
    assert SECRET not in told
    sees = strategy.privacy()["server_sees"]
    assert any(line.startswith("of blocks that were encoded in the run") for line in sees)

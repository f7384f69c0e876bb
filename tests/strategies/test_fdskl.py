"""FDSKL: doubly stochastic gradients on pooled columns, and its own rules."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pooled import (
    KEY,
    batch_of,
    doubly_stochastic,
    joint,
    outputs,
    random_features,
    run_order,
)
from refusals import refused, refuses
from zoo import WAYS, Found, Table, Way, columns_of_parties, fit

from fedkern_flwr.simulations import Transcript
from fedkern_flwr.strategies import FDSKL

STREAM: Table = {"schedule": "streaming", "batch": 6, "directions": 3, "step": 0.3}


def way(
    kind: Any = 2, actives: int = 1, rounds: int | None = None, parties: int = 4, **options: Any
) -> Way:
    """Return a way of FDSKL over the first parties, two of which may be all."""
    tables = partial(columns_of_parties, kind, actives=actives)
    alone: Table = {"allow_single": True} if parties == 2 else {}
    given: Table = {"gamma": 0.5, "phase_bits": 32, "seed": 3, "regularization": 0.02, **alone}
    common: Table = {"alignment_key": KEY, **alone}
    if options.get("schedule") != "streaming":
        given["features"] = 20
    made = replace(WAYS["fdskl"], tables=lambda: tables()[:parties], rounds=rounds, common=common)
    return replace(made, options={k: v for k, v in {**given, **options}.items() if v != "leave"})


def streaming(*more: Any, **options: Any) -> Way:
    """Return a way of streaming, like :func:`way`."""
    return way(*more, **{"loss": "square", **STREAM, **options})


def gap(found: Found, **changes: Any) -> float:
    """Return max |f - f| of held-out rows, as the parties wrote them and in a plain program."""
    pairs = [*doubly_stochastic(found, **changes)]
    assert max(np.abs(expected).max() for _, expected in pairs) > 0.05
    return max(float(np.abs(got - expected).max()) for got, expected in pairs)


ONE: Table = {"batch": 1, "directions": 1, "step": 0.1}
STREAMS: dict[str, Way] = {
    "200 iterations": streaming(2, 2, 200, **{**ONE, "batch": 2, "step": 0.05}),
    "Algorithm 1, two lead": streaming(2, 2, 8, **ONE, loss="smooth-hinge"),
    "Algorithm 1": streaming(2, 1, 30, **ONE),
    "logistic": streaming(2, 1, 24, loss="logistic", step=3.0),
    "smooth hinge, two lead": streaming(2, 2, 24, loss="smooth-hinge", step=0.5),
    "two parties": streaming(2, 1, 24, 2), "two parties, both lead": streaming(2, 2, 16, 2),
    "diminishing, two lead": streaming(2, 2, 16, step_schedule="diminishing"),
    "Laplacian, three lead": streaming(2, 3, 12, kernel="laplacian", loss="logistic"),
    "three classes": streaming(3, 2, 16), "numbers": streaming("numbers", 1, 24),
    "a batch of all rows": streaming(2, 1, 12, batch=1000),
    "Algorithm 1, smooth hinge": streaming(2, 1, 8, **ONE, loss="smooth-hinge"),
    "16 bits": streaming(2, 1, 20, phase_bits=16),
}  # fmt: skip


@pytest.mark.promise("fdskl-pooled")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if "200" in name else ()) for name in STREAMS],
)
def test_streaming_is_doubly_stochastic_gradients_of_the_pooled_data(name: str) -> None:
    found = fit(STREAMS[name])
    off = gap(found)
    # a party rounds an angle by pi / 2^32: f by 3e-8 at most where coefficients are few
    near = 3e-8 if name.startswith("Algorithm") else 1e-6
    assert 1e-7 < off < 1e-3 if found.strategy.phase_bits == 16 else off < near
    # iterations, the lag of the pipeline, one or two exchanges to judge, describe and farewell
    lag = 1 if len(found.strategy.leaders) == 1 else 2
    assert found.strategy.ledger_.exchanges == (found.way.rounds or 0) + lag + lag + 2


def test_another_rule_or_another_seed_makes_another_function() -> None:
    """What the comparison above would notice."""
    found = fit(streaming(2, 2, 24))
    assert gap(found) < 1e-6
    changes: list[Table] = [{"decays": False}, {"regularization": 0.03}, {"step": 0.31}]
    changes += [{"batch": 5}, {"step_schedule": "diminishing"}, {"loss": "logistic"}, {"seed": 4}]
    for change in changes:
        assert gap(found, **change) > 1e-4


def test_streaming_ends_with_a_solution_on_the_phases_at_hand() -> None:
    """Ridge regression on rows of the last half of the batches and directions of the first half.

    The parties' messages are those of a run with a step.
    """
    rounds, new, half = 24, 3, 12
    found, stepped = (fit(streaming(2, 1, rounds, step=step)) for step in ("leave", 0.3))
    phi, _ = joint(found, 0, new * (half + 1))
    (rows,), y, ids = run_order(found)
    some = {i for t in range(half + 1, rounds + 1) for i in batch_of(3, t, len(rows), 6)}
    chosen = [rows[i] for i in sorted(some)]
    count = new * (half + 1)
    z = phi / np.sqrt(count)
    left = 2 * z[chosen].T @ z[chosen] / len(some) + 0.02 * np.eye(count)
    w = np.linalg.solve(left, 2 * z[chosen].T @ y[chosen] / len(some))
    tests = found.sites.tables[0]["ids_test"]
    expected = z[[ids.index(i) for i in tests]] @ w
    np.testing.assert_allclose(outputs(found, tests), expected, atol=1e-6)
    assert found.strategy.upto_ == {0: count}
    assert found.strategy.ledger_.exchanges == stepped.strategy.ledger_.exchanges


def test_weights_are_those_of_their_rows() -> None:
    """Though some rows before them have no label."""
    made = way(loss="square")
    tables = made.tables()
    rows = len(tables[0]["y"])
    tables[0]["y"][: rows // 5] = np.nan
    tables[0]["weights"] = np.linspace(0.2, 3.0, rows)
    found = fit(replace(made, tables=lambda: tables))
    ((got, expected),) = random_features(found)
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("actives", [1, 2])
def test_a_phase_is_never_sent_twice(actives: int) -> None:
    """Bytes of a passive party: 4 per distinct pair of row and direction, and little else."""
    rounds, new, size, record = 20, 3, 10, Transcript()
    found = fit(streaming(2, actives, rounds, batch=size), transcript=record)
    rows, _, _ = run_order(found)
    known, have, pairs, whole = np.zeros((actives, 60), int), [0] * actives, 0, 0
    for t in range(1, rounds + 1):
        leader = (t - 1) % actives
        have[leader] += new
        some = np.array(rows[leader])[batch_of(3, t, len(rows[leader]), size)]
        whole += size * sum(have)
        for k in range(actives):
            pairs += int((have[k] - known[k][some]).sum())
            known[k][some] = have[k]
    tests = sum(len(t.get("ids_test", ())) for t in found.sites.tables)
    pairs += tests * sum(have)
    node = found.contexts[3].node_id
    replies = [e for e in record.entries(direction="up", phase="vertical-step") if e.node == node]
    sent = sum(array.nbytes for entry in replies for array in entry.arrays)
    scores = 8 * size * rounds * (actives > 1)  # 64 bits each
    assert 4 * pairs + scores <= sent <= 4 * pairs + scores + 300 * len(replies)
    assert pairs < 0.7 * whole


# -- one-shot


@pytest.mark.parametrize(("kind", "options", "intercept"), [
    (2, {"phase_bits": 16}, True), (2, {"kernel": "laplacian"}, True),
    (2, {"intercept": False}, False), ("numbers", {}, False),
])  # fmt: skip
def test_the_active_party_chooses_a_multiple(kind: Any, options: Table, intercept: bool) -> None:
    """For classes with an intercept, a constant feature of one half."""
    free: Table = {"gamma": None, "regularization": None, "loss": "square", "features": 90}
    found = fit(way(kind, **{**free, **options}))
    made, m = found.strategy, found.strategy.multiple_
    assert m > 1 or made.kernel == "laplacian"  # the widest of kernels is too wide here
    factor = m if made.kernel == "laplacian" else m**2
    assert made.metrics_["gamma"] == pytest.approx(made.gamma_ * factor)
    made.gamma = made.gamma_  # whose phases are multiplied
    phi, _ = joint(found, 0, 90)
    z = np.cos(m * np.arccos(phi / np.sqrt(2.0))) * np.sqrt(2.0 / 90)
    z = np.column_stack([z, np.full(60, 0.5)]) if intercept else z
    (rows,), y, ids = run_order(found)
    left = 2.0 / len(rows) * z[rows].T @ z[rows] + made.regularization_ * np.eye(z.shape[1])
    w = np.linalg.solve(left, 2.0 / len(rows) * z[rows].T @ y[rows])
    table = found.sites.tables[0]
    expected = z[[ids.index(i) for i in table["ids_test"]]] @ w * table.get("label_bound", 1.0)
    near = 5e-2 if made.phase_bits == 16 else 1e-5 if made.regularization_ > 1e-8 else 0.2
    np.testing.assert_allclose(outputs(found, table["ids_test"]), expected, atol=near)
    assert made.ledger_.exchanges == 3


@pytest.mark.promise("fdskl-numbers")
@pytest.mark.parametrize(("kind", "bits", "directions"), [(2, 16, 2000), ("numbers", 32, 1000)])
def test_numbers_take_twice_the_bits_of_half_phases(kind: Any, bits: int, directions: int) -> None:
    """And those of streaming as many as other phases; fewer directions, so that a test is quick."""
    free: Table = {"phase_bits": None, "regularization": "leave"}
    made = fit(way(kind, **{**free, "features": 60})).strategy
    assert made.model()[1]["phase_bits"] == made.chosen_bits == bits
    assert (min(made.tried_regularizations) == 1e-12) == (kind == "numbers")
    assert made.upto_ == {0: 60}
    phases = 60 * 60 * bits // 8
    assert 4 * phases <= made.ledger_.bytes_up <= 4 * phases + 12_000
    made.features = None
    assert made.chosen_features == directions
    stream: Table = {**free, "batch": 5, "directions": 2, "schedule": "streaming"}
    made = fit(way(kind, 1, 10, **stream)).strategy
    assert (made.model()[1]["phase_bits"], made.upto_) == (16, {0: 12})


# -- tables


def test_rows_that_a_party_lacks_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    written: list[Any] = []
    for everywhere in (False, True):
        sites = streaming(2, 2, 12).sites()
        lacking = [*sites.tables[0]["ids"][:3], sites.tables[0]["ids_test"][2]]
        for table in sites.tables if everywhere else sites.tables[3:]:
            for rows, ids in (("x", "ids"), ("x_test", "ids_test")):
                keep = ~np.isin(table.get(ids, ()), lacking)
                for name in (rows, ids, rows.replace("x", "y")):
                    if name in table:
                        table[name] = np.asarray(table[name])[keep]
        found = sites.fit(missing="drop-row")
        assert found.strategy.plan_.dropped == (0 if everywhere else 4)
        written.append(found.predictions)
    assert written[0] == written[1]
    assert "4 rows are left out" in caplog.text


# -- models and what is told


@pytest.mark.promise("fdskl-model")
def test_predictions_need_what_the_parties_kept(tmp_path: Path) -> None:
    """Also of a party that had no rows to learn from: it is none of the owners of the model."""
    made = streaming(2, 2, 12)
    sites = made.sites(tmp_path)
    sites.tables[1]["y"][:] = np.nan
    found = sites.fit()
    assert found.strategy.leaders == (0,)
    before, (_, meta) = found.predictions, found.strategy.model()
    meta = json.loads(json.dumps(meta))

    def predict(meta: Any = meta, tables: list[Table] = sites.tables, **client: Any) -> None:
        again = made.sites(tmp_path, **client)
        again.tables = tables
        FDSKL.of_model(meta).predict_at_nodes(again.grid(), meta)
        assert again.written() == {name: pytest.approx(f) for name, f in before.items()}

    predict()
    predict()
    refuses("FK-KEPT-NONE", predict, state_dir=None)
    with refused("FK-KEPT-NONE"):
        predict(tables=[*sites.tables[:3], {**sites.tables[3], "state_dir": tmp_path / "other"}])
    newcomer: Table = {"x": np.zeros((60, 1)), "ids": sites.tables[3]["ids"]}
    refuses("FK-MODEL-PARTIES", predict, tables=[*sites.tables, newcomer])
    for name, value in (("drawn_for", 0.6), ("kernel", "laplacian"), ("phase_bits", 16)):
        refuses("FK-MODEL-OPTIONS", predict, {**meta, name: value})
    bare = [{k: v for k, v in t.items() if k not in ("x_test", "ids_test")} for t in sites.tables]
    with refused("FK-TEST-NONE"):
        predict(tables=[{k: v for k, v in t.items() if k != "y_test"} for t in bare])


@pytest.mark.parametrize("made", [way(), streaming(2, 2, 8, evaluate_every=3)])
def test_no_secret_is_logged_or_reported(made: Way, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    found = fit(made)
    strategy = found.strategy
    told: Any = [strategy.privacy(), strategy.history_, strategy.model()[1], strategy.options()]
    told += [strategy.metrics_, strategy.ledger_.to_dict(), strategy.plan_.report()]
    text = caplog.text + json.dumps(told)
    secrets = [KEY.decode(), KEY.hex(), "person"]
    secrets += [t["frequency_seed"].hex() for t in found.sites.tables]
    secrets += [repr(float(v)) for v in found.sites.tables[0]["x"][:5].ravel()]
    for secret in secrets:
        assert secret not in text
    for context in found.contexts.values():
        assert not any(secret in repr(context.state) for secret in secrets)
    if strategy.schedule == "streaming":
        assert [row["round"] for row in strategy.history_] == [3, 6, 8]

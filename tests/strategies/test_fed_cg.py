"""FedCG: the model of the pooled rows, whoever holds which of them, and its own rules."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from hospitals import TWO, VARIANTS, Parties, Serve, deal, server, small
from refusals import refused, refuses
from zoo import Table, side

from fedkern_flwr.simulations import Transcript
from fedkern_flwr.strategies import FedCG

EXACT = 1e-8
PHASES = ("describe", "hybrid-distances", "hybrid-equations", "hybrid-coefficients", "finish")
FIVE = dict.fromkeys(PHASES, 1)
THREE = dict.fromkeys(("describe", "hybrid-own-equations", "hybrid-coefficients"), 1)
FOUR = {phase: 1 for phase in PHASES if phase != "finish"}
ROWS_ALONE = {
    "no centres": THREE,
    "no centres, normal": THREE,
    "no centres, rkhs": FOUR,
    "a single party": {**THREE, "finish": 1},
}
ALONE: Table = {"allow_single": True}


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    return server(tmp_path)


# -- exactness


@pytest.mark.promise("fedcg-pooled")
@pytest.mark.parametrize("name", VARIANTS)
def test_the_model_is_that_of_the_pooled_rows(name: str, serve: Serve) -> None:
    make, options = VARIANTS[name]
    lam = 1e-2 if {"penalty", "solver"} & set(options) else 1e-4
    nodes = serve(make(), **ALONE)
    fitted = nodes.learn(regularization=lam, **ALONE, **options)
    near = 1e-7 if name == "constant columns" else 1e-6 if "solver" in options else EXACT
    assert nodes.gap(fitted, lam) <= near
    assert not nodes.files("kernel")
    if "solver" not in options:
        more = {"hybrid-moments": 1} if fitted.ledger_.by_phase["hybrid-moments"] else {}
        assert bool(more) == (options.get("sampling") in ("N", "C"))
        expected = ROWS_ALONE.get(name, FIVE)
        assert fitted.ledger_.by_phase == Counter({**expected, **more})


def test_a_width_per_landmark(serve: Serve) -> None:
    """Equation 4.1: log-uniform around gamma, from the run's seed."""
    nodes = serve(small())
    made = [nodes.learn(landmark_gamma=True, gamma=0.4, seed=s) for s in (6, 5, 5)]
    widths = [fitted.gammas_ for fitted in made]
    assert 0.2 <= widths[1].min() < 0.35 < 0.45 < widths[1].max() <= 0.8
    assert nodes.gap(made[2]) <= EXACT
    np.testing.assert_array_equal(widths[1], widths[2])
    assert not np.isclose(widths[0], widths[1]).any()


def test_nothing_is_predicted_beyond_the_bound_of_the_labels(serve: Serve) -> None:
    x, y = side(60, 6)
    nodes = serve(deal(x, 2.0 * y[:, None] - 1.0, 2, 2, label_bound=1.0))  # a kernel overshoots
    fitted = nodes.learn(gamma=1.0, regularization=1e-6)
    assert np.abs(np.array(list(nodes.outputs().values()))).max() == 1.0
    assert nodes.gap(fitted, 1e-6, bound=1.0) <= EXACT
    assert nodes.gap(fitted, 1e-6) > 0.1


@pytest.mark.parametrize("lam", [1e-12, 1e-3])
def test_a_lost_lambda_is_noted(lam: float, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """What is told is about what a comparison with the pooled rows would find."""
    x = np.random.default_rng(0).random((900, 3))
    nodes = serve(deal(x, (x.sum(axis=1) > 1.5).astype(int), 2, 2, **TWO))
    found = nodes.gap(nodes.learn(landmarks=60, regularization=lam), lam)
    told = [r.getMessage() for r in caplog.records if "lost in the rounding" in r.getMessage()]
    assert (found > 1e-3, len(told)) == (lam < 1e-3, lam < 1e-3)
    if told:
        assert 0.02 < float(told[0].split("off by ")[1].split(";")[0]) / found < 50.0


@pytest.mark.parametrize("bits", [64, 32])
def test_distances_may_travel_in_half_the_bytes(bits: int, serve: Serve) -> None:
    """At the price of kernels that are rounded: to what the option's documentation says."""
    nodes, record = serve(small(90)), Transcript()
    options: Table = {"distance_bits": bits, "regularization": 1.0, "gamma": 1.0}
    fitted = nodes.learn({"transcript": record}, **options)
    assert nodes.gap(fitted, 1.0) <= (EXACT if bits == 64 else 1e-6)
    up = record.entries(phase="hybrid-distances", direction="up")
    assert sum(a.nbytes for e in up for a in e.arrays) == 2 * 3 * 45 * 20 * bits // 8


# -- what a start takes and gives


def test_start_is_called_like_a_stock_strategy(serve: Serve, caplog: Any) -> None:
    nodes, seen = serve(small()), dict[int, np.ndarray]()
    note: Table = {"evaluate_fn": lambda n, arrays: seen.update({n: arrays.to_numpy_ndarrays()[0]})}
    options: Table = {"solver": "cg", "regularization": 0.1}
    nodes.learn(note)
    assert [(n, bool(found.any())) for n, found in seen.items()] == [(0, False), (1, True)]
    seen.clear()
    cold = FedCG(landmarks=20, tune="off", sampling="U", **options)
    seeded = ConfigRecord({"seed": 1})
    result = cold.start(nodes.grid(), num_rounds=500, train_config=seeded, **note)
    last, told = cold.metrics_["iterations"], result.train_metrics_clientapp
    assert ([*seen], [*told], cold.options()["seed"]) == ([0, last], [*range(1, last + 1)], 1)
    np.testing.assert_array_equal(result.arrays.to_numpy_ndarrays()[0], cold.coefficients_)
    assert told[last]["residual"] == cold.metrics_["residual"]
    accuracy = result.evaluate_metrics_clientapp[last]["test_accuracy"]
    assert accuracy == cold.metrics_["test_accuracy"]
    # at the solution of another run with its seed hardly anything is left to do
    warm = nodes.learn({"initial_arrays": ArrayRecord([cold.coefficients_]), **note}, **options)
    assert warm.metrics_["iterations"] <= 1 < last
    np.testing.assert_array_equal(seen[0], cold.coefficients_)
    with refused("FK-INITIAL-SHAPE"):
        nodes.learn({"initial_arrays": ArrayRecord([np.zeros((20, 2))])}, **options)
    short = nodes.learn({"num_rounds": 2}, preconditioner_rank=0, **options)
    assert short.metrics_["iterations"] == 2
    assert "not converged after 2 iterations" in caplog.text


def test_solver_and_rank_follow_the_number_of_landmarks() -> None:
    chosen = [FedCG(landmarks=m).chosen_solver for m in (1, 1000, 1001)]
    assert chosen == ["normal-equations", "normal-equations", "cg"]
    ranks = [FedCG(landmarks=m, solver="cg").rank for m in (10, 399, 400, 2000)]
    assert ranks == [5, 199, 200, 200]
    assert FedCG().tunes
    left: list[Table] = [{"gamma": 1.0, "regularization": 1.0}, {"landmark_gamma": True}]
    assert not any(FedCG(**o).tunes for o in [*left, {"solver": "cg"}, {"penalty": "rkhs"}])


# -- tables that do not fit together


def change(tables: list[Table], k: int, **more: Any) -> list[Table]:
    tables[k] = {**tables[k], **more}
    return tables


ODD_SEED: Table = {"landmark_seed": bytes(32)}


@pytest.mark.promise("fedcg-alone")
def test_clients_do_not_show_their_values_to_a_single_party_either(serve: Serve) -> None:
    """What the strategy allows, each node must allow as well."""
    for hospitals, centres, k in ((2, 1, 2), (1, 2, 0)):
        tables = deal(*side(60, 6), hospitals, centres, **TWO)
        caught = refuses("FK-ALONE-REFUSED", serve(tables).learn, **ALONE)
        assert f"partition {k}" in str(caught)
        serve(change(tables, k, **ALONE)).learn(**ALONE)


@pytest.mark.promise("fedcg-counts-alone")
def test_counts_of_a_single_hospital_are_not_sent(serve: Serve) -> None:
    tables = deal(*side(60, 6), 3, 2, **TWO)
    for table in tables[1:3]:
        table |= {name: table[name][:0] for name in ("x_test", "y_test", "ids_test")}
    nodes = serve(tables)
    alone = nodes.learn()
    assert "test_accuracy" not in alone.metrics_
    assert nodes.gap(alone) <= EXACT
    assert nodes.learn(**ALONE).metrics_["test_accuracy"] > 0.5
    del tables[0]["y_test"]  # without labels they are predicted and not judged
    assert set(nodes.learn().metrics_) == {"iterations", "residual"}


def test_a_finished_run_without_a_state_folder_leaves_no_file(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    nodes, kernels = serve(small(), state_dir=None), set()
    strategy = FedCG(landmarks=20, solver="cg", regularization=1e-2, sampling="U")
    strategy.on_round = lambda *_: kernels.update(temporary.rglob("*.kernel"))
    nodes.fit(strategy=strategy)
    assert nodes.gap(strategy, 1e-2) <= 1e-6
    assert len(kernels) == 2  # of the two hospitals, while the run lasted
    assert not [path for path in temporary.rglob("*") if path.is_file()]


def test_hospitals_without_centres_need_as_few_exchanges_with_other_options(serve: Serve) -> None:
    """Classes are counted before they are weighed; gradients take an exchange each."""
    nodes, given = serve(deal(*side(60, 6), 2, 0, **TWO)), {"landmarks": 8}
    plain = nodes.learn(tune="gcv", **given)
    weighed = nodes.learn(class_weight="balanced", tune="gcv", **given)
    steps = nodes.learn(solver="cg", regularization=0.1, **given)
    assert plain.ledger_.by_phase == Counter(THREE)
    assert "mean distance" not in str(plain.privacy())
    assert weighed.ledger_.by_phase == Counter(FOUR)
    assert "mean distance" in str(weighed.privacy())
    phases = {"describe": 1, "hybrid-own-product": 1, "hybrid-coefficients": 1}
    phases["hybrid-product"] = steps.metrics_["iterations"]
    assert steps.ledger_.by_phase == Counter(phases)
    odd, record = serve(change([*nodes.tables], 1, **ODD_SEED)), Transcript()
    refuses("FK-BLOCK-DIFFERS", odd.learn, {"transcript": record})
    assert not [*record.entries(phase="hybrid-own-equations")]  # before anything is summed
    again = FedCG.of_model(plain.model()[1])
    later = serve(newcomers(nodes.tables), nodes.folder)
    again.predict_at_nodes(later.grid(), *plain.model())
    assert again.ledger_.by_phase == Counter({**FOUR, "hybrid-equations": 0})
    assert len(later.outputs()) == 24


# -- predictions with a model that was saved


def newcomers(tables: list[Table]) -> list[Table]:
    """Return tables of other patients at the same parties: to be predicted."""
    rng, names, out = np.random.default_rng(9), [f"newcomer {k}" for k in range(24)], []
    for k, table in enumerate(tables):
        part = {n: v for n, v in table.items() if n != "y_test"}
        ids = (names[:10], names[10:])[k] if "y" in table else rng.permutation(names)
        x = rng.random((len(ids), table["x"].shape[1]))
        if "y" in table:
            part |= {name: table[name][:0] for name in ("x", "y", "ids")}
            part |= {"x_test": x, "ids_test": ids}
        out.append(part if "y" in table else {**part, "x": x, "ids": ids})
    return out


@pytest.mark.promise("fedcg-model-landmarks")
def test_predictions_need_the_landmarks_of_the_model(serve: Serve) -> None:
    """From the state that the node kept, or from the same seed; others are noticed."""
    tables = deal(*side(90, 6), 2, 3, **TWO)
    bare = [{k: v for k, v in table.items() if k != "landmark_seed"} for table in tables]

    def predict(
        tables: list[Table], model: Any, folder: Path | None = None
    ) -> tuple[FedCG, Parties]:
        nodes, again = serve(newcomers(tables), folder), FedCG.of_model(model[1])
        again.predict_at_nodes(nodes.grid(), *model)
        return again, nodes

    nodes, kept = serve(tables), serve(bare)
    model, secret = nodes.learn().model(), kept.learn(sampling="N").model()
    again, later = predict(tables, model)  # other folders, the seeds of the configuration
    for old, new in zip(tables, later.tables, strict=True):
        new |= (
            {"y": old.get("y"), "x": old["x"], "ids": old["ids"]}
            if "y" in old
            else {name: np.concatenate([old[name], new[name]]) for name in ("x", "ids")}
        )
    assert later.gap(again) <= EXACT
    assert again.ledger_.by_phase == Counter({**FIVE, "hybrid-equations": 0})
    assert len(predict(bare, secret, kept.folder)[1].outputs()) == 24  # what the nodes kept
    for k in (1, 2):
        with refused("FK-LANDMARKS-MODEL", "FK-BLOCK-DIFFERS"):
            predict(change([*tables], k, **ODD_SEED), model)
    for made in (secret, model):
        refuses("FK-KEPT-NONE", predict, bare, made)
    with refused("FK-KEPT-NONE"):  # normal landmarks do not follow from the seed alone
        predict(tables, serve(tables).learn(sampling="N").model())
    refuses("FK-MODEL-PARTIES", predict, tables[:4], model, nodes.folder)
    refuses("FK-MODEL-OPTIONS", FedCG(landmarks=21).predict_at_nodes, nodes.grid(), *model)

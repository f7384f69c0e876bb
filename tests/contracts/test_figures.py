"""Contract: figures that a user reads are those of the run, computed here once more."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conversation import Asked, watching
from sklearn.metrics import auc
from zoo import WAYS, fit, quiet, same

from fedkern_flwr.wire import sums

#: A metric -> what the table of a run calls it; in thousandths below, and with these digits.
NAMED = {
    "test_log_loss": "log loss of probabilities", "test_brier": "Brier score", "auc": "AUC",
    "test_set_coverage": "conformal coverage (target 0.90)", "test_set_size": "mean set size",
    "test_rmse": "RMSE on held-out rows (unit of the label)", "test_r2": "R2",
    "test_mae": "MAE (unit of the label)",
    "test_interval_coverage": "interval coverage (target 0.90)", "ndcg@100": "nDCG@100",
    "test_interval_width": "mean interval width (unit of the label)",
    "mse": "MSE (10⁻³; labels from 0 to 1)",
    "test_mse": "MSE on held-out rows (10⁻³)", "mse_client_std": "std over clients (10⁻³)",
    "regret_mean": "regret per client, mean", "regret_std": "regret per client, std",
    "recall@20": "recall@20", "coverage@10": "coverage@10", "rows": "rows summed",
    "popularity ndcg@10": "of the most popular items", "clients": "nodes summed",
    "item-knn ndcg@10": "of item-kNN, pooled", "evaluated_users": "evaluated users",
    "explained": "share of the variance explained", "test_explained": "of held-out rows",
}  # fmt: skip
DIGITS = {"test_set_size": 2, "regret_mean": 3, "regret_std": 3, "rows": 0, "clients": 0}
DIGITS |= {"evaluated_users": 0, "mse": 3, "test_mse": 3, "mse_client_std": 3}
#: Method -> how many figures of a small run are known here.
METHODS = {"fed-cg": 13, "fdskl": 13, "hierarchical-svm": 10, "pof-rls": 8, "pof-mkl": 8}
METHODS |= {"fed-cfk": 12, "secure-gram": 5, "kernel-pca": 5}


def of_classes(found: dict[str, Any]) -> dict[str, str]:
    """Return the figures of classes: from counts of held-out rows, and the curves."""
    matrix = np.array(found["confusion"])
    rows, right, recalls = matrix.sum(), np.trace(matrix), np.diag(matrix) / matrix.sum(axis=1)
    (curve,) = found["roc"]
    numbers = {
        "accuracy on held-out rows": right / rows,
        "majority-class baseline": matrix.sum(axis=1).max() / rows, "recall": recalls[1],
        "precision": matrix[1, 1] / matrix[:, 1].sum(), "balanced accuracy": recalls.mean(),
        "AUC": auc(*np.transpose(curve)),
    }  # fmt: skip
    return {name: f"{value:.4f}" for name, value in numbers.items()}


@pytest.mark.parametrize("method", METHODS)
def test_the_table_and_the_page_say_what_the_result_holds(
    method: str, finished: Callable[..., SimpleNamespace]
) -> None:
    run = finished(method)
    result, metrics = run.result, run.result["metrics"]
    expected = {
        text: f"{metrics[name] * (1e3 if '10⁻³' in text else 1.0):.{DIGITS.get(name, 4)}f}"
        for name, text in NAMED.items()
        if name in metrics
    }
    if "confusion" in result.get("held_out", {}):
        expected |= of_classes(result["held_out"])
    expected["exchanges"] = str(result["exchanges"])
    expected["MB from clients"] = f"{result['bytes_up'] / 1e6:.2f}"
    expected["MB to clients"] = f"{result['bytes_down'] / 1e6:.2f}"
    lines = re.findall(r"^ *(\S.*?)  +(\S.*?) *$", run.shown, re.MULTILINE)
    shown = {name: cell for name, cell in lines if name in expected}
    assert shown == {name: expected[name] for name in shown}
    assert len(shown) >= METHODS[method], sorted(expected.keys() - shown.keys())
    held_out = result.get("held_out", {})
    for name, counts in zip(
        held_out.get("class_names", ()), held_out.get("confusion", ()), strict=True
    ):
        assert re.search(rf"^ *{name} +{' +'.join(map(str, counts))} *$", run.shown, re.MULTILINE)
    page = html.unescape((run.folder / "report.html").read_text())
    assert [cell for cell in shown.values() if f">{cell}<" not in page] == []


def test_what_force_leaves_of_an_earlier_run_is_nothing(
    commands: Any, in_tmp: Path, finished: Callable[..., SimpleNamespace]
) -> None:
    """Neither its model, nor its pictures, nor what its nodes kept."""
    shutil.copytree(finished("fed-cg").folder, "used")
    for out in ("used", "new"):
        run = [*commands.small("fed-cg"), "--seed", "9", "--out", out, "--quiet", "--force"]
        commands.interrupt(1, *run)
    left = [{p.relative_to(o) for p in Path(o).rglob("*.*")} for o in ("used", "new")]
    assert left[0] == left[1]


@pytest.mark.parametrize("way", ["fed-cg", "fed-cg, tuned", "fed-cg, cg"])
def test_a_sum_is_delivered_once_though_a_node_has_lost_what_it_made(way: str) -> None:
    """The sums that were on their way are of the kernels before; those are made again."""
    sites, lost = WAYS[way].sites(), list[int]()

    def seen(client: Any, request: Any, sections: list[Any]) -> None:
        assert sum(isinstance(one, sums.Delivery) for one in sections) < 2  # the kernel's, in one
        if request.phase in ("hybrid-equations", "hybrid-product") and not lost:
            lost.append(client.partition)
            Asked.of(client, request, sections).change_kept(lambda kept: kept.settings.clear())

    with watching(seen):
        found = sites.fit()
    assert "FK-STATE-GONE" in str(found.strategy.ledger_.failures)
    assert same(found.outcome(), quiet(way).outcome(), 1e-6)


@pytest.mark.parametrize("way", ["fed-cg, cg", "fed-cg, tuned", "fed-cg, balanced"])
def test_parts_of_kernels_change_no_prediction(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(rows: int, _: int) -> Iterator[slice]:
        yield from (slice(start, min(start + 5, rows)) for start in range(0, rows, 5))

    for module in ("clients.fed_cg_kernel", "kernels.product"):
        monkeypatch.setattr(f"fedkern_flwr.{module}.row_chunks", parts)
    assert same(fit(way).outcome(), quiet(way).outcome(), 1e-6)


@pytest.mark.parametrize("way", ["pof-mkl", "pof-rls"])
def test_as_many_rows_are_said_to_be_predicted_as_nodes_wrote(way: str) -> None:
    sites = WAYS[way].sites(keep_weights=True)
    made = sites.fit().strategy
    arrays, meta = made.model()
    again = type(made).of_model(meta)
    again.predict_at_nodes(sites.grid(), arrays, meta)
    assert again.metrics_["predicted_rows"] == len(sites.rows()) > 0

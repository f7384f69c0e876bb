"""What single methods promise on the command line beside what all of them do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedkern_flwr.gram.matrix import unpack
from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations.methods.online import OnlineFamily

pytestmark = pytest.mark.usefixtures("in_tmp")
ONLINE = [cls.method for cls in OnlineFamily.strategies]

#: A message per sample, as in plain runs, whatever can be computed from its sums.
WHOLE = ["--samples-per-round", "1"]


@pytest.mark.parametrize("name", [name for name in ONLINE if name != "local-only"])
def test_secure_sums_give_the_plain_result_and_show_the_server_nothing_else(name, commands):
    found = {}
    for flag in ("--secure", "--no-secure"):
        options = [*commands.small(name), flag, "--drop", "0.1", *WHOLE]
        if name == "pof-rls":  # whose plan depends on what may be released
            options += ["--experts", "local"]
        elif name != "per-fed-avg":
            options += ["--frequencies-per-round", "all"]
        if name == "pof-mkl":  # the default with secure sums, where it costs nothing
            options += ["--kernels-per-round", "51"]
        found[flag] = commands.result(*options, out=flag)
    secure, plain = found["--secure"], found["--no-secure"]
    assert not any(row["survivors"] == 0 for row in secure["history"])
    assert secure["metrics"]["mse"] == pytest.approx(plain["metrics"]["mse"], rel=0, abs=1e-9)
    assert [r["survivors"] for r in secure["history"]] == [r["survivors"] for r in plain["history"]]
    kinds = {row["kind"] for row in secure["privacy"]["seen"]["server"]}
    assert "masked" in kinds
    assert "plain" not in kinds
    assert secure["privacy"]["protocol"] == "secure sums"
    assert secure["privacy"]["cohorts"][0]["threshold"] == 3
    assert secure["exchanges"] >= 2 * plain["exchanges"]


def test_a_secure_run_that_loses_its_rounds_says_why(commands, monkeypatch):
    monkeypatch.setattr("fedkern_flwr.secure_sum.graph.default_threshold", lambda n: n)
    lost = ["--secure", "--drop", "0.5", "--out", "lost", *WHOLE, "--quiet"]
    line = commands.complaint("run", *commands.small("pof-mkl"), *lost, code=1)
    assert "rounds in a row are lost" in line
    assert "at least 4 must" in line


@pytest.mark.parametrize(
    ("name", "wide"),
    [
        ("ofskl", ["--step-size", "paper", "--regularization", "8"]),  # the error rises
        ("per-fed-avg", ["--inner-step", "30"]),  # it jumps, and falls till the end
    ],
)
def test_an_online_run_that_diverges_ends_with_its_checkpoint_and_the_remedy(commands, name, wide):
    steps = [*commands.small(name), *wide, "--out", "wide", "--quiet"]
    line = commands.complaint("run", *steps, "--checkpoint-every", "1", code=1)
    assert "the run has diverged: its mean squared error so far is" in line
    assert "smaller steps" in line
    assert Path("wide/checkpoint-0.npz").is_file()
    found = commands.result(*steps[:-3], "--no-stop-diverged", out="on")
    assert found["metrics"]["mse"] > 10 * 0.25
    assert found["no_better_than"] == "the mean of all labels"


def test_there_are_fewer_exchanges_for_more_samples_in_a_round(commands):
    found = commands.result(*commands.small("pof-mkl"), "--samples-per-round", "4")
    assert found["exchanges"] == 1 + 3 + 1
    assert 0.0 < found["metrics"]["test_mse"] < 2.0


def test_hindsight_adds_the_regret_of_the_server(commands):
    found = commands.result(*commands.small("ofmkl-avg"), "--hindsight")
    assert found["metrics"]["server_regret"] > 0.0


# --- Ratings and summed tables --------------------------------------------------------------


def gram(out: Path | str = "here") -> tuple[np.ndarray, np.ndarray]:
    """Return the Gram matrix of a run and its items."""
    arrays, _ = load_model(Path(out) / "model.npz")
    return unpack(arrays["gram"], len(arrays["items"])), arrays["items"]


def test_the_matrix_is_exact_and_leaves_out_items_of_few_users(finished, stars):
    run = finished("secure-gram")
    matrix, items = gram(run.folder)
    x = (stars > 0).astype(int)
    assert items.tolist() == np.flatnonzero(x.sum(axis=0) >= 3).tolist()
    assert 5 not in items or x[:, 5].sum() >= 3
    np.testing.assert_array_equal(matrix, x[:, items].T @ x[:, items])
    assert f"{len(items)} of 14" in run.shown


@pytest.mark.parametrize("path", ["u.data", "ratings.dat", "r.inter", "plain.csv", "r.parquet"])
def test_files_of_every_kind_give_the_same(path, stars, tables, commands):
    expected = commands.result(*commands.small("fed-cfk"), "--rating", "stars", "--min-rating", "3")
    columns = []
    if path == "r.parquet":
        from pyarrow import csv as arrow_csv
        from pyarrow import parquet

        parquet.write_table(arrow_csv.read_csv(commands.ratings), path)
        columns = ["--user", "who", "--item", "what", "--rating", "stars"]
    else:
        head = {"r.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float"}
        tables.ratings(path, stars, head.get(path, "userId,movieId,rating,timestamp"))
    arguments = ["--data", path, "--clients", "6", "--min-support", "3", "--min-rating", "3"]
    found = commands.result("fed-cfk", *arguments, *columns, out="other")
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=0, abs=1e-9)
    np.testing.assert_array_equal(gram("other")[0], gram()[0])
    if path == "u.data":  # told from a table by its name
        found = commands.result("secure-gram", "--data", path, "--clients", "6")["metrics"]
        assert (found["max_abs_error"], found["rows"]) == (0, 24)


def test_the_built_in_ratings_are_those_of_flights(commands):
    found = commands.result("fed-cfk", "--test-size", "0.02")
    assert (found["config"]["users"], found["config"]["items"]) == (4043, 104)
    assert found["history"] == [{"round": 1, "clients": 20, "rows": 4043}]
    metrics = found["metrics"]
    assert metrics["items"] == 103
    assert 0.9 < metrics["auc"] < 1.0
    assert 0.6 < metrics["ndcg@100"] < 1.0
    assert 0.99 < metrics["recall@100"] <= 1.0  # of 104 items
    assert found["bytes_up"] >= 20 * (103 * 104 // 2) * 2  # 16-bit sums


def test_no_item_with_support_ends_the_run(commands):
    arguments = ["run", "secure-gram", "--min-support", "5000", "--quiet"]
    assert "no item is in 5000 rows; lower min_support" in commands.complaint(*arguments, code=1)


@pytest.mark.parametrize(
    ("arguments", "metric", "low", "high", "items"),
    [
        ("breast-cancer --encoding fixed-point --kernel rbf", "test_accuracy", 0.95, 1.0, 569),
        ("digits --bound 16 --kernel poly --degree 2 --cost 1", "test_accuracy", 0.97, 1.0, 1797),
        ("diabetes --learner ridge --encoding fixed-point", "test_rmse", 40.0, 65.0, 442),
    ],
)
def test_a_machine_on_the_kernel_of_a_table(arguments, metric, low, high, items, commands):
    found = commands.result("secure-gram", "--data", *arguments.split())["metrics"]
    assert low < found[metric] <= high
    assert {"test_accuracy", "test_rmse"} & found.keys() == {metric}
    assert found["items"] == items  # none is left out: a row of a table has support
    if "fixed-point" in arguments:
        assert 0.0 < found["max_abs_error"] <= found["error_bound"] < 1e-4
    else:
        assert found["max_abs_error"] == 0
    assert found["centralised_difference"] < 1e-9


def test_the_table_of_a_summed_table_says_what_it_cost(commands):
    arguments = ["--data", "iris", "--encoding", "fixed-point", "--clients", "2", "--out", "here"]
    shown = commands.shown("run", "secure-gram", *arguments)
    for text in (
        "2 parties, 114 training and 36 held-out rows",
        "accuracy on held-out rows",
        "bound of rounding",
        "plain float64 matrix: 0.18",
    ):
        assert text in shown
    assert "…" not in shown

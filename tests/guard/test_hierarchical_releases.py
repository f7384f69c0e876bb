"""What nodes of HierarchicalSVM let others open, over all runs: columns, agents and folds."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversation import asked
from faulty import PowerCutError
from flwr.app import Context
from identities import known_node
from pooled import KEY
from refusals import raises, refused
from sklearn.svm import SVC
from zoo import Table

from fedkern_flwr.clients import SVMClient
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import HierarchicalSVM

COLUMNS, HELD_OUT = 4, 20


@dataclass
class Federation:
    """Pinned nodes that keep their folders."""

    folder: Path
    tables: list[Table]

    def run(self, stop_at: int = 0, **options: Any) -> HierarchicalSVM:
        def client_fn(context: Context) -> SVMClient:
            k = int(context.node_config["partition-id"])
            context.node_config["simulation"] = False
            known = known_node(self.folder, k, len(self.tables))
            return SVMClient(context, **{**known, **self.tables[k]})

        given = dict(options)
        rounds = {"num_rounds": given.pop("num_rounds")} if "num_rounds" in given else {}
        strategy = HierarchicalSVM(**given)

        def on_round(done: int, *_: Any) -> None:
            if done == stop_at:
                raise PowerCutError

        strategy.on_round = on_round
        simulate(strategy, client_fn, len(self.tables), **rounds)
        return strategy

    def opened(self, k: int = 0) -> dict[str, float]:
        """Return the numbers that were opened about rows of a node, by what is summed."""
        with NodeLedger(self.folder / str(k), k).file.open() as db:
            query = "SELECT purpose, sum(numbers) FROM opened WHERE each = 0 GROUP BY purpose"
            return dict(db.execute(query))

    @property
    def refusals(self) -> list[Any]:
        return [r for k in range(len(self.tables)) for r in self.ledger(k).refusals()]

    def ledger(self, k: int) -> NodeLedger:
        return NodeLedger(self.folder / str(k), k)


def columns(folder: Path, rows: int, *, users: int = 2, binary: bool = False) -> Federation:
    """Two groups of four columns, with users of so many rows each, and a label owner."""
    rng, every = np.random.default_rng(1), users * rows
    x = rng.standard_normal((every + HELD_OUT, 2 * COLUMNS)) + np.arange(2 * COLUMNS)
    x = np.round(rng.random(x.shape)) if binary else x
    y = np.where((x - x.mean(0)).sum(1) + rng.standard_normal(len(x)) > 0.0, 1.0, -1.0)
    ids, key = np.array([f"p{k}" for k in range(len(x))]), {"alignment_key": KEY}
    learned, held = np.split(np.arange(len(x)), [every])
    tables: list[Table] = []
    for i in range(2):
        for part, tests in zip(np.split(learned, users), np.array_split(held, users), strict=True):
            own = slice(COLUMNS * i, COLUMNS * (i + 1))
            table = {"x": x[part, own], "ids": ids[part], "group": i, **key}
            tables.append({**table, "x_test": x[tests, own], "ids_test": ids[tests]})
    tables += [{"role": "agent", "group": i} for i in range(2)]
    owner: Table = {"role": "owner", "y": y[learned], "ids": ids[learned], "classes": (-1.0, 1.0)}
    tables.append({**owner, "y_test": y[held], "ids_test": ids[held], **key})
    return Federation(folder, tables)


def rows(folder: Path, users: int, each: int, *, agents: int = 0) -> Federation:
    """Users with so many rows each, around the server or in one group with an agent."""
    rng = np.random.default_rng(2)
    tables: list[Table] = []
    for k in range(users):
        x = rng.standard_normal((each + HELD_OUT, COLUMNS))
        y = np.where(x[:, 0] + 0.3 * rng.standard_normal(len(x)) > 0.0, 1.0, -1.0)
        ids = np.array([f"{k}/{row}" for row in range(len(x))])
        (a, b), (c, d), (e, f) = (np.split(part, [each]) for part in (x, y, ids))
        table = {"x": a, "y": c, "ids": e, "x_test": b, "y_test": d, "ids_test": f}
        tables.append({**table, "classes": (-1.0, 1.0), "alignment_key": KEY})
    return Federation(folder, tables + [{"role": "agent"}] * agents)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[Federation, HierarchicalSVM]:
    """Return nodes with enough rows, and a run of theirs with no options."""
    nodes = columns(tmp_path_factory.mktemp("usual"), 200)
    return nodes, nodes.run(partition="vertical")


@pytest.mark.promise("svm-agents-counted")
def test_a_usual_run_by_columns_is_planned_and_a_repeated_one_is_free(usual: Any) -> None:
    nodes, first = usual
    used, visits = nodes.opened(), first.history_[-1]["round"] + 2
    # digits of sums and squares; products, objective and bound of each visit
    assert used == {"group": 8 * COLUMNS + visits * (COLUMNS + 2)}
    assert used["group"] <= 0.2 * 200 * COLUMNS
    assert first.result()["notes"][0].startswith("19 iterations")
    assert first.metrics_["converged"]
    again = nodes.run(partition="vertical")
    assert nodes.opened() == used
    assert again.metrics_["objective"] == first.metrics_["objective"]
    x = np.hstack([np.vstack([t["x"] for t in nodes.tables[2 * i : 2 * i + 2]]) for i in range(2)])
    y = nodes.tables[-1]["y"]
    z = (x - x.mean(0)) / x.std(0)
    best = SVC(kernel="linear", C=1.0, tol=1e-9).fit(z, y)
    losses = np.maximum(0.0, 1.0 - y * best.decision_function(z))
    pooled = 0.5 * float((best.coef_**2).sum()) + losses.sum()
    assert first.metrics_["objective"] == pytest.approx(pooled, rel=1e-3)
    assert nodes.refusals == []


def test_a_run_by_columns_that_is_resumed_opens_nothing_twice(tmp_path: Path, usual: Any) -> None:
    nodes, (quiet, right) = columns(tmp_path, 200), usual
    keep: Table = {"checkpoint": tmp_path / "run.npz", "checkpoint_every": 2}
    raises(PowerCutError, nodes.run, partition="vertical", stop_at=5, **keep)
    again = nodes.run(partition="vertical", resume=True, **keep)
    assert again.metrics_["objective"] == pytest.approx(right.metrics_["objective"], rel=1e-12)
    assert nodes.opened() == quiet.opened()
    assert nodes.refusals == []


def test_a_short_run_by_columns_says_how_far_it_came(tmp_path: Path) -> None:
    found = columns(tmp_path, 60).run(partition="vertical")
    assert found.history_[-1]["round"] == 1
    assert not found.metrics_["converged"]
    assert found.result()["notes"][1].startswith("stopped after 1 iterations")


@pytest.mark.promise("svm-agents-counted")
def test_runs_by_columns_open_no_more_than_the_rows_hide(tmp_path: Path) -> None:
    """Each C has other messages: the fourth run would be too much; the third is free again.

    The first message of a run follows from the labels alone, so it may be that of an earlier one to
    the last bit, and then it is counted once.
    """
    nodes = columns(tmp_path, 45)
    for c in (1.0, 3.0, 9.0):
        nodes.run(partition="vertical", C=c, num_rounds=5, tolerance=1e-9)
    visits = (nodes.opened()["group"] - 8 * COLUMNS) / (COLUMNS + 2)
    assert visits in (3 * 7 - 2, 3 * 7 - 1, 3 * 7)
    with refused("FK-CELLS-NUMBERS"):
        nodes.run(partition="vertical", C=27.0, num_rounds=5, tolerance=1e-9)
    nodes.run(partition="vertical", C=9.0, num_rounds=5, tolerance=1e-9)


def test_a_user_by_columns_counts_its_own_rows_alone(tmp_path: Path) -> None:
    """The server could plan with few rows of the others, and these hide nobody's."""
    nodes = columns(tmp_path, 60, users=3)
    nodes.run(partition="vertical", num_rounds=8, tolerance=1e-9)
    with NodeLedger(tmp_path / "0", 0).file.open() as db:
        query = "SELECT DISTINCT rows, others FROM opened WHERE purpose = 'group' AND each = 0"
        assert db.execute(query).fetchall() == [(60, 0)]


def test_columns_of_two_values_hide_little(tmp_path: Path) -> None:
    with refused("FK-POLICY-COUNTING", "FK-CELLS-NUMBERS"):
        columns(tmp_path, 100, binary=True).run(partition="vertical")


@pytest.mark.promise("svm-agents-counted")
def test_what_an_agent_opens_counts_as_if_the_server_did(tmp_path: Path) -> None:
    """The server opens nothing about these rows: there is one agent, and nobody else."""
    nodes = rows(tmp_path, 3, 60, agents=1)
    found = nodes.run()
    iterations = found.history_[-1]["round"]
    used = nodes.opened()
    assert used["group"] == (iterations + 1) * (COLUMNS + 1 + 3)
    assert sum(used.values()) <= 0.2 * 120 * (COLUMNS + 1)
    assert nodes.refusals == []
    with refused("FK-POLICY-COUNTING", "FK-CELLS-NUMBERS"):
        nodes.run(C=1.0, num_rounds=100, tolerance=1e-9)


def test_the_folds_of_c_are_those_of_the_freeze_in_all_runs(tmp_path: Path) -> None:
    """Rows in another order have another digest, and yet the same folds."""
    nodes, losses = rows(tmp_path, 3, 1100), list[list[float]]()
    for seed in range(2):
        tuned = nodes.run(num_rounds=24).result()["tuned"]
        assert tuned["by"] == "3 folds"
        losses.append(tuned["losses"])
        for table in nodes.tables:
            order = np.random.default_rng(seed).permutation(len(table["y"]))
            table |= {name: table[name][order] for name in ("x", "y", "ids")}
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert nodes.refusals == []


def test_what_one_fold_leaves_is_spread_over_fewer_rows(tmp_path: Path) -> None:
    nodes = rows(tmp_path, 3, 600)
    found = nodes.run()
    assert found.result()["tuned"]["by"] == "one fold of 3"
    used, after = nodes.opened(), found.history_[-1]["round"] - 12
    assert used["users"] > 1.5 * 11 * 4 * (COLUMNS + 4) + after * (COLUMNS + 4)
    assert sum(used.values()) <= 0.2 * 1200 * (COLUMNS + 1 / 64)
    assert nodes.refusals == []


def test_nobody_weighs_single_rows_and_opens_the_sum() -> None:
    """One that is agent and owner would read a row in each visit, also of users with labels."""
    one = asked("hierarchical-svm, vertical", "svm-columns at user")
    assert one.try_out() == ("", False)
    said, counted = one.try_out(request=replace(one.request, owner=one.request.agent))
    assert said.endswith("FK-ASKED-MORE]")
    assert counted
    labelled = copy.copy(one.client)
    labelled.table = copy.copy(labelled.table)
    labelled.table.y = np.ones((labelled.table.rows, 1))
    assert one.try_out(labelled)[0].endswith("FK-ASKED-MORE]")

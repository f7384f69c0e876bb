"""The usual life of three guarded nodes: all methods at their defaults, one after the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_sites import Import, Site
from command_line import Tables, at_pull
from faulty import PowerCutError, cut
from flwr.app import Context
from identities import known_node
from refusals import refused, refuses

from fedkern_flwr.clients import GramClient
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import SecureGram

NODES, ROWS, COLUMNS = 3, 200, 30


class Life(Site):
    """Pinned nodes with a table of patients each, which keep their ``state-dir``."""

    config = {}  # noqa: RUF012

    def build(self, rng: np.random.Generator) -> None:
        weights, heads = rng.standard_normal(COLUMNS), [f"c{k}" for k in range(COLUMNS)]
        (self.folder / "alignment").write_text("ab" * 32 + "\n")
        ids = [f"p{k:03d}" for k in range(ROWS)]
        for k in range(NODES):
            x = rng.random((ROWS, COLUMNS))
            y = (x @ weights > np.median(x @ weights)).astype(int)
            data = self.folder / f"data{k}.csv"
            Tables.write(data, {"key": ids, **dict(zip(heads, x.T, strict=True)), "state": y})
            self.add(
                data=data, id_column="key", label_column="state", simulation=False,
                alignment_key=self.folder / "alignment", **known_node(self.folder, k, NODES),
            )  # fmt: skip
            self.nodes[-1]["state-dir"] = str(self.folder / str(k))

    def grow(self, rows: int) -> None:
        """Let new rows come to every node, within the ranges of those before."""
        for k in range(NODES):
            path = self.folder / f"data{k}.csv"
            lines = path.read_text().splitlines()
            more = [
                f"new{len(lines) + n}," + line.partition(",")[2]
                for n, line in enumerate(lines[1 : rows + 1])
            ]
            path.write_text("\n".join([*lines, *more, ""]))

    def go(self, app: str, config: dict[str, Any] | None = None, **each: Any) -> None:
        """Run an app; a list has a value for each node, None takes a key away."""
        self.app = app
        nodes = []
        for k, node in enumerate(self.nodes):
            own = {
                key: value[k] if isinstance(value, list) else value for key, value in each.items()
            }
            found = {**node, **{key.replace("_", "-"): value for key, value in own.items()}}
            nodes.append({key: value for key, value in found.items() if value is not None})
        self.run(nodes, **config or {})

    def tuned(self, **config: Any) -> dict[str, Any]:
        """Run FedCG; return what was chosen in it."""
        result = self.folder / "result.json"
        given = {"result": result, **config}
        self.go("fed_cg", given, role="hospital", ranges=self.files("ranges"), classes="0,1")
        return dict(json.loads(result.read_text())["tuned"])

    def files(self, name: str) -> list[str]:
        return [str(self.folder / f"{name}{k}.json") for k in range(NODES)]


@pytest.fixture
def life(tmp_path: Path, import_app: Import) -> Life:
    return Life(tmp_path, import_app)


def all_methods(life: Life) -> None:
    labels, ranges = {"classes": "0,1"}, life.files("ranges")
    life.go("ranges", ranges=ranges)
    life.go("fed_cg", role="hospital", ranges=ranges, **labels)
    life.go(
        "fdskl", role=["active", "passive", "passive"], classes=["0,1", None, None],
        label_column=["state", None, None], ranges=life.files("own"),
    )  # fmt: skip
    life.go("hierarchical_svm", {"architecture": "centralised"}, role="user", group=0, **labels)
    life.go("method", {"method": "kernel-pca"}, ranges=ranges)
    life.go("ranges", {"labels": True}, scaling=life.files("scaling"))
    life.go("pof_mkl", {"method": "pof-rls", "secure": "on"}, scaling=life.files("scaling"))


def what_follows(life: Life) -> None:
    """A prediction with a model of FedCG, and a run that broke off and goes on."""
    own: dict[str, Any] = {"role": "hospital", "classes": "0,1", "ranges": life.files("ranges")}
    model, outputs = life.folder / "model.npz", [f"{life.folder}/out{k}.csv" for k in range(NODES)]
    life.go("fed_cg", {"model": model}, **own)
    for k in range(NODES):  # new patients, whose columns are those of others
        heads, *lines = (life.folder / f"data{k}.csv").read_text().splitlines()[:9]
        (life.folder / f"new{k}.csv").write_text("\n".join([heads, *(f"n{x}" for x in lines), ""]))
    new = [f"{life.folder}/new{k}.csv" for k in range(NODES)]
    life.go("fed_cg", {"predict": model}, predictions=outputs, test_data=new, **own)
    assert [len(Path(path).read_text().splitlines()) for path in outputs] == [9] * NODES
    user: dict[str, Any] = {"role": "user", "group": 0, "classes": "0,1"}
    config = {"checkpoint": life.folder / "run.npz", "checkpoint_every": 2, "num_rounds": 8}
    with at_pull(9, cut), pytest.raises(PowerCutError):
        life.go("hierarchical_svm", config, **user)
    assert config["checkpoint"].exists()
    life.go("hierarchical_svm", {**config, "resume": True}, **user)


def secure_gram(life: Life) -> None:
    """Make the matrix of more items than the rows of the nodes hide."""

    def client_fn(context: Context) -> GramClient:
        k, rng = int(context.node_config["partition-id"]), np.random.default_rng(7)
        context.node_config["simulation"] = False
        x = (rng.random((COLUMNS, ROWS)) < 0.3).astype(int)
        return GramClient(context, x, **known_node(life.folder, k, NODES))

    simulate(SecureGram(), client_fn, NODES)


def test_a_prediction_and_a_resume_meet_no_refusal_and_secure_gram_its_own(life: Life) -> None:
    life.go("ranges", ranges=life.files("ranges"))
    what_follows(life)
    assert NodeLedger(life.folder / "0", 0).refusals() == []
    refuses("FK-CELLS-NUMBERS", secure_gram, life)


def test_small_hospitals_with_text_gaps_and_dates_can_start(life: Life) -> None:
    rng = np.random.default_rng(4)
    for k in range(NODES):
        path = life.folder / f"data{k}.csv"
        heads, *lines = path.read_text().splitlines()[:61]
        days = rng.integers(1, 28, len(lines))
        words = rng.choice(["north", "south", ""], len(lines), p=[0.5, 0.3, 0.2])
        more = [f"{word},2024-01-{day:02d}" for word, day in zip(words, days, strict=True)]
        rows = [f"{line},{new}" for line, new in zip(lines, more, strict=True)]
        path.write_text("\n".join([f"{heads},ward,seen", *rows, ""]))
    (life.folder / "categories").write_text("cd" * 32)
    shared = {"encoder": life.files("encoder"), "category_key": life.folder / "categories"}
    life.go("ranges", **shared)
    own = {**shared, "classes": "0,1"}
    life.go("fed_cg", role="hospital", **own)
    few = {"architecture": "centralised", "num_rounds": 8}
    life.go("hierarchical_svm", few, role="user", group=0, **own)
    assert [NodeLedger(life.folder / str(k), k).refusals() for k in range(NODES)] == [[]] * NODES


@pytest.mark.promise("cells-numbers")
@pytest.mark.long
def test_a_usual_life_needs_no_option_and_meets_no_refusal(life: Life) -> None:
    """Ranges, FedCG, FDSKL, HierarchicalSVM, kernel PCA and POF-RLS; then all once more.

    Then a prediction and a resume; Secure Gram answers with its code.
    """
    for _ in range(2):
        all_methods(life)
    what_follows(life)
    ledger = NodeLedger(life.folder / "0", 0)
    assert ledger.refusals() == []
    assert len(ledger.runs()) == 14 + 3
    refuses("FK-CELLS-NUMBERS", secure_gram, life)


def test_nodes_that_match_their_rows_hold_out_the_same_fifth(life: Life) -> None:
    """By the alignment key: figures are of these rows, and no node learns from one of them."""
    policy, result = life.folder / "policy.toml", life.folder / "result.json"
    policy.write_text("[freeze]\nheld_out = true\n")
    roles = {"role": ["active", "passive", "passive"], "classes": ["0,1", None, None]}
    own: dict[str, Any] = {**roles, "label_column": ["state", None, None], "policy": policy}
    life.go("fdskl", {"result": result}, ranges=life.files("own"), **own)
    found = json.loads(result.read_text())
    assert (found["held_out"]["rows"], found["matched"]["dropped_rows"]) == (ROWS // 5, 0)
    files = [life.folder.glob(f"{k}/freeze-{k}/*/test-data/data{k}.csv") for k in range(NODES)]
    ids = [{line.partition(",")[0] for line in next(f).read_text().split()[1:]} for f in files]
    assert len(ids[0]) == ROWS // 5
    assert ids == ids[:1] * NODES
    assert NodeLedger(life.folder / "0", 0).refusals() == []


def test_a_table_that_was_edited_is_answered_as_it_was_frozen(life: Life) -> None:
    life.go("ranges", ranges=life.files("first"))
    path = life.folder / "data0.csv"
    lines = path.read_text().splitlines(True)
    path.write_text("".join([*lines[:7], lines[7].replace(",0.", ",9.", 1), *lines[8:-1]]))
    life.go("ranges", ranges=life.files("second"))
    first, second = (Path(life.files(name)[0]).read_text() for name in ("first", "second"))
    assert first == second
    with refused("FK-CELLS-WIDTH"):
        life.go(
            "fed_cg", {"landmarks": 250}, role="hospital", classes="0,1",
            ranges=life.files("first"),
        )  # fmt: skip


@pytest.mark.promise("cells-again")
def test_a_repeated_run_with_new_rows_costs_these_alone(life: Life) -> None:
    """Landmarks and widths are those of the first run, unless the user names others."""
    life.go("ranges", ranges=life.files("ranges"))
    first = life.tuned()
    life.grow(20)  # they wait
    life.tuned(gamma=0.3, landmarks=10)  # between two runs of one function
    again = life.tuned()
    assert (again["numbers"], again["gammas"]) == (first["numbers"], first["gammas"])
    life.grow(150)
    later = life.tuned()
    assert later["gammas"] == first["gammas"]
    assert 32 * 35 / 2 <= later["numbers"] < first["numbers"]
    for path in map(Path, life.files("ranges")):  # one column is scaled a little otherwise
        found = json.loads(path.read_text())
        found["ranges"]["c7"][1] += 1e-9
        path.write_text(json.dumps(found))
    moved = life.tuned()
    assert moved["numbers"] < later["numbers"]  # all rows bear them


@pytest.mark.promise("cells-again")
def test_widths_that_differ_in_the_ninth_digit_are_others(life: Life) -> None:
    life.go("ranges", ranges=life.files("ranges"))
    for _ in range(5):
        life.tuned(gamma=0.3, landmarks=100)
    with refused("FK-CELLS-NUMBERS"):
        for k in (1, 2):
            life.tuned(gamma=0.3 * (1.0 + 1e-9 * k), landmarks=100)


def test_sums_of_folds_are_compared_with_those_of_all_rows(life: Life) -> None:
    life.go("ranges", ranges=life.files("ranges"))
    assert life.tuned(tune="folds", landmarks=9)["by"] == "5 folds"
    *_, run = NodeLedger(life.folder / "0", 0).runs()
    assert {"equations", "equations/0", "equations/4"} <= {*run.sums}

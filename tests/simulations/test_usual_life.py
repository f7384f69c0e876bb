"""The usual life of three guarded nodes: all methods at their defaults, one after the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_sites import Import, Site, cells, write
from identities import known_node
from refusals import refused

from fedkern_flwr.guard.ledger import NodeLedger

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
            data = write(
                self.folder / f"data{k}.csv", ["key", *heads, "state"], ids, *cells(x), y.tolist()
            )
            self.add(
                data=data,
                id_column="key",
                label_column="state",
                simulation=False,
                alignment_key=self.folder / "alignment",
                **known_node(self.folder, k, NODES),
            )
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
        "fdskl",
        role=["active", "passive", "passive"],
        classes=["0,1", None, None],
        label_column=["state", None, None],
        ranges=life.files("own"),
    )
    life.go("hierarchical_svm", {"architecture": "centralised"}, role="user", group=0, **labels)
    life.go("method", {"method": "kernel-pca"}, ranges=ranges)
    life.go("ranges", {"labels": True}, scaling=life.files("scaling"))
    life.go("pof_mkl", {"method": "pof-rls", "secure": "on"}, scaling=life.files("scaling"))


@pytest.mark.promise("cells-numbers")
@pytest.mark.long
def test_a_usual_life_needs_no_option_and_meets_no_refusal(life: Life) -> None:
    """Ranges, FedCG, FDSKL, HierarchicalSVM, kernel PCA and POF-RLS; then all once more."""
    for _ in range(2):
        all_methods(life)
    ledger = NodeLedger(life.folder / "0", 0)
    assert ledger.refusals() == []
    assert len(ledger.runs()) == 14


def test_a_table_that_was_edited_is_answered_as_it_was_frozen(life: Life) -> None:
    life.go("ranges", ranges=life.files("first"))
    path = life.folder / "data0.csv"
    lines = path.read_text().splitlines(True)
    path.write_text("".join([*lines[:7], lines[7].replace(",0.", ",9.", 1), *lines[8:-1]]))
    life.go("ranges", ranges=life.files("second"))
    first, second = (Path(life.files(name)[0]).read_text() for name in ("first", "second"))
    assert first == second
    with refused("FK-CELLS-NUMBERS", "FK-POLICY-COUNTING"):
        life.go(
            "fed_cg",
            {"landmarks": 250},
            role="hospital",
            classes="0,1",
            ranges=life.files("first"),
        )


@pytest.mark.promise("cells-again")
def test_a_repeated_run_with_new_rows_costs_these_alone(life: Life) -> None:
    """Landmarks and widths are those of the first run, unless the user names others."""
    ranges, result = life.files("ranges"), life.folder / "result.json"
    life.go("ranges", ranges=ranges)

    def tuned(**config: Any) -> dict[str, Any]:
        given = {"result": result, **config}
        life.go("fed_cg", given, role="hospital", ranges=ranges, classes="0,1")
        return dict(json.loads(result.read_text())["tuned"])

    first = tuned()
    life.grow(20)  # they wait
    assert tuned()["numbers"] == first["numbers"]
    with refused("FK-CELLS-NUMBERS"):  # widths that differ in the ninth digit
        for k in (1, 2):
            tuned(gamma=first["gamma"] * (1.0 + 1e-9 * k), landmarks=130)
    life.grow(150)
    later = tuned()
    assert later["gammas"] == first["gammas"]
    assert 32 * 35 / 2 <= later["numbers"] < first["numbers"]

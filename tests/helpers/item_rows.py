"""Nodes with rows of items, for Secure Gram and FedCFK: who was asked for what, and the right K."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from conversation import watching
from scipy import sparse
from zoo import WAYS, Sites, Table

from fedkern_flwr.simulations import Transcript
from fedkern_flwr.simulations.engines import Fault, FaultPlan
from fedkern_flwr.strategies import SecureGram


@dataclass
class Rows(Sites):
    """Nodes with rows of items; what they were asked for in the last run."""

    asked: list[tuple[int, Any, list[Any]]] = field(default_factory=list)

    @classmethod
    def of(cls, x: Iterable[Any], folder: Path | None = None) -> Rows:
        more: Table = {} if folder else {"state_dir": None}  # nothing is written
        tables = [{"x": rows} for rows in x]
        return cls(WAYS["secure-gram"], folder or Path(tempfile.gettempdir()), tables, more)

    def release(
        self, faults: Any = None, num_rounds: int = 1, kind: type[Any] = SecureGram, **options: Any
    ) -> Any:
        self.sent, start = Transcript(), {"num_rounds": num_rounds}
        given: Table = {"strategy": kind(**options), "transcript": self.sent, "faults": faults}
        self.asked.clear()
        with watching(lambda client, *what: self.asked.append((client.partition, *what))):
            return self.fit(start=start, **given).strategy

    def requests(self, phase: str) -> dict[int, Any]:
        """Return the requests of a phase that arrived, by partition."""
        return {k: request for k, request, _ in self.asked if request.phase == phase}

    def orders(self, phase: str) -> dict[int, Any]:
        """Return the orders of sums that came with them."""
        found = [(k, s) for k, r, parts in self.asked if r.phase == phase for s in parts]
        return {k: s for k, s in found if s.phase == "sum-order"}

    def times(self, phase: str) -> list[int]:
        """Return the partitions that were asked, whether it arrived or not."""
        first = next(iter(self.contexts.values())).node_id - next(iter(self.contexts))
        return [e.node - first for e in self.sent.entries(phase=phase, direction="down")]

    def rows(self, who: Iterable[int]) -> np.ndarray:
        chosen = [self.tables[k]["x"] for k in who]
        return np.concatenate([r.toarray() if sparse.issparse(r) else r for r in chosen])

    def counts(self, who: Iterable[int]) -> np.ndarray:
        return np.count_nonzero(self.rows(who), axis=0)

    def check(self, strategy: Any, who: Iterable[int], items: Any = None) -> None:
        """The matrix of some nodes' rows, in Python's integers."""
        who, kept = list(who), strategy.items_ if items is None else items
        assert strategy.survivors_ == who
        assert strategy.items_.tolist() == list(kept)
        assert strategy.rows_ == len(self.rows(who))
        x = self.rows(who)[:, kept].astype(np.int64).astype(object)
        assert strategy.gram_.dtype == np.int64
        assert strategy.gram_.astype(object).tolist() == (x.T @ x).tolist()

    def check_cross(self, found: tuple[Any, Any], strategy: Any, who: list[int]) -> None:
        """Products of new items with those of a model, over some nodes, and their squares."""
        new = np.concatenate([self.tables[k]["x_new"] for k in who])
        np.testing.assert_array_equal(found[0], new.T @ self.rows(who)[:, strategy.items_])
        np.testing.assert_array_equal(found[1], new.sum(axis=0))


def binary(nodes: int, rows: int = 2, items: int = 7, seed: int = 0, share: float = 0.5) -> Rows:
    rng = np.random.default_rng(seed)
    return Rows.of([(rng.random((rows, items)) < share).astype(int) for _ in range(nodes)])


def few_of_some(bound: int = 1) -> Rows:
    """Six nodes: item 0 in 6 rows, 1 in 5, 2 in 4, 3 in 1, 4 in none, 5 in 12."""
    x = np.zeros((6, 2, 6), int)
    x[:, 0, 0] = x[:5, 0, 1] = x[1:5, 1, 2] = x[2, 1, 3] = x[:, :, 5] = bound
    return Rows.of(list(x))


def many_items() -> Rows:
    """Six nodes of four rows; popular items have low numbers."""
    rng, chance = np.random.default_rng(2), np.linspace(0.9, 0.3, 20)
    return Rows.of([(rng.random((4, 20)) < chance).astype(int) for _ in range(6)])


def crossing() -> Rows:
    """Four nodes that have new items as well."""
    nodes, rng = binary(4, rows=3, items=6, share=0.7), np.random.default_rng(9)
    for table in nodes.tables:
        table["x_new"] = (rng.random((3, 4)) < 0.6).astype(int)
    return nodes


def drawn(nodes: int, seed: int = 0, **options: Any) -> list[list[int]]:
    """Return who sums with whom: a draw that does not depend on the rows."""
    some = binary(nodes, items=2)
    some.release(min_support=0, seed=seed, **options)
    cohorts = {k: order.cohort for k, order in some.orders("gram-matrix").items()}
    return [sorted(k for k in cohorts if cohorts[k] == c) for c in range(1 + max(cohorts.values()))]


def away(who: Iterable[int], phase: str = "gram-matrix", kind: Any = "vanished") -> FaultPlan:
    return FaultPlan([(k, phase, None, Fault(kind)) for k in who])

"""Nodes with rows of items, for Secure Gram and FedCFK: who was asked for what, and the right K."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from conversation import watching
from nodes import Nodes
from scipy import sparse

from fedkern_flwr.clients import GramClient
from fedkern_flwr.simulations import Transcript
from fedkern_flwr.simulations.engines import Fault, FaultPlan
from fedkern_flwr.strategies import SecureGram


@dataclass
class Rows(Nodes):
    """Nodes with rows of items; what they were asked for in the last run."""

    asked: list[tuple[int, Any, list[Any]]] = field(default_factory=list)

    @classmethod
    def of(cls, x: Iterable[Any]) -> Rows:
        folder = Path(tempfile.gettempdir())  # nothing is written
        return cls(GramClient, [{"x": rows} for rows in x], folder, state=False)

    def release(
        self, faults: Any = None, num_rounds: int = 1, kind: type[Any] = SecureGram, **options: Any
    ) -> Any:
        strategy, more = kind(**options), {"transcript": Transcript(), "num_rounds": num_rounds}
        self.sent = more["transcript"]
        self.asked.clear()
        with watching(lambda client, *what: self.asked.append((client.partition, *what))):
            return self.run(strategy, faults=faults, **more)

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


def binary(nodes: int, rows: int = 2, items: int = 7, seed: int = 0, share: float = 0.5) -> Rows:
    rng = np.random.default_rng(seed)
    return Rows.of([(rng.random((rows, items)) < share).astype(int) for _ in range(nodes)])


def drawn(nodes: int, seed: int = 0, **options: Any) -> list[list[int]]:
    """Return who sums with whom: a draw that does not depend on the rows."""
    some = binary(nodes, items=2)
    some.release(min_support=0, seed=seed, **options)
    cohorts = {k: order.cohort for k, order in some.orders("gram-matrix").items()}
    return [sorted(k for k in cohorts if cohorts[k] == c) for c in range(1 + max(cohorts.values()))]


def away(who: Iterable[int], phase: str = "gram-matrix", kind: Any = "vanished") -> FaultPlan:
    return FaultPlan([(k, phase, None, Fault(kind)) for k in who])

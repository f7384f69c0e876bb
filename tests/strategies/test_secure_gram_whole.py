"""Secure Gram where all nodes must answer: sums that open by themselves, in fewer exchanges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkern_flwr.clients import GramClient
from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.gram import messages as wire
from fedkern_flwr.gram.matrix import packed_size, unpack
from fedkern_flwr.gram.messages import matrix_encoding
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Fault, FaultPlan
from fedkern_flwr.strategies import FedCFK, SecureGram

OPEN: dict[str, Any] = {"min_support": 2, "allow_recovery": True, "drop_outs": False, "seed": 0}


def tables(nodes: int, rows: int = 4, items: int = 6, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(rng.random((rows, items)) < 0.6).astype(int) for _ in range(nodes)]


def clients(x: list[np.ndarray], folder: Path | None = None) -> Any:
    def client_fn(context: Context) -> GramClient:
        k = int(context.node_config["partition-id"])
        return GramClient(context, x[k], x_test=1 - x[k], state_dir=folder)

    return client_fn


def check_exact(strategy: SecureGram, x: list[np.ndarray]) -> None:
    pooled = np.concatenate(x)[:, strategy.items_]
    np.testing.assert_array_equal(strategy.gram_, pooled.T @ pooled)
    assert strategy.survivors_ == list(range(len(x)))


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 6), st.integers(1, 3), st.integers(0, 99))
def test_the_matrix_is_exact_without_opening_exchanges(n: int, cohorts: int, seed: int) -> None:
    cohorts = min(cohorts, n // 2)
    x = tables(n, seed=seed)
    strategy = SecureGram(**{**OPEN, "min_support": 0}, cohorts=cohorts)
    simulate(strategy, clients(x), n)
    check_exact(strategy, x)
    assert strategy.ledger_.by_phase == {"describe": 1, "gram-matrix": 1, "finish": 1}


def test_four_exchanges_and_five_with_recommendations() -> None:
    x = tables(4)
    plain, recommending = SecureGram(**OPEN), FedCFK(**OPEN)
    for strategy, exchanges in ((plain, 4), (recommending, 5)):
        simulate(strategy, clients(x), 4)
        check_exact(strategy, x)
        assert strategy.ledger_.exchanges == exchanges
    tolerant = FedCFK(**{**OPEN, "drop_outs": True})
    simulate(tolerant, clients(x), 4)
    assert tolerant.ledger_.exchanges == 8
    assert tolerant.metrics_ == recommending.metrics_
    np.testing.assert_array_equal(tolerant.gram_, recommending.gram_)


class Asking(SecureGram):
    """A server that sums the matrix once more, of other items or in another way."""

    change: dict[str, Any]

    def sum_matrices(self) -> Any:
        yield from super().sum_matrices()
        if "self_masks" in self.change:
            self.drop_outs = True
        else:
            self.items_ = self.items_[:-1]
        yield from super().sum_matrices()


class Counting(SecureGram):
    """A server that counts again after the matrix."""

    def sum_matrices(self) -> Any:
        yield from super().sum_matrices()
        yield from self.sum_counts()


def test_nodes_refuse_a_second_matrix_of_other_items() -> None:
    server = Asking(**OPEN)
    server.change = {}
    with pytest.raises(ProtocolError, match="a second gram matrix of the same rows"):
        simulate(server, clients(tables(3)), 3)


def test_nodes_refuse_to_open_what_was_summed_without_self_masks() -> None:
    server = Asking(**OPEN)
    server.change = {"self_masks": True}
    with pytest.raises(ProtocolError, match="was summed before and would be repeated otherwise"):
        simulate(server, clients(tables(3)), 3)


def test_nodes_refuse_counts_after_the_matrix() -> None:
    with pytest.raises(ProtocolError, match="item counts come before the matrix"):
        simulate(Counting(**OPEN), clients(tables(3)), 3)


class Elsewhere(SecureGram):
    """A server that sums the matrix over fewer nodes than it counted."""

    fewer: list[int]

    def more_cohorts(self) -> list[list[int]]:
        return [self.fewer]

    def sum_matrices(self) -> Any:
        self._members = [*self._members, self.fewer]
        encoding = matrix_encoding(len(self.fewer), 4, self.bound, self.fraction_bits)

        def request(cohort: int) -> wire.MatrixRequest:
            assert self.sums is not None
            counted = self.sums.membership.cohorts[cohort].pack(self.fewer)
            more = {"counted": counted, "supports": False}
            return wire.MatrixRequest(**self._public(cohort), **more, items=self.items_)

        length = packed_size(len(self.items_))
        sums = yield from self.sum_over(
            wire.GRAM_SUM, length, {1: encoding}, request, wire.MatrixReply
        )
        self.gram_ = unpack(sums[1][1], len(self.items_))


def test_nodes_refuse_counts_and_a_matrix_that_differ_by_a_single_node() -> None:
    server = Elsewhere(**OPEN)
    server.fewer = [0, 1, 2]
    with pytest.raises(ProtocolError, match="a single node dropped out after the item counts"):
        simulate(server, clients(tables(4)), 4)
    assert server.gram_.size == 0


class Resuming(FedCFK):
    """A server that has the recommendations judged again, by sums that open by themselves."""

    def rounds(self, parties: Any) -> Any:
        self.spent_ = set()
        del self.saved_meta_["judged"]
        return super().rounds(parties)


def test_nodes_refuse_a_second_judgement_of_other_nodes(tmp_path: Path) -> None:
    late = FaultPlan([(2, "gram-recommend", None, Fault("vanished"))])
    options = {**OPEN, "min_support": 0, "checkpoint": tmp_path / "run.npz"}
    fn = clients(tables(4), tmp_path / "state")
    first = FedCFK(**{**options, "drop_outs": True})
    simulate(first, fn, 4, faults=late)
    assert first.judged_ == [0, 1, 3]
    with pytest.raises(ProtocolError, match="a second ranking metrics of the same rows"):
        simulate(Resuming(**options, resume=True), fn, 4)


def test_a_sum_that_does_without_opening_is_of_all_nodes() -> None:
    class Leaving(SecureGram):
        def sum_matrices(self) -> Any:
            self._counted = [[0, 1, 2]]
            yield from super().sum_matrices()

    with pytest.raises(ProtocolError, match="is of all nodes"):
        simulate(Leaving(**OPEN), clients(tables(4)), 4)


def test_deployments_do_without_drop_outs_by_default() -> None:
    options: dict[str, Any]
    for options, simulated, masks in (
        ({}, False, False),
        ({}, True, True),
        ({"threshold": 2}, False, True),
        ({"drop_outs": True}, False, True),
        ({"drop_outs": False}, True, False),
    ):
        strategy = SecureGram(**options)
        strategy.simulated = simulated
        assert strategy.self_masks is masks

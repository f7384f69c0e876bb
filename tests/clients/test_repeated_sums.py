"""The same values again: over other parties, to another question, under a name used before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr.clients import KernelPCAClient, SVMClient
from fedkern_flwr.errors import RefusedError
from fedkern_flwr.groups import gradients
from fedkern_flwr.groups import messages as private
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.privacy import Budget
from fedkern_flwr.secure_sum import Encoding, SecureSum
from fedkern_flwr.wire import DescribeRequest, PhaseMessage, sums
from fedkern_flwr.wire.sections import Section, attach, detach

BUDGET, STEPS, ROWS = Budget(3.0, 1e-5, "row", 1), 10, 12
OTHERS = "the parties of a sum: its values were summed over others before"
Make = Callable[[Context, int, Path], Any]


class Server:
    """Asks deployed nodes, which have a folder, for what it likes."""

    def __init__(self, make: Make, method: str, folder: Path, privacy: str, count: int = 5) -> None:
        self.make, self.method, self.folder, self.privacy = make, method, folder, privacy
        config = [
            {"partition-id": k, "num-partitions": count, "simulation": False} for k in range(count)
        ]
        self.contexts = [Context(1, 9 + k, config[k], RecordDict(), {}) for k in range(count)]
        self.sums: Any = None

    def ask(
        self, node: int, request: PhaseMessage, sections: Iterable[PhaseMessage] = ()
    ) -> tuple[dict[str, Any], list[Section]]:
        arrays, scalars = attach([*sections])
        client = self.make(self.contexts[node], node, self.folder / str(node))
        out, _, said = client.fit(request.arrays() + arrays, request.scalars() | scalars)
        return detach(out, said, party=f"partition {node}")[1:]

    def begin(self, members: Iterable[int], session: str = "abc", **options: Any) -> None:
        opening = DescribeRequest(
            session=session,
            method=self.method,
            resume_round=0,
            secure=True,
            privacy=self.privacy,
        )
        keys, counts = {}, {}
        for k in members:
            found = self.ask(k, opening)[0]
            keys[k] = (found["public_key"], found["signature"])
            counts[k] = (found["rows"], found["test_rows"])
        self.sums, self.counts = SecureSum(session, keys, counts=counts, **options), counts

    def tell(self, members: Iterable[int], kind: Any, session: str = "abc") -> None:
        for k in members:
            self.ask(k, kind(session=session, round=9))

    def spent(self, node: int) -> float:
        return NodeLedger(self.folder / str(node), node).runs()[0].epsilon


# -- gradients with a budget


def svm(context: Context, node: int, folder: Path) -> SVMClient:
    rng = np.random.default_rng(node)
    x = rng.random((ROWS, 4))
    y = np.where(np.arange(ROWS) % 2, 1.0, -1.0)
    policy = NodePolicy(max_epsilon=3.0)
    return SVMClient(context, x, y, classes=(-1.0, 1.0), policy=policy, state_dir=folder)


def gradient(server: Server, **changes: Any) -> np.ndarray:
    request = private.GradientRequest(
        session="abc",
        round=1,
        loss="hinge",
        features=0,
        gamma=0.0,
        feature_seed=0,
        iterations=STEPS,
        model=np.zeros((1, 5)),
    )
    rows = [pair[0] for pair in server.counts.values()]
    release = gradients.gradient_release(BUDGET, outputs=1, width=5, rows=rows, iterations=STEPS)
    code = Encoding.fixed_point(float(ROWS)).noisy(release.noise)
    running = server.sums.order(gradients.GRADIENT_SUM, 5, code, self_masks=False)
    for k in server.counts:
        sections = server.sums.sections(k, [running])
        server.sums.take(k, server.ask(k, replace(request, **changes), sections)[1])
    server.sums.unmask_sections([running])
    return np.asarray(server.sums.total(running))


@pytest.mark.parametrize("members", [(1, 2, 3, 4), (1, 2, 3)])
@pytest.mark.parametrize("between", ["break", "finish", "another session"])
def test_a_name_that_is_used_anew_gets_other_noise_for_other_parties(
    between: str, members: tuple[int, ...], tmp_path: Path
) -> None:
    """Else the difference of the sums has none of the noise of the parties that are in both."""
    server = Server(svm, "hierarchical-svm", tmp_path, BUDGET.write())
    server.begin((0, 1, 2, 3))
    gradient(server)
    if between == "another session":
        server.begin((1, 2, 3), "xyz")
    else:
        kind = sums.BreakRequest if between == "break" else sums.FinishRequest
        server.tell((1, 2, 3), kind)
    before = server.spent(1)
    server.begin(members)
    gradient(server)
    assert server.spent(1) > before


def test_another_question_has_noise_of_its_own_though_the_answer_is_the_same(
    tmp_path: Path,
) -> None:
    """Else equal totals would tell, without noise, that no node's values differ."""
    server = Server(svm, "hierarchical-svm", tmp_path, BUDGET.write(), count=4)
    found, cost = [], []
    for gamma in (0.0, 0.0, 1.0):  # of no features, so that no value follows from it
        server.begin(range(4))
        found.append(gradient(server, gamma=gamma))
        cost.append(server.spent(0))
        server.tell(range(4), sums.BreakRequest)
    assert (found[0] == found[1]).all()
    assert cost[0] == cost[1]
    assert (found[2] != found[0]).all()
    assert cost[2] > cost[0]


# -- a sum that drop-outs may leave


@pytest.mark.parametrize("ended", [False, True])
def test_the_same_values_are_opened_over_the_same_survivors(
    ended: bool, meet: Callable[..., Any], tmp_path: Path
) -> None:
    """Else the difference of two rounds is the vector of the one who is said to be late."""
    met = meet("kernel-pca", 1, "method", "moments", 1)
    order = next(s for s in met.sections if isinstance(s, sums.Order))
    x = np.random.default_rng(0).random((4, 8, 2))  # as many rows as in the run that was met

    def make(context: Context, node: int, folder: Path) -> KernelPCAClient:
        return KernelPCAClient(context, x[node], state_dir=folder)

    server = Server(make, "kernel-pca", tmp_path / "nodes", "", count=4)
    server.begin(range(4), threshold=3)

    def opened(number: int, alive: set[int]) -> None:
        code = Encoding.of(order)
        running = server.sums.order(order.name, order.length, code, self_masks=True)
        request = replace(met.request, session="abc", round=number)
        for k in range(4):
            said = server.ask(k, request, server.sums.sections(k, [running]))[1]
            if k in alive:
                server.sums.take(k, said)
        unmask = sums.UnmaskRequest(session="abc", round=number)
        for k, sections in server.sums.unmask_sections([running]).items():
            server.sums.take(k, server.ask(k, unmask, sections)[1])

    opened(1, {0, 1, 2, 3})
    opened(2, {0, 1, 2, 3})
    if ended:  # and its name is used anew: the ledger knows
        server.tell(range(4), sums.FinishRequest)
        server.begin(range(4), threshold=3)
    with pytest.raises(RefusedError, match=OTHERS):
        opened(3, {0, 1, 2})

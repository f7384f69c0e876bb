"""Secure Gram when messages are lost, nodes vanish, servers break down: the exact K, or none."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import PowerCutError, scramble, strip
from flwr.app import Context

from fedkern_flwr.checkpoint import load_arrays
from fedkern_flwr.clients import GramClient
from fedkern_flwr.errors import CheckpointError, CohortError, FedKernError, SumError
from fedkern_flwr.gram.messages import disjoint_cohorts
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.node.sums import load_state
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import DropOut, Fault, FaultPlan, Transcript
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.strategies import FedCFK, SecureGram

NODES, ITEMS = 6, 7
PHASES = ("gram-counts", "gram-matrix", "unmask")
Table = dict[str, Any]


@dataclass
class Network:
    """Six nodes of three rows, and what the last run left."""

    folder: Path
    x: list[np.ndarray] = field(default_factory=list)
    common: Table = field(default_factory=dict)
    state: bool = True
    contexts: dict[int, Context] = field(default_factory=dict)
    runs: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        chance = np.array([0.9, 0.6, 0.6, 0.5, 0.4, 0.05, 0.0])
        self.x = [(rng.random((3, ITEMS)) < chance).astype(int) for _ in range(NODES)]

    def client_fn(self, context: Context) -> GramClient:
        k = int(context.node_config["partition-id"])
        self.contexts[k] = context
        folder = self.folder / f"run-{self.runs}" / f"node-{k}"
        more = {"state_dir": folder} if self.state else {}
        return GramClient(context, self.x[k], **more, **self.common)

    def fit(
        self,
        faults: Any = None,
        timeout: float = 60.0,
        transcript: Transcript | None = None,
        kind: type[SecureGram] = SecureGram,
        on_round: Any = None,
        num_rounds: int = 1,
        **options: Any,
    ) -> SecureGram:
        self.runs += not options.get("resume")  # a session is summed once
        strategy = kind(**{"threshold": 4, "attempts": 3, **options})
        strategy.on_round = on_round
        simulate(
            strategy,
            self.client_fn,
            len(self.x),
            faults=faults,
            timeout=timeout,
            transcript=transcript,
            num_rounds=num_rounds,
        )
        return strategy

    def check(self, strategy: SecureGram, who: Sequence[int] = range(NODES)) -> None:
        """The exact matrix of these nodes, of the items that they have."""
        assert strategy.survivors_ == list(who)
        rows = np.concatenate([self.x[k] for k in who])
        right = (rows.T @ rows)[np.ix_(strategy.items_, strategy.items_)]
        np.testing.assert_array_equal(strategy.gram_, right)
        assert strategy.gram_.size
        assert strategy.rows_ == len(rows)
        if strategy.min_support > 1:
            assert strategy.gram_.diagonal().min() >= strategy.min_support


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


@pytest.fixture(autouse=True)
def _same_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkern_flwr.strategy.secrets.token_hex", lambda n: "5e" * n)


@dataclass
class At:
    """Something happens to what some nodes get, the n-th time that a phase comes."""

    nodes: Sequence[int]
    phase: str
    what: Fault
    times: Sequence[int] = (1,)
    rounds: list[int] = field(default_factory=list)

    def __call__(self, delivery: Delivery) -> Fault | None:
        if delivery.phase != self.phase:
            return None
        if delivery.round not in self.rounds:
            self.rounds.append(delivery.round)
        now = self.rounds.index(delivery.round) + 1 in self.times
        return self.what if now and delivery.partition in self.nodes else None


def cut(phase: str, number: int = 1) -> Callable[[Delivery], None]:
    """Return a plan that ends the server before it sends its n-th exchange of a phase."""
    rounds: list[int] = []

    def plan(delivery: Delivery) -> None:
        if delivery.phase == phase:
            if delivery.round not in rounds:
                rounds.append(delivery.round)
            if len(rounds) == number:
                raise PowerCutError

    return plan


# -- faults of one node in one exchange


KINDS = [Fault(k) for k in ("vanished", "error", "duplicate", "lost request", "lost reply")]
KINDS.append(Fault("delay", seconds=0.2))


@pytest.mark.parametrize("fault", KINDS, ids=lambda f: f.kind)
@pytest.mark.parametrize(
    ("phase", "time"), [*((p, 1) for p in PHASES), ("unmask", 2), ("finish", 1)]
)
def test_a_fault_in_any_phase_leaves_an_exact_matrix(
    phase: str, time: int, fault: Fault, network: Network
) -> None:
    """Who misses the counts is not in K; who misses the matrix is asked again; unmasking is."""
    at = At([2], phase, fault, [time])
    silent = "lost" in fault.kind
    strategy = network.fit(at, 0.15 if silent else 60.0)
    missing = phase == "gram-counts" and (silent or fault.kind in ("vanished", "error"))
    network.check(strategy, [k for k in range(NODES) if k != 2 or not missing])
    assert at.rounds
    harmless = fault.kind in ("duplicate", "delay")
    late = silent and phase == "unmask"  # enough others have answered: it has not failed
    assert bool(strategy.ledger_.failures) != (harmless or late)
    asked = strategy.ledger_.by_phase["gram-matrix"]
    assert asked == (2 if phase == "gram-matrix" and not harmless else 1)


def test_nodes_that_vanish_again_and_again_leave_an_exact_matrix_or_none(network: Network) -> None:
    ended = 0
    for seed in range(5):
        for support, cohorts in ((5, 1), (0, 1), (0, 2)):
            options: Table = {"min_support": support, "cohorts": cohorts, "attempts": 20}
            options["threshold"] = 4 if cohorts == 1 else 2
            with contextlib.suppress(CohortError, SumError):
                strategy = network.fit(DropOut(0.25, seed=seed), **options)
                network.check(strategy, strategy.survivors_)
                assert len(strategy.survivors_) >= 4
                ended += 1
    assert ended >= 8


@pytest.mark.parametrize("change", [scramble, strip])
@pytest.mark.parametrize("phase", PHASES)
def test_rubbish_instead_of_a_reply_is_never_a_wrong_matrix(
    phase: str, change: Any, network: Network
) -> None:
    at = At([1], phase, Fault("tamper", change=change))
    strategy = network.fit(at)
    missing = phase == "gram-counts" and change is strip
    network.check(strategy, [k for k in range(NODES) if k != 1 or not missing])
    assert at.rounds


# -- a difference of two sums that would show somebody


def opened(record: Transcript) -> int:
    """Return how many exchanges asked to open a sum."""
    return len({entry.scalars["round"] for entry in record.entries(phase="unmask")})


@pytest.mark.parametrize("kind", ["vanished", "error"])
def test_when_one_node_drops_out_after_the_counts_the_matrix_is_asked_for_again(
    kind: Any, network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    record = Transcript()
    strategy = network.fit(At([4], "gram-matrix", Fault(kind)), transcript=record)
    network.check(strategy)
    assert strategy.ledger_.by_phase["gram-matrix"] == 2
    assert opened(record) == 2  # the counts, and K once
    text = "1 node dropped out after the item counts, whose difference to the diagonal would show"
    assert text in caplog.text


@pytest.mark.parametrize("node", [0, 4])
def test_when_one_node_stays_away_nothing_is_opened(node: int, network: Network) -> None:
    record = Transcript()
    gone = FaultPlan([(node, "gram-matrix", None, Fault("vanished"))])
    text = r"phase gram-matrix: 1 node dropped out after the item counts, .*, 3 times in a row: "
    with pytest.raises(CohortError, match=text) as caught:
        network.fit(gone, transcript=record)
    assert "mend the clients and start again with all of them" in str(caught.value)
    assert opened(record) == 1
    assert len(list(record.entries(phase="gram-matrix", direction="down"))) == 3 * NODES


def test_few_rows_that_drop_out_are_shown_by_nothing_either(network: Network) -> None:
    """Two nodes of six rows: enough for a support of 6, not for one of 7."""
    gone = FaultPlan([(k, "gram-matrix", None, Fault("vanished")) for k in (1, 4)])
    left = [0, 2, 3, 5]
    network.check(network.fit(gone, min_support=6), left)
    record = Transcript()
    with pytest.raises(
        CohortError, match="2 nodes dropped out after the item counts, whose differ"
    ):
        network.fit(gone, min_support=7, transcript=record)
    assert opened(record) == 1
    once = At([1, 4], "gram-matrix", Fault("vanished"), [1, 2])
    network.check(network.fit(once, min_support=7))


def test_without_counts_there_is_no_difference(network: Network) -> None:
    gone = FaultPlan([(2, "gram-matrix", None, Fault("vanished"))])
    network.check(network.fit(gone, min_support=0), [0, 1, 3, 4, 5])


def test_the_rule_holds_in_each_cohort(network: Network) -> None:
    first, second = disjoint_cohorts(range(NODES), 1.0, 2, 0)
    options: Table = {"cohorts": 2, "threshold": 2, "min_support": 2}
    record = Transcript()
    once = At([second[0]], "gram-matrix", Fault("vanished"))
    network.check(network.fit(once, transcript=record, **options))
    again = [e.node - 1000 for e in record.entries(phase="gram-matrix", direction="down")]
    assert sorted(again) == sorted([*first, *second, *second])  # the first is not asked again
    record = Transcript()
    gone = FaultPlan([(second[0], "gram-matrix", None, Fault("vanished"))])
    with pytest.raises(CohortError, match="1 node dropped out after the item counts"):
        network.fit(gone, transcript=record, **options)
    assert opened(record) == 1  # nothing of the first cohort either


def test_nodes_with_counts_must_be_enough_of_themselves(network: Network) -> None:
    """Those that add zeros hide nobody."""
    gone = FaultPlan(
        [(k, "gram-counts", None, Fault("vanished")) for k in (0, 1)]
        + [(k, "gram-matrix", None, Fault("vanished")) for k in (2,)]
    )
    record = Transcript()
    with pytest.raises(CohortError, match="3 nodes with item counts are left, at least 4 must be"):
        network.fit(gone, transcript=record, min_support=2)
    assert opened(record) == 1


@pytest.mark.parametrize("phase", ["gram-counts", "gram-matrix"])
def test_too_few_nodes_end_the_run(phase: str, network: Network) -> None:
    record = Transcript()
    gone = FaultPlan([(k, phase, None, Fault("error")) for k in range(3)])
    with pytest.raises(CohortError, match=f"phase {phase}: 3 .*at least 4 must.*, 3 times in a ro"):
        network.fit(gone, transcript=record)
    assert opened(record) == (phase == "gram-matrix")
    assert all(load_state(c) is None for c in network.contexts.values())  # all have been told


def test_too_few_that_answer_the_opening_show_nothing(network: Network) -> None:
    gone = FaultPlan(
        [(k, p, None, Fault("error")) for k in range(3) for p in ("unmask", "recover")]
    )
    for support in (0, 5):
        with pytest.raises(SumError, match="fell silent before it could be unmasked"):
            network.fit(gone, min_support=support)


def test_secrets_of_sums_that_are_over_are_erased(network: Network) -> None:
    left = []
    drop = At([1], "gram-matrix", Fault("vanished"), [1, 2])

    def plan(delivery: Delivery) -> Fault | None:
        for context in network.contexts.values():
            state = load_state(context)
            left.append(0 if state is None else len(state.open))
        return drop(delivery)

    network.check(network.fit(plan))
    assert 1 <= max(left) <= 2
    assert all(load_state(context) is None for context in network.contexts.values())


# -- servers that break down


def where(network: Network, **more: Any) -> Table:
    return {"checkpoint": network.folder / "run.npz", **more}


@pytest.mark.parametrize(
    ("phase", "number"), [("gram-matrix", 1), ("unmask", 2)], ids=["matrix", "opening"]
)
def test_a_run_that_broke_off_before_anything_was_opened_ends_with_the_exact_matrix(
    phase: str, number: int, network: Network
) -> None:
    with pytest.raises(PowerCutError):
        network.fit(cut(phase, number), **where(network))
    assert load_arrays(network.folder / "run.npz")[1]["saved"]["stage"] == "counts"
    strategy = network.fit(**where(network), resume=True)
    network.check(strategy)
    quiet = network.fit()
    np.testing.assert_array_equal(strategy.counts_, quiet.counts_)
    np.testing.assert_array_equal(strategy.items_, quiet.items_)
    assert strategy.metrics_ == quiet.metrics_
    assert strategy.history_ == quiet.history_
    assert strategy.ledger_.by_phase["gram-counts"] == 1
    assert strategy.model()[1] == quiet.model()[1]


def test_a_run_that_broke_off_in_the_middle_of_the_matrix_goes_on(network: Network) -> None:
    """All nodes have summed, the server lost what they sent."""

    def after(done: int, *_: Any) -> None:
        if done == 2 * NODES + 4:  # counts, their opening, four matrices
            raise PowerCutError

    with pytest.raises(PowerCutError):
        network.fit(on_round=after, **where(network))
    network.check(network.fit(**where(network), resume=True))


def test_a_run_that_was_resumed_may_be_resumed_again(network: Network) -> None:
    with pytest.raises(PowerCutError):
        network.fit(cut("gram-matrix"), **where(network))
    with pytest.raises(PowerCutError):
        network.fit(cut("unmask"), **where(network), resume=True)
    drop = At([1, 2], "gram-matrix", Fault("vanished"), [1, 2])
    with pytest.raises(CohortError, match="mend it and resume from the checkpoint"):
        network.fit(drop, attempts=2, min_support=5, threshold=5, **where(network, resume=True))
    options = where(network, resume=True)
    network.check(network.fit(threshold=5, **options))


def test_nodes_that_miss_the_counts_have_nothing_to_go_back_to_but_go_on(network: Network) -> None:
    """Their rows stay out of K after a break-down as well."""
    gone = FaultPlan([(3, "gram-counts", None, Fault("error"))])
    end = cut("gram-matrix")
    with pytest.raises(PowerCutError):
        network.fit(lambda d: end(d) or gone(d), **where(network))
    network.check(network.fit(**where(network), resume=True), [0, 1, 2, 4, 5])


def broken_in_the_opening(network: Network, answered: Sequence[int], **options: Any) -> None:
    """End the server when it has asked some nodes, and they have answered, to open K."""
    silent = At(
        [k for k in range(NODES) if k not in answered], "unmask", Fault("lost request"), [2]
    )

    def after(done: int, *_: Any) -> None:
        if done == 3 * NODES + 1:
            raise PowerCutError

    with pytest.raises(PowerCutError):
        network.fit(silent, on_round=after, **where(network, **options))


def test_who_has_answered_the_opening_is_not_asked_to_sum_again(network: Network) -> None:
    """Two sums of different nodes must not both be opened."""
    broken_in_the_opening(network, [0, 5])
    record = Transcript()
    strategy = network.fit(**where(network), resume=True, transcript=record)
    network.check(strategy, [1, 2, 3, 4])
    asked = {e.node - 1000 for e in record.entries(phase="gram-matrix", direction="down")}
    assert asked == {1, 2, 3, 4}


@pytest.mark.parametrize("answered", [[3], [0, 1, 2], [0, 1, 2, 3, 4, 5]])
def test_when_too_few_are_left_to_sum_again_nothing_is_released(
    answered: list[int], network: Network
) -> None:
    """One node of three rows; more than may be missing; all."""
    broken_in_the_opening(network, answered)
    record = Transcript()
    with pytest.raises(FedKernError):
        network.fit(**where(network), resume=True, transcript=record)
    assert opened(record) == 0


def test_a_node_that_has_answered_refuses_by_itself(network: Network) -> None:
    """The server forgets who it was; the node does not, whatever numbers come."""
    broken_in_the_opening(network, [0, 5])
    record = Transcript()

    class Forgetful(SecureGram):
        def rounds(self, parties: Any) -> Any:
            self.spent_ = set()
            return super().rounds(parties)

    try:
        strategy = network.fit(**where(network), resume=True, transcript=record, kind=Forgetful)
    except FedKernError:
        pass
    else:
        network.check(strategy, [1, 2, 3, 4])
    sent = {e.node - 1000 for e in record.entries(phase="gram-matrix", direction="up")}
    assert not sent & {0, 5}


def test_before_the_first_checkpoint_a_run_starts_anew(network: Network) -> None:
    for options in (
        {"min_support": 5},
        {"min_support": 0},
        {"min_support": 0, "num_rounds": 3, "threshold": None},
    ):
        phase = "gram-counts" if options.get("min_support") else "gram-matrix"
        with pytest.raises(PowerCutError):
            network.fit(cut(phase), **where(network, **options))
        with pytest.raises(CheckpointError, match=r"run.npz does not exist; check the path or sta"):
            network.fit(**where(network, resume=True, **options))
        strategy = network.fit(**where(network, **options))
        network.check(strategy)
        (network.folder / "run.npz").unlink()


@pytest.mark.parametrize("masks", [False, True])
def test_rounds_that_were_summed_are_not_summed_again(network: Network, masks: bool) -> None:
    """With sums that nodes open and with sums that open by themselves."""
    options: Table = {"threshold": None, "min_support": 0, "drop_outs": masks, "num_rounds": 3}
    with pytest.raises(PowerCutError):
        network.fit(cut("gram-matrix", 2), **where(network, **options))
    first = disjoint_cohorts(range(NODES), 1.0, 3, 0, halves=True)[0]
    record = Transcript()
    strategy = network.fit(**where(network, resume=True, **options), transcript=record)
    network.check(strategy)
    asked = [e.node - 1000 for e in record.entries(phase="gram-matrix", direction="down")]
    assert sorted(asked) == [k for k in range(NODES) if k not in first]
    assert [row["round"] for row in strategy.history_] == [1, 2, 3]
    assert sum(row["clients"] for row in strategy.history_) == NODES


def test_folders_of_another_run_do_not_serve(network: Network) -> None:
    """A node whose notes are gone may have helped to open K."""
    broken_in_the_opening(network, [0, 5])
    for k in (0, 5):
        shutil.rmtree(network.folder / f"run-{network.runs}" / f"node-{k}")
    record = Transcript()
    with pytest.raises(CheckpointError, match="no private state saved"):
        network.fit(**where(network), resume=True, transcript=record)
    assert opened(record) == 0


# -- the recommender


def test_a_recommender_that_broke_off_after_the_kernel_goes_on(network: Network) -> None:
    def judged(context: Context) -> GramClient:
        client = serve(context)
        client.x_test = 1 - client.x
        client.x_test[:, 1::2] = 0
        return client

    serve, network.client_fn = network.client_fn, judged  # type: ignore[method-assign]
    quiet = network.fit(kind=FedCFK)
    for phase, number in (("gram-recommend", 1), ("unmask", 3)):
        with pytest.raises(PowerCutError):
            network.fit(cut(phase, number), kind=FedCFK, **where(network))
        strategy = network.fit(kind=FedCFK, **where(network), resume=True)
        network.check(strategy)
        assert strategy.metrics_ == pytest.approx(quiet.metrics_, abs=1e-12)
        assert strategy.ledger_.by_phase["gram-matrix"] == 1
        assert quiet.metrics_["evaluated_users"] > 10
        again = network.fit(kind=FedCFK, **where(network), resume=True)
        assert again.metrics_ == strategy.metrics_
        assert (
            again.ledger_.by_phase["gram-recommend"] == strategy.ledger_.by_phase["gram-recommend"]
        )


def test_notes_tell_which_exchange_was_answered(network: Network) -> None:
    network.fit()
    for k in range(NODES):
        (note,) = (network.folder / f"run-{network.runs}" / f"node-{k}").rglob("*.answered")
        assert note.read_text() == "4"
        assert SessionState.load(network.contexts[k]).session == "5e" * 8

"""Messages are lost, nodes vanish, files go, servers break down: the same result, or none.

A method is one more record in ``tests/helpers/fault_cases.py``; the ways that are not its main ones
are tried by ``make test-long``.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_cases import LEAVING, WAYS, Method, Nodes, Way, assert_same, users_in_groups
from faulty import (
    PASSING,
    At,
    Before,
    Cut,
    Exchange,
    Exchanges,
    InTurn,
    PowerCutError,
    flip,
    never,
)

from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.errors import CheckpointError, CohortError, FedKernError, ProtocolError
from fedkern_flwr.exchange import payload_bytes
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.node.sums import load_state
from fedkern_flwr.simulations.engines import DropOut, Fault, Transcript

ENDS = ("describe", "finish")
Table = dict[str, Any]


@dataclass
class Case:
    """A way, and the run in which nothing happened."""

    way: Way
    folders: Callable[[], Path]
    expected: Table = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    phases: Counter[str] = field(default_factory=Counter)
    strategy: Any = None
    told: bool = False  # whether nodes are told that the run is over

    @property
    def method(self) -> Method:
        return self.way.method

    @property
    def asked(self) -> dict[str, list[int]]:
        """Phase -> who is asked in it, at the ends of the run excepted."""
        return {phase: asked for phase, asked in self.exchanges if phase not in ENDS}

    def nodes(self) -> Nodes:
        """Return fresh nodes."""
        method, tables = self.method, self.way.tables()
        return Nodes(method.client, tables, self.folders(), method.common, paths=method.paths)

    def make(self, nodes: Nodes | None = None, **more: Any) -> Any:
        """Return a strategy; with nodes one that keeps a checkpoint."""
        options = {**self.method.options, **self.way.options}
        if nodes is not None:
            options |= {"checkpoint": nodes.folder / "run.npz", **self.way.checkpoints}
        return self.method.strategy(**{**options, **more})

    def run(self, nodes: Nodes, strategy: Any, faults: Any = None, **more: Any) -> Any:
        """Run a strategy."""
        if self.way.rounds is not None:
            more.setdefault("num_rounds", self.way.rounds)
        return nodes.run(strategy, faults=faults, **more)

    def check(self, strategy: Any, nodes: Nodes) -> None:
        """The same result, and nothing left that belonged to the run."""
        assert_same(self.method.outcome(strategy, nodes), self.expected)
        files = (path for path in nodes.folder.glob("node-*/**/*") if path.is_file())
        assert {path.suffix for path in files} <= {".state", ".answered", *self.method.stays}
        assert all(load_state(context) is None for context in nodes.contexts.values())
        for context in nodes.contexts.values() if self.told and not self.method.stays else ():
            assert not SessionState.load(context).payload

    def break_off(self, number: int) -> Nodes:
        """Return nodes whose server broke down in an exchange; one of them was late before."""
        nodes, (phase, asked) = self.nodes(), self.exchanges[1]
        late = At(partition=asked[-(number % 2)], phase=phase)
        cut = Cut(number=number + (number > 1))
        with pytest.raises(PowerCutError):
            self.run(nodes, self.make(nodes), lambda delivery: cut(delivery) or late(delivery))
        return nodes

    def late(self) -> int:
        """Return the number of the last exchange but the farewell: there is a checkpoint then."""
        return len(self.exchanges) - 1 - (self.exchanges[-1][0] == "finish")


Make = Callable[[str], Case]  # what a fixture gives


_QUIET: dict[str, Case] = {}  # runs in which nothing happens: made once


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes cases; all runs have the same name, and so the same order."""
    monkeypatch.setattr("fedkern_flwr.strategy.secrets.token_hex", lambda n: "5e" * n)
    numbers = iter(range(10_000))

    def folder() -> Path:
        path = tmp_path / str(next(numbers))
        path.mkdir()
        return path

    def make(name: str) -> Case:
        way = WAYS[name]
        for place, value in way.patches.items():
            monkeypatch.setattr(place, value)
        if name not in _QUIET:
            quiet, plan = Case(way, folder), Exchanges()
            nodes = quiet.nodes()
            quiet.strategy = quiet.run(nodes, quiet.make(), plan)
            quiet.expected = way.method.outcome(quiet.strategy, nodes)
            quiet.exchanges, quiet.phases = plan.seen, quiet.strategy.ledger_.by_phase
            quiet.told = plan.rode or plan.seen[-1][0] == "finish"
            _QUIET[name] = quiet
        _QUIET[name].folders = folder
        return _QUIET[name]

    return make


def ways(
    *, main: int = 1, others: int = 0, count: int = 0, resumes: bool = False, keeps: bool = False
) -> list[Any]:
    """Return (name, number) of all ways; so many numbers by make test, all by make test-long.

    ``resumes``: only those with a checkpoint; ``keeps``: only those whose nodes keep files.
    """
    return [
        pytest.param(name, k, marks=() if k < (main if way.main else others) else pytest.mark.long)
        for name, way in WAYS.items()
        for k in range(max(main, count))
        if (way.method.resumes or not resumes) and (way.method.files != "none" or not keeps)
    ]


def names(*, resumes: bool = False, keeps: bool = False) -> list[Any]:
    """Return the names of all ways; but for the main ones they are left to make test-long."""
    found = ways(resumes=resumes, keeps=keeps)
    return [pytest.param(way.values[0], marks=way.marks) for way in found]


@pytest.mark.parametrize("name", names())
def test_a_strategy_may_be_started_again_and_its_ledger_says_what_passed(
    name: str, case: Make
) -> None:
    """Whether messages are serialised or not."""
    quiet = case(name)
    strategy = quiet.make()
    for serialise in (True, False):
        nodes, record = quiet.nodes(), Transcript()
        quiet.run(nodes, strategy, serialise=serialise, transcript=record)
        quiet.check(strategy, nodes)
        ledger, messages = strategy.ledger_, record._messages
        assert ledger.by_phase == quiet.phases
        assert ledger.messages == sum(way == "down" for way, _ in messages)
        assert ledger.bytes_up == sum(payload_bytes(m) for way, m in messages if way == "up")
        assert ledger.bytes_down == sum(payload_bytes(m) for way, m in messages if way == "down")
        assert ledger.bytes_up > 0
        assert not ledger.failures


# -- faults that pass


@pytest.mark.parametrize(("name", "turn"), ways(main=len(PASSING), others=1))
def test_what_happens_in_every_exchange_changes_nothing(name: str, turn: int, case: Make) -> None:
    """Another fault to another party in each; it is asked again, once."""
    quiet = case(name)
    nodes, plan = quiet.nodes(), InTurn(quiet=quiet.exchanges, faults=PASSING, turn=turn)
    strategy = quiet.run(nodes, quiet.make(), plan, timeout=0.05)
    quiet.check(strategy, nodes)
    assert plan.place == len(quiet.exchanges) - 1
    struck = [fault for phase, fault in plan.struck if phase not in ENDS]
    assert len(struck) == sum(phase not in ENDS for phase, _ in quiet.exchanges)
    repeated = sum(fault.kind != "duplicate" for fault in struck)
    # a reply that is broken beside its sum costs nothing where the sum is all
    least = repeated - quiet.method.sums_alone * sum(fault.kind == "tamper" for fault in struck)
    assert least <= len(plan.seen) - len(quiet.exchanges) <= repeated
    assert bool(strategy.ledger_.failures) == bool(repeated)


@pytest.mark.parametrize("name", names())
def test_nodes_that_vanish_again_and_again_change_nothing(name: str, case: Make) -> None:
    """Secrets of sums that are over are erased, also of those that failed and were repeated."""
    quiet = case(name)
    nodes, drop, left = quiet.nodes(), DropOut(0.25, seed=8), []

    def plan(delivery: Any) -> Fault | None:
        for context in nodes.contexts.values():
            state = load_state(context)
            left.extend(Counter(cohort for cohort, _ in state.open).values() if state else ())
        return drop(delivery)

    strategy = quiet.run(nodes, quiet.make(attempts=40), plan)
    quiet.check(strategy, nodes)
    assert strategy.ledger_.failures
    assert max(left, default=0) <= quiet.method.open_sums


# -- parties that never answer


@pytest.mark.parametrize("name", names())
def test_a_party_that_never_answers_is_named_and_nothing_is_made(name: str, case: Make) -> None:
    quiet = case(name)
    for phase, asked in quiet.asked.items():
        for partition in {asked[0], asked[-1]}:
            nodes = quiet.nodes()
            text = (
                rf"phase {phase}: {quiet.method.missing}, 2 times in a row: partition {partition}"
                rf" raised InjectedError; {quiet.method.ended}"
            )
            with pytest.raises(CohortError, match=text) as caught:
                quiet.run(nodes, quiet.make(attempts=2), never(partition, phase))
            assert "\n" not in str(caught.value)
            last = [*quiet.asked][-1] == phase and len(asked) > 1
            assert not nodes.written() or last  # the others had the result already
            assert not nodes.files(quiet.method.files)  # whoever is left has been told
            assert all(load_state(context) is None for context in nodes.contexts.values())


@pytest.mark.parametrize(("phase", "partition"), [("svm-step", 2), ("svm-combine", 9)])
@pytest.mark.parametrize("name", LEAVING)
def test_the_others_go_on_without_a_group_that_is_silent(
    name: str, phase: str, partition: int, tmp_path: Path
) -> None:
    """They come to the optimum of their rows, as if it had not been there."""
    way, method, found = LEAVING[name], LEAVING[name].method, []
    options = {**method.options, **way.options, "attempts": 2}
    gone = At(partition=partition, phase=phase, number=3, always=True)
    for plan, lost in ((gone, None), (None, 1), (None, None)):
        nodes = Nodes(method.client, users_in_groups(lost), tmp_path / str(len(found)))
        strategy = nodes.run(method.strategy(**options), faults=plan, num_rounds=way.rounds)
        assert strategy.metrics_.get("groups_left_out", 0) == (plan is not None)
        assert strategy.metrics_["converged"]
        found.append(method.outcome(strategy, nodes))
    left, never_there, whole = found
    assert left["objective"] == pytest.approx(never_there["objective"], rel=5e-3)
    gap = np.linalg.norm(left["weights"] - never_there["weights"])
    assert gap < 0.05 * np.linalg.norm(never_there["weights"])
    assert gap < 0.3 * np.linalg.norm(left["weights"] - whole["weights"])  # a control


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.main])
def test_three_parties_are_named_at_most(name: str, case: Make) -> None:
    quiet = case(name)
    phase, _ = quiet.exchanges[1]

    def nobody(delivery: Any) -> Fault | None:
        early = delivery.phase == phase and delivery.partition < 4
        return Fault("vanished") if early else None

    with pytest.raises(CohortError, match=r"(partition \d unreachable[^,;]*[,;] ){3}mend it"):
        quiet.run(quiet.nodes(), quiet.make(), nobody)


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("lost request", r"allow more time if it reads a large table \(node_timeout\)"),
        ("error", ""),
    ],
)
@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.main])
def test_a_node_that_does_not_describe_itself_ends_the_run(
    name: str, kind: Any, remedy: str, case: Make
) -> None:
    quiet = case(name)
    nodes, plan = quiet.nodes(), At(partition=1, phase="describe", what=Fault(kind), always=True)
    with pytest.raises(FedKernError, match=f"node 1001, phase describe: .*{remedy}"):
        quiet.run(nodes, quiet.make(node_timeout=0.1), plan)
    assert not nodes.written()


# -- files that are gone


def delete_folder(path: Path) -> None:
    """Delete the folder of the run, unless it holds what shall outlast the run."""
    if any(path.parent.glob("*.state")):
        path.unlink()
    else:
        shutil.rmtree(path.parent)


DAMAGES: tuple[Callable[[Path], Any], ...] = (
    Path.unlink,
    lambda path: path.write_bytes(path.read_bytes()[:-8]),
    delete_folder,
)


@pytest.mark.parametrize(("name", "number"), ways(count=len(DAMAGES), resumes=True, keeps=True))
def test_what_a_node_has_lost_is_made_again(name: str, number: int, case: Make) -> None:
    """Between any two exchanges, at all nodes or at one: never a result of other numbers."""
    quiet, noticed = case(name), 0
    count = len(quiet.exchanges)
    for k in range(1, count, max(1, count // 5)):
        nodes = quiet.nodes()

        def spoil(nodes: Nodes = nodes, k: int = k) -> None:
            files = nodes.files(quiet.method.files)
            for path in files[-1:] if k % 2 else files:
                DAMAGES[(k + number) % len(DAMAGES)](path)

        strategy = quiet.run(nodes, quiet.make(), Before(numbers=range(k, k + 1), do=spoil))
        quiet.check(strategy, nodes)
        noticed += sum(
            "StateError" in reason and "of this run are gone from its disk" in reason
            for reasons in strategy.ledger_.failures.values()
            for reason in reasons
        )
    assert noticed or name in NOTHING_TO_LOSE


#: Ways on which nothing is kept in files, or nothing that is needed once more.
NOTHING_TO_LOSE = (
    "fdskl",
    "fdskl, Algorithm 1",
)


@pytest.mark.parametrize("name", names(resumes=True, keeps=True))
def test_what_goes_in_every_exchange_ends_the_run_or_does_no_harm(name: str, case: Make) -> None:
    quiet = case(name)
    nodes = quiet.nodes()

    def spoil() -> None:
        for path in nodes.files(quiet.method.files):
            path.unlink()

    try:
        strategy = quiet.run(nodes, quiet.make(), Before(numbers=range(1, 1000), do=spoil))
    except CohortError as error:
        ended = str(error)
    else:
        quiet.check(strategy, nodes)
        return
    assert "answered, 5 times in a row" in ended or "has forgotten what the question nee" in ended
    assert "\n" not in ended
    assert not nodes.written()


# -- servers that break down


@pytest.mark.parametrize(("name", "number"), ways(count=2, resumes=True))
def test_a_run_that_broke_off_ends_with_the_same_result(name: str, number: int, case: Make) -> None:
    """Whether the nodes' files survive or not; before the first checkpoint it starts anew."""
    quiet, resumed = case(name), 0
    count = len(quiet.exchanges)
    for k in sorted({1, 2, count // 2, count - 2, count - 1}):
        nodes = quiet.break_off(k)
        for path in nodes.files(quiet.method.files) if (k + number) % 2 else ():
            path.unlink()
        known = (nodes.folder / "run.npz").exists()
        if not known:
            with pytest.raises(CheckpointError, match=r"run.npz does not exist; check the path or"):
                quiet.run(nodes, quiet.make(nodes, resume=True))
        strategy = quiet.run(nodes, quiet.make(nodes, resume=known))
        quiet.check(strategy, nodes)
        if known:
            resumed += 1
            for phase in quiet.method.spent:
                assert strategy.ledger_.by_phase[phase] <= quiet.phases[phase] + 1, (phase, k)
    assert resumed


@pytest.mark.parametrize("name", names(resumes=True))
def test_faults_after_a_break_down_do_no_harm_either(name: str, case: Make) -> None:
    """Broken off twice, nodes vanishing all the while; then resumed once more to its result."""
    quiet = case(name)
    nodes, known = quiet.nodes(), False
    for seed in range(2):
        drop, end = DropOut(0.2, seed=seed), Cut(number=2 if known else quiet.late())
        strategy = quiet.make(nodes, resume=known, attempts=40)
        with pytest.raises(PowerCutError):
            quiet.run(nodes, strategy, lambda d, drop=drop, end=end: end(d) or drop(d))
        known = (nodes.folder / "run.npz").exists()
    drop = DropOut(0.2, seed=9)
    quiet.check(quiet.run(nodes, quiet.make(nodes, resume=known, attempts=40), drop), nodes)
    phases = Counter(dict.fromkeys(quiet.method.spent, 0))
    for path in nodes.files("csv"):
        path.unlink()
    plan = Exchanges()
    again = quiet.run(nodes, quiet.make(nodes, resume=True, attempts=40), plan)
    assert not phases.keys() & {phase for phase, _ in plan.seen}
    if nodes.written():
        quiet.check(again, nodes)


@pytest.mark.parametrize("name", names(resumes=True))
def test_a_run_that_lacked_a_party_goes_on_when_it_is_back(name: str, case: Make) -> None:
    """The strategy gave up, the others have erased their files: all is made again."""
    quiet = case(name)
    phase, asked = quiet.exchanges[quiet.late()]
    nodes, gone = quiet.nodes(), never(asked[0], phase)
    with pytest.raises(CohortError, match=r"mend it and resume from the checkpoint"):
        quiet.run(nodes, quiet.make(nodes), gone)
    quiet.check(quiet.run(nodes, quiet.make(nodes, resume=True)), nodes)


@pytest.mark.parametrize("name", names(resumes=True))
def test_a_checkpoint_fits_one_run_only(name: str, case: Make) -> None:
    """No mixture of two problems, and no result of rows that are not there any more."""
    quiet = case(name)
    nodes = quiet.break_off(quiet.late())
    file = nodes.folder / "run.npz"

    def refused(error: type[FedKernError], text: str, nodes: Nodes = nodes, **more: Any) -> None:
        options = {"checkpoint": file, "resume": True, **more}
        with pytest.raises(error, match=text) as caught:
            quiet.run(nodes, quiet.make(nodes, **options))
        assert "\n" not in str(caught.value)

    own = {**quiet.method.options, **quiet.way.options}
    for change in quiet.method.changes:
        if change.items() <= own.items():
            continue
        refused(CheckpointError, "run.npz belongs to a run with other options; re", **change)
    text = "partition 0, phase describe: no private state saved for round .*; give the client the"
    refused(CheckpointError, text, quiet.nodes())
    nodes.state = False
    refused(CheckpointError, text)
    nodes.state = True
    for spoil in quiet.method.tables:
        spoil(nodes.tables)
        refused(FedKernError, "table|rows")
        nodes.tables = quiet.way.tables()
    saved = file.read_bytes()
    arrays, meta = load_arrays(file)
    save_arrays(file, arrays, {name: value for name, value in meta.items() if name != "version"})
    refused(CheckpointError, "written by another version of fedkern-flwr; ")
    file.write_bytes(saved)
    quiet.check(quiet.run(nodes, quiet.make(nodes, resume=True)), nodes)


# -- what passes through the server


#: What parties seal for each other: the way, who sends it, and in which phase.
SEALED = {
    "align": (0, "align-hop"),
}


@pytest.mark.parametrize("name", SEALED)
def test_what_is_sealed_cannot_be_changed_on_the_way(name: str, case: Make) -> None:
    quiet, (partition, phase) = case(name), SEALED[name]
    nodes = quiet.nodes()
    plan = At(partition=partition, phase=phase, what=Fault("tamper", change=flip))
    with pytest.raises(ProtocolError, match="through the server was changed or misplaced"):
        quiet.run(nodes, quiet.make(), plan)
    assert not nodes.written()
    assert not nodes.files("npz")


@pytest.mark.parametrize("name", names())
def test_a_request_of_another_run_is_refused(name: str, case: Make) -> None:
    """Two servers at once: the nodes follow the last that described itself."""
    quiet = case(name)
    nodes, one, intruder = quiet.nodes(), quiet.make(), quiet.make()
    grid, rounds = nodes.grid(), one.rounds

    def interrupted(parties: Any) -> Any:
        intruder._session = "another"
        intruder.gather(grid, secure=True)
        return rounds(parties)

    one.rounds = interrupted
    with pytest.raises(
        FedKernError, match=r"session that this node has not opened|announced no key"
    ):
        one.start(grid, **({} if quiet.way.rounds is None else {"num_rounds": quiet.way.rounds}))
    assert not nodes.written()

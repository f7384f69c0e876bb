"""FedCG when messages are lost, nodes vanish, servers break down: the same model, or none."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message

from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.clients import HybridKernelClient
from fedkern_flwr.clients.fed_cg_state import RunState
from fedkern_flwr.errors import (
    CheckpointError,
    CohortError,
    FedKernError,
    ProtocolError,
    StateError,
)
from fedkern_flwr.hybrid.landmarks import public_seed
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.node.sums import load_state
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import DropOut, Fault, FaultPlan, InProcessGrid
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.simulations.engines.ray import as_client
from fedkern_flwr.strategies import FedCG

HOSPITALS, CENTRES = (0, 1, 2), (3, 4)
LANDMARKS = 12
Table = dict[str, Any]
#: Ways to solve: options, and how many rows a message of distances may hold.
RUNS: dict[str, tuple[Table, int]] = {
    "normal equations": ({}, 1000),
    "normal equations in parts": ({}, 20),
    "function's norm": ({"penalty": "rkhs", "gamma": 2.0}, 20),
    "normal landmarks": ({"sampling": "N"}, 1000),
    "cg": ({"solver": "cg", "preconditioner_rank": 4, "tolerance": 1e-6}, 1000),
    "cg in parts": ({"solver": "cg", "preconditioner_rank": 4, "tolerance": 1e-6}, 20),
    "naive": ({"protocol": "naive"}, 1000),
    "chain": ({"protocol": "chain", "regularization": 10.0, "tolerance": 1e-4}, 1000),
}
#: Phases in which nothing is asked of a centre.
HOSPITALS_ONLY = {"hybrid-moments", "hybrid-equations", "hybrid-product", "hybrid-coefficients"}
SECURE = [name for name in RUNS if "protocol" not in RUNS[name][0]]


def make_tables() -> list[Table]:
    """Three hospitals with some features, two centres that hold the rest."""
    rng = np.random.default_rng(0)
    x, ids = rng.random((72, 6)), np.array([f"patient {k}" for k in range(72)])
    y = (x.sum(axis=1) > 3.0).astype(int)
    tables: list[Table] = []
    for rows in np.array_split(rng.permutation(72), 3):
        fit, test = rows[:-12], rows[-12:]
        table = {"x": x[fit, :2], "y": y[fit], "ids": ids[fit], "classes": (0, 1)}
        table |= {"x_test": x[test, :2], "y_test": y[test], "ids_test": ids[test]}
        tables.append({**table, "landmark_seed": public_seed(0, "clinical")})
    for k, columns in zip(CENTRES, ((2, 3), (4, 5)), strict=True):
        order = rng.permutation(72)
        seed = public_seed(0, f"centre {k}")
        tables.append({"x": x[np.ix_(order, columns)], "ids": ids[order], "landmark_seed": seed})
    return tables


@dataclass
class Network:
    """Five nodes, and what the last run left."""

    folder: Path
    protocol: str = "secure"
    tables: list[Table] = field(default_factory=make_tables)
    state: bool = True
    contexts: dict[int, Context] = field(default_factory=dict)

    def client_fn(self, context: Context) -> HybridKernelClient:
        k = int(context.node_config["partition-id"])
        self.contexts[k] = context
        table: Table = {"alignment_key": bytes(16), "protocol": self.protocol, **self.tables[k]}
        if self.state:
            table["state_dir"] = self.folder / f"node-{k}"
        if "y" in table:
            table["predictions"] = self.folder / f"{k}.csv"
        return HybridKernelClient(context, table.pop("x", None), table.pop("y", None), **table)

    def fit(self, faults: Any = None, timeout: float = 60.0, **options: Any) -> FedCG:
        strategy = FedCG(landmarks=LANDMARKS, protocol=self.protocol, **options)  # type: ignore[arg-type]
        return self.go(strategy, faults=faults, timeout=timeout)

    def go(self, strategy: FedCG, **more: Any) -> FedCG:
        simulate(strategy, self.client_fn, len(self.tables), **more)
        return strategy

    def written(self) -> dict[int, str]:
        return {
            k: path.read_text() for k in HOSPITALS if (path := self.folder / f"{k}.csv").exists()
        }

    def kernels(self) -> list[Path]:
        return list(self.folder.rglob("*.kernel"))


@pytest.fixture(autouse=True)
def _same_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of rows depends on the session's name, and rounding on the order."""
    monkeypatch.setattr("fedkern_flwr.strategy.secrets.token_hex", lambda n: "5e" * n)


@dataclass
class Case:
    """A way to solve, and the run in which nothing happens."""

    make: Callable[[], Network]
    options: Table
    strategy: FedCG
    predictions: dict[int, str]

    def check(self, strategy: FedCG, network: Network) -> None:
        """The same model to the last bit, whatever happened."""
        np.testing.assert_array_equal(strategy.coefficients_, self.strategy.coefficients_)
        assert strategy.coefficients_.any()
        assert network.written() == self.predictions
        assert strategy.metrics_ == self.strategy.metrics_
        assert strategy.history_ == self.strategy.history_


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Case]:
    def make(name: str) -> Case:
        options, rows = RUNS[name]
        options = {"regularization": 0.1, **options}
        size = 8 * LANDMARKS * rows
        monkeypatch.setattr("fedkern_flwr.strategies.fed_cg_secure._MESSAGE", size)
        protocol = options.pop("protocol", "secure")
        folders = iter(range(1000))

        def network() -> Network:
            return Network(tmp_path / str(next(folders)), protocol)

        if name not in _QUIET:
            quiet = network()
            _QUIET[name] = quiet.fit(**options), quiet.written()
        return Case(network, options, *_QUIET[name])

    return make


_QUIET: dict[str, Any] = {}  # runs in which nothing happens: made once


@dataclass
class Once:
    """Something happens to the first message of a phase to a party."""

    partition: int
    phase: str
    what: Fault
    number: int = 1  # which of its messages
    seen: int = 0

    def __call__(self, delivery: Delivery) -> Fault | None:
        if (delivery.partition, delivery.phase) != (self.partition, self.phase):
            return None
        self.seen += 1
        return self.what if self.seen == self.number else None


class PowerCutError(Exception):
    """Ends the server in the middle of an exchange."""


# -- faults that pass


FAULTS = [(name, kind) for name in RUNS for kind in ("vanished", "error")]
FAULTS += [(name, "duplicate") for name in RUNS if "parts" not in name]
FAULTS += [
    (n, k) for n in ("normal equations", "cg in parts") for k in ("lost request", "lost reply")
]


@pytest.mark.parametrize(("name", "kind"), FAULTS)
def test_a_fault_in_any_phase_does_not_change_the_model(
    name: str, kind: Any, case: Callable[[str], Case]
) -> None:
    expected = case(name)
    phases = expected.strategy.ledger_.by_phase
    hit = 0
    for phase in phases:
        if phase == "describe":
            continue
        for partition in (0,) if phase in HOSPITALS_ONLY else (0, 4):
            number = min(2, phases[phase]) if "part" in name else 1
            once = Once(partition, phase, Fault(kind), number)
            network = expected.make()
            strategy = network.fit(once, 0.05 if "lost" in kind else 60.0, **expected.options)
            expected.check(strategy, network)
            if once.seen < number or phase == "finish":
                continue
            hit += 1
            repeated = strategy.ledger_.exchanges - expected.strategy.ledger_.exchanges
            assert repeated == (kind != "duplicate"), (phase, partition)
            assert bool(strategy.ledger_.failures) == (kind != "duplicate")
    assert hit >= 3


@pytest.mark.parametrize("name", RUNS)
def test_nodes_that_vanish_again_and_again_do_not_change_the_model(
    name: str, case: Callable[[str], Case]
) -> None:
    expected = case(name)
    network = expected.make()
    strategy = network.fit(DropOut(0.3, seed=8), attempts=30, **expected.options)
    expected.check(strategy, network)
    assert strategy.ledger_.failures


def scramble(message: Message) -> Message:
    """Change what a reply says of itself."""
    message.content["fitres.metrics"]["round"] = 77  # type: ignore[index]
    return message


def strip(message: Message) -> Message:
    """Take the sections away: the reply comes without its vectors."""
    record = message.content["fitres.metrics"]
    for name in [name for name in record if "sections" in str(name)]:  # type: ignore[attr-defined]
        del record[name]  # type: ignore[arg-type]
    return message


@pytest.mark.parametrize("name", ["normal equations", "cg", "normal landmarks"])
@pytest.mark.parametrize("change", [scramble, strip])
def test_rubbish_instead_of_a_reply_is_asked_for_again(
    name: str, change: Any, case: Callable[[str], Case]
) -> None:
    expected = case(name)
    for phase in expected.strategy.ledger_.by_phase:
        if phase in ("describe", "finish"):
            continue
        network = expected.make()
        once = Once(1, phase, Fault("tamper", change=change))
        strategy = network.fit(once, **expected.options)
        expected.check(strategy, network)
        assert once.seen > 1, phase


@pytest.mark.parametrize(
    "name",
    ["naive", "normal equations", "chain"],
)
def test_a_description_that_is_asked_for_twice_does_no_harm(
    name: str, case: Callable[[str], Case]
) -> None:
    expected = case(name)
    network = expected.make()
    strategy = network.fit(Once(0, "describe", Fault("duplicate")), **expected.options)
    expected.check(strategy, network)


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("lost request", r"allow more time if it reads a large table \(node_timeout\)"),
        ("error", ""),
    ],
)
def test_a_node_that_does_not_describe_itself_ends_the_run(
    kind: Any, remedy: str, case: Callable[[str], Case]
) -> None:
    expected = case("normal equations")
    network, plan = expected.make(), FaultPlan([(3, "describe", None, Fault(kind))])
    with pytest.raises(FedKernError, match=f"node 1003, phase describe: .*{remedy}"):
        network.fit(plan, node_timeout=0.1, **expected.options)
    assert not network.written()


@pytest.mark.parametrize("name", ["normal equations in parts", "cg", "function's norm"])
def test_secrets_of_sums_that_are_over_are_erased(name: str, case: Callable[[str], Case]) -> None:
    """Also of those that failed and were repeated.

    A party keeps the last sum of a cohort, and the one before while its total is on the way.
    """
    expected = case(name)
    network = expected.make()
    left: list[tuple[int, int]] = []

    def note(*_: Any) -> None:
        for context in network.contexts.values():
            state = load_state(context)
            assert state is not None
            left.extend(Counter(cohort for cohort, _ in state.open).items())

    strategy = FedCG(landmarks=LANDMARKS, attempts=30, **expected.options)
    strategy.on_round = note
    network.go(strategy, faults=DropOut(0.3, seed=8))
    expected.check(strategy, network)
    assert sum(strategy.ledger_.failures["0"].values()) >= 1
    assert left
    assert all(count <= (1 if name == "cg" else 2) for _, count in left)


# -- parties that never answer


@pytest.mark.parametrize("name", RUNS)
def test_a_party_that_never_answers_is_named_and_no_smaller_model_is_made(
    name: str, case: Callable[[str], Case]
) -> None:
    expected = case(name)
    for phase in expected.strategy.ledger_.by_phase:
        if phase in ("describe", "finish"):
            continue
        for partition in (1,) if phase in HOSPITALS_ONLY else (1, 3):
            gone = FaultPlan([(partition, phase, None, Fault("error"))])
            network = expected.make()
            strategy = FedCG(
                landmarks=LANDMARKS,
                protocol=network.protocol,  # type: ignore[arg-type]
                attempts=3,
                **expected.options,
            )
            text = (
                rf"phase {phase}: not all parties answered, 3 times in a row: partition {partition}"
                r" raised InjectedError; mend it and start again.*; a model of fewer rows is never"
            )
            with pytest.raises(CohortError, match=text) as caught:
                network.go(strategy, faults=gone)
            assert "\n" not in str(caught.value)
            solved = phase == "hybrid-coefficients"
            assert strategy.coefficients_.any() == solved
            assert not network.written() or solved
            assert "test_accuracy" not in strategy.metrics_
            assert not network.kernels()  # whoever is left has been told


def test_three_parties_are_named_at_most(case: Callable[[str], Case]) -> None:
    expected = case("normal equations")
    gone = FaultPlan([(k, "hybrid-distances", None, Fault("error")) for k in range(4)])
    text = r"partition 0 raised \S+, partition 1 raised \S+, partition 2 raised \S+;"
    with pytest.raises(CohortError, match=text):
        expected.make().fit(gone, **expected.options)


# -- servers that break down


def cut(phase: str, number: int = 1) -> Callable[[Delivery], Fault | None]:
    """Return a plan that ends the server when it sends its n-th round of a phase."""
    rounds: set[int] = set()

    def plan(delivery: Delivery) -> Fault | None:
        if delivery.phase == phase:
            rounds.add(delivery.round)
            if len(rounds) == number:
                raise PowerCutError
        return None

    return plan


CUTS = {
    "normal equations": [("hybrid-coefficients", 1), ("finish", 1)],
    "normal equations in parts": [("hybrid-coefficients", 1), ("finish", 1)],
    "function's norm": [("hybrid-coefficients", 1)],
    "normal landmarks": [("hybrid-coefficients", 1), ("finish", 1)],
    "cg": [("hybrid-product", 3), ("hybrid-product", 6), ("hybrid-coefficients", 1), ("finish", 1)],
    "cg in parts": [("hybrid-product", 4), ("hybrid-coefficients", 1)],
    "naive": [("hybrid-coefficients", 1)],
    "chain": [("hybrid-chain", 13), ("hybrid-coefficients", 1), ("finish", 1)],
}


@pytest.mark.parametrize("files", [True, False])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_broke_off_ends_with_the_same_model(
    name: str, files: bool, case: Callable[[str], Case]
) -> None:
    """The same iterates to the last bit, whether the kernels' files survive or not."""
    expected = case(name)
    for phase, number in CUTS[name]:
        network = expected.make()
        where: Table = {**expected.options, "checkpoint": network.folder / "run.npz"}
        with pytest.raises(PowerCutError):
            network.fit(cut(phase, number), **where)
        for path in network.kernels():
            if not files:
                path.unlink()
        strategy = network.fit(**where, resume=True)
        expected.check(strategy, network)
        assert not network.kernels()
        before = expected.strategy.ledger_.by_phase
        again = strategy.ledger_.by_phase
        for costly in ("hybrid-equations", "hybrid-product"):
            assert again[costly] <= before[costly] + 1, (phase, number)  # nothing is done twice
        assert all(not SessionState.load(c).payload for c in network.contexts.values()) or (
            network.protocol == "naive"
        )


@pytest.mark.parametrize("name", ["normal equations", "cg", "chain"])
def test_before_the_first_checkpoint_a_run_starts_anew(
    name: str, case: Callable[[str], Case]
) -> None:
    expected = case(name)
    phases = [p for p in expected.strategy.ledger_.by_phase if p != "describe"]
    for phase in phases[: phases.index("hybrid-coefficients")]:
        network = expected.make()
        where: Table = {**expected.options, "checkpoint": network.folder / "run.npz"}
        with pytest.raises(PowerCutError):
            network.fit(cut(phase), **where)
        with pytest.raises(
            CheckpointError, match=r"run.npz does not exist; check the path or star"
        ):
            network.fit(**where, resume=True)
        expected.check(network.fit(**where), network)


def test_a_run_that_lacked_a_party_goes_on_when_it_is_back(case: Callable[[str], Case]) -> None:
    """The strategy gave up, the others have erased their kernels: they are made again."""
    for name in ("normal equations", "cg"):
        expected = case(name)
        network = expected.make()
        where: Table = {**expected.options, "checkpoint": network.folder / "run.npz"}
        gone = FaultPlan([(1, "hybrid-coefficients", None, Fault("error"))])
        with pytest.raises(
            CohortError, match=r"mend it and resume from the checkpoint.*; a model of"
        ):
            network.fit(gone, **where)
        expected.check(network.fit(**where, resume=True), network)


@pytest.mark.parametrize("partition", [0, 3])
@pytest.mark.parametrize("name", ["normal equations in parts", "cg", "normal landmarks"])
def test_parties_that_were_ready_at_different_times_are_resumed(
    name: str, partition: int, case: Callable[[str], Case]
) -> None:
    """A hospital or centre answers its request for distances an exchange later than the others."""
    expected = case(name)
    network = expected.make()
    where: Table = {**expected.options, "checkpoint": network.folder / "run.npz"}
    late, end = Once(partition, "hybrid-distances", Fault("error")), cut("hybrid-coefficients")
    with pytest.raises(PowerCutError):
        network.fit(lambda delivery: end(delivery) or late(delivery), **where)
    assert late.seen >= 2
    expected.check(network.fit(**where, resume=True), network)


def test_faults_after_a_break_down_do_no_harm_either(case: Callable[[str], Case]) -> None:
    """Broken off three times, nodes vanishing all the while."""
    expected = case("cg")
    network = expected.make()
    where: Table = {**expected.options, "checkpoint": network.folder / "run.npz", "attempts": 30}

    def cut_after(last: int) -> Any:
        def note(done: int, *_: Any) -> None:
            if done == last:
                raise PowerCutError

        return note

    for last in (1, 2, 4):
        strategy = FedCG(landmarks=LANDMARKS, **where, resume=last > 1)
        strategy.on_round = cut_after(last)
        with pytest.raises(PowerCutError):
            network.go(strategy, faults=DropOut(0.2, seed=last))
    strategy = network.fit(DropOut(0.2, seed=9), **where, resume=True)
    expected.check(strategy, network)


def test_secret_landmarks_survive_a_break_down(tmp_path: Path, case: Callable[[str], Case]) -> None:
    """Two holders and more: nothing is configured, all is in the nodes' folders."""
    case("cg")
    options: Table = {"solver": "cg", "preconditioner_rank": 0, "regularization": 0.1}
    for sampling in ("U", "N"):
        network = Network(tmp_path / f"secret {sampling}")
        for table in network.tables:
            del table["landmark_seed"]
        where: Table = {**options, "sampling": sampling, "checkpoint": network.folder / "run.npz"}
        with pytest.raises(PowerCutError):
            network.fit(cut("hybrid-product", 4), **where)
        drawn = {
            k: RunState.unpack(SessionState.load(c).payload) for k, c in network.contexts.items()
        }
        resumed = network.fit(**where, resume=True)
        again = Network(tmp_path / f"known {sampling}")
        for k, table in enumerate(again.tables):
            table["landmark_seed"] = drawn[k].seed
        known = again.fit(**options, sampling=sampling)
        np.testing.assert_array_equal(resumed.coefficients_, known.coefficients_)
        assert network.written() == again.written()


def test_a_finished_run_can_be_resumed_to_its_result(case: Callable[[str], Case]) -> None:
    expected = case("normal equations")
    network = expected.make()
    where: Table = {**expected.options, "checkpoint": network.folder / "run.npz"}
    network.fit(**where)
    for path in network.folder.glob("*.csv"):
        path.unlink()
    strategy = network.fit(**where, resume=True)
    expected.check(strategy, network)
    assert strategy.ledger_.by_phase["hybrid-equations"] == 1
    assert load_arrays(network.folder / "run.npz")[1]["saved"]["metrics"]["iterations"] == 0


def test_a_checkpoint_fits_one_run_only(case: Callable[[str], Case]) -> None:
    expected = case("cg")
    network = expected.make()
    where: Table = {**expected.options, "checkpoint": network.folder / "run.npz"}
    with pytest.raises(PowerCutError):
        network.fit(cut("hybrid-product", 4), **where)
    for change in ({"regularization": 0.2}, {"sampling": "N"}, {"seed": 1}, {"tolerance": 1e-7}):
        with pytest.raises(
            CheckpointError, match=r"run.npz belongs to a run with other options; re"
        ):
            network.fit(**{**where, **change}, resume=True)
    elsewhere = Network(network.folder / "elsewhere")
    with pytest.raises(
        CheckpointError,
        match=r"partition 0, phase describe: no private state saved for round 1; give the client t",
    ):
        elsewhere.fit(**where, resume=True)
    network.state = False
    with pytest.raises(CheckpointError, match="no private state saved for round 1"):
        network.fit(**where, resume=True)
    network.state = True
    expected.check(network.fit(**where, resume=True), network)


def test_a_checkpoint_of_an_earlier_release_is_refused(case: Callable[[str], Case]) -> None:
    expected = case("cg")
    network = expected.make()
    where: Table = {**expected.options, "checkpoint": network.folder / "run.npz"}
    network.fit(**where)
    arrays, meta = load_arrays(where["checkpoint"])
    flat = {name.removeprefix("s/"): array for name, array in arrays.items()}
    meta |= {"stage": "solved", "first_step": 1, **meta.pop("saved")}
    old = {k: v for k, v in meta.items() if k not in ("log", "version")}
    save_arrays(where["checkpoint"], flat, old)
    with pytest.raises(CheckpointError, match=r"written by another version of fedkern-flwr; "):
        network.fit(**where, resume=True)


def fewer_rows(tables: list[Table]) -> None:
    for column in ("x", "y", "ids"):
        tables[0][column] = tables[0][column][:-1]


def other_patients(tables: list[Table]) -> None:
    old, new = tables[0]["ids"][0], "patient 1000"
    for table in (tables[0], *tables[3:]):
        table["ids"] = [new if i == old else i for i in table["ids"]]


def other_labels(tables: list[Table]) -> None:
    tables[1]["y"] = 1 - tables[1]["y"]


def other_features(tables: list[Table]) -> None:
    tables[4]["x"] = tables[4]["x"] * 0.999


@pytest.mark.parametrize("change", [fewer_rows, other_patients, other_labels, other_features])
@pytest.mark.parametrize("name", ["cg", "normal equations", "naive", "chain"])
def test_a_checkpoint_of_other_rows_is_refused(
    name: str, change: Any, case: Callable[[str], Case]
) -> None:
    """No mixture of two problems, and no model of rows that are not there any more."""
    expected = case(name)
    network = expected.make()
    where: Table = {**expected.options, "checkpoint": network.folder / "run.npz"}
    with pytest.raises(PowerCutError):
        network.fit(cut(*CUTS[name][0]), **where)
    change(network.tables)
    text = "rows of the parties are not those of the run of|table is not the one with which this"
    with pytest.raises(FedKernError, match=f"({text})"):
        network.fit(**where, resume=True)
    network.tables = make_tables()
    expected.check(network.fit(**where, resume=True), network)


# -- kernels that are gone


DAMAGES = [(name, "deleted") for name in SECURE]
DAMAGES += [("cg in parts", "cut off"), ("cg in parts", "folder deleted")]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_kernels_that_are_gone_are_made_again(
    name: str, damage: str, case: Callable[[str], Case]
) -> None:
    """At any exchange after the first distances: never a model of other numbers."""
    expected = case(name)
    first = next(k for k, row in enumerate(phases_of(expected)) if row == "hybrid-distances")
    every = 1 if damage == "deleted" else 3
    for number in range(first + 1, len(phases_of(expected)) - 1, every):
        network = expected.make()
        done: list[int] = []

        def spoil(
            delivery: Delivery,
            network: Network = network,
            number: int = number,
            done: list[int] = done,
        ) -> None:
            if delivery.round == number + 1 and not done:
                for path in network.kernels():
                    done.append(number)
                    if damage == "deleted":
                        path.unlink()
                    elif damage == "cut off":
                        path.write_bytes(path.read_bytes()[: -8 * LANDMARKS])
                    else:
                        shutil.rmtree(path.parent)

        strategy = network.fit(spoil, **expected.options)
        expected.check(strategy, network)


def phases_of(expected: Case) -> list[str]:
    """Return the phases of all steps of the quiet run, from step 1 on."""
    by_phase = expected.strategy.ledger_.by_phase
    return [phase for phase in by_phase for _ in range(by_phase[phase]) if phase != "describe"]


def test_a_hospital_that_lost_its_kernel_says_so(case: Callable[[str], Case]) -> None:
    expected = case("cg")
    network = expected.make()

    def spoil(delivery: Delivery) -> None:
        if delivery.round == 4 and delivery.partition == 1:
            (path,) = (p for p in network.kernels() if p.name == "partition-1.kernel")
            path.unlink()

    strategy = network.fit(spoil, **expected.options)
    expected.check(strategy, network)
    (reason,) = strategy.ledger_.failures["1"]
    assert StateError.__name__ in reason
    assert "the kernel rows of this run are gone from its disk" in reason
    before, after = expected.strategy.ledger_.by_phase, strategy.ledger_.by_phase
    assert after["hybrid-distances"] == before["hybrid-distances"] + 1
    assert after["hybrid-product"] == before["hybrid-product"] + 1


def test_a_kernel_that_goes_again_and_again_is_made_again_and_again(
    case: Callable[[str], Case],
) -> None:
    expected = case("cg")
    network = expected.make()

    def spoil(delivery: Delivery) -> None:
        if delivery.phase == "hybrid-product":
            for path in network.kernels():
                path.unlink()

    strategy = network.fit(spoil, attempts=2, **expected.options)
    expected.check(strategy, network)
    products = strategy.metrics_["iterations"]
    assert strategy.ledger_.by_phase["hybrid-distances"] >= products


# -- messages that the server changes


def flip(name: str) -> Callable[[Message], Message]:
    """Change a bit of the last array of bytes in a reply."""

    def change(message: Message) -> Message:
        record = message.content["fitres.parameters"]
        arrays = [array.numpy() for array in record.values()]  # type: ignore[attr-defined]
        place = max(k for k, array in enumerate(arrays) if array.dtype == np.uint8 and array.size)
        arrays[place] = arrays[place] ^ (np.arange(arrays[place].size) == 5).astype(np.uint8)
        message.content["fitres.parameters"] = ArrayRecord(arrays)
        return message

    return change


def test_what_is_sealed_between_clients_cannot_be_changed_on_the_way(tmp_path: Path) -> None:
    secret = Network(tmp_path / "secret")
    for table in secret.tables:
        del table["landmark_seed"]
    chain = Network(tmp_path / "chain", "chain")
    for network, partition, phase in ((secret, 0, "hybrid-moments"), (chain, 3, "hybrid-chain")):
        plan = FaultPlan([(partition, phase, None, Fault("tamper", change=flip(phase)))])
        with pytest.raises(ProtocolError, match="through the server was changed or misplaced"):
            network.fit(plan, regularization=10.0)
        assert not network.written()


# -- several runs on the same nodes


def test_a_request_of_another_run_is_refused(case: Callable[[str], Case]) -> None:
    """Two servers at once: the nodes follow the last that described itself."""
    from flwr.clientapp import ClientApp

    expected = case("normal equations")
    network = expected.make()
    app = ClientApp(client_fn=lambda context: as_client(network.client_fn(context)))
    grid = InProcessGrid(app, 5)
    one = FedCG(landmarks=LANDMARKS, **expected.options)
    intruder = FedCG(landmarks=LANDMARKS, **expected.options)
    original = one.rounds

    def interrupted(parties: Any) -> Any:
        intruder._session = "another"
        intruder.gather(grid, secure=True)
        return original(parties)

    one.rounds = interrupted  # type: ignore[method-assign]
    with pytest.raises(
        FedKernError, match=r"session that this node has not opened|announced no key"
    ):
        one.start(grid)
    assert not network.written()

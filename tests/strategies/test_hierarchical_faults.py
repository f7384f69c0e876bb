"""HierarchicalSVM when messages are lost, groups are slow or gone, servers break down."""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import At, PowerCutError
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from nodes import Nodes
from sklearn.svm import SVC

from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.clients import SVMClient
from fedkern_flwr.errors import CheckpointError, CohortError, FedKernError
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.node.sums import ClientSums
from fedkern_flwr.overlap import Overlap
from fedkern_flwr.secure_sum import SecureSum
from fedkern_flwr.secure_sum.enclosed import Enclosures
from fedkern_flwr.seeding import uniform
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Fault, Transcript
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.strategies import HierarchicalSVM

KEY = b"a secret of the data's owners"
Table = dict[str, Any]
STALE = "asynchronous"
#: Ways to learn: kind of split, and options.
RUNS: dict[str, tuple[str, Table]] = {
    "pairwise": ("two layers", {}),
    "leave-out": ("two layers", {"lost_groups": "leave-out"}),
    "balanced": ("two layers", {"rho_schedule": "balanced", "model": "logistic"}),
    STALE: ("two layers", {"staleness": 2}),
    "asynchronous, leave-out": ("two layers", {"staleness": 2, "lost_groups": "leave-out"}),
    "one group": ("one group", {}),
    "centralised": ("one layer", {"architecture": "centralised"}),
    "vertical": ("columns", {"partition": "vertical"}),
}
USERS, GROUPS = 8, 4
LONG = pytest.mark.long
pytestmark = pytest.mark.timeout(60)  # a loop that waits for nobody must not block the others


def blobs(n: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    return rng.standard_normal((n, 4)) + 0.6 * y[:, None] + np.arange(4), y


def make_tables(split: str) -> list[Table]:
    """Deal rows to users of four groups of two; or two groups of columns, two users each."""
    (x, y), common = blobs(), {"classes": [-1.0, 1.0]}
    if split == "columns":
        ids, order = np.array([f"person {k}" for k in range(80)]), np.random.default_rng(1)
        tables: list[Table] = []
        own = {"alignment_key": KEY}
        for i in range(2):
            parts, columns = np.array_split(order.permutation(70), 2), slice(2 * i, 2 * i + 2)
            for j, rows in enumerate(parts):
                held = np.arange(70 + j, 80, 2)
                table = {"x": x[rows, columns], "ids": ids[rows], "group": i, **own}
                table |= {"x_test": x[held, columns], "ids_test": ids[held]}
                tables.append(table)
        tables += [{"role": "agent", "group": i} for i in range(2)]
        owner = {"role": "owner", "y": y[:70], "ids": ids[:70], "alignment_key": KEY, **common}
        return [*tables, {**owner, "y_test": y[70:], "ids_test": ids[70:]}]
    groups = {"two layers": GROUPS, "one group": 1, "one layer": 1}[split]
    tables = []
    for k, rows in enumerate(np.array_split(np.arange(72), USERS)):
        table = {"x": x[rows], "y": y[rows], "group": k * groups // USERS, **common}
        tables.append({**table, "x_test": x[72 + k : 73 + k], "y_test": y[72 + k : 73 + k]})
    agents = [{"role": "agent", "group": i} for i in range(groups)]
    return tables + agents * (split != "one layer")


@dataclass
class Network:
    """The nodes of a run, and what is left of it."""

    folder: Path
    tables: list[Table]
    options: Table
    state: bool = True

    @property
    def checkpoint(self) -> Path:
        return self.folder / "run.npz"

    @property
    def keep(self) -> Table:
        """Options of a run with a checkpoint."""
        return {"checkpoint": self.checkpoint, "checkpoint_every": 2}

    def client_fn(self, context: Context) -> SVMClient:
        k = int(context.node_config["partition-id"])
        table = dict(self.tables[k])
        if self.state:
            table["state_dir"] = self.folder / f"node-{k}"
        if table.get("role") == "owner":
            table["predictions"] = self.folder / "predictions.csv"
        return SVMClient(context, **table)

    def fit(
        self,
        faults: Any = None,
        rounds: int = 4,
        timeout: float = 60.0,
        transcript: Transcript | None = None,
        stop_at: int = 0,
        **options: Any,
    ) -> HierarchicalSVM:
        self.folder.mkdir(exist_ok=True, parents=True)
        common: Table = {"seed": 3, "tolerance": 1e-12}
        self.last = strategy = HierarchicalSVM(**{**common, **self.options, **options})

        def on_round(done: int, rounds: int, row: Any) -> None:
            if done == stop_at:
                raise PowerCutError

        strategy.on_round = on_round if stop_at else None
        simulate(
            strategy,
            self.client_fn,
            len(self.tables),
            faults=faults,
            num_rounds=rounds,
            timeout=timeout,
            transcript=transcript,
        )
        return strategy

    def predictions(self) -> list[float]:
        path = self.folder / "predictions.csv"
        if not path.is_file():
            return []
        rows = list(csv.reader(path.open()))[1:]
        return [float(value) for row in sorted(rows) for value in row[1:]]


Open = Callable[[str], Network]  # what a fixture gives


def hits(partition: int, phase: str, what: Fault, nth: int = 1, *, always: bool = False) -> At:
    """Return what happens to a node the n-th time, or each time from the n-th on, in a phase."""
    return At(partition=partition, phase=phase, what=what, number=nth, always=always)


def gone(partition: int, since: int) -> Callable[[Delivery], Fault | None]:
    """A node that vanishes with its so-manieth request after describe, and never comes back."""
    seen = 0

    def plan(delivery: Delivery) -> Fault | None:
        nonlocal seen
        if delivery.partition != partition or delivery.phase == "describe":
            return None
        seen += 1
        return Fault("error") if seen >= since else None

    return plan


@pytest.fixture(autouse=True)
def _same_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkern_flwr.strategy.secrets.token_hex", lambda n: "5e" * n)


@pytest.fixture
def network(tmp_path: Path) -> Open:
    folders = iter(range(10_000))

    def make(name: str) -> Network:
        split, options = RUNS[name]
        return Network(tmp_path / str(next(folders)), make_tables(split), options)

    return make


_QUIET: dict[tuple[str, int], tuple[HierarchicalSVM, list[float]]] = {}


@pytest.fixture
def check(network: Open) -> Callable[..., None]:
    """Return a function that compares with the run in which nothing happens."""

    def compare(name: str, found: Network, rounds: int = 4) -> None:
        if (name, rounds) not in _QUIET:
            quiet = network(name)
            strategy = quiet.fit(rounds=rounds)
            _QUIET[name, rounds] = strategy, quiet.predictions()
        right, predictions = _QUIET[name, rounds]
        rtol, coefficients = 1e-12, found.last.coefficients_
        np.testing.assert_allclose(coefficients, right.coefficients_, rtol=rtol, atol=1e-12)
        assert right.coefficients_.size or predictions
        np.testing.assert_allclose(found.predictions(), predictions, rtol=100 * rtol)
        assert found.last.metrics_ == pytest.approx(right.metrics_, rel=rtol)
        mine, theirs = ([r.get("objective", -1.0) for r in s.history_] for s in (found.last, right))
        assert mine == pytest.approx(theirs, rel=rtol)

    return compare


# -- faults that pass


#: Phases of a run, and the nodes to which something happens in them: a user 1, agents, the owner.
PHASES: dict[str, dict[str, tuple[int, ...]]] = {
    "pairwise": {
        "svm-statistics": (1,),
        "svm-step": (1,),
        "svm-combine": (9,),
        "svm-save": (1, 9),
        "svm-evaluate": (1,),
    },
    "leave-out": {"svm-step": (1,), "svm-combine": (9,), "svm-evaluate": (1,)},
    "centralised": {"svm-local": (1,), "svm-save": (1,), "svm-statistics": (1,)},
    "one group": {"svm-step": (1,), "svm-combine": (8,)},
    "vertical": {
        "svm-columns": (1,),
        "svm-pad": (4, 6),
        "svm-visit": (1,),
        "svm-block": (4,),
        "svm-owner": (6,),
        "svm-save": (1, 4, 6),
    },
}


def damage_phase(message: Message) -> Message:
    """Make a reply one of another phase."""
    for record in message.content.config_records.values():
        if "phase" in record:
            record["phase"] = "svm-other"
    return message


def damage_sections(message: Message) -> Message:
    """Cut the last array of a reply, of its sections where it has any."""
    for name, record in message.content.array_records.items():
        keys = [key for key in record if key != "_empty"]
        if keys:
            last = record[keys[-1]]
            record[keys[-1]] = FlowerArray(last.dtype, last.shape, last.stype, last.data[:-1])
            message.content[name] = ArrayRecord(dict(record))
    return message


FAULTS = (
    Fault("error"),
    Fault("delay", seconds=3600.0),  # the node has worked, the server hears nothing
    Fault("tamper", change=damage_sections),
    Fault("duplicate"),
    Fault("vanished"),
    Fault("lost request"),
    Fault("tamper", change=damage_phase),
    Fault("tamper", change=lambda message: strip(message)),
)
#: Phases that come once in a run.
ENDS = ("svm-statistics", "svm-columns", "svm-save", "svm-evaluate")
#: Every kind in every phase of the two splits; half of that, and the other ways, by
#: ``make test-long``, but for a kind in each phase.
TURNS = [
    pytest.param(
        name, turn, marks=() if turn < (4 if name in ("pairwise", "vertical") else 1) else LONG
    )
    for name in PHASES
    for turn in range(len(FAULTS))
]


def strip(message: Message) -> Message:
    for name in list(message.content.config_records):
        message.content[name] = ConfigRecord({})
    return message


@pytest.mark.parametrize(("name", "turn"), TURNS)
def test_what_happens_once_does_not_change_the_model(
    name: str, turn: int, network: Open, check: Callable[..., None]
) -> None:
    """To one node in every phase, another kind in each, the first time or the second."""
    found, plans = network(name), list[At]()
    for phase, partitions in PHASES[name].items():
        for partition in partitions:
            kind = FAULTS[(len(plans) + turn) % len(FAULTS)]
            nth = 1 if phase in ENDS else 1 + (len(plans) + turn // 4) % 2
            plans.append(hits(partition, phase, kind, nth))
    keep = found.keep if "svm-save" in PHASES[name] else {}
    found.fit(lambda d: next(filter(None, (at(d) for at in plans)), None), timeout=0.1, **keep)
    assert all(at.times >= at.number for at in plans)
    check(name, found)


@pytest.mark.parametrize("name", ["pairwise", "leave-out", "centralised", "vertical"])
def test_faults_at_everybody_in_turn(name: str, network: Open, check: Callable[..., None]) -> None:
    found, seen = network(name), Counter[tuple[int, str, int]]()

    def plan(delivery: Delivery) -> Fault | None:
        where = (delivery.partition, delivery.phase, delivery.round)
        seen[where] += 1
        turn = (delivery.partition + delivery.round) % 3 == 0 and seen[where] == 1
        idle = delivery.phase in ("describe", "finish")
        kinds = (Fault("error"), Fault("vanished"), Fault("duplicate"))
        return kinds[delivery.partition % 3] if turn and not idle else None

    found.fit(plan)
    check(name, found)
    assert sum(seen.values()) > 60


#: What passes sealed from node to node: a damaged one is noticed by whoever opens it.
SEALED = {
    "svm-combine": ("pairwise", 9),
    "svm-block": ("vertical", 4),
    "svm-owner": ("vertical", 6),
}


def flip(message: Message) -> Message:
    """Change a bit of what is sealed."""
    for record in message.content.config_records.values():
        for name, value in record.items():
            sealed = not name.startswith("_") and not name.endswith(".commitments")
            if isinstance(value, bytes) and len(value) > 40 and sealed:
                record[name] = value[:30] + bytes([value[30] ^ 1]) + value[31:]
    for name, record in message.content.array_records.items():
        for key, array in record.items():
            if key == "0" and len(array.data) > 200:
                data = array.data[:170] + bytes([array.data[170] ^ 1]) + array.data[171:]
                record[key] = FlowerArray(array.dtype, array.shape, array.stype, data)
        message.content[name] = ArrayRecord(dict(record))
    return message


@pytest.mark.parametrize("phase", SEALED)
def test_what_is_sealed_cannot_be_changed_unnoticed(phase: str, network: Open) -> None:
    name, partition = SEALED[phase]
    at = hits(partition, phase, Fault("tamper", change=flip), nth=2)
    with pytest.raises(FedKernError) as caught:
        network(name).fit(at)
    assert "what another party sent through the server was changed" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert at.times >= at.number


@pytest.mark.parametrize("story", ["now", "before", "at first"])
@pytest.mark.parametrize("forged", [False, True])
def test_a_group_that_is_told_different_things_has_no_sum(
    forged: bool, story: str, network: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it makes one user do, now or before, a server never reads: masks do not cancel."""
    make, ask = HierarchicalSVM._user_requests, HierarchicalSVM.question
    carry, names = SecureSum.sections, dict[str, str]()

    def deceive(self: Any, one: Any, *, opening: bool) -> Any:
        found = make(self, one, opening=opening)
        told = one.name
        if story == "before" and opening:  # all the same, whatever the sum was
            far = np.full_like(next(iter(found.values())).sigma, 1e30)
            found = {user: replace(request, sigma=far) for user, request in found.items()}
        if opening == (story == "now") and 3 in found and story != "at first":
            name = found[3].sum_name(told)
            found[3] = replace(found[3], relaxation=1.0)
            names[name] = found[3].sum_name(told)
        return found

    def begin(self: Any, requests: Any, *args: Any, **more: Any) -> Any:
        if story == "at first" and isinstance(requests.get(3), wire.StatisticsRequest):
            lie = replace(requests[3], c=1e5)
            names[requests[3].sum_name("")] = lie.sum_name("")
            requests = {**requests, 3: lie}
        return ask(self, requests, *args, **more)

    def forge(self: Any, partition: int, sums: Any) -> Any:
        own = names if partition == 3 and (forged or story == "before") else {}
        return [
            replace(s, name=own[s.name]) if getattr(s, "name", "") in own else s
            for s in carry(self, partition, sums)
        ]

    monkeypatch.setattr(HierarchicalSVM, "_user_requests", deceive)
    monkeypatch.setattr(HierarchicalSVM, "question", begin)
    monkeypatch.setattr(SecureSum, "sections", forge)
    if story == "before" and not forged:  # it takes what cannot be opened, and goes on
        monkeypatch.setattr(Enclosures, "at_odds", lambda *_: [])
        order, send = HierarchicalSVM._agent_requests, Overlap.send
        monkeypatch.setattr(
            HierarchicalSVM,
            "_agent_requests",
            lambda self: {p: replace(r, advance=False) for p, r in order(self).items()},
        )
        monkeypatch.setattr(
            Overlap, "send", lambda *args, number: send(*args[:4], {}, number=number)
        )
    text = r"its masks.* do not fit" if forged else r"no sum '(group|column statistics)#\w+' was"
    with pytest.raises(FedKernError, match=f"partition 3.*{text}"):
        network("pairwise").fit()
    assert names


def test_pads_of_two_sums_are_not_mixed(network: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two sums of an iteration the first user gets the pad of the one that was not completed."""
    take, sealed = Overlap.arrived, list[bytes]()

    def mix(self: Any, number: int) -> Any:
        found, agent = take(self, number), USERS  # that of the first group
        if agent in found.replies:
            reply = found.replies[agent]
            sealed.append(reply.sealed)
            half = len(reply.sealed) // 2
            if len(sealed) == 2:
                found.replies[agent] = replace(reply, sealed=sealed[0][:half] + reply.sealed[half:])
        return found

    monkeypatch.setattr(Overlap, "arrived", mix)
    text = "what another party sent through the server was changed or misplaced"
    with pytest.raises(FedKernError, match=text):
        network("pairwise").fit(hits(1, "svm-step", Fault("error")))
    assert len(sealed) >= 2


# -- groups that are lost for good


def check_optimum(
    strategy: HierarchicalSVM, network: Network, lost: Sequence[int] = (), rel: float = 5e-3
) -> None:
    """The optimum of the rows of all groups but the lost ones, in the coordinates of all.

    With the C that was chosen, where C was.
    """
    users = [t for t in network.tables if "y" in t]
    there = np.concatenate([np.full(len(t["y"]), t["group"] not in lost) for t in users])
    x, y = (np.concatenate([t[name] for t in users]) for name in ("x", "y"))
    z = (x - x.mean(0)) / x.std(0)

    def objective(w: np.ndarray, b: float) -> float:
        losses = np.maximum(0.0, 1.0 - y * (z @ w + b))[there]
        return float(0.5 * w @ w + strategy.C_ * losses.sum())

    best = SVC(kernel="linear", C=strategy.C_, tol=1e-9).fit(z[there], y[there])
    right = objective(best.coef_[0], best.intercept_[0])
    model = strategy.coefficients_[0]
    assert objective(model[:-1], model[-1]) == pytest.approx(right, rel=rel)
    assert strategy.metrics_["objective"] == pytest.approx(right, rel=rel)
    assert strategy.metrics_.get("groups_left_out", 0) == len(lost)
    if lost:  # a control
        everybody = SVC(kernel="linear", C=strategy.C_, tol=1e-9).fit(z, y)
        assert objective(everybody.coef_[0], everybody.intercept_[0]) > right * 1.01


def test_an_iteration_takes_an_exchange_more_once_a_group_is_lost(network: Open) -> None:
    """The agents' sums have self masks then; before, the same run needs none."""
    whole, found = network("leave-out").fit(rounds=8), network("leave-out")
    assert "unmask" not in whole.ledger_.by_phase
    strategy = found.fit(hits(2, "svm-step", Fault("error"), 5, always=True), 8)
    attempts, totals = strategy.attempts, strategy.ledger_.by_phase["unmask"]
    assert totals == 1 + 8 - 3  # all but those of three iterations, and one for the last losses
    more = strategy.ledger_.exchanges - whole.ledger_.exchanges
    assert more == totals + attempts - 1 + 1  # the group is asked again, the last model judged anew


def test_no_more_than_half_of_the_agents_may_be_lost(network: Open) -> None:
    def plan(delivery: Delivery) -> Fault | None:
        late = delivery.phase == "svm-step" and delivery.round >= 3
        return Fault("error") if late and delivery.partition in (2, 4) else None

    with pytest.raises(CohortError, match=r"group [12] cannot go on"):
        network("leave-out").fit(plan)


def test_users_lost_in_the_end_never_make_the_objective_wrong(tmp_path: Path) -> None:
    """Sums over survivors are not taken for those over all that are left."""
    rows, y = blobs(66)
    sizes = [2, 3, 3, 4]
    tables: list[Table] = [
        {"x": rows[p], "y": y[p], "classes": [-1.0, 1.0], "group": int(g)}
        for p, g in zip(np.array_split(np.arange(66), 12), np.repeat(range(4), sizes), strict=True)
    ]
    tables += [{"role": "agent", "group": i} for i in range(4)]
    found = Network(tmp_path, tables, {"lost_groups": "leave-out"})

    def plan(delivery: Delivery) -> Fault | None:
        early = delivery.phase == "svm-step" and delivery.round >= 4 and delivery.partition == 0
        late = delivery.phase == "svm-evaluate" and delivery.partition == 11
        return Fault("error") if early or late else None

    strategy = found.fit(plan, 80, tolerance=2e-3)
    assert strategy.metrics_["groups_left_out"] == 1
    if "objective" in strategy.metrics_:
        check_optimum(strategy, found, [0])


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("pairwise", 2),
        ("pairwise", 9),
        ("asynchronous", 2),
        ("asynchronous", 9),
        ("one group", 8),
        ("centralised", 3),
        ("vertical", 1),
        ("vertical", 4),
        ("vertical", 6),
    ],
)
def test_a_run_that_lost_a_node_stops_and_goes_on_later(
    name: str, partition: int, network: Open, check: Callable[..., None]
) -> None:
    found = network(name)
    since = 11 if name == "vertical" else 6
    with pytest.raises(CohortError, match="; mend it and resume from the checkpoint") as caught:
        found.fit(gone(partition, since), rounds=6, **found.keep)
    assert "\n" not in str(caught.value)
    assert f"partition {partition}" in str(caught.value)
    found.fit(rounds=6, resume=True, **found.keep)
    check(name, found, 6)


def test_without_a_checkpoint_the_remedy_is_to_start_again(network: Open) -> None:
    with pytest.raises(CohortError, match="mend it and start again, or go on without the group"):
        network("pairwise").fit(gone(2, 4))


# -- servers that break down


@pytest.mark.parametrize(
    ("name", "stops"), [*product(RUNS, [(3,), (5,)]), ("pairwise", (3, 5))], ids=str
)
def test_a_run_goes_on_from_its_checkpoint(
    name: str, stops: tuple[int, ...], network: Open, check: Callable[..., None]
) -> None:
    """Also after it has broken off twice."""
    found = network(name)
    keep = {"checkpoint": found.checkpoint, "checkpoint_every": 3 - len(stops)}
    for stop_at in stops:
        with pytest.raises(PowerCutError):
            found.fit(rounds=6, stop_at=stop_at, resume=stop_at > stops[0], **keep)
    found.fit(rounds=6, resume=True, **keep)
    check(name, found, 6)
    rounds = [row["round"] for row in found.last.history_]
    assert rounds == sorted(set(rounds))


def test_more_rounds_after_a_finished_run(network: Open, check: Callable[..., None]) -> None:
    """The last checkpoint is there; its nodes have erased their secrets, not their state."""
    found = network("pairwise")
    found.fit(rounds=5, **found.keep)
    found.fit(rounds=6, resume=True, **found.keep)
    check("pairwise", found, 6)


def test_a_run_that_is_resumed_after_its_last_exchange_is_judged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any) -> Any:
        raise PowerCutError

    once = {"policy": NodePolicy.of_simulations(max_evaluations=1)}
    nodes = Nodes(SVMClient, make_tables("two layers"), tmp_path, once)
    grid, keep = nodes.grid(), {"checkpoint": tmp_path / "run.npz", "checkpoint_every": 2}
    first = HierarchicalSVM(seed=3, tolerance=1e-12, **keep)
    monkeypatch.setattr(first, "outcomes", cut)
    with pytest.raises(PowerCutError):
        first.start(grid, num_rounds=5)
    again = HierarchicalSVM(seed=3, tolerance=1e-12, resume=True, **keep)
    again.start(grid, num_rounds=5)
    quiet = HierarchicalSVM(seed=3, tolerance=1e-12)
    quiet.start(replace(nodes, folder=tmp_path / "quiet").grid(), num_rounds=5)
    assert again.metrics_["test_accuracy"] == quiet.metrics_["test_accuracy"] > 0.5


@pytest.mark.parametrize("old", [{"tick": 3}, {"tick": 3, "groups": {"0": 2}, "lost": {}}])
def test_a_checkpoint_of_the_loops_before_is_refused(
    old: dict[str, Any], network: Callable[[str], Network]
) -> None:
    found = network("pairwise")
    keep = {"checkpoint": found.checkpoint, "checkpoint_every": 2}
    found.fit(rounds=5, **keep)
    arrays, meta = load_arrays(found.checkpoint)
    saved = {k: v for k, v in meta["saved"].items() if k not in ("groups", "lost")}
    save_arrays(found.checkpoint, arrays, {**meta, "saved": {**saved, **old}})
    with pytest.raises(CheckpointError, match="earlier version of fedkern-flwr; resume with that"):
        found.fit(rounds=6, resume=True, **keep)


@pytest.mark.parametrize("name", ["leave-out", "asynchronous, leave-out"])
def test_a_run_that_left_a_group_out_can_be_resumed(name: str, network: Open) -> None:
    found, at = network(name), hits(2, "svm-step", Fault("error"), 3, always=True)
    keep = {**found.keep, "tolerance": 2e-3}
    with pytest.raises(PowerCutError):
        found.fit(at, rounds=60, stop_at=7, **keep)
    strategy = found.fit(at, rounds=60, resume=True, **keep)
    check_optimum(strategy, found, [1])


def test_what_does_not_belong_to_the_run_is_refused(network: Open) -> None:
    found = network("pairwise")
    keep = {**found.keep, "rounds": 6}
    with pytest.raises(PowerCutError):
        found.fit(stop_at=5, **keep)
    with pytest.raises(CheckpointError, match="belongs to a run with other options"):
        found.fit(resume=True, C=2.0, **keep)
    right = found.tables[1]
    found.tables[1] = {**right, "x": right["x"] + 1.0}
    with pytest.raises(FedKernError, match="its table is not the one with which this run began"):
        found.fit(resume=True, **keep)
    found.tables[1] = {**right, "x": right["x"][:-1], "y": right["y"][:-1]}
    with pytest.raises(FedKernError):
        found.fit(resume=True, **keep)
    found.tables[1] = right
    found.state = False
    with pytest.raises(CheckpointError, match="no private state saved for round"):
        found.fit(resume=True, **keep)


def test_a_checkpoint_that_not_all_could_keep_is_not_written(
    network: Open, check: Callable[..., None]
) -> None:
    for name, partition in (("pairwise", 9), ("centralised", 3), ("vertical", 4)):
        found = network(name)
        at = hits(partition, "svm-save", Fault("error"), 1, always=True)
        found.fit(at, **found.keep)
        assert at.times
        assert not found.checkpoint.exists()
        check(name, found)


# -- groups that do not wait


def delays(seed: int, mean: float = 0.004) -> Callable[[Delivery], Fault | None]:
    """Exponential delays of groups, another draw for each group and iteration."""

    def plan(delivery: Delivery) -> Fault | None:
        if delivery.phase != "svm-step":
            return None
        draw = uniform(seed, "delay", delivery.partition // 2, delivery.round)
        return Fault("delay", seconds=-mean * np.log(draw))

    return plan


def advances(transcript: Transcript) -> list[dict[int, bool]]:
    """Return which agents advanced, exchange by exchange."""
    ticks: dict[int, dict[int, bool]] = {}
    for entry in transcript.entries(phase="svm-combine", direction="down"):
        ticks.setdefault(int(entry.scalars["round"]), {})[entry.node] = entry.scalars["advance"]
    assert all(len(found) == GROUPS for found in ticks.values())
    return [ticks[k] for k in sorted(ticks)]


@pytest.mark.parametrize("staleness", [0, 1, 3, 16])
@pytest.mark.parametrize("name", ["pairwise", "leave-out"])
def test_no_group_is_further_ahead_than_it_may(
    name: str, staleness: int, network: Open, check: Callable[..., None]
) -> None:
    """Without staleness delays change nothing."""
    transcript, found = Transcript(), network(name)

    def plan(delivery: Delivery) -> Fault | None:
        slow = delivery.phase == "svm-step" and delivery.partition < 2
        return Fault("delay", seconds=0.02) if slow else delays(2, 0.002)(delivery)

    strategy = found.fit(plan, 8, transcript=transcript, staleness=staleness)
    if not staleness:
        check(name, found, 8)
    done: Counter[int] = Counter()
    most = 0
    for tick in advances(transcript):
        assert sum(tick.values()) != 1  # two totals would show one group
        done.update({node: int(advance) for node, advance in tick.items()})
        apart = max(done.values()) - min(done.values())
        assert apart <= staleness
        most = max(most, apart)
    assert min(done.values()) == 8 + (not staleness)  # the losses of the last one are asked for
    assert most >= min(staleness, 1)
    assert [row["round"] for row in strategy.history_] == list(range(1, 9))


def test_a_total_has_two_new_terms_at_least(network: Open) -> None:
    """Whose users come one after the other: two totals would show the step of one group."""
    transcript = Transcript()

    def plan(delivery: Delivery) -> Fault | None:
        users = delivery.phase == "svm-step"
        return Fault("delay", seconds=0.03 * (delivery.partition // 2)) if users else None

    network("pairwise").fit(plan, 5, transcript=transcript, staleness=3)
    fresh = [sum(tick.values()) for tick in advances(transcript)]
    assert 1 not in fresh
    assert set(fresh) & {2, 3}  # they do not wait for each other


def test_users_are_not_asked_beyond_the_bound(network: Open) -> None:
    asked: list[tuple[int, int]] = []

    def plan(delivery: Delivery) -> Fault | None:
        if delivery.phase == "svm-step":
            asked.append((delivery.partition // 2, delivery.round))
            return Fault("delay", seconds=0.02 if delivery.partition < 2 else 0.0)
        return None

    network("pairwise").fit(plan, 6, staleness=2)
    ahead = 0
    for k, (_, number) in enumerate(asked):
        started = {g: max([r for h, r in asked[: k + 1] if h == g], default=1) for g in range(4)}
        ahead = max(ahead, number - min(started.values()))
    assert 0 < ahead <= 3  # one more than the bound: it waits with what it has done


@pytest.mark.parametrize("staleness", [pytest.param(1, marks=pytest.mark.long), 4])
@pytest.mark.parametrize("name", ["pairwise", "leave-out"])
def test_stale_groups_reach_the_same_optimum(name: str, staleness: int, network: Open) -> None:
    found = network(name)
    strategy = found.fit(delays(1, 0.002), 50, staleness=staleness, tolerance=1e-3)
    check_optimum(strategy, found, rel=2e-3)
    assert max(row["round"] for row in strategy.history_) <= 50


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        (STALE, (Fault("error"), Fault("duplicate"))),
        ("asynchronous, leave-out", (Fault("error"), Fault("duplicate"))),
        (STALE, (Fault("delay", seconds=3600.0),)),
    ],
)
def test_faults_of_groups_that_do_not_wait(
    name: str, faults: Sequence[Fault], network: Open
) -> None:
    """Users and agents fail now and then; the optimum is the same, and nobody is lost."""
    found = network(name)
    seen: Counter[tuple[int, str]] = Counter()

    def plan(delivery: Delivery) -> Fault | None:
        k = delivery.partition
        seen[k, delivery.phase] += 1
        now = seen[k, delivery.phase] == 3 + 4 * (k % 8)
        slow = delays(3, 0.002)(delivery)
        struck = now and delivery.phase in ("svm-step", "svm-combine", "unmask")
        return faults[k % len(faults)] if struck else slow

    late = faults[0].kind == "delay"
    strategy = found.fit(plan, 50, timeout=0.3 if late else 60.0, tolerance=2e-3)
    check_optimum(strategy, found)


def test_an_agent_has_one_message_at_a_time(network: Open) -> None:
    """It is slow to answer for its group again; the others could go on, and wait for it."""
    waiting = {"until": 0.0}

    def plan(delivery: Delivery) -> Fault | None:
        if (delivery.phase, delivery.round, delivery.attempt) == ("svm-step", 2, 0):
            if delivery.partition > 1:  # ready once the group of 0 and 1 has been asked again
                return Fault("delay", seconds=0.1)
            return Fault("error") if delivery.partition else None
        if (delivery.partition, delivery.phase) != (8, "svm-combine"):
            return None
        assert time.monotonic() >= waiting["until"], "it has not answered what it was asked before"
        if delivery.attempt:
            waiting["until"] = time.monotonic() + 0.5
            return Fault("delay", seconds=0.5)
        return None

    network("asynchronous").fit(plan, 5)
    assert waiting["until"] > 0.0


def test_replies_that_came_while_the_server_waited_for_agents_are_not_late(network: Open) -> None:
    """The exchange with the agents uses up all the time; the users have answered meanwhile."""
    found = network("asynchronous")

    def plan(delivery: Delivery) -> Fault | None:
        if delivery.phase == "svm-step":
            slow = delivery.partition in (6, 7)
            return Fault("delay", seconds=0.1) if slow else None
        lost = delivery.phase == "svm-combine" and delivery.partition == 9
        return Fault("lost request") if lost and next(count) % 4 == 2 else None

    count = iter(range(10_000))
    strategy = found.fit(plan, 4, timeout=3.0)
    blamed = [k for k, failures in strategy.ledger_.failures.items() if failures]
    assert {int(k) for k in blamed} == {9}


def test_the_time_of_the_users_work_is_in_the_ledger(network: Open) -> None:
    def plan(delivery: Delivery) -> Fault | None:
        return Fault("delay", seconds=0.1) if delivery.phase == "svm-step" else None

    strategy = network("pairwise").fit(plan, 4)
    assert strategy.ledger_.seconds > 0.4


# -- servers that ask for what they should not have


class _Curious(HierarchicalSVM):
    """Orders the agents' total once more in each exchange, under its other name, over fewer."""

    masks: bool

    def cohorts(self) -> list[list[int]] | None:
        found = super().cohorts()
        assert found is not None
        return [*found[:-1], found[-1][:-1], found[-1]]

    def _order(self, name: str, statistics: int, cohort: int, **more: Any) -> Any:
        if name == wire.AGENTS_SUM and self._run.tick > 3:
            name, more = wire.LEFT_SUM, {"self_masks": self.masks}
        elif name == wire.AGENTS_SUM:
            cohort += 1
        return super()._order(name, statistics, cohort, **more)


@pytest.mark.parametrize(("lost_groups", "masks"), [("stop", False), ("leave-out", True)])
def test_agents_add_to_totals_of_the_same_agents_only(
    lost_groups: str, masks: bool, network: Callable[[str], Network]
) -> None:
    found = network("pairwise")
    strategy = _Curious(seed=3, tolerance=1e-12, lost_groups=lost_groups)
    strategy.masks = masks
    with pytest.raises(FedKernError, match=r"the masks of a sum|the settings of the run"):
        simulate(strategy, found.client_fn, len(found.tables), num_rounds=6)
    assert len(strategy.trace_) == 3


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("leave-out", ("svm-combine", 9)),
        ("asynchronous, leave-out", ("svm-combine", 9)),
        ("asynchronous, leave-out", ("svm-step", 2)),
    ],
)
def test_no_term_is_in_a_total_of_all_agents_and_in_one_of_those_left(
    name: str,
    fault: tuple[str, int],
    network: Callable[[str], Network],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lost reply may arrive late: then the total of all is open, and no self mask hides it."""
    totals: dict[str, set[bytes]] = {wire.AGENTS_SUM: set(), wire.LEFT_SUM: set()}
    contribute = ClientSums.contribute

    def kept(sums: ClientSums, order: str, values: Any, **more: Any) -> None:
        if order in totals:
            totals[order].add(np.asarray(values).tobytes())
        contribute(sums, order, values, **more)

    monkeypatch.setattr(ClientSums, "contribute", kept)
    found, (phase, partition) = network(name), fault
    lost = hits(partition, phase, Fault("lost reply"), 5, always=True)

    def plan(delivery: Delivery) -> Fault | None:
        return lost(delivery) or delays(1, 0.002)(delivery)

    strategy = found.fit(plan, 60, timeout=0.3, tolerance=2e-3)
    check_optimum(strategy, found, [1])
    assert len(totals[wire.LEFT_SUM]) > 6
    assert not totals[wire.AGENTS_SUM] & totals[wire.LEFT_SUM]


class _Hasty(HierarchicalSVM):
    """Asks the agents that are left for the terms that all of them were asked for."""

    def _pass_over(self) -> Any:
        self._run.attempt = 0
        self._ask((), total=True)
        yield from ()


def test_an_agent_adds_a_term_to_one_kind_of_total(network: Callable[[str], Network]) -> None:
    found = network("leave-out")
    strategy = _Hasty(seed=3, tolerance=1e-12, lost_groups="leave-out")
    lost = hits(9, "svm-combine", Fault("lost reply"), 4, always=True)
    with pytest.raises(FedKernError, match="a term in a total of all agents"):
        simulate(
            strategy, found.client_fn, len(found.tables), faults=lost, num_rounds=6, timeout=0.3
        )


def test_a_model_made_without_agents_predicts_where_nodes_name_groups(tmp_path: Path) -> None:
    users = make_tables("two layers")[:USERS]
    first = Nodes(SVMClient, users, tmp_path)
    strategy = HierarchicalSVM(seed=3, C=1.0, architecture="centralised")
    strategy.start(first.grid(), num_rounds=3)
    files = [{**own, "predictions": tmp_path / f"{k}.csv"} for k, own in enumerate(users)]
    arrays, meta = strategy.model()
    again = HierarchicalSVM.of_model(meta)
    again.predict_at_nodes(Nodes(SVMClient, files, tmp_path / "later").grid(), arrays, meta)
    assert all((tmp_path / f"{k}.csv").is_file() for k in range(USERS))


class _Twofold(HierarchicalSVM):
    """Opens the total of one exchange twice: over all agents, then over those who answer again."""

    def _order(self, name: str, statistics: int, cohort: int, **more: Any) -> Any:
        if name == wire.AGENTS_SUM:
            name, more = wire.LEFT_SUM, {"self_masks": True}
        return super()._order(name, statistics, cohort, **more)

    def _read_total(self) -> Any:
        again = self._run.tick == 4 and self._run.attempt == 1
        if again and len(self._run.agents & self._run.answered) == GROUPS - 1:
            raise AssertionError(f"opened twice: {self._open()}")
        yield from super()._read_total()

    def _take_total(self, total: Any) -> Any:
        if self._run.tick == 4 and self._run.attempt == 0:
            self._run.attempt = 1
            self._ask((), total=True)
        else:
            yield from super()._take_total(total)


def test_agents_open_a_total_over_one_set_of_agents(network: Callable[[str], Network]) -> None:
    found = network("leave-out")
    strategy = _Twofold(seed=3, tolerance=1e-12, lost_groups="leave-out")
    lost = hits(11, "svm-combine", Fault("lost reply"), 5)
    with pytest.raises(FedKernError, match=r"3 of 3 survivors .* before it could be unmasked"):
        simulate(
            strategy, found.client_fn, len(found.tables), faults=lost, num_rounds=6, timeout=3.0
        )
    assert len(strategy.trace_) == 3

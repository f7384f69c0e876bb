"""Contract: messages are lost, nodes vanish, servers break down: the same result, or none.

Of all ways of ``tests/zoo.py`` but those whose noise is another each time. ``make test`` tries
everything on the ways in ``MAIN`` and a part of it on the others, ``make test-long`` the rest."""

from __future__ import annotations

import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import PASSING, PowerCutError, cut, flip
from flwr.app import RecordDict
from refusals import raises, refused, refuses
from zoo import MAIN, WAYS, Found, Sites, Table, Way, chosen

from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.clients import OnlineKernelClient, StreamClient
from fedkern_flwr.errors import FedKernError, RefusedError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.simulations import DropOut, Fault, FaultPlan

SECOND = (
    "pof-mkl",
    "pof-mkl, secure",
    "pof-rls",
    "vm-kofl",
    "vm-kofl, streams",
    "per-fed-avg",
    "fed-cg, missing blocks",
    "fed-cg, rows, cg",
    "fdskl, streaming",
    "secure-gram",
    "secure-gram, in rounds",
    "hierarchical-svm, asynchronous",
    "hierarchical-svm, leave out",
    "secure-aggregation",
)
ENDS = ("describe", "finish", "break")
#: Phases in which sums over those who are left are opened.
OPENING = ("unmask", "recover")
EXACT = [name for name, way in WAYS.items() if not way.private]
#: Whoever misses an exchange of these is not in its sum or mean, and is not asked again.
GOES_ON = [
    name
    for name in EXACT
    if WAYS[name].client in (OnlineKernelClient, StreamClient)
    or name in ("secure-gram", "secure-gram, fixed point", "fed-cfk", "kernel-pca", "summary")
    or name.startswith("secure-aggregation")
]
ASKS_AGAIN = [name for name in EXACT if name not in GOES_ON]
PLAIN_ROUNDS = [
    name
    for name in GOES_ON
    if WAYS[name].client is OnlineKernelClient and not WAYS[name].secure and name != "local-only"
]
RESUMES = [
    name for name in EXACT if WAYS[name].method not in ("align", "ranges", "secure-aggregation")
]
AGAIN_AND_RESUMES = [name for name in ASKS_AGAIN if name in RESUMES]
#: Ways whose nodes keep what they have made in files, while a run lasts.
KEEPS = [name for name in EXACT if WAYS[name].method in ("fed-cg", "fdskl")]
#: What is not asked for again where a run is resumed.
SPENT = {
    "hybrid-equations",
    "hybrid-own-equations",
    "hybrid-product",
    "vertical-train",
    "gram-counts",
    "gram-matrix",
}
#: Options of another run, whose checkpoint is not that of this one.
FITTING: dict[str, Table] = {
    "fed-cg": {"regularization": 0.2}, "fdskl": {"gamma": 0.4},
    "fed-cfk, whole": {"min_support": 4}, "hierarchical-svm": {"C": 2.0},
    "hierarchical-svm, vertical": {"C": 2.0}, "pof-mkl": {"kernels": 6}, "pof-rls": {"features": 5},
    "kernel-pca": {"features": 5}, "summary": {"bound": 2.0**20},
}  # fmt: skip


def other_features(tables: list[Table]) -> None:
    """Change the features of a party a little."""
    tables[-1 - (len(tables[-1].get("x", ())) == 0)]["x"] *= 0.999


def without_a_row(tables: list[Table]) -> None:
    """Take the last row of a party away."""
    for name in {"x", "y", "ids", "x_test", "y_test", "ids_test"} & set(tables[0]):
        tables[0][name] = tables[0][name][:-1]


#: Other tables than those of the run, and why they are refused.
TABLES = {
    "fed-cg": [(other_features, "FK-CHECKPOINT-PARTIES"), (without_a_row, "FK-CHECKPOINT-PARTIES")],
    "fdskl": [(other_features, "FK-CHECKPOINT-PARTIES"), (without_a_row, "FK-CHECKPOINT-PARTIES")],
    "hierarchical-svm": [(without_a_row, "FK-CHECKPOINT-PARTIES")],
    "fed-cfk": [(without_a_row, "FK-CHECKPOINT-PARTIES")],
}
#: What parties seal for each other: the way, in which phase, and who sends it.
SEALED = [
    ("align", "align-hop", 0), ("hierarchical-svm", "svm-combine", 4),
    ("hierarchical-svm, vertical", "svm-block", 4), ("hierarchical-svm, vertical", "svm-owner", 6),
]  # fmt: skip
#: What a node says that remembers nothing of the run.
ANEW = ("FK-SUM-KEY-NONE", "FK-MESSAGE-SESSION")
#: What nodes may keep when a run is over: their models, and what they remember for ever.
STAYS = {".state", ".model", ".answered", ".released", ".opened"}


def some(names: Iterable[str], count: int = 1) -> list[Any]:
    """Return (name, number): by make test one of each main or second way, another each time."""
    return [
        pytest.param(
            name,
            k,
            marks=() if k == place % count and name in (*MAIN, *SECOND) else pytest.mark.long,
        )
        for place, name in enumerate(names)
        for k in range(count)
    ]


def ways(names: Iterable[str]) -> list[Any]:
    """Return names; all but the main ones and the second are left to make test-long."""
    return chosen(names, (*MAIN, *SECOND))


@dataclass
class Case:
    """A way whose nodes have folders, and the run in which nothing happened."""

    way: Way
    folder: Path
    outcome: Table = field(default_factory=dict)
    asked: list[Any] = field(default_factory=list)
    exchanges: int = 0
    by_phase: Counter[str] = field(default_factory=Counter)
    number: int = 0

    def sites(self, folder: Path | None = None) -> Sites:
        """Return fresh nodes, in a folder that was used before or in a new one.

        They tell figures of one model, whatever happens.
        """
        self.number += 1
        found = folder or self.folder / str(self.number)
        found.mkdir(parents=True, exist_ok=True)
        return self.way.sites(found, policy=NodePolicy.of_simulations(max_evaluations=1))

    def keeping(self, sites: Sites, **more: Any) -> Table:
        """Return options of a run with a checkpoint."""
        every = {"checkpoint_every": 1 + (not self.way.secure)} if self.way.rounds else {}
        return {"checkpoint": sites.folder / "run.npz", **every, **more}

    def fit(self, sites: Sites, faults: Any = None, timeout: float = 0.05, **more: Any) -> Found:
        return sites.fit(faults=faults, start={"timeout": timeout}, **more)

    def check(self, found: Found) -> None:
        """The same result; nothing left that belonged to the run, nothing others may read."""
        assert_same(outcome(found), self.outcome)
        files = [path for path in found.sites.folder.glob("state-*/**/*") if path.is_file()]
        assert {path.suffix for path in files} <= STAYS
        assert not any(path.stat().st_mode & 0o077 for path in [*files, *made(found.sites)])
        assert no_secrets(found.sites)

    def sizes(self) -> dict[str, int]:
        """Return the least number of parties that are asked at a time, by phase."""
        found = Counter((d.phase, d.round, d.attempt) for d in self.asked)
        return {d.phase: min(n for e, n in found.items() if e[0] == d.phase) for d in self.asked}

    def parties(self, phase: str) -> list[int]:
        """Return who is asked in a phase."""
        return sorted({d.partition for d in self.asked if d.phase == phase})

    @property
    def phases(self) -> list[str]:
        """The phases between the ends of a run."""
        return [p for p in dict.fromkeys(d.phase for d in self.asked) if p not in ENDS]


def outcome(found: Found) -> Table:
    """Return what must be the same, and the files that nodes wrote."""
    told = {**found.outcome(), "objects": found.way.method == "align" and str(found.oracle())}
    for path in sorted(found.sites.folder.glob("*/*.json")):
        told[path.parent.name + path.name] = path.read_text()
    if hasattr(found.strategy, "model"):
        told["meta"] = found.strategy.model()[1]  # what was chosen, besides arrays
        told["held_out"] = found.strategy.result().get("held_out")
    told["history"] = [
        {name: value for name, value in row.items() if name not in ("seconds", "bytes_up")}
        for row in told.get("history", ())
    ]
    return told


def assert_same(found: Table, expected: Table) -> None:
    """The same to the last bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        else:
            assert found[name] == value, name


def no_secrets(sites: Sites) -> bool:
    """Return whether nodes have forgotten what they knew of secure sums."""
    return all("fedkern-sums" not in context.state for context in sites.contexts.values())


def private(sites: Sites) -> list[Path]:
    """Return what nodes keep in files while a run lasts."""
    found = sorted(path for path in sites.folder.glob("state-*/**/*") if path.is_file())
    return [path for path in found if path.suffix in (".kernel", ".phases")]


def delete_folder(path: Path) -> None:
    """Delete the folder of the run, unless it holds what shall outlast the run."""
    if any(path.parent.glob("*.state")):
        path.unlink()
    elif path.parent.exists():
        shutil.rmtree(path.parent)


DAMAGES: tuple[Callable[[Path], Any], ...] = (
    Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-8]), delete_folder,
)  # fmt: skip


def made(sites: Sites) -> list[Path]:
    """Return the files that nodes wrote for their owners."""
    return [path for path in sites.folder.glob("[0-9]*/*") if path.is_file()]


_QUIET: dict[str, Case] = {}  # made once


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Case]:
    """Return a function that makes cases; all runs have the same name, and so the same order."""
    monkeypatch.setattr(secrets, "token_hex", lambda n: "5e" * n)

    def make(name: str) -> Case:
        way = WAYS[name]
        if way.rounds and way.secure:  # some are enough
            way = way.few(12 if way.client is StreamClient else 5)
        if way.method == "hierarchical-svm":
            way = replace(way, rounds=3, options={**way.options, "tolerance": 1e-12})
        if name not in _QUIET:
            quiet, plan = Case(way, tmp_path), Seen()
            found = quiet.fit(quiet.sites(), plan)
            quiet.outcome, quiet.asked = outcome(found), plan.asked
            if ledger := getattr(found.strategy, "ledger_", None):
                quiet.exchanges, quiet.by_phase = ledger.exchanges, ledger.by_phase
            _QUIET[name] = quiet
        return replace(_QUIET[name], folder=tmp_path, number=1)

    return make


Make = Callable[[str], Case]


# -- what happens


@dataclass
class Seen:
    """Notes the requests of a run; does something when the n-th is on its way."""

    at: int = -1
    do: Callable[[], Any] = lambda: None
    asked: list[Any] = field(default_factory=list)

    def __call__(self, delivery: Any) -> Fault | None:
        if len(self.asked) == self.at:
            self.do()
        self.asked.append(delivery)
        return None


@dataclass
class Vanishing:
    """Each request is lost with the same chance, also when it is the same again."""

    seed: int
    left: Iterator[float] = field(init=False)

    def __post_init__(self) -> None:
        self.left = iter(np.random.default_rng(self.seed).random(100_000).tolist())

    def __call__(self, delivery: Any) -> Fault | None:
        lost = delivery.phase not in ENDS and next(self.left) < 0.25
        return Fault("vanished") if lost else None


@dataclass
class Strikes:
    """In every other exchange of a phase something happens to one party; what follows comes twice.

    Each time it is another kind and another party, so that over all turns each kind is in each
    exchange. What is asked again passes.
    """

    sizes: Mapping[str, int]
    turn: int
    phases: dict[str, dict[Any, int]] = field(default_factory=dict)
    struck: list[tuple[int, str, str]] = field(default_factory=list)

    def __call__(self, delivery: Any) -> Fault | None:
        if delivery.phase not in self.sizes or delivery.phase in ENDS:
            return Fault("duplicate") if delivery.phase in ENDS else None
        seen = self.phases.setdefault(delivery.phase, {})
        this = (delivery.round, delivery.attempt)
        place = seen[this] = seen.get(this, -1) + 1
        number = list(seen).index(this)
        if number % 2 or delivery.attempt:  # an exchange may have two phases
            return Fault("duplicate")
        turn = number // 2 + self.turn
        if place != turn % self.sizes[delivery.phase]:
            return None
        fault = PASSING[turn % len(PASSING)]
        self.struck.append((delivery.partition, delivery.phase, fault.kind))
        return fault


@pytest.mark.promise("faults-change-nothing")
@pytest.mark.parametrize(("name", "turn"), some(ASKS_AGAIN, len(PASSING)))
def test_what_happens_in_every_exchange_changes_nothing(name: str, turn: int, case: Make) -> None:
    quiet = case(name)
    plan = Strikes(quiet.sizes(), turn)
    found = quiet.fit(quiet.sites(), plan)
    quiet.check(found)
    assert {phase for _, phase, _ in plan.struck} == set(quiet.phases)
    struck = {str(k) for k, _, kind in plan.struck if kind not in ("duplicate", "tamper")}
    blamed = {str(k) for k, reasons in found.strategy.ledger_.failures.items() if reasons}
    assert struck <= blamed
    assert found.strategy.ledger_.exchanges <= 2 * quiet.exchanges + 2 * len(quiet.phases)


@pytest.mark.parametrize("name", ways(GOES_ON))
def test_what_comes_twice_changes_nothing(name: str, case: Make) -> None:
    quiet = case(name)
    quiet.check(quiet.fit(quiet.sites(), lambda delivery: Fault("duplicate")))


@pytest.mark.parametrize(("name", "turn"), some(GOES_ON, len(PASSING)))
def test_rounds_go_on_without_those_that_miss_them(name: str, turn: int, case: Make) -> None:
    quiet = case(name)
    plan = Strikes(quiet.sizes(), turn)
    found = quiet.fit(quiet.sites(), plan)
    struck = {str(k) for k, phase, kind in plan.struck if kind not in ("duplicate", "tamper")}
    opened = {str(k) for k, phase, _ in plan.struck if phase in OPENING}
    failures = getattr(found.strategy, "ledger_", None)
    blamed = {str(k) for k, reasons in failures.failures.items() if reasons} if failures else struck
    assert struck - opened <= blamed
    assert no_secrets(found.sites)


# -- parties that never answer


@pytest.mark.promise("faults-party-named")
@pytest.mark.parametrize("name", ways(ASKS_AGAIN))
def test_a_party_that_never_answers_is_named_and_nothing_is_made(name: str, case: Make) -> None:
    quiet = case(name)
    for number, phase in enumerate(quiet.phases):  # the last of them, then the first
        partition = quiet.parties(phase)[number % 2 - 1]
        sites, gone = quiet.sites(), FaultPlan([(partition, phase, None, Fault("error"))])
        if name.endswith("leave out") and phase in ("svm-step", "svm-combine"):
            found = quiet.fit(sites, gone, attempts=2)  # its group alone is left out
            assert found.strategy.metrics_["groups_left_out"] == 1
            continue
        caught = refuses("FK-PARTIES-LOST", quiet.fit, sites, gone, attempts=2)
        assert f"partition {partition} raised InjectedError" in str(caught)
        assert phase == quiet.phases[-1] or not made(sites)  # others had it already
        assert no_secrets(sites)  # whoever is left has been told


NAMELESS = {"lost request": "FK-NODE-SLOW", "error": "FK-NODE-FAILED"}
NAMELESS["vanished"] = "FK-NODE-UNREACHABLE"


@pytest.mark.parametrize("number", range(len(MAIN)), ids=MAIN)
def test_a_node_without_its_name_ends_the_run(number: int, case: Make) -> None:
    quiet, kinds = case(MAIN[number]), list[Any](NAMELESS)
    kind = kinds[number % len(kinds)]
    sites, gone = quiet.sites(), FaultPlan([(1, "describe", None, Fault(kind))])
    caught = refuses(NAMELESS[kind], quiet.fit, sites, gone, node_timeout=0.05, attempts=2)
    assert caught.party == "node 1001"
    assert not made(sites)


@pytest.mark.parametrize("name", ["fed-cg", "pof-mkl", "hierarchical-svm"])
def test_the_server_has_the_code_of_what_a_node_says(name: str, case: Make) -> None:
    """Of whoever has it first, in one line, and of how many it is."""
    quiet = case(name)
    sites = quiet.sites()
    for table in sites.tables[1:3]:
        table["x"] = np.where(np.arange(table["x"].shape[1]) < 1, np.inf, table["x"])
    with refused("FK-VALUES-FINITE", kind=RefusedError) as caught:
        quiet.fit(sites)
    assert caught.value.party == "partition 1"
    assert "2 nodes in all" in str(caught.value)
    assert str(caught.value).count("FK-") == 1


# -- nodes that start anew, files that are gone


def attempt(quiet: Case, sites: Sites, plan: Any) -> tuple[Any, FedKernError | None]:
    """Return what a run came to, or the error with which it ended."""
    try:
        return quiet.fit(sites, plan), None
    except FedKernError as error:
        return None, error


def places(quiet: Case, count: int) -> list[int]:
    """Return the numbers of requests that begin exchanges, about so many."""
    first = {(d.phase, d.round, d.attempt): k for k, d in reversed([*enumerate(quiet.asked)])}
    found = sorted(k for (phase, *_), k in first.items() if phase not in ENDS)
    return found[:: max(1, len(found) // count)]


@pytest.mark.promise("faults-code-of-a-node")
@pytest.mark.parametrize("name", ways(EXACT))
def test_a_node_that_starts_anew_is_named(name: str, case: Make) -> None:
    """Its folder alone does not let it go on in the middle of a run."""
    quiet = case(name)
    for number, place in enumerate(places(quiet, 2)):
        sites = quiet.sites()
        party = quiet.parties(quiet.asked[place].phase)[-(number % 2)]

        def forget(sites: Sites = sites, party: int = party) -> None:
            sites.contexts[party].state = RecordDict()

        last = place == places(quiet, len(quiet.asked))[-1] or name in ("kernel-pca", "summary")
        found, error = attempt(quiet, sites, Seen(place, forget))
        if error is not None:
            assert error.code in ANEW
            assert f"partition {party}" in str(error)
            assert last or not made(sites)  # others had it already
        elif name in GOES_ON or "leave out" in name:
            failures = getattr(found.strategy, "ledger_", found.strategy).failures
            assert any(code in str(failures[str(party)]) for code in ANEW)
        else:  # it was not asked any more
            quiet.check(found)


@pytest.mark.promise("faults-made-again")
@pytest.mark.parametrize(("name", "number"), some(KEEPS, len(DAMAGES)))
def test_what_a_node_has_lost_is_made_again(name: str, number: int, case: Make) -> None:
    """Between any two exchanges, at all nodes or at one: never a result of other numbers."""
    quiet, noticed = case(name), 0
    for k, place in enumerate(places(quiet, 3)):
        sites = quiet.sites()

        def spoil(sites: Sites = sites, k: int = k) -> None:
            files = private(sites)
            for path in files[-1:] if k % 2 else files:
                DAMAGES[(k + number) % len(DAMAGES)](path)

        found = quiet.fit(sites, Seen(place, spoil))
        quiet.check(found)
        noticed += "FK-STATE-GONE" in str(found.strategy.ledger_.failures)
    assert noticed or len(quiet.phases) < 3 or name not in MAIN


@pytest.mark.parametrize("name", ways(KEEPS))
def test_what_goes_in_every_exchange_ends_the_run_or_does_no_harm(name: str, case: Make) -> None:
    quiet = case(name)
    sites = quiet.sites()

    def spoil(delivery: Any) -> None:
        for path in private(sites) if delivery.phase not in ENDS else ():
            path.unlink()

    found, error = attempt(quiet, sites, spoil)
    if error is None:
        quiet.check(found)
    else:
        assert error.code in ("FK-STATE-GONE", "FK-PARTIES-LOST")
        assert "\n" not in str(error)
        assert not made(sites)


@pytest.mark.parametrize("name", ["align", "ranges", "ranges, encoders"])
def test_a_table_that_changes_within_a_run_ends_it(name: str, case: Make) -> None:
    quiet = case(name)
    for phase in quiet.phases[1:]:
        sites, who = quiet.sites(), quiet.parties(phase)[0]

        def change(delivery: Any, sites: Sites = sites, at: Any = (phase, who)) -> None:
            if (delivery.phase, delivery.partition) == at:
                other = {n: v[1:] for n, v in sites.tables[at[1]].items() if n in ("ids", "x")}
                sites.tables[at[1]] |= other

        refuses("FK-CHECKPOINT-PARTIES", quiet.fit, sites, change)
        assert not [path for path in made(sites) if path.parent.name == str(who)]


# -- servers that break down


def cuts(quiet: Case) -> list[int]:
    """Return after which requests the server breaks down.

    Of online methods with secure sums before anybody has answered: rounds that some have answered
    are lost, as two sums of the same values would show a client.
    """
    if quiet.way.secure and quiet.way.client in (OnlineKernelClient, StreamClient):
        first = next(d.phase for d in quiet.asked if d.phase not in ENDS)
        return [k for k in places(quiet, 99) if quiet.asked[k].phase == first][1::3]
    n = len(quiet.asked)
    return sorted({n // 3, 2 * n // 3, n - 3, n - 1})


@pytest.mark.parametrize(("name", "number"), some(RESUMES, 2))
def test_a_run_that_broke_off_ends_with_the_same_result(name: str, number: int, case: Make) -> None:
    """Whether the files of nodes survive or not; before the first checkpoint it starts anew."""
    quiet, resumed = case(name), 0
    for k, place in enumerate(cuts(quiet)[number::2][-1 - (name in MAIN) :]):
        sites = quiet.sites()
        raises(PowerCutError, quiet.fit, sites, Seen(place, cut), **quiet.keeping(sites))
        for path in private(sites) if (k + number) % 2 and name in KEEPS else ():
            path.unlink()
        sites = quiet.sites(sites.folder)
        known = (sites.folder / "run.npz").exists()
        if not known:
            refuses("FK-FILE-READ", quiet.fit, sites, **quiet.keeping(sites, resume=True))
        found = quiet.fit(sites, **quiet.keeping(sites, resume=known))
        quiet.check(found)
        if known and name in ASKS_AGAIN:
            phases = found.strategy.ledger_.by_phase
            assert all(phases[p] <= quiet.by_phase[p] + 1 for p in SPENT)
        resumed += known
    assert resumed or name == "local-only"


@pytest.mark.promise("resume-same-result")
@pytest.mark.parametrize("name", ways(PLAIN_ROUNDS))
def test_rounds_that_some_missed_are_so_after_a_break_down(name: str, case: Make) -> None:
    """A node that missed the round of the checkpoint has its state of that round all the same."""
    quiet, drop = case(name), DropOut(0.2, seed=3)
    sites = quiet.sites()
    whole = quiet.fit(sites, drop, **quiet.keeping(sites))
    sites = quiet.sites()
    for life, place in enumerate((len(quiet.asked) // 2, len(quiet.asked) // 3)):
        end = Seen(place, cut)
        resume = quiet.keeping(sites, resume=life > 0)
        with pytest.raises(PowerCutError):
            quiet.fit(sites, lambda d, end=end: end(d) or drop(d), **resume)
        sites = quiet.sites(sites.folder)
    found = quiet.fit(sites, drop, **quiet.keeping(sites, resume=True))
    assert_same(outcome(found), outcome(whole))
    assert found.strategy.ledger_.failures == whole.strategy.ledger_.failures != {}


@pytest.mark.parametrize("name", chosen(AGAIN_AND_RESUMES, MAIN))
def test_faults_after_a_break_down_do_no_harm_either(name: str, case: Make) -> None:
    """Broken off twice, nodes vanishing all the while; then resumed to its result."""
    quiet, sites = case(name), None
    for life in range(3):
        sites = quiet.sites(sites and sites.folder)
        known = (sites.folder / "run.npz").exists()
        drop, end = (Vanishing(life), Seen((len(quiet.asked) - 3, len(sites) + 1, -1)[life], cut))
        given = quiet.keeping(sites, resume=known, attempts=40)
        plan = lambda d, drop=drop, end=end: end(d) or drop(d)  # noqa: E731
        if life == 2:
            quiet.check(quiet.fit(sites, plan, **given))
            return
        raises(PowerCutError, quiet.fit, sites, plan, **given)


@pytest.mark.parametrize("name", chosen(AGAIN_AND_RESUMES, MAIN))
def test_a_run_that_lacked_a_party_goes_on_when_it_is_back(name: str, case: Make) -> None:
    """The strategy gave up, the others have erased their files: all is made again."""
    quiet = case(name)
    phase = quiet.phases[-1]
    sites, gone = quiet.sites(), FaultPlan([(quiet.parties(phase)[0], phase, None, Fault("error"))])
    caught = refuses("FK-PARTIES-LOST", quiet.fit, sites, gone, **quiet.keeping(sites))
    again, known = quiet.sites(sites.folder), (sites.folder / "run.npz").exists()
    assert ("resume from the checkpoint" in caught.remedy) == known
    quiet.check(quiet.fit(again, **quiet.keeping(again, resume=known)))


@pytest.mark.promise("resume-own-checkpoint")
@pytest.mark.parametrize("name", FITTING)
def test_a_checkpoint_fits_one_run_only(name: str, case: Make) -> None:
    """No mixture of two problems, and no result of rows that are not there any more."""
    quiet = case(name)
    sites = quiet.sites()
    with pytest.raises(PowerCutError):
        quiet.fit(sites, Seen(len(quiet.asked) - 3, cut), **quiet.keeping(sites))
    file, whole = sites.folder / "run.npz", (sites.folder / "run.npz").read_bytes()

    def refuses(*codes: str, sites: Sites = sites, **more: Any) -> None:
        with refused(*codes) as caught:
            quiet.fit(sites, **quiet.keeping(sites, checkpoint=file, resume=True, **more))
        assert "\n" not in str(caught.value)

    refuses("FK-CHECKPOINT-OTHER", **FITTING[name])
    refuses("FK-STATE-GONE", sites=quiet.sites())
    for change, code in TABLES.get(quiet.way.method, ()):
        other = quiet.sites(sites.folder)
        change(other.tables)
        refuses(code, sites=other)
    arrays, meta = load_arrays(file)
    save_arrays(file, arrays, {name: value for name, value in meta.items() if name != "version"})
    refuses("FK-CHECKPOINT-VERSION")
    for damaged in (
        b"", b"not a checkpoint", whole[: len(whole) // 2], whole[:300] + b"?" + whole[301:],
    ):  # fmt: skip
        file.write_bytes(damaged)
        refuses("FK-CHECKPOINT-DAMAGED")
    file.write_bytes(whole)
    quiet.check(quiet.fit(quiet.sites(sites.folder), **quiet.keeping(sites, resume=True)))


# -- what passes through the server


@pytest.mark.parametrize(("name", "phase", "partition"), SEALED)
def test_nothing_sealed_can_be_changed(name: str, phase: str, partition: int, case: Make) -> None:
    quiet = case(name)
    sites, plan = quiet.sites(), FaultPlan([(partition, phase, None, Fault("tamper", change=flip))])
    refuses("FK-SUM-CHANGED", quiet.fit, sites, plan)
    assert not made(sites)

"""Contract: nodes lose their memory between any two messages, and the run ends with its result.

The nodes are none of a simulation: their state of the run is on their disk. What they would have
said without a restart they say with one, and nothing twice with other masks.
"""

from __future__ import annotations

import functools
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from refusals import refused
from zoo import MAIN, WAYS, Found, Sites, Way, chosen, new_folder

from fedkern_flwr.errors import FedKernError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.simulations import Fault, InProcessGrid

#: Ways that ``make test`` tries; the others are left to ``make test-long``.
TRIED = (*MAIN, "secure-gram, in rounds", "pof-mkl", "pof-rls, secure", "vm-kofl, streams")
#: One of each of their clients, whose nodes are killed.
KILLED = (
    "fed-cg", "fed-cg, rows", "fdskl", "hierarchical-svm, vertical", "kernel-pca", "align",
    "ranges", *TRIED[-4:],
)  # fmt: skip
EXACT = [n for n, w in WAYS.items() if not w.private and n != "secure-aggregation"]
#: What is solved in steps differs in the last bits from run to run, whatever happens.
STEPS = ("fed-cg, cg", "fed-cg, rows, cg")
#: Record of a context with the keys of the run.
SECRETS = b"fedkern-sums"

#: What a node says of a copy of a request: done already, used already, over already.
REFUSED = ("FK-MESSAGE-ORDER", "FK-SUM-NUMBER", "FK-MESSAGE-SESSION")


def short(name: str) -> Way:
    """Return a way with few rounds."""
    way = WAYS[name]
    if way.method == "hierarchical-svm":
        return replace(way, rounds=4, options={**way.options, "tolerance": 1e-12})
    return replace(way, rounds=3) if way.rounds in (12, 30) else way


def nodes(way: Way, folder: Path) -> Sites:
    """Return nodes of a deployment whose owners let so few rows pass."""
    policy = NodePolicy(
        counting="warn", allow_small_sums=True, min_own_rows=0, require_secure_sums=False
    )
    return way.sites(folder, guarded=True, policy=policy)


def model(found: Found) -> dict[str, Any]:
    """Return the arrays that a run has made."""
    return {k: v for k, v in found.outcome().items() if isinstance(v, np.ndarray)}


@functools.cache
def quiet(name: str) -> dict[str, Any]:
    """Return the model of a way whose nodes lose nothing."""
    return model(nodes(short(name), new_folder()).fit())


def assert_same(name: str, found: Found) -> None:
    """The same model, to the last bit where it is made in one step."""
    got, wanted = model(found), quiet(name)
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(got[key], value, rtol=0, atol=1e-9 * (name in STEPS))


def files(folder: Path, suffix: str) -> list[Path]:
    return sorted(folder.glob(f"state-*/*/partition-*{suffix}"))


@dataclass
class Restarts:
    """Every node is restarted before each message that it gets."""

    sites: Sites
    drops: int = 0

    def __call__(self, delivery: Any) -> Fault | None:
        context = self.sites.contexts.get(delivery.partition)
        if context is not None:
            context.state = RecordDict()
            self.drops += 1
        for file in files(self.sites.folder, ".context"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        return None


@pytest.mark.promise("restart-goes-on", "restart-erased")
@pytest.mark.parametrize("name", chosen(EXACT, TRIED))
def test_nodes_that_lose_their_memory_make_the_same_model(name: str, tmp_path: Path) -> None:
    way = short(name)
    sites = nodes(way, tmp_path)
    plan = Restarts(sites)
    found = sites.fit(faults=plan)
    assert plan.drops >= len(sites)
    assert_same(name, found)
    if way.secure:  # of the others no node is told that the run is over
        assert not files(tmp_path, ".context")
    for file in files(tmp_path, ".last"):
        assert SECRETS not in file.read_bytes()


def test_nodes_of_an_app_of_ones_own_go_on_as_well(tmp_path: Path) -> None:
    way, results = WAYS["secure-aggregation"], []
    for forgets in (False, True):
        sites = nodes(way, tmp_path / str(forgets))
        sites.more["state_dir"] = sites.folder / "state-of-all"
        app = sites.app

        def answer(message: Any, context: Any, app: Any = app, forgets: bool = forgets) -> Any:
            if forgets:
                context.state = RecordDict()
            return app(message, context)

        grid = InProcessGrid(answer, len(sites), node_config={"simulation": False})
        results.append(way.make().start(grid, num_rounds=3, **way.start()))
    np.testing.assert_array_equal(*(next(iter(r.arrays.values())).numpy() for r in results))
    assert not files(tmp_path, ".context")


def test_a_node_without_a_folder_says_what_it_needs(tmp_path: Path) -> None:
    sites = nodes(WAYS["kernel-pca"], tmp_path)
    sites.more["state_dir"] = None
    sites.more["policy"] = NodePolicy(allow_small_sums=True, min_own_rows=0)
    with refused("FK-SUM-KEY-NONE", "FK-PARTIES-LOST") as caught:
        sites.fit(faults=Restarts(sites), attempts=1)
    assert "state-dir" in str(caught.value)


def test_the_name_of_a_session_shows_nobody_where_a_node_keeps_its_state(tmp_path: Path) -> None:
    """The server gives the name, and no folder can have one so long: the error would quote it."""
    (tmp_path / "state-0").mkdir()
    about = {"partition-id": 0, "num-partitions": 4}
    context = Context(run_id=1, node_id=1, node_config=about, state=RecordDict(), run_config={})
    client = nodes(WAYS["kernel-pca"], tmp_path).client_fn(context)
    with refused("FK-CLIENT-RAISED") as caught:
        client.fit([], {"session": "a" * 300, "phase": "describe"})
    assert str(tmp_path) not in str(caught.value)


def check_killed(name: str, folder: Path, answer: Callable[..., Any]) -> None:
    """Run a way whose nodes are killed in each message; the model must be the same.

    ``answer`` is given the node's folder, what answers, and what answers again after a restart.
    """
    way = short(name)

    class Killed(way.client):  # type: ignore[misc, name-defined]
        """A node that answers each message twice."""

        def fit(self, parameters: Any, config: Any) -> Any:
            asked = [a.copy() for a in parameters], dict(config)

            def again() -> Any:
                self.context.state = RecordDict()
                return way.client(self.context, **sites.arguments(self.partition)).fit(*asked)

            own, first = sites.folder / f"state-{self.partition}", super().fit
            return answer(own, lambda: first(parameters, config), again)

    Killed.__name__ = way.client.__name__  # it names a freeze
    sites = nodes(replace(way, client=Killed), folder)
    assert_same(name, sites.fit())


@pytest.mark.parametrize("name", chosen(EXACT, KILLED))
def test_a_request_that_comes_twice_is_not_answered_twice(name: str, tmp_path: Path) -> None:
    """The node is killed when its state is written and its reply has not left: a copy comes."""
    answered = []

    def twice(own: Path, answer: Any, again: Any) -> Any:
        first = answer()
        try:
            second = again()
        except FedKernError as error:
            answered.append(error.code)
            return first
        told = [{k: v for k, v in one[2].items() if k != "sealed"} for one in (first, second)]
        assert told[0] == told[1]
        for one, other in zip(first[0], second[0], strict=True):
            assert one.shape == other.shape
            if one.dtype != np.uint8:  # what is sealed for another node is sealed anew
                np.testing.assert_array_equal(one, other)
        answered.append("same")
        return first

    check_killed(name, tmp_path, twice)
    assert set(answered) <= {"same", *REFUSED}
    assert "same" in answered


@pytest.mark.parametrize("name", chosen([n for n in EXACT if "streams" not in n], KILLED))
def test_a_node_that_was_killed_before_it_wrote_answers_anew(name: str, tmp_path: Path) -> None:
    """Its ledger has entered the answer, which never left: the same again is no second one.

    But of a stream, whose rows are lost then: none takes part twice.
    """

    def anew(own: Path, answer: Any, again: Any) -> Any:
        before = {f: f.read_bytes() for f in own.glob("*/partition-*.*t")}
        answer()
        for file in own.glob("*/partition-*.*t"):
            file.unlink()
        for file, content in before.items():
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
        return again()

    check_killed(name, tmp_path, anew)

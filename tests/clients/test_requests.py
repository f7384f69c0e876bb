"""What a server may not ask: requests of real runs, changed, at the nodes that get them.

One contract for all methods. A row of ``REFUSED`` names a run, a request in it and who gets it,
what the refusal says, and what is changed of the request; of ``AGAIN`` the same, asked after the
genuine request was answered. Orders of other sums are in test_forged_orders.py.
"""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversation import Asked, asked_in, ordered
from flwr.app import RecordDict

from fedkern_flwr.clients import SVMClient, VerticalKernelClient
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.wire import DescribeRequest, sums

HELD_OUT = 16  # the first of them that an active party announces
Runs = dict[str, Callable[[int, Path], Any]]
Meet = Callable[[str], dict[str, Asked]]


@dataclass(frozen=True)
class Wrong:
    """A request that is changed: values of its fields, or functions of the genuine ones."""

    run: str
    request: str
    says: str
    change: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.run}, {self.request}: {', '.join(self.change)}, {self.says[:20]}"

    def made(self, request: Any, later: int = 0) -> Any:
        """Return the changed request, of a later round."""
        new = {k: v(getattr(request, k)) if callable(v) else v for k, v in self.change.items()}
        return replace(request, **{"round": request.round + later, **new})


def wrong(run: str, request: str, says: str, /, **change: Any) -> Wrong:
    return Wrong(run, request, says, change)


def first(rows: Any, row: int) -> Any:
    """Name another row instead of the first, in every list."""
    if isinstance(rows, tuple):
        return tuple(first(part, row) for part in rows)
    return np.append(np.int32(row), rows[1:])


def turned(rows: Any) -> Any:
    """Name the first two rows of every list the other way round."""
    if isinstance(rows, tuple):
        return tuple(map(turned, rows))
    return np.concatenate([rows[1::-1], rows[2:]])


DISTANCES, CENTRE = "hybrid-distances at hospital", "hybrid-distances at centre"
EQUATIONS, STEP = "hybrid-equations at hospital", "vertical-step at active"
SCORED = "vertical-outcome at active: delivered"
SETTINGS = "the settings of the run have changed"
ONLINE = "online-personal at client"
MATRIX, RANKING = "gram-matrix at client", "gram-recommend at client"
OTHER_ROWS, OTHER_WIDTHS = "other rows are asked for than before", "other widths or folds are asked"
UNANNOUNCED = "rows are asked for that were not announced"
OLD: dict[str, Any] = {"model": "ab", "model_round": 1}  # that nobody made
#: Asked of a node that has only described itself.
TOO_EARLY = {
    "fed-cg": {
        EQUATIONS: "has not the whole kernel of this run",
        "hybrid-coefficients at hospital": "has not the whole kernel of this run",
    },
    "fed-cg, products": {"hybrid-product at hospital": "has not the whole kernel of this run"},
    "fdskl, two": {SCORED: "knows nothing of this run"},
    "svm, columns": {
        "svm-owner at owner: delivered": "was never asked for in this run",
        "svm-visit at user: group, outputs": "was never asked for in this run",
    },
}
REFUSED = [
    *(wrong("pof-mkl", ONLINE, f"the stream has 12 rows, the request needs row {row}; ask for",
            **change) for row, change in ((13, {"step": 12}), (0, {"step": -1}))),
    *(wrong("pof-mkl", ONLINE, "is none of", **{name: "sobol"})
      for name in ("precision", "frequency_draw", "weight_rule")),
    wrong("svm, columns", "svm-columns", "refused by the node: columns for no agent", agent=-1),
    wrong("svm, columns", "svm-owner at owner", "node: a plan of fewer rows than it says",
          take=lambda t: t[:5]),
    wrong("ranges", "ranges-means", "labels are asked for, and it has none", labels=True),
    *(wrong("align", "align-hop", f"there is no hop {hop}", hop=hop) for hop in (-1, 3, 99)),
    wrong("fed-cg", DISTANCES, "for that it did not announce", rows=lambda r: first(r, 99)),
    wrong("fed-cg", DISTANCES, "are asked for twice, or are none", rows=lambda r: first(r, -2)),
    wrong("fed-cg", CENTRE, "are asked for twice, or are none", rows=lambda r: first(r, r[0][1])),
    wrong("fed-cg", DISTANCES, "landmarks of the model are not known here", **OLD),
    wrong("fed-cg", "hybrid-coefficients", "the width of the model is not that", gammas=np.ones(1)),
    wrong("fed-cg", EQUATIONS, "the width of this run is known", gammas=np.ones((1, 1))),
    wrong("fed-cg", EQUATIONS, "the width of this run is known", folds=2),
    *(wrong("fed-cg, tuned", EQUATIONS, "more than 9 widths or 5 folds", **change)
      for change in ({"gammas": np.ones((10, 1))}, {"gammas": -np.ones((1, 1))}, {"folds": 6},
                     {"gammas": np.ones((0, 1))})),
    wrong("fed-cg, tuned", EQUATIONS, "do not fit the landmarks", gammas=np.ones((1, 2))),
    wrong("fed-cg, alone", EQUATIONS, "a fold has 1; its owner decides", folds=5),
    wrong("fed-cg, alone", EQUATIONS, "counts of classes that its rows contradict",
          balanced=True, class_counts=np.array([1.0, 1.0])),
    wrong("fed-cg, weighed", EQUATIONS, "counts of classes that its rows contradict",
          class_counts=lambda c: 9.0 * c),
    wrong("fed-cg, products", "hybrid-product", "directions longer than one",
          directions=lambda p: 2.0 * p),
    wrong("fed-cg, tuned", "hybrid-moments", "shares no secret with partition 9; configure the lan",
          peers=np.array([9], np.int32)),
    wrong("fed-cg, tuned", "hybrid-moments", "of landmarks that need none", sampling="U"),
    wrong("fdskl", STEP, UNANNOUNCED, rows=lambda r: first(r, 99)),
    wrong("fdskl", "vertical-step at passive", UNANNOUNCED, rows=lambda r: first(r, -1)),
    wrong("fdskl", STEP, "scores are asked for outside a secure sum", score=1, scorer=0,
          score_rows=np.zeros(1, np.int32)),
    wrong("fdskl", STEP, "phases came that this party does not know of", delivered=5),
    *(wrong("fdskl", STEP, "what this party kept of the model is not here", **OLD | change)
      for change in ({}, {"model": "../ab"})),
    wrong("fdskl", "vertical-train at active", "rows are named that are not held out here",
          tests=lambda t: first(t, 0)),
    wrong("fdskl", "vertical-train at active", "rows are named that have no label here",
          rows=lambda r: first(r, HELD_OUT)),
    wrong("fdskl, two", SCORED, "held-out rows are to be counted, which would",
          sizes=np.array([1, 6], np.int32), rows=lambda r: r[5:]),
    *(wrong("secure-gram", MATRIX, "its items are not in order", items=np.array(items, np.int32))
      for items in ([0, 0, 1, 2], [1, 0], [], [-1, 2])),
    wrong("secure-gram", MATRIX, "items that are not among 6", items=np.array([0, 6], np.int32)),
    wrong("secure-gram", MATRIX, "encoding is 'text'; choose one of counts", encoding="text"),
    wrong("secure-gram", MATRIX, "encoding counts has whole numbers, not", fraction_bits=3),
    wrong("secure-gram", MATRIX, "use 0 to 30", encoding="fixed-point", fraction_bits=31),
    wrong("secure-gram", MATRIX, "overflows a 64-bit ring; use fewer fraction bits or a smaller",
          encoding="fixed-point", fraction_bits=30),
    wrong("secure-gram", MATRIX, "bound is 0", bound=0.0),
    wrong("secure-gram", MATRIX, "2 nodes count, at least", counted=bytes([0b0110])),
    wrong("secure-gram", MATRIX, "a set of parties is not one of 4", counted=bytes([0b10111])),
    wrong("secure-gram", "gram-cross", "new items are asked for, this node has 2", new_items=1),
    *(wrong("fed-cfk", RANKING, "its kernel has the wrong size",
            products=lambda p, n=n: np.resize(p, n)) for n in (0, 9, 36)),
    wrong("fed-cfk", RANKING, "there is no kernel 'text'", kernel="text"),
    wrong("fed-cfk", RANKING, "items that are not among 6", items=lambda i: i + 1),
    wrong("fed-cfk", RANKING, "items are not in order", items=turned),
    wrong("fed-cfk", RANKING, "mean holds NaN", mean=lambda m: m * np.nan),
]  # fmt: skip
AGAIN = [
    wrong("pof-mkl", ONLINE, "the node's state does not belong to 2 kernels",
          bandwidths=lambda b: b[:16], theta=lambda t: t[:2], kernels_per_round=1),
    wrong("fed-cg", DISTANCES, OTHER_ROWS, rows=turned),
    wrong("fed-cg", CENTRE, OTHER_ROWS, rows=turned),
    wrong("fed-cg", CENTRE, OTHER_ROWS, rows=lambda r: tuple(p[1:] for p in r),
          trains=lambda t: t - 1, stops=lambda s: s - 1),
    wrong("fed-cg, alone", EQUATIONS, OTHER_WIDTHS, gammas=lambda g: 2.0 * g),
    wrong("fed-cg, alone", EQUATIONS, OTHER_WIDTHS,
          gammas=lambda g: np.vstack([g, 3.0 * g])),
    wrong("fed-cg, alone", EQUATIONS, OTHER_WIDTHS, folds=lambda n: n % 5 + 1),
    wrong("fed-cg, alone", EQUATIONS, OTHER_WIDTHS, balanced=True),
    *(wrong("fdskl", STEP, SETTINGS, **change)
      for change in ({"gamma": 0.6}, {"kernel": "laplacian"}, {"phase_bits": 32}, {"capacity": 9})),
    wrong("fdskl", "vertical-train at active", "other rows are to be learned from",
          rows=lambda r: r[1:]),
    wrong("fdskl, two", SCORED, "other held-out rows are to be counted than",
          sizes=np.array([5, 6], np.int32), rows=lambda r: r[1:]),
    wrong("svm, columns", "svm-owner at owner", SETTINGS, take=turned),
    *(wrong("svm, flat", "svm-local at user", "does not follow iteration 1", round=n)
      for n in (0, 3)),
]  # fmt: skip


@pytest.fixture(scope="module")
def met(guarded_runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meet]:
    """Return a function that returns the requests of a run, which is run once."""
    folder = tmp_path_factory.mktemp("met")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))

        @functools.cache
        def find(run: str) -> dict[str, Asked]:
            (folder / run).mkdir()
            return asked_in(guarded_runs[run], folder / run)

        yield find


def request_of(found: dict[str, Asked], name: str) -> Asked:
    """Return the request of that name, or the first whose name begins so."""
    return found.get(name) or next(one for key, one in found.items() if key.startswith(name))


def later(one: Asked) -> list[Any]:
    """Return the sections of a request that comes again: each order has its next number."""
    found = [
        replace(s, index=s.index + 1) if isinstance(s, sums.Order) else s for s in one.sections
    ]
    return [s for s in found if not isinstance(s, (sums.Roster, sums.Delivery, sums.End))]


def is_refusal(said: str, one: Asked) -> bool:
    """Tell whether it is a line with a party, a reason and no error of the node's own code."""
    party = f"Error: partition {one.client.partition}: "
    return "\n" not in said and (party in said or "Error: " in said) and "its own code" not in said


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_may_not_be_asked_is_refused(case: Wrong, met: Meet) -> None:
    one = request_of(met(case.run), case.request)
    request = case.made(one.request)
    said, counted = one.try_out(request=request, sections=ordered(one, request))
    assert case.says in said
    assert counted or not said.startswith("RefusedError")
    assert is_refusal(said, one)
    assert one.try_out() == ("", False)


@pytest.mark.parametrize("run", TOO_EARLY)
def test_what_comes_too_early_is_refused(run: str, met: Meet) -> None:
    """By a node that has only described itself; it is told again."""
    found = met(run)
    for name, says in TOO_EARLY[run].items():
        one = request_of(found, name)
        own = (other for other in found.values() if other.client.partition == one.client.partition)
        one.client.context.state = copy.deepcopy(next(own).state)
        said = one.send(sections=[])
        assert says in said
        assert is_refusal(said, one)


def test_products_of_a_run_need_its_width(met: Meet) -> None:
    """Also at a node that is asked for no products in it."""
    node = request_of(met("fed-cg, tuned"), EQUATIONS)
    asked = request_of(met("fed-cg, products"), "hybrid-product at hospital").request
    request = replace(asked, session=node.request.session, round=node.request.round)
    kernel = [s for s in node.sections if isinstance(s, sums.Delivery)]
    said, _ = node.try_out(request=request, sections=kernel)
    assert "the width of this run is not known" in said
    assert is_refusal(said, node)


@pytest.mark.parametrize("case", AGAIN, ids=str)
def test_what_was_settled_is_not_asked_otherwise(case: Wrong, met: Meet) -> None:
    one = request_of(met(case.run), case.request)
    one.begin()
    assert one.send(sections=[s for s in one.sections if not isinstance(s, sums.End)]) == ""
    said = one.send(request=case.made(one.request, later=1), sections=later(one))
    assert case.says in said
    assert is_refusal(said, one)


def test_any_request_of_another_session_or_round_is_refused(guarded_runs: Runs, met: Meet) -> None:
    """Also after the genuine one, and changes nothing; one that comes twice adds to no sum."""
    wrong, seen = list[str](), set[str]()
    for run in guarded_runs:
        for key, one in met(run).items():
            seen.add(one.request.phase)
            other = replace(one.request, session="ab" * 8)
            said = [one.try_out(request=other, sections=[])[0]]
            answered = one.try_out()[0] == ""
            before = SessionState.load(one.client.context)
            said.append(one.send(request=other, sections=[]))
            if type(one.request) not in one.client.marked("ends"):  # which may come again
                earlier = replace(one.request, round=max(0, one.request.round - 1))
                said.append(one.send(request=earlier))
                if not one.ends and not isinstance(one.client, SVMClient):  # as iterations may
                    said.append(one.send())
            same = one.ends or SessionState.load(one.client.context) == before
            if not (answered and same and all(is_refusal(text, one) for text in said)):
                wrong.append(f"{run}, {key}: {answered}, {same}, {said}")
    assert not wrong, "\n".join(wrong)
    assert len(seen) > 35


def test_a_role_answers_no_phase_of_another(guarded_runs: Runs, met: Meet) -> None:
    for run in guarded_runs:
        for one in met(run).values():
            for other in met(run).values():
                if one.request.phase not in other.client.handlers():
                    said, _ = other.try_out(request=one.request, sections=[])
                    assert "does not take part in phase" in said


def withheld(said: str, one: Asked) -> bool:
    """Tell whether a request was refused, or answered with no number."""
    numbers = [a for a in one.reply[0] if np.asarray(a).dtype.kind in "fiu" and np.size(a)]
    return is_refusal(said, one) if said else not numbers


def test_values_leave_in_sums_and_in_no_other_way(guarded_runs: Runs, met: Meet) -> None:
    """Not to a request without the orders that belong to it."""
    tried = 0
    for run in guarded_runs:
        for key, one in met(run).items():
            sections = [s for s in one.sections if not isinstance(s, sums.Order)]
            if len(sections) < len(one.sections):
                said, tried = one.try_out(sections=sections)[0], tried + 1
                assert withheld(said, one), f"{run}, {key}: {said}"
    assert tried > 60


def test_a_run_without_secure_sums_gets_no_values(guarded_runs: Runs, met: Meet) -> None:
    """Of methods for which there are no other, though the policy of a node would let it."""
    tried = 0
    for run in guarded_runs:
        for key, one in met(run).items():
            sums_securely = any(isinstance(s, sums.Order) for s in one.sections)
            if not sums_securely or one.request.phase.startswith(("online", "method", "average")):
                continue
            client, tried = copy.copy(one.client), tried + 1
            client.policy = replace(client.policy, require_secure_sums=False)
            client.context.state = RecordDict()
            opening = DescribeRequest(session=one.request.session, method="a run", resume_round=0)
            assert one.send(client, opening, []) == ""
            said = one.send(client, sections=[])
            assert withheld(said, one), f"{run}, {key}: {said}"
    assert tried > 40


def test_a_hospital_alone_shows_its_sums_only_if_allowed(met: Meet) -> None:
    for name in (EQUATIONS, "hybrid-coefficients at hospital"):
        one = request_of(met("fed-cg, alone"), name)
        strict = copy.copy(one.client)
        strict.allow_single = False
        said, _ = one.try_out(strict)
        assert "there is nobody to sum with; let more hospitals take part" in said
        assert one.try_out() == ("", False)


def test_a_hospital_that_is_alone_weighs_its_rows_by_its_own_counts(met: Meet) -> None:
    one = request_of(met("fed-cg, alone"), EQUATIONS)
    weighed, found = replace(one.request, balanced=True), list[np.ndarray]()
    for request in (one.request, weighed):
        assert one.try_out(request=request) == ("", False)
        found += one.reply[0]
    # y^T W y is the sum of the weights, K^T W y no more that of the labels
    np.testing.assert_allclose(found[0][0], found[1][0])
    assert np.abs(found[0][1:] - found[1][1:]).max() > 0.01
    numbers = copy.copy(one.client)
    numbers.table = copy.copy(numbers.table)
    numbers.table.classes = ()
    said, _ = one.try_out(numbers, weighed)
    assert "classes are to be balanced, and the labels are numbers" in said


def test_counts_are_of_the_model_at_hand(met: Meet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a run that was resumed asks in the same words for another model."""
    one, found = met("fdskl, two")[SCORED], list[np.ndarray]()
    one.begin()
    sections = [s for s in one.sections if not isinstance(s, (sums.Delivery, sums.End))]
    for later, score in ((0, 1.0), (1, -1.0)):
        monkeypatch.setattr(
            VerticalKernelClient, "_scores", lambda _, rows, s=score: np.full((len(rows), 1), s)
        )
        request = replace(one.request, round=one.request.round + later)
        assert one.send(request=request, sections=sections) == ""
        found.append(one.reply[0][0])
    assert found[0].sum() == found[1].sum() > 0
    assert (found[0] != found[1]).any()


@dataclass
class Life:
    """What nodes had and have: secrets in the course of a run, contexts and files in the end."""

    secrets: dict[int, set[bytes]]
    contexts: dict[int, Any]
    folder: Path

    @property
    def files(self) -> list[str]:
        """Files of the run, but for what outlasts runs."""
        lasting = {".json", ".csv", ".npz", ".state", ".sqlite", ".model"}
        lasting |= {".opened", ".answered", ".released"}
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return [path.name for path in found if path.suffix not in lasting]


def lived(run: Callable[[int, Path], Any], folder: Path) -> Life:
    fit, life = PhaseClient.fit, Life({}, {}, folder)

    def watched(client: Any, parameters: Any, config: Any) -> Any:
        answer = fit(client, parameters, config)
        life.contexts[client.partition] = client.context
        payload = SessionState.load(client.context).payload
        if payload and isinstance(getattr(client, "kept", None), KeptState):
            life.secrets.setdefault(client.partition, set()).add(KeptState.unpack(payload).seed)
        return answer

    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PhaseClient, "fit", watched)
        patch.setattr(tempfile, "tempdir", str(folder))
        run(1, folder)
    return life


def test_secrets_are_of_one_run_and_its_end_erases_them(guarded_runs: Runs, tmp_path: Path) -> None:
    """Of nodes and of their files; of two runs none is the same."""
    drawn = 0
    for name, run in guarded_runs.items():
        one, two = (lived(run, tmp_path / f"{name}{k}") for k in range(2))
        assert not one.files, f"{name}: {one.files}"
        for k, secrets in one.secrets.items():
            secrets -= {b""}
            drawn += len(secrets)
            assert not secrets & two.secrets[k], name
            for secret in secrets:
                assert secret not in SessionState.load(one.contexts[k]).payload, name
                assert repr(secret)[2:-1] not in repr(one.contexts[k].state), name
    assert drawn > 30

"""What a server may not ask: requests of real runs, changed, at the nodes that get them.

One contract for all methods. A row of ``REFUSED`` names a way, a request in it and who gets it,
the code of the refusal, and what is changed of the request; of ``AGAIN`` the same, asked after the
genuine request was answered. Orders of other sums are in test_forged_orders.py."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from conversation import ASKED, Asked, asked, forgetful, met, ordered, requests_of
from flwr.app import RecordDict
from zoo import WAYS

from fedkern_flwr.clients import SVMClient
from fedkern_flwr.wire import DescribeRequest, sums

pytestmark = pytest.mark.usefixtures("cheap_noise")
HELD_OUT = 16  # the first of them that an active party announces


@dataclass(frozen=True)
class Wrong:
    """A request that is changed: values of its fields, or functions of the genuine ones."""

    way: str
    request: str
    code: str
    change: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.way}, {self.request}: {', '.join(self.change)}"

    def made(self, request: Any, later: int = 0) -> Any:
        """Return the changed request, of a later round."""
        new = {k: v(getattr(request, k)) if callable(v) else v for k, v in self.change.items()}
        return replace(request, **{"round": request.round + later, **new})


def wrong(way: str, request: str, code: str, /, **change: Any) -> Wrong:
    return Wrong(way, request, code, change)


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
OWN_EQUATIONS = "hybrid-own-equations at hospital"
EQUATIONS, STEP = "hybrid-equations at hospital", "vertical-step at active"
SCORED = "vertical-outcome at active: delivered"
SETTINGS = "FK-SETTINGS-CHANGED"
ONLINE = "online-personal at client"
MATRIX, RANKING = "gram-matrix at client", "gram-recommend at client"
WRITE, CHANGED = "ranges-write", "FK-ORDER-CHANGED"
UNANNOUNCED = "FK-ORDER-ROWS"
OLD: dict[str, Any] = {"model": "ab", "model_round": 1}  # that nobody made
#: Asked of a node that has only described itself.
TOO_EARLY = {
    "fed-cg": {EQUATIONS: "FK-STATE-GONE", "hybrid-coefficients at hospital": "FK-STATE-GONE"},
    "fed-cg, cg": {"hybrid-product at hospital": "FK-STATE-GONE"},
    "fed-cg, rows": {"hybrid-coefficients at hospital": "FK-STATE-GONE"},
    "fdskl, two active": {SCORED: "FK-STATE-GONE"},
    "hierarchical-svm, vertical": {
        "svm-owner at owner: delivered": "FK-MESSAGE-ORDER",
        "svm-visit at user: group, outputs": "FK-MESSAGE-ORDER",
    },
}
REFUSED = [
    *(wrong("pof-mkl, secure", ONLINE, "FK-ROWS-FEW", step=step)
      for step in (12, -1)),
    *(wrong("pof-mkl, secure", ONLINE, "FK-MESSAGE-FIELD", **{name: "sobol"})
      for name in ("precision", "frequency_draw", "weight_rule")),
    wrong("pof-rls, secure", "online-ridge", "FK-MESSAGE-FIELD", window=lambda w: w + 99),
    wrong("hierarchical-svm", "svm-statistics at user", "FK-TUNE-MANY",
          tried=np.array([1.0, 0.0]), folds=3),
    wrong("hierarchical-svm, centralised", "svm-local", "FK-MESSAGE-FIELD",
          center=np.ones((1, 4))),  # the first: a run that is repeated begins at zero again
    wrong("hierarchical-svm, vertical", "svm-columns", "FK-MESSAGE-FIELD", agent=-1),
    wrong("hierarchical-svm, vertical", "svm-owner at owner", "FK-MESSAGE-SHAPE",
          take=lambda t: t[:5]),
    wrong("ranges", "ranges-means", "FK-LABELS-MISSING", labels=True),
    wrong("ranges", "ranges-deviations", "FK-MESSAGE-SHAPE",
          **dict.fromkeys(("count", "mean", "scale"), lambda v: v[:2])),
    wrong("ranges", WRITE, "FK-MESSAGE-SHAPE", low=lambda v: v[:2], high=lambda v: v[:2]),
    wrong("ranges", WRITE, "FK-MESSAGE-SHAPE", low=lambda v: v[::-1] + 99.0),
    *(wrong("align", "align-hop", "FK-MESSAGE-FIELD", hop=hop) for hop in (-1, 3, 99)),
    wrong("fed-cg", DISTANCES, "FK-ORDER-ROWS", rows=lambda r: first(r, 99)),
    wrong("fed-cg", DISTANCES, "FK-ORDER-ROWS", rows=lambda r: first(r, -2)),
    wrong("fed-cg", CENTRE, "FK-ORDER-ROWS", rows=lambda r: first(r, r[0][1])),
    wrong("fed-cg, normal landmarks", DISTANCES, "FK-KEPT-NONE", **OLD),
    wrong("fed-cg", "hybrid-coefficients", "FK-SETTINGS-CHANGED", gammas=np.ones(1)),
    wrong("fed-cg", EQUATIONS, "FK-ASKED-MORE", gammas=np.ones((1, 1))),
    wrong("fed-cg", EQUATIONS, "FK-ASKED-MORE", folds=2),
    *(wrong(way, name, "FK-TUNE-MANY", **change)
      for way, name in (("fed-cg, tuned", EQUATIONS), ("fed-cg, rows", OWN_EQUATIONS))
      for change in ({"gammas": np.ones((10, 1))}, {"gammas": -np.ones((1, 1))}, {"folds": 6},
                     {"gammas": np.ones((0, 1))})),
    wrong("fed-cg, tuned", EQUATIONS, "FK-ASKED-KERNEL", gammas=np.ones((1, 2))),
        wrong("fed-cg, alone", EQUATIONS, "FK-POLICY-OWN-ROWS", folds=5),
    wrong("fed-cg, alone", EQUATIONS, "FK-WEIGHTS-COUNTS",
          balanced=True, class_counts=np.array([1.0, 1.0])),
    wrong("fed-cg, balanced", EQUATIONS, "FK-WEIGHTS-COUNTS",
          class_counts=lambda c: 9.0 * c),
    *(wrong("fed-cg, rows", OWN_EQUATIONS, "FK-ASKED-KERNEL", **change)
      for change in ({"kernel": "none"}, {"basis": "fourier"}, {"fixed_gammas": -np.ones(1)})),
    wrong("fed-cg, rows", OWN_EQUATIONS, "FK-ASKED-MORE", **OLD),
    wrong("fed-cg, rows, private", OWN_EQUATIONS, "FK-BUDGET-OPTION", basis="landmarks"),
    wrong("fed-cg, rows, cg", "hybrid-own-product", "FK-ASKED-MORE",
          directions=lambda p: 2.0 * p),
    wrong("fed-cg, cg", "hybrid-product", "FK-ASKED-MORE",
          directions=lambda p: 2.0 * p),
    wrong("fed-cg, normal landmarks", "hybrid-moments", "FK-SUM-PARTNER",
          peers=np.array([9], np.int32)),
    wrong("fed-cg, normal landmarks", "hybrid-moments", "FK-ASKED-MORE", sampling="U"),
    wrong("fdskl", STEP, UNANNOUNCED, rows=lambda r: first(r, 99)),
    wrong("fdskl", "vertical-step at passive", UNANNOUNCED, rows=lambda r: first(r, -1)),
    wrong("fdskl", "vertical-step at passive", "FK-ASKED-MORE", owners=np.ones_like),
    wrong("fdskl", STEP, "FK-ORDER-PLAIN", score=1, scorer=0,
          score_rows=np.zeros(1, np.int32)),
    wrong("fdskl", STEP, "FK-STATE-GONE", delivered=5),
    *(wrong("fdskl", STEP, "FK-KEPT-NONE", **OLD | change)
      for change in ({}, {"model": "../ab"})),
    wrong("fdskl", "vertical-train at active", "FK-ORDER-ROWS",
          tests=lambda t: first(t, 0)),
    wrong("fdskl", "vertical-train at active", "FK-ORDER-ROWS",
          rows=lambda r: first(r, HELD_OUT)),
    *(wrong("secure-gram", MATRIX, "FK-MESSAGE-FIELD", items=np.array(items, np.int32))
      for items in ([0, 0, 1, 2], [1, 0], [], [-1, 2])),
    wrong("secure-gram", MATRIX, "FK-MESSAGE-FIELD", items=np.array([0, 7], np.int32)),
    wrong("secure-gram", MATRIX, "FK-OPTION-CHOICE", encoding="text"),
    wrong("secure-gram", MATRIX, "FK-GRAM-WHOLE", fraction_bits=3),
    wrong("secure-gram", MATRIX, "FK-OPTION-RANGE", encoding="fixed-point", fraction_bits=31),
    wrong("secure-gram", MATRIX, "FK-SUM-OVERFLOW",
          encoding="fixed-point", fraction_bits=30),
    wrong("secure-gram", MATRIX, "FK-OPTION-RANGE", bound=0.0),
    wrong("secure-gram", MATRIX, "FK-RELEASE-NODES", counted=bytes([0b0110])),
    wrong("secure-gram", MATRIX, "FK-SUM-SET", counted=bytes([0b10111])),
    wrong("secure-gram", "gram-cross", "FK-ITEMS-NEW", new_items=1),
    *(wrong("fed-cfk", RANKING, "FK-MESSAGE-SHAPE",
            products=lambda p, n=n: np.resize(p, n)) for n in (0, 9, 36)),
    wrong("fed-cfk", RANKING, "FK-OPTION-CHOICE", kernel="text"),
    wrong("fed-cfk", RANKING, "FK-MESSAGE-FIELD", items=lambda i: i + 4),
    wrong("fed-cfk", RANKING, "FK-MESSAGE-FIELD", items=turned),
    wrong("fed-cfk", RANKING, "FK-MESSAGE-FINITE", mean=lambda m: m * np.nan),
]  # fmt: skip
AGAIN = [
    wrong("pof-mkl, secure", ONLINE, "FK-SETTINGS-CHANGED",
          bandwidths=lambda b: b[:16], theta=lambda t: t[:2], kernels_per_round=1),
    wrong("fed-cg", DISTANCES, CHANGED, rows=turned),
    wrong("fed-cg", CENTRE, CHANGED, rows=turned),
    wrong("fed-cg", CENTRE, CHANGED, rows=lambda r: tuple(p[1:] for p in r),
          trains=lambda t: t - 1, stops=lambda s: s - 1),
    wrong("fed-cg, rows", OWN_EQUATIONS, SETTINGS, model="ab", model_round=1),
    wrong("fed-cg, alone", EQUATIONS, CHANGED, gammas=lambda g: 2.0 * g),
    wrong("fed-cg, alone", EQUATIONS, CHANGED,
          gammas=lambda g: np.vstack([g, 3.0 * g])),
    wrong("fed-cg, alone", EQUATIONS, CHANGED, folds=lambda n: n % 5 + 1),
    wrong("fed-cg, alone", EQUATIONS, CHANGED, balanced=True),
    *(wrong("fdskl", STEP, SETTINGS, **change)
      for change in ({"gamma": 0.6}, {"kernel": "laplacian"}, {"phase_bits": 16}, {"capacity": 9})),
    wrong("fdskl", "vertical-train at active", CHANGED,
          rows=lambda r: r[1:]),
    wrong("fdskl, two active", SCORED, CHANGED,
          sizes=np.array([8, 9], np.int32), rows=lambda r: r[1:]),
    wrong("hierarchical-svm, vertical", "svm-owner at owner", SETTINGS, take=turned),
    *(wrong("hierarchical-svm, balanced", "svm-local at user", "FK-MESSAGE-ORDER", round=n)
      for n in (0, 3)),
    wrong("hierarchical-svm, balanced", "svm-local at user", "FK-WEIGHTS-COUNTS",
          shares=lambda s: (1.0 + 1e-6) * s),
]  # fmt: skip


def request_of(found: dict[str, Asked], name: str) -> Asked:
    """Return the request of that name, or the first whose name begins so."""
    return found.get(name) or next(one for key, one in found.items() if key.startswith(name))


def later(one: Asked) -> list[Any]:
    """Return the sections of a request that comes again: each order has its next number."""
    found = [
        replace(s, index=s.index + 1) if isinstance(s, sums.Order) else s for s in one.sections
    ]
    return [s for s in found if not isinstance(s, (sums.Roster, sums.Delivery, sums.End))]


def is_refusal(said: str) -> bool:
    """Tell whether it is one line with a code, and no error of the node's own code."""
    return (
        bool(said) and "\n" not in said and said.endswith("]") and "[FK-CLIENT-RAISED]" not in said
    )


@pytest.mark.promise("fdskl-lies")
@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_may_not_be_asked_is_refused(case: Wrong) -> None:
    one = request_of(met(case.way), case.request)
    request = case.made(one.request)
    said, counted = one.try_out(request=request, sections=ordered(one, request))
    assert said.endswith(f"[{case.code}]"), said
    assert counted or not said.startswith("RefusedError")
    assert is_refusal(said)
    assert one.try_out() == ("", False)


@pytest.mark.parametrize("way", TOO_EARLY)
def test_what_comes_too_early_is_refused(way: str) -> None:
    """By a node that has only described itself; it is told again."""
    found = met(way)
    for name, code in TOO_EARLY[way].items():
        one = request_of(found, name)
        own = (other for other in found.values() if other.client.partition == one.client.partition)
        one.client.context.state = copy.deepcopy(next(own).state)
        said = one.send(sections=[])
        assert said.endswith(f"[{code}]"), said


def test_products_of_a_run_need_its_width() -> None:
    """Also at a node that is asked for no products in it."""
    node = request_of(met("fed-cg, tuned"), EQUATIONS)
    asked = request_of(met("fed-cg, cg"), "hybrid-product at hospital").request
    request = replace(asked, session=node.request.session, round=node.request.round)
    kernel = [s for s in node.sections if isinstance(s, sums.Delivery)]
    assert node.try_out(request=request, sections=kernel)[0].endswith("[FK-MESSAGE-ORDER]")


def test_kernels_without_centres_are_those_of_all_rows_of_hospitals() -> None:
    """A centre makes none; who has made one makes none of other rows in that run."""
    one = request_of(met("fed-cg, rows"), OWN_EQUATIONS)
    centre = request_of(met("fed-cg"), CENTRE)
    request = replace(one.request, session=centre.request.session, round=centre.request.round)
    assert centre.try_out(request=request, sections=[])[0].endswith("[FK-ASKED-MORE]")
    kind = request_of(met("fed-cg"), DISTANCES).request
    known = {name: value for name, value in vars(one.request).items() if hasattr(kind, name)}
    one.begin()
    assert one.send() == ""
    for left_out, code in ((1, CHANGED), (0, "")):
        rows = np.arange(one.client.table.rows + one.client.table.tests, dtype=np.int32)
        train = one.client.table.rows - left_out
        numbers = {"trains": train, "starts": 0, "stops": 0, "hospitals": one.client.partition}
        parts = {name: np.array([value], np.int32) for name, value in numbers.items()}
        asked = replace(kind, **known, **parts, rows=(rows[left_out:],))
        said = one.send(request=replace(asked, round=one.request.round + 2 - left_out), sections=[])
        assert said.endswith(f"[{code}]" if code else ""), said
        assert bool(said) == bool(code)


@pytest.mark.promise("requests-settled")
@pytest.mark.parametrize("case", AGAIN, ids=str)
def test_what_was_settled_is_not_asked_otherwise(case: Wrong) -> None:
    one = request_of(met(case.way), case.request)
    one.begin()
    assert one.send(sections=[s for s in one.sections if not isinstance(s, sums.End)]) == ""
    said = one.send(request=case.made(one.request, later=1), sections=later(one))
    assert said.endswith(f"[{case.code}]"), said
    assert is_refusal(said)


def kept(one: Any) -> tuple[Any, ...]:
    return one.session.session, one.session.round, one.session.payload


@pytest.mark.parametrize("which", ASKED)
def test_any_request_of_another_session_or_round_is_refused(which: str) -> None:
    """Also after the genuine one, and changes nothing; one that comes twice adds to no sum."""
    wrong = list[str]()
    for _, key, one in requests_of(which):
        other = replace(one.request, session="ab" * 8)
        said = [one.try_out(request=other, sections=[])[0]]
        answered = one.try_out()[0] == ""
        before = kept(one)
        said.append(one.send(request=other, sections=[]))
        called = {type(one.request), getattr(one.request, "name", None)}
        if not called & one.client.marked("ends").keys():  # which may come again
            earlier = replace(one.request, round=max(0, one.request.round - 1))
            said.append(one.send(request=earlier))
            if not one.ends and not isinstance(one.client, SVMClient):  # as iterations may
                said.append(one.send())
        same = one.ends or kept(one) == before
        if not (answered and same and all(map(is_refusal, said))):
            wrong.append(f"{key}: {answered}, {same}, {said}")
    assert wrong == []


@pytest.mark.parametrize("which", ASKED)
def test_a_role_answers_no_phase_of_another(which: str) -> None:
    for way, _, one in requests_of(which):
        for other in {other.client.role: other for other in met(way).values()}.values():
            if one.request.phase not in other.client.handlers():
                said, _ = other.try_out(request=one.request, sections=[])
                assert said.endswith("[FK-MESSAGE-PHASE]"), said


def withheld(said: str, one: Asked) -> bool:
    """Tell whether a request was refused, or answered with no number."""
    numbers = [a for a in one.reply[0] if np.asarray(a).dtype.kind in "fiu" and np.size(a)]
    return is_refusal(said) if said else not numbers


@pytest.mark.promise("online-no-rows-without-order", "requests-in-sums")
@pytest.mark.parametrize("which", ASKED)
def test_values_leave_in_sums_and_in_no_other_way(which: str) -> None:
    """Not to a request without the orders that belong to it, nor in a run without sums."""
    for way, key, one in requests_of(which):
        sections = [s for s in one.sections if not isinstance(s, sums.Order)]
        if len(sections) == len(one.sections) or WAYS[way].common.get("allow_single"):
            continue
        said = one.try_out(sections=sections)[0]
        assert withheld(said, one), f"{key}: {said}"
        if one.request.phase.startswith("online"):  # whether it fails would say something of rows
            assert said.endswith("[FK-ORDER-PLAIN]"), said
        if one.request.phase.startswith(("online", "method", "average")):
            continue  # of which there are runs without sums
        client = forgetful(one.client)  # else it would refuse to begin the run again
        client.policy = replace(client.policy, require_secure_sums=False)  # as its owner may
        client.context.state = RecordDict()
        opening = DescribeRequest(session=one.request.session, method="a run", resume_round=0)
        assert one.send(client, opening, []) == ""
        said = one.send(client, sections=[])
        assert withheld(said, one), f"{key}: {said}"


@pytest.mark.promise("requests-in-sums")
def test_a_hospital_alone_shows_its_sums_only_if_allowed() -> None:
    for name in (EQUATIONS, "hybrid-coefficients at hospital"):
        one = request_of(met("fed-cg, alone"), name)
        strict = copy.copy(one.client)
        strict.allow_single = False
        assert one.try_out(strict)[0].endswith("[FK-ALONE-REFUSED]")
        assert one.try_out() == ("", False)


def test_a_hospital_that_is_alone_weighs_its_rows_by_its_own_counts() -> None:
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
    assert one.try_out(numbers, weighed)[0].endswith("[FK-WEIGHTS-NUMBERS]")


@pytest.mark.promise("requests-few-rows")
def test_few_held_out_rows_are_not_counted() -> None:
    one = met("fdskl, two active")[SCORED]
    few = {"sizes": np.array([3, 9], np.int32), "rows": one.request.rows[6:]}
    sections = [s for s in one.sections if not isinstance(s, sums.Delivery)]
    said = one.try_out(request=replace(one.request, **few), sections=sections)[0]
    assert said.endswith("[FK-COUNTED-FEW]"), said


def test_counts_are_of_the_model_at_hand() -> None:
    """Also where a run that was resumed asks in the same words for another model."""
    one, found = met("fdskl, two active")[SCORED], list[np.ndarray]()
    one.begin()
    client = forgetful(one.client)  # which has judged for other tests
    sections = [s for s in one.sections if not isinstance(s, (sums.Delivery, sums.End))]
    for later, sign in ((0, 1.0), (1, -1.0)):
        one.change_kept(lambda kept, s=sign: kept.arrays.update(alpha=s * kept.arrays["alpha"]))
        request = replace(one.request, round=one.request.round + later)
        assert one.send(client, request, sections) == ""
        found.append(one.reply[0][0])
    assert found[0].sum() == found[1].sum() > 0
    assert (found[0] != found[1]).any()


# -- contract: which model a node judges on its held-out rows, how often, and of how many rows


#: Way -> (request that judges, its field that holds the model).
JUDGING = {
    "fed-cg": ("hybrid-coefficients", "coefficients"),
    "fed-cg, numbers": ("hybrid-coefficients", "coefficients"),
    "fed-cg, cg": ("hybrid-coefficients", "coefficients"),
    "fed-cg, private": ("hybrid-coefficients", "coefficients"),
    "hierarchical-svm": ("svm-evaluate", "model"),
    "hierarchical-svm, classes": ("svm-evaluate", "model"),
    "hierarchical-svm, private": ("svm-count", "model"),
    "pof-mkl, secure": ("online-evaluate", "theta"),
    "pof-rls, secure": ("online-ridge-evaluate", "starts"),
    "fed-cfk": ("gram-recommend", "mean"),
}


def changed(request: Any, name: str) -> Any:
    """Return the request with another model: one unit in the last place, of one coefficient."""
    field = getattr(request, name)
    value = field[0] if isinstance(field, tuple) else field
    other = value.copy()
    other.flat[0] = np.nextafter(other.flat[0], np.inf, dtype=other.dtype)
    return replace(request, **{name: (other, *field[1:]) if isinstance(field, tuple) else other})


@pytest.mark.promise("held-out-one-model")
@pytest.mark.parametrize(
    ("way", "few"),
    [*((w, False) for w in JUDGING), *((w, True) for w in JUDGING if "private" not in w)],
)
def test_a_second_model_is_not_judged(way: str, few: bool) -> None:
    """A server that chooses it reads a label; also of a node that has few rows and sends zeros."""
    one = asked(way, JUDGING[way][0])
    if few:
        one.client.policy = replace(one.client.policy, min_evaluation_rows=1000)
    sections, number = [s for s in one.sections if not isinstance(s, sums.End)], 1
    assert one.send(sections=sections) == ""
    for number in range(2, 22 if way == "pof-mkl, secure" else 2):  # what was told is repeated
        repeated = [replace(s, index=s.index + number - 1) for s in one.orders]
        same = replace(one.request, round=one.request.round + number - 1)
        assert one.send(request=same, sections=repeated) == ""
    request = changed(one.request, JUDGING[way][1])
    request = replace(request, round=request.round + number)
    again = [s for s in ordered(one, request) if isinstance(s, sums.Order)]
    again = [replace(s, index=s.index + number) for s in again]
    said = one.send(request=request, sections=again)
    assert said.endswith("[FK-ORDER-MODEL]"), said


#: Way -> what a node lacks that has helped to make no model in this run.
BEFORE: dict[str, Any] = {
    "fed-cg": None,  # the node's record says it
    "fed-cg, cg": None,
    "kernel-pca": None,
    "hierarchical-svm": lambda kept: kept.arrays.pop("model"),
    "hierarchical-svm, private": lambda kept: kept.settings.pop("helped"),
}


@pytest.mark.promise("held-out-own-model")
@pytest.mark.parametrize("way", BEFORE)
def test_a_model_that_no_node_has_helped_to_make_is_not_judged(way: str) -> None:
    phase, model = JUDGING.get(way, ("method at client: evaluate", "given"))
    one = asked(way, phase)
    if BEFORE[way]:
        one.change_kept(BEFORE[way])
    else:
        record = one.record
        record.helped = False
        record.store(one.client.context)
        one.client.ledger.keep_record(record.session, record.write())
    said = one.send(request=changed(one.request, model))
    assert said.endswith("[FK-ORDER-MODEL]"), said


@pytest.mark.promise("held-out-own-model")
def test_of_streams_as_well() -> None:
    one = asked("pof-mkl, secure", "online-evaluate")
    state = one.session
    state.payload = b""  # nothing was learned, whatever else was asked
    state.store(one.client.context)
    assert one.send().endswith("[FK-ORDER-MODEL]")


@pytest.mark.promise("held-out-each-holder")
@pytest.mark.parametrize("way", ["fed-cg", "hierarchical-svm"])
@pytest.mark.parametrize("few", [[4], [1, 4]])
def test_a_party_with_few_held_out_rows_sends_zeros(way: str, few: list[int]) -> None:
    """Whoever else there is; one that has enough hides nobody's, and is not counted alone."""
    sites = WAYS[way].sites(guarded=True)
    for table, rows in zip(sites.tables, few, strict=False):
        for name in {"x_test", "y_test", "ids_test"} & table.keys():
            table[name] = table[name][:rows]
    found = sites.fit().strategy.result().get("held_out", {"rows": 0})
    own = [len(t["y_test"]) for t in sites.tables if t.get("y_test") is not None]
    enough = [n for n in own if n >= 5]
    assert found["rows"] == sum(enough) * (len(enough) > 1)

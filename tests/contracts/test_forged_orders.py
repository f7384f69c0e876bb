"""What a server may not order, and what a refusal tells of values: nothing. Over all ways.

Genuine requests are taken from runs, on their way to nodes that are none of a simulation. A node
then gets its request with another order of a sum, or the request itself changed. It must refuse
what its method does not mean, and say the same whatever its table is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conversation import ASKED, TABLES, Asked, met, ordered, requests_of, with_table
from refusals import refuses
from zoo import WAYS

from fedkern_flwr.wire import sums

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of absurd numbers
    pytest.mark.usefixtures("cheap_noise"),
]
Change = Callable[[Any], Any]


def fields(**changes: Any) -> Change:
    """Return a change of a request: values, or functions of the old ones."""
    return lambda request: replace(
        request, **{k: v(getattr(request, k)) if callable(v) else v for k, v in changes.items()}
    )


def twice(rows: Any) -> Any:
    """Name the first row of each list again and again."""
    if isinstance(rows, tuple):
        return tuple(map(twice, rows))
    return np.full_like(rows, rows[0])


def nothing(values: Any) -> Any:
    return np.full_like(values, np.nan)


_PARTS = {
    "one row again and again": fields(rows=twice),
    "few rows of the own": fields(rows=lambda rows: tuple(part[-1:] for part in rows)),
    "a part before the first": fields(starts=lambda s: s - 1),
    "a part past the end": fields(stops=lambda s: s + 1),
    "more training rows than rows": fields(trains=lambda t: t + 100),
}
_KERNEL = {
    "a negative width": fields(fixed_gammas=lambda g: -1.0 - g),
    "no distances": fields(kernel="none"),
}
_TUNED = {
    "widths of other landmarks": fields(gammas=lambda g: np.hstack([g, g])),
    "folds of few rows": fields(folds=5),
}
_RIDGES = {
    "rows before the first": fields(window=lambda w: w - 1),
    "rows after the message": fields(window=lambda w: w + 1000),
    "no sums of columns": fields(raw=lambda raw: not raw),
    "learners that are not there": fields(experts="svd"),
    "learners of nobody": fields(starts=lambda s: np.append(s, 1.0)),
}
_GRAM = {
    "fewer rows": fields(rows=lambda n: n - 1),
    "more parties": fields(parties=lambda n: n + 1),
    "another bound": fields(bound=2.0),
}
_SHARES = {"weights of its own": fields(shares=lambda s: 1e-3 * s)}
_SHARES["weights that are none"] = fields(shares=nothing)
#: Phase, and maybe what a sum's name begins with -> what else a server might ask for.
REQUESTS: dict[str, dict[str, Change]] = {
    "online-ridge": _RIDGES,
    "online-shared": {"no row": fields(samples=0), "a row before the first": fields(step=-1)},
    "hybrid-moments": _PARTS,
    "hybrid-distances": {**_PARTS, **_KERNEL},
    "hybrid-own-equations": _KERNEL,
    "hybrid-own-product": _KERNEL,
    "hybrid-product": {"long directions": fields(directions=lambda p: 2.0 * p)},
    "vertical-step": {
        "phases that there are not": fields(known=lambda k: k - 1),
        "one row again and again": fields(rows=lambda r: np.resize(r[:1], r.shape)),
    },
    "gram-counts": _GRAM,
    "gram-matrix": _GRAM,
    "gram-cross": _GRAM,
    "gram-recommend": {
        "a search from elsewhere": fields(regularization=lambda value: 3.0 * value),
        "a lambda that is none": fields(tune=False, regularization=-1.0),
        "a learner that is not there": fields(learner="svd"),
        "rows of strangers": fields(summed=b"\xff"),
        "rows of more nodes": fields(summed=lambda bits: bits + b"\0"),
    },
    "svm-statistics": {
        "few rows": fields(rows=1), "C": fields(c=0.0), "more C": fields(tried=np.ones(9), folds=3),
        "a C that is none": fields(tried=np.array([1.0, np.nan]), folds=3),
        "more folds": fields(tried=np.ones(2), folds=4),
        "folds without C": fields(tried=np.zeros(0), folds=3),
    },
    "svm-step": {
        "another penalty": fields(rho=lambda r: 2.0 * r),
        "a C that was not tried": fields(chosen=0),
    },
    "svm-combine agents": {
        "in plain": fields(plain=True), "no limit": fields(sigma=lambda s: np.inf * s),
        "a C that was not tried": fields(chosen=0, tried=2),
    },
    "svm-combine group": {
        "the pad for fewer": fields(users=lambda u: u[:-1]),
        "the pad for a stranger": fields(users=lambda u: np.append(u, np.int32(5))),
    },
    "svm-local": {"against it": fields(relaxation=-1.0)},
    "svm-gradient": {
        "fewer iterations, with less noise each": fields(iterations=1),
        "no iterations": fields(iterations=0), "a loss without bound": fields(loss="squared"),
        "features that there are not": fields(features=3),
        "a model that is none": fields(model=nothing),
    },
    "svm-count": {"a loss": fields(loss="squared")},
    "svm-columns": {
        "a row again and again": fields(take=twice),
        "all of them elsewhere": fields(place=lambda p: p + 100),
        "few rows to learn from": fields(rows=1), "for no agent": fields(agent=-1),
    },
    "average average": {"another weight": fields(weighted_by="loss")},
    "ranges-means": {
        "a smaller bound": fields(bound=1.0), "a larger bound": fields(bound=2.0**21),
        "fewer rows": fields(rows=1), "more rows": fields(rows=10**6),
    },
    "ranges-deviations": {
        "no scale": fields(scale=lambda s: 0.0 * s), "no values": fields(count=lambda c: 0.0 * c),
    },
}  # fmt: skip
#: Way -> phase -> the same, of what only that way asks for.
OF_A_WAY: dict[str, dict[str, dict[str, Change]]] = {
    "fed-cg, tuned": {
        "hybrid-distances mean": {"few training rows": fields(trains=lambda t: np.minimum(t, 1))},
        "hybrid-equations": _TUNED,
    },
    "fed-cg, rows": {"hybrid-own-equations": _TUNED},
    "fed-cg, balanced": {
        "hybrid-equations": {
            "a class of one row": fields(class_counts=lambda c: np.array([c.sum() - 1, 1.0])),
            "fewer rows than there are": fields(class_counts=lambda c: c - 1),
            "more rows than there are": fields(class_counts=lambda c: c * 100),
            "counts of others": fields(class_counts=lambda c: c + np.array([1.0, -1.0])),
            "more classes": fields(class_counts=lambda c: np.append(c, 0.0)),
            "no number": fields(class_counts=nothing),
        }
    },
    "hierarchical-svm, balanced": {"svm-local": _SHARES},
    "ranges, encoders": {
        "ranges-deviations": {
            "more values": fields(counts=lambda c: c + 1.0),
            "values below zero": fields(counts=lambda c: 2.0 * c - c[:, ::-1]),
            "fewer columns": fields(
                counts=lambda c: c[:1], strays=lambda s: s[:1], places=lambda p: p[:1]
            ),
            "fewer bins": fields(counts=lambda c: c[:, :9]),
            "no place": fields(places=lambda p: 0.0 * p),
        }
    },
}
#: Phases whose nodes need no smaller bound than is ordered, and those that add zeros of any length.
WIDER, ZEROS = ("hybrid-", "gram-recommend"), ("svm-combine group", "svm-pad")


def matches(name: str, where: str) -> bool:
    """Tell whether a row of a table above is about an order: its phase and the sum's name."""
    phase, _, stem = name.partition(" ")
    own, _, called = where.partition(" ")
    return phase == own and called.startswith(stem)


def forgeries(order: sums.Order, where: str, one: Asked, members: list[int]) -> Iterator[Any]:
    """Yield (what, order) of orders that the method does not mean."""
    others = [m for m in members if m not in (one.client.partition, order.receiver)]
    for receiver in {-1, others[0], one.client.partition} - {order.receiver}:
        yield f"receiver {receiver}", replace(order, receiver=receiver)
    yield "masks", replace(order, self_masks=not order.self_masks)
    step = {"integer": 1.0, "circle": 1.0}.get(order.kind, 0.99 * order.bound)
    yield "smaller bound", replace(order, bound=abs(order.bound - step))
    if not where.startswith(WIDER):
        yield "larger bound", replace(order, bound=order.bound + step)
    kinds = {"fixed-point": "integer", "integer": "fixed-point", "circle": "fixed-point"}
    yield "kind", replace(order, kind=kinds[order.kind], bound=order.bound or 1.0)
    yield "no bound", replace(order, bound=np.nan)
    bits = {16: 64, 32: 16 if order.kind != "integer" else 64, 64: 32}[order.bits]
    bits = 16 if where.startswith("hybrid-distances distances") else bits
    yield "ring", replace(order, bits=bits)
    passive = one.client.role == "passive" and "/" in order.name  # scores are of active parties
    if not passive and not any(matches(name, where) for name in ZEROS):
        yield "longer", replace(order, length=order.length + 1)
        yield "shorter", replace(order, length=order.length - 1)


def orders_of(which: str) -> Iterator[tuple[Asked, Any]]:
    """Yield orders with their requests; of those that differ by a number in the name, the first."""
    seen = set[Any]()
    for _, _, one in requests_of(which):
        for order in one.orders:
            about = one.client.role, one.request.phase, re.split(r"[/#\d]", order.name)[0]
            kind = *about, order.kind, order.self_masks, order.receiver < 0, order.noise > 0
            if kind not in seen:
                yield one, order
            seen.add(kind)


def same(one: Any, two: Any) -> bool:
    arrays = zip(one.arrays(), two.arrays(), strict=False)
    return one.scalars() == two.scalars() and all(np.array_equal(a, b) for a, b in arrays)


def check_said(one: Asked, what: str, request: Any, sections: list[Any]) -> str:
    """Return nothing if a request is refused in the same words whatever the table is."""
    said = set()
    for name in ("its own", "another order"):
        text, _ = one.try_out(with_table(one.client, TABLES[name]), request, sections)
        said.add(text)
    plain = "\n" not in "".join(said)
    return "" if len(said) == 1 and "" not in said and plain else f"{what}: {said}"


def check_changed(one: Asked, where: str, changes: dict[str, dict[str, Change]]) -> list[str]:
    """Return what went wrong when a request was changed as a table above says."""
    wrong = []
    for what, change in (
        item for n, c in changes.items() if matches(n, where) for item in c.items()
    ):
        request = change(one.request)
        if same(request, one.request):  # no widths to change
            continue
        told = one.request.phase == "svm-step"  # the name says what all users are told
        sections = one.sections if told else ordered(one, request)
        wrong.append(check_said(one, f"{where}, {what}", request, sections))
    return wrong


@pytest.mark.promise("orders-receiver", "orders-bound")
@pytest.mark.parametrize("which", ASKED)
def test_a_forged_order_is_refused_whatever_the_table(which: str) -> None:
    wrong, tried = list[str](), 0
    for one, order in orders_of(which):
        where = f"{one.request.phase} {order.name}"
        for what, forged in forgeries(order, where, one, one.members(order)):
            sections = [forged if s is order else s for s in one.sections]
            wrong.append(check_said(one, f"{where}, {what}", one.request, sections))
        wrong += check_changed(one, where, REQUESTS)
        tried += 1
    assert [line for line in wrong if line] == []
    assert tried or "align" in which


@pytest.mark.parametrize("way", OF_A_WAY)
def test_what_only_one_way_asks_for_is_refused_as_well(way: str) -> None:
    orders = [(one, order) for one in met(way).values() for order in one.orders]
    wrong = [
        check_changed(one, f"{one.request.phase} {o.name}", OF_A_WAY[way]) for one, o in orders
    ]
    assert [line for lines in wrong for line in lines if line] == []
    assert any(wrong)


def answered(one: Asked) -> list[Any]:
    """Have a node answer its genuine request; return the orders as they would come again."""
    one.begin()
    sections = [s for s in one.sections if not isinstance(s, sums.End)]
    assert one.send(sections=sections) == ""
    return [replace(s, index=s.index + len(one.orders)) for s in one.orders]


@pytest.mark.parametrize("which", ASKED)
def test_a_sum_comes_again_for_nobody_else_and_over_nobody_else(which: str) -> None:
    wrong = []
    for one, order in orders_of(which):
        k, members = one.orders.index(order), one.members(order)
        others = [m for m in members if m not in (one.client.partition, order.receiver)]
        changes = {
            "for another": {"receiver": -1 if order.receiver >= 0 else others[0]},
            "masked otherwise": {"self_masks": not order.self_masks},
            "over fewer": {"cohort": 99, "index": 1},
        }
        for what, change in changes.items():
            later = answered(one)
            if what == "over fewer":
                one.regroup([m for m in members if m != others[-1]])
            later[k] = replace(later[k], **change)
            request = replace(one.request, round=one.request.round + 1)
            delivered = [s for s in one.sections if isinstance(s, sums.Delivery)]
            said = one.send(request=request, sections=[*delivered, *later])
            if not said or "\n" in said:
                wrong.append(f"{one.request.phase} {order.name}, {what}: {said}")
    assert wrong == []


@pytest.mark.parametrize("way", ["fdskl", "fdskl, streaming", "ranges", "kernel-pca"])
def test_sums_over_all_come_with_none_over_fewer(way: str) -> None:
    """Their difference would show a node."""
    kind = WAYS[way].strategy

    def cohorts(strategy: Any) -> list[list[int]]:
        found = kind.cohorts(strategy) or [[*range(len(sites))]]
        return [*found, max(found, key=len)[:-1]]

    overlapping = type("Overlapping", (kind,), {"cohorts": cohorts})
    sites = WAYS[way].sites()
    refuses("FK-ORDER-TERMS", sites.fit, strategy=overlapping(**WAYS[way].options))
    assert not sites.rows()


def later_of(one: Asked, **change: Any) -> str:
    """Return what a node says to its order when it comes again, with another request."""
    (order,) = answered(one)
    request = change.pop("request", one.request)
    return one.send(request=request, sections=[replace(order, **change)])


def test_scores_are_summed_for_those_who_learn_from_phases() -> None:
    steps = [o for o in met("fdskl, two active").values() if o.request.phase == "vertical-step"]
    one = next(o for o in steps if o.request.score)
    own, passive = f"scores/{one.request.scorer}", {"name": "scores/3", "receiver": 3}
    later = [replace(s, **passive) if getattr(s, "name", "") == own else s for s in one.sections]
    said, _ = one.try_out(request=replace(one.request, scorer=3), sections=later)
    assert said.endswith("[FK-ASKED-MORE]"), said


def test_users_are_told_one_thing_and_their_sum_follows_from_it() -> None:
    one = next(one for key, one in met("hierarchical-svm").items() if key.startswith("svm-step"))
    told = fields(judged=lambda m: m + 1.0, rho=lambda r: 2.0 * r)(one.request)
    following = replace(one.request, round=one.request.round + 1)
    flat = one.client.handlers()["svm-local"][0]
    own = {f.name: getattr(told, f.name, told.judged) for f in fields_of(flat)}
    name = one.orders[0].name
    after_others = {"name": following.sum_name(told.sum_name(""))}
    for code, request, change in (
        ("FK-SUM-UNASKED", told, {"name": told.sum_name(name)}),  # otherwise
        ("FK-SUM-UNASKED", following, after_others),
        ("FK-SETTINGS-CHANGED", flat(**own), {"name": "users", "receiver": -1}),  # in one layer
    ):
        said = later_of(one, request=request, **change)
        assert said.endswith(f"[{code}]"), said


def test_agents_add_up_once_and_with_nobody_left_out() -> None:
    agents = [one for one in met("hierarchical-svm").values() if one.client.role == "agent"]
    stems = [[o.name.partition("#")[0] for o in one.orders] for one in agents]
    group, total = agents[stems.index(["group"])], agents[stems.index(["agents"])]
    wider = fields(outputs=1, width=group.orders[0].length)(group.request)
    assert later_of(group, request=wider).endswith("[FK-ORDER-PAD]")
    (last,) = answered(total)
    left = replace(last, name="agents that are left", self_masks=True)
    leaves = replace(total.request, leave_out=True)
    for code, request, order in (
        ("FK-ORDER-TERMS", total.request, left),  # without a group
        ("FK-ORDER-TERMS", total.request, replace(left, self_masks=False)),  # under the other name
        ("FK-SETTINGS-CHANGED", leaves, left),  # as if groups were left out
    ):
        answered(total)
        said = total.send(request=request, sections=[order])
        assert said.endswith(f"[{code}]"), said


@pytest.mark.promise("ranges-one-centre")
def test_ranges_are_of_one_place_and_bins() -> None:
    """A second centre, or counts in ever new bins, would tell of single values."""
    one = next(one for key, one in met("ranges, encoders").items() if "deviations" in key)
    later = replace(one.request, round=one.request.round + 1)
    for change in (
        {"mean": later.mean + 1.0},
        {"places": later.places + np.array([1e-9, 0.0])},  # as many bins
        {"counts": later.counts[:, ::-1]},
    ):
        said = later_of(one, request=replace(later, **change))
        assert said.endswith("[FK-SETTINGS-CHANGED]"), said


# -- what the request itself would tell


def changes(request: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a server might ask for instead."""
    for field in fields_of(request):
        value = getattr(request, field.name)
        if field.name in ("session", "round") or isinstance(value, (str, bytes)):
            continue
        first, rest = (value[:1], value[1:]) if isinstance(value, tuple) else ([value], None)
        for what, other in altered(*first) if first else ():
            made = other if rest is None else (other, *rest)
            with suppress(TypeError):  # lengths that must agree
                yield f"{field.name} {what}", replace(request, **{field.name: made})


def altered(value: Any) -> Iterator[tuple[str, Any]]:
    array = isinstance(value, np.ndarray)
    kind = value.dtype.kind if array else {bool: "b", int: "i", float: "f"}[type(value)]
    if kind == "b":
        yield "not", ~value if array else not value
    elif kind == "f":
        for factor in (1e3, 1e-3, -1.0, 0.0, 1e155):
            with np.errstate(over="ignore"):
                found = np.asarray(value * factor, value.dtype if array else None)
            if np.isfinite(found).all():
                yield f"times {factor:g}", found if array else float(found)
    elif array:
        yield "turned", value[::-1].copy()
        yield "few", value[:5]
        yield "of the first", np.full_like(value, value.flat[0] if value.size else 0)
    else:
        yield from (("more", value + 1), ("none", 0), ("less", value - 1))


def shows(said: dict[str, tuple[str, bool]]) -> bool:
    """Tell whether answers of several tables show which it is, and that is not counted.

    That a file is gone is left out: a try before may have changed it, which no table does.
    """
    answers = {one for one in said.values() if not one[0].startswith("StateError")}
    failures = {one for one in answers if one[0]}
    return len({text for text, _ in answers}) > 1 and not (
        len(failures) == 1 and all(counted for _, counted in failures)
    )


@pytest.mark.parametrize("which", ASKED)
def test_failures_that_follow_from_values_are_counted_and_say_the_same(which: str) -> None:
    """The same changed request comes to a node with its own table and to others of the shape."""
    wrong, most = [], 10**6 if which.startswith("all") else 1
    for _, key, one in requests_of(which):
        every = [("as it is", one.request), *changes(one.request)]
        picked = np.random.default_rng(list(key.encode())).permutation(len(every))[:most]
        for what, request in (every[k] for k in (0, *picked)):
            sections = ordered(one, request)
            said = {
                table: one.try_out(with_table(one.client, change), request, sections)
                for table, change in TABLES.items()
            }
            if shows(said):
                wrong.append(f"{key}, {what}: {said}")
    assert wrong == []

"""A server that orders other sums than the method means gets none, from any kind of client.

A genuine order is taken from a run, on its way to one node; the node then gets it forged. Its
answer must be a refusal that does not depend on its table. Nodes have the policy of a node, not
that of simulations.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.errors import OptionError, ProtocolError, SumError
from fedkern_flwr.groups.messages import FLAT_SUM, LEFT_SUM, LocalRequest
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.node.sums import ClientSums, load_state, store_state
from fedkern_flwr.secure_sum.membership import Cohort
from fedkern_flwr.wire import sums
from fedkern_flwr.wire.sections import attach, detach
from fedkern_flwr.wire.sums import bind

# -- what is forged


@dataclass
class Case:
    """An order that reaches a node in a run.

    Attributes
    ----------
    run, node, phase, name
        Where it is met; ``name`` is what the sum's begins with.
    wider : bool
        Whether a larger bound is none of the node's business.
    zeros : bool
        Whether the node contributes nothing, at any length.
    requests : dict
        What else a server might ask for: changes of the request that need to be refused.
    """

    run: str
    node: int
    phase: str
    name: str
    wider: bool = False
    zeros: bool = False
    requests: dict[str, Callable[[Any], Any]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.run}: {self.phase}, {self.name} at {self.node}"


def fields(**changes: Any) -> Callable[[Any], Any]:
    """Return a change of a request: values, or functions of the old ones."""

    def change(request: Any) -> Any:
        found = {
            name: value(getattr(request, name)) if callable(value) else value
            for name, value in changes.items()
        }
        return replace(request, **found)

    return change


def twice(rows: Any) -> Any:
    """Name the first row of each list again and again."""
    if isinstance(rows, tuple):
        return tuple(np.full_like(part, part[0]) for part in rows)
    return np.full_like(rows, rows[0])


_GRAM: dict[str, Callable[[Any], Any]] = {
    "fewer rows": fields(rows=lambda n: n - 1),
    "more parties": fields(parties=lambda n: n + 1),
    "another bound": fields(bound=2.0),
}
_LAMBDA: dict[str, Callable[[Any], Any]] = {
    "a search from elsewhere": fields(regularization=lambda value: 3.0 * value),
    "a lambda that is none": fields(tune=False, regularization=-1.0),
    "a learner that is not there": fields(learner="svd"),
    "rows of strangers": fields(summed=b"\xff"),
    "rows of more nodes": fields(summed=lambda bits: bits + b"\0"),
}
_PARTS: dict[str, Callable[[Any], Any]] = {
    "one row again and again": fields(rows=twice),
    "few rows of the own": fields(rows=lambda rows: tuple(part[-1:] for part in rows)),
    "a part before the first": fields(starts=lambda s: s - 1),
    "a part past the end": fields(stops=lambda s: s + 1),
    "more training rows than rows": fields(trains=lambda t: t + 100),
}
_WIDTHS: dict[str, Callable[[Any], Any]] = {
    "a negative width": fields(gammas=lambda g: -g),
    "no distances": fields(kernel="none"),
}
_TUNED: dict[str, Callable[[Any], Any]] = {
    "no width": fields(gammas=lambda g: g[:0]),
    "more widths": fields(gammas=lambda g: np.resize(g, (10, g.shape[1]))),
    "widths of other landmarks": fields(gammas=lambda g: g[:, :2]),
    "a negative width": fields(gammas=lambda g: -g),
    "folds of few rows": fields(folds=3),
    "more folds": fields(folds=6),
}
_WEIGHED: dict[str, Callable[[Any], Any]] = {
    "a class of one row": fields(class_counts=lambda c: np.array([c.sum() - 1, 1.0])),
    "fewer rows than there are": fields(class_counts=lambda c: c - 1),
    "more rows than there are": fields(class_counts=lambda c: c * 100),
    "counts that others were not told": fields(class_counts=lambda c: c + np.array([1.0, -1.0])),
    "more classes": fields(class_counts=lambda c: np.append(c, 0.0)),
    "no number": fields(class_counts=lambda c: c * np.nan),
}
_BINS: dict[str, Callable[[Any], Any]] = {
    "more values": fields(counts=lambda c: c + 1.0),
    "values below zero": fields(counts=lambda c: 2.0 * c - c[:, ::-1]),
    "fewer columns": fields(counts=lambda c: c[:1], strays=lambda s: s[:1], places=lambda p: p[:1]),
    "fewer bins": fields(counts=lambda c: c[:, :9]),
    "no place": fields(places=lambda p: 0.0 * p),
    "no scale": fields(scale=lambda s: 0.0 * s),
}
_GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "fewer iterations, with less noise each": fields(iterations=1),
    "no iterations": fields(iterations=0),
    "a loss without bound": fields(loss="squared"),
    "features that there are not": fields(features=3),
    "a model that is none": fields(model=lambda w: w * np.nan),
}
_RIDGES: dict[str, Callable[[Any], Any]] = {
    "rows before the first": fields(window=lambda w: w - 1),
    "rows after the message": fields(window=lambda w: w + 1000),
    "no sums of columns": fields(raw=lambda raw: not raw),
    "learners that are not there": fields(experts="svd"),
    "learners of nobody": fields(starts=lambda s: np.append(s, 1.0)),
}
CASES = [
    Case("pof-mkl", 2, "online-personal", "update"),
    Case("pof-mkl", 2, "online-evaluate", "evaluate"),
    Case("pof-rls", 2, "online-ridge", "update", requests=_RIDGES),
    Case("pof-rls", 2, "online-ridge-evaluate", "evaluate"),
    Case("pof-rls, whole", 2, "online-ridge", "update"),
    Case("pof-rls, whole", 2, "online-ridge-evaluate", "evaluate"),
    Case("vm-kofl", 2, "online-shared", "update"),
    Case(
        "vm-kofl, stream",
        2,
        "online-shared",
        "update",
        requests={
            "fewer rows than hide each other": fields(samples=1),
            "no row": fields(samples=0),
            "a row before the first": fields(step=-1),
        },
    ),
    Case("em-kofl", 2, "online-drawn", "update"),
    Case("per-fed-avg", 2, "online-network", "update"),
    Case("per-fed-avg", 2, "online-network-evaluate", "evaluate"),
    Case("kernel-pca", 2, "method", "moments"),
    Case("kernel-pca", 2, "method", "evaluate/rest"),
    Case("fed-cg", 1, "hybrid-moments", "moments/", True, requests=_PARTS),
    Case("fed-cg", 3, "hybrid-distances", "distances/", True, requests={**_PARTS, **_WIDTHS}),
    Case("fed-cg", 1, "hybrid-distances", "distances/1", True, requests=_WIDTHS),
    Case("fed-cg", 3, "hybrid-distances", "landmark pairs", True),
    Case("fed-cg", 1, "hybrid-equations", "equations", True),
    Case("fed-cg, tuned", 1, "hybrid-moments", "moments/", True, requests=_PARTS),
    Case(
        "fed-cg, tuned",
        3,
        "hybrid-distances",
        "mean distance",
        True,
        requests={"few training rows": fields(trains=lambda t: np.minimum(t, 1))},
    ),
    Case("fed-cg, tuned", 1, "hybrid-equations", "equations", True, requests=_TUNED),
    Case("fed-cg, weighed", 1, "hybrid-distances", "class counts", True),
    Case("fed-cg, weighed", 1, "hybrid-equations", "equations", True, requests=_WEIGHED),
    Case(
        "fed-cg, products",
        1,
        "hybrid-product",
        "product",
        True,
        requests={"long directions": fields(directions=lambda p: 2.0 * p)},
    ),
    Case("fed-cg", 1, "hybrid-coefficients", "outcomes", True),
    Case(
        "fdskl",
        2,
        "vertical-step",
        "",
        requests={"phases that there are not": fields(known=lambda k: k - 1)},
    ),
    Case("fdskl", 0, "vertical-step", ""),
    Case("fdskl, two", 1, "vertical-step", "scores/", requests={"passive": fields(scorer=3)}),
    Case("fdskl, two", 1, "vertical-outcome", "outcome/"),
    Case("secure-gram", 2, "gram-counts", "item counts", requests=_GRAM),
    Case("secure-gram", 2, "gram-matrix", "gram matrix", requests=_GRAM),
    Case("secure-gram", 2, "gram-cross", "cross products", requests=_GRAM),
    Case("fed-cfk", 2, "gram-recommend", "ranking metrics", True, requests=_LAMBDA),
    Case(
        "svm",
        2,
        "svm-statistics",
        "",
        requests={
            "few rows": fields(rows=1),
            "C": fields(c=0.0),
            "more C": fields(tried=np.ones(9), folds=3),
            "a C that is none": fields(tried=np.array([1.0, np.nan]), folds=3),
            "more folds": fields(tried=np.ones(2), folds=4),
            "folds without C": fields(tried=np.zeros(0), folds=3),
        },
    ),
    Case(
        "svm",
        2,
        "svm-step",
        "",
        requests={
            "another penalty": fields(rho=lambda r: 2.0 * r),
            "a C that was not tried": fields(chosen=0),
        },
    ),
    Case(
        "svm",
        4,
        "svm-combine",
        "agents",
        requests={
            "in plain": fields(plain=True),
            "no limit": fields(sigma=lambda s: np.inf * s),
            "a C that was not tried": fields(chosen=0, tried=2),
        },
    ),
    Case(
        "svm",
        4,
        "svm-combine",
        "group",
        zeros=True,
        requests={
            "the pad for fewer": fields(users=lambda u: u[:-1]),
            "the pad for a stranger": fields(users=lambda u: np.append(u, np.int32(5))),
        },
    ),
    Case("svm", 2, "svm-evaluate", ""),
    Case(
        "svm, weighed",
        2,
        "svm-step",
        "",
        requests={
            "weights of its own": fields(shares=lambda s: 1e-3 * s),
            "weights that are none": fields(shares=lambda s: np.full_like(s, np.nan)),
        },
    ),
    Case(
        "svm, flat",
        2,
        "svm-local",
        "",
        requests={
            "against it": fields(relaxation=-1.0),
            "weights of its own": fields(shares=lambda s: 1e-3 * s),
            "weights that are none": fields(shares=lambda s: np.full_like(s, np.nan)),
        },
    ),
    Case("svm, budget", 2, "svm-gradient", "gradients", requests=_GRADIENTS),
    Case("svm, budget", 2, "svm-count", "outcomes", requests={"a loss": fields(loss="squared")}),
    Case(
        "svm, columns",
        2,
        "svm-columns",
        "",
        requests={
            "a row again and again": fields(take=twice),
            "all of them elsewhere": fields(place=lambda p: p + 100),
            "few rows to learn from": fields(rows=1),
            "for no agent": fields(agent=-1),
        },
    ),
    Case("svm, columns", 2, "svm-visit", "group"),
    Case("svm, columns", 2, "svm-visit", "outputs"),
    Case("svm, columns", 2, "svm-contribute", ""),
    Case("svm, columns", 6, "svm-pad", "", zeros=True),
    Case(
        "means of apps",
        2,
        "average",
        "average",
        requests={"another weight": fields(weighted_by="loss")},
    ),
    Case("means of apps", 2, "average-evaluate", "evaluate"),
    Case(
        "ranges",
        2,
        "ranges-means",
        "column means",
        requests={
            "a smaller bound": fields(bound=1.0),
            "a larger bound": fields(bound=2.0**21),
            "fewer rows": fields(rows=1),
            "more rows": fields(rows=10**6),
        },
    ),
    Case(
        "ranges",
        2,
        "ranges-deviations",
        "column deviations",
        requests={"no scale": fields(scale=lambda s: 0.0 * s)},
    ),
    Case(
        "ranges, encoded",
        2,
        "ranges-deviations",
        "column deviations",
        requests=_BINS,
    ),
]
#: Phases in which nothing is contributed to a sum.
SILENT = {
    "align-hop",  # lists are sealed for the next party
    "align-tags",
    "gram-predict",
    "online-local",  # of runs without sums
    "online-predict",
    "online-ridge-predict",
    "ranges-write",
    "svm-block",
    "svm-owner",
    "svm-predict",
    "svm-recall",
    "svm-save",
    "svm-write",
    "vertical-train",
}


class Node:
    """The node that an order is meant for, before it has come."""

    def __init__(self, case: Case, found: Any) -> None:
        self.case, self.client, self.request = case, found.client, found.request
        self.sections = [s for s in found.sections if not isinstance(s, sums.End)]
        self.state, self.before = found.state, ""
        orders = [s for s in self.sections if isinstance(s, sums.Order)]
        self.order = next(o for o in orders if o.name.startswith(case.name))

    def ask(self, order: sums.Order | None, request: Any) -> str:
        """Return the text of the refusal, nothing if it is answered; maybe without the order."""
        self.client.context.state = copy.deepcopy(self.state)
        if order is None:
            pass
        elif "#" in order.name and self.case.phase.startswith("gram"):  # bound to the request
            order = replace(order, name=bind(order.name.partition("#")[0], request))
        elif self.case.phase == "svm-step" and request.round != self.request.round:
            order = replace(order, name=request.sum_name(self.before))
        elif self.case.phase == "svm-statistics":
            order = replace(order, name=request.sum_name(""))
        elif getattr(request, "scorer", -1) != getattr(self.request, "scorer", -1):
            order = replace(order, name=f"scores/{request.scorer}", receiver=request.scorer)
        changed = [order if s == self.order else s for s in self.sections]
        sections = [section for section in changed if section is not None]
        arrays, scalars = attach(sections)
        try:
            out, _, metrics = self.client.fit(
                request.arrays() + arrays, request.scalars() | scalars
            )
        except (OptionError, ProtocolError, SumError) as error:
            return str(error)
        assert order is None or any(
            s.phase == "sum-upload" for s in detach(out, metrics, party="")[2]
        )
        return ""

    def accept(self) -> None:
        """Answer the genuine order, and remember that."""
        assert self.ask(self.order, self.request) == ""
        self.before = self.order.name
        self.state = self.client.context.state

    def members(self) -> list[int]:
        """Return who is in the sum."""
        self.client.context.state = copy.deepcopy(self.state)
        roster = next((s for s in self.sections if isinstance(s, sums.Roster)), None)
        if roster is not None:
            return list(json.loads(roster.cohorts)[self.order.cohort][2])
        state = load_state(self.client.context)
        assert state is not None
        return list(state.cohorts[self.order.cohort].members)

    def regroup(self, members: list[int]) -> int:
        """Have the node accept one more cohort, which a roster might have had."""
        self.client.context.state = copy.deepcopy(self.state)
        state = load_state(self.client.context)
        assert state is not None
        cohort = Cohort(99, tuple(members), 2, state.digest)
        state.enter(cohort, {j: bytes(32) for j in members if j != self.case.node})
        store_state(self.client.context, state)
        self.state = self.client.context.state
        return 99


def forgeries(
    order: sums.Order, case: Case, members: list[int]
) -> Iterator[tuple[str, sums.Order]]:
    others = [m for m in members if m not in (case.node, order.receiver)]
    for receiver in {-1, others[0], case.node} - {order.receiver}:
        yield f"receiver {receiver}", replace(order, receiver=receiver)
    yield "masks", replace(order, self_masks=not order.self_masks)
    exact = {"integer": 1.0, "circle": 1.0}.get(order.kind, 0.99 * order.bound)
    yield "smaller bound", replace(order, bound=abs(order.bound - exact))
    if not case.wider:
        yield "larger bound", replace(order, bound=order.bound + exact)
    kinds = {"fixed-point": "integer", "integer": "fixed-point", "circle": "fixed-point"}
    yield "kind", replace(order, kind=kinds[order.kind], bound=order.bound or 1.0)
    bits = {16: 64, 32: 16 if order.kind != "integer" else 64, 64: 32}[order.bits]
    if case.name.startswith("distances"):
        bits = 16
    yield "ring", replace(order, bits=bits)
    if not case.zeros:
        yield "longer", replace(order, length=order.length + 1)
        yield "shorter", replace(order, length=order.length - 1)


def answers(case: Case, found: Any) -> dict[str, str]:
    """Return what the node says to each forgery; first of all it takes the genuine order."""
    node = Node(case, found)
    members = node.members()
    said = {what: node.ask(o, node.request) for what, o in forgeries(node.order, case, members)}
    for what, change in case.requests.items():
        said[what] = node.ask(node.order, change(node.request))
    if "in plain" in case.requests:
        said["in plain, unordered"] = node.ask(None, case.requests["in plain"](node.request))
    node.accept()
    again = replace(node.order, index=node.order.index + 1)
    later = replace(node.request, round=node.request.round + 1)
    others = [m for m in members if m not in (case.node, node.order.receiver)]
    turned = -1 if node.order.receiver >= 0 else others[0]
    said["again, for another"] = node.ask(replace(again, receiver=turned), later)
    said["again, masked otherwise"] = node.ask(
        replace(again, self_masks=not again.self_masks), later
    )
    if case.phase == "svm-step":
        told = fields(judged=lambda m: m + 1.0, rho=lambda r: 2.0 * r)(node.request)
        lie = replace(again, name=told.sum_name(node.before))
        said["again, told otherwise"] = node.ask(lie, told)
        node.before = told.sum_name("")
        said["after others were told otherwise"] = text = node.ask(again, later)
        assert "no sum 'group#" in text  # before anything is opened
        own = {f.name: getattr(told, f.name, told.judged) for f in fields_of(LocalRequest)}
        flat = replace(again, name=FLAT_SUM, receiver=-1)
        said["again, in one layer"] = node.ask(flat, LocalRequest(**own))
    if case.phase == "svm-combine" and case.name == "group":
        wider = fields(outputs=1, width=again.length)(node.request)
        said["again, with the pad of statistics"] = node.ask(again, wider)
    if case.phase == "svm-combine" and case.name == "agents":
        left = replace(again, name=LEFT_SUM, self_masks=True)
        node.sections = [node.order]  # all else has been used
        said["again, without a group"] = node.ask(left, node.request)
        plain = replace(left, self_masks=False)
        said["again, under the other name"] = node.ask(plain, node.request)
        leaves = replace(node.request, leave_out=True)
        said["again, as if groups were left out"] = text = node.ask(left, leaves)
        assert "the settings of the run have changed" in text
    if case.phase == "ranges-deviations":
        said["again, elsewhere"] = node.ask(again, replace(later, mean=later.mean + 1.0))
    if case.requests is _BINS:
        places = later.places + np.array([1e-9, 0.0])  # as many bins
        said["again, about other places"] = node.ask(again, replace(later, places=places))
        said["again, in bins"] = node.ask(again, replace(later, counts=later.counts[:, ::-1]))
    if len(members) > 2:
        fewer = [m for m in members if m != others[-1]]
        cohort = node.regroup(fewer)
        said["again, over fewer"] = node.ask(replace(again, cohort=cohort, index=1), later)
    return said


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_forged_order_is_refused_whatever_the_table(case: Case, meet: Callable[..., Any]) -> None:
    place = case.run, case.node, case.phase, case.name
    first, second = (answers(case, meet(*place, seed)) for seed in (1, 2))
    assert not {what for what, text in first.items() if not text or "\n" in text}
    plain = functools.partial(re.sub, r"#\w+", "#")  # digests of what is asked for
    assert {w: plain(t) for w, t in first.items()} == {w: plain(t) for w, t in second.items()}


def test_every_handler_that_contributes_is_among_the_cases(
    guarded_runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer, contribute = PhaseClient._dispatch, ClientSums._add
    phases, contributing, now = set[str](), set[str](), [""]

    def dispatched(client: PhaseClient, parameters: Any, config: Any) -> Any:
        phases.update(client.handlers())
        now[0] = str(config.get("phase", ""))
        return answer(client, parameters, config)

    def contributed(sums: ClientSums, *args: Any, **options: Any) -> None:
        contributing.add(now[0])
        contribute(sums, *args, **options)

    monkeypatch.setattr(PhaseClient, "_dispatch", dispatched)
    monkeypatch.setattr(ClientSums, "_add", contributed)
    for name, run in guarded_runs.items():
        folder = tmp_path / name
        folder.mkdir()
        run(1, folder)
    covered = {case.phase for case in CASES}
    assert phases == covered | SILENT
    assert contributing == covered

"""Contract: at the limit of each rule of its policy a node answers, one beyond it does not.

A row of ``TRIED`` is a rule, how it is tried, two values of it, and what comes of the second: the
code of a refusal, or what is withheld.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from conversation import asked, ordered
from frozen_tables import rows_held_out, rows_that_wait
from identities import known
from zoo import WAYS, Sites, Way, fit, new_folder

from fedkern_flwr.errors import FedKernError
from fedkern_flwr.gram.recommenders import Recommender
from fedkern_flwr.guard import NodePolicy

pytestmark = pytest.mark.usefixtures("cheap_noise")
Rules = dict[str, Any]
FIGURES = {"test_accuracy", "test_rmse", "auc", "test_explained"}


def of_run(way: str | Way, sites: Sites | None = None, **rules: Any) -> str:
    """Return the code with which nodes of these rules end a run; whether figures were withheld."""
    chosen = WAYS[way] if isinstance(way, str) else way
    sites = sites or chosen.sites(guarded=True)
    sites.more = {**sites.more, "policy": NodePolicy(**{"counting": "warn", **rules})}
    rounds = {12: 2, 200: 2, 3: 1}.get(chosen.rounds or 0)
    try:
        found = sites.fit(start={"num_rounds": rounds} if rounds else {})
    except FedKernError as error:
        return error.code
    told = FIGURES & {*getattr(found.strategy, "metrics_", {})}
    return "" if told or "min_evaluation_rows" not in rules else "no figures"


def of_known(way: str, change: Callable[[list[Any]], Any] | None = None, **rules: Any) -> str:
    """Return what comes of a run of nodes that know each other; maybe of a second one."""
    sites = known(WAYS[way].sites(guarded=True))
    if change is not None:
        assert of_run(way, sites, **rules) in ("", "no figures")
        change(sites.tables)
    return of_run(way, sites, **rules)


def of_message(way: str, begins: str, change: Rules, **rules: Any) -> str:
    """Return the code with which a node of these rules refuses a request that was changed."""
    one = asked(way, begins)
    one.client.policy = replace(one.client.policy, **rules)
    new = {k: v(getattr(one.request, k)) if callable(v) else v for k, v in change.items()}
    request = replace(one.request, **new)
    said, _ = one.try_out(request=request, sections=ordered(one, request))
    return said.rpartition("[")[2].rstrip("]")


def of_six_held_out(**rules: Any) -> str:
    """Return the code with which a hospital refuses figures of six of its eight held-out rows."""
    one = asked("fed-cg", "hybrid-coefficients at hospital: outcomes")
    one.client.policy = replace(one.client.policy, **rules)

    def shorten(kept: Any) -> None:
        kept.settings["total"] = kept.settings["done"] = kept.settings["train"] + 6
        kept.arrays["rows"] = kept.arrays["rows"][: kept.settings["total"]]

    one.change_kept(shorten)
    one.state = copy.deepcopy(one.client.context.state)
    (order,) = one.orders
    said, _ = one.try_out(sections=[replace(order, bound=0.75 * order.bound)])
    return said.rpartition("[")[2].rstrip("]")


def of_file(rows: int, **rules: Any) -> str:
    """Return how many rows of a file wait for a block."""
    waiting = rows_that_wait(new_folder(), rows, **rules)
    return f"{waiting} wait" if waiting else ""


def of_fifth(**rules: Any) -> str:
    """Return how many of 150 rows of a node without test-data are held out."""
    return f"{rows_held_out(new_folder(), 150, **rules)} held out"


def others(tables: list[Any]) -> None:
    for table in tables:
        table |= {n: [f"other {k}" for k in table[n]] for n in ("ids", "ids_test") if n in table}


def binary() -> list[Any]:
    """Return tables of FDSKL whose columns have two values."""
    tables = WAYS["fdskl"].tables()
    return [{**t, "x": (np.asarray(t["x"]) > 0.5).astype(float)} for t in tables]


#: Way -> training rows of the smallest party; parties and rows of the smallest sum.
LEAST = {
    "fed-cg": (16, 3, 72), "fdskl": (42, 4, 60), "hierarchical-svm": (12, 2, 36),
    "hierarchical-svm, vertical": (24, 3, 64), "fed-cfk": (0, 4, 32), "ranges": (9, 2, 18),
    "kernel-pca": (15, 4, 80), "secure-aggregation": (20, 4, 122),
}  # fmt: skip
#: Way -> held-out rows of the largest party.
HELD_OUT = {"fed-cg": 8, "hierarchical-svm, vertical": 16, "fed-cfk": 8, "kernel-pca": 5}
PRIVATE = [f"{name}, private" for name in ("fed-cg", "pof-rls", "hierarchical-svm", "kernel-pca")]
NINE: Rules = {"rows": lambda r: tuple(part[:9] for part in r)}
NINE |= {name: lambda n: 0 * n + 9 for name in ("trains", "stops")}
FEW, FOLDS = "FK-ORDER-ROWS-FEW", ("fed-cg, tuned", "hybrid-equations at hospital")
COLUMNS: Rules = {"take": lambda t: t[:9], "place": lambda p: p[:9]}
ITSELF: Callable[[list[Any]], Any] = list
TRIED: list[tuple[str, Callable[..., str], Any, Any, str]] = [
    *(("min_own_rows", partial(of_run, w), n, n + 1, "FK-POLICY-OWN-ROWS")
      for w, (n, *_) in LEAST.items() if n),
    *(("min_parties", partial(of_run, w), n, n + 1, "FK-POLICY-PARTIES")
      for w, (_, n, _) in LEAST.items()),
    *(("colluders", partial(of_run, w, min_parties=2), n - 2, n - 1, "FK-POLICY-PARTIES")
      for w, (_, n, _) in LEAST.items()),
    *(("min_sum_rows", partial(of_run, w), n, n + 1, "FK-POLICY-SUM-ROWS")
      for w, (*_, n) in LEAST.items()),
    *(("min_evaluation_rows", partial(of_run, w), n, n + 1, "no figures")
      for w, n in HELD_OUT.items()),
    *(("max_evaluations", partial(of_run, w), 1, 0, "FK-POLICY-EVALUATIONS") for w in HELD_OUT),
    *(("max_evaluations", partial(of_known, w, ITSELF), 2, 1, "FK-POLICY-EVALUATIONS")
      for w in ("fed-cg", "kernel-pca")),
    *(("methods", partial(of_run, w), ("of-others", WAYS[w].method), ("of-others",),
       "FK-POLICY-METHODS") for w in LEAST if w != "secure-aggregation"),
    *(("require_secure_sums", partial(of_run, w), False, True, "FK-POLICY-SECURE")
      for w in ("pof-mkl", "per-fed-avg")),
    *(("require_pinned_identities", partial(of_run, w), False, True, "FK-POLICY-IDENTITIES")
      for w in LEAST),
    *(("max_epsilon", partial(of_known, w), 8.0, 7.99, "FK-POLICY-EPSILON") for w in PRIVATE),
    *(("max_epsilon", partial(of_known, w, ITSELF), 17.0, 8.0, "FK-BUDGET-SPENT")
      for w in PRIVATE[-1:]),
    *(("max_delta", partial(of_known, w, max_epsilon=8.0), 1e-5, 9.9e-6, "FK-POLICY-DELTA")
      for w in PRIVATE),
    ("permanent_ids", partial(of_known, "fed-cg, private", others, max_epsilon=8.0), True, False,
     "FK-BUDGET-SPENT"),
    *(("allow_party_change", partial(of_known, w, list.pop), True, False, "FK-CELLS-ONE-APART")
      for w in ("kernel-pca", "fdskl", "fed-cfk")),
    *(("counting", partial(of_run, w), "warn", "refuse", "FK-CELLS-NUMBERS")
      for w in ("hierarchical-svm", "hierarchical-svm, leave out")),
    ("allow_small_sums", partial(of_run, "hierarchical-svm", counting="refuse"), True, False,
     "FK-CELLS-NUMBERS"),
    ("max_binary_columns", partial(of_run, replace(WAYS["fdskl"], tables=binary)), 2, 1,
     "FK-POLICY-BINARY"),
    ("min_own_rows", partial(of_file, 9), 9, 10, "9 wait"),
    ("min_evaluation_rows", of_six_held_out, 6, 7, FEW),
    ("strata", partial(of_file, 150), (), ("sex",), "1 wait"),
    ("labels", partial(of_file, 150), (), ("y",), "1 wait"),
    ("held_out", of_fifth, False, True, "30 held out"),
    # what a server may ask for that plans with less than its nodes allow
    ("min_own_rows", partial(of_message, *FOLDS, {"folds": 3}), 5, 6, "FK-POLICY-OWN-ROWS"),
    ("min_sum_rows", partial(of_message, *FOLDS, {"folds": 3}), 15, 16, "FK-POLICY-SUM-ROWS"),
    ("min_own_rows", partial(of_message, "fed-cg, normal landmarks", "hybrid-moments", NINE),
     9, 10, FEW),
    ("min_own_rows", partial(of_message, "fdskl", "vertical-train", {"rows": lambda r: r[:9]}),
     9, 10, FEW),
    *(("min_own_rows", partial(of_message, "hierarchical-svm, vertical", *asks), 9, 10, FEW)
      for asks in (("svm-columns", COLUMNS), ("svm-owner at owner: ", {"rows": 9}))),
]  # fmt: skip


#: Of each rule, tried in one way, the first is tried by make test.
SEEN = Counter[Any]()
ROWS = []
for row in TRIED:
    how = getattr(row[1], "func", row[1]), len(getattr(row[1], "args", ()))
    SEEN[row[0], how, row[4]] += 1
    first = how[0] is of_message or SEEN[row[0], how, row[4]] < 2
    more = () if first else pytest.mark.long
    ROWS.append(pytest.param(*row, id=f"{row[0]}-{len(ROWS)}", marks=more))


def test_every_rule_is_tried() -> None:
    # tests/strategies/test_secure_gram.py and test_summary.py try these
    elsewhere = {"allow_recovery", "report_checks"}
    assert {rule for rule, *_ in TRIED} | elsewhere == {f.name for f in fields(NodePolicy)}


@pytest.mark.parametrize(("rule", "of", "at", "beyond", "code"), ROWS)
def test_a_node_answers_at_the_limit_and_not_beyond(
    rule: str, of: Callable[..., str], at: Any, beyond: Any, code: str
) -> None:
    assert of(**{rule: at}) != code
    assert of(**{rule: beyond}) == code


def test_shares_of_seeds_are_sealed_for_others_only_where_that_is_allowed() -> None:
    sent = []
    for allowed in (True, False):
        policy = NodePolicy(allow_recovery=allowed, counting="warn")
        sites = WAYS["secure-gram"].sites(guarded=True, policy=policy)
        rng = np.random.default_rng(0)
        sites.tables = [{"x": (rng.random((8, 60)) < 0.5).astype(int)} for _ in range(8)]
        sent.append(sites.fit().strategy.ledger_.bytes_up)
    assert sent[0] > 1.2 * sent[1]


def test_lambda_is_chosen_by_as_many_as_a_figure_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    fewest, tuned = set[int](), Recommender.tuned

    def noted(self: Recommender, *users: Any, **more: Any) -> Any:
        fewest.add(more["fewest"])
        return tuned(self, *users, **more)

    monkeypatch.setattr(Recommender, "tuned", noted)
    for least, expected in ((0, 5), (5, 5), (6, 6)):
        fewest.clear()
        assert of_run("fed-cfk", min_evaluation_rows=least) == ""
        assert fewest == {expected}


@pytest.mark.parametrize("way", ["pof-mkl, secure", "vm-kofl, secure"])
@pytest.mark.parametrize("samples", [2, 3])
def test_as_many_numbers_are_planned_as_there_are_unknowns(way: str, samples: int) -> None:
    """Losses that are summed beside gradients count too; a frequency has two numbers."""
    more: Rules = {"samples_per_round": samples, "frequencies_per_round": "auto", "features": 20}
    planned = fit(way, start={"num_rounds": 2}, **more).strategy.privacy()["sums"][0]
    assert planned["unknowns"] - 2 < planned["numbers"] <= planned["unknowns"]

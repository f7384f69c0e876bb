"""How the methods scale: formulas against measurements, and what many clients or rows take.

Three parts. ``cpu``: constants of CPU time fitted to small runs predict a larger one, that of
clients and of the server apart. ``large``: real runs at scale, each a process of its own with its
peak memory, one core. ``computed``: bytes by the formulas of ``costs.py``, which the tests hold
against the ledgers of real runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import cases
import costs
import numpy as np
from common import Record, in_own_process, new_table, peak_memory, run_script
from rich.console import Console
from rich.progress import track
from scipy.optimize import nnls

from fedkern_flwr.secure_sum.graph import degree
from fedkern_flwr.simulations import InProcessGrid, simulate

PARTS = ("cpu", "large", "computed")
Sizes = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """How to run a method at a size, and its formulas.

    Attributes
    ----------
    title : str
    case, cost : callable
        Take the sizes as arguments; those that the other does not know are left out.
    terms : callable
        Sizes -> what the CPU time of clients and of the server is a sum of, with constants.
    fit : tuple of dict
        Sizes for ``cpu``; the last is predicted from the others.
    """

    title: str
    case: Callable[..., cases.Case]
    cost: Callable[..., costs.Cost]
    terms: Callable[[Any], tuple[list[float], list[float]]]
    fit: tuple[Sizes, ...]


class At:
    """Sizes by attribute."""

    def __init__(self, sizes: Sizes) -> None:
        self.__dict__.update(sizes)


def grid(*names: str, of: Sequence[Sequence[Any]], **fixed: Any) -> tuple[Sizes, ...]:
    """Return sizes, a row of values each."""
    return tuple({**fixed, **dict(zip(names, row, strict=True))} for row in of)


def _online_terms(s: Any) -> tuple[list[float], list[float]]:
    messages, vector = s.clients * s.rounds / s.batch, 51 * 2 * s.features
    clients = [messages, s.clients * s.rounds * vector]
    server = [messages, messages * vector]
    if s.secure:
        k = degree(s.clients)
        clients += [messages * k, messages * k * vector]
        server += [messages * k]
    return clients, server


def _hybrid_terms(s: Any) -> tuple[list[float], list[float]]:
    pairs = s.centres * (s.centres + 1)
    rows, numbers = s.rows * (s.centres + 1), s.rows * s.landmarks
    clients = [rows, numbers * pairs, numbers * s.landmarks]
    return clients, [rows, numbers * (s.centres + 1)]


def _vertical_terms(s: Any) -> tuple[list[float], list[float]]:
    rows, phases = s.parties * s.rows, s.parties * s.rows * s.features
    return [rows, phases * s.parties, s.rows * s.features**2], [rows, phases]


def _matrix_terms(s: Any) -> tuple[list[float], list[float]]:
    k, numbers = degree(s.nodes), s.nodes * s.items**2
    clients = [s.nodes, s.nodes * k, numbers * k, numbers]
    return clients, [s.nodes * k, numbers]


def _group_terms(s: Any) -> tuple[list[float], list[float]]:
    visits = s.iterations * s.users
    return [visits, s.iterations * s.rows * s.columns], [visits, s.users**2]


def _column_terms(s: Any) -> tuple[list[float], list[float]]:
    visits = s.iterations * s.groups * s.users
    numbers = s.iterations * s.rows * s.groups * s.users
    return [visits, numbers], [visits, numbers]


ONLINE = ("clients", "rounds", "batch", "features")
HYBRID = ("hospitals", "centres", "rows", "landmarks")
VERTICAL = ("parties", "rows", "tests", "features")
STREAM = ("parties", "rows", "tests", "directions", "batch", "rounds")
MATRIX = ("nodes", "users", "items")
BY_ROWS = ("users", "groups", "columns", "rows", "iterations")
BY_COLUMNS = ("groups", "users", "columns", "rows", "iterations")

METHODS = {
    "pof-mkl": Method(
        "POF-MKL, plain",
        cases.pof_mkl,
        costs.pof_mkl,
        _online_terms,
        grid(
            *ONLINE,
            of=((10, 20, 1, 5), (20, 20, 1, 20), (40, 10, 1, 40), (200, 20, 1, 40)),
            secure=False,
        ),
    ),
    "pof-mkl-secure": Method(
        "POF-MKL, secure",
        cases.pof_mkl,
        costs.pof_mkl,
        _online_terms,
        grid(
            *ONLINE,
            of=((10, 20, 1, 5), (20, 10, 1, 20), (50, 4, 1, 20), (80, 3, 1, 5), (150, 3, 1, 40)),
            secure=True,
        ),
    ),
    "fed-cg": Method(
        "FedCG, secure",
        cases.fed_cg,
        costs.fed_cg,
        _hybrid_terms,
        grid(
            *HYBRID,
            of=(
                (4, 3, 5000, 50),
                (4, 3, 10000, 100),
                (4, 3, 5000, 200),
                (4, 2, 10000, 50),
                (4, 3, 40000, 300),
            ),
        ),
    ),
    "fdskl": Method(
        "FDSKL, one-shot",
        cases.fdskl,
        costs.fdskl,
        _vertical_terms,
        grid(
            *VERTICAL,
            of=(
                (4, 5000, 500, 100),
                (4, 10000, 500, 200),
                (8, 5000, 500, 200),
                (4, 40000, 1000, 500),
            ),
            choose=False,
        ),
    ),
    "fdskl-streaming": Method(
        "FDSKL, streaming",
        cases.fdskl_streaming,
        costs.fdskl_streaming,
        lambda s: (
            [s.parties * s.rounds, s.parties**2 * s.directions * s.batch * s.rounds**2],
            [s.parties * s.rounds, s.parties * s.directions * s.batch * s.rounds**2],
        ),
        grid(
            *STREAM,
            of=(
                (4, 2000, 200, 4, 64, 25),
                (4, 2000, 200, 8, 64, 50),
                (8, 4000, 200, 4, 64, 50),
                (4, 20000, 200, 8, 256, 100),
            ),
        ),
    ),
    "secure-gram": Method(
        "Secure Gram",
        cases.secure_gram,
        costs.secure_gram,
        _matrix_terms,
        grid(
            *MATRIX,
            of=((20, 5, 200), (50, 5, 200), (50, 5, 600), (80, 5, 300), (120, 5, 800)),
            drop_outs=True,
        ),
    ),
    "fed-cfk": Method(
        "FedCFK",
        cases.fed_cfk,
        costs.fed_cfk,
        _matrix_terms,
        grid(
            *MATRIX,
            of=((20, 5, 200), (50, 5, 200), (50, 5, 600), (80, 5, 300), (120, 5, 800)),
            drop_outs=True,
        ),
    ),
    "svm-rows": Method(
        "HierarchicalSVM, rows",
        cases.horizontal_svm,
        costs.horizontal_svm,
        _group_terms,
        grid(
            *BY_ROWS,
            of=(
                (20, 4, 10, 1000, 10),
                (40, 4, 10, 4000, 10),
                (40, 4, 30, 2000, 10),
                (160, 8, 20, 8000, 20),
            ),
        ),
    ),
    "svm-columns": Method(
        "HierarchicalSVM, columns",
        cases.vertical_svm,
        costs.vertical_svm,
        _column_terms,
        grid(
            *BY_COLUMNS,
            of=((2, 2, 8, 1000, 6), (2, 4, 8, 4000, 6), (4, 2, 8, 4000, 6), (4, 4, 16, 20000, 8)),
        ),
    ),
}

#: Real runs at scale: method, what is large, sizes.
LARGE: tuple[tuple[str, str, Sizes], ...] = (
    ("pof-mkl", "10^3 clients", {"clients": 1000, "rounds": 20, "batch": 1, "features": 20}),
    ("pof-mkl", "10^5 clients", {"clients": 100_000, "rounds": 2, "batch": 1, "features": 5}),
    ("pof-mkl-secure", "10^3 clients",
     {"clients": 1000, "rounds": 20, "batch": 10, "features": 20}),
    ("fed-cg", "10^3 hospitals",
     {"hospitals": 1000, "centres": 3, "rows": 20_000, "landmarks": 100}),
    ("fed-cg", "10^5 rows", {"hospitals": 4, "centres": 3, "rows": 100_000, "landmarks": 300}),
    ("fed-cg", "10^6 rows", {"hospitals": 4, "centres": 3, "rows": 1_000_000, "landmarks": 100}),
    ("fed-cg", "10^7 rows", {"hospitals": 4, "centres": 3, "rows": 10_000_000, "landmarks": 20}),
    ("fdskl", "10^2 parties", {"parties": 100, "rows": 2000, "tests": 200, "features": 200}),
    ("fdskl", "10^5 rows", {"parties": 4, "rows": 100_000, "tests": 1000, "features": 500}),
    ("fdskl", "10^6 rows", {"parties": 4, "rows": 1_000_000, "tests": 1000, "features": 200}),
    ("fdskl", "10^7 rows", {"parties": 3, "rows": 10_000_000, "tests": 1000, "features": 20}),
    ("fdskl-streaming", "10^5 rows",
     {"parties": 4, "rows": 100_000, "tests": 1000, "directions": 16, "batch": 1024,
      "rounds": 100}),
    ("secure-gram", "10^3 nodes", {"nodes": 1000, "users": 1, "items": 500}),
    ("secure-gram", "10^5 users", {"nodes": 1000, "users": 100, "items": 500}),
    ("secure-gram", "10^7 users", {"nodes": 1000, "users": 10_000, "items": 50}),
    ("fed-cfk", "10^3 nodes", {"nodes": 1000, "users": 1, "items": 500}),
    ("svm-rows", "10^3 users",
     {"users": 1000, "groups": 30, "columns": 20, "rows": 20_000, "iterations": 10}),
    ("svm-rows", "10^5 rows",
     {"users": 20, "groups": 5, "columns": 20, "rows": 100_000, "iterations": 10}),
    ("svm-rows", "10^7 rows",
     {"users": 20, "groups": 5, "columns": 20, "rows": 10_000_000, "iterations": 10}),
    ("svm-columns", "10^5 rows",
     {"groups": 4, "users": 2, "columns": 20, "rows": 100_000, "iterations": 10}),
    ("svm-columns", "10^6 rows",
     {"groups": 4, "users": 2, "columns": 20, "rows": 1_000_000, "iterations": 5}),
)  # fmt: skip

#: By formula: method, what is large, sizes.
COMPUTED: tuple[tuple[str, str, Sizes], ...] = (
    ("pof-mkl", "10^7 clients",
     {"clients": 10**7, "rounds": 500, "batch": 50, "features": 20, "chosen": 25}),
    *(("pof-mkl-secure", f"10^{e} clients",
       {"clients": 10**e, "rounds": 500, "batch": 50, "features": 20}) for e in (3, 5, 7)),
    ("fed-cg", "10^7 rows", {"hospitals": 4, "centres": 3, "rows": 10**7, "landmarks": 300}),
    ("fed-cg", "10^5 hospitals",
     {"hospitals": 10**5, "centres": 3, "rows": 10**7, "landmarks": 300}),
    ("fdskl", "10^7 rows", {"parties": 4, "rows": 10**7, "tests": 1000, "features": 2000}),
    ("fdskl-streaming", "10^7 rows",
     {"parties": 4, "rows": 10**7, "tests": 1000, "directions": 16, "batch": 1024,
      "rounds": 10_000}),
    *(("secure-gram", f"10^{e} nodes", {"nodes": 10**e, "users": 1, "items": 1682})
      for e in (3, 5, 7)),
    *(("fed-cfk", f"10^{e} nodes", {"nodes": 10**e, "users": 1, "items": 1682})
      for e in (3, 5, 7)),
    *(("svm-rows", f"10^{e} users",
       {"users": 10**e, "groups": 30, "columns": 20, "iterations": 50}) for e in (3, 5, 7)),
    ("svm-columns", "10^7 rows",
     {"groups": 4, "users": 2, "columns": 20, "rows": 10**7, "iterations": 12}),
)  # fmt: skip

#: Arguments that a formula needs and a case has fixed, and the other way round.
_CHOSEN = {"kernels": 51, "chosen": 25}


def formula(name: str, sizes: Sizes) -> costs.Cost:
    """Return the cost of a method by its formula."""
    return _call(METHODS[name].cost, {**_CHOSEN, **_defaults(name), **sizes})


def _defaults(name: str) -> Sizes:
    if name.startswith("pof-mkl"):
        return {"secure": name.endswith("secure")}
    return {"drop_outs": True} if name in ("secure-gram", "fed-cfk") else {}


def _call(function: Callable[..., Any], values: Sizes) -> Any:
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return function(**{name: value for name, value in values.items() if name in known})


def run(name: str, sizes: Sizes) -> dict[str, Any]:
    """Run a method; return what it cost, CPU seconds of all clients and of the server apart."""
    case = _call(METHODS[name].case, {**_defaults(name), **sizes})
    case.strategy.node_timeout = 3600.0  # 10^7 ids take minutes where all parties share a core
    clients, answer = 0.0, InProcessGrid._answer

    def timed(self: InProcessGrid, message: Any) -> Any:
        nonlocal clients
        started = time.process_time()
        try:
            return answer(self, message)
        finally:
            clients += time.process_time() - started

    started, busy = time.perf_counter(), time.process_time()
    with mock.patch.object(InProcessGrid, "_answer", timed):
        simulate(case.strategy, case.client_fn, case.nodes, **case.start)
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    ledger = case.strategy.ledger_
    return {
        "nodes": case.nodes,
        "seconds": seconds,
        "clients": clients,
        "server": busy - clients,
        "exchanges": ledger.exchanges,
        "up": ledger.bytes_up,
        "down": ledger.bytes_down,
        "iterations": case.strategy.metrics_.get("iterations"),
        "peak": peak_memory(),
    }


def text_of(sizes: Sizes) -> str:
    """Return sizes as a line."""
    shown = {k: v for k, v in sizes.items() if k not in ("secure", "choose")}
    return ", ".join(
        f"{name} {value:,}" if isinstance(value, int) and not isinstance(value, bool) else
        f"{name} {value}" for name, value in shown.items()
    )  # fmt: skip


def _iterations(found: dict[str, Any]) -> Sizes:
    return {"iterations": found["iterations"]} if found["iterations"] else {}


def check_cpu(names: Sequence[str], console: Console) -> list[Record]:
    """Fit constants to small runs, predict a larger one."""
    table = new_table(
        "CPU seconds: measured / predicted",
        "method | predicted run | clients | server | clients s | server s",
        text="method | predicted run",
    )
    records = []
    for name in track(names, "cpu", console=console, transient=True):
        method, rows = METHODS[name], []
        for sizes in method.fit:
            values = {"name": name, "sizes": sizes}
            found = in_own_process(__file__, values, threads=1)
            rows.append((method.terms(At({**sizes, **_iterations(found)})), found))
        ratios = {}
        for place, side in enumerate(("clients", "server")):
            terms = np.array([row[0][place] for row in rows])
            seconds = np.array([row[1][side] for row in rows])
            weights = 1.0 / seconds[:-1]  # relative errors count
            constants, _ = nnls(terms[:-1] * weights[:, None], np.ones(len(weights)))
            ratios[side] = float(seconds[-1] / (terms[-1] @ constants))
        last = rows[-1][1]
        table.add_row(
            method.title,
            text_of(method.fit[-1]),
            f"{ratios['clients']:.2f}",
            f"{ratios['server']:.2f}",
            f"{last['clients']:.2f}",
            f"{last['server']:.2f}",
        )
        records += [
            Record(f"{name}: CPU of {side}", ratio, "measured / predicted")
            for side, ratio in ratios.items()
        ]
    console.print(table)
    return records


def run_large(names: Sequence[str], limit: float, large: str, console: Console) -> list[Record]:
    """Run at scale what is so large; each run for ``limit`` seconds at most."""
    table = new_table(
        "real runs in process, one core",
        "method | large | sizes | seconds | clients ms | server s | peak GB | GB up | "
        "GB down | bytes",
        text="method | large | sizes",
    )
    records = []
    for name, what, sizes in track(LARGE, "large", console=console, transient=True):
        if name not in names or not what.startswith(large):
            continue
        values = {"name": name, "sizes": sizes}
        try:
            found = in_own_process(__file__, values, threads=1, timeout=limit)
        except subprocess.TimeoutExpired:
            table.add_row(METHODS[name].title, what, text_of(sizes), f"over {limit:g}")
            continue
        cost = formula(name, {**sizes, **_iterations(found)})
        table.add_row(
            METHODS[name].title,
            what,
            text_of(sizes),
            f"{found['seconds']:.1f}",
            f"{1e3 * found['clients'] / found['nodes']:.1f}",
            f"{found['server']:.1f}",
            f"{found['peak'] / 1e9:.2f}",
            f"{found['up'] / 1e9:.3f}",
            f"{found['down'] / 1e9:.3f}",
            f"{(found['up'] + found['down']) / (cost.up() + cost.down()):.4f}",
        )
        label = f"{name}: {what} ({text_of(sizes)})"
        records += [
            Record(f"{label}: seconds", found["seconds"], "s"),
            Record(f"{label}: CPU per client", found["clients"] / found["nodes"], "s"),
            Record(f"{label}: CPU of the server", found["server"], "s"),
            Record(f"{label}: peak memory", found["peak"], "bytes"),
        ]
    console.print(table)
    return records


def compute(names: Sequence[str], console: Console) -> list[Record]:
    """Print bytes by formula."""
    table = new_table(
        "by formula",
        "method | large | sizes | role | exchanges | MB up each | MB down each | TB in all",
        text="method | large | sizes | role",
    )
    records = []
    for name, what, sizes in COMPUTED:
        if name not in names:
            continue
        cost = formula(name, sizes)
        for role, party in cost.roles.items():
            table.add_row(
                METHODS[name].title,
                what,
                text_of(sizes),
                role,
                f"{cost.exchanges:,}",
                f"{party.up / 1e6:,.3f}",
                f"{party.down / 1e6:,.3f}",
                f"{(cost.up() + cost.down()) / 1e12:,.3f}",
            )
            label = f"{name}: {what} ({text_of(sizes)}): {role}"
            records += [
                Record(f"{label}: up", party.up, "bytes"),
                Record(f"{label}: down", party.down, "bytes"),
            ]
    console.print(table)
    return records


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Print the tables of the parts."""
    if options.one:
        print(json.dumps(run(**json.loads(options.one))))
        return []
    parts = ["computed"] if options.quick else options.parts.split(",")
    names = options.methods.split(",")
    console.width = max(150, console.width)
    large = partial(run_large, limit=options.limit, large=options.large)
    steps = {"cpu": check_cpu, "large": large, "computed": compute}
    return [record for part in parts for record in steps[part](names, console=console)]


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        parts=("cpu,computed", ",".join(PARTS)),
        methods=",".join(METHODS),
        limit=(600.0, "seconds of a large run"),
        large=("", "only what is so large, as 10^7"),
    )

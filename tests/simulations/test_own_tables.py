"""Tables as people have them: what is typed with own files, and what is shown, kept and predicted.

``DAY`` is a day of a newcomer: lines that are typed, and what the last of them shows.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from command_line import Tables
from pyarrow import csv as arrow_csv

from ..helpers.awkward import LABEL, awkward_tables, everything

pytestmark = pytest.mark.usefixtures("in_tmp")
MAIL = "fedkern run fed-cg --data mail.csv --label kind --id number --landmarks 30 --out mail"
PARTIES = "--party north.csv --party south.csv --party lab.csv:features --label ill --id patient"
LAB = "fedkern run fed-cg --data lab-2.csv --label grade"
VISITS = "fedkern run fed-cg --data visits.csv --label ill --id patient --out o --landmarks 12"
#: What is typed, one line after the other, and what must be seen of the last one.
DAY: dict[str, tuple[list[str], str]] = {
    "new rows unlike those of the run": (
        [MAIL, "fedkern predict mail --data odd-mail.csv"],
        "'sender' in 2 of 40 rows.*'length' in 1 of 40 rows.*'links' in 3 of 40 rows",
    ),
    "ids twice": (
        [MAIL, "fedkern predict mail --data twice.csv"],
        "the id column of twice.csv .*40 predictions: mail/pred",
    ),
    "a point asked for": ([f"{LAB} --decimal . --centres 0 --out o"], "'crp'.*--decimal ,"),
    "limits among numbers, dates, a typo": (
        [f"{LAB} --categories onehot --explain-columns --out o"],
        "(?=.*decimal)(?=.*40 cells of 'ddimer' are limits)(?=.*'day': dates are read as day-first)"
        "(?=.*modrate)",
    ),
    "ids that are numbers": (
        ["fedkern run hierarchical-svm --data visits.csv --label ill --rounds 3 --users 4 --out o"],
        "'patient' has .*--id patient.*iterations 3, not converged",
    ),
    "two parties in a sum, classes written in two ways": (
        [f"fedkern run fed-cg {PARTIES} --allow-single --classes no,yes,Yes=yes --out o"],
        "(?=.*2 classes: no)(?=.*two parties: .*third)",
    ),
    "counts with noise": (
        [f"{VISITS} --basis fourier --hospitals 4 --centres 0 --scaling range --privacy-epsilon 3"],
        "rows ~.*with ~",
    ),
}  # fmt: skip


def write_tables(rows: int = 120) -> None:
    """Write the tables of the day."""
    write = Tables.write
    rng = np.random.default_rng(24)
    kind = np.array(["ham", "news", "spam"])[np.arange(rows) % 3]
    mail: dict[str, Any] = {
        "number": np.arange(7000, 7000 + rows),
        "money": rng.lognormal(0.0, 2.5, rows) * (1.0 + 20.0 * (kind == "spam")),
        "length": rng.normal(200.0, 40.0, rows) + 150.0 * (kind == "news"),
        "links": rng.poisson(2.0, rows) + 3 * (kind != "ham"),
        "sender": rng.choice(["work", "shop", "friend"], rows),
    }
    write("mail.csv", {**mail, "kind": kind})
    new = {name: list(cells[:40]) for name, cells in mail.items()}
    write("twice.csv", {**new, "number": [7002, 7002, 7002, *range(7003, 7040)]})
    new["sender"][3:5], new["length"][7], new["links"][:3] = ["bank", "aunt"], 1e6, [""] * 3
    write("odd-mail.csv", {"remark": ["read, later"] * 40, **new})
    age, dose = rng.normal(50.0, 9.0, rows), rng.uniform(0.0, 4.0, rows)
    visits, x = rng.integers(0, 6, rows), rng.normal(size=(2, rows))
    ill = np.where(age + 5.0 * dose + 4.0 * visits > 70.0, "yes", "no")
    patient = rng.permutation(rows) + 1000
    clinic: dict[str, Any] = {"patient": patient, "age": age, "dose": dose, "p": x[0], "q": x[1]}
    write("visits.csv", {**clinic, "visits": visits, "ill": ill})
    for name, part, yes in (("north", slice(0, 60), "yes"), ("south", slice(60, rows), " Yes")):
        own = {
            "patient": patient, "age": age, "dose": dose, "ill": np.where(ill == "yes", yes, ill),
        }  # fmt: skip
        write(f"{name}.csv", {k: v[part] for k, v in own.items()})
    lab = {"patient": patient, "p": x[0], "q": x[1], "ill": ill}
    write("lab.csv", {k: v[::-1] for k, v in lab.items()})
    quoted: dict[str, Any] = {
        name: [f"{one:.2f}".replace(".", ",") for one in cells]
        for name, cells in (("crp", age), ("iron", dose), ("zinc", x[0]))
    }
    quoted["ddimer"] = ["<5" if k % 3 == 1 else f"{5 + k % 40}" for k in range(rows)]
    days = [f"{k % 28 + 1}.{k % 12 + 1}.{1900 + k}" for k in range(rows)]
    grade = ["modrate", *("mild" if k % 2 else "severe" for k in range(1, rows))]
    write("lab-2.csv", {**quoted, "day": days, "grade": grade})


@pytest.mark.parametrize("name", DAY)
def test_what_is_typed_shows_what_it_should(name: str, commands: Any) -> None:
    lines, seen = DAY[name]
    write_tables()
    for line in lines:
        code, out, err = commands(*line.split()[1:])
        assert code == 0, err
    assert re.search(seen, " ".join((err + out).split())), err


# -- twenty tables of every kind

STREAM = ["--clients", "3", "--rounds", "20"]
#: A method of each family, and with which tables it says that it cannot.
FAMILIES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "fed-cg": (["--landmarks", "16"], ()),
    "fdskl": (["--features", "30", "--gamma", "0.1", "--regularization", "0.01"], ()),
    "secure-gram": (["--encoding", "fixed-point", "--learner", "ridge", "--cost", "1"], ()),
    "hierarchical-svm": (["--users", "4", "--rounds", "8"], ()),
    "kernel-pca": (["--clients", "3", "--features", "6"], ()),
    "pof-mkl": (STREAM, ("three classes", "dictionaries", "everything")),
}
#: What new rows have in place of cells of some kind: what is not known, gaps, what is no such cell.
NEW = {
    "category": ["violet", None, " red "], "date": ["yesterday", "", "2031-01-01"],
    "number": ["1e300", "", "?"], "boolean": ["maybe", None, "yes"],
}  # fmt: skip
TABLES = {**awkward_tables(), "everything": everything()}


@pytest.mark.parametrize("method", FAMILIES)
@pytest.mark.parametrize("name", TABLES)
def test_a_method_takes_each_table_or_says_why_not(name: str, method: str, commands: Any) -> None:
    """New rows have unknown categories, gaps and cells that are something else."""
    table, rng = TABLES[name], np.random.default_rng(7)
    columns, kinds = dict(table.columns), dict(table.kinds)
    for k in range(4):  # so that each party has a column
        columns[f"more {k}"] = rng.normal(size=len(table.labels)).tolist()
        kinds[f"more {k}"] = "number"
    arrow_csv.write_csv(table._replace(columns=columns).arrow(), "t.csv")
    ridge = ["--model", "ridge"] if (name, method) == ("regression", "hierarchical-svm") else []
    more, cannot = FAMILIES[method]
    run = [method, "--data", "t.csv", "--label", LABEL, *more, *ridge]
    if name in cannot:
        assert commands.complaint("run", *run).endswith("[FK-TASK-TEXT]")
        return
    found = commands.trained(*run)
    metrics = found["metrics"]
    assert metrics
    assert np.isfinite([v for v in metrics.values() if isinstance(v, float)]).all()
    shown = {one["column"]: one["kind"] for one in found["columns"]}
    constant = {one: kind for one, kind in kinds.items() if len(set(columns[one])) == 1}
    assert {**constant, **shown} == kinds  # constant ones may be left out
    if method in ("pof-mkl", "kernel-pca"):
        return
    arrow_csv.write_csv(pa.table({column: NEW[kind] for column, kind in kinds.items()}), "new.csv")
    commands.shown("predict", "here", "--data", "new.csv")
    with Path("here/predictions.csv").open(newline="") as file:
        heads, *rows = csv.reader(file)
    assert len(rows) == 3
    if name == "regression":
        assert heads[1] == "prediction"
        assert np.isfinite([float(row[1]) for row in rows]).all()
    else:
        assert {row[1] for row in rows} <= set(table.labels)


@pytest.mark.promise("encoding-training-rows")
@pytest.mark.parametrize("name", ["fed-cg", "fdskl", "hierarchical-svm", "kernel-pca", "pof-mkl"])
def test_an_encoder_is_of_the_rows_that_are_not_held_out(name: str, commands: Any) -> None:
    table = everything()
    numbers = table._replace(labels=[float(y != "c") for y in table.labels])
    arrow_csv.write_csv(numbers.arrow(), "t.csv")
    more = [*FAMILIES[name][0], *(["--rounds", "8"] if name == "pof-mkl" else [])]
    commands.trained(name, "--data", "t.csv", "--label", LABEL, *more, "--test-size", "0.4")
    columns = json.loads(Path("here/scaling.json").read_text())["encoder"]["columns"]
    rows = len(table.labels)
    found = {part["rows"] for one in columns for part in [one.get("facts") or {"rows": 0}]}
    assert max(found) == rows - round(0.4 * rows)


def test_no_category_is_in_what_a_run_shows_and_leaves_for_all(commands: Any) -> None:
    arrow_csv.write_csv(everything().arrow(), "t.csv")
    run = ["run", "fed-cg", "--data", "t.csv", "--label", LABEL, "--landmarks", "8"]
    code, out, err = commands(*run, "--explain-columns", "--out", "here", "--json", "-")
    assert code == 0
    for text in (out, err, Path("here/result.json").read_text()):
        for word in ("green", "town 1", "t24", "2020-"):
            assert word not in text
    assert Path("here/scaling.json").stat().st_mode & 0o077 == 0
    said = " ".join(err.split())
    for text in ("colour category 3 categories", "x[1] number 0 to 1", "name category left out"):
        assert text in said
    again = commands.shown("run", "fed-cg", "--resume", "here", "--explain-columns")
    assert "colour category" in again
    found = commands.result(*run[1:], "--categories", "hashing")
    outputs = {one["column"]: one["outputs"] for one in found["columns"]}
    assert outputs["colour"] == 33  # buckets, and whether it is missing
    assert "green" not in Path("here/scaling.json").read_text()


# -- ranks by noisy quantiles


def far_values(rows: int = 3000) -> dict[str, list[Any]]:
    """Return columns with a few values far from the others, gaps, text, and a label."""
    rng = np.random.default_rng(3)
    z = rng.standard_normal((rows, 6))
    columns = {f"x{k}": np.exp(2.5 * z[:, k]).tolist() for k in range(6)}
    columns["x5"] = [value if k % 3 else "" for k, value in enumerate(columns["x5"])]
    ward = rng.integers(0, 3, rows)
    late = z[:, 0] + z[:, 1] - z[:, 2] + 0.7 * (ward == 1) > 0.2
    words = {"ward": np.array(["east", "north", "west"])[ward].tolist()}
    return {**columns, **words, "late": np.where(late, "yes", "no").tolist()}


BOUGHT = ["--data", "far.csv", "--label", "late", "--basis", "fourier", "--hospitals", "4"]
BOUGHT += ["--centres", "0", "--seed", "1"]


def write_far(commands: Any) -> None:
    """Write the table, and the summary with a budget that ranks are bought with."""
    bounds: dict[str, Any] = {f"x{k}": [0, 1e5] for k in range(6)}
    Tables.write("far.csv", far_values())
    Path("b.json").write_text(json.dumps({**bounds, "ward": ["east", "north", "west"]}))
    given = ["--data", "far.csv", "--bounds", "b.json", "--privacy-epsilon", "0.6"]
    commands.result("summary", *given, out="summary")


def test_ranks_that_were_bought_are_worth_their_share_where_values_are_far(commands: Any) -> None:
    """The summary and the model together cost no more than epsilon 3."""
    write_far(commands)
    ranked = [*BOUGHT, "--privacy-epsilon", "2.9", "--ranks", "summary/result.json"]
    found = commands.result("fed-cg", *ranked)
    ranged = commands.result("fed-cg", *BOUGHT, "--privacy-epsilon", "3")
    assert found["metrics"]["test_accuracy"] > ranged["metrics"]["test_accuracy"] + 0.1
    assert "ranks cost epsilon 0.6 in a run before" in " ".join(found["config"]["notes"])
    outputs = {one["column"]: one["outputs"] for one in found["columns"]}
    assert outputs == {"ward": 4, **{f"x{k}": 1 + (k == 5) for k in range(6)}}
    assert "--scaling" not in " ".join(found["config"]["notes"])
    commands.shown("predict", "here", "--data", "far.csv")


def test_ranks_that_do_not_serve_are_refused(commands: Any) -> None:
    write_far(commands)
    table = far_values()
    Tables.write("more.csv", {**table, "dose": table["x1"]})
    commands.result("summary", "--data", "far.csv", out="exact")
    commands.result("fed-cg", *BOUGHT, out="model")
    own = json.loads(Path("model/scaling.json").read_text())["encoder"]
    Path("own.json").write_text(json.dumps(own))
    paid = ["run", "fed-cg", *BOUGHT, "--privacy-epsilon", "2", "--out", "other", "--ranks"]
    for file, code in {
        "gone.json": "FK-FILE-READ",
        "far.csv": "FK-FILE-READ",
        "exact/result.json": "FK-FILE-FORMAT",
        "own.json": "FK-BUDGET-SCALING",
    }.items():
        assert commands.complaint(*paid, file).endswith(f"[{code}]")
    wide = [*paid, "summary/result.json", "--data", "more.csv"]
    assert commands.complaint(*wide).endswith("[FK-COLUMN-MISSING]")

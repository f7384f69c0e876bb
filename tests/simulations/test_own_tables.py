"""Tables as people have them: what is typed with own files, and what is shown, kept and predicted.

``DAY`` is a day of a newcomer: lines that are typed, and what the last of them shows.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from ..helpers.awkward import LABEL, awkward_tables, everything

pytestmark = pytest.mark.usefixtures("in_tmp")
MAIL = "fedkern run fed-cg --data mail.csv --label kind --id number --landmarks 30 --out mail"
PREDICT = "fedkern predict mail --data new-mail.csv"
PARTIES = "--party north.csv --party south.csv --party lab.csv:features --label ill --id patient"
LAB = "fedkern run fed-cg --data lab-2.csv --label grade"
VISITS = "fedkern run fed-cg --data visits.csv --label ill --id patient --out o"
#: What is typed, one after the other, and what must be seen of the last line.
DAY: dict[str, tuple[list[str], str]] = {
    "a folder predicts by itself": ([MAIL, "rm mail.csv", PREDICT], "40 predictions: mail/pred"),
    "in Python": (
        [MAIL, "python from fedkern_flwr import load_model; m = load_model('mail'); "
         "print(m.predict('new-mail.csv')[:2], m.predict_proba('new-mail.csv').shape)"],
        r"\['(ham|news|spam)' '(ham|news|spam)'\] \(40, 3\)",
    ),
    "new rows unlike those of the run": (
        [MAIL, "fedkern predict mail --data odd-mail.csv"],
        "'sender' in 2 of 40 rows.*'length' in 1 of 40 rows.*'links' in 3 of 40 rows",
    ),
    "a file of predictions": (
        [MAIL, PREDICT, "cat mail/predictions.csv"],
        "^number,class,.*probability_ham,probability_news,probability_spam.* 7000,",
    ),
    "ids twice": (
        [MAIL, "python text = open('new-mail.csv').read().replace(',7003,', ',7002,'); "
         "open('twice.csv', 'w').write(text)", "fedkern predict mail --data twice.csv"],
        "the id column of twice.csv .*40 predictions",
    ),
    "tabs, decimal commas and ?": (
        ["fedkern run fed-cg --data clinic.tsv --label ill --id patient --out o"],
        "clinic.tsv has a decimal comma and 10 cells",
    ),
    "decimal commas in quotes": ([f"{LAB} --explain-columns --out o"], "crp number .*decimal"),
    "a point asked for": ([f"{LAB} --decimal . --centres 0 --out o"], "'crp'.*--decimal ,"),
    "limits among numbers, dates, a typo": (
        [f"{LAB} --categories onehot --out o"],
        "(?=.*'ddimer'.*80 of 120)(?=.*'day'.*YYYY-MM-DD)(?=.*left out 1 column.*day)(?=.*modrate)",
    ),
    "ids that are numbers": (
        ["fedkern run hierarchical-svm --data visits.csv --label ill --rounds 3 --users 4 --out o"],
        "'patient' has .*--id patient.*iterations 3, not converged",
    ),
    "classes written in two ways": (
        ["python text = open('south.csv').read().replace('yes', ' Yes'); "
         "open('south.csv', 'w').write(text)",
         f"fedkern run fed-cg {PARTIES} --allow-single --out o"],
        "north.csv .*class Yes.*south.csv .*class yes.*Yes, yes",
    ),
    "two parties in a sum": (
        [f"fedkern run fed-cg {PARTIES} --allow-single --out o"], "two parties: .*third"),
    "counts with noise": (
        [f"{VISITS} --basis fourier --hospitals 4 --centres 0 --scaling range --privacy-epsilon 3"],
        "rows ~.*with ~",
    ),
}  # fmt: skip


def write_tables(folder: Path, rows: int = 120) -> None:
    """Write the tables of the day."""
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
    write("new-mail.csv", {"remark": ["read, later"] * 40, **new})
    new["sender"][3:5], new["length"][7], new["links"][:3] = ["bank", "aunt"], 1e6, [""] * 3
    write("odd-mail.csv", new)
    age, dose = rng.normal(50.0, 9.0, rows), rng.uniform(0.0, 4.0, rows)
    visits, x = rng.integers(0, 6, rows), rng.normal(size=(2, rows))
    ill = np.where(age + 5.0 * dose + 4.0 * visits > 70.0, "yes", "no")
    patient = rng.permutation(rows) + 1000
    clinic: dict[str, Any] = {"patient": patient, "age": age, "dose": dose, "p": x[0], "q": x[1]}
    write("visits.csv", {**clinic, "visits": visits, "ill": ill})
    comma = {k: [f"{cell}".replace(".", ",") for cell in v] for k, v in clinic.items()}
    comma["dose"] = ["?" if k % 12 == 5 else cell for k, cell in enumerate(comma["dose"])]
    write("clinic.tsv", {**comma, "ill": ill}, "\t")
    own = {"patient": patient, "age": age, "dose": dose, "ill": ill}
    for name, part in (("north", slice(0, 60)), ("south", slice(60, rows))):
        write(f"{name}.csv", {k: v[part] for k, v in own.items()})
    lab = {"patient": patient, "p": x[0], "q": x[1], "ill": ill}
    write("lab.csv", {k: v[::-1] for k, v in lab.items()})
    days = [f"{k % 28 + 1}.{k % 12 + 1}.{1900 + k}" for k in range(rows)]
    quoted: dict[str, Any] = {
        name: [f"{one:.2f}".replace(".", ",") for one in cells]
        for name, cells in (("crp", age), ("iron", dose), ("zinc", x[0]))
    }
    quoted["ddimer"] = ["<5" if k % 3 == 1 else f"{5 + k % 40}" for k in range(rows)]
    grade = ["modrate", *("mild" if k % 2 else "severe" for k in range(1, rows))]
    write("lab-2.csv", {**quoted, "day": days, "grade": grade})
    side = np.where(np.arange(rows) % 20 == 0, "edge", "flat")
    write("coins.csv", {**{f"x{k}": rng.normal(size=rows) for k in range(4)}, "side": side})


def write(name: str, columns: dict[str, Sequence[Any]], separator: str = ",") -> None:
    with Path(name).open("w", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def type_in(line: str, commands: Any) -> str:
    """Return what is shown of a line that is typed."""
    word, _, rest = line.partition(" ")
    if word == "rm":
        Path(rest).unlink()
    if word == "python":
        with redirect_stdout(StringIO()) as shown:
            exec(rest, {})
        return shown.getvalue()
    if word != "fedkern":
        return "" if word == "rm" else Path(rest).read_text()
    code, out, err = commands(*rest.split())
    assert code == 0, err
    return out + err


@pytest.mark.parametrize("name", DAY)
def test_what_is_typed_shows_what_it_should(name: str, in_tmp: Path, commands: Any) -> None:
    lines, seen = DAY[name]
    write_tables(in_tmp)
    for line in lines:
        text = type_in(line, commands)
    assert re.search(seen, " ".join(text.split())), text


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
    "category": ["violet", None, " red "],
    "date": ["yesterday", "", "2031-01-01"],
    "number": ["1e300", "", "?"],
    "boolean": ["maybe", None, "yes"],
}
TABLES = {**awkward_tables(), "everything": everything()}


@pytest.mark.parametrize("method", FAMILIES)
@pytest.mark.parametrize("name", TABLES)
def test_every_method_takes_each_table_or_says_why_not(
    name: str, method: str, commands: Any
) -> None:
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
    found = commands.result(*run)
    metrics = found["metrics"]
    assert metrics
    assert np.isfinite([v for v in metrics.values() if isinstance(v, float)]).all()
    shown = {one["column"]: one["kind"] for one in found["columns"]}
    assert {**shown, **({"still": "number"} if "still" in kinds else {})} == kinds  # left out
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


def test_every_method_says_that_it_has_other_tables(commands: Any) -> None:
    arrow_csv.write_csv(everything().arrow(), "t.csv")
    for name, code in (("fed-cfk", "FK-COLUMN-UNNAMED"), ("local-only", "FK-TASK-TEXT")):
        label = [] if name == "fed-cfk" else ["--label", LABEL, *STREAM]
        assert commands.complaint("run", name, "--data", "t.csv", *label).endswith(f"[{code}]")


@pytest.mark.promise("encoding-training-rows")
@pytest.mark.parametrize("name", ["fed-cg", "fdskl", "hierarchical-svm", "kernel-pca", "pof-mkl"])
def test_an_encoder_is_of_the_rows_that_are_not_held_out(name: str, commands: Any) -> None:
    table = everything()
    numbers = table._replace(labels=[float(y != "c") for y in table.labels])
    arrow_csv.write_csv(numbers.arrow(), "t.csv")
    more = [*FAMILIES[name][0], *(["--rounds", "8"] if name == "pof-mkl" else [])]
    commands.result(name, "--data", "t.csv", "--label", LABEL, *more, "--test-size", "0.4")
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
    assert "colour category" in commands.shown(
        "run", "fed-cg", "--resume", "here", "--explain-columns"
    )


def test_hashed_text_knows_categories_that_the_run_has_not(commands: Any, tables: Any) -> None:
    here = np.random.default_rng(8).integers(0, 90, 300)
    size = np.random.default_rng(8).normal(size=300)
    labels = np.where(here % 2, "odd", "even")
    write("t.csv", {"town": [f"town {k}" for k in here], "size": size, "outcome": labels})
    run = ["fed-cg", "--data", "t.csv", "--label", "outcome", "--centres", "1"]
    run += ["--allow-single", "--landmarks", "60"]
    found = commands.result(*run, "--categories", "hashing")
    assert {one["column"]: one["outputs"] for one in found["columns"]}["town"] == 32
    assert found["metrics"]["test_accuracy"] > 0.65  # half of them by guessing
    for file in ("scaling.json", "result.json"):
        assert "town 1" not in Path("here", file).read_text()
    write("new.csv", {"town": ["nowhere", "", "elsewhere"], "size": [0.0, 0.0, 0.0]})
    commands.shown("predict", "here", "--data", "new.csv")
    made = tables.read("here/predictions.csv")
    assert len({row["output_0"] for row in made}) == 3  # each has a bucket of its own, or none


def test_tables_of_every_kind_give_the_same(tables: Any, commands: Any) -> None:
    """CSV, Parquet, NPZ, and as a spreadsheet writes it; in runs and predictions."""
    columns = tables.columns()
    tables.write("t.csv", columns)
    parquet.write_table(arrow_csv.read_csv("t.csv"), "t.parquet")
    np.savez("t.npz", X=np.column_stack([columns[c] for c in "abcdef"]), y=columns["y"])
    comma = {c: [str(v).replace(".", ",") for v in cells] for c, cells in columns.items()}
    comma["y"] = [f"{v:.0f}" for v in columns["y"]]
    write("t.tsv", comma, ";")
    found, named = {}, ["--label", "y", "--id", "id", "--site", "town"]
    for path in ("t.csv", "t.parquet", "t.npz", "t.tsv"):
        given = ["--data", path, *(named if path != "t.npz" else [])]
        given += [] if path != "t.tsv" else ["--sep", ";"]
        given += ["--features", "30", "--loss", "square"]  # solved in closed form
        found[path] = commands.result("fdskl", *given, out=path[2:])["metrics"]
        assert found[path] == pytest.approx(found["t.csv"])
    del comma["y"]
    write("new.tsv", {**comma, "note": ["1,5 and 2.5"] * 60}, "\t")
    commands.shown("predict", "csv", "--data", "t.csv", "--out", "one.csv")
    commands.shown("predict", "csv", "--data", "new.tsv", "--decimal", ",", "--out", "two.csv")
    for one, two in zip(tables.read("one.csv"), tables.read("two.csv"), strict=True):
        assert float(one["output_0"]) == pytest.approx(float(two["output_0"]), abs=1e-9)

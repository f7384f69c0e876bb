"""The script of a newcomer's day: own tables, what is typed, and what must be seen.

``python tests/helpers/newcomer.py BIN`` types it with the ``fedkern`` and ``python`` of another
installation, such as one of release 0.1, and prints what is seen there: the table of
docs/results-archive.md, "A newcomer's day".
"""

from __future__ import annotations

import csv
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

ROWS = 120


@dataclass(frozen=True)
class Scene:
    """What is typed in a folder with the tables, and what must be seen.

    Attributes
    ----------
    item : int
        Of "A newcomer's day".
    lines : tuple of str
        ``fedkern ...``, ``python CODE``, ``rm FILE`` or ``cat FILE``, one after the other.
    seen : str
        A regular expression that what the last line shows must have, as one line of text.
    code : int
        With which the last line ends.
    """

    item: int
    lines: tuple[str, ...]
    seen: str
    code: int = 0


def _scene(item: int, *lines: str, seen: str, code: int = 0) -> Scene:
    return Scene(item, lines, seen, code)


MAIL = "fedkern run fed-cg --data mail.csv --label kind --id number --landmarks 30 --out mail"
PREDICT = "fedkern predict mail --data new-mail.csv --id number"
PARTIES = "--party north.csv --party south.csv --party lab.csv:features --label ill --id patient"
FULL = "fedkern run fdskl --data iris --features 20 --out full"
PCA = "fedkern run kernel-pca --data numbers.csv --clients 3 --features 10 --out pca"
COMPARE = "fedkern compare --data visits.csv --label ill --id patient --methods fed-cg --splits 1"
STREAMS = """import numpy as np
from fedkern_flwr.clients import HybridKernelClient, OnlineKernelClient, serve
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import FedCG, VMKOFL
x = np.random.default_rng(0).random((40, 2)) / 2.0
y = x[:, 0]
def client(context): return OnlineKernelClient(context, x, y)
def client_fn(context): return client(context).to_client()
strategy = VMKOFL(features=4)
"""
ONE_LINE = "try: {}\nexcept Exception as e: print(type(e).__name__, e)"

DAY: dict[str, Scene] = {
    "a folder that predicts by itself": _scene(
        1, MAIL, "rm mail.csv", PREDICT, seen="40 predictions: mail/predictions.csv"
    ),
    "predictions in Python": _scene(
        1,
        MAIL,
        "python from fedkern_flwr import load_model; m = load_model('mail'); "
        "print(m.predict('new-mail.csv')[:2], m.predict_proba('new-mail.csv').shape)",
        seen=r"\['(ham|news|spam)' '(ham|news|spam)'\] \(40, 3\)",
    ),
    "a saved model of POF-MKL": _scene(
        1,
        "fedkern run pof-mkl --data numbers.csv --label z --clients 3 --out mail",
        "fedkern predict mail --data numbers.csv",
        seen="120 predictions",
    ),
    "models that are each client's own": _scene(
        1,
        "fedkern run local-only --data numbers.csv --label z --clients 3 --out mail",
        "fedkern predict mail --data numbers.csv --client 2",
        seen="120 predictions",
    ),
    "a network that clients adapt": _scene(
        1,
        "fedkern run per-fed-avg --data numbers.csv --label z --clients 3 --out mail",
        "fedkern predict mail --data numbers.csv",
        seen="120 predictions",
    ),
    "projections of new rows": _scene(
        1,
        PCA,
        "fedkern predict pca --data numbers.csv --out p.csv",
        "cat p.csv",
        seen="^id,component 1,component 2 0,",
    ),
    "a strategy that predicts": _scene(
        1,
        f"python {STREAMS}simulate(strategy, client_fn, 3, num_rounds=5)\n"
        "print(strategy.predict(x).shape)",
        seen=r"\(40,\)",
    ),
    "new rows unlike those of the run": _scene(
        1,
        MAIL,
        "fedkern predict mail --data odd-mail.csv --id number",
        seen="unknown categories, taken as others: 'sender' in 2 of 40 rows .*values far outside "
        "those of training, .*'length' in 1 of 40 rows .*gaps in columns that had none in "
        "training: 'links' in 3 of 40 rows",
    ),
    "a second file of predictions": _scene(
        1, MAIL, PREDICT, PREDICT, seen="40 predictions: mail/predictions-2.csv"
    ),
    "a file of predictions that is used": _scene(
        1,
        MAIL,
        f"{PREDICT} --out p.csv",
        f"{PREDICT} --out p.csv",
        seen="p.csv has results already; choose another --out",
        code=2,
    ),
    "a used file is not the first trouble": _scene(
        1,
        MAIL,
        f"{PREDICT} --out p.csv",
        "fedkern predict mail --data visits.csv --id patient --out p.csv",
        seen="visits.csv lacks 4 columns of the model",
        code=2,
    ),
    "ids keep the name of their column": _scene(
        1, MAIL, PREDICT, "cat mail/predictions.csv", seen="^number,class,"
    ),
    "new files of other names and columns": _scene(
        1,
        f"fedkern run fed-cg {PARTIES.replace('lab.csv', 'lab-age.csv')} --allow-single --out o",
        "python import shutil; shutil.copy('lab-age.csv', 'new-lab.csv')",
        "python import pandas as pd; "
        "pd.read_csv('south.csv').assign(remark='a').to_csv('s.csv', index=False)",
        "fedkern predict o --party s.csv --party north.csv --party new-lab.csv",
        seen="120 predictions",
    ),
    "new rows of each party in Python": _scene(
        1,
        f"fedkern run fed-cg {PARTIES} --allow-single --out o",
        "python from fedkern_flwr import load_model; m = load_model('o'); "
        "print(m.predict(['north.csv', 'south.csv', 'lab.csv']).shape, "
        "(m.predict(['south.csv', 'lab.csv']) == m.predict('visits.csv')[60:]).all())",
        seen=r"\(120,\) True",
    ),
    "ids that the run had": _scene(
        1,
        MAIL,
        "fedkern predict mail --data new-mail.csv --out p.csv",
        "cat p.csv",
        seen="^number,class,.* 7000,",
    ),
    "ids that the run had, one of them twice": _scene(
        1,
        MAIL,
        "python text = open('new-mail.csv').read().replace(',7003,', ',7002,'); "
        "open('twice.csv', 'w').write(text)",
        "fedkern predict mail --data twice.csv --out p.csv",
        seen="the id column of twice.csv .*: the rows are numbered.* 40 predictions",
    ),
    "columns that predict does not need": _scene(
        1,
        "fedkern run fed-cg --data mail.csv --label kind --id number --out mail",
        "fedkern predict mail --data new-mail.csv --id number --out p.csv",
        "cat p.csv",
        seen="^number,class,.* ?probability_ham,probability_news,probability_spam",
    ),
    "classes by name in figures": _scene(2, MAIL, seen=r"held-out rows of spam .*as spam"),
    "one class against the others": _scene(
        2, f"{MAIL} --positive spam", seen="positive class spam"
    ),
    "25 classes of text": _scene(
        2,
        "fedkern run fed-cg --data species.csv --label species --landmarks 40 --out o",
        seen="accuracy on held-out rows",
    ),
    "few numbers: classes or not": _scene(
        2,
        "fedkern run fed-cg --data visits.csv --label visits --id patient --out o",
        seen=r"values are taken for classes; --task regression takes them for numbers",
    ),
    "classes and online methods": _scene(
        2,
        "fedkern run pof-mkl --data visits.csv --label ill --id patient --clients 3 --out o",
        seen="online methods predict numbers: the 2 classes are numbers from 0 to 1",
    ),
    "a file of each party": _scene(
        3, f"fedkern run fed-cg {PARTIES} --allow-single --out o", seen="accuracy on held-out rows"
    ),
    "new rows of each party": _scene(
        3,
        f"fedkern run fed-cg {PARTIES} --allow-single --out o",
        "fedkern predict o --party south.csv --party lab.csv --id patient",
        seen="60 predictions: o/predictions.csv",
    ),
    "files that are another method's": _scene(
        3,
        f"fedkern run hierarchical-svm {PARTIES.replace('lab.csv:features', 'clinic.csv')} --out o",
        seen="clinic.csv has no label column 'ill', and every party of this method has labels; use",
        code=2,
    ),
    "tabs, decimal commas and ?": _scene(
        3,
        "fedkern run fed-cg --data clinic.tsv --label ill --id patient --out o",
        seen="clinic.tsv has a decimal comma and 10 cells that a mark such as . says to be missing",
    ),
    "decimal commas in quotes": _scene(
        3,
        "fedkern run fed-cg --data lab-2.csv --label grade --decimal , --explain-columns --out o",
        seen="crp number .*lab-2.csv has a decimal comma",
    ),
    "decimal commas in quotes, found": _scene(
        3,
        "fedkern run fed-cg --data lab-2.csv --label grade --explain-columns --out o",
        seen="crp number .*lab-2.csv has a decimal comma",
    ),
    "decimal commas, a point asked for": _scene(
        3,
        "fedkern run fed-cg --data lab-2.csv --label grade --decimal . --centres 0 --out o",
        seen="WARNING +'crp' is read as text: 120 of 120 .* --decimal , reads them",
    ),
    "a line with too few cells": _scene(
        3,
        "python text = open('visits.csv').read().splitlines(); text[6] = text[6][:-4]; "
        "open('short.csv', 'w').write('\\n'.join(text))",
        "fedkern run fed-cg --data short.csv --label ill --id patient",
        seen="short.csv is not a readable CSV file: line 7 has 6 cells, the first has 7; mend",
        code=2,
    ),
    "semicolons asked for": _scene(
        3,
        "fedkern run fed-cg --data visits.csv --sep ; --label ill --id patient",
        seen="no label column 'ill'; commas seem to part its columns: use --sep ','",
        code=2,
    ),
    "limits among numbers": _scene(
        3,
        "fedkern run fed-cg --data lab-2.csv --label grade --out o",
        seen="'ddimer' is read as text: 80 of 120 cells look like numbers.*, 40 have a mark",
    ),
    "dates of another form": _scene(
        3,
        "fedkern run fed-cg --data lab-2.csv --label grade --categories onehot --out o",
        seen="'day' .* 120 of 120 cells look like dates, which are read as YYYY-MM-DD alone.*"
        "left out 1 column that says nothing: day",
    ),
    "a class misspelt": _scene(
        3,
        "fedkern run fed-cg --data lab-2.csv --label grade --out o",
        seen="note: 3 classes: mild 60, modrate 1, severe 59; modrate has 1 row: a typo[?]",
    ),
    "classes written in two ways": _scene(
        3,
        "python text = open('south.csv').read().replace('yes', ' Yes'); "
        "open('south.csv', 'w').write(text)",
        f"fedkern run fed-cg {PARTIES} --allow-single --out o",
        seen="WARNING north.csv has no row of class Yes, which others have .*south.csv has no row "
        "of class yes.* classes Yes, yes differ in capital letters or spaces alone",
    ),
    "gaps": _scene(
        3, "fedkern run fed-cg --data gaps.csv --label ill --out o", seen="accuracy on held-out"
    ),
    "skewed columns": _scene(
        3,
        "fedkern run fed-cg --data mail.csv --label kind --id number --explain-columns --out o",
        seen="money number ranks",
    ),
    "an app of one's own": _scene(
        4, "fedkern init fed-cg app", "cat app/pyproject.toml", seen="num-supernodes"
    ),
    "beside scikit-learn": _scene(
        4, f"{COMPARE} --out c", seen="SVC, pooled .* boosted trees, pooled .*a party alone"
    ),
    "too few iterations": _scene(
        5,
        "fedkern run hierarchical-svm --data visits.csv --label ill --id patient --users 4 "
        "--rounds 3 --out o",
        seen="iterations 3, not converged",
    ),
    "ids that are numbers": _scene(
        5,
        "fedkern run secure-gram --data visits.csv --label ill --encoding fixed-point --out o",
        seen="'patient' has another whole number in each row, as ids have: --id patient",
    ),
    "ids that are text": _scene(
        5,
        "fedkern run fed-cg --data names.csv --label ill --out o",
        seen="^((?!whole number).)*left out 1 column that says nothing: name((?!whole number).)*$",
    ),
    "a system that is solved at once": _scene(
        5,
        "fedkern run fed-cg --data visits.csv --label ill --id patient --out o",
        seen="^((?!iterations|residual).)*accuracy on held-out((?!iterations|residual).)*$",
    ),
    "a rare class among columns": _scene(
        6,
        "fedkern run hierarchical-svm --data coins.csv --label side --partition vertical "
        "--users 4 --groups 2 --allow-single --rounds 20 --out o",
        seen="found in no held-out row; if they are rare, fdskl with --class-weight balanced",
    ),
    "folds that cannot be": _scene(
        6,
        "fedkern run fed-cg --data visits.csv --label ill --id patient --tune folds "
        "--hospitals 10 --out o",
        seen="cross-validation chooses, not folds: more folds would have too few rows",
    ),
    "two parties in files": _scene(
        6,
        "fedkern run fdskl --party north.csv --party lab.csv:features --label ill --id patient",
        seen="name a third file with --party, or allow it with --allow-single",
        code=2,
    ),
    "counts with noise": _scene(
        6,
        "fedkern run fed-cg --data visits.csv --label ill --id patient --basis fourier "
        "--hospitals 4 --centres 0 --scaling range --privacy-epsilon 3 --out o",
        seen="rows ~.* frequent class ~.* rows of no ~.* outcomes [^ ]+ on each .* with ~ are made",
    ),
    "an area that bins hide": _scene(
        6,
        "fedkern run hierarchical-svm --data coins.csv --label side --users 4 --out o",
        seen="^((?!AUC|may be off).)*log loss((?!AUC|may be off).)*$",
    ),
    "a negative epsilon": _scene(
        6,
        "fedkern run fed-cg --data visits.csv --label ill --basis fourier --privacy-epsilon=-1",
        seen=r"privacy_epsilon is -1\.0; use a positive number",
        code=2,
    ),
    "a sum of two": _scene(
        6,
        f"fedkern run fed-cg {PARTIES} --allow-single --out o",
        seen="a sum has two parties: .*; let a third take part",
    ),
    "another kernel in Python": _scene(
        6,
        f"python {STREAMS}from fedkern_flwr.simulations.estimators import *\n"
        "for one in (FedCGClassifier(kernel='laplacian'), FDSKLClassifier(kernel='laplacian')):\n"
        "    print(one.fit(x, x[:, 0] > 0.25).strategy_.kernel)",
        seen="laplacian laplacian",
    ),
    "a folder that is used": _scene(6, FULL, FULL, seen="full has results already", code=2),
    "a model of no use": _scene(
        6,
        "fedkern run fed-cg --data coins.csv --label side --out o",
        seen="predicts no better than their most frequent class",
    ),
    "a full disk": _scene(
        6,
        f"{FULL} --quiet --json /dev/full",
        seen=r"^fedkern: --json /dev/full cannot be written \(No space left on device\)[^:]*$",
        code=1,
    ),
    "a device for a file": _scene(
        6,
        PCA,
        "python import os; os.mkfifo('pipe')",
        "fedkern predict pca --data numbers.csv --force --out pipe",
        seen="--out pipe cannot be written; name a file in a folder",
        code=2,
    ),
    "a column misspelt": _scene(
        6, "fedkern run fed-cg --data mail.csv --label Kind", seen="choose from: kind, ", code=2
    ),
    "a method misspelt": _scene(
        6,
        "fedkern run fedcg",
        seen="^((?!Did you mean).)*Did you mean((?!Did you mean).)*$",
        code=2,
    ),
    "an option misspelt in Python": _scene(
        6,
        "python from fedkern_flwr.strategies import FedCG\n" + ONE_LINE.format("FedCG(landmark=1)"),
        seen="^UnknownOptionError .*landmark.*did you mean landmarks",
    ),
    "a word for a number in Python": _scene(
        6,
        "python from fedkern_flwr.strategies import FedCG\n"
        + ONE_LINE.format("FedCG(gamma='scale')"),
        seen="^OptionError gamma is 'scale'; use a number",
    ),
    "lists for arrays": _scene(
        6,
        f"python {STREAMS}x, y = x.tolist(), y.tolist()\n"
        "simulate(strategy, client_fn, 3, num_rounds=5); print(strategy.metrics_)",
        seen="'mse': ",
    ),
    "options without a name in Python": _scene(
        6,
        f"python {STREAMS}{ONE_LINE.format('FedCG(100)')}",
        seen="^UnknownOptionError FedCG takes options by name only; write name=value",
    ),
    "a client of another method": _scene(
        6,
        f"python {STREAMS}{ONE_LINE.format('simulate(FedCG(), client_fn, 3)')}",
        seen="^ProtocolError .* it serves no client of fed-cg.*serve the client that belongs",
    ),
    "help that one reads": _scene(7, "fedkern run fed-cg --help", seen="--help-all .*--party"),
    "what is to be named": _scene(
        7, "fedkern init --help", seen="One of pof-mkl, pof-rls, fed-cg, fdskl"
    ),
    "mods that count": _scene(
        7,
        f"python {STREAMS}from flwr.clientapp.mod import arrays_size_mod, message_size_mod\n"
        "app = serve(client, mods=[message_size_mod, arrays_size_mod])\n"
        "simulate(strategy, app, 3, num_rounds=5); print(strategy.metrics_)",
        seen="'mse': ",
    ),
    "mods that add noise": _scene(
        7,
        f"python {STREAMS}from flwr.clientapp.mod import LocalDpMod\n"
        + ONE_LINE.format("serve(client, mods=[LocalDpMod(1.0, 1.0, 1.0, 1e-5)])"),
        seen="^OptionError LocalDpMod changes what a node answers.*secure_aggregation_mod",
    ),
    "a verdict": _scene(
        8,
        f"{COMPARE} --out c",
        "cat c/report.html",
        seen="Verdict.*visits: FedCG, accuracy .* Beside it: on the pooled data .*each party alone"
        ".* Its server saw",
    ),
}


def write_tables(folder: Path) -> None:
    """Write the tables of the day."""
    rng = np.random.default_rng(24)
    kind = np.array(["ham", "news", "spam"])[np.arange(ROWS) % 3]
    money = rng.lognormal(0.0, 2.5, ROWS) * (1.0 + 20.0 * (kind == "spam"))
    length = rng.normal(200.0, 40.0, ROWS) + 150.0 * (kind == "news")
    links = rng.poisson(2.0, ROWS) + 3 * (kind != "ham")
    sender = rng.choice(["work", "shop", "friend"], ROWS)
    mail = {"number": np.arange(7000, 7000 + ROWS), "money": money, "length": length}
    mail |= {"links": links, "sender": sender}
    _write(folder / "mail.csv", {**mail, "kind": kind})
    new = {name: cells[:40] for name, cells in mail.items()}
    _write(folder / "new-mail.csv", {"remark": ["read, later"] * 40, **new})
    odd = {name: list(cells) for name, cells in new.items()}
    odd["sender"][3:5], odd["length"][7], odd["links"][:3] = ["bank", "aunt"], 1e6, [""] * 3
    _write(folder / "odd-mail.csv", odd)

    species = np.arange(8 * 25) % 25
    wings = {f"wing{k}": rng.normal(size=len(species)) + (species >> k & 1) * 4 for k in range(5)}
    named = [f"species {chr(97 + k)}" for k in species]
    _write(folder / "species.csv", {**wings, "species": named})

    age, dose = rng.normal(50.0, 9.0, ROWS), rng.uniform(0.0, 4.0, ROWS)
    visits, x = rng.integers(0, 6, ROWS), rng.normal(size=(2, ROWS))
    ill = np.where(age + 5.0 * dose + 4.0 * visits > 70.0, "yes", "no")
    patient = rng.permutation(ROWS) + 1000
    clinic = {"patient": patient, "age": age, "dose": dose, "p": x[0], "q": x[1]}
    _write(folder / "visits.csv", {**clinic, "visits": visits, "ill": ill})
    gaps = {**clinic, "age": np.where(np.arange(ROWS) % 9 == 4, "", age.astype(str))}
    named = [f"{one}/{k % 7}x" for k, one in enumerate(patient)]
    _write(folder / "names.csv", {"name": named, **dict([*clinic.items()][1:]), "ill": ill})
    _write(folder / "gaps.csv", {**{k: v for k, v in gaps.items() if k != "patient"}, "ill": ill})
    comma = {k: [f"{cell}".replace(".", ",") for cell in v] for k, v in clinic.items()}
    comma["dose"] = ["?" if k % 12 == 5 else cell for k, cell in enumerate(comma["dose"])]
    _write(folder / "clinic.tsv", {**comma, "ill": ill}, "\t")
    _write(folder / "clinic.csv", clinic)
    own = {"patient": patient, "age": age, "dose": dose, "ill": ill}
    for name, rows in (("north", slice(0, 60)), ("south", slice(60, ROWS))):
        _write(folder / f"{name}.csv", {k: v[rows] for k, v in own.items()})
    lab = {"patient": patient, "p": x[0], "q": x[1], "ill": ill}
    _write(folder / "lab.csv", {k: v[::-1] for k, v in lab.items()})
    lab["age"] = -age
    _write(folder / "lab-age.csv", {k: v[::-1] for k, v in lab.items()})
    quoted = {"crp": age, "iron": dose, "zinc": x[0]}
    quoted = {k: [f"{one:.2f}".replace(".", ",") for one in v] for k, v in quoted.items()}
    limits = ["<5" if k % 3 == 1 else f"{5 + k % 40}" for k in range(ROWS)]
    days = [f"{k % 28 + 1}.{k % 12 + 1}.{1900 + k}" for k in range(ROWS)]
    grade = ["modrate", *("mild" if k % 2 else "severe" for k in range(1, ROWS))]
    _write(folder / "lab-2.csv", {**quoted, "ddimer": limits, "day": days, "grade": grade})
    numbers = {name: rng.normal(size=ROWS) for name in "vwxyz"}
    _write(folder / "numbers.csv", numbers)
    side = np.where(np.arange(ROWS) % 20 == 0, "edge", "flat")
    _write(
        folder / "coins.csv", {**{f"x{k}": rng.normal(size=ROWS) for k in range(4)}, "side": side}
    )


def _write(path: Path, columns: dict[str, Sequence[object]], separator: str = ",") -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _typed(line: str, folder: Path, bin_folder: Path) -> tuple[int, str]:
    """Return exit code and what is shown of a line that is typed."""
    word, _, rest = line.partition(" ")
    if word == "rm":
        (folder / rest).unlink()
        return 0, ""
    if word == "cat":
        there = (folder / rest).is_file()
        return int(not there), (folder / rest).read_text() if there else f"no {rest}"
    arguments = ["-c", rest] if word == "python" else shlex.split(rest)
    command = [str(bin_folder / word), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def main(bin_folder: str, *names: str) -> None:
    """Type the script, or some scenes, with another installation; print what is seen."""
    for name, scene in DAY.items():
        if names and name not in names:
            continue
        with TemporaryDirectory() as folder:
            write_tables(Path(folder))
            for line in scene.lines:
                code, text = _typed(line, Path(folder), Path(bin_folder))
        text = " ".join(text.split())
        fine = code == scene.code and re.search(scene.seen, text)
        print(
            f"{scene.item} {name}: {'seen' if fine else f'NOT SEEN, {code}: {text[-300:]}'}",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

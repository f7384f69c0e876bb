"""A file per party is what dealing one table to parties is."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkern_flwr import load_model
from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.simulations.methods.hybrid_data import HybridData, HybridSettings
from fedkern_flwr.simulations.methods.online_data import DataSettings, prepare
from fedkern_flwr.simulations.methods.registry import family
from fedkern_flwr.simulations.methods.vertical_data import VerticalData, VerticalSettings
from fedkern_flwr.simulations.run.party_files import PartyFiles
from fedkern_flwr.simulations.run.splits import split_rows
from fedkern_flwr.tables import arrow

pytestmark = pytest.mark.usefixtures("in_tmp")

NAMES = list("abcdef")
ROWS = 60


def write(
    name: str,
    rows: Sequence[int],
    columns: Sequence[str],
    values: dict[str, Any],
    *,
    sep: str = ",",
    decimal: str = ".",
) -> str:
    """Write rows of a table with their ids."""
    lines = [sep.join(["id", *columns])]
    for row in rows:
        cells = [str(values[name][row]).replace(".", decimal) for name in columns]
        lines.append(sep.join([f"r{row:03}", *cells]))
    Path(name).write_text("\n".join(lines) + "\n")
    return name


def table(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    values: dict[str, Any] = {name: rng.normal(3.0, 2.0, ROWS).round(4) for name in NAMES}
    values["y"] = np.where(values["a"] + values["d"] + values["f"] > 9.0, "up", "down")
    return values


def test_files_are_read_once_in_a_run(commands: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And anew where they have changed since."""
    values, read, real = table(), [], arrow.file_columns

    def counted(path: Path, how: Any) -> Any:
        read.append(path.name)
        return real(path, how)

    monkeypatch.setattr(arrow, "file_columns", counted)
    files = [write(f"{k}.csv", range(30 * k, 30 * k + 30), [*NAMES, "y"], values) for k in (0, 1)]
    run = ["fed-cg", "--label", "y", "--id", "id", "--landmarks", "12", "--test-size", "0"]
    run += [word for file in files for word in ("--party", file)]
    assert commands.result(*run)["config"]["rows"] == [30, 30]
    assert read == files
    write("1.csv", range(30, 57), [*NAMES, "y"], values)
    assert commands.result(*run)["config"]["rows"] == [30, 27]
    assert read == files * 2


# -- The same as dealing one table


#: Options of a method whose result does not depend on the order of rows, and of the dealing.
RUNS = {
    "fed-cg": ("--landmarks 12 --tune gcv", "--hospitals 2 --centres 2"),
    "fed-cg without own columns": ("--landmarks 12 --tune gcv", "--no-own-block --hospitals 3"),
    "fdskl": ("--features 40 --gamma 0.3 --regularization 0.01", "--parties 3"),
    "secure-gram": ("--encoding fixed-point --cost 1 --gamma 0.5 --kernel rbf", "--clients 3"),
    "hierarchical-svm": ("--rounds 30", "--users 4"),
}


def files_of(name: str, data: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Write what every party was dealt to a file of its own; rows of centres are shuffled."""
    own = family(name)
    part = own.prepare(own.settings.from_values(data)).split(0)
    sources = np.array(part.source_names)
    mixed = np.random.default_rng(9).permutation(ROWS).tolist()

    def names(columns: Any) -> list[str]:
        return [n for n in NAMES if n in set(sources[columns])]

    if name == "fed-cg":
        blocks = dict(part.blocks)
        clinical = names(blocks.pop("clinical", []))
        found = [
            write(f"h{h}.csv", np.flatnonzero(part.hospital == h), [*clinical, "y"], values)
            for h in range(part.hospitals)
        ]
        found += [write(f"{b}.csv", mixed, names(c), values) for b, c in blocks.items()]
    elif name == "hierarchical-svm":
        found = [
            write(f"u{u}.csv", np.flatnonzero(part.holders[0] == u), [*NAMES, "y"], values)
            for u in range(4)
        ]
    else:
        first, *rest = map(names, part.parts)
        found = [write("p0.csv", range(ROWS), [*first, "y"], values)]
        found += [write(f"p{k}.csv", mixed, own, values) for k, own in enumerate(rest, 1)]
    return [word for path in found for word in ("--party", path)]


@pytest.mark.parametrize("case", RUNS)
def test_files_are_as_a_table_that_is_dealt(case: str, commands: Any, tables: Any) -> None:
    values, name = table(), case.split()[0]
    write("t.csv", range(ROWS), [*NAMES, "y"], values)
    write("new.csv", range(ROWS), NAMES, table(1))
    method, dealing = (text.split() for text in RUNS[case])
    run = [name, "--label", "y", "--id", "id", "--test-size", "0", *method]
    one = commands.result(*run, "--data", "t.csv", *dealing, out="one")
    files = files_of(name, one["config"]["data"], values)
    two = commands.result(*run, *files, out="two")
    assert one["config"].get("columns") == two["config"].get("columns")
    assert one["config"]["rows"] == two["config"]["rows"]
    encoders = [json.loads(Path(d, "scaling.json").read_text())["encoder"] for d in ("one", "two")]
    assert encoders[0] == encoders[1]
    found = []
    for folder in ("one", "two"):
        predict = ["predict", folder, "--data", "new.csv", "--id", "id", "--out", f"{folder}.csv"]
        commands.shown(*predict)
        found.append([float(row["output_0"]) for row in tables.read(f"{folder}.csv")])
    assert np.ptp(found[0]) > 0.1
    near = 1e-3 if name == "fdskl" else 1e-6  # phases are rounded
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=near)


@pytest.mark.parametrize("name", ["pof-mkl", "kernel-pca"])
def test_files_of_rows_are_as_rows_that_are_dealt(name: str, commands: Any) -> None:
    values = table()
    values["y"] = values["a"] + values["b"]
    write("t.csv", range(ROWS), [*NAMES, "y"], values)
    run = [name, "--label", "y", "--id", "id", "--test-size", "0"]
    run += ["--rounds", "20"] if name == "pof-mkl" else ["--features", "6"]
    one = commands.result(*run, "--data", "t.csv", "--clients", "3", out="one")
    own = family(name)
    rows = 20 if name == "pof-mkl" else None
    all_of_it = own.settings.from_values(one["config"]["data"]).load("encode")
    parts = split_rows(all_of_it, "iid", 3, 0, rows)
    files = [write(f"c{k}.csv", part, [*NAMES, "y"], values) for k, part in enumerate(parts)]
    two = commands.result(*run, *[w for path in files for w in ("--party", path)], out="two")
    assert two["config"]["data"]["data"] == "c0.csv + c1.csv + c2.csv"
    assert one["metrics"] == pytest.approx(two["metrics"], rel=1e-9)


@pytest.mark.parametrize("name", ["fed-cfk", "secure-gram"])
def test_files_of_ratings_are_as_users_that_are_dealt(name: str, commands: Any) -> None:
    lines = commands.ratings.read_text().splitlines()
    run = [name, "--user", "who", "--item", "what", "--min-support", "3"]
    one = commands.result(*run, "--data", str(commands.ratings), "--clients", "6", out="one")
    own = family(name)
    prepared = own.prepare(own.settings.from_values(one["config"]["data"]))
    column, files = lines[0].split(",").index("who"), []
    for k, part in enumerate(prepared.parts):  # type: ignore[attr-defined]
        mine = set(prepared.ratings.user_ids[part])  # type: ignore[attr-defined]
        rows = [line for line in lines[1:] if line.split(",")[column] in mine]
        Path(f"n{k}.csv").write_text("\n".join([lines[0], *rows]) + "\n")
        files += ["--party", f"n{k}.csv"]
    two = commands.result(*run, *files, out="two")
    for key in ("users", "items", "ratings", "clients"):
        assert one["config"][key] == two["config"][key]
    assert one["metrics"].keys() == two["metrics"].keys()
    again = own.prepare(own.settings.from_values(two["config"]["data"]))
    sums = []
    for data in (prepared, again):
        pooled: Any = data.pooled(0)
        order = np.argsort(data.ratings.user_ids)  # type: ignore[attr-defined]
        sums.append((pooled.train + pooled.test).toarray()[order])
    np.testing.assert_array_equal(*sums)
    if name == "secure-gram":
        assert one["metrics"] == two["metrics"]
        pairs = zip(*(np.load(f"{f}/model.npz").items() for f in ("one", "two")), strict=True)
        for (_, first), (_, second) in pairs:
            if first.dtype.kind in "iuf":
                np.testing.assert_array_equal(first, second)
    Path("n1.csv").write_text(Path("n0.csv").read_text())
    assert "users are in two files; keep each user in one" in commands.complaint(
        "run", *run, *files
    )
    assert "n0.csv is named twice" in commands.complaint("run", *run, *files[:2], *files[:2])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 3))
def test_the_table_of_all_is_the_one_that_was_parted(seed: int, owners: int, others: int) -> None:
    """Whatever the order of rows and the dialect of a file; rows that one lacks are left out."""
    rng, values = np.random.default_rng(seed), table(seed)
    owner, blocks = rng.integers(0, owners, ROWS), np.array_split(NAMES, others + 1)
    owner[:owners] = range(owners)
    styles = [(",", "."), (";", ","), ("\t", ","), ("|", ".")]
    party, there = [], np.ones(ROWS, bool)
    for k in range(owners):
        sep, decimal = styles[rng.integers(4)]
        rows = rng.permutation(np.flatnonzero(owner == k))
        party.append(write(f"h{k}.csv", rows, [*blocks[0], "y"], values, sep=sep, decimal=decimal))
    for k in range(others):
        sep, decimal = styles[rng.integers(4)]
        rows = rng.permutation(ROWS)[rng.integers(0, 5) :]
        there &= np.isin(np.arange(ROWS), rows)
        party.append(write(f"c{k}.csv", rows, blocks[k + 1], values, sep=sep, decimal=decimal))
    files = PartyFiles.read(
        party, "rows and columns", "y", "id", {"sep": None, "decimal": None, "na": ()}
    )
    assert files.blocks == tuple(tuple(block.tolist()) for block in blocks)
    for missing in ("encode", "keep"):
        found = files.table(missing)  # type: ignore[arg-type]
        assert found.ids is not None
        assert found.site is not None
        places = [int(name[1:]) for name in found.ids]
        kept = there if missing == "encode" else np.ones(ROWS, bool)
        assert sorted(places) == np.flatnonzero(kept).tolist()
        np.testing.assert_array_equal(found.site.astype(int), owner[places])
        for name in NAMES:
            wanted = values[name][places]
            here = found.x[:, found.columns.index(name)]
            held = kept[places] & there[places]
            np.testing.assert_array_equal(here[held], wanted[held])
        np.testing.assert_array_equal(
            np.array(found.classes)[found.y.astype(int)], values["y"][places]
        )  # type: ignore[union-attr]


# -- Held-out rows, rows that are not everywhere, names


def hospitals(**how: Any) -> HybridData:
    values = table()
    values["size"] = values["a"]
    write("north.csv", range(40), ["a", "b", "y"], values)
    write("south.csv", range(40, 60), ["b", "a", "y"], values)
    write("lab.csv", range(5, 60), ["c", "a", "d"], values)
    party = ("north.csv", "lab.csv:features", "south.csv")
    counted = {"hospitals": 2, "centres": 1, "allow_single": True, "label": "y", "id_column": "id"}
    return HybridData(HybridSettings("", **{**counted, "party": party, "missing": "encode", **how}))


def test_the_same_share_of_every_party_is_held_out() -> None:
    part = hospitals(test_size=0.4).split(0)
    for h, rows in enumerate((35, 20)):
        mine = part.hospital == h
        assert (mine.sum(), (mine & ~part.train).sum()) == (rows, pytest.approx(0.4 * rows, abs=1))
    values = table()
    values["y"] = values["a"]
    party = (
        write("one.csv", range(40), [*NAMES, "y"], values),
        write("two.csv", range(40, 60), [*NAMES, "y"], values),
    )
    streams = prepare(
        DataSettings(
            "",
            label="y",
            id_column="id",
            party=party,
            clients=2,
            split="site",
            test_size=0.25,
            rounds=15,
        )
    )
    assert [len(shard.x_test) for shard in streams.clients.shards] == [10, 5]
    assert [len(shard.x) for shard in streams.clients.shards] == [15, 15]


def test_rows_that_not_all_have_are_left_out_or_lack_what_others_have() -> None:
    data = hospitals()
    assert "5 of 60 rows are not in all files: left out" in data.notes
    assert data.split(0).columns == ("a", "b", "c", "a of lab", "d")
    data = hospitals(missing="neutral")
    part = data.split(0)
    assert len(part.y) == 60
    assert np.isnan(part.x[:, part.blocks["centre 1"]]).any(axis=1).sum() == 5
    np.testing.assert_array_equal(np.isnan(part.x[:, part.blocks["clinical"]]), False)


def test_a_party_with_labels_may_have_no_columns() -> None:
    values = table()
    party = (
        write("bank.csv", range(ROWS), ["y"], values),
        write("shop.csv", range(ROWS), NAMES[:3], values),
        write("phone.csv", range(ROWS), NAMES[3:], values),
    )
    part = VerticalData(
        VerticalSettings("", label="y", id_column="id", party=party, parties=3)
    ).split(0)
    assert [len(columns) for columns in part.parts] == [0, 3, 3]


def test_new_rows_of_parties_are_predicted_as_those_of_one_table(
    commands: Any, tables: Any
) -> None:
    """Labels of files are not used, rows of other files that are not asked for neither."""
    values, new = table(), table(1)
    files = [write(f"{k}.csv", range(30 * k, 30 * k + 30), [*"ab", "y"], values) for k in (0, 1)]
    files.append(write("lab.csv", range(ROWS)[::-1], NAMES[2:], values))
    run = ["fed-cg", "--label", "y", "--id", "id", "--landmarks", "12", "--allow-single"]
    commands.result(*run, *(word for file in files for word in ("--party", file)))
    write("all.csv", range(ROWS), NAMES, new)
    one = write("one.csv", range(20), [*"ab"], new)
    two = write("two.csv", range(20, 40), [*"ab", "y"], new, sep=";", decimal=",")
    other = write("new-lab.csv", range(ROWS)[:5:-1], NAMES[2:], new)
    parties = [word for file in (one, two, other) for word in ("--party", file)]
    said = commands.shown("predict", "here", *parties, "--id", "id", "--out", "p.csv")
    assert "new rows are in one.csv, two.csv, other columns of their rows in new-lab.csv" in said
    assert "6 of 40 rows are not in all files: left out" in said
    assert "34 predictions: p.csv" in said
    commands.shown("predict", "here", "--data", "all.csv", "--id", "id", "--out", "all-p.csv")
    made, expected = tables.read("p.csv"), tables.read("all-p.csv")[6:40]
    for name in ("id", "class"):
        assert [row[name] for row in made] == [row[name] for row in expected]
    for name in ("output_0", "probability_down"):
        assert [float(row[name]) for row in made] == pytest.approx(
            [float(row[name]) for row in expected], abs=1e-12
        )
    assert next(iter(made[0])) == "id"
    commands.shown("predict", "here", *parties, "--out", "by-run.csv")  # matched by the run's ids
    assert tables.read("by-run.csv") == tables.read("p.csv")
    model, frames = load_model("here"), [pd.read_csv("one.csv"), pd.read_csv("new-lab.csv")]
    rows = model.read([one, "two.csv", other])
    assert model.predict(rows).tolist() == [row["class"] for row in made]
    assert rows.ids is not None
    assert rows.ids.tolist() == [row["id"] for row in made]
    whole = [frames[0][6:], frames[1]]
    assert model.predict(whole).tolist() == [row["class"] for row in made[:14]]
    assert model.predict({"a": whole[0], "b": whole[1]}).tolist() == model.predict(whole).tolist()
    with pytest.raises(TableError, match=r"^6 rows are not in all of table 1 \+ table 2; leave"):
        model.predict(frames)
    nameless = replace(model, meta={**model.meta, "id": None})
    with pytest.raises(OptionError, match="table 2 has other columns than table 1, and nothing"):
        nameless.predict(frames)
    assert nameless.read(frames, "id").rows == 14
    Path("alone.npz").write_bytes(Path("here/predictor.npz").read_bytes())
    commands.shown("predict", "alone.npz", *parties, "--id", "id", "--out", "alone.csv")
    assert tables.read("alone.csv") == tables.read("p.csv")
    os.mkfifo("pipe")  # nor is a device replaced
    for more, line in (
        (parties[:2], "one table is one party; name that of every party"),
        (["--party", one, "--party", one], "one.csv is named twice; name every file once"),
        ([*parties, "--data", one], "new rows are in one file or in files of parties; use --data"),
        ([], "new rows are in one file or in files of parties; use --data FILE, or --party FILE"),
        (["--data", "all.csv", "--force", "--out", "pipe"], "--out pipe cannot be written; name"),
    ):
        out = () if "--out" in more else ("--out", "q.csv")
        assert line in commands.complaint("predict", "here", *more, *out)
    assert Path("pipe").is_fifo()


# -- Errors


GOOD = ["north.csv", "south.csv", "lab.csv"]
ERRORS: dict[str, tuple[str, list[str], list[str], str]] = {
    "one party": ("fed-cg", ["north.csv"], [], "one file is one party; use --party for every"),
    "twice": ("fed-cg", ["north.csv", "./north.csv"], [], "north.csv is named twice; name every"),
    "no file": ("fed-cg", ["north.csv", "gone.csv"], [], "there is no file gone.csv; check the"),
    "no label": ("fed-cg", GOOD, ["--label", "z"], "no file has the labels: column 'z'; name a"),
    "label misspelt": ("fed-cg", GOOD, ["--label", "Y"], "'Y'; did you mean 'y'? name a file w"),
    "label not named": ("fdskl", GOOD, ["--label", ""], "the labels: column ''"),
    "no id named": ("fdskl", GOOD, ["--id", ""], "north.csv has no id column ''; choose from"),
    "no id column": (
        "fed-cg",
        ["north.csv", "odd.csv"],
        [],
        "no id column 'id'; did you mean 'd'? choose",
    ),
    "two owners": (
        "fdskl",
        GOOD,
        [],
        "write FILE:features of all but one, or use fed-cg if each has own",
    ),
    "other columns": (
        "fed-cg",
        ["north.csv", "wide.csv"],
        [],
        "north.csv lacks 1 column of wide.csv, the first is 'c'; give both the same, or",
    ),
    "rows without label": (
        "hierarchical-svm",
        ["north.csv", "lab.csv"],
        [],
        "lab.csv has no label column 'y', and every party of this method has labels; use fed-cg",
    ),
    "another label": (
        "hierarchical-svm",
        GOOD[:2],
        ["--label", "z"],
        "north.csv has no label column 'z'; choose from: ",
    ),
    "features of rows": (
        "pof-mkl",
        ["north.csv", "south.csv:features"],
        [],
        "south.csv is to give features only, and every party of this method has labels or",
    ),
    "other ids": ("fed-cg", ["north.csv", "other.csv"], [], "no id of other.csv is that of a row"),
    "double ids": ("fed-cg", ["north.csv", "same.csv"], [], "3 ids are in two of north.csv, same"),
    "repeated ids": ("fed-cg", ["north.csv", "rep.csv"], [], "id column of rep.csv has 1 dupl"),
    "count": ("fed-cg", GOOD, ["--hospitals", "3"], "hospitals 3 is not that of the files, 2"),
    "data": ("fed-cg", GOOD, ["--data", "lab.csv"], "--data is not for files of parties; leave"),
    "split": ("fed-cg", GOOD, ["--split", "dirichlet"], "split dirichlet is not that of the fil"),
    "target": ("fed-cg", GOOD, ["--target", "a"], "--target is not for files of parties; leav"),
    "vertical": (
        "hierarchical-svm",
        GOOD[:2],
        ["--partition", "vertical"],
        "partition vertical is not that of the files, horizontal; leave it out",
    ),
    "arrays": ("fed-cg", ["north.csv", "a.npz"], [], "a.npz is no party's file; save it as .csv"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_files_that_do_not_fit_are_refused_in_a_line(case: str, commands: Any) -> None:
    values = table()
    write("north.csv", range(30), ["a", "b", "y"], values)
    write("south.csv", range(30, 60), ["a", "b", "y"], values)
    write("wide.csv", range(30, 60), ["a", "b", "c", "y"], values)
    write("same.csv", range(27, 60), ["a", "b", "y"], values)
    write("rep.csv", [30, 31, 31], ["a", "b", "y"], values)
    write("lab.csv", range(60), ["c", "d"], values)
    Path("other.csv").write_text("id,c\nsecret-1,2.5\nsecret-2,3.5\n")
    Path("odd.csv").write_text("c,d\n1,2.5\n2,3.5\n")
    np.savez("a.npz", X=np.ones((2, 2)))
    name, party, more, text = ERRORS[case]
    words = [word for path in party for word in ("--party", path)]
    line = commands.complaint("run", name, "--label", "y", "--id", "id", *words, *more)
    assert text in line
    assert "secret" not in line
    assert not Path("runs").exists()


def test_the_column_of_ids_is_asked_for(commands: Any) -> None:
    write("north.csv", range(30), ["a", "y"], table())
    write("lab.csv", range(30), ["c"], table())
    party = ["--party", "north.csv", "--party", "lab.csv"]
    line = commands.complaint("run", "fdskl", "--label", "y", *party)
    assert "the column of the ids, by which rows of different files are matched" in line
    assert "is not named; use --id" in line
    line = commands.complaint("run", "fed-cg", "--id", "id", *party)
    assert "the column of the label is not named; use --label" in line


def test_who_refuses_is_named_by_the_file(commands: Any) -> None:
    values = table()
    write("north.csv", range(30), ["a", "b", "y"], values)
    write("south.csv", range(30, 60), ["a", "b", "y"], values)
    write("lab.csv", range(60), ["c", "d"], values)
    party = [word for path in GOOD for word in ("--party", path)]
    line = commands.complaint("run", "fed-cg", "--label", "y", "--id", "id", *party, "--quiet")
    assert "30 of 30 rows of north.csv (partition 0) are known to one centre only" in line


def test_partitions_are_the_files_in_the_order_of_the_nodes() -> None:
    """Who has nothing but labels is a node of FDSKL and FedCG, and none of Secure Gram."""
    values = table()
    write("north.csv", range(60), ["y"], values)
    write("lab.csv", range(60), ["c", "d"], values)
    write("other.csv", range(60), ["e"], values)
    plain = {"sep": None, "decimal": None, "na": ()}
    found = PartyFiles.read(["lab.csv", "north.csv", "other.csv"], "columns", "y", "id", plain)
    for nodes, first in ((3, "north.csv"), (2, "lab.csv")):
        text = found.named("partition 0: partition 9", nodes)
        assert text == f"{first} (partition 0): partition 9"

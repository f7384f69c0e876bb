"""A file per party is what dealing one table to parties is."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from waiting import soon

from fedkern_flwr import load_model
from fedkern_flwr.simulations.deployment.local import LocalDeployment, free_port
from fedkern_flwr.simulations.deployment.run_config import app_folder
from fedkern_flwr.simulations.methods.registry import family
from fedkern_flwr.simulations.run.party_files import PartyFiles
from fedkern_flwr.tables import arrow

pytestmark = pytest.mark.usefixtures("in_tmp")

NAMES = list("abcdef")
ROWS = 60
THREE = [word for k in range(3) for word in ("--party", f"{k}.csv")]


def write(
    name: str, rows: Any, columns: Sequence[str], values: Any, sep: str = ",", decimal: str = "."
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
    "fdskl": ("--features 40 --gamma 0.3 --regularization 0.01", "--parties 3"),
    "secure-gram": ("--encoding fixed-point --cost 1 --gamma 0.5 --kernel rbf", "--clients 3"),
    "hierarchical-svm": ("--rounds 10 --C 1", "--users 4"),
}


def files_of(name: str, data: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Write what every party was dealt to a file of its own; rows of centres are shuffled."""
    own = family(name)
    settings: Any = own.settings.from_values(data)
    part = own.prepare(settings).split(0)
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


@pytest.mark.parametrize("name", RUNS)
def test_files_are_as_a_table_that_is_dealt(name: str, commands: Any, tables: Any) -> None:
    values = table()
    write("t.csv", range(ROWS), [*NAMES, "y"], values)
    write("new.csv", range(ROWS), NAMES, table(1))
    method, dealing = (text.split() for text in RUNS[name])
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


@pytest.mark.promise("rows-matched-by-id")
@settings(max_examples=12, deadline=None)
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


@pytest.mark.promise("new-rows-whole")
def test_new_rows_of_parties_are_predicted_as_of_one_table(commands: Any, tables: Any) -> None:
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
    for name in ("id", "class", "output_0", "probability_down"):
        ours, right = ([row[name] for row in rows] for rows in (made, expected))
        if name in ("id", "class"):
            assert ours == right
        else:
            np.testing.assert_allclose(np.float64(ours), np.float64(right), rtol=0, atol=1e-12)
    assert next(iter(made[0])) == "id"
    commands.shown("predict", "here", *parties, "--out", "by-run.csv")  # matched by the run's ids
    assert tables.read("by-run.csv") == tables.read("p.csv")
    model, frames = load_model("here"), [pd.read_csv("one.csv"), pd.read_csv("new-lab.csv")]
    rows = model.read([one, "two.csv", other])
    assert model.predict(rows).tolist() == [row["class"] for row in made]
    assert rows.ids is not None
    assert rows.ids.tolist() == [row["id"] for row in made]
    whole = {"a": frames[0][6:], "b": frames[1]}
    for parts in (whole, [*whole.values()]):
        assert model.predict(parts).tolist() == [row["class"] for row in made[:14]]
    refuses("FK-ROWS-LACKING", model.predict, frames)
    nameless = replace(model, meta={**model.meta, "id": None})
    refuses("FK-COLUMN-UNNAMED", nameless.predict, frames)
    assert nameless.read(frames, "id").rows == 14
    os.mkfifo("pipe")  # nor is a device replaced
    for more, code in (
        (parties[:2], "FK-PARTIES-FEW"), (["--party", one, "--party", one], "FK-FILE-TWICE"),
        ([*parties, "--data", one], "FK-PREDICT-ROWS"), ([], "FK-PREDICT-ROWS"),
        (["--data", "all.csv", "--force", "--out", "pipe"], "FK-FILE-WRITE"),
    ):  # fmt: skip
        out = () if "--out" in more else ("--out", "q.csv")
        assert commands.complaint("predict", "here", *more, *out).endswith(f"[{code}]")
    assert Path("pipe").is_fifo()


def test_files_of_ratings_are_as_those_that_are_dealt(commands: Any) -> None:
    run, own = (
        ["secure-gram", "--user", "who", "--item", "what", "--min-support", "3"],
        family("secure-gram"),
    )
    one = commands.result(*run, "--data", str(commands.ratings), "--clients", "3", out="one")
    prepared: Any = own.prepare(own.settings.from_values(one["config"]["data"]))
    head, *rows = commands.ratings.read_text().splitlines()
    for k, part in enumerate(prepared.parts):
        mine = {*np.array(prepared.ratings.user_ids)[part]}
        own_rows = [row for row in rows if row.partition(",")[0] in mine]
        Path(f"{k}.csv").write_text("\n".join([head, *own_rows]) + "\n")
    assert commands.result(*run, *THREE)["metrics"] == pytest.approx(one["metrics"], rel=1e-9)
    Path("1.csv").write_text(Path("0.csv").read_text())
    assert commands.complaint("run", *run, *THREE).endswith("[FK-IDS-PARTIES]")


def test_held_out_shares_rows_that_not_all_have_and_names_of_columns(commands: Any) -> None:
    """The same share of each party is held out; a file that lacks rows leaves them out."""
    values = table()
    write("north.csv", range(40), ["a", "b", "y"], values)
    write("south.csv", range(40, 60), ["b", "a", "y"], values)
    write("lab.csv", range(5, 60), ["c", "a", "d"], values)
    party = [f"--party={one}" for one in ("north.csv", "lab.csv:features", "south.csv")]
    run = ["fed-cg", "--label", "y", "--id", "id", "--landmarks", "12", *party, "--allow-single"]
    found = commands.result(*run, "--test-size", "0.4")["config"]
    assert "5 of 60 rows are not in all files: left out" in found["notes"]
    assert found["columns"] == {"clinical": ["a", "b"], "centre 1": ["c", "a of lab", "d"]}
    for held, rows in zip(found["held_out_rows"], (35, 20), strict=True):
        assert held == pytest.approx(0.4 * rows, abs=1)
    found = commands.result(*run, "--missing", "neutral")
    assert sum(found["config"]["rows"]) + sum(found["config"]["held_out_rows"]) == 60
    write("north.csv", range(30), ["a", "b", "y"], values)
    write("south.csv", range(30, 60), ["a", "b", "y"], values)
    write("lab.csv", range(60), ["c", "d"], values)
    line = commands.complaint("run", *[one for one in run if one != "--allow-single"], "--quiet")
    assert "north.csv (partition 0)" in line  # who refuses is named by its file
    assert line.endswith("[FK-PARTIES-ALONE]")


def test_a_party_with_labels_may_have_no_columns(commands: Any) -> None:
    values = table()
    write("bank.csv", range(ROWS), ["y"], values)
    write("shop.csv", range(ROWS), NAMES[:3], values)
    write("phone.csv", range(ROWS), NAMES[3:], values)
    party = [f"--party={one}.csv" for one in ("bank", "shop", "phone")]
    found = commands.result("fdskl", "--label", "y", "--id", "id", *party, "--features", "30")
    assert found["config"]["columns"] == [[], NAMES[:3], NAMES[3:]]


# -- files of parties that are read while the run goes on


POWER = ["--label", "power", "--samples-per-round", "5"]


def lines(k: int, rows: slice) -> str:
    rng = np.random.default_rng(k)
    x = rng.normal(20.0, 5.0, (90, 2))
    y = np.sin(x[:, 0] / 4.0) + 0.1 * x[:, 1]
    return "".join(",".join(map(repr, row)) + "\n" for row in np.c_[x, y][rows].tolist())


def write_rows(rows: int) -> None:
    for k in range(3):
        Path(f"{k}.csv").write_text("a,b,power\n" + lines(k, slice(rows)))


def test_files_that_do_not_grow_are_the_table(commands: Any) -> None:
    write_rows(40)
    table = commands.result("pof-rls", *THREE, *POWER, out="table")
    files = commands.result("pof-rls", *THREE, *POWER, "--stream-wait", "0", out="files")
    assert files["metrics"] == table["metrics"]
    assert files["history"] == table["history"]
    for out in ("table", "files"):
        commands.shown("predict", out, "--data", "0.csv", "--out", f"{out}.csv")
    assert Path("files.csv").read_text() == Path("table.csv").read_text()


def test_rows_that_are_written_meanwhile_are_learned(commands: Any) -> None:
    write_rows(30)

    def grow() -> None:
        for at in range(30, 90, 10):
            time.sleep(0.2)
            for k in range(3):
                with Path(f"{k}.csv").open("a") as file:
                    file.write(lines(k, slice(at, at + 10)))

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        growing = ["--stream-wait", "60", "--rounds", "90"]
        found = commands.result("pof-mkl", *THREE, *POWER, *growing)
    finally:
        writer.join()
    assert found["history"][-1]["round"] == 90
    assert {row["survivors"] for row in found["history"]} == {3}


#: Beside a table for each party, or instead of it.
NO_STREAM = {
    "--data 0.csv --stream-wait 0": "STREAM-PARTIES",
    "--stream-wait 0 --test-size 0.2": "DATA-OPTION",
    "--stream-wait -1": "OPTION-RANGE", "--stream-wait 0 ": "STREAM-TEXT",
}  # fmt: skip


@pytest.mark.parametrize("options", NO_STREAM)
def test_what_a_stream_does_not_have_is_refused(options: str, commands: Any) -> None:
    write_rows(30)
    if NO_STREAM[options] == "STREAM-TEXT":
        for k in range(3):
            head, *rows = Path(f"{k}.csv").read_text().splitlines()
            rows = [f"{'red' if n % 2 else 'blue'},{row}" for n, row in enumerate(rows)]
            Path(f"{k}.csv").write_text("\n".join([f"colour,{head}", *rows]) + "\n")
    parties = [] if "--data" in options else THREE
    line = commands.complaint("run", "pof-rls", *options.split(), *parties, *POWER, "--quiet")
    assert line.endswith(f"[FK-{NO_STREAM[options]}]")


# -- the feeder of a socket: whole lines of everybody, in one file that runs read


HEAD = b"a,b,y\n"

_MAIN = "from fedkern_flwr.simulations.cli.main import main; main()"

FEED = (sys.executable, "-c", _MAIN, "node", "feed", "--node-config")


class Feeder:
    """`fedkern node feed` in a process of its own."""

    def __init__(self, folder: Path, stream: str) -> None:
        self.stream, self.spool = stream, folder / "state/stream-1.rows"
        self.config = folder / "node.toml"
        state = folder / "state"
        self.config.write_text(f'stream = "{stream}"\npartition-id = 1\nstate-dir = "{state}"\n')
        self.start()

    def start(self) -> None:
        command = [*FEED, str(self.config)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert soon(self.listens)

    def connect(self) -> socket.socket:
        if self.stream.startswith("unix:"):
            end = socket.socket(socket.AF_UNIX)
            end.connect(self.stream.removeprefix("unix:"))
        else:
            host, port = self.stream.split(":")
            end = socket.create_connection((host, int(port)))
        return end

    def listens(self) -> bool:
        assert self.process.poll() is None, self.process.stderr
        with suppress(OSError):
            self.connect().close()
            return True
        return False

    def lines(self) -> list[bytes]:
        return self.spool.read_bytes().splitlines(keepends=True)

    def end(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.process.pid, number)
        self.process.wait(60)


@pytest.fixture(params=["unix", "tcp"])
def feeder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Feeder]:
    stream = f"unix:{tmp_path / 's'}" if request.param == "unix" else f"127.0.0.1:{free_port()}"
    found = Feeder(tmp_path, stream)
    yield found
    if found.process.poll() is None:
        found.end()


def test_lines_of_several_senders_become_rows(feeder: Feeder, commands: Any) -> None:
    """Whole ones, names of columns once; after a crash it goes on, without half a line.

    One feeder writes a file, and one listens.
    """
    text, free = feeder.config.read_text(), f"127.0.0.1:{free_port()}"
    for change, code in (
        (("partition-id = 1", "partition-id = 2"), "FK-LISTEN-ADDRESS"),
        ((feeder.stream, free), "FK-STREAM-TAKEN"),
    ):
        Path("other.toml").write_text(text.replace(*change))
        line = commands.complaint("node", "feed", "--node-config", "other.toml")
        assert line.endswith(f"[{code}]")
    assert feeder.listens()
    with feeder.connect() as one, feeder.connect() as other:
        one.sendall(HEAD + b"1,2,3\n4,")
        assert soon(lambda: len(feeder.lines()) == 2)
        other.sendall(HEAD.replace(b"\n", b"\r\n") + b"5,6,7\n\n")
        assert soon(lambda: len(feeder.lines()) == 3)
        one.sendall(b"5,6\n8,9")
        assert soon(lambda: len(feeder.lines()) == 4)
    assert feeder.lines() == [HEAD, b"1,2,3\n", b"5,6,7\n", b"4,5,6\n"]
    assert stat.S_IMODE(feeder.spool.stat().st_mode) == 0o600
    if feeder.stream.startswith("unix:"):
        assert stat.S_IMODE(Path(feeder.stream.removeprefix("unix:")).stat().st_mode) == 0o600
    feeder.end()
    with feeder.spool.open("ab") as file:
        file.write(b"7,7")
    feeder.start()
    with feeder.connect() as one:
        one.sendall(HEAD + b"1,1,1\n")
        assert soon(lambda: len(feeder.lines()) == 5)
    assert feeder.lines() == [HEAD, b"1,2,3\n", b"5,6,7\n", b"4,5,6\n", b"1,1,1\n"]


@pytest.mark.parametrize(("stream", "folder", "code"), [
    ("/data/readings.csv", True, "FK-STREAM-SOCKET"), ("0.0.0.0:80", True, "FK-STREAM-HOST"),
    ("unix:/run/x", False, "FK-STREAM-FOLDER"),
])  # fmt: skip
def test_what_needs_no_feeder_says_so(
    stream: str, folder: bool, code: str, in_tmp: Path, commands: Any
) -> None:
    Path("node.toml").write_text(f'stream = "{stream}"\n' + f'state-dir = "{in_tmp}"\n' * folder)
    assert commands.complaint("node", "feed", "--node-config", "node.toml").endswith(f"[{code}]")


# -- a deployment


NODES, FIRST, LAST, BATCH = 4, 30, 120, 30

OPTIONS = {"data": "", "samples-per-round": BATCH, "features": 4, "kernels": 3, "seed": 0}


def rows(k: int, part: slice) -> str:
    rng = np.random.default_rng(k)
    x = rng.uniform(-0.5, 0.5, (LAST, 3))
    both = np.column_stack([x, 0.5 + 0.4 * np.sin(3.0 * x[:, 0])])[part]
    return "".join(",".join(map(repr, row)) + "\n" for row in both.tolist())


def deploy(deployment: LocalDeployment, rounds: int) -> dict[str, Any]:
    told = deployment.folder / "told.json"
    told.unlink(missing_ok=True)
    config = {**OPTIONS, "num-rounds": rounds, "result": str(told)}
    deployment.wait_for_run(deployment.run(app_folder("pof_mkl"), config), 240.0)
    found: dict[str, Any] = json.loads(told.read_text())
    return found


@pytest.mark.deployment
@pytest.mark.timeout(560)
def test_rows_that_come_while_a_run_goes_on_are_learned(tmp_path: Path) -> None:
    """Twice: the second run begins after the rows of the first."""
    nodes: list[dict[str, Any]] = []
    for k in range(NODES):
        (tmp_path / f"{k}.csv").write_text(HEADS + ("" if k == 1 else rows(k, slice(FIRST))))
        stream = f"unix:{tmp_path / 's'}" if k == 1 else str(tmp_path / f"{k}.csv")
        node = {"partition-id": k, "num-partitions": NODES, "stream": stream, "stream-wait": 60}
        nodes.append({**node, "label-column": "y", "state-dir": str(tmp_path / f"state{k}")})

    def grow() -> None:
        for at in range(FIRST, LAST, 15):
            time.sleep(0.5)
            part = slice(at, at + 15)
            for k in range(NODES):
                if k == 1:
                    sender.sendall(rows(k, part).encode())
                else:
                    with (tmp_path / f"{k}.csv").open("a") as file:
                        file.write(rows(k, part))

    with LocalDeployment(tmp_path / "deployment", nodes) as deployment:
        sender = socket.socket(socket.AF_UNIX)
        assert soon(lambda: not sender.connect_ex(str(tmp_path / "s")))
        sender.sendall((HEADS + rows(1, slice(FIRST))).encode())
        writer = threading.Thread(target=grow)
        writer.start()
        try:
            found = [deploy(deployment, 60)]
        finally:
            writer.join()
        found.append(deploy(deployment, 60))
        sender.close()
    for one in found:
        assert [row["round"] for row in one["history"]] == [30, 60]
        assert [row["survivors"] for row in one["history"]] == [NODES, NODES]
    assert found[1]["metrics"]["mse"] < 0.1


HEADS = "a,b,c,y\n"

"""Sites of apps: nodes with files of their own, a small run, and what it should give.

Most have the tables of a way of the zoo: numbers in other units, labels in words. What an app gives
is what a run in process gives with these tables; tests/contracts/test_oracle.py compares such runs
with the pooled rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from command_line import Tables
from flwr.app import Context, RecordDict
from pooled import KEY
from zoo import WAYS, Found, Sites, Table, Way, hospitals, streams

from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.simulations import InProcessGrid

Import = Callable[..., SimpleNamespace]
Make = Callable[[str], Any]
Given = Callable[..., dict[str, Any]]
Refuses = Callable[..., str]


class Site:
    """Nodes of an app.

    Attributes
    ----------
    app : str
        Folder of the app.
    config : dict
        Of a small run, with underscores.
    nodes : list of dict
        Configurations of the nodes; the first one has most.
    """

    app, model = "", "model"
    config: dict[str, Any]

    def __init__(self, folder: Path, imported: Import) -> None:
        self.folder, self.imported = folder, imported
        self.nodes: list[dict[str, Any]] = []
        self.build(np.random.default_rng(5))

    def build(self, rng: np.random.Generator) -> None:
        """Write the nodes' files."""

    def add(self, **node: Any) -> None:
        """Add a node; it has a folder of its own."""
        node["state_dir"] = self.folder / f"state{len(self.nodes)}"
        named = {key.replace("_", "-"): value for key, value in node.items()}
        self.nodes.append({k: str(v) if isinstance(v, Path) else v for k, v in named.items()})

    def modules(self) -> SimpleNamespace:
        """Import the app as a new process does."""
        return self.imported(self.app, "own_table", "client_app", "server_app")

    def changed(self, number: int, **change: Any) -> list[dict[str, Any]]:
        """Return nodes of which one has another configuration; None takes a key away."""
        nodes = [dict(node) for node in self.nodes]
        named = {key.replace("_", "-"): value for key, value in change.items()}
        nodes[number] = {k: v for k, v in {**nodes[number], **named}.items() if v is not None}
        return nodes

    def client(self, number: int = 0, run: dict[str, Any] | None = None, **change: Any) -> Any:
        """Build the client of a node, perhaps with another configuration."""
        app = self.modules()
        node = self.changed(number, **change)[number]
        node |= {"partition-id": number, "num-partitions": len(self.nodes)}
        config = {**app.config, **self.run_keys(self.config), **self.run_keys(run or {})}
        return app.client_app.make_client(Context(1, 1, node, RecordDict(), config))

    def stranger(self, nodes: int, **run: Any) -> Any:
        """Build the client of a node whose configuration names neither table nor role."""
        app, node = self.modules(), {"partition-id": 0, "num-partitions": nodes}
        config = {**app.config, **self.run_keys(run)}
        return app.client_app.make_client(Context(1, 1, node, RecordDict(), config))

    def run_keys(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return keys of a run as the app declares them."""
        named = ((key if key in "C" else key.replace("_", "-"), v) for key, v in config.items())
        found = {key: str(v) if isinstance(v, Path) else v for key, v in named}
        if "model" in found and isinstance(config["model"], Path):
            found[self.model] = found.pop("model")
        return found

    def run(self, nodes: Any = None, wrap: Any = lambda grid: grid, **config: Any) -> InProcessGrid:
        """Run the app in process, with ``config`` beside or instead of that of the small run."""
        app, nodes = self.modules(), self.nodes if nodes is None else nodes
        usual = {"data": ""} if "data" in app.config else {}
        given = self.run_keys({**usual, **({} if "predict" in config else self.config), **config})
        assert set(given) <= set(app.config), set(given) - set(app.config)
        own = {**app.config, **given}
        grid = InProcessGrid(app.client_app.app, len(nodes))
        for context, node in zip(grid.contexts.values(), nodes, strict=True):
            context.node_config.update(node)
            context.run_config.update(own)
        app.server_app.app(wrap(grid), Context(1, 1, {}, RecordDict(), own))
        return grid


class ZooSite(Site):
    """The tables of a way as files of the nodes, which write to ``sites.folder``."""

    name, roles, label = "", ("", ""), "state"
    more: Table = {}  # noqa: RUF012
    keys: Table = {}  # noqa: RUF012
    shared: tuple[str, ...] = ("ranges",)  # files that all nodes name

    def deal(self) -> list[Table]:
        """Return the tables of the nodes; labels of new rows are in no file."""
        return WAYS[self.name].tables()

    def build(self, rng: np.random.Generator) -> None:
        """Write all tables and what their columns share."""
        rounds = {"num_rounds": self.way.rounds} if self.way.rounds else {}
        self.config = {**self.way.options, **rounds, **self.keys}
        self.sites = Sites(self.way, self.folder / "out", self.deal())
        (self.folder / "alignment").write_text(KEY.hex() + "\n")
        (self.folder / "short").write_text("abcd")
        ranges = {name: [20, 80] for name in "abcdefgh"}
        (self.folder / "ranges.json").write_text(json.dumps(ranges))
        for k in range(len(self.sites)):
            self.add(**self.node(k))

    @property
    def way(self) -> Way:
        """The way with the options of the small run, not all of its many rounds."""
        way = WAYS[self.name].few()
        return replace(way, options={**way.options, **self.more})

    def node(self, k: int) -> dict[str, Any]:
        """Write the files of a node; return its keys."""
        table = self.sites.tables[k]
        keys = {key: table[key] for key in ("role", "group") if key in table}
        keys |= {name: self.folder / f"{name}.json" for name in self.shared}
        if self.roles[0] and "role" not in table:
            keys["role"] = self.roles["y" not in table]
        for seed in {"landmark_seed", "frequency_seed"} & table.keys():
            keys[seed] = self.folder / f"{seed}{k}"
            keys[seed].write_text(table[seed].hex())
        keys |= {"data": self.write(k)} if {"x", "y"} & table.keys() else {}
        new = {"x_test", "ids_test"} & table.keys()
        keys |= {"test_data": self.write(k, "_test")} if new else {}
        keys |= {"id_column": "key"} if "ids" in table else {}
        if {"alignment_key", "landmark_seed", "frequency_seed"} & table.keys():
            keys["alignment_key"] = self.folder / "alignment"
        if "y" in table:
            keys["label_column"] = self.label
            keys |= {"classes": "ok,bad"} if "classes" in table else {}
        for key, path in self.way.paths.items() if new and "y" in table else ():
            keys[key] = self.sites.folder / path.format(k)
        return keys

    def place(self, k: int) -> int:
        """Return which of the blocks of columns a node has."""
        return 0

    def units(self, x: Any) -> np.ndarray:
        """Return features of [0, 1] in the units of a file."""
        return 20.0 + 60.0 * np.asarray(x, float)

    def labels(self, table: Table) -> list[Any]:
        """Return labels as they are in a file."""
        words = ["bad", "ok"] if "classes" in table else [0, 1]
        return [words[int(y)] if y == y else "" for y in np.asarray(table["y"], float)]

    def columns(self, k: int, part: str = "") -> dict[str, Any]:
        """Return the columns of a file: ids, features in their units, labels in words."""
        table, found = self.sites.tables[k], dict[str, Any]()
        if table.get(f"ids{part}") is not None:
            found["key"] = np.asarray(table[f"ids{part}"])
        if table.get(f"x{part}") is not None:
            x = self.units(table[f"x{part}"])
            at = x.shape[1] * self.place(k)
            found |= dict(zip("abcdefgh"[at : at + x.shape[1]], x.T, strict=True))
        return found | ({self.label: self.labels(table)} if "y" in table and not part else {})

    def write(self, k: int, part: str = "", **changes: Any) -> Path:
        """Write a table of a node, perhaps with other columns; None leaves one out."""
        path = self.folder / f"{'new' if part else 'known'}{k}.csv"
        columns = {**self.columns(k, part), **changes}
        Tables.write(path, {n: c for n, c in columns.items() if c is not None})
        return path

    def save(self, k: int) -> None:
        """Give a node an NPZ file in place of its table."""
        columns = self.columns(k)
        key, names = columns.pop("key"), np.array(list(columns))
        x = np.column_stack([*columns.values()])
        np.savez(self.folder / f"known{k}.npz", X=x, key=key, feature_names=names)
        self.nodes[k]["data"] = str(self.folder / f"known{k}.npz")

    def here(self) -> Found:
        """Run the same tables in process; nodes of streams predict with the model."""
        online = self.way.client is OnlineKernelClient
        more = {"keep_weights": True} if online else {}
        sites = Sites(self.way, self.folder / "here", self.sites.tables, more)
        found = sites.fit()
        if online:
            arrays, meta = found.strategy.model()
            found.strategy.of_model(meta).predict_at_nodes(sites.grid(), arrays, meta)
        return found

    def written(self, sites: Sites | None = None) -> dict[str, float]:
        """Return what nodes wrote, by node and id or row, and remove their files."""
        sites = sites or self.sites
        for row in sites.rows().values():
            if sites is self.sites and "class" in row:
                assert row["class"] == ("bad", "ok")[int(float(row["output_0"]) >= 0.0)]
        found = {name: values[0] for name, values in sites.written().items()}
        for path in sites.folder.glob("*/*.csv"):
            path.unlink()
        return found

    def expected(self) -> dict[str, float]:
        """Return what they should have written."""
        return self.written(self.here().sites)


class FedCGSite(ZooSite):
    """Two hospitals with labelled rows and new patients, two centres with all rows."""

    app, name, roles = "fed_cg", "fed-cg", ("hospital", "centre")

    def deal(self) -> list[Table]:
        return hospitals(count=2)

    def place(self, k: int) -> int:
        return max(0, k - 1)

    def node(self, k: int) -> dict[str, Any]:
        block = {"block": self.sites.tables[k]["block"]} if k > 1 else {}
        return {**super().node(k), **block}

    def build(self, rng: np.random.Generator) -> None:
        super().build(rng)
        self.save(3)


class FDSKLSite(ZooSite):
    """Four parties with two columns each, one of them with labels and new rows."""

    app, name, roles = "fdskl", "fdskl", ("active", "passive")

    def place(self, k: int) -> int:
        return k

    def build(self, rng: np.random.Generator) -> None:
        super().build(rng)
        self.save(2)


class TwoActivesSite(FDSKLSite):
    """Two of them with labels, and a model that streams."""

    name = "fdskl, two active"


class HorizontalSite(ZooSite):
    """Four users in two groups with rows, their agents; the first user has new rows."""

    app, name, model, roles = "hierarchical_svm", "hierarchical-svm", "saved-model", ("user", "")
    shared = ()

    def deal(self) -> list[Table]:
        first, *rest = super().deal()
        new = ("x_test", "y_test")
        return [first, *({k: v for k, v in t.items() if k not in new} for t in rest)]

    def units(self, x: Any) -> np.ndarray:
        return np.asarray(x)  # which are of the model, too


class VerticalSite(HorizontalSite):
    """Two groups of two users with two columns each, their agents and the label owner."""

    name, roles = "hierarchical-svm, vertical", ("user", "user")

    def deal(self) -> list[Table]:
        return ZooSite.deal(self)

    def place(self, k: int) -> int:
        return k // 2


class StreamSite(ZooSite):
    """Four clients with a stream of three columns in its own units, and new rows without labels."""

    app, name, label, shared = "pof_mkl", "pof-mkl", "power", ("scaling",)

    def deal(self) -> list[Table]:
        """Rows of a box whose corner is as far off as a row may be."""
        made, (low, high) = [], (50.0, 150.0)
        scaling = {"x_min": [20] * 3, "x_max": [80] * 3, "row_norm": 1.8}
        scaling |= {"y_min": low, "y_max": high}
        (self.folder / "scaling.json").write_text(json.dumps(scaling))
        for table in streams():
            x, x_test = ((table[name] + 0.5) / 1.8 for name in ("x", "x_test"))
            made.append({"x": x, "x_test": x_test, "y": table["y"], "label_range": (low, high)})
        made[0]["x_test"][-1, 0] = 1.0 / 1.8
        return made

    def units(self, x: Any) -> np.ndarray:
        found = super().units(1.8 * x)
        found[found[:, 0] >= 80.0, 0] = 900.0  # beyond the public range: clipped
        return found

    def labels(self, table: Table) -> list[Any]:
        return list(50.0 + 100.0 * table["y"])


class RidgeSite(StreamSite):
    """The same, for POF-RLS."""

    name, keys = "pof-rls", {"method": "pof-rls"}


class RowsSite(ZooSite):
    """Four clients with rows, and some held out, for a method that is registered."""

    app, name = "method", "kernel-pca"

    def deal(self) -> list[Table]:
        more = {"y": np.arange(15) % 2, "ids_test": [f"new {i}" for i in range(5)]}
        return [{**table, **more} for table in super().deal()]

    def build(self, rng: np.random.Generator) -> None:
        super().build(rng)
        options = {k: v for k, v in self.config.items() if k != "seed"}
        self.config = {"method": self.name, "options": json.dumps(options), "seed": 7}


class RatingSite(ZooSite):
    """Four nodes with 9, 7, 1 and 5 users; ratings are 1 to 5, those from 3 on are positive.

    Every node has another kind of file. Of each user a positive rating or two are held out.
    """

    app, name = "fed_cfk", "fed-cfk"
    more = {"min_support": 3, "learner": "cf-komd", "regularization": 0.1}  # noqa: RUF012
    parts = (range(9), range(9, 16), range(16, 17), range(17, 22))
    kinds = (".data", ".csv", ".tsv", ".dat")

    def deal(self) -> list[Table]:
        rng = np.random.default_rng(11)
        self.items = [f"film-{k:02d}" for k in range(15)]
        self.users = [f"s3cret-{u:02d}" for u in range(22)]
        taste = rng.normal(size=(22, 2)) @ rng.normal(size=(2, 15))
        self.stars = np.clip(np.rint(2.5 + taste + rng.normal(0.0, 0.5, taste.shape)), 1, 5)
        self.stars[rng.random(taste.shape) < 0.35] = 0  # not rated
        self.stars[2:, [6, 12]] = 0  # hardly anybody knows these
        self.stars[4] = np.where(self.stars[4] > 2, 2, self.stars[4])  # a user without taste
        self.held = (self.stars >= 3) & (rng.random(taste.shape) < 0.2)
        self.liked = (self.stars >= 3) & ~self.held
        (self.folder / "items.txt").write_text("\n".join(self.items) + "\n\n")
        titles = "".join(f'"a, b",{item}\n' for item in self.items)
        (self.folder / "items.csv").write_text(f"Title,Item\n{titles}")
        names = [[self.users[u] for u in part] for part in self.parts]
        both = zip(self.parts, names, strict=True)
        found = [{"x": self.liked[p], "x_test": self.held[p], "users": u} for p, u in both]
        return [{**t, "x": t["x"].astype(int), "items": self.items} for t in found]

    @property
    def way(self) -> Way:
        return replace(super().way, paths={"recommendations": "{}/recommendations.csv"})

    def node(self, k: int) -> dict[str, Any]:
        return {
            "data": self.ratings(f"known{k}{self.kinds[k]}", self.parts[k], ~self.held),
            "test_data": self.ratings(f"new{k}{self.kinds[k]}", self.parts[k], self.held),
            "catalogue": self.folder / ("items.csv" if k == 1 else "items.txt"),
            "recommendations": self.sites.folder / f"{k}/recommendations.csv", "min_rating": 3,
        }  # fmt: skip

    def ratings(self, name: str, users: range, mask: np.ndarray) -> Path:
        """Write the ratings of some users in the format of a file's end."""
        own = self.stars * mask * np.isin(np.arange(22), users)[:, None]
        heads = "userId,movieId,rating,timestamp"
        Tables.ratings(self.folder / name, own, heads, self.users, self.items)
        return self.folder / name

    def written(self, sites: Sites | None = None) -> dict[str, float]:
        found: dict[str, float] = {}
        for path in sorted((sites or self.sites).folder.glob("*/recommendations.csv")):
            ranks: dict[str, list[float]] = {}
            for row in Tables.read(path):
                found[f"{row['user']} {row['item']}"] = float(row["score"])
                ranks.setdefault(row["user"], []).append(float(row["score"]))
                assert len(ranks[row["user"]]) == int(row["rank"])
            assert all(scores == sorted(scores, reverse=True) for scores in ranks.values())
            path.unlink()
        return found


class RangesSite(Site):
    """Three hospitals with CSV files, empty cells among them, and a centre with an NPZ file."""

    app, config = "ranges", {"labels": True, "deviations": 3.0}

    def build(self, rng: np.random.Generator) -> None:
        self.x = rng.normal([50.0, 1e5, 7.0], [10.0, 0.01, 2.0], (3, 12, 3))
        for k in range(3):
            self.x[k, k, 0] = np.nan
            columns = dict(zip(("age", "mass", "days"), self.x[k].T, strict=True))
            data = self.folder / f"patients{k}.csv"
            Tables.write(data, {"patient": [f"p{k}{i}" for i in range(12)], **columns})
            self.add(
                data=data, id_column="patient", label_column="days", block="clinical",
                ranges=self.folder / f"r{k}.json", scaling=self.folder / f"s{k}.json",
            )  # fmt: skip
        self.genes = rng.normal(size=(9, 2))
        path = self.folder / "genes.npz"
        np.savez(path, X=self.genes, feature_names=np.array(["g", "h"]))
        self.add(data=path, block="genes", ranges=self.folder / "r3.json")


class AlignSite(Site):
    """Three nodes with files of different kinds, two of them with text beside the ids."""

    app, config = "align", {"rows": 0}

    def build(self, rng: np.random.Generator) -> None:
        (self.folder / "known.csv").write_text("patient,age,ill\n007,3,yes\n008,4,no\n009,,yes\n")
        (self.folder / "new.csv").write_text("patient,age\n010,3\n")
        (self.folder / "genes.csv").write_text("patient,gene\n010,x\n007,y\n")
        path, patients = self.folder / "scans.npz", np.array(["009", "007"])
        np.savez(path, X=np.zeros((2, 1)), patient=patients)
        for k, name in enumerate(("known.csv", "genes.csv", "scans.npz")):
            alignment = self.folder / f"node-{k}" / "alignment.npz"
            self.add(data=self.folder / name, id_column="patient", alignment=alignment)
        self.nodes[0]["test-data"] = str(self.folder / "new.csv")


SITES: dict[str, type[Site]] = {
    "fed-cg": FedCGSite, "fdskl": FDSKLSite, "fdskl two": TwoActivesSite,
    "horizontal": HorizontalSite, "vertical": VerticalSite, "pof-mkl": StreamSite,
    "pof-rls": RidgeSite, "fed-cfk": RatingSite, "ranges": RangesSite, "align": AlignSite,
    "kernel-pca": RowsSite,
}  # fmt: skip

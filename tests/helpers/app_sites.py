"""Sites of apps: nodes with files of their own, a small run, and what it should give.

Here those whose parties hold columns or rows of the same patients; ``other_sites`` has the others.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict

from fedkern_flwr.hybrid.landmarks import draw_landmarks
from fedkern_flwr.kernels.random_features import draw_directions, draw_offsets
from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations import InProcessGrid
from fedkern_flwr.simulations.deployment.run_config import app_folder

Import = Callable[..., SimpleNamespace]
Make = Callable[[str], Any]
Given = Callable[..., dict[str, Any]]
Refuses = Callable[..., str]


def write(path: Path, heads: Sequence[str], *columns: Iterable[Any]) -> Path:
    """Write a table of columns."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([heads, *zip(*columns, strict=True)])
    return path


def cells(x: np.ndarray) -> list[list[str]]:
    """Return the columns of a matrix as texts that are read back bit for bit."""
    return [[repr(value) for value in column] for column in x.T.tolist()]


def node_keys(app: str) -> set[str]:
    """Return the keys of the node configuration that the README of an app explains."""
    table = (app_folder(app) / "README.md").read_text().split("| key")[1].split("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines()[2:]]
    return {key for row in rows for key in re.findall(r"`([a-z-]+)`", row)}


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
    near : float
        How near what nodes write is to what they should.
    """

    app, near, model = "", 1e-6, "model"
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

    def written(self) -> dict[str, float]:
        """Return what nodes wrote, by its name, and remove their files."""
        found: dict[str, float] = {}
        for path in sorted(self.folder.glob("predictions*.csv")):
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    name = row.get("id") or f"{path.stem}/{row['row']}"
                    found[name] = float(row.get("output_0") or row["output"])
                    if "class" in row:
                        assert row["class"] == ("bad", "ok")[int(found[name] >= 0.0)]
            path.unlink()
        return found

    def expected(self, grid: InProcessGrid, saved: Path) -> dict[str, float]:
        """Return what they should have written."""
        raise NotImplementedError


class Patients(Site):
    """60 patients with six columns in units of their own, 42 of them with a text label."""

    columns = "abcdef"

    def build(self, rng: np.random.Generator) -> None:
        self.x = rng.random((60, 6))
        self.units = 20.0 + 60.0 * self.x
        self.y = np.where(self.x.sum(axis=1) > 3.0, 1.0, -1.0)
        self.words = np.where(self.y > 0.0, "ok", "bad")  # sorted: bad, ok
        self.ids = np.array([f"p{k:03d}" for k in range(60)])
        self.train, self.new = np.split(rng.permutation(60), [42])
        self.seeds = [bytes([k + 1]) * 32 for k in range(3)]
        for k, seed in enumerate(self.seeds):
            (self.folder / f"seed{k}").write_text(seed.hex())
        (self.folder / "alignment").write_text("ab" * 32 + "\n")
        (self.folder / "short").write_text("abcd")
        ranges = {name: [20, 80] for name in self.columns}
        (self.folder / "ranges.json").write_text(json.dumps(ranges))

    def write(
        self, name: str, rows: Any, columns: slice, labels: Any = None, *, ids: bool = True
    ) -> Path:
        """Write some rows and columns, with ids, and labels if they are given."""
        heads = [*(["key"] if ids else []), *self.columns[columns]]
        body = [self.ids[rows], *cells(self.units[rows, columns])][0 if ids else 1 :]
        more = [] if labels is None else [labels]
        last = [] if labels is None else ["state"]
        return write(self.folder / name, [*heads, *last], *body, *more)

    def save(self, name: str, rows: Any, columns: slice) -> Path:
        """Write some rows and columns as an NPZ file."""
        names = np.array(list(self.columns[columns]))
        x, key = self.units[rows, columns], self.ids[rows]
        np.savez(self.folder / name, X=x, key=key, feature_names=names)
        return self.folder / name

    def joined(self, k: int) -> dict[str, Path]:
        """Return keys of what joins rows and scales columns."""
        return {
            "alignment_key": self.folder / "alignment",
            "ranges": self.folder / f"ranges{k}.json",
        }

    def by_id(self, outputs: Any) -> dict[str, float]:
        """Return outputs of the new rows by their ids."""
        return dict(zip(self.ids[self.new].tolist(), np.ravel(outputs).tolist(), strict=True))


class FedCGSite(Patients):
    """Two hospitals with labelled rows and new patients, two centres with all rows."""

    app, near, landmarks = "fed_cg", 1e-7, 20

    def build(self, rng: np.random.Generator) -> None:
        super().build(rng)
        self.config = {"landmarks": self.landmarks, "sampling": "U"}
        shared = {"alignment_key": self.folder / "alignment", "id_column": "key"}
        shared["ranges"] = self.folder / "ranges.json"
        first = slice(0, 2)
        for h in range(2):
            known, new = self.train[h::2], self.new[h::2]
            self.add(
                role="hospital", data=self.write(f"known{h}.csv", known, first, self.words[known]),
                test_data=self.write(f"new{h}.csv", new, first),
                predictions=self.folder / f"predictions{h}.csv", label_column="state",
                classes="ok,bad", landmark_seed=self.folder / "seed0", **shared,
            )  # fmt: skip
        order = rng.permutation(60)
        proteins = self.write("proteins.csv", order, slice(2, 4))
        for k, data in ((1, proteins), (2, self.save("genes.npz", order[::-1], slice(4, 6)))):
            seed = self.folder / f"seed{k}"
            self.add(role="centre", data=data, block=data.stem, landmark_seed=seed, **shared)

    def expected(self, grid: InProcessGrid, saved: Path) -> dict[str, float]:
        box = np.array([[0.0, 1.0]] * 2)
        landmarks = np.hstack([draw_landmarks(s, self.landmarks, box) for s in self.seeds])
        gaps = ((self.x[:, None, :] - landmarks) ** 2).sum(axis=2)
        arrays, meta = load_model(saved)
        k = np.exp(-arrays["gammas"] * gaps)
        kernel, labels = k[self.train], self.y[self.train]
        normal = kernel.T @ kernel + meta["regularization"] * np.eye(self.landmarks)
        coefficients = np.linalg.solve(normal, kernel.T @ labels)
        np.testing.assert_allclose(arrays["coefficients"][:, 0], coefficients, atol=1e-6)
        assert meta["blocks"] == ["clinical", "genes", "proteins"]
        return self.by_id(k[self.new] @ coefficients)


class FDSKLSite(Patients):
    """Three parties with two columns each, one of them with labels and new rows."""

    app, actives, features = "fdskl", 1, 40
    config = {  # noqa: RUF012
        "features": 40, "gamma": 1.5, "regularization": 1e-2, "phase_bits": 32, "loss": "square",
    }  # fmt: skip

    def build(self, rng: np.random.Generator) -> None:
        super().build(rng)
        owner = np.arange(60) % self.actives
        for k in range(3):
            own = slice(2 * k, 2 * k + 2)
            ranges = {name: [20, 80] for name in self.columns[own]}
            (self.folder / f"ranges{k}.json").write_text(json.dumps(ranges))
            more = {**self.joined(k), "frequency_seed": self.folder / f"seed{k}"}
            more |= {"id_column": "key", "role": "active" if k < self.actives else "passive"}
            if k < self.actives:  # other active parties' rows are there without a label
                new = self.new[owner[self.new] == k]
                known = rng.permutation(np.setdiff1d(np.arange(60), new))
                mine = (owner[known] == k) & np.isin(known, self.train)
                labels = np.where(mine, self.words[known], "")
                more["data"] = self.write(f"known{k}.csv", known, own, labels)
                more["test_data"] = self.write(f"new{k}.csv", new, own)
                more |= {"label_column": "state", "classes": "ok,bad"}
                more["predictions"] = self.folder / f"predictions{k}.csv"
            elif k == 1:
                more["data"] = self.write("known1.csv", rng.permutation(self.train), own)
                more["test_data"] = self.write("new1.csv", self.new, own)
            else:
                more["data"] = self.save("all.npz", rng.permutation(60), own)
            self.add(**more)

    def expected(self, grid: InProcessGrid, saved: Path, first: int = 0) -> dict[str, float]:
        arrays, meta = load_model(saved)
        assert arrays == {}  # the coefficients stay with the active party
        assert meta["columns"] == 6 - 2 * first
        n, features = len(self.train), self.features
        omega = [draw_directions(s, 0, features, 2, "rbf", 1.5) for s in self.seeds[first:]]
        b = sum(draw_offsets(s, 0, features, "rbf", 1.5) for s in self.seeds)
        z = np.sqrt(2.0 / features) * np.cos(self.x[:, 2 * first :] @ np.hstack(omega).T + b)
        normal = 2.0 / n * z[self.train].T @ z[self.train] + 1e-2 * np.eye(features)
        right = 2.0 / n * z[self.train].T @ self.y[self.train]
        return self.by_id(z[self.new] @ np.linalg.solve(normal, right))


class TwoActivesSite(FDSKLSite):
    """Three parties, two of them with labels, and a model that streams."""

    actives = 2
    config = {  # noqa: RUF012
        "schedule": "streaming", "num_rounds": 12, "directions": 4, "batch": 6, "phase_bits": 32,
        "evaluate_every": 5, "checkpoint_every": 4,
    }  # fmt: skip


class HorizontalSite(Patients):
    """Four users in two groups with rows, their agents; the first user has the new rows."""

    app, model, near = "hierarchical_svm", "saved-model", 0.05
    config = {"tolerance": 1e-4, "num_rounds": 40, "C": 1.0}  # noqa: RUF012

    def build(self, rng: np.random.Generator) -> None:
        super().build(rng)
        every, self.new = slice(0, 6), np.sort(self.new)
        for k, rows in enumerate(np.array_split(self.train, 4)):
            data = self.write(f"known{k}.csv", rows, every, self.words[rows], ids=False)
            own: dict[str, Any] = {"role": "user", "group": k // 2, "data": data}
            if k == 0:
                own["test_data"] = self.write("new.csv", self.new, every, ids=False)
                own["predictions"] = self.folder / "predictions.csv"
            self.add(**own, label_column="state", classes="ok,bad")
        for group in range(2):
            self.add(role="agent", group=group)

    def expected(self, grid: InProcessGrid, saved: Path) -> dict[str, float]:
        names = [f"held-out row {k}" for k in range(len(self.new))]
        return dict(zip(names, self.pooled().tolist(), strict=True))

    def pooled(self) -> np.ndarray:
        """Return what an owner of all columns and rows gives the new rows."""
        from sklearn.svm import SVC

        mean, deviation = self.units[self.train].mean(0), self.units[self.train].std(0)
        x = (self.units - mean) / deviation
        oracle = SVC(kernel="linear", C=1.0, tol=1e-8).fit(x[self.train], self.y[self.train])
        return np.asarray(oracle.decision_function(x[self.new]))


class VerticalSite(HorizontalSite):
    """Two groups of two users with three columns each, their agents and the label owner."""

    near = 1e-3
    config = {"tolerance": 1e-7, "partition": "vertical"}  # noqa: RUF012

    def build(self, rng: np.random.Generator) -> None:
        Patients.build(self, rng)
        joined = {"alignment_key": self.folder / "alignment", "id_column": "key"}
        for group in range(2):
            for rows in np.array_split(rng.permutation(60), 2):
                data = self.write(
                    f"user{len(self.nodes)}.csv", rows, slice(3 * group, 3 * group + 3)
                )
                self.add(role="user", group=group, data=data, **joined)
        for group in range(2):
            self.add(role="agent", group=group)
        nothing = slice(0, 0)
        self.add(
            role="owner",
            data=self.write("labels.csv", self.train, nothing, self.words[self.train]),
            test_data=self.write("unlabelled.csv", self.new, nothing),
            predictions=self.folder / "predictions.csv",
            label_column="state",
            classes="bad,ok",
            **joined,
        )

    def expected(self, grid: InProcessGrid, saved: Path) -> dict[str, float]:
        assert load_model(saved)[0] == {}  # its parts stay with agents and owner
        for part in self.folder.glob("state*/*/*.model"):
            assert part.stat().st_mode & 0o077 == 0
        return self.by_id(self.pooled())

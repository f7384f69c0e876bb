"""Sites of apps whose nodes hold streams, ratings, ids or columns to be measured."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
from app_sites import (
    FDSKLSite,
    FedCGSite,
    HorizontalSite,
    Site,
    TwoActivesSite,
    VerticalSite,
    cells,
    write,
)

from fedkern_flwr.clients.pof_mkl_samples import StreamAccount
from fedkern_flwr.gram.matrix import unpack
from fedkern_flwr.gram.recommenders import fit_user
from fedkern_flwr.kernels.random_features import feature_map
from fedkern_flwr.model_file import load_model
from fedkern_flwr.node.state import SessionState
from fedkern_flwr.online.hedge import Hedge
from fedkern_flwr.online.learning import current_weights
from fedkern_flwr.simulations import InProcessGrid


class StreamSite(Site):
    """Four clients with a stream of two columns in its own units, and new rows without labels."""

    app, rows, held = "pof_mkl", 24, 7
    config = {"num_rounds": 20, "samples_per_round": 5, "kernels": 7, "features": 6}  # noqa: RUF012

    def build(self, rng: np.random.Generator) -> None:
        n = self.rows
        self.x = rng.uniform([10.0, -1.0], [30.0, 1.0], (4, n + self.held, 2))
        self.y = 100.0 + 40.0 * np.sin(self.x[..., 0] / 4.0) + np.arange(4)[:, None]
        self.x[0, -1, 0] = 900.0  # beyond the public range: clipped
        scaling = {"x_min": [10, -1], "x_max": [30, 1], "row_norm": 1.5, "y_min": 50, "y_max": 150}
        (self.folder / "scaling.json").write_text(json.dumps(scaling))
        for k in range(4):
            known = np.column_stack([self.x[k], self.y[k]])[:n]
            self.add(
                data=write(self.folder / f"known{k}.csv", ["a", "b", "power"], *cells(known)),
                test_data=write(self.folder / f"new{k}.csv", ["a", "b"], *cells(self.x[k, n:])),
                scaling=self.folder / "scaling.json",
                predictions=self.folder / f"predictions{k}.csv",
                label_column="power",
            )

    def outputs(self, k: int, grid: InProcessGrid, saved: Path) -> np.ndarray:
        """Return what client k predicts with the weights that it had when the run ended."""
        arrays, meta = load_model(saved)
        context = list(grid.contexts.values())[k]
        account = StreamAccount.unpack(SessionState.load(context).payload)
        weights = current_weights("adahedge", account.losses, account.gap, 1.0)
        low, high = np.array([10.0, -1.0]), np.array([30.0, 1.0])
        x = (np.clip(self.x[k, self.rows :], low, high) - low) / (high - low) / 1.5
        widths = np.array(meta["bandwidths"], "<f8").tobytes()
        z = feature_map(widths, 2, 6, 0, "float32", "orthogonal")(x)
        kernels = np.vecdot(z, arrays["theta"].astype("float32"))
        return np.asarray(kernels @ weights + meta["centre"]) * 100.0 + 50.0

    near = 1e-4  # of outputs around 100

    def expected(self, grid: InProcessGrid, saved: Path) -> dict[str, float]:
        found = {}
        for k in range(4):
            for row, value in enumerate(self.outputs(k, grid, saved)):
                found[f"predictions{k}/{row}"] = float(value)
        return found


class RidgeSite(StreamSite):
    """The same, for POF-RLS."""

    config = {"method": "pof-rls", "num_rounds": 20, "samples_per_round": 5, "features": 3}  # noqa: RUF012

    def outputs(self, k: int, grid: InProcessGrid, saved: Path) -> np.ndarray:
        """Return the mixture of what each learner predicts: those of all rows, and the client's."""
        arrays, meta = load_model(saved)
        context = list(grid.contexts.values())[k]
        account = StreamAccount.unpack(SessionState.load(context).payload)
        low, high = np.array([10.0, -1.0]), np.array([30.0, 1.0])
        x = (np.clip(self.x[k, self.rows :], low, high) - low) / (high - low) / 1.5
        raw = np.column_stack([x, np.ones(len(x))])
        widths = np.array(arrays["bandwidths"], "<f8").tobytes()
        z = feature_map(widths, 2, 3, meta["seed"], "float64", "orthogonal")(x)[:, 0]
        half = np.arange(meta["summed"])
        banks = [(raw, arrays["raw"])]
        banks += [(raw, theta[None]) for theta in account.own[2:8:4]]
        banks += [(z[:, [*half, *(3 + half)]], arrays["kernels"])] if half.size else []
        banks += [(z, theta[None]) for theta in account.own[10::4]]
        each = np.concatenate([rows @ theta.T for rows, theta in banks], axis=1)
        found = each @ Hedge(account.losses, account.gap).weights()
        return np.asarray(found.clip(-0.5, 0.5) + 0.5) * 100.0 + 50.0


class RatingSite(Site):
    """Four nodes with 9, 7, 1 and 5 users; ratings are 1 to 5, those from 3 on are positive.

    Every node has another kind of file. Of each user a positive rating or two are held out.
    """

    app, least, near = "fed_cfk", 3, 1e-6
    config = {"min_support": 3, "learner": "cf-komd", "regularization": 0.1}  # noqa: RUF012
    parts = (range(9), range(9, 16), range(16, 17), range(17, 22))

    def build(self, rng: np.random.Generator) -> None:
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
        for k, suffix in enumerate((".data", ".csv", ".tsv", ".dat")):
            self.add(
                data=self.write(f"known{k}{suffix}", self.parts[k], ~self.held),
                test_data=self.write(f"new{k}{suffix}", self.parts[k], self.held),
                catalogue=self.folder / ("items.csv" if k == 1 else "items.txt"),
                recommendations=self.folder / f"recommendations{k}.csv",
                min_rating=3,
            )

    def write(self, name: str, users: range, mask: np.ndarray) -> Path:
        """Write the ratings of some users in the format of a file's end."""
        separator = {".csv": ",", ".dat": "::"}.get(Path(name).suffix, "\t")
        rows = [
            (self.users[u], self.items[i], int(self.stars[u, i]), 880000000 + u)
            for i in range(15)
            for u in users
            if mask[u, i] and self.stars[u, i] > 0
        ]
        if name.endswith((".csv", ".tsv")):
            rows.insert(0, ("userId", "movieId", "rating", "timestamp"))  # type: ignore[arg-type]
        lines = [separator.join(map(str, row)) for row in rows]
        (self.folder / name).write_text("\n".join(lines) + "\n")
        return self.folder / name

    def written(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for path in sorted(self.folder.glob("recommendations*.csv")):
            ranks: dict[str, list[float]] = {}
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    found[f"{row['user']} {row['item']}"] = float(row["score"])
                    ranks.setdefault(row["user"], []).append(float(row["score"]))
                    assert len(ranks[row["user"]]) == int(row["rank"])
            assert all(scores == sorted(scores, reverse=True) for scores in ranks.values())
            path.unlink()
        return found

    def scores(self) -> tuple[np.ndarray, np.ndarray]:
        """Return what an owner of all ratings gives every user for every item; and the items."""
        x = self.liked.astype(float)
        kept = np.flatnonzero(x.sum(axis=0) >= self.least)
        gram = x[:, kept].T @ x[:, kept]
        kernel = gram / np.sqrt(np.outer(gram.diagonal(), gram.diagonal()))
        mean, scores = kernel.mean(axis=1), np.zeros(x.shape)
        for u in range(len(x)):
            mine = np.flatnonzero(x[u, kept])
            scores[u, kept] = mean
            if len(mine):
                alpha = fit_user(kernel[np.ix_(mine, mine)], mean[mine], 0.1)
                scores[u, kept] = kernel[:, mine] @ alpha - mean
        return scores, kept

    def expected(self, grid: InProcessGrid, saved: Path) -> dict[str, float]:
        (scores, kept), (arrays, meta) = self.scores(), load_model(saved)
        assert 5 < len(kept) < 15
        assert (arrays["items"].tolist(), meta["rows"]) == (kept.tolist(), 22)
        x = self.liked[:, kept].astype(int)
        np.testing.assert_array_equal(unpack(arrays["gram"], len(kept)), x.T @ x)
        return {
            f"{user} {self.items[i]}": float(scores[u, i])
            for u, user in enumerate(self.users)
            for i in kept
            if not self.liked[u, i]
        }


class RangesSite(Site):
    """Three hospitals with CSV files, empty cells among them, and a centre with an NPZ file."""

    app, config = "ranges", {"labels": True, "deviations": 3.0}

    def build(self, rng: np.random.Generator) -> None:
        self.x = rng.normal([50.0, 1e5, 7.0], [10.0, 0.01, 2.0], (3, 12, 3))
        heads = ["patient", "age", "mass", "days"]
        for k in range(3):
            self.x[k, k, 0] = np.nan
            body = [[c.replace("nan", "") for c in column] for column in cells(self.x[k])]
            ids = [f"p{k}{i}" for i in range(12)]
            self.add(
                data=write(self.folder / f"patients{k}.csv", heads, ids, *body),
                id_column="patient", label_column="days", block="clinical",
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


class RowsSite(Site):
    """Three clients with rows, and some held out, for a method that is registered."""

    app, config = "method", {"method": "kernel-pca", "options": '{"components": 2}'}

    def build(self, rng: np.random.Generator) -> None:
        heads = ["key", "a", "b", "state"]
        ranges = self.folder / "ranges.json"
        ranges.write_text(json.dumps({"a": [0, 10], "b": [0, 10]}))
        for k in range(3):
            x, names = rng.uniform(0.0, 10.0, (20, 2)), [f"p{k}{i:02d}" for i in range(20)]
            columns = [names, *cells(x), [i % 2 for i in range(20)]]
            known, new = (
                [column[part] for column in columns] for part in (slice(14), slice(14, 20))
            )
            self.add(
                data=write(self.folder / f"known{k}.csv", heads, *known),
                test_data=write(self.folder / f"new{k}.csv", heads, *new), id_column="key",
                label_column="state", ranges=ranges, results=self.folder / f"results{k}",
            )  # fmt: skip


SITES: dict[str, type[Site]] = {
    "fed-cg": FedCGSite, "fdskl": FDSKLSite, "fdskl two": TwoActivesSite,
    "horizontal": HorizontalSite, "vertical": VerticalSite, "pof-mkl": StreamSite,
    "pof-rls": RidgeSite, "fed-cfk": RatingSite, "ranges": RangesSite, "align": AlignSite,
    "kernel-pca": RowsSite,
}  # fmt: skip

"""Online methods, in which clients predict each row before they learn it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.checkpoint import run_folder
from fedkern_flwr.clients.pof_mkl_samples import StreamAccount
from fedkern_flwr.encoding import Encoder, Explanation
from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.kernels.random_features import FeatureMap
from fedkern_flwr.online import network
from fedkern_flwr.online.learning import current_weights, recent_errors, rises
from fedkern_flwr.options import at_least
from fedkern_flwr.reporting import whether_converged
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.tables.table import Table, drop_constant_columns, listing

from ... import strategies
from ...clients import OnlineKernelClient, StreamClient
from ...clients.pof_rls import mixture
from ...strategies import POFRLS, LocalOnly, Method, PerFedAvg
from ...strategies.online import OnlineStrategy
from ...strategies.pof_mkl import KernelLearning
from ..run import plots
from ..run.data import Prepared, TableSettings, held_out_of, hold_out
from ..run.entries import Entry, average, mean
from ..run.format import figure, milli
from ..run.options import of_fields
from ..run.splits import Split, split_rows
from .base import Config, Family, Kept
from .dealt_data import NodeClients
from .new_rows import Parts

# -- streams, dealt to clients

DEFAULT_ROUNDS, DEFAULT_CLIENTS = 500, 10

_FEW = 20  # values of a label that may be classes

Missing = Literal["encode", "error", "drop-row"]


@dataclass(frozen=True)
class DataSettings(TableSettings):
    """Rows of each client.

    Attributes
    ----------
    sites : tuple of str
        Sites to keep, separated by commas.
    missing : {"encode", "error", "drop-row"}
        Rows with missing values (encode: median and indicator).
    clients : int or None
        Number of clients, K (default: 10, or one per site).
    split : {"iid", "site", "dirichlet"}
        Split of the rows among clients.
    site_share : float
        Share of the rows of a client from its own site.
    alpha : float
        Concentration of the Dirichlet split.
    rounds : int or None
        Samples per client, T (default: 500, or all).
    stream_wait : float or None
        Read growing files of --party; seconds to wait for rows.
    """

    sites: tuple[str, ...] = ()
    missing: Missing = "error"
    clients: int | None = None
    split: Split = "iid"
    site_share: float = 1.0
    alpha: float = 0.5
    rounds: int | None = None
    stream_wait: float | None = None

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Read the settings; ``sites`` may be text with commas."""
        sites = values["sites"] or ()
        if isinstance(sites, str):
            sites = tuple(site.strip() for site in sites.split(",") if site.strip())
        return super().from_values({**values, "sites": tuple(sites)})

    def describe(self) -> str:
        """Describe the split for a caption."""
        return f"{self.clients} clients, {self.rounds} samples each, split {self.split}"


@dataclass(frozen=True)
class Shard:
    """The rows of one client."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    x_test: NDArray[np.float64]
    y_test: NDArray[np.float64]


@dataclass(frozen=True)
class Streams(Prepared):
    """Data of an online method.

    Attributes
    ----------
    shards : tuple of Shard
        Rows of each client.
    columns : tuple of str
        Names of the features.
    encoder, scaling
        Encoder and scale of the rows.
    rounds : int
        Samples per client, T.
    files : tuple of dict
        Files that clients read; empty if rows are dealt.
    """

    shards: tuple[Shard, ...]
    columns: tuple[str, ...]
    encoder: Encoder
    scaling: Scaling
    rounds: int
    notes: tuple[str, ...]
    settings: DataSettings
    files: tuple[dict[str, Any], ...] = ()

    @property
    def num_clients(self) -> int:
        """Number K of clients."""
        return len(self.shards)

    @property
    def clients(self) -> NodeClients:
        """Client function of all methods."""
        dealt = [{**vars(shard), "columns": self.columns} for shard in self.shards]
        kind = StreamClient if self.files else OnlineKernelClient
        return NodeClients(kind=kind, table=(self.files or dealt).__getitem__)

    def client_fn(self, strategy: Method, state_dir: Path | None = None) -> NodeClients:
        """Return the client function."""
        return replace(self.clients, state_dir=state_dir)

    def start(self) -> dict[str, Any]:
        """Return the samples per client."""
        return {"num_rounds": self.rounds}

    def facts(self) -> dict[str, Any]:
        """Return numbers of clients and samples."""
        return {"clients": self.num_clients, "rounds": self.rounds}

    def scaling_json(self) -> str:
        """Return encoder and scale."""
        unit = self.scaling.y_max - self.scaling.y_min
        labels = {"classes": [], "y_middle": self.scaling.y_min, "y_half_range": unit}
        both = {**json.loads(self.scaling.to_json()), "encoder": self.encoder.to_dict()}
        return json.dumps(both | labels)

    def explain(self) -> list[Explanation]:
        """Return how columns were encoded."""
        return self.encoder.explain()


def prepare(settings: DataSettings) -> Streams:
    """Load, scale and deal the data, or let clients read their files.

    Constant columns are dropped. Features are scaled to the unit ball and labels to [0, 1], by
    the rows that are not held out.
    """
    if settings.stream_wait is not None:
        return _read_on(settings)
    if settings.scaling == "auto":  # they predict numbers
        settings = replace(settings, scaling="range")
    if settings.scaling == "none":
        raise OptionError("online methods need rows of the unit ball", code="FK-SCALING-RANGE")
    table = settings.load(settings.missing)
    if settings.target is None and len(table.classes) > 2:
        raise TableError(
            f"{len(table.classes)} classes are no numbers, and online methods predict numbers",
            code="FK-TASK-TEXT",
        )
    said = _regression_note(table)
    if settings.sites:
        table = _keep_sites(table, settings.sites)
    table = drop_constant_columns(table)
    whole, each = table, settings.files is not None
    kept, x_test, y_test = hold_out(table, settings.test_size, settings.seed, each_site=each)
    if len(x_test):  # else the order in memory would change, and with it the rounding of norms
        table = kept
    table = replace(table, x_test=x_test, y_test=y_test)
    scale = "none" if settings.scaling == "range" else settings.scaling  # ranges come afterwards
    encoder = replace(settings, scaling=scale).encoder(table)
    left_out = encoder.left_out(table)
    table = encoder.apply(table)
    scaling = Scaling.fit(table)
    table = scaling.apply(table)
    assert table.x_test is not None
    assert table.y_test is not None
    x_test, y_test = table.x_test, table.y_test
    clients = _number_of_clients(table, settings)
    rounds, notes = _number_of_rounds(table, clients, settings)
    parts = split_rows(
        table, settings.split, clients, settings.seed, rounds, settings.site_share, settings.alpha
    )
    assert table.y is not None
    test = np.array_split(np.arange(len(y_test)), clients)
    if settings.files is not None:
        test = held_out_of(whole, kept)
    shards = tuple(
        Shard(
            np.ascontiguousarray(table.x[rows]),
            np.ascontiguousarray(table.y[rows]),
            x_test[held],
            y_test[held],
        )
        for rows, held in zip(parts, test, strict=True)
    )
    notes = (*table.notes, *left_out, *said, *notes)
    return Streams(shards, table.columns, encoder, scaling, rounds, notes, settings)


def _regression_note(table: Table) -> tuple[str, ...]:
    """Return a note if labels may be meant as classes."""
    values = np.unique(table.y[np.isfinite(table.y)]) if table.y is not None else np.empty(0)
    if len(values) > _FEW:
        return ()
    what = "classes" if table.classes else "values of the label"
    text = f"online methods predict numbers: the {len(values)} {what} are numbers from 0 to 1"
    return (f"{text}; fed-cg, fdskl and hierarchical-svm predict classes",)


def _keep_sites(table: Table, sites: Sequence[str]) -> Table:
    if table.site is None:
        raise TableError("the data has no sites to choose from", code="FK-SITES-UNKNOWN")
    names = np.asarray(table.site).astype(str)
    unknown = sorted(set(sites) - set(names))
    if unknown:
        raise TableError(
            f"{len(unknown)} of the chosen sites are not in the data", code="FK-SITES-UNKNOWN"
        )
    return table.take(np.flatnonzero(np.isin(names, list(sites))))


def _number_of_clients(table: Table, settings: DataSettings) -> int:
    if settings.clients is not None:
        return settings.clients
    if settings.split == "site" and table.site is not None:
        return int(np.unique(table.site).size)
    return DEFAULT_CLIENTS


def _number_of_rounds(
    table: Table, clients: int, settings: DataSettings
) -> tuple[int, tuple[str, ...]]:
    if settings.rounds is not None:
        at_least("rounds", settings.rounds, 1)
        return settings.rounds, ()
    available = table.rows // max(1, clients)
    if settings.split == "site" and table.site is not None:
        _, counts = np.unique(table.site, return_counts=True)
        owners = np.bincount(np.arange(max(1, clients)) % len(counts), minlength=len(counts))
        available = int(min(counts[owners > 0] // owners[owners > 0]))
    if available >= DEFAULT_ROUNDS or available < 1:
        return DEFAULT_ROUNDS, ()
    return available, (
        f"{available} rounds instead of {DEFAULT_ROUNDS}: the data has no more rows",
    )


def _read_on(settings: DataSettings) -> Streams:
    """Make clients that read files row by row.

    Ranges are those of the rows that exist; later rows are clipped.
    """
    if not settings.party:
        raise OptionError("streams are files of parties", code="FK-STREAM-PARTIES")
    if settings.test_size:
        raise OptionError("no rows of a stream are held out", code="FK-DATA-OPTION")
    if settings.scaling not in ("auto", "range") or settings.ranks is not None:
        raise OptionError("streams are scaled by ranges", code="FK-DATA-OPTION")
    if settings.rounds is not None:
        at_least("rounds", settings.rounds, 1)
    prepared = prepare(replace(settings, rounds=None, stream_wait=None))
    known = settings.load(settings.missing).columns
    if strange := [name for name in prepared.columns if name not in known]:
        raise OptionError(
            f"{strange[0]!r} was made of text, dates or gaps, and a stream has numbers",
            code="FK-STREAM-TEXT",
        )
    scaling: Scaling = replace(prepared.scaling, clip=True)
    how = {
        "label": settings.label,
        "id_column": settings.id_column,
        "columns": prepared.columns,
        "wait": settings.stream_wait,
        "scaling": scaling,
        "sep": settings.sep,
        "decimal": settings.decimal,
        "na": ",".join(settings.na),
    }
    files = tuple({"stream": Path(file), **how} for file in settings.party)
    rounds, notes = prepared.rounds, prepared.notes
    if settings.rounds or settings.stream_wait:  # rows may come
        rounds = settings.rounds or DEFAULT_ROUNDS
        notes = tuple(note for note in notes if not note.endswith("no more rows"))
    notes = (*notes, "rows are read from the files while the run goes on")
    return replace(prepared, files=files, scaling=scaling, rounds=rounds, notes=notes)


@dataclass(frozen=True)
class OnlineOptions:
    """Options of online methods.

    Attributes
    ----------
    hindsight : bool
        Also the regret of the server against the best kernel (pools data).
    secure : bool
        Secure sums: the server sees sums over clients only.
    """

    hindsight: bool = False
    secure: bool = False


class OnlineFamily(Family[OnlineStrategy, DataSettings, Streams]):
    """POF-MKL, POF-RLS and their baselines."""

    strategies = (
        strategies.POFMKL,
        strategies.POFRLS,
        strategies.OFSKL,
        strategies.OFMKLAvg,
        strategies.VMKOFL,
        strategies.EMKOFL,
        strategies.PerFedAvg,
        strategies.LocalOnly,
    )
    settings, makes = DataSettings, staticmethod(prepare)
    run_options = ("secure", "hindsight")
    app, deployable = "pof_mkl", ("pof-mkl", "pof-rls")
    deployed_defaults = {"samples_per_round": 50, "checkpoint_every": 2}  # noqa: RUF012
    usual = "clients split kernels_per_round features step_size samples_per_round"
    data = "nyc-weather"
    own_options = of_fields(OnlineOptions)

    def config(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Make the configuration; a privacy budget needs secure sums."""
        found = super().config(name, values)
        if found["options"].get("privacy_epsilon") is not None:
            found["secure"] = found["options"]["secure"] = True
            if found["data"]["missing"] == "encode":  # gaps would be filled by all rows
                found["data"]["missing"] = "error"
        return found

    def measure(
        self, strategy: OnlineStrategy, prepared: Streams, config: Config
    ) -> dict[str, Any]:
        """Return the regret of the server, and whether a constant is as good."""
        shards, metrics = prepared.shards, strategy.metrics_
        y = np.concatenate([one.y[: prepared.rounds] for one in shards])
        held = np.concatenate([one.y_test for one in shards])
        found: dict[str, Any] = {}
        judged = held if "test_mse" in metrics else y  # what was learned in the end counts
        if metrics["mse"] is None:
            return {}
        if metrics.get("test_mse", metrics["mse"]) >= np.mean((judged - y.mean()) ** 2):
            found["no_better_than"] = "the mean of all labels"
            if metrics.get("converged", True):  # else it has been said
                text = "the error is no smaller than that of the mean of all labels"
                found |= whether_converged(False, text, strategy.advice)
        if config.get("hindsight"):
            found["server_regret"] = server_regret(strategy, prepared)
        return found

    def whole_model(self, strategy: OnlineStrategy, prepared: Streams, kept: Kept) -> Parts:
        """Return the whole model."""
        return whole_model(strategy, prepared, kept.state_dir)

    def summarise(self, entry: Entry) -> dict[str, Any]:
        """Average the runs round by round; ``mse_std`` is over runs."""
        results = entry.results
        errors = [result["metrics"]["mse"] for result in results]
        told = None not in errors  # as nodes do not with a budget of privacy
        history = [
            {
                "round": rows[0]["round"],
                "mse": mean([row["mse"] for row in rows]),
                "regret": mean([row["regret"] for row in rows]),
                "survivors": min(row["survivors"] for row in rows),
            }
            for rows in zip(*(r["history"] for r in results), strict=True)
        ]
        found = average(
            results,
            metrics={"mse_std": float(np.std(errors, ddof=len(errors) > 1)) if told else None},
            history=history,
            survivors=results[-1]["history"][-1]["survivors"],
        )
        return {**found, "drift": rises(history)}

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return numbers of clients and samples."""
        return f"{facts['clients']} clients x {facts['rounds']} samples"

    def figures(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return errors and regrets."""
        metrics, config = result["metrics"], result["config"]
        if metrics["mse"] is None and "budget" in result["privacy"]:
            return [["errors", "only in the log of each client, because of the privacy budget"]]
        rows = [
            ["MSE (10⁻³; labels from 0 to 1)", milli(metrics["mse"], 3)],
            ["  std over clients (10⁻³)", milli(metrics["mse_client_std"], 3)],
            ["regret per client, mean", figure(metrics["regret_mean"], 3)],
            ["regret per client, std", figure(metrics["regret_std"], 3)],
        ]
        if config["runs"] > 1:
            rows.insert(1, ["  std over runs (10⁻³)", milli(metrics["mse_std"], 3)])
        if recent := recent_errors(result["history"]):
            rows.insert(1, ["  of the last tenth (10⁻³)", milli(recent[-1][1], 3)])
        if drift := rises(result["history"]):
            rows.append(["the data drifts: error rises after", listing(map(str, drift))])
        if "test_mse" in metrics:
            rows.insert(2, ["MSE on held-out rows (10⁻³)", milli(metrics["test_mse"], 3)])
        if "regret_to_bound" in metrics:
            share = f"{100 * metrics['regret_to_bound']:.1f} %"
            rows.append(["  largest share of Theorem 1's bound", share])
        if metrics.get("server_regret") is not None:
            rows.append(["server's regret", figure(metrics["server_regret"], 1)])
        return rows

    def seen(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return active clients, what the server saw, and lost rounds."""
        present = f"{result['survivors']} of {result['config']['clients']}"
        rows = [["clients in the last round", present], *super().seen(result)]
        if rounds_lost := sum(row["survivors"] == 0 for row in result["history"]):
            rows.append(["rounds lost: too few for a sum", str(rounds_lost)])
        return rows

    def plots(self, folder: Path, label: str, summary: Mapping[str, Any]) -> dict[str, Path]:
        """Draw error and average regret over time."""
        history = [row for row in summary["history"] if row["mse"] is not None]
        if not history:
            return {}
        recent = [(t, mse, 0.0) for t, mse in recent_errors(history)]
        made = {
            "mse_plot": plots.plot_sweep(
                {
                    f"{label}, of the first t": [(r["round"], r["mse"], 0.0) for r in history],
                    "of the last tenth up to t": recent,
                },
                folder / "mean_squared_error.png",
                title="Prediction error so far and of the last tenth",
                xlabel="samples per client t",
                ylabel="error (MSE) of predictions",
                marks={"error rises": rises(history)},
                svg=False,
            )
        }
        if history[0]["regret"] is not None:
            made["regret_plot"] = plots.plot_sweep(
                {label: [(r["round"], r["regret"] / r["round"], 0.0) for r in history]},
                folder / "average_regret.png",
                title="Average regret of the clients",
                xlabel="samples per client t",
                ylabel="regret per sample (squared error)",
                svg=False,
            )
        return made


# -- the model that predicts new rows

_CHUNK = 512  # rows at a time: memory 512 * N * 2D numbers


def whole_model(strategy: OnlineStrategy, prepared: Streams, state_dir: Path) -> Parts:
    """Return a model that predicts rows in one place."""
    if isinstance(strategy, PerFedAvg):
        return _networks(strategy, prepared)
    if isinstance(strategy, LocalOnly):
        return _lone(strategy, prepared, state_dir)
    if isinstance(strategy, POFRLS):
        return _mixtures(strategy, prepared, state_dir)
    assert isinstance(strategy, KernelLearning)
    return _dictionary(strategy, _accounts(strategy, prepared, state_dir))


def _dictionary(strategy: KernelLearning, accounts: Iterable[StreamAccount]) -> Parts:
    """Return parameters, with weights of the server or of each client."""
    weights = strategy.evaluation_weights()[None]
    personal = not weights.size
    if personal:
        rule, rate = strategy.weight_fields().values()
        found = []
        for account in accounts:
            account = account.of(strategy.kernels)
            found.append(current_weights(rule, account.losses, account.gap, rate))
        weights = np.array(found)
    arrays, own = strategy.whole(weights)
    return Parts("dictionary", arrays, {**own, "personal": personal})


def _mixtures(strategy: POFRLS, prepared: Streams, state_dir: Path) -> Parts:
    """Return the mixture coefficients of each client."""
    request, dimension = strategy.evaluation(), prepared.shards[0].x.shape[1]
    accounts = _accounts(strategy, prepared, state_dir)
    weights = np.array([mixture(request, account, dimension) for account in accounts])
    arrays = {"weights": weights, "bandwidths": np.frombuffer(request.bandwidths, "<f8")}
    names = ("features", "seed", "centre")
    own = {name: getattr(request, name) for name in names}
    return Parts("ridges", arrays, {**own, "columns": dimension, "personal": True})


def _lone(strategy: LocalOnly, prepared: Streams, state_dir: Path) -> Parts:
    """Return the weighted parameters of each client."""
    fields, dimension = strategy.dictionary_fields(), prepared.shards[0].x.shape[1]
    rule, rate = strategy.weight_fields().values()
    found = []
    for account in _accounts(strategy, prepared, state_dir):
        account = account.of(strategy.kernels)
        weights = current_weights(rule, account.losses, account.gap, rate)
        theta = account.own[0] if account.own else np.zeros(weights.size * 2 * strategy.features)
        theta = theta.reshape(len(weights), -1).astype(strategy.precision)
        found.append((theta * weights[:, None]).ravel())
    names = ("features", "seed", "precision", "frequency_draw", "centre")
    arrays = {"weights": np.array(found), "bandwidths": strategy.bandwidths}
    own = {name: fields[name] for name in names}
    return Parts("lone-dictionaries", arrays, {**own, "columns": dimension, "personal": True})


def _networks(strategy: PerFedAvg, prepared: Streams) -> Parts:
    """Return the adapted network of each client."""
    request = strategy.evaluation()
    shards, seed = prepared.shards, request.seed
    widths = tuple(int(width) for width in np.frombuffer(request.layers, "<i4"))
    last, found = slice(max(0, request.step - request.samples), request.step), []
    for shard in shards:
        inputs = network.project(shard.x[last], widths[0], seed)
        step = request.inner_step
        found.append(network.adapt(request.parameters, widths, inputs, shard.y[last], step))
    meta = {"layers": list(widths), "seed": seed, "columns": shards[0].x.shape[1]}
    return Parts("networks", {"weights": np.array(found)}, {**meta, "personal": True})


def _accounts(
    strategy: OnlineStrategy, prepared: Streams, state_dir: Path
) -> Iterator[StreamAccount]:
    """Yield the state of each simulated client."""
    state: type[StreamAccount] = prepared.clients.kind.state_class
    for partition in range(prepared.num_clients):
        folder = run_folder(state_dir, strategy.session, partition)
        files = folder.glob(f"partition-{partition}-round-*.state")
        last = max(files, key=lambda file: int(file.stem.rsplit("-", 1)[1]), default=None)
        yield state() if last is None else state.unpack(last.read_bytes())


def server_regret(strategy: OnlineStrategy, prepared: Streams) -> float | None:
    """Return the squared error of all predictions minus that of the best kernel (eq. 12).

    The best kernel is the one with the best ridge fit on the rows of all clients.

    Parameters
    ----------
    strategy : OnlineStrategy
        After its run.
    prepared : Streams
        Data of the run.

    Returns
    -------
    float or None
        None for methods without kernels.

    References
    ----------
    Ghari and Shen, NeurIPS 2022, eq. 12.
    """
    if not isinstance(strategy, KernelLearning):
        return None
    shards = prepared.shards
    x = np.concatenate([shard.x[: prepared.rounds] for shard in shards])
    y = np.concatenate([shard.y[: prepared.rounds] for shard in shards]) - strategy.centre
    options = strategy.options()
    features = FeatureMap(
        strategy.bandwidths.astype("<f8").tobytes(),
        x.shape[1],
        strategy.features,
        options["seed"],
        strategy.precision,
        options["frequency_draw"],
    )
    width = 2 * strategy.features
    gram = np.zeros((strategy.kernels, width, width))
    moment = np.zeros((strategy.kernels, width))
    for start in range(0, len(x), _CHUNK):
        z = features(x[start : start + _CHUNK]).astype(np.float64).transpose(1, 0, 2)
        gram += z.transpose(0, 2, 1) @ z
        moment += np.einsum("nbw,b->nw", z, y[start : start + _CHUNK])
    ridge = max(strategy.regularization, 1e-9) * len(x) * np.eye(width)
    theta = np.linalg.solve(gram + ridge, moment[..., None])[..., 0]
    fitted = np.einsum("nw,nwv,nv->n", theta, gram, theta) - 2.0 * np.vecdot(theta, moment)
    best = float((y @ y + fitted).min())
    return float(strategy.metrics_["mse"] * len(x)) - best

"""Families of methods: what the command line and comparisons need of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from rich.markup import escape

from fedkern_flwr.checkpoint import run_folder
from fedkern_flwr.encoding.encoder import KeptEncoder
from fedkern_flwr.errors import CheckpointError, OptionError
from fedkern_flwr.fitted import FittedModel, load_model
from fedkern_flwr.judging.figures import OUTCOMES
from fedkern_flwr.method import Method
from fedkern_flwr.options import at_least, within
from fedkern_flwr.plain_text import plain_line
from fedkern_flwr.secure_sum import check_cohort

from ..engines import DropOut, Engine
from ..run import plots
from ..run.data import Prepared, Settings, TableSettings, check_public, deal_files
from ..run.entries import Entry, average, check_seed
from ..run.format import figure, megabytes
from ..run.options import Option, of_fields, of_settings, options, switch
from .new_rows import NewRows, Parts

Config = Mapping[str, Any]

# -- options and tables of all families

Summary = Mapping[str, Any]
_LONGEST_NAME, _MOST_CLASSES = 24, 12  # of the confusion matrix
CONFUSION = "confusion matrix of the held-out rows (true class by predicted class)"
_NOISY = "~"  # before figures that are made of counts with noise
_MOST_OFF = 0.1  # an area under the curve that may be farther off says nothing


@dataclass(frozen=True)
class RunOptions:
    """Options of every run.

    Attributes
    ----------
    runs : int
        Runs that are averaged, each with its own seed.
    check_pooled : bool or None
        Also train on pooled rows (default: up to 2,000 training rows).
    engine : {"in-process", "ray"}
        Engine.
    ray_address : str or None
        Ray cluster: host:port, or auto (default: RAY_ADDRESS, else local).
    secure : bool or None
        Secure sums: always; --no-secure is refused.
    seed : int
        Seed of the split and of the method.
    drop : float
        Probability that a client drops out in a round.
    timeout : float
        Seconds to wait for the replies of a round.
    explain_columns : bool
        Show how each column was encoded.
    out : str or None
        Folder of the run.
    force : bool
        Replace what an earlier command left in --out.
    json_target : str or None
        Write the result here; - for stdout.
    resume : str or None
        Continue the run in this folder, with its options.
    quiet : bool
        Show nothing but errors.
    """

    runs: int = 1
    check_pooled: bool | None = None
    engine: Engine = "in-process"
    ray_address: str | None = None
    secure: bool | None = None
    seed: int = 0
    drop: float = 0.0
    timeout: float = 600.0
    explain_columns: bool = switch()
    out: str | None = None
    force: bool = switch()
    json_target: str | None = None
    resume: str | None = None
    quiet: bool = switch()


def per_draw(entry: Entry) -> dict[str, list[Any]]:
    """Return each metric and ``seconds`` of the single runs."""
    names = {name for result in entry.results for name in result["metrics"]}
    found = {n: [r["metrics"].get(n) for r in entry.results] for n in sorted(names)}
    return found | {"seconds": [result["seconds"] for result in entry.results]}


@dataclass(frozen=True)
class Shown:
    """A metric in the table of a run.

    Attributes
    ----------
    metric, text : str
    form : int or str
        Decimals, or a format.
    zero : bool
        Whether zero is shown.
    target : bool
        Whether the name shows the nominal level.
    only : str
        Another metric, without which it is not shown.
    """

    metric: str
    text: str
    form: int | str = 4
    zero: bool = True
    target: bool = False
    only: str = ""

    def rows(self, metrics: Mapping[str, Any], level: float = 0.9) -> list[list[str]]:
        """Return the row, if there is one."""
        value, text = metrics.get(self.metric), self.text
        here = value is not None if self.zero else bool(value)
        text += f" (target {level:.2f})" * self.target
        written = figure(value, self.form)
        if self.metric == "iterations":
            note = ", not converged" if metrics.get("converged") is False else ""
            written = written.removesuffix(".0") + note
        if self.metric.startswith("test_auc") and (metrics.get("test_auc_bin") or 0.0) > _MOST_OFF:
            return []  # bins give no useful AUC
        return [[text, written]] if here and (not self.only or metrics.get(self.only)) else []


_OPTIMUM = "  of the pooled optimum"
#: Metrics in the table of a run, of all methods; each has some of them.
SHOWN = (
    Shown("test_accuracy", "accuracy on held-out rows"),
    Shown("test_most_frequent", "  majority-class baseline"),
    Shown("centralised_test_accuracy", _OPTIMUM),
    Shown("test_recall", "  recall"),
    Shown("test_precision", "  precision"),
    Shown("test_balanced_accuracy", "  balanced accuracy"),
    Shown("test_auc", "  AUC"),
    Shown("test_auc_bin", "    binning error (at most)", zero=False),
    Shown("test_log_loss", "  log loss of probabilities"),
    Shown("test_log_loss_ovr", "  log loss, one class against the rest"),
    Shown("test_brier", "  Brier score"),
    Shown("test_brier_ovr", "  Brier score, one class against the rest"),
    Shown("test_calibration_error_before", "  calibration error before"),
    Shown("test_calibration_error", "  calibration error after"),
    Shown("test_set_coverage", "  conformal coverage", target=True),
    Shown("test_set_size", "    mean set size", 2),
    Shown("test_rmse", "RMSE on held-out rows (unit of the label)"),
    Shown("centralised_test_rmse", _OPTIMUM),
    Shown("test_mae", "  MAE (unit of the label)"),
    Shown("test_r2", "  R2"),
    Shown("test_interval_coverage", "  interval coverage", target=True),
    Shown("test_interval_width", "    mean interval width (unit of the label)"),
    Shown("auc", "AUC"),
    Shown("ndcg@100", "nDCG@100"),
    Shown("recall@100", "recall@100"),
    Shown("ndcg@10", "nDCG@10"),
    Shown("popularity ndcg@10", "  of the most popular items"),
    Shown("item-knn ndcg@10", "  of item-kNN, pooled"),
    Shown("recall@20", "recall@20"),
    Shown("coverage@10", "coverage@10"),
    Shown("evaluated_users", "evaluated users", 0),
    Shown("validation_score", "score in cross-validation"),
    Shown("gamma", "gamma", ".3g"),
    Shown("cost", "C, or lambda", ".3g"),
    Shown("regularization", "lambda", ".3g"),
    Shown("objective", "objective"),
    Shown("centralised_objective", _OPTIMUM),
    Shown("objective_gap", "  relative difference", ".1e"),
    Shown("centralised_difference", "max. difference to pooled model", ".1e"),
    Shown("max_abs_error", "max. error of K", ".1e"),
    Shown("error_bound", "  bound of rounding errors", ".1e", zero=False),
    Shown("iterations", "iterations", 1, zero=False),
    Shown("residual", "relative residual", ".1e", only="iterations"),
    Shown("groups_left_out", "groups left out", 0, zero=False),
)


def tables_of(result: Summary) -> dict[str, list[list[str]]]:
    """Return the tables of a run, with the confusion matrix of few classes."""
    tables, found = dict(result.get("tables", {})), result.get("held_out", {})
    names = [plain_line(name, _LONGEST_NAME) for name in found.get("class_names", ())]
    if "confusion" in found and 0 < len(names) <= _MOST_CLASSES:
        mark = noise_mark(result["privacy"])
        counts = [[f"{mark}{n}" for n in row] for row in found["confusion"]]
        rows = [[name, *row] for name, row in zip(names, counts, strict=True)]
        tables[CONFUSION] = [["true", *names], *rows]
    return tables


def plain_rows(result: Summary) -> list[list[str]]:
    """Return rows about a model that finds too little, and with exchanges, MB and seconds."""
    metrics, held_out = result["metrics"], result.get("held_out", {})
    missed, positive = result.get("never_found"), held_out.get("positive")
    said = metrics.get("converged", True) or metrics.get("iterations")
    facts = {
        "positive class": positive and escape(plain_line(positive, _LONGEST_NAME)),
        "predicts no better than": result.get("no_better_than"),
        "classes never found": missed and f"{missed} of {len(held_out['confusion'])}",
        "converged": "" if said else "no",
        "exchanges": f"{result['exchanges']:g}",
        "MB from clients": megabytes(result["bytes_up"]),
        "MB to clients": megabytes(result["bytes_down"]),
        "seconds": f"{result['seconds']:.1f}",
    }
    return [[name, str(value)] for name, value in facts.items() if value]


def exposed_rows(result: Summary) -> list[list[str]]:
    """Return red rows for sums that reveal rows."""
    privacy = result["privacy"]
    few = [one for one in privacy.get("sums", ()) if one["numbers"] > one["unknowns"]]
    if privacy.get("budget"):  # noise hides them
        few = []
    return [
        [
            "[red]rows can be computed[/]",
            f"[red]from {escape(one['name'])}: {one['numbers']:,} numbers of "
            f"{one['unknowns']:,} unknowns[/]",
        ]
        for one in few
    ]


def noise_mark(privacy: Mapping[str, Any]) -> str:
    """Return the mark of figures from counts with noise."""
    releases = (privacy.get("budget") or {}).get("releases", ())
    return _NOISY if any(one["release"] == OUTCOMES for one in releases) else ""


def budget_rows(privacy: Mapping[str, Any]) -> list[list[str]]:
    """Return rows with the privacy budget and its noise."""
    budget = privacy.get("budget")
    if budget is None:
        return []
    about = f"epsilon {budget['epsilon']:g} at delta {budget['delta']:g} of each {budget['unit']}"
    noise = [
        [
            f"noise of {one['release']}",
            f"{one['deviation']:.3g} on each number"
            + f" (figures with {_NOISY})" * (one["release"] == OUTCOMES),
        ]
        for one in budget["releases"]
    ]
    return [["privacy", about], *noise]


M = TypeVar("M", bound=Method)
S = TypeVar("S", bound=Settings)
P = TypeVar("P", bound=Prepared)

_COMMON = ("engine", "seed", "drop", "timeout")
#: Training rows up to which a run is checked by itself: training on them takes about two seconds.
MOST_CHECKED = 2000
#: Option -> default of a run, and of one with a privacy budget: it may count nothing in all rows.
_PUBLIC = {
    "scaling": ("auto", "range"),
    "missing": ("encode", "drop-row"),
    "categories": ("auto", "hashing"),
}


class Curves(NamedTuple):
    """Plot of a history: its file, its texts, and the name of each line by its metric."""

    file: str
    title: str
    ylabel: str
    lines: Mapping[str, str]


class Kept(NamedTuple):
    """Files of a finished run.

    Attributes
    ----------
    config : dict
        Configuration of the run.
    metrics : dict
        Metrics of the run.
    state_dir : Path
        Private state of the simulated nodes.
    """

    config: Config
    metrics: Mapping[str, Any]
    state_dir: Path

    def of_node(self, meta: Mapping[str, Any], partition: int) -> bytes:
        """Return the last state of a simulated node."""
        folder = run_folder(self.state_dir, meta["session"], partition)
        return (folder / f"partition-{partition}-round-{meta['step']}.state").read_bytes()


class Family(ABC, Generic[M, S, P]):
    """Methods with the same data and metrics, see :mod:`.registry`.

    Attributes
    ----------
    strategies : tuple of type
        Strategies of the family.
    settings : type of Settings
        Settings of the data, which are options of a run.
    makes : callable
        Loads, scales and deals the data.
    data : str
        Default data set.
    own_options : tuple of Option
        Further options of a run.
    always_secure : str
        Reason why there are only secure sums.
    run_options : tuple of str
        Further parameters that the configuration keeps.
    checked : tuple of str
        Metrics of the comparison with a pooled model (``--check-pooled``).
    reading : tuple of str
        Notes on how to read a comparison.
    app : str
        Folder of the Flower app.
    deployable : tuple of str
        Methods that the app deploys.
    nodes : int
        Nodes in a simulation of the app.
    dealt_by_nodes : tuple of str
        Parameters that follow from the number of nodes.
    usual : str
        Options in the short help.
    curves : tuple of Curves
        Plots of the history of a run.
    deployed_defaults : dict
        Other defaults in a deployment, where an exchange takes seconds.
    unpredictable : (str, str)
        Why models do not predict the rows of a file, and what to do.
    left_out : str
        Why rows are not predicted.
    """

    strategies: ClassVar[tuple[type[Method], ...]]
    settings: type[S]
    makes: ClassVar[Any]
    data: ClassVar[str]
    own_options: ClassVar[Sequence[Option]] = ()
    always_secure: ClassVar[str] = ""
    run_options: ClassVar[tuple[str, ...]] = ()
    checked: ClassVar[tuple[str, ...]] = ()
    reading: ClassVar[tuple[str, ...]] = ()
    app: ClassVar[str] = ""
    deployable: ClassVar[tuple[str, ...]] = ()
    nodes: ClassVar[int] = 4
    dealt_by_nodes: ClassVar[tuple[str, ...]] = ("clients",)
    deployed_defaults: ClassVar[Mapping[str, Any]] = {}
    usual: ClassVar[str] = ""
    curves: ClassVar[Sequence[Curves]] = ()
    unpredictable: ClassVar[tuple[str, str]] = (
        "models of {} do not predict the rows of a file",
        "load its model in Python with fedkern_flwr.model_file.load_model",
    )
    left_out: ClassVar[str] = "they lack a value"

    # -- a run's configuration

    def parameters(self) -> list[Option]:
        """Return the options of a run except those of the strategy."""
        own = {o.name: o for o in self.own_options}
        there = {
            "check_pooled": self.checked,
            "secure": self.always_secure or "secure" in own,
            "explain_columns": issubclass(self.settings, TableSettings),
        }
        every = [own.pop(o.name, o) for o in of_fields(RunOptions) if there.get(o.name, True)]
        return [
            *of_settings(self.settings, self.data),
            *own.values(),
            *every,
        ]

    def usual_options(self, name: str) -> frozenset[str]:
        """Return the options in the short help."""
        return frozenset(self.usual.split())

    def deal_files(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Add the values that follow from files of parties."""
        return deal_files(self.settings, values, {o.name: o.default for o in self.parameters()})

    def config(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Make the configuration of a run from command line values.

        Returns
        -------
        dict
            ``method``, ``data`` (settings), ``options`` (of the strategy) and options of the run,
            as JSON.
        """
        self._check_secure(values)
        strategy, notes, fields_of = self._strategy(name), [], self.settings.__dataclass_fields__
        unsaid = [n for n in self.settings.worked_out if values[n] is None]
        values = {**values, **{n: fields_of[n].default for n in unsaid}}
        ranks, private = values.get("ranks"), values.get("privacy_epsilon") is not None
        if private and ranks is not None:
            paid = KeptEncoder.read(Path(ranks)).epsilon
            notes = [f"the ranks cost epsilon {paid:g} in a run before, which adds up with this"]
        elif private and self.encodes(name):
            public = {name: new for name, (old, new) in _PUBLIC.items() if values.get(name) == old}
            values = {**values, **public}
            flags = " ".join(f"--{name} {value}" for name, value in public.items())
            notes = [f"with a privacy budget {flags} is the default"] if flags else []
        data = asdict(self.settings.from_values(values))
        for key in ("data", "ranks"):
            if Path(data.get(key) or "").is_file():
                data[key] = str(Path(data[key]).resolve())
        own = {o.name for o in options(strategy)}
        chosen = {k: v for k, v in values.items() if k in own and v is not None}
        if chosen.get("missing") == "encode":  # nothing is missing any more
            del chosen["missing"]
        if "secure" in self.run_options and "secure" not in strategy.fixed:
            chosen["secure"] = values["secure"]
        return {
            "method": name,
            "data": data,
            "options": chosen,
            "notes": notes,
            "runs": values.get("runs", 1),
            **{key: values[key] for key in (*_COMMON, *self.run_options)},
            **({"check_pooled": values.get("check_pooled")} if self.checked else {}),
        }

    def deal_nodes(self, values: Mapping[str, Any], nodes: int) -> dict[str, Any]:
        """Return the parameters :attr:`dealt_by_nodes`."""
        return dict.fromkeys(self.dealt_by_nodes, nodes)

    def check(self, config: Config) -> None:
        """Refuse options that cannot work."""
        strategy = self._strategy(config["method"])
        if config.get("secure") and "secure" in strategy.fixed:
            raise OptionError(
                f"{config['method']} sends nothing that could be summed", code="FK-SECURE-FIXED"
            )
        if not config.get("secure", True):
            _refuse_options_of_sums(strategy, config["options"])
        check_seed(config["seed"], config["runs"])
        within("timeout", config["timeout"], "(0, inf)")
        DropOut(config["drop"])
        at_least("runs", config["runs"], 1)
        self.strategy(config)

    def check_data(self, config: Config, prepared: P) -> None:
        """Refuse options that contradict the data."""
        strategy = self.strategy(config)
        if strategy.budget is not None:
            if self.encodes(config["method"]):
                check_public(prepared.settings)
            strategy.budget.check_rows(
                [_training_rows(prepared)] + [0] * (prepared.num_clients - 1)
            )
        if config.get("secure"):
            check_cohort(prepared.num_clients, strategy.threshold, strategy.min_cohort)

    # -- data and runs

    def encodes(self, name: str) -> bool:
        """Return whether a method is given what columns become; else they are as they are."""
        return True

    def prepare(self, settings: S) -> P:
        """Load, scale and deal the data."""
        made: P = self.makes(settings)
        return made

    def checks_pooled(self, prepared: P, config: Config) -> bool:
        """Return whether a run also trains on pooled rows, for comparison.

        The default is yes for up to 2,000 training rows.
        """
        asked: bool | None = config.get("check_pooled")
        return _training_rows(prepared) <= MOST_CHECKED if asked is None else asked

    def unchecked(self, prepared: P, config: Config) -> list[str]:
        """Return a note if there is no comparison."""
        if not self.checked or self.checks_pooled(prepared, config):
            return []
        return ["there is no comparison with a model of the pooled rows; --check-pooled makes it"]

    def measure(self, strategy: M, prepared: P, config: Config) -> dict[str, Any]:
        """Return metrics that need the pooled data of a simulation.

        ``seconds`` of a last step are added to the run time. ``judged`` has counts on held-out rows
        that the strategy does not know. ``no_better_than`` names a trivial model that is as good.
        """
        return {}

    def outcome(self, strategy: M) -> dict[str, Any]:
        """Return further parts of a result, such as survivors."""
        return {}

    def summarise(self, entry: Entry) -> dict[str, Any]:
        """Average the runs of an entry; history and held-out counts are those of the first."""
        first = entry.results[0]
        history = first["history"]
        last = history[-1]["survivors"] if history and "survivors" in history[-1] else 0
        found = average(
            entry.results, metrics={}, history=history, survivors=first.get("survivors", last)
        )
        kept = ("matched", "tuned", "held_out")
        return {**{name: first[name] for name in kept if name in first}, **found}

    def per_draw(self, entry: Entry) -> dict[str, Any]:
        """Return metrics and seconds of each run."""
        return {"draws": per_draw(entry)}

    # -- whole models, and the rows of files that they predict

    def whole_model(self, strategy: M, prepared: P, kept: Kept) -> Parts | None:
        """Return the model that predicts rows in one place."""
        return None

    def why_unpredictable(self, config: Config) -> tuple[str, str] | None:
        """Return why a model does not predict the rows of a file, and what to do."""
        return self.unpredictable if type(self).whole_model is Family.whole_model else None

    def fitted(
        self,
        strategy: M,
        prepared: P,
        config: Config,
        state_dir: Path,
        result: Mapping[str, Any],
    ) -> FittedModel | None:
        """Return the whole model of a run, if it has one."""
        if self.why_unpredictable(config):
            return None
        kept = Kept(config, result["metrics"], state_dir)
        found = self.whole_model(strategy, prepared, kept)
        if found is None:
            return None
        known = strategy.model()[1].get("calibration") or result.get("held_out", {}).get("fitted")
        return found.with_table(strategy.method, prepared.scaling_json(), config, known or ())

    def predict(self, folder: Path, config: Config, new: NewRows) -> tuple[int, int]:
        """Predict the rows of a file; return numbers of predicted and omitted rows.

        Parameters
        ----------
        folder : Path
            Folder of the run.
        config : mapping
            Configuration of the run.
        new : NewRows
            Rows and target file.
        """
        if why := self.why_unpredictable(config):
            problem, remedy = why
            raise OptionError(
                problem.format(config["method"]), remedy=remedy, code="FK-PREDICT-METHOD"
            )
        model = load_model(folder)
        if model.method != config["method"]:
            raise CheckpointError(
                f"{folder} is a run of {config['method']} with a model of {model.method}",
                code="FK-MODEL-OTHER",
            )
        return new.predict(model)

    # -- what the user sees of a run

    @abstractmethod
    def size(self, facts: Mapping[str, Any]) -> str:
        """Return the size of a run from :meth:`Prepared.facts`."""

    def rows(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return names and values for the table of a run."""
        lost = sum(sum(reasons.values()) for reasons in result["failures"].values())
        return [
            *self.figures(result),
            *plain_rows(result),
            *self.seen(result),
            *exposed_rows(result),
            *budget_rows(result["privacy"]),
            *([["unanswered requests", str(lost)]] if lost else []),
        ]

    def figures(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return rows with figures of the model."""
        mark, config = noise_mark(result["privacy"]), result["config"]
        level = config.get("level", config.get("options", {}).get("level", 0.9))
        return [
            [name, mark * shown.metric.startswith("test_") + value]
            for shown in SHOWN
            for name, value in shown.rows(result["metrics"], level)
        ]

    def seen(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return rows with what the server saw."""
        seen, privacy = "every client's reply", result["privacy"]
        if privacy.get("protocol") == "secure sums":
            sizes = (f"{one['threshold']} of {one['parties']}" for one in privacy["cohorts"])
            seen = f"sums of at least {' or '.join(dict.fromkeys(sizes))} clients"
        return [["the server saw", seen]]

    def plots(self, folder: Path, label: str, summary: Mapping[str, Any]) -> dict[str, Path]:
        """Draw the plots of a run; return artifact -> file."""
        made = {}
        for curve in self.curves:
            drawn: dict[str, list[tuple[float, float, float]]] = {}
            for row in summary["history"]:
                for name in curve.lines if row["round"] else ():
                    if row.get(name) is not None and np.isfinite(row[name]):
                        point = float(row["round"]), float(row[name]), 0.0
                        drawn.setdefault(curve.lines[name], []).append(point)
            drawn = {text: points for text, points in drawn.items() if len(points) > 1}
            if drawn:
                made[f"{curve.file}_plot"] = plots.plot_sweep(
                    drawn,
                    folder / f"{curve.file}.png",
                    title=curve.title,
                    xlabel="iteration",
                    ylabel=curve.ylabel,
                    svg=False,
                )
        return made

    def _check_secure(self, values: Mapping[str, Any]) -> None:
        """Refuse ``--no-secure`` if there are only secure sums."""
        if self.always_secure and values.get("secure") is False:
            raise OptionError(
                f"this method has secure sums only: {self.always_secure}", code="FK-SECURE-FIXED"
            )

    def _strategy(self, name: str) -> type[Method]:
        return next(cls for cls in self.strategies if cls.method == name)

    def strategy(self, config: Config) -> M:
        """Make a strategy with the options of a run."""
        made: Any = self._strategy(config["method"])(**config["options"])
        return made  # type: ignore[no-any-return]


def chosen(strategy: Any) -> dict[str, Any]:
    """Return what a strategy has chosen."""
    return {"tuned": strategy.tuned_} if strategy.tuned_ else {}


def rows_of(facts: Mapping[str, Any]) -> str:
    """Return the numbers of training and held-out rows."""
    return f"{np.sum(facts['rows'])} training and {np.sum(facts['held_out_rows'])} held-out rows"


def _training_rows(prepared: Prepared) -> int:
    """Return the number of training rows, or of users of ratings."""
    facts = prepared.facts()
    if "rounds" in facts:
        return int(facts["rounds"] * prepared.num_clients)
    return int(np.sum(facts["rows" if "rows" in facts else "users"]))


def _refuse_options_of_sums(strategy: type[Method], chosen: Mapping[str, Any]) -> None:
    defaults = {o.name: o.default for o in options(strategy)}
    for name in ("threshold", "min_cohort"):
        if name in chosen and chosen[name] != defaults.get(name):
            flag = name.replace("_", "-")
            raise OptionError(f"--{flag} is for secure sums", code="FK-SECURE-NEEDED")


def check_rounds(config: Config) -> None:
    """Refuse fewer rounds than one."""
    if (rounds := config["data"]["rounds"]) is not None:
        at_least("rounds", rounds, 1)


def check_numbers(prepared: Prepared, option: str, chosen: str | None, of_numbers: str) -> None:
    """Refuse options for classes if labels are numbers."""
    if chosen not in (None, of_numbers) and not prepared.facts()["classes"]:
        raise OptionError(
            f"{option} {chosen} is for classes, the labels are numbers", code="FK-TASK-OPTION"
        )

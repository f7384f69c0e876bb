"""What a family of methods is: all that the command line and comparisons need to know of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from fedkern_flwr.checkpoint import run_folder
from fedkern_flwr.encoding.encoder import KeptEncoder
from fedkern_flwr.errors import CheckpointError, OptionError
from fedkern_flwr.fitted import FittedModel, load_model
from fedkern_flwr.method import Method
from fedkern_flwr.options import at_least
from fedkern_flwr.secure_sum import check_cohort

from ..engines import DropOut
from ..run import plots
from ..run.data import Prepared, Settings, TableSettings, check_public, deal_files
from ..run.entries import Entry, average, check_seed
from ..run.options import PARTIES, Option, of_fields, of_settings, options
from .common import (
    Column,
    RunOptions,
    Shown,
    budget_rows,
    class_rows,
    cost_rows,
    exposed_rows,
    failure_rows,
    noise_mark,
    per_draw,
    server_row,
    unconverged_rows,
    useless_rows,
)
from .new_rows import NewRows, Parts

Config = Mapping[str, Any]

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


class Kept(NamedTuple):
    """What is there of a draw that is finished, beside its strategy.

    Attributes
    ----------
    config : dict
        The configuration of the run.
    metrics : dict
        Of the draw.
    state_dir : Path
        What the simulated nodes kept.
    """

    config: Config
    metrics: Mapping[str, Any]
    state_dir: Path

    def of_node(self, meta: Mapping[str, Any], partition: int) -> bytes:
        """Return the state of a simulated node at the end of the run."""
        folder = run_folder(self.state_dir, meta["session"], partition)
        return (folder / f"partition-{partition}-round-{meta['step']}.state").read_bytes()


class Family(ABC, Generic[M, S, P]):
    """Methods that take the same data and report the same metrics.

    A family is registered in :mod:`fedkern_flwr.simulations.methods.registry`.

    Attributes
    ----------
    strategies : tuple of type
        The strategies of the family.
    settings : type of Settings
        The settings of its data; each field is one of the :meth:`parameters`.
    makes : callable
        Loads, scales and deals the data of some settings.
    data : str
        The data set by default.
    own_options : tuple of Option
        Options of a run of these methods, beside those of the data and of all runs.
    repetitions, seeded : str
        What is averaged, and what the seed decides.
    always_secure : str
        Why there are no other sums, where there are none.
    run_options : tuple of str
        Parameters that the configuration of a run keeps beside the common ones.
    draws : str
        What the repetitions of a run are, in the plural.
    afterwards : str
        What a run is at once the exchanges are over.
    checked : tuple of str
        Metrics of the check against the pooled rows. A family with some has ``--check-pooled``.
    columns : dict
        Columns for the tables of comparisons, by name.
    shown : tuple of Shown
        Metrics that the table of a run shows.
    reading : tuple of str
        How to read the methods and figures; columns say it themselves.
    app : str
        Folder of the Flower app that deploys a method of this family.
    deployable : tuple of str
        The methods that it deploys.
    nodes : int
        How many nodes a copy of the app has in a simulation.
    dealt_by_nodes : tuple of str
        Parameters that follow from the number of nodes of a deployment.
    parties : str
        The setting that ``clients`` is another name of, if there is one.
    usual : str
        Options of the methods and of who holds what that the short help shows.
    deployed_defaults : dict
        Options whose default is another one in a deployment, where an exchange takes seconds.
    unpredictable : (str, str)
        Why models predict no rows of a file, and what to do instead.
    left_out : str
        Why rows are not predicted.
    """

    strategies: ClassVar[tuple[type[Method], ...]]
    settings: type[S]
    makes: ClassVar[Any]
    data: ClassVar[str]
    own_options: ClassVar[Sequence[Option]] = ()
    repetitions: ClassVar[str]
    always_secure: ClassVar[str] = ""
    seeded: ClassVar[str]
    run_options: ClassVar[tuple[str, ...]] = ()
    draws: ClassVar[str] = "draws"
    afterwards: ClassVar[str] = "judging beside pooled rows"
    checked: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[Mapping[str, Column]]
    shown: ClassVar[Sequence[Shown]] = ()
    reading: ClassVar[tuple[str, ...]] = ()
    app: ClassVar[str] = ""
    deployable: ClassVar[tuple[str, ...]] = ()
    nodes: ClassVar[int] = 4
    dealt_by_nodes: ClassVar[tuple[str, ...]] = ("clients",)
    parties: ClassVar[str] = ""
    deployed_defaults: ClassVar[Mapping[str, Any]] = {}
    usual: ClassVar[str] = ""
    unpredictable: ClassVar[tuple[str, str]] = (
        "models of {} do not predict the rows of a file",
        "load its model in Python with fedkern_flwr.model_file.load_model",
    )
    left_out: ClassVar[str] = "they lack a value"

    # -- a run's configuration

    def parameters(self) -> list[Option]:
        """Return the options of a run that are not the strategy's, as the help shows them."""
        same, own = f"The same as --{self.parties}.", {o.name: o for o in self.own_options}
        texts = {"runs": self.repetitions, "seed": f"Seed of {self.seeded}."}
        there = {
            "check_pooled": self.checked,
            "secure": self.always_secure or "secure" in own,
            "explain_columns": issubclass(self.settings, TableSettings),
        }
        every = [own.pop(o.name, o) for o in of_fields(RunOptions) if there.get(o.name, True)]
        return [
            *of_settings(self.settings, self.data),
            *([Option("clients", int | None, None, same, PARTIES)] if self.parties else []),
            *own.values(),
            *(replace(o, help=texts.get(o.name, o.help)) for o in every),
        ]

    def number_of_parties(self, values: Mapping[str, Any], usual: int) -> int:
        """Return the number that may be named ``clients`` as well, the usual one without either.

        Raises
        ------
        OptionError
            Both are given, and differ.
        """
        given = {value for name in (self.parties, "clients") if (value := values[name]) is not None}
        if len(given) > 1:
            raise OptionError(
                f"{values[self.parties]} {self.parties} are not {values['clients']} clients",
                remedy="leave out --clients",
                code="FK-CLIENTS-DIFFER",
            )
        return int(given.pop()) if given else usual

    def usual_options(self, name: str) -> frozenset[str]:
        """Return the options of a method and its parties that the short help shows."""
        return frozenset(self.usual.split())

    def deal_files(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the command line with those that follow from files of parties.

        Raises
        ------
        OptionError, TableError
            Something contradicts the files, or they cannot be read.
        """
        return deal_files(self.settings, values, {o.name: o.default for o in self.parameters()})

    def config(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Make the configuration of a run from the values of the command line.

        Returns
        -------
        dict
            ``method``, ``data`` (the settings), ``options`` (of the strategy), and the options of
            the run. JSON, and all that is needed to run again.

        Raises
        ------
        OptionError
            Options contradict each other.
        """
        self._check_secure(values)
        strategy = self._strategy(name)
        notes = []
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
        """Return the parameters :attr:`dealt_by_nodes` of a deployment on so many nodes.

        Raises
        ------
        OptionError
            There are too few nodes.
        """
        return dict.fromkeys(self.dealt_by_nodes, nodes)

    def check(self, config: Config) -> None:
        """Refuse options that cannot work before any data is read.

        Raises
        ------
        OptionError
        """
        strategy = self._strategy(config["method"])
        if config.get("secure") and "secure" in strategy.fixed:
            raise OptionError(
                f"{config['method']} sends nothing that could be summed",
                remedy="leave out --secure",
                code="FK-SECURE-FIXED",
            )
        if not config.get("secure", True):
            _refuse_options_of_sums(strategy, config["options"])
        check_seed(config["seed"], config["runs"])
        if config["timeout"] <= 0:
            raise OptionError(
                f"timeout is {config['timeout']}",
                remedy="use a positive number",
                code="FK-OPTION-RANGE",
            )
        DropOut(config["drop"])
        at_least("runs", config["runs"], 1)
        self.strategy(config)

    def check_data(self, config: Config, prepared: P) -> None:
        """Refuse options that cannot work with the data.

        Raises
        ------
        OptionError, SmallCohortError
        """
        strategy = self.strategy(config)
        if strategy.budget is not None:
            if self.encodes(config["method"]):
                settings = getattr(prepared, "settings", None)
                check_public(settings or self.settings.from_values(config["data"]))
            strategy.budget.check_rows(
                [_training_rows(prepared)] + [0] * (prepared.num_clients - 1)
            )
        if config.get("secure"):
            check_cohort(prepared.num_clients, strategy.threshold, strategy.min_cohort)

    # -- data and draws

    def encodes(self, name: str) -> bool:
        """Return whether a method is given what columns become; else they are as they are."""
        return True

    def prepare(self, settings: S) -> P:
        """Load, scale and deal the data.

        Raises
        ------
        TableError, OptionError
        """
        made: P = self.makes(settings)
        return made

    def checks_pooled(self, prepared: P, config: Config) -> bool:
        """Tell whether a run also trains on the pooled rows, only to compare.

        It does where it was asked for with ``--check-pooled``. Where nothing was said, it does if
        there are at most 2,000 training rows.
        """
        asked: bool | None = config.get("check_pooled")
        return _training_rows(prepared) <= MOST_CHECKED if asked is None else asked

    def unchecked(self, prepared: P, config: Config) -> list[str]:
        """Return the note on a check that is not made: how to ask for it."""
        if not self.checked or self.checks_pooled(prepared, config):
            return []
        return ["there is no comparison with a model of the pooled rows; --check-pooled makes it"]

    def measure(self, strategy: M, prepared: P, config: Config) -> dict[str, Any]:
        """Return metrics of a finished draw that only a simulation knows, for it pools the data.

        ``config`` is that of the run. A comparison says there only whether to check. The metric
        ``seconds``, if there is one, is what the method's last step took after the strategy had
        ended, and is added to the seconds of the draw. ``judged``, if it is there, is what was
        counted on held-out rows where the strategy does not know it; ``no_better_than`` what
        predicts them as well, if that is so simple, where nothing is counted.
        """
        return {}

    def outcome(self, strategy: M) -> dict[str, Any]:
        """Return what a result tells of a finished draw beside its metrics, such as survivors."""
        return {}

    def summarise(self, entry: Entry) -> dict[str, Any]:
        """Average the results of an entry's draws.

        History, matched rows and what was counted on held-out rows are the first one's.
        """
        first = entry.results[0]
        history = first["history"]
        last = history[-1]["survivors"] if history and "survivors" in history[-1] else 0
        found = average(
            entry.results, metrics={}, history=history, survivors=first.get("survivors", last)
        )
        kept = ("matched", "tuned", "held_out")
        return {**{name: first[name] for name in kept if name in first}, **found}

    def per_draw(self, entry: Entry) -> dict[str, Any]:
        """Return figures of the single draws that a comparison keeps: metrics and seconds."""
        return {"draws": per_draw(entry)}

    # -- whole models, and the rows of files that they predict

    def whole_model(self, strategy: M, prepared: P, kept: Kept) -> Parts | None:
        """Return what predicts rows in one place after a draw that is finished."""
        return None

    def why_unpredictable(self, config: Config) -> tuple[str, str] | None:
        """Return why a run's model predicts no rows of a file, and what to do; None if it does."""
        return self.unpredictable if type(self).whole_model is Family.whole_model else None

    def fitted(
        self,
        strategy: M,
        prepared: P,
        config: Config,
        state_dir: Path,
        result: Mapping[str, Any],
    ) -> FittedModel | None:
        """Return the whole model of a draw with this result, if it has one."""
        if self.why_unpredictable(config):
            return None
        kept = Kept(config, result["metrics"], state_dir)
        found = self.whole_model(strategy, prepared, kept)
        if found is None:
            return None
        known = strategy.model()[1].get("calibration") or result.get("held_out", {}).get("fitted")
        return found.with_table(strategy.method, prepared.scaling_json(), config, known or ())

    def predict(self, folder: Path, config: Config, new: NewRows) -> tuple[int, int]:
        """Predict the rows of a file with the model of a run; return (predicted, left out).

        Parameters
        ----------
        folder : Path
            Folder of the run.
        config : mapping
            The run's configuration.
        new : NewRows
            What is predicted, and where it goes.

        Raises
        ------
        OptionError
            The model does not predict new rows.
        TableError
            The file lacks a column of the model, or every row lacks a value.
        CheckpointError
            The folder has no model.
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
                remedy="bring back its files",
                code="FK-MODEL-OTHER",
            )
        return new.predict(model)

    # -- what the user sees of a run

    @abstractmethod
    def size(self, facts: Mapping[str, Any]) -> str:
        """Return the size of a run from what :meth:`Prepared.facts` returns."""

    def rows(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return (name, figure) of what is shown of a run's result."""
        return [
            *self.figures(result),
            *class_rows(result, noise_mark(result["privacy"])),
            *useless_rows(result),
            *unconverged_rows(result),
            *cost_rows(result),
            *self.seen(result),
            *exposed_rows(result),
            *budget_rows(result["privacy"]),
            *failure_rows(result),
        ]

    def figures(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return the rows that say how good a model is."""
        mark = noise_mark(result["privacy"])
        return [
            [name, mark * shown.metric.startswith("test_") + value]
            for shown in self.shown
            for name, value in shown.rows(result["metrics"])
        ]

    def seen(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return the rows that say what the server saw, and what else there is to say."""
        return [server_row(result)]

    def plots(self, folder: Path, label: str, summary: Mapping[str, Any]) -> dict[str, Path]:
        """Draw the plots of a run, by default none; return name of the artifact -> file."""
        return {}

    def _check_secure(self, values: Mapping[str, Any]) -> None:
        """Refuse ``--no-secure`` where there are no other sums."""
        if self.always_secure and values.get("secure") is False:
            raise OptionError(
                f"this method has secure sums only: {self.always_secure}",
                remedy="leave out --no-secure",
                code="FK-SECURE-FIXED",
            )

    def _strategy(self, name: str) -> type[Method]:
        return next(cls for cls in self.strategies if cls.method == name)

    def strategy(self, config: Config) -> M:
        """Return a strategy with the options of a run; refuse options that cannot be.

        Raises
        ------
        OptionError
        """
        made: Any = self._strategy(config["method"])(**config["options"])
        return made  # type: ignore[no-any-return]


def chosen(strategy: Any) -> dict[str, Any]:
    """Return what a finished strategy has chosen, as a result tells it."""
    return {"tuned": strategy.tuned_} if strategy.tuned_ else {}


def rows_of(facts: Mapping[str, Any]) -> str:
    """Return the numbers of rows of a table that was dealt."""
    return f"{np.sum(facts['rows'])} training and {np.sum(facts['held_out_rows'])} held-out rows"


def points_of(history: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float, float]]:
    """Return (round, figure, 0) of the rounds of a run that have such a figure."""
    there = [row for row in history if row.get(name) is not None and np.isfinite(row[name])]
    return [(float(row["round"]), float(row[name]), 0.0) for row in there]


def plot_curves(
    folder: Path,
    name: str,
    curves: Mapping[str, Sequence[tuple[float, float, float]]],
    title: str,
    ylabel: str,
) -> dict[str, Path]:
    """Draw figures over the iterations, where there are several; return artifact -> file."""
    drawn = {text: points for text, points in curves.items() if len(points) > 1}
    if not drawn:
        return {}
    file = plots.plot_sweep(
        drawn, folder / f"{name}.png", title=title, xlabel="iteration", ylabel=ylabel, svg=False
    )
    return {f"{name}_plot": file}


def _training_rows(prepared: Prepared) -> int:
    """Return the rows that all parties learn from; of ratings the users."""
    facts = prepared.facts()
    if "rounds" in facts:
        return int(facts["rounds"] * prepared.num_clients)
    return int(np.sum(facts["rows" if "rows" in facts else "users"]))


def _refuse_options_of_sums(strategy: type[Method], chosen: Mapping[str, Any]) -> None:
    defaults = {o.name: o.default for o in options(strategy)}
    for name in ("threshold", "min_cohort"):
        if name in chosen and chosen[name] != defaults.get(name):
            flag = name.replace("_", "-")
            raise OptionError(
                f"--{flag} is for secure sums", remedy="add --secure", code="FK-SECURE-NEEDED"
            )


def check_rounds(config: Config) -> None:
    """Refuse a number of rounds below one.

    Raises
    ------
    OptionError
    """
    if (rounds := config["data"]["rounds"]) is not None:
        at_least("rounds", rounds, 1)


def check_numbers(prepared: Prepared, option: str, chosen: str | None, of_numbers: str) -> None:
    """Refuse what is for classes where the labels are numbers.

    Raises
    ------
    OptionError
    """
    if chosen not in (None, of_numbers) and not prepared.facts()["classes"]:
        raise OptionError(
            f"{option} {chosen} is for classes, the labels are numbers",
            remedy=f"use --{option} {of_numbers}, or --task classification",
            code="FK-TASK-OPTION",
        )

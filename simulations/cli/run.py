"""``fedkern run``: one method on one data set."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedkern_flwr.errors import OptionError
from fedkern_flwr.secure_sum import check_cohort

from ...strategies.online import OnlineStrategy
from ..engines import DropOut
from ..experiment import (
    DataSettings,
    Entry,
    Prepared,
    check_seed,
    prepare,
    run_entries,
    summarise,
    versions,
    with_state_dir,
)
from ..format import figure, megabytes, milli
from ..hindsight import server_regret
from ..methods import method, options
from ..run_folder import ARTIFACTS, RunFolder, open_json_target
from .console import Screen

_DATA_KEYS = (
    "data",
    "label",
    "target",
    "id_column",
    "site_column",
    "missing",
    "clients",
    "rounds",
    "split",
    "site_share",
    "alpha",
    "test_size",
    "seed",
)
_RUN_KEYS = ("engine", "seed", "runs", "drop", "timeout", "secure", "hindsight")
_VIEW_KEYS = ("out", "json_target", "resume", "quiet", "sites")


def run_method(name: str, values: dict[str, Any]) -> None:
    """Run a method with the options of the command line, show and save the result."""
    screen = Screen(values["quiet"])
    target = values["json_target"]
    json_file = open_json_target(target) if target else None
    if values["resume"]:
        folder, config = RunFolder.open(Path(values["resume"]))
        if config["method"] != name:
            raise OptionError(
                f"{folder.path} holds a run of {config['method']}",
                remedy=f"use fedkern run {config['method']} --resume {folder.path}",
            )
        result = folder.result() or _execute(screen, folder, config, resume=True)
    else:
        config = _config(name, values)
        _check(config)
        prepared = prepare(data_settings(config))
        if config["secure"]:
            strategy = method(name)(**config["options"])
            check_cohort(prepared.num_clients, strategy.threshold, strategy.min_cohort)
        default = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder = RunFolder.create(Path(values["out"] or default), config)
        result = _execute(screen, folder, config, resume=False, prepared=prepared)
    _show(screen, folder, result)
    text = json.dumps(result, allow_nan=False)
    if json_file is not None:
        json_file.write_text(f"{text}\n")
    elif target:
        sys.stdout.write(f"{text}\n")


def data_settings(config: dict[str, Any]) -> DataSettings:
    """Return the data settings of a run's configuration."""
    return DataSettings(**{**config["data"], "sites": tuple(config["data"]["sites"])})


def _config(name: str, values: dict[str, Any]) -> dict[str, Any]:
    sites = [site.strip() for site in (values["sites"] or "").split(",") if site.strip()]
    settings = DataSettings(**{k: values[k] for k in _DATA_KEYS}, sites=tuple(sites))
    data = {**asdict(settings), "sites": sites}
    if Path(data["data"]).is_file():
        data["data"] = str(Path(data["data"]).resolve())
    known = {*_DATA_KEYS, *_RUN_KEYS, *_VIEW_KEYS}
    options = {k: v for k, v in values.items() if k not in known and v is not None}
    if "secure" not in method(name).fixed:
        options["secure"] = values["secure"]
    return {
        "method": name,
        "data": data,
        "options": options,
        **{key: values[key] for key in _RUN_KEYS},
    }


def _check(config: dict[str, Any]) -> None:
    """Refuse options that cannot work before any data is read."""
    if config["secure"] and "secure" in method(config["method"]).fixed:
        raise OptionError(
            f"{config['method']} sends nothing that could be summed", remedy="leave out --secure"
        )
    alone = [n for n in ("threshold", "min_cohort") if n in _given(config)]
    if alone and not config["secure"]:
        name = alone[0].replace("_", "-")
        raise OptionError(f"--{name} is for secure sums", remedy="add --secure")
    check_seed(config["seed"], config["runs"])
    if config["timeout"] <= 0:
        raise OptionError(f"timeout is {config['timeout']}", remedy="use a positive number")
    DropOut(config["drop"])
    if config["runs"] < 1:
        raise OptionError(f"runs is {config['runs']}", remedy="use at least 1")
    method(config["method"])(**config["options"])


def _given(config: dict[str, Any]) -> set[str]:
    """Return the options of the method that differ from their defaults."""
    defaults = {o.name: o.default for o in options(method(config["method"]))}
    return {n for n, value in config["options"].items() if value != defaults.get(n)}


def _execute(
    screen: Screen,
    folder: RunFolder,
    config: dict[str, Any],
    *,
    resume: bool,
    prepared: Prepared | None = None,
) -> dict[str, Any]:
    prepared = prepared or prepare(data_settings(config))
    for note in prepared.notes:
        screen.note(f"note: {note}")
    strategy_class = method(config["method"])
    entry = Entry(strategy_class.title, config["method"], config["options"])
    entry.results = folder.draws() if resume else []

    def draw_done(done: Entry, strategy: OnlineStrategy[Any]) -> None:
        if config["hindsight"]:
            regret = server_regret(strategy, prepared)
            done.results[-1]["metrics"]["server_regret"] = regret
        if len(done.results) == 1:
            folder.save_model(strategy, prepared.scaling.to_json())
        folder.save_draws(done.results)

    with screen.progress() as bar:
        run_entries(
            [entry],
            with_state_dir(prepared, folder.state_dir),
            engine=config["engine"],
            seed=config["seed"],
            runs=config["runs"],
            drop=config["drop"],
            timeout=config["timeout"],
            checkpoints=folder.path,
            resume=resume,
            audited=True,
            progress=bar.update,
            draw_done=draw_done,
        )
    summary = summarise(entry)
    result = {
        "method": config["method"],
        "engine": config["engine"],
        "seed": config["seed"],
        "config": {
            **config,
            "clients": prepared.num_clients,
            "rounds": prepared.rounds,
            "notes": list(prepared.notes),
        },
        "versions": versions(),
        **summary,
        "artifacts": {**ARTIFACTS, **_plots(folder, entry.label, summary)},
    }
    folder.save_result(result)
    return result


def _plots(folder: RunFolder, label: str, summary: dict[str, Any]) -> dict[str, str]:
    """Draw what matplotlib can draw; a SuperNode's installation has none."""
    if find_spec("matplotlib") is None:
        return {}
    from .. import plots

    history = summary["history"]
    made = {
        "mse_plot": plots.plot_sweep(
            {label: [(row["round"], row["mse"], 0.0) for row in history]},
            folder.plots / "mean_squared_error.png",
            title="Prediction error so far",
            xlabel="samples per client t",
            ylabel="error (MSE) of the first t predictions",
        )
    }
    if history[0]["regret"] is not None:
        made["regret_plot"] = plots.plot_average_regret(
            {label: [(row["round"], row["regret"]) for row in history]},
            folder.plots / "average_regret.png",
            title="Average regret of the clients",
        )
    return {name: str(path.relative_to(folder.path)) for name, path in made.items()}


def _show(screen: Screen, folder: RunFolder, result: dict[str, Any]) -> None:
    metrics, config = result["metrics"], result["config"]
    rows = [
        ["MSE (10⁻³)", milli(metrics["mse"], 3)],
        ["  std over clients (10⁻³)", milli(metrics["mse_client_std"], 3)],
        ["regret per client, mean", figure(metrics["regret_mean"], 3)],
        ["regret per client, std", figure(metrics["regret_std"], 3)],
        ["exchanges", f"{result['exchanges']:g}"],
        ["MB from clients", megabytes(result["bytes_up"])],
        ["MB to clients", megabytes(result["bytes_down"])],
        ["seconds", f"{result['seconds']:.1f}"],
        ["clients in the last round", f"{result['survivors']} of {config['clients']}"],
    ]
    if config["runs"] > 1:
        rows.insert(1, ["  std over feature draws (10⁻³)", milli(metrics["mse_std"], 3)])
    if "test_mse" in metrics:
        rows.insert(2, ["MSE on held-out rows (10⁻³)", milli(metrics["test_mse"], 3)])
    if "regret_to_bound" in metrics:
        share = f"{100 * metrics['regret_to_bound']:.1f} %"
        rows.insert(-5, ["  largest share of Theorem 1's bound", share])
    if metrics.get("server_regret") is not None:
        rows.insert(-5, ["server's regret", figure(metrics["server_regret"], 1)])
    rows.append(["the server saw", _privacy_line(result["privacy"])])
    if rounds_lost := sum(row["survivors"] == 0 for row in result["history"]):
        rows.append(["rounds lost: too few for a sum", str(rounds_lost)])
    lost = sum(sum(reasons.values()) for reasons in result["failures"].values())
    if lost:
        rows.append(["requests not answered", str(lost)])
    draws = f", {config['runs']} feature draws" if config["runs"] > 1 else ""
    screen.table(
        f"{method(result['method']).title}: {config['clients']} clients x "
        f"{config['rounds']} samples, {result['engine']}{draws}",
        ["", "value"],
        rows,
    )
    screen.note(f"run folder: {folder.path}")


def _privacy_line(privacy: dict[str, Any]) -> str:
    if privacy.get("protocol") != "secure sums":
        return "every client's reply"
    (cohort,) = privacy["cohorts"]
    return f"sums of at least {cohort['threshold']} of {cohort['parties']} clients"

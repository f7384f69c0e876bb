"""``fedkern run``: one method on one data set."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from rich.markup import escape

from fedkern_flwr.checkpoint import write_csv
from fedkern_flwr.errors import FedKernError, OptionError
from fedkern_flwr.fitted import PREDICTOR
from fedkern_flwr.progress import Part
from fedkern_flwr.reporting import ended_by_signals
from fedkern_flwr.tables import plain_notes

from ...strategies import Method
from ..engines.ray import check_ray_address
from ..methods.base import CONFUSION, tables_of
from ..methods.experiment import run_entries, summarise, versions
from ..methods.registry import METHODS, complete_settings, family, method, open_run, options
from ..run.data import Prepared
from ..run.entries import Entry
from ..run.options import Option, of_fields
from ..run.report import REPORT, write_run_report
from ..run.run_folder import ARTIFACTS, RunFolder, chosen_folder, json_writer
from ..run.tracking import Track, TrackOptions, check_tracker, tracking
from .console import Screen
from .options import by_method

_WIDEST = 9  # columns of a table that is shown


def run_options(name: str) -> list[Option]:
    """Return the options of a run."""
    shared = {o.name: o for o in family(name).parameters()}
    own = (o for o in options(method(name)) if o.name not in shared)
    return [*shared.values(), *of_fields(TrackOptions), *own]


@ended_by_signals()
def run_method(name: str, values: dict[str, Any]) -> None:
    """Run a method; show and save the result."""
    screen = Screen(values["quiet"], values["json_target"])
    tell = json_writer(values["json_target"])
    address = values["ray_address"]
    check_tracker(values["track"])
    if values["resume"]:
        folder, config = open_run(Path(values["resume"]))
        if config["method"] != name:
            raise OptionError(
                f"{folder.path} holds a run of {config['method']}",
                remedy=f"use fedkern run {config['method']} --resume {folder.path}",
                code="FK-RUN-OTHER",
            )
        complete_settings(folder, config)
        check_ray_address(config["engine"], address)
        found = folder.result()
        if found is None:
            with tracking(values["track"], config, folder.path) as track:
                prepared, read = _read(screen, config)
                found = _execute(
                    screen, folder, config, prepared, address, track, read, resume=True
                )
        else:
            _show(screen, found)
        result = found
        _explain(screen, values, result.get("columns", []))
    else:
        config = family(name).config(name, family(name).deal_files(values))
        family(name).check(config)
        check_ray_address(config["engine"], address)
        prepared, read = _read(screen, config)
        family(name).check_data(config, prepared)
        config["notes"] += family(name).unchecked(prepared, config)
        _explain(screen, values, [one._asdict() for one in prepared.explain()])
        folder = RunFolder.create(chosen_folder(values["out"], name), config, force=values["force"])
        try:
            with tracking(values["track"], config, folder.path) as track:
                result = _execute(
                    screen, folder, config, prepared, address, track, read, resume=False
                )
        except FedKernError as error:
            files = getattr(prepared.settings, "files", None)
            if files is not None:
                error.args = (files.named(str(error), prepared.num_clients),)
            if error.exit_code == OptionError.exit_code and not folder.unfinished:
                folder.discard()  # it is known only now that this cannot be run
            raise
    screen.result(f"run folder: {folder.path}")
    tell(result)


def _read(screen: Screen, config: dict[str, Any]) -> tuple[Prepared, float]:
    """Return the data of a run, and the seconds to read them."""
    began = time.perf_counter()
    with screen.status("reading the table"):
        prepared = prepare_data(config)
    return prepared, time.perf_counter() - began


def prepare_data(config: dict[str, Any]) -> Prepared:
    """Return the data of a run's settings."""
    own = family(config["method"])
    prepared: Prepared = own.prepare(own.settings.from_values(config["data"]))
    return prepared


def all_notes(config: dict[str, Any], prepared: Prepared) -> list[str]:
    """Return notes on options and data."""
    return [*config.get("notes", ()), *prepared.notes]


def _execute(
    screen: Screen,
    folder: RunFolder,
    config: dict[str, Any],
    prepared: Prepared,
    ray_address: str | None,
    track: Track,
    read: float,
    *,
    resume: bool,
) -> dict[str, Any]:
    own = family(config["method"])
    for note in all_notes(config, prepared):
        screen.note(f"note: {note}")
    entry = Entry(method(config["method"]).title, config["method"], config["options"])
    entry.results = folder.draws() if resume else []

    def draw_done(done: Entry, strategy: Method) -> None:
        if len(done.results) == 1:
            result = done.results[0]
            whole = own.fitted(strategy, prepared, config, folder.state_dir, result)
            folder.save_model(strategy, prepared.scaling_json(), whole)
        folder.save_draws(done.results)

    def progress(label: str, done: float, total: int) -> None:
        bar.update(label, done, total)
        track.update(label, done, total)

    try:
        with screen.progress() as bar:
            run_entries(
                [entry],
                prepared,
                engine=config["engine"],
                seed=config["seed"],
                runs=config["runs"],
                drop=config["drop"],
                timeout=config["timeout"],
                checkpoints=folder.path,
                state_dir=folder.state_dir,
                resume=resume,
                audited=True,
                ray_address=ray_address,
                progress=progress,
                work=bar.work,
                watch=track.watch,
                measure=lambda strategy: own.measure(strategy, prepared, config),
                draw_done=draw_done,
            )
    except KeyboardInterrupt:
        if folder.unfinished:
            screen.note(f"stopped: go on with fedkern run {entry.method} --resume {folder.path}")
        raise
    summary = {**summarise(entry), "run": entry.results[0].get("run", {})}
    _show(screen, _result(config, prepared, summary))  # at once: drawing takes a second
    began = time.perf_counter()
    with screen.status("drawing"):
        plots = _plots(folder, entry, prepared, summary)
    drawn = time.perf_counter() - began
    summary["seconds_by_part"] = _seconds_by_part(read, entry.results, drawn)
    first = prepared.first_table if "summary" not in summary.get("tables", {}) else []
    result = save_result(folder, config, prepared, summary, plots, first)
    track.finish(result, folder.path)
    return result


def _seconds_by_part(
    read: float, draws: Sequence[Mapping[str, Any]], drawn: float
) -> dict[str, float]:
    """Return the seconds of each part of a run, summed over runs."""
    parts = {
        part: sum(draw.get("seconds_by_part", {}).get(part, 0.0) for draw in draws)
        for part in get_args(Part)
    }
    return {"read": read, **parts, "plots": drawn}


def save_result(
    folder: RunFolder,
    config: dict[str, Any],
    prepared: Prepared,
    found: dict[str, Any],
    artifacts: dict[str, str],
    first: list[list[str]] | None = None,
) -> dict[str, Any]:
    """Save result, tables and report; return the result."""
    whole = {"predictor": PREDICTOR} if (folder.path / PREDICTOR).is_file() else {}
    written = {f"{name}_table": f"{name}.csv" for name in found.get("tables", {})}
    for name, rows in found.get("tables", {}).items():
        write_csv(folder.path / f"{name}.csv", rows)
    listed = {**ARTIFACTS, **whole, **written, **artifacts, "report": REPORT}
    result = {**_result(config, prepared, found), "artifacts": listed}
    rows = family(config["method"]).rows(result)
    write_run_report(folder.path, *_heads(result), rows, tables_of(result), result, first or ())
    folder.save_result(result)
    return result


def _result(config: dict[str, Any], prepared: Prepared, found: dict[str, Any]) -> dict[str, Any]:
    """Return the result with settings, and null for comparisons that were not made."""
    facts = prepared.facts()
    if facts.get("class_names") and "held_out" in found:
        names = facts["class_names"]
        positive = {"positive": names[1]} if len(names) == 2 else {}
        held_out = {"class_names": names, **positive, **found["held_out"]}
        found = {**found, "held_out": held_out}
    own = family(config["method"])
    unchecked = () if own.checks_pooled(prepared, config) else own.checked
    found = {**found, "metrics": {**dict.fromkeys(unchecked), **found["metrics"]}}
    return {
        **{name: config[name] for name in ("method", "engine", "seed")},
        "config": {**config, **facts, "notes": plain_notes(all_notes(config, prepared))},
        "columns": [one._asdict() for one in prepared.explain()],
        "versions": versions(),
        **found,
    }


def _heads(result: dict[str, Any]) -> tuple[str, str]:
    """Return title and subtitle."""
    own, config = family(result["method"]), result["config"]
    runs = f", {config['runs']} runs" if config.get("runs", 1) > 1 else ""
    return method(result["method"]).title, f"{own.size(config)}, {result['engine']}{runs}"


def _plots(
    folder: RunFolder, entry: Entry, prepared: Prepared, summary: dict[str, Any]
) -> dict[str, str]:
    """Draw the plots of a run, if Matplotlib is installed."""
    if find_spec("matplotlib") is None:
        return {}
    made = family(entry.method).plots(folder.plots, entry.label, summary)
    drawn = {name: str(path.relative_to(folder.path)) for name, path in made.items()}
    return drawn | held_out_plots(folder, prepared, summary)


def held_out_plots(
    folder: RunFolder, prepared: Prepared, summary: dict[str, Any]
) -> dict[str, str]:
    """Draw plots of held-out rows, if Matplotlib is installed."""
    if find_spec("matplotlib") is None:
        return {}
    made = prepared.plot_held_out(folder.plots, summary)
    return {name: str(path.relative_to(folder.path)) for name, path in made.items()}


def _explain(screen: Screen, values: dict[str, Any], columns: list[dict[str, Any]]) -> None:
    """Show how columns were encoded, if requested."""
    if values.get("explain_columns") and columns:
        heads = ("column", "kind", "text", "outputs")
        rows = [[escape(str(one[head])) for head in heads] for one in columns]
        titles = ["column", "type", "encoding", "columns"]
        screen.table("Encoding of the columns", titles, rows, text=3)


def show_tables(screen: Screen, result: Mapping[str, Any]) -> None:
    """Show the tables of a run except wide ones, which are in files, and its notes."""
    for name, (heads, *rows) in tables_of(result).items():
        if len(heads) <= _WIDEST or name == CONFUSION:
            cells = [[escape(cell) for cell in row] for row in rows]
            screen.table(name.capitalize(), [escape(head) for head in heads], cells)
    for note in result.get("notes", ()):
        screen.note(f"note: {note}")


def _show(screen: Screen, result: dict[str, Any]) -> None:
    show_tables(screen, result)
    rows = family(result["method"]).rows(result)
    screen.table(": ".join(_heads(result)), ["", "value"], rows)


command = by_method("run", "Run one method on one data set.", METHODS, run_method, run_options)

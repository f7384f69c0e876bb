"""``fedkern deploy-local``: a method on SuperLink and SuperNodes of this machine."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import EngineError, FedKernError, OptionError
from fedkern_flwr.guard.policy import NodePolicy, toml
from fedkern_flwr.options import at_least
from fedkern_flwr.reporting import ended_by_signals

from ..deployment.local import CONNECTION, LocalDeployment, ended
from ..deployment.node_files import NodeConfig, Secrets, write_node
from ..deployment.run_config import app_folder, run_config
from ..methods.base import Family
from ..methods.experiment import checkpoint_file, summarise
from ..methods.registry import complete_settings, families, family, method, open_run, options
from ..run.data import Prepared
from ..run.entries import Entry
from ..run.options import Option, of_fields, switch
from ..run.run_folder import ARTIFACTS, RunFolder, chosen_folder, json_writer
from .console import Screen
from .options import by_method
from .run import (
    all_notes,
    held_out_plots,
    prepare_data,
    run_options,
    save_result,
    show_tables,
)

#: Options of ``fedkern run`` that mean nothing here; they keep their defaults.
_OF_SIMULATIONS = {"engine", "ray_address", "explain_columns", "check_pooled", "track", "drop"}
_OF_SIMULATIONS |= {"runs", "resplit", "hindsight", "delay"}
_ENGINE, _SERVER_LOG = "deployment", "server.log"
_WRITTEN = ("predictions", "recommendations")  # files that nodes write
_LONGEST = 7 * 86400.0  # seconds of a run; its own time-outs end it before


@dataclass(frozen=True)
class DeployOptions:
    """Options of a local deployment.

    Attributes
    ----------
    nodes : int or None
        Number of SuperNodes.
    predict : str or None
        Let the nodes of this finished deployment predict their test data.
    keep : bool
        Keep all processes running, and print how to use them.
    """

    nodes: int | None = None
    predict: str | None = None
    keep: bool = switch()


DEPLOYABLE = tuple(name for own in families() for name in own.deployable)


def deploy_options(name: str) -> list[Option]:
    """Return the options of a deployment."""
    own = family(name)
    hidden = {*_OF_SIMULATIONS, *own.dealt_by_nodes, *own.run_options}
    shown = [o for o in run_options(name) if o.name not in hidden]
    usual = own.deployed_defaults
    return [replace(o, default=usual.get(o.name, o.default)) for o in shown] + of_fields(
        DeployOptions
    )


def deploy_method(name: str, values: dict[str, Any]) -> None:
    """Deploy a method; show and save the result."""
    screen = Screen(values["quiet"], values["json_target"])
    tell = json_writer(values["json_target"])
    if values["predict"]:
        tell(_predict(screen, name, Path(values["predict"]), values))
    else:
        tell(_fit(screen, name, values))


def _fit(screen: Screen, name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Run a method on new nodes, or resume a run."""
    own, result = family(name), None
    if values["resume"]:
        folder, config = _open(name, Path(values["resume"]))
        complete_settings(folder, config)
        prepared = prepare_data(config)
        nodes, result = _read_nodes(folder), folder.result()
    else:
        config = _config(own, name, values)
        own.check(config)
        prepared = prepare_data(config)
        own.check_data(config, prepared)
        count = prepared.nodes(method(config["method"])(**config["options"], seed=config["seed"]))
        if values["nodes"] not in (None, count):
            raise OptionError(
                f"nodes is {values['nodes']}, the files are of {count} nodes",
                code="FK-CLIENTS-DIFFER",
            )
        folder = RunFolder.create(
            chosen_folder(values["out"], f"deploy-{name}"), config, force=values["force"]
        )
        nodes = _write_nodes(screen, folder, config, prepared)
    for note in all_notes(config, prepared):
        screen.note(f"note: {note}")
    if result is None:
        result = _execute(screen, folder, config, prepared, nodes, keep=values["keep"])
    _show(screen, folder, result)
    return result


def _open(name: str, path: Path) -> tuple[RunFolder, dict[str, Any]]:
    """Open the folder of a deployment; refuse another."""
    folder, config = open_run(path)
    if config["method"] != name or config["engine"] != _ENGINE:
        raise OptionError(
            f"{folder.path} holds a run of {config['method']} on engine {config['engine']}",
            code="FK-RUN-OTHER",
        )
    return folder, config


def _config(own: Family[Any, Any, Any], name: str, values: dict[str, Any]) -> dict[str, Any]:
    defaults = {o.name: o.default for o in own.parameters()}
    if values.get("party"):  # the files say who there is
        every = own.deal_files({**defaults, **values})
    elif values["nodes"] is None:
        raise OptionError(
            "the number of nodes is missing",
            remedy="add --nodes N, or the file of each party with --party",
            code="FK-COMMAND-MISSING",
        )
    else:
        at_least("nodes", values["nodes"], 2)
        every = {**defaults, **values, **own.deal_nodes(values, values["nodes"])}
    if "secure" in own.run_options:
        every["secure"] = "secure" not in method(name).fixed
    every |= {"engine": "in-process", "check_pooled": False}  # nobody has the pooled rows
    return {**own.config(name, every), "engine": _ENGINE}


def _write_nodes(
    screen: Screen, folder: RunFolder, config: dict[str, Any], prepared: Prepared
) -> list[NodeConfig]:
    """Write files, configuration and secrets of every node."""
    strategy = method(config["method"])(**config["options"], seed=config["seed"])
    clients: Any = prepared.client_fn(strategy)
    count, nodes, secrets = prepared.nodes(strategy), [], Secrets()
    policy = NodePolicy(min_parties=2 if count == 2 else None)  # the default, but for what it needs
    for rule, value in policy.changed.items():
        screen.note(f"note: the nodes' policies have {rule} = {toml(value)}, as the options need")
    shutil.rmtree(folder.path / "nodes", ignore_errors=True)  # of an earlier run in this folder
    for k in range(count):
        place = folder.path.resolve() / "nodes" / str(k)
        own = secrets.replace(k, clients.deployed(k))
        own |= {
            "id_name": config["data"].get("id_column"),
            "label_name": config["data"].get("label"),
        }
        nodes.append(write_node(place, k, count, own, policy))
        text = json.dumps(nodes[-1], indent=2)
        write_atomically(place / "node-config.json", f"{text}\n".encode(), private=True)
    return nodes


def _read_nodes(folder: RunFolder) -> list[NodeConfig]:
    places = sorted((folder.path / "nodes").glob("*/node-config.json"), key=_number)
    return [json.loads(place.read_text()) for place in places]


def _number(place: Path) -> int:
    return int(place.parent.name)


def _execute(
    screen: Screen,
    folder: RunFolder,
    config: dict[str, Any],
    prepared: Prepared,
    nodes: list[NodeConfig],
    *,
    keep: bool,
) -> dict[str, Any]:
    name, place = config["method"], folder.path.resolve()
    checkpoint = checkpoint_file(place, 0)
    more = {
        **{key.replace("_", "-"): value for key, value in prepared.start().items()},
        "checkpoint": str(checkpoint),
        "resume": checkpoint.exists(),
    }
    answer, times = _run(screen, folder, config, nodes, more, keep=keep)
    entry = Entry(method(name).title, name, config["options"], [answer])
    write_atomically(place / ARTIFACTS["scaling"], prepared.scaling_json().encode(), private=True)
    told = {"survivors": answer["survivors"], "matched": answer.get("matched", {}), **times}
    told["run"] = answer["run"]
    told |= {"tuned": answer["tuned"]} if "tuned" in answer else {}
    summary = {**summarise(entry), **told}
    plots = held_out_plots(folder, prepared, summary)
    files = {"server_log": _SERVER_LOG, "nodes": "nodes", **plots}
    return save_result(folder, config, prepared, summary, files)


def _predict(screen: Screen, name: str, path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Predict the test data of the nodes of a finished deployment."""
    folder, config = _open(name, path)
    model = folder.path.resolve() / ARTIFACTS["model"]
    nodes = _read_nodes(folder)
    files = [Path(str(node[key])) for node in nodes for key in _WRITTEN if key in node]
    for file in files:
        file.unlink(missing_ok=True)
    answer, times = _run(
        screen, folder, config, nodes, {"predict": str(model)}, keep=values["keep"]
    )
    made = {str(file.relative_to(folder.path.resolve())): _rows(file) for file in files}
    for part, rows in made.items():
        screen.result(f"{rows} rows: {folder.path / part}")
    return {"engine": _ENGINE, "predictions": made, **answer, **times}


def _rows(file: Path) -> int:
    """Return the number of rows in a CSV file."""
    return len(file.read_text().splitlines()) - 1 if file.is_file() else 0


def _run(
    screen: Screen,
    folder: RunFolder,
    config: dict[str, Any],
    nodes: list[NodeConfig],
    more: dict[str, Any],
    *,
    keep: bool,
) -> tuple[dict[str, Any], dict[str, float]]:
    """Start all processes, run the app once and stop them; return result and seconds."""
    name, began, place = config["method"], time.monotonic(), folder.path.resolve()
    app, known = app_folder(family(name).app), {o.name: o for o in options(method(name))}
    told = place / "server-result.json"
    told.unlink(missing_ok=True)
    common = {
        "method": name,
        "seed": config["seed"],
        "timeout": config["timeout"],
        "result": str(told),
    }
    model = place / ARTIFACTS["model"]
    settings = run_config(app, config["options"], known, {**common, **more}, model)
    try:
        with ended_by_signals(), screen.status("starting") as say:
            deployment = LocalDeployment(place, nodes, say)
            with deployment:
                ready = time.monotonic() - began
                run_id = deployment.run(app, settings)
                try:
                    status = deployment.wait_for_run(run_id, _LONGEST, say)
                finally:
                    with suppress(FedKernError):  # the SuperLink may be gone
                        deployment.save_log(run_id, place / _SERVER_LOG)
                deployment.keep = keep
            if keep:
                _explain(screen, deployment, app)
    except FedKernError as error:
        raise _failed(folder, name, str(error), error.exit_code) from None
    except KeyboardInterrupt:
        screen.note(f"stopped: {_again(folder, name)}")
        raise
    answer = json.loads(told.read_text()) if told.exists() else {}
    told.unlink(missing_ok=True)
    if answer.get("error") or not (status.endswith("completed") and answer):
        unsaid = ended(f"the run ended as {status}", place / _SERVER_LOG)
        raise _failed(folder, name, answer.get("error", str(unsaid)), answer.get("exit_code", 1))
    return answer, {"start_seconds": ready, "total_seconds": time.monotonic() - began}


def _failed(folder: RunFolder, name: str, text: str, exit_code: int) -> FedKernError:
    """Return the error of a failed run, with the command to resume it."""
    goes_on = exit_code == EngineError.exit_code and not folder.result()
    remedy = _again(folder, name) if goes_on else ""
    error = EngineError(text, remedy=remedy, code="")  # that of what failed
    error.exit_code = exit_code
    return error


def _again(folder: RunFolder, name: str) -> str:
    return f"go on with fedkern deploy-local {name} --resume {folder.path}"


def _show(screen: Screen, folder: RunFolder, result: dict[str, Any]) -> None:
    own = family(result["method"])
    show_tables(screen, result)
    screen.table(
        f"{method(result['method']).title}: {own.size(result['config'])}, deployed with TLS and "
        "node authentication",
        ["", "value"],
        [
            *own.rows(result),
            ["seconds from start to end", f"{result['total_seconds']:.1f}"],
            ["  until all nodes were connected", f"{result['start_seconds']:.1f}"],
        ],
    )
    screen.result(f"run folder: {folder.path}")


def _explain(screen: Screen, deployment: LocalDeployment, app: Path) -> None:
    """Print how to use and stop a running deployment."""
    home, pids = deployment.environment["FLWR_HOME"], deployment.processes.pids
    for line in (
        f"SuperLink on {deployment.address}, {len(deployment.nodes)} SuperNodes; still running",
        f"  export FLWR_HOME={home}",
        f"  flwr run {app} {CONNECTION} --stream --run-config {deployment.folder}/run-config.toml",
        f"  flwr supernode ls {CONNECTION}",
        f"  kill $(cat {pids})    # stops all of it",
    ):
        screen.note(line)


command = by_method(
    "deploy-local",
    "Run one method on a SuperLink and SuperNodes of this machine.",
    DEPLOYABLE,
    deploy_method,
    deploy_options,
)

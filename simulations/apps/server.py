"""Run a method on the server of an app, log the result, save the model; or predict with one.

A key of ``[tool.flwr.app.config]`` with the name of an option, with hyphens, is that option.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from math import isfinite
from typing import Any, get_args

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.errors import OptionError
from fedkern_flwr.flower_compat import is_simulated
from fedkern_flwr.log_lines import log_as
from fedkern_flwr.model_file import load_model, save_model
from fedkern_flwr.options import take_out
from fedkern_flwr.reporting import (
    RunFacts,
    errors_reported,
    log_result,
    write_result,
    write_somewhere,
)

from ...strategies import Method
from ..run.options import Option, accepted

logger = logging.getLogger("flwr")  # what `flwr log` shows

Config = Mapping[str, Any]
Kind = type[Any]  # of strategies, with attributes that their bases lack

#: Values that mean an option's default, where nothing, 0 and false are other values.
_UNSET = {"seed": None, "min_support": -1, "preconditioner_rank": -1, "coef0": 1.0}
#: Options with another default for each method of an app; 0 means the default.
_BY_METHOD = ("kernels", "lost_groups")  # apps of an earlier release leave the latter empty
#: Options of a run that predicts; the others are the model's.
_PREDICTING = ("node_timeout", "attempts", "allow_single", "threshold", "missing")
_SWITCH = {"on": True, "off": False}


def server_app(method: Kind | Callable[[Config], Kind], *, agreed: Sequence[str] = ()) -> ServerApp:
    """Return the server of an app.

    Parameters
    ----------
    method : type of Method, or callable
        The method; or a function that finds it from the configuration of the run.
    agreed : sequence of str (default: ())
        Options by which nodes read their tables: a model must have the same.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config: Config = context.run_config
        facts = RunFacts(getattr(grid, "run", None), config)
        with errors_reported(config["result"], facts):
            if not is_simulated(grid):
                log_as(str(config.get("log-format", "text")), context.run_id)
            kind = method if isinstance(method, type) else method(config)
            facts.config = shown_config(kind, config)
            if config.get("predict"):
                strategy = _predict(kind, grid, config, agreed, facts)
            else:
                strategy = _fit(kind, grid, config, facts)
            log_result(strategy.result())
            write_result(config["result"], {**strategy.result(), "run": facts.to_dict()})

    return app


def one_of(*methods: Kind) -> Callable[[Config], Kind]:
    """Return a function that finds a run's method by its key ``method``, or by its model."""
    known = {one.method: one for one in methods}

    def chosen(config: Config) -> Kind:
        name = str(config["method"])
        if config.get("predict"):
            found = str(load_model(config["predict"])[1].get("method"))
            name = found if found in known else name
        if name not in known:
            raise OptionError(
                f"method is {name!r}", remedy=f"use {' or '.join(known)}", code="FK-METHOD-UNKNOWN"
            )
        return known[name]

    return chosen


def shown_config(method: Kind, config: Config) -> dict[str, Any]:
    """Return the configuration of a run for its result, with None for hidden values.

    Numbers, switches and texts that are a choice of the method are shown. Any other text may be a
    path, the name of a column or, in a changed app, a secret.

    Raises
    ------
    OptionError
        See :func:`read_options`.
    """
    choices = {"", "auto", *_SWITCH, method.method}
    for option in accepted(method):
        choices |= {text for kind in option.kinds() for text in get_args(kind)}
    every = {k: v for k, v in config.items() if k != "options"} | _own_options(config)
    plain = {k: v for k, v in every.items() if isinstance(v, (bool, int, float, str))}
    shown = {k: v for k, v in plain.items() if not isinstance(v, str) or v in choices}
    endless = {k: str(v) for k, v in shown.items() if isinstance(v, float) and not isfinite(v)}
    return dict.fromkeys(every) | shown | endless  # JSON has no such numbers


def _own_options(config: Config) -> dict[str, Any]:
    """Return the options of a user's own method, which are one JSON object.

    Raises
    ------
    OptionError
    """
    try:
        found = json.loads(config.get("options", "{}"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(
            "options is no JSON object",
            remedy="""write options = '{"components": 3}'""",
            code="FK-OPTION-TYPE",
        )
    return found


def make_strategy(method: Kind, config: Config) -> Any:
    """Build a strategy from the configuration of a run.

    Raises
    ------
    OptionError
        The method does not take an option.
    """
    return method(**read_options(method, config))


def read_options(method: type[Method], config: Config) -> dict[str, Any]:
    """Return the options of a method in the configuration of a run.

    Raises
    ------
    OptionError
    """
    named = {key.replace("-", "_"): value for key, value in config.items()}
    known = {o.name: o for o in accepted(method)}
    named = take_out(  # declared, not set
        method.method, named, known=known, values=False, level=logging.INFO
    )
    found = {name: read_option(o, named[name]) for name, o in known.items() if name in named}
    return {**found, **_own_options(config)}


def read_option(option: Option, value: Any) -> Any:
    """Convert the value of a key, which has one type only, to that of an option.

    Nothing, 0 and false are a default that the run determines; ``auto``, ``on`` and ``off`` are
    None, true and false; a text with commas is a sequence of numbers.

    Raises
    ------
    OptionError
    """
    name, kinds = option.name, option.kinds()
    unset = value == _UNSET[name] if name in _UNSET else not value
    if unset and (option.default in (None, "auto") or name in _BY_METHOD):
        return option.default
    if isinstance(value, str) and bool in kinds:
        if value not in ("auto", *_SWITCH):
            raise _wrong(name, value, "use auto, on or off", code="FK-OPTION-CHOICE")
        return _SWITCH.get(value, option.default)
    if isinstance(value, str) and not option.takes_text():
        try:
            return tuple(map(float, value.split(",")))
        except ValueError:
            remedy = "write numbers separated by commas"
            raise _wrong(name, value, remedy, code="FK-OPTION-TYPE") from None
    return float(value) if type(value) is int and float in kinds else value


def _wrong(name: str, value: Any, remedy: str, *, code: str) -> OptionError:
    return OptionError(f"{name.replace('_', '-')} is {value!r}", remedy=remedy, code=code)


def _fit(method: Kind, grid: Grid, config: Config, facts: RunFacts) -> Any:
    """Run the method and save its model."""
    facts.strategy = strategy = make_strategy(method, config)
    strategy.figures = config.get("metrics")
    rounds = {"num_rounds": config["num-rounds"]} if "num-rounds" in config else {}
    strategy.start(grid=grid, timeout=float(config["timeout"]), **rounds)
    # of a method with an option called model the file has another name
    if file := config.get("saved-model", config.get("model")):
        arrays, meta = strategy.model()
        saved = write_somewhere(file, lambda at: save_model(at, strategy.method, arrays, meta))
        logger.info("model saved: %s", saved)
    return strategy


def _predict(
    method: Kind, grid: Grid, config: Config, agreed: Sequence[str], facts: RunFacts
) -> Any:
    """Have the nodes predict held-out rows with a saved model."""
    if not hasattr(method, "predict_at_nodes"):
        raise OptionError(
            f"nodes of {method.method} predict rows of their stream only", code="FK-APP-PREDICT"
        )
    arrays, meta = load_model(config["predict"], method.method)
    given = read_options(method, config)
    facts.strategy = strategy = method.of_model(
        meta, **{n: given[n] for n in _PREDICTING if n in given.keys() - meta}
    )
    strategy.figures = config.get("metrics")
    for name in agreed:
        if (made := meta[name]) != given[name]:
            raise OptionError(
                f"the model is one of {name} {made}",
                remedy=f'add {name}="{made}" to --run-config',
                code="FK-MODEL-OPTIONS",
            )
    model = {"arrays": arrays, "meta": meta}
    known = signature(strategy.predict_at_nodes).parameters
    taken = {name: model[name] for name in model if name in known}
    strategy.predict_at_nodes(grid, **taken, timeout=float(config["timeout"]))
    return strategy

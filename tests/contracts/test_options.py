"""Options: a constructor, the command line and the keys of an app take and refuse the same.

What an option may be is read off its declaration, an attribute of the strategy's class. Values are
made of it: another good one, those just outside of its range, words that it does not know.
"""

from __future__ import annotations

import json
import runpy
import tomllib
import types
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from refusals import refused

from fedkern_flwr import strategies
from fedkern_flwr.errors import FedKernError
from fedkern_flwr.simulations.cli.main import app, run

TYPE, RANGE, CHOICE = "FK-OPTION-TYPE", "FK-OPTION-RANGE", "FK-OPTION-CHOICE"
APPS = {"pof-mkl": "pof_mkl", "pof-rls": "pof_mkl", "kernel-pca": "method", "align": "align"}
APPS |= {"fed-cg": "fed_cg", "fdskl": "fdskl", "hierarchical-svm": "hierarchical_svm"}
APPS |= {"fed-cfk": "fed_cfk", "ranges": "ranges"}
COMMANDS: dict[str, Any] = app.commands["run"].loaded.commands  # type: ignore[attr-defined]
CLASSES: dict[str, Any] = {
    cls.method: cls for one in strategies.__all__ if (cls := getattr(strategies, one)).method
}
#: What is no declared option, but an argument of every run: a value that it refuses.
ARGUMENTS: dict[str, Any] = {"attempts": 0, "min_clients": 0, "max_missed": 0}
ARGUMENTS |= {"checkpoint_every": 0, "cohorts": 0}
every_method = pytest.mark.parametrize("name", COMMANDS)


def declared(cls: Any) -> dict[str, Any]:
    """Return the options that a class declares and that are not settled by it."""
    cls()  # which finds out their types
    found = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}
    return {n: o for n, o in found.items() if hasattr(o, "of_model") and n not in cls.fixed}


def kinds(hint: Any) -> list[Any]:
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else [hint]
    return [one for part in parts for one in (kinds(part) if part is not hint else [part])]


def words(option: Any) -> list[str]:
    return [one for kind in kinds(option.type) for one in get_args(kind)]


def another(option: Any) -> Any:
    """Return a good value that is not the default."""
    own = kinds(option.type)
    if found := [word for word in words(option) if word != option.default]:
        return found[0]
    if bool in own:
        return not option.default
    if int in own:
        usual = option.default if isinstance(option.default, int) else 0
        return int(max(usual, option.least if option.least > 0 else 0)) + 1
    if float not in own:
        return "text"
    tried = (v for v in (0.25, 1.5, 20.0) if option.least <= v <= option.most)
    return next(v for v in tried if option.above < v < option.below and v != option.default)


def wrong(option: Any) -> Iterator[tuple[Any, str]]:
    """Yield values that an option refuses, with the code."""
    own = kinds(option.type)
    number = next((kind for kind in (float, int) if kind in own), None)
    if str not in own:
        yield "s3cret", CHOICE if words(option) and not number and bool not in own else TYPE
    if number is None:
        return
    ends = [option.least - 1, option.most + 1, option.above, option.below]
    yield from ((number(end), RANGE) for end in ends if np.isfinite(end))
    yield from ((end, RANGE) for end in (np.nan, np.inf) if number is float)


def parsed(name: str, *typed: str) -> dict[str, Any]:
    """Return what the command line makes of what is typed, by names of options."""
    return COMMANDS[name].make_context(name, list(typed)).params


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class Begun(Exception):
    """Carries the strategy that an app would start."""


def keys_of(name: str) -> dict[str, Any]:
    place = Path(str(files("fedkern_flwr.simulations"))) / "apps" / APPS[name] / "pyproject.toml"
    found = tomllib.loads(place.read_text())["tool"]["flwr"]["app"]["config"]
    return {**found, "method": name, "result": ""} if "method" in found else found


def begun(name: str, **given: Any) -> Any:
    """Return the strategy that the server of an app starts with these keys."""
    place = Path(str(files("fedkern_flwr.simulations"))) / "apps" / APPS[name]
    config = {**keys_of(name), "result": ""}
    if name == "kernel-pca":  # all that a method of somebody else takes is one key
        config["options"] = json.dumps(given)
    else:
        config |= {key.replace("_", "-"): value for key, value in given.items()}

    def start(strategy: Any, *_: Any, **__: Any) -> Any:
        raise Begun(strategy)

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        patch.setattr(CLASSES[name], "start", start)
        server: Any = runpy.run_path(str(place / "server_app.py"))["app"]
        try:
            server(None, Context(1, 1, {}, RecordDict(), config))
        except Begun as found:
            return found.args[0]
    raise AssertionError("nothing was started")


def complaint(capsys: pytest.CaptureFixture[str], *typed: str) -> str:
    """Return the code with which the command line refuses, in one line, with nothing made."""
    assert run([*typed]) == 2, typed
    said = capsys.readouterr()
    (line,) = said.err.strip().splitlines()
    assert not said.out
    assert line.startswith("fedkern: ")
    assert line.endswith("]"), line
    assert not Path("runs").exists()
    return line.rpartition("[")[2][:-1]


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# -- each by itself


@pytest.mark.promise("options-alike")
@every_method
def test_a_command_has_the_options_of_the_constructor_with_their_defaults(name: str) -> None:
    usual, made = parsed(name), CLASSES[name]()
    for option in declared(CLASSES[name]).values():
        if option.name in ("secure", "missing"):  # which a run decides by its data
            continue
        assert usual[option.name] == option.default, option.name
        if option.default is not None:
            assert getattr(made, option.name) == option.default, option.name
        value, typed = another(option), flag(option.name)
        text = [typed if value else typed.replace("--", "--no-", 1)]
        text = text if isinstance(value, bool) else [typed, str(value)]
        found = parsed(name, *text)[option.name]
        assert (found, type(found)) == (value, type(value)), option.name


@pytest.mark.promise("options-alike")
@pytest.mark.parametrize("name", APPS)
def test_an_app_has_the_options_of_the_constructor_with_their_defaults(name: str) -> None:
    cls, keys, made = CLASSES[name], keys_of(name), begun(name)
    for option in declared(cls).values():
        key = option.name.replace("_", "-")
        if name != "kernel-pca" and key not in keys:
            assert option.name == "secure", option.name
            continue
        if option.name not in ("samples_per_round", "secure"):  # of which an app has its own
            assert getattr(made, option.name) == getattr(cls(), option.name), option.name
        value = another(option)
        try:
            wanted = getattr(cls(**{option.name: value}), option.name)
        except FedKernError as error:  # it needs another option beside it
            with refused(error.code):
                begun(name, **{option.name: value})
        else:
            given = (
                ("on" if value else "off")
                if isinstance(keys.get(key), str) and (isinstance(value, bool))
                else value
            )
            assert getattr(begun(name, **{option.name: given}), option.name) == wanted, option.name


@pytest.mark.promise("options-refused")
@every_method
def test_a_wrong_value_is_refused_with_its_code_by_constructor_and_command(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cls = CLASSES[name]
    for option in declared(cls).values():
        for value, code in wrong(option):
            with refused(code) as caught:
                cls(**{option.name: value})
            assert option.name in str(caught.value)
            odd = (option.name, value) == ("privacy_epsilon", np.inf)  # needs a scaling first
            if bool not in kinds(option.type) and not odd:
                typed = f"{flag(option.name)}={value}"
                assert complaint(capsys, "run", name, typed) == code, typed
    for argument, value in ARGUMENTS.items():
        if argument in parsed(name):
            with refused(RANGE):
                cls(**{argument: value})
            assert complaint(capsys, "run", name, flag(argument), str(value)) == RANGE
    with refused("FK-OPTION-UNKNOWN"):
        cls(never_there=1)
    assert complaint(capsys, "run", name, "--never-there", "1") == "FK-OPTION-UNKNOWN"


@pytest.mark.promise("options-refused")
@pytest.mark.parametrize("name", APPS)
def test_a_wrong_value_is_refused_with_its_code_by_an_app(name: str) -> None:
    keys = keys_of(name)
    for option in declared(CLASSES[name]).values():
        key = option.name.replace("_", "-")
        if name != "kernel-pca" and key not in keys:
            continue
        for value, code in wrong(option):
            unset = not value and option.default in (None, "auto")  # stands for the default
            if unset or (isinstance(value, float) and not np.isfinite(value)):
                continue
            switch = bool in kinds(option.type) and name != "kernel-pca"  # auto, on or off
            with refused(CHOICE if switch else code):
                begun(name, **{option.name: value})

"""Every option of a method is a key of its app, every key of a node reaches its client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from app_sites import Site, node_keys

from fedkern_flwr.errors import FedKernError, TableError
from fedkern_flwr.registered import find_method
from fedkern_flwr.removed import gone
from fedkern_flwr.simulations.apps.server import make_strategy, read_options
from fedkern_flwr.simulations.apps.simulated import _dealt
from fedkern_flwr.simulations.deployment.run_config import app_folder, declared
from fedkern_flwr.simulations.methods.registry import family, method, options
from fedkern_flwr.simulations.run.options import Option, accepted
from fedkern_flwr.strategies import (
    FDSKL,
    POFMKL,
    POFRLS,
    AlignIds,
    ColumnRanges,
    FedCFK,
    FedCG,
    HierarchicalSVM,
)

METHODS: dict[str, Any] = {
    "align": AlignIds,
    "fdskl": FDSKL,
    "fed_cfk": FedCFK,
    "fed_cg": FedCG,
    "hierarchical_svm": HierarchicalSVM,
    "method": find_method("kernel-pca"),
    "pof_mkl": POFMKL,
    "ranges": ColumnRanges,
}
#: Apps, and the methods that each runs.
RUNS = [*METHODS.items(), ("pof_mkl", POFRLS)]
#: What is no option of a method: of every run, and of the nodes of a simulation.
OF_RUN = {"timeout", "result", "num-rounds", "model", "saved-model", "predict"}
SIMULATED = {
    "align": {"rows", "share", "seed", "folder"},
    "ranges": {"data", "label", "split", "seed", "files"},
    "method": {"method", "options"},
}
CHOSEN = {"pof_mkl": {"method"}}
#: Options whose key has values that mean something else than their default.
UNSET = {"preconditioner_rank": -1, "min_support": -1, "coef0": 1.0}


@pytest.mark.parametrize(("app", "method"), RUNS)
def test_every_option_is_a_key_and_every_key_is_read(app: str, method: Any) -> None:
    keys = declared(app_folder(app))
    if app != "method":  # it takes them as JSON
        assert {o.name.replace("_", "-") for o in options(method)} <= set(keys)
    simulated = SIMULATED.get(app)
    if simulated is None:
        own = {f.name.replace("_", "-") for f in fields(family(method.method).settings)}
        simulated = {"state-dir", "predictions", *own}
        simulated |= {"hospitals", "groups"} & set(keys) | CHOSEN.get(app, set())
    known = {o.name.replace("_", "-") for name, one in RUNS if name == app for o in accepted(one)}
    went = {key.replace("_", "-") for n, one in RUNS if n == app for key in gone(one.method)}
    assert set(keys) <= known | OF_RUN | simulated | went


@pytest.mark.parametrize(("app", "method"), RUNS)
def test_the_defaults_of_an_app_are_those_of_its_method(app: str, method: Any) -> None:
    keys = declared(app_folder(app))
    seed = {"seed": 0} if "seed" in {o.name for o in accepted(method)} else {}
    made, usual = make_strategy(method, keys), method(**seed)
    assert vars(made).keys() == vars(usual).keys()
    others = {"pof_mkl": {"samples_per_round", "checkpoint_every"}, "method": set()}
    for name, value in vars(usual).items():
        if not name.startswith("_") and not name.endswith("_") and name not in others.get(app, ()):
            assert str(getattr(made, name)) == str(value), name


def another(option: Option, usual: Any) -> tuple[Any, Any]:
    """Return another value of a key, and the option's value that it stands for."""
    kinds = option.kinds()
    choices = [c for kind in kinds if get_origin(kind) is Literal for c in get_args(kind)]
    if isinstance(usual, bool):
        return not usual, not usual
    if isinstance(usual, str):
        if bool in kinds:
            return "off", False
        if choices:
            chosen = next(choice for choice in choices if choice != usual)
            return chosen, chosen
        return ("/a/b.npz", "/a/b.npz") if option.takes_text() else ("1, 0.5,2", (1.0, 0.5, 2.0))
    if isinstance(usual, float):
        return 7, 7.0  # whole numbers are taken
    return usual + 3, usual + 3


@pytest.mark.parametrize(("app", "method"), RUNS)
def test_every_option_of_an_app_reaches_the_method(app: str, method: Any) -> None:
    keys = declared(app_folder(app))
    for option in accepted(method):
        key = option.name.replace("_", "-")
        if key not in keys:
            continue
        given, expected = another(option, keys[key])
        found = read_options(method, {**keys, key: given})[option.name]
        assert (found, type(found)) == (expected, type(expected)), key
        if option.default is None:
            unset = UNSET.get(option.name, type(keys[key])())
            if option.name != "seed":
                assert read_options(method, {**keys, key: unset})[option.name] is None, key
        if option.name in UNSET:  # 0 is a value of its own
            assert read_options(method, {**keys, key: 0})[option.name] == 0


@pytest.mark.parametrize(
    ("app", "given", "text"),
    [
        ("pof_mkl", {"secure": "perhaps"}, "secure is 'perhaps'; use auto, on or off"),
        ("fed_cfk", {"drop-outs": "yes"}, "drop-outs is 'yes'; use auto, on or off"),
        ("fed_cfk", {"coefficients": "0, x"}, "coefficients is '0, x'; write numbers separated by"),
        ("hierarchical_svm", {"step-sizes": "5;20"}, "step-sizes is '5;20'; write numbers sepa"),
        ("fed_cg", {"solver": "svd"}, "solver is 'svd'"),
        ("method", {"options": "components=3"}, "options is no JSON object; write options"),
        ("method", {"options": '{"components": 0}'}, "components is 0; use at least 1"),
    ],
)
def test_a_wrong_option_is_one_line(
    app: str, given: dict[str, Any], text: str, refusal: Callable[..., str]
) -> None:
    keys = {**declared(app_folder(app)), **given}
    assert text in refusal(make_strategy, METHODS[app], keys)


# -- what a node says


#: Values of keys that the first node of a site does not have; a wrong column is refused.
VALUES: dict[str, Any] = {
    "allow-single": True,
    "block": "other",
    "classes": "bad,ok,perhaps",
    "group": 1,
    "label-bound": 2,
    "top": 7.0,
}
OTHERS = {"fed-cg", "fdskl", "horizontal", "vertical", "pof-mkl", "fed-cfk", "ranges", "align"}


@pytest.mark.parametrize("name", [*sorted(OTHERS), "kernel-pca"])
def test_every_key_of_the_readme_reaches_the_client(
    name: str, make_site: Callable[[str], Site], given: Callable[..., dict[str, Any]]
) -> None:
    """Without it, or with it, the client gets something else, or the node is refused."""
    site = make_site(name)
    number = len(site.nodes) - 1 if name == "vertical" else 0
    if name == "fed-cfk":
        number = 1  # a file with a header

    def found(**change: Any) -> str:
        try:
            return repr(given(site, number, **change))
        except FedKernError as error:
            return f"refused: {error}"

    usual = found()
    assert not usual.startswith("refused")
    keys = node_keys(site.app) - {"partition-id", "num-partitions"}
    keys.discard("na")  # no table has such cells: the next test
    assert {"data", "state-dir", "identity-key", "trusted-keys", "policy"} <= keys
    if name == "vertical":
        keys -= {"group", "predictions", "encoder"}  # of users
    for key in keys:
        change = None if key in site.nodes[number] else VALUES.get(key, "other")
        if key == "data":
            change = "gone.csv"
        if (name, key) in {("ranges", "id-column"), ("horizontal", "alignment-key")}:
            change = "other"
        assert found(**{key: change}) != usual, key


def test_a_node_reads_its_file_as_it_is_written(
    make_site: Callable[[str], Site], given: Callable[..., dict[str, Any]]
) -> None:
    site = make_site("fed-cg")
    path = Path(site.nodes[0]["data"])
    plain = path.read_text().splitlines()
    usual = given(site, 0, test_data=None)
    for sep, told in (("\t", {}), ("/", {"sep": "/", "decimal": ","})):
        path = path.with_name(f"other{len(told)}.csv")
        path.write_text("\n".join(line.replace(",", sep).replace(".", ",") for line in plain))
        found = given(site, 0, test_data=None, data=str(path), **told)
        for name in ("x", "y", "ids", "columns"):
            np.testing.assert_array_equal(found[name], usual[name])
    cell = plain[1].split(",")[plain[0].split(",").index("a")]
    with pytest.raises(TableError, match="is empty or NaN in 1 rows"):
        given(site, 0, na=f"none,{cell}")


def test_a_centre_gives_no_labels(
    make_site: Callable[[str], Site], given: Callable[..., dict[str, Any]]
) -> None:
    site = make_site("fed-cg")
    hospital = site.nodes[0]
    text = {"data": hospital["data"], "label_column": "state", "classes": "ok,bad"}
    assert "y" in given(site, 0)
    assert not given(site, 2, **text).keys() & {"y", "y_test"}


@pytest.mark.parametrize("app", METHODS)
def test_an_app_is_a_folder_with_one_file_to_change(app: str) -> None:
    folder = app_folder(app)
    files = {path.name for path in folder.iterdir() if path.name != "__pycache__"}
    assert files == {
        *("LICENSE", "README.md", "pyproject.toml"),
        *("client_app.py", "own_table.py", "server_app.py"),
    }
    assert "CHANGE THIS" in (folder / "own_table.py").read_text()
    assert "own_table.py" in (folder / "README.md").read_text()


@pytest.mark.parametrize("name", ["fed-cg", "fdskl", "hierarchical-svm"])
def test_a_simulated_app_makes_of_a_table_what_a_run_makes(name: str, tmp_path: Path) -> None:
    """Text, gaps and far values: the same columns, of the same rows."""
    rng = np.random.default_rng(0)
    rows = ["a,b,c,town,ill"]
    for k, (a, b) in enumerate(np.exp(3.0 * rng.normal(size=(80, 2)))):
        gap = "" if k % 9 == 0 else f"{b:.3f}"
        rows.append(f"{a:.3f},{gap},{k % 7},{'xyz'[k % 3]},{k % 2}")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    config = declared(app_folder(name.replace("-", "_")))
    config |= {"data": str(tmp_path / "t.csv"), "label": "ill"}
    found, _ = _dealt(name, 4, tuple(sorted(config.items())))
    own = family(name)
    values = {o.name: o.default for o in [*options(method(name)), *own.parameters()]}
    values |= {"data": str(tmp_path / "t.csv"), "label": "ill"}
    expected = own.settings.from_values(own.config(name, values)["data"])
    for setting in ("scaling", "missing", "categories"):
        assert getattr(found.settings, setting) == getattr(expected, setting)
    assert len(found.explain()) == 4

"""Every key of a node reaches its client, every key of an app is read; an app is a folder.

That options are keys is in tests/contracts/test_options.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_sites import Given, Make, node_keys
from flwr.app import Context, RecordDict
from refusals import refused

from fedkern_flwr.errors import FedKernError
from fedkern_flwr.simulations.deployment.run_config import app_folder

APPS = ("align", "fdskl", "fed_cfk", "fed_cg", "hierarchical_svm", "method", "pof_mkl", "ranges")


@pytest.mark.parametrize(
    ("app", "given", "code"),
    [
        ("pof_mkl", {"secure": "perhaps"}, "FK-OPTION-CHOICE"),
        ("fed_cfk", {"coefficients": "0, x"}, "FK-OPTION-TYPE"),
        ("hierarchical_svm", {"step-sizes": "5;20"}, "FK-OPTION-TYPE"),
        ("method", {"options": "components=3", "method": "kernel-pca"}, "FK-OPTION-TYPE"),
        ("method", {"method": "kernel-pcb"}, "FK-METHOD-UNKNOWN"),
    ],
)
def test_a_key_that_an_app_cannot_read_is_refused(
    app: str, given: dict[str, Any], code: str, import_app: Any
) -> None:
    found = import_app(app, "server_app")
    config = {**found.config, "result": "", **given}
    with refused(code):
        found.server_app.app(None, Context(1, 1, {}, RecordDict(), config))


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
    name: str, make_site: Make, given: Given
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


def test_a_node_reads_its_file_as_it_is_written(make_site: Make, given: Given) -> None:
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
    with refused("FK-VALUES-MISSING"):
        given(site, 0, na=f"none,{cell}")


def test_a_centre_gives_no_labels(make_site: Make, given: Given) -> None:
    site = make_site("fed-cg")
    hospital = site.nodes[0]
    text = {"data": hospital["data"], "label_column": "state", "classes": "ok,bad"}
    assert "y" in given(site, 0)
    assert not given(site, 2, **text).keys() & {"y", "y_test"}


@pytest.mark.parametrize("app", APPS)
def test_an_app_is_a_folder_with_one_file_to_change(app: str) -> None:
    folder = app_folder(app)
    files = {path.name for path in folder.iterdir() if path.name != "__pycache__"}
    assert files == {
        *("LICENSE", "README.md", "pyproject.toml"),
        *("client_app.py", "own_table.py", "server_app.py"),
    }
    assert "CHANGE THIS" in (folder / "own_table.py").read_text()
    assert "own_table.py" in (folder / "README.md").read_text()

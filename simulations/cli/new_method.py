"""``fedkern new-method``: a package with a working method to change."""

from __future__ import annotations

import keyword
from dataclasses import dataclass
from pathlib import Path
from string import Template

import click

from fedkern_flwr.errors import OptionError

from ..methods.registry import METHODS
from ..run.options import argument
from .options import of_function

_PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$name"
version = "0.1.0"
description = "A federated method of rows"
dependencies = ["fedkern-flwr>=0.2.dev0"]

[project.entry-points."fedkern.methods"]
$name = "$package:$Class"
"""

_METHOD = '''\
"""Means and deviations of columns, summed securely over clients that keep their rows."""

import numpy as np

from fedkern_flwr.method import Ask, Method, MethodClient, Sum, answers, contributes, option

# a row of features in [0, 1] adds at most 1 to a number; a run has two rounds of this sum
MOMENTS = Sum("moments", bound=1.0, rounds=True)


class ${Class}Client(MethodClient):
    """What runs at the rows: self.x of shape (n, d), self.y or None."""

    labels_of_row = 0  # as in the method

    @contributes(MOMENTS)
    def moments(self, power):
        return {"rows": len(self.x), "sum": (self.x**power).sum(axis=0)}

    @answers("standardise")  # answers for this client alone: the server sees what is returned
    def standardise(self, mean, deviation):
        self.write_rows("standardised", self.columns, (self.x - mean) / deviation)


class $Class(Method):
    """Means and standard deviations of columns."""

    method, title, client = "$name", "$title", ${Class}Client
    shows = {"rows": "rows", "deviation": "mean standard deviation"}
    labels_of_row = 0  # 1 if the rows need a label

    floor: float = option(1e-6, "Least standard deviation.", above=0.0)

    def rounds(self, parties):
        width = parties[0].features
        shapes = {"rows": (), "sum": (width,)}
        first = yield MOMENTS(shapes, power=1)
        second = yield MOMENTS(shapes, power=2)
        mean = first["sum"] / first["rows"]
        variance = second["sum"] / second["rows"] - mean**2
        deviation = np.maximum(np.sqrt(np.maximum(variance, 0.0)), self.floor)
        self.model_ = {"mean": mean, "deviation": deviation}
        yield Ask("standardise", self.model_, least=1)  # who has vanished goes without
        return {"rows": int(first["rows"].round()), "deviation": float(deviation.mean())}
'''

_TEST = '''\
"""The method against the same computed on pooled rows, with a client that vanishes."""

import numpy as np
from $package import $Class, ${Class}Client

from fedkern_flwr.simulations import Fault, FaultPlan, simulate

X = np.random.default_rng(0).random((5, 20, 3))


def client(context):
    return ${Class}Client(context, X[context.node_config["partition-id"]])


def test_it_is_that_of_pooled_rows():
    method = $Class()
    simulate(method, client, 5)
    rows = X.reshape(-1, 3)
    np.testing.assert_allclose(method.model_["mean"], rows.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(method.model_["deviation"], rows.std(axis=0), atol=1e-9)


def test_clients_may_vanish():
    method = $Class(threshold=4)
    gone = FaultPlan([(2, "method", None, Fault("vanished"))])
    simulate(method, client, 5, faults=gone)
    others = X[[0, 1, 3, 4]].mean(axis=(0, 1))
    np.testing.assert_allclose(method.model_["mean"], others, atol=1e-9)
'''


@dataclass(frozen=True)
class NewMethodOptions:
    """Options of ``fedkern new-method``.

    Attributes
    ----------
    name : str
        Name of the method, such as my-method.
    out : str or None
        Where to write it (default: the name).
    """

    name: str = argument()
    out: str | None = None


def new_method(asked: NewMethodOptions) -> None:
    """Write a package with a method of your own: a working example to change, with its test.

    Install it with 'pip install -e NAME', then use 'fedkern run NAME'.
    """
    name = asked.name
    package = name.replace("-", "_")
    if not package.isidentifier() or not package.islower() or keyword.iskeyword(package):
        raise OptionError(f"{name!r} is no name of a method", code="FK-METHOD-NAME")
    if name in METHODS:
        raise OptionError(f"there is a method {name} already", code="FK-METHOD-NAME")
    root = Path(asked.out or name)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise OptionError(f"{root} is there already", code="FK-FOLDER-USED")
    words = name.split("-")
    known = {
        "name": name,
        "package": package,
        "title": " ".join(words).capitalize(),
        "Class": "".join(word.capitalize() for word in words),
    }
    files = {
        "pyproject.toml": _PROJECT,
        f"{package}/__init__.py": _METHOD,
        f"tests/test_{package}.py": _TEST,
    }
    for place, text in files.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(text).substitute(known))
        click.echo(path)
    click.echo(f"next: pip install -e {root}; fedkern run {name} --data YOUR.csv")


command = of_function("new-method", new_method, NewMethodOptions)

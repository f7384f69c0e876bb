"""A document as an ONNX graph in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, checker, helper, numpy_helper

_OPSET = 17
_TURN = 2.0 * np.pi


class _Graph:
    """Nodes and constants in progress."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._numbers = itertools.count()

    def constant(self, value: Any, dtype: Any = np.float64) -> str:
        """Add a constant; return its name."""
        name = f"c{next(self._numbers)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def make(self, kind: str, *inputs: Any, name: str = "", **more: Any) -> str:
        """Add a node; inputs that are no names are constants. Return the name of its output."""
        named = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        name = name or f"v{next(self._numbers)}"
        self.nodes.append(helper.make_node(kind, named, [name], **more))
        return name

    def take(self, value: str, columns: Any) -> str:
        """Take columns of a matrix."""
        return self.make("Gather", value, self.constant(columns, np.int64), axis=1)

    def total(self, value: str, axis: int) -> str:
        """Sum over an axis, which stays."""
        return self.make("ReduceSum", value, self.constant([axis], np.int64), keepdims=1)

    def clip(self, value: str, low: float, high: float) -> str:
        """Bring values within two bounds; NaN stays NaN."""
        return self.make("Min", self.make("Max", value, low), high)

    def rounded(self, value: str, steps: float) -> str:
        """Round to multiples of 1 / steps, halves to even."""
        return self.make("Div", self.make("Round", self.make("Mul", value, steps)), steps)

    def number(self, condition: str) -> str:
        """Return 1 where something is true, else 0."""
        return self.make("Cast", condition, to=TensorProto.DOUBLE)


def build(m: dict[str, Any]) -> Any:
    """Return the ONNX model of a document.

    Its input is ``x``, float64 of shape (rows, inputs), NaN for a missing cell. Its outputs are
    ``scores``, shape (rows, k), and ``label``, shape (rows,); of numbers ``prediction``, shape
    (rows,).
    """
    g = _Graph()
    z = "x" if m["encoded"] else _encode(g, m["columns"])
    parts = [_features(g, part, z) for part in m["parts"]]
    f = parts[0] if len(parts) == 1 else g.make("Concat", *parts, axis=1)
    f = g.make("Add", g.make("MatMul", f, m["weights"]), m["bias"])
    if m["clip"]:
        f = g.clip(f, *m["clip"])
    if m["mean"]:
        f = g.make("ReduceMean", f, axes=[1], keepdims=1)
    if m["votes"]:
        f = _votes(g, f, m["votes"])
    scores = np.shape(m["weights"])[1] if not m["mean"] and not m["votes"] else m["votes"] or 1
    if m["classes"] is None:
        f = g.make("Add", g.make("Mul", f, m["unit"]), m["middle"])
        first = g.make("Gather", f, g.constant(0, np.int64), axis=1, name="prediction")
        told = [helper.make_tensor_value_info(first, TensorProto.DOUBLE, ["rows"])]
    else:
        told = _label(g, f, m["classes"], scores)
    inputs = [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["rows", len(m["inputs"])])]
    graph = helper.make_graph(g.nodes, "model", inputs, told, g.constants)
    opsets = [helper.make_opsetid("", _OPSET)]
    made = helper.make_model(
        graph, opset_imports=opsets, ir_version=8, producer_name="fedkern-flwr"
    )
    helper.set_model_props(made, {"format": m["format"], "inputs": ",".join(m["inputs"])})
    checker.check_model(made)
    return made


def _label(g: _Graph, f: str, classes: list[Any], scores: int) -> list[Any]:
    """Name the scores, and take the class with the highest."""
    g.make("Identity", f, name="scores")
    if scores == 1:
        first = g.make("Gather", f, g.constant(0, np.int64), axis=1)
        place = g.make("Cast", g.make("GreaterOrEqual", first, 0.0), to=TensorProto.INT64)
    else:
        place = g.make("ArgMax", f, axis=1, keepdims=0)
    texts = isinstance(classes[0], str)
    kind = TensorProto.STRING if texts else TensorProto.DOUBLE
    name = f"c{next(g._numbers)}"
    values = [one.encode() for one in classes] if texts else list(map(float, classes))
    g.constants.append(helper.make_tensor(name, kind, [len(classes)], values))
    g.make("Gather", name, place, axis=0, name="label")
    return [
        helper.make_tensor_value_info("scores", TensorProto.DOUBLE, ["rows", scores]),
        helper.make_tensor_value_info("label", kind, ["rows"]),
    ]


def _encode(g: _Graph, columns: list[dict[str, Any]]) -> str:
    """Encode the columns."""
    found = []
    for c in columns:
        v = g.take("x", [c["source"]])
        wrong = [g.make("IsNaN", v), g.make("GreaterOrEqual", g.make("Abs", v), np.inf)]
        gap = g.make("Or", *wrong)
        if c["missing"]:
            found.append(g.number(gap))
            continue
        v = g.make("Where", gap, np.nan if c["fill"] is None else c["fill"], v)
        if c["knots"] is not None:
            found.append(_ranks(g, v, np.array(c["knots"])))
            continue
        v = g.make("Div", g.make("Sub", v, c["shift"]), c["width"])
        found.append(v if c["low"] is None else g.clip(v, c["low"], c["high"]))
    return g.make("Concat", *found, axis=1)


def _ranks(g: _Graph, v: str, knots: NDArray[np.float64]) -> str:
    """Interpolate ranks: the mean of those from above and below where knots are equal."""
    last = len(knots) - 1
    if not last:
        return g.make("Where", g.make("LessOrEqual", v, float(knots[0])), 0.0, 1.0)
    sides = []
    for kind in ("GreaterOrEqual", "Greater"):
        count = g.total(g.number(g.make(kind, v, knots[None])), 1)
        lower = g.clip(g.make("Sub", count, 1.0), 0.0, last - 1.0)
        place = g.make("Cast", lower, to=TensorProto.INT64)
        low, high = (g.make("Gather", values, place) for values in (knots[:-1], knots[1:]))
        width = g.make("Sub", high, low)
        safe = g.make("Where", g.make("Greater", width, 0.0), width, 1.0)
        share = g.clip(g.make("Div", g.make("Sub", v, low), safe), 0.0, 1.0)
        sides.append(g.make("Div", g.make("Add", lower, share), float(last)))
    found = g.make("Div", g.make("Add", *sides), 2.0)
    found = g.make("Where", g.make("LessOrEqual", v, float(knots[0])), 0.0, found)
    return g.make("Where", g.make("GreaterOrEqual", v, float(knots[-1])), 1.0, found)


def _features(g: _Graph, p: dict[str, Any], z: str) -> str:
    """Make the features of a part."""
    if p["kind"] == "columns":
        return z
    if p["kind"] == "kernel":
        return _kernel(g, p, z)
    total = ""
    for b in p["blocks"]:
        a = g.make("MatMul", g.take(z, b["columns"]), b["directions"])
        a = g.make("Add", a, b["offsets"])
        if p["steps"]:
            turns = g.make("Div", a, _TURN)
            turns = g.make("Sub", turns, g.make("Floor", turns))
            a = g.make("Mul", g.rounded(turns, p["steps"]), _TURN)
        total = g.make("Add", total, a) if total else a
    waves = g.make("Cos", g.make("Mul", total, float(p["multiple"])))
    return g.make("Mul", waves, p["scale"])


def _kernel(g: _Graph, p: dict[str, Any], z: str) -> str:
    """Compute the kernel between rows and known rows."""
    rows, u = np.asarray(p["rows"]), g.take(z, p["columns"])
    if "rounding" in p:
        u = g.rounded(u, p["rounding"])
    minus = -np.asarray(p["gammas"])
    if p["kernel"] == "laplacian":
        apart = g.make("Unsqueeze", u, g.constant([1], np.int64))
        apart = g.make("Abs", g.make("Sub", apart, rows[None]))
        apart = g.make("ReduceSum", apart, g.constant([2], np.int64), keepdims=0)
        return g.make("Exp", g.make("Mul", apart, minus))
    products, norms = g.make("MatMul", u, rows.T), (rows**2).sum(axis=1)[None]
    own = g.total(g.make("Mul", u, u), 1)
    if p["kernel"] == "rbf":
        apart = g.make("Sub", g.make("Add", own, norms), g.make("Mul", products, 2.0))
        return g.make("Exp", g.make("Mul", g.make("Max", apart, 0.0), minus))
    if p["kernel"] == "cosine":
        lengths = g.make("Sqrt", g.make("Mul", own, norms))
        return g.make("Div", products, g.make("Max", lengths, 1e-300))
    if p["kernel"] == "poly":
        base = g.make("Add", g.make("Mul", products, float(p["gammas"][0])), p["coef0"])
        return g.make("Pow", base, float(p["degree"]))
    return products


def _votes(g: _Graph, f: str, classes: int) -> str:
    """Make one output of each class from those of all pairs."""
    first, second = (np.eye(classes)[side] for side in np.triu_indices(classes, 1))
    won = g.number(g.make("GreaterOrEqual", f, 0.0))
    count = g.make("Add", g.make("MatMul", won, first - second), second.sum(axis=0))
    sums = g.make("MatMul", f, first - second)
    below = g.make("Mul", g.make("Add", g.make("Abs", sums), 1.0), 3.0)
    return g.make("Add", count, g.make("Div", sums, below))

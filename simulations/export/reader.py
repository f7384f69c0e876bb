"""Predict with a document by NumPy alone, as in ``docs/export.md``."""

from __future__ import annotations

from typing import Any

import numpy as np


def encode(m: dict[str, Any], x: Any) -> Any:
    """Encode the columns of rows, shape (n, d); NaN for a missing cell."""
    if m["encoded"]:
        return x
    z = []
    for c in m["columns"]:
        v, gap = x[:, c["source"]], ~np.isfinite(x[:, c["source"]])
        if c["missing"]:
            z.append(gap.astype(float))
            continue
        v = np.where(gap, np.nan if c["fill"] is None else c["fill"], v)
        if c["knots"] is None:
            v = (v - c["shift"]) / c["width"]
            z.append(v if c["low"] is None else np.clip(v, c["low"], c["high"]))
        else:  # the middle of the ranks of equal values, in [0, 1]
            k = np.array(c["knots"])
            t = np.linspace(0, 1, len(k))
            r = (np.interp(v, k, t) - np.interp(-v, -k[::-1], -t[::-1])) / 2
            z.append(np.where(v <= k[0], 0.0, np.where(v >= k[-1], 1.0, r)))
    return np.stack(z, axis=1)


def features(p: dict[str, Any], z: Any) -> Any:
    """Return the features of one part."""
    if p["kind"] == "columns":
        return z
    if p["kind"] == "cosines":
        angle = 0.0
        for b in p["blocks"]:
            a = z[:, b["columns"]] @ np.array(b["directions"]) + np.array(b["offsets"])
            if p["steps"]:  # rounded, as the parties of a run round them
                turns = a / (2 * np.pi) % 1.0
                a = np.rint(turns * p["steps"]) * (2 * np.pi / p["steps"])
            angle = angle + a
        return np.array(p["scale"]) * np.cos(p["multiple"] * angle)
    u, rows = z[:, p["columns"]], np.array(p["rows"])
    if "rounding" in p:
        u = np.rint(u * p["rounding"]) / p["rounding"]
    if p["kernel"] == "laplacian":
        return np.exp(-np.array(p["gammas"]) * np.abs(u[:, None] - rows).sum(axis=2))
    k, n, m = u @ rows.T, (u**2).sum(1)[:, None], (rows**2).sum(1)
    if p["kernel"] == "rbf":
        return np.exp(-np.array(p["gammas"]) * np.maximum(n + m - 2 * k, 0.0))
    if p["kernel"] == "cosine":
        return k / np.maximum(np.sqrt(n * m), 1e-300)
    return (p["gammas"][0] * k + p["coef0"]) ** p["degree"] if p["kernel"] == "poly" else k


def outputs(m: dict[str, Any], x: Any) -> Any:
    """Return scores of classes, shape (n, k), or numbers, shape (n, 1)."""
    z = encode(m, np.asarray(x, float))
    f = np.hstack([features(p, z) for p in m["parts"]]) @ np.array(m["weights"]) + m["bias"]
    if m["clip"]:
        f = np.clip(f, *m["clip"])
    if m["mean"]:
        f = f.mean(axis=1, keepdims=True)
    if m["votes"]:  # one output of each pair of classes
        i, j = np.triu_indices(m["votes"], 1)
        side = np.eye(m["votes"])[i] - np.eye(m["votes"])[j]
        won = np.where(f >= 0, 1.0, 0.0)
        s = f @ side
        f = won @ np.eye(m["votes"])[i] + (1 - won) @ np.eye(m["votes"])[j]
        f = f + s / (3 * (np.abs(s) + 1))
    return f * m["unit"] + m["middle"]


def predict(m: dict[str, Any], x: Any) -> Any:
    """Return the class of each row, or its number."""
    f = outputs(m, x)
    if m["classes"] is None:
        return f[:, 0]
    return np.array(m["classes"])[(f[:, 0] >= 0).astype(int) if f.shape[1] == 1 else f.argmax(1)]

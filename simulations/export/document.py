"""Describe a whole model as a document: columns, features and weights.

Every model has numbers z of a row; features of z, which are z itself, cosines of angles or kernels
with known rows; and outputs that are linear in the features. So one reader and one graph are
enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.encoding.columns import Number
from fedkern_flwr.errors import OptionError
from fedkern_flwr.fitted import FittedModel
from fedkern_flwr.kernels.random_features import gaussian_frequencies
from fedkern_flwr.vertical.phases import INTERCEPT

Floats = NDArray[np.float64]
Part = dict[str, Any]

FORMAT = "fedkern-flwr model 1"
_KERNELS = ("rbf", "linear", "poly", "cosine")


def document(model: FittedModel) -> dict[str, Any]:
    """Return the document of a model: plain values and arrays, see ``docs/export.md``.

    Raises
    ------
    OptionError
        The format lacks its kernel, or its treatment of missing blocks.
    """
    if model.meta.get("needed") is not None:
        raise OptionError(
            "rows of this model may lack a block of columns, which other formats cannot say",
            code="FK-EXPORT-BLOCKS",
        )
    columns, inputs = _inputs(model)
    parts, weights, bias, more = _FORMS[model.meta["form"]](model)
    table, classes = model.meta["table"], model.classes_
    return {
        "format": FORMAT,
        "method": model.method,
        "inputs": inputs,
        "encoded": columns is None,
        "columns": columns or [],
        "parts": parts,
        "weights": weights,
        "bias": bias,
        "clip": None,
        "mean": False,
        "votes": 0,
        "classes": None if classes is None else classes.tolist(),
        "middle": 0.0 if classes is not None else float(table["y_middle"]),
        "unit": 1.0 if classes is not None else float(table["y_half_range"]),
        **more,
    }


def _inputs(model: FittedModel) -> tuple[list[dict[str, Any]] | None, list[str]]:
    """Return the encoding of numbers, None without one, and names of inputs."""
    encoder = model.encoder
    if encoder is None:
        return None, [f"x{k}" for k in range(int(model.meta["columns"]))]
    numbers = [one for one in encoder.columns if isinstance(one, Number)]
    if not model.meta.get("encoded", True) or "row_norm" in model.meta["table"]:
        return None, list(encoder.outputs)  # counts as they are, or rows that a norm divides
    if len(numbers) < len(encoder.columns):
        return None, list(encoder.outputs)
    found: list[dict[str, Any]] = []
    for place, one in enumerate(numbers):
        facts, source = one.facts, {"source": place}
        fill = facts.median if one.gaps == "encode" else None
        if one.useful:
            low, high, shift, width = None, None, 0.0, 1.0
            if one.scale == "range":
                low, high, shift = 0.0, 1.0, facts.least
                width = facts.greatest - facts.least if facts.greatest > facts.least else 1.0
            if one.scale == "standard":
                shift, width = facts.mean, facts.deviation or 1.0
            knots = list(facts.knots) if one.scale == "rank" else None
            how = {"shift": shift, "width": width, "low": low, "high": high, "knots": knots}
            found.append({**source, "missing": False, "fill": fill, **how})
        if len(one.outputs) > one.useful:
            found.append({**source, "missing": True})
    return found, [one.name for one in numbers]


def _cosines(blocks: list[Part], scale: Floats | float, steps: float, multiple: int) -> Part:
    return {
        "kind": "cosines",
        "blocks": blocks,
        "scale": scale,
        "steps": steps,
        "multiple": multiple,
    }


def _waves(frequencies: Floats, shift: Floats | None = None) -> Part:
    """Return sines, then cosines, of z times frequencies, shape (d, D)."""
    offsets = np.zeros(frequencies.shape[1]) if shift is None else shift
    both = np.concatenate([offsets - np.pi / 2.0, offsets])
    columns = np.arange(len(frequencies))
    return {"columns": columns, "directions": np.hstack([frequencies] * 2), "offsets": both}


def _landmarks(model: FittedModel) -> Any:
    arrays, meta = model.arrays, model.meta
    weights = arrays["coefficients"]
    part = {
        "kind": "kernel",
        "kernel": "rbf" if meta["kernel"] == "rbf" else "laplacian",
        "columns": np.arange(arrays["landmarks"].shape[1]),
        "rows": arrays["landmarks"],
        "gammas": np.broadcast_to(arrays["gammas"], (len(arrays["landmarks"]),)).copy(),
    }
    bound = None if meta["classes"] else float(meta["label_bound"])
    return [part], weights, np.zeros(weights.shape[1]), {"clip": bound and [-bound, bound]}


def _directions(model: FittedModel) -> Any:
    arrays, meta = model.arrays, model.meta
    directions, weights = arrays["directions"], arrays["weights"] * float(meta["label_bound"])
    kept: list[int] = []
    bias, scales, start, left = np.zeros(weights.shape[1]), [], 0, len(directions)
    for size in meta["sizes"]:
        count = min(size, left)
        kept += range(start, start + count)
        scales += [np.sqrt(2.0 / count)] * count
        if size > count:  # the intercept of a single owner
            bias = bias + np.sqrt(INTERCEPT) * weights[start + count]
        start, left = start + size, left - count
    blocks = [
        {"columns": np.array(columns), "directions": directions[:, columns].T, "offsets": offsets}
        for columns, offsets in zip(meta["blocks"], arrays["offsets"], strict=True)
    ]
    part = _cosines(blocks, np.array(scales), 2.0 ** meta["phase_bits"], int(meta["multiple"]))
    return [part], weights[kept], bias, {}


def _instances(model: FittedModel) -> Any:
    arrays, meta = model.arrays, model.meta
    kernel = meta["kernel"]
    if kernel["name"] not in _KERNELS or meta["encoding"] == "counts":
        what = kernel["name"] if kernel["name"] not in _KERNELS else "counts"
        raise OptionError(
            f"there is no {what} in other formats",
            remedy=f"use --kernel {', '.join(_KERNELS)}",
            code="FK-EXPORT-KERNEL",
        )
    part = {
        "kind": "kernel",
        "kernel": kernel["name"],
        "columns": np.array(meta["used"]),
        "rows": arrays["instances"],
        "gammas": np.full(len(arrays["instances"]), float(kernel["gamma"])),
        "coef0": float(kernel["coef0"]),
        "degree": int(kernel["degree"]),
        "rounding": 2.0 ** meta["fraction_bits"],
    }
    bias = np.broadcast_to(arrays["bias"], (arrays["weights"].shape[1],)).copy()
    return [part], arrays["weights"], bias, {"votes": int(meta["votes"])}


def _linear(model: FittedModel) -> Any:
    arrays, meta = model.arrays, model.meta
    d = int(meta["columns"])
    mean, width = arrays.get("raw_mean", np.zeros(d)), arrays.get("raw_deviation", np.ones(d))
    weights, bias = arrays["weights"].T, np.asarray(arrays["bias"], np.float64)
    if not int(meta["features"]):
        weights = weights / width[:, None]
        return [{"kind": "columns"}], weights, bias - mean @ weights, {}
    widths = np.array([1.0 / np.sqrt(2.0 * float(meta["gamma"]))], "<f8").tobytes()
    count = int(meta["features"])
    drawn = gaussian_frequencies(
        widths, d, count, int(meta["feature_seed"]), "float64", "orthogonal"
    )
    drawn = drawn / width[:, None]
    waves = _waves(drawn, -mean @ drawn)
    return [_cosines([waves], np.sqrt(1.0 / count), 0.0, 1)], weights, bias, {}


def _by_kernel(values: Floats, kernels: int) -> Floats:
    """Reorder weights: of all sines, then all cosines."""
    parts = values.reshape(kernels, 2, -1, values.shape[-1])
    return parts.swapaxes(0, 1).reshape(-1, values.shape[-1])


def _dictionary(model: FittedModel) -> Any:
    arrays, meta = model.arrays, model.meta
    widths, count = arrays["bandwidths"].astype("<f8").tobytes(), int(meta["features"])
    how = (meta["seed"], meta["precision"], meta["frequency_draw"])
    drawn = gaussian_frequencies(widths, int(meta["columns"]), count, *how).astype(np.float64)
    mean = arrays["weights"].mean(axis=0)  # of the clients
    weights = (mean[:, None] * arrays["theta"]).reshape(-1, 1)
    part = _cosines([_waves(drawn)], np.sqrt(1.0 / count), 0.0, 1)
    return [part], _by_kernel(weights, len(mean)), np.array([float(meta["centre"])]), {}


def _ridges(model: FittedModel) -> Any:
    arrays, meta = model.arrays, model.meta
    d, count, centre = int(meta["columns"]), int(meta["features"]), float(meta["centre"])
    weights, parts = arrays["weights"].T, [{"kind": "columns"}]
    plain, rest, kernels = weights[:d], weights[d + 1 :], len(arrays["bandwidths"])
    if len(rest):
        widths = arrays["bandwidths"].astype("<f8").tobytes()
        drawn = gaussian_frequencies(widths, d, count, meta["seed"], "float64", "orthogonal")
        parts.append(_cosines([_waves(drawn)], np.sqrt(1.0 / count), 0.0, 1))
        rest = _by_kernel(rest, kernels)
    bias = weights[d] + centre
    return parts, np.concatenate([plain, rest]), bias, {"clip": [0.0, 1.0], "mean": True}


_FORMS: Mapping[str, Any] = {
    "landmarks": _landmarks,
    "directions": _directions,
    "instances": _instances,
    "linear": _linear,
    "dictionary": _dictionary,
    "ridges": _ridges,
}


def plain(value: Any) -> Any:
    """Convert arrays to lists for JSON; every number survives exactly."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value

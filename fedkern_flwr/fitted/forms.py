"""What whole models compute: outputs of rows, from arrays and plain values.

What the parties of a run rounded for their sums is rounded here as well, where it would be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..gram.dot_kernels import DotKernel
from ..gram.matrix import count_values, quantise
from ..groups import linear_model
from ..hybrid import fourier
from ..kernels.product import features_of, kernel_from_distances, partial_distances
from ..kernels.random_features import feature_map
from ..online import network
from ..online.ridge import all_rows
from ..secure_sum import Encoding
from ..vertical import phases

Floats = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]
Meta = Mapping[str, Any]


def landmark_kernel(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    """Return the kernel of FedCG between rows and landmarks, shape (n, m).

    A block that a row lacks is neutral: it adds no distance.
    """
    distances = np.zeros((len(x), len(arrays["landmarks"])))
    for block in meta["blocks"]:
        held = np.isfinite(x[:, block]).all(axis=1)
        places = arrays["landmarks"][:, block]
        distances[held] += partial_distances(x[np.ix_(held, block)], places, meta["kernel"])
    return kernel_from_distances(distances, arrays["gammas"])


def of_landmarks(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    """Return outputs of FedCG; numbers are within the bound of the labels, as at hospitals."""
    found = landmark_kernel(arrays, meta, x) @ arrays["coefficients"]
    bound = np.inf if meta["classes"] else float(meta["label_bound"])
    return np.asarray(np.clip(found, -bound, bound))


def of_features(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    """Return outputs of FedCG on Fourier features; numbers are within the bound of the labels."""
    phases = x @ arrays["directions"].T + arrays["offsets"]
    found = fourier.features(phases) @ arrays["coefficients"]
    bound = np.inf if meta["classes"] else float(meta["label_bound"])
    return np.asarray(np.clip(found, -bound, bound))


def with_deviations(arrays: Arrays, meta: Meta, x: Floats) -> tuple[Floats, Floats]:
    """Return outputs, and the deviations of Bayesian ridge, shape (n, k).

    The latter without columns if FedCG kept none.
    """
    form = FORMS[meta["form"]]
    if "factor" not in arrays or not len(meta["noise"]):
        return form(arrays, meta, x), np.zeros((len(x), 0))
    both = np.hstack([arrays["coefficients"], arrays["factor"]])
    found = landmark_kernel(arrays, meta, x) @ both
    outputs, spread = np.split(found, [arrays["coefficients"].shape[1]], axis=1)
    bound = float(meta["label_bound"])
    variances = np.array(meta["noise"]) * (1.0 + (spread**2).sum(axis=1, keepdims=True))
    return np.clip(outputs, -bound, bound), np.sqrt(variances)


def of_directions(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    """Return outputs of FDSKL: each party's angles are rounded, and added on the circle."""
    circle, parties = Encoding.circle(meta["phase_bits"]), len(meta["blocks"])
    directions, weights = arrays["directions"], arrays["weights"]
    total = np.zeros((len(x), len(directions)), circle.dtype)
    for block, offsets in zip(meta["blocks"], arrays["offsets"], strict=True):
        angles = x[:, block] @ directions[:, block].T + offsets
        total += circle.encode(angles.ravel(), parties, name="phases").reshape(total.shape)
    ends = np.cumsum(meta["sizes"]).tolist()
    found = np.zeros((len(x), weights.shape[1]))
    for start, end in zip([0, *ends], ends, strict=False):
        part = slice(start, end)
        found += phases.outputs(total[:, part], weights[part], meta["multiple"])
    return found * float(meta["label_bound"])


def of_instances(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    """Return outputs of a machine on a kernel of Secure Gram, of instances that support it.

    Raises
    ------
    TableError
        A row has values that the parties of the run could not have summed.
    """
    bits, bound = meta["fraction_bits"], meta["bound"]
    x = x[:, meta["used"]]
    counts = meta["encoding"] == "counts"
    whole = count_values(x, bound) if counts else quantise(x, bits, bound)
    rows, known = whole * 2.0**-bits, arrays["instances"]
    kernel = DotKernel(**{**meta["kernel"], "coefficients": tuple(meta["kernel"]["coefficients"])})
    new, old = (np.einsum("ij,ij->i", part, part) for part in (rows, known))
    matrix = kernel.block(rows @ known.T, new, old, meta["rows"])
    found = np.asarray(matrix @ arrays["weights"] + arrays["bias"])
    return votes(found, meta["votes"]) if meta["votes"] else found


def votes(pairs: Floats, classes: int) -> Floats:
    """Return one output per class from those of all pairs of classes, as scikit-learn does.

    Each pair votes for one of the two; what the outputs add up to decides among equal votes.
    """
    first, second = np.triu_indices(classes, 1)
    sums, count = np.zeros((2, len(pairs), classes))
    for k, (i, j) in enumerate(zip(first, second, strict=True)):
        found = pairs[:, k]
        count[np.arange(len(pairs)), np.where(found >= 0.0, i, j)] += 1.0
        sums[:, i] += found
        sums[:, j] -= found
    return np.asarray(count + sums / (3.0 * (np.abs(sums) + 1.0)))


def of_dictionary(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    """Return outputs of an online method: the mean over clients with weights of their own."""
    bandwidths = arrays["bandwidths"].astype("<f8").tobytes()
    numbers = meta["features"], meta["seed"], meta["precision"], meta["frequency_draw"]
    features = feature_map(bandwidths, x.shape[1], *numbers)(x)
    kernels = np.vecdot(features, arrays["theta"].astype(meta["precision"]))
    return np.asarray((kernels @ arrays["weights"].T).mean(axis=1, keepdims=True) + meta["centre"])


def of_ridges(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    """Return outputs of POF-RLS: the mean over clients with mixtures of their own."""
    widths, centre = arrays["bandwidths"].astype("<f8").tobytes(), meta["centre"]
    rows = all_rows(x, widths, meta["features"], meta["seed"])
    found = (rows @ arrays["weights"].T).clip(-centre, 1.0 - centre)
    return np.asarray(found.mean(axis=1, keepdims=True) + centre)


def of_lone_dictionaries(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    """Return outputs of local only: the mean over clients, each with parameters of its own."""
    bandwidths = arrays["bandwidths"].astype("<f8").tobytes()
    numbers = meta["features"], meta["seed"], meta["precision"], meta["frequency_draw"]
    features = feature_map(bandwidths, x.shape[1], *numbers)(x).reshape(len(x), -1)
    found = features @ arrays["weights"].T
    return np.asarray(found.mean(axis=1, keepdims=True) + meta["centre"])


def of_networks(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    """Return outputs of PerFedAvg: the mean over clients, each with its adapted network."""
    inputs = network.project(x, meta["layers"][0], meta["seed"])
    found = [network.predict(own, meta["layers"], inputs) for own in arrays["weights"]]
    return np.asarray(np.mean(found, axis=0)[:, None])


def of_components(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    """Return projections of kernel PCA."""
    numbers = {name: meta[name] for name in ("bandwidth", "features", "seed")}
    return np.asarray((features_of(x, **numbers) - arrays["mean"]) @ arrays["components"].T)


FORMS: Mapping[str, Callable[[Arrays, Meta, Floats], Floats]] = {
    "landmarks": of_landmarks,
    "fourier": of_features,
    "directions": of_directions,
    "instances": of_instances,
    "linear": linear_model.outputs,
    "dictionary": of_dictionary,
    "ridges": of_ridges,
    "lone-dictionaries": of_lone_dictionaries,
    "networks": of_networks,
    "components": of_components,
}

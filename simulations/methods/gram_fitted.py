"""The whole model of a simulated run of Secure Gram: a machine, and the rows that support it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.gram.values import count_values, quantise

from ...strategies import SecureGram
from .gram_data import InstanceData
from .gram_learner import Machine, choose_machine
from .new_rows import Parts


def whole_model(
    strategy: SecureGram,
    prepared: InstanceData,
    config: Mapping[str, Any],
    chosen: Mapping[str, Any],
) -> Parts | None:
    """Train the machine of a run on its matrix; return it with the rows that support it.

    ``chosen`` are metrics of the run: width and cost of its machine, if rows were held out to judge
    one.
    """
    part, counts = prepared.split(strategy.seed or 0), strategy.encoding == "counts"
    train = part.train[strategy.items_]
    gram, y = strategy.linear_[np.ix_(train, train)], part.y[strategy.items_][train]
    if len(np.unique(y)) < 2:
        return None
    if "cost" in chosen:
        kernel = strategy.dot_kernel_
        kernel = replace(kernel, gamma=chosen.get("gamma", kernel.gamma))
        learner = config.get("learner", "svc")
        weighed = bool(config.get("class_weight"))
        machine = Machine(kernel, strategy.rows_, learner, chosen["cost"], part.classes, weighed)
    else:
        machine = train_machine(strategy, gram, y, part.classes, config, strategy.seed or 0)
    weights, bias = machine.fit(machine.kernel.matrix(gram, machine.rows), y)
    used = np.concatenate([part.parts[p] for p in strategy.survivors_])
    bits, bound = strategy.fraction_bits, strategy.bound
    supports = (weights != 0.0).any(axis=1)
    x = part.features(strategy.encoding)[np.ix_(strategy.items_[train][supports], used)]
    whole = count_values(x, bound) if counts else quantise(x, bits, bound)
    arrays = {"instances": whole * 2.0**-bits, "weights": weights[supports], "bias": bias}
    own = {
        "encoded": not counts,
        "encoding": strategy.encoding,
        "bound": bound,
        "fraction_bits": bits,
        "used": used.tolist(),
        "kernel": asdict(machine.kernel),
        "rows": machine.rows,
        "votes": len(part.classes) if machine.learner == "svc" and len(part.classes) > 2 else 0,
    }
    return Parts("instances", arrays, own)


def train_machine(
    strategy: SecureGram,
    gram: NDArray[np.float64],
    y: NDArray[np.float64],
    classes: tuple[float, ...],
    config: Mapping[str, Any],
    seed: int,
) -> Machine:
    """Choose the machine that a run is asked for on the matrix of the rows to learn from."""
    return choose_machine(
        gram,
        strategy.rows_,
        y,
        strategy.dot_kernel_,
        classes,
        learner=config.get("learner", "svc"),
        gamma=strategy.gamma,
        cost=config.get("cost"),
        seed=seed,
        balanced=bool(config.get("class_weight")),
    )

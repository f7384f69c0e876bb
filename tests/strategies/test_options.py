"""Options of the strategies are checked at construction, with the choices in the text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedkern_flwr.errors import OptionError
from fedkern_flwr.strategies import (
    EMKOFL,
    OFSKL,
    POFMKL,
    VMKOFL,
    LocalOnly,
    OFMKLAvg,
    PerFedAvg,
)

METHODS: list[type[Any]] = [POFMKL, OFMKLAvg, OFSKL, VMKOFL, EMKOFL, PerFedAvg, LocalOnly]
KERNEL_METHODS = [m for m in METHODS if m is not PerFedAvg]
WRONG: list[tuple[type[Any], dict[str, Any], str]] = [
    *[(m, {"step_size": "fast"}, "step_size is 'fast'; choose one of paper, ad") for m in METHODS],
    *[(m, {"min_clients": 0}, "min_clients is 0; use at least 1") for m in METHODS],
    *[(m, {"max_missed": 0}, "max_missed is 0; use at least 1") for m in METHODS],
    *[(m, {"checkpoint_every": 0}, "checkpoint_every is 0; use at least 1") for m in METHODS],
    *[(m, {"samples_per_round": 0}, "samples_per_round is 0; use at least 1") for m in METHODS],
    *[(m, {"resume": True}, "resume without a checkpoint; name the chec") for m in METHODS],
    *[(m, {"features": 0}, "features is 0; use at least 1") for m in KERNEL_METHODS],
    *[
        (m, {"precision": "half"}, "precision is 'half'; choose one of float32, float64")
        for m in KERNEL_METHODS
    ],
    *[
        (m, {"frequency_draw": "sobol"}, "'sobol'; choose one of independent, orthogonal")
        for m in KERNEL_METHODS
    ],
    *[(m, {"regularization": -1.0}, "regularization is -1.0; use at") for m in KERNEL_METHODS],
    *[(m, {"regularization": np.nan}, "regularization is nan; use at") for m in KERNEL_METHODS],
    *[(m, {"kernels": 0}, "kernels is 0; use at least 1") for m in (POFMKL, VMKOFL, LocalOnly)],
    (
        POFMKL,
        {"kernels": 6, "kernels_per_round": 7},
        "kernels_per_round is 7 but there are 6 kernels; use at most 6",
    ),
    (POFMKL, {"kernels_per_round": 0}, "kernels_per_round is 0; use at least 1"),
    (POFMKL, {"exploration": 0.0}, r"exploration is 0.0; use a value in \(0, 1\]"),
    (POFMKL, {"exploration": 1.1}, r"exploration is 1.1; use a value in \(0, 1\]"),
    (POFMKL, {"selection": "best"}, "selection is 'best'; choose one of bins, subset"),
    (VMKOFL, {"loss_aggregation": "max"}, "loss_aggregation is 'max'; choose one of mean, sum"),
    (EMKOFL, {"loss_aggregation": "max"}, "loss_aggregation is 'max'; choose one of mean, sum"),
    (OFSKL, {"bandwidth": 0.0}, "bandwidth is 0.0; use a positive number"),
    (PerFedAvg, {"inner_step": -0.1}, "inner_step is -0.1; use at least 0"),
]


@pytest.mark.parametrize(("method", "wrong", "text"), WRONG)
def test_wrong_options_are_refused_at_construction(
    method: type[Any], wrong: dict[str, Any], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        method(**wrong)

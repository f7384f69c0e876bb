"""Options of the strategies are checked at construction, each by itself and together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.errors import OptionError
from fedkern_flwr.strategies import (
    EMKOFL,
    FDSKL,
    OFSKL,
    POFMKL,
    VMKOFL,
    ColumnRanges,
    FedCFK,
    FedCG,
    HierarchicalSVM,
    LocalOnly,
    OFMKLAvg,
    PerFedAvg,
    SecureGram,
)

Table = dict[str, Any]
ONLINE: list[type[Any]] = [POFMKL, OFMKLAvg, OFSKL, VMKOFL, EMKOFL, PerFedAvg, LocalOnly]
WITH_KERNELS = [m for m in ONLINE if m is not PerFedAvg]
#: Values that cannot be, of options by themselves; texts are refused where there are choices.
_RUN: dict[str, Any] = {"min_clients": [0], "max_missed": [0], "samples_per_round": [0]}
_KERNELS: dict[str, Any] = {"features": [0], "regularization": [-1.0, np.nan]}
_KERNELS |= {"precision": ["half"], "frequency_draw": ["sobol"]}
_GROUPED = ("partition", "model", "architecture", "scale", "rho_schedule", "lost_groups", "missing")
WRONG: dict[type[Any], dict[str, Sequence[Any]]] = {
    **{m: {"step_size": ["fast"], "checkpoint_every": [0], **_RUN} for m in ONLINE},
    HierarchicalSVM: {
        **{name: [0.0, -1.0, np.inf, np.nan] for name in ("C", "rho", "sigma", "tolerance")},
        **{"bound": [0], "relaxation": [2.0, 0.9], "staleness": [-1], "checkpoint_every": [0]},
        **dict.fromkeys(_GROUPED, ("other",)),
        "attempts": [0],
    },
    SecureGram: {
        **{"kernel": ["laplacian"], "encoding": ["text"], "cohorts": [0]},
        **{"attempts": [0], "participation": [0.0, 1.1], "bound": [0], "min_cohort": [1]},
        **{"min_support": [-1], "rows_per_item": [-1]},
    },
    FedCFK: {"regularization": [0.0, -1.0]},
    ColumnRanges: {
        **{"deviations": [0.0, np.nan], "bound": [-1.0, np.inf]},
        **{"attempts": [0], "min_cohort": [1]},
    },
    FedCG: {
        **{"landmarks": [0], "attempts": [0], "gamma": [0.0], "regularization": [0.0]},
        **{"tolerance": [0.0, 1.0], "distance_bits": [16], "missing": ["mean"]},
        **dict.fromkeys(("sampling", "kernel", "penalty", "solver", "init"), ("Q",)),
    },
    FDSKL: {
        **dict.fromkeys(("loss", "kernel", "schedule", "missing"), ("other",)),
        **{"features": [0], "attempts": [0], "phase_bits": [8], "gamma": [-1.0]},
        **{"regularization": [0.0]},
    },
}
for _method in WITH_KERNELS:
    WRONG[_method] |= _KERNELS
for _method in (POFMKL, VMKOFL, LocalOnly):
    WRONG[_method] |= {"kernels": [0]}
WRONG[POFMKL] |= {"kernels_per_round": [0], "exploration": [0.0, 1.1], "selection": ["best"]}
WRONG[VMKOFL] |= {"loss_aggregation": ["max"]}
WRONG[EMKOFL] |= {"loss_aggregation": ["max"]}
WRONG[OFSKL] |= {"bandwidth": [0.0]}
WRONG[PerFedAvg] |= {"inner_step": [-0.1]}
ALONE = [
    (method, name, value)
    for method, names in WRONG.items()
    for name, values in names.items()
    for value in values
]


@pytest.mark.parametrize(("method", "name", "value"), ALONE)
def test_wrong_options_are_refused_at_construction(
    method: type[Any], name: str, value: Any
) -> None:
    choice = isinstance(value, str)
    with pytest.raises(OptionError) as caught:
        method(**{name: value})
    problem, _, remedy = str(caught.value).partition("; ")
    assert problem == f"{name} is {value if not choice else repr(value)}" or (
        problem == f"{name} is {float(value)}"
    )
    assert remedy.startswith(("choose one of",) if choice else ("use ", "declare "))
    assert "\n" not in remedy


_VERTICAL: Table = {"partition": "vertical"}
_COLUMNS_NEED_ALL = "a vertical split needs every group in every iteration; leave staleness and lo"
_FOR_AGENTS: Table = {
    "staleness": {"staleness": 1},
    "step_sizes": {"step_sizes": (1.0,)},
    "sigma": {"sigma": 1.0},
    "lost_groups leave-out": {"lost_groups": "leave-out"},
}
_STREAMING: Table = {"directions": 3, "batch": 3, "step": 0.5, "evaluate_every": 3}
_STREAMING |= {"step_schedule": "constant"}
_STREAM: Table = {"schedule": "streaming"}
_NO_GCV = "tune gcv is for normal equations and penalty ridge"
_PENALTIES: Table = {"rho": 1.0, "sigma": 1.0, "rho_schedule": "rising", "relaxation": 1.5}
#: What does not go together, or means nothing beside the others.
TOGETHER: list[tuple[type[Any], Table, str]] = [
    *[
        (m, {"resume": True}, "resume without a checkpoint; name the chec")
        for m in WRONG
        if m is not ColumnRanges
    ],
    *[
        (FedCG, options, text)
        for options, text in [
            (
                {"preconditioner_rank": 101, "solver": "cg"},
                ".*rank is 101; use 0 to 100 .landmarks",
            ),
            ({"preconditioner_rank": -1, "solver": "cg"}, ".*rank is -1; use 0 to 100"),
            ({"preconditioner_rank": 5}, "preconditioner_rank is for solver cg; add solver cg, or"),
            ({"init": "random"}, "init is for solver cg; add solver cg, or leave it out"),
            (
                {"penalty": "rkhs", "landmark_gamma": True},
                "with a width per landmark the kernel of",
            ),
            (
                {"tune": "gcv", "gamma": 1.0, "regularization": 1.0},
                "gamma and regularization are gi",
            ),
            ({"tune": "gcv", "landmark_gamma": True}, "gamma and regularization are given, and"),
            ({"tune": "gcv", "solver": "cg"}, _NO_GCV),
            ({"tune": "gcv", "penalty": "rkhs"}, _NO_GCV),
        ]
    ],
    *[
        (FDSKL, options, text)
        for options, text in [
            *(
                ({name: v}, f"{name} is for schedule streaming; add")
                for name, v in _STREAMING.items()
            ),
            *(
                ({**_STREAM, name: 0}, f"{name} is 0(.0)?; use ")
                for name in ("batch", "directions", "step")
            ),
            ({**_STREAM, "step": np.inf}, "step is inf"),
            ({**_STREAM, "features": 30}, "features is for schedule one-shot; l"),
            (
                {**_STREAM, "step": 2.0, "regularization": 0.5},
                "step 2 times regularization 0.5 is not below 1; use a smaller step",
            ),
            ({**_STREAM, "step": 2e4}, "step 20000 times regularization"),
        ]
    ],
    (
        POFMKL,
        {"kernels": 6, "kernels_per_round": 7},
        "kernels_per_round is 7 but there are 6 kernels; use at most 6",
    ),
    *[
        (HierarchicalSVM, options, text)
        for options, text in [
            ({"step_sizes": (1.0, 0.0)}, "step size 1 is 0.0; use a positive number"),
            ({"model": "rbf", "features": 0}, "features is 0; "),
            ({"model": "rbf", "gamma": 0.0}, "gamma is 0.0; "),
            ({"features": 5}, "features is for model rbf; add model rbf, or leave"),
            ({"gamma": 0.5, "model": "ridge"}, "gamma is for model rbf; add model"),
            *[
                ({**_VERTICAL, name: value}, f"{name} has no meaning in a vertical split; leave it")
                for name, value in {**_PENALTIES, "step_sizes": (1.0, 1.0)}.items()
            ],
            ({**_VERTICAL, "model": "rbf"}, "model rbf needs all columns of a row; use fdskl for"),
            (
                {**_VERTICAL, "architecture": "centralised"},
                "architecture centralised is for horizontal splits; use architecture hierarchical",
            ),
            ({**_VERTICAL, "staleness": 1}, _COLUMNS_NEED_ALL),
            ({**_VERTICAL, "lost_groups": "leave-out"}, _COLUMNS_NEED_ALL),
            *[
                (
                    {"architecture": "centralised", **options},
                    f"{name} needs agents; use architecture hierarchical",
                )
                for name, options in _FOR_AGENTS.items()
            ],
            ({"rho": 1.0, "step_sizes": (1.0, 2.0)}, "rho and step_sizes are both given; give one"),
            (
                {"rho_schedule": "balanced", "staleness": 1},
                "groups that do not wait have no residuals in common; use another rho_schedule",
            ),
        ]
    ],
    *[
        (SecureGram, options, text)
        for options, text in [
            (
                {"min_support": 5, "encoding": "fixed-point"},
                "min_support is for encoding counts: real features have no support; leave it out",
            ),
            (
                {"rows_per_item": 2, "encoding": "fixed-point"},
                "rows_per_item is for encoding counts",
            ),
            ({"fraction_bits": 4}, "encoding counts has whole numbers"),
            ({"gamma": 1.0}, "gamma is not for kernel linear; leave it out"),
            ({"kernel": "rbf", "degree": 2}, "degree is not for kernel rbf"),
            ({"kernel": "rbf", "coef0": 1.0}, "coef0 is not for kernel rbf"),
            ({"kernel": "poly", "coefficients": [1.0]}, "coefficients is not for k"),
            ({"kernel": "series"}, "the series has no coefficients"),
            ({"kernel": "rbf", "gamma": -1.0}, "gamma is -1.0; use a positive number"),
            ({"kernel": "poly", "degree": 0}, "degree is 0"),
            (
                {"kernel": "conjunctive", "bound": 5},
                "kernel conjunctive is for zeros and ones; use encoding counts with bound 1",
            ),
            (
                {"drop_outs": False, "threshold": 2},
                "a threshold is given, and all must answer; lea",
            ),
        ]
    ],
    (FedCFK, {"gamma": 1.0}, "gamma is not for kernel cosine"),
    # the kernel is sent as counts: real numbers, negative ones above all, would be others
    *[
        (FedCFK, {"encoding": "fixed-point", **more}, "recommendations are made from zeros and one")
        for more in ({"kernel": "cosine"}, {"kernel": "linear"})
    ],
]


@pytest.mark.parametrize(("method", "options", "text"), TOGETHER)
def test_options_that_do_not_go_together_are_refused_in_one_line(
    method: type[Any], options: Table, text: str
) -> None:
    with pytest.raises(OptionError, match=f"^{text}") as caught:
        method(**options)
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)

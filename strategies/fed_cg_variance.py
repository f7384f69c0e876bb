"""FedCG's variance of Bayesian ridge, from the normal equations that the server has anyway."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from fedkern_flwr.errors import OptionError
from fedkern_flwr.judging.judges import Judges
from fedkern_flwr.method import option
from fedkern_flwr.strategy import Arrays

from .fed_cg_system import HybridSystem


class Variance(Judges):
    """The part of FedCG that predicts variances, see its option ``variance``.

    For s^2 (1 + k^T (K^T K + lambda I)^-1 k) the model gets the inverse of the Cholesky factor of
    the matrix, and s^2, the mean squared error on held-out rows.
    """

    variance: bool = option(
        False,
        "Of a regression: predict the variance of Bayesian ridge as well. Far from all landmarks "
        "it falls to that of held-out errors. Who has the model, and hospitals that predict with "
        "it, can then compute K^T K; of two hospitals each has the other's.",
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not self.variance:
            return
        for name, wanted in (("chosen_solver", "normal-equations"), ("penalty", "ridge")):
            if getattr(self, name) != wanted:
                raise OptionError(
                    f"there is no variance with {name.removeprefix('chosen_')} "
                    f"{getattr(self, name)}",
                    remedy=f"use {wanted}, or leave variance out",
                )

    def _reset(self) -> None:
        super()._reset()
        self._factor: NDArray[np.float64] = np.zeros((0, 0))

    def keep_factor(self, system: HybridSystem, regularization: float) -> Arrays:
        """Keep the factor of a system that is solved; return it as an array of the checkpoint."""
        if not self.variance or system.first.classes or system.gram is None:
            return {}
        lower = linalg.cholesky(system.gram + regularization * np.eye(len(system.gram)), lower=True)
        inverse = linalg.solve_triangular(lower, np.eye(len(lower)), lower=True)
        self._factor = np.ascontiguousarray(inverse.T)
        return self.factor_arrays()

    def take_factor(self, arrays: Arrays) -> None:
        """Take the factor from a checkpoint, if it has one."""
        self._factor = arrays.get("factor", self._factor)

    def factor_arrays(self) -> Arrays:
        """Return the factor, if there is one, for the model."""
        return {"factor": self._factor} if self._factor.size else {}

    def noise(self) -> list[float]:
        """Return s^2 of each output, of no model without a factor or held-out rows."""
        return self.judged_.squares() if self.judged_ is not None and self._factor.size else []

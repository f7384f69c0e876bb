"""What methods share that judge their models on held-out rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from ..method import Method
from ..options import option
from ..strategy import logger
from .counts import Yardstick
from .figures import Judged


class Judges(Method):
    """A method whose parties count how good its model is on rows that they hold out.

    Attributes
    ----------
    judged_ : Judged or None
        What they counted.
    """

    level: float = option(
        0.9,
        "Probability with which a predicted interval holds the label, or a set the class.",
        above=0.0,
        below=1.0,
        of_model=False,
    )

    def _reset(self) -> None:
        super()._reset()
        self.judged_: Judged | None = None

    def judge_by(self, yard: Yardstick, total: NDArray[np.float64]) -> dict[str, float]:
        """Return the metrics of held-out rows from a sum of counts; remember it."""
        self.judged_ = Judged(yard, total, self.level)
        return self.judged_.metrics()

    def start(self, *arguments: Any, **named: Any) -> Result:
        """Run the method; warn if its model is of no use."""
        found = super().start(*arguments, **named)
        if self.judged_ is not None and (simple := self.judged_.useless):
            text = "%s: held-out rows are predicted no better than by %s; %s"
            logger.warning(text, self.title, simple, self.advice)
        return found

    @property
    def advice(self) -> str:
        """What to do where something as simple as a constant predicts as well."""
        return "check the label and the columns, or use more rows"

    def calibration_numbers(self) -> list[float]:
        """Return what turns outputs into probabilities and intervals, for the model."""
        found = self.judged_.calibration if self.judged_ is not None else None
        return found.numbers() if found is not None else []

    def result(self) -> dict[str, Any]:
        """Return the result of the last run, with what was counted on held-out rows."""
        found, judged = super().result(), self.judged_
        if judged is None:
            return found
        simple = {"no_better_than": judged.useless} if judged.useless else {}
        return {**found, "held_out": judged.details(), **simple}

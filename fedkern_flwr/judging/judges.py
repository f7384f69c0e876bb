"""Share what methods need to evaluate models on held-out rows."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from ..errors import OptionError
from ..method import Method
from ..nodes import logger
from ..options import option
from .figures import Judged, Yardstick

#: What to do where classes are never found.
FIND_RARE = "if they are rare, --class-weight balanced (class_weight) finds more of them"


class Judges(Method):
    """A method with parties that evaluate its model on held-out rows; see ``judged_``."""

    class_weight: Literal["balanced"] | None = option(
        None, "Balanced: weigh rows of rare classes more, as scikit-learn does."
    )
    level: float = option(
        0.9,
        "Target coverage of predicted intervals and sets.",
        above=0.0,
        below=1.0,
        of_model=False,
    )

    #: Whether the other options of a method with ``class_weight`` allow it.
    may_weigh: bool = True

    def _reset(self) -> None:
        super()._reset()
        self.judged_: Judged | None = None

    def judge_by(self, yard: Yardstick, total: NDArray[np.float64]) -> dict[str, float]:
        """Return the metrics from a sum of counts, and keep it."""
        self.judged_ = Judged(yard, total, self.level, self.class_weight is not None)
        return self.judged_.metrics()

    def start(self, *arguments: Any, **named: Any) -> Result:
        """Run the method; warn if its model is useless."""
        found = super().start(*arguments, **named)
        judged = self.judged_
        if judged is not None and (simple := judged.useless):
            text = "%s: held-out rows are predicted no better than by %s; %s"
            logger.warning(text, self.title, simple, self.advice)
        if judged is not None and (missed := judged.never_found):
            text = "%s: %d of %d classes are found in no held-out row; %s"
            logger.warning(text, self.title, missed, judged.yard.classes, self.advice_of_classes)
        return found

    @property
    def advice(self) -> str:
        """What to do if a constant predicts as well."""
        return "check the label and the columns, or use more rows"

    @property
    def advice_of_classes(self) -> str:
        """What to do if rare classes are never found."""
        if self.class_weight is None and self.may_weigh:
            return FIND_RARE
        return "they need more rows"

    def check_weighted(self, classes: int) -> None:
        if self.class_weight and not classes:
            raise OptionError("class_weight is for classes", code="FK-WEIGHTS-NUMBERS")

    def calibration_numbers(self) -> list[float]:
        """Return the calibration, for the model."""
        found = self.judged_.calibration if self.judged_ is not None else None
        return found.numbers() if found is not None else []

    def result(self) -> dict[str, Any]:
        """Return the result of the last run, with the evaluation."""
        found, judged = super().result(), self.judged_
        if judged is None:
            return found
        return {**found, "held_out": judged.details(), **judged.warnings()}

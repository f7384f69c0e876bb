"""Options of FDSKL, and what they stand for by default."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from fedkern_flwr.errors import OptionError
from fedkern_flwr.judging.judges import Weighted
from fedkern_flwr.kernels.frequencies import Frequencies, Kernel
from fedkern_flwr.method import option
from fedkern_flwr.solvers.losses import Loss
from fedkern_flwr.vertical.doubly_stochastic import StepSchedule
from fedkern_flwr.vertical.parties import MissingRows, VerticalPlan
from fedkern_flwr.vertical.phase_tuning import REGULARIZATIONS, REGULARIZATIONS_OF_NUMBERS

Schedule = Literal["one-shot", "streaming"]
Topology = Literal["star", "tree"]

#: Steps that learn fast and stayed stable, measured with r = 16 on two data sets.
_STEP: dict[str, float] = {"square": 0.5, "logistic": 4.0, "smooth-hinge": 2.0}
#: Defaults of options of one schedule alone.
_OWN: dict[str, dict[str, Any]] = {
    "one-shot": {"features": None},
    "streaming": {
        "directions": 16,
        "batch": 64,
        "step": None,
        "step_schedule": "constant",
        "evaluate_every": None,
    },
}


class VerticalOptions(Weighted):
    """Base class of FDSKL: its options."""

    fixed: ClassVar[frozenset[str]] = frozenset(
        {"min_clients", "max_missed", "threshold", "min_cohort"}
    )

    schedule: Schedule = option("one-shot", "All phases at once, or an iteration per exchange.")
    features: int | None = option(
        None, "Of one-shot: R, directions in all, by default 2000, of numbers 1000.", least=1
    )
    directions: int | None = option(
        None,
        "Of streaming: r, new directions per iteration, by default 16; 1 is the paper's.",
        least=1,
    )
    batch: int | None = option(
        None, "Of streaming: B, rows per iteration, by default 64; 1 is the paper's.", least=1
    )
    step: float | None = option(
        None,
        "Of streaming: gamma, by default 0.5 for the square loss, 4 for logistic and 2 for smooth "
        "hinge, and r / 16 of that with fewer than 16 directions; with one active party the last "
        "model is then solved on the phases that it has.",
        above=0.0,
    )
    step_schedule: StepSchedule | None = option(
        None,
        "Of streaming: gamma_t = gamma, which is the default, or gamma / (1 + gamma lambda t).",
    )
    loss: Loss | None = option(
        None,
        "Loss of each output (Table 1), by default smooth hinge for classes and square for "
        "numbers.",
    )
    kernel: Kernel = option("rbf", "exp(-gamma d) of squared Euclidean or of absolute distances d.")
    gamma: float | None = option(
        None,
        "Width; by default chosen by cross-validation at the active party, in streaming if it "
        "solves the last model; else 1 / number of columns.",
        above=0.0,
    )
    regularization: float | None = option(
        None,
        "lambda; by default chosen by cross-validation, in streaming if the last model is solved; "
        "else 1e-4.",
        above=0.0,
    )
    intercept: bool = option(
        True,
        "Of one-shot: add a constant to the kernel of classes where cross-validation chooses the "
        "width.",
    )
    frequencies: Frequencies = option(
        "private",
        "Each party draws its part of the directions from a secret of its own, or all from a seed "
        "that everybody knows (the paper's mode).",
    )
    phase_bits: int | None = option(
        None,
        "Bits of a phase that travels, 16 or 32; by default 16, of numbers in one-shot 32.",
    )
    topology: Topology = option(
        "star", "One masked sum, or the paper's two trees with real-valued masks."
    )
    missing: MissingRows = option(
        "error", "Rows that some party does not hold: refuse the run, or leave them out."
    )
    evaluate_every: int | None = option(
        None,
        "Of streaming: iterations from one evaluation on held-out rows to the next; by default "
        "only the last model is evaluated.",
        least=1,
        of_model=False,
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.phase_bits not in (None, 16, 32):
            raise OptionError(f"phase_bits is {self.phase_bits}", remedy="use 16 or 32")
        self._check_schedule()
        self._descends = self.step is not None or self.step_schedule is not None
        for name, value in {**_OWN["one-shot"], **_OWN["streaming"]}.items():
            setattr(self, name, value if getattr(self, name) is None else getattr(self, name))
        largest, shrinks = self.chosen_step, self.chosen_regularization
        if self.schedule == "streaming" and largest * shrinks >= 1.0:
            raise OptionError(
                f"step {largest:g} times regularization {shrinks:g} is not below 1",
                remedy="use a smaller step",
            )

    def _check_schedule(self) -> None:
        if self.schedule == "streaming" and self.features is not None:
            raise OptionError(
                "features is for schedule one-shot",
                remedy="leave it out: streaming makes rounds times directions",
            )
        if self.schedule == "streaming" and self.class_weight:
            raise OptionError("class_weight is for schedule one-shot", remedy="leave it out")
        for name in _OWN["streaming"]:
            if self.schedule == "one-shot" and getattr(self, name) is not None:
                raise OptionError(
                    f"{name} is for schedule streaming",
                    remedy="add schedule streaming, or leave it out",
                )

    def _reset(self) -> None:
        super()._reset()
        self.plan_ = VerticalPlan((), (), {}, {}, {})
        self.classes_ = 0
        self.leaders: tuple[int, ...] = ()

    @property
    def chosen_loss(self) -> Loss:
        """The loss, which depends on the labels by default."""
        return self.loss or ("smooth-hinge" if self.classes_ else "square")

    @property
    def learns_numbers(self) -> bool:
        """Whether a model of numbers is solved at once, which is as precise as its phases."""
        return self.schedule == "one-shot" and not self.classes_

    @property
    def solves(self) -> bool:
        """Whether streaming ends with a solution on the phases at hand: not in the paper's mode."""
        fixed = self._descends or 1 in (self.directions, self.batch) or self.topology == "tree"
        return self.schedule == "streaming" and not fixed and len(self.plan_.actives) == 1

    @property
    def chosen_bits(self) -> int:
        """Bits of a phase."""
        return self.phase_bits or (32 if self.learns_numbers else 16)

    @property
    def chosen_features(self) -> int:
        """R of one-shot: 4 kB of phases of a row by default, whatever their bits."""
        return self.features or (1000 if self.learns_numbers else 2000)

    @property
    def has_intercept(self) -> bool:
        """Whether a constant is added to the kernel."""
        chosen = self.schedule == "one-shot" and self.gamma is None
        return self.intercept and chosen and self.classes_ > 0

    @property
    def tried_regularizations(self) -> tuple[float, ...]:
        """Lambda to choose from in one-shot."""
        if self.regularization is not None:
            return (self.regularization,)
        exact = self.learns_numbers and self.chosen_bits == 32
        return REGULARIZATIONS_OF_NUMBERS if exact else REGULARIZATIONS

    @property
    def chosen_regularization(self) -> float:
        """Lambda of streaming."""
        return 1e-4 if self.regularization is None else self.regularization

    @property
    def chosen_step(self) -> float:
        """Gamma of streaming; fewer new directions are noisier and stand smaller steps."""
        if self.step is not None:
            return self.step
        known = self.chosen_loss if self.plan_.actives else self.loss or "smooth-hinge"
        return _STEP[known] * min(1.0, (self.directions or 0) / 16.0)

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        other = _OWN["streaming" if self.schedule == "one-shot" else "one-shot"]
        return {name: value for name, value in super().options().items() if name not in other}

    @property
    def may_weigh(self) -> bool:
        """Whether rows of classes may be weighed: one active party has all of them."""
        return self.schedule == "one-shot"

    @property
    def advice(self) -> str:
        """What to do where something as simple as a constant predicts as well."""
        if self.schedule == "one-shot":
            return super().advice
        smaller = "" if self.solves else "a smaller --step or "
        return f"it has not converged: try {smaller}more --rounds"

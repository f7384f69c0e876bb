"""Online methods with random features of a dictionary of kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError
from fedkern_flwr.kernels import bandwidth_dictionary
from fedkern_flwr.online import (
    CENTRE,
    StepSize,
    check_choice,
    place_frequencies,
    shared_frequencies,
    step_rule,
)
from fedkern_flwr.random_features import FrequencyDraw, Precision
from fedkern_flwr.strategy import Arrays, at_least
from fedkern_flwr.wire import online as wire

from .online import Floats, OnlineStrategy, Report, check_count


class KernelOnlineStrategy(OnlineStrategy[Report]):
    """Base class of the online methods with random features of a dictionary of kernels.

    Parameters
    ----------
    kernels : int
        N, kernels in the dictionary; not used when ``bandwidths`` are given.
    features : int
        D, random frequencies per kernel.
    regularization : float (default: 1e-3)
        lambda, weight of the squared norm of the parameters in the loss.
    precision : {"float32", "float64"} (default: "float32")
        Arithmetic of the features and of what travels; the server sums in float64.
    frequency_draw : {"independent", "orthogonal"}, optional
        How random frequencies are drawn; by default ``independent`` with the paper's step size,
        else ``orthogonal``, which estimates the kernels with less variance.
    bandwidths : sequence of float, optional
        Bandwidths of the kernels, by default the paper's dictionary.
    frequencies_per_round : int, "all" or "auto" (default: "auto")
        Frequencies, of all kernels together, whose gradients are sent: all clients send those of
        the same ones, drawn publicly each round. With auto all in plain runs, and in secure ones as
        many as the rule of counting allows.
    **common
        Options of :class:`OnlineStrategy`.

    Attributes
    ----------
    centre : float
        What the model predicts before it has learned anything: 0 with the paper's step size, else
        1/2, the middle of the labels' range.
    """

    def __init__(
        self,
        *,
        kernels: int,
        features: int,
        regularization: float = 1e-3,
        precision: Precision = "float32",
        frequency_draw: FrequencyDraw | None = None,
        bandwidths: Iterable[float] | None = None,
        frequencies_per_round: int | Literal["all", "auto"] = "auto",
        **common: Any,
    ) -> None:
        super().__init__(**common)
        at_least("kernels", kernels, 1)
        at_least("features", features, 1)
        at_least("regularization", regularization, 0.0)
        check_choice("precision", precision, ("float32", "float64"))
        check_count("frequencies_per_round", frequencies_per_round, ("all", "auto"))
        self.frequencies_per_round = frequencies_per_round
        self.centre = centre(self.step_size)
        self.frequency_draw = resolve_draw(frequency_draw, self.step_size)
        self.bandwidths = (
            bandwidth_dictionary(kernels)
            if bandwidths is None
            else np.array(list(bandwidths), np.float64)
        )
        if not self.bandwidths.size or not np.all((self.bandwidths > 0) & (self.bandwidths < 1e9)):
            raise OptionError("bandwidths are missing or not positive", remedy="give numbers > 0")
        self.kernels, self.features = self.bandwidths.size, features
        self.regularization, self.precision = regularization, precision
        self.theta_ = np.zeros((0, 0))
        self._frequencies = 0  # of a round of the run at hand, 0 for all

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        return {
            **super().options(),
            "bandwidths": self.bandwidths.tolist(),
            "features": self.features,
            "regularization": self.regularization,
            "precision": self.precision,
            "frequency_draw": self.frequency_draw,
            "frequencies_per_round": self.frequencies_per_round,
            "centre": self.centre,
        }

    def model(self) -> tuple[Arrays, dict[str, Any]]:
        """Return theta with all that is needed to build the features."""
        return {"theta": self.theta_, "bandwidths": self.bandwidths}, self.options()

    def initial_arrays(self, dimension: int) -> ArrayRecord:
        """Start from theta = 0."""
        self.theta_ = np.zeros((self.kernels, 2 * self.features))
        self._rule = step_rule(self.step_size, self.kernels, self._samples)
        return self.sent_arrays()

    def sent_arrays(self) -> ArrayRecord:
        """Return what the clients get: theta, and what a method adds."""
        return ArrayRecord([self.theta_.astype(self.precision)])

    def server_state(self) -> Arrays:
        """Return theta and the memory of the step rule."""
        return {"theta": self.theta_, "step_state": self._rule.state}

    def load_server_state(self, arrays: Arrays) -> ArrayRecord:
        """Set theta and the memory of the step rule."""
        self.theta_, self._rule.state = arrays["theta"].copy(), arrays["step_state"].copy()
        return self.sent_arrays()

    def in_question(self) -> NDArray[np.int32]:
        """Return the kernels whose gradients are summed in the round at hand."""
        return np.arange(self.kernels, dtype=np.int32)

    def reported(self) -> int:
        """Return how many losses are summed beside the gradients."""
        return 0

    def sum_length(self) -> int:
        """Return the numbers of gradients, sine and cosine of each frequency, and of losses."""
        all_of_them = len(self.in_question()) * self.features
        return 2 * (self._frequencies or all_of_them) + self.reported()

    def least_numbers(self) -> int:
        """Return the numbers of one frequency of each kernel, if they are chosen; else of all."""
        kernels = len(self.in_question())
        wanted = kernels if self._adapts else self.frequencies_per_round
        few = kernels * self.features if isinstance(wanted, str) else wanted
        return 2 * min(few, kernels * self.features) + self.reported()

    @property
    def _adapts(self) -> bool:
        return self.frequencies_per_round == "auto" and self._may_choose()

    def _may_choose(self) -> bool:
        """Tell whether all clients send the gradients of the same kernels."""
        return True

    def fit_release(self, unknowns: float) -> None:
        """Choose how many frequencies' gradients are summed."""
        given, most = self.frequencies_per_round, len(self.in_question()) * self.features
        wanted = most if isinstance(given, str) or not self._may_choose() else given
        if self._adapts and unknowns < 2 * most + self.reported():
            wanted = int(unknowns - self.reported()) // 2
        self._frequencies = wanted if 0 < wanted < most else 0

    def reply_sizes(self) -> dict[str, int]:
        """Return the shape of the gradients."""
        if self._frequencies:
            return {"chosen": self._frequencies, "width": 2}
        return {"chosen": len(self.in_question()), "width": 2 * self.features}

    def kernel_fields(self) -> dict[str, Any]:
        """Return the fields of a ``KernelRequest``; theta itself is packed already."""
        return {
            "bandwidths": self.bandwidths.astype("<f8").tobytes(),
            "features": self.features,
            "seed": self._run_seed,
            "regularization": self.regularization,
            "precision": self.precision,
            "frequency_draw": self.frequency_draw,
            "centre": self.centre,
            "released": self._frequencies,
            "theta": self.theta_,
        }

    def spread(self, total: Floats) -> Floats:
        """Return the gradient of all kernels, (N, 2D), from the gradients that were summed.

        Where frequencies were chosen these are divided by the probability of the choice.
        """
        gradient, kernels = np.zeros_like(self.theta_), self.in_question()
        if not self._frequencies:
            gradient[kernels] = total.reshape(len(kernels), -1)
            return gradient
        shape = len(kernels), self.features
        chosen = shared_frequencies(*shape, self._frequencies, self._run_seed, self._number)
        pairs = total.reshape(-1, 2) * (shape[0] * shape[1] / self._frequencies)
        gradient[kernels] = place_frequencies(pairs, chosen, *shape)
        return gradient

    def move(self, gradient_sum: Floats) -> ArrayRecord:
        """Step along the mean over all K clients; one that did not answer counts as zero."""
        self._rule.update(self.theta_, gradient_sum / len(self.parties_))
        return self.sent_arrays()

    def evaluation_weights(self) -> Floats:
        """Return the weights for held-out rows; empty for the client's own."""
        return np.zeros(0)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the clients that hold rows out to predict them."""
        rule, rate = self.weight_rule()
        request = wire.EvaluateRequest(
            session=self._session,
            round=server_round + 1,
            step=0,
            samples=0,
            checkpoint_every=1 if self.checkpoint else 0,
            weight_rule=rule,
            learning_rate=rate,
            weights=self.evaluation_weights(),
            **{**self.kernel_fields(), "theta": self.theta_.astype(self.precision)},
        )
        return self.evaluation_messages(request)

    def weight_rule(self) -> tuple[str, float]:
        """Return the rule of the weights over kernels and its learning rate eta_k."""
        rate = float(1.0 / np.sqrt(max(1, self._samples)))
        return ("exponential" if self.step_size == "paper" else "adahedge"), rate


def centre(step_size: StepSize) -> float:
    """Return what a model predicts before it has learned anything."""
    return 0.0 if step_size == "paper" else CENTRE


def resolve_draw(draw: FrequencyDraw | None, step_size: StepSize) -> FrequencyDraw:
    """Return how frequencies are drawn: as given, else what belongs to the step size."""
    if draw is None:
        return "independent" if step_size == "paper" else "orthogonal"
    check_choice("frequency_draw", draw, ("independent", "orthogonal"))
    return draw

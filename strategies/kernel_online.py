"""Online methods with random features of a dictionary of kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError
from fedkern_flwr.fitted import FittedModel
from fedkern_flwr.kernels.random_features import FrequencyDraw, Precision, bandwidth_dictionary
from fedkern_flwr.method import option
from fedkern_flwr.nodes import Arrays
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import private
from fedkern_flwr.online.learning import (
    CENTRE,
    pick_frequencies,
    place_frequencies,
    shared_frequencies,
    step_rule,
)
from fedkern_flwr.privacy import Release

from .online import Floats, OnlineStrategy
from .online_models import PrivateOnline


class DictionaryStrategy(OnlineStrategy):
    """Base class of the online methods that learn with a dictionary of Gaussian kernels.

    Attributes
    ----------
    bandwidths : ndarray, shape (N,)
    centre : float
        What the model predicts before it has learned anything: 0 with the paper's step size, else
        1/2, the middle of the labels' range.
    """

    kernels: int = option(
        51, "N, Gaussian kernels with bandwidths from 1e-2 to 1e2.", least=1, of_model=False
    )
    features: int = option(20, "D, random frequencies per kernel.", least=1)
    regularization: float = option(
        1e-3, "lambda, weight of the squared norm of the parameters in the loss.", least=0.0
    )
    precision: Precision = option(
        "float32",
        "Arithmetic of the features and of what travels; the server sums in float64.",
    )
    frequency_draw: FrequencyDraw | None = option(
        None,
        "How random frequencies are drawn; by default ``independent`` with the paper's step size, "
        "else ``orthogonal``, which estimates the kernels with less variance.",
    )

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        paper = self.step_size == "paper"
        self.centre = 0.0 if paper else CENTRE
        self.frequency_draw = self.frequency_draw or ("independent" if paper else "orthogonal")
        self.bandwidths = bandwidth_dictionary(self.kernels)

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        own = {"bandwidths": self.bandwidths.tolist(), "centre": self.centre}
        return {**super().options(), **own}

    def dictionary_fields(self) -> dict[str, Any]:
        """Return the fields of a ``DictionaryRequest``."""
        return {
            "bandwidths": self.bandwidths.astype("<f8").tobytes(),
            "features": self.features,
            "seed": self.run_seed,
            "regularization": self.regularization,
            "precision": self.precision,
            "frequency_draw": self.frequency_draw,
            "centre": self.centre,
        }

    def weight_fields(self) -> dict[str, Any]:
        """Return the rule of the weights over kernels and its learning rate eta_k."""
        return {
            "weight_rule": "exponential" if self.step_size == "paper" else "adahedge",
            "learning_rate": float(1.0 / np.sqrt(self.num_rounds)),
        }


class KernelOnlineStrategy(PrivateOnline, DictionaryStrategy):
    """Base class of those of them that learn the parameters together.

    Parameters
    ----------
    bandwidths : sequence of float, optional
        Bandwidths of the kernels, by default the paper's dictionary.
    **common
        Options that the class declares, and those of ``Method``.

    Attributes
    ----------
    theta_ : ndarray, shape (N, 2D)
        The learned parameters.
    """

    left_whole = True

    privacy_clip: float = option(
        private.CLIP,
        "With a budget of privacy: c, how far the residual of a prediction counts. A smaller one "
        "has less noise beside it and lets large errors pass for small ones.",
        above=0.0,
    )
    frequencies_per_round: int | Literal["all", "auto"] = option(
        "auto",
        "Frequencies, of all kernels together, whose gradients are sent: all clients send those of "
        "the same ones, drawn publicly each round. With auto all in plain runs, and in secure ones "
        "as many as the rule of counting allows.",
        least=1,
    )

    def __init__(self, *, bandwidths: Iterable[float] | None = None, **common: Any) -> None:
        super().__init__(**common)
        if bandwidths is not None:
            self.bandwidths = np.array(list(bandwidths), np.float64)
        if not self.bandwidths.size or not np.all((self.bandwidths > 0) & (self.bandwidths < 1e9)):
            raise OptionError(
                "bandwidths are missing or not positive",
                remedy="give numbers > 0",
                code="FK-OPTION-RANGE",
            )
        self.kernels = self.bandwidths.size
        self.theta_ = np.zeros((0, 0))
        self._frequencies = 0  # of a round of the run at hand, 0 for all
        self._dimension = 0  # columns of the last run

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        """Return theta with all that is needed to build the features."""
        return {"theta": self.theta_, "bandwidths": self.bandwidths}, super().learned()[1]

    def fitted(self, classes: Sequence[Any] = ()) -> FittedModel:
        """Return the model with the server's weights over the kernels, if it has some."""
        self.check_run()
        weights = self.evaluation_weights()
        if not weights.size:
            found: FittedModel = super().fitted(classes)  # which says why not
            return found
        return FittedModel.of_server(self.method, "dictionary", *self.whole(weights[None]), ())

    def whole(self, weights: Floats) -> tuple[Arrays, dict[str, Any]]:
        """Return all that predictions need, with weights over the kernels, shape (clients, N)."""
        arrays = {"theta": self.theta_, "bandwidths": self.bandwidths, "weights": weights}
        names = ("features", "precision", "frequency_draw", "centre")
        own = {name: getattr(self, name) for name in names}
        return arrays, {**own, "seed": self.run_seed, "columns": self._dimension}

    def set_up(self, dimension: int) -> None:
        """Start from theta = 0."""
        self._dimension = dimension
        self.theta_ = np.zeros((self.kernels, 2 * self.features))
        self._rule = step_rule(self.step_size, self.kernels, self.num_rounds)

    def sent(self) -> list[NDArray[Any]]:
        """Return what the clients get: theta, and what a method adds."""
        return [self.theta_.astype(self.precision)]

    def server_state(self) -> Arrays:
        """Return theta and the memory of the step rule."""
        return {"theta": self.theta_, "step_state": self._rule.state}

    def load_server_state(self, arrays: Arrays) -> None:
        """Set theta and the memory of the step rule."""
        self.theta_, self._rule.state = arrays["theta"].copy(), arrays["step_state"].copy()

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
        """Return the shape of the gradients, and the number of losses."""
        sizes = {"reported": self.reported()}
        if self._frequencies:
            return {**sizes, "chosen": self._frequencies, "width": 2}
        return {**sizes, "chosen": len(self.in_question()), "width": 2 * self.features}

    def kernel_fields(self) -> dict[str, Any]:
        """Return the fields of a ``KernelRequest``."""
        theta, own = self.theta_.astype(self.precision), self.dictionary_fields()
        if self.budget is not None:
            own |= {**self.private_fields(), "clip": self.privacy_clip}
        return {**own, "released": self._frequencies, "theta": theta}

    # -- a budget of privacy

    def plan_noise(self, **known: int) -> Release:
        """Return the noise of the gradients of a message."""
        assert self.budget is not None
        losses = self.reported()
        return private.update_release(
            self.budget,
            clip=self.privacy_clip,
            pairs=(self.sum_length() - losses) // 2,
            features=self.features,
            losses=losses,
            **known,
        )

    def chance(self) -> float:
        """Return the probability with which the kernels in question were chosen."""
        return len(self.in_question()) / self.kernels

    def gradients(self, total: Floats, answers: int) -> Floats:
        """Return gradients and losses of what clients sum with a budget: see :mod:`.private`."""
        kernels, losses = self.in_question(), self.reported()
        samples = answers * (self.stop(self._number) - self.stop(self._number - 1))
        penalty = self.regularization * samples * self.theta_[kernels]
        if self._frequencies:
            penalty = pick_frequencies(penalty, self._picked(len(kernels)))
        found = total.copy()
        found[: len(total) - losses] += penalty.ravel()
        found[: len(total) - losses] *= 2.0 / self.chance()
        if losses:
            found[-losses:] *= self.privacy_clip
            squared = np.vecdot(self.theta_, self.theta_)
            found[-losses:] += self.regularization * samples * squared
        return found

    def _picked(self, kernels: int) -> NDArray[np.int32]:
        shape = kernels, self.features
        return shared_frequencies(*shape, self._frequencies, self.run_seed, self._number)

    def spread(self, total: Floats) -> Floats:
        """Return the gradient of all kernels, (N, 2D), from the gradients that were summed.

        Where frequencies were chosen these are divided by the probability of the choice.
        """
        gradient, kernels = np.zeros_like(self.theta_), self.in_question()
        if not self._frequencies:
            gradient[kernels] = total.reshape(len(kernels), -1)
            return gradient
        shape = len(kernels), self.features
        chosen = self._picked(len(kernels))
        pairs = total.reshape(-1, 2) * (shape[0] * shape[1] / self._frequencies)
        gradient[kernels] = place_frequencies(pairs, chosen, *shape)
        return gradient

    def step(self, total: Floats, answers: int) -> None:
        """Equation 10: step along the mean gradient over all K clients.

        One that did not answer counts as zero. Losses come after the gradients.
        """
        gradients = self.spread(total[: len(total) - self.reported()])
        self._rule.update(self.theta_, gradients / len(self.parties_))

    def evaluation_weights(self) -> Floats:
        """Return the weights for held-out rows; empty for the client's own."""
        return np.zeros(0)

    def evaluation(self) -> wire.EvaluateRequest:
        """Ask for the error of the predictions of held-out rows."""
        return wire.EvaluateRequest(
            checkpoint_every=1 if self.checkpoint else 0,
            weights=self.evaluation_weights(),
            **self.weight_fields(),
            **self.kernel_fields(),
        )

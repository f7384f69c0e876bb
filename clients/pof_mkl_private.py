"""What a client of POF-MKL and its baselines tells in a run with a budget of privacy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.guard import SumRule, refusal
from fedkern_flwr.kernels.random_features import Real
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import private
from fedkern_flwr.online.learning import Floats, pick_frequencies, shared_frequencies

from .pof_mkl_samples import Predictions, chosen_gradients

if TYPE_CHECKING:
    from .pof_mkl import OnlineKernelClient


def private_rule(client: OnlineKernelClient, request: Any, rule: SumRule) -> SumRule:
    """Return what the sum of a message must be: with the noise that the client derives itself.

    Raises
    ------
    RefusedError
        The client would choose kernels by its weights, which earlier samples made; or a message
        takes more samples than the largest.
    """
    shape = _pairs(request)
    if client.budget is None or shape is None:
        return rule  # which is refused, where something is released
    kernels, losses = shape
    own = isinstance(request, wire.PersonalRequest) and request.selection != "shared"
    if own and request.kernels_per_round < len(request.theta):
        raise refusal("privacy: kernels are chosen by weights of earlier samples", client.name)
    if not 0 < request.samples <= request.most or not 0.0 < request.clip < np.inf:
        raise refusal("privacy: a message of more samples, or without a clip", client.name)
    state = client.secure_sums.party.state
    cohort = state.cohorts[client.secure_sums.order(wire.UPDATE_SUM).cohort]
    pairs = request.released or kernels * request.features
    release = private.update_release(
        client.budget,
        clip=request.clip,
        pairs=pairs,
        features=request.features,
        losses=losses,
        most=request.most,
        messages=request.messages,
        parties=len(cohort.members),
        least=len(cohort.members) if request.whole else cohort.threshold,
    )
    rows = (request.step, request.step + request.samples)
    return replace(rule, release=release, rows=rows, length=2 * pairs + losses)


def _pairs(request: Any) -> tuple[int, int] | None:
    """Return the kernels whose gradients are summed, and how many losses; None of other sums."""
    if isinstance(request, wire.PersonalRequest):
        return min(request.kernels_per_round, len(request.theta)), 0
    if isinstance(request, wire.SharedRequest):
        return len(request.theta), len(request.theta) if request.send_losses else 0
    if isinstance(request, wire.DrawnRequest):
        return 1, len(request.theta)
    return None


def add_noisy(
    client: OnlineKernelClient, request: Any, report: wire.StreamReport
) -> wire.NoisyReply:
    """Add what a message is about to its sum; what depends on earlier samples stays here.

    Raises
    ------
    RefusedError
    """
    sums = client.secure_sums
    vector = np.zeros(sums.order(wire.UPDATE_SUM).length)
    report.add_to(vector)
    sums.contribute(wire.UPDATE_SUM, vector, release=str(request.round))
    told: dict[str, Any] = {"total_samples": 0, "total_squared_error": 0.0}
    told |= {"regret": 0.0, "largest_loss": 0.0}
    if client.simulated:
        told = {name: getattr(report, name) for name in told}
    return wire.NoisyReply(**told)


def gradients(
    client: OnlineKernelClient,
    seen: Predictions,
    request: wire.KernelRequest,
    chosen: NDArray[np.integer[Any]],
    probabilities: Floats,
) -> Real:
    """Return the chosen kernels' gradients; with a budget features times clipped residuals.

    The residuals are those of the parameters in the message, and of nothing that was learned from
    the client's earlier samples.
    """
    if client.budget is None:
        return chosen_gradients(seen, request, chosen, probabilities)
    residuals = private.clipped(seen.kernels.take(chosen, axis=1) - seen.y[:, None], request.clip)
    total = private.weighed_features(residuals, seen.z.take(chosen, axis=1))
    if not request.released:
        return total
    shape = len(chosen), request.features
    picked = shared_frequencies(*shape, request.released, request.seed, request.round)
    return pick_frequencies(total, picked)


def losses_told(
    client: OnlineKernelClient, seen: Predictions, request: wire.KernelRequest
) -> Floats:
    """Return the losses of all kernels; with a budget of clipped residuals, without penalty."""
    if client.budget is None:
        return np.asarray(seen.losses.sum(axis=0))
    residuals = private.clipped(seen.kernels - seen.y[:, None], request.clip)
    return private.clipped_losses(residuals, request.clip)

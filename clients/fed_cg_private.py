"""The noise that a hospital derives itself of the run's budget and of what is public."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedkern_flwr.guard.spending import Charge
from fedkern_flwr.hybrid.parties import CENTRE
from fedkern_flwr.hybrid.private import (
    EQUATIONS,
    equations_release,
    label_weight,
)
from fedkern_flwr.judging.noisy import OUTCOMES, outcomes_release
from fedkern_flwr.privacy import Release, plan_release

if TYPE_CHECKING:
    from .fed_cg import HybridKernelClient


def release_of(client: HybridKernelClient, name: str) -> Release | None:
    """Return what a sum must cost and which noise it must have; None of sums that have none.

    Such a sum is refused in a run with a budget, as all are whose features are not of length one.
    """
    table, budget = client.table, client.budget
    if budget is None or not client.kept.fourier or predicts(client):
        return None
    counts, order = client.secure_sums.party.state.counts, client.secure_sums.order(name)
    members = client.secure_sums.party.state.cohorts[order.cohort].members
    classes, outputs = len(table.classes), table.y.shape[1]
    if name == EQUATIONS:
        return equations_release(
            budget,
            features=client.kept.landmarks,
            outputs=outputs,
            bound=_bound(client),
            rows=[counts[p][0] for p in members],
        )
    if name == OUTCOMES:
        rows = [counts[p][1] for p in members]
        return outcomes_release(budget, classes=classes, outputs=outputs, rows=rows)
    return None


def predicts(client: HybridKernelClient) -> bool:
    """Tell whether the run predicts with a model of an earlier one: then it releases nothing."""
    return bool(client.kept.settings["model"] != client.session)


def charge_centre(client: HybridKernelClient) -> None:
    """Charge a centre's rows for the whole run: they are in what the hospitals release.

    Whether the hospitals predict only, as the server may tell this party, it cannot see.
    """
    budget = client.budget
    if budget is None or client.role != CENTRE:
        return
    least = budget.colluders + 1
    whole = plan_release("run", budget, sensitivity=1.0, length=1, parties=least, least=least)
    client.secure_sums.charges.append(Charge(client.session.encode(), whole))


def weight_of(client: HybridKernelClient) -> float:
    """Return by what K^T y is multiplied before noise is added to it; one without noise."""
    if client.budget is None:
        return 1.0
    return label_weight(_bound(client), client.table.y.shape[1])


def _bound(client: HybridKernelClient) -> float:
    """Return the largest absolute value of a row's labels."""
    return 1.0 if client.table.classes else client.table.label_bound

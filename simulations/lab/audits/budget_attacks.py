"""What known attacks recover of runs with a budget: next to nothing, and without one all of it.

Unlike the best test of the worst two tables (:mod:`.budgets`) these attacks are on rows as they
come, of one run each:

* *loss*: of a row that FedCG learned from and one that it did not the first has the smaller error
  (Yeom et al., 2018). Labels are drawn by lot, so that there is nothing to learn but rows.
* *definiteness*: whoever knows all rows but a few takes them off the Gram matrix that was released
  (:func:`~..attacks.membership.definiteness`).
* *joint inversion*: rows and labels out of a sum of whole gradients of POF-MKL
  (:mod:`..attacks.joint_inversion`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm, t

from fedkern_flwr.hybrid import fourier
from fedkern_flwr.hybrid.landmarks import public_seed
from fedkern_flwr.hybrid.private import EQUATIONS
from fedkern_flwr.online import messages as wire
from fedkern_flwr.solvers.equations import unpack_equations

from ....clients import HybridKernelClient, OnlineKernelClient
from ....strategies import POFMKL, FedCG
from ...engines import Transcript, simulate
from ..attacks.hybrid import HybridRun
from ..attacks.hybrid_insiders import Insiders
from ..attacks.joint_inversion import invert_release
from ..attacks.likelihood_ratio import shift_of_epsilon
from ..attacks.membership import area_under_curve, definiteness
from ..attacks.transcripts import OnlineRun
from .budgets import DELTA, Floats, silence
from .released_sums import keep_sums, release_of, returned

#: Runs of each attack at each epsilon; those of the joint inversion, which takes longer.
RUNS, FEW = 10, 4
_ALARM = 1e-4  # probability of a false one
LOSS, DEFINITENESS, JOINT = "loss", "definiteness", "joint inversion"


@dataclass(frozen=True)
class Recovered:
    """What an attack recovered.

    Attributes
    ----------
    attack : str
    epsilon : float
        Of the budget; infinity without one.
    shares : ndarray, shape (runs,)
        Of each run: how much oftener a row that was learned from looks more like it than another,
        from -1 to 1, or which share of the rows behind a sum was returned.
    """

    attack: str
    epsilon: float
    shares: Floats

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of their mean, of nearly normal means."""
        mean, wide = float(self.shares.mean()), self._reach(0.025)
        return mean - wide, mean + wide

    @property
    def allowed(self) -> float:
        """What the best test of the worst two tables reaches with all of epsilon."""
        if math.isinf(self.epsilon):
            return 1.0
        mu = shift_of_epsilon(self.epsilon, DELTA)
        return float(2.0 * norm.cdf(mu / math.sqrt(2.0)) - 1.0)

    @property
    def kept(self) -> bool:
        """Whether chance explains, more often than :data:`_ALARM`, what is beyond the allowed."""
        return float(self.shares.mean()) - self._reach(_ALARM) <= self.allowed

    def _reach(self, level: float) -> float:
        """Return by how much a mean is too large by chance, no oftener than ``level``."""
        runs = len(self.shares)
        return float(t.isf(level, runs - 1) * self.shares.std(ddof=1) / math.sqrt(runs))


@silence()
def recover(epsilon: float, seed: int = 0) -> list[Recovered]:
    """Return what each attack recovers at an epsilon; infinity is a run without noise."""
    budget = {"privacy_epsilon": None if math.isinf(epsilon) else epsilon}
    told = np.array([_of_fed_cg(seed + k, budget) for k in range(RUNS)])
    rows = np.array([_of_pof_mkl(seed + k, budget) for k in range(FEW)])
    shares = {LOSS: told[:, 0], DEFINITENESS: told[:, 1], JOINT: rows}
    return [Recovered(name, epsilon, values) for name, values in shares.items()]


_HOSPITALS, _ROWS, _UNKNOWN, _PAIRS, _GAMMA = 4, 12, 10, 30, 3.0


def _of_fed_cg(seed: int, budget: dict[str, Any]) -> tuple[float, float]:
    """Run FedCG; return how far losses, and the released matrix, tell rows apart."""
    rng, block = np.random.default_rng(seed), public_seed(seed, "own")
    x = rng.random((2 * _HOSPITALS, _ROWS, 2))
    y = rng.choice([-1.0, 1.0], x.shape[:2])

    def hospital(context: Any, k: int) -> HybridKernelClient:
        return HybridKernelClient(
            context,
            x[k],
            y[k],
            ids=[f"{k}/{i}" for i in range(_ROWS)],
            block="own",
            landmark_seed=block,
            alignment_key=b"a secret of the data's owners",
            classes=(-1.0, 1.0),
        )

    strategy = FedCG(basis="fourier", landmarks=2 * _PAIRS, gamma=_GAMMA, seed=seed, **budget)
    transcript = Transcript()
    simulate(strategy, _served(hospital), _HOSPITALS, transcript=transcript)
    opened = HybridRun(transcript, Insiders()).opened()
    (total,) = (total for vector, total in opened if vector.order.name == EQUATIONS)
    gram = unpack_equations(total, 2 * _PAIRS, 1)[0]
    drawn = fourier.draw_block(block, _PAIRS, 2, "rbf", _GAMMA)
    z = fourier.features(fourier.block_phases(x.reshape(-1, 2), drawn))
    losses = (z @ strategy.coefficients_[:, 0] - y.ravel()) ** 2
    members, others = np.split(z, 2)
    known = members[_UNKNOWN:]
    inside, outside = (
        definiteness(gram - known.T @ known, some[:_UNKNOWN]) for some in (members, others)
    )
    return _apart(*np.split(-losses, 2)), _apart(inside, outside)


def _apart(members: Floats, others: Floats) -> float:
    """Return how much oftener a member has the higher score than the lower one."""
    return 2.0 * area_under_curve(members, others) - 1.0


_CLIENTS, _COLUMNS, _MESSAGES, _EFFORT = 2, 4, 5, 1e8


def _of_pof_mkl(seed: int, budget: dict[str, Any]) -> float:
    """Run POF-MKL with whole gradients of a sample; return the share of rows of the last sum."""
    rng = np.random.default_rng(seed)
    x = rng.random((_CLIENTS, _MESSAGES, _COLUMNS)) / math.sqrt(_COLUMNS)
    y = rng.random((_CLIENTS, _MESSAGES))
    if budget["privacy_epsilon"] is not None:
        budget = {**budget, "privacy_clip": 1.0}  # which clips nothing
    whole: dict[str, Any] = {"samples_per_round": 1, "frequencies_per_round": "all"}
    strategy = POFMKL(secure=True, seed=seed, kernels_per_round=51, **whole, **budget)
    released: list[Any] = []
    keep_sums(strategy, released)
    transcript = Transcript()

    def client(context: Any, k: int) -> OnlineKernelClient:
        return OnlineKernelClient(context, x[k], y[k])

    clients = _served(client)
    simulate(strategy, clients, _CLIENTS, transcript=transcript, num_rounds=_MESSAGES)
    asked = list(OnlineRun(transcript).requests(wire.PersonalRequest, 0))[-1]
    release = release_of(asked, released[-1][1], _CLIENTS, _COLUMNS)
    found = invert_release(release, seed, budget=_EFFORT)
    computed = np.column_stack([found.x, found.y + asked.centre])
    true = np.column_stack([x[:, asked.step], y[:, asked.step]])
    return float(returned(computed, true).mean())


def _served(build: Callable[[Any, int], Any]) -> Callable[[Any], Any]:
    return lambda context: build(context, int(context.node_config["partition-id"]))

"""How far the groups of a run are, each and together."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedkern_flwr.failure import Failure
from fedkern_flwr.groups.consensus import Floats, Residuals
from fedkern_flwr.groups.members import Group
from fedkern_flwr.secure_sum import RunningSum

from .hierarchical_rows import Judged


@dataclass
class Live:
    """A group that takes part.

    Attributes
    ----------
    group : Group
    cohort : int
    done : int
        Iterations completed.
    stage : str
        Of the next one: nothing yet; ``ordered``, the agent has contributed; ``running``, the users
        are at work; ``ready``, the sum is complete.
    sum : RunningSum or None
        Over its users, for its agent.
    attempt : int
        How often the users have been asked before.
    deadline : float
        Until when they have time.
    sealed : bytes
        The center for each user in turn.
    judging, judged : int or None
        Number of the model that the users judge, and of that which they have judged.
    """

    group: Group
    cohort: int
    done: int = 0
    stage: Literal["", "ordered", "running", "ready"] = ""
    sum: RunningSum | None = None
    attempt: int = 0
    deadline: float = 0.0
    sealed: bytes = b""
    judging: int | None = None
    judged: int | None = None


@dataclass
class Progress:
    """How far the groups are together.

    Attributes
    ----------
    live : dict
        Number -> group.
    lost : dict
        Number -> why it was left out.
    tick : int
        How often the agents have been asked.
    center : ndarray
        The global model; of ``consensus="paper"`` the sum of all z_k.
    residuals : Residuals
    factors : (ndarray, ndarray), shape (k,)
        Of rho where it follows what is summed: of this iteration and the next.
    advances : int
        Totals for which some group had advanced.
    models : dict
        Number of such a total -> model, of the last few.
    best : Judged or None
    masked : RunningSum or None
        The agents' sum, while its masks are on; ``advanced`` are the groups that have with it.
    unmask_until : float
        Until when the agents have time to unmask it; 0 while they have not been asked.
    failed : dict
        Partition -> why it did not answer.
    """

    live: dict[int, Live]
    center: Floats
    lost: dict[int, str] = field(default_factory=dict)
    tick: int = 0
    residuals: Residuals = field(init=False)
    factors: tuple[Floats, Floats] = field(init=False)
    advances: int = 0
    models: dict[int, Floats] = field(default_factory=dict)
    best: Judged | None = None
    masked: RunningSum | None = None
    advanced: set[int] = field(default_factory=set)
    unmask_until: float = 0.0
    failed: dict[int, Failure] = field(default_factory=dict)
    rho: Floats = field(init=False)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Begin with nothing known of any output."""
        outputs = len(self.center)
        self.residuals, self.rho = Residuals.unknown(outputs), np.zeros((outputs, 1))
        self.factors = np.ones(outputs), np.ones(outputs)

    @property
    def slowest(self) -> int:
        """Iterations of the slowest group."""
        return min(one.done for one in self.live.values())

    def at(self, *stages: str) -> list[int]:
        """Return the groups in some stages."""
        return [number for number, one in self.live.items() if one.stage in stages]

    def newest(self, back: int) -> int:
        """Return the number of the newest model but for the last few."""
        limit = self.advances - back
        return max((k for k in self.models if k <= limit), default=min(self.models))

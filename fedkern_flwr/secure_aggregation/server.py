"""Add secure aggregation to any Message API strategy that averages the apps' results.

The strategy runs unchanged, on a grid that returns one reply instead of one per node: the mean over
the nodes, with their total weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid, strategy
from flwr.serverapp.strategy import Result, Strategy

from ..errors import OptionError
from ..nodes import NODE_TIMEOUT
from ..transport import swift
from ..watch import Ledger
from . import averages
from .clipping import Clip, NoisyMeans
from .rounds import Averages, no_figures

#: Strategies that look at single replies, or wrap one that does.
_SINGLE = (
    strategy.Bulyan,
    strategy.DifferentialPrivacyClientSideAdaptiveClipping,
    strategy.DifferentialPrivacyClientSideFixedClipping,
    strategy.DifferentialPrivacyServerSideAdaptiveClipping,
    strategy.DifferentialPrivacyServerSideFixedClipping,
    strategy.FedMedian,
    strategy.FedTrimmedAvg,
    strategy.FedXgbBagging,
    strategy.FedXgbCyclic,
    strategy.Krum,
    strategy.MultiKrum,
    strategy.QFedAvg,
)
_COUNTED = ("available", "train", "evaluate")


class SecureAggregation(Strategy):
    """Mixin: the server learns the mean over the nodes and their total weight, no single reply.

    ``class Secure(SecureAggregation, FedAvg): pass``. The nodes' apps use
    :func:`~fedkern_flwr.secure_aggregation.secure_aggregation_mod`. Every round requests all nodes
    of the run: differences of sums over changing sets would show single nodes.

    Parameters
    ----------
    *args
        Arguments of the strategy.
    bound : float (default: 1024)
        Largest absolute value of an array or a metric, as in the mod.
    clip : float, optional
        Largest Euclidean length of a node's update, as in the mod. Default: no clipping.
    noise_multiplier : float, optional
        With ``clip``: least standard deviation of the noise in the sum of updates, as a multiple of
        the clip; as in the mod. The mean then has equal weights, and nothing else is reported.
    delta : float (default: 1e-5)
        Delta of the reported epsilon.
    colluders : int (default: 1)
        Nodes that may subtract their noise.
    threshold, min_cohort, max_missed, node_timeout
        See :class:`~fedkern_flwr.strategies.Method`.
    **options
        Options of the strategy.

    Attributes
    ----------
    ledger_ : Ledger
        Exchanges, bytes, seconds and failures of the last run.
    survivors_ : list of list of int
        Nodes in the mean of each training exchange; empty for a lost round.

    Raises
    ------
    OptionError
        The strategy does not average, an option is not valid, or noise needs ``dp-accounting``.
    """

    def __init__(
        self,
        *args: Any,
        bound: float = averages.BOUND,
        clip: float | None = None,
        noise_multiplier: float | None = None,
        delta: float = 1e-5,
        colluders: int = 1,
        threshold: int | None = None,
        min_cohort: int = 2,
        max_missed: int = 10,
        node_timeout: float = NODE_TIMEOUT,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        if isinstance(self, _SINGLE):
            raise OptionError(
                f"{type(self).__name__} needs the replies of single nodes",
                remedy="use a strategy that averages, such as FedAvg, FedProx or FedAdam; for "
                "differential privacy with clip and noise_multiplier",
                code="FK-STRATEGY-SINGLE",
            )
        averages.check_bound(bound)
        clipped = Clip.of(clip, noise_multiplier)
        if clipped is not None and getattr(self, "fraction_evaluate", 0.0) > 0.0:
            raise no_figures()
        common = {"min_cohort": min_cohort, "max_missed": max_missed, "node_timeout": node_timeout}
        common["min_clients"] = max(int(getattr(self, f"min_{what}_nodes", 1)) for what in _COUNTED)
        noisy = None if clipped is None else NoisyMeans(clipped, delta, colluders)
        weighted_by = str(getattr(self, "weighted_by_key", averages.WEIGHT))
        self._averages = Averages(bound, weighted_by, noisy, threshold, common)

    @property
    def ledger_(self) -> Ledger:
        """Exchanges, bytes, seconds and failures of the last run."""
        return self._averages.nodes.ledger

    @property
    def survivors_(self) -> list[list[int]]:
        """Nodes in the mean of each training exchange."""
        return self._averages.survivors_

    def privacy(self) -> dict[str, Any]:
        """Return what the server saw in the last run."""
        return self._averages.privacy()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the strategy; parameters and result are Flower's.

        Raises
        ------
        CohortError
            Nodes are missing at the start, or too few answered for ``max_missed`` rounds in a row.
        RefusedError
            A node's policy or options do not allow it.
        OptionError
            The strategy samples nodes.
        """
        grid = swift(grid)
        self._averages.open(grid, num_rounds, initial_arrays)
        result = super().start(
            OneReply(grid, self._averages.nodes.parties, self._averages.ask),
            initial_arrays,
            num_rounds,
            timeout,
            train_config,
            evaluate_config,
            evaluate_fn,
        )
        self._averages.close(grid, timeout)
        return result


# -- the grid for a strategy that must not see single replies

Ask = Callable[[Grid, list[Message], float], list[Message]]


class OneReply(Grid):
    """A grid that answers with the mean of the nodes' replies.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    nodes : iterable of int
        Ids of the nodes.
    ask : callable
        (grid, messages, timeout) -> one reply, or none.
    """

    def __init__(self, grid: Grid, nodes: Iterable[int], ask: Ask) -> None:
        self._grid, self._nodes, self._ask = grid, nodes, ask

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *args: Any, **options: Any) -> Message:
        return self._grid.create_message(*args, **options)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise _by_itself()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise _by_itself()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._ask(self._grid, list(messages), timeout or math.inf)


def _by_itself() -> OptionError:
    return OptionError(
        "the strategy exchanges messages in a way of its own, which nothing masks",
        remedy="use one that leaves them to Strategy.start",
        code="FK-STRATEGY-UNMASKED",
    )

"""What the online methods release, and the release limit: no more numbers than unknowns.

A window is the samples of a message. Where nodes count, a run opens about a window the share of its
unknowns that each node grants, unless the user states how many samples a message takes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

from flwr.serverapp import Grid

from fedkern_flwr.errors import OptionError
from fedkern_flwr.flower_compat import is_simulated
from fedkern_flwr.guard import NodePolicy, counting
from fedkern_flwr.method import Method, option
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.learning import StepSize
from fedkern_flwr.planning import Allowance

Auto = Literal["auto"]

#: What the server sees of a client in a run without secure sums, beside what is summed.
_PLAIN = (
    "each client's squared error, regret and largest loss so far",
    "number of rows, held-out rows and columns per client, digest of the column names",
    "each client's squared error on its held-out rows, if there are any",
)


class OnlineRelease(Method):
    """Options of the online methods, and what a run with them releases of the streams."""

    step_size: StepSize = option(
        "adaptive",
        "``paper``: eta = eta_k = 1/sqrt(T). ``adaptive``: AdaGrad-norm for the parameters and "
        "AdaHedge for the weights; nothing to tune.",
    )
    samples_per_round: int | Auto = option(
        "auto",
        "B, samples that a client takes per exchange; 1 is the paper. With auto 1 in plain runs, "
        "and in secure ones as few as the release limit allows (see "
        ":mod:`fedkern_flwr.planning`).",
        least=1,
    )
    secure: bool | None = option(
        None,
        "Secure sums: the server sees sums over the clients, no client's gradient or error. Costs "
        "an exchange more per round, unless drop_outs is False. By default on in deployments and "
        "off in simulations.",
        of_model=False,
    )
    drop_outs: bool = option(
        True,
        "Of secure sums: whether a round goes on without clients that drop out, which costs an "
        "exchange per round. Without, all clients must answer, or the round is lost.",
        of_model=False,
    )
    stop_diverged: bool = option(
        True,
        "The run stops, with its checkpoint, when its mean squared error so far is not finite, or "
        "rises or ends beyond 2.5: ten times that of the mean of labels in [0, 1] at its worst.",
        of_model=False,
    )
    #: What the clients sum in a round, and what never leaves them beside rows and labels.
    in_sums: ClassVar[str] = "gradients and statistics"
    sent_sums: ClassVar[str] = "gradients"
    kept: ClassVar[tuple[str, ...]] = ()
    to_clients: ClassVar[str] = "the model"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not self.drop_outs and self.threshold is not None:
            raise OptionError(
                "a threshold is given, and all must answer",
                remedy="leave out threshold",
                code="FK-THRESHOLD-WHOLE",
            )

    def _reset(self) -> None:
        super()._reset()
        self.is_secure, self.whole_cohorts = bool(self.secure), not self.drop_outs
        self._batch = 1  # B of the run at hand
        self._released: list[dict[str, Any]] = []  # numbers and unknowns of its sums

    def takes_sums(self, grid: Grid) -> bool:
        """Tell whether a run takes secure sums."""
        return not is_simulated(grid) if self.secure is None else self.secure

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        return {**super().options(), "samples": self.num_rounds, "secure": self.is_secure}

    # -- what a method sums

    @abstractmethod
    def sum_length(self) -> int:
        """Return how many numbers of each client the method sums in this round."""

    def message_length(self) -> int:
        """Return how many numbers are summed in this round, with those that metrics are made of."""
        return self.sum_length() + wire.STATISTICS

    def batch_size(self) -> int:
        """Return the number of samples per exchange; the last one has the rest as well."""
        return self._batch

    def exchanges(self) -> int:
        """Return the number of exchanges."""
        return max(1, self.num_rounds // self.batch_size())

    def least_numbers(self) -> int:
        """Return how many numbers of each client the method must sum in a round to learn well."""
        return self.sum_length()

    def fit_release(self, unknowns: float) -> None:
        """Choose what is summed in a round so that its numbers do not exceed the unknowns."""

    # -- the plan of a run

    def plan_release(self, dimension: int) -> None:
        """Fix B and what is summed in a round; stop, or warn, where too much would be released.

        Raises
        ------
        RefusedError
            More numbers than unknowns, and a node would refuse.
        """
        given = self.samples_per_round
        self._batch = 1 if given == "auto" else given
        if self.sums is None or self.budget is not None:  # noise says what is released
            self.fit_release(math.inf)
            return
        each, share = self.unknowns_of_samples(dimension), 1.0
        if given == "auto":
            share = self.share
            numbers = self.least_numbers() + wire.STATISTICS
            wanted = counting.least_samples(numbers, each * share)
            wanted = self.fewest * max(1, math.ceil(wanted / self.fewest))
            self._batch = min(wanted, self.num_rounds)
        unknowns = each * min(self._batch, self.num_rounds)
        self.fit_release(unknowns * share - wire.STATISTICS)
        self.note_windows(f"{self._batch} samples per message", unknowns)
        self.note_release(dimension, self.sum_length() + wire.STATISTICS, unknowns)

    @property
    def share(self) -> float:
        """The share of the unknowns of a window that the run opens by default."""
        return float(min(party.share for party in self.parties_.values()))

    def note_windows(self, what: str, unknowns: float) -> None:
        """Note what was planned for each window, unless samples are given."""
        if self.share < 1.0 and self.samples_per_round == "auto":
            numbers = self.share * unknowns
            self.note_plan(f"{what}, each", Allowance(numbers, share=self.share))

    @property
    def fewest(self) -> int:
        """The samples of which default windows are multiples: nodes sum no fewer of their rows.

        So no two runs ask for sets of samples that differ by fewer.
        """
        return NodePolicy().min_own_rows if self.share < 1.0 else 1

    def hidden_rows(self) -> int:
        """Return the hidden rows of a secure sum with one sample of each client.

        Those of the largest other party do not count: in POF-RLS it can compute the sums of the
        others from what it is sent. A node that knows nobody's identity counts its own alone.
        """
        assert self.sums is not None
        if self.share < 1.0 and not all(p.signature for p in self.parties_.values()):
            return 1
        cohort = self.sums.membership.cohorts[0]
        one = dict.fromkeys(cohort.members, 1)
        alive = set(one)
        if self.drop_outs:
            alive = counting.least_survivors(one, cohort.threshold)
        return counting.hidden_rows(one, alive)

    def unknowns_of_samples(self, dimension: int) -> float:
        """Return the unknowns of a secure sum with one sample of each client."""
        return self.hidden_rows() * self._unknowns_of_row(dimension)

    def _unknowns_of_row(self, dimension: int) -> float:
        binary = max(party.binary for party in self.parties_.values())
        return counting.unknowns_of_row(dimension + 1, binary)

    def note_release(self, dimension: int, numbers: int, unknowns: float) -> None:
        """Note what a secure sum releases; stop, or warn, where it is too much.

        Raises
        ------
        RefusedError
            More numbers than unknowns, and a node would refuse.
        """
        self._released = [counting.released(wire.UPDATE_SUM, numbers, unknowns)]
        tests = sum(party.test_rows for party in self.parties_.values())
        if tests:
            held = tests * self._unknowns_of_row(dimension)
            self._released.append(counting.released(wire.EVALUATE_SUM, 2, held))
        self.nodes.check_count(counting.too_many(numbers, unknowns))

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees."""
        if not self.is_secure:
            return {
                "protocol": "plain",
                "server_sees": [
                    f"each client's {self.sent_sums}, from which its samples and labels can be "
                    "computed",
                    *_PLAIN,
                    *self.server_sees,
                ],
                "never_leaves_the_client": ["rows", "labels", *self.kept],
            }
        few = any(entry["numbers"] > entry["unknowns"] for entry in self._released)
        warning = " (more numbers than unknowns: the samples can be computed)"
        return {
            **self.sums_privacy(),
            "sums": list(self._released),
            "server_sees": [
                f"sums over the clients of a round: {self.in_sums}{warning if few else ''}",
                "which clients contributed to which sum",
                "number of rows, held-out rows and columns per client, digest of the column names",
                "the sum of the clients' squared errors on held-out rows, if there are any",
            ],
            "clients_see": [self.to_clients, "which clients contributed to which sum"],
            "never_leaves_the_client": [
                "rows",
                "labels",
                f"own {self.sent_sums} and errors",
                *self.kept,
            ],
        }

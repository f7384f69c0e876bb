"""What the online methods do with a budget of privacy: every message has noise of its own."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from fedkern_flwr.errors import OptionError
from fedkern_flwr.method import Answers, Ask, PrivateMethod, Steps
from fedkern_flwr.nodes import logger
from fedkern_flwr.online import messages as wire
from fedkern_flwr.privacy import Release

from .online import Floats, OnlineStrategy


class PrivateOnline(PrivateMethod, OnlineStrategy):
    """Base class of the online methods that keep a budget of privacy.

    A sample is in one message. So messages are about other rows, and a run costs a row what one of
    them costs; a party takes part in all of them. This holds as long as nothing that a client sends
    depends on its earlier samples: with a budget it tells no errors and chooses no kernels.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.budget is not None and self.secure is False:
            raise OptionError(
                "noise is added to secure sums, and secure is False",
                remedy="leave out secure=False, or privacy_epsilon",
                code="FK-BUDGET-PLAIN",
            )

    def takes_sums(self, grid: Grid) -> bool:
        """Tell whether a run takes secure sums: with a budget always."""
        return self.budget is not None or super().takes_sums(grid)

    # -- the noise

    @abstractmethod
    def plan_noise(self, **known: int) -> Release:
        """Return the noise of the sum of a message: each node derives the same.

        ``known`` are the messages of the run and the samples of the largest, the parties of a sum
        and the fewest over which it can be opened.
        """

    def noise(self) -> Release | None:
        """Return the noise of the sum of the message at hand; None without a budget."""
        if self.budget is None:
            return None
        assert self.sums is not None
        cohort = self.sums.membership.cohorts[0]
        parties = len(cohort.members)
        least = cohort.threshold if self.drop_outs else parties
        return self.plan_noise(**self._messages(), parties=parties, least=least)

    def _messages(self) -> dict[str, int]:
        """Return how many messages a run has, and the samples of a client in the largest."""
        stops = [self.stop(number) for number in range(self.planned + 1)]
        return {"messages": self.planned, "most": int(np.diff(stops).max())}

    def private_fields(self) -> dict[str, Any]:
        """Return what a request says of the noise, nothing without a budget."""
        if self.budget is None:
            return {}
        return dict(self._messages())

    @abstractmethod
    def gradients(self, total: Floats, answers: int) -> Floats:
        """Return what the method sums without a budget, of a sum over ``answers`` clients."""

    # -- messages

    def message_length(self) -> int:
        """Return how many numbers are summed: with a budget no statistics."""
        return super().message_length() if self.budget is None else self.sum_length()

    def _ask(self, *about: Any, **more: Any) -> Ask:
        found, release = super()._ask(*about, **more), self.noise()
        if release is None:
            return found
        terms = [replace(t, encoding=t.encoding.noisy(release.noise)) for t in found.sums]
        return replace(found, reply=wire.NoisyReply, sums=terms)

    def _learn(self, answers: Answers) -> int:
        release = self.noise()
        if release is None:
            return super()._learn(answers)
        total = answers.totals[wire.UPDATE_SUM]
        survivors = len(answers.contributors[wire.UPDATE_SUM])
        self._lost_rounds = 0
        self.noise_.note(release, survivors)
        # what a simulation reports; nodes tell nothing
        self._reports |= {p: one for p, one in answers.replies.items() if one.total_samples}
        self.step(self.gradients(total, survivors), survivors)
        return survivors

    def _evaluate(self) -> Steps:
        if self.budget is None:
            return (yield from super()._evaluate())
        if not self.simulated:
            logger.info("with a budget of privacy each client's errors stay in its own log")
        return {}

    def _check_error(self, samples: int, mse: float | None, before: float | None) -> None:
        if self.budget is None:  # else no error may decide: in a deployment none is known
            super()._check_error(samples, mse, before)

    # -- words

    @property
    def advice(self) -> str:
        """What to do where the mean of the labels predicts as well."""
        if self.budget is None:
            return super().advice
        return "use more clients or rows, fewer kernels, or a larger privacy_epsilon"

    def budget_report(self) -> dict[str, Any]:
        """Return the budget, what a message releases, and how messages add up."""
        found = super().budget_report()
        if found:
            parallel = self.privacy_unit == "row"
            rows = "each of other rows, so that a row pays for one" if parallel else "all add up"
            found["budget"]["messages"] = f"{len(self.history_)}, {rows}"
        return found

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees."""
        found = super().privacy()
        if self.budget is None:
            return found
        seen = [
            f"sums over the clients of a round, with noise: {self.sent_sums}; see budget",
            "which clients contributed to which sum",
            "number of rows, held-out rows and columns per client, digest of the column names",
        ]
        if self._reports:
            seen.append(
                "of a simulation each client's squared error, regret and largest loss so far: for "
                "its report, which is no release. No deployed node tells them"
            )
        return {**found, "sums": [], "server_sees": seen}

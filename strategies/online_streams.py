"""Streams whose rows come while a run goes on: who is late, and when the run is over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fedkern_flwr.errors import CohortError
from fedkern_flwr.failure import Failure
from fedkern_flwr.online.drift import rises
from fedkern_flwr.strategy import logger
from fedkern_flwr.wire import PhaseMessage

from .online_release import OnlineRelease

_SAID = "StreamError: "
_ENDED, _LATE = "[FK-STREAM-ENDED]", "[FK-STREAM-LATE]"


class OnlineStreams(OnlineRelease):
    """What an online method does where a client has fewer new rows than a message takes.

    It has no part in that message: whoever is in a sum has as many rows in it as all others. Its
    rows wait for the next one. As any other it is left out when it misses ``max_missed`` messages
    in a row. When too few are left the run ends, with what was learned, as one whose samples were
    all taken.

    Attributes
    ----------
    late_ : dict
        Partition -> whether its stream has ended, of who had too few rows for the last message.
    """

    reply_class: ClassVar[type[PhaseMessage]]

    def _reset(self) -> None:
        super()._reset()
        self.late_: dict[int, bool] = {}

    def require(
        self,
        answers: int,
        number: int,
        phase: str,
        failures: Mapping[int, Failure] | None = None,
        required: int | None = None,
    ) -> None:
        """Note who had too few rows; stop the run when too few clients gave an answer."""
        if phase == self.reply_class.phase:
            said = {node: one.detail for node, one in (failures or {}).items()}
            self.late_ = {
                self.parties_[node].partition: detail.endswith(_ENDED)
                for node, detail in said.items()
                if detail.startswith(_SAID) and detail.endswith((_ENDED, _LATE))
            }
        super().require(answers, number, phase, failures, required)

    def note_drift(self) -> None:
        """Say after how many samples of a client the error rose, if it did."""
        found = rises(self.history_)
        if found:
            logger.warning(
                "the data drifts: the error rises after %s samples of a client",
                ", ".join(map(str, found)),
            )

    def result(self) -> dict[str, Any]:
        """Return the result of the last run, with where the data drifted."""
        return {**super().result(), "drift": rises(self.history_)}

    def streams_end(self, number: int) -> bool:
        """Tell whether a message found too few clients whose streams go on; say so.

        Raises
        ------
        CohortError
            Nothing was learned.
        """
        left = {self.parties_[node].partition for node in self.active_nodes()}
        gone = [p for p, ended in self.late_.items() if ended or p not in left]
        least = self.min_clients
        if self.sums is not None:
            cohort = self.sums.membership.cohorts[0]
            least = len(cohort.members) if self.whole_cohorts else cohort.threshold
            least = max(least, self.min_cohort)
        if not gone or len(left.difference(gone)) >= least:
            return False
        if not any(row["survivors"] for row in self.history_):
            raise CohortError(
                f"{len(gone)} streams have ended, and too few had the rows of a message",
                remedy="take fewer samples per round, or wait longer for rows",
                code="FK-STREAM-SHORT",
            )
        logger.warning(
            "%d streams have ended: the run ends after %d messages", len(gone), number - 1
        )
        return True

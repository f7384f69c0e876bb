"""Streams whose rows come while a run goes on: who is late, and when the run is over."""

from __future__ import annotations

from typing import Any, ClassVar

from fedkern_flwr.errors import CohortError
from fedkern_flwr.nodes import logger
from fedkern_flwr.online.drift import rises
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

    """

    reply_class: ClassVar[type[PhaseMessage]]

    @property
    def late_(self) -> dict[int, bool]:
        """Partition -> whether its stream has ended, of who had too few rows for the last message.

        These clients have said so in place of an answer.
        """
        failures = self.nodes.failures.get(self.reply_class.phase, {})
        return {
            self.parties_[node].partition: one.detail.endswith(_ENDED)
            for node, one in failures.items()
            if one.detail.startswith(_SAID) and one.detail.endswith((_ENDED, _LATE))
        }

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
        left = {self.parties_[node].partition for node in self.nodes.active()}
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

"""What every strategy over a hybrid split needs: the matched rows, exchanges that are repeated."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from flwr.serverapp import Grid

from fedkern_flwr import hybrid
from fedkern_flwr.errors import CohortError, OptionError, ProtocolError
from fedkern_flwr.exchange import Failure, read_reply, request_messages
from fedkern_flwr.hybrid import MissingBlocks, Plan, check_alone, make_plan
from fedkern_flwr.landmarks import Sampling
from fedkern_flwr.least_squares import Penalty
from fedkern_flwr.product_kernel import ProductKernel
from fedkern_flwr.secure_sum import Encoding, RunningSum
from fedkern_flwr.wire import PhaseMessage
from fedkern_flwr.wire import hybrid as wire

from .base import logger
from .hybrid_system import Floats
from .summing import SummingStrategy

_FINAL = ("ProtocolError:", "OptionError:", "TableError:", "SumError:")  # another try is no use


class HybridStrategy(SummingStrategy):
    """Base class of strategies over hospitals and centres.

    Parameters
    ----------
    landmarks : int
        m, number of landmarks.
    sampling : {"U", "N", "P"}
        How they are drawn.
    kernel : {"rbf", "laplacian"}
        The product kernel.
    penalty : {"ridge", "rkhs"}
        The latter needs the distances between landmarks.
    protocol : str
        Name of the protocol.
    missing : {"error", "drop-row", "neutral"}
        What to do with rows that lack a block.
    allow_single : bool
        Whether a single party's values may be shown.
    distance_bits : int
        Bits of a number in the sums of distances.
    attempts : int
        How often an exchange is tried in all.
    **common
        Options of :class:`~fedkern_flwr.strategies.summing.SummingStrategy`.

    Attributes
    ----------
    plan_ : Plan
        Who holds which rows and blocks.
    gammas_ : ndarray of float64, shape (1,) or (m,)
        Width of all landmarks or of each.
    outputs_, classes_, label_bound_
        What the hospitals have labels of.
    step : int
        Number of the exchange at hand.
    model_of : (str, int)
        Of predictions: session and step of the run that made the model.
    lost_state : bool
        Whether somebody has forgotten what the last request needed.
    """

    described = wire.HybridDescribeReply
    fixed: ClassVar[frozenset[str]] = frozenset(
        {"min_clients", "max_missed", "checkpoint_every", "threshold", "min_cohort"}
    )

    def __init__(
        self,
        *,
        landmarks: int,
        sampling: Sampling,
        kernel: ProductKernel,
        penalty: Penalty,
        protocol: str,
        missing: MissingBlocks,
        allow_single: bool,
        distance_bits: int,
        attempts: int,
        **common: Any,
    ) -> None:
        self.landmarks, self.sampling, self.kernel = landmarks, sampling, kernel
        self.penalty, self.protocol, self.missing = penalty, protocol, missing
        self.allow_single, self.attempts = allow_single, attempts
        self.distance_bits = distance_bits
        super().__init__(**common)

    def _reset(self) -> None:
        super()._reset()
        self.plan_ = Plan({}, {}, {})
        self.gammas_: Floats = np.zeros(0)
        self.fingerprints_: dict[str, str] = {}
        self.outputs_, self.classes_, self.label_bound_ = 0, 0, 1.0
        self.model_of: tuple[str, int] = ("", 0)
        self.step, self.lost_state, self.first_step = 0, False, 0
        self.run_seed = 0
        self._cohort_numbers: dict[str, int] = {}
        self._failures: Mapping[int, Failure] = {}

    # -- set-up

    def check_parties(self, parties: Sequence[Any]) -> None:
        """Refuse partitions that clash and ids that come twice."""
        hybrid.check_parties(parties)

    def cohorts(self) -> list[list[int]] | None:
        """Match the rows; return the sets among which is summed, fixed by who holds what."""
        self._make_plan()
        sets: dict[str, list[int]] = {}
        if len(self.plan_.hospitals) > 1:
            sets["hospitals"] = list(self.plan_.hospitals)
        for h, ward in self.plan_.wards.items():
            if ward.centres:
                sets[f"ward {h}"] = sorted(ward.rows)
        for block, holders in self.plan_.blocks.items():
            if len(holders) > 1:
                sets[f"block {block}"] = list(holders)
        if self.penalty == "rkhs" and len(self.plan_.parties) > 1:
            sets["everybody"] = list(self.plan_.parties)
        if self.protocol == "chain":
            sets = {name: members for name, members in sets.items() if name.startswith("ward")}
        if self.penalty == "rkhs" and "everybody" not in sets:
            raise OptionError(
                "penalty rkhs sums distances between landmarks over the parties, and there is one",
                remedy="use penalty ridge",
            )
        self._cohort_numbers = {name: number for number, name in enumerate(sets)}
        return list(sets.values())

    def agreements(self) -> dict[str, tuple[tuple[int, ...], bool, int | None]]:
        """Return block -> (holders, whether to sum moments, who draws its secret).

        Only blocks whose holders must agree on something before they can draw landmarks.
        """
        found = {}
        for block, holders in self.plan_.blocks.items():
            moments = self.sampling == "N" and len(holders) > 1
            if moments and len(holders) == 2 and self.protocol == "secure":
                logger.warning(
                    "block %r has two holders: each can compute the other's means and deviations "
                    "from those of both; sampling U needs none",
                    block,
                )
            leader = None
            unseeded = not self.party_of(holders[0]).seeded
            if self.protocol == "secure" and len(holders) > 2 and unseeded:
                leader = holders[0]
            if self.sampling != "P" and not self.model_of[0] and (moments or leader is not None):
                found[block] = (holders, moments, leader)
        return found

    def gather(self, grid: Grid, *, resume_round: int = 0, secure: bool = False) -> None:
        """Wait for the nodes, match their rows, fix the sets among which is summed."""
        super().gather(grid, resume_round=resume_round, secure=secure)
        if not secure:
            self._make_plan()

    def _make_plan(self) -> None:
        parties = list(self.described_parties())
        self.plan_ = make_plan(parties, self.missing, predict=bool(self.model_of[0]))
        check_alone(
            self.plan_,
            parties,
            secure=self.protocol == "secure",
            allow_single=self.allow_single,
        )
        first = self.party_of(self.plan_.hospitals[0])
        self.outputs_, self.classes_ = first.outputs, first.classes
        self.label_bound_ = first.label_bound
        for h, ward in self.plan_.wards.items():
            if ward.dropped or ward.lacking:
                logger.warning(
                    "partition %d: %d rows dropped, rows without a block: %s",
                    h,
                    ward.dropped,
                    dict(ward.lacking) or "none",
                )
        for c, unknown in self.plan_.unknown.items():
            if unknown:
                logger.info("partition %d: %d rows belong to no hospital", c, unknown)

    # -- exchanges

    @property
    def session(self) -> str:
        """Name of the run."""
        return self._session

    @property
    def public_seed(self) -> int:
        """Seed of the landmarks in the paper's protocols."""
        return self.run_seed

    def save_step(self) -> int:
        """Return the step under which all parties keep what belongs to the run."""
        self.first_step = self.first_step or self.step
        return self.first_step

    def next_step(self) -> None:
        """Begin the next exchange: steps are numbered so that duplicates are noticed."""
        self.step += 1
        self.lost_state = False

    def described_parties(self) -> Iterable[wire.HybridDescribeReply]:
        """Yield the descriptions of all parties by partition."""
        return self.parties_.values()  # type: ignore[return-value]

    def party_of(self, partition: int) -> wire.HybridDescribeReply:
        """Return the description of a party."""
        return next(p for p in self.described_parties() if p.partition == partition)

    def rows_digest(self) -> str:
        """Return a digest of which rows, features and outputs each party has, in this session."""
        digest = hashlib.sha256()
        for party in self.described_parties():
            sizes = (party.partition, party.block, party.rows, party.features, party.outputs)
            digest.update(repr(sizes).encode() + party.ids.tobytes())
        return digest.hexdigest()

    def features_of(self, block: str) -> int:
        """Return the number of features of a block."""
        return self.party_of(self.plan_.blocks[block][0]).features

    def ask(
        self,
        grid: Grid,
        requests: Mapping[int, PhaseMessage],
        reply: type[Any],
        timeout: float,
        sums: Iterable[RunningSum] = (),
        deliveries: Mapping[int, RunningSum] | None = None,
    ) -> dict[int, Any]:
        """Send each party its request; return the proper replies by partition.

        Requests carry the orders of ``sums`` and the totals of ``deliveries``. ``lost_state`` tells
        afterwards whether a party has forgotten what the request needs.
        """
        ordered, messages = list(sums), []
        node_of = {party.partition: node for node, party in self.parties_.items()}
        for partition, request in requests.items():
            node = node_of[partition]
            sections: list[PhaseMessage] = []
            if self.sums is not None:
                if deliveries and partition in deliveries:
                    sections = [deliveries[partition].delivery()]
                sections += self.sums.sections(partition, ordered)
            messages += request_messages(
                request, [node], group_id=str(self.step), sections={node: sections}
            )
        outcome = self.run_phase(
            grid, messages, phase=reply.phase, timeout=timeout, number=self.step, required=0
        )
        self._failures = outcome.failures
        self.lost_state = any(f.detail.startswith("StateError") for f in outcome.failures.values())
        for failure in outcome.failures.values():
            if failure.detail.startswith(_FINAL):
                raise ProtocolError(failure.detail.partition(": ")[2], phase=reply.phase)
        found = {}
        for message in self.in_order(outcome):
            node = message.metadata.src_node_id
            try:
                answer = read_reply(reply, message, party=self.party(node))
                if answer.round != self.step:
                    raise ProtocolError(f"the reply belongs to step {answer.round}")
            except ProtocolError as error:
                self.reject(node, Failure("invalid reply", error.problem), self.step)
                continue
            self.accept(node)
            found[self.parties_[node].partition] = answer
        return found

    def order(
        self,
        name: str,
        length: int,
        bound: float,
        cohort: str,
        *,
        receiver: int | None = None,
        bits: int = 64,
    ) -> RunningSum:
        """Begin a sum of real numbers over a whole cohort."""
        assert self.sums is not None
        return self.sums.order(
            name,
            length,
            Encoding.fixed_point(bound, bits),
            cohort=self._cohort_numbers[cohort],
            receiver=receiver,
            self_masks=False,
        )

    def whole(self, running: RunningSum) -> bool:
        """Tell whether all parties of a sum have contributed."""
        return len(running.uploaded) == len(running.cohort.members)

    def declare(self, running: RunningSum) -> None:
        """Fix the parties of a sum that all have contributed to."""
        assert self.sums is not None
        self.sums.unmask_sections([running])

    def total(self, running: RunningSum) -> Floats:
        """Open a sum that all have contributed to."""
        assert self.sums is not None
        self.declare(running)
        return self.sums.total(running)

    def close(self, running: RunningSum) -> None:
        """Forget a sum."""
        assert self.sums is not None
        self.sums.close(running)

    def single_vector(self, replies: Mapping[int, wire.PlainReply], length: int) -> Floats:
        """Add up vectors that were sent in plain.

        Raises
        ------
        ProtocolError
        """
        total = np.zeros(length)
        for partition, reply in replies.items():
            if len(reply.plain) != 1 or reply.plain[0].shape != (length,):
                raise ProtocolError("its vector is missing", party=f"partition {partition}")
            total += reply.plain[0]
        return total

    def gave_up(self, phase: str) -> CohortError:
        """Return the error with which a run ends when a party does not answer."""
        who = [
            f"partition {self.parties_[node].partition} {failure}"
            for node, failure in sorted(self._failures.items())
        ]
        written = self.checkpoint is not None and self.checkpoint.is_file()
        again = "resume from the checkpoint" if written else "start again"
        remedy = f"mend it and {again}, with more attempts if it answers at times"
        return CohortError(
            f"not all parties answered, {self.attempts} times in a row: "
            f"{', '.join(who[:3]) or 'replies without their sums'}",
            remedy=f"{remedy}; a model of fewer rows is never made",
            phase=phase,
        )

"""What every strategy over a hybrid split needs: the matched rows, exchanges that are repeated."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from fedkern_flwr import hybrid
from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.hybrid import HOSPITAL, MissingBlocks, Plan, check_alone, make_plan
from fedkern_flwr.landmarks import Sampling
from fedkern_flwr.least_squares import Penalty
from fedkern_flwr.product_kernel import ProductKernel
from fedkern_flwr.secure_sum import Encoding, RunningSum
from fedkern_flwr.strategy import logger
from fedkern_flwr.wire import hybrid as wire

from .hybrid_system import Floats
from .whole_cohort import WholeCohortStrategy


class HybridStrategy(WholeCohortStrategy):
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
    distance_bits : int
        Bits of a number in the sums of distances.
    **common
        Options of :class:`~fedkern_flwr.strategies.whole_cohort.WholeCohortStrategy`.

    Attributes
    ----------
    plan_ : Plan
        Who holds which rows and blocks.
    gammas_ : ndarray of float64, shape (1,) or (m,)
        Width of all landmarks or of each.
    outputs_, classes_, label_bound_
        What the hospitals have labels of.
    """

    described = wire.HybridDescribeReply

    def __init__(
        self,
        *,
        landmarks: int,
        sampling: Sampling,
        kernel: ProductKernel,
        penalty: Penalty,
        protocol: str,
        missing: MissingBlocks,
        distance_bits: int,
        **common: Any,
    ) -> None:
        self.landmarks, self.sampling, self.kernel = landmarks, sampling, kernel
        self.penalty, self.protocol, self.missing = penalty, protocol, missing
        self.distance_bits = distance_bits
        super().__init__(**common)

    def _reset(self) -> None:
        super()._reset()
        self.plan_ = Plan({}, {}, {})
        self.gammas_: Floats = np.zeros(0)
        self.fingerprints_: dict[str, str] = {}
        self.outputs_, self.classes_, self.label_bound_ = 0, 0, 1.0
        self._cohort_numbers: dict[str, int] = {}

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
        if self.model_of[0] and not any(p.role == HOSPITAL and p.test_rows for p in parties):
            raise TableError(
                "no hospital holds rows to predict",
                remedy="name test-data in the --node-config of those that shall predict",
            )
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

    def matched(self) -> dict[str, Any]:
        """Return whose rows were matched."""
        return self.plan_.report() if self.plan_.wards else {}

    # -- parties

    @property
    def public_seed(self) -> int:
        """Seed of the landmarks in the paper's protocols."""
        return self.run_seed

    def rows_digest(self) -> str:
        """Return a digest of which rows, features and outputs each party has, in this session."""
        digest = hashlib.sha256()
        for party in self.described_parties():
            sizes = (party.partition, party.block, party.rows, party.features, party.outputs)
            digest.update(repr(sizes).encode() + party.ids.tobytes())
        return digest.hexdigest()

    def features_of(self, block: str) -> int:
        """Return the number of features of a block."""
        return int(self.party_of(self.plan_.blocks[block][0]).features)

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

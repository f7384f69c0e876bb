"""What a solver needs of the parties of FedCG, whatever the protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.hybrid import Plan, Ward
from fedkern_flwr.secure_sum import RunningSum
from fedkern_flwr.wire import hybrid as wire

if TYPE_CHECKING:
    from .fed_cg import FedCG

Floats = NDArray[np.float64]
NOTHING = np.zeros(0)
_NO_BYTES = np.zeros(0, np.uint8)


class HybridSystem(ABC):
    """The linear system of a run, held by the parties.

    Parameters
    ----------
    run : FedCG
        The run at hand, its plan made.
    grid : Grid
    timeout : float
        Seconds to wait for the replies of an exchange.

    Attributes
    ----------
    landmark_kernel : ndarray of shape (m, m) or None
        K_mm, where the penalty needs it.
    fingerprints : dict
        Block -> fingerprint of its landmarks.
    """

    def __init__(self, run: FedCG, grid: Grid, timeout: float) -> None:
        self.run, self.grid, self.timeout = run, grid, timeout
        self.plan: Plan = run.plan_
        self.landmark_kernel: Floats | None = None
        self._moments: dict[str, Floats] = {}
        self._sealed: dict[int, tuple[int, NDArray[Any]]] = {}  # partition -> (from, sealed secret)
        self.fingerprints: dict[str, str] = {}

    @abstractmethod
    def open(self) -> None:
        """Have the kernel made, wherever the protocol keeps it."""

    def equations(self) -> tuple[Floats, Floats]:
        """Return K^T K, shape (m, m), and K^T y, shape (m, k).

        Raises
        ------
        OptionError
            The protocol makes products only.
        """
        raise OptionError(
            f"protocol {self.run.protocol!r} has no normal equations", remedy="use solver cg"
        )

    @abstractmethod
    def products(self, directions: Floats, *, labels: bool = False) -> tuple[Floats, Floats]:
        """Return (K^T y if ``labels``, K^T K P) for directions P of shape (m, j)."""

    def predictions(self, coefficients: Floats) -> Mapping[int, Floats]:
        """Return predictions of held-out rows per hospital, where hospitals cannot make them."""
        return {}

    @property
    def most_rows(self) -> float:
        """Largest number of training rows of a hospital: bounds its sums of kernel values."""
        return max(1.0, *(float(w.train) for w in self.plan.wards.values())) * (1.0 + 1e-9)

    # -- landmarks

    def agree(self) -> None:
        """Add up the moments and pass on the secrets of blocks that several parties hold.

        Nothing is asked where there are none. One exchange.
        """
        run, blocks = self.run, self.run.agreements()
        if not blocks:
            return
        whole = {h: slice(0, ward.total) for h, ward in self.plan.wards.items()}
        for _ in range(run.attempts):
            run.next_step()
            sums: dict[str, RunningSum] = {}
            requests = {}
            for block, (holders, moments, leader) in blocks.items():
                for p in holders:
                    peers = [q for q in holders if q != p] if p == leader else []
                    requests[p] = self.rows_request(
                        wire.MomentsRequest,
                        p,
                        whole,
                        moments=moments,
                        peers=np.array(peers, np.int32),
                    )
                if moments and run.protocol == "secure":
                    length = 1 + 2 * run.features_of(block)
                    sums[block] = run.order(
                        f"moments/{block}", length, self._held_rows, f"block {block}"
                    )
            replies = run.ask(self.grid, requests, wire.MomentsReply, self.timeout, sums.values())
            if len(replies) == len(requests) and all(map(run.whole, sums.values())):
                self._moments = {block: run.total(running) for block, running in sums.items()}
                self._take_agreements(blocks, replies)
                return
            for running in sums.values():
                run.close(running)
        raise run.gave_up("hybrid-moments")

    def _take_agreements(self, blocks: Mapping[str, Any], replies: Mapping[int, Any]) -> None:
        for block, (holders, moments, leader) in blocks.items():
            if moments and block not in self._moments:  # the paper's protocols hide nothing
                length = 1 + 2 * self.run.features_of(block)
                plain = [replies[p].plain for p in holders]
                if any(vector.shape != (length,) for vector in plain):
                    raise ProtocolError(f"moments of block {block!r} are missing")
                self._moments[block] = np.sum(plain, axis=0)
            if leader is not None:
                peers = [q for q in holders if q != leader]
                if len(replies[leader].sealed) != len(peers):
                    raise ProtocolError(
                        "the secret of its block is missing", party=f"partition {leader}"
                    )
                for q, sealed in zip(peers, replies[leader].sealed, strict=True):
                    self._sealed[q] = (leader, sealed)

    @property
    def _held_rows(self) -> float:
        """Largest number of training rows that one party may hold of a block."""
        return max(1.0, float(sum(w.train for w in self.plan.wards.values()))) * (1.0 + 1e-9)

    # -- requests about rows

    def rows_request(
        self, kind: Any, partition: int, parts: Mapping[int, slice], **more: Any
    ) -> Any:
        """Return a request to a party about rows of hospitals, as far as it has any of them."""
        wards = [ward for ward in self.plan.wards.values() if partition in ward.rows]
        wards = [ward for ward in wards if ward.partition in parts]

        def whole(of: Callable[[Ward], int]) -> NDArray[np.int32]:
            return np.array([of(ward) for ward in wards], np.int32)

        return kind(
            session=self.run.session,
            round=self.run.step,
            hospitals=whole(lambda w: w.partition),
            trains=whole(lambda w: w.train),
            starts=whole(lambda w: parts[w.partition].start),
            stops=whole(lambda w: parts[w.partition].stop),
            rows=tuple(ward.rows[partition] for ward in wards),
            **more,
        )

    def tell_everybody(self, request: Any, reply: Any) -> dict[int, Any]:
        """Tell all parties rows, landmarks and widths; return their replies (one exchange).

        Whoever does not answer is asked again, alone.

        Raises
        ------
        CohortError
        """
        run = self.run
        self.agree()
        whole = {h: slice(0, ward.total) for h, ward in self.plan.wards.items()}
        replies: dict[int, Any] = {}
        for _ in range(run.attempts):
            run.next_step()
            requests = {
                p: self.rows_request(request, p, whole, **self.landmark_fields(p))
                for p in self.plan.parties
                if p not in replies
            }
            replies |= run.ask(self.grid, requests, reply, self.timeout)
            if len(replies) == len(self.plan.parties):
                self.take_fingerprints(replies)
                return replies
        raise run.gave_up(reply.phase)

    def landmark_fields(self, partition: int) -> dict[str, Any]:
        """Return what a party must know to draw its landmarks and make its kernel."""
        run, party = self.run, self.run.party_of(partition)
        holders = self.plan.blocks.get(party.block, ())
        seed_from, sealed = self._sealed.get(partition, (-1, _NO_BYTES))
        secret = run.protocol == "secure"
        if secret and party.features and not party.seeded and len(holders) == 2:
            seed_from = next(p for p in holders if p != partition)
        return {
            "variant": run.protocol,
            "kernel": run.kernel,
            "sampling": run.sampling,
            "landmarks": run.landmarks,
            "seed_from": seed_from,
            "public_seed": -1 if secret else run.public_seed,
            "model": run.model_of[0],
            "model_round": run.model_of[1],
            "save_as": run.save_step(),
            "landmark_pairs": bool(party.features) and holders[:1] == (partition,),
            "keep_training": run.chosen_solver == "cg",
            "gammas": run.gammas_,
            "moments": self._moments.get(party.block, NOTHING),
            "sealed_seed": sealed,
        }

    def take_fingerprints(self, replies: Mapping[int, wire.DistancesReply]) -> None:
        """Check that all holders of a block have the same landmarks, and the model's.

        Raises
        ------
        ProtocolError
        """
        for block, holders in self.plan.blocks.items():
            for partition in holders:
                if partition not in replies:
                    continue
                found = replies[partition].fingerprint.hex()
                if self.fingerprints.setdefault(block, found) != found:
                    raise ProtocolError(
                        f"its landmarks of block {block!r} differ from those of the other holders",
                        remedy="configure the same landmark seed at all holders of the block",
                        party=f"partition {partition}",
                    )
                expected = self.run.fingerprints_.get(block, found)
                if expected != found:
                    raise ProtocolError(
                        f"its landmarks of block {block!r} are not those of the model",
                        remedy="give it the state_dir or the landmark seed of the training run",
                        party=f"partition {partition}",
                    )

    def check_one_output(self, outputs: int) -> None:
        """Refuse several outputs.

        Raises
        ------
        OptionError
        """
        if outputs != 1:
            raise OptionError(
                f"protocol {self.run.protocol!r} solves for one output, the labels make {outputs}",
                remedy="use protocol secure or naive",
            )

"""A party of FedCG with a block of features: which rows it is asked about, and its landmarks."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import CheckpointError
from fedkern_flwr.guard import SumRule, check_selection, refusal
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.fourier import block_phases, draw_block
from fedkern_flwr.hybrid.landmarks import (
    SAMPLINGS,
    draw_landmarks,
    moment_sums,
    moments_length,
    read_moments,
    seed_fingerprint,
)
from fedkern_flwr.hybrid.parties import HOSPITAL
from fedkern_flwr.kernels.product import PRODUCT_KERNELS, partial_distances
from fedkern_flwr.node.answering import answers
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.envelope import derive_key, seal_message, unseal_message

from .fed_cg_kernel import RunState
from .fed_cg_table import HybridTable
from .party_table import Floats
from .table_client import TableClient

BASES = ("landmarks", "fourier")
_SEED_BYTES = 32
_SETTINGS = ("kernel", "landmarks", "basis", "sampling")
_ROUNDED = 1.0 + 5e-10  # less than what strategies allow for rounding


class LandmarkedParty(TableClient):
    """Base class of FedCG's client: its rows, its landmarks, distances between them.

    Attributes
    ----------
    table : HybridTable
        Its rows.
    block : str
        Name of its block of features.
    landmark_seed : bytes or None
        Secret that was configured.
    """

    state_class = RunState
    kept: RunState
    table: HybridTable
    block: str
    landmark_seed: bytes | None

    # -- settings and rows

    def _begin(self, request: wire.DistancesRequest) -> None:
        """Take up the settings of a run; a request that is repeated finds them again."""
        known = request.kernel in PRODUCT_KERNELS and request.sampling in SAMPLINGS
        chosen = not request.model and not len(request.gammas)
        fits = len(request.gammas) in (1, request.landmarks) or chosen
        fits = fits and bool((request.gammas > 0.0).all())
        if not known or not fits or request.basis not in BASES:
            raise self.wrong("the kernel or its widths do not fit")
        plain = len(request.gammas) == 1 and request.sampling == "U"
        even = request.landmarks % 2 == 0
        if request.basis == "fourier" and not (plain and even):
            raise self.wrong("features of another kind than a node makes are asked for")
        if self.budget is not None and request.basis != "fourier":
            raise self.wrong("with a budget of privacy features are of basis 'fourier' only")
        kept = self.kept
        if kept.begun:
            return
        if request.model:
            self._remember(request)
        else:
            kept.seed = self._landmark_secret(request)
            if request.sampling in ("N", "C"):
                kept.arrays["moments"] = self._moments(request)
        kept.arrays["gammas"] = request.gammas
        kept.settings |= {
            **{name: getattr(request, name) for name in _SETTINGS},
            "model": request.model or request.session,
        }

    def _fix_rows(self, request: wire.MomentsRequest | wire.DistancesRequest) -> None:
        """Refuse other rows than before: sums that differ by one patient would show that one."""
        table, party = self.table, self.name
        for (hospital, train, start, stop), rows in zip(request.parts, request.rows, strict=True):
            if not 0 <= train <= len(rows) or not 0 <= start <= stop <= len(rows):
                raise refusal("parts of rows that there are not", party)
            if hospital == self.partition:
                check_selection(rows[:train], range(table.rows), party=party)
                check_selection(rows[train:], self._held_out, party=party)
            else:
                check_selection(rows, range(table.rows + table.tests), party=party)
            if self.budget is not None:
                self._check_apart(hospital, rows)
            text = b"%d/" % train + np.ascontiguousarray(rows, "<i4").tobytes()
            digest, name = hashlib.sha256(text).hexdigest(), f"rows of {hospital}"
            if not self.kept.pin(name, digest):
                raise refusal("other rows are asked for than before in this run", party)
            self._note(name, rows[:train])

    def _check_apart(self, hospital: int, rows: NDArray[Any]) -> None:
        """Refuse rows that are named for two hospitals: each moves the sums of both."""
        named = self.kept.arrays.get("named", np.zeros((0, 2), np.int64))
        mine = rows[rows >= 0]
        if np.isin(mine, named[named[:, 0] != hospital, 1]).any():
            raise refusal("a row is asked for by two hospitals, which costs twice", self.name)
        if not (named[:, 0] == hospital).any():
            both = np.column_stack([np.full(len(mine), hospital), mine])
            self.kept.arrays["named"] = np.concatenate([named, both])

    @property
    def _held_out(self) -> range:
        """Positions of held-out rows among those that are announced."""
        return range(self.table.rows, self.table.rows + self.table.tests)

    def _check_share(self, rows: NDArray[Any]) -> None:
        """Refuse to stand in a sum with fewer training rows than the node's owner allows."""
        last = self.table.rows + (0 if self.role == HOSPITAL else self.table.tests)
        check_selection(rows, range(last), least=self.policy.min_own_rows, party=self.name)

    def _note(self, purpose: str, rows: NDArray[Any], *, each: bool = False) -> None:
        """Note what is made of which announced rows; -1 is a row that is not held."""
        if not self.simulated:
            self.note_rows(purpose, self.places(rows[rows >= 0]), each=each)

    # -- landmarks

    @answers(wire.MomentsRequest)
    def agree(self, request: wire.MomentsRequest) -> wire.MomentsReply:
        """Add up the moments of the block; draw and seal its secret, if it falls to this party."""
        self._fix_rows(request)
        sealed = []
        if request.moments:
            if request.sampling not in ("N", "C"):
                raise self.wrong("moments are asked for of landmarks that need none")
            positions, name = training_positions(request), f"moments/{self.block}"
            self._note(name, positions)
            length = moments_length(self.table.features, request.sampling)
            self.secure_sums.check(name, replace(wider(len(positions)), length=length))
            self._check_share(np.unique(positions))
            x = self.features_at(positions)
            self.secure_sums.contribute(name, moment_sums(x, self.table.ranges, request.sampling))
        for peer in request.peers.tolist():
            self.kept.seed = self.kept.seed or secrets.token_bytes(_SEED_BYTES)
            place = ("landmarks", self.session, self.block, self.partition, peer)
            sealed.append(seal_message(self.pair_secret(peer), self.kept.seed, *place))
        secret = tuple(np.frombuffer(one, np.uint8) for one in sealed)
        return wire.MomentsReply(sealed=secret)

    def _landmark_secret(self, request: wire.DistancesRequest) -> bytes:
        if self.landmark_seed is not None:
            return self.landmark_seed
        other, session = request.seed_from, self.session
        if request.sealed_seed.size:
            place = ("landmarks", session, self.block, other, self.partition)
            return unseal_message(self.pair_secret(other), request.sealed_seed.tobytes(), *place)
        if other >= 0:
            return derive_key(self.pair_secret(other), "landmarks", session, self.block)
        return self.kept.seed or secrets.token_bytes(_SEED_BYTES)

    def _moments(self, request: wire.DistancesRequest) -> Floats:
        sums, ranges, sampling = request.moments, self.table.ranges, request.sampling
        if not sums.size:
            x = self.features_at(training_positions(request))
            sums = moment_sums(x, ranges, sampling)
        if sums.shape != (moments_length(self.table.features, sampling),):
            raise self.wrong("moments of another number of features")
        return read_moments(sums, ranges, sampling)

    def _remember(self, request: wire.DistancesRequest) -> None:
        """Take up the secret and moments that this party kept of the run that made a model."""
        path = self.saved_state(request.model, request.model_round)
        if path is not None and path.is_file():
            old = RunState.unpack(path.read_bytes())
            self.kept.borrow(old.seed)
            self.kept.arrays |= {k: v for k, v in old.arrays.items() if k == "moments"}
        elif self.landmark_seed and request.sampling == "U":
            self.kept.borrow(self.landmark_seed)
        else:
            raise CheckpointError(
                "the landmarks of the model are not known here any more",
                remedy="give the client the state_dir that it had when the model was made",
                party=self.name,
            )

    def _landmarks(self) -> Floats:
        if not self.table.features:
            return np.zeros((self.kept.landmarks, 0))
        if self.kept.fourier:
            kernel, (gamma,) = self.kept.settings["kernel"], self.kept.arrays["gammas"]
            width = self.table.features
            return draw_block(self.kept.seed, self.kept.summed, width, kernel, float(gamma))
        moments = self.kept.arrays.get("moments")
        return draw_landmarks(self.kept.seed, self.kept.landmarks, self.table.ranges, moments)

    def _fingerprint(self) -> bytes:
        model = str(self.kept.settings["model"])
        drawn_from = np.vstack([self.table.ranges.T, *self.kept.arrays.get("moments", ())])
        return seed_fingerprint(self.kept.seed, model, self.block, drawn_from)

    # -- distances

    def _distances(self, rows: NDArray[Any], landmarks: Floats) -> Floats:
        """Return partial distances, or phases, of announced rows; zeros where none is held (-1)."""
        held = rows >= 0
        out = np.zeros((len(rows), self.kept.summed))
        if self.table.features and held.any():
            x, kernel = self.features_at(rows[held]), self.kept.settings["kernel"]
            fourier = self.kept.fourier
            found = (
                block_phases(x, landmarks) if fourier else partial_distances(x, landmarks, kernel)
            )
            if held.all():
                return found
            out[held] = found
        return out


def training_positions(request: wire.MomentsRequest | wire.DistancesRequest) -> NDArray[Any]:
    """Return the positions of all training rows that a request names and this party holds."""
    named = [r[:train] for (_, train, *_), r in zip(request.parts, request.rows, strict=True)]
    positions = np.concatenate([np.zeros(0, np.int32), *named])
    return positions[positions >= 0]


def wider(bound: float) -> SumRule:
    """Return the rule of a sum whose bound is the largest of those of its parties."""
    own = max(bound * _ROUNDED, np.finfo(np.float64).tiny)
    return SumRule(Encoding.fixed_point(own), wider=True)

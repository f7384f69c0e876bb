"""What an attack recovered, trial by trial, against what a guess without knowledge recovers.

Four questions turn any attack into trials whose chance is known exactly:

* :meth:`Sheet.rows`: the true row is mixed with nine others of the same table, and the one nearest
  to what the attack computed is taken for it. Chance is 1/10.
* :meth:`Sheet.members`: a row behind a sum is mixed with nine that are not, and the one nearest to
  any row that the attack computed is taken for it. Chance is 1/10.
* :meth:`Sheet.distances`: of three rows, is the second or the third nearer to the first? Chance is
  1/2. For attacks that find rows up to a motion.
* :meth:`Sheet.order`: which of a pair of two kinds is of the first kind? Chance is 1/2.

What is taken for granted is that rows are exchangeable: an attack that saw nothing of them cannot
tell which of ten is which, however it makes its guesses. No row is left out as too similar to the
true one, ties are broken by lot, and where an attack returns nothing the lot decides. Triples and
pairs share no row.

A reconstruction of several columns has a correlation as well: Spearman's, over all values, each
column ranked by itself, so that neither scale nor a few huge guesses decide it.

Source: identification among decoys and forced choice are the usual games in which leakage is
measured, as in Carlini et al., "Membership Inference Attacks From First Principles", 2022.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist
from scipy.stats import binom, rankdata

from fedkern_flwr.errors import OptionError

Floats = NDArray[np.float64]

#: Rows among which the true one is to be found.
CHOICES = 10
#: Confidence of the interval of chance.
CONFIDENCE = 0.95
#: Values a correlation needs, so that a guess without knowledge stays well below the limit.
LEAST_VALUES = 1500
#: Probability by chance below which nothing is doubtful, and fewer trials of a costly attack do.
CLEAR = 1e-6
#: Trials that a costly attack has at least.
LEAST_COSTLY = 30
#: Absolute correlation from which on a reconstruction counts as one.
CORRELATION = 0.1
_HALF = 0.5


@dataclass(frozen=True)
class Subject:
    """What is attacked.

    Attributes
    ----------
    attack : str
        Key of the attack in :data:`~.catalogue.ATTACKS`.
    viewer : str
        Who looks.
    target : str
        What is looked for, and whose it is.
    documented : bool (default: False)
        Whether the documentation lists it as what remains: it is shown and is no verdict.
    """

    attack: str
    viewer: str
    target: str
    documented: bool = False


@dataclass
class Evidence:
    """Trials of one subject.

    Attributes
    ----------
    chance : float
        Probability that a guess without knowledge hits.
    hits : list of bool
        One per trial.
    pairs : list of (ndarray, ndarray)
        Ranks of what was computed and of the truth, each from -1 to 1.
    costly : bool
        Whether the attack takes so long that no more trials are made than it takes to be sure.
    """

    chance: float
    costly: bool = field(default=False, kw_only=True)
    hits: list[bool] = field(default_factory=list)
    pairs: list[tuple[Floats, Floats]] = field(default_factory=list)

    @property
    def values(self) -> int:
        """Number of values of the correlation."""
        return sum(len(one) for one, _ in self.pairs)

    @property
    def correlation(self) -> float | None:
        """Correlation of what was computed with the truth; None where nothing was reconstructed."""
        if not self.pairs:
            return None
        found, truth = (np.concatenate(side) for side in zip(*self.pairs, strict=True))
        size = float(np.linalg.norm(found) * np.linalg.norm(truth))
        return float(found @ truth) / size if size else 0.0

    def enough(self, trials: int) -> bool:
        """Whether there are so many trials, and values where there is a correlation."""
        rated = len(self.hits) >= trials or (not self.hits and bool(self.pairs))
        clear = self.costly and len(self.hits) >= LEAST_COSTLY and self.certain
        return (rated or clear) and (not self.pairs or self.values >= LEAST_VALUES)

    @property
    def recovered(self) -> float | None:
        """Share of hits; None for a check that is a correlation only."""
        return sum(self.hits) / len(self.hits) if self.hits else None

    @property
    def interval(self) -> tuple[float, float]:
        """Where a share of hits by chance lies with 95 % probability, exact binomial."""
        n, tail = len(self.hits), (1.0 - CONFIDENCE) / 2.0
        low, high = (binom.ppf(p, n, self.chance) / n for p in (tail, 1.0 - tail))
        return float(low), float(high)

    @property
    def p_value(self) -> float | None:
        """Probability of as many hits or more by chance; None without trials."""
        if not self.hits:
            return None
        return float(binom.sf(sum(self.hits) - 1, len(self.hits), self.chance))

    @property
    def certain(self) -> bool:
        """Whether chance cannot explain the hits."""
        return self.p_value is not None and self.p_value < CLEAR

    @property
    def within(self) -> bool:
        """Whether all lies within what chance explains: the plain 95 % interval, and |r| < 0.1."""
        share = self.recovered
        inside = share is None or self.interval[0] <= share <= self.interval[1]
        return inside and abs(self.correlation or 0.0) < CORRELATION


class Sheet:
    """Collects the evidence of an audit.

    Parameters
    ----------
    seed : int
        Of decoys, triples, pairs and lots.
    trials : int (default: 1)
        Least trials of a check; what has so many is not attacked again where that is costly.
    wanted : frozenset of Subject, optional
        What is to be checked; by default all.

    Attributes
    ----------
    evidence : dict
        Subject -> its trials, in the order in which they came.
    """

    def __init__(
        self, seed: int, trials: int = 1, wanted: frozenset[Subject] | None = None
    ) -> None:
        self.rng, self.trials = np.random.default_rng(seed), trials
        self.wanted = wanted
        self.evidence: dict[Subject, Evidence] = {}

    def rows(self, subject: Subject, found: ArrayLike | None, truth: ArrayLike) -> None:
        """Enter rows that were reconstructed.

        Parameters
        ----------
        subject : Subject
            What is attacked.
        found : ndarray, shape (n, d) or (n, k, d), or None
            What the attack computed, or k alternatives of which nobody can tell which one it is;
            not finite, or None, where it found nothing.
        truth : ndarray, shape (n, d)
            The true rows.

        Raises
        ------
        OptionError
            There are too few rows to choose among.
        """
        true = np.asarray(truth, np.float64)
        if len(true) < CHOICES:
            raise OptionError(
                f"{len(true)} rows are too few to hide the true one among {CHOICES}",
                remedy="audit with more rows, users or rounds",
            )
        guess = np.full(true.shape, np.nan) if found is None else np.array(found, np.float64)
        if guess.ndim == 2 and true.shape[1] > 1:  # a single column has too few values
            self.values(subject, guess, true)
        guess = guess.reshape(len(true), -1, true.shape[1])
        spread = true.std(axis=0)
        spread[spread == 0.0] = 1.0
        scaled = true / spread
        hits = [self._nearest(guesses / spread, scaled, i) for i, guesses in enumerate(guess)]
        self._entry(subject, 1.0 / CHOICES).hits.extend(hits)

    def members(self, subject: Subject, found: Floats, members: Floats, others: Floats) -> None:
        """Enter rows that were computed from a sum, in any order.

        Parameters
        ----------
        subject : Subject
            What is attacked.
        found : ndarray, shape (k, d)
            What the attack computed.
        members : ndarray, shape (n, d)
            The rows behind the sum.
        others : ndarray, shape (m, d)
            Rows of the same table that are not.

        Raises
        ------
        OptionError
            There are too few other rows to choose among.
        """
        if len(others) < CHOICES - 1:
            raise OptionError(
                f"{len(others)} rows are too few to hide one of a sum among {CHOICES}",
                remedy="audit with more rounds",
            )
        spread = np.concatenate([members, others]).std(axis=0)
        spread[spread == 0.0] = 1.0
        entry = self._entry(subject, 1.0 / CHOICES)
        for member in members:
            chosen = self.rng.choice(len(others), CHOICES - 1, replace=False)
            rows = np.concatenate([others[chosen], member[None]])
            entry.hits.append(self._among(found / spread, rows / spread))

    def done(self, subject: Subject) -> bool:
        """Whether a subject has its trials, or is not wanted."""
        if self.wanted is not None and subject not in self.wanted:
            return True
        return subject in self.evidence and self.evidence[subject].enough(self.trials)

    def values(self, subject: Subject, found: Floats, truth: Floats) -> None:
        """Enter values that were reconstructed, columns of shape (n, d), without a choice."""
        lost = ~np.isfinite(found)
        guess = np.where(lost, self.rng.standard_normal(found.shape), found)
        pair = _ranks(guess).ravel(), _ranks(truth).ravel()
        self._entry(subject, 1.0 / CHOICES).pairs.append(pair)

    def distances(self, subject: Subject, found: Floats | None, rows: Floats) -> None:
        """Enter distances among rows that were reconstructed, in any unit.

        Parameters
        ----------
        subject : Subject
            What is attacked.
        found : ndarray, shape (n, n), or None
            What the attack computed.
        rows : ndarray, shape (n, d)
            The true rows.
        """
        many = len(rows) // 3
        one, two, three = self.rng.permutation(len(rows))[: 3 * many].reshape(3, many)
        near = np.linalg.norm(rows[one] - rows[two], axis=1)
        far = np.linalg.norm(rows[one] - rows[three], axis=1)
        guess = np.zeros(many) if found is None else found[one, two] - found[one, three]
        self._choose(subject, guess, near < far, near != far)

    def order(self, subject: Subject, scores: Floats | None, kind: NDArray[np.bool_]) -> None:
        """Enter scores, shape (n,), that tell what is of a kind: the higher, the more likely."""
        first, second = (self.rng.permutation(np.flatnonzero(k)) for k in (kind, ~kind))
        many = min(len(first), len(second))
        swap = self.rng.random(many) < _HALF
        one = np.where(swap, second[:many], first[:many])
        two = np.where(swap, first[:many], second[:many])
        guess = np.zeros(many) if scores is None else scores[two] - scores[one]
        self._choose(subject, guess, ~swap, np.ones(many, np.bool_))

    def pairs(self, subject: Subject, first: Floats, second: Floats) -> None:
        """Enter scores of pairs, each of shape (n,), of which the first should be the higher."""
        nothing = np.ones(len(first), np.bool_)
        self._choose(subject, second - first, nothing, nothing)

    def guesses(self, subject: Subject, misfits: Floats) -> None:
        """Enter guesses that were tested, shape (n, k): the first of each row is the true one."""
        for row in misfits:
            best = np.flatnonzero(row <= row.min() + 1e-12)
            hit = bool(self.rng.choice(best) == 0)
            self._entry(subject, 1.0 / misfits.shape[1]).hits.append(hit)

    def counts(self, subject: Subject, found: NDArray[np.bool_], *, costly: bool = False) -> None:
        """Enter what was found with certainty, shape (n,): a guess would find nothing."""
        entry = self.evidence.setdefault(subject, Evidence(0.0, costly=costly))
        entry.hits.extend(found.tolist())

    def _choose(
        self,
        subject: Subject,
        guess: Floats,
        truth: NDArray[np.bool_],
        usable: NDArray[np.bool_],
    ) -> None:
        """Enter choices between two: negative guesses say that ``truth`` holds."""
        lot = self.rng.random(len(guess)) < _HALF
        unclear = ~np.isfinite(guess) | (guess == 0.0)
        said = np.where(unclear, lot, guess < 0.0)
        hits = (said == truth)[usable]
        self._entry(subject, _HALF).hits.extend(hits.tolist())

    def _nearest(self, guesses: Floats, rows: Floats, index: int) -> bool:
        """Tell whether of ten rows the one at ``index`` is nearest to some guess, (k, d)."""
        others = self.rng.choice(len(rows) - 1, CHOICES - 1, replace=False)
        return self._among(guesses, rows[np.append(others + (others >= index), index)])

    def _among(self, guesses: Floats, rows: Floats) -> bool:
        """Tell whether of ten rows the last one is nearest to some guess, (k, d)."""
        finite = guesses[np.isfinite(guesses).all(axis=1)]
        if not len(finite):
            return bool(self.rng.integers(CHOICES) == 0)
        errors = cdist(rows, finite).min(axis=1)
        best = np.flatnonzero(errors <= errors.min() * (1.0 + 1e-9))
        return bool(self.rng.choice(best) == CHOICES - 1)

    def _entry(self, subject: Subject, chance: float) -> Evidence:
        return self.evidence.setdefault(subject, Evidence(chance))


def two_kinds(targets: Floats) -> NDArray[np.bool_]:
    """Part labels into two kinds for :meth:`Sheet.order`: above the median, or the largest."""
    kind = targets > np.median(targets)
    if kind.all() or not kind.any():
        kind = targets >= targets.max()
    return np.asarray(kind)


def _ranks(values: Any) -> Floats:
    """Return ranks of each column from -1 to 1; a constant column has zeros."""
    ranks = rankdata(values, axis=0)
    return np.asarray((2.0 * ranks - len(values) - 1.0) / max(1, len(values) - 1))

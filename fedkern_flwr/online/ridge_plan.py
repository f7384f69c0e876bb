"""Plan which sums of POF-RLS go with which message, within the release limit.

Products of w columns need 2 w hidden rows. With fewer rows than columns, the columns of whole
numbers span all whole vectors, and lattice reduction finds the rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import RefusedError
from ..guard.cells import ROWS_PER_COLUMN
from ..guard.counting import least_samples
from .messages import SUM_BOUND
from .ridge import numbers

#: Most samples per message, unless set by the user or needed for raw columns.
MOST_SAMPLES = 50
#: Features are summed over at most so many times the samples that one message would need.
_WAIT = 2


@dataclass(frozen=True)
class Plan:
    """Sums of each message of a run.

    Attributes
    ----------
    stops : tuple of int
        Samples of each client after each message. A message takes as many as all before it, within
        limits, so at least half are always summed.
    starts : tuple of int
        First sample of each client that is in no sum of features before the message.
    sums : tuple of bool
        Whether the message sums features, of all samples from ``starts`` on.
    raw : int
        Fewest samples of a message that sums raw columns; 0 for none.
    features, kernels : int
        Summed frequencies per kernel, and summed kernels; 0 for none.
    """

    stops: tuple[int, ...] = (1,)
    starts: tuple[int, ...] = (0,)
    sums: tuple[bool, ...] = (False,)
    raw: int = 0
    features: int = 0
    kernels: int = 0


def plan(
    samples: int,
    unknowns: float,
    *,
    given: int | None,
    columns: int,
    kernels: int,
    features: int,
    fixed: int,
    up: float = math.inf,
    down: float = math.inf,
    known: bool = True,
    steady: bool = False,
    hidden: float = math.inf,
    fewest: int = 1,
) -> Plan:
    """Plan messages that never release more numbers about rows than these have unknowns.

    Raw columns come first, in every message, then kernels, then frequencies of the first kernel:
    fewer kernels with all frequencies predict better. Features are summed over several messages,
    which are as short as raw columns allow.

    Parameters
    ----------
    samples : int
        T, of each client.
    unknowns, hidden : float
        Of a message with one sample of each client; infinite without limit.
    given : int or None
        Samples per message, if set by the user.
    columns : int
        Raw columns with a one; 0 to sum none.
    kernels, features : int
        Kernels to sum, and frequencies of each.
    fixed : int
        Further numbers of each message.
    up, down : float
        Most numbers of a message, most coefficients to a client.
    known : bool
        Whether kernels have a width before raw columns are summed.
    steady : bool
        Whether the first messages are as long as the others.
    fewest : int
        Messages have multiples of so many samples, so that two runs share boundaries.
    """
    room = unknowns if unknowns > 0.0 else math.inf
    wide = ROWS_PER_COLUMN / hidden if hidden > 0.0 else 0.0  # samples that a column needs
    fewest = min(fewest, given or samples, samples)

    def least(count: int, width: int) -> int:
        few = max(1, least_samples(fixed + count, room), math.ceil(wide * width))
        return fewest * math.ceil(few / fewest)

    raw = numbers(columns) if columns else 0
    most = min(samples if given is None else given, samples)
    enough = most if given or not kernels else min(MOST_SAMPLES, most // 4)
    for_raw = least(raw, columns) if raw and fixed + raw <= up and columns <= down else 0
    if for_raw > max(fewest, enough):
        for_raw = 0
    raw *= for_raw > 0
    if raw and fewest > 1:  # windows of two runs differ in products of raw columns, too
        fewest = max(fewest, math.ceil(wide * columns))
        for_raw = fewest * math.ceil(for_raw / fewest)
    if given is None:
        shared = raw + kernels * numbers(2 * features)
        # nothing is shared: clients are independent
        wanted = least(shared, 2 * features * (kernels > 0)) if shared else MOST_SAMPLES
        most = max(for_raw, min(wanted, MOST_SAMPLES, samples), fewest)
    left, down = min(room * most, up) - fixed - raw, down - columns * (for_raw > 0)

    def within() -> bool:
        many = kernels * 2 * features
        narrow = not many or wide * 2 * features <= most
        return narrow and kernels * numbers(2 * features) <= left and many <= down

    while kernels > 1 and not within():
        kernels -= 1
    while features and not within():
        features -= 1
    some = kernels * numbers(2 * features)
    few = least(raw + some, 2 * features) if some else 0
    if given is None and for_raw and few:
        longest = min(_WAIT * few, max(few, MOST_SAMPLES))
        steps = range(for_raw, few + 1, fewest)
        fit = (n for n in steps if _window(n, fixed + raw, some, room) <= longest)
        most = next(fit, few)
    stops = _stops(samples, most if steady else for_raw or few or most, most)
    starts, sums, start, released = list[int](), list[bool](), 0, 0
    for number, stop in enumerate(stops):
        starts.append(start if some else stops[number - 1] if number else 0)
        released += fixed + raw
        may = (number > 0 or known or not for_raw) and released + some <= room * (stop - start)
        may = may and wide * 2 * features <= stop - start
        sums.append(some > 0 and may)
        if sums[-1]:
            start, released = stop, 0
    return Plan(tuple(stops), tuple(starts), tuple(sums), for_raw, features if few else 0, kernels)


def too_wide(width: int, hidden: float) -> str:
    """Return why products of ``width`` columns are not allowed; empty if they are."""
    if ROWS_PER_COLUMN * width <= hidden:
        return ""
    return f"products of {width} columns would be opened about {hidden:.0f} hidden rows"


def wide_sum(problem: str, party: str = "") -> RefusedError:
    """Return the error for products of too many columns, on either side."""
    return RefusedError(
        f"refused: {problem}",
        remedy=f"take more samples per message or fewer columns: each needs {ROWS_PER_COLUMN} rows",
        party=party,
        code="FK-CELLS-WIDTH",
    )


def _stops(samples: int, first: int, most: int) -> list[int]:
    stops = [0]
    while (rest := samples - stops[-1]) > 0:
        step = min(max(first, stops[-1]), most)
        stops.append(samples if rest - step < first else stops[-1] + step)
    return stops[1:]


def _window(step: int, each: int, some: int, room: float) -> float:
    """Return after how many samples features can be summed, with ``step`` samples per message."""
    left = room * step - each
    return step * math.ceil(some / left) if left > 0.0 else math.inf


def scale(samples: int) -> float:
    """Return the factor by which sums of ``samples`` samples fill the bound of secure sums.

    A power of two. Products of features and labels are at most 1; half of the bound is reserve.
    """
    return float(SUM_BOUND) / 2.0 ** (1 + math.ceil(math.log2(samples)))

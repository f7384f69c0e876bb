"""Each named sum is opened once in a run.

A node helps to open a sum of masked vectors. With a second sum of the same name the server would
learn the same values over other survivors, or other numbers about the same rows. Methods that learn
in rounds say which field of a request numbers them: then a later round is another sum. Sums without
self masks need no help. They are repeated over the same cohort only
(:meth:`~fedkern_flwr.secure_sum.party.PartyRules.check_order`).
"""

from __future__ import annotations

from ..errors import RefusedError
from .orders import refusal
from .record import RunRecord


def note_order(
    record: RunRecord,
    name: str,
    place: tuple[int, int],
    *,
    number: int,
    digest: str,
    repeats: bool,
) -> None:
    """Note the sum that this node is about to contribute to; refuse one that was opened.

    Parameters
    ----------
    record : RunRecord
        Changed in place; to be kept before an answer leaves.
    name : str
        Name of the sum, without what follows a #.
    place : (int, int)
        Cohort and number of the sum.
    number : int
        Number of its round; 0 for a sum that a run opens once.
    digest : str
        What the request asks. A sum that could not be opened is ordered again with the same one.
    repeats : bool
        Whether the same request may be opened again. Only where the node sees to it that the same
        values are opened over the same survivors.

    Raises
    ------
    RefusedError
    """
    opened = record.sums.get(name)
    if opened and number <= opened[2] and not (repeats and digest == opened[3]):
        raise _again()
    record.ordered[name] = [*place, number, digest]


def open_once(record: RunRecord, name: str, place: tuple[int, int]) -> None:
    """Refuse to help open another sum than the last one of its name; note it.

    Raises
    ------
    RefusedError
    """
    ordered = record.ordered.get(name, [])
    if ordered[:2] != list(place):
        raise _again()
    record.sums[name] = ordered


def _again() -> RefusedError:
    return refusal("a sum is opened a second time in this run", code="FK-ORDER-AGAIN")

"""What an exchange sums, declared once: the server orders it, each node compares, both read it.

A request of a method says with ``sum_specs(facts)`` which secure sums it asks for. The facts are
what is public about a run: sizes, options, rows that the parties signed. The strategy makes them of
what the nodes described, and orders the sums. A node makes them of its own table, its own options
and the signed rows, and refuses an order that differs: see :func:`fedkern_flwr.guard.check_order`.
A bound that was taken from the order would be a question about the data: whether a vector fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .errors import refusal
from .privacy.budget import NoisySum, Release
from .secure_sum.encoding import Encoding

#: The server, as the receiver of a sum.
SERVER = -1


def one_party(partition: int) -> int:
    """Return the receiver that a request names, which must be a party.

    The server opens what has no party as receiver: its word must not make it one party's values.

    Raises
    ------
    RefusedError
    """
    if partition < 0:
        raise refusal("a sum of one party's would be the server's", code="FK-ORDER-TERMS")
    return partition


@dataclass(frozen=True, kw_only=True)
class SumSpec:
    """A secure sum that rides on a message of a method.

    Attributes
    ----------
    name : str
        Under which the clients contribute.
    encoding : Encoding
        Ring, kind of numbers and public bound.
    length : int, optional
        Numbers of each client. A node leaves it out where it follows from nothing that it knows.
    receiver : int (default: SERVER)
        The partition that alone can open the sum.
    self_masks : bool (default: False)
        Whether a sum can be opened when parties drop out, which takes an exchange more. Without
        them the whole cohort must contribute, and the sum opens by itself.
    everybody : bool (default: False)
        Whether all sums of the run are over one and the same cohort.
    wider : bool (default: False)
        Whether the bound may be larger than the node's: where it follows from the ranges of other
        parties too. A larger bound makes the sum coarser and asks nothing, as long as all parties
        are told the same one and the sum is not repeated with another, which parties of secure
        sums see to.
    rings : tuple of int
        Other sizes of the ring that are right as well.
    release : Release, optional
        The noise that each party adds, and what it costs of the run's budget.
    held_out : bool (default: False)
        Of a release: whether it is about held-out rows.
    rows : (int, int), optional
        Of a release: which rows it is about, see :class:`~fedkern_flwr.guard.opened.Charge`.
    products : int (default: 0)
        Columns of which it has the products: nodes ask for two hidden rows for each.
    nobodys : bool (default: False)
        Whether it is about no rows: then it needs no noise.
    cohort : int (default: 0)
        Of the server: whose vectors are summed.
    bound : bool (default: False)
        Of the server: whether only those who were asked the same can contribute, see
        :func:`fedkern_flwr.wire.sums.bind`.
    unfit : callable, optional
        Of the server, where it asks until there are ``enough``: who contributed -> why the sum must
        not be opened, empty if it may be.
    label : str
        Of the server: under which the total comes, by default the name.
    """

    name: str
    encoding: Encoding
    length: int | None = None
    receiver: int = SERVER
    self_masks: bool = False
    everybody: bool = False
    wider: bool = False
    rings: tuple[int, ...] = ()
    release: Release | None = None
    held_out: bool = False
    rows: tuple[int, int] | None = None
    products: int = 0
    nobodys: bool = False
    cohort: int = 0
    bound: bool = False
    unfit: Callable[[Sequence[int]], str] = lambda who: ""
    label: str = ""

    @property
    def key(self) -> str:
        """Under which the total comes."""
        return self.label or self.name

    @property
    def noise(self) -> NoisySum:
        """What each party adds."""
        return NoisySum() if self.release is None else self.release.noise

"""Declare the sums of an exchange once, for server and nodes.

A request of a method declares its secure sums by ``sum_specs(facts)``. The facts are public: sizes,
options, signed row counts. The strategy takes them from the nodes' descriptions, and requests the
sums. A node takes them from its table, its options and the signed row counts. It refuses a request
that differs (:func:`fedkern_flwr.guard.check_order`): with a bound from the server, a refusal would
reveal whether a vector fits.
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

    A sum without a party as receiver is opened by the server.
    """
    if partition < 0:
        raise refusal("a sum of one party's would be the server's", code="FK-ORDER-TERMS")
    return partition


@dataclass(frozen=True, kw_only=True)
class SumSpec:
    """A secure sum in a method's message.

    Attributes
    ----------
    encoding : Encoding
        Ring, kind of numbers and public bound.
    length : int, optional
        Numbers of each client. None if a node cannot know it.
    receiver : int (default: SERVER)
        The partition that alone can open the sum.
    self_masks : bool (default: False)
        Whether the sum can be opened if parties drop out, with one more exchange. Otherwise the
        whole cohort must contribute, and the sum needs no unmasking.
    everybody : bool (default: False)
        Whether all sums of the run are over the same cohort.
    wider : bool (default: False)
        Whether the bound may exceed the node's, because it depends on other parties' ranges too.
        This reveals nothing, because all parties get the same bound, and it does not change.
    rings : tuple of int
        Other allowed sizes of the ring.
    release : Release, optional
        Noise of each party, and its cost.
    held_out : bool (default: False)
        Whether the release is about held-out rows.
    rows : (int, int), optional
        Rows of the release, see :class:`~fedkern_flwr.guard.opened.Charge`.
    products : int (default: 0)
        Number of columns, if products of columns are summed: nodes require two hidden rows for
        each.
    nobodys : bool (default: False)
        Whether the sum is data-independent, and so needs no noise.
    cohort : int (default: 0)
        At the server: number of the cohort.
    bound : bool (default: False)
        At the server: whether only parties with the same request can contribute.
    unfit : callable, optional
        At the server: contributors -> why the sum must not be opened, or "".
    label : str
        At the server: key of the total. Default: the name.
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
        return self.label or self.name

    @property
    def noise(self) -> NoisySum:
        return NoisySum() if self.release is None else self.release.noise

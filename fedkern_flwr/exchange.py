"""Define what a method requests: the sums of an exchange, and the steps that its generator yields.

A sum is declared once, for server and nodes: a request of a method declares its secure sums by
``sum_specs(facts)``. The facts are public: sizes, options, signed row counts. The strategy takes
them from the nodes' descriptions, and requests the sums. A node takes them from its table, its
options and the signed row counts. It refuses a request that differs
(:func:`fedkern_flwr.guard.check_order`): with a bound from the server, a refusal would reveal
whether a vector fits.

The steps are sums, requests, deliveries, saves and rounds; :mod:`fedkern_flwr.run` executes them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import CohortError, OptionError, ProtocolError, refusal
from .failure import Failure
from .privacy import Budget, plan_sum
from .privacy.budget import NoisySum, Release
from .secure_sum import Encoding, RunningSum
from .wire import PhaseMessage

# -- a sum, as server and nodes compare it

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


# -- the steps that a generator yields

Values = Mapping[str, Any]

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Sum:
    """A sum over the clients, declared once at module level for the method and its client.

    ``@contributes(ROWS)`` marks the handler of its terms. ``yield ROWS(shapes, **ask)`` requests
    it, and the generator receives the totals. A node refuses a sum that differs from its own
    declaration.

    Attributes
    ----------
    name : str
        Name of the sum, unique in a method.
    bound : float (default: 1.0)
        Largest absolute value that one row, or one client, adds to any number. The node refuses
        larger ones.
    per : {"row", "client"} (default: "row")
        Unit of the bound.
    held_out : bool (default: False)
        Whether it is about held-out rows: nodes report such figures seldom, and only for enough
        rows.
    sensitivity : float, optional
        Largest Euclidean distance by which replacing a row moves a client's numbers; the handler
        must ensure it. Required in runs with a budget, see
        :class:`~fedkern_flwr.method.PrivateMethod`.
    products : str or callable (default: "")
        For sums of products of columns, such as second moments: the key with one number per column,
        or a function of the sizes of all keys that returns the number of columns. Nodes then
        require two hidden rows per column.
    rounds : bool (default: False)
        Whether a run repeats it in rounds. Otherwise a node opens one in a run.
    shapes : mapping
        Key -> shape of each client's array, () for a number.
    ask : mapping
        Arguments of the handler: numbers, texts, lists, arrays.
    """

    name: str
    _: KW_ONLY
    bound: float = 1.0
    per: Literal["row", "client"] = "row"
    held_out: bool = False
    sensitivity: float | None = None
    products: str | Callable[[Mapping[str, int]], int] = ""
    rounds: bool = False
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    ask: Values = field(default_factory=dict, hash=False)

    def __call__(self, shapes: Mapping[str, tuple[int, ...]], /, **ask: Any) -> Sum:
        """Return the sum with shapes, and arguments of the handler."""
        return replace(self, shapes=shapes, ask=ask)

    @property
    def full_name(self) -> str:
        """Name under which it is summed."""
        return f"evaluate/{self.name}" if self.held_out else self.name

    @property
    def sizes(self) -> dict[str, int]:
        """Key -> its size."""
        return {key: int(np.prod(shape)) for key, shape in self.shapes.items()}

    def split(self, total: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        parts = split(total, self.sizes)
        return {key: parts[key].reshape(shape) for key, shape in self.shapes.items()}

    def spec(
        self,
        sizes: Mapping[str, int],
        rows: Sequence[int],
        budget: Budget | None,
        *,
        least: int = 0,
        releases: int = 1,
    ) -> SumSpec:
        """Return the specification of the request, which a node compares.

        Parameters
        ----------
        sizes : mapping
            Key -> numbers of each client.
        rows : sequence of int
            Rows of each client, training or held-out.
        budget : Budget or None
            Privacy budget; None for no noise.
        least : int
            With a budget: fewest clients over which the sum can be opened.
        releases : int
            Sums about the same rows that share the budget.

        Raises
        ------
        OptionError
            There is a budget, but no sensitivity.
        """
        most = max(1, *rows) if self.per == "row" else 1
        length, release = sum(sizes.values()), None
        if budget is not None and self.sensitivity is None:
            raise OptionError(
                f"the sum {self.full_name!r} has no sensitivity, so no noise is enough for it",
                code="FK-BUDGET-SENSITIVITY",
            )
        if budget is not None and self.sensitivity is not None:
            release = plan_sum(
                self.full_name,
                budget,
                sensitivity=self.sensitivity,
                length=length,
                rows=rows,
                least=least,
                releases=releases,
            )
        return SumSpec(
            name=self.full_name,
            encoding=Encoding.fixed_point(self.bound * most * (1.0 + _ROUNDING)),
            length=length,
            self_masks=True,
            everybody=True,
            release=release,
            held_out=self.held_out,
            products=self.columns(sizes),
        )

    def columns(self, sizes: Mapping[str, int]) -> int:
        """Return the number of columns in products, from the size of each key."""
        return self.products(sizes) if callable(self.products) else sizes.get(self.products, 0)


@dataclass(frozen=True)
class Ask:
    """Send a request to clients; the generator receives replies by partition.

    Attributes
    ----------
    what : str, PhaseMessage, or mapping
        Name of a handler with the mark :func:`~fedkern_flwr.method.answers`; or a request for all;
        or partition -> its request. Session and round are set.
    ask : mapping
        Arguments of the handler, or partition -> its arguments.
    reply : type or mapping, optional
        Class of the replies, or partition -> class.
    sums : sequence of SumSpec
        Secure sums of the exchange: the generator receives :class:`Answers` with their totals.
    among : sequence of int, optional
        Partitions that get the request. Default: all.
    running : sequence of RunningSum
        For ``tried``: sums that the generator starts, and opens or closes, itself.
    until : {"each", "enough", "once", "tried"}
        ``each``: repeat the request to clients that did not answer, and sums that lack a party with
        all their parties. ``enough``: repeat sums that cannot be opened, with all their parties,
        until all can be opened together. ``once``: no repetition; a sum that cannot be opened
        raises ``SumError`` in the generator. ``tried``: no repetition and no error, even without an
        answer.
    least : int, optional
        Least number of answers. For ``each`` without sums: after all attempts; default: all. For
        ``once``: default: the method's ``min_clients``.
    sizes : mapping
        Required sizes of named dimensions of the replies.
    number : int, optional
        Number of the exchange. Default: the next one.
    remedy : str
        Remedy if too few answer. Default: start again or resume.
    last : bool (default: False)
        Whether the clients erase the run as they answer, see :func:`~fedkern_flwr.method.answers`.
    ends : bool (default: False)
        For ``each``: whether the run ends with it. All nodes erase its sums in this exchange; a
        repeated request gets the same bytes. So its sums must lack self masks.
    """

    what: str | PhaseMessage | Mapping[int, PhaseMessage]
    ask: Values | Mapping[int, Values] = field(default_factory=dict)
    reply: type[Any] | Mapping[int, type[Any]] | None = None
    sums: Sequence[SumSpec] = ()
    among: Sequence[int] | None = None
    running: Sequence[RunningSum] = ()
    until: Literal["each", "enough", "once", "tried"] = "each"
    least: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    number: int | None = None
    remedy: str = ""
    last: bool = False
    ends: bool = False

    def __post_init__(self) -> None:
        """Refuse to end a run with sums that must be opened or repeated later."""
        if self.ends and (self.until != "each" or any(term.self_masks for term in self.sums)):
            raise ProtocolError(
                "an Ask that ends the run has other sums than of whole cohorts",
                code="FK-METHOD-STEP",
            )


@dataclass(frozen=True)
class Answers:
    """Replies and sums of an exchange.

    Attributes
    ----------
    replies : dict
        Partition -> reply.
    totals : dict
        Key -> total of a sum that the server opened.
    running : dict
        Key -> sum with another receiver; see :class:`Deliver`.
    contributors : dict
        Key -> partitions that contributed to a sum.
    failures : dict
        Partition -> why it did not answer, for ``once`` and ``tried``.
    """

    replies: dict[int, Any]
    totals: dict[str, NDArray[Any]] = field(default_factory=dict)
    running: dict[str, RunningSum] = field(default_factory=dict)
    contributors: dict[str, list[int]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)


@dataclass(frozen=True)
class Deliver:
    """Send a sum to its receiver, with its next messages until it answers one.

    ``sum`` is from :attr:`Answers.running`. With ``keep`` it is still sent after a
    :class:`LostState`.
    """

    sum: RunningSum
    receiver: int
    keep: bool = False


@dataclass(frozen=True)
class Save:
    """Save a state, from which an interrupted run continues.

    Attributes
    ----------
    arrays : mapping
        Restored in ``self.saved_``.
    meta : mapping
        Plain values, restored in ``self.saved_meta_``.
    kept : int, optional
        Exchange after which the clients saved their state. Default: the last.
    """

    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any] = field(default_factory=dict)
    kept: int | None = None


@dataclass(frozen=True)
class Round:
    """Report a round, for history, progress and result.

    Attributes
    ----------
    number : int
        From 1; 0 is before the first.
    metrics : mapping
        Its row of the history; empty for none.
    arrays : sequence of ndarray, optional
        The model after it, for Flower's ``evaluate_fn``.
    save : Save, optional
        The state after it, saved before the report.
    """

    number: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    arrays: Sequence[NDArray[Any]] | None = None
    save: Save | None = None


class LostState(CohortError):
    """Thrown into the generator if a client has lost the state that a request needs; repeat it.

    Sums on their way to clients are withdrawn, except those to keep.
    """


@dataclass(frozen=True)
class Overlapping:
    """Request an ``Overlap``, to send messages while others are under way.

    See :class:`fedkern_flwr.nodes.Overlap`.
    """


def split(numbers: NDArray[np.float64], sizes: Mapping[str, int]) -> dict[str, NDArray[np.float64]]:
    """Split the numbers of a sum by key."""
    ends = np.cumsum([*sizes.values()])[:-1]
    return dict(zip(sizes, np.split(numbers, ends), strict=True))


Step = Sum | Ask | Deliver | Save | Round | Overlapping
Rounds = Generator[Step, Any, Mapping[str, Any] | None]
Steps = Generator[Step, Any, Any]  # a part of them, which may return anything

"""What a method's generator yields: sums, questions, deliveries, states to keep."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import CohortError, OptionError, ProtocolError
from .exchange import SumSpec
from .failure import Failure
from .privacy import Budget, plan_sum
from .secure_sum import Encoding, RunningSum
from .wire import PhaseMessage

Values = Mapping[str, Any]


_ROUNDING = 1e-9


@dataclass(frozen=True)
class Sum:
    """A sum over the clients, declared once: at module level, for the method and for its client.

    ``@contributes(ROWS)`` marks the handler whose numbers are added; ``yield ROWS(shapes, **ask)``
    asks for them, and the generator receives the totals. Each side reads the declaration that it
    has: an order of another one is refused by the node.

    Attributes
    ----------
    name : str
        Name of the sum, one of a method.
    bound : float (default: 1.0)
        Largest absolute value that one row of a client, or a client, adds to any number. The node
        refuses larger ones.
    per : {"row", "client"} (default: "row")
        Of what the bound is.
    held_out : bool (default: False)
        Whether it is about held-out rows: nodes tell such figures seldom, and of enough rows.
    sensitivity : float, optional
        Euclidean length by which a row that takes another's place moves a client's numbers, at
        most: the handler must see to that. Runs with a budget of privacy need one for each sum, see
        :class:`~fedkern_flwr.method.PrivateMethod`.
    products : str or callable (default: "")
        Of a sum of products of columns, such as second moments: the key with a number for each of
        the columns, or what returns their number from the sizes of all keys. Nodes then ask for
        two hidden rows for each column.
    rounds : bool (default: False)
        Whether a run has several rounds of it. Else a node helps to open one in a run.
    shapes : mapping
        Key -> shape of the array that each client adds, () for a number. Of a declaration none.
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
        """Return the sum with the shapes of what is added, and the arguments of the handler."""
        return replace(self, shapes=shapes, ask=ask)

    @property
    def full_name(self) -> str:
        """Under which name the numbers of the handler are summed."""
        return f"evaluate/{self.name}" if self.held_out else self.name

    @property
    def sizes(self) -> dict[str, int]:
        """Key -> how many numbers it has."""
        return {key: int(np.prod(shape)) for key, shape in self.shapes.items()}

    def split(self, total: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return the totals by key."""
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
        """Return what is ordered, and what a node compares with the order.

        Parameters
        ----------
        sizes : mapping
            Key -> numbers of each client.
        rows : sequence of int
            Of each client, held out or not.
        budget : Budget or None
            Of the run; without one there is no noise.
        least : int
            Of a run with a budget: fewest clients over which it can be opened.
        releases : int
            Sums about the same rows that share the budget.

        Raises
        ------
        OptionError
            There is a budget, and the sum has no sensitivity.
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
        """Return of how many columns it has products, by the numbers of each key."""
        return self.products(sizes) if callable(self.products) else sizes.get(self.products, 0)


@dataclass(frozen=True)
class Ask:
    """Ask clients; the generator receives a reply for each that answered, by partition.

    Attributes
    ----------
    what : str, PhaseMessage, or mapping
        Name of a handler that :func:`~fedkern_flwr.method.answers` marks, with ``ask``; or a
        request for all; or partition -> its request. Session and round are filled in.
    ask : mapping
        Arguments of the handler, or partition -> its arguments.
    reply : type or mapping, optional
        Class of the replies to a request, or that of each partition.
    sums : sequence of SumSpec
        Secure sums that ride on it: the generator receives :class:`Answers` with their totals.
    among : sequence of int, optional
        Partitions that are asked, by default all.
    running : sequence of RunningSum
        Of ``tried``: sums that the generator has ordered, and opens or closes, by itself.
    until : {"each", "enough", "once", "tried"}
        ``each``: whoever did not answer is asked again, alone; of the sums those that lack
        somebody, with all who stand in them. ``enough``: of the sums those that cannot be opened
        are repeated, with all who stand in them, until all can be, which are then opened together.
        ``once``: whoever answers; of a sum that cannot be opened nothing is released, and the
        generator has the ``SumError``, which ends the run unless it is caught. ``tried``: whoever
        answers, nobody at worst, and what comes of it is the generator's to judge.
    least : int, optional
        Of ``each`` without sums: so many answers will do when all attempts are over, by default
        all. Of ``once``: so many must answer, by default the method's ``min_clients``.
    sizes : mapping
        Sizes that named dimensions of the replies must have.
    number : int, optional
        Number of the exchange, and of the one that opens its sums; by default the next ones.
    remedy : str
        What to do if the run ends for want of answers, by default to start again or to resume.
    last : bool (default: False)
        Whether the clients erase what belongs to the run as they answer, see
        :func:`~fedkern_flwr.method.answers`: nobody need be told that it is over.
    ends : bool (default: False)
        Of ``each``: whether the run is over with it. Nodes erase what belongs to its
        sums as they answer, and those that are not asked are told in the same exchange. Who was not
        heard is asked the same again and sends the same bytes; sums are not ordered anew. So they
        must be without self masks, which is checked, and nothing that a node might have lost can
        be made again.
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
        """Refuse to end a run with what must be opened, or may be asked anew, later."""
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
        Key -> total of a sum that is the server's.
    running : dict
        Key -> sum that is somebody else's, to be delivered; see :class:`Deliver`.
    contributors : dict
        Key -> partitions of those who contributed to a sum.
    failures : dict
        Partition -> why it did not answer, where it was asked ``once`` or ``tried``.
    """

    replies: dict[int, Any]
    totals: dict[str, NDArray[Any]] = field(default_factory=dict)
    running: dict[str, RunningSum] = field(default_factory=dict)
    contributors: dict[str, list[int]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)


@dataclass(frozen=True)
class Deliver:
    """Let the receiver of a sum have it: with the next message to it, until it has answered one.

    Attributes
    ----------
    sum : RunningSum
        Of :attr:`Answers.running`.
    receiver : int
        The partition that it belongs to.
    keep : bool (default: False)
        Whether it stays on its way when the generator is told of a :class:`LostState`.
    """

    sum: RunningSum
    receiver: int
    keep: bool = False


@dataclass(frozen=True)
class Save:
    """Keep a state, from which a run that broke off goes on.

    Attributes
    ----------
    arrays : mapping
        What the generator finds in ``self.saved_`` when the run is resumed.
    meta : mapping
        Plain values, likewise in ``self.saved_meta_``.
    kept : int, optional
        Number of the exchange after which the clients kept what they go on from, by default the
        last.
    """

    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any] = field(default_factory=dict)
    kept: int | None = None


@dataclass(frozen=True)
class Round:
    """Tell of a round, as Flower counts them: for the history, the progress and the result.

    Attributes
    ----------
    number : int
        From 1 on; 0 is before the first.
    metrics : mapping
        Its row of the history, whose ``round`` is the number unless it says another; none
        without. Without metrics and arrays the progress alone is told.
    arrays : sequence of ndarray, optional
        The model after it, with which Flower's ``evaluate_fn`` is called.
    save : Save, optional
        The state after it, which is kept before anybody is told.
    """

    number: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    arrays: Sequence[NDArray[Any]] | None = None
    save: Save | None = None


class LostState(CohortError):
    """Thrown into the generator: a client has forgotten what the question needs; ask again.

    What was on its way to clients is withdrawn, but for what is to be kept.
    """


@dataclass(frozen=True)
class Overlapping:
    """Have messages under way while others are asked; the generator receives an ``Overlap``.

    See :mod:`fedkern_flwr.overlap`.
    """


def split(numbers: NDArray[np.float64], sizes: Mapping[str, int]) -> dict[str, NDArray[np.float64]]:
    """Return the numbers of a sum by key, of so many each."""
    ends = np.cumsum([*sizes.values()])[:-1]
    return dict(zip(sizes, np.split(numbers, ends), strict=True))


Step = Sum | Ask | Deliver | Save | Round | Overlapping
Rounds = Generator[Step, Any, Mapping[str, Any] | None]
Steps = Generator[Step, Any, Any]  # a part of them, which may return anything

"""What a method's generator yields: sums, questions, deliveries, states to keep."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import CohortError, OptionError, ProtocolError
from .exchange import SumSpec
from .failure import Failure
from .privacy import Budget, Release, plan_sum
from .secure_sum import RunningSum
from .wire import PhaseMessage

Values = Mapping[str, Any]


_ROUNDING = 1e-9


@dataclass(frozen=True)
class Sum:
    """Sum what the clients' handler of that name returns; the generator receives the totals.

    Attributes
    ----------
    name : str
        Name of the handler that :func:`~fedkern_flwr.method.contributes` marks.
    shapes : mapping
        Key -> shape of the array that each client adds, () for a number.
    bound : float
        Largest absolute value that one row of a client, or a client, adds to any of the numbers;
        the clients state the same.
    ask : mapping
        Arguments of the handler: numbers, texts, lists, arrays.
    per : {"row", "client"} (default: "row")
        Of what the bound is.
    held_out : bool (default: False)
        Whether it is about held-out rows: nodes tell such figures seldom, and of enough rows.
    sensitivity : float, optional
        Euclidean length by which a row that takes another's place moves a client's numbers, at
        most; the clients state the same. Runs with a budget of privacy need it, see
        :class:`~fedkern_flwr.method.PrivateMethod`.
    """

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    bound: float = 1.0
    ask: Values = field(default_factory=dict)
    per: Literal["row", "client"] = "row"
    held_out: bool = False
    sensitivity: float | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Key -> how many numbers it has."""
        return {key: int(np.prod(shape)) for key, shape in self.shapes.items()}

    def split(self, total: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return the totals by key."""
        parts = split(total, self.sizes)
        return {key: parts[key].reshape(shape) for key, shape in self.shapes.items()}


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
                remedy="ask until each has answered, with self_masks=False in its terms",
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


def sum_bound(bound: float, rows: Sequence[int]) -> float:
    """Return the public bound of a client's numbers, of that of a row and the rows of each."""
    return bound * max(1, *rows) * (1.0 + _ROUNDING)


def sum_release(
    budget: Budget,
    name: str,
    sensitivity: float | None,
    *,
    length: int,
    rows: Sequence[int],
    least: int,
    releases: int,
) -> Release:
    """Return the noise of a sum in a run with a budget: clients derive the same.

    Parameters
    ----------
    budget : Budget
        Of the run.
    name : str
        Of the sum.
    sensitivity : float or None
        Of a row, see :class:`Sum`.
    length : int
        Numbers of each client.
    rows : sequence of int
        Of each client.
    least : int
        Fewest clients over which it can be opened.
    releases : int
        Sums about the same rows that share the budget.

    Raises
    ------
    OptionError
        It has no sensitivity.
    """
    if sensitivity is None:
        raise OptionError(
            f"the sum {name!r} has no sensitivity, so no noise is enough for it",
            remedy="state one in Sum and @contributes, or leave out privacy_epsilon",
            code="FK-BUDGET-SENSITIVITY",
        )
    about: dict[str, Any] = {"rows": rows, "least": least, "releases": releases}
    return plan_sum(name, budget, sensitivity=sensitivity, length=length, **about)


def sum_name(name: str, *, held_out: bool) -> str:
    """Return under which name the numbers of a handler are summed."""
    return f"evaluate/{name}" if held_out else name

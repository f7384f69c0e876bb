"""How long a sum of vectors takes over slow links, by formula.

Every node, the server too, has one link of latency L seconds and a rate in bits per second. A
vector of S bytes occupies the links of sender and receiver for T = 8 S / rate seconds; its first
bit arrives L after it left, and the receiver takes it while it comes in. A link carries one message
at a time, in either direction: what arrives meanwhile waits in a buffer. Additions take no time.
So one message takes L + T, and n messages that leave n nodes together for the same one take
L + n T.

Between the parties, q of them, the sum at one of them:

=========  ========================  ===================  ===============
topology   seconds                   in turn              messages in all
=========  ========================  ===================  ===============
star       L + (q - 1) T             q - 1                q - 1
ring       (q - 1) (L + T)           q - 1                q - 1
tree       ceil(log2 q) (L + T)      ceil(log2 q)         q - 1
two trees  the trees of q and q - 1  sum of both          2 q - 3
=========  ========================  ===================  ===============

With k = ceil(log2 q) steps a tree beats the star once (q - 1 - k) T > (k - 1) L: for 100 kB from 4
parties on, for 4 kB from about 15 to 19, for the few bytes that the paper's Algorithm 3 sends at a
time only among more than ten thousand.

In Flower parties cannot reach each other: every message goes up to the server and down from it,
and the server's link carries them all. A step of n messages then takes 2 (L + n T), see
:func:`relayed_cost`, and nothing is left of the tree's advantage. A server that may add, as it does
with masked vectors, sends one total instead: :func:`masked_star_cost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from fedkern_flwr.errors import OptionError


@dataclass(frozen=True)
class Link:
    """The link of a node.

    Attributes
    ----------
    latency : float (default: 1e-3)
        L, seconds.
    rate : float (default: 100e6)
        Bits per second.

    Raises
    ------
    OptionError
        If the latency is negative or the rate not positive.
    """

    latency: float = 1e-3
    rate: float = 100e6

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not (self.latency >= 0 and self.rate > 0):
            raise OptionError(
                f"a link of {self.latency:g} s and {self.rate:g} bit/s",
                remedy="use a latency of at least 0 and a positive rate",
            )

    def seconds(self, size: float) -> float:
        """Return T, how long a message of ``size`` bytes occupies a link."""
        return 8 * size / self.rate


@dataclass(frozen=True)
class LinkCost:
    """What one sum costs.

    Attributes
    ----------
    seconds : float
        From the first message to the total at its receiver.
    critical_messages : int
        How many messages follow one another on the critical path, none of which can overlap.
    bytes : float
        Of all messages; one that passes the server counts twice, up and down.
    """

    seconds: float
    critical_messages: int
    bytes: float


LINK = Link()


def star_time(parties: int, size: float, *, link: Link = LINK) -> LinkCost:
    """Return the cost of a star: all send to the one that adds.

    All leave at once and arrive after L; the receiver takes them in one by one:
    L + (q - 1) T, critical path of q - 1 messages, (q - 1) S bytes.

    Parameters
    ----------
    parties : int
        q, the receiver among them.
    size : float
        S, bytes of a vector.
    link : Link (default: 1 ms, 100 Mbit/s)
        Of every party.

    Raises
    ------
    OptionError
        If there are fewer than two parties or the size is negative.
    """
    _check(parties, size)
    hops = parties - 1
    return LinkCost(link.latency + hops * link.seconds(size), hops, hops * size)


def ring_time(parties: int, size: float, *, link: Link = LINK) -> LinkCost:
    """Return the cost of a ring, the paper's "cycle-based" structure: a running sum goes round.

    q - 1 hops, one after the other: (q - 1) (L + T), critical path of q - 1 messages,
    (q - 1) S bytes. Parameters and errors as for :func:`star_time`.
    """
    _check(parties, size)
    hops = parties - 1
    return LinkCost(hops * (link.latency + link.seconds(size)), hops, hops * size)


def tree_time(parties: int, size: float, *, link: Link = LINK) -> LinkCost:
    """Return the cost of one tree of simultaneous pairs, as in the paper's Figure 2.

    A step pairs the parties that still hold a sum, so ceil(log2 q) steps are left with one:
    ceil(log2 q) (L + T), critical path of ceil(log2 q) messages, (q - 1) S bytes. The steps are
    synchronous; when q is no power of two, a party that waits for its pair may send early and save
    a latency. Parameters and errors as for :func:`star_time`.
    """
    _check(parties, size)
    steps = len(tree_steps(parties))
    return LinkCost(steps * (link.latency + link.seconds(size)), steps, (parties - 1) * size)


def two_trees_time(parties: int, size: float, *, link: Link = LINK) -> LinkCost:
    """Return the cost of Algorithm 3: T1 over all parties, then T2 over all but one.

    One tree runs after the other, as lines 5 and 7 of the algorithm stand:
    (ceil(log2 q) + ceil(log2 (q - 1))) (L + T) and (2 q - 3) S bytes. Over the same links at once
    they would save latencies only where the root adds in every step, since its link is busy.
    Parameters and errors as for :func:`star_time`.
    """
    first = tree_time(parties, size, link=link)
    if parties == 2:  # T2 is the root alone
        return first
    second = tree_time(parties - 1, size, link=link)
    return LinkCost(
        first.seconds + second.seconds,
        first.critical_messages + second.critical_messages,
        first.bytes + second.bytes,
    )


def star_steps(parties: int) -> tuple[int, ...]:
    """Return the number of messages in each step of a star."""
    return (parties - 1,)


def ring_steps(parties: int) -> tuple[int, ...]:
    """Return the number of messages in each step of a ring."""
    return (1,) * (parties - 1)


def tree_steps(parties: int) -> tuple[int, ...]:
    """Return the number of messages in each step of a tree of simultaneous pairs."""
    steps = []
    while parties > 1:
        steps.append(parties // 2)
        parties -= parties // 2
    return tuple(steps)


def two_trees_steps(parties: int) -> tuple[int, ...]:
    """Return the number of messages in each step when T1 and T2 run at the same time.

    Through the server that is right: an exchange carries the step of both trees, whose inputs are
    known from the start, and exchanges are what costs in Flower.
    """
    pairs = zip_longest(tree_steps(parties), tree_steps(parties - 1), fillvalue=0)
    return tuple(first + second for first, second in pairs)


def relayed_cost(steps: Sequence[int], size: float, *, link: Link = LINK) -> LinkCost:
    """Return the cost of a sum between parties whose messages all pass a server, as in Flower.

    In a step of n messages the server takes n in, one by one, then hands n out:
    2 (L + n T). With N messages in k steps: 2 (k L + N T), critical path of 2 N messages on the
    server's link, 2 N S bytes. It takes k + 1 exchanges, as the server hands on what came in with
    the replies of one exchange in the requests of the next.

    Parameters
    ----------
    steps : sequence of int
        Number of messages in each step, such as :func:`tree_steps` gives.
    size : float
        S, bytes of a vector.
    link : Link (default: 1 ms, 100 Mbit/s)
        Of every party and of the server.

    Raises
    ------
    OptionError
        If the size is negative or a step has no message.
    """
    _check(2, size)
    if min(steps, default=0) < 1:
        raise OptionError("a step without messages", remedy="use at least 2 parties")
    messages = 2 * sum(steps)
    seconds = 2 * len(steps) * link.latency + messages * link.seconds(size)
    return LinkCost(seconds, messages, messages * size)


def masked_star_cost(parties: int, size: float, *, link: Link = LINK) -> LinkCost:
    """Return the cost of this package's default: masked vectors, which the server adds.

    Every party uploads one vector, under masks that cancel in the sum; the server hands the total
    to the active party: L + q T up and L + T down, together 2 L + (q + 1) T; critical path of q + 1
    messages, (q + 1) S bytes, 2 exchanges. Keys are agreed once per run and not counted.
    Parameters and errors as for :func:`star_time`.
    """
    _check(parties, size)
    messages = parties + 1
    return LinkCost(2 * link.latency + messages * link.seconds(size), messages, messages * size)


def _check(parties: int, size: float) -> None:
    if parties < 2:
        raise OptionError(f"a sum of {parties} parties", remedy="use at least 2 parties")
    if not size >= 0:
        raise OptionError(f"vectors of {size} bytes", remedy="use a size of at least 0")

"""The start of a run: wait for the nodes and ask each who it is."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from flwr.serverapp import Grid

from .errors import CohortError, ProtocolError, RefusedError, quoted_code
from .exchange import REPLY, exchange, read_reply, request_messages
from .failure import Failure
from .ledger import Ledger
from .secure_sum.keys import KEY_BYTES
from .watch import Watch
from .wire.describe import DescribeReply, DescribeRequest, check_parties
from .wire.releases import check_node, check_refusal, other_releases, release_of

_DESCRIBE = "describe"
#: What a node says of itself, by its name or without one; before it knows its partition it only
#: refuses an app.
_SAID = r"\w+Error: (.{0,42}?partition \d+\)?)(?:, phase \w+)?: (.+)"
_OWN = re.compile(rf"{_SAID}|RefusedError: (the app .+)")

Described = TypeVar("Described", bound=DescribeReply)


def gather_nodes(
    grid: Grid,
    *,
    session: str,
    method: str,
    resume_round: int,
    min_clients: int,
    timeout: float,
    ledger: Ledger,
    secure: bool = False,
    order_seed: int = -1,
    privacy: str = "",
    nonces: Mapping[str, str] = MappingProxyType({}),
    reply: type[Described] = DescribeReply,  # type: ignore[assignment]
    check: Callable[[Sequence[Described]], None] = check_parties,
    watch: Watch | None = None,
    say: Callable[[str], Any] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> dict[int, Described]:
    """Wait for the nodes and ask each who it is (phase ``describe``).

    ``reply`` is the class of the answers, ``check`` refuses parties that do not fit together.
    The nodes' ``num-partitions`` tells how many there must be; late nodes are described as they
    come. Nobody is left out silently: a node that fails here fails the run. Releases of the same
    protocol work together; which nodes have another one than the server is told to ``warn``.

    Returns
    -------
    dict
        Node id -> description, sorted by partition.

    Raises
    ------
    CohortError
        Nodes are missing after ``timeout`` seconds, or partition ids clash.
    ProtocolError
        A node's table or its reply does not fit.
    """
    deadline = time.monotonic() + timeout
    parties: dict[int, Described] = {}
    releases: dict[int, str] = {}
    expected = max(1, min_clients)
    while True:
        fresh = sorted(set(grid.get_node_ids()) - set(parties))
        if len(fresh) + len(parties) >= expected and fresh:
            remaining = max(1.0, deadline - time.monotonic())
            request = DescribeRequest(
                session=session,
                method=method,
                resume_round=resume_round,
                secure=secure,
                order_seed=order_seed,
                privacy=privacy,
                nonces=json.dumps(dict(nonces)) if nonces else "",
            )
            messages = request_messages(request, fresh, group_id=_DESCRIBE)
            outcome = exchange(
                grid, messages, phase=_DESCRIBE, timeout=remaining, ledger=ledger, watch=watch
            )
            _refuse_failures(outcome.failures)
            for node, message in outcome.replies.items():
                party = f"node {node}"
                told: Any = message.content.get(REPLY, {})
                check_node(told, party=party)
                try:
                    parties[node] = read_reply(reply, message, party=party)
                except ProtocolError as error:  # of the same protocol
                    raise ProtocolError(
                        f"it serves no client of {method}: {error.problem}",
                        remedy="serve the client that belongs to the strategy",
                        party=party,
                        phase=_DESCRIBE,
                        code="FK-NODE-METHOD",
                    ) from None
                releases[parties[node].partition] = release_of(told)
                if secure and len(parties[node].public_key) != KEY_BYTES:
                    raise ProtocolError(
                        "it sent no key for secure sums",
                        remedy="serve one of the clients in fedkern_flwr.clients on this node",
                        party=parties[node].called,
                        phase=_DESCRIBE,
                        code="FK-NODE-FOREIGN",
                    )
            expected = max(expected, *(party.partitions for party in parties.values()))
        if len(parties) >= expected:
            break
        if time.monotonic() > deadline:
            if parties:
                check(list(parties.values()))
            raise CohortError(
                f"{len(fresh) + len(parties)} of {expected} nodes connected within {timeout:g} s",
                remedy="start the missing nodes or allow more time",
                phase=_DESCRIBE,
                code="FK-PARTIES-AWAITED",
            )
        say(f"waiting for nodes: {len(parties)} of {expected}")
        time.sleep(0.2)
    ordered = dict(sorted(parties.items(), key=lambda item: (item[1].partition, item[0])))
    check(list(ordered.values()))
    if differing := other_releases(releases):
        warn(differing)
    return ordered


def _refuse_failures(failures: Mapping[int, Failure]) -> None:
    """Raise the first failure, in the words of the node where it is one of our own errors.

    Raises
    ------
    RefusedError, ProtocolError
    """
    if not failures:
        return
    node, failure = next(iter(sorted(failures.items())))
    more = f" ({len(failures)} nodes in all)" if len(failures) > 1 else ""
    found = _OWN.match(failure.detail)
    if failure.kind == "raised" and found is not None:
        problem, code = quoted_code(found[2] or found[3])
        party = found[1] or f"node {node}"
        raise RefusedError(problem + more, party=party, phase=_DESCRIBE, code=code)
    for node, failure in sorted(failures.items()):
        check_refusal(failure.detail, party=f"node {node}")
    problem, code = quoted_code(str(failure))
    code = code or "FK-NODE-FAILED"
    remedy = "read that node's log: its table, its options or its release do not fit"
    if failure.kind == "unreachable":
        remedy = "start its SuperNode again, then the run; its node id is in `flwr supernode ls`"
        code = "FK-NODE-UNREACHABLE"
    elif failure.kind == "timed out":
        code = "FK-NODE-SLOW"
        remedy = (
            "allow more time if it reads a large table (node_timeout), else start its SuperNode "
            "again; its node id is in `flwr supernode ls`"
        )
    raise ProtocolError(
        f"{problem}{more}",
        remedy=remedy,
        party=f"node {node}",
        phase=_DESCRIBE,
        code=code,
    )

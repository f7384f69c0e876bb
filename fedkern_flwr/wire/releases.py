"""Releases of the two sides, compared when a run begins: which is older, and what to do.

Messages of the phase ``describe`` say which release sent them. It is no field: releases of one
protocol read each other's messages whether they say so or not.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from .. import __version__
from ..errors import ProtocolError, RefusedError, log_in_one_line
from ..failure import mark_error
from .message import PROTOCOL_VERSION, Scalar

logger = logging.getLogger("fedkern_flwr")

#: The earliest release whose apps run on this one: raised when a name goes that apps import.
OLDEST_APP = "0.2"

_KEY = "release"
_ALIKE = "; their protocol is the same, bring all to one release"
_RELEASE = re.compile(r"\d[\w.+!-]{0,30}", re.ASCII)
# What a client says that knows no more of releases, such as those of 0.1.
_REFUSED = re.compile(r"protocol version (\d+) instead of (\d+)")


def release() -> dict[str, Scalar]:
    """Return what a message adds to say which release sent it."""
    return {_KEY: __version__}


def release_of(scalars: Mapping[str, Any]) -> str:
    """Return the release that sent a message; empty if it says none."""
    found = scalars.get(_KEY)
    return found if isinstance(found, str) and _RELEASE.fullmatch(found) else ""


def check_server(scalars: Mapping[str, Any], *, party: str) -> None:
    """Compare the server, which sent a request, with this node.

    Another release of the same protocol is written into the node's log.

    Parameters
    ----------
    scalars : mapping
        The scalars as they arrived.
    party : str
        This node.

    Raises
    ------
    ProtocolError
        Their protocols differ. The text says which of the two is older.
    """
    _check(scalars, "the server", "this node", party, ProtocolError)
    found = release_of(scalars)
    if found != __version__:
        theirs = f"fedkern-flwr {found}" if found else "an earlier release of fedkern-flwr"
        logger.warning("%s: the server has %s, this node %s%s", party, theirs, __version__, _ALIKE)


def check_node(scalars: Mapping[str, Any], *, party: str) -> None:
    """Compare a node, which sent a reply, with this server.

    Raises
    ------
    RefusedError
        Their protocols differ.
    """
    _check(scalars, "this node", "the server", party, RefusedError)


def check_refusal(text: str, *, party: str) -> None:
    """Raise the same for what a node of an earlier release says when it refuses.

    Raises
    ------
    RefusedError
    """
    found = _REFUSED.search(text)
    if found is not None and int(found[1]) == PROTOCOL_VERSION:
        check_node({"protocol": int(found[2])}, party=party)


def check_app(app: str) -> None:
    """Compare the release of an app with the one installed here; an app calls it first.

    Parameters
    ----------
    app : str
        Release of the app, such as ``"0.2"``.

    Raises
    ------
    RefusedError
        The app is newer than what is installed, or older than :data:`OLDEST_APP`.
    """
    # what apps use does not change below the second number
    made, here, oldest = (
        [int(number) for number in name.split(".")[:2]] for name in (app, __version__, OLDEST_APP)
    )
    if oldest <= made <= here:
        return
    older = "the app is older: take the one of the installed release, see `fedkern init`"
    if made > here:
        older = "the installed one is older: `pip install --upgrade fedkern-flwr` there"
    log_in_one_line()
    error = RefusedError(
        f"the app is of fedkern-flwr {app}, and {__version__} is installed",
        remedy=older,
        code="FK-MESSAGE-VERSION",
    )
    error.args = (mark_error(f"RefusedError: {error}"),)  # a node's error that a server may show
    raise error


def other_releases(found: Mapping[int, str]) -> str:
    """Return which partitions have other releases of the same protocol than the server, if any.

    Parameters
    ----------
    found : mapping
        Partition -> release, empty if it says none.
    """
    groups = defaultdict(list)
    for partition, name in sorted(found.items()):
        if name != __version__:
            groups[name or "an earlier release"].append(str(partition))
    told = [
        f"partition{'s' * (len(who) > 1)} {', '.join(who)} {name}" for name, who in groups.items()
    ]
    return f"the server has fedkern-flwr {__version__}, {', '.join(told)}{_ALIKE}" if told else ""


def _check(
    scalars: Mapping[str, Any], other: str, here: str, party: str, error: type[ProtocolError]
) -> None:
    """Refuse what another side sent in another protocol."""
    version, found = scalars.get("protocol"), release_of(scalars)
    if type(version) is not int or version == PROTOCOL_VERSION:
        return
    theirs = f"fedkern-flwr {found}" if found else "another release of fedkern-flwr"
    older, newer = (other, __version__) if version < PROTOCOL_VERSION else (here, found)
    wanted = f"fedkern-flwr=={newer}" if newer else "fedkern-flwr"
    raise error(
        f"{other} has {theirs} (protocol {version}), "
        f"{here} {__version__} (protocol {PROTOCOL_VERSION})",
        remedy=f"{older} is older: `pip install --upgrade {wanted}` there",
        party=party,
        phase="describe",
        code="FK-MESSAGE-VERSION",
    )

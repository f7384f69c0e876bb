"""Requests of real runs, each at the node that gets it, to be asked again in another way."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fedkern_flwr.clients.run_file import RunFile
from fedkern_flwr.errors import FedKernError
from fedkern_flwr.guard import RunRecord
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.wire import sums
from fedkern_flwr.wire.sections import attach, detach
from fedkern_flwr.wire.sums import bind

MESSAGES = {m.phase: m for m in (sums.Roster, sums.Order, sums.Unmask, sums.Delivery, sums.End)}


@dataclass
class Asked:
    """A request at a node that has not answered it yet."""

    client: Any
    request: Any
    sections: list[Any]
    state: Any
    reply: tuple[list[Any], Any] = ([], None)  # arrays and scalars that were answered last

    def send(self, client: Any = None, request: Any = None, sections: Any = None) -> str:
        """Return what is said to a request, maybe another one; nothing if it is answered."""
        client, request = client or self.client, request or self.request
        arrays, scalars = attach(self.sections if sections is None else sections)
        try:
            out, _, told = client.fit(request.arrays() + arrays, request.scalars() | scalars)
        except FedKernError as error:
            return str(error).removeprefix("[fedkern] ")
        self.reply = out, told
        return ""

    def try_out(
        self, client: Any = None, request: Any = None, sections: Any = None
    ) -> tuple[str, bool]:
        """Return what is said to a request as if it were the first, and whether it is counted."""
        self.begin()
        before = self.refusals
        said = self.send(client, request, sections)
        return said, self.refusals > before

    def begin(self) -> None:
        """Have the node as it was when the request came."""
        self.client.context.state = copy.deepcopy(self.state)

    @property
    def ends(self) -> bool:
        """Whether the secrets of the run's sums are erased with it."""
        return any(isinstance(section, sums.End) for section in self.sections)

    @property
    def refusals(self) -> int:
        """How many the node has counted."""
        return RunRecord.load(self.client.context, self.request.session).refusals

    @property
    def kept(self) -> KeptState:
        """What the client has kept of its run."""
        return KeptState.unpack(SessionState.load(self.client.context).payload)


def asked_in(
    run: Callable[[int, Path], Any], folder: Path, only: Callable[[Any, Any], bool] | None = None
) -> dict[str, Asked]:
    """Return requests of a run: one for each kind of node, and of sums that come along.

    Maybe ``only`` those of which this holds: (client, request).
    """
    fit, found = PhaseClient.fit, dict[str, Asked]()

    def watched(client: Any, parameters: Any, config: Any) -> Any:
        arrays, scalars, sections = detach(parameters, config, party="server")
        phase = str(scalars.get("phase"))
        kind = client.handlers().get(phase)
        if kind is not None:
            request = kind[0].unpack(arrays, scalars, party="server")
            read = [s.read(MESSAGES[s.phase], party="server") for s in sections]
            stems = {re.split("[#/]", s.name)[0] for s in read if isinstance(s, sums.Order)}
            stems |= {"delivered" for s in read if isinstance(s, sums.Delivery)}
            key = f"{phase} at {client.role}: {', '.join(sorted(stems))}"
            if key not in found and (only is None or only(client, request)):
                state = copy.deepcopy(client.context.state)
                found[key] = Asked(copy.copy(client), request, read, state)
        return fit(client, parameters, config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PhaseClient, "fit", watched)
        patch.setattr(RunFile, "erase", lambda _: None)  # requests come again
        run(1, folder)
    return found


def ordered(one: Asked, request: Any) -> list[Any]:
    """Return the sections of a changed request; sums that are named after it, after this one."""
    out = []
    for section in one.sections:
        if isinstance(section, sums.Order) and "#" in section.name:
            stem = section.name.partition("#")[0]
            if request.phase.startswith("gram"):
                section = replace(section, name=bind(stem, request))
            elif request.phase in ("svm-statistics", "svm-step"):
                one.begin()
                told = str(one.kept.settings.get("told", ""))
                section = replace(section, name=request.sum_name(told))
        out.append(section)
    return out

"""Nodes and a server that sums, message by message, without a grid; and a method of ten lines."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context, RecordDict

from fedkern_flwr.exchange import SumSpec
from fedkern_flwr.method import Ask, Method, MethodClient, Sum, answers, contributes, option
from fedkern_flwr.node.client import Client
from fedkern_flwr.node.state import load_state
from fedkern_flwr.secure_sum import Encoding, PartyState, RunningSum, SecureSum
from fedkern_flwr.wire import DescribeReply, DescribeRequest, PhaseMessage, sums
from fedkern_flwr.wire.message import attach, detach

SESSION, ENCODING = "abc", Encoding.fixed_point(8.0)


class Work(sums.SumRequest):
    phase = "work"


class Done(PhaseMessage):
    phase = "work"


class SummingClient(Client):
    """Contributes three numbers to each of some sums, in the order of their names."""

    rows: ClassVar[int] = 9
    features: ClassVar[int] = 1
    names: ClassVar[tuple[str, ...]] = ("a",)
    spec: ClassVar[SumSpec] = SumSpec(name="", encoding=ENCODING)

    def handlers(self) -> dict[str, Any]:
        return {"work": (Work, self.work)}

    def describe(self, request: DescribeRequest) -> DescribeReply:
        return DescribeReply(rows=self.rows, features=self.features)

    def work(self, request: PhaseMessage) -> PhaseMessage:
        for name in self.names if self.sums is not None else ():
            self.secure_sum(name, np.full(3, 1.0 + self.partition))
        return Done()

    def secure_sum(self, name: str, values: np.ndarray) -> None:
        assert self.sums is not None
        masks = self.sums.order(name).self_masks
        self.sums.check(replace(self.spec, name=name, self_masks=masks))
        self.sums.contribute(name, values)


def opening(session: str = SESSION, *, secure: bool = True, **more: Any) -> DescribeRequest:
    return DescribeRequest(
        **{"resume_round": 0, "method": "m", **more}, session=session, secure=secure
    )


def work(number: int = 1) -> Work:
    return Work(session=SESSION, round=number)


class Nodes:
    """Nodes that have announced their keys; ``options`` are those of their clients."""

    def __init__(
        self,
        count: int = 4,
        kind: type[SummingClient] = SummingClient,
        *,
        simulation: bool = True,
        resumes: Nodes | None = None,
        cohorts: Any = None,
        described: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        own = {"num-partitions": count, "simulation": simulation}
        self.kind, self.options, self.members = kind, options, range(count)
        self.contexts = [
            Context(1, 1000 + k, {**own, "partition-id": k}, RecordDict(), {}) for k in self.members
        ]
        nonces = json.dumps(resumes.nonces) if resumes else ""
        first = opening(nonces=nonces, **(described or {}))
        self.told = told = [self.ask(k, first)[0] for k in self.members]
        self.nonces = {str(k): one["nonce"] for k, one in enumerate(told)}
        self.keys = {k: (one["public_key"], one["signature"]) for k, one in enumerate(told)}
        self.counts = {
            k: (one["rows"], one["test_rows"], one["bits"]) for k, one in enumerate(told)
        }
        self.counting = {one["counting"] for one in told}
        self.server = SecureSum(SESSION, self.keys, cohorts=cohorts, counts=self.counts)

    def client(self, k: int, kind: type[SummingClient] | None = None) -> SummingClient:
        return (kind or self.kind)(self.contexts[k], **self.options)

    def ask(
        self, k: int, request: PhaseMessage, sections: Any = (), kind: Any = None
    ) -> tuple[dict[str, Any], list[Any]]:
        """Send a request; return the scalars of the reply, and its sections."""
        arrays, scalars = attach(list(sections))
        out, _, metrics = self.client(k, kind).fit(
            request.arrays() + arrays, request.scalars() | scalars
        )
        _, own, found = detach(out, metrics, party=f"partition {k}")
        return own, found

    def order(self, name: str = "a", length: int = 3, **options: Any) -> RunningSum:
        usual = {"name": name, "length": length, "encoding": ENCODING, "self_masks": True}
        return self.server.order(SumSpec(**(usual | options)))

    def contribute(self, *running: RunningSum, kind: Any = None, number: int = 1) -> None:
        for k in self.members:
            sections = self.server.sections(k, running)
            self.server.take(k, self.ask(k, work(number), sections, kind)[1])

    def unmask(self, running: RunningSum) -> None:
        request = sums.UnmaskRequest(session=SESSION, round=1)
        for k, sections in self.server.unmask_sections([running]).items():
            self.server.take(k, self.ask(k, request, sections)[1])
        running.open()

    def state(self, k: int) -> PartyState:
        state = load_state(self.contexts[k])
        assert state is not None
        return state


# -- a method of ten lines


ROW_SUM, HELD_SUM = Sum("rows", rounds=True), Sum("held", held_out=True)


class Mean(Method):
    """Means of the columns, and how far each client's are from them."""

    method, title = "mean", "Mean"
    labels_of_row = 0

    times: int = option(1, "How often to sum.", least=1)

    def rounds(self, parties: Any) -> Any:
        """Sum; then ask each client."""
        width, total = parties[0].features, {}
        for k in range(self.times):
            total = yield ROW_SUM({"sum": (width,), "count": ()}, k=k)
            self.history_.append({"round": k + 1})
        mean = total["sum"] / total["count"]
        self.model_ = {"mean": mean}
        told = yield Ask("judge", {"mean": mean, "note": "how far"})
        held = yield HELD_SUM({"count": ()})
        return {
            "rows": int(np.rint(total["count"])),
            "held": int(np.rint(held["count"])),
            "far": [round(reply["far"], 6) for reply in told.values()],
        }


class MeanClient(MethodClient):
    """The client of it."""

    labels_of_row = 0

    @contributes(ROW_SUM)
    def add(self, k: int) -> dict[str, Any]:
        self.kept.arrays["seen"] = np.array([k])
        return {"count": len(self.x), "sum": self.x.sum(axis=0)}

    @answers("judge")
    def judge(self, mean: Any, note: str) -> dict[str, Any]:
        assert note == "how far"
        assert self.kept.arrays["seen"].shape == (1,)
        return {"far": np.abs(self.x.mean(axis=0) - mean).max(), "mean": mean}

    @contributes(HELD_SUM)
    def count(self) -> dict[str, Any]:
        return {"count": len(self.x_test)}

"""A client in a secure run: nothing leaves it unmasked, and its secrets end with the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr.errors import ProtocolError, RefusedError, SumError
from fedkern_flwr.guard import SumRule
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.secure_sum import Encoding, PartyState, RunningSum, SecureSum
from fedkern_flwr.wire import DescribeReply, DescribeRequest, PhaseMessage, sums
from fedkern_flwr.wire.sections import attach, detach

SESSION, MEMBERS = "abc", (0, 1, 2, 3)


class Client(PhaseClient):
    """Sums one vector under a name, and one under another, in the order it is told."""

    names: tuple[str, ...] = ("a",)
    rule = SumRule(Encoding.fixed_point(8.0), self_masks=None)

    def handlers(self) -> dict[str, Any]:
        return {"work": (Work, self.work)}

    def describe(self, request: DescribeRequest) -> DescribeReply:
        return DescribeReply(rows=1, features=1)

    def work(self, request: PhaseMessage) -> PhaseMessage:
        if self.sums is None:
            return Done()
        for name in self.names:
            self.sums.check(name, self.rule)
            self.sums.contribute(name, np.full(3, 1.0 + self.partition))
        return Done()


class Work(sums.SumRequest):
    phase = "work"


class Done(PhaseMessage):
    phase = "work"


class Run:
    """Four nodes and a server, message by message."""

    def __init__(self, **options: Any) -> None:
        self.contexts = {k: new_context(k) for k in MEMBERS}
        self.options = options
        keys, self.counts = {}, {}
        for k in MEMBERS:
            opening = DescribeRequest(session=SESSION, method="m", resume_round=0, secure=True)
            reply = self.ask(k, opening)[0]
            keys[k] = (reply["public_key"], reply["signature"])
            self.counts[k] = (reply["rows"], reply["test_rows"])
        self.keys = keys
        self.server = SecureSum(SESSION, keys, counts=self.counts)

    def client(self, k: int, cls: type[Client] = Client) -> Client:
        return cls(self.contexts[k], **self.options)

    def ask(
        self, k: int, request: PhaseMessage, sections: Any = (), cls: type[Client] = Client
    ) -> tuple[dict[str, Any], list[Any]]:
        arrays, scalars = attach(list(sections))
        out, _, metrics = self.client(k, cls).fit(
            request.arrays() + arrays, request.scalars() | scalars
        )
        _, own, found = detach(out, metrics, party=f"partition {k}")
        return own, found

    def contribute(self, *running: RunningSum, cls: type[Client] = Client) -> None:
        for k in MEMBERS:
            _, found = self.ask(k, work(), self.server.sections(k, running), cls)
            self.server.take(k, found)

    def state(self, k: int) -> PartyState:
        return PartyState.unpack(self.contexts[k].state["fedkern-sums"]["state"])  # type: ignore[arg-type]


def new_context(k: int) -> Context:
    config: Any = {"simulation": True, "partition-id": k, "num-partitions": len(MEMBERS)}
    return Context(run_id=1, node_id=k, node_config=config, state=RecordDict(), run_config={})


def work() -> Work:
    return Work(session=SESSION, round=1)


def encoding() -> Encoding:
    return Encoding.fixed_point(8.0)


def test_unmasking_rides_on_the_next_request() -> None:
    """Two sums in three exchanges: the second's order and the first's survivors travel together."""
    run = Run()
    first = run.server.order("a", 3, encoding())
    run.contribute(first)
    unmask = run.server.unmask_sections([first])
    second = run.server.order("a", 3, encoding())
    for k in MEMBERS:
        sections = [*unmask[k], *run.server.sections(k, [second])]
        run.server.take(k, run.ask(k, work(), sections)[1])
    np.testing.assert_array_equal(run.server.total(first), np.full(3, 10.0))
    for k, sections in run.server.unmask_sections([second]).items():
        request = sums.UnmaskRequest(session=SESSION, round=2)
        run.server.take(k, run.ask(k, request, sections)[1])
    np.testing.assert_array_equal(run.server.total(second), np.full(3, 10.0))


def test_sums_may_be_filled_in_any_order_and_delivered_together() -> None:
    class Backwards(Client):
        names = ("b", "a")
        rule = SumRule(Encoding.fixed_point(8.0), receiver=0)

        def work(self, request: PhaseMessage) -> PhaseMessage:
            delivered.update({(self.partition, n): v for n, v in self.sums.delivered.items()})  # type: ignore[union-attr]
            return super().work(request) if self.sums.orders else Done()  # type: ignore[union-attr]

    run, delivered = Run(), {}
    a = run.server.order("a", 3, encoding(), receiver=0, self_masks=False)
    b = run.server.order("b", 3, encoding(), receiver=0, self_masks=False)
    run.contribute(a, b, cls=Backwards)
    assert run.server.unmask_sections([a, b]) == {}
    run.ask(0, work(), [a.delivery(), b.delivery()], Backwards)
    assert sorted(delivered) == [(0, "a"), (0, "b")]
    for total in delivered.values():
        np.testing.assert_array_equal(total, np.full(3, 10.0))


EIGHT = Encoding.fixed_point(8.0)
RULES: dict[str, tuple[SumRule, str]] = {
    "right": (SumRule(EIGHT, receiver=0), ""),
    "of one cohort": (SumRule(EIGHT, receiver=0, everybody=True), ""),
    "either way masked": (SumRule(EIGHT, receiver=0, self_masks=None), ""),
    "of a smaller bound": (SumRule(Encoding.fixed_point(7.0), receiver=0, wider=True), ""),
    "of another ring as well": (SumRule(Encoding.fixed_point(8.0, 32), 0, rings=(64,)), ""),
    "of three numbers": (SumRule(EIGHT, receiver=0, length=3), ""),
    "the server would open it": (SumRule(EIGHT), "receiver"),
    "another would": (SumRule(EIGHT, receiver=1), "receiver"),
    "angles": (SumRule(Encoding.circle(64), receiver=0), "encoding"),
    "of a larger bound": (SumRule(Encoding.fixed_point(9.0), receiver=0), "bound"),
    "of a bound too small": (SumRule(Encoding.fixed_point(9.0), receiver=0, wider=True), "bound"),
    "a bound too large": (SumRule(Encoding.fixed_point(7.0), receiver=0), "bound"),
    "another ring": (SumRule(Encoding.fixed_point(8.0, 32), receiver=0), "encoding"),
    "masked": (SumRule(EIGHT, receiver=0, self_masks=True), "masks"),
    "of four numbers": (SumRule(EIGHT, receiver=0, length=4), "length"),
}


@pytest.mark.parametrize("kind", RULES)
def test_a_method_says_who_opens_a_sum_and_of_what(kind: str) -> None:
    rule, wrong = RULES[kind]

    class Wary(Client):
        pass

    Wary.rule = rule
    run = Run()
    running = run.server.order("a", 3, encoding(), receiver=0, self_masks=False)
    if not wrong:
        run.contribute(running, cls=Wary)
        return
    with pytest.raises(RefusedError, match=f"partition 0: refused by the node: the {wrong} of a s"):
        run.contribute(running, cls=Wary)


def test_a_sum_of_which_nothing_is_said_is_not_made() -> None:
    class Careless(Client):
        def work(self, request: PhaseMessage) -> PhaseMessage:
            self.sums.contribute("a", np.zeros(3))  # type: ignore[union-attr]
            return Done()

    run = Run()
    with pytest.raises(SumError, match="nothing says what the sum 'a' must be; call check"):
        run.contribute(run.server.order("a", 3, encoding()), cls=Careless)


def test_a_sum_over_some_parties_only_is_noticed() -> None:
    class Wary(Client):
        rule = SumRule(EIGHT, self_masks=True, everybody=True)

    run = Run()
    run.server = SecureSum(SESSION, run.keys, cohorts=[MEMBERS, MEMBERS[1:]], counts=run.counts)
    running = run.server.order("a", 3, encoding())
    with pytest.raises(RefusedError, match="partition 1: refused by the node: the cohort of a sum"):
        run.ask(1, work(), run.server.sections(1, [running]), Wary)


def test_parties_of_a_sum_must_have_been_told_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a small bound for one and a large one for the others, its digits would lead."""

    class Wide(Client):
        rule = SumRule(Encoding.fixed_point(1.0), wider=True)

        def work(self, request: PhaseMessage) -> PhaseMessage:
            self.sums.check("a", self.rule)  # type: ignore[union-attr]
            values = np.array([0.25, -0.5, 0.125]) + 2.0**-20 * self.partition
            self.sums.contribute("a", values)  # type: ignore[union-attr]
            return Done()

    def read() -> np.ndarray:
        run = Run()
        wide = Encoding.fixed_point(2.0**40)
        order = run.server.order("a", 3, wide, self_masks=False).order
        total = np.zeros(3, np.uint64)
        for k in MEMBERS:
            (roster, _) = run.server.sections(k, [run.server.order("b", 3, wide)])
            own = replace(order, bound=1.0) if k == 0 else order
            (upload,) = run.ask(k, work(), [roster, own], Wide)[1]
            (masked,) = upload.read(sums.Upload, party="").masked
            total += masked
        return total.view(np.int64) * 2.0**-60

    truth = np.array([0.25, -0.5, 0.125])
    assert not np.isclose(read(), truth, atol=1e-3).any()
    monkeypatch.setattr("fedkern_flwr.secure_sum.party.order_terms", lambda order: order.name)
    np.testing.assert_allclose(read(), truth, atol=1e-9)  # negative control


def test_figures_are_opened_once() -> None:
    """The difference of two sums of the same figures over other survivors would be one party's."""

    class Judge(Client):
        rule = SumRule(Encoding.fixed_point(8.0), self_masks=True)

        def work(self, request: PhaseMessage) -> PhaseMessage:
            self.sums.check("a", self.rule)  # type: ignore[union-attr]
            told = self.figures("figures", np.arange(6), np.ones(3), total="a")
            self.sums.contribute("a", told)  # type: ignore[union-attr]
            return Done()

    run = Run()
    first, second = (run.server.order("a", 3, encoding()) for _ in range(2))
    second.order = replace(second.order, open_from=1)  # an honest server closes the first
    for running in (first, second):
        run.contribute(running, cls=Judge)
    unmask = sums.UnmaskRequest(session=SESSION, round=2)
    for _ in range(2):  # asked again for the same survivors
        run.ask(1, unmask, run.server.unmask_sections([first])[1], Judge)
    with pytest.raises(RefusedError, match="an evaluation is opened a second time"):
        run.ask(1, unmask, run.server.unmask_sections([second])[1], Judge)


def test_a_request_without_orders_gets_no_plain_answer_in_a_secure_run() -> None:
    run = Run()
    with pytest.raises(SumError, match="no sum 'a' was ordered"):
        run.ask(0, work())


def test_two_sums_of_one_name_are_refused() -> None:
    run = Run()
    twice = [run.server.order("a", 3, encoding()) for _ in range(2)]
    with pytest.raises(SumError, match="two sums 'a' in one request"):
        run.contribute(*twice)


def test_an_order_that_nobody_fills_is_refused() -> None:
    run = Run()
    orders = [run.server.order(name, 3, encoding()) for name in "ac"]
    with pytest.raises(SumError, match="contributes nothing to c"):
        run.contribute(*orders)


def test_sections_need_a_key_of_the_session() -> None:
    run = Run()
    order = run.server.order("a", 3, encoding())
    opening = DescribeRequest(session=SESSION, method="m", resume_round=0, secure=False)
    run.ask(0, opening)
    assert "fedkern-sums" not in run.contexts[0].state
    with pytest.raises(ProtocolError, match="has announced no key in its session"):
        run.ask(0, work(), run.server.sections(0, [order]))


def test_a_node_with_pinned_identities_refuses_a_plain_run(tmp_path: Any) -> None:
    (tmp_path / "trusted").write_text("")
    client = Client(new_context(0), trusted_keys=tmp_path / "trusted")
    opening = DescribeRequest(session=SESSION, method="m", resume_round=0, secure=False)
    with pytest.raises(SumError, match="takes part in secure runs only; run with secure sums"):
        client.fit([], opening.scalars())


def test_messages_of_evaluation_reach_no_handler() -> None:
    """Flower says of a client without that method that it is not implemented."""
    assert {"fit", "evaluate"} & vars(type(Run().client(0).to_client())).keys() == {"fit"}


def test_the_end_of_a_run_erases_everything_even_with_sections() -> None:
    run = Run()
    running = run.server.order("a", 3, encoding())
    run.contribute(running)
    assert run.state(2).open
    finish = sums.FinishRequest(session=SESSION, round=1)
    run.ask(2, finish, run.server.unmask_sections([running])[2])
    assert "fedkern-sums" not in run.contexts[2].state
    with pytest.raises(ProtocolError):
        run.ask(2, work(), [running.order])


def test_a_resumed_run_repeats_no_round_that_was_answered(tmp_path: Any) -> None:
    """Whatever its server says: with other survivors the difference would show single parties."""
    run = Run(state_dir=tmp_path)
    run.client(0).note_answered(SESSION, 4)
    run.ask(0, DescribeRequest(session=SESSION, method="m", resume_round=2, secure=True))
    with pytest.raises(ProtocolError, match=r"round 4 has been done already \(last round 4\)"):
        run.client(0).open_round(SESSION, 4, 0)
    run.client(0).open_round(SESSION, 5, 0)


def test_a_handler_that_fails_leaves_no_trace_of_its_sum() -> None:
    class Failing(Client):
        def work(self, request: PhaseMessage) -> PhaseMessage:
            super().work(request)
            raise RuntimeError("quotes 42")

    run = Run()
    running = run.server.order("a", 3, encoding())
    before = bytes(run.contexts[1].state["fedkern-sums"]["state"])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="quotes 42"):
        run.ask(1, work(), run.server.sections(1, [running]), Failing)
    assert run.contexts[1].state["fedkern-sums"]["state"] == before
    run.contribute(running)  # the client takes part with its first and only use of the number


def test_a_client_object_does_not_repeat_the_sections_of_an_earlier_reply() -> None:
    run = Run()
    running = run.server.order("a", 3, encoding())
    client = run.client(0)
    arrays, scalars = attach(run.server.sections(0, [running]))
    out, _, metrics = client.fit(arrays, work().scalars() | scalars)
    assert detach(out, metrics, party="")[2]
    finish = sums.FinishRequest(session=SESSION, round=1)
    out, _, metrics = client.fit([], finish.scalars())
    assert not out
    assert not detach(out, metrics, party="")[2]

"""What a server learns that asks nodes again and again: nothing, and soon they do not answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.clients.fed_cg_kernel import RunState
from fedkern_flwr.errors import FedKernError, ProtocolError, RefusedError, SumError
from fedkern_flwr.guard import NodePolicy, RunRecord, SumRule
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.node.sums import ClientSums, load_state, store_state
from fedkern_flwr.online.messages import LocalRequest
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.masks import CIPHERS
from fedkern_flwr.secure_sum.party import Party
from fedkern_flwr.wire import DescribeRequest, sums
from fedkern_flwr.wire.sections import attach

STEPS, PATIENTS = 30, 3


def send(client: PhaseClient, request: Any, sections: Any = ()) -> Any:
    arrays, scalars = attach(list(sections))
    return client.fit(request.arrays() + arrays, request.scalars() | scalars)


# -- distances through refusals


def bisect(found: Any) -> tuple[np.ndarray, list[str]]:
    """Search for the largest distance of each patient by the bound of a sum that is refused."""
    client, m = found.client, found.request.landmarks
    order = next(s for s in found.sections if getattr(s, "name", "") == "distances/1#0")
    others = [s for s in found.sections if not isinstance(s, sums.Order)]
    said, largest, number = [], np.zeros(PATIENTS), 0
    for patient in range(PATIENTS):
        low, high = 0.0, 2.0
        for _ in range(STEPS):
            number += 1
            asked = replace(
                order,
                name=f"distances/1#{patient}",
                index=number,
                length=m,
                bound=0.5 * (low + high),
            )
            place = found.request.hospitals.tolist().index(1)
            starts, stops = found.request.starts.copy(), found.request.stops.copy()
            starts[place], stops[place] = patient, patient + 1
            request = replace(
                found.request, round=number, starts=starts, stops=stops, landmark_pairs=False
            )
            try:
                send(client, request, [*others, asked])
            except (ProtocolError, SumError) as error:
                said.append(str(error))
                low = asked.bound
            else:
                said.append("")
                high = asked.bound
        largest[patient] = high
    return largest, said


def true_distances(found: Any) -> np.ndarray:
    client, session = found.client, found.request.session
    client.kept = RunState.unpack(client.open_session(session).payload)
    place = found.request.hospitals.tolist().index(1)
    rows = found.request.rows[place][:PATIENTS]
    return np.asarray(client._distances(rows, client._landmarks()).max(axis=1))


def test_shifted_bounds_read_nothing(meet: Callable[..., Any]) -> None:
    """90 orders; the third that is refused ends the run at that node."""
    said = []
    for seed in (1, 2):
        found = meet("fed-cg, products", 3, "hybrid-distances", "distances/1", seed)
        said.append(bisect(found)[1])
    assert said[0] == said[1]
    assert len(said[0]) == STEPS * PATIENTS
    assert all("refused by the node: the bound of a sum" in text for text in said[0][:3])
    over = "refused by the node: 3 orders of this run were refused, it is over here"
    assert all(over in text for text in said[0][3:])


def test_without_the_rule_bounds_would_read_distances(
    meet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: bounds as they come, no limit of refusals, no memory of earlier sums."""
    look = ClientSums.check

    def credulous(sums_: ClientSums, name: str, rule: SumRule) -> None:
        order = sums_.order(name)
        asked = Encoding(order.kind, order.bits, order.bound)  # type: ignore[arg-type]
        look(sums_, name, replace(rule, encoding=asked))

    found = meet("fed-cg, products", 3, "hybrid-distances", "distances/1", 1)
    monkeypatch.setattr(ClientSums, "check", credulous)
    monkeypatch.setattr(RunRecord, "check", lambda *_: None)
    monkeypatch.setattr(Party, "_check_fixed", lambda *_: None)
    largest, said = bisect(found)
    assert "" in said
    np.testing.assert_allclose(largest, true_distances(found), atol=1e-8, rtol=0)


def test_a_message_that_fails_fixes_what_was_asked(
    meet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other landmarks, rows or bounds for the next would make one refusal's bit a measurement."""
    found = meet("fed-cg, products", 3, "hybrid-distances", "distances/1", 1)
    client, request = found.client, found.request

    def kept() -> RunState:
        return RunState.unpack(client.open_session(request.session).payload)

    orders = [s for s in found.sections if getattr(s, "name", "") == "distances/1#0"]
    others = [s for s in found.sections if not isinstance(s, sums.Order)]
    assert kept().seed == b""
    with pytest.raises(RefusedError, match="the bound of a sum"):
        send(client, request, [*others, replace(orders[0], bound=0.01)])
    seed = kept().seed
    assert seed  # drawn, and kept
    with monkeypatch.context() as far:
        far.setattr(client, "_distances", lambda rows, marks: np.full((len(rows), len(marks)), 9e9))
        with pytest.raises(RefusedError, match="the values of a sum"):
            send(client, request, [*others, *orders])
    state = load_state(client.context)
    assert state is not None
    assert list(state.fixed) == ["distances/1"]
    store_state(client.context, state)
    assert kept().seed == seed
    place = request.hospitals.tolist().index(1)
    rows = [r[::-1].copy() if n == place else r for n, r in enumerate(request.rows)]
    with pytest.raises(RefusedError, match="other rows are asked for than before"):
        send(client, replace(request, rows=tuple(rows)), [*others, *orders])


# -- a run that has ended


@pytest.mark.parametrize("node", ["finished", "refused"])
def test_nothing_is_answered_in_plain_when_the_sums_have_ended(
    meet: Callable[..., Any], node: str
) -> None:
    found = meet("pof-mkl", 2, "online-personal", "update", 1)
    client, request = found.client, found.request
    if node == "finished":
        send(client, sums.FinishRequest(session=request.session, round=1))
    else:
        order = next(s for s in found.sections if isinstance(s, sums.Order))
        wrong = [s if s is not order else replace(order, receiver=1) for s in found.sections]
        for _ in range(3):
            with pytest.raises(RefusedError, match="the receiver of a sum"):
                send(client, request, wrong)
        assert "fedkern-sums" not in client.context.state
    for sections in ([], found.sections):
        with pytest.raises((ProtocolError, SumError)):
            send(client, request, sections)


def test_errors_of_single_samples_are_not_told_in_a_secure_run(meet: Callable[..., Any]) -> None:
    found = meet("pof-mkl", 2, "online-personal", "update", 1)
    names = {field.name for field in fields(LocalRequest)}
    shared = {name: value for name, value in vars(found.request).items() if name in names}
    request = LocalRequest(**{**shared, "step_size": "adaptive"})
    with pytest.raises(ProtocolError, match="told in runs without secure sums"):
        send(found.client, request)


def test_a_run_that_has_begun_is_not_begun_again(meet: Callable[..., Any]) -> None:
    """Else rows that stay the same in a run could be chosen anew."""
    found = meet("fed-cg, products", 1, "hybrid-product", "product", 1)
    client, session = found.client, found.request.session
    before = client.open_session(session).payload
    kept = RunState.unpack(before).settings
    send(client, DescribeRequest(session=session, method="fed-cg", resume_round=0, secure=True))
    again = RunState.unpack(client.open_session(session).payload).settings
    rows = [name for name in kept if name.startswith("rows of ")]
    assert rows
    assert {name: again[name] for name in rows} == {name: kept[name] for name in rows}


# -- evaluations


EVALUATED = ["pof-mkl", "per-fed-avg", "fed-cg", "fdskl", "fdskl, two", "svm", "svm, columns"]


FIGURES = {"test_mse", "test_accuracy", "test_recall", "test_precision", "auc"}


@pytest.mark.parametrize("run", [*EVALUATED, "fed-cfk"])
def test_a_run_goes_on_without_figures(
    run: str,
    guarded_runs: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING", "fedkern_flwr")
    policy = NodePolicy(min_evaluation_rows=10**6)
    monkeypatch.setattr("fedkern_flwr.node.client.node_policy", lambda *_: policy)
    kept = set(guarded_runs[run](1, tmp_path).metrics_)
    assert not kept & FIGURES
    assert "figures about held-out rows are not told" in caplog.text
    untold = "nodes keep figures of held-out rows to themselves"
    assert untold in caplog.text or run == "fed-cfk"


@pytest.mark.parametrize(
    "run",
    ["pof-mkl", *(pytest.param(r, marks=pytest.mark.long) for r in [*EVALUATED[1:], "fed-cfk"])],
)
def test_figures_are_told_where_no_policy_forbids(
    run: str, guarded_runs: dict[str, Any], tmp_path: Path
) -> None:
    assert FIGURES & set(guarded_runs[run](1, tmp_path).metrics_)


def evaluation(found: Any, number: int, **changes: Any) -> tuple[Any, list[Any]]:
    order = next(s for s in found.sections if isinstance(s, sums.Order))
    later = replace(order, index=order.index + number)
    sections = [later if s is order else s for s in found.sections]
    return replace(found.request, round=found.request.round + number, **changes), sections


def test_figures_of_the_same_rows_are_told_so_often(meet: Callable[..., Any]) -> None:
    found = meet("pof-mkl", 2, "online-evaluate", "evaluate", 1)
    most = NodePolicy().max_evaluations
    for number in range(20):  # the same model: what was told is repeated
        send(found.client, *evaluation(found, number))
    for number in range(20, 19 + most):
        theta = found.request.theta + 0.001 * np.float32(number)
        send(found.client, *evaluation(found, number, theta=theta))
    theta = 2.0 * found.request.theta + 1.0
    with pytest.raises(RefusedError, match=f"max_evaluations = {most} of these rows"):
        send(found.client, *evaluation(found, 20 + most, theta=theta))


# -- one party that is told another roster than the others


def test_a_party_that_is_shown_another_cipher_ends_the_run(
    guarded_runs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its masks do not cancel, and phases that are noise are phases all the same."""
    fit, shown = PhaseClient.fit, list[str]()

    def fooled(client: PhaseClient, parameters: Any, config: Any) -> Any:
        told = str(config.get("sections", ""))
        if client.partition == 2 and (found := re.search(r'"cipher": "([^"]*)"', told)):
            (other,) = set(CIPHERS) - {found[1]}
            config = {**config, "sections": told.replace(found[0], f'"cipher": "{other}"')}
            shown.append(other)
        return fit(client, parameters, config)

    monkeypatch.setattr(PhaseClient, "fit", fooled)
    with pytest.raises(FedKernError):
        guarded_runs["fdskl"](1, tmp_path)
    assert shown

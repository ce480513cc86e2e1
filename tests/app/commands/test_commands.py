"""The commands that start runs and look at results, without a SuperLink."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from faults import Clock
from typer.testing import CliRunner

from vfl_flower import CoresetVRLR, load_model, simulate
from vfl_flower.app.commands import reports, runs, stored
from vfl_flower.app.commands.cli import app
from vfl_flower.app.commands.runs import Follower, gather
from vfl_flower.app.config import check_run_config, party_source
from vfl_flower.app.deployment.flower_run import KILLED, RunOutcome, _ended, why
from vfl_flower.app.deployment.processes import RunFailed
from vfl_flower.app.plan import progress
from vfl_flower.app.plan.progress import line_of, planned_trips
from vfl_flower.app.report.units import clock, size
from vfl_flower.app.server_app import command_of
from vfl_flower.data import load_party


def call(*arguments):
    ended = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return ended.exit_code, ended.output + (ended.stderr if ended.exit_code else "")


@pytest.fixture
def files(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 4))
    ids = np.arange(60)
    a = {"id": ids, "u": X[:, 0], "v": X[:, 1]}
    b = {"id": ids, "w": X[:, 2], "y": X.sum(axis=1)}
    pd.DataFrame(a).to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame(b).to_parquet(tmp_path / "b.parquet")
    return [tmp_path / "a.csv", tmp_path / "b.parquet"]


def simulated(files, out, *more):
    given = [word for file in files for word in ("--party", file)]
    given += ["--id-column", "id", "--label-column", "y", *sets(**{"output-dir": out})]
    given += sets(size=20, solver="central")
    return call("simulate", "coreset-vrlr", *given, *more)


def sets(**settings):
    return [word for key in settings for word in ("--set", f"{key}={settings[key]}")]


# -- simulate, report and models -------------------------------------------------------


def test_rows_that_nobody_named_are_named(tmp_path):
    arguments = ["coreset-vrlr", "--parties", 2, "--set", f"output-dir={tmp_path}"]
    code, out = call("simulate", *arguments, "--set", "solver=central")
    assert code == 0
    assert "using the example data set diabetes, split over 2 parties" in out
    code, out = call("simulate", *arguments, "--data", "digits", "--set", "size=x")
    assert "neither --party" not in out


def test_the_page_is_made_again_from_the_folder(files, tmp_path, monkeypatch):
    assert simulated(files, tmp_path / "out")[0] == 0
    (folder,) = (tmp_path / "out").iterdir()
    page = folder / "report.html"
    first = page.read_bytes()
    page.write_text("another")
    assert call("report", folder)[0] == 0
    assert page.read_text() == "another"
    assert call("report", folder, "--rebuild")[0] == 0
    assert page.read_bytes() == first
    page.unlink()
    opened = []
    monkeypatch.setattr(reports.typer, "launch", lambda where: opened.append(where))
    assert call("report", folder, "--open")[0] == 0
    assert opened == [str(page)]
    assert page.read_bytes() == first
    (folder / "result.json").write_text("{}")
    code, out = call("report", folder, "--rebuild")
    assert code == 1
    assert "is damaged" in out


def test_the_last_of_two_runs_of_a_second_is_the_one_that_ended_last(tmp_path):
    # Whatever numbers Flower has drawn.
    names = "20261123-094000-9", "20261123-094000-5", "20261123-093959-7"
    for place, name in enumerate(names):
        result = tmp_path / name / "result.json"
        result.parent.mkdir()
        result.touch()
        os.utime(result, ns=(place, place))
    order = [run.name for run in reports.runs_in(tmp_path)]
    assert order == [names[2], names[0], names[1]]


def test_the_command_of_a_page_runs_it_again(files, tmp_path):
    """It names the files, and all settings that are not as by default."""
    given = ("--set", "seed=3", "--state-dir", tmp_path / "state")
    assert simulated(files, tmp_path / "out", *given)[0] == 0
    (folder,) = (tmp_path / "out").iterdir()
    first = json.loads((folder / "result.json").read_text())
    program, *words = shlex.split(first["command"])
    assert program == "vfl-flower"
    code, out = call(*words, "--set", f"output-dir={tmp_path / 'again'}")
    assert code == 0, out
    (folder,) = (tmp_path / "again").iterdir()
    again = json.loads((folder / "result.json").read_text())
    assert again["command"] == first["command"]
    metrics, repeated = (r["results"]["coreset"]["metrics"] for r in (first, again))
    assert metrics == repeated


def test_the_command_of_a_run_on_a_federation_names_its_folder(tmp_path, monkeypatch):
    home = tmp_path / "federation" / "flwr"
    home.mkdir(parents=True)
    (home / "superlink.sqlite").touch()
    monkeypatch.setenv("FLWR_HOME", str(home))
    checked = check_run_config({"resume": "20261122-1"})
    assert command_of(checked, 3) == (
        f"vfl-flower run coreset-vrlr --federation {home.parent} --set "
        "resume=20261122-1"
    )


@pytest.mark.parametrize(
    ("config", "command"),
    [
        (
            {"data": "digits", "strategy": "ridge", "ridge.relevance": False},
            "vfl-flower simulate ridge --data digits --parties 3 "
            "--set ridge.relevance=false",
        ),
        (
            {"task": "unlearn", "strategy": "mufc", "seed": 2},
            "vfl-flower run mufc --task unlearn --set seed=2",
        ),
    ],
)
def test_the_command_of_a_run_config(config, command):
    """One with data of its own was simulated."""
    assert command_of(check_run_config(config), 3) == command


def test_files_are_simulated_and_the_report_shown(files, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "planned_trips", planned_trips)
    code, out = simulated(files, tmp_path / "out", "--set", "seed=3")
    assert code == 0, out
    assert "100% coresets_scores" in out
    (folder,) = (tmp_path / "out").iterdir()
    read = [{"data": str(file), "id-column": "id"} for file in files]
    read[1]["label-column"] = "y"
    parties = [load_party(party_source(config, {})) for config in read]
    expected = simulate(CoresetVRLR(size=20, solver="central"), parties, seed=3)
    actual = load_model(folder / "model-coreset.npz")
    np.testing.assert_allclose(actual.coef_[0], expected.model.coef_[0])
    code, out = call("report", "--output-dir", tmp_path / "out")
    assert code == 0
    assert f"{expected.metrics['train_loss']:.4g}" in out
    assert "coresets_totals" in out
    number = folder.name.split("-")[-1]
    for name in (number, folder.name, folder):
        assert call("report", name, "--output-dir", tmp_path / "out")[1] == out
    assert f"Page: {folder / 'report.html'}" in out
    code, out = call("report", "17", "--output-dir", tmp_path / "out")
    assert code == 1
    assert "there is no run '17'" in out


def test_files_of_different_rows_are_aligned_and_then_simulated(files, tmp_path):
    pd.read_csv(files[0])[10:].to_csv(files[0], index=False)
    pd.read_parquet(files[1])[40::-1].to_parquet(files[1])
    more = ["--state-dir", tmp_path, *sets(**{"output-dir": tmp_path / "out"})]
    given = ["--party", files[0], "--party", files[1], "--id-column", "id", *more]
    assert call("simulate", "align", *given, *sets(alignment="q4"))[0] == 0
    code, out = simulated(files, tmp_path / "out", *more, *sets(alignment="q4"))
    assert code == 0
    assert all(f"using 31 of its {n} rows" in out for n in (50, 41))


def test_files_of_split_rows_have_equally_many_columns(files):
    pd.read_csv(files[0]).drop(columns="v").to_csv(files[0], index=False)
    given = ["--party", files[0], "--party", files[1], "--id-column", "id"]
    code, out = call("simulate", "fk-kmeans", *given)
    assert (code, "same number of columns: a has 1, b has 2" in out) == (1, True)


def test_all_faults_of_all_files_are_said_at_once(files, tmp_path):
    a, b = (pd.read_csv(files[0]), pd.read_parquet(files[1]))
    a.loc[3, "u"] = np.inf
    a.to_csv(files[0], index=False)
    b.loc[5, "id"] = 4
    b.iloc[:50].to_parquet(files[1])
    code, out = simulated(files, tmp_path / "out")
    assert code == 1
    for text in (
        "fix  a: column 'u' of the party must have no infinite value",
        "fix  b: id-column 'id' of the party must have distinct values",
        "a has 60, b has 50",
        "problems to fix before the run: 3",
    ):
        assert text in out
    assert "Error" not in out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--party", "no.csv", "--party", "x.csv"], "data file not found: 'no.csv'"),
        (["--data", "wines"], "a folder of party files, synthetic:n=..,d=.. or one of"),
        (["--data", "diabetes", "--set", "size"], "--set must be key=value"),
        (["--data", "diabetes", "--set", "size=x"], "must be a whole number"),
        (["--data", "diabetes", "--set", "aligment=x"], "did you mean 'alignment'?"),
        (["--data", "diabetes", "--set", "siz=3"], "mean 'coreset-vrlr.size'?"),
        (["--data", "diabetes", "--parties", 1], "needs at least 2 parties, got 1"),
        (["--parties", 2, "--set", "n-parties=3"], "2, the number of parties, got 3"),
        (["--set", "task=predict"], "set by --task, not as a setting, got 'predict'"),
        (["--set", "strategy=fdskl"], "STRATEGY, not as a setting, got 'fdskl'"),
        (["--set", "coreset-vrlr.loss=3"], "no key 'coreset-vrlr.loss'\n"),
        (["--set", "scores=3"], "no key 'scores'\n"),
        (["--set", "coreset-vrlr.alpa=3"], "mean 'coreset-vrlr.alpha'?"),
        (
            ["--task", "predict", "--set", f"model-id={'1' * 16}"],
            "'party-0': state-dir (--state-dir) is needed: it holds the local model",
        ),
    ],
)
def test_a_command_that_cannot_run_says_why(arguments, reason):
    code, out = call("simulate", "coreset-vrlr", *arguments)
    assert (code, reason in out) == (1, True), out


def test_models_are_listed_shown_and_removed(files, tmp_path, monkeypatch):
    out = tmp_path / "out"
    simulated(files, out)
    keep = tmp_path / "kept"
    given = ["simulate", "fdskl", "--data", "breast_cancer", "--state-dir", keep]
    given += ["--set", f"output-dir={out}"]
    code, text = call(*given, *sets(features=16, bandwidth=10))
    assert code == 0, text
    part, _, _ = keep.glob("*/*.npz")
    number = part.stem
    code, text = call("models", "list", "--output-dir", out)
    assert "2 models" in text
    assert number in text
    code, text = call("models", "show", number, "--output-dir", out)
    assert (code, "kernel: gaussian" in text) == (0, True)
    # The parties' own parts go by a run, here on the same folders.
    started = []
    monkeypatch.setattr(stored, "start", lambda *given, **_: started.append(given))
    removal = ["models", "remove", number, "--output-dir", out]
    assert call(*removal, "--connection", "x")[0] == 0
    ((config, connection, _),) = started
    assert (connection, config["strategy"]) == ("x", "fdskl")
    assert (config["task"], config["model-id"]) == ("remove", number)
    code, text = call(*given, "--task", "remove", "--set", f"model-id={number}")
    assert code == 0, text
    assert list(keep.glob("*/*.npz")) == []
    assert "1 model in" in call("models", "list", "--output-dir", out)[1]
    call(*removal)  # again, for other parties
    assert started[1][0] == started[0][0]
    # A model without parts is a file alone.
    (run,) = [path.parent for path in out.glob("*/model-coreset.npz")]
    used = shutil.copytree(run, out / "20300101-000000-1") / "result.json"  # later
    used.write_text(used.read_text().replace('"task": "train"', '"task": "predict"'))
    assert "1 model in" in call("models", "list", "--output-dir", out)[1]
    assert call("models", "remove", run.name, "--output-dir", out)[0] == 0
    assert "0 models" in call("models", "list", "--output-dir", out)[1]
    assert (run / "report.md").exists()


def test_a_model_has_one_line_and_a_party_without_state_is_named(tmp_path):
    """Of all its tasks: a training, a removal that fails, and two that do not."""
    rng, out, keep = np.random.default_rng(0), tmp_path / "out", tmp_path / "kept"
    given = ["--id-column", "id", "--set", f"output-dir={out}"]
    given += ["--set", f"mufc.server-state={tmp_path / 'server'}"]
    for name in "abc":
        columns = {"id": np.arange(20), "u": rng.random(20) - 0.5}
        pd.DataFrame(columns).to_csv(tmp_path / f"{name}.csv", index=False)
        given += ["--party", tmp_path / f"{name}.csv"]
    code, text = call("simulate", "mufc", *given, "--state-dir", keep)
    assert code == 0, text
    (number,) = (path.stem for path in (tmp_path / "server").glob("*.sqlite"))
    assert f"model {number}, version 1, can forget" in text
    given += ["--set", f"model-id={number}", "--task"]
    tasks = ["unlearn"], ["forget-client", "--set", "mufc.clients=c"]
    for task in tasks:
        code, text = call("simulate", "mufc", *given, *task)
        assert code == 1
        rule = r"the run failed: party '[abc]' failed in 'mufc_\w+'.* no state-dir"
        assert re.match(rule, text.splitlines()[-1])
    (keep / "b" / "forget.txt").write_text("3\n")
    (keep / "c" / "leave.txt").write_text(number)
    for task, rows in zip(tasks, (59, 39), strict=True):
        code, text = call("simulate", "mufc", *given, *task, "--state-dir", keep)
        assert code == 0, text
        (result,) = out.glob(f"*/model-{task[0]}.npz")
        report = json.loads(result.with_name("result.json").read_text())["results"]
        assert report[task[0]]["metrics"]["1"]["rows"] == rows
        assert report[task[0]]["model_id"] == number
    kept = pd.read_csv(keep / "b" / f"predictions-{number}.csv")
    assert kept["id"].tolist() == [i for i in range(20) if i != 3]
    code, text = call("models", "list", "--output-dir", out)
    assert "1 model in" in text
    (line,) = (line for line in text.splitlines() if number in line)
    assert "train, unlearn, forget-client" in line
    assert result.parent.name in line


# -- run -------------------------------------------------------------------------------


def test_settings_are_read_as_their_keys_take_them(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("seed = 4\nn-parties = 3\n[coreset-vrlr]\nsize = 7\n")
    given = ["size=8", "solver=cg", "tol=1e-3", "regularizer=ridge"]
    given += ["coreset-vrlr.alpha=2"]
    assert gather("coreset-vrlr", "train", given, file) == {
        **{"strategy": "coreset-vrlr", "task": "train", "seed": 4, "n-parties": 3},
        **{"coreset-vrlr.size": 8, "coreset-vrlr.solver": "cg"},
        **{"coreset-vrlr.regularizer": "ridge"},
        **{"coreset-vrlr.tol": 1e-3, "coreset-vrlr.alpha": 2.0},
    }
    number = "1234567890123456"  # a text, although it looks like a number
    removal = gather("fdskl", "remove", [f"model-id={number}"])
    assert removal["model-id"] == number


def test_a_setting_is_read_from_a_file_that_parties_share(tmp_path):
    file = tmp_path / "bounds.txt"
    file.write_text("# agreed in May\nage = 0, 120\n\n* = 0, 1  # all others\n")
    config = gather("mufc", "train", [f"box=@{file}"])
    assert config["mufc.box"] == "age = 0, 120;* = 0, 1"
    with pytest.raises(ValueError, match=r"^--set cannot read .*/none.txt: No such"):
        gather("mufc", "train", [f"box=@{tmp_path}/none.txt"])


def test_a_line_a_step_and_none_of_flower(capsys):
    follower = Follower()
    lines = [line_of("hello", 1, 0, 1200, 6.0), line_of("x", 2, 4, 34_000, 72.0)]
    for line in [
        "\x1b[92mINFO\x1b[0m :      Starting logstream",
        *lines,
        "Successfully installed vfl-flower-app to /srv/flwr/apps/a.b.0.1.0.c",
        "3 parties: a, b, c",
        "╭─ Error ─╮",
        "│ Connection to the SuperLink is unavailable. │",
        "╰─────────╯",
        "\x1b[91mERROR\x1b[0m :     ServerApp raised an exception",
        "Traceback (most recent call last):",
    ]:
        follower(f"{line}\n")
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3
    words = " ".join(shown[1].split())
    assert words == "50% x round trip 2, 34 kB, 1:12, 1:12 left"
    assert shown[2] == "3 parties: a, b, c"


@pytest.mark.parametrize(
    ("status", "details", "reason"),
    [
        ("finished:failed", "ServerApp failed with exception: a b", "a b"),
        ("finished:failed", "No heartbeat received from the task", "gone silent"),
        ("finished:failed", f"{KILLED} by signal 9", "killed by signal 9; to continue"),
        ("finished:stopped", "", "it was stopped"),
        ("finished:failed", "", "it is finished:failed"),
    ],
)
def test_why_a_run_has_failed(status, details, reason):
    assert reason in why(status, details, "17")


def test_a_lost_superlink_is_a_sentence(monkeypatch):
    """Flower's own answer is of several lines."""

    class Lost:
        def flwr(self, *words):
            raise RunFailed("flwr ls: Using SuperLink: f\n\nIt is unavailable.")

    clock = Clock()
    monkeypatch.setattr("vfl_flower.app.deployment.flower_run.time", clock)
    with pytest.raises(RunFailed) as caught:
        _ended(Lost(), "17", "federation")
    assert clock.now <= 32
    assert "\n" not in caught.value.reason
    assert "(It is unavailable.)" in caught.value.reason
    assert "-17" in caught.value.reason


@pytest.mark.parametrize(
    ("strategy", "key"),
    [("fk-kmeans", "fk-kmeans.standardize"), ("coreset-vrlr", "standardize")],
)
def test_a_key_of_the_strategy_comes_before_one_of_all(strategy, key):
    assert gather(strategy, "train", ["standardize=true"])[key] is True


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["coreset-vrlr"], "'local' is a simulation"),
        (["coreset-vrlr", "--connection", "none"], "connection: "),
        (["coreset-vrlr", "--federation", "/none"], "has never run in /none"),
        (["unknown"], "strategy must be one of"),
    ],
)
def test_a_run_that_cannot_start_says_why(arguments, reason, tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text(
        '[superlink]\ndefault = "local"\n[superlink.local]\naddress = ":local:"\n'
    )
    code, out = call("run", *arguments)
    assert (code, reason in out) == (1, True), out


def test_times_and_sizes():
    assert [clock(s) for s in (5, 65, 3725)] == ["5 s", "1:05", "1:02:05"]
    assert [size(n) for n in (5, 1500, 2.71e7)] == ["5 B", "1.5 kB", "27.1 MB"]


@pytest.mark.parametrize("name", ["run", "simulate"])
def test_a_shell_completes_strategies(name):
    """As bash calls the command, once ``--install-completion`` has said how."""
    words = {"COMP_WORDS": f"vfl-flower {name} coreset", "COMP_CWORD": "2"}
    words |= {"_VFL_FLOWER_COMPLETE": "complete_bash"}
    ended = CliRunner().invoke(app, [], env=words, prog_name="vfl-flower")
    assert ended.stdout.split() == ["coreset-vrlr", "coreset-vkmc"]
    assert "--install-completion" in call("--help")[1]


def answer(*arguments):
    ended = CliRunner().invoke(app, [*map(str, arguments), "--format", "json"])
    return ended.exit_code, json.loads(ended.stdout)


def test_answers_are_json(files, tmp_path):
    out = tmp_path / "runs"
    assert simulated(files, out)[0] == 0
    code, read = answer("report", "--output-dir", out)
    assert code == 0
    assert read["run_config"]["strategy"] == "coreset-vrlr"
    assert (out / read["folder"] / "report.html") == Path(read["page"])
    code, ((model),) = answer("models", "list", "--output-dir", out)
    assert (model["strategy"], model["tasks"]) == ("coreset-vrlr", ["train"])
    assert model["last run"] == Path(read["folder"]).name
    code, ((shown),) = answer("models", "show", model["last run"], "--output-dir", out)
    assert shown["kind"] == "linear"
    assert shown["arrays"]["coef_0"] == {"shape": [2]}
    code, (found,) = answer("check", files[0], "--id-column", "id")
    assert (code, found["rows"], found["columns"]) == (0, 60, 2)
    assert not any("examples" in finding for finding in found["findings"])


def test_a_check_that_fails_is_json_with_its_findings(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,inf\n2,3\n")
    code, (checked,) = answer("check", tmp_path / "a.csv")
    errors = [f["column"] for f in checked["findings"] if f["level"] == "error"]
    assert (code, errors) == (1, ["b"])


def test_how_a_run_has_ended_is_json(monkeypatch):
    """And its log is on standard error."""

    def start(config, *given, **more):
        print("step 1")
        if config["coreset-vrlr.size"] == 1:
            raise RunFailed("run 7 is finished:failed", "a party was lost")
        return RunOutcome(7, "finished:completed", "")

    monkeypatch.setattr(runs, "start", start)
    arguments = ["run", "coreset-vrlr", "--set"]
    assert answer(*arguments, "size=200") == (
        0,
        {"success": True, "run-id": "7", "status": "finished:completed"},
    )
    assert answer(*arguments, "size=1") == (
        1,
        {"success": False, "error-message": "the run failed: a party was lost"},
    )
    assert answer(*arguments, "size=x")[0] == 1


@pytest.mark.parametrize("words", [["chek"], ["models", "lst"]])
def test_a_misspelt_command_gets_a_suggestion(words):
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 2
    assert ended.output.count("Did you mean") == 1

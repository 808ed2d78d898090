"""Mistakes of a newcomer at the command line: each is refused with a remedy, and following it helps."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from helpers_cli import STUDY_FILE, invoke
from isotherm.cli.common import errors, escaped
from isotherm.cli.progress import RunProgress

pytestmark = pytest.mark.usefixtures("study_folder")


def refusal(*arguments: str) -> str:
    code, text = invoke(*arguments)
    assert code == 2, text
    assert "Traceback" not in text
    return text


def remedy(pattern: str, *arguments: str) -> str:
    text = refusal(*arguments)
    found = re.search(pattern, text)
    assert found is not None, text
    return found[1]


def succeeds(*arguments: str) -> str:
    code, text = invoke(*arguments)
    assert code == 0, text
    return text


# -- what to run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", ["mycode.py", "mycode"])
def test_a_file_of_python_is_named_with_its_function(reference):
    function = remedy(
        r"name a function in mycode\.py that returns an isotherm\.Sweep, e\.g\. (\S+); its functions: data, model",
        "plan",
        reference,
    )
    assert function == "mycode:sweep"
    succeeds("plan", function)


def test_a_file_that_is_not_there():
    assert "there is no file x.py; check the path" in refusal("run", "x.py")
    assert "there is no file stud.toml; did you mean 'study.toml'" in refusal("run", "stud.toml")
    assert remedy(r"did you mean (\S+)\?", "plan", "study") == "study.toml"
    succeeds("plan", "study.toml")


def test_a_folder_is_no_study():
    Path("many").mkdir()
    Path("many/one.toml").write_text(STUDY_FILE)
    file = remedy(r"it is a folder; name a \.toml file in it: (\S+)", "plan", "many")
    succeeds("plan", file)


def test_a_task_is_trained_as_one_cell():
    command = remedy(r"train one cell of it with isotherm (.*)$", "run", "mycode:task")
    command = command.replace("--steps 1000", "--steps 3")
    succeeds(*shlex.split(command))


def test_a_built_in_task_is_no_study():
    assert "it is a task: train one cell of it with isotherm run --task mlp_mnist1d" in refusal("run", "mlp_mnist1d")


def test_a_task_by_the_name_of_its_file():
    setting = ["--batch-size", "8", "--effective-learning-rate", "0.5", "--steps", "3"]
    function = remedy(r"returns an isotherm\.Task, e\.g\. (\S+); its functions", "run", "--task", "mycode.py", *setting)
    succeeds("run", "--task", function, *setting)


def test_a_study_where_a_task_is_asked():
    setting = ["--batch-size", "8", "--effective-learning-rate", "0.5", "--steps", "3"]
    text = refusal("run", "--task", "mycode:sweep", *setting)
    assert "mycode:sweep returned Sweep; let it return an isotherm.Task, such as the task of the Sweep" in text
    command = remedy(
        r"is a study, not a task; run it with isotherm (run \S+),", "run", "--task", "study.toml", *setting
    )
    succeeds(*command.split())


# -- the study file ---------------------------------------------------------------------------------------------------


def test_a_sweep_in_single_brackets():
    Path("study.toml").write_text(STUDY_FILE.replace("[[sweep]]", "[sweep]"))
    brackets = remedy(r"the table \[sweep\] stands for one of several; write (\S+), in double", "plan", "study.toml")
    Path("study.toml").write_text(Path("study.toml").read_text().replace("[sweep]", brackets))
    succeeds("plan", "study.toml")


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("batch_sizes = [8, 16]", "batch_sizes = [8.0, 16]"),
        ("batch_sizes = [8, 16]", "batch_sizes = 8"),
        ("num_seeds = 2", "num_seeds = 2.0"),
        ('task = "mycode:task"', "task = 7"),
        ('tune_on = "test"', 'tune_on = "tests"'),
        ("steps = 10", 'steps = "ten"'),
        ("effective_learning_rates = [0.125, 0.5, 2.0]", 'effective_learning_rates = ["0.5"]'),
    ],
)
def test_a_value_of_the_wrong_type(line, mistake):
    Path("study.toml").write_text(STUDY_FILE.replace(line, mistake))
    text = refusal("plan", "study.toml")
    name = mistake.split(" ")[0]
    assert re.search(rf"{name}\S* = .*: .*(; write \S+|, e\.g\. \S+|change it)", text), text
    written = re.search(r"; write (\[?[\d.]+\]?)$", text)
    if written is not None:
        value = mistake.split(" = ")[1]
        fixed = f"{name} = " + (value.replace("8.0", written[1]) if "[" in value else written[1])
        Path("study.toml").write_text(STUDY_FILE.replace(line, fixed))
        succeeds("plan", "study.toml")


@pytest.mark.parametrize(
    ("mistake", "meant"),
    [("lr", "effective_learning_rates"), ("learning_rate", "learning_rates"), ("weight_decay", "l2")],
)
def test_a_key_by_the_name_that_others_use(mistake, meant):
    Path("study.toml").write_text(STUDY_FILE + f"{mistake} = 0.1\n")
    assert remedy(r"did you mean '(\w+)'", "plan", "study.toml") == meant


def test_what_is_no_toml():
    Path("study.toml").write_text(STUDY_FILE.replace('name = "file"', "name = file"))
    assert "texts stand in quotes" in refusal("plan", "study.toml")
    Path("study.toml").write_bytes(b"\xff\xfe")
    assert "give a text file in UTF-8" in refusal("plan", "study.toml")


# -- stores -----------------------------------------------------------------------------------------------------------


def test_a_store_by_its_name_without_suffix():
    succeeds("run", "study.toml", "--store", "mine.sqlite")
    store = remedy(r"there is no store at mine; did you mean (\S+)\?", "status", "mine")
    succeeds("status", store)
    assert "there is no store at other; check the path; stores in .: mine.sqlite" in refusal("report", "other")


def test_a_store_that_has_no_suffix_is_reported_beside_it():
    succeeds("run", "study.toml", "--store", "mine")
    assert "Written to mine_report/" in succeeds("report", "mine")
    assert Path("mine_report/report.html").is_file()


# -- options ----------------------------------------------------------------------------------------------------------


def test_the_learning_rate_of_an_optimiser_is_taken_as_it_is_and_as_the_effective_one():
    cell = ["--task", "mycode:task", "--batch-size", "8", "--steps", "3", "--momentum", "0.5"]
    found = re.search(r"No such option: --lr; use (--\S+)", refusal("run", *cell, "--lr", "0.1"))
    succeeds("run", *cell, found[1], "0.1")
    assert "stored in" in succeeds("run", *cell, "--effective-learning-rate", "0.2")


@pytest.mark.parametrize(
    ("command", "mistake", "meant"),
    [
        ("run", "--bs", "--batch-size"),
        ("run", "--iterations", "--steps"),
        ("run", "--weight-decay", "--l2"),
        ("run", "--num-seeds", "--seeds"),
        ("run", "--gpu", "--device"),
        ("diagnose", "--lr", "--learning-rate"),
        ("report", "--out", "--output"),
    ],
)
def test_an_option_by_the_name_that_others_use(command, mistake, meant):
    assert f"No such option: {mistake}; use {meant}" in refusal(command, "mycode:task", mistake, "1")


def test_an_option_like_no_other():
    assert "No such option: --xyz; see --help" in refusal("run", "mycode:task", "--xyz", "1")


# -- names that Rich would read as markup -----------------------------------------------------------------------------

NAMES = (":one: [bold]grid[/bold]", "blobs [red] :smile: [/]")


def test_names_are_shown_as_they_are(monkeypatch):
    sweep, task = NAMES
    code = Path("mycode.py").read_text().replace('name="blobs"', f'name="{task}"')
    Path("mycode.py").write_text(code)
    Path("study.toml").write_text(STUDY_FILE.replace('name = "steps"', f'name = "{sweep}"'))
    monkeypatch.setenv("COLUMNS", "300")
    assert task in succeeds("plan", "study.toml")
    assert f"{sweep}, {task}" in succeeds("run", "study.toml")
    assert sweep in succeeds("status", "file.sqlite")
    assert f"{sweep}, {task}" in succeeds("report", "file.sqlite")
    cell = ["--batch-size", "8", "--effective-learning-rate", "0.5", "--steps", "3"]
    assert task in succeeds("run", "--task", "mycode:task", *cell)


def test_errors_show_what_was_given_as_it_is():
    for name in (":one:", "[red]x[/red]", "[/]", "x\\", "[link=y]z"):
        assert f"error: {name!r} is not " in refusal("run", name)


def test_a_module_is_named_without_its_suffix():
    assert "':sweep' is not 'module:function'; name both, e.g. mycode:sweep" in refusal("plan", ":sweep")
    function = remedy(r"'mycode\.py:sweep' names a file; name the module, (\S+)$", "plan", "mycode.py:sweep")
    succeeds("plan", function)


def test_progress_shows_labels_as_they_are():
    console = Console(force_terminal=True, width=200, emoji=False)
    progress = RunProgress(console)
    progress._label = NAMES[0]
    progress._task = progress._bar.add_task(progress._label, total=1, status=NAMES[1])
    with console.capture() as captured:
        console.print(progress._bar)
    assert all(name in captured.get() for name in NAMES)


def test_escaped_text_prints_as_itself():
    for text in (*NAMES, "a[1]", "[[sweep]]", "\\[x]", "end\\"):
        console = errors()
        with console.capture() as captured:
            console.print(f"[bold]{escaped(text)}[/]", highlight=False, soft_wrap=True)
        assert captured.get().strip() == text

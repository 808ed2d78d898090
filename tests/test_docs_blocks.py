"""Every code block of the documents is run, here or by the test that is named for its document.

Commands are not: those of `isotherm` are parsed by `test_docs.py`, and of others the scripts, options and extras exist.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import cases
import isotherm as it
import test_docs
import test_tutorial
from helpers_diagnosis import make_diagnosis
from isotherm.studies.load import read_study
from test_docs import CURRENT, ROOT, python_blocks

DOCS = ROOT / "docs"
# Where the blocks of Python of every document are run.
RUN_BY = {
    "README.md": test_docs.test_the_sweep_of_the_readme_runs,
    "tasks.md": test_docs.test_the_tasks_of_the_page_about_tasks_can_be_trained,
    "python.md": test_docs.test_the_page_about_python_runs_from_top_to_bottom,
    "tutorial.md": test_tutorial.test_the_tutorial_runs,
}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(document: Path, language: str) -> list[str]:
    return [code for found, code in FENCE.findall(document.read_text()) if found == language]


def lines_of(document: Path) -> list[str]:
    """Return the commands of blocks without a language; lines that end in a backslash go on."""
    text = "".join(blocks(document, "")).replace("\\\n", " ")
    return [re.sub(r"\$\(.*?\)", "VALUE", line).partition("  #")[0].strip() for line in text.splitlines()]


def block(document: str, words: str) -> str:
    (found,) = (code for code in python_blocks((DOCS / document).read_text()) if words in code)
    return found


def test_no_document_with_python_is_forgotten() -> None:
    own = {
        "optimizers.md",
        "diagnose.md",
        "schedules.md",
        "trackers.md",
    }  # below
    found = {path.name for path in CURRENT if blocks(path, "python")}
    assert found == own | set(RUN_BY)


def test_every_block_is_of_a_known_kind() -> None:
    kinds = {language for path in CURRENT for language, _ in FENCE.findall(path.read_text())}
    assert kinds == {"", "python", "toml", "yaml"}


# -- Python ---------------------------------------------------------------------------------------------------------


def test_the_sweep_of_an_optimiser_is_planned() -> None:
    names: dict[str, Any] = {}
    exec(block("optimizers.md", "it.AdamW"), names)
    assert names["sweep"].optimizer == (it.AdamW(weight_decay=0.1),)
    assert it.plan(names["sweep"])


def test_schedules_are_planned_and_made() -> None:
    names: dict[str, Any] = {}
    exec(block("schedules.md", "it.Schedule.cosine"), names)
    assert it.plan(names["sweep"])
    exec(block("schedules.md", "it.Schedule.of"), names)
    assert names["schedule"].warmup_steps == 100


def test_pasted_lines_train() -> None:
    model = nn.Linear(2, 2)
    names: dict[str, Any] = {"torch": torch, "model": model}
    exec(block("schedules.md", "CosineAnnealingLR"), names)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        names["optimizer"].step()
        names["scheduler"].step()
    assert names["scheduler"].get_last_lr()[0] < 0.05


def test_a_diagnosis_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def diagnose(task: Any, options: Any) -> Any:
        asked.append(options)
        return make_diagnosis()

    monkeypatch.setattr("isotherm.diagnose.diagnose", diagnose)  # minutes otherwise
    exec(block("diagnose.md", "DiagnoseOptions"), {"task": it.get_task("mlp_mnist1d")})
    assert (asked[0].epochs, asked[0].batch_size) == (90, 64)


def test_a_metric_of_ones_own_is_trained_with() -> None:
    names: dict[str, Any] = {"torch": torch, "it": it}
    exec(block("tasks.md", "def correlation"), names)
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    y = x.sum(dim=1)
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    task = it.Task(name="t", model=lambda: model, train=(x, y), test=(x, y), loss="mse", metric=names["metric"])
    sweep = it.Sweep(
        task=task,
        batch_sizes=[8],
        effective_learning_rates=[0.1],
        budget=it.Budget.steps(20),
        num_seeds=1,
        tune_on="test",
        max_extensions=0,
        resolution="paper",
    )
    (result,) = it.run(sweep).by_key.values()
    assert result.test_metric is not None
    assert 0.9 < result.test_metric <= 1


def test_a_tracker_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    code = block("trackers.md", "Tracking.to")
    names: dict[str, Any] = {}
    exec(code.replace('"mlflow"', '"tensorboard"'), names)
    (x, y) = cases.blobs(40, seed=0)
    task = it.Task(name="t", model=cases.build_mlp, train=(x, y), test=(x, y))
    sweep = it.Sweep(
        task=task,
        batch_sizes=[8],
        effective_learning_rates=[0.1],
        budget=it.Budget.steps(4),
        num_seeds=2,
        tune_on="test",
        max_extensions=0,
        resolution="paper",
    )
    names["run_and_track"](sweep)
    assert len(list((tmp_path / "tensorboard").rglob("events.out.*"))) == 2


# -- settings and commands ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [line for name in ("optimizers.md", "schedules.md") for line in
                                  blocks(DOCS / name, "toml")])  # fmt: skip
def test_settings_of_a_study_are_read(line: str, tmp_path: Path) -> None:
    """A block is lines of one sweep, or several values of one key."""
    head = 'name = "shown"\ntask = "mlp_mnist1d"\n[[sweep]]\nname = "one"\nbatch_sizes = [16]\nsteps = 400\n'
    is_choice = len({part.split(" =")[0] for part in line.splitlines()}) == 1
    for text in line.splitlines() if is_choice else [line]:
        rates = "" if "learning_rates" in text else "effective_learning_rates = [0.5]\n"
        path = tmp_path / "study.toml"
        path.write_text(head + rates + text + "\n")
        assert read_study(path).plan().sweeps


def test_the_job_of_kubernetes_calls_what_it_says(tmp_path: Path) -> None:
    (text,) = blocks(DOCS / "scale.md", "yaml")
    assert [path.name for path in CURRENT if blocks(path, "yaml")] == ["scale.md"]
    job = yaml.safe_load(text)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-c"]
    (script,) = container["args"]
    for merged in ([], ["--known", str(tmp_path / "all.sqlite")]):
        if merged:
            (tmp_path / "all.sqlite").touch()
        (line,) = called(script.replace("/data", str(tmp_path)), tmp_path, JOB_COMPLETION_INDEX="3")
        part = ["--part", f"4/{job['spec']['completions']}", "--store", str(tmp_path / "part-3.sqlite")]
        assert line == ["isotherm", "run", str(tmp_path / "study.toml"), "--device", "cuda", *part, *merged]
        parses(line)


def test_the_script_for_slurm_calls_what_it_says(tmp_path: Path) -> None:
    (script,) = (code for code in blocks(DOCS / "scale.md", "") if code.startswith("#!/bin/bash"))
    lines = called(script, tmp_path, SLURM_JOB_NODELIST="a[1-4]")
    last = lines.pop()
    assert last[-4:] == ["--ray-address", "scontrol:6379", "--store", "/shared/study.sqlite"]
    parses(last)
    head, others = (next(line for line in lines if words in line) for words in ("--head", "--address=scontrol:6379"))
    assert head[-5:] == ["ray", "start", "--head", "--port=6379", "--block"]
    assert others[-4:] == ["ray", "start", "--address=scontrol:6379", "--block"]


def called(script: str, folder: Path, **environment: str) -> list[list[str]]:
    """Run a script in which every command writes its words down, and return them in order; `isotherm` comes last."""
    log, programs = folder / "log", folder / "programs"
    programs.mkdir(exist_ok=True)
    log.write_text("")
    for name in ("isotherm", "ray", "srun", "scontrol", "sleep"):
        program = programs / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\necho {name}\n')
        program.chmod(0o755)
    path = f"{programs}:/usr/bin:/bin"
    subprocess.run(
        ["bash", "-c", f"{script.replace('exec ', '')}\nwait"], check=True, env={"PATH": path, **environment}
    )
    lines = [line.split() for line in log.read_text().splitlines()]
    return sorted((line for line in lines if line[0] != "sleep"), key=lambda line: line[0] == "isotherm")


def parses(line: list[str]) -> None:
    name, words = test_docs.command_of(shlex.join(line))
    with test_docs.commands()[name].make_context(name, words) as context:
        assert not context.args


@pytest.mark.parametrize("document", CURRENT, ids=lambda p: p.name)
def test_scripts_and_extras_that_are_called_exist(document: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for line in lines_of(document):
        words = shlex.split(line) if line.startswith(("python ", "torchrun ", "pip install ")) else []
        for script in (word for word in words if word.endswith(".py")):
            options = [word for word in words[words.index(script) :] if word.startswith("--")]
            assert all(f'"{option}"' in (ROOT / script).read_text() for option in options), line
        if "-m" in words:
            parses(words[words.index("-m") + 1 :])
        if words[:1] == ["pip"]:
            assert all(extra in extras for found in re.findall(r"\[(.*)\]", line) for extra in found.split(",")), line


def test_a_script_that_is_gone_would_show(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("```\npython benchmarks/no_such.py --option\n```\n")
    with pytest.raises(FileNotFoundError):
        test_scripts_and_extras_that_are_called_exist(tmp_path / "x.md")

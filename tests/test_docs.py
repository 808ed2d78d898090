"""The documents name what there is, show commands that parse and code that runs, and have no dead links."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from torch import nn

import cases
import helpers_datasets
import isotherm as it
from helpers_diagnosis import make_diagnosis
from isotherm.studies import STUDIES
from isotherm.tasks.builtin import TASKS
from isotherm.tasks.losses import LOSSES
from isotherm.tasks.metrics import METRICS
from pages.command_line import commands

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
TASKS_PAGE = (ROOT / "docs" / "tasks.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "LOG.md", *sorted((ROOT / "docs").glob("*.md"))]
CURRENT = [path for path in DOCUMENTS if path.name not in ("CHANGELOG.md", "LOG.md")]  # those two tell of the past


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def shown_commands(text: str) -> list[str]:
    """Return the lines of code blocks that call `isotherm`, without their comments."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("isotherm ") and "[OPTIONS]" not in line]


def command_of(line: str) -> tuple[str, list[str]]:
    """Return the command that a line calls, and its arguments."""
    _, *words = shlex.split(line)
    name = next(name for name in (" ".join(words[:2]), words[0]) if name in commands())
    return name, words[len(name.split()) :]


# -- commands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(commands()))
def test_every_command_is_in_the_readme_or_the_reference(name: str) -> None:
    assert f"isotherm {name}" in README + (ROOT / "docs" / "cli.md").read_text()


def test_the_readme_names_every_command_and_leads_to_the_reference() -> None:
    for name in {name.split()[0] for name in commands()}:
        assert f"isotherm {name}" in README
    assert "](docs/cli.md)" in README


@pytest.mark.parametrize("document", CURRENT, ids=lambda p: p.name)
def test_commands_that_are_shown_parse(document: Path) -> None:
    for line in shown_commands(document.read_text()):
        name, arguments = command_of(line)
        with commands()[name].make_context(name, arguments) as context:
            assert not context.args, line


@pytest.mark.parametrize("document", CURRENT, ids=lambda p: p.name)
def test_options_that_the_text_mentions_exist(document: Path) -> None:
    for span in re.findall(r"`(isotherm [^`\n]* --[^`\n]*)`", document.read_text()):
        if "--help" not in span:
            name, words = command_of(span)
            known = {option for parameter in commands()[name].params for option in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= known, span


def test_some_commands_are_shown_and_a_wrong_one_does_not_parse() -> None:
    assert sum(len(shown_commands(path.read_text())) for path in CURRENT) >= 8
    with pytest.raises(Exception, match="No such option"):
        commands()["run"].make_context("run", ["quickstart", "--no-such-option"])


@pytest.mark.parametrize("name", [*STUDIES, *TASKS])
def test_every_study_and_task_is_named(name: str) -> None:
    assert name in README + TASKS_PAGE


def test_the_two_commands_are_targets_and_ci_calls_the_second() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


# -- links and code -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_to_files_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", CURRENT, ids=lambda p: p.name)
def test_python_blocks_compile(document: Path) -> None:
    for block in python_blocks(document.read_text()):
        compile(block, document.name, "exec")


def test_the_sweep_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (b for b in python_blocks(README) if "it.Sweep" in b)
    shorter = block.replace("it.powers_of_two(-6, 4)", "[0.25, 0.5]").replace(
        "it.Budget.steps(2000)", "it.Budget.steps(2)"
    )
    assert shorter.count("[0.25, 0.5]") == shorter.count("it.Budget.steps(2)") == 1
    x = torch.randn(600, 3, generator=torch.Generator().manual_seed(0))
    y = (x.sum(dim=1) > 0).long()
    exec(shorter, {"build_model": lambda: nn.Linear(3, 2), "x": x, "y": y, "x_test": x[:50], "y_test": y[:50]})
    assert (tmp_path / "mine.sqlite").exists()


def test_the_tasks_of_the_page_about_tasks_can_be_trained(tmp_path: Path) -> None:
    (block,) = (b for b in python_blocks(TASKS_PAGE) if "CropAndFlip" in b)
    images, labels = torch.randint(0, 256, (128, 3, 32, 32), dtype=torch.uint8), torch.arange(128) % 10
    tokens = torch.arange(900) % 50
    names = {"it": it, "train_images": images, "test_images": images, "train_labels": labels, "test_labels": labels}
    names |= {f"{split}_tokens": tokens for split in ("train", "valid", "test")}
    exec(block, names)
    for task in (names["images"], names["words"]):
        assert isinstance(task, it.Task)
        sweep = it.Sweep(
            task=task,
            batch_sizes=[4],
            effective_learning_rates=[0.1],
            budget=it.Budget.steps(2),
            num_seeds=1,
            tune_on="test",
            num_evaluations=0,
            max_extensions=0,
            resolution="paper",
        )
        results = it.run(sweep, store=tmp_path / f"{task.name}.sqlite")
        assert results.counts()["finished"] == 1


def test_the_data_of_the_page_about_tasks_become_tasks() -> None:
    pandas = pytest.importorskip("pandas")
    (block,) = (b for b in python_blocks(TASKS_PAGE) if "as_split" in b)
    frame = pandas.DataFrame(
        {"a": helpers_datasets.X[:, 0], "b": helpers_datasets.X[:, 1], "label": helpers_datasets.Y}
    )
    rows = helpers_datasets.Rows({**{k: list(v) for k, v in helpers_datasets.NAMED.items()}, "label": frame["label"]})
    names = {"build_model": cases.build_mlp, "build_text_model": helpers_datasets.MaskedText}
    sets = {"train_set": helpers_datasets.pairs(), "test_set": helpers_datasets.pairs()}
    exec(block, {**names, **sets, "frame": frame, "test_frame": frame, "rows": rows, "test_rows": rows}, names)
    for name in ("folder", "table", "text", "large"):
        task = names[name]
        assert isinstance(task, it.Task)
        assert len(task.train[0]) == len(task.train[1]) == helpers_datasets.NUM


def test_the_page_about_python_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("isotherm.diagnose.ask.procedure", lambda *_, **__: make_diagnosis())  # minutes otherwise
    blocks = python_blocks((ROOT / "docs" / "python.md").read_text())
    shorter = "\n".join(blocks).replace("Budget.steps(200)", "Budget.steps(4)")
    assert shorter.count("Budget.steps(4)") == 1
    (x, y), (x_test, y_test) = cases.blobs(80, seed=0), cases.blobs(20, seed=1)
    names = {"build_model": cases.build_mlp, "x": x, "y": y, "x_test": x_test, "y_test": y_test}
    exec(shorter, names)
    assert names["learning_rate"] > 0
    assert len(names["runs"]) == len(names["results"].by_key)
    assert len(names["figure"].axes) == 3
    assert (tmp_path / "mine" / "report.html").is_file()
    assert (tmp_path / "diagnosis.html").is_file()
    printed = capsys.readouterr().out
    assert "train with batch size" in printed
    assert "runs to do, 0 stored" in printed
    assert "Results of 'sweep' on task 'mine'" in printed


@pytest.mark.parametrize("name", sorted({*LOSSES, *METRICS}))
def test_every_loss_and_metric_is_on_the_page_of_tasks(name: str) -> None:
    assert f"| `{name}` |" in TASKS_PAGE

"""The documents name what there is: every command, the two README commands, no dead links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import typer

import isotherm as it
from isotherm.cli.main import app
from isotherm.studies import STUDIES
from isotherm.tasks.builtin import TASKS
from isotherm.tasks.model_check import check_model

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "LOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_command_is_in_the_readme() -> None:
    names = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    assert len(names) >= 5
    for name in names:
        assert f"isotherm {name}" in README


def test_every_command_of_a_group_is_in_the_readme() -> None:
    for group in app.registered_groups:
        assert group.typer_instance is not None
        found = re.search(rf"^\| `isotherm {group.typer_instance.info.name} .*$", README, re.MULTILINE)
        assert found is not None
        for command in group.typer_instance.registered_commands:
            assert command.callback is not None
            assert re.search(rf"\b{command.name or command.callback.__name__}`", found[0])


def test_every_option_of_a_cell_is_in_the_readme() -> None:
    (run,) = (c for c in typer.main.get_command(app).commands.values() if c.name == "run")  # type: ignore[attr-defined]
    options = {option for parameter in run.params for option in parameter.opts if option.startswith("--")}
    for option in sorted(options - {"--workers", "--fleet-size"}):
        assert option in README


@pytest.mark.parametrize("name", [*STUDIES, *TASKS])
def test_every_study_and_task_is_in_the_readme(name: str) -> None:
    assert name in README


def test_the_two_commands_are_targets_and_ci_calls_the_second() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_to_files_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_python_blocks_of_the_readme_compile() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")


def test_the_tasks_of_the_readme_can_be_trained(tmp_path: Path) -> None:
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "CropAndFlip" in b)
    images, labels = torch.randint(0, 256, (128, 3, 32, 32), dtype=torch.uint8), torch.arange(128) % 10
    tokens = torch.arange(900) % 50
    names = {"it": it, "train_images": images, "test_images": images, "train_labels": labels, "test_labels": labels}
    names |= {f"{split}_tokens": tokens for split in ("train", "valid", "test")}
    exec(block, names)
    for task in (names["images"], names["words"]):
        assert isinstance(task, it.Task)
        check_model(task)
        sweep = it.Sweep(
            task=task,
            batch_sizes=[4],
            effective_learning_rates=[0.1],
            budget=it.Budget.steps(2),
            num_seeds=1,
            tune_on="test",
            num_evaluations=0,
            max_extensions=0,
        )
        results = it.run(sweep, store=tmp_path / f"{task.name}.sqlite")
        assert results.counts()["finished"] == 1

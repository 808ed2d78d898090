"""The documents name what there is: every command, the two README commands, no dead links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from isotherm.cli import app
from isotherm.studies import STUDIES
from isotherm.tasks import TASKS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "LOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_command_is_in_the_readme() -> None:
    names = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    assert len(names) >= 5
    for name in names:
        assert f"isotherm {name}" in README


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

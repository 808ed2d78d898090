"""What is published: source distribution and wheel hold the package and nothing else, and an installed wheel works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from isotherm.version import __version__
from prepare_release import absolute_links, with_addresses

ROOT = Path(__file__).parent.parent
PYPROJECT = ROOT / "pyproject.toml"
SOURCES = ("src", "README.md", "LICENSE", "pyproject.toml")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy, so that nothing is left in the repository."""
    folder = tmp_path_factory.mktemp("package")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, folder / name)
    command = [
        sys.executable,
        "-m",
        "build",  # the source distribution, and the wheel from it
        "--no-isolation",
        "--outdir",
        str(folder / "dist"),
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = (folder / "dist").glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"isotherm", f"isotherm-{__version__}.dist-info"}
    shipped = {name for name in names if name.startswith("isotherm/")}
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "isotherm").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources == shipped


@pytest.mark.slow
def test_the_source_distribution_holds_what_the_wheel_is_built_from(wheel: Path) -> None:
    with tarfile.open(wheel.with_name(f"isotherm-{__version__}.tar.gz")) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/isotherm/py.typed"} <= names
    assert not any("__pycache__" in name for name in names)


@pytest.mark.slow
def test_an_installed_wheel_runs_a_study(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    install = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", str(place), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    environment = {**os.environ, "PYTHONPATH": str(place)}

    def output_of(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    isotherm = str(place / "bin" / "isotherm")
    assert output_of(isotherm, "--version").split()[-1] == __version__
    cell = ["--task", "mlp_mnist1d", "--batch-size", "64", "--effective-learning-rate", "1", "--steps", "2"]
    output_of(isotherm, "run", *cell, "--seeds", "2", "--json", "-")
    assert output_of(sys.executable, "-c", "import isotherm; print(isotherm.__file__)").startswith(str(place))


def test_the_metadata_are_whole() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    assert project["authors"]
    assert project["classifiers"]
    assert project["license"] == "Apache-2.0"
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        assert (ROOT / name).exists()


def test_links_and_images_of_the_readme_lead_somewhere_on_a_package_index() -> None:
    text = absolute_links((ROOT / "README.md").read_text(), repository="https://example.org/isotherm", tag="v1")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert targets
    assert all(target.startswith(("https://", "#")) for target in targets)
    images = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text)
    assert images
    for image in images:
        path = image.removeprefix("https://example.org/isotherm/raw/v1/")
        assert (ROOT / path).exists()


def test_addresses_are_added_once() -> None:
    changed = with_addresses(PYPROJECT.read_text(), repository="https://example.org/isotherm/")
    assert tomllib.loads(changed)["project"]["urls"]["Repository"] == "https://example.org/isotherm"
    with pytest.raises(ValueError, match="prepared before"):
        with_addresses(changed, repository="https://example.org/isotherm")


@pytest.mark.parametrize("name", ["test", "docs", "publish"])
def test_workflows_are_read(name: str) -> None:
    content = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    assert content["name"] == name
    assert content["permissions"]
    assert all("timeout-minutes" in job or "needs" in job for job in content["jobs"].values())

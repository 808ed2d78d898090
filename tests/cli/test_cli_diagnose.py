"""`isotherm diagnose` from the command line: what is asked of the diagnosis, what is shown of it, and bad input."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from helpers_diagnosis import make_diagnosis, momentum_unknown, nothing_recommended, unbounded
from isotherm.cli import diagnose
from isotherm.cli.main import app
from isotherm.core.budget import Budget
from isotherm.core.schedule import Schedule
from isotherm.core.statistics import Interval
from isotherm.diagnose import DiagnoseOptions, Diagnosis
from isotherm.tasks.load import load_task

TASK = """
import torch
from torch import nn
import isotherm as it

def task():
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (64,), generator=g)
    x = torch.randn(64, 3, generator=g) + y[:, None]
    return it.Task(name="my blobs", model=lambda: nn.Linear(3, 2), train=(x, y), test=(x, y), notes=("64 [blobs]",))

def number():
    return 7
"""

runner = CliRunner()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "mytask" not in p])
    sys.modules.pop("mytask", None)
    Path("mytask.py").write_text(TASK)


class Asked:
    """Stands for the diagnosis: remembers what it was asked, and answers with a made one."""

    def __init__(self, found: Diagnosis) -> None:
        self.found = found
        self.calls: list[tuple[str, DiagnoseOptions]] = []

    def __call__(self, task: Any, options: DiagnoseOptions, *, on_stage: Callable[[str], None]) -> Diagnosis:
        self.calls.append((task.name, options))
        on_stage("short runs [at several sizes]")
        return self.found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Diagnosis], Asked]:
    def answer_with(found: Diagnosis) -> Asked:
        made = Asked(found)
        monkeypatch.setattr("isotherm.diagnose.procedure.diagnose", made)
        return made

    return answer_with


def invoke(*arguments: str, length: tuple[str, ...] = ("--epochs", "30")) -> tuple[int, str]:
    result = runner.invoke(app, ["diagnose", *arguments, *length])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def shown(*arguments: str) -> str:
    code, text = invoke(*arguments)
    assert code == 0, text
    assert max(map(len, text.splitlines())) <= 80
    return " ".join(text.split())


def refused(*arguments: str) -> str:
    code, text = invoke(*arguments)
    assert code == 2, text
    return " ".join(text.split())


Answer = Callable[[Diagnosis], Asked]


def test_everything_known(asked: Answer) -> None:
    asked(make_diagnosis())
    text = shown("mytask:task", "--json", "found.json")
    order = [
        "note: 64 [blobs]",
        "short runs [at several sizes]",
        "For 30 epochs, train with batch size 128 (momentum 0.9) or 32 (SGD)",
        "SGD: batch size 32, learning rate 1 [0.8, 1.25]; 30 epochs, 3,750 updates",
        "momentum 0.9: batch size 128, learning rate 0.4 [0.32, 0.5], which is ε_eff = 4 [3.2, 5]",
        "temperature to keep: T = ε_eff / B = 0.0312 [0.026, 0.0375]",
        "learning rates are the peak of the schedule: constant for half of the updates, then ten drops",
        "Your setting",
        "curvature dominated. 6 times too low",
        "What to use at each batch size",
        "The boundary B*",
        "agree within a factor of two",
        "slope 0.97 [0.82, 1.11]",
        "Stability limits",
        "12 [9.6, 15]",
        "Curvature and gradient noise",
        "What to expect",
        "Doubling the batch from 128",
        "Missing",
        "The speed at B = 512 and above",
        "This took 3 min 7 s: 108 short runs, 1,234,567 training examples in all.",
        "Written to my_blobs_diagnosis.html",
        "Written to found.json",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    for word in ("34.3–67.2", "137–269", "30.8–52", "60–135", "128,000", "0.0312 s", "× 2.67", "2.27–2.75"):
        assert word in text
    assert "For 30 epochs, train with batch size 128" in Path("my_blobs_diagnosis.html").read_text()
    content = json.loads(Path("found.json").read_text())
    assert content == make_diagnosis().to_json()
    assert content["recommended"] == {"0.0": 32, "0.9": 128}


def test_small_numbers_and_long_words_fit_a_narrow_terminal(asked: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    full = make_diagnosis()
    rate = Interval(estimate=0.00123, low=0.00111, high=0.00145)
    asked(make_diagnosis(choices=tuple(dataclasses.replace(c, rates={0.0: rate, 0.9: rate}) for c in full.choices)))
    text = shown("mytask:task", "--no-report")
    assert text.count("dominated") == 5 + 2  # rows, and the setting in a sentence and as a row
    assert text.count("0.00123 0.00123 0.000123") == 7
    assert text.count("0.00111– 0.00111– 0.000111–") == 7  # the upper ends below
    monkeypatch.setenv("COLUMNS", "110")
    code, wide = invoke("mytask:task", "--no-report")
    assert code == 0
    assert " ".join(wide.split()).count("0.00111–0.00145 0.00111–0.00145 0.000111–0.000145") == 7


def test_nothing_recommended_is_an_answer_that_cannot_be_overlooked(asked: Answer) -> None:
    asked(nothing_recommended())
    text = shown("mytask:task")
    start = text.index("The data do not support a recommendation for 30 epochs. Missing:")
    assert text.index("every optimum lies at an end of its grid [0.1, 2].") < text.index("Your setting")
    assert start < text.index("The limit of stability: no run failed") < text.index("Your setting")
    assert text.count("The limit of stability: no run failed") == 1
    assert "train with batch size" not in text
    assert "What to use" not in text
    assert "not determined" in text


def test_no_setting_told_and_a_limit_unknown(asked: Answer) -> None:
    asked(momentum_unknown())
    text = shown("mytask:task")
    assert "Your setting" not in text
    assert "momentum 0.9: learning rate not determined" in text
    assert "no run failed; give more minutes." in text


def test_ends_that_are_open(asked: Answer) -> None:
    asked(unbounded())
    text = shown("mytask:task", "--json", "found.json")
    assert "learning rate 1.2 [0.8, ∞), which is ε_eff = 12 [8, ∞)" in text
    assert "above 96" in text
    content = json.loads(Path("found.json").read_text())
    assert content["stability"][1]["limit"] == {"estimate": 12.0, "low": 8.0, "high": None}


def test_json_on_standard_output_is_alone_there(asked: Answer) -> None:
    asked(make_diagnosis())
    result = runner.invoke(app, ["diagnose", "mytask:task", "--epochs", "30", "--json", "-"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == make_diagnosis().to_json()
    assert "train with batch size 128" in result.stderr


def test_what_is_asked_of_the_diagnosis(asked: Answer) -> None:
    made = asked(make_diagnosis())
    shown("mytask:task", "--workers", "1", "--no-report")
    options = ["--batch-size", "256", "--learning-rate", "0.1", "--momentum", "0.5", "--minutes", "2.5", "--seed", "7"]
    shown("mlp_mnist1d", *options, "--batch-sizes", "8,32", "--batch-sizes", "128", "--workers", "2", "--no-report")
    present = {"batch_size": 256, "learning_rate": 0.1, "momentum": 0.5}
    assert made.calls == [
        ("my blobs", DiagnoseOptions(epochs=30)),
        (
            "mlp_mnist1d",
            DiagnoseOptions(epochs=30, **present, minutes=2.5, batch_sizes=(8, 32, 128), seed=7, workers=2),
        ),
    ]
    effective = ["--batch-size", "256", "--effective-learning-rate", "0.2", "--momentum", "0.5"]
    shown("mytask:task", *effective, "--schedule", "wsd", "--warmup-fraction", "0.1", "--workers", "1", "--no-report")
    wsd = Schedule.wsd(warmup_fraction=0.1)
    assert made.calls[-1][1] == DiagnoseOptions(epochs=30, **present, schedule=wsd)
    code, _ = invoke("mytask:task", "--no-report", length=("--steps", "900"))
    assert code == 0
    assert made.calls[-1][1].budget == Budget.steps(900)


@pytest.mark.parametrize(("length", "given"), [((), "neither was"), (("--epochs", "3", "--steps", "9"), "both were")])
def test_the_length_of_the_intended_training_is_asked_for(asked: Answer, length: tuple[str, ...], given: str) -> None:
    made = asked(make_diagnosis())
    code, text = invoke("mytask:task", length=length)
    assert code == 2
    words = " ".join(text.split())
    assert "depends on how long you will train; give --epochs (e.g. --epochs 30) or --steps" in words
    assert f"{given} given" in words
    assert made.calls == []


def test_where_the_report_goes(asked: Answer) -> None:
    asked(make_diagnosis())
    assert "Written to new/page.html" in shown("mytask:task", "-o", "new/page.html")
    assert "Written" not in shown("mytask:task", "--no-report")
    assert sorted(str(path) for path in Path().rglob("*.html")) == ["new/page.html"]


def test_a_terminal_shows_the_stage_without_keeping_it(asked: Answer) -> None:
    asked(make_diagnosis())
    screen = io.StringIO()
    found = diagnose._diagnosed(
        load_task("mytask:task"), DiagnoseOptions(epochs=30), Console(file=screen, force_terminal=True)
    )
    assert found.recommended == {0.0: 32, 0.9: 128}
    assert screen.getvalue().count("\n") == screen.getvalue().count("\x1b[1A")  # every line is taken back


def test_an_interrupt_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("isotherm.diagnose.procedure.diagnose", interrupted)
    code, text = invoke("mytask:task", "--json", "found.json")
    assert code == 130
    assert "Nothing was written" in text
    assert not list(Path().glob("*.html"))
    assert not Path("found.json").exists()


def test_paths_that_cannot_be_written_are_refused_before_any_work(asked: Answer) -> None:
    made = asked(make_diagnosis())
    assert "its folder does not exist" in refused("mytask:task", "--json", "nowhere/found.json")
    Path("folder").mkdir()
    assert "--output folder: it is a folder; name the HTML file" in refused("mytask:task", "--output", "folder")
    assert "the report cannot be written to" in refused("mytask:task", "--output", "mytask.py/page.html")
    assert "are both given; leave one out" in refused("mytask:task", "--output", "page.html", "--no-report")
    assert made.calls == []


def test_tasks_and_batch_sizes_that_make_no_sense(asked: Answer) -> None:
    made = asked(make_diagnosis())
    assert "did you mean 'mlp_mnist1d'" in refused("mlp_mnist1")
    assert "mytask:number returned int; let it return an isotherm.Task" in refused("mytask:number")
    assert "has no function 'tusk'" in refused("mytask:tusk")
    assert "--batch-sizes 8,many: these are not whole numbers" in refused("mytask:task", "--batch-sizes", "8,many")
    assert made.calls == []


def test_what_the_diagnosis_itself_refuses() -> None:
    assert "minutes must be a positive number such as 5, not -1.0" in refused("mytask:task", "--minutes", "-1")
    words = refused("mytask:task", "--learning-rate", "0.1")
    assert "--learning-rate needs the batch size it is used with; give --batch-size too" in words
    words = refused("mytask:task", "--effective-learning-rate", "0.1")
    assert "--effective-learning-rate needs the batch size it is used with" in words
    both = ["--batch-size", "8", "--learning-rate", "0.1", "--effective-learning-rate", "1"]
    assert "both given; one follows from the other" in refused("mytask:task", *both)
    assert "'cosin' is unknown; did you mean 'cosine'" in refused("mytask:task", "--schedule", "cosin")
    words = refused("mytask:task", "--warmup-steps", "100000", "--schedule", "linear", "--minutes", "0.1")
    assert "task 'my blobs', batch size" in words
    assert "a warm-up of 100,000 updates does not fit" in words
    assert "momentum=1.0" in refused("mytask:task", "--momentum", "1")


def test_devices(asked: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    made = asked(make_diagnosis())
    assert "'tpu' is not known to PyTorch" in refused("mytask:task", "--device", "tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "--workers 2: worker processes train on the CPU" in refused(
        "mytask:task", "--device", "cuda", "--workers", "2"
    )
    assert made.calls == []
    shown("mytask:task", "--device", "cuda", "--no-report")
    (_, options) = made.calls[0]
    assert (options.device, options.workers) == ("cuda", 1)


def test_help_names_every_option() -> None:
    code, text = invoke("--help")
    assert code == 0
    for option in (
        "--epochs",
        "--steps",
        "--data",
        "--batch-size",
        "--learning-rate",
        "--momentum",
        "--minutes",
        "--batch-sizes",
        "--seed",
    ):
        assert option in text
    for option in ("--device", "--workers", "--json", "--output", "--no-report", "Your current settings"):
        assert option in text

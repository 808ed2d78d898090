"""From a name, a file or `module:function` to a study; what is refused is in tests/test_cli.py."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from isotherm.core.budget import Budget
from isotherm.core.optimizers import SGD, AdamW, Muon, Optimizer
from isotherm.core.rates import IsothermGrid
from isotherm.core.schedule import Schedule
from isotherm.errors import UserError
from isotherm.studies import STUDIES
from isotherm.studies.load import _Isotherm, _Optimizer, _Schedule, _Sweep, load_study, read_study, study_name
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.load import load_task

MINIMAL = """
name = "minimal"
task = "mlp_mnist1d"
[[sweep]]
name = "only"
batch_sizes = [64]
effective_learning_rates = [0.5, 1]
steps = 10
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_what_a_file_leaves_out_has_the_defaults_of_a_sweep(tmp_path: Path) -> None:
    (sweep,) = read_study(write(tmp_path / "s.toml", MINIMAL)).sweeps
    plain = Sweep(
        name="only", task=sweep.task, batch_sizes=[64], effective_learning_rates=[0.5, 1.0], budget=[Budget.steps(10)]
    )
    for field in dataclasses.fields(Sweep):
        assert getattr(sweep, field.name) == getattr(plain, field.name), field.name


@pytest.mark.parametrize(("resolution", "num_confirm"), [("paper", 0), ("adaptive", 5)])
def test_a_study_may_be_loaded_with_another_resolution(tmp_path: Path, resolution: str, num_confirm: int) -> None:
    path = write(tmp_path / "s.toml", MINIMAL.replace("steps = 10", 'steps = 10\nresolution = "paper"'))
    (sweep,) = load_study(str(path), resolution=resolution).sweeps
    assert (sweep.resolution, sweep.plan().num_confirm) == (resolution, num_confirm)
    with pytest.raises(UserError, match="resolution"):
        load_study(str(path), resolution="fine")


def test_every_key_reaches_its_field(tmp_path: Path) -> None:
    text = """
name = "full"
question = "why?"
[[sweep]]
name = "all"
task = "mlp_mnist1d"
batch_sizes = [32, 64]
isotherm = { temperature = 0.25, ceiling = 4.0, num_below = 1, num_above = 0, ratio = 3.0 }
epochs = [1, 2.5]
momentum = 0.5
l2 = 1e-3
l2_scope = "all"
clip_norm = 5.0
final_effective_learning_rate = 0.01
num_seeds = 3
num_kept = 2
num_confirm = 4
resolution = "paper"
smallest_ratio = 1.5
extend_for = "tuned_and_train"
tune_on = "train"
tune_quantity = "loss"
validation_fraction = 0.2
num_evaluations = 4
max_extensions = 1
first_seed = 7
precision = "float64"
"""
    study = read_study(write(tmp_path / "s.toml", text))
    (sweep,) = study.sweeps
    assert (study.name, study.question) == ("full", "why?")
    assert sweep.effective_learning_rates == IsothermGrid(
        temperature=0.25, ceiling=4.0, num_below=1, num_above=0, ratio=3.0
    )
    assert sweep.budgets == (Budget.epochs(1), Budget.epochs(2.5))
    assert sweep.schedule == Schedule.ending_at(0.01)
    assert (sweep.momenta, sweep.l2, sweep.l2_scope, sweep.clip_norm) == ((0.5,), 1e-3, "all", 5.0)
    assert (sweep.num_seeds, sweep.num_kept, sweep.num_confirm, sweep.first_seed) == (3, 2, 4, 7)
    assert (sweep.resolution, sweep.smallest_ratio, sweep.extend_for) == ("paper", 1.5, "tuned_and_train")
    assert (sweep.tune_on, sweep.tune_quantity, sweep.validation_fraction) == ("train", "loss", 0.2)
    assert (sweep.num_evaluations, sweep.max_extensions, sweep.precision) == (4, 1, "float64")


def test_final_learning_rates_of_a_file(tmp_path: Path) -> None:
    text = MINIMAL + "final_learning_rates = [0.01, 0.001]\n"
    (sweep,) = read_study(write(tmp_path / "s.toml", text)).sweeps
    assert sweep.plan().final_learning_rates == (0.001, 0.01)
    with pytest.raises(UserError, match="both say where training ends"):
        read_study(write(tmp_path / "s.toml", text + "gamma = 3.0\n"))


@pytest.mark.parametrize(
    ("line", "schedule"),
    [
        ('schedule = "cosine"', Schedule.cosine()),
        ('schedule = "paper"', Schedule()),
        ('schedule = { shape = "paper", gamma = 3.0, warmup_steps = 2 }', Schedule(gamma=3.0, warmup_steps=2)),
        ('schedule = { shape = "constant", warmup_fraction = 0.1 }', Schedule.constant(warmup_fraction=0.1)),
        ('schedule = { shape = "linear", final_fraction = 0.1 }', Schedule.linear(final_fraction=0.1)),
        (
            'schedule = { shape = "wsd", decay_fraction = 0.3, final_effective_learning_rate = 0.01 }',
            Schedule.wsd(decay_fraction=0.3, final_effective_learning_rate=0.01),
        ),
        (
            'schedule = { shape = "piecewise", points = [[0, 1], [0.5, 1], [0.5, 0.1], [1, 0.1]] }',
            Schedule.piecewise([(0, 1), (0.5, 1), (0.5, 0.1), (1, 0.1)]),
        ),
    ],
)
def test_schedules_of_a_file(tmp_path: Path, line: str, schedule: Schedule) -> None:
    (sweep,) = read_study(write(tmp_path / "s.toml", f"{MINIMAL}{line}\n")).sweeps
    assert sweep.schedule == schedule


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('schedule = "cosin"', r"s.toml, sweep 'only': schedule 'cosin' is unknown; did you mean 'cosine'"),
        ('schedule = { shape = "cosine", warm_up = 5 }', "unknown key .*warm_up'; did you mean 'warmup_"),
        ('schedule = { shape = "cosine", warmup_steps = 10 }', "warm-up of 10 updates does not fit into a training"),
        ('schedule = { shape = "linear", final_fraction = -0.1 }', "final_fraction=-0.1 is not between 0 and 1"),
        ('schedule = { shape = "linear", points = [[0, 1], [1, 0]] }', "points=.* no option of the schedule 'linear'"),
        ('schedule = "cosine"\ngamma = 3.0', r'both given; write schedule = { shape = "cosine", gamma = 3 }'),
        ("schedule = { warmup_steps = 2 }", "schedule.shape' is missing"),
    ],
)
def test_a_file_with_a_wrong_schedule_is_refused(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_study(write(tmp_path / "s.toml", f"{MINIMAL}{line}\n"))


def test_budgets_that_double_and_an_estimate_of_a_file(tmp_path: Path) -> None:
    text = MINIMAL.replace("steps = 10", "until = { first = 2, target = 0.9 }\nestimate_at = { epochs = 1 }")
    (sweep,) = read_study(write(tmp_path / "s.toml", text)).sweeps
    assert sweep.budget == Budget.until(first=2, target=0.9)
    assert sweep.estimate_at == Budget.epochs(1)
    for given, words in (
        ("steps = 10\nepochs = 1", "steps, epochs or until, and steps and epochs are given"),
        ("", "steps, epochs or until, and none is given"),
        ("until = { first = 2, targt = 0.9 }", "did you mean 'target'"),
        ("steps = 10\nestimate_at = { }", "estimate_at needs steps or epochs, and not both"),
        ("steps = 10\nestimate_at = { steps = 20 }", "no shorter than the budget of 10 steps"),
    ):
        with pytest.raises(UserError, match=words):
            read_study(write(tmp_path / "s.toml", MINIMAL.replace("steps = 10", given)))


def test_sweeps_of_a_file_share_their_task(tmp_path: Path) -> None:
    second = MINIMAL.partition("[[sweep]]")[2].replace("only", "second")
    study = read_study(write(tmp_path / "s.toml", MINIMAL + "[[sweep]]" + second))
    assert study.sweeps[0].task is study.sweeps[1].task


def test_a_function_may_give_a_sweep_or_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    write(
        tmp_path / "givers_of_studies.py",
        """
import isotherm as it
def sweep():
    return it.Sweep(name="one", task=it.get_task("mlp_mnist1d"), batch_sizes=[8], effective_learning_rates=[1.0],
                    budget=it.Budget.steps(1))
def study():
    return it.Study(name="two", sweeps=(sweep(), sweep()))
def refused():
    return it.Budget.steps(-1)
""",
    )
    assert load_study("givers_of_studies:sweep").name == "one"
    assert len(load_study("givers_of_studies:study").sweeps) == 2
    with pytest.raises(UserError, match="givers_of_studies:refused: a budget of -1 steps"):
        load_study("givers_of_studies:refused")
    assert load_task("mlp_mnist1d").name == "mlp_mnist1d"


def test_a_shipped_study_by_name() -> None:
    assert load_study("quickstart").name == "quickstart"


def test_infinity_clips_nothing_and_mixed_is_a_precision(tmp_path: Path) -> None:
    text = MINIMAL + 'clip_norm = inf\nprecision = "mixed"\ntune_on = "test"\n'
    (sweep,) = read_study(write(tmp_path / "s.toml", text)).sweeps
    plan = sweep.plan()
    assert (plan.clip_norm, plan.precision) == (None, "mixed")


def test_the_name_of_a_file_needs_no_data(tmp_path: Path) -> None:
    path = write(tmp_path / "s.toml", MINIMAL.replace("mlp_mnist1d", "resnet50_imagenet"))
    assert study_name(str(path)) == "minimal"
    with pytest.raises(UserError, match="imagenet"):
        load_study(str(path), data=tmp_path)
    assert study_name("quickstart") == "quickstart"


@pytest.mark.parametrize("before", [None, "before"])
def test_every_kind_of_study_and_task_gets_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("ISOTHERM_DATA", raising=False)
    if before is not None:
        monkeypatch.setenv("ISOTHERM_DATA", before)
    code = "import isotherm as it\ndef task(data):\n    return it.get_task('lstm_ptb', data=data)\nstudy = task\n"
    write(tmp_path / "givers_of_tasks.py", code)
    monkeypatch.setitem(STUDIES, "shipped", lambda data: load_task("lstm_ptb", data=data))  # type: ignore[arg-type,return-value]
    file = write(tmp_path / "s.toml", MINIMAL.replace("mlp_mnist1d", "lstm_ptb"))
    calling = write(tmp_path / "c.toml", MINIMAL.replace("mlp_mnist1d", "givers_of_tasks:task"))
    for reference in ("shipped", str(file), str(calling), "givers_of_tasks:study"):
        with pytest.raises(UserError, match="the data folder asked_for does not exist"):
            load_study(reference, data=Path("asked_for"))
    for reference in ("lstm_ptb", "givers_of_tasks:task"):
        with pytest.raises(UserError, match="the data folder asked_for does not exist"):
            load_task(reference, data=Path("asked_for"))
    if before is not None:
        with pytest.raises(UserError, match="the data folder before does not exist"):
            load_study(str(file))


def test_every_key_is_on_the_page_of_studies() -> None:
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text()
    for key in (*_Sweep.model_fields, *_Isotherm.model_fields, *_Schedule.model_fields, *_Optimizer.model_fields):
        assert f"`{key}`" in page, key


ADAMW = MINIMAL.replace("effective_learning_rates", "learning_rates")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('optimizer = "adamw"', (AdamW(),)),
        ('optimizer = { name = "adamw", weight_decay = 0.1 }', (AdamW(weight_decay=0.1),)),
        (
            'optimizer = ["adamw", { name = "muon", reference_batch_size = 64 }]',
            (AdamW(), Muon(reference_batch_size=64)),
        ),
        ('[sweep.optimizer]\nname = "sgd"\nmomentum = 0.5\nnesterov = true', (SGD(momentum=0.5, nesterov=True),)),
    ],
)
def test_optimisers_of_a_file(tmp_path: Path, written: str, expected: tuple[Optimizer, ...]) -> None:
    (sweep,) = load_study(str(write(tmp_path / "s.toml", f"{ADAMW}{written}\n"))).sweeps
    assert sweep.methods == expected
    assert sweep.effective_learning_rates is None


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ('optimizer = "adamv"', "'adamv' is no optimiser; did you mean 'adam"),
        ('optimizer = { name = "adamw", momentum = 0.9 }', "AdamW has no option 'momentum'"),
        (
            'optimizer = { name = "adamw", weight_dekay = 0.1 }',
            "unknown key '.*weight_dekay'; did you mean 'weight_decay'",
        ),
        ("optimizer = { weight_decay = 0.1 }", "the key '.*name' is missing"),
        ('optimizer = { name = "adamw", beta2 = 1.0 }', r"beta2=1.0 is not in \[0, 1\)"),
        (
            'optimizer = "adamw"\neffective_learning_rates = [0.1]',
            "rates and learning_rates are given",
        ),
    ],
)
def test_optimisers_that_cannot_be_used(tmp_path: Path, written: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_study(str(write(tmp_path / "s.toml", f"{ADAMW}{written}\n")))


def test_an_object_of_the_paper_is_no_study_but_has_a_command() -> None:
    with pytest.raises(UserError, match="run it with isotherm reproduce table7"):
        load_study("table7")

"""The contract of the data: whatever a model does to its inputs, it does to copies, and its numbers are the same.

Data and computation are in float64 here, so that the engines work on the very memory of the user's tensors.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cases
from cases_paper import ANY_SPEC, STREAMS, UNROLL, VOCABULARY, FromDisk, sequence
from helpers_engines import Trained, assert_same, by_fleet, by_reference
from isotherm.core.budget import Budget
from isotherm.core.records import RunResult, RunSpec
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.running.runner import run_study
from isotherm.running.store import Store
from isotherm.sweep.study import Study
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.metrics import Metric, accuracy
from isotherm.tasks.model_check import check_model
from isotherm.tasks.task import Task
from isotherm.theory.hessian import Hessian
from isotherm.theory.noise_measurement import Measurement, noise_scale_of_task


class Net(nn.Module):
    """Innocent; its children are not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
        self.register_buffer("mean", torch.tensor([0.1, -0.2]))
        self.scale = nn.Parameter(torch.tensor([0.5, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.changed(x))

    def changed(self, x: Tensor) -> Tensor:
        return x


class FirstInPlace(Net):
    def changed(self, x: Tensor) -> Tensor:
        return nn.functional.relu(x, inplace=True)


class Divides(Net):
    def changed(self, x: Tensor) -> Tensor:
        return x.div_(2)


class Clamps(Net):
    def changed(self, x: Tensor) -> Tensor:
        x.clamp_(-0.5, 0.5)
        return x


class Standardises(Net):
    """Writes values of its own run into inputs that all runs share."""

    def changed(self, x: Tensor) -> Tensor:
        return x.sub_(self.mean).mul_(self.scale)


class WritesRows(Net):
    def changed(self, x: Tensor) -> Tensor:
        x[:, 0] = 0.25
        return x


class DividesInEvaluation(Net):
    def changed(self, x: Tensor) -> Tensor:
        return x if self.training else x.div_(2)


class Keeps(Net):
    """Changes the inputs of its last call."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(1)

    def changed(self, x: Tensor) -> Tensor:
        self.last.fill_(7.0)
        self.last = x
        return x


WRITING = (FirstInPlace, Divides, Clamps, Standardises, WritesRows, DividesInEvaluation, Keeps)


class OnCopy(nn.Module):
    """The same model, handed a copy."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = build()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.clone())


def doubles(num: int, *, seed: int) -> tuple[Tensor, Tensor]:
    x, y = cases.blobs(num, seed=seed)
    return x.double(), y


def task_of(model: Callable[[], nn.Module], **changes) -> Task:
    fields = {"train": doubles(40, seed=0), "validation": doubles(24, seed=1), "test": doubles(30, seed=2)}
    return Task(name="written", model=model, **{**fields, **changes})


def hashes(task: Task) -> list[str]:
    return [
        hashlib.sha256(np.ascontiguousarray(t).tobytes()).hexdigest() for pair in task.splits.values() for t in pair
    ]


def specs_of(task: Task, num: int = 3, **changes) -> list[RunSpec]:
    fields = {"num_steps": 12, "num_evaluations": 2, "effective_learning_rate": 0.2, **changes}
    return [dataclasses.replace(ANY_SPEC, task=task.name, seed=seed, **fields) for seed in range(num)]


def by_references(placed: PlacedTask, specs: list[RunSpec]) -> list[Trained]:
    return [by_reference(placed, spec) for spec in specs]


def one_by_one(placed: PlacedTask, specs: list[RunSpec]) -> list[Trained]:
    return [by_fleet(placed, [spec])[0] for spec in specs]


ENGINES = {"reference": by_references, "fleet": by_fleet, "fleets of one": one_by_one}


def placed_of(task: Task) -> PlacedTask:
    return place_task(task, precision="float64")


def assert_data_stay(task: Task, twin: Task, **changes) -> None:
    """Train a task by every engine, twice; the numbers are those of its twin, the data are those of before."""
    check_model(task)
    before, specs = hashes(task), specs_of(task, **changes)
    expected = by_references(placed_of(twin), specs)
    placed = placed_of(task)
    for train in (*ENGINES.values(), by_fleet):
        found = train(placed, specs)
        prefix = {} if twin is task else {name: f"layers.{name}" for name in found[0][1]}
        for (_, mine), (_, theirs) in zip(found, expected, strict=True):
            assert set(theirs) == {prefix.get(name, name) for name in mine}
        assert_same([(result, {}) for result, _ in found], [(result, {}) for result, _ in expected])
        assert hashes(task) == before


@pytest.mark.parametrize("model", WRITING, ids=lambda model: model.__name__)
def test_a_model_that_writes_into_its_inputs_has_the_numbers_of_one_that_copies_them(model):
    innocent = Net if model is Keeps else model
    assert_data_stay(task_of(model), task_of(lambda: OnCopy(innocent)))


@pytest.mark.parametrize("model", WRITING[:-1], ids=lambda model: model.__name__)
def test_it_is_trained_as_a_fleet(model, caplog):
    task = task_of(model)
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        by_fleet(placed_of(task), specs_of(task))
    assert "one run at a time, as" not in caplog.text  # in an operation that vmap computes run by run, perhaps


@pytest.mark.parametrize("engine", ENGINES)
def test_an_innocent_sweep_afterwards_has_the_numbers_of_one_before(engine):
    splits = {"train": doubles(40, seed=0), "validation": doubles(24, seed=1), "test": doubles(30, seed=2)}
    innocent, guilty = task_of(Net, **splits), task_of(Divides, **splits)
    before = ENGINES[engine](placed_of(innocent), specs_of(innocent))
    ENGINES[engine](placed_of(guilty), specs_of(guilty))
    after = ENGINES[engine](placed_of(innocent), specs_of(innocent))
    assert [result for result, _ in after] == [result for result, _ in before]


class StartsWithReLU(Net):
    """Its first layer is nn.ReLU(inplace=True)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers.insert(0, nn.ReLU(inplace=True))


def rows_of(models: Sequence[Callable[[], nn.Module]], *, fleet_size: int | None) -> list[dict[str, RunResult]]:
    """Return the rows that each of several sweeps on the same tensors adds to one store."""
    splits = {"train": doubles(40, seed=0), "test": doubles(30, seed=2)}  # a validation set is held out of the first
    found: list[dict[str, RunResult]] = []
    with Store.in_memory() as store:
        for model in models:
            before = store.results()
            sweep = Sweep(
                name="rows",
                task=task_of(model, **splits, validation=None),
                batch_sizes=(8,),
                effective_learning_rates=(0.1, 0.4),
                budget=Budget.steps(12),
                precision="float64",
                num_seeds=2,
                max_extensions=1,
            )
            run_study(Study.of(sweep), store=store, workers=1, fleet_size=fleet_size)
            found.append({key: row for key, row in store.results().items() if key not in before})
    return found


@pytest.mark.parametrize("fleet_size", [None, 1])
@pytest.mark.parametrize("guilty", [Divides, StartsWithReLU], ids=lambda model: model.__name__)
def test_a_guilty_sweep_leaves_the_rows_of_an_innocent_one_as_they_are_alone(guilty, fleet_size):
    (alone,) = rows_of([Net], fleet_size=fleet_size)
    of_guilty, innocent = rows_of([guilty, Net], fleet_size=fleet_size)
    assert len(alone) >= 4
    assert len(of_guilty) >= 4
    assert innocent == alone  # under the same keys, which hold the data's identity


class WritesTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.remainder_(5))


def test_whole_numbers_stay_too():
    def tokens(num: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, 50, (num, 2), generator=generator), torch.arange(num) % 3

    splits = {"train": tokens(40, 0), "validation": tokens(24, 1), "test": tokens(30, 2)}
    assert_data_stay(task_of(WritesTokens, **splits), task_of(lambda: OnCopy(WritesTokens), **splits))


class WritesText(nn.Module):
    """A recurrent model that writes into the tokens it reads."""

    copies = False

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Embedding(VOCABULARY, 6), nn.Linear(12, 6), nn.Linear(6, VOCABULARY)])

    def initial_state(self, batch_size: int) -> Tensor:
        return torch.zeros(batch_size, 6)

    def forward(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        embedding, recurrent, decoder = self.layers
        tokens = tokens.clone() if self.copies else tokens
        outputs = []
        for word in embedding(tokens.add_(1).remainder_(VOCABULARY)).unbind(1):
            state = torch.tanh(recurrent(torch.cat([word, state], dim=1)))
            outputs.append(decoder(state))
        return torch.stack(outputs, dim=1), state


class CopiesText(WritesText):
    copies = True


def test_text_stays_too():
    splits = {"train": sequence(121, seed=0), "test": sequence(80, seed=1), "validation": None}
    task = task_of(WritesText, unroll=UNROLL, **splits)
    before, specs = hashes(task), specs_of(task, batch_size=STREAMS)
    expected = by_references(placed_of(task_of(CopiesText, unroll=UNROLL, **splits)), specs)
    for train in ENGINES.values():
        assert_same(train(placed_of(task), specs), expected)
        assert hashes(task) == before


def writing_loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target.neg_().add_(2))


def copying_loss(output: Tensor, target: Tensor) -> Tensor:
    return writing_loss(output, target.clone())


def writing_accuracy(output: Tensor, target: Tensor) -> Tensor:
    found = accuracy(output, target)
    target.fill_(1)
    return found


def test_targets_stay_whatever_loss_and_metric_write_into_them():
    metric = Metric(name="right", function=writing_accuracy, direction="maximise")
    twin = task_of(lambda: OnCopy(Net), loss=copying_loss, metric="accuracy")
    assert_data_stay(task_of(Net, loss=writing_loss, metric=metric), twin)


class WritingTransform:
    def train(self, inputs, bits):
        return inputs.mul_(0.5)

    def evaluate(self, inputs):
        return inputs.mul_(0.5)

    def targets(self, targets):
        return targets


def test_a_transform_may_write_into_what_it_is_given():
    assert_data_stay(task_of(Net, transform=WritingTransform()), task_of(lambda: OnCopy(Divides)))


class Remembered(FromDisk):
    """'Reads' from memory, and hands it out."""

    def fetch(self, indices, *, seed=None, step=0):
        super().fetch(indices, seed=seed, step=step)
        first, last = int(indices[0]), int(indices[-1])
        if list(indices) == list(range(first, last + 1)):
            return self._images[first : last + 1]
        return self._images[torch.as_tensor(indices)]


def test_memory_that_lazy_inputs_hand_out_stays_too():
    splits = {name: doubles(num, seed=num) for name, num in (("train", 40), ("validation", 24), ("test", 30))}
    read = {name: (Remembered(x), y) for name, (x, y) in splits.items()}
    before, specs = hashes(task_of(Net, **splits)), specs_of(task_of(Net))
    task, twin = task_of(Divides, **read), task_of(lambda: OnCopy(Divides), **splits)
    check_model(task)
    for train in ENGINES.values():
        found, expected = train(placed_of(task), specs), by_references(placed_of(twin), specs)
        assert_same([(result, {}) for result, _ in found], [(result, {}) for result, _ in expected])
        assert hashes(task_of(Net, **splits)) == before


def both(model: Callable[[], nn.Module]) -> tuple[Task, Task]:
    """Return a task whose model and loss write into what they are given, and one whose do not."""
    task = task_of(model, loss=writing_loss, metric="accuracy")
    return task, task_of(lambda: OnCopy(model), loss=copying_loss, metric="accuracy")


@pytest.mark.parametrize("way", ["reverse_over_reverse", "forward_over_reverse", "finite_difference"])
def test_curvature_leaves_the_data_alone(way):
    task, twin = both(Divides)
    before = hashes(task)
    products = []
    for made in (task, twin):
        torch.manual_seed(0)
        options = {"inputs": made.train[0], "targets": made.train[1], "mode": "eval", "differentiation": way}
        hessian = Hessian(made.model(), made.loss_function, **options)
        vector = np.ones(hessian.num_parameters)
        products.append([hessian.product(vector), hessian.product(vector), hessian.gradient()])
    assert hashes(task) == before
    for mine, theirs in zip(*products, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("num_at_once", [None, 1])
def test_the_noise_scale_leaves_the_data_alone(num_at_once):
    task, twin = both(Standardises)
    before = hashes(task)
    measurement = Measurement(small_batch_size=2, large_batch_size=20, num_draws=8, num_at_once=num_at_once)
    mine, theirs = (noise_scale_of_task(t, measurement=measurement, precision="float64") for t in (task, twin))
    assert hashes(task) == before
    assert mine.gradient_noise_scale.estimate == pytest.approx(theirs.gradient_noise_scale.estimate, rel=1e-9)

"""Hessian-vector products against full Hessians and closed forms; fixed seeds, float64 unless stated otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cases
import cases_paper
from helpers_hessian import (
    EXACT_WAYS,
    NETS,
    WAYS,
    Centred,
    built,
    ghost_net,
    hessian_of,
    matrix_of,
    smooth_norm_net,
    written_out,
)
from isotherm.core.l2 import is_penalised
from isotherm.data.augment import Scaled
from isotherm.errors import UserError
from isotherm.tasks.losses import LossFunction, cross_entropy, half_squared_error
from isotherm.tasks.seeding import initial_model
from isotherm.theory.hessian import Differentiation, Hessian, NotFiniteError, hessian_of_task

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # PyTorch's forward derivatives


# -- products against the full Hessian -----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NETS)
def test_products_are_those_of_the_full_hessian(name: str, way: Differentiation) -> None:
    build, (x, y), mode = NETS[name]
    module = built(build)
    full = written_out(module, cross_entropy, x, y, mode=mode)
    hessian = Hessian(module, cross_entropy, inputs=x, targets=y, mode=mode, differentiation=way)
    assert hessian.num_parameters == len(full)
    vectors = np.random.default_rng(0).standard_normal((5, len(full)))
    tolerance = 1e-6 if way == "finite_difference" else 1e-11
    for vector in vectors:
        np.testing.assert_allclose(hessian.product(vector), full @ vector, atol=tolerance * np.abs(full).max() * 10)


@pytest.mark.parametrize("scope", ["weights", "all"])
def test_the_penalty_is_part_of_objective_gradient_and_hessian(scope: str) -> None:
    module, (x, y) = built(cases.build_mlp), cases.blobs(24, seed=0)
    plain = Hessian(module, cross_entropy, inputs=x, targets=y, mode="train")
    penalised = Hessian(module, cross_entropy, inputs=x, targets=y, mode="train", l2=0.3, l2_scope=scope)
    covered = np.concatenate(
        [np.full(p.numel(), is_penalised(p, scope=scope), dtype=float) for p in module.parameters()]
    )
    assert 0 < covered.sum() <= len(covered)
    np.testing.assert_allclose(matrix_of(penalised) - matrix_of(plain), np.diag(0.3 * covered), atol=1e-14)
    full = written_out(module, cross_entropy, x, y, mode="train", l2=0.3, scope=scope)
    np.testing.assert_allclose(matrix_of(penalised), full, atol=1e-13)
    np.testing.assert_allclose(penalised.gradient() - plain.gradient(), 0.3 * covered * plain.point(), atol=1e-14)
    norm = float(covered @ plain.point() ** 2)
    assert penalised.objective() - plain.objective() == pytest.approx(0.15 * norm)


def test_gradient_and_objective_are_those_of_plain_autograd() -> None:
    module, (x, y) = built(cases.build_mlp), cases.blobs(24, seed=0)
    loss = cross_entropy(module(x.double()), y)
    loss.backward()
    hessian = hessian_of("tanh", examples_at_once=7)
    assert hessian.objective() == pytest.approx(float(loss.detach()), rel=1e-14)
    expected = torch.cat([p.grad.reshape(-1) for p in module.parameters()]).numpy()
    np.testing.assert_allclose(hessian.gradient(), expected, atol=1e-15)


# -- closed forms ----------------------------------------------------------------------------------------------------


def test_linear_regression_has_the_hessian_of_its_inputs() -> None:
    x, y = cases.line(64, seed=0)
    hessian = Hessian(nn.Linear(3, 1), half_squared_error, inputs=x, targets=y, mode="train")
    design = np.concatenate([x.numpy(), np.ones((64, 1))], axis=1)
    np.testing.assert_allclose(matrix_of(hessian), design.T @ design / 64, atol=1e-14)
    assert hessian.names == ("weight", "bias")


@pytest.mark.parametrize("way", WAYS)
def test_logistic_regression_has_the_hessian_of_its_probabilities(way: Differentiation) -> None:
    x, y = cases.blobs(30, seed=0)
    module = built(lambda: nn.Linear(2, 3, bias=False))
    p = functional.softmax(module(x.double()), dim=1).detach().numpy()
    by_class = p[:, :, None] * np.eye(3) - p[:, :, None] * p[:, None, :]
    exact = np.einsum("ncd,ni,nj->cidj", by_class, x.numpy(), x.numpy()).reshape(6, 6) / 30
    hessian = Hessian(module, cross_entropy, inputs=x, targets=y, mode="train", differentiation=way)
    np.testing.assert_allclose(matrix_of(hessian), exact, atol=1e-8)


# -- chunks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("tanh", (1, 7, 23, 24, 1000)), ("ghost batch norm", (8, 16, 24)), ("ghost batch norm, running", (1, 5, 24))],
)
def test_how_many_examples_are_computed_at_once_changes_nothing(
    name: str, sizes: tuple[int, ...], way: Differentiation
) -> None:
    vector = np.random.default_rng(1).standard_normal(hessian_of(name).num_parameters)
    whole = hessian_of(name).product(vector)
    tolerance = 1e-7 if way == "finite_difference" else 1e-12
    for size in sizes:
        parts = hessian_of(name, examples_at_once=size, differentiation=way)
        assert parts.examples_at_once == size
        np.testing.assert_allclose(parts.product(vector), whole, atol=tolerance * np.abs(whole).max())


def test_ghosts_are_not_cut() -> None:
    assert hessian_of("ghost batch norm").group_size == 8  # of ghosts of 4 and of 8
    with pytest.raises(UserError, match=r"examples_at_once=12 would cut groups of 8 .* multiple of 8"):
        hessian_of("ghost batch norm", examples_at_once=12)
    x, y = cases.images(20, seed=0)
    with pytest.raises(UserError, match="a batch of 20 cannot be split into ghost batches of 8"):
        Hessian(built(ghost_net), cross_entropy, inputs=x, targets=y, mode="train")
    assert hessian_of("ghost batch norm, running", examples_at_once=12).group_size == 1


def test_by_default_chunks_are_whole_ghosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotherm.theory.hessian.EXAMPLES_AT_ONCE", 13)
    assert hessian_of("ghost batch norm").examples_at_once == 8
    assert hessian_of("tanh").examples_at_once == 13
    assert hessian_of("batch norm").examples_at_once == 24


def test_batch_norm_in_training_mode_takes_all_examples_at_once() -> None:
    with pytest.raises(UserError, match="would cut groups of 24"):
        hessian_of("batch norm", examples_at_once=8)
    assert hessian_of("batch norm, running", examples_at_once=8).num_examples == 24


@pytest.mark.parametrize(
    ("module", "loss"),
    [
        (nn.Sequential(nn.Linear(2, 3), Centred()), cross_entropy),
        (nn.Linear(2, 3), lambda output, target: cross_entropy(output, target) * len(target)),
    ],
    ids=["a layer that mixes examples", "a sum for a loss"],
)
def test_what_is_no_mean_over_examples_is_not_added_up(module: nn.Module, loss: LossFunction) -> None:
    x, y = cases.blobs(24, seed=0)
    with pytest.raises(UserError, match=r"the loss of 16 examples is .* use examples_at_once=24"):
        Hessian(module, loss, inputs=x, targets=y, mode="train", examples_at_once=8)
    assert Hessian(module, loss, inputs=x, targets=y, mode="train").num_examples == 24


# -- what is left alone ----------------------------------------------------------------------------------------------


def test_the_module_and_the_random_numbers_stay_as_they_are() -> None:
    build, (x, y), _ = NETS["ghost batch norm"]
    module = built(build).eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    hessian = Hessian(module, cross_entropy, inputs=x, targets=y, mode="train")
    first = hessian.product(np.ones(hessian.num_parameters))
    assert torch.equal(torch.get_rng_state(), state)
    assert not module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in module.parameters())
    np.testing.assert_array_equal(hessian.product(np.ones(hessian.num_parameters)), first)
    with torch.no_grad():
        for value in module.parameters():
            value.zero_()
    np.testing.assert_array_equal(hessian.product(np.ones(hessian.num_parameters)), first)


def test_elsewhere_is_as_if_made_there() -> None:
    x, y = cases.blobs(24, seed=0)
    here, there = (built(smooth_norm_net, seed) for seed in (0, 1))
    expected, start = (
        Hessian(module, cross_entropy, inputs=x, targets=y, mode="eval", l2=0.1) for module in (there, here)
    )
    vector = np.random.default_rng(3).standard_normal(start.num_parameters)
    before = start.product(vector)
    moved = start.at(there.float().named_parameters(), there.named_buffers())
    np.testing.assert_allclose(moved.product(vector), expected.product(vector), atol=1e-6)
    assert moved.objective() == pytest.approx(expected.objective(), rel=1e-6)
    np.testing.assert_array_equal(start.product(vector), before)


def test_elsewhere_needs_names_shapes_numbers_and_statistics() -> None:
    hessian = hessian_of("tanh")
    values = dict(built(cases.build_mlp).named_parameters())
    with pytest.raises(UserError, match=r"no value is given for '2.bias'"):
        hessian.at({name: value for name, value in values.items() if name != "2.bias"})
    with pytest.raises(UserError, match=r"'2.bias' is torch.float64 of shape \(4,\)"):
        hessian.at({**values, "2.bias": torch.zeros(4, dtype=torch.float64)})
    with pytest.raises(UserError, match=r"'2.bias' is torch.int64 of shape \(3,\), not numbers like torch.float64"):
        hessian.at({**values, "2.bias": torch.zeros(3, dtype=torch.int64)})
    running = hessian_of("batch norm, running")
    with pytest.raises(UserError, match="layer '1' normalise by running statistics"):
        running.at(built(smooth_norm_net).named_parameters())
    training = hessian_of("batch norm")
    assert training.at(built(smooth_norm_net).named_parameters()).objective() == training.objective()


def test_over_some_examples() -> None:
    x, y = cases.images(24, seed=0)
    module = built(ghost_net)
    index = np.r_[8:16, 0:8]
    part = hessian_of("ghost batch norm").over(index)
    expected = Hessian(module, cross_entropy, inputs=x[index], targets=y[index], mode="train")
    vector = np.random.default_rng(4).standard_normal(part.num_parameters)
    np.testing.assert_allclose(part.product(vector), expected.product(vector), atol=1e-12)
    for bad in (np.arange(4), np.arange(1)):
        with pytest.raises(UserError, match="do not make whole groups of 8"):
            hessian_of("ghost batch norm").over(bad)
    with pytest.raises(UserError, match="the subset is empty"):
        hessian_of("tanh").over(np.arange(0))


# -- what has no Hessian ---------------------------------------------------------------------------------------------


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.layer(x), p=0.2, training=self.training)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (cases.DropoutNet, "the dropout in drop changes the loss"),
        (FunctionalDropout, "the same examples gave a loss of .* and then of"),
        (cases.NoisyNet, "the same examples gave a loss of .* and then of"),
    ],
)
def test_random_losses_are_refused_in_training_mode_only(build: Callable[[], nn.Module], message: str) -> None:
    x, y = cases.blobs(24, seed=0)
    state = torch.get_rng_state()
    with pytest.raises(UserError, match=message):
        Hessian(built(build), cross_entropy, inputs=x, targets=y, mode="train")
    assert Hessian(built(build), cross_entropy, inputs=x, targets=y, mode="eval").num_parameters > 0
    torch.set_rng_state(state)


def test_a_module_that_counts_its_calls_is_refused() -> None:
    x, y = cases.blobs(24, seed=0)
    with pytest.raises(UserError, match="or counts its calls"):
        Hessian(cases.CountingNet(), cross_entropy, inputs=x, targets=y, mode="eval")


def test_dropout_of_nothing_is_no_dropout() -> None:
    x, y = cases.blobs(24, seed=0)
    module = nn.Sequential(nn.Dropout(p=0.0), nn.Linear(2, 3))
    assert Hessian(module, cross_entropy, inputs=x, targets=y, mode="train").num_parameters == 9


def whole_numbers() -> nn.Module:
    module = nn.Module()
    module.register_parameter("table", nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False))
    return module


def test_without_a_trained_parameter_there_is_nothing_to_differentiate_by() -> None:
    x, y = cases.blobs(24, seed=0)
    frozen = cases.build_mlp().requires_grad_(False)
    with pytest.raises(UserError, match=r"none of the module's 4 parameters is trainable \(0 are integers"):
        Hessian(frozen, cross_entropy, inputs=x, targets=y, mode="train")
    with pytest.raises(UserError, match=r"none of the module's 1 parameters is trainable \(1 are integers"):
        Hessian(whole_numbers(), cross_entropy, inputs=x, targets=y, mode="train")
    with pytest.raises(UserError, match="of the module's 0 parameters"):
        Hessian(nn.Tanh(), cross_entropy, inputs=x, targets=y, mode="train")


class Quantised(nn.Module):
    """A table of whole numbers beside a layer that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.shift = nn.Parameter(torch.tensor([1, -2, 3]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.shift


def test_whole_numbers_are_constants() -> None:
    x, y = cases.blobs(24, seed=0)
    module = Quantised()
    hessian = Hessian(module, cross_entropy, inputs=x, targets=y, mode="train")
    assert hessian.names == ("layer.weight", "layer.bias")
    full = written_out(module, cross_entropy, x, y, mode="train")
    np.testing.assert_allclose(matrix_of(hessian), full, atol=1e-13)


def test_complex_parameters_are_refused() -> None:
    module = nn.Linear(2, 3)
    module.register_parameter("phase", nn.Parameter(torch.zeros(2, dtype=torch.complex64)))
    x, y = cases.blobs(24, seed=0)
    with pytest.raises(UserError, match=r"parameter 'phase' is torch.complex64"):
        Hessian(module, cross_entropy, inputs=x, targets=y, mode="train")


def test_a_loss_that_is_not_finite_is_refused_and_blamed() -> None:
    x, y = cases.blobs(24, seed=0)
    module = cases.build_mlp()
    with torch.no_grad():
        module[2].bias[1] = math.nan
    with pytest.raises(UserError, match=r"the loss is nan, as parameter '2.bias' is not finite"):
        Hessian(module, cross_entropy, inputs=x, targets=y, mode="train")
    with pytest.raises(UserError, match="the loss is inf; curvature needs a finite loss"):
        Hessian(nn.Linear(2, 3), lambda o, t: 0.0 * o.mean() + math.inf, inputs=x, targets=y, mode="train")


def test_a_second_derivative_that_is_not_finite_is_refused() -> None:
    x, y = torch.zeros(4, 2), torch.zeros(4, 1)
    module = nn.Linear(2, 1)
    nn.init.zeros_(module.bias)
    with pytest.raises(NotFiniteError, match="the Hessian of parameter 'weight' is not finite"):
        Hessian(module, lambda o, t: o.abs().pow(1.5).mean(), inputs=x, targets=y, mode="train")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "test"}, "mode='test' is unknown; use one of 'train', 'eval'"),
        ({"precision": "mixed"}, "precision='mixed' is unknown"),
        ({"differentiation": "symbolic"}, "differentiation='symbolic' is unknown"),
        (
            {"differentiation": "finite_difference", "precision": "float32"},
            "would measure rounding errors; use 'float64'",
        ),
        ({"l2": -1.0}, "l2=-1.0 is not a number >= 0"),
        ({"l2_scope": "bias"}, "l2_scope='bias' is unknown"),
        ({"examples_at_once": 0}, "examples_at_once=0 is not positive"),
        ({"targets": torch.zeros(23, dtype=torch.int64)}, "24 inputs and 23 targets"),
        ({"loss": lambda o, t: (o - 1).square()}, r"must return a scalar tensor.* not \(24, 3\)"),
        ({"unroll": 3}, r"needs a method initial_state\(batch_size\)"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    x, y = cases.blobs(24, seed=0)
    fields: dict[str, Any] = {"loss": cross_entropy, "inputs": x, "targets": y, "mode": "train", **changes}
    with pytest.raises(UserError, match=message):
        Hessian(cases.build_mlp(), fields.pop("loss"), **fields)


# -- a task ------------------------------------------------------------------------------------------------------------


def test_a_task_gives_its_data_loss_and_penalty() -> None:
    task = cases.classification("blobs", cases.build_mlp, l2=0.2, l2_scope="all")
    module = initial_model(task.model, seed=3)
    full = written_out(module, cross_entropy, *task.train, mode="train", l2=0.2, scope="all")
    np.testing.assert_allclose(matrix_of(hessian_of_task(task, module, mode="train")), full, atol=1e-13)
    without = matrix_of(hessian_of_task(task, module, mode="train", l2=0.0))
    np.testing.assert_allclose(full - without, 0.2 * np.eye(len(full)), atol=1e-13)


def test_bytes_are_transformed_as_for_evaluation() -> None:
    task = cases_paper.autoencoder_task()
    module = initial_model(task.model, seed=0)
    pixels = Scaled().evaluate(task.train[0])
    expected = Hessian(module, half_squared_error, inputs=pixels, targets=pixels, mode="train", l2=1e-3, l2_scope="all")
    vector = np.random.default_rng(6).standard_normal(expected.num_parameters)
    found = hessian_of_task(task, module, mode="train").product(vector)
    np.testing.assert_allclose(found, expected.product(vector), atol=1e-12)


def test_a_wide_residual_network_with_ghost_batch_norm_in_both_modes() -> None:
    task = cases_paper.ghost_task(l2=5e-4)
    module = initial_model(task.model, seed=0)
    for mode in ("train", "eval"):
        ways = [hessian_of_task(task, module, mode=mode, num_examples=16, differentiation=way) for way in EXACT_WAYS]
        vector = np.random.default_rng(7).standard_normal(ways[0].num_parameters)
        np.testing.assert_allclose(ways[0].product(vector), ways[1].product(vector), atol=1e-10)
    skipping = cases_paper.skip_init_task()
    with pytest.raises(UserError, match="task 'images': in mode 'train' the dropout in dropout changes the loss"):
        hessian_of_task(skipping, initial_model(skipping.model, seed=0), mode="train")


def test_inputs_are_read_from_disk() -> None:
    task = cases_paper.lazy_task()
    module = initial_model(task.model, seed=0)
    assert not isinstance(task.train[0], Tensor)
    hessian = hessian_of_task(task, module, mode="eval", num_examples=10)
    fetched = [call for call in task.train[0].calls if len(call[0]) == 10]
    assert len(fetched) == 1
    assert fetched[0][1] is None  # not augmented
    assert hessian.num_examples == 10


class PlainRecurrence(nn.Module):
    """A recurrent network that can be differentiated as often as one likes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(cases_paper.VOCABULARY, 3)
        self.step, self.leave = nn.Linear(6, 3), nn.Linear(3, cases_paper.VOCABULARY)

    def initial_state(self, batch_size: int) -> Tensor:
        return torch.zeros(batch_size, 3)

    def forward(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        for x in self.embedding(tokens).unbind(1):
            state = torch.tanh(self.step(torch.cat([x, state], dim=1)))
            outputs.append(self.leave(state))
        return torch.stack(outputs, dim=1), state


def test_a_sequence_is_cut_into_windows_whose_losses_are_summed() -> None:
    task = cases_paper.language_task(model=PlainRecurrence)
    module = built(PlainRecurrence)
    num = len(task.train[0]) // cases_paper.UNROLL
    x, y = (part[: num * cases_paper.UNROLL].view(num, -1) for part in task.train)
    hessian = hessian_of_task(task, module, mode="train", examples_at_once=9)
    assert hessian.num_examples == num
    logits, _ = module(x, module.initial_state(num).double())
    by_window = functional.cross_entropy(logits.transpose(1, 2), y, reduction="none").sum(dim=1)
    assert hessian.objective() == pytest.approx(float(by_window.mean().detach()))
    vector = np.random.default_rng(8).standard_normal(hessian.num_parameters)
    expected = hessian.product(vector)
    difference = hessian_of_task(task, module, mode="train", differentiation="finite_difference").product(vector)
    np.testing.assert_allclose(difference, expected, atol=1e-6 * np.abs(expected).max())


def test_the_language_model_is_named_and_measured_by_differences() -> None:
    task = cases_paper.language_task(drop_probability=0.0)
    module = initial_model(task.model, seed=0)
    with pytest.raises(
        UserError, match=r"^task 'language': the LSTMLanguageModel itself cannot be differentiated twice"
    ):
        hessian_of_task(task, module, mode="train")
    hessian = hessian_of_task(task, module, mode="train", differentiation="finite_difference")
    first, second = np.random.default_rng(9).standard_normal((2, hessian.num_parameters))
    assert first @ hessian.product(second) == pytest.approx(second @ hessian.product(first), rel=1e-6)
    step = 1e-4 / np.linalg.norm(first)
    point, objectives = hessian.point(), []
    for shift in (step, 0.0, -step):
        pieces = np.split(point + shift * first, np.cumsum([p.numel() for p in module.parameters()])[:-1])
        named = {n: torch.tensor(v).view(p.shape) for (n, p), v in zip(module.named_parameters(), pieces, strict=True)}
        objectives.append(hessian.at(named).objective())
    curved = (objectives[0] - 2 * objectives[1] + objectives[2]) / step**2
    assert first @ hessian.product(first) == pytest.approx(curved, rel=1e-4)

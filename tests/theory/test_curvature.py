"""Products and spectra against full Hessians and closed forms; seeds are fixed, everything in float64 unless said."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

import cases
import cases_paper
from helpers_second_derivative import CubeOnce
from isotherm.data.augment import Scaled
from isotherm.errors import UserError
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.penalty import is_penalised
from isotherm.seeding import initial_model
from isotherm.statistics import Floats, t_interval
from isotherm.tasks import LossFunction, cross_entropy, half_squared_error
from isotherm.theory import curvature
from isotherm.theory.curvature import SharpnessProbe, largest_eigenpairs, sampled_sharpness, spectrum
from isotherm.theory.demonstration import Demonstration
from isotherm.theory.hessian import Differentiation, Hessian, Mode, NotFiniteError, hessian_of_task
from isotherm.theory.shown import curvature as piece

WAYS: tuple[Differentiation, ...] = ("reverse_over_reverse", "forward_over_reverse", "finite_difference")
EXACT_WAYS = WAYS[:2]
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # PyTorch's forward derivatives


def built(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Return a module whose parameters and running statistics are none of the round numbers they start as."""
    torch.manual_seed(seed)
    module = build().double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(0.3 * torch.rand_like(buffer))
    return module


def ghost_net() -> nn.Module:
    """A convolution with ghost batch norm and one without an activation in it, 57 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False),
        GhostBatchNorm2d(3, ghost_size=4, activation="relu"),
        nn.Conv2d(3, 2, 3, stride=2, bias=False),
        GhostBatchNorm2d(2, ghost_size=8),
        nn.Flatten(),
        nn.Linear(8, 3, bias=False),
    )


def smooth_norm_net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


# name -> module, data, mode
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, Tensor], Mode]] = {
    "tanh": (cases.build_mlp, cases.blobs(24, seed=0), "train"),
    "ghost batch norm": (ghost_net, cases.images(24, seed=0), "train"),
    "ghost batch norm, running": (ghost_net, cases.images(24, seed=0), "eval"),
    "batch norm": (smooth_norm_net, cases.blobs(24, seed=0), "train"),
    "batch norm, running": (smooth_norm_net, cases.blobs(24, seed=0), "eval"),
    "tied": (cases.TiedNet, cases.blobs(24, seed=0), "train"),
    "frozen": (cases.build_frozen, cases.blobs(24, seed=0), "train"),
}


def written_out(
    module: nn.Module, loss: LossFunction, x: Tensor, y: Tensor, *, mode: Mode, l2: float = 0.0, scope: str = "weights"
) -> Floats:
    """Return the full Hessian of the loss of all examples in one batch, row by row: the slow twin.

    Not by `torch.func.hessian`: in PyTorch 2.13 that of batch norm in training mode is not even symmetric.
    """
    twin = copy.deepcopy(module).double().train(mode == "train")
    trained = {name: p.detach() for name, p in twin.named_parameters() if p.requires_grad}
    twin.requires_grad_(False)
    x = x.double()

    def objective(flat: Tensor) -> Tensor:
        pieces = torch.split(flat, [p.numel() for p in trained.values()])
        own = {name: piece.view(p.shape) for (name, p), piece in zip(trained.items(), pieces, strict=True)}
        buffers = {name: buffer.clone() for name, buffer in twin.named_buffers()}
        penalised = [p for p in own.values() if scope == "all" or p.ndim >= 2]
        penalty = 0.5 * l2 * sum(p.square().sum() for p in penalised)
        return loss(functional_call(twin, (own, buffers), (x,)), y) + penalty

    point = torch.cat([p.reshape(-1) for p in trained.values()])
    return torch.autograd.functional.hessian(objective, point).numpy()


def matrix_of(hessian: Hessian) -> Floats:
    return np.stack([hessian.product(row) for row in np.eye(hessian.num_parameters)])


def hessian_of(name: str, **changes: Any) -> Hessian:
    build, (x, y), mode = NETS[name]
    return Hessian(built(build), cross_entropy, inputs=x, targets=y, **{"mode": mode, **changes})


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


@pytest.mark.parametrize("name", ["tanh", "ghost batch norm", "tied"])
def test_the_spectrum_is_that_of_the_full_hessian(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "DENSE_PARAMETERS", 0)  # so that the iteration is what is tested
    build, (x, y), mode = NETS[name]
    module = built(build)
    full = written_out(module, cross_entropy, x, y, mode=mode)
    values = np.linalg.eigvalsh(full)
    found = spectrum(Hessian(module, cross_entropy, inputs=x, targets=y, mode=mode), num_eigenvalues=4)
    np.testing.assert_allclose(found.largest.values, values[::-1][:4], rtol=1e-8)
    assert found.most_negative == pytest.approx(values[0], abs=1e-8 * values[-1])
    assert found.most_negative < 0
    for value, vector, residual in zip(
        found.largest.values, found.largest.vectors, found.largest.residuals, strict=True
    ):
        assert residual == pytest.approx(np.linalg.norm(full @ vector - value * vector), abs=1e-12)
        assert residual < 1e-5 * values[-1]
        assert np.linalg.norm(vector) == pytest.approx(1.0)
    assert (found.num_parameters, found.num_examples) == (len(full), len(x))
    assert found.num_products > 20


def test_a_small_hessian_is_written_out_and_gives_all_eigenvalues() -> None:
    build, (x, y), mode = NETS["frozen"]
    module = built(build)
    values = np.linalg.eigvalsh(written_out(module, cross_entropy, x, y, mode=mode))
    found = spectrum(Hessian(module, cross_entropy, inputs=x, targets=y, mode=mode), num_eigenvalues=len(values))
    np.testing.assert_allclose(found.largest.values, values[::-1], atol=1e-13)
    assert found.most_negative == pytest.approx(values[0])
    assert float(np.max(found.largest.residuals)) < 1e-13


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


class Wells(nn.Module):
    """Outputs its parameters times given factors, whatever the input."""

    factors: Tensor

    def __init__(self, factors: list[float]) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.ones(len(factors)))
        self.register_buffer("factors", torch.tensor(factors))

    def forward(self, x: Tensor) -> Tensor:
        return (0.5 * self.factors * self.point.square()).sum().expand(len(x))


def mean_output(output: Tensor, target: Tensor) -> Tensor:
    return output.mean()


def wells(factors: list[float], **changes: Any) -> Hessian:
    """Return the diagonal Hessian with these entries."""
    nothing = torch.zeros(4)
    return Hessian(Wells(factors), mean_output, inputs=nothing, targets=nothing, **{"mode": "train", **changes})


@pytest.mark.parametrize("num", [4, 60])
def test_both_ends_of_a_saddle(num: int) -> None:
    factors = [-2.0, 3.0, 5.0, *[0.5] * (num - 3)]
    found = spectrum(wells(factors), num_eigenvalues=2)
    np.testing.assert_allclose(found.largest.values, [5.0, 3.0], rtol=1e-6)
    assert found.most_negative == pytest.approx(-2.0, rel=1e-6)
    assert abs(found.largest.vectors[0][2]) == pytest.approx(1.0)
    assert found.sharpness == found.largest.values[0]


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_a_multiple_of_the_identity(value: float) -> None:
    found = spectrum(wells([value] * 60), num_eigenvalues=3)
    np.testing.assert_allclose(found.largest.values, [value] * 3, rtol=1e-6)
    assert found.most_negative == pytest.approx(value, rel=1e-6)
    np.testing.assert_allclose(found.largest.vectors @ found.largest.vectors.T, np.eye(3), atol=1e-8)


def test_the_smallest_eigenvalue_may_be_zero_below_a_large_one() -> None:
    found = spectrum(wells([100.0, *[1.0] * 50, *[0.0] * 50]), num_eigenvalues=1)
    assert found.sharpness == pytest.approx(100.0, rel=1e-6)
    assert abs(found.most_negative) < 1e-4


# -- the critical learning rate --------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_descent_is_stable_just_below_the_critical_learning_rate_only(momentum: float) -> None:
    hessian = wells([1.0, 4.0, 0.1])
    matrix = matrix_of(hessian)
    critical = spectrum(hessian, num_eigenvalues=1).critical_learning_rate(momentum=momentum)
    ends = []
    for factor in (0.99, 1.01):
        theta, velocity = np.ones(3), np.zeros(3)
        for _ in range(1000):
            velocity = momentum * velocity + matrix @ theta
            theta = theta - factor * critical * velocity
            if np.abs(theta).max() > 1e3:
                break
        ends.append(np.abs(theta[:2]).max())
    assert ends[0] < 1e-6
    assert ends[1] > 1e3


def test_critical_learning_rates_in_both_currencies() -> None:
    found = spectrum(wells([1.0, 4.0]), num_eigenvalues=1)
    assert found.critical_learning_rate() == pytest.approx(0.5)
    assert found.critical_learning_rate(momentum=0.9) == pytest.approx(2 * 1.9 / 4)
    assert found.critical_effective_learning_rate(momentum=0.9) == pytest.approx(38 / 4)
    flat = spectrum(wells([-1.0, -2.0]), num_eigenvalues=1)
    assert flat.critical_learning_rate() == math.inf
    assert flat.critical_effective_learning_rate(momentum=0.5) == math.inf


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
    with pytest.raises(UserError, match="a batch of 20 cannot be cut into ghost batches of 8"):
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


class Centred(nn.Module):
    """Takes the batch's mean off: a layer that mixes examples and is none we know."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


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


def test_single_precision_is_near_to_double() -> None:
    vector = np.random.default_rng(2).standard_normal(hessian_of("tanh").num_parameters)
    exact = hessian_of("tanh").product(vector)
    for size in (24, 7):
        single = hessian_of("tanh", precision="float32", examples_at_once=size).product(vector)
        assert 0 < np.abs(single - exact).max() < 1e-5 * np.abs(exact).max()
    found = spectrum(hessian_of("tanh", precision="float32"), num_eigenvalues=2)
    expected = spectrum(hessian_of("tanh"), num_eigenvalues=2)
    np.testing.assert_allclose(found.largest.values, expected.largest.values, rtol=1e-5)
    assert found.largest.residuals.max() < 1e-4


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
    with pytest.raises(UserError, match="a subset of no examples"):
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
        (cases.DropoutNet, "the dropout in drop draws another loss"),
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
    with pytest.raises(UserError, match=r"of the module's 4 parameters none is trained \(0 are whole numbers"):
        Hessian(frozen, cross_entropy, inputs=x, targets=y, mode="train")
    with pytest.raises(UserError, match=r"of the module's 1 parameters none is trained \(1 are whole numbers"):
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


@pytest.mark.parametrize("num", [3, 60])
def test_outputs_that_never_change_have_a_hessian_of_zeros(num: int) -> None:
    found = spectrum(wells([0.0] * num), num_eigenvalues=2)
    assert found.largest.values.tolist() == [0.0, 0.0]
    assert found.largest.residuals.tolist() == [0.0, 0.0]
    assert found.most_negative == 0.0
    assert found.critical_learning_rate() == math.inf
    np.testing.assert_allclose(found.largest.vectors @ found.largest.vectors.T, np.eye(2), atol=1e-12)
    penalised = spectrum(wells([0.0] * num, l2=0.25, l2_scope="all"), num_eigenvalues=2)
    np.testing.assert_allclose(penalised.largest.values, [0.25, 0.25], rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "test"}, "mode='test' is unknown; use one of 'train', 'eval'"),
        ({"precision": "mixed"}, "precision='mixed' is unknown"),
        ({"differentiation": "symbolic"}, "differentiation='symbolic' is unknown"),
        ({"differentiation": "finite_difference", "precision": "float32"}, "would be rounding; use 'float64'"),
        ({"l2": -1.0}, "l2=-1.0 is not a number >= 0"),
        ({"l2_scope": "bias"}, "l2_scope='bias' is unknown"),
        ({"examples_at_once": 0}, "examples_at_once=0 computes nothing"),
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


def test_eigenvalues_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="4 eigenvalues of a Hessian of 3 parameters; ask for 1 to 3"):
        largest_eigenpairs(wells([1.0, 2.0, 3.0]), num=4)
    with pytest.raises(UserError, match="0 eigenvalues"):
        spectrum(wells([1.0, 2.0, 3.0]), num_eigenvalues=0)
    with pytest.raises(ValueError, match="a vector of 2 numbers for 3 parameters"):
        wells([1.0, 2.0, 3.0]).product(np.ones(2))

    def never(*_: Any, **__: Any) -> None:
        raise curvature.ArpackNoConvergence("No convergence", np.zeros(0), np.zeros((0, 0)))

    monkeypatch.setattr(curvature, "eigsh", never)
    with pytest.raises(UserError, match="did not converge to a tolerance of 1e-06"):
        largest_eigenpairs(wells([1.0] * 60))


# -- layers that cannot be differentiated twice ------------------------------------------------------------------------


class _DoubleOnce(torch.autograd.Function):
    """2x, whose derivative does not depend on x and refuses to be differentiated all the same."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _DoubleGradient.apply(gradient)


class _DoubleGradient(_DoubleOnce):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise NotImplementedError("a double knows one derivative")


class _OldCube(torch.autograd.Function):
    """x³ as functions were written before `torch.func`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


class _CubeWithoutForward(torch.autograd.Function):
    """x³ that can be differentiated backward as often as one likes, forward never."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    setup_context = CubeOnce.setup_context

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


class Cube(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        return x**3 if self._function is None else self._function.apply(x)


class Body(nn.Module):
    """Calls its layers by keyword and gives back more than a tensor."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.enter, self.cube, self.leave = nn.Linear(2, 3), Cube(function), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return self.leave(input=self.cube(self.enter(x))), "ignored"


class Cubic(nn.Module):
    def __init__(self, function: Any = None) -> None:
        super().__init__()
        self.body, self.head = Body(function), nn.Sequential(nn.Tanh(), nn.Linear(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0])


def cubic(function: Any, **changes: Any) -> Hessian:
    x, y = cases.blobs(24, seed=0)
    module = built(lambda: Cubic(function))
    return Hessian(module, cross_entropy, inputs=x, targets=y, **{"mode": "train", **changes})


@pytest.mark.parametrize(
    ("function", "ways"),
    [
        (CubeOnce, EXACT_WAYS),
        (_DoubleOnce, EXACT_WAYS),
        (_OldCube, EXACT_WAYS),
        (_CubeWithoutForward, ("forward_over_reverse",)),
    ],
)
def test_a_layer_without_a_second_derivative_is_named(function: Any, ways: tuple[Differentiation, ...]) -> None:
    for way in ways:
        others = [other for other in WAYS if other != way]
        pattern = (
            rf"^layer 'body.cube' \(Cube\) cannot be differentiated twice by {way}: .*'{others[0]}' or '{others[1]}'"
        )
        with pytest.raises(UserError, match=pattern):
            cubic(function, differentiation=way)


def test_it_is_measured_all_the_same_when_another_way_is_asked_for() -> None:
    exact = cubic(None)
    vector = np.random.default_rng(5).standard_normal(exact.num_parameters)
    expected = exact.product(vector)
    for function in (CubeOnce, _OldCube):
        found = cubic(function, differentiation="finite_difference").product(vector)
        np.testing.assert_allclose(found, expected, atol=1e-7 * np.abs(expected).max())
    np.testing.assert_allclose(cubic(_CubeWithoutForward).product(vector), expected, atol=1e-12)


def test_all_such_layers_are_named() -> None:
    x, y = cases.blobs(24, seed=0)
    module = built(lambda: nn.Sequential(nn.Linear(2, 3), Cube(CubeOnce), nn.Linear(3, 3), Cube(CubeOnce)))
    with pytest.raises(UserError, match=r"^layer '1' \(Cube\) and layer '3' \(Cube\) cannot.*a cube knows one"):
        Hessian(module, cross_entropy, inputs=x, targets=y, mode="train")


def test_a_loss_without_a_second_derivative_is_named() -> None:
    x, y = cases.blobs(24, seed=0)
    with pytest.raises(UserError, match=r"^the loss cannot be differentiated twice by reverse_over_reverse: a cube"):
        Hessian(cases.build_mlp(), lambda o, t: CubeOnce.apply(o).mean(), inputs=x, targets=y, mode="train")


def test_other_errors_keep_their_own_words() -> None:
    x, y = cases.blobs(24, seed=0)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        Hessian(nn.Linear(5, 3), cross_entropy, inputs=x, targets=y, mode="train")


# -- a task ------------------------------------------------------------------------------------------------------------


def test_a_task_gives_its_data_loss_and_penalty() -> None:
    task = cases.classification("blobs", cases.build_mlp, l2=0.2, l2_scope="all")
    module = initial_model(task.model, seed=3)
    full = written_out(module, cross_entropy, *task.train, mode="train", l2=0.2, scope="all")
    np.testing.assert_allclose(matrix_of(hessian_of_task(task, module, mode="train")), full, atol=1e-13)
    without = matrix_of(hessian_of_task(task, module, mode="train", l2=0.0))
    np.testing.assert_allclose(full - without, 0.2 * np.eye(len(full)), atol=1e-13)


def test_a_subset_is_fixed_by_its_seed() -> None:
    task = cases.blobs_task()
    module = initial_model(task.model, seed=0)

    def top(**changes: Any) -> float:
        return spectrum(hessian_of_task(task, module, mode="train", **changes), num_eigenvalues=1).sharpness

    assert top(num_examples=20) == top(num_examples=20)
    assert top(num_examples=20) != top(num_examples=20, subset_seed=1)
    assert top(num_examples=cases.NUM_TRAIN, subset_seed=1) == pytest.approx(top(), rel=1e-9)
    for bad in (0, cases.NUM_TRAIN + 1):
        with pytest.raises(UserError, match=f"num_examples={bad} of task 'blobs'; it has 64 to draw from"):
            top(num_examples=bad)


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
    with pytest.raises(UserError, match="task 'images': in mode 'train' the dropout in dropout draws"):
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


# -- a subset is a sample ----------------------------------------------------------------------------------------------


def gaussian_regression(num: int, deviations: Floats, *, seed: int) -> tuple[Hessian, Floats]:
    """Return a linear regression's Hessian, and its inputs; their covariance has λ_max = max(deviations)²."""
    x = np.random.default_rng(seed).standard_normal((num, len(deviations))) * deviations
    module = nn.Linear(len(deviations), 1, bias=False)
    hessian = Hessian(module, half_squared_error, inputs=torch.tensor(x), targets=torch.zeros(num, 1), mode="train")
    return hessian, x


def test_both_sides_of_the_bracket_by_hand() -> None:
    hessian, x = gaussian_regression(48, np.array([2.0, 1.5, 1.0, 1.0]), seed=0)
    found = sampled_sharpness(hessian, num_blocks=4, level=0.9)

    def top(rows: Floats) -> tuple[float, Floats]:
        values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
        return float(values[-1]), vectors[:, -1]

    blocks = x.reshape(4, 12, 4)
    whole, vector = top(x)
    apart = [top(np.concatenate([b for j, b in enumerate(blocks) if j != i]))[1] for i in range(4)]
    along = t_interval([float(np.mean((block @ vector) ** 2)) for block in blocks], level=0.9)
    held = t_interval([float(np.mean((b @ v) ** 2)) for b, v in zip(blocks, apart, strict=True)], level=0.9)
    assert (found.of_all, found.held_out) == pytest.approx((whole, held.estimate))
    assert (found.interval.low, found.interval.high) == pytest.approx((held.low, along.high))
    assert found.interval.estimate == pytest.approx((whole + held.estimate) / 2)


def test_the_interval_covers_where_small_samples_agree_on_a_wrong_value() -> None:
    """Here the largest eigenvalue is 17 % too large on average, and nearly all intervals at 95 % cover."""
    deviations = np.sqrt([2.0, 1.5, *[1.0] * 18])
    found = [sampled_sharpness(gaussian_regression(128, deviations, seed=s)[0], num_blocks=4) for s in range(15)]
    assert sum(one.interval.contains(2.0) for one in found) >= 14
    assert np.mean([one.interval.high - one.interval.low for one in found]) < 2.5
    too_large = np.mean([one.of_all for one in found]) - 2.0
    too_small = np.mean([one.held_out for one in found]) - 2.0
    assert 0.2 < too_large < 0.5
    assert -0.5 < too_small < -0.1
    assert abs(np.mean([one.interval.estimate for one in found]) - 2.0) < 0.15


def test_blocks_are_equal_and_of_whole_ghosts() -> None:
    found = sampled_sharpness(hessian_of("ghost batch norm"), num_blocks=3)
    assert found.of_all == pytest.approx(spectrum(hessian_of("ghost batch norm"), num_eigenvalues=1).sharpness)
    assert found.interval.low < found.held_out < found.of_all < found.interval.high
    for name, num_blocks in (("ghost batch norm", 2), ("batch norm", 2), ("tanh", 5), ("tanh", 1), ("tanh", 48)):
        with pytest.raises(UserError, match=f"cannot be cut into {num_blocks} equal"):
            sampled_sharpness(hessian_of(name), num_blocks=num_blocks)
    x, y = cases.blobs(24, seed=0)
    mixing = Hessian(nn.Sequential(nn.Linear(2, 3), Centred()), cross_entropy, inputs=x, targets=y, mode="train")
    with pytest.raises(UserError, match="a layer mixes them"):
        sampled_sharpness(mixing, num_blocks=2)


# -- the sharpness of a run --------------------------------------------------------------------------------------------


def test_the_probe_sees_what_the_full_hessian_has() -> None:
    x, y = cases.blobs(24, seed=0)
    module = built(cases.TiedNet)
    probe = SharpnessProbe(Hessian(module, cross_entropy, inputs=x, targets=y, mode="train"), every=10)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    expected = {}
    for step in range(31):
        record = probe(step, module.named_parameters())
        assert (record is None) == (step % 10 > 0)
        loss = cross_entropy(module(x.double()), y)
        if record is not None:
            full = written_out(module, cross_entropy, x, y, mode="train")
            expected[step] = float(loss.detach()), float(np.linalg.eigvalsh(full)[-1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert [record.step for record in probe.records] == [0, 10, 20, 30]
    for record in probe.records:
        assert (record.objective, record.sharpness) == pytest.approx(expected[record.step], rel=1e-4)
        assert record.residual < 1e-2 * record.sharpness


def test_another_direction_that_has_overtaken_is_noticed() -> None:
    """Parameters that do not meet in the loss are blocks of the Hessian; products never lead from one to the other."""
    factors = [8.0, *np.linspace(0.0, 5.0, 39), 9.0, *[1.0] * 22]
    near = np.r_[1.0, 0.01 * np.ones(39), np.zeros(23)]  # of the first block
    found = largest_eigenpairs(wells(factors), tolerance=1e-3, near=near)
    assert found.values[0] == pytest.approx(9.0, rel=1e-3)
    probe = SharpnessProbe(wells(factors, mode="eval"), every=1)
    for step, first in enumerate((10.0, 8.0)):
        probe(step, {"point": torch.ones(63)}, {"factors": torch.tensor([first, *factors[1:]])})
    assert [record.sharpness for record in probe.records] == pytest.approx([10.0, 9.0], rel=1e-3)


def test_going_on_takes_fewer_products() -> None:
    hessian = wells(list(np.linspace(0.0, 1.0, 200)))
    cold = largest_eigenpairs(hessian, tolerance=1e-3)
    num_cold = hessian.num_products
    largest_eigenpairs(hessian, tolerance=1e-3, near=cold.vectors[0])
    assert hessian.num_products - num_cold < num_cold


def test_a_run_that_diverges_is_recorded_to_the_end() -> None:
    x, y = cases.line(16, seed=0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)).double()
    probe = SharpnessProbe(Hessian(module, half_squared_error, inputs=x, targets=y, mode="train"), every=1)
    optimizer = torch.optim.SGD(module.parameters(), lr=2.0)
    for step in range(12):
        probe(step, module.named_parameters())
        optimizer.zero_grad()
        half_squared_error(module(x), y).backward()
        optimizer.step()
    assert len(probe.records) == 12
    assert math.isfinite(probe.records[0].sharpness)
    assert math.isnan(probe.records[-1].sharpness)
    assert not math.isfinite(probe.records[-1].objective)


def test_an_infinite_hessian_on_the_way_is_recorded() -> None:
    module = nn.Linear(1, 1, bias=False)
    x, y = torch.ones(4, 1), torch.zeros(4, 1)
    nn.init.ones_(module.weight)
    hessian = Hessian(module, lambda o, t: o.abs().pow(1.5).mean(), inputs=x, targets=y, mode="train")
    probe = SharpnessProbe(hessian, every=1)
    for step, weight in enumerate((1.0, 0.0, 4.0)):
        probe(step, {"weight": torch.full((1, 1), weight)})
    assert [record.objective for record in probe.records] == [1.0, 0.0, 8.0]
    assert [record.sharpness for record in probe.records] == pytest.approx([0.75, math.nan, 0.375], nan_ok=True)


def test_a_probe_looks_every_so_many_updates() -> None:
    with pytest.raises(UserError, match="every=0 is not a positive number"):
        SharpnessProbe(wells([1.0]), every=0)


# -- the edge of stability, as demonstrated ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown() -> Demonstration:
    return piece.demonstrate(seed=0)


@pytest.mark.slow
def test_descent_sharpens_the_network_and_hovers_at_the_edge(shown: Demonstration) -> None:
    """λ_max starts far below 2(1 + m)/ε and ends at it, at two learning rates and with momentum."""
    curves = shown.panels[0].curves
    for (rate, momentum, _), found, edge in zip(piece._RUNS, curves[::2], curves[1::2], strict=True):
        limit = 2 * (1 + momentum) / rate
        assert edge.y == pytest.approx([limit, limit])
        assert edge.style == "dashed"
        assert found.y[0] < 0.4 * limit
        late = np.array(found.y[-len(found.y) // 4 :])
        assert late.mean() == pytest.approx(limit, rel=0.03)
        assert late.max() < 1.1 * limit
        assert late.min() > 0.9 * limit


@pytest.mark.slow
def test_descent_at_the_edge_raises_the_loss_now_and_then_and_lowers_it_in_all(shown: Demonstration) -> None:
    rows = [dict(zip(shown.tables[0].columns, row, strict=True)) for row in shown.tables[0].rows]
    for row in rows:
        num_rises, num_steps = map(int, str(row["loss rose"]).split(" of "))
        assert 0 < num_rises < num_steps / 2
        assert float(row["final loss"]) < 0.02


@pytest.mark.slow
def test_the_paragraph_says_what_the_tables_say(shown: Demonstration) -> None:
    for row in shown.tables[0].rows:
        rate, _, edge, start, late, ratio = map(float, row[:6])
        assert f"ε = {rate:g}" in shown.paragraph
        assert f"{late:.2f} over the last quarter, {ratio:.3f} of 2(1 + m)/ε = {edge:g}" in shown.paragraph
        assert f"starts at {start:.2f}" in shown.paragraph
        assert late / edge == pytest.approx(ratio)
    assert "3 of 3 runs end within 5 % of their edge" in shown.paragraph
    spectra = {row[0]: row for row in shown.tables[1].rows}
    values = [float(v) for v in spectra["start"][1:9]]
    assert values == sorted(values, reverse=True)
    assert shown.panels[1].curves[0].y == pytest.approx(values)
    assert all(float(row[-1]) < 1e-2 for row in spectra.values())
    json.dumps(shown.as_json(), allow_nan=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_gpu_gives_the_same(mode: Mode) -> None:
    task = cases_paper.ghost_task(l2=5e-4)
    module = initial_model(task.model, seed=0)
    found = [
        spectrum(hessian_of_task(task, module, mode=mode, device=device, precision=precision), num_eigenvalues=2)
        for device, precision in (("cpu", "float64"), ("cuda", "float64"), ("cuda", "float32"))
    ]
    np.testing.assert_allclose(found[1].largest.values, found[0].largest.values, rtol=1e-9)
    np.testing.assert_allclose(found[2].largest.values, found[0].largest.values, rtol=1e-4)

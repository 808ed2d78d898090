"""The autoencoder: layers, initialisation, exact formula, and a small one through the engines."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from helpers_models import (
    assert_differentiates_rightly,
    assert_same_under_vmap,
    assert_trains_as_a_fleet,
    num_parameters,
    shaken,
)
from isotherm.errors import UserError
from isotherm.models import MODELS
from isotherm.models.autoencoder import autoencoder
from isotherm.tasks.task import Task

UNITS = ("tanh", "logistic")
WIDTHS = [784, 1000, 500, 250, 30, 250, 500, 1000, 784]
small = partial(autoencoder, encoder_widths=(24, 18, 5))


@pytest.fixture(autouse=True)
def _same_start() -> None:
    torch.manual_seed(0)


def linears(module: nn.Module) -> list[nn.Linear]:
    return [part for part in module.modules() if isinstance(part, nn.Linear)]


def pixels(num: int, *, width: int = 24, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(num, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("units", UNITS)
def test_layout(units):
    module = autoencoder(units=units)
    assert num_parameters(module) == 2_837_314
    layers = linears(module)
    assert [layer.in_features for layer in layers] + [layers[-1].out_features] == WIDTHS
    hidden = nn.Tanh if units == "tanh" else nn.Sigmoid
    activations = [hidden] * 3 + [None] + [hidden] * 3 + [nn.Sigmoid]
    expected = [kind for activation in activations for kind in (nn.Linear, activation) if kind is not None]
    assert [type(part) for part in module] == expected


def test_the_named_model_has_tanh_units():
    module = MODELS["autoencoder_mnist"]()
    assert num_parameters(module) == 2_837_314
    assert {type(part) for part in module} == {nn.Linear, nn.Tanh, nn.Sigmoid}


@pytest.mark.parametrize("units", UNITS)
def test_exact_formula(units):
    module = shaken(autoencoder(units=units))
    x = pixels(3, width=784)
    hidden = x
    for index, layer in enumerate(linears(module)):
        hidden = hidden @ layer.weight.T + layer.bias
        if index == 7 or (units == "logistic" and index != 3):
            hidden = 1 / (1 + torch.exp(-hidden))
        elif index != 3:
            hidden = (torch.exp(hidden) - torch.exp(-hidden)) / (torch.exp(hidden) + torch.exp(-hidden))
    output = module(x)
    torch.testing.assert_close(output, hidden, rtol=1e-10, atol=1e-12)
    assert output.shape == (3, 784)
    assert 0 <= float(output.detach().min()) <= float(output.detach().max()) <= 1


def test_glorot_uniform_start():
    for layer in linears(autoencoder(units="tanh")):
        bound = math.sqrt(6 / (layer.in_features + layer.out_features))
        values = layer.weight.detach()
        assert 0.99 * bound < float(values.max()) <= bound
        assert -bound <= float(values.min()) < -0.99 * bound
        assert float(values.double().var()) == pytest.approx(bound**2 / 3, rel=0.03)
        assert layer.bias.count_nonzero() == 0


def test_sparse_start():
    layers = linears(autoencoder(units="logistic"))
    for layer in layers:
        values = layer.weight.detach()
        assert (values.count_nonzero(dim=1) == 15).all()
        places = values.nonzero()[:, 1]
        # Every input is used about equally often.
        counts = torch.bincount(places, minlength=layer.in_features).double()
        expected = 15 * layer.out_features / layer.in_features
        assert float((counts - expected).abs().max()) < 6 * math.sqrt(expected)
        assert layer.bias.count_nonzero() == 0
    drawn = torch.cat([layer.weight.detach()[layer.weight.detach() != 0] for layer in layers]).double()
    assert len(drawn) == 15 * sum(WIDTHS[1:])
    assert abs(float(drawn.mean())) < 0.02
    assert float(drawn.std()) == pytest.approx(1.0, rel=0.02)
    assert float(drawn.pow(4).mean()) == pytest.approx(3.0, rel=0.1)


def test_sparse_start_of_a_narrow_layer_is_dense():
    for layer in linears(autoencoder(units="logistic", encoder_widths=(6, 4))):
        assert layer.weight.count_nonzero() == layer.weight.numel()


@pytest.mark.parametrize("units", UNITS)
def test_the_global_generator_decides(units):
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(small(units=units)[0].weight.detach())
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_what_cannot_be_built_is_refused():
    with pytest.raises(UserError, match="did you mean 'logistic'"):
        autoencoder(units="logistics")
    with pytest.raises(UserError, match=r"encoder_widths=\(784,\)"):
        autoencoder(encoder_widths=(784,))


# -- as the engines run it --------------------------------------------------------------------------------------


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (output - target).square().sum(dim=-1).mean()


@pytest.mark.parametrize("units", UNITS)
def test_gradients_equal_differences(units):
    assert_differentiates_rightly(shaken(small(units=units)), pixels(6), partial(squared_error, target=pixels(6)))


@pytest.mark.parametrize("units", UNITS)
def test_gradients_are_the_same_under_vmap(units):
    assert_same_under_vmap(
        [shaken(small(units=units), seed=seed) for seed in range(2)],
        pixels(6),
        partial(squared_error, target=pixels(6)),
    )


@pytest.mark.parametrize("units", UNITS)
def test_trains_as_a_fleet(units, caplog):
    train, test = pixels(24), pixels(6, seed=1)
    model = partial(small, units=units)
    task = Task(name="small", model=model, train=(train, train), test=(test, test), loss=squared_error)
    assert_trains_as_a_fleet(task, l2_scope="all")
    assert caplog.text == ""  # not one run at a time

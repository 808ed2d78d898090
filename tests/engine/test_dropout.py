"""Statistical tests have fixed keys; thresholds say how often they would fail for a fresh one."""

import math

import pytest
import scipy.stats
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from isotherm.engine.dropout import KeyedBits, KeyedDropout, noise_key, run_keys, uniform_bits

# Four standard errors: one false alarm in 16,000.
NUM_ERRORS = 4.0


def dropped(
    x: Tensor,
    p: float = 0.5,
    *,
    seed: int = 0,
    step: int = 0,
    call: int = 0,
    function=functional.dropout,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    """Return what the given call of a forward pass makes of x."""
    with KeyedDropout(noise_key(seed), torch.tensor(step)):
        for _ in range(call):
            functional.dropout(torch.ones(1), 0.5)
        return function(x, p, training=training, inplace=inplace)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_the_kept_fraction_is_one_minus_p(p):
    num = 200_000
    kept = float((dropped(torch.ones(num), p) != 0).double().mean())
    assert abs(kept - (1 - p)) < NUM_ERRORS * math.sqrt(p * (1 - p) / num)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_what_is_kept_is_scaled(p):
    x = torch.arange(1.0, 101.0, dtype=torch.float64)
    out = dropped(x, p)
    torch.testing.assert_close(out[out != 0], x[out != 0] / (1 - p))


def test_the_same_key_step_and_call_give_the_same_mask():
    x = torch.ones(100)
    assert torch.equal(dropped(x, seed=3, step=5, call=2), dropped(x, seed=3, step=5, call=2))


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"step": 1}, {"step": 2}, {"step": 2**20}, {"call": 1}, {"call": 2}, {"step": 1, "call": 1}],
    ids=str,
)
def test_other_seeds_steps_and_calls_give_independent_masks(other):
    num = 20_000
    agreement = float((dropped(torch.ones(num)) == dropped(torch.ones(num), **other)).double().mean())
    assert abs(agreement - 0.5) < NUM_ERRORS * math.sqrt(0.25 / num)


def test_neighbouring_elements_are_independent():
    num = 20_000
    mask = dropped(torch.ones(num)) != 0
    for lag in (1, 2, 64, 1024):
        agreement = float((mask[lag:] == mask[:-lag]).double().mean())
        assert abs(agreement - 0.5) < NUM_ERRORS * math.sqrt(0.25 / (num - lag))


def test_evaluation_mode_passes_through():
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(dropped(x, 0.7, training=False), x)


def test_p_of_zero_passes_through():
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(dropped(x, 0.0), x)


def test_p_of_one_gives_zeros_and_a_zero_gradient():
    x = torch.ones(50, requires_grad=True)
    out = dropped(x, 1.0)
    out.sum().backward()
    assert torch.equal(out, torch.zeros(50))
    assert torch.equal(x.grad, torch.zeros(50))


def test_the_gradient_is_the_mask():
    x = torch.full((50,), 2.0, requires_grad=True)
    out = dropped(x, 0.3)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach() / 2.0)


def test_in_place_changes_the_input_and_nothing_else_does():
    x = torch.ones(50)
    expected = dropped(x, 0.3)
    assert torch.equal(x, torch.ones(50))
    assert dropped(x, 0.3, inplace=True) is x
    assert torch.equal(x, expected)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (functional.dropout1d, (20, 16, 5)),
        (functional.dropout2d, (20, 16, 5, 4)),
        (functional.dropout3d, (20, 16, 5, 4, 3)),
        # As in PyTorch, which for historical reasons takes three dimensions for (batch, channel, length).
        pytest.param(
            functional.dropout2d,
            (20, 16, 5),
            marks=pytest.mark.filterwarnings("ignore:dropout2d. Received a 3-D input"),
            id="dropout2d of three dimensions",
        ),
    ],
)
def test_whole_channels_are_dropped(function, shape):
    out = dropped(torch.ones(shape), 0.3, function=function).flatten(2)
    assert torch.equal(out, out[:, :, :1].expand_as(out))
    kept = out[:, :, 0] != 0
    assert not kept.all(dim=1).all()  # channels of one example have their own fate
    assert kept.any(dim=1).all()
    num = kept.numel()
    assert abs(float(kept.double().mean()) - 0.7) < NUM_ERRORS * math.sqrt(0.21 / num)


@pytest.mark.parametrize("module", [nn.Dropout(0.4), nn.Dropout(0.4, inplace=True)])
def test_modules_draw_from_the_key(module):
    with KeyedDropout(noise_key(0), torch.tensor(0)):
        out = module(torch.ones(100))
    assert torch.equal(out, dropped(torch.ones(100), 0.4))


def test_the_global_generator_is_not_used():
    torch.manual_seed(0)
    expected = torch.rand(())
    torch.manual_seed(0)
    dropped(torch.ones(10))
    assert torch.equal(torch.rand(()), expected)


def test_outside_the_context_dropout_is_torchs_own():
    torch.manual_seed(0)
    expected = functional.dropout(torch.ones(100))
    dropped(torch.ones(100))
    torch.manual_seed(0)
    assert torch.equal(functional.dropout(torch.ones(100)), expected)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("function", "shape"), [(functional.dropout, (6, 7)), (functional.dropout2d, (6, 7, 2, 2))])
def test_a_fleet_draws_what_each_run_draws_alone(function, shape, inplace):
    def forward(x: Tensor, key: Tensor) -> Tensor:
        with KeyedDropout(key, torch.tensor(9)):
            return function(function(x * 1.5, 0.3, inplace=inplace) + 1.0, 0.5, inplace=inplace)

    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    keys = torch.stack([noise_key(seed) for seed in (0, 1, 2, 0)])
    alone = torch.stack([forward(x[i], keys[i]) for i in range(4)])
    assert torch.equal(vmap(forward)(x, keys), alone)


# -- within library layers --------------------------------------------------------------------------------------


def test_attention_drops_its_weights_by_the_key():
    x = torch.eye(40).reshape(1, 1, 40, 40)
    zeros = torch.zeros(1, 1, 40, 40)
    with KeyedDropout(noise_key(0), torch.tensor(0)):
        out = functional.scaled_dot_product_attention(zeros, zeros, x, dropout_p=0.5)
    assert torch.equal(out != 0, dropped(torch.ones(1, 1, 40, 40)) != 0)
    torch.testing.assert_close(out[out != 0], torch.full_like(out[out != 0], 2 / 40))


@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention_draws_from_the_key_wherever_its_dropout_is(need_weights):
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(4, 2, dropout=0.5), torch.randn(6, 3, 4)
    outputs = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(outputs))  # which nothing depends on
        with KeyedDropout(noise_key(seed), torch.tensor(2)):
            outputs.append(module(x, x, x, need_weights=need_weights)[0])
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], outputs[2])


def test_layers_of_an_lstm_are_separated_by_a_mask_of_the_key():
    torch.manual_seed(0)
    module, x = nn.LSTM(3, 4, num_layers=2, dropout=0.5), torch.randn(5, 2, 3)
    with KeyedDropout(noise_key(0), torch.tensor(0)):
        ours, (hidden, cell) = module(x)
    first, second = nn.LSTM(3, 4), nn.LSTM(4, 4)
    for number, layer in enumerate((first, second)):
        layer.load_state_dict(
            {f"{n}_l0": getattr(module, f"{n}_l{number}") for n in ("weight_ih", "weight_hh")}
            | {f"{n}_l0": getattr(module, f"{n}_l{number}") for n in ("bias_ih", "bias_hh")}
        )
    between, (early, early_cell) = first(x)
    expected, (late, late_cell) = second(dropped(between))
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(hidden, torch.cat([early, late]))
    torch.testing.assert_close(cell, torch.cat([early_cell, late_cell]))


def test_layers_in_evaluation_mode_are_left_alone():
    module, x = nn.GRU(3, 4, num_layers=2, dropout=0.5).eval(), torch.randn(5, 2, 3)
    with KeyedDropout(noise_key(0), torch.tensor(0)):
        ours = module(x)[0]
    assert torch.equal(ours, module(x)[0])


def test_keys_are_two_words_of_32_bits_and_differ_between_seeds():
    keys = torch.stack([noise_key(seed) for seed in range(200)])
    assert keys.dtype == torch.int64
    assert ((keys >= 0) & (keys < 2**32)).all()
    assert len({tuple(key) for key in keys.tolist()}) == 200


@pytest.mark.parametrize("shift", [28, 14, 0], ids=["high bits", "middle bits", "low bits"])
@pytest.mark.parametrize("along", ["elements", "steps"])
def test_bits_are_uniform(along, shift):
    """Chi-square over 16 bins; a fresh key fails once in a million."""
    key = noise_key(1)
    if along == "elements":
        bits = uniform_bits(key, torch.tensor(3), 0, torch.Size([32_000]))
    else:
        steps = torch.arange(32_000)
        bits = vmap(lambda step: uniform_bits(key, step, 0, torch.Size([1])))(steps).flatten()
    assert ((bits >= 0) & (bits < 2**32)).all()
    counts = torch.bincount(bits >> shift & 15, minlength=16).double()
    statistic = float(((counts - 2_000) ** 2 / 2_000).sum())
    assert statistic < scipy.stats.chi2.isf(1e-6, df=15)


def test_bits_rarely_repeat():
    # 20,000 of 2^32 values: 0.05 collisions are expected; more than 3 come up once in four million keys.
    bits = uniform_bits(noise_key(1), torch.tensor(3), 0, torch.Size([20_000]))
    assert len(bits.unique()) >= 20_000 - 3


def test_dropout_and_augmentation_have_keys_of_their_own():
    keys = torch.stack([run_keys(seed) for seed in range(20)])
    assert keys.shape == (20, 2, 2)
    assert torch.equal(keys[:, 0], torch.stack([noise_key(seed) for seed in range(20)]))
    assert len({tuple(key.tolist()) for key in keys.flatten(0, 1)}) == 40


def test_every_call_of_a_runs_bits_is_a_new_draw():
    key, step = noise_key(3), torch.tensor(5)
    bits = KeyedBits(key, step)
    first, second = bits((50, 2)), bits((50, 2))
    assert torch.equal(first, uniform_bits(key, step, 0, torch.Size((50, 2))))
    assert torch.equal(second, uniform_bits(key, step, 1, torch.Size((50, 2))))
    assert not (first == second).any()
    assert torch.equal(KeyedBits(key, step)((50, 2)), first)

"""The language model against `nn.LSTM`: values, gradients, the state it passes on, and where dropout applies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from helpers_models import num_parameters, shaken
from isotherm.models import MODELS, lstm
from isotherm.models.lstm import LSTMLanguageModel
from isotherm.tasks.losses import cross_entropy

VOCABULARY, WIDTH, LAYERS = 11, 6, 2


def small(**changes: Any) -> LSTMLanguageModel:
    torch.manual_seed(changes.pop("seed", 0))
    sizes = {"vocabulary": VOCABULARY, "width": WIDTH, "num_layers": LAYERS, "initial_range": 0.5}
    return LSTMLanguageModel(**{**sizes, **changes})


def tokens(num_streams: int, num_tokens: int, *, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCABULARY, (num_streams, num_tokens), generator=torch.Generator().manual_seed(seed))


class Plain(nn.Module):
    """The same network of PyTorch's own parts, without dropout."""

    def __init__(self, model: LSTMLanguageModel) -> None:
        super().__init__()
        vocabulary, width = model.embedding.shape
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, width, num_layers=model.num_layers, batch_first=True)
        self.softmax = nn.Linear(width, vocabulary)
        self.to(model.embedding.dtype)
        with torch.no_grad():
            for ours, theirs in self.pairs(model):
                theirs.copy_(ours)

    def pairs(self, model: LSTMLanguageModel) -> list[tuple[Tensor, Tensor]]:
        """Return the corresponding parameters of the two."""
        named = [("embedding", self.embedding.weight), ("softmax_weight", self.softmax.weight)]
        named.append(("softmax_bias", self.softmax.bias))
        for layer in range(model.num_layers):
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                named.append((f"{kind}_{layer}", getattr(self.recurrent, f"{kind}_l{layer}")))
        assert {name for name, _ in named} == {name for name, _ in model.named_parameters()}
        return [(getattr(model, name), parameter) for name, parameter in named]

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden, state = self.recurrent(self.embedding(x), (state[0::2].contiguous(), state[1::2].contiguous()))
        return self.softmax(hidden), torch.stack(state, dim=1).flatten(0, 1)


# -- the same function as PyTorch's -----------------------------------------------------------------------------


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("num_tokens", [1, 2, 7])
def test_values_gradients_and_state_are_those_of_torch(num_layers, num_tokens):
    model = shaken(small(num_layers=num_layers)).eval()
    plain = Plain(model)
    generator = torch.Generator().manual_seed(1)
    states = [torch.randn(2 * num_layers, 3, WIDTH, generator=generator, dtype=torch.float64).requires_grad_()] * 2
    losses: list[Tensor] = [torch.zeros((), dtype=torch.float64)] * 2
    starts = list(states)
    for window in range(3):  # the state goes from window to window, the gradient does not
        x, y = tokens(3, num_tokens, seed=window), tokens(3, num_tokens, seed=window + 10)
        for place, module in enumerate((model, plain)):
            output, after = module(x, states[place])
            losses[place] = losses[place] + cross_entropy(output, y)
            states[place] = after.detach()
        torch.testing.assert_close(states[0], states[1], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-12, atol=1e-13)
    pairs = plain.pairs(model)
    ours = torch.autograd.grad(losses[0], [pair[0] for pair in pairs] + starts[:1])
    theirs = torch.autograd.grad(losses[1], [pair[1] for pair in pairs] + starts[1:])
    for mine, other in zip(ours, theirs, strict=True):
        assert float(other.norm()) > 1e-6
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-13)


def test_the_state_is_handed_on_without_gradient():
    model = small()
    _, state = model(tokens(2, 4), model.initial_state(2))
    assert state.shape == model.initial_state(2).shape == (2 * LAYERS, 2, WIDTH)
    assert not state.requires_grad
    assert float(state.abs().min()) > 0
    assert not model.initial_state(2).any()


def test_two_windows_are_one_long_one():
    model, x = small().double().eval(), tokens(2, 9)
    start = model.initial_state(2).double()
    whole, last = model(x, start)
    first, state = model(x[:, :4], start)
    second, end = model(x[:, 4:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(end, last, rtol=1e-12, atol=1e-13)


def test_streams_do_not_see_each_other():
    model, x = small().double().eval(), tokens(3, 5)
    whole, _ = model(x, model.initial_state(3).double())
    alone = [model(x[i : i + 1], model.initial_state(1).double())[0] for i in range(3)]
    torch.testing.assert_close(whole, torch.cat(alone), rtol=1e-12, atol=1e-13)


# -- start ------------------------------------------------------------------------------------------------------


def test_the_named_model_is_the_papers():
    model = MODELS["lstm_ptb"]()
    # Twice 10,000 words by 650 units, softmax biases, and two layers of four gates: 2 · (650 · 650 + 650) each.
    assert num_parameters(model) == 2 * 10_000 * 650 + 10_000 + 2 * 4 * 2 * (650 * 650 + 650) == 19_780_400
    assert num_parameters(LSTMLanguageModel()) == 19_780_400
    assert (model.width, model.num_layers, model.drop_probability) == (650, 2, 0.5)
    for name, parameter in model.named_parameters():
        assert 0.0499 < float(parameter.detach().abs().max()) <= 0.05, name
        assert abs(float(parameter.detach().mean())) < 0.05 * 4 / (3 * parameter.numel()) ** 0.5, name
        assert float(parameter.detach().std()) == pytest.approx(0.05 / 3**0.5, rel=0.05), name


# -- dropout ----------------------------------------------------------------------------------------------------


class Watch(TorchFunctionMode):
    """Notes the calls of dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[tuple[int, ...], float, bool]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is functional.dropout:
            self.calls.append((tuple(args[0].shape), kwargs["p"], kwargs["training"]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_training", [True, False])
def test_dropout_is_called_before_between_and_after_the_layers(is_training):
    model = small(drop_probability=0.25, num_layers=3).train(is_training)
    with Watch() as watch:
        model(tokens(2, 5), model.initial_state(2))
    assert watch.calls == [((5, 2, WIDTH), 0.25, is_training)] * 4


def test_dropout_is_of_layer_inputs_and_of_no_recurrent_path(monkeypatch):
    """The same masks by hand, token by token, with `nn.LSTMCell`."""
    model = shaken(small(drop_probability=0.5)).train()
    x, num_tokens = tokens(3, 6), 6
    generator = torch.Generator().manual_seed(4)
    masks = [
        2.0 * torch.randint(0, 2, (num_tokens, 3, WIDTH), generator=generator, dtype=torch.float64)
        for _ in range(LAYERS + 1)
    ]
    remaining = iter(masks)
    namespace = SimpleNamespace(**{name: getattr(functional, name) for name in ("pad", "linear", "embedding")})
    namespace.dropout = lambda values, p, training: values * next(remaining)
    monkeypatch.setattr(lstm, "functional", namespace)
    ours, _ = model(x, model.initial_state(3).double())

    cells = []
    for layer in range(LAYERS):
        cell = nn.LSTMCell(WIDTH, WIDTH).double()
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            setattr(cell, kind, getattr(model, f"{kind}_{layer}"))
        cells.append(cell)
    states = [(torch.zeros(3, WIDTH, dtype=torch.float64),) * 2] * LAYERS
    expected = []
    for token in range(num_tokens):
        values = model.embedding[x[:, token]] * masks[0][token]
        for layer, cell in enumerate(cells):
            states[layer] = cell(values, states[layer])
            values = states[layer][0] * masks[layer + 1][token]
        expected.append(values @ model.softmax_weight.t() + model.softmax_bias)
    torch.testing.assert_close(ours, torch.stack(expected, dim=1), rtol=1e-12, atol=1e-13)


# -- many runs at once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares_tokens", [True, False])
def test_gradients_of_many_runs_are_a_loop_over_them(shares_tokens):
    models = [shaken(small(seed=seed), seed=seed).eval() for seed in range(3)]
    x_M = torch.stack([tokens(2, 5, seed=0 if shares_tokens else seed) for seed in range(3)])
    y_M = x_M.roll(1, dims=-1)
    states = torch.randn(3, 2 * LAYERS, 2, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    names = [name for name, _ in models[0].named_parameters()]
    parameters = {n: torch.stack([dict(m.named_parameters())[n].detach() for m in models]) for n in names}

    def of_run(parameters: dict[str, Tensor], x: Tensor, y: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        output, after = functional_call(models[0], parameters, (x, state))
        return cross_entropy(output, y), after

    dims = (0, None, None, 0) if shares_tokens else (0, 0, 0, 0)
    data = (x_M[0], y_M[0]) if shares_tokens else (x_M, y_M)
    gradients, after_M = vmap(grad(of_run, has_aux=True), in_dims=dims)(parameters, *data, states)
    for place, model in enumerate(models):
        output, after = model(x_M[place], states[place])
        expected = torch.autograd.grad(cross_entropy(output, y_M[place]), list(model.parameters()))
        torch.testing.assert_close(after_M[place], after, rtol=1e-12, atol=1e-13)
        for name, gradient in zip(names, expected, strict=True):
            torch.testing.assert_close(gradients[name][place], gradient, rtol=1e-10, atol=1e-13, msg=name)


def test_a_second_derivative_is_refused_and_not_wrong():
    model = small().double()
    output, _ = model(tokens(2, 3), model.initial_state(2).double())
    (gradient,) = torch.autograd.grad(output.square().sum(), [model.weight_ih_0], create_graph=True)
    with pytest.raises(NotImplementedError, match="LSTMLanguageModel has no second derivative"):
        gradient.square().sum().backward()


# -- bfloat16 ---------------------------------------------------------------------------------------------------


def scores(model: LSTMLanguageModel, *, is_mixed: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    x = tokens(4, 12)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_mixed, cache_enabled=False):
        output, state = model(x, 0.1 * torch.ones_like(model.initial_state(4)))
    gradients = torch.autograd.grad(cross_entropy(output.float(), x.roll(1, 1)), list(model.parameters()))
    return output.detach(), state, list(gradients)


@pytest.mark.parametrize("width", [6, 8, 13])
def test_bfloat16_is_close_to_float32(width):
    model = small(width=width).eval()
    (output, state, gradients), (mixed, mixed_state, mixed_gradients) = (
        scores(model, is_mixed=is_mixed) for is_mixed in (False, True)
    )
    assert (mixed.dtype, mixed_state.dtype) == (torch.bfloat16, torch.float32)
    assert {gradient.dtype for gradient in mixed_gradients} == {torch.float32}
    pairs = [(output, mixed), (state, mixed_state), *zip(gradients, mixed_gradients, strict=True)]
    for plain, ours in pairs:
        # A bfloat16 has 8 bits: one rounding is at most 2^-9 of a value; here is a handful of them, one after another.
        assert 0 < float((ours.float() - plain).norm()) < 2**-5 * float(plain.norm())


def test_units_added_for_alignment_stay_zero(monkeypatch):
    seen: list[tuple[Tensor, ...]] = []
    plain = lstm._Recurrence.apply

    def watch(*arguments: Tensor) -> tuple[Tensor, ...]:
        seen.append(plain(*arguments))
        return seen[-1]

    monkeypatch.setattr(lstm, "_Recurrence", SimpleNamespace(apply=watch))
    scores(small(width=13).eval(), is_mixed=True)
    assert len(seen) == LAYERS
    for hiddens, *others in seen:
        cells = torch.stack(others[: len(hiddens)])
        assert hiddens.shape == cells.shape
        assert hiddens.shape[-1] == 16
        assert not hiddens[..., 13:].any()
        assert not cells[..., 13:].any()
        assert hiddens[..., :13].all()
    seen.clear()
    scores(small(width=13).eval(), is_mixed=False)
    assert {hiddens.shape[-1] for hiddens, *_ in seen} == {13}

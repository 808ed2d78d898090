"""Recurrent layers token by token against PyTorch's own."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

import cases
from cases_layers import layer_task
from helpers_engines import assert_same, by_fleet, by_reference
from isotherm.engine.layers.many_runs import ManyRuns
from isotherm.engine.layers.recurrent import RecurrentCall, unrolled
from isotherm.engine.placed_task import place_task

BUILDERS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
OPTIONS = (
    {},
    {"num_layers": 2, "bias": False},
    {"bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bidirectional": True},
)


def built(builder: type[nn.Module], **options) -> nn.Module:
    torch.manual_seed(0)
    return builder(3, 4, **options).double()


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def leaves(output) -> list[Tensor]:
    return torch.utils._pytree.tree_leaves(output)


def assert_unrolled_alike(module: nn.Module, *arguments) -> None:
    expected = leaves(module(*arguments))
    with ManyRuns():
        ours = leaves(module(*arguments))
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other)
    objectives = [sum(part.square().sum() for part in parts) for parts in (ours, expected)]
    for one, other in zip(*(torch.autograd.grad(each, module.parameters()) for each in objectives), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", BUILDERS)
def test_outputs_states_and_gradients_are_pytorchs(name, options):
    assert_unrolled_alike(built(BUILDERS[name], **options), drawn(5, 6, 3))


def test_an_lstm_with_projections():
    assert_unrolled_alike(built(nn.LSTM, proj_size=2, num_layers=2), drawn(5, 6, 3))


def test_given_states_and_no_batch():
    assert_unrolled_alike(built(nn.GRU), drawn(5, 6, 3), drawn(1, 6, 4))
    assert_unrolled_alike(built(nn.LSTM), drawn(5, 6, 3), (drawn(1, 6, 4), drawn(1, 6, 4).cos()))
    assert_unrolled_alike(built(nn.LSTM, batch_first=True), drawn(5, 3))


@pytest.mark.parametrize("builder", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(builder, bias):
    assert_unrolled_alike(built(builder, bias=bias), drawn(6, 3))


def test_packed_sequences_are_left_to_pytorch():
    packed = nn.utils.rnn.pack_padded_sequence(drawn(5, 2, 3), torch.tensor([5, 3]))
    module = built(nn.GRU)
    with ManyRuns():
        ours = module(packed)[0].data
    assert torch.equal(ours, module(packed)[0].data)


def test_layers_in_a_row_are_the_module():
    module = built(nn.LSTM, num_layers=3, bidirectional=True, dropout=0.5)
    zeros = torch.zeros(6, 6, 4, dtype=torch.float64)
    arguments = (drawn(5, 6, 3), (zeros, zeros), module._flat_weights, True, 3, 0.5, True, True, False)
    call = RecurrentCall.of(torch.lstm, arguments)
    assert call.drops
    assert unrolled(call) is None
    assert len(call.layers()) == 3
    ours = call.by_layers(lambda x: x, RecurrentCall.__call__)
    module.eval()
    for one, other in zip(leaves(ours), leaves(module(drawn(5, 6, 3))), strict=True):
        torch.testing.assert_close(one, other)


def test_weights_of_a_functional_call_are_left_where_they_are(monkeypatch, caplog):
    """On a GPU a layer asks every weight for its address, which one under `torch.func` does not have."""

    def as_on_a_gpu(self: nn.RNNBase) -> None:
        if any(torch._C._functorch.is_functorch_wrapped_tensor(weight) for weight in self._flat_weights):
            raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", as_on_a_gpu)
    task = layer_task("LSTM")
    placed = place_task(task, precision="float64")
    specs = [cases.spec(task, seed=seed, num_steps=3, num_evaluations=1) for seed in (0, 1)]
    ours = by_fleet(placed, specs)
    assert caplog.text == ""  # it was a fleet indeed
    assert_same(ours, [by_reference(placed, spec) for spec in specs])
    module, x = built(nn.LSTM), drawn(5, 2, 3)
    held = {name: torch.stack([p.detach(), p.detach()]) for name, p in module.named_parameters()}
    with pytest.raises(RuntimeError, match="data pointer"):
        vmap(lambda own: functional_call(module, own, (x,))[0])(held)

"""Ghost batch normalisation is ordinary batch normalisation of every ghost batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from isotherm.errors import UserError
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d

CHANNELS = 3


def layer(*, seed: int = 0, **settings) -> GhostBatchNorm2d:
    """Return a layer in float64 whose parameters and running statistics are nothing special."""
    generator = torch.Generator().manual_seed(seed)
    norm = GhostBatchNorm2d(CHANNELS, **settings).double()
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            tensor += 0.3 * torch.rand(CHANNELS, generator=generator, dtype=torch.float64)
    return norm


def batch(num: int, *, size: tuple[int, int] = (4, 5), seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, CHANNELS, *size, generator=generator, dtype=torch.float64)
    return 2.0 * x + torch.tensor([3.0, -1.0, 0.0], dtype=torch.float64).view(-1, 1, 1)


def torch_norm(norm: GhostBatchNorm2d, *, momentum: float) -> nn.BatchNorm2d:
    """Return PyTorch's layer with the same parameters and running statistics."""
    plain = nn.BatchNorm2d(CHANNELS, eps=norm.eps, momentum=momentum).double()
    plain.load_state_dict({n: t for n, t in norm.state_dict().items() if n != "update_rate"}, strict=False)
    return plain


def close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_starts_as_the_identity_of_a_normalisation():
    norm = GhostBatchNorm2d(CHANNELS)
    assert [name for name, _ in norm.named_parameters()] == ["weight", "bias"]
    assert norm.weight.tolist() == [1.0] * CHANNELS
    assert norm.bias.tolist() == [0.0] * CHANNELS
    assert norm.running_mean.tolist() == [0.0] * CHANNELS
    assert norm.running_var.tolist() == [1.0] * CHANNELS
    assert (norm.ghost_size, norm.eps, float(norm.update_rate)) == (64, 1e-5, pytest.approx(0.1))
    assert norm.update_rate.shape == ()
    assert dict(norm.named_buffers()).keys() == {"running_mean", "running_var", "update_rate"}


@pytest.mark.parametrize(
    ("batch_size", "settings"),
    [
        (192, {}),
        (64, {}),
        (10, {}),
        (12, {"ghost_size": 4, "eps": 0.1}),
        (1, {"ghost_size": 4}),
        (5, {"ghost_size": 1, "update_rate": 0.5}),
    ],
)
def test_equals_batch_norm_chunk_by_chunk(batch_size, settings):
    norm = layer(**settings)
    chunk_size = min(batch_size, norm.ghost_size)
    plain = torch_norm(norm, momentum=1.0)  # after each chunk its running statistics are the chunk's own
    before = norm.running_mean.clone(), norm.running_var.clone()
    x = batch(batch_size).requires_grad_()
    twin = x.detach().clone().requires_grad_()
    weights = batch(batch_size, seed=9)  # of the outputs in the loss

    ours = norm(x)
    chunks, statistics = [], []
    for chunk in twin.split(chunk_size):
        chunks.append(plain(chunk))
        statistics.append((plain.running_mean.clone(), plain.running_var.clone()))
    expected = torch.cat(chunks)
    close(ours, expected)

    gradients = torch.autograd.grad((ours * weights).sum(), [x, norm.weight, norm.bias])
    for mine, theirs in zip(
        gradients, torch.autograd.grad((expected * weights).sum(), [twin, plain.weight, plain.bias]), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-11)

    rate = float(norm.update_rate)
    for running, old, new in zip(
        (norm.running_mean, norm.running_var), before, zip(*statistics, strict=True), strict=True
    ):
        close(running, (1 - rate) * old + rate * torch.stack(new).mean(dim=0))


def test_one_ghost_follows_the_running_statistics_of_batch_norm():
    norm = layer()
    plain = torch_norm(norm, momentum=float(norm.update_rate))
    for seed in range(3):
        norm(batch(16, seed=seed).requires_grad_())
        plain(batch(16, seed=seed))
    assert not norm.running_mean.requires_grad
    assert not norm.running_var.requires_grad
    close(norm.running_mean, plain.running_mean)
    close(norm.running_var, plain.running_var)


def test_ghosts_are_consecutive_and_do_not_see_each_other():
    norm = layer(ghost_size=4)
    x = batch(12)
    changed = x.clone()
    changed[4:8] *= 5.0
    before, after = norm(x), norm(changed)
    close(after[:4], before[:4])
    close(after[8:], before[8:])
    # A ghost that is rescaled comes out the same, were it not for eps.
    torch.testing.assert_close(after[4:8], before[4:8], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("batch_size", "ghost_size", "remedy"),
    [(100, 64, "64 or 128"), (65, 64, "64 or 128"), (130, 64, "128 or 192"), (7, 4, "4 or 8")],
)
def test_batches_that_do_not_divide_are_refused(batch_size, ghost_size, remedy):
    norm = layer(ghost_size=ghost_size)
    with pytest.raises(UserError, match=f"a batch of {batch_size} .* ghost batches of {ghost_size}; .* of {remedy},"):
        norm(batch(batch_size))


def test_other_inputs_that_cannot_be_normalised_are_refused():
    with pytest.raises(UserError, match="ghost_size=0"):
        GhostBatchNorm2d(CHANNELS, ghost_size=0)
    with pytest.raises(UserError, match=r"a batch of 0 .* batch size of 64,"):
        layer()(batch(0))
    with pytest.raises(UserError, match="one value per channel"):
        layer()(batch(1, size=(1, 1)))
    with pytest.raises(UserError, match="one value per channel"):
        layer(ghost_size=1)(batch(3, size=(1, 1)))
    with pytest.raises(UserError, match=r"\(2, 4, 3, 3\) .* over 3 channels"):
        layer()(torch.zeros(2, 4, 3, 3))
    with pytest.raises(UserError, match=r"\(2, 3\)"):
        layer()(torch.zeros(2, 3))


def test_evaluation_uses_the_running_statistics_and_leaves_them_alone():
    norm = layer(ghost_size=4)
    plain = torch_norm(norm, momentum=0.1)
    norm.eval()
    plain.eval()
    state = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    for num in (1, 7):  # no multiple of the ghost size is needed
        close(norm(batch(num)), plain(batch(num)))
    assert all(torch.equal(tensor, state[name]) for name, tensor in norm.state_dict().items())


def test_an_update_rate_of_one_reads_off_the_statistics_of_a_batch():
    norm = layer(ghost_size=4)
    norm.update_rate.fill_(1.0)
    x = batch(12)
    norm(x)
    ghosts = x.view(3, 4, CHANNELS, -1).transpose(1, 2).flatten(2)  # ghost, channel, values
    close(norm.running_mean, ghosts.mean(dim=2).mean(dim=0))
    close(norm.running_var, ghosts.var(dim=2, correction=1).mean(dim=0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("training", [True, False])
def test_half_precision_is_normalised_in_single(dtype, training):
    norm, twin = (layer(ghost_size=4).float().train(training) for _ in range(2))
    x = (batch(8) + 30).to(dtype).requires_grad_()
    wide = x.detach().float().requires_grad_()
    ours, expected = norm(x), twin(wide)
    assert ours.dtype == dtype
    assert torch.equal(ours, expected.to(dtype))
    assert norm.running_mean.dtype == norm.running_var.dtype == torch.float32
    assert torch.equal(norm.running_mean, twin.running_mean)
    assert torch.equal(norm.running_var, twin.running_var)
    weights = batch(8, seed=9).to(dtype)
    mine = torch.autograd.grad((ours * weights).float().sum(), [x, norm.weight])
    theirs = torch.autograd.grad((expected * weights.float()).sum(), [wide, twin.weight])
    assert (mine[0].dtype, mine[1].dtype) == (dtype, torch.float32)
    assert torch.equal(mine[0], theirs[0].to(dtype))
    torch.testing.assert_close(mine[1], theirs[1])


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("training", [True, False])
def test_the_order_in_memory_is_kept(memory_format, training):
    norm = layer(ghost_size=4).train(training)
    x = batch(8).contiguous(memory_format=memory_format)
    ours = norm(x)
    assert ours.is_contiguous(memory_format=memory_format)
    close(ours, layer(ghost_size=4).train(training)(batch(8)))


def test_gradients_equal_differences():
    norm = layer(ghost_size=2)

    def output(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in norm.named_buffers()}
        return functional_call(norm, ({"weight": weight, "bias": bias}, buffers), (x,))

    x = batch(4, size=(2, 1)).requires_grad_()
    assert torch.autograd.gradcheck(output, (x, norm.weight, norm.bias))


# -- as the engines run it --------------------------------------------------------------------------------------


def step(norm: GhostBatchNorm2d):
    """Return (parameters, buffers, x) -> gradients, loss and buffers after the forward pass."""

    def loss(parameters, buffers, x):
        after = {name: buffer.clone() for name, buffer in buffers.items()}
        return functional_call(norm, (parameters, after), (x,)).pow(3).sum(), after

    return grad_and_value(loss, has_aux=True)


def states(norms: list[GhostBatchNorm2d]) -> list[dict[str, Tensor]]:
    return [
        {name: torch.stack([n.state_dict()[name] for n in norms]) for name in names}
        for names in (("weight", "bias"), ("running_mean", "running_var", "update_rate"))
    ]


@pytest.mark.parametrize("traced", [False, True])
def test_a_vectorised_step_equals_a_loop_over_runs(traced):
    norms = [layer(ghost_size=4, seed=seed, update_rate=rate) for seed, rate in enumerate((0.1, 0.5, 1.0))]
    x_M = torch.stack([batch(8, seed=seed) for seed in range(3)])
    function = vmap(step(norms[0]))
    if traced:
        function = make_fx(function)(*states(norms), x_M + 1.0)
    gradients, (losses, after) = function(*states(norms), x_M)
    for place, norm in enumerate(norms):
        loss = norm(x_M[place]).pow(3).sum()
        close(losses[place], loss.detach())
        expected = torch.autograd.grad(loss, [norm.weight, norm.bias])
        torch.testing.assert_close(gradients["weight"][place], expected[0], rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(gradients["bias"][place], expected[1], rtol=1e-11, atol=1e-11)
        for name, buffer in norm.named_buffers():
            close(after[name][place], buffer)


def test_a_traced_step_of_one_run_equals_the_layer():
    norm = layer(ghost_size=4)
    parameters, buffers = ({name: tensor[0] for name, tensor in group.items()} for group in states([norm]))
    program = make_fx(step(norm))(parameters, buffers, batch(8, seed=5))
    gradients, (loss, after) = program(parameters, buffers, batch(8))
    expected = norm(batch(8)).pow(3).sum()
    close(loss, expected.detach())
    weight, bias = torch.autograd.grad(expected, [norm.weight, norm.bias])
    torch.testing.assert_close(gradients["weight"], weight, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(gradients["bias"], bias, rtol=1e-11, atol=1e-11)
    close(after["running_mean"], norm.running_mean)
    close(after["running_var"], norm.running_var)

"""Convolutions of many runs as single operations against PyTorch's own, run by run, and when they are used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn import functional

from isotherm.engine.graph.trace import trace
from isotherm.kernels import availability
from isotherm.kernels.dispatch import by_kernels
from isotherm.kernels.layout import with_channels_last
from isotherm.kernels.ops import convolution as convolution_ops
from isotherm.kernels.ops.convolution import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT

OURS = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
NUM_RUNS = 3


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.fixture
def usable(monkeypatch) -> None:
    """Let the operations be used on a CPU too."""
    monkeypatch.setattr(convolution_ops, "are_usable", lambda _device: True)


# -- the operations -------------------------------------------------------------------------------------------------

# Images (M, B, C, H, W), filters (M, O, C, Y, X), stride, padding.
CASES = [
    ((3, 2, 16, 6, 8), (3, 32, 16, 3, 3), 1, 1),
    ((2, 3, 32, 6, 8), (2, 16, 32, 3, 3), 2, 1),
    ((1, 2, 16, 4, 4), (1, 16, 16, 1, 1), 2, 0),
    ((2, 2, 16, 5, 7), (2, 48, 16, 3, 5), 1, 0),
    ((2, 2, 16, 8, 8), (2, 16, 16, 5, 5), 2, 2),
]


def tensors_of(images: tuple[int, ...], filters: tuple[int, ...], stride: int, padding: int, **options: Any) -> Any:
    """Return images, filters and a gradient of the result."""
    sides = [(images[dim] + 2 * padding - filters[dim]) // stride + 1 for dim in (3, 4)]
    shapes = images, filters, (*images[:2], filters[1], *sides)
    return [with_channels_last(normal(*shape, seed=seed, **options)) for seed, shape in enumerate(shapes)]


def calls_of(x: Tensor, weight: Tensor, dy: Tensor, stride: int, padding: int) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return the three operations with arguments."""
    return [
        (FORWARD, (x, weight, stride, padding)),
        (INPUT_GRADIENT, (dy, weight, None, *x.shape[3:], stride, padding)),
        (WEIGHT_GRADIENT, (dy, x, *weight.shape[3:], stride, padding)),
    ]


def steps_of(tensor: Tensor) -> list[int]:
    """Return the strides of dimensions that have more than one place; the others' mean nothing."""
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_operations_are_pytorchs_convolutions_of_each_run(case):
    *_, stride, padding = case
    x, weight, dy = tensors_of(*case)
    found = [operation(*given) for operation, given in calls_of(x, weight, dy, stride, padding)]
    for run in range(len(x)):
        own_x, own_weight = (t[run].clone().requires_grad_() for t in (x, weight))
        y = functional.conv2d(own_x, own_weight, stride=stride, padding=padding)
        expected = (y.detach(), *torch.autograd.grad(y, [own_x, own_weight], dy[run]))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours[run], theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_operations_keep_what_they_promise(case, dtype):
    tensors = tensors_of(*case, dtype=dtype)
    for operation, given in calls_of(*tensors, *case[2:]):
        found = operation(*given)
        promise = operation(*(t.to("meta") if isinstance(t, Tensor) else t for t in given))
        assert (promise.shape, promise.dtype) == (found.shape, found.dtype)
        assert steps_of(promise) == steps_of(found)
        assert found.movedim(2, -1).is_contiguous()
        # Gradients of filters are not rounded.
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert found.dtype == (wide if operation is WEIGHT_GRADIENT else dtype)


def test_a_gradient_of_images_is_added_to_another():
    case = CASES[1]
    x, weight, dy = tensors_of(*case)
    given = (*x.shape[3:], *case[2:])
    found = INPUT_GRADIENT(dy, weight, x, *given)
    torch.testing.assert_close(found, INPUT_GRADIENT(dy, weight, None, *given) + x)
    assert steps_of(found) == steps_of(INPUT_GRADIENT(*(t.to("meta") for t in (dy, weight, x)), *given))
    assert found.movedim(2, -1).is_contiguous()


def test_the_operations_are_what_pytorch_asks_of_new_ones():
    case = CASES[1]
    for operation, given in calls_of(*tensors_of(*case), *case[2:]):
        torch.library.opcheck(operation, given, test_utils=("test_schema", "test_faketensor"))


def test_gradients_of_filters_in_half_precision_are_summed_unrounded():
    case = CASES[0]
    x, _, dy = tensors_of(*case, dtype=torch.bfloat16)
    given = (*case[1][3:], *case[2:])
    ours, expected = WEIGHT_GRADIENT(dy, x, *given), WEIGHT_GRADIENT(dy.double(), x.double(), *given)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-5)
    assert not torch.equal(ours, ours.bfloat16().float())


def test_what_the_kernels_would_read_wrongly_is_refused():
    x, weight, dy = tensors_of(*CASES[0])
    for given in ((x[0], weight), (x, weight[0]), (x[:2], weight)):
        with pytest.raises(ValueError, match=r"filters of the same number of runs, not \(.*\) and \("):
            FORWARD(*given, 1, 1)
    for given in ((x[:, :, :8], weight), (x, weight.float())):
        with pytest.raises(ValueError, match="images and filters do not match"):
            FORWARD(*given, 1, 1)
    with pytest.raises(ValueError, match="images and filters do not match"):
        INPUT_GRADIENT(x, weight, None, 6, 8, 1, 1)  # 16 channels are those of the images, not of the result
    with pytest.raises(ValueError, match=r"do not match: .* torch\.float64 and torch\.float32"):
        WEIGHT_GRADIENT(dy.float(), x, 3, 3, 1, 1)
    message = r"channels must come last in memory, in multiples of 16; this tensor has shape \(3, 2, 16, 6, 8\)"
    with pytest.raises(ValueError, match=message):
        FORWARD(x.contiguous(), weight, 1, 1)
    with pytest.raises(ValueError, match=r"multiples of 16; .* \(3, 32, 16, 3, 3\) and strides \(4608, 144, 9, 3, 1\)"):
        FORWARD(x, weight.contiguous(), 1, 1)
    odd = tensors_of((3, 2, 24, 6, 8), (3, 32, 24, 3, 3), 1, 1)
    with pytest.raises(ValueError, match=r"in multiples of 16; .* \(3, 2, 24, 6, 8\)"):
        FORWARD(*odd[:2], 1, 1)


def test_gradients_of_other_images_are_refused():
    x, weight, dy = tensors_of(*CASES[0])
    with pytest.raises(ValueError, match=r"a gradient of \(6, 8\) pixels does not match images of \(6, 9\)"):
        INPUT_GRADIENT(dy, weight, None, 6, 9, 1, 1)
    with pytest.raises(ValueError, match=r"filters of \(5, 5\), stride 1 and padding 1"):
        WEIGHT_GRADIENT(dy, x, 5, 5, 1, 1)
    with pytest.raises(ValueError, match=r"a gradient of \(3, 4\) pixels does not match images of \(5, 7\).*stride 2"):
        INPUT_GRADIENT(with_channels_last(dy[:, :, :, :3, :4]), weight, None, 5, 7, 2, 1)


def test_only_images_that_are_alike_are_added():
    x, weight, dy = tensors_of(*CASES[0])
    for other in (x[:, :, :, :5], x.float(), x.contiguous()):
        with pytest.raises(ValueError, match="cannot add images"):
            INPUT_GRADIENT(dy, weight, other, 6, 8, 1, 1)


# -- for which convolutions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "filters", "stride", "padding", "fits"),
    [
        ((64, 16, 32, 32), (64, 16, 3, 3), 1, 1, True),
        ((64, 16, 32, 32), (64, 16, 3, 3), 2, 1, True),
        ((64, 16, 32, 32), (64, 16, 1, 1), 2, 0, True),
        ((64, 3, 224, 224), (64, 3, 7, 7), 2, 3, True),
        ((64, 3, 33, 32), (64, 3, 3, 3), 2, 1, False),  # rows are no multiple of the stride
        ((64, 3, 32, 33), (64, 3, 3, 3), 2, 1, False),
        ((64, 16, 32, 32), (64, 16, 3, 3), 1, 3, False),  # a filter in the padding alone
        ((64, 16, 32, 32), (64, 16, 1, 3), 1, 1, False),
        ((64, 16, 2, 2), (64, 16, 3, 3), 1, 0, False),  # no result
        ((64, 8, 32, 32), (64, 16, 3, 3), 1, 1, False),  # an error, which PyTorch explains
        ((16, 16, 1, 1), (16, 16, 1, 1), 1, 0, True),
        ((24, 16, 1, 1), (16, 16, 1, 1), 1, 0, False),  # tiles of 8 images
        ((1, 16, 3, 3), (16, 16, 3, 3), 1, 1, True),
        ((1, 16, 2, 4), (16, 16, 3, 3), 1, 1, False),
        ((1, 16, 2, 2), (16, 16, 3, 3), 1, 2, False),
        ((0, 16, 8, 8), (16, 16, 3, 3), 1, 1, False),
    ],
    ids=str,
)
def test_sizes_that_the_kernels_are_made_for(images, filters, stride, padding, fits):
    sizes = torch.Size(images), torch.Size(filters)
    assert convolution_ops._sizes_fit(*sizes, stride=stride, padding=padding) == fits


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)], ids=str)
@pytest.mark.parametrize(("has_triton", "is_asked_for"), [(True, True), (True, False), (False, True)])
def test_kernels_are_for_gpus_that_copy_boxes(has_triton, is_asked_for, capability, monkeypatch):
    monkeypatch.setattr(availability, "HAS_TRITON", has_triton)
    monkeypatch.setattr(availability, "ENABLED", is_asked_for)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    expected = has_triton and is_asked_for and capability >= (9, 0)
    assert convolution_ops.are_usable(torch.device("cuda")) == expected
    assert not convolution_ops.are_usable(torch.device("cpu"))


@pytest.mark.parametrize(
    ("layer", "suits"),
    [
        (nn.Conv2d(3, 16, 3, padding=1), True),
        (nn.Conv2d(20, 64, 1, stride=2), True),
        (nn.Conv2d(192, 256, (3, 5), padding=1), True),
        (nn.Linear(48, 48), True),
        (nn.Conv2d(64, 160, 3), False),  # tiles of 32 channels
        (nn.Conv2d(48, 64, 3), False),
        (nn.Conv2d(16, 16, 3, groups=2), False),
        (nn.Conv2d(16, 16, 3, dilation=2), False),
        (nn.Conv2d(16, 16, 3, stride=(1, 2)), False),
        (nn.Conv2d(16, 16, 3, padding=(0, 1)), False),
        (nn.Conv2d(16, 16, 3, padding="same"), False),
        (nn.Conv2d(16, 16, 3, padding=1, padding_mode="circular"), False),
        (nn.Conv1d(16, 16, 3), False),
        (nn.ConvTranspose2d(16, 16, 3), False),
    ],
    ids=str,
)
def test_modules_that_suit_the_kernels(layer, suits):
    module = nn.Sequential(nn.Conv2d(16, 64, 3), nn.Sequential(layer))
    assert convolution_ops.suits(module, torch.device("cpu")) == suits


@pytest.mark.parametrize(("num_channels", "suits"), [(160, True), (224, True), (96, False), (48, False)])
@pytest.mark.parametrize("are_usable", [True, False])
def test_channels_that_suit_where_rows_are_read_once(num_channels, suits, are_usable, monkeypatch):
    """In blocks of 64, of which the last need not be full."""
    by_rows = SimpleNamespace(are_usable=lambda device: are_usable)
    monkeypatch.setattr(convolution_ops, "in_gluon", lambda name: by_rows)
    monkeypatch.setattr(convolution_ops, "are_usable", lambda device: True)
    layers = [nn.Conv2d(num_channels, num_channels, 3, padding=1), nn.Conv2d(num_channels, 64, 1)]
    module = nn.Sequential(nn.Conv2d(3, 16, 1), *layers)
    assert convolution_ops.suits(module, torch.device("cpu")) == (suits and are_usable)
    others = nn.Sequential(*layers, nn.Conv2d(num_channels, num_channels, 3, stride=2, padding=1))
    assert not convolution_ops.suits(others, torch.device("cpu"))  # most do not read rows once
    monkeypatch.setattr(convolution_ops, "are_usable", lambda device: False)
    assert not convolution_ops.suits(module, torch.device("cpu"))


# -- in networks ----------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Convolutions of all kinds; 3 and 20 channels are no multiples of 16."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 20, 3, padding=1)
        self.second = nn.Conv2d(20, 16, 3, stride=2, padding=1)
        self.third = nn.Conv2d(16, 16, 1, bias=False)
        self.last = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.last(self.third(x).mean(dim=(2, 3)))


def runs_of_net() -> tuple[Net, dict[str, Tensor], Tensor, Tensor]:
    """Return a network, parameters of several runs, and a batch for each."""
    torch.manual_seed(0)
    nets = [Net() for _ in range(NUM_RUNS)]
    parameters = {n: torch.stack([dict(net.named_parameters())[n].detach() for net in nets]) for n, _ in _named(nets)}
    y = torch.arange(NUM_RUNS * 8).view(NUM_RUNS, 8) % 5
    return nets[0], parameters, normal(NUM_RUNS, 8, 3, 8, 8, seed=1, dtype=torch.float32), y


def _named(nets: list[Net]) -> list[tuple[str, nn.Parameter]]:
    return list(nets[0].named_parameters())


def loss_of(net: Net, *, is_mixed: bool = True) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_mixed, cache_enabled=False):
            output = functional_call(net, parameters, (x,))
        return functional.cross_entropy(output.float(), y)

    return loss


def run_by_run(net: Net, parameters: dict[str, Tensor], x: Tensor, y: Tensor, **options: Any) -> Any:
    found = [
        grad_and_value(loss_of(net, **options))({n: p[run] for n, p in parameters.items()}, x[run], y[run])
        for run in range(NUM_RUNS)
    ]
    return {n: torch.stack([gradients[n] for gradients, _ in found]) for n in parameters}, torch.stack(
        [value for _, value in found]
    )


def counts_of(function: Callable[..., tuple[Tensor, ...]], *arguments: Tensor) -> tuple[int, ...]:
    """Return how often a function, as it is traced, calls each of our operations, and PyTorch's convolutions."""
    counts = Counter(node.target for node in trace(function, *arguments).graph.nodes)
    aten = torch.ops.aten
    theirs = aten.convolution.default, aten.convolution_backward.default, aten.conv2d.default, aten.conv2d.padding
    return *(counts[operation] for operation in OURS), sum(counts[operation] for operation in theirs)


@pytest.mark.usefixtures("usable")
def test_a_network_of_many_runs_gives_what_each_gives_alone():
    """In bfloat16 as near to float32 as each alone is, whose gradients of filters are rounded at the end.

    A gradient passes a dozen roundings of 2^-9 each, which average out over its values: 2^-6 of its norm is allowed.
    """
    net, *given = runs_of_net()
    gradients, losses = by_kernels(vmap(grad_and_value(loss_of(net))))(*given)
    alone, alone_losses = run_by_run(net, *given)
    exact, exact_losses = run_by_run(net, *given, is_mixed=False)
    torch.testing.assert_close(losses, alone_losses, rtol=2e-3, atol=0)
    torch.testing.assert_close(losses, exact_losses, rtol=2e-3, atol=0)
    for name, expected in alone.items():
        ours = gradients[name]
        assert ours.dtype == torch.float32
        for run in range(NUM_RUNS):
            norm = float(exact[name][run].norm())
            assert float((ours[run] - expected[run]).norm()) < 2**-6 * norm, name
            assert float((ours[run] - exact[name][run]).norm()) < 2**-6 * norm, name
    # Filters' gradients alone go unrounded.
    assert torch.equal(alone["first.weight"], alone["first.weight"].bfloat16().float())
    for name in ("first.weight", "second.weight", "third.weight"):
        assert not torch.equal(gradients[name], gradients[name].bfloat16().float())


@pytest.mark.usefixtures("usable")
@pytest.mark.parametrize("moves", [False, True], ids=["plain filters", "channels last"])
def test_a_traced_step_calls_the_operations_alone(moves):
    net, parameters, x, y = runs_of_net()
    if moves:
        parameters = {n: with_channels_last(p) if p.ndim == 5 else p for n, p in parameters.items()}

    def step(x: Tensor, y: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(parameters, values, strict=True))
        gradients, losses = by_kernels(vmap(grad_and_value(loss_of(net))))(given, x, y)
        return losses, *gradients.values()

    arguments = (x, y, *parameters.values())
    # The first layer's images have no gradient.
    assert counts_of(step, *arguments) == (3, 2, 3, 0)
    # In a trace, sums with biases are rounded otherwise.
    assert_near(trace(step, *arguments)(*arguments), step(*arguments))


def test_a_network_on_a_cpu_is_left_alone():
    net, *given = runs_of_net()
    ours, expected = (change(vmap(grad_and_value(loss_of(net))))(*given) for change in (by_kernels, lambda f: f))
    assert torch.equal(ours[1], expected[1])
    assert all(torch.equal(ours[0][name], gradient) for name, gradient in expected[0].items())


# -- one convolution ------------------------------------------------------------------------------------------------


def in_half(x: Tensor, weight: Tensor, *rest: Any, **settings: Any) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return torch.conv2d(x, weight, *rest, **settings)


def summed(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function that also gives the gradients of its result's sine, of all arguments."""

    def both(*arguments: Tensor) -> tuple[Tensor, ...]:
        places = tuple(range(len(arguments)))
        return function(*arguments), *grad(lambda *given: function(*given).sin().sum(), argnums=places)(*arguments)

    return both


def images_and_filters(
    *, sides: tuple[int, int] = (8, 8), taps: tuple[int, int] = (3, 3), dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Return images and filters of several runs, with sums near one."""
    x, weight = normal(NUM_RUNS, 4, 16, *sides, dtype=dtype), normal(NUM_RUNS, 32, 16, *taps, seed=1, dtype=dtype)
    return x, weight / 12


def assert_near(ours: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Compare in bfloat16: results are rounded by 2^-8 at most, and gradients were made from rounded ones."""
    for mine, theirs in zip(ours, expected, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        assert float((mine - theirs).double().norm()) < 2**-7 * float(theirs.double().norm())


FITTING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "plain": in_half,
    "stride": lambda x, w: in_half(x, w, stride=2, padding=1),
    "pairs": lambda x, w: in_half(x, w, None, (2, 2), (1, 1), (1, 1), 1),
    "by name": lambda x, w: in_half(x, weight=w, bias=None, padding=[1], groups=1),
    "all by name": lambda x, w: in_half(x=x, weight=w, stride=[2, 2]),
    "functional": lambda x, w: functional.conv2d(x.bfloat16(), w.bfloat16(), padding=1).float(),
    "not as wide as aligned": lambda x, w: in_half(x[:, :5], w[:21, :5], padding=1),
    "images of another precision": lambda x, w: in_half(x.bfloat16(), w, padding=1),
    "bias": lambda x, w: in_half(x, w, w[:, 0, 0, 0], padding=1),
}


@pytest.mark.usefixtures("usable")
@pytest.mark.parametrize("name", FITTING)
def test_convolutions_that_fit(name):
    x, weight = images_and_filters()
    function = summed(FITTING[name])
    ours = by_kernels(vmap(function))(x, weight)
    alone = [function(*run) for run in zip(x, weight, strict=True)]
    assert_near(ours, [torch.stack(parts) for parts in zip(*alone, strict=True)])
    # Twice forward: `summed` asks for the result and for the gradients.
    assert counts_of(by_kernels(vmap(function)), x, weight) == (2, 1, 1, 0)


@pytest.mark.usefixtures("usable")
def test_arguments_may_all_have_names():
    x, weight = images_and_filters(dtype=torch.bfloat16)
    ours = by_kernels(vmap(lambda x, w: torch.conv2d(input=x, weight=w, stride=2, padding=1)))(x, weight)
    expected = torch.stack([torch.conv2d(*run, stride=2, padding=1) for run in zip(x, weight, strict=True)])
    assert_near((ours,), (expected,))


@pytest.mark.usefixtures("usable")
@pytest.mark.parametrize("dim", [None, 0, 1, 4])
def test_runs_of_images_may_be_anywhere_or_shared(dim):
    x, weight = images_and_filters()
    function = summed(lambda x, w: in_half(x, w, padding=1))
    given = x[0] if dim is None else x.movedim(0, dim)
    vectorised = by_kernels(vmap(function, in_dims=(dim, 0)))
    assert counts_of(vectorised, given, weight) == (2, 1, 1, 0)
    seen = [x[0]] * NUM_RUNS if dim is None else x
    alone = [function(*run) for run in zip(seen, weight, strict=True)]
    assert_near(vectorised(given, weight), [torch.stack(parts) for parts in zip(*alone, strict=True)])


def of_double(x: Tensor, weight: Tensor) -> Tensor:
    return in_half(x.double(), weight.double())


def in_float16(x: Tensor, weight: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.float16):
        return torch.conv2d(x, weight)


LEFT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dilation": lambda x, w: in_half(x, w, dilation=2),
    "groups": lambda x, w: in_half(x, w[:, :8], groups=2),
    "padding 'same'": lambda x, w: in_half(x, w, padding="same"),
    "padding 'valid'": lambda x, w: in_half(x, w, padding="valid"),
    "unequal strides": lambda x, w: in_half(x, w, stride=(1, 2)),
    "unequal padding": lambda x, w: in_half(x, w, padding=(0, 1)),
    "no multiple of the stride": lambda x, w: in_half(x, w, stride=3, padding=1),
    "only padding": lambda x, w: in_half(x, w, padding=3),
    "full precision": lambda x, w: torch.conv2d(x, w, padding=1),
    "double precision": of_double,
    "another half precision": in_float16,
    "one image": lambda x, w: in_half(x[0], w, padding=1),
}


@pytest.mark.usefixtures("usable")
@pytest.mark.parametrize("name", LEFT)
def test_convolutions_that_do_not_fit_are_left_to_pytorch(name):
    given = images_and_filters()
    function = summed(LEFT[name])
    plain, ours = vmap(function), by_kernels(vmap(function))
    *counts, num_theirs = counts_of(ours, *given)
    assert counts == [0, 0, 0]
    assert num_theirs
    for mine, theirs in zip(ours(*given), plain(*given), strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


@pytest.mark.usefixtures("usable")
def test_without_runs_or_with_runs_of_runs_it_is_left_to_pytorch():
    x, weight = images_and_filters()
    function = summed(lambda x, w: in_half(x, w, padding=1))
    twice = [torch.stack([t, 2 * t]) for t in (x, weight)]
    cases = [
        (function, (x[0], weight[0])),
        (vmap(function, in_dims=(0, None)), (x, weight[0])),  # filters of all runs
        (vmap(function, in_dims=(0, 1)), (x, weight.movedim(0, 1))),
        (vmap(vmap(function)), twice),
    ]
    for plain, given in cases:
        ours = by_kernels(plain)
        assert counts_of(ours, *given)[:3] == (0, 0, 0)
        for mine, theirs in zip(ours(*given), plain(*given), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.usefixtures("usable")
def test_a_mode_ends_with_its_function():
    x, weight = images_and_filters()
    function = vmap(lambda x, w: in_half(x, w, padding=1))

    def one_after_another(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return by_kernels(function)(x, weight), function(x, weight)

    assert counts_of(one_after_another, x, weight) == (1, 0, 0, 1)


@pytest.mark.usefixtures("usable")
def test_what_is_wrong_is_said_by_pytorch():
    x, weight = images_and_filters()
    with pytest.raises(RuntimeError, match="expected input"):
        by_kernels(vmap(in_half))(x[:, :, :8], weight)


@pytest.mark.usefixtures("usable")
def test_a_second_derivative_is_refused():
    x, weight = images_and_filters()

    def squared_gradient(weight: Tensor, x: Tensor) -> Tensor:
        return grad(lambda w: in_half(x, w).sin().sum())(weight).pow(2).sum()

    with pytest.raises(RuntimeError, match="no second derivative; set ISOTHERM_KERNELS=0"):
        by_kernels(vmap(grad(squared_gradient)))(weight, x)

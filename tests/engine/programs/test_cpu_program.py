"""A program on fixed memory against the plain traced one: the same operations, so the same bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, grad_and_value, vmap
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from isotherm.engine.graph.trace import trace
from isotherm.engine.programs.cpu import PreallocatedProgram

_aten = torch.ops.aten
M, B = 3, 4  # runs, batch
LARGE = 5  # values, against one per run or example: the smallest tensor whose memory is followed


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class Fixed:
    """A function as a program on fixed memory, to be called with new values."""

    def __init__(self, function, *arguments: Tensor) -> None:
        self.arguments = [argument.clone() for argument in arguments]
        self.program = PreallocatedProgram(trace(function, *arguments), self.arguments)

    def __call__(self, *values: Tensor) -> tuple[Tensor, ...]:
        for own, new in zip(self.arguments, values, strict=True):
            own.copy_(new)
        return self.program()


class Watch(TorchDispatchMode):
    """Keep every tensor that an operation returns, so that no two of them can share memory by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.kept: list[Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append(func.overloadpacket.__name__)
        self.kept += [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        return result


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def memory_of_calls(program, arguments: list[Tensor], num_calls: int = 1) -> set[int]:
    """Return where calls put the values they compute."""
    with Watch() as watch:
        for _ in range(num_calls):
            program()
    made = {address(tensor) for tensor in watch.kept if tensor.numel() >= LARGE}
    return made - {address(argument) for argument in arguments}


def operations(program) -> list[str]:
    """Return the operations that a call makes."""
    with Watch() as watch:
        program()
    return watch.calls


def changed(arguments, scale: float) -> list[Tensor]:
    """Return other values of the same kinds."""
    return [a * scale if a.is_floating_point() else a.flip(0) if a.ndim and scale < 0 else a for a in arguments]


def check(function, *arguments: Tensor) -> None:
    """Compare with the plain program in several calls, each with other values."""
    plain = trace(function, *arguments)
    ours = Fixed(function, *arguments)
    for scale in (1.0, -0.5, 2.0, 1.0):
        values = changed(arguments, scale)
        expected = [tensor.clone() for tensor in plain(*values)]
        found = ours(*values)
        assert isinstance(found, tuple)
        for mine, theirs in zip(found, expected, strict=True):
            assert mine.dtype == theirs.dtype
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
        for own, value in zip(ours.arguments, values, strict=True):
            assert torch.equal(own, value)  # the program writes nothing into its arguments


X, Y = random(B, 5), random(B, 5, seed=1)
SQUARE = random(4, 4, seed=2)
LABELS = torch.tensor([2, 0, 4, 4])
HELD = random(5, seed=3)
SEQUENCES = (random(2, 3, 5), random(5, 4, seed=1), random(5, 4, seed=2))


# -- functions -----------------------------------------------------------------------------------------------------


def chain(x: Tensor) -> tuple[Tensor]:
    for _ in range(6):
        x = torch.tanh(x + 0.5)
    return (x,)


def matmul(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return torch.mm(x, w.t()), torch.mm(x.t(), w)


def batched_matmuls(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    hidden = vmap(functional.linear)(x, w, b)
    return torch.bmm(hidden.transpose(1, 2), x), hidden


def relus(x: Tensor) -> tuple[Tensor, ...]:
    return functional.relu(x), functional.relu(functional.relu(-x) - 0.5)


def two_layers(w: Tensor, v: Tensor, b: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """The step of a classifier: losses and gradients."""

    def loss(w: Tensor, v: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(functional.linear(functional.relu(x @ w), v, b), y)

    gradients, losses = vmap(grad_and_value(loss, argnums=(0, 1, 2)))(w, v, b, x, y)
    return losses, *gradients


def softmaxes(x: Tensor) -> tuple[Tensor, ...]:
    return torch.softmax(x, 1), torch.log_softmax(x, 0), torch.logsumexp(x, 1)


def views(x: Tensor) -> tuple[Tensor, ...]:
    made = torch.exp(x)
    again = torch.sin(made.view(-1)).view(2, 10).unsqueeze(0)
    return made.t() + 1.0, again.expand(3, 2, 10) * 2.0, made[1:3, ::2] - made[0, 1]


def reshapes(x: Tensor) -> tuple[Tensor, ...]:
    made = torch.exp(x)
    return made.t().reshape(-1) * 2.0, made.reshape(-1) + made.t().reshape(-1)


def reshapes_kept_for_later(x: Tensor) -> tuple[Tensor]:
    """A copy of what is overwritten soon, and a view of it that must not be."""
    made = torch.exp(x)
    copied, same = made.t().reshape(5, B), made.reshape(2, 10)
    other = torch.sin(torch.cos(x))
    return (copied.t() * other + same.view(B, 5),)


def views_of_times_one(x: Tensor) -> tuple[Tensor, ...]:
    """The tracing turns these views into reshapes: of an argument and of a value, with a copy and without."""
    made = torch.exp(x)
    copies = [(t[:, :1].expand(B, 5) * 1.0).view(-1) for t in (x, made)]
    same = [(t * 1.0).view(-1) for t in (x, made)]
    other = torch.sin(torch.cos(x)).view(-1)
    return copies[0] + same[1], copies[1] * other, same[0] - other, same[1]


def transposed_memory(x: Tensor) -> tuple[Tensor, ...]:
    """Values laid out by columns, after ones of the same shape laid out by rows were given back."""
    rows = torch.cos(torch.exp(x))
    columns = torch.sin(rows.t())  # 4 × 4 too, other strides
    return columns.t().view(-1) * 2.0, columns.t().reshape(-1) + rows.sum()


def constants(x: Tensor) -> tuple[Tensor, ...]:
    steps = torch.arange(5, dtype=x.dtype) * 2.0 + 1.0
    eye, zeros = torch.eye(B, dtype=x.dtype), torch.zeros(B, 5, dtype=x.dtype)
    return x * steps, eye @ x, zeros + x.sum(), torch.full((2,), 3.0) + 1.0


def filled_alike(x: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.ones_like(x) * x,
        torch.zeros_like(x) + x.sum(),
        torch.full_like(x, 3.0) - x,
        torch.full_like(x, 7, dtype=torch.int64) + (x > 0),
        x.new_zeros(B, 1) + x,
        x.new_ones(5) * x.mean(),
        x.new_full((2, 1), 4.0) * x[0],
        torch.ones_like(x).cumsum(0) * x,
    )


def pieces_of_constants(x: Tensor) -> tuple[Tensor, ...]:
    low, high = torch.arange(10, dtype=x.dtype).view(2, 5).unbind(0)
    largest, index = torch.max(torch.arange(20, dtype=x.dtype).view(B, 5) % 7, dim=1)
    return x * low + high, largest + x[:, 0], index + (x[:, 0] > 0)


def gathers(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    picked = torch.exp(x).gather(1, index.unsqueeze(1))
    spread = torch.zeros_like(x).scatter_add(1, index.unsqueeze(1), picked)
    marked = spread.scatter(1, index.unsqueeze(1), 9.0)
    return picked, spread * 2.0, torch.sin(x)[index % B], torch.exp(x).index_select(1, index), marked


def reductions(x: Tensor) -> tuple[Tensor, ...]:
    made = torch.exp(x)
    return (
        made.sum(),
        made.sum(0),
        made.mean(1, keepdim=True),
        made.mean(),
        made.amax(1),
        made.std(),
        made.prod(0),
        made.norm(dim=1),
        made.cumsum(1),
        *torch.max(made, dim=0),
        *torch.topk(made, 2, dim=1),
    )


def intermediate_and_later(x: Tensor) -> tuple[Tensor, ...]:
    made = torch.exp(x)
    return made, torch.sin(torch.cos(made)), torch.tanh(made)


def view_of_an_intermediate(x: Tensor) -> tuple[Tensor, ...]:
    made = torch.exp(x)
    later = torch.sin(torch.cos(torch.tanh(made)))
    return made.t()[1:].unsqueeze(0), later


def shared_outputs(x: Tensor) -> tuple[Tensor, ...]:
    made = torch.exp(x)
    torch.sin(made)
    return made, made.view(-1), made, made.t()


def arguments_as_outputs(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x, torch.exp(y), y.t(), x.view(-1)[3:]


def whole_numbers(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    positive = x > 0
    counts = positive.long().sum(1) * 3 - index
    return (
        positive,
        counts,
        torch.where(positive & ~(x > 1), x, -x),
        x.argmax(1) == index,
        index * 2.5,
        positive + 1,
        index // 2,
        index % 3,
        positive.any(1) | positive.all(1),
        torch.div(x, 0.3, rounding_mode="floor"),
        counts.float() / 2,
    )


def mixed_types(x: Tensor) -> tuple[Tensor, ...]:
    """Results of one shape and several types, none of which may end in another's memory."""
    single = torch.exp(x.float())
    half = torch.sin(single.bfloat16())
    return torch.exp(x) + 1, torch.exp(single) * 2, torch.exp(half) + 0.1, torch.exp(x) * single


def long_lives(x: Tensor) -> tuple[Tensor]:
    first, second = torch.exp(x), torch.sin(x)
    middle = torch.mm(first, second.t())
    for _ in range(5):
        middle = torch.tanh(middle) + 0.1
    return (torch.mm(middle, second) * first + x,)


def used_twice_by_one(x: Tensor) -> tuple[Tensor]:
    made = torch.exp(x)
    return (made * made + made,)


def only_views(x: Tensor) -> tuple[Tensor, ...]:
    return x.t(), x[0]


def without_a_variant_that_writes(x: Tensor) -> tuple[Tensor, ...]:
    copy = x.clone()
    turned = torch.flip(copy, (0,)).roll(1, 1)
    padded = functional.pad(turned, (1, 0))
    return copy.float(), turned, torch.exp(padded), torch.exp(copy).flip(1).t() + 1.0


def several_results_of_one_operation(x: Tensor) -> tuple[Tensor, ...]:
    normed = functional.layer_norm(torch.exp(x), (5,))
    ordered, order = torch.sort(normed, dim=1)
    left, right = torch.exp(ordered).split((2, 3), dim=1)
    other = torch.sin(torch.cos(ordered))
    return left.sum() + right, order, other, torch.cat([right, left, other], dim=1), torch.stack([left, left + 1.0])


def convolutions(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    def loss(w: Tensor, x: Tensor) -> Tensor:
        hidden = functional.max_pool2d(functional.relu(functional.conv2d(x, w, padding=1)), 2)
        return functional.avg_pool2d(hidden, 2).square().sum()

    return grad(loss, argnums=(0, 1))(w, x)


def nothing_in_it(x: Tensor) -> tuple[Tensor, ...]:
    return torch.exp(x[:0]), torch.exp(x).sum() + torch.exp(x[:0]).sum()


def scaled_arguments(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Operations called by other names keep their further arguments."""
    made, other = torch.exp(x), torch.exp(y)
    square = torch.bmm(made.view(2, 2, 5), other.view(2, 2, 5).transpose(1, 2))
    return (
        torch.add(made, other, alpha=2),
        torch.sub(made, other, alpha=3),
        torch.sub(1.0, made),
        torch.baddbmm(square, square, square, beta=0.5, alpha=2.0),
        torch.sum(made, dim=(0, 1), keepdim=True, dtype=torch.float32),
        torch.mean(made, dim=-1, dtype=torch.float32),
        torch.cat([made, other], dim=-1),
        torch.div(2.0, made),
        torch.clamp_min(made, 1.5),
        torch.clamp(made, 0.5, 1.5),
        -made,
    )


def bias_free_layers(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor]:
    """A matrix times a batch of sequences leaves its result through `_unsafe_view`, which does not say it is a view."""
    one, other = torch.matmul(x, w), torch.matmul(x, v)
    return (torch.sigmoid(one) * other + one,)


def attention(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    def loss(w: Tensor, v: Tensor) -> Tensor:
        query, key, value = x @ w, x @ v, x @ (w + v)
        return (torch.softmax(query @ key.transpose(1, 2), dim=-1) @ value).square().sum()

    gradients, value = grad_and_value(loss, argnums=(0, 1))(w, v)
    return value, *gradients


def unsafe_pieces(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """They do not say that they are views either."""
    one, other = _aten.unsafe_split.Tensor(torch.matmul(x[0], w), 2, 1)
    three = _aten.unsafe_split_with_sizes.default(torch.matmul(x[1], v), [1, 2, 1], 1)
    return torch.exp(torch.tanh(torch.matmul(x[0], v))).sum() + one * other, three[1] * three[2] + one


def filled_like_transposed(x: Tensor) -> tuple[Tensor, ...]:
    """What is like a transposed tensor is laid out as that is."""
    return torch.zeros_like(x.t()).t().view(-1) + x.view(-1), (torch.ones_like(x.t()).t() * 2.0).view(-1) - x.view(-1)


def held_tensors(x: Tensor) -> tuple[Tensor, ...]:
    """Tensors that belong to the function."""
    return x * HELD + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), torch.exp(HELD).view(5, 1) + 1.0, HELD[1:]


def gradient_of_a_linear_loss(x: Tensor) -> tuple[Tensor, ...]:
    """It is constant."""
    return grad(lambda w: (w * torch.arange(5)).sum())(x), x + 1.0


CASES = {
    chain: (X,),
    matmul: (X, Y),
    batched_matmuls: (random(M, B, 5), random(M, 2, 5), random(M, 2)),
    relus: (X,),
    two_layers: (random(M, 5, 6), random(M, 5, 6), random(M, 5), random(M, B, 5), LABELS.expand(M, B).clone()),
    softmaxes: (X,),
    views: (X,),
    reshapes: (X,),
    reshapes_kept_for_later: (X,),
    views_of_times_one: (X,),
    transposed_memory: (SQUARE,),
    constants: (X,),
    filled_alike: (X,),
    pieces_of_constants: (X,),
    gathers: (X, LABELS),
    reductions: (X,),
    intermediate_and_later: (X,),
    view_of_an_intermediate: (X,),
    shared_outputs: (X,),
    arguments_as_outputs: (X, Y),
    whole_numbers: (X, LABELS),
    mixed_types: (X,),
    long_lives: (X,),
    used_twice_by_one: (X,),
    only_views: (X,),
    without_a_variant_that_writes: (X,),
    several_results_of_one_operation: (X,),
    convolutions: (random(2, 3, 8, 8), random(4, 3, 3, 3)),
    nothing_in_it: (X,),
    scaled_arguments: (X, Y),
    bias_free_layers: SEQUENCES,
    attention: SEQUENCES,
    unsafe_pieces: SEQUENCES,
    filled_like_transposed: (X,),
    held_tensors: (X,),
    gradient_of_a_linear_loss: (X,),
}


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_equals_the_plain_program(function):
    check(function, *CASES[function])


def test_arguments_may_be_laid_out_in_any_way():
    wide = random(5, 2 * B)
    check(lambda x, y: (torch.exp(x) @ y, x.t() + 1.0), wide.t()[::2], wide[:, 1::2])


def test_not_a_number_passes_the_rectifier():
    values = torch.tensor([float("nan"), -float("inf"), -0.0, 2.0])
    [found] = Fixed(lambda x: (functional.relu(x),), values)(values)
    assert found[0].isnan()
    assert found[1:].tolist() == [0.0, 0.0, 2.0]


# -- memory --------------------------------------------------------------------------------------------------------


def test_results_stay_where_they_are_and_are_overwritten():
    ours = Fixed(two_layers, *CASES[two_layers])
    first = ours(*CASES[two_layers])
    kept = [tensor.clone() for tensor in first]
    second = ours(*changed(CASES[two_layers], 0.5))
    assert [tensor.data_ptr() for tensor in first] == [tensor.data_ptr() for tensor in second]
    for old, new, before in zip(first, second, kept, strict=True):
        assert torch.equal(old, new)
        assert not torch.equal(old, before)


def test_arguments_are_read_where_they_lie():
    x = X.clone()
    program = PreallocatedProgram(trace(lambda x: (torch.exp(x.t()),), x), [x])
    for value in (1.0, 2.0):
        x.fill_(value)
        [found] = program()
        assert torch.equal(found, torch.full((5, B), value, dtype=x.dtype).exp())


@pytest.mark.parametrize("function", [chain, matmul, batched_matmuls, two_layers, long_lives, scaled_arguments])
def test_later_calls_take_no_new_memory(function):
    arguments = CASES[function]
    ours = Fixed(function, *arguments)
    once = memory_of_calls(ours.program, ours.arguments)
    assert memory_of_calls(ours.program, ours.arguments, num_calls=3) == once
    plain = trace(function, *arguments)
    fresh = memory_of_calls(lambda: plain(*arguments), arguments, num_calls=3)
    assert len(fresh) >= 3 * len(once)  # the watch sees what the plain program takes


def test_the_allocator_is_asked_for_nothing_large():
    arguments = (random(2, 64, 64), random(2, 64, 64), random(2, 64), random(2, 64, 64), LABELS.repeat(2, 16))
    ours = Fixed(two_layers, *arguments)
    plain = trace(two_layers, *arguments)
    least = random(2, 64, 64).nbytes
    assert largest_allocation(lambda: plain(*arguments)) >= least
    assert largest_allocation(ours.program) < least


def largest_allocation(program) -> int:
    program()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        program()
    events = profile.profiler.kineto_results.events()
    return max((event.nbytes() for event in events if event.name() == "[memory]"), default=0)


def test_values_that_are_needed_no_more_lend_their_memory():
    def straight(x: Tensor) -> tuple[Tensor]:
        for _ in range(8):
            x = torch.tanh(x)
        return (x,)

    def remembering(x: Tensor) -> tuple[Tensor]:
        first = torch.exp(x)
        return (straight(first)[0] + first,)

    for function, num in ((straight, 2), (remembering, 3)):
        ours = Fixed(function, X)
        assert len(memory_of_calls(ours.program, ours.arguments)) == num


def test_a_view_keeps_its_memory():
    def function(x: Tensor) -> tuple[Tensor]:
        made = torch.exp(x).t().unsqueeze(0)[:, 1:]
        other = torch.tanh(torch.tanh(torch.tanh(x)))
        return (other.sum() * made,)

    check(function, X)
    ours = Fixed(function, X)
    assert len({address(t) for t in tensors_of_calls(ours.program) if t.shape == X.shape}) == 3


def tensors_of_calls(program) -> list[Tensor]:
    with Watch() as watch:
        program()
    return watch.kept


def test_results_share_no_memory_with_each_other():
    def function(x: Tensor) -> tuple[Tensor, ...]:
        first = torch.tanh(torch.sin(x))
        second = torch.tanh(torch.exp(first))
        return first, second, torch.cos(torch.cos(second)), torch.tanh(torch.tanh(x))

    found = Fixed(function, X)(X)
    assert len({address(tensor) for tensor in found}) == 4


def test_other_kinds_of_tensors_have_memory_of_their_own():
    ours = Fixed(mixed_types, X)
    ours(X)
    kinds: dict[int, set] = {}
    for tensor in tensors_of_calls(ours.program):
        kinds.setdefault(address(tensor), set()).add((tensor.dtype, tensor.numel()))
    assert all(len(kind) == 1 for kind in kinds.values())


# -- what is computed once -----------------------------------------------------------------------------------------


def test_what_does_not_depend_on_the_arguments_is_computed_once():
    def function(x: Tensor) -> tuple[Tensor, ...]:
        steps = torch.arange(5, dtype=x.dtype).exp() * 2.0
        return x * steps.view(1, 5), torch.full_like(x, 2.0).sqrt() + x

    assert operations(Fixed(function, X).program) == ["mul", "add"]


def test_views_of_fixed_memory_are_made_once():
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return (torch.exp(x.t()[1:]).t().view(-1).unsqueeze(0) + 1.0,)

    assert operations(Fixed(function, X[:, 1:]).program) == ["exp", "add"]
    assert operations(Fixed(lambda x: (torch.exp((x * 1.0).view(-1)),), X).program) == ["exp"]
    assert operations(Fixed(lambda x, w, _: (torch.exp(x @ w),), *SEQUENCES).program) == ["mm", "exp"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (torch.ones_like(x) * x,),
        lambda x: (torch.zeros_like(x) + torch.exp(x),),
        lambda x: (torch.arange(5) + x,),
        lambda x: (torch.zeros(B, 5, dtype=x.dtype).scatter_add(1, (x > 0).long(), x),),
        lambda x: (torch.where(torch.ones_like(x, dtype=torch.bool), x, 0.0),),
        lambda x: (torch.stack([torch.ones_like(x), x]).prod(0),),
    ],
)
def test_what_depends_on_the_arguments_is_computed_every_time(function):
    ours = Fixed(function, X)
    for values in (X, Y, X):
        assert torch.equal(ours(values)[0], function(values)[0])


def test_a_result_may_depend_on_no_argument():
    ours = Fixed(lambda x: (torch.arange(3) * 2, x + 1.0, torch.ones_like(x)), X)
    for values in (X, Y):
        steps, more, ones = ours(values)
        assert steps.tolist() == [0, 2, 4]
        assert torch.equal(more, values + 1.0)
        assert torch.equal(ones, torch.ones(B, 5, dtype=X.dtype))


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand(B, 5, dtype=x.dtype),
        lambda x: torch.randn_like(x),
        lambda x: torch.bernoulli(torch.full((B, 5), 0.5, dtype=x.dtype)),
        lambda x: torch.randint(0, 1000, (B, 5)).to(x.dtype),
        lambda x: torch.randperm(B * 5).view(B, 5).to(x.dtype),
        lambda x: functional.dropout(torch.ones_like(x), 0.5),
        lambda x: torch.normal(torch.zeros(B, 5, dtype=x.dtype), 1.0),
    ],
    ids=["rand", "randn_like", "bernoulli", "randint", "randperm", "dropout", "normal"],
)
def test_random_numbers_are_drawn_in_every_call(draw):
    def function(x: Tensor) -> tuple[Tensor, ...]:
        drawn = draw(x)
        return drawn * 2.0, torch.exp(drawn) + x

    with torch.random.fork_rng(devices=[]):
        plain, ours = trace(function, X), Fixed(function, X)
        seen = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            expected = plain(X)
            torch.manual_seed(seed)
            found = ours(X)
            for mine, theirs in zip(found, expected, strict=True):
                assert torch.equal(mine, theirs)
            seen.append(found[0].clone())
    assert not torch.equal(*seen)


# -- any program ---------------------------------------------------------------------------------------------------

SIDE = 3
UNARY = [
    torch.tanh,
    torch.sigmoid,
    functional.relu,
    torch.neg,
    lambda a: a * 1.5,
    lambda a: a.t(),
    lambda a: a.t().reshape(-1).view(SIDE, SIDE),
    lambda a: a.reshape(1, -1).reshape(SIDE, SIDE),
    lambda a: a.sum(0, keepdim=True).expand(SIDE, SIDE),
    lambda a: a[1] - a[:, :1],
    lambda a: a.clone(),
    lambda a: torch.softmax(a, 1),
    lambda a: a.float().double(),
    lambda a: torch.ones_like(a) * 0.5,
    lambda a: torch.sort(a, dim=1)[0],
]
BINARY = [
    torch.add,
    torch.mul,
    torch.sub,
    torch.mm,
    lambda a, b: torch.mm(a.t(), b),
    lambda a, b: torch.bmm(a.unsqueeze(0), b.t().unsqueeze(0)).squeeze(0),
    lambda a, b: torch.where(a > b, a, b.t()),
    lambda a, b: a.gather(1, (b > 0).long()),
    lambda a, b: torch.cat([a[:1], b[1:]]),
    lambda a, b: torch.stack([a, b]).mean(0),
]
LINES = st.lists(
    st.tuples(st.integers(0, len(UNARY) + len(BINARY) - 1), st.integers(0, 40), st.integers(0, 40)),
    min_size=1,
    max_size=25,
)


@given(lines=LINES, outputs=st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_any_program_equals_the_plain_one(lines, outputs):
    """Every line takes earlier values; which stay alive, and for how long, is up to chance."""

    def function(*arguments: Tensor) -> tuple[Tensor, ...]:
        values = list(arguments)
        for which, i, j in lines:
            one, other = values[-1 - i % len(values)], values[-1 - j % len(values)]
            values.append(UNARY[which](one) if which < len(UNARY) else BINARY[which - len(UNARY)](one, other))
        return tuple(values[-1 - index % len(values)] for index in outputs)

    check(function, *(random(SIDE, SIDE, seed=seed) for seed in range(3)))

"""The lists of passes, and whole steps through them.

On a CPU nothing becomes faster by the passes for a GPU, but the numbers are the same.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import typing
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from helpers_graph import check_equal, is_aligned, labels, normal, operand_sizes, targets, whole
from isotherm.engine import graph as graph_room
from isotherm.engine.graph import pipeline
from isotherm.engine.graph.pipeline import rewrite_for_cpu, rewrite_for_gpu
from isotherm.engine.graph.step_graph import StepGraph
from isotherm.engine.graph.trace import trace
from isotherm.models.lstm import LSTMLanguageModel
from isotherm.tasks.losses import cross_entropy

_aten = torch.ops.aten
LISTS = {
    "CPU": pipeline.CPU_PASSES,
    "GPU": pipeline.GPU_PASSES,
    "CPU, keeping layout": pipeline.CPU_PASSES_KEEPING_LAYOUT,
    "GPU, keeping layout": pipeline.GPU_PASSES_KEEPING_LAYOUT,
}
LISTED = {each for passes in LISTS.values() for each in passes}
ENGINE = Path(graph_room.__file__).parents[1]

# -- the lists -----------------------------------------------------------------------------------------------------


def passes_of(name: str) -> list[pipeline.Pass]:
    """Return the functions of a module of the room that have the signature of a pass."""
    module = importlib.import_module(f"{graph_room.__name__}.{name}")
    functions = [
        function
        for key, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not key.startswith("_")
    ]
    return [f for f in functions if typing.get_type_hints(f) == {"step": StepGraph, "return": type(None)}]


MODULES = [module.name for module in pkgutil.iter_modules(graph_room.__path__)]
PASSES = {name: passes_of(name) for name in MODULES if passes_of(name)}


def test_every_pass_is_in_a_list_and_every_list_has_passes_only() -> None:
    assert {each for passes in PASSES.values() for each in passes} == LISTED
    assert len(PASSES) > 15


@pytest.mark.parametrize("name", PASSES)
def test_a_file_has_one_pass_which_says_what_it_expects_and_leaves(name: str) -> None:
    (only,) = PASSES[name]
    text = inspect.getdoc(only) or ""
    assert "\nExpects: " in text
    assert "\nLeaves: " in text


@pytest.mark.parametrize("name", PASSES)
def test_passes_come_after_those_whose_work_they_expect(name: str) -> None:
    """What a pass expects names operations, or files whose passes come before it in every list that has both."""
    (only,) = PASSES[name]
    expected = (inspect.getdoc(only) or "").partition("Expects: ")[2].partition("Leaves: ")[0]
    for other in re.findall(r"`(\w+)`", expected):
        if hasattr(_aten, other):
            continue
        (before,) = PASSES[other]
        for passes in LISTS.values():
            if before in passes and only in passes:
                assert passes.index(before) < passes.index(only), f"{other} comes before {name}"


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_has_a_test_file(name: str) -> None:
    assert (Path(__file__).parent / f"test_{name}.py").exists()


def test_passes_are_ordered_by_the_lists_alone() -> None:
    """Nothing but the pipeline imports a pass, so nothing else can run one."""
    names = {each.__name__ for each in LISTED}
    for path in ENGINE.rglob("*.py"):
        if path.name == "pipeline.py":
            continue
        imported = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert not imported & names, path


def test_no_pass_leaves_notes_on_nodes() -> None:
    """All that nodes carry is the value that the trace recorded."""
    for path in (ENGINE / "graph").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "meta":
                assert ast.unparse(node.slice) == "'val'", path


def test_arguments_are_not_read_by_number() -> None:
    """They have names: `operands`, `source_of`."""
    for path in (ENGINE / "graph").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
                assert node.value.attr != "args", f"{path.name}: {ast.unparse(node)}"


@pytest.mark.parametrize("name", LISTS)
def test_lists_repeat_nothing_but_the_removal_of_dead_code(name: str) -> None:
    others = [each for each in LISTS[name] if each is not pipeline.drop_dead_code]
    assert len(set(others)) == len(others)


def test_passes_that_need_kernels_are_passes_for_a_gpu() -> None:
    assert set(pipeline.GPU_PASSES) > pipeline.NEED_KERNELS


def test_passes_run_in_the_order_of_their_list(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    for name in ("CPU_PASSES", "GPU_PASSES"):
        monkeypatch.setattr(pipeline, name, [lambda _, k=(name, k): ran.append(k) for k in range(3)])
    program = trace(lambda x: (x + 1,), torch.ones(2))
    rewrite_for_cpu(program)
    rewrite_for_gpu(program)
    assert ran == [(name, k) for name in ("CPU_PASSES", "GPU_PASSES") for k in range(3)]


@pytest.mark.parametrize("has_kernels", [True, False])
def test_passes_that_need_kernels_run_where_there_are_kernels(
    has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    passes = [lambda _: ran.append("first"), lambda _: ran.append("second")]
    monkeypatch.setattr(pipeline, "GPU_PASSES", passes)
    monkeypatch.setattr(pipeline, "NEED_KERNELS", {passes[1]})
    rewrite_for_gpu(trace(lambda x: (x + 1,), torch.ones(2)), has_kernels=has_kernels)
    assert ran == ["first", "second"][: 1 + has_kernels]


def test_a_step_that_counts_on_its_layout_has_a_list_of_its_own() -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor]:
        return (torch.bmm(x, w).add(b).as_strided((3, 2), (7, 1), 2),)

    arguments = whole(2, 3, 5), whole(2, 5, 7, seed=1), whole(2, 1, 7, seed=2)
    program = check_equal(function, *arguments)
    assert targets(program) == {_aten.baddbmm.default: 1, _aten.as_strided.default: 1}


# -- whole steps ---------------------------------------------------------------------------------------------------


def is_of_ones(matmul: fx.Node) -> bool:
    left = matmul.args[0]
    return any(source.target is _aten.full.default for source in (left, *left.all_input_nodes))


def step_of(module: nn.Module, loss):
    """Return losses and gradients of several runs in mixed precision as a function of tensors, and their parameters."""
    names = [name for name, _ in module.named_parameters()]
    parameters = [
        torch.stack([p.detach() + 0.1 * normal(*p.shape, seed=run) for run in range(3)]) for p in module.parameters()
    ]

    def of_run(parameters: tuple[Tensor, ...], x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            output = functional_call(module, dict(zip(names, parameters, strict=True)), loss[0](x))
        return loss[1](output, y)

    def step(*tensors: Tensor) -> tuple[Tensor, ...]:
        *parameters, x, y = tensors
        gradients, losses = vmap(grad_and_value(of_run))(tuple(parameters), x, y)
        return losses, *gradients

    return step, parameters


def mlp_step():
    module = nn.Sequential(nn.Linear(13, 21), nn.ReLU(), nn.Linear(21, 11), nn.Tanh(), nn.Linear(11, 5))
    step, parameters = step_of(module, (lambda x: (x,), lambda output, y: cross_entropy(output.float(), y)))
    return step, (*parameters, normal(3, 6, 13), labels(3, 6, below=5))


def lstm_step():
    module = LSTMLanguageModel(vocabulary=19, width=11, num_layers=2, drop_probability=0.0)
    state = module.initial_state(3)
    step, parameters = step_of(
        module, (lambda x: (x, torch.zeros_like(state)), lambda output, y: cross_entropy(output[0].float(), y))
    )
    return step, (*parameters, labels(3, 3, 2, below=19), labels(3, 3, 2, below=19, seed=1))


@pytest.mark.parametrize("build", [mlp_step, lstm_step])
def test_a_step_in_mixed_precision(build):
    """Losses and gradients differ by no more than a rounding of bfloat16 here and there."""
    torch.manual_seed(0)
    step, arguments = build()
    program = trace(step, *arguments)
    expected, before = program(*arguments), operand_sizes(program, *arguments)
    assert _aten.scatter_add.default in targets(program)
    rewrite_for_gpu(program)
    program.graph.lint()
    found, after = program(*arguments), operand_sizes(program, *arguments)
    torch.testing.assert_close(found[0], expected[0], rtol=2**-8, atol=0)
    for mine, theirs in zip(found[1:], expected[1:], strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        for run in range(3):
            assert float((mine[run] - theirs[run]).norm()) <= 2**-7 * float(theirs[run].norm())
    assert not all(is_aligned(sizes) for operands in before for sizes in operands[-2:])
    sums = [node for node in program.graph.nodes if node.target is _aten.bmm.default and is_of_ones(node)]
    assert len(after) == len(before) + len(sums)
    assert len(sums) >= 3  # the gradients of biases
    assert all(is_aligned(sizes) for operands in after for sizes in operands)
    assert _aten.scatter_add.default not in targets(program)


def test_a_step_in_single_precision_only_loses_its_scatter():
    def step(w: Tensor, b: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        def loss(w: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(functional.linear(x, w, b), y)

        gradients, losses = vmap(grad_and_value(loss, argnums=(0, 1)))(w, b, x, y)
        return losses, *gradients

    arguments = normal(3, 5, 7), normal(3, 5), normal(3, 6, 7), labels(3, 6, below=5)
    program = check_equal(step, *arguments)
    found = targets(program)
    assert _aten.constant_pad_nd.default not in found
    assert _aten.scatter_add.default not in found


@pytest.mark.parametrize("rewrite", [pipeline.rewrite_for_cpu, pipeline.rewrite_for_gpu])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: ((x[1:] * 1.0).as_strided((2,), (1,), 1),),
        lambda x: ((x.t().t()[1:] * 1.0).reshape(2, 4).as_strided((2, 2), (1, 2), 1),),
        lambda x: (x[1:].reshape(2, 4).as_strided((2,), (1,), 5),),
    ],
)
def test_a_step_that_counts_on_strides_and_offsets_keeps_its_results(rewrite, function) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    program = trace(function, x)
    rewrite(program)
    assert torch.equal(program(x)[0], function(x)[0])

"""Small traced steps, the passes run on them, and a look at what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from isotherm.engine.graph.pipeline import Pass, rewrite_for_gpu
from isotherm.engine.graph.step_graph import MatrixShape, StepGraph
from isotherm.engine.graph.trace import trace

Function = Callable[..., tuple[Tensor, ...]]
HALF = torch.bfloat16
_aten = torch.ops.aten
MATMULS = (_aten.bmm.default, _aten.baddbmm.default)


def whole(*shape: int, seed: int = 0, dtype: torch.dtype = HALF) -> Tensor:
    """Return small whole numbers: their sums fit into bfloat16, so that equal means equal in whatever order."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def labels(*shape: int, below: int, seed: int = 0) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def targets(program: fx.GraphModule) -> Counter[Any]:
    """Return how often a program calls each operation."""
    return Counter(node.target for node in program.graph.nodes if node.op == "call_function")


def calls(program: fx.GraphModule, target: Any) -> list[fx.Node]:
    return [node for node in program.graph.nodes if node.target is target]


def run_passes(
    program: fx.GraphModule, *passes: Pass, matrices: Sequence[MatrixShape | None] = (), **found: Any
) -> StepGraph:
    """Run some passes on a traced program, and drop dead code."""
    step = StepGraph(graph=program.graph, matrices=matrices, **found)
    for each in passes:
        each(step)
    program.graph.eliminate_dead_code()
    program.graph.lint()
    program.recompile()
    return step


def passed(function: Function, arguments: Sequence[Tensor], *passes: Pass) -> fx.GraphModule:
    """Return a traced program after some passes."""
    program = trace(function, *arguments)
    run_passes(program, *passes)
    return program


def rewritten(function: Function, *arguments: Tensor, has_kernels: bool = False) -> fx.GraphModule:
    """Return a traced program after all passes for a GPU."""
    program = trace(function, *arguments)
    rewrite_for_gpu(program, has_kernels=has_kernels)
    program.graph.lint()
    return program


def assert_same_results(program: fx.GraphModule, function: Function, *arguments: Tensor) -> None:
    """Compare results bit for bit, on other values than the traced ones too."""
    for values in (arguments, [argument.flip(0) for argument in arguments]):
        for mine, theirs in zip(program(*values), function(*values), strict=True):
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
            assert torch.equal(mine, theirs)


def check_equal(function: Function, *arguments: Tensor, passes: Sequence[Pass] | None = None) -> fx.GraphModule:
    """Return a program after some passes, or all for a GPU, if its results equal those of the traced one."""
    program = rewritten(function, *arguments) if passes is None else passed(function, arguments, *passes)
    assert_same_results(program, trace(function, *arguments), *arguments)
    return program


class Sizes(fx.Interpreter):
    """Run a program and note the sizes of all operands of its matmuls."""

    def __init__(self, program: fx.GraphModule) -> None:
        super().__init__(program)
        self.operands: list[list[tuple[int, ...]]] = []

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.target in MATMULS:
            self.operands.append([tuple(self.env[source].shape) for source in n.args])
        if isinstance(result, Tensor) and n.op == "call_function":
            assert (result.shape, result.dtype) == (n.meta["val"].shape, n.meta["val"].dtype), n
        return result


def operand_sizes(program: fx.GraphModule, *arguments: Tensor) -> list[list[tuple[int, ...]]]:
    sizes = Sizes(program)
    sizes.run(*arguments)
    return sizes.operands


def is_aligned(sizes: tuple[int, ...]) -> bool:
    return all(size % 8 == 0 for size in sizes[1:])

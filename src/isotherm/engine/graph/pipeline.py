"""The passes that make a traced step fast, in order, for each device.

A pass is a function `name(step: StepGraph) -> None` that changes `step.graph` in place. It leaves the step's results as
they are, up to rounding. The lists below are the only place where passes are ordered.

Adding a graph pass
-------------------
1. Write `engine/graph/<subject>.py` with the one function. To copy: `multiplications_by_one.py` drops an operation,
   `cross_entropy_gradients.py` replaces one. Its docstring says what it *expects* of the graph and what it *leaves*.
   Name in backticks the files whose passes must have run; a test holds the lists to it. Assert what would otherwise go
   wrong silently (`step_graph.expect_no`), but only what no user's module can bring about.
   Read the arguments of calls by name (`operands.Matmul.of(node).left`), make new calls with `step_graph.call`, which
   records the shape of the result, and swap nodes with `step_graph.replace`. Passes leave nothing on nodes for each
   other: what a pass needs to know it reads from the graph or from the fields of `StepGraph`.
2. Put the function into `CPU_PASSES`, `GPU_PASSES` or both, after the passes that leave what it expects; also into the
   lists that keep the layout if it changes no strides and no storage offset (a traced value does not record the
   offset). If it calls kernels that need Triton, name it in `NEED_KERNELS` too.
3. Copy `tests/engine/graph/test_cross_entropy_gradients.py`: a small graph before and after, equal results, what must
   stay as it is; `test_flexible_views.py` shows an expectation that is violated. `test_pipeline.py` fails if a pass is
   in no list, has no test file, or comes before what it expects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from isotherm.engine.graph.activations import use_activation_kernels
from isotherm.engine.graph.alignment import align_matmuls
from isotherm.engine.graph.bfloat16_weights import take_bfloat16_weights
from isotherm.engine.graph.bias_gradients import join_bias_gradients
from isotherm.engine.graph.clamped_relus import clamp_instead_of_relu
from isotherm.engine.graph.convolution_gradient_sums import add_to_input_gradients
from isotherm.engine.graph.convolution_moments import take_moments
from isotherm.engine.graph.convolution_norm_sums import take_norm_sums
from isotherm.engine.graph.cross_entropy_gradients import compare_instead_of_scatter
from isotherm.engine.graph.dead_code import drop_dead_code
from isotherm.engine.graph.double_transposes import drop_double_transposes
from isotherm.engine.graph.factored_gradients import factor_gradients
from isotherm.engine.graph.flexible_views import reshape_instead_of_view
from isotherm.engine.graph.fused_biases import fuse_biases
from isotherm.engine.graph.image_sums import sum_images_in_memory_order
from isotherm.engine.graph.multiplications_by_one import drop_multiplications_by_one
from isotherm.engine.graph.norm_gradient_sums import add_after_norm_gradients
from isotherm.engine.graph.norm_relus import take_relus_into_norms
from isotherm.engine.graph.norm_sums import add_before_norms
from isotherm.engine.graph.row_sum_matmuls import sum_rows_by_matmul
from isotherm.engine.graph.same_shape_reshapes import drop_same_shape_reshapes
from isotherm.engine.graph.separate_biases import separate_biases
from isotherm.engine.graph.step_graph import MatrixShape, StepGraph

Pass = Callable[[StepGraph], None]

_NO_VIEWS: tuple[Pass, ...] = (drop_same_shape_reshapes, drop_double_transposes)
_NORMS_AND_CONVOLUTIONS: tuple[Pass, ...] = (
    take_relus_into_norms,
    add_before_norms,
    add_after_norm_gradients,
    add_to_input_gradients,
    take_moments,
    take_norm_sums,
)

CPU_PASSES: tuple[Pass, ...] = (
    *_NO_VIEWS,
    drop_multiplications_by_one,
    fuse_biases,
    drop_dead_code,
    clamp_instead_of_relu,
)

# For steps that count on the layout of their tensors (`as_strided`): only passes that keep it.
CPU_PASSES_KEEPING_LAYOUT: tuple[Pass, ...] = (*_NO_VIEWS, fuse_biases, drop_dead_code, clamp_instead_of_relu)

GPU_PASSES: tuple[Pass, ...] = (
    *_NO_VIEWS,
    drop_multiplications_by_one,
    separate_biases,
    drop_dead_code,
    reshape_instead_of_view,
    compare_instead_of_scatter,
    sum_images_in_memory_order,
    take_bfloat16_weights,
    use_activation_kernels,
    join_bias_gradients,
    sum_rows_by_matmul,
    align_matmuls,
    *_NORMS_AND_CONVOLUTIONS,
    drop_dead_code,
    factor_gradients,
    drop_dead_code,
)

GPU_PASSES_KEEPING_LAYOUT: tuple[Pass, ...] = (
    *_NO_VIEWS,
    fuse_biases,
    *_NORMS_AND_CONVOLUTIONS,
    drop_dead_code,
)

# Passes whose kernels need Triton, and an update that takes factors.
NEED_KERNELS: frozenset[Pass] = frozenset({use_activation_kernels, join_bias_gradients, factor_gradients})


def rewrite_for_cpu(module: fx.GraphModule) -> None:
    """Change a traced step in place for the CPU; it must write into no tensor."""
    _run(CPU_PASSES_KEEPING_LAYOUT if _is_strided(module) else CPU_PASSES, module, StepGraph(graph=module.graph))


def rewrite_for_gpu(
    module: fx.GraphModule, matrices: Sequence[MatrixShape | None] = (), *, has_kernels: bool = False
) -> StepGraph:
    """Change a traced step in place for a GPU; it must write into no tensor.

    Args:
        module: the step.
        matrices: what its first arguments, the parameter groups, hold.
        has_kernels: whether the passes that need kernels may run.

    Returns:
        the step, with the groups that it now reads in bfloat16, and those whose gradients it returns as factors.
    """
    step = StepGraph(graph=module.graph, matrices=matrices)
    passes = GPU_PASSES_KEEPING_LAYOUT if _is_strided(module) else GPU_PASSES
    _run([each for each in passes if has_kernels or each not in NEED_KERNELS], module, step)
    return step


def _is_strided(module: fx.GraphModule) -> bool:
    """Tell whether a step reads a tensor's memory by strides and offset, which a pass must then not change."""
    return any(node.target is torch.ops.aten.as_strided.default for node in module.graph.nodes)


def _run(passes: Sequence[Pass], module: fx.GraphModule, step: StepGraph) -> None:
    for each in passes:
        each(step)
    module.recompile()

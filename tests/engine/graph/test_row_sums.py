"""Which sums are over rows that a matmul reads."""

import pytest
import torch
from torch import Tensor

from helpers_graph import calls, whole
from isotherm.engine.graph.row_sums import is_cast_or_view, summed_rows
from isotherm.engine.graph.trace import trace

_aten = torch.ops.aten


def rows_of(total, *, is_multiplied: bool = True, dtype: torch.dtype = torch.bfloat16):
    """Return what `summed_rows` finds in a program, and the program's first argument."""

    def function(g: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return torch.bmm(g.transpose(1, 2), w) if is_multiplied else w.exp(), total(g)

    program = trace(function, whole(2, 3, 5, dtype=dtype), whole(2, 3, 7, seed=1, dtype=dtype))
    found = [summed_rows(node) for node in calls(program, _aten.sum.dim_IntList)]
    return found, program.graph.find_nodes(op="placeholder")[0]


@pytest.mark.parametrize("dim", [1, -2])
def test_rows_that_a_matmul_reads(dim):
    found, rows = rows_of(lambda g: g.sum(dim=dim))
    assert found == [rows]


@pytest.mark.parametrize(
    ("total", "options"),
    [
        (lambda g: g.sum(dim=2), {}),
        (lambda g: g.sum(dim=(1, 2)), {}),
        (lambda g: g.sum(dim=1, dtype=torch.float32), {}),
        (lambda g: g.sum(dim=1), {"is_multiplied": False}),
        (lambda g: g.sum(dim=1), {"dtype": torch.float32}),
    ],
    ids=["columns", "all", "wider", "not multiplied", "float32"],
)
def test_other_sums(total, options):
    assert rows_of(total, **options)[0] == [None]


def test_casts_and_views():
    program = trace(lambda x: (x.float(), x.view(-1), x.exp()), whole(2, 3))
    assert [is_cast_or_view(node) for node in program.graph.nodes if node.op == "call_function"] == [True, True, False]

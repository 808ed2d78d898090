"""Custom operations and the compiler."""

import pytest
import torch
from torch import Tensor
from torch._inductor import exc
from torch._inductor.lowering import lowerings

from isotherm.kernels.ops import lstm_step as lstm_step_ops
from isotherm.kernels.ops import registry
from isotherm.kernels.ops.lstm_step import BACKWARD, FORWARD

B, H = 2, 4


def chain(projected: Tensor, product: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return what comes of a few cells, each made of the one before."""
    hidden = cell
    for _ in range(4):
        hidden, cell = FORWARD(projected, torch.cat([hidden] * 4, dim=-1) + product, cell)
    return hidden, cell


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # by the compiler itself
def test_the_compiler_knows_our_operations_and_writes_down_nothing(monkeypatch):
    monkeypatch.setattr(exc.OperatorIssue, "operator_str", lambda *_: pytest.fail("arguments are written down"))
    registry.register_with_compiler()
    assert {FORWARD, BACKWARD} <= lowerings.keys()
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(B, n, generator=generator) for n in (4 * H, 4 * H, H)]
    given[0] = given[0].t().contiguous().t()  # turned in memory
    torch._dynamo.reset()
    found = torch.compile(chain, fullgraph=True, options={"fx_graph_cache": False})(*given)
    for mine, theirs in zip(found, chain(*given), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_registering_again_changes_nothing():
    registry.register_with_compiler()
    before = lowerings[lstm_step_ops.FORWARD]
    registry.register_with_compiler()
    assert lowerings[lstm_step_ops.FORWARD] is before

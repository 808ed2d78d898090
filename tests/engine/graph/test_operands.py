"""Arguments by name: every record has the arguments of its operation's schema."""

from dataclasses import fields

import pytest
import torch

from helpers_graph import whole
from isotherm.engine.graph.operands import Addition, GhostNormBackward, Matmul, Operands, Padding, Slice, Sum, Transpose
from isotherm.engine.graph.trace import trace

OURS = [record for record in Operands.__subclasses__() if str(record.TARGET).startswith("isotherm.")]


def first_call(function, *arguments):
    return next(node for node in trace(function, *arguments).graph.nodes if node.op == "call_function")


@pytest.mark.parametrize("record", Operands.__subclasses__(), ids=lambda record: record.__name__)
def test_a_record_has_as_many_fields_as_its_operation_has_arguments(record):
    assert len(fields(record)) == len(record.TARGET._schema.arguments)


@pytest.mark.parametrize("record", OURS, ids=lambda record: record.__name__)
def test_arguments_of_ours_that_both_name_come_in_the_same_order(record):
    names = [field.name for field in fields(record)]
    schema = [argument.name.removesuffix("_GC") for argument in record.TARGET._schema.arguments]
    assert [name for name in names if name in schema] == [name for name in schema if name in names]
    assert all(names.index(name) == schema.index(name) for name in names if name in schema)


def test_arguments_have_names():
    node = first_call(lambda x, y: (torch.bmm(x, y),), whole(2, 3, 4), whole(2, 4, 5))
    matmul = Matmul.of(node)
    assert (matmul.left, matmul.right) == node.args
    assert matmul.positional == node.args


def test_another_call_has_none():
    node = first_call(lambda x: (x.exp(),), whole(2, 3))
    assert Matmul.of(node) is None
    assert Matmul.of(3.0) is None


def test_arguments_that_are_left_out_have_their_defaults():
    addition = Addition.of(first_call(lambda x: (x + 1,), whole(2, 3)))
    assert (addition.right, addition.alpha) == (1, 1)
    scaled = Addition.of(first_call(lambda x: (torch.add(x, x, alpha=3),), whole(2, 3)))
    assert scaled.alpha == 3
    total = Sum.of(first_call(lambda x: (x.sum(dim=1),), whole(2, 3)))
    assert (list(total.dims), total.keeps_dims, total.dtype) == ([1], False, None)
    part = Slice.of(first_call(lambda x: (x[:, :2],), whole(2, 3)))
    assert (part.dim, part.start, part.stop, part.step) == (1, 0, 2, 1)


def test_a_call_with_keyword_arguments_is_not_made_by_position():
    with pytest.raises(AssertionError):
        _ = Addition.of(first_call(lambda x: (x + 1,), whole(2, 3))).positional


@pytest.mark.parametrize(("dims", "expected"), [((1, 2), True), ((-1, 1), True), ((0, 1), False)])
def test_transposes_of_matrices(dims, expected):
    transpose = Transpose.of(first_call(lambda x: (x.transpose(*dims) + 1,), whole(2, 3, 4)))
    assert transpose.is_of_matrices(3) == expected
    assert not transpose.is_of_matrices(4)


@pytest.mark.parametrize(
    ("amounts", "value", "expected"), [((0, 1), 0.0, True), ((1, 0), 0.0, False), ((0, 1), 2.0, False)]
)
def test_padding_at_the_ends(amounts, value, expected):
    node = first_call(lambda x: (torch.nn.functional.pad(x, amounts, value=value),), whole(2, 3))
    assert Padding.of(node).adds_zeros_at_ends == expected


def test_the_gradient_that_a_norm_adds_comes_last():
    assert [field.name for field in fields(GhostNormBackward)][-1] == "other"

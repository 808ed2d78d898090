"""Gradients of images that two convolutions read."""

from __future__ import annotations

import dataclasses

from isotherm.engine.graph.image_additions import image_addition
from isotherm.engine.graph.operands import ConvolutionInputGradient
from isotherm.engine.graph.step_graph import StepGraph, call, expect_no, has_one_user, replace
from isotherm.kernels.ops import convolution_norm as convolution_norm_ops


def add_to_input_gradients(step: StepGraph) -> None:
    """Where two convolutions read the same images, let the second gradient be added to the first as it is made.

    Expects: convolutions that take no sums of ghost batch norm yet.
    Leaves: `isotherm::convolution_input_gradient` with the other gradient as `other`.
    """
    reason = "add_to_input_gradients comes before take_norm_sums"
    expect_no(step.graph, convolution_norm_ops.WITH_SUMS, reason=reason)
    for node in list(step.graph.nodes):
        addition = image_addition(node)
        if addition is None or addition.left is addition.right:
            continue
        for other, gradient in ((addition.left, addition.right), (addition.right, addition.left)):
            given = ConvolutionInputGradient.of(gradient)
            if given is not None and given.other is None and has_one_user(gradient, ConvolutionInputGradient.TARGET):
                with step.graph.inserting_before(node):
                    arguments = dataclasses.replace(given, other=other).positional
                    fused = call(step.graph, ConvolutionInputGradient.TARGET, *arguments)
                replace(step.graph, node, fused)
                step.graph.erase_node(gradient)
                break

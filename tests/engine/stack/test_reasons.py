"""The layer that raised an error is found, and PyTorch's wording is replaced where its meaning is known."""

import pytest
import torch
from torch import Tensor, nn

from isotherm.engine.stack.reasons import place_of, reason_for, slow_operation


class Fails(nn.Module):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError(self.text)


def error_of(module: nn.Module) -> Exception:
    try:
        module(torch.ones(2, 3))
    except RuntimeError as error:
        return error
    raise AssertionError("it raised nothing")


def test_the_innermost_layer_is_named():
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(Fails("no")))
    assert place_of(error_of(model)) == "in layer '1.0' (Fails): "
    assert place_of(error_of(Fails("no"))) == "in Fails: "
    assert place_of(ValueError("nowhere")) == ""


def test_what_is_known_is_said_in_our_words():
    text = "vmap: called random operation while in randomness error mode. Please use either"
    assert reason_for(error_of(Fails(text))) == (
        "in Fails: it draws random numbers other than dropout's; nn.Dropout and functional.dropout draw a run's own"
    )


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_spectral_norm_is_said_not_to_train_as_a_fleet(norm):
    model = norm(nn.Linear(3, 3))
    names, values = zip(*model.state_dict(keep_vars=True).items(), strict=True)

    def call(*given):
        return torch.func.functional_call(model, dict(zip(names, given, strict=True)), torch.ones(2, 3))

    with pytest.raises(RuntimeError) as raised:
        torch.func.vmap(call)(*(value.detach().repeat(2, *([1] * value.ndim)) for value in values))
    words = reason_for(raised.value)
    assert "spectral_norm overwrites the singular vectors" in words
    assert "weight_norm or a LayerNorm does" in words
    assert "make a new tensor" not in words


def test_what_is_not_known_is_the_first_sentence_of_the_error():
    assert reason_for(error_of(Fails("One. Two.\nThree"))) == "in Fails: RuntimeError: One"


def test_slow_operations_are_named():
    disabled = "aten::{} hit the vmap fallback which is currently disabled"
    assert slow_operation(error_of(Fails(disabled.format("remainder_")))) == "remainder_ in Fails"
    bag = slow_operation(RuntimeError(disabled.format("_embedding_bag")))
    assert bag == "_embedding_bag (give nn.EmbeddingBag rows (n, T), and no offsets or max_norm)"
    assert slow_operation(RuntimeError("?")) == "an operation of this model or its loss"

"""The transformer looks back and never ahead, and says what it cannot be built with."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from isotherm.errors import UserError
from isotherm.models.gpt import GPT


def built(**options: int) -> GPT:
    torch.manual_seed(0)
    return GPT(vocabulary=11, **{"context": 8, "width": 8, "num_heads": 2, **options}).double()


def test_a_prediction_depends_on_the_tokens_up_to_it_and_on_no_later_one() -> None:
    model, tokens = built(), torch.arange(8).unsqueeze(0)
    before = model(tokens)
    for position in range(8):
        changed = tokens.clone()
        changed[0, position] = 10
        same = torch.isclose(model(changed), before).all(-1)[0]
        assert same[:position].all()
        assert not same[position:].any()


def test_shorter_windows_are_the_beginning_of_longer_ones() -> None:
    model, tokens = built(), torch.arange(8).unsqueeze(0)
    torch.testing.assert_close(model(tokens[:, :3]), model(tokens)[:, :3])


def test_its_first_loss_is_that_of_guessing() -> None:
    tokens = torch.randint(0, 11, (20, 9), generator=torch.Generator().manual_seed(0))
    logits = built()(tokens[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert float(loss.detach()) == pytest.approx(float(torch.log(torch.tensor(11.0))), abs=0.05)


def test_what_is_added_to_the_residual_stream_starts_small() -> None:
    few, many = (GPT(vocabulary=5, width=64, num_layers=num) for num in (1, 9))
    deviations = [model.blocks[0].widen[2].weight.detach().std() for model in (few, many)]  # type: ignore[union-attr, index]
    assert float(deviations[0] / deviations[1]) == pytest.approx(3.0, rel=0.1)


def test_dropout_is_in_training_mode_only() -> None:
    model, tokens = built(drop_probability=0.5), torch.arange(8).unsqueeze(0)  # type: ignore[arg-type]
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
    assert sum(isinstance(part, nn.Dropout) for part in model.modules()) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 10, "num_heads": 4}, "num_heads=4 does not divide width=10"),
        ({"num_layers": 0}, "num_layers=0 of a transformer is not a positive whole number"),
        ({"context": 2.5}, r"context=2\.5 of a transformer"),
    ],
    ids=str,
)
def test_what_it_cannot_be_built_with(options: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        built(**options)

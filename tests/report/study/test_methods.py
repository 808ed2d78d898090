"""The sentences on how a study was made say what the plan says."""

from __future__ import annotations

import pytest

from helpers_report import make_plan
from isotherm.core.schedule import Schedule
from isotherm.report.study.methods import protocol_paragraphs


def sentences(**changes: object) -> str:
    return " ".join(protocol_paragraphs([make_plan(**changes)]))


def test_plain_training_mentions_neither_clipping_nor_streams() -> None:
    text = sentences()
    assert "in float32." in text
    assert "clipped to a norm" not in text
    assert "parallel streams" not in text


def test_clipping_is_named_with_its_norm() -> None:
    assert "gradients clipped to a norm of 5 before momentum, in float32" in sentences(clip_norm=5.0)


@pytest.mark.parametrize(("precision", "words"), [("mixed", "matmuls in bfloat16"), ("float64", "in float64.")])
def test_the_precision_is_named(precision: str, words: str) -> None:
    assert words in sentences(precision=precision)


def test_streams_are_explained() -> None:
    text = sentences(unroll=35)
    assert "read 35 tokens at a time" in text
    assert "reported losses are per token" in text


def test_seeds_share_the_order_of_a_text_and_nothing_else_is_said_of_sequences() -> None:
    text = sentences(unroll=35)
    assert "the order of the text is the same for every seed" in text
    assert "share nothing" not in text
    assert "different seeds share nothing" in sentences()
    assert "order of the text" not in sentences()
    both = " ".join(protocol_paragraphs([make_plan(), make_plan(unroll=35)]))
    assert both.count("Learning rates are thus compared") == 1
    assert both.index("share nothing") < both.index("On sequences")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "Runs keep the learning rate constant for half of their updates and then drop it ten times, by a factor"),
        (
            {"schedule": Schedule(warmup_steps=500)},
            "After a linear warm-up over 500 updates, runs keep the learning rate constant for half of the other "
            "updates and then drop it ten times, by a factor of 2 each; SGD with",
        ),
        ({"schedule": Schedule.constant()}, "Schedule of the learning rate: constant; SGD with"),
        (
            {"schedule": Schedule.cosine(warmup_fraction=0.05)},
            "Schedule of the learning rate: linear warm-up over 5 % of training, then cosine decay to 0; SGD with",
        ),
        (
            {"schedule": Schedule.linear(), "final_learning_rates": (0.1,)},
            "Schedule of the learning rate: linear decay to a final learning rate that is swept apart; SGD with",
        ),
    ],
)
def test_the_schedule_is_described(changes: dict[str, object], words: str) -> None:
    assert words in sentences(**changes)

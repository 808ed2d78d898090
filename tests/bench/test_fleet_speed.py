"""The fleets that are timed, and nothing else."""

from __future__ import annotations

import logging

import pytest

from helpers_bench import MLP
from isotherm.bench import fleet
from isotherm.bench.fleet import refusing_warnings, specs_of
from isotherm.tasks.builtin import made_task


def test_the_runs_of_a_work() -> None:
    specs = specs_of(MLP, made_task("mlp_mnist1d"))
    assert [spec.seed for spec in specs] == [0, 0, 1, 1]
    assert [spec.effective_learning_rate for spec in specs[:2]] == [2.0**-3, 2.0**-4]


def test_a_warning_of_the_engine_is_an_error() -> None:
    logger = logging.getLogger("isotherm")
    with refusing_warnings(), pytest.raises(RuntimeError, match="one run at a time"):
        logger.warning("training one run at a time, as %s", "it must")
    assert not any(isinstance(handler, fleet._Refusal) for handler in logger.handlers)

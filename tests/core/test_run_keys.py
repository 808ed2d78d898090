"""Keys of many runs at once are the keys of single runs."""

from __future__ import annotations

import dataclasses

import pytest

from helpers_protocol import make_spec
from isotherm.core.records import RunSpec
from isotherm.core.run_keys import CELL_ID_BYTES, cell_id, keys_of_seeds

SEEDS = [0, 1, 7, 2**62, -3]


@pytest.mark.parametrize("spec", [make_spec(), make_spec(clip_norm=0.5, seed=9), make_spec(task='"seed":0')])
def test_keys_of_many_seeds_are_those_of_single_runs(spec: RunSpec) -> None:
    assert keys_of_seeds(spec, SEEDS) == [dataclasses.replace(spec, seed=seed).key for seed in SEEDS]


def test_a_cell_is_told_from_others_by_everything_but_seed_and_label() -> None:
    spec = make_spec()
    same = [dataclasses.replace(spec, seed=5), dataclasses.replace(spec, task="another label")]
    others = [
        dataclasses.replace(spec, batch_size=spec.batch_size + 1),
        dataclasses.replace(spec, clip_norm=1.0),
        dataclasses.replace(spec, l2=0.125),
    ]
    assert len(cell_id(spec)) == CELL_ID_BYTES
    assert {cell_id(one) for one in same} == {cell_id(spec)}
    assert len({cell_id(one) for one in (spec, *others)}) == 4

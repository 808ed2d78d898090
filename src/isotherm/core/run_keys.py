"""The keys of many runs at once: those of a cell differ in their seed alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from isotherm.core.records import RunSpec, canonical_json

CELL_ID_BYTES = 16
_SEED = 2**100 + 1  # no seed is so large; stands for it in the text that is hashed


def cell_id(spec: RunSpec) -> bytes:
    """Return what the runs of a cell have in common, hashed: all of their keys but the seed."""
    before, after = _around_seed(spec)
    return hashlib.sha256(before + after).digest()[:CELL_ID_BYTES]


def keys_of_seeds(spec: RunSpec, seeds: Sequence[int]) -> list[str]:
    """Return the keys of the runs that differ from one in their seed alone, as `RunSpec.key` gives them."""
    before, after = _around_seed(spec)
    start = hashlib.sha256(before)
    keys = []
    for seed in seeds:
        hashed = start.copy()
        hashed.update(b"%d" % seed + after)
        keys.append(hashed.hexdigest())
    return keys


def _around_seed(spec: RunSpec) -> tuple[bytes, bytes]:
    """Return what stands before and after the seed in the text whose hash is the key."""
    text = canonical_json({**spec.key_content(), "seed": _SEED}).encode()
    before, found, after = text.partition(b'"seed":%d' % _SEED)
    assert found, "a key without a seed"
    return before + b'"seed":', after

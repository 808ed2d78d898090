"""A state in a file and back; what happens to damaged files is tested with `Checkpoint`."""

from __future__ import annotations

import io

import pytest
import torch

from isotherm.engine.checkpoint_file import MAGIC, Header, UnusableError, read_state, write_state

HEADER = Header(identity="us", about={"runs": ["a", "b"]}, seconds=1.5)
STATE = {"values": [torch.arange(3.0)], "done": 7}


def written() -> bytes:
    file = io.BytesIO()
    write_state(file, STATE, HEADER)
    return file.getvalue()


def test_a_state_comes_back_with_its_header() -> None:
    state, header = read_state(io.BytesIO(written()), identity="us", map_location="cpu")
    assert header == HEADER
    assert state["done"] == 7
    assert torch.equal(state["values"][0], torch.arange(3.0))


def test_the_state_of_another_fleet_is_refused() -> None:
    with pytest.raises(UnusableError, match="of another fleet"):
        read_state(io.BytesIO(written()), identity="them", map_location="cpu")


@pytest.mark.parametrize("place", [len(MAGIC) + 3, -100, -10])
def test_one_changed_byte_is_found(place: int) -> None:
    content = bytearray(written())
    content[place] ^= 1
    with pytest.raises(UnusableError, match="damaged"):
        read_state(io.BytesIO(bytes(content)), identity="us", map_location="cpu")


def test_a_disk_that_fails_is_not_hidden() -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_state(Full(), STATE, HEADER)


def test_a_header_is_read_as_it_was_written() -> None:
    assert Header.parsed(HEADER.line()) == HEADER

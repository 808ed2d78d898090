"""Headers of tar archives, read with care: a damaged one is no end of the archive, and none reserves memory.

Python's `tarfile` takes a header with a wrong checksum, and a file that stops without the blocks of zeros at its end,
for the end of the archive, so that a damaged archive is read as a shorter one. Names that are too long for a header,
and other remarks, are members of their own, which `tarfile` reads as a whole, however large they claim to be.
"""

from __future__ import annotations

import tarfile
from typing import Self

MOST_BYTES = 2**20  # of a remark: a name, or a few fields
_REMARKS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)


class CarefulHeader(tarfile.TarInfo):
    """A header for `tarfile.open(..., tarinfo=CarefulHeader)`."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Return the header in a block of 512 bytes.

        Raises:
            tarfile.ReadError: the block is damaged or cut off, there is none, or it announces a remark of a size that
                none has.
        """
        if len(buf) == tarfile.BLOCKSIZE and not any(buf):  # the end, which has an exception of its own
            return super().frombuf(buf, encoding, errors)
        if not buf:
            raise tarfile.ReadError("it was cut off: the blocks of zeros at its end are missing")
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"a header is damaged: {error}") from error
        if header.type in _REMARKS and not 0 <= header.size <= MOST_BYTES:
            raise tarfile.ReadError(f"a header announces {header.size:,} bytes of a name or of other remarks")
        return header


__all__ = ["MOST_BYTES", "CarefulHeader"]

"""A lock on a file, which the operating system releases when the process that holds it dies."""

from __future__ import annotations

import os
import sys
from typing import IO

# Of a byte that no file has: Windows locks bytes against reading too.
_FAR = 2**40

if sys.platform == "win32":
    import msvcrt

    def lock_now(file: IO[str]) -> None:
        """Lock an open file, or raise an `OSError` if another process has locked it."""
        position = os.lseek(file.fileno(), 0, os.SEEK_CUR)
        os.lseek(file.fileno(), _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(file.fileno(), position, os.SEEK_SET)

else:
    import fcntl

    def lock_now(file: IO[str]) -> None:
        """Lock an open file, or raise an `OSError` if another process has locked it."""
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

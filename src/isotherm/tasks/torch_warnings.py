"""What PyTorch warns of while it builds and calls a user's model: it goes to the log, and never raw to the user.

Most of it concerns PyTorch's own inside. A warning about the model itself is announced in one sentence; warnings that
the user's code gives are shown as ever.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger("isotherm")

# PyTorch's C++ code, which has no Python frame to be recognised by, ends every warning with the place it comes from.
STAMP = "(Triggered internally at "
_TORCH = str(Path(torch.__file__).parent)
_OF_LIBRARIES = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
_ABOUT_MODEL = "PyTorch warns about this model; call it by itself, on a batch, to see the warning"

_shown: set[tuple[Any, ...]] = set()  # the user's own, each once
_said: set[str] = set()
_is_active = False


@contextmanager
def without_torch_warnings() -> Iterator[None]:
    """Within this context no warning of PyTorch is shown; also a decorator."""
    global _is_active
    if _is_active:
        yield
        return
    filters, show = list(warnings.filters), warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = partial(_sort, filters, show)
        _is_active = True
        try:
            yield
        finally:
            _is_active = False


@contextmanager
def counted_torch_warnings() -> Iterator[list[str]]:
    """Within this context warnings are only collected; the list holds those of PyTorch's C++ code afterwards."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        yield found
    found.extend(str(warning.message) for warning in recorded if STAMP in str(warning.message))


def _sort(
    filters: Sequence[Any],
    show: Any,
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    *_: Any,
    **__: Any,
) -> None:
    """Log a warning of PyTorch, and show any other as it would be shown without us."""
    if STAMP in str(message) or _giver().startswith(_TORCH) or _is_deprecation(message, category, filename):
        logger.debug("PyTorch warns (%s, %s:%d): %s", category.__name__, filename, lineno, message)
        is_about_model = STAMP not in str(message) and not issubclass(category, _OF_LIBRARIES)
        if is_about_model and _ABOUT_MODEL not in _said:
            _said.add(_ABOUT_MODEL)
            logger.warning(_ABOUT_MODEL)
        return
    key = (str(message), category, filename, lineno)
    if key not in _shown:
        with warnings.catch_warnings():
            warnings.filters[:] = filters  # type: ignore[index]
            warnings.showwarning = show
            warnings.warn_explicit(message, category, filename, lineno)
        _shown.add(key)


def _is_deprecation(message: Warning | str, category: type[Warning], filename: str) -> bool:
    """Tell whether PyTorch calls a function of its own deprecated; a decorator of another library gives the warning."""
    is_torchs = filename.startswith(_TORCH) or str(message).startswith("`torch.")
    return is_torchs and issubclass(category, _OF_LIBRARIES)


def _giver() -> str:
    """Return the file whose code gave the warning that is being shown."""
    frame = sys._getframe()
    own = {__file__, warnings.__file__}
    while frame.f_back is not None and frame.f_code.co_filename in own:
        frame = frame.f_back
    return frame.f_code.co_filename

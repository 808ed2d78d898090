"""A quick path to a learning rate and a batch size: minutes of short runs instead of a sweep.

The package can be called, so that `isotherm.diagnose(...)` is both where the diagnosis lives and what makes one:

    import isotherm as it

    found = it.diagnose(model=build_model, train=(x, y), test=(x_test, y_test), epochs=30)
    found                                  # the answer and a table of choices
    found.choice.learning_rate(0.9)        # of the recommended batch size with momentum 0.9
    found.plot(), found.report("diagnosis.html")
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

from isotherm.diagnose.diagnosis import Diagnosis
from isotherm.diagnose.options import DiagnoseOptions
from isotherm.diagnose.procedure import diagnose

__all__ = ["DiagnoseOptions", "Diagnosis", "diagnose"]


class _Callable(ModuleType):
    """The package, as a function.

    `isotherm.diagnose` has to be this package, since importing anything from it sets that name.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Diagnosis:
        """Return which learning rate and batch size suit a training; see `isotherm.diagnose.ask.diagnose`."""
        from isotherm.diagnose.ask import diagnose as ask

        return ask(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        from isotherm.diagnose.ask import diagnose as ask

        return inspect.signature(ask)


sys.modules[__name__].__class__ = _Callable

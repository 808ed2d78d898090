"""Whose code something is: a user's, which is read, or a library's, which is only named.

A library is what is installed: the standard library, site-packages, and Isotherm itself wherever it lies. Its sources
change with every release, and stored runs must still be found.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

_ISOTHERM = str(Path(__file__).resolve().parents[2])
_FOLDERS = (_ISOTHERM, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")))
_HEAP_TYPE = 1 << 9  # CPython: the class was made at run time
_INSTALLED = {"site-packages", "dist-packages"}


@functools.cache  # of a path's text alone
def is_library_file(file: str) -> bool:
    """Tell whether a file belongs to something installed.

    >>> import json
    >>> is_library_file(json.__file__), is_library_file("/home/me/project/net.py")
    (True, False)
    """
    if file.startswith("<frozen "):
        return True
    path = Path(file)
    return path.is_absolute() and (
        not _INSTALLED.isdisjoint(path.parts) or any(path.is_relative_to(folder) for folder in _FOLDERS)
    )


def is_library_function(function: types.FunctionType) -> bool:
    """Tell whether a function's own code is a library's; what it wraps may still be a user's."""
    file = function.__code__.co_filename
    if file.startswith("<") and not file.startswith("<frozen "):  # generated: ask the module it runs in
        file = str(function.__globals__.get("__file__") or "")
    return is_library_file(file)


def is_library_class(kind: type) -> bool:
    """Tell whether a class was defined by a library."""
    module = sys.modules.get(kind.__module__)
    if module is None or kind.__module__ == "__main__":
        return False
    if module is builtins:  # exec without a module's name calls its classes so
        return not kind.__flags__ & _HEAP_TYPE or getattr(builtins, kind.__name__, None) is kind
    if not is_library_module(module) or not _is_there(kind, module):
        return False
    # a user's module that shares its name with an installed one shows in the files of its methods
    return not any(_is_users_method(kind, name, member) for name, member in vars(kind).items())


def is_library_module(module: types.ModuleType) -> bool:
    """Tell whether a module is installed."""
    file = vars(module).get("__file__")  # asks no `__getattr__` of the module
    if file and Path(file).is_absolute():
        return is_library_file(file)
    if module.__name__ == "__main__":
        return False
    top = module.__name__.partition(".")[0]
    if top != module.__name__ and top in sys.modules:  # made at run time, such as torch.ops
        return is_library_module(sys.modules[top])
    return top in sys.stdlib_module_names


def is_users(value: Any) -> bool:
    """Tell whether a function, a class or an object's class is a user's."""
    if inspect.isfunction(value):
        return not is_library_function(value)
    return not is_library_class(value if isinstance(value, type) else type(value))


def is_isotherms(thing: Any) -> bool:
    """Tell whether a module, class or function is Isotherm's own."""
    name = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None)
    return str(name).partition(".")[0] == "isotherm"


def name_of(thing: Any) -> str:
    """Return a library's name for a class or function; Isotherm's own may move between modules and keep theirs.

    >>> from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
    >>> name_of(dict), name_of(GhostBatchNorm2d)
    ('builtins.dict', 'isotherm.GhostBatchNorm2d')
    """
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", type(thing).__qualname__)
    module = getattr(thing, "__module__", None) or ""
    if inspect.isfunction(thing):  # functools.wraps copies the names of the function inside
        name, module = thing.__code__.co_qualname, str(thing.__globals__.get("__name__"))
    return f"{'isotherm' if module.partition('.')[0] == 'isotherm' else module}.{name}"


def _is_there(kind: type, module: types.ModuleType) -> bool:
    """Tell whether a class is in the module it names; what make_dataclass makes, for example, is not."""
    if "<locals>" in kind.__qualname__ or type(kind).__name__ == "pybind11_type":
        return True
    found: Any = module
    for name in kind.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found is kind or not kind.__flags__ & _HEAP_TYPE


def _is_users_method(kind: type, name: str, member: Any) -> bool:
    function = getattr(member, "__func__", member)
    if isinstance(function, types.FunctionType | functools._lru_cache_wrapper):
        function = inspect.unwrap(function)
    if not inspect.isfunction(function) or function.__code__.co_filename.startswith("<"):
        return False
    return function.__qualname__ == f"{kind.__qualname__}.{name}" and not is_library_function(function)

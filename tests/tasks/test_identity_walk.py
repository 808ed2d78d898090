"""The parts of the walk one by one: sources, names, libraries, cycles."""

import importlib
import math
import pkgutil
import sys
import types
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from helpers_identity import imported, write
from isotherm import models
from isotherm.data import augment
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks import losses, metrics
from isotherm.tasks.identity import origin
from isotherm.tasks.identity.kinds import handler_of
from isotherm.tasks.identity.reads import MISSING, reads_of
from isotherm.tasks.identity.source import Sources, byte_code
from isotherm.tasks.identity.unseen import Reach
from isotherm.tasks.identity.walk import Walk


def described(value: object) -> object:
    return Walk("", handler_of=handler_of, reach=Reach(), sources=Sources()).describe(value)


def function_from(text: str, name: str = "f") -> types.FunctionType:
    space: dict[str, object] = {"__name__": "typed"}
    exec(text, space)
    return space[name]  # type: ignore[return-value]


# -- sources --------------------------------------------------------------------------------------------------------


def test_each_lambda_of_a_line_has_its_own_source() -> None:
    table = {"one": lambda h: h, "two": lambda h: h + 1, "three": lambda h: (lambda g: g)(h)}
    texts = [Sources().text(function) for function in table.values()]
    assert texts == [["source", f"lambda h: {body}"] for body in ("h", "h + 1", "(lambda g: g)(h)")]


def test_a_source_has_no_remarks(tmp_path: Path) -> None:
    text = 'def f(x):\n    """Return it."""\n    # really\n    "a remark"\n    return (x  )\n'
    with imported(write({"remarks.py": text}, tmp_path), "remarks") as module:
        assert Sources().text(module.f) == ["source", "def f(x):\n    return x"]


def test_a_source_that_does_not_fit_is_not_believed(tmp_path: Path) -> None:
    with imported(write({"edited.py": "def f(x): return x\n"}, tmp_path), "edited") as module:
        write({"edited.py": "def f(x): return x + 1\n"}, tmp_path)
        assert Sources().text(module.f)[0] == "byte code"


def test_byte_code_has_no_docstrings_and_no_lines() -> None:
    one = function_from("def f(x):\n    'A remark.'\n    return x if x > 0 else [y * 2 for y in x]")
    two = function_from("\n\ndef f(x):\n\n    return x if x > 0 else [y * 2 for y in x]")
    other = function_from("def f(x):\n    return x if x > 0 else [y * 3 for y in x]")
    assert byte_code(one.__code__) == byte_code(two.__code__)
    assert byte_code(one.__code__) != byte_code(other.__code__)


# -- names ----------------------------------------------------------------------------------------------------------


def test_names_are_followed_through_modules_and_no_further() -> None:
    def use(x: torch.Tensor) -> object:
        return nn.functional.relu(x) * math.pi + x.math + absent + len(str(x.shape))  # type: ignore[name-defined] # noqa: F821

    found = {read.path: read for read in reads_of(use)}
    assert set(found) == {"nn.functional.relu", "math.pi", "absent", "len", "str"}
    assert found["nn.functional.relu"].library == "torch.nn.functional.relu"
    assert found["absent"].value is MISSING


def test_a_library_is_not_imported_to_be_named() -> None:
    def use() -> object:
        import wsgiref.handlers as handlers

        return handlers.CGIHandler

    (read,) = reads_of(use)
    assert read.library == "wsgiref.handlers.CGIHandler"
    assert "wsgiref.handlers" not in sys.modules


# -- libraries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [dict, Path, numpy.ndarray, nn.Linear, GhostBatchNorm2d, type(iter([]))])
def test_classes_of_libraries(kind: type) -> None:
    assert origin.is_library_class(kind)


def test_isotherms_own_names_are_unique_where_tasks_use_them() -> None:
    """They are known without their module, so that they may move."""
    homes = [
        augment,
        losses,
        metrics,
        *(importlib.import_module(m.name) for m in pkgutil.iter_modules(models.__path__, "isotherm.models.")),
    ]
    names = [
        origin.name_of(thing)
        for home in homes
        for thing in vars(home).values()
        if getattr(thing, "__module__", None) == home.__name__ and hasattr(thing, "__qualname__")
    ]
    assert "isotherm.GhostBatchNorm2d" in names
    assert "isotherm.cross_entropy" in names
    assert len(names) == len(set(names))


def test_classes_of_users() -> None:
    class Mine(nn.Linear):
        pass

    typed = function_from("class f: pass")
    assert not origin.is_library_class(Mine)
    assert not origin.is_library_class(typed)  # type: ignore[arg-type]
    assert not origin.is_library_class(types.new_class("Made"))


# -- cycles and sharing ---------------------------------------------------------------------------------------------


def test_what_is_shared_is_the_same_as_what_is_equal() -> None:
    shared = [1, 2]
    assert described([shared, shared]) == described([[1, 2], [1, 2]])


def test_an_object_in_itself_ends_and_counts() -> None:
    def ring(length: int, value: int) -> list[object]:
        first: list[object] = [value]
        last = first
        for _ in range(length - 1):
            last.append([value])
            last = last[-1]  # type: ignore[assignment]
        last.append(first)
        return first

    assert described(ring(3, 1)) == described(ring(3, 1))
    assert len({described(ring(length, value)) for length in (1, 2, 3) for value in (1, 2)}) == 6  # type: ignore[arg-type]


def test_two_that_look_alike_inside_different_wholes_are_told_apart() -> None:
    """Both children say no more than 'one level up', and one level up is another parent."""
    parents = [{"name": name} for name in ("a", "b")]
    children = []
    for parent in parents:
        parent["child"] = child = [parent]  # type: ignore[assignment]
        children.append(child)
    assert described([*parents, children[0]]) != described([*parents, children[1]])


def test_the_order_of_a_set_does_not_count_and_its_members_do() -> None:
    def functions(*bodies: str) -> set[types.FunctionType]:
        return {function_from(f"def f(x): return {body}") for body in bodies}

    assert described(functions("x", "x + 1", "x + 2")) == described(functions("x + 2", "x", "x + 1"))
    assert described(functions("x", "x + 1")) != described(functions("x", "x + 2"))


def test_deep_nesting_ends() -> None:
    value: list[object] = []
    for _ in range(200):
        value = [value]
    assert described(value) != described([value])
